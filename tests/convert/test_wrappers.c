/* Names of PyTorch with what training put around them, and tensors that are not the model's:
 * reports.md rows 27 and 28, for mgpu-convert, --compare and --init. */
#include "exporter/model_write.h"
#include "tests/convert/weights_check.h"
#include "tests/support/make_onnx.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

static char line[256];
static const char *model, *file, *out;

/* [2,2] each: "fc.weight" holds 1 2 3 4, "out.weight" 5 6 7 8. */
static const char *const net = "producer pytorch\n"
                               "input x float N 2\n"
                               "init fc.weight float 2 2 = %s\n"
                               "init out.weight float 2 2 = %s\n"
                               "h = Gemm(x, fc.weight) transB=1\n"
                               "y = Gemm(h, out.weight) transB=1\n"
                               "output y float N 2\n";

static void make_model(const char *path, const char *fc, const char *last)
{
    char text[512];
    snprintf(text, sizeof text, net, fc, last);
    make_onnx_file(path, text);
}

/* A file of [rows,2] tensors, 1 2 3 ... through all of them; "n_averaged" is a count, as PyTorch's
 * AveragedModel has it. NULL ends the names. */
static void put_as(enum mgpu_target target, const char *const *names, int64_t rows)
{
    struct mgpu_named_array a[8] = {0};
    int n = 0;
    double value = 1;
    for (; names[n]; n++) {
        a[n].name = (char *)names[n];
        if (!strcmp(names[n], "n_averaged")) {
            CHECK_OK(mgpu_array_init(&a[n].array, MGPU_INT64, 0, (int64_t[]){0}, names[n]));
            continue;
        }
        if (mgpu_array_init(&a[n].array, MGPU_FLOAT, 2, (int64_t[]){rows, 2}, names[n]) < 0)
            abort();
        for (int i = 0; i < 2 * rows; i++)
            mgpu_set_double(a[n].array.data, MGPU_FLOAT, i, value++);
    }
    CHECK_OK(mgpu_arrays_write(file, target, a, n));
    for (int i = 0; i < n; i++)
        mgpu_array_free(&a[i].array);
}

static void put(const char *const *names, int64_t rows)
{
    put_as(MGPU_TARGET_SAFETENSORS, names, rows);
}

/* A file for --map. */
static const char *put_rule(const char *text)
{
    const char *rules = tiny_path("rules");
    FILE *f = fopen(rules, "w");
    fputs(text, f);
    fclose(f);
    return rules;
}

#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

/* ---- Chains of prefixes ---------------------------------------------------------------------- */

static const struct {
    const char *names[3], *line;
} chains[] = {
    {{"fc.weight", "out.weight"}, "2 of 2 tensors\n"},
    {{"module.fc.weight", "module.out.weight"}, "2 of 2 tensors, prefix module. removed\n"},
    {{"_orig_mod.fc.weight", "_orig_mod.out.weight"},
     "2 of 2 tensors, prefix _orig_mod. removed\n"},
    {{"_orig_mod.module.fc.weight", "_orig_mod.module.out.weight"},
     "2 of 2 tensors, prefix _orig_mod. removed, prefix module. removed\n"},
    {{"module._orig_mod.fc.weight", "module._orig_mod.out.weight"},
     "2 of 2 tensors, prefix _orig_mod. removed, prefix module. removed\n"},
    {{"model._orig_mod.fc.weight", "model._orig_mod.out.weight"},
     "2 of 2 tensors, prefix _orig_mod. removed, prefix model. removed\n"},
    {{"model.module.fc.weight", "model.module.out.weight"},
     "2 of 2 tensors, prefix model.module. removed\n"},
    {{"state_dict.model.fc.weight", "state_dict.model.out.weight"},
     "2 of 2 tensors, prefix state_dict. removed, prefix model. removed\n"},
    {{"_fsdp_wrapped_module.fc._checkpoint_wrapped_module.weight",
      "_fsdp_wrapped_module.out.weight"},
     "2 of 2 tensors, prefix _fsdp_wrapped_module. removed, "
     "prefix _checkpoint_wrapped_module. removed\n"},
    {{"fc._orig_mod.weight", "out.weight"}, "2 of 2 tensors, prefix _orig_mod. removed\n"},
};

