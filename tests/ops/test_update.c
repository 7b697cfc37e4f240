/* Optimizers: five steps of every kind, style and option against PyTorch's and Keras's numbers; the
 * harness; tensors of many blocks; and the same bits whatever the number of threads. */
#include "runtime/ops/update.h"
#include "tests/ops/op_check.h"
#include "tests/ops/run_graph.h"
#include "tests/test.h"

struct golden {
    const char *name;
    struct mgpu_update_attrs attrs;
    double lr_factor, coefficient;
    const double *w, *gradients, *after; /* [SIZE], [STEPS][SIZE], [STEPS][SIZE] */
};

#include "tests/ops/golden_update.h"

enum { MOST = 3 };

/* A graph of one update whose state parameters are what the node gives back. */
struct training {
    struct mgpu_graph *g;
    struct mgpu_value *w, *gradient, *state[MOST], *coefficient, *out[1 + MOST];
    struct mgpu_run run;
    int states;
};

static void begin(struct training *t, const struct mgpu_update_attrs *attrs, enum mgpu_dtype type,
                  int64_t size)
{
    double start[MOST];
    struct mgpu_dim n = mgpu_dim_const(size);
    *t = (struct training){.g = mgpu_graph_new()};
    t->states = mgpu_update_states(attrs, start);
    t->w = mgpu_graph_parameter(t->g, "w", MGPU_WEIGHT, type, 1, &n);
    t->gradient = mgpu_graph_input(t->g, "g", type, 1, &n);
    t->coefficient = mgpu_graph_input(t->g, "c", MGPU_DOUBLE, 0, NULL);
    struct mgpu_value *in[8] = {
        t->w, t->gradient, mgpu_graph_scalar(t->g, MGPU_SCALAR_STEP, "step"),
        mgpu_graph_scalar(t->g, MGPU_SCALAR_LR_FACTOR, "factor"), t->coefficient};
    for (int i = 0; i < t->states; i++)
        in[5 + i] = t->state[i] =
            mgpu_graph_parameter(t->g, mgpu_update_state_name(attrs, i), MGPU_STATE, type, 1, &n);
    CHECK_OK(
        mgpu_graph_node(t->g, &mgpu_op_update, attrs, 5 + t->states, in, 1 + t->states, t->out));
    mgpu_run_init(&t->run, t->g, &mgpu_backend_ref);
    double *values = mgpu_xcalloc((size_t)size + 1, sizeof *values);
    for (int i = 0; i < t->states; i++) {
        for (int64_t k = 0; k < size; k++)
            values[k] = start[i];
        CHECK_OK(mgpu_run_feed(&t->run, t->state[i], values));
    }
    free(values);
    CHECK_OK(mgpu_run_feed(&t->run, t->coefficient, (double[]){1}));
}

static void end(struct training *t)
{
    mgpu_run_free(&t->run);
    mgpu_graph_free(t->g);
}

/* One step; what comes out is what the next one starts from. */
static void step(struct training *t, int number, const double *gradient)
{
    t->run.scalar[MGPU_SCALAR_STEP] = number;
    CHECK_OK(mgpu_run_feed(&t->run, t->gradient, gradient));
    CHECK_OK(mgpu_run_all(&t->run));
    CHECK_OK(mgpu_run_feed(&t->run, t->w, mgpu_run_doubles(&t->run, t->out[0])));
    for (int i = 0; i < t->states; i++)
        CHECK_OK(mgpu_run_feed(&t->run, t->state[i], mgpu_run_doubles(&t->run, t->out[1 + i])));
}

static void test_golden(const struct golden *c, enum mgpu_dtype type, double tolerance)
{
    struct training t;
    begin(&t, &c->attrs, type, SIZE);
    t.run.scalar[MGPU_SCALAR_LR_FACTOR] = c->lr_factor;
    CHECK_OK(mgpu_run_feed(&t.run, t.w, c->w));
    CHECK_OK(mgpu_run_feed(&t.run, t.coefficient, &c->coefficient));
    for (int s = 0; s < STEPS; s++) {
        step(&t, s, c->gradients + s * SIZE);
        const double *w = mgpu_run_doubles(&t.run, t.w);
        for (int k = 0; k < SIZE; k++)
            CHECK_(fabs(w[k] - c->after[s * SIZE + k]) <= tolerance,
                   "%s: step %d: w[%d] is %.17g, not %.17g", c->name, s, k, w[k],
                   c->after[s * SIZE + k]);
    }
    end(&t);
}

