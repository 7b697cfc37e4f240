/* The contents of what matched, into the model's own types and layouts. */
#include "exporter/match.h"
#include "exporter/slots.h"
#include "runtime/base/status.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "[3,5]" of element `index`. */
static void place_text(char text[MGPU_SHAPE_TEXT], const struct mgpu_array *a, int64_t index)
{
    int64_t at[MGPU_MAX_RANK];
    for (int i = a->rank - 1; i >= 0; i--) {
        at[i] = index % a->dims[i];
        index /= a->dims[i];
    }
    mgpu_shape_text(text, a->rank, at);
}

int mgpu_match_finite(const struct mgpu_array *a, const char *name)
{
    char place[MGPU_SHAPE_TEXT];
    int64_t n = mgpu_is_float(a->type) ? mgpu_array_count(a) : 0;
    for (int64_t i = 0; i < n; i++) {
        double value = mgpu_get_double(a->data, a->type, i);
        if (isfinite(value))
            continue;
        place_text(place, a, i);
        return mgpu_fail(MGPU_EINVALID,
                         "'%s' holds %s at %s (--allow-nonfinite takes it all the same)", name,
                         isnan(value) ? "a NaN" : "an infinity", place);
    }
    return 0;
}

/* What the model's type has no room for becomes an infinity. */
static int check_range(const struct mgpu_array *from, const struct mgpu_array *to, const char *name)
{
    char place[MGPU_SHAPE_TEXT];
    int64_t n = mgpu_is_float(to->type) ? mgpu_array_count(to) : 0;
    for (int64_t i = 0; i < n; i++) {
        double value = mgpu_get_double(from->data, from->type, i);
        if (!isfinite(value) || isfinite(mgpu_get_double(to->data, to->type, i)))
            continue;
        place_text(place, from, i);
        return mgpu_fail(MGPU_EINVALID,
                         "'%s' holds %g at %s, too large for the model's %s (--allow-nonfinite "
                         "makes it an infinity)",
                         name, value, place, mgpu_dtype_name(to->type));
    }
    return 0;
}

static int convert(struct mgpu_array *out, const struct mgpu_array *a, enum mgpu_dtype type,
                   const char *name, bool allow_nonfinite)
{
    MGPU_TRY(mgpu_array_init(out, type, a->rank, a->dims, name));
    mgpu_convert(out->data, type, a->data, a->type, mgpu_array_count(a));
    int rc = allow_nonfinite ? 0 : check_range(a, out, name);
    if (rc < 0)
        mgpu_array_free(out);
    return rc;
}

/* The tensor in the initializer's type. */
static int load_as(struct mgpu_array *out, const struct mgpu_match *m, int tensor,
                   enum mgpu_dtype type, bool allow_nonfinite)
{
    struct mgpu_array a;
    MGPU_TRY(mgpu_checkpoint_load(m->file, tensor, &a));
    const char *name = m->file->tensor[tensor].name;
    int rc = allow_nonfinite ? 0 : mgpu_match_finite(&a, name);
    if (rc == 0 && a.type == type) {
        *out = a;
        return 0;
    }
    if (rc == 0)
        rc = convert(out, &a, type, name, allow_nonfinite);
    mgpu_array_free(&a);
    return mgpu_prefix(rc, "%s", m->file->path);
}

/* ---- Copies of one weight -------------------------------------------------------------------- */

struct loading {
    const struct mgpu_match *m;
    const struct mgpu_match_options *o;
    int converted;
};

/* The tensor of a variable, or that slot of it; -1: there is none. */
static int tensor_of(const struct loading *l, int variable)
{
    const struct mgpu_checkpoint *c = l->m->file;
    int tensor = l->m->tensor[variable];
    if (!l->o->slot || tensor < 0)
        return tensor;
    for (int i = 0; i < c->count; i++)
        if (c->tensor[i].slot && c->tensor[i].slot_of == tensor &&
            !strcmp(c->tensor[i].slot, l->o->slot))
            return i;
    return -1;
}

static bool same_bytes(const struct mgpu_array *a, const struct mgpu_array *b)
{
    return !memcmp(a->data, b->data, (size_t)mgpu_array_count(a) * mgpu_dtype_size(a->type));
}

/* Names the file's two. */
static int refuse_copy(const struct loading *l, int variable)
{
    const struct mgpu_variables *v = l->m->model;
    const struct mgpu_variable *x = &v->variable[variable];
    const char *other = v->weights->weight[x->weight].name;
    for (int i = 0; i < v->count; i++)
        if (v->variable[i].weight == x->weight && v->variable[i].holder != x->holder &&
            tensor_of(l, i) >= 0)
            other = l->m->file->tensor[tensor_of(l, i)].name;
    return mgpu_fail(MGPU_EINVALID,
                     "%s: '%s' and '%s' are one weight in the model, and differ in the file",
                     l->m->file->path, l->m->file->tensor[tensor_of(l, variable)].name, other);
}

