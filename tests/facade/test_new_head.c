/* --classes: the last layer of another model gets another number of classes. */
#include "importer/model.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

#define WEIGHTS(list) list, (int)(sizeof(list) / sizeof *(list))
#define BODY                                                                                       \
    "input x float N 3\n"                                                                          \
    "init w0 float 4 3 = .5 -.3 .2 .1 .4 -.6 -.2 .3 .7 .2 -.1 .5\ninit b0 float 4 = .1 .2 .3 .4\n" \
    "h = Gemm(x, w0, b0) transB=1\nr = Relu(h)\n"
#define NUMBERS "= .1 .2 .3 .4 .5 .6 .7 .8 .9 1 1.1 1.2 1.3 1.4 1.5 1.6 1.7 1.8 1.9 2"
#define OLD     NUMBERS "\n"

enum { SAMPLES = 7, CLASSES = 3 };

static struct mgpu_options options(void)
{
    static const int64_t label[SAMPLES] = {0, 1, 2, 0, 1, 2, 2}, n = SAMPLES;
    struct mgpu_options o = MGPU_OPTIONS;
    o.data = tiny_list(tiny_noise("x", 5, 2, (int64_t[]){SAMPLES, 3}),
                       tiny_data("label", MGPU_INT64, 1, &n, label), NULL);
    o.loss = tiny_list("cross_entropy", NULL);
    o.optimizer = "sgd,lr=0";
    o.devices = "cpu:0";
    o.classes = CLASSES;
    return o;
}

/* ---- What becomes of the layer ----------------------------------------------------------------
 */

struct head {
    const char *text;
    const char *weight, *shape, *bias; /* bias NULL: none */
    double bound;                      /* of the weight's numbers */
    bool zero_bias;
};

static const struct head heads[] = {
    /* PyTorch: both within 1 / sqrt(inputs) */
    {"producer pytorch\n" BODY "init fc.weight float 5 4 " OLD "init fc.bias float 5 = 1 2 3 4 5\n"
     "y = Gemm(r, fc.weight, fc.bias) transB=1\noutput y float N 5\n",
     "fc.weight", "[3,4]", "fc.bias", 0.5, false},
    /* Glorot's numbers and zeros; the softmax takes what comes */
    {BODY "init w float 4 5 " OLD "init b float 5 = 1 2 3 4 5\nm = MatMul(r, w)\ns = Add(m, b)\n"
          "y = Softmax(s)\noutput y float N 5\n",
     "w", "[4,3]", "b", 0.9258200997725514, true},
    {BODY "init w float 5 4 " OLD "t = Transpose(w) perm=[1, 0]\ny = MatMul(r, t)\n"
          "output y float N 5\n",
     "w", "[3,4]", NULL, 0.9258200997725514, false},
    {BODY "init w float 5 4 1 1 " OLD "init b float 5 = 1 2 3 4 5\n"
          "init shape int64 4 = 0 4 1 1\nimage = Reshape(r, shape)\n"
          "c = Conv(image, w, b)\np = GlobalAveragePool(c)\ny = Flatten(p)\noutput y float N 5\n",
     "w", "[3,4,1,1]", "b", 0.9258200997725514, true},
    /* a bias that two layers have: each gets its own */
    {BODY "init w float 4 5 " OLD "init s float 4 = 0\ninit v float 5 4 " OLD
          "init z float 5 = 0\nk = MatMul(r, w)\nl = Add(k, z)\ng = Gemm(l, v, s)\n"
          "init u float 4 5 " OLD "o = MatMul(g, u)\ny = Add(o, z)\noutput y float N 5\n",
     "u", "[4,3]", "z.head", 0.9258200997725514, true},
    /* a Constant's, which is no parameter: the new one is */
    {BODY "k = Constant() value=<float 4 5 " NUMBERS ">\ny = MatMul(r, k)\noutput y float N 5\n",
     "k.head", "[4,3]", NULL, 0.9258200997725514, false},
};

static const struct mgpu_array *find(const struct mgpu_onnx_model *m, const char *name)
{
    int i = mgpu_onnx_find_initializer(m, name);
    CHECK_(i >= 0, "'%s' is not in the file", name);
    return i < 0 ? NULL : &m->initializer[i].array;
}

