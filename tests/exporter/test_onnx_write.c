/* The ONNX writer: what is patched changes, everything else comes back as it was. */
#include "exporter/onnx_write.h"
#include "tests/onnx_build.h"
#include "tests/test.h"

enum { FLOAT = 1, INT64 = 7, BOOL = 9, FLOAT16 = 10, DOUBLE = 11, UINT32 = 12, BFLOAT16 = 16 };

static const struct mgpu_onnx_write_options as_exported = {.as_exported = true};

static bool same_bytes(const char *path, const char *other)
{
    size_t n, m;
    uint8_t *a = build_load(path, &n), *b = build_load(other, &m);
    bool same = a && b && n == m && !memcmp(a, b, n);
    free(a);
    free(b);
    return same;
}

static struct mgpu_onnx_file *reread(const char *path)
{
    struct mgpu_onnx_file *file = NULL;
    CHECK_OK(mgpu_onnx_read(&file, path));
    if (!file)
        exit(test_end());
    return file;
}

static bool same_models(const Onnx__ModelProto *a, const Onnx__ModelProto *b)
{
    size_t n = onnx__model_proto__get_packed_size(a), m = onnx__model_proto__get_packed_size(b);
    uint8_t *x = malloc(n + 1), *y = malloc(m + 1);
    onnx__model_proto__pack(a, x);
    onnx__model_proto__pack(b, y);
    bool same = n == m && !memcmp(x, y, n);
    free(x);
    free(y);
    return same;
}

/* ---- Round trips ---- */

/* Whether packing what was parsed gives the file again. */
static bool is_canonical(const struct mgpu_onnx_file *file)
{
    build_save(file->proto, build_path("packed.onnx"));
    return same_bytes(file->path, build_path("packed.onnx"));
}

static void round_trip(const char *path)
{
    struct mgpu_onnx_file *file = reread(path);
    const char *copy = build_path("copy.onnx");
    CHECK_OK(mgpu_onnx_write(file, copy, NULL, 0, &as_exported));
    struct mgpu_onnx_file *again = reread(copy);
    CHECK_(same_models(file->proto, again->proto), "%s: differs after a round trip", path);
    CHECK_(!is_canonical(file) || same_bytes(path, copy), "%s: bytes differ", path);
    mgpu_onnx_free(again);
    CHECK_OK(mgpu_onnx_write(file, copy, NULL, 0, NULL));
    mgpu_onnx_free(reread(copy));
    mgpu_onnx_free(file);
    unlink(build_path("model.onnx.data"));
    unlink(build_path("copy.onnx.data"));
    unlink(copy);
}

static int round_trip_all(const char *folder)
{
    DIR *dir = opendir(folder);
    int count = 0;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s/model.onnx", folder, e->d_name);
        if (access(path, R_OK) == 0 && ++count)
            round_trip(path);
    }
    if (dir)
        closedir(dir);
    return count;
}

static void test_round_trips(void)
{
    const char *cases = getenv("MGPU_CASES");
    CHECK(round_trip_all("tests/cases") >= 20);
    printf("%d more cases\n", round_trip_all(cases ? cases : "../shared/cases"));
}

/* Fields and presence that a rewriting tool easily loses: unknown fields at several depths, an
 * attribute that is zero but there, an empty string that is there. */
static void test_keeps_all(void)
{
    static const uint8_t bytes[] = {
        0x08, 0x08,                                                 /* ir_version 8 */
        0x12, 0x00,                                                 /* producer_name "" */
        0x3a, 0x26,                                                 /* graph: */
        0x0a, 0x16,                                                 /* node: */
        0x0a, 0x01, 0x78, 0x12, 0x01, 0x79, 0x22, 0x01, 0x46,       /* x -> F -> y, */
        0x2a, 0x08, 0x0a, 0x01, 0x6b, 0x18, 0x00, 0xa0, 0x01, 0x02, /* its attribute k = int 0 */
        0xa2, 0x06, 0x00,                                           /* field 100 */
        0x5a, 0x08,                                                 /* input: */
        0x0a, 0x01, 0x78, 0x12, 0x00,                               /* x, an empty type, */
        0xc0, 0x3e, 0x2a,                                           /* field 1000 */
        0xaa, 0x06, 0x01, 0x7a,                                     /* field 101 */
        0x42, 0x02, 0x10, 0x11,                                     /* opset 17 */
        0xf8, 0x7f, 0x01,                                           /* field 2047 */
    };
    build_bytes(build_path("odd.onnx"), bytes, sizeof bytes);
    struct mgpu_onnx_file *file = reread(build_path("odd.onnx"));
    CHECK_OK(mgpu_onnx_write(file, build_path("odd2.onnx"), NULL, 0, NULL));
    CHECK(file->proto->graph->node[0]->attribute[0]->has_i);
    CHECK(same_bytes(build_path("odd.onnx"), build_path("odd2.onnx")));
    mgpu_onnx_free(file);
}

