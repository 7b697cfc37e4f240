#include "tests/bench/models.h"

#include "runtime/base/memory.h"
#include "tests/support/make_onnx.h"
#include "tests/support/write_npy.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* A network being written. Values and weights have numbers in place of names: v1, w1. */
struct net {
    FILE *to;
    int values, weights;
};

enum { INPUT = -1, SECOND_INPUT = -2 };

static const char *value(int v)
{
    static char text[4][16]; /* as many as one statement names */
    static int turn;
    char *name = text[turn++ & 3];
    if (v < 0)
        snprintf(name, sizeof text[0], "x%d", -1 - v);
    else
        snprintf(name, sizeof text[0], "v%d", v);
    return name;
}

/* "Op(...)" with its result's number. */
static int node(struct net *n, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int node(struct net *n, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(n->to, "v%d = ", ++n->values);
    vfprintf(n->to, format, args);
    fputc('\n', n->to);
    va_end(args);
    return n->values;
}

/* "float 3 4 = ..." with its number. */
static int weight(struct net *n, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int weight(struct net *n, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(n->to, "init w%d ", ++n->weights);
    vfprintf(n->to, format, args);
    fputc('\n', n->to);
    va_end(args);
    return n->weights;
}

/* ---- Layers ---------------------------------------------------------------------------------- */

struct conv {
    int in, out, kernel, stride, pad, group;
    bool bias;
};

static int conv(struct net *n, int x, struct conv c)
{
    int group = c.group ? c.group : 1, inside = c.in / group;
    double deviation = sqrt(2.0 / (inside * c.kernel * c.kernel));
    int w =
        weight(n, "float %d %d %d %d = normal %g", c.out, inside, c.kernel, c.kernel, deviation);
    char bias[16] = "";
    if (c.bias)
        snprintf(bias, sizeof bias, ", w%d", weight(n, "float %d = normal 0.01", c.out));
    return node(n,
                "Conv(%s, w%d%s) kernel_shape=[%d, %d] strides=[%d, %d] pads=[%d, %d, %d, %d] "
                "dilations=[1, 1] group=%d",
                value(x), w, bias, c.kernel, c.kernel, c.stride, c.stride, c.pad, c.pad, c.pad,
                c.pad, group);
}

static int relu(struct net *n, int x)
{
    return node(n, "Relu(%s)", value(x));
}

static int relu6(struct net *n, int x)
{
    return node(n, "Clip(%s, zero, six)", value(x));
}

/* In training form. */
static int batch_norm(struct net *n, int x, int channels)
{
    int w = n->weights;
    for (int i = 0; i < 4; i++) /* scale, shift, mean, variance */
        weight(n, "float %d = %d", channels, i == 0 || i == 3);
    n->values++;
    fprintf(n->to,
            "v%d, v%d.mean, v%d.var = BatchNormalization(%s, w%d, w%d, w%d, w%d) "
            "training_mode=1 epsilon=1e-5 momentum=0.9\n",
            n->values, n->values, n->values, value(x), w + 1, w + 2, w + 3, w + 4);
    return n->values;
}

static int max_pool(struct net *n, int x, int kernel, int stride, int pad)
{
    return node(n, "MaxPool(%s) kernel_shape=[%d, %d] strides=[%d, %d] pads=[%d, %d, %d, %d]",
                value(x), kernel, kernel, stride, stride, pad, pad, pad, pad);
}

static int gemm(struct net *n, int x, int in, int out)
{
    int w = weight(n, "float %d %d = normal %g", out, in, sqrt(1.0 / in));
    int b = weight(n, "float %d = normal 0.01", out);
    return node(n, "Gemm(%s, w%d, w%d) transB=1", value(x), w, b);
}

/* On the last axis of any rank. */
static int linear(struct net *n, int x, int in, int out)
{
    int w = weight(n, "float %d %d = normal 0.02", in, out);
    int b = weight(n, "float %d = normal 0.01", out);
    int product = node(n, "MatMul(%s, w%d)", value(x), w);
    return node(n, "Add(%s, w%d)", value(product), b);
}

static int layer_norm(struct net *n, int x, int width, double epsilon)
{
    int scale = weight(n, "float %d = 1", width), shift = weight(n, "float %d = 0", width);
    return node(n, "LayerNormalization(%s, w%d, w%d) axis=-1 epsilon=%e", value(x), scale, shift,
                epsilon);
}

static void classify(struct net *n, int x, int channels, int classes)
{
    int pooled = node(n, "GlobalAveragePool(%s)", value(x));
    int flat = node(n, "Flatten(%s)", value(pooled));
    int y = gemm(n, flat, channels, classes);
    fprintf(n->to, "out = Identity(%s)\noutput out float N %d\n", value(y), classes);
}

/* ---- Small networks -------------------------------------------------------------------------- */

static void mlp(FILE *to)
{
    struct net n = {.to = to};
    fprintf(to, "input x0 float N 784\n");
    int h = relu(&n, gemm(&n, INPUT, 784, 512));
    h = relu(&n, gemm(&n, h, 512, 512));
    fprintf(to, "out = Identity(%s)\noutput out float N 10\n", value(gemm(&n, h, 512, 10)));
}

static void fmnist(FILE *to)
{
    struct net n = {.to = to};
    fprintf(to, "input x0 float N 1 28 28\n");
    int h = relu(&n, conv(&n, INPUT, (struct conv){1, 32, 3, 1, 1, 1, true}));
    h = max_pool(&n, h, 2, 2, 0);
    h = relu(&n, conv(&n, h, (struct conv){32, 64, 3, 1, 1, 1, true}));
    h = max_pool(&n, h, 2, 2, 0);
    h = node(&n, "Flatten(%s)", value(h));
    h = relu(&n, gemm(&n, h, 3136, 128));
    fprintf(to, "out = Identity(%s)\noutput out float N 10\n", value(gemm(&n, h, 128, 10)));
}

/* Two sequences through one LSTM. */
static int last_state(struct net *n, int x)
{
    int y = node(n, "Transpose(%s) perm=[1, 0, 2]", value(x));
    n->values++;
    fprintf(n->to, "v%d, v%d.h, v%d.c = LSTM(%s, lstm.W, lstm.R, lstm.B) hidden_size=64\n",
            n->values, n->values, n->values, value(y));
    y = node(n, "Squeeze(%s, one)", value(n->values));
    return node(n, "Gather(%s, minus_one) axis=0", value(y));
}

static void lstm2(FILE *to)
{
    struct net n = {.to = to};
    fprintf(to, "input x0 float N 140 256\ninput x1 float N 140 256\n"
                "init lstm.W float 1 256 256 = normal 0.07\n"
                "init lstm.R float 1 256 64 = normal 0.07\n"
                "init lstm.B float 1 512 = normal 0.07\n"
                "init one int64 1 = 1\ninit minus_one int64 = -1\n");
    int a = last_state(&n, INPUT), b = last_state(&n, SECOND_INPUT);
    int both = node(&n, "Concat(%s, %s) axis=1", value(a), value(b));
    fprintf(to, "out = Identity(%s)\noutput out float N 50\n", value(gemm(&n, both, 128, 50)));
}

/* ---- Convolutional networks ------------------------------------------------------------------ */

static int conv_norm(struct net *n, int x, struct conv c)
{
    return batch_norm(n, conv(n, x, c), c.out);
}

static int basic_block(struct net *n, int x, int in, int out, int stride)
{
    int h = relu(n, conv_norm(n, x, (struct conv){in, out, 3, stride, 1, 1, false}));
    h = conv_norm(n, h, (struct conv){out, out, 3, 1, 1, 1, false});
    if (stride > 1)
        x = conv_norm(n, x, (struct conv){in, out, 1, stride, 0, 1, false});
    return relu(n, node(n, "Add(%s, %s)", value(x), value(h)));
}

static void resnet20(FILE *to)
{
    struct net n = {.to = to};
    fprintf(to, "input x0 float N 3 32 32\n");
    int h = relu(&n, conv_norm(&n, INPUT, (struct conv){3, 16, 3, 1, 1, 1, false}));
    for (int stage = 0, in = 16; stage < 3; stage++)
        for (int i = 0, out = 16 << stage; i < 3; i++, in = out)
            h = basic_block(&n, h, in, out, stage && !i ? 2 : 1);
    classify(&n, h, 64, 10);
}

static int bottleneck(struct net *n, int x, int in, int width, int stride)
{
    int out = 4 * width;
    int h = relu(n, conv_norm(n, x, (struct conv){in, width, 1, 1, 0, 1, false}));
    h = relu(n, conv_norm(n, h, (struct conv){width, width, 3, stride, 1, 1, false}));
    h = conv_norm(n, h, (struct conv){width, out, 1, 1, 0, 1, false});
    if (in != out)
        x = conv_norm(n, x, (struct conv){in, out, 1, stride, 0, 1, false});
    return relu(n, node(n, "Add(%s, %s)", value(h), value(x)));
}

static void resnet50(FILE *to)
{
    static const int depth[] = {3, 4, 6, 3};
    struct net n = {.to = to};
    fprintf(to, "input x0 float N 3 224 224\n");
    int h = relu(&n, conv_norm(&n, INPUT, (struct conv){3, 64, 7, 2, 3, 1, false}));
    h = max_pool(&n, h, 3, 2, 1);
    for (int stage = 0, in = 64; stage < 4; stage++)
        for (int i = 0, width = 64 << stage; i < depth[stage]; i++, in = 4 * width)
            h = bottleneck(&n, h, in, width, stage && !i ? 2 : 1);
    classify(&n, h, 2048, 1000);
}

static int inverted_residual(struct net *n, int x, int in, int out, int stride, int expand)
{
    int h = x, width = in * expand;
    if (expand > 1)
        h = relu6(n, conv_norm(n, h, (struct conv){in, width, 1, 1, 0, 1, false}));
    h = relu6(n, conv_norm(n, h, (struct conv){width, width, 3, stride, 1, width, false}));
    h = conv_norm(n, h, (struct conv){width, out, 1, 1, 0, 1, false});
    return stride == 1 && in == out ? node(n, "Add(%s, %s)", value(x), value(h)) : h;
}

static void mobilenetv2(FILE *to)
{
    static const int table[][4] = {/* expand, channels, repeats, stride */
                                   {1, 16, 1, 1}, {6, 24, 2, 2},  {6, 32, 3, 2}, {6, 64, 4, 2},
                                   {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};
    struct net n = {.to = to};
    fprintf(to, "input x0 float N 3 224 224\ninit zero float = 0\ninit six float = 6\n");
    int in = 32, h = relu6(&n, conv_norm(&n, INPUT, (struct conv){3, 32, 3, 2, 1, 1, false}));
    for (int k = 0; k < 7; k++)
        for (int i = 0; i < table[k][2]; i++, in = table[k][1])
            h = inverted_residual(&n, h, in, table[k][1], i ? 1 : table[k][3], table[k][0]);
    h = relu6(&n, conv_norm(&n, h, (struct conv){320, 1280, 1, 1, 0, 1, false}));
    classify(&n, h, 1280, 1000);
}

static void vgg16(FILE *to)
{
    static const int widths[] = {64, 64,  0,   128, 128, 0,   256, 256, 256,
                                 0,  512, 512, 512, 0,   512, 512, 512, 0};
    struct net n = {.to = to};
    fprintf(to, "input x0 float N 3 224 224\n");
    int h = INPUT, in = 3;
    for (int i = 0; i < 18; in = widths[i] ? widths[i] : in, i++)
        h = widths[i] ? relu(&n, conv(&n, h, (struct conv){in, widths[i], 3, 1, 1, 1, true}))
                      : max_pool(&n, h, 2, 2, 0);
    h = node(&n, "Flatten(%s)", value(h));
    h = relu(&n, gemm(&n, h, 25088, 4096));
    h = relu(&n, gemm(&n, h, 4096, 4096));
    fprintf(to, "out = Identity(%s)\noutput out float N 1000\n", value(gemm(&n, h, 4096, 1000)));
}

static int two_convs(struct net *n, int x, int in, int out)
{
    x = relu(n, conv(n, x, (struct conv){in, out, 3, 1, 1, 1, true}));
    return relu(n, conv(n, x, (struct conv){out, out, 3, 1, 1, 1, true}));
}

static int up(struct net *n, int x, int out)
{
    int w = weight(n, "float %d %d 2 2 = normal %g", 2 * out, out, sqrt(0.5 / out));
    int b = weight(n, "float %d = normal 0.01", out);
    return node(n, "ConvTranspose(%s, w%d, w%d) kernel_shape=[2, 2] strides=[2, 2]", value(x), w,
                b);
}

static void unet(FILE *to)
{
    struct net n = {.to = to};
    int kept[4], h = INPUT;
    fprintf(to, "input x0 float N 3 256 256\n");
    for (int i = 0; i < 4; i++) {
        kept[i] = two_convs(&n, h, i ? 32 << i : 3, 64 << i);
        h = max_pool(&n, kept[i], 2, 2, 0);
    }
    h = two_convs(&n, h, 512, 1024);
    for (int i = 3; i >= 0; i--) {
        h = up(&n, h, 64 << i);
        h = node(&n, "Concat(%s, %s) axis=1", value(h), value(kept[i]));
        h = two_convs(&n, h, 128 << i, 64 << i);
    }
    h = conv(&n, h, (struct conv){64, 2, 1, 1, 0, 1, true});
    fprintf(to, "out = Identity(%s)\noutput out float N 2 256 256\n", value(h));
}

/* ---- Transformers ---------------------------------------------------------------------------- */

enum { WIDTH = 768, HEADS = 12, LAYERS = 12 };

static int heads_of(struct net *n, int x, const char *perm)
{
    int y = node(n, "Reshape(%s, heads)", value(x));
    return node(n, "Transpose(%s) perm=%s", value(y), perm);
}

/* softmax(q k' / 8, masked) v */
static int attend(struct net *n, int q, int k, int v, bool causal)
{
    q = heads_of(n, q, "[0, 2, 1, 3]");
    k = heads_of(n, k, "[0, 2, 3, 1]");
    v = heads_of(n, v, "[0, 2, 1, 3]");
    int s = node(n, "MatMul(%s, %s)", value(q), value(k));
    s = node(n, "Div(%s, eight)", value(s));
    s = causal ? node(n, "Where(causal, %s, lowest)", value(s))
               : node(n, "Add(%s, mask)", value(s));
    s = node(n, "Softmax(%s) axis=-1", value(s));
    s = node(n, "MatMul(%s, %s)", value(s), value(v));
    s = node(n, "Transpose(%s) perm=[0, 2, 1, 3]", value(s));
    return node(n, "Reshape(%s, rows)", value(s));
}

static int gelu(struct net *n, int x)
{
    int y = node(n, "Div(%s, root_two)", value(x));
    y = node(n, "Erf(%s)", value(y));
    y = node(n, "Add(%s, one)", value(y));
    y = node(n, "Mul(%s, %s)", value(x), value(y));
    return node(n, "Mul(%s, half)", value(y));
}

static int gelu_tanh(struct net *n, int x)
{
    int y = node(n, "Pow(%s, three)", value(x));
    y = node(n, "Mul(%s, cubic)", value(y));
    y = node(n, "Add(%s, %s)", value(x), value(y));
    y = node(n, "Mul(%s, root)", value(y));
    y = node(n, "Tanh(%s)", value(y));
    y = node(n, "Add(%s, one)", value(y));
    int h = node(n, "Mul(%s, half)", value(x));
    return node(n, "Mul(%s, %s)", value(h), value(y));
}

static int add(struct net *n, int a, int b)
{
    return node(n, "Add(%s, %s)", value(a), value(b));
}

static void constants(FILE *to)
{
    fprintf(to,
            "init heads int64 4 = 0 0 %d %d\ninit rows int64 3 = 0 0 %d\n"
            "init eight float = 8\ninit root_two float = 1.4142135\ninit one float = 1\n"
            "init half float = 0.5\ninit three float = 3\ninit cubic float = 0.044715\n"
            "init root float = 0.79788456\ninit lowest float = -3.4028235e38\n",
            HEADS, WIDTH / HEADS, WIDTH);
}

static int encoder_layer(struct net *n, int x)
{
    int q = linear(n, x, WIDTH, WIDTH), k = linear(n, x, WIDTH, WIDTH);
    int a = attend(n, q, k, linear(n, x, WIDTH, WIDTH), false);
    x = layer_norm(n, add(n, linear(n, a, WIDTH, WIDTH), x), WIDTH, 1e-12);
    int h = gelu(n, linear(n, x, WIDTH, 4 * WIDTH));
    return layer_norm(n, add(n, linear(n, h, 4 * WIDTH, WIDTH), x), WIDTH, 1e-12);
}

static void bert(FILE *to)
{
    struct net n = {.to = to};
    constants(to);
    fprintf(to,
            "input x0 int64 N 128\ninput x1 int64 N 128\n"
            "init words float 30522 %d = normal 0.02\ninit places float 1 128 %d = normal 0.02\n"
            "init kind float %d = normal 0.02\ninit axes int64 2 = 1 2\ninit zero int64 = 0\n"
            "m0 = Cast(x1) to=1\nm1 = Unsqueeze(m0, axes)\nm2 = Sub(one, m1)\n"
            "mask = Mul(m2, lowest)\n",
            WIDTH, WIDTH, WIDTH);
    int h = node(&n, "Gather(words, x0) axis=0");
    h = node(&n, "Add(%s, kind)", value(h));
    h = layer_norm(&n, node(&n, "Add(%s, places)", value(h)), WIDTH, 1e-12);
    for (int i = 0; i < LAYERS; i++)
        h = encoder_layer(&n, h);
    h = node(&n, "Gather(%s, zero) axis=1", value(h));
    h = node(&n, "Tanh(%s)", value(gemm(&n, h, WIDTH, WIDTH)));
    fprintf(to, "out = Identity(%s)\noutput out float N 2\n", value(gemm(&n, h, WIDTH, 2)));
}

static int decoder_layer(struct net *n, int x)
{
    int all = linear(n, layer_norm(n, x, WIDTH, 1e-5), WIDTH, 3 * WIDTH), q = n->values + 1;
    n->values += 3;
    fprintf(n->to, "v%d, v%d, v%d = Split(%s, thirds) axis=2\n", q, q + 1, q + 2, value(all));
    x = add(n, linear(n, attend(n, q, q + 1, q + 2, true), WIDTH, WIDTH), x);
    int h = gelu_tanh(n, linear(n, layer_norm(n, x, WIDTH, 1e-5), WIDTH, 4 * WIDTH));
    return add(n, x, linear(n, h, 4 * WIDTH, WIDTH));
}

static void gpt2(FILE *to)
{
    enum { LENGTH = 256, WORDS = 50257 };
    struct net n = {.to = to};
    constants(to);
    fprintf(to,
            "input x0 int64 N %d\ninit words float %d %d = normal 0.02\n"
            "init places float 1 %d %d = normal 0.02\ninit thirds int64 3 = %d\n"
            "init square int64 2 = %d %d\nones = ConstantOfShape(square) value=<float 1 = 1>\n"
            "lower = Trilu(ones) upper=0\ncausal = Cast(lower) to=9\n",
            LENGTH, WORDS, WIDTH, LENGTH, WIDTH, WIDTH, LENGTH, LENGTH);
    int h = node(&n, "Gather(words, x0) axis=0");
    h = node(&n, "Add(%s, places)", value(h));
    for (int i = 0; i < LAYERS; i++)
        h = decoder_layer(&n, h);
    h = layer_norm(&n, h, WIDTH, 1e-5);
    int words = node(&n, "Transpose(words) perm=[1, 0]");
    h = node(&n, "MatMul(%s, %s)", value(h), value(words));
    fprintf(to, "out = Transpose(%s) perm=[0, 2, 1]\noutput out float N %d %d\n", value(h), WORDS,
            LENGTH);
}

/* ---- The list -------------------------------------------------------------------------------- */

#define IMAGES(c, h, w)                                                                            \
    {                                                                                              \
        "x0", MGPU_FLOAT, 3, {c, h, w}, 0                                                          \
    }
#define CLASSES(n)                                                                                 \
    {                                                                                              \
        "label", MGPU_INT64, 0, {0}, n                                                             \
    }
#define ADAM "adam,lr=1e-4"
#define SGD  "sgd,lr=1e-3,momentum=0.9"

const struct bench_model bench_models[] = {
    {"mlp", 128, ADAM, 2, {{"x0", MGPU_FLOAT, 1, {784}, 0}, CLASSES(10)}, mlp},
    {"fmnist", 128, ADAM, 2, {IMAGES(1, 28, 28), CLASSES(10)}, fmnist},
    {"resnet20", 128, SGD, 2, {IMAGES(3, 32, 32), CLASSES(10)}, resnet20},
    {"mobilenetv2", 16, ADAM, 2, {IMAGES(3, 224, 224), CLASSES(1000)}, mobilenetv2},
    {"resnet50", 16, SGD, 2, {IMAGES(3, 224, 224), CLASSES(1000)}, resnet50},
    {"vgg16", 4, SGD, 2, {IMAGES(3, 224, 224), CLASSES(1000)}, vgg16},
    {"unet", 2, ADAM, 2, {IMAGES(3, 256, 256), {"label", MGPU_INT64, 2, {256, 256}, 2}}, unet},
    {"lstm2",
     64,
     ADAM,
     3,
     {{"x0", MGPU_FLOAT, 2, {140, 256}, 0}, {"x1", MGPU_FLOAT, 2, {140, 256}, 0}, CLASSES(50)},
     lstm2},
    {"bert",
     4,
     ADAM,
     3,
     {{"x0", MGPU_INT64, 1, {128}, 30000}, {"x1", MGPU_INT64, 1, {128}, 1}, CLASSES(2)},
     bert},
    {"gpt2",
     2,
     ADAM,
     2,
     {{"x0", MGPU_INT64, 1, {256}, 50000}, {"label", MGPU_INT64, 1, {256}, 50000}},
     gpt2},
    {.name = NULL},
};

const struct bench_model *bench_model_find(const char *name)
{
    const struct bench_model *m = bench_models;
    while (m->name && strcmp(m->name, name))
        m++;
    return m->name ? m : NULL;
}

static void write_input(const struct bench_model *m, const struct bench_input *in, int64_t batch,
                        const char *folder)
{
    char path[1000];
    int64_t dims[4] = {batch}, count = batch;
    for (int k = 0; k < in->rank; k++)
        count *= dims[k + 1] = in->dims[k];
    void *data = mgpu_xcalloc((size_t)count, mgpu_dtype_size(in->type));
    uint64_t state = 1 + (uint64_t)in->name[1];
    for (int64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        if (in->type == MGPU_FLOAT)
            ((float *)data)[i] = (float)(state >> 40) / (1 << 23) - 1;
        else
            ((int64_t *)data)[i] = in->below == 1 ? 1 : (int64_t)(state >> 33) % in->below;
    }
    snprintf(path, sizeof path, "%s/%s.%s.npy", folder, m->name, in->name);
    write_npy_data(path, in->type, in->rank + 1, dims, data);
    free(data);
}

void bench_model_write(const struct bench_model *m, int64_t batch, const char *folder)
{
    char path[1000], *text;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    fprintf(to, "producer pytorch\nopset 17\n");
    m->write(to);
    fclose(to);
    snprintf(path, sizeof path, "%s/%s.onnx", folder, m->name);
    make_onnx_file(path, text);
    free(text);
    for (int i = 0; i < m->inputs; i++)
        write_input(m, &m->input[i], batch, folder);
}
