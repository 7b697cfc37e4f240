/* The pointwise kernel of backend `cpu` against `ref`: every operation, broadcasts, types. */
#include "runtime/ops/pointwise.h"
#include "runtime/cpu/pointwise_ops.h"
#include "runtime/ops/build.h"
#include "tests/cpu/kernel_check.h"
#include "tests/test.h"

#define DIMS(...)                                                                                  \
    {                                                                                              \
        .rank = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), .dims = {__VA_ARGS__},         \
        .batch_axis = -1                                                                           \
    }

static const void *attrs_of(struct mgpu_arena *arena, struct mgpu_expr *e, int result)
{
    struct mgpu_pointwise_attrs *attrs = MGPU_NEW(arena, struct mgpu_pointwise_attrs);
    attrs->expr = mgpu_expr_end(e, result, arena);
    return attrs;
}

/* ---- Every operation ---------------------------------------------------------------------------
 */

static enum mgpu_expr_code the_code; /* of the row that is built now */

static bool gives_bool(enum mgpu_expr_code code)
{
    return code == MGPU_X_EQ || code == MGPU_X_LT || code == MGPU_X_LE || code == MGPU_X_ISNAN ||
           code == MGPU_X_ISINF;
}

static const void *one_operation(struct mgpu_arena *arena, int64_t batch)
{
    (void)batch;
    struct mgpu_expr e;
    int two = mgpu_expr_arity(the_code) == 2;
    mgpu_expr_begin(&e, 1 + two);
    int a = mgpu_expr_input(&e, 0, MGPU_FLOAT);
    int result = two ? mgpu_expr_2(&e, the_code, a, mgpu_expr_input(&e, 1, MGPU_FLOAT))
                     : mgpu_expr_1(&e, the_code, a);
    return attrs_of(arena, &e,
                    gives_bool(the_code) ? mgpu_expr_cast(&e, MGPU_FLOAT, result) : result);
}

