#include "runtime/ref/rnn_cell.h"

#include "runtime/base/status.h"
#include "runtime/ref/ref.h"

#include <math.h>

/* ---- the layer ------------------------------------------------------------------------------- */

const struct mgpu_tensor *mgpu_rnn_input(const struct mgpu_launch *l, int i)
{
    return i < l->inputs && l->in[i].data ? &l->in[i] : NULL;
}

static int check_lengths(const struct mgpu_rnn_layer *p)
{
    for (int64_t n = 0; p->lengths && n < p->samples; n++) {
        int64_t length = mgpu_get_int(p->lengths->data, p->lengths->type, n);
        if (length < 0 || length > p->steps)
            return mgpu_fail(MGPU_EINVALID, "sequence length %lld of sample %lld is not 0 to %lld",
                             (long long)length, (long long)n, (long long)p->steps);
    }
    return 0;
}

int mgpu_rnn_layer_of(const struct mgpu_launch *l, struct mgpu_rnn_layer *p)
{
    const struct mgpu_rnn_attrs *attrs = l->node->attrs;
    *p = (struct mgpu_rnn_layer){
        .attrs = attrs,
        .steps = l->in[0].dims[0],
        .directions = l->in[1].dims[0],
        .samples = l->in[0].dims[1],
        .inputs = l->in[0].dims[2],
        .hidden = attrs->hidden,
        .gates = l->in[1].dims[1] / attrs->hidden,
        .x = &l->in[0],
        .w = &l->in[1],
        .r = &l->in[2],
        .bias = mgpu_rnn_input(l, 3),
        .lengths = mgpu_rnn_input(l, 4),
        .initial_h = mgpu_rnn_input(l, 5),
        .initial_c = mgpu_rnn_input(l, 6),
        .peephole = mgpu_rnn_input(l, 7),
    };
    return check_lengths(p);
}

bool mgpu_rnn_reversed(const struct mgpu_rnn_layer *p, int64_t direction)
{
    return direction == 1 || p->attrs->direction == MGPU_RNN_REVERSE;
}

bool mgpu_rnn_valid(const struct mgpu_rnn_layer *p, int64_t t, int64_t n)
{
    return !p->lengths || t < mgpu_get_int(p->lengths->data, p->lengths->type, n);
}

static double *take(double **scratch, int64_t count)
{
    double *block = *scratch;
    *scratch += count;
    return block;
}

void mgpu_rnn_cell_carve(const struct mgpu_rnn_layer *p, double **scratch,
                         struct mgpu_rnn_cell *cell)
{
    int64_t state = p->samples * p->hidden;
    cell->sum = take(scratch, state * p->gates);
    cell->gate = take(scratch, state * p->gates);
    cell->part = take(scratch, state);
    cell->h = take(scratch, state);
    cell->c = take(scratch, state);
}

struct mgpu_matrix mgpu_rnn_weights(const struct mgpu_rnn_layer *p, const struct mgpu_tensor *w,
                                    int64_t direction, int64_t first)
{
    int64_t width = w->dims[2];
    int64_t offset = (direction * p->gates + first) * p->hidden * width;
    return (struct mgpu_matrix){w->data, w->type, offset, width, 1};
}

struct mgpu_matrix mgpu_rnn_doubles(double *data, int64_t row)
{
    return (struct mgpu_matrix){data, MGPU_DOUBLE, 0, row, 1};
}

struct mgpu_matrix mgpu_rnn_transposed(struct mgpu_matrix m)
{
    int64_t row = m.row;
    m.row = m.column;
    m.column = row;
    return m;
}

/* ---- activations ----------------------------------------------------------------------------- */

struct activation {
    enum mgpu_rnn_activation kind;
    double alpha, beta;
};

static struct activation activation(const struct mgpu_rnn_layer *p, int64_t direction, int which)
{
    int64_t i = direction * 3 + which;
    return (struct activation){(enum mgpu_rnn_activation)p->attrs->activation[i],
                               p->attrs->alpha[i], p->attrs->beta[i]};
}

