#include "runtime/ref/ref.h"

static const struct mgpu_kernel *const tables[] = {
    mgpu_ref_pointwise, mgpu_ref_movement,   mgpu_ref_reorder,
    mgpu_ref_gather,    mgpu_ref_reduce,     mgpu_ref_sort,
    mgpu_ref_random,    mgpu_ref_matmul,     mgpu_ref_det,
    mgpu_ref_conv,      mgpu_ref_pool,       mgpu_ref_normalize,
    mgpu_ref_softmax,   mgpu_ref_attention,  mgpu_ref_loss,
    mgpu_ref_rnn,       mgpu_ref_resize,     mgpu_ref_grid_sample,
    mgpu_ref_update,    mgpu_ref_accumulate, NULL,
};

static const struct mgpu_kernel *const blocked[] = {mgpu_ref_reorder, NULL};

const struct mgpu_backend mgpu_backend_ref = {.name = "ref", .tables = tables, .blocked = blocked};

int mgpu_ref_fold(const struct mgpu_node *node, const void *const *in, void *const *out)
{
    return mgpu_backend_run(&mgpu_backend_ref, node, in, out);
}

int64_t mgpu_tensor_count(const struct mgpu_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= t->dims[i];
    return n;
}

void mgpu_tensor_strides(const struct mgpu_tensor *t, int64_t strides[MGPU_MAX_RANK])
{
    int64_t stride = 1;
    for (int i = t->rank - 1; i >= 0; i--) {
        strides[i] = stride;
        stride *= t->dims[i];
    }
}
