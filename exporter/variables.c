#include "exporter/variables.h"

#include "exporter/keras_layers.h"
#include "exporter/module_paths.h"
#include "exporter/nameless.h"
#include "exporter/scopes.h"
#include "exporter/variable_kinds.h"
#include "exporter/variable_layout.h"
#include "exporter/variable_reader.h"
#include "importer/fx_call.h"
#include "importer/weight_flow.h"
#include "runtime/base/names.h"

#include <stdlib.h>
#include <string.h>

/* ---- Layers ---------------------------------------------------------------------------------- */

struct builder {
    struct mgpu_variables *v;
    struct mgpu_names *layers;         /* by key, to number + 1 */
    struct mgpu_names *owners;         /* path of a product's layer, by the node */
    struct mgpu_names *depths;         /* recurrent layers seen, by module, and of a node, plus 1 */
    struct mgpu_module_paths *modules; /* PyTorch's */
    bool tensorflow, pytorch, renumbered;
    int *users;    /* of each initializer: the weights that go by its name */
    int *split_of; /* that a run split it off (weights.c), plus 1; 0: it was not split off */
};

enum { STEPS_MOST = 8 };

/* TensorFlow: names of what makes a recurrent layer's first state, and of what follows it, begin
 * with the layer's. */
static const char *path_around(const struct builder *b, const char *name)
{
    for (int step = 0; step < STEPS_MOST; step++) {
        const struct mgpu_weight_flow_value *value =
            *name ? mgpu_weight_flow_get(b->v->flow, name) : NULL;
        if (!value || value->node < 0)
            return "";
        const struct mgpu_onnx_node *node = b->v->model->all[value->node];
        struct mgpu_scope s = mgpu_scope_tensorflow(b->v->arena, node->name, b->renumbered);
        if (*s.path)
            return s.path;
        if (!node->inputs)
            return "";
        name = node->input[0];
    }
    return "";
}

/* Of a node of PyTorch's, or of others that do not say more. */
static struct mgpu_module_path module_of(const struct builder *b, const struct mgpu_onnx_node *node)
{
    if (b->pytorch && *node->layer == '/')
        return mgpu_module_path_of(b->modules, node->layer);
    const char *path = mgpu_scope_of_layer(b->v->arena, node->layer);
    return (struct mgpu_module_path){path, strlen(path), false};
}

static const char *recurrent_path(const struct builder *b, const struct mgpu_variable_reader *r,
                                  int directions)
{
    const struct mgpu_onnx_node *node = r->node;
    if (!b->tensorflow)
        return module_of(b, node).path;
    char *path =
        mgpu_arena_string(b->v->arena, node->inputs > 5 ? path_around(b, node->input[5]) : "");
    char *slash = strrchr(path, '/');
    if (slash && (directions == 2 || !strncmp(slash + 1, "forward_", 8) ||
                  !strncmp(slash + 1, "backward_", 9)))
        *slash = 0;
    return path;
}

static struct mgpu_scope named_scope(const struct builder *b, const char *name)
{
    return b->tensorflow ? mgpu_scope_tensorflow(b->v->arena, name, b->renumbered)
                         : mgpu_scope_dotted(b->v->arena, name);
}

/* What the layer's node gives, where nothing has the layer's name. */
static const char *made_up_path(const struct builder *b, const struct mgpu_onnx_node *node)
{
    char *path = mgpu_arena_string(b->v->arena, node->outputs ? node->output[0] : "");
    char *colon = strrchr(path, ':');
    if (colon)
        *colon = 0;
    return path;
}

static bool is_taken(const struct builder *b, const char *path)
{
    for (int i = 0; i < b->v->layers; i++)
        if (!strcmp(b->v->layer[i].path, path))
            return true;
    return false;
}

static bool is_inside(const char *path, const char *outer)
{
    size_t n = strlen(outer);
    return n && !strncmp(path, outer, n) && path[n] == '/';
}

