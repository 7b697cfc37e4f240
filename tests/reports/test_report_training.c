/* Reports of users about what is trained and with which gradients, with their values (rows 8, 10,
 * 14 and 15). A gradient G arriving at an output of n elements comes from the mean squared error
 * against Y - n/2 * G. */
#include "importer/model.h"
#include "runtime/base/memory.h"
#include "tests/reports/one_step.h"
#include "tests/support/make_onnx.h"

static char *report_of(const char *model, const struct mgpu_options *o)
{
    char *text;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    CHECK_OK(mgpu_report(model, o, true, file));
    fclose(file);
    return text;
}

/* ---- Row 8: which initializers are weights ----------------------------------------------------
 */

static const char *const listed = "ir 3\n"
                                  "input x float N 3\n"
                                  "input W float 2 3\n"
                                  "input b float 2\n"
                                  "input steps int64\n"
                                  "init W float 2 3 = 1\n"
                                  "init b float 2 = 1 0\n"
                                  "init steps int64 = 7\n"
                                  "y = Gemm(x, W, b) transB=1 alpha=0.5 beta=2.0\n";

/* Initializers that are listed as inputs need no data; a counter is not trained. */
static void test_listed_inputs(void)
{
    static const struct tiny_weight weights[] = {{"W", 6}, {"b", 2}};
    char text[1024];
    snprintf(text, sizeof text, "%sf = Cast(steps) to=1\nunused = Add(f, f)\noutput y float N 2\n",
             listed);
    struct mgpu_options o = one_step();
    struct tiny_result r;
    o.data = tiny_list(tiny_floats("x", "1 3", 1.0, 2.0, 3.0),
                       tiny_floats("label", "1 2", 4.0, 2.0), NULL);
    tiny_train(&r, tiny_model(text), &o, WEIGHTS(weights));
    CHECK_(r.rc >= 0, "%s", r.error);
    CHECK_NEAR(r.loss[0], 1, 1e-6); /* y = 5, 3 */
    check_all(r.gradient, (double[]){.5, 1, 1.5, .5, 1, 1.5, 2, 2}, 8, "dW, db");
    check_all(r.weight, (double[]){.5, 0, -.5, .5, 0, -.5, -1, -2}, 8, "W, b");
}

static bool says(const char *report, const char *name, const char *role)
{
    char wanted[128];
    snprintf(wanted, sizeof wanted, "\"name\":\"%s\",\"role\":\"%s\"", name, role);
    char *packed = mgpu_xstrdup(report), *to = packed; /* without spaces */
    for (const char *c = report; *c; c++)
        if (*c != ' ')
            *to++ = *c;
    *to = 0;
    bool found = strstr(packed, wanted) != NULL;
    free(packed);
    return found;
}

/* Mean and variance are statistics, though they are float initializers; without weights there is
 * nothing to train. */
static void test_statistics(void)
{
    char text[1024];
    snprintf(text, sizeof text,
             "%sinput scale float 2\ninput B float 2\ninput mean float 2\ninput var float 2\n"
             "init scale float 2 = 1 2\ninit B float 2 = .5 .1\ninit mean float 2 = .3 .2\n"
             "init var float 2 = 1 4\nz = BatchNormalization(y, scale, B, mean, var)\n"
             "output z float N 2\n",
             listed);
    struct mgpu_options o = one_step();
    const char *model = tiny_model(text);
    char *report = report_of(model, &o);
    static const char *const trained[] = {"W", "b", "scale", "B"};
    for (int i = 0; i < 4; i++)
        CHECK_(says(report, trained[i], "trained"), "'%s': %s", trained[i], report);
    CHECK_(says(report, "mean", "statistic"), "%s", report);
    CHECK_(says(report, "var", "statistic"), "%s", report);
    CHECK_(strstr(report, "steps") && !says(report, "steps", "trained"), "%s", report);
    free(report);

    struct tiny_result r;
    o.data = tiny_list(tiny_floats("x", "1 3", 1.0, 2.0, 3.0),
                       tiny_floats("label", "1 2", 4.0, 2.0), NULL);
    o.freeze = tiny_list("*", NULL);
    tiny_train(&r, model, &o, NULL, 0);
    CHECK_(r.rc < 0 && strstr(r.error, "nothing to train"), "%s", r.error);
}

