/* matmul through cuBLASLt, with what stands behind it as its epilogue: a bias, a limit of 0, the
 * sums of an operand, GELU in tanh's form (another function than erf's) with what it was taken of,
 * and its derivative.
 *
 * Not used are relu with a mask, and the derivative that reads it: of what a step of the seven
 * networks of tests/bench/gpu.md moves they would save 0.02 % at most (vgg16; the others have no
 * relu behind a product). Nor are derivatives with the sums of their results: as sums of an operand
 * of the next product these cost no pass either, and they are floats there.
 *
 * Its matrices lie by columns, so it sees ours transposed: y [M,N] = a b of rows is yT [N,M] = bT
 * aT of columns, and the operand that we call b comes first. */
#include "runtime/base/status.h"
#include "runtime/cuda/library_private.h"
#include "runtime/ops/matmul.h"

#include <stdlib.h>
#include <string.h>

enum { ALGORITHMS = 5, MOST_CALLS = 64, ALIGNMENT = 64, GELU_ROW = 8 };

#define WORKSPACE (INT64_C(32) << 20) /* what NVIDIA recommends for Hopper */

/* ---- The product ----------------------------------------------------------------------------- */

/* A leading axis of the result, and how far apart its slices lie in a, b and y. */
struct axis {
    int64_t size, step[3];
};

/* `axes` leading axes, the slowest first; the last one is the batch of one call, and each place on
 * the others is a call. */
struct product {
    int64_t m, n, k;
    bool transpose_a, transpose_b;
    int axes;
    struct axis axis[MGPU_MAX_RANK];
};

static int64_t matrix_elements(const struct mgpu_value *v)
{
    return v->dims[v->rank - 2].value * v->dims[v->rank - 1].value;
}

/* Slices of an operand: elements from one to the next on the result's axis i, 0 where they are the
 * same one. */
static int64_t step_of(const struct mgpu_value *v, const struct mgpu_value *y, int i)
{
    int k = i - (y->rank - v->rank);
    if (k < 0 || v->dims[k].value == 1)
        return 0;
    int64_t step = matrix_elements(v);
    for (int j = k + 1; j < v->rank - 2; j++)
        step *= v->dims[j].value;
    return step;
}

/* Whether two neighbouring axes are one longer one in all operands. */
static bool merge(const struct axis *slow, struct axis *fast)
{
    for (int i = 0; i < 3; i++)
        if (slow->step[i] != fast->size * fast->step[i])
            return false;
    fast->size *= slow->size;
    return true;
}

static struct product product_of(const struct mgpu_node *node)
{
    const struct mgpu_matmul_attrs *attrs = node->attrs;
    const struct mgpu_value *a = node->input[0], *b = node->input[1], *y = node->output[0];
    struct product p = {.m = y->dims[y->rank - 2].value,
                        .n = y->dims[y->rank - 1].value,
                        .k = a->dims[a->rank - (attrs->transpose_a ? 2 : 1)].value,
                        .transpose_a = attrs->transpose_a,
                        .transpose_b = attrs->transpose_b};
    struct axis found[MGPU_MAX_RANK];
    int count = 0;
    for (int i = y->rank - 3; i >= 0; i--) { /* the fastest first */
        struct axis x = {y->dims[i].value, {step_of(a, y, i), step_of(b, y, i), step_of(y, y, i)}};
        if (x.size == 1)
            continue;
        if (count == 0 || !merge(&x, &found[count - 1]))
            found[count++] = x;
    }
    bool rows = count > 0 && !p.transpose_a && found[0].step[1] == 0 && found[0].step[0] != 0;
    if (rows) /* more rows of one product */
        p.m *= found[0].size;
    for (int i = count - 1; i >= rows; i--)
        p.axis[p.axes++] = found[i];
    return p;
}

static int64_t calls_of(const struct product *p)
{
    int64_t calls = 1;
    for (int i = 0; i + 1 < p->axes && calls <= MOST_CALLS; i++)
        calls *= p->axis[i].size;
    return calls;
}

