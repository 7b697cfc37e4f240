/* Sums, means, largest and smallest elements of floats, accumulated in double.
 *
 * x is seen as [R0, K0, R1, K1]: reduced, kept, reduced, kept, any of them 1. The work is cut into
 * tasks by shape alone (runs of outputs, and pieces of the reduced places where outputs are few),
 * so the result does not depend on the thread count.
 */
#include "runtime/ops/reduce.h"
#include "runtime/cpu/cpu.h"
#include "runtime/cpu/simd.h"

#include <stdlib.h>
#include <string.h>

enum { LANES = 16, COLUMNS = 256, PIECES = 16, FEW = 16, WORTH = 1 << 16 };

struct reduction {
    int kind;
    int64_t dims[4];       /* R0, K0, R1, K1 */
    int64_t chunks, width; /* K1 is cut into `chunks` runs of up to `width` columns */
    int64_t pieces;        /* the reduced places are cut into so many */
};

/* Fills dims; false when the axes do not fit the pattern. */
static bool fit(const struct mgpu_node *node, int64_t dims[4])
{
    const struct mgpu_reduce_attrs *a = node->attrs;
    const struct mgpu_value *x = node->input[0];
    int at = 0;
    for (int k = 0; k < 4; k++)
        dims[k] = 1;
    for (int axis = 0; axis < x->rank; axis++) {
        bool reduced = a->axes >> axis & 1;
        if (x->dims[axis].value == 1)
            continue;
        if (reduced != (at % 2 == 0))
            at++;
        if (at > 3)
            return false;
        dims[at] *= x->dims[axis].value;
    }
    if (at < 2) { /* one run, or columns: the same as [1, 1, R, K] */
        dims[2] = dims[0], dims[3] = dims[1];
        dims[0] = dims[1] = 1;
    }
    return true;
}

static bool accepts(const struct mgpu_node *node)
{
    const struct mgpu_reduce_attrs *a = node->attrs;
    int64_t dims[4];
    return mgpu_cpu_all_float(node) && a->kind != MGPU_REDUCE_PROD && fit(node, dims);
}

static int prepare(const struct mgpu_node *node, int threads, bool exact, void **state)
{
    (void)threads, (void)exact;
    struct reduction *r = mgpu_xcalloc(1, sizeof *r);
    const struct mgpu_reduce_attrs *a = node->attrs;
    r->kind = a->kind;
    fit(node, r->dims);
    r->width = r->dims[3] < COLUMNS ? r->dims[3] : COLUMNS;
    r->chunks = (r->dims[3] + r->width - 1) / r->width;
    int64_t count = r->dims[0] * r->dims[2];
    bool few = r->dims[1] * r->chunks < FEW && count * r->dims[1] * r->dims[3] >= WORTH;
    r->pieces = !few ? 1 : count < PIECES ? count : PIECES;
    *state = r;
    return 0;
}

static int64_t workspace(const struct mgpu_node *node, int threads, const void *state)
{
    (void)node, (void)threads;
    const struct reduction *r = state;
    return r->pieces > 1 ? r->pieces * r->dims[1] * r->dims[3] * (int64_t)sizeof(double) : 0;
}

/* ---- The loops: NaN wins over every number --------------------------------------------------- */

static inline double larger(double a, double x)
{
    return x > a || x != x ? x : a;
}

static inline double smaller(double a, double x)
{
    return x < a || x != x ? x : a;
}

#define FOLD(formula)                                                                              \
    _Pragma("GCC ivdep") for (int64_t j = 0; j < n; j++)                                           \
    {                                                                                              \
        double a = acc[j], v = (double)x[j];                                                       \
        acc[j] = (formula);                                                                        \
    }

/* acc[j] takes in x[j]. */
MGPU_SIMD static void fold_columns(int kind, double *acc, const float *x, int64_t n)
{
    if (kind == MGPU_REDUCE_MAX)
        FOLD(larger(a, v))
    else if (kind == MGPU_REDUCE_MIN)
        FOLD(smaller(a, v))
    else
        FOLD(a + v)
}

#define FOLD_LANES(formula)                                                                        \
    for (; i + LANES <= n; i += LANES)                                                             \
        _Pragma("GCC ivdep") for (int j = 0; j < LANES; j++)                                       \
        {                                                                                          \
            double a = acc[j], v = (double)x[i + j];                                               \
            acc[j] = (formula);                                                                    \
        }

/* acc[i % LANES] takes in x[i]. */
MGPU_SIMD static void fold_run(int kind, double *lanes, const float *x, int64_t n)
{
    int64_t i = 0;
    double acc[LANES];
    for (int j = 0; j < LANES; j++)
        acc[j] = lanes[j];
    if (kind == MGPU_REDUCE_MAX)
        FOLD_LANES(larger(a, v))
    else if (kind == MGPU_REDUCE_MIN)
        FOLD_LANES(smaller(a, v))
    else
        FOLD_LANES(a + v)
    for (int j = 0; j < LANES; j++)
        lanes[j] = acc[j];
    fold_columns(kind, lanes, x + i, n - i);
}

static double start_of(int kind)
{
    return kind == MGPU_REDUCE_MAX ? -INFINITY : kind == MGPU_REDUCE_MIN ? INFINITY : 0;
}

static double join(int kind, double a, double b)
{
    return kind == MGPU_REDUCE_MAX ? larger(a, b) : kind == MGPU_REDUCE_MIN ? smaller(a, b) : a + b;
}

static double join_lanes(int kind, double *lanes)
{
    for (int half = LANES / 2; half; half /= 2)
        for (int j = 0; j < half; j++)
            lanes[j] = join(kind, lanes[j], lanes[j + half]);
    return lanes[0];
}