#define ATTRS(...)                                                                                 \
    &(struct mgpu_update_attrs)                                                                    \
    {                                                                                              \
        .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-3, .rho = 0.9, __VA_ARGS__               \
    }
#define TENSOR                                                                                     \
    {                                                                                              \
        .rank = 2, .dims = {3, 7}, .batch_axis = -1                                                \
    }
#define STATE                                                                                      \
    {                                                                                              \
        .rank = 2, .dims = {3, 7}, .batch_axis = -1, .low = 0, .high = 1                           \
    }
#define STEP                                                                                       \
    {                                                                                              \
        .scalar = 1 + MGPU_SCALAR_STEP                                                             \
    }
#define FACTOR                                                                                     \
    {                                                                                              \
        .scalar = 1 + MGPU_SCALAR_LR_FACTOR                                                        \
    }
#define FACTOR_A                                                                                   \
    {                                                                                              \
        .rank = 2, .dims = {5, 3}, .batch_axis = -1                                                \
    }
#define FACTOR_B                                                                                   \
    {                                                                                              \
        .rank = 2, .dims = {5, 7}, .batch_axis = -1                                                \
    }
#define ABSENT                                                                                     \
    {                                                                                              \
        .rank = -1                                                                                 \
    }

static const struct mgpu_check rows[] = {
    {.name = "sgd",
     .op = &mgpu_op_update,
     .attrs = ATTRS(.kind = MGPU_SGD),
     .inputs = 4,
     .input = {TENSOR, TENSOR, STEP, FACTOR}},
    {.name = "adam",
     .op = &mgpu_op_update,
     .attrs = ATTRS(.kind = MGPU_ADAM, .amsgrad = true),
     .inputs = 8,
     .input = {TENSOR, TENSOR, STEP, FACTOR, ABSENT, TENSOR, STATE, STATE}},
    {.name = "rounded",
     .op = &mgpu_op_update,
     .attrs = ATTRS(.kind = MGPU_ADAM, .rounded = MGPU_BFLOAT16),
     .inputs = 7,
     .input = {TENSOR, TENSOR, STEP, FACTOR, ABSENT, TENSOR, STATE}},
    {.name = "lamb, rounded",
     .op = &mgpu_op_update,
     .attrs = ATTRS(.kind = MGPU_LAMB, .rounded = MGPU_FLOAT16),
     .inputs = 7,
     .input = {TENSOR, TENSOR, STEP, FACTOR, ABSENT, TENSOR, STATE}},
    {.name = "product",
     .op = &mgpu_op_product_update,
     .attrs = ATTRS(.kind = MGPU_ADAM),
     .inputs = 9,
     .input = {TENSOR, FACTOR_A, STEP, FACTOR, ABSENT, TENSOR, STATE, ABSENT, FACTOR_B}},
    {.name = "product, momentum",
     .op = &mgpu_op_product_update,
     .attrs = ATTRS(.kind = MGPU_SGD, .momentum = 0.5),
     .inputs = 9,
     .input = {TENSOR, FACTOR_A, STEP, FACTOR, ABSENT, TENSOR, ABSENT, ABSENT, FACTOR_B}},
    {.name = "product and rows",
     .op = &mgpu_op_product_update,
     .attrs = ATTRS(.kind = MGPU_ADAM),
     .inputs = 11,
     .input = {TENSOR,
               FACTOR_A,
               STEP,
               FACTOR,
               ABSENT,
               TENSOR,
               STATE,
               ABSENT,
               FACTOR_B,
               {.rank = 3, .dims = {2, 2, 7}, .batch_axis = -1},
               {.rank = 2,
                .dims = {2, 2},
                .batch_axis = -1,
                .type = MGPU_INT64,
                .constant = true,
                .values = (const double[]){2, 0, -1, 2}}}},
    {.name = "rmsprop",
     .op = &mgpu_op_update,
     .attrs = ATTRS(.kind = MGPU_RMSPROP, .momentum = 0.5),
     .inputs = 7,
     .input = {TENSOR, TENSOR, STEP, FACTOR, ABSENT, STATE, TENSOR}},
    {.name = "adagrad",
     .op = &mgpu_op_update,
     .attrs = ATTRS(.kind = MGPU_ADAGRAD, .style = MGPU_STYLE_KERAS3),
     .inputs = 6,
     .input = {TENSOR, TENSOR, STEP, FACTOR, ABSENT, STATE}},
    {.name = "lamb",
     .op = &mgpu_op_update,
     .attrs = ATTRS(.kind = MGPU_LAMB, .weight_decay = 0.1),
     .inputs = 7,
     .input = {TENSOR, TENSOR, STEP, FACTOR, ABSENT, TENSOR, STATE}},
    {.name = "global norm",
     .op = &mgpu_op_global_norm,
     .inputs = 3,
     .input = {TENSOR, {.rank = 0, .batch_axis = -1}, {.rank = 1, .dims = {0}, .batch_axis = -1}}},
    {.name = NULL},
};

