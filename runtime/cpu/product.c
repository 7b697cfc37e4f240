#include "runtime/cpu/product.h"
#include "runtime/cpu/simd.h"

enum {
    ROWS = MGPU_PANEL_ROWS,
    COLUMNS = MGPU_PANEL_COLUMNS,
    LANES = 8,
    DEPTH = 512, /* steps along k at a time: panels of both stay in the nearest caches */
    HIGH = 72,   /* rows of a that are packed at a time: they stay in the second cache */
    WIDE = 1024, /* columns of b */
    LINE = 64 / sizeof(float),
};

typedef float lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(4)));
typedef int32_t order __attribute__((vector_size(LANES * sizeof(int32_t))));

bool mgpu_cpu_has_product(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           !__builtin_cpu_supports("avx512f");
#else
    return false;
#endif
}

/* ---- Packing --------------------------------------------------------------------------------- */

static int64_t panels(int64_t lines, int64_t width)
{
    return (lines + width - 1) / width;
}

int64_t mgpu_packed_rows(int64_t m, int64_t k)
{
    return panels(m, ROWS) * ROWS * k + LANES - ROWS; /* the last step is stored with all lanes */
}

int64_t mgpu_packed_columns(int64_t n, int64_t k)
{
    return panels(n, COLUMNS) * COLUMNS * k;
}

/* An 8 x 8 square, rows to columns: pairs, fours, halves. */
MGPU_INLINE void turn(lanes r[LANES])
{
    const order low = {0, 8, 1, 9, 4, 12, 5, 13}, high = {2, 10, 3, 11, 6, 14, 7, 15};
    const order low2 = {0, 1, 8, 9, 4, 5, 12, 13}, high2 = {2, 3, 10, 11, 6, 7, 14, 15};
    const order low4 = {0, 1, 2, 3, 8, 9, 10, 11}, high4 = {4, 5, 6, 7, 12, 13, 14, 15};
    lanes t[LANES], u[LANES];
#pragma GCC unroll 4
    for (int i = 0; i < LANES; i += 2) {
        t[i] = __builtin_shuffle(r[i], r[i + 1], low);
        t[i + 1] = __builtin_shuffle(r[i], r[i + 1], high);
    }
#pragma GCC unroll 2
    for (int i = 0; i < LANES; i += 4) {
        u[i] = __builtin_shuffle(t[i], t[i + 2], low2);
        u[i + 1] = __builtin_shuffle(t[i], t[i + 2], high2);
        u[i + 2] = __builtin_shuffle(t[i + 1], t[i + 3], low2);
        u[i + 3] = __builtin_shuffle(t[i + 1], t[i + 3], high2);
    }
#pragma GCC unroll 4
    for (int i = 0; i < LANES / 2; i++) {
        r[i] = __builtin_shuffle(u[i], u[i + 4], low4);
        r[i + 4] = __builtin_shuffle(u[i], u[i + 4], high4);
    }
}

/* Steps [from, k) of a panel of `width` lines, of which `count` are there. */
MGPU_INLINE void pack_each(const float *x, int64_t line, int64_t step, int width, int64_t count,
                           int64_t from, int64_t k, float *to)
{
    for (int64_t s = from; s < k; s++)
        for (int i = 0; i < width; i++)
            to[s * width + i] = i < count ? x[i * line + s * step] : 0;
}

/* A full panel whose lines are dense along k. What a square of a has beyond ROWS is overwritten by
 * the next step. */
MGPU_INLINE void pack_along(const float *x, int64_t line, int width, int64_t k, float *to)
{
    int64_t s = 0;
    for (; s + LANES <= k; s += LANES)
        for (int first = 0; first < width; first += LANES) {
            lanes r[LANES];
#pragma GCC unroll 8
            for (int i = 0; i < LANES; i++)
                r[i] =
                    first + i < width ? *(const lanes *)(x + (first + i) * line + s) : (lanes){0};
            turn(r);
#pragma GCC unroll 8
            for (int i = 0; i < LANES; i++)
                *(lanes *)(to + (s + i) * width + first) = r[i];
        }
    pack_each(x, line, 1, width, width, s, k, to);
}

/* A full panel whose lines lie side by side. */
MGPU_INLINE void pack_across(const float *x, int64_t step, int width, int64_t k, float *to)
{
    for (int64_t s = 0; s < k; s++)
#pragma GCC unroll 16
        for (int i = 0; i < width; i++)
            to[s * width + i] = x[s * step + i];
}

MGPU_INLINE void pack(const float *x, int64_t line, int64_t step, int width, int64_t count,
                      int64_t k, float *to)
{
    for (int64_t i = 0; i < count; i += width, x += width * line, to += width * k)
        if (count - i >= width && line == 1)
            pack_across(x, step, width, k, to);
        else if (count - i >= width && step == 1)
            pack_along(x, line, width, k, to);
        else
            pack_each(x, line, step, width, count - i, 0, k, to);
}

