/* Any plan gives one rank's numbers: random small graphs with shared weights, split and joined
 * branches, equal towers and sums over the batch, on random placements, owners, replicas and
 * pieces, some with their towers stacked or with activations recomputed; forward, gradient and
 * update in double. MGPU_PLANS sets
 * how many graphs (default 300). */
#include "runtime/base/status.h"
#include "runtime/compile/rewrite.h"
#include "runtime/graph/gradient.h"
#include "runtime/graph/step_scalar.h"
#include "runtime/ops/build.h"
#include "runtime/ops/normalize.h"
#include "tests/parallel/small_world.h"
#include "tests/test.h"

enum { FEATURES = 4, MOST_VALUES = 64 };

struct random_graph {
    unsigned seed; /* of its structure */
    int nodes;
    bool mixes;                   /* has what mixes samples: batch norm, a mean over the batch */
    int towers;                   /* it begins with so many equal ones; 0: none */
    const struct mgpu_plan *plan; /* whose rewrites are applied, or NULL */
};

static unsigned next(unsigned *seed, unsigned below)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 10) % below;
}

/* ---- Random graphs --------------------------------------------------------------------------- */

struct maker {
    struct mgpu_graph *g;
    unsigned seed;
    int count, made;
    struct mgpu_value *value[MOST_VALUES];
    bool used[MOST_VALUES];
    struct mgpu_value *weight[8]; /* square ones, that several nodes may share */
};

static void name_node(struct maker *m)
{
    struct mgpu_graph *g = m->g;
    g->origin = (struct mgpu_origin){.path = "",
                                     .output = mgpu_arena_format(g->arena, "n%d", m->made++),
                                     .name = "",
                                     .type = "node"};
}

static struct mgpu_value *parameter(struct maker *m, const char *kind, int rank, int64_t a,
                                    int64_t b)
{
    struct mgpu_dim dims[] = {mgpu_dim_const(a), mgpu_dim_const(b)};
    char name[32];
    snprintf(name, sizeof name, "%s%d", kind, m->g->parameter_count);
    return mgpu_graph_parameter(m->g, name, MGPU_WEIGHT, MGPU_DOUBLE, rank, dims);
}

static struct mgpu_value *linear(struct maker *m, struct mgpu_value *x)
{
    struct mgpu_value **shared = &m->weight[next(&m->seed, 8)];
    if (!*shared)
        *shared = parameter(m, "w", 2, FEATURES, FEATURES);
    return mgpu_matmul(m->g, x, false, *shared, next(&m->seed, 2));
}

static struct mgpu_value *normalize(struct maker *m, struct mgpu_value *x)
{
    struct mgpu_batch_norm_attrs attrs = {.epsilon = 0.1};
    struct mgpu_value *in[] = {x, parameter(m, "scale", 1, FEATURES, 0),
                               parameter(m, "shift", 1, FEATURES, 0)};
    return mgpu_build1(m->g, &mgpu_op_batch_norm, &attrs, 3, in);
}

/* The columns of two halves, swapped: slices and a concatenation. */
static struct mgpu_value *swap(struct maker *m, struct mgpu_value *a, struct mgpu_value *b)
{
    struct mgpu_dim half = mgpu_dim_const(FEATURES / 2);
    struct mgpu_value *parts[] = {mgpu_slice_axis(m->g, a, 1, FEATURES / 2, half),
                                  mgpu_slice_axis(m->g, b, 1, 0, half)};
    return mgpu_concat(m->g, 1, 2, parts);
}

/* x + mean of x over the batch. */
static struct mgpu_value *add_mean(struct maker *m, struct mgpu_value *x)
{
    return mgpu_add(m->g, x, mgpu_reduce(m->g, MGPU_REDUCE_MEAN, x, 1, true));
}

static struct mgpu_value *node(struct maker *m, bool mixes)
{
    struct mgpu_value *a = m->value[next(&m->seed, (unsigned)m->count)];
    struct mgpu_value *b = m->value[next(&m->seed, (unsigned)m->count)];
    name_node(m);
    switch (next(&m->seed, mixes ? 8 : 6)) {
    case 0:
        return mgpu_add(m->g, a, b);
    case 1:
        return mgpu_unary(m->g, MGPU_X_TANH, a);
    case 2:
        return swap(m, a, b);
    case 3:
        return mgpu_mul(m->g, a, mgpu_unary(m->g, MGPU_X_SIGMOID, b));
    case 6:
        return normalize(m, a);
    case 7:
        return add_mean(m, a);
    default:
        return linear(m, a);
    }
}

