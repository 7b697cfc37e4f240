/* Convolution and its gradients, tap by tap: for the types and sizes that cuDNN has no engine for.
 * A thread computes an element of y or of dx, a block one of dw. Images and filters lie row-major
 * or channels-last. */
#include "runtime/ops/conv.h"
#include "runtime/emit/writer.h"

enum { AXES = MGPU_MAX_SPATIAL, SUM_THREADS = 256 };

/* An operand [N,C,S...], or a filter [O,C,K...], with three spatial axes, the missing ones in front
 * with size 1. */
struct image {
    char name[8];
    const char *type;
    int64_t count, size[AXES], channels, samples;
    int64_t step[AXES], channel, sample; /* elements from one to the next */
};

static struct image image_of(const struct mgpu_node *node, int operand)
{
    bool in = operand < node->inputs;
    const struct mgpu_value *v = in ? node->input[operand] : node->output[operand - node->inputs];
    int64_t step = v->block ? v->block : 1;
    struct image m = {.type = mgpu_dtype_name(v->type),
                      .count = mgpu_value_count(v),
                      .channels = v->dims[1].value,
                      .samples = v->dims[0].value};
    snprintf(m.name, sizeof m.name, "%c%d", in ? 'x' : 'y', in ? operand : operand - node->inputs);
    for (int k = AXES - 1; k >= 0; step *= m.size[k--]) {
        int i = k + v->rank - AXES;
        m.size[k] = i < 2 ? 1 : v->dims[i].value;
        m.step[k] = step;
    }
    m.channel = v->block ? 1 : step;
    m.sample = v->block ? step : step * m.channels;
    return m;
}

/* The attributes along axis k. */
struct axis {
    long long stride, dilation, before;
};

static struct axis axis_of(const struct mgpu_writer *w, int k)
{
    const struct mgpu_conv_attrs *a = w->node->attrs;
    int64_t i = k + a->spatial - AXES;
    if (i < 0)
        return (struct axis){1, 1, 0};
    return (struct axis){a->stride[i], a->dilation[i], a->before[i]};
}

/* `sample`, `channel` and place_0 .. place_2 of element `i`: "n", "c", "p". */
static void write_place(struct mgpu_writer *w, const struct image *m, const char *sample,
                        const char *channel, const char *place)
{
    mgpu_write(w, "    const i64 %s = i / %lld, %s = i / %lld %% %lld", sample,
               (long long)m->sample, channel, (long long)m->channel, (long long)m->channels);
    for (int k = 0; k < AXES; k++)
        mgpu_write(w, ", %s_%d = i / %lld %% %lld", place, k, (long long)m->step[k],
                   (long long)m->size[k]);
    mgpu_write(w, ";\n");
}

/* "LOAD_float(x0, sample * .. + channel * .. + place_0 * .. + ..)". */
static void write_element(struct mgpu_writer *w, const struct image *m, const char *sample,
                          const char *channel, const char *place)
{
    mgpu_write(w, "LOAD_%s(%s, (%s) * %lld + (%s) * %lld", m->type, m->name, sample,
               (long long)m->sample, channel, (long long)m->channel);
    for (int k = 0; k < AXES; k++)
        if (m->size[k] > 1)
            mgpu_write(w, " + %s_%d * %lld", place, k, (long long)m->step[k]);
    mgpu_write(w, ")");
}

/* Loops over the taps k_0 .. k_2 of the filter. */
static void open_taps(struct mgpu_writer *w, const struct image *filter)
{
    for (int k = 0; k < AXES; k++)
        mgpu_write(w, "    for (i64 k_%d = 0; k_%d < %lld; k_%d++)\n", k, k,
                   (long long)filter->size[k], k);
    mgpu_write(w, "    {\n");
}

/* at_0 .. at_2, where tap k of window p lies in x; goes on with the next tap where that is padding.
 */
static void write_inside(struct mgpu_writer *w, const struct image *x)
{
    for (int k = 0; k < AXES; k++) {
        struct axis a = axis_of(w, k);
        mgpu_write(w, "        const i64 at_%d = p_%d * %lld - %lld + k_%d * %lld;\n", k, k,
                   a.stride, a.before, k, a.dilation);
        mgpu_write(w, "        if (at_%d < 0 || at_%d >= %lld)\n            continue;\n", k, k,
                   (long long)x->size[k]);
    }
}

/* at_0 .. at_2, the window whose tap k is place p of x; goes on where there is none. */
static void write_window(struct mgpu_writer *w, const struct image *dy)
{
    for (int k = 0; k < AXES; k++) {
        struct axis a = axis_of(w, k);
        mgpu_write(w, "        const i64 from_%d = p_%d + %lld - k_%d * %lld, at_%d = ", k, k,
                   a.before, k, a.dilation, k);
        mgpu_write(w, "from_%d / %lld;\n", k, a.stride);
        mgpu_write(w, "        if (from_%d < 0 || from_%d %% %lld || at_%d >= %lld)\n", k, k,
                   a.stride, k, (long long)dy->size[k]);
        mgpu_write(w, "            continue;\n");
    }
}

