/* Concatenations of more parts than a kernel takes operands: concat(a, b, ..., z) becomes
 * concat(concat(a, ...), ..., concat(..., z)). What is joined twice is copied twice. */
#include "runtime/base/status.h"
#include "runtime/compile/fuse.h"
#include "runtime/ops/movement.h"

#include <stdlib.h>

struct order {
    struct mgpu_node **node;
    int count;
};

static void add(struct order *o, struct mgpu_node *node)
{
    o->node = mgpu_grow(o->node, (size_t)o->count, sizeof(struct mgpu_node *));
    o->node[o->count++] = node;
}

/* The node's inputs become what up to `most` neighbours among them give together. */
static int join_parts(struct mgpu_graph *g, struct mgpu_node *node, int most, struct order *o)
{
    int joined = 0;
    g->origin = node->origin;
    for (int at = 0; at < node->inputs; at += most) {
        int some = node->inputs - at < most ? node->inputs - at : most;
        struct mgpu_value *y = node->input[at];
        if (some > 1) {
            MGPU_TRY(mgpu_graph_node(g, node->op, node->attrs, some, node->input + at, 1, &y));
            add(o, y->producer);
        }
        node->input[joined++] = y;
    }
    node->inputs = joined;
    return 0;
}

int mgpu_narrow_concats(struct mgpu_graph *g, int most)
{
    int nodes = g->node_count, rc = 0;
    struct order o = {0};
    struct mgpu_origin origin = g->origin;
    for (int n = 0; n < nodes && rc == 0; n++) {
        struct mgpu_node *node = g->nodes[n];
        while (rc == 0 && node->op == &mgpu_op_concat && node->inputs > most)
            rc = join_parts(g, node, most, &o);
        add(&o, node);
    }
    g->origin = origin;
    for (int n = 0; n < o.count && rc == 0; n++) {
        g->nodes[n] = o.node[n];
        g->nodes[n]->id = n;
    }
    free(o.node);
    return rc;
}
