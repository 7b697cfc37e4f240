/* What becomes the end of a product (mgpu_finish_products): biases, relu, GELU and their gradients;
 * what must not, and that the numbers stay. */
#include "runtime/compile/fuse.h"
#include "runtime/compile/rewrite.h"
#include "runtime/graph/fold.h"
#include "runtime/graph/gradient.h"
#include "runtime/ops/build.h"
#include "runtime/ops/conv.h"
#include "runtime/ops/matmul.h"
#include "runtime/ops/pointwise.h"
#include "runtime/ops/reduce.h"
#include "runtime/ops/reorder.h"
#include "runtime/ref/ref.h"
#include "tests/compile/rewrites.h"
#include "tests/test.h"

enum { ROWS = 3, COLUMNS = 4 };

static struct mgpu_value *bias(struct mgpu_graph *g, const char *name, int64_t count)
{
    struct mgpu_dim dims[] = {mgpu_dim_const(count)};
    return mgpu_graph_parameter(g, name, MGPU_WEIGHT, g->float_type, 1, dims);
}

/* Ends in `y`; what the rewrites leave, with all values as before. */
static void finish(struct mgpu_graph *g, struct mgpu_value *y)
{
    struct mgpu_value *loss = mgpu_softmax(g, y, 1, true);
    loss = mgpu_reduce(g, MGPU_REDUCE_SUM, loss, (1 << loss->rank) - 1, false);
    mgpu_graph_output(g, "loss", loss);
    CHECK_OK(mgpu_gradient(g, loss, false));
    CHECK_OK(rewrite_checked(g, mgpu_fuse));
    CHECK_OK(rewrite_checked(g, mgpu_finish_products));
}

static int forward_pointwise(const struct mgpu_graph *g)
{
    int n = 0;
    for (int i = 0; i < g->node_count; i++)
        n += g->nodes[i]->op == &mgpu_op_pointwise && g->nodes[i]->origin.role == MGPU_FORWARD;
    return n;
}

static struct mgpu_value *dense(struct mgpu_graph *g, struct mgpu_value *x, const char *w,
                                const char *b)
{
    struct mgpu_value *y = mgpu_matmul(g, x, false, rewrite_weight(g, w, COLUMNS, COLUMNS), false);
    return mgpu_add(g, y, bias(g, b, COLUMNS));
}

/* Biases and relu are the products', and so are the biases' gradients. */
static void test_dense(void)
{
    struct mgpu_graph *g = rewrite_graph(MGPU_DOUBLE);
    struct mgpu_value *h =
        rewrite_relu(g, dense(g, rewrite_matrix(g, "x", ROWS, COLUMNS), "w1", "b1"));
    finish(g, dense(g, h, "w2", "b2"));
    CHECK(forward_pointwise(g) == 0 && rewrite_count(g, &mgpu_op_matmul_sums) == 2);
    mgpu_graph_free(g);
}

/* Rows of sequences: the gradients flatten what the bias's gradient sums as it is. */
static void test_sequences(void)
{
    struct mgpu_graph *g = rewrite_graph(MGPU_DOUBLE);
    struct mgpu_dim dims[] = {mgpu_dim_const(2), mgpu_dim_const(3), mgpu_dim_const(COLUMNS)};
    struct mgpu_value *x = mgpu_graph_input(g, "x", g->float_type, 3, dims);
    finish(g, rewrite_relu(g, dense(g, x, "w", "b")));
    CHECK(forward_pointwise(g) == 0 && rewrite_count(g, &mgpu_op_matmul_sums) == 1);
    mgpu_graph_free(g);
}

/* The first product writes GELU and what it is of, and the gradient's multiplies by its derivative
 * there. */
static void test_gelu(bool biased)
{
    struct mgpu_graph *g = rewrite_graph(MGPU_DOUBLE);
    struct mgpu_dim dims[] = {mgpu_dim_const(2), mgpu_dim_const(3), mgpu_dim_const(COLUMNS)};
    struct mgpu_value *x = mgpu_graph_input(g, "x", g->float_type, 3, dims);
    struct mgpu_value *y =
        mgpu_matmul(g, x, false, rewrite_weight(g, "w1", COLUMNS, 2 * COLUMNS), false);
    y = biased ? mgpu_add(g, y, bias(g, "b1", 2 * COLUMNS)) : y;
    y = mgpu_unary(g, MGPU_X_GELU, y);
    finish(g, mgpu_matmul(g, y, false, rewrite_weight(g, "w2", 2 * COLUMNS, COLUMNS), false));
    CHECK(rewrite_count(g, &mgpu_op_matmul_gelu) == 1 &&
          rewrite_count(g, &mgpu_op_matmul_gelu_grad) == 1);
    CHECK(forward_pointwise(g) == 0);
    mgpu_graph_free(g);
}

