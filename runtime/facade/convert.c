/* mgpu-convert: from any kind of weights file to any other. */
#include "exporter/framework_names.h"
#include "exporter/match.h"
#include "exporter/normalizations.h"
#include "importer/onnx_repeat.h"
#include "runtime/base/file_name.h"
#include "runtime/base/option_text.h"
#include "runtime/base/status.h"
#include "runtime/facade/weights_file.h"
#include "runtime/mgpu.h"

#include <json-c/json.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- A model --------------------------------------------------------------------------------- */

struct model {
    struct mgpu_onnx_file *file;
    struct mgpu_onnx_model *model;
    struct mgpu_weights *weights;
    struct mgpu_model_source source;
};

/* `keras`: a file that may have constants that the export left out; NULL: none. */
static int open_model(struct model *m, const char *path, const char *keras)
{
    memset(m, 0, sizeof *m);
    MGPU_TRY(mgpu_onnx_read(&m->file, path));
    MGPU_TRY(mgpu_onnx_unrepeat(m->file, true));
    MGPU_TRY(mgpu_onnx_model_new(&m->model, m->file));
    if (keras)
        MGPU_TRY(mgpu_normalizations_fill(m->file, &m->model, keras));
    const struct mgpu_weights_options all = {0};
    MGPU_TRY(mgpu_prefix(mgpu_weights_identify(&m->weights, m->model, &all), "%s", path));
    m->source = (struct mgpu_model_source){.model = m->model,
                                           .weights = m->weights,
                                           .contents = mgpu_model_own_contents,
                                           .changed = mgpu_model_own_changed,
                                           .context = &m->source};
    return 0;
}

static void close_model(struct model *m)
{
    mgpu_weights_free(m->weights);
    if (m->model)
        mgpu_onnx_model_free(m->model);
    if (m->file)
        mgpu_onnx_free(m->file);
}

/* ---- Results --------------------------------------------------------------------------------- */

static void print_line(FILE *to, const struct mgpu_weights_result *r)
{
    fprintf(to, "%d of %d tensors%s%s\n", r->matched, r->total, *r->unwrapped ? ", " : "",
            r->unwrapped);
}

static struct json_object *left_json(const struct mgpu_weights_result *r)
{
    static const char *const why[] = {[MGPU_MATCH_SHAPE] = "shape",
                                      [MGPU_MATCH_MISSING] = "missing",
                                      [MGPU_MATCH_LEFT] = "no place"};
    struct json_object *list = json_object_new_array();
    for (int i = 0; i < r->lefts; i++) {
        struct json_object *o = json_object_new_object();
        json_object_object_add(o, "name", json_object_new_string(r->left[i].name));
        json_object_object_add(o, "why", json_object_new_string(why[r->left[i].kind]));
        json_object_object_add(o, "text", json_object_new_string(r->left[i].text));
        json_object_array_add(list, o);
    }
    return list;
}

static void print_json(FILE *to, const struct mgpu_weights_result *r, const char *out)
{
    struct json_object *o = json_object_new_object(), *saved = json_object_new_array();
    json_object_object_add(o, "matched", json_object_new_int(r->matched));
    json_object_object_add(o, "total", json_object_new_int(r->total));
    json_object_object_add(o, "unwrapped", json_object_new_string(r->unwrapped));
    json_object_object_add(o, "left_out", left_json(r));
    json_object_array_add(saved, json_object_new_string(out));
    json_object_object_add(o, "saved", saved);
    fprintf(
        to, "%s\n",
        json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE));
    json_object_put(o);
}

/* ---- Through a model ------------------------------------------------------------------------- */

static struct mgpu_match_options match_options(const struct mgpu_convert_options *o)
{
    return (struct mgpu_match_options){.map = o->map,
                                       .by_order = o->by_order,
                                       .partial = o->partial,
                                       .skip_mismatch = o->skip_mismatch,
                                       .allow_nonfinite = o->allow_nonfinite};
}

