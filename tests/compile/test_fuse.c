/* The rewrites before compilation: what becomes one node, what must not, and that the numbers stay.
 */
#include "runtime/compile/fuse.h"
#include "runtime/compile/rewrite.h"
#include "runtime/graph/fold.h"
#include "runtime/graph/gradient.h"
#include "runtime/graph/step_scalar.h"
#include "runtime/ops/build.h"
#include "runtime/ops/comm.h"
#include "runtime/ops/conv.h"
#include "runtime/ops/loss.h"
#include "runtime/ops/movement.h"
#include "runtime/ops/normalize.h"
#include "runtime/ops/pointwise.h"
#include "runtime/ops/pool.h"
#include "runtime/ops/reduce.h"
#include "runtime/ref/ref.h"
#include "tests/compile/rewrites.h"
#include "tests/test.h"

enum { ROWS = 3, COLUMNS = 4, ELEMENTS = ROWS * COLUMNS };

/* Fuses the graph; its outputs and gradients must stay what they are. */
static void fuse(struct mgpu_graph *g)
{
    CHECK_OK(rewrite_checked(g, mgpu_fuse));
}

static int readers_of(const struct mgpu_graph *g, const struct mgpu_value *v)
{
    int n = 0;
    for (int i = 0; i < g->node_count; i++)
        for (int k = 0; k < g->nodes[i]->inputs; k++)
            n += g->nodes[i]->input[k] == v;
    return n;
}

/* ---- Chains and trees ------------------------------------------------------------------------ */

static void test_chain(void)
{
    struct mgpu_graph *g = rewrite_graph(MGPU_DOUBLE);
    struct mgpu_value *x = rewrite_matrix(g, "x", ROWS, COLUMNS),
                      *y = rewrite_matrix(g, "y", ROWS, COLUMNS);
    g->origin.type = "Sigmoid";
    struct mgpu_value *v = mgpu_mul(g, x, mgpu_unary(g, MGPU_X_SIGMOID, x));
    v = mgpu_affine(g, mgpu_add(g, v, y), 0.5, 0.25);
    v = mgpu_unary(g, MGPU_X_TANH, v);
    g->origin = (struct mgpu_origin){.path = "", .output = "last", .name = "n", .type = "Abs"};
    mgpu_graph_output(g, "v", mgpu_unary(g, MGPU_X_ABS, v));
    CHECK(g->node_count == 6);
    fuse(g);
    CHECK(g->node_count == 1);
    CHECK(g->nodes[0]->inputs == 2);
    CHECK(!strcmp(g->nodes[0]->origin.output, "last"));
    CHECK(!strcmp(g->nodes[0]->origin.type, "Sigmoid+Abs"));
    mgpu_graph_free(g);
}

/* A cheap value goes into both of its readers; a dear one is computed once. */
static void test_two_readers(bool dear)
{
    struct mgpu_graph *g = rewrite_graph(MGPU_DOUBLE);
    struct mgpu_value *x = rewrite_matrix(g, "x", ROWS, COLUMNS), *v = mgpu_affine(g, x, 2, 1);
    for (int i = 0; dear && i < 3; i++)
        v = mgpu_unary(g, MGPU_X_SIN, mgpu_unary(g, MGPU_X_EXP, v));
    mgpu_graph_output(g, "a", mgpu_unary(g, MGPU_X_NEG, v));
    mgpu_graph_output(g, "b", mgpu_mul(g, v, v));
    fuse(g);
    CHECK(g->node_count == (dear ? 3 : 2));
    mgpu_graph_free(g);
}

/* What is asked for is stored, and its readers read it. */
static void test_output_inside(void)
{
    struct mgpu_graph *g = rewrite_graph(MGPU_DOUBLE);
    struct mgpu_value *x = rewrite_matrix(g, "x", ROWS, COLUMNS);
    struct mgpu_value *middle = mgpu_unary(g, MGPU_X_EXP, x);
    mgpu_graph_output(g, "middle", middle);
    mgpu_graph_output(g, "end", mgpu_unary(g, MGPU_X_NEG, middle));
    fuse(g);
    CHECK(g->node_count == 2 && g->nodes[1]->input[0] == middle);
    mgpu_graph_free(g);
}

