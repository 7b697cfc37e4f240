/* Lowering of small models: sizes fold and remember the batch, values and gradients are right, what
 * is not supported is listed. Rows of the users' reports keep their exact values. */
#include "importer/lower.h"
#include "runtime/graph/fold.h"
#include "runtime/graph/gradient.h"
#include "runtime/ops/normalize.h"
#include "runtime/ref/ref.h"
#include "tests/ops/run_graph.h"
#include "tests/support/make_onnx.h"
#include "tests/test.h"

static const char path[] = "/tmp/mgpu-test-lower.onnx";

struct built {
    struct mgpu_onnx_file *file;
    struct mgpu_onnx_model *model;
    struct mgpu_weights *weights;
    struct mgpu_graph *g;
    struct mgpu_run run;
};

static int build_with(struct built *b, const char *text, const struct mgpu_lower_options *options)
{
    struct mgpu_weights_options none = {0};
    *b = (struct built){0};
    make_onnx_file(path, text);
    MGPU_TRY(mgpu_onnx_read(&b->file, path));
    MGPU_TRY(mgpu_onnx_model_new(&b->model, b->file));
    MGPU_TRY(mgpu_weights_identify(&b->weights, b->model, &none));
    return mgpu_lower(&b->g, b->model, b->weights, options);
}

static struct mgpu_lower_options at_batch(int64_t batch)
{
    return (struct mgpu_lower_options){.float_type = MGPU_DOUBLE, .batch = batch, .training = true};
}

/* In double, in training form. */
static int build(struct built *b, const char *text, int64_t batch)
{
    struct mgpu_lower_options options = at_batch(batch);
    return build_with(b, text, &options);
}

static void end(struct built *b)
{
    if (b->g)
        mgpu_run_free(&b->run);
    mgpu_graph_free(b->g);
    mgpu_weights_free(b->weights);
    mgpu_onnx_model_free(b->model);
    mgpu_onnx_free(b->file);
    remove(path);
}

static struct mgpu_value *value(struct built *b, const char *name)
{
    struct mgpu_value *v = mgpu_lowered_value(b->g, name);
    CHECK_(v, "no value '%s'", name);
    if (!v)
        exit(test_end());
    return v;
}

static struct mgpu_parameter *parameter(const struct built *b, const char *name)
{
    for (int i = 0; i < b->g->parameter_count; i++)
        if (!strcmp(b->g->parameters[i].name, name))
            return &b->g->parameters[i];
    CHECK_(false, "no parameter '%s'", name);
    exit(test_end());
}

/* The parameters' contents as stored in the file. */
static void feed_parameters(struct built *b)
{
    for (int i = 0; i < b->weights->count; i++)
        for (int k = 0; k < b->g->parameter_count; k++) {
            const struct mgpu_weight *w = &b->weights->weight[i];
            struct mgpu_value *v = b->g->parameters[k].value;
            const struct mgpu_array *a = &b->model->initializer[w->holder[0].initializer].array;
            if (!strcmp(w->name, b->g->parameters[k].name))
                mgpu_convert(mgpu_run_data(&b->run, v), v->type, a->data, a->type,
                             mgpu_value_count(v));
        }
}

static void start(struct built *b)
{
    mgpu_run_init(&b->run, b->g, &mgpu_backend_ref);
    feed_parameters(b);
}

static void check_values(struct built *b, const struct mgpu_value *v, int count, const double *want)
{
    CHECK_(v && mgpu_value_count(v) == count, "%s has the wrong size", v ? v->name : "nothing");
    if (!v || mgpu_value_count(v) != count)
        return;
    const double *have = mgpu_run_doubles(&b->run, v);
    for (int i = 0; i < count; i++)
        CHECK_(fabs(have[i] - want[i]) <= 1e-12 * fmax(1, fabs(want[i])),
               "%s[%d] is %.17g, not %.17g", v->name, i, have[i], want[i]);
}

