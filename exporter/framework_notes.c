/* What a file of weights under the framework's names lacks or may have wrong, in words. */
#include "exporter/framework_parts.h"
#include "exporter/normalizations.h"
#include "exporter/scopes.h"
#include "runtime/base/status.h"

#include <stdlib.h>
#include <string.h>

static void tell_nameless(const struct mgpu_framework_arrays *a)
{
    const struct mgpu_variables *v = a->variables;
    const char *first = NULL;
    int n = 0;
    for (int i = 0; i < v->count; i++) {
        const char *name = mgpu_variable_initializer(v, i);
        if (!mgpu_variable_is_nameless(v, i) || v->variable[i].computed ||
            (first && !strcmp(first, name)))
            continue;
        first = first ? first : name;
        n++;
    }
    const char *more = n > 1 ? mgpu_arena_format(a->arena, " and %d more", n - 1) : "";
    if (n)
        mgpu_note("the graph does not tell what '%s'%s %s called in PyTorch: names and layouts are "
                  "the graph's (--like FILE.safetensors gives PyTorch's)",
                  first, more, n > 1 ? "are" : "is");
}

/* The framework has layer and normalisation apart, as they were before. */
static void tell_folded(const struct mgpu_variables *v)
{
    int n = 0;
    bool *seen = mgpu_xcalloc((size_t)v->layers + 1, sizeof *seen);
    for (int i = 0; i < v->count; i++)
        if (mgpu_variable_is_folded(v, i) && !seen[v->variable[i].layer]) {
            seen[v->variable[i].layer] = true;
            n++;
        }
    free(seen);
    if (n)
        mgpu_note("%d layer%s a folded batch normalisation: no %s takes this file", n,
                  n == 1 ? " holds" : "s hold",
                  v->family == MGPU_FAMILY_KERAS ? "model of Keras" : "state_dict");
}

/* PyTorch's parameter may have more. */
static void tell_rows(const struct mgpu_framework_arrays *a)
{
    char shape[MGPU_SHAPE_TEXT];
    for (int i = 0; i < a->count; i++) {
        int variable = a->from[i].variable;
        const struct mgpu_variable *x = variable < 0 ? NULL : &a->variables->variable[variable];
        if (x && x->rows)
            mgpu_note("of '%s' the export has %s, what its example needed: load_state_dict refuses "
                      "it if the model's is larger%s",
                      a->array[i].name, mgpu_shape_text(shape, x->rank, x->dims),
                      MGPU_WEIGHT_UNFOLDED);
    }
}

/* Names that hang on which modules were called (module_paths.h). */
static void tell_likely(const struct mgpu_framework_arrays *a)
{
    const char *first = NULL;
    int n = 0;
    for (int i = 0; i < a->count; i++) {
        const struct mgpu_variables *v = a->variables;
        const struct mgpu_variable_layer *l =
            a->from[i].variable < 0 ? NULL : &v->layer[v->variable[a->from[i].variable].layer];
        if (!l || l->proven == strlen(l->path))
            continue;
        first = first ? first : a->array[i].name;
        n++;
    }
    if (n)
        mgpu_note(
            "%s of the modules that were called: a ModuleDict is not, and the graph does not "
            "tell of one (--like FILE.safetensors gives its names)",
            n == 1 ? mgpu_arena_format(a->arena, "'%s' is the name", first)
                   : mgpu_arena_format(a->arena, "'%s' and %d more are the names", first, n - 1));
}

/* TorchScript writes only what a state_dict has; older dynamo does not say which buffers are none
 * of it. */
static void tell_buffers(const struct mgpu_framework_arrays *a)
{
    const struct mgpu_variables *v = a->variables;
    const char *first = NULL;
    int n = 0;
    bool dynamo = false;
    for (int i = 0; i < v->model->node_total && !dynamo; i++)
        dynamo = *v->model->all[i]->layer && *v->model->all[i]->layer != '/';
    for (int i = 0; i < a->count && dynamo; i++) {
        int variable = a->from[i].variable;
        if (variable < 0 || !v->variable[variable].rank || !mgpu_variable_is_constant(v, variable))
            continue;
        const struct mgpu_weight *w = &v->weights->weight[v->variable[variable].weight];
        if (v->model->initializer[w->holder[0].initializer].persistent)
            continue;
        first = first ? first : a->array[i].name;
        n++;
    }
    if (n)
        mgpu_note("'%s'%s: load_state_dict refuses what is not persistent (--like "
                  "FILE.safetensors leaves it out)",
                  first,
                  n == 1
                      ? " is taken for a buffer"
                      : mgpu_arena_format(a->arena, " and %d more are taken for buffers", n - 1));
}

/* Of these a state_dict has more than the graph. */
static void tell_folded_buffers(const struct mgpu_framework_arrays *a)
{
    const struct mgpu_onnx_model *model = a->variables->model;
    for (int i = 0; i < model->initializers; i++) {
        const struct mgpu_onnx_initializer *x = &model->initializer[i];
        enum mgpu_weight_role role = a->variables->weights->role[i];
        const char *source = x->folded_from && x->array.rank &&
                                     (role == MGPU_ROLE_CONSTANT || role == MGPU_ROLE_SHAPE)
                                 ? mgpu_scope_source(a->arena, x->folded_from)
                                 : NULL;
        bool named = source && strchr(source, '.'); /* else it is an operator's result */
        if (!named || mgpu_framework_lists(a, source))
            continue;
        mgpu_note("if '%s' is a persistent buffer, load_state_dict misses it: the graph has only "
                  "'%s', which the exporter computed of it (--like FILE.safetensors gives it)",
                  source, x->name);
        return;
    }
}

