/* Times the import of models: reading the file, telling its weights, lowering it for training.
 *
 *     build/bench_import
 *
 * ResNet-50 (models.h), a chain of 10,000 nodes, and one weight of 3 GiB in external data (a sparse
 * file). Each is imported in a process of its own; memory is the peak of what is resident above
 * what was before. */
#include "importer/lower.h"
#include "runtime/base/status.h"
#include "runtime/graph/fold.h"
#include "runtime/ref/ref.h"
#include "tests/bench/models.h"
#include "tests/support/make_onnx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CHAIN = 10000, TURNS = 3 };

struct result {
    double seconds, peak_mib;
};

static void must(bool good, const char *what)
{
    if (good)
        return;
    perror(what);
    exit(EXIT_FAILURE);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double peak_mib(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss / 1024;
}

/* ---- Importing ------------------------------------------------------------------------------- */

static int import_model(const char *path)
{
    struct mgpu_onnx_file *file;
    struct mgpu_onnx_model *model;
    struct mgpu_weights *weights;
    struct mgpu_graph *graph;
    struct mgpu_weights_options none = {0};
    struct mgpu_lower_options options = {.float_type = MGPU_FLOAT, .batch = 16, .training = true};
    mgpu_fold_set(mgpu_ref_fold);
    MGPU_TRY(mgpu_onnx_read(&file, path));
    MGPU_TRY(mgpu_onnx_model_new(&model, file));
    MGPU_TRY(mgpu_weights_identify(&weights, model, &none));
    MGPU_TRY(mgpu_lower(&graph, model, weights, &options));
    mgpu_graph_free(graph);
    mgpu_weights_free(weights);
    mgpu_onnx_model_free(model);
    mgpu_onnx_free(file);
    return 0;
}

static struct result import_apart(const char *path)
{
    int pipes[2], status;
    struct result r;
    must(pipe(pipes) == 0, "pipe");
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        double before = peak_mib(), start = now();
        if (import_model(path) < 0) {
            fprintf(stderr, "bench_import: %s\n", mgpu_error());
            _exit(EXIT_FAILURE);
        }
        r = (struct result){now() - start, peak_mib() - before};
        _exit(write(pipes[1], &r, sizeof r) == sizeof r ? 0 : EXIT_FAILURE);
    }
    must(waitpid(child, &status, 0) == child, "waitpid");
    if (status != 0)
        exit(EXIT_FAILURE);
    must(read(pipes[0], &r, sizeof r) == sizeof r, "read");
    close(pipes[0]);
    close(pipes[1]);
    return r;
}

/* The fastest of some turns. `weights`: bytes beside the file. */
static void time_import(const char *name, const char *path, double weights)
{
    struct stat info;
    struct result best = {1e9, 0};
    must(stat(path, &info) == 0, path);
    for (int i = 0; i < TURNS; i++) {
        struct result r = import_apart(path);
        best = r.seconds < best.seconds ? r : best;
    }
    double mib = ((double)info.st_size + weights) / (1 << 20);
    printf("%-12s %8.1f MiB %8.3f s, peak %8.1f MiB (%.2f of the file)\n", name, mib, best.seconds,
           best.peak_mib, best.peak_mib / mib);
    fflush(stdout);
}

/* ---- Models ---------------------------------------------------------------------------------- */

static void write_chain(const char *path)
{
    char *text;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    must(f, "memory");
    fputs("input v0 float N 16\n", f);
    for (int i = 0; i < CHAIN / 2; i++) {
        fprintf(f, "init w%d float 16 = normal 0.1\n", i);
        fprintf(f, "h%d = Mul(v%d, w%d)\nv%d = Relu(h%d)\n", i, i, i, i + 1, i);
    }
    fprintf(f, "output v%d float N 16\n", CHAIN / 2);
    fclose(f);
    make_onnx_file(path, text);
    free(text);
}

/* One Gemm whose weight is `rows` x 1024 floats of a file that holds only zeros. */
static void write_external(const char *path, const char *data, int64_t rows)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    Onnx__ModelProto *model = make_onnx(arena, "input x float N 1024\n"
                                               "init w float 1 1024 = 0\n"
                                               "y = Gemm(x, w) transB=1\n"
                                               "output y\n");
    Onnx__TensorProto *w = model->graph->initializer[0];
    Onnx__StringStringEntryProto place, *places = &place;
    onnx__string_string_entry_proto__init(&place);
    place.key = (char *)"location";
    place.value = strrchr(data, '/') + 1;
    w->dims[0] = rows;
    w->n_float_data = 0;
    w->raw_data.len = 0;
    w->has_raw_data = false;
    w->has_data_location = true;
    w->data_location = ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
    w->n_external_data = 1;
    w->external_data = &places;
    uint8_t *packed = mgpu_xcalloc(onnx__model_proto__get_packed_size(model), 1);
    size_t size = onnx__model_proto__pack(model, packed);
    FILE *f = fopen(path, "wb");
    must(f && fwrite(packed, 1, size, f) == size && !fclose(f), path);
    free(packed);
    mgpu_arena_free(arena);
    f = fopen(data, "wb");
    must(f && ftruncate(fileno(f), rows * 1024 * 4) == 0 && !fclose(f), data);
}

int main(void)
{
    enum { ROWS = 3 << 18 }; /* of 4 KiB */
    char folder[] = "/tmp/mgpu-import-XXXXXX", path[64], data[64];
    must(mkdtemp(folder), folder);

    bench_model_write(bench_model_find("resnet50"), 1, folder);
    snprintf(path, sizeof path, "%s/resnet50.onnx", folder);
    time_import("resnet50", path, 0);

    snprintf(path, sizeof path, "%s/chain.onnx", folder);
    write_chain(path);
    time_import("10000 nodes", path, 0);

    snprintf(path, sizeof path, "%s/external.onnx", folder);
    snprintf(data, sizeof data, "%s/external.data", folder);
    write_external(path, data, ROWS);
    time_import("external", path, 4096.0 * ROWS);

    char command[128];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}
