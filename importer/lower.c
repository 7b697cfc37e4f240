/* The walk: from the wanted outputs back to what they need, then node by node in order. */
#include "importer/lower.h"

#include "importer/lower_sequence.h"
#include "importer/lower_walk.h"
#include "runtime/base/status.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Stand where a value would: what depends on an unsupported node, and an output that its node's
 * lowering does not give. */
static struct mgpu_value poison, missing;

/* ---- What is not supported ------------------------------------------------------------------ */

static const char *first_output(const struct mgpu_onnx_node *n)
{
    for (int i = 0; i < n->outputs; i++)
        if (*n->output[i])
            return n->output[i];
    return "";
}

static const char *node_text(const struct mgpu_lower *l)
{
    const struct mgpu_onnx_node *n = l->node;
    return mgpu_arena_format(l->walk->arena, "node '%s' (%s) giving '%s'", n->name, n->type,
                             first_output(n));
}

/* The last error, without the name of the node that the graph may have put in front. */
static const char *reason(const struct mgpu_lower *l)
{
    char origin[MGPU_VALUE_TEXT];
    const char *text = mgpu_error();
    size_t n = strlen(mgpu_origin_text(origin, &l->g->origin));
    if (strncmp(text, origin, n) || strncmp(text + n, ": ", 2))
        return text;
    return text + n + 2;
}

static void collect(struct mgpu_lower *l, const char *why)
{
    struct mgpu_lower_walk *w = l->walk;
    char *text = mgpu_arena_format(w->arena, "%s: %s", node_text(l), why);
    for (int i = 0; i < w->problems; i++)
        if (!strcmp(w->problem[i], text))
            return;
    w->problem = mgpu_grow(w->problem, (size_t)w->problems, sizeof *w->problem);
    w->problem[w->problems++] = text;
    if (l->options->unsupported)
        l->options->unsupported(l->options->context, text);
}

static int report(const struct mgpu_lower_walk *w)
{
    if (!w->problems)
        return 0;
    char *all = mgpu_arena_format(w->arena, "%s", w->problem[0]);
    for (int i = 1; i < w->problems; i++)
        all = mgpu_arena_format(w->arena, "%s; %s", all, w->problem[i]);
    if (w->problems == 1)
        return mgpu_fail(MGPU_EUNSUPPORTED, "%s", all);
    return mgpu_fail(MGPU_EUNSUPPORTED, "%d nodes are not supported: %s", w->problems, all);
}

/* ---- Inputs of a node ----------------------------------------------------------------------- */

/* What is known of the input, or NULL. */
static const struct mgpu_lower_input *given(const struct mgpu_lower *l, const char *name)
{
    for (int i = 0; i < l->options->inputs; i++)
        if (!strcmp(l->options->input[i].name, name))
            return &l->options->input[i];
    return NULL;
}

static struct mgpu_value *constant_of(struct mgpu_lower *l, const char *name,
                                      const struct mgpu_array *contents)
{
    struct mgpu_dim dims[MGPU_MAX_RANK];
    for (int i = 0; i < contents->rank; i++)
        dims[i] = mgpu_dim_const(contents->dims[i]);
    return mgpu_graph_constant(l->g, name, contents->type, contents->rank, dims, contents->data,
                               NULL);
}

static int known_list(struct mgpu_lower *l, const char *name, const struct mgpu_lower_list *list,
                      struct mgpu_value **out)
{
    struct mgpu_sequence *s = mgpu_sequence_new(l, mgpu_dim_const(list->count));
    s->absent = list->absent;
    for (int i = 0; i < list->count; i++)
        s->item[i] = constant_of(l, name, &list->item[i]);
    *out = &s->value;
    mgpu_names_set(l->walk->values, name, *out);
    return 0;
}

/* An input whose contents are known is a constant of their shape. */
static int known_input(struct mgpu_lower *l, const struct mgpu_onnx_value *declared,
                       const struct mgpu_array *contents, struct mgpu_value **out)
{
    if (declared->type && contents->type != declared->type)
        return mgpu_fail(MGPU_EINVALID, "input '%s' is %s, not %s", declared->name,
                         mgpu_dtype_name(declared->type), mgpu_dtype_name(contents->type));
    *out = constant_of(l, declared->name, contents);
    mgpu_names_set(l->walk->values, declared->name, *out);
    return 0;
}

