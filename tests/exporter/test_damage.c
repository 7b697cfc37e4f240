/* Damaged HDF5 files, row 35 of the collected reports and worse: thousands of files of every kind
 * that is read, each with a few bytes changed, copied or cut off. HDF5's own library crashes on
 * some; here each is read or refused with a message of one line that names it. A checkpoint of a
 * run is read as it was written or not at all. */
#include "exporter/checkpoint.h"
#include "exporter/run_state.h"
#include "runtime/data/dataset.h"
#include "runtime/data/h5.h"
#include "tests/onnx_build.h"
#include "tests/test.h"

#include <dirent.h>

#define FILES "tests/convert/files/plain/"

enum { MEMORY_MOST = 64 << 20, ROUNDS = 150, ROWS = 40, COLUMNS = 30 };

static const char *bad_path;
static int read_well, crashed;

/* ---- Readers --------------------------------------------------------------------------------- */

static int read_weights(const char *path)
{
    struct mgpu_checkpoint *c;
    int rc = mgpu_checkpoint_open(&c, path, true);
    for (int i = 0; rc == 0 && i < c->count; i++) {
        struct mgpu_array a;
        rc = mgpu_checkpoint_load(c, i, &a);
        if (rc == 0)
            mgpu_array_free(&a);
    }
    mgpu_checkpoint_close(c);
    return rc;
}

static int read_set(const char *path, const char *name)
{
    struct mgpu_dataset *d;
    struct mgpu_array a;
    MGPU_TRY(mgpu_dataset_open_named(&d, path, name));
    int64_t row = 0;
    int rc = mgpu_array_init(&a, d->type, d->rank, d->dims, name);
    if (rc == 0) {
        rc = mgpu_dataset_read(d, MGPU_WHOLE, &row, 1, a.data, a.type);
        mgpu_array_free(&a);
    }
    for (; rc == 0 && d->rank && row < mgpu_dataset_samples(d, 0) && row < ROWS; row += 7) {
        int64_t dims[MGPU_MAX_RANK];
        memcpy(dims, d->dims, sizeof dims);
        dims[0] = 1;
        rc = mgpu_array_init(&a, d->type, d->rank, dims, name);
        if (rc == 0) {
            rc = mgpu_dataset_read(d, 0, &row, 1, a.data, a.type);
            mgpu_array_free(&a);
        }
    }
    mgpu_dataset_close(d);
    return rc;
}

static int read_data(const char *path)
{
    struct mgpu_name_list names;
    MGPU_TRY(mgpu_dataset_list(&names, path));
    int rc = 0;
    for (int i = 0; rc == 0 && i < names.count; i++)
        rc = read_set(path, names.items[i]);
    mgpu_name_list_free(&names);
    return rc;
}

static struct mgpu_run_state good_run;

static bool same_lists(const struct mgpu_array_list *a, const struct mgpu_array_list *b)
{
    bool same = a->count == b->count;
    for (int i = 0; same && i < a->count; i++) {
        const struct mgpu_array *x = &a->item[i].array, *y = &b->item[i].array;
        same = !strcmp(a->item[i].name, b->item[i].name) && x->type == y->type &&
               x->rank == y->rank && mgpu_array_count(x) == mgpu_array_count(y) &&
               !memcmp(x->data, y->data, (size_t)mgpu_array_count(x) * mgpu_dtype_size(x->type));
    }
    return same;
}

static bool same_records(const struct mgpu_record *a, const struct mgpu_record *b)
{
    bool same = a->count == b->count;
    for (int i = 0; same && i < a->count; i++) {
        const struct mgpu_field *x = &a->field[i], *y = &b->field[i];
        same = !strcmp(x->name, y->name) && x->kind == y->kind && x->integer == y->integer &&
               !memcmp(&x->real, &y->real, sizeof x->real) &&
               (x->kind != MGPU_FIELD_TEXT || !strcmp(x->text, y->text));
    }
    return same;
}

