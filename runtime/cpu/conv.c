/* Convolution and its two gradients through oneDNN.
 *
 * Its direct algorithms are much faster on channels in blocks. Where the graph has them so, they
 * are used as they lie. Where operands lie plain, blocks pay even with the reordering there and
 * back; so each operator tries a few layouts in an order that depends on the shape alone, and takes
 * the first that oneDNN has real code for.
 */
#include "runtime/ops/conv.h"
#include "runtime/cpu/blocks.h"
#include "runtime/cpu/cpu.h"
#include "runtime/cpu/onednn.h"

#include <string.h>

/* One convolution's sizes, whichever of the three operators it is for. */
struct problem {
    int rank, w_rank;          /* of x and y: 2 + spatial; of w: one more when grouped */
    dnnl_dims_t x, y;          /* [N,C,S...], [N,O,T...] */
    dnnl_dims_t w;             /* [O,C,K...], or [G,O/G,C/G,K...]: the same elements */
    int x_block, y_block;      /* how x and y lie outside */
    int64_t channels;          /* C/G */
    bool small;                /* not worth waking other threads */
    bool depthwise, pointwise; /* one channel a group; kernel 1, stride 1, no padding */
    dnnl_dims_t stride, dilation, before, after; /* oneDNN counts dilation from 0 */
};

/* Layouts of x and y inside; the weights' is left to oneDNN unless all are plain. OUTSIDE: as they
 * lie outside. */
enum layout { PLAIN, BLOCKED, ANY, OUTSIDE, NONE };

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
    struct problem p = {.rank = x->rank,
                        .x_block = x->block,
                        .y_block = y->block,
                        .pointwise = a->group == 1,
                        .small = mgpu_dnn_small(node)};
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

static dnnl_memory_desc_t laid(enum layout layout, int rank, const int64_t *dims, int outside)
{
    switch (layout) {
    case PLAIN:
        return mgpu_dnn_plain(rank, dims);
    case BLOCKED:
        return mgpu_dnn_blocked(rank, dims, mgpu_cpu_block());
    case OUTSIDE:
        return mgpu_dnn_blocked(rank, dims, outside);
    default:
        return mgpu_dnn_tagged(rank, dims, dnnl_format_tag_any);
    }
}

static struct descs lay(const struct problem *p, enum layout layout)
{
    bool first = layout == BLOCKED && p->x[1] < 4; /* first layers read their few channels plain */
    return (struct descs){laid(first ? PLAIN : layout, p->rank, p->x, p->x_block),
                          laid(layout == PLAIN ? PLAIN : ANY, p->w_rank, p->w, 0),
                          mgpu_dnn_plain(1, &p->y[1]), laid(layout, p->rank, p->y, p->y_block)};
}

static struct descs lay_outside(const struct problem *p)
{
    struct descs d = lay(p, OUTSIDE);
    d.w = mgpu_dnn_plain(p->w_rank, p->w);
    return d;
}

/* Whether channels in blocks leave none of them over. */
static bool fits_blocks(const struct problem *p)
{
    return mgpu_cpu_block() == 16 && p->y[1] % 16 == 0 && (p->x[1] % 16 == 0 || p->x[1] < 4);
}

/* The layouts to try, best first: measured on AVX-512, see tests/bench/bench_kernels.c. A product
 * of 1x1 is one matrix product on plain operands; and the gradient by an input of few channels is
 * not worth blocks that are mostly padding. */
