/* Records of random_mask and random_uniform. */
#include "runtime/ops/random.h"

#include <stddef.h>

#include "runtime/graph/step_scalar.h"
#include "runtime/ops/build.h"
#include "runtime/ops/dims.h"

static int shape(const struct mgpu_node *node)
{
    const struct mgpu_random_attrs *a = node->attrs;
    enum mgpu_dtype type = (enum mgpu_dtype)a->type;
    int axis = mgpu_dims_batch_axis((int)a->rank, a->dims);
    if (!mgpu_is_float(type) || !(a->probability >= 0 && a->probability <= 1))
        return mgpu_fail(MGPU_EINVALID, "%s: probability %g of type %s", node->op->name,
                         a->probability, mgpu_dtype_name(type));
    for (int i = 0; i < 3; i++)
        if (node->input[i]->rank || node->input[i]->type != MGPU_DOUBLE)
            return mgpu_fail(MGPU_EINTERNAL, "%s: input %d is no step scalar", node->op->name, i);
    if (axis >= 0 && !mgpu_dims_batch((int)a->rank, a->dims, 0, NULL))
        return mgpu_fail(MGPU_EUNSUPPORTED, "%s: the sizes do not tell how axis %d holds the batch",
                         node->op->name, axis);
    mgpu_shape_set(node, 0, type, (int)a->rank, a->dims);
    return 0;
}

static struct mgpu_cost cost(const struct mgpu_node *node)
{
    double n = (double)mgpu_value_count(node->output[0]);
    return (struct mgpu_cost){.flops = 30 * n, .bytes = mgpu_operand_bytes(node)};
}

/* Each rank makes the mask of its own samples; sample_base differs from rank to rank, yet counts as
 * the same everywhere. */
static enum mgpu_split_answer split(const struct mgpu_node *node, const struct mgpu_split *in,
                                    struct mgpu_split *out, int *which)
{
    const struct mgpu_value *y = node->output[0];
    int axis = mgpu_dims_batch_axis(y->rank, y->dims);
    (void)in;
    if (axis < -1)
        return mgpu_split_no(which, 0, MGPU_SPLIT_MIXES);
    return axis < 0 ? mgpu_split_ok(out, MGPU_SPLIT_REPLICATED, 0, 1)
                    : mgpu_split_ok(out, MGPU_SPLIT_AXIS, axis, 1);
}

#define RANDOM(field, which)                                                                       \
    {                                                                                              \
        .name = #field, .kind = which, .offset = offsetof(struct mgpu_random_attrs, field)         \
    }

static const struct mgpu_attr attrs[] = {
    RANDOM(probability, MGPU_ATTR_FLOAT), RANDOM(salt, MGPU_ATTR_INT),  RANDOM(type, MGPU_ATTR_INT),
    RANDOM(rank, MGPU_ATTR_INT),          RANDOM(dims, MGPU_ATTR_DIMS), {0}};

#define RECORD(name_)                                                                              \
    {                                                                                              \
        .name = name_, .min_inputs = 3, .max_inputs = 3, .outputs = 1,                             \
        .flags = MGPU_OP_NO_FOLD | MGPU_OP_NO_GRADIENT,                                            \
        .attrs_size = sizeof(struct mgpu_random_attrs), .attrs = attrs, .shape = shape,            \
        .saved = mgpu_saved_nothing, .alias = mgpu_alias_none, .workspace = mgpu_workspace_none,   \
        .layouts = mgpu_layouts_plain, .cost = cost, .split = split,                               \
    }

const struct mgpu_op mgpu_op_random_mask = RECORD("random_mask");
const struct mgpu_op mgpu_op_random_uniform = RECORD("random_uniform");

static struct mgpu_value *build(struct mgpu_graph *g, const struct mgpu_op *op,
                                struct mgpu_random_attrs a)
{
    struct mgpu_value *input[] = {mgpu_graph_scalar(g, MGPU_SCALAR_KEY, "random key"),
                                  mgpu_graph_scalar(g, MGPU_SCALAR_STEP, "step"),
                                  mgpu_graph_scalar(g, MGPU_SCALAR_SAMPLE_BASE, "first sample")};
    a.dims = mgpu_dims_copy(g, (int)a.rank, a.dims);
    return mgpu_build1(g, op, &a, 3, input);
}

struct mgpu_value *mgpu_random_mask(struct mgpu_graph *g, double probability, int64_t salt,
                                    enum mgpu_dtype type, int rank, const struct mgpu_dim *dims)
{
    struct mgpu_random_attrs a = {
        .probability = probability, .salt = salt, .type = type, .rank = rank, .dims = dims};
    return build(g, &mgpu_op_random_mask, a);
}

struct mgpu_value *mgpu_random_uniform(struct mgpu_graph *g, int64_t salt, enum mgpu_dtype type,
                                       int rank, const struct mgpu_dim *dims)
{
    struct mgpu_random_attrs a = {.salt = salt, .type = type, .rank = rank, .dims = dims};
    return build(g, &mgpu_op_random_uniform, a);
}
