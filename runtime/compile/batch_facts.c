#include "runtime/compile/batch_facts.h"

#include "runtime/base/memory.h"
#include "runtime/graph/alike.h"

/* Integers that came from the batch's size (N - 1, to gather the last sample by). */
static bool holds_batch(const struct mgpu_value *v)
{
    for (int64_t i = 0, n = v->ints ? mgpu_value_count(v) : 0; i < n; i++)
        if (mgpu_dim_has(v->ints[i], MGPU_BATCH))
            return true;
    return false;
}

bool mgpu_mixes_samples(const struct mgpu_graph *g, const struct mgpu_value *constant)
{
    int axis = mgpu_batch_axis(constant);
    return constant->tainted || holds_batch(constant) ||
           (axis >= 0 && !mgpu_same_for_samples(constant, axis, g->batch));
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
