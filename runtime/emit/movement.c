/* What moves elements and does not look at them: each output element reads its place of the input.
 */
#include "runtime/ops/movement.h"
#include "runtime/emit/writer.h"
#include "runtime/ops/accumulate.h"

#include <stdlib.h>

static const char *type_of(const struct mgpu_value *v)
{
    return mgpu_dtype_name(v->type);
}

/* Strides of row-major elements. */
static void strides_of(const struct mgpu_value *v, int64_t strides[MGPU_MAX_RANK])
{
    int64_t stride = 1;
    for (int k = v->rank - 1; k >= 0; k--) {
        strides[k] = stride;
        stride *= v->dims[k].value;
    }
}

/* ---- Views: transpose, expand, slice ----------------------------------------------------------
 */

/* Elements of up to 16 bytes that lie side by side on both sides. */
static int width_of(const struct mgpu_value *y, const struct mgpu_view *v)
{
    int last = v->rank - 1, width = 16 / (int)mgpu_dtype_size(y->type);
    if (last < 0 || v->strides[last] != 1)
        return 1;
    while (v->dims[last] % width || v->base % width)
        width /= 2;
    for (int k = 0; k < last; k++)
        while (v->strides[k] % width)
            width /= 2;
    return width;
}

static void write_copy(struct mgpu_writer *w, const struct mgpu_view *v)
{
    const struct mgpu_value *y = w->node->output[0];
    int width = width_of(y, v);
    const char *type = type_of(y);
    mgpu_write_kernel_wide(w, mgpu_value_count(y), width);
    if (width > 1)
        mgpu_write(w, "    VECTOR_AT(vec_%s_%d, y0 + i) = VECTOR_AT(const vec_%s_%d, x0 + ", type,
                   width, type, width);
    else
        mgpu_write(w, "    y0[i] = *(x0 + ");
    mgpu_write_offset(w, v, "i");
    mgpu_write(w, ");\n}\n");
}

enum { TILE = 32, TILE_ROWS = 8 };

/* A plane of axis `near` (contiguous in the input) and the last axis (contiguous in the output),
 * tile by tile through shared memory; the other axes one place a block. */
static void write_tiles(struct mgpu_writer *w, const struct mgpu_view *v, int near)
{
    struct mgpu_view from = {.base = v->base}, to = {0};
    int last = v->rank - 1;
    int64_t stride = 1, strides[MGPU_MAX_RANK], rest = 1;
    int64_t rows = (v->dims[near] + TILE - 1) / TILE, columns = (v->dims[last] + TILE - 1) / TILE;
    for (int k = last; k >= 0; stride *= v->dims[k--])
        strides[k] = stride;
    for (int k = 0; k < last; k++)
        if (k != near) {
            mgpu_view_add(&from, v->dims[k], v->strides[k]);
            mgpu_view_add(&to, v->dims[k], strides[k]);
            rest *= v->dims[k];
        }
    mgpu_write_kernel(w, rows * columns * rest, TILE * TILE_ROWS, true);
    mgpu_write(w, "    __shared__ m_%s tile[%d][%d];\n", type_of(w->node->output[0]), TILE,
               TILE + 1);
    mgpu_write(w, "    const u32 x = threadIdx.x %% %d, y = threadIdx.x / %d;\n", TILE, TILE);
    mgpu_write(w,
               "    const i64 column = blockIdx.x %% %lld * %d, row = blockIdx.x / %lld %% %lld * "
               "%d, rest = blockIdx.x / %lld;\n    const i64 from = ",
               (long long)columns, TILE, (long long)columns, (long long)rows, TILE,
               (long long)(columns * rows));
    mgpu_write_offset(w, &from, "rest");
    mgpu_write(w, ", to = ");
    mgpu_write_offset(w, &to, "rest");
    mgpu_write(
        w,
        ";\n    for (int k = 0; k < %d; k += %d)\n        if (row + x < %lld && column + y + "
        "k < %lld)\n            tile[y + k][x] = x0[from + row + x + (column + y + k) * "
        "%lld];\n    __syncthreads();\n",
        TILE, TILE_ROWS, (long long)v->dims[near], (long long)v->dims[last],
        (long long)v->strides[last]);
    mgpu_write(
        w,
        "    for (int k = 0; k < %d; k += %d)\n        if (row + y + k < %lld && column + x < "
        "%lld)\n            y0[to + (row + y + k) * %lld + column + x] = tile[x][y + "
        "k];\n}\n",
        TILE, TILE_ROWS, (long long)v->dims[near], (long long)v->dims[last],
        (long long)strides[near]);
}

static void write_view(struct mgpu_writer *w, const struct mgpu_view *v)
{
    enum { WORTH = 8 }; /* axes shorter than this do not fill tiles */
    int last = v->rank - 1;
    for (int k = 0; k < last && v->strides[last] > 1; k++)
        if (v->strides[k] == 1 && v->dims[k] >= WORTH && v->dims[last] >= WORTH) {
            write_tiles(w, v, k);
            return;
        }
    write_copy(w, v);
}

