/* transpose of 4- and 8-byte elements: axes that stay neighbours are merged, rows that stay rows
 * are copied, and the rest goes by square tiles, so that both sides are touched a cache line at a
 * time. */
#include "runtime/cpu/cpu.h"
#include "runtime/cpu/simd.h"
#include "runtime/ops/movement.h"

#include <stdlib.h>
#include <string.h>

enum { TILE = 16 };

/* The output's axes, merged; strides in x, in elements. */
struct plan {
    int rank;
    int64_t dims[MGPU_MAX_RANK], strides[MGPU_MAX_RANK];
    int row;       /* the axis of y along which x is contiguous, if not the last: tiles */
    size_t size;   /* bytes of an element */
    int64_t outer; /* tasks: all axes but the last and `row` */
};

static bool accepts(const struct mgpu_node *node)
{
    size_t size = mgpu_dtype_size(node->input[0]->type);
    return (size == 4 || size == 8) && mgpu_value_count(node->input[0]) > 0;
}

static void append(struct plan *p, int64_t size, int64_t stride)
{
    int last = p->rank - 1;
    if (size == 1)
        return;
    if (last >= 0 && p->strides[last] == stride * size) {
        p->dims[last] *= size;
        p->strides[last] = stride;
        return;
    }
    p->dims[p->rank] = size;
    p->strides[p->rank++] = stride;
}

static int prepare(const struct mgpu_node *node, int threads, bool exact, void **state)
{
    (void)threads, (void)exact;
    const struct mgpu_transpose_attrs *a = node->attrs;
    const struct mgpu_value *x = node->input[0];
    struct plan *p = mgpu_xcalloc(1, sizeof *p);
    int64_t strides[MGPU_MAX_RANK];
    for (int64_t i = x->rank - 1, step = 1; i >= 0; step *= x->dims[i--].value)
        strides[i] = step;
    for (int i = 0; i < x->rank; i++)
        append(p, x->dims[a->perm[i]].value, strides[a->perm[i]]);
    if (p->rank == 0)
        p->dims[p->rank] = 1, p->strides[p->rank++] = 1;
    p->size = mgpu_dtype_size(x->type);
    p->outer = 1;
    p->row = p->rank - 1;
    for (int i = 0; i < p->rank; i++)
        if (p->strides[i] == 1)
            p->row = i;
    for (int i = 0; i < p->rank - 1; i++)
        p->outer *= i == p->row ? 1 : p->dims[i];
    *state = p;
    return 0;
}

/* to[c * to_step + r] = from[r * from_step + c] for r < rows, c < columns. */
#define MOVE_TILE(name, type)                                                                      \
    MGPU_SIMD static void name(type *to, int64_t to_step, const type *from, int64_t from_step,     \
                               int64_t rows, int64_t columns)                                      \
    {                                                                                              \
        if (rows == TILE)                                                                          \
            for (int64_t c = 0; c < columns; c++)                                                  \
                _Pragma("GCC ivdep") for (int64_t r = 0; r < TILE; r++) to[c * to_step + r] =      \
                    from[r * from_step + c];                                                       \
        else                                                                                       \
            for (int64_t c = 0; c < columns; c++)                                                  \
                for (int64_t r = 0; r < rows; r++)                                                 \
                    to[c * to_step + r] = from[r * from_step + c];                                 \
    }
MOVE_TILE(move_4, uint32_t)
MOVE_TILE(move_8, uint64_t)

/* Where task `outer` starts in x and y. */
static void locate(const struct plan *p, int64_t outer, int64_t *x, int64_t *y)
{
    int64_t step = p->dims[p->rank - 1];
    *x = *y = 0;
    for (int i = p->rank - 2; i >= 0; i--) {
        if (i != p->row) {
            *x += outer % p->dims[i] * p->strides[i];
            *y += outer % p->dims[i] * step;
            outer /= p->dims[i];
        }
        step *= p->dims[i];
    }
}

/* Elements of y from one step along axis `row` to the next. */
static int64_t row_step(const struct plan *p)
{
    int64_t step = 1;
    for (int i = p->row + 1; i < p->rank; i++)
        step *= p->dims[i];
    return step;
}

/* One task's matrix, columns [begin, end) of x: y's axis `row` runs along them. */
static void move_matrix(const struct plan *p, const char *x, char *y, struct mgpu_range columns)
{
    int64_t rows = p->dims[p->rank - 1], from_step = p->strides[p->rank - 1], to_step = row_step(p);
    for (int64_t c = columns.begin; c < columns.end; c += TILE)
        for (int64_t r = 0; r < rows; r += TILE) {
            int64_t height = rows - r < TILE ? rows - r : TILE;
            int64_t width = columns.end - c < TILE ? columns.end - c : TILE;
            char *to = y + (size_t)(c * to_step + r) * p->size;
            const char *from = x + (size_t)(r * from_step + c) * p->size;
            if (p->size == 4)
                move_4((void *)to, to_step, (const void *)from, from_step, height, width);
            else
                move_8((void *)to, to_step, (const void *)from, from_step, height, width);
        }
}

static int run(const struct mgpu_launch *l)
{
    const struct plan *p = l->state;
    int64_t count = mgpu_tensor_count(&l->in[0]), columns = p->dims[p->row];
    int team = mgpu_cpu_team(l->threads, count);
    bool rows = p->row == p->rank - 1;
    int64_t strips = rows ? 1 : (columns + 4 * TILE - 1) / (4 * TILE);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t task = 0; task < p->outer * strips; task++) {
        int64_t x, y;
        locate(p, task / strips, &x, &y);
        const char *from = (const char *)l->in[0].data + (size_t)x * p->size;
        char *to = (char *)l->out[0].data + (size_t)y * p->size;
        if (rows)
            memcpy(to, from, (size_t)columns * p->size);
        else
            move_matrix(p, from, to, mgpu_cpu_part(columns, (int)(task % strips), (int)strips));
    }
    return 0;
}

static void release(void *state)
{
    free(state);
}

const struct mgpu_kernel mgpu_cpu_transpose[] = {
    {"transpose", "tiles", accepts, prepare, release, NULL, run},
    {NULL, NULL, NULL, NULL, NULL, NULL, NULL},
};
