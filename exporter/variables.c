#include "exporter/variables.h"

#include "exporter/keras_layers.h"
#include "exporter/scopes.h"
#include "exporter/variable_layout.h"
#include "runtime/base/names.h"
#include "importer/weight_flow.h"

#include <stdlib.h>
#include <string.h>

/* ---- What reads a weight --------------------------------------------------------------------- */

static bool is_type(const struct mgpu_onnx_node *node, const char *type)
{
    return !*node->domain && !strcmp(node->type, type);
}

static bool is_any(const struct mgpu_onnx_node *node, const char *const *types)
{
    for (int i = 0; types[i]; i++)
        if (is_type(node, types[i]))
            return true;
    return false;
}

static const char *const moves[] = {"Transpose", "Reshape", "Squeeze", "Unsqueeze", NULL};
static const char *const passes[] = {"Identity", "Cast", NULL};
static const char *const products[] = {"MatMul", "Gemm", "Conv", "ConvTranspose", NULL};

enum { STEPS_MOST = 8 };

/* Follows views to the first node that computes with the weight. */
static struct mgpu_use reader_of(const struct mgpu_variables *v, struct mgpu_use use, bool *moved)
{
    *moved = false;
    for (int step = 0; step < STEPS_MOST; step++) {
        const struct mgpu_onnx_node *node = v->model->all[use.node];
        bool moving = is_any(node, moves);
        if (use.input || !node->outputs || (!moving && !is_any(node, passes)))
            break;
        const struct mgpu_weight_flow_value *value = mgpu_weight_flow_get(v->flow, node->output[0]);
        if (!value || !value->readers)
            break;
        *moved |= moving;
        use = value->reader[0];
    }
    return use;
}

/* The product whose result, perhaps moved, this value is; NULL: none. */
static const struct mgpu_onnx_node *product_of(const struct mgpu_variables *v, const char *name)
{
    for (int step = 0; step < STEPS_MOST; step++) {
        const struct mgpu_weight_flow_value *value =
            *name ? mgpu_weight_flow_get(v->flow, name) : NULL;
        if (!value || value->node < 0)
            return NULL;
        const struct mgpu_onnx_node *node = v->model->all[value->node];
        if (is_any(node, products))
            return node;
        if (!is_any(node, moves) && !is_any(node, passes))
            return NULL;
        name = node->input[0];
    }
    return NULL;
}

/* ---- Roles ----------------------------------------------------------------------------------- */

static enum mgpu_variable_role norm_role(int input)
{
    static const enum mgpu_variable_role roles[] = {MGPU_VAR_OTHER, MGPU_VAR_GAMMA, MGPU_VAR_BETA,
                                                    MGPU_VAR_MEAN, MGPU_VAR_VARIANCE};
    return input < 5 ? roles[input] : MGPU_VAR_OTHER;
}

static enum mgpu_variable_role added_role(const struct mgpu_variable_reader *r, const char *op)
{
    if (r->product || !strncmp(op, "BiasAdd", 7) || !strcmp(op, "bias"))
        return MGPU_VAR_BIAS;
    return !strncmp(op, "Reshape", 7) ? MGPU_VAR_BETA : MGPU_VAR_OTHER;
}

static enum mgpu_variable_role scaled_role(const char *op)
{
    return !strcmp(op, "Neg")           ? MGPU_VAR_ALPHA
           : !strncmp(op, "Reshape", 7) ? MGPU_VAR_GAMMA
                                        : MGPU_VAR_OTHER;
}

/* In loops the graph does not tell; TensorFlow's names do. */
static enum mgpu_variable_role looped_role(const char *op)
{
    return !strcmp(op, "Cast") || !strcmp(op, "MatMul")       ? MGPU_VAR_KERNEL
           : !strcmp(op, "Cast_1") || !strcmp(op, "MatMul_1") ? MGPU_VAR_RECURRENT
           : !strcmp(op, "split") || !strcmp(op, "BiasAdd")   ? MGPU_VAR_BIAS
                                                              : MGPU_VAR_OTHER;
}

static bool is_depthwise(const struct mgpu_onnx_node *node, const struct mgpu_array *a)
{
    return is_type(node, "Conv") && mgpu_onnx_int(node, "group", 1) > 1 && a->rank > 2 &&
           a->dims[1] == 1 && a->dims[0] % mgpu_onnx_int(node, "group", 1) == 0;
}