/* "5.bias", or "scale" beside a parameter of the model itself; not a layer ("/5"), nor the name of
 * a value: TorchScript's of what the model itself computes begin with '/', as the node's does. */
static bool is_parameter(const char *name, const char *merged_into, const char *node)
{
    bool outermost = *node == '/' && !strpbrk(merged_into, "./:");
    return *name && (outermost || strchr(name, '.')) && !strpbrk(name, "/#") &&
           !mgpu_ends_with(name, ".var") && !mgpu_ends_with(name, ".mean");
}

/* What TorchScript calls a parameter that it merged into another's initializer; "" unknown. In a
 * trained model it stands behind the '@', where dynamo's have the reader's layer, or its output. */
static const char *alias_of(const struct builder *b, const struct mgpu_holder *h)
{
    const struct mgpu_onnx_model *model = b->v->model;
    int of = b->split_of[h->initializer] - 1;
    const char *name = model->initializer[h->initializer].name;
    const char *from = of < 0 ? name : model->initializer[of].name, *as = h->alias;
    const struct mgpu_onnx_node *node = h->uses ? model->all[h->use[0].node] : NULL;
    if (!node || !b->pytorch)
        return "";
    if (of >= 0 && (!*node->layer || *node->layer == '/'))
        as = name + strlen(from) + 1;
    return is_parameter(as, from, node->name) ? as : "";
}

/* The initializer under whose name it was exported. */
static int exported_as(const struct builder *b, const struct mgpu_holder *h)
{
    int of = b->split_of[h->initializer] - 1;
    return of < 0 ? h->initializer : of;
}

static const char *path_of_reader(const struct builder *b, const struct mgpu_variable_reader *r)
{
    return b->tensorflow ? mgpu_scope_tensorflow(b->v->arena, r->node->name, b->renumbered).path
                         : module_of(b, r->node).path;
}

/* dynamo merges what copies of a module have: if this reader takes it as the reader in the module
 * that the name is of does, its name in the module is the same. Gives the path of what has it. */
static const char *path_in_copy(const struct builder *b, const struct mgpu_variable_reader *r,
                                const struct mgpu_holder *h, const char *path)
{
    const struct mgpu_weights *w = b->v->weights;
    for (int i = 0; i < w->count; i++)
        for (int k = 0; k < w->weight[i].holders; k++) {
            const struct mgpu_holder *other = &w->weight[i].holder[k];
            if (!other->uses || exported_as(b, other) != exported_as(b, h))
                continue;
            struct mgpu_variable_reader first = {0};
            mgpu_variable_reader_of(&first, b->v, other);
            const char *around = path_of_reader(b, &first);
            if (!*around || (strcmp(path, around) && !is_inside(path, around)))
                continue;
            bool same = !strcmp(first.node->type, r->node->type) && first.input == r->input;
            return same ? mgpu_arena_format(b->v->arena, "%s%s", path_of_reader(b, r),
                                            path + strlen(around))
                        : NULL;
        }
    return NULL;
}

/* dynamo: whether it is rows of a parameter, as they stand there: looked up by an arange, or a
 * slice. The graph does not tell whether there are more. */
static bool is_rows(const struct builder *b, int initializer)
{
    static const char *const lookups[] = {"embedding", "slice", NULL};
    static const char *const moves[] = {"val", "arange", "slice", "unsqueeze", "clone", NULL};
    const struct mgpu_onnx_initializer *x = &b->v->model->initializer[initializer];
    return x->folded_from && mgpu_onnx_is_result_name(x->name, lookups) &&
           mgpu_onnx_moved_from(b->v->arena, x->folded_from, moves);
}

/* dynamo: the parameter of its module that a normalisation was given, where the exporter computed
 * what the node reads; NULL: the record does not tell. */