static int graph_input(struct mgpu_lower *l, const struct mgpu_onnx_value *declared,
                       struct mgpu_value **out)
{
    const struct mgpu_lower_input *in = given(l, declared->name);
    if (in && in->list)
        return known_list(l, declared->name, in->list, out);
    if (in && in->contents)
        return known_input(l, declared, in->contents, out);
    struct mgpu_dim dims[MGPU_MAX_RANK];
    enum mgpu_dtype type;
    MGPU_TRY(mgpu_prefix(mgpu_lower_type(l, declared->type, &type), "input '%s'", declared->name));
    int rank = mgpu_binder_dims(l->walk->binder, declared, dims);
    MGPU_TRY(rank);
    int64_t sizes[MGPU_MAX_RANK], count;
    for (int i = 0; i < rank; i++)
        sizes[i] = dims[i].value;
    MGPU_TRY(mgpu_prefix(mgpu_count(&count, type, rank, sizes), "input '%s'", declared->name));
    *out = mgpu_graph_input(l->g, declared->name, type, rank, dims);
    mgpu_names_set(l->walk->values, declared->name, *out);
    return 0;
}

/* The value of a name that is no initializer. */
static int named(struct mgpu_lower *l, const char *name, struct mgpu_value **out)
{
    *out = mgpu_names_get(l->walk->values, name);
    if (*out)
        return 0;
    const struct mgpu_onnx_value *declared = mgpu_names_get(l->walk->inputs, name);
    return declared ? graph_input(l, declared, out)
                    : mgpu_fail(MGPU_EINVALID, "'%s' is used before it is made", name);
}

static int weight_of(const struct mgpu_lower *l, int i, int *holder)
{
    return l->weights ? mgpu_weights_of_use(l->weights, l->node->index, i, holder) : -1;
}

/* Input i of the node: NULL when absent, `poison` when it cannot be had. */
static int input_of(struct mgpu_lower *l, int i, struct mgpu_value **out)
{
    const char *name = l->node->input[i];
    int holder = 0;
    *out = NULL;
    if (!*name)
        return 0;
    int weight = weight_of(l, i, &holder);
    if (weight >= 0) /* also through an Identity that stands for a merged parameter */
        return mgpu_walk_held(l, weight, holder, out);
    int index = mgpu_onnx_find_initializer(l->model, name);
    if (index < 0) {
        MGPU_TRY(named(l, name, out));
        if (*out == &missing) {
            collect(l, mgpu_arena_format(l->walk->arena, "output '%s' is not supported", name));
            *out = &poison;
        }
        return 0;
    }
    return mgpu_walk_constant(l, index, out);
}

struct mgpu_value *mgpu_lower_in(struct mgpu_lower *l, int i)
{
    struct mgpu_value *value = NULL;
    if (i < 0 || i >= l->node->inputs)
        return NULL;
    if (i < (int)(sizeof l->in / sizeof *l->in))
        return l->in[i];
    return input_of(l, i, &value) < 0 || value == &poison ? NULL : value;
}

struct mgpu_parameter *mgpu_lower_parameter(struct mgpu_lower *l, int i)
{
    int holder, weight = i < l->node->inputs ? weight_of(l, i, &holder) : -1;
    return weight < 0 ? NULL : &l->g->parameters[mgpu_walk_parameter(l, weight)->index];
}

/* ---- One node ------------------------------------------------------------------------------- */

struct rows {
    int count;
    const struct mgpu_lowering *row[8];
};

const struct mgpu_lowering *const mgpu_lower_families[] = {
    mgpu_lower_math,      mgpu_lower_logic,    mgpu_lower_tensor,    mgpu_lower_move,
    mgpu_lower_gather,    mgpu_lower_reduce,   mgpu_lower_linear,    mgpu_lower_conv,
    mgpu_lower_normalize, mgpu_lower_rnn,      mgpu_lower_attention, mgpu_lower_image,
    mgpu_lower_loss,      mgpu_lower_control,  mgpu_lower_sequence,  mgpu_lower_signal,
    mgpu_lower_found,     mgpu_lower_region,   mgpu_lower_roi,       mgpu_lower_quantize,
    mgpu_lower_random,    mgpu_lower_training, mgpu_lower_state,     NULL,
};