/* ---- Patches ---- */

static struct mgpu_array array_of(enum mgpu_dtype type, int rank, const int64_t *dims,
                                  const double *values)
{
    struct mgpu_array a;
    if (mgpu_array_init(&a, type, rank, dims, "test") < 0)
        abort();
    for (int64_t i = 0; i < mgpu_array_count(&a); i++)
        mgpu_set_double(a.data, type, i, values[i]);
    return a;
}

/* Patches the only initializer of x * w with 1.5, -2 in float64 and gives back what came out. */
static struct mgpu_onnx_file *patched(Onnx__TensorProto *w)
{
    struct mgpu_array values = array_of(MGPU_DOUBLE, 1, (int64_t[]){2}, (const double[]){1.5, -2});
    struct mgpu_onnx_patch patch = {"w", &values};
    build_save(build_scale(w), build_path("in.onnx"));
    struct mgpu_onnx_file *file = reread(build_path("in.onnx"));
    CHECK_OK(mgpu_onnx_write(file, build_path("out.onnx"), &patch, 1, NULL));
    CHECK(is_canonical(file)); /* the source is as it was */
    mgpu_onnx_free(file);
    mgpu_array_free(&values);
    return reread(build_path("out.onnx"));
}

static void check_patched(Onnx__TensorProto *w, const Onnx__TensorProto *expected)
{
    struct mgpu_onnx_file *file = patched(w);
    build_save(build_scale((Onnx__TensorProto *)expected), build_path("expected.onnx"));
    CHECK_(same_bytes(build_path("out.onnx"), build_path("expected.onnx")),
           "type %d is not as expected", w->data_type);
    mgpu_onnx_free(file);
}

static Onnx__TensorProto *pair(int type)
{
    return build_tensor("w", type, 1, (int64_t[]){2});
}

static Onnx__TensorProto *raw_pair(int type, const void *bytes, size_t size)
{
    Onnx__TensorProto *t = pair(type);
    build_raw(t, bytes, size);
    return t;
}

static Onnx__TensorProto *int_pair(int type, int32_t a, int32_t b)
{
    Onnx__TensorProto *t = pair(type);
    t->n_int32_data = 2;
    t->int32_data = mgpu_arena_copy(build_arena, (int32_t[]){a, b}, 8);
    return t;
}

/* Each type in each field that may hold it keeps type and field. */
static void test_fields(void)
{
    check_patched(raw_pair(FLOAT, "01234567", 8), raw_pair(FLOAT, (float[]){1.5, -2}, 8));
    check_patched(raw_pair(DOUBLE, "0123456701234567", 16),
                  raw_pair(DOUBLE, (double[]){1.5, -2}, 16));
    check_patched(raw_pair(INT64, "0123456701234567", 16), raw_pair(INT64, (int64_t[]){1, -2}, 16));
    check_patched(raw_pair(FLOAT16, "0123", 4), raw_pair(FLOAT16, "\x00\x3e\x00\xc0", 4));
    check_patched(raw_pair(BFLOAT16, "0123", 4), raw_pair(BFLOAT16, "\xc0\x3f\x00\xc0", 4));
    check_patched(int_pair(FLOAT16, 1, 2), int_pair(FLOAT16, 0x3e00, 0xc000));
    check_patched(int_pair(BFLOAT16, 1, 2), int_pair(BFLOAT16, 0x3fc0, 0xc000));
    Onnx__TensorProto *t = pair(FLOAT), *u = pair(FLOAT);
    t->n_float_data = u->n_float_data = 2;
    t->float_data = (float[]){7, 8};
    u->float_data = (float[]){1.5f, -2};
    check_patched(t, u);
    t = pair(DOUBLE), u = pair(DOUBLE);
    t->n_double_data = u->n_double_data = 2;
    t->double_data = (double[]){7, 8};
    u->double_data = (double[]){1.5, -2};
    check_patched(t, u);
    t = pair(INT64), u = pair(INT64);
    t->n_int64_data = u->n_int64_data = 2;
    t->int64_data = (int64_t[]){7, 8};
    u->int64_data = (int64_t[]){1, -2};
    check_patched(t, u);
    t = pair(UINT32), u = pair(UINT32);
    t->n_uint64_data = u->n_uint64_data = 2;
    t->uint64_data = (uint64_t[]){7, 8};
    u->uint64_data = (uint64_t[]){1, 0};
    check_patched(t, u);
}

