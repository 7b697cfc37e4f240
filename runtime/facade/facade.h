/* Inside the facade: the trainer, and what its files share. The only place that knows all parts. */
#ifndef MGPU_FACADE_FACADE_H
#define MGPU_FACADE_FACADE_H

#include "exporter/run_state.h"
#include "exporter/event_file.h"
#include "importer/lower.h"
#include "runtime/callbacks/csv_log.h"
#include "runtime/callbacks/early_stopping.h"
#include "runtime/callbacks/model_checkpoint.h"
#include "runtime/callbacks/reduce_lr.h"
#include "runtime/callbacks/template.h"
#include "runtime/compile/program.h"
#include "runtime/data/feed.h"
#include "runtime/executor/executor.h"
#include "runtime/executor/team.h"
#include "runtime/facade/weights_file.h"
#include "runtime/graph/step_scalar.h"
#include "runtime/mgpu.h"
#include "runtime/train/loss.h"
#include "runtime/train/metric.h"
#include "runtime/train/optimizer.h"

/* What a graph is built for. */
enum mgpu_mode {
    MGPU_MODE_TRAIN,    /* losses, metrics, gradients, updates, running statistics */
    MGPU_MODE_EVALUATE, /* losses and metrics in inference form */
    MGPU_MODE_PREDICT,  /* the model's outputs in inference form */
    MGPU_MODE_GRADIENT, /* losses and gradients in training form, nothing changes */
};

/* The programs of one mode and one local batch size: one a rank that needs it, NULL else. */
struct mgpu_compiled {
    enum mgpu_mode mode;
    int64_t batch;
    struct mgpu_program *program[MGPU_MAX_RANKS];
};

/* Sums over an epoch or an evaluation. */
struct mgpu_totals {
    int64_t samples;
    double loss[MGPU_MAX_LOSSES], count[MGPU_MAX_LOSSES]; /* loss * count, count */
    double *metric_sum, *metric_count;
};

/* Data bound to graph inputs, and the host's copies that the counts are taken from. */
struct mgpu_source {
    struct mgpu_feed *feed;
    struct mgpu_batches batches;
    bool open;
    int64_t *digest;   /* by want: of its data (mgpu_feed_digest); NULL: not taken yet */
    int *slot_of_loss; /* -1: no labels */
    int sample_weight_slot;
};

/* The losses of the steps of this run, as the means of `each` neighbours. */
enum { MGPU_HISTORY = 1024 };
struct mgpu_history {
    int64_t steps, each;
    double mean[MGPU_HISTORY];
};

/* The numbers of an epoch. */
struct mgpu_epoch_row {
    int64_t epoch; /* from 1 */
    double *value; /* as logs.value */
};

/* What happens when epochs end. */
struct mgpu_epochs {
    struct mgpu_logs logs;      /* training's numbers, "val_" and validation's, learning_rate */
    struct mgpu_number *number; /* the same but the last, as they are handed out */
    int rows;
    struct mgpu_epoch_row *row; /* of the epochs so far */
    int training;               /* how many are training's */
    /* NULL: not asked for */
    struct mgpu_early_stopping *stop;
    struct mgpu_reduce_lr *reduce;
    struct mgpu_model_checkpoint *checkpoint;
    struct mgpu_csv_log *csv;
    struct mgpu_event_file *events[2]; /* training, validation */
    bool logs_open;                    /* csv, events: from the first step on */
    bool stopped;
    bool unfinished;  /* the end of the epoch failed so that no checkpoint can stand for it */
    bool best_again;  /* the run is over, and the weights are those of its best epoch */
    double lr_scale;  /* what --reduce-lr made of every learning rate */
    const char *full; /* the last full checkpoint, of step `full_step`; NULL: none yet */
    int64_t full_step;
};

/* Inputs that a rank was sent already, while the piece before them ran. */
struct mgpu_ahead {
    enum mgpu_mode mode;
    int64_t step; /* 0: none */
    int piece;
};

/* The batch after the one that was told last, whose first piece the ranks have already
 * (options.run_ahead). */
struct mgpu_begun {
    enum mgpu_mode mode;
    int64_t step; /* 0: none */
    double counts[MGPU_MAX_LOSSES];
};

enum { MGPU_RESULT_SUMS = 64, MGPU_KEPT = 3, MGPU_BEST = 2 };

/* Training has its own state; evaluations and predictions start theirs afresh. */
enum mgpu_state_set { MGPU_STATE_TRAINED, MGPU_STATE_ASIDE, MGPU_STATE_SETS };

