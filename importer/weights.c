/* Which initializer is which weight: the main line.
 *
 * Every initializer's uses are judged (weight_kind.c), uses that are one parameter are put together
 * (weight_split.c), copies of one parameter are joined (weight_tie.c), and the user's patterns
 * choose among them (weight_choose.c). */
#include "importer/weights.h"

#include "importer/weight_parts.h"
#include "runtime/base/status.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char *mgpu_weight_role_name(enum mgpu_weight_role role)
{
    static const char *const names[] = {
        [MGPU_ROLE_TRAINED] = "trained",     [MGPU_ROLE_FROZEN] = "frozen",
        [MGPU_ROLE_STATISTIC] = "statistic", [MGPU_ROLE_SHAPE] = "shape",
        [MGPU_ROLE_CONSTANT] = "constant",   [MGPU_ROLE_UNUSED] = "unused"};
    return names[role];
}

/* ---- Set-up --------------------------------------------------------------------------------- */

static bool has_scopes(const struct mgpu_onnx_model *model)
{
    for (int i = 0; i < model->node_total; i++) {
        const Onnx__NodeProto *proto = model->all[i]->proto;
        for (size_t m = 0; proto && m < proto->n_metadata_props; m++)
            if (!strcmp(proto->metadata_props[m]->key, "pkg.torch.onnx.name_scopes"))
                return true;
    }
    return false;
}

static void list_names(struct mgpu_identify *in)
{
    const struct mgpu_onnx_model *m = in->model;
    in->names = mgpu_names_new(in->arena);
    for (int i = 0; i < m->initializers; i++)
        mgpu_names_set(in->names, m->initializer[i].name, m);
    for (int i = 0; i < m->graph.inputs; i++)
        mgpu_names_set(in->names, m->graph.input[i].name, m);
    for (int i = 0; i < m->node_total; i++)
        for (int o = 0; o < m->all[i]->outputs; o++)
            mgpu_names_set(in->names, m->all[i]->output[o], m);
}

static struct mgpu_weights *new_weights(const struct mgpu_onnx_model *model)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_weights *w = MGPU_NEW(arena, struct mgpu_weights);
    int n = model->initializers;
    *w = (struct mgpu_weights){.arena = arena,
                               .role = MGPU_NEW_ARRAY(arena, enum mgpu_weight_role, n),
                               .note = MGPU_NEW_ARRAY(arena, const char *, n),
                               .uses = MGPU_NEW_ARRAY(arena, int, n),
                               .use = MGPU_NEW_ARRAY(arena, const struct mgpu_use *, n)};
    for (int i = 0; i < n; i++) {
        w->role[i] = MGPU_ROLE_UNUSED;
        w->note[i] = "";
    }
    return w;
}

/* ---- Shared by the pages -------------------------------------------------------------------- */

static void add_line(struct mgpu_weights *w, const char *line)
{
    w->line = mgpu_grow(w->line, (size_t)w->notes, sizeof *w->line);
    w->line[w->notes++] = line;
}

void mgpu_weight_note(struct mgpu_identify *in, enum mgpu_weight_line kind, int initializer,
                      const char *line, const char *note)
{
    struct mgpu_weights *w = in->out;
    if (line && ++in->told[kind] <= MGPU_WEIGHT_TOLD)
        add_line(w, line);
    if (initializer >= 0 && note)
        w->note[initializer] = *w->note[initializer] ? mgpu_arena_format(in->arena, "%s; %s",
                                                                         w->note[initializer], note)
                                                     : note;
}

static void count_untold(struct mgpu_identify *in)
{
    static const char *const kinds[] = {"tensors that are split", "tied tensors",
                                        "equal tensors of different layers",
                                        "constants that are not trained", "notes"};
    for (int i = 0; i <= MGPU_LINE_OTHER; i++)
        if (in->told[i] > MGPU_WEIGHT_TOLD)
            add_line(in->out, mgpu_arena_format(in->arena, "and %d more %s",
                                                in->told[i] - MGPU_WEIGHT_TOLD, kinds[i]));
}

const char *mgpu_weight_output(const struct mgpu_onnx_node *node)
{
    return node->outputs ? node->output[0] : "";
}

const char *mgpu_weight_unique(struct mgpu_identify *in, const char *name)
{
    const char *made = name;
    for (int i = 2; mgpu_names_get(in->names, made) || mgpu_onnx_has_name(in->model->file, made);
         i++)
        made = mgpu_arena_format(in->arena, "%s#%d", name, i);
    mgpu_names_set(in->names, made, in);
    return made;
}