static const char *real_of(const struct mgpu_writer *w)
{
    return mgpu_compute_type(w->node->output[0]->type);
}

static void emit(struct mgpu_writer *w)
{
    const struct mgpu_node *node = w->node;
    const struct mgpu_conv_attrs *a = node->attrs;
    struct image x = image_of(node, 0), f = image_of(node, 1), y = image_of(node, node->inputs);
    mgpu_write_kernel_each(w, y.count);
    write_place(w, &y, "n", "o", "p");
    mgpu_write(w, "    const i64 first = o / %lld * %lld;\n    %s sum = 0;\n",
               (long long)(y.channels / a->group), (long long)f.channels, real_of(w));
    open_taps(w, &f);
    write_inside(w, &x);
    mgpu_write(
        w, "        for (int c = 0; c < %lld; c++)\n            sum += ", (long long)f.channels);
    write_element(w, &x, "n", "first + c", "at");
    mgpu_write(w, " * ");
    write_element(w, &f, "o", "c", "k");
    mgpu_write(w, ";\n    }\n");
    if (node->inputs > 2 && node->input[2])
        mgpu_write(w, "    sum += LOAD_%s(x2, o);\n", mgpu_dtype_name(node->input[2]->type));
    mgpu_write(w,
               a->relu ? "    STORE_%s(y0, i, larger%s(sum, 0));\n}\n"
                       : "    STORE_%s(y0, i, sum);\n}\n",
               y.type, mgpu_math_suffix(node->output[0]->type));
}

static void emit_input(struct mgpu_writer *w)
{
    const struct mgpu_conv_attrs *a = w->node->attrs;
    struct image dy = image_of(w->node, 0), f = image_of(w->node, 1), dx = image_of(w->node, 2);
    long long outputs = f.samples / a->group;
    mgpu_write_kernel_each(w, dx.count);
    write_place(w, &dx, "n", "c", "p");
    mgpu_write(w, "    const i64 first = c / %lld * %lld;\n    %s sum = 0;\n",
               (long long)f.channels, outputs, real_of(w));
    open_taps(w, &f);
    write_window(w, &dy);
    mgpu_write(w, "        for (int o = 0; o < %lld; o++)\n            sum += ", outputs);
    write_element(w, &dy, "n", "first + o", "at");
    mgpu_write(w, " * ");
    char channel[32];
    snprintf(channel, sizeof channel, "c %% %lld", (long long)f.channels);
    write_element(w, &f, "first + o", channel, "k");
    mgpu_write(w, ";\n    }\n    STORE_%s(y0, i, sum);\n}\n", dx.type);
}

static void emit_weight(struct mgpu_writer *w)
{
    const struct mgpu_conv_attrs *a = w->node->attrs;
    struct image x = image_of(w->node, 0), dy = image_of(w->node, 1), f = image_of(w->node, 2);
    long long outputs = f.samples / a->group, windows = dy.size[0] * dy.size[1] * dy.size[2];
    mgpu_write_kernel(w, f.count, SUM_THREADS, true);
    mgpu_write(w, "    const u32 i = blockIdx.x;\n");
    write_place(w, &f, "o", "c", "k");
    mgpu_write(w, "    const i64 channel = o / %lld * %lld + c;\n    %s sum = 0;\n", outputs,
               (long long)f.channels, real_of(w));
    mgpu_write(w, "    for (i64 r = threadIdx.x; r < %lldLL; r += %d) {\n",
               (long long)dy.samples * windows, SUM_THREADS);
    mgpu_write(w, "        const i64 n = r / %lld", windows);
    for (long long k = AXES - 1, inside = 1; k >= 0; inside *= dy.size[k--])
        mgpu_write(w, ", p_%lld = r / %lld %% %lld", k, inside, (long long)dy.size[k]);
    mgpu_write(w, ";\n");
    write_inside(w, &x);
    mgpu_write(w, "        sum += ");
    write_element(w, &x, "n", "channel", "at");
    mgpu_write(w, " * ");
    write_element(w, &dy, "n", "o", "p");
    mgpu_write(w, ";\n    }\n    sum = block_add%s(sum);\n    if (threadIdx.x == 0)\n        ",
               mgpu_math_suffix(w->node->output[0]->type));
    mgpu_write(w, "STORE_%s(y0, i, sum);\n}\n", f.type);
}

/* Gradients of biases are sums of their own (compile/bias_apart.c). */
static bool accepts_weight(const struct mgpu_node *node)
{
    bool bias = node->outputs > 1 && node->output[1];
    return !bias && mgpu_value_count(node->output[0]) <= INT32_MAX;
}

const struct mgpu_emitter mgpu_emit_conv[] = {
    {"conv", NULL, emit},
    {"conv_grad_input", NULL, emit_input},
    {"conv_grad_weight", accepts_weight, emit_weight},
    {NULL, NULL, NULL},
};
