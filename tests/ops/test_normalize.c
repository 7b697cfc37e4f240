/* Normalisations: PyTorch's outputs and gradients, the harness (synchronised batch norm over uneven
 * slices among it), per-rank statistics, batches of one and of none. */
#include "runtime/ops/normalize.h"
#include "tests/ops/op_check.h"
#include "tests/ops/run_graph.h"
#include "tests/test.h"

struct golden {
    const char *name;
    bool batch; /* batch_norm, else group_norm */
    int64_t axis;
    double epsilon;
    bool rms;
    int rank;
    int64_t dims[MGPU_MAX_RANK];
    const double *x, *scale, *bias, *dy; /* scale, bias: NULL when absent */
    const double *y, *mean, *spread;     /* variance, or 1/deviation */
    const double *dx, *dscale, *dbias;
};

#include "tests/ops/golden_normalize.h"

static void compare(const char *name, const char *what, struct mgpu_run *run,
                    const struct mgpu_value *v, const double *want)
{
    if (!want)
        return;
    CHECK_(v, "%s: no %s", name, what);
    if (!v)
        return;
    const double *got = mgpu_run_doubles(run, v);
    for (int64_t i = 0; i < mgpu_value_count(v); i++)
        CHECK_(fabs(got[i] - want[i]) <= 1e-12 * fmax(1, fabs(want[i])),
               "%s: %s[%lld] is %.17g, not %.17g", name, what, (long long)i, got[i], want[i]);
}

static void test_golden(const struct golden *c)
{
    const struct mgpu_op *op = c->batch ? &mgpu_op_batch_norm : &mgpu_op_group_norm;
    struct mgpu_batch_norm_attrs batch = {.epsilon = c->epsilon};
    struct mgpu_group_norm_attrs group = {.axis = c->axis, .epsilon = c->epsilon, .rms = c->rms};
    const void *attrs = c->batch ? (const void *)&batch : &group;
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim dims[MGPU_MAX_RANK];
    struct mgpu_value *in[3] = {NULL}, *out[3], *dy[3] = {NULL}, *dx[3] = {NULL};
    struct mgpu_run run;
    for (int k = 0; k < c->rank; k++)
        dims[k] = mgpu_dim_const(c->dims[k]);
    in[0] = mgpu_graph_input(g, "x", MGPU_DOUBLE, c->rank, dims);
    int first = c->batch ? 1 : (int)c->axis, last = c->batch ? 2 : c->rank;
    if (c->scale)
        in[1] = mgpu_graph_input(g, "scale", MGPU_DOUBLE, last - first, dims + first);
    if (c->bias)
        in[2] = mgpu_graph_input(g, "bias", MGPU_DOUBLE, last - first, dims + first);
    dy[0] = mgpu_graph_input(g, "dy", MGPU_DOUBLE, c->rank, dims);
    CHECK_OK(mgpu_graph_node(g, op, attrs, 3, in, 3, out));
    CHECK_OK(op->gradient(g, g->nodes[0], dy, (bool[]){true, c->scale, c->bias}, dx));
    mgpu_run_init(&run, g, &mgpu_backend_ref);
    CHECK_OK(mgpu_run_feed(&run, in[0], c->x));
    CHECK_OK(in[1] ? mgpu_run_feed(&run, in[1], c->scale) : 0);
    CHECK_OK(in[2] ? mgpu_run_feed(&run, in[2], c->bias) : 0);
    CHECK_OK(mgpu_run_feed(&run, dy[0], c->dy));
    CHECK_OK(mgpu_run_all(&run));
    compare(c->name, "y", &run, out[0], c->y);
    compare(c->name, "mean", &run, out[1], c->mean);
    compare(c->name, "spread", &run, out[2], c->spread);
    compare(c->name, "dx", &run, dx[0], c->dx);
    compare(c->name, "dscale", &run, dx[1], c->dscale);
    compare(c->name, "dbias", &run, dx[2], c->dbias);
    mgpu_run_free(&run);
    mgpu_graph_free(g);
}

#define BATCH(...)                                                                                 \
    &(struct mgpu_batch_norm_attrs)                                                                \
    {                                                                                              \
        .epsilon = 0.01, __VA_ARGS__                                                               \
    }
#define GROUP(axis_, rms_)                                                                         \
    &(struct mgpu_group_norm_attrs)                                                                \
    {                                                                                              \
        .axis = axis_, .epsilon = 0.01, .rms = rms_                                                \
    }
#define VECTOR(n)                                                                                  \
    {                                                                                              \
        .rank = 1, .dims = {n}, .batch_axis = -1                                                   \
    }

enum { STATISTICS = 6 };

