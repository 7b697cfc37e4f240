/* rnn_grad in plain C. The steps are computed again from the saved states (so that clip and every
 * activation have their exact derivative), backward in the order opposite to the layer's; the
 * gradients of the sums are kept for all steps, and the weights' gradients are one product each.
 */
#include "runtime/base/status.h"
#include "runtime/ref/ref.h"
#include "runtime/ref/rnn_cell.h"

#include <string.h>

struct back {
    struct mgpu_rnn_layer layer;
    struct mgpu_rnn_cell cell;
    const struct mgpu_tensor *y, *reserve, *dy, *dy_h, *dy_c;
    const struct mgpu_tensor *dx, *dw, *dr, *dbias, *dinitial_h, *dinitial_c, *dpeephole;
    double *dsum;             /* [T,N,G*H]: gradients of what enters the activations */
    double *h;                /* [T,N,H]: states before the steps */
    double *dpart;            /* GRU [T,N,H]: gradient of the candidate's product with R */
    double *reset;            /* GRU [T,N,H]: what that product multiplies: h, or r .* h */
    double *c;                /* LSTM [N,H]: cell states before the step */
    double *dh, *dc, *dreset; /* [N,H]: gradients of the states; of r .* h */
    double *dp;               /* LSTM [3,H] */
};

static const struct mgpu_tensor *wanted(const struct mgpu_launch *l, int i)
{
    return i < l->outputs && l->out[i].data ? &l->out[i] : NULL;
}

static double *take(double **scratch, int64_t count)
{
    double *block = *scratch;
    *scratch += count;
    return block;
}

static int back_of(const struct mgpu_launch *l, struct back *b)
{
    double *scratch = l->workspace;
    MGPU_TRY(mgpu_rnn_layer_of(l, &b->layer));
    const struct mgpu_rnn_layer *p = &b->layer;
    int64_t state = p->samples * p->hidden;
    mgpu_rnn_cell_carve(p, &scratch, &b->cell);
    b->dsum = take(&scratch, p->steps * state * p->gates);
    b->h = take(&scratch, p->steps * state);
    b->dpart = take(&scratch, p->steps * state);
    b->reset = take(&scratch, p->steps * state);
    b->c = take(&scratch, state);
    b->dh = take(&scratch, state);
    b->dc = take(&scratch, state);
    b->dreset = take(&scratch, state);
    b->dp = take(&scratch, 3 * p->hidden);
    b->y = &l->in[8];
    b->reserve = &l->in[9];
    b->dy = mgpu_rnn_input(l, 10);
    b->dy_h = mgpu_rnn_input(l, 11);
    b->dy_c = mgpu_rnn_input(l, 12);
    b->dx = wanted(l, 0);
    b->dw = wanted(l, 1);
    b->dr = wanted(l, 2);
    b->dbias = wanted(l, 3);
    b->dinitial_h = wanted(l, 4);
    b->dinitial_c = wanted(l, 5);
    b->dpeephole = wanted(l, 6);
    return 0;
}

static double get(const struct mgpu_tensor *t, int64_t i)
{
    return t ? mgpu_ref_get(t->data, t->type, i) : 0;
}

/* Row [t, d, n] of Y, its gradient or the reserve. */
static int64_t row_of(const struct mgpu_rnn_layer *p, int64_t t, int64_t d, int64_t n)
{
    return (t * p->directions + d) * p->samples + n;
}

/* The states of sample n before step t: those after the step that the layer did before it, or the
 * initial ones. */
static void load_states(const struct back *b, int64_t d, int64_t t, int64_t n)
{
    const struct mgpu_rnn_layer *p = &b->layer;
    int64_t H = p->hidden, before = mgpu_rnn_reversed(p, d) ? t + 1 : t - 1;
    bool first = before < 0 || before >= p->steps || !mgpu_rnn_valid(p, before, n);
    double *h = b->h + (t * p->samples + n) * H, *c = b->c + n * H;
    int64_t initial = (d * p->samples + n) * H;
    int64_t row = first ? 0 : row_of(p, before, d, n);
    int64_t cell = row * b->reserve->dims[3] + p->gates * H;
    bool lstm = p->attrs->kind == MGPU_LSTM;
    for (int64_t j = 0; j < H; j++) {
        h[j] = first ? get(p->initial_h, initial + j) : get(b->y, row * H + j);
        c[j] = !lstm ? 0 : first ? get(p->initial_c, initial + j) : get(b->reserve, cell + j);
    }
}

