/* Mean and variance of Keras's Normalization, and how many samples they are of: the graph has the
 * first two as constants, in its own form, and has to have the same. */
#include "exporter/match_parts.h"
#include "exporter/normalizations.h"
#include "importer/normalization.h"

#include <math.h>
#include <string.h>

/* ---- The layer of the graph ------------------------------------------------------------------ */

struct place {
    const char *path; /* NULL: not there */
    struct mgpu_normalization layer;
};

/* The one that is called as the file's layer, or, where that is the only one, the only one. */
static struct place find_place(const struct mgpu_match *m, const char *layer, bool only)
{
    const struct mgpu_variables *v = m->model;
    struct place found = {NULL, {0}};
    int count = 0;
    for (int i = 0; i < v->model->node_total; i++) {
        const struct mgpu_onnx_node *node = v->model->all[i];
        struct mgpu_normalization n;
        if (!mgpu_normalization(&n, v->model, v->flow, node))
            continue;
        found = (struct place){mgpu_normalization_path(m->arena, node, v->renumbered), n};
        count++;
        if (mgpu_match_is_end(layer, found.path))
            return found;
    }
    return count == 1 && only ? found : (struct place){NULL, {0}};
}

/* ---- The numbers ----------------------------------------------------------------------------- */

static double scale_of(double variance)
{
    return fmax(sqrt(variance), 1e-7); /* keras.backend.epsilon() */
}

/* Whether the graph's constant is the mean, or what is made of the variance. */
static bool agrees(const struct mgpu_match *m, int tensor, const struct mgpu_normalization *n,
                   bool mean)
{
    const char *name = mean ? n->shift->input[n->mean] : n->scale->input[n->deviation];
    bool reciprocal = !n->inverted && !strcmp(n->scale->type, "Mul");
    int initializer = mgpu_onnx_find_initializer(m->model->model, name);
    const struct mgpu_array *own =
        initializer < 0 ? NULL : &m->model->model->initializer[initializer].array;
    struct mgpu_array a;
    if (!own || !own->data || mgpu_checkpoint_load(m->file, tensor, &a) < 0)
        return false;
    bool same = mgpu_array_count(&a) == mgpu_array_count(own);
    for (int64_t i = 0; same && i < mgpu_array_count(own); i++) {
        double theirs = mgpu_get_double(a.data, a.type, i);
        double ours = mgpu_get_double(own->data, own->type, i);
        double want = mean ? theirs : reciprocal ? 1 / scale_of(theirs) : scale_of(theirs);
        same = fabs(ours - want) <= 1e-5 * fabs(want);
    }
    mgpu_array_free(&a);
    return same;
}

static void judge(struct mgpu_match *m, int tensor, struct place place)
{
    const char *leaf = m->file->tensor[tensor].leaf;
    bool mean = !strcmp(leaf, "mean"), variance = !strcmp(leaf, "variance");
    const struct mgpu_normalization *n = &place.layer;
    if (!mean && !variance) {
        m->constant[tensor] = !strcmp(leaf, "count");
        return;
    }
    m->constant[tensor] = agrees(m, tensor, n, mean);
    if (m->constant[tensor])
        return;
    bool input = mean && mgpu_onnx_find_input(m->model->model, n->shift->input[n->mean]) >= 0;
    m->why[tensor] =
        input
            ? mgpu_arena_format(m->arena,
                                "has no place: the export made an input of it, '%s' (mgpu-convert "
                                "FILE NEW.onnx --model MODEL.onnx makes a model that holds it)",
                                n->shift->input[n->mean])
            : mgpu_arena_format(m->arena,
                                "is not what the model has: it is a constant of "
                                "'%s' there, so that the model has to be exported "
                                "again",
                                place.path);
}

/* ---- All of them ----------------------------------------------------------------------------- */

static bool has_leaf(const struct mgpu_match *m, const struct mgpu_file_layer *l, const char *leaf)
{
    for (int k = 0; k < l->tensors; k++)
        if (!strcmp(m->file->tensor[l->tensor[k]].leaf, leaf))
            return true;
    return false;
}

static bool is_normalization(const struct mgpu_match *m, const struct mgpu_file_layer *l)
{
    return l->of < 0 && has_leaf(m, l, "mean") && has_leaf(m, l, "variance");
}

bool mgpu_match_is_beside(const struct mgpu_match *m, const struct mgpu_file_layer *l)
{
    return is_normalization(m, l) || has_leaf(m, l, "vector_u");
}

void mgpu_match_constants(struct mgpu_match *m, const struct mgpu_layers *f)
{
    int count = 0;
    for (int i = 0; i < f->count; i++)
        count += is_normalization(m, &f->layer[i]);
    for (int i = 0; i < f->count && count; i++) {
        const struct mgpu_file_layer *l = &f->layer[i];
        struct place place = {NULL, {0}};
        if (is_normalization(m, l))
            place = find_place(m, l->path, count == 1);
        for (int k = 0; k < l->tensors && place.path; k++)
            if (m->variable[l->tensor[k]] == -1)
                judge(m, l->tensor[k], place);
    }
}