/* Levenshtein's distance, cut at `MOST`. */
static int distance(const char *a, const char *b)
{
    enum { MOST = 200 };
    int row[MOST + 1], n = (int)strnlen(b, MOST);
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1] && i <= MOST; i++) {
        int corner = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int change = corner + (a[i - 1] != b[j - 1]), add = row[j - 1] + 1, drop = row[j] + 1;
            corner = row[j];
            row[j] = change < add ? change : add;
            row[j] = row[j] < drop ? row[j] : drop;
        }
    }
    return row[n];
}

int mgpu_weight_no_match(const struct mgpu_identify *in, const char *option, const char *pattern)
{
    const char *nearest = NULL;
    int least = 0;
    for (int i = 0; i < in->model->initializers; i++) {
        int far = distance(pattern, in->model->initializer[i].name);
        if (!nearest || far < least) {
            nearest = in->model->initializer[i].name;
            least = far;
        }
    }
    if (!nearest)
        return mgpu_fail(MGPU_EUSAGE, "--%s %s: the model has no initializers", option, pattern);
    return mgpu_fail(MGPU_EUSAGE, "--%s %s matches no initializer; the nearest name is '%s'",
                     option, pattern, nearest);
}

/* ---- Weights -------------------------------------------------------------------------------- */

/* Whose contents the initializer of the file stays: the first trained one that has no other name,
 * or the first one. -1 when data that is not trained needs it as it is. */
static int owner(const struct mgpu_identify *in, int from, int to)
{
    int best = -1, trained = 0, fixed = 0;
    for (int i = from; i < to; i++) {
        const struct mgpu_candidate *c = &in->candidate[i];
        bool weight =
            mgpu_weight_strength(c->verdict.role) > mgpu_weight_strength(MGPU_ROLE_CONSTANT);
        trained += weight;
        fixed += !weight;
        int worth = mgpu_weight_strength(c->verdict.role) * 2 + !*c->alias;
        const struct mgpu_candidate *b = best < 0 ? NULL : &in->candidate[best];
        if (!b || worth > mgpu_weight_strength(b->verdict.role) * 2 + !*b->alias)
            best = i;
    }
    return trained && fixed ? -1 : best;
}

/* "2.weight@5", "2.weight@5.var": the layer that uses it, and what for where it is a statistic. */
static const char *split_name(struct mgpu_identify *in, const struct mgpu_candidate *c)
{
    static const char *const parts[] = {"", ".mean", ".var"};
    const struct mgpu_onnx_node *node = in->model->all[c->use[0].node];
    const char *where = *c->alias      ? c->alias
                        : *node->layer ? node->layer
                                       : mgpu_weight_output(node);
    return mgpu_weight_unique(
        in, mgpu_arena_format(in->arena, "%s@%s%s", in->model->initializer[c->initializer].name,
                              where, *c->alias ? "" : parts[c->verdict.part]));
}

static void make_weight(struct mgpu_identify *in, int candidate, bool own)
{
    const struct mgpu_candidate *c = &in->candidate[candidate];
    struct mgpu_weight *w = &in->out->weight[candidate];
    struct mgpu_holder *h = MGPU_NEW(in->arena, struct mgpu_holder);
    *h = (struct mgpu_holder){
        .initializer = c->initializer,
        .uses = c->uses,
        .use = mgpu_arena_copy(in->arena, c->use, sizeof *c->use * (size_t)c->uses),
        .added = !own,
        .alias = c->alias,
    };
    *w = (struct mgpu_weight){
        .name = own ? in->model->initializer[c->initializer].name : split_name(in, c),
        .role = c->verdict.role,
        .holders = 1,
        .holder = h,
        .frozen_from = -1,
    };
}

enum { LISTED = 4 }; /* names in a line; --report has them all */

static void note_split(struct mgpu_identify *in, int from, int to)
{
    const char *name = in->model->initializer[in->candidate[from].initializer].name, *list = "";
    int parts = 0;
    for (int i = from; i < to; i++)
        if (mgpu_weight_strength(in->candidate[i].verdict.role) >
            mgpu_weight_strength(MGPU_ROLE_CONSTANT)) {
            if (parts >= LISTED) {
                parts++;
                continue;
            }
            list = mgpu_arena_format(
                in->arena, "%s%s'%s'%s", list, parts++ ? ", " : "", in->out->weight[i].name,
                in->candidate[i].verdict.role == MGPU_ROLE_STATISTIC ? " (statistic)" : "");
        }
    if (parts < 2)
        return;
    if (parts > LISTED)
        list = mgpu_arena_format(in->arena, "%s and %d more", list, parts - LISTED);
    mgpu_weight_note(in, MGPU_LINE_SPLIT, in->candidate[from].initializer,
                     mgpu_arena_format(in->arena,
                                       "'%s' is stored once for %d parameters that were equal when "
                                       "the model was exported; they are kept apart: %s "
                                       "(--tie A=B joins two)",
                                       name, parts, list),
                     mgpu_arena_format(in->arena, "merged: split into %d: %s", parts, list));
}