static void test_chains(enum mgpu_target target)
{
    const struct mgpu_convert_options o = {.model = model};
    for (size_t i = 0; i < sizeof chains / sizeof *chains; i++) {
        put_as(target, chains[i].names, 2);
        int rc = weights_convert(line, file, out, &o);
        CHECK_(rc >= 0, "%s: %s", chains[i].names[0], mgpu_error());
        CHECK_(!strcmp(line, chains[i].line), "%s: %s", chains[i].names[0], line);
        CHECK(weights_differ(out, tiny_path("full.onnx"), 0) == 0);
    }
}

/* The model's own parameters are in no layer, and lose the prefix with all others: beside one that
 * has no place, too. Where that makes two names one, none loses it. */
static void test_own_parameters(void)
{
    const char *own = tiny_path("own.onnx");
    const struct mgpu_convert_options o = {.model = own, .partial = true}, all = {.model = own};
    make_onnx_file(own, "producer pytorch\ninput x float N 2\n"
                        "init fc.weight float 2 2 = 1 2 3 4\ninit pos float 2 2 = 0.5\n"
                        "h = Gemm(x, fc.weight) transB=1\ny = MatMul(h, pos)\n"
                        "output y float N 2\n");
    put(NAMES("model.fc.weight", "model.pos", "model.cls"), 2);
    CHECK_FAILS(weights_convert(line, file, out, &all), "'model.cls' [2,2] has no place");
    CHECK_OK(weights_convert(line, file, out, &o));
    CHECK_(!strcmp(line, "2 of 3 tensors, prefix model. removed\n"), "%s", line);
    CHECK(weights_hold(out, "pos", "[2,2]", (double[]){5, 6, 7, 8}));
    put(NAMES("model.fc.weight", "model.pos", "pos"), 2);
    CHECK_OK(weights_convert(line, file, out, &o));
    CHECK_(!strcmp(line, "1 of 3 tensors\n"), "%s", line);
    CHECK(weights_hold(out, "pos", "[2,2]", (double[]){9, 10, 11, 12}));
}

/* ---- What is not the model's ----------------------------------------------------------------- */

/* Of two models no part is taken: neither a parameter of the model itself, which stands apart from
 * its layers, nor what a layer of the model's is called as. */
static void test_parts(void)
{
    const char *own = tiny_path("own.onnx");
    const struct mgpu_convert_options partial = {.model = own, .partial = true};
    make_onnx_file(own, "producer pytorch\ninput x float N 2\n"
                        "init fc.weight float 2 2 = 0 0 0 0\n"
                        "init model.weight float 2 2 = 0 0 0 0\n"
                        "init w float 2 2 = 0 0 0 0\n"
                        "h = Gemm(x, fc.weight) transB=1\nk = Gemm(h, model.weight) transB=1\n"
                        "y = MatMul(k, w)\noutput y float N 2\n");
    put(NAMES("ema.fc.weight", "ema.model.weight", "ema.w", "model.fc.weight", "model.model.weight",
              "model.w"),
        2);
    CHECK_FAILS(weights_convert(line, file, out, &partial),
                "it holds two models, 'ema' and 'model': --map tells which");
}