static void test_operations(void)
{
    static const struct {
        enum mgpu_expr_code code;
        double low, high;
    } rows[] = {
        {MGPU_X_NEG, -2, 2},        {MGPU_X_ABS, -2, 2},        {MGPU_X_SIGN, -2, 2},
        {MGPU_X_FLOOR, -9, 9},      {MGPU_X_CEIL, -9, 9},       {MGPU_X_ROUND, -9, 9},
        {MGPU_X_RECIPROCAL, 1, 2},  {MGPU_X_SQRT, 0.1, 9},      {MGPU_X_EXP, -20, 20},
        {MGPU_X_LOG, 0.01, 50},     {MGPU_X_LOG1P, -0.9, 50},   {MGPU_X_SIN, -9, 9},
        {MGPU_X_COS, -9, 9},        {MGPU_X_TAN, -1, 1},        {MGPU_X_ASIN, -0.9, 0.9},
        {MGPU_X_ACOS, -0.9, 0.9},   {MGPU_X_ATAN, -9, 9},       {MGPU_X_SINH, -5, 5},
        {MGPU_X_COSH, -5, 5},       {MGPU_X_TANH, -5, 5},       {MGPU_X_ASINH, -9, 9},
        {MGPU_X_ACOSH, 1.1, 9},     {MGPU_X_ATANH, -0.9, 0.9},  {MGPU_X_ERF, -3, 3},
        {MGPU_X_GELU, -6, 6},       {MGPU_X_GELU_SLOPE, -6, 6}, {MGPU_X_SIGMOID, -90, 90},
        {MGPU_X_SOFTPLUS, -90, 90}, {MGPU_X_ISNAN, -1, 1},      {MGPU_X_ISINF, -1, 1},
        {MGPU_X_STOP, -1, 1},       {MGPU_X_ADD, -1, 1},        {MGPU_X_SUB, -1, 1},
        {MGPU_X_MUL, -1, 1},        {MGPU_X_DIV, 1, 2},         {MGPU_X_MOD, 1, 9},
        {MGPU_X_FMOD, 1, 9},        {MGPU_X_POW, 0.5, 3},       {MGPU_X_MIN, -1, 1},
        {MGPU_X_MAX, -1, 1},        {MGPU_X_EQ, -1, 1},         {MGPU_X_LT, -1, 1},
        {MGPU_X_LE, -1, 1},         {MGPU_X_MULZ, -1, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        the_code = rows[i].code;
        struct mgpu_check checks[2] = {{.name = mgpu_expr_code_name(the_code),
                                        .op = &mgpu_op_pointwise,
                                        .attrs_at = one_operation,
                                        .inputs = mgpu_expr_arity(the_code)}};
        for (int k = 0; k < checks[0].inputs; k++)
            checks[0].input[k] = (struct mgpu_check_input){.rank = 2,
                                                           .dims = {7, 181},
                                                           .batch_axis = -1,
                                                           .low = rows[i].low,
                                                           .high = rows[i].high};
        CHECK_(mgpu_kernel_check(checks) == 0, "%s", checks[0].name);
    }
}

/* NaN, infinities, zeros and ties come out as in ref. */
static void test_special(void)
{
    static const double a[] = {NAN, 1,   INFINITY, -INFINITY, 0,    -0.0,
                               2,   NAN, 0,        INFINITY,  -200, 200};
    static const double b[] = {1, NAN, 1, INFINITY, INFINITY, 0, 2, NAN, NAN, -INFINITY, 1, 1};
    static const enum mgpu_expr_code codes[] = {
        MGPU_X_MIN,  MGPU_X_MAX, MGPU_X_MULZ,  MGPU_X_EQ,   MGPU_X_LT,      MGPU_X_LE,
        MGPU_X_SIGN, MGPU_X_EXP, MGPU_X_ISNAN, MGPU_X_TANH, MGPU_X_SIGMOID, MGPU_X_SOFTPLUS,
        MGPU_X_ADD,  MGPU_X_DIV, MGPU_X_ISINF, MGPU_X_ERF,
    };
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        the_code = codes[i];
        struct mgpu_check checks[2] = {
            {.name = mgpu_expr_code_name(the_code),
             .op = &mgpu_op_pointwise,
             .attrs_at = one_operation,
             .inputs = mgpu_expr_arity(the_code),
             .input = {
                 {.rank = 1, .dims = {12}, .batch_axis = -1, .values = a, .constant = true},
                 {.rank = 1, .dims = {12}, .batch_axis = -1, .values = b, .constant = true}}}};
        CHECK_(mgpu_kernel_check(checks) == 0, "%s of special values", checks[0].name);
    }
}

/* An element comes out the same in every bit wherever it stands in a run. */
static void test_places(void)
{
    enum { COUNT = 200 };
    float x[3][COUNT], whole[COUNT], parts[COUNT];
    const struct mgpu_cpu_ends ends = {0.9f, 1.3f, 0.7f};
    for (int i = 0; i < 3 * COUNT; i++)
        x[i / COUNT][i % COUNT] = (float)((i * 37) % 1001) / 300 + 0.001f;
    for (enum mgpu_expr_code code = MGPU_X_NEG; code < MGPU_X_CODES; code++) {
        if (!mgpu_cpu_applies(code))
            continue;
        mgpu_cpu_apply(code, whole, x[0], x[1], x[2], ends, COUNT);
        for (int at = 0, n = 1; at < COUNT; at += n, n = n % 21 + 1) {
            n = COUNT - at < n ? COUNT - at : n;
            mgpu_cpu_apply(code, parts + at, x[0] + at, x[1] + at, x[2] + at, ends, n);
        }
        CHECK_(!memcmp(parts, whole, sizeof whole), "%s", mgpu_expr_code_name(code));
    }
}

