/* Layouts of a graph: which reorders there are, that there are none where neighbours agree, and
 * that the numbers stay. */
#include "runtime/compile/layout.h"
#include "runtime/compile/plan.h"
#include "runtime/cpu/blocks.h"
#include "runtime/graph/fold.h"
#include "runtime/graph/gradient.h"
#include "runtime/ops/build.h"
#include "runtime/ops/comm.h"
#include "runtime/ops/conv.h"
#include "runtime/ops/normalize.h"
#include "runtime/ops/reorder.h"
#include "tests/ops/run_graph.h"
#include "tests/test.h"

enum { N = 2, PLACES = 6 }; /* samples; places along an axis */

/* ---- A backend with a will of its own -------------------------------------------------------- */

enum { BLOCK = 8 };

/* Convolutions want blocks, batch norm, expressions, concat and slice take them; images of three
 * channels stay plain. */
static bool will(const struct mgpu_node *node, int *block, int64_t *hidden)
{
    static const char *const wants[] = {"conv", "conv_grad_input", "conv_grad_weight"};
    static const char *const takes[] = {"batch_norm", "batch_norm_grad", "pointwise", "concat",
                                        "slice"};
    bool want = false, take = false, any = false;
    for (int i = 0; i < 3; i++)
        want = want || !strcmp(node->op->name, wants[i]);
    for (int i = 0; i < 5; i++)
        take = take || !strcmp(node->op->name, takes[i]);
    *hidden = want ? 1000000 : 0;
    for (int i = 0; i < node->inputs + node->outputs; i++) {
        const struct mgpu_value *v =
            i < node->inputs ? node->input[i] : node->output[i - node->inputs];
        bool image = v && v->rank == 4 && v->kind != MGPU_VALUE_PARAMETER &&
                     v->dims[2].value == PLACES && v->dims[1].value != 3;
        block[i] = image ? BLOCK : 0;
        any = any || image;
    }
    return any && (want || take);
}

static const struct mgpu_backend willing = {.name = "willing", .blocks = will};

/* ---- Graphs ---------------------------------------------------------------------------------- */

static int weights; /* in the graph so far, for their names */

static struct mgpu_graph *new_graph(void)
{
    struct mgpu_graph *g = mgpu_graph_new();
    g->float_type = MGPU_FLOAT;
    weights = 0;
    return g;
}

static struct mgpu_value *tensor(struct mgpu_graph *g, bool trained, int rank, const int64_t *sizes)
{
    struct mgpu_dim dims[4];
    char name[16];
    for (int i = 0; i < rank; i++)
        dims[i] = mgpu_dim_const(sizes[i]);
    snprintf(name, sizeof name, "t%d", weights++);
    return trained ? mgpu_graph_parameter(g, name, MGPU_WEIGHT, MGPU_FLOAT, rank, dims)
                   : mgpu_graph_input(g, name, MGPU_FLOAT, rank, dims);
}

static struct mgpu_value *image(struct mgpu_graph *g, int64_t channels)
{
    return tensor(g, false, 4, (int64_t[]){N, channels, PLACES, PLACES});
}

/* 3x3, same size. */
static struct mgpu_value *conv(struct mgpu_graph *g, struct mgpu_value *x, int64_t channels,
                               int64_t group)
{
    const struct mgpu_conv_attrs attrs = {.spatial = 2,
                                          .stride = {1, 1},
                                          .dilation = {1, 1},
                                          .before = {1, 1},
                                          .after = {1, 1},
                                          .group = group};
    struct mgpu_value *w =
        tensor(g, true, 4, (int64_t[]){channels, x->dims[1].value / group, 3, 3});
    return mgpu_build1(g, &mgpu_op_conv, &attrs, 2, (struct mgpu_value *[]){x, w});
}

static struct mgpu_value *batch_norm(struct mgpu_graph *g, struct mgpu_value *x)
{
    const struct mgpu_batch_norm_attrs attrs = {.epsilon = 1e-5};
    int64_t channels = x->dims[1].value;
    struct mgpu_value *scale = tensor(g, true, 1, &channels), *bias = tensor(g, true, 1, &channels);
    struct mgpu_value *out[3];
    CHECK_OK(mgpu_graph_node(g, &mgpu_op_batch_norm, &attrs, 3,
                             (struct mgpu_value *[]){x, scale, bias}, 3, out));
    return out[0];
}

