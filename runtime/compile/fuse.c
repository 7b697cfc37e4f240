/* Pointwise nodes computed inside the expressions that use them. */
#include "runtime/compile/fuse.h"

#include "runtime/compile/storage.h"
#include "runtime/ops/comm.h"
#include "runtime/ops/pointwise.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST_READERS = 8,
    NEAR = 8,            /* nodes between a value and its reader that memory is not counted for */
    PASS_OPERATIONS = 8, /* cheap operations that cost as much as one pass over memory */
    TYPE_TEXT = 48,
};

struct fusion {
    struct mgpu_graph *g;
    const struct mgpu_backend *backend;
    struct mgpu_readers *readers;
    bool *lasts;
    bool *changed; /* by value id: communication writes to its memory */
};

/* ---- What may be moved ----------------------------------------------------------------------- */

/* The value whose memory v is a view of. */
static const struct mgpu_value *memory_of(const struct mgpu_value *v)
{
    while (v->kind == MGPU_VALUE_RESULT && mgpu_is_view(v->producer))
        v = v->producer->input[0];
    return v;
}

bool *mgpu_communicated_values(const struct mgpu_graph *g)
{
    bool *changed = mgpu_xcalloc((size_t)g->value_count + 1, sizeof *changed);
    for (int n = 0; n < g->node_count; n++) {
        const struct mgpu_node *node = g->nodes[n];
        for (int i = 0; node->op == &mgpu_op_all_reduce && i < node->inputs; i++)
            changed[memory_of(node->input[i])->id] = true;
    }
    for (int i = 0; i < g->value_count; i++)
        changed[i] = changed[memory_of(g->values[i])->id];
    return changed;
}

static bool may_move(const struct fusion *f, const struct mgpu_node *node)
{
    for (int i = 0; i < node->inputs; i++)
        if (f->changed[node->input[i]->id])
            return false;
    return true;
}

/* Updates run for the last piece of a batch only, so they stay apart. */
static bool roles_fit(const struct mgpu_node *from, const struct mgpu_node *into)
{
    enum mgpu_role role = from->origin.role;
    return role == into->origin.role ||
           ((role == MGPU_FORWARD || role == MGPU_RECOMPUTE) && into->origin.role == MGPU_BACKWARD);
}

/* One number, or as many elements as what is made of it: computed no more often than before. */
static bool shapes_fit(const struct mgpu_node *from, const struct mgpu_node *into)
{
    int64_t count = mgpu_value_count(from->output[0]);
    return count == 1 || count == mgpu_value_count(into->output[0]);
}

/* ---- The fused node -------------------------------------------------------------------------- */

struct inputs {
    int count;
    struct mgpu_value *value[2 * MGPU_MAX_INPUTS];
};

static int add_input(struct inputs *in, struct mgpu_value *v)
{
    for (int i = 0; i < in->count; i++)
        if (in->value[i] == v)
            return i;
    in->value[in->count] = v;
    return in->count++;
}

static void join_types(struct mgpu_graph *g, const struct mgpu_node *from, struct mgpu_node *into)
{
    const char *a = from->origin.type, *b = into->origin.type;
    if (*a && strcmp(a, b) && strlen(a) + strlen(b) < TYPE_TEXT)
        into->origin.type = mgpu_arena_format(g->arena, "%s+%s", a, b);
}

/* `into` with what it reads of `from` computed inside, to *fused. False where that is too long or
 * takes too many inputs. */
static bool join(struct mgpu_graph *g, const struct mgpu_node *from, const struct mgpu_node *into,
                 struct mgpu_node *fused)
{
    struct inputs in = {0};
    struct mgpu_expr e;
    int map[MGPU_MAX_INPUTS];
    mgpu_expr_begin(&e, 0);
    for (int i = 0; i < from->inputs; i++)
        map[i] = mgpu_expr_input(&e, add_input(&in, from->input[i]), from->input[i]->type);
    int inner = mgpu_expr_append(&e, mgpu_expr_of(from), map);
    for (int i = 0; i < into->inputs; i++)
        map[i] = into->input[i] == from->output[0]
                     ? inner
                     : mgpu_expr_input(&e, add_input(&in, into->input[i]), into->input[i]->type);
    int result = mgpu_expr_append(&e, mgpu_expr_of(into), map);
    *fused = *into;
    if (in.count > MGPU_MAX_INPUTS || !mgpu_set_expr(g, fused, &e, result, in.count, in.value))
        return false;
    join_types(g, from, fused);
    return true;
}

/* A kernel that takes less would leave the whole to a slower one. */
static bool same_kernel(const struct fusion *f, const struct mgpu_node *from,
                        const struct mgpu_node *into, const struct mgpu_node *fused)
{
    const struct mgpu_kernel *kernel = mgpu_backend_kernel(f->backend, fused);
    return kernel == mgpu_backend_kernel(f->backend, into) &&
           kernel == mgpu_backend_kernel(f->backend, from);
}

/* ---- Whether it pays ------------------------------------------------------------------------- */

static int operation_cost(enum mgpu_expr_code code)
{
    if (mgpu_expr_arity(code) == 0 || code == MGPU_X_CAST || code == MGPU_X_STOP)
        return 0;
    if (code == MGPU_X_DIV || code == MGPU_X_RECIPROCAL || code == MGPU_X_SQRT)
        return 2;
    bool function = code >= MGPU_X_EXP && code <= MGPU_X_SOFTPLUS;
    return function || code == MGPU_X_POW || code == MGPU_X_MOD || code == MGPU_X_FMOD ? 8 : 1;
}