static void emit_reshape(struct mgpu_writer *w)
{
    struct mgpu_view v = {0};
    mgpu_view_add(&v, mgpu_value_count(w->node->output[0]), 1);
    write_view(w, &v);
}

/* Elements of one size and another type. */
static void emit_bit_cast(struct mgpu_writer *w)
{
    const struct mgpu_value *y = w->node->output[0];
    mgpu_write_kernel_each(w, mgpu_value_count(y));
    mgpu_write(w, "    y0[i] = *(const m_%s *)(x0 + i);\n}\n", type_of(y));
}

static void emit_transpose(struct mgpu_writer *w)
{
    const struct mgpu_transpose_attrs *a = w->node->attrs;
    struct mgpu_view v = {0};
    int64_t strides[MGPU_MAX_RANK];
    strides_of(w->node->input[0], strides);
    for (int k = 0; k < w->node->output[0]->rank; k++)
        mgpu_view_add(&v, w->node->output[0]->dims[k].value, strides[a->perm[k]]);
    write_view(w, &v);
}

static void emit_expand(struct mgpu_writer *w)
{
    struct mgpu_view v = mgpu_view_broadcast(w->node->input[0], w->node->output[0]);
    write_view(w, &v);
}

static void emit_slice(struct mgpu_writer *w)
{
    const struct mgpu_slice_attrs *a = w->node->attrs;
    struct mgpu_view v = {0};
    int64_t strides[MGPU_MAX_RANK];
    strides_of(w->node->input[0], strides);
    for (int k = 0; k < w->node->output[0]->rank; k++) {
        v.base += a->start[k] * strides[k];
        mgpu_view_add(&v, w->node->output[0]->dims[k].value, strides[k] * a->step[k]);
    }
    write_view(w, &v);
}

/* ---- Axis by axis: slice_grad, pad ------------------------------------------------------------
 */

/* `at` = the place of element i along axis k. */
static void write_axis(struct mgpu_writer *w, const struct mgpu_value *y, int k)
{
    int64_t inside = 1;
    for (int j = k + 1; j < y->rank; j++)
        inside *= y->dims[j].value;
    mgpu_write(w, "        const i64 at = i / %lld %% %lld;\n", (long long)inside,
               (long long)y->dims[k].value);
}

static void emit_slice_grad(struct mgpu_writer *w)
{
    const struct mgpu_slice_grad_attrs *a = w->node->attrs;
    const struct mgpu_value *dy = w->node->input[0], *dx = w->node->output[0];
    int64_t strides[MGPU_MAX_RANK];
    strides_of(dy, strides);
    mgpu_write_kernel_each(w, mgpu_value_count(dx));
    mgpu_write(w, "    i64 from = 0;\n    int there = 1;\n");
    for (int k = 0; k < dx->rank; k++) {
        long long step = llabs(a->step[k]);
        mgpu_write(w, "    {\n");
        write_axis(w, dx, k);
        mgpu_write(w, "        const i64 d = (at - %lld) * %d;\n", (long long)a->start[k],
                   a->step[k] < 0 ? -1 : 1);
        mgpu_write(w, "        there = there && d >= 0 && d %% %lld == 0 && d / %lld < %lld;\n",
                   step, step, (long long)dy->dims[k].value);
        mgpu_write(w, "        from += d / %lld * %lld;\n    }\n", step, (long long)strides[k]);
    }
    mgpu_write(w, "    y0[i] = there ? x0[from] : 0;\n}\n");
}

/* What pads count from: negative ones cut elements off before the rest is padded. */
static void kept_range(int64_t before, int64_t after, int64_t size, int64_t *low, int64_t *high)
{
    *low = before < 0 ? -before : 0;
    *high = size + (after < 0 ? after : 0);
}

static const char *source_of(int mode)
{
    return mode == MGPU_PAD_EDGE      ? "source_edge"
           : mode == MGPU_PAD_WRAP    ? "source_wrap"
           : mode == MGPU_PAD_REFLECT ? "source_reflect"
                                      : "source_none";
}

static void emit_pad(struct mgpu_writer *w)
{
    const struct mgpu_pad_attrs *a = w->node->attrs;
    const struct mgpu_value *x = w->node->input[0], *y = w->node->output[0];
    int64_t strides[MGPU_MAX_RANK], low, high;
    strides_of(x, strides);
    mgpu_write_kernel_each(w, mgpu_value_count(y));
    mgpu_write(w, "    i64 from = 0;\n    int there = 1;\n");
    for (int k = 0; k < y->rank; k++) {
        kept_range(a->before[k], a->after[k], x->dims[k].value, &low, &high);
        mgpu_write(w, "    {\n");
        write_axis(w, y, k);
        mgpu_write(w, "        const i64 s = %s(at - %lld, %lld, %lld);\n", source_of(a->mode),
                   (long long)a->before[k], (long long)low, (long long)high);
        mgpu_write(w, "        there = there && s >= 0;\n        from += s * %lld;\n    }\n",
                   (long long)strides[k]);
    }
    bool given = w->node->inputs > 1 && w->node->input[1];
    mgpu_write(w, "    y0[i] = there ? x0[from] : %s;\n}\n", given ? "x1[0]" : "0");
}

