#include "runtime/graph/graph.h"

#include "runtime/base/status.h"
#include "runtime/graph/alike.h"
#include "runtime/graph/fold.h"
#include "runtime/graph/step_scalar.h"
#include "runtime/ops/op.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mgpu_graph *mgpu_graph_new(void)
{
    struct mgpu_graph *g = mgpu_xcalloc(1, sizeof *g);
    g->arena = mgpu_arena_new();
    g->scalars = MGPU_NEW_ARRAY(g->arena, struct mgpu_value *, MGPU_SCALARS);
    g->float_type = MGPU_FLOAT;
    g->symbols[MGPU_BATCH] = "N";
    g->batch = 1;
    g->origin = (struct mgpu_origin){.path = "", .output = "", .name = "", .type = ""};
    return g;
}

void mgpu_graph_free(struct mgpu_graph *g)
{
    if (!g)
        return;
    free(g->values);
    free(g->nodes);
    free(g->inputs);
    free(g->parameters);
    free(g->outputs);
    free(g->output_names);
    mgpu_arena_free(g->arena);
    free(g);
}

static struct mgpu_value *add_value(struct mgpu_graph *g, enum mgpu_value_kind kind,
                                    const char *name, enum mgpu_dtype type, int rank,
                                    const struct mgpu_dim *dims)
{
    assert(rank >= 0 && rank <= MGPU_MAX_RANK);
    struct mgpu_value *v = MGPU_NEW(g->arena, struct mgpu_value);
    v->id = g->value_count;
    v->kind = kind;
    v->type = type;
    v->rank = rank;
    if (rank)
        memcpy(v->dims, dims, sizeof *dims * (size_t)rank);
    v->name = name ? mgpu_arena_string(g->arena, name)
                   : mgpu_arena_format(g->arena, "%%%d", g->value_count);
    g->values = mgpu_grow(g->values, (size_t)g->value_count, sizeof *g->values);
    g->values[g->value_count++] = v;
    return v;
}

struct mgpu_value *mgpu_graph_input(struct mgpu_graph *g, const char *name, enum mgpu_dtype type,
                                    int rank, const struct mgpu_dim *dims)
{
    struct mgpu_value *v = add_value(g, MGPU_VALUE_INPUT, name, type, rank, dims);
    v->index = g->input_count;
    g->inputs = mgpu_grow(g->inputs, (size_t)g->input_count, sizeof *g->inputs);
    g->inputs[g->input_count++] = v;
    return v;
}

struct mgpu_value *mgpu_graph_parameter(struct mgpu_graph *g, const char *name,
                                        enum mgpu_parameter_role role, enum mgpu_dtype type,
                                        int rank, const struct mgpu_dim *dims)
{
    struct mgpu_value *v = add_value(g, MGPU_VALUE_PARAMETER, name, type, rank, dims);
    v->index = g->parameter_count;
    g->parameters = mgpu_grow(g->parameters, (size_t)g->parameter_count, sizeof *g->parameters);
    g->parameters[g->parameter_count++] =
        (struct mgpu_parameter){.name = v->name, .role = role, .value = v};
    return v;
}

struct mgpu_value *mgpu_graph_constant(struct mgpu_graph *g, const char *name, enum mgpu_dtype type,
                                       int rank, const struct mgpu_dim *dims, const void *data,
                                       const struct mgpu_dim *ints)
{
    struct mgpu_value *v = add_value(g, MGPU_VALUE_CONSTANT, name, type, rank, dims);
    size_t n = (size_t)mgpu_value_count(v);
    v->data = mgpu_arena_copy(g->arena, data, n * mgpu_dtype_size(type));
    if (ints)
        v->ints = mgpu_arena_copy(g->arena, ints, n * sizeof *ints);
    return v;
}

struct mgpu_value *mgpu_graph_scalar(struct mgpu_graph *g, int which, const char *name)
{
    assert(which >= 0 && which < MGPU_SCALARS);
    struct mgpu_value **v = &g->scalars[which];
    if (!*v) {
        *v = add_value(g, MGPU_VALUE_SCALAR, name, MGPU_DOUBLE, 0, NULL);
        (*v)->index = which;
    }
    return *v;
}

