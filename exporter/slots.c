#include "exporter/slots.h"

#include "runtime/base/names.h"
#include "runtime/base/status.h"

#include <json-c/json.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { KINDS_MOST = 3 };

/* ---- By name --------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    bool square;
} slots[] = {
    {"momentum", false},      {"velocity", false},  {"exp_avg", false},  {"exp_avg_sq", true},
    {"max_exp_avg_sq", true}, {"square_avg", true}, {"grad_avg", false}, {"sum", true},
};
enum { SLOTS = sizeof slots / sizeof *slots };

static const char MOMENTUM_BUFFER[] = "momentum_buffer", STEP[] = ":step";

static const char *slot_called(const char *name)
{
    if (!strcmp(name, MOMENTUM_BUFFER))
        name = "momentum";
    for (int i = 0; i < SLOTS; i++)
        if (!strcmp(name, slots[i].name))
            return slots[i].name;
    return NULL;
}

const char *mgpu_slot_torch_name(const char *slot)
{
    return strcmp(slot, "momentum") ? slot : MOMENTUM_BUFFER;
}

bool mgpu_slot_torch_counts(const char *slot)
{
    return !strcmp(slot, "exp_avg") || !strcmp(slot, "square_avg") || !strcmp(slot, "sum");
}

bool mgpu_slot_is_square(const char *slot)
{
    for (int i = 0; i < SLOTS; i++)
        if (!strcmp(slot, slots[i].name))
            return slots[i].square;
    return false;
}

static bool same_shape(const struct mgpu_checkpoint_tensor *a,
                       const struct mgpu_checkpoint_tensor *b)
{
    return a->rank == b->rank && !memcmp(a->dims, b->dims, sizeof *a->dims * (size_t)a->rank);
}

static void set_slot(struct mgpu_checkpoint *c, int tensor, const char *slot, int of)
{
    c->tensor[tensor].weight = false;
    c->tensor[tensor].slot = slot;
    c->tensor[tensor].slot_of = of;
}

/* What was carried as Keras calls it: rates, placeholders, slots that nobody knows. */
static bool is_optimizers(const char *name)
{
    return !strncmp(name, "optimizer_weights/", 18) || !strncmp(name, "/optimizer/vars/", 16);
}

/* The weight that "WEIGHT:step", a number, is of; NULL: it is no such count. */
static const struct mgpu_checkpoint_tensor *of_step(struct mgpu_checkpoint *c,
                                                    const struct mgpu_names *known,
                                                    const struct mgpu_checkpoint_tensor *t)
{
    const char *colon = strrchr(t->name, ':');
    if (!colon || strcmp(colon, STEP) || t->rank > 0)
        return NULL;
    return mgpu_names_get(known,
                          mgpu_arena_format(c->arena, "%.*s", (int)(colon - t->name), t->name));
}

static bool is_step(const struct mgpu_checkpoint_tensor *t)
{
    const char *colon = strrchr(t->name, ':');
    return !t->weight && colon && !strcmp(colon, STEP);
}

static void find_named(struct mgpu_checkpoint *c)
{
    struct mgpu_names *known = mgpu_names_new(c->arena);
    for (int i = 0; i < c->count; i++)
        mgpu_names_set(known, c->tensor[i].name, &c->tensor[i]);
    for (int i = 0; i < c->count; i++) {
        struct mgpu_checkpoint_tensor *t = &c->tensor[i];
        const char *colon = strrchr(t->name, ':'), *slot = colon ? slot_called(colon + 1) : NULL;
        if (!strcmp(t->name, MGPU_SLOT_UPDATES))
            c->updates = i;
        if (c->updates == i || is_optimizers(t->name))
            t->weight = false;
        if (of_step(c, known, t)) {
            t->weight = false;
            c->updates = c->updates < 0 ? i : c->updates;
        }
        if (!slot)
            continue;
        const struct mgpu_checkpoint_tensor *of = mgpu_names_get(
            known, mgpu_arena_format(c->arena, "%.*s", (int)(colon - t->name), t->name));
        if (of && same_shape(of, t))
            set_slot(c, i, slot, (int)(of - c->tensor));
    }
}

