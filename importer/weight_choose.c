/* What is trained and what is not: --train, --freeze, and the half of a bias that TensorFlow does
 * not have. */
#include "importer/weight_parts.h"
#include "runtime/base/status.h"

#include <fnmatch.h>
#include <string.h>

/* '*' stands for any characters, '/' and '.' too. A name is always its own pattern. */
static bool matches(const char *pattern, const char *name)
{
    return !strcmp(pattern, name) || !fnmatch(pattern, name, 0);
}

/* What comes after "@" in the name of a weight that was split off: the parameter's own name, or its
 * layer. */
static const char *own_name(const struct mgpu_identify *in, const struct mgpu_weight *w)
{
    const char *from = in->model->initializer[w->holder[0].initializer].name;
    size_t n = strlen(from);
    return w->holder[0].added && !strncmp(w->name, from, n) && w->name[n] == '@' ? w->name + n + 1
                                                                                 : w->name;
}

static bool matches_weight(const struct mgpu_identify *in, const char *pattern,
                           const struct mgpu_weight *w)
{
    bool match = w->holders && (matches(pattern, w->name) || matches(pattern, own_name(in, w)));
    for (int i = 0; i < w->holders && !match; i++)
        match = matches(pattern, in->model->initializer[w->holder[i].initializer].name);
    return match;
}

static bool matches_initializer(const struct mgpu_identify *in, const char *pattern, int *which)
{
    for (int i = 0; i < in->model->initializers; i++)
        if (matches(pattern, in->model->initializer[i].name)) {
            *which = i;
            return true;
        }
    return false;
}

/* ---- The half that nobody owns -------------------------------------------------------------- */

/* The elements of B in a direction: the biases of the input, then as many of the recurrence. Keras
 * has the first alone, but for its GRU that resets after the product. 0: this is no such B. */
static int64_t bias_width(const struct mgpu_identify *in, const struct mgpu_weight *w)
{
    const struct mgpu_array *a = &in->model->initializer[w->holder[0].initializer].array;
    for (int h = 0; h < w->holders; h++)
        for (int u = 0; u < w->holder[h].uses; u++) {
            struct mgpu_use use = w->holder[h].use[u];
            const struct mgpu_onnx_node *node = in->model->all[use.node];
            bool one_bias =
                !strcmp(node->type, "LSTM") || !strcmp(node->type, "RNN") ||
                (!strcmp(node->type, "GRU") && !mgpu_onnx_int(node, "linear_before_reset", 0));
            if (!one_bias || use.input != 3)
                return 0;
        }
    return a->rank == 2 && a->dims[1] % 2 == 0 ? a->dims[1] : 0;
}

static bool is_zero(const struct mgpu_array *a, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to; i++)
        if (mgpu_get_double(a->data, a->type, i) != 0)
            return false;
    return true;
}

static bool is_named(const struct mgpu_identify *in, const struct mgpu_weight *w)
{
    for (int i = 0; i < in->options->train_count; i++)
        if (matches_weight(in, in->options->train[i], w))
            return true;
    return false;
}

static void find_unowned(struct mgpu_identify *in, struct mgpu_weight *w)
{
    int initializer = w->holder[0].initializer;
    const struct mgpu_array *a = &in->model->initializer[initializer].array;
    int64_t width = in->tensorflow ? bias_width(in, w) : 0;
    for (int64_t d = 0; width && d < a->dims[0]; d++)
        if (!is_zero(a, d * width + width / 2, (d + 1) * width))
            return;
    if (!width)
        return;
    w->frozen_from = width / 2;
    mgpu_weight_note(in, MGPU_LINE_OTHER, initializer,
                     mgpu_arena_format(in->arena,
                                       "'%s': elements %lld to %lld (the recurrent bias) belong to "
                                       "no variable of the model and stay zero "
                                       "(--train '*' trains them too)",
                                       w->name, (long long)w->frozen_from, (long long)width - 1),
                     mgpu_arena_format(in->arena, "elements from %lld on stay as they are",
                                       (long long)w->frozen_from));
}

