#include "runtime/facade/weights_file.h"

#include "exporter/architecture.h"
#include "exporter/framework_names.h"
#include "exporter/slots.h"
#include "runtime/base/status.h"
#include "runtime/train/optimizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mgpu_weights_result_set(struct mgpu_weights_result *r, int matched, int total,
                             const struct mgpu_checkpoint *file)
{
    r->matched = matched;
    r->total = total;
    snprintf(r->unwrapped, sizeof r->unwrapped, "%s",
             file && file->unwrapped ? file->unwrapped : "");
}

void mgpu_weights_result_free(struct mgpu_weights_result *r)
{
    for (int i = 0; i < r->lefts; i++) {
        free(r->left[i].name);
        free(r->left[i].text);
    }
    free(r->left);
}

static void tell_state(const char *path, int arrays)
{
    if (arrays)
        mgpu_note("%s: %d arrays of an optimizer are left out (--optimizer-state takes them)", path,
                  arrays);
}

void mgpu_tell_state(const struct mgpu_checkpoint *c)
{
    tell_state(c->path, mgpu_checkpoint_state_count(c));
}

void mgpu_weights_tell_left(const struct mgpu_weights_result *r, const char *path)
{
    tell_state(path, r->state_left);
    for (int i = 0; i < r->lefts; i++)
        mgpu_note("%s: left out: %s", path, r->left[i].text);
}

/* ---- Into a model ---------------------------------------------------------------------------- */

static bool any_called(const struct mgpu_checkpoint *c, const char *const *leaves)
{
    for (int i = 0; i < c->count; i++)
        for (int k = 0; leaves[k]; k++)
            if (!strcmp(c->tensor[i].leaf, leaves[k]))
                return true;
    return false;
}

/* Whose layouts a file has: what only PyTorch calls so, what only Keras does; else the model's. */
static enum mgpu_family family_of(const struct mgpu_checkpoint *c,
                                  const struct mgpu_onnx_model *model)
{
    static const char *const torch[] = {"weight", "weight_ih_l0", "running_mean", NULL};
    static const char *const keras[] = {"kernel", "recurrent_kernel", "depthwise_kernel", "gamma",
                                        "beta",   "embeddings",       "moving_mean",      "alpha",
                                        NULL};
    if (mgpu_checkpoint_is_store(c))
        return MGPU_FAMILY_KERAS;
    return any_called(c, torch)   ? MGPU_FAMILY_TORCH
           : any_called(c, keras) ? MGPU_FAMILY_KERAS
                                  : mgpu_framework_family(model);
}

static void tell_copies(const struct mgpu_match *m)
{
    if (m->copies)
        mgpu_note("%s: %d tensor%s of what has another name there: %s", m->file->path, m->copies,
                  m->copies == 1 ? " is a copy" : "s are copies", m->copied);
}

static void set_result(struct mgpu_weights_result *r, const struct mgpu_match *m)
{
    tell_copies(m);
    mgpu_weights_result_set(r, m->matched, m->total, m->file);
    size_t n = strlen(r->unwrapped);
    if (m->prefix)
        snprintf(r->unwrapped + n, sizeof r->unwrapped - n, "%sprefix %s removed", n ? ", " : "",
                 m->prefix);
    n = strlen(r->unwrapped);
    if (m->counted)
        snprintf(r->unwrapped + n, sizeof r->unwrapped - n, "%scounted on: %s", n ? ", " : "",
                 m->counted);
    r->left = mgpu_xcalloc((size_t)m->faults + 1, sizeof *r->left);
    for (r->lefts = 0; r->lefts < m->faults; r->lefts++) {
        const struct mgpu_match_fault *f = &m->fault[r->lefts];
        int weight = f->variable < 0 ? -1 : m->model->variable[f->variable].weight;
        r->left[r->lefts] = (struct mgpu_weights_left){f->kind, weight, mgpu_xstrdup(f->name),
                                                       mgpu_xstrdup(f->text)};
    }
}

