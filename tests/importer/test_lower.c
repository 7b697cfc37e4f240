/* Lowering of small models: values and gradients are right, what is not supported is listed,
 * training forms. Rows of the users' reports keep their exact values. */
#define BUILT_PATH "/tmp/mgpu-test-lower.onnx"
#include "tests/importer/built.h"

/* ---- Values --------------------------------------------------------------------------------- */

/* Row 4. */
static void test_integers(void)
{
    struct built b;
    CHECK_OK(build(&b,
                   "input x float N 7\n"
                   "init one int64 = 1\n"
                   "init three int64 = 3\n"
                   "init zero int64 1 = 0\n"
                   "init axis int64 1 = 1\n"
                   "s = Shape(x)\n"
                   "d = Gather(s, one)\n"
                   "m = Neg(d)\n"
                   "q = Div(m, three)\n"
                   "k = Neg(q)\n"
                   "k1 = Reshape(k, axis)\n"
                   "cut = Slice(x, zero, k1, axis)\n"
                   "y = ReduceSum(cut, axis) keepdims=0\n"
                   "output y float N\noutput k\n",
                   2));
    start(&b);
    CHECK(value(&b, "k")->kind == MGPU_VALUE_CONSTANT);
    check_values(&b, value(&b, "k"), VALUES(2));
    mgpu_run_feed(&b.run, value(&b, "x"),
                  (double[]){1, 2, 100, 100, 100, 100, 100, 3, 4, 100, 100, 100, 100, 100});
    CHECK_OK(mgpu_run_all(&b.run));
    check_values(&b, value(&b, "y"), VALUES(3, 7));
    end(&b);
}

static const char divisions[] = "a1 = Div(p, q)\n"
                                "a2 = Div(big, unit)\n"
                                "a3 = Mod(m, n)\n"
                                "a4 = Mod(f, g) fmod=1\n"
                                "output a1\noutput a2\noutput a3\noutput a4\n";

static void check_divisions(struct built *b)
{
    check_values(b, value(b, "a1"), VALUES(-2, -2, -3, -3));
    int64_t *large = mgpu_run_data(&b->run, value(b, "a2"));
    CHECK(large[0] == INT64_C(9007199254740993));
    check_values(b, value(b, "a3"), VALUES(1));
    check_values(b, value(b, "a4"), VALUES(-2.5));
}

static void test_divisions(void)
{
    struct built b;
    char text[2048];
    snprintf(text, sizeof text, "%s%s",
             "input x float N\n"
             "init p int64 4 = 8 -8 7 -7\n"
             "init q int64 4 = -3 3 -2 2\n"
             "init big int64 1 = 9007199254740993\n"
             "init unit int64 1 = 1\n"
             "init m int64 1 = -5\n"
             "init n int64 1 = 3\n"
             "init f float 1 = -5.5\n"
             "init g float 1 = 3\n",
             divisions);
    CHECK_OK(build(&b, text, 1));
    start(&b);
    CHECK(b.g->node_count == 0 || value(&b, "a1")->kind == MGPU_VALUE_CONSTANT);
    CHECK_OK(mgpu_run_all(&b.run));
    check_divisions(&b);
    end(&b);
    snprintf(text, sizeof text, "%s%s",
             "input p int64 N\ninput q int64 N\ninput big int64 1\ninput unit int64 1\n"
             "input m int64 1\ninput n int64 1\ninput f float 1\ninput g float 1\n",
             divisions);
    CHECK_OK(build(&b, text, 4));
    start(&b);
    CHECK(b.g->node_count == 4);
    mgpu_run_feed(&b.run, value(&b, "p"), (double[]){8, -8, 7, -7});
    mgpu_run_feed(&b.run, value(&b, "q"), (double[]){-3, 3, -2, 2});
    *(int64_t *)mgpu_run_data(&b.run, value(&b, "big")) = INT64_C(9007199254740993);
    mgpu_run_feed(&b.run, value(&b, "unit"), (double[]){1});
    mgpu_run_feed(&b.run, value(&b, "m"), (double[]){-5});
    mgpu_run_feed(&b.run, value(&b, "n"), (double[]){3});
    mgpu_run_feed(&b.run, value(&b, "f"), (double[]){-5.5});
    mgpu_run_feed(&b.run, value(&b, "g"), (double[]){3});
    CHECK_OK(mgpu_run_all(&b.run));
    check_divisions(&b);
    end(&b);
}