/* Every float initializer of a real file, doubled; all other bytes stay. */
static void test_real_file(void)
{
    struct mgpu_onnx_file *file = reread("tests/cases/torch-mlp-ts/model.onnx");
    Onnx__GraphProto *g = file->proto->graph;
    struct mgpu_array arrays[16];
    struct mgpu_onnx_patch patches[16];
    int count = 0;
    for (size_t i = 0; i < g->n_initializer; i++) {
        CHECK_OK(mgpu_onnx_tensor_read(file, g->initializer[i], &arrays[count]));
        for (int64_t k = 0; k < mgpu_array_count(&arrays[count]); k++)
            ((float *)arrays[count].data)[k] *= 2;
        patches[count] =
            (struct mgpu_onnx_patch){mgpu_onnx_key(file, g->initializer[i]), &arrays[count]};
        count++;
    }
    CHECK(count == 6);
    CHECK_OK(mgpu_onnx_write(file, build_path("out.onnx"), patches, count, NULL));
    for (int i = 0; i < count; i++) {
        float *values = (float *)g->initializer[i]->raw_data.data;
        for (size_t k = 0; k < g->initializer[i]->raw_data.len / 4; k++)
            values[k] *= 2;
        mgpu_array_free(&arrays[i]);
    }
    build_save(file->proto, build_path("expected.onnx"));
    CHECK(same_bytes(build_path("out.onnx"), build_path("expected.onnx")));
    mgpu_onnx_free(file);
}

static void test_bad_patches(void)
{
    struct mgpu_array three = array_of(MGPU_FLOAT, 1, (int64_t[]){3}, (const double[]){1, 2, 3});
    struct mgpu_array one = array_of(MGPU_FLOAT, 1, (int64_t[]){2}, (const double[]){1, 2});
    struct mgpu_array other = array_of(MGPU_FLOAT, 1, (int64_t[]){2}, (const double[]){1, 3});
    build_save(build_scale(build_floats("w", 2, (float[]){7, 8})), build_path("in.onnx"));
    struct mgpu_onnx_file *file = reread(build_path("in.onnx"));
    const char *out = build_path("refused.onnx");
    struct mgpu_onnx_patch p[] = {{"w", &three}, {"v", &one}, {"w", &one}, {"w", &other}};
    CHECK_FAILS(mgpu_onnx_write(file, out, &p[0], 1, NULL), "'w': its shape is [2], not [3]");
    CHECK_FAILS(mgpu_onnx_write(file, out, &p[1], 1, NULL), "'v': is not in the model");
    CHECK_FAILS(mgpu_onnx_write(file, out, &p[2], 2, NULL), "two different values");
    CHECK(access(out, F_OK) < 0);
    mgpu_onnx_free(file);
    mgpu_array_free(&three);
    mgpu_array_free(&one);
    mgpu_array_free(&other);
}

/* Weights in a Constant, in a branch that uses a name twice, and in value_floats. */
static void test_inner_weights(void)
{
    Onnx__ModelProto *m = build_model(8, 17);
    build_input(m->graph, "x");
    build_initializer(m->graph, build_floats("w", 1, (float[]){1}));
    Onnx__NodeProto *list = build_add(m->graph, "Constant", "", "list");
    Onnx__AttributeProto *a =
        build_attribute(list, "value_floats", ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOATS);
    a->n_floats = 1;
    a->floats = (float[]){2};
    Onnx__GraphProto *branch = build_graph("then");
    build_initializer(branch, build_floats("w", 1, (float[]){3}));
    BUILD_APPEND(branch->node, branch->n_node,
                 build_constant(build_floats("", 1, (float[]){4}), "c"));
    build_output(branch, "c");
    build_graph_attribute(build_add(m->graph, "If", "x", "y"), "then_branch", branch);
    build_save(m, build_path("in.onnx"));
    struct mgpu_onnx_file *file = reread(build_path("in.onnx"));
    struct mgpu_array ten = array_of(MGPU_FLOAT, 1, (int64_t[]){1}, (const double[]){10});
    struct mgpu_array twenty = array_of(MGPU_FLOAT, 1, (int64_t[]){1}, (const double[]){20});
    const struct mgpu_onnx_patch patches[] = {
        {"y.then_branch#1/w", &ten}, {"c", &twenty}, {"list", &twenty}};
    CHECK_OK(mgpu_onnx_write(file, build_path("out.onnx"), patches, 3, NULL));
    a->floats = branch->node[0]->attribute[0]->t->float_data = (float[]){20};
    build_raw(branch->initializer[0], (float[]){10}, 4);
    build_raw(branch->node[0]->attribute[0]->t, (float[]){20}, 4);
    build_save(m, build_path("expected.onnx"));
    CHECK(same_bytes(build_path("out.onnx"), build_path("expected.onnx")));
    mgpu_onnx_free(file);
    mgpu_array_free(&ten);
    mgpu_array_free(&twenty);
}

