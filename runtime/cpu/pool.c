/* Pooling of float planes: windows are reduced along their columns first, whole rows of x at a
 * time, then along what is left of their rows. */
#include "runtime/ops/pool.h"
#include "runtime/cpu/pool_axis.h"
#include "runtime/cpu/rows.h"
#include "runtime/cpu/simd.h"

#include <float.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 1024 };  /* rows of a window at most; larger ones are left to ref */
enum { BLOCK = 2048 }; /* elements of a block's columns: they stay in the first cache */

struct pool {
    struct mgpu_pool_axis axis[AXES];
    int64_t in_count, out_count, taps; /* elements of a plane of x and of y; of a window */
    int32_t *tap[AXES];                /* where tap k stands from its window's start */
    float *count[AXES];                /* what an average divides by: a factor an axis */
    int64_t rows;                      /* of a window: kernel of D times kernel of H */
    int64_t *row;                      /* for each row of outputs: where these start in a plane */
};

/* ---- Geometry -------------------------------------------------------------------------------- */

static void fill_axis(struct pool *p, int k, bool padding)
{
    const struct mgpu_pool_axis *a = &p->axis[k];
    int64_t inner = k == D ? p->axis[H].kernel * p->axis[W].kernel : k == H ? p->axis[W].kernel : 1;
    p->count[k] = mgpu_xcalloc((size_t)a->out, sizeof(float));
    p->tap[k] = mgpu_xcalloc((size_t)p->taps, sizeof(int32_t));
    for (int64_t o = 0; o < a->out; o++)
        p->count[k][o] = (float)mgpu_pool_taps(a, o, padding);
    for (int64_t t = 0; t < p->taps; t++)
        p->tap[k][t] = (int32_t)(t / inner % a->kernel * a->dilation);
}

/* Where in a plane of x the row starts that output row (d, h) meets at taps (kd, kh), or -1. */
static int64_t find_row(const struct pool *p, int64_t d, int64_t h, int64_t kd, int64_t kh)
{
    const struct mgpu_pool_axis *a = &p->axis[D], *b = &p->axis[H];
    int64_t x = d * a->stride - a->before + kd * a->dilation;
    int64_t y = h * b->stride - b->before + kh * b->dilation;
    bool inside = x >= 0 && x < a->in && y >= 0 && y < b->in;
    return inside ? (x * b->in + y) * p->axis[W].in : -1;
}

static void fill_rows(struct pool *p)
{
    const struct mgpu_pool_axis *a = p->axis;
    int64_t *to = p->row = mgpu_xcalloc((size_t)(a[D].out * a[H].out * p->rows), sizeof *p->row);
    for (int64_t d = 0; d < a[D].out; d++)
        for (int64_t h = 0; h < a[H].out; h++)
            for (int64_t kd = 0; kd < a[D].kernel; kd++)
                for (int64_t kh = 0; kh < a[H].kernel; kh++)
                    *to++ = find_row(p, d, h, kd, kh);
}

static int prepare(const struct mgpu_node *node, int threads, bool exact, void **state)
{
    (void)threads, (void)exact;
    const struct mgpu_pool_attrs *a = node->attrs;
    struct pool *p = mgpu_xcalloc(1, sizeof *p);
    p->in_count = p->out_count = p->taps = 1;
    for (int k = 0; k < AXES; k++) {
        p->axis[k] = mgpu_pool_axis_of(a, k);
        p->in_count *= p->axis[k].in;
        p->out_count *= p->axis[k].out;
        p->taps *= p->axis[k].kernel;
    }
    p->rows = p->axis[D].kernel * p->axis[H].kernel;
    for (int k = 0; k < AXES; k++)
        fill_axis(p, k, a->count_include_pad);
    fill_rows(p);
    *state = p;
    return 0;
}

static void release(void *state)
{
    struct pool *p = state;
    for (int k = 0; p && k < AXES; k++) {
        free(p->tap[k]);
        free(p->count[k]);
    }
    if (p)
        free(p->row);
    free(p);
}

