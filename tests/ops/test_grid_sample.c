/* grid_sample: PyTorch's numbers in every mode, differences and splits in every way of the harness.
 */
#include "runtime/ops/grid_sample.h"
#include "runtime/ops/build.h"
#include "tests/ops/op_check.h"
#include "tests/test.h"

struct golden {
    int mode, padding;
    bool align;
    int axes; /* 2: "plane", 3: "solid" */
    const double *y, *dx, *dgrid;
};

#include "tests/ops/golden_grid_sample.h"

struct shapes {
    struct mgpu_check_input x, grid, dy;
    int64_t x_count, grid_count, dy_count;
};

static const struct shapes plane = {
    {.rank = 4, .dims = {1, 2, 3, 4}, .batch_axis = -1, .values = plane_x},
    {.rank = 4, .dims = {1, 2, 3, 2}, .batch_axis = -1, .values = plane_grid},
    {.rank = 4, .dims = {1, 2, 2, 3}, .batch_axis = -1, .values = plane_dy},
    24,
    12,
    12,
};

static const struct shapes solid = {
    {.rank = 5, .dims = {1, 1, 2, 3, 2}, .batch_axis = -1, .values = solid_x},
    {.rank = 5, .dims = {1, 1, 2, 2, 3}, .batch_axis = -1, .values = solid_grid},
    {.rank = 5, .dims = {1, 1, 1, 2, 2}, .batch_axis = -1, .values = solid_dy},
    12,
    12,
    4,
};

static void test_golden(void)
{
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        const struct golden *k = &golden[i];
        const struct shapes *s = k->axes == 2 ? &plane : &solid;
        struct mgpu_dim dims[MGPU_MAX_RANK];
        for (int d = 0; d < s->x.rank; d++)
            dims[d] = mgpu_dim_const(s->x.dims[d]);
        struct mgpu_grid_sample_attrs a = {.mode = k->mode,
                                           .padding = k->padding,
                                           .align_corners = k->align,
                                           .rank = s->x.rank,
                                           .dims = dims};
        struct mgpu_check forward = {.name = "grid_sample",
                                     .op = &mgpu_op_grid_sample,
                                     .attrs = &a,
                                     .inputs = 2,
                                     .input = {s->x, s->grid}};
        struct mgpu_check data = {.name = "grid_sample_data",
                                  .op = &mgpu_op_grid_sample_data,
                                  .attrs = &a,
                                  .inputs = 2,
                                  .input = {s->dy, s->grid}};
        struct mgpu_check grid = {.name = "grid_sample_grid",
                                  .op = &mgpu_op_grid_sample_grid,
                                  .attrs = &a,
                                  .inputs = 3,
                                  .input = {s->dy, s->x, s->grid}};
        CHECK(mgpu_op_value(&forward, k->y, s->dy_count) == 0);
        CHECK(mgpu_op_value(&data, k->dx, s->x_count) == 0);
        CHECK(mgpu_op_value(&grid, k->dgrid, s->grid_count) == 0);
    }
}

/* x [N, 2, 3, 4] or [N, 1, 2, 3, 2] */
static const void *attrs_of(struct mgpu_arena *arena, int64_t n, int rank, int mode, int padding,
                            bool align)
{
    struct mgpu_dim dims[5];
    dims[0] = mgpu_dim_symbol(MGPU_BATCH, n);
    for (int i = 1; i < rank; i++)
        dims[i] = mgpu_dim_const(rank == 4 ? plane.x.dims[i] : solid.x.dims[i]);
    struct mgpu_grid_sample_attrs a = {.mode = mode,
                                       .padding = padding,
                                       .align_corners = align,
                                       .rank = rank,
                                       .dims = mgpu_arena_copy(arena, dims, sizeof dims)};
    return mgpu_arena_copy(arena, &a, sizeof a);
}

#define ATTRS(name, rank, mode, padding, align)                                                    \
    static const void *name(struct mgpu_arena *arena, int64_t n)                                   \
    {                                                                                              \
        return attrs_of(arena, n, rank, mode, padding, align);                                     \
    }

