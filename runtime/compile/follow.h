/* How the values of a graph stand to the samples, following op->split forward from the inputs. */
#ifndef MGPU_COMPILE_FOLLOW_H
#define MGPU_COMPILE_FOLLOW_H

#include "runtime/graph/graph.h"
#include "runtime/ops/op.h"

struct mgpu_follow {
    struct mgpu_split *split; /* by value id */
    bool *known;              /* false: something mixes samples on the way */
};

void mgpu_follow_init(struct mgpu_follow *follow, const struct mgpu_graph *g);
void mgpu_follow_free(struct mgpu_follow *follow);

/* Lets the constants of a node, which are equal along their samples, stand as its other inputs do:
 * in[] by input. */
void mgpu_follow_constants(const struct mgpu_node *node, struct mgpu_split *in);

#endif
