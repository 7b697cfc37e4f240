#include "exporter/normalizations.h"

#include "exporter/architecture.h"
#include "exporter/scopes.h"
#include "importer/normalization.h"
#include "importer/onnx_edit.h"
#include "runtime/base/names.h"
#include "runtime/base/status.h"

#include <stdlib.h>
#include <string.h>

const char *mgpu_normalization_path(struct mgpu_arena *arena, const struct mgpu_onnx_node *node,
                                    bool renumbered)
{
    const char *product = mgpu_arena_format(arena, "%s/MatMul", node->layer);
    return mgpu_scope_tensorflow(arena, product, renumbered).path;
}

const char *mgpu_normalizations_first(const struct mgpu_variables *v)
{
    struct mgpu_normalization n;
    for (int i = 0; i < v->model->node_total; i++)
        if (mgpu_normalization(&n, v->model, v->flow, v->model->all[i]))
            return mgpu_normalization_path(v->arena, v->model->all[i], v->renumbered);
    return NULL;
}

/* The input of the graph that is the mean which this node shifts by; -1: it is none. */
static int mean_input(const struct mgpu_onnx_model *model, const struct mgpu_weight_flow *flow,
                      const struct mgpu_onnx_node *node)
{
    struct mgpu_normalization n;
    return mgpu_normalization(&n, model, flow, node)
               ? mgpu_onnx_find_input(model, node->input[n.mean])
               : -1;
}

bool mgpu_normalizations_is_mean(const struct mgpu_onnx_model *model, const char *input)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    const struct mgpu_weight_flow *flow = mgpu_weight_flow_new(arena, model);
    bool mean = false;
    for (int i = 0; i < model->node_total && !mean; i++) {
        int at = mean_input(model, flow, model->all[i]);
        mean = at >= 0 && !strcmp(model->graph.input[at].name, input);
    }
    mgpu_arena_free(arena);
    return mean;
}

/* ---- From a file ----------------------------------------------------------------------------- */

struct filling {
    struct mgpu_onnx_file *file;
    const struct mgpu_onnx_model *model;
    const struct mgpu_checkpoint *from;
    struct mgpu_arena *arena;
    const struct mgpu_weight_flow *flow;
    bool renumbered;
    int filled, gone;
    bool *done;        /* by input */
    const char **name; /* of inputs that are none any more */
};

/* The tensor that is the mean of the layer: of its name or, of one alone, of any; -1: none is. */
static int mean_of(const struct filling *f, const char *path, int64_t count)
{
    int found = -1, means = 0;
    for (int i = 0; i < f->from->count; i++) {
        const struct mgpu_checkpoint_tensor *t = &f->from->tensor[i];
        int64_t elements = 1;
        for (int k = 0; k < t->rank; k++)
            elements *= t->dims[k];
        if (strcmp(t->leaf, "mean") || !t->weight || elements != count)
            continue;
        if (*t->layer && mgpu_ends_with(mgpu_arena_format(f->arena, "/%s", path),
                                        mgpu_arena_format(f->arena, "/%s", t->layer)))
            return i;
        found = i;
        means++;
    }
    return means == 1 ? found : -1;
}

/* 0: a size is unknown, or no tensor's. */
static int64_t elements_of(const struct mgpu_onnx_value *x)
{
    int64_t n = x->rank >= 0;
    for (int i = 0; i < x->rank; i++)
        n = x->dims[i] < 1 || n > INT64_MAX / x->dims[i] ? 0 : n * x->dims[i];
    return n;
}

/* Up to IR 3 what is an initializer is an input, too. */
static void fill(struct filling *f, const struct mgpu_onnx_value *x, const struct mgpu_array *a)
{
    Onnx__TensorProto *t =
        mgpu_onnx_edit_add(f->file->proto->graph, x->name, x->type, x->rank, x->dims);
    mgpu_convert(t->raw_data.data, x->type, a->data, a->type, mgpu_array_count(a));
    if (f->file->proto->ir_version > 3)
        f->name[f->gone++] = mgpu_arena_string(f->arena, x->name);
    f->filled++;
}

/* That of the layer in the file: a tensor, or, if it was given when the layer was made, of its
 * configuration; 0: neither has it, else 1. */
