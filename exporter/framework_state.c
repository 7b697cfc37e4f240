/* An optimizer's arrays as the model's framework has them: under its names in npz and safetensors,
 * in Keras's order in its store. */
#include "exporter/framework_names.h"
#include "exporter/slots.h"
#include "runtime/base/status.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The slot of a weight, in the layout of its holder; 0: there is none, else 1. */
static int slot_of(struct mgpu_array *whole, const struct mgpu_model_source *s, int weight,
                   int holder, const char *name)
{
    const struct mgpu_array *given = mgpu_array_list_find(&s->state->list, name);
    if (!given)
        return 0;
    MGPU_TRY(mgpu_array_init(whole, MGPU_FLOAT, given->rank, given->dims, name));
    mgpu_convert(whole->data, MGPU_FLOAT, given->data, given->type, mgpu_array_count(given));
    if (s->weights->weight[weight].holder[holder].copy != MGPU_COPY_TRANSPOSED)
        return 1;
    int64_t rows = given->dims[0], columns = given->dims[1];
    struct mgpu_array turned;
    int rc = mgpu_array_init(&turned, MGPU_FLOAT, 2, (int64_t[]){columns, rows}, name);
    if (rc == 0)
        mgpu_weight_transpose(turned.data, whole->data, MGPU_FLOAT, rows, columns);
    mgpu_array_free(whole);
    *whole = turned;
    return rc < 0 ? rc : 1;
}

/* That of the array's weight, of which `variable` is a part (or -1); 0: there is none, else 1. */
static int take_part(struct mgpu_array *out, const struct mgpu_framework_arrays *a, int i,
                     int variable, const struct mgpu_model_source *s, const char *slot)
{
    const struct mgpu_variable *x = variable < 0 ? NULL : &a->variables->variable[variable];
    int weight = x ? x->weight : a->from[i].weight, holder = x ? x->holder : a->from[i].holder;
    struct mgpu_array whole;
    enum mgpu_tail tail;
    const char *name = mgpu_arena_format(a->arena, "%s:%s", s->weights->weight[weight].name, slot);
    int found = slot_of(&whole, s, weight, holder, name);
    if (found <= 0)
        return found;
    int rc = mgpu_framework_array(out, a, i, variable, &whole, mgpu_slot_is_square(slot), &tail);
    mgpu_array_free(&whole);
    if (rc == 0 && tail != MGPU_TAIL_ZERO)
        rc = mgpu_fail(MGPU_EUNSUPPORTED,
                       "'%s': the graph has two halves of a recurrent bias with a state each, "
                       "Keras one bias",
                       name);
    return rc < 0 ? rc : 1;
}

static int take_slot(struct mgpu_array *out, const struct mgpu_framework_arrays *a, int i,
                     const struct mgpu_model_source *s, const char *slot)
{
    int variable = a->from[i].variable;
    int rc = a->from[i].weight < 0 ? 0 : take_part(out, a, i, variable, s, slot);
    while (rc > 0 && variable >= 0 &&
           (variable = mgpu_variable_next_part(a->variables, variable)) >= 0)
        rc = take_part(out, a, i, variable, s, slot);
    return rc;
}

static void add(struct mgpu_framework_arrays *a, const char *name, struct mgpu_array array)
{
    a->array = mgpu_grow(a->array, (size_t)a->count, sizeof *a->array);
    a->from = mgpu_grow(a->from, (size_t)a->count, sizeof *a->from);
    a->from[a->count] = (struct mgpu_framework_from){.variable = -1, .weight = -1, .tensor = -1};
    a->array[a->count++] = (struct mgpu_named_array){.name = (char *)name, .array = array};
}

static int add_number(struct mgpu_framework_arrays *a, const char *name, enum mgpu_dtype type,
                      double value)
{
    struct mgpu_array number;
    MGPU_TRY(mgpu_array_init(&number, type, 0, (int64_t[]){0}, name));
    mgpu_set_double(number.data, type, 0, value);
    add(a, name, number);
    return 0;
}

/* Whether the names are PyTorch's. */
static bool is_torch(const struct mgpu_framework_arrays *a, bool store)
{
    return !store && a->variables && a->variables->family == MGPU_FAMILY_TORCH;
}