/* ---- By Keras's order ------------------------------------------------------------------------ */

struct optimizer {
    const char *name;
    int kinds;
    const char *slot[KINDS_MOST];
    bool centered;
};

static const struct optimizer optimizers[] = {
    {"Adam", 2, {"exp_avg", "exp_avg_sq"}, false},
    {"Adam", 3, {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, false},
    {"AdamW", 2, {"exp_avg", "exp_avg_sq"}, false},
    {"SGD", 1, {"velocity"}, false},
    {"RMSprop", 1, {"square_avg"}, false},
    {"RMSprop", 2, {"square_avg", "velocity"}, false},
    {"RMSprop", 2, {"square_avg", "grad_avg"}, true},
    {"RMSprop", 3, {"square_avg", "velocity", "grad_avg"}, true},
    {"Adagrad", 1, {"sum"}, false},
};

static struct json_object *member(struct json_object *o, const char *name)
{
    struct json_object *out;
    return json_object_is_type(o, json_type_object) && json_object_object_get_ex(o, name, &out)
               ? out
               : NULL;
}

static bool is_archive(const struct mgpu_checkpoint *c)
{
    return c->kind == MGPU_CHECKPOINT_KERAS_ARCHIVE;
}

struct compiled {
    const char *class; /* "Adam"; "" where the file names none */
    bool centered;
};

/* Of the training configuration, which an archive has in the model's. A rate that is an object is a
 * schedule. */
static void find_compiled(struct compiled *out, struct mgpu_checkpoint *c)
{
    const char *text = is_archive(c) ? c->config : c->training;
    struct json_object *all = text ? json_tokener_parse(text) : NULL;
    struct json_object *optimizer = is_archive(c)
                                        ? member(member(all, "compile_config"), "optimizer")
                                        : member(all, "optimizer_config");
    struct json_object *name = member(optimizer, "class_name"),
                       *config = member(optimizer, "config");
    *out = (struct compiled){"", json_object_get_boolean(member(config, "centered"))};
    if (json_object_is_type(name, json_type_string))
        out->class = mgpu_arena_string(c->arena, json_object_get_string(name));
    c->scheduled = json_object_is_type(member(config, "learning_rate"), json_type_object);
    json_object_put(all);
    const char *registered = strrchr(out->class, '>'); /* "Custom>Adam" */
    out->class = registered ? registered + 1 : out->class;
}

static const struct optimizer *optimizer_of(const struct compiled *as, int kinds)
{
    for (size_t i = 0; i < sizeof optimizers / sizeof *optimizers; i++) {
        const struct optimizer *o = &optimizers[i];
        if (!strcasecmp(o->name, as->class) && o->kinds == kinds && o->centered == as->centered)
            return o;
    }
    return NULL;
}

struct lists {
    int weights, slots;
    int *weight, *slot; /* numbers of tensors */
};

static bool is_statistic(const struct mgpu_checkpoint_tensor *t)
{
    return !strcmp(t->leaf, "moving_mean") || !strcmp(t->leaf, "moving_variance");
}

/* An archive has metrics, too, and random seeds. */
static bool may_be_slot(const struct mgpu_checkpoint *c, const struct mgpu_checkpoint_tensor *t)
{
    return !t->weight && (!is_archive(c) || !strcmp(t->group, "optimizer"));
}

/* Weights that are trained, and what the optimizer has of their shapes: no counters and rates, and
 * no placeholder of one element for a slot that Adam does without. */
static void make_lists(struct lists *l, struct mgpu_checkpoint *c)
{
    l->weight = MGPU_NEW_ARRAY(c->arena, int, c->count);
    l->slot = MGPU_NEW_ARRAY(c->arena, int, c->count);
    for (int i = 0; i < c->count; i++) {
        const struct mgpu_checkpoint_tensor *t = &c->tensor[i];
        bool slot = may_be_slot(c, t);
        if (t->weight && !is_statistic(t) && !t->frozen)
            l->weight[l->weights++] = i;
        else if (slot && t->rank > 0)
            l->slot[l->slots++] = i;
        else if (slot && t->index == 0 && c->updates < 0)
            c->updates = i;
    }
    int ends = 0;
    while (ends < l->slots && c->tensor[l->slot[l->slots - 1 - ends]].rank == 1 &&
           c->tensor[l->slot[l->slots - 1 - ends]].dims[0] == 1)
        ends++;
    if (l->slots == 3 * l->weights && ends >= l->weights)
        l->slots -= l->weights;
}

/* Slot `kind` of weight number `w` in an order. The third comes behind all others in both. */
static int slot_at(const struct lists *l, int kinds, bool by_weight, int w, int kind)
{
    int each = kinds < 2 ? kinds : 2;
    return l->slot[by_weight && kind < 2 ? w * each + kind : kind * l->weights + w];
}

static bool fits(const struct mgpu_checkpoint *c, const struct lists *l, int kinds, bool by_weight)
{
    bool fine = true;
    for (int w = 0; fine && w < l->weights; w++)
        for (int k = 0; fine && k < kinds; k++)
            fine = same_shape(&c->tensor[l->weight[w]],
                              &c->tensor[slot_at(l, kinds, by_weight, w, k)]);
    return fine;
}

/* Where shapes do not tell: what Keras's newer optimizers, whose counter is called so, do. */
static bool goes_by_weight(const struct mgpu_checkpoint *c, const char *class)
{
    const char *counter = c->updates >= 0 ? c->tensor[c->updates].name : "";
    const char *slash = strrchr(counter, '/');
    bool newer = is_archive(c) || (slash && !strncmp(slash, "/iteration", 10) && slash[10] != 's');
    return newer && strcasecmp(class, "RMSprop") != 0;
}

static void find_ordered(struct mgpu_checkpoint *c)
{
    struct lists l = {0};
    struct compiled as;
    find_compiled(&as, c);
    make_lists(&l, c);
    int kinds = l.weights && l.slots % l.weights == 0 ? l.slots / l.weights : 0;
    const struct optimizer *o = optimizer_of(&as, kinds);
    if (!o)
        return;
    bool apart = fits(c, &l, kinds, false), by_weight = fits(c, &l, kinds, true);
    if (apart && by_weight)
        by_weight = goes_by_weight(c, as.class);
    else if (!apart && !by_weight)
        return;
    for (int w = 0; w < l.weights; w++)
        for (int k = 0; k < kinds; k++)
            set_slot(c, slot_at(&l, kinds, by_weight, w, k), o->slot[k], l.weight[w]);
}

void mgpu_checkpoint_slots(struct mgpu_checkpoint *c)
{
    c->updates = -1;
    if (c->kind == MGPU_CHECKPOINT_KERAS_MODEL || (is_archive(c) && c->ordered))
        find_ordered(c);
    else if (c->kind == MGPU_CHECKPOINT_KERAS_WEIGHTS || c->kind == MGPU_CHECKPOINT_SAFETENSORS ||
             c->kind == MGPU_CHECKPOINT_NPZ)
        find_named(c);
}

int mgpu_checkpoint_state_count(const struct mgpu_checkpoint *c)
{
    int n = 0;
    for (int i = 0; i < c->count; i++)
        n += c->tensor[i].slot || i == c->updates || is_optimizers(c->tensor[i].name) ||
             is_step(&c->tensor[i]);
    return n;
}

int mgpu_checkpoint_state_check(const struct mgpu_checkpoint *c)
{
    return c->lost ? mgpu_fail(MGPU_EINVALID, "%s is damaged: '%s', which the run wrote, is lost",
                               c->path, c->lost)
                   : 0;
}

bool mgpu_checkpoint_only_counts(const struct mgpu_checkpoint *c)
{
    bool only = c->updates >= 0;
    for (int i = 0; i < c->count && only; i++)
        only = !may_be_slot(c, &c->tensor[i]) || !c->tensor[i].rank;
    return only;
}

/* Of the training configuration: "lr" in older Keras. */
static double configured_rate(const struct mgpu_checkpoint *c)
{
    struct json_object *all = c->training ? json_tokener_parse(c->training) : NULL;
    struct json_object *config = member(member(all, "optimizer_config"), "config");
    struct json_object *rate = member(config, "learning_rate");
    rate = rate ? rate : member(config, "lr");
    bool number =
        json_object_is_type(rate, json_type_double) || json_object_is_type(rate, json_type_int);
    double out = number ? json_object_get_double(rate) : NAN;
    json_object_put(all);
    return out;
}

static bool is_rate(const struct mgpu_checkpoint_tensor *t)
{
    return !strcmp(t->name, "/optimizer/vars/1") && !t->rank && mgpu_is_float(t->type);
}

bool mgpu_checkpoint_keeps_rate(const struct mgpu_checkpoint *c)
{
    bool keeps = false;
    for (int i = 0; i < c->count && !keeps; i++)
        keeps = is_rate(&c->tensor[i]);
    return keeps;
}

int mgpu_checkpoint_rate(double *out, const struct mgpu_checkpoint *c)
{
    *out = c->kind == MGPU_CHECKPOINT_KERAS_MODEL ? configured_rate(c) : NAN;
    for (int i = 0; i < c->count; i++) {
        struct mgpu_array a;
        if (!is_rate(&c->tensor[i]))
            continue;
        MGPU_TRY(mgpu_checkpoint_load(c, i, &a));
        *out = mgpu_get_double(a.data, a.type, 0);
        mgpu_array_free(&a);
    }
    return 0;
}

static int read_count(int64_t *out, const struct mgpu_checkpoint *c, int tensor)
{
    struct mgpu_array a;
    MGPU_TRY(mgpu_checkpoint_load(c, tensor, &a));
    double n = mgpu_array_count(&a) == 1 ? mgpu_get_double(a.data, a.type, 0) : -1;
    mgpu_array_free(&a);
    if (!(n >= 0 && n < 0x1p53))
        return mgpu_fail(MGPU_EINVALID, "%s: '%s' is no number of updates", c->path,
                         c->tensor[tensor].name);
    *out = (int64_t)n;
    return 0;
}

static bool has_slot(const struct mgpu_checkpoint *c, const char *slot)
{
    for (int i = 0; i < c->count; i++)
        if (c->tensor[i].slot && !strcmp(c->tensor[i].slot, slot))
            return true;
    return false;
}

/* Adam's means are corrected by the count; PyTorch's SGD, which has none, begins its momentum with
 * the first update. */
static int without_count(int64_t *out, const struct mgpu_checkpoint *c)
{
    *out = has_slot(c, "momentum");
    return has_slot(c, "exp_avg")
               ? mgpu_fail(MGPU_EINVALID,
                           "%s does not say after how many updates the optimizer's state is "
                           "(" MGPU_SLOT_UPDATES ", or WEIGHT%s)",
                           c->path, STEP)
               : 0;
}

int mgpu_checkpoint_updates(int64_t *out, const struct mgpu_checkpoint *c)
{
    int64_t other;
    if (c->updates < 0)
        return without_count(out, c);
    MGPU_TRY(read_count(out, c, c->updates));
    for (int i = 0; i < c->count; i++) {
        if (!is_step(&c->tensor[i]))
            continue;
        MGPU_TRY(read_count(&other, c, i));
        if (other != *out)
            return mgpu_fail(MGPU_EUNSUPPORTED,
                             "%s: '%s' is %lld and '%s' %lld: an optimizer has one count of "
                             "updates here",
                             c->path, c->tensor[c->updates].name, (long long)*out,
                             c->tensor[i].name, (long long)other);
    }
    return 0;
}
