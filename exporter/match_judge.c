/* What matched and what did not, in words. */
#include "exporter/match_parts.h"
#include "runtime/base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add_fault(struct mgpu_match *m, enum mgpu_match_fault_kind kind, const char *name,
                      int variable, bool caused, const char *text)
{
    m->fault = mgpu_grow(m->fault, (size_t)m->faults, sizeof *m->fault);
    m->fault[m->faults++] = (struct mgpu_match_fault){kind, name, variable, text, caused};
}

/* ---- Shapes ---------------------------------------------------------------------------------- */

static bool fits_whole(const struct mgpu_match *m, int tensor, int variable)
{
    const struct mgpu_checkpoint_tensor *t = &m->file->tensor[tensor];
    const struct mgpu_variable *x = &m->model->variable[variable];
    const struct mgpu_holder *h = &m->model->weights->weight[x->weight].holder[x->holder];
    const struct mgpu_array *a = &m->model->model->initializer[h->initializer].array;
    return t->rank == a->rank && !memcmp(t->dims, a->dims, (size_t)a->rank * sizeof *a->dims);
}

static void wanted_shape(char text[MGPU_SHAPE_TEXT], const struct mgpu_match *m, int variable)
{
    const struct mgpu_variable *x = &m->model->variable[variable];
    const struct mgpu_holder *h = &m->model->weights->weight[x->weight].holder[x->holder];
    const struct mgpu_array *a = &m->model->model->initializer[h->initializer].array;
    if (m->whole[variable])
        mgpu_shape_text(text, a->rank, a->dims);
    else
        mgpu_shape_text(text, x->rank, x->dims);
}

static void check_shape(struct mgpu_match *m, int tensor)
{
    const struct mgpu_checkpoint_tensor *t = &m->file->tensor[tensor];
    char theirs[MGPU_SHAPE_TEXT], ours[MGPU_SHAPE_TEXT];
    int variable = m->variable[tensor];
    if (m->whole[variable] ? fits_whole(m, tensor, variable)
                           : mgpu_variable_fits(m->model, variable, t->rank, t->dims))
        return;
    mgpu_shape_text(theirs, t->rank, t->dims);
    wanted_shape(ours, m, variable);
    add_fault(m, MGPU_MATCH_SHAPE, t->name, variable, true,
              mgpu_arena_format(m->arena, "'%s' is %s, the model wants %s ('%s'%s)", t->name,
                                theirs, ours, mgpu_variable_initializer(m->model, variable),
                                m->model->variable[variable].computed
                                    ? ", which the exporter computed of parameters"
                                : m->model->variable[variable].rows
                                    ? ", of which the exporter kept what the example needed"
                                    : ""));
    for (int i = 0; i < m->model->count; i++)
        if (m->tensor[i] == tensor)
            m->tensor[i] = -2; /* neither matched nor missing */
    m->variable[tensor] = -2;
}

/* ---- What is missing, what is left ----------------------------------------------------------- */

/* What only its name makes a weight may be none in the framework. */
static bool is_maybe(const struct mgpu_match *m, int variable)
{
    return mgpu_variable_is_constant(m->model, variable) && !m->model->variable[variable].computed;
}

/* Of tied initializers one is enough. */
static bool has_twin(const struct mgpu_match *m, int variable)
{
    for (int i = 0; i < m->model->count; i++)
        if (i != variable && m->model->variable[i].weight == m->model->variable[variable].weight &&
            m->model->variable[i].holder != m->model->variable[variable].holder &&
            m->tensor[i] >= 0)
            return true;
    return false;
}

enum { CANDIDATES = 4 };

/* The tensors of the file that may be the variable whose name the export has lost, how many and
 * the first of them: "a' or 'b"; NULL: none. */
static const char *may_be(const struct mgpu_match *m, int variable, int *count)
{
    const char *names = NULL;
    *count = 0;
    for (int i = 0; i < m->file->count; i++) {
        const struct mgpu_checkpoint_tensor *t = &m->file->tensor[i];
        if (!t->weight || m->variable[i] != -1 ||
            !mgpu_variable_fits(m->model, variable, t->rank, t->dims) || ++*count > CANDIDATES)
            continue;
        names = names ? mgpu_arena_format(m->arena, "%s' or '%s", names, t->name) : t->name;
    }
    return names;
}

/* TorchScript numbers what it computed: with no place for a tensor of the file that was more than a
 * transpose. */
static bool is_computed(const struct mgpu_match *m, int variable)
{
    int count;
    const char *name = mgpu_variable_initializer(m->model, variable);
    return m->model->variable[variable].computed ||
           (!strncmp(name, "onnx::", 6) && mgpu_variable_is_nameless(m->model, variable) &&
            !may_be(m, variable, &count));
}