/* ---- Tasks ----------------------------------------------------------------------------------- */

/* One output whose reduced places [at, end) lie in runs of R1. */
static double reduce_runs(const struct reduction *r, const float *x, int64_t k0, int64_t at,
                          int64_t end)
{
    double lanes[LANES];
    for (int j = 0; j < LANES; j++)
        lanes[j] = start_of(r->kind);
    while (at < end) {
        int64_t r0 = at / r->dims[2], r1 = at % r->dims[2];
        int64_t n = r->dims[2] - r1 < end - at ? r->dims[2] - r1 : end - at;
        fold_run(r->kind, lanes, x + (r0 * r->dims[1] + k0) * r->dims[2] + r1, n);
        at += n;
    }
    return join_lanes(r->kind, lanes);
}

/* `n` neighbouring outputs from column k1: whole rows are folded into them. */
static void reduce_rows(const struct reduction *r, const float *x, int64_t k0, int64_t k1,
                        int64_t n, int64_t at, int64_t end, double *to)
{
    for (int64_t j = 0; j < n; j++)
        to[j] = start_of(r->kind);
    for (; at < end; at++) {
        int64_t r0 = at / r->dims[2], r1 = at % r->dims[2];
        int64_t row = (r0 * r->dims[1] + k0) * r->dims[2] + r1;
        fold_columns(r->kind, to, x + row * r->dims[3] + k1, n);
    }
}

/* Outputs from accumulated values. */
static void store(const struct reduction *r, const double *acc, int64_t n, float *y)
{
    double count = (double)(r->dims[0] * r->dims[2]);
    for (int64_t i = 0; i < n; i++)
        y[i] = (float)(r->kind == MGPU_REDUCE_MEAN ? acc[i] / count : acc[i]);
}

static void run_task(const struct reduction *r, const struct mgpu_launch *l, int64_t task)
{
    int64_t piece = task % r->pieces, chunk = task / r->pieces % r->chunks;
    int64_t k0 = task / r->pieces / r->chunks, k1 = chunk * r->width;
    int64_t n = r->dims[3] - k1 < r->width ? r->dims[3] - k1 : r->width;
    struct mgpu_range places = mgpu_cpu_part(r->dims[0] * r->dims[2], (int)piece, (int)r->pieces);
    double acc[COLUMNS];
    if (r->dims[3] == 1)
        acc[0] = reduce_runs(r, l->in[0].data, k0, places.begin, places.end);
    else
        reduce_rows(r, l->in[0].data, k0, k1, n, places.begin, places.end, acc);
    int64_t at = k0 * r->dims[3] + k1;
    if (r->pieces == 1)
        store(r, acc, n, (float *)l->out[0].data + at);
    else
        memcpy((double *)l->workspace + piece * r->dims[1] * r->dims[3] + at, acc,
               (size_t)n * sizeof *acc);
}

/* Joins the pieces, into the first. */
static void join_pieces(const struct reduction *r, double *partial)
{
    int64_t outputs = r->dims[1] * r->dims[3];
    for (int64_t piece = 1; piece < r->pieces; piece++)
        for (int64_t i = 0; i < outputs; i++)
            partial[i] = join(r->kind, partial[i], partial[piece * outputs + i]);
}

static int run(const struct mgpu_launch *l)
{
    const struct reduction *r = l->state;
    int64_t tasks = r->dims[1] * r->chunks * r->pieces;
    int team = mgpu_cpu_team(l->threads, mgpu_tensor_count(&l->in[0]));
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t task = 0; task < tasks; task++)
        run_task(r, l, task);
    if (r->pieces > 1) {
        join_pieces(r, l->workspace);
        store(r, l->workspace, r->dims[1] * r->dims[3], l->out[0].data);
    }
    return 0;
}

static void release(void *state)
{
    free(state);
}

/* ---- The first of the largest, along rows ---------------------------------------------------- */

static int64_t row_size(const struct mgpu_node *node)
{
    const struct mgpu_arg_reduce_attrs *a = node->attrs;
    return node->input[0]->dims[a->axis].value;
}

static bool accepts_arg(const struct mgpu_node *node)
{
    const struct mgpu_arg_reduce_attrs *a = node->attrs;
    const struct mgpu_value *x = node->input[0];
    int64_t inner = 1;
    for (int i = (int)a->axis + 1; i < x->rank; i++)
        inner *= x->dims[i].value;
    return x->type == MGPU_FLOAT && inner == 1 && !a->min && !a->last;
}

/* The first NaN is the largest, as in ref. */
MGPU_SIMD static int64_t arg_largest(const float *x, int64_t n)
{
    float most = -INFINITY;
    int none = 0;
    int64_t i = 0;
#pragma omp simd reduction(max : most) reduction(| : none)
    for (int64_t k = 0; k < n; k++) {
        most = x[k] > most ? x[k] : most;
        none |= x[k] != x[k];
    }
    while (none ? x[i] == x[i] : x[i] != most)
        i++;
    return i;
}

static int run_arg(const struct mgpu_launch *l)
{
    int64_t n = row_size(l->node), rows = mgpu_tensor_count(&l->out[0]), *to = l->out[0].data;
    const float *x = l->in[0].data;
    int team = mgpu_cpu_team(l->threads, rows * n);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t i = 0; i < rows; i++)
        to[i] = arg_largest(x + i * n, n);
    return 0;
}

const struct mgpu_kernel mgpu_cpu_reduce[] = {
    {"reduce", "loops", accepts, prepare, release, workspace, run},
    {"arg_reduce", "rows", accepts_arg, NULL, NULL, NULL, run_arg},
    {NULL, NULL, NULL, NULL, NULL, NULL, NULL},
};
