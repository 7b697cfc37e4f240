/* Lowering: loops are unrolled, sequences and optionals disappear; loops over the batch and gathers
 * by a sample's place are put back into one computation for all samples. */
#define BUILT_PATH "/tmp/mgpu-test-lower-loops.onnx"
#include "runtime/graph/alike.h"
#include "tests/importer/built.h"

/* ---- What is wrong -------------------------------------------------------------------------- */

#define BODY "graph body {\ninput i int64\ninput c bool\ninput s float 2\n"

static void test_wrong(void)
{
    static const struct {
        const char *text, *message;
    } wrong[] = {
        {"input n int64\n" BODY "k = Identity(c)\nd = Add(s, s)\noutput k\noutput d\n}\n"
         "y = Loop(n, -, x) body=@body\n",
         "known only when the model runs"},
        {"init n int64 = 3\n" BODY "t = ReduceSum(s) keepdims=0\nk = Greater(t, t)\n"
         "d = Add(s, s)\noutput k\noutput d\n}\ny = Loop(n, -, x) body=@body\n",
         "its condition"},
        {"init go bool = 1\n" BODY "k = Identity(c)\nd = Identity(s)\noutput k\noutput d\n}\n"
         "y = Loop(-, go, x) body=@body\n",
         "more than 100000 rounds"},
        {"init n int64 = 1\n" BODY "k = Identity(c)\noutput k\n}\ny = Loop(n, -, x) body=@body\n",
         "the body does not fit"},
        {"s = SequenceEmpty()\ny = Relu(s)\n", "input 0 ('s') is a sequence"},
        {"s = SequenceConstruct(x)\ninit p int64 = 1\ny = SequenceAt(s, p)\n", "outside"},
        {"init p int64 = 0\ny = SequenceAt(x, p)\n", "should be a sequence"},
        {"s = SequenceEmpty()\ny = ConcatFromSequence(s) axis=0\n", "is empty"},
        {"opset 15\no = Optional()\ny = OptionalGetElement(o)\n", "has no value"},
    };
    char text[2048];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct built b;
        snprintf(text, sizeof text, "%s\ninput x float 2\n%soutput y\n",
                 strstr(wrong[i].text, "opset") ? "" : "opset 16", wrong[i].text);
        CHECK_FAILS(build(&b, text, 1), wrong[i].message);
        end(&b);
    }
}

/* ---- Over the batch -------------------------------------------------------------------------- */

/* As PyTorch's older exporter writes nn.EmbeddingBag: round n sums the rows of sample n. */
static const char bag[] = "input ids int64 N 2\n"
                          "init table float 4 2 = 1 10 2 20 3 30 4 40\n"
                          "init flat int64 1 = -1\ninit zero int64 = 0\ninit first int64 1 = 0\n"
                          "init two int64 = 2\ninit yes bool = 1\n"
                          "all = Reshape(ids, flat)\n"
                          "s = Shape(ids)\nn = Gather(s, zero)\n"
                          "graph body {\n"
                          "input i int64\ninput c bool\n"
                          "from = Mul(i, two)\nto = Add(from, two)\n"
                          "a = Unsqueeze(from, first)\nb = Unsqueeze(to, first)\n"
                          "own = Slice(all, a, b, first)\n"
                          "rows = Gather(table, own)\n"
                          "sum = ReduceSum(rows, first) keepdims=0\n"
                          "k = Identity(c)\noutput k\noutput sum\n"
                          "}\n"
                          "y = Loop(n, yes) body=@body\n"
                          "output y float N 2\n";

static void test_bag(void)
{
    for (int64_t batch = 1; batch <= 3; batch += 2) {
        struct built b;
        const double ids[] = {1, 2, 0, 0, 3, 1};
        CHECK_OK(build(&b, bag, batch));
        struct mgpu_value *y = b.g->outputs[0];
        CHECK(!b.g->whole && is_batch(y->dims[0], batch));
        mgpu_graph_prune(b.g);
        CHECK(count_nodes(&b, "gather") == 1 && count_nodes(&b, "slice") == 0);
        differentiate(&b, 1);
        start(&b);
        CHECK_OK(mgpu_run_feed(&b.run, value(&b, "ids"), ids));
        CHECK_OK(mgpu_run_all(&b.run));
        if (batch == 1)
            check_values(&b, y, VALUES(5, 50));
        else
            check_values(&b, y, VALUES(5, 50, 2, 20, 6, 60));
        if (batch == 3)
            check_values(&b, parameter(&b, "table")->gradient, VALUES(2, 2, 2, 2, 1, 1, 1, 1));
        end(&b);
    }
}

