/* cross_entropy, position by position in double (runtime/ops/loss.h has the formulas). Losses of 64
 * positions are added up in order, then the sums of all blocks: the same for any thread count. */
#include "runtime/ops/loss.h"

#include "runtime/base/status.h"
#include "runtime/ref/ref.h"
#include "runtime/ref/rows.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>

enum { X, LABELS, CLASS_WEIGHTS, SAMPLE_WEIGHTS, NORMALISER, DLOSS };
enum { BLOCK = 64 };

/* Keras's epsilon: probabilities are kept this far from 0 and 1. */
static const double CLIP = 1e-7;

/* One lane: the classes of one position. */
struct lane {
    int64_t classes;
    double *x;   /* log-probabilities in the end, or clipped probabilities */
    double *q;   /* what class c counts: its label's share times its weight */
    double sum;  /* dense probabilities were divided by it; else 1 */
    bool counts; /* not ignored */
};

static const struct mgpu_cross_entropy_attrs *attrs_of(const struct mgpu_launch *l)
{
    return l->node->attrs;
}

static int64_t label_of(const struct mgpu_launch *l, int64_t position)
{
    return ((const int64_t *)l->in[LABELS].data)[position];
}

static bool ignored(const struct mgpu_cross_entropy_attrs *attrs, int64_t label)
{
    return attrs->ignore && label == attrs->ignore_index;
}

/* "sample 3: label 12 is not one of 0 to 9 (position [3,0,5])" */
static int bad_label(const struct mgpu_launch *l, int64_t position, int64_t label)
{
    const struct mgpu_tensor *t = &l->in[LABELS];
    const struct mgpu_value *v = l->node->input[LABELS];
    int64_t at[MGPU_MAX_RANK], sample = 0;
    char text[MGPU_SHAPE_TEXT];
    for (int k = t->rank - 1; k >= 0; position /= t->dims[k--])
        at[k] = position % t->dims[k];
    for (int k = 0; k < t->rank; k++)
        if (k == 0 || mgpu_dim_has(v->dims[k], MGPU_BATCH))
            sample = at[k];
    return mgpu_fail(MGPU_EINVALID, "sample %lld: label %lld is not one of 0 to %lld (position %s)",
                     (long long)sample, (long long)label,
                     (long long)l->in[X].dims[attrs_of(l)->axis] - 1,
                     mgpu_shape_text(text, t->rank, at));
}

int mgpu_ref_check_labels(const struct mgpu_launch *l)
{
    int64_t classes = l->in[X].dims[attrs_of(l)->axis];
    if (attrs_of(l)->dense)
        return 0;
    for (int64_t p = 0, n = mgpu_tensor_count(&l->in[LABELS]); p < n; p++) {
        int64_t label = label_of(l, p);
        if ((label < 0 || label >= classes) && !ignored(attrs_of(l), label))
            return bad_label(l, p, label);
    }
    return 0;
}

/* q(c) = ((1-s) * label(c) + s/C) * class_weight(c) */
static void fill_q(const struct mgpu_launch *l, const struct mgpu_lanes *lanes, int64_t position,
                   struct lane *lane)
{
    const struct mgpu_cross_entropy_attrs *attrs = attrs_of(l);
    int64_t n = lane->classes;
    lane->counts = true;
    if (attrs->dense) {
        mgpu_row_load(lane->q, &l->in[LABELS], mgpu_lane_offset(lanes, position), lanes->inner, n);
    } else {
        int64_t label = label_of(l, position);
        lane->counts = !ignored(attrs, label);
        for (int64_t c = 0; c < n; c++)
            lane->q[c] = c == label;
    }
    double s = attrs->label_smoothing;
    const struct mgpu_tensor *weights = &l->in[CLASS_WEIGHTS];
    for (int64_t c = 0; c < n; c++) {
        double w = weights->data ? mgpu_get_double(weights->data, weights->type, c) : 1;
        lane->q[c] = ((1 - s) * lane->q[c] + s / (double)n) * w;
    }
}

static void log_softmax(double *x, int64_t n)
{
    double most = -INFINITY, sum = 0;
    for (int64_t c = 0; c < n; c++)
        most = fmax(most, x[c]);
    for (int64_t c = 0; c < n; c++)
        sum += exp(x[c] - most);
    double shift = most + log(sum);
    for (int64_t c = 0; c < n; c++)
        x[c] -= shift;
}

static void read_lane(const struct mgpu_launch *l, const struct mgpu_lanes *lanes, int64_t position,
                      struct lane *lane)
{
    const struct mgpu_cross_entropy_attrs *attrs = attrs_of(l);
    int64_t n = lane->classes;
    lane->sum = 1;
    fill_q(l, lanes, position, lane);
    mgpu_row_load(lane->x, &l->in[X], mgpu_lane_offset(lanes, position), lanes->inner, n);
    if (attrs->form == MGPU_FORM_LOGITS)
        log_softmax(lane->x, n);
    if (attrs->form != MGPU_FORM_PROBABILITIES || !attrs->dense)
        return;
    lane->sum = 0;
    for (int64_t c = 0; c < n; c++)
        lane->sum += lane->x[c];
    for (int64_t c = 0; c < n; c++)
        lane->x[c] /= lane->sum;
}

static double clip(double p)
{
    return fmin(fmax(p, CLIP), 1 - CLIP);
}

