#include "runtime/callbacks/options.h"

#include "runtime/base/option_text.h"
#include "runtime/base/status.h"

#include <string.h>

static int set(const struct mgpu_callback_option *o, const struct mgpu_item *item)
{
    if (o->real)
        return mgpu_text_double(o->real, o->name, item->value, o->low, o->high);
    if (o->integer)
        return mgpu_text_int(o->integer, o->name, item->value, (int64_t)o->low, (int64_t)o->high);
    if (o->flag)
        return mgpu_text_bool(o->flag, o->name, item->value);
    if (!item->value)
        return mgpu_fail(MGPU_EUSAGE, "%s needs a value", o->name);
    *o->text = item->value;
    return 0;
}

static int set_item(const struct mgpu_callback_option *options, int count,
                    const struct mgpu_item *item, struct mgpu_arena *arena)
{
    const char **names = MGPU_NEW_ARRAY(arena, const char *, count);
    for (int i = 0; i < count; i++) {
        names[i] = options[i].name;
        if (!strcmp(item->name, names[i]))
            return set(&options[i], item);
    }
    return mgpu_unknown_word("option", item->name, names, count);
}

int mgpu_callback_options(const char *text, const struct mgpu_callback_option *options, int count,
                          const struct mgpu_logs *logs, struct mgpu_arena *arena)
{
    struct mgpu_item *items;
    int n;
    mgpu_items_cut(&items, &n, text, logs->name, logs->count, arena);
    for (int i = 0; i < n; i++)
        MGPU_TRY(set_item(options, count, &items[i], arena));
    return 0;
}
