/* Updates where gradients are, for a step in which nothing but its update takes a gradient: each
 * stands right behind the last node that reads the weight or makes the gradient, which lives in the
 * arena and no longer than that. Neighbours in the list of updates keep their order.
 *
 * Where gradients, or their factors, come by communication an update would wait for it there. It
 * stands before the next gradients that are communicated, so that these are computed meanwhile.
 * What is over all replicas starts when all that reads its weights stands before it: behind it
 * replicas may change them for one another (share.c). Communication keeps its order.
 */
#include "runtime/compile/early.h"

#include "runtime/compile/fuse.h"
#include "runtime/compile/storage.h"
#include "runtime/ops/comm.h"
#include "runtime/ops/gather.h"
#include "runtime/ops/matmul.h"
#include "runtime/ops/pointwise.h"
#include "runtime/ops/update.h"

#include <stdlib.h>

/* Behind a node that stays stand, in this order: updates that wait for what was communicated
 * before, the communication of gradients, updates that take what is there by then. */
enum { BEFORE = 1, COMMUNICATION, BEHIND, PLACES };

struct early {
    struct mgpu_graph *g;
    int *read; /* by parameter: the last node that reads it, but for updates; -1: none */
    int *due;  /* by node: of communication that gives gradients, the node that it stands behind;
                * -1: others */
};

struct place {
    int64_t at;
    struct mgpu_node *node;
};

static bool communicates(const struct mgpu_node *node)
{
    return node->op->flags & MGPU_OP_COMMUNICATION;
}

static int later(int a, int b)
{
    return a > b ? a : b;
}

static int last_reader(const struct early *e, const struct mgpu_node *update)
{
    const struct mgpu_value *w = update->input[MGPU_UPDATE_WEIGHT];
    return w->kind == MGPU_VALUE_PARAMETER ? e->read[w->index] : -1;
}

static void find_readers(struct early *e)
{
    for (int i = 0; i < e->g->parameter_count; i++)
        e->read[i] = -1;
    for (int n = 0; n < e->g->node_count; n++) {
        const struct mgpu_node *node = e->g->nodes[n];
        for (int i = 0; i < node->inputs && !mgpu_is_update(node); i++) {
            const struct mgpu_value *v = node->input[i] ? mgpu_root_value(node->input[i]) : NULL;
            if (v && v->kind == MGPU_VALUE_PARAMETER)
                e->read[v->index] = n;
        }
    }
}

/* What gives input i, where that is communication. */
static const struct mgpu_node *communication_at(const struct mgpu_node *update, int i)
{
    const struct mgpu_value *v = i < update->inputs ? update->input[i] : NULL;
    return v && v->kind == MGPU_VALUE_RESULT && communicates(v->producer) ? v->producer : NULL;
}

/* What gives the gradient, or the last of its factors, where that is communication. */
static const struct mgpu_node *communication_of(const struct mgpu_node *update)
{
    const struct mgpu_node *a = communication_at(update, MGPU_UPDATE_GRADIENT);
    const struct mgpu_node *b = communication_at(update, MGPU_UPDATE_FACTOR);
    return !a || (b && b->id > a->id) ? b : a;
}

static void set_due(struct early *e, const struct mgpu_node *by, const struct mgpu_node *update)
{
    if (!by)
        return;
    e->due[by->id] = later(e->due[by->id], by->id);
    if (by->op != &mgpu_op_recv)
        e->due[by->id] = later(e->due[by->id], last_reader(e, update));
}

/* What is over all replicas moves behind the readers of its weights, but not past other
 * communication. */
static void find_communication(struct early *e)
{
    const struct mgpu_graph *g = e->g;
    int next = g->node_count;
    for (int n = 0; n < g->node_count; n++)
        e->due[n] = -1;
    for (int n = 0; n < g->node_count; n++) {
        const struct mgpu_node *node = g->nodes[n];
        if (!mgpu_is_update(node))
            continue;
        set_due(e, communication_at(node, MGPU_UPDATE_GRADIENT), node);
        set_due(e, communication_at(node, MGPU_UPDATE_FACTOR), node);
    }
    for (int n = g->node_count - 1; n >= 0; n--) {
        if (e->due[n] >= next)
            e->due[n] = next - 1;
        if (communicates(g->nodes[n]))
            next = n;
    }
}

static int64_t place_of(const struct early *e, const struct mgpu_node *node)
{
    const struct mgpu_node *by = mgpu_is_update(node) ? communication_of(node) : NULL;
    if (!mgpu_is_update(node))
        return e->due[node->id] < 0 ? (int64_t)node->id * PLACES
                                    : (int64_t)e->due[node->id] * PLACES + COMMUNICATION;
    int behind = last_reader(e, node);
    for (int i = 0; i < node->inputs; i++)
        if (node->input[i] && node->input[i]->kind == MGPU_VALUE_RESULT)
            behind = later(behind, node->input[i]->producer->id);
    int64_t at = (int64_t)behind * PLACES + BEHIND;
    if (!by)
        return at;
    int next = by->id + 1;
    while (next < e->g->node_count && e->due[next] <= e->due[by->id])
        next++;
    int64_t wait = next < e->g->node_count ? (int64_t)e->due[next] * PLACES + BEFORE
                                           : (int64_t)e->g->node_count * PLACES;
    return at > wait ? at : wait;
}

