#include "runtime/compile/places.h"

#include <stdlib.h>
#include <string.h>

static int by_origin(const struct mgpu_plan *plan, const char *output)
{
    for (int i = 0; i < plan->placements; i++)
        if (!strcmp(plan->placement[i].output, output))
            return plan->placement[i].place;
    return 0;
}

static const struct mgpu_parameter *updated(const struct mgpu_graph *g,
                                            const struct mgpu_node *node)
{
    for (int i = 0; i < node->inputs; i++)
        if (node->input[i] && node->input[i]->kind == MGPU_VALUE_PARAMETER &&
            g->parameters[node->input[i]->index].role == MGPU_WEIGHT)
            return &g->parameters[node->input[i]->index];
    return NULL;
}

int mgpu_place_of(const struct mgpu_places *p, const struct mgpu_node *node)
{
    if (p->plan->places == 1)
        return 0;
    if (node->origin.role != MGPU_UPDATE)
        return by_origin(p->plan, node->origin.output);
    const struct mgpu_parameter *w = updated(p->g, node);
    return w ? p->owner[w->value->index] : 0;
}

static int named_owner(const struct mgpu_plan *plan, const char *name)
{
    for (int i = 0; i < plan->owners; i++)
        if (!strcmp(plan->owner[i].parameter, name))
            return plan->owner[i].place;
    return -1;
}

/* What changes has one owner; what stays the same may be everywhere. */
static bool is_owned(const struct mgpu_parameter *q)
{
    return q->role == MGPU_WEIGHT || q->role == MGPU_STATE || q->next;
}

static int first_user(const struct mgpu_places *p, const struct mgpu_value *v)
{
    for (int n = 0; n < p->g->node_count; n++) {
        const struct mgpu_node *node = p->g->nodes[n];
        for (int i = 0; i < node->inputs && node->origin.role != MGPU_UPDATE; i++)
            if (node->input[i] == v)
                return mgpu_place_of(p, node);
    }
    return 0;
}

/* Optimizer state is where its weight is. */
static int owner_of_state(const struct mgpu_places *p, const struct mgpu_value *v)
{
    for (int n = 0; n < p->g->node_count; n++) {
        const struct mgpu_node *node = p->g->nodes[n];
        for (int i = 0; i < node->inputs; i++)
            if (node->input[i] == v && updated(p->g, node))
                return p->owner[updated(p->g, node)->value->index];
    }
    return 0;
}

void mgpu_places_init(struct mgpu_places *p, const struct mgpu_graph *g,
                      const struct mgpu_plan *plan)
{
    *p = (struct mgpu_places){.plan = plan, .g = g};
    p->owner = mgpu_xcalloc((size_t)g->parameter_count, sizeof *p->owner);
    for (int i = 0; i < g->parameter_count && plan->places > 1; i++) {
        const struct mgpu_parameter *q = &g->parameters[i];
        int named = named_owner(plan, q->name);
        if (q->role != MGPU_STATE)
            p->owner[i] = named >= 0 && q->role == MGPU_WEIGHT ? named
                          : is_owned(q)                        ? first_user(p, q->value)
                                                               : -1;
    }
    for (int i = 0; i < g->parameter_count && plan->places > 1; i++)
        if (g->parameters[i].role == MGPU_STATE)
            p->owner[i] = owner_of_state(p, g->parameters[i].value);
}

void mgpu_places_free(struct mgpu_places *p)
{
    free(p->owner);
}

uint64_t *mgpu_places_users(const struct mgpu_places *p)
{
    const struct mgpu_graph *g = p->g;
    uint64_t *users = mgpu_xcalloc((size_t)g->value_count, sizeof *users);
    for (int n = 0; n < g->node_count; n++) {
        uint64_t place = UINT64_C(1) << mgpu_place_of(p, g->nodes[n]);
        for (int i = 0; i < g->nodes[n]->inputs; i++)
            if (g->nodes[n]->input[i])
                users[g->nodes[n]->input[i]->id] |= place;
    }
    for (int i = 0; i < g->parameter_count; i++)
        if (g->parameters[i].gradient && p->owner[i] >= 0)
            users[g->parameters[i].gradient->id] |= UINT64_C(1) << p->owner[i];
    return users;
}
