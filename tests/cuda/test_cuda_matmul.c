/* matmul's descriptors for cuBLASLt: a stand-in for cublasLtMatmul does what the real descriptors
 * say, on host memory, with matrices that lie by columns. */
#include "runtime/backend.h"
#include "runtime/cuda/library_private.h"
#include "runtime/ops/build.h"
#include "runtime/ops/matmul.h"
#include "tests/test.h"

#include <dlfcn.h>

enum { MOST = 4096 };

/* ---- The stand-in ---------------------------------------------------------------------------- */

static struct {
    __typeof__(&cublasLtMatmulDescGetAttribute) desc;
    __typeof__(&cublasLtMatrixLayoutGetAttribute) layout;
} get;

static int calls;

struct matrix {
    const double *data;
    uint64_t rows, cols;
    int64_t ld, step;
    int32_t batch;
};

static struct matrix matrix_of(cublasLtMatrixLayout_t layout, const void *data)
{
    struct matrix m = {.data = data};
    size_t written;
    uint32_t type = 0;
    get.layout(layout, CUBLASLT_MATRIX_LAYOUT_TYPE, &type, sizeof type, &written);
    get.layout(layout, CUBLASLT_MATRIX_LAYOUT_ROWS, &m.rows, sizeof m.rows, &written);
    get.layout(layout, CUBLASLT_MATRIX_LAYOUT_COLS, &m.cols, sizeof m.cols, &written);
    get.layout(layout, CUBLASLT_MATRIX_LAYOUT_LD, &m.ld, sizeof m.ld, &written);
    get.layout(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &m.batch, sizeof m.batch, &written);
    get.layout(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &m.step, sizeof m.step,
               &written);
    CHECK(type == CUDA_R_64F);
    return m;
}

static double element(const struct matrix *m, bool transpose, uint64_t row, uint64_t col)
{
    uint64_t r = transpose ? col : row, c = transpose ? row : col;
    CHECK(r < m->rows && c < m->cols);
    return m->data[r + c * (uint64_t)m->ld];
}

static bool transposed(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute)
{
    int32_t op = 0;
    size_t written;
    get.desc(desc, attribute, &op, sizeof op, &written);
    return op == CUBLAS_OP_T;
}

/* The epilogue on D, whose rows have a bias each. */
static void finish(cublasLtMatmulDesc_t desc, const struct matrix *A, bool ta,
                   const struct matrix *B, bool tb, const struct matrix *D)
{
    cublasLtEpilogue_t e = CUBLASLT_EPILOGUE_DEFAULT;
    double *vector = NULL, *d = (double *)D->data;
    size_t written;
    uint64_t k = ta ? A->rows : A->cols;
    get.desc(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &e, sizeof e, &written);
    get.desc(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector, sizeof vector, &written);
    bool bias = e == CUBLASLT_EPILOGUE_BIAS || e == CUBLASLT_EPILOGUE_RELU_BIAS;
    bool relu = e == CUBLASLT_EPILOGUE_RELU || e == CUBLASLT_EPILOGUE_RELU_BIAS;
    for (uint64_t i = 0; i < D->rows * D->cols; i++) {
        d[i] += bias ? vector[i % D->rows] : 0;
        d[i] = relu && d[i] < 0 ? 0 : d[i];
    }
    for (uint64_t m = 0; m < D->rows && e == CUBLASLT_EPILOGUE_BGRADA; m++)
        for (uint64_t i = 0; i < k; i++)
            vector[m] = element(A, ta, m, i) + (i ? vector[m] : 0);
    for (uint64_t n = 0; n < D->cols && e == CUBLASLT_EPILOGUE_BGRADB; n++)
        for (uint64_t i = 0; i < k; i++)
            vector[n] = element(B, tb, i, n) + (i ? vector[n] : 0);
}