/* What is broadcast is computed at its own size, but for a single number. */
static void test_broadcast(void)
{
    struct mgpu_graph *g = rewrite_graph(MGPU_DOUBLE);
    struct mgpu_value *x = rewrite_matrix(g, "x", ROWS, COLUMNS);
    struct mgpu_value *row = mgpu_unary(g, MGPU_X_EXP, rewrite_matrix(g, "row", 1, COLUMNS));
    struct mgpu_value *one = mgpu_unary(g, MGPU_X_EXP, rewrite_matrix(g, "one", 1, 1));
    mgpu_graph_output(g, "y", mgpu_mul(g, mgpu_add(g, x, row), one));
    fuse(g);
    CHECK(g->node_count == 2 && readers_of(g, row) == 1 && readers_of(g, one) == 0);
    mgpu_graph_free(g);
}

static void test_limits(void)
{
    struct mgpu_graph *g = rewrite_graph(MGPU_DOUBLE);
    struct mgpu_value *v = rewrite_matrix(g, "x", ROWS, COLUMNS), *sum = v;
    for (int i = 0; i < 3 * MGPU_EXPR_MAX; i++)
        v = mgpu_unary(g, i % 2 ? MGPU_X_SIN : MGPU_X_COS, v);
    for (int i = 0; i < 2 * MGPU_MAX_INPUTS; i++)
        sum = mgpu_add(g, sum, rewrite_matrix(g, "more", ROWS, COLUMNS));
    mgpu_graph_output(g, "v", v);
    mgpu_graph_output(g, "sum", sum);
    fuse(g);
    CHECK_(g->node_count >= 4 && g->node_count <= 8, "%d nodes", g->node_count);
    for (int i = 0; i < g->node_count; i++)
        CHECK(g->nodes[i]->inputs <= MGPU_MAX_INPUTS);
    mgpu_graph_free(g);
}

/* An expression that only the slow kernel runs does not pull others down to it. */
static void test_kernels(void)
{
    struct mgpu_graph *g = rewrite_graph(MGPU_FLOAT);
    struct mgpu_dim dims[] = {mgpu_dim_const(ELEMENTS)};
    struct mgpu_value *i = mgpu_graph_input(g, "i", MGPU_INT64, 1, dims);
    struct mgpu_value *twice = mgpu_add(g, mgpu_mul(g, i, i), i);
    mgpu_graph_output(g, "y", mgpu_unary(g, MGPU_X_EXP, mgpu_cast(g, twice, MGPU_FLOAT)));
    mgpu_fuse(g, &mgpu_backend_cpu);
    CHECK(g->node_count == 2 && g->nodes[0]->output[0] == twice);
    mgpu_graph_free(g);
}

/* ---- Equal nodes ----------------------------------------------------------------------------- */

static void test_share(void)
{
    struct mgpu_graph *g = rewrite_graph(MGPU_DOUBLE);
    struct mgpu_value *x = rewrite_matrix(g, "x", ROWS, COLUMNS),
                      *w = rewrite_matrix(g, "w", COLUMNS, COLUMNS);
    struct mgpu_value *a = mgpu_matmul(g, x, false, w, false);
    struct mgpu_value *b = mgpu_matmul(g, x, false, w, false);
    struct mgpu_value *c = mgpu_matmul(g, x, false, w, true);
    struct mgpu_value *third = mgpu_matmul(g, x, false, w, false);
    mgpu_graph_output(g, "y", mgpu_add(g, mgpu_mul(g, a, b), mgpu_mul(g, c, third)));
    fuse(g);
    CHECK(g->node_count == 3 && readers_of(g, b) == 0 && readers_of(g, third) == 0);
    mgpu_graph_free(g);
}

