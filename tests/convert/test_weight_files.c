/* What is taken, refused and said: contents that are no finite number in the model, names that are
 * only numbers, rules, names twice, and names in a scope. For mgpu-convert and --init. */
#include "exporter/model_write.h"
#include "tests/convert/weights_check.h"
#include "tests/support/make_onnx.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

static char line[256];
static const char *model, *file, *out, *rules;

static const char *const net = "producer pytorch\n"
                               "input x %s N 2\n"
                               "init 0.weight %s 2 2 = %s\n"
                               "init 0.bias %s 2 = %s\n"
                               "init 2.weight %s 2 2 = %s\n"
                               "init 2.bias %s 2 = %s\n"
                               "h = Gemm(x, 0.weight, 0.bias) transB=1\n"
                               "y = Gemm(h, 2.weight, 2.bias) transB=1\n"
                               "output y %s N 2\n";

static void make_model(const char *path, const char *t, const char *const w[4])
{
    char text[1024];
    snprintf(text, sizeof text, net, t, t, w[0], t, w[1], t, w[2], t, w[3], t);
    make_onnx_file(path, text);
}

/* An npz of the net's weights, 1 2 3 ... through all of them, but the first. */
static void put(enum mgpu_dtype type, double first, const char *const names[4])
{
    struct mgpu_named_array a[4] = {0};
    double value = 1;
    for (int k = 0; k < 4; k++) {
        a[k].name = (char *)names[k];
        CHECK_OK(mgpu_array_init(&a[k].array, type, k % 2 ? 1 : 2, (int64_t[]){2, 2}, names[k]));
        for (int i = 0; i < mgpu_array_count(&a[k].array); i++, value++)
            mgpu_set_double(a[k].array.data, type, i, value == 1 ? first : value);
    }
    CHECK_OK(mgpu_arrays_write(file, MGPU_TARGET_NPZ, a, 4));
    for (int k = 0; k < 4; k++)
        mgpu_array_free(&a[k].array);
}

static const char *const own[] = {"0.weight", "0.bias", "2.weight", "2.bias"};

static void write_text(const char *path, const char *text, size_t size)
{
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(text, 1, size, f) == size);
    fclose(f);
}

static void write_rules(const char *text)
{
    write_text(rules, text, strlen(text));
}

/* ---- What is not finite, and what is not after its conversion -------------------------------- */

static int start_from(const struct mgpu_options *options, double *first)
{
    return weights_start(model, options, (const char *const[]){"0.weight", NULL}, first);
}

static void check_refused(const char *into, const char *part)
{
    struct mgpu_convert_options o = {.model = into};
    CHECK_FAILS(weights_convert(line, file, out, &o), part);
    CHECK(!weights_exist(out));
    o.allow_nonfinite = true;
    CHECK_OK(weights_convert(line, file, out, &o));
    unlink(out);
}

static void test_finite(void)
{
    const char *half = tiny_path("half.onnx");
    struct mgpu_options o = MGPU_OPTIONS;
    double first;
    make_model(half, "float16", (const char *const[]){"0", "0", "0", "0"});
    put(MGPU_FLOAT, INFINITY, own);
    check_refused(model, "'0.weight' holds an infinity at [0,0]");
    put(MGPU_FLOAT, 65536, own);
    check_refused(half, "'0.weight' holds 65536 at [0,0], too large for the model's float16");
    put(MGPU_DOUBLE, -1e300, own);
    check_refused(model, "'0.weight' holds -1e+300 at [0,0], too large for the model's float");
    o.init = file;
    CHECK_FAILS(start_from(&o, &first), "holds -1e+300 at [0,0]");
    o.allow_nonfinite = true;
    CHECK_OK(start_from(&o, &first));
    CHECK(first == -INFINITY);
    o.init = NULL;
    CHECK_FAILS(start_from(&o, &first), "--allow-nonfinite and --optimizer-state are for --init");
}

/* ---- Names ----------------------------------------------------------------------------------- */

static void test_numbers(void)
{
    static const char *const numbers[][4] = {{"arr_0", "arr_1", "arr_2", "arr_3"},
                                             {"0", "1", "2", "3"}};
    struct mgpu_convert_options o = {.model = model}, order = {.model = model, .by_order = true};
    for (int i = 0; i < 2; i++) {
        put(MGPU_FLOAT, 1, numbers[i]);
        CHECK_FAILS(weights_convert(line, file, out, &o), "0 of 4 tensors");
        CHECK_OK(weights_convert(line, file, out, &order));
        CHECK_(!strcmp(line, "4 of 4 tensors\n"), "%s", line);
        CHECK(weights_differ(out, tiny_path("full.onnx"), 0) == 0);
        unlink(out);
    }
}