static struct mgpu_value *relu(struct mgpu_graph *g, struct mgpu_value *x)
{
    return mgpu_binary(g, MGPU_X_MAX, x, mgpu_const_double(g, MGPU_FLOAT, 0));
}

/* The sum of squares is the loss. */
static void train(struct mgpu_graph *g, struct mgpu_value *y)
{
    struct mgpu_value *loss = mgpu_reduce(g, MGPU_REDUCE_SUM, mgpu_mul(g, y, y), 15, false);
    mgpu_graph_output(g, "loss", loss);
    CHECK_OK(mgpu_gradient(g, loss, false));
}

static int reorders(const struct mgpu_graph *g)
{
    int n = 0;
    for (int i = 0; i < g->node_count; i++) {
        n += g->nodes[i]->op == &mgpu_op_reorder;
        CHECK(g->nodes[i]->id == i);
    }
    return n;
}

/* Every input comes from a node before. */
static bool in_order(const struct mgpu_graph *g)
{
    bool all = true;
    for (int n = 0; n < g->node_count; n++)
        for (int i = 0; i < g->nodes[n]->inputs; i++) {
            const struct mgpu_value *v = g->nodes[n]->input[i];
            all = all && (!v || !v->producer || v->producer->id < n);
        }
    return all;
}

static int after_choice(struct mgpu_graph *g)
{
    CHECK_OK(mgpu_choose_layouts(g, &willing));
    CHECK(in_order(g));
    int n = reorders(g);
    mgpu_graph_free(g);
    return n;
}

/* ---- Which reorders -------------------------------------------------------------------------- */

static void test_chain(void)
{
    struct mgpu_graph *g = new_graph();
    struct mgpu_value *y = image(g, 3);
    for (int i = 0; i < 3; i++)
        y = relu(g, batch_norm(g, conv(g, y, 16, 1)));
    mgpu_graph_output(g, "y", mgpu_reduce(g, MGPU_REDUCE_MEAN, y, 12, false));
    CHECK(after_choice(g) == 1); /* before the mean, which the backend has plain alone */
}

static void test_residual(void)
{
    struct mgpu_graph *g = new_graph();
    struct mgpu_value *x = relu(g, conv(g, image(g, 3), 16, 1));
    struct mgpu_value *y = batch_norm(g, conv(g, relu(g, conv(g, x, 16, 1)), 16, 1));
    y = conv(g, relu(g, mgpu_add(g, x, y)), 16, 1);
    mgpu_graph_output(g, "y", y);
    CHECK(after_choice(g) == 1); /* of the output, which is plain */
}

static void test_concat(void)
{
    struct mgpu_graph *g = new_graph();
    struct mgpu_value *x = relu(g, conv(g, image(g, 3), 16, 1));
    struct mgpu_value *parts[] = {x, conv(g, x, 24, 1), conv(g, x, 7, 1)};
    struct mgpu_value *y = conv(g, mgpu_concat(g, 1, 3, parts), 16, 1);
    mgpu_graph_output(g, "y", mgpu_reduce(g, MGPU_REDUCE_SUM, y, 15, false));
    CHECK(after_choice(g) == 1);
}

/* A plain operator in between costs a reorder each way, and no more for its second reader. */
static void test_plain_between(void)
{
    struct mgpu_graph *g = new_graph();
    struct mgpu_value *x = conv(g, image(g, 3), 16, 1);
    struct mgpu_value *soft = mgpu_softmax(g, x, 1, false);
    struct mgpu_value *y = mgpu_add(g, conv(g, soft, 16, 1), conv(g, soft, 16, 1));
    mgpu_graph_output(g, "y", mgpu_softmax(g, y, 1, false));
    CHECK(after_choice(g) == 3);
}

/* Nobody wants blocks: expressions between plain operators stay plain. */
static void test_plain(void)
{
    struct mgpu_graph *g = new_graph();
    struct mgpu_value *x = mgpu_softmax(g, image(g, 16), 1, false), *y = x;
    for (int i = 0; i < 4; i++)
        y = relu(g, mgpu_add(g, y, x));
    mgpu_graph_output(g, "y", mgpu_softmax(g, batch_norm(g, y), 1, false));
    CHECK(after_choice(g) == 0);
}