static int by_place(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    return x->at != y->at ? (x->at < y->at ? -1 : 1) : x->node->id - y->node->id;
}

static void order(const struct early *e)
{
    struct mgpu_graph *g = e->g;
    struct place *place = mgpu_xcalloc((size_t)g->node_count + 1, sizeof *place);
    for (int n = 0; n < g->node_count; n++)
        place[n] = (struct place){place_of(e, g->nodes[n]), g->nodes[n]};
    qsort(place, (size_t)g->node_count, sizeof *place, by_place);
    for (int n = 0; n < g->node_count; n++) {
        g->nodes[n] = place[n].node;
        g->nodes[n]->id = n;
    }
    free(place);
}

void mgpu_update_early(struct mgpu_graph *g)
{
    struct early e = {.g = g,
                      .read = mgpu_xcalloc((size_t)g->parameter_count + 1, sizeof *e.read),
                      .due = mgpu_xcalloc((size_t)g->node_count + 1, sizeof *e.due)};
    find_readers(&e);
    find_communication(&e);
    order(&e);
    for (int i = 0; i < g->parameter_count; i++)
        g->parameters[i].gradient = NULL;
    free(e.read);
    free(e.due);
}

/* ---- Large gradients ------------------------------------------------------------------------- */

/* The gradient of a dense layer of few samples, so much larger than its factors and as large as
 * this (bytes), is not worth being stored: to compute it takes no longer than to write it. Several
 * replicas have the factors of all of them, and not a sum of gradients.
 *
 * Of more samples the gradient of a large table is not stored either where its factors are smaller
 * and the backend has a kernel that updates by pieces of a product. That of an embedding that is
 * the last layer, too, has rows added to it, which come at the end of backward. Smaller gradients
 * are gone before the most is alive, and their updates by pieces no faster. */
enum { FEW = 16, TIMES = 16, LEAST = 1 << 20, LEAST_OF_MANY = 1 << 25 };

int64_t mgpu_rows_in_all(const struct mgpu_graph *g, struct mgpu_dim rows)
{
    bool samples = g->step_samples && !rows.opaque && rows.power[MGPU_BATCH] == 1;
    return samples ? rows.value / g->batch * g->step_samples : rows.value;
}

/* What gives g, where that is `op` and nothing else reads g. */
static const struct mgpu_node *only_of(const struct mgpu_value *g, const struct mgpu_op *op,
                                       const struct mgpu_readers *readers)
{
    bool only = g->kind == MGPU_VALUE_RESULT && readers[g->id].count == 1;
    return only && g->producer->op == op ? g->producer : NULL;
}

/* The product a^T b that g is, of one matrix each. */
static const struct mgpu_node *product_of(const struct mgpu_value *g,
                                          const struct mgpu_readers *readers)
{
    const struct mgpu_node *node = only_of(g, &mgpu_op_matmul, readers);
    if (!node || node->inputs != 2 || g->rank != 2)
        return NULL;
    const struct mgpu_matmul_attrs *attrs = node->attrs;
    const struct mgpu_value *a = node->input[0], *b = node->input[1];
    bool plain = attrs->transpose_a && !attrs->transpose_b && !attrs->relu && a->type == g->type &&
                 b->type == g->type;
    return plain ? node : NULL;
}

static int64_t factors_of(const struct mgpu_node *product, int64_t rows)
{
    return rows * (product->input[0]->dims[1].value + product->input[1]->dims[1].value);
}

/* The product that is the update's gradient, of few samples; NULL: it is not, or small. */
static const struct mgpu_node *large_product(const struct mgpu_graph *graph,
                                             const struct mgpu_node *update,
                                             const struct mgpu_readers *readers)
{
    const struct mgpu_value *g = update->input[MGPU_UPDATE_GRADIENT];
    const struct mgpu_node *node = mgpu_update_is_pointwise(update) ? product_of(g, readers) : NULL;
    if (!node)
        return NULL;
    int64_t rows = mgpu_rows_in_all(graph, node->input[0]->dims[0]);
    bool large = rows <= FEW && mgpu_value_bytes(g) >= LEAST &&
                 mgpu_value_count(g) / TIMES > factors_of(node, rows);
    return large ? node : NULL;
}

