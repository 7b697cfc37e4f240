/* What PyTorch's modules and buffers are called, as far as a graph tells: names that TorchScript
 * leaves parts of, and constants that are a state_dict's. */
#include "exporter/checkpoint.h"
#include "runtime/base/file_name.h"
#include "tests/convert/weights_check.h"
#include "tests/support/make_onnx.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

static char line[256], told[4096];
static const struct mgpu_convert_options none;

static void listen(void *context, const char *text)
{
    (void)context;
    snprintf(told + strlen(told), sizeof told - strlen(told), "%s\n", text);
}

static const char *model_of(const char *name, const char *text)
{
    const char *path = tiny_path(name);
    make_onnx_file(path, text);
    return path;
}

/* Converts; what is told begins anew. */
static int convert(const char *in, const char *out, const struct mgpu_convert_options *o)
{
    *told = *line = 0;
    return weights_convert(line, in, out, o);
}

static int tensors_of(const char *path)
{
    struct mgpu_checkpoint *c;
    CHECK_OK(mgpu_checkpoint_open(&c, path, false));
    int n = c->count;
    mgpu_checkpoint_close(c);
    return n;
}

/* ---- Modules --------------------------------------------------------------------------------- */

/* Linears' weights lie turned in these. */
#define WEIGHTS "init onnx::MatMul_1 float 2 2 = 1 3 2 4\ninit onnx::MatMul_2 float 2 2 = 5 7 6 8\n"
static const double first[] = {1, 2, 3, 4}, second[] = {5, 6, 7, 8};

/* A state_dict of two weights, `a` with these numbers and `b`. */
static const char *state_of(const char *name, const char *a, const char *b)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    const char *path = tiny_path(name);
    const char *model = model_of(
        "state.onnx", mgpu_arena_format(arena,
                                        "producer pytorch\ninput x float N 2\n"
                                        "init %s float 2 2 = 1 2 3 4\ninit %s float 2 2 = 5 6 7 8\n"
                                        "h = Gemm(x, %s) transB=1\ny = Gemm(h, %s) transB=1\n"
                                        "output y float N 2\n",
                                        a, b, a, b));
    CHECK_OK(convert(model, path, &none));
    mgpu_arena_free(arena);
    return path;
}

/* transformer = ModuleDict(h=ModuleList(blocks)): what kept its name in a block names what else is
 * in it, but for what may be between; a bias names its layer. */
static void test_proven(void)
{
    const char *file = tiny_path("proven.safetensors");
    const char *model =
        model_of("proven.onnx", "producer pytorch\ninput x float N 3 2\n" WEIGHTS
                                "init transformer.h.0.ln.bias float 2 = 1 2\n"
                                "init transformer.h.0.mlp.fc.bias float 2 = 3\n"
                                "a = Add(x, transformer.h.0.ln.bias) name=\"/h.0/ln/Add\"\n"
                                "b = MatMul(a, onnx::MatMul_1) name=\"/h.0/attn/proj/MatMul\"\n"
                                "c = MatMul(b, onnx::MatMul_2) name=\"/h.0/mlp/fc/MatMul\"\n"
                                "y = Add(transformer.h.0.mlp.fc.bias, c) name=\"/h.0/mlp/fc/Add\"\n"
                                "output y float N 3 2\n");
    CHECK_OK(convert(model, file, &none));
    CHECK_(strstr(told, "'transformer.h.0.attn.proj.weight' is the name of the modules"), "%s",
           told);
    CHECK(weights_hold(file, "transformer.h.0.attn.proj.weight", "[2,2]", first));
    CHECK(weights_hold(file, "transformer.h.0.mlp.fc.weight", "[2,2]", second));
}

/* heads = ModuleDict(q, k), without biases: their path is short, which is said. Their own names
 * find the place, and a file that has them gives them. */
static void test_dict(void)
{
    const char *file = tiny_path("dict.safetensors"), *out = tiny_path("out.onnx");
    const char *model = model_of("dict.onnx", "producer pytorch\ninput x float N 2\n" WEIGHTS
                                              "a = MatMul(x, onnx::MatMul_1) name=\"/q/MatMul\"\n"
                                              "y = MatMul(a, onnx::MatMul_2) name=\"/k/MatMul\"\n"
                                              "output y float N 2\n");
    const char *state = state_of("heads.safetensors", "heads.k.weight", "heads.q.weight");
    const struct mgpu_convert_options into = {.model = model, .verify = true},
                                      as = {.like = state, .verify = true};
    CHECK_OK(convert(model, file, &none));
    CHECK_(strstr(told, "'q.weight' and 1 more are the names of the modules that"), "%s", told);
    CHECK(weights_hold(file, "q.weight", "[2,2]", first));
    CHECK_OK(convert(model, file, &as));
    CHECK_(!strstr(told, "names"), "%s", told);
    CHECK(weights_hold(file, "heads.q.weight", "[2,2]", first));
    CHECK(weights_hold(file, "heads.k.weight", "[2,2]", second));
    CHECK_OK(convert(state, out, &into));
    CHECK_OK(convert(out, file, &as));
    CHECK(weights_differ(file, state, 0) == 0);
}