/* Where the operands of call `c` begin, in elements. */
static void begin_of(const struct product *p, int64_t c, int64_t begin[3])
{
    memset(begin, 0, 3 * sizeof *begin);
    for (int i = p->axes - 2; i >= 0; c /= p->axis[i--].size)
        for (int k = 0; k < 3; k++)
            begin[k] += c % p->axis[i].size * p->axis[i].step[k];
}

static bool has_type(enum mgpu_dtype type, cudaDataType_t *out)
{
    *out = type == MGPU_FLOAT     ? CUDA_R_32F
           : type == MGPU_DOUBLE  ? CUDA_R_64F
           : type == MGPU_FLOAT16 ? CUDA_R_16F
                                  : CUDA_R_16BF;
    return mgpu_is_float(type);
}

/* The epilogue, and which operands it reads or writes (-1: none): a vector, a matrix. */
struct epilogue {
    cublasLtEpilogue_t kind;
    int vector, matrix;
};

static bool is_gelu(const struct mgpu_node *node)
{
    return node->op == &mgpu_op_matmul_gelu || node->op == &mgpu_op_matmul_gelu_grad;
}

static struct epilogue epilogue_of(const struct mgpu_node *node)
{
    const struct mgpu_matmul_attrs *attrs = node->attrs;
    int bias = node->inputs > 2 && node->input[2] ? 2 : -1, second = node->inputs + 1;
    if (node->op == &mgpu_op_matmul_sums) /* our b is its A */
        return (struct epilogue){attrs->sums == MGPU_SUMS_A ? CUBLASLT_EPILOGUE_BGRADB
                                                            : CUBLASLT_EPILOGUE_BGRADA,
                                 second, -1};
    if (node->op == &mgpu_op_matmul_gelu_grad)
        return (struct epilogue){CUBLASLT_EPILOGUE_DGELU, -1, 2};
    if (node->op == &mgpu_op_matmul_gelu && node->output[1])
        return (struct epilogue){
            bias < 0 ? CUBLASLT_EPILOGUE_GELU_AUX : CUBLASLT_EPILOGUE_GELU_AUX_BIAS, bias, second};
    if (node->op == &mgpu_op_matmul_gelu)
        return (struct epilogue){bias < 0 ? CUBLASLT_EPILOGUE_GELU : CUBLASLT_EPILOGUE_GELU_BIAS,
                                 bias, -1};
    if (attrs->relu) /* which may make 0 of NaN: the gradient of the weight shows it */
        return (struct epilogue){bias < 0 ? CUBLASLT_EPILOGUE_RELU : CUBLASLT_EPILOGUE_RELU_BIAS,
                                 bias, -1};
    return (struct epilogue){bias < 0 ? CUBLASLT_EPILOGUE_DEFAULT : CUBLASLT_EPILOGUE_BIAS, bias,
                             -1};
}

/* One product of floats or half types, whose rows are as long as its matrix of GELU may be. */
static bool may_gelu(const struct mgpu_node *node)
{
    struct product p = product_of(node);
    return node->input[0]->type != MGPU_DOUBLE && p.axes == 0 && p.n % GELU_ROW == 0;
}

static bool accepts(const struct mgpu_node *node)
{
    cudaDataType_t type;
    if ((node->op != &mgpu_op_matmul && node->op != &mgpu_op_matmul_sums && !is_gelu(node)) ||
        !has_type(node->input[0]->type, &type) || (is_gelu(node) && !may_gelu(node)))
        return false;
    struct product p = product_of(node);
    bool work = p.k > 0 && mgpu_value_count(node->output[0]) > 0;
    return work && calls_of(&p) <= MOST_CALLS;
}

/* Whether the plain product may get an epilogue is asked before it does: not every type and size
 * has an algorithm. */
static bool has_end(const struct mgpu_node *node)
{
    return epilogue_of(node).kind != CUBLASLT_EPILOGUE_DEFAULT;
}