/* Forward's large values are not kept for backward; a number is. */
static void test_share_passes(void)
{
    struct mgpu_graph *g = rewrite_graph(MGPU_DOUBLE);
    struct mgpu_value *x = rewrite_matrix(g, "x", ROWS, COLUMNS), *v[2];
    struct mgpu_value *one = mgpu_graph_scalar(g, MGPU_SCALAR_RANK_SHARE, "share");
    for (int i = 0; i < 2; i++) {
        g->origin.role = i ? MGPU_BACKWARD : MGPU_FORWARD;
        v[i] = mgpu_matmul(g, x, false, mgpu_transpose(g, x, (int[]){1, 0}), false);
        v[i] = mgpu_reduce(g, MGPU_REDUCE_SUM, v[i], 3, false);
        v[i] = mgpu_reduce(g, MGPU_REDUCE_SUM, mgpu_mul(g, v[i], one), 0, false);
        mgpu_graph_output(g, i ? "b" : "a", v[i]);
    }
    fuse(g);
    CHECK(rewrite_count(g, mgpu_op_find("matmul")) == 2);
    mgpu_graph_free(g);
}

/* ---- Backward reads outputs ------------------------------------------------------------------ */

static struct mgpu_value *sigmoid(struct mgpu_graph *g, struct mgpu_value *x)
{
    return mgpu_unary(g, MGPU_X_SIGMOID, x);
}

/* At 0 the derivative is 1, which the output does not tell. */
static struct mgpu_value *relu_of_two(struct mgpu_graph *g, struct mgpu_value *x)
{
    return mgpu_binary(g, MGPU_X_MAX, x, mgpu_const_double(g, x->type, 0));
}

static struct mgpu_value *square(struct mgpu_graph *g, struct mgpu_value *x)
{
    return mgpu_mul(g, x, x);
}

/* x W1, an activation, W2, a sum: how many nodes read what the activation reads? */
static int readers_before(struct mgpu_value *(*activation)(struct mgpu_graph *,
                                                           struct mgpu_value *))
{
    struct mgpu_graph *g = rewrite_graph(MGPU_DOUBLE);
    struct mgpu_value *x = rewrite_matrix(g, "x", ROWS, COLUMNS);
    struct mgpu_value *h =
        mgpu_matmul(g, x, false, rewrite_weight(g, "w1", COLUMNS, COLUMNS), false);
    struct mgpu_value *y =
        mgpu_matmul(g, activation(g, h), false, rewrite_weight(g, "w2", COLUMNS, COLUMNS), false);
    struct mgpu_value *loss = mgpu_reduce(g, MGPU_REDUCE_SUM, mgpu_mul(g, y, y), 3, false);
    mgpu_graph_output(g, "loss", loss);
    CHECK_OK(mgpu_gradient(g, loss, false));
    fuse(g);
    int n = readers_of(g, h);
    mgpu_graph_free(g);
    return n;
}

static void test_outputs(void)
{
    CHECK(readers_before(rewrite_relu) == 1);
    CHECK(readers_before(rewrite_clip) == 1);
    CHECK(readers_before(sigmoid) == 1);
    CHECK(readers_before(relu_of_two) == 2);
    CHECK(readers_before(square) == 2); /* its sign is lost */
}

/* ---- Behind a batch normalisation ------------------------------------------------------------ */

static struct mgpu_value *norm(struct mgpu_graph *g, struct mgpu_value *x)
{
    struct mgpu_batch_norm_attrs attrs = {.epsilon = 1e-3};
    struct mgpu_dim two = mgpu_dim_const(2);
    struct mgpu_value *out[3], *in[] = {x, NULL, NULL};
    for (int i = 0; i < 2; i++) {
        char name[16];
        snprintf(name, sizeof name, "%c%d", i ? 'b' : 's', g->node_count);
        in[1 + i] = mgpu_graph_parameter(g, name, MGPU_WEIGHT, g->float_type, 1, &two);
    }
    CHECK_OK(mgpu_graph_node(g, &mgpu_op_batch_norm, &attrs, 3, in, 3, out));
    return out[0];
}

