/* Weights there and back, and which tensor is which: files that Keras 2.1 to 3.15 and PyTorch's
 * wrappers wrote (tests/convert/files: each folder's files hold the weights of its model.onnx), and
 * reports.md rows 27, 28 and 30. */
#include "exporter/checkpoint.h"
#include "tests/convert/weights_check.h"
#include "tests/onnx_build.h"
#include "tests/support/make_onnx.h"
#include "tests/test.h"

#define FILES "tests/convert/files/"

static char line[256], told[1024];

static void listen(void *context, const char *text)
{
    (void)context;
    snprintf(told, sizeof told, "%s", text);
}

static const char *in_folder(const char *folder, const char *file)
{
    static char paths[4][256];
    static int turn;
    char *path = paths[turn++ & 3];
    snprintf(path, sizeof paths[0], FILES "%s/%s", folder, file);
    return path;
}

/* A path in the test's folder. */
static const char *path_of(const char *name)
{
    return build_text(build_path(name));
}

/* ---- Files of others ------------------------------------------------------------------------- */

static const struct {
    const char *folder, *file, *line;
    double limit;
} good[] = {
    {"plain", "keras2.1.0.weights.h5", "8 of 8 tensors\n", 0},
    {"plain", "keras2.2.4.parallel2.weights.h5", "8 of 8 tensors, wrapper model_1 removed\n", 0},
    {"plain", "keras2.2.4.parallel4_relocated.weights.h5",
     "8 of 8 tensors, wrapper model_1 removed\n", 0},
    {"plain", "keras2.3.1.parallel4_relocated.model.h5",
     "8 of 8 tensors, wrapper model_1 removed\n", 0},
    {"plain", "tf_keras_mirrored.h5", "8 of 8 tensors\n", 0},
    {"plain", "tfkeras2.13.weights.h5", "8 of 8 tensors\n", 0},
    {"plain", "keras3.weights.h5", "8 of 8 tensors\n", 0},
    {"plain", "keras3.keras", "8 of 8 tensors\n", 0},
    {"plain", "keras3_renamed.h5", "8 of 8 tensors\n", 0},
    {"plain", "keras3_sharded.weights.json", "8 of 8 tensors\n", 0},
    {"plain", "keras3_float16.weights.h5", "8 of 8 tensors\n", 1e-3},
    {"plain", "weights.safetensors", "8 of 8 tensors\n", 0},
    {"plain", "module_prefix.safetensors", "8 of 8 tensors, prefix module. removed\n", 0},
    {"separable", "keras2.3.1.parallel2.weights.h5",
     "15 of 15 tensors, wrapper model_separable removed\n", 0},
    {"transposed", "keras3.keras", "5 of 5 tensors\n", 0},
    {"bilstm", "keras2.2.4.weights.h5", "12 of 12 tensors\n", 0},
    {"bilstm", "keras3.weights.h5", "12 of 12 tensors\n", 0},
    {"bilstm", "weights.safetensors", "12 of 12 tensors\n", 0},
    {"gru_after", "tfkeras2.15.weights.h5", "11 of 11 tensors\n", 0},
    {"nested", "keras2.2.4.weights.h5", "12 of 12 tensors\n", 0},
    {"nested", "keras3.4.1.keras", "12 of 12 tensors\n", 0},
    {"shared", "keras2.3.1.weights.h5", "6 of 6 tensors\n", 0},
    {"slashes", "tfkeras2.15.legacy.h5", "10 of 10 tensors\n", 0},
    {"prefixes", "tfkeras2.15.legacy.h5", "10 of 10 tensors\n", 0},
    {"refuse", "group_cycle.h5", "8 of 8 tensors\n", 0},
};

