#include "runtime/compile/batch_facts.h"

#include "runtime/base/memory.h"

#include <string.h>

int mgpu_batch_axis(const struct mgpu_value *v)
{
    for (int k = 0; k < v->rank; k++)
        if (mgpu_dim_has(v->dims[k], MGPU_BATCH))
            return k;
    return -1;
}

/* Equal along `axis`: what a rank makes of it at its own size is its part of the whole. */
static bool uniform_along(const struct mgpu_value *v, int axis)
{
    int64_t inner = 1, outer = 1, n = v->dims[axis].value;
    for (int k = 0; k < axis; k++)
        outer *= v->dims[k].value;
    for (int k = axis + 1; k < v->rank; k++)
        inner *= v->dims[k].value;
    size_t row = (size_t)inner * mgpu_dtype_size(v->type);
    const char *data = v->data;
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 1; i < n; i++)
            if (memcmp(data + (size_t)(o * n) * row, data + (size_t)(o * n + i) * row, row))
                return false;
    return true;
}

/* Integers that came from the batch's size (N - 1, to gather the last sample by). */
static bool holds_batch(const struct mgpu_value *v)
{
    for (int64_t i = 0, n = v->ints ? mgpu_value_count(v) : 0; i < n; i++)
        if (!mgpu_dim_is_const(v->ints[i]))
            return true;
    return false;
}

bool mgpu_mixes_samples(const struct mgpu_value *constant)
{
    int axis = mgpu_batch_axis(constant);
    return constant->tainted || holds_batch(constant) ||
           (axis >= 0 && !uniform_along(constant, axis));
}

bool *mgpu_find_steering(const struct mgpu_graph *g)
{
    bool *found = mgpu_xcalloc((size_t)g->value_count, sizeof *found);
    for (int i = 0; i < g->output_count; i++)
        found[g->outputs[i]->id] = true;
    for (int i = 0; i < g->parameter_count; i++)
        if (g->parameters[i].gradient)
            found[g->parameters[i].gradient->id] = true;
    for (int n = g->node_count - 1; n >= 0; n--) {
        const struct mgpu_node *node = g->nodes[n];
        bool needed = false;
        for (int i = 0; i < node->outputs; i++)
            needed = needed || (node->output[i] && found[node->output[i]->id]);
        for (int i = 0; i < node->inputs && needed; i++)
            if (node->input[i])
                found[node->input[i]->id] = true;
    }
    return found;
}