/* Two blocks that are ModuleDicts have an 'fc' each, which TorchScript counts on: that says nothing
 * of their names. The order, where it is asked for, tells which is which. */
static void test_counted(void)
{
    const char *file = tiny_path("counted.safetensors"), *out = tiny_path("out.onnx");
    const char *model =
        model_of("counted.onnx", "producer pytorch\ninput x float N 2\n" WEIGHTS
                                 "a = MatMul(x, onnx::MatMul_1) name=\"/fc/MatMul\"\n"
                                 "y = MatMul(a, onnx::MatMul_2) name=\"/fc_1/MatMul\"\n"
                                 "output y float N 2\n");
    const char *state = state_of("blocks.safetensors", "blocks.0.fc.weight", "blocks.1.fc.weight");
    const struct mgpu_convert_options into = {.model = model},
                                      in_order = {.model = model, .by_order = true},
                                      as = {.like = state, .by_order = true};
    CHECK_OK(convert(model, file, &none));
    CHECK_(strstr(told, "does not tell what 'onnx::MatMul_1' and 1 more are called"), "%s", told);
    CHECK(convert(state, out, &into) < 0);
    CHECK_(strstr(mgpu_error(), "--by-order takes them so"), "%s", mgpu_error());
    CHECK_OK(convert(state, out, &in_order));
    CHECK(weights_differ(out, model, 0) == 0);
    CHECK_OK(convert(model, file, &as));
    CHECK(weights_differ(file, state, 0) == 0);
}

/* A module that is called twice is counted on, too, and has its name. */
static void test_twice(void)
{
    const char *file = tiny_path("twice.safetensors");
    const char *model =
        model_of("twice.onnx", "producer pytorch\ninput x float N 2\n" WEIGHTS
                               "a = MatMul(x, onnx::MatMul_1) name=\"/fc/MatMul\"\n"
                               "b = MatMul(a, onnx::MatMul_2) name=\"/out/MatMul\"\n"
                               "y = MatMul(b, onnx::MatMul_1) name=\"/fc_1/MatMul\"\n"
                               "output y float N 2\n");
    CHECK_OK(convert(model, file, &none));
    CHECK_(tensors_of(file) == 2, "%d", tensors_of(file));
    CHECK(weights_hold(file, "fc.weight", "[2,2]", first));
}

/* ---- Buffers --------------------------------------------------------------------------------- */

#define NODES                                                                                      \
    "a = Sub(x, mean) name=\"/Sub\"\nb = Neg(a) name=\"/m/Neg\"\n"                                 \
    "c = Where(m.mask, b, a) name=\"/m/Where\"\n"                                                  \
    "d = Mul(c, scale) name=\"/Mul\"\n"                                                            \
    "y = Gemm(d, fc.weight) transB=1 name=\"/fc/Gemm\"\noutput y float N 2\n"
#define MODEL(mean, mask, scale, weight)                                                           \
    "producer pytorch\ninput x float N 2\ninit mean float 2 = " mean                               \
    "\ninit m.mask bool 2 = " mask "\ninit scale float = " scale                                   \
    "\ninit fc.weight float 2 2 = " weight "\n" NODES

static const char *const fresh = MODEL("0", "0 0", "1", "1 0 0 1");
static const char *const other = MODEL("1 2", "0 1", "3", "1 2 3 4");

static bool holds_other(const char *path)
{
    return weights_hold(path, "mean", "[2]", (const double[]){1, 2}) &&
           weights_hold(path, "m.mask", "[2]", (const double[]){0, 1}) &&
           weights_hold(path, "scale", "[]", (const double[]){3});
}

/* The graph has them as constants: these get the file's numbers, and are given back. */
static void test_buffers(void)
{
    const char *file = tiny_path("buffers.safetensors"), *out = tiny_path("out.onnx");
    const char *into_it = model_of("fresh.onnx", fresh), *from = model_of("other.onnx", other);
    const struct mgpu_convert_options into = {.model = into_it, .verify = true};
    CHECK_OK(convert(from, file, &none));
    CHECK_(tensors_of(file) == 4 && !*told, "%d %s", tensors_of(file), told);
    CHECK(holds_other(file));
    CHECK_OK(convert(file, out, &into));
    CHECK_(!strcmp(line, "4 of 4 tensors\n"), "%s", line);
    CHECK(weights_differ(out, from, 0) == 0);
    CHECK(holds_other(out));
}

