#include "runtime/cpu/blocks.h"
#include "runtime/cpu/onednn.h"
#include "runtime/ops/comm.h"
#include "runtime/ops/movement.h"
#include "runtime/ops/reduce.h"

#include <pthread.h>
#include <string.h>

/* ---- The machine's block --------------------------------------------------------------------- */

static int machine_block;
static pthread_once_t machine_once = PTHREAD_ONCE_INIT;

static bool convolves(int block)
{
    const int64_t x[] = {1, 64, 16, 16}, w[] = {64, 64, 3, 3};
    const dnnl_dims_t ones = {1, 1};
    dnnl_memory_desc_t xs = mgpu_dnn_blocked(4, x, block), inside;
    dnnl_memory_desc_t ws = mgpu_dnn_tagged(4, w, dnnl_format_tag_any);
    dnnl_convolution_desc_t op;
    return dnnl_convolution_forward_desc_init(&op, dnnl_forward_training, dnnl_convolution_direct,
                                              &xs, &ws, NULL, &xs, ones, ones,
                                              ones) == dnnl_success &&
           mgpu_dnn_prefers(&op, NULL, 1, (const int[]){DNNL_ARG_SRC}, &inside);
}

static void find_block(void)
{
    machine_block = convolves(16) ? 16 : convolves(8) ? 8 : 0;
}

int mgpu_cpu_block(void)
{
    pthread_once(&machine_once, find_block);
    return machine_block;
}

/* ---- What is accepted ------------------------------------------------------------------------ */

static struct mgpu_value *operand(const struct mgpu_node *node, int i)
{
    return i < node->inputs ? node->input[i] : node->output[i - node->inputs];
}

static int64_t dim(const struct mgpu_value *v, int axis)
{
    return axis < v->rank ? v->dims[axis].value : 1;
}

/* Something to gain from blocks: an image of more than one place, in elements of four bytes. */
static bool is_image(const struct mgpu_value *v)
{
    int64_t places = 1;
    for (int i = 2; v && i < v->rank; i++)
        places *= v->dims[i].value;
    return v && v->rank >= 3 && v->rank <= 5 && places > 1 && mgpu_value_count(v) > 0 &&
           mgpu_dtype_size(v->type) == 4;
}

/* All images among the operands; they must be float, but for the places of maxima. */
static bool images(const struct mgpu_node *node, int *block, int64_t *hidden)
{
    *hidden = 0;
    for (int i = 0; i < node->inputs + node->outputs; i++)
        block[i] = is_image(operand(node, i)) ? mgpu_cpu_block() : 0;
    return block[0] && block[node->inputs];
}

static bool float_images(const struct mgpu_node *node, int *block, int64_t *hidden)
{
    return mgpu_cpu_all_float(node) && images(node, block, hidden);
}

/* An operand of an expression: as the output, or one number; or, where no channel is left over,
 * one number a channel or sample. */
static bool follows(const struct mgpu_value *x, const struct mgpu_value *y, int block)
{
    int shift = y->rank - x->rank;
    bool same = shift == 0, spread = y->dims[1].value % block == 0;
    for (int i = 0; i < y->rank; i++) {
        int64_t size = i < shift ? 1 : x->dims[i - shift].value;
        same = same && size == y->dims[i].value;
        spread = spread && (i < 2 || size == 1);
    }
    return mgpu_value_count(x) == 1 || spread || (same && x->type == MGPU_FLOAT);
}

/* An expression, or what one input is spread to. */
static bool expression(const struct mgpu_node *node, int *block, int64_t *hidden)
{
    const struct mgpu_value *y = node->output[0];
    *hidden = 0;
    if (!is_image(y) || y->type != MGPU_FLOAT)
        return false;
    block[node->inputs] = mgpu_cpu_block();
    for (int i = 0; i < node->inputs; i++) {
        const struct mgpu_value *x = node->input[i];
        if (!follows(x, y, block[node->inputs]))
            return false;
        bool same = mgpu_value_count(x) == mgpu_value_count(y);
        block[i] = same ? block[node->inputs] : 0;
    }
    return true;
}

