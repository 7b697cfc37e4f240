/* cross_entropy: PyTorch's and Keras's numbers, the harness, labels out of range, and the same bits
 * whatever the number of threads. */
#include "runtime/ops/loss.h"
#include "tests/ops/op_check.h"
#include "tests/ops/run_graph.h"
#include "tests/test.h"

struct golden {
    const char *name;
    struct mgpu_cross_entropy_attrs attrs;
    int rank;
    int64_t dims[MGPU_MAX_RANK];
    const double *x, *labels, *class_weights, *sample_weights; /* NULL: absent */
    double normaliser, loss;
    const double *dx;
};

#include "tests/ops/golden_loss.h"

static struct mgpu_check_input absent(void)
{
    return (struct mgpu_check_input){.rank = -1};
}

static struct mgpu_check_input scalar(const double *value)
{
    return (struct mgpu_check_input){
        .type = MGPU_DOUBLE, .batch_axis = -1, .constant = true, .values = value};
}

/* An input of x's shape, or of that without the classes. */
static struct mgpu_check_input shaped(const struct golden *c, const double *values, bool positions)
{
    struct mgpu_check_input in = {.batch_axis = -1, .values = values, .constant = values != c->x};
    for (int k = 0; k < c->rank; k++)
        if (!(positions && k == c->attrs.axis))
            in.dims[in.rank++] = c->dims[k];
    return values ? in : absent();
}

static void test_golden(const struct golden *c)
{
    static const double one = 1;
    int64_t count = 1;
    struct mgpu_check row = {.name = c->name, .op = &mgpu_op_cross_entropy, .attrs = &c->attrs};
    for (int k = 0; k < c->rank; k++)
        count *= c->dims[k];
    row.inputs = 5;
    row.input[0] = shaped(c, c->x, false);
    row.input[1] = shaped(c, c->labels, !c->attrs.dense);
    row.input[1].type = c->attrs.dense ? MGPU_DOUBLE : MGPU_INT64;
    row.input[2] = (struct mgpu_check_input){.rank = c->class_weights ? 1 : -1,
                                             .dims = {c->dims[c->attrs.axis]},
                                             .batch_axis = -1,
                                             .constant = true,
                                             .values = c->class_weights};
    row.input[3] = shaped(c, c->sample_weights, true);
    row.input[4] = scalar(&c->normaliser);
    CHECK(mgpu_op_value(&row, &c->loss, 1) == 0);
    row.op = &mgpu_op_cross_entropy_grad;
    row.inputs = 6;
    row.input[5] = scalar(&one);
    CHECK(mgpu_op_value(&row, c->dx, count) == 0);
}

#define ATTRS(...)                                                                                 \
    &(struct mgpu_cross_entropy_attrs)                                                             \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define LABELS(high_, ...)                                                                         \
    {                                                                                              \
        .type = MGPU_INT64, .constant = true, .high = high_, __VA_ARGS__                           \
    }
#define NORMALISER                                                                                 \
    {                                                                                              \
        .type = MGPU_DOUBLE, .batch_axis = -1, .constant = true, .low = 0.1, .high = 0.2           \
    }
#define ABSENT                                                                                     \
    {                                                                                              \
        .rank = -1                                                                                 \
    }

static const struct mgpu_check rows[] = {
    {.name = "logits",
     .op = &mgpu_op_cross_entropy,
     .attrs = ATTRS(.axis = 1),
     .inputs = 5,
     .input = {{.rank = 2, .dims = {5, 3}},
               LABELS(2, .rank = 1, .dims = {5}),
               ABSENT,
               ABSENT,
               NORMALISER}},
    {.name = "everything at once, batch in the middle",
     .op = &mgpu_op_cross_entropy,
     .attrs = ATTRS(.axis = 1, .ignore = true, .ignore_index = 0, .label_smoothing = 0.3),
     .inputs = 5,
     .input = {{.rank = 3, .dims = {2, 4, 5}, .batch_axis = 2},
               LABELS(3, .rank = 2, .dims = {2, 5}, .batch_axis = 1),
               {.rank = 1, .dims = {4}, .batch_axis = -1, .constant = true, .high = 2},
               {.rank = 2, .dims = {2, 5}, .batch_axis = 1, .constant = true, .high = 1},
               NORMALISER}},
    {.name = "distributions",
     .op = &mgpu_op_cross_entropy,
     .attrs = ATTRS(.axis = 2, .dense = true, .label_smoothing = 0.1),
     .inputs = 5,
     .input = {{.rank = 3, .dims = {3, 2, 4}},
               {.rank = 3, .dims = {3, 2, 4}, .constant = true, .high = 1},
               ABSENT,
               ABSENT,
               NORMALISER}},
    {.name = "log-probabilities",
     .op = &mgpu_op_cross_entropy,
     .attrs = ATTRS(.axis = 1, .form = MGPU_FORM_LOG_PROBABILITIES),
     .inputs = 5,
     .input = {{.rank = 2, .dims = {3, 4}, .low = -3, .high = -0.1},
               LABELS(3, .rank = 1, .dims = {3}),
               ABSENT,
               ABSENT,
               NORMALISER}},
    {.name = "probabilities",
     .op = &mgpu_op_cross_entropy,
     .attrs = ATTRS(.axis = 1, .form = MGPU_FORM_PROBABILITIES, .dense = true),
     .inputs = 5,
     .input = {{.rank = 2, .dims = {3, 4}, .low = 0.1, .high = 0.9},
               {.rank = 2, .dims = {3, 4}, .constant = true, .high = 1},
               ABSENT,
               ABSENT,
               NORMALISER}},
    {.name = "classes on the batch axis",
     .op = &mgpu_op_cross_entropy,
     .attrs = ATTRS(.axis = 0),
     .inputs = 5,
     .input = {{.rank = 2, .dims = {4, 3}},
               LABELS(3, .rank = 1, .dims = {3}, .batch_axis = -1),
               ABSENT,
               ABSENT,
               NORMALISER},
     .mixes = true},
    {.name = NULL},
};

