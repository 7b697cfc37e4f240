/* What single operators mean at their opset: small constant models, folded by `ref`, against values
 * from the operator's text. */
#include "importer/lower.h"
#include "runtime/graph/fold.h"
#include "runtime/ref/ref.h"
#include "tests/support/make_onnx.h"
#include "tests/test.h"

enum { MOST = 24 };

struct row {
    const char *text; /* gives y */
    int count;
    double y[MOST];
};

#define Y(...)                                                                                     \
    sizeof((double[]){__VA_ARGS__}) / sizeof(double),                                              \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define INF INFINITY
#define X3  "init x float 3 = 1 2 3\n"

static const struct row rows[] = {
    /* spreading before opset 7 */
    {"opset 6\ninit a float 2 3 1 = 1 2 3 4 5 6\ninit b float 3 = 10 20 30\n"
     "y = Add(a, b) broadcast=1 axis=1\n",
     Y(11, 22, 33, 14, 25, 36)},
    {"opset 6\ninit a float 2 2 = 1 2 3 4\ninit b float 2 = 10 20\ny = Mul(a, b) broadcast=1\n",
     Y(10, 40, 30, 80)},
    {"opset 6\ninit a float 1 2 2 = -1 2 -3 4\ninit s float 2 = 2 3\ny = PRelu(a, s)\n",
     Y(-2, 2, -9, 4)},
    /* activations */
    {"init x float 3 = -1 0 2\ny = Elu(x) alpha=2.0\n", Y(-1.2642411176571153, 0, 2)},
    {"init x float 3 = -1 0 2\ny = Selu(x)\n", Y(-1.1113307378125627, 0, 2.1014020442962646)},
    {"init x float 3 = -1 0 2\ny = Celu(x) alpha=2.0\n", Y(-0.7869386805747332, 0, 2)},
    {"opset 20\ninit x float 2 = -1 2\ny = Gelu(x)\n", Y(-0.15865525393145707, 1.9544997361036416)},
    {"opset 20\ninit x float 2 = -1 2\ny = Gelu(x) approximate=\"tanh\"\n",
     Y(-0.15880800939172324, 1.9545976940877752)},
    {"init x float 4 = -4 -1 1 4\ny = HardSwish(x)\n", Y(0, -1. / 3, 2. / 3, 4)},
    {"init x float 3 = -1 0.5 2\ny = ThresholdedRelu(x) alpha=0.5\n", Y(0, 0, 2)},
    {"init x float 2 = -1 3\ny = Softsign(x)\n", Y(-0.5, 0.75)},
    {"init x float 2 = 1 800\ny = Softplus(x)\n", Y(1.3132616875182228, 800)},
    {"opset 18\ninit x float 1 = 1\ny = Mish(x)\n", Y(0.8650983882673103)},
    {"init x float 4 = -3 -0.25 0.25 3\ny = Shrink(x) lambd=1.0 bias=0.5\n", Y(-2.5, 0, 0, 2.5)},
    /* bounds */
    {"init x float 3 = -2 0 2\ninit lo float = -1\ny = Clip(x, lo)\n", Y(-1, 0, 2)},
    {"init x float 3 = -2 0 2\ninit lo float = 1\ninit hi float = -1\ny = Clip(x, lo, hi)\n",
     Y(-1, -1, -1)},
    {"opset 6\ninit x float 3 = -2 0 2\ny = Clip(x) max=1.0\n", Y(-2, 0, 1)},
    {"init x int32 3 = -2 0 2\ninit lo int32 = -1\ny = Clip(x, lo)\n", Y(-1, 0, 2)},
    /* arithmetic */
    {"init x float 3 = -2 0 3\ninit p float = 3\ny = Pow(x, p)\n", Y(-8, 0, 27)},
    {"init x int32 2 = 2 3\ninit p float 2 = 0.5 2\ny = Pow(x, p)\n", Y(1, 9)},
    {"init x int64 3 = 7 -7 5\ninit p int64 = 3\ny = Mod(x, p)\n", Y(1, 2, 2)},
    {"init x int64 3 = 7 -7 5\ninit p int64 = 3\ny = Mod(x, p) fmod=1\n", Y(1, -1, 2)},
    {"init a float 2 = 1 5\ninit b float 2 = 4 2\ninit c float 2 = 3 3\ny = Max(a, b, c)\n",
     Y(4, 5)},
    {"init a float 2 = 1 5\ninit b float 2 = 4 2\ninit c float 2 = 1 2\ny = Mean(a, b, c)\n",
     Y(2, 3)},
    {"init x uint8 2 = 3 6\ninit s uint8 2 = 2 1\ny = BitShift(x, s) direction=\"LEFT\"\n",
     Y(12, 12)},
    {"init x float 4 = 0.5 1.5 -2.5 2.4\ny = Round(x)\n", Y(0, 2, -2, 2)},
    {"init x float 3 = inf 1 -inf\nb = IsInf(x) detect_negative=0\ny = Cast(b) to=6\n", Y(1, 0, 0)},
    /* casts */
    {"init x float 3 = -1.7 300.2 2.5\ny = Cast(x) to=6\n", Y(-1, 300, 2)},
    {"opset 5\ninit x float 2 = 1.5 0\ny = Cast(x) to=\"INT64\"\n", Y(1, 0)},
    {"init x int64 2 = 300 -1\ny = Cast(x) to=2\n", Y(44, 255)},
    /* shapes */
    {"opset 4\ninit x float 2 3 = 1 2 3 4 5 6\nr = Reshape(x) shape=[3, -1]\ny = Shape(r)\n",
     Y(3, 2)},
    {"opset 14\ninit x float 0 3 =\ninit s int64 2 = 3 0\nr = Reshape(x, s) allowzero=1\n"
     "y = Shape(r)\n",
     Y(3, 0)},
    {"init x float 2 3 4 = 0\nf = Flatten(x) axis=-1\ny = Shape(f)\n", Y(6, 4)},
    {"opset 15\ninit x float 2 3 4 = 0\ny = Shape(x) start=-2 end=9\n", Y(3, 4)},
    {"init x float 1 3 1 = 1 2 3\ns = Squeeze(x)\ny = Shape(s)\n", Y(3)},
    {"opset 11\ninit x float 3 = 1 2 3\nu = Unsqueeze(x) axes=[0, -1]\ny = Shape(u)\n", Y(1, 3, 1)},
    {"init s int64 2 = 2 2\ny = ConstantOfShape(s) value=<int64 1 = 7>\n", Y(7, 7, 7, 7)},
    {"init a int64 = 10\ninit b int64 = 4\ninit d int64 = -3\ny = Range(a, b, d)\n", Y(10, 7)},
    {"init a float = 1\ninit b float = 2\ninit d float = 0.4\ny = Range(a, b, d)\n",
     Y(1, 1.4, 1.8)},
    {"init x float 2 3 = 0\ny = EyeLike(x) k=1\n", Y(0, 1, 0, 0, 0, 1)},
    {"init x float 2 3 = 1 2 3 4 5 6\ny = Trilu(x) upper=0\n", Y(1, 0, 0, 4, 5, 0)},
    {"init x float 2 2 = 1 0 0 3\ny = NonZero(x)\n", Y(0, 1, 0, 1)},
    {"init x float 1 2 = 1 2\ninit r int64 2 = 2 2\ny = Tile(x, r)\n", Y(1, 2, 1, 2, 1, 2, 1, 2)},
    {"init x float 2 1 = 1 2\ninit s int64 3 = 2 1 2\ny = Expand(x, s)\n",
     Y(1, 1, 2, 2, 1, 1, 2, 2)},
    /* parts */
    {"opset 9\ninit x float 2 4 = 1 2 3 4 5 6 7 8\n"
     "y = Slice(x) starts=[-3] ends=[1000] axes=[1]\n",
     Y(2, 3, 4, 6, 7, 8)},
    {"init x float 5 = 1 2 3 4 5\ninit s int64 1 = -1\ninit e int64 1 = -9223372036854775807\n"
     "init a int64 1 = 0\ninit t int64 1 = -2\ny = Slice(x, s, e, a, t)\n",
     Y(5, 3, 1)},
    {"init x float 5 = 1 2 3 4 5\ninit s int64 1 = 3\ninit e int64 1 = 1\ny = Slice(x, s, e)\n",
     0,
     {0}},
    {"opset 18\ninit x float 5 = 1 2 3 4 5\na, b, y = Split(x) num_outputs=3\n", Y(5)},
    {"opset 11\ninit x float 5 = 1 2 3 4 5\na, y = Split(x) split=[2, 3]\n", Y(3, 4, 5)},
    {"opset 2\ninit x float 2 = 1 2\ny = Pad(x) pads=[1, 1] value=9.0\n", Y(9, 1, 2, 9)},
    {"init x float 4 = 1 2 3 4\ninit p int64 2 = 2 -1\ny = Pad(x, p) mode=\"reflect\"\n",
     Y(3, 2, 1, 2, 3)},
    {"opset 18\ninit x float 2 2 = 1 2 3 4\ninit p int64 2 = 1 0\ninit a int64 1 = -1\n"
     "y = Pad(x, p, -, a) mode=\"edge\"\n",
     Y(1, 1, 2, 3, 3, 4)},
    /* indices */
    {"init x float 3 = 1 2 3\ninit i int64 2 = -1 0\ny = Gather(x, i)\n", Y(3, 1)},
    {"init i int64 2 = 1 -1\ninit d int64 = 3\ninit v float 2 = 2 5\ny = OneHot(i, d, v)\n",
     Y(2, 5, 2, 2, 2, 5)},
    {"init x float 4 = 1 2 3 4\ninit i int64 2 = 1 1\ninit u float 2 = 10 20\n"
     "y = ScatterElements(x, i, u) reduction=\"add\"\n",
     Y(1, 32, 3, 4)},
    {"init x float 4 1 = 1 2 3 4\ninit n int64 1 = 3\ny = ReverseSequence(x, n)\n", Y(3, 2, 1, 4)},
    /* reductions */
    {"opset 11\ninit x float 2 2 = 1 2 3 4\ny = ReduceSum(x) axes=[-1] keepdims=0\n", Y(3, 7)},
    {"init x float 2 2 = 1 2 3 4\ny = ReduceSum(x) noop_with_empty_axes=1\n", Y(1, 2, 3, 4)},
    {"init x float 2 2 = 1 2 3 4\ny = ReduceMean(x)\n", Y(2.5)},
    {"init x float 2 = 3 -4\ny = ReduceL2(x)\n", Y(5)},
    {"init x float 2 = 3 -4\ny = ReduceL1(x)\n", Y(7)},
    {"init x float 2 = 1000 1000\ny = ReduceLogSumExp(x)\n", Y(1000.6931471805599)},
    {"init x float 3 = 1 3 3\ny = ArgMax(x) select_last_index=1\n", Y(2)},
    {"init x float 3 = 1 2 3\ninit a int64 = 0\ny = CumSum(x, a) exclusive=1 reverse=1\n",
     Y(5, 3, 0)},
    {"init x float 4 = 1 3 3 2\ninit k int64 1 = 2\nv, y = TopK(x, k)\n", Y(1, 2)},
    {"opset 11\ninit x float 2 2 = 1 4 4 0\ny = Hardmax(x) axis=0\n", Y(0, 1, 0, 0)},
    /* products */
    {"init a float 2 = 1 2\ninit b float 2 2 = 1 2 3 4\ny = MatMul(a, b)\n", Y(7, 10)},
    {"init a float 2 2 = 1 2 3 4\ninit b float 2 = 1 10\ny = MatMul(a, b)\n", Y(21, 43)},
    {"init a float 2 1 = 1 2\ninit b float 2 1 = 3 4\ny = Gemm(a, b) transA=1\n", Y(11)},
    {"init a float 2 2 = 1 2 3 4\ninit b float 2 2 = 5 6 7 8\ny = Einsum(a, b) "
     "equation=\"ij,jk\"\n",
     Y(19, 22, 43, 50)},
    {"init a float 2 2 = 1 2 3 4\ny = Einsum(a) equation=\"ii->i\"\n", Y(1, 4)},
    {"init a float 2 2 = 1 2 3 4\ninit b float 2 = 5 6\n"
     "y = Einsum(a, b, b) equation=\"ij, i, j -> j\"\n",
     Y(115, 204)},
    {"init a float 2 1 2 = 1 2 3 4\ninit b float 2 = 5 6\ny = Einsum(a, b) "
     "equation=\"...i,i->...\"\n",
     Y(17, 39)},
    /* windows: row 5 of the reports, sizes and pads */
    {"init x float 1 1 2 2 = 1\ny = AveragePool(x) kernel_shape=[2, 2] pads=[0, 0, 1, 1] "
     "count_include_pad=1\n",
     Y(1, .5, .5, .25)},
    {"init x float 1 1 2 2 = 1\ny = AveragePool(x) kernel_shape=[2, 2] pads=[0, 0, 1, 1]\n",
     Y(1, 1, 1, 1)},
    {"init x float 1 1 4 = 1 2 3 4\ny = AveragePool(x) kernel_shape=[3] strides=[2] pads=[1, 1] "
     "ceil_mode=1 count_include_pad=1\n",
     Y(1, 3, 2)},
    {"init x float 1 1 3 3 = 1\ninit w float 1 1 3 3 = 1\n"
     "c = ConvTranspose(x, w) strides=[2, 2] auto_pad=\"SAME_UPPER\"\n"
     "init s int64 2 = 0 0\ninit e int64 2 = 1 6\ninit a int64 2 = 2 3\ny = Slice(c, s, e, a)\n",
     Y(1, 1, 2, 1, 2, 1)},
    {"init x float 1 1 2 = 1 2\ninit w float 1 1 2 = 1 10\ninit b float 1 = 100\n"
     "y = ConvTranspose(x, w, b) strides=[2] output_padding=[1]\n",
     Y(101, 110, 102, 120, 100)},
    {"init x float 1 1 4 = 1 2 3 4\ninit w float 1 1 2 = 1 10\n"
     "y = Conv(x, w) auto_pad=\"SAME_LOWER\"\n",
     Y(10, 21, 32, 43)},
    {"init x float 1 1 4 = 1 2 3 4\ninit w float 1 1 2 = 1 10\ny = Conv(x, w) pads=[-1, 1]\n",
     Y(32, 43, 4)},
    {"init x float 1 1 4 = 4 1 2 3\ny = MaxPool(x) kernel_shape=[2] strides=[2] dilations=[2] "
     "ceil_mode=1\n",
     Y(4, 2)},
    {"opset 18\ninit x float 1 1 3 = 3 -4 5\ny = LpPool(x) kernel_shape=[2] p=2\n",
     Y(5, 6.4031242374328485)},
    {"init x float 1 2 1 2 = 1 3 5 9\ny = GlobalAveragePool(x)\n", Y(2, 7)},
    /* normalisations */
    {"init x float 1 1 2 = 1 3\ninit s float 1 = 2\ninit b float 1 = 5\n"
     "y = InstanceNormalization(x, s, b) epsilon=0.0\n",
     Y(3, 7)},
    {"init x float 1 2 = 1 3\ninit s float 2 = 2 4\ny, m, d = LayerNormalization(x, s) "
     "epsilon=0.0\n",
     Y(-2, 4)},
    {"init x float 1 2 = 1 3\ninit s float 2 = 2 4\n-, m, y = LayerNormalization(x, s) "
     "epsilon=3.0\n",
     Y(0.5)},
    {"opset 18\ninit x float 1 2 2 = 1 3 2 6\ninit s float 2 = 1 2\ninit b float 2 = 0 1\n"
     "y = GroupNormalization(x, s, b) num_groups=2 epsilon=0.0\n",
     Y(-1, 1, -1, 3)},
    {"opset 21\ninit x float 1 2 2 = 1 3 2 6\ninit s float 2 = 1 2\ninit b float 2 = 0 1\n"
     "y = GroupNormalization(x, s, b) num_groups=2 epsilon=0.0\n",
     Y(-1, 1, -1, 3)},
    {"opset 23\ninit x float 1 2 = 3 4\ninit s float 2 = 1 2\ny = RMSNormalization(x, s) "
     "epsilon=0.0\n",
     Y(0.8485281374238570, 2.2627416997969521)},
    {"init x float 2 2 = 3 4 0 0\ny = LpNormalization(x)\n", Y(.6, .8, 0, 0)},
    {"init x float 1 3 1 1 = 1 2 3\ny = LRN(x) size=2 alpha=2.0 beta=1.0 bias=0.0\n",
     Y(0.2, 2. / 13, 1. / 3)},
    {"init x float 1 1 1 2 = 1 3\ny = MeanVarianceNormalization(x)\n",
     Y(-1 / (1 + 1e-9), 1 / (1 + 1e-9))},
    {"opset 8\ninit x float 2 1 = 1 3\ninit s float 1 = 2\ninit b float 1 = 1\ninit m float 1 = 1\n"
     "init v float 1 = 4\ny = BatchNormalization(x, s, b, m, v) epsilon=0.0\n",
     Y(1, 3)},
    /* probabilities */
    {"opset 12\ninit x float 1 2 2 = 0 0 0 0\ny = Softmax(x)\n", Y(.25, .25, .25, .25)},
    {"opset 13\ninit x float 1 2 2 = 0 0 0 0\ny = Softmax(x) axis=1\n", Y(.5, .5, .5, .5)},
    {"init x float 3 2 = 0 0 0 0 0 0\ninit l int64 3 = 0 7 1\ninit w float 2 = 1 3\n"
     "y = SoftmaxCrossEntropyLoss(x, l, w) ignore_index=7\n",
     Y(0.69314718055994529)},
    {"init x float 2 2 = -1 -2 -3 -4\ninit l int64 2 = 1 0\n"
     "y = NegativeLogLikelihoodLoss(x, l) reduction=\"none\"\n",
     Y(2, 3)},
    /* images */
    {"opset 9\ninit x float 1 1 1 2 = 1 2\ninit s float 4 = 1 1 2 2\ny = Upsample(x, s)\n",
     Y(1, 1, 2, 2, 1, 1, 2, 2)},
    {"init x float 1 1 1 4 = 1 2 3 4\ninit s int64 4 = 1 1 1 2\n"
     "y = Resize(x, -, -, s) mode=\"linear\"\n",
     Y(1.5, 3.5)},
    {"init x float 1 4 1 1 = 1 2 3 4\ny = DepthToSpace(x) blocksize=2\n", Y(1, 2, 3, 4)},
    {"init x float 1 8 1 1 = 1 2 3 4 5 6 7 8\ny = DepthToSpace(x) blocksize=2 mode=\"CRD\"\n",
     Y(1, 2, 3, 4, 5, 6, 7, 8)},
    {"init x float 1 8 1 1 = 1 2 3 4 5 6 7 8\ny = DepthToSpace(x) blocksize=2\n",
     Y(1, 3, 5, 7, 2, 4, 6, 8)},
    {"init x float 1 1 2 2 = 1 2 3 4\ny = SpaceToDepth(x) blocksize=2\n", Y(1, 2, 3, 4)},
    /* recurrence: h = tanh(x + h/2), batch first, backwards */
    {"init x float 1 2 1 = 1 2\ninit w float 1 1 1 = 1\ninit r float 1 1 1 = 0.5\n"
     "y = RNN(x, w, r) hidden_size=1 direction=\"reverse\" layout=1\n",
     Y(0.90184459820952401, 0.96402758007581690)},
    /* attention: the second query sees both keys, the first only one */
    {"opset 23\ninit q float 1 1 2 1 = 0\ninit v float 1 1 2 1 = 1 3\n"
     "y = Attention(q, q, v) is_causal=1\n",
     Y(1, 2)},
    /* loops; the value of s before each doubling is scanned */
    {"opset 16\n" X3 "init n int64 = 3\ninit go bool = 1\ninit s float = 1\n"
     "graph body {\ninput i int64\ninput c bool\ninput s float\nd = Add(s, s)\nk = Identity(c)\n"
     "o = Identity(s)\noutput k\noutput d\noutput o\n}\n"
     "last, all = Loop(n, go, s) body=@body\ny = Sum(last, all)\n",
     Y(9, 10, 12)},
    /* ends by its condition, without a count: i + 1 < 2 */
    {"opset 16\n" X3 "init go bool = 1\ninit two int64 = 2\ninit one int64 = 1\ninit n int64 = 0\n"
     "graph body {\ninput i int64\ninput c bool\ninput n int64\nm = Add(n, one)\n"
     "k = Less(m, two)\noutput k\noutput m\n}\n"
     "last = Loop(-, go, n) body=@body\ny = Mul(last, two)\n",
     Y(4)},
    /* no round: what is carried is as it was, what is scanned is empty */
    {"opset 16\n" X3 "init n int64 = 0\ninit s float 2 = 5 6\n"
     "graph body {\ninput i int64\ninput c bool\ninput s float 2\nk = Identity(c)\n"
     "d = Add(s, s)\no = Mul(s, s)\noutput k\noutput d float 2\noutput o float 2\n}\n"
     "last, all = Loop(n, -, s) body=@body\nrow = Unsqueeze(last, zero)\n"
     "init zero int64 1 = 0\ny = Concat(all, row) axis=0\n",
     Y(5, 6)},
    /* a loop in a loop, with a value of the outer one */
    {"opset 16\n" X3 "init n int64 = 2\ninit s float = 1\n"
     "graph inner {\ninput j int64\ninput d bool\ninput t float\nu = Add(t, f)\nl = Identity(d)\n"
     "output l\noutput u\n}\n"
     "graph body {\ninput i int64\ninput c bool\ninput s float\nf = Cast(i) to=1\n"
     "r = Loop(n, -, s) body=@inner\nk = Identity(c)\noutput k\noutput r\n}\n"
     "y = Loop(n, -, s) body=@body\n",
     Y(3)},
    /* running sums, then from the other end */
    {"opset 16\n" X3 "init s float = 0\n"
     "graph body {\ninput s float\ninput e float\nt = Add(s, e)\no = Identity(t)\noutput t\n"
     "output o\n}\n"
     "last, all = Scan(s, x) body=@body num_scan_inputs=1\ny = Mul(all, last)\n",
     Y(6, 18, 36)},
    {"opset 16\n" X3 "init s float = 0\n"
     "graph body {\ninput s float\ninput e float\nt = Add(s, e)\no = Identity(t)\noutput t\n"
     "output o\n}\n"
     "-, y = Scan(s, x) body=@body num_scan_inputs=1 scan_input_directions=[1] "
     "scan_output_directions=[1]\n",
     Y(6, 5, 3)},
    /* opset 8: each sample by itself, read from the other end */
    {"opset 8\ninit x float 2 3 = 1 2 3 4 5 6\ninit s float 2 = 10 20\n"
     "graph body {\ninput s float\ninput e float\nt = Add(s, e)\no = Identity(t)\noutput t\n"
     "output o\n}\n"
     "last, all = Scan(-, s, x) body=@body num_scan_inputs=1 directions=[1]\n"
     "end = Unsqueeze(last) axes=[1]\ny = Concat(all, end) axis=1\n",
     Y(13, 15, 16, 16, 26, 31, 35, 35)},
    /* sequences */
    {"opset 16\n" X3 "init at int64 = -1\ninit p int64 = 0\n"
     "s = SequenceConstruct(x, x)\nd = Neg(x)\nt = SequenceInsert(s, d, p)\n"
     "u = SequenceErase(t)\nv = SequenceAt(u, p)\nw = SequenceAt(u, at)\n"
     "n = SequenceLength(u)\nf = Cast(n) to=1\nm = Mul(w, f)\ny = Sub(m, v)\n",
     Y(3, 6, 9)},
    {"opset 16\n" X3 "init two int64 = 2\n"
     "s = SplitToSequence(x, two)\nd = SequenceAt(s, last)\ninit last int64 = 1\n"
     "e = SequenceEmpty()\nf = SequenceInsert(e, d)\ng = SequenceInsert(f, x)\n"
     "y = ConcatFromSequence(g) axis=0\n",
     Y(3, 1, 2, 3)},
    {"opset 16\n" X3
     "s = SplitToSequence(x) keepdims=0\ny = ConcatFromSequence(s) axis=0 new_axis=1\n",
     Y(1, 2, 3)},
    {"opset 17\n" X3 "s = SequenceConstruct(x, x)\n"
     "graph body {\ninput a float 3\ninput b float 3\nc = Mul(a, b)\noutput c\n}\n"
     "t = SequenceMap(s, x) body=@body\ny = ConcatFromSequence(t) axis=0\n",
     Y(1, 4, 9, 1, 4, 9)},
    /* optionals */
    {"opset 18\n" X3 "o = Optional(x)\nh = OptionalHasElement(o)\n"
     "graph then {\ng = OptionalGetElement(o)\noutput g\n}\n"
     "graph else {\nz = Neg(x)\noutput z\n}\n"
     "y = If(h) then_branch=@then else_branch=@else\n",
     Y(1, 2, 3)},
};