/* What each round makes of weights alone is one value for all samples. */
static void test_same_each_round(void)
{
    for (int64_t batch = 1; batch <= 3; batch += 2) {
        struct built b;
        CHECK_OK(build(&b,
                       "input x float N 2\ninit zero int64 = 0\ninit w float 2 = 3 4\n"
                       "shape = Shape(x)\nn = Gather(shape, zero)\n"
                       "graph body {\ninput i int64\ninput c bool\n"
                       "t = Mul(w, w)\nk = Identity(c)\noutput k\noutput t\n}\n"
                       "r = Loop(n, -) body=@body\ny = Add(x, r)\noutput y float N 2\n",
                       batch));
        CHECK(!b.g->whole);
        start(&b);
        CHECK_OK(mgpu_run_feed(&b.run, value(&b, "x"), (const double[]){1, 2, 3, 4, 5, 6}));
        CHECK_OK(mgpu_run_all(&b.run));
        if (batch == 1)
            check_values(&b, b.g->outputs[0], VALUES(10, 18));
        else
            check_values(&b, b.g->outputs[0], VALUES(10, 18, 12, 20, 14, 22));
        end(&b);
    }
}

/* Values that are read twice, one behind the other: 2^40 ways lead back, and each is gone once. */
static void test_many_ways(void)
{
    enum { LEVELS = 40, TEXT = 8192 };
    struct built b;
    char *text = mgpu_xcalloc(TEXT, 1);
    int n = snprintf(text, TEXT,
                     "input x float N 2\ninit zero int64 = 0\nshape = Shape(x)\n"
                     "n = Gather(shape, zero)\ngraph body {\ninput i int64\ninput c bool\n"
                     "v0 = Gather(x, i)\n");
    for (int k = 0; k < LEVELS && n < TEXT; k++)
        n += snprintf(text + n, (size_t)(TEXT - n), "u%d = Abs(v%d)\nv%d = Add(v%d, u%d)\n", k, k,
                      k + 1, k, k);
    snprintf(text + n, (size_t)(TEXT - n),
             "k = Identity(c)\noutput k\noutput v%d\n}\ny = Loop(n, -) body=@body\noutput y\n",
             LEVELS);
    CHECK_OK(build(&b, text, 3));
    CHECK(!b.g->whole);
    start(&b);
    CHECK_OK(mgpu_run_feed(&b.run, value(&b, "x"), (const double[]){1, 2, 3, 4, 5, -6}));
    CHECK_OK(mgpu_run_all(&b.run));
    double more = 0x1p40;
    check_values(&b, b.g->outputs[0], VALUES(more, 2 * more, 3 * more, 4 * more, 5 * more, 0));
    end(&b);
    free(text);
}

/* A round that reads the sample before it is no computation of each sample by itself. */
static void test_mixing_loop(void)
{
    struct built b;
    CHECK_OK(build(&b,
                   "input x float N 2\ninit zero int64 = 0\ninit s float 2 = 0\n"
                   "shape = Shape(x)\nn = Gather(shape, zero)\n"
                   "graph body {\n"
                   "input i int64\ninput c bool\ninput s float 2\n"
                   "row = Gather(x, i)\nt = Add(s, row)\no = Identity(t)\nk = Identity(c)\n"
                   "output k\noutput t\noutput o\n"
                   "}\n"
                   "last, y = Loop(n, -, s) body=@body\n"
                   "output y\n",
                   3));
    CHECK(b.g->whole && !strcmp(b.g->whole->type, "Loop"));
    start(&b);
    end(&b);
}

/* ---- A sample's place ------------------------------------------------------------------------ */

/* Whether the model is the same for each sample of any batch. */
static bool alike(const char *text)
{
    struct built a, b;
    CHECK_OK(build(&a, text, 2));
    CHECK_OK(build(&b, text, 3));
    CHECK(mgpu_batch_unsure(a.g));
    bool same = mgpu_graphs_alike(a.g, b.g);
    start(&a);
    start(&b);
    end(&a);
    end(&b);
    return same;
}

#define PLACES                                                                                     \
    "input x float N 3\ninit zero int64 = 0\ninit one int64 = 1\ninit last int64 1 = 1\n"          \
    "init j int64 1 2 = 0 2\ns = Shape(x)\nn = Gather(s, zero)\np = Range(zero, n, one)\n"         \
    "q = Unsqueeze(p, last)\n"

