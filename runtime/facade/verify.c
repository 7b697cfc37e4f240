/* mgpu-partition --verify: a plan is run here, and what was predicted stands beside what was
 * measured. */
#include "partitioner/plan_file.h"
#include "partitioner/predict.h"
#include "partitioner/report.h"
#include "runtime/base/file_name.h"
#include "runtime/base/resident.h"
#include "runtime/base/status.h"
#include "runtime/facade/facade.h"
#include "runtime/facade/trial.h"

#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>

enum { CLASSES = 32 };

/* Something that was predicted and measured. */
struct pair {
    const char *name;
    double predicted, measured;
};

struct verify {
    const char *model, *plan;
    const struct mgpu_plan_file *file;
    struct mgpu_trial trial;
    struct mgpu_trainer *t; /* the trial's */
    struct mgpu_predict *predict;
    struct pair step; /* ms */
    int classes;
    struct pair class[CLASSES]; /* ms a step, all ranks */
    struct pair *memory;        /* bytes, by rank */
    int64_t before;             /* bytes of the process before anything is loaded */
    struct pair resident;       /* what it grew by */
};

/* ---- Running --------------------------------------------------------------------------------- */

static struct mgpu_program *program_of(const struct verify *v, int rank)
{
    for (int i = 0; i < v->t->compiled_count; i++)
        if (v->t->compiled[i].program[rank])
            return v->t->compiled[i].program[rank];
    return NULL;
}

static struct pair *class_of(struct verify *v, const char *name)
{
    int i = 0;
    while (i < v->classes && strcmp(v->class[i].name, name))
        i++;
    if (i == v->classes && v->classes < CLASSES)
        v->class[v->classes++].name = name;
    return &v->class[i < CLASSES ? i : CLASSES - 1];
}

static void add_classes(struct verify *v, int rank, int steps)
{
    const struct mgpu_program *p = program_of(v, rank);
    for (int k = 0; p && k < p->instructions; k++) {
        struct pair *c = class_of(v, mgpu_predict_class(&p->instruction[k]));
        c->predicted += mgpu_predict_ms(v->predict, p, rank, k);
        c->measured += 1e3 * v->t->times[rank][k] / steps;
    }
}

/* More steps, half as many, now with a clock around each instruction. */
static int time_instructions(struct verify *v)
{
    int ranks = mgpu_team_size(v->t->team), steps = v->trial.steps / 2;
    v->t->times = MGPU_NEW_ARRAY(v->t->arena, double *, ranks);
    for (int r = 0; r < ranks; r++) {
        const struct mgpu_program *p = program_of(v, r);
        v->t->times[r] = MGPU_NEW_ARRAY(v->t->arena, double, p ? p->instructions : 0);
    }
    MGPU_TRY(mgpu_trial_run(&v->trial, steps));
    for (int r = 0; r < ranks; r++)
        add_classes(v, r, steps);
    return 0;
}

static void take_memory(struct verify *v)
{
    int ranks = mgpu_team_size(v->t->team);
    v->memory = MGPU_NEW_ARRAY(v->t->arena, struct pair, ranks);
    for (int r = 0; r < ranks; r++) {
        const struct mgpu_rank *rank = mgpu_team_rank(v->t->team, r);
        v->memory[r].name = v->file->label[r];
        v->memory[r].predicted = (double)v->file->predicted.memory_bytes[r];
        for (int b = 0; b < MGPU_BUFFER_CONSTANTS; b++)
            v->memory[r].measured += (double)mgpu_rank_own(rank, (enum mgpu_buffer)b);
        const struct mgpu_program *p = program_of(v, r);
        if (p)
            v->memory[r].measured += (double)p->bytes[MGPU_BUFFER_CONSTANTS];
    }
    v->resident = (struct pair){.name = "resident_bytes",
                                .predicted = (double)v->file->predicted.resident_bytes,
                                .measured = (double)(mgpu_resident_bytes() - v->before)};
}

/* ---- Printing -------------------------------------------------------------------------------- */

static void print_pair(const struct pair *p, bool bytes, FILE *to)
{
    char a[MGPU_UNIT_TEXT], b[MGPU_UNIT_TEXT];
    if (bytes) {
        mgpu_bytes_text(a, (int64_t)p->predicted);
        mgpu_bytes_text(b, (int64_t)p->measured);
    } else {
        mgpu_ms_text(a, p->predicted);
        mgpu_ms_text(b, p->measured);
    }
    fprintf(to, "  %-22s %12s %12s", p->name, a, b);
    if (p->predicted > 0 && p->measured > 0)
        fprintf(to, " %+8.1f %%", 100 * (p->predicted / p->measured - 1));
    fputc('\n', to);
}