/* Ends in `y`, which something that is no expression reads; pointwise nodes that are left there. */
static int left_of(struct mgpu_graph *g, struct mgpu_value *y)
{
    int n = 0;
    struct mgpu_value *loss =
        mgpu_reduce(g, MGPU_REDUCE_SUM, mgpu_softmax(g, y, 2, false), 3, false);
    loss = mgpu_reduce(g, MGPU_REDUCE_SUM, mgpu_mul(g, loss, loss), 1, false);
    mgpu_graph_output(g, "loss", loss);
    CHECK_OK(mgpu_gradient(g, loss, false));
    fuse(g);
    for (int i = 0; i < g->node_count; i++)
        n += g->nodes[i]->op == &mgpu_op_pointwise &&
             mgpu_value_count(g->nodes[i]->output[0]) == mgpu_value_count(y);
    mgpu_graph_free(g);
    return n;
}

/* relu and clip, forward and backward; a sum, whose mask is read by both branches; a branch that is
 * a norm itself; and a norm whose output another node reads, too. */
static void test_norms(void)
{
    struct mgpu_graph *g = rewrite_graph(MGPU_DOUBLE);
    CHECK(left_of(g, rewrite_relu(g, norm(g, rewrite_image(g, "x")))) == 0);
    g = rewrite_graph(MGPU_DOUBLE);
    CHECK(left_of(g, rewrite_clip(g, norm(g, rewrite_image(g, "x")))) == 0);
    g = rewrite_graph(MGPU_DOUBLE);
    CHECK(left_of(g, rewrite_relu(g, mgpu_add(g, rewrite_image(g, "a"),
                                              norm(g, rewrite_image(g, "x"))))) == 0);
    g = rewrite_graph(MGPU_DOUBLE);
    struct mgpu_value *a = norm(g, rewrite_image(g, "x")), *b = norm(g, a);
    CHECK(left_of(g, rewrite_relu(g, mgpu_add(g, a, b))) == 2); /* the mask; where branches meet */
    g = rewrite_graph(MGPU_DOUBLE);
    a = norm(g, rewrite_image(g, "x")), b = norm(g, rewrite_image(g, "y"));
    CHECK(left_of(g, rewrite_relu(g, mgpu_add(g, b, a))) == 1); /* the mask */
    g = rewrite_graph(MGPU_DOUBLE);
    a = norm(g, rewrite_image(g, "x"));
    mgpu_graph_output(g, "kept", a);
    CHECK(left_of(g, rewrite_relu(g, a)) == 1); /* forward */
}

/* ---- What a plan needs ----------------------------------------------------------------------- */

static struct mgpu_value *all_reduce(struct mgpu_graph *g, struct mgpu_value *v)
{
    struct mgpu_comm_attrs attrs = {.tag = g->node_count};
    struct mgpu_value *sum;
    enum mgpu_role role = g->origin.role;
    g->origin.role = MGPU_COMMUNICATION;
    CHECK_OK(mgpu_graph_node(g, &mgpu_op_all_reduce, &attrs, 1, &v, 1, &sum));
    g->origin.role = role;
    return sum;
}

