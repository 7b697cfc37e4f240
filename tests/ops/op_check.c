#include "tests/ops/op_check.h"
#include "tests/emit/emit_check.h"
#include "tests/ops/op_case.h"
#include "tests/ops/split_check.h"
#include "tests/test.h"

#include "runtime/graph/fold.h"
#include "runtime/ref/ref.h"

/* "1e-5 of the norm": norm(a - b) / norm(b), absolute where b is tiny. */
static double norm_error(const double *a, const double *b, int64_t count)
{
    double diff = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        if (a[i] == b[i] || (isnan(a[i]) && isnan(b[i])))
            continue;
        diff += (a[i] - b[i]) * (a[i] - b[i]);
    }
    for (int64_t i = 0; i < count; i++)
        norm += isfinite(b[i]) ? b[i] * b[i] : 0;
    return isnan(diff) ? INFINITY : sqrt(diff) / fmax(sqrt(norm), 1e-3);
}

/* ---- gradient against central differences -------------------------------------------------- */

/* Sum of G * y over all outputs after one forward pass, minus the same at `base`. */
static double weighted(struct mgpu_run *run, const struct op_case *c, const struct op_numbers *n,
                       double sign, double *sum)
{
    for (int i = 0; i < c->node->outputs; i++) {
        if (!n->dy[i])
            continue;
        const double *y = mgpu_run_doubles(run, c->node->output[i]);
        for (int64_t k = 0, count = mgpu_value_count(c->node->output[i]); k < count; k++)
            sum[i] += sign * n->dy[i][k] * y[k];
    }
    double all = 0;
    for (int i = 0; i < c->node->outputs; i++)
        all += sum[i];
    return all;
}

/* d(sum G*y)/dx[k] by a five-point difference, whose error falls with the fourth power of h. */
static double quotient(struct mgpu_run *run, const struct op_case *c, const struct op_numbers *n,
                       int input, int64_t k)
{
    static const double at[4] = {1, -1, 2, -2}, weight[4] = {8, -8, -1, 1};
    double x = n->in[input][k], h = 2e-4 * fmax(1, fabs(x)), result = 0;
    for (int i = 0; i < 4; i++) {
        double sum[MGPU_MAX_OUTPUTS] = {0};
        n->in[input][k] = x + at[i] * h;
        CHECK_OK(mgpu_run_feed(run, c->in[input], n->in[input]));
        CHECK_OK(mgpu_run_node(run, c->node));
        result += weighted(run, c, n, weight[i], sum);
    }
    n->in[input][k] = x;
    CHECK_OK(mgpu_run_feed(run, c->in[input], n->in[input]));
    return result / (12 * h);
}

static void check_quotients(const struct mgpu_check *check, const struct op_case *c,
                            const struct op_numbers *n, int input, const double *dx)
{
    int64_t count = mgpu_value_count(c->in[input]);
    double *want = mgpu_xcalloc((size_t)count + 1, sizeof *want);
    struct mgpu_run run;
    mgpu_run_init(&run, c->graph, &mgpu_backend_ref);
    CHECK_OK(op_numbers_feed(n, &run, c));
    for (int64_t k = 0; k < count; k++)
        want[k] = quotient(&run, c, n, input, k);
    double limit =
        (check->tolerance > 0 ? check->tolerance : 1e-6) * fmax(op_largest(want, count), 1e-3);
    double error = op_distance(dx, want, count);
    CHECK_(error <= limit, "%s: gradient by input %d is off by %.3g (limit %.3g)", check->name,
           input, error, limit);
    mgpu_run_free(&run);
    free(want);
}

static void check_gradient(const struct mgpu_check *check, const struct op_case *c,
                           const struct op_numbers *n, struct mgpu_run *run)
{
    for (int i = 0; i < check->inputs; i++) {
        if (!op_case_wanted(check, i))
            continue;
        const struct mgpu_value *x = c->in[i], *dx = c->dx[i];
        int64_t count = mgpu_value_count(x);
        double *zero = mgpu_xcalloc((size_t)count + 1, sizeof *zero);
        bool same = !dx || (dx->rank == x->rank && dx->type == x->type);
        for (int k = 0; dx && same && k < x->rank; k++)
            same = mgpu_dim_same(dx->dims[k], x->dims[k]);
        CHECK_(same, "%s: the gradient of input %d has another type or shape", check->name, i);
        if (same)
            check_quotients(check, c, n, i, dx ? mgpu_run_doubles(run, dx) : zero);
        free(zero);
    }
}

/* ---- the record's small rules --------------------------------------------------------------- */

