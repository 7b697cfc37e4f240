/* Reports of users about what operators mean and which gradient they have, with their values (rows
 * 2, 4, 5, 7, 12 and 21a): as they are lowered, run on `ref`. */
#define BUILT_PATH "/tmp/mgpu-test-report-operators.onnx"
#include "tests/importer/built.h"

/* Input x, if there is one, and the gradient G that arrives at the output y (NULL: ones). */
struct given {
    const double *x, *g;
};

static struct mgpu_value *input_called(struct mgpu_graph *g, const char *name)
{
    for (int i = 0; i < g->input_count; i++)
        if (!strcmp(g->inputs[i]->name, name))
            return g->inputs[i];
    return NULL;
}

static struct mgpu_value *find(struct built *b, const char *name)
{
    struct mgpu_value *v = input_called(b->g, name);
    return v ? v : parameter(b, name)->value;
}

static int add_gradient(struct built *b, const double *g, const char *name, struct mgpu_value **dx)
{
    struct mgpu_value *y = b->g->outputs[0], *wrt = find(b, name);
    int64_t count = mgpu_value_count(y);
    double *ones = MGPU_NEW_ARRAY(b->g->arena, double, count);
    for (int64_t i = 0; i < count; i++)
        ones[i] = g ? g[i] : 1;
    y = mgpu_mul(b->g, y, mgpu_graph_constant(b->g, NULL, y->type, y->rank, y->dims, ones, NULL));
    y = mgpu_reduce(b->g, MGPU_REDUCE_SUM, y, (1u << y->rank) - 1, false);
    return y ? mgpu_gradient_of(b->g, y, 1, &wrt, dx) : mgpu_build_error();
}

/* The output, and the gradient by an input or a weight. */
static void expect(const char *text, struct given given, int count, const double *y,
                   const char *name, int gradients, const double *want)
{
    struct built b;
    struct mgpu_value *dx = NULL;
    int rc = build(&b, text, 0);
    if (rc >= 0 && name)
        rc = add_gradient(&b, given.g, name, &dx);
    CHECK_(rc >= 0, "%s%s", text, mgpu_error());
    if (rc >= 0) {
        start(&b);
        if (given.x)
            CHECK_OK(mgpu_run_feed(&b.run, input_called(b.g, "x"), given.x));
        CHECK_OK(mgpu_run_all(&b.run));
        check_values(&b, b.g->outputs[0], count, y);
        if (name)
            check_values(&b, dx, gradients, want);
    }
    end(&b);
}

#define X(...)                                                                                     \
    (struct given)                                                                                 \
    {                                                                                              \
        (const double[]){__VA_ARGS__}, NULL                                                        \
    }

/* ---- Row 2: attributes through functions ----------------------------------------------------- */

#define FUNCTIONS                                                                                  \
    "ir 9\nopset 17\nopset local 1\n"                                                              \
    "function local inner(x) k -> y {\nopset 17\nc = Constant() value_float=$k:float\n"            \
    "y = Mul(c, x)\n}\n"                                                                           \
    "function local outer(x) s=0.5 -> y {\nopset 17\nopset local 1\n"                              \
    "y = local.inner(x) k=$s:float\n}\n"                                                           \
    "input x float 1 1\ninit W float 1 1 = 2\nm = MatMul(x, W)\n"

static void test_functions(void)
{
    struct built b;
    expect(FUNCTIONS "y = local.outer(m) s=3.0\noutput y float 1 1\n", X(1), VALUES(6), "W",
           VALUES(3));
    expect(FUNCTIONS "y = local.outer(m)\noutput y float 1 1\n", X(1), VALUES(1), "W", VALUES(0.5));
    CHECK_FAILS(build(&b,
                      "ir 9\nopset 17\nopset local 1\n"
                      "function local inner(x) -> y {\nopset 17\nopset local 1\n"
                      "y = local.outer(x)\n}\n"
                      "function local outer(x) -> y {\nopset 17\nopset local 1\n"
                      "y = local.inner(x)\n}\n"
                      "input x float 1 1\ny = local.outer(x)\noutput y float 1 1\n",
                      0),
                "recurs");
    end(&b);
}

/* ---- Row 4: integer division ------------------------------------------------------------------
 */