void mgpu_graph_output(struct mgpu_graph *g, const char *name, struct mgpu_value *value)
{
    size_t n = (size_t)g->output_count;
    g->outputs = mgpu_grow(g->outputs, n, sizeof *g->outputs);
    g->output_names = mgpu_grow(g->output_names, n, sizeof *g->output_names);
    g->outputs[n] = value;
    g->output_names[n] = mgpu_arena_string(g->arena, name);
    g->output_count++;
}

static bool can_fold(const struct mgpu_node *node)
{
    if (node->op->flags & (MGPU_OP_NO_FOLD | MGPU_OP_COMMUNICATION))
        return false;
    for (int i = 0; i < node->inputs; i++)
        if (node->input[i] && node->input[i]->kind != MGPU_VALUE_CONSTANT)
            return false;
    return true;
}

static int check_arity(const struct mgpu_op *op, int inputs, struct mgpu_value *const *input)
{
    bool variadic = op->flags & MGPU_OP_VARIADIC;
    if (inputs < op->min_inputs || (!variadic && inputs > op->max_inputs))
        return mgpu_fail(MGPU_EINTERNAL, "%s does not take %d inputs", op->name, inputs);
    for (int i = 0; i < op->min_inputs; i++)
        if (!input[i])
            return mgpu_fail(MGPU_EINVALID, "%s: input %d is missing", op->name, i);
    return 0;
}

static int check_outputs(const struct mgpu_node *node)
{
    for (int i = 0; i < node->outputs; i++) {
        const struct mgpu_value *v = node->output[i];
        int64_t dims[MGPU_MAX_RANK], count;
        mgpu_value_dims(v, dims);
        MGPU_TRY(mgpu_count(&count, v->type, v->rank, dims));
    }
    return 0;
}

static int append(struct mgpu_graph *g, struct mgpu_node *node)
{
    MGPU_TRY(node->op->shape(node));
    MGPU_TRY(check_outputs(node));
    if (!g->unfolded && can_fold(node))
        return mgpu_fold(g, node);
    node->id = g->node_count;
    g->nodes = mgpu_grow(g->nodes, (size_t)g->node_count, sizeof *g->nodes);
    g->nodes[g->node_count++] = node;
    return 0;
}

int mgpu_graph_node(struct mgpu_graph *g, const struct mgpu_op *op, const void *attrs, int inputs,
                    struct mgpu_value *const *input, int outputs, struct mgpu_value **out)
{
    char text[MGPU_VALUE_TEXT];
    MGPU_TRY(mgpu_prefix(check_arity(op, inputs, input), "%s", mgpu_origin_text(text, &g->origin)));
    struct mgpu_node *node = MGPU_NEW(g->arena, struct mgpu_node);
    node->op = op;
    node->attrs = attrs ? mgpu_arena_copy(g->arena, attrs, op->attrs_size) : NULL;
    node->origin = g->origin;
    node->inputs = inputs;
    node->input = mgpu_arena_copy(g->arena, input, sizeof *input * (size_t)inputs);
    node->outputs = outputs;
    node->output = MGPU_NEW_ARRAY(g->arena, struct mgpu_value *, outputs);
    for (int i = 0; i < outputs; i++) {
        node->output[i] = add_value(g, MGPU_VALUE_RESULT, NULL, MGPU_UNDEFINED, 0, NULL);
        node->output[i]->producer = node;
        node->output[i]->output = i;
    }
    int rc = append(g, node);
    if (rc < 0)
        return *g->origin.type ? mgpu_prefix(rc, "%s", mgpu_origin_text(text, &g->origin)) : rc;
    for (int i = 0; i < outputs; i++)
        out[i] = node->output[i];
    return 0;
}

static void need(bool *needed, const struct mgpu_value *v)
{
    if (v && v->kind == MGPU_VALUE_RESULT)
        needed[v->producer->id] = true;
}

