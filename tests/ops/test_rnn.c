#include "runtime/ops/build.h"
#include "runtime/ops/rnn.h"
#include "tests/ops/op_check.h"
#include "tests/ops/run_graph.h"
#include "tests/test.h"

enum { X, W, R, B, LENGTHS, INITIAL_H, INITIAL_C, P, INPUTS };

/* ---- against ONNX Runtime and PyTorch ---------------------------------------------------------
 */

enum { STEPS = 4, SAMPLES = 3, WIDTH = 2, HIDDEN = 3, MOST = 128 };

struct golden {
    const char *name;
    struct mgpu_rnn_attrs attrs;
    unsigned optional; /* bit i: input i (B and up) is present */
    double y[MOST], y_h[MOST], y_c[MOST];
    double dx[MOST], dw[MOST], dr[MOST], db[MOST], dh[MOST], dc[MOST]; /* PyTorch only */
};

#include "tests/ops/golden_rnn.h"

/* Element i of tensor number `salt` (make_rnn.py). */
static double number(int64_t salt, int64_t i)
{
    return (double)((i * 37 + salt * 11) % 97 - 48) / 64;
}

static int feed(struct mgpu_run *run, const struct mgpu_value *v, int64_t salt)
{
    double contents[MOST] = {4, 2, 3};
    for (int64_t i = 0; v->type != MGPU_INT32 && i < mgpu_value_count(v); i++)
        contents[i] = number(salt, i);
    return mgpu_run_feed(run, v, contents);
}

static int64_t gates(const struct mgpu_rnn_attrs *attrs)
{
    return attrs->kind == MGPU_RNN ? 1 : attrs->kind == MGPU_GRU ? 3 : 4;
}

static struct mgpu_value *add_input(struct mgpu_graph *g, const struct mgpu_rnn_attrs *attrs, int i)
{
    int64_t D = attrs->direction == MGPU_RNN_BIDIRECTIONAL ? 2 : 1, G = gates(attrs);
    const int64_t sizes[INPUTS][3] = {{STEPS, SAMPLES, WIDTH},
                                      {D, G * HIDDEN, WIDTH},
                                      {D, G * HIDDEN, HIDDEN},
                                      {D, 2 * G * HIDDEN},
                                      {SAMPLES},
                                      {D, SAMPLES, HIDDEN},
                                      {D, SAMPLES, HIDDEN},
                                      {D, 3 * HIDDEN}};
    struct mgpu_dim dims[3];
    int rank = 0;
    for (; rank < 3 && sizes[i][rank]; rank++)
        dims[rank] = mgpu_dim_const(sizes[i][rank]);
    return mgpu_graph_input(g, "x", i == LENGTHS ? MGPU_INT32 : MGPU_DOUBLE, rank, dims);
}

static void compare(const struct golden *golden, struct mgpu_run *run, const char *what,
                    const struct mgpu_value *value, const double *want, double limit)
{
    const double *got = mgpu_run_doubles(run, value);
    for (int64_t i = 0; i < mgpu_value_count(value); i++)
        CHECK_(fabs(got[i] - want[i]) <= limit, "%s: %s[%lld] is %.9g, not %.9g", golden->name,
               what, (long long)i, got[i], want[i]);
}

/* The layer and its gradient for G = tensors 20 and up, as the script has them. */
static void check_golden(const struct golden *golden, bool gradient, double limit)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_value *in[INPUTS] = {NULL}, *out[4], *dy[4] = {NULL}, *dx[INPUTS] = {NULL};
    struct mgpu_run run;
    int outputs = golden->attrs.kind == MGPU_LSTM ? 3 : 2;
    for (int i = 0; i < INPUTS; i++)
        if (i < B || golden->optional >> i & 1)
            in[i] = add_input(g, &golden->attrs, i);
    CHECK_OK(mgpu_graph_node(g, &mgpu_op_rnn, &golden->attrs, INPUTS, in, 4, out));
    bool wanted[INPUTS] = {false};
    for (int i = 0; i < INPUTS; i++)
        wanted[i] = in[i] && i != LENGTHS;
    for (int i = 0; i < outputs; i++)
        dy[i] = mgpu_graph_input(g, "dy", MGPU_DOUBLE, out[i]->rank, out[i]->dims);
    if (gradient)
        CHECK_OK(mgpu_op_rnn.gradient(g, g->nodes[0], dy, wanted, dx));
    mgpu_run_init(&run, g, &mgpu_backend_ref);
    for (int i = 0; i < INPUTS; i++)
        if (in[i])
            CHECK_OK(feed(&run, in[i], i));
    for (int i = 0; i < outputs; i++)
        CHECK_OK(feed(&run, dy[i], 20 + i));
    CHECK_OK(mgpu_run_all(&run));
    const double *want[] = {golden->y, golden->y_h, golden->y_c};
    const double *want_dx[] = {golden->dx, golden->dw, golden->dr, golden->db,
                               NULL,       golden->dh, golden->dc};
    static const char *const names[] = {"dX", "dW", "dR", "dB", "", "dh", "dc"};
    for (int i = 0; i < outputs; i++)
        compare(golden, &run, i == 0 ? "Y" : i == 1 ? "Y_h" : "Y_c", out[i], want[i], limit);
    for (int i = 0; gradient && i < P; i++)
        if (dx[i])
            compare(golden, &run, names[i], dx[i], want_dx[i], limit);
    mgpu_run_free(&run);
    mgpu_graph_free(g);
}