static const struct mgpu_check rows[] = {
    {.name = "batch norm",
     .op = &mgpu_op_batch_norm,
     .attrs = BATCH(),
     .inputs = 3,
     .input = {{.rank = 4, .dims = {5, 3, 2, 3}}, VECTOR(3), VECTOR(3)},
     .skip_outputs = STATISTICS},
    {.name = "batch norm of vectors",
     .op = &mgpu_op_batch_norm,
     .attrs = BATCH(),
     .inputs = 3,
     .input = {{.rank = 2, .dims = {7, 2}, .low = 2, .high = 4}, VECTOR(2), VECTOR(2)},
     .skip_outputs = STATISTICS},
    {.name = "batch norm of one channel",
     .op = &mgpu_op_batch_norm,
     .attrs = BATCH(),
     .inputs = 3,
     .input = {{.rank = 3, .dims = {3, 1, 4}}, VECTOR(1), VECTOR(1)},
     .skip_outputs = STATISTICS},
    {.name = "batch norm, samples twice as long",
     .op = &mgpu_op_batch_norm,
     .attrs = BATCH(),
     .inputs = 3,
     .input = {{.rank = 3, .dims = {10, 2, 3}, .inner = 2}, VECTOR(2), VECTOR(2)},
     .skip_outputs = STATISTICS},
    {.name = "batch norm and relu",
     .op = &mgpu_op_batch_norm,
     .attrs = BATCH(.clips = true, .high = INFINITY),
     .inputs = 3,
     .input = {{.rank = 4, .dims = {5, 3, 2, 3}}, VECTOR(3), VECTOR(3)},
     .skip_outputs = STATISTICS},
    {.name = "batch norm, a sum and limits",
     .op = &mgpu_op_batch_norm,
     .attrs = BATCH(.clips = true, .low = -0.3, .high = 0.6),
     .inputs = 4,
     .input =
         {{.rank = 3, .dims = {6, 3, 4}}, VECTOR(3), VECTOR(3), {.rank = 3, .dims = {6, 3, 4}}},
     .skip_outputs = STATISTICS},
    {.name = "layer norm",
     .op = &mgpu_op_group_norm,
     .attrs = GROUP(2, false),
     .inputs = 3,
     .input = {{.rank = 3, .dims = {2, 3, 5}, .batch_axis = 1}, VECTOR(5), VECTOR(5)},
     .skip_outputs = STATISTICS},
    {.name = "layer norm without bias",
     .op = &mgpu_op_group_norm,
     .attrs = GROUP(1, false),
     .inputs = 2,
     .input = {{.rank = 3, .dims = {3, 2, 4}}, {.rank = 2, .dims = {2, 4}, .batch_axis = -1}},
     .skip_outputs = STATISTICS},
    {.name = "instance norm",
     .op = &mgpu_op_group_norm,
     .attrs = GROUP(2, false),
     .inputs = 1,
     .input = {{.rank = 4, .dims = {3, 2, 2, 3}}},
     .skip_outputs = STATISTICS},
    {.name = "rms norm",
     .op = &mgpu_op_group_norm,
     .attrs = GROUP(1, true),
     .inputs = 2,
     .input = {{.rank = 2, .dims = {4, 5}}, VECTOR(5)},
     .skip_outputs = STATISTICS},
    {.name = "rows longer than a tile",
     .op = &mgpu_op_group_norm,
     .attrs = GROUP(1, false),
     .inputs = 3,
     .input = {{.rank = 2, .dims = {2, 300}}, VECTOR(300), VECTOR(300)},
     .skip_outputs = STATISTICS},
    {.name = "layer norm over the batch",
     .op = &mgpu_op_group_norm,
     .attrs = GROUP(0, false),
     .inputs = 1,
     .input = {{.rank = 2, .dims = {3, 4}}},
     .skip_outputs = STATISTICS,
     .mixes = true},
    {.name = NULL},
};

/* A batch_norm and its gradient on x [n,c,h], as parts of one graph. */
struct pair {
    struct mgpu_graph *g;
    const struct mgpu_node *forward, *backward;
    struct mgpu_value *dx[3];
};

static struct pair make_pair(int64_t n, int64_t c, int64_t h, bool per_rank)
{
    struct mgpu_batch_norm_attrs attrs = {.epsilon = 1e-5, .per_rank = per_rank};
    struct pair p = {.g = mgpu_graph_new()};
    struct mgpu_dim dims[] = {mgpu_dim_symbol(MGPU_BATCH, n), mgpu_dim_const(c), mgpu_dim_const(h)};
    struct mgpu_value *out[3], *dy[3] = {NULL};
    struct mgpu_value *in[] = {mgpu_graph_input(p.g, "x", MGPU_FLOAT, 3, dims),
                               mgpu_graph_input(p.g, "scale", MGPU_FLOAT, 1, dims + 1),
                               mgpu_graph_input(p.g, "bias", MGPU_FLOAT, 1, dims + 1)};
    p.g->batch = n;
    dy[0] = mgpu_graph_input(p.g, "dy", MGPU_FLOAT, 3, dims);
    CHECK_OK(mgpu_graph_node(p.g, &mgpu_op_batch_norm, &attrs, 3, in, 3, out));
    p.forward = p.g->nodes[0];
    CHECK_OK(mgpu_op_batch_norm.gradient(p.g, p.forward, dy, (bool[]){true, true, true}, p.dx));
    p.backward = p.g->nodes[1];
    return p;
}

