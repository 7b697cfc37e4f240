/* Values that backward computes again: which ones, and that the bits stay. */
#include "runtime/compile/fuse.h"
#include "runtime/compile/layout.h"
#include "runtime/graph/fold.h"
#include "runtime/graph/gradient.h"
#include "runtime/ops/build.h"
#include "runtime/ops/conv.h"
#include "runtime/ops/normalize.h"
#include "runtime/ops/pointwise.h"
#include "runtime/ref/ref.h"
#include "tests/ops/run_graph.h"
#include "tests/test.h"

enum { N = 2, CHANNELS = 16, PLACES = 6, BLOCKS = 4 };

/* ---- Graphs ---------------------------------------------------------------------------------- */

static struct mgpu_graph *new_graph(void)
{
    struct mgpu_graph *g = mgpu_graph_new();
    g->float_type = MGPU_FLOAT;
    return g;
}

static struct mgpu_value *image(struct mgpu_graph *g)
{
    struct mgpu_dim dims[] = {mgpu_dim_const(N), mgpu_dim_const(CHANNELS), mgpu_dim_const(PLACES),
                              mgpu_dim_const(PLACES)};
    return mgpu_graph_input(g, "x", MGPU_FLOAT, 4, dims);
}

static struct mgpu_value *weight(struct mgpu_graph *g, int rank, const int64_t *sizes)
{
    struct mgpu_dim dims[4];
    for (int i = 0; i < rank; i++)
        dims[i] = mgpu_dim_const(sizes[i]);
    char name[16];
    snprintf(name, sizeof name, "w%d", g->parameter_count);
    return mgpu_graph_parameter(g, name, MGPU_WEIGHT, MGPU_FLOAT, rank, dims);
}

/* A 3x3 convolution and its normalisation. */
static struct mgpu_value *layer(struct mgpu_graph *g, struct mgpu_value *x)
{
    static const int64_t filter[] = {CHANNELS, CHANNELS, 3, 3};
    const struct mgpu_conv_attrs conv = {.spatial = 2,
                                         .stride = {1, 1},
                                         .dilation = {1, 1},
                                         .before = {1, 1},
                                         .after = {1, 1},
                                         .group = 1};
    const struct mgpu_batch_norm_attrs norm = {.epsilon = 1e-5};
    struct mgpu_value *out[3], *in[] = {x, weight(g, 4, filter)};
    struct mgpu_value *y = mgpu_build1(g, &mgpu_op_conv, &conv, 2, in);
    struct mgpu_value *rest[] = {y, weight(g, 1, filter), weight(g, 1, filter)};
    CHECK_OK(mgpu_graph_node(g, &mgpu_op_batch_norm, &norm, 3, rest, 3, out));
    return out[0];
}

static struct mgpu_value *relu(struct mgpu_graph *g, struct mgpu_value *x)
{
    return mgpu_binary(g, MGPU_X_MAX, x, mgpu_const_double(g, MGPU_FLOAT, 0));
}

static struct mgpu_value *residual(struct mgpu_graph *g, struct mgpu_value *x)
{
    return relu(g, mgpu_add(g, layer(g, relu(g, layer(g, x))), x));
}

static void train(struct mgpu_graph *g, struct mgpu_value *y)
{
    struct mgpu_value *loss = mgpu_reduce(g, MGPU_REDUCE_SUM, mgpu_mul(g, y, y), 15, false);
    mgpu_graph_output(g, "loss", loss);
    CHECK_OK(mgpu_gradient(g, loss, false));
    mgpu_fuse(g, &mgpu_backend_cpu);
}

static int again(const struct mgpu_graph *g)
{
    int n = 0;
    for (int i = 0; i < g->node_count; i++)
        n += g->nodes[i]->op == &mgpu_op_batch_norm && g->nodes[i]->origin.role == MGPU_RECOMPUTE;
    return n;
}

static void compute_again(struct mgpu_graph *g)
{
    CHECK_OK(mgpu_compute_again(g, &mgpu_backend_cpu));
    for (int n = 0; n < g->node_count; n++)
        for (int i = 0; i < g->nodes[n]->inputs; i++) {
            const struct mgpu_value *v = g->nodes[n]->input[i];
            CHECK(g->nodes[n]->id == n && (!v || !v->producer || v->producer->id < n));
        }
}

