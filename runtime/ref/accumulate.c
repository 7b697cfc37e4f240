#include "runtime/ref/ref.h"

static int run(const struct mgpu_launch *l)
{
    int64_t n = mgpu_tensor_count(&l->out[0]);
    if (l->out[0].type == MGPU_DOUBLE) {
        const double *x = l->in[0].data;
        double *y = l->out[0].data;
        for (int64_t i = 0; i < n; i++)
            y[i] += x[i];
    } else {
        const float *x = l->in[0].data;
        float *y = l->out[0].data;
        for (int64_t i = 0; i < n; i++)
            y[i] += x[i];
    }
    return 0;
}

static bool accepts(const struct mgpu_node *node)
{
    return node->input[0]->type == MGPU_FLOAT || node->input[0]->type == MGPU_DOUBLE;
}

const struct mgpu_kernel mgpu_ref_accumulate[] = {
    {.op = "accumulate", .name = "ref", .accepts = accepts, .run = run},
    {.op = NULL},
};