static void test_division(void)
{
    static const double seven[] = {1, 2, 3, 4, 5, 6, 7};
    expect("input x float 1 7\ninit one int64 = 1\ninit three int64 = 3\ninit z int64 1 = 0\n"
           "init axis int64 1 = 1\ns = Shape(x)\nd = Gather(s, one)\nn = Neg(d)\n"
           "q = Div(n, three)\nk = Neg(q)\ninit u int64 1 = 0\nkk = Unsqueeze(k, u)\n"
           "c = Slice(x, z, kk, axis)\ny = ReduceSum(c)\noutput y float\n",
           (struct given){seven, NULL}, VALUES(3), NULL, 0, NULL);
    expect("init a int64 4 = 8 -8 7 -7\ninit b int64 4 = -3 3 -2 2\ny = Div(a, b)\noutput y\n",
           (struct given){0}, VALUES(-2, -2, -3, -3), NULL, 0, NULL);
    expect("init a int64 = -5\ninit b int64 = 3\ny = Mod(a, b)\noutput y\n", (struct given){0},
           VALUES(1), NULL, 0, NULL);
    expect("init a float = -5.5\ninit b float = 3\ny = Mod(a, b) fmod=1\noutput y\n",
           (struct given){0}, VALUES(-2.5), NULL, 0, NULL);
    /* executed as folded */
    expect("input x int64 4\ninit b int64 4 = -3 3 -2 2\ny = Div(x, b)\noutput y\n",
           X(8, -8, 7, -7), VALUES(-2, -2, -3, -3), NULL, 0, NULL);
    expect("input x float 1\ninit b float = 3\ny = Mod(x, b) fmod=1\noutput y\n", X(-5.5),
           VALUES(-2.5), NULL, 0, NULL);
}

/* 2^53 + 1 does not pass through a double. */
static void test_large_integers(void)
{
    struct built b;
    CHECK_OK(build(
        &b, "init a int64 = 9007199254740993\ninit b int64 = 1\ny = Div(a, b)\noutput y\n", 0));
    const struct mgpu_value *y = b.g->outputs[0];
    CHECK(y->kind == MGPU_VALUE_CONSTANT && *(const int64_t *)y->data == INT64_C(9007199254740993));
    start(&b);
    end(&b);
}

/* ---- Row 5: borders of pools ------------------------------------------------------------------
 */

#define POOL(attributes)                                                                           \
    "input x float 1 1 2 2\ny = AveragePool(x) kernel_shape=[2, 2] strides=[1, 1] "                \
    "pads=[0, 0, 1, 1] " attributes "\noutput y\n"

static void test_pools(void)
{
    expect(POOL("count_include_pad=1"), X(1, 1, 1, 1), VALUES(1, .5, .5, .25), "x",
           VALUES(.25, .5, .5, 1));
    expect(POOL("count_include_pad=0"), X(1, 1, 1, 1), VALUES(1, 1, 1, 1), "x",
           VALUES(.25, .75, .75, 2.25));
    expect("input x float 1 1 4\ny = AveragePool(x) kernel_shape=[3] strides=[2] pads=[1, 1] "
           "ceil_mode=1 count_include_pad=1\noutput y\n",
           X(1, 2, 3, 4), VALUES(1, 3, 2), "x", VALUES(1. / 3, 2. / 3, 1. / 3, 5. / 6));
    expect("input x float 1 1 3 3\ninit w float 1 1 3 3 = 1\n"
           "y = ConvTranspose(x, w) strides=[2, 2] auto_pad=\"SAME_UPPER\"\noutput y\n",
           X(1, 1, 1, 1, 1, 1, 1, 1, 1),
           VALUES(1, 1, 2, 1, 2, 1, 1, 1, 2, 1, 2, 1, 2, 2, 4, 2, 4, 2, 1, 1, 2, 1, 2, 1, 2, 2, 4,
                  2, 4, 2, 1, 1, 2, 1, 2, 1),
           NULL, 0, NULL);
}

/* ---- Row 7: If ------------------------------------------------------------------------------- */

#define IF(inputs, condition)                                                                      \
    "input x float N 4\n" inputs "init W1 float 4 = 2\ninit W2 float 4 = 5\n"                      \
    "graph then {\na = Mul(x, W1)\noutput a\n}\ngraph other {\nb = Mul(x, W2)\noutput "            \
    "b\n}\n" condition "h = If(c) then_branch=@then else_branch=@other name=\"choice\"\n"          \
    "init axis int64 1 = 1\ny = ReduceSum(h, axis) keepdims=0\noutput y\n"

