/* det and cofactor: elimination in double, in a matrix of the workspace for each thread. */
#include "runtime/ops/det.h"
#include "runtime/emit/writer.h"

static int64_t size_of(const struct mgpu_writer *w)
{
    const struct mgpu_value *x = w->node->input[0];
    return x->dims[x->rank - 1].value;
}

/* `det` of the rows of m, `size` of them, which is used up: those with the largest pivot first. */
static void write_eliminate(struct mgpu_writer *w, int64_t size)
{
    long long n = size;
    mgpu_write(w, "    double det = 1;\n    for (int k = 0; k < %lld && det != 0; k++) {\n", n);
    mgpu_write(w, "        int best = k;\n        for (int r = k + 1; r < %lld; r++)\n", n);
    mgpu_write(w, "            if (fabs(m[r * %lld + k]) > fabs(m[best * %lld + k]))\n", n, n);
    mgpu_write(w, "                best = r;\n        for (int c = k; c < %lld; c++) {\n", n);
    mgpu_write(w, "            const double kept = m[k * %lld + c];\n", n);
    mgpu_write(w, "            m[k * %lld + c] = m[best * %lld + c];\n", n, n);
    mgpu_write(w, "            m[best * %lld + c] = kept;\n        }\n", n);
    mgpu_write(w, "        det *= best == k ? m[k * %lld + k] : -m[k * %lld + k];\n", n, n);
    mgpu_write(w, "        for (int r = k + 1; r < %lld && det != 0; r++) {\n", n);
    mgpu_write(w, "            const double f = m[r * %lld + k] / m[k * %lld + k];\n", n, n);
    mgpu_write(w, "            for (int c = k; c < %lld; c++)\n", n);
    mgpu_write(w, "                m[r * %lld + c] -= f * m[k * %lld + c];\n        }\n    }\n", n,
               n);
}

/* A thread for each of `count`, with its matrix `m` of `size` rows. */
static void open_threads(struct mgpu_writer *w, int64_t count, int64_t size)
{
    w->result->workspace = (count * size * size + 1) * (int64_t)sizeof(double);
    mgpu_write_kernel_each(w, count);
    mgpu_write(w, "    double *m = (double *)work + (i64)i * %lld;\n", (long long)(size * size));
}

static void emit(struct mgpu_writer *w)
{
    const struct mgpu_value *y = w->node->output[0];
    int64_t n = size_of(w);
    open_threads(w, mgpu_value_count(y), n);
    mgpu_write(w, "    for (int k = 0; k < %lld; k++)\n", (long long)(n * n));
    mgpu_write(w, "        m[k] = LOAD_%s(x0, (i64)i * %lld + k);\n", mgpu_dtype_name(y->type),
               (long long)(n * n));
    write_eliminate(w, n);
    mgpu_write(w, "    STORE_%s(y0, i, det);\n}\n", mgpu_dtype_name(y->type));
}

/* A thread for each row of a matrix, one minor after the other. */
static void emit_cofactor(struct mgpu_writer *w)
{
    const struct mgpu_value *y = w->node->output[0];
    const char *type = mgpu_dtype_name(y->type);
    int64_t n = size_of(w);
    open_threads(w, mgpu_value_count(y) / n, n - 1);
    mgpu_write(w, "    const int row = i %% %lld;\n", (long long)n);
    mgpu_write(w, "    for (int column = 0; column < %lld; column++) {\n", (long long)n);
    mgpu_write(w, "    for (int r = 0; r < %lld; r++)\n", (long long)n - 1);
    mgpu_write(w, "        for (int c = 0; c < %lld; c++)\n", (long long)n - 1);
    mgpu_write(w, "            m[r * %lld + c] = LOAD_%s(x0, ", (long long)n - 1, type);
    mgpu_write(w, "((i64)(i / %lld) * %lld + r + (r >= row)) * %lld + c + (c >= column));\n",
               (long long)n, (long long)n, (long long)n);
    write_eliminate(w, n - 1);
    mgpu_write(w, "    STORE_%s(y0, (i64)i * %lld + column, (row + column) %% 2 ? -det : det);\n",
               type, (long long)n);
    mgpu_write(w, "    }\n}\n");
}

const struct mgpu_emitter mgpu_emit_det[] = {
    {"det", NULL, emit},
    {"cofactor", NULL, emit_cofactor},
    {NULL, NULL, NULL},
};