/* ---- Row 10: frozen batch norm ----------------------------------------------------------------
 */

static const char *const frozen_norm = "input x float N 1\n"
                                       "init scale float 1 = 1\n"
                                       "init B float 1 = 0\n"
                                       "init mean float 1 = 0\n"
                                       "init var float 1 = 1\n"
                                       "init w float 1 1 = 1\n"
                                       "init b float 1 = 0\n"
                                       "a = BatchNormalization(x, scale, B, mean, var) "
                                       "epsilon=0.00000000000000000001\n"
                                       "y = Gemm(a, w, b)\n"
                                       "output y float N 1\n";

static void same_initializers(const char *before, const char *after, const char *const *names)
{
    struct mgpu_onnx_file *file[2];
    struct mgpu_onnx_model *model[2];
    const char *const path[] = {before, after};
    for (int i = 0; i < 2; i++) {
        CHECK_OK(mgpu_onnx_read(&file[i], path[i]));
        CHECK_OK(mgpu_onnx_model_new(&model[i], file[i]));
    }
    for (int k = 0; names[k]; k++) {
        int a = mgpu_onnx_find_initializer(model[0], names[k]);
        int b = mgpu_onnx_find_initializer(model[1], names[k]);
        const struct mgpu_array *x = &model[0]->initializer[a].array;
        const struct mgpu_array *y = &model[1]->initializer[b].array;
        size_t bytes = (size_t)mgpu_array_count(x) * mgpu_dtype_size(x->type);
        CHECK_(a >= 0 && b >= 0 && !memcmp(x->data, y->data, bytes), "'%s' changed", names[k]);
    }
    for (int i = 0; i < 2; i++) {
        mgpu_onnx_model_free(model[i]);
        mgpu_onnx_free(file[i]);
    }
}

static void test_frozen_norm(void)
{
    static const struct tiny_weight weights[] = {{"w", 1}, {"b", 1}};
    static const char *const normalisation[] = {"scale", "B", "mean", "var", NULL};
    const char *model = tiny_model(frozen_norm);
    struct mgpu_options o = one_step();
    struct tiny_result r;
    o.data =
        tiny_list(tiny_floats("x", "2 1", 0.0, 2.0), tiny_floats("label", "2 1", 0.0, 0.0), NULL);
    o.freeze = tiny_list("scale", "B", NULL);
    tiny_train(&r, model, &o, WEIGHTS(weights));
    CHECK_NEAR(r.loss[0], 2, 1e-6);
    CHECK_NEAR(r.gradient[0], 4, 1e-6);
    o.freeze = NULL; /* batch statistics: the inputs become -1 and 1 */
    tiny_train(&r, model, &o, WEIGHTS(weights));
    CHECK_NEAR(r.loss[0], 1, 1e-6);
    CHECK_NEAR(r.gradient[0], 2, 1e-6);

    struct mgpu_trainer *t;
    struct mgpu_step_result s;
    const char *saved = tiny_path("frozen.onnx");
    o.freeze = tiny_list("scale", "B", NULL);
    o.optimizer = "sgd,lr=0.01";
    o.steps = 0;
    o.epochs = 9;
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    while (mgpu_step(t, &s) > 0)
        continue;
    CHECK(s.step == 9 && s.loss < 2);
    CHECK_OK(mgpu_save(t, saved));
    mgpu_trainer_free(t);
    same_initializers(model, saved, normalisation);
}

/* ---- Row 14: branches that were not chosen ----------------------------------------------------
 */

static void expect_gradient(const char *text, const char *x, const char *label, int count,
                            const double *want)
{
    struct tiny_weight p = {"P", count};
    struct mgpu_options o = one_step();
    struct tiny_result r;
    o.data = tiny_list(x, label, NULL);
    tiny_train(&r, tiny_model(text), &o, &p, 1);
    CHECK_(r.rc >= 0, "%s", r.error);
    check_all(r.gradient, want, count, "dP");
    for (int i = 0; i < count && r.rc >= 0; i++)
        CHECK_NEAR(r.gradient[i], want[i], 0); /* small integers: exact */
}

