/* The ONNX reader on good files: values of every type, external data, keys. */
#include "importer/onnx_file.h"
#include "tests/onnx_build.h"
#include "tests/test.h"

#include <sys/stat.h>

enum {
    FLOAT = 1,
    UINT8,
    INT8,
    UINT16,
    INT16,
    INT32,
    INT64,
    STRING,
    BOOL,
    FLOAT16,
    DOUBLE,
    UINT32,
    UINT64,
    COMPLEX64,
    BFLOAT16 = 16,
    FLOAT8E4M3FN = 17,
    INT4 = 22,
};

static const int64_t two[] = {2};

/* Reads the only initializer of x * w. */
static int read_back(struct mgpu_array *out, Onnx__TensorProto *w)
{
    struct mgpu_onnx_file *file;
    build_save(build_scale(w), build_path("value.onnx"));
    int rc = mgpu_onnx_read(&file, build_path("value.onnx"));
    if (rc < 0)
        return rc;
    rc = mgpu_onnx_tensor_read(file, file->proto->graph->initializer[0], out);
    mgpu_onnx_free(file);
    return rc;
}

static void check_pair(Onnx__TensorProto *w, int type, double a, double b)
{
    struct mgpu_array got = {0};
    CHECK_OK(read_back(&got, w));
    if (!got.data)
        return;
    CHECK((int)got.type == type && got.rank == 1 && got.dims[0] == 2);
    CHECK(mgpu_get_double(got.data, got.type, 0) == a);
    CHECK(mgpu_get_double(got.data, got.type, 1) == b);
    mgpu_array_free(&got);
}

static Onnx__TensorProto *with_ints(int type, int32_t a, int32_t b)
{
    Onnx__TensorProto *t = build_tensor("w", type, 1, two);
    t->n_int32_data = 2;
    t->int32_data = mgpu_arena_copy(build_arena, (int32_t[]){a, b}, 8);
    return t;
}

static Onnx__TensorProto *with_raw(int type, const void *bytes, size_t size)
{
    Onnx__TensorProto *t = build_tensor("w", type, 1, two);
    build_raw(t, bytes, size);
    return t;
}

static void test_typed_fields(void)
{
    Onnx__TensorProto *t = build_tensor("w", FLOAT, 1, two);
    t->n_float_data = 2;
    t->float_data = (float[]){1.5f, -2};
    check_pair(t, FLOAT, 1.5, -2);
    t = build_tensor("w", DOUBLE, 1, two);
    t->n_double_data = 2;
    t->double_data = (double[]){0.1, 1e300};
    check_pair(t, DOUBLE, 0.1, 1e300);
    t = build_tensor("w", INT64, 1, two);
    t->n_int64_data = 2;
    t->int64_data = (int64_t[]){-1, INT64_C(1) << 52};
    check_pair(t, INT64, -1, 0x1p52);
    t = build_tensor("w", UINT64, 1, two);
    t->n_uint64_data = 2;
    t->uint64_data = (uint64_t[]){7, UINT64_C(1) << 63};
    check_pair(t, UINT64, 7, 0x1p63);
    t->data_type = UINT32;
    t->uint64_data[1] = UINT32_MAX;
    check_pair(t, UINT32, 7, 4294967295.0);
    struct mgpu_array got;
    t->uint64_data[1]++;
    CHECK_FAILS(read_back(&got, t), "no uint32");
    check_pair(with_ints(INT32, INT32_MIN, 5), INT32, INT32_MIN, 5);
    check_pair(with_ints(INT16, -32768, 5), INT16, -32768, 5);
    check_pair(with_ints(INT8, -128, 127), INT8, -128, 127);
    check_pair(with_ints(UINT16, 0, 65535), UINT16, 0, 65535);
    check_pair(with_ints(UINT8, 0, 255), UINT8, 0, 255);
    check_pair(with_ints(BOOL, 0, 1), BOOL, 0, 1);
    CHECK_FAILS(read_back(&got, with_ints(INT8, 128, 0)), "128, which is no int8");
    CHECK_FAILS(read_back(&got, with_ints(UINT8, -1, 0)), "-1, which is no uint8");
}

