#include "tests/ops/run_graph.h"

#include "runtime/base/status.h"

#include <stdlib.h>
#include <string.h>

void mgpu_run_init(struct mgpu_run *run, const struct mgpu_graph *graph,
                   const struct mgpu_backend *backend)
{
    *run = (struct mgpu_run){.graph = graph, .backend = backend};
    run->scalar[MGPU_SCALAR_LR_FACTOR] = 1;
    run->scalar[MGPU_SCALAR_LOSS_SCALE] = run->scalar[MGPU_SCALAR_UNSCALE] = 1;
    run->scalar[MGPU_SCALAR_BATCH] = (double)graph->batch;
    run->scalar[MGPU_SCALAR_PIECE] = (double)graph->batch;
    run->scalar[MGPU_SCALAR_PIECE_SHARE] = 1;
    run->scalar[MGPU_SCALAR_RANK_SHARE] = 1;
    run->scalar[MGPU_SCALAR_KEY] = 77;
    for (int i = 0; i < MGPU_MAX_LOSSES; i++)
        run->scalar[MGPU_SCALAR_LOSS + i] = 1;
}

void mgpu_run_free(struct mgpu_run *run)
{
    for (int i = 0; i < run->count; i++) {
        free(run->data[i]);
        free(run->doubles[i]);
    }
    free(run->data);
    free(run->doubles);
    *run = (struct mgpu_run){0};
}

/* The graph may have got values since the last call. */
static void grow(struct mgpu_run *run)
{
    int count = run->graph->value_count, added = count - run->count;
    if (!added)
        return;
    run->data = mgpu_xrealloc(run->data, (size_t)count, sizeof *run->data);
    run->doubles = mgpu_xrealloc(run->doubles, (size_t)count, sizeof *run->doubles);
    memset(run->data + run->count, 0, (size_t)added * sizeof *run->data);
    memset(run->doubles + run->count, 0, (size_t)added * sizeof *run->doubles);
    run->count = count;
}

void *mgpu_run_data(struct mgpu_run *run, const struct mgpu_value *value)
{
    if (!value)
        return NULL;
    if (value->kind == MGPU_VALUE_CONSTANT)
        return (void *)value->data; /* kernels do not write their inputs */
    if (value->kind == MGPU_VALUE_SCALAR)
        return &run->scalar[value->index];
    grow(run);
    void **data = &run->data[value->id];
    if (!*data) /* room for one more: an empty tensor is not an absent one */
        *data = mgpu_xcalloc((size_t)mgpu_value_bytes(value) + 1, 1);
    return *data;
}

int mgpu_run_feed(struct mgpu_run *run, const struct mgpu_value *value, const double *contents)
{
    if (value->kind == MGPU_VALUE_CONSTANT)
        return mgpu_fail(MGPU_EINVALID, "'%s' is a constant and cannot be fed", value->name);
    mgpu_convert(mgpu_run_data(run, value), value->type, contents, MGPU_DOUBLE,
                 mgpu_value_count(value));
    return 0;
}

int mgpu_run_node(struct mgpu_run *run, const struct mgpu_node *node)
{
    const void **in = mgpu_xcalloc((size_t)node->inputs + 1, sizeof *in);
    void **out = mgpu_xcalloc((size_t)node->outputs + 1, sizeof *out);
    for (int i = 0; i < node->inputs; i++)
        in[i] = mgpu_run_data(run, node->input[i]);
    for (int i = 0; i < node->outputs; i++)
        out[i] = mgpu_run_data(run, node->output[i]);
    int rc = mgpu_backend_run(run->backend, node, in, out);
    free(in);
    free(out);
    return rc;
}

int mgpu_run_all(struct mgpu_run *run)
{
    for (int i = 0; i < run->graph->node_count; i++)
        MGPU_TRY(mgpu_run_node(run, run->graph->nodes[i]));
    return 0;
}

const double *mgpu_run_doubles(struct mgpu_run *run, const struct mgpu_value *value)
{
    const void *data = mgpu_run_data(run, value);
    grow(run);
    int64_t count = mgpu_value_count(value);
    double **doubles = &run->doubles[value->id];
    if (!*doubles)
        *doubles = mgpu_xcalloc((size_t)count + 1, sizeof **doubles);
    mgpu_convert(*doubles, MGPU_DOUBLE, data, value->type, count);
    return *doubles;
}

int mgpu_run_results(struct mgpu_run *run, double *to, int most)
{
    const struct mgpu_graph *g = run->graph;
    int count = 0;
    for (int i = 0; i < g->output_count + g->parameter_count; i++) {
        const struct mgpu_value *v =
            i < g->output_count ? g->outputs[i] : g->parameters[i - g->output_count].gradient;
        for (int64_t k = 0; v && k < mgpu_value_count(v) && count < most; k++)
            to[count++] = mgpu_run_doubles(run, v)[k];
    }
    return count;
}
