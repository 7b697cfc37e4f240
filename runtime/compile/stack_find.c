/* Which nodes can be stacked: level by level from the nodes that share weights. */
#include "runtime/compile/stack.h"

#include "runtime/base/names.h"
#include "runtime/compile/fuse.h"

#include <stdlib.h>
#include <string.h>

/* What one ONNX node became, as far as samples arrive there. */
struct key {
    const char *output;
    int count;
    int *node;
    int weight;      /* a parameter that other keys use too, -1: none */
    bool behind;     /* of a shared weight: it, or what takes what it makes */
    int level;       /* longest way from the first such */
    struct set *set; /* that it is stacked in, NULL: none */
    int member;
};

/* Sets of a level with the same weight, or that take parts of the same set. */
struct bucket {
    int level;
    struct set *last;
};

/* Keys that can be one call. */
struct set {
    const struct set *from; /* whose parts they take; NULL: where towers start */
    int count;
    struct key **key;
    struct set *before, *older; /* in the bucket; of all */
    struct bucket users;
};

struct find {
    struct mgpu_graph *g;
    struct mgpu_stack_view view;
    struct mgpu_arena *arena;
    int keys;
    struct key *key;
    struct key **maker;    /* by value id; NULL: no node */
    struct bucket *weight; /* by parameter */
    struct set *newest;
};

/* ---- Keys ------------------------------------------------------------------------------------ */

static void list_keys(struct find *f)
{
    const struct mgpu_graph *g = f->g;
    struct mgpu_names *known = mgpu_names_new(f->arena);
    f->key = MGPU_NEW_ARRAY(f->arena, struct key, g->node_count);
    for (int n = 0; n < g->node_count; n++) {
        const char *output = g->nodes[n]->origin.output;
        struct key *key = mgpu_names_get(known, output);
        if (!mgpu_stack_concerns(&f->view, g->nodes[n]))
            continue;
        if (!key) {
            key = &f->key[f->keys++];
            *key = (struct key){.output = output, .weight = -1};
            mgpu_names_set(known, output, key);
        }
        key->count++;
    }
    for (int n = 0; n < g->node_count; n++) {
        const struct mgpu_node *node = g->nodes[n];
        if (!mgpu_stack_concerns(&f->view, node))
            continue;
        struct key *key = mgpu_names_get(known, node->origin.output);
        if (!key->node) {
            key->node = MGPU_NEW_ARRAY(f->arena, int, key->count);
            key->count = 0;
        }
        key->node[key->count++] = n;
        for (int i = 0; i < node->outputs; i++)
            if (node->output[i])
                f->maker[node->output[i]->id] = key;
    }
}

static bool is_weight(const struct find *f, const struct mgpu_value *v)
{
    if (!v || v->kind != MGPU_VALUE_PARAMETER)
        return false;
    enum mgpu_parameter_role role = f->g->parameters[v->index].role;
    return role == MGPU_WEIGHT || role == MGPU_FROZEN;
}

/* weight: the first of a key's that others use as well. */
static void find_shared(struct find *f)
{
    const struct mgpu_graph *g = f->g;
    int *users = MGPU_NEW_ARRAY(f->arena, int, g->parameter_count + 1);
    const struct key **user = MGPU_NEW_ARRAY(f->arena, const struct key *, g->parameter_count + 1);
    for (int round = 0; round < 2; round++)
        for (struct key *key = f->key; key < f->key + f->keys; key++)
            for (int n = 0; n < key->count; n++)
                for (int i = 0; i < g->nodes[key->node[n]]->inputs; i++) {
                    const struct mgpu_value *v = g->nodes[key->node[n]]->input[i];
                    if (!is_weight(f, v))
                        continue;
                    if (round == 1 && users[v->index] > 1 && key->weight < 0)
                        key->weight = v->index;
                    if (round == 0 && user[v->index] != key) {
                        user[v->index] = key;
                        users[v->index]++;
                    }
                }
}

static void find_levels(struct find *f)
{
    for (struct key *key = f->key; key < f->key + f->keys; key++) {
        key->behind = key->weight >= 0;
        for (int n = 0; n < key->count; n++) {
            const struct mgpu_node *node = f->g->nodes[key->node[n]];
            for (int i = 0; i < node->inputs; i++) {
                const struct mgpu_value *v = node->input[i];
                const struct key *from = v ? f->maker[v->id] : NULL;
                if (!mgpu_stack_has_samples(&f->view, v) || !from || from == key || !from->behind)
                    continue;
                key->behind = true;
                key->level = from->level >= key->level ? from->level + 1 : key->level;
            }
        }
    }
}

/* ---- Sets ------------------------------------------------------------------------------------ */