/* The two halves of a recurrent bias, of which Keras has the sum (a note says so). */
static bool same_sums(const struct mgpu_array *x, const struct mgpu_array *y)
{
    bool same = x->rank == 2 && x->dims[1] % 2 == 0 && mgpu_is_float(x->type);
    int64_t half = same ? x->dims[1] / 2 : 0;
    for (int64_t i = 0; same && i < x->dims[0] * half; i++) {
        int64_t at = i / half * 2 * half + i % half;
        double a =
            mgpu_get_double(x->data, x->type, at) + mgpu_get_double(x->data, x->type, at + half);
        double b = mgpu_get_double(y->data, y->type, at);
        same = mgpu_get_double(y->data, y->type, at + half) == 0 && fabs(a - b) <= 1e-6 * fabs(b);
    }
    return same;
}

static int same_contents(struct model *a, struct model *b, const char *path)
{
    for (int i = 0; i < a->weights->count; i++) {
        const struct mgpu_array *x = mgpu_weight_contents(a->weights, a->model, i);
        const struct mgpu_array *y = mgpu_weight_contents(b->weights, b->model, i);
        if (same_sums(x, y))
            continue;
        if (memcmp(x->data, y->data, (size_t)mgpu_array_count(x) * mgpu_dtype_size(x->type)))
            return mgpu_fail(MGPU_EIO, "%s: read back, '%s' is not what was written", path,
                             a->weights->weight[i].name);
    }
    return 0;
}

static bool same_numbers(const struct mgpu_array *x, const struct mgpu_array *y)
{
    bool same = x && y && mgpu_array_count(x) == mgpu_array_count(y);
    for (int64_t i = 0; same && i < mgpu_array_count(x); i++) {
        float a = (float)mgpu_get_double(x->data, x->type, i);
        float b = (float)mgpu_get_double(y->data, y->type, i);
        same = a == b || (isnan(a) && isnan(b));
    }
    return same;
}

/* The optimizer's arrays, which files have in single precision. */
static int same_state(const struct mgpu_model_state *a, const struct mgpu_model_state *b,
                      const char *path)
{
    for (int i = 0; i < a->list.count; i++) {
        const char *name = a->list.item[i].name;
        if (!same_numbers(&a->list.item[i].array, mgpu_array_list_find(&b->list, name)))
            return mgpu_fail(MGPU_EIO, "%s: read back, '%s' is not what was written", path, name);
    }
    return 0;
}

/* Reads the new file back into a model of its own and compares every weight; an optimizer's arrays,
 * too, but those of Keras's store, which does not say to which weight they belong. */
static int verify(struct model *m, const char *model, const char *out, enum mgpu_target target,
                  const struct mgpu_convert_options *o)
{
    bool named = target != MGPU_TARGET_KERAS_STORE;
    struct model again;
    struct mgpu_weights_result r = {0};
    struct mgpu_model_state state = {0}, *slots = m->source.state && named ? &state : NULL;
    const struct mgpu_match_options match = {.allow_nonfinite = true, .by_order = o->by_order};
    int rc = open_model(&again, model, out);
    if (rc == 0)
        rc = mgpu_weights_from_file(&again.weights, again.model, out, !o->keep_wrapper, &match, &r,
                                    slots);
    if (rc == 0)
        rc = same_contents(m, &again, out);
    if (rc == 0 && slots)
        rc = same_state(m->source.state, slots, out);
    mgpu_weights_result_free(&r);
    mgpu_array_list_free(&state.list);
    close_model(&again);
    return rc;
}

/* The graph stays as it is: what it then predicts is said where that is not what people expect. */
static void tell_training_form(const struct model *m, const char *out)
{
    int n = 0;
    for (int i = 0; i < m->model->node_total; i++)
        n += !strcmp(m->model->all[i]->type, "BatchNormalization") &&
             mgpu_onnx_int(m->model->all[i], "training_mode", 0);
    if (n)
        mgpu_note("%s is in training form, as the model is: %d batch normalisation%s the batch's "
                  "own statistics (mgpu-train --save writes the form for inference)",
                  out, n, n == 1 ? " takes" : "s take");
}

/* A fresh bias is zero, and dynamo leaves it out; TorchScript, whose names begin with '/', does
 * not. */
static void tell_lost(const struct model *m, const char *out)
{
    int n = 0;
    for (int i = 0; i < m->weights->bares; i++)
        n += m->weights->lost[i] && *m->model->all[m->weights->bare[i]]->name != '/';
    if (n && m->model->producer == MGPU_PRODUCER_PYTORCH)
        mgpu_note("%s: %d layer%s no bias in the graph, where one of zeros is left out: if the "
                  "model has it, load_state_dict wants strict=False (--like FILE.safetensors, or "
                  "mgpu-train --add-bias, puts it back)",
                  out, n, n == 1 ? " has" : "s have");
}

