/* Lowering: sizes fold and remember the batch; symbols are bound. */
#define BUILT_PATH "/tmp/mgpu-test-lower-sizes.onnx"
#include "tests/importer/built.h"

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

/* The larger of two sizes, as tf2onnx writes broadcasting: of the same one, of one and 1, of
 * numbers; of two that may differ, nothing is known. */
static void test_larger(void)
{
    struct built b;
    CHECK_OK(build(&b,
                   "input x float N 6\n"
                   "init one int64 2 = 1 1\n"
                   "init five int64 2 = 5 1\n"
                   "init axis int64 1 = 0\n"
                   "s = Shape(x)\n"
                   "same = Max(s, s)\n"
                   "a = Reshape(x, same)\n"
                   "more = Max(one, s)\n"
                   "b = Reshape(x, more)\n"
                   "number = Max(one, five)\n"
                   "c = Expand(x, number)\n"
                   "unknown = Max(s, five)\n"
                   "d = Reshape(x, unknown)\n"
                   "output a\noutput b\noutput c\noutput d\n",
                   5));
    start(&b);
    CHECK(is_batch(value(&b, "a")->dims[0], 5) && mgpu_dim_is_const(value(&b, "a")->dims[1]));
    CHECK(is_batch(value(&b, "b")->dims[0], 5) && mgpu_dim_is_const(value(&b, "b")->dims[1]));
    CHECK(is_batch(value(&b, "c")->dims[0], 5));
    CHECK(value(&b, "d")->dims[0].opaque && value(&b, "d")->dims[0].value == 5);
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

/* Row 20: the example batch written into Reshape. b cannot be told, in a it is the batch. */
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
        CHECK_OK(build(&b,
                       "input x float N 4\n"
                       "init in int64 3 = 2 2 2\n"
                       "init out int64 2 = 2 4\n"
                       "a = Reshape(x, in) name=\"first\"\n"
                       "t = Transpose(a) perm=[0, 2, 1]\n"
                       "y = Reshape(t, out) name=\"last\"\n"
                       "output y float N 4\n",
                       batch));
        CHECK(is_batch(value(&b, "a")->dims[0], batch) && is_batch(value(&b, "y")->dims[0], batch));
        start(&b);
        end(&b);
    }
}

/* A file without symbols, exported with a batch of 3: it stands in shapes on any axis, in constants
 * and in what is spread; other threes stay. */
static void test_example_batch(void)
{
    for (int64_t batch = 2; batch <= 5; batch += 3) {
        struct built b;
        CHECK_OK(build(&b,
                       "input x float 3 6\n"
                       "init in int64 3 = 3 2 3\n"
                       "init turned int64 3 = 2 -1 3\n"
                       "init out int64 2 = 3 6\n"
                       "init column int64 3 = 1 3 1\n"
                       "init token float 1 1 3 = 7 8 9\n"
                       "init spread int64 3 = 1 3 3\n"
                       "a = Reshape(x, in)\n"
                       "t = Transpose(a) perm=[1, 0, 2]\n"
                       "s = Reshape(t, turned)\n"
                       "half = ConstantOfShape(column) value=<float 1 = 0.5>\n"
                       "p = Add(s, half)\n"
                       "e = Expand(token, spread)\n"
                       "c = Concat(e, p) axis=0\n"
                       "back = Transpose(p) perm=[1, 0, 2]\n"
                       "y = Reshape(back, out)\n"
                       "output y float 3 6\noutput c\n",
                       batch));
        CHECK(is_batch(value(&b, "a")->dims[0], batch));
        CHECK(mgpu_dim_is_const(value(&b, "a")->dims[2]));
        CHECK(is_batch(value(&b, "p")->dims[1], batch) && is_batch(value(&b, "c")->dims[1], batch));
        CHECK(is_batch(value(&b, "y")->dims[0], batch));
        start(&b);
        double x[30], y[30];
        for (int i = 0; i < 6 * (int)batch; i++)
            y[i] = (x[i] = i) + 0.5;
        mgpu_run_feed(&b.run, value(&b, "x"), x);
        CHECK_OK(mgpu_run_all(&b.run));
        check_values(&b, value(&b, "y"), 6 * (int)batch, y);
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
    options.binding = (struct mgpu_binding[]){{"N", 5}};
    CHECK_FAILS(build_with(&b, text, &options), "use --batch");
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

int main(void)
{
    mgpu_fold_set(mgpu_ref_fold);
    test_shape_chains();
    test_literals();
    test_larger();
    test_monomials();
    test_taint();
    test_baked();
    test_example_batch();
    test_symbols();
    test_batches();
    return test_end();
}
