/* Softmax and the losses that ONNX has as operators. */
#include "importer/lower.h"
#include "runtime/base/status.h"
#include "runtime/ops/dims.h"
#include "runtime/ops/gather.h"

#include <inttypes.h>
#include <string.h>

/* ---- Softmax -------------------------------------------------------------------------------- */

/* Along one axis; before opset 13 over all axes from `axis` on together. */
static int softmax(struct mgpu_lower *l, bool logarithm)
{
    int64_t axis;
    bool flat = l->node->opset < 13;
    MGPU_TRY(mgpu_lower_need(l, 1));
    struct mgpu_value *x = mgpu_lower_in(l, 0);
    MGPU_TRY(mgpu_lower_axis(&axis, mgpu_onnx_int(l->node, "axis", flat ? 1 : -1), x->rank));
    if (!flat || axis == x->rank - 1)
        return mgpu_lower_give(l, mgpu_softmax(l->g, x, (int)axis, logarithm));
    struct mgpu_value *y = mgpu_lower_flatten(l, x, (int)axis);
    y = mgpu_softmax(l->g, y, 1, logarithm);
    return mgpu_lower_give(l, mgpu_reshape(l->g, y, x->rank, x->dims));
}

static int lower_softmax(struct mgpu_lower *l)
{
    return softmax(l, false);
}

static int lower_log_softmax(struct mgpu_lower *l)
{
    return softmax(l, true);
}

/* ---- Losses --------------------------------------------------------------------------------- */

/* Per position: the label made safe to gather with, and what the position counts. */
struct labels {
    struct mgpu_value *safe;   /* int64; 0 where ignored */
    struct mgpu_value *weight; /* class weight of the label, or 1; 0 where ignored */
};

static struct mgpu_value *ignored(struct mgpu_lower *l, struct mgpu_value *label)
{
    if (!mgpu_onnx_attribute(l->node, "ignore_index"))
        return NULL;
    struct mgpu_expr e;
    mgpu_expr_begin(&e, 1);
    int index = mgpu_expr_integer(&e, MGPU_INT64, mgpu_onnx_int(l->node, "ignore_index", 0));
    int y = mgpu_expr_2(&e, MGPU_X_EQ, mgpu_expr_input(&e, 0, MGPU_INT64), index);
    return mgpu_pointwise(l->g, mgpu_expr_end(&e, y, l->g->arena), 1, &label);
}

static int read_labels(struct mgpu_lower *l, enum mgpu_dtype type, struct labels *out)
{
    struct mgpu_value *label = mgpu_cast(l->g, mgpu_lower_in(l, 1), MGPU_INT64);
    struct mgpu_value *classes = mgpu_lower_in(l, 2);
    struct mgpu_value *skip = label ? ignored(l, label) : NULL;
    struct mgpu_gather_attrs attrs = {.axis = 0};
    if (!label || (!skip && mgpu_onnx_attribute(l->node, "ignore_index")))
        return mgpu_build_error();
    out->safe =
        skip ? mgpu_where(l->g, skip, mgpu_const_double(l->g, MGPU_INT64, 0), label) : label;
    if (classes)
        out->weight = mgpu_lower_node(l, &mgpu_op_gather, &attrs, 2,
                                      (struct mgpu_value *[]){classes, out->safe});
    else
        out->weight =
            mgpu_broadcast(l->g, mgpu_const_double(l->g, type, 1), label->rank, label->dims);
    if (skip && out->weight)
        out->weight = mgpu_where(l->g, skip, mgpu_const_double(l->g, type, 0), out->weight);
    return out->safe && out->weight ? 0 : mgpu_build_error();
}

/* -weight * log_prob[label] at each position; none, their sum, or their sum over the sum of the
 * weights. Classes stand on axis 1. */
static int nll(struct mgpu_lower *l, struct mgpu_value *log_prob)
{
    struct labels labels = {0};
    struct mgpu_dim dims[MGPU_MAX_RANK];
    struct mgpu_gather_attrs attrs = {.axis = 1};
    const char *reduction = mgpu_onnx_string(l->model, l->node, "reduction", "mean");
    if (log_prob->rank < 2 || mgpu_lower_in(l, 1)->rank != log_prob->rank - 1)
        return mgpu_fail(MGPU_EINVALID, "scores of rank %d, labels of rank %d", log_prob->rank,
                         mgpu_lower_in(l, 1)->rank);
    MGPU_TRY(read_labels(l, log_prob->type, &labels));
    for (int i = 0; i < log_prob->rank; i++)
        dims[i] = i == 1 ? mgpu_dim_const(1) : log_prob->dims[i];
    struct mgpu_value *index = mgpu_reshape(l->g, labels.safe, log_prob->rank, dims);
    struct mgpu_value *picked = mgpu_lower_node(l, &mgpu_op_gather_elements, &attrs, 2,
                                                (struct mgpu_value *[]){log_prob, index});
    picked = mgpu_reshape(l->g, picked, labels.safe->rank, labels.safe->dims);
    struct mgpu_value *loss = mgpu_unary(l->g, MGPU_X_NEG, mgpu_mul(l->g, picked, labels.weight));
    if (!strcmp(reduction, "none"))
        return mgpu_lower_give(l, loss);
    unsigned all = (1u << labels.safe->rank) - 1;
    loss = mgpu_reduce(l->g, MGPU_REDUCE_SUM, loss, all, false);
    if (!strcmp(reduction, "sum"))
        return mgpu_lower_give(l, loss);
    if (strcmp(reduction, "mean"))
        return mgpu_fail(MGPU_EINVALID, "reduction '%s'", reduction);
    struct mgpu_value *count = mgpu_reduce(l->g, MGPU_REDUCE_SUM, labels.weight, all, false);
    return mgpu_lower_give(l, mgpu_div(l->g, loss, count));
}

static int lower_nll(struct mgpu_lower *l)
{
    MGPU_TRY(mgpu_lower_need(l, 2));
    return nll(l, mgpu_lower_in(l, 0));
}

static int lower_softmax_cross_entropy(struct mgpu_lower *l)
{
    MGPU_TRY(mgpu_lower_need(l, 2));
    struct mgpu_value *log_prob = mgpu_softmax(l->g, mgpu_lower_in(l, 0), 1, true);
    if (!log_prob)
        return mgpu_build_error();
    l->out[1] = log_prob;
    return nll(l, log_prob);
}

const struct mgpu_lowering mgpu_lower_loss[] = {
    {"Softmax", 1, 0, lower_softmax},
    {"LogSoftmax", 1, 0, lower_log_softmax},
    {"NegativeLogLikelihoodLoss", 12, 0, lower_nll},
    {"SoftmaxCrossEntropyLoss", 12, 0, lower_softmax_cross_entropy},
    {0},
};
