/* Records of grid_sample and its gradients. */
#include "runtime/ops/grid_sample.h"

#include <inttypes.h>
#include <stddef.h>

#include "runtime/ops/build.h"
#include "runtime/ops/dims.h"

static const char *const modes[] = {"nearest", "linear", "cubic", NULL};
static const char *const paddings[] = {"zeros", "border", "reflection", NULL};

#define FIELD(field, which, list)                                                                  \
    {                                                                                              \
        .name = #field, .kind = which, .offset = offsetof(struct mgpu_grid_sample_attrs, field),   \
        .names = list                                                                              \
    }

static const struct mgpu_attr attrs[] = {
    FIELD(mode, MGPU_ATTR_ENUM, modes),         FIELD(padding, MGPU_ATTR_ENUM, paddings),
    FIELD(align_corners, MGPU_ATTR_BOOL, NULL), FIELD(rank, MGPU_ATTR_INT, NULL),
    FIELD(dims, MGPU_ATTR_DIMS, NULL),          {0}};

/* [N, C, O1 .. Ok] of x and grid. */
static int sampled_dims(const struct mgpu_node *node, const struct mgpu_value *grid,
                        struct mgpu_dim *dims)
{
    const struct mgpu_grid_sample_attrs *a = node->attrs;
    char text[2][MGPU_SHAPE_TEXT];
    int rank = (int)a->rank;
    if (rank < 3 || rank > 5 || grid->rank != rank || grid->dims[0].value != a->dims[0].value ||
        grid->dims[rank - 1].value != rank - 2)
        return mgpu_fail(MGPU_EINVALID, "%s: a grid of %s does not fit %s", node->op->name,
                         mgpu_dims_text(text[0], grid->rank, grid->dims),
                         mgpu_dims_text(text[1], rank, a->dims));
    if (!mgpu_is_float(grid->type))
        return mgpu_fail(MGPU_EINVALID, "%s: a grid of %s", node->op->name,
                         mgpu_dtype_name(grid->type));
    if (a->mode == MGPU_GRID_CUBIC && rank != 4)
        return mgpu_fail(MGPU_EUNSUPPORTED, "%s: cubic of rank %d (4 is supported)", node->op->name,
                         rank);
    for (int i = 2; i < rank; i++)
        if (a->dims[i].value < 1)
            return mgpu_fail(MGPU_EINVALID, "%s: nothing to sample in %s", node->op->name,
                             mgpu_dims_text(text[1], rank, a->dims));
    dims[0] = mgpu_dim_is_const(a->dims[0]) ? grid->dims[0] : a->dims[0];
    dims[1] = a->dims[1];
    for (int i = 2; i < rank; i++)
        dims[i] = grid->dims[i - 1];
    return 0;
}

static int check(const struct mgpu_node *node, const struct mgpu_value *v, int rank,
                 const struct mgpu_dim *dims)
{
    char text[2][MGPU_SHAPE_TEXT];
    if (v->rank == rank && mgpu_dims_equal(rank, v->dims, dims))
        return 0;
    return mgpu_fail(MGPU_EINVALID, "%s: %s is not the expected %s", node->op->name,
                     mgpu_dims_text(text[0], v->rank, v->dims),
                     mgpu_dims_text(text[1], rank, dims));
}

static int sample_shape(const struct mgpu_node *node)
{
    const struct mgpu_grid_sample_attrs *a = node->attrs;
    struct mgpu_dim dims[MGPU_MAX_RANK];
    MGPU_TRY(check(node, node->input[0], (int)a->rank, a->dims));
    MGPU_TRY(sampled_dims(node, node->input[1], dims));
    mgpu_shape_set(node, 0, node->input[0]->type, (int)a->rank, dims);
    return 0;
}

static int data_shape(const struct mgpu_node *node)
{
    const struct mgpu_grid_sample_attrs *a = node->attrs;
    struct mgpu_dim dims[MGPU_MAX_RANK];
    MGPU_TRY(sampled_dims(node, node->input[1], dims));
    MGPU_TRY(check(node, node->input[0], (int)a->rank, dims));
    mgpu_shape_set(node, 0, node->input[0]->type, (int)a->rank, a->dims);
    return 0;
}

