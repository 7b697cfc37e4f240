/* resize: numbers of ONNX's reference evaluator and of PyTorch, gradients and splits in every way
 * of the harness. */
#include "runtime/backend.h"
#include "runtime/graph/fold.h"
#include "runtime/ops/build.h"
#include "runtime/ops/resize.h"
#include "runtime/ref/ref.h"
#include "tests/ops/op_check.h"
#include "tests/test.h"

struct golden {
    const char *name;
    struct mgpu_resize_attrs attrs; /* without dims */
    int64_t in[MGPU_MAX_RANK], out[MGPU_MAX_RANK];
    const double *x, *y;
};

#include "tests/ops/golden_resize.h"

static int64_t fill_dims(struct mgpu_dim *dims, int64_t rank, const int64_t *sizes)
{
    int64_t count = 1;
    for (int64_t i = 0; i < rank; i++) {
        dims[i] = mgpu_dim_const(sizes[i]);
        count *= sizes[i];
    }
    return count;
}

static void test_golden(void)
{
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        const struct golden *k = &golden[i];
        struct mgpu_dim in[MGPU_MAX_RANK], out[MGPU_MAX_RANK];
        struct mgpu_resize_attrs a = k->attrs;
        struct mgpu_check row = {.name = k->name,
                                 .op = &mgpu_op_resize,
                                 .attrs = &a,
                                 .inputs = 1,
                                 .input = {{.rank = (int)a.rank, .batch_axis = -1}}};
        fill_dims(in, a.rank, k->in);
        int64_t count = fill_dims(out, a.rank, k->out);
        a.in = in;
        a.out = out;
        memcpy(row.input[0].dims, k->in, sizeof k->in);
        row.input[0].values = k->x;
        CHECK(mgpu_op_value(&row, k->y, count) == 0);
    }
}

/* [N, 2, 4] to [N, 3, 3] and such, from a pattern. */
static const void *attrs_of(struct mgpu_arena *arena, int64_t n, int mode, int coordinates,
                            int64_t from, int64_t to)
{
    struct mgpu_dim in[] = {mgpu_dim_symbol(MGPU_BATCH, n), mgpu_dim_const(2),
                            mgpu_dim_const(from)};
    struct mgpu_dim out[] = {in[0], mgpu_dim_const(3), mgpu_dim_const(to)};
    struct mgpu_resize_attrs a = {
        .mode = mode,
        .coordinates = coordinates,
        .cubic_a = -0.75,
        .scale = {1, 1.5, (double)to / (double)from},
        .roi_end = {1, 1, 1},
        .rank = 3,
        .in = mgpu_arena_copy(arena, in, sizeof in),
        .out = mgpu_arena_copy(arena, out, sizeof out),
    };
    return mgpu_arena_copy(arena, &a, sizeof a);
}

#define ATTRS(name, mode, coordinates, from, to)                                                   \
    static const void *name(struct mgpu_arena *arena, int64_t n)                                   \
    {                                                                                              \
        return attrs_of(arena, n, mode, coordinates, from, to);                                    \
    }

ATTRS(nearest_up, MGPU_RESIZE_NEAREST, MGPU_RESIZE_ASYMMETRIC, 2, 5)
ATTRS(linear_up, MGPU_RESIZE_LINEAR, MGPU_RESIZE_HALF_PIXEL, 3, 7)
ATTRS(linear_down, MGPU_RESIZE_LINEAR, MGPU_RESIZE_ALIGN_CORNERS, 5, 2)
ATTRS(cubic_up, MGPU_RESIZE_CUBIC, MGPU_RESIZE_PYTORCH_HALF_PIXEL, 3, 5)
ATTRS(to_one, MGPU_RESIZE_LINEAR, MGPU_RESIZE_PYTORCH_HALF_PIXEL, 4, 1)

static const void *cropped(struct mgpu_arena *arena, int64_t n)
{
    struct mgpu_resize_attrs a = *(const struct mgpu_resize_attrs *)attrs_of(
        arena, n, MGPU_RESIZE_LINEAR, MGPU_RESIZE_TF_CROP_AND_RESIZE, 4, 5);
    a.roi_start[2] = 0.3;
    a.roi_end[2] = 1.4;
    a.extrapolation = 2;
    return mgpu_arena_copy(arena, &a, sizeof a);
}

static const void *nearest_cropped(struct mgpu_arena *arena, int64_t n)
{
    struct mgpu_resize_attrs a = *(const struct mgpu_resize_attrs *)cropped(arena, n);
    a.mode = MGPU_RESIZE_NEAREST;
    return mgpu_arena_copy(arena, &a, sizeof a);
}

static const void *antialiased(struct mgpu_arena *arena, int64_t n)
{
    struct mgpu_resize_attrs a = *(const struct mgpu_resize_attrs *)attrs_of(
        arena, n, MGPU_RESIZE_CUBIC, MGPU_RESIZE_HALF_PIXEL, 7, 3);
    a.antialias = a.exclude_outside = true;
    return mgpu_arena_copy(arena, &a, sizeof a);
}