static void test_good(void)
{
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        const char *folder = strcmp(good[i].folder, "refuse") ? good[i].folder : "plain";
        const char *out = path_of("out.onnx");
        struct mgpu_convert_options o = {.model = in_folder(folder, "blank.onnx")};
        int rc = weights_convert(line, in_folder(good[i].folder, good[i].file), out, &o);
        CHECK_(rc >= 0, "%s/%s: %s", good[i].folder, good[i].file, mgpu_error());
        CHECK_(!strcmp(line, good[i].line), "%s/%s: %s", good[i].folder, good[i].file, line);
        int differ = weights_differ(out, in_folder(folder, "model.onnx"), good[i].limit);
        CHECK_(differ == 0, "%s/%s: %d differ", good[i].folder, good[i].file, differ);
        unlink(out);
    }
}

/* ---- There and back -------------------------------------------------------------------------- */

static void test_back(void)
{
    static const char *const folders[] = {"plain",  "separable", "transposed",
                                          "bilstm", "gru_after", "nested",
                                          "shared", "slashes",   "prefixes"};
    static const char *const ends[] = {"mid.h5", "mid.weights.h5", "mid.safetensors", "mid.npz"};
    for (size_t f = 0; f < sizeof folders / sizeof *folders; f++)
        for (int e = 0; e < 8; e++) {
            struct mgpu_convert_options names = {.names = e >= 4 ? "onnx" : NULL};
            struct mgpu_convert_options o = {.model = in_folder(folders[f], "blank.onnx")};
            const char *mid = path_of(ends[e & 3]), *out = path_of("back.onnx");
            const char *model = in_folder(folders[f], "model.onnx");
            if (e == 5)
                continue; /* Keras 3 has no place for names */
            CHECK_OK(weights_convert(line, model, mid, &names));
            CHECK_OK(weights_convert(line, mid, out, &o));
            CHECK_(weights_differ(out, model, 0) == 0, "%s %s", folders[f], mid);
        }
}

/* What one file says of names, order and structure, others are written with. */
static void test_like(void)
{
    struct mgpu_convert_options o = {.like = in_folder("nested", "keras2.2.4.weights.h5"),
                                     .verify = true};
    int differ;
    const char *out = path_of("like.h5");
    CHECK_OK(weights_convert(line, in_folder("nested", "model.onnx"), out, &o));
    CHECK(!strcmp(line, "12 of 12 tensors\n"));
    o = (struct mgpu_convert_options){0};
    FILE *null = fopen("/dev/null", "w");
    CHECK_OK(mgpu_weights_compare(out, in_folder("nested", "keras2.2.4.weights.h5"), &o, false,
                                  null, &differ));
    CHECK(differ == 0);
    CHECK_OK(
        mgpu_weights_compare(out, in_folder("nested", "blank.onnx"), &o, false, null, &differ));
    CHECK_(differ == 12, "%d", differ);
    o.like = in_folder("plain", "keras3.weights.h5");
    CHECK_FAILS(weights_convert(line, in_folder("nested", "model.onnx"), out, &o),
                "a file of the same layout must be followed, or a .keras");
    fclose(null);
}

/* The same weights in the same groups, in one order. */
static bool same_sequence(const char *a, const char *b)
{
    struct mgpu_checkpoint *x, *y;
    bool same = mgpu_checkpoint_open(&x, a, true) == 0 && mgpu_checkpoint_open(&y, b, true) == 0;
    if (!same)
        return false;
    same = x->weights == y->weights;
    for (int i = 0; same && i < x->weights; i++) {
        struct mgpu_array p, q;
        CHECK_OK(mgpu_checkpoint_load(x, i, &p));
        CHECK_OK(mgpu_checkpoint_load(y, i, &q));
        same = !strcmp(x->tensor[i].group, y->tensor[i].group) &&
               mgpu_array_count(&p) == mgpu_array_count(&q) &&
               !memcmp(p.data, q.data, (size_t)mgpu_array_count(&p) * sizeof(float));
        mgpu_array_free(&p);
        mgpu_array_free(&q);
    }
    mgpu_checkpoint_close(x);
    mgpu_checkpoint_close(y);
    return same;
}

/* An archive tells the legacy layout's order, too: of layers, and what is frozen in a model inside.
 * A store alone does not. */
