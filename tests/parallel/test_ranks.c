/* N ranks equal one rank: a small network with what is hard to split (synchronised batch norm, a
 * mean inside the loss, uneven slices, ranks without samples), trained in double on 1 to 4 ranks,
 * clipping by norm too. Built from core operators alone, through plan, compilation and
 * executor. */
#include "runtime/compile/program.h"
#include "runtime/graph/fold.h"
#include "runtime/graph/gradient.h"
#include "runtime/graph/step_scalar.h"
#include "runtime/ops/build.h"
#include "runtime/ops/loss.h"
#include "runtime/ops/normalize.h"
#include "runtime/ref/ref.h"
#include "tests/parallel/small_world.h"
#include "tests/test.h"

enum { FEATURES = 5, HIDDEN = 4, CLASSES = 3 };

/* ---- The network ----------------------------------------------------------------------------- */

static struct mgpu_value *weight(struct mgpu_graph *g, const char *name, int rank, int64_t a,
                                 int64_t b)
{
    struct mgpu_dim dims[] = {mgpu_dim_const(a), mgpu_dim_const(b)};
    return mgpu_graph_parameter(g, name, MGPU_WEIGHT, MGPU_DOUBLE, rank, dims);
}

static struct mgpu_value *batch_norm(struct mgpu_graph *g, struct mgpu_value *x)
{
    struct mgpu_batch_norm_attrs attrs = {.epsilon = 1e-3};
    struct mgpu_value *in[] = {x, weight(g, "scale", 1, HIDDEN, 0),
                               weight(g, "shift", 1, HIDDEN, 0)};
    return mgpu_build1(g, &mgpu_op_batch_norm, &attrs, 3, in);
}

static struct mgpu_value *classify(struct mgpu_graph *g, struct mgpu_value *y, struct mgpu_dim n)
{
    struct mgpu_cross_entropy_attrs attrs = {.axis = 1, .ignore = true, .ignore_index = -100};
    struct mgpu_value *t = mgpu_graph_input(g, "label", MGPU_INT64, 1, &n);
    struct mgpu_value *scale = mgpu_graph_scalar(g, MGPU_SCALAR_LOSS, "1/count");
    struct mgpu_value *in[] = {y, t, NULL, NULL, scale};
    return mgpu_build1(g, &mgpu_op_cross_entropy, &attrs, 5, in);
}

/* loss = cross entropy + share * mean(h^2), the mean over the batch inside the graph. */
static int build(struct mgpu_graph **out, int64_t batch, void *context)
{
    (void)context;
    struct mgpu_graph *g = *out = mgpu_graph_new();
    struct mgpu_dim n = mgpu_dim_symbol(MGPU_BATCH, batch), dims[] = {n, mgpu_dim_const(FEATURES)};
    g->float_type = MGPU_DOUBLE;
    g->batch = batch;
    struct mgpu_value *x = mgpu_graph_input(g, "x", MGPU_DOUBLE, 2, dims);
    struct mgpu_value *h = mgpu_matmul(g, x, false, weight(g, "w1", 2, FEATURES, HIDDEN), false);
    h = batch_norm(g, mgpu_add(g, h, weight(g, "b1", 1, HIDDEN, 0)));
    struct mgpu_value *zero = mgpu_const_double(g, MGPU_DOUBLE, 0);
    h = mgpu_unary(g, MGPU_X_TANH, mgpu_binary(g, MGPU_X_MAX, h, zero));
    struct mgpu_value *y = mgpu_matmul(g, h, false, weight(g, "w2", 2, HIDDEN, CLASSES), false);
    y = mgpu_add(g, y, weight(g, "b2", 1, CLASSES, 0));
    struct mgpu_value *mean = mgpu_reduce(g, MGPU_REDUCE_MEAN, mgpu_mul(g, h, h), 3, false);
    struct mgpu_value *share = mgpu_graph_scalar(g, MGPU_SCALAR_PIECE_SHARE, "piece share");
    struct mgpu_value *loss = mgpu_add(g, classify(g, y, n), mgpu_mul(g, mean, share));
    if (!loss)
        return mgpu_build_error();
    mgpu_graph_output(g, "loss", loss);
    MGPU_TRY(mgpu_gradient(g, loss, false));
    return world_add_updates(g, 0.3);
}

static int64_t train(int ranks, bool share, double *losses, double *weights)
{
    struct world_model model = {
        .build = build, .features = FEATURES, .classes = CLASSES, .share = share};
    struct mgpu_plan *plan = mgpu_plan_data(ranks);
    plan->bucket_bytes = 64; /* several buckets */
    int64_t n = world_train(&model, plan, 1, losses, weights);
    CHECK_(n > 0, "%d ranks: %s", ranks, mgpu_error());
    mgpu_plan_free(plan);
    return n;
}

static void compare(int ranks, bool share, const double *want_loss, const double *want)
{
    double losses[WORLD_STEPS], weights[WORLD_MOST], worst = 0;
    int64_t n = train(ranks, share, losses, weights);
    for (int i = 0; i < WORLD_STEPS; i++)
        CHECK_NEAR(losses[i], want_loss[i], 1e-11);
    for (int64_t i = 0; i < n; i++)
        worst = fmax(worst, fabs(weights[i] - want[i]));
    CHECK_(worst < 1e-11, "%d ranks: a weight is off by %g", ranks, worst);
}

/* With the weights shared the updates are the same. */
static void test_bits(int ranks)
{
    double losses[2][WORLD_STEPS], weights[2][WORLD_MOST];
    int64_t n = train(ranks, false, losses[0], weights[0]);
    train(ranks, true, losses[1], weights[1]);
    CHECK(!memcmp(losses[0], losses[1], sizeof losses[0]));
    CHECK(n > 0 && !memcmp(weights[0], weights[1], (size_t)n * 8));
}

/* A list in which nobody waits for the communication must be caught. */
static void test_broken_list(void)
{
    struct mgpu_plan *plan = mgpu_plan_data(2);
    struct mgpu_store_layout *store = mgpu_store_layout_new();
    struct mgpu_graph *g;
    struct mgpu_applied applied;
    struct mgpu_program *p;
    struct mgpu_compile_options o = {
        .backend = &mgpu_backend_ref, .store = store, .threads = 1, .exact = true};
    CHECK_OK(build(&g, 3, NULL));
    CHECK_OK(mgpu_plan_apply(g, plan, 0, 1, &applied));
    CHECK_OK(mgpu_store_add(store, g));
    CHECK_OK(mgpu_compile(&p, g, &applied, &o));
    CHECK_OK(mgpu_program_check(p));
    for (int k = 0; k < p->instructions; k++)
        p->instruction[k].waits = 0;
    CHECK_FAILS(mgpu_program_check(p), "without an order");
    mgpu_program_free(p);
    mgpu_store_layout_free(store);
    mgpu_plan_free(plan);
}

int main(void)
{
    double losses[WORLD_STEPS], weights[WORLD_MOST];
    mgpu_fold_set(mgpu_ref_fold);
    train(1, false, losses, weights);
    CHECK(losses[0] > 0.5 && losses[0] < 5);
    for (int ranks = 2; ranks <= 4; ranks++) {
        compare(ranks, false, losses, weights);
        compare(ranks, true, losses, weights);
    }
    test_bits(3);
    test_broken_list();
    return test_end();
}
