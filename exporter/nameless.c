#include "exporter/nameless.h"

#include "exporter/scopes.h"
#include "exporter/variable_reader.h"

#include <string.h>

enum { MOST = 4 }; /* three products for queries, keys and values, and the output's */

struct found { /* in the graph's order */
    int count; /* may be more than are kept */
    int place[MOST];
    struct mgpu_variable *variable[MOST];
};

/* A module, and what in it has no name. */
struct module {
    struct mgpu_variables *v;
    int layer;
    struct found kernels, biases, scales, shifts; /* of products; by Mul and by Add */
    int softmax;   /* the place of the module's softmax, or of all of its attention; -1: none */
    bool is_plain; /* it does nothing but multiply and add */
    bool is_dynamo;
    bool is_norm; /* it has an InstanceNormalization */
};

static struct mgpu_variable_reader reader_of(const struct mgpu_variables *v,
                                             const struct mgpu_variable *x)
{
    struct mgpu_variable_reader r = {0};
    mgpu_variable_reader_of(&r, v, &v->weights->weight[x->weight].holder[x->holder]);
    return r;
}

static const struct mgpu_array *array_of(const struct mgpu_variables *v,
                                         const struct mgpu_variable *x)
{
    const struct mgpu_holder *h = &v->weights->weight[x->weight].holder[x->holder];
    return &v->model->initializer[h->initializer].array;
}

static void insert(struct found *f, struct mgpu_variable *x, int place)
{
    if (f->count++ >= MOST)
        return;
    int at = f->count - 1;
    for (; at > 0 && place < f->place[at - 1]; at--) {
        f->place[at] = f->place[at - 1];
        f->variable[at] = f->variable[at - 1];
    }
    f->place[at] = place;
    f->variable[at] = x;
}

static bool is_nameless(const struct mgpu_variables *v, const struct mgpu_variable *x)
{
    return !*mgpu_scope_dotted(v->arena, x->own).op && !reader_of(v, x).recurrent &&
           (x->role == MGPU_VAR_KERNEL || x->role == MGPU_VAR_BIAS || x->role == MGPU_VAR_OTHER);
}

static struct found *list_of(struct module *m, const struct mgpu_variable *x,
                             const struct mgpu_onnx_node *reader)
{
    return x->role == MGPU_VAR_KERNEL     ? &m->kernels
           : x->role == MGPU_VAR_BIAS     ? &m->biases
           : !strcmp(reader->type, "Mul") ? &m->scales
                                          : &m->shifts;
}

/* What the nodes of the module are, by the name of its scope, "/enc/linear". */
static void look_at_nodes(struct module *m, const char *scope)
{
    static const char *const plain[] = {"MatMul", "Gemm", "Conv",     "ConvTranspose",
                                        "Add",    "Cast", "Constant", "Transpose"};
    m->softmax = -1;
    m->is_plain = true;
    for (int i = 0; i < m->v->model->node_total; i++) {
        const struct mgpu_onnx_node *node = m->v->model->all[i];
        bool known = false;
        if (strcmp(node->layer, scope))
            continue;
        for (size_t k = 0; k < sizeof plain / sizeof *plain; k++)
            known |= !strcmp(node->type, plain[k]);
        m->is_plain &= known;
        if (!strcmp(node->type, "Softmax") || !strcmp(node->type, "Attention"))
            m->softmax = node->index;
        m->is_norm |= !strcmp(node->type, "InstanceNormalization");
    }
}

/* false: the module has nothing without a name, or TorchScript did not make it. */
static bool look_at(struct module *m, struct mgpu_variables *v, int layer)
{
    const char *scope = "";
    *m = (struct module){.v = v, .layer = layer};
    for (int i = 0; i < v->count; i++) {
        struct mgpu_variable *x = &v->variable[i];
        if (x->layer != layer || !is_nameless(v, x))
            continue;
        const struct mgpu_onnx_node *node = reader_of(v, x).node;
        scope = node->layer;
        insert(list_of(m, x, node), x, node->index);
    }
    if (!*scope || v->layer[layer].guessed)
        return false;
    m->is_dynamo = *scope != '/';
    look_at_nodes(m, scope);
    return true;
}

/* ---- Attention ------------------------------------------------------------------------------- */

static int layer_called(const struct mgpu_variables *v, const char *path)
{
    for (int i = 0; i < v->layers; i++)
        if (!strcmp(v->layer[i].path, path))
            return i;
    return -1;
}

