/* Equal tensors that an exporter stored once (zero biases, unit scales): the files of weights, the
 * trained model and a file for it all have each parameter under the framework's name. */
#include "exporter/checkpoint.h"
#include "exporter/model_write.h"
#include "tests/convert/weights_check.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

#include <stdlib.h>

#define CASES "tests/cases/"

static char line[256], told[1024];

static void listen(void *context, const char *text)
{
    (void)context;
    snprintf(told, sizeof told, "%s", text);
}

static const struct {
    const char *model;
    int count;
    const char *names[16];              /* of what was merged */
    const char *initializer, *its_name; /* of one that is split off */
} cases[] = {
    {CASES "torch-merged-ts/model.onnx",
     22,
     {"2.weight", "2.bias", "2.running_mean", "2.running_var", "5.weight", "5.bias",
      "5.running_mean", "5.running_var", "8.weight", "8.bias", "10.weight", "10.bias"},
     "2.bias@5.running_mean",
     "5.running_mean"},
    {CASES "torch-merged-dy/model.onnx",
     22,
     {"2.weight", "2.bias", "2.running_mean", "2.running_var", "5.weight", "5.bias",
      "5.running_mean", "5.running_var", "8.weight", "8.bias", "10.weight", "10.bias"},
     "2.bias@5.mean",
     "5.running_mean"},
    {CASES "keras-merged-biases/model.onnx",
     8,
     {"first/bias", "second/bias", "third/bias", "out/bias", "third/kernel"},
     "merged_1/third_1/BiasAdd/ReadVariableOp:0@merged_1/second_1",
     "second/bias"},
};
enum { CASE_COUNT = sizeof cases / sizeof *cases };

/* A file with the tensors of another, tensor i filled with i + 1. */
static void number_all(const char *path, const char *like)
{
    struct mgpu_checkpoint *c;
    CHECK_OK(mgpu_checkpoint_open(&c, like, false));
    struct mgpu_named_array *arrays = calloc((size_t)c->count, sizeof *arrays);
    for (int i = 0; i < c->count; i++) {
        arrays[i].name = (char *)c->tensor[i].name;
        CHECK_OK(mgpu_checkpoint_load(c, i, &arrays[i].array));
        for (int64_t k = 0; k < mgpu_array_count(&arrays[i].array); k++)
            mgpu_set_double(arrays[i].array.data, MGPU_FLOAT, k, i + 1);
    }
    CHECK_OK(mgpu_arrays_write(path, MGPU_TARGET_SAFETENSORS, arrays, c->count));
    for (int i = 0; i < c->count; i++)
        mgpu_array_free(&arrays[i].array);
    free(arrays);
    mgpu_checkpoint_close(c);
}

/* The first element of a tensor; 0: there is none of this name. */
static double first_of(const char *path, const char *name)
{
    struct mgpu_checkpoint *c;
    struct mgpu_array a;
    double first = 0;
    CHECK_OK(mgpu_checkpoint_open(&c, path, false));
    for (int i = 0; i < c->count && first == 0; i++)
        if (!strcmp(c->tensor[i].name, name) && mgpu_checkpoint_load(c, i, &a) == 0) {
            first = mgpu_get_double(a.data, a.type, 0);
            mgpu_array_free(&a);
        }
    mgpu_checkpoint_close(c);
    return first;
}

/* `model` has `count` weights, these among them; `initializer` is the one that is split off for
 * `its_name`. */
static void check_names(const char *model, int count, const char *const *names,
                        const char *initializer, const char *its_name)
{
    const char *plain = tiny_path("plain.safetensors"), *file = tiny_path("file.safetensors"),
               *tuned = tiny_path("tuned.onnx"), *again = tiny_path("again.safetensors"),
               *back = tiny_path("back.onnx"), *legacy = tiny_path("file.h5");
    const struct mgpu_convert_options none = {0}, into = {.model = model},
                                      into_tuned = {.model = tuned};
    char want[32];
    int differ;
    FILE *null = fopen("/dev/null", "w");
    snprintf(want, sizeof want, "%d of %d tensors\n", count, count);
    *told = 0;
    CHECK_OK(weights_convert(line, model, plain, &none));
    CHECK_(!strcmp(line, want) && !*told, "%s: %s %s", model, line, told);
    number_all(file, plain);
    for (int k = 0; names[k]; k++)
        CHECK_(first_of(file, names[k]) > 0, "%s: no '%s'", model, names[k]);
    CHECK_OK(weights_convert(line, file, tuned, &into));
    CHECK_(!strcmp(line, want), "%s: %s", model, line);
    CHECK_(first_of(tuned, initializer) == first_of(file, its_name), "%s: %s", model, initializer);
    CHECK_OK(weights_convert(line, tuned, again, &none));
    CHECK_(!strcmp(line, want) && !*told, "%s: %s %s", model, line, told);
    CHECK_(weights_differ(again, file, 0) == 0, "%s", model);
    CHECK_OK(weights_convert(line, file, back, &into_tuned));
    CHECK_(!strcmp(line, want), "%s: %s", model, line);
    CHECK_(weights_differ(back, tuned, 0) == 0, "%s", model);
    CHECK_OK(mgpu_weights_compare(tuned, file, &none, false, null, &differ));
    CHECK_(differ == 0, "%s: %d differ", model, differ);
    fclose(null);
    CHECK_OK(weights_convert(line, tuned, legacy, &none));
    CHECK_OK(weights_convert(line, legacy, back, &into));
    CHECK_(weights_differ(back, tuned, 0) == 0, "%s", model);
}

/* TorchScript's, of the model itself and not of a layer. */
static void test_outermost(void)
{
    const char *model = tiny_model("producer pytorch\ninput x float N 2\n"
                                   "init f.weight float 2 2 = 1 2 3 4\ninit gamma float 2 = 1\n"
                                   "beta = Identity(gamma)\n"
                                   "h = Gemm(x, f.weight) transB=1 name=\"/f/Gemm\"\n"
                                   "s = Mul(h, gamma) name=\"/Mul\"\n"
                                   "y = Add(s, beta) name=\"/Add\"\noutput y float N 2\n");
    check_names(model, 3, (const char *const[]){"gamma", "beta", NULL}, "gamma@beta", "beta");
}

/* dynamo's, of two copies of a module that has a parameter itself. */
static void test_copies(void)
{
    const char *model = tiny_model("producer pytorch\ninput x float N 2\n"
                                   "init 0.gamma float 2 = 1\n"
                                   "h = Mul(x, 0.gamma) scopes=\"['', '0', 'mul']\"\n"
                                   "y = Mul(h, 0.gamma) scopes=\"['', '1', 'mul_1']\"\n"
                                   "output y float N 2\n");
    check_names(model, 2, (const char *const[]){"0.gamma", "1.gamma", NULL}, "0.gamma@1",
                "1.gamma");
}

int main(void)
{
    tiny_begin();
    mgpu_set_note(listen, NULL);
    for (int i = 0; i < CASE_COUNT; i++)
        check_names(cases[i].model, cases[i].count, cases[i].names, cases[i].initializer,
                    cases[i].its_name);
    test_outermost();
    test_copies();
    tiny_end();
    return test_end();
}
