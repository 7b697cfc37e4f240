/* Gathers, their transposes and scatters: odd shapes in every way of the harness, and the numbers
 * of known reports. */
#include "runtime/backend.h"
#include "runtime/ops/build.h"
#include "runtime/ops/gather.h"
#include "tests/ops/op_check.h"
#include "tests/test.h"

#define AXIS(axis_)                                                                                \
    &(struct mgpu_gather_attrs)                                                                    \
    {                                                                                              \
        .axis = axis_                                                                              \
    }

#define INDICES(rank_, ...) .rank = rank_, .type = MGPU_INT64, .constant = true, __VA_ARGS__

static const struct mgpu_check gathers[] = {
    {.name = "gather of a table by a batch of indices",
     .op = &mgpu_op_gather,
     .attrs = AXIS(0),
     .inputs = 2,
     .input = {{.rank = 2, .dims = {4, 3}, .batch_axis = -1},
               {INDICES(2, .dims = {3, 5}, .batch_axis = 0, .low = -4, .high = 3)}}},
    {.name = "gather of a table by a batch of indices, axis 1",
     .op = &mgpu_op_gather,
     .attrs = AXIS(1),
     .inputs = 2,
     .input = {{.rank = 3, .dims = {2, 4, 3}, .batch_axis = -1},
               {INDICES(2, .dims = {2, 3}, .batch_axis = 1, .low = -4, .high = 3)}}},
    {.name = "gather of a batch by one index",
     .op = &mgpu_op_gather,
     .attrs = AXIS(1),
     .inputs = 2,
     .input = {{.rank = 3, .dims = {3, 4, 2}, .batch_axis = 0}, {INDICES(0, .low = 2, .high = 2)}}},
    {.name = "gather before the batch axis",
     .op = &mgpu_op_gather,
     .attrs = AXIS(0),
     .inputs = 2,
     .input = {{.rank = 2, .dims = {4, 3}, .batch_axis = 1},
               {INDICES(2, .dims = {2, 2}, .batch_axis = -1, .low = 0, .high = 3)}}},
    {.name = "gather of samples",
     .op = &mgpu_op_gather,
     .attrs = AXIS(0),
     .inputs = 2,
     .input = {{.rank = 2, .dims = {3, 4}, .batch_axis = 0},
               {INDICES(1, .dims = {3}, .batch_axis = 0, .low = 0, .high = 2)}},
     .mixes = true},
    {.name = "gather of a table by int32 in another order",
     .op = &mgpu_op_gather,
     .attrs = AXIS(0),
     .inputs = 2,
     .input = {{.rank = 2, .dims = {4, 70}, .batch_axis = -1},
               {.rank = 1,
                .type = MGPU_INT32,
                .constant = true,
                .dims = {6},
                .batch_axis = 0,
                .outer = 2,
                .low = 0,
                .high = 3}}},
    {.name = "gather_elements per sample",
     .op = &mgpu_op_gather_elements,
     .attrs = AXIS(1),
     .inputs = 2,
     .input = {{.rank = 3, .dims = {3, 4, 3}, .batch_axis = 0},
               {INDICES(3, .dims = {3, 2, 2}, .batch_axis = 0, .low = -4, .high = 3)}}},
    {.name = "gather_elements of a vector by a batch",
     .op = &mgpu_op_gather_elements,
     .attrs = AXIS(0),
     .inputs = 2,
     .input = {{.rank = 1, .dims = {4}, .batch_axis = -1},
               {INDICES(1, .dims = {6}, .batch_axis = 0, .low = 0, .high = 3)}}},
    {.name = "gather_elements across samples",
     .op = &mgpu_op_gather_elements,
     .attrs = AXIS(0),
     .inputs = 2,
     .input = {{.rank = 2, .dims = {3, 2}, .batch_axis = 0},
               {INDICES(2, .dims = {3, 2}, .batch_axis = 0, .low = 0, .high = 2)}},
     .mixes = true},
    {.name = "gather_nd of a table",
     .op = &mgpu_op_gather_nd,
     .attrs = AXIS(0),
     .inputs = 2,
     .input = {{.rank = 3, .dims = {3, 2, 4}, .batch_axis = -1},
               {INDICES(3, .dims = {3, 2, 2}, .batch_axis = 0, .low = -2, .high = 1)}}},
    {.name = "gather_nd per sample",
     .op = &mgpu_op_gather_nd,
     .attrs = AXIS(1),
     .inputs = 2,
     .input = {{.rank = 3, .dims = {3, 2, 4}, .batch_axis = 0},
               {INDICES(3, .dims = {3, 2, 1}, .batch_axis = 0, .low = -2, .high = 1)}}},
    {.name = "gather_nd beside the batch axis",
     .op = &mgpu_op_gather_nd,
     .attrs = AXIS(0),
     .inputs = 2,
     .input = {{.rank = 3, .dims = {2, 3, 4}, .batch_axis = 2},
               {INDICES(2, .dims = {3, 2}, .batch_axis = -1, .low = 0, .high = 1)}}},
    {.name = NULL},
};