struct mgpu_carried { /* one --state */
    const char *input, *output;
    bool from_zero; /* no data hold its start */
    enum mgpu_dtype type;
    int axis; /* that counts samples */
    int64_t outer, inner, places;
    size_t bytes;                /* of `inner` elements */
    void *rows[MGPU_STATE_SETS]; /* [outer, places, inner] */
    void *next;                  /* what the batch that runs makes of them */
};

/* Gradients in float16 are multiplied by `scale`, so that small ones are not lost. */
struct mgpu_loss_scale {
    bool on;
    double asked;        /* to begin with; 0: nobody did */
    double scale, used;  /* of the next step and of the last one */
    int64_t good, every; /* finite steps since it changed; it doubles after so many */
};

/* What graphs are built for: the trainer's devices; while it is planned, what is planned for now.
 */
enum mgpu_graphs_for { MGPU_FOR_DEVICES, MGPU_FOR_CPUS, MGPU_FOR_GPUS };

struct mgpu_trainer {
    struct mgpu_arena *arena;
    struct mgpu_options options;
    char *path;    /* of the model */
    bool planning; /* there are no data, and labels are made up */
    enum mgpu_graphs_for graphs_for;

    struct mgpu_onnx_file *file;
    struct mgpu_onnx_model *model;
    struct mgpu_weights *weights;
    struct mgpu_lower_options lower; /* without mode and batch */
    enum mgpu_norm_mode norm;
    enum mgpu_dtype half; /* values are kept in it where that pays (half.h); 0: nowhere */
    bool tf32;
    struct mgpu_loss_scale scaling;
    const char *fresh[3]; /* --classes: initializers of the new head; NULL at the end */

    struct mgpu_rank_device *devices;
    int device_count; /* as asked for; once there is a plan, those that it gives a rank */
    struct mgpu_team *team;
    struct mgpu_plan *plan;
    struct mgpu_plan_file *plan_file; /* that it came from, or NULL */
    int pieces;

    int losses;
    struct mgpu_loss *loss;
    int metrics;
    struct mgpu_metric *metric;
    struct mgpu_optimizer optimizer;
    struct mgpu_schedule schedule;
    struct mgpu_state_start *starts;
    int start_count;
    struct mgpu_model_state slots; /* --optimizer-state: instead of those */

    int carries;
    struct mgpu_carried *carried;
    struct mgpu_carry *carry[MGPU_MAX_RANKS]; /* by rank: of the run that begins */

    int wants; /* feed slots: graph inputs, labels, sample weights */
    struct mgpu_feed_want *want;
    int64_t *step_rows; /* by want: rows a step where it has no samples, else 0 */
    struct mgpu_source train, val;
    int64_t batch, samples, val_samples, total_steps;
    int64_t *rows, *next_rows; /* next: of the batch that will follow */
    struct mgpu_ahead ahead[MGPU_MAX_RANKS];
    struct mgpu_begun begun;
    bool not_finite[MGPU_MAX_RANKS]; /* the batch that runs, where that stops nothing */
    int64_t *step_row; /* rows of an input without samples: only one rank feeds those */
    void **labels;     /* by loss: the whole batch's */
    double *sample_weights;

    struct mgpu_store_layout *store[MGPU_MAX_RANKS]; /* by rank */
    int compiled_count;
    struct mgpu_compiled *compiled;
    double *result_sums; /* ranks x RESULT_SUMS */
    double **times;      /* by rank: seconds by instruction are added up, or NULL */
    void *kept[MGPU_MAX_RANKS][MGPU_KEPT]; /* what a step may change, as it was before */
    void *best[MGPU_MAX_RANKS][MGPU_BEST]; /* the weights of the best epoch */

    int64_t step, epoch, batch_in_epoch;
    struct mgpu_totals totals;
    struct mgpu_history history;
    struct mgpu_number *numbers;
    char **number_names;
    struct mgpu_epochs epochs;
    bool told[MGPU_TARGET_NPZ + 1]; /* by kind: the notes on what is written, before training */
    struct mgpu_run_state resume;   /* the contents of --resume, until they are restored */
};