/* `a` is what another holder of the weight got: it must be the same. */
static int join_copy(const struct loading *l, struct mgpu_weights *w, int variable,
                     struct mgpu_array *a)
{
    const struct mgpu_variable *x = &l->m->model->variable[variable];
    struct mgpu_array *given = &w->given[x->weight];
    struct mgpu_array b = *a;
    if (w->weight[x->weight].holder[x->holder].copy == MGPU_COPY_TRANSPOSED) {
        MGPU_TRY(mgpu_array_init(&b, a->type, 2, (int64_t[]){a->dims[1], a->dims[0]}, "copy"));
        mgpu_weight_transpose(b.data, a->data, a->type, a->dims[0], a->dims[1]);
        mgpu_array_free(a);
    }
    if (given->type == MGPU_UNDEFINED) {
        *given = b;
        return 0;
    }
    bool same = same_bytes(given, &b);
    mgpu_array_free(&b);
    return same ? 0 : refuse_copy(l, variable);
}

/* ---- One initializer ------------------------------------------------------------------------- */

static int fill_variable(struct loading *l, struct mgpu_array *to, int variable)
{
    struct mgpu_array a;
    int tensor = tensor_of(l, variable);
    bool mask = mgpu_variable_is_constant(l->m->model, variable); /* may have -infinity */
    MGPU_TRY(load_as(&a, l->m, tensor, to->type, mask || l->o->allow_nonfinite));
    l->converted += l->m->file->tensor[tensor].type != to->type;
    if (l->m->whole[variable])
        memcpy(to->data, a.data, (size_t)mgpu_array_count(to) * mgpu_dtype_size(to->type));
    else {
        struct mgpu_weight_layout layout = l->m->model->variable[variable].layout;
        layout.negate = layout.negate && !(l->o->slot && mgpu_slot_is_square(l->o->slot));
        mgpu_weight_layout_in(&layout, a.data, to->data, to->type);
    }
    mgpu_array_free(&a);
    return 0;
}

/* The contents that are there now; of a slot, zeros (its precision is not the file's weights'). */
static int start_from(struct mgpu_array *out, const struct mgpu_array *a, const char *name,
                      bool slot)
{
    MGPU_TRY(mgpu_array_init(out, slot ? MGPU_DOUBLE : a->type, a->rank, a->dims, name));
    if (!slot)
        memcpy(out->data, a->data, (size_t)mgpu_array_count(a) * mgpu_dtype_size(a->type));
    return 0;
}

/* All variables of one holder, of which the first is number `first`. */
static int fill_holder(struct loading *l, struct mgpu_weights *w, int first)
{
    const struct mgpu_variables *v = l->m->model;
    const struct mgpu_variable *x = &v->variable[first];
    const struct mgpu_holder *h = &w->weight[x->weight].holder[x->holder];
    const struct mgpu_array *now = &v->model->initializer[h->initializer].array;
    struct mgpu_array a = {0};
    int rc = start_from(&a, now, w->weight[x->weight].name, l->o->slot);
    for (int i = first; i < v->count && rc == 0; i++) {
        bool same = v->variable[i].weight == x->weight && v->variable[i].holder == x->holder;
        if (same && tensor_of(l, i) >= 0)
            rc = fill_variable(l, &a, i);
    }
    if (rc == 0)
        return join_copy(l, w, first, &a);
    mgpu_array_free(&a);
    return rc;
}

/* Buffers need not be in a state_dict. */
static void tell_kept(const struct loading *l)
{
    const struct mgpu_variables *v = l->m->model;
    const char *first = NULL;
    int n = 0;
    for (int i = 0; i < v->count && !l->o->slot; i++)
        if (mgpu_variable_is_constant(v, i) && v->variable[i].rank > 0 && l->m->tensor[i] < 0) {
            first = first ? first : mgpu_variable_initializer(v, i);
            n++;
        }
    if (n == 1)
        mgpu_note("%s does not hold '%s': it stays as the model has it", l->m->file->path, first);
    else if (n)
        mgpu_note("%s does not hold '%s' and %d more constants: they stay as the model has them",
                  l->m->file->path, first, n - 1);
}

int mgpu_match_load(const struct mgpu_match *m, struct mgpu_weights *weights,
                    const struct mgpu_match_options *options)
{
    const struct mgpu_variables *v = m->model;
    struct loading l = {.m = m, .o = options};
    bool *done =
        mgpu_xcalloc((size_t)v->model->initializers + (size_t)weights->count + 1, sizeof *done);
    int rc = 0;
    if (!weights->given)
        weights->given = MGPU_NEW_ARRAY(weights->arena, struct mgpu_array, weights->count + 1);
    for (int i = 0; i < v->count && rc == 0; i++) {
        const struct mgpu_variable *x = &v->variable[i];
        const struct mgpu_holder *h = &weights->weight[x->weight].holder[x->holder];
        bool *is_done =
            h->added ? &done[v->model->initializers + x->weight] : &done[h->initializer];
        if (tensor_of(&l, i) < 0 || *is_done)
            continue;
        *is_done = true;
        rc = fill_holder(&l, weights, i);
    }
    free(done);
    if (rc == 0)
        tell_kept(&l);
    if (rc == 0 && l.converted && !options->slot)
        mgpu_note("%s: %d tensors are of another type than the model's and were converted",
                  m->file->path, l.converted);
    return rc;
}