static int write_model(struct model *m, const char *in, const char *out, enum mgpu_target target,
                       const struct mgpu_convert_options *o)
{
    int count;
    const struct mgpu_model_write_options w = {.as_exported = true,
                                               .onnx_names = o->names && !strcmp(o->names, "onnx"),
                                               .by_order = o->by_order,
                                               .like = (const char *const[]){o->like, NULL}};
    if (target != MGPU_TARGET_ONNX && !o->like)
        tell_lost(m, out);
    MGPU_TRY(mgpu_model_write(&m->source, out, target, &w, &count));
    if (target == MGPU_TARGET_ONNX)
        tell_training_form(m, out);
    return o->verify ? verify(m, o->model ? o->model : in, out, target, o) : 0;
}

static int through_model(const char *in, const char *out, enum mgpu_target target,
                         const struct mgpu_convert_options *o, struct mgpu_weights_result *r)
{
    struct model m;
    struct mgpu_model_state state = {0}, *given = o->optimizer_state ? &state : NULL;
    const struct mgpu_match_options match = match_options(o);
    int rc = open_model(&m, o->model ? o->model : in, o->model ? in : o->like);
    if (rc == 0 && o->model)
        rc = mgpu_weights_from_file(&m.weights, m.model, in, !o->keep_wrapper, &match, r, given);
    else if (rc == 0)
        mgpu_weights_result_set(r, m.weights->count, m.weights->count, NULL);
    m.source.state = given;
    if (rc == 0)
        rc = write_model(&m, in, out, target, o);
    mgpu_array_list_free(&state.list);
    close_model(&m);
    return rc;
}

static bool is_left(const struct mgpu_weights_result *r, int weight)
{
    for (int i = 0; i < r->lefts; i++)
        if (r->left[i].weight == weight)
            return true;
    return false;
}

int mgpu_file_arrays_of_model(struct mgpu_named_array **out, int *count, const char *path,
                              const struct mgpu_convert_options *o, struct mgpu_weights_result *r)
{
    struct model m;
    struct mgpu_match_options match = match_options(o);
    match.partial = match.skip_mismatch = match.allow_nonfinite = true;
    *out = NULL;
    *count = 0;
    int rc = open_model(&m, o->model, path);
    if (rc == 0 && strcmp(path, o->model))
        rc = mgpu_weights_from_file(&m.weights, m.model, path, !o->keep_wrapper, &match, r, NULL);
    if (rc == 0)
        *out = mgpu_xcalloc((size_t)m.weights->count + 1, sizeof **out);
    for (int i = 0; rc == 0 && i < m.weights->count; i++) {
        struct mgpu_named_array *a = &(*out)[(*count)++];
        a->name = mgpu_xstrdup(m.weights->weight[i].name);
        if (!is_left(r, i))
            rc = mgpu_model_own_contents(&m.source, i, 0, &a->array);
    }
    close_model(&m);
    return rc;
}

/* ---- Files of weights alone ------------------------------------------------------------------ */

static int without_model(struct mgpu_checkpoint *c, const char *out, enum mgpu_target target,
                         const struct mgpu_convert_options *o, struct mgpu_weights_result *r)
{
    struct mgpu_named_array *arrays;
    int count;
    MGPU_TRY(mgpu_file_arrays(&arrays, &count, c, target, o->optimizer_state));
    int rc = 0;
    if (!o->optimizer_state)
        mgpu_tell_state(c);
    for (int i = 0; i < count && rc == 0 && !o->allow_nonfinite; i++)
        rc = mgpu_prefix(mgpu_match_finite(&arrays[i].array, arrays[i].name), "%s", c->path);
    if (rc == 0)
        rc = mgpu_arrays_write(out, target, arrays, count);
    mgpu_named_arrays_free(arrays, count);
    mgpu_weights_result_set(r, c->weights, c->weights, c);
    return rc;
}