/* ---- Which ----------------------------------------------------------------------------------- */

/* Projected first block, then a chain: all but what backward reads at once. */
static struct mgpu_graph *network(void)
{
    struct mgpu_graph *g = new_graph();
    struct mgpu_value *x = relu(g, layer(g, image(g)));
    x = relu(g, mgpu_add(g, layer(g, x), layer(g, relu(g, layer(g, x)))));
    for (int i = 0; i < BLOCKS; i++)
        x = residual(g, x);
    train(g, x);
    return g;
}

static void test_which(void)
{
    struct mgpu_graph *g = network();
    int norms = 4 + 2 * BLOCKS;
    compute_again(g);
    CHECK_(again(g) > norms - 6 && again(g) < norms, "%d of %d", again(g), norms);
    for (int n = 0; n < g->node_count; n++)
        for (int i = 0; g->nodes[n]->origin.role == MGPU_BACKWARD && i < g->nodes[n]->inputs; i++) {
            const struct mgpu_value *v = g->nodes[n]->input[i];
            const struct mgpu_node *by = v ? v->producer : NULL;
            CHECK(!by || by->op != &mgpu_op_batch_norm || by->origin.role != MGPU_FORWARD ||
                  v != by->output[0] || by->id > norms);
        }
    mgpu_graph_free(g);
}

/* An output of the graph is kept, and so is what another has under another name. */
static void test_kept(void)
{
    struct mgpu_graph *g = new_graph();
    struct mgpu_value *x = relu(g, layer(g, image(g))), *first = x;
    struct mgpu_dim flat[] = {mgpu_dim_const(N), mgpu_dim_const(CHANNELS * PLACES * PLACES)};
    struct mgpu_value *second = x = relu(g, layer(g, x));
    mgpu_graph_output(g, "kept", first);
    struct mgpu_value *seen = mgpu_reshape(g, second, 2, flat);
    mgpu_graph_output(g, "seen",
                      mgpu_reduce(g, MGPU_REDUCE_SUM, mgpu_mul(g, seen, seen), 3, false));
    for (int i = 0; i < BLOCKS; i++)
        x = residual(g, x);
    train(g, x);
    compute_again(g);
    for (int n = 0; n < g->node_count; n++)
        if (g->nodes[n]->origin.role == MGPU_RECOMPUTE)
            CHECK(g->nodes[n]->input[0] != first->producer->input[0] &&
                  g->nodes[n]->input[0] != second->producer->input[0]);
    CHECK(again(g) > 0);
    mgpu_graph_free(g);
}

/* ---- The same bits --------------------------------------------------------------------------- */

enum { MOST = 40000 };

static int gradients(const struct mgpu_graph *g, double *to)
{
    struct mgpu_run run;
    mgpu_run_init(&run, g, &mgpu_backend_cpu);
    for (int i = 0; i < 1 + g->parameter_count; i++) {
        const struct mgpu_value *v = i ? g->parameters[i - 1].value : g->inputs[0];
        double *x = mgpu_xcalloc((size_t)mgpu_value_count(v), sizeof *x);
        for (int64_t k = 0; k < mgpu_value_count(v); k++)
            x[k] = sin(1.7 * (double)k + i);
        CHECK_OK(mgpu_run_feed(&run, v, x));
        free(x);
    }
    CHECK_OK(mgpu_run_all(&run));
    int count = mgpu_run_results(&run, to, MOST);
    mgpu_run_free(&run);
    return count;
}

static void test_bits(bool blocked)
{
    static double kept[MOST], made[MOST];
    struct mgpu_graph *g = network(), *h = network();
    compute_again(h);
    if (blocked) {
        CHECK_OK(mgpu_choose_layouts(g, &mgpu_backend_cpu));
        CHECK_OK(mgpu_choose_layouts(h, &mgpu_backend_cpu));
    }
    int n = gradients(g, kept);
    CHECK(n > 1000 && gradients(h, made) == n && again(h) > 0);
    CHECK(!memcmp(kept, made, sizeof *kept * (size_t)n));
    mgpu_graph_free(g);
    mgpu_graph_free(h);
}

