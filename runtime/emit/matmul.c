/* matmul in tiles through shared memory: for what cuBLASLt does not take, and to stand in for it.
 */
#include "runtime/ops/matmul.h"
#include "runtime/emit/tiles.h"

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

/* The element of an input, whose matrix begins at first_INPUT. */
static void say_element(char text[160], const struct mgpu_writer *w, int input, int64_t stride,
                        int64_t k_stride)
{
    snprintf(text, 160, "LOAD_%s(x%d, first_%d + %s * %lldLL + k * %lldLL)",
             mgpu_dtype_name(w->node->input[input]->type), input, input, input ? "j" : "i",
             (long long)stride, (long long)k_stride);
}

/* Stores `sum`, element `at` of y, with what stands behind the product. */
static void write_result(struct mgpu_writer *w, const struct product *p)
{
    const struct mgpu_node *node = w->node;
    const struct mgpu_matmul_attrs *attrs = node->attrs;
    bool gelu = node->op == &mgpu_op_matmul_gelu, slope = node->op == &mgpu_op_matmul_gelu_grad;
    const char *suffix = mgpu_math_suffix(node->output[0]->type),
               *type = mgpu_dtype_name(node->output[0]->type);
    mgpu_write(w, "                const %s v = sum", p->real);
    if (node->inputs > 2 && !slope)
        mgpu_write(w, " + LOAD_%s(x2, j)", mgpu_dtype_name(node->input[2]->type));
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
    char a[160], b[160];
    say_element(a, w, 0, p.a_row, p.a_k);
    say_element(b, w, 1, p.b_column, p.b_k);
    struct mgpu_tiles t = {.m = p.m,
                           .n = p.n,
                           .k = p.k,
                           .batch = p.batch,
                           .real = p.real,
                           .a = a,
                           .b = b,
                           .a_along_k = p.a_k == 1,
                           .b_along_k = p.b_k == 1};
    mgpu_write_tiles_begin(w, &t);
    mgpu_write(w, "    const i64 first_0 = ");
    mgpu_write_offset(w, &p.a, "batch");
    mgpu_write(w, ", first_1 = ");
    mgpu_write_offset(w, &p.b, "batch");
    mgpu_write(w, ";\n");
    mgpu_write_tiles_sum(w, &t);
    mgpu_write(w, "                const i64 at = (batch * %lldLL + i) * %lld + j;\n",
               (long long)p.m, (long long)p.n);
    write_result(w, &p);
    mgpu_write_tiles_end(w);
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
