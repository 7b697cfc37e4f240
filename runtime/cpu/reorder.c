/* Reorders between plain and blocked, through oneDNN. They move elements of four bytes and do not
 * look at them. */
#include "runtime/cpu/cpu.h"
#include "runtime/cpu/onednn.h"

static int prepare(const struct mgpu_node *node, int threads, bool exact, void **state)
{
    (void)exact;
    const struct mgpu_value *x = node->input[0], *y = node->output[0];
    int64_t dims[MGPU_MAX_RANK];
    mgpu_value_dims(x, dims);
    dnnl_memory_desc_t from = mgpu_dnn_blocked(x->rank, dims, x->block);
    dnnl_memory_desc_t to = mgpu_dnn_blocked(y->rank, dims, y->block);
    return mgpu_dnn_reorder((struct mgpu_dnn **)state, &from, &to,
                            mgpu_cpu_team(threads, mgpu_value_count(x)) == 1);
}

static int run(const struct mgpu_launch *l)
{
    void *const data[] = {l->in[0].data, l->out[0].data};
    return mgpu_dnn_run(l->state, data, l->workspace);
}

static bool accepts(const struct mgpu_node *node)
{
    return mgpu_dtype_size(node->input[0]->type) == 4 && node->input[0]->rank >= 3 &&
           node->input[0]->rank <= 5;
}

const struct mgpu_kernel mgpu_cpu_reorder[] = {
    {"reorder", "onednn", accepts, prepare, mgpu_dnn_release_state, mgpu_dnn_state_workspace, run},
    {NULL, NULL, NULL, NULL, NULL, NULL, NULL},
};