static void test_where(void)
{
    expect_gradient("input x float N 2\n"
                    "init P float 2 = 0 4\n"
                    "init zero float = 0\n"
                    "c = Greater(P, zero)\n"
                    "s = Sqrt(P)\n"
                    "w = Where(c, s, zero)\n"
                    "y = Add(w, x)\n"
                    "output y float N 2\n",
                    tiny_floats("x", "1 2", 0.0, 0.0), tiny_floats("label", "1 2", -1.0, 1.0), 2,
                    (double[]){0, .25});
    expect_gradient("input x float N 1\n"
                    "init P float 1 = -3\n"
                    "init two float = 2\n"
                    "w = Pow(P, two)\n"
                    "y = Add(w, x)\n"
                    "output y float N 1\n",
                    tiny_floats("x", "1 1", 0.0), tiny_floats("label", "1 1", 8.5), 1,
                    (double[]){-6});
    expect_gradient("input d float N 2\n"
                    "init P float 2 = 1 1\n"
                    "init zero float = 0\n"
                    "c = Equal(d, zero)\n"
                    "q = Div(P, d)\n"
                    "y = Where(c, zero, q)\n"
                    "output y float N 2\n",
                    tiny_floats("d", "1 2", 0.0, 1.0), tiny_floats("label", "1 2", -1.0, 0.0), 2,
                    (double[]){0, 1});
}

/* ---- Row 15: operators without a gradient ------------------------------------------------------
 */

static void test_integer_path(void)
{
    static const struct tiny_weight w[] = {{"W", 4}};
    struct mgpu_options o = one_step();
    struct tiny_result r;
    o.data =
        tiny_list(tiny_floats("x", "1 2", 1.0, 0.0), tiny_floats("label", "1 2", 1.0, 2.0), NULL);
    tiny_train(&r,
               tiny_model("input x float N 2\n"
                          "init W float 2 2 = 1 2 3 4\n"
                          "l = MatMul(x, W)\n"
                          "k = ArgMax(l) axis=1 keepdims=1\n"
                          "f = Cast(k) to=1\n"
                          "y = Add(l, f)\n"
                          "output y float N 2\n"),
               &o, WEIGHTS(w));
    CHECK_(r.rc >= 0, "%s", r.error);
    CHECK_NEAR(r.loss[0], 1, 1e-6); /* y = 2, 3 */
    check_all(r.gradient, (double[]){1, 1, 0, 0}, 4, "dW");
}

static void test_round(void)
{
    static const struct tiny_weight w[] = {{"W", 4}};
    struct mgpu_options o = one_step();
    struct tiny_result r;
    o.data =
        tiny_list(tiny_floats("x", "1 2", 1.2, -0.4), tiny_floats("label", "1 2", 0.0, 1.0), NULL);
    tiny_train(&r,
               tiny_model("input x float N 2\n"
                          "init W float 2 2 = 1 2 3 4\n"
                          "q = Round(x)\n"
                          "y = MatMul(q, W)\n"
                          "output y float N 2\n"),
               &o, WEIGHTS(w));
    CHECK_(r.rc >= 0, "%s", r.error);
    check_all(r.gradient, (double[]){1, 1, 0, 0}, 4, "dW after Round"); /* round(x) = 1, 0 */
    tiny_train(&r,
               tiny_model("input x float N 2\n"
                          "init W float 2 2 = 1 2 3 4\n"
                          "init V float 2 2 = 1 2 3 4\n"
                          "a = MatMul(x, W) name=\"first\"\n"
                          "q = Round(a) name=\"rounding\"\n"
                          "y = MatMul(q, V)\n"
                          "output y float N 2\n"),
               &o, WEIGHTS(w));
    CHECK_(r.rc < 0 && r.steps == 0, "Round between two weights was trained");
    CHECK_(strstr(r.error, "Round") && strstr(r.error, "rounding") && strstr(r.error, "'W'"), "%s",
           r.error);
}

