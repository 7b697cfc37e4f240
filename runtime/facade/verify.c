/* mgpu-partition --verify: a plan is run here, and what was predicted stands beside what was
 * measured. */
#include "partitioner/plan_file.h"
#include "partitioner/predict.h"
#include "partitioner/report.h"
#include "runtime/base/option_text.h"
#include "runtime/base/resident.h"
#include "runtime/base/status.h"
#include "runtime/facade/facade.h"
#include "runtime/facade/made_data.h"

#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WARM_UP = 3, LEAST_STEPS = 10, MOST_STEPS = 2000, CLASSES = 32 };
static const double SECONDS = 2;

/* Something that was predicted and measured. */
struct pair {
    const char *name;
    double predicted, measured;
};

struct verify {
    const char *model, *plan;
    const struct mgpu_plan_file *file;
    struct mgpu_trainer *t;
    struct mgpu_predict *predict;
    int steps;
    struct pair step; /* ms */
    int classes;
    struct pair class[CLASSES]; /* ms a step, all ranks */
    struct pair *memory;        /* bytes, by rank */
    int64_t before;             /* bytes of the process before anything is loaded */
    struct pair resident;       /* what it grew by */
};

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

/* ---- Running --------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int step(struct verify *v, double *ms)
{
    struct mgpu_step_result result;
    double start = now_ms();
    int rc = mgpu_step(v->t, &result);
    *ms = now_ms() - start;
    return rc == 0 ? mgpu_fail(MGPU_EINTERNAL, "no step is left") : rc;
}

/* The lower quartile of some steps: what else the machine does makes some longer and none shorter.
 */
static int time_steps(struct verify *v)
{
    double ms[MOST_STEPS], first = 0;
    for (int i = 0; i < WARM_UP; i++)
        MGPU_TRY(step(v, &first));
    double fits = 1e3 * SECONDS / (first > 0 ? first : 1);
    v->steps = fits < LEAST_STEPS ? LEAST_STEPS : fits > MOST_STEPS ? MOST_STEPS : (int)fits;
    for (int i = 0; i < v->steps; i++)
        MGPU_TRY(step(v, &ms[i]));
    qsort(ms, (size_t)v->steps, sizeof *ms, by_value);
    v->step.measured = ms[v->steps / 4];
    return 0;
}

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

static void add_classes(struct verify *v, int rank)
{
    const struct mgpu_program *p = program_of(v, rank);
    for (int k = 0; p && k < p->instructions; k++) {
        struct pair *c = class_of(v, mgpu_predict_class(&p->instruction[k]));
        c->predicted += mgpu_predict_ms(v->predict, p, rank, k);
        c->measured += 1e3 * v->t->times[rank][k] / v->steps;
    }
}

/* More steps, now with a clock around each instruction. */
static int time_instructions(struct verify *v)
{
    int ranks = mgpu_team_size(v->t->team);
    double ms;
    v->t->times = MGPU_NEW_ARRAY(v->t->arena, double *, ranks);
    for (int r = 0; r < ranks; r++) {
        const struct mgpu_program *p = program_of(v, r);
        v->t->times[r] = MGPU_NEW_ARRAY(v->t->arena, double, p ? p->instructions : 0);
    }
    for (int i = 0; i < v->steps; i++)
        MGPU_TRY(step(v, &ms));
    for (int r = 0; r < ranks; r++)
        add_classes(v, r);
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
            v->plan, v->file->strategy, (long long)v->t->batch, v->steps, "", "predicted",
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
    json_object_object_add(o, "steps", json_object_new_int(v->steps));
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
    MGPU_TRY(mgpu_trainer_new(&v->t, v->model, options));
    v->file = v->t->plan_file;
    v->step = (struct pair){.name = "step_ms", .predicted = v->file->predicted.step_ms};
    MGPU_TRY(mgpu_predict_new(&v->predict, mgpu_plan_device_list(v->t), v->file->replicas,
                              v->file->places, partition->profile));
    MGPU_TRY(time_steps(v));
    take_memory(v);
    return time_instructions(v);
}

/* Data of one batch, again and again, and the planner's losses where none are given. */
static int settle_options(struct mgpu_options *o, struct mgpu_made_data *data,
                          struct mgpu_trainer *planning, struct mgpu_arena *arena)
{
    struct mgpu_graph *g;
    const char *const *given = planning->options.loss;
    const char **loss = MGPU_NEW_ARRAY(arena, const char *, mgpu_text_count(given) + 1);
    MGPU_TRY(mgpu_build_graph(&g, planning, MGPU_MODE_TRAIN, o->batch, NULL));
    int rc = mgpu_made_data_new(data, g);
    mgpu_graph_free(g);
    for (int i = 0; i < mgpu_text_count(given); i++)
        loss[i] = mgpu_arena_string(arena, given[i]);
    o->data = data->data;
    o->batch_axis = data->batch_axis;
    o->rows = data->rows;
    o->loss = loss;
    o->shuffle = false;
    o->epochs = WARM_UP + 2 * MOST_STEPS + 1;
    return rc;
}

static int verify(struct verify *v, struct mgpu_options *o,
                  const struct mgpu_partition_options *partition, struct mgpu_arena *arena)
{
    struct mgpu_plan_file *file;
    struct mgpu_trainer *planning;
    struct mgpu_made_data data;
    MGPU_TRY(mgpu_plan_file_read(&file, v->plan));
    o->plan = v->plan;
    o->batch = o->batch > 0 ? o->batch : file->batch;
    mgpu_plan_file_free(file);
    MGPU_TRY(mgpu_trainer_planning(&planning, v->model, o));
    int rc = settle_options(o, &data, planning, arena);
    mgpu_trainer_free(planning);
    MGPU_TRY(rc);
    rc = run(v, o, partition);
    mgpu_made_data_free(&data);
    return rc;
}

int mgpu_verify(const char *model, const char *plan, const struct mgpu_options *options,
                const struct mgpu_partition_options *partition, bool json, FILE *to)
{
    struct mgpu_options o = *options;
    struct mgpu_arena *arena = mgpu_arena_new();
    struct verify v = {.model = model, .plan = plan, .before = mgpu_resident_bytes()};
    int rc = verify(&v, &o, partition, arena);
    if (rc >= 0) {
        rc = 0;
        if (json)
            print_json(&v, to);
        else
            print(&v, to);
    }
    mgpu_predict_free(v.predict);
    mgpu_trainer_free(v.t);
    mgpu_arena_free(arena);
    return rc;
}
