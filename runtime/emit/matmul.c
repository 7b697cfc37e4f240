/* matmul in tiles through shared memory: for what cuBLASLt does not take, and to stand in for it.
 */
#include "runtime/ops/matmul.h"
#include "runtime/emit/writer.h"

enum { TILE = 64, DEPTH = 16, THREADS = 256, EACH = 4 }; /* EACH * EACH results of a thread */

struct product {
    int64_t m, n, k, batch;
    struct mgpu_view a, b;             /* where a product's matrices begin, by batch */
    int64_t a_row, a_k, b_k, b_column; /* strides */
    const char *real;
};

/* Axes of y before the last two, as `v` sees them. */
static struct mgpu_view batch_view(const struct mgpu_value *v, const struct mgpu_value *y)
{
    struct mgpu_view out = {0};
    int shift = y->rank - v->rank;
    int64_t stride = mgpu_value_count(v);
    for (int k = 0; k < y->rank - 2; k++) {
        int64_t own = k < shift ? 1 : v->dims[k - shift].value;
        stride /= own;
        mgpu_view_add(&out, y->dims[k].value, own == 1 ? 0 : stride);
    }
    return out;
}

static struct product product_of(const struct mgpu_node *node)
{
    const struct mgpu_matmul_attrs *attrs = node->attrs;
    const struct mgpu_value *a = node->input[0], *b = node->input[1], *y = node->output[0];
    int64_t a_last = a->dims[a->rank - 1].value, b_last = b->dims[b->rank - 1].value;
    struct product p = {.m = y->dims[y->rank - 2].value,
                        .n = y->dims[y->rank - 1].value,
                        .k = a->dims[a->rank - (attrs->transpose_a ? 2 : 1)].value,
                        .a_row = attrs->transpose_a ? 1 : a_last,
                        .a_k = attrs->transpose_a ? a_last : 1,
                        .b_k = attrs->transpose_b ? 1 : b_last,
                        .b_column = attrs->transpose_b ? b_last : 1};
    p.batch = mgpu_value_count(y) / (p.m * p.n);
    p.real = mgpu_is_float(y->type) ? mgpu_compute_type(y->type) : "u64";
    if (p.k > 0) {
        p.a = batch_view(a, y);
        p.b = batch_view(b, y);
    }
    return p;
}

/* Fills a tile [DEPTH][TILE]; neighbouring threads read what lies side by side. */
static void write_load(struct mgpu_writer *w, int input, const char *tile, const char *origin,
                       int64_t size, const struct product *p, int64_t stride, int64_t k_stride)
{
    bool along_k = k_stride == 1;
    mgpu_write(
        w,
        "        for (u32 t = threadIdx.x; t < %d; t += %d) {\n            const u32 k = t %s "
        "%d, r = t %s %d;\n",
        TILE * DEPTH, THREADS, along_k ? "%" : "/", along_k ? DEPTH : TILE, along_k ? "/" : "%",
        along_k ? DEPTH : TILE);
    mgpu_write(
        w,
        "            %s[k][r] = %s + r < %lld && from + k < %lld ? (%s)LOAD_%s(x%d, first_%d + "
        "(%s + r) * %lld + (from + k) * %lld) : 0;\n        }\n",
        tile, origin, (long long)size, (long long)p->k, p->real,
        mgpu_dtype_name(w->node->input[input]->type), input, input, origin, (long long)stride,
        (long long)k_stride);
}

/* Stores sum[i][j], element `at` of y, with what stands behind the product. */
static void write_result(struct mgpu_writer *w, const struct product *p)
{
    const struct mgpu_node *node = w->node;
    const struct mgpu_matmul_attrs *attrs = node->attrs;
    bool gelu = node->op == &mgpu_op_matmul_gelu, slope = node->op == &mgpu_op_matmul_gelu_grad;
    const char *suffix = mgpu_math_suffix(node->output[0]->type),
               *type = mgpu_dtype_name(node->output[0]->type);
    mgpu_write(w, "                const %s v = sum[i][j]", p->real);
    if (node->inputs > 2 && !slope)
        mgpu_write(w, " + LOAD_%s(x2, column + x + %d * j)", mgpu_dtype_name(node->input[2]->type),
                   TILE / EACH);
    mgpu_write(w, ";\n");
    if (gelu && node->output[1])
        mgpu_write(w, "                STORE_%s(y1, at, v);\n", type);
    mgpu_write(w, "                STORE_%s(y0, at, ", type);
    if (slope)
        mgpu_write(w, "v * gelu_slope%s(LOAD_%s(x2, at))", suffix,
                   mgpu_dtype_name(node->input[2]->type));
    else
        mgpu_write(w, gelu ? "gelu%s(v)" : attrs->relu ? "larger%s(v, 0)" : "v", suffix);
    mgpu_write(w, ");\n");
}

