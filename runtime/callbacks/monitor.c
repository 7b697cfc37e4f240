#include "runtime/callbacks/monitor.h"

#include "runtime/base/option_text.h"
#include "runtime/base/status.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int find(const struct mgpu_logs *logs, const char *name)
{
    for (int i = 0; i < logs->count; i++)
        if (!strcmp(logs->name[i], name))
            return i;
    return -1;
}

/* Keras's rule (accuracy and F-measure are better when larger, all else when smaller), and the
 * other metrics that are. A loss of an output may be called anything. */
static bool larger_is_better(const char *name)
{
    if (!strncmp(name, "val_", 4))
        name += 4;
    if (!strncmp(name, "loss", 4))
        return false;
    return strstr(name, "acc") || strstr(name, "top") || strstr(name, "auc") ||
           !strncmp(name, "fmeasure", 8);
}

int mgpu_monitor_init(struct mgpu_monitor *m, const char *name, const char *mode,
                      const struct mgpu_logs *logs, const char *option)
{
    static const char *const modes[] = {"auto", "min", "max"};
    if (!name && find(logs, "val_loss") < 0 && option)
        mgpu_note("%s watches the loss of training: there are no validation data (--val, "
                  "--val-split)",
                  option);
    if (!name)
        name = find(logs, "val_loss") >= 0 ? "val_loss" : "loss";
    m->name = name;
    m->index = find(logs, name);
    if (m->index < 0)
        return mgpu_unknown_word("monitor", name, logs->name, logs->count);
    if (mode && strcmp(mode, modes[0]) && strcmp(mode, modes[1]) && strcmp(mode, modes[2]))
        return mgpu_unknown_word("mode", mode, modes, 3);
    m->max = mode && strcmp(mode, modes[0]) ? !strcmp(mode, modes[2]) : larger_is_better(name);
    m->best = m->max ? -INFINITY : INFINITY;
    return 0;
}

double mgpu_monitor_value(const struct mgpu_monitor *m, const struct mgpu_logs *logs)
{
    return logs->value[m->index];
}

bool mgpu_monitor_beats(const struct mgpu_monitor *m, double value, double reference,
                        double min_delta)
{
    return m->max ? value - min_delta > reference : value + min_delta < reference;
}

int mgpu_monitor_record(struct mgpu_monitor *m, const char *prefix, bool *same,
                        struct mgpu_record *r)
{
    char name[64];
    const char *watched = m->name;
    int64_t max = m->max;
    *same = true;
    snprintf(name, sizeof name, "%s.monitor", prefix);
    if (!r->restores || mgpu_record_has(r, name))
        MGPU_TRY(mgpu_record_text(r, name, &watched));
    else
        *same = false;
    snprintf(name, sizeof name, "%s.max", prefix);
    if (*same)
        MGPU_TRY(mgpu_record_int(r, name, &max));
    *same = *same && !strcmp(watched, m->name) && max == m->max;
    if (!*same) {
        mgpu_note("--%s begins afresh: the run before did not watch %s", prefix, m->name);
        return 0;
    }
    snprintf(name, sizeof name, "%s.best", prefix);
    return mgpu_record_real(r, name, &m->best);
}
