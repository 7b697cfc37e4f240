#include "tests/ops/op_case.h"

#include "runtime/base/status.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t or_one(int64_t n)
{
    return n ? n : 1;
}

static bool carries_batch(const struct mgpu_check_input *in)
{
    return in->rank > 0 && in->batch_axis >= 0;
}

int64_t op_case_batch(const struct mgpu_check *check)
{
    for (int i = 0; i < check->inputs; i++) {
        const struct mgpu_check_input *in = &check->input[i];
        if (carries_batch(in))
            return in->dims[in->batch_axis] / (or_one(in->outer) * or_one(in->inner));
    }
    return or_one(check->batch);
}

bool op_case_has_batch(const struct mgpu_check *check)
{
    for (int i = 0; i < check->inputs; i++)
        if (carries_batch(&check->input[i]))
            return true;
    return check->batch > 0;
}

static enum mgpu_dtype input_type(const struct mgpu_check_input *in, enum mgpu_dtype type)
{
    return in->type ? in->type : type;
}

bool op_case_wanted(const struct mgpu_check *check, int i)
{
    const struct mgpu_check_input *in = &check->input[i];
    return in->rank >= 0 && !in->constant && !in->scalar &&
           mgpu_is_float(input_type(in, MGPU_DOUBLE));
}

static struct mgpu_value *add_input(struct mgpu_graph *g, const struct mgpu_check_input *in,
                                    int number, enum mgpu_dtype type, int64_t batch)
{
    struct mgpu_dim dims[MGPU_MAX_RANK];
    char name[16];
    if (in->rank < 0)
        return NULL;
    if (in->scalar)
        return mgpu_graph_scalar(g, in->scalar - 1, "scalar");
    for (int k = 0; k < in->rank; k++)
        dims[k] = mgpu_dim_const(in->dims[k]);
    if (carries_batch(in))
        dims[in->batch_axis] = mgpu_dim_mul(mgpu_dim_const(or_one(in->outer) * or_one(in->inner)),
                                            mgpu_dim_symbol(MGPU_BATCH, batch));
    snprintf(name, sizeof name, "x%d", number);
    return mgpu_graph_input(g, name, input_type(in, type), in->rank, dims);
}

static int add_gradient(struct op_case *c, const struct mgpu_check *check)
{
    bool wanted[MGPU_MAX_INPUTS] = {0}, any = false, arrives = false;
    const struct mgpu_op *op = check->op;
    for (int i = 0; i < check->inputs; i++)
        any |= wanted[i] = op_case_wanted(check, i);
    if (!any || op->flags & (MGPU_OP_NO_GRADIENT | MGPU_OP_GRADIENT_ONLY))
        return 0;
    for (int i = 0; i < op->outputs; i++) {
        const struct mgpu_value *y = c->node->output[i];
        if (check->skip_outputs >> i & 1 || !mgpu_is_float(y->type))
            continue;
        c->dy[i] = mgpu_graph_input(c->graph, "dy", y->type, y->rank, y->dims);
        arrives = true;
    }
    c->has_gradient = arrives;
    return arrives ? op->gradient(c->graph, c->node, c->dy, wanted, c->dx) : 0;
}

static int build(struct op_case *c, const struct mgpu_check *check, int64_t batch)
{
    struct mgpu_value *out[MGPU_MAX_OUTPUTS];
    struct mgpu_graph *g = c->graph;
    const void *attrs = check->attrs_at ? check->attrs_at(g->arena, batch) : check->attrs;
    for (int i = 0; i < check->inputs; i++)
        c->in[i] = add_input(g, &check->input[i], i, g->float_type, batch);
    MGPU_TRY(mgpu_graph_node(g, check->op, attrs, check->inputs, c->in, check->op->outputs, out));
    if (g->node_count != 1)
        return mgpu_fail(MGPU_EINVALID, "the row's node was folded");
    c->node = g->nodes[0];
    g->origin.role = MGPU_BACKWARD;
    return mgpu_prefix(add_gradient(c, check), "gradient");
}

int op_case_build(struct op_case *c, const struct mgpu_check *check, enum mgpu_dtype type,
                  int64_t batch)
{
    *c = (struct op_case){.graph = mgpu_graph_new()};
    c->graph->float_type = type;
    c->graph->batch = batch;
    int rc = build(c, check, batch);
    if (rc < 0)
        op_case_free(c);
    return rc;
}

void op_case_free(struct op_case *c)
{
    mgpu_graph_free(c->graph);
    *c = (struct op_case){0};
}

double op_random(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(*seed >> 40) / 16777216.0;
}

static double draw(const struct mgpu_check_input *in, uint64_t *seed)
{
    double low = in->low, high = in->high, r = op_random(seed);
    if (in->type == MGPU_BOOL)
        return r < 0.5;
    if (in->type && !mgpu_is_float(in->type))
        return low + floor(r * (high - low + 1));
    if (low == 0 && high == 0)
        low = -1, high = 1;
    return (float)(low + r * (high - low));
}

static double *draw_input(const struct mgpu_check_input *in, int64_t count, uint64_t *seed)
{
    double *x = mgpu_xcalloc((size_t)count + 1, sizeof *x);
    for (int64_t i = 0; i < count; i++)
        x[i] = in->values ? in->values[i] : draw(in, seed);
    return x;
}

void op_numbers_init(struct op_numbers *n, const struct mgpu_check *check,
                     const struct op_case *whole)
{
    static const struct mgpu_check_input plain;
    uint64_t seed = 1;
    *n = (struct op_numbers){.batch = op_case_batch(check)};
    for (int i = 0; i < check->inputs; i++)
        if (whole->in[i])
            n->in[i] = draw_input(&check->input[i], mgpu_value_count(whole->in[i]), &seed);
    for (int i = 0; i < MGPU_MAX_OUTPUTS; i++)
        if (whole->dy[i])
            n->dy[i] = draw_input(&plain, mgpu_value_count(whole->dy[i]), &seed);
}

void op_numbers_free(struct op_numbers *n)
{
    for (int i = 0; i < MGPU_MAX_INPUTS; i++)
        free(n->in[i]);
    for (int i = 0; i < MGPU_MAX_OUTPUTS; i++)
        free(n->dy[i]);
}

int op_numbers_feed(const struct op_numbers *n, struct mgpu_run *run, const struct op_case *whole)
{
    for (int i = 0; i < MGPU_MAX_INPUTS; i++)
        if (n->in[i] && whole->in[i]->kind == MGPU_VALUE_INPUT)
            MGPU_TRY(mgpu_run_feed(run, whole->in[i], n->in[i]));
    for (int i = 0; i < MGPU_MAX_OUTPUTS; i++)
        if (n->dy[i])
            MGPU_TRY(mgpu_run_feed(run, whole->dy[i], n->dy[i]));
    return 0;
}

double op_distance(const double *a, const double *b, int64_t count)
{
    double most = 0;
    for (int64_t i = 0; i < count; i++) {
        if (a[i] == b[i] || (isnan(a[i]) && isnan(b[i])))
            continue;
        double d = fabs(a[i] - b[i]);
        most = isnan(d) ? INFINITY : fmax(most, d);
    }
    return most;
}

double op_largest(const double *b, int64_t count)
{
    double most = 0;
    for (int64_t i = 0; i < count; i++)
        if (isfinite(b[i]))
            most = fmax(most, fabs(b[i]));
    return most;
}
