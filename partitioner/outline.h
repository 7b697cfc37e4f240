/* A training graph as its reader knows it: the ONNX nodes that are computed, and what flows between
 * them. Plans, pins and pictures speak of these. */
#ifndef MGPU_PARTITIONER_OUTLINE_H
#define MGPU_PARTITIONER_OUTLINE_H

#include "runtime/base/names.h"
#include "runtime/graph/graph.h"

/* Which graph inputs a node is reached from. */
enum { MGPU_FROM_NONE = -1, MGPU_FROM_SEVERAL = -2 }; /* else: that one, of graph->inputs */

struct mgpu_outline_node {
    const char *output; /* the key */
    const char *name, *type;
    int from;
    int first_edge, edges; /* that arrive here: mgpu_outline.edge[first_edge ...] */
};

struct mgpu_outline_edge {
    int from, to;
    int64_t bytes; /* of all values that flow along it */
    bool samples;  /* some of them depend on an input */
    bool either;   /* the file may have the nodes the other way around: pool_first.c */
};

struct mgpu_outline {
    struct mgpu_arena *arena; /* owns everything; names are copied */
    int nodes;
    struct mgpu_outline_node *node; /* in the order of the graph: producers first */
    int edges;
    struct mgpu_outline_edge *edge;
    int inputs;
    const char **input; /* names of the graph's inputs */
    int weights;
    const char **weight;      /* names of the trained parameters */
    struct mgpu_names *index; /* key to its node */
};

/* Of the forward nodes that an ONNX node asked for. What the loss adds to an output counts as that
 * output's node where it has one, else as a node of its own (type "loss"). */
struct mgpu_outline *mgpu_outline_new(const struct mgpu_graph *graph);
void mgpu_outline_free(struct mgpu_outline *outline);

/* The node with this key, or -1. */
int mgpu_outline_find(const struct mgpu_outline *outline, const char *output);

#endif