bool *mgpu_find_products(const struct mgpu_graph *g)
{
    bool *found = mgpu_xcalloc((size_t)g->parameter_count + 1, sizeof *found);
    struct mgpu_readers *readers = mgpu_readers_of(g);
    for (int n = 0; n < g->node_count && g->updates_early; n++) {
        const struct mgpu_node *node = g->nodes[n];
        int w = mgpu_is_update(node) ? node->input[MGPU_UPDATE_WEIGHT]->index : 0;
        if (node->op == &mgpu_op_update && large_product(g, node, readers) &&
            node->input[MGPU_UPDATE_GRADIENT] == g->parameters[w].gradient)
            found[w] = true;
    }
    mgpu_readers_free(readers, g);
    return found;
}

/* `rows`: the gather_grad whose output is added to the product; NULL: none. */
static void take_product(struct mgpu_graph *g, struct mgpu_node *update,
                         const struct mgpu_node *product, const struct mgpu_node *rows)
{
    int count = rows ? MGPU_UPDATE_INDICES + 1 : MGPU_UPDATE_FACTOR + 1;
    struct mgpu_value **input = MGPU_NEW_ARRAY(g->arena, struct mgpu_value *, count);
    for (int i = 0; i < update->inputs; i++)
        input[i] = update->input[i];
    input[MGPU_UPDATE_GRADIENT] = product->input[0];
    input[MGPU_UPDATE_FACTOR] = product->input[1];
    if (rows) {
        input[MGPU_UPDATE_ROWS] = rows->input[0];
        input[MGPU_UPDATE_INDICES] = rows->input[1];
    }
    update->op = &mgpu_op_product_update;
    update->inputs = count;
    update->input = input;
    g->parameters[update->input[MGPU_UPDATE_WEIGHT]->index].gradient = NULL;
}

/* Whether the backend has a kernel of its own for the update by that product. */
static bool is_fast(const struct mgpu_backend *backend, const struct mgpu_node *update)
{
    return mgpu_backend_kernel(backend, update) != mgpu_backend_kernel(&mgpu_backend_ref, update);
}

/* Whether v is the sum of two values; which. */
static bool is_sum(const struct mgpu_value *v, struct mgpu_value *const **terms,
                   const struct mgpu_readers *readers)
{
    const struct mgpu_node *node = only_of(v, &mgpu_op_pointwise, readers);
    const struct mgpu_expr *e = node ? mgpu_expr_of(node) : NULL;
    if (!e || node->inputs != 2 || e->count != 3 || e->op[2].code != MGPU_X_ADD ||
        e->op[0].code != MGPU_X_INPUT || e->op[1].code != MGPU_X_INPUT)
        return false;
    *terms = node->input;
    return true;
}

static const struct mgpu_node *added_rows(const struct mgpu_value *v,
                                          const struct mgpu_readers *readers)
{
    const struct mgpu_node *node = only_of(v, &mgpu_op_gather_grad, readers);
    const struct mgpu_gather_grad_attrs *attrs = node ? node->attrs : NULL;
    return attrs && attrs->axis == 0 && attrs->rank == 2 ? node : NULL;
}

/* The product of many samples that is the update's gradient, but for the rows that are added to
 * it; several replicas sum theirs. */
static void take_many(struct mgpu_graph *g, struct mgpu_node *update,
                      const struct mgpu_backend *backend, const struct mgpu_readers *readers)
{
    struct mgpu_value *v = update->input[MGPU_UPDATE_GRADIENT], *const *terms = &v;
    struct mgpu_node before = *update;
    const struct mgpu_node *product, *rows = NULL;
    for (int i = 0; i < 2 && is_sum(v, &terms, readers) && !rows; i++) {
        v = terms[i];
        rows = added_rows(terms[1 - i], readers);
    }
    product = product_of(v, readers);
    if (g->step_samples > g->batch || !product || !mgpu_update_is_pointwise(update) ||
        mgpu_value_bytes(v) < LEAST_OF_MANY ||
        factors_of(product, product->input[0]->dims[0].value) > mgpu_value_count(v))
        return;
    struct mgpu_value *gradient = g->parameters[update->input[MGPU_UPDATE_WEIGHT]->index].gradient;
    take_product(g, update, product, rows);
    if (is_fast(backend, update))
        return;
    *update = before;
    g->parameters[update->input[MGPU_UPDATE_WEIGHT]->index].gradient = gradient;
}

void mgpu_update_by_products(struct mgpu_graph *g, const struct mgpu_backend *backend)
{
    struct mgpu_readers *readers = mgpu_readers_of(g);
    for (int n = 0; n < g->node_count; n++) {
        struct mgpu_node *node = g->nodes[n];
        const struct mgpu_node *product =
            node->op == &mgpu_op_update ? large_product(g, node, readers) : NULL;
        if (product)
            take_product(g, node, product, NULL);
        else if (node->op == &mgpu_op_update && backend->spares)
            take_many(g, node, backend, readers);
    }
    mgpu_readers_free(readers, g);
    mgpu_graph_prune(g);
}
