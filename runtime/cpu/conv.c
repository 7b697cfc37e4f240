/* Convolution and its two gradients through oneDNN.
 *
 * Operands lie plain (channels first). Inside, oneDNN's direct algorithms are much faster on
 * channels in blocks, even with the reordering there and back; so each operator tries a few layouts
 * in an order that depends on the shape alone, and takes the first that oneDNN has real code for.
 */
#include "runtime/ops/conv.h"
#include "runtime/cpu/cpu.h"
#include "runtime/cpu/onednn.h"

#include <string.h>

/* One convolution's sizes, whichever of the three operators it is for. */
struct problem {
    int rank, w_rank;          /* of x and y: 2 + spatial; of w: one more when grouped */
    dnnl_dims_t x, y;          /* [N,C,S...], [N,O,T...] */
    dnnl_dims_t w;             /* [O,C,K...], or [G,O/G,C/G,K...]: the same elements */
    int64_t channels;          /* C/G */
    bool small;                /* not worth waking other threads */
    bool depthwise, pointwise; /* one channel a group; kernel 1, stride 1, no padding */
    dnnl_dims_t stride, dilation, before, after; /* oneDNN counts dilation from 0 */
};

/* Layouts of x and y inside; the weights' is left to oneDNN unless all are plain. */
enum layout { PLAIN, BLOCKED, ANY, NONE };

struct descs {
    dnnl_memory_desc_t x, w, bias, y;
};

/* ---- The problem ----------------------------------------------------------------------------- */

static void set_weights(struct problem *p, const struct mgpu_value *w, int64_t group)
{
    int grouped = group > 1;
    p->w_rank = p->rank + grouped;
    mgpu_value_dims(w, p->w + grouped);
    p->channels = p->w[grouped + 1];
    if (grouped) {
        p->w[0] = group;
        p->w[1] /= group;
    }
    p->depthwise = grouped && p->channels == 1;
}

static struct problem make_problem(const struct mgpu_node *node, const struct mgpu_value *x,
                                   const struct mgpu_value *y, const struct mgpu_value *w)
{
    const struct mgpu_conv_attrs *a = node->attrs;
    struct problem p = {.rank = x->rank, .pointwise = a->group == 1, .small = mgpu_dnn_small(node)};
    mgpu_value_dims(x, p.x);
    mgpu_value_dims(y, p.y);
    set_weights(&p, w, a->group);
    for (int i = 0; i < a->spatial; i++) {
        p.stride[i] = a->stride[i];
        p.dilation[i] = a->dilation[i] - 1;
        p.before[i] = a->before[i];
        p.after[i] = a->after[i];
        if (w->dims[2 + i].value != 1 || p.stride[i] != 1 || p.before[i] || p.after[i])
            p.pointwise = false;
    }
    return p;
}

/* ---- Layouts --------------------------------------------------------------------------------- */

static bool has_avx512(void)
{
    return dnnl_get_effective_cpu_isa() >= dnnl_cpu_isa_avx512_core;
}

static dnnl_memory_desc_t laid(enum layout layout, int rank, const int64_t *dims)
{
    static const dnnl_format_tag_t blocks[] = {dnnl_nCw16c, dnnl_nChw16c, dnnl_nCdhw16c};
    if (layout == PLAIN)
        return mgpu_dnn_plain(rank, dims);
    return mgpu_dnn_tagged(rank, dims, layout == BLOCKED ? blocks[rank - 3] : dnnl_format_tag_any);
}

static struct descs lay(const struct problem *p, enum layout layout)
{
    bool first = layout == BLOCKED && p->x[1] < 4; /* first layers read their few channels plain */
    return (struct descs){laid(first ? PLAIN : layout, p->rank, p->x),
                          laid(layout == PLAIN ? PLAIN : ANY, p->w_rank, p->w),
                          mgpu_dnn_plain(1, &p->y[1]), laid(layout, p->rank, p->y)};
}