static void test_legacy_of_archive(void)
{
    struct mgpu_convert_options like = {.like = in_folder("nested", "keras3.4.1.keras")},
                                none = {0};
    const char *out = path_of("archive.h5"), *want = in_folder("nested", "keras2.2.4.weights.h5");
    CHECK_OK(weights_convert(line, in_folder("nested", "model.onnx"), out, &like));
    CHECK(same_sequence(out, want));
    CHECK_OK(weights_convert(line, like.like, out, &none));
    CHECK(same_sequence(out, want));
    *told = 0;
    mgpu_set_note(listen, NULL);
    CHECK_OK(weights_convert(line, in_folder("plain", "keras3.weights.h5"), out, &none));
    mgpu_set_note(NULL, NULL);
    CHECK_(strstr(told, "does not say in which order the model has its layers"), "%s", told);
}

/* Files of weights alone, without a model. */
static void test_without_model(void)
{
    struct mgpu_convert_options none = {0}, o = {.model = in_folder("plain", "blank.onnx")};
    const char *mid = path_of("mid.safetensors"), *out = path_of("out.onnx");
    const char *model = in_folder("plain", "model.onnx");
    CHECK_OK(weights_convert(line, in_folder("plain", "keras3.keras"), mid, &none));
    CHECK_OK(weights_convert(line, mid, out, &o));
    CHECK(weights_differ(out, model, 0) == 0);
    mid = path_of("mid.h5");
    CHECK_OK(
        weights_convert(line, in_folder("plain", "keras2.2.4.parallel2.weights.h5"), mid, &none));
    CHECK_OK(weights_convert(line, mid, out, &o));
    CHECK_(!strcmp(line, "8 of 8 tensors\n"), "%s", line); /* nothing to unwrap any more */
    CHECK(weights_differ(out, model, 0) == 0);
    CHECK_FAILS(weights_convert(line, mid, path_of("x.weights.h5"), &none), "--model");
    CHECK_FAILS(weights_convert(line, mid, out, &none), "--model");
    CHECK_FAILS(weights_convert(line, mid, path_of("x.pt"), &none), "must end in");
}

/* ---- reports.md row 27 ----------------------------------------------------------------------- */

static const char *const dense_1 = "producer tf2onnx\n"
                                   "input x float N 2\n"
                                   "init net/dense_1/MatMul/ReadVariableOp:0 float 2 2 = 0\n"
                                   "init net/dense_1/BiasAdd/ReadVariableOp:0 float 2 = 0.5\n"
                                   "h = MatMul(x, net/dense_1/MatMul/ReadVariableOp:0)\n"
                                   "y = Add(h, net/dense_1/BiasAdd/ReadVariableOp:0)\n"
                                   "output y float N 2\n";

static void test_row_27(void)
{
    static const char *const layers[] = {"input_1", "lambda_1", "lambda_2",
                                         "model_1", "concat",   NULL};
    static const struct weights_entry entries[] = {{"model_1", "dense_1/kernel:0", 2, {2, 2}, 1},
                                                   {"model_1", "dense_1/bias:0", 1, {2}, 5}};
    const char *model = path_of("dense.onnx"), *file = path_of("parallel.h5");
    const char *out = path_of("out.onnx");
    struct mgpu_convert_options o = {.model = model};
    make_onnx_file(model, dense_1);
    weights_legacy(file, layers, entries, 2);
    CHECK_OK(weights_convert(line, file, out, &o));
    CHECK_(!strcmp(line, "2 of 2 tensors, wrapper model_1 removed\n"), "%s", line);
}

static const char *const prefixed = "producer pytorch\n"
                                    "input x float N 2\n"
                                    "init %sfc.weight float 2 2 = 1 2 3 4\n"
                                    "init %sout.weight float 2 2 = 5 6 7 8\n"
                                    "h = Gemm(x, %sfc.weight) transB=1\n"
                                    "y = Gemm(h, %sout.weight) transB=1\n"
                                    "output y float N 2\n";