static void check_numbers(const struct mgpu_array *a, double bound, const char *name)
{
    double most = 0, least = INFINITY;
    for (int64_t i = 0; i < mgpu_array_count(a); i++) {
        double v = fabs(mgpu_get_double(a->data, a->type, i));
        most = fmax(most, v);
        least = fmin(least, v);
    }
    CHECK_(most <= bound && (bound == 0 || (most > bound / 2 && least < most)),
           "'%s' is within [%g, %g], not %g", name, least, most, bound);
}

static void check_saved(const struct head *h, const char *path)
{
    struct mgpu_onnx_file *file;
    struct mgpu_onnx_model *model;
    char shape[MGPU_SHAPE_TEXT];
    CHECK_OK(mgpu_onnx_read(&file, path));
    CHECK_OK(mgpu_onnx_model_new(&model, file));
    const struct mgpu_array *w = find(model, h->weight), *b = h->bias ? find(model, h->bias) : NULL;
    if (w) {
        CHECK_(!strcmp(mgpu_shape_text(shape, w->rank, w->dims), h->shape), "'%s' is %s", h->weight,
               shape);
        check_numbers(w, h->bound, h->weight);
    }
    if (b) {
        CHECK(b->dims[b->rank - 1] == CLASSES);
        check_numbers(b, h->zero_bias ? 0 : h->bound, h->bias);
    }
    CHECK(model->graph.output[0].dims[1] == CLASSES);
    mgpu_onnx_model_free(model);
    mgpu_onnx_free(file);
}

static void test_heads(void)
{
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        struct mgpu_options o = options();
        struct mgpu_trainer *t;
        const char *path = tiny_path("head.onnx");
        CHECK_OK(mgpu_trainer_new(&t, tiny_model(heads[i].text), &o));
        if (!t)
            continue;
        CHECK_OK(mgpu_save(t, path));
        mgpu_trainer_free(t);
        check_saved(&heads[i], path);
    }
}

/* PyTorch's newer exporter declares every tensor of the graph, weights too. */
static void test_declared(void)
{
    const char *path = tiny_path("declared.onnx");
    struct mgpu_options o = options();
    struct mgpu_onnx_file *file;
    struct mgpu_trainer *t;
    int mended = 0;
    o.data = tiny_list(tiny_noise("x", 5, 4, (int64_t[]){SAMPLES, 1, 28, 28}), o.data[1], NULL);
    CHECK_OK(mgpu_trainer_new(&t, "tests/cases/torch-fmnist-cnn-dy/model.onnx", &o));
    CHECK_OK(mgpu_save(t, path));
    mgpu_trainer_free(t);
    CHECK_OK(mgpu_onnx_read(&file, path));
    const Onnx__GraphProto *g = file->proto->graph;
    for (size_t i = 0; i < g->n_value_info; i++) {
        const Onnx__ValueInfoProto *info = g->value_info[i];
        if (strncmp(info->name, "fc2.", 4) != 0)
            continue;
        CHECK(info->type->tensor_type->shape->dim[0]->dim_value == CLASSES);
        mended++;
    }
    CHECK(mended == 2);
    mgpu_onnx_free(file);
}

/* ---- Training it ------------------------------------------------------------------------------
 */

static const struct tiny_weight weights[] = {{"w0", 12}, {"fc.weight", 12}, {"fc.bias", 3}};

static void test_ranks(void)
{
    const char *model = tiny_model(heads[0].text);
    struct mgpu_options o = options();
    static struct tiny_result one, many, other;
    o.optimizer = "sgd,lr=0.1";
    o.precision = "f64";
    o.steps = 4;
    o.batch = SAMPLES;
    o.freeze = tiny_list("w0", "b0", NULL);
    tiny_train(&one, model, &o, WEIGHTS(weights));
    CHECK_(one.rc >= 0 && one.loss[3] < one.loss[0], "%s", one.error);
    CHECK_NEAR(one.weight[0], 0.5, 0);
    o.devices = "cpu:0,cpu:1,cpu:0";
    tiny_train(&many, model, &o, WEIGHTS(weights));
    CHECK(tiny_difference(&many, &one) < 1e-10);
    o.seed = 9;
    tiny_train(&other, model, &o, WEIGHTS(weights));
    CHECK(tiny_difference(&other, &one) > 1e-3);
}