/* Row 8. */
static void test_gemm(void)
{
    struct built b;
    CHECK_OK(build(&b,
                   "ir 3\n"
                   "opset 9\n"
                   "input x float N 3\n"
                   "input W float 2 3\n"
                   "input b float 2\n"
                   "input steps int64\n"
                   "init W float 2 3 = 1\n"
                   "init b float 2 = 1 0\n"
                   "init steps int64 = 5\n"
                   "y = Gemm(x, W, b) transB=1 alpha=0.5 beta=2.0\n"
                   "output y float N 2\n",
                   1));
    start(&b);
    CHECK(b.g->input_count == 1 && b.g->parameter_count == 2);
    CHECK(parameter(&b, "W")->role == MGPU_WEIGHT && parameter(&b, "b")->role == MGPU_WEIGHT);
    differentiate(&b, 1);
    mgpu_run_feed(&b.run, value(&b, "x"), (double[]){1, 2, 3});
    CHECK_OK(mgpu_run_all(&b.run));
    check_values(&b, value(&b, "y"), VALUES(5, 3));
    check_values(&b, parameter(&b, "W")->gradient, VALUES(.5, 1, 1.5, .5, 1, 1.5));
    check_values(&b, parameter(&b, "b")->gradient, VALUES(2, 2));
    end(&b);
}

/* Row 2: the weight lies before the function; the factor is the function's attribute. */
static void test_functions(void)
{
    static const char start_text[] = "ir 9\nopset 17\nopset local 1\n"
                                     "function local inner(x) k -> y {\n"
                                     "    opset 17\n"
                                     "    c = Constant() value_float=$k:float\n"
                                     "    y = Mul(x, c)\n"
                                     "}\n"
                                     "function local outer(x) s=0.5 -> y {\n"
                                     "    opset 17\n"
                                     "    opset local 1\n"
                                     "    y = local.inner(x) k=$s:float\n"
                                     "}\n"
                                     "input x float N 1\n"
                                     "init W float 1 1 = 2\n"
                                     "h = MatMul(x, W)\n";
    for (int with = 0; with < 2; with++) {
        struct built b;
        char text[1024];
        snprintf(text, sizeof text, "%sy = local.outer(h)%s\noutput y float N 1\n", start_text,
                 with ? " s=3.0" : "");
        CHECK_OK(build(&b, text, 1));
        start(&b);
        differentiate(&b, 1);
        mgpu_run_feed(&b.run, value(&b, "x"), (double[]){1});
        CHECK_OK(mgpu_run_all(&b.run));
        check_values(&b, value(&b, "y"), VALUES(with ? 6 : 1));
        check_values(&b, parameter(&b, "W")->gradient, VALUES(with ? 3 : 0.5));
        end(&b);
    }
}