static void test_places(void)
{
    struct built b;
    static const char own[] = PLACES "init two int64 1 = 2\nm = Max(q, j)\nt = Shape(m)\n"
                                     "u = Expand(q, t)\nv = Expand(j, t)\n"
                                     "a = Unsqueeze(u, two)\nc = Unsqueeze(v, two)\n"
                                     "i = Concat(a, c) axis=2\ny = GatherND(x, i)\noutput y\n";
    CHECK_OK(build(&b, own, 2));
    start(&b);
    CHECK_OK(mgpu_run_feed(&b.run, value(&b, "x"), (double[]){1, 2, 3, 4, 5, 6}));
    CHECK_OK(mgpu_run_all(&b.run));
    check_values(&b, b.g->outputs[0], VALUES(1, 3, 4, 6));
    end(&b);
    CHECK(alike(own));
    /* the same rows, numbered through */
    CHECK(alike(PLACES "init three int64 = 3\ninit flat int64 1 = -1\nr = Mul(q, three)\n"
                       "i = Add(r, j)\nf = Reshape(x, flat)\ny = Gather(f, i)\noutput y\n"));
    /* a mask of positions that are all below the number of positions */
    CHECK(alike(PLACES "init far int64 = 1000\nm = Less(q, far)\ninit no float = 0\n"
                       "y = Where(m, x, no)\noutput y\n"));
    /* the place itself is an operand */
    CHECK(!alike(PLACES "f = Cast(q) to=1\ny = Mul(x, f)\noutput y\n"));
}

/* A branch that the size of the batch chooses. */
static void test_batch_branch(void)
{
#define BRANCH                                                                                     \
    "graph then {\nt = Neg(x)\noutput t\n}\ngraph else {\ne = Exp(x)\noutput e\n}\n"               \
    "c = Greater(n, limit)\ny = If(c) then_branch=@then else_branch=@else\noutput y\n"
    CHECK(alike(PLACES "init limit int64 = 1\n" BRANCH));
    CHECK(!alike(PLACES "init limit int64 = 2\n" BRANCH));
}

/* As PyTorch's dynamo exporter writes the mean of an EmbeddingBag: the last round is apart. */
static const char mean_bag[] =
    "opset 18\ninput ids int64 N 2\n"
    "init table float 4 2 = 1 10 2 20 3 30 4 40\n"
    "init flat int64 1 = -1\ninit zero int64 = 0\ninit one int64 = 1\n"
    "init first int64 1 = 0\ninit two int64 = 2\n"
    "all = Reshape(ids, flat)\nrows = Gather(table, all)\n"
    "s = Shape(ids)\nn = Gather(s, zero)\nnone = SequenceEmpty()\ngo = Less(zero, n)\n"
    "graph last {\nsum = ReduceSum(own, first)\ncount = Shape(own) end=1\n"
    "f = Cast(count) to=1\nq = Div(sum, f)\noutput q\n}\n"
    "graph other {\nm = ReduceMean(own, first)\noutput m\n}\n"
    "graph body {\n"
    "input i int64\ninput c bool\ninput seq float\ninput at int64\n"
    "from = Mul(at, two)\nto = Add(from, two)\n"
    "a = Unsqueeze(from, first)\nb = Unsqueeze(to, first)\n"
    "own = Slice(rows, a, b, first)\n"
    "next = Add(at, one)\nk = Less(next, n)\nend = Equal(next, n)\n"
    "r = If(end) then_branch=@last else_branch=@other\n"
    "longer = SequenceInsert(seq, r)\n"
    "output k\noutput longer\noutput next\n"
    "}\n"
    "bags, steps = Loop(-, go, none, zero) body=@body\n"
    "y = ConcatFromSequence(bags) axis=0\n"
    "output y float N 2\n";

static void test_mean_bag(void)
{
    CHECK(alike(mean_bag));
    for (int64_t batch = 1; batch <= 3; batch += 2) {
        struct built b;
        const double ids[] = {1, 2, 0, 0, 3, 1};
        CHECK_OK(build(&b, mean_bag, batch));
        struct mgpu_value *y = b.g->outputs[0];
        CHECK(y->rank == 2 && is_batch(y->dims[0], batch));
        differentiate(&b, 2);
        start(&b);
        CHECK_OK(mgpu_run_feed(&b.run, value(&b, "ids"), ids));
        CHECK_OK(mgpu_run_all(&b.run));
        if (batch == 1)
            check_values(&b, y, VALUES(2.5, 25));
        else
            check_values(&b, y, VALUES(2.5, 25, 1, 10, 3, 30));
        if (batch == 3)
            check_values(&b, parameter(&b, "table")->gradient, VALUES(2, 2, 2, 2, 1, 1, 1, 1));
        end(&b);
    }
}

int main(void)
{
    mgpu_fold_set(mgpu_ref_fold);
    test_wrong();
    test_bag();
    test_same_each_round();
    test_many_ways();
    test_mixing_loop();
    test_places();
    test_batch_branch();
    test_mean_bag();
    return test_end();
}