/* The gradient of a bias becomes a sum of its own; a convolution without one stays. */
static void test_biases(void)
{
    struct mgpu_graph *g = rewrite_graph(MGPU_DOUBLE);
    const struct mgpu_conv_attrs attrs = {
        .spatial = 1, .stride = {1}, .dilation = {1}, .before = {1}, .after = {1}, .group = 1};
    struct mgpu_dim image[] = {mgpu_dim_const(2), mgpu_dim_const(3), mgpu_dim_const(4)};
    struct mgpu_dim filter[] = {mgpu_dim_const(3), mgpu_dim_const(3), mgpu_dim_const(3)};
    struct mgpu_value *x = mgpu_graph_input(g, "x", MGPU_DOUBLE, 3, image), *y;
    struct mgpu_value *in[] = {x, mgpu_graph_parameter(g, "w", MGPU_WEIGHT, MGPU_DOUBLE, 3, filter),
                               mgpu_graph_parameter(g, "b", MGPU_WEIGHT, MGPU_DOUBLE, 1, filter)};
    struct mgpu_value *plain[] = {
        NULL, mgpu_graph_parameter(g, "v", MGPU_WEIGHT, MGPU_DOUBLE, 3, filter)};
    double before[REWRITE_MOST], after[REWRITE_MOST];
    CHECK_OK(mgpu_graph_node(g, &mgpu_op_conv, &attrs, 3, in, 1, &plain[0]));
    CHECK_OK(mgpu_graph_node(g, &mgpu_op_conv, &attrs, 2, plain, 1, &y));
    struct mgpu_value *loss = mgpu_reduce(g, MGPU_REDUCE_SUM, mgpu_mul(g, y, y), 7, false);
    CHECK_OK(mgpu_gradient(g, loss, false));
    int n = rewrite_evaluate(g, before), sums = rewrite_count(g, &mgpu_op_reduce);
    CHECK_OK(mgpu_biases_apart(g));
    CHECK(rewrite_count(g, &mgpu_op_reduce) == sums + 1);
    CHECK(g->parameters[1].gradient->producer->op == &mgpu_op_reduce);
    CHECK(rewrite_count(g, &mgpu_op_conv_grad_weight) == 2);
    CHECK(n > 0 && rewrite_evaluate(g, after) == n);
    for (int i = 0; i < n; i++)
        CHECK_NEAR(after[i], before[i], 1e-12);
    mgpu_graph_free(g);
}

/* max(w, 0), its least of 0.5, a max pool of 2x2: the pool is first, and all numbers stay. */
static int pool_behind_limits(bool first, bool seen, double *to)
{
    struct mgpu_graph *g = rewrite_graph(MGPU_DOUBLE);
    struct mgpu_dim dims[] = {mgpu_dim_const(1), mgpu_dim_const(2), mgpu_dim_const(5),
                              mgpu_dim_const(6)};
    struct mgpu_value *w = mgpu_graph_parameter(g, "w", MGPU_WEIGHT, MGPU_DOUBLE, 4, dims);
    struct mgpu_value *half = mgpu_const_double(g, MGPU_DOUBLE, 0.5), *out[2];
    struct mgpu_value *low = rewrite_relu(g, w), *x = mgpu_binary(g, MGPU_X_MIN, low, half);
    struct mgpu_pool_attrs attrs = {.spatial = 2,
                                    .kernel = {2, 2},
                                    .stride = {2, 2},
                                    .dilation = {1, 1},
                                    .before = {1, 0},
                                    .in = {5, 6},
                                    .out = {3, 3}};
    mgpu_settle_expressions(g); /* the half is part of the expression */
    CHECK_OK(mgpu_graph_node(g, &mgpu_op_max_pool, &attrs, 1, &x, 2, out));
    if (seen)
        mgpu_graph_output(g, "limited", x);
    if (first)
        mgpu_pool_first(g);
    CHECK((g->nodes[0]->op == &mgpu_op_max_pool) == (first && !seen));
    struct mgpu_value *loss =
        mgpu_reduce(g, MGPU_REDUCE_SUM, mgpu_mul(g, out[0], out[0]), 15, false);
    mgpu_graph_output(g, "loss", loss);
    CHECK_OK(mgpu_gradient(g, loss, false));
    int n = rewrite_evaluate(g, to);
    mgpu_graph_free(g);
    return n;
}

static void test_pool_first(void)
{
    double before[256], after[256];
    for (int seen = 0; seen < 2; seen++) {
        int n = pool_behind_limits(false, seen, before);
        CHECK(n > 60 && pool_behind_limits(true, seen, after) == n);
        for (int i = 0; i < n; i++)
            CHECK_NEAR(after[i], before[i], 0);
    }
}

/* Cross entropy of classes that a transposition brought to axis 1; returns how many transpositions
 * are left with the gradient. */