/* Row 7. */
static void test_if(void)
{
    static const char bodies[] = "graph then {\n    t = Mul(x, W1)\n    output t\n}\n"
                                 "graph other {\n    t = Mul(x, W2)\n    output t\n}\n"
                                 "init W1 float 4 = 2\n"
                                 "init W2 float 4 = 5\n"
                                 "init axis int64 1 = 1\n"
                                 "init one int64 = 1\n"
                                 "init four int64 = 4\n"
                                 "input x float N 4\n";
    struct built b;
    char text[1024];
    snprintf(text, sizeof text, "%s%s", bodies,
             "s = Shape(x)\nd = Gather(s, one)\nc = Equal(d, four)\n"
             "p = If(c) then_branch=@then else_branch=@other name=\"choice\"\n"
             "y = ReduceSum(p, axis) keepdims=0\noutput y float N\n");
    CHECK_OK(build(&b, text, 3));
    start(&b);
    CHECK(b.g->parameter_count == 1);
    differentiate(&b, 1);
    mgpu_run_feed(&b.run, value(&b, "x"), (double[]){1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1});
    CHECK_OK(mgpu_run_all(&b.run));
    check_values(&b, value(&b, "y"), VALUES(8, 8, 8));
    check_values(&b, parameter(&b, "W1")->gradient, VALUES(3, 3, 3, 3));
    end(&b);
    snprintf(text, sizeof text, "%s%s", bodies,
             "input c bool\n"
             "p = If(c) then_branch=@then else_branch=@other name=\"choice\"\n"
             "y = ReduceSum(p, axis) keepdims=0\noutput y float N\n");
    CHECK_FAILS(build(&b, text, 3), "'choice' (If)");
    end(&b);
}

/* Row 14: a branch that is not chosen sends nothing; a constant exponent needs no logarithm. */
static void test_guards(void)
{
    static const struct {
        const char *text;
        double x[2], gradient[2];
    } rows[] = {
        {"init P float 2 = 0 4\n"
         "init zero float = 0\n"
         "c = Greater(P, zero)\nr = Sqrt(P)\ny0 = Where(c, r, zero)\n",
         {1, 1},
         {0, 0.25}},
        {"init P float 2 = -3 -3\ninit two float = 2\ny0 = Pow(P, two)\n", {1, 1}, {-6, -6}},
        {"init P float 2 = 1 1\n"
         "init zero float = 0\n"
         "c = Equal(x, zero)\nq = Div(P, x)\ny0 = Where(c, zero, q)\n",
         {0, 1},
         {0, 1}},
    };
    for (int i = 0; i < 3; i++) {
        struct built b;
        char text[1024];
        snprintf(text, sizeof text,
                 "input x float N 2\n%s"
                 "nothing = Constant() value_float=0.0\n"
                 "still = Mul(x, nothing)\ny = Add(y0, still)\noutput y\n",
                 rows[i].text);
        CHECK_OK(build(&b, text, 1));
        start(&b);
        differentiate(&b, 1);
        mgpu_run_feed(&b.run, value(&b, "x"), rows[i].x);
        CHECK_OK(mgpu_run_all(&b.run));
        check_values(&b, parameter(&b, "P")->gradient, 2, rows[i].gradient);
        end(&b);
    }
}

/* Row 15 a and d. */
static void test_side_output(void)
{
    static const char text[] = "input x float N 2\n"
                               "init W float 2 2 = 1 2 3 4\n"
                               "l = MatMul(x, W)\n"
                               "best = ArgMax(l) axis=1 keepdims=1\n"
                               "f = Cast(best) to=1\n"
                               "y = Add(l, f)\n"
                               "u = Unheard(l) name=\"odd\"\n"
                               "v = Unknown(u) name=\"even\"\n"
                               "output y float N 2\n"
                               "output v\n";
    struct built b;
    struct mgpu_lower_options options = at_batch(1);
    CHECK_FAILS(build_with(&b, text, &options), "2 nodes are not supported: node 'odd' (Unheard)");
    CHECK(strstr(mgpu_error(), "node 'even' (Unknown)"));
    end(&b);
    options.wanted = (const char *[]){"y"};
    options.wanted_count = 1;
    CHECK_OK(build_with(&b, text, &options));
    start(&b);
    differentiate(&b, 1);
    mgpu_run_feed(&b.run, value(&b, "x"), (double[]){1, 0});
    CHECK_OK(mgpu_run_all(&b.run));
    check_values(&b, value(&b, "y"), VALUES(2, 3));
    check_values(&b, parameter(&b, "W")->gradient, VALUES(1, 1, 0, 0));
    end(&b);
    options.wanted = (const char *[]){"yy"};
    CHECK_FAILS(build_with(&b, text, &options), "no value called 'yy'");
    end(&b);
}

