/* matmul's descriptors for cuBLASLt: a stand-in for cublasLtMatmul does what the real descriptors
 * say, on host memory, with matrices that lie by columns, and complains of what the real one
 * refuses. */
#include "runtime/backend.h"
#include "runtime/cuda/library_private.h"
#include "runtime/ops/build.h"
#include "runtime/ops/matmul.h"
#include "tests/test.h"

#include <dlfcn.h>
#include <math.h>

enum { MOST = 4096 };

/* ---- The stand-in ---------------------------------------------------------------------------- */

static struct {
    __typeof__(&cublasLtMatmulDescGetAttribute) desc;
    __typeof__(&cublasLtMatrixLayoutGetAttribute) layout;
} get;

static int calls;

struct matrix {
    const char *data;
    enum mgpu_dtype type;
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
    CHECK(type == CUDA_R_64F || type == CUDA_R_32F);
    CHECK((uint64_t)m.ld >= m.rows && m.batch >= 1);
    m.type = type == CUDA_R_64F ? MGPU_DOUBLE : MGPU_FLOAT;
    return m;
}

static double element(const struct matrix *m, bool transpose, uint64_t row, uint64_t col)
{
    uint64_t r = transpose ? col : row, c = transpose ? row : col;
    CHECK(r < m->rows && c < m->cols);
    return mgpu_get_double(m->data, m->type, (int64_t)r + (int64_t)c * m->ld);
}

static void set_element(const struct matrix *m, uint64_t row, uint64_t col, double v)
{
    mgpu_set_double((char *)m->data, m->type, (int64_t)row + (int64_t)col * m->ld, v);
}

static bool transposed(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute)
{
    int32_t op = 0;
    size_t written;
    get.desc(desc, attribute, &op, sizeof op, &written);
    return op == CUBLAS_OP_T;
}

/* The epilogue of D, whose rows have a bias each, with its vector and its matrix of D's type. */
struct epilogue {
    cublasLtEpilogue_t kind;
    struct matrix vector, matrix;
};

static bool has(const struct epilogue *e, cublasLtEpilogue_t a, cublasLtEpilogue_t b,
                cublasLtEpilogue_t c)
{
    return e->kind == a || e->kind == b || e->kind == c;
}

static struct epilogue epilogue_of(cublasLtMatmulDesc_t desc, const struct matrix *D)
{
    struct epilogue e = {.vector = *D, .matrix = *D};
    size_t written;
    get.desc(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &e.kind, sizeof e.kind, &written);
    get.desc(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &e.vector.data, sizeof(void *), &written);
    get.desc(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &e.matrix.data, sizeof(void *),
             &written);
    get.desc(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &e.matrix.ld, sizeof e.matrix.ld,
             &written);
    CHECK((uintptr_t)e.vector.data % 16 == 0);
    if (has(&e, CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
            CUBLASLT_EPILOGUE_DGELU))
        CHECK(D->type != MGPU_DOUBLE && D->batch == 1 && e.matrix.data && e.matrix.ld % 8 == 0 &&
              (uint64_t)e.matrix.ld >= D->rows && (uintptr_t)e.matrix.data % 16 == 0);
    return e;
}

static double gelu_slope(double x)
{
    double c = sqrt(2 / M_PI), t = tanh(c * (x + 0.044715 * pow(x, 3)));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
}

static double ended(const struct epilogue *e, uint64_t m, uint64_t n, double v)
{
    if (has(e, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_RELU_BIAS, CUBLASLT_EPILOGUE_GELU_BIAS) ||
        e->kind == CUBLASLT_EPILOGUE_GELU_AUX_BIAS)
        v += mgpu_get_double(e->vector.data, e->vector.type, (int64_t)m);
    if (has(e, CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_RELU_BIAS, CUBLASLT_EPILOGUE_RELU))
        return v < 0 ? 0 : v;
    if (e->kind == CUBLASLT_EPILOGUE_DGELU)
        return v * gelu_slope(element(&e->matrix, false, m, n));
    bool aux = e->kind == CUBLASLT_EPILOGUE_GELU_AUX || e->kind == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    if (aux)
        set_element(&e->matrix, m, n, v);
    if (aux || e->kind == CUBLASLT_EPILOGUE_GELU || e->kind == CUBLASLT_EPILOGUE_GELU_BIAS)
        return 0.5 * v * (1 + tanh(sqrt(2 / M_PI) * (v + 0.044715 * pow(v, 3))));
    return v;
}