/* Row k of the windows of output row `row` in a plane of x, or NULL outside. */
static float *row_of(const struct pool *p, float *plane, int64_t row, int64_t k)
{
    int64_t at = p->row[row * p->rows + k];
    return at < 0 ? NULL : plane + at;
}

/* A run of output rows of one plane, with the thread's scratch: for each row of outputs a row as
 * wide as x of largest values or sums and where they are, and a row of final places. */
struct block {
    const struct pool *p;
    const struct mgpu_launch *l;
    int64_t plane, first, rows;
    float *value;
    int32_t *argument, *best;
};

static int64_t rows_a_block(const struct pool *p)
{
    int64_t rows = BLOCK / p->axis[W].in, all = p->axis[D].out * p->axis[H].out;
    return rows < 1 ? 1 : rows < all ? rows : all;
}

static int64_t scratch_elements(const struct pool *p)
{
    int64_t widest = p->axis[W].in > p->axis[W].out ? p->axis[W].in : p->axis[W].out;
    return (rows_a_block(p) * widest + 15) / 16 * 16;
}

static int64_t workspace(const struct mgpu_node *node, int threads, const void *state)
{
    (void)node;
    return threads * scratch_elements(state) * (int64_t)(sizeof(float) + 2 * sizeof(int32_t));
}

typedef void block_fn(const struct block *b);

/* All blocks of all planes; a thread has whole planes. */
static int each_block(const struct mgpu_launch *l, block_fn *run)
{
    const struct pool *p = l->state;
    int64_t planes = l->in[0].dims[0] * l->in[0].dims[1], rows = p->axis[D].out * p->axis[H].out;
    int64_t step = rows_a_block(p), elements = scratch_elements(p);
    int team = mgpu_cpu_team(l->threads, planes * p->in_count);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t plane = 0; plane < planes; plane++) {
        float *scratch = (float *)l->workspace + omp_get_thread_num() * 3 * elements;
        int32_t *arguments = (int32_t *)scratch + elements;
        for (int64_t row = 0; row < rows; row += step) {
            int64_t n = rows - row < step ? rows - row : step;
            run(&(struct block){p, l, plane, row, n, scratch, arguments, arguments + elements});
        }
    }
    return 0;
}

/* Whether the windows of a row lie side by side, so that rows follow one another in x as they do in
 * y and many are done as one. */
static bool tiles_rows(const struct mgpu_pool_axis *w)
{
    return w->before == 0 && w->out * w->stride == w->in &&
           (w->kernel - 1) * w->dilation < w->stride;
}

/* ---- max ------------------------------------------------------------------------------------- */

/* A row of windows' columns: row x[0] is taps first[0] on of every window, and so on; the largest
 * element of each column, the first of equal ones, and its tap. NaN counts as the largest. */
MGPU_SIMD static void max_column(float *value, int32_t *argument, int64_t n, int rows,
                                 const float *const *x, const int32_t *first)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) {
        value[i] = x[0][i];
        argument[i] = first[0];
    }
    for (int row = 1; row < rows; row++) {
        const float *from = x[row];
        int32_t k = first[row];
#pragma GCC ivdep
        for (int64_t i = 0; i < n; i++) {
            float v = from[i], most = value[i];
            bool take = (v > most) | ((v != v) & (most == most));
            value[i] = take ? v : most;
            argument[i] = take ? k : argument[i];
        }
    }
}

MGPU_INLINE void max_tap_by(int64_t stride, float *y, int32_t *best, const float *value,
                            const int32_t *argument, int64_t n, int32_t kw)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) {
        float v = value[i * stride], most = y[i];
        int32_t k = argument[i * stride] + kw;
        bool equal = (v == most) | ((v != v) & (most != most));
        bool larger = (v > most) | ((v != v) & (most == most));
        bool take =
            (argument[i * stride] >= 0) & ((best[i] < 0) | larger | (equal & (k < best[i])));
        y[i] = take ? v : most;
        best[i] = take ? k : best[i];
    }
}