/* Row 34: refused at once, not computed. */
static void test_too_large(void)
{
    struct built b;
    CHECK_FAILS(build(&b,
                      "input x float N 1\n"
                      "init size int64 1 = 17592186044800\n"
                      "z = ConstantOfShape(size) name=\"huge\"\n"
                      "y = Add(x, z)\noutput y\n",
                      1),
                "17592186044800");
    CHECK(strstr(mgpu_error(), "huge"));
    end(&b);
    CHECK_FAILS(build(&b,
                      "input x float N 1\n"
                      "init zero int64 = 0\n"
                      "init end int64 = 17592186044800\n"
                      "init one int64 = 1\n"
                      "r = Range(zero, end, one) name=\"huge\"\n"
                      "z = Cast(r) to=1\n"
                      "y = Add(x, z)\noutput y\n",
                      1),
                "huge");
    end(&b);
}

/* ---- Training forms ---------------------------------------------------------------------------
 */

static const char batch_norm[] = "input x float N 1\n"
                                 "init s float 1 = 2\n"
                                 "init b float 1 = 1\n"
                                 "init m float 1 = 10\n"
                                 "init v float 1 = 4\n"
                                 "y = BatchNormalization(x, s, b, m, v) epsilon=0.0\n"
                                 "output y float N 1\n";

static void check_batch_norm(const char *producer, struct mgpu_lower_options options, bool trains,
                             double mean, double variance)
{
    struct built b;
    char text[512];
    snprintf(text, sizeof text, "producer %s\n%s", producer, batch_norm);
    CHECK_OK(build_with(&b, text, &options));
    start(&b);
    CHECK(count_nodes(&b, "batch_norm") == trains);
    mgpu_run_feed(&b.run, value(&b, "x"), (double[]){1, 2, 3, 4});
    CHECK_OK(mgpu_run_all(&b.run));
    const struct mgpu_value *next[] = {parameter(&b, "m")->next, parameter(&b, "v")->next};
    CHECK(!next[0] == !trains && !next[1] == !trains);
    CHECK(parameter(&b, "m")->role == MGPU_STATISTIC);
    if (trains) {
        double d = 2 / sqrt(1.25);
        double momentum = strcmp(producer, "tf2onnx") ? (double)0.9f : 0.99; /* Keras's default */
        check_values(&b, value(&b, "y"), VALUES(1 - 1.5 * d, 1 - .5 * d, 1 + .5 * d, 1 + 1.5 * d));
        check_values(&b, next[0], VALUES(momentum * 10 + (1 - momentum) * mean));
        check_values(&b, next[1], VALUES(momentum * 4 + (1 - momentum) * variance));
    } else
        check_values(&b, value(&b, "y"), VALUES(-8, -7, -6, -5));
    end(&b);
}

static void test_batch_norm(void)
{
    struct mgpu_lower_options o = at_batch(4);
    o.norm = MGPU_NORM_DEFAULT;
    check_batch_norm("other", o, true, 2.5, 1.25);
    check_batch_norm("pytorch", o, true, 2.5, 5.0 / 3);
    check_batch_norm("tf2onnx", o, true, 2.5, 1.25); /* rank 2 */
    o.norm = MGPU_NORM_SYNC;
    check_batch_norm("pytorch", o, true, 2.5, 5.0 / 3);
    o.variance = MGPU_VARIANCE_POPULATION;
    check_batch_norm("pytorch", o, true, 2.5, 1.25);
    o.norm = MGPU_NORM_FROZEN;
    check_batch_norm("pytorch", o, false, 0, 0);
    o.norm = MGPU_NORM_TRAIN;
    o.training = false;
    check_batch_norm("pytorch", o, false, 0, 0);
}