/* Whether channels in blocks leave none of them over. */
static bool fits_blocks(const struct problem *p)
{
    return has_avx512() && p->y[1] % 16 == 0 && (p->x[1] % 16 == 0 || p->x[1] < 4);
}

/* The layouts to try, best first: measured on AVX-512, see tests/bench/bench_kernels.c. A product
 * of 1x1 is one matrix product on plain operands; and the gradient by an input of few channels is
 * not worth blocks that are mostly padding. */
static void order(const struct problem *p, bool plain_first, enum layout layouts[4])
{
    int n = 0;
    if (plain_first)
        layouts[n++] = PLAIN;
    if (fits_blocks(p))
        layouts[n++] = BLOCKED;
    layouts[n++] = ANY;
    layouts[n] = NONE;
}

/* ---- Preparing ------------------------------------------------------------------------------- */

/* Describes one operator in a layout: the operation and, for gradients, the forward one. */
typedef dnnl_status_t describe_fn(const struct problem *p, const struct descs *d, bool bias,
                                  dnnl_convolution_desc_t *op, dnnl_convolution_desc_t *forward);

static dnnl_status_t describe_forward(const struct problem *p, const struct descs *d, bool bias,
                                      dnnl_convolution_desc_t *op, dnnl_convolution_desc_t *forward)
{
    (void)forward;
    return dnnl_dilated_convolution_forward_desc_init(
        op, dnnl_forward_training, dnnl_convolution_direct, &d->x, &d->w, bias ? &d->bias : NULL,
        &d->y, p->stride, p->dilation, p->before, p->after);
}

static dnnl_status_t describe_input(const struct problem *p, const struct descs *d, bool bias,
                                    dnnl_convolution_desc_t *op, dnnl_convolution_desc_t *forward)
{
    dnnl_status_t status = describe_forward(p, d, bias, forward, NULL);
    if (status != dnnl_success)
        return status;
    return dnnl_dilated_convolution_backward_data_desc_init(op, dnnl_convolution_direct, &d->x,
                                                            &d->w, &d->y, p->stride, p->dilation,
                                                            p->before, p->after);
}

static dnnl_status_t describe_weight(const struct problem *p, const struct descs *d, bool bias,
                                     dnnl_convolution_desc_t *op, dnnl_convolution_desc_t *forward)
{
    dnnl_status_t status = describe_forward(p, d, bias, forward, NULL);
    if (status != dnnl_success)
        return status;
    return dnnl_dilated_convolution_backward_weights_desc_init(
        op, dnnl_convolution_direct, &d->x, &d->w, bias ? &d->bias : NULL, &d->y, p->stride,
        p->dilation, p->before, p->after);
}

static int make_in(struct mgpu_dnn **out, const struct problem *p, enum layout layout,
                   describe_fn *describe, bool bias, int count,
                   const struct mgpu_dnn_operand *operands)
{
    struct descs d = lay(p, layout);
    dnnl_convolution_desc_t op, forward;
    MGPU_TRY(mgpu_dnn_check(describe(p, &d, bias, &op, &forward), "describing a convolution"));
    return mgpu_dnn_new(out, &op, describe == describe_forward ? NULL : &forward, count, operands,
                        p->small);
}

/* The first layout with an implementation that is not oneDNN's plain reference; else that. */
static int make(struct mgpu_dnn **out, const struct problem *p, describe_fn *describe, bool bias,
                const enum layout *layouts, int count, const struct mgpu_dnn_operand *operands)
{
    int rc = 0;
    *out = NULL;
    for (bool found = false; !found && *layouts != NONE; layouts++) {
        struct mgpu_dnn *dnn;
        rc = make_in(&dnn, p, *layouts, describe, bias, count, operands);
        if (rc < 0)
            continue;
        mgpu_dnn_free(*out);
        *out = dnn;
        found = strncmp(mgpu_dnn_name(dnn), "ref", 3) != 0;
    }
    return *out ? 0 : rc;
}