/* The prefix goes only where all names begin with it. */
static void test_prefixes(void)
{
    const char *bare = path_of("bare.onnx"), *all = path_of("all.safetensors");
    const char *some = path_of("some.onnx"), *out = path_of("out.onnx");
    struct mgpu_convert_options none = {0}, o = {.model = bare};
    char text[1024];
    snprintf(text, sizeof text, prefixed, "", "", "", "");
    make_onnx_file(bare, text);
    snprintf(text, sizeof text, prefixed, "module.", "module.", "module.", "module.");
    make_onnx_file(some, text);
    CHECK_OK(weights_convert(line, some, all, &none));
    CHECK_OK(weights_convert(line, all, out, &o));
    CHECK_(!strcmp(line, "2 of 2 tensors, prefix module. removed\n"), "%s", line);
    CHECK(weights_differ(out, bare, 0) == 0);
    snprintf(text, sizeof text, prefixed, "module.", "module.block.", "module.", "module.block.");
    make_onnx_file(some, text);
    CHECK_OK(weights_convert(line, some, all, &none));
    CHECK_FAILS(weights_convert(line, all, out, &o), "1 of 2 tensors");
    o = (struct mgpu_convert_options){.model = in_folder("plain", "blank.onnx")};
    CHECK_FAILS(
        weights_convert(line, in_folder("plain", "module_in_the_middle.safetensors"), out, &o),
        "6 of 8 tensors");
}

/* ---- reports.md row 28 ----------------------------------------------------------------------- */

static const char *const dense = "producer tf2onnx\n"
                                 "input x float N 4\n"
                                 "init net/dense/MatMul/ReadVariableOp:0 float 4 3 = 0\n"
                                 "init net/dense/BiasAdd/ReadVariableOp:0 float 3 = 0.5\n"
                                 "h = MatMul(x, net/dense/MatMul/ReadVariableOp:0)\n"
                                 "y = Add(h, net/dense/BiasAdd/ReadVariableOp:0)\n"
                                 "output y float N 3\n";

static void check_row_28(const char *layer, int64_t width, bool bias, struct mgpu_convert_options o,
                         const char *part)
{
    char kernel[64], vector[64];
    snprintf(kernel, sizeof kernel, "%s/kernel:0", layer);
    snprintf(vector, sizeof vector, "%s/bias:0", layer);
    const char *const layers[] = {layer, NULL};
    const struct weights_entry entries[] = {{layer, kernel, 2, {4, width}, 1},
                                            {layer, vector, 1, {3}, 5}};
    const char *file = path_of("w.h5"), *out = path_of("row28.onnx");
    weights_legacy(file, layers, entries, bias ? 2 : 1);
    unlink(out);
    int rc = weights_convert(line, file, out, &o);
    CHECK_(part ? rc < 0 && strstr(mgpu_error(), part) : rc >= 0, "%s: %d %s", part ? part : "", rc,
           mgpu_error());
    CHECK(weights_exist(out) == (rc >= 0));
}

static void test_row_28(void)
{
    const char *model = path_of("dense.onnx");
    struct mgpu_convert_options o = {.model = model}, partial = o, skip = o;
    partial.partial = true;
    skip.skip_mismatch = true;
    make_onnx_file(model, dense);
    check_row_28("dense", 3, true, o, NULL);
    check_row_28("dense_191", 3, true, o, "0 of 2 tensors");
    check_row_28("dense_191", 3, true, partial, "0 of 2 tensors");
    check_row_28("dense", 5, true, o,
                 "1 of 2 tensors: 'dense/kernel:0' is [4,5], the model wants [4,3]");
    check_row_28("dense", 5, true, skip, NULL);
    check_row_28("dense", 3, false, o, "'net/dense/bias' [3] of the model is not in it");
    check_row_28("dense", 3, false, partial, NULL);
}

/* ---- Rules, order, ambiguity ----------------------------------------------------------------- */

static void write_text(const char *path, const char *text)
{
    build_bytes(path, text, strlen(text));
}