static void test_dropout(void)
{
    static const char text[] = "input x float N 8\n"
                               "init ratio float = 0.25\n"
                               "init on bool = 1\n"
                               "a, mask = Dropout(x, ratio, on) name=\"first\"\n"
                               "y = Dropout(a, ratio) name=\"second\"\n"
                               "output y\noutput mask\n";
    struct mgpu_lower_options o = at_batch(2);
    struct mgpu_dropout_rule rules[] = {{.node = NULL}, {.node = "second", .probability = 0.5}};
    static const int want[] = {1, 0, 1, 0};
    for (int i = 0; i < 4; i++) {
        struct built b;
        o.training = i < 3;
        o.dropout = rules;
        o.dropouts = i; /* the file's; off; off but for one node; inference */
        CHECK_OK(build_with(&b, text, &o));
        start(&b);
        CHECK(count_nodes(&b, "random_mask") == want[i]);
        end(&b);
    }
}

/* Keras: the recurrent half of an LSTM's B belongs to no variable and gets no gradient. */
static void test_frozen_half(void)
{
    struct built b;
    struct mgpu_lower_options o = at_batch(1);
    o.input = &(struct mgpu_lower_input){.name = "x", .batch_axis = 1, .rank = 3};
    o.inputs = 1;
    CHECK_OK(build_with(&b,
                        "producer tf2onnx\n"
                        "input x float 3 N 1\n"
                        "init W float 1 4 1 = 0.5 0.25 0.125 1\n"
                        "init R float 1 4 1 = 0.5 0.25 -0.125 0.75\n"
                        "init B float 1 8 = 0.1 0.2 0.3 0.4 0 0 0 0\n"
                        "y, h = LSTM(x, W, R, B) hidden_size=1\n"
                        "output h\n",
                        &o));
    if (!b.g)
        return;
    start(&b);
    differentiate(&b, 1);
    mgpu_run_feed(&b.run, value(&b, "x"), (double[]){1, -1, 0.5});
    CHECK_OK(mgpu_run_all(&b.run));
    const struct mgpu_parameter *p = parameter(&b, "B");
    CHECK(p->gradient != NULL);
    const double *d = p->gradient ? mgpu_run_doubles(&b.run, p->gradient) : NULL;
    for (int i = 0; d && i < 4; i++)
        CHECK(d[i] != 0 && d[i + 4] == 0);
    end(&b);
}

/* An attribute of another type than the operator's is not the operator's default. */
static void test_attribute_types(void)
{
    static const struct {
        const char *text, *message;
    } wrong[] = {
        {"y = Gemm(x, w) alpha=\"3\"", "attribute 'alpha' is a string, which Gemm"},
        {"y = Gemm(x, w) transB=1.0", "attribute 'transB' is a float"},
        {"y = Softmax(x) axis=[1]", "attribute 'axis' is ints"},
        {"y = Transpose(x) perm=1", "attribute 'perm' is an int"},
        {"s = Shape(x)\ny = ConstantOfShape(s) value=2.0", "attribute 'value' is a float"},
        {"y = DepthToSpace(x) blocksize=1 mode=[\"CRD\"]", "attribute 'mode' is strings"},
    };
    char text[512];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct built b;
        snprintf(text, sizeof text,
                 "input x float 2 2%s\ninit w float 2 2 = 1 2 3 4\n%s\noutput y\n",
                 strstr(wrong[i].text, "Depth") ? " 2 2" : "", wrong[i].text);
        CHECK_FAILS(build(&b, text, 1), wrong[i].message);
        CHECK(strstr(mgpu_error(), "giving 'y'"));
        end(&b);
    }
}

int main(void)
{
    mgpu_fold_set(mgpu_ref_fold);
    test_integers();
    test_divisions();
    test_gemm();
    test_functions();
    test_if();
    test_guards();
    test_side_output();
    test_too_large();
    test_batch_norm();
    test_dropout();
    test_frozen_half();
    test_attribute_types();
    return test_end();
}
