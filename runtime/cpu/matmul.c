/* Matrix products through oneDNN, on plain operands: its product kernels pack what they need. */
#include "runtime/ops/matmul.h"
#include "runtime/cpu/cpu.h"
#include "runtime/cpu/onednn.h"

/* A matrix stack: the dims of its product, the strides of how it is stored. */
struct stack {
    int64_t dims[MGPU_MAX_RANK], strides[MGPU_MAX_RANK];
};

/* `value` as a stack of matrices of rank `rank`, transposed in its last two axes if asked. */
static struct stack make_stack(const struct mgpu_value *value, int rank, bool transpose)
{
    struct stack s;
    int shift = rank - value->rank;
    for (int64_t i = rank - 1, step = 1; i >= 0; i--) {
        s.dims[i] = i < shift ? 1 : value->dims[i - shift].value;
        s.strides[i] = step;
        step *= s.dims[i];
    }
    if (transpose) {
        int a = rank - 2, b = rank - 1;
        int64_t dim = s.dims[a], stride = s.strides[a];
        s.dims[a] = s.dims[b], s.strides[a] = s.strides[b];
        s.dims[b] = dim, s.strides[b] = stride;
    }
    return s;
}

/* [..., M, K] x [K, N] with A stored as it stands is one product of [...*M, K]. */
static bool one_product(const struct mgpu_node *node)
{
    const struct mgpu_matmul_attrs *attrs = node->attrs;
    const struct mgpu_value *b = node->input[1];
    for (int i = 0; i < b->rank - 2; i++) {
        if (b->dims[i].value != 1)
            return false;
    }
    return !attrs->transpose_a;
}

static void flatten(struct stack *s, int rank)
{
    for (int i = 0; i < rank - 2; i++)
        s->dims[rank - 2] *= s->dims[i];
    s->dims[0] = s->dims[rank - 2], s->dims[1] = s->dims[rank - 1];
    s->strides[0] = s->strides[rank - 2], s->strides[1] = s->strides[rank - 1];
}

static int prepare(const struct mgpu_node *node, int threads, bool exact, void **state)
{
    (void)threads, (void)exact;
    const struct mgpu_matmul_attrs *attrs = node->attrs;
    int rank = node->output[0]->rank;
    struct stack a = make_stack(node->input[0], rank, attrs->transpose_a);
    struct stack b = make_stack(node->input[1], rank, attrs->transpose_b);
    struct stack y = make_stack(node->output[0], rank, false);
    if (one_product(node)) {
        flatten(&a, rank);
        flatten(&b, rank);
        flatten(&y, rank);
        rank = 2;
    }
    const struct mgpu_dnn_operand operands[] = {
        {DNNL_ARG_SRC, false, mgpu_dnn_strided(rank, a.dims, a.strides)},
        {DNNL_ARG_WEIGHTS, false, mgpu_dnn_strided(rank, b.dims, b.strides)},
        {DNNL_ARG_DST, true, mgpu_dnn_strided(rank, y.dims, y.strides)},
    };
    dnnl_matmul_desc_t op;
    MGPU_TRY(mgpu_dnn_check(dnnl_matmul_desc_init(&op, &operands[0].outside, &operands[1].outside,
                                                  NULL, &operands[2].outside),
                            "describing a matrix product"));
    return mgpu_dnn_new((struct mgpu_dnn **)state, &op, NULL, 3, operands, mgpu_dnn_small(node));
}

static int run(const struct mgpu_launch *l)
{
    void *const data[] = {l->in[0].data, l->in[1].data, l->out[0].data};
    return mgpu_dnn_run(l->state, data, l->workspace);
}

const struct mgpu_kernel mgpu_cpu_matmul[] = {
    {"matmul", "onednn", mgpu_cpu_all_float, prepare, mgpu_dnn_release_state,
     mgpu_dnn_state_workspace, run},
    {NULL, NULL, NULL, NULL, NULL, NULL, NULL},
};