/* A loss beside the model is named and needs permission; it does not keep the prefix on. */
static void test_foreign(void)
{
    struct mgpu_convert_options o = {.model = model}, partial = {.model = model, .partial = true};
    put(NAMES("model.fc.weight", "model.out.weight", "loss_fn.weight"), 2);
    CHECK_FAILS(weights_convert(line, file, out, &o),
                "'loss_fn.weight' [2,2] has no place in the model (--partial takes the rest)");
    CHECK_OK(weights_convert(line, file, out, &partial));
    CHECK_(!strcmp(line, "2 of 3 tensors, prefix model. removed\n"), "%s", line);
    CHECK(weights_differ(out, tiny_path("full.onnx"), 0) == 0);
    /* "module." goes from all names or from none */
    put(NAMES("module.fc.weight", "module.out.weight", "loss_fn.weight"), 2);
    CHECK_FAILS(weights_convert(line, file, out, &partial), "0 of 3 tensors");
    /* of two models as good as each other none is taken; of two others the better one is */
    put(NAMES("model.fc.weight", "model.out.weight", "ema.fc.weight", "ema.out.weight"), 2);
    CHECK_FAILS(weights_convert(line, file, out, &partial),
                "0 of 4 tensors: it holds two models, 'ema' and 'model': --map tells which");
    partial.by_order = true;
    CHECK_FAILS(weights_convert(line, file, out, &partial), "it holds two models");
    partial.by_order = false;
    /* a rule tells which; what the other holds has no place then */
    o.map = partial.map = put_rule("ema.* -> *\n");
    CHECK_FAILS(
        weights_convert(line, file, out, &o),
        "'model.fc.weight' [2,2] has no place in the model; 'model.out.weight' [2,2] has no "
        "place in the model (--partial takes the rest)");
    CHECK_OK(weights_convert(line, file, out, &partial));
    put_rule("model.fc.weight -> fc.weight\n");
    CHECK_OK(weights_convert(line, file, out, &partial));
    CHECK_(!strcmp(line, "2 of 4 tensors, prefix model. removed\n"), "%s", line);
    CHECK(weights_differ(out, tiny_path("full.onnx"), 0) == 0);
    o.map = partial.map = NULL;
    test_parts();
    put(NAMES("critic.fc.weight", "critic.a.weight", "critic.b.weight", "actor.module.fc.weight",
              "actor.module.out.weight"),
        2);
    CHECK_OK(weights_convert(line, file, out, &partial));
    CHECK_(!strcmp(line, "2 of 5 tensors, prefix actor.module. removed\n"), "%s", line);
    put(NAMES("n_averaged", "module.fc.weight", "module.out.weight"), 2);
    CHECK_OK(weights_convert(line, file, out, &o));
    CHECK_(!strcmp(line, "3 of 3 tensors, prefix module. removed\n"), "%s", line);
    CHECK(weights_differ(out, tiny_path("full.onnx"), 0) == 0);
    put(NAMES("fc.weight", "out.weight", "fc.lora_A.weight"), 2);
    CHECK_FAILS(weights_convert(line, file, out, &o), "is LoRA's change of a weight, beside it");
    /* two names that would become one stay as they are */
    put(NAMES("fc.weight", "fc._orig_mod.weight", "out.weight"), 2);
    CHECK_FAILS(weights_convert(line, file, out, &o), "'fc._orig_mod.weight'");
}

/* As huggingface_hub cuts a large file; a shard of another kind is refused. */
static void test_shards(void)
{
    static const char index[] =
        "{\"metadata\":{\"total_size\":32},\"weight_map\":{\"fc.weight\":\"1.safetensors\","
        "\"out.weight\":\"2.safetensors\"}}";
    const struct mgpu_convert_options o = {.model = model};
    const char *list = tiny_path("model.safetensors.index.json");
    FILE *f = fopen(list, "w");
    fwrite(index, 1, sizeof index - 1, f);
    fclose(f);
    put(NAMES("fc.weight"), 2);
    CHECK(rename(file, tiny_path("1.safetensors")) == 0);
    put(NAMES("out.weight"), 2);
    CHECK(rename(file, tiny_path("2.safetensors")) == 0);
    CHECK_OK(weights_convert(line, list, out, &o));
    CHECK_(!strcmp(line, "2 of 2 tensors\n"), "%s", line);
    make_model(tiny_path("shards.onnx"), "1 2 3 4", "1 2 3 4");
    CHECK(weights_differ(out, tiny_path("shards.onnx"), 0) == 0);
    put_as(MGPU_TARGET_KERAS_H5, NAMES("out.weight"), 2);
    CHECK(rename(file, tiny_path("2.safetensors")) == 0);
    CHECK_FAILS(weights_convert(line, list, out, &o), "a shard of another kind than the first");
}

static char *result(const struct mgpu_convert_options *o)
{
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    CHECK_OK(mgpu_weights_convert(file, out, o, true, to));
    fclose(to);
    return text;
}

