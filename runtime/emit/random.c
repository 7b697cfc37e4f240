/* random_mask and random_uniform: Philox4x32-10 by the rule in runtime/ops/random.h; one counter
 * gives four words. */
#include "runtime/ops/random.h"
#include "runtime/emit/writer.h"
#include "runtime/ops/dims.h"

#include <math.h>

/* y as [outer, samples, inner]: the elements of one sample are counted over outer and inner. */
struct mask {
    int64_t outer, samples, inner;
    bool batch;
};

static struct mask mask_of(const struct mgpu_node *node)
{
    const struct mgpu_random_attrs *a = node->attrs;
    const struct mgpu_value *y = node->output[0];
    int axis = mgpu_dims_batch_axis((int)a->rank, a->dims);
    struct mask m = {.outer = 1, .samples = 1, .inner = mgpu_value_count(y), .batch = axis >= 0};
    if (!m.batch)
        return m;
    m.samples = mgpu_dims_batch((int)a->rank, a->dims, 0, NULL);
    for (int k = 0; k < axis; k++)
        m.outer *= y->dims[k].value;
    m.inner = mgpu_value_count(y) / m.outer / m.samples;
    return m;
}

static void emit(struct mgpu_writer *w)
{
    const struct mgpu_random_attrs *a = w->node->attrs;
    struct mask m = mask_of(w->node);
    enum mgpu_dtype type = w->node->output[0]->type;
    int words = m.inner % 4 == 0 ? 4 : 1; /* of a thread: it never leaves a sample's run */
    mgpu_write_kernel_wide(w, mgpu_value_count(w->node->output[0]), words);
    const char *place = mgpu_place_type(mgpu_value_count(w->node->output[0]));
    mgpu_write(w, "    const %s at = i, sample = at / %lld %% %lld;\n", place, (long long)m.inner,
               (long long)m.samples);
    mgpu_write(w, "    const %s e = at / %lld * %lld + at %% %lld;\n", place,
               (long long)(m.inner * m.samples), (long long)m.inner, (long long)m.inner);
    mgpu_write(w,
               "    const u64 key = (u64)x0[0];\n    struct philox c = {{(u32)(e / 4), (u32)(%s + "
               "sample), (u32)(u64)x1[0], %uu}};\n    c = philox(c, (u32)key, (u32)(key >> 32));\n",
               m.batch ? "(u64)x2[0]" : "0", (unsigned)a->salt);
    if (words == 1)
        mgpu_write(
            w, "    c.word[0] = e %% 4 == 0 ? c.word[0] : e %% 4 == 1 ? c.word[1] : e %% 4 == 2 ? "
               "c.word[2] : c.word[3];\n");
    mgpu_write(w, "    UNROLL\n    for (int k = 0; k < %d; k++)\n        STORE_%s(y0, at + k, ",
               words, mgpu_dtype_name(type));
    if (w->node->op == &mgpu_op_random_uniform) {
        mgpu_write(w, "(c.word[k] >> 8) * 5.9604644775390625e-8f);\n}\n"); /* 2^-24: exact */
        return;
    }
    mgpu_write(w,
               "c.word[k] < %lluULL ? 0 : ", (unsigned long long)ceil(ldexp(a->probability, 32)));
    mgpu_write_number(w, type, 1 / (1 - a->probability));
    mgpu_write(w, ");\n}\n");
}

const struct mgpu_emitter mgpu_emit_random[] = {
    {"random_mask", NULL, emit},
    {"random_uniform", NULL, emit},
    {NULL, NULL, NULL},
};