static void list_families(struct mgpu_lower_walk *w)
{
    w->families = mgpu_names_new(w->arena);
    for (int f = 0; mgpu_lower_families[f]; f++)
        for (const struct mgpu_lowering *row = mgpu_lower_families[f]; row->type; row++) {
            struct rows *rows = mgpu_names_get(w->families, row->type);
            if (!rows) {
                rows = MGPU_NEW(w->arena, struct rows);
                mgpu_names_set(w->families, row->type, rows);
            }
            rows->row[rows->count++] = row;
        }
}

static const struct mgpu_lowering *row_of(const struct mgpu_lower *l)
{
    const struct mgpu_onnx_node *n = l->node;
    const char *type =
        *n->domain ? mgpu_arena_format(l->walk->arena, "%s.%s", n->domain, n->type) : n->type;
    const struct rows *rows = mgpu_names_get(l->walk->families, type);
    for (int i = 0; rows && i < rows->count; i++)
        if (n->opset >= rows->row[i]->since &&
            (!rows->row[i]->until || n->opset <= rows->row[i]->until))
            return rows->row[i];
    return NULL;
}

static const char *why_no_row(const struct mgpu_lower *l)
{
    const struct mgpu_onnx_node *n = l->node;
    if (*n->domain)
        return mgpu_arena_format(l->walk->arena, "operator %s of domain '%s' is not supported",
                                 n->type, n->domain);
    return mgpu_arena_format(l->walk->arena, "operator %s of opset %d is not supported", n->type,
                             n->opset);
}

/* Whether an input cannot be had; l->in is filled. */
static int read_inputs(struct mgpu_lower *l, bool *poisoned)
{
    int most = (int)(sizeof l->in / sizeof *l->in);
    memset(l->in, 0, sizeof l->in);
    memset(l->out, 0, sizeof l->out);
    *poisoned = false;
    for (int i = 0; i < l->node->inputs; i++) {
        struct mgpu_value *value;
        int rc = input_of(l, i, &value);
        if (rc == MGPU_EUNSUPPORTED) {
            collect(l, reason(l));
            value = &poison;
            rc = 0;
        }
        MGPU_TRY(rc);
        *poisoned = *poisoned || value == &poison;
        if (i < most)
            l->in[i] = value;
    }
    return 0;
}

/* Values that the node made carry ONNX's names. */
static void keep_outputs(struct mgpu_lower *l, int made_from, struct mgpu_value *otherwise)
{
    int most = (int)(sizeof l->out / sizeof *l->out);
    for (int i = 0; i < l->node->outputs; i++) {
        const char *name = l->node->output[i];
        struct mgpu_value *value = otherwise ? otherwise : i < most ? l->out[i] : NULL;
        if (!*name)
            continue;
        if (value && value != otherwise && value->id >= made_from &&
            value->kind != MGPU_VALUE_INPUT)
            value->name = mgpu_arena_string(l->g->arena, name);
        mgpu_names_set(l->walk->values, name, value ? value : &missing);
    }
}

/* A Reshape behind one whose shape contradicts the batch: both are the same fault of the file. */
static void note_baked(struct mgpu_lower *l)
{
    const struct mgpu_value *shape = l->in[1];
    if (!l->walk->baked || strcmp(l->node->type, "Reshape") || !shape || shape == &poison ||
        shape->kind != MGPU_VALUE_CONSTANT || shape->ints)
        return;
    for (int64_t i = 0; i < mgpu_value_count(shape); i++)
        if (mgpu_get_int(shape->data, shape->type, i) <= 0)
            return;
    collect(l, "its shape is fixed too");
}

static bool takes_sequences(const char *type)
{
    bool known = !strcmp(type, "Identity") || !strcmp(type, "Loop");
    for (const struct mgpu_lowering *row = mgpu_lower_sequence; row->type && !known; row++)
        known = !strcmp(type, row->type);
    return known;
}

/* Whether a row that takes tensors gets a sequence. */
static bool misses_tensor(struct mgpu_lower *l, const struct mgpu_lowering *row)
{
    if (!row || takes_sequences(row->type))
        return false;
    for (int i = 0; i < (int)(sizeof l->in / sizeof *l->in); i++)
        if (l->in[i] != &poison && mgpu_as_sequence(l->in[i])) {
            collect(l, mgpu_arena_format(l->walk->arena, "input %d ('%s') is a sequence", i,
                                         l->node->input[i]));
            return true;
        }
    return false;
}