static enum mgpu_variable_role role_of(const struct mgpu_variable_reader *r,
                                       const struct mgpu_array *a, const char *op)
{
    static const char *const norms[] = {"BatchNormalization", "LayerNormalization",
                                        "GroupNormalization", "InstanceNormalization",
                                        "RMSNormalization",   NULL};
    const struct mgpu_onnx_node *node = r->node;
    if (is_any(node, norms))
        return norm_role(r->input);
    if (is_any(node, products))
        return r->input == 2           ? MGPU_VAR_BIAS
               : is_depthwise(node, a) ? MGPU_VAR_DEPTHWISE
                                       : MGPU_VAR_KERNEL;
    if (r->recurrent)
        return r->input == 1   ? MGPU_VAR_KERNEL
               : r->input == 2 ? MGPU_VAR_RECURRENT
               : r->input == 3 ? MGPU_VAR_BIAS
                               : MGPU_VAR_OTHER;
    if (is_type(node, "Gather") && r->input == 0)
        return MGPU_VAR_EMBEDDINGS;
    if (is_type(node, "PRelu"))
        return MGPU_VAR_ALPHA;
    if (!strcmp(op, "gamma") || !strcmp(op, "beta"))
        return *op == 'g' ? MGPU_VAR_GAMMA : MGPU_VAR_BETA;
    if (is_type(node, "Add"))
        return added_role(r, op);
    return is_type(node, "Mul") ? scaled_role(op) : looped_role(op);
}

static const char *class_of(const struct mgpu_variable_reader *r, const struct mgpu_array *a,
                            enum mgpu_variable_role role)
{
    static const char *const conv[] = {"", "conv1d", "conv2d", "conv3d"};
    static const char *const back[] = {"", "conv1d_transpose", "conv2d_transpose",
                                       "conv3d_transpose"};
    int axes = a->rank - 2 - r->flat;
    bool spatial = axes >= 1 && axes <= 3;
    if (r->recurrent)
        return is_type(r->node, "LSTM") ? "lstm" : is_type(r->node, "GRU") ? "gru" : "simple_rnn";
    if (is_type(r->node, "BatchNormalization"))
        return "batch_normalization";
    if (is_type(r->node, "LayerNormalization"))
        return "layer_normalization";
    if (role == MGPU_VAR_DEPTHWISE)
        return axes == 1 ? "depthwise_conv1d" : "depthwise_conv2d";
    if (role == MGPU_VAR_KERNEL && is_type(r->node, "Conv") && spatial)
        return conv[axes];
    if (role == MGPU_VAR_KERNEL && is_type(r->node, "ConvTranspose") && spatial)
        return back[axes];
    return role == MGPU_VAR_KERNEL && !is_type(r->node, "Loop") ? "dense"
           : role == MGPU_VAR_EMBEDDINGS                        ? "embedding"
           : role == MGPU_VAR_ALPHA                             ? "p_re_lu"
           : role == MGPU_VAR_GAMMA                             ? "layer_normalization"
                                                                : "";
}

/* ---- Layers ---------------------------------------------------------------------------------- */

struct builder {
    struct mgpu_variables *v;
    struct mgpu_names *layers; /* by key, to number + 1 */
    struct mgpu_names *owners; /* path of a product's layer, by the node */
    struct mgpu_names *depths; /* recurrent layers seen, by module, and of a node, plus 1 */
    bool tensorflow, pytorch, renumbered;
    int *users; /* weights of each initializer */
};

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

