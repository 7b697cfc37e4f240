#include "runtime/ref/strided.h"

#include <string.h>

#include "runtime/ref/walk.h"

enum { TILE = 32, PARALLEL_BYTES = 1 << 18, CHUNKS = 64 };

/* The innermost work: a plane of rows x columns elements. */
struct plane {
    int64_t rows, columns;
    int64_t from_row, from_column, to_row, to_column;
};

#define DEFINE_PLANE(type)                                                                         \
    static void plane_##type(const struct plane *p, const type *from, type *to)                    \
    {                                                                                              \
        for (int64_t i = 0; i < p->rows; i++)                                                      \
            for (int64_t k = 0; k < p->columns; k++)                                               \
                to[i * p->to_row + k * p->to_column] = from[i * p->from_row + k * p->from_column]; \
    }
DEFINE_PLANE(uint8_t)
DEFINE_PLANE(uint16_t)
DEFINE_PLANE(uint32_t)
DEFINE_PLANE(uint64_t)

static void copy_plane(const struct plane *p, size_t size, const void *from, void *to)
{
    if (p->rows == 1 && p->from_column == 1 && p->to_column == 1)
        memcpy(to, from, (size_t)p->columns * size);
    else if (size == 1)
        plane_uint8_t(p, from, to);
    else if (size == 2)
        plane_uint16_t(p, from, to);
    else if (size == 4)
        plane_uint32_t(p, from, to);
    else
        plane_uint64_t(p, from, to);
}

/* Without axes of size 1, and with neighbours merged that are one run in both views. */
static void simplify(struct mgpu_strided *c)
{
    int rank = 0;
    for (int i = 0; i < c->rank; i++) {
        if (c->dims[i] == 1)
            continue;
        int last = rank - 1;
        if (rank && c->from_stride[last] == c->from_stride[i] * c->dims[i] &&
            c->to_stride[last] == c->to_stride[i] * c->dims[i])
            c->dims[last] *= c->dims[i];
        else {
            last = rank++;
            c->dims[last] = c->dims[i];
        }
        c->from_stride[last] = c->from_stride[i];
        c->to_stride[last] = c->to_stride[i];
    }
    c->rank = rank;
}

/* The axis along which `from` is contiguous when the last axis is not it, or -1. */
static int transposed_axis(const struct mgpu_strided *c)
{
    for (int i = c->rank - 2; i >= 0 && c->from_stride[c->rank - 1] != 1; i--)
        if (c->from_stride[i] == 1)
            return i;
    return -1;
}

static void add_axis(struct mgpu_walk *w, int64_t size, int64_t from, int64_t to)
{
    w->dims[w->rank] = size;
    w->stride[0][w->rank] = from;
    w->stride[1][w->rank++] = to;
}

static int64_t at_most(int64_t size, int64_t most)
{
    return size < most ? size : most;
}

/* What is walked over and the plane at each place. With a transposed axis both it and the last one
 * are cut into tiles, which are the last two axes of the walk. */
struct work {
    struct mgpu_walk walk;
    struct plane plane;
    int64_t row_size, column_size; /* of the whole axes; 0 rows: not tiled */
};

static void plan(struct work *w, const struct mgpu_strided *c)
{
    int last = c->rank - 1, tile = transposed_axis(c);
    memset(w, 0, sizeof *w);
    w->walk.operands = 2;
    for (int i = 0; i < last; i++)
        if (i != tile)
            add_axis(&w->walk, c->dims[i], c->from_stride[i], c->to_stride[i]);
    w->plane = (struct plane){.rows = 1, .columns = 1};
    if (last < 0)
        return;
    w->plane.columns = w->column_size = c->dims[last];
    w->plane.from_column = c->from_stride[last];
    w->plane.to_column = c->to_stride[last];
    if (tile < 0)
        return;
    w->row_size = c->dims[tile];
    w->plane.from_row = c->from_stride[tile];
    w->plane.to_row = c->to_stride[tile];
    add_axis(&w->walk, (w->row_size + TILE - 1) / TILE, TILE * w->plane.from_row,
             TILE * w->plane.to_row);
    add_axis(&w->walk, (w->column_size + TILE - 1) / TILE, TILE * w->plane.from_column,
             TILE * w->plane.to_column);
}

static void copy_here(const struct work *w, const struct mgpu_strided *c)
{
    struct plane p = w->plane;
    if (w->row_size) {
        const int64_t *tile = &w->walk.index[w->walk.rank - 2];
        p.rows = at_most(w->row_size - tile[0] * TILE, TILE);
        p.columns = at_most(w->column_size - tile[1] * TILE, TILE);
    }
    int64_t size = (int64_t)c->size;
    copy_plane(&p, c->size, (const char *)c->from + w->walk.at[0] * size,
               (char *)c->to + w->walk.at[1] * size);
}

void mgpu_strided_copy(const struct mgpu_strided *copy)
{
    struct mgpu_strided c = *copy;
    struct work plan_of_all;
    int64_t elements = 1;
    for (int i = 0; i < c.rank; i++)
        elements *= c.dims[i];
    if (!elements)
        return;
    simplify(&c);
    plan(&plan_of_all, &c);
    int64_t places = mgpu_walk_count(&plan_of_all.walk), chunks = at_most(places, CHUNKS);
    bool parallel = elements * (int64_t)c.size >= PARALLEL_BYTES && chunks > 1;
#pragma omp parallel for schedule(static) if (parallel)
    for (int64_t k = 0; k < chunks; k++) {
        struct work w = plan_of_all;
        int64_t first = places * k / chunks, end = places * (k + 1) / chunks;
        mgpu_walk_seek(&w.walk, first);
        for (int64_t i = first; i < end; i++, mgpu_walk_next(&w.walk))
            copy_here(&w, &c);
    }
}