/* Transposes, whose own gradient is the gather. */
static const void *back_to(struct mgpu_arena *arena, int64_t axis, int rank,
                           const struct mgpu_dim *dims)
{
    struct mgpu_gather_grad_attrs a = {
        .axis = axis,
        .rank = rank,
        .dims = mgpu_arena_copy(arena, dims, sizeof *dims * (size_t)rank)};
    return mgpu_arena_copy(arena, &a, sizeof a);
}

static const void *back_to_table(struct mgpu_arena *arena, int64_t n)
{
    (void)n;
    return back_to(arena, 0, 2, (struct mgpu_dim[]){mgpu_dim_const(4), mgpu_dim_const(3)});
}

static const void *back_to_batch(struct mgpu_arena *arena, int64_t n)
{
    return back_to(arena, 1, 2,
                   (struct mgpu_dim[]){mgpu_dim_symbol(MGPU_BATCH, n), mgpu_dim_const(4)});
}

static const struct mgpu_check transposes[] = {
    {.name = "gather_grad to a table",
     .op = &mgpu_op_gather_grad,
     .attrs_at = back_to_table,
     .inputs = 2,
     .input = {{.rank = 3, .dims = {3, 5, 3}, .batch_axis = 0},
               {INDICES(2, .dims = {3, 5}, .batch_axis = 0, .low = -4, .high = 3)}}},
    {.name = "gather_grad to a batch",
     .op = &mgpu_op_gather_grad,
     .attrs_at = back_to_batch,
     .inputs = 2,
     .input = {{.rank = 2, .dims = {3, 3}, .batch_axis = 0},
               {INDICES(1, .dims = {3}, .batch_axis = -1, .low = 0, .high = 3)}}},
    {.name = "gather_elements_grad",
     .op = &mgpu_op_gather_elements_grad,
     .attrs_at = back_to_batch,
     .inputs = 2,
     .input = {{.rank = 2, .dims = {3, 3}, .batch_axis = 0},
               {INDICES(2, .dims = {3, 3}, .batch_axis = 0, .low = 0, .high = 3)}}},
    {.name = "gather_nd_grad to a table",
     .op = &mgpu_op_gather_nd_grad,
     .attrs_at = back_to_table,
     .inputs = 2,
     .input = {{.rank = 2, .dims = {3, 3}, .batch_axis = 0},
               {INDICES(2, .dims = {3, 1}, .batch_axis = 0, .low = 0, .high = 3)}}},
    {.name = NULL},
};

/* ---- scatters ------------------------------------------------------------------------------- */

#define SCATTER(axis_, reduction_)                                                                 \
    &(struct mgpu_scatter_attrs)                                                                   \
    {                                                                                              \
        .axis = axis_, .reduction = reduction_                                                     \
    }