/* The batch itself is resized. */
static const void *batch_doubled(struct mgpu_arena *arena, int64_t n)
{
    struct mgpu_dim in[] = {mgpu_dim_symbol(MGPU_BATCH, n), mgpu_dim_const(3)};
    struct mgpu_dim out[] = {mgpu_dim_mul(in[0], mgpu_dim_const(2)), in[1]};
    struct mgpu_resize_attrs a = {.mode = MGPU_RESIZE_NEAREST,
                                  .scale = {2, 1},
                                  .roi_end = {1, 1},
                                  .rank = 2,
                                  .in = mgpu_arena_copy(arena, in, sizeof in),
                                  .out = mgpu_arena_copy(arena, out, sizeof out)};
    return mgpu_arena_copy(arena, &a, sizeof a);
}

#define ROW(text, function, width)                                                                 \
    {                                                                                              \
        .name = text, .op = &mgpu_op_resize, .attrs_at = function, .inputs = 1, .input = {         \
            {.rank = 3, .dims = {3, 2, width}, .batch_axis = 0}                                    \
        }                                                                                          \
    }

static const struct mgpu_check rows[] = {
    ROW("resize nearest up", nearest_up, 2),
    ROW("resize linear up", linear_up, 3),
    ROW("resize linear down", linear_down, 5),
    ROW("resize cubic up", cubic_up, 3),
    ROW("resize to one", to_one, 4),
    ROW("resize of a crop", cropped, 4),
    ROW("resize nearest of a crop", nearest_cropped, 4),
    ROW("resize antialiased", antialiased, 7),
    {.name = "resize of the batch",
     .op = &mgpu_op_resize,
     .attrs_at = batch_doubled,
     .inputs = 1,
     .input = {{.rank = 2, .dims = {3, 3}, .batch_axis = 0}},
     .mixes = true},
    {.name = "resize_grad",
     .op = &mgpu_op_resize_grad,
     .attrs_at = linear_up,
     .inputs = 1,
     .input = {{.rank = 3, .dims = {3, 3, 7}, .batch_axis = 0}}},
    {.name = NULL},
};

/* One axis, folded in a type. */
static int fold_line(struct mgpu_resize_attrs a, enum mgpu_dtype type, int64_t in, int64_t out,
                     const double *x, const double *want)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim from = mgpu_dim_const(in), to = mgpu_dim_const(out);
    char data[64];
    for (int64_t i = 0; i < in; i++)
        mgpu_set_double(data, type, i, x[i]);
    a.rank = 1;
    a.in = &from;
    a.out = &to;
    a.cubic_a = -0.75;
    a.roi_end[0] = 1;
    if (!a.scale[0])
        a.scale[0] = (double)out / (double)in;
    struct mgpu_value *v = mgpu_graph_constant(g, "x", type, 1, &from, data, NULL);
    struct mgpu_value *y = mgpu_build1(g, &mgpu_op_resize, &a, 1, &v);
    int rc = y ? 0 : mgpu_build_error();
    for (int64_t i = 0; y && i < out; i++)
        CHECK_NEAR(mgpu_get_double(y->data, type, i), want[i], 1e-6);
    mgpu_graph_free(g);
    return rc;
}

static void test_lines(void)
{
    const double x[] = {0, 10, 20, 31};
    struct mgpu_resize_attrs nn = {.mode = MGPU_RESIZE_NEAREST,
                                   .coordinates = MGPU_RESIZE_TF_HALF_PIXEL_FOR_NN,
                                   .nearest = MGPU_NEAREST_FLOOR};
    struct mgpu_resize_attrs linear = {.mode = MGPU_RESIZE_LINEAR};
    struct mgpu_resize_attrs cubic = {.mode = MGPU_RESIZE_CUBIC,
                                      .coordinates = MGPU_RESIZE_PYTORCH_HALF_PIXEL};
    /* places 2/3, 2, 10/3 */
    CHECK_OK(fold_line(nn, MGPU_FLOAT, 4, 3, x, (double[]){0, 20, 31}));
    CHECK_OK(fold_line(nn, MGPU_INT64, 4, 3, x, (double[]){0, 20, 31}));
    /* places .5 and 2.5: 25.5 rounds to the even 26 */
    CHECK_OK(fold_line(linear, MGPU_UINT8, 4, 2, x, (double[]){5, 26}));
    CHECK_OK(fold_line(linear, MGPU_FLOAT16, 4, 2, x, (double[]){5, 25.5}));
    /* one element stands at place 0 */
    CHECK_OK(fold_line(cubic, MGPU_DOUBLE, 4, 1, x, (double[]){0}));
    CHECK_OK(fold_line(linear, MGPU_FLOAT, 0, 0, x, NULL));
}

static void test_errors(void)
{
    const double x[] = {1, 2, 3};
    struct mgpu_resize_attrs a = {.mode = MGPU_RESIZE_LINEAR, .scale = {1e-9}};
    CHECK_FAILS(fold_line(a, MGPU_FLOAT, 3, 1, x, x), "do not give 1");
    a.scale[0] = -1;
    CHECK_FAILS(fold_line(a, MGPU_FLOAT, 3, 1, x, x), "scale -1");
    a.scale[0] = NAN;
    CHECK_FAILS(fold_line(a, MGPU_FLOAT, 3, 1, x, x), "scale");
    a.scale[0] = 1;
    CHECK_FAILS(fold_line(a, MGPU_FLOAT, 0, 1, x, x), "size 0 to 1");
}

int main(void)
{
    test_failures += mgpu_op_check(rows);
    test_golden();
    test_lines();
    test_errors();
    return test_end();
}