/* All slots of one kind, through the match of the weights. */
static int load_kind(const struct mgpu_match *m, const struct mgpu_weights *weights,
                     const char *slot, struct mgpu_array_list *out)
{
    const struct mgpu_match_options options = {.allow_nonfinite = true, .slot = slot};
    struct mgpu_weights some = *weights;
    char *name;
    some.given = NULL;
    int rc = mgpu_match_load(m, &some, &options);
    for (int i = 0; i < some.count; i++)
        if (some.given[i].type != MGPU_UNDEFINED &&
            asprintf(&name, "%s:%s", some.weight[i].name, slot) >= 0) {
            mgpu_array_list_add(out, name)->array = some.given[i];
            free(name);
        }
    return rc;
}

static int read_rate(double *out, const struct mgpu_checkpoint *c)
{
    struct mgpu_optimizer optimizer;
    if (!c->run)
        return mgpu_checkpoint_rate(out, c);
    *out = NAN;
    if (!c->training)
        return 0;
    MGPU_TRY(mgpu_optimizer_parse(&optimizer, c->training, 0, 0));
    *out = optimizer.attrs.lr * c->rate_scale;
    return 0;
}

static int load_slots(const struct mgpu_match *m, const struct mgpu_weights *weights,
                      struct mgpu_model_state *out)
{
    const struct mgpu_checkpoint *c = m->file;
    int any = 0;
    MGPU_TRY(mgpu_checkpoint_state_check(c));
    for (int i = 0; i < c->count; i++) {
        bool first = c->tensor[i].slot;
        for (int k = 0; first && k < i; k++)
            first = !c->tensor[k].slot || strcmp(c->tensor[k].slot, c->tensor[i].slot) != 0;
        any += first;
        if (first)
            MGPU_TRY(load_kind(m, weights, c->tensor[i].slot, &out->list));
    }
    const char *unplaced = mgpu_architecture_unplaced(c);
    if (!any && *unplaced && mgpu_checkpoint_state_count(c))
        return mgpu_fail(MGPU_EINVALID,
                         "%s does not say where '%s' stands among the weights, as a class of your "
                         "own decides it, and the optimizer's state goes by that: Keras's "
                         "whole-model .h5 says it",
                         c->path, unplaced);
    if (!any && !mgpu_checkpoint_only_counts(c))
        return mgpu_fail(MGPU_EINVALID,
                         "%s holds no optimizer state of which it is known what belongs to which "
                         "weight",
                         c->path);
    out->scheduled = c->scheduled;
    MGPU_TRY(read_rate(&out->rate, c));
    return mgpu_checkpoint_updates(&out->updates, c);
}

int mgpu_weights_from_file(struct mgpu_weights **weights, const struct mgpu_onnx_model *model,
                           const char *path, bool unwrap, const struct mgpu_match_options *options,
                           struct mgpu_weights_result *result, struct mgpu_model_state *slots)
{
    struct mgpu_checkpoint *c;
    struct mgpu_variables *v;
    struct mgpu_match *m;
    MGPU_TRY(mgpu_checkpoint_open(&c, path, unwrap));
    mgpu_variables_new(&v, model, *weights, family_of(c, model));
    int rc = mgpu_match_new(&m, c, v, options);
    if (rc == 0)
        rc = mgpu_match_load(m, *weights, options);
    if (rc == 0 && slots)
        rc = load_slots(m, *weights, slots);
    if (rc == 0) {
        set_result(result, m);
        result->state_left = slots ? 0 : mgpu_checkpoint_state_count(c);
    }
    mgpu_match_free(m);
    mgpu_variables_free(v);
    mgpu_checkpoint_close(c);
    return rc;
}

/* ---- Without a model ------------------------------------------------------------------------- */

static bool is_keras(const struct mgpu_checkpoint *c)
{
    return c->kind < MGPU_CHECKPOINT_SAFETENSORS;
}

static char *name_of(const struct mgpu_checkpoint *c, const struct mgpu_checkpoint_tensor *t,
                     enum mgpu_target target);