/* One initializer becomes two; IR 3 declares the new one as an input as well. */
static void split_weight(int ir)
{
    Onnx__ModelProto *m = build_scale(build_floats("w", 2, (float[]){7, 8}));
    m->ir_version = ir;
    if (ir == 3)
        build_input(m->graph, "w");
    build_add(m->graph, "Add", "y w", "z");
    build_save(m, build_path("in.onnx"));
    struct mgpu_onnx_file *file = reread(build_path("in.onnx"));
    struct mgpu_array values = array_of(MGPU_DOUBLE, 1, (int64_t[]){2}, (const double[]){3, 4});
    struct mgpu_onnx_addition addition = {"w_2", "w", &values};
    struct mgpu_onnx_rewire rewire = {"z", 1, "w_2"};
    struct mgpu_onnx_write_options o = {
        .additions = &addition, .addition_count = 1, .rewires = &rewire, .rewire_count = 1};
    CHECK_OK(mgpu_onnx_write(file, build_path("out.onnx"), NULL, 0, &o));
    struct mgpu_onnx_file *out = reread(build_path("out.onnx"));
    const Onnx__GraphProto *g = out->proto->graph;
    struct mgpu_array got;
    CHECK(g->n_initializer == 2 && !strcmp(g->initializer[1]->name, "w_2"));
    CHECK(!strcmp(g->node[1]->input[1], "w_2") && !strcmp(g->node[0]->input[1], "w"));
    CHECK_OK(mgpu_onnx_tensor_read(out, g->initializer[1], &got));
    CHECK(got.type == MGPU_FLOAT && ((float *)got.data)[0] == 3 && ((float *)got.data)[1] == 4);
    CHECK(g->n_input == (ir == 3 ? 3 : 1));
    if (ir == 3)
        CHECK(!strcmp(g->input[2]->name, "w_2") &&
              g->input[2]->type->tensor_type->shape->dim[0]->dim_value == 2);
    mgpu_array_free(&got);
    mgpu_onnx_free(out);
    addition.name = "y";
    CHECK_FAILS(mgpu_onnx_write(file, build_path("no.onnx"), NULL, 0, &o), "has this name already");
    addition.name = "w_2";
    rewire.name = "nothing";
    CHECK_FAILS(mgpu_onnx_write(file, build_path("no.onnx"), NULL, 0, &o), "produced by nothing");
    rewire.input = 2;
    CHECK_FAILS(mgpu_onnx_write(file, build_path("no.onnx"), NULL, 0, &o), "has no input 2");
    mgpu_array_free(&values);
    mgpu_onnx_free(file);
}

/* ---- Inference form ---- */

static int notes;

static void count_note(void *context, const char *text)
{
    (void)context;
    notes += strstr(text, "inference form") || strstr(text, "training form");
}

/* Writes `m` and gives the node `n` of what comes out (until the next call). */
static const Onnx__NodeProto *inferred(Onnx__ModelProto *m, size_t n)
{
    static struct mgpu_onnx_file *last;
    mgpu_onnx_free(last);
    last = NULL;
    if (!m)
        return NULL;
    build_save(m, build_path("in.onnx"));
    struct mgpu_onnx_file *file = reread(build_path("in.onnx"));
    notes = 0;
    CHECK_OK(mgpu_onnx_write(file, build_path("out.onnx"), NULL, 0, NULL));
    CHECK_OK(mgpu_onnx_write(file, build_path("same.onnx"), NULL, 0, &as_exported));
    CHECK(same_bytes(build_path("same.onnx"), build_path("in.onnx")));
    mgpu_onnx_free(file);
    last = reread(build_path("out.onnx"));
    return last->proto->graph->node[n];
}

static Onnx__ModelProto *batch_norm(int opset, const char *outputs, int mode)
{
    Onnx__ModelProto *m = build_model(8, opset);
    build_input(m->graph, "x");
    build_initializer(m->graph, build_floats("s", 1, (float[]){1}));
    Onnx__NodeProto *n = build_add(m->graph, "BatchNormalization", "x s s s s", outputs);
    if (mode >= 0)
        build_int(n, opset >= 14 ? "training_mode" : "is_test", mode);
    build_output(m->graph, "y");
    return m;
}

