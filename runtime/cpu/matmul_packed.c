/* Matrix products by kernels of our own: the packed one (product.h), whose matrices of a batch are
 * dealt out among the threads or, where there are fewer, done by all; and one for few rows or steps
 * (product_few.h). */
#include "runtime/ops/matmul.h"
#include "runtime/cpu/cpu.h"
#include "runtime/cpu/product.h"
#include "runtime/cpu/product_few.h"

#include <omp.h>
#include <stdlib.h>

/* Rows, columns and depth that pay for packing; fewer columns fill a panel by half. */
enum { LEAST = 16, LEAST_COLUMNS = 8 };

struct packed {
    int64_t m, n, k, batch;
    struct mgpu_matrix_of a, b;                       /* steps of the matrices */
    int rank;                                         /* axes of the batch */
    int64_t dims[MGPU_MAX_RANK];                      /* theirs */
    int64_t of_a[MGPU_MAX_RANK], of_b[MGPU_MAX_RANK]; /* steps along them; 0: broadcast */
    int team;
    int64_t bytes; /* scratch of a thread */
};

static int64_t size_of(const struct mgpu_value *v, int from_last)
{
    return v->dims[v->rank - from_last].value;
}

/* Steps of an operand along the axes of y's batch. */
static void batch_steps(const struct mgpu_value *x, const struct mgpu_value *y, int64_t *steps)
{
    int shift = y->rank - x->rank;
    int64_t step = size_of(x, 1) * size_of(x, 2);
    for (int i = y->rank - 3; i >= 0; i--) {
        int64_t size = i < shift ? 1 : x->dims[i - shift].value;
        steps[i] = size == 1 ? 0 : step;
        step *= size;
    }
}

/* [..., M, K] x [K, N] with a stored as it stands is one product of [...*M, K]. */
static void join_batch(struct packed *p, bool transpose_a)
{
    bool shared = !transpose_a;
    for (int i = 0; i < p->rank; i++)
        shared = shared && (p->of_b[i] == 0 || p->dims[i] == 1) && (p->of_a[i] || p->dims[i] == 1);
    if (!shared)
        return;
    p->m *= p->batch;
    p->batch = 1;
    p->rank = 0;
}

static struct packed sizes(const struct mgpu_node *node)
{
    const struct mgpu_matmul_attrs *attrs = node->attrs;
    const struct mgpu_value *a = node->input[0], *b = node->input[1], *y = node->output[0];
    struct packed p = {.m = size_of(y, 2), .n = size_of(y, 1), .batch = 1, .rank = y->rank - 2};
    p.k = size_of(a, attrs->transpose_a ? 2 : 1);
    p.a.row = attrs->transpose_a ? 1 : p.k;
    p.a.column = attrs->transpose_a ? p.m : 1;
    p.b.row = attrs->transpose_b ? 1 : p.n;
    p.b.column = attrs->transpose_b ? p.k : 1;
    batch_steps(a, y, p.of_a);
    batch_steps(b, y, p.of_b);
    for (int i = 0; i < p.rank; i++)
        p.batch *= p.dims[i] = y->dims[i].value;
    join_batch(&p, attrs->transpose_a);
    return p;
}

static bool accepts(const struct mgpu_node *node)
{
    if (!mgpu_cpu_has_product() || !mgpu_cpu_all_float(node))
        return false;
    struct packed p = sizes(node);
    return p.m >= LEAST && p.n >= LEAST_COLUMNS && p.k >= LEAST;
}

static int prepare(const struct mgpu_node *node, int threads, bool exact, void **state)
{
    (void)exact;
    struct packed *p = mgpu_xcalloc(1, sizeof *p);
    *p = sizes(node);
    p->team = mgpu_cpu_team(threads, (int64_t)(node->op->cost(node).flops / 64));
    p->bytes = mgpu_product_bytes(p->m, p->n, p->k);
    *state = p;
    return 0;
}

static int64_t workspace(const struct mgpu_node *node, int threads, const void *state)
{
    (void)node, (void)threads;
    const struct packed *p = state;
    return p->team * p->bytes;
}

/* Of matrix `which` the part-th of `parts`. */
static void run_part(const struct mgpu_launch *l, int64_t which, int part, int parts, void *scratch)
{
    const struct packed *p = l->state;
    struct mgpu_matrix_of a = p->a, b = p->b;
    float *y = (float *)l->out[0].data + which * p->m * p->n;
    a.data = l->in[0].data;
    b.data = l->in[1].data;
    for (int i = p->rank - 1; i >= 0; which /= p->dims[i--]) {
        a.data += which % p->dims[i] * p->of_a[i];
        b.data += which % p->dims[i] * p->of_b[i];
    }
    mgpu_product(a, b, p->m, p->n, p->k, y, p->n, part, parts, scratch);
}

static void run_thread(const struct mgpu_launch *l, int me)
{
    const struct packed *p = l->state;
    void *scratch = (char *)l->workspace + me * p->bytes;
    struct mgpu_range own = mgpu_cpu_part(p->batch, me, p->team);
    if (p->batch >= p->team)
        for (int64_t i = own.begin; i < own.end; i++)
            run_part(l, i, 0, 1, scratch);
    else
        for (int64_t i = 0; i < p->batch; i++)
            run_part(l, i, me, p->team, scratch);
}

static int run(const struct mgpu_launch *l)
{
    const struct packed *p = l->state;
#pragma omp parallel num_threads(p->team) if (p->team > 1)
    run_thread(l, omp_get_thread_num());
    return 0;
}

static bool accepts_few(const struct mgpu_node *node)
{
    if (!mgpu_cpu_all_float(node))
        return false;
    struct packed p = sizes(node);
    return p.batch == 1 && mgpu_product_is_few(p.a, p.b, p.m, p.n, p.k);
}

static int prepare_few(const struct mgpu_node *node, int threads, bool exact, void **state)
{
    (void)exact;
    struct packed *p = mgpu_xcalloc(1, sizeof *p);
    *p = sizes(node);
    p->team = mgpu_cpu_team(threads, p->m * p->n + p->n * p->k);
    *state = p;
    return 0;
}

static int run_few(const struct mgpu_launch *l)
{
    const struct packed *p = l->state;
    struct mgpu_matrix_of a = p->a, b = p->b;
    a.data = l->in[0].data;
    b.data = l->in[1].data;
#pragma omp parallel num_threads(p->team) if (p->team > 1)
    mgpu_product_few(a, b, p->m, p->n, p->k, l->out[0].data, p->n, omp_get_thread_num(), p->team);
    return 0;
}

const struct mgpu_kernel mgpu_cpu_packed[] = {
    {"matmul", "packed", accepts, prepare, free, workspace, run},
    {"matmul", "few", accepts_few, prepare_few, free, NULL, run_few},
    {NULL, NULL, NULL, NULL, NULL, NULL, NULL},
};

unsigned mgpu_cpu_product_reordered(const struct mgpu_kernel *kernel)
{
    return kernel == &mgpu_cpu_packed[0] ? 3 : 0;
}
