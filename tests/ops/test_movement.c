/* reshape, transpose, expand, slice, pad and concat: odd shapes in every way of the harness, and
 * numbers by hand. */
#include "runtime/backend.h"
#include "runtime/graph/fold.h"
#include "runtime/ops/build.h"
#include "runtime/ops/movement.h"
#include "runtime/ref/ref.h"
#include "tests/ops/op_check.h"
#include "tests/test.h"

/* A size of factor * N. */
static struct mgpu_dim many(int64_t factor, int64_t batch)
{
    return mgpu_dim_mul(mgpu_dim_const(factor), mgpu_dim_symbol(MGPU_BATCH, batch));
}

static const struct mgpu_dim *dims_of(struct mgpu_arena *arena, int rank,
                                      const struct mgpu_dim *dims)
{
    return mgpu_arena_copy(arena, dims, sizeof *dims * (size_t)(rank + 1));
}

static const void *shape_attrs(struct mgpu_arena *arena, int rank, const struct mgpu_dim *dims)
{
    struct mgpu_shape_attrs a = {.rank = rank, .dims = dims_of(arena, rank, dims)};
    return mgpu_arena_copy(arena, &a, sizeof a);
}

#define K mgpu_dim_const
#define SHAPE(name, ...)                                                                           \
    static const void *name(struct mgpu_arena *arena, int64_t n)                                   \
    {                                                                                              \
        struct mgpu_dim dims[] = {__VA_ARGS__, K(0)};                                              \
        (void)n;                                                                                   \
        return shape_attrs(arena, (int)(sizeof dims / sizeof *dims) - 1, dims);                    \
    }

SHAPE(flatten, many(1, n), K(6))
SHAPE(merge_front, many(3, n), K(2))
SHAPE(split_front, K(3), many(1, n), K(2))
SHAPE(split_back, many(1, n), K(3), K(2))
SHAPE(merge_inner, K(3), many(2, n))
SHAPE(to_scalar_each, many(1, n))
SHAPE(baked, K(2), K(9))
SHAPE(across, many(2, n), K(3))
SHAPE(through, many(3, n), K(2), K(2))
SHAPE(grow_rows, many(1, n), K(3), K(4))
SHAPE(grow_copies, K(2), many(1, n), K(3))
SHAPE(grow_one, K(3), K(1), K(4))
SHAPE(grow_inner, many(1, n), K(4))