/* ---- Scalars -------------------------------------------------------------------------------- */

/* dynamo's optimizer made a Clip of two nodes and called its bounds after what it clips:
 * "linear_max". */
static bool is_bound(const struct mgpu_identify *in, int initializer)
{
    const char *name = in->model->initializer[initializer].name;
    for (int u = 0; in->dynamo && u < in->out->uses[initializer]; u++) {
        struct mgpu_use use = in->out->use[initializer][u];
        const struct mgpu_onnx_node *node = in->model->all[use.node];
        size_t n = use.input > 0 ? strlen(node->input[0]) : 0;
        if (!strcmp(node->type, "Clip") && n && !strncmp(name, node->input[0], n) &&
            (!strcmp(name + n, "_min") || !strcmp(name + n, "_max")))
            return true;
    }
    return false;
}

/* The name of an initializer or weight that a module may have given, not an exporter: of those that
 * fold what they can, a result of an operator ("exp") may be one too. */
static bool may_be_parameter(const struct mgpu_identify *in, const char *name)
{
    int i = mgpu_onnx_find_initializer(in->model, name);
    const struct mgpu_onnx_initializer *x = i < 0 ? NULL : &in->model->initializer[i];
    if (x && in->lists && !x->listed && !x->folded_from)
        return false;
    return i >= 0 && (in->pytorch || in->tensorflow) && in->facts[i].named &&
           strncmp(name, "Constant_", 9) && !strstr(name, "tensor_constant") &&
           !strstr(name, "lifted_tensor") && !mgpu_weight_is_of_code(in, i) && !is_bound(in, i);
}

/* Numbers without a rank are not trained: most are factors in the model's code. Some are learned
 * temperatures and gains. */
static void note_scalars(struct mgpu_identify *in)
{
    enum { LISTED = 4 };
    const char *list = "", *first = NULL;
    int count = 0;
    for (int i = 0; i < in->model->initializers; i++) {
        const struct mgpu_onnx_initializer *scalar = &in->model->initializer[i];
        if (in->out->role[i] != MGPU_ROLE_CONSTANT || !in->facts[i].real || scalar->array.rank ||
            !may_be_parameter(in, scalar->name))
            continue;
        if (count++ < LISTED)
            list = mgpu_arena_format(in->arena, "%s%s'%s'", list, first ? ", " : "", scalar->name);
        first = first ? first : scalar->name;
        mgpu_weight_note(in, MGPU_LINE_OTHER, i, NULL,
                         mgpu_arena_format(in->arena,
                                           "a scalar, not trained: --train '*' --train '%s' trains "
                                           "it too",
                                           scalar->name));
    }
    if (count > LISTED)
        list = mgpu_arena_format(in->arena, "%s and %d more", list, count - LISTED);
    if (count && !in->options->train_count)
        mgpu_weight_note(in, MGPU_LINE_OTHER, -1,
                         mgpu_arena_format(in->arena,
                                           "scalars that may be parameters are not trained: %s "
                                           "(--train '*' --train '%s' trains one too)",
                                           list, first),
                         NULL);
}

/* ---- Patterns ------------------------------------------------------------------------------- */

static int cannot_train(const struct mgpu_identify *in, const char *pattern, int initializer)
{
    const struct mgpu_onnx_initializer *i = &in->model->initializer[initializer];
    if (!in->facts[initializer].real)
        return mgpu_fail(MGPU_EUSAGE, "--train %s: '%s' holds %s numbers, which cannot be trained",
                         pattern, i->name, mgpu_dtype_name(i->array.type));
    if (in->out->role[initializer] == MGPU_ROLE_STATISTIC)
        return mgpu_fail(MGPU_EUSAGE,
                         "--train %s: '%s' is a running mean or variance, which is counted, not "
                         "trained",
                         pattern, i->name);
    if (!in->out->uses[initializer])
        return mgpu_fail(MGPU_EUSAGE, "--train %s: '%s' is used by no node", pattern, i->name);
    return mgpu_fail(MGPU_EUSAGE,
                     "--train %s: '%s' only says sizes, bounds or scales (its full name trains it, "
                     "unless only its shape is used)",
                     pattern, i->name);
}