/* ---- one unit: reads the gradient of its new state in dh (and dc), leaves there what reaches the
 * old state without passing R, and sets the gradients of its sums ------------------------------ */

static void rnn_unit(const struct back *b, int64_t d, int64_t t, int64_t n, int64_t j)
{
    const struct mgpu_rnn_layer *p = &b->layer;
    int64_t at = n * p->hidden + j, all = t * p->samples * p->hidden + at;
    b->dsum[all] = b->dh[at] * mgpu_rnn_slope(p, d, 0, b->cell.sum[at]);
    b->dh[at] = 0;
}

static double peephole(const struct mgpu_rnn_layer *p, int64_t d, int64_t gate, int64_t j)
{
    return get(p->peephole, (d * 3 + gate) * p->hidden + j);
}

static void lstm_unit(const struct back *b, int64_t d, int64_t t, int64_t n, int64_t j)
{
    const struct mgpu_rnn_layer *p = &b->layer;
    int64_t H = p->hidden, at = n * H + j;
    const double *sum = b->cell.sum + n * 4 * H + j, *gate = b->cell.gate + n * 4 * H + j;
    double *dsum = b->dsum + (t * p->samples + n) * 4 * H + j;
    double in = gate[0], out = gate[H], forget = gate[2 * H], candidate = gate[3 * H];
    double c = b->cell.c[at], dh = b->dh[at];
    dsum[H] = dh * mgpu_rnn_cell_output(p, d, c) * mgpu_rnn_slope(p, d, 0, sum[H]);
    double dc =
        b->dc[at] + dh * out * mgpu_rnn_cell_slope(p, d, c) + dsum[H] * peephole(p, d, 1, j);
    double din = dc * candidate, dforget = dc * b->c[at];
    if (p->attrs->input_forget) { /* forget = 1 - in */
        din -= dforget;
        dforget = 0;
    }
    dsum[0] = din * mgpu_rnn_slope(p, d, 0, sum[0]);
    dsum[2 * H] = dforget * mgpu_rnn_slope(p, d, 0, sum[2 * H]);
    dsum[3 * H] = dc * in * mgpu_rnn_slope(p, d, 1, sum[3 * H]);
    b->dc[at] = dc * forget + dsum[0] * peephole(p, d, 0, j) + dsum[2 * H] * peephole(p, d, 2, j);
    b->dh[at] = 0;
}

/* All but the reset gate of a GRU without linear_before_reset, which has to wait for dreset. */
static void gru_unit(const struct back *b, int64_t d, int64_t t, int64_t n, int64_t j)
{
    const struct mgpu_rnn_layer *p = &b->layer;
    int64_t H = p->hidden, at = n * H + j, all = t * p->samples * H + at;
    const double *sum = b->cell.sum + n * 3 * H + j, *gate = b->cell.gate + n * 3 * H + j;
    double *dsum = b->dsum + (t * p->samples + n) * 3 * H + j;
    double update = gate[0], reset = gate[H], candidate = gate[2 * H];
    double dh = b->dh[at], h = b->h[all], part = b->cell.part[at];
    bool after = p->attrs->linear_before_reset;
    dsum[0] = dh * (h - candidate) * mgpu_rnn_slope(p, d, 0, sum[0]);
    dsum[2 * H] = dh * (1 - update) * mgpu_rnn_slope(p, d, 1, sum[2 * H]);
    dsum[H] = after ? dsum[2 * H] * part * mgpu_rnn_slope(p, d, 0, sum[H]) : 0;
    b->dpart[all] = after ? dsum[2 * H] * reset : dsum[2 * H];
    b->reset[all] = after ? h : part;
    b->dh[at] = dh * update;
}

static void gru_reset_unit(const struct back *b, int64_t d, int64_t t, int64_t n, int64_t j)
{
    const struct mgpu_rnn_layer *p = &b->layer;
    int64_t H = p->hidden, at = n * H + j, unit = n * 3 * H + j;
    double dreset = b->dreset[at], h = b->h[t * p->samples * H + at];
    b->dsum[t * p->samples * 3 * H + unit + H] =
        dreset * h * mgpu_rnn_slope(p, d, 0, b->cell.sum[unit + H]);
    b->dh[at] += dreset * b->cell.gate[unit + H];
}