/* Of what is no weight: as slots.h says, or as it is. */
static char *other_name(const struct mgpu_checkpoint *c, const struct mgpu_checkpoint_tensor *t,
                        enum mgpu_target target)
{
    if (c->updates >= 0 && t == &c->tensor[c->updates])
        return mgpu_xstrdup(MGPU_SLOT_UPDATES);
    if (!t->slot)
        return mgpu_xstrdup(t->name);
    char *weight = name_of(c, &c->tensor[t->slot_of], target), *name;
    if (asprintf(&name, "%s:%s", weight, t->slot) < 0)
        name = mgpu_xstrdup(t->name);
    free(weight);
    return name;
}

/* "conv1/kernel", "conv1/kernel:0" in Keras's legacy layout. Names of a file that stays in its own
 * layout, and of no Keras, do not change. */
static char *name_of(const struct mgpu_checkpoint *c, const struct mgpu_checkpoint_tensor *t,
                     enum mgpu_target target)
{
    bool h5 = target == MGPU_TARGET_KERAS_H5;
    char *name, number[16];
    if (target == MGPU_TARGET_KERAS_STORE)
        return mgpu_xstrdup(t->name + 1);
    if (!t->weight)
        return other_name(c, t, target);
    if (!is_keras(c) || c->run || (h5 && !mgpu_checkpoint_is_store(c) && !c->unwrapped))
        return mgpu_xstrdup(t->name);
    snprintf(number, sizeof number, "%d", t->index);
    if (asprintf(&name, "%s/%s%s", *t->layer ? t->layer : t->group, *t->leaf ? t->leaf : number,
                 h5 ? ":0" : "") < 0)
        return mgpu_xstrdup(t->name);
    return name;
}

static const char *layer_of(const struct mgpu_checkpoint *c, const struct mgpu_checkpoint_tensor *t,
                            enum mgpu_target target)
{
    if (target == MGPU_TARGET_KERAS_STORE)
        return *t->layer ? t->layer : NULL;
    return !is_keras(c) ? NULL : !mgpu_checkpoint_is_store(c) ? t->group : *t->top ? t->top : NULL;
}

/* The tensors in the order in which a file of kind `target` has them. */
static int list_tensors(int *order, const struct mgpu_checkpoint *c, enum mgpu_target target)
{
    bool legacy = target == MGPU_TARGET_KERAS_H5 && mgpu_checkpoint_is_store(c);
    if (legacy && c->ordered)
        return mgpu_architecture_legacy_order(order, c);
    if (legacy)
        mgpu_note("%s does not say in which order the model has its layers, by which Keras takes "
                  "them: load the new file with by_name=True, or give --model MODEL.onnx",
                  c->path);
    for (int i = 0; i < c->count; i++)
        order[i] = i;
    return c->count;
}

int mgpu_file_arrays(struct mgpu_named_array **out, int *count, const struct mgpu_checkpoint *c,
                     enum mgpu_target target, bool optimizer_state)
{
    *count = 0;
    *out = NULL;
    if (target == MGPU_TARGET_KERAS_STORE && !mgpu_checkpoint_is_store(c))
        return mgpu_fail(MGPU_EINVALID,
                         "%s does not say of which class its layers are, as Keras 3's layout must: "
                         "give --model MODEL.onnx",
                         c->path);
    MGPU_TRY(optimizer_state ? mgpu_checkpoint_state_check(c) : 0);
    *out = mgpu_xcalloc((size_t)c->count + 1, sizeof **out);
    int *order = mgpu_xcalloc((size_t)c->count + 1, sizeof *order), rc = 0;
    int n = list_tensors(order, c, target);
    for (int i = 0; i < n && rc == 0; i++) {
        const struct mgpu_checkpoint_tensor *t = &c->tensor[order[i]];
        if (!t->weight && !optimizer_state)
            continue;
        struct mgpu_named_array *a = &(*out)[(*count)++];
        a->name = name_of(c, t, target);
        a->layer = layer_of(c, t, target);
        rc = mgpu_checkpoint_load(c, order[i], &a->array);
    }
    free(order);
    if (rc < 0) {
        mgpu_named_arrays_free(*out, *count);
        *out = NULL;
        *count = 0;
    }
    return rc;
}