/* ---- the harness ------------------------------------------------------------------------------
 */

enum { N = 3 };

static struct mgpu_check_input input(int rank, int axis, int64_t a, int64_t b, int64_t c)
{
    return (struct mgpu_check_input){
        .rank = rank, .batch_axis = axis, .dims = {a, b, c}, .low = -0.9, .high = 0.9};
}

struct row {
    const char *name;
    struct mgpu_rnn_attrs attrs;
    int64_t steps, width;
    unsigned optional;
};

#define TANH3 MGPU_ACT_TANH, MGPU_ACT_TANH, MGPU_ACT_TANH
#define USUAL MGPU_ACT_SIGMOID, MGPU_ACT_TANH, MGPU_ACT_TANH

#define ALL      (1 << B | 1 << LENGTHS | 1 << INITIAL_H)
#define LSTM_ALL (ALL | 1 << INITIAL_C | 1 << P)

static const struct row rows[] = {
    {"RNN", {.kind = MGPU_RNN, .hidden = 3, .activation = {TANH3}}, 3, 2, 0},
    {"RNN, one of everything",
     {.kind = MGPU_RNN, .hidden = 1, .activation = {TANH3}},
     1,
     1,
     1 << B},
    {"RNN both ways, all inputs",
     {.kind = MGPU_RNN,
      .direction = MGPU_RNN_BIDIRECTIONAL,
      .hidden = 2,
      .activation = {TANH3, USUAL}},
     4,
     3,
     ALL},
    {"RNN reverse, clip",
     {.kind = MGPU_RNN,
      .direction = MGPU_RNN_REVERSE,
      .hidden = 5,
      .activation = {TANH3},
      .clip = 0.4},
     3,
     2,
     1 << B},
    {"GRU", {.kind = MGPU_GRU, .hidden = 3, .activation = {USUAL}}, 3, 2, 0},
    {"GRU both ways, all inputs",
     {.kind = MGPU_GRU,
      .direction = MGPU_RNN_BIDIRECTIONAL,
      .hidden = 3,
      .activation = {USUAL, USUAL}},
     4,
     2,
     ALL},
    {"GRU, linear before reset",
     {.kind = MGPU_GRU, .hidden = 3, .activation = {USUAL}, .linear_before_reset = true},
     3,
     1,
     1 << B},
    {"GRU reverse, linear before reset, clip",
     {.kind = MGPU_GRU,
      .direction = MGPU_RNN_REVERSE,
      .hidden = 2,
      .activation = {USUAL},
      .clip = 0.6,
      .linear_before_reset = true},
     4,
     3,
     ALL},
    {"LSTM", {.kind = MGPU_LSTM, .hidden = 3, .activation = {USUAL}}, 3, 2, 0},
    {"LSTM both ways, all inputs",
     {.kind = MGPU_LSTM,
      .direction = MGPU_RNN_BIDIRECTIONAL,
      .hidden = 3,
      .activation = {USUAL, USUAL}},
     4,
     2,
     LSTM_ALL},
    {"LSTM reverse, coupled gates, clip",
     {.kind = MGPU_LSTM,
      .direction = MGPU_RNN_REVERSE,
      .hidden = 2,
      .activation = {USUAL},
      .clip = 0.7,
      .input_forget = true},
     3,
     2,
     LSTM_ALL},
    {"LSTM, other activations both ways",
     {.kind = MGPU_LSTM,
      .direction = MGPU_RNN_BIDIRECTIONAL,
      .hidden = 3,
      .activation = {MGPU_ACT_HARD_SIGMOID, MGPU_ACT_SOFTSIGN, MGPU_ACT_AFFINE, MGPU_ACT_SIGMOID,
                     MGPU_ACT_SCALED_TANH, MGPU_ACT_ELU},
      .alpha = {0.25, 0, 0.5, 0, 0.5, 0.5},
      .beta = {0.5, 0, 0.25, 0, 1.5, 0}},
     3,
     2,
     LSTM_ALL},
};

