#include "partitioner/live.h"

static void reach(const struct mgpu_value *v, bool *live)
{
    if (v && v->kind == MGPU_VALUE_RESULT)
        live[v->producer->id] = true;
}

void mgpu_find_live(const struct mgpu_graph *g, bool *live)
{
    for (int i = 0; i < g->parameter_count; i++) {
        reach(g->parameters[i].gradient, live);
        reach(g->parameters[i].next, live);
    }
    for (int i = 0; i < g->output_count; i++)
        reach(g->outputs[i], live);
    for (int n = g->node_count - 1; n >= 0; n--)
        for (int i = 0; live[n] && i < g->nodes[n]->inputs; i++)
            reach(g->nodes[n]->input[i], live);
}
