/* Pointwise chains: one pass, 16 bytes an operand and thread where shapes allow. */
#include "runtime/ops/pointwise.h"
#include "runtime/emit/writer.h"

static const struct mgpu_expr *expr_of(const struct mgpu_node *node)
{
    return ((const struct mgpu_pointwise_attrs *)node->attrs)->expr;
}

static bool reads(const struct mgpu_expr *e, int input)
{
    for (int k = 0; k < e->count; k++)
        if (e->op[k].code == MGPU_X_INPUT && e->op[k].integer == input)
            return true;
    return false;
}

/* Whether `width` neighbours of the output lie side by side in the input, or are one element. */
static bool fits(const struct mgpu_node *node, int input, int width)
{
    struct mgpu_view v = mgpu_view_broadcast(node->input[input], node->output[0]);
    int last = v.rank - 1;
    return last < 0 || (v.dims[last] % width == 0 && v.strides[last] <= 1);
}

static bool one_element(const struct mgpu_view *v)
{
    return v->rank == 0 || v->strides[v->rank - 1] == 0;
}

/* How many neighbours a thread computes. */
static int width_of(const struct mgpu_node *node)
{
    const struct mgpu_expr *e = expr_of(node);
    int widest = (int)mgpu_dtype_size(node->output[0]->type), width = 16;
    for (int i = 0; i < node->inputs; i++) {
        struct mgpu_view v = mgpu_view_broadcast(node->input[i], node->output[0]);
        int size = (int)mgpu_dtype_size(node->input[i]->type);
        if (reads(e, i) && !one_element(&v) && size > widest)
            widest = size;
    }
    width /= widest;
    while (mgpu_value_count(node->output[0]) % width)
        width /= 2;
    for (int i = 0; i < node->inputs; i++)
        while (reads(e, i) && !fits(node, i, width))
            width /= 2;
    return width;
}

/* a0, a1 ...: what the thread reads, a vector or one element; input[i] is how it is used. */
static void write_loads(struct mgpu_writer *w, int width, char input[][40])
{
    for (int i = 0; i < w->node->inputs; i++) {
        struct mgpu_view v = mgpu_view_broadcast(w->node->input[i], w->node->output[0]);
        enum mgpu_dtype type = w->node->input[i]->type;
        const char *name = mgpu_dtype_name(type);
        bool vector = width > 1 && !one_element(&v);
        if (!reads(expr_of(w->node), i))
            continue;
        if (vector)
            mgpu_write(w, "    const vec_%s_%d a%d = VECTOR_AT(const vec_%s_%d, x%d + ", name,
                       width, i, name, width, i);
        else
            mgpu_write(w, "    const %s a%d = LOAD_%s(x%d, ", mgpu_compute_type(type), i, name, i);
        mgpu_write_offset(w, &v, "i");
        mgpu_write(w, ");\n");
        if (vector)
            snprintf(input[i], sizeof input[i], "LOAD_%s(a%d.v, k)", name, i);
        else
            snprintf(input[i], sizeof input[i], "a%d", i);
    }
}

static void emit(struct mgpu_writer *w)
{
    char text[MGPU_MAX_INPUTS][40];
    const char *input[MGPU_MAX_INPUTS], *type = mgpu_dtype_name(w->node->output[0]->type);
    int64_t count = mgpu_value_count(w->node->output[0]);
    int width = width_of(w->node);
    for (int i = 0; i < MGPU_MAX_INPUTS; i++)
        input[i] = text[i];
    mgpu_write_kernel_wide(w, count, width);
    write_loads(w, width, text);
    if (width > 1)
        mgpu_write(w, "    vec_%s_%d r;\n    UNROLL\n    for (int k = 0; k < %d; k++) {\n", type,
                   width, width);
    else
        mgpu_write(w, "    {\n");
    int result = mgpu_write_expr(w, expr_of(w->node), input);
    if (width > 1)
        mgpu_write(
            w, "        STORE_%s(r.v, k, v%d);\n    }\n    VECTOR_AT(vec_%s_%d, y0 + i) = r;\n}\n",
            type, result, type, width);
    else
        mgpu_write(w, "        STORE_%s(y0, i, v%d);\n    }\n}\n", type, result);
}

const struct mgpu_emitter mgpu_emit_pointwise[] = {
    {"pointwise", NULL, emit},
    {NULL, NULL, NULL},
};
