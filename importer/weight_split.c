/* Which uses of one initializer are one parameter.
 *
 * Exporters store equal tensors once. Zeros and ones of a fresh model so become the scale, the
 * shift and the running statistics of many layers at once, and fresh copies of a layer become one.
 * What tells them from a layer that is really applied several times:
 *
 *   - TorchScript leaves an Identity that is named as the lost parameter; a parameter that is used
 *     directly by several nodes is one. Tensors that it folded have no name of their own: there the
 *     layer in the node's name decides, and the weights that stand beside it.
 *   - dynamo writes the module into each node's metadata, and merges up to 1024 elements only. A
 *     table that is looked up in one layer and a matrix in another is tied, not merged.
 *   - TensorFlow: only constant tensors are ever equal by chance.
 *   - Otherwise, for a constant tensor: the weights that stand beside it. Two nodes with the same
 *     weight matrix are one layer.
 *
 * Each use gets a key; uses of one key are one candidate. */
#include "importer/weight_parts.h"

#include <stdlib.h>
#include <string.h>

enum { DYNAMO_MERGES = 1024, MAX_CHAIN = 1000 };

struct read { /* a use, seen through Identities */
    struct mgpu_use at;
    const char *alias;
    bool merged; /* TorchScript's Identity stands between, which has no parameter's name; or
                  * dynamo's layer is another than the one that is in the tensor's name */
};

struct reads {
    int count;
    struct read *read; /* from mgpu_grow */
};

/* ---- Uses ----------------------------------------------------------------------------------- */

/* The name under which TorchScript's Identity keeps a parameter that it merged, or `otherwise`. */
static const char *alias_of(const struct mgpu_identify *in, const char *output,
                            const char *otherwise)
{
    bool plain = strspn(output, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_."
                                "-") == strlen(output);
    bool number = strspn(output, "0123456789") == strlen(output);
    return in->pytorch && !in->dynamo && plain && !number ? output : otherwise;
}

static void collect(struct mgpu_identify *in, const char *name, const char *alias, bool merged,
                    int depth, struct reads *reads)
{
    const struct mgpu_weight_flow_value *value = mgpu_weight_flow_get(in->flow, name);
    for (int i = 0; value && i < value->readers; i++) {
        const struct mgpu_onnx_node *node = in->model->all[value->reader[i].node];
        const struct mgpu_weight_flow_value *copy = NULL;
        if (!*node->domain && !strcmp(node->type, "Identity") && depth < MAX_CHAIN)
            copy = mgpu_weight_flow_get(in->flow, mgpu_weight_output(node));
        if (copy && !copy->leaves && !copy->becomes[0]) {
            const char *as = alias_of(in, copy->name, alias);
            collect(in, copy->name, as, in->pytorch && !in->dynamo && as == alias, depth + 1,
                    reads);
            continue;
        }
        reads->read = mgpu_grow(reads->read, (size_t)reads->count, sizeof *reads->read);
        reads->read[reads->count++] = (struct read){value->reader[i], alias, merged};
    }
}

/* The first keeps the initializer: rather one that has its name than one that was merged into it.
 */
static int by_place(const void *a, const void *b)
{
    const struct read *r = a, *s = b;
    const struct mgpu_use *x = &r->at, *y = &s->at;
    return r->merged != s->merged ? r->merged - s->merged
           : x->node != y->node   ? x->node - y->node
                                  : x->input - y->input;
}

/* dynamo: the layer whose name the tensor has keeps it. */
static void own_first(struct mgpu_identify *in, int initializer, struct reads *reads)
{
    const char *name = in->model->initializer[initializer].name;
    for (int i = 0; i < reads->count; i++) {
        const char *layer = in->model->all[reads->read[i].at.node]->layer;
        size_t n = strlen(layer);
        reads->read[i].merged = !n || strncmp(name, layer, n) || name[n] != '.';
    }
    qsort(reads->read, (size_t)reads->count, sizeof *reads->read, by_place);
}

/* ---- Layers --------------------------------------------------------------------------------- */

/* Whether a parameter's path goes through a module of this name. */
static bool is_module(const struct mgpu_identify *in, const char *part)
{
    size_t n = strlen(part);
    for (int i = 0; i < in->model->initializers; i++) {
        const char *name = in->model->initializer[i].name;
        for (const char *p = strstr(name, part); p; p = strstr(p + 1, part))
            if ((p == name || p[-1] == '.') && p[n] == '.')
                return true;
    }
    return false;
}