static const char *given_name(const struct builder *b, const struct mgpu_onnx_node *node,
                              int initializer)
{
    bool shift = !strcmp(node->type, "Add");
    const char *given = b->v->model->initializer[initializer].folded_from && *node->layer &&
                                (shift || !strcmp(node->type, "Mul"))
                            ? mgpu_fx_norm_argument(node, shift)
                            : NULL;
    const char *name =
        mgpu_arena_format(b->v->arena, "%s.%s", node->layer, shift ? "bias" : "weight");
    char *as = mgpu_arena_format(b->v->arena, "%%p_%s", name);
    for (char *dot = as; (dot = strchr(dot, '.'));)
        *dot = '_';
    size_t n = strlen(as);
    return given && !strncmp(given, as, n) && strchr(",)", given[n]) ? name : NULL;
}

/* dynamo: the parameter that the exporter only turned, or put axes of one element around; "" where
 * it computed something else; NULL: the name that the initializer has tells as much. */
static const char *source_of(const struct builder *b, const struct mgpu_variable_reader *r,
                             int initializer)
{
    static const char *const turns[] = {"val", "t", "permute", "transpose", "numpy_t", NULL};
    static const char *const views[] = {"view", "reshape", "unsqueeze", "squeeze", "expand", NULL};
    const struct mgpu_onnx_initializer *x = &b->v->model->initializer[initializer];
    const char *source =
        x->folded_from && !r->recurrent ? mgpu_scope_source(b->v->arena, x->folded_from) : NULL;
    bool kernel = r->owner == r->node && x->array.rank == 2;
    int long_axes = 0;
    for (int i = 0; i < x->array.rank; i++)
        long_axes += x->array.dims[i] != 1;
    bool viewed = kernel ? mgpu_onnx_is_result_name(x->name, turns)
                         : long_axes <= 1 && (!mgpu_scope_is_own(x->name) ||
                                              mgpu_onnx_is_result_name(x->name, views));
    return source && !viewed && !is_rows(b, initializer) ? "" : source;
}

/* TorchScript merged into another's initializer what had no name of its own: an Identity stands
 * between, or stood there before the model was trained. */