static void check_saved(const struct mgpu_check *check, const struct op_case *c)
{
    unsigned inputs = 0, outputs = 0;
    check->op->saved(c->node, &inputs, &outputs);
    for (int k = 1; k < c->graph->node_count; k++)
        for (int j = 0; j < c->graph->nodes[k]->inputs; j++) {
            const struct mgpu_value *v = c->graph->nodes[k]->input[j];
            for (int i = 0; v && i < c->node->inputs && i < 32; i++)
                CHECK_(v != c->node->input[i] || inputs >> i & 1,
                       "%s: the gradient reads input %d, which is not saved", check->name, i);
            for (int i = 0; v && i < c->node->outputs; i++)
                CHECK_(v != c->node->output[i] || outputs >> i & 1,
                       "%s: the gradient reads output %d, which is not saved", check->name, i);
        }
}

static void check_rules(const struct mgpu_check *check, const struct op_case *c)
{
    for (int k = 0; k < c->graph->node_count; k++) {
        const struct mgpu_node *node = c->graph->nodes[k];
        struct mgpu_cost cost = node->op->cost(node);
        CHECK_(isfinite(cost.flops) && cost.flops >= 0 && cost.bytes > 0, "%s: cost of %s",
               check->name, node->op->name);
        CHECK_(node->op->workspace(node) >= 0, "%s: workspace of %s", check->name, node->op->name);
        for (int i = 0; i < node->inputs + node->outputs; i++)
            CHECK_(node->op->layouts(node, i) & MGPU_LAYOUT_PLAIN,
                   "%s: %s does not take operand %d in plain layout", check->name, node->op->name,
                   i);
    }
    if (c->has_gradient)
        check_saved(check, c);
}

/* Runs the node with the pair's output in the input's memory and compares every output. */
static void check_pair(const char *name, struct mgpu_run *run, const struct mgpu_node *node,
                       struct mgpu_alias pair)
{
    const void *in[MGPU_MAX_INPUTS];
    void *out[MGPU_MAX_OUTPUTS];
    const struct mgpu_value *x = node->input[pair.input];
    void *shared = mgpu_xcalloc(1, (size_t)mgpu_value_bytes(x) + 1);
    memcpy(shared, mgpu_run_data(run, x), (size_t)mgpu_value_bytes(x));
    for (int i = 0; i < node->inputs; i++)
        in[i] = i == pair.input ? shared : mgpu_run_data(run, node->input[i]);
    for (int i = 0; i < node->outputs; i++) {
        size_t bytes = (size_t)mgpu_value_bytes(node->output[i]);
        out[i] = i == pair.output ? shared : mgpu_xcalloc(1, bytes + 1);
    }
    CHECK_(mgpu_value_bytes(x) == mgpu_value_bytes(node->output[pair.output]),
           "%s: %s: a pair that shares memory differs in size", name, node->op->name);
    CHECK_OK(mgpu_backend_run(run->backend, node, in, out));
    for (int i = 0; i < node->outputs; i++) {
        const struct mgpu_value *y = node->output[i];
        CHECK_(!memcmp(out[i], mgpu_run_data(run, y), (size_t)mgpu_value_bytes(y)),
               "%s: %s on %s differs when output %d overwrites input %d", name, node->op->name,
               run->backend->name, pair.output, pair.input);
        free(out[i]);
    }
}

static void check_alias(const struct mgpu_check *check, struct mgpu_run *run)
{
    for (int k = 0; k < run->graph->node_count; k++) {
        const struct mgpu_node *node = run->graph->nodes[k];
        struct mgpu_alias pairs[MGPU_MAX_OUTPUTS];
        int count = node->inputs <= MGPU_MAX_INPUTS ? node->op->alias(node, pairs) : 0;
        for (int i = 0; i < count; i++)
            if (node->input[pairs[i].input] && node->output[pairs[i].output])
                check_pair(check->name, run, node, pairs[i]);
    }
}

/* ---- types and backends against ref in double ------------------------------------------------ */

static void compare(const struct mgpu_check *check, const char *what, struct mgpu_run *run,
                    const struct mgpu_value *got, const double *want, const char *which, int i,
                    double limit)
{
    double error = norm_error(mgpu_run_doubles(run, got), want, mgpu_value_count(got));
    CHECK_(error <= limit, "%s: %s: %s %d is off by %.3g", check->name, what, which, i, error);
}