/* Layers of a tower; their weights are those of all towers of this depth. */
static struct mgpu_value *tower(struct maker *m, struct mgpu_value *x, unsigned seed)
{
    struct mgpu_dim half = mgpu_dim_const(FEATURES / 2), row[] = {mgpu_dim_const(FEATURES)};
    struct mgpu_value *first = NULL;
    for (int i = 0, depth = 2 + (int)next(&seed, 5); i < depth && x; i++) {
        struct mgpu_dim flat[] = {mgpu_dim_mul(x->dims[0], row[0])};
        name_node(m);
        struct mgpu_value *parts[] = {mgpu_slice_axis(m->g, x, 1, FEATURES / 2, half),
                                      mgpu_slice_axis(m->g, x, 1, 0, half)};
        switch (i ? next(&seed, 6) : 5) {
        case 0:
            x = mgpu_unary(m->g, MGPU_X_TANH, x);
            break;
        case 1: /* two batches that become one axis, and two again */
            x = mgpu_concat(m->g, 0, 2, (struct mgpu_value *[]){x, mgpu_affine(m->g, x, -2, 1)});
            x = mgpu_unary(m->g, MGPU_X_SIGMOID, x);
            x = mgpu_reshape(m->g, x, 3,
                             (struct mgpu_dim[]){mgpu_dim_const(2), parts[0]->dims[0], row[0]});
            x = mgpu_unary(m->g, MGPU_X_TANH, mgpu_reduce(m->g, MGPU_REDUCE_SUM, x, 1, false));
            break;
        case 2:
            x = mgpu_concat(m->g, 1, 2, parts);
            break;
        case 3:
            x = mgpu_add(m->g, x, first);
            break;
        case 4:
            x = mgpu_reshape(m->g, mgpu_unary(m->g, MGPU_X_TANH, mgpu_reshape(m->g, x, 1, flat)), 2,
                             (struct mgpu_dim[]){parts[0]->dims[0], row[0]});
            break;
        default:
            if (!m->weight[i])
                m->weight[i] = parameter(m, "w", 2, FEATURES, FEATURES);
            x = mgpu_matmul(m->g, x, false, m->weight[i], false);
        }
        first = first ? first : x;
    }
    return x;
}

static int add_towers(struct maker *m, int towers)
{
    unsigned seed = next(&m->seed, 1 << 20);
    for (int k = 0; k < towers; k++) {
        name_node(m);
        struct mgpu_value *x = tower(m, mgpu_affine(m->g, m->value[0], 1, k), seed);
        if (!x)
            return mgpu_build_error();
        m->value[m->count++] = x;
    }
    return 0;
}

static bool is_used(const struct mgpu_graph *g, const struct mgpu_value *v)
{
    for (int n = 0; n < g->node_count; n++)
        for (int k = 0; k < g->nodes[n]->inputs; k++)
            if (g->nodes[n]->input[k] == v)
                return true;
    return false;
}

/* The loss: squares of every value that nobody uses, summed. */
static struct mgpu_value *close_graph(struct maker *m)
{
    struct mgpu_graph *g = m->g;
    struct mgpu_value *sum = NULL;
    for (int i = 0; i < m->count; i++) {
        if (m->used[i])
            continue;
        name_node(m);
        struct mgpu_value *square = mgpu_mul(g, m->value[i], m->value[i]);
        square = mgpu_reduce(g, MGPU_REDUCE_SUM, square, 3, false);
        sum = sum ? mgpu_add(g, sum, square) : square;
    }
    name_node(m);
    return mgpu_mul(g, sum, mgpu_graph_scalar(g, MGPU_SCALAR_LOSS, "1/count"));
}

static int forward(struct maker *m, int64_t batch, const struct random_graph *r)
{
    struct mgpu_dim dims[] = {mgpu_dim_symbol(MGPU_BATCH, batch), mgpu_dim_const(FEATURES)};
    m->g->float_type = MGPU_DOUBLE;
    m->g->batch = batch;
    m->value[m->count++] = mgpu_graph_input(m->g, "x", MGPU_DOUBLE, 2, dims);
    name_node(m);
    m->value[m->count++] = linear(m, m->value[0]); /* something to train, always */
    MGPU_TRY(add_towers(m, r->towers));
    for (int i = 0; i < r->nodes; i++) {
        struct mgpu_value *v = node(m, r->mixes);
        if (!v)
            return mgpu_build_error();
        m->value[m->count++] = v;
    }
    for (int i = 0; i < m->count; i++)
        m->used[i] = is_used(m->g, m->value[i]);
    return 0;
}