/* Whether a constant becomes a weight: it is named itself, or is a number in the model's code that
 * stands where a weight stands. */
static bool may_become_weight(const struct mgpu_identify *in, const char *pattern, int weight)
{
    const struct mgpu_weight *w = &in->out->weight[weight];
    if (w->role != MGPU_ROLE_CONSTANT && w->role != MGPU_ROLE_SHAPE)
        return false;
    return (weight < in->candidates && in->candidate[weight].verdict.written) ||
           !strcmp(pattern, w->name) ||
           !strcmp(pattern, in->model->initializer[w->holder[0].initializer].name);
}

/* Marks what the pattern trains. Constants become weights where it matches nothing else. */
static int train(struct mgpu_identify *in, const char *pattern, bool *chosen)
{
    int which, found = 0;
    for (int constants = 0; constants < 2 && !found; constants++)
        for (int i = 0; i < in->out->count; i++) {
            struct mgpu_weight *w = &in->out->weight[i];
            if (!w->holders || !matches_weight(in, pattern, w) ||
                (constants ? !may_become_weight(in, pattern, i) : w->role != MGPU_ROLE_TRAINED))
                continue;
            found++;
            chosen[i] = true;
        }
    if (found)
        return 0;
    return matches_initializer(in, pattern, &which) ? cannot_train(in, pattern, which)
                                                    : mgpu_weight_no_match(in, "train", pattern);
}

static int freeze(struct mgpu_identify *in, const char *pattern)
{
    int which;
    bool found = matches_initializer(in, pattern, &which);
    for (int i = 0; i < in->out->count; i++) {
        struct mgpu_weight *w = &in->out->weight[i];
        if (!matches_weight(in, pattern, w))
            continue;
        found = true;
        if (w->role == MGPU_ROLE_TRAINED)
            w->role = MGPU_ROLE_FROZEN;
    }
    return found ? 0 : mgpu_weight_no_match(in, "freeze", pattern);
}

/* A pattern that trains weights leaves constants that it matches too as they are. */
static void note_left(struct mgpu_identify *in, const bool *chosen)
{
    const char *example = "";
    int left = 0;
    for (int i = 0; i < in->out->count; i++) {
        const struct mgpu_weight *w = &in->out->weight[i];
        if (chosen[i] || w->role != MGPU_ROLE_CONSTANT || !is_named(in, w) ||
            !in->facts[w->holder[0].initializer].real)
            continue;
        if (!left++ || (!may_be_parameter(in, example) && may_be_parameter(in, w->name)))
            example = w->name;
    }
    if (left)
        mgpu_weight_note(in, MGPU_LINE_OTHER, -1,
                         mgpu_arena_format(in->arena,
                                           "constants that --train matches too and leaves as they "
                                           "are: %d, for one '%s' (the full name, --train '%s', "
                                           "trains it)",
                                           left, example, example),
                         NULL);
}

static int choose_trained(struct mgpu_identify *in)
{
    const struct mgpu_weights_options *o = in->options;
    if (!o->train_count)
        return 0;
    bool *chosen = MGPU_NEW_ARRAY(in->arena, bool, in->out->count);
    for (int i = 0; i < o->train_count; i++)
        MGPU_TRY(train(in, o->train[i], chosen));
    note_left(in, chosen);
    for (int i = 0; i < in->out->count; i++) {
        struct mgpu_weight *w = &in->out->weight[i];
        if (chosen[i])
            w->role = MGPU_ROLE_TRAINED;
        else if (w->role == MGPU_ROLE_TRAINED)
            w->role = MGPU_ROLE_FROZEN;
    }
    return 0;
}

/* ---- What is left --------------------------------------------------------------------------- */

static bool is_parameter(enum mgpu_weight_role role)
{
    return role == MGPU_ROLE_TRAINED || role == MGPU_ROLE_FROZEN || role == MGPU_ROLE_STATISTIC;
}

