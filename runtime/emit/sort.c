/* Order along an axis: cumulative sums by a thread for each line; topk by a thread for each
 * element, which counts those that come before it. */
#include "runtime/ops/sort.h"
#include "runtime/emit/writer.h"

static int64_t inner_of(const struct mgpu_value *x, int64_t axis)
{
    int64_t inner = 1;
    for (int k = (int)axis + 1; k < x->rank; k++)
        inner *= x->dims[k].value;
    return inner;
}

static void emit_cumsum(struct mgpu_writer *w)
{
    const struct mgpu_cumsum_attrs *a = w->node->attrs;
    const struct mgpu_value *x = w->node->input[0];
    const char *type = mgpu_dtype_name(x->type);
    long long size = x->dims[a->axis].value, inner = inner_of(x, a->axis);
    mgpu_write_kernel_each(w, mgpu_value_count(x) / size);
    mgpu_write(w, "    const i64 base = (i64)(i / %lld) * %lld + i %% %lld;\n    %s sum = 0;\n",
               inner, size * inner, inner,
               mgpu_is_float(x->type) ? mgpu_compute_type(x->type) : "u64");
    mgpu_write(w, "    for (i64 k = 0; k < %lld; k++) {\n        const i64 at = base + ", size);
    if (a->reverse)
        mgpu_write(w, "(%lld - k) * %lld;\n", size - 1, inner);
    else
        mgpu_write(w, "k * %lld;\n", inner);
    mgpu_write(w, "        const %s v = LOAD_%s(x0, at);\n", mgpu_compute_type(x->type), type);
    mgpu_write(w,
               a->exclusive ? "        STORE_%s(y0, at, sum);\n        sum += v;\n    }\n}\n"
                            : "        sum += v;\n        STORE_%s(y0, at, sum);\n    }\n}\n",
               type);
}

/* "b comes before a" of two elements that are not NaN. */
static const char *order_of(const struct mgpu_value *x, bool smallest)
{
    if (x->type == MGPU_UINT64)
        return smallest ? "(u64)b < (u64)a" : "(u64)b > (u64)a";
    return smallest ? "b < a" : "b > a";
}

static void emit_topk(struct mgpu_writer *w)
{
    const struct mgpu_topk_attrs *a = w->node->attrs;
    const struct mgpu_value *x = w->node->input[0];
    const char *type = mgpu_dtype_name(x->type), *real = mgpu_compute_type(x->type);
    long long size = x->dims[a->axis].value, inner = inner_of(x, a->axis);
    mgpu_write_kernel_each(w, mgpu_value_count(x));
    mgpu_write(w, "    const i64 outer = i / %lld, own = i / %lld %% %lld, in = i %% %lld;\n",
               size * inner, inner, size, inner);
    mgpu_write(w, "    const %s a = LOAD_%s(x0, i);\n    i64 rank = 0;\n", real, type);
    mgpu_write(
        w,
        "    for (i64 k = 0; k < %lld; k++) {\n        const %s b = LOAD_%s(x0, (outer * %lld + "
        "k) * %lld + in);\n",
        size, real, type, size, inner);
    mgpu_write(
        w,
        "        const int same = a == b || (a != a && b != b);\n        rank += same ? k < own "
        ": a != a ? %d : b != b ? %d : %s;\n    }\n",
        a->smallest, !a->smallest, order_of(x, a->smallest));
    mgpu_write(
        w,
        "    if (rank >= %lld)\n        return;\n    const i64 to = (outer * %lld + rank) * %lld "
        "+ in;\n",
        (long long)a->k, (long long)a->k, inner);
    if (w->node->output[0])
        mgpu_write(w, "    y0[to] = x0[i];\n");
    if (w->node->output[1])
        mgpu_write(w, "    y1[to] = own;\n");
    mgpu_write(w, "}\n");
}

const struct mgpu_emitter mgpu_emit_sort[] = {
    {"cumsum", NULL, emit_cumsum},
    {"topk", NULL, emit_topk},
    {NULL, NULL, NULL},
};