/* How weights find their places has no meaning without a model. */
static void test_alone(const char *model, const char *file)
{
    static const struct {
        struct mgpu_convert_options options;
        const char *name;
        bool model, file; /* refused for that as IN */
    } alone[] = {
        {{.map = "/nonexistent"}, "--map", true, true},
        {{.by_order = true}, "--by-order", true, true},
        {{.partial = true}, "--partial", true, true},
        {{.skip_mismatch = true}, "--skip-mismatch", true, true},
        {{.keep_wrapper = true}, "--unwrap off", true, false},
        {{.names = "source"}, "--names", false, true},
        {{.verify = true}, "--verify", false, true},
    };
    const char *out = path_of("alone.npz");
    int differ;
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++)
        for (int k = 0; k < 2; k++) {
            int rc = weights_convert(line, k ? model : file, out, &alone[i].options);
            bool refused = k ? alone[i].model : alone[i].file;
            CHECK_(refused ? rc == MGPU_EUSAGE && strstr(mgpu_error(), alone[i].name) : rc == 0,
                   "%s: %d %s", alone[i].name, rc, mgpu_error());
        }
    CHECK_OK(weights_convert(line, file, out, &(struct mgpu_convert_options){0}));
    CHECK(mgpu_weights_compare(file, out, &alone[0].options, false, stdout, &differ) ==
          MGPU_EUSAGE);
    CHECK_FAILS(mgpu_weights_compare(file, model, &alone[0].options, false, stdout, &differ),
                "/nonexistent");
    CHECK_FAILS(
        mgpu_weights_compare(model, model,
                             &(struct mgpu_convert_options){.model = model, .map = "/nonexistent"},
                             false, stdout, &differ),
        "--map: both files are the model");
}

static void test_rules(void)
{
    static const char *const layers[] = {"one", NULL};
    static const struct weights_entry entries[] = {{"one", "one/kernel:0", 2, {2, 2}, 1},
                                                   {"one", "one/bias:0", 1, {2}, 5}};
    const char *model = path_of("dense.onnx"), *file = path_of("w.h5");
    const char *out = path_of("out.onnx"), *rules = path_of("rules");
    struct mgpu_convert_options o = {.model = model, .map = rules};
    make_onnx_file(model, dense_1);
    weights_legacy(file, layers, entries, 2);
    write_text(rules, "# theirs -> ours\none/kernel:0 -> net/dense_1/MatMul/ReadVariableOp:0\n"
                      "  one/bias:0->net/dense_1/bias # by its variable\n");
    CHECK_OK(weights_convert(line, file, out, &o));
    write_text(rules, "one/*:0 -> net/dense_1/*\n");
    CHECK_OK(weights_convert(line, file, out, &o));
    write_text(rules, "one/kernel:0 -> net/dense_1/kernal\n");
    CHECK_FAILS(weights_convert(line, file, out, &o), "did you mean 'net/dense_1/kernel'?");
    write_text(rules, "two -> net/dense_1/kernel\n");
    CHECK_FAILS(weights_convert(line, file, out, &o), "has no 'two'");
    test_alone(model, file);
    write_text(rules, "\n\none/kernel:0\n");
    CHECK_FAILS(weights_convert(line, file, out, &o), "rules:3: ");
    o.map = NULL;
    CHECK_FAILS(weights_convert(line, file, out, &o), "0 of 2 tensors");
    o.by_order = true;
    CHECK_OK(weights_convert(line, file, out, &o));
}