static void check_row(const struct row *row)
{
    const struct mgpu_rnn_attrs *a = &row->attrs;
    int64_t D = a->direction == MGPU_RNN_BIDIRECTIONAL ? 2 : 1, G = gates(a), H = a->hidden;
    struct mgpu_check checks[2] = {
        {.name = row->name, .op = &mgpu_op_rnn, .attrs = a, .inputs = INPUTS}};
    struct mgpu_check_input *in = checks[0].input;
    in[X] = input(3, 1, row->steps, N, row->width);
    in[W] = input(3, -1, D, G * H, row->width);
    in[R] = input(3, -1, D, G * H, H);
    in[B] = input(2, -1, D, 2 * G * H, 0);
    in[LENGTHS] = (struct mgpu_check_input){
        .rank = 1, .dims = {N}, .type = MGPU_INT32, .high = (double)row->steps};
    in[INITIAL_H] = input(3, 1, D, N, H);
    in[INITIAL_C] = input(3, 1, D, N, H);
    in[P] = input(2, -1, D, 3 * H, 0);
    for (int i = B; i < INPUTS; i++)
        if (!(row->optional >> i & 1))
            in[i] = (struct mgpu_check_input){.rank = -1};
    checks[0].skip_outputs = 1 << 3; /* the reserve is for rnn_grad alone */
    CHECK(mgpu_op_check(checks) == 0);
}

/* Every activation, at sums on both sides of its corners. */
static void check_activations(void)
{
    static const double alpha[] = {[MGPU_ACT_AFFINE] = 0.5,
                                   [MGPU_ACT_LEAKY_RELU] = 0.25,
                                   [MGPU_ACT_THRESHOLDED_RELU] = 0.25,
                                   [MGPU_ACT_SCALED_TANH] = 0.5,
                                   [MGPU_ACT_HARD_SIGMOID] = 0.75,
                                   [MGPU_ACT_ELU] = -0.5,
                                   [MGPU_ACT_SOFTPLUS] = 0};
    struct row row = {"activation", {.kind = MGPU_RNN, .hidden = 4}, 2, 2, 1 << B};
    for (int act = MGPU_ACT_SIGMOID; act <= MGPU_ACT_SOFTPLUS; act++) {
        char name[64];
        snprintf(name, sizeof name, "RNN with activation %d", act);
        row.name = name;
        row.attrs.activation[0] = act;
        row.attrs.alpha[0] = alpha[act];
        row.attrs.beta[0] = 0.5;
        check_row(&row);
    }
}

/* ---- refusals ---------------------------------------------------------------------------------
 */

static int build(const struct mgpu_rnn_attrs *attrs, int64_t size, double length)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim x[] = {mgpu_dim_const(2), mgpu_dim_const(1), mgpu_dim_const(1)};
    struct mgpu_dim w[] = {mgpu_dim_const(1), mgpu_dim_const(size), mgpu_dim_const(1)};
    struct mgpu_dim one = mgpu_dim_const(1);
    struct mgpu_value *in[] = {mgpu_graph_input(g, "X", MGPU_DOUBLE, 3, x),
                               mgpu_graph_input(g, "W", MGPU_DOUBLE, 3, w),
                               mgpu_graph_input(g, "R", MGPU_DOUBLE, 3, w), NULL,
                               mgpu_graph_input(g, "lengths", MGPU_INT32, 1, &one)};
    struct mgpu_value *out[4];
    int rc = mgpu_graph_node(g, &mgpu_op_rnn, attrs, 5, in, 4, out);
    if (rc == 0) {
        struct mgpu_run run;
        mgpu_run_init(&run, g, &mgpu_backend_ref);
        CHECK_OK(mgpu_run_feed(&run, in[4], &length));
        rc = mgpu_run_all(&run);
        mgpu_run_free(&run);
    }
    mgpu_graph_free(g);
    return rc;
}

static void check_refusals(void)
{
    struct mgpu_rnn_attrs a = {.kind = MGPU_LSTM, .hidden = 1, .activation = {USUAL}};
    CHECK_OK(build(&a, 4, 2));
    CHECK_FAILS(build(&a, 4, 3), "sequence length 3 of sample 0");
    CHECK_FAILS(build(&a, 4, -1), "sequence length -1");
    CHECK_FAILS(build(&a, 3, 2), "its shape must be [1,4,1]");
    a.direction = MGPU_RNN_BIDIRECTIONAL;
    CHECK_FAILS(build(&a, 4, 2), "its shape must be [2,4,1]");
    a.direction = MGPU_RNN_FORWARD;
    a.hidden = 0;
    CHECK_FAILS(build(&a, 4, 2), "hidden size 0");
    a.hidden = 1;
    a.activation[1] = 11;
    CHECK_FAILS(build(&a, 4, 2), "activation 11");
}

int main(void)
{
    for (size_t i = 0; i < sizeof onnx_golden / sizeof *onnx_golden; i++)
        check_golden(&onnx_golden[i], false, 2e-6);
    for (size_t i = 0; i < sizeof torch_golden / sizeof *torch_golden; i++)
        check_golden(&torch_golden[i], true, 1e-12);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_row(&rows[i]);
    check_activations();
    check_refusals();
    return test_end();
}