/* tf_keras's SGD has velocities without a momentum, too, and does not look at them then. */
static bool has_idle(const struct mgpu_framework_arrays *a, int i, const char *slot)
{
    bool has = false;
    for (int k = 0; a->like && k < a->like->count && !has; k++) {
        const struct mgpu_checkpoint_tensor *t = &a->like->tensor[k];
        has = t->slot && !strcmp(t->slot, slot) && t->slot_of == a->from[i].tensor;
    }
    return has && !strcmp(slot, "velocity");
}

static int add_slot(struct mgpu_framework_arrays *a, int i, const struct mgpu_model_source *s,
                    const char *slot, bool store, int *index)
{
    struct mgpu_array array = {0};
    int rc = take_slot(&array, a, i, s, slot);
    if (rc == 0 && store && has_idle(a, i, slot)) {
        const struct mgpu_array *x = &a->array[i].array;
        rc = mgpu_array_init(&array, MGPU_FLOAT, x->rank, x->dims, slot);
        rc = rc < 0 ? rc : 1;
    }
    const char *weight = a->array[i].name;
    const char *name = is_torch(a, store) ? mgpu_slot_torch_name(slot) : slot;
    if (rc > 0)
        add(a,
            store ? mgpu_arena_format(a->arena, "optimizer/vars/%d", (*index)++)
                  : mgpu_arena_format(a->arena, "%s:%s", weight, name),
            array);
    else
        mgpu_array_free(&array);
    if (rc > 0 && is_torch(a, store) && mgpu_slot_torch_counts(slot))
        MGPU_TRY(add_number(a, mgpu_arena_format(a->arena, "%s:step", weight), MGPU_FLOAT,
                            (double)s->state->updates));
    return rc;
}

/* Keras's order (slots.h): Adam's two stand weight by weight, all others one kind after the other.
 */
static const char *const passes[][2] = {{"exp_avg", "exp_avg_sq"},
                                        {"max_exp_avg_sq"},
                                        {"square_avg"},
                                        {"velocity"},
                                        {"grad_avg"},
                                        {"sum"},
                                        {"momentum"}};
enum { PASSES = sizeof passes / sizeof *passes, KERAS_PASSES = PASSES - 1 };

static int add_slots(struct mgpu_framework_arrays *a, const struct mgpu_model_source *s, bool store,
                     int count, int index)
{
    int added = 0;
    for (int p = 0; p < (store ? KERAS_PASSES : PASSES); p++)
        for (int i = 0; i < count; i++)
            for (int k = 0; k < 2 && passes[p][k]; k++) {
                int one = add_slot(a, i, s, passes[p][k], store, &index);
                MGPU_TRY(one);
                added += one;
            }
    return added;
}

/* Keras 3's optimizer keeps the learning rate beside the count, unless it follows a schedule;
 * tf_keras's never does. The file that is followed says so, else the run that the state is of. */
static bool keeps_rate(const struct mgpu_framework_arrays *a, const struct mgpu_model_source *s)
{
    if (a->like && a->like->updates >= 0)
        return mgpu_checkpoint_keeps_rate(a->like);
    if (a->like)
        mgpu_note("%s is of a model without an optimizer: the state is written as Keras 3 has it, "
                  "and tf_keras skips it",
                  a->like->path);
    if (s->state->scheduled)
        mgpu_note("the learning rate followed a schedule: Keras takes the optimizer's state where "
                  "the model is compiled with a LearningRateSchedule; for one that is compiled "
                  "with a number, give --like FILE.keras, saved from it");
    return !s->state->scheduled;
}

int mgpu_framework_state(struct mgpu_framework_arrays *a, const struct mgpu_model_source *s,
                         enum mgpu_target target)
{
    bool store = target == MGPU_TARGET_KERAS_STORE, rated = store && keeps_rate(a, s);
    int count = a->count;
    if (rated && isnan(s->state->rate))
        return mgpu_fail(MGPU_EINVALID, "Keras wants the learning rate beside the optimizer's "
                                        "state, and it is not in the file that is read");
    MGPU_TRY(add_number(a, store ? "optimizer/vars/0" : MGPU_SLOT_UPDATES, MGPU_INT64,
                        (double)s->state->updates));
    if (rated)
        MGPU_TRY(add_number(a, "optimizer/vars/1", MGPU_FLOAT, s->state->rate));
    int added = add_slots(a, s, store, count, 1 + rated);
    return added || !s->state->list.count
               ? added < 0 ? added : 0
               : mgpu_fail(MGPU_EUNSUPPORTED, "Keras's optimizers have no such state (PyTorch's "
                                              "momentum is another number)");
}