/* The second name of two in the directory and before the contents becomes the first. */
static void test_twice(void)
{
    static char bytes[4096];
    put(MGPU_FLOAT, 1, own);
    FILE *f = fopen(file, "rb");
    size_t size = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    for (size_t i = 0; i + 10 < size; i++)
        if (!memcmp(bytes + i, "2.bias.npy", 10))
            bytes[i] = '0';
    write_text(file, bytes, size);
    const struct mgpu_convert_options o = {.model = model};
    CHECK_FAILS(weights_convert(line, file, out, &o), "two members are called '0.bias.npy'");
}

/* Trainers leave hundreds of KiB about their data beside the tensors. */
static void test_metadata(void)
{
    enum { LONG = 300000 };
    static char bytes[LONG + 4096];
    static const char
        *const head = "{\"__metadata__\":{\"tags\":\"{",
               *const tail =
                   "}\"},\"0.weight\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},"
                   "\"0.bias\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[16,24]},"
                   "\"2.weight\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[24,40]},"
                   "\"2.bias\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[40,48]}}";
    const struct mgpu_convert_options o = {.model = model};
    uint64_t header = strlen(head) + LONG + strlen(tail);
    memcpy(bytes, &header, 8);
    memcpy(bytes + 8, head, strlen(head));
    memset(bytes + 8 + strlen(head), 't', LONG);
    memcpy(bytes + 8 + strlen(head) + LONG, tail, strlen(tail));
    for (int i = 0; i < 12; i++)
        memcpy(bytes + 8 + header + 4 * i, &(float){(float)i + 1}, 4);
    write_text(file, bytes, 8 + header + 48);
    CHECK_OK(weights_convert(line, file, out, &o));
    CHECK(weights_differ(out, tiny_path("full.onnx"), 0) == 0);
    unlink(out);
}

static void test_empty(void)
{
    static const char end[22] = "PK\5\6";
    const struct mgpu_convert_options o = {.model = model};
    write_text(file, end, sizeof end);
    CHECK_FAILS(weights_convert(line, file, out, &o), "an npz without arrays");
}

/* Keras 3 writes the scopes around a layer in front of its name. */
static void test_scope(void)
{
    static const char *const layers[] = {"dense_1", NULL};
    static const struct weights_entry entries[] = {
        {"dense_1", "outer/net_2/dense_1/kernel", 2, {2, 2}, 1},
        {"dense_1", "outer/net_2/dense_1/bias", 1, {2}, 5}};
    const char *keras = tiny_path("keras.onnx"), *h5 = tiny_path("scope.h5");
    const struct mgpu_convert_options o = {.model = keras};
    make_onnx_file(keras, "producer tf2onnx\n"
                          "input x float N 2\n"
                          "init net/dense_1/MatMul/ReadVariableOp:0 float 2 2 = 0\n"
                          "init net/dense_1/BiasAdd/ReadVariableOp:0 float 2 = 0.5\n"
                          "h = MatMul(x, net/dense_1/MatMul/ReadVariableOp:0)\n"
                          "y = Add(h, net/dense_1/BiasAdd/ReadVariableOp:0)\n"
                          "output y float N 2\n");
    weights_legacy(h5, layers, entries, 2);
    CHECK_OK(weights_convert(line, h5, out, &o));
    CHECK_(!strcmp(line, "2 of 2 tensors\n"), "%s", line);
    unlink(out);
}

/* ---- Rules ----------------------------------------------------------------------------------- */

static void test_rules(void)
{
    const struct mgpu_convert_options o = {.model = model, .map = rules};
    put(MGPU_FLOAT, 1, own);
    write_rules("2.bias -> 0.bias\n");
    CHECK_FAILS(weights_convert(line, file, out, &o),
                "'0.bias' [2] has no place: '0.bias' of the model got '2.bias'");
    write_rules("* -> 0.weight\n");
    CHECK_FAILS(weights_convert(line, file, out, &o), "'*' stands once on both sides");
    write_rules("0.weight -> *\n");
    CHECK_FAILS(weights_convert(line, file, out, &o), "'*' stands once on both sides");
    write_rules("*.* -> *.*\n");
    CHECK_FAILS(weights_convert(line, file, out, &o), "'*' stands once on both sides");
    write_rules("\xef\xbb\xbf# with a mark\n0.* -> 0.*\n");
    CHECK_OK(weights_convert(line, file, out, &o));
    write_rules("\xef\xbb\xbf"
                "0.* -> 0.*\n");
    CHECK_OK(weights_convert(line, file, out, &o));
    CHECK(weights_differ(out, tiny_path("full.onnx"), 0) == 0);
    unlink(out);
}

int main(void)
{
    tiny_begin();
    model = tiny_path("blank.onnx");
    file = tiny_path("weights.npz");
    out = tiny_path("out.onnx");
    rules = tiny_path("rules");
    make_model(model, "float", (const char *const[]){"0.25", "0.25", "0.25", "0.25"});
    make_model(tiny_path("full.onnx"), "float",
               (const char *const[]){"1 2 3 4", "5 6", "7 8 9 10", "11 12"});
    test_finite();
    test_numbers();
    test_twice();
    test_metadata();
    test_empty();
    test_scope();
    test_rules();
    tiny_end();
    return test_end();
}