MGPU_SIMD void mgpu_pack_rows(struct mgpu_matrix_of a, int64_t m, int64_t k, float *to)
{
    pack(a.data, a.row, a.column, ROWS, m, k, to);
}

MGPU_SIMD void mgpu_pack_columns(struct mgpu_matrix_of b, int64_t n, int64_t k, float *to)
{
    pack(b.data, b.column, b.row, COLUMNS, n, k, to);
}

/* ---- Multiplying ----------------------------------------------------------------------------- */

MGPU_INLINE void store(lanes sum[ROWS][2], float *y, int64_t step, bool add)
{
#pragma GCC unroll 6
    for (int i = 0; i < ROWS; i++) {
        lanes *to = (lanes *)(y + i * step);
        to[0] = add ? to[0] + sum[i][0] : sum[i][0];
        to[1] = add ? to[1] + sum[i][1] : sum[i][1];
    }
}

/* At the edges of y. */
MGPU_INLINE void store_part(lanes sum[ROWS][2], int64_t rows, int64_t columns, float *y,
                            int64_t step, bool add)
{
    float all[ROWS][COLUMNS];
    store(sum, all[0], COLUMNS, false);
    for (int64_t i = 0; i < rows && i < ROWS; i++)
        for (int64_t j = 0; j < columns && j < COLUMNS; j++)
            y[i * step + j] = add ? y[i * step + j] + all[i][j] : all[i][j];
}

MGPU_INLINE void multiply_panels(const float *a, const float *b, int64_t k, lanes sum[ROWS][2])
{
#pragma GCC unroll 4
    for (int64_t s = 0; s < k; s++, a += ROWS, b += COLUMNS) {
        lanes left = ((const lanes *)b)[0], right = ((const lanes *)b)[1];
#pragma GCC unroll 6
        for (int i = 0; i < ROWS; i++) {
            sum[i][0] += a[i] * left;
            sum[i][1] += a[i] * right;
        }
    }
}

MGPU_SIMD void mgpu_multiply_packed(const float *a, const float *b, int64_t m, int64_t n, int64_t k,
                                    float *y, int64_t step, bool add)
{
    for (int64_t j = 0; j < n; j += COLUMNS)
        for (int64_t i = 0; i < m; i += ROWS) {
            lanes sum[ROWS][2] = {{{0}}};
            float *to = y + i * step + j;
            for (int r = 0; r < ROWS && add; r++)
                __builtin_prefetch(to + r * step, 1);
            multiply_panels(a + i * k, b + j * k, k, sum);
            if (m - i >= ROWS && n - j >= COLUMNS)
                store(sum, to, step, add);
            else
                store_part(sum, m - i, n - j, to, step, add);
        }
}

/* ---- The whole ------------------------------------------------------------------------------- */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Equal pieces of `size`, none larger than `most`, in whole units. */
static int64_t piece(int64_t size, int64_t most, int64_t unit)
{
    if (size <= 0)
        return unit;
    int64_t count = (size + most - 1) / most;
    return ((size + count - 1) / count + unit - 1) / unit * unit;
}

/* Floats of the packed piece of b, up to a cache line. */
static int64_t room_of_columns(int64_t n, int64_t k)
{
    int64_t count = mgpu_packed_columns(piece(n, WIDE, COLUMNS), piece(k, DEPTH, LANES));
    return (count + LINE - 1) / LINE * LINE;
}

int64_t mgpu_product_bytes(int64_t m, int64_t n, int64_t k)
{
    int64_t rows = mgpu_packed_rows(piece(m, HIGH, ROWS), piece(k, DEPTH, LANES));
    return (room_of_columns(n, k) + (rows + LINE - 1) / LINE * LINE) * (int64_t)sizeof(float);
}

static void product(struct mgpu_matrix_of a, struct mgpu_matrix_of b, int64_t m, int64_t n,
                    int64_t k, float *y, int64_t step, void *scratch)
{
    int64_t high = piece(m, HIGH, ROWS), wide = piece(n, WIDE, COLUMNS);
    int64_t deep = piece(k, DEPTH, LANES);
    float *columns = scratch, *rows = columns + room_of_columns(n, k);
    for (int64_t j = 0; j < n; j += wide)
        for (int64_t s = 0; s < k; s += deep) {
            int64_t width = least(wide, n - j), depth = least(deep, k - s);
            struct mgpu_matrix_of part = {b.data + s * b.row + j * b.column, b.row, b.column};
            mgpu_pack_columns(part, width, depth, columns);
            for (int64_t i = 0; i < m; i += high) {
                int64_t height = least(high, m - i);
                part = (struct mgpu_matrix_of){a.data + i * a.row + s * a.column, a.row, a.column};
                mgpu_pack_rows(part, height, depth, rows);
                mgpu_multiply_packed(rows, columns, height, width, depth, y + i * step + j, step,
                                     s > 0);
            }
        }
}