static const double apart[] = {0, 2, 3, 1, 3, 0};        /* no repetition in a row */
static const double repeated[] = {0, 2, 0, 3, 3, 3};     /* per sample */
static const double with_zeros[] = {0, 2, 3, 0.5, 0, 0}; /* among the factors */
static const double tuples[] = {0, 1, 1, 2, 0, 1};

#define ELEMENTS(text, reduction_, indices, ...)                                                   \
    {                                                                                              \
        .name = text, .op = &mgpu_op_scatter_elements, .attrs = SCATTER(1, reduction_),            \
        .inputs = 3, .input = {                                                                    \
            {.rank = 2, .dims = {2, 4}, .batch_axis = 0},                                          \
            {INDICES(2, .dims = {2, 3}, .batch_axis = 0, .values = indices)},                      \
            {.rank = 2, .dims = {2, 3}, .batch_axis = 0, __VA_ARGS__}                              \
        }                                                                                          \
    }

#define TUPLES(text, reduction_, axis_)                                                            \
    {                                                                                              \
        .name = text, .op = &mgpu_op_scatter_nd, .attrs = SCATTER(0, reduction_), .inputs = 3,     \
        .input = {                                                                                 \
            {.rank = 3, .dims = {2, 3, 2}, .batch_axis = axis_},                                   \
            {INDICES(2, .dims = {3, 2}, .batch_axis = -1, .values = tuples)},                      \
            {.rank = 2, .dims = {3, 2}, .batch_axis = axis_ < 0 ? -1 : 1}                          \
        }                                                                                          \
    }

static const struct mgpu_check scatters[] = {
    ELEMENTS("scatter_elements", MGPU_SCATTER_NONE, apart, .low = 0),
    ELEMENTS("scatter_elements add", MGPU_SCATTER_ADD, repeated, .low = 0),
    ELEMENTS("scatter_elements mul", MGPU_SCATTER_MUL, repeated, .low = 0),
    ELEMENTS("scatter_elements mul with zeros", MGPU_SCATTER_MUL, repeated, .values = with_zeros),
    ELEMENTS("scatter_elements max", MGPU_SCATTER_MAX, repeated, .low = 0),
    ELEMENTS("scatter_elements min", MGPU_SCATTER_MIN, repeated, .low = 0),
    {.name = "scatter_nd",
     .op = &mgpu_op_scatter_nd,
     .attrs = SCATTER(0, MGPU_SCATTER_NONE),
     .inputs = 3,
     .input = {{.rank = 2, .dims = {4, 3}, .batch_axis = 1},
               {INDICES(2, .dims = {2, 1}, .batch_axis = -1, .values = (double[]){3, -4})},
               {.rank = 2, .dims = {2, 3}, .batch_axis = 1}}},
    TUPLES("scatter_nd add", MGPU_SCATTER_ADD, -1),
    TUPLES("scatter_nd mul", MGPU_SCATTER_MUL, 2),
    TUPLES("scatter_nd max", MGPU_SCATTER_MAX, 2),
    {.name = "scatter_nd of samples",
     .op = &mgpu_op_scatter_nd,
     .attrs = SCATTER(0, MGPU_SCATTER_NONE),
     .inputs = 3,
     .input = {{.rank = 2, .dims = {4, 3}, .batch_axis = 0},
               {INDICES(2, .dims = {2, 1}, .batch_axis = -1, .values = (double[]){3, 0})},
               {.rank = 2, .dims = {2, 3}, .batch_axis = -1}},
     .mixes = true},
    {.name = NULL},
};

/* ---- numbers -------------------------------------------------------------------------------- */

