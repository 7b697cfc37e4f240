/* matmul in plain C: floats through the shared product in double, integers wrapping. */
#include "runtime/ops/matmul.h"
#include "runtime/ref/gemm.h"
#include "runtime/ref/ref.h"

struct matmul {
    const struct mgpu_tensor *y;
    int64_t m, n, k;
    struct mgpu_matrix a, b, c; /* of the first product of the batch */
    int64_t stride_a[MGPU_MAX_RANK], stride_b[MGPU_MAX_RANK]; /* along y's axes; 0: broadcast */
    const struct mgpu_tensor *bias;                           /* NULL: none */
    bool relu;
    const struct mgpu_tensor *gelu, *slope; /* what is kept of GELU, and read; NULL: no such end */
};

/* Strides of an operand along the batch axes of y. */
static void batch_strides(const struct mgpu_tensor *t, int rank, int64_t *strides)
{
    int64_t own[MGPU_MAX_RANK];
    mgpu_tensor_strides(t, own);
    for (int axis = 0; axis < rank - 2; axis++) {
        int i = axis - (rank - t->rank);
        strides[axis] = i < 0 || t->dims[i] == 1 ? 0 : own[i];
    }
}

static struct mgpu_matrix matrix(const struct mgpu_tensor *t, bool transpose)
{
    int64_t row = t->dims[t->rank - 1];
    return (struct mgpu_matrix){t->data, t->type, 0, transpose ? 1 : row, transpose ? row : 1};
}

static struct matmul matmul_of(const struct mgpu_launch *l)
{
    const struct mgpu_matmul_attrs *attrs = l->node->attrs;
    const struct mgpu_tensor *a = &l->in[0], *b = &l->in[1], *y = &l->out[0];
    struct matmul p = {.y = y, .m = y->dims[y->rank - 2], .n = y->dims[y->rank - 1]};
    p.k = a->dims[a->rank - (attrs->transpose_a ? 2 : 1)];
    p.a = matrix(a, attrs->transpose_a);
    p.b = matrix(b, attrs->transpose_b);
    p.c = matrix(y, false);
    batch_strides(a, y->rank, p.stride_a);
    batch_strides(b, y->rank, p.stride_b);
    p.slope = l->node->op == &mgpu_op_matmul_gelu_grad ? &l->in[2] : NULL;
    p.gelu = l->node->op == &mgpu_op_matmul_gelu ? &l->out[1] : NULL;
    p.bias = l->inputs > 2 && l->in[2].data && !p.slope ? &l->in[2] : NULL;
    p.relu = attrs->relu;
    return p;
}

static struct mgpu_matrix at_batch(const struct matmul *p, struct mgpu_matrix first,
                                   const int64_t *strides, int64_t batch)
{
    for (int axis = p->y->rank - 3; axis >= 0; axis--) {
        first.offset += batch % p->y->dims[axis] * strides[axis];
        batch /= p->y->dims[axis];
    }
    return first;
}

static void load_a(const void *context, int64_t batch, struct mgpu_span i, struct mgpu_span k,
                   double *tile)
{
    const struct matmul *p = context;
    struct mgpu_matrix a = at_batch(p, p->a, p->stride_a, batch);
    mgpu_matrix_load(&a, i, k, tile, MGPU_TILE_K);
}

static void load_b(const void *context, int64_t batch, struct mgpu_span k, struct mgpu_span j,
                   double *tile)
{
    const struct matmul *p = context;
    struct mgpu_matrix b = at_batch(p, p->b, p->stride_b, batch);
    mgpu_matrix_load(&b, k, j, tile, MGPU_TILE_N);
}

/* v with the end that it has at place `at` of y. */
static double ended(const struct matmul *p, double v, int64_t at)
{
    if (p->gelu && p->gelu->data)
        mgpu_ref_set(p->gelu->data, p->gelu->type, at, v);
    if (p->gelu)
        return mgpu_ref_gelu(v);
    if (p->slope)
        return v * mgpu_ref_gelu_slope(mgpu_ref_get(p->slope->data, p->slope->type, at));
    return p->relu && v < 0 ? 0 : v;
}

static void store(const void *context, int64_t batch, struct mgpu_span i, struct mgpu_span j,
                  const double *tile)
{
    const struct matmul *p = context;
    struct mgpu_matrix c = p->c;
    double results[MGPU_TILE_M * MGPU_TILE_N];
    c.offset = batch * p->m * p->n;
    for (int r = 0; r < i.count; r++)
        for (int k = 0; k < j.count; k++) {
            double v = tile[r * MGPU_TILE_N + k];
            v += p->bias ? mgpu_ref_get(p->bias->data, p->bias->type, j.first + k) : 0;
            results[r * MGPU_TILE_N + k] =
                ended(p, v, c.offset + (i.first + r) * p->n + j.first + k);
        }
    mgpu_matrix_store(&c, i, j, results, false);
}

/* Rows or columns of the first matrix, as the product sums over them. */
static void sum(const struct matmul *p, const struct mgpu_tensor *out, bool of_a)
{
    int64_t count = of_a ? p->m : p->n;
    for (int64_t i = 0; i < count; i++) {
        double total = 0;
        for (int64_t k = 0; k < p->k; k++)
            total += of_a ? mgpu_ref_get(p->a.data, p->a.type, i * p->a.row + k * p->a.column)
                          : mgpu_ref_get(p->b.data, p->b.type, k * p->b.row + i * p->b.column);
        mgpu_ref_set(out->data, out->type, i, total);
    }
}

static uint64_t load_int(const struct mgpu_matrix *from, int64_t i, int64_t j)
{
    return (uint64_t)mgpu_get_int(from->data, from->type,
                                  from->offset + i * from->row + j * from->column);
}

/* Unsigned arithmetic wraps, and its low bits are those of the signed product too. */
static void integer_product(const struct matmul *p, int64_t batch)
{
    struct mgpu_matrix a = at_batch(p, p->a, p->stride_a, batch);
    struct mgpu_matrix b = at_batch(p, p->b, p->stride_b, batch);
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) {
            uint64_t sum = 0;
            for (int64_t k = 0; k < p->k; k++)
                sum += load_int(&a, i, k) * load_int(&b, k, j);
            mgpu_set_int(p->c.data, p->c.type, (batch * p->m + i) * p->n + j, (int64_t)sum);
        }
}

static int run(const struct mgpu_launch *l)
{
    int64_t count = mgpu_tensor_count(&l->out[0]);
    if (!count)
        return 0;
    struct matmul p = matmul_of(l);
    struct mgpu_gemm gemm = {count / (p.m * p.n), p.m, p.n, p.k, &p, load_a, load_b, store};
    if (mgpu_is_float(p.c.type)) {
        mgpu_gemm_run(&gemm);
        return 0;
    }
#pragma omp parallel for if (gemm.batch > 1)
    for (int64_t batch = 0; batch < gemm.batch; batch++)
        integer_product(&p, batch);
    return 0;
}

static int run_sums(const struct mgpu_launch *l)
{
    const struct mgpu_matmul_attrs *attrs = l->node->attrs;
    struct matmul p = matmul_of(l);
    if (l->out[1].data)
        sum(&p, &l->out[1], attrs->sums == MGPU_SUMS_A);
    return run(l);
}

const struct mgpu_kernel mgpu_ref_matmul[] = {
    {.op = "matmul", .name = "ref", .run = run},
    {.op = "matmul_sums", .name = "ref", .run = run_sums},
    {.op = "matmul_gelu", .name = "ref", .run = run},
    {.op = "matmul_gelu_grad", .name = "ref", .run = run},
    {.op = NULL},
};