/* ---- settle.c: options into what the parts understand ---- */
int mgpu_settle_model(struct mgpu_trainer *t);   /* file, model, weights, lower options */
int mgpu_settle_devices(struct mgpu_trainer *t); /* devices */
int mgpu_settle_optimizer(struct mgpu_trainer *t);
int mgpu_settle_total(struct mgpu_trainer *t); /* total_steps, schedule: from where it stands */
int64_t mgpu_steps_per_epoch(const struct mgpu_trainer *t);
int mgpu_text_count(const char *const *list);
/* One of the words (NULL ends them), or MGPU_EUSAGE with all of them. */
int mgpu_settle_word(int *out, const char *option, const char *text, const char *const *words);
/* Once the model was lowered: rules of --dropout and --bn-momentum that fit nothing are refused. */
int mgpu_check_rules(const struct mgpu_trainer *t);

/* ---- sources.c: --data and --val ---- */
int mgpu_settle_data(struct mgpu_trainer *t); /* feeds opened, sizes of inputs */
struct mgpu_texts mgpu_input_names(struct mgpu_trainer *t);
/* Wants, sources and the host's buffers, for the inputs that losses and outputs really need. */
int mgpu_bind_data(struct mgpu_trainer *t);

/* ---- losses.c: --loss and --metric ---- */
int mgpu_parse_losses(struct mgpu_trainer *t);  /* by the model's outputs and the data's names */
int mgpu_settle_losses(struct mgpu_trainer *t); /* bound to the lowered model, data too; metrics */

/* ---- precision.c: --precision and --loss-scale ---- */
int mgpu_settle_precision(struct mgpu_trainer *t);
/* Whether the first `ranks` devices have kernels for it; tells them. */
int mgpu_settle_precision_devices(struct mgpu_trainer *t, int ranks);
/* Whether a device that is here can train so (mgpu_device_check_precision). */
int mgpu_check_precision(const struct mgpu_rank_device *device, const char *precision);
/* That a CPU has no TF32, where that was asked for; `precision` may be NULL. */
void mgpu_warn_tf32(const char *precision, bool cpu, const char *device);
/* Whether one more step whose gradients are finite doubles it. */
bool mgpu_scale_grows(const struct mgpu_loss_scale *scale);
/* The scale after a step whose gradients were finite, or were not; false: no scale was left. */
void mgpu_scale_up(struct mgpu_trainer *t);
bool mgpu_scale_down(struct mgpu_trainer *t);
struct mgpu_record;
int mgpu_scale_record(struct mgpu_trainer *t, struct mgpu_record *r);

/* ---- init.c ---- */
int mgpu_init_weights(struct mgpu_trainer *t);

/* ---- reinit.c ---- */
int mgpu_reinit_check(struct mgpu_trainer *t);
/* Overwrites a weight's contents where --reinit names it: the same numbers on every rank. */
void mgpu_reinit(struct mgpu_trainer *t, const struct mgpu_weight *w, void *to,
                 enum mgpu_dtype type);

/* Numbers within [-bound, bound], the same wherever name and seed are. */
void mgpu_fill_uniform(const struct mgpu_trainer *t, const char *name,
                       const struct mgpu_array *array, double bound);

/* ---- add_bias.c, new_head.c: in the file in memory; they make the model again ---- */
int mgpu_add_biases(struct mgpu_trainer *t);
int mgpu_new_head(struct mgpu_trainer *t);
int mgpu_check_classes(const struct mgpu_trainer *t); /* when the losses are bound */

/* ---- partition.c: planning ---- */

/* A trainer without data and ranks: it only builds graphs. Labels are made up. */
int mgpu_trainer_planning(struct mgpu_trainer **out, const char *model,
                          const struct mgpu_options *options);
/* What the planner asks of a trainer (of this kind or a real one). */
struct mgpu_planner_model;
struct mgpu_topology;
void mgpu_planner_model_of(struct mgpu_planner_model *out, struct mgpu_trainer *t,
                           const char *precision);

/* ---- plan.c ---- */
/* An input or label whose rows belong to steps (--rows), not to samples; NULL: there is none. */
const char *mgpu_step_rows_input(const struct mgpu_trainer *t);
/* --plan, before mgpu_settle_losses: its batch counts where none is given. */
int mgpu_read_plan(struct mgpu_trainer *t);
int mgpu_settle_plan(struct mgpu_trainer *t); /* plan, team */
/* "cpu:0,cpu:1": the devices of t->plan_file. */
const char *mgpu_plan_device_list(const struct mgpu_plan_file *plan, struct mgpu_arena *arena);
/* Whether this machine has the devices of a plan that was made for them, and they can train
 * together. */