static void order(const struct problem *p, bool plain_first, enum layout layouts[4])
{
    int n = 0;
    bool outside = p->x_block || p->y_block;
    if (outside)
        layouts[n++] = OUTSIDE;
    else if (plain_first)
        layouts[n++] = PLAIN;
    if (!outside && fits_blocks(p))
        layouts[n++] = BLOCKED;
    if (!outside)
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

/* ---- What oneDNN asks for -------------------------------------------------------------------- */

/* 0: plain; -1: neither plain nor the machine's blocks. */
static int block_of(const dnnl_memory_desc_t *layout, const int64_t *dims)
{
    dnnl_memory_desc_t plain = mgpu_dnn_plain(layout->ndims, dims);
    dnnl_memory_desc_t blocked = mgpu_dnn_blocked(layout->ndims, dims, mgpu_cpu_block());
    return dnnl_memory_desc_equal(layout, &blocked) ? mgpu_cpu_block()
           : dnnl_memory_desc_equal(layout, &plain) ? 0
                                                    : -1;
}

/* The layouts of x and y that it prefers, at least one in blocks; where it would rather have
 * others, y in blocks and what it then wants of x. */
static bool ask(const struct problem *p, describe_fn *describe, const int args[2], int *x, int *y)
{
    struct descs d = lay(p, ANY);
    dnnl_memory_desc_t want[2];
    for (int i = 0; i < 2; i++) {
        dnnl_convolution_desc_t op, forward;
        if (describe(p, &d, false, &op, &forward) != dnnl_success ||
            !mgpu_dnn_prefers(&op, describe == describe_forward ? NULL : &forward, 2, args, want))
            return false;
        *x = block_of(&want[0], p->x);
        *y = block_of(&want[1], p->y);
        if (*x >= 0 && *y >= 0 && (*x || *y))
            return true;
        d.y = mgpu_dnn_blocked(p->rank, p->y, mgpu_cpu_block());
    }
    return false;
}

static int64_t sample_elements(const struct mgpu_value *v)
{
    return mgpu_value_count(v) / v->dims[0].value;
}

bool mgpu_cpu_conv_blocks(const struct mgpu_node *node, int *block, int64_t *hidden)
{
    bool forward = node->op == &mgpu_op_conv, input = node->op == &mgpu_op_conv_grad_input;
    int ix = input ? 2 : 0, iy = forward ? node->inputs : input ? 0 : 1;
    const struct mgpu_value *x = input ? node->output[0] : node->input[0];
    const struct mgpu_value *y = forward ? node->output[0] : node->input[input ? 0 : 1];
    const struct mgpu_value *w = forward || input ? node->input[1] : node->output[0];
    static const int args[3][2] = {{DNNL_ARG_SRC, DNNL_ARG_DST},
                                   {DNNL_ARG_DIFF_SRC, DNNL_ARG_DIFF_DST},
                                   {DNNL_ARG_SRC, DNNL_ARG_DIFF_DST}};
    if (!mgpu_cpu_all_float(node) || !w || x->rank < 3 || x->rank > 5)
        return false;
    struct problem p = make_problem(node, x, y, w);
    p.x[0] = p.y[0] = 1; /* the same for every batch */
    *hidden = p.pointwise ? 0 : sample_elements(x) + sample_elements(y);
    if (mgpu_cpu_block() == 8 && mgpu_cpu_few_channels(node)) {
        block[iy] = mgpu_cpu_block();
        return true;
    }
    return ask(&p,
               forward ? describe_forward
               : input ? describe_input
                       : describe_weight,
               args[forward ? 0
                    : input ? 1
                            : 2],
               &block[ix], &block[iy]);
}

static int prepare_forward(const struct mgpu_node *node, int threads, bool exact, void **state)
{
    (void)threads, (void)exact;
    struct problem p = make_problem(node, node->input[0], node->output[0], node->input[1]);
    struct descs outside = lay_outside(&p);
    bool bias = node->inputs > 2 && node->input[2];
    const struct mgpu_dnn_operand operands[] = {
        {DNNL_ARG_SRC, false, outside.x},
        {DNNL_ARG_WEIGHTS, false, outside.w},
        {DNNL_ARG_DST, true, outside.y},
        {DNNL_ARG_BIAS, false, outside.bias},
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
    struct descs outside = lay_outside(&p);
    const struct mgpu_dnn_operand operands[] = {
        {DNNL_ARG_DIFF_DST, false, outside.y},
        {DNNL_ARG_WEIGHTS, false, outside.w},
        {DNNL_ARG_DIFF_SRC, true, outside.x},
    };
    enum layout layouts[4];
    order(&p, p.pointwise || (p.channels < 4 && !p.depthwise), layouts);
    return make((struct mgpu_dnn **)state, &p, describe_input, false, layouts, 3, operands);
}

static int prepare_weight(const struct mgpu_node *node, int threads, bool exact, void **state)
{
    (void)threads, (void)exact;
    struct problem p = make_problem(node, node->input[0], node->input[1], node->output[0]);
    struct descs outside = lay_outside(&p);
    bool bias = node->outputs > 1 && node->output[1];
    const struct mgpu_dnn_operand operands[] = {
        {DNNL_ARG_SRC, false, outside.x},
        {DNNL_ARG_DIFF_DST, false, outside.y},
        {DNNL_ARG_DIFF_WEIGHTS, true, outside.w},
        {DNNL_ARG_DIFF_BIAS, true, outside.bias},
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

unsigned mgpu_cpu_conv_reordered(const struct mgpu_node *node, const struct mgpu_kernel *kernel,
                                 const void *state)
{
    for (const struct mgpu_kernel *k = mgpu_cpu_conv; k->op; k++)
        if (k == kernel)
            return mgpu_dnn_reordered(state, node->inputs);
    return 0;
}