static const char *why_missing(const struct mgpu_match *m, int variable)
{
    int count;
    const char *name = mgpu_variable_initializer(m->model, variable), *theirs;
    if (mgpu_variable_is_folded(m->model, variable))
        return " (the exporter folded a batch normalisation into it)";
    if (is_computed(m, variable))
        return " (the exporter computed it of parameters)";
    if (!mgpu_variable_is_nameless(m->model, variable) || !(theirs = may_be(m, variable, &count)))
        return "";
    if (count > 1)
        return mgpu_arena_format(m->arena,
                                 " (the graph does not tell its name in PyTorch: it may be '%s'%s, "
                                 "which --map has to say)",
                                 theirs, count > CANDIDATES ? " or another one" : "");
    return mgpu_arena_format(m->arena,
                             " (the graph does not tell its name in PyTorch; --map would say "
                             "'%s -> %s')",
                             theirs, name);
}

/* Where the layer is in the file and has no bias, the graph's zeros are the exporter's. */
static bool has_none(const struct mgpu_match *m, int variable)
{
    bool kernel = false;
    for (int i = 0; i < m->model->count; i++)
        kernel |= m->model->variable[i].layer == m->model->variable[variable].layer &&
                  m->model->variable[i].role == MGPU_VAR_RECURRENT && m->tensor[i] >= 0;
    return kernel && mgpu_variable_is_zero_bias(m->model, variable);
}

static void find_missing(struct mgpu_match *m, int *missing)
{
    char shape[MGPU_SHAPE_TEXT];
    for (int i = 0; i < m->model->count; i++) {
        if (m->tensor[i] != -1 || has_twin(m, i) || is_maybe(m, i) || has_none(m, i) ||
            mgpu_variable_is_later_part(m->model, i))
            continue;
        const char *name = mgpu_variable_name(m->model, i), *why = why_missing(m, i);
        wanted_shape(shape, m, i);
        ++*missing;
        add_fault(
            m, MGPU_MATCH_MISSING, name, i, *why,
            mgpu_arena_format(m->arena, "'%s' %s of the model is not in it%s", name, shape, why));
    }
}

static bool all_zero(const struct mgpu_match *m, int tensor)
{
    enum { BIAS_MOST = 1 << 20 };
    struct mgpu_array a;
    if (m->file->tensor[tensor].dims[0] > BIAS_MOST ||
        mgpu_checkpoint_load(m->file, tensor, &a) < 0)
        return false;
    bool zero = true;
    for (int64_t i = 0; i < mgpu_array_count(&a) && zero; i++)
        zero = mgpu_get_double(a.data, a.type, i) == 0;
    mgpu_array_free(&a);
    return zero;
}

static const struct mgpu_file_layer *layer_of(const struct mgpu_layers *f, int tensor)
{
    for (int i = 0; i < f->count; i++)
        for (int k = 0; k < f->layer[i].tensors; k++)
            if (f->layer[i].tensor[k] == tensor)
                return &f->layer[i];
    return NULL;
}

/* The model's variable that has the tensor's name; -1: there is none. */
static int namesake(const struct mgpu_match *m, const struct mgpu_layers *f, int tensor)
{
    const struct mgpu_checkpoint_tensor *t = &m->file->tensor[tensor];
    const struct mgpu_file_layer *l = layer_of(f, tensor);
    for (int i = 0; i < m->model->count; i++)
        if (!strcmp(mgpu_variable_initializer(m->model, i), t->name) ||
            (l && l->of >= 0 && m->model->variable[i].layer == l->of && *t->leaf &&
             mgpu_variable_is(m->model, i, t->leaf)))
            return i;
    return -1;
}

/* A bias whose layer is in the model, without one. */
static bool is_dropped_bias(const struct mgpu_match *m, const struct mgpu_layers *f, int tensor)
{
    const struct mgpu_checkpoint_tensor *t = &m->file->tensor[tensor];
    const struct mgpu_file_layer *l = layer_of(f, tensor);
    return l && l->of >= 0 && !strcmp(t->leaf, "bias") && t->rank == 1 &&
           namesake(m, f, tensor) < 0;
}

