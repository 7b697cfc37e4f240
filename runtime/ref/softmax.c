#include "runtime/ops/softmax.h"
#include "runtime/ref/ref.h"
#include "runtime/ref/rows.h"

#include <math.h>
#include <omp.h>

/* y = exp(x - max) / sum, or x - max - log(sum): the largest is taken off against overflow. */
static void forward(double *x, int64_t n, bool log_of)
{
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, x[i]);
    for (int64_t i = 0; i < n; i++) {
        double e = exp(x[i] - most);
        sum += e;
        x[i] = log_of ? x[i] - most : e;
    }
    double log_sum = log(sum);
    for (int64_t i = 0; i < n; i++)
        x[i] = log_of ? x[i] - log_sum : x[i] / sum;
}

/* dy becomes y * (dy - sum(y*dy)), or dy - exp(y) * sum(dy). */
static void backward(const double *y, double *dy, int64_t n, bool log_of)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += log_of ? dy[i] : y[i] * dy[i];
    for (int64_t i = 0; i < n; i++)
        dy[i] = log_of ? dy[i] - exp(y[i]) * sum : y[i] * (dy[i] - sum);
}

/* A lane of each input for every thread. */
static int64_t workspace(const struct mgpu_node *node, int threads, const void *state)
{
    const struct mgpu_softmax_attrs *attrs = node->attrs;
    int64_t lane = node->input[0]->dims[attrs->axis].value * (int64_t)sizeof(double);
    (void)state;
    return threads * node->inputs * lane;
}

static int run(const struct mgpu_launch *l)
{
    const struct mgpu_softmax_attrs *attrs = l->node->attrs;
    struct mgpu_lanes lanes = mgpu_lanes_of(&l->out[0], (int)attrs->axis);
    int64_t n = lanes.size;
#pragma omp parallel for num_threads(l->threads) schedule(static)
    for (int64_t i = 0; i < lanes.outer * lanes.inner; i++) {
        double *row = (double *)l->workspace + omp_get_thread_num() * l->inputs * n;
        int64_t at = mgpu_lane_offset(&lanes, i);
        for (int k = 0; k < l->inputs; k++)
            mgpu_row_load(row + k * n, &l->in[k], at, lanes.inner, n);
        if (l->inputs == 1)
            forward(row, n, attrs->log);
        else
            backward(row, row + n, n, attrs->log);
        mgpu_row_store(&l->out[0], at, lanes.inner, n, row + (l->inputs - 1) * n);
    }
    return 0;
}

const struct mgpu_kernel mgpu_ref_softmax[] = {
    {.op = "softmax", .name = "ref", .workspace = workspace, .run = run},
    {.op = "softmax_grad", .name = "ref", .workspace = workspace, .run = run},
    {.op = NULL},
};
