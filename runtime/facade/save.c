/* Trained weights into files. */
#include "exporter/atomic_file.h"
#include "exporter/model_write.h"
#include "runtime/base/file_name.h"
#include "runtime/base/status.h"
#include "runtime/data/dataset.h"
#include "runtime/facade/facade.h"

#include <string.h>

/* Whether training may have changed the weight: trained, or a statistic that a program moves. */
static bool changes(const struct mgpu_trainer *t, int weight)
{
    const struct mgpu_weight *w = &t->weights->weight[weight];
    int rank;
    if (mgpu_weights_given(t->weights, weight))
        return true;
    if (w->role != MGPU_ROLE_STATISTIC)
        return w->role == MGPU_ROLE_TRAINED && mgpu_find_stored(t, w->name, &rank);
    for (int i = 0; i < t->compiled_count; i++)
        for (int r = 0; r < MGPU_MAX_RANKS; r++) {
            const struct mgpu_program *p = t->compiled[i].program[r];
            for (int k = 0; p && k < p->graph->parameter_count; k++)
                if (p->graph->parameters[k].next && !strcmp(p->graph->parameters[k].name, w->name))
                    return true;
        }
    return false;
}

int mgpu_check_target(const char *path)
{
    struct mgpu_atomic_file f;
    MGPU_TRY(mgpu_atomic_open(&f, path));
    mgpu_atomic_abort(&f, 0);
    return 0;
}

/* [NAME=]FILE[:SET] */
static int check_data(struct mgpu_arena *arena, const char *path, const char *what,
                      const char *const *list)
{
    for (int i = 0; list && list[i]; i++) {
        const char *equals = strchr(list[i], '=');
        char *file = mgpu_arena_string(arena, equals ? equals + 1 : list[i]);
        MGPU_TRY(mgpu_check_other_file(path, list[i], what));
        mgpu_dataset_cut(file);
        MGPU_TRY(mgpu_check_other_file(path, file, what));
    }
    return 0;
}

int mgpu_check_apart(const struct mgpu_trainer *t, const char *path)
{
    const struct mgpu_options *o = &t->options;
    MGPU_TRY(mgpu_check_other_file(path, t->path, "the model that is read"));
    MGPU_TRY(mgpu_check_other_file(path, o->init, "the file of --init"));
    MGPU_TRY(mgpu_check_other_file(path, o->plan, "the file of --plan"));
    for (int i = 0; o->like && o->like[i]; i++)
        MGPU_TRY(mgpu_check_other_file(path, o->like[i], "a file of --like"));
    MGPU_TRY(mgpu_check_other_file(path, o->map, "the file of --map"));
    MGPU_TRY(check_data(t->arena, path, "the file of --sample-weight",
                        (const char *const[]){o->sample_weight, NULL}));
    for (int i = 0; i < t->losses; i++)
        MGPU_TRY(check_data(t->arena, path, "the file of class_weights",
                            (const char *const[]){t->loss[i].class_weights_file, NULL}));
    MGPU_TRY(check_data(t->arena, path, "a file of --data", o->data));
    return check_data(t->arena, path, "a file of --val", o->val);
}

static int check_entry(const struct mgpu_trainer *t, int rank, const struct mgpu_stored *e)
{
    struct mgpu_rank *of = mgpu_team_rank(t->team, rank);
    const char *data = of->buffer[e->buffer];
    int64_t n = e->bytes / (int64_t)mgpu_dtype_size(e->type);
    MGPU_TRY(mgpu_rank_download(of, e->buffer, e->offset, e->bytes));
    for (int64_t k = 0; k < n; k++) {
        double v = mgpu_get_double(data + e->offset, e->type, k);
        if (v - v != 0)
            return mgpu_fail(MGPU_EINVALID, "weight '%s' is not finite: not saved", e->name);
    }
    return 0;
}

int mgpu_check_finite(const struct mgpu_trainer *t)
{
    MGPU_TRY(mgpu_check_settled(t));
    for (int r = 0; r < t->plan->places; r++)
        for (int i = 0; i < t->store[r]->count; i++)
            if (t->store[r]->entry[i].role == MGPU_WEIGHT)
                MGPU_TRY(check_entry(t, r, &t->store[r]->entry[i]));
    return 0;
}

int mgpu_check_save_name(const char *path)
{
    enum mgpu_target target;
    return mgpu_target_of(&target, path, NULL);
}

static int contents(void *context, int weight, int holder, struct mgpu_array *out)
{
    return mgpu_holder_array(out, context, weight, holder);
}

static bool changed(void *context, int weight)
{
    return changes(context, weight);
}

static struct mgpu_model_source source_of(struct mgpu_trainer *t)
{
    return (struct mgpu_model_source){.model = t->model,
                                      .weights = t->weights,
                                      .contents = contents,
                                      .changed = changed,
                                      .context = t};
}

static struct mgpu_model_write_options write_options(const struct mgpu_trainer *t,
                                                     enum mgpu_target target)
{
    return (struct mgpu_model_write_options){.as_exported = t->options.as_exported,
                                             .by_order = t->options.by_order,
                                             .told = t->told[target],
                                             .like = t->options.like};
}

static int check_write(struct mgpu_trainer *t, const char *path, enum mgpu_target target)
{
    const struct mgpu_model_source source = source_of(t);
    const struct mgpu_model_write_options options = write_options(t, target);
    t->told[target] = true;
    return mgpu_model_write_check(&source, path, target, &options);
}

int mgpu_check_checkpoint(struct mgpu_trainer *t)
{
    enum mgpu_target target;
    const char *path = t->options.checkpoint;
    MGPU_TRY(mgpu_prefix(mgpu_target_of(&target, path, NULL), "--checkpoint"));
    return mgpu_prefix(check_write(t, path, target), "--checkpoint");
}

int mgpu_check_save(struct mgpu_trainer *t, const char *path)
{
    enum mgpu_target target;
    MGPU_TRY(mgpu_prefix(mgpu_target_of(&target, path, NULL), "--save"));
    MGPU_TRY(mgpu_check_target(path));
    MGPU_TRY(mgpu_prefix(mgpu_check_apart(t, path), "--save"));
    MGPU_TRY(mgpu_prefix(mgpu_check_other_file(path, t->options.resume, "the file of --resume"),
                         "--save"));
    return check_write(t, path, target);
}

int mgpu_save(struct mgpu_trainer *t, const char *path)
{
    enum mgpu_target target;
    int count;
    MGPU_TRY(mgpu_prefix(mgpu_target_of(&target, path, NULL), "--save"));
    const struct mgpu_model_source source = source_of(t);
    const struct mgpu_model_write_options options = write_options(t, target);
    MGPU_TRY(mgpu_prefix(mgpu_check_finite(t), "%s", path));
    return mgpu_model_write(&source, path, target, &options, &count);
}