static void make_weights(struct mgpu_identify *in)
{
    in->out->weight = MGPU_NEW_ARRAY(in->arena, struct mgpu_weight, in->candidates);
    in->out->count = in->candidates;
    for (int from = 0, to; from < in->candidates; from = to) {
        for (to = from; to < in->candidates &&
                        in->candidate[to].initializer == in->candidate[from].initializer;)
            to++;
        int own = owner(in, from, to);
        for (int i = from; i < to; i++)
            make_weight(in, i, i == own);
        note_split(in, from, to);
    }
}

static void note_constants(struct mgpu_identify *in)
{
    for (int i = 0; i < in->candidates; i++) {
        const struct mgpu_candidate *c = &in->candidate[i];
        const char *why = c->verdict.why;
        if (c->verdict.role != MGPU_ROLE_CONSTANT || !why ||
            in->out->role[c->initializer] != MGPU_ROLE_CONSTANT || *in->out->note[c->initializer])
            continue;
        const char *name = in->model->initializer[c->initializer].name;
        mgpu_weight_note(in, MGPU_LINE_FIXED, c->initializer,
                         mgpu_arena_format(in->arena,
                                           "'%s' is not trained: %s (--train '*' --train '%s' "
                                           "trains it too)",
                                           name, why, name),
                         why);
    }
}

/* ---- Look-ups ------------------------------------------------------------------------------- */

struct mgpu_weight_place { /* sorted by node and input */
    int node, input, weight, holder;
};

static int by_use(const void *a, const void *b)
{
    const struct mgpu_weight_place *x = a, *y = b;
    return x->node != y->node ? (x->node > y->node) - (x->node < y->node)
                              : (x->input > y->input) - (x->input < y->input);
}

struct places {
    int count;
    struct mgpu_weight_place *place;
    int *through; /* by node: the place + 1 of an Identity on the way to uses; -1: of two weights */
};

/* The Identities between the tensor and a use pass the same weight on, unless they lead to two. */
static void place_identities(struct mgpu_identify *in, struct places *p,
                             struct mgpu_weight_place use)
{
    for (;;) {
        const char *name = in->model->all[use.node]->input[use.input];
        const struct mgpu_weight_flow_value *value = mgpu_weight_flow_get(in->flow, name);
        if (!value || value->node < 0 || strcmp(in->model->all[value->node]->type, "Identity"))
            return;
        use.node = value->node;
        use.input = 0;
        int *at = &p->through[use.node];
        if (!*at) {
            p->place[p->count] = use;
            *at = ++p->count;
        } else if (*at > 0 && p->place[*at - 1].weight != use.weight) {
            p->place[*at - 1].weight = -1;
            *at = -1;
        } else
            return;
    }
}

static void index_uses(struct mgpu_identify *in)
{
    struct mgpu_weights *weights = in->out;
    int n = in->model->node_total;
    for (int i = 0; i < weights->count; i++)
        for (int h = 0; h < weights->weight[i].holders; h++)
            n += weights->weight[i].holder[h].uses;
    struct places p = {.place = MGPU_NEW_ARRAY(in->arena, struct mgpu_weight_place, n),
                       .through = MGPU_NEW_ARRAY(in->arena, int, in->model->node_total)};
    for (int i = 0; i < weights->count && weights->weight[i].role != MGPU_ROLE_CONSTANT; i++)
        for (int h = 0; h < weights->weight[i].holders; h++) {
            const struct mgpu_holder *holder = &weights->weight[i].holder[h];
            for (int u = 0; u < holder->uses; u++) {
                struct mgpu_weight_place place = {holder->use[u].node, holder->use[u].input, i, h};
                p.place[p.count++] = place;
                place_identities(in, &p, place);
            }
        }
    if (p.count)
        qsort(p.place, (size_t)p.count, sizeof *p.place, by_use);
    weights->place = p.place;
    weights->places = p.count;
}

int mgpu_weights_of_use(const struct mgpu_weights *weights, int node, int input, int *holder)
{
    struct mgpu_weight_place key = {.node = node, .input = input};
    const struct mgpu_weight_place *place =
        weights->places ? bsearch(&key, weights->place, (size_t)weights->places, sizeof key, by_use)
                        : NULL;
    if (place && holder)
        *holder = place->holder;
    return place ? place->weight : -1;
}

/* ---- What no graph can say ------------------------------------------------------------------ */