static void print(const struct verify *v, FILE *to)
{
    fprintf(to, "%s with %s (%s), batch %lld, %d steps\n\n  %-22s %12s %12s %10s\n", v->model,
            v->plan, v->file->strategy, (long long)v->t->batch, v->trial.steps, "", "predicted",
            "measured", "error");
    print_pair(&v->step, false, to);
    fputs("\na step's work, all devices (communication: what was waited for it)\n", to);
    for (int i = 0; i < v->classes; i++)
        print_pair(&v->class[i], false, to);
    fputs("\nmemory\n", to);
    for (int r = 0; r < mgpu_team_size(v->t->team); r++)
        print_pair(&v->memory[r], true, to);
    print_pair(&v->resident, true, to);
}

static void put_pair(struct json_object *o, const struct pair *p)
{
    struct json_object *both = json_object_new_object();
    json_object_object_add(both, "predicted", json_object_new_double(p->predicted));
    json_object_object_add(both, "measured", json_object_new_double(p->measured));
    json_object_object_add(o, p->name, both);
}

static void print_json(const struct verify *v, FILE *to)
{
    struct json_object *o = json_object_new_object(), *classes = json_object_new_object();
    struct json_object *memory = json_object_new_object();
    json_object_object_add(o, "strategy", json_object_new_string(v->file->strategy));
    json_object_object_add(o, "batch", json_object_new_int64(v->t->batch));
    json_object_object_add(o, "steps", json_object_new_int(v->trial.steps));
    put_pair(o, &v->step);
    for (int i = 0; i < v->classes; i++)
        put_pair(classes, &v->class[i]);
    for (int r = 0; r < mgpu_team_size(v->t->team); r++)
        put_pair(memory, &v->memory[r]);
    json_object_object_add(o, "class_ms", classes);
    json_object_object_add(o, "memory_bytes", memory);
    put_pair(o, &v->resident);
    fprintf(
        to, "%s\n",
        json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE));
    json_object_put(o);
}

/* ---- The whole ------------------------------------------------------------------------------- */

static int run(struct verify *v, const struct mgpu_options *options,
               const struct mgpu_partition_options *partition)
{
    MGPU_TRY(mgpu_trial_new(&v->trial, v->model, options));
    v->t = v->trial.trainer;
    v->file = v->t->plan_file;
    v->step = (struct pair){.name = "step_ms", .predicted = v->file->predicted.step_ms};
    MGPU_TRY(mgpu_predict_new(&v->predict, mgpu_plan_device_list(v->t->plan_file, v->t->arena),
                              v->file->replicas, v->file->places, partition->profile));
    MGPU_TRY(mgpu_trial_time(&v->trial, &v->step.measured));
    take_memory(v);
    return time_instructions(v);
}

static int verify(struct verify *v, struct mgpu_options *o,
                  const struct mgpu_partition_options *partition)
{
    struct mgpu_plan_file *file;
    if (mgpu_has_extension(v->plan, ".onnx"))
        return mgpu_fail(MGPU_EUSAGE,
                         "--verify %s: an annotated model holds no predictions; give the plan "
                         "that --plan PLAN.json writes",
                         v->plan);
    MGPU_TRY(mgpu_plan_file_read(&file, v->plan));
    o->plan = v->plan;
    int64_t planned = file->batch;
    mgpu_plan_file_free(file);
    if (planned > 0 && o->batch > 0 && o->batch != planned)
        return mgpu_fail(MGPU_EUSAGE,
                         "--verify %s: predicts a batch of %lld; --batch %lld needs a plan of its "
                         "own (--batch %lld --plan NEW.json)",
                         v->plan, (long long)planned, (long long)o->batch, (long long)o->batch);
    o->batch = planned > 0 ? planned : o->batch;
    return run(v, o, partition);
}

int mgpu_verify(const char *model, const char *plan, const struct mgpu_options *options,
                const struct mgpu_partition_options *partition, bool json, FILE *to)
{
    struct mgpu_options o = *options;
    struct verify v = {.model = model, .plan = plan, .before = mgpu_resident_bytes()};
    int rc = verify(&v, &o, partition);
    if (rc >= 0) {
        rc = 0;
        if (json)
            print_json(&v, to);
        else
            print(&v, to);
    }
    mgpu_predict_free(v.predict);
    mgpu_trial_free(&v.trial);
    return rc;
}
