/* Splits of a graph as it is, without changing it. */
#include "runtime/compile/plan.h"

#include <stdlib.h>

struct states {
    struct mgpu_split *split; /* by value id */
    bool *known;
};

static void source(struct states *s, const struct mgpu_value *v)
{
    s->known[v->id] = true;
    s->split[v->id] = mgpu_split_make(MGPU_SPLIT_REPLICATED, 0, 1);
    for (int k = 0; k < v->rank; k++)
        if (mgpu_dim_has(v->dims[k], MGPU_BATCH)) {
            s->split[v->id] = mgpu_split_make(MGPU_SPLIT_AXIS, k, 1);
            return;
        }
}

static void follow_node(struct states *s, const struct mgpu_node *node, struct mgpu_split *in)
{
    struct mgpu_split out[MGPU_MAX_OUTPUTS];
    int which;
    for (int i = 0; i < node->inputs; i++) {
        const struct mgpu_value *v = node->input[i];
        in[i] = v ? s->split[v->id] : mgpu_split_make(MGPU_SPLIT_REPLICATED, 0, 1);
        if (v && !s->known[v->id])
            return;
    }
    if (node->outputs > MGPU_MAX_OUTPUTS || node->op->split(node, in, out, &which))
        return;
    for (int i = 0; i < node->outputs; i++)
        if (node->output[i]) {
            s->split[node->output[i]->id] = out[i];
            s->known[node->output[i]->id] = true;
        }
}

bool mgpu_plan_follow(const struct mgpu_graph *g, const struct mgpu_value *value,
                      struct mgpu_split *out)
{
    struct states s = {.split = mgpu_xcalloc((size_t)g->value_count, sizeof *s.split),
                       .known = mgpu_xcalloc((size_t)g->value_count, sizeof *s.known)};
    for (int i = 0; i < g->value_count; i++)
        if (g->values[i]->kind != MGPU_VALUE_RESULT)
            source(&s, g->values[i]);
    for (int n = 0; n < g->node_count; n++) {
        struct mgpu_split *in = mgpu_xcalloc((size_t)g->nodes[n]->inputs + 1, sizeof *in);
        follow_node(&s, g->nodes[n], in);
        free(in);
    }
    bool known = s.known[value->id];
    *out = s.split[value->id];
    free(s.split);
    free(s.known);
    return known;
}
