/* Where each value of a graph lives: which values share memory (views, in place), what is pinned
 * (weights, gradients, inputs, results) and what goes to the arena, and for how long. */
#ifndef MGPU_COMPILE_STORAGE_H
#define MGPU_COMPILE_STORAGE_H

#include "runtime/compile/program.h"

struct mgpu_home { /* of a root value */
    bool pinned;
    enum mgpu_buffer buffer;
    int64_t offset;
    int64_t bytes;
    int first, last; /* nodes during which it is alive */
};

struct mgpu_storage {
    int values;
    int *root;              /* by value id: the value whose memory it is */
    struct mgpu_home *home; /* by value id of the root */
};

/* Adds copies to the graph where two things would need one place (an output that is an input, a
 * statistic that is read after it changes), so that every output, gradient and ->next has its own.
 */
int mgpu_storage_separate(struct mgpu_graph *g);

/* Decides roots, pins and lifetimes. live[node id] says which nodes run. Sizes of inputs, results
 * and constants go to bytes[]; the arena is placed later, with the workspaces. */
void mgpu_storage_assign(struct mgpu_storage *s, const struct mgpu_graph *g, const bool *live,
                         const struct mgpu_store_layout *store, int64_t bytes[MGPU_BUFFERS]);
void mgpu_storage_free(struct mgpu_storage *s);

/* The value whose memory it is, before anything is decided: what it is a view of. */
const struct mgpu_value *mgpu_root_value(const struct mgpu_value *value);

/* Whether running the node is nothing: its outputs are its inputs' memory. */
bool mgpu_is_view(const struct mgpu_node *node);

#endif