/* Nobody wants blocks, and each alone would have to reorder more to be plain. */
static void test_plain_together(void)
{
    struct mgpu_graph *g = new_graph();
    struct mgpu_value *y = NULL;
    for (int i = 0; i < 3; i++) {
        struct mgpu_value *x = mgpu_softmax(g, image(g, 16), 1, false);
        struct mgpu_value *wide = mgpu_concat(g, 3, 3, (struct mgpu_value *[]){x, x, x});
        y = y ? mgpu_add(g, y, wide) : wide;
    }
    mgpu_graph_output(g, "y", mgpu_softmax(g, y, 1, false));
    CHECK(after_choice(g) == 0);
}

/* The cheaper of two places: before the concatenation's one part, not after the whole. */
static void test_cheaper_place(void)
{
    struct mgpu_graph *g = new_graph();
    struct mgpu_value *parts[] = {conv(g, image(g, 3), 16, 1),
                                  mgpu_softmax(g, image(g, 48), 1, false)};
    mgpu_graph_output(g, "y", mgpu_softmax(g, relu(g, mgpu_concat(g, 1, 2, parts)), 1, false));
    CHECK_OK(mgpu_choose_layouts(g, &willing));
    CHECK(reorders(g) == 1);
    for (int i = 0; i < g->node_count; i++)
        if (g->nodes[i]->op == &mgpu_op_reorder)
            CHECK(g->nodes[i]->input[0] == parts[0] && parts[0]->block == BLOCK);
    mgpu_graph_free(g);
}

/* A step: forward and backward agree, the gradients of the weights leave plain. */
static void test_step(void)
{
    struct mgpu_graph *g = new_graph();
    struct mgpu_value *y = image(g, 3);
    for (int i = 0; i < 3; i++)
        y = relu(g, batch_norm(g, conv(g, y, 16, 1)));
    train(g, y);
    CHECK_OK(mgpu_choose_layouts(g, &willing));
    CHECK(in_order(g) && reorders(g) <= 2); /* to the loss and back */
    for (int i = 0; i < g->parameter_count; i++)
        CHECK(!g->parameters[i].gradient || !g->parameters[i].gradient->block);
    mgpu_graph_free(g);
}

/* ---- Two ranks ------------------------------------------------------------------------------- */

/* Four layers, one after the other, on two ranks in turn; the first one's weight is the other's. */
static struct mgpu_graph *half(int rank)
{
    struct mgpu_graph *g = new_graph();
    struct mgpu_plan *plan = mgpu_plan_new(1, 2);
    struct mgpu_applied applied;
    struct mgpu_dim dims[] = {mgpu_dim_symbol(MGPU_BATCH, N), mgpu_dim_const(3),
                              mgpu_dim_const(PLACES), mgpu_dim_const(PLACES)};
    struct mgpu_value *y = mgpu_graph_input(g, "x", MGPU_FLOAT, 4, dims);
    static const char *const layer[] = {"a", "b", "c", "d"};
    g->batch = N;
    for (int i = 0; i < 4; i++) {
        g->origin.output = layer[i];
        y = relu(g, batch_norm(g, conv(g, y, 16, 1)));
        mgpu_plan_place(plan, layer[i], i % 2);
    }
    mgpu_plan_own(plan, "t0", 1);
    g->origin.output = "loss";
    train(g, y);
    CHECK_OK(mgpu_plan_apply(g, plan, rank, 1, &applied));
    mgpu_plan_free(plan);
    return g;
}

