#include "tests/golden/case_options.h"

#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "tests/support/write_npy.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Lists and fields ------------------------------------------------------------------------ */

void mgpu_case_add(struct mgpu_case_list *list, struct mgpu_arena *arena, const char *format, ...)
{
    va_list args;
    char *text;
    va_start(args, format);
    if (vasprintf(&text, format, args) < 0)
        abort();
    va_end(args);
    const char **longer = MGPU_NEW_ARRAY(arena, const char *, list->count + 2);
    if (list->count)
        memcpy(longer, list->item, sizeof *longer * (size_t)list->count);
    longer[list->count++] = mgpu_arena_string(arena, text);
    list->item = longer;
    free(text);
}

static struct json_object *field(struct json_object *object, const char *name)
{
    struct json_object *value = NULL;
    json_object_object_get_ex(object, name, &value);
    return value;
}

struct json_object *mgpu_case_field(const struct mgpu_case *c, const char *name)
{
    return field(c->golden.json, name);
}

const char *mgpu_case_text(struct json_object *object, const char *name)
{
    struct json_object *value = field(object, name);
    return value ? json_object_get_string(value) : NULL;
}

static size_t length(struct json_object *list)
{
    return list ? json_object_array_length(list) : 0;
}

/* A name as a pattern that matches only itself. */
static const char *pattern(struct mgpu_arena *arena, const char *name)
{
    char *to = mgpu_arena_alloc(arena, 3 * strlen(name) + 1);
    const char *start = to;
    for (; *name; name++) {
        bool special = strchr("*?[", *name);
        if (special)
            *to++ = '[';
        *to++ = *name;
        if (special)
            *to++ = ']';
    }
    return start;
}

/* ---- Losses ---------------------------------------------------------------------------------- */

static const char *kind_of_loss(const char *kind)
{
    static const char *const ours[][2] = {{"bce_with_logits", "bce_logits"},
                                          {"l1", "mae"},
                                          {"categorical_crossentropy", "cross_entropy"},
                                          {"sparse_categorical_crossentropy", "cross_entropy"},
                                          {"binary_crossentropy", "bce"}};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (!strcmp(kind, ours[i][0]))
            return ours[i][1];
    return kind;
}

static bool holds(const struct mgpu_array *a, int64_t value)
{
    for (int64_t i = 0; a && i < mgpu_array_count(a); i++)
        if (mgpu_get_double(a->data, a->type, i) == (double)value)
            return true;
    return false;
}

/* How many axes of the output could be the classes', by the label's shape. */
static int fitting_axes(const struct mgpu_array *y, const struct mgpu_array *label)
{
    int fits = 0;
    for (int axis = 1; axis < y->rank; axis++) {
        bool same = true;
        for (int i = 1, k = 1; i < y->rank; i++)
            if (i != axis)
                same = same && y->dims[i] == label->dims[k++];
        fits += same;
    }
    return fits;
}

/* An axis is stated only where the shapes do not tell. */
static bool axis_is_needed(const struct mgpu_case *c, struct json_object *loss)
{
    const char *label_name = mgpu_case_text(loss, "label");
    const struct mgpu_array *y = mgpu_golden_find(&c->forward, mgpu_case_text(loss, "output"));
    const struct mgpu_array *label = label_name ? mgpu_golden_find(&c->labels, label_name) : NULL;
    if (!field(loss, "axis") || !y || !label || y->rank < 3 || mgpu_is_float(label->type))
        return false;
    return label->rank == y->rank - 1 && fitting_axes(y, label) > 1;
}

static const char *class_weights_file(struct mgpu_case *c, struct json_object *list)
{
    int64_t n = (int64_t)json_object_array_length(list);
    float *value = MGPU_NEW_ARRAY(c->arena, float, n);
    const char *path = mgpu_arena_format(c->arena, "%s/class_weights.npy", c->folder);
    for (int64_t i = 0; i < n; i++)
        value[i] = (float)json_object_get_double(json_object_array_get_idx(list, (size_t)i));
    write_npy_data(path, MGPU_FLOAT, 1, &n, value);
    return path;
}