/* An element sums over the padded places that show it: along each axis its own and those of the
 * padding, which is number 1, 2 ... of the loop. */
static void emit_pad_grad(struct mgpu_writer *w)
{
    const struct mgpu_pad_grad_attrs *a = w->node->attrs;
    const struct mgpu_value *dy = w->node->input[0], *dx = w->node->output[0];
    int64_t strides[MGPU_MAX_RANK], low, high;
    strides_of(dy, strides);
    mgpu_write_kernel_each(w, mgpu_value_count(dx));
    mgpu_write(w, "    %s sum = 0;\n    const i64 from_0 = 0;\n", mgpu_compute_type(dx->type));
    for (int k = 0; k < dx->rank; k++) {
        int64_t before = a->before[k] > 0 ? a->before[k] : 0,
                after = a->after[k] > 0 ? a->after[k] : 0;
        bool none = a->mode == MGPU_PAD_CONSTANT;
        kept_range(a->before[k], a->after[k], dx->dims[k].value, &low, &high);
        mgpu_write(w, "    for (i64 p%d = 0; p%d <= %lld; p%d++) {\n", k, k,
                   none ? 0LL : (long long)(before + after), k);
        write_axis(w, dx, k);
        mgpu_write(
            w,
            "        const i64 padded = p%d == 0 ? at + %lld : p%d <= %lld ? p%d - 1 : %lld + "
            "p%d;\n",
            k, (long long)a->before[k], k, (long long)before, k,
            (long long)(dy->dims[k].value - before - after - 1), k);
        mgpu_write(
            w,
            "        if (p%d == 0 ? at < %lld || at >= %lld : %s(padded - %lld, %lld, %lld) != "
            "at)\n            continue;\n",
            k, (long long)low, (long long)high, source_of(a->mode), (long long)a->before[k],
            (long long)low, (long long)high);
        mgpu_write(w, "        const i64 from_%d = from_%d + padded * %lld;\n", k + 1, k,
                   (long long)strides[k]);
    }
    mgpu_write(w, "    sum += LOAD_%s(x0, from_%d);\n", type_of(dy), dx->rank);
    for (int k = 0; k < dx->rank; k++)
        mgpu_write(w, "    }\n");
    mgpu_write(w, "    STORE_%s(y0, i, sum);\n}\n", type_of(dx));
}

/* ---- concat ---------------------------------------------------------------------------------- */

static void emit_concat(struct mgpu_writer *w)
{
    const struct mgpu_node *node = w->node;
    int axis = (int)((const struct mgpu_concat_attrs *)node->attrs)->axis;
    const struct mgpu_value *y = node->output[0];
    int64_t inner = 1, at = 0, all = y->dims[axis].value;
    for (int k = axis + 1; k < y->rank; k++)
        inner *= y->dims[k].value;
    mgpu_write_kernel_each(w, mgpu_value_count(y));
    mgpu_write(w, "    const i64 outer = i / %lld, c = i / %lld %% %lld, in = i %% %lld;\n",
               (long long)(all * inner), (long long)inner, (long long)all, (long long)inner);
    for (int k = 0; k < node->inputs; k++) {
        int64_t size = node->input[k]->dims[axis].value;
        if (size == 0)
            continue;
        mgpu_write(
            w,
            "    if (c >= %lld && c < %lld)\n        y0[i] = x%d[(outer * %lld + c - %lld) * "
            "%lld + in];\n",
            (long long)at, (long long)(at + size), k, (long long)size, (long long)at,
            (long long)inner);
        at += size;
    }
    mgpu_write(w, "}\n");
}

/* ---- accumulate: y holds something already ----------------------------------------------------
 */

static void emit_accumulate(struct mgpu_writer *w)
{
    const struct mgpu_value *x = w->node->input[0];
    mgpu_write_kernel_each(w, mgpu_value_count(x));
    mgpu_write(w, "    STORE_%s(y0, i, LOAD_%s(y0, i) + LOAD_%s(x0, i));\n}\n", type_of(x),
               type_of(x), type_of(x));
}

const struct mgpu_emitter mgpu_emit_movement[] = {
    {"reshape", NULL, emit_reshape},
    {"bit_cast", NULL, emit_bit_cast},
    {"transpose", NULL, emit_transpose},
    {"expand", NULL, emit_expand},
    {"slice", NULL, emit_slice},
    {"slice_grad", NULL, emit_slice_grad},
    {"pad", NULL, emit_pad},
    {"pad_grad", NULL, emit_pad_grad},
    {"concat", NULL, emit_concat},
    {"accumulate", NULL, emit_accumulate},
    {NULL, NULL, NULL},
};
