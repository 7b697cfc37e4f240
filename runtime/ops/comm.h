/* Communication as nodes: made by the plan pass, run by the communicator of the rank
 * (runtime/comm), not by kernels. Names are NCCL's; the shape operator that ONNX calls Expand is
 * `expand`.
 *
 *     all_reduce(x0, x1, ...) -> y0.. : sums over the group, in place; variadic
 *     all_gather(x) -> y: the members' parts joined along `axis`, in rank order (parts may differ
 *         in size along it; zeros fill the rest of y)
 *     reduce_scatter(x) -> y, broadcast(x) -> y, send(x), recv() -> y
 */
#ifndef MGPU_OPS_COMM_H
#define MGPU_OPS_COMM_H

#include "runtime/ops/op.h"

struct mgpu_comm_attrs {
    int64_t group; /* index of the communicator in the plan; 0 is all ranks */
    int64_t tag;   /* order of the operation in its group: the same on all members */
    int64_t peer;  /* send, recv, broadcast: the other rank, the root */
    int64_t axis;  /* all_gather, reduce_scatter */
    int64_t type;  /* recv: enum mgpu_dtype */
    bool image;    /* send, recv: channels lie in blocks where these have a use, on both sides */
    int64_t rank;
    const struct mgpu_dim *dims; /* all_gather, reduce_scatter, recv: of y */
};

extern const struct mgpu_op mgpu_op_all_reduce, mgpu_op_all_gather, mgpu_op_reduce_scatter,
    mgpu_op_broadcast, mgpu_op_send, mgpu_op_recv;

#endif