/* Two inputs (the second int64) and one output of a node that is run as it stands. */
static void check_back(const struct mgpu_op *op, int64_t axis, int rank, const int64_t *dims,
                       int count, const int64_t *index_dims, int index_rank, const int64_t *index,
                       int dy_count, const double *want)
{
    double dy[16], dx[16];
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim shape[MGPU_MAX_RANK], at[MGPU_MAX_RANK];
    for (int i = 0; i < rank; i++)
        shape[i] = mgpu_dim_const(dims[i]);
    for (int i = 0; i < index_rank; i++)
        at[i] = mgpu_dim_const(index_dims[i]);
    for (int i = 0; i < dy_count; i++)
        dy[i] = 1;
    struct mgpu_value *x = mgpu_graph_input(g, "x", MGPU_DOUBLE, rank, shape);
    struct mgpu_value *indices = mgpu_graph_input(g, "i", MGPU_INT64, index_rank, at);
    struct mgpu_gather_attrs attrs = {.axis = axis};
    struct mgpu_value *y = mgpu_build1(g, op, &attrs, 2, (struct mgpu_value *[]){x, indices});
    struct mgpu_value *d = y ? mgpu_graph_input(g, "dy", MGPU_DOUBLE, y->rank, y->dims) : NULL;
    struct mgpu_value *back[2] = {NULL};
    CHECK(y && mgpu_value_count(y) == dy_count);
    CHECK_OK(op->gradient(g, g->nodes[0], &d, (bool[]){true, false}, back));
    CHECK_OK(mgpu_backend_run(&mgpu_backend_ref, back[0]->producer, (const void *[]){dy, index},
                              (void *[]){dx}));
    for (int i = 0; i < count; i++)
        CHECK_NEAR(dx[i], want[i], 1e-12);
    mgpu_graph_free(g);
}

/* An index that occurs twice adds up. */
static void test_repeated(void)
{
    check_back(&mgpu_op_gather_nd, 0, 2, (int64_t[]){2, 2}, 4, (int64_t[]){3, 2}, 2,
               (int64_t[]){1, 1, 1, 1, 0, 0}, 3, (double[]){1, 0, 0, 2});
    check_back(&mgpu_op_gather, 0, 2, (int64_t[]){2, 2}, 4, (int64_t[]){3}, 1,
               (int64_t[]){-1, 1, 1}, 6, (double[]){0, 0, 3, 3});
    check_back(&mgpu_op_gather_elements, 0, 1, (int64_t[]){3}, 3, (int64_t[]){4}, 1,
               (int64_t[]){2, 0, 2, -1}, 4, (double[]){1, 0, 3});
}

/* Gradients by data and updates for G = 1, 10, 100, 1000 over data 1, 2, 3, 4. */
static void check_scatter(int reduction, const int64_t *index, const double *want_data,
                          const double *want_updates)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim four = mgpu_dim_const(4), two = mgpu_dim_const(2);
    const double dy[] = {1, 10, 100, 1000}, zeros[] = {0, 0};
    double dx[4], du[2];
    struct mgpu_value *in[] = {mgpu_graph_input(g, "x", MGPU_DOUBLE, 1, &four),
                               mgpu_graph_input(g, "i", MGPU_INT64, 1, &two),
                               mgpu_graph_input(g, "u", MGPU_DOUBLE, 1, &two)};
    struct mgpu_value *y =
        mgpu_scatter_elements(g, in[0], in[1], in[2], 0, (enum mgpu_scatter_reduction)reduction);
    struct mgpu_value *d = mgpu_graph_input(g, "dy", MGPU_DOUBLE, 1, &four), *back[3] = {NULL};
    CHECK(y != NULL);
    CHECK_OK(
        mgpu_op_scatter_elements.gradient(g, g->nodes[0], &d, (bool[]){true, false, true}, back));
    if (back[0] != d) {
        CHECK_OK(mgpu_backend_run(&mgpu_backend_ref, back[0]->producer,
                                  (const void *[]){dy, index, zeros}, (void *[]){dx}));
        for (int i = 0; i < 4; i++)
            CHECK_NEAR(dx[i], want_data[i], 0);
    } else {
        CHECK(!memcmp(dy, want_data, sizeof dy));
    }
    CHECK_OK(mgpu_backend_run(&mgpu_backend_ref, back[2]->producer, (const void *[]){dy, index},
                              (void *[]){du}));
    CHECK_NEAR(du[0], want_updates[0], 0);
    CHECK_NEAR(du[1], want_updates[1], 0);
    mgpu_graph_free(g);
}

