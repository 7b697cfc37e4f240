/* Rows of test_gradients: models of one operator each. Every floating input is differentiated. The
 * output is y unless the text says otherwise. */
#ifndef MGPU_TESTS_GRADIENT_ROWS_H
#define MGPU_TESTS_GRADIENT_ROWS_H

/* Formulas of one input, run over several shapes: operator, attributes, numbers in [low, high]. */
static const struct {
    const char *type, *attributes;
    double low, high;
} unary[] = {
    {"Abs", "", -2, 2},
    {"Neg", "", -2, 2},
    {"Identity", "", -2, 2},
    {"Sqrt", "", 0.5, 2},
    {"Reciprocal", "", 0.5, 2},
    {"Exp", "", -2, 2},
    {"Log", "", 0.5, 2},
    {"Sin", "", -2, 2},
    {"Cos", "", -2, 2},
    {"Tan", "", -1, 1},
    {"Asin", "", -0.9, 0.9},
    {"Acos", "", -0.9, 0.9},
    {"Atan", "", -2, 2},
    {"Sinh", "", -2, 2},
    {"Cosh", "", -2, 2},
    {"Tanh", "", -2, 2},
    {"Asinh", "", -2, 2},
    {"Acosh", "", 1.2, 3},
    {"Atanh", "", -0.9, 0.9},
    {"Erf", "", -2, 2},
    {"Sigmoid", "", -3, 3},
    {"Softplus", "", -3, 3},
    {"Softsign", "", -3, 3},
    {"Relu", "", -2, 2},
    {"LeakyRelu", "alpha=0.3", -2, 2},
    {"Elu", "alpha=0.7", -2, 2},
    {"Selu", "", -2, 2},
    {"Selu", "alpha=2.0 gamma=3.0", -2, 2},
    {"Celu", "alpha=0.6", -2, 2},
    {"Gelu", "", -2, 2},
    {"Gelu", "approximate=\"tanh\"", -2, 2},
    {"HardSigmoid", "", -4, 4},
    {"HardSigmoid", "alpha=0.5 beta=0.6", -2, 2},
    {"HardSwish", "", -5, 5},
    {"Mish", "", -2, 2},
    {"ThresholdedRelu", "alpha=0.4", -2, 2},
    {"Swish", "alpha=1.5", -2, 2},
    {"Shrink", "lambd=0.7 bias=0.2", -2, 2},
    {"Dropout", "", -2, 2},
    {"Cast", "to=11", -2, 2},
};
static const char *const unary_shapes[] = {"2 3", "", "0 3", "1", "2 1 2"};

/* Formulas of two or more inputs, run over shapes that broadcast. */
static const struct {
    const char *type, *attributes;
    double low, high;
} binary[] = {
    {"Add", "", -2, 2},  {"Sub", "", -2, 2},      {"Mul", "", -2, 2}, {"Div", "", 0.5, 2},
    {"Pow", "", 0.5, 2}, {"Max", "", -2, 2},      {"Min", "", -2, 2}, {"Mean", "", -2, 2},
    {"Sum", "", -2, 2},  {"Mod", "fmod=1", 1, 3},
};
static const char *const binary_shapes[][2] = {
    {"2 3", "2 3"}, {"2 3", "3"}, {"2 1", "1 3"}, {"", "2 3"},
    {"0 3", "3"},   {"2 3", ""},  {"1", "1"},
};

/* Reductions, over all axes or some, kept or not. */
static const struct {
    const char *type;
    double low, high;
} reductions[] = {
    {"ReduceSum", -2, 2},       {"ReduceMean", -2, 2},      {"ReduceMax", -2, 2},
    {"ReduceMin", -2, 2},       {"ReduceProd", 0.5, 2},     {"ReduceL1", -2, 2},
    {"ReduceL2", 0.5, 2},       {"ReduceSumSquare", -2, 2}, {"ReduceLogSum", 0.5, 2},
    {"ReduceLogSumExp", -2, 2},
};
static const struct {
    const char *shape, *axes; /* as an int64 tensor; "" : none is given */
} reduced[] = {
    {"2 1 3", ""},      {"2 1 3", "1 = -1"}, {"2 1 3", "2 = 0 -1"},
    {"2 1 3", "1 = 1"}, {"3", "1 = 0"},      {"2 0", "1 = 0"},
};