static void test_left_out(void)
{
    struct mgpu_convert_options o = {.model = model, .partial = true};
    put(NAMES("fc.weight", "loss_fn.weight"), 2);
    char *text = result(&o);
    CHECK_(strstr(text, "\"matched\":1,\"total\":2") &&
               strstr(text, "{\"name\":\"out.weight\",\"why\":\"missing\"") &&
               strstr(text, "{\"name\":\"loss_fn.weight\",\"why\":\"no place\""),
           "%s", text);
    free(text);
}

/* ---- --compare ------------------------------------------------------------------------------- */

static char *compared(const char *a, const char *b, const char *with, bool json, int *differ)
{
    const struct mgpu_convert_options o = {.model = with};
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    CHECK_OK(mgpu_weights_compare(a, b, &o, json, to, differ));
    fclose(to);
    return text;
}

static char told[1024];

static void listen(void *context, const char *text)
{
    (void)context;
    snprintf(told, sizeof told, "%s", text);
}

static void test_compare(void)
{
    const char *other = tiny_path("other.safetensors"), *keep = file;
    int differ;
    put(NAMES("fc.weight", "out.weight"), 2);
    file = other;
    put(NAMES("model.fc.weight", "model.out.weight"), 2);
    mgpu_set_note(listen, NULL);
    free(compared(keep, other, NULL, false, &differ));
    CHECK_(differ == 4 && strstr(told, "--model"), "%d %s", differ, told);
    mgpu_set_note(NULL, NULL);
    free(compared(keep, other, model, false, &differ));
    CHECK_(differ == 0, "%d", differ);
    file = keep;
}

/* A wrong shape and a tensor too many are said, and the rest is compared. */
static void test_compare_rest(void)
{
    const char *half = tiny_path("half.onnx");
    int differ;
    make_onnx_file(half, "producer pytorch\n"
                         "input x float N 2\n"
                         "init fc.weight float 2 2 = 1 2 3 4\n"
                         "init out.weight float 3 2 = 5 6 7 8 9 10\n"
                         "init head.weight float 2 3 = 1\n"
                         "h = Gemm(x, fc.weight) transB=1\n"
                         "k = Gemm(h, out.weight) transB=1\n"
                         "y = Gemm(k, head.weight) transB=1\n"
                         "output y float N 2\n");
    put(NAMES("fc.weight", "out.weight", "loss_fn.weight"), 2);
    char *text = compared(file, half, NULL, false, &differ);
    CHECK_(strstr(text, "'out.weight' is [2,2], the model wants [3,2]") &&
               strstr(text, "'loss_fn.weight' [2,2] has no place") &&
               strstr(text, "head.weight: only in the second") &&
               strstr(text, "1 of 4 tensors are the same"),
           "%s", text);
    CHECK_(differ == 3, "%d", differ);
    free(text);
    text = compared(file, half, NULL, true, &differ);
    CHECK_(strstr(text, "\"same\":1,\"different\":3,\"total\":4"), "%s", text);
    free(text);
}

/* ---- Folded normalisations ------------------------------------------------------------------- */

/* A convolution that holds its normalisation takes no weights of a file that has both; but takes
 * its own back. */