/* Runs the row on a backend in a type and compares with `judge`, the run of `whole`. */
static void check_run(const struct mgpu_check *check, const struct mgpu_backend *backend,
                      enum mgpu_dtype type, const struct op_case *whole, const struct op_numbers *n,
                      struct mgpu_run *judge)
{
    char what[64];
    struct op_case c;
    struct mgpu_run run;
    snprintf(what, sizeof what, "%s in %s", backend->name, mgpu_dtype_name(type));
    int rc = op_case_build(&c, check, type, n->batch);
    CHECK_(rc == 0, "%s: %s: %s", check->name, what, mgpu_error());
    if (rc < 0)
        return;
    mgpu_run_init(&run, c.graph, backend);
    rc = op_numbers_feed(n, &run, &c);
    if (rc == 0)
        rc = mgpu_run_all(&run);
    CHECK_(rc == 0, "%s: %s: %s", check->name, what, mgpu_error());
    double limit = type == MGPU_DOUBLE ? 1e-10 : 1e-5;
    for (int i = 0; rc == 0 && i < c.node->outputs; i++)
        compare(check, what, &run, c.node->output[i],
                mgpu_run_doubles(judge, whole->node->output[i]), "output", i, limit);
    for (int i = 0; rc == 0 && i < check->inputs; i++)
        if (c.dx[i] && whole->dx[i])
            compare(check, what, &run, c.dx[i], mgpu_run_doubles(judge, whole->dx[i]),
                    "gradient of input", i, limit);
    if (rc == 0)
        check_alias(check, &run);
    mgpu_run_free(&run);
    op_case_free(&c);
}

static void check_one(const struct mgpu_check *check)
{
    struct op_case whole;
    struct op_numbers n;
    struct mgpu_run run;
    int rc = op_case_build(&whole, check, MGPU_DOUBLE, op_case_batch(check));
    CHECK_(rc == 0, "%s: %s", check->name, mgpu_error());
    if (rc < 0)
        return;
    op_numbers_init(&n, check, &whole);
    mgpu_run_init(&run, whole.graph, &mgpu_backend_ref);
    rc = op_numbers_feed(&n, &run, &whole);
    if (rc == 0)
        rc = mgpu_run_all(&run);
    CHECK_(rc == 0, "%s: %s", check->name, mgpu_error());
    if (rc == 0) {
        check_rules(check, &whole);
        if (whole.has_gradient)
            check_gradient(check, &whole, &n, &run);
        check_run(check, &mgpu_backend_ref, MGPU_FLOAT, &whole, &n, &run);
        check_run(check, &mgpu_backend_ref, MGPU_DOUBLE, &whole, &n, &run);
        check_run(check, &mgpu_backend_cpu, MGPU_FLOAT, &whole, &n, &run);
        check_run(check, &mgpu_backend_cpu, MGPU_DOUBLE, &whole, &n, &run);
        test_failures += split_check(check, &whole, &n, &run);
    }
    mgpu_run_free(&run);
    op_numbers_free(&n);
    op_case_free(&whole);
}

int mgpu_op_check(const struct mgpu_check *checks)
{
    int before = test_failures;
    if (emit_check_wanted())
        return emit_check(checks, true);
    mgpu_fold_set(mgpu_ref_fold);
#ifdef __SANITIZE_THREAD__
    printf("rows run on one thread: there is nothing to see for the thread sanitizer\n");
    return 0;
#endif
    for (; checks->name; checks++)
        check_one(checks);
    return test_failures - before;
}

int mgpu_op_value(const struct mgpu_check *check, const double *want, int64_t count)
{
    struct op_case c;
    struct op_numbers n;
    struct mgpu_run run;
    mgpu_fold_set(mgpu_ref_fold);
    int before = test_failures, rc = op_case_build(&c, check, MGPU_DOUBLE, op_case_batch(check));
    CHECK_(rc == 0, "%s: %s", check->name, mgpu_error());
    if (rc < 0)
        return 1;
    op_numbers_init(&n, check, &c);
    mgpu_run_init(&run, c.graph, &mgpu_backend_ref);
    rc = op_numbers_feed(&n, &run, &c);
    if (rc == 0)
        rc = mgpu_run_node(&run, c.node);
    CHECK_(rc == 0, "%s: %s", check->name, mgpu_error());
    CHECK_(count == mgpu_value_count(c.node->output[0]), "%s: %lld elements, not %lld", check->name,
           (long long)mgpu_value_count(c.node->output[0]), (long long)count);
    if (test_failures == before) {
        double error = op_distance(mgpu_run_doubles(&run, c.node->output[0]), want, count);
        CHECK_(error <= 1e-12 * fmax(1, op_largest(want, count)), "%s: off by %.3g", check->name,
               error);
    }
    mgpu_run_free(&run);
    op_numbers_free(&n);
    op_case_free(&c);
    return test_failures - before;
}