/* Outputs take in column i * stride; of equal ones the earlier tap of the window stays. */
MGPU_SIMD static void max_tap(int64_t stride, float *y, int32_t *best, const float *value,
                              const int32_t *argument, int64_t n, int32_t kw)
{
    if (stride == 1)
        max_tap_by(1, y, best, value, argument, n, kw);
    else if (stride == 2)
        max_tap_by(2, y, best, value, argument, n, kw);
    else
        max_tap_by(stride, y, best, value, argument, n, kw);
}

static void clear_max(float *value, int32_t *argument, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        value[i] = -FLT_MAX; /* what a window over nothing but padding gives, as in ref */
        argument[i] = -1;
    }
}

/* The largest of each column of a row's windows; -1 where a column has no element. */
static void max_columns(const struct block *b, int64_t row, float *value, int32_t *argument)
{
    const struct pool *p = b->p;
    float *plane = (float *)b->l->in[0].data + b->plane * p->in_count;
    const float *x[ROWS];
    int32_t first[ROWS];
    int rows = 0;
    for (int64_t k = 0; k < p->rows; k++) {
        x[rows] = row_of(p, plane, row, k);
        first[rows] = (int32_t)(k * p->axis[W].kernel);
        rows += x[rows] != NULL;
    }
    if (rows > 0)
        max_column(value, argument, p->axis[W].in, rows, x, first);
    else
        clear_max(value, argument, p->axis[W].in);
}

/* `rows` rows of columns to as many rows of outputs. */
static void max_rows(const struct mgpu_pool_axis *w, const struct block *b, int64_t row,
                     int64_t rows, float *y, int32_t *best)
{
    const float *value = b->value + row * w->in;
    const int32_t *argument = b->argument + row * w->in;
    for (int64_t k = 0; k < w->kernel; k++) {
        struct mgpu_range o =
            rows > 1 ? (struct mgpu_range){0, rows * w->out} : mgpu_pool_outputs(w, k);
        int64_t x = o.begin * w->stride - w->before + k * w->dilation;
        max_tap(w->stride, y + o.begin, best + o.begin, value + x, argument + x, o.end - o.begin,
                (int32_t)k);
    }
}

static void max_block(const struct block *b)
{
    const struct mgpu_pool_axis *w = &b->p->axis[W];
    int64_t at = b->plane * b->p->out_count + b->first * w->out, n = b->rows * w->out;
    float *y = (float *)b->l->out[0].data + at;
    bool wanted = b->l->outputs > 1 && b->l->out[1].data;
    int32_t *best = wanted ? (int32_t *)b->l->out[1].data + at : b->best;
    for (int64_t row = 0; row < b->rows; row++)
        max_columns(b, b->first + row, b->value + row * w->in, b->argument + row * w->in);
    clear_max(y, best, n);
    int64_t step = tiles_rows(w) ? b->rows : 1;
    for (int64_t row = 0; row < b->rows; row += step)
        max_rows(w, b, row, step, y + row * w->out, best + row * w->out);
    for (int64_t i = 0; i < n; i++)
        best[i] = best[i] < 0 ? 0 : best[i];
}

static int run_max(const struct mgpu_launch *l)
{
    return each_block(l, max_block);
}

/* Windows of two that lie side by side: each element is the largest of its own window or is not. */
MGPU_SIMD static void max_grad_pairs(float *dx, const float *dy, const int32_t *argument, int64_t n,
                                     int32_t k)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) {
        dx[2 * i] = argument[i] == k ? dy[i] : 0;
        dx[2 * i + 1] = argument[i] == k + 1 ? dy[i] : 0;
    }
}

/* Whether every element of x is in one window. */
static bool tiles(const struct pool *p)
{
    bool all = true;
    for (int k = 0; k < AXES; k++) {
        const struct mgpu_pool_axis *a = &p->axis[k];
        all = all && a->before == 0 && a->kernel == a->stride && a->out * a->stride == a->in &&
              a->dilation == 1;
    }
    return all;
}

