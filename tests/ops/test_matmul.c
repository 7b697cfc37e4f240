#include "runtime/ops/build.h"
#include "runtime/ops/matmul.h"
#include "tests/ops/op_check.h"
#include "tests/ops/run_graph.h"
#include "tests/test.h"

#define ATTRS(a, b)                                                                                \
    &(const struct mgpu_matmul_attrs)                                                              \
    {                                                                                              \
        .transpose_a = a, .transpose_b = b                                                         \
    }

/* An operand: rank, dims, batch axis. */
#define IN(r, axis, ...)                                                                           \
    {                                                                                              \
        .rank = r, .batch_axis = axis, .dims = { __VA_ARGS__ }                                     \
    }

#define ROW(label, attributes, ...)                                                                \
    {                                                                                              \
        .name = label, .op = &mgpu_op_matmul, .attrs = attributes, .inputs = 2, .input = {         \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

static const struct mgpu_check rows[] = {
    ROW("rows of the batch", ATTRS(0, 0), IN(2, 0, 5, 3), IN(2, -1, 3, 4)),
    ROW("weight stored transposed", ATTRS(0, 1), IN(2, 0, 5, 3), IN(2, -1, 4, 3)),
    ROW("both transposed", ATTRS(1, 1), IN(2, 1, 3, 5), IN(2, -1, 4, 3)),
    ROW("first transposed", ATTRS(1, 0), IN(2, 1, 3, 5), IN(2, -1, 3, 2)),
    ROW("size 1 everywhere", ATTRS(0, 0), IN(2, 0, 1, 1), IN(2, -1, 1, 1)),
    ROW("one row", ATTRS(0, 0), IN(2, -1, 1, 7), IN(2, -1, 7, 1)),
    ROW("weight gradient: the batch is summed over", ATTRS(1, 0), IN(2, 0, 5, 3), IN(2, 0, 5, 2)),
    ROW("columns of the batch", ATTRS(0, 0), IN(2, -1, 2, 3), IN(2, 1, 3, 5)),
    ROW("batched, one weight", ATTRS(0, 0), IN(3, 0, 4, 3, 5), IN(2, -1, 5, 2)),
    ROW("time first, one weight", ATTRS(0, 1), IN(3, 1, 2, 4, 3), IN(2, -1, 5, 3)),
    ROW("batched first transposed, one weight", ATTRS(1, 0), IN(3, 0, 4, 5, 3), IN(2, -1, 5, 2)),
    ROW("batched both", ATTRS(0, 1), IN(4, 0, 3, 2, 4, 3), IN(4, 0, 3, 2, 5, 3)),
    ROW("batched both, transposed", ATTRS(1, 1), IN(3, 0, 3, 2, 4), IN(3, 0, 3, 5, 2)),
    ROW("batch axes broadcast", ATTRS(0, 0), IN(4, 0, 3, 1, 2, 3), IN(3, -1, 4, 3, 2)),
    ROW("first has fewer axes", ATTRS(0, 0), IN(2, -1, 2, 3), IN(3, 0, 4, 3, 2)),
    ROW("second broadcasts over the batch", ATTRS(0, 0), IN(3, 0, 3, 2, 4), IN(3, -1, 1, 4, 3)),
    ROW("more than one tile", ATTRS(0, 0), IN(2, 0, 35, 67), IN(2, -1, 67, 70)),
    {.name = NULL},
};

static const struct mgpu_check flattened = {
    .name = "rows [T*N] of a flattened sequence",
    .op = &mgpu_op_matmul,
    .attrs = ATTRS(0, 0),
    .inputs = 2,
    .input = {{.rank = 2, .dims = {15, 3}, .batch_axis = 0, .outer = 3},
              {.rank = 2, .dims = {3, 2}, .batch_axis = -1}},
};

static const struct mgpu_check mixing = {
    .name = "the summed axis of one operand only",
    .op = &mgpu_op_matmul,
    .attrs = ATTRS(0, 0),
    .inputs = 2,
    .input = {{.rank = 2, .dims = {3, 4}, .batch_axis = 1},
              {.rank = 2, .dims = {4, 2}, .batch_axis = 1}},
    .mixes = true,
};

static void check_values(void)
{
    static const double a[] = {1, 2, 3, 4, 5, 6}, b[] = {1, 0, -1, 2, 1, 1};
    static const double ab[] = {2, 7, 5, 16}, atb[] = {-7, 3, -8, 6, -9, 9};
    struct mgpu_check check = {
        .name = "[2,3] x [3,2]",
        .op = &mgpu_op_matmul,
        .attrs = ATTRS(0, 0),
        .inputs = 2,
        .input = {{.rank = 2, .dims = {2, 3}, .batch_axis = -1, .values = a},
                  {.rank = 2, .dims = {3, 2}, .batch_axis = -1, .values = b}}};
    CHECK(mgpu_op_value(&check, ab, 4) == 0);
    static const double c[] = {1, 3, -2, 0};
    check.name = "[2,3]^T x [2,2]";
    check.attrs = ATTRS(1, 0);
    check.input[1] =
        (struct mgpu_check_input){.rank = 2, .dims = {2, 2}, .batch_axis = -1, .values = c};
    CHECK(mgpu_op_value(&check, atb, 6) == 0);
}

/* Integers wrap in their own width. */
static void check_integers(void)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim a_dims[] = {mgpu_dim_const(1), mgpu_dim_const(2)};
    struct mgpu_dim b_dims[] = {mgpu_dim_const(2), mgpu_dim_const(1)};
    struct mgpu_value *a = mgpu_graph_input(g, "a", MGPU_INT32, 2, a_dims);
    struct mgpu_value *b = mgpu_graph_input(g, "b", MGPU_INT32, 2, b_dims);
    struct mgpu_value *y = mgpu_matmul(g, a, false, b, false);
    struct mgpu_value *c = mgpu_graph_input(g, "c", MGPU_INT64, 2, a_dims);
    struct mgpu_value *d = mgpu_graph_input(g, "d", MGPU_INT64, 2, b_dims);
    struct mgpu_value *z = mgpu_matmul(g, c, false, d, false);
    CHECK(y && z);
    struct mgpu_run run;
    mgpu_run_init(&run, g, &mgpu_backend_ref);
    CHECK_OK(mgpu_run_feed(&run, a, (double[]){2147483647, -3}));
    CHECK_OK(mgpu_run_feed(&run, b, (double[]){2, 5}));
    int64_t *large = mgpu_run_data(&run, c);
    large[0] = (INT64_C(1) << 53) + 1;
    large[1] = -1;
    CHECK_OK(mgpu_run_feed(&run, d, (double[]){1, 2}));
    CHECK_OK(mgpu_run_all(&run));
    CHECK(*(int32_t *)mgpu_run_data(&run, y) == -17);
    CHECK(*(int64_t *)mgpu_run_data(&run, z) == (INT64_C(1) << 53) - 1);
    mgpu_run_free(&run);
    mgpu_graph_free(g);
}

static void check_halves(void)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim dims[] = {mgpu_dim_const(2), mgpu_dim_const(2)};
    struct mgpu_run run;
    for (int i = 0; i < 2; i++) {
        enum mgpu_dtype type = i ? MGPU_BFLOAT16 : MGPU_FLOAT16;
        struct mgpu_value *a = mgpu_graph_input(g, "a", type, 2, dims);
        struct mgpu_value *y = mgpu_matmul(g, a, false, a, true);
        mgpu_run_init(&run, g, &mgpu_backend_ref);
        CHECK_OK(mgpu_run_feed(&run, a, (double[]){1, 2, -0.5, 4}));
        CHECK_OK(mgpu_run_all(&run));
        const double *got = mgpu_run_doubles(&run, y);
        CHECK(got[0] == 5 && got[1] == 7.5 && got[2] == 7.5);
        CHECK(got[3] == 16.25);
        mgpu_run_free(&run);
    }
    mgpu_graph_free(g);
}