static const struct mgpu_check shapes[] = {
    {.name = "reshape [N,2,3] to [N,6]",
     .op = &mgpu_op_reshape,
     .attrs_at = flatten,
     .inputs = 1,
     .input = {{.rank = 3, .dims = {5, 2, 3}, .batch_axis = 0}}},
    {.name = "reshape [3,N,2] to [3*N,2]",
     .op = &mgpu_op_reshape,
     .attrs_at = merge_front,
     .inputs = 1,
     .input = {{.rank = 3, .dims = {3, 4, 2}, .batch_axis = 1}}},
    {.name = "reshape [N,3,2] to [N*3,2]",
     .op = &mgpu_op_reshape,
     .attrs_at = merge_front,
     .inputs = 1,
     .input = {{.rank = 3, .dims = {4, 3, 2}, .batch_axis = 0}}},
    {.name = "reshape [3*N,2] to [3,N,2]",
     .op = &mgpu_op_reshape,
     .attrs_at = split_front,
     .inputs = 1,
     .input = {{.rank = 2, .dims = {12, 2}, .batch_axis = 0, .outer = 3}}},
    {.name = "reshape [N*3,2] to [N,3,2]",
     .op = &mgpu_op_reshape,
     .attrs_at = split_back,
     .inputs = 1,
     .input = {{.rank = 2, .dims = {12, 2}, .batch_axis = 0, .inner = 3}}},
    {.name = "reshape [3,N*2] to [3*N,2]",
     .op = &mgpu_op_reshape,
     .attrs_at = merge_front,
     .inputs = 1,
     .input = {{.rank = 2, .dims = {3, 8}, .batch_axis = 1, .inner = 2}}},
    {.name = "reshape [3*N,2] to [3,N*2]",
     .op = &mgpu_op_reshape,
     .attrs_at = merge_inner,
     .inputs = 1,
     .input = {{.rank = 2, .dims = {12, 2}, .batch_axis = 0, .outer = 3}}},
    {.name = "reshape [3*N,4] to [3*N,2,2]",
     .op = &mgpu_op_reshape,
     .attrs_at = through,
     .inputs = 1,
     .input = {{.rank = 2, .dims = {12, 4}, .batch_axis = 0, .outer = 3}}},
    {.name = "reshape [1,N,1] to [N]",
     .op = &mgpu_op_reshape,
     .attrs_at = to_scalar_each,
     .inputs = 1,
     .input = {{.rank = 3, .dims = {1, 3, 1}, .batch_axis = 1}}},
    {.name = "reshape [3,N] read as [N,3]: samples are torn apart",
     .op = &mgpu_op_reshape,
     .attrs_at = flatten,
     .inputs = 1,
     .input = {{.rank = 2, .dims = {6, 5}, .batch_axis = 1}},
     .mixes = true},
    {.name = "reshape [N,2,3] to a baked [2,9]",
     .op = &mgpu_op_reshape,
     .attrs_at = baked,
     .inputs = 1,
     .input = {{.rank = 3, .dims = {3, 2, 3}, .batch_axis = 0}},
     .mixes = true},
    {.name = "reshape [3*N,2] to [2*N,3]: the three parts do not fit two",
     .op = &mgpu_op_reshape,
     .attrs_at = across,
     .inputs = 1,
     .input = {{.rank = 2, .dims = {12, 2}, .batch_axis = 0, .outer = 3}},
     .mixes = true},
    {.name = "expand [N,1,4] to [N,3,4]",
     .op = &mgpu_op_expand,
     .attrs_at = grow_rows,
     .inputs = 1,
     .input = {{.rank = 3, .dims = {3, 1, 4}, .batch_axis = 0}}},
    {.name = "expand [N,3] to [2,N,3]",
     .op = &mgpu_op_expand,
     .attrs_at = grow_copies,
     .inputs = 1,
     .input = {{.rank = 2, .dims = {3, 3}, .batch_axis = 0}}},
    {.name = "expand [4] to [N,4]",
     .op = &mgpu_op_expand,
     .attrs_at = grow_inner,
     .inputs = 1,
     .batch = 3,
     .input = {{.rank = 1, .dims = {4}, .batch_axis = -1}}},
    {.name = "expand [1,4] to [N,4]",
     .op = &mgpu_op_expand,
     .attrs_at = grow_inner,
     .inputs = 1,
     .batch = 3,
     .input = {{.rank = 2, .dims = {1, 4}, .batch_axis = -1}}},
    {.name = "expand [1,1] to [3,1,4]",
     .op = &mgpu_op_expand,
     .attrs_at = grow_one,
     .inputs = 1,
     .input = {{.rank = 2, .dims = {1, 1}, .batch_axis = -1}}},
    {.name = NULL},
};

#define PERM(...)                                                                                  \
    &(struct mgpu_transpose_attrs)                                                                 \
    {                                                                                              \
        .perm = { __VA_ARGS__ }                                                                    \
    }

static const struct mgpu_check transposes[] = {
    {.name = "bits of int32 as float",
     .op = &mgpu_op_bit_cast,
     .attrs = &(struct mgpu_bit_cast_attrs){.type = MGPU_FLOAT},
     .inputs = 1,
     .input = {{.rank = 2,
                .dims = {3, 4},
                .batch_axis = 0,
                .type = MGPU_INT32,
                .low = 0x3f800000,
                .high = 0x40000000}}},
    {.name = "transpose plane",
     .op = &mgpu_op_transpose,
     .attrs = PERM(1, 0),
     .inputs = 1,
     .input = {{.rank = 2, .dims = {5, 3}, .batch_axis = 0}}},
    {.name = "transpose with an axis of 1",
     .op = &mgpu_op_transpose,
     .attrs = PERM(3, 1, 0, 2),
     .inputs = 1,
     .input = {{.rank = 4, .dims = {3, 1, 4, 2}, .batch_axis = 2}}},
    {.name = "transpose of flattened parts",
     .op = &mgpu_op_transpose,
     .attrs = PERM(2, 0, 1),
     .inputs = 1,
     .input = {{.rank = 3, .dims = {6, 2, 3}, .batch_axis = 0, .outer = 2}}},
    {.name = "transpose beyond one tile",
     .op = &mgpu_op_transpose,
     .attrs = PERM(0, 2, 1),
     .inputs = 1,
     .input = {{.rank = 3, .dims = {2, 35, 33}, .batch_axis = 0}}},
    {.name = NULL},
};