/* Sums over places, of each channel or of each channel of each sample. */
static bool sums(const struct mgpu_node *node, int *block, int64_t *hidden)
{
    const struct mgpu_reduce_attrs *a = node->attrs;
    const struct mgpu_value *x = node->input[0];
    unsigned places = (1u << x->rank) - 4;
    *hidden = 0;
    block[0] = is_image(x) ? mgpu_cpu_block() : 0;
    return block[0] && mgpu_cpu_all_float(node) && (a->axes & ~1) == places &&
           dim(x, 1) % block[0] == 0 && (a->kind == MGPU_REDUCE_SUM || a->kind == MGPU_REDUCE_MEAN);
}

/* Whole blocks one behind the other. */
static bool channels_joined(const struct mgpu_node *node, int *block, int64_t *hidden)
{
    const struct mgpu_concat_attrs *a = node->attrs;
    bool whole = a->axis == 1 && float_images(node, block, hidden);
    for (int i = 0; i < node->inputs - 1; i++)
        whole = whole && dim(node->input[i], 1) % mgpu_cpu_block() == 0;
    return whole;
}

static bool channels_cut(const struct mgpu_node *node, int *block, int64_t *hidden)
{
    const struct mgpu_slice_attrs *a = node->attrs;
    const struct mgpu_value *x = node->input[0], *y = node->output[0];
    bool whole = float_images(node, block, hidden) && a->step[1] == 1 &&
                 a->start[1] % mgpu_cpu_block() == 0 &&
                 (dim(y, 1) % mgpu_cpu_block() == 0 || a->start[1] + dim(y, 1) == dim(x, 1));
    for (int i = 0; i < x->rank && whole; i++)
        whole = i == 1 || (dim(x, i) == dim(y, i) && a->step[i] == 1);
    return whole;
}

/* What another rank gets or gave. A block that is not full would be sent too, so there is none. */
static bool crossing(const struct mgpu_node *node, int *block, int64_t *hidden)
{
    const struct mgpu_comm_attrs *a = node->attrs;
    const struct mgpu_value *v = operand(node, 0);
    *hidden = 0;
    block[0] = mgpu_cpu_block();
    return a->image && is_image(v) && v->type == MGPU_FLOAT && dim(v, 1) % block[0] == 0;
}

bool mgpu_cpu_blocks(const struct mgpu_node *node, int *block, int64_t *hidden)
{
    static const struct {
        const char *op;
        bool (*blocks)(const struct mgpu_node *node, int *block, int64_t *hidden);
    } table[] = {
        {"conv", mgpu_cpu_conv_blocks},
        {"conv_grad_input", mgpu_cpu_conv_blocks},
        {"conv_grad_weight", mgpu_cpu_conv_blocks},
        {"batch_norm", float_images},
        {"batch_norm_grad", float_images},
        {"max_pool", images},
        {"max_pool_grad", images},
        {"average_pool", float_images},
        {"average_pool_grad", float_images},
        {"pointwise", expression},
        {"reduce", sums},
        {"expand", expression},
        {"concat", channels_joined},
        {"slice", channels_cut},
        {"send", crossing},
        {"recv", crossing},
    };
    for (size_t i = 0; mgpu_cpu_block() && i < sizeof table / sizeof *table; i++)
        if (!strcmp(node->op->name, table[i].op))
            return table[i].blocks(node, block, hidden);
    return false;
}

/* ---- For the kernels ------------------------------------------------------------------------- */

struct mgpu_planes mgpu_planes_of(const struct mgpu_tensor *t)
{
    struct mgpu_planes p = {t->dims[0], t->dims[1], (t->dims[1] + t->block - 1) / t->block, 1,
                            t->block};
    for (int i = 2; i < t->rank; i++)
        p.places *= t->dims[i];
    return p;
}

void mgpu_clear_padding(const struct mgpu_tensor *t)
{
    struct mgpu_planes p = mgpu_planes_of(t);
    int64_t last = p.channels % p.block, plane = p.places * p.block;
    for (int64_t n = 0; last && n < p.samples; n++) {
        float *y = (float *)t->data + (n * p.blocks + p.blocks - 1) * plane;
        for (int64_t s = 0; s < p.places; s++)
            memset(y + s * p.block + last, 0, (size_t)(p.block - last) * sizeof *y);
    }
}