static int expr_cost(const struct mgpu_node *node)
{
    const struct mgpu_expr *e = mgpu_expr_of(node);
    int cost = 0;
    for (int k = 0; k < e->count; k++)
        cost += operation_cost(e->op[k].code);
    return cost;
}

/* Inputs as large as the output: passes over memory. */
static int passes(const struct mgpu_node *node)
{
    int n = 0;
    for (int i = 0; i < node->inputs; i++)
        n += mgpu_value_count(node->input[i]) == mgpu_value_count(node->output[0]);
    return n;
}

static bool saves_passes(const struct mgpu_node *from, struct mgpu_node *const *into,
                         const struct mgpu_node *fused, int count)
{
    int saved = passes(from) + 1;
    if (mgpu_value_count(from->output[0]) == 1)
        return true;
    for (int i = 0; i < count; i++)
        saved += passes(into[i]) - passes(&fused[i]);
    return saved >= 0 && (count - 1) * expr_cost(from) <= PASS_OPERATIONS * saved;
}

/* Without the value, its inputs live until its last reader: bytes that would not have. */
static int64_t longer_alive(const struct fusion *f, const struct mgpu_node *from, int until)
{
    int64_t bytes = 0;
    for (int i = 0; i < from->inputs; i++) {
        const struct mgpu_value *x = from->input[i];
        const struct mgpu_readers *r = &f->readers[x->id];
        bool alive = x->kind != MGPU_VALUE_RESULT || f->lasts[x->id];
        for (int k = 0; k < r->count; k++)
            alive = alive || r->node[k]->id >= until;
        bytes += alive ? 0 : mgpu_value_bytes(x);
    }
    return bytes;
}

static bool memory_fits(const struct fusion *f, const struct mgpu_node *from,
                        struct mgpu_node *const *into, int count)
{
    int until = from->id;
    for (int i = 0; i < count; i++)
        until = into[i]->id > until ? into[i]->id : until;
    return until - from->id <= NEAR ||
           longer_alive(f, from, until) <= mgpu_value_bytes(from->output[0]);
}

/* ---- One node -------------------------------------------------------------------------------- */

static void remove_reader(struct mgpu_readers *r, const struct mgpu_node *node)
{
    for (int i = 0; i < r->count; i++)
        if (r->node[i] == node)
            r->node[i--] = r->node[--r->count];
}

static void add_reader(struct mgpu_readers *r, struct mgpu_node *node)
{
    remove_reader(r, node);
    r->node = mgpu_grow(r->node, (size_t)r->count, sizeof *r->node);
    r->node[r->count++] = node;
}

static void replace(struct fusion *f, struct mgpu_node *node, const struct mgpu_node *by)
{
    for (int i = 0; i < node->inputs; i++)
        remove_reader(&f->readers[node->input[i]->id], node);
    *node = *by;
    for (int i = 0; i < node->inputs; i++)
        add_reader(&f->readers[node->input[i]->id], node);
}

static bool can_dissolve(const struct fusion *f, const struct mgpu_node *node)
{
    const struct mgpu_readers *r = &f->readers[node->output[0]->id];
    if (f->lasts[node->output[0]->id] || !r->count || r->count > MOST_READERS || !may_move(f, node))
        return false;
    for (int i = 0; i < r->count; i++)
        if (!mgpu_expr_of(r->node[i]) || !roles_fit(node, r->node[i]) ||
            !shapes_fit(node, r->node[i]))
            return false;
    return true;
}

/* Computes `node` inside all its readers, where that pays. */
static void dissolve(struct fusion *f, struct mgpu_node *node)
{
    struct mgpu_node fused[MOST_READERS], *into[MOST_READERS];
    if (!can_dissolve(f, node))
        return;
    int count = f->readers[node->output[0]->id].count;
    for (int i = 0; i < count; i++) {
        into[i] = f->readers[node->output[0]->id].node[i];
        if (!join(f->g, node, into[i], &fused[i]) || !same_kernel(f, node, into[i], &fused[i]))
            return;
    }
    if (!saves_passes(node, into, fused, count) || !memory_fits(f, node, into, count))
        return;
    for (int i = 0; i < count; i++)
        replace(f, into[i], &fused[i]);
    for (int i = 0; i < node->inputs; i++)
        remove_reader(&f->readers[node->input[i]->id], node);
}

static void fuse_all(struct mgpu_graph *g, const struct mgpu_backend *backend)
{
    struct fusion f = {.g = g,
                       .backend = backend,
                       .readers = mgpu_readers_of(g),
                       .lasts = mgpu_lasting_values(g),
                       .changed = mgpu_communicated_values(g)};
    for (int n = 0; n < g->node_count; n++)
        if (mgpu_expr_of(g->nodes[n]))
            dissolve(&f, g->nodes[n]);
    mgpu_readers_free(f.readers, g);
    free(f.lasts);
    free(f.changed);
}

void mgpu_fuse(struct mgpu_graph *g, const struct mgpu_backend *backend)
{
    mgpu_settle_expressions(g);
    mgpu_share_equal_nodes(g);
    mgpu_graph_prune(g);
    mgpu_read_outputs(g);
    fuse_all(g, backend);
    mgpu_graph_prune(g);
    mgpu_read_outputs(g); /* of expressions that came about since */
    mgpu_settle_expressions(g);
    mgpu_finish_norms(g, backend);
    mgpu_graph_prune(g);
}