/* Each rank normalises with its own statistics; what they leave for the running ones is a mean. */
static void test_per_rank(void)
{
    struct mgpu_split whole = mgpu_split_make(MGPU_SPLIT_REPLICATED, 0, 1);
    struct mgpu_split cut = mgpu_split_make(MGPU_SPLIT_AXIS, 0, 1), out[3];
    struct mgpu_split mean = mgpu_split_make(MGPU_SPLIT_MEAN, 0, 1);
    struct pair p = make_pair(4, 2, 3, true), sync = make_pair(4, 2, 3, false);
    struct mgpu_split in[] = {cut, whole, whole}, back[] = {cut, cut, whole, mean, mean};
    int which;
    CHECK(p.forward->op->split(p.forward, in, out, &which) == MGPU_SPLIT_OK);
    CHECK(mgpu_split_same(out[0], cut) && out[1].kind == MGPU_SPLIT_MEAN &&
          out[2].kind == MGPU_SPLIT_MEAN);
    CHECK(p.backward->op->split(p.backward, back, out, &which) == MGPU_SPLIT_OK);
    CHECK(mgpu_split_same(out[0], cut) && out[1].kind == MGPU_SPLIT_SUM &&
          out[2].kind == MGPU_SPLIT_SUM);
    back[3] = whole; /* another rank's samples in the mean: not what was normalised with */
    CHECK(p.backward->op->split(p.backward, back, out, &which) == MGPU_SPLIT_MIXES && which == 3);
    CHECK(sync.forward->op->split(sync.forward, in, out, &which) == MGPU_SPLIT_MIXES);
    mgpu_graph_free(p.g);
    mgpu_graph_free(sync.g);
}

/* One sample of one pixel: variance 0, y = bias, all finite. No sample: statistics 0. */
static void test_small_batches(void)
{
    for (int n = 0; n < 2; n++) {
        struct pair p = make_pair(n, 2, 1, false);
        struct mgpu_run run;
        mgpu_run_init(&run, p.g, &mgpu_backend_ref);
        CHECK_OK(mgpu_run_feed(&run, p.forward->input[0], (double[]){3, -5}));
        CHECK_OK(mgpu_run_feed(&run, p.forward->input[1], (double[]){2, 2}));
        CHECK_OK(mgpu_run_feed(&run, p.forward->input[2], (double[]){7, 8}));
        CHECK_OK(mgpu_run_feed(&run, p.backward->input[1], (double[]){1, 1}));
        CHECK_OK(mgpu_run_all(&run));
        const double *mean = mgpu_run_doubles(&run, p.forward->output[1]);
        const double *variance = mgpu_run_doubles(&run, p.forward->output[2]);
        const double *dbias = mgpu_run_doubles(&run, p.dx[2]);
        CHECK(mean[0] == (n ? 3 : 0) && mean[1] == (n ? -5 : 0));
        CHECK(variance[0] == 0 && variance[1] == 0 && dbias[0] == n);
        if (n) {
            const double *y = mgpu_run_doubles(&run, p.forward->output[0]);
            const double *dx = mgpu_run_doubles(&run, p.dx[0]);
            CHECK(y[0] == 7 && y[1] == 8 && dx[0] == 0 && dx[1] == 0);
        }
        mgpu_run_free(&run);
        mgpu_graph_free(p.g);
    }
}

static void test_refusals(void)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_batch_norm_attrs attrs = {.epsilon = 1e-5};
    struct mgpu_group_norm_attrs group = {.axis = 2, .epsilon = 1e-5};
    struct mgpu_dim dims[] = {mgpu_dim_const(2), mgpu_dim_const(3)};
    struct mgpu_value *x = mgpu_graph_input(g, "x", MGPU_FLOAT, 2, dims), *out[3];
    struct mgpu_value *two = mgpu_graph_input(g, "s", MGPU_FLOAT, 1, dims);
    struct mgpu_value *in[] = {x, two, two}, *dy[3] = {x, x, NULL}, *dx[3];
    CHECK_FAILS(mgpu_graph_node(g, &mgpu_op_batch_norm, &attrs, 3, in, 3, out),
                "its scale is float[2]");
    CHECK_FAILS(mgpu_graph_node(g, &mgpu_op_group_norm, &group, 1, in, 3, out), "axis 2");
    group.axis = 1;
    CHECK_OK(mgpu_graph_node(g, &mgpu_op_group_norm, &group, 1, in, 3, out));
    CHECK_FAILS(mgpu_op_group_norm.gradient(g, g->nodes[0], dy, (bool[]){true}, dx), "statistics");
    mgpu_graph_free(g);
}

int main(void)
{
    for (const struct golden *c = golden; c->name; c++)
        test_golden(c);
    CHECK(mgpu_op_check(rows) == 0);
    test_per_rank();
    test_small_batches();
    test_refusals();
    return test_end();
}