static int find_mean(struct mgpu_array *out, const struct filling *f, const char *path,
                     int64_t count)
{
    enum { GIVEN_MOST = 1 << 20 };
    int tensor = mean_of(f, path, count);
    if (tensor >= 0)
        MGPU_TRY(mgpu_checkpoint_load(f->from, tensor, out));
    else if (count > GIVEN_MOST)
        return 0;
    else {
        MGPU_TRY(mgpu_array_init(out, MGPU_DOUBLE, 1, &count, path));
        if (!mgpu_architecture_mean(out->data, count, f->from, path)) {
            mgpu_array_free(out);
            return 0;
        }
    }
    return 1;
}

static bool is_read(const struct mgpu_onnx_model *model, const char *name)
{
    for (int i = 0; i < model->node_total; i++)
        for (int k = 0; k < model->all[i]->inputs; k++)
            if (!strcmp(model->all[i]->input[k], name))
                return true;
    return false;
}

/* Of the variance the exporter made another constant, and no node reads the input any more. */
static void find_unread(struct filling *f)
{
    for (int i = 0; i < f->model->graph.inputs; i++) {
        const char *name = f->model->graph.input[i].name;
        if (mgpu_ends_with(name, "/x:0") && strchr(name, '/') != strrchr(name, '/') &&
            !is_read(f->model, name))
            f->name[f->gone++] = mgpu_arena_string(f->arena, name);
    }
}

/* Names of the model itself are gone then. */
static void take_inputs(struct filling *f)
{
    Onnx__GraphProto *g = f->file->proto->graph;
    size_t kept = 0;
    for (size_t i = 0; i < g->n_input; i++) {
        bool gone = false;
        for (int k = 0; k < f->gone && !gone; k++)
            gone = !strcmp(g->input[i]->name, f->name[k]);
        if (gone)
            onnx__value_info_proto__free_unpacked(g->input[i], NULL);
        else
            g->input[kept++] = g->input[i];
    }
    g->n_input = kept;
}

static int fill_all(struct filling *f)
{
    for (int i = 0; i < f->model->node_total; i++) {
        const struct mgpu_onnx_node *node = f->model->all[i];
        int input = mean_input(f->model, f->flow, node);
        const struct mgpu_onnx_value *x = input < 0 ? NULL : &f->model->graph.input[input];
        int64_t count = x && !f->done[input] && mgpu_is_float(x->type) ? elements_of(x) : 0;
        const char *path = mgpu_normalization_path(f->arena, node, f->renumbered);
        struct mgpu_array mean;
        int found = count > 0 ? find_mean(&mean, f, path, count) : 0;
        MGPU_TRY(found);
        if (!found)
            continue;
        fill(f, x, &mean);
        mgpu_array_free(&mean);
        f->done[input] = true;
    }
    if (f->filled)
        find_unread(f);
    take_inputs(f);
    return 0;
}

/* Without a '/' in it no input is one: most models are done with that. */
static bool may_have_means(const struct mgpu_onnx_model *model)
{
    for (int i = 0; i < model->graph.inputs; i++)
        if (strchr(model->graph.input[i].name, '/'))
            return model->producer == MGPU_PRODUCER_TENSORFLOW;
    return false;
}

int mgpu_normalizations_fill(struct mgpu_onnx_file *file, struct mgpu_onnx_model **model,
                             const char *path)
{
    struct mgpu_checkpoint *c;
    if (!may_have_means(*model))
        return 0;
    MGPU_TRY(mgpu_checkpoint_open(&c, path, true));
    struct filling f = {.file = file, .model = *model, .from = c, .arena = mgpu_arena_new()};
    f.flow = mgpu_weight_flow_new(f.arena, *model);
    f.renumbered = mgpu_scope_renumbered(f.arena, *model);
    f.done = MGPU_NEW_ARRAY(f.arena, bool, (*model)->graph.inputs + 1);
    f.name = MGPU_NEW_ARRAY(f.arena, const char *, (*model)->graph.inputs + 1);
    int rc = fill_all(&f);
    mgpu_arena_free(f.arena);
    mgpu_checkpoint_close(c);
    if (rc < 0 || !f.filled)
        return rc;
    mgpu_note("the export left the mean of %d Normalization layer%s out, as inputs of the graph: "
              "the new model holds what %s has",
              f.filled, f.filled == 1 ? "" : "s", path);
    mgpu_onnx_model_free(*model);
    *model = NULL;
    mgpu_onnx_edit_done(file);
    return mgpu_onnx_model_new(model, file);
}