/* Weights of the model as it was: its head is left out, the rest is taken. */
static void test_init(void)
{
    const char *model = tiny_model(heads[0].text), *path = tiny_path("old.onnx");
    struct mgpu_options o = options();
    static struct tiny_result fresh, from;
    struct mgpu_trainer *t;
    o.classes = 0;
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    CHECK_OK(mgpu_weight_write(t, "w0", (double[12]){1, 2, 3}, 12));
    CHECK_OK(mgpu_save(t, path));
    mgpu_trainer_free(t);
    o.classes = CLASSES;
    tiny_train(&fresh, model, &o, WEIGHTS(weights));
    o.init = path;
    tiny_train(&from, model, &o, WEIGHTS(weights));
    CHECK_(from.rc >= 0, "%s", from.error);
    CHECK(from.weight[1] == 2 && fresh.weight[1] != 2);
    CHECK(!memcmp(from.weight + 12, fresh.weight + 12, 15 * sizeof(double)));
}

static void test_resume(void)
{
    const char *model = tiny_model(heads[0].text), *path = tiny_path("run.h5");
    struct mgpu_options o = options();
    static struct tiny_result whole, rest;
    struct mgpu_trainer *t;
    struct mgpu_step_result step;
    o.optimizer = "adam,lr=0.1";
    o.steps = 6;
    o.batch = 3;
    tiny_train(&whole, model, &o, WEIGHTS(weights));
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    for (int i = 0; i < 2; i++)
        CHECK(mgpu_step(t, &step) == 1);
    CHECK_OK(mgpu_save_checkpoint(t, path));
    mgpu_trainer_free(t);
    o.resume = path;
    tiny_train(&rest, model, &o, WEIGHTS(weights));
    CHECK_(rest.rc >= 0, "%s", rest.error);
    CHECK(!memcmp(rest.weight, whole.weight, 27 * sizeof(double)));
}

/* ---- Where it cannot be told ------------------------------------------------------------------
 */

static const struct refusal {
    const char *text, *why;
} refusals[] = {
    {BODY "init w float 4 5 " OLD "m = MatMul(r, w)\ny = Mul(m, m) name=\"square\"\n"
          "output y float N 5\n",
     "node 'square' (Mul) stands between"},
    {BODY "init w float 4 5 " OLD "init s int64 2 = -1 5\nm = MatMul(r, w)\n"
          "y = Reshape(m, s) name=\"move\"\noutput y float N 5\n",
     "node 'move' (Reshape) has the number of classes among its sizes"},
    {BODY "init w float 4 5 " OLD "m = MatMul(r, w) name=\"fc\"\ny = Softmax(m)\n"
          "z = Mul(m, m) name=\"square\"\noutput y float N 5\noutput z float N 5\n",
     "node 'square' (Mul) reads what the last layer makes"},
    {BODY "y = Identity(x)\noutput y float N 3\n", "no layer makes it"},
    {BODY "init w float 4 5 " OLD "init v float 5 4 " OLD "u = Add(w, w)\ny = MatMul(r, u) "
          "name=\"fc\"\noutput y float N 5\n",
     "node 'fc' (MatMul) has no weight that is a stored tensor"},
    {BODY "init s int64 3 = 0 2 2\nq = Reshape(r, s)\n"
          "init w float 2 5 = 1 2 3 4 5 6 7 8 9 10\nm = MatMul(q, w)\n"
          "y = ReduceMean(m) axes=[2] keepdims=0\noutput y float N 2\n",
     "its last layer does not make them"},
};

static void test_refusals(void)
{
    struct mgpu_options o = options();
    struct mgpu_trainer *t;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        o.loss = i == 2 ? tiny_list("cross_entropy:y:label", NULL) : options().loss;
        CHECK_FAILS(mgpu_trainer_new(&t, tiny_model(refusals[i].text), &o), refusals[i].why);
    }
    o.loss = tiny_list("cross_entropy:y:label", "cross_entropy:z:label", NULL);
    CHECK_FAILS(mgpu_trainer_new(&t, tiny_model(refusals[2].text), &o), "'y' and 'z'");
}

int main(void)
{
    tiny_begin();
    test_heads();
    test_declared();
    test_ranks();
    test_init();
    test_resume();
    test_refusals();
    tiny_end();
    return test_end();
}