/* ---- Descriptors ----------------------------------------------------------------------------- */

struct matmul {
    struct product product;
    enum mgpu_dtype type[3]; /* of a, b, y */
    struct epilogue epilogue;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, y;
    char words[512]; /* what it computes */
    int count, chosen;
    cublasLtMatmulHeuristicResult_t algorithm[ALGORITHMS];
};

static cublasStatus_t set_address(const struct matmul *m, const struct mgpu_cuda_lt *lt,
                                  cublasLtMatmulDescAttributes_t attribute, int i,
                                  void *const *operand)
{
    void *at = (void *)(uintptr_t)ALIGNMENT;
    if (i < 0)
        return CUBLAS_STATUS_SUCCESS;
    if (operand)
        at = operand[i];
    return lt->cublasLtMatmulDescSetAttribute(m->desc, attribute, &at, sizeof at);
}

/* Where the epilogue's operands lie; operand NULL: an address as aligned as those to come. */
static cublasStatus_t set_operands(const struct matmul *m, const struct mgpu_cuda_lt *lt,
                                   void *const *operand)
{
    cublasStatus_t s =
        set_address(m, lt, CUBLASLT_MATMUL_DESC_BIAS_POINTER, m->epilogue.vector, operand);
    return s != CUBLAS_STATUS_SUCCESS
               ? s
               : set_address(m, lt, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, m->epilogue.matrix,
                             operand);
}

static int make_desc(struct matmul *m, const struct mgpu_library *l)
{
    const struct mgpu_cuda_lt *lt = &l->lt;
    bool twice = m->type[0] == MGPU_DOUBLE, tf32 = m->type[0] == MGPU_FLOAT && l->options.tf32;
    cublasComputeType_t compute = twice  ? CUBLAS_COMPUTE_64F
                                  : tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                         : CUBLAS_COMPUTE_32F;
    int32_t first = m->product.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    int32_t second = m->product.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasStatus_t s =
        lt->cublasLtMatmulDescCreate(&m->desc, compute, twice ? CUDA_R_64F : CUDA_R_32F);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = lt->cublasLtMatmulDescSetAttribute(m->desc, CUBLASLT_MATMUL_DESC_TRANSA, &first,
                                               sizeof first);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = lt->cublasLtMatmulDescSetAttribute(m->desc, CUBLASLT_MATMUL_DESC_TRANSB, &second,
                                               sizeof second);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = lt->cublasLtMatmulDescSetAttribute(m->desc, CUBLASLT_MATMUL_DESC_EPILOGUE,
                                               &m->epilogue.kind, sizeof m->epilogue.kind);
    if (s == CUBLAS_STATUS_SUCCESS && m->epilogue.matrix >= 0)
        s = lt->cublasLtMatmulDescSetAttribute(m->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD,
                                               &m->product.n, sizeof m->product.n);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = set_operands(m, lt, NULL);
    return mgpu_lt_status(&l->lt, s, "describing a product");
}

/* A matrix of `rows` rows of ours, operand k of the product. */
static int make_layout(cublasLtMatrixLayout_t *out, const struct matmul *m,
                       const struct mgpu_library *l, int64_t rows, int64_t columns, int k)
{
    const struct product *p = &m->product;
    const struct mgpu_cuda_lt *lt = &l->lt;
    const struct axis *batch = p->axes > 0 ? &p->axis[p->axes - 1] : NULL;
    cudaDataType_t type;
    has_type(m->type[k], &type);
    cublasStatus_t s =
        lt->cublasLtMatrixLayoutCreate(out, type, (uint64_t)columns, (uint64_t)rows, columns);
    int32_t count = batch ? (int32_t)batch->size : 1;
    if (s == CUBLAS_STATUS_SUCCESS && batch)
        s = lt->cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                                 sizeof count);
    if (s == CUBLAS_STATUS_SUCCESS && batch)
        s = lt->cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                 &batch->step[k], sizeof batch->step[k]);
    return mgpu_lt_status(&l->lt, s, "describing a matrix");
}