void mgpu_graph_prune(struct mgpu_graph *g)
{
    bool *needed = mgpu_xcalloc((size_t)g->node_count, sizeof *needed);
    int kept = 0;
    for (int i = 0; i < g->output_count; i++)
        need(needed, g->outputs[i]);
    for (int i = 0; i < g->parameter_count; i++) {
        need(needed, g->parameters[i].gradient);
        need(needed, g->parameters[i].next);
    }
    for (int n = g->node_count - 1; n >= 0; n--) {
        needed[n] = needed[n] || g->nodes[n]->op->flags & MGPU_OP_COMMUNICATION;
        for (int i = 0; needed[n] && i < g->nodes[n]->inputs; i++)
            need(needed, g->nodes[n]->input[i]);
    }
    for (int n = 0; n < g->node_count; n++)
        if (needed[n]) {
            g->nodes[kept] = g->nodes[n];
            g->nodes[kept]->id = kept;
            kept++;
        }
    g->node_count = kept;
    free(needed);
}

/* ---- Order ----------------------------------------------------------------------------------- */

struct sort {
    struct mgpu_node **done;
    int count;
    bool *begun;              /* by node id */
    struct mgpu_node **waits; /* nodes whose inputs are being looked at, each for the one above */
    int *input;               /* of those: the next to look at */
};

static struct mgpu_node *maker(const struct sort *s, const struct mgpu_value *v)
{
    bool fresh = v && v->kind == MGPU_VALUE_RESULT && !s->begun[v->producer->id];
    return fresh ? v->producer : NULL;
}

/* What makes `v`, behind what that needs. */
static void sort_from(struct sort *s, const struct mgpu_value *v)
{
    int depth = 0;
    for (struct mgpu_node *next = maker(s, v); next || depth;) {
        if (next) {
            s->begun[next->id] = true;
            s->input[depth] = 0;
            s->waits[depth++] = next;
            next = NULL;
        }
        struct mgpu_node *node = s->waits[depth - 1];
        int *i = &s->input[depth - 1];
        while (!next && *i < node->inputs)
            next = maker(s, node->input[(*i)++]);
        if (!next) {
            s->done[s->count++] = node;
            depth--;
        }
    }
}

void mgpu_graph_sort(struct mgpu_graph *g)
{
    size_t n = (size_t)g->node_count + 1;
    struct sort s = {.done = mgpu_xcalloc(n, sizeof *s.done)};
    s.begun = mgpu_xcalloc(n, sizeof *s.begun);
    s.waits = mgpu_xcalloc(n, sizeof *s.waits);
    s.input = mgpu_xcalloc(n, sizeof *s.input);
    for (int i = 0; i < g->output_count; i++)
        sort_from(&s, g->outputs[i]);
    for (int i = 0; i < g->parameter_count; i++)
        sort_from(&s, g->parameters[i].next);
    for (int i = 0; i < g->node_count; i++)
        if (!s.begun[i])
            s.done[s.count++] = g->nodes[i];
    memcpy(g->nodes, s.done, sizeof *g->nodes * (size_t)s.count);
    for (int i = 0; i < s.count; i++)
        g->nodes[i]->id = i;
    free(s.done);
    free(s.begun);
    free(s.waits);
    free(s.input);
}

void mgpu_graph_give(struct mgpu_value *v, struct mgpu_value *made)
{
    struct mgpu_value old = *v;
    v->producer = made->producer;
    v->output = made->output;
    v->producer->output[v->output] = v;
    made->producer = old.producer;
    made->output = old.output;
    made->producer->output[made->output] = made;
}

bool mgpu_graph_set_batch(struct mgpu_graph *g, int64_t batch)
{
    for (int i = 0; i < g->value_count; i++)
        for (int k = 0; k < g->values[i]->rank; k++)
            if (g->values[i]->dims[k].opaque)
                return false;
    for (int i = 0; i < g->value_count; i++)
        for (int k = 0; k < g->values[i]->rank; k++) {
            struct mgpu_dim *d = &g->values[i]->dims[k];
            for (int power = d->power[MGPU_BATCH]; power > 0; power--)
                d->value = d->value / g->batch * batch;
        }
    g->batch = batch;
    return true;
}

