/* Limits behind a max pool instead of before it: the largest of the limited values is the limited
 * largest value, and its gradient the same (a window whose largest value is beyond a limit passes
 * none on either way). There is less to do behind it, and nobody keeps what lies in between. */
#include "runtime/compile/fuse.h"
#include "runtime/compile/rewrite.h"
#include "runtime/ops/pointwise.h"
#include "runtime/ops/pool.h"

#include <stdlib.h>
#include <string.h>

/* Every window holds an element of x, not only padding. */
static bool windows_are_full(const struct mgpu_pool_attrs *a)
{
    bool full = true;
    for (int i = 0; i < a->spatial; i++)
        full = full && a->dilation[i] == 1 && a->before[i] < a->kernel[i] &&
               (a->out[i] - 1) * a->stride[i] - a->before[i] < a->in[i];
    return full;
}

bool mgpu_only_limits(const struct mgpu_node *node)
{
    const struct mgpu_expr *e = mgpu_expr_of(node);
    struct mgpu_clip clip;
    return e && node->inputs == 1 && e->op[mgpu_find_clip(e, &clip)].code == MGPU_X_INPUT &&
           node->input[0]->type == node->output[0]->type;
}

/* limit -> pool becomes pool -> limit: the two nodes change what they do. */
static void exchange(struct mgpu_graph *g, struct mgpu_node *limit, struct mgpu_node *pool)
{
    struct mgpu_value *between = limit->output[0], *argument = pool->output[1];
    struct mgpu_node before = *limit;
    struct mgpu_value *out[] = {between, argument};
    limit->op = pool->op;
    limit->attrs = pool->attrs;
    limit->origin = pool->origin;
    limit->outputs = 2;
    limit->output = mgpu_arena_copy(g->arena, out, sizeof out);
    pool->op = before.op;
    pool->attrs = before.attrs;
    pool->origin = before.origin;
    pool->outputs = 1;
    between->rank = pool->output[0]->rank;
    memcpy(between->dims, pool->output[0]->dims, sizeof between->dims);
    if (argument)
        argument->producer = limit;
}

void mgpu_pool_first(struct mgpu_graph *g)
{
    struct mgpu_readers *readers = mgpu_readers_of(g);
    bool *lasts = mgpu_lasting_values(g);
    for (int n = 0; n < g->node_count; n++) {
        struct mgpu_node *pool = g->nodes[n];
        const struct mgpu_value *x = pool->inputs ? pool->input[0] : NULL, *argument;
        if (pool->op != &mgpu_op_max_pool || x->kind != MGPU_VALUE_RESULT || lasts[x->id] ||
            readers[x->id].count != 1 || !mgpu_only_limits(x->producer) ||
            !windows_are_full(pool->attrs))
            continue;
        argument = pool->output[1];
        if (argument && (lasts[argument->id] || readers[argument->id].count))
            continue;
        n = x->producer->id - 1; /* where the pool is next, behind another limit perhaps */
        exchange(g, x->producer, pool);
    }
    mgpu_readers_free(readers, g);
    free(lasts);
}