static void test_if(void)
{
    struct built b;
    struct mgpu_value *wrt, *dx;
    const double ones[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    CHECK_OK(build(&b,
                   IF("", "init one int64 = 1\ninit four int64 = 4\ns = Shape(x)\n"
                          "d = Gather(s, one)\nc = Equal(d, four)\n"),
                   3));
    CHECK_OK(add_gradient(&b, NULL, "W1", &dx));
    for (int i = 0; i < b.g->parameter_count; i++)
        CHECK(strcmp(b.g->parameters[i].name, "W2") != 0); /* not used, so it cannot change */
    wrt = input_called(b.g, "x");
    start(&b);
    CHECK_OK(mgpu_run_feed(&b.run, wrt, ones));
    CHECK_OK(mgpu_run_all(&b.run));
    check_values(&b, b.g->outputs[0], VALUES(8, 8, 8));
    check_values(&b, dx, VALUES(3, 3, 3, 3));
    end(&b);
    CHECK_FAILS(build(&b, IF("input c bool\n", ""), 3), "choice");
    CHECK(strstr(mgpu_error(), "known only when the model runs"));
    end(&b);
}

/* ---- Row 12: indices that occur twice ----------------------------------------------------------
 */

static void test_indices(void)
{
    static const double one_to_four[] = {1, 2, 3, 4}, u[] = {5, 6};
    static const double decades[] = {1, 10, 100, 1000};
    struct given scatter = {one_to_four, decades}, updates = {u, decades};
    expect("input x float 2 2\ninit i int64 3 2 = 1 1 1 1 0 0\ny = GatherND(x, i)\noutput y\n",
           X(0, 1, 2, 3), VALUES(3, 3, 0), "x", VALUES(1, 0, 0, 2));
    expect("input x float 2 2\ninit i int64 3 = -1 1 1\ny = Gather(x, i)\noutput y\n",
           X(0, 1, 2, 3), VALUES(2, 3, 2, 3, 2, 3), "x", VALUES(0, 0, 3, 3));
    expect("input x float 4\ninit i int64 2 = 1 3\ninit u float 2 = 5 6\n"
           "y = ScatterElements(x, i, u)\noutput y\n",
           scatter, VALUES(1, 5, 3, 6), "x", VALUES(1, 0, 100, 0));
    expect("input x float 2\ninit i int64 2 = 1 3\ninit d float 4 = 1 2 3 4\n"
           "y = ScatterElements(d, i, x)\noutput y\n",
           updates, VALUES(1, 5, 3, 6), "x", VALUES(10, 1000));
    expect("opset 18\ninput x float 4\ninit i int64 2 = 1 1\ninit u float 2 = 5 6\n"
           "y = ScatterElements(x, i, u) reduction=\"add\"\noutput y\n",
           scatter, VALUES(1, 13, 3, 4), "x", 4, decades);
    expect("opset 18\ninput x float 2\ninit i int64 2 = 1 1\ninit d float 4 = 1 2 3 4\n"
           "y = ScatterElements(d, i, x) reduction=\"add\"\noutput y\n",
           updates, VALUES(1, 13, 3, 4), "x", VALUES(10, 10));
    /* more indices than rows of data */
    expect("input x float 1 2\ninit i int64 1 4 = 0 1 0 1\ninit u float 1 4 = 5 6 7 8\n"
           "y = ScatterElements(x, i, u) axis=1\noutput y\n",
           X(1, 2), VALUES(7, 8), NULL, 0, NULL);
}

static void test_index_out_of_range(void)
{
    struct built b;
    CHECK_OK(build(&b, "input x float 2 2\ninput i int64 1\ny = Gather(x, i)\noutput y\n", 0));
    start(&b);
    CHECK_OK(mgpu_run_feed(&b.run, input_called(b.g, "i"), (const double[]){7}));
    CHECK_FAILS(mgpu_run_all(&b.run), "7");
    end(&b);
}

/* ---- Row 21a: states of zeros for one sample ---------------------------------------------------
 */

#define LSTM(state)                                                                                \
    "input x float 2 N 1\ninit w float 1 4 1 = 0.5\ninit r float 1 4 1 = 0.25\n" state             \
    "y = LSTM(x, w, r, -, -, h, h) hidden_size=1\noutput y\n"

static void test_states(void)
{
    struct built b;
    struct mgpu_lower_input input = {.name = "x", .batch_axis = 1, .rank = 3, .dims = {2, 1, 1}};
    struct mgpu_lower_options options = at_batch(3);
    double without[6];
    options.input = &input;
    options.inputs = 1;
    CHECK_OK(build_with(&b,
                        "input x float 2 N 1\ninit w float 1 4 1 = 0.5\ninit r float 1 4 1 = 0.25\n"
                        "y = LSTM(x, w, r) hidden_size=1\noutput y\n",
                        &options));
    start(&b);
    CHECK_OK(mgpu_run_feed(&b.run, input_called(b.g, "x"), (const double[]){1, 2, 3, 4, 5, 6}));
    CHECK_OK(mgpu_run_all(&b.run));
    memcpy(without, mgpu_run_doubles(&b.run, b.g->outputs[0]), sizeof without);
    end(&b);
    int rc = build_with(&b, LSTM("init h float 1 1 1 = 0\n"), &options);
    CHECK_(rc >= 0, "%s", mgpu_error());
    if (rc >= 0) {
        start(&b);
        CHECK_OK(mgpu_run_feed(&b.run, input_called(b.g, "x"), (const double[]){1, 2, 3, 4, 5, 6}));
        CHECK_OK(mgpu_run_all(&b.run));
        check_values(&b, b.g->outputs[0], 6, without);
    }
    end(&b);
    CHECK(build_with(&b, LSTM("init h float 1 1 1 = 0.5\n"), &options) < 0);
    printf("a state of 0.5: %s\n", mgpu_error());
    end(&b);
}

int main(void)
{
    mgpu_fold_set(mgpu_ref_fold);
    test_functions();
    test_division();
    test_large_integers();
    test_pools();
    test_if();
    test_indices();
    test_index_out_of_range();
    test_states();
    return test_end();
}
