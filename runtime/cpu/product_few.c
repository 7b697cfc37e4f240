#include "runtime/cpu/product_few.h"

#include "runtime/cpu/cpu.h"
#include "runtime/cpu/simd.h"

enum {
    LANES = 8,
    ROWS = 4,    /* of a that share what is loaded of b */
    PAIR = 2,    /* lines of b that share what is loaded of a */
    DEEP = 1024, /* steps that are summed at a time: lines of b stay in the nearest cache */
    STEPS = 4,   /* rows of b that are added to y at a time */
    UNIT = 16,   /* columns: a cache line */
};

typedef float lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(4)));

bool mgpu_product_is_few(struct mgpu_matrix_of a, struct mgpu_matrix_of b, int64_t m, int64_t n,
                         int64_t k)
{
    enum { LARGE = 1 << 14 /* elements of the large matrix */ };
    if (m <= MGPU_FEW)
        return n * k >= LARGE && (b.column == 1 || (b.row == 1 && a.column == 1));
    return k <= MGPU_FEW && m * n >= LARGE && b.column == 1;
}

/* ---- Lines of b are dense along k: y is made of inner products --------------------------------
 */

/* to[i * step + j] of `rows` lines of a and `pair` lines of b, over k steps. */
MGPU_INLINE void inner(const float *a, int64_t a_row, const float *b, int64_t b_line, int64_t k,
                       int rows, int pair, float *to, int64_t step, bool add)
{
    lanes sum[ROWS][PAIR] = {{{0}}};
    int64_t s = 0;
    for (; s + LANES <= k; s += LANES)
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
            for (int j = 0; j < pair; j++)
                sum[i][j] +=
                    *(const lanes *)(a + i * a_row + s) * *(const lanes *)(b + j * b_line + s);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < pair; j++) {
            float all = add ? to[i * step + j] : 0;
            for (int l = 0; l < LANES; l++)
                all += sum[i][j][l];
            for (int64_t r = s; r < k; r++)
                all += a[i * a_row + r] * b[j * b_line + r];
            to[i * step + j] = all;
        }
}

MGPU_INLINE void inner_rows(const float *a, int64_t a_row, const float *b, int64_t b_line,
                            int64_t m, int64_t k, int pair, float *to, int64_t step, bool add)
{
    int64_t i = 0;
    for (; i + ROWS <= m; i += ROWS)
        inner(a + i * a_row, a_row, b, b_line, k, ROWS, pair, to + i * step, step, add);
    for (; i + 2 <= m; i += 2)
        inner(a + i * a_row, a_row, b, b_line, k, 2, pair, to + i * step, step, add);
    for (; i < m; i++)
        inner(a + i * a_row, a_row, b, b_line, k, 1, pair, to + i * step, step, add);
}

MGPU_SIMD static void inner_products(struct mgpu_matrix_of a, struct mgpu_matrix_of b, int64_t m,
                                     int64_t n, int64_t k, float *y, int64_t step)
{
    for (int64_t j = 0; j < n; j += PAIR)
        for (int64_t s = 0; s < k; s += DEEP) {
            int64_t depth = k - s < DEEP ? k - s : DEEP;
            const float *line = b.data + j * b.column + s;
            if (n - j >= PAIR)
                inner_rows(a.data + s, a.row, line, b.column, m, depth, PAIR, y + j, step, s > 0);
            else
                inner_rows(a.data + s, a.row, line, b.column, m, depth, 1, y + j, step, s > 0);
        }
}

/* ---- Rows of b are dense: they are added to y, some columns at a time -------------------------
 */

/* y += `steps` rows of b by their factors. */
MGPU_INLINE void add_rows(float *y, const float *b, int64_t b_row, const float *factor, int steps,
                          int64_t n, bool add)
{
#pragma GCC ivdep
    for (int64_t j = 0; j < n; j++) {
        float sum = add ? y[j] : 0;
#pragma GCC unroll 4
        for (int s = 0; s < steps; s++)
            sum += factor[s] * b[s * b_row + j];
        y[j] = sum;
    }
}