static bool is_lost(const struct builder *b, const struct mgpu_holder *h)
{
    const struct mgpu_onnx_node *node = b->v->model->all[h->use[0].node];
    const char *own = b->v->model->initializer[h->initializer].name;
    return b->pytorch && *node->layer == '/' && !*alias_of(b, h) &&
           (b->split_of[h->initializer] || strcmp(node->input[h->use[0].input], own));
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* By the initializer's name, unless several layers share the initializer; else by the node's, but
 * for PyTorch's modules whose weights another one around them uses itself. Of a layer in a model
 * that TensorFlow runs at several places the weights keep names of different ones: the first tells.
 */
static struct mgpu_scope scope_of(const struct builder *b, struct mgpu_variable_reader *r,
                                  const struct mgpu_holder *h)
{
    const char *alias = alias_of(b, h), *around = path_of_reader(b, r);
    const char *given = *alias ? NULL : given_name(b, r->node, exported_as(b, h));
    const char *source = *alias ? NULL : given ? given : source_of(b, r, exported_as(b, h));
    const char *name = *alias   ? alias
                       : source ? source
                                : b->v->model->initializer[exported_as(b, h)].name;
    struct mgpu_scope s = named_scope(b, name);
    bool lost = is_lost(b, h);
    r->shared = lost || (!*alias && b->users[h->initializer] > 1 &&
                         !(b->pytorch && is_inside(s.path, around)));
    r->own_name = r->shared ? "" : name;
    r->cell = s.cell;
    r->folded = source && *source;
    r->computed = source && !*source;
    r->rows = r->folded && is_rows(b, exported_as(b, h));
    const char *copy = r->shared && !lost && b->pytorch && *s.path && *around
                           ? path_in_copy(b, r, h, s.path)
                           : NULL;
    r->as_named = b->v->family == MGPU_FAMILY_TORCH && *s.op && (!r->shared || copy) && !r->folded;
    if (copy)
        s.path = copy;
    else if (r->shared || (!*s.path && !(b->pytorch && *s.op)))
        s.path = around;
    else if (b->tensorflow && h->uses > 1 && !strcmp(last_part(s.path), last_part(around)))
        s.path = around;
    if (!*s.path && r->owner && b->tensorflow)
        s.path = mgpu_scope_tensorflow(b->v->arena, r->owner->name, b->renumbered).path;
    struct mgpu_module_path module = {.proven = strlen(s.path)};
    if (b->pytorch && s.path == around)
        module = module_of(b, r->node);
    r->proven = module.proven;
    r->unknown = module.unknown;
    return s;
}

/* Whether the parts are called the same. tf.keras counts the calls of a model inside on. */
static bool same_place(const struct builder *b, const char *path, const char *other)
{
    while (*path && *other) {
        int number, n = (int)strcspn(path, "/"), m = (int)strcspn(other, "/");
        const char *x = mgpu_arena_format(b->v->arena, "%.*s", n, path);
        const char *y = mgpu_arena_format(b->v->arena, "%.*s", m, other);
        size_t k = b->renumbered ? (size_t)n : mgpu_keras_numbered(x, &number);
        size_t l = b->renumbered ? (size_t)m : mgpu_keras_numbered(y, &number);
        if (k != l || strncmp(x, y, k))
            return false;
        path += n + (path[n] == '/');
        other += m + (other[m] == '/');
    }
    return !*path && !*other;
}

static const char *place_of(const struct builder *b, struct mgpu_use use,
                            const struct mgpu_array *a)
{
    struct mgpu_variable_reader r = {.moved = false};
    r.node = b->v->model->all[mgpu_variable_first_use(b->v, use, &r.moved).node];
    bool recurrent = !strcmp(r.node->type, "LSTM") || !strcmp(r.node->type, "GRU") ||
                     !strcmp(r.node->type, "RNN");
    return recurrent ? recurrent_path(b, &r, a->rank ? (int)a->dims[0] : 1) : path_of_reader(b, &r);
}

/* Where else the graph has the layer: in a model inside that it runs at several places. */
static const char *other_place(const struct builder *b, const struct mgpu_holder *h,
                               const char *path)
{
    const struct mgpu_array *a = &b->v->model->initializer[h->initializer].array;
    for (int i = 1; i < h->uses && b->tensorflow; i++) {
        const char *other = place_of(b, h->use[i], a);
        if (!strcmp(last_part(other), last_part(path)) && !same_place(b, path, other))
            return other;
    }
    return NULL;
}

static const char *owner_key(const struct builder *b, const struct mgpu_variable_reader *r)
{
    return mgpu_arena_format(b->v->arena, "#%d", r->owner ? r->owner->index : r->node->index);
}

static int add_layer(struct builder *b, const char *key, const char *path, bool guessed,
                     const struct mgpu_variable_reader *r, enum mgpu_direction direction)
{
    struct mgpu_variables *v = b->v;
    int known = (int)(intptr_t)mgpu_names_get(b->layers, key) - 1;
    if (known >= 0 && v->layer[known].proven < r->proven)
        v->layer[known].proven = r->proven;
    if (known >= 0)
        return known;
    v->layer = mgpu_grow(v->layer, (size_t)v->layers, sizeof *v->layer);
    v->layer[v->layers++] = (struct mgpu_variable_layer){.path = path,
                                                         .guessed = guessed,
                                                         .proven = r->proven,
                                                         .class_name = "",
                                                         .direction = direction,
                                                         .node = r->node->index,
                                                         .inner = -1};
    mgpu_names_set(b->layers, mgpu_arena_string(v->arena, key), (void *)(intptr_t)v->layers);
    return v->layers - 1;
}

/* Which of the recurrent layers of one module it is: PyTorch's weight_ih_l0, weight_ih_l1, ... */
static int depth_of(struct builder *b, const char *node, const char *path)
{
    int depth = (int)(intptr_t)mgpu_names_get(b->depths, node);
    const char *of = mgpu_arena_format(b->v->arena, "/%s", path);
    if (depth)
        return depth - 1;
    depth = (int)(intptr_t)mgpu_names_get(b->depths, of) + 1;
    mgpu_names_set(b->depths, node, (void *)(intptr_t)depth);
    mgpu_names_set(b->depths, of, (void *)(intptr_t)depth);
    return depth - 1;
}

static void add_variable(struct builder *b, const struct mgpu_variable *of, int layer)
{
    struct mgpu_variables *v = b->v;
    v->variable = mgpu_grow(v->variable, (size_t)v->count, sizeof *v->variable);
    v->variable[v->count] = *of;
    v->variable[v->count++].layer = layer;
}

/* What is not known to be the layer of a path is a layer of its own. */
static const char *layer_key(const struct builder *b, const struct mgpu_variable_reader *r,
                             const char *path)
{
    return mgpu_arena_format(b->v->arena, r->unknown ? "?%s" : "/%s", path);
}

static void add_recurrent(struct builder *b, struct mgpu_variable *x,
                          const struct mgpu_variable_reader *r, const struct mgpu_array *a)
{
    const char *node = mgpu_arena_format(b->v->arena, "#%d", r->node->index);
    const char *known = mgpu_names_get(b->owners, node);
    int directions = (int)a->dims[0];
    const char *path = known ? known : recurrent_path(b, r, directions);
    bool keras = b->v->family == MGPU_FAMILY_KERAS;
    bool guessed = b->tensorflow || r->unknown;
    if (b->tensorflow && !known && (!*path || is_taken(b, path)))
        path = made_up_path(b, r->node);
    mgpu_names_set(b->owners, node, path);
    for (int d = 0; d < directions; d++) {
        enum mgpu_direction direction = !keras || directions == 1 ? MGPU_WAY_ONE
                                        : d                       ? MGPU_WAY_BACKWARD
                                                                  : MGPU_WAY_FORWARD;
        const char *key = keras ? mgpu_arena_format(b->v->arena, "%s %d", node, (int)direction)
                                : layer_key(b, r, path);
        int layer = add_layer(b, key, path, guessed, r, direction);
        int depth = depth_of(b, node, path);
        b->v->layer[layer].class_name = mgpu_variable_class_of(r, a, x->role);
        for (int half = 0; half < (keras || x->role != MGPU_VAR_BIAS ? 1 : 2); half++) {
            struct mgpu_variable one = *x;
            mgpu_variable_recurrent(&one, b->v->family, r, a, d, half);
            if (!keras)
                one.leaf = mgpu_arena_format(b->v->arena, "%s_l%d%s", one.leaf, depth,
                                             d ? "_reverse" : "");
            add_variable(b, &one, layer);
        }
    }
}

/* Keras 3 opens a scope for each call of a layer: a second operation of one name in it is of a
 * layer that another one wraps, whose class nothing tells. Only a group normalisation reshapes
 * its input, gamma and beta itself. */
static bool is_wrapped(const struct builder *b, const struct mgpu_variable_reader *r,
                       const char *op)
{
    int number;
    mgpu_keras_numbered(op, &number);
    return b->renumbered && number > (r->grouped ? 2 : 0);
}

static void add_plain(struct builder *b, struct mgpu_variable *x, struct mgpu_variable_reader *r,
                      const struct mgpu_array *a, struct mgpu_scope scope)
{
    const char *path = scope.path, *owner = owner_key(b, r);
    const char *known = mgpu_names_get(b->owners, owner);
    bool outermost = !*path && !b->tensorflow && *scope.op; /* a parameter of the model itself */
    bool guessed = !*path && !known && !outermost;
    if (!*path && known)
        path = known;
    if (guessed)
        path = made_up_path(b, r->owner ? r->owner : r->node);
    if (guessed)
        mgpu_names_set(b->owners, owner, path);
    int layer = add_layer(b, layer_key(b, r, path), path, guessed || r->unknown, r, MGPU_WAY_ONE);
    mgpu_variable_reader_in(r, b->v, path);
    x->role = mgpu_variable_role_of(r, a, scope.op);
    const char *class_name = mgpu_variable_class_of(r, a, x->role);
    struct mgpu_variable_layer *l = &b->v->layer[layer];
    bool better = !*l->class_name || x->role == MGPU_VAR_DEPTHWISE;
    if (better && !is_wrapped(b, r, scope.op))
        l->class_name = class_name;
    if (x->role == MGPU_VAR_KERNEL && r->inner != r->node)
        l->inner = r->inner->index;
    mgpu_variable_plain(x, b->v->family, r, a, scope.op);
    add_variable(b, x, layer);
}

/* The names of a layer's other weights name those that have lost theirs. */
static void note_owner(struct builder *b, int weight, int holder)
{
    const struct mgpu_holder *h = &b->v->weights->weight[weight].holder[holder];
    struct mgpu_variable_reader r = {0};
    mgpu_variable_reader_of(&r, b->v, h);
    struct mgpu_scope scope = scope_of(b, &r, h);
    if (!r.recurrent && *scope.path && !mgpu_names_get(b->owners, owner_key(b, &r)))
        mgpu_names_set(b->owners, owner_key(b, &r), scope.path);
}

/* TensorFlow's einsum makes a matrix of its kernel; a Tensordot's was one. */
static bool is_joined(const struct builder *b, const struct mgpu_variable *x, const char *op)
{
    return b->tensorflow && x->role == MGPU_VAR_KERNEL && !strncmp(op, "Reshape", 7) &&
           !strstr(x->own, "/Tensordot/");
}

/* What was added up before, as a bias and positions: no variable is that. */
static bool is_sum(const struct builder *b, const struct mgpu_holder *h, const struct mgpu_array *a,
                   const char *op)
{
    int long_axes = 0;
    for (int i = 0; i < a->rank; i++)
        long_axes += a->dims[i] != 1;
    return b->tensorflow && long_axes > 1 && !strncmp(op, "BiasAdd", 7) &&
           !strstr(b->v->model->initializer[h->initializer].name, "ReadVariableOp");
}

/* A name that does not tell what its layer does with it leaves that to what reads it. */
static void settle_cell(const struct builder *b, struct mgpu_variable_reader *r,
                        struct mgpu_scope *scope, const struct mgpu_holder *h)
{
    bool looped = false;
    for (int i = 0; i < h->uses && scope->call; i++)
        looped |= !strcmp(b->v->model->all[h->use[i].node]->type, "Loop");
    r->cell |= looped;
    r->part = r->cell ? scope->part : -1;
    if (r->cell && !*scope->op)
        scope->op = mgpu_scope_tensorflow(b->v->arena, r->inner->name, b->renumbered).op;
}

static void add_holder(struct builder *b, int weight, int holder)
{
    const struct mgpu_holder *h = &b->v->weights->weight[weight].holder[holder];
    const struct mgpu_array *a = &b->v->model->initializer[h->initializer].array;
    struct mgpu_variable_reader r = {0};
    mgpu_variable_reader_of(&r, b->v, h);
    struct mgpu_scope scope = scope_of(b, &r, h);
    settle_cell(b, &r, &scope, h);
    r.computed |= is_sum(b, h, a, scope.op);
    struct mgpu_variable x = {.weight = weight,
                              .holder = holder,
                              .role = mgpu_variable_role_of(&r, a, scope.op),
                              .computed = r.computed,
                              .turned = r.folded,
                              .rows = r.rows,
                              .own = r.own_name,
                              .leaf = ""};
    x.joined = is_joined(b, &x, scope.op);
    /* The name that layers share may be one of another kind: a mean's that a bias has, too. */
    r.as_named |=
        b->v->family == MGPU_FAMILY_TORCH && *scope.op && x.role == MGPU_VAR_OTHER && !r.folded;
    if (r.recurrent && !r.moved && a->rank >= 2)
        add_recurrent(b, &x, &r, a);
    else
        add_plain(b, &x, &r, a, scope);
    if (!b->v->count)
        return;
    struct mgpu_variable_layer *l = &b->v->layer[b->v->variable[b->v->count - 1].layer];
    l->elsewhere = l->elsewhere ? l->elsewhere : other_place(b, h, l->path);
}

/* ---- Order ----------------------------------------------------------------------------------- */

static int by_layer(const void *a, const void *b)
{
    const struct mgpu_variable *x = a, *y = b;
    if (x->layer != y->layer)
        return x->layer - y->layer;
    return x->role != y->role       ? (int)x->role - (int)y->role
           : x->weight != y->weight ? x->weight - y->weight
                                    : x->holder - y->holder;
}

struct first_use {
    int node, input, weight, holder;
};

static int by_use(const void *a, const void *b)
{
    const struct first_use *x = a, *y = b;
    return x->node != y->node ? x->node - y->node : x->input - y->input;
}

/* A trained model has an initializer of its own for each parameter: '2.bias@5.bias' was split off
 * '2.bias' (weights.c), which is still called as one of those that were merged. */
static void find_split(struct builder *b)
{
    const struct mgpu_onnx_model *model = b->v->model;
    struct mgpu_names *names = mgpu_names_new(b->v->arena);
    for (int i = 0; i < model->initializers; i++)
        mgpu_names_set(names, model->initializer[i].name, (void *)(intptr_t)(i + 1));
    for (int i = 0; i < model->initializers; i++) {
        const char *name = model->initializer[i].name;
        for (const char *at = name; !b->split_of[i] && (at = strchr(at, '@')); at++)
            b->split_of[i] = (int)(intptr_t)mgpu_names_get(
                names, mgpu_arena_format(b->v->arena, "%.*s", (int)(at - name), name));
    }
}

/* What was split off shares the name of where it came from. */
static void count_user(const struct builder *b, const struct mgpu_holder *h)
{
    if (*alias_of(b, h))
        return;
    int of = b->split_of[h->initializer] - 1;
    b->users[h->initializer] += of < 0 ? 1 : 2;
    if (of >= 0)
        b->users[of]++;
}

/* tf.keras makes the first state of a ConvLSTM with a kernel of zeros that is none of the layer's.
 */
static bool is_first_state(const struct builder *b, const struct mgpu_holder *h)
{
    const char *name = b->v->model->initializer[h->initializer].name;
    return b->tensorflow && b->v->weights->zero[h->initializer] &&
           !strcmp(mgpu_scope_tensorflow(b->v->arena, name, b->renumbered).op, "zeros");
}

static int list_holders(struct first_use **out, const struct builder *b)
{
    const struct mgpu_weights *w = b->v->weights;
    int n = 0;
    *out = NULL;
    for (int i = 0; i < w->count; i++)
        for (int h = 0; h < w->weight[i].holders; h++) {
            const struct mgpu_holder *holder = &w->weight[i].holder[h];
            count_user(b, holder);
            if (!holder->uses || is_first_state(b, holder))
                continue;
            bool moved;
            struct mgpu_use use = mgpu_variable_first_use(b->v, holder->use[0], &moved);
            *out = mgpu_grow(*out, (size_t)n, sizeof **out);
            (*out)[n++] = (struct first_use){use.node, use.input, i, h};
        }
    qsort(*out, (size_t)n, sizeof **out, by_use);
    return n;
}

/* Of a weight that two modules share (tied embeddings) dynamo keeps one name, and its turned copy
 * stands where the other reads it: the module that reads the copy's original, not of that name, is
 * the other. */
static void part_tied(struct builder *b)
{
    struct mgpu_variables *v = b->v;
    for (int i = 0; i < v->count; i++)
        for (int k = 0; k < v->count && v->weights->weight[v->variable[i].weight].holders > 1;
             k++) {
            struct mgpu_variable *x = &v->variable[i];
            const struct mgpu_variable *other = &v->variable[k];
            if (x->weight != other->weight || x->holder == other->holder ||
                x->layer != other->layer || strcmp(x->leaf, other->leaf))
                continue;
            struct mgpu_variable_reader r = {0};
            mgpu_variable_reader_of(&r, v, &v->weights->weight[x->weight].holder[x->holder]);
            struct mgpu_module_path module = module_of(b, r.node);
            r.proven = module.proven;
            r.unknown = module.unknown;
            if (*module.path && strcmp(module.path, v->layer[x->layer].path))
                x->layer = add_layer(b, layer_key(b, &r, module.path), module.path, r.unknown, &r,
                                     MGPU_WAY_ONE);
        }
}

/* The path of the module whose parameter the initializer is by its name; "" unknown. */
static const char *module_by_name(const struct builder *b, const struct mgpu_holder *h)
{
    const char *name = alias_of(b, h);
    if (!*name && b->users[h->initializer] <= 1)
        name = b->v->model->initializer[exported_as(b, h)].name;
    return mgpu_scope_dotted(b->v->arena, name).path;
}

static void learn_module(struct builder *b, struct mgpu_use use, int weight, const char *module)
{
    bool moved;
    use = mgpu_variable_first_use(b->v, use, &moved);
    const char *layer = b->v->model->all[use.node]->layer;
    if (*layer == '/' && module)
        mgpu_module_paths_learn(b->modules, layer, use.input, weight, module);
    else if (*layer == '/')
        mgpu_module_paths_read(b->modules, layer, use.input, weight);
}

/* What the modules around TorchScript's nodes are called. */
static void learn_modules(struct builder *b, const struct first_use *uses, int n)
{
    b->modules = mgpu_module_paths_new(b->v->arena);
    for (int names = 0; names < 2 && b->pytorch; names++)
        for (int i = 0; i < n; i++) {
            const struct mgpu_holder *h =
                &b->v->weights->weight[uses[i].weight].holder[uses[i].holder];
            for (int u = 0; u < h->uses; u++)
                learn_module(b, h->use[u], uses[i].weight, names ? module_by_name(b, h) : NULL);
        }
}

void mgpu_variables_new(struct mgpu_variables **out, const struct mgpu_onnx_model *model,
                        const struct mgpu_weights *weights, enum mgpu_family family)
{
    struct mgpu_variables *v = *out = mgpu_xcalloc(1, sizeof *v);
    struct first_use *uses;
    v->arena = mgpu_arena_new();
    v->model = model;
    v->weights = weights;
    v->family = family;
    v->flow = mgpu_weight_flow_new(v->arena, model);
    struct builder b = {.v = v,
                        .layers = mgpu_names_new(v->arena),
                        .owners = mgpu_names_new(v->arena),
                        .depths = mgpu_names_new(v->arena),
                        .tensorflow = model->producer == MGPU_PRODUCER_TENSORFLOW,
                        .pytorch = model->producer == MGPU_PRODUCER_PYTORCH,
                        .users = mgpu_xcalloc((size_t)model->initializers + 1, sizeof *b.users),
                        .split_of = MGPU_NEW_ARRAY(v->arena, int, model->initializers)};
    b.renumbered = b.tensorflow && mgpu_scope_renumbered(v->arena, model);
    v->renumbered = b.renumbered;
    find_split(&b);
    int n = list_holders(&uses, &b);
    learn_modules(&b, uses, n);
    for (int i = 0; i < n; i++)
        note_owner(&b, uses[i].weight, uses[i].holder);
    if (b.tensorflow)
        mgpu_variable_name_attention(v, b.owners);
    for (int i = 0; i < n; i++)
        add_holder(&b, uses[i].weight, uses[i].holder);
    if (family == MGPU_FAMILY_TORCH)
        part_tied(&b);
    if (b.pytorch && family == MGPU_FAMILY_TORCH)
        mgpu_variables_nameless(v);
    if (v->count)
        qsort(v->variable, (size_t)v->count, sizeof *v->variable, by_layer);
    if (family == MGPU_FAMILY_KERAS)
        mgpu_variables_name_kinds(v);
    free(uses);
    free(b.users);
}

void mgpu_variables_free(struct mgpu_variables *v)
{
    if (!v)
        return;
    free(v->variable);
    free(v->layer);
    mgpu_arena_free(v->arena);
    free(v);
}
