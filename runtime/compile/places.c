#include "runtime/compile/places.h"

#include <stdlib.h>
#include <string.h>

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
    if (node->origin.role != MGPU_UPDATE) {
        const struct mgpu_placement *named = mgpu_names_get(p->placement, node->origin.output);
        return named ? named->place : 0;
    }
    const struct mgpu_parameter *w = updated(p->g, node);
    return w ? p->owner[w->value->index] : 0;
}

/* What changes has one owner; what stays the same may be everywhere. */
static bool is_owned(const struct mgpu_parameter *q)
{
    return q->role == MGPU_WEIGHT || q->role == MGPU_STATE || q->next;
}

/* owner[] is -1 before: where a parameter is used first. */
static void own_by_first_user(struct mgpu_places *p)
{
    for (int n = 0; n < p->g->node_count; n++) {
        const struct mgpu_node *node = p->g->nodes[n];
        for (int i = 0; i < node->inputs && node->origin.role != MGPU_UPDATE; i++) {
            const struct mgpu_value *v = node->input[i];
            if (v && v->kind == MGPU_VALUE_PARAMETER && p->owner[v->index] < 0)
                p->owner[v->index] = mgpu_place_of(p, node);
        }
    }
}

/* Optimizer state is where its weight is. */
static void own_states(struct mgpu_places *p)
{
    for (int n = 0; n < p->g->node_count; n++) {
        const struct mgpu_node *node = p->g->nodes[n];
        const struct mgpu_parameter *w = updated(p->g, node);
        for (int i = 0; w && i < node->inputs; i++) {
            const struct mgpu_value *v = node->input[i];
            if (v && v->kind == MGPU_VALUE_PARAMETER &&
                p->g->parameters[v->index].role == MGPU_STATE && p->owner[v->index] < 0)
                p->owner[v->index] = p->owner[w->value->index];
        }
    }
}

static void settle_owners(struct mgpu_places *p)
{
    const struct mgpu_graph *g = p->g;
    struct mgpu_names *named = mgpu_names_new(p->arena);
    for (int i = p->plan->owners - 1; i >= 0; i--)
        mgpu_names_set(named, p->plan->owner[i].parameter, &p->plan->owner[i]);
    own_by_first_user(p);
    for (int i = 0; i < g->parameter_count; i++) {
        const struct mgpu_parameter *q = &g->parameters[i];
        const struct mgpu_owner *owner = mgpu_names_get(named, q->name);
        if (q->role == MGPU_STATE || !is_owned(q))
            p->owner[i] = -1;
        else if (owner && q->role == MGPU_WEIGHT)
            p->owner[i] = owner->place;
        else if (p->owner[i] < 0)
            p->owner[i] = 0;
    }
    own_states(p);
    for (int i = 0; i < g->parameter_count; i++)
        if (g->parameters[i].role == MGPU_STATE && p->owner[i] < 0)
            p->owner[i] = 0;
}

void mgpu_places_init(struct mgpu_places *p, const struct mgpu_graph *g,
                      const struct mgpu_plan *plan)
{
    *p = (struct mgpu_places){.plan = plan, .g = g, .arena = mgpu_arena_new()};
    p->placement = mgpu_names_new(p->arena);
    p->owner = MGPU_NEW_ARRAY(p->arena, int, g->parameter_count);
    if (plan->places == 1)
        return;
    for (int i = plan->placements - 1; i >= 0; i--)
        mgpu_names_set(p->placement, plan->placement[i].output, &plan->placement[i]);
    for (int i = 0; i < g->parameter_count; i++)
        p->owner[i] = -1;
    settle_owners(p);
}

void mgpu_places_free(struct mgpu_places *p)
{
    mgpu_arena_free(p->arena);
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