/* A step that is not part of the sample's sequence: the state's gradient passes unchanged. */
static void skip_unit(const struct back *b, int64_t t, int64_t n, int64_t j)
{
    const struct mgpu_rnn_layer *p = &b->layer;
    int64_t H = p->hidden, row = t * p->samples + n;
    for (int64_t gate = 0; gate < p->gates; gate++)
        b->dsum[(row * p->gates + gate) * H + j] = 0;
    b->dpart[row * H + j] = b->reset[row * H + j] = 0;
}

static void step_units(const struct back *b, int64_t d, int64_t t)
{
    const struct mgpu_rnn_layer *p = &b->layer;
    int64_t H = p->hidden;
#pragma omp parallel for
    for (int64_t n = 0; n < p->samples; n++)
        for (int64_t j = 0; j < H; j++) {
            if (!mgpu_rnn_valid(p, t, n)) {
                skip_unit(b, t, n, j);
                continue;
            }
            b->dh[n * H + j] += get(b->dy, row_of(p, t, d, n) * H + j);
            if (p->attrs->kind == MGPU_RNN)
                rnn_unit(b, d, t, n, j);
            else if (p->attrs->kind == MGPU_GRU)
                gru_unit(b, d, t, n, j);
            else
                lstm_unit(b, d, t, n, j);
        }
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* to [N,H] (+)= gradients [N, gates * H] times the rows of R of these gates. */
static void through_r(const struct back *b, int64_t d, struct mgpu_matrix gradients, int64_t first,
                      int64_t gates, double *to, bool add)
{
    const struct mgpu_rnn_layer *p = &b->layer;
    struct mgpu_matrix r = mgpu_rnn_weights(p, p->r, d, first);
    struct mgpu_matrix state = mgpu_rnn_doubles(to, p->hidden);
    mgpu_matrix_multiply(p->samples, p->hidden, gates * p->hidden, &gradients, &r, &state, add);
}

static void gru_reset(const struct back *b, int64_t d, int64_t t, struct mgpu_matrix dpart)
{
    const struct mgpu_rnn_layer *p = &b->layer;
    through_r(b, d, dpart, 2, 1, b->dreset, false);
#pragma omp parallel for
    for (int64_t n = 0; n < p->samples; n++)
        for (int64_t j = 0; j < p->hidden && mgpu_rnn_valid(p, t, n); j++)
            gru_reset_unit(b, d, t, n, j);
}

/* dp += dsum .* cell state: the old one for the gates i and f, the new one for o. */
static void add_peepholes(const struct back *b, int64_t t)
{
    const struct mgpu_rnn_layer *p = &b->layer;
    int64_t H = p->hidden;
#pragma omp parallel for
    for (int64_t j = 0; j < H; j++)
        for (int64_t n = 0; n < p->samples; n++) {
            const double *dsum = b->dsum + (t * p->samples + n) * 4 * H + j;
            b->dp[j] += dsum[0] * b->c[n * H + j];
            b->dp[H + j] += dsum[H] * b->cell.c[n * H + j];
            b->dp[2 * H + j] += dsum[2 * H] * b->c[n * H + j];
        }
}

static void step(const struct back *b, int64_t d, int64_t t)
{
    const struct mgpu_rnn_layer *p = &b->layer;
    int64_t state = p->samples * p->hidden, row = p->gates * p->hidden;
    bool gru = p->attrs->kind == MGPU_GRU;
    for (int64_t n = 0; n < p->samples; n++)
        load_states(b, d, t, n);
    mgpu_rnn_step(p, d, t, b->h + t * state, b->c, &b->cell);
    step_units(b, d, t);
    struct mgpu_matrix dsum = mgpu_rnn_doubles(b->dsum + t * p->samples * row, row);
    struct mgpu_matrix dpart = mgpu_rnn_doubles(b->dpart + t * state, p->hidden);
    if (gru && p->attrs->linear_before_reset)
        through_r(b, d, dpart, 2, 1, b->dh, true);
    else if (gru)
        gru_reset(b, d, t, dpart);
    through_r(b, d, dsum, 0, gru ? 2 : p->gates, b->dh, true);
    if (p->attrs->kind == MGPU_LSTM)
        add_peepholes(b, t);
}

/* ---- what the steps add up to -----------------------------------------------------------------
 */

static void store_all(const struct mgpu_tensor *to, int64_t at, const double *from, int64_t count)
{
    for (int64_t i = 0; to && i < count; i++)
        mgpu_ref_set(to->data, to->type, at + i, from[i]);
}

/* dw rows of gates [first, first + count) = gradients' columns, transposed, times rows [T*N, ...]
 */
static void weight_gradient(const struct back *b, int64_t d, const struct mgpu_tensor *dw,
                            int64_t first, int64_t count, struct mgpu_matrix gradients,
                            struct mgpu_matrix rows)
{
    const struct mgpu_rnn_layer *p = &b->layer;
    struct mgpu_matrix a = mgpu_rnn_transposed(gradients);
    struct mgpu_matrix to = mgpu_rnn_weights(p, dw, d, first);
    mgpu_matrix_multiply(count * p->hidden, dw->dims[2], p->steps * p->samples, &a, &rows, &to,
                         false);
}

/* dWb and dRb: sums over steps and samples. */
static void bias_gradient(const struct back *b, int64_t d)
{
    const struct mgpu_rnn_layer *p = &b->layer;
    int64_t row = p->gates * p->hidden, H = p->hidden, count = p->steps * p->samples;
    bool gru = p->attrs->kind == MGPU_GRU;
#pragma omp parallel for
    for (int64_t j = 0; j < row; j++) {
        double w = 0, r = 0;
        for (int64_t i = 0; i < count; i++) {
            double dsum = b->dsum[i * row + j];
            w += dsum;
            r += gru && j >= 2 * H ? b->dpart[i * H + j - 2 * H] : dsum;
        }
        mgpu_ref_set(b->dbias->data, b->dbias->type, d * 2 * row + j, w);
        mgpu_ref_set(b->dbias->data, b->dbias->type, d * 2 * row + row + j, r);
    }
}

static void finish(const struct back *b, int64_t d)
{
    const struct mgpu_rnn_layer *p = &b->layer;
    int64_t H = p->hidden, row = p->gates * H, state = p->samples * H;
    struct mgpu_matrix dsum = mgpu_rnn_doubles(b->dsum, row);
    struct mgpu_matrix x = {p->x->data, p->x->type, 0, p->inputs, 1};
    bool gru = p->attrs->kind == MGPU_GRU;
    if (b->dx) {
        struct mgpu_matrix w = mgpu_rnn_weights(p, p->w, d, 0);
        struct mgpu_matrix dx = {b->dx->data, b->dx->type, 0, p->inputs, 1};
        mgpu_matrix_multiply(p->steps * p->samples, p->inputs, row, &dsum, &w, &dx, d > 0);
    }
    if (b->dw)
        weight_gradient(b, d, b->dw, 0, p->gates, dsum, x);
    if (b->dr)
        weight_gradient(b, d, b->dr, 0, gru ? 2 : p->gates, dsum, mgpu_rnn_doubles(b->h, H));
    if (b->dr && gru)
        weight_gradient(b, d, b->dr, 2, 1, mgpu_rnn_doubles(b->dpart, H),
                        mgpu_rnn_doubles(b->reset, H));
    if (b->dbias)
        bias_gradient(b, d);
    store_all(b->dinitial_h, d * state, b->dh, state);
    store_all(b->dinitial_c, d * state, b->dc, state);
    store_all(b->dpeephole, d * 3 * H, b->dp, 3 * H);
}

int mgpu_ref_rnn_grad(const struct mgpu_launch *l)
{
    struct back b;
    MGPU_TRY(back_of(l, &b));
    const struct mgpu_rnn_layer *p = &b.layer;
    int64_t state = p->samples * p->hidden;
    for (int64_t d = 0; d < p->directions; d++) {
        for (int64_t i = 0; i < state; i++) {
            b.dh[i] = get(b.dy_h, d * state + i);
            b.dc[i] = get(b.dy_c, d * state + i);
        }
        memset(b.dp, 0, sizeof *b.dp * 3 * (size_t)p->hidden);
        for (int64_t s = p->steps - 1; s >= 0; s--)
            step(&b, d, mgpu_rnn_reversed(p, d) ? p->steps - 1 - s : s);
        finish(&b, d);
    }
    return 0;
}