static const char *loss_text(struct mgpu_case *c, struct json_object *loss)
{
    const char *kind = mgpu_case_text(loss, "kind"), *label = mgpu_case_text(loss, "label");
    struct json_object *o;
    const char *text = mgpu_arena_format(c->arena, "%s,output=%s", kind_of_loss(kind),
                                         mgpu_case_text(loss, "output"));
    if (label && strcmp(kind, "output"))
        text = mgpu_arena_format(c->arena, "%s,label=%s", text, label);
    if ((o = field(loss, "weight")) && json_object_get_double(o) != 1)
        text = mgpu_arena_format(c->arena, "%s,weight=%.12g", text, json_object_get_double(o));
    if ((o = field(loss, "ignore_index")) &&
        holds(mgpu_golden_find(&c->labels, label), json_object_get_int64(o)))
        text =
            mgpu_arena_format(c->arena, "%s,ignore_index=%" PRId64, text, json_object_get_int64(o));
    if ((o = field(loss, "label_smoothing")) && json_object_get_double(o) != 0)
        text = mgpu_arena_format(c->arena, "%s,label_smoothing=%.12g", text,
                                 json_object_get_double(o));
    if ((o = field(loss, "delta")))
        text = mgpu_arena_format(c->arena, "%s,delta=%.12g", text, json_object_get_double(o));
    if (axis_is_needed(c, loss))
        text = mgpu_arena_format(c->arena, "%s,axis=%" PRId64, text,
                                 json_object_get_int64(field(loss, "axis")));
    if ((o = field(loss, "class_weights")))
        text = mgpu_arena_format(c->arena, "%s,class_weights=%s", text, class_weights_file(c, o));
    return text;
}

static void add_losses(struct mgpu_options *out, struct mgpu_case *c)
{
    struct mgpu_case_list list = {0};
    struct json_object *losses = mgpu_case_field(c, "loss");
    for (size_t i = 0; i < length(losses); i++)
        mgpu_case_add(&list, c->arena, "%s", loss_text(c, json_object_array_get_idx(losses, i)));
    out->loss = list.item;
}

/* ---- Optimizer ------------------------------------------------------------------------------- */

/* Constants whose zero (false) is no option of the kind, or its default. */
static bool is_plain(const char *key, struct json_object *value)
{
    static const char *const off[] = {
        "nesterov", "amsgrad",  "centered", "dampening",
        "momentum", "lr_decay", "decay",    "initial_accumulator_value"};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (!strcmp(key, off[i]))
            return json_object_get_double(value) == 0;
    return !value;
}

static const char *value_text(struct mgpu_case *c, struct json_object *value)
{
    if (json_object_is_type(value, json_type_string))
        return json_object_get_string(value);
    if (json_object_is_type(value, json_type_boolean))
        return json_object_get_boolean(value) ? "1" : "0";
    return mgpu_arena_format(c->arena, "%.12g", json_object_get_double(value));
}

static void add_optimizer(struct mgpu_options *out, struct mgpu_case *c)
{
    static const char *const ours[] = {"kind", "clip_norm", "formula", "eps_place", NULL};
    struct json_object *optimizer = mgpu_case_field(c, "optimizer");
    const char *text = mgpu_case_text(optimizer, "kind");
    json_object_object_foreach(optimizer, key, value)
    {
        const char *name = !strcmp(key, "alpha") ? "rho" : !strcmp(key, "rule") ? "style" : key;
        bool skip = is_plain(key, value);
        for (int i = 0; ours[i]; i++)
            skip = skip || !strcmp(key, ours[i]);
        if (!strcmp(key, "rule"))
            skip = strncmp(json_object_get_string(value), "keras", 5) != 0;
        if (!skip)
            text = mgpu_arena_format(c->arena, "%s,%s=%s", text, name, value_text(c, value));
    }
    out->optimizer = text;
    struct json_object *clip = field(optimizer, "clip_norm");
    out->clip_norm = clip ? json_object_get_double(clip) : 0;
}

/* ---- Data ------------------------------------------------------------------------------------ */

static void add_places(struct mgpu_case *c, const struct mgpu_golden_group *group,
                       struct mgpu_case_list *axes, struct mgpu_case_list *rows)
{
    for (int i = 0; i < group->count; i++) {
        const char *name = group->tensor[i].name;
        int64_t axis = mgpu_golden_int(&c->golden, "axis", name, 0);
        int64_t count = mgpu_golden_int(&c->golden, "rows", name, -1);
        if (axis)
            mgpu_case_add(axes, c->arena, "%s=%" PRId64, name, axis);
        if (count >= 0)
            mgpu_case_add(rows, c->arena, "%s=%" PRId64, name, count);
    }
}

/* The data of all steps, straight out of golden.h5. */
static void add_data(struct mgpu_options *out, struct mgpu_case *c)
{
    struct mgpu_case_list data = {0}, axes = {0}, rows = {0};
    for (int i = 0; i < c->inputs.count; i++)
        mgpu_case_add(&data, c->arena, "%s=%s/golden.h5:inputs/%04d", c->inputs.tensor[i].name,
                      c->golden.folder, i);
    for (int i = 0; i < c->labels.count; i++)
        mgpu_case_add(&data, c->arena, "%s=%s/golden.h5:labels/%04d", c->labels.tensor[i].name,
                      c->golden.folder, i);
    add_places(c, &c->inputs, &axes, &rows);
    add_places(c, &c->labels, &axes, &rows);
    out->data = data.item;
    out->batch_axis = axes.item;
    out->rows = rows.item;
}

