/* Attention of several nodes becomes one where it is that: outputs and gradients stay. */
#include "runtime/compile/fuse.h"
#include "runtime/compile/rewrite.h"
#include "runtime/graph/fold.h"
#include "runtime/graph/gradient.h"
#include "runtime/ops/attention.h"
#include "runtime/ops/build.h"
#include "runtime/ref/ref.h"
#include "tests/ops/run_graph.h"
#include "tests/test.h"

#include <math.h>

enum { N = 2, T = 3, S = 5, H = 2, D = 8, MOST = 512 };

enum kind {
    PLAIN,      /* [N,H,T,D] as they are, keys transposed by the product */
    PADDED,     /* a number for each sample's keys; heads turned there and back */
    CAUSAL,     /* lowest where a mask is false */
    LOW,        /* not so low: what it replaces could show beside it */
    SCALED,     /* queries and keys before their product, and the mask comes first in its sum */
    KEPT,       /* y is not turned back */
    SEEN,       /* the probabilities are an output */
    TRAINED,    /* the mask is a weight */
    TWICE,      /* two masks */
    SCALE_LAST, /* the mask is scaled as well */
    KINDS
};

static struct mgpu_value *weight(struct mgpu_graph *g, const char *name, int rank,
                                 const int64_t *sizes)
{
    struct mgpu_dim dims[4];
    for (int i = 0; i < rank; i++)
        dims[i] = mgpu_dim_const(sizes[i]);
    return mgpu_graph_parameter(g, name, MGPU_WEIGHT, MGPU_DOUBLE, rank, dims);
}

static struct mgpu_value *number(struct mgpu_graph *g, double x)
{
    return mgpu_const_double(g, MGPU_DOUBLE, x);
}

/* [N,rows,H,D] in the order of axes that the products want. */
static struct mgpu_value *heads(struct mgpu_graph *g, enum kind kind, const char *name,
                                int64_t rows, const int *perm)
{
    if (kind == PLAIN)
        return weight(g, name, 4, (int64_t[]){N, H, rows, D});
    return mgpu_transpose(g, weight(g, name, 4, (int64_t[]){N, rows, H, D}), perm);
}

static struct mgpu_value *mask(struct mgpu_graph *g, enum kind kind, struct mgpu_value *s)
{
    struct mgpu_dim keys[] = {mgpu_dim_const(N), mgpu_dim_const(1), mgpu_dim_const(1),
                              mgpu_dim_const(S)};
    struct mgpu_dim square[] = {mgpu_dim_const(T), mgpu_dim_const(S)};
    struct mgpu_value *m = mgpu_graph_input(g, "mask", MGPU_DOUBLE, 4, keys);
    if (kind == PLAIN)
        return s;
    if (kind == SCALED)
        return mgpu_add(g, m, s);
    if (kind == TRAINED)
        return mgpu_add(g, s, weight(g, "bias", 2, (int64_t[]){T, S}));
    if (kind == TWICE)
        return mgpu_add(g, mgpu_add(g, s, m), m);
    if (kind == SCALE_LAST)
        return mgpu_mul(g, mgpu_add(g, s, m), number(g, 3));
    if (kind != CAUSAL && kind != LOW)
        return mgpu_add(g, s, m);
    struct mgpu_value *shown = mgpu_graph_input(g, "shown", MGPU_BOOL, 2, square);
    return mgpu_where(g, shown, s, number(g, kind == LOW ? -30 : -1e30));
}

static struct mgpu_value *attend(struct mgpu_graph *g, enum kind kind)
{
    bool plain = kind == PLAIN;
    struct mgpu_value *q = heads(g, kind, "q", T, (int[]){0, 2, 1, 3});
    struct mgpu_value *k = heads(g, kind, "k", S, (int[]){0, 2, 3, 1});
    struct mgpu_value *v = heads(g, kind, "v", S, (int[]){0, 2, 1, 3});
    if (kind == SCALED) {
        q = mgpu_mul(g, q, number(g, 0.5));
        k = mgpu_mul(g, k, number(g, 0.5));
    }
    struct mgpu_value *s = mgpu_matmul(g, q, false, k, plain);
    if (kind != SCALED)
        s = mgpu_div(g, s, number(g, 2));
    s = mgpu_softmax(g, mask(g, kind, s), 3, false);
    if (kind == SEEN)
        mgpu_graph_output(g, "probabilities", s);
    s = mgpu_matmul(g, s, false, v, false);
    return plain || kind == KEPT ? s : mgpu_transpose(g, s, (int[]){0, 2, 1, 3});
}

static int count_of(const struct mgpu_graph *g, const struct mgpu_op *op)
{
    int count = 0;
    for (int i = 0; i < g->node_count; i++)
        count += g->nodes[i]->op == op;
    return count;
}

static void feed(struct mgpu_run *run, const struct mgpu_value *v)
{
    double x[MOST];
    for (int64_t i = 0; i < mgpu_value_count(v); i++)
        x[i] = v->type == MGPU_BOOL ? i % 3 != 1 : sin(1.0 + (double)(i * 7 + v->id % 3));
    CHECK_OK(mgpu_run_feed(run, v, x));
}

/* The outputs and all gradients; returns how many numbers. */
static int evaluate(const struct mgpu_graph *g, double *to)
{
    struct mgpu_run run;
    mgpu_run_init(&run, g, &mgpu_backend_ref);
    for (int i = 0; i < g->input_count; i++)
        feed(&run, g->inputs[i]);
    for (int i = 0; i < g->parameter_count; i++)
        feed(&run, g->parameters[i].value);
    CHECK_OK(mgpu_run_all(&run));
    int count = mgpu_run_results(&run, to, 8 * MOST);
    mgpu_run_free(&run);
    return count;
}

enum way { APART, FUSED, LIBRARY };

static int train(enum kind kind, enum way way, int *nodes, double *to)
{
    struct mgpu_graph *g = mgpu_graph_new();
    g->float_type = MGPU_DOUBLE;
    struct mgpu_value *y = attend(g, kind);
    mgpu_graph_output(g, "y", y);
    if (way != APART)
        CHECK_OK(mgpu_fuse_attention(g, way == LIBRARY));
    *nodes = count_of(g, &mgpu_op_attention);
    CHECK(mgpu_value_count(y) == N * H * T * D && g->outputs[g->output_count - 1] == y);
    struct mgpu_value *square = mgpu_mul(g, y, mgpu_mul(g, y, y));
    CHECK_OK(mgpu_gradient(g, mgpu_reduce(g, MGPU_REDUCE_SUM, square, 15, false), false));
    mgpu_graph_prune(g);
    if (*nodes)
        CHECK(count_of(g, mgpu_op_find("transpose")) == (kind == KEPT ? 2 : 0));
    int n = evaluate(g, to);
    mgpu_graph_free(g);
    return n;
}

int main(void)
{
    static double before[8 * MOST], after[8 * MOST];
    mgpu_fold_set(mgpu_ref_fold);
    for (int kind = 0; kind < KINDS; kind++) {
        int nodes, n = train((enum kind)kind, APART, &nodes, before);
        CHECK(nodes == 0);
        for (enum way way = FUSED; way <= LIBRARY; way++) {
            CHECK(train((enum kind)kind, way, &nodes, after) == n);
            CHECK_(nodes == (kind < SEEN && !(kind == LOW && way == LIBRARY)), "kind %d has %d",
                   kind, nodes);
            for (int i = 0; i < n; i++)
                CHECK_NEAR(after[i], before[i], 1e-12);
        }
    }
    return test_end();
}
