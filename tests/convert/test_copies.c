/* Tensors that a file holds twice: a state_dict of a module that is registered under two names, and
 * Keras's legacy layout of a model inside that is used at two depths. */
#include "exporter/model_write.h"
#include "tests/convert/weights_check.h"
#include "tests/support/make_onnx.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

#include <stdlib.h>
#include <string.h>

static char line[256], told[1024];

static void listen(void *context, const char *text)
{
    (void)context;
    snprintf(told, sizeof told, "%s", text);
}

/* ---- PyTorch --------------------------------------------------------------------------------- */

struct entry {
    const char *name;
    int rank;
    double first, step; /* the numbers; a step of zero: all alike */
};

static const char *state_dict(const struct entry *e)
{
    const char *path = tiny_path("copies.safetensors");
    struct mgpu_array_list list = {0};
    for (; e->name; e++) {
        struct mgpu_array *a = &mgpu_array_list_add(&list, e->name)->array;
        CHECK_OK(mgpu_array_init(a, MGPU_FLOAT, e->rank, (const int64_t[]){2, 2}, e->name));
        for (int64_t i = 0; i < mgpu_array_count(a); i++)
            mgpu_set_double(a->data, MGPU_FLOAT, i, e->first + e->step * (double)i);
    }
    CHECK_OK(mgpu_arrays_write(path, MGPU_TARGET_SAFETENSORS, list.item, list.count));
    mgpu_array_list_free(&list);
    return path;
}

/* blk = blocks[0]: a layer, and a normalisation as it is at first, whose numbers are alike. */
static void test_registered(void)
{
    struct entry e[] = {{"blk.0.weight", 2, 1, 1},
                        {"blk.1.weight", 1, 1, 0},
                        {"blk.1.bias", 1, 0, 0},
                        {"blocks.0.0.weight", 2, 1, 1},
                        {"blocks.0.1.weight", 1, 1, 0},
                        {"blocks.0.1.bias", 1, 0, 0},
                        {"again", 2, 1, 1},
                        {NULL, 0, 0, 0}};
    const char *model = tiny_path("copies.onnx"), *out = tiny_path("copies.out.onnx");
    const struct mgpu_convert_options o = {.model = model};
    make_onnx_file(model, "producer pytorch\ninput x float N 2\n"
                          "init blk.0.weight float 2 2 = normal 1\n"
                          "init blk.1.weight float 2 = 3\ninit blk.1.bias float 2 = 4\n"
                          "a = Gemm(x, blk.0.weight) transB=1 name=\"/blk/blk.0/Gemm\"\n"
                          "y = LayerNormalization(a, blk.1.weight, blk.1.bias) "
                          "name=\"/blk/blk.1/LayerNormalization\"\noutput y float N 2\n");
    CHECK_OK(weights_convert(line, state_dict(e), out, &o));
    CHECK_(!strcmp(line, "7 of 7 tensors\n"), "%s", line);
    CHECK_(strstr(told, "4 tensors are copies of what has another name there: '"), "%s", told);
    CHECK(weights_hold(out, "blk.0.weight", "[2,2]", (const double[]){1, 2, 3, 4}));
    e[3].step = 2;
    CHECK_FAILS(weights_convert(line, state_dict(e), out, &o), "'blocks.0.0.weight' [2,2] has no");
    e[3].step = 1;
    e[5].first = 1; /* the module is no copy then, and one number says nothing */
    CHECK_FAILS(weights_convert(line, state_dict(e), out, &o), "'blocks.0.1.bias' [2] has no");
}

/* ---- Keras ----------------------------------------------------------------------------------- */

static void test_inside(void)
{
    static const char *const layers[] = {"outer", "inner", "dense_1", NULL};
    struct weights_entry e[] = {{"outer", "inner/dense/kernel:0", 2, {2, 2}, 1},
                                {"inner", "inner/dense/kernel:0", 2, {2, 2}, 1},
                                {"dense_1", "dense_1/kernel:0", 2, {2, 2}, 5}};
    const char *model = tiny_path("inside.onnx"), *file = tiny_path("inside.h5"),
               *out = tiny_path("inside.out.h5");
    const struct mgpu_convert_options into = {.model = model}, like = {.like = file};
    make_onnx_file(model, "producer tf2onnx\ninput x float N 2\n"
                          "init m/outer/inner/dense/MatMul/ReadVariableOp:0 float 2 2 = 7\n"
                          "init m/dense_1/MatMul/ReadVariableOp:0 float 2 2 = 8\n"
                          "a = MatMul(x, m/outer/inner/dense/MatMul/ReadVariableOp:0)\n"
                          "y = MatMul(a, m/dense_1/MatMul/ReadVariableOp:0)\n"
                          "output y float N 2\n");
    weights_legacy(file, layers, e, 3);
    CHECK_OK(weights_convert(line, file, tiny_path("inside.out.onnx"), &into));
    CHECK_(!strcmp(line, "3 of 3 tensors\n"), "%s", line);
    CHECK_(strstr(told, "1 tensor is a copy of what has another name there: '"), "%s", told);
    CHECK_OK(weights_convert(line, model, out, &like)); /* both get the model's numbers */
    CHECK(weights_hold(out, "inner/dense/kernel:0", "[2,2]", (const double[]){7, 7, 7, 7}));
    CHECK(weights_hold(out, "dense_1/kernel:0", "[2,2]", (const double[]){8, 8, 8, 8}));
    e[1].first = 2;
    weights_legacy(file, layers, e, 3);
    CHECK_FAILS(weights_convert(line, file, tiny_path("inside.out.onnx"), &into), "has no place");
}

int main(void)
{
    tiny_begin();
    mgpu_set_note(listen, NULL);
    test_registered();
    test_inside();
    tiny_end();
    return test_end();
}
