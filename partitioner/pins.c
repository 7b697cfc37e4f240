#include "partitioner/pins.h"

#include "runtime/base/nearest.h"
#include "runtime/base/status.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

static const char INPUT[] = "input:";

/* " (a, b, ...)": the first few. */
static const char *list(struct mgpu_arena *arena, const char *const *names, int count)
{
    const char *text = "";
    for (int i = 0; i < count && i < 4; i++)
        text = mgpu_arena_format(arena, "%s%s%s", text, i ? ", " : "", names[i]);
    return mgpu_arena_format(arena, " (%s%s)", text, count > 4 ? ", ..." : "");
}

/* "; did you mean 'x'?" or nothing. */
static const char *hint(struct mgpu_arena *arena, const char *name, const char *const *names,
                        int count)
{
    const char *near = mgpu_nearest(name, names, count);
    return near ? mgpu_arena_format(arena, "; did you mean '%s'?", near) : "";
}

static int find_device(struct mgpu_arena *arena, const struct mgpu_pins *pins, const char *name)
{
    for (int i = 0; i < pins->devices; i++)
        if (!strcmp(pins->device[i], name))
            return i;
    return mgpu_fail(MGPU_EUSAGE, "'%s' is not one of the devices%s%s", name,
                     list(arena, pins->device, pins->devices),
                     hint(arena, name, pins->device, pins->devices));
}

static bool matches(const char *pattern, const char *name)
{
    return *name && (!strcmp(pattern, name) || !fnmatch(pattern, name, 0));
}

static int set(int *device, const struct mgpu_outline *o, const struct mgpu_pins *pins, int node,
               int to)
{
    if (device[node] >= 0 && device[node] != to)
        return mgpu_fail(MGPU_EUSAGE, "'%s' (%s) is pinned to %s already", o->node[node].output,
                         o->node[node].type, pins->device[device[node]]);
    device[node] = to;
    return 0;
}

/* ---- Patterns -------------------------------------------------------------------------------- */

static int pin_input(int *device, const struct mgpu_outline *o, const struct mgpu_pins *pins,
                     struct mgpu_arena *arena, const char *name, int to)
{
    int input = 0, found = 0;
    while (input < o->inputs && strcmp(o->input[input], name))
        input++;
    if (input == o->inputs)
        return mgpu_fail(MGPU_EUSAGE, "the model has no input '%s'%s%s", name,
                         list(arena, o->input, o->inputs), hint(arena, name, o->input, o->inputs));
    for (int i = 0; i < o->nodes; i++)
        if (o->node[i].from == input) {
            MGPU_TRY(set(device, o, pins, i, to));
            found++;
        }
    return found ? 0 : mgpu_fail(MGPU_EUSAGE, "nothing is reached from the input '%s' alone", name);
}

static int pin_nodes(int *device, const struct mgpu_outline *o, const struct mgpu_pins *pins,
                     struct mgpu_arena *arena, const char *pattern, int to)
{
    const char **names = MGPU_NEW_ARRAY(arena, const char *, 2 * o->nodes);
    int found = 0;
    for (int i = 0; i < o->nodes; i++) {
        const struct mgpu_outline_node *n = &o->node[i];
        names[2 * i] = n->output;
        names[2 * i + 1] = n->name;
        if (!matches(pattern, n->output) && !matches(pattern, n->name))
            continue;
        MGPU_TRY(set(device, o, pins, i, to));
        found++;
    }
    return found ? 0
                 : mgpu_fail(MGPU_EUSAGE, "no node that devices compute is called '%s'%s", pattern,
                             hint(arena, pattern, names, 2 * o->nodes));
}

static int pin(int *device, const struct mgpu_outline *o, const struct mgpu_pins *pins,
               struct mgpu_arena *arena, const char *text)
{
    const char *equal = strrchr(text, '=');
    if (!equal || equal == text || !equal[1])
        return mgpu_fail(MGPU_EUSAGE, "not PATTERN=DEVICE");
    char *pattern = mgpu_arena_string(arena, text);
    pattern[equal - text] = 0;
    int to = find_device(arena, pins, equal + 1);
    MGPU_TRY(to);
    if (!strncmp(pattern, INPUT, strlen(INPUT)))
        return pin_input(device, o, pins, arena, pattern + strlen(INPUT), to);
    return pin_nodes(device, o, pins, arena, pattern, to);
}

/* ---- Merge ----------------------------------------------------------------------------------- */

/* The last node that several others lead to, and what needs it. */
static int mark_last_join(const struct mgpu_outline *o, bool *in)
{
    int last = o->nodes - 1;
    while (last >= 0 && o->node[last].edges < 2)
        last--;
    if (last < 0)
        return 0;
    in[last] = true;
    for (int i = 0; i < o->edges; i++)
        if (in[o->edge[i].from])
            in[o->edge[i].to] = true;
    return 1;
}

static int mark_merge(const struct mgpu_outline *o, bool *in)
{
    int found = 0;
    for (int i = 0; i < o->nodes; i++) {
        in[i] = o->node[i].from == MGPU_FROM_SEVERAL;
        found += in[i];
    }
    return found ? found : mark_last_join(o, in);
}

static int merge(int *device, const struct mgpu_outline *o, const struct mgpu_pins *pins,
                 struct mgpu_arena *arena)
{
    bool *in = MGPU_NEW_ARRAY(arena, bool, o->nodes);
    int to = find_device(arena, pins, pins->merge);
    MGPU_TRY(to);
    if (!mark_merge(o, in))
        return mgpu_fail(MGPU_EUSAGE, "no branches meet in this model");
    for (int i = 0; i < o->nodes; i++)
        if (in[i])
            MGPU_TRY(set(device, o, pins, i, to));
    return 0;
}

int mgpu_pins_apply(int *device, const struct mgpu_outline *o, const struct mgpu_pins *pins)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    int rc = 0;
    for (int i = 0; i < o->nodes; i++)
        device[i] = -1;
    for (int i = 0; rc == 0 && pins->pin && pins->pin[i]; i++)
        rc = mgpu_prefix(pin(device, o, pins, arena, pins->pin[i]), "%s '%s'", pins->option,
                         pins->pin[i]);
    if (rc == 0 && pins->merge)
        rc = mgpu_prefix(merge(device, o, pins, arena), "--merge %s", pins->merge);
    mgpu_arena_free(arena);
    return rc;
}
