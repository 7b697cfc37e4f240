/* Writing kernels: what the families of this folder share. */
#ifndef MGPU_EMIT_WRITER_H
#define MGPU_EMIT_WRITER_H

#include "runtime/emit/emit.h"
#include "runtime/ops/expr.h"

#include <stdio.h>

struct mgpu_writer {
    FILE *out;
    const struct mgpu_node *node;
    const char *name;
    struct mgpu_emitted *result;
    bool stops; /* as mgpu_emit says */
};

/* The kernels of an operator. */
struct mgpu_emitter {
    const char *op;
    bool (*accepts)(const struct mgpu_node *node); /* NULL: any */
    void (*emit)(struct mgpu_writer *w);
};

extern const struct mgpu_emitter mgpu_emit_pointwise[];
extern const struct mgpu_emitter mgpu_emit_reduce[];
extern const struct mgpu_emitter mgpu_emit_softmax[];
extern const struct mgpu_emitter mgpu_emit_loss[];
extern const struct mgpu_emitter mgpu_emit_normalize[];
extern const struct mgpu_emitter mgpu_emit_movement[];
extern const struct mgpu_emitter mgpu_emit_random[];
extern const struct mgpu_emitter mgpu_emit_update[];
extern const struct mgpu_emitter mgpu_emit_indexed[];
extern const struct mgpu_emitter mgpu_emit_matmul[];
extern const struct mgpu_emitter mgpu_emit_sort[];
extern const struct mgpu_emitter mgpu_emit_resize[];
extern const struct mgpu_emitter mgpu_emit_det[];
extern const struct mgpu_emitter mgpu_emit_grid[];
extern const struct mgpu_emitter mgpu_emit_attention[];
extern const struct mgpu_emitter mgpu_emit_rnn[];
extern const struct mgpu_emitter mgpu_emit_rnn_grad[];

/* These know images that lie channels-last; the others get plain nodes. */
extern const struct mgpu_emitter mgpu_emit_pool[];
extern const struct mgpu_emitter mgpu_emit_batch_norm[];
extern const struct mgpu_emitter mgpu_emit_conv[];

void mgpu_write(struct mgpu_writer *w, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Opens the next kernel: "KERNEL(NAME_k)(const float *x0, ..., float *y0, void *work)\n{\n". The
 * workspace must be known. Close it with mgpu_write(w, "}\n"). */
void mgpu_write_kernel(struct mgpu_writer *w, int64_t blocks, int threads, bool together);

/* Opens a kernel of one thread for each of `count` places, with its number in `i`; threads without
 * a place leave. */
void mgpu_write_kernel_each(struct mgpu_writer *w, int64_t count);

/* The same with a thread for `width` neighbours, which divides `count`: `i` is the first of them.
 */
void mgpu_write_kernel_wide(struct mgpu_writer *w, int64_t count, int width);

/* The type of places below `count`: "u32" or "i64". */
const char *mgpu_place_type(int64_t count);

/* In memory ("float16"), in computation ("float", "double", "i64"); the suffix of its math
 * functions: "f" or "". */
const char *mgpu_compute_type(enum mgpu_dtype type);
const char *mgpu_math_suffix(enum mgpu_dtype type);

/* Axes of a shape, and how far apart an operand's elements are along them. */
struct mgpu_view {
    int rank;
    int64_t dims[MGPU_MAX_RANK], strides[MGPU_MAX_RANK];
    int64_t base;
};

/* Adds an innermost axis, merged with the one before where that makes no difference. */
void mgpu_view_add(struct mgpu_view *v, int64_t size, int64_t stride);

/* `input` seen in the shape of `output`, by numpy's rules. */
struct mgpu_view mgpu_view_broadcast(const struct mgpu_value *input,
                                     const struct mgpu_value *output);

/* The offset of the element at place `place` (an expression) of the view. */
void mgpu_write_offset(struct mgpu_writer *w, const struct mgpu_view *v, const char *place);

/* Statements that compute an expression: values v0, v1 ... where input i is the text input[i].
 * Returns the number of the result. */
int mgpu_write_expr(struct mgpu_writer *w, const struct mgpu_expr *e, const char *const *input);

/* A number as text of a type of computation, exact: "0.5f". */
void mgpu_write_number(struct mgpu_writer *w, enum mgpu_dtype type, double value);

#endif