/* One whose argument others read; one of a sum of two images; one without a gradient. */
static void test_kept_gelu(void)
{
    struct mgpu_graph *g = rewrite_graph(MGPU_DOUBLE);
    struct mgpu_value *x = rewrite_matrix(g, "x", ROWS, COLUMNS), *h = dense(g, x, "w", "b");
    finish(g, mgpu_add(g, mgpu_unary(g, MGPU_X_GELU, h), mgpu_unary(g, MGPU_X_SIGMOID, h)));
    CHECK(rewrite_count(g, &mgpu_op_matmul_gelu) == 0);
    mgpu_graph_free(g);
    g = rewrite_graph(MGPU_DOUBLE);
    x = rewrite_matrix(g, "x", ROWS, COLUMNS);
    h = mgpu_add(g, mgpu_matmul(g, x, false, rewrite_weight(g, "w", COLUMNS, COLUMNS), false), x);
    finish(g, mgpu_unary(g, MGPU_X_GELU, h));
    CHECK(rewrite_count(g, &mgpu_op_matmul_gelu) == 0);
    mgpu_graph_free(g);
    g = rewrite_graph(MGPU_DOUBLE);
    h = dense(g, rewrite_matrix(g, "x", ROWS, COLUMNS), "w", "b");
    mgpu_graph_output(g, "y", mgpu_unary(g, MGPU_X_GELU, h));
    CHECK_OK(rewrite_checked(g, mgpu_fuse));
    CHECK_OK(rewrite_checked(g, mgpu_finish_products));
    CHECK(g->node_count == 1 && g->nodes[0]->op == &mgpu_op_matmul_gelu && !g->nodes[0]->output[1]);
    mgpu_graph_free(g);
}

/* What others read, or what is limited elsewhere, stays. */
static void test_kept_products(void)
{
    struct mgpu_graph *g = rewrite_graph(MGPU_DOUBLE);
    struct mgpu_value *x = rewrite_matrix(g, "x", ROWS, COLUMNS);
    struct mgpu_value *y =
        mgpu_matmul(g, x, false, rewrite_weight(g, "w", COLUMNS, COLUMNS), false);
    mgpu_graph_output(g, "y", y);
    finish(g, rewrite_relu(g, y));
    CHECK(forward_pointwise(g) == 1);
    mgpu_graph_free(g);
    g = rewrite_graph(MGPU_DOUBLE);
    finish(g, rewrite_clip(g, dense(g, rewrite_matrix(g, "x", ROWS, COLUMNS), "w", "b")));
    CHECK(forward_pointwise(g) == 1);
    mgpu_graph_free(g);
}

static struct mgpu_value *convolve(struct mgpu_graph *g)
{
    const struct mgpu_conv_attrs attrs = {
        .spatial = 1, .stride = {1}, .dilation = {1}, .before = {1}, .after = {1}, .group = 1};
    struct mgpu_dim dims[] = {mgpu_dim_const(4), mgpu_dim_const(2), mgpu_dim_const(3)};
    struct mgpu_value *w = mgpu_graph_parameter(g, "w", MGPU_WEIGHT, g->float_type, 3, dims), *y;
    struct mgpu_value *in[] = {rewrite_image(g, "x"), w, bias(g, "b", 4)};
    CHECK_OK(mgpu_graph_node(g, &mgpu_op_conv, &attrs, 3, in, 1, &y));
    return y;
}

static void test_convolution(void)
{
    struct mgpu_graph *g = rewrite_graph(MGPU_DOUBLE);
    finish(g, rewrite_relu(g, convolve(g)));
    CHECK(forward_pointwise(g) == 0);
    mgpu_graph_free(g);
}

/* With a reorder before the relu, as layouts put it there: the relu goes over to the other side,
 * unless somebody else reads what comes of the reorder. */
static void test_reordered(bool kept)
{
    const struct mgpu_reorder_attrs plain = {0};
    struct mgpu_graph *g = rewrite_graph(MGPU_DOUBLE);
    struct mgpu_value *y = convolve(g), *x;
    CHECK_OK(mgpu_graph_node(g, &mgpu_op_reorder, &plain, 1, &y, 1, &x));
    mgpu_graph_output(g, "loss", mgpu_softmax(g, rewrite_relu(g, x), 1, true));
    if (kept)
        mgpu_graph_output(g, "x", mgpu_softmax(g, x, 1, true));
    CHECK_OK(rewrite_checked(g, mgpu_finish_products));
    CHECK(forward_pointwise(g) == kept && rewrite_count(g, &mgpu_op_reorder) == 1);
    mgpu_graph_free(g);
}

int main(void)
{
    mgpu_fold_set(mgpu_ref_fold);
    test_dense();
    test_sequences();
    test_gelu(false);
    test_gelu(true);
    test_kept_gelu();
    test_kept_products();
    test_convolution();
    test_reordered(false);
    test_reordered(true);
    return test_end();
}