/* ---- slices and pads ------------------------------------------------------------------------ */

static const void *slice_attrs(struct mgpu_arena *arena, const int64_t *start, const int64_t *step,
                               int rank, const struct mgpu_dim *size)
{
    struct mgpu_slice_attrs a = {.size = dims_of(arena, rank, size)};
    for (int i = 0; i < rank; i++) {
        a.start[i] = start[i];
        a.step[i] = step[i];
    }
    return mgpu_arena_copy(arena, &a, sizeof a);
}

#define LIST(...)                                                                                  \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define SLICE(name, start_, step_, ...)                                                            \
    static const void *name(struct mgpu_arena *arena, int64_t n)                                   \
    {                                                                                              \
        int64_t start[] = start_, step[] = step_;                                                  \
        struct mgpu_dim size[] = {__VA_ARGS__, K(0)};                                              \
        (void)n;                                                                                   \
        return slice_attrs(arena, start, step, (int)(sizeof start / sizeof *start), size);         \
    }

SLICE(inside, LIST(0, 1, 4), LIST(1, 2, -2), many(1, n), K(2), K(3))
SLICE(second_part, LIST(n, 0), LIST(1, 1), many(1, n), K(3))
SLICE(last_parts, LIST(n, 0), LIST(1, 1), many(2, n), K(3))
SLICE(first_rows, LIST(0, 0), LIST(1, 1), K(2), K(3))
SLICE(turned, LIST(n - 1, 0), LIST(-1, 1), many(1, n), K(3))
SLICE(first_positions, LIST(0, 0), LIST(1, 1), many(1, n), K(2))

static const struct mgpu_check slices[] = {
    {.name = "slice with steps",
     .op = &mgpu_op_slice,
     .attrs_at = inside,
     .inputs = 1,
     .input = {{.rank = 3, .dims = {3, 5, 5}, .batch_axis = 0}}},
    {.name = "slice of one of two stacked batches",
     .op = &mgpu_op_slice,
     .attrs_at = second_part,
     .inputs = 1,
     .input = {{.rank = 2, .dims = {8, 3}, .batch_axis = 0, .outer = 2}}},
    {.name = "slice of two of three stacked batches",
     .op = &mgpu_op_slice,
     .attrs_at = last_parts,
     .inputs = 1,
     .input = {{.rank = 2, .dims = {12, 3}, .batch_axis = 0, .outer = 3}}},
    {.name = "slice of the first samples",
     .op = &mgpu_op_slice,
     .attrs_at = first_rows,
     .inputs = 1,
     .input = {{.rank = 2, .dims = {4, 3}, .batch_axis = 0}},
     .mixes = true},
    {.name = "slice that turns the batch around",
     .op = &mgpu_op_slice,
     .attrs_at = turned,
     .inputs = 1,
     .input = {{.rank = 2, .dims = {4, 3}, .batch_axis = 0}},
     .mixes = true},
    {.name = "slice of a table down to N rows",
     .op = &mgpu_op_slice,
     .attrs_at = first_positions,
     .inputs = 1,
     .batch = 3,
     .input = {{.rank = 2, .dims = {5, 2}, .batch_axis = -1}},
     .mixes = true},
    {.name = NULL},
};