static int make_layouts(struct matmul *m, const struct mgpu_library *l)
{
    const struct product *p = &m->product;
    bool ta = p->transpose_a, tb = p->transpose_b;
    MGPU_TRY(make_layout(&m->a, m, l, ta ? p->k : p->m, ta ? p->m : p->k, 0));
    MGPU_TRY(make_layout(&m->b, m, l, tb ? p->n : p->k, tb ? p->k : p->n, 1));
    return make_layout(&m->y, m, l, p->m, p->n, 2);
}

/* ---- Algorithms ------------------------------------------------------------------------------ */

/* Bytes on whose multiples operand k of every call begins. */
static uint32_t alignment(const struct matmul *m, int k)
{
    uint64_t bytes = ALIGNMENT, size = mgpu_dtype_size(m->type[k]);
    for (int i = 0; i + 1 < m->product.axes; i++)
        while ((uint64_t)m->product.axis[i].step[k] * size % bytes)
            bytes /= 2;
    return (uint32_t)bytes;
}

static cublasStatus_t set_preference(const struct matmul *m, const struct mgpu_library *l,
                                     cublasLtMatmulPreference_t preference)
{
    static const cublasLtMatmulPreferenceAttributes_t aligned[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    int64_t limit = l->options.workspace;
    uint64_t bytes = (uint64_t)(limit > 0 && limit < WORKSPACE ? limit : WORKSPACE);
    cublasStatus_t s = l->lt.cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes);
    for (int i = 0; i < 4 && s == CUBLAS_STATUS_SUCCESS; i++) {
        uint32_t at = alignment(m, i < 2 ? i : 2);
        s = l->lt.cublasLtMatmulPreferenceSetAttribute(preference, aligned[i], &at, sizeof at);
    }
    return s;
}

/* Only a GPU can be asked. */
static int find_algorithms(struct matmul *m, const struct mgpu_library *l)
{
    cublasLtMatmulPreference_t preference = NULL;
    if (!l->lt_handle)
        return 0;
    cublasStatus_t s = l->lt.cublasLtMatmulPreferenceCreate(&preference);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = set_preference(m, l, preference);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = l->lt.cublasLtMatmulAlgoGetHeuristic(l->lt_handle, m->desc, m->b, m->a, m->y, m->y,
                                                 preference, ALGORITHMS, m->algorithm, &m->count);
    if (preference)
        l->lt.cublasLtMatmulPreferenceDestroy(preference);
    int found = m->count;
    m->count = 0;
    for (int i = 0; i < found; i++)
        if (m->algorithm[i].state == CUBLAS_STATUS_SUCCESS)
            m->algorithm[m->count++] = m->algorithm[i];
    bool refused = s == CUBLAS_STATUS_INVALID_VALUE; /* what it cannot do may be called so */
    if (refused || (s == CUBLAS_STATUS_SUCCESS && m->count == 0))
        s = CUBLAS_STATUS_NOT_SUPPORTED;
    return mgpu_lt_status(&l->lt, s, "looking for an algorithm");
}

/* ---- The call -------------------------------------------------------------------------------- */

static void release(struct mgpu_library_call *call)
{
    struct matmul *m = call->state;
    const struct mgpu_cuda_lt *lt = &call->library->lt;
    cublasLtMatrixLayout_t layout[] = {m->a, m->b, m->y};
    for (int i = 0; i < 3; i++)
        if (layout[i])
            lt->cublasLtMatrixLayoutDestroy(layout[i]);
    if (m->desc)
        lt->cublasLtMatmulDescDestroy(m->desc);
    free(m);
}

static const char *words(struct mgpu_library_call *call)
{
    return ((struct matmul *)call->state)->words;
}

static int candidates(struct mgpu_library_call *call)
{
    return ((struct matmul *)call->state)->count;
}