/* Row 6 of the users' reports: three ways to write 1, -2. */
static void test_half_types(void)
{
    check_pair(with_ints(FLOAT16, 15360, 49152), FLOAT16, 1, -2);
    check_pair(with_ints(BFLOAT16, 16256, 49152), BFLOAT16, 1, -2);
    check_pair(with_raw(BFLOAT16, "\x80\x3f\x00\xc0", 4), BFLOAT16, 1, -2);
    check_pair(with_raw(FLOAT16, "\x00\x3c\x00\xc0", 4), FLOAT16, 1, -2);
}

static void test_raw(void)
{
    check_pair(with_raw(FLOAT, (float[]){3, -0.5f}, 8), FLOAT, 3, -0.5);
    check_pair(with_raw(DOUBLE, (double[]){3, 0.1}, 16), DOUBLE, 3, 0.1);
    check_pair(with_raw(INT64, (int64_t[]){-3, 4}, 16), INT64, -3, 4);
    check_pair(with_raw(INT32, (int32_t[]){-3, 4}, 8), INT32, -3, 4);
    check_pair(with_raw(INT16, (int16_t[]){-3, 4}, 4), INT16, -3, 4);
    check_pair(with_raw(INT8, (int8_t[]){-3, 4}, 2), INT8, -3, 4);
    check_pair(with_raw(UINT8, (uint8_t[]){253, 4}, 2), UINT8, 253, 4);
    check_pair(with_raw(BOOL, (uint8_t[]){1, 0}, 2), BOOL, 1, 0);
}

static void test_shapes(void)
{
    struct mgpu_array got = {0};
    Onnx__TensorProto *t = build_tensor("w", FLOAT, 0, NULL);
    build_raw(t, (float[]){7}, 4);
    CHECK_OK(read_back(&got, t));
    CHECK(got.rank == 0 && ((float *)got.data)[0] == 7);
    mgpu_array_free(&got);
    t = build_tensor("w", FLOAT, 2, (int64_t[]){3, 0});
    CHECK_OK(read_back(&got, t));
    CHECK(got.rank == 2 && got.dims[0] == 3 && mgpu_array_count(&got) == 0);
    mgpu_array_free(&got);
    build_raw(t, "", 0);
    CHECK_OK(read_back(&got, t));
    mgpu_array_free(&got);
}

/* Types that mgpu cannot compute with: the file is read, the tensor refused by name. */
static void test_unsupported_types(void)
{
    struct mgpu_array got;
    Onnx__TensorProto *t = build_tensor("w", STRING, 1, two);
    t->n_string_data = 2;
    t->string_data = (ProtobufCBinaryData[]){{1, (uint8_t *)"a"}, {2, (uint8_t *)"bc"}};
    CHECK_FAILS(read_back(&got, t), "tensor: w: string tensors are not supported");
    CHECK_FAILS(read_back(&got, with_raw(COMPLEX64, "0123456789abcdef", 16)), "complex64");
    CHECK_FAILS(read_back(&got, with_raw(FLOAT8E4M3FN, "01", 2)), "float8e4m3fn");
    CHECK_FAILS(read_back(&got, with_raw(INT4, "0", 1)), "int4");
}

static Onnx__TensorProto *external(const char *location, const char *offset, const char *length)
{
    Onnx__TensorProto *t = build_tensor("w", FLOAT, 1, two);
    if (location)
        build_external(t, "location", location);
    if (offset)
        build_external(t, "offset", offset);
    if (length)
        build_external(t, "length", length);
    return t;
}

static void test_external(void)
{
    float values[] = {0, 1.5f, -2, 9};
    mkdir(build_path("sub"), 0777);
    build_bytes(build_path("data.bin"), values, sizeof values);
    build_bytes(build_path("sub/data.bin"), values, sizeof values);
    check_pair(external("data.bin", "4", "8"), FLOAT, 1.5, -2);
    check_pair(external("./sub//data.bin", "8", "8"), FLOAT, -2, 9);
    check_pair(external("data.bin", NULL, NULL), FLOAT, 0, 1.5);
    Onnx__TensorProto *t = external("data.bin", "8", NULL);
    build_external(t, "checksum", "unused");
    check_pair(t, FLOAT, -2, 9);
}