static void add_states(struct mgpu_options *out, struct mgpu_case *c)
{
    struct mgpu_case_list list = {0};
    struct json_object *states = mgpu_case_field(c, "state");
    if (states) {
        json_object_object_foreach(states, input, output)
            mgpu_case_add(&list, c->arena, "%s=%s", input, json_object_get_string(output));
    }
    out->state = list.item;
}

/* The first batch of every input, in files of its own. */
static int add_first_batch(struct mgpu_options *out, struct mgpu_case *c)
{
    struct mgpu_case_list data = {0}, axes = {0}, rows = {0};
    for (int i = 0; i < c->inputs.count; i++) {
        struct mgpu_array slice;
        const char *path = mgpu_arena_format(c->arena, "%s/input%d.npy", c->folder, i);
        MGPU_TRY(mgpu_golden_slice(&c->golden, &c->inputs.tensor[i], 0, &slice));
        write_npy(path, &slice);
        mgpu_array_free(&slice);
        mgpu_case_add(&data, c->arena, "%s=%s", c->inputs.tensor[i].name, path);
    }
    add_places(c, &c->inputs, &axes, &rows);
    out->data = data.item;
    out->batch_axis = axes.item;
    out->rows = rows.item;
    return 0;
}

/* ---- Weights --------------------------------------------------------------------------------- */

static const char *const *patterns(struct mgpu_case *c, const char *name)
{
    struct mgpu_case_list list = {0};
    struct json_object *names = mgpu_case_field(c, name);
    for (size_t i = 0; i < length(names); i++)
        mgpu_case_add(
            &list, c->arena, "%s",
            pattern(c->arena, json_object_get_string(json_object_array_get_idx(names, i))));
    return list.item;
}

static void add_trained(struct mgpu_options *out, struct mgpu_case *c)
{
    struct mgpu_case_list list = {0};
    struct json_object *names = mgpu_case_field(c, "trainable");
    struct json_object *merged = mgpu_case_field(c, "merged");
    for (size_t i = 0; i < length(names); i++)
        mgpu_case_add(
            &list, c->arena, "%s",
            pattern(c->arena, json_object_get_string(json_object_array_get_idx(names, i))));
    if (merged) {
        json_object_object_foreach(merged, name, parameters)
        {
            (void)parameters;
            mgpu_case_add(&list, c->arena, "%s", pattern(c->arena, name));
        }
    }
    out->train = list.item;
}

static void add_tied(struct mgpu_options *out, struct mgpu_case *c)
{
    struct mgpu_case_list list = {0};
    struct json_object *groups = mgpu_case_field(c, "tied");
    for (size_t i = 0; i < length(groups); i++) {
        struct json_object *group = json_object_array_get_idx(groups, i);
        for (size_t k = 1; k < length(group); k++)
            mgpu_case_add(&list, c->arena, "%s=%s",
                          json_object_get_string(json_object_array_get_idx(group, 0)),
                          json_object_get_string(json_object_array_get_idx(group, k)));
    }
    out->tie = list.item;
}

/* ---- All ------------------------------------------------------------------------------------- */

static void add_devices(struct mgpu_options *out, const char *devices, int ranks)
{
    out->devices = devices;
    out->strategy = ranks > 1 ? "data" : "auto";
    out->exact = true;
}

int mgpu_case_train_options(struct mgpu_options *out, struct mgpu_case *c, const char *devices,
                            int ranks, bool defaults)
{
    static const char *const no_dropout[] = {"off", NULL};
    const char *mode = mgpu_case_text(c->golden.json, "mode");
    *out = (struct mgpu_options)MGPU_OPTIONS;
    out->shuffle = false;
    out->batch = c->golden.batch;
    out->steps = c->golden.steps;
    out->dropout = no_dropout;
    out->as_exported = true;
    add_data(out, c);
    add_states(out, c);
    add_losses(out, c);
    add_optimizer(out, c);
    add_tied(out, c);
    add_devices(out, devices, ranks);
    out->freeze = patterns(c, "frozen");
    if (!defaults)
        add_trained(out, c);
    if (c->batch_norm)
        out->batch_norm = !strcmp(mode, "eval") ? "frozen" : ranks == 1 ? "train" : "sync";
    return 0;
}

int mgpu_case_predict_options(struct mgpu_options *out, struct mgpu_case *c, const char *devices,
                              int ranks)
{
    *out = (struct mgpu_options)MGPU_OPTIONS;
    out->shuffle = false;
    out->inference = true;
    out->predict = true;
    out->batch = c->golden.batch;
    add_devices(out, devices, ranks);
    return add_first_batch(out, c);
}