static int choose(struct mgpu_library_call *call, int candidate)
{
    struct matmul *m = call->state;
    m->chosen = candidate < 0 ? 0 : candidate;
    call->workspace = (int64_t)m->algorithm[m->chosen].workspaceSize;
    return 0;
}

static void describe(struct matmul *m)
{
    const struct product *p = &m->product;
    int n =
        snprintf(m->words, sizeof m->words, "matmul %s %s epilogue %d %d %d %lld %lld %lld",
                 mgpu_dtype_name(m->type[0]), mgpu_dtype_name(m->type[2]), (int)m->epilogue.kind,
                 p->transpose_a, p->transpose_b, (long long)p->m, (long long)p->n, (long long)p->k);
    for (int i = 0; i < p->axes; i++)
        n += snprintf(m->words + n, sizeof m->words - (size_t)n, ", %lld: %lld %lld",
                      (long long)p->axis[i].size, (long long)p->axis[i].step[0],
                      (long long)p->axis[i].step[1]);
}

/* GPUs of other kinds run GELU as a pass of its own behind the product, and not a fast one. */
static bool has_gelu(const struct mgpu_library *l)
{
    int major = l->dnn.capability / 100;
    return major == 9 || major == 10;
}

static int prepare(struct mgpu_library_call *call)
{
    struct matmul *m = mgpu_xcalloc(1, sizeof *m);
    call->state = m;
    m->product = product_of(call->node);
    m->type[0] = call->node->input[0]->type;
    m->type[1] = call->node->input[1]->type;
    m->type[2] = call->node->output[0]->type;
    m->epilogue = epilogue_of(call->node);
    describe(m);
    if (is_gelu(call->node) && !has_gelu(call->library))
        return mgpu_fail(MGPU_EUNSUPPORTED, "cuBLASLt: GELU is slow on such a GPU");
    MGPU_TRY(make_desc(m, call->library));
    MGPU_TRY(make_layouts(m, call->library));
    MGPU_TRY(find_algorithms(m, call->library));
    call->workspace = WORKSPACE; /* the most that it will be */
    if (m->count == 0)
        return 0;
    int known = mgpu_library_remembered(call->library, m->words);
    return choose(call, known < m->count ? known : -1);
}

static int run(struct mgpu_library_call *call, void *stream, void *const *operand, void *workspace)
{
    struct matmul *m = call->state;
    const struct mgpu_library *l = call->library;
    const float one = 1, zero = 0;
    const double one_d = 1, zero_d = 0;
    bool twice = m->type[0] == MGPU_DOUBLE;
    int64_t calls = calls_of(&m->product), begin[3];
    MGPU_TRY(mgpu_lt_status(&l->lt, set_operands(m, &l->lt, operand), "binding an epilogue"));
    for (int64_t c = 0; c < calls; c++) {
        begin_of(&m->product, c, begin);
        for (int k = 0; k < 3; k++)
            begin[k] *= (int64_t)mgpu_dtype_size(m->type[k]);
        char *a = (char *)operand[0] + begin[0], *b = (char *)operand[1] + begin[1],
             *y = (char *)operand[call->node->inputs] + begin[2];
        cublasStatus_t s = l->lt.cublasLtMatmul(
            l->lt_handle, m->desc, twice ? (const void *)&one_d : &one, b, m->b, a, m->a,
            twice ? (const void *)&zero_d : &zero, y, m->y, y, m->y, &m->algorithm[m->chosen].algo,
            workspace, (size_t)call->workspace, stream);
        MGPU_TRY(mgpu_lt_status(&l->lt, s, "running a product (cublasLtMatmul)"));
    }
    return 0;
}

const struct mgpu_library_family mgpu_library_matmul = {
    .accepts = accepts,
    .has_end = has_end,
    .ask = prepare,
    .prepare = prepare,
    .release = release,
    .run = run,
    .words = words,
    .candidates = candidates,
    .choose = choose,
};
