#include "importer/lower_bind.h"

#include "runtime/base/status.h"

#include <inttypes.h>
#include <string.h>

struct symbol {
    const char *name;
    bool batch;
    int slot;         /* of the graph's symbols; 0: none (or the batch) */
    int64_t value;    /* -1: unknown */
    const char *from; /* who gave it */
};

struct mgpu_binder {
    struct mgpu_graph *g;
    const struct mgpu_onnx_model *model;
    const struct mgpu_lower_options *options;
    struct mgpu_names *names; /* to struct symbol */
    int64_t baked;            /* the number that stands for the batch in the file; 0: none */
};

static const struct mgpu_lower_input *data_of(const struct mgpu_binder *b, const char *name)
{
    for (int i = 0; i < b->options->inputs; i++)
        if (!strcmp(b->options->input[i].name, name))
            return &b->options->input[i];
    return NULL;
}

static int rank_of(const struct mgpu_binder *b, const struct mgpu_onnx_value *input)
{
    const struct mgpu_lower_input *data = data_of(b, input->name);
    return input->rank >= 0 ? input->rank : data ? data->rank : -1;
}

/* -1: none. */
static int batch_axis(const struct mgpu_binder *b, const struct mgpu_onnx_value *input)
{
    const struct mgpu_lower_input *data = data_of(b, input->name);
    int axis = data ? data->batch_axis : 0;
    return axis < rank_of(b, input) && axis < MGPU_MAX_RANK ? axis : -1;
}

/* A symbol's name, "" where nothing is known, NULL where there is a number. */
static const char *text_at(const struct mgpu_onnx_value *input, int axis)
{
    return axis < input->rank && axis < MGPU_MAX_RANK ? input->symbols[axis] : "";
}

static struct symbol *symbol_of(struct mgpu_binder *b, const char *name)
{
    struct symbol *s = mgpu_names_get(b->names, name);
    if (!s) {
        s = MGPU_NEW(b->g->arena, struct symbol);
        *s = (struct symbol){.name = mgpu_arena_string(b->g->arena, name), .value = -1};
        mgpu_names_set(b->names, s->name, s);
    }
    return s;
}

/* The symbol on an axis, NULL where there is a number or nothing is known. */
static struct symbol *symbol_at(struct mgpu_binder *b, const struct mgpu_onnx_value *input,
                                int axis)
{
    const char *name = axis >= 0 ? text_at(input, axis) : NULL;
    return name && *name ? symbol_of(b, name) : NULL;
}

/* Whether the symbol stands on another axis of an input whose batch axis has another symbol: then
 * it is a length of its own ("seq" of a mask [seq, seq] beside ids [batch, seq]). */
static bool is_length(struct mgpu_binder *b, const struct symbol *s)
{
    for (int i = 0; i < b->model->graph.inputs; i++) {
        const struct mgpu_onnx_value *input = &b->model->graph.input[i];
        int axis = batch_axis(b, input);
        const struct symbol *first = symbol_at(b, input, axis);
        for (int k = 0; first && first != s && k < input->rank && k < MGPU_MAX_RANK; k++)
            if (symbol_at(b, input, k) == s)
                return true;
    }
    return false;
}

/* Every symbol on a batch axis is the batch (Keras has one an input). Where all batch axes have
 * numbers, the first one's number is it. */
static void find_batch(struct mgpu_binder *b)
{
    bool symbolic = false;
    for (int i = 0; i < b->model->graph.inputs; i++) {
        const struct mgpu_onnx_value *input = &b->model->graph.input[i];
        int axis = batch_axis(b, input);
        if (axis < 0)
            continue;
        struct symbol *s = symbol_at(b, input, axis);
        if (s && (!symbolic || !is_length(b, s))) {
            s->batch = true;
            if (!b->g->symbols[MGPU_BATCH])
                b->g->symbols[MGPU_BATCH] = s->name;
        }
        symbolic = symbolic || text_at(input, axis);
        if (!text_at(input, axis) && !b->baked)
            b->baked = input->dims[axis];
    }
    if (symbolic)
        b->baked = 0;
    if (!b->g->symbols[MGPU_BATCH])
        b->g->symbols[MGPU_BATCH] = "N";
    int64_t otherwise = b->baked ? b->baked : 1;
    b->g->batch = b->options->batch > 0 ? b->options->batch : otherwise;
}

static int give(struct symbol *s, int64_t value, const char *from)
{
    if (s->value >= 0 && s->value != value)
        return mgpu_fail(MGPU_EINVALID, "dimension '%s' is %" PRId64 " in %s and %" PRId64 " in %s",
                         s->name, s->value, s->from, value, from);
    s->value = value;
    s->from = from;
    return 0;
}

