/* Trained weights into files. */
#include "exporter/atomic_file.h"
#include "exporter/keras_h5.h"
#include "exporter/onnx_write.h"
#include "runtime/base/status.h"
#include "runtime/facade/facade.h"

#include <stdlib.h>
#include <string.h>

/* Whether training may have changed the weight: trained, or a statistic that a program moves. */
static bool changes(const struct mgpu_trainer *t, int weight)
{
    const struct mgpu_weight *w = &t->weights->weight[weight];
    int rank;
    if (w->role != MGPU_ROLE_STATISTIC)
        return w->role == MGPU_ROLE_TRAINED && mgpu_find_stored(t, w->name, &rank);
    for (int i = 0; i < t->compiled_count; i++)
        for (int r = 0; r < MGPU_MAX_RANKS; r++) {
            const struct mgpu_program *p = t->compiled[i].program[r];
            for (int k = 0; p && k < p->graph->parameter_count; k++)
                if (p->graph->parameters[k].next && !strcmp(p->graph->parameters[k].name, w->name))
                    return true;
        }
    return false;
}

struct outgoing {
    int patches, additions, rewires, arrays;
    struct mgpu_onnx_patch *patch;
    struct mgpu_onnx_addition *addition;
    struct mgpu_onnx_rewire *rewire;
    struct mgpu_array *array;
};

static int holders(const struct mgpu_trainer *t, int *uses)
{
    int n = 0;
    *uses = 0;
    for (int i = 0; i < t->weights->count; i++)
        for (int h = 0; h < t->weights->weight[i].holders; h++, n++)
            *uses += t->weights->weight[i].holder[h].uses;
    return n;
}

static int add_holder(struct mgpu_trainer *t, struct outgoing *out, int weight, int holder)
{
    const struct mgpu_weight *w = &t->weights->weight[weight];
    const struct mgpu_holder *h = &w->holder[holder];
    const struct mgpu_onnx_initializer *init = &t->model->initializer[h->initializer];
    struct mgpu_array *array = &out->array[out->arrays++];
    MGPU_TRY(mgpu_holder_array(array, t, weight, holder));
    const char *key = init->proto ? mgpu_onnx_key(t->file, init->proto) : init->name;
    if (!h->added) {
        out->patch[out->patches++] = (struct mgpu_onnx_patch){.tensor = key, .array = array};
        return 0;
    }
    out->addition[out->additions++] =
        (struct mgpu_onnx_addition){.name = w->name, .like = key, .array = array};
    for (int u = 0; u < h->uses; u++) {
        const struct mgpu_onnx_node *node = t->model->all[h->use[u].node];
        out->rewire[out->rewires++] = (struct mgpu_onnx_rewire){
            .node = mgpu_onnx_key(t->file, node->proto), .input = h->use[u].input, .name = w->name};
    }
    return 0;
}

static int collect(struct mgpu_trainer *t, struct outgoing *out)
{
    for (int i = 0; i < t->weights->count; i++) {
        const struct mgpu_weight *w = &t->weights->weight[i];
        for (int h = 0; h < w->holders; h++)
            if (changes(t, i) || w->holder[h].added)
                MGPU_TRY(add_holder(t, out, i, h));
    }
    return 0;
}

static int save_onnx(struct mgpu_trainer *t, const char *path)
{
    int uses, n = holders(t, &uses);
    struct outgoing out = {.patch = mgpu_xcalloc((size_t)n, sizeof *out.patch),
                           .addition = mgpu_xcalloc((size_t)n, sizeof *out.addition),
                           .rewire = mgpu_xcalloc((size_t)uses, sizeof *out.rewire),
                           .array = mgpu_xcalloc((size_t)n, sizeof *out.array)};
    int rc = collect(t, &out);
    struct mgpu_onnx_write_options o = {.as_exported = t->options.as_exported,
                                        .additions = out.addition,
                                        .addition_count = out.additions,
                                        .rewires = out.rewire,
                                        .rewire_count = out.rewires};
    if (rc == 0)
        rc = mgpu_onnx_write(t->file, path, out.patch, out.patches, &o);
    for (int i = 0; i < out.arrays; i++)
        mgpu_array_free(&out.array[i]);
    free(out.patch);
    free(out.addition);
    free(out.rewire);
    free(out.array);
    return rc;
}

static int save_h5(struct mgpu_trainer *t, const char *path)
{
    int uses, n = holders(t, &uses), count = 0, rc = 0;
    struct mgpu_named_array *arrays = mgpu_xcalloc((size_t)n, sizeof *arrays);
    for (int i = 0; i < t->weights->count; i++) {
        const struct mgpu_weight *w = &t->weights->weight[i];
        for (int h = 0; h < w->holders && rc == 0; h++) {
            const char *own = t->model->initializer[w->holder[h].initializer].name;
            arrays[count].name = (char *)(w->holder[h].added ? w->name : own);
            rc = mgpu_holder_array(&arrays[count++].array, t, i, h);
        }
    }
    if (rc == 0)
        rc = mgpu_keras_h5_write(path, arrays, count);
    for (int i = 0; i < count; i++)
        mgpu_array_free(&arrays[i].array);
    free(arrays);
    return rc;
}

static bool ends_with(const char *path, const char *end)
{
    size_t n = strlen(path), m = strlen(end);
    return n >= m && !strcmp(path + n - m, end);
}

int mgpu_check_target(const char *path)
{
    struct mgpu_atomic_file f;
    MGPU_TRY(mgpu_atomic_open(&f, path));
    mgpu_atomic_abort(&f, 0);
    return 0;
}

static int check_entry(const struct mgpu_trainer *t, int rank, const struct mgpu_stored *e)
{
    const char *data = mgpu_team_rank(t->team, rank)->buffer[e->buffer];
    int64_t n = e->bytes / (int64_t)mgpu_dtype_size(e->type);
    for (int64_t k = 0; k < n; k++) {
        double v = mgpu_get_double(data + e->offset, e->type, k);
        if (v - v != 0)
            return mgpu_fail(MGPU_EINVALID, "weight '%s' is not finite: not saved", e->name);
    }
    return 0;
}

int mgpu_check_finite(const struct mgpu_trainer *t)
{
    for (int r = 0; r < t->plan->places; r++)
        for (int i = 0; i < t->store[r]->count; i++)
            if (t->store[r]->entry[i].role == MGPU_WEIGHT)
                MGPU_TRY(check_entry(t, r, &t->store[r]->entry[i]));
    return 0;
}

static bool is_onnx(const char *path)
{
    return ends_with(path, ".onnx");
}

int mgpu_check_save_name(const char *path)
{
    if (is_onnx(path) || (ends_with(path, ".h5") && !ends_with(path, ".weights.h5")))
        return 0;
    return mgpu_fail(MGPU_EUSAGE, "%s: the name must end in .onnx or .h5", path);
}

int mgpu_save(struct mgpu_trainer *t, const char *path)
{
    MGPU_TRY(mgpu_check_save_name(path));
    MGPU_TRY(mgpu_prefix(mgpu_check_finite(t), "%s", path));
    return is_onnx(path) ? save_onnx(t, path) : save_h5(t, path);
}