/* What is no weight of the model, a learned scalar or a buffer, and has the same numbers there. */
static bool is_its_constant(const struct mgpu_match *m, const struct mgpu_layers *f, int tensor)
{
    const struct mgpu_checkpoint_tensor *t = &m->file->tensor[tensor];
    int i = mgpu_onnx_find_initializer(m->model->model, t->name);
    const struct mgpu_array *own = i < 0 ? NULL : &m->model->model->initializer[i].array;
    struct mgpu_array a;
    if (!own || own->type != t->type || own->rank != t->rank || !own->data ||
        memcmp(own->dims, t->dims, (size_t)t->rank * sizeof *t->dims) ||
        namesake(m, f, tensor) >= 0 || mgpu_checkpoint_load(m->file, tensor, &a) < 0)
        return false;
    bool same = !memcmp(a.data, own->data, (size_t)mgpu_array_count(&a) * mgpu_dtype_size(a.type));
    mgpu_array_free(&a);
    return same;
}

/* Exporters drop biases of zero: nothing is lost with them. */
static bool is_harmless(const struct mgpu_match *m, const struct mgpu_layers *f, int tensor)
{
    return mgpu_checkpoint_is_counter(&m->file->tensor[tensor]) || m->constant[tensor] ||
           (is_dropped_bias(m, f, tensor) && all_zero(m, tensor)) ||
           is_its_constant(m, f, tensor) ||
           (m->model->family == MGPU_FAMILY_TORCH && mgpu_match_is_in_graph(m, tensor));
}

static bool is_normalisation(const struct mgpu_checkpoint *c, const struct mgpu_file_layer *l)
{
    for (int k = 0; l && k < l->tensors; k++) {
        const char *leaf = c->tensor[l->tensor[k]].leaf;
        if (!strcmp(leaf, "moving_variance") || !strcmp(leaf, "running_var"))
            return true;
    }
    return false;
}

static bool any_folded(const struct mgpu_variables *v)
{
    for (int i = 0; i < v->count; i++)
        if (mgpu_variable_is_folded(v, i))
            return true;
    return false;
}

/* A file with the normalisations has the weights as they were before: these are not the model's,
 * though they have the names. */
static void undo_folded(struct mgpu_match *m, const struct mgpu_layers *f)
{
    bool apart = false;
    for (int i = 0; i < f->count; i++)
        apart |= f->layer[i].of < 0 && is_normalisation(m->file, &f->layer[i]);
    for (int i = 0; i < m->model->count && apart; i++)
        if (m->tensor[i] >= 0 && mgpu_variable_is_folded(m->model, i)) {
            m->why[m->tensor[i]] = "is not what the model has: the exporter folded a batch "
                                   "normalisation into that";
            m->variable[m->tensor[i]] = -1;
            m->tensor[i] = -1;
        }
}

static const char no_place[] = "has no place in the model";

static const char *why_left(const struct mgpu_match *m, const struct mgpu_layers *f, int tensor)
{
    const struct mgpu_file_layer *l = layer_of(f, tensor);
    if (m->why[tensor])
        return m->why[tensor];
    if (strstr(m->file->tensor[tensor].name, "lora_"))
        return "is LoRA's change of a weight, beside it: merge it first (Keras does in .keras and "
               ".weights.h5, PEFT with merge_and_unload)";
    int same = namesake(m, f, tensor);
    if (same >= 0 && m->tensor[same] >= 0)
        return mgpu_arena_format(m->arena, "has no place: '%s' of the model got '%s'",
                                 mgpu_variable_name(m->model, same),
                                 m->file->tensor[m->tensor[same]].name);
    if (same < 0 && mgpu_onnx_find_initializer(m->model->model, m->file->tensor[tensor].name) >= 0)
        return mgpu_arena_format(m->arena,
                                 "has no place: the model's is a constant (mgpu-train --train '*' "
                                 "--train '%s' makes it a weight)",
                                 m->file->tensor[tensor].name);
    if (is_dropped_bias(m, f, tensor))
        return "has no place: its layer has no bias in the model (an exporter leaves out biases of "
               "zero; mgpu-train --add-bias puts them back)";
    if (is_normalisation(m->file, l) && any_folded(m->model))
        return "has no place: the exporter folded batch normalisations into other weights";
    return no_place;
}

/* PyTorch's buffers and parameters that forward does not use: in no weight of the graph is a part
 * of them. */
static bool is_beside(struct mgpu_match *m, const struct mgpu_layers *f, int tensor)
{
    if (m->model->family != MGPU_FAMILY_TORCH || why_left(m, f, tensor) != no_place)
        return false;
    if (!m->beside++)
        m->first_beside = m->file->tensor[tensor].name;
    return true;
}

/* `like`: options.like, and the model's weights are all in the file. */
static void find_left(struct mgpu_match *m, const struct mgpu_layers *f, bool like, int *left)
{
    char shape[MGPU_SHAPE_TEXT];
    for (int i = 0; i < m->file->count; i++) {
        const struct mgpu_checkpoint_tensor *t = &m->file->tensor[i];
        if (!t->weight || m->variable[i] != -1)
            continue;
        if (is_harmless(m, f, i) || (like && is_beside(m, f, i))) {
            m->matched++;
            continue;
        }
        ++*left;
        add_fault(m, MGPU_MATCH_LEFT, t->name, -1, m->why[i],
                  mgpu_arena_format(m->arena, "'%s' %s %s", t->name,
                                    mgpu_shape_text(shape, t->rank, t->dims), why_left(m, f, i)));
    }
}

