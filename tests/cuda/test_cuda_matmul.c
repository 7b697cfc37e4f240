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
} rows[] = {
    {"plain", 2, 2, {3, 4}, {4, 5}, false, false, 1},
    {"transposed", 2, 2, {4, 3}, {5, 4}, true, true, 1},
    {"first transposed", 2, 2, {4, 3}, {4, 5}, true, false, 1},
    {"a batch of both", 3, 3, {6, 3, 4}, {6, 5, 4}, false, true, 1},
    {"one matrix for all: more rows", 3, 2, {6, 3, 4}, {4, 5}, false, false, 1},
    {"one matrix for all, transposed", 3, 2, {6, 4, 3}, {4, 5}, true, false, 1},
    {"one first matrix", 2, 3, {3, 4}, {6, 4, 5}, false, false, 1},
    {"two axes that are one", 4, 4, {2, 3, 3, 4}, {2, 3, 4, 5}, false, false, 1},
    {"broadcast against each other", 4, 3, {2, 1, 3, 4}, {5, 4, 2}, false, false, 2},
    {"a head for groups", 4, 4, {2, 3, 2, 4}, {2, 1, 4, 5}, false, false, 1},
    {"the same, transposed", 4, 4, {2, 3, 4, 2}, {2, 1, 4, 5}, true, false, 2},
    {"three axes", 5, 5, {2, 1, 3, 2, 2}, {1, 4, 3, 2, 3}, false, false, 2 * 4},
    {"axes of one", 4, 2, {1, 1, 3, 4}, {4, 1}, false, false, 1},
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
    static double a[MOST], b[MOST], got[MOST], want[MOST];
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_value *in[] = {add(g, row->rank_a, row->a), add(g, row->rank_b, row->b)}, *y;
    struct mgpu_matmul_attrs attrs = {.transpose_a = row->transpose_a,
                                      .transpose_b = row->transpose_b};
    struct mgpu_library_call *call;
    CHECK_OK(mgpu_graph_node(g, &mgpu_op_matmul, &attrs, 2, in, 1, &y));
    for (int i = 0; i < MOST; i++) {
        a[i] = (i * 37 % 97 - 48) / 16.0;
        b[i] = (i * 29 % 89 - 44) / 16.0;
        got[i] = want[i] = -1;
    }
    CHECK_OK(
        mgpu_backend_run(&mgpu_backend_ref, y->producer, (const void *[]){a, b}, (void *[]){want}));
    CHECK(mgpu_library_accepts(y->producer));
    CHECK_OK(mgpu_library_prepare(&call, l, y->producer));
    calls = 0;
    CHECK_OK(mgpu_library_run(call, NULL, (void *[]){a, b, got}, NULL));
    CHECK_(calls == row->calls, "%s: %d calls", row->name, calls);
    CHECK_(!memcmp(got, want, sizeof want), "%s: another product", row->name);
    mgpu_library_release(call);
    mgpu_graph_free(g);
}

/* Nothing to sum, or hundreds of products: generated kernels. */
static void check_refused(void)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_matmul_attrs attrs = {0};
    struct mgpu_value *y;
    struct mgpu_value *empty[] = {add(g, 2, (int64_t[]){3, 0}), add(g, 2, (int64_t[]){0, 5})};
    CHECK_OK(mgpu_graph_node(g, &mgpu_op_matmul, &attrs, 2, empty, 1, &y));
    CHECK(!mgpu_library_accepts(y->producer));
    struct mgpu_value *many[] = {add(g, 4, (int64_t[]){100, 1, 3, 2}),
                                 add(g, 4, (int64_t[]){1, 7, 2, 3})};
    CHECK_OK(mgpu_graph_node(g, &mgpu_op_matmul, &attrs, 2, many, 1, &y));
    CHECK(!mgpu_library_accepts(y->producer));
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
    CHECK(y->type == MGPU_FLOAT && mgpu_library_accepts(y->producer));
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
    check_refused();
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
