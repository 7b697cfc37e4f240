#include "tests/compile/rewrites.h"

#include "runtime/base/status.h"
#include "runtime/ops/build.h"
#include "runtime/ops/pointwise.h"
#include "runtime/ref/ref.h"
#include "tests/ops/run_graph.h"

#include <math.h>
#include <stdlib.h>

/* ---- Building and counting ------------------------------------------------------------------- */

struct mgpu_graph *rewrite_graph(enum mgpu_dtype type)
{
    struct mgpu_graph *g = mgpu_graph_new();
    g->float_type = type;
    return g;
}

struct mgpu_value *rewrite_matrix(struct mgpu_graph *g, const char *name, int64_t rows,
                                  int64_t columns)
{
    struct mgpu_dim dims[] = {mgpu_dim_const(rows), mgpu_dim_const(columns)};
    return mgpu_graph_input(g, name, g->float_type, 2, dims);
}

struct mgpu_value *rewrite_weight(struct mgpu_graph *g, const char *name, int64_t rows,
                                  int64_t columns)
{
    struct mgpu_dim dims[] = {mgpu_dim_const(rows), mgpu_dim_const(columns)};
    return mgpu_graph_parameter(g, name, MGPU_WEIGHT, g->float_type, 2, dims);
}

struct mgpu_value *rewrite_image(struct mgpu_graph *g, const char *name)
{
    struct mgpu_dim dims[] = {mgpu_dim_const(3), mgpu_dim_const(2), mgpu_dim_const(5)};
    return mgpu_graph_input(g, name, g->float_type, 3, dims);
}

struct mgpu_value *rewrite_relu(struct mgpu_graph *g, struct mgpu_value *x)
{
    struct mgpu_expr e;
    mgpu_expr_begin(&e, 1);
    int a = mgpu_expr_input(&e, 0, x->type);
    int y = mgpu_expr_2(&e, MGPU_X_MAX, a, mgpu_expr_number(&e, x->type, 0));
    return mgpu_pointwise(g, mgpu_expr_end(&e, y, g->arena), 1, &x);
}

struct mgpu_value *rewrite_clip(struct mgpu_graph *g, struct mgpu_value *x)
{
    struct mgpu_expr e;
    mgpu_expr_begin(&e, 1);
    int a = mgpu_expr_input(&e, 0, x->type);
    int y = mgpu_expr_2(&e, MGPU_X_MAX, a, mgpu_expr_number(&e, x->type, 0));
    y = mgpu_expr_2(&e, MGPU_X_MIN, y, mgpu_expr_number(&e, x->type, 0.5));
    return mgpu_pointwise(g, mgpu_expr_end(&e, y, g->arena), 1, &x);
}

int rewrite_count(const struct mgpu_graph *g, const struct mgpu_op *op)
{
    int n = 0;
    for (int i = 0; i < g->node_count; i++)
        n += g->nodes[i]->op == op;
    return n;
}

/* ---- Values before and after ----------------------------------------------------------------- */

static int feed(struct mgpu_run *run, const struct mgpu_value *v)
{
    int64_t n = mgpu_value_count(v);
    double *x = mgpu_xcalloc((size_t)n + 1, sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = sin(1.7 * (double)i + v->id);
    int rc = mgpu_run_feed(run, v, x);
    free(x);
    return rc;
}

static int run_all(struct mgpu_run *run, const struct mgpu_graph *g)
{
    for (int i = 0; i < g->input_count; i++)
        MGPU_TRY(feed(run, g->inputs[i]));
    for (int i = 0; i < g->parameter_count; i++)
        MGPU_TRY(feed(run, g->parameters[i].value));
    return mgpu_run_all(run);
}

int rewrite_evaluate(const struct mgpu_graph *g, double *to)
{
    struct mgpu_run run;
    mgpu_run_init(&run, g, &mgpu_backend_ref);
    int rc = run_all(&run, g);
    int count = rc < 0 ? rc : mgpu_run_results(&run, to, REWRITE_MOST);
    mgpu_run_free(&run);
    return count;
}

int rewrite_checked(struct mgpu_graph *g, rewrite_of_graph *rewrite)
{
    double before[REWRITE_MOST], after[REWRITE_MOST];
    int n = rewrite_evaluate(g, before);
    MGPU_TRY(n);
    rewrite(g, &mgpu_backend_ref);
    int m = rewrite_evaluate(g, after);
    MGPU_TRY(m);
    if (n == 0 || m != n)
        return mgpu_fail(MGPU_EINVALID, "%d numbers before, %d after", n, m);
    for (int i = 0; i < n; i++)
        if (!(fabs(after[i] - before[i]) <= 1e-12 * fmax(1, fabs(before[i]))))
            return mgpu_fail(MGPU_EINVALID, "number %d is %.17g, not %.17g", i, after[i],
                             before[i]);
    return 0;
}