static int lower_one(struct mgpu_lower *l)
{
    bool poisoned;
    MGPU_TRY(read_inputs(l, &poisoned));
    const struct mgpu_lowering *row = row_of(l);
    poisoned = misses_tensor(l, row) || poisoned;
    if (!row)
        collect(l, why_no_row(l));
    else if (poisoned)
        note_baked(l);
    if (!row || poisoned) {
        keep_outputs(l, 0, &poison);
        return 0;
    }
    int made_from = l->g->value_count;
    int rc = mgpu_rebatch_operands(l);
    if (rc == 0)
        rc = row->lower(l);
    MGPU_TRY(mgpu_onnx_check_read(l->node)); /* before any fault that it led to */
    if (rc == 0)
        rc = mgpu_lower_put_back_dropout(l);
    if (rc == MGPU_EUNSUPPORTED) {
        l->walk->baked = l->walk->baked || !strcmp(l->node->type, "Reshape");
        collect(l, reason(l));
        keep_outputs(l, 0, &poison);
        return 0;
    }
    MGPU_TRY(rc);
    keep_outputs(l, made_from, NULL);
    return 0;
}

static int lower_node(struct mgpu_lower *l, const struct mgpu_onnx_node *node)
{
    struct mgpu_lower inner = *l;
    struct mgpu_origin before = l->g->origin;
    inner.node = node;
    l->g->origin = (struct mgpu_origin){
        .path = mgpu_arena_string(l->g->arena, node->path),
        .output = mgpu_arena_string(l->g->arena, first_output(node)),
        .name = mgpu_arena_string(l->g->arena, node->name),
        .type = mgpu_arena_string(l->g->arena, node->type),
        .role = MGPU_FORWARD,
    };
    l->walk->done[node->index] = true;
    int rc = lower_one(&inner);
    if (rc < 0) {
        mgpu_fail(rc, "%s: %s", node_text(&inner),
                  mgpu_arena_string(l->walk->arena, reason(&inner)));
        if (!l->walk->wrong && l->options->wrong)
            l->options->wrong(l->options->context, mgpu_error());
        l->walk->wrong = true;
    }
    l->g->origin = before;
    return rc;
}

/* ---- What is needed ------------------------------------------------------------------------- */

/* The nodes behind some names that are not lowered yet. */
struct needs {
    int round; /* marks what was seen for these names */
    int count;
    int *node; /* by index, from mgpu_grow */
    int pending;
    const char **name; /* still to be looked at, from mgpu_grow */
};

static void need(struct needs *needs, const char *name)
{
    needs->name = mgpu_grow(needs->name, (size_t)needs->pending, sizeof *needs->name);
    needs->name[needs->pending++] = name;
}

static void need_node(struct mgpu_lower *l, struct needs *needs, const struct mgpu_onnx_node *n)
{
    if (!n || l->walk->done[n->index] || l->walk->seen[n->index] == needs->round)
        return;
    l->walk->seen[n->index] = needs->round;
    needs->node = mgpu_grow(needs->node, (size_t)needs->count, sizeof *needs->node);
    needs->node[needs->count++] = n->index;
    for (int i = 0; i < n->inputs; i++)
        if (*n->input[i])
            need(needs, n->input[i]);
    if (!strcmp(n->type, "Gradient")) /* names what it differentiates */
        need(needs, mgpu_onnx_string(l->model, n, "y", ""));
}

/* Goes back from the pending names; marks the graph inputs that are met. */
static void trace(struct mgpu_lower *l, struct needs *needs, bool *input)
{
    while (needs->pending) {
        const char *name = needs->name[--needs->pending];
        const struct mgpu_onnx_value *declared = mgpu_names_get(l->walk->inputs, name);
        if (declared)
            input[declared - l->model->graph.input] = true;
        need_node(l, needs, mgpu_names_get(l->walk->makers, name));
    }
}

