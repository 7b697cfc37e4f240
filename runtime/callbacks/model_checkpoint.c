#include "runtime/callbacks/model_checkpoint.h"

#include "runtime/base/status.h"
#include "runtime/callbacks/template.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A new file, and files that runs which were killed did not come to remove. */
enum { LEFT_MOST = 8 };

int mgpu_model_checkpoint_init(struct mgpu_model_checkpoint *c,
                               const struct mgpu_model_checkpoint_options *options,
                               const struct mgpu_logs *logs, struct mgpu_arena *arena)
{
    const char *name;
    *c = (struct mgpu_model_checkpoint){.options = *options, .arena = arena};
    c->file = MGPU_NEW_ARRAY(arena, const char *, options->keep + LEFT_MOST);
    MGPU_TRY(mgpu_prefix(mgpu_template_format(&name, arena, options->path, 1, logs),
                         "--checkpoint %s", options->path));
    return mgpu_prefix(mgpu_monitor_init(&c->monitor, options->monitor, options->mode, logs,
                                         options->save_best ? "--save-best" : NULL),
                       "--monitor, --mode");
}

static void drop_first(struct mgpu_model_checkpoint *c)
{
    memmove(c->file, c->file + 1, sizeof *c->file * (size_t)--c->kept);
}

/* The newest file is `path`. One that was written again is there once. */
static void add_file(struct mgpu_model_checkpoint *c, const char *path)
{
    int64_t n = 0;
    for (int64_t i = 0; i < c->kept; i++)
        if (strcmp(c->file[i], path) != 0)
            c->file[n++] = c->file[i];
    c->kept = n;
    if (n == c->options.keep + LEFT_MOST)
        drop_first(c);
    c->file[c->kept++] = path;
}

/* The oldest go when there are too many. Gives the last of them, NULL where there is none. */
static const char *remove_oldest(struct mgpu_model_checkpoint *c)
{
    const char *removed = NULL;
    for (; c->kept > c->options.keep; drop_first(c))
        if (unlink(c->file[0]) == 0)
            removed = c->file[0];
    return removed;
}

/* Whether this epoch's file is due. */
static bool is_due(struct mgpu_model_checkpoint *c, const struct mgpu_logs *logs)
{
    double value = mgpu_monitor_value(&c->monitor, logs);
    if (++c->epochs_since < c->options.period)
        return false;
    c->epochs_since = 0;
    if (c->options.save_best && !mgpu_monitor_beats(&c->monitor, value, c->monitor.best, 0))
        return false;
    if (c->options.save_best)
        c->monitor.best = value;
    return true;
}

int mgpu_model_checkpoint_epoch(struct mgpu_model_checkpoint *c, int64_t epoch,
                                const struct mgpu_logs *logs, const struct mgpu_save_sink *sink,
                                const char **saved, const char **removed)
{
    *saved = *removed = NULL;
    if (!is_due(c, logs))
        return 0;
    MGPU_TRY(mgpu_template_format(saved, c->arena, c->options.path, epoch + 1, logs));
    if (c->options.keep) /* before the file is written, which holds the list: of a run that is
                          * killed before it removes the oldest, too */
        add_file(c, *saved);
    MGPU_TRY(sink->save(sink->context, *saved, c->options.weights_only));
    if (c->options.keep)
        *removed = remove_oldest(c);
    return 0;
}

const char *mgpu_model_checkpoint_step(const struct mgpu_model_checkpoint *c, int64_t step)
{
    const struct mgpu_model_checkpoint_options *o = &c->options;
    if (!o->save_best && !o->weights_only && !strpbrk(o->path, "{}"))
        return o->path;
    return mgpu_template_step(c->arena, o->path, step);
}

/* A file of the run before, which will go when there are too many: only if it is called as ours. */
static void take_file(struct mgpu_model_checkpoint *c, const char *file)
{
    if (mgpu_template_gives(c->options.path, file))
        c->file[c->kept++] = mgpu_arena_string(c->arena, file);
    else
        mgpu_note("--keep: %s of the run before stays: --checkpoint calls files otherwise now",
                  file);
}

int mgpu_model_checkpoint_record(struct mgpu_model_checkpoint *c, struct mgpu_record *r)
{
    int64_t kept = c->kept;
    bool same;
    if (c->options.save_best)
        MGPU_TRY(mgpu_monitor_record(&c->monitor, "checkpoint", &same, r));
    if (r->restores && !mgpu_record_has(r, "checkpoint.kept"))
        return 0;
    MGPU_TRY(mgpu_record_int(r, "checkpoint.epochs_since", &c->epochs_since));
    MGPU_TRY(mgpu_record_int(r, "checkpoint.kept", &kept));
    for (int64_t i = 0; i < kept; i++) {
        char name[64];
        const char *file = i < c->kept ? c->file[i] : NULL;
        snprintf(name, sizeof name, "checkpoint.kept.%lld", (long long)i);
        MGPU_TRY(mgpu_record_text(r, name, &file));
        if (r->restores && c->options.keep && kept - i < c->options.keep + LEFT_MOST)
            take_file(c, file);
    }
    return 0;
}