static int check_options(const struct mgpu_convert_options *o, enum mgpu_target target)
{
    static const char *const names[] = {"onnx", "source"};
    if (o->names && strcmp(o->names, "onnx") && strcmp(o->names, "source"))
        return mgpu_unknown_word("--names", o->names, names, 2);
    if (o->names && !strcmp(o->names, "onnx") && target == MGPU_TARGET_KERAS_STORE)
        return mgpu_fail(MGPU_EUSAGE, "--names onnx: Keras 3's layout has no names");
    if (o->like && target == MGPU_TARGET_ONNX)
        return mgpu_fail(MGPU_EUSAGE, "--like is for files of weights alone");
    if (o->optimizer_state && (target == MGPU_TARGET_ONNX || target == MGPU_TARGET_KERAS_H5))
        return mgpu_fail(MGPU_EUSAGE, "--optimizer-state: only Keras 3's .weights.h5, safetensors "
                                      "and npz have a place for it");
    return 0;
}

/* What says how IN's weights find their places in a model is of no use where they do not have to;
 * a file of weights alone knows neither layouts nor a second kind of names. */
static int check_alone(const struct mgpu_convert_options *o, bool is_model, enum mgpu_target target)
{
    bool keras = target == MGPU_TARGET_KERAS_H5 || target == MGPU_TARGET_KERAS_STORE;
    const char *option = o->map                                             ? "--map"
                         : o->by_order && !(is_model && (keras || o->like)) ? "--by-order"
                         : o->partial                                       ? "--partial"
                         : o->skip_mismatch                                 ? "--skip-mismatch"
                         : o->keep_wrapper && is_model                      ? "--unwrap off"
                         : o->like && !is_model                             ? "--like"
                         : o->verify && !is_model                           ? "--verify"
                         : o->names && !is_model                            ? "--names"
                                                                            : NULL;
    return option ? mgpu_fail(MGPU_EUSAGE, "%s needs --model MODEL.onnx", option) : 0;
}

static int convert_alone(struct mgpu_checkpoint *c, const char *out, enum mgpu_target target,
                         const struct mgpu_convert_options *o, struct mgpu_weights_result *r)
{
    bool is_model = c->kind == MGPU_CHECKPOINT_ONNX;
    if (is_model && o->optimizer_state)
        return mgpu_fail(MGPU_EUSAGE, "%s is a model, which holds no optimizer's state", c->path);
    if (!is_model && target == MGPU_TARGET_ONNX)
        return mgpu_fail(MGPU_EUSAGE,
                         "%s holds only weights: give the graph with --model MODEL.onnx", c->path);
    MGPU_TRY(check_alone(o, is_model, target));
    return is_model ? through_model(c->path, out, target, o, r)
                    : without_model(c, out, target, o, r);
}

static int convert_file(const char *in, const char *out, enum mgpu_target target,
                        const struct mgpu_convert_options *o, struct mgpu_weights_result *r)
{
    struct mgpu_checkpoint *c;
    MGPU_TRY(mgpu_checkpoint_open(&c, in, !o->keep_wrapper));
    int rc = convert_alone(c, out, target, o, r);
    mgpu_checkpoint_close(c);
    return rc;
}

/* What is not a weight would be lost with a file that is read. */
static int check_apart(const char *in, const char *out, const struct mgpu_convert_options *o)
{
    MGPU_TRY(mgpu_check_other_file(out, in, "IN"));
    MGPU_TRY(mgpu_check_other_file(out, o->model, "the file of --model"));
    MGPU_TRY(mgpu_check_other_file(out, o->like, "the file of --like"));
    return mgpu_check_other_file(out, o->map, "the file of --map");
}

int mgpu_weights_convert(const char *in, const char *out, const struct mgpu_convert_options *o,
                         bool json, FILE *to)
{
    enum mgpu_target target;
    struct mgpu_weights_result r = {0};
    MGPU_TRY(mgpu_target_of(&target, out, o->to));
    MGPU_TRY(check_options(o, target));
    MGPU_TRY(check_apart(in, out, o));
    int rc =
        o->model ? through_model(in, out, target, o, &r) : convert_file(in, out, target, o, &r);
    if (rc == 0) {
        mgpu_weights_tell_left(&r, in);
        if (json)
            print_json(to, &r, out);
        else
            print_line(to, &r);
    }
    mgpu_weights_result_free(&r);
    return rc;
}