static int lower_row(const struct row *row, struct mgpu_onnx_file **file,
                     struct mgpu_onnx_model **model, struct mgpu_graph **g)
{
    static const char path[] = "/tmp/mgpu-test-operators.onnx";
    struct mgpu_lower_options options = {.float_type = MGPU_DOUBLE};
    char text[2048];
    snprintf(text, sizeof text, "%soutput y\n", row->text);
    make_onnx_file(path, text);
    int rc = mgpu_onnx_read(file, path);
    remove(path);
    MGPU_TRY(rc);
    MGPU_TRY(mgpu_onnx_model_new(model, *file));
    return mgpu_lower(g, *model, NULL, &options);
}

static void check_row(const struct row *row)
{
    struct mgpu_onnx_file *file = NULL;
    struct mgpu_onnx_model *model = NULL;
    struct mgpu_graph *g = NULL;
    int rc = lower_row(row, &file, &model, &g);
    CHECK_(rc >= 0, "%s: %s", row->text, mgpu_error());
    if (rc >= 0) {
        const struct mgpu_value *y = g->outputs[0];
        int64_t count = mgpu_value_count(y);
        CHECK_(y->kind == MGPU_VALUE_CONSTANT, "%s: not folded", row->text);
        CHECK_(count == row->count, "%s: %d elements", row->text, (int)count);
        for (int i = 0; i < row->count && count == row->count && y->data; i++) {
            double have = mgpu_get_double(y->data, y->type, i);
            CHECK_(fabs(have - row->y[i]) <= 1e-7 * fmax(1, fabs(row->y[i])),
                   "%s: [%d] is %.17g, not %.17g", row->text, i, have, row->y[i]);
        }
    }
    mgpu_graph_free(g);
    mgpu_onnx_model_free(model);
    mgpu_onnx_free(file);
}