/* Classes that do not count are left out, so that none of them makes 0 * inf. */
static double lane_loss(const struct lane *lane, int form)
{
    double sum = 0;
    for (int64_t c = 0; c < lane->classes; c++)
        if (lane->q[c] != 0)
            sum -=
                lane->q[c] * (form == MGPU_FORM_PROBABILITIES ? log(clip(lane->x[c])) : lane->x[c]);
    return lane->counts ? sum : 0;
}

/* By logits: softmax(c) * sum(q) - q(c). By log-probabilities: -q(c). By probabilities:
 * h(c) = -q(c)/p(c), 0 where p was clipped; through the division (h(c) - sum(h*p)) / sum. */
static void lane_gradient(struct lane *lane, const struct mgpu_cross_entropy_attrs *attrs,
                          double factor)
{
    double all = 0, *x = lane->x, *q = lane->q;
    bool probabilities = attrs->form == MGPU_FORM_PROBABILITIES;
    for (int64_t c = 0; c < lane->classes; c++) {
        if (probabilities)
            q[c] = x[c] == clip(x[c]) ? q[c] / x[c] : 0;
        all += probabilities ? (attrs->dense ? q[c] * x[c] : 0) : q[c];
    }
    for (int64_t c = 0; c < lane->classes; c++) {
        double d = attrs->form == MGPU_FORM_LOGITS ? exp(x[c]) * all - q[c]
                   : probabilities                 ? (all - q[c]) / lane->sum
                                                   : -q[c];
        x[c] = lane->counts ? factor * d : 0;
    }
}

static double sample_weight(const struct mgpu_launch *l, int64_t position)
{
    const struct mgpu_tensor *t = &l->in[SAMPLE_WEIGHTS];
    return t->data ? mgpu_get_double(t->data, t->type, position) : 1;
}

static double scalar(const struct mgpu_launch *l, int input)
{
    return *(const double *)l->in[input].data;
}

/* A lane of x and of q for every thread. */
static double *scratch(const struct mgpu_launch *l, int thread)
{
    return (double *)l->workspace + thread * 2 * l->in[X].dims[attrs_of(l)->axis];
}

static int64_t lane_bytes(const struct mgpu_node *node, int threads)
{
    const struct mgpu_cross_entropy_attrs *attrs = node->attrs;
    return 2 * threads * node->input[X]->dims[attrs->axis].value * (int64_t)sizeof(double);
}

static int64_t blocks_of(int64_t positions)
{
    return (positions + BLOCK - 1) / BLOCK;
}

/* The lanes, then the sum of every block. */
static int64_t workspace(const struct mgpu_node *node, int threads, const void *state)
{
    const struct mgpu_cross_entropy_attrs *attrs = node->attrs;
    const struct mgpu_value *x = node->input[X];
    int64_t positions = 1;
    (void)state;
    for (int k = 0; k < x->rank; k++)
        positions *= k == attrs->axis ? 1 : x->dims[k].value;
    return lane_bytes(node, threads) + blocks_of(positions) * (int64_t)sizeof(double);
}

static int64_t workspace_grad(const struct mgpu_node *node, int threads, const void *state)
{
    (void)state;
    return lane_bytes(node, threads);
}

static double block_loss(const struct mgpu_launch *l, const struct mgpu_lanes *lanes, int64_t block,
                         struct lane *lane)
{
    int64_t end = (block + 1) * BLOCK, positions = lanes->outer * lanes->inner;
    double sum = 0;
    for (int64_t p = block * BLOCK; p < end && p < positions; p++) {
        read_lane(l, lanes, p, lane);
        sum += sample_weight(l, p) * lane_loss(lane, attrs_of(l)->form);
    }
    return sum;
}

static int run(const struct mgpu_launch *l)
{
    struct mgpu_lanes lanes = mgpu_lanes_of(&l->in[X], (int)attrs_of(l)->axis);
    int64_t blocks = blocks_of(lanes.outer * lanes.inner);
    double *sums = scratch(l, l->threads), all = 0;
    MGPU_TRY(mgpu_ref_check_labels(l));
#pragma omp parallel for num_threads(l->threads) schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        double *own = scratch(l, omp_get_thread_num());
        struct lane lane = {.classes = lanes.size, .x = own, .q = own + lanes.size};
        sums[b] = block_loss(l, &lanes, b, &lane);
    }
    for (int64_t b = 0; b < blocks; b++)
        all += sums[b];
    *(double *)l->out[0].data = scalar(l, NORMALISER) * all;
    return 0;
}

static int run_grad(const struct mgpu_launch *l)
{
    struct mgpu_lanes lanes = mgpu_lanes_of(&l->in[X], (int)attrs_of(l)->axis);
    double factor = scalar(l, NORMALISER) * scalar(l, DLOSS);
    MGPU_TRY(mgpu_ref_check_labels(l));
#pragma omp parallel for num_threads(l->threads) schedule(static)
    for (int64_t p = 0; p < lanes.outer * lanes.inner; p++) {
        double *own = scratch(l, omp_get_thread_num());
        struct lane lane = {.classes = lanes.size, .x = own, .q = own + lanes.size};
        read_lane(l, &lanes, p, &lane);
        lane_gradient(&lane, attrs_of(l), factor * sample_weight(l, p));
        mgpu_row_store(&l->out[0], mgpu_lane_offset(&lanes, p), lanes.inner, lanes.size, lane.x);
    }
    return 0;
}

const struct mgpu_kernel mgpu_ref_loss[] = {
    {.op = "cross_entropy", .name = "ref", .workspace = workspace, .run = run},
    {.op = "cross_entropy_grad", .name = "ref", .workspace = workspace_grad, .run = run_grad},
    {.op = NULL},
};