#define VALUES(...)                                                                                \
    (int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (double[])                            \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* Appends the gradient of sum(factor * y), y = output 0. */
static void differentiate(struct built *b, double factor)
{
    struct mgpu_value *y = b->g->outputs[0];
    struct mgpu_value *loss = mgpu_reduce(b->g, MGPU_REDUCE_SUM, mgpu_affine(b->g, y, factor, 0),
                                          (1u << y->rank) - 1, false);
    CHECK_OK(mgpu_gradient(b->g, loss, false));
}

static int count_nodes(const struct built *b, const char *op)
{
    int count = 0;
    for (int i = 0; i < b->g->node_count; i++)
        count += !strcmp(b->g->nodes[i]->op->name, op);
    return count;
}

static bool is_batch(struct mgpu_dim d, int64_t value)
{
    return mgpu_dim_same(d, mgpu_dim_symbol(MGPU_BATCH, value));
}

/* ---- Sizes ---------------------------------------------------------------------------------- */

static const char *const shape_chains[] = {
    "input x float N 2 3 4\n" /* row 26 a */
    "init zero int64 = 0\n"
    "init minus int64 1 = -1\n"
    "init W float 24 1 = 1\n"
    "init b float 1 = 1\n"
    "s = Shape(x)\n"
    "n = Gather(s, zero) axis=0\n"
    "axes = Constant() value_ints=[0]\n"
    "n1 = Unsqueeze(n, axes)\n"
    "shape = Concat(n1, minus) axis=0\n"
    "flat = Reshape(x, shape)\n"
    "y = Gemm(flat, W, b)\n"
    "output y float N 1\n",
    "opset 21\n" /* row 26 c */
    "input x float N 2 3 4\n"
    "init minus int64 1 = -1\n"
    "init W float 24 1 = 1\n"
    "init b float 1 = 1\n"
    "s = Shape(x) start=0 end=1\n"
    "shape = Concat(s, minus) axis=0\n"
    "flat = Reshape(x, shape)\n"
    "y = Gemm(flat, W, b)\n"
    "output y float N 1\n",
};

static void test_shape_chains(void)
{
    for (int i = 0; i < 2; i++)
        for (int64_t batch = 1; batch <= 24; batch += 23) { /* 24 is another size too */
            struct built b;
            CHECK_OK(build(&b, shape_chains[i], batch));
            start(&b);
            CHECK(b.g->node_count == 3);
            CHECK(count_nodes(&b, "reshape") == 1 && count_nodes(&b, "matmul") == 1);
            const struct mgpu_value *flat = value(&b, "flat"), *y = value(&b, "y");
            CHECK(is_batch(flat->dims[0], batch));
            CHECK(mgpu_dim_same(flat->dims[1], mgpu_dim_const(24)));
            CHECK(is_batch(y->dims[0], batch));
            end(&b);
        }
}

/* A size that equals the batch by number is not the batch; an inferred one may be. */
static void test_literals(void)
{
    struct built b;
    CHECK_OK(build(&b,
                   "input x float N 64\n"
                   "init open int64 2 = -1 64\n"
                   "init zero int64 2 = 0 -1\n"
                   "init both int64 3 = 8 8 64\n"
                   "a = Reshape(x, open)\n"
                   "b = Reshape(x, zero)\n"
                   "c = Reshape(x, both)\n"
                   "f = Flatten(x) axis=0\n"
                   "output a\noutput b\noutput c\noutput f\n",
                   64));
    start(&b);
    CHECK(is_batch(value(&b, "a")->dims[0], 64));
    CHECK(mgpu_dim_is_const(value(&b, "a")->dims[1]));
    CHECK(is_batch(value(&b, "b")->dims[0], 64) && mgpu_dim_is_const(value(&b, "b")->dims[1]));
    for (int i = 0; i < 3; i++)
        CHECK(mgpu_dim_is_const(value(&b, "c")->dims[i]));
    char text[MGPU_VALUE_TEXT];
    CHECK(!strcmp(mgpu_value_text(text, b.g, value(&b, "f")), "double[1,64*N]"));
    end(&b);
}

/* Expand to a size made with Where, as PyTorch writes it; slices of the whole batch. */
static void test_monomials(void)
{
    struct built b;
    CHECK_OK(build(&b,
                   "input x float N 4\n"
                   "init token float 1 4 = 1 2 3 4\n"
                   "init m1 int64 1 = -1\n"
                   "init four int64 1 = 4\n"
                   "init zero int64 1 = 0\n"
                   "init big int64 1 = 9223372036854775807\n"
                   "init two int64 = 2\n"
                   "n = Shape(x) start=0 end=1\n"
                   "want = Concat(n, four) axis=0\n"
                   "rank = Constant() value_ints=[2]\n"
                   "ones = ConstantOfShape(rank) value=<int64 1 = 1>\n"
                   "minus = Mul(ones, m1)\n"
                   "open = Equal(want, minus)\n"
                   "target = Where(open, ones, want)\n"
                   "e = Expand(token, target)\n"
                   "whole = Slice(x, zero, big, zero)\n"
                   "same = Slice(x, zero, n, zero)\n"
                   "rows = ReduceProd(n) keepdims=0\n"
                   "twice = Mul(rows, two)\n"
                   "half = Div(twice, two)\n"
                   "r = Range(rows, twice, half)\n"
                   "z = ConstantOfShape(n)\n"
                   "t = Tile(token, want)\n"
                   "y = Add(e, whole)\n"
                   "output y\noutput same\noutput z\noutput r\noutput t\n",
                   4));
    start(&b);
    CHECK(is_batch(value(&b, "e")->dims[0], 4));
    CHECK(is_batch(value(&b, "y")->dims[0], 4) && is_batch(value(&b, "same")->dims[0], 4));
    CHECK(value(&b, "y")->kind == MGPU_VALUE_RESULT && count_nodes(&b, "slice") == 0);
    CHECK(is_batch(value(&b, "z")->dims[0], 4));
    CHECK(is_batch(value(&b, "t")->dims[0], 4));
    check_values(&b, value(&b, "r"), VALUES(4));
    end(&b);
}

/* A sample's place in the batch is data that depends on the batch: tainted. */
static void test_taint(void)
{
    struct built b;
    CHECK_OK(build(&b,
                   "input x float N 1\n"
                   "init zero int64 = 0\n"
                   "init one int64 = 1\n"
                   "init zeros int64 1 = 0\n"
                   "s = Shape(x)\n"
                   "n = Gather(s, zero)\n"
                   "place = Range(zero, n, one)\n"
                   "column = Unsqueeze(place, ones1)\n"
                   "init ones1 int64 1 = 1\n"
                   "f = Cast(column) to=1\n"
                   "y = Add(x, f)\n"
                   "output y float N 1\n",
                   3));
    start(&b);
    const struct mgpu_node *add = b.g->nodes[b.g->node_count - 1];
    CHECK(add->input[1]->tainted);
    mgpu_run_feed(&b.run, value(&b, "x"), (double[]){10, 20, 30});
    CHECK_OK(mgpu_run_all(&b.run));
    check_values(&b, value(&b, "y"), VALUES(10, 21, 32));
    end(&b);
}

/* Row 20 b, and its first file: the example batch written into Reshape. */
static void test_baked(void)
{
    for (int64_t batch = 1; batch <= 4; batch++) {
        struct built b;
        CHECK_FAILS(build(&b,
                          "input x float N 4\n"
                          "init shape int64 2 = 2 -1\n"
                          "r = Reshape(x, shape) name=\"pairs\"\n"
                          "y = ReduceMean(r) axes=[1]\n"
                          "output y float M 1\n",
                          batch),
                    "'pairs' (Reshape)");
        end(&b);
        int rc = build(&b,
                       "input x float N 4\n"
                       "init in int64 3 = 2 2 2\n"
                       "init out int64 2 = 2 4\n"
                       "a = Reshape(x, in) name=\"first\"\n"
                       "t = Transpose(a) perm=[0, 2, 1]\n"
                       "y = Reshape(t, out) name=\"last\"\n"
                       "output y float N 4\n",
                       batch);
        CHECK((rc == 0) == (batch == 2));
        if (rc < 0)
            CHECK(strstr(mgpu_error(), "'first'") && strstr(mgpu_error(), "'last'"));
        else
            start(&b);
        end(&b);
    }
}

/* ---- Binding -------------------------------------------------------------------------------- */

static void test_symbols(void)
{
    static const char text[] = "input a float N seq 3\n"
                               "input b float seq N\n"
                               "y = Relu(a)\n"
                               "z = Relu(b)\n"
                               "output y\noutput z\n";
    struct built b;
    struct mgpu_lower_options options = at_batch(5);
    struct mgpu_lower_input input[2] = {
        {.name = "a", .batch_axis = 0, .rank = 3, .dims = {1, 7, 3}},
        {.name = "b", .batch_axis = 1, .rank = 2, .dims = {7, 1}},
    };
    CHECK_FAILS(build_with(&b, text, &options), "--dim seq=");
    end(&b);
    options.binding = (struct mgpu_binding[]){{"seq", 6}};
    options.bindings = 1;
    options.input = input;
    options.inputs = 2;
    CHECK_FAILS(build_with(&b, text, &options), "'seq' is 6 in --dim and 7 in input 'a'");
    end(&b);
    options.binding = (struct mgpu_binding[]){{"sequence", 6}};
    CHECK_FAILS(build_with(&b, text, &options), "no input has a dimension 'sequence'");
    end(&b);
    options.bindings = 0;
    CHECK_OK(build_with(&b, text, &options));
    start(&b);
    CHECK(is_batch(value(&b, "y")->dims[0], 5) && is_batch(value(&b, "z")->dims[1], 5));
    CHECK(mgpu_dim_same(value(&b, "y")->dims[1], mgpu_dim_symbol(1, 7)));
    CHECK(mgpu_dim_same(value(&b, "z")->dims[0], mgpu_dim_symbol(1, 7)));
    CHECK(!strcmp(b.g->symbols[0], "N") && !strcmp(b.g->symbols[1], "seq"));
    end(&b);
    input[1].dims[0] = 8;
    CHECK_FAILS(build_with(&b, text, &options), "7 in input 'a' and 8 in input 'b'");
    end(&b);
}

/* Keras: every input has a symbol of its own in front; a file without symbols has its batch there
 * as a number. An input that nobody needs is not there. */
static void test_batches(void)
{
    struct built b;
    CHECK_OK(build(&b,
                   "input a float unk__1 3\n"
                   "input b float unk__2 3\n"
                   "input c float unk__3 3\n"
                   "y = Add(a, b)\n"
                   "output y\n",
                   6));
    start(&b);
    CHECK(b.g->input_count == 2 && is_batch(value(&b, "b")->dims[0], 6));
    CHECK(is_batch(value(&b, "y")->dims[0], 6));
    end(&b);
    CHECK_OK(build(&b,
                   "input a float 2 3\ninput c float 5 3\ny = Relu(a)\nz = Relu(c)\n"
                   "output y\noutput z\n",
                   6));
    start(&b);
    CHECK(is_batch(value(&b, "y")->dims[0], 6) && value(&b, "z")->dims[0].value == 5);
    end(&b);
    CHECK_OK(build(&b, "input a float 2 3\ny = Relu(a)\noutput y\n", 0));
    start(&b);
    CHECK(b.g->batch == 2);
    end(&b);
}

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
        double d = 2 / sqrt(1.25), momentum = (double)0.9f;
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
    struct mgpu_dropout_rule rules[] = {{NULL, 0}, {"second", 0.5}};
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

int main(void)
{
    mgpu_fold_set(mgpu_ref_fold);
    test_shape_chains();
    test_literals();
    test_monomials();
    test_taint();
    test_baked();
    test_symbols();
    test_batches();
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
    return test_end();
}
