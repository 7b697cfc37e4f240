/* Records of pad and its transpose pad_grad. */
#include "runtime/ops/movement.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "runtime/ops/build.h"
#include "runtime/ops/dims.h"

/* The size of `dim` with the pads; without pads it keeps its monomial. */
static struct mgpu_dim padded_dim(struct mgpu_dim dim, int64_t before, int64_t after)
{
    int64_t sum, all;
    if (__builtin_add_overflow(before, after, &sum) || __builtin_add_overflow(dim.value, sum, &all))
        return mgpu_dim_const(-1);
    return sum ? mgpu_dim_add(dim, mgpu_dim_const(sum)) : dim;
}

static int check_pads(int mode, const struct mgpu_dim *dims, int rank, const int64_t *before,
                      const int64_t *after)
{
    for (int i = 0; i < rank; i++) {
        int64_t cut = (before[i] < 0 ? -(before[i] + 1) + 1 : 0) - (after[i] < 0 ? after[i] : 0);
        bool grows = before[i] > 0 || after[i] > 0;
        struct mgpu_dim padded = padded_dim(dims[i], before[i], after[i]);
        if (before[i] == INT64_MIN || padded.value < 0 || cut < 0 || cut > dims[i].value)
            return mgpu_fail(MGPU_EINVALID,
                             "pad: %" PRId64 " before and %" PRId64
                             " after axis %d of size %" PRId64 " leave a negative size",
                             before[i], after[i], i, dims[i].value);
        if (mode != MGPU_PAD_CONSTANT && grows && cut == dims[i].value)
            return mgpu_fail(MGPU_EINVALID, "pad: axis %d has no element to pad with", i);
    }
    return 0;
}

static int pad_shape(const struct mgpu_node *node)
{
    const struct mgpu_pad_attrs *a = node->attrs;
    const struct mgpu_value *x = node->input[0];
    const struct mgpu_value *value = node->inputs > 1 ? node->input[1] : NULL;
    struct mgpu_dim dims[MGPU_MAX_RANK];
    if (value && (value->rank || value->type != x->type))
        return mgpu_fail(MGPU_EINVALID, "pad: the value is %s of rank %d, not %s of rank 0",
                         mgpu_dtype_name(value->type), value->rank, mgpu_dtype_name(x->type));
    MGPU_TRY(check_pads(a->mode, x->dims, x->rank, a->before, a->after));
    for (int i = 0; i < x->rank; i++)
        dims[i] = padded_dim(x->dims[i], a->before[i], a->after[i]);
    mgpu_shape_set(node, 0, x->type, x->rank, dims);
    return 0;
}

static int pad_grad_shape(const struct mgpu_node *node)
{
    const struct mgpu_pad_grad_attrs *a = node->attrs;
    const struct mgpu_value *dy = node->input[0];
    char text[2][MGPU_SHAPE_TEXT];
    bool fits = dy->rank == a->rank && mgpu_is_float(dy->type);
    if (fits)
        MGPU_TRY(check_pads(a->mode, a->dims, dy->rank, a->before, a->after));
    for (int i = 0; fits && i < dy->rank; i++)
        fits = padded_dim(a->dims[i], a->before[i], a->after[i]).value == dy->dims[i].value;
    if (!fits)
        return mgpu_fail(MGPU_EINVALID, "pad_grad: %s %s is not what padding %s gives",
                         mgpu_dtype_name(dy->type), mgpu_dims_text(text[0], dy->rank, dy->dims),
                         mgpu_dims_text(text[1], (int)a->rank, a->dims));
    mgpu_shape_set(node, 0, dy->type, dy->rank, a->dims);
    return 0;
}

static struct mgpu_value *pad_back(struct mgpu_graph *g, const struct mgpu_node *node,
                                   struct mgpu_value *dy)
{
    const struct mgpu_pad_attrs *a = node->attrs;
    const struct mgpu_value *x = node->input[0];
    struct mgpu_pad_grad_attrs back = {.mode = a->mode, .rank = x->rank};
    memcpy(back.before, a->before, sizeof back.before);
    memcpy(back.after, a->after, sizeof back.after);
    back.dims = mgpu_dims_copy(g, x->rank, x->dims);
    return mgpu_build1(g, &mgpu_op_pad_grad, &back, 1, &dy);
}

/* The value gets what arrives at the padding: all of dy but what x gets. */
static struct mgpu_value *value_gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                                         struct mgpu_value *dy)
{
    struct mgpu_value *inside = pad_back(g, node, dy);
    struct mgpu_value *spread = inside ? mgpu_build1(g, node->op, node->attrs, 1, &inside) : NULL;
    return mgpu_reduce(g, MGPU_REDUCE_SUM, mgpu_sub(g, dy, spread), (1u << dy->rank) - 1, false);
}