/* As a file of weights: each that is there is one that was written. */
static void read_as_weights(const char *path)
{
    struct mgpu_checkpoint *c;
    struct mgpu_array a;
    int rc = mgpu_checkpoint_open(&c, path, true);
    for (int i = 0; rc == 0 && c->run && i < c->count; i++) {
        const char *name = c->tensor[i].name;
        if (!c->tensor[i].weight || mgpu_checkpoint_load(c, i, &a) < 0)
            continue;
        const struct mgpu_array *was = mgpu_array_list_find(&good_run.list[MGPU_RUN_WEIGHT], name);
        CHECK_(was && mgpu_array_count(was) == mgpu_array_count(&a) &&
                   !memcmp(was->data, a.data, (size_t)mgpu_array_count(&a) * sizeof(float)),
               "'%s'", name);
        mgpu_array_free(&a);
    }
    mgpu_checkpoint_close(c);
}

static int read_run(const char *path)
{
    struct mgpu_run_state s;
    mgpu_run_state_init(&s);
    if (good_run.arena)
        read_as_weights(path);
    int rc = mgpu_run_state_read(&s, path);
    for (int k = 0; rc == 0 && k < MGPU_RUN_LISTS; k++)
        CHECK(same_lists(&s.list[k], &good_run.list[k]));
    CHECK(rc < 0 || same_records(&s.record, &good_run.record));
    mgpu_run_state_free(&s);
    return rc;
}

/* ---- Good files ------------------------------------------------------------------------------ */

static void put_text(hid_t object, const char *name, const char *text)
{
    hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
    H5Tset_size(type, H5T_VARIABLE);
    hid_t attribute = H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    CHECK(H5Awrite(attribute, type, &text) >= 0);
    H5Aclose(attribute);
    H5Sclose(space);
    H5Tclose(type);
}

static void put_data(hid_t file, const char *name, bool packed)
{
    static float x[ROWS][COLUMNS];
    hsize_t dims[] = {ROWS, COLUMNS}, chunk[] = {7, 11};
    hid_t space = H5Screate_simple(2, dims, NULL), create = H5Pcreate(H5P_DATASET_CREATE);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        x[i / COLUMNS][i % COLUMNS] = (float)(i % 50);
    H5Pset_chunk(create, 2, chunk);
    if (packed) {
        H5Pset_shuffle(create);
        H5Pset_deflate(create, 4);
        H5Pset_fletcher32(create);
    }
    hid_t set = H5Dcreate2(file, name, H5T_IEEE_F32LE, space, H5P_DEFAULT, create, H5P_DEFAULT);
    CHECK(H5Dwrite(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, x) >= 0);
    put_text(set, "name", "of variable length");
    H5Dclose(set);
    H5Pclose(create);
    H5Sclose(space);
}

/* Chunks, plain and packed, in HDF5's old structures or its newest. */
static const char *make_data(const char *name, bool latest)
{
    const char *path = build_text(build_path(name));
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    if (latest)
        H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    hid_t group = H5Gcreate2(file, "group", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    put_data(file, "x", false);
    put_data(group, "packed", true);
    H5Gclose(group);
    H5Fclose(file);
    H5Pclose(access);
    return path;
}

static void add_array(struct mgpu_array_list *list, const char *name, int64_t count)
{
    struct mgpu_array *a = &mgpu_array_list_add(list, name)->array;
    CHECK_OK(mgpu_array_init(a, MGPU_FLOAT, 1, &count, name));
    for (int64_t i = 0; i < count; i++)
        ((float *)a->data)[i] = (float)i / 7;
}

static const char *make_run(void)
{
    const char *path = build_text(build_path("run.h5")), *text = "adam,lr=0.1";
    struct mgpu_run_state s;
    int64_t step = 12345;
    double best = 0.1;
    mgpu_run_state_init(&s);
    add_array(&s.list[MGPU_RUN_WEIGHT], "conv1.weight", 300);
    add_array(&s.list[MGPU_RUN_WEIGHT], "conv1.bias", 10);
    add_array(&s.list[MGPU_RUN_STATE], "conv1.weight:exp_avg", 300);
    add_array(&s.list[MGPU_RUN_CARRIED], "h0", 40);
    add_array(&s.list[MGPU_RUN_BEST], "conv1.weight", 300);
    CHECK_OK(mgpu_record_int(&s.record, "step", &step));
    CHECK_OK(mgpu_record_real(&s.record, "best", &best));
    CHECK_OK(mgpu_record_text(&s.record, "optimizer", &text));
    CHECK_OK(mgpu_run_state_write(&s, path));
    mgpu_run_state_free(&s);
    mgpu_run_state_init(&good_run);
    CHECK_OK(mgpu_run_state_read(&good_run, path));
    return path;
}

/* ---- Damage ---------------------------------------------------------------------------------- */

static uint64_t state;

static uint32_t any(size_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % below);
}