/* The module's layer out_proj, which it multiplies with itself; NULL: none has the name. */
static const struct mgpu_variable *out_proj(const struct mgpu_variables *v, const char *path)
{
    int layer = layer_called(v, path);
    for (int i = 0; i < v->count && layer >= 0; i++)
        if (v->variable[i].layer == layer && v->variable[i].role == MGPU_VAR_KERNEL)
            return &v->variable[i];
    return NULL;
}

/* The last product, behind the softmax; NULL: it is none. */
static struct mgpu_variable *take_last(struct module *m)
{
    struct found *k = &m->kernels;
    if (k->count < 1 || k->place[k->count - 1] < m->softmax)
        return NULL;
    return k->variable[--k->count];
}

static void make_layer(struct module *m, struct mgpu_variable *x, const char *path)
{
    struct mgpu_variables *v = m->v;
    v->layer = mgpu_grow(v->layer, (size_t)v->layers, sizeof *v->layer);
    v->layer[v->layers] = v->layer[m->layer];
    v->layer[v->layers].path = path;
    x->layer = v->layers++;
    v->assumed = v->assumed ? v->assumed : v->layer[m->layer].path;
}

/* Whether they are one array of 3E rows, one after the other. */
static bool are_parts(const struct module *m, const struct found *f, int64_t e)
{
    int64_t rows = 0;
    for (int i = 0; i < f->count; i++) {
        const struct mgpu_variable *x = f->variable[i];
        if ((x->rank == 2 && x->dims[1] != e) ||
            array_of(m->v, x)->type != array_of(m->v, f->variable[0])->type)
            return false;
        rows += x->dims[0];
    }
    return rows == 3 * e;
}

static void join(const struct found *f, const char *leaf, int64_t e)
{
    int64_t before = 0;
    for (int i = 0; i < f->count; i++) {
        struct mgpu_variable *x = f->variable[i];
        x->leaf = leaf;
        x->layout.before = before;
        before += x->layout.count;
        x->dims[0] = 3 * e;
    }
}

/* One matrix for queries, keys and values, or, where keys or values have widths of their own,
 * three; one bias in either case. */
static bool name_attention(struct module *m)
{
    static const char *const apart[] = {"q_proj_weight", "k_proj_weight", "v_proj_weight"};
    struct found *k = &m->kernels, *b = &m->biases;
    const char *path = mgpu_arena_format(m->v->arena, "%s/out_proj", m->v->layer[m->layer].path);
    const struct mgpu_variable *named = out_proj(m->v, path);
    if (m->softmax < 0 || k->count > MOST || b->count > MOST)
        return false;
    struct mgpu_variable *last = named || m->is_dynamo ? NULL : take_last(m);
    int64_t e = named ? named->dims[1] : last ? last->dims[1] : 0;
    bool parts = are_parts(m, k, e);
    if (!e || (k->count && k->place[k->count - 1] > m->softmax) ||
        (k->count && !parts && k->count != 3) || (b->count && !are_parts(m, b, e)))
        return false;
    if (parts)
        join(k, "in_proj_weight", e);
    for (int i = 0; i < k->count && !parts; i++)
        k->variable[i]->leaf = apart[i];
    join(b, "in_proj_bias", e);
    if (last)
        make_layer(m, last, path);
    return true;
}

/* ---- Group normalisation --------------------------------------------------------------------- */

/* An instance normalisation, and what it scales and shifts by: [C,1,1] of PyTorch's [C]. */
static bool name_norm(struct module *m)
{
    struct mgpu_variable *pair[2] = {m->scales.variable[0], m->shifts.variable[0]};
    if (!m->is_norm || m->kernels.count || m->biases.count || m->scales.count != 1 ||
        m->shifts.count != 1)
        return false;
    for (int i = 0; i < 2; i++) {
        pair[i]->leaf = i ? "bias" : "weight";
        pair[i]->rank = 1;
        pair[i]->dims[0] = pair[i]->layout.count;
    }
    return true;
}

/* ---- All modules ----------------------------------------------------------------------------- */

void mgpu_variables_nameless(struct mgpu_variables *v)
{
    for (int l = 0, layers = v->layers; l < layers; l++) {
        struct module m;
        if (!look_at(&m, v, l) || name_attention(&m) || name_norm(&m) || m.is_dynamo ||
            (m.is_plain && m.kernels.count <= 1))
            continue;
        for (int i = 0; i < v->count; i++)
            if (v->variable[i].layer == l && is_nameless(v, &v->variable[i]))
                v->variable[i].leaf = "";
    }
}