/* Far out functions are exactly what they tend to. */
static void test_far(void)
{
    static const float x[] = {-INFINITY, -1e30f, -200, 200, 1e30f, INFINITY};
    static const struct {
        enum mgpu_expr_code code;
        float below, above;
    } rows[] = {
        {MGPU_X_EXP, 0, INFINITY},
        {MGPU_X_SIGMOID, 0, 1},
        {MGPU_X_TANH, -1, 1},
        {MGPU_X_ERF, -1, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        float y[6];
        mgpu_cpu_apply(rows[i].code, y, x, NULL, NULL, (struct mgpu_cpu_ends){1, 1, -0.0f}, 6);
        for (int k = 0; k < 6; k++)
            CHECK_(y[k] == (k < 3 ? rows[i].below : rows[i].above), "%s of %g is %g",
                   mgpu_expr_code_name(rows[i].code), x[k], y[k]);
    }
}

/* ---- Larger expressions ------------------------------------------------------------------------
 */

/* (x0 * x1 + x2) * 2, whatever shapes they have. */
static const void *affine(struct mgpu_arena *arena, int64_t batch)
{
    (void)batch;
    struct mgpu_expr e;
    mgpu_expr_begin(&e, 3);
    int x[3];
    for (int i = 0; i < 3; i++)
        x[i] = mgpu_expr_input(&e, i, MGPU_FLOAT);
    int sum = mgpu_expr_2(&e, MGPU_X_ADD, mgpu_expr_2(&e, MGPU_X_MUL, x[0], x[1]), x[2]);
    int two = mgpu_expr_number(&e, MGPU_FLOAT, 2);
    return attrs_of(arena, &e, mgpu_expr_2(&e, MGPU_X_MUL, sum, two));
}

static int scale(struct mgpu_expr *e, enum mgpu_expr_code code, int a, double c, bool c_first)
{
    int number = mgpu_expr_number(e, MGPU_FLOAT, c);
    return mgpu_expr_2(e, code, c_first ? number : a, c_first ? a : number);
}

/* Constants behind operations, in every place: 1 - 7 (-(x0 x1) - (3 - sin x0)) (2 y - 5), with
 * y = (4 (x1 - 1) + 6)^2, times 2 y. */
static const void *scaled(struct mgpu_arena *arena, int64_t batch)
{
    (void)batch;
    struct mgpu_expr e;
    mgpu_expr_begin(&e, 2);
    int x = mgpu_expr_input(&e, 0, MGPU_FLOAT), y = mgpu_expr_input(&e, 1, MGPU_FLOAT);
    int a = mgpu_expr_1(&e, MGPU_X_NEG, mgpu_expr_2(&e, MGPU_X_MUL, x, y));
    a = mgpu_expr_2(&e, MGPU_X_SUB, a,
                    scale(&e, MGPU_X_SUB, mgpu_expr_1(&e, MGPU_X_SIN, x), 3, true));
    a = scale(&e, MGPU_X_MUL, a, 7, true);
    int b = scale(&e, MGPU_X_MUL, scale(&e, MGPU_X_SUB, y, 1, false), 4, false);
    b = scale(&e, MGPU_X_ADD, b, 6, false);
    b = scale(&e, MGPU_X_MUL, mgpu_expr_2(&e, MGPU_X_MUL, b, b), 2, false);
    b = mgpu_expr_2(&e, MGPU_X_MUL, b, scale(&e, MGPU_X_SUB, b, 5, false));
    return attrs_of(arena, &e, scale(&e, MGPU_X_SUB, mgpu_expr_2(&e, MGPU_X_MUL, a, b), 1, true));
}

/* Factors before operations: tanh(3 x0) exp(-x1 / 2) + (5 x1) erf(5 x1), and where something stands
 * between, sin(2 x0 + 1). */
static const void *headed(struct mgpu_arena *arena, int64_t batch)
{
    (void)batch;
    struct mgpu_expr e;
    mgpu_expr_begin(&e, 2);
    int x = mgpu_expr_input(&e, 0, MGPU_FLOAT), y = mgpu_expr_input(&e, 1, MGPU_FLOAT);
    int a = mgpu_expr_1(&e, MGPU_X_TANH, scale(&e, MGPU_X_MUL, x, 3, true));
    int b = mgpu_expr_1(&e, MGPU_X_EXP, scale(&e, MGPU_X_MUL, y, -0.5, false));
    int z = scale(&e, MGPU_X_MUL, y, 5, false);
    int c = mgpu_expr_2(&e, MGPU_X_MUL, z, mgpu_expr_1(&e, MGPU_X_ERF, z));
    int d = scale(&e, MGPU_X_ADD, scale(&e, MGPU_X_MUL, x, 2, false), 1, false);
    int sum = mgpu_expr_2(&e, MGPU_X_ADD, mgpu_expr_2(&e, MGPU_X_MUL, a, b), c);
    return attrs_of(arena, &e, mgpu_expr_2(&e, MGPU_X_ADD, sum, mgpu_expr_1(&e, MGPU_X_SIN, d)));
}

/* Many values alive at once: the sum of x0 to its powers, each kept until the end. */
static const void *powers(struct mgpu_arena *arena, int64_t batch)
{
    (void)batch;
    struct mgpu_expr e;
    int power[6];
    mgpu_expr_begin(&e, 1);
    power[0] = mgpu_expr_input(&e, 0, MGPU_FLOAT);
    for (int i = 1; i < 6; i++)
        power[i] = mgpu_expr_2(&e, MGPU_X_MUL, power[i - 1], power[0]);
    int sum = mgpu_expr_1(&e, MGPU_X_SIN, power[0]);
    for (int i = 5; i >= 0; i--)
        sum = mgpu_expr_2(&e, MGPU_X_SUB, power[i], sum);
    return attrs_of(arena, &e, sum);
}

/* where(mask and x1 > 0, x1, float(labels)): bool and int64 inputs. */
static const void *masked(struct mgpu_arena *arena, int64_t batch)
{
    (void)batch;
    struct mgpu_expr e;
    mgpu_expr_begin(&e, 3);
    int mask = mgpu_expr_input(&e, 0, MGPU_BOOL), x = mgpu_expr_input(&e, 1, MGPU_FLOAT);
    int label = mgpu_expr_cast(&e, MGPU_FLOAT, mgpu_expr_input(&e, 2, MGPU_INT64));
    int positive = mgpu_expr_2(&e, MGPU_X_LT, mgpu_expr_number(&e, MGPU_FLOAT, 0), x);
    int both = mgpu_expr_2(&e, MGPU_X_AND, mask, positive);
    return attrs_of(arena, &e, mgpu_expr_where(&e, both, x, label));
}

/* not (x0 < 0) or x1: a bool output. */
static const void *logical(struct mgpu_arena *arena, int64_t batch)
{
    (void)batch;
    struct mgpu_expr e;
    mgpu_expr_begin(&e, 2);
    int x = mgpu_expr_input(&e, 0, MGPU_FLOAT), mask = mgpu_expr_input(&e, 1, MGPU_BOOL);
    int less = mgpu_expr_2(&e, MGPU_X_LT, x, mgpu_expr_number(&e, MGPU_FLOAT, 0));
    int either = mgpu_expr_2(&e, MGPU_X_OR, mgpu_expr_1(&e, MGPU_X_NOT, less), mask);
    return attrs_of(arena, &e, mgpu_expr_2(&e, MGPU_X_XOR, either, mask));
}

/* int32(x0 * double scalar): other types in and out. */
static const void *converted(struct mgpu_arena *arena, int64_t batch)
{
    (void)batch;
    struct mgpu_expr e;
    mgpu_expr_begin(&e, 2);
    int x = mgpu_expr_input(&e, 0, MGPU_FLOAT);
    int factor = mgpu_expr_cast(&e, MGPU_FLOAT, mgpu_expr_input(&e, 1, MGPU_DOUBLE));
    int product = mgpu_expr_2(&e, MGPU_X_MUL, x, factor);
    return attrs_of(arena, &e, mgpu_expr_cast(&e, MGPU_INT32, product));
}

#define AFFINE(text, a, b, c)                                                                      \
    {                                                                                              \
        .name = text, .op = &mgpu_op_pointwise, .attrs_at = affine, .inputs = 3, .input = {        \
            a,                                                                                     \
            b,                                                                                     \
            c                                                                                      \
        }                                                                                          \
    }

static const struct mgpu_check rows[] = {
    AFFINE("same shapes", DIMS(3, 5), DIMS(3, 5), DIMS(3, 5)),
    AFFINE("large", DIMS(130, 1000), DIMS(130, 1000), DIMS(1000)),
    AFFINE("scalars", DIMS(3000), DIMS(1), DIMS(1, 1)),
    AFFINE("channels", DIMS(3, 5, 7, 9), DIMS(5, 1, 1), DIMS(1, 5, 1, 1)),
    AFFINE("long channels", DIMS(2, 3, 50, 60), DIMS(3, 1, 1), DIMS(3, 50, 1)),
    AFFINE("rows and columns", DIMS(41, 1), DIMS(1, 53), DIMS(41, 53)),
    AFFINE("samples", DIMS(6, 4, 5), DIMS(6, 1, 1), DIMS(1, 4, 1)),
    AFFINE("middle", DIMS(2, 1, 3, 1, 5), DIMS(4, 1, 6, 1), DIMS(2, 4, 3, 6, 5)),
    AFFINE("one element", DIMS(1, 1), DIMS(1), DIMS(1, 1, 1)),
    AFFINE("more than caches hold", DIMS(2051, 2051), DIMS(2051), DIMS(1)),
    {.name = "constants behind operations",
     .op = &mgpu_op_pointwise,
     .attrs_at = scaled,
     .inputs = 2,
     .input = {DIMS(6, 777), DIMS(777)}},
    {.name = "factors before operations",
     .op = &mgpu_op_pointwise,
     .attrs_at = headed,
     .inputs = 2,
     .input = {DIMS(6, 777), DIMS(777)}},
    {.name = "many values",
     .op = &mgpu_op_pointwise,
     .attrs_at = powers,
     .inputs = 1,
     .input = {DIMS(5, 777)}},
    {.name = NULL},
};

static const struct mgpu_check typed[] = {
    {.name = "masks and labels",
     .op = &mgpu_op_pointwise,
     .attrs_at = masked,
     .inputs = 3,
     .input =
         {{.rank = 2, .dims = {30, 1}, .batch_axis = -1, .type = MGPU_BOOL, .high = 1},
          DIMS(30, 70),
          {.rank = 1, .dims = {70}, .batch_axis = -1, .type = MGPU_INT64, .low = -5, .high = 9}}},
    {.name = "logic",
     .op = &mgpu_op_pointwise,
     .attrs_at = logical,
     .inputs = 2,
     .input = {DIMS(40, 50),
               {.rank = 2, .dims = {40, 50}, .batch_axis = -1, .type = MGPU_BOOL, .high = 1}}},
    {.name = "conversions",
     .op = &mgpu_op_pointwise,
     .attrs_at = converted,
     .inputs = 2,
     .input = {{.rank = 2, .dims = {40, 50}, .batch_axis = -1, .low = -9, .high = 9},
               {.rank = 0,
                .batch_axis = -1,
                .type = MGPU_DOUBLE,
                .low = 2,
                .high = 3,
                .constant = true}}},
    {.name = NULL},
};

static const struct mgpu_check in_blocks[] = {
    AFFINE("same images", DIMS(3, 19, 5, 7), DIMS(3, 19, 5, 7), DIMS(3, 19, 5, 7)),
    AFFINE("images and one number", DIMS(3, 19, 5, 7), DIMS(1), DIMS(3, 19, 5, 7)),
    AFFINE("a number a channel", DIMS(3, 32, 25, 70), DIMS(32, 1, 1), DIMS(1, 32, 1, 1)),
    AFFINE("a number a channel of a sample", DIMS(3, 32, 5, 70), DIMS(3, 32, 1, 1), DIMS(1, 1)),
    AFFINE("a number a sample", DIMS(3, 16, 5, 7), DIMS(3, 1, 1, 1), DIMS(16, 1, 1)),
    {.name = NULL},
};

int main(void)
{
    test_operations();
    test_special();
    test_places();
    test_far();
    CHECK(mgpu_kernel_check(rows) == 0);
    CHECK(mgpu_kernel_check(typed) == 0);
    CHECK(mgpu_block_check(in_blocks) == 0);
    CHECK(mgpu_kernel_check_together(rows) == 0);
    return test_end();
}