/* One byte, one bit, a run of bytes from elsewhere, a number that is as large as can be; small
 * offsets more often, since sizes and addresses stand there. */
static void change(uint8_t *bytes, size_t size)
{
    size_t at = any(2) ? any(size) : any(size < 4096 ? size : 4096);
    size_t n = 1 + any(8), from = any(size - 8);
    n = n < size - at ? n : size - at;
    switch (any(4)) {
    case 0:
        bytes[at] ^= (uint8_t)(1u << any(8));
        break;
    case 1:
        bytes[at] = (uint8_t)any(256);
        break;
    case 2:
        memmove(bytes + at, bytes + from, n);
        break;
    default:
        memset(bytes + at, any(2) ? 0xff : 0x7f, n);
    }
}

static void check_one(int (*read)(const char *path), const char *good, long round)
{
    const char *error = mgpu_error();
    int rc = read(bad_path);
    if (rc >= 0) {
        read_well++;
        return;
    }
    crashed += strstr(error, "the HDF5 library") != NULL;
    CHECK_(strstr(error, bad_path) && !strchr(error, '\n'), "%s, round %ld: %s", good, round,
           error);
}

/* MGPU_FUZZ=N: rounds for each file; MGPU_SEED=S. */
static long rounds(void)
{
    const char *text = getenv("MGPU_FUZZ");
    return text && atol(text) > 0 ? atol(text) : ROUNDS;
}

static void check_file(const char *good, int (*read)(const char *path))
{
    const char *seed = getenv("MGPU_SEED");
    long most = rounds();
    size_t size;
    uint8_t *bytes = build_load(good, &size), *bad = malloc(size);
    state = seed ? strtoull(seed, NULL, 10) : 1;
    CHECK_OK(read(good));
    for (long n = 0; n < most; n++) {
        memcpy(bad, bytes, size);
        for (uint32_t k = 1 + any(4); k; k--)
            change(bad, size);
        build_bytes(bad_path, bad, any(8) ? size : any(size));
        check_one(read, good, n);
    }
    free(bytes);
    free(bad);
}

/* Single bits of a checkpoint, evenly over all of it: what is read is what was written. */
static void check_bits(const char *good)
{
    size_t size;
    uint8_t *bytes = build_load(good, &size);
    long most = (long)size * 8, step = most / (4 * rounds()) + 1;
    for (long bit = 0; bit < most; bit += step) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        build_bytes(bad_path, bytes, size);
        check_one(read_run, good, bit);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    free(bytes);
}

static int descriptors(void)
{
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (dir && readdir(dir))
        n++;
    if (dir)
        closedir(dir);
    return n;
}

int main(void)
{
    static const char *const weights[] = {
        FILES "keras2.1.0.weights.h5", FILES "keras2.3.1.parallel4_relocated.model.h5",
        FILES "tf_keras_mirrored.h5",  FILES "keras3.weights.h5",
        FILES "keras3.keras",
    };
    build_begin();
    bad_path = build_text(build_path("damaged.h5"));
    int before = descriptors();
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        check_file(weights[i], read_weights);
    check_file(make_data("old.h5", false), read_data);
    check_file(make_data("new.h5", true), read_data);
    const char *run = make_run();
    check_file(run, read_run);
    check_bits(run);
    CHECK(mgpu_alloc_peak() < MEMORY_MOST);
    CHECK(descriptors() == before);
    mgpu_run_state_free(&good_run);
    printf("%d files were read all the same; HDF5 crashed on %d\n", read_well, crashed);
    build_end();
    return test_end();
}
