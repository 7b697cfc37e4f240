#include "runtime/compile/follow.h"

#include "runtime/compile/plan.h"
#include "runtime/graph/alike.h"

#include <stdlib.h>

void mgpu_follow_constants(const struct mgpu_node *node, struct mgpu_split *in)
{
    int64_t outer = 0;
    for (int i = 0; i < node->inputs && !outer; i++)
        if (node->input[i] && node->input[i]->kind != MGPU_VALUE_CONSTANT &&
            in[i].kind == MGPU_SPLIT_AXIS)
            outer = in[i].outer;
    for (int i = 0; i < node->inputs && outer; i++)
        if (node->input[i] && node->input[i]->kind == MGPU_VALUE_CONSTANT &&
            in[i].kind == MGPU_SPLIT_AXIS)
            in[i].outer = outer;
}

static void source(struct mgpu_follow *f, const struct mgpu_value *v)
{
    int axis = mgpu_batch_axis(v);
    f->known[v->id] = true;
    f->split[v->id] = axis >= 0 ? mgpu_split_make(MGPU_SPLIT_AXIS, axis, 1)
                                : mgpu_split_make(MGPU_SPLIT_REPLICATED, 0, 1);
}

static void follow_node(struct mgpu_follow *f, const struct mgpu_node *node, struct mgpu_split *in)
{
    struct mgpu_split out[MGPU_MAX_OUTPUTS];
    int which;
    for (int i = 0; i < node->inputs; i++) {
        const struct mgpu_value *v = node->input[i];
        in[i] = v ? f->split[v->id] : mgpu_split_make(MGPU_SPLIT_REPLICATED, 0, 1);
        if (v && !f->known[v->id])
            return;
    }
    mgpu_follow_constants(node, in);
    if (node->outputs > MGPU_MAX_OUTPUTS || node->op->split(node, in, out, &which))
        return;
    for (int i = 0; i < node->outputs; i++)
        if (node->output[i]) {
            f->split[node->output[i]->id] = out[i];
            f->known[node->output[i]->id] = true;
        }
}

void mgpu_follow_init(struct mgpu_follow *f, const struct mgpu_graph *g)
{
    f->split = mgpu_xcalloc((size_t)g->value_count + 1, sizeof *f->split);
    f->known = mgpu_xcalloc((size_t)g->value_count + 1, sizeof *f->known);
    for (int i = 0; i < g->value_count; i++)
        if (g->values[i]->kind != MGPU_VALUE_RESULT)
            source(f, g->values[i]);
    for (int n = 0; n < g->node_count; n++) {
        struct mgpu_split *in = mgpu_xcalloc((size_t)g->nodes[n]->inputs + 1, sizeof *in);
        follow_node(f, g->nodes[n], in);
        free(in);
    }
}

void mgpu_follow_free(struct mgpu_follow *f)
{
    free(f->split);
    free(f->known);
}

bool mgpu_plan_follow(const struct mgpu_graph *g, const struct mgpu_value *value,
                      struct mgpu_split *out)
{
    struct mgpu_follow f;
    mgpu_follow_init(&f, g);
    bool known = f.known[value->id];
    *out = f.split[value->id];
    mgpu_follow_free(&f);
    return known;
}