/* Whether what is no weight has a name of the model's. dynamo calls the result of an operator, too,
 * by one word, and says of what it computed it; a scalar so made is kept, to say that. */
static bool is_named_constant(const struct mgpu_identify *in, int initializer)
{
    const struct mgpu_onnx_initializer *x = &in->model->initializer[initializer];
    bool scalar = x->array.rank == 0 && in->facts[initializer].real;
    if (in->tensorflow)
        return scalar && strstr(x->name, "/ReadVariableOp");
    if (x->persistent)
        return !strcmp(x->persistent, "True");
    bool sure = in->facts[initializer].real || !in->dynamo || strchr(x->name, '.');
    if (!may_be_parameter(in, x->name) || !sure || (x->folded_from && !scalar))
        return false;
    for (int i = 0; i < in->candidates; i++)
        if (in->candidate[i].initializer == initializer && in->candidate[i].verdict.made)
            return false;
    return true;
}

static struct mgpu_weight constant(struct mgpu_identify *in, int initializer)
{
    struct mgpu_holder *h = MGPU_NEW(in->arena, struct mgpu_holder);
    int uses = in->out->uses[initializer];
    *h = (struct mgpu_holder){
        .initializer = initializer,
        .uses = uses,
        .use = mgpu_arena_copy(in->arena, in->out->use[initializer], sizeof *h->use * (size_t)uses),
        .alias = ""};
    return (struct mgpu_weight){.name = in->model->initializer[initializer].name,
                                .role = MGPU_ROLE_CONSTANT,
                                .holders = 1,
                                .holder = h,
                                .frozen_from = -1};
}

/* What is no weight goes, but for named constants, which come last. */
static void drop_constants(struct mgpu_identify *in)
{
    struct mgpu_weights *out = in->out;
    int n = 0, initializers = in->model->initializers;
    struct mgpu_weight *kept =
        MGPU_NEW_ARRAY(in->arena, struct mgpu_weight, out->count + initializers);
    bool *held = MGPU_NEW_ARRAY(in->arena, bool, initializers);
    for (int i = 0; i < out->count; i++) {
        const struct mgpu_weight *w = &out->weight[i];
        if (!w->holders || !is_parameter(w->role))
            continue;
        kept[n++] = *w;
        for (int h = 0; h < w->holders; h++)
            held[w->holder[h].initializer] = true;
    }
    for (int i = 0; i < initializers; i++)
        if (!held[i] && out->uses[i] && is_named_constant(in, i))
            kept[n++] = constant(in, i);
    out->weight = kept;
    out->count = n;
}

/* The role of a tensor is the strongest of its weights'. */
static void set_roles(struct mgpu_identify *in)
{
    struct mgpu_weights *out = in->out;
    for (int i = 0; i < in->model->initializers; i++)
        if (out->role[i] == MGPU_ROLE_TRAINED)
            out->role[i] = MGPU_ROLE_FROZEN;
    for (int i = 0; i < out->count && out->weight[i].role != MGPU_ROLE_CONSTANT; i++)
        for (int h = 0; h < out->weight[i].holders; h++) {
            enum mgpu_weight_role *role = &out->role[out->weight[i].holder[h].initializer];
            if (mgpu_weight_strength(out->weight[i].role) > mgpu_weight_strength(*role))
                *role = out->weight[i].role;
        }
}

int mgpu_weight_choose(struct mgpu_identify *in)
{
    for (int i = 0; i < in->out->count; i++)
        if (in->out->weight[i].holders && in->out->weight[i].role == MGPU_ROLE_TRAINED &&
            !is_named(in, &in->out->weight[i]))
            find_unowned(in, &in->out->weight[i]);
    MGPU_TRY(choose_trained(in));
    for (int i = 0; i < in->options->freeze_count; i++)
        MGPU_TRY(freeze(in, in->options->freeze[i]));
    drop_constants(in);
    set_roles(in);
    note_scalars(in);
    return 0;
}