/* "conv_1" without "_1", or NULL. */
static const char *without_number(struct mgpu_arena *arena, const char *part)
{
    const char *end = strrchr(part, '_');
    if (!end || end == part || !end[1] || strspn(end + 1, "0123456789") != strlen(end + 1))
        return NULL;
    return mgpu_arena_format(arena, "%.*s", (int)(end - part), part);
}

/* Marks every module that some node was made by. */
static void list_layers(struct mgpu_identify *in)
{
    in->layers = mgpu_names_new(in->arena);
    for (int i = 0; i < in->model->node_total; i++) {
        const char *layer = in->model->all[i]->layer;
        for (const char *p = layer; *p && !mgpu_names_get(in->layers, layer); p++)
            if ((p[1] == '/' || !p[1])) {
                const char *prefix =
                    mgpu_arena_format(in->arena, "%.*s", (int)(p + 1 - layer), layer);
                mgpu_names_set(in->layers, prefix, prefix);
            }
    }
}

/* TorchScript calls the second call of "/lstm" "/lstm_1": the layer without the numbers of calls.
 * A number stays where a module has that very name. */
static const char *plain_layer(struct mgpu_identify *in, const char *layer)
{
    if (!in->pytorch || in->dynamo)
        return layer;
    const char *plain = "";
    for (const char *p = layer; *p;) {
        p += *p == '/';
        size_t n = strcspn(p, "/");
        const char *part = mgpu_arena_format(in->arena, "%.*s", (int)n, p);
        const char *base = without_number(in->arena, part);
        if (base && !is_module(in, part)) {
            const char *first = mgpu_arena_format(in->arena, "%s/%s", plain, base);
            const char *beside = mgpu_arena_format(
                in->arena, "%.*s/%s", (int)(p > layer ? p - 1 - layer : 0), layer, base);
            if (mgpu_names_get(in->layers, first) || mgpu_names_get(in->layers, beside))
                part = base;
        }
        plain = mgpu_arena_format(in->arena, "%s/%s", plain, part);
        p += n;
    }
    return plain;
}

bool mgpu_weight_same_layer(struct mgpu_identify *in, const char *a, const char *b)
{
    return !*a || !*b || !strcmp(plain_layer(in, a), plain_layer(in, b));
}

/* ---- Keys ----------------------------------------------------------------------------------- */

static bool is_one_of(const char *type, const char *const *types)
{
    for (; *types; types++)
        if (!strcmp(type, *types))
            return true;
    return false;
}

/* The initializers that are not constant among the inputs of a node, `but` one left out. */
static const char *weights_beside(struct mgpu_identify *in, const struct mgpu_onnx_node *node,
                                  int but)
{
    const char *list = "";
    for (int i = 0; i < node->inputs; i++) {
        int root = i == but ? -1 : mgpu_weight_root(in, node->input[i]);
        if (root >= 0 && in->facts[root].real && !in->facts[root].equal)
            list = mgpu_arena_format(in->arena, "%s,%d", list, in->facts[root].twin);
    }
    return list;
}

/* The other weights of the layer that this use is part of; "" when it has none. */
static const char *others(struct mgpu_identify *in, struct mgpu_use use)
{
    static const char *const linear[] = {"Conv", "ConvTranspose", "Gemm", NULL},
                             *const sums[] = {"Add", "Sub", NULL},
                             *const products[] = {"Mul", "Div", NULL};
    const struct mgpu_onnx_node *node = in->model->all[use.node];
    bool known = in->pytorch || in->tensorflow;
    if (is_one_of(node->type, sums) || (known && is_one_of(node->type, products))) {
        const struct mgpu_onnx_node *layer =
            node->inputs == 2 ? mgpu_weight_layer_of(in, node->input[1 - use.input]) : NULL;
        return layer ? weights_beside(in, layer, -1) : "";
    }
    if (is_one_of(node->type, linear) && use.input < 2)
        return "";
    return node->inputs > 2 ? weights_beside(in, node, use.input) : "";
}

/* dynamo: a module may be registered under two names, and its calls carry either. What the node
 * reads beside this tensor and is too large to be merged is the module's own: "=7", and tells it
 * better than the layer does. */
static const char *module_of(struct mgpu_identify *in, int initializer, struct mgpu_use use)
{
    const struct mgpu_onnx_node *node = in->model->all[use.node], *layer = NULL;
    if (in->dynamo && node->inputs == 2)
        layer = mgpu_weight_layer_of(in, node->input[1 - use.input]);
    if (layer && !is_one_of(node->type, (const char *const[]){"Add", NULL}))
        layer = NULL;
    const struct mgpu_onnx_node *reader = layer ? layer : node;
    for (int i = 0; in->dynamo && i < reader->inputs; i++) {
        int root = mgpu_weight_root(in, reader->input[i]);
        if (root >= 0 && root != initializer && in->facts[root].real && !in->facts[root].equal &&
            in->facts[root].count > DYNAMO_MERGES)
            return mgpu_arena_format(in->arena, "=%d", root);
    }
    return plain_layer(in, node->layer);
}

