#include "runtime/emit/writer.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

void mgpu_write(struct mgpu_writer *w, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vfprintf(w->out, format, args);
    va_end(args);
}

static void write_parameters(struct mgpu_writer *w)
{
    const struct mgpu_node *node = w->node;
    const char *comma = "";
    int count = 0;
    for (int i = 0; i < node->inputs + node->outputs; i++) {
        bool in = i < node->inputs;
        const struct mgpu_value *v = in ? node->input[i] : node->output[i - node->inputs];
        if (!v)
            continue;
        mgpu_write(w, "%s%sm_%s *%c%d", comma, in ? "const " : "", mgpu_dtype_name(v->type),
                   in ? 'x' : 'y', in ? i : i - node->inputs);
        comma = ", ";
        count++;
    }
    if (w->result->workspace > 0)
        mgpu_write(w, "%svoid *work", comma);
    if (w->stops)
        mgpu_write(w, ", const u32 *stop");
    w->result->parameters = count + (w->result->workspace > 0) + w->stops;
}

void mgpu_write_kernel(struct mgpu_writer *w, int64_t blocks, int threads, bool together)
{
    struct mgpu_emitted *e = w->result;
    assert(e->launches < MGPU_EMIT_LAUNCHES && blocks > 0 && blocks <= INT32_MAX);
    mgpu_write(w, "\nKERNEL(%s_%d)(", w->name, e->launches);
    write_parameters(w);
    mgpu_write(w, ")\n{\n%s", w->stops ? "    if (*stop)\n        return;\n" : "");
    e->launch[e->launches++] =
        (struct mgpu_emit_launch){.blocks = blocks, .threads = threads, .together = together};
}

void mgpu_write_kernel_each(struct mgpu_writer *w, int64_t count)
{
    mgpu_write_kernel_wide(w, count, 1);
}

void mgpu_write_kernel_wide(struct mgpu_writer *w, int64_t count, int width)
{
    enum { THREADS = 256 };
    const char *type = mgpu_place_type(count + THREADS * width);
    int64_t threads = count / width;
    mgpu_write_kernel(w, (threads + THREADS - 1) / THREADS, THREADS, false);
    mgpu_write(w, "    %s i = (%s)blockIdx.x * %d + threadIdx.x;\n    if (i >= %lld)\n", type, type,
               THREADS, (long long)threads);
    mgpu_write(w, "        return;\n");
    if (width > 1)
        mgpu_write(w, "    i *= %d;\n", width);
}

const char *mgpu_place_type(int64_t count)
{
    return count <= INT32_MAX ? "u32" : "i64";
}

const char *mgpu_compute_type(enum mgpu_dtype type)
{
    return type == MGPU_DOUBLE ? "double" : mgpu_is_float(type) ? "float" : "i64";
}

const char *mgpu_math_suffix(enum mgpu_dtype type)
{
    return type == MGPU_DOUBLE ? "" : "f";
}

void mgpu_view_add(struct mgpu_view *v, int64_t size, int64_t stride)
{
    int last = v->rank - 1;
    if (size == 1)
        return;
    if (last >= 0 && v->strides[last] == stride * size) {
        v->dims[last] *= size;
        v->strides[last] = stride;
        return;
    }
    v->dims[v->rank] = size;
    v->strides[v->rank++] = stride;
}

struct mgpu_view mgpu_view_broadcast(const struct mgpu_value *input,
                                     const struct mgpu_value *output)
{
    struct mgpu_view v = {0};
    int shift = output->rank - input->rank;
    int64_t stride = mgpu_value_count(input);
    for (int k = 0; k < output->rank; k++) {
        int64_t own = k < shift ? 1 : input->dims[k - shift].value;
        stride /= own > 0 ? own : 1;
        mgpu_view_add(&v, output->dims[k].value, own == 1 ? 0 : stride);
    }
    return v;
}

/* (place / (what is inside) % size) * stride, summed over the axes. Places are unsigned. */
void mgpu_write_offset(struct mgpu_writer *w, const struct mgpu_view *v, const char *place)
{
    int64_t inside = 1, farthest = v->base;
    const char *plus = "";
    for (int k = 0; k < v->rank; k++)
        farthest += v->strides[k] > 0 ? (v->dims[k] - 1) * v->strides[k] : 0;
    if (v->base || v->rank == 0) {
        mgpu_write(w, "%lld", (long long)v->base);
        plus = " + ";
    }
    for (int k = v->rank - 1; k >= 0; inside *= v->dims[k--]) {
        if (v->strides[k] == 0)
            continue;
        mgpu_write(w, "%s%s(%s", plus, v->strides[k] < 0 || farthest > INT32_MAX ? "(i64)" : "",
                   place);
        if (inside > 1)
            mgpu_write(w, " / %lld", (long long)inside);
        if (k > 0)
            mgpu_write(w, " %% %lld", (long long)v->dims[k]);
        mgpu_write(w, ")");
        if (v->strides[k] != 1)
            mgpu_write(w, " * %lld", (long long)v->strides[k]);
        plus = " + ";
    }
    if (!*plus)
        mgpu_write(w, "0");
}

void mgpu_write_number(struct mgpu_writer *w, enum mgpu_dtype type, double value)
{
    char text[40];
    const char *name = mgpu_compute_type(type);
    if (isnan(value))
        mgpu_write(w, "(%s)NAN", name);
    else if (isinf(value))
        mgpu_write(w, "(%s)%sINFINITY", name, value < 0 ? "-" : "");
    else {
        snprintf(text, sizeof text, "%.17g", value);
        mgpu_write(w, "%s%s%s", text, strpbrk(text, ".e") ? "" : ".0", mgpu_math_suffix(type));
    }
}