/* Of these the graph has only the beginning of a table, and what a comparison made of a mask. */
static void test_parts(void)
{
    const char *file = tiny_path("parts.safetensors"), *out = tiny_path("out.onnx");
    const char *model = model_of("parts.onnx", "producer pytorch\ninput x float N 2\n"
                                               "init /pe/Slice_output_0 int64 2 2 = 1 0 0 1\n"
                                               "init /Equal_output_0 bool 2 2 = 0 1 0 0\n"
                                               "init /Constant_output_0 float = 0\n"
                                               "init fc.weight float 2 2 = 1 2 3 4\n"
                                               "a = GatherElements(x, /pe/Slice_output_0) axis=1\n"
                                               "b = Where(/Equal_output_0, /Constant_output_0, a)\n"
                                               "y = MatMul(b, fc.weight)\noutput y float N 2\n");
    const char *state = "producer pytorch\ninput x float N 2\n"
                        "init fc.weight float 2 2 = 1 2 3 4\ninit pe.pe int64 3 2 = %s\n"
                        "init mask float 2 3 = 1 0 0 1 1 0\ny = MatMul(x, fc.weight)\n"
                        "a = Gather(mask, pe.pe)\noutput y float N 2\noutput a float 3 2 3\n";
    const struct mgpu_convert_options into = {.model = model};
    char filled[1024];
    snprintf(filled, sizeof filled, state, "1 0 0 1 1 1");
    CHECK_OK(convert(model_of("state.onnx", filled), file, &none));
    CHECK_OK(convert(file, out, &into));
    CHECK_(!strcmp(line, "3 of 3 tensors\n"), "%s", line);
    snprintf(filled, sizeof filled, state, "1 0 0 0 1 1");
    CHECK_OK(convert(model_of("state.onnx", filled), file, &none));
    CHECK(convert(file, out, &into) < 0);
    CHECK_(strstr(mgpu_error(), "'pe.pe' [3,2] has no place"), "%s", mgpu_error());
}

/* What is not persistent is in no state_dict. */
static void test_without_buffers(void)
{
    const char *file = tiny_path("few.safetensors"), *out = tiny_path("out.onnx");
    const char *into_it = model_of("fresh.onnx", fresh);
    const char *from =
        model_of("few.onnx", "producer pytorch\ninput x float N 2\n"
                             "init fc.weight float 2 2 = 1 2 3 4\n"
                             "y = Gemm(x, fc.weight) transB=1\noutput y float N 2\n");
    const struct mgpu_convert_options into = {.model = into_it};
    CHECK_OK(convert(from, file, &none));
    CHECK_OK(convert(file, out, &into));
    CHECK_(strstr(told, "does not hold 'mean' and 1 more constants: they stay"), "%s", told);
    CHECK(weights_hold(out, "mean", "[2]", (const double[]){0, 0}));
}

/* ---- Runs ------------------------------------------------------------------------------------ */

/* One step from a file of weights, or on from a checkpoint; saves to all of the names. */
static double step(const char *model, const char *init, const char *resume, const char *const *save)
{
    struct mgpu_options o = MGPU_OPTIONS;
    struct mgpu_trainer *t;
    struct mgpu_step_result s = {0};
    o.data = tiny_list(tiny_noise("x", 1, 2, (int64_t[]){4, 2}),
                       tiny_noise("label", 2, 2, (int64_t[]){4, 2}), NULL);
    o.loss = tiny_list("mse", NULL);
    o.optimizer = "sgd,lr=0.1";
    o.devices = "cpu:0";
    o.batch = 4;
    o.epochs = 2;
    o.init = init;
    o.resume = resume;
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    CHECK(mgpu_step(t, &s) == 1);
    for (int i = 0; save[i]; i++)
        CHECK_OK(mgpu_has_extension(save[i], ".h5") ? mgpu_save_checkpoint(t, save[i])
                                                    : mgpu_save(t, save[i]));
    mgpu_trainer_free(t);
    return s.loss;
}

/* A run computes with what the file has, does not train it, and saves it in every kind of file; a
 * run that goes on has it from the checkpoint. */
static void test_run(void)
{
    const char *file = tiny_path("run.safetensors"), *state = tiny_path("trained.safetensors");
    const char *onnx = tiny_path("trained.onnx"), *checkpoint = tiny_path("run.h5");
    const char *plain = model_of("fresh.onnx", fresh), *filled = model_of("other.onnx", other);
    const char *const save[] = {state, onnx, checkpoint, NULL}, *const nothing[] = {NULL};
    CHECK_OK(convert(filled, file, &none));
    double want = step(filled, NULL, NULL, nothing);
    CHECK_NEAR(step(plain, file, NULL, save), want, 0);
    CHECK(holds_other(state) && holds_other(onnx));
    CHECK(weights_differ(state, onnx, 0) == 0);
    CHECK(weights_differ(state, file, 1e-4) == 1); /* fc.weight */
    CHECK_NEAR(step(plain, NULL, checkpoint, nothing), step(onnx, NULL, NULL, nothing), 1e-6);
}

int main(void)
{
    tiny_begin();
    mgpu_set_note(listen, NULL);
    test_proven();
    test_dict();
    test_counted();
    test_twice();
    test_buffers();
    test_parts();
    test_without_buffers();
    test_run();
    tiny_end();
    return test_end();
}