static void max_grad_tiles(const struct block *b)
{
    const struct pool *p = b->p;
    int64_t n = p->axis[W].out, at = b->plane * p->out_count + b->first * n;
    float *dx = (float *)b->l->out[0].data + b->plane * p->in_count;
    for (int64_t row = b->first; row < b->first + b->rows; row++, at += n)
        for (int64_t k = 0; k < p->rows; k++)
            max_grad_pairs(row_of(p, dx, row, k), (const float *)b->l->in[0].data + at,
                           (const int32_t *)b->l->in[1].data + at, n, (int32_t)(2 * k));
}

static void max_grad_row(const struct block *b, int64_t row, const float *dy,
                         const int32_t *argument, float *dx)
{
    const struct pool *p = b->p;
    const struct mgpu_pool_axis *a = p->axis;
    int64_t x0 = row / a[H].out * a[D].stride - a[D].before;
    int64_t y0 = row % a[H].out * a[H].stride - a[H].before;
    for (int64_t i = 0; i < a[W].out; i++) {
        int32_t k = argument[i];
        int64_t x = x0 + p->tap[D][k], y = y0 + p->tap[H][k];
        int64_t z = i * a[W].stride - a[W].before + p->tap[W][k];
        if (x >= 0 && x < a[D].in && y >= 0 && y < a[H].in && z >= 0 && z < a[W].in)
            dx[(x * a[H].in + y) * a[W].in + z] += dy[i];
    }
}

static void max_grad_block(const struct block *b)
{
    const struct pool *p = b->p;
    int64_t w = p->axis[W].out, at = b->plane * p->out_count + b->first * w;
    float *dx = (float *)b->l->out[0].data + b->plane * p->in_count;
    if (b->first == 0)
        memset(dx, 0, (size_t)p->in_count * sizeof *dx);
    for (int64_t row = 0; row < b->rows; row++, at += w)
        max_grad_row(b, b->first + row, (const float *)b->l->in[0].data + at,
                     (const int32_t *)b->l->in[1].data + at, dx);
}

static int run_max_grad(const struct mgpu_launch *l)
{
    const struct pool *p = l->state;
    bool pairs = p->axis[W].kernel == 2 && p->axis[W].out >= 8 && tiles(p);
    return each_block(l, pairs ? max_grad_tiles : max_grad_block);
}

/* ---- average --------------------------------------------------------------------------------- */

MGPU_SIMD static void add(float *to, const float *from, int64_t n)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        to[i] += from[i];
}

/* Sums take in x[i * stride]. */
MGPU_SIMD static void add_tap(int64_t stride, float *y, const float *x, int64_t n)
{
    if (stride == 2)
#pragma GCC ivdep
        for (int64_t i = 0; i < n; i++)
            y[i] += x[2 * i];
    else
        for (int64_t i = 0; i < n; i++)
            y[i] += x[i * stride];
}

/* And the other way: x[i * stride] takes in y[i]. */
MGPU_SIMD static void spread_tap(int64_t stride, float *x, const float *y, int64_t n)
{
    if (stride == 1)
#pragma GCC ivdep
        for (int64_t i = 0; i < n; i++)
            x[i] += y[i];
    else
        for (int64_t i = 0; i < n; i++)
            x[i * stride] += y[i];
}

/* to = from / count, where `rows` is the count's other factor. */
MGPU_SIMD static void divide(float *to, const float *from, const float *count, float rows,
                             int64_t n)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) {
        float c = rows * count[i];
        to[i] = c > 0 ? from[i] / c : 0;
    }
}

static float row_count(const struct pool *p, int64_t row)
{
    return p->count[D][row / p->axis[H].out] * p->count[H][row % p->axis[H].out];
}