static Onnx__GraphProto *branch_with(const char *weight, float value)
{
    Onnx__GraphProto *g = build_graph("branch");
    build_initializer(g, build_floats(weight, 1, &value));
    BUILD_APPEND(g->node, g->n_node, build_constant(build_floats("", 1, &value), "c"));
    build_add(g, "Add", "c x", "sum");
    build_output(g, "sum");
    return g;
}

static void check_key(const struct mgpu_onnx_file *file, const Onnx__TensorProto *t,
                      const char *key)
{
    const char *got = mgpu_onnx_key(file, t);
    CHECK_(got && !strcmp(got, key), "key '%s', not '%s'", got ? got : "(none)", key);
    CHECK(mgpu_onnx_find_tensor(file, key) == t);
}

static void test_keys(void)
{
    Onnx__ModelProto *m = build_model(8, 17);
    build_input(m->graph, "x");
    build_initializer(m->graph, build_floats("w", 1, (float[]){1}));
    BUILD_APPEND(m->graph->node, m->graph->n_node,
                 build_constant(build_floats("inside", 1, (float[]){2}), "k"));
    Onnx__NodeProto *n = build_add(m->graph, "If", "x", "y");
    build_graph_attribute(n, "then_branch", branch_with("w", 3));
    build_graph_attribute(n, "else_branch", branch_with("alone", 4));
    build_save(m, build_path("good.onnx"));
    struct mgpu_onnx_file *file;
    CHECK_OK(mgpu_onnx_read(&file, build_path("good.onnx")));
    const Onnx__GraphProto *g = file->proto->graph;
    const Onnx__GraphProto *yes = g->node[1]->attribute[0]->g, *no = g->node[1]->attribute[1]->g;
    check_key(file, g->initializer[0], "w");
    check_key(file, g->node[0]->attribute[0]->t, "k");
    check_key(file, yes->initializer[0], "y.then_branch#1/w");
    check_key(file, no->initializer[0], "alone");
    check_key(file, yes->node[0]->attribute[0]->t, "y.then_branch#1/c");
    check_key(file, no->node[0]->attribute[0]->t, "y.else_branch#2/c");
    CHECK(mgpu_onnx_find_node(file, "y") == g->node[1]);
    CHECK(mgpu_onnx_find_node(file, "y.else_branch#2/sum") == no->node[1]);
    CHECK(!strcmp(mgpu_onnx_key(file, yes->node[1]), "y.then_branch#1/sum"));
    CHECK(!mgpu_onnx_key(file, file->proto));
    CHECK(!mgpu_onnx_find_tensor(file, "y") && !mgpu_onnx_find_node(file, "w"));
    CHECK(mgpu_onnx_has_name(file, "x") && mgpu_onnx_has_name(file, "alone") &&
          mgpu_onnx_has_name(file, "sum") && !mgpu_onnx_has_name(file, "inside"));
    mgpu_onnx_free(file);
}

/* IR 3: initializers are listed as inputs too. */
static void test_initializer_inputs(void)
{
    struct mgpu_onnx_file *file;
    Onnx__ModelProto *m = build_scale(build_floats("w", 2, (float[]){1, 2}));
    m->ir_version = 3;
    build_input(m->graph, "w");
    build_save(m, build_path("good.onnx"));
    CHECK_OK(mgpu_onnx_read(&file, build_path("good.onnx")));
    CHECK(mgpu_onnx_opset(1, file->proto->opset_import, "ai.onnx") == 17);
    CHECK(mgpu_onnx_opset(1, file->proto->opset_import, "other") == 0);
    mgpu_onnx_free(file);
}

int main(void)
{
    build_begin();
    test_typed_fields();
    test_half_types();
    test_raw();
    test_shapes();
    test_unsupported_types();
    test_external();
    test_keys();
    test_initializer_inputs();
    build_end();
    return test_end();
}