static bool alike(const struct find *f, const struct key *a, const struct key *b)
{
    for (int n = 0; a->count == b->count && n < a->count; n++)
        if (mgpu_stack_refuses(&f->view, f->g->nodes[a->node[n]], f->g->nodes[b->node[n]]))
            return false;
    return a->count == b->count;
}

/* The set whose parts a key takes, and which of them; NULL: it takes other samples too (its own
 * random numbers are none). */
static struct set *source_of(const struct find *f, const struct key *key, int *member)
{
    struct set *from = NULL;
    for (int n = 0; n < key->count; n++) {
        const struct mgpu_node *node = f->g->nodes[key->node[n]];
        for (int i = 0; i < node->inputs; i++) {
            const struct mgpu_value *v = node->input[i];
            const struct key *maker = v ? f->maker[v->id] : NULL;
            bool made_up = v && !maker && v->kind != MGPU_VALUE_INPUT;
            if (!v || maker == key || made_up || !mgpu_stack_has_samples(&f->view, v))
                continue;
            if (!maker || !maker->set || (from && maker->member != *member) ||
                (from && maker->set->count != from->count))
                return NULL;
            from = maker->set;
            *member = maker->member;
        }
    }
    return from;
}

static void add_to_bucket(struct find *f, struct key *key, struct bucket *b, const struct set *from)
{
    if (b->level != key->level)
        *b = (struct bucket){.level = key->level};
    struct set *s = b->last;
    while (s && !alike(f, s->key[0], key))
        s = s->before;
    if (!s) {
        s = MGPU_NEW(f->arena, struct set);
        *s = (struct set){.from = from, .before = b->last, .older = f->newest, .users.level = -1};
        b->last = f->newest = s;
    }
    s->key = mgpu_grow(s->key, (size_t)s->count, sizeof(struct key *));
    s->key[s->count++] = key;
}

static void add_key(struct find *f, struct key *key)
{
    struct set *from = source_of(f, key, &key->member);
    if (key->weight >= 0)
        add_to_bucket(f, key, &f->weight[key->weight], NULL);
    else if (from)
        add_to_bucket(f, key, &from->users, from);
}

static int by_member(const void *a, const void *b)
{
    const struct key *const *x = a, *const *y = b;
    return (*x)->member != (*y)->member ? (*x)->member - (*y)->member : *x < *y ? -1 : *x > *y;
}

/* Towers keep their order from the first node to the last. */
static void settle_set(struct mgpu_plan *plan, struct set *s)
{
    bool whole = s->count > 1 && (!s->from || s->count == s->from->count);
    qsort(s->key, (size_t)s->count, sizeof *s->key, by_member);
    for (int i = 1; s->from && whole && i < s->count; i++)
        whole = s->key[i]->member != s->key[i - 1]->member;
    if (!whole)
        return;
    const char **output = mgpu_xcalloc((size_t)s->count, sizeof *output);
    for (int i = 0; i < s->count; i++) {
        output[i] = s->key[i]->output;
        s->key[i]->set = s;
        s->key[i]->member = i;
    }
    mgpu_plan_rewrite(plan, MGPU_REWRITE_STACK, s->count, output);
    free(output);
}

static int by_level(const void *a, const void *b)
{
    const struct key *const *x = a, *const *y = b;
    return (*x)->level != (*y)->level ? (*x)->level - (*y)->level : *x < *y ? -1 : *x > *y;
}

static void find_sets(struct find *f, struct mgpu_plan *plan)
{
    struct key **sorted = MGPU_NEW_ARRAY(f->arena, struct key *, f->keys + 1);
    int count = 0;
    for (struct key *key = f->key; key < f->key + f->keys; key++)
        if (key->behind)
            sorted[count++] = key;
    qsort(sorted, (size_t)count, sizeof *sorted, by_level);
    for (int i = 0; i < count; i++) {
        const struct set *settled = f->newest;
        int level = sorted[i]->level;
        for (; i < count && sorted[i]->level == level; i++)
            add_key(f, sorted[i]);
        i--;
        for (struct set *s = f->newest; s != settled; s = s->older)
            settle_set(plan, s);
    }
    for (struct set *s = f->newest; s; s = s->older)
        free(s->key);
}

void mgpu_stack_towers(struct mgpu_plan *plan, struct mgpu_graph *g)
{
    struct find f = {.g = g, .arena = mgpu_arena_new()};
    mgpu_share_equal_nodes(g);
    mgpu_stack_view_init(&f.view, g);
    f.maker = MGPU_NEW_ARRAY(f.arena, struct key *, g->value_count + 1);
    f.weight = MGPU_NEW_ARRAY(f.arena, struct bucket, g->parameter_count + 1);
    for (int i = 0; i < g->parameter_count; i++)
        f.weight[i].level = -1;
    list_keys(&f);
    find_shared(&f);
    find_levels(&f);
    find_sets(&f, plan);
    mgpu_stack_view_free(&f.view);
    mgpu_arena_free(f.arena);
}