static int build(struct mgpu_graph *g, enum mgpu_dtype type_a, int rank_a, enum mgpu_dtype type_b,
                 const int64_t *b)
{
    struct mgpu_dim da[] = {mgpu_dim_const(2), mgpu_dim_const(3), mgpu_dim_const(4)};
    struct mgpu_dim db[] = {mgpu_dim_const(b[0]), mgpu_dim_const(b[1]), mgpu_dim_const(b[2])};
    struct mgpu_value *x = mgpu_graph_input(g, "a", type_a, rank_a, da + 3 - rank_a);
    struct mgpu_value *y = mgpu_graph_input(g, "b", type_b, 3, db);
    return mgpu_matmul(g, x, false, y, false) ? 0 : mgpu_build_error();
}

static void check_refusals(void)
{
    struct mgpu_graph *g = mgpu_graph_new();
    CHECK_FAILS(build(g, MGPU_FLOAT, 3, MGPU_FLOAT, (int64_t[]){2, 5, 1}), "summed over");
    CHECK_FAILS(build(g, MGPU_FLOAT, 3, MGPU_FLOAT, (int64_t[]){3, 4, 1}), "broadcast");
    CHECK_FAILS(build(g, MGPU_FLOAT, 3, MGPU_DOUBLE, (int64_t[]){2, 4, 1}), "one type");
    CHECK_FAILS(build(g, MGPU_FLOAT, 1, MGPU_FLOAT, (int64_t[]){2, 4, 1}), "rank 2");
    CHECK_OK(build(g, MGPU_FLOAT, 3, MGPU_FLOAT, (int64_t[]){1, 4, 1}));
    mgpu_graph_free(g);
}

/* The weight of a batched layer gets its gradient from one product, without a sum after it. */
static void check_weight_gradient(void)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim x_dims[] = {mgpu_dim_symbol(0, 4), mgpu_dim_const(3), mgpu_dim_const(5)};
    struct mgpu_dim w_dims[] = {mgpu_dim_const(5), mgpu_dim_const(2)};
    struct mgpu_value *x = mgpu_graph_input(g, "x", MGPU_FLOAT, 3, x_dims);
    struct mgpu_value *w = mgpu_graph_input(g, "w", MGPU_FLOAT, 2, w_dims);
    struct mgpu_value *y = mgpu_matmul(g, x, false, w, false), *dx[2] = {NULL, NULL};
    struct mgpu_value *dy = mgpu_graph_input(g, "dy", MGPU_FLOAT, 3, y->dims);
    CHECK_OK(mgpu_op_matmul.gradient(g, y->producer, &dy, (bool[]){false, true}, dx));
    CHECK(!dx[0] && dx[1] && dx[1]->producer->op == &mgpu_op_matmul);
    CHECK(dx[1]->producer->input[0]->rank == 2);
    CHECK(mgpu_dim_has(dx[1]->producer->input[0]->dims[0], MGPU_BATCH));
    mgpu_graph_free(g);
}

int main(void)
{
    CHECK(mgpu_op_check(rows) == 0);
    CHECK(mgpu_op_check((const struct mgpu_check[]){flattened, mixing, {.name = NULL}}) == 0);
    check_values();
    check_integers();
    check_halves();
    check_refusals();
    check_weight_gradient();
    return test_end();
}