static const char *recurrent_path(const struct builder *b, const struct mgpu_variable_reader *r)
{
    const struct mgpu_onnx_node *node = r->node;
    if (!b->tensorflow)
        return mgpu_scope_of_layer(b->v->arena, node->layer);
    char *path =
        mgpu_arena_string(b->v->arena, node->inputs > 5 ? path_around(b, node->input[5]) : "");
    char *slash = strrchr(path, '/');
    if (slash && (!strncmp(slash + 1, "forward_", 8) || !strncmp(slash + 1, "backward_", 9)))
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

/* By the initializer's name, unless several layers share the initializer; else by the node's. */
static struct mgpu_scope scope_of(const struct builder *b, const struct mgpu_variable_reader *r,
                                  const struct mgpu_holder *h)
{
    const char *name = b->v->model->initializer[h->initializer].name;
    struct mgpu_scope s = named_scope(b, name);
    if (b->users[h->initializer] > 1 || (!*s.path && !(b->pytorch && *s.op)))
        s.path = b->tensorflow
                     ? mgpu_scope_tensorflow(b->v->arena, r->node->name, b->renumbered).path
                     : mgpu_scope_of_layer(b->v->arena, r->node->layer);
    if (!*s.path && r->owner && b->tensorflow)
        s.path = mgpu_scope_tensorflow(b->v->arena, r->owner->name, b->renumbered).path;
    return s;
}

static const char *owner_key(const struct builder *b, const struct mgpu_variable_reader *r)
{
    return mgpu_arena_format(b->v->arena, "#%d", r->owner ? r->owner->index : r->node->index);
}

static int add_layer(struct builder *b, const char *key, const char *path, bool guessed,
                     const struct mgpu_variable_reader *r, enum mgpu_direction direction)
{
    struct mgpu_variables *v = b->v;
    const struct mgpu_variable_layer *known = mgpu_names_get(b->layers, key);
    if (known)
        return (int)(intptr_t)known - 1;
    v->layer = mgpu_grow(v->layer, (size_t)v->layers, sizeof *v->layer);
    v->layer[v->layers++] = (struct mgpu_variable_layer){.path = path,
                                                         .guessed = guessed,
                                                         .class_name = "",
                                                         .direction = direction,
                                                         .node = r->node->index};
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

static void add_recurrent(struct builder *b, struct mgpu_variable *x,
                          const struct mgpu_variable_reader *r, const struct mgpu_array *a)
{
    const char *node = mgpu_arena_format(b->v->arena, "#%d", r->node->index);
    const char *known = mgpu_names_get(b->owners, node);
    const char *path = known ? known : recurrent_path(b, r);
    bool keras = b->v->family == MGPU_FAMILY_KERAS;
    int directions = (int)a->dims[0];
    if (b->tensorflow && !known && (!*path || is_taken(b, path)))
        path = made_up_path(b, r->node);
    mgpu_names_set(b->owners, node, path);
    for (int d = 0; d < directions; d++) {
        enum mgpu_direction direction = !keras || directions == 1 ? MGPU_WAY_ONE
                                        : d                       ? MGPU_WAY_BACKWARD
                                                                  : MGPU_WAY_FORWARD;
        const char *key = keras ? mgpu_arena_format(b->v->arena, "%s %d", node, (int)direction)
                                : mgpu_arena_format(b->v->arena, "/%s", path);
        int layer = add_layer(b, key, path, b->tensorflow, r, direction);
        int depth = depth_of(b, node, path);
        b->v->layer[layer].class_name = class_of(r, a, x->role);
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

static void add_plain(struct builder *b, struct mgpu_variable *x,
                      const struct mgpu_variable_reader *r, const struct mgpu_array *a,
                      struct mgpu_scope scope)
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
    int layer =
        add_layer(b, mgpu_arena_format(b->v->arena, "/%s", path), path, guessed, r, MGPU_WAY_ONE);
    const char *class_name = class_of(r, a, x->role);
    struct mgpu_variable_layer *l = &b->v->layer[layer];
    if (*class_name && (!*l->class_name || x->role == MGPU_VAR_DEPTHWISE))
        l->class_name = class_name;
    mgpu_variable_plain(x, b->v->family, r, a, scope.op);
    add_variable(b, x, layer);
}

static void describe_reader(struct mgpu_variable_reader *r, const struct builder *b,
                            const struct mgpu_holder *h)
{
    static const char *const recurrent[] = {"LSTM", "GRU", "RNN", NULL};
    const char *name = b->v->model->initializer[h->initializer].name;
    struct mgpu_use use = reader_of(b->v, h->use[0], &r->moved);
    r->node = b->v->model->all[use.node];
    r->input = use.input;
    r->recurrent = is_any(r->node, recurrent) && r->input >= 1 && r->input <= 3;
    r->product = is_type(r->node, "Add") && r->node->inputs == 2 &&
                 product_of(b->v, r->node->input[1 - (r->input ? 1 : 0)]);
    r->owner = is_any(r->node, products) ? r->node
               : r->product              ? product_of(b->v, r->node->input[r->input ? 0 : 1])
                                         : NULL;
    r->flat = strstr(name, "/ExpandDims") != NULL;
    r->own_name = b->v->family == MGPU_FAMILY_TORCH && *mgpu_scope_dotted(b->v->arena, name).op;
}

/* The names of a layer's other weights name those that have lost theirs. */
static void note_owner(struct builder *b, int weight, int holder)
{
    const struct mgpu_holder *h = &b->v->weights->weight[weight].holder[holder];
    struct mgpu_variable_reader r = {0};
    describe_reader(&r, b, h);
    struct mgpu_scope scope = scope_of(b, &r, h);
    if (!r.recurrent && *scope.path && !mgpu_names_get(b->owners, owner_key(b, &r)))
        mgpu_names_set(b->owners, owner_key(b, &r), scope.path);
}

static void add_holder(struct builder *b, int weight, int holder)
{
    const struct mgpu_holder *h = &b->v->weights->weight[weight].holder[holder];
    const struct mgpu_array *a = &b->v->model->initializer[h->initializer].array;
    struct mgpu_variable_reader r = {0};
    describe_reader(&r, b, h);
    struct mgpu_scope scope = scope_of(b, &r, h);
    struct mgpu_variable x = {
        .weight = weight, .holder = holder, .role = role_of(&r, a, scope.op), .leaf = ""};
    if (r.recurrent && !r.moved && a->rank >= 2)
        add_recurrent(b, &x, &r, a);
    else
        add_plain(b, &x, &r, a, scope);
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

static int list_holders(struct first_use **out, const struct builder *b)
{
    const struct mgpu_weights *w = b->v->weights;
    int n = 0;
    *out = NULL;
    for (int i = 0; i < w->count; i++)
        for (int h = 0; h < w->weight[i].holders; h++) {
            const struct mgpu_holder *holder = &w->weight[i].holder[h];
            b->users[holder->initializer]++;
            if (!holder->uses)
                continue;
            bool moved;
            struct mgpu_use use = reader_of(b->v, holder->use[0], &moved);
            *out = mgpu_grow(*out, (size_t)n, sizeof **out);
            (*out)[n++] = (struct first_use){use.node, use.input, i, h};
        }
    qsort(*out, (size_t)n, sizeof **out, by_use);
    return n;
}

/* A pointwise convolution under the name of a depthwise one is a separable convolution's. */
static void join_separable(struct mgpu_variables *v)
{
    for (int i = 0; i + 1 < v->count; i++) {
        struct mgpu_variable *kernel = &v->variable[i], *depthwise = &v->variable[i + 1];
        if (kernel->layer != depthwise->layer || kernel->role != MGPU_VAR_KERNEL ||
            depthwise->role != MGPU_VAR_DEPTHWISE)
            continue;
        kernel->role = MGPU_VAR_POINTWISE;
        kernel->leaf = "pointwise_kernel";
        struct mgpu_variable other = *kernel;
        *kernel = *depthwise;
        *depthwise = other;
        const char *class_name = v->layer[other.layer].class_name;
        v->layer[other.layer].class_name =
            !strcmp(class_name, "depthwise_conv1d") ? "separable_conv1d" : "separable_conv2d";
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
                        .users = mgpu_xcalloc((size_t)model->initializers + 1, sizeof *b.users)};
    b.renumbered = b.tensorflow && mgpu_scope_renumbered(model);
    int n = list_holders(&uses, &b);
    for (int i = 0; i < n; i++)
        note_owner(&b, uses[i].weight, uses[i].holder);
    for (int i = 0; i < n; i++)
        add_holder(&b, uses[i].weight, uses[i].holder);
    if (v->count)
        qsort(v->variable, (size_t)v->count, sizeof *v->variable, by_layer);
    if (family == MGPU_FAMILY_KERAS)
        join_separable(v);
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

/* ---- Questions ------------------------------------------------------------------------------- */

const char *mgpu_variable_initializer(const struct mgpu_variables *v, int variable)
{
    const struct mgpu_variable *x = &v->variable[variable];
    const struct mgpu_weight *w = &v->weights->weight[x->weight];
    const struct mgpu_holder *h = &w->holder[x->holder];
    return h->added ? w->name : v->model->initializer[h->initializer].name;
}

const char *mgpu_variable_name(const struct mgpu_variables *v, int variable)
{
    const struct mgpu_variable *x = &v->variable[variable];
    const struct mgpu_variable_layer *l = &v->layer[x->layer];
    const char *way = l->direction == MGPU_WAY_FORWARD    ? "/forward"
                      : l->direction == MGPU_WAY_BACKWARD ? "/backward"
                                                          : "";
    if (!*x->leaf || (!*l->path && !l->direction))
        return *l->path || !*x->leaf ? mgpu_variable_initializer(v, variable) : x->leaf;
    return mgpu_arena_format(v->arena, "%s%s/%s", l->path, way, x->leaf);
}

/* Axes of one element do not count. */
static int squeezed(int64_t *to, int rank, const int64_t *dims)
{
    int n = 0;
    for (int i = 0; i < rank; i++)
        if (dims[i] != 1)
            to[n++] = dims[i];
    return n;
}

/* Whether `fine` becomes `coarse` by joining neighbouring axes. */
static bool joins(int rank, const int64_t *coarse, int fine_rank, const int64_t *fine)
{
    int k = 0;
    for (int i = 0; i < rank; i++) {
        int64_t n = 1;
        while (k < fine_rank && n < coarse[i])
            n *= fine[k++];
        if (n != coarse[i])
            return false;
    }
    return k == fine_rank;
}

bool mgpu_variable_fits(const struct mgpu_variables *v, int variable, int rank, const int64_t *dims)
{
    const struct mgpu_variable *x = &v->variable[variable];
    int64_t a[MGPU_MAX_RANK], b[MGPU_MAX_RANK];
    if (rank == x->rank && !memcmp(dims, x->dims, (size_t)rank * sizeof *dims))
        return true;
    int n = squeezed(a, x->rank, x->dims), m = squeezed(b, rank, dims);
    if (n == m)
        return !memcmp(a, b, (size_t)n * sizeof *a);
    bool attention = v->family == MGPU_FAMILY_KERAS && rank > x->rank;
    return attention && joins(n, a, m, b);
}

bool mgpu_variable_is(const struct mgpu_variables *v, int variable, const char *leaf)
{
    static const char *const names[][3] = {
        [MGPU_VAR_KERNEL] = {"kernel", "weight"},
        [MGPU_VAR_DEPTHWISE] = {"depthwise_kernel", "kernel", "weight"},
        [MGPU_VAR_POINTWISE] = {"pointwise_kernel"},
        [MGPU_VAR_RECURRENT] = {"recurrent_kernel"},
        [MGPU_VAR_EMBEDDINGS] = {"embeddings", "weight"},
        [MGPU_VAR_ALPHA] = {"alpha", "weight"},
        [MGPU_VAR_GAMMA] = {"gamma", "weight"},
        [MGPU_VAR_BIAS] = {"bias", "beta"},
        [MGPU_VAR_BETA] = {"beta", "bias"},
        [MGPU_VAR_MEAN] = {"moving_mean", "running_mean"},
        [MGPU_VAR_VARIANCE] = {"moving_variance", "running_var"},
        [MGPU_VAR_OTHER] = {NULL},
    };
    const struct mgpu_variable *x = &v->variable[variable];
    if (!*leaf || !strcmp(leaf, x->leaf))
        return *leaf;
    if (strstr(x->leaf, "_l") && v->family == MGPU_FAMILY_TORCH)
        return false; /* weight_ih_l0: nothing else will do */
    for (int i = 0; i < 3 && names[x->role][i]; i++)
        if (!strcmp(leaf, names[x->role][i]))
            return true;
    return false;
}

/* Whether a value that this node reads comes from one that is marked. */
static bool reads_marked(const struct mgpu_variables *v, const struct mgpu_onnx_node *node,
                         const bool *marked)
{
    for (int i = 0; i < node->inputs; i++) {
        const struct mgpu_weight_flow_value *value =
            *node->input[i] ? mgpu_weight_flow_get(v->flow, node->input[i]) : NULL;
        if (value && value->node >= 0 && marked[value->node])
            return true;
    }
    return false;
}

bool mgpu_variable_layer_before(const struct mgpu_variables *v, int a, int b)
{
    int from = v->layer[a].node, to = v->layer[b].node;
    bool *marked = mgpu_xcalloc((size_t)v->model->node_total, sizeof *marked);
    marked[from] = true;
    for (int i = from + 1; i <= to; i++) /* nodes are in the order in which they can run */
        marked[i] = reads_marked(v, v->model->all[i], marked);
    bool out = from < to && marked[to];
    free(marked);
    return out;
}