static void test_states(void)
{
    double start[MOST];
    struct mgpu_update_attrs sgd = {.kind = MGPU_SGD}, ams = {.kind = MGPU_ADAM, .amsgrad = true};
    struct mgpu_update_attrs rms = {.kind = MGPU_RMSPROP, .centered = true};
    struct mgpu_update_attrs ada = {.kind = MGPU_ADAGRAD, .initial_accumulator_value = 0.5};
    CHECK(mgpu_update_states(&sgd, start) == 0 && !mgpu_update_state_name(&sgd, 0));
    CHECK(mgpu_update_states(&ams, start) == 3 && start[2] == 0);
    CHECK(!strcmp(mgpu_update_state_name(&ams, 2), "max_exp_avg_sq"));
    CHECK(mgpu_update_states(&rms, start) == 2);
    CHECK(!strcmp(mgpu_update_state_name(&rms, 1), "grad_avg"));
    CHECK(mgpu_update_states(&ada, start) == 1 && start[0] == 0.5);
    CHECK(!mgpu_update_state_name(&ada, 1) && !mgpu_update_state_name(&ada, -1));
}

/* A state that is missing or of another shape, a gradient of another type. */
static void test_refusals(void)
{
    struct mgpu_update_attrs attrs = {.kind = MGPU_SGD, .momentum = 0.9};
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim n = mgpu_dim_const(3), m = mgpu_dim_const(4);
    struct mgpu_value *w = mgpu_graph_input(g, "w", MGPU_FLOAT, 1, &n), *out[2];
    struct mgpu_value *in[] = {w,
                               w,
                               mgpu_graph_scalar(g, MGPU_SCALAR_STEP, "step"),
                               mgpu_graph_scalar(g, MGPU_SCALAR_LR_FACTOR, "factor"),
                               NULL,
                               mgpu_graph_input(g, "m", MGPU_FLOAT, 1, &m)};
    CHECK_FAILS(mgpu_graph_node(g, &mgpu_op_update, &attrs, 5, in, 2, out),
                "its momentum is missing");
    CHECK_FAILS(mgpu_graph_node(g, &mgpu_op_update, &attrs, 6, in, 2, out),
                "its momentum is float[4]");
    in[1] = mgpu_graph_input(g, "g", MGPU_DOUBLE, 1, &n);
    CHECK_FAILS(mgpu_graph_node(g, &mgpu_op_update, &attrs, 6, in, 2, out),
                "its gradient is double[3]");
    mgpu_graph_free(g);
}

/* A NaN in the gradient reaches the weight, clipped or not: it must be seen. */
static void test_nan(void)
{
    struct mgpu_update_attrs attrs = {.kind = MGPU_SGD, .lr = 0.1, .clip_value = 1};
    struct training t;
    begin(&t, &attrs, MGPU_FLOAT, 3);
    step(&t, 0, (double[]){NAN, INFINITY, 0.5});
    const double *w = mgpu_run_doubles(&t.run, t.w);
    CHECK(isnan(w[0]));
    CHECK_NEAR(w[1], -0.1, 1e-7);
    CHECK_NEAR(w[2], -0.05, 1e-7);
    end(&t);
}