static const void *put_second(struct mgpu_arena *arena, int64_t n)
{
    struct mgpu_dim dims[] = {many(3, n), K(3)};
    struct mgpu_slice_grad_attrs a = {
        .start = {n, 1}, .step = {1, 2}, .rank = 2, .dims = dims_of(arena, 1, dims)};
    return mgpu_arena_copy(arena, &a, sizeof a);
}

static const void *pad_back(struct mgpu_arena *arena, int64_t n)
{
    struct mgpu_dim dims[] = {many(1, n), K(4)};
    struct mgpu_pad_grad_attrs a = {.mode = MGPU_PAD_REFLECT,
                                    .before = {0, 5},
                                    .after = {0, -1},
                                    .rank = 2,
                                    .dims = dims_of(arena, 1, dims)};
    return mgpu_arena_copy(arena, &a, sizeof a);
}

#define PAD(mode_, before_, after_)                                                                \
    &(struct mgpu_pad_attrs)                                                                       \
    {                                                                                              \
        .mode = mode_, .before = before_, .after = after_                                          \
    }

static const struct mgpu_check pads[] = {
    {.name = "slice_grad",
     .op = &mgpu_op_slice_grad,
     .attrs_at = put_second,
     .inputs = 1,
     .input = {{.rank = 2, .dims = {4, 1}, .batch_axis = 0}}},
    {.name = "pad with a value",
     .op = &mgpu_op_pad,
     .attrs = PAD(MGPU_PAD_CONSTANT, LIST(0, 2, 1), LIST(0, 0, 3)),
     .inputs = 2,
     .input = {{.rank = 3, .dims = {3, 2, 4}, .batch_axis = 0}, {.rank = 0}}},
    {.name = "pad on one side, cut on the other",
     .op = &mgpu_op_pad,
     .attrs = PAD(MGPU_PAD_CONSTANT, LIST(0, -1, 2), LIST(0, 2, -3)),
     .inputs = 1,
     .input = {{.rank = 3, .dims = {3, 2, 4}, .batch_axis = 0}}},
    {.name = "pad the batch",
     .op = &mgpu_op_pad,
     .attrs = PAD(MGPU_PAD_CONSTANT, LIST(1, 0), LIST(0, 0)),
     .inputs = 1,
     .input = {{.rank = 2, .dims = {3, 2}, .batch_axis = 0}},
     .mixes = true},
    {.name = "pad by reflection, more than the size",
     .op = &mgpu_op_pad,
     .attrs = PAD(MGPU_PAD_REFLECT, LIST(0, 5, 1), LIST(0, 1, 0)),
     .inputs = 1,
     .input = {{.rank = 3, .dims = {3, 3, 2}, .batch_axis = 0}}},
    {.name = "pad by reflection, size 1",
     .op = &mgpu_op_pad,
     .attrs = PAD(MGPU_PAD_REFLECT, LIST(2, 0), LIST(1, 0)),
     .inputs = 1,
     .input = {{.rank = 2, .dims = {1, 3}, .batch_axis = 1}}},
    {.name = "pad by the edge",
     .op = &mgpu_op_pad,
     .attrs = PAD(MGPU_PAD_EDGE, LIST(2, 0, 1), LIST(1, 0, -1)),
     .inputs = 1,
     .input = {{.rank = 3, .dims = {2, 3, 3}, .batch_axis = 1}}},
    {.name = "pad around",
     .op = &mgpu_op_pad,
     .attrs = PAD(MGPU_PAD_WRAP, LIST(0, 4), LIST(0, 2)),
     .inputs = 1,
     .input = {{.rank = 2, .dims = {3, 3}, .batch_axis = 0}}},
    {.name = "pad_grad",
     .op = &mgpu_op_pad_grad,
     .attrs_at = pad_back,
     .inputs = 1,
     .input = {{.rank = 2, .dims = {3, 8}, .batch_axis = 0}}},
    {.name = NULL},
};

#define CONCAT(axis_)                                                                              \
    &(struct mgpu_concat_attrs)                                                                    \
    {                                                                                              \
        .axis = axis_                                                                              \
    }