static int pad_gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                        struct mgpu_value *const *dy, const bool *wanted, struct mgpu_value **dx)
{
    const struct mgpu_pad_attrs *a = node->attrs;
    if (!dy[0])
        return 0;
    if (wanted[0] && !(dx[0] = pad_back(g, node, dy[0])))
        return mgpu_build_error();
    if (node->inputs < 2 || !node->input[1] || !wanted[1] || a->mode != MGPU_PAD_CONSTANT)
        return 0;
    dx[1] = value_gradient(g, node, dy[0]);
    return dx[1] ? 0 : mgpu_build_error();
}

static int pad_grad_gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                             struct mgpu_value *const *dy, const bool *wanted,
                             struct mgpu_value **dx)
{
    const struct mgpu_pad_grad_attrs *a = node->attrs;
    struct mgpu_pad_attrs pad = {.mode = a->mode};
    if (!wanted[0] || !dy[0])
        return 0;
    memcpy(pad.before, a->before, sizeof pad.before);
    memcpy(pad.after, a->after, sizeof pad.after);
    dx[0] = mgpu_build1(g, &mgpu_op_pad, &pad, 1, &dy[0]);
    return dx[0] ? 0 : mgpu_build_error();
}

/* The samples' axis may not be padded. A sum passes where padding is linear: everywhere but around
 * a value of its own. */
static enum mgpu_split_answer cut_free(const int64_t *before, const int64_t *after,
                                       const struct mgpu_split *in, struct mgpu_split *out,
                                       int *which)
{
    out[0] = in[0];
    if (in[0].kind == MGPU_SPLIT_AXIS && (before[in[0].axis] || after[in[0].axis]))
        return mgpu_split_no(which, 0, MGPU_SPLIT_MIXES);
    return MGPU_SPLIT_OK;
}

static enum mgpu_split_answer pad_split(const struct mgpu_node *node, const struct mgpu_split *in,
                                        struct mgpu_split *out, int *which)
{
    const struct mgpu_pad_attrs *a = node->attrs;
    bool value = node->inputs > 1 && node->input[1] && a->mode == MGPU_PAD_CONSTANT;
    bool terms = mgpu_split_is_term(in[0]) || (value && mgpu_split_is_term(in[1]));
    if (value && terms && in[0].kind != in[1].kind)
        return mgpu_split_no(which, mgpu_split_is_term(in[1]), MGPU_SPLIT_FULL);
    return cut_free(a->before, a->after, in, out, which);
}

static enum mgpu_split_answer pad_grad_split(const struct mgpu_node *node,
                                             const struct mgpu_split *in, struct mgpu_split *out,
                                             int *which)
{
    const struct mgpu_pad_grad_attrs *a = node->attrs;
    return cut_free(a->before, a->after, in, out, which);
}

static const char *const modes[] = {"constant", "reflect", "edge", "wrap", NULL};

#define PADS(type)                                                                                 \
    {.name = "mode",                                                                               \
     .kind = MGPU_ATTR_ENUM,                                                                       \
     .offset = offsetof(struct type, mode),                                                        \
     .names = modes},                                                                              \
        {.name = "before",                                                                         \
         .kind = MGPU_ATTR_INTS,                                                                   \
         .offset = offsetof(struct type, before),                                                  \
         .length = MGPU_MAX_RANK},                                                                 \
    {                                                                                              \
        .name = "after", .kind = MGPU_ATTR_INTS, .offset = offsetof(struct type, after),           \
        .length = MGPU_MAX_RANK                                                                    \
    }

static const struct mgpu_attr pad_attrs[] = {PADS(mgpu_pad_attrs), {0}};
static const struct mgpu_attr pad_grad_attrs[] = {
    PADS(mgpu_pad_grad_attrs),
    {.name = "rank", .kind = MGPU_ATTR_INT, .offset = offsetof(struct mgpu_pad_grad_attrs, rank)},
    {.name = "dims", .kind = MGPU_ATTR_DIMS, .offset = offsetof(struct mgpu_pad_grad_attrs, dims)},
    {0}};

const struct mgpu_op mgpu_op_pad = {
    .name = "pad",
    .min_inputs = 1,
    .max_inputs = 2,
    .outputs = 1,
    .attrs_size = sizeof(struct mgpu_pad_attrs),
    .attrs = pad_attrs,
    .half = MGPU_HALF_FOLLOWS,
    .shape = pad_shape,
    .gradient = pad_gradient,
    .saved = mgpu_saved_nothing,
    .alias = mgpu_alias_none,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_plain,
    .cost = mgpu_cost_move,
    .split = pad_split,
};

const struct mgpu_op mgpu_op_pad_grad = {
    .name = "pad_grad",
    .min_inputs = 1,
    .max_inputs = 1,
    .outputs = 1,
    .attrs_size = sizeof(struct mgpu_pad_grad_attrs),
    .attrs = pad_grad_attrs,
    .half = MGPU_HALF_FOLLOWS,
    .shape = pad_grad_shape,
    .gradient = pad_grad_gradient,
    .saved = mgpu_saved_nothing,
    .alias = mgpu_alias_none,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_plain,
    .cost = mgpu_cost_move,
    .split = pad_grad_split,
};
