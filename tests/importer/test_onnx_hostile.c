/* The ONNX reader on hostile and damaged files: each is refused in one line, within 1 s and 64 MiB.
 * (Row 34 of the users' reports.) */
#include "importer/onnx_file.h"
#include "tests/onnx_build.h"
#include "tests/test.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

enum { FLOAT = 1, INT32 = 6, STRING = 8 };

static const int64_t two[] = {2};

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

/* ---- Each file in a process of its own, whose time and memory are measured ---- */

static void check_usage(const char *name, int status, const struct rusage *usage, double seconds)
{
    CHECK_(WIFEXITED(status), "%s: crashed (status %d)", name, status);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* which take memory */
    CHECK_(usage->ru_maxrss <= 64 * 1024, "%s: took %ld KiB", name, usage->ru_maxrss);
#endif
    double cpu = (double)usage->ru_utime.tv_sec + 1e-6 * (double)usage->ru_utime.tv_usec;
    CHECK_(cpu < 1 && seconds < 10, "%s: took %g s (%g s of CPU)", name, seconds, cpu);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void read_in_child(int to, const char *path)
{
    struct mgpu_onnx_file *file;
    int rc = mgpu_onnx_read(&file, path);
    if (rc < 0 && write(to, mgpu_error(), strlen(mgpu_error())) < 0)
        _exit(2);
    mgpu_onnx_free(file);
    _exit(rc < 0 ? 1 : 0);
}

/* The exit status of a child that reads `path`, and its error text. */
static int read_apart(const char *name, const char *path, char text[4096])
{
    int ends[2], status;
    struct rusage usage;
    double begin = now();
    if (pipe(ends) < 0)
        abort();
    fflush(NULL);
    pid_t pid = fork();
    if (!pid)
        read_in_child(ends[1], path);
    close(ends[1]);
    size_t used = 0;
    for (ssize_t n; used < 4095 && (n = read(ends[0], text + used, 4095 - used)) > 0;)
        used += (size_t)n;
    text[used] = 0;
    close(ends[0]);
    wait4(pid, &status, 0, &usage);
    check_usage(name, status, &usage, now() - begin);
    return WEXITSTATUS(status);
}

/* The file at `path` is refused in one line with the path and both parts in it. */
static void refused_file(const char *path, const char *part, const char *other)
{
    char text[4096];
    int status = read_apart(part, path, text);
    CHECK_(status == 1, "%s: status %d", part, status);
    CHECK_(!strncmp(text, path, strlen(path)) && !strchr(text, '\n'), "%s: %s", part, text);
    CHECK_(strstr(text, part) && strstr(text, other), "not '%s', '%s': %s", part, other, text);
}

static void refused(Onnx__ModelProto *m, const char *part, const char *other)
{
    build_save(m, build_path("bad.onnx"));
    refused_file(build_path("bad.onnx"), part, other);
}

static void refused_tensor(Onnx__TensorProto *w, const char *part)
{
    refused(build_scale(w), part, "initializer 'w'");
    /* The same in a Constant, in a branch, and in a function. */
    Onnx__ModelProto *m = build_model(8, 17);
    BUILD_APPEND(m->graph->node, m->graph->n_node, build_constant(w, "c"));
    refused(m, part, "node 'c' (Constant): attribute 'value'");
    m = build_model(8, 17);
    build_input(m->graph, "b");
    Onnx__GraphProto *branch = build_graph("then");
    build_initializer(branch, w);
    build_graph_attribute(build_add(m->graph, "If", "b", "y"), "then_branch", branch);
    refused(m, part, "initializer 'w'");
    m = build_model(8, 17);
    Onnx__FunctionProto *f = MGPU_NEW(build_arena, Onnx__FunctionProto);
    onnx__function_proto__init(f);
    f->name = build_text("f");
    f->domain = build_text("local");
    BUILD_APPEND(f->opset_import, f->n_opset_import, build_opset("", 17));
    BUILD_APPEND(f->node, f->n_node, build_constant(w, "c"));
    BUILD_APPEND(m->functions, m->n_functions, f);
    refused(m, part, "function 'f' of 'local': node 'c' (Constant)");
}

static Onnx__TensorProto *bad_raw(size_t rank, const int64_t *dims, size_t size)
{
    static const char bytes[4096];
    Onnx__TensorProto *t = build_tensor("w", FLOAT, rank, dims);
    if (size)
        build_raw(t, bytes, size);
    return t;
}

static void test_bad_tensors(void)
{
    refused_tensor(bad_raw(1, (int64_t[]){128}, 0), "[128] needs 128 entries");
    refused_tensor(bad_raw(2, (int64_t[]){1LL << 32, 1LL << 32}, 16), "too large");
    refused_tensor(bad_raw(1, (int64_t[]){1LL << 60}, 16), "[1152921504606846976]");
    refused_tensor(bad_raw(1, (int64_t[]){-1}, 0), "[-1] has a negative dimension");
    refused_tensor(bad_raw(1, (int64_t[]){1}, 4096), "needs 4 bytes, but raw_data has 4096");
    refused_tensor(bad_raw(1, (int64_t[]){2}, 7), "needs 8 bytes, but raw_data has 7");
    refused_tensor(bad_raw(2, (int64_t[]){0, 5}, 4), "needs 0 bytes");
    refused_tensor(bad_raw(9, (int64_t[]){1, 1, 1, 1, 1, 1, 1, 1, 1}, 4), "rank 9");
    refused_tensor(build_tensor("w", 999, 1, two), "data_type 999");
    refused_tensor(build_tensor("w", 0, 1, two), "data_type 0");
    refused_tensor(build_tensor("w", -5, 1, two), "data_type -5");
    Onnx__TensorProto *t = with_ints(INT32, 1, 2);
    build_raw(t, "01234567", 8);
    refused_tensor(t, "int32_data and in raw_data");
    refused_tensor(with_ints(FLOAT, 1, 2), "float data cannot be in int32_data");
    refused_tensor(with_raw(STRING, "ab", 2), "string data cannot be in raw_data");
    t = with_ints(INT32, 1, 2);
    t->dims[0] = 3;
    refused_tensor(t, "needs 3 entries, but int32_data has 2");
}

static void test_bad_external(void)
{
    build_bytes("/tmp/mgpu-test-outside", "0123456789abcdef", 16);
    if (symlink("/tmp/mgpu-test-outside", build_path("link.bin")) < 0 ||
        symlink("sub", build_path("linked")) < 0 || mkfifo(build_path("fifo"), 0600) < 0)
        abort();
    refused_tensor(external("../mgpu-test-outside", NULL, NULL), "'..' is refused");
    refused_tensor(external("sub/../../mgpu-test-outside", NULL, NULL), "'..' is refused");
    refused_tensor(external("..", NULL, NULL), "'..' is refused");
    refused_tensor(external("/tmp/mgpu-test-outside", NULL, NULL), "absolute");
    refused_tensor(external("link.bin", NULL, NULL), "links are not followed");
    refused_tensor(external("linked/data.bin", NULL, NULL), "links are not followed");
    refused_tensor(external("data.bin", "12", "8"), "pass its end at 16");
    refused_tensor(external("data.bin", "9223372036854775807", "8"), "pass its end");
    refused_tensor(external("data.bin", "18446744073709551616", "8"), "no number of bytes");
    refused_tensor(external("data.bin", "-1", "8"), "no number of bytes");
    refused_tensor(external("data.bin", "0", "12"), "length 12, but its dims need 8");
    refused_tensor(external("absent.bin", NULL, NULL), "No such file");
    refused_tensor(external("sub", NULL, NULL), "not a regular file");
    refused_tensor(external("fifo", NULL, NULL), "not a regular file");
    refused_tensor(external(".", NULL, NULL), "not a regular file");
    refused_tensor(external("", NULL, NULL), "without a location");
    refused_tensor(external(NULL, "0", NULL), "without a location");
    Onnx__TensorProto *t = external("data.bin", NULL, NULL);
    build_raw(t, "01234567", 8);
    refused_tensor(t, "in the file and external");
    unlink("/tmp/mgpu-test-outside");
}

static Onnx__ModelProto *two_nodes(const char *in1, const char *out1, const char *in2,
                                   const char *out2)
{
    Onnx__ModelProto *m = build_model(8, 17);
    build_input(m->graph, "x");
    build_add(m->graph, "Relu", in1, out1)->name = build_text("first");
    build_add(m->graph, "Neg", in2, out2)->name = build_text("second");
    return m;
}

static void test_bad_names(void)
{
    refused(two_nodes("a", "a", "x", "b"), "node 'first' (Relu)", "its own output 'a'");
    refused(two_nodes("b", "a", "a", "b"), "node 'first' (Relu): uses 'b'", "node, 'second'");
    refused(two_nodes("x", "a", "x", "a"), "node 'second' (Neg): output 'a'", "by node 'first'");
    refused(two_nodes("x", "a a", "x", "b"), "output 'a' is already", "node 'first'");
    refused(two_nodes("x", "x", "x", "b"), "output 'x' is also an input", "node 'first'");
    refused(two_nodes("zz", "a", "x", "b"), "node 'first'", "'zz' is produced by nothing");
    Onnx__ModelProto *m = two_nodes("x", "a", "x", "b");
    build_output(m->graph, "c");
    refused(m, "graph output", "'c' is produced by nothing");
    m = two_nodes("x", "a", "x", "b");
    build_input(m->graph, "x");
    refused(m, "input 'x' occurs twice", "");
    m = build_scale(with_raw(FLOAT, "01234567", 8));
    build_initializer(m->graph, m->graph->initializer[0]);
    refused(m, "initializer 'w' occurs twice", "");
    m = two_nodes("x", "a", "x", "b");
    build_initializer(m->graph, build_floats("a", 1, (float[]){1}));
    refused(m, "node 'first' (Relu)", "also an initializer");
    m = build_scale(build_floats("", 1, (float[]){1}));
    refused(m, "initializer 0 has no name", "");
    m = two_nodes("x", "a", "x", "b");
    m->graph->node[1]->op_type = build_text("");
    refused(m, "node 'second'", "no operator type");
}

/* What an inner graph may see. */
static void test_scopes(void)
{
    Onnx__ModelProto *m = build_model(8, 17);
    Onnx__GraphProto *inner = build_graph("body");
    build_input(m->graph, "x");
    build_add(m->graph, "Relu", "x", "early");
    Onnx__NodeProto *branch = build_add(m->graph, "If", "x", "y");
    build_add(m->graph, "Relu", "x", "late");
    build_graph_attribute(branch, "then_branch", inner);
    Onnx__NodeProto *use = build_add(inner, "Neg", "early", "z");
    build_output(inner, "z");
    struct mgpu_onnx_file *file;
    build_save(m, build_path("good.onnx"));
    CHECK_OK(mgpu_onnx_read(&file, build_path("good.onnx")));
    mgpu_onnx_free(file);
    use->input[0] = build_text("late");
    refused(m, "node 'y' (If): attribute 'then_branch': node 'z' (Neg)", "a later node, 'late'");
    use->input[0] = build_text("y");
    refused(m, "node 'z' (Neg)", "its own output 'y'");
    use->input[0] = build_text("early");
    build_add(m->graph, "Neg", "z", "w");
    refused(m, "node 'w' (Neg)", "'z' is produced by nothing");
}

static void test_bad_versions(void)
{
    refused(build_model(2, 17), "IR version 2 is not one of 3 to 13", "");
    refused(build_model(14, 17), "IR version 14", "");
    refused(build_model(8, 0), "opset 0", "does not exist");
    refused(build_model(8, 29), "opset 29 is newer than 28", "");
    Onnx__ModelProto *m = build_model(8, 17);
    BUILD_APPEND(m->opset_import, m->n_opset_import, build_opset("ai.onnx", 13));
    refused(m, "two opset imports", "");
    m = build_model(8, 17);
    m->n_opset_import = 0;
    refused(m, "no opset import", "");
    m->n_opset_import = 1;
    build_add(m->graph, "Thing", "", "t")->domain = build_text("com.example");
    refused(m, "node 't' (Thing)", "'com.example' has no opset import");
    m->graph = NULL;
    refused(m, "has no graph", "");
    build_bytes(build_path("bad.onnx"), "", 0);
    refused_file(build_path("bad.onnx"), "not an ONNX model", "");
    build_bytes(build_path("bad.onnx"), "\x89HDF\r\n\x1a\n", 8);
    refused_file(build_path("bad.onnx"), "an HDF5 file, not an ONNX model", "");
    refused_file(build_path("sub"), "not a regular file", "");
    refused_file(build_path("fifo"), "not a regular file", "");
    refused_file(build_path("absent.onnx"), "No such file", "");
    for (int ir = MGPU_ONNX_IR_MIN; ir <= MGPU_ONNX_IR_MAX; ir++) {
        struct mgpu_onnx_file *file;
        build_save(build_model(ir, 17), build_path("good.onnx"));
        CHECK_OK(mgpu_onnx_read(&file, build_path("good.onnx")));
        mgpu_onnx_free(file);
    }
}

static Onnx__ModelProto *with_attribute(Onnx__AttributeProto **a, int type)
{
    Onnx__ModelProto *m = build_model(8, 17);
    *a = build_attribute(build_add(m->graph, "Op", "", "y"), "v",
                         (Onnx__AttributeProto__AttributeType)type);
    return m;
}

static void test_bad_attributes(void)
{
    Onnx__AttributeProto *a;
    refused(with_attribute(&a, 0), "node 'y' (Op): attribute 'v'", "no type");
    refused(with_attribute(&a, 4), "attribute 'v'", "no tensor");
    refused(with_attribute(&a, 5), "attribute 'v'", "no graph");
    refused(with_attribute(&a, 11), "attribute 'v'", "sparse tensors are not supported");
    Onnx__ModelProto *m = with_attribute(&a, 2);
    a->t = build_floats("", 1, (float[]){1});
    refused(m, "attribute 'v'", "not of its type");
    m = with_attribute(&a, 2);
    a->ref_attr_name = build_text("outer");
    refused(m, "attribute 'v'", "outside of a function");
    m = with_attribute(&a, 2);
    build_int(m->graph->node[0], "v", 3);
    refused(m, "node 'y' (Op)", "attribute 'v' occurs twice");
    m = build_scale(build_floats("w", 2, (float[]){1, 2}));
    Onnx__SparseTensorProto *sparse = MGPU_NEW(build_arena, Onnx__SparseTensorProto);
    onnx__sparse_tensor_proto__init(sparse);
    sparse->values = build_floats("thin", 1, (float[]){1});
    BUILD_APPEND(m->graph->sparse_initializer, m->graph->n_sparse_initializer, sparse);
    refused(m, "initializer 'thin'", "sparse tensors are not supported");
}

/* Bytes written by hand, from the end: what is there becomes the inside of a field. */
struct bytes {
    uint8_t *data;
    size_t at, size;
};

static void put_field(struct bytes *b, uint32_t number)
{
    uint64_t length = b->size - b->at;
    uint8_t head[16];
    int n = 0;
    for (uint64_t v = number << 3 | 2; n == 0 || v; v >>= 7)
        head[n++] = (uint8_t)((v & 0x7f) | (v >> 7 ? 0x80 : 0));
    for (uint64_t v = length, first = 1; first || v; v >>= 7, first = 0)
        head[n++] = (uint8_t)((v & 0x7f) | (v >> 7 ? 0x80 : 0));
    b->at -= (size_t)n;
    memcpy(b->data + b->at, head, (size_t)n);
}

/* 10,000 levels of node, attribute, graph; and of sequences in a type. */
static void test_nesting(void)
{
    static uint8_t room[400000];
    struct bytes b = {room, sizeof room, sizeof room};
    for (int i = 0; i < 10000; i++) {
        put_field(&b, 6); /* AttributeProto.g */
        put_field(&b, 5); /* NodeProto.attribute */
        b.at -= 3;
        memcpy(room + b.at, "\x1a\x01n", 3); /* NodeProto.name */
        put_field(&b, 1);                    /* GraphProto.node */
    }
    put_field(&b, 7);
    build_bytes(build_path("bad.onnx"), room + b.at, b.size - b.at);
    refused_file(build_path("bad.onnx"), "nested too deeply", "node 'n'");
    b.at = b.size;
    for (int i = 0; i < 10000; i++) {
        put_field(&b, 1); /* Sequence.elem_type */
        put_field(&b, 4); /* TypeProto.sequence_type */
    }
    put_field(&b, 2);  /* ValueInfoProto.type */
    put_field(&b, 11); /* GraphProto.input */
    put_field(&b, 7);
    build_bytes(build_path("bad.onnx"), room + b.at, b.size - b.at);
    refused_file(build_path("bad.onnx"), "nested too deeply", "(Sequence)");
}

static void refused_bytes(const char *bytes, size_t size, const char *part)
{
    build_bytes(build_path("bad.onnx"), bytes, size);
    refused_file(build_path("bad.onnx"), part, "byte ");
}

static void test_bad_bytes(void)
{
    /* graph { initializer { float_data: 2^31-1 bytes, of which one is there } } */
    refused_bytes("\x3a\x05\x2a\x03\x22\xff\xff", 7, "(TensorProto.float_data)");
    refused_bytes("\x3a\x0a\x2a\x08\x22\xff\xff\xff\xff\x07zz", 12, "its length passes the end");
    refused_bytes("\x3a\xff\xff\xff\xff\x07z", 7, "(ModelProto.graph): its length passes");
    refused_bytes("\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11, "its length passes the end");
    refused_bytes("\x3a\x00\x3a\x00", 4, "(ModelProto.graph): occurs twice");
    refused_bytes("\x08\xff", 2, "does not end");
    refused_bytes("\x0b\x0c", 2, "no such wire type");
    refused_bytes("\x00\x01", 2, "no such field number");
    refused_bytes("\x0d\x00\x00\x00\x00", 5, "(ModelProto.ir_version): wrong wire type");
    refused_bytes("\x12\x03"
                  "a\0b",
                  5, "(ModelProto.producer_name): zero byte");
}

/* What people give for a model is called what it is. */
static void test_other_kinds(void)
{
    static const struct {
        const char *bytes, *kind;
        size_t size;
    } files[] = {{"\x89HDF\r\n\x1a\n", "an HDF5 file", 8},
                 {"PK\3\4", "a zip archive (.keras, .npz, .pt)", 4},
                 {"\x40\0\0\0\0\0\0\0{", "safetensors", 9},
                 {"\x80\2}", "a pickled file", 3}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        build_bytes(build_path("bad.onnx"), files[i].bytes, files[i].size);
        refused_file(build_path("bad.onnx"), files[i].kind, "not an ONNX model");
    }
}

/* Files of 1 MiB in which each few bytes ask for much memory. */
static void test_amplification(void)
{
    static const struct {
        const char *unit;
        size_t size;
        const uint32_t way[4]; /* from the innermost field outwards; 0 ends */
    } kinds[] = {
        {"\x0a\x00", 2, {7}},           /* empty nodes */
        {"\x2a\x00", 2, {7}},           /* empty initializers */
        {"\x5a\x00", 2, {7}},           /* empty inputs */
        {"\x2a\x00", 2, {1, 7}},        /* empty attributes of a node */
        {"\x0a\x00", 2, {1, 7}},        /* empty names of inputs */
        {"\x4a\x00", 2, {5, 1, 7}},     /* empty strings of an attribute */
        {"\x40\x01", 2, {5, 1, 7}},     /* integers, one by one */
        {"\x01", 1, {8, 5, 1, 7}},      /* integers, packed */
        {"\x01", 1, {7, 5, 7}},         /* int64_data */
        {"\xf8\x01\x00", 3, {7}},       /* unknown fields */
        {"\xca\x01\x00", 3, {0}},       /* functions */
        {"\x42\x00", 2, {0}},           /* opset imports */
        {"\x0a\x00", 2, {2, 2, 11, 7}}, /* unknown to TypeProto */
    };
    enum { MIB = 1 << 20, ROOM = MIB + 64 };
    static uint8_t room[ROOM];
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct bytes b = {room, ROOM, ROOM};
        while (ROOM - b.at + kinds[k].size <= MIB) {
            b.at -= kinds[k].size;
            memcpy(room + b.at, kinds[k].unit, kinds[k].size);
        }
        for (int i = 0; i < 4 && kinds[k].way[i]; i++)
            put_field(&b, kinds[k].way[i]);
        char name[32], text[4096];
        snprintf(name, sizeof name, "amplification %zu", k);
        build_bytes(build_path("bad.onnx"), room + b.at, b.size - b.at);
        CHECK_(read_apart(name, build_path("bad.onnx"), text) == 1, "%s was read", name);
    }
}

/* ---- Good files, cut and damaged ---- */

static const char *const good_files[] = {
    "tests/cases/torch-mlp-ts/model.onnx",
    "tests/cases/torch-functions/model.onnx",
    "tests/cases/torch-siamese-linear-ts/model.onnx",
    "tests/cases/keras-multi-io/model.onnx",
};

enum { GOOD_FILES = sizeof good_files / sizeof *good_files };

/* Fails with a message, or loads and can be read. */
static void try_file(const char *path)
{
    struct mgpu_onnx_file *file;
    if (mgpu_onnx_read(&file, path) < 0) {
        CHECK(strstr(mgpu_error(), path) == mgpu_error());
        return;
    }
    for (size_t i = 0; i < file->proto->graph->n_initializer; i++) {
        struct mgpu_array array;
        const Onnx__TensorProto *t = file->proto->graph->initializer[i];
        CHECK(mgpu_onnx_find_tensor(file, mgpu_onnx_key(file, t)) == t);
        if (mgpu_onnx_tensor_read(file, t, &array) >= 0)
            mgpu_array_free(&array);
    }
    mgpu_onnx_free(file);
}

static void test_cut(void)
{
    struct mgpu_onnx_file *file;
    for (int i = 0; i < GOOD_FILES; i++) {
        size_t size;
        uint8_t *bytes = build_load(good_files[i], &size);
        CHECK_OK(mgpu_onnx_read(&file, good_files[i]));
        mgpu_onnx_free(file);
        for (size_t n = 0; n < size; n += 64) {
            build_bytes(build_path("cut.onnx"), bytes, n);
            try_file(build_path("cut.onnx"));
        }
        free(bytes);
    }
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static void damage(uint8_t *bytes, size_t size, uint64_t *state)
{
    for (uint32_t n = 1 + next_random(state) % 4; n; n--) {
        uint8_t *at = &bytes[next_random(state) % size];
        switch (next_random(state) % 3) {
        case 0:
            *at ^= (uint8_t)(1u << next_random(state) % 8);
            break;
        case 1:
            *at = (uint8_t)next_random(state);
            break;
        default:
            *at = bytes[next_random(state) % size];
        }
    }
}

/* MGPU_FUZZ=N: rounds for each file; MGPU_SEED=S. */
static void test_damaged(void)
{
    const char *rounds = getenv("MGPU_FUZZ"), *seed = getenv("MGPU_SEED");
    uint64_t state = seed ? strtoull(seed, NULL, 10) : 1;
    for (int i = 0; i < GOOD_FILES; i++) {
        size_t size;
        uint8_t *bytes = build_load(good_files[i], &size), *bad = malloc(size);
        for (long n = rounds ? atol(rounds) : 500; n > 0; n--) {
            memcpy(bad, bytes, size);
            damage(bad, size, &state);
            build_bytes(build_path("damaged.onnx"), bad, size);
            try_file(build_path("damaged.onnx"));
        }
        free(bytes);
        free(bad);
    }
}

int main(void)
{
    float values[] = {0, 1.5f, -2, 9};
    build_begin();
    mkdir(build_path("sub"), 0777);
    build_bytes(build_path("data.bin"), values, sizeof values);
    build_bytes(build_path("sub/data.bin"), values, sizeof values);
    test_bad_tensors();
    test_bad_external();
    test_bad_names();
    test_scopes();
    test_bad_versions();
    test_bad_attributes();
    test_nesting();
    test_bad_bytes();
    test_other_kinds();
    test_amplification();
    test_cut();
    test_damaged();
    build_end();
    return test_end();
}