static cublasStatus_t multiply(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                               const void *alpha, const void *a, cublasLtMatrixLayout_t la,
                               const void *b, cublasLtMatrixLayout_t lb, const void *beta,
                               const void *c, cublasLtMatrixLayout_t lc, void *d,
                               cublasLtMatrixLayout_t ld, const cublasLtMatmulAlgo_t *algo,
                               void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    struct matrix A = matrix_of(la, a), B = matrix_of(lb, b), D = matrix_of(ld, d);
    bool ta = transposed(desc, CUBLASLT_MATMUL_DESC_TRANSA),
         tb = transposed(desc, CUBLASLT_MATMUL_DESC_TRANSB);
    (void)handle, (void)c, (void)lc, (void)algo, (void)workspace, (void)workspace_bytes,
        (void)stream;
    CHECK(*(const double *)alpha == 1 && *(const double *)beta == 0);
    CHECK(A.batch == D.batch && B.batch == D.batch);
    calls++;
    for (int32_t i = 0; i < D.batch; i++) {
        for (uint64_t m = 0; m < D.rows; m++)
            for (uint64_t n = 0; n < D.cols; n++) {
                double sum = 0;
                for (uint64_t k = 0; k < (ta ? A.rows : A.cols); k++)
                    sum += element(&A, ta, m, k) * element(&B, tb, k, n);
                ((double *)D.data)[m + n * (uint64_t)D.ld] = sum;
            }
        finish(desc, &A, ta, &B, tb, &D);
        A.data += A.step, B.data += B.step, D.data += D.step;
    }
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- Rows ------------------------------------------------------------------------------------ */

static const struct row {
    const char *name;
    int rank_a, rank_b;
    int64_t a[5], b[5];
    bool transpose_a, transpose_b;
    int calls;
    bool bias, relu, sums;
    enum mgpu_matmul_sums of;
} rows[] = {
    {"plain", 2, 2, {3, 4}, {4, 5}, false, false, .calls = 1},
    {"transposed", 2, 2, {4, 3}, {5, 4}, true, true, .calls = 1},
    {"first transposed", 2, 2, {4, 3}, {4, 5}, true, false, .calls = 1},
    {"a batch of both", 3, 3, {6, 3, 4}, {6, 5, 4}, false, true, .calls = 1},
    {"one matrix for all: more rows", 3, 2, {6, 3, 4}, {4, 5}, false, false, .calls = 1},
    {"one matrix for all, transposed", 3, 2, {6, 4, 3}, {4, 5}, true, false, .calls = 1},
    {"one first matrix", 2, 3, {3, 4}, {6, 4, 5}, false, false, .calls = 1},
    {"two axes that are one", 4, 4, {2, 3, 3, 4}, {2, 3, 4, 5}, false, false, .calls = 1},
    {"broadcast against each other", 4, 3, {2, 1, 3, 4}, {5, 4, 2}, false, false, .calls = 2},
    {"a head for groups", 4, 4, {2, 3, 2, 4}, {2, 1, 4, 5}, false, false, .calls = 1},
    {"the same, transposed", 4, 4, {2, 3, 4, 2}, {2, 1, 4, 5}, true, false, .calls = 2},
    {"three axes", 5, 5, {2, 1, 3, 2, 2}, {1, 4, 3, 2, 3}, false, false, .calls = 2 * 4},
    {"axes of one", 4, 2, {1, 1, 3, 4}, {4, 1}, false, false, .calls = 1},
    {"with a bias", 2, 2, {3, 4}, {4, 5}, false, false, .calls = 1, .bias = true},
    {"with a bias and a limit",
     3,
     2,
     {6, 3, 4},
     {5, 4},
     false,
     true,
     .calls = 1,
     .bias = true,
     .relu = true},
    {"with a limit, in calls",
     4,
     3,
     {2, 1, 3, 4},
     {5, 4, 2},
     false,
     false,
     .calls = 2,
     .relu = true},
    {"with sums of b",
     2,
     2,
     {7, 3},
     {7, 5},
     true,
     false,
     .calls = 1,
     .sums = true,
     .of = MGPU_SUMS_B},
    {"with sums of a",
     2,
     2,
     {7, 5},
     {7, 3},
     true,
     false,
     .calls = 1,
     .sums = true,
     .of = MGPU_SUMS_A},
    {"with sums along rows",
     2,
     2,
     {3, 7},
     {5, 7},
     false,
     true,
     .calls = 1,
     .sums = true,
     .of = MGPU_SUMS_A},
};

static struct mgpu_value *add_typed(struct mgpu_graph *g, enum mgpu_dtype type, int rank,
                                    const int64_t *sizes)
{
    struct mgpu_dim dims[5];
    for (int i = 0; i < rank; i++)
        dims[i] = mgpu_dim_const(sizes[i]);
    return mgpu_graph_input(g, "x", type, rank, dims);
}

static struct mgpu_value *add(struct mgpu_graph *g, int rank, const int64_t *sizes)
{
    return add_typed(g, MGPU_DOUBLE, rank, sizes);
}

static void check_row(struct mgpu_library *l, const struct row *row)
{
    static double a[MOST], b[MOST], bias[MOST], got[2][MOST], want[2][MOST];
    struct mgpu_graph *g = mgpu_graph_new();
    int64_t columns = row->b[row->rank_b - 1 - row->transpose_b];
    struct mgpu_value *in[] = {add(g, row->rank_a, row->a), add(g, row->rank_b, row->b),
                               row->bias ? add(g, 1, &columns) : NULL},
                      *y[2];
    struct mgpu_matmul_attrs attrs = {.transpose_a = row->transpose_a,
                                      .transpose_b = row->transpose_b,
                                      .relu = row->relu,
                                      .sums = row->of};
    struct mgpu_library_call *call;
    int inputs = 2 + row->bias, outputs = row->sums ? 2 : 1;
    CHECK_OK(mgpu_graph_node(g, row->sums ? &mgpu_op_matmul_sums : &mgpu_op_matmul, &attrs, inputs,
                             in, outputs, y));
    for (int i = 0; i < MOST; i++) {
        a[i] = (i * 37 % 97 - 48) / 16.0;
        b[i] = (i * 29 % 89 - 44) / 16.0;
        bias[i] = (i * 23 % 83 - 41) / 16.0;
        got[0][i] = got[1][i] = want[0][i] = want[1][i] = -1;
    }
    CHECK_OK(mgpu_backend_run(&mgpu_backend_ref, y[0]->producer, (const void *[]){a, b, bias},
                              (void *[]){want[0], want[1]}));
    CHECK(mgpu_library_accepts(l, y[0]->producer));
    CHECK_OK(mgpu_library_prepare(&call, l, y[0]->producer));
    calls = 0;
    void *operand[] = {a, b, row->bias ? bias : got[0], row->bias ? got[0] : got[1]};
    CHECK_OK(mgpu_library_run(call, NULL, operand, NULL));
    CHECK_(calls == row->calls, "%s: %d calls", row->name, calls);
    CHECK_(!memcmp(got, want, sizeof want), "%s: another product", row->name);
    mgpu_library_release(call);
    mgpu_graph_free(g);
}

/* Nothing to sum, or hundreds of products: generated kernels. */
static void check_refused(struct mgpu_library *l)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_matmul_attrs attrs = {0};
    struct mgpu_value *y;
    struct mgpu_value *empty[] = {add(g, 2, (int64_t[]){3, 0}), add(g, 2, (int64_t[]){0, 5})};
    CHECK_OK(mgpu_graph_node(g, &mgpu_op_matmul, &attrs, 2, empty, 1, &y));
    CHECK(!mgpu_library_accepts(l, y->producer));
    struct mgpu_value *many[] = {add(g, 4, (int64_t[]){100, 1, 3, 2}),
                                 add(g, 4, (int64_t[]){1, 7, 2, 3})};
    CHECK_OK(mgpu_graph_node(g, &mgpu_op_matmul, &attrs, 2, many, 1, &y));
    CHECK(!mgpu_library_accepts(l, y->producer));
    mgpu_graph_free(g);
}