/* Two layers that look alike side by side: a file without names does not tell which is which. */
static void test_ambiguous(void)
{
    static const char *const towers = "producer tf2onnx\n"
                                      "input x float N 2\n"
                                      "init net/a/MatMul/ReadVariableOp:0 float 2 2 = 1 2 3 4\n"
                                      "init net/b/MatMul/ReadVariableOp:0 float 2 2 = 5 6 7 8\n"
                                      "h = MatMul(x, net/a/MatMul/ReadVariableOp:0)\n"
                                      "k = MatMul(%s, net/b/MatMul/ReadVariableOp:0)\n"
                                      "y = Add(h, k)\n"
                                      "output y float N 2\n";
    const char *model = path_of("towers.onnx"), *out = path_of("towers.weights.h5");
    const char *back = path_of("back.onnx");
    struct mgpu_convert_options o = {0}, order = {.by_order = true}, into = {.model = model};
    char text[1024];
    snprintf(text, sizeof text, towers, "x");
    make_onnx_file(model, text);
    CHECK_FAILS(weights_convert(line, model, out, &o),
                "whether Keras lists 'net/a' or 'net/b' first: give --like FILE, a Keras file of "
                "the same model");
    CHECK_FAILS(weights_convert(line, model, out, &order), "whether Keras lists 'net/a' or");
    snprintf(text, sizeof text, towers, "h"); /* one behind the other: the order is certain */
    make_onnx_file(model, text);
    CHECK_OK(weights_convert(line, model, out, &o));
    CHECK_OK(weights_convert(line, out, back, &into));
    CHECK(weights_differ(back, model, 0) == 0);
}

/* Counters of batches are no match, nor in the way of a rule. */
static void test_counters(void)
{
    static const char *const layers[] = {"one", NULL};
    static const struct weights_entry entries[] = {{"one", "one/kernel", 2, {2, 2}, 1},
                                                   {"one", "one/bias", 1, {2}, 5},
                                                   {"one", "one/num_batches_tracked", 1, {2}, 7}};
    const char *model = path_of("dense.onnx"), *file = path_of("counted.h5");
    const char *out = path_of("out.onnx"), *rules = path_of("rules");
    struct mgpu_convert_options o = {.model = model, .partial = true};
    make_onnx_file(model, dense_1);
    weights_legacy(file, layers, entries, 3);
    CHECK_FAILS(weights_convert(line, file, out, &o), "1 of 3 tensors");
    o.map = rules;
    write_text(rules, "one/* -> net/dense_1/*\n");
    CHECK_OK(weights_convert(line, file, out, &o));
}

/* ---- reports.md row 30 ----------------------------------------------------------------------- */

/* A sum of `count` initializers, all through HDF5 and back. */
static void check_names(const char *const *names, int count)
{
    char *text = NULL;
    size_t size;
    const char *model = path_of("names.onnx"), *file = path_of("names.h5");
    const char *out = path_of("names_back.onnx");
    struct mgpu_convert_options o = {0}, into = {.model = model};
    FILE *f = open_memstream(&text, &size);
    fprintf(f, "input h float 2\n");
    for (int i = 0; i < count; i++)
        fprintf(f, "init %s float 2 = %d %d\n", names[i], 10 * i + 1, 10 * i + 2);
    for (int i = 0; i < count; i++)
        fprintf(f, "h%d = Add(%s%.*s, %s)\n", i + 1, "h", i ? 8 : 0,
                mgpu_arena_format(build_arena, "%d", i), names[i]);
    fprintf(f, "output h%d float 2\n", count);
    fclose(f);
    make_onnx_file(model, text);
    free(text);
    CHECK_OK(weights_convert(line, model, file, &o));
    CHECK_OK(weights_convert(line, file, out, &into));
    CHECK(weights_differ(out, model, 0) == 0);
}

/* Names that HDF5 would merge or cannot keep, and very many. */
static void test_row_30(void)
{
    enum { DEEP = 2000 };
    char longest[301];
    memset(longest, 'n', 300);
    longest[300] = 0;
    const char *const odd[] = {"conv1", "conv1/bn", "/conv1/w", "a//b",
                               ".",     longest,    "x:0",      "größe"};
    const char *deep[DEEP];
    for (int i = 0; i < DEEP; i++)
        deep[i] = mgpu_arena_format(build_arena, "a_layer_with_a_name_of_forty_bytes__%04d.w", i);
    check_names(odd, 8);
    check_names(deep, DEEP);
}

int main(void)
{
    build_begin();
    test_good();
    test_back();
    test_like();
    test_legacy_of_archive();
    test_without_model();
    test_row_27();
    test_prefixes();
    test_row_28();
    test_rules();
    test_counters();
    test_ambiguous();
    test_row_30();
    build_end();
    return test_end();
}