static int prepare_forward(const struct mgpu_node *node, int threads, bool exact, void **state)
{
    (void)threads, (void)exact;
    struct problem p = make_problem(node, node->input[0], node->output[0], node->input[1]);
    struct descs plain = lay(&p, PLAIN);
    bool bias = node->inputs > 2 && node->input[2];
    const struct mgpu_dnn_operand operands[] = {
        {DNNL_ARG_SRC, false, plain.x},
        {DNNL_ARG_WEIGHTS, false, plain.w},
        {DNNL_ARG_DST, true, plain.y},
        {DNNL_ARG_BIAS, false, plain.bias},
    };
    enum layout layouts[4];
    order(&p, p.pointwise, layouts);
    return make((struct mgpu_dnn **)state, &p, describe_forward, bias, layouts, bias ? 4 : 3,
                operands);
}

static int prepare_input(const struct mgpu_node *node, int threads, bool exact, void **state)
{
    (void)threads, (void)exact;
    struct problem p = make_problem(node, node->output[0], node->input[0], node->input[1]);
    struct descs plain = lay(&p, PLAIN);
    const struct mgpu_dnn_operand operands[] = {
        {DNNL_ARG_DIFF_DST, false, plain.y},
        {DNNL_ARG_WEIGHTS, false, plain.w},
        {DNNL_ARG_DIFF_SRC, true, plain.x},
    };
    enum layout layouts[4];
    order(&p, p.pointwise || (p.channels < 4 && !p.depthwise), layouts);
    return make((struct mgpu_dnn **)state, &p, describe_input, false, layouts, 3, operands);
}

static int prepare_weight(const struct mgpu_node *node, int threads, bool exact, void **state)
{
    (void)threads, (void)exact;
    struct problem p = make_problem(node, node->input[0], node->input[1], node->output[0]);
    struct descs plain = lay(&p, PLAIN);
    bool bias = node->outputs > 1 && node->output[1];
    const struct mgpu_dnn_operand operands[] = {
        {DNNL_ARG_SRC, false, plain.x},
        {DNNL_ARG_DIFF_DST, false, plain.y},
        {DNNL_ARG_DIFF_WEIGHTS, true, plain.w},
        {DNNL_ARG_DIFF_BIAS, true, plain.bias},
    };
    enum layout layouts[4];
    order(&p, false, layouts);
    return make((struct mgpu_dnn **)state, &p, describe_weight, bias, layouts, bias ? 4 : 3,
                operands);
}

/* ---- Running --------------------------------------------------------------------------------- */

/* Operands in the order of the tables above; the bias is last. */
static int run_forward(const struct mgpu_launch *l)
{
    void *bias = l->inputs > 2 ? l->in[2].data : NULL;
    void *const data[] = {l->in[0].data, l->in[1].data, l->out[0].data, bias};
    return mgpu_dnn_run(l->state, data, l->workspace);
}

static int run_input(const struct mgpu_launch *l)
{
    void *const data[] = {l->in[0].data, l->in[1].data, l->out[0].data};
    return mgpu_dnn_run(l->state, data, l->workspace);
}

static int run_weight(const struct mgpu_launch *l)
{
    void *bias = l->outputs > 1 ? l->out[1].data : NULL;
    void *const data[] = {l->in[0].data, l->in[1].data, l->out[0].data, bias};
    return mgpu_dnn_run(l->state, data, l->workspace);
}

const struct mgpu_kernel mgpu_cpu_conv[] = {
    {"conv", "onednn", mgpu_cpu_all_float, prepare_forward, mgpu_dnn_release_state,
     mgpu_dnn_state_workspace, run_forward},
    {"conv_grad_input", "onednn", mgpu_cpu_all_float, prepare_input, mgpu_dnn_release_state,
     mgpu_dnn_state_workspace, run_input},
    {"conv_grad_weight", "onednn", mgpu_cpu_all_float, prepare_weight, mgpu_dnn_release_state,
     mgpu_dnn_state_workspace, run_weight},
    {NULL, NULL, NULL, NULL, NULL, NULL, NULL},
};