int mgpu_plan_runs_here(const struct mgpu_plan_file *plan, const struct mgpu_topology *topology);
/* What to do for a run on the CPU, for messages; a plan names its own devices. */
const char *mgpu_cpu_advice(const struct mgpu_trainer *t);

/* ---- build.c: graphs and programs ---- */

/* The graph of a mode at a local batch, with the plan's rewrites (NULL: none) and no more of it. */
int mgpu_build_graph(struct mgpu_graph **out, struct mgpu_trainer *t, enum mgpu_mode mode,
                     int64_t batch, const struct mgpu_plan *plan);
/* The same in the types of --precision. */
int mgpu_build_typed(struct mgpu_graph **out, struct mgpu_trainer *t, enum mgpu_mode mode,
                     int64_t batch, const struct mgpu_plan *plan);
/* Whether updates take gradients within backward, which are gone then (graph->updates_early). */
bool mgpu_updates_early(const struct mgpu_trainer *t);
/* Adds to the plan what stacks the model's equal towers. */
int mgpu_find_towers(struct mgpu_plan *plan, struct mgpu_trainer *t, int64_t batch);
/* Every program that the batches of these modes need; allocates and fills the ranks' memory. */
int mgpu_build_programs(struct mgpu_trainer *t, unsigned modes);
/* A rank's memory, by what it is for. Returns `to`. */
enum { MGPU_MEMORY_TEXT = 320 };
const char *mgpu_memory_text(char to[MGPU_MEMORY_TEXT], const int64_t bytes[MGPU_BUFFERS]);
/* From now on training programs note what each instruction takes (mgpu_trainer_profile). */
void mgpu_profile_begin(struct mgpu_trainer *t);
struct mgpu_program *mgpu_find_program(const struct mgpu_trainer *t, enum mgpu_mode mode,
                                       int64_t batch, int rank);

/* A stored tensor and the first rank that has it; NULL: no rank's graph uses it. */
const struct mgpu_stored *mgpu_find_stored(const struct mgpu_trainer *t, const char *name,
                                           int *rank);

/* ---- state.c: --state ---- */
int mgpu_state_parse(struct mgpu_trainer *t);
/* Checks the shapes in the whole graph; takes memory for so many places; frees it. */
int mgpu_state_bind(struct mgpu_trainer *t, const struct mgpu_graph *g);
int mgpu_state_allocate(struct mgpu_trainer *t, int64_t places);
void mgpu_state_free(struct mgpu_trainer *t);
bool mgpu_is_state(const struct mgpu_trainer *t, const char *input, bool *from_zero);
/* Makes them results of a graph whose own outputs are none. */
void mgpu_state_outputs(const struct mgpu_trainer *t, struct mgpu_graph *g);
/* The states are again those of the data. */
int mgpu_state_start(struct mgpu_trainer *t, struct mgpu_source *source, enum mgpu_mode mode);
/* Fills a state's input for places first .. first + count; false: it is none. Afterwards keeps what
 * a rank made of them, and when all ranks are done lets the batch's places advance. */
bool mgpu_state_feed(const struct mgpu_trainer *t, enum mgpu_mode mode, const char *input,
                     int64_t first, int64_t count, void *to);
void mgpu_state_keep(const struct mgpu_trainer *t, const struct mgpu_rank *rank,
                     const struct mgpu_program *p, int64_t first, int64_t count);
void mgpu_state_advance(struct mgpu_trainer *t, enum mgpu_mode mode, int64_t count);
/* Whether a batch may begin on a GPU before the one in front of it is finished, by their samples;
 * and then what a rank's program takes from that one's results: t->carry[rank] and its count. */
bool mgpu_state_follows(const struct mgpu_trainer *t, int64_t count, int64_t next);
int mgpu_state_carry(struct mgpu_trainer *t, int rank, const struct mgpu_program *p);
/* Training's rows as arrays of a checkpoint, and the other way. */
int mgpu_state_take(const struct mgpu_trainer *t, struct mgpu_array_list *out);
int mgpu_state_restore(struct mgpu_trainer *t, const struct mgpu_array_list *from);

/* ---- weights_io.c: contents of the store ---- */
int mgpu_fill_store(struct mgpu_trainer *t); /* from the file; states from their start */
/* The stored contents as plain arrays of the float type, in holder layout. */
int mgpu_holder_array(struct mgpu_array *out, const struct mgpu_trainer *t, int weight, int holder);