/* An unknown operator matters only where the loss looks; two of them are told at once. */
static void test_unknown_operators(void)
{
    static const struct tiny_weight w[] = {{"W", 4}};
    struct mgpu_options o = one_step();
    struct tiny_result r;
    o.data =
        tiny_list(tiny_floats("x", "1 2", 1.0, 0.0), tiny_floats("label", "1 2", 0.0, 1.0), NULL);
    o.loss = tiny_list("mse,output=y", NULL);
    tiny_train(&r,
               tiny_model("input x float N 2\n"
                          "init W float 2 2 = 1 2 3 4\n"
                          "y = MatMul(x, W)\n"
                          "side = Frobnicate(y)\n"
                          "output y float N 2\n"
                          "output side float N 2\n"),
               &o, WEIGHTS(w));
    CHECK_(r.rc >= 0, "%s", r.error);
    check_all(r.gradient, (double[]){1, 1, 0, 0}, 4, "dW beside an unknown operator");
    tiny_train(&r,
               tiny_model("input x float N 2\n"
                          "init W float 2 2 = 1 2 3 4\n"
                          "a = Frobnicate(x) name=\"one\"\n"
                          "b = Transmogrify(x) name=\"other\"\n"
                          "c = Add(a, b)\n"
                          "y = MatMul(c, W)\n"
                          "output y float N 2\n"),
               &o, WEIGHTS(w));
    CHECK_(r.rc < 0 && strstr(r.error, "Frobnicate") && strstr(r.error, "Transmogrify") &&
               strstr(r.error, "'one'") && strstr(r.error, "'other'"),
           "%s", r.error);
}

/* ---- What is reported as wrong without data ----------------------------------------------------
 */

static void test_wrong_nodes(void)
{
    static const struct {
        const char *text, *list;
    } rows[] = {
        {"input x float N 2\nh = Concat(x, x) axis=9\n", "\"unsupported\":[\"node '' (Concat)"},
        {"input x float N 3\nh = Identity(x)\n", "the sizes that are summed over differ"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[256];
        struct mgpu_options o = MGPU_OPTIONS;
        snprintf(text, sizeof text, "%sinit W float 2 2 = 1\ny = MatMul(h, W)\noutput y\n",
                 rows[i].text);
        char *report = report_of(tiny_model(text), &o);
        CHECK_(strstr(report, rows[i].list), "%s", report);
        free(report);
    }
}

/* An input without a shape gets it from data: nothing is wrong without them. */
static void test_unknown_shape(void)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_options o = MGPU_OPTIONS;
    Onnx__ModelProto *m = make_onnx(arena, "input x float N 2\ninit W float 2 2 = 1\n"
                                           "y = MatMul(x, W)\noutput y\n");
    m->graph->input[0]->type->tensor_type->shape = NULL;
    size_t size = onnx__model_proto__get_packed_size(m);
    uint8_t *bytes = mgpu_arena_alloc(arena, size);
    onnx__model_proto__pack(m, bytes);
    const char *path = tiny_path("shapeless.onnx");
    FILE *file = fopen(path, "wb");
    CHECK(file && fwrite(bytes, 1, size, file) == size && !fclose(file));
    char *report = report_of(path, &o);
    CHECK_(strstr(report, "\"unsupported\":[]"), "%s", report);
    CHECK_(strstr(mgpu_error(), "does not say its shape, and no data do"), "%s", mgpu_error());
    free(report);
    mgpu_arena_free(arena);
}

/* What is wrong with a file names it once. */
static void test_named_once(void)
{
    struct mgpu_options o = MGPU_OPTIONS;
    const char *path = tiny_model("opset 17\nopset local 1\nfunction local f(x) -> y {\nopset 17\n"
                                  "opset local 1\ny = local.f(x)\n}\ninput x float 2\n"
                                  "y = local.f(x)\noutput y\n");
    CHECK_FAILS(mgpu_report(path, &o, true, stdout), "is recursive");
    const char *at = strstr(mgpu_error(), path);
    CHECK_(at && !strstr(at + 1, path), "%s", mgpu_error());
}

int main(void)
{
    tiny_begin();
    test_listed_inputs();
    test_statistics();
    test_frozen_norm();
    test_where();
    test_integer_path();
    test_round();
    test_unknown_operators();
    test_wrong_nodes();
    test_named_once();
    test_unknown_shape();
    tiny_end();
    return test_end();
}