MGPU_INLINE void add_steps(struct mgpu_matrix_of a, struct mgpu_matrix_of b, int64_t m, int64_t n,
                           int64_t from, int steps, float *y, int64_t step)
{
    for (int64_t i = 0; i < m; i++) {
        float factor[STEPS];
        for (int s = 0; s < steps; s++)
            factor[s] = a.data[i * a.row + (from + s) * a.column];
        add_rows(y + i * step, b.data + from * b.row, b.row, factor, steps, n, from > 0);
    }
}

static void prefetch_rows(const float *b, int64_t b_row, int64_t n)
{
    for (int s = 0; s < STEPS; s++)
        for (int64_t j = 0; j < n; j += UNIT)
            __builtin_prefetch(b + s * b_row + j);
}

MGPU_SIMD static void add_products(struct mgpu_matrix_of a, struct mgpu_matrix_of b, int64_t m,
                                   int64_t n, int64_t k, float *y, int64_t step)
{
    int64_t s = 0;
    for (; s + STEPS <= k; s += STEPS) {
        if (s + 2 * STEPS <= k)
            prefetch_rows(b.data + (s + STEPS) * b.row, b.row, n);
        add_steps(a, b, m, n, s, STEPS, y, step);
    }
    for (; s < k; s++)
        add_steps(a, b, m, n, s, 1, y, step);
}

/* ---- Few steps: y is written once -------------------------------------------------------------
 */

MGPU_INLINE void outer_row(const float *a, int64_t a_column, struct mgpu_matrix_of b, int64_t n,
                           int64_t k, float *y)
{
    float factor[MGPU_FEW];
    for (int64_t s = 0; s < k; s++)
        factor[s] = a[s * a_column];
    int64_t j = 0;
    for (; j + 4 * LANES <= n; j += 4 * LANES) {
        lanes sum[4] = {{0}};
        for (int64_t s = 0; s < k; s++)
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++)
                sum[c] += factor[s] * *(const lanes *)(b.data + s * b.row + j + c * LANES);
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++)
            *(lanes *)(y + j + c * LANES) = sum[c];
    }
    for (; j < n; j++) {
        float sum = 0;
        for (int64_t s = 0; s < k; s++)
            sum += factor[s] * b.data[s * b.row + j];
        y[j] = sum;
    }
}

MGPU_SIMD static void outer_products(struct mgpu_matrix_of a, struct mgpu_matrix_of b, int64_t m,
                                     int64_t n, int64_t k, float *y, int64_t step)
{
    for (int64_t i = 0; i < m; i++)
        outer_row(a.data + i * a.row, a.column, b, n, k, y + i * step);
}

/* ---- The whole ------------------------------------------------------------------------------- */

/* The columns [begin, end), as many at a time as leave y and the rows of b in the nearest cache. */
static void by_columns(struct mgpu_matrix_of a, struct mgpu_matrix_of b, int64_t m, int64_t k,
                       int64_t begin, int64_t end, float *y, int64_t step)
{
    int64_t wide = m <= STEPS ? 1024 : 512;
    for (int64_t j = begin; j < end; j += wide) {
        struct mgpu_matrix_of part = {b.data + j, b.row, 1};
        add_products(a, part, m, end - j < wide ? end - j : wide, k, y + j, step);
    }
}

void mgpu_product_few(struct mgpu_matrix_of a, struct mgpu_matrix_of b, int64_t m, int64_t n,
                      int64_t k, float *y, int64_t step, int part, int parts)
{
    bool few_rows = m <= MGPU_FEW;
    int64_t size = few_rows ? n : m, units = (size + UNIT - 1) / UNIT;
    struct mgpu_range own = mgpu_cpu_part(units, part, parts);
    int64_t begin = own.begin * UNIT, end = own.end * UNIT < size ? own.end * UNIT : size;
    if (few_rows && b.column == 1) {
        by_columns(a, b, m, k, begin, end, y, step);
    } else if (few_rows) {
        b.data += begin * b.column;
        inner_products(a, b, m, end - begin, k, y + begin, step);
    } else {
        a.data += begin * a.row;
        outer_products(a, b, end - begin, n, k, y + begin * step, step);
    }
}