static int build(struct mgpu_graph **out, int64_t batch, void *context)
{
    const struct random_graph *r = context;
    struct maker m = {.g = mgpu_graph_new(), .seed = r->seed};
    *out = m.g;
    MGPU_TRY(forward(&m, batch, r));
    if (r->plan)
        MGPU_TRY(mgpu_rewrite_forward(m.g, r->plan));
    struct mgpu_value *loss = close_graph(&m);
    if (!loss)
        return mgpu_build_error();
    mgpu_graph_output(m.g, "loss", loss);
    MGPU_TRY(mgpu_gradient(m.g, loss, false));
    if (r->plan)
        MGPU_TRY(mgpu_rewrite_backward(m.g, r->plan));
    return world_add_updates(m.g, r->seed % 3 ? 0 : 0.5);
}

/* ---- Random plans ---------------------------------------------------------------------------- */

static struct mgpu_plan *random_plan(struct random_graph *r, unsigned *seed)
{
    static const int shapes[][2] = {{1, 2}, {1, 3}, {1, 4}, {2, 2}, {2, 1}, {3, 1}, {4, 1}};
    const int *shape = shapes[next(seed, 7)];
    struct mgpu_plan *plan = mgpu_plan_new(shape[0], shape[1]);
    struct mgpu_graph *g;
    char key[16];
    plan->bucket_bytes = 1 << next(seed, 12);
    for (int i = 0; i < r->nodes + 64; i++) {
        snprintf(key, sizeof key, "n%d", i);
        mgpu_plan_place(plan, key, (int)next(seed, (unsigned)shape[1]));
    }
    CHECK_OK(build(&g, 2, r));
    for (int i = 0; i < g->parameter_count; i++)
        if (g->parameters[i].role == MGPU_WEIGHT && next(seed, 2))
            mgpu_plan_own(plan, g->parameters[i].name, (int)next(seed, (unsigned)shape[1]));
    mgpu_graph_free(g);
    return plan;
}

/* Stacks what can be; returns how many calls are saved. */
static int stack(struct random_graph *r, struct mgpu_plan *plan)
{
    struct maker m = {.g = mgpu_graph_new(), .seed = r->seed};
    int saved = 0;
    CHECK_OK(forward(&m, 2, r));
    mgpu_stack_towers(plan, m.g);
    for (int i = 0; i < plan->rewrites; i++)
        saved += plan->rewrite[i].outputs - 1;
    mgpu_graph_free(m.g);
    return saved;
}

static int check_graph(unsigned number)
{
    unsigned seed = number * 7919u + 17u;
    struct random_graph r = {.seed = seed, .nodes = 1 + (int)next(&seed, 12)};
    r.mixes = next(&seed, 2);
    r.towers = next(&seed, 2) ? 2 + (int)next(&seed, 2) : 0;
    int pieces = r.mixes ? 1 : 1 + (int)next(&seed, 3);
    struct world_model model = {
        .build = build, .context = &r, .features = FEATURES, .classes = FEATURES};
    double want_loss[WORLD_STEPS], want[WORLD_MOST], loss[WORLD_STEPS], got[WORLD_MOST];
    struct mgpu_plan *one = mgpu_plan_data(1), *plan = random_plan(&r, &seed);
    int64_t n = world_train(&model, one, 1, want_loss, want);
    CHECK_(n > 0, "graph %u: %s", number, mgpu_error());
    int saved = r.towers ? stack(&r, plan) : 0;
    if (next(&seed, 2))
        mgpu_plan_rewrite(plan, MGPU_REWRITE_RECOMPUTE, 0, NULL);
    r.plan = plan;
    int64_t m = world_train(&model, plan, pieces, loss, got);
    CHECK_(m == n, "graph %u%s on %d x %d, %d pieces: %s", number, r.mixes ? " (mixing)" : "",
           plan->replicas, plan->places, pieces, m < 0 ? mgpu_error() : "other weights");
    double worst = 0, size = 1;
    for (int64_t i = 0; i < n && m == n; i++) {
        worst = fmax(worst, fabs(got[i] - want[i]));
        size = fmax(size, fabs(want[i]));
    }
    for (int i = 0; i < WORLD_STEPS && m == n; i++)
        CHECK_NEAR(loss[i], want_loss[i], 1e-10);
    CHECK_(worst <= 1e-10 * size, "graph %u on %d x %d, %d pieces: a weight is off by %g", number,
           plan->replicas, plan->places, pieces, worst);
    mgpu_plan_free(one);
    mgpu_plan_free(plan);
    return saved;
}

int main(void)
{
    const char *count = getenv("MGPU_PLANS"), *quick = getenv("MGPU_QUICK");
    unsigned n = count ? (unsigned)atoi(count) : quick ? 30 : 300;
    const char *only = getenv("MGPU_PLAN"); /* one graph by number */
    int saved = 0;
    for (unsigned i = only ? (unsigned)atoi(only) : 0; i < (only ? (unsigned)atoi(only) + 1 : n);
         i++)
        saved += check_graph(i);
    CHECK_(only || saved > (int)n, "towers were stacked %d times in %u graphs", saved, n);
    return test_end();
}
