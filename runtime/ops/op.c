/* Rules that many operator records share. */
#include "runtime/base/status.h"
#include "runtime/ops/op.h"

#include <string.h>

void mgpu_saved_nothing(const struct mgpu_node *node, unsigned *inputs, unsigned *outputs)
{
    (void)node;
    *inputs = *outputs = 0;
}

void mgpu_saved_inputs(const struct mgpu_node *node, unsigned *inputs, unsigned *outputs)
{
    *inputs = node->inputs >= 32 ? ~0u : (1u << node->inputs) - 1;
    *outputs = 0;
}

int mgpu_alias_none(const struct mgpu_node *node, struct mgpu_alias *pairs)
{
    (void)node;
    (void)pairs;
    return 0;
}

int mgpu_alias_view(const struct mgpu_node *node, struct mgpu_alias *pairs)
{
    (void)node;
    pairs[0] = (struct mgpu_alias){.view = true};
    return 1;
}

int mgpu_alias_in_place(const struct mgpu_node *node, struct mgpu_alias *pairs)
{
    (void)node;
    pairs[0] = (struct mgpu_alias){.view = false};
    return 1;
}

int64_t mgpu_workspace_none(const struct mgpu_node *node)
{
    (void)node;
    return 0;
}

unsigned mgpu_layouts_plain(const struct mgpu_node *node, int operand)
{
    (void)node;
    (void)operand;
    return MGPU_LAYOUT_PLAIN;
}

unsigned mgpu_layouts_any(const struct mgpu_node *node, int operand)
{
    (void)node;
    (void)operand;
    return MGPU_LAYOUT_ANY;
}

double mgpu_operand_bytes(const struct mgpu_node *node)
{
    double bytes = 0;
    for (int i = 0; i < node->inputs; i++)
        if (node->input[i])
            bytes += (double)mgpu_value_bytes(node->input[i]);
    for (int i = 0; i < node->outputs; i++)
        if (node->output[i])
            bytes += (double)mgpu_value_bytes(node->output[i]);
    return bytes;
}

struct mgpu_cost mgpu_cost_move(const struct mgpu_node *node)
{
    return (struct mgpu_cost){.bytes = mgpu_operand_bytes(node)};
}

int mgpu_gradient_none(struct mgpu_graph *g, const struct mgpu_node *node,
                       struct mgpu_value *const *dy, const bool *wanted, struct mgpu_value **dx)
{
    (void)g;
    (void)dy;
    (void)wanted;
    (void)dx;
    return mgpu_fail(MGPU_EUNSUPPORTED, "%s has no gradient", node->op->name);
}

struct mgpu_split mgpu_split_make(enum mgpu_split_kind kind, int axis, int64_t outer)
{
    return (struct mgpu_split){.kind = kind, .axis = axis, .outer = outer};
}

bool mgpu_split_is_term(struct mgpu_split split)
{
    return split.kind == MGPU_SPLIT_SUM || split.kind == MGPU_SPLIT_MEAN;
}

bool mgpu_split_same(struct mgpu_split a, struct mgpu_split b)
{
    return a.kind == b.kind &&
           (a.kind != MGPU_SPLIT_AXIS || (a.axis == b.axis && a.outer == b.outer));
}

static void all_outputs(const struct mgpu_node *node, struct mgpu_split *out, struct mgpu_split s)
{
    for (int i = 0; i < node->outputs; i++)
        out[i] = s;
}

enum mgpu_split_answer mgpu_split_samples(const struct mgpu_node *node, const struct mgpu_split *in,
                                          struct mgpu_split *out, int *which)
{
    struct mgpu_split s = mgpu_split_make(MGPU_SPLIT_REPLICATED, 0, 1);
    for (int i = 0; i < node->inputs; i++) {
        *which = i;
        if (mgpu_split_is_term(in[i]))
            return MGPU_SPLIT_FULL;
        if (in[i].kind == MGPU_SPLIT_AXIS && (in[i].axis != 0 || in[i].outer != 1))
            return MGPU_SPLIT_MIXES;
        if (in[i].kind == MGPU_SPLIT_AXIS)
            s = in[i];
    }
    all_outputs(node, out, s);
    return MGPU_SPLIT_OK;
}

enum mgpu_split_answer mgpu_split_replicated(const struct mgpu_node *node,
                                             const struct mgpu_split *in, struct mgpu_split *out,
                                             int *which)
{
    for (int i = 0; i < node->inputs; i++) {
        *which = i;
        if (mgpu_split_is_term(in[i]))
            return MGPU_SPLIT_FULL;
        if (in[i].kind != MGPU_SPLIT_REPLICATED)
            return MGPU_SPLIT_MIXES;
    }
    all_outputs(node, out, mgpu_split_make(MGPU_SPLIT_REPLICATED, 0, 1));
    return MGPU_SPLIT_OK;
}

void mgpu_shape_set(const struct mgpu_node *node, int output, enum mgpu_dtype type, int rank,
                    const struct mgpu_dim *dims)
{
    struct mgpu_value *v = output < node->outputs ? node->output[output] : NULL;
    if (!v)
        return;
    v->type = type;
    v->rank = rank;
    if (rank)
        memcpy(v->dims, dims, sizeof *dims * (size_t)rank);
}

void mgpu_shape_like(const struct mgpu_node *node, int output, const struct mgpu_value *like)
{
    mgpu_shape_set(node, output, like->type, like->rank, like->dims);
}