void mgpu_graph_whole(struct mgpu_graph *g)
{
    if (!g->whole)
        g->whole = mgpu_arena_copy(g->arena, &g->origin, sizeof g->origin);
}

int64_t mgpu_value_count(const struct mgpu_value *v)
{
    int64_t n = 1;
    for (int i = 0; i < v->rank; i++)
        n *= v->dims[i].value;
    return n;
}

int mgpu_stored_dims(int block, int rank, const int64_t *dims, int64_t stored[MGPU_MAX_RANK + 1])
{
    memcpy(stored, dims, sizeof *dims * (size_t)rank);
    if (!block)
        return rank;
    stored[1] = (dims[1] + block - 1) / block;
    stored[rank] = block;
    return rank + 1;
}

int64_t mgpu_value_bytes(const struct mgpu_value *v)
{
    int64_t dims[MGPU_MAX_RANK], stored[MGPU_MAX_RANK + 1];
    int64_t bytes = (int64_t)mgpu_dtype_size(v->type);
    mgpu_value_dims(v, dims);
    for (int i = mgpu_stored_dims(v->block, v->rank, dims, stored); i > 0; i--)
        bytes *= stored[i - 1];
    return bytes;
}

void mgpu_value_dims(const struct mgpu_value *v, int64_t dims[MGPU_MAX_RANK])
{
    for (int i = 0; i < v->rank; i++)
        dims[i] = v->dims[i].value;
}

char *mgpu_value_text(char text[MGPU_VALUE_TEXT], const struct mgpu_graph *g,
                      const struct mgpu_value *v)
{
    char dim[MGPU_DIM_TEXT];
    int used = snprintf(text, MGPU_VALUE_TEXT, "%s[", mgpu_dtype_name(v->type));
    for (int i = 0; i < v->rank && used < MGPU_VALUE_TEXT; i++)
        used += snprintf(text + used, (size_t)(MGPU_VALUE_TEXT - used), "%s%s", i ? "," : "",
                         mgpu_dim_text(dim, v->dims[i], g ? g->symbols : NULL));
    if (used < MGPU_VALUE_TEXT)
        used += snprintf(text + used, (size_t)(MGPU_VALUE_TEXT - used), "]");
    if (v->block && used < MGPU_VALUE_TEXT)
        snprintf(text + used, (size_t)(MGPU_VALUE_TEXT - used), ":%d", v->block);
    return text;
}

char *mgpu_origin_text(char text[MGPU_VALUE_TEXT], const struct mgpu_origin *o)
{
    if (*o->name)
        snprintf(text, MGPU_VALUE_TEXT, "node '%s%s' (%s)", o->path, o->name, o->type);
    else
        snprintf(text, MGPU_VALUE_TEXT, "%s giving '%s'", *o->type ? o->type : "node", o->output);
    return text;
}

static const struct mgpu_value *batch_of(const struct mgpu_node *node)
{
    for (int i = 0; i < node->inputs; i++)
        if (node->input[i] && mgpu_batch_axis(node->input[i]) >= 0)
            return node->input[i];
    return NULL;
}

char *mgpu_lost_batch_text(char text[MGPU_LOST_TEXT], const struct mgpu_graph *g,
                           const struct mgpu_value *value)
{
    char node[MGPU_VALUE_TEXT], to[MGPU_VALUE_TEXT], from[MGPU_VALUE_TEXT];
    bool *needed = mgpu_xcalloc((size_t)g->node_count + 1, sizeof *needed);
    *text = 0;
    need(needed, value);
    for (int n = g->node_count - 1; n >= 0; n--) {
        const struct mgpu_node *x = g->nodes[n];
        const struct mgpu_value *batch = needed[n] ? batch_of(x) : NULL;
        if (batch)
            snprintf(text, MGPU_LOST_TEXT, "%s makes %s of %s", mgpu_origin_text(node, &x->origin),
                     mgpu_value_text(to, g, x->output[0]), mgpu_value_text(from, g, batch));
        for (int i = 0; needed[n] && !batch && i < x->inputs; i++)
            need(needed, x->input[i]);
    }
    free(needed);
    return text;
}
