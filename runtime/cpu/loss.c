/* cross_entropy of float logits with class numbers as labels, and its gradient:
 *
 *     loss(p) = weight(p) * (log(sum exp(x - max)) - (x[label] - max))
 *     dx = factor * weight(p) * (softmax(x) - [c = label]), 0 where ignored
 *
 * x is seen as [outer, classes, inner]; a task is a block of neighbouring positions along `inner`.
 */
#include "runtime/ops/loss.h"
#include "runtime/base/status.h"
#include "runtime/cpu/cpu.h"
#include "runtime/cpu/softmax.h"

#include <math.h>
#include <string.h>

enum { X, LABELS, CLASS_WEIGHTS, SAMPLE_WEIGHTS, NORMALISER, DLOSS };

struct lanes {
    int64_t outer, n, inner, blocks;
};

static struct lanes lanes_of(const struct mgpu_node *node)
{
    const struct mgpu_cross_entropy_attrs *a = node->attrs;
    const struct mgpu_value *x = node->input[X];
    struct lanes s = {1, 1, 1, 1};
    for (int i = 0; i < x->rank; i++)
        *(i < a->axis ? &s.outer : i == a->axis ? &s.n : &s.inner) *= x->dims[i].value;
    s.blocks = (s.inner + MGPU_LANES - 1) / MGPU_LANES;
    return s;
}

static bool accepts(const struct mgpu_node *node)
{
    const struct mgpu_cross_entropy_attrs *a = node->attrs;
    return node->input[X]->type == MGPU_FLOAT && mgpu_value_count(node->input[X]) > 0 &&
           a->form == MGPU_FORM_LOGITS && !a->dense && a->label_smoothing == 0;
}

/* One block: positions [first, first + width), whose first lane starts at x[at]. */
struct block {
    int64_t first, at, width;
    const int64_t *label;     /* of its positions */
    float weight[MGPU_LANES]; /* 0 where ignored */
};

static double weight_of(const struct mgpu_launch *l, int64_t position, int64_t label)
{
    const struct mgpu_cross_entropy_attrs *a = l->node->attrs;
    const struct mgpu_tensor *classes = &l->in[CLASS_WEIGHTS], *samples = &l->in[SAMPLE_WEIGHTS];
    if (a->ignore && label == a->ignore_index)
        return 0;
    return (classes->data ? mgpu_get_double(classes->data, classes->type, label) : 1) *
           (samples->data ? mgpu_get_double(samples->data, samples->type, position) : 1);
}

static struct block block_of(const struct mgpu_launch *l, const struct lanes *s, int64_t task)
{
    int64_t outer = task / s->blocks, lane = task % s->blocks * MGPU_LANES, left = s->inner - lane;
    struct block b = {outer * s->inner + lane,
                      outer * s->n * s->inner + lane,
                      left < MGPU_LANES ? left : MGPU_LANES,
                      NULL,
                      {0}};
    b.label = (const int64_t *)l->in[LABELS].data + b.first;
    for (int64_t j = 0; j < b.width; j++)
        b.weight[j] = (float)weight_of(l, b.first + j, b.label[j]);
    return b;
}

/* ---- Forward --------------------------------------------------------------------------------- */

static double block_loss(const struct lanes *s, const struct block *b, const float *x)
{
    float largest[MGPU_LANES], sum[MGPU_LANES];
    double loss = 0;
    if (s->inner == 1)
        sum[0] = mgpu_cpu_exp_sum(x, s->n, largest);
    else
        mgpu_cpu_exp_sum_lanes(x, s->n, s->inner, b->width, largest, sum);
    for (int64_t j = 0; j < b->width; j++) {
        if (b->weight[j] == 0)
            continue;
        double own = (double)x[b->label[j] * s->inner + j] - (double)largest[j];
        loss += (double)b->weight[j] * (log((double)sum[j]) - own);
    }
    return loss;
}

/* The loss of each task. */
static int64_t workspace(const struct mgpu_node *node, int threads, const void *state)
{
    (void)threads, (void)state;
    struct lanes s = lanes_of(node);
    return s.outer * s.blocks * (int64_t)sizeof(double);
}

static int run(const struct mgpu_launch *l)
{
    struct lanes s = lanes_of(l->node);
    double *losses = l->workspace, all = 0;
    int64_t tasks = s.outer * s.blocks;
    int team = mgpu_cpu_team(l->threads, 4 * s.outer * s.n * s.inner);
    MGPU_TRY(mgpu_ref_check_labels(l));
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t task = 0; task < tasks; task++) {
        struct block b = block_of(l, &s, task);
        losses[task] = block_loss(&s, &b, (const float *)l->in[X].data + b.at);
    }
    for (int64_t task = 0; task < tasks; task++)
        all += losses[task];
    *(double *)l->out[0].data = *(const double *)l->in[NORMALISER].data * all;
    return 0;
}

/* ---- Backward -------------------------------------------------------------------------------- */

static void clear_lane(const struct lanes *s, float *dx)
{
    for (int64_t c = 0; c < s->n; c++)
        dx[c * s->inner] = 0;
}

static void block_gradient(const struct lanes *s, const struct block *b, double factor,
                           const float *x, float *dx)
{
    float scale[MGPU_LANES];
    for (int64_t j = 0; j < b->width; j++)
        scale[j] = (float)(factor * (double)b->weight[j]);
    if (s->inner == 1)
        mgpu_cpu_softmax_row(dx, x, s->n, scale[0]);
    else
        mgpu_cpu_softmax_lanes(dx, x, s->n, s->inner, b->width, scale);
    for (int64_t j = 0; j < b->width; j++) {
        if (b->weight[j] == 0)
            clear_lane(s, dx + j); /* whatever x held there */
        else
            dx[b->label[j] * s->inner + j] -= scale[j];
    }
}

static int run_grad(const struct mgpu_launch *l)
{
    struct lanes s = lanes_of(l->node);
    double factor = *(const double *)l->in[NORMALISER].data * *(const double *)l->in[DLOSS].data;
    int team = mgpu_cpu_team(l->threads, 4 * s.outer * s.n * s.inner);
    MGPU_TRY(mgpu_ref_check_labels(l));
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t task = 0; task < s.outer * s.blocks; task++) {
        struct block b = block_of(l, &s, task);
        block_gradient(&s, &b, factor, (const float *)l->in[X].data + b.at,
                       (float *)l->out[0].data + b.at);
    }
    return 0;
}

const struct mgpu_kernel mgpu_cpu_loss[] = {
    {"cross_entropy", "loops", accepts, NULL, NULL, workspace, run},
    {"cross_entropy_grad", "loops", accepts, NULL, NULL, NULL, run_grad},
    {NULL, NULL, NULL, NULL, NULL, NULL, NULL},
};
