/* Nodes whose images lie channels-last, stated as plain nodes: [N,C,S...] in memory is a plain
 * [N,S...,C], so that what works element by element, or along axes, has the axes in another order.
 * The emitters then see plain nodes alone. */
#ifndef MGPU_EMIT_LAST_H
#define MGPU_EMIT_LAST_H

#include "runtime/ops/op.h"

#include <stddef.h>

enum { MGPU_RESTATED_ATTRS = 512 };

struct mgpu_restated {
    struct mgpu_node node;
    struct mgpu_value value[MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS];
    struct mgpu_value *operand[MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS];
    union {
        max_align_t align;
        char bytes[MGPU_RESTATED_ATTRS];
    } attrs;
    struct mgpu_dim dims[MGPU_MAX_RANK];
};

/* False: some operand is neither plain nor channels-last, or the node is not the same in another
 * order of axes. `r` must stay where it is. */
bool mgpu_restate(struct mgpu_restated *r, const struct mgpu_node *node);

/* In blocks of all its channels. */
bool mgpu_lies_last(const struct mgpu_value *v);

/* Whether the same bytes are a plain value and one channels-last: one channel, or one place. */
bool mgpu_lies_both(const struct mgpu_value *v);

#endif