/* ---- Expressions and layer normalisations ---------------------------------------------------- */

enum { ROWS = 2048, WIDTH = 32, LAYERS = 12 };

static struct mgpu_value *matrix_weight(struct mgpu_graph *g)
{
    static const int64_t sizes[] = {WIDTH, WIDTH};
    return weight(g, 2, sizes);
}

/* x + gelu(norm(x) a) b; the normalised values are seen under two shapes. */
static struct mgpu_value *feed_forward(struct mgpu_graph *g, struct mgpu_value *x)
{
    static const int64_t width[] = {WIDTH};
    struct mgpu_dim flat[] = {mgpu_dim_const(ROWS), mgpu_dim_const(WIDTH)};
    const struct mgpu_group_norm_attrs norm = {.axis = 2, .epsilon = 1e-5};
    struct mgpu_value *out[3], *in[] = {x, weight(g, 1, width), weight(g, 1, width)};
    CHECK_OK(mgpu_graph_node(g, &mgpu_op_group_norm, &norm, 3, in, 3, out));
    struct mgpu_value *h =
        mgpu_matmul(g, mgpu_reshape(g, out[0], 2, flat), false, matrix_weight(g), false);
    struct mgpu_value *half = mgpu_affine(g, mgpu_unary(g, MGPU_X_ERF, h), 0.5, 0.5);
    h = mgpu_matmul(g, mgpu_mul(g, h, half), false, matrix_weight(g), false);
    return mgpu_add(g, x, mgpu_reshape(g, h, 3, x->dims));
}

static struct mgpu_graph *feed_forwards(void)
{
    struct mgpu_graph *g = new_graph();
    struct mgpu_dim dims[] = {mgpu_dim_const(4), mgpu_dim_const(ROWS / 4), mgpu_dim_const(WIDTH)};
    struct mgpu_value *x = mgpu_graph_input(g, "x", MGPU_FLOAT, 3, dims);
    for (int i = 0; i < LAYERS; i++)
        x = feed_forward(g, x);
    struct mgpu_value *loss = mgpu_reduce(g, MGPU_REDUCE_SUM, mgpu_mul(g, x, x), 7, false);
    mgpu_graph_output(g, "loss", loss);
    CHECK_OK(mgpu_gradient(g, loss, false));
    mgpu_fuse(g, &mgpu_backend_cpu);
    return g;
}

static int count_again(const struct mgpu_graph *g, const struct mgpu_op *op)
{
    int n = 0;
    for (int i = 0; i < g->node_count; i++)
        n += g->nodes[i]->op == op && g->nodes[i]->origin.role == MGPU_RECOMPUTE;
    return n;
}

/* All but those near the end; a backend that does not ask for it keeps them. */
static void test_cheap(void)
{
    static double kept[MOST], made[MOST];
    struct mgpu_graph *g = feed_forwards(), *h = feed_forwards(), *r = feed_forwards();
    compute_again(h);
    CHECK_OK(mgpu_compute_again(r, &mgpu_backend_ref));
    int norms = count_again(h, &mgpu_op_group_norm), gelus = count_again(h, &mgpu_op_pointwise);
    CHECK_(norms > LAYERS - 4 && norms <= LAYERS, "%d of %d", norms, LAYERS);
    CHECK_(gelus > LAYERS - 4 && gelus <= LAYERS, "%d of %d", gelus, LAYERS);
    CHECK(count_again(r, &mgpu_op_group_norm) + count_again(r, &mgpu_op_pointwise) == 0);
    int n = gradients(g, kept);
    CHECK(n > 1000 && gradients(h, made) == n);
    CHECK(!memcmp(kept, made, sizeof *kept * (size_t)n));
    mgpu_graph_free(g);
    mgpu_graph_free(h);
    mgpu_graph_free(r);
}

int main(void)
{
    mgpu_fold_set(mgpu_ref_fold);
    test_which();
    test_kept();
    test_bits(false);
    test_bits(true);
    test_cheap();
    return test_end();
}
