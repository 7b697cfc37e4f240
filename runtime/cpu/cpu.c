#include "runtime/cpu/blocks.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

static const struct mgpu_kernel *const tables[] = {
    mgpu_cpu_pointwise,
    mgpu_cpu_reduce,
    mgpu_cpu_transpose,
    mgpu_cpu_packed,
    mgpu_cpu_matmul,
    mgpu_cpu_attention,
    mgpu_cpu_conv,
    mgpu_cpu_pool,
    mgpu_cpu_batch_norm,
    mgpu_cpu_group_norm,
    mgpu_cpu_softmax,
    mgpu_cpu_loss,
    mgpu_cpu_rnn,
    mgpu_cpu_rnn_grad,
    mgpu_cpu_update,
    mgpu_ref_pointwise,
    mgpu_ref_movement,
    mgpu_ref_gather,
    mgpu_ref_reduce,
    mgpu_ref_sort,
    mgpu_ref_random,
    mgpu_ref_matmul,
    mgpu_ref_det,
    mgpu_ref_conv,
    mgpu_ref_pool,
    mgpu_ref_normalize,
    mgpu_ref_softmax,
    mgpu_ref_attention,
    mgpu_ref_loss,
    mgpu_ref_rnn,
    mgpu_ref_resize,
    mgpu_ref_update,
    mgpu_ref_accumulate,
    mgpu_ref_grid_sample,
    NULL,
};

static const struct mgpu_kernel *const blocked[] = {
    mgpu_cpu_reorder,        mgpu_cpu_pointwise,   mgpu_cpu_conv_few,
    mgpu_cpu_conv,           mgpu_cpu_pool_blocks, mgpu_cpu_batch_norm_blocks,
    mgpu_cpu_channel_blocks, mgpu_ref_reorder,     NULL,
};

static const struct mgpu_kernel *const inexact[] = {mgpu_cpu_winograd, NULL};

static unsigned reordered(const struct mgpu_node *node, const struct mgpu_kernel *kernel,
                          const void *state)
{
    return mgpu_cpu_conv_reordered(node, kernel, state) | mgpu_cpu_product_reordered(kernel);
}

const struct mgpu_backend mgpu_backend_cpu = {.name = "cpu",
                                              .spares = true,
                                              .tables = tables,
                                              .blocked = blocked,
                                              .inexact = inexact,
                                              .blocks = mgpu_cpu_blocks,
                                              .reordered = reordered};

static bool is_float(const struct mgpu_value *value)
{
    return !value || (value->type == MGPU_FLOAT && mgpu_value_count(value) > 0);
}

bool mgpu_cpu_all_float(const struct mgpu_node *node)
{
    for (int i = 0; i < node->inputs; i++) {
        if (!is_float(node->input[i]))
            return false;
    }
    for (int i = 0; i < node->outputs; i++) {
        if (!is_float(node->output[i]))
            return false;
    }
    return true;
}

int mgpu_cpu_team(int threads, int64_t elements)
{
    enum { ENOUGH = 16384 }; /* elements that take as long as waking a sleeping thread */
    int64_t team = elements / ENOUGH;
    return team < 1 ? 1 : team < threads ? (int)team : threads;
}

struct mgpu_range mgpu_cpu_part(int64_t count, int part, int parts)
{
    int64_t size = count / parts, rest = count % parts;
    int64_t begin = part * size + (part < rest ? part : rest);
    return (struct mgpu_range){begin, begin + size + (part < rest)};
}

bool mgpu_cpu_is_beyond(int64_t elements)
{
    enum { LEAST = 1 << 22 };
    return elements >= LEAST;
}

bool mgpu_cpu_in_place(const struct mgpu_launch *l)
{
    bool same = false;
    for (int i = 0; i < l->inputs; i++)
        same = same || l->in[i].data == l->out[0].data;
    return same;
}

void mgpu_cpu_write_past(float *to, const float *from, int64_t n)
{
    int64_t i = 0;
#if defined(__x86_64__)
    for (; (uintptr_t)to % 16 == 0 && i + 4 <= n; i += 4)
        _mm_stream_ps(to + i, _mm_loadu_ps(from + i));
#endif
    for (; i < n; i++)
        to[i] = from[i];
}

void mgpu_cpu_end_past(void)
{
#if defined(__x86_64__)
    _mm_sfence();
#endif
}
