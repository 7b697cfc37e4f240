/* Times chains of pointwise operations of backend `cpu`, in turns with copies of as many bytes as
 * the chain reads and writes, by as many threads: by memcpy, and with stores past the caches.
 *
 *     build/bench_pointwise [elements=4194304 [turns=20 [threads=1]]]
 *
 * Prints for each chain its least time, that of the better copy, and their ratio.
 */
#include "runtime/backend.h"
#include "runtime/base/status.h"
#include "runtime/cpu/cpu.h"
#include "runtime/ops/build.h"
#include "runtime/ops/pointwise.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

static void must(int rc)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "bench_pointwise: %s\n", mgpu_error());
    exit(EXIT_FAILURE);
}

/* Of one thread the time that it ran, so that what else runs here counts less. */
static double now(int threads)
{
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- The chains ------------------------------------------------------------------------------ */

static int number(struct mgpu_expr *e, double x)
{
    return mgpu_expr_number(e, MGPU_FLOAT, x);
}

static int add(struct mgpu_expr *e, int a, int b)
{
    return mgpu_expr_2(e, MGPU_X_ADD, a, b);
}

static int mul(struct mgpu_expr *e, int a, int b)
{
    return mgpu_expr_2(e, MGPU_X_MUL, a, b);
}

/* relu((3a + b)^2 - 1) * 0.5 */
static int arithmetic(struct mgpu_expr *e, const int *x)
{
    int y = add(e, mul(e, x[0], number(e, 3)), x[1]);
    y = add(e, mul(e, y, y), number(e, -1));
    return mul(e, mgpu_expr_2(e, MGPU_X_MAX, y, number(e, 0)), number(e, 0.5));
}

/* The same of one input. */
static int polynomial(struct mgpu_expr *e, const int *x)
{
    const int twice[] = {x[0], number(e, 2)};
    return arithmetic(e, twice);
}

/* dy where 0 < y < 6, and a sum: relu6 backward and a residual. */
static int mask(struct mgpu_expr *e, const int *x)
{
    int above = mgpu_expr_2(e, MGPU_X_LT, number(e, 0), x[0]);
    int below = mgpu_expr_2(e, MGPU_X_LT, x[0], number(e, 6));
    int y = mgpu_expr_where(e, mgpu_expr_2(e, MGPU_X_AND, above, below), x[1], number(e, 0));
    return add(e, mul(e, y, number(e, 0.5)), x[1]);
}

static int gelu(struct mgpu_expr *e, const int *x)
{
    int y = mgpu_expr_1(e, MGPU_X_ERF, mul(e, x[0], number(e, 0.70710678)));
    return mul(e, mul(e, x[0], add(e, y, number(e, 1))), number(e, 0.5));
}

static int gelu_tanh(struct mgpu_expr *e, const int *x)
{
    int y = mul(e, mul(e, mul(e, x[0], x[0]), x[0]), number(e, 0.044715));
    y = mgpu_expr_1(e, MGPU_X_TANH, mul(e, add(e, y, x[0]), number(e, 0.79788456)));
    return mul(e, mul(e, x[0], number(e, 0.5)), add(e, y, number(e, 1)));
}

static int softened(struct mgpu_expr *e, const int *x)
{
    int y = mgpu_expr_1(e, MGPU_X_EXP, mul(e, x[0], number(e, -0.5)));
    return mul(e, add(e, mul(e, y, number(e, 2)), number(e, 1)), x[0]);
}

static int swish(struct mgpu_expr *e, const int *x)
{
    int y = mul(e, x[0], mgpu_expr_1(e, MGPU_X_SIGMOID, mul(e, x[0], number(e, 1.5))));
    return mul(e, add(e, y, number(e, 1)), number(e, 2));
}

/* x[1] times the derivative of f by x[0]. */
static int derivative(struct mgpu_expr *e, const int *x, int (*f)(struct mgpu_expr *, const int *))
{
    bool zero = false;
    return mgpu_expr_derivative(e, f(e, x), 0, x[1], &zero);
}

static int swish_backward(struct mgpu_expr *e, const int *x)
{
    return derivative(e, x, swish);
}

static int gelu_backward(struct mgpu_expr *e, const int *x)
{
    return derivative(e, x, gelu);
}

static int gelu_tanh_backward(struct mgpu_expr *e, const int *x)
{
    return derivative(e, x, gelu_tanh);
}

/* dy y (1 - y) and dy (1 - y^2), of a sigmoid and a tanh y. */
static int sigmoid_backward(struct mgpu_expr *e, const int *x)
{
    int rest = mgpu_expr_2(e, MGPU_X_SUB, number(e, 1), x[0]);
    return mul(e, mul(e, x[1], x[0]), rest);
}

static int tanh_backward(struct mgpu_expr *e, const int *x)
{
    return mul(e, x[1], mgpu_expr_2(e, MGPU_X_SUB, number(e, 1), mul(e, x[0], x[0])));
}

static const struct chain {
    const char *name;
    int inputs;
    int (*make)(struct mgpu_expr *e, const int *inputs);
} chains[] = {
    {"arithmetic, 1 input", 1, polynomial},
    {"arithmetic, 2 inputs", 2, arithmetic},
    {"mask", 2, mask},
    {"exp", 1, softened},
    {"swish", 1, swish},
    {"gelu (erf)", 1, gelu},
    {"gelu (tanh)", 1, gelu_tanh},
    {"sigmoid backward", 2, sigmoid_backward},
    {"tanh backward", 2, tanh_backward},
    {"swish backward", 2, swish_backward},
    {"gelu (erf) backward", 2, gelu_backward},
    {"gelu (tanh) backward", 2, gelu_tanh_backward},
};

/* ---- Timing ---------------------------------------------------------------------------------- */

struct work {
    struct mgpu_launch launch;
    const struct mgpu_kernel *kernel;
    struct mgpu_tensor tensor[3];
};

static void make(struct work *w, struct mgpu_graph *g, const struct chain *c, int64_t count,
                 int threads, float *const *data)
{
    struct mgpu_dim size = mgpu_dim_const(count);
    struct mgpu_value *in[2], *y;
    struct mgpu_expr e;
    int x[2];
    mgpu_expr_begin(&e, c->inputs);
    for (int i = 0; i < c->inputs; i++) {
        in[i] = mgpu_graph_input(g, i ? "b" : "a", MGPU_FLOAT, 1, &size);
        x[i] = mgpu_expr_input(&e, i, MGPU_FLOAT);
        mgpu_tensor_of(&w->tensor[i], in[i], data[i]);
    }
    struct mgpu_pointwise_attrs attrs = {.expr = mgpu_expr_end(&e, c->make(&e, x), g->arena)};
    must(mgpu_graph_node(g, &mgpu_op_pointwise, &attrs, c->inputs, in, 1, &y));
    mgpu_tensor_of(&w->tensor[c->inputs], y, data[2]);
    w->kernel = mgpu_backend_kernel(&mgpu_backend_cpu, y->producer);
    w->launch = (struct mgpu_launch){.node = y->producer,
                                     .inputs = c->inputs,
                                     .outputs = 1,
                                     .in = w->tensor,
                                     .out = w->tensor + c->inputs,
                                     .threads = threads};
    void *state = NULL;
    if (w->kernel->prepare)
        must(w->kernel->prepare(y->producer, threads, false, &state));
    w->launch.state = state;
    int64_t bytes = w->kernel->workspace ? w->kernel->workspace(y->producer, threads, state) : 0;
    must(mgpu_alloc(&w->launch.workspace, (uint64_t)bytes, "the workspace"));
}

static void copy_past_caches(float *to, const float *from, size_t count)
{
#if defined(__x86_64__)
    for (size_t i = 0; i < count; i += 4)
        _mm_stream_ps(to + i, _mm_load_ps(from + i));
    _mm_sfence();
#else
    memcpy(to, from, count * sizeof *to);
#endif
}

static double copy(float *to, const float *from, size_t count, int threads, bool past)
{
    double start = now(threads);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        struct mgpu_range lines =
            mgpu_cpu_part((int64_t)count / 16, omp_get_thread_num(), omp_get_num_threads());
        size_t first = (size_t)lines.begin * 16, n = (size_t)lines.end * 16 - first;
        if (past)
            copy_past_caches(to + first, from + first, n);
        else
            memcpy(to + first, from + first, n * sizeof *to);
    }
    return now(threads) - start;
}