/* The name under which a file of weights holds a weight's holder. */
const char *mgpu_holder_name(const struct mgpu_trainer *t, int weight, int holder);

/* Where the host has a stored tensor of a rank. It comes from the device before the host reads, and
 * goes to it when the host has written. */
void *mgpu_stored_at(const struct mgpu_trainer *t, int rank, const struct mgpu_stored *entry);
int mgpu_stored_fetch(const struct mgpu_trainer *t, int rank, const struct mgpu_stored *entry);
int mgpu_stored_put(const struct mgpu_trainer *t, int rank, const struct mgpu_stored *entry);

/* ---- best.c: the weights of the best epoch ---- */
int mgpu_best_allocate(struct mgpu_trainer *t);
void mgpu_best_free(struct mgpu_trainer *t);
int mgpu_best_keep(struct mgpu_trainer *t);    /* those of now */
int mgpu_best_restore(struct mgpu_trainer *t); /* when the run is over with an epoch */
/* Where a weight or statistic of a rank is kept. */
void *mgpu_best_at(const struct mgpu_trainer *t, int rank, const struct mgpu_stored *entry);

/* ---- save.c ---- */
int mgpu_check_finite(const struct mgpu_trainer *t);
/* Whether mgpu_save knows the kind of file by its name. */
int mgpu_check_save_name(const char *path);
/* Whether the files of weights of --checkpoint can be written, as mgpu_check_save. */
int mgpu_check_checkpoint(struct mgpu_trainer *t);

/* ---- epochs.c: what happens when epochs end ---- */
int mgpu_settle_epochs(struct mgpu_trainer *t);
int mgpu_open_logs(struct mgpu_trainer *t); /* before the first step */
void mgpu_epochs_free(struct mgpu_trainer *t);

/* ---- resume.c: full checkpoints ---- */
int mgpu_resume_read(struct mgpu_trainer *t); /* the file; its model is checked, its seed taken */
int mgpu_resume_restore(struct mgpu_trainer *t); /* when the ranks' memory is filled */

/* ---- profile.c ---- */

/* What a step spends on an operator, on the mean. */
struct mgpu_profile_line {
    const char *name, *role;
    int nodes;
    double seconds, flops, bytes;
};
/* The longest first; gives how many. 0: nothing was timed. *total: seconds of all. */
int mgpu_profile_lines(const struct mgpu_trainer *t, int rank, struct mgpu_profile_line *line,
                       int most, double *total);

/* ---- html_report.c ---- */
void mgpu_history_add(struct mgpu_history *history, double loss);

/* ---- batch.c: one batch through the ranks ---- */
struct mgpu_batch_run {
    enum mgpu_mode mode;
    struct mgpu_source *source;
    const int64_t *rows; /* samples */
    int64_t count;
    int64_t index; /* of the batch in its epoch: rows of inputs without samples */
    bool update;
    int64_t step;                      /* its number in this mode, from 1 */
    bool waits;                        /* an epoch ends before it: only its inputs go ahead */
    const struct mgpu_batch_run *next; /* that will follow; NULL: it is not known */
    /* called on each rank's thread after a piece, or NULL */
    int (*after)(struct mgpu_trainer *t, struct mgpu_rank *rank, struct mgpu_program *program,
                 int64_t first, int64_t count, void *context);
    void *context;
};
/* Runs it; losses[i] gets the mean of loss i, counts[i] what it counted; metrics are added to
 * `totals`. MGPU_SKIPPED: the step was not finite, and nothing but losses[] has changed
 * (--skip-nonfinite). */
enum { MGPU_SKIPPED = 1 };
int mgpu_keep_allocate(struct mgpu_trainer *t); /* for that */
int mgpu_run_batch(struct mgpu_trainer *t, const struct mgpu_batch_run *run, double *losses,
                   double *counts, struct mgpu_totals *totals);
/* MGPU_EUSAGE: a step has begun whose weights nobody may read yet. */
int mgpu_check_settled(const struct mgpu_trainer *t);
void mgpu_totals_clear(struct mgpu_totals *totals, int metrics);
/* Fills t->numbers from totals; returns the count. */
int mgpu_totals_numbers(struct mgpu_trainer *t, const struct mgpu_totals *totals);
/* Batch i of a source in its order, and the one after it, in the mode of `run`. */
void mgpu_batch_of(struct mgpu_trainer *t, int64_t i, struct mgpu_batch_run *run,
                   struct mgpu_batch_run *next);

#endif
