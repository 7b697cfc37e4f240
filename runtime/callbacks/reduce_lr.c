#include "runtime/callbacks/reduce_lr.h"

#include "runtime/base/status.h"
#include "runtime/callbacks/options.h"

#include <math.h>

int mgpu_reduce_lr_parse(struct mgpu_reduce_lr *c, const char *text, const struct mgpu_logs *logs,
                         struct mgpu_arena *arena)
{
    *c = (struct mgpu_reduce_lr){.factor = 0.1, .patience = 10, .min_delta = 1e-4};
    const char *monitor = NULL, *mode = NULL;
    const struct mgpu_callback_option options[] = {
        {"monitor", .text = &monitor},
        {"mode", .text = &mode},
        {"factor", .real = &c->factor, .high = 1 - 1e-12},
        {"patience", .integer = &c->patience, .high = 1e9},
        {"min_delta", .real = &c->min_delta, .high = 1e300},
        {"cooldown", .integer = &c->cooldown, .high = 1e9},
        {"min_lr", .real = &c->min_lr, .high = 1e300},
    };
    int rc = mgpu_callback_options(text, options, sizeof options / sizeof *options, logs, arena);
    if (rc == 0)
        rc = mgpu_monitor_init(&c->monitor, monitor, mode, logs, "--reduce-lr");
    return mgpu_prefix(rc, "--reduce-lr %s", text);
}

double mgpu_reduce_lr_epoch(struct mgpu_reduce_lr *c, const struct mgpu_logs *logs, double lr)
{
    double value = mgpu_monitor_value(&c->monitor, logs);
    if (c->cooldown_counter > 0) {
        c->cooldown_counter--;
        c->wait = 0;
    }
    if (mgpu_monitor_beats(&c->monitor, value, c->monitor.best, c->min_delta)) {
        c->monitor.best = value;
        c->wait = 0;
        return lr;
    }
    if (c->cooldown_counter > 0 || ++c->wait < c->patience || lr <= c->min_lr)
        return lr;
    c->cooldown_counter = c->cooldown;
    c->wait = 0;
    return fmax(lr * c->factor, c->min_lr);
}

int mgpu_reduce_lr_record(struct mgpu_reduce_lr *c, struct mgpu_record *r)
{
    bool same;
    MGPU_TRY(mgpu_monitor_record(&c->monitor, "reduce-lr", &same, r));
    if (!same)
        return 0;
    MGPU_TRY(mgpu_record_int(r, "reduce-lr.wait", &c->wait));
    return mgpu_record_int(r, "reduce-lr.cooldown_counter", &c->cooldown_counter);
}
