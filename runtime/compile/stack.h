/* What stacking asks of a graph (stack_check.c): shared by stack.c, which does it, and
 * stack_find.c, which looks for what can be. */
#ifndef MGPU_COMPILE_STACK_H
#define MGPU_COMPILE_STACK_H

#include "runtime/compile/follow.h"
#include "runtime/compile/rewrite.h"

struct mgpu_stack_view {
    const struct mgpu_graph *g;
    struct mgpu_follow follow;
    bool *ends; /* by value id: an output, itself or behind reshapes and transposes */
};

void mgpu_stack_view_init(struct mgpu_stack_view *view, const struct mgpu_graph *g);
void mgpu_stack_view_free(struct mgpu_stack_view *view);

/* Whether samples arrive at the node: else it stays as it is, once for each tower. */
bool mgpu_stack_concerns(const struct mgpu_stack_view *view, const struct mgpu_node *node);

/* Whether it depends on samples. */
bool mgpu_stack_has_samples(const struct mgpu_stack_view *view, const struct mgpu_value *value);

/* NULL where `node` and `first` can be one call, else why not ("its weights are others"). */
const char *mgpu_stack_refuses(const struct mgpu_stack_view *view, const struct mgpu_node *first,
                               const struct mgpu_node *node);

#endif