/* What the node takes the input for; both operands of a sum are one thing. */
static const char *place(struct mgpu_identify *in, struct mgpu_use use)
{
    static const char *const either[] = {"Add", "Mul", NULL};
    const struct mgpu_onnx_node *node = in->model->all[use.node];
    return is_one_of(node->type, either)
               ? node->type
               : mgpu_arena_format(in->arena, "%s%d", node->type, use.input);
}

/* Fresh copies of a layer use the tensor in the same place of several layers; a table that is tied
 * to another layer's matrix is used in several places. */
static bool are_copies(struct mgpu_identify *in, int initializer, const struct reads *reads)
{
    struct mgpu_names *layers = mgpu_names_new(in->arena);
    for (int i = 0; i < reads->count; i++) {
        const char *layer = module_of(in, initializer, reads->read[i].at);
        const char *where = place(in, reads->read[i].at), *before = mgpu_names_get(layers, where);
        if (*layer && before && strcmp(before, layer))
            return true;
        if (*layer)
            mgpu_names_set(layers, where, layer);
    }
    return false;
}

/* Whether the layers that use a tensor of unequal elements tell its parameters apart. */
static bool layers_decide(struct mgpu_identify *in, int initializer, const struct reads *reads)
{
    const struct mgpu_facts *f = &in->facts[initializer];
    bool merged = in->dynamo ? f->count <= DYNAMO_MERGES : in->pytorch && !f->named;
    return merged && reads->count > 1 && are_copies(in, initializer, reads);
}

static const char *constant_key(struct mgpu_identify *in, int initializer, const struct read *read)
{
    const struct mgpu_facts *f = &in->facts[initializer];
    const struct mgpu_onnx_node *node = in->model->all[read->at.node];
    bool norm = strstr(node->type, "Normalization") != NULL;
    const char *beside = others(in, read->at), *layer = module_of(in, initializer, read->at);
    if (in->dynamo ? f->count > DYNAMO_MERGES : in->pytorch && f->named && !read->merged)
        return ""; /* never merged, or an Identity would stand between */
    if (in->tensorflow && *beside)
        layer = "";
    if (!in->pytorch && !in->tensorflow && !norm)
        return mgpu_arena_format(in->arena, "%s|%s", beside, layer);
    if (!*beside && !*layer)
        return mgpu_arena_format(in->arena, "#%d.%d", read->at.node, read->at.input);
    return mgpu_arena_format(in->arena, "%s|%s|%s", place(in, read->at), beside, layer);
}

/* ---- Candidates ----------------------------------------------------------------------------- */

static struct mgpu_candidate *add_candidate(struct mgpu_identify *in, int initializer,
                                            const char *alias, struct mgpu_verdict verdict)
{
    in->candidate = mgpu_grow(in->candidate, (size_t)in->candidates, sizeof *in->candidate);
    struct mgpu_candidate *c = &in->candidate[in->candidates++];
    *c = (struct mgpu_candidate){.initializer = initializer, .alias = alias, .verdict = verdict};
    return c;
}

static intptr_t get(const struct mgpu_names *table, const char *key)
{
    intptr_t at = (intptr_t)mgpu_names_get(table, key);
    return at > 0 ? at : 0;
}

/* The candidate of this initializer that the read belongs to, as position + 1; one more than there
 * are: a new one. Where the layer decides, reads whose layer is not known belong to the first whose
 * is ("open": there was none so far). */
static intptr_t find_candidate(struct mgpu_identify *in, struct mgpu_names *table, const char *part,
                               const char *own, bool constant)
{
    const char *key = mgpu_arena_format(in->arena, "%s%s", part, own);
    const char *open = mgpu_arena_format(in->arena, "%s?", part);
    intptr_t at = get(table, key);
    if (!at && *own && !constant)
        at = get(table, open);
    bool made = !at;
    if (made)
        at = in->candidates + 1;
    mgpu_names_set(table, key, (void *)at);
    if (constant)
        return at;
    if (!get(table, part))
        mgpu_names_set(table, part, (void *)at);
    if (*own)
        mgpu_names_set(table, open, (void *)(intptr_t)-1);
    else if (made)
        mgpu_names_set(table, open, (void *)at);
    return at;
}