/* A row of column sums into one row of sums. Few, wide windows are summed one by one. */
static void add_row(const struct mgpu_pool_axis *w, float *y, const float *x)
{
    if (w->out < 4 && w->kernel > w->out && w->dilation == 1) {
        for (int64_t o = 0; o < w->out; o++) {
            int64_t begin = o * w->stride - w->before, end = begin + w->kernel;
            begin = begin < 0 ? 0 : begin;
            end = end < w->in ? end : w->in;
            y[o] = end > begin ? (float)mgpu_cpu_sum(x + begin, end - begin) : 0;
        }
        return;
    }
    memset(y, 0, (size_t)w->out * sizeof *y);
    for (int64_t k = 0; k < w->kernel; k++) {
        struct mgpu_range o = mgpu_pool_outputs(w, k);
        const float *from = x + o.begin * w->stride - w->before + k * w->dilation;
        if (w->stride == 1)
            add(y + o.begin, from, o.end - o.begin);
        else
            add_tap(w->stride, y + o.begin, from, o.end - o.begin);
    }
}

static void average_row(const struct block *b, int64_t row)
{
    const struct pool *p = b->p;
    const struct mgpu_pool_axis *w = &p->axis[W];
    float *plane = (float *)b->l->in[0].data + b->plane * p->in_count;
    float *y = (float *)b->l->out[0].data + b->plane * p->out_count + row * w->out;
    memset(b->value, 0, (size_t)w->in * sizeof *b->value);
    for (int64_t k = 0; k < p->rows; k++) {
        const float *x = row_of(p, plane, row, k);
        if (x)
            add(b->value, x, w->in);
    }
    add_row(w, y, b->value);
    divide(y, y, p->count[W], row_count(p, row), w->out);
}

static void average_block(const struct block *b)
{
    for (int64_t row = b->first; row < b->first + b->rows; row++)
        average_row(b, row);
}

static int run_average(const struct mgpu_launch *l)
{
    return each_block(l, average_block);
}

/* dy / count of an output row, spread along the row, then added to every row of x it came from. */
static void average_grad_row(const struct block *b, int64_t row, float *dx)
{
    const struct pool *p = b->p;
    const struct mgpu_pool_axis *w = &p->axis[W];
    const float *dy = (const float *)b->l->in[0].data + b->plane * p->out_count + row * w->out;
    float *part = (float *)b->argument, *spread = b->value;
    divide(part, dy, p->count[W], row_count(p, row), w->out);
    memset(spread, 0, (size_t)w->in * sizeof *spread);
    for (int64_t k = 0; k < w->kernel; k++) {
        struct mgpu_range o = mgpu_pool_outputs(w, k);
        spread_tap(w->stride, spread + o.begin * w->stride - w->before + k * w->dilation,
                   part + o.begin, o.end - o.begin);
    }
    for (int64_t k = 0; k < p->rows; k++) {
        float *x = row_of(p, dx, row, k);
        if (x)
            add(x, spread, w->in);
    }
}

static void average_grad_block(const struct block *b)
{
    float *dx = (float *)b->l->out[0].data + b->plane * b->p->in_count;
    if (b->first == 0)
        memset(dx, 0, (size_t)b->p->in_count * sizeof *dx);
    for (int64_t row = b->first; row < b->first + b->rows; row++)
        average_grad_row(b, row, dx);
}

static int run_average_grad(const struct mgpu_launch *l)
{
    return each_block(l, average_grad_block);
}

/* ---- The table ------------------------------------------------------------------------------- */

static bool is_float(const struct mgpu_value *v)
{
    return v && v->type == MGPU_FLOAT && mgpu_value_count(v) > 0;
}

static bool accepts(const struct mgpu_node *node)
{
    const struct mgpu_pool_attrs *a = node->attrs;
    int64_t rows = 1;
    for (int k = 0; k < a->spatial - 1; k++)
        rows = a->kernel[k] > ROWS ? ROWS + 1 : rows * a->kernel[k];
    return is_float(node->input[0]) && is_float(node->output[0]) && rows < ROWS;
}

const struct mgpu_kernel mgpu_cpu_pool[] = {
    {"max_pool", "loops", accepts, prepare, release, workspace, run_max},
    {"max_pool_grad", "loops", accepts, prepare, release, workspace, run_max_grad},
    {"average_pool", "loops", accepts, prepare, release, workspace, run_average},
    {"average_pool_grad", "loops", accepts, prepare, release, workspace, run_average_grad},
    {NULL, NULL, NULL, NULL, NULL, NULL, NULL},
};
