#include "runtime/compile/store.h"

#include "runtime/base/names.h"
#include "runtime/base/status.h"
#include "runtime/ops/update.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64 /* bytes */ };

struct mgpu_store_layout *mgpu_store_layout_new(void)
{
    struct mgpu_store_layout *layout = mgpu_xcalloc(1, sizeof *layout);
    layout->arena = mgpu_arena_new();
    layout->place = mgpu_names_new(layout->arena);
    return layout;
}

void mgpu_store_layout_free(struct mgpu_store_layout *layout)
{
    if (!layout)
        return;
    mgpu_arena_free(layout->arena);
    free(layout->entry);
    free(layout);
}

const struct mgpu_stored *mgpu_store_find(const struct mgpu_store_layout *layout, const char *name)
{
    const int *place = mgpu_names_get(layout->place, name);
    return place ? &layout->entry[*place] : NULL;
}

static enum mgpu_buffer buffer_of(enum mgpu_parameter_role role)
{
    return role == MGPU_WEIGHT  ? MGPU_BUFFER_WEIGHTS
           : role == MGPU_STATE ? MGPU_BUFFER_STATES
                                : MGPU_BUFFER_FIXED;
}

static int check_same(const struct mgpu_stored *e, const struct mgpu_parameter *p)
{
    int64_t dims[MGPU_MAX_RANK];
    mgpu_value_dims(p->value, dims);
    if (e->type != p->value->type || e->rank != p->value->rank ||
        buffer_of(e->role) != buffer_of(p->role) ||
        memcmp(e->dims, dims, sizeof *dims * (size_t)e->rank))
        return mgpu_fail(MGPU_EINTERNAL, "'%s' is stored with another shape or role", p->name);
    return 0;
}

static void add(struct mgpu_store_layout *layout, const struct mgpu_parameter *p)
{
    struct mgpu_stored e = {.name = mgpu_arena_string(layout->arena, p->name),
                            .role = p->role,
                            .type = p->value->type,
                            .rank = p->value->rank,
                            .buffer = buffer_of(p->role)};
    mgpu_value_dims(p->value, e.dims);
    e.bytes = mgpu_value_bytes(p->value);
    e.offset = layout->bytes[e.buffer];
    int64_t align = layout->align * (int64_t)mgpu_dtype_size(e.type);
    align = align > ALIGN ? align : ALIGN;
    layout->bytes[e.buffer] += (e.bytes + align - 1) / align * align;
    layout->entry = mgpu_grow(layout->entry, (size_t)layout->count, sizeof *layout->entry);
    int *place = mgpu_arena_copy(layout->arena, &layout->count, sizeof *place);
    mgpu_names_set(layout->place, e.name, place);
    layout->entry[layout->count++] = e;
}

/* Whether this rank's graph needs the parameter: other places' are not stored here. */
static bool *used_parameters(const struct mgpu_graph *g)
{
    bool *used = mgpu_xcalloc((size_t)g->parameter_count, sizeof *used);
    for (int i = 0; i < g->parameter_count; i++)
        used[i] = g->parameters[i].next || g->parameters[i].gradient;
    for (int n = 0; n < g->node_count; n++)
        for (int i = 0; i < g->nodes[n]->inputs; i++) {
            const struct mgpu_value *v = g->nodes[n]->input[i];
            if (v && v->kind == MGPU_VALUE_PARAMETER)
                used[v->index] = true;
        }
    for (int i = 0; i < g->output_count; i++)
        if (g->outputs[i]->kind == MGPU_VALUE_PARAMETER)
            used[g->outputs[i]->index] = true;
    for (int i = 0; i < g->parameter_count; i++) /* a rounded one is made of its weight */
        if (used[i] && g->parameters[i].rounds)
            used[g->parameters[i].rounds->index] = true;
    return used;
}

/* When the gradient of `p` is complete: the position of the node that gives it. */
static int completion(const struct mgpu_parameter *p)
{
    return p->gradient && p->gradient->producer ? p->gradient->producer->id : -1;
}

struct due {
    int state, completion, index; /* state: 0: none, else the how manieth of its weight */
};

/* A weight's states stand in the order of the weights, each kind by itself, and so do rounded
 * weights: what an optimizer does to neighbours is the same at the same distances in all of these
 * arrays. */
static struct due *dues(const struct mgpu_graph *g)
{
    enum { FIRST_STATE = 5, BEHIND_STATES = MGPU_UPDATE_FACTOR };
    struct due *due = mgpu_xcalloc((size_t)g->parameter_count + 1, sizeof *due);
    for (int i = 0; i < g->parameter_count; i++)
        due[i] = (struct due){0, completion(&g->parameters[i]), i};
    for (int n = 0; n < g->node_count; n++) {
        const struct mgpu_node *node = g->nodes[n];
        for (int i = FIRST_STATE; node->op == &mgpu_op_update && i < node->inputs; i++) {
            const struct mgpu_value *w = node->input[0], *state = node->input[i];
            if (w->kind == MGPU_VALUE_PARAMETER && state && state->kind == MGPU_VALUE_PARAMETER)
                due[state->index] = (struct due){i, due[w->index].completion, state->index};
        }
    }
    for (int i = 0; i < g->parameter_count; i++) {
        const struct mgpu_value *weight = g->parameters[i].rounds;
        if (weight)
            due[i] = (struct due){BEHIND_STATES, due[weight->index].completion, i};
    }
    return due;
}

static int by_place(const void *a, const void *b)
{
    const struct due *x = a, *y = b;
    return x->state != y->state             ? x->state - y->state
           : x->completion != y->completion ? x->completion - y->completion
                                            : x->index - y->index;
}

int mgpu_store_add(struct mgpu_store_layout *layout, const struct mgpu_graph *g)
{
    enum { HALF_ALIGN = 32 }; /* ALIGN bytes of a half type */
    struct due *due = dues(g);
    for (int i = 0; i < g->parameter_count; i++)
        if (g->parameters[i].role == MGPU_ROUNDED)
            layout->align = HALF_ALIGN;
    bool *used = used_parameters(g);
    int rc = 0, count = 0;
    for (int i = 0; i < g->parameter_count && rc == 0; i++) {
        const struct mgpu_stored *e = mgpu_store_find(layout, g->parameters[i].name);
        if (e)
            rc = check_same(e, &g->parameters[i]);
        else if (used[i])
            due[count++] = due[i];
    }
    qsort(due, (size_t)count, sizeof *due, by_place);
    for (int i = 0; i < count && rc == 0; i++)
        add(layout, &g->parameters[due[i].index]);
    free(used);
    free(due);
    return rc;
}