/* ---- The verdict ----------------------------------------------------------------------------- */

static bool is_fresh(const struct mgpu_match *m, const struct mgpu_match_options *o, int variable)
{
    for (int i = 0; o->fresh && o->fresh[i] && variable >= 0; i++)
        if (!strcmp(o->fresh[i], mgpu_variable_initializer(m->model, variable)))
            return true;
    return false;
}

static bool is_allowed(const struct mgpu_match *m, const struct mgpu_match_fault *f,
                       const struct mgpu_match_options *o)
{
    return is_fresh(m, o, f->variable) ||
           (f->kind == MGPU_MATCH_SHAPE ? o->skip_mismatch : o->partial);
}

/* The options with which what did match would be taken. */
static const char *what_allows(const struct mgpu_match *m, const struct mgpu_match_options *o)
{
    bool shape = false, other = false;
    for (int i = 0; i < m->faults; i++) {
        bool allowed = is_allowed(m, &m->fault[i], o);
        shape |= !allowed && m->fault[i].kind == MGPU_MATCH_SHAPE;
        other |= !allowed && m->fault[i].kind != MGPU_MATCH_SHAPE;
    }
    return shape && other ? " (--partial and --skip-mismatch take the rest)"
           : shape        ? " (--skip-mismatch takes the rest)"
                          : " (--partial takes the rest)";
}

/* Where PyTorch's exporter made other weights of the file's, one that does not is wanted; NULL:
 * it did not. */
static const char *how_to_export(const struct mgpu_match *m)
{
    const struct mgpu_variables *v = m->model;
    bool made = false;
    for (int i = 0; i < m->faults && v->model->producer == MGPU_PRODUCER_PYTORCH; i++) {
        int variable = m->fault[i].variable;
        made |= m->fault[i].kind == MGPU_MATCH_MISSING &&
                (is_computed(m, variable) || mgpu_variable_is_folded(v, variable));
        made |= m->fault[i].kind == MGPU_MATCH_SHAPE && v->variable[variable].rows;
    }
    return made ? MGPU_WEIGHT_UNFOLDED : NULL;
}

/* `any`: something did match; else nothing is allowed. */
static int refuse(struct mgpu_match *m, const struct mgpu_match_options *o, bool any)
{
    enum { SHOWN = 3 };
    const char *text = "";
    int shown = 0, more = 0;
    if (m->rivals)
        return mgpu_fail(MGPU_EINVALID, "%s: %d of %d tensors: it holds %s", m->file->path,
                         m->matched, m->total, m->rivals);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < m->faults; i++) {
            const struct mgpu_match_fault *f = &m->fault[i];
            if (f->caused == pass || (any && is_allowed(m, f, o)))
                continue;
            if (shown < SHOWN)
                text = mgpu_arena_format(m->arena, "%s%s %s", text, shown++ ? ";" : "", f->text);
            else
                more++;
        }
    if (more)
        text = mgpu_arena_format(m->arena, "%s; and %d more", text, more);
    const char *how = how_to_export(m);
    return mgpu_fail(MGPU_EINVALID, "%s: %d of %d tensors:%s%s", m->file->path, m->matched,
                     m->total, text,
                     how               ? how
                     : any && !o->like ? what_allows(m, o)
                                       : "");
}

int mgpu_match_judge(struct mgpu_match *m, const struct mgpu_layers *file,
                     const struct mgpu_match_options *o)
{
    int missing = 0, left = 0;
    undo_folded(m, file);
    for (int i = 0; i < m->file->count; i++)
        if (m->variable[i] >= 0)
            check_shape(m, i);
    int shapes = m->faults;
    mgpu_match_copies(m);
    mgpu_match_constants(m, file);
    for (int i = 0; i < m->file->count; i++)
        m->matched += m->variable[i] >= 0;
    bool any = m->matched > 0, fine = any;
    find_missing(m, &missing);
    fine &= !m->rivals || !missing; /* of neither model a part is taken */
    find_left(m, file, o->like && any && !missing && !shapes, &left);
    m->total = m->matched + shapes + (missing > left ? missing : left);
    for (int i = 0; i < m->faults; i++)
        fine &= is_allowed(m, &m->fault[i], o);
    return fine ? 0 : refuse(m, o, any);
}