/* A thread for each row of a, or column of b. */
static void write_sums(struct mgpu_writer *w, const struct product *p)
{
    const struct mgpu_matmul_attrs *attrs = w->node->attrs;
    bool a = attrs->sums == MGPU_SUMS_A;
    mgpu_write_kernel_each(w, a ? p->m : p->n);
    mgpu_write(w, "    %s sum = 0;\n    for (i64 k = 0; k < %lld; k++)\n", p->real,
               (long long)p->k);
    mgpu_write(w, "        sum += LOAD_%s(x%d, i * %lldLL + k * %lld);\n",
               mgpu_dtype_name(w->node->input[!a]->type), !a,
               (long long)(a ? p->a_row : p->b_column), (long long)(a ? p->a_k : p->b_k));
    mgpu_write(w, "    STORE_%s(y1, i, sum);\n}\n", mgpu_dtype_name(w->node->output[1]->type));
}

static void emit(struct mgpu_writer *w)
{
    struct product p = product_of(w->node);
    long long rows = (p.m + TILE - 1) / TILE, columns = (p.n + TILE - 1) / TILE;
    mgpu_write_kernel(w, rows * columns * p.batch, THREADS, true);
    mgpu_write(w, "    __shared__ %s tile_a[%d][%d], tile_b[%d][%d];\n", p.real, DEPTH, TILE + 1,
               DEPTH, TILE + 1);
    mgpu_write(w, "    const u32 x = threadIdx.x %% %d, y = threadIdx.x / %d;\n", TILE / EACH,
               TILE / EACH);
    mgpu_write(w,
               "    const i64 column = blockIdx.x %% %lld * %d, row = blockIdx.x / %lld %% %lld * "
               "%d;\n    const u32 batch = blockIdx.x / %lld;\n    const i64 first_0 = ",
               columns, TILE, columns, rows, TILE, rows * columns);
    mgpu_write_offset(w, &p.a, "batch");
    mgpu_write(w, ", first_1 = ");
    mgpu_write_offset(w, &p.b, "batch");
    mgpu_write(
        w, ";\n    %s sum[%d][%d] = {{0}};\n    for (i64 from = 0; from < %lld; from += %d) {\n",
        p.real, EACH, EACH, (long long)p.k, DEPTH);
    write_load(w, 0, "tile_a", "row", p.m, &p, p.a_row, p.a_k);
    write_load(w, 1, "tile_b", "column", p.n, &p, p.b_column, p.b_k);
    mgpu_write(
        w,
        "        __syncthreads();\n        UNROLL\n        for (int k = 0; k < %d; k++) {\n"
        "            UNROLL\n            for (int i = 0; i < %d; i++) {\n                UNROLL\n"
        "                for (int j = 0; j < %d; j++)\n                    sum[i][j] += "
        "tile_a[k][y + %d * i] * tile_b[k][x + %d * j];\n            }\n        }\n        "
        "__syncthreads();\n    }\n",
        DEPTH, EACH, EACH, TILE / EACH, TILE / EACH);
    mgpu_write(
        w,
        "    UNROLL\n    for (int i = 0; i < %d; i++) {\n        UNROLL\n        for (int j = 0; "
        "j < %d; j++)\n            if (row + y + %d * i < %lld && column + x + %d * j < %lld) {\n"
        "                const i64 at = (batch * %lldLL + row + y + %d * i) * %lld + column + x + "
        "%d * j;\n",
        EACH, EACH, TILE / EACH, (long long)p.m, TILE / EACH, (long long)p.n, (long long)p.m,
        TILE / EACH, (long long)p.n, TILE / EACH);
    write_result(w, &p);
    mgpu_write(w, "            }\n    }\n}\n");
}

static void emit_sums(struct mgpu_writer *w)
{
    struct product p = product_of(w->node);
    emit(w);
    if (w->node->output[1])
        write_sums(w, &p);
}

const struct mgpu_emitter mgpu_emit_matmul[] = {
    {"matmul", NULL, emit},      {"matmul_sums", NULL, emit_sums},
    {"matmul_gelu", NULL, emit}, {"matmul_gelu_grad", NULL, emit},
    {NULL, NULL, NULL},
};