/* Panels of `width` lines, the part-th of `parts` of them all. */
static void cut(int64_t size, int width, int part, int parts, int64_t *begin, int64_t *end)
{
    int64_t all = panels(size, width);
    *begin = least(all * part / parts * width, size);
    *end = least(all * (part + 1) / parts * width, size);
}

void mgpu_product(struct mgpu_matrix_of a, struct mgpu_matrix_of b, int64_t m, int64_t n, int64_t k,
                  float *y, int64_t step, int part, int parts, void *scratch)
{
    int64_t begin, end;
    cut(n >= m ? n : m, n >= m ? COLUMNS : ROWS, part, parts, &begin, &end);
    if (n >= m) {
        b.data += begin * b.column;
        product(a, b, m, end - begin, k, y + begin, step, scratch);
    } else {
        a.data += begin * a.row;
        product(a, b, end - begin, n, k, y + begin * step, step, scratch);
    }
}

/* ---- In pieces ------------------------------------------------------------------------------- */

struct pieces {
    struct mgpu_matrix_of a, b;
    int64_t k, deep, high, wide; /* wide: columns whose panels are packed in their whole depth */
    int64_t step;                /* of y: not a power of two, or rows meet in the caches' sets */
    float *columns, *rows, *y;
    void (*use)(void *context, const struct mgpu_product_piece *piece);
    void *context;
};

static int64_t lines(int64_t floats)
{
    return (floats + LINE - 1) / LINE * LINE;
}

static struct pieces cut_pieces(int64_t m, int64_t n, int64_t k, float *scratch)
{
    enum { ROOM = WIDE * 1024 /* floats of packed columns */ };
    struct pieces p = {.k = k, .deep = piece(k, DEPTH, LANES), .high = piece(m, HIGH, ROWS)};
    p.wide = piece(n, k * WIDE > ROOM ? ROOM / k : WIDE, COLUMNS);
    p.step = p.wide + LINE;
    p.columns = scratch;
    p.rows = p.columns + lines(mgpu_packed_columns(p.wide, k));
    p.y = p.rows + lines(mgpu_packed_rows(p.high, p.deep));
    return p;
}

int64_t mgpu_pieces_bytes(int64_t m, int64_t n, int64_t k)
{
    struct pieces p = cut_pieces(m, n, k, NULL);
    return (lines(mgpu_packed_columns(p.wide, k)) + lines(mgpu_packed_rows(p.high, p.deep)) +
            lines(p.high * p.step)) *
           (int64_t)sizeof(float);
}

/* Rows [i, i + rows) of the columns that are packed. */
static void multiply_rows(const struct pieces *p, int64_t i, int64_t rows, int64_t columns)
{
    for (int64_t s = 0; s < p->k; s += p->deep) {
        int64_t depth = least(p->deep, p->k - s);
        const float *from = p->a.data + i * p->a.row + s * p->a.column;
        mgpu_pack_rows((struct mgpu_matrix_of){from, p->a.row, p->a.column}, rows, depth, p->rows);
        mgpu_multiply_packed(p->rows, p->columns + mgpu_packed_columns(columns, s), rows, columns,
                             depth, p->y, p->step, s > 0);
    }
}

static void run_pieces(const struct pieces *p, int64_t begin, int64_t end, int64_t left,
                       int64_t right)
{
    for (int64_t j = left; j < right; j += p->wide) {
        int64_t columns = least(p->wide, right - j);
        for (int64_t s = 0; s < p->k; s += p->deep) {
            const float *from = p->b.data + s * p->b.row + j * p->b.column;
            mgpu_pack_columns((struct mgpu_matrix_of){from, p->b.row, p->b.column}, columns,
                              least(p->deep, p->k - s),
                              p->columns + mgpu_packed_columns(columns, s));
        }
        for (int64_t i = begin; i < end; i += p->high) {
            int64_t rows = least(p->high, end - i);
            multiply_rows(p, i, rows, columns);
            p->use(p->context, &(struct mgpu_product_piece){p->y, p->step, i, rows, j, columns});
        }
    }
}

void mgpu_product_pieces(struct mgpu_matrix_of a, struct mgpu_matrix_of b, int64_t m, int64_t n,
                         int64_t k, int part, int parts, void *scratch,
                         void (*use)(void *context, const struct mgpu_product_piece *piece),
                         void *context)
{
    int64_t begin, end;
    struct pieces p = cut_pieces(m, n, k, scratch);
    p.a = a, p.b = b, p.use = use, p.context = context;
    cut(n >= m ? n : m, n >= m ? COLUMNS : ROWS, part, parts, &begin, &end);
    if (n >= m)
        run_pieces(&p, 0, m, begin, end);
    else
        run_pieces(&p, begin, end, 0, n);
}