static int loss_behind_transposition(bool first, const int *perm, double *to)
{
    static const int64_t labels[] = {2, 0, 1, 1, 0, 2, 2, 1, 0, 1};
    struct mgpu_graph *g = rewrite_graph(MGPU_DOUBLE);
    struct mgpu_dim dims[3], positions[2];
    for (int i = 0; i < 3; i++)
        dims[perm[i]] = mgpu_dim_const(i == 0 ? 2 : i == 1 ? 3 : 5);
    struct mgpu_value *w = mgpu_graph_parameter(g, "w", MGPU_WEIGHT, MGPU_DOUBLE, 3, dims);
    struct mgpu_value *x = mgpu_transpose(g, mgpu_unary(g, MGPU_X_SIN, w), perm), *loss;
    positions[0] = x->dims[0], positions[1] = x->dims[2];
    struct mgpu_value *in[] = {
        x, mgpu_graph_constant(g, "labels", MGPU_INT64, 2, positions, labels, NULL), NULL, NULL,
        mgpu_graph_scalar(g, MGPU_SCALAR_LOSS, "normaliser")};
    struct mgpu_cross_entropy_attrs attrs = {.axis = 1};
    CHECK_OK(mgpu_graph_node(g, &mgpu_op_cross_entropy, &attrs, 5, in, 1, &loss));
    mgpu_graph_output(g, "loss", loss);
    if (first)
        mgpu_loss_first(g);
    CHECK_OK(mgpu_gradient(g, loss, false));
    mgpu_graph_prune(g);
    int left = rewrite_count(g, &mgpu_op_transpose);
    CHECK(rewrite_evaluate(g, to) == 31);
    mgpu_graph_free(g);
    return left;
}

static void test_loss_first(void)
{
    static const int moved[] = {0, 2, 1}, turned[] = {1, 2, 0};
    double before[31], after[31];
    CHECK(loss_behind_transposition(false, moved, before) == 2);
    CHECK(loss_behind_transposition(true, moved, after) == 0);
    for (int i = 0; i < 31; i++)
        CHECK_NEAR(after[i], before[i], 1e-15);
    CHECK(loss_behind_transposition(true, turned, after) == 2);
}

/* Terms that are reduced in place have memory of their own, and who reads what is reduced stays
 * before it. */
static void test_communication(void)
{
    struct mgpu_graph *g = rewrite_graph(MGPU_DOUBLE);
    struct mgpu_value *x = rewrite_matrix(g, "x", ROWS, COLUMNS), *v = mgpu_unary(g, MGPU_X_EXP, x);
    struct mgpu_value *early = mgpu_unary(g, MGPU_X_SIN, v);
    struct mgpu_value *a = all_reduce(g, v), *b = all_reduce(g, mgpu_copy(g, x));
    struct mgpu_value *c = all_reduce(g, mgpu_copy(g, x));
    struct mgpu_value *sums = mgpu_add(g, mgpu_add(g, a, b), c);
    mgpu_graph_output(g, "y", mgpu_add(g, sums, early));
    int copies = rewrite_count(g, &mgpu_op_pointwise);
    mgpu_fuse(g, &mgpu_backend_ref);
    CHECK(rewrite_count(g, &mgpu_op_all_reduce) == 3);
    CHECK(copies == 7 && rewrite_count(g, &mgpu_op_pointwise) == 5); /* the three sums are one */
    CHECK(g->nodes[1]->output[0] == early);
    mgpu_graph_free(g);
}

/* A send has no output and stays. */
static void test_send(void)
{
    struct mgpu_graph *g = rewrite_graph(MGPU_DOUBLE);
    struct mgpu_value *x = rewrite_matrix(g, "x", ROWS, COLUMNS);
    struct mgpu_value *v = mgpu_unary(g, MGPU_X_EXP, mgpu_unary(g, MGPU_X_SIN, x));
    struct mgpu_comm_attrs attrs = {.peer = 1, .type = v->type};
    g->origin.role = MGPU_COMMUNICATION;
    CHECK_OK(mgpu_graph_node(g, &mgpu_op_send, &attrs, 1, &v, 0, NULL));
    mgpu_fuse(g, &mgpu_backend_ref);
    CHECK(g->node_count == 2 && g->nodes[1]->op == &mgpu_op_send && g->nodes[1]->input[0] == v);
    mgpu_graph_free(g);
}