/* What is wrong is an error that says so, not a crash. */
static void test_wrong(void)
{
    static const struct {
        const char *text, *message;
    } wrong[] = {
        {"init x float 2 = 0\ny = Transpose(x) perm=[0, 1]\n", "perm has 2 axes"},
        {"init x float 2 2 = 0\ny = Transpose(x) perm=[0, 0]\n", "not a permutation"},
        {"init x float 2 = 0\ninit a float 3 = 0\ny = Add(x, a)\n", "Add"},
        {"init x float 2 = 0\ninit a int64 2 = 0\ny = Add(x, a)\n", "add of double and int64"},
        {"init x float 2 3 = 0\ninit s int64 2 = -1 -1\ny = Reshape(x, s)\n", "size -1 at axis 1"},
        {"init x float 2 3 = 0\ninit s int64 2 = 4 2\ny = Reshape(x, s)\n", "cannot be seen as"},
        {"init x float 2 = 0\ny = Softmax(x) axis=1\n", "axis 1 is outside"},
        {"init x float 1 1 2 = 0\ninit w float 1 1 3 = 0\ny = Conv(x, w)\n", "does not fit"},
        {"init x float 1 1 2 = 0\ninit w float 1 1 2 = 0\ny = Conv(x, w) strides=[0]\n",
         "stride 0"},
        {"init x float 2 = 0\ninit i int64 1 = 5\ny = Gather(x, i)\n", "5"},
        {"init x float 5 = 0\na, y = Split(x) split=[2, 9]\n", "Split"},
        {"init x float 2 = 0\ninit s int64 1 = 0\ny = Slice(x, s, s, s, s)\n", "a step is 0"},
        {"init x float 2 = 0\ny = Einsum(x) equation=\"i,j\"\n", "does not fit"},
        {"init x float 2 = 0\ny = Einsum(x) equation=\"i->k\"\n", "no input has"},
        {"init x float 2 = 0\ny = Relu()\n", "input 0 is missing"},
        {"init x float 2 = 0\ny = Pad(x)\n", "no pads"},
        {"init x float 1 2 2 = 0\ny = MaxPool(x) kernel_shape=[2, 2]\n", "kernel_shape"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct mgpu_onnx_file *file = NULL;
        struct mgpu_onnx_model *model = NULL;
        struct mgpu_graph *g = NULL;
        struct row row = {.text = wrong[i].text};
        CHECK_FAILS(lower_row(&row, &file, &model, &g), wrong[i].message);
        mgpu_onnx_model_free(model);
        mgpu_onnx_free(file);
    }
}

int main(void)
{
    mgpu_fold_set(mgpu_ref_fold);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_row(&rows[i]);
    test_wrong();
    return test_end();
}