static double sigmoid(double x)
{
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

static double value(struct activation a, double x)
{
    switch (a.kind) {
    case MGPU_ACT_SIGMOID:
        return sigmoid(x);
    case MGPU_ACT_TANH:
        return tanh(x);
    case MGPU_ACT_RELU:
        return x < 0 ? 0 : x; /* a NaN stays */
    case MGPU_ACT_AFFINE:
        return a.alpha * x + a.beta;
    case MGPU_ACT_LEAKY_RELU:
        return x < 0 ? a.alpha * x : x;
    case MGPU_ACT_THRESHOLDED_RELU:
        return x < a.alpha ? 0 : x;
    case MGPU_ACT_SCALED_TANH:
        return a.alpha * tanh(a.beta * x);
    case MGPU_ACT_HARD_SIGMOID:
        x = a.alpha * x + a.beta;
        return x < 0 ? 0 : x > 1 ? 1 : x;
    case MGPU_ACT_ELU:
        return x < 0 ? a.alpha * expm1(x) : x;
    case MGPU_ACT_SOFTSIGN:
        return x / (1 + fabs(x));
    case MGPU_ACT_SOFTPLUS:
        return (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
    }
    return x;
}

static double slope(struct activation a, double x)
{
    double y;
    switch (a.kind) {
    case MGPU_ACT_SIGMOID:
        y = sigmoid(x);
        return y * (1 - y);
    case MGPU_ACT_TANH:
        y = tanh(x);
        return 1 - y * y;
    case MGPU_ACT_RELU:
        return x > 0;
    case MGPU_ACT_AFFINE:
        return a.alpha;
    case MGPU_ACT_LEAKY_RELU:
        return x < 0 ? a.alpha : 1;
    case MGPU_ACT_THRESHOLDED_RELU:
        return x >= a.alpha;
    case MGPU_ACT_SCALED_TANH:
        y = tanh(a.beta * x);
        return a.alpha * a.beta * (1 - y * y);
    case MGPU_ACT_HARD_SIGMOID:
        x = a.alpha * x + a.beta;
        return x > 0 && x < 1 ? a.alpha : 0;
    case MGPU_ACT_ELU:
        return x < 0 ? a.alpha * exp(x) : 1;
    case MGPU_ACT_SOFTSIGN:
        y = 1 + fabs(x);
        return 1 / (y * y);
    case MGPU_ACT_SOFTPLUS:
        return sigmoid(x);
    }
    return 1;
}

static double activate(const struct mgpu_rnn_layer *p, int64_t direction, int which, double sum)
{
    double clip = p->attrs->clip;
    if (clip > 0)
        sum = sum > clip ? clip : sum < -clip ? -clip : sum;
    return value(activation(p, direction, which), sum);
}

double mgpu_rnn_slope(const struct mgpu_rnn_layer *p, int64_t direction, int which, double sum)
{
    if (p->attrs->clip > 0 && fabs(sum) > p->attrs->clip)
        return 0;
    return slope(activation(p, direction, which), sum);
}

double mgpu_rnn_cell_output(const struct mgpu_rnn_layer *p, int64_t direction, double c)
{
    return value(activation(p, direction, 2), c);
}

double mgpu_rnn_cell_slope(const struct mgpu_rnn_layer *p, int64_t direction, double c)
{
    return slope(activation(p, direction, 2), c);
}

/* ---- the step -------------------------------------------------------------------------------- */

/* sum of gates [first, first + count) += state [N, width] times their rows of w. */
static void add_product(const struct mgpu_rnn_layer *p, struct mgpu_matrix state,
                        const struct mgpu_tensor *w, int64_t direction, int64_t first,
                        int64_t count, double *sum, int64_t row)
{
    struct mgpu_matrix weights = mgpu_rnn_transposed(mgpu_rnn_weights(p, w, direction, first));
    struct mgpu_matrix to = mgpu_rnn_doubles(sum, row);
    mgpu_matrix_multiply(p->samples, count * p->hidden, w->dims[2], &state, &weights, &to, true);
}

/* Element j of a direction's bias: Wb for j < G*H, then Rb. */
static double bias(const struct mgpu_rnn_layer *p, int64_t direction, int64_t j)
{
    int64_t width = 2 * p->gates * p->hidden;
    return p->bias ? mgpu_ref_get(p->bias->data, p->bias->type, direction * width + j) : 0;
}

static double peephole(const struct mgpu_rnn_layer *p, int64_t direction, int64_t gate, int64_t j)
{
    int64_t i = (direction * 3 + gate) * p->hidden + j;
    return p->peephole ? mgpu_ref_get(p->peephole->data, p->peephole->type, i) : 0;
}

/* sum = x W + Wb (+ h R + Rb, for the gates [0, recurrent)). */
static void sums(const struct mgpu_rnn_layer *p, int64_t direction, int64_t t, const double *h,
                 int64_t recurrent, double *sum)
{
    int64_t row = p->gates * p->hidden;
    for (int64_t n = 0; n < p->samples; n++)
        for (int64_t j = 0; j < row; j++)
            sum[n * row + j] = bias(p, direction, j) +
                               (j < recurrent * p->hidden ? bias(p, direction, row + j) : 0);
    struct mgpu_matrix x = {p->x->data, p->x->type, t * p->samples * p->inputs, p->inputs, 1};
    add_product(p, x, p->w, direction, 0, p->gates, sum, row);
    add_product(p, mgpu_rnn_doubles((double *)h, p->hidden), p->r, direction, 0, recurrent, sum,
                row);
}

static void rnn_step(const struct mgpu_rnn_layer *p, int64_t d, int64_t t, const double *h,
                     const struct mgpu_rnn_cell *cell)
{
    sums(p, d, t, h, 1, cell->sum);
#pragma omp parallel for
    for (int64_t i = 0; i < p->samples * p->hidden; i++)
        cell->h[i] = cell->gate[i] = activate(p, d, 0, cell->sum[i]);
}

static void lstm_unit(const struct mgpu_rnn_layer *p, int64_t d, const double *c, int64_t n,
                      int64_t j, const struct mgpu_rnn_cell *cell)
{
    int64_t H = p->hidden, at = n * H + j;
    double *sum = cell->sum + n * 4 * H + j, *gate = cell->gate + n * 4 * H + j;
    sum[0] += peephole(p, d, 0, j) * c[at];
    sum[2 * H] += peephole(p, d, 2, j) * c[at];
    double in = activate(p, d, 0, sum[0]), candidate = activate(p, d, 1, sum[3 * H]);
    double forget = p->attrs->input_forget ? 1 - in : activate(p, d, 0, sum[2 * H]);
    cell->c[at] = forget * c[at] + in * candidate;
    sum[H] += peephole(p, d, 1, j) * cell->c[at];
    double out = activate(p, d, 0, sum[H]);
    cell->h[at] = out * mgpu_rnn_cell_output(p, d, cell->c[at]);
    gate[0] = in;
    gate[H] = out;
    gate[2 * H] = forget;
    gate[3 * H] = candidate;
}

static void lstm_step(const struct mgpu_rnn_layer *p, int64_t d, int64_t t, const double *h,
                      const double *c, const struct mgpu_rnn_cell *cell)
{
    sums(p, d, t, h, 4, cell->sum);
#pragma omp parallel for
    for (int64_t n = 0; n < p->samples; n++)
        for (int64_t j = 0; j < p->hidden; j++)
            lstm_unit(p, d, c, n, j, cell);
}

/* part = h R + Rb of the candidate, or r .* h; both need the gates z and r before the candidate. */
static void gru_gates(const struct mgpu_rnn_layer *p, int64_t d, const double *h,
                      const struct mgpu_rnn_cell *cell)
{
    int64_t H = p->hidden;
    bool after = p->attrs->linear_before_reset;
#pragma omp parallel for
    for (int64_t n = 0; n < p->samples; n++)
        for (int64_t j = 0; j < H; j++) {
            double *sum = cell->sum + n * 3 * H + j, *gate = cell->gate + n * 3 * H + j;
            gate[0] = activate(p, d, 0, sum[0]);
            gate[H] = activate(p, d, 0, sum[H]);
            cell->part[n * H + j] = after ? bias(p, d, 5 * H + j) : gate[H] * h[n * H + j];
            sum[2 * H] += after ? 0 : bias(p, d, 5 * H + j);
        }
}

static void gru_unit(const struct mgpu_rnn_layer *p, int64_t d, const double *h, int64_t n,
                     int64_t j, const struct mgpu_rnn_cell *cell)
{
    int64_t H = p->hidden, at = n * H + j;
    double *sum = cell->sum + n * 3 * H + j, *gate = cell->gate + n * 3 * H + j;
    if (p->attrs->linear_before_reset)
        sum[2 * H] += gate[H] * cell->part[at];
    gate[2 * H] = activate(p, d, 1, sum[2 * H]);
    cell->h[at] = (1 - gate[0]) * gate[2 * H] + gate[0] * h[at];
}

static void gru_step(const struct mgpu_rnn_layer *p, int64_t d, int64_t t, const double *h,
                     const struct mgpu_rnn_cell *cell)
{
    int64_t H = p->hidden;
    sums(p, d, t, h, 2, cell->sum);
    gru_gates(p, d, h, cell);
    if (p->attrs->linear_before_reset)
        add_product(p, mgpu_rnn_doubles((double *)h, H), p->r, d, 2, 1, cell->part, H);
    else
        add_product(p, mgpu_rnn_doubles(cell->part, H), p->r, d, 2, 1, cell->sum + 2 * H, 3 * H);
#pragma omp parallel for
    for (int64_t n = 0; n < p->samples; n++)
        for (int64_t j = 0; j < H; j++)
            gru_unit(p, d, h, n, j, cell);
}

void mgpu_rnn_step(const struct mgpu_rnn_layer *p, int64_t d, int64_t t, const double *h,
                   const double *c, const struct mgpu_rnn_cell *cell)
{
    if (p->attrs->kind == MGPU_RNN)
        rnn_step(p, d, t, h, cell);
    else if (p->attrs->kind == MGPU_GRU)
        gru_step(p, d, t, h, cell);
    else
        lstm_step(p, d, t, h, c, cell);
}
