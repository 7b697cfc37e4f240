/* The table of core operators. Adding one is a row here. */
#include "runtime/ops/accumulate.h"
#include "runtime/ops/attention.h"
#include "runtime/ops/comm.h"
#include "runtime/ops/conv.h"
#include "runtime/ops/det.h"
#include "runtime/ops/gather.h"
#include "runtime/ops/grid_sample.h"
#include "runtime/ops/loss.h"
#include "runtime/ops/matmul.h"
#include "runtime/ops/movement.h"
#include "runtime/ops/normalize.h"
#include "runtime/ops/op.h"
#include "runtime/ops/pointwise.h"
#include "runtime/ops/pool.h"
#include "runtime/ops/random.h"
#include "runtime/ops/reduce.h"
#include "runtime/ops/reorder.h"
#include "runtime/ops/resize.h"
#include "runtime/ops/rnn.h"
#include "runtime/ops/softmax.h"
#include "runtime/ops/sort.h"
#include "runtime/ops/update.h"

#include <string.h>

const struct mgpu_op *const mgpu_ops[] = {
    &mgpu_op_pointwise,
    &mgpu_op_reduce,
    &mgpu_op_arg_reduce,
    &mgpu_op_matmul,
    &mgpu_op_matmul_sums,
    &mgpu_op_matmul_gelu,
    &mgpu_op_matmul_gelu_grad,
    &mgpu_op_det,
    &mgpu_op_cofactor,
    &mgpu_op_conv,
    &mgpu_op_conv_grad_input,
    &mgpu_op_conv_grad_weight,
    &mgpu_op_max_pool,
    &mgpu_op_max_pool_grad,
    &mgpu_op_average_pool,
    &mgpu_op_average_pool_grad,
    &mgpu_op_batch_norm,
    &mgpu_op_batch_norm_grad,
    &mgpu_op_group_norm,
    &mgpu_op_group_norm_grad,
    &mgpu_op_softmax,
    &mgpu_op_softmax_grad,
    &mgpu_op_attention,
    &mgpu_op_attention_grad,
    &mgpu_op_cross_entropy,
    &mgpu_op_cross_entropy_grad,
    &mgpu_op_rnn,
    &mgpu_op_rnn_grad,
    &mgpu_op_reshape,
    &mgpu_op_bit_cast,
    &mgpu_op_transpose,
    &mgpu_op_expand,
    &mgpu_op_slice,
    &mgpu_op_slice_grad,
    &mgpu_op_pad,
    &mgpu_op_pad_grad,
    &mgpu_op_concat,
    &mgpu_op_reorder,
    &mgpu_op_gather,
    &mgpu_op_gather_grad,
    &mgpu_op_gather_elements,
    &mgpu_op_gather_elements_grad,
    &mgpu_op_gather_nd,
    &mgpu_op_gather_nd_grad,
    &mgpu_op_scatter_elements,
    &mgpu_op_scatter_nd,
    &mgpu_op_resize,
    &mgpu_op_resize_grad,
    &mgpu_op_grid_sample,
    &mgpu_op_grid_sample_data,
    &mgpu_op_grid_sample_grid,
    &mgpu_op_cumsum,
    &mgpu_op_topk,
    &mgpu_op_random_mask,
    &mgpu_op_random_uniform,
    &mgpu_op_update,
    &mgpu_op_product_update,
    &mgpu_op_global_norm,
    &mgpu_op_accumulate,
    &mgpu_op_all_reduce,
    &mgpu_op_all_gather,
    &mgpu_op_reduce_scatter,
    &mgpu_op_broadcast,
    &mgpu_op_send,
    &mgpu_op_recv,
    NULL,
};

const struct mgpu_op *mgpu_op_find(const char *name)
{
    for (int i = 0; mgpu_ops[i]; i++)
        if (!strcmp(mgpu_ops[i]->name, name))
            return mgpu_ops[i];
    return NULL;
}