/* The last dimension of a value: an initializer's, or as the file tells it; 0: unknown. */
static int64_t last_dim(const struct mgpu_onnx_model *m, const char *name)
{
    int at = mgpu_onnx_find_initializer(m, name);
    const struct mgpu_array *a = at < 0 ? NULL : &m->initializer[at].array;
    if (a)
        return a->rank ? a->dims[a->rank - 1] : 0;
    const Onnx__GraphProto *graph = m->file->proto->graph;
    for (size_t i = 0; i < graph->n_value_info; i++) {
        const Onnx__ValueInfoProto *v = graph->value_info[i];
        if (!v->name || strcmp(v->name, name) || !v->type ||
            v->type->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE)
            continue;
        const Onnx__TensorShapeProto *shape = v->type->tensor_type->shape;
        const Onnx__TensorShapeProto__Dimension *last =
            shape && shape->n_dim ? shape->dim[shape->n_dim - 1] : NULL;
        bool known =
            last && last->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
        return known ? last->dim_value : 0;
    }
    return 0;
}

/* Of PyTorch's LSTM with proj_size dynamo writes an LSTM as wide as the projection, with pieces of
 * the weights: the cell's initial state has still its true width. */
static int check_projections(const struct mgpu_onnx_model *m)
{
    enum { INITIAL_C = 6 };
    for (int i = 0; i < m->node_total; i++) {
        const struct mgpu_onnx_node *n = m->all[i];
        bool starts = !strcmp(n->type, "LSTM") && n->inputs > INITIAL_C && *n->input[INITIAL_C];
        int64_t hidden = starts ? mgpu_onnx_int(n, "hidden_size", 0) : 0;
        int64_t cell = hidden ? last_dim(m, n->input[INITIAL_C]) : 0;
        if (cell && cell != hidden)
            return mgpu_fail(MGPU_EUNSUPPORTED,
                             "node '%s' (LSTM): its cell has %" PRId64
                             " elements, its output %" PRId64
                             ": ONNX has no LSTM with proj_size, and what PyTorch's exporter wrote "
                             "of it is not the model",
                             n->name, cell, hidden);
    }
    return 0;
}

/* ---- The main line -------------------------------------------------------------------------- */

static void clean_up(struct mgpu_identify *in)
{
    for (int i = 0; i < in->candidates; i++)
        free(in->candidate[i].use);
    free(in->candidate);
}

int mgpu_weights_identify(struct mgpu_weights **out, struct mgpu_onnx_model *model,
                          const struct mgpu_weights_options *options)
{
    *out = NULL;
    MGPU_TRY(check_projections(model));
    struct mgpu_weights *weights = new_weights(model);
    struct mgpu_identify in = {
        .arena = weights->arena,
        .model = model,
        .options = options,
        .out = weights,
        .pytorch = model->producer == MGPU_PRODUCER_PYTORCH,
        .tensorflow = model->producer == MGPU_PRODUCER_TENSORFLOW,
        .dynamo = model->producer == MGPU_PRODUCER_PYTORCH && has_scopes(model),
        .flow = mgpu_weight_flow_new(weights->arena, model),
    };
    for (int i = 0; i < model->initializers; i++)
        in.lists |= model->initializer[i].listed;
    list_names(&in);
    mgpu_weight_facts(&in);
    mgpu_weight_candidates(&in);
    make_weights(&in);
    int rc = mgpu_weight_tie(&in);
    if (rc == 0) {
        mgpu_weight_layers(&in);
        rc = mgpu_weight_choose(&in);
    }
    note_constants(&in);
    count_untold(&in);
    clean_up(&in);
    if (rc == 0)
        index_uses(&in);
    *out = rc < 0 ? NULL : weights;
    if (rc < 0)
        mgpu_weights_free(weights);
    return rc;
}

void mgpu_weights_free(struct mgpu_weights *weights)
{
    if (!weights)
        return;
    for (int i = 0; weights->given && i < weights->count; i++)
        mgpu_array_free(&weights->given[i]);
    free(weights->line);
    mgpu_arena_free(weights->arena);
}

bool mgpu_weights_given(const struct mgpu_weights *weights, int weight)
{
    return weights->given && weights->given[weight].type != MGPU_UNDEFINED;
}

const struct mgpu_array *mgpu_weight_contents(const struct mgpu_weights *weights,
                                              const struct mgpu_onnx_model *model, int weight)
{
    if (mgpu_weights_given(weights, weight))
        return &weights->given[weight];
    return &model->initializer[weights->weight[weight].holder[0].initializer].array;
}

void mgpu_weights_put_constants(const struct mgpu_weights *weights, struct mgpu_onnx_model *model)
{
    for (int i = 0; i < weights->count; i++) {
        const struct mgpu_weight *w = &weights->weight[i];
        if (w->role == MGPU_ROLE_CONSTANT && mgpu_weights_given(weights, i))
            model->initializer[w->holder[0].initializer].array.data = weights->given[i].data;
    }
}