/* A node over x [n,classes] with labels [n]; n is the batch. */
static struct mgpu_node *make_node(struct mgpu_graph *g, int64_t n, int64_t classes,
                                   const struct mgpu_cross_entropy_attrs *attrs)
{
    struct mgpu_dim dims[] = {mgpu_dim_symbol(MGPU_BATCH, n), mgpu_dim_const(classes)};
    struct mgpu_value *in[5] = {mgpu_graph_input(g, "x", MGPU_FLOAT, 2, dims),
                                mgpu_graph_input(g, "labels", MGPU_INT64, 1, dims), NULL, NULL,
                                mgpu_graph_scalar(g, MGPU_SCALAR_LOSS, "normaliser")};
    struct mgpu_value *loss;
    CHECK_OK(mgpu_graph_node(g, &mgpu_op_cross_entropy, attrs, 5, in, 1, &loss));
    return g->nodes[0];
}

static void test_labels_out_of_range(void)
{
    static const struct mgpu_cross_entropy_attrs plain = {.axis = 1},
                                                 ignoring = {
                                                     .axis = 1, .ignore = true, .ignore_index = 12};
    const struct mgpu_cross_entropy_attrs *attrs[] = {&plain, &ignoring};
    for (int i = 0; i < 2; i++) {
        struct mgpu_graph *g = mgpu_graph_new();
        struct mgpu_run run;
        const struct mgpu_node *node = make_node(g, 4, 10, attrs[i]);
        mgpu_run_init(&run, g, &mgpu_backend_ref);
        CHECK_OK(mgpu_run_feed(&run, node->input[1], (double[]){0, 9, 12, 3}));
        if (i == 0)
            CHECK_FAILS(mgpu_run_all(&run), "sample 2: label 12 is not one of 0 to 9");
        else
            CHECK_OK(mgpu_run_all(&run));
        CHECK_OK(mgpu_run_feed(&run, node->input[1], (double[]){0, 9, 1, -1}));
        CHECK_FAILS(mgpu_run_all(&run), "sample 3: label -1 is not one of 0 to 9");
        mgpu_run_free(&run);
        mgpu_graph_free(g);
    }
}

/* No position counts: the loss is 0 and not 0/0. */
static void test_empty(void)
{
    static const struct mgpu_cross_entropy_attrs attrs = {.axis = 1};
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_run run;
    const struct mgpu_node *node = make_node(g, 0, 3, &attrs);
    mgpu_run_init(&run, g, &mgpu_backend_ref);
    CHECK_OK(mgpu_run_all(&run));
    CHECK(*mgpu_run_doubles(&run, node->output[0]) == 0);
    mgpu_run_free(&run);
    mgpu_graph_free(g);
}

static double with_threads(struct mgpu_run *run, const struct mgpu_node *node, int threads)
{
    const struct mgpu_kernel *k = mgpu_backend_kernel(&mgpu_backend_ref, node);
    struct mgpu_tensor in[5], out;
    struct mgpu_launch l = {.node = node, .inputs = 5, .outputs = 1, .threads = threads};
    double loss = 0;
    for (int i = 0; i < 5; i++)
        mgpu_tensor_of(&in[i], node->input[i], mgpu_run_data(run, node->input[i]));
    mgpu_tensor_of(&out, node->output[0], &loss);
    l.in = in;
    l.out = &out;
    CHECK_OK(mgpu_alloc(&l.workspace, (uint64_t)k->workspace(node, threads, NULL), "workspace"));
    CHECK_OK(k->run(&l));
    mgpu_free(l.workspace);
    return loss;
}

static void test_threads(void)
{
    static const struct mgpu_cross_entropy_attrs attrs = {.axis = 1};
    enum { N = 1000, C = 3 };
    static double x[N * C], labels[N];
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_run run;
    const struct mgpu_node *node = make_node(g, N, C, &attrs);
    for (int i = 0; i < N * C; i++)
        x[i] = sin(i) * 3;
    for (int i = 0; i < N; i++)
        labels[i] = i % C;
    mgpu_run_init(&run, g, &mgpu_backend_ref);
    CHECK_OK(mgpu_run_feed(&run, node->input[0], x));
    CHECK_OK(mgpu_run_feed(&run, node->input[1], labels));
    double one = with_threads(&run, node, 1);
    CHECK(one > 1000 && one == with_threads(&run, node, 2) && one == with_threads(&run, node, 3));
    mgpu_run_free(&run);
    mgpu_graph_free(g);
}

int main(void)
{
    for (const struct golden *c = golden; c->name; c++)
        test_golden(c);
    CHECK(mgpu_op_check(rows) == 0);
    test_labels_out_of_range();
    test_empty();
    test_threads();
    return test_end();
}
