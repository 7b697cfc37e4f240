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

/* The core operator that does the work, where it is not arithmetic on elements. "": nothing is left
 * of it when the model runs: it is a constant by then, or only what stands in it is. test_gradients
 * compares it with what operators become. */
static const struct {
    const char *type, *core;
} cores[] = {
    {"AffineGrid", "matmul"},
    {"ArgMax", "arg_reduce"},
    {"ArgMin", "arg_reduce"},
    {"Attention", "matmul"},
    {"AveragePool", "average_pool"},
    {"BatchNormalization", "batch_norm"},
    {"Bernoulli", "random_uniform"},
    {"BitCast", "bit_cast"},
    {"BlackmanWindow", ""},
    {"CausalConvWithState", "conv"},
    {"CenterCropPad", "pad"},
    {"Col2Im", "conv_grad_input"},
    {"Compress", "gather"},
    {"Concat", "concat"},
    {"ConcatFromSequence", "concat"},
    {"ConstantOfShape", ""},
    {"Conv", "conv"},
    {"ConvInteger", "conv"},
    {"ConvTranspose", "conv_grad_input"},
    {"CumSum", "cumsum"},
    {"DFT", "matmul"},
    {"DeformConv", "matmul"},
    {"DepthToSpace", "transpose"},
    {"Det", "det"},
    {"DynamicQuantizeLinear", "reduce"},
    {"Einsum", "matmul"},
    {"Expand", "expand"},
    {"EyeLike", ""},
    {"Flatten", "reshape"},
    {"GRU", "rnn"},
    {"Gather", "gather"},
    {"GatherElements", "gather_elements"},
    {"GatherND", "gather_nd"},
    {"Gemm", "matmul"},
    {"GlobalAveragePool", "reduce"},
    {"GlobalLpPool", "reduce"},
    {"GlobalMaxPool", "max_pool"},
    {"GridSample", "grid_sample"},
    {"GroupNormalization", "group_norm"},
    {"HammingWindow", ""},
    {"HannWindow", ""},
    {"Identity", ""},
    {"If", ""},
    {"InstanceNormalization", "group_norm"},
    {"LRN", "average_pool"},
    {"LSTM", "rnn"},
    {"LayerNormalization", "group_norm"},
    {"LinearAttention", "matmul"},
    {"LogSoftmax", "softmax"},
    {"Loop", ""},
    {"LpNormalization", "reduce"},
    {"LpPool", "average_pool"},
    {"MatMul", "matmul"},
    {"MatMulInteger", "matmul"},
    {"MaxPool", "max_pool"},
    {"MaxRoiPool", "gather"},
    {"MaxUnpool", "scatter_elements"},
    {"MeanVarianceNormalization", "reduce"},
    {"MelWeightMatrix", ""},
    {"Multinomial", "random_uniform"},
    {"NegativeLogLikelihoodLoss", "gather_elements"},
    {"NonMaxSuppression", ""},
    {"NonZero", ""},
    {"Optional", ""},
    {"OptionalGetElement", ""},
    {"OptionalHasElement", ""},
    {"Pad", "pad"},
    {"QLinearConv", "conv"},
    {"QLinearMatMul", "matmul"},
    {"RMSNormalization", "group_norm"},
    {"RNN", "rnn"},
    {"RandomNormal", "random_uniform"},
    {"RandomNormalLike", "random_uniform"},
    {"RandomUniform", "random_uniform"},
    {"RandomUniformLike", "random_uniform"},
    {"Range", ""},
    {"ReduceL1", "reduce"},
    {"ReduceL2", "reduce"},
    {"ReduceLogSum", "reduce"},
    {"ReduceLogSumExp", "reduce"},
    {"ReduceMax", "reduce"},
    {"ReduceMean", "reduce"},
    {"ReduceMin", "reduce"},
    {"ReduceProd", "reduce"},
    {"ReduceSum", "reduce"},
    {"ReduceSumSquare", "reduce"},
    {"Reshape", "reshape"},
    {"Resize", "resize"},
    {"ReverseSequence", "gather_elements"},
    {"RoiAlign", "gather"},
    {"STFT", "matmul"},
    {"Scan", ""},
    {"Scatter", "scatter_elements"},
    {"ScatterElements", "scatter_elements"},
    {"ScatterND", "scatter_nd"},
    {"SequenceAt", ""},
    {"SequenceConstruct", ""},
    {"SequenceEmpty", ""},
    {"SequenceErase", ""},
    {"SequenceInsert", ""},
    {"SequenceLength", ""},
    {"SequenceMap", ""},
    {"Shape", ""},
    {"Size", ""},
    {"Slice", "slice"},
    {"Softmax", "softmax"},
    {"SoftmaxCrossEntropyLoss", "softmax"},
    {"SpaceToDepth", "transpose"},
    {"Split", "slice"},
    {"SplitToSequence", "slice"},
    {"Squeeze", "reshape"},
    {"TensorScatter", "scatter_elements"},
    {"Tile", "expand"},
    {"TopK", "topk"},
    {"Transpose", "transpose"},
    {"Unique", ""},
    {"Unsqueeze", "reshape"},
    {"Upsample", "resize"},
    {"ai.onnx.preview.training.Gradient", ""},
};

static const char *core_of(const char *type)
{
    for (size_t i = 0; i < sizeof cores / sizeof *cores; i++)
        if (!strcmp(cores[i].type, type))
            return cores[i].core;
    return "pointwise";
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
            list[count++] = (struct mgpu_onnx_operator){
                row->type, row->since, row->until, has_gradient(row->type), core_of(row->type)};
        }
    qsort(list, (size_t)count, sizeof *list, by_type);
    *out = list;
    return merge(list, count);
}