static const struct mgpu_check concats[] = {
    {.name = "concat of features",
     .op = &mgpu_op_concat,
     .attrs = CONCAT(1),
     .inputs = 3,
     .input = {{.rank = 3, .dims = {3, 2, 2}, .batch_axis = 0},
               {.rank = 3, .dims = {3, 1, 2}, .batch_axis = 0},
               {.rank = 3, .dims = {3, 3, 2}, .batch_axis = 0}}},
    {.name = "concat of one",
     .op = &mgpu_op_concat,
     .attrs = CONCAT(0),
     .inputs = 1,
     .input = {{.rank = 1, .dims = {3}, .batch_axis = 0}}},
    {.name = "concat of two batches",
     .op = &mgpu_op_concat,
     .attrs = CONCAT(0),
     .inputs = 2,
     .input = {{.rank = 2, .dims = {4, 3}, .batch_axis = 0},
               {.rank = 2, .dims = {4, 3}, .batch_axis = 0}}},
    {.name = "concat of batches that are stacked already",
     .op = &mgpu_op_concat,
     .attrs = CONCAT(1),
     .inputs = 2,
     .input = {{.rank = 2, .dims = {2, 12}, .batch_axis = 1, .outer = 2, .inner = 2},
               {.rank = 2, .dims = {2, 12}, .batch_axis = 1, .outer = 2, .inner = 2}}},
    {.name = "concat of batches in another order",
     .op = &mgpu_op_concat,
     .attrs = CONCAT(0),
     .inputs = 2,
     .input = {{.rank = 2, .dims = {6, 3}, .batch_axis = 0, .outer = 2},
               {.rank = 2, .dims = {6, 3}, .batch_axis = 0, .inner = 2}},
     .mixes = true},
    {.name = "concat of a batch and a token",
     .op = &mgpu_op_concat,
     .attrs = CONCAT(0),
     .inputs = 2,
     .input = {{.rank = 2, .dims = {4, 3}, .batch_axis = 0},
               {.rank = 2, .dims = {1, 3}, .batch_axis = -1}},
     .mixes = true},
    {.name = NULL},
};

/* ---- numbers by hand ------------------------------------------------------------------------ */

static void check_pad(int mode, int64_t before, int64_t after, int count, const double *want)
{
    static const double x[] = {1, 2, 3};
    struct mgpu_pad_attrs a = {.mode = mode, .before = {before}, .after = {after}};
    struct mgpu_check row = {.name = "pad values",
                             .op = &mgpu_op_pad,
                             .attrs = &a,
                             .inputs = 1,
                             .input = {{.rank = 1, .dims = {3}, .batch_axis = -1, .values = x}}};
    CHECK(mgpu_op_value(&row, want, count) == 0);
}

static void test_pad_values(void)
{
    check_pad(MGPU_PAD_REFLECT, 2, 2, 7, (double[]){3, 2, 1, 2, 3, 2, 1});
    check_pad(MGPU_PAD_EDGE, 1, 2, 6, (double[]){1, 1, 2, 3, 3, 3});
    check_pad(MGPU_PAD_WRAP, 2, 1, 6, (double[]){2, 3, 1, 2, 3, 1});
    check_pad(MGPU_PAD_CONSTANT, -1, 2, 4, (double[]){2, 3, 0, 0});
    check_pad(MGPU_PAD_REFLECT, -1, 2, 4, (double[]){2, 3, 2, 3});
}

