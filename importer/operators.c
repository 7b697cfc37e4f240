#include "importer/operators.h"

#include "importer/lower.h"

#include <stdlib.h>
#include <string.h>

/* Operators that no gradient passes. All others are in test_gradients, against central differences.
 */
static const char *const no_gradient[] = {
    "And",
    "ArgMax",
    "ArgMin",
    "Bernoulli",
    "BitCast",
    "BitShift",
    "BitwiseAnd",
    "BitwiseNot",
    "BitwiseOr",
    "BitwiseXor",
    "BlackmanWindow",
    "Ceil",
    "Constant",
    "ConstantOfShape",
    "ConvInteger",
    "DynamicQuantizeLinear",
    "Equal",
    "EyeLike",
    "Floor",
    "Greater",
    "GreaterOrEqual",
    "HammingWindow",
    "HannWindow",
    "Hardmax",
    "IsInf",
    "IsNaN",
    "Less",
    "LessOrEqual",
    "MatMulInteger",
    "MelWeightMatrix",
    "Multinomial",
    "NonMaxSuppression",
    "NonZero",
    "Not",
    "OptionalHasElement",
    "Or",
    "QLinearConv",
    "QLinearMatMul",
    "QuantizeLinear",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Range",
    "Round",
    "SequenceLength",
    "Shape",
    "Sign",
    "Size",
    "Unique",
    "Xor",
};

static bool has_gradient(const char *type)
{
    for (size_t i = 0; i < sizeof no_gradient / sizeof *no_gradient; i++)
        if (!strcmp(no_gradient[i], type))
            return false;
    return true;
}

static int by_type(const void *a, const void *b)
{
    const struct mgpu_onnx_operator *x = a, *y = b;
    int order = strcmp(x->type, y->type);
    return order ? order : x->since - y->since;
}

/* Rows of one operator for neighbouring opsets become one. */
static int merge(struct mgpu_onnx_operator *list, int count)
{
    int kept = 0;
    for (int i = 0; i < count; i++)
        if (kept && !strcmp(list[kept - 1].type, list[i].type))
            list[kept - 1].until = list[i].until;
        else
            list[kept++] = list[i];
    return kept;
}

int mgpu_onnx_operators(struct mgpu_onnx_operator **out)
{
    struct mgpu_onnx_operator *list = NULL;
    int count = 0;
    for (int f = 0; mgpu_lower_families[f]; f++)
        for (const struct mgpu_lowering *row = mgpu_lower_families[f]; row->type; row++) {
            list = mgpu_grow(list, (size_t)count, sizeof *list);
            list[count++] = (struct mgpu_onnx_operator){row->type, row->since, row->until,
                                                        has_gradient(row->type)};
        }
    qsort(list, (size_t)count, sizeof *list, by_type);
    *out = list;
    return merge(list, count);
}