/* ---- Half types that give floats --------------------------------------------------------------
 */

static struct seen {
    uint32_t type[3];
    const void *at[3];
} seen[2];

static cublasStatus_t look(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                           const void *a, cublasLtMatrixLayout_t la, const void *b,
                           cublasLtMatrixLayout_t lb, const void *beta, const void *c,
                           cublasLtMatrixLayout_t lc, void *d, cublasLtMatrixLayout_t ld,
                           const cublasLtMatmulAlgo_t *algo, void *workspace,
                           size_t workspace_bytes, cudaStream_t stream)
{
    const cublasLtMatrixLayout_t layout[] = {lb, la, ld};
    struct seen *s = &seen[calls++ % 2];
    size_t size;
    (void)handle, (void)desc, (void)algo, (void)workspace, (void)workspace_bytes, (void)stream;
    CHECK(*(const float *)alpha == 1 && *(const float *)beta == 0 && c == d && lc == ld);
    *s = (struct seen){.at = {b, a, d}};
    for (int k = 0; k < 3; k++)
        get.layout(layout[k], CUBLASLT_MATRIX_LAYOUT_TYPE, &s->type[k], sizeof s->type[k], &size);
    return CUBLAS_STATUS_SUCCESS;
}

/* Two calls, with matrices as far apart as elements of their own type are. */
static void check_types(struct mgpu_library *l)
{
    static char memory[3][1024];
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_value *in[] = {add_typed(g, MGPU_BFLOAT16, 4, (int64_t[]){2, 1, 3, 4}),
                               add_typed(g, MGPU_BFLOAT16, 3, (int64_t[]){5, 4, 2})};
    struct mgpu_matmul_attrs attrs = {.type = MGPU_FLOAT};
    struct mgpu_library_call *call;
    struct mgpu_value *y;
    CHECK_OK(mgpu_graph_node(g, &mgpu_op_matmul, &attrs, 2, in, 1, &y));
    CHECK(y->type == MGPU_FLOAT && mgpu_library_accepts(l, y->producer));
    l->lt.cublasLtMatmul = look;
    calls = 0;
    CHECK_OK(mgpu_library_prepare(&call, l, y->producer));
    CHECK_OK(mgpu_library_run(call, NULL, (void *[]){memory[0], memory[1], memory[2]}, NULL));
    CHECK(calls == 2 && seen[1].type[0] == CUDA_R_16BF && seen[1].type[1] == CUDA_R_16BF &&
          seen[1].type[2] == CUDA_R_32F);
    CHECK(seen[1].at[0] == memory[0] + 12 * 2 && seen[1].at[1] == memory[1] &&
          seen[1].at[2] == memory[2] + 30 * 4);
    mgpu_library_release(call);
    mgpu_graph_free(g);
}

int main(void)
{
    struct mgpu_library l = {0};
    char name[64];
    snprintf(name, sizeof name, "libcublasLt.so.%d", CUBLAS_VER_MAJOR);
    void *library = dlopen(name, RTLD_NOW);
    check_refused(&l);
    if (!library || mgpu_cuda_load_lt(&l.lt) < 0) {
        fprintf(stderr, "skipped: no cuBLASLt\n");
        return test_failures ? EXIT_FAILURE : 77;
    }
    *(void **)&get.desc = dlsym(library, "cublasLtMatmulDescGetAttribute");
    *(void **)&get.layout = dlsym(library, "cublasLtMatrixLayoutGetAttribute");
    l.lt.cublasLtMatmul = multiply;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_row(&l, &rows[i]);
    check_types(&l);
    return test_end();
}