/* All symbols of the inputs get a place among the graph's symbols while there are any. */
static void place_symbols(struct mgpu_binder *b)
{
    int slot = MGPU_BATCH + 1;
    for (int i = 0; i < b->model->graph.inputs; i++)
        for (int k = 0; k < b->model->graph.input[i].rank && k < MGPU_MAX_RANK; k++) {
            struct symbol *s = symbol_at(b, &b->model->graph.input[i], k);
            if (!s || s->batch || s->slot || slot == MGPU_SYMBOLS)
                continue;
            s->slot = slot++;
            b->g->symbols[s->slot] = s->name;
        }
}

static int read_bindings(struct mgpu_binder *b)
{
    for (int i = 0; i < b->options->bindings; i++) {
        const struct mgpu_binding *binding = &b->options->binding[i];
        struct symbol *s = mgpu_names_get(b->names, binding->name);
        if (!s)
            return mgpu_fail(MGPU_EUSAGE, "--dim %s=%" PRId64 ": no input has a dimension '%s'",
                             binding->name, binding->value, binding->name);
        if (binding->value < 0)
            return mgpu_fail(MGPU_EUSAGE, "--dim %s=%" PRId64 ": a size may not be negative",
                             binding->name, binding->value);
        if (s->batch)
            return mgpu_fail(MGPU_EUSAGE, "--dim %s=%" PRId64 ": '%s' is the batch; use --batch",
                             binding->name, binding->value, binding->name);
        MGPU_TRY(give(s, binding->value, "--dim"));
    }
    return 0;
}

static int read_data(struct mgpu_binder *b)
{
    for (int i = 0; i < b->model->graph.inputs; i++) {
        const struct mgpu_onnx_value *input = &b->model->graph.input[i];
        const struct mgpu_lower_input *data = data_of(b, input->name);
        if (!data || data->rank != input->rank)
            continue;
        for (int k = 0; k < input->rank && k < MGPU_MAX_RANK; k++) {
            struct symbol *s = symbol_at(b, input, k);
            if (s && !s->batch && k != data->batch_axis && data->dims[k] > 0)
                MGPU_TRY(give(s, data->dims[k],
                              mgpu_arena_format(b->g->arena, "input '%s'", input->name)));
        }
    }
    return 0;
}

int mgpu_binder_new(struct mgpu_binder **out, struct mgpu_graph *g,
                    const struct mgpu_onnx_model *model, const struct mgpu_lower_options *options)
{
    struct mgpu_binder *b = *out = MGPU_NEW(g->arena, struct mgpu_binder);
    *b = (struct mgpu_binder){
        .g = g,
        .model = model,
        .options = options,
        .names = mgpu_names_new(g->arena),
    };
    find_batch(b);
    place_symbols(b);
    MGPU_TRY(read_bindings(b));
    return read_data(b);
}

int64_t mgpu_binder_example(const struct mgpu_binder *b)
{
    return b->baked;
}

static int unnamed_dim(const struct mgpu_binder *b, const struct mgpu_onnx_value *input, int axis,
                       struct mgpu_dim *dim)
{
    const struct mgpu_lower_input *data = data_of(b, input->name);
    if (!data || axis >= data->rank || data->dims[axis] <= 0)
        return mgpu_fail(MGPU_EINVALID,
                         "input '%s': the file does not say the size of axis %d, and no data do",
                         input->name, axis);
    *dim = mgpu_dim_const(data->dims[axis]);
    return 0;
}

static int bind_dim(const struct mgpu_binder *b, const struct mgpu_onnx_value *input, int axis,
                    struct mgpu_dim *dim)
{
    const char *name = text_at(input, axis);
    bool batch = axis == batch_axis(b, input);
    const struct symbol *s = name && *name ? mgpu_names_get(b->names, name) : NULL;
    if (!name)
        batch = batch && b->baked && input->dims[axis] == b->baked;
    else if (s)
        batch = s->batch;
    if (batch)
        *dim = mgpu_dim_symbol(MGPU_BATCH, b->g->batch);
    else if (!name)
        *dim = mgpu_dim_const(input->dims[axis]);
    else if (!s)
        return unnamed_dim(b, input, axis, dim);
    else if (s->value < 0)
        return mgpu_fail(MGPU_EINVALID,
                         "input '%s': nothing says how large '%s' (axis %d) is; give --dim %s=SIZE",
                         input->name, s->name, axis, s->name);
    else
        *dim = s->slot ? mgpu_dim_symbol(s->slot, s->value) : mgpu_dim_const(s->value);
    return 0;
}

int mgpu_binder_dims(const struct mgpu_binder *b, const struct mgpu_onnx_value *input,
                     struct mgpu_dim dims[MGPU_MAX_RANK])
{
    int rank = rank_of(b, input);
    if (rank < 0)
        return mgpu_fail(MGPU_EINVALID,
                         "input '%s': the file does not say its shape, and no data do",
                         input->name);
    if (rank > MGPU_MAX_RANK)
        return mgpu_fail(MGPU_EUNSUPPORTED, "input '%s' has rank %d; %d is the most", input->name,
                         rank, MGPU_MAX_RANK);
    for (int k = 0; k < rank; k++)
        MGPU_TRY(bind_dim(b, input, k, &dims[k]));
    return rank;
}