static void tell_joined(const struct mgpu_variables *v)
{
    int n = 0, first = -1;
    for (int i = 0; i < v->count; i++) {
        n += v->variable[i].joined;
        first = first < 0 && v->variable[i].joined ? i : first;
    }
    if (n)
        mgpu_note("%d kernel%s of einsum ('%s'): of what shape in Keras, the graph does not tell, "
                  "and in this file they are matrices",
                  n, n == 1 ? "" : "s", mgpu_variable_name(v, first));
}

static void tell_constants(const struct mgpu_variables *v)
{
    const char *layer = mgpu_normalizations_first(v);
    if (layer)
        mgpu_note("mean and variance of '%s' are constants of the graph and not in this file",
                  layer);
}

/* Letters of the path's first part, without the number that TorchScript counts calls by. */
static size_t uncounted(const char *path)
{
    size_t n = strcspn(path, "/"), k = n;
    while (k > 0 && strchr("0123456789", path[k - 1]))
        k--;
    return k > 1 && k < n && path[k - 1] == '_' ? k - 1 : n;
}

/* Whether the modules of two nodes are one, or one is inside the other. */
static bool is_inside(const char *a, const char *b)
{
    while (*a && *b) {
        size_t n = uncounted(a);
        if (n != uncounted(b) || strncmp(a, b, n))
            return false;
        a += strcspn(a, "/");
        b += strcspn(b, "/");
        a += *a == '/';
        b += *b == '/';
    }
    return true;
}

/* The layer of another module that reads the same; NULL: none is known. */
static const char *read_elsewhere(const struct mgpu_variables *v, int variable)
{
    const struct mgpu_variable *x = &v->variable[variable];
    const struct mgpu_holder *h = &v->weights->weight[x->weight].holder[x->holder];
    for (int u = 1; u < h->uses; u++) {
        const char *first = v->model->all[h->use[0].node]->layer;
        const char *layer = v->model->all[h->use[u].node]->layer;
        if (*first == '/' && *layer == '/' && !is_inside(first + 1, layer + 1))
            return layer;
    }
    return NULL;
}

/* TorchScript, too, stores once what modules share, and does not say what classes they are of. */
static void tell_tied(const struct mgpu_framework_arrays *a)
{
    const char *first = NULL, *place = NULL;
    int n = 0;
    for (int i = 0; i < a->count; i++) {
        int variable = a->from[i].variable;
        const char *layer = variable < 0 ? NULL : read_elsewhere(a->variables, variable);
        if (!layer)
            continue;
        first = first ? first : a->array[i].name;
        place = place ? place : layer;
        n++;
    }
    if (n)
        mgpu_note("'%s' is read in '%s', too%s: of a tied weight a state_dict has the second name, "
                  "which TorchScript does not store (--like FILE.safetensors gives it)",
                  first, place,
                  n > 1 ? mgpu_arena_format(a->arena, ", and %d more so", n - 1) : "");
}

void mgpu_framework_tell(const struct mgpu_framework_arrays *a)
{
    const struct mgpu_variables *v = a->variables;
    if (v->family == MGPU_FAMILY_TORCH) {
        tell_tied(a);
        tell_nameless(a);
        tell_likely(a);
        tell_rows(a);
        tell_buffers(a);
        tell_folded_buffers(a);
    }
    if (v->assumed)
        mgpu_note("'%s' has no names left and is taken for PyTorch's MultiheadAttention: the order "
                  "of its products says which is which",
                  v->assumed);
    tell_folded(v);
    tell_joined(v);
    tell_constants(v);
}

static void tell_beside(const struct mgpu_framework_arrays *a)
{
    const struct mgpu_match *m = a->match;
    const char *more =
        m->beside > 1 ? mgpu_arena_format(a->arena, " and %d more", m->beside - 1) : "";
    if (m->beside)
        mgpu_note("'%s'%s %s as %s has %s: the graph has nothing of %s", m->first_beside, more,
                  *more ? "are" : "is", a->like->path, *more ? "them" : "it",
                  *more ? "them" : "it");
}

/* Older dynamo does not say which buffers are no part of a state_dict. */
static void tell_left_out(const struct mgpu_framework_arrays *a)
{
    const struct mgpu_variables *v = a->variables;
    for (int i = 0; i < v->count; i++)
        if (a->match->tensor[i] == -1 && v->variable[i].rank && mgpu_variable_is_constant(v, i))
            mgpu_note("'%s' is left out, as %s does not have it", mgpu_variable_name(v, i),
                      a->like->path);
}

void mgpu_framework_tell_like(const struct mgpu_framework_arrays *a)
{
    tell_beside(a);
    if (a->variables->family == MGPU_FAMILY_TORCH)
        tell_left_out(a);
}