static int grid_shape(const struct mgpu_node *node)
{
    const struct mgpu_grid_sample_attrs *a = node->attrs;
    struct mgpu_dim dims[MGPU_MAX_RANK];
    MGPU_TRY(sampled_dims(node, node->input[2], dims));
    MGPU_TRY(check(node, node->input[0], (int)a->rank, dims));
    MGPU_TRY(check(node, node->input[1], (int)a->rank, a->dims));
    mgpu_shape_like(node, 0, node->input[2]);
    return 0;
}

static int sample_gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                           struct mgpu_value *const *dy, const bool *wanted, struct mgpu_value **dx)
{
    struct mgpu_value *x = node->input[0], *grid = node->input[1];
    if (!dy[0])
        return 0;
    if (wanted[0])
        dx[0] = mgpu_build1(g, &mgpu_op_grid_sample_data, node->attrs, 2,
                            (struct mgpu_value *[]){dy[0], grid});
    if (wanted[1])
        dx[1] = mgpu_build1(g, &mgpu_op_grid_sample_grid, node->attrs, 3,
                            (struct mgpu_value *[]){dy[0], x, grid});
    return (wanted[0] && !dx[0]) || (wanted[1] && !dx[1]) ? mgpu_build_error() : 0;
}

/* A few operations for each tap of each sampled element. */
static struct mgpu_cost cost(const struct mgpu_node *node)
{
    const struct mgpu_grid_sample_attrs *a = node->attrs;
    bool forward = node->op == &mgpu_op_grid_sample;
    const struct mgpu_value *y = forward ? node->output[0] : node->input[0];
    double along = a->mode == MGPU_GRID_NEAREST ? 1 : a->mode == MGPU_GRID_LINEAR ? 2 : 4, taps = 1;
    for (int i = 2; i < a->rank; i++)
        taps *= along;
    double each = node->op == &mgpu_op_grid_sample_grid ? 2 * (double)(a->rank - 2) : 2;
    return (struct mgpu_cost){.flops = each * taps * (double)mgpu_value_count(y),
                              .bytes = mgpu_operand_bytes(node)};
}

struct mgpu_value *mgpu_grid_sample(struct mgpu_graph *g, struct mgpu_value *x,
                                    struct mgpu_value *grid, enum mgpu_grid_mode mode,
                                    enum mgpu_grid_padding padding, bool align_corners)
{
    if (!x || !grid)
        return NULL;
    struct mgpu_grid_sample_attrs a = {.mode = (int)mode,
                                       .padding = (int)padding,
                                       .align_corners = align_corners,
                                       .rank = x->rank,
                                       .dims = mgpu_dims_copy(g, x->rank, x->dims)};
    return mgpu_build1(g, &mgpu_op_grid_sample, &a, 2, (struct mgpu_value *[]){x, grid});
}

#define RECORD(text, count, bits, shape_rule, gradient_rule, saved_rule)                           \
    {                                                                                              \
        .name = text, .min_inputs = count, .max_inputs = count, .outputs = 1, .flags = bits,       \
        .attrs_size = sizeof(struct mgpu_grid_sample_attrs), .attrs = attrs, .shape = shape_rule,  \
        .gradient = gradient_rule, .saved = saved_rule, .alias = mgpu_alias_none,                  \
        .workspace = mgpu_workspace_none, .layouts = mgpu_layouts_plain, .cost = cost,             \
        .split = mgpu_split_samples                                                                \
    }

const struct mgpu_op mgpu_op_grid_sample =
    RECORD("grid_sample", 2, 0, sample_shape, sample_gradient, mgpu_saved_inputs);
const struct mgpu_op mgpu_op_grid_sample_data =
    RECORD("grid_sample_data", 2, MGPU_OP_GRADIENT_ONLY, data_shape, mgpu_gradient_none,
           mgpu_saved_nothing);
const struct mgpu_op mgpu_op_grid_sample_grid =
    RECORD("grid_sample_grid", 3, MGPU_OP_GRADIENT_ONLY, grid_shape, mgpu_gradient_none,
           mgpu_saved_nothing);