ATTRS(nearest_zeros, 4, MGPU_GRID_NEAREST, MGPU_GRID_ZEROS, false)
ATTRS(linear_zeros, 4, MGPU_GRID_LINEAR, MGPU_GRID_ZEROS, false)
ATTRS(linear_border, 4, MGPU_GRID_LINEAR, MGPU_GRID_BORDER, true)
ATTRS(linear_reflection, 4, MGPU_GRID_LINEAR, MGPU_GRID_REFLECTION, false)
ATTRS(cubic_zeros, 4, MGPU_GRID_CUBIC, MGPU_GRID_ZEROS, true)
ATTRS(cubic_reflection, 4, MGPU_GRID_CUBIC, MGPU_GRID_REFLECTION, true)
ATTRS(solid_linear, 5, MGPU_GRID_LINEAR, MGPU_GRID_ZEROS, false)

#define ROW(text, function)                                                                        \
    {                                                                                              \
        .name = text, .op = &mgpu_op_grid_sample, .attrs_at = function, .inputs = 2, .input = {    \
            {.rank = 4, .dims = {3, 2, 3, 4}, .batch_axis = 0},                                    \
            {.rank = 4, .dims = {3, 2, 3, 2}, .batch_axis = 0, .low = -1.9, .high = 1.9}           \
        }                                                                                          \
    }

static const struct mgpu_check rows[] = {
    ROW("nearest, zeros", nearest_zeros),
    ROW("linear, zeros", linear_zeros),
    ROW("linear, border", linear_border),
    ROW("linear, reflection", linear_reflection),
    ROW("cubic, zeros", cubic_zeros),
    ROW("cubic, reflection", cubic_reflection),
    {.name = "three axes",
     .op = &mgpu_op_grid_sample,
     .attrs_at = solid_linear,
     .inputs = 2,
     .input = {{.rank = 5, .dims = {3, 1, 2, 3, 2}, .batch_axis = 0},
               {.rank = 5, .dims = {3, 1, 2, 2, 3}, .batch_axis = 0}}},
    {.name = NULL},
};

static int sample(const int64_t *x, int rank, const int64_t *grid, int grid_rank, int mode)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim dims[2][MGPU_MAX_RANK];
    for (int i = 0; i < MGPU_MAX_RANK; i++) {
        dims[0][i] = mgpu_dim_const(i < rank ? x[i] : 1);
        dims[1][i] = mgpu_dim_const(i < grid_rank ? grid[i] : 1);
    }
    struct mgpu_value *a = mgpu_graph_input(g, "x", MGPU_FLOAT, rank, dims[0]);
    struct mgpu_value *b = mgpu_graph_input(g, "grid", MGPU_FLOAT, grid_rank, dims[1]);
    struct mgpu_value *y =
        mgpu_grid_sample(g, a, b, (enum mgpu_grid_mode)mode, MGPU_GRID_ZEROS, false);
    int rc = y ? 0 : mgpu_build_error();
    mgpu_graph_free(g);
    return rc;
}

static void test_errors(void)
{
    const int64_t x[] = {1, 1, 2, 2, 2}, grid[] = {1, 1, 1, 2}, three[] = {1, 1, 1, 1, 3};
    CHECK_OK(sample(x, 4, grid, 4, MGPU_GRID_LINEAR));
    CHECK_FAILS(sample(x, 4, three, 5, MGPU_GRID_LINEAR), "does not fit");
    CHECK_FAILS(sample(x, 5, three, 5, MGPU_GRID_CUBIC), "cubic of rank 5");
    CHECK_FAILS(sample((const int64_t[]){1, 1, 0, 2}, 4, grid, 4, MGPU_GRID_LINEAR),
                "nothing to sample");
    CHECK_FAILS(sample((const int64_t[]){2, 1, 2, 2}, 4, grid, 4, MGPU_GRID_LINEAR),
                "does not fit");
}

int main(void)
{
    test_failures += mgpu_op_check(rows);
    test_golden();
    test_errors();
    return test_end();
}