static const struct {
    const char *text;
    double low, high; /* both 0: -1 .. 1 */
} rows[] = {
    /* bounds and choices */
    {"input x float 2 3\ninit lo float = -0.3\ninit hi float = 0.5\ny = Clip(x, lo, hi)\n", 0, 0},
    {"opset 6\ninput x float 2 3\ny = Clip(x) max=0.2\n", 0, 0},
    {"input x float 2 3\ninput lo float\ny = Clip(x, lo)\n", 0, 0},
    {"input x float 2 3\ninput s float 3\ny = PRelu(x, s)\n", 0, 0},
    {"input a float 2 1\ninput b float 3\ninit c bool 2 3 = 1 0 1 0 0 1\ny = Where(c, a, b)\n", 0,
     0},
    {"input x float 2 3\ninit l double = 0\ny = CastLike(x, l)\n", 0, 0},
    {"opset 6\ninput a float 2 3 1\ninput b float 3\ny = Mul(a, b) broadcast=1 axis=1\n", 0, 0},
    {"input x float 2 3\ninit p float = 2\ny = Pow(x, p)\n", 0, 0},
    {"input x float 2 3\ninit p float = -3\ny = Pow(x, p)\n", 0.5, 2},
    {"input x float 2 3\ninit c bool = 1\ngraph a {\ny = Mul(x, x)\noutput y\n}\n"
     "graph b {\nz = Neg(x)\noutput z\n}\ny = If(c) then_branch=@a else_branch=@b\n",
     0, 0},
    /* shapes */
    {"input x float 2 3\ninit s int64 2 = -1 2\ny = Reshape(x, s)\n", 0, 0},
    {"input x float 2 3 2\ny = Flatten(x) axis=-1\n", 0, 0},
    {"input x float 1 3 1\ninit a int64 1 = -1\ny = Squeeze(x, a)\n", 0, 0},
    {"input x float 3\ninit a int64 2 = 0 -1\ny = Unsqueeze(x, a)\n", 0, 0},
    {"input x float 2 3 2\ny = Transpose(x) perm=[1, 2, 0]\n", 0, 0},
    {"input x float 2 1\ninit s int64 3 = 2 1 3\ny = Expand(x, s)\n", 0, 0},
    {"input x float 2 2\ninit r int64 2 = 1 3\ny = Tile(x, r)\n", 0, 0},
    {"input x float 2 3\ny = Trilu(x) upper=0\n", 0, 0},
    {"input a float 2 1\ninput b float 2 2\ninput c float 2 0\ny = Concat(a, b, c) axis=-1\n", 0,
     0},
    {"opset 18\ninput x float 5\ny, z = Split(x) num_outputs=2\noutput y\noutput z\n", 0, 0},
    {"input x float 5 2\ninit s int64 1 = -1\ninit e int64 1 = -9\ninit a int64 1 = -2\n"
     "init t int64 1 = -2\ny = Slice(x, s, e, a, t)\n",
     0, 0},
    {"input x float 3\ninit s int64 1 = 2\ninit e int64 1 = 1\ny = Slice(x, s, e)\n", 0, 0},
    {"input x float 2 3\ninput v float\ninit p int64 4 = 1 0 -1 2\ny = Pad(x, p, v)\n", 0, 0},
    {"input x float 2 3\ninit p int64 4 = 1 2 0 1\ny = Pad(x, p) mode=\"reflect\"\n", 0, 0},
    {"input x float 2 3\ninit p int64 4 = 1 2 0 1\ny = Pad(x, p) mode=\"edge\"\n", 0, 0},
    {"opset 19\ninput x float 2 3\ninit p int64 4 = 1 2 0 1\ny = Pad(x, p) mode=\"wrap\"\n", 0, 0},
    {"opset 18\ninput x float 2 3\ninit s int64 2 = 3 2\ny = CenterCropPad(x, s)\n", 0, 0},
    {"input x float 4 2\ninit n int64 2 = 3 1\ny = ReverseSequence(x, n)\n", 0, 0},
    {"input x float 1 4 1 2\ny = DepthToSpace(x) blocksize=2\n", 0, 0},
    {"input x float 1 4 1 2\ny = DepthToSpace(x) blocksize=2 mode=\"CRD\"\n", 0, 0},
    {"input x float 1 1 2 4\ny = SpaceToDepth(x) blocksize=2\n", 0, 0},
    /* indices */
    {"input x float 2 3\ninit i int64 2 2 = -1 0 0 1\ny = Gather(x, i) axis=-1\n", 0, 0},
    {"input x float 3 2\ninit i int64 2 2 = -1 0 0 1\ny = GatherElements(x, i)\n", 0, 0},
    {"input x float 2 3 2\ninit i int64 2 1 = -1 1\ny = GatherND(x, i) batch_dims=1\n", 0, 0},
    {"opset 10\ninput x float 3 2\ninit i int64 1 2 = 2 0\ninput u float 1 2\ny = Scatter(x, i, "
     "u)\n",
     0, 0},
    {"input x float 3 2\ninit i int64 1 2 = -1 0\ninput u float 1 2\ny = ScatterElements(x, i, "
     "u)\n",
     0, 0},
    {"opset 18\ninput x float 3\ninit i int64 2 = 1 1\ninput u float 2\n"
     "y = ScatterElements(x, i, u) reduction=\"add\"\n",
     0, 0},
    {"opset 18\ninput x float 3\ninit i int64 2 = 1 1\ninput u float 2\n"
     "y = ScatterElements(x, i, u) reduction=\"mul\"\n",
     0, 0},
    {"opset 18\ninput x float 3\ninit i int64 2 = 1 1\ninput u float 2\n"
     "y = ScatterElements(x, i, u) reduction=\"max\"\n",
     0, 0},
    {"opset 18\ninput x float 3\ninit i int64 2 = 1 1\ninput u float 2\n"
     "y = ScatterElements(x, i, u) reduction=\"min\"\n",
     0, 0},
    {"input x float 3 2\ninit i int64 2 1 = 2 0\ninput u float 2 2\ny = ScatterND(x, i, u)\n", 0,
     0},
    {"opset 18\ninput x float 3 2\ninit i int64 2 1 = 2 2\ninput u float 2 2\n"
     "y = ScatterND(x, i, u) reduction=\"add\"\n",
     0, 0},
    {"opset 18\ninput x float 3 2\ninit i int64 2 1 = 2 2\ninput u float 2 2\n"
     "y = ScatterND(x, i, u) reduction=\"mul\"\n",
     0, 0},
    {"opset 18\ninput x float 3 2\ninit i int64 2 1 = 2 2\ninput u float 2 2\n"
     "y = ScatterND(x, i, u) reduction=\"max\"\n",
     0, 0},
    {"init i int64 2 = 1 -1\ninit d int64 = 3\ninput v float 2\ny = OneHot(i, d, v)\n", 0, 0},
    {"input x float 3 2\ninit c bool 3 = 1 0 1\ny = Compress(x, c) axis=0\n", 0, 0},
    {"opset 24\ninput p float 2 3 2\ninput u float 2 2 2\ninit w int64 2 = 1 2\n"
     "y = TensorScatter(p, u, w) mode=\"circular\" axis=1\n",
     0, 0},
    {"input x float 2 4\ninit k int64 1 = 2\ny, i = TopK(x, k)\n", 0, 0},
    {"input x float 4 2\ninit k int64 1 = 3\ny, i = TopK(x, k) axis=0 largest=0\n", 0, 0},
    /* running sums and products */
    {"input x float 2 4\ninit a int64 = -1\ny = CumSum(x, a) exclusive=1 reverse=1\n", 0, 0},
    {"input x float 3 2\ninit a int64 = 0\ny = CumSum(x, a)\n", 0, 0},
    {"opset 26\ninput x float 2 5\ninit a int64 = -1\ny = CumProd(x, a)\n", 0, 0},
    {"opset 26\ninput x float 3 2\ninit a int64 = 0\ny = CumProd(x, a) exclusive=1 reverse=1\n", 0,
     0},
    {"input x float 2 3 1\ny = Softmax(x) axis=-1\n", 0, 0},
    {"input x float 0 3\ny = Softmax(x)\n", 0, 0},
    {"input x float 2 0\ninput s float 2\ny = Sum(x)\n", 0, 0},
    {"input a float 2 3\ninput b float 1\ninput c float 2 1\ny = Max(a, b, c)\n", 0, 0},
    {"input a float 2 3\ninput b float 1\ninput c float 2 1\ny = Mean(a, b, c)\n", 0, 0},
    {"input x float 2 3 2\ninit s int64 2 = -1 0\ninit e int64 2 = -4 2\ninit a int64 2 = 1 -1\n"
     "init t int64 2 = -1 1\ny = Slice(x, s, e, a, t)\n",
     0, 0},
    {"opset 9\ninput x float 3 4\ny = Slice(x) starts=[-3] ends=[1000] axes=[1]\n", 0, 0},
    {"opset 11\ninput x float 2 3\ny, z = Split(x) axis=-1 split=[2, 1]\noutput y\noutput z\n", 0,
     0},
    {"input x float 2 3\ninit i int64 = -1\ny = Gather(x, i) axis=1\n", 0, 0},
    {"input x float 0 3\ninit i int64 2 = -1 0\ny = Gather(x, i) axis=1\n", 0, 0},
    {"input x float 2 3\ninit a int64 = -1\ny = CumSum(x, a) exclusive=1\n", 0, 0},
    /* empty, and of one element */
    {"input x float 0 2 4\ninput w float 3 2 3\ny = Conv(x, w)\n", 0, 0},
    {"input x float 0 2 3\ninput w float 2 3 2\ny = ConvTranspose(x, w)\n", 0, 0},
    {"input x float 1 1 1\ninput w float 1 1 1\ny = Conv(x, w)\n", 0, 0},
    {"input x float 0 2 4\ny = AveragePool(x) kernel_shape=[2]\n", 0, 0},
    {"input x float 0 2 4\ny = MaxPool(x) kernel_shape=[2]\n", 0, 0},
    {"input x float 0 3 2\ny = GlobalAveragePool(x)\n", 0, 0},
    {"input x float 2 0 3\ninput w float 1 8 3\ninput r float 1 8 2\n"
     "y = LSTM(x, w, r) hidden_size=2\n",
     0, 0},
    {"input x float 1 1 1\ninput w float 1 3 1\ninput r float 1 3 1\n"
     "y = GRU(x, w, r) hidden_size=1\n",
     0, 0},
    {"input x float 0 3\ninput s float 3\ninput b float 3\ny = LayerNormalization(x, s, b)\n", 0,
     0},
    {"input x float 2 1\ninput s float 1\ny = LayerNormalization(x, s)\n", 0, 0},
    {"input x float 0 2 3\ninput s float 2\ninput b float 2\n"
     "y = InstanceNormalization(x, s, b)\n",
     0, 0},
    {"input x float 0 3\ny = LpNormalization(x)\n", 0, 0},
    {"input x float 0 3\ninit k int64 1 = 2\ny, i = TopK(x, k)\n", 0, 0},
    {"input x float 2 3\ninit k int64 1 = 0\ny, i = TopK(x, k)\n", 0, 0},
    {"input x float 0 3\ninit a int64 = -1\ny = CumSum(x, a) exclusive=1 reverse=1\n", 0, 0},
    {"input x float 2 1\ninit a int64 = -1\ny = CumSum(x, a) exclusive=1\n", 0, 0},
    {"input a float 0 3\ninput b float 3 2\ny = Einsum(a, b) equation=\"ij,jk->ik\"\n", 0, 0},
    {"input x float 2 3\ninit i int64 0 =\ny = Gather(x, i) axis=1\n", 0, 0},
    {"input x float 2 3\ninit i int64 2 0 =\ninput u float 2 0\n"
     "y = ScatterElements(x, i, u) axis=1\n",
     0, 0},
    {"input x float 0 1 2 2\ninit s float 4 = 1 1 2 2\ny = Resize(x, -, s) mode=\"linear\"\n", 0,
     0},
    {"input x float 0 1 2 2\ninit s int64 4 = 0 1 4 4\ny = Resize(x, -, -, s) mode=\"linear\"\n", 0,
     0},
    {"input x float 0 1 3 4\ninput g float 0 2 2 2\ny = GridSample(x, g)\n", 0, 0},
    {"input x float 1 3\ninit s int64 2 = 0 3\ny = Expand(x, s)\n", 0, 0},
    {"input x float 2 3\ninit r int64 2 = 0 2\ny = Tile(x, r)\n", 0, 0},
    {"input x float 0 4\ny = Transpose(x)\n", 0, 0},
    {"opset 18\ninput x float 0 4\ny, z = Split(x) axis=-1 num_outputs=2\noutput y\noutput z\n", 0,
     0},
    {"input x float 0 2\ninit p int64 4 = 1 0 1 0\ny = Pad(x, p)\n", 0, 0},
    {"input x float 0 2 2\ny = Det(x)\n", 0, 0},
    {"input x float 3 1 1\ny = Det(x)\n", 0, 0},
    {"input x float 0 3\ninit l int64 0 =\n"
     "y = SoftmaxCrossEntropyLoss(x, l) reduction=\"sum\"\n",
     0, 0},
    {"opset 23\ninput q float 0 1 2 4\ninput k float 0 1 3 4\ninput v float 0 1 3 4\n"
     "y = Attention(q, k, v)\n",
     0, 0},
    /* products */
    {"input a float 3\ninput b float 2 3 2\ny = MatMul(a, b)\n", 0, 0},
    {"input a float 2 1 2 3\ninput b float 2 3 1\ny = MatMul(a, b)\n", 0, 0},
    {"input a float 2 0\ninput b float 0 3\ny = MatMul(a, b)\n", 0, 0},
    {"input a float 3 2\ninput b float 4 3\ninput c float 4\n"
     "y = Gemm(a, b, c) transA=1 transB=1 alpha=0.5 beta=2.0\n",
     0, 0},
    {"input a float 2 3\ninput b float 3 2\ninput c float 2 1\ny = Gemm(a, b, c)\n", 0, 0},
    {"input a float 2 3\ninput b float 4 3\ny = Einsum(a, b) equation=\"ij,kj->ik\"\n", 0, 0},
    {"input a float 2 2\ny = Einsum(a) equation=\"ii->i\"\n", 0, 0},
    {"input a float 2 3\ninput b float 2\ninput c float 3\n"
     "y = Einsum(a, b, c) equation=\"ij,i,j->\"\n",
     0, 0},
    {"input a float 2 1 2\ninput b float 2\ny = Einsum(a, b) equation=\"...i,i->...\"\n", 0, 0},
    {"input x float 2 3 3\ny = Det(x)\n", 0, 0},
    /* windows */
    {"input x float 1 2 5\ninput w float 4 1 2\ninput b float 4\n"
     "y = Conv(x, w, b) group=2 dilations=[2] strides=[2] pads=[1, 0]\n",
     0, 0},
    {"input x float 2 1 3 4\ninput w float 2 1 2 2\ny = Conv(x, w) auto_pad=\"SAME_UPPER\"\n", 0,
     0},
    {"input x float 1 1 3 3 2\ninput w float 1 1 2 2 2\ny = Conv(x, w)\n", 0, 0},
    {"input x float 1 1 4\ninput w float 1 1 2\ny = Conv(x, w) pads=[-1, 1]\n", 0, 0},
    {"input x float 1 2 3\ninput w float 2 1 2\ninput b float 2\n"
     "y = ConvTranspose(x, w, b) group=2 strides=[2] output_padding=[1] pads=[1, 0]\n",
     0, 0},
    {"input x float 1 1 2 2\ninput w float 1 2 3 3\n"
     "y = ConvTranspose(x, w) strides=[2, 2] auto_pad=\"SAME_LOWER\"\n",
     0, 0},
    {"input x float 1 1 4 4\ny = MaxPool(x) kernel_shape=[2, 3] strides=[2, 1] pads=[0, 1, 1, 1]\n",
     0, 0},
    {"input x float 1 1 5\ny = MaxPool(x) kernel_shape=[2] strides=[2] dilations=[2] ceil_mode=1\n",
     0, 0},
    {"input x float 1 1 4 4\ny = AveragePool(x) kernel_shape=[2, 3] pads=[0, 1, 1, 1]\n", 0, 0},
    {"input x float 1 1 4\ny = AveragePool(x) kernel_shape=[3] strides=[2] pads=[1, 1] ceil_mode=1 "
     "count_include_pad=1\n",
     0, 0},
    {"opset 19\ninput x float 1 1 5\ny = AveragePool(x) kernel_shape=[2] dilations=[2]\n", 0, 0},
    {"opset 18\ninput x float 1 1 5\ny = LpPool(x) kernel_shape=[2] p=3 pads=[1, 0]\n", 0, 0},
    {"opset 18\ninput x float 1 1 3 3\ny = LpPool(x) kernel_shape=[2, 2]\n", 0, 0},
    {"input x float 2 2 2 3\ny = GlobalAveragePool(x)\n", 0, 0},
    {"input x float 2 2 2 3\ny = GlobalMaxPool(x)\n", 0, 0},
    {"input x float 2 2 2 3\ny = GlobalLpPool(x) p=3\n", 0, 0},
    {"opset 18\ninput x float 1 8 2\ninit i int64 2 = 2 3\ninit b int64 2 = 2 2\n"
     "y = Col2Im(x, i, b)\n",
     0, 0},
    {"opset 18\ninput x float 1 4 4\ninit i int64 2 = 4 4\ninit b int64 2 = 2 2\n"
     "y = Col2Im(x, i, b) strides=[2, 2] dilations=[2, 2] pads=[1, 0, 1, 2]\n",
     0, 0},
    {"input x float 1 1 2 2\ninit i int64 1 1 2 2 = 5 7 13 15\n"
     "y = MaxUnpool(x, i) kernel_shape=[2, 2] strides=[2, 2]\n",
     0, 0},
    {"opset 19\ninput x float 1 2 3 3\ninput w float 2 1 2 2\ninput o float 1 8 2 2\n"
     "input b float 2\ninput m float 1 4 2 2\ny = DeformConv(x, w, o, b, m) group=2\n",
     0, 0},
    {"opset 19\ninput x float 1 2 3 3\ninput w float 1 2 2 2\ninput o float 1 16 3 2\n"
     "y = DeformConv(x, w, o) offset_group=2 pads=[1, 0, 1, 1] strides=[1, 2] dilations=[2, 1]\n",
     0, 0},
    {"opset 16\ninput x float 1 2 4 4\ninit r float 2 4 = 0.3 0.2 2.7 3.1 1 1 2 2.5\n"
     "init b int64 2 = 0\ny = RoiAlign(x, r, b) output_height=2 output_width=2 sampling_ratio=2\n",
     0, 0},
    {"opset 16\ninput x float 2 1 4 4\ninit r float 2 4 = 0.3 0.2 3.7 3.1 1 1 2 2.5\n"
     "init b int64 2 = 1 0\ny = RoiAlign(x, r, b) output_height=1 output_width=2 "
     "coordinate_transformation_mode=\"output_half_pixel\"\n",
     0, 0},
    {"opset 16\ninput x float 1 1 4 4\ninit r float 1 4 = 0.3 0.2 2.7 3.1\ninit b int64 1 = 0\n"
     "y = RoiAlign(x, r, b) output_height=2 sampling_ratio=2 mode=\"max\"\n",
     0.5, 1},
    {"input x float 1 1 2 2 2\ninput w float 1 1 2 2 2\n"
     "y = ConvTranspose(x, w) output_shape=[3, 4, 3] strides=[2, 2, 2]\n",
     0, 0},
    {"input x float 1 1 5 4\ny = AveragePool(x) kernel_shape=[2, 3] strides=[2, 2] "
     "auto_pad=\"SAME_UPPER\"\n",
     0, 0},
    {"input x float 1 1 2 3 3\ny = MaxPool(x) kernel_shape=[2, 2, 2]\n", 0, 0},
    {"opset 18\ninput x float 1 1 4\ny = LpPool(x) kernel_shape=[2] p=1 strides=[2]\n", 0, 0},
    {"opset 18\ninput x float 1 2 3\ninit i int64 1 = 4\ninit b int64 1 = 2\n"
     "y = Col2Im(x, i, b)\n",
     0, 0},
    {"input x float 2 2 4 5\ninit r float 2 5 = 1 0.2 1.1 3.4 3 0 1 1 9 2\n"
     "y = MaxRoiPool(x, r) pooled_shape=[2, 3]\n",
     0, 0},
    /* normalisations */
    {"input x float 2 2 3\ninput s float 2\ninput b float 2\ninput m float 2\ninput v float 2\n"
     "y = BatchNormalization(x, s, b, m, v)\n",
     0.5, 2},
    {"input x float 3 2 2\ninput s float 2\ninput b float 2\ninit m float 2 = 0\n"
     "init v float 2 = 1\ny, rm, rv = BatchNormalization(x, s, b, m, v) training_mode=1\n",
     0, 0},
    {"input x float 2 2 3\ninput s float 2\ninput b float 2\ny = InstanceNormalization(x, s, b)\n",
     0, 0},
    {"opset 18\ninput x float 2 4 2\ninput s float 2\ninput b float 2\n"
     "y = GroupNormalization(x, s, b) num_groups=2\n",
     0, 0},
    {"opset 21\ninput x float 2 4 2\ninput s float 4\ninput b float 4\n"
     "y = GroupNormalization(x, s, b) num_groups=2\n",
     0, 0},
    {"input x float 2 2 3\ninput s float 3\ninput b float 2 3\n"
     "y, m, d = LayerNormalization(x, s, b) axis=1\noutput y\noutput m\noutput d\n",
     0, 0},
    {"opset 23\ninput x float 2 3\ninput s float 3\ny = RMSNormalization(x, s)\n", 0, 0},
    {"input x float 2 3\ny = LpNormalization(x) axis=0\n", 0.5, 2},
    {"input x float 2 3\ny = LpNormalization(x) p=1\n", 0.5, 2},
    {"input x float 2 2 2 2\ny = MeanVarianceNormalization(x)\n", 0, 0},
    {"input x float 2 3\ny = MeanVarianceNormalization(x) axes=[-1]\n", 0, 0},
    {"input x float 1 4 1 2\ny = LRN(x) size=3 alpha=0.5 beta=0.7 bias=1.5\n", 0, 0},
    {"opset 12\ninput x float 2 2 2\ny = Softmax(x)\n", 0, 0},
    {"input x float 2 1 3\ny = Softmax(x) axis=0\n", 0, 0},
    {"opset 12\ninput x float 2 2 2\ny = LogSoftmax(x) axis=2\n", 0, 0},
    {"input x float 2 3\ny = LogSoftmax(x)\n", 0, 0},
    /* recurrent layers and attention */
    {"input x float 3 2 1\ninput w float 2 2 1\ninput r float 2 2 2\ninput b float 2 4\n"
     "init l int32 2 = 3 2\ninput h float 2 2 2\n"
     "y, z = RNN(x, w, r, b, l, h) hidden_size=2 direction=\"bidirectional\"\noutput y\noutput z\n",
     0, 0},
    {"input x float 2 2 1\ninput w float 1 6 1\ninput r float 1 6 2\ninput b float 1 12\n"
     "y, z = GRU(x, w, r, b) hidden_size=2 linear_before_reset=1\noutput y\noutput z\n",
     0, 0},
    {"input x float 2 2 1\ninput w float 1 6 1\ninput r float 1 6 2\n"
     "y, z = GRU(x, w, r) hidden_size=2 direction=\"reverse\"\noutput y\noutput z\n",
     0, 0},
    {"input x float 2 1 1\ninput w float 1 8 1\ninput r float 1 8 2\ninput b float 1 16\n"
     "input h float 1 1 2\ninput c float 1 1 2\ninput p float 1 6\n"
     "y, z, k = LSTM(x, w, r, b, -, h, c, p) hidden_size=2\noutput y\noutput z\noutput k\n",
     0, 0},
    {"opset 23\ninput q float 1 2 2 3\ninput k float 1 1 3 3\ninput v float 1 1 3 2\n"
     "input m float 2 3\ny = Attention(q, k, v, m) scale=0.7 softcap=2.0\n",
     0, 0},
    {"opset 23\ninput q float 1 2 4\ninput k float 1 2 4\ninput v float 1 2 4\n"
     "y = Attention(q, k, v) is_causal=1 q_num_heads=2 kv_num_heads=2\n",
     0, 0},
    {"opset 23\ninput x float 1 2 2 4\ninput c float 1 2 2\ninput s float 1 2 2\n"
     "y = RotaryEmbedding(x, c, s) interleaved=1\n",
     0, 0},
    {"input x float 2 1 1\ninput w float 1 8 1\ninput r float 1 8 2\n"
     "y = LSTM(x, w, r) hidden_size=2 input_forget=1 clip=0.4\n",
     0, 0},
    {"input x float 2 3 1\ninput w float 2 8 1\ninput r float 2 8 2\ninit l int32 2 = 3 1\n"
     "y, z, k = LSTM(x, w, r, -, l) hidden_size=2 direction=\"bidirectional\" layout=1\n"
     "output y\noutput z\noutput k\n",
     0, 0},
    {"input x float 2 1 1\ninput w float 1 2 1\ninput r float 1 2 2\n"
     "y = RNN(x, w, r) hidden_size=2 activations=[\"ScaledTanh\"] activation_alpha=[1.5] "
     "activation_beta=[0.7]\n",
     0, 0},
    {"input x float 3 1 1\ninput w float 1 2 1\ninput r float 1 2 2\n"
     "y = RNN(x, w, r) hidden_size=2 activations=[\"Elu\"] activation_alpha=[0.5]\n",
     0, 0},
    {"input x float 2 2 1\ninput w float 2 6 1\ninput r float 2 6 2\ninput b float 2 12\n"
     "input h float 2 2 2\ny, z = GRU(x, w, r, b, -, h) hidden_size=2 "
     "direction=\"bidirectional\" activations=[\"HardSigmoid\", \"Softsign\", \"Sigmoid\", "
     "\"Affine\"] activation_alpha=[0.3, 0.8] activation_beta=[0.4, 0.1]\noutput y\noutput z\n",
     0, 0},
    {"opset 23\ninput q float 1 4 2 2\ninput k float 1 2 1 2\ninput v float 1 2 1 2\n"
     "input pk float 1 2 2 2\ninput pv float 1 2 2 2\n"
     "y, nk, nv = Attention(q, k, v, -, pk, pv)\noutput y\noutput nk\noutput nv\n",
     0, 0},
    {"opset 23\ninput q float 1 1 2 2\ninput k float 1 1 2 2\ninput v float 1 1 2 2\n"
     "init m bool 2 2 = 1 0 1 1\n"
     "y, a, b, s = Attention(q, k, v, m) qk_matmul_output_mode=3\noutput y\noutput s\n",
     0, 0},
    {"opset 23\ninput x float 1 2 4\ninit c float 4 1 = 1 0.5 0.2 0.7\n"
     "init s float 4 1 = 0 0.8 0.9 0.6\ninit i int64 1 2 = 2 0\n"
     "y = RotaryEmbedding(x, c, s, i) num_heads=1 rotary_embedding_dim=2\n",
     0, 0},
    {"opset 27\ninput x float 1 2 3\ninput w float 2 1 3\ninput b float 2\ninput p float 1 2 2\n"
     "y, s = CausalConvWithState(x, w, b, p) activation=\"silu\"\noutput y\noutput s\n",
     0, 0},
    {"opset 27\ninput x float 1 2 3\ninput w float 2 1 2\ny, s = CausalConvWithState(x, w)\n"
     "output y\noutput s\n",
     0, 0},
    {"opset 27\ninput q float 1 2 4\ninput k float 1 2 2\ninput v float 1 2 3\n"
     "input s float 1 1 2 3\ninput d float 1 2 2\ninput b float 1 2 1\n"
     "y, n = LinearAttention(q, k, v, s, d, b) q_num_heads=2 kv_num_heads=1\n"
     "output y\noutput n\n",
     0, 0},
    {"opset 27\ninput q float 1 2 2\ninput k float 1 2 2\ninput v float 1 2 4\n"
     "y, n = LinearAttention(q, k, v) q_num_heads=2 kv_num_heads=2 update_rule=\"linear\" "
     "scale=0.5\noutput y\noutput n\n",
     0, 0},
    {"opset 28\ninput a float 2 3\ninput b float 2 3\ny = SwiGLU(a, b) alpha=1.5\n", 0, 0},
    /* losses */
    {"input x float 2 3\ninit l int64 2 = 2 0\ny = SoftmaxCrossEntropyLoss(x, l)\n", 0, 0},
    {"input x float 2 3 2\ninit l int64 2 2 = 2 0 1 7\ninit w float 3 = 1 2 0.5\n"
     "y, p = SoftmaxCrossEntropyLoss(x, l, w) ignore_index=7 reduction=\"none\"\n"
     "output y\noutput p\n",
     0, 0},
    {"input x float 2 3\ninit l int64 2 = 2 0\ninit w float 3 = 1 2 0.5\n"
     "y = NegativeLogLikelihoodLoss(x, l, w)\n",
     0, 0},
    {"input x float 2 3\ninit l int64 2 = 2 0\n"
     "y = NegativeLogLikelihoodLoss(x, l) reduction=\"sum\"\n",
     0, 0},
    /* images */
    {"input x float 1 1 2 3\ninit s float 4 = 1 1 2 1.5\ny = Resize(x, -, s)\n", 0, 0},
    {"input x float 1 1 3 4\ninit s int64 4 = 1 1 5 2\ny = Resize(x, -, -, s) mode=\"linear\"\n", 0,
     0},
    {"input x float 1 1 3 4\ninit s int64 4 = 1 1 5 3\ny = Resize(x, -, -, s) mode=\"cubic\" "
     "coordinate_transformation_mode=\"align_corners\" exclude_outside=1\n",
     0, 0},
    {"opset 18\ninput x float 1 1 4 4\ninit s int64 2 = 2 3\n"
     "y = Resize(x, -, -, s) mode=\"linear\" antialias=1 axes=[2, 3]\n",
     0, 0},
    {"input x float 1 1 3 3\ninit r float 8 = 0 0 0.1 0.2 1 1 0.8 1.2\n"
     "init s int64 4 = 1 1 2 3\ny = Resize(x, r, -, s) mode=\"linear\" "
     "coordinate_transformation_mode=\"tf_crop_and_resize\" extrapolation_value=5.0\n",
     0, 0},
    {"opset 9\ninput x float 1 1 2 2\ninit s float 4 = 1 1 2 2\n"
     "y = Upsample(x, s) mode=\"linear\"\n",
     0, 0},
    {"input x float 1 1 3 4\ninit s float 4 = 1 1 1.7 0.6\n"
     "y = Resize(x, -, s) mode=\"linear\" coordinate_transformation_mode=\"asymmetric\"\n",
     0, 0},
    {"input x float 1 1 3\ninit s int64 3 = 1 1 5\ny = Resize(x, -, -, s) nearest_mode=\"ceil\" "
     "coordinate_transformation_mode=\"pytorch_half_pixel\"\n",
     0, 0},
    {"opset 19\ninput x float 1 1 4\ninit s float 3 = 1 1 0.6\n"
     "y = Resize(x, -, s) mode=\"cubic\" antialias=1 cubic_coeff_a=-0.5 "
     "coordinate_transformation_mode=\"half_pixel_symmetric\"\n",
     0, 0},
    {"opset 18\ninput x float 1 1 2 4\ninit s int64 2 = 3 3\ny = Resize(x, -, -, s) "
     "mode=\"linear\" axes=[2, 3] keep_aspect_ratio_policy=\"not_larger\"\n",
     0, 0},
    /* signals */
    {"opset 20\ninput x float 2 4 1\ninit n int64 = 6\ninit a int64 = 1\n"
     "y = DFT(x, n, a) onesided=1\n",
     0, 0},
    {"opset 17\ninput x float 1 3 2 2\ny = DFT(x) inverse=1 axis=-2\n", 0, 0},
    {"opset 20\ninput x float 2 3 2\ny = DFT(x) inverse=1 onesided=1\n", 0, 0},
    {"input x float 1 7 1\ninit s int64 = 2\ninput w float 3\ny = STFT(x, s, w)\n", 0, 0},
    /* integers for numbers */
    {"init x int8 2 2 = 3 -1 4 -2\ninput s float 2\ninit z int8 2 = 1 0\n"
     "y = DequantizeLinear(x, s, z) axis=0\n",
     0.5, 2},
    /* gradients and updates */
    {"opset ai.onnx.preview.training 1\ninput x float 3\nc = Mul(x, x)\nd = Mul(c, x)\n"
     "y = ai.onnx.preview.training.Gradient(x) xs=[\"x\"] y=\"d\"\n",
     0, 0},
    {"opset ai.onnx.preview.training 1\ninput r float\ninit t int64 = 2\ninput x float 2\n"
     "input g float 2\ninput h float 2\n"
     "y, k = ai.onnx.preview.training.Adagrad(r, t, x, g, h) decay_factor=0.1 epsilon=0.001\n"
     "output y\noutput k\n",
     0.5, 2},
    {"opset ai.onnx.preview.training 1\ninput r float\ninit t int64 = 2\ninput x float 2\n"
     "input g float 2\ninput v float 2\ny, k = ai.onnx.preview.training.Momentum(r, t, x, g, v) "
     "alpha=0.9 beta=0.8 norm_coefficient=0.01 mode=\"nesterov\"\noutput y\noutput k\n",
     0, 0},
    {"opset ai.onnx.preview.training 1\ninput r float\ninit t int64 = 2\ninput x float 2\n"
     "input g float 2\ninput v float 2\ninput h float 2\n"
     "y, k, m = ai.onnx.preview.training.Adam(r, t, x, g, v, h) norm_coefficient_post=0.1\n"
     "output y\noutput k\noutput m\n",
     0.5, 2},
    {"opset 20\ninput t float 2 2 3\ninit s int64 4 = 2 1 2 3\ny = AffineGrid(t, s)\n", 0, 0},
    {"opset 20\ninput x float 1 2 3 4\ninput g float 1 2 2 2\ny = GridSample(x, g)\n", 0, 0},
    {"input x float 1 1 3 4\ninput g float 1 2 2 2\n"
     "y = GridSample(x, g) mode=\"bicubic\" padding_mode=\"reflection\"\n",
     0, 0},
    {"init n int64 = 3\ninput s float 2\n"
     "graph body {\ninput i int64\ninput c bool\ninput s float 2\nk = Identity(c)\n"
     "t = Tanh(s)\no = Mul(s, t)\noutput k\noutput t\noutput o\n}\n"
     "last, all = Loop(n, -, s) body=@body\ny = Sum(last, all)\n",
     0, 0},
    {"input s float 2\ninput x float 2 3\n"
     "graph body {\ninput s float 2\ninput e float 2\nt = Mul(s, e)\no = Tanh(t)\noutput t\n"
     "output o\n}\n"
     "last, y = Scan(s, x) body=@body num_scan_inputs=1 scan_input_axes=[1] "
     "scan_input_directions=[1] scan_output_axes=[1]\n",
     0, 0},
    {"opset 8\ninput s float 2 2\ninput x float 2 3 2\n"
     "graph body {\ninput s float 2\ninput e float 2\nt = Mul(s, e)\no = Tanh(t)\noutput t\n"
     "output o\n}\n"
     "last, y = Scan(-, s, x) body=@body num_scan_inputs=1\n",
     0, 0},
    {"input x float 2 2\ninput z float 1 2\ninit p int64 = 0\ns = SequenceConstruct(x, z)\n"
     "t = SequenceInsert(s, x, p)\nu = SequenceErase(t)\nv = SequenceAt(u, p)\n"
     "e = SequenceEmpty()\nw = SequenceInsert(e, v)\nq = SequenceInsert(w, z)\n"
     "y = ConcatFromSequence(q) axis=0\n",
     0, 0},
    {"input x float 4 2\ns = SplitToSequence(x) keepdims=0\n"
     "graph body {\ninput a float 2\nc = Mul(a, a)\noutput c\n}\n"
     "t = SequenceMap(s) body=@body\ny = ConcatFromSequence(t) axis=0 new_axis=1\n",
     0, 0},
    {"opset 18\ninput x float 2\no = Optional(x)\ny = OptionalGetElement(o)\n", 0, 0},
};

#endif