/* Updates run less often than what they read. */
static void test_roles(void)
{
    struct mgpu_graph *g = rewrite_graph(MGPU_DOUBLE);
    struct mgpu_value *w = rewrite_weight(g, "w", ROWS, COLUMNS),
                      *x = rewrite_matrix(g, "x", ROWS, COLUMNS);
    g->origin.role = MGPU_BACKWARD;
    struct mgpu_value *v = mgpu_mul(g, x, x);
    g->origin.role = MGPU_UPDATE;
    g->parameters[0].next = mgpu_sub(g, w, mgpu_affine(g, v, 0.1, 0));
    mgpu_graph_output(g, "next", g->parameters[0].next);
    fuse(g);
    CHECK(g->node_count == 2 && g->nodes[0]->output[0] == v);
    mgpu_graph_free(g);
}

/* ---- Random graphs --------------------------------------------------------------------------- */

static unsigned next(unsigned *seed, unsigned below)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 10) % below;
}

static struct mgpu_value *random_node(struct mgpu_graph *g, unsigned *seed, struct mgpu_value *a,
                                      struct mgpu_value *b, struct mgpu_value *w)
{
    static const enum mgpu_expr_code code[] = {MGPU_X_TANH, MGPU_X_SIGMOID, MGPU_X_NEG,
                                               MGPU_X_SIN,  MGPU_X_ABS,     MGPU_X_STOP};
    switch (next(seed, 8)) {
    case 0:
        return mgpu_matmul(g, a, false, w, false);
    case 1:
        return mgpu_add(g, a, mgpu_reduce(g, MGPU_REDUCE_MEAN, b, 1u << next(seed, 2), true));
    case 2:
        return rewrite_relu(g, a);
    case 3:
        return rewrite_clip(g, a);
    case 4:
        return mgpu_mul(g, a, b);
    case 5:
        return mgpu_affine(g, a, 0.7, -0.1);
    case 6:
        return mgpu_add(g, a, b);
    default:
        return mgpu_unary(g, code[next(seed, 6)], a);
    }
}

static void test_random(unsigned seed)
{
    struct mgpu_graph *g = rewrite_graph(MGPU_DOUBLE);
    struct mgpu_value *v[32] = {rewrite_matrix(g, "x", ROWS, COLUMNS),
                                rewrite_matrix(g, "y", ROWS, COLUMNS)};
    struct mgpu_value *w = rewrite_weight(g, "w", COLUMNS, COLUMNS), *sum = NULL;
    for (int i = 2; i < 32; i++)
        v[i] = random_node(g, &seed, v[next(&seed, (unsigned)i)], v[next(&seed, (unsigned)i)], w);
    for (int i = 26; i < 32; i++)
        sum =
            sum ? mgpu_add(g, sum, v[i]) : mgpu_add(g, v[i], mgpu_matmul(g, v[0], false, w, false));
    struct mgpu_value *loss = mgpu_reduce(g, MGPU_REDUCE_MEAN, sum, 3, false);
    mgpu_graph_output(g, "loss", loss);
    mgpu_graph_output(g, "some", v[20]);
    CHECK_OK(mgpu_gradient(g, loss, false));
    mgpu_graph_prune(g);
    int before = g->node_count;
    fuse(g);
    CHECK(g->node_count < before);
    mgpu_graph_free(g);
}

int main(void)
{
    mgpu_fold_set(mgpu_ref_fold);
    test_chain();
    test_two_readers(false);
    test_two_readers(true);
    test_output_inside();
    test_broadcast();
    test_limits();
    test_kernels();
    test_share();
    test_share_passes();
    test_outputs();
    test_norms();
    test_biases();
    test_pool_first();
    test_loss_first();
    test_communication();
    test_send();
    test_roles();
    for (unsigned seed = 1; seed <= 200; seed++)
        test_random(seed);
    return test_end();
}