static void sum_operand(const struct epilogue *e, const struct matrix *A, bool ta,
                        const struct matrix *B, bool tb, const struct matrix *D)
{
    bool a = e->kind == CUBLASLT_EPILOGUE_BGRADA;
    for (uint64_t m = 0; m < (a ? D->rows : D->cols); m++) {
        double sum = 0;
        for (uint64_t i = 0; i < (ta ? A->rows : A->cols); i++)
            sum += a ? element(A, ta, m, i) : element(B, tb, i, m);
        mgpu_set_double((char *)e->vector.data, e->vector.type, (int64_t)m, sum);
    }
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
    struct epilogue e = epilogue_of(desc, &D);
    bool twice = D.type == MGPU_DOUBLE;
    CHECK(twice ? *(const double *)alpha == 1 && *(const double *)beta == 0
                : *(const float *)alpha == 1 && *(const float *)beta == 0);
    CHECK(A.batch == D.batch && B.batch == D.batch);
    CHECK((ta ? A.cols : A.rows) == D.rows && (tb ? B.rows : B.cols) == D.cols);
    calls++;
    for (int32_t i = 0; i < D.batch; i++) {
        for (uint64_t m = 0; m < D.rows; m++)
            for (uint64_t n = 0; n < D.cols; n++) {
                double sum = 0;
                for (uint64_t k = 0; k < (ta ? A.rows : A.cols); k++)
                    sum += element(&A, ta, m, k) * element(&B, tb, k, n);
                set_element(&D, m, n, ended(&e, m, n, sum));
            }
        if (e.kind == CUBLASLT_EPILOGUE_BGRADA || e.kind == CUBLASLT_EPILOGUE_BGRADB)
            sum_operand(&e, &A, ta, &B, tb, &D);
        int64_t size = (int64_t)mgpu_dtype_size(D.type);
        A.data += A.step * size, B.data += B.step * size, D.data += D.step * size;
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
    bool bias, relu, sums, gelu, slope, lone; /* lone: nothing is kept of GELU */
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
    {"GELU", 2, 2, {3, 4}, {4, 8}, .calls = 1, .gelu = true},
    {"GELU with a bias",
     3,
     2,
     {2, 5, 4},
     {24, 4},
     .transpose_b = true,
     .calls = 1,
     .bias = true,
     .gelu = true},
    {"GELU, nothing kept", 2, 2, {3, 4}, {4, 16}, .calls = 1, .gelu = true, .lone = true},
    {"GELU with a bias, nothing kept",
     2,
     2,
     {7, 4},
     {4, 8},
     .calls = 1,
     .bias = true,
     .gelu = true,
     .lone = true},
    {"GELU's derivative", 3, 2, {2, 3, 4}, {40, 4}, .transpose_b = true, .calls = 1, .slope = true},
    {"GELU's derivative of one row", 2, 2, {1, 9}, {9, 8}, .calls = 1, .slope = true},
};

static const struct mgpu_op *op_of(const struct row *row)
{
    return row->sums    ? &mgpu_op_matmul_sums
           : row->gelu  ? &mgpu_op_matmul_gelu
           : row->slope ? &mgpu_op_matmul_gelu_grad
                        : &mgpu_op_matmul;
}

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

/* The row's node, in double but for GELU. Its third input is a bias, or what GELU was taken of. */
static struct mgpu_node *node_of(struct mgpu_graph *g, const struct row *row)
{
    enum mgpu_dtype type = row->gelu || row->slope ? MGPU_FLOAT : MGPU_DOUBLE;
    int64_t columns = row->b[row->rank_b - 1 - row->transpose_b], like[5];
    memcpy(like, row->a, sizeof like);
    like[row->rank_a - 1] = columns;
    struct mgpu_value *in[] = {add_typed(g, type, row->rank_a, row->a),
                               add_typed(g, type, row->rank_b, row->b),
                               row->slope  ? add_typed(g, type, row->rank_a, like)
                               : row->bias ? add_typed(g, type, 1, &columns)
                                           : NULL},
                      *y[2];
    struct mgpu_matmul_attrs attrs = {.transpose_a = row->transpose_a,
                                      .transpose_b = row->transpose_b,
                                      .relu = row->relu,
                                      .sums = row->of};
    const struct mgpu_op *op = op_of(row);
    CHECK_OK(mgpu_graph_node(g, op, &attrs, in[2] ? 3 : 2, in, op->outputs, y));
    if (row->lone)
        y[0]->producer->output[1] = NULL;
    return y[0]->producer;
}

static void check_row(struct mgpu_library *l, const struct row *row)
{
    static _Alignas(64) double in[3][MOST], got[2][MOST], want[2][MOST];
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_node *node = node_of(g, row);
    struct mgpu_library_call *call;
    enum mgpu_dtype type = node->input[0]->type;
    for (int i = 0; i < MOST; i++) {
        mgpu_set_double(in[0], type, i, (i * 37 % 97 - 48) / 16.0);
        mgpu_set_double(in[1], type, i, (i * 29 % 89 - 44) / 16.0);
        mgpu_set_double(in[2], type, i, (i * 23 % 83 - 41) / 16.0);
        got[0][i] = got[1][i] = want[0][i] = want[1][i] = -1;
    }
    CHECK_OK(mgpu_backend_run(&mgpu_backend_ref, node, (const void *[]){in[0], in[1], in[2]},
                              (void *[]){want[0], row->lone ? NULL : want[1]}));
    CHECK(mgpu_library_accepts(l, node));
    CHECK_OK(mgpu_library_prepare(&call, l, node));
    calls = 0;
    void *operand[] = {in[0], in[1], in[2], got[0], got[1]};
    if (node->inputs == 2)
        operand[2] = got[0], operand[3] = got[1];
    CHECK_OK(mgpu_library_run(call, NULL, operand, NULL));
    CHECK_(calls == row->calls, "%s: %d calls", row->name, calls);
    if (type == MGPU_DOUBLE)
        CHECK_(!memcmp(got, want, sizeof want), "%s: another product", row->name);
    for (int i = 0; i < 2 * MOST && type == MGPU_FLOAT; i++) {
        double a = mgpu_get_double(got, type, i), b = mgpu_get_double(want, type, i);
        CHECK_(fabs(a - b) <= 1e-6 * fmax(1, fabs(b)), "%s: %g, not %g", row->name, a, b);
    }
    mgpu_library_release(call);
    mgpu_graph_free(g);
}

/* What GELU's matrices cannot be there, and on GPUs whose GELU is a pass of its own. */
static void check_no_gelu(struct mgpu_library *l)
{
    static const struct row no[] = {
        {"rows of 9", 2, 2, {3, 4}, {4, 9}, .gelu = true},
        {"rows of 4", 2, 2, {3, 4}, {4, 4}, .slope = true},
        {"many products", 3, 3, {2, 3, 4}, {2, 4, 8}, .gelu = true},
    };
    static const struct row yes = {"rows of 8", 2, 2, {3, 4}, {4, 8}, .gelu = true};
    static const int kinds[] = {750, 800, 890, 900, 1000, 1030, 1200};
    struct mgpu_graph *g = mgpu_graph_new();
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        CHECK_(!mgpu_library_accepts(l, node_of(g, &no[i])), "%s", no[i].name);
    struct mgpu_node *node = node_of(g, &yes);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        l->dnn.capability = kinds[i];
        CHECK(mgpu_library_accepts(l, node) == (kinds[i] >= 900 && kinds[i] < 1100));
    }
    l->dnn.capability = 900;
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

static cublasStatus_t fail(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                           const void *a, cublasLtMatrixLayout_t la, const void *b,
                           cublasLtMatrixLayout_t lb, const void *beta, const void *c,
                           cublasLtMatrixLayout_t lc, void *d, cublasLtMatrixLayout_t ld,
                           const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes,
                           cudaStream_t stream)
{
    (void)handle, (void)desc, (void)alpha, (void)a, (void)la, (void)b, (void)lb, (void)beta;
    (void)c, (void)lc, (void)d, (void)ld, (void)algo, (void)workspace, (void)bytes, (void)stream;
    return CUBLAS_STATUS_EXECUTION_FAILED;
}

/* Who runs a node names it: the library's error does not, or it would stand there twice. */
static void check_failed(struct mgpu_library *l)
{
    static char memory[64];
    struct mgpu_graph *g = mgpu_graph_new();
    g->origin = (struct mgpu_origin){"", "y", "gemm1", "Gemm", MGPU_FORWARD};
    struct mgpu_node *node = node_of(g, &rows[0]);
    struct mgpu_library_call *call;
    void *operand[] = {memory, memory, memory, memory, memory};
    CHECK_OK(mgpu_library_prepare(&call, l, node));
    l->lt.cublasLtMatmul = fail;
    CHECK_FAILS(mgpu_library_run(call, NULL, operand, NULL), "cuBLASLt: running a product");
    CHECK_(!strncmp(mgpu_error(), node->op->name, strlen(node->op->name)), "%s", mgpu_error());
    mgpu_library_release(call);
    mgpu_graph_free(g);
}

int main(void)
{
    struct mgpu_library l = {.dnn.capability = 900};
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
    check_no_gelu(&l);
    check_types(&l);
    check_failed(&l);
    return test_end();
}