/* Movement of every element size, folded. */
static void test_types(void)
{
    static const enum mgpu_dtype types[] = {MGPU_BOOL,  MGPU_INT8,   MGPU_FLOAT16, MGPU_BFLOAT16,
                                            MGPU_INT32, MGPU_UINT64, MGPU_DOUBLE};
    mgpu_fold_set(mgpu_ref_fold);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct mgpu_graph *g = mgpu_graph_new();
        struct mgpu_dim dims[] = {K(2), K(3)}, wide[] = {K(2), K(3), K(2)};
        char data[48];
        for (int k = 0; k < 6; k++)
            mgpu_set_int(data, types[i], k, k % 2);
        struct mgpu_value *x = mgpu_graph_constant(g, "x", types[i], 2, dims, data, NULL);
        struct mgpu_value *y = mgpu_transpose(g, x, (int[]){1, 0}); /* 0 1, 1 0, 0 1 */
        y = mgpu_slice(g, y, (int64_t[]){2, 0}, (int64_t[]){-1, 1},
                       (struct mgpu_dim[]){K(2), K(2)}); /* 0 1, 1 0 */
        y = mgpu_concat(g, 1, 2, (struct mgpu_value *[]){y, mgpu_slice_axis(g, y, 1, 0, K(1))});
        y = mgpu_broadcast(g, mgpu_reshape(g, y, 3, (struct mgpu_dim[]){K(2), K(3), K(1)}), 3,
                           wide);
        static const int want[] = {0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1};
        CHECK(y && y->kind == MGPU_VALUE_CONSTANT);
        for (int k = 0; y && k < 12; k++)
            CHECK_(mgpu_get_int(y->data, y->type, k) == want[k], "%s: element %d",
                   mgpu_dtype_name(types[i]), k);
        mgpu_graph_free(g);
    }
}

/* A batch of 1 is not a size of 1: the nodes stay, or the split of the batch would be lost. */
static void test_monomials(void)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim row[] = {K(1), K(3)}, batch[] = {many(1, 1), K(3)};
    struct mgpu_value *x = mgpu_graph_input(g, "x", MGPU_FLOAT, 2, row);
    struct mgpu_value *b = mgpu_graph_input(g, "b", MGPU_FLOAT, 2, batch);
    CHECK(mgpu_broadcast(g, x, 2, row) == x);
    CHECK(mgpu_broadcast(g, x, 2, batch) != x);
    CHECK(mgpu_reduce_to(g, b, b) == b);
    CHECK(mgpu_reduce_to(g, b, x) != b);
    CHECK(mgpu_dim_same(mgpu_broadcast(g, b, 2, row)->dims[0], batch[0]));
    mgpu_graph_free(g);
}

static int reshape_error(struct mgpu_graph *g, struct mgpu_value *x)
{
    return mgpu_reshape(g, x, 1, (struct mgpu_dim[]){K(5)}) ? 0 : mgpu_build_error();
}

static int expand_error(struct mgpu_graph *g, struct mgpu_value *x)
{
    return mgpu_broadcast(g, x, 2, (struct mgpu_dim[]){K(4), K(3)}) ? 0 : mgpu_build_error();
}

static int slice_error(struct mgpu_graph *g, struct mgpu_value *x)
{
    return mgpu_slice_axis(g, x, 1, 2, K(2)) ? 0 : mgpu_build_error();
}

static int concat_error(struct mgpu_graph *g, struct mgpu_value *x, struct mgpu_value *y)
{
    return mgpu_concat(g, 1, 2, (struct mgpu_value *[]){x, y}) ? 0 : mgpu_build_error();
}

static void test_errors(void)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim dims[] = {K(2), K(3)};
    struct mgpu_value *x = mgpu_graph_input(g, "x", MGPU_FLOAT, 2, dims);
    struct mgpu_value *y = mgpu_graph_input(g, "y", MGPU_FLOAT, 2, (struct mgpu_dim[]){K(3), K(3)});
    CHECK_FAILS(reshape_error(g, x), "[2,3] to [5]");
    CHECK_FAILS(expand_error(g, x), "[2,3] to [4,3]");
    CHECK_FAILS(slice_error(g, x), "3 elements");
    CHECK_FAILS(concat_error(g, x, y), "[3,3] does not fit float [2,3]");
    mgpu_graph_free(g);
}

int main(void)
{
    test_failures += mgpu_op_check(shapes);
    test_failures += mgpu_op_check(transposes);
    test_failures += mgpu_op_check(slices);
    test_failures += mgpu_op_check(pads);
    test_failures += mgpu_op_check(concats);
    test_pad_values();
    test_types();
    test_monomials();
    test_errors();
    return test_end();
}
