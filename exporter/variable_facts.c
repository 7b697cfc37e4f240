/* What may be asked of variables. */
#include "exporter/scopes.h"
#include "exporter/variables.h"
#include "importer/weight_flow.h"

#include <stdlib.h>
#include <string.h>

/* ---- Names ----------------------------------------------------------------------------------- */

size_t mgpu_variables_root(const struct mgpu_variables *v)
{
    const char *root = NULL;
    size_t n = 0;
    for (int i = 0; i < v->layers; i++) {
        const struct mgpu_variable_layer *l = &v->layer[i];
        size_t first = strcspn(l->path, "/");
        if (!*l->path || (l->guessed && !l->path[first]))
            continue; /* a made-up name */
        if (!l->path[first] || (root && strncmp(l->path, root, n)))
            return 0;
        root = l->path;
        n = first + 1;
    }
    return n;
}

const char *mgpu_variable_layer_name(const struct mgpu_variables *v, int layer, size_t root)
{
    const char *path = v->layer[layer].path;
    return path + (strchr(path, '/') ? root : 0);
}

const char *mgpu_variable_initializer(const struct mgpu_variables *v, int variable)
{
    const struct mgpu_variable *x = &v->variable[variable];
    const struct mgpu_weight *w = &v->weights->weight[x->weight];
    const struct mgpu_holder *h = &w->holder[x->holder];
    return h->added ? w->name : v->model->initializer[h->initializer].name;
}

bool mgpu_variable_is_nameless(const struct mgpu_variables *v, int variable)
{
    const struct mgpu_variable *x = &v->variable[variable];
    return v->family == MGPU_FAMILY_TORCH && (v->layer[x->layer].guessed || !*x->leaf);
}

const char *mgpu_variable_name(const struct mgpu_variables *v, int variable)
{
    const struct mgpu_variable *x = &v->variable[variable];
    const struct mgpu_variable_layer *l = &v->layer[x->layer];
    const char *way = l->direction == MGPU_WAY_FORWARD    ? "/forward"
                      : l->direction == MGPU_WAY_BACKWARD ? "/backward"
                                                          : "";
    if (mgpu_variable_is_nameless(v, variable) || !*x->leaf || (!*l->path && !l->direction))
        return *l->path || !*x->leaf ? mgpu_variable_initializer(v, variable) : x->leaf;
    char *name = mgpu_arena_format(v->arena, "%s%s/%s", l->path, way, x->leaf);
    for (char *at = name; v->family == MGPU_FAMILY_TORCH && (at = strchr(at, '/'));)
        *at = '.';
    return name;
}

bool mgpu_variable_is_constant(const struct mgpu_variables *v, int variable)
{
    return v->weights->weight[v->variable[variable].weight].role == MGPU_ROLE_CONSTANT;
}

bool mgpu_variable_is_folded(const struct mgpu_variables *v, int variable)
{
    const struct mgpu_variable *x = &v->variable[variable];
    int initializer = v->weights->weight[x->weight].holder[x->holder].initializer;
    return v->weights->folded[initializer];
}

int mgpu_variable_next_part(const struct mgpu_variables *v, int variable)
{
    const struct mgpu_variable *x = &v->variable[variable];
    int next = -1;
    for (int i = 0; i < v->count; i++) {
        const struct mgpu_variable *y = &v->variable[i];
        if (y->layer == x->layer && y->layout.before > x->layout.before &&
            !strcmp(y->leaf, x->leaf) &&
            (next < 0 || y->layout.before < v->variable[next].layout.before))
            next = i;
    }
    return next;
}

/* Of Keras's ReversibleEmbedding the graph has the table and, behind it, the turned one. */
static bool is_turned_table(const struct mgpu_variables *v, int variable)
{
    const struct mgpu_variable *x = &v->variable[variable];
    bool kernel = v->family == MGPU_FAMILY_KERAS && x->role == MGPU_VAR_KERNEL;
    for (int i = 0; i < v->count && kernel; i++)
        if (v->variable[i].weight == x->weight && v->variable[i].layer == x->layer &&
            v->variable[i].role == MGPU_VAR_EMBEDDINGS)
            return true;
    return false;
}

bool mgpu_variable_is_later_part(const struct mgpu_variables *v, int variable)
{
    return v->variable[variable].layout.before > 0 || is_turned_table(v, variable);
}

bool mgpu_variable_is_zero_bias(const struct mgpu_variables *v, int variable)
{
    const struct mgpu_variable *x = &v->variable[variable];
    const struct mgpu_holder *h = &v->weights->weight[x->weight].holder[x->holder];
    const char *type = v->model->all[v->layer[x->layer].node]->type;
    return x->role == MGPU_VAR_BIAS && v->family == MGPU_FAMILY_KERAS &&
           (!strcmp(type, "LSTM") || !strcmp(type, "GRU") || !strcmp(type, "RNN")) &&
           v->weights->zero[h->initializer];
}

/* ---- What fits ------------------------------------------------------------------------------- */

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
        [MGPU_VAR_KERNEL] = {"kernel", "weight", "depthwise_kernel"},
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

/* ---- Order ----------------------------------------------------------------------------------- */

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
    if (from == to && v->layer[a].inner >= 0 && v->layer[b].inner >= 0) {
        from = v->layer[a].inner;
        to = v->layer[b].inner;
    }
    bool *marked = mgpu_xcalloc((size_t)v->model->node_total, sizeof *marked);
    marked[from] = true;
    for (int i = from + 1; i <= to; i++) /* nodes are in the order in which they can run */
        marked[i] = reads_marked(v, v->model->all[i], marked);
    bool out = from < to && marked[to];
    free(marked);
    return out;
}