static void test_scatter_values(void)
{
    check_scatter(MGPU_SCATTER_NONE, (int64_t[]){1, 3}, (double[]){1, 0, 100, 0},
                  (double[]){10, 1000});
    check_scatter(MGPU_SCATTER_ADD, (int64_t[]){1, 1}, (double[]){1, 10, 100, 1000},
                  (double[]){10, 10});
    /* more indices along the axis than data has rows */
    struct mgpu_check row = {
        .name = "scatter of four updates into two places",
        .op = &mgpu_op_scatter_elements,
        .attrs = SCATTER(1, MGPU_SCATTER_ADD),
        .inputs = 3,
        .input = {
            {.rank = 2, .dims = {1, 2}, .batch_axis = -1, .values = (double[]){1, 2}},
            {INDICES(2, .dims = {1, 4}, .batch_axis = -1, .values = (double[]){0, 1, 1, 0})},
            {.rank = 2, .dims = {1, 4}, .batch_axis = -1, .values = (double[]){1, 10, 100, 1000}}}};
    CHECK(mgpu_op_value(&row, (double[]){1002, 112}, 2) == 0);
}

/* Indices that are out of range stop the step with their value and place. */
static int run_index(const struct mgpu_op *op, int64_t index)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim dims[] = {mgpu_dim_const(2), mgpu_dim_const(2)};
    struct mgpu_dim at[] = {mgpu_dim_const(2), mgpu_dim_const(2)};
    const float x[] = {1, 2, 3, 4};
    const int64_t indices[] = {0, 1, index, 0};
    float y[8];
    struct mgpu_value *in[] = {mgpu_graph_input(g, "x", MGPU_FLOAT, 2, dims),
                               mgpu_graph_input(g, "i", MGPU_INT64, 2, at)};
    CHECK(mgpu_build1(g, op, AXIS(0), 2, in) != NULL);
    int rc = mgpu_backend_run(&mgpu_backend_ref, g->nodes[0], (const void *[]){x, indices},
                              (void *[]){y});
    mgpu_graph_free(g);
    return rc;
}

static void test_out_of_range(void)
{
    const struct mgpu_op *const ops[] = {&mgpu_op_gather, &mgpu_op_gather_elements,
                                         &mgpu_op_gather_nd};
    for (int i = 0; i < 3; i++) {
        CHECK_OK(run_index(ops[i], -2));
        CHECK_FAILS(run_index(ops[i], 2), "index 2 at [1,0] is out of range");
        CHECK_FAILS(run_index(ops[i], -3), "index -3 at [1,0] is out of range");
        CHECK_FAILS(run_index(ops[i], INT64_MIN), "index -9223372036854775808");
    }
}

static int build_gather(int64_t axis, enum mgpu_dtype type)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim dims[] = {mgpu_dim_const(2), mgpu_dim_const(3)};
    struct mgpu_value *x = mgpu_graph_input(g, "x", MGPU_FLOAT, 2, dims);
    struct mgpu_value *indices = mgpu_graph_input(g, "i", type, 1, dims);
    int rc = mgpu_gather(g, x, indices, (int)axis) ? 0 : mgpu_build_error();
    mgpu_graph_free(g);
    return rc;
}

int main(void)
{
    test_failures += mgpu_op_check(gathers);
    test_failures += mgpu_op_check(transposes);
    test_failures += mgpu_op_check(scatters);
    test_repeated();
    test_scatter_values();
    test_out_of_range();
    CHECK_OK(build_gather(1, MGPU_INT32));
    CHECK_FAILS(build_gather(2, MGPU_INT32), "[2,3] does not fit");
    CHECK_FAILS(build_gather(0, MGPU_FLOAT), "indices are float");
    return test_end();
}
