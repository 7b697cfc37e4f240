#include "tests/support/tiny.h"

#include "runtime/base/memory.h"
#include "tests/cuda/double.h"
#include "tests/support/make_onnx.h"
#include "tests/support/write_npy.h"

#include <dirent.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[32];
static struct mgpu_arena *arena;
static int files;
static bool doubled; /* CPU ranks are those of a GPU that there is not (double.h) */

void tiny_begin(void)
{
    snprintf(folder, sizeof folder, "/tmp/mgpu-tiny-XXXXXX");
    arena = mgpu_arena_new();
    if (!mkdtemp(folder))
        abort();
    doubled = double_wanted();
}

void tiny_end(void)
{
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (e->d_name[0] != '.')
            unlink(tiny_path(e->d_name));
    if (dir)
        closedir(dir);
    rmdir(folder);
    mgpu_arena_free(arena);
    if (doubled)
        double_end();
    if (doubled && double_complaints()) {
        fprintf(stderr, "%s\n", double_complaint());
        exit(EXIT_FAILURE);
    }
}

const char *tiny_path(const char *name)
{
    return mgpu_arena_format(arena, "%s/%s", folder, name);
}

const char tiny_towers[] = "ir 9\n"
                           "input a float N 6\n"
                           "input b float N 6\n"
                           "init W float 6 8 = normal 0.5\n"
                           "init V float 16 3 = normal 0.5\n"
                           "p = MatMul(a, W)\n"
                           "h = Tanh(p)\n"
                           "q = MatMul(b, W)\n"
                           "k = Tanh(q)\n"
                           "c = Concat(h, k) axis=1\n"
                           "y = MatMul(c, V)\n"
                           "output y float N 3\n";
const struct tiny_weight tiny_tower_weights[2] = {{"W", 48}, {"V", 48}};

const char *tiny_model(const char *text)
{
    const char *path = mgpu_arena_format(arena, "%s/%d.onnx", folder, files++);
    make_onnx_file(path, text);
    return path;
}

const char *tiny_data(const char *name, enum mgpu_dtype type, int rank, const int64_t *dims,
                      const void *data)
{
    const char *path = mgpu_arena_format(arena, "%s/%d.npy", folder, files++);
    write_npy_data(path, type, rank, dims, data);
    return mgpu_arena_format(arena, "%s=%s", name, path);
}

static int64_t read_shape(const char *shape, int *rank, int64_t *dims)
{
    int64_t n = 1;
    char *end;
    for (*rank = 0; *shape; shape = end) {
        dims[*rank] = strtoll(shape, &end, 10);
        n *= dims[(*rank)++];
        while (*end == ' ')
            end++;
    }
    return n;
}

const char *tiny_floats(const char *name, const char *shape, ...)
{
    int64_t dims[MGPU_MAX_RANK];
    int rank;
    int64_t n = read_shape(shape, &rank, dims);
    float *value = MGPU_NEW_ARRAY(arena, float, n);
    va_list args;
    va_start(args, shape);
    for (int64_t i = 0; i < n; i++)
        value[i] = (float)va_arg(args, double);
    va_end(args);
    return tiny_data(name, MGPU_FLOAT, rank, dims, value);
}

const char *tiny_noise(const char *name, unsigned seed, int rank, const int64_t *dims)
{
    int64_t n = 1;
    for (int i = 0; i < rank; i++)
        n *= dims[i];
    float *value = MGPU_NEW_ARRAY(arena, float, n);
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        value[i] = (float)(seed >> 8) / (float)(1 << 23) - 1;
    }
    return tiny_data(name, MGPU_FLOAT, rank, dims, value);
}

const char *const *tiny_list(const char *first, ...)
{
    int n = 0;
    const char **list = MGPU_NEW_ARRAY(arena, const char *, 32);
    va_list args;
    va_start(args, first);
    for (const char *item = first; item; item = va_arg(args, const char *))
        list[n++] = item;
    va_end(args);
    return list;
}

static int run(struct tiny_result *out, struct mgpu_trainer *t, const struct tiny_weight *weights,
               int count)
{
    struct mgpu_step_result s;
    int rc;
    while ((rc = mgpu_step(t, &s)) > 0 && out->steps < TINY_STEPS)
        out->loss[out->steps++] = s.loss;
    for (int i = 0; i < count && rc >= 0; i++) {
        rc = mgpu_weight_read(t, weights[i].name, out->weight + out->weights, weights[i].count);
        mgpu_gradient_read(t, weights[i].name, out->gradient + out->weights, weights[i].count);
        out->weights += weights[i].count;
    }
    return rc;
}

void tiny_train(struct tiny_result *out, const char *model, const struct mgpu_options *options,
                const struct tiny_weight *weights, int count)
{
    struct mgpu_trainer *t;
    struct mgpu_options o = *options;
    char list[1024];
    memset(out, 0, sizeof *out);
    if (doubled)
        o.devices = double_devices(list, o.devices);
    out->rc = mgpu_trainer_new(&t, model, &o);
    if (out->rc >= 0)
        out->rc = run(out, t, weights, count);
    if (out->rc < 0)
        snprintf(out->error, sizeof out->error, "%s", mgpu_error());
    mgpu_trainer_free(t);
}

static double worst(double so_far, const double *a, const double *b, int count)
{
    for (int i = 0; i < count; i++) {
        double d = fabs(a[i] - b[i]) / fmax(1, fabs(b[i]));
        so_far = d <= so_far ? so_far : d;
    }
    return so_far;
}

double tiny_difference(const struct tiny_result *a, const struct tiny_result *b)
{
    if (a->rc < 0 || b->rc < 0 || a->steps != b->steps || a->weights != b->weights || !a->steps)
        return INFINITY;
    return worst(worst(0, a->loss, b->loss, a->steps), a->weight, b->weight, a->weights);
}

bool tiny_same(const struct tiny_result *a, const struct tiny_result *b)
{
    return a->rc >= 0 && b->rc >= 0 && a->steps == b->steps && a->weights == b->weights &&
           memcmp(a->loss, b->loss, sizeof *a->loss * (size_t)a->steps) == 0 &&
           memcmp(a->weight, b->weight, sizeof *a->weight * (size_t)a->weights) == 0;
}