/* Runs a node's kernel on `threads` threads, into out[]. */
static void with_threads(struct training *t, const struct mgpu_node *node, int threads,
                         void *const *out)
{
    const struct mgpu_kernel *k = mgpu_backend_kernel(&mgpu_backend_ref, node);
    struct mgpu_tensor operand[16];
    struct mgpu_launch l = {.node = node,
                            .inputs = node->inputs,
                            .outputs = node->outputs,
                            .in = operand,
                            .out = operand + node->inputs,
                            .threads = threads};
    for (int i = 0; i < node->inputs; i++)
        mgpu_tensor_of(&operand[i], node->input[i], mgpu_run_data(&t->run, node->input[i]));
    for (int i = 0; i < node->outputs; i++)
        mgpu_tensor_of(&operand[node->inputs + i], node->output[i], out[i]);
    CHECK_OK(mgpu_alloc(&l.workspace, (uint64_t)k->workspace(node, threads, NULL), "workspace"));
    CHECK_OK(k->run(&l));
    mgpu_free(l.workspace);
}

enum { LARGE = 30011 };

/* lamb over several blocks: rate * |w| / |u| * u with u of all ones in the first step. */
static void test_lamb_blocks(void)
{
    struct mgpu_update_attrs attrs = {.kind = MGPU_LAMB, .lr = 0.5, .beta1 = 0.9, .beta2 = 0.99};
    static double w[LARGE], g[LARGE];
    static float out[3][LARGE], again[LARGE];
    struct training t;
    for (int i = 0; i < LARGE; i++) {
        w[i] = i % 2 ? 2 : -2;
        g[i] = 1 + i % 7;
    }
    begin(&t, &attrs, MGPU_FLOAT, LARGE);
    CHECK_OK(mgpu_run_feed(&t.run, t.w, w));
    CHECK_OK(mgpu_run_feed(&t.run, t.gradient, g));
    with_threads(&t, t.g->nodes[0], 1, (void *[]){out[0], out[1], out[2]});
    CHECK_NEAR((double)out[0][0], -2 - 0.5 * 2, 1e-6); /* |w|/|u| = 2, u = g/sqrt(g*g) = 1 */
    CHECK_NEAR((double)out[0][LARGE - 1], (LARGE - 1) % 2 ? 1 : -3, 1e-6);
    with_threads(&t, t.g->nodes[0], 3, (void *[]){again, out[1], out[2]});
    CHECK(!memcmp(again, out[0], sizeof again));
    end(&t);
}

static void test_norm(void)
{
    struct mgpu_update_attrs attrs = {.kind = MGPU_SGD};
    static double w[LARGE], g[LARGE];
    double one, three, squares = 0;
    struct training t;
    for (int i = 0; i < LARGE; i++) {
        w[i] = (float)sin(i);
        g[i] = (float)cos(3 * i);
        squares += w[i] * w[i] + g[i] * g[i];
    }
    begin(&t, &attrs, MGPU_FLOAT, LARGE);
    struct mgpu_value *norm;
    CHECK_OK(mgpu_graph_node(t.g, &mgpu_op_global_norm, NULL, 2,
                             (struct mgpu_value *[]){t.w, t.gradient}, 1, &norm));
    CHECK_OK(mgpu_run_feed(&t.run, t.w, w));
    CHECK_OK(mgpu_run_feed(&t.run, t.gradient, g));
    with_threads(&t, norm->producer, 1, (void *[]){&one});
    with_threads(&t, norm->producer, 3, (void *[]){&three});
    CHECK_NEAR(one, sqrt(squares), 1e-13);
    CHECK(one == three);
    end(&t);
}

int main(void)
{
    for (const struct golden *c = golden; c->name; c++) {
        test_golden(c, MGPU_DOUBLE, 1e-13);
        test_golden(c, MGPU_FLOAT, 2e-6);
    }
    CHECK(mgpu_op_check(rows) == 0);
    test_states();
    test_refusals();
    test_nan();
    test_lamb_blocks();
    test_norm();
    return test_end();
}