/* What ranks send each other is in blocks at both ends, and only images are. */
static void test_crossing(void)
{
    for (int rank = 0; rank < 2; rank++) {
        struct mgpu_graph *g = half(rank);
        CHECK_OK(mgpu_choose_layouts(g, &mgpu_backend_cpu));
        int crossing = 0;
        for (int n = 0; n < g->node_count; n++) {
            const struct mgpu_node *node = g->nodes[n];
            const struct mgpu_value *v = node->inputs ? node->input[0] : node->output[0];
            if (!(node->op->flags & MGPU_OP_COMMUNICATION))
                continue;
            bool image = v->rank == 4 && v->dims[2].value == PLACES;
            CHECK(((const struct mgpu_comm_attrs *)node->attrs)->image == image);
            CHECK(v->block == (image ? mgpu_cpu_block() : 0));
            crossing += image;
        }
        CHECK_(crossing == 8, "%d images", crossing); /* there and back; to the loss, too */
        CHECK_(in_order(g) && reorders(g) <= 2, "%d reorders", reorders(g));
        mgpu_graph_free(g);
    }
}

/* ---- Any batch ------------------------------------------------------------------------------- */

/* Ranks and tails have other numbers of samples, and convolve by the same algorithms. */
static void test_batches(void)
{
    enum { CONVS = 6 };
    const struct mgpu_kernel *first[CONVS] = {NULL};
    for (int64_t n = 1; n <= 5; n += 2) {
        struct mgpu_graph *g = new_graph();
        struct mgpu_value *x = tensor(g, true, 4, (int64_t[]){n, 64, PLACES, PLACES});
        int convs = 0;
        train(g, conv(g, relu(g, conv(g, x, 64, 1)), 64, 1));
        CHECK_OK(mgpu_choose_layouts(g, &mgpu_backend_cpu));
        for (int i = 0; i < g->node_count; i++) {
            const struct mgpu_node *node = g->nodes[i];
            if (strncmp(node->op->name, "conv", 4) || convs == CONVS)
                continue;
            const struct mgpu_kernel *k = mgpu_backend_fastest(&mgpu_backend_cpu, node);
            CHECK_(n == 1 || k == first[convs], "%s of %d samples by %s", node->op->name, (int)n,
                   k->name);
            first[convs++] = k;
        }
        CHECK(convs == CONVS);
        mgpu_graph_free(g);
    }
}

/* ---- The same numbers ------------------------------------------------------------------------ */

enum { MOST = 20000 };

static int evaluate(const struct mgpu_graph *g, double *to)
{
    struct mgpu_run run;
    mgpu_run_init(&run, g, &mgpu_backend_cpu);
    for (int i = 0; i < g->input_count + g->parameter_count; i++) {
        const struct mgpu_value *v =
            i < g->input_count ? g->inputs[i] : g->parameters[i - g->input_count].value;
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

/* Odd channels, groups, a channel a group, a concatenation, a residual and what is plain between.
 */
static void test_numbers(void)
{
    static double before[MOST], after[MOST];
    struct mgpu_graph *g = new_graph();
    struct mgpu_value *x = relu(g, batch_norm(g, conv(g, image(g, 3), 16, 1)));
    struct mgpu_value *odd = relu(g, conv(g, x, 19, 1)), *wide = conv(g, x, 32, 2);
    struct mgpu_value *y = mgpu_concat(g, 1, 3, (struct mgpu_value *[]){x, wide, odd});
    y = mgpu_softmax(g, conv(g, y, 16, 1), 1, false);
    y = mgpu_add(g, x, batch_norm(g, conv(g, y, 16, 16)));
    mgpu_graph_output(g, "y", y);
    train(g, y);
    int n = evaluate(g, before);
    CHECK_OK(mgpu_choose_layouts(g, &mgpu_backend_cpu));
    CHECK((reorders(g) > 0) == (mgpu_cpu_block() > 0) && in_order(g));
    CHECK(n > 0 && evaluate(g, after) == n);
    double error = 0, norm = 0;
    for (int i = 0; i < n; i++) {
        error += (after[i] - before[i]) * (after[i] - before[i]);
        norm += before[i] * before[i];
    }
    CHECK_(sqrt(error) <= 1e-5 * sqrt(norm), "off by %.3g of %.3g", sqrt(error), sqrt(norm));
    mgpu_graph_free(g);
}

int main(void)
{
    mgpu_fold_set(mgpu_ref_fold);
    test_chain();
    test_residual();
    test_concat();
    test_plain_between();
    test_plain();
    test_plain_together();
    test_cheaper_place();
    test_step();
    test_crossing();
    test_batches();
    test_numbers();
    return test_end();
}