/* `table` has the candidates of this initializer by key, as position + 1. */
static void place_read(struct mgpu_identify *in, int initializer, const struct read *read,
                       struct mgpu_verdict verdict, bool by_layer, struct mgpu_names *table)
{
    bool constant = in->facts[initializer].equal;
    const char *own = constant   ? constant_key(in, initializer, read)
                      : by_layer ? module_of(in, initializer, read->at)
                                 : "";
    const char *part = mgpu_arena_format(in->arena, "%d|%s|", verdict.part, read->alias);
    intptr_t at = find_candidate(in, table, part, own, constant);
    if (at > in->candidates)
        add_candidate(in, initializer, read->alias, verdict);
    struct mgpu_candidate *c = &in->candidate[at - 1];
    if (mgpu_weight_strength(verdict.role) > mgpu_weight_strength(c->verdict.role))
        c->verdict = verdict;
    c->use = mgpu_grow(c->use, (size_t)c->uses, sizeof *c->use);
    c->use[c->uses++] = read->at;
}

static bool reads_shape(const struct mgpu_onnx_node *node)
{
    return !*node->domain && (!strcmp(node->type, "Shape") || !strcmp(node->type, "Size"));
}

/* Vectors that PyTorch's spectral norm keeps beside a weight, of which it computes its norm. */
static bool is_of_spectral_norm(const struct mgpu_identify *in, const char *name)
{
    size_t n = strlen(name), end = strlen("_u");
    if (!in->pytorch || n < end || (strcmp(name + n - end, "_u") && strcmp(name + n - end, "_v")))
        return false;
    const char *old = mgpu_arena_format(in->arena, "%.*s_orig", (int)(n - end), name);
    return mgpu_onnx_find_initializer(in->model, old) >= 0 || strstr(name, "parametrizations.");
}

static bool is_buffer(const struct mgpu_identify *in, int initializer)
{
    const struct mgpu_onnx_initializer *x = &in->model->initializer[initializer];
    return x->persistent || is_of_spectral_norm(in, x->name);
}

static void split(struct mgpu_identify *in, int initializer)
{
    struct mgpu_names *table = mgpu_names_new(in->arena);
    struct reads reads = {0};
    collect(in, in->model->initializer[initializer].name, "", false, 0, &reads);
    if (reads.count)
        qsort(reads.read, (size_t)reads.count, sizeof *reads.read, by_place);
    bool by_layer = layers_decide(in, initializer, &reads);
    if (in->dynamo && reads.count && (by_layer || in->facts[initializer].equal))
        own_first(in, initializer, &reads);
    struct mgpu_use *uses = MGPU_NEW_ARRAY(in->arena, struct mgpu_use, reads.count);
    for (int i = 0; i < reads.count; i++) {
        uses[i] = reads.read[i].at;
        struct mgpu_verdict verdict = mgpu_weight_judge(in, initializer, uses[i]);
        if (verdict.role == MGPU_ROLE_TRAINED && is_buffer(in, initializer))
            verdict = (struct mgpu_verdict){.role = MGPU_ROLE_CONSTANT, .why = "a buffer"};
        if (mgpu_weight_strength(verdict.role) > mgpu_weight_strength(in->out->role[initializer]))
            in->out->role[initializer] = verdict.role;
        if (in->facts[initializer].real && !reads_shape(in->model->all[uses[i].node]))
            place_read(in, initializer, &reads.read[i], verdict, by_layer, table);
    }
    in->out->use[initializer] = uses;
    in->out->uses[initializer] = reads.count;
    free(reads.read);
}

/* Constants of the file's nodes are numbers that the model's code wrote down: none is a weight
 * unless it is named. */
static void demote_constants(struct mgpu_identify *in)
{
    for (int i = 0; i < in->candidates; i++) {
        struct mgpu_candidate *c = &in->candidate[i];
        if (!in->model->initializer[c->initializer].constant_node)
            continue;
        if (c->verdict.role == MGPU_ROLE_TRAINED)
            c->verdict = (struct mgpu_verdict){.role = MGPU_ROLE_CONSTANT,
                                               .why = "a Constant node, not a parameter",
                                               .written = true};
        if (in->out->role[c->initializer] == MGPU_ROLE_TRAINED)
            in->out->role[c->initializer] = MGPU_ROLE_CONSTANT;
    }
}

void mgpu_weight_candidates(struct mgpu_identify *in)
{
    list_layers(in);
    for (int i = 0; i < in->model->initializers; i++)
        split(in, i);
    demote_constants(in);
}