static void time_chain(const struct chain *c, int64_t count, int turns, int threads,
                       float *const *data)
{
    struct work w = {0};
    struct mgpu_graph *g = mgpu_graph_new();
    size_t moved = (size_t)count * (size_t)(c->inputs + 1) / 2;
    double ours = INFINITY, best = INFINITY;
    make(&w, g, c, count, threads, data);
    for (int i = 0; i < turns; i++) {
        double start = now(threads);
        must(w.kernel->run(&w.launch));
        ours = fmin(ours, now(threads) - start);
        best = fmin(best, copy(data[3], data[0], moved, threads, false));
        best = fmin(best, copy(data[3], data[0], moved, threads, true));
    }
    printf("%-22s %8.4f ms  copy %8.4f ms  %.2fx\n", c->name, 1e3 * ours, 1e3 * best, ours / best);
    if (w.kernel->release)
        w.kernel->release(w.launch.state);
    mgpu_free(w.launch.workspace);
    mgpu_graph_free(g);
}

int main(int argc, char **argv)
{
    int64_t count = argc > 1 ? atoll(argv[1]) : 1 << 22;
    int turns = argc > 2 ? atoi(argv[2]) : 20, threads = argc > 3 ? atoi(argv[3]) : 1;
    void *block;
    must(mgpu_alloc(&block, (uint64_t)count * 5 * sizeof(float), "the data"));
    float *all = block;
    float *data[] = {all, all + count, all + 2 * count, all + 3 * count};
    for (int64_t i = 0; i < 5 * count; i++)
        all[i] = (float)((i * 37) % 1001) / 250 - 2;
    for (size_t i = 0; i < sizeof chains / sizeof *chains; i++)
        time_chain(&chains[i], count, turns, threads, data);
    mgpu_free(block);
    return EXIT_SUCCESS;
}