static void test_folded(void)
{
    const char *both = tiny_path("both.onnx"), *folded = tiny_path("folded.onnx");
    struct mgpu_convert_options none = {0}, into = {.model = folded};
    make_onnx_file(both, "producer pytorch\ninput x float N 2 1\n"
                         "init conv.weight float 2 2 1 = 1 2 3 4\n"
                         "init bn.weight float 2 = 5 6\n"
                         "init bn.bias float 2 = 7 8\n"
                         "init bn.running_mean float 2 = 1 3\n"
                         "init bn.running_var float 2 = 2 4\n"
                         "init fc.weight float 2 2 = 9 10 11 12\n"
                         "c = Conv(x, conv.weight)\n"
                         "b = BatchNormalization(c, bn.weight, bn.bias, bn.running_mean, "
                         "bn.running_var)\n"
                         "f = Flatten(b)\n"
                         "y = Gemm(f, fc.weight) transB=1\noutput y float N 2\n");
    make_onnx_file(folded, "producer pytorch\ninput x float N 2 1\n"
                           "init onnx::Conv_7 float 2 2 1 = .5 .6 .7 .8\n"
                           "init onnx::Conv_8 float 2 = .1 .2\n"
                           "init fc.weight float 2 2 = .25\n"
                           "c = Conv(x, onnx::Conv_7, onnx::Conv_8) name=\"/conv/Conv\"\n"
                           "f = Flatten(c)\n"
                           "y = Gemm(f, fc.weight) transB=1\noutput y float N 2\n");
    CHECK_OK(weights_convert(line, both, file, &none));
    CHECK_FAILS(weights_convert(line, file, out, &into),
                "(the exporter folded a batch normalisation into it)");
    into.partial = true;
    CHECK_OK(weights_convert(line, file, out, &into));
    CHECK_(!strcmp(line, "1 of 6 tensors\n"), "%s", line);
    CHECK(weights_differ(out, folded, 0) == 1);
    CHECK_OK(weights_convert(line, folded, file, &none));
    CHECK_OK(weights_convert(line, file, out, &into));
    CHECK_(!strcmp(line, "3 of 3 tensors\n"), "%s", line);
    CHECK(weights_differ(out, folded, 0) == 0);
}

/* ---- --init ---------------------------------------------------------------------------------- */

static int start_from(const struct mgpu_options *options, double *fc, double *last)
{
    double first[2] = {0};
    int rc = weights_start(model, options, (const char *const[]){"fc.weight", "out.weight", NULL},
                           first);
    *fc = first[0];
    *last = first[1];
    return rc;
}

static void test_init(void)
{
    struct mgpu_options o = MGPU_OPTIONS, none = MGPU_OPTIONS;
    double fc, last;
    o.init = file;
    put(NAMES("model.fc.weight", "model.out.weight"), 2);
    CHECK_OK(start_from(&o, &fc, &last));
    CHECK(fc == 1 && last == 5);

    put(NAMES("fc.weight", "loss_fn.weight"), 2);
    CHECK_FAILS(start_from(&o, &fc, &last), "1 of 2 tensors");
    o.partial = true;
    CHECK_OK(start_from(&o, &fc, &last));
    CHECK(fc == 1 && last == 0.25);

    o.partial = false;
    o.map = put_rule("loss_fn.weight -> out.weight\n");
    CHECK_OK(start_from(&o, &fc, &last));
    CHECK(fc == 1 && last == 5);

    put(NAMES("m.fc.weight", "m.loss_fn.weight"), 2);
    o.map = put_rule("m.* -> *\nm.loss_fn.weight -> out.weight\n");
    CHECK_OK(start_from(&o, &fc, &last));
    CHECK(fc == 1 && last == 5);
    o.map = put_rule("m.loss_fn.* -> out.*\nm.* -> *\n");
    CHECK_OK(start_from(&o, &fc, &last));
    CHECK(fc == 1 && last == 5);
    o.map = put_rule("m.* -> *\nm.loss_fn.* -> out.*\n");
    CHECK_FAILS(start_from(&o, &fc, &last), "the model has no 'loss_fn.weight'");

    o.map = NULL;
    put(NAMES("fc.weight", "out.weight"), 3);
    CHECK_FAILS(start_from(&o, &fc, &last), "'fc.weight' is [3,2], the model wants [2,2]");
    o.skip_mismatch = true;
    CHECK_FAILS(start_from(&o, &fc, &last), "0 of 2 tensors");

    none.partial = true;
    CHECK_FAILS(start_from(&none, &fc, &last), "for --init");
}

int main(void)
{
    tiny_begin();
    model = tiny_path("blank.onnx");
    file = tiny_path("weights.safetensors");
    out = tiny_path("out.onnx");
    make_model(model, "0.25", "0.25");
    make_model(tiny_path("full.onnx"), "1 2 3 4", "5 6 7 8");
    test_chains(MGPU_TARGET_SAFETENSORS);
    test_chains(MGPU_TARGET_NPZ);
    test_own_parameters();
    test_foreign();
    test_shards();
    test_left_out();
    test_compare();
    test_compare_rest();
    test_folded();
    test_init();
    tiny_end();
    return test_end();
}