static void test_batch_norm(void)
{
    const Onnx__NodeProto *n = inferred(batch_norm(15, "y m v", 1), 0);
    CHECK(n->n_output == 1 && n->attribute[0]->i == 0 && n->attribute[0]->has_i && notes == 1);
    n = inferred(batch_norm(9, "y m v a b", -1), 0);
    CHECK(n->n_output == 1 && n->n_attribute == 0 && notes == 1);
    n = inferred(batch_norm(6, "y m v a b", -1), 0);
    CHECK(n->n_output == 1 && !strcmp(n->attribute[0]->name, "is_test") && n->attribute[0]->i == 1);
    n = inferred(batch_norm(15, "y", 0), 0);
    CHECK(n->attribute[0]->i == 0 && notes == 0);
    CHECK(same_bytes(build_path("out.onnx"), build_path("in.onnx")));
    Onnx__ModelProto *m = batch_norm(15, "y m v", 1); /* something reads the new mean */
    build_output(m->graph, "m");
    n = inferred(m, 0);
    CHECK(n->n_output == 3 && n->attribute[0]->i == 1 && notes == 1);
    inferred(NULL, 0);
}

static Onnx__TensorProto *truth(const char *name, bool value)
{
    Onnx__TensorProto *t = build_tensor(name, BOOL, 0, NULL);
    build_raw(t, &value, 1);
    return t;
}

static Onnx__ModelProto *dropout(int opset, const char *inputs, bool mode)
{
    Onnx__ModelProto *m = build_model(8, opset);
    build_input(m->graph, "x");
    BUILD_APPEND(m->graph->node, m->graph->n_node, build_constant(truth("", mode), "mode"));
    build_add(m->graph, "Dropout", inputs, "y");
    build_output(m->graph, "y");
    return m;
}

static void test_dropout(void)
{
    CHECK(inferred(dropout(13, "x - mode", true), 1)->n_input == 2 && notes == 1);
    CHECK(inferred(dropout(13, "x - mode", false), 1)->n_input == 3 && notes == 0);
    CHECK(inferred(dropout(13, "x", true), 1)->n_input == 1 && notes == 0);
    CHECK(inferred(dropout(10, "x", true), 1)->n_attribute == 0 && notes == 0);
    CHECK(inferred(dropout(6, "x", true), 1)->attribute[0]->i == 1 && notes == 1);
    Onnx__ModelProto *m = dropout(13, "x - fed", true); /* the user decides */
    build_input(m->graph, "fed");
    CHECK(inferred(m, 1)->n_input == 3 && notes == 0);
    m = dropout(13, "x - stored", true);
    build_initializer(m->graph, truth("stored", true));
    CHECK(inferred(m, 1)->n_input == 2 && notes == 1);
    inferred(NULL, 0);
}

/* The same nodes in a branch (that reads the outer constant) and in a function of another opset. */
static void test_inner_inference(void)
{
    Onnx__ModelProto *m = dropout(17, "x", true);
    Onnx__GraphProto *branch = build_graph("then");
    build_add(branch, "Dropout", "x - mode", "d");
    build_output(branch, "d");
    build_graph_attribute(build_add(m->graph, "If", "mode", "z"), "then_branch", branch);
    Onnx__FunctionProto *f = MGPU_NEW(build_arena, Onnx__FunctionProto);
    onnx__function_proto__init(f);
    f->name = build_text("f");
    f->domain = build_text("local");
    BUILD_APPEND(f->input, f->n_input, build_text("a"));
    BUILD_APPEND(f->output, f->n_output, build_text("b"));
    BUILD_APPEND(f->opset_import, f->n_opset_import, build_opset("", 9));
    BUILD_APPEND(f->node, f->n_node, build_node("BatchNormalization", "a a a a a", "b m v c d"));
    BUILD_APPEND(m->functions, m->n_functions, f);
    const Onnx__NodeProto *n = inferred(m, 2);
    CHECK(n->attribute[0]->g->node[0]->n_input == 2);
    struct mgpu_onnx_file *out = reread(build_path("out.onnx"));
    CHECK(out->proto->functions[0]->node[0]->n_output == 1);
    mgpu_onnx_free(out);
    inferred(NULL, 0);
}

int main(void)
{
    build_begin();
    mgpu_set_note(count_note, NULL);
    test_round_trips();
    test_keeps_all();
    test_fields();
    test_real_file();
    test_bad_patches();
    test_inner_weights();
    split_weight(3);
    split_weight(8);
    test_batch_norm();
    test_dropout();
    test_inner_inference();
    build_end();
    CHECK(mgpu_alloc_bytes() == 0);
    return test_end();
}
