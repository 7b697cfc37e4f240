#include "runtime/callbacks/early_stopping.h"

#include "runtime/base/status.h"
#include "runtime/callbacks/options.h"

#include <math.h>

int mgpu_early_stopping_parse(struct mgpu_early_stopping *s, const char *text,
                              const struct mgpu_logs *logs, struct mgpu_arena *arena)
{
    *s = (struct mgpu_early_stopping){.baseline = NAN};
    const char *monitor = NULL, *mode = NULL;
    const struct mgpu_callback_option options[] = {
        {"monitor", .text = &monitor},
        {"mode", .text = &mode},
        {"patience", .integer = &s->patience, .high = 1e9},
        {"min_delta", .real = &s->min_delta, .high = 1e300},
        {"baseline", .real = &s->baseline, .low = -1e300, .high = 1e300},
        {"start_from_epoch", .integer = &s->start_from_epoch, .high = 1e9},
        {"restore_best_weights", .flag = &s->restores},
    };
    int rc = mgpu_callback_options(text, options, sizeof options / sizeof *options, logs, arena);
    if (rc == 0)
        rc = mgpu_monitor_init(&s->monitor, monitor, mode, logs, "--early-stop");
    return mgpu_prefix(rc, "--early-stop %s", text);
}

bool mgpu_early_stopping_epoch(struct mgpu_early_stopping *s, int64_t epoch,
                               const struct mgpu_logs *logs)
{
    double value = mgpu_monitor_value(&s->monitor, logs);
    if (epoch < s->start_from_epoch)
        return false;
    s->wait++;
    s->best_now = s->restores && !s->kept;
    if (s->best_now)
        s->best_epoch = epoch;
    if (mgpu_monitor_beats(&s->monitor, value, s->monitor.best, s->min_delta)) {
        s->monitor.best = value;
        s->best_epoch = epoch;
        s->best_now = true;
        if (isnan(s->baseline) || mgpu_monitor_beats(&s->monitor, value, s->baseline, s->min_delta))
            s->wait = 0;
        return false;
    }
    s->stopped = s->wait >= s->patience && epoch > 0;
    return s->stopped;
}

bool mgpu_early_stopping_stopped(const struct mgpu_early_stopping *s)
{
    return s->stopped && s->wait >= s->patience;
}

int mgpu_early_stopping_record(struct mgpu_early_stopping *s, struct mgpu_record *r)
{
    bool same;
    MGPU_TRY(mgpu_monitor_record(&s->monitor, "early-stop", &same, r));
    if (!same)
        return 0;
    MGPU_TRY(mgpu_record_int(r, "early-stop.best_epoch", &s->best_epoch));
    MGPU_TRY(mgpu_record_int(r, "early-stop.wait", &s->wait));
    MGPU_TRY(mgpu_record_int(r, "early-stop.kept", &s->kept));
    return mgpu_record_int(r, "early-stop.stopped", &s->stopped);
}