static int by_index(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static int make_inputs(struct mgpu_lower *l, const bool *needed)
{
    for (int i = 0; i < l->model->graph.inputs; i++) {
        struct mgpu_value *value;
        if (needed[i])
            MGPU_TRY(named(l, l->model->graph.input[i].name, &value));
    }
    return 0;
}

/* Lowers what these names need, in the file's order; inputs first, in theirs. */
static int lower_names(struct mgpu_lower *l, int count, const char *const *names)
{
    struct needs needs = {.round = ++l->walk->rounds};
    bool *input = mgpu_xcalloc((size_t)l->model->graph.inputs + 1, sizeof *input);
    for (int i = 0; i < count; i++)
        if (*names[i])
            need(&needs, names[i]);
    trace(l, &needs, input);
    int rc = make_inputs(l, input);
    if (needs.count)
        qsort(needs.node, (size_t)needs.count, sizeof *needs.node, by_index);
    for (int i = 0; i < needs.count && rc >= 0; i++)
        if (!l->walk->done[needs.node[i]])
            rc = lower_node(l, l->model->all[needs.node[i]]);
    free(needs.node);
    free(needs.name);
    free(input);
    return rc;
}

static void list_makers(struct mgpu_lower *l, const struct mgpu_onnx_body *body)
{
    for (int i = 0; i < body->nodes; i++)
        for (int k = 0; k < body->node[i].outputs; k++)
            if (*body->node[i].output[k])
                mgpu_names_set(l->walk->makers, body->node[i].output[k], &body->node[i]);
}

const struct mgpu_onnx_body *mgpu_lower_body_called(const struct mgpu_lower *l, const char *name)
{
    for (int i = 0; i < l->node->bodies; i++)
        if (!strcmp(l->node->body_name[i], name))
            return &l->node->body[i];
    return NULL;
}

static void forget(struct mgpu_lower *l, const struct mgpu_onnx_body *body)
{
    for (int i = 0; i < body->nodes; i++) {
        l->walk->done[body->node[i].index] = false;
        for (int k = 0; k < body->node[i].bodies; k++)
            forget(l, &body->node[i].body[k]);
    }
}

int mgpu_lower_body(struct mgpu_lower *l, const struct mgpu_onnx_body *body,
                    struct mgpu_value *const *in, struct mgpu_value **out)
{
    const char **names = MGPU_NEW_ARRAY(l->walk->arena, const char *, body->outputs);
    list_makers(l, body);
    forget(l, body);
    for (int i = 0; in && i < body->inputs; i++)
        if (in[i])
            mgpu_names_set(l->walk->values, body->input[i].name, in[i]);
    for (int i = 0; i < body->outputs; i++)
        names[i] = body->output[i].name;
    MGPU_TRY(lower_names(l, body->outputs, names));
    for (int i = 0; i < body->outputs; i++) {
        MGPU_TRY(named(l, names[i], &out[i]));
        if (out[i] == &poison || out[i] == &missing)
            return mgpu_fail(MGPU_EUNSUPPORTED, "its body is not supported");
    }
    return 0;
}

/* ---- The whole ------------------------------------------------------------------------------ */

/* A wanted name that is a stored tensor: a constant. */
static int stored_output(struct mgpu_lower *l, const char *name, struct mgpu_value **out)
{
    int index = mgpu_onnx_find_initializer(l->model, name);
    return index < 0 ? named(l, name, out) : mgpu_walk_constant(l, index, out);
}

/* A sample's result must come out as a sample: an output that the file declares with the batch in
 * front may not have lost it (a Reshape with the example batch written into it). */
static int check_output(const struct mgpu_lower *l, const struct mgpu_onnx_value *declared,
                        const struct mgpu_value *value)
{
    char text[MGPU_VALUE_TEXT];
    const char *symbol =
        declared->rank > 0 && declared->rank <= MGPU_MAX_RANK ? declared->symbols[0] : NULL;
    if (!symbol || strcmp(symbol, l->g->symbols[MGPU_BATCH]) || !value->rank ||
        value->dims[0].value == l->g->batch)
        return 0;
    return mgpu_fail(MGPU_EINVALID,
                     "output '%s' should have the batch '%s' (%" PRId64 ") as axis 0 but is %s",
                     declared->name, symbol, l->g->batch, mgpu_value_text(text, l->g, value));
}

/* A sequence comes out item by item: "name#0", "name#1" ... */
static int add_items(struct mgpu_lower *l, const char *name, const struct mgpu_sequence *s)
{
    for (int64_t i = 0; i < s->size.value; i++)
        mgpu_graph_output(l->g, mgpu_arena_format(l->g->arena, "%s#%" PRId64, name, i), s->item[i]);
    return 0;
}

static int add_output(struct mgpu_lower *l, const char *name)
{
    struct mgpu_value *value;
    MGPU_TRY(stored_output(l, name, &value));
    if (value == &missing)
        return mgpu_fail(MGPU_EUNSUPPORTED, "output '%s' is not supported", name);
    if (mgpu_as_sequence(value))
        return add_items(l, name, mgpu_as_sequence(value));
    for (int i = 0; i < l->model->graph.outputs; i++)
        if (!strcmp(l->model->graph.output[i].name, name))
            MGPU_TRY(check_output(l, &l->model->graph.output[i], value));
    mgpu_graph_output(l->g, name, value);
    return 0;
}

static int check_wanted(const struct mgpu_lower *l, int count, const char *const *names)
{
    for (int i = 0; i < count; i++)
        if (!mgpu_names_get(l->walk->makers, names[i]) &&
            !mgpu_names_get(l->walk->inputs, names[i]) &&
            mgpu_onnx_find_initializer(l->model, names[i]) < 0)
            return mgpu_fail(MGPU_EINVALID, "the model has no value called '%s'", names[i]);
    return 0;
}

static int lower_outputs(struct mgpu_lower *l)
{
    int count = l->options->wanted ? l->options->wanted_count : l->model->graph.outputs;
    const char **names = MGPU_NEW_ARRAY(l->walk->arena, const char *, count);
    for (int i = 0; i < count; i++)
        names[i] = l->options->wanted ? l->options->wanted[i] : l->model->graph.output[i].name;
    MGPU_TRY(check_wanted(l, count, names));
    MGPU_TRY(lower_names(l, count, names));
    MGPU_TRY(report(l->walk));
    for (int i = 0; i < count; i++)
        MGPU_TRY(add_output(l, names[i]));
    return 0;
}

static void start(struct mgpu_lower *l, struct mgpu_lower_walk *w)
{
    int weights = l->weights ? l->weights->count : 0;
    l->walk = w;
    w->values = mgpu_names_new(w->arena);
    w->makers = mgpu_names_new(w->arena);
    w->inputs = mgpu_names_new(w->arena);
    w->places = mgpu_names_new(w->arena);
    w->done = MGPU_NEW_ARRAY(w->arena, bool, l->model->node_total);
    w->seen = MGPU_NEW_ARRAY(w->arena, int, l->model->node_total);
    w->constant = MGPU_NEW_ARRAY(w->arena, struct mgpu_value *, l->model->initializers);
    w->parameter = MGPU_NEW_ARRAY(w->arena, struct mgpu_value *, weights);
    w->holder = MGPU_NEW_ARRAY(w->arena, struct mgpu_value **, weights);
    list_families(w);
    list_makers(l, &l->model->graph);
    for (int i = 0; i < l->model->graph.inputs; i++)
        mgpu_names_set(w->inputs, l->model->graph.input[i].name, &l->model->graph.input[i]);
}

static void note_rebatched(struct mgpu_lower *l)
{
    const struct mgpu_lower_walk *w = l->walk;
    if (!w->rebatched || !l->options->note)
        return;
    l->options->note(l->options->context,
                     mgpu_arena_format(w->arena,
                                       "the file holds the batch of its export, %" PRId64
                                       ", in %d places (first: node '%s' (%s)): it stands for "
                                       "the batch",
                                       w->example, w->rebatched, w->rebatched_at->name,
                                       w->rebatched_at->type));
}

int mgpu_lower(struct mgpu_graph **out, struct mgpu_onnx_model *model,
               const struct mgpu_weights *weights, const struct mgpu_lower_options *options)
{
    struct mgpu_lower_walk walk = {.arena = mgpu_arena_new()};
    struct mgpu_lower l = {
        .g = mgpu_graph_new(),
        .model = model,
        .weights = weights,
        .options = options,
    };
    l.g->float_type = options->float_type;
    start(&l, &walk);
    int rc = mgpu_binder_new(&walk.binder, l.g, model, options);
    if (rc >= 0) {
        walk.example = mgpu_binder_example(walk.binder);
        rc = lower_outputs(&l);
    }
    if (rc >= 0)
        note_rebatched(&l);
    free(walk.problem);
    mgpu_arena_free(walk.arena);
    *out = rc < 0 ? NULL : l.g;
    if (rc < 0)
        mgpu_graph_free(l.g);
    return rc;
}

struct mgpu_value *mgpu_lowered_value(const struct mgpu_graph *g, const char *name)
{
    for (int i = 0; i < g->output_count; i++)
        if (!strcmp(g->output_names[i], name))
            return g->outputs[i];
    for (int i = 0; i < g->value_count; i++)
        if (!strcmp(g->values[i]->name, name))
            return g->values[i];
    return NULL;
}
