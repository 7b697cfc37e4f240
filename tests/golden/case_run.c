#include "tests/golden/case_run.h"

#include "importer/model.h"
#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "runtime/data/dataset.h"
#include "tests/golden/case_options.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const whats[] = {"forward", "loss", "gradient", "weights", "statistics"};

struct saved { /* a model that was written, read again */
    struct mgpu_onnx_file *file;
    struct mgpu_onnx_model *model;
};

struct run {
    struct mgpu_case c;
    const struct mgpu_case_request *request;
    struct mgpu_case_result *result;
    char folder[32];
    struct mgpu_trainer *trainer;
    struct saved before, after;
    double *loss;
    int64_t steps;
    bool loss64;           /* the loss to compare with was made in double */
    bool whole;            /* all steps are taken: weights can be compared */
    enum mgpu_dtype start; /* weights are rounded to this type before the first step, if any */
    const double *moved;   /* what such a start alone did to each distance; 0: not known */
};

static void complain(struct run *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void complain(struct run *r, const char *format, ...)
{
    char *why = r->result->why;
    size_t used = strlen(why);
    va_list args;
    va_start(args, format);
    if (used)
        snprintf(why + used, sizeof r->result->why - used, "; ");
    used = strlen(why);
    vsnprintf(why + used, sizeof r->result->why - used, format, args);
    va_end(args);
    if (r->result->outcome == MGPU_CASE_PASSED)
        r->result->outcome = MGPU_CASE_FAILED;
}

static const char *path_of(struct run *r, const char *name)
{
    return mgpu_arena_format(r->c.arena, "%s/%s", r->folder, name);
}

/* ---- Models in files ------------------------------------------------------------------------- */

static int read_model(struct saved *out, const char *path)
{
    MGPU_TRY(mgpu_onnx_read(&out->file, path));
    return mgpu_onnx_model_new(&out->model, out->file);
}

static void close_model(struct saved *s)
{
    mgpu_onnx_model_free(s->model);
    mgpu_onnx_free(s->file);
}

static const struct mgpu_onnx_node *node_called(const struct saved *s, const char *name)
{
    for (int i = 0; i < s->model->node_total; i++)
        if (!strcmp(s->model->all[i]->name, name))
            return s->model->all[i];
    return NULL;
}

/* What an Identity's output is the copy of. */
static const char *source_of(const struct saved *s, const char *name)
{
    for (int i = 0; i < s->model->node_total; i++) {
        const struct mgpu_onnx_node *n = s->model->all[i];
        if (n->outputs && !strcmp(n->output[0], name))
            return !strcmp(n->type, "Identity") ? source_of(s, n->input[0]) : name;
    }
    return name;
}

/* The initializer that holds a parameter of the answers: its own name, or what stands at the place
 * that case.json gives for one that was merged away. */
static const char *holder_of(struct run *r, const struct saved *s, const char *name)
{
    struct json_object *merged = mgpu_case_field(&r->c, "merged");
    if (!merged)
        return name;
    json_object_object_foreach(merged, initializer, parameters)
    {
        (void)initializer;
        for (size_t i = 0; i < json_object_array_length(parameters); i++) {
            struct json_object *p = json_object_array_get_idx(parameters, i), *input;
            const struct mgpu_onnx_node *node = node_called(s, mgpu_case_text(p, "node"));
            if (strcmp(mgpu_case_text(p, "parameter"), name) || !node)
                continue;
            json_object_object_get_ex(p, "input", &input);
            return source_of(s, node->input[json_object_get_int(input)]);
        }
    }
    return name;
}

static const struct mgpu_array *stored_in(struct run *r, const struct saved *s, const char *name)
{
    int i = mgpu_onnx_find_initializer(s->model, holder_of(r, s, name));
    return i < 0 ? NULL : &s->model->initializer[i].array;
}

/* ---- Distances ------------------------------------------------------------------------------- */

static double norm(const struct mgpu_array *a, const struct mgpu_array *less)
{
    double sum = 0;
    for (int64_t i = 0; i < mgpu_array_count(a); i++) {
        double x = mgpu_get_double(a->data, a->type, i);
        if (less)
            x -= mgpu_get_double(less->data, less->type, i);
        sum += x * x;
    }
    return sqrt(sum);
}

/* |got - want| */
static double off_by(const double *got, const struct mgpu_array *want)
{
    double sum = 0;
    for (int64_t i = 0; i < mgpu_array_count(want); i++) {
        double d = got[i] - mgpu_get_double(want->data, want->type, i);
        sum += d * d;
    }
    return sqrt(sum);
}

/* What rounding to fewer bits may do. Numbers are rounded by up to 2^-9 (bf16) and 2^-12 (f16) of
 * them, operands of products in TF32 cut by up to 2^-10; sums over a batch (losses) even that out,
 * differences and the choices of a max pool do not (gradients), and Adam makes steps of one size of
 * gradients of any (weights). */
static double rounding_limit(const struct run *r, enum mgpu_case_what what)
{
    static const double bf16[] = {2e-2, 5e-3, 1.5e-1, 2.5e-1, 2e-2},
                        tf32[] = {5e-3, 2e-3, 5e-2, 1.2e-1, 5e-3},
                        f16[] = {3e-3, 1e-3, 5e-2, 1.2e-1, 3e-3};
    return !strcmp(r->request->precision, "bf16")   ? bf16[what]
           : !strcmp(r->request->precision, "tf32") ? tf32[what]
           : !strcmp(r->request->precision, "f16")  ? f16[what]
                                                    : 0;
}

/* A case may be of worse condition than rounding_limit allows for: batches of two in a batch norm,
 * choices of max pools, steps that diverge. How bad it is, it shows in f32 on the CPU, started from
 * weights that are rounded once (mgpu_case_run). Fewer bits round all that is between, too: a
 * hundred tensors forward and backward, whose errors add up as squares. */
static const double roundings = 10; /* sqrt(100) */

static void judge(struct run *r, enum mgpu_case_what what, const char *name, double distance)
{
    double limit = mgpu_golden_limit(&r->c.golden, whats[what]);
    if (what == MGPU_CASE_LOSS && r->loss64)
        limit = 2e-6; /* most are below 1e-9; some files hold rounded constants */
    limit = fmax(limit, rounding_limit(r, what)) * (r->request->fast ? 10 : 1);
    double allowed = roundings * r->moved[what];
    if (what != MGPU_CASE_WEIGHTS)     /* those of steps that diverge may be anywhere */
        allowed = fmin(allowed, 0.95); /* zeros are off by 1 */
    limit = fmax(limit, allowed);
    double *worst = &r->result->distance[what];
    bool new_worst = !(distance <= *worst);
    if (new_worst)
        *worst = distance;
    if (!(distance <= limit))
        complain(r, "%s of '%s' off by %.1e (allowed %.1e)", whats[what], name, distance, limit);
}

static double *doubles(struct run *r, const struct mgpu_array *a)
{
    int64_t n = mgpu_array_count(a);
    double *to = MGPU_NEW_ARRAY(r->c.arena, double, n);
    for (int64_t i = 0; i < n; i++)
        to[i] = mgpu_get_double(a->data, a->type, i);
    return to;
}

/* ---- Forward --------------------------------------------------------------------------------- */

static int compare_output(struct run *r, const char *path, const struct mgpu_golden_tensor *want)
{
    struct mgpu_dataset *d = NULL;
    struct mgpu_array got = {0};
    MGPU_TRY(mgpu_dataset_open_named(&d, path, want->name));
    int rc = mgpu_dataset_load(&got, d->title, UINT64_C(1) << 30);
    if (rc == 0 && mgpu_array_count(&got) != mgpu_array_count(&want->array))
        complain(r, "forward: '%s' has the wrong shape", want->name);
    else if (rc == 0) {
        double size = norm(&want->array, NULL);
        double off = off_by(doubles(r, &got), &want->array);
        judge(r, MGPU_CASE_FORWARD, want->name, size > 0 ? off / size : off);
    }
    mgpu_array_free(&got);
    mgpu_dataset_close(d);
    return rc;
}

static int compare_forward(struct run *r)
{
    struct mgpu_options o;
    struct mgpu_trainer *t;
    const char *path = path_of(r, "predictions.npz");
    MGPU_TRY(mgpu_case_predict_options(&o, &r->c, r->request->devices, r->request->ranks));
    o.precision = r->request->precision;
    o.exact = !r->request->fast;
    MGPU_TRY(mgpu_trainer_new(&t, r->c.golden.model, &o));
    int rc = mgpu_predict(t, path);
    mgpu_trainer_free(t);
    for (int i = 0; i < r->c.forward.count && rc == 0; i++)
        rc = compare_output(r, path, &r->c.forward.tensor[i]);
    return rc;
}

/* ---- Gradients ------------------------------------------------------------------------------- */

/* In exact arithmetic such a gradient is zero: what there is is compared with the largest one. */
static bool is_noise(const struct run *r, const char *name)
{
    return mgpu_golden_lists(&r->c.golden, "noise", name);
}

static int compare_gradients(struct run *r)
{
    double whole = 0;
    for (int i = 0; i < r->c.gradient.count; i++)
        whole = fmax(whole, norm(&r->c.gradient.tensor[i].array, NULL));
    for (int i = 0; i < r->c.gradient.count; i++) {
        const struct mgpu_golden_tensor *want = &r->c.gradient.tensor[i];
        int64_t n = mgpu_array_count(&want->array);
        double *got = MGPU_NEW_ARRAY(r->c.arena, double, n);
        double size = fmax(norm(&want->array, NULL), 1e-7 * whole);
        MGPU_TRY(mgpu_gradient_read(r->trainer, holder_of(r, &r->before, want->name), got, n));
        judge(r, MGPU_CASE_GRADIENT, want->name,
              off_by(got, &want->array) / (is_noise(r, want->name) ? whole : size));
    }
    return 0;
}

/* ---- Weights and statistics ------------------------------------------------------------------ */

/* What a name holds after training: from the written file, or in double from the trainer, as the
 * file rounds. */
static int weight_after(struct run *r, const struct mgpu_golden_tensor *want, double **got)
{
    int64_t n = mgpu_array_count(&want->array);
    if (!strcmp(r->request->precision, "f64")) {
        *got = MGPU_NEW_ARRAY(r->c.arena, double, n);
        return mgpu_weight_read(r->trainer, holder_of(r, &r->before, want->name), *got, n);
    }
    const struct mgpu_array *a = stored_in(r, &r->after, want->name);
    if (!a || mgpu_array_count(a) != n)
        return mgpu_fail(MGPU_EINVALID, "'%s' is not in the written file, or has another shape",
                         want->name);
    *got = doubles(r, a);
    return 0;
}

static void keep_numbers(struct run *r, const double *from, int64_t count)
{
    struct mgpu_case_result *out = r->result;
    out->number = mgpu_xrealloc(out->number, (size_t)(out->numbers + count), sizeof *out->number);
    memcpy(out->number + out->numbers, from, sizeof *from * (size_t)count);
    out->numbers += count;
}

/* The golden as the file can hold it: in a half type rounding may exceed the limit. */
static struct mgpu_array as_stored(struct run *r, const struct mgpu_array *want,
                                   enum mgpu_dtype type)
{
    struct mgpu_array rounded = *want;
    int64_t n = mgpu_array_count(want);
    if (strcmp(r->request->precision, "f64") && mgpu_dtype_size(type) == 2) {
        void *stored = mgpu_arena_alloc(r->c.arena, 2 * (size_t)n);
        rounded.data = mgpu_arena_alloc(r->c.arena, mgpu_dtype_size(want->type) * (size_t)n);
        mgpu_convert(stored, type, want->data, want->type, n);
        mgpu_convert(rounded.data, want->type, stored, type, n);
    }
    return rounded;
}

/* An initializer as a start may round it. */
static double *rounded(struct run *r, const struct mgpu_array *a)
{
    int64_t n = mgpu_array_count(a);
    double *to = doubles(r, a);
    void *stored = mgpu_arena_alloc(r->c.arena, mgpu_dtype_size(r->start) * (size_t)n);
    mgpu_convert(stored, r->start, to, MGPU_DOUBLE, n);
    mgpu_convert(to, MGPU_DOUBLE, stored, r->start, n);
    return to;
}

static int round_weights(struct run *r)
{
    for (int i = 0; r->start && i < r->c.weights.count; i++) {
        const char *name = r->c.weights.tensor[i].name;
        const struct mgpu_array *a = stored_in(r, &r->before, name);
        if (a)
            MGPU_TRY(mgpu_weight_write(r->trainer, holder_of(r, &r->before, name), rounded(r, a),
                                       mgpu_array_count(a)));
    }
    return 0;
}

/* So that the change is compared: what a rounded start moved by itself is not part of it. */
static void less_start(struct run *r, double *got, const struct mgpu_array *before)
{
    const double *from = r->start ? rounded(r, before) : NULL;
    for (int64_t i = 0; from && i < mgpu_array_count(before); i++)
        got[i] -= from[i] - mgpu_get_double(before->data, before->type, i);
}

/* The divisor is the change that training makes: |golden - initial|. */
static int compare_weights(struct run *r)
{
    for (int i = 0; i < r->c.weights.count; i++) {
        const struct mgpu_golden_tensor *want = &r->c.weights.tensor[i];
        const struct mgpu_array *before = stored_in(r, &r->before, want->name);
        double *got;
        MGPU_TRY(weight_after(r, want, &got));
        if (!before || mgpu_array_count(before) != mgpu_array_count(&want->array))
            return mgpu_fail(MGPU_EINVALID, "'%s' is not in the file", want->name);
        less_start(r, got, before);
        struct mgpu_array stored = as_stored(r, &want->array, before->type);
        double change = norm(&want->array, before), off = off_by(got, &stored);
        if (is_noise(r, want->name)) /* moved by what an optimizer makes of rounding */
            continue;
        keep_numbers(r, got, mgpu_array_count(&want->array));
        judge(r, MGPU_CASE_WEIGHTS, want->name, change > 0 ? off / change : off);
    }
    return 0;
}

/* Keras's momentum is not in the file where the node has no such attribute. */
static bool momentum_is_lost(const struct run *r)
{
    const struct mgpu_onnx_model *m = r->before.model;
    bool lost = false;
    for (int i = 0; i < m->node_total; i++)
        if (!strcmp(m->all[i]->type, "BatchNormalization"))
            lost = lost || !mgpu_onnx_attribute(m->all[i], "momentum");
    return lost && m->producer == MGPU_PRODUCER_TENSORFLOW;
}

static int compare_statistics(struct run *r)
{
    if (momentum_is_lost(r))
        return 0;
    for (int i = 0; i < r->c.statistics.count; i++) {
        const struct mgpu_golden_tensor *want = &r->c.statistics.tensor[i];
        double *got, size = norm(&want->array, NULL);
        MGPU_TRY(weight_after(r, want, &got));
        keep_numbers(r, got, mgpu_array_count(&want->array));
        judge(r, MGPU_CASE_STATISTICS, want->name,
              off_by(got, &want->array) / (size > 0 ? size : 1));
    }
    return 0;
}

static bool may_move(const struct run *r, const char *name)
{
    bool training = !strcmp(mgpu_case_text(r->c.golden.json, "mode"), "train");
    return mgpu_golden_lists(&r->c.golden, "trainable", name) ||
           mgpu_golden_find(&r->c.weights, name) ||
           (training && (mgpu_golden_lists(&r->c.golden, "statistics", name) ||
                         mgpu_golden_find(&r->c.statistics, name)));
}

/* What is neither trained nor a statistic must not change by one bit. */
static void compare_rest(struct run *r)
{
    const struct mgpu_onnx_model *m = r->before.model;
    for (int i = 0; i < m->initializers && !mgpu_case_field(&r->c, "merged"); i++) {
        const struct mgpu_array *a = &m->initializer[i].array, *b;
        const char *name = m->initializer[i].name;
        if (may_move(r, name) || m->initializer[i].constant_node || a->type == MGPU_UNDEFINED)
            continue;
        b = stored_in(r, &r->after, name);
        size_t bytes = (size_t)mgpu_array_count(a) * mgpu_dtype_size(a->type);
        if (!b || b->type != a->type || mgpu_array_count(b) != mgpu_array_count(a) ||
            memcmp(a->data, b->data, bytes))
            complain(r, "'%s' is not trained and changed", name);
    }
}

/* ---- Training -------------------------------------------------------------------------------- */

static int save_as(struct run *r, const char *name, struct saved *out)
{
    const char *path = path_of(r, name);
    MGPU_TRY(mgpu_save(r->trainer, path));
    return read_model(out, path);
}

static int take_steps(struct run *r)
{
    struct mgpu_step_result s;
    int rc = 1;
    r->loss = MGPU_NEW_ARRAY(r->c.arena, double, r->c.golden.steps);
    while (r->steps < r->c.golden.steps && (rc = mgpu_step(r->trainer, &s)) > 0) {
        r->loss[r->steps++] = s.loss;
        if (r->steps == 1 && !r->request->defaults && !r->request->early)
            MGPU_TRY(compare_gradients(r));
    }
    return rc < 0 ? rc : 0;
}

static void compare_losses(struct run *r)
{
    const struct mgpu_array *want = r->c.loss.count ? &r->c.loss.tensor[0].array : NULL;
    double off = 0, size = 0;
    for (int64_t i = 0; want && i < r->steps; i++) {
        double w = mgpu_get_double(want->data, want->type, i);
        off += (r->loss[i] - w) * (r->loss[i] - w);
        size += w * w;
    }
    if (!want || !r->steps)
        complain(r, "no loss to compare");
    else
        judge(r, MGPU_CASE_LOSS, "each step", sqrt(off / size));
    keep_numbers(r, r->loss, r->steps);
}

static int train(struct run *r)
{
    MGPU_TRY(save_as(r, "before.onnx", &r->before));
    MGPU_TRY(round_weights(r));
    MGPU_TRY(take_steps(r));
    compare_losses(r);
    if (!r->whole)
        return 0;
    MGPU_TRY(save_as(r, "after.onnx", &r->after));
    MGPU_TRY(compare_weights(r));
    MGPU_TRY(compare_statistics(r));
    compare_rest(r);
    return 0;
}

/* ---- Refusals -------------------------------------------------------------------------------- */

static struct json_object *refusal(const struct run *r)
{
    struct json_object *o = mgpu_case_field(&r->c, "refuse");
    bool now = o && (!strcmp(mgpu_case_text(o, "when"), "any") || r->request->ranks > 1);
    return now ? o : NULL;
}

static void check_refusal(struct run *r, struct json_object *o)
{
    struct json_object *names;
    json_object_object_get_ex(o, "names", &names);
    r->result->refused = true;
    for (size_t i = 0; i < json_object_array_length(names); i++)
        if (strstr(mgpu_error(), json_object_get_string(json_object_array_get_idx(names, i))))
            return;
    complain(r, "refused without naming any of %s: %s", json_object_to_json_string(names),
             mgpu_error());
}

/* ---- All ------------------------------------------------------------------------------------- */

static int open_case(struct run *r)
{
    const struct mgpu_case_request *q = r->request;
    bool f64 = !strcmp(q->precision, "f64");
    struct saved original = {0};
    MGPU_TRY(mgpu_golden_open(&r->c.golden, q->folder));
    r->c.arena = mgpu_arena_new();
    snprintf(r->folder, sizeof r->folder, "/tmp/mgpu-case-XXXXXX");
    if (!mkdtemp(r->folder))
        return mgpu_fail(MGPU_EIO, "no folder for temporary files");
    r->c.folder = r->folder;
    const struct {
        const char *name;
        struct mgpu_golden_group *group;
    } groups[] = {{"inputs", &r->c.inputs},
                  {"labels", &r->c.labels},
                  {"forward", &r->c.forward},
                  {q->defaults ? "keras_loss" : f64 ? "loss64" : "loss", &r->c.loss},
                  {"gradient", &r->c.gradient},
                  {q->defaults ? "keras_weights" : "weights", &r->c.weights},
                  {"statistics", &r->c.statistics}};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        MGPU_TRY(mgpu_golden_read(&r->c.golden, groups[i].name, groups[i].group));
    r->loss64 = f64 && !q->defaults && r->c.loss.count;
    if (!r->c.loss.count) /* no answer in double */
        MGPU_TRY(mgpu_golden_read(&r->c.golden, "loss", &r->c.loss));
    MGPU_TRY(read_model(&original, r->c.golden.model));
    for (int i = 0; i < original.model->node_total; i++)
        r->c.batch_norm |= !strcmp(original.model->all[i]->type, "BatchNormalization");
    close_model(&original);
    return 0;
}

static void remove_folder(const char *folder)
{
    static const char *const names[] = {"before.onnx",     "after.onnx",        "before.onnx.data",
                                        "after.onnx.data", "predictions.npz",   "model.onnx.data",
                                        "input0.npy",      "class_weights.npy", NULL};
    char path[64];
    for (int i = 0; names[i]; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    for (int i = 1; i < 16; i++) {
        snprintf(path, sizeof path, "%s/input%d.npy", folder, i);
        unlink(path);
    }
    rmdir(folder);
}

static void close_case(struct run *r)
{
    struct mgpu_golden_group *const groups[] = {&r->c.inputs,    &r->c.labels,   &r->c.forward,
                                                &r->c.loss,      &r->c.gradient, &r->c.weights,
                                                &r->c.statistics};
    mgpu_trainer_free(r->trainer);
    close_model(&r->before);
    close_model(&r->after);
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        mgpu_golden_group_free(groups[i]);
    if (*r->folder)
        remove_folder(r->folder);
    mgpu_arena_free(r->c.arena);
    mgpu_golden_close(&r->c.golden);
}

static int run_case(struct run *r)
{
    const struct mgpu_case_request *q = r->request;
    struct mgpu_options o;
    MGPU_TRY(open_case(r));
    MGPU_TRY(mgpu_case_train_options(&o, &r->c, q->devices, q->ranks, q->defaults));
    o.precision = q->precision;
    o.exact = !q->fast;
    o.gradients = !q->defaults && !q->early;
    if (!strcmp(q->precision, "f16")) /* none of the steps is to be left out */
        o.loss_scale = "1024";
    r->whole = !q->steps || q->steps >= r->c.golden.steps;
    if (!r->whole)
        o.steps = r->c.golden.steps = q->steps;
    int rc = mgpu_trainer_new(&r->trainer, r->c.golden.model, &o);
    struct json_object *refused = refusal(r);
    if (refused && rc < 0) {
        check_refusal(r, refused);
        return 0;
    }
    if (rc == MGPU_EUNSUPPORTED)
        r->result->outcome = MGPU_CASE_UNSUPPORTED;
    MGPU_TRY(rc);
    struct json_object *or_pass = NULL;
    if (refused && !json_object_object_get_ex(refused, "or_pass", &or_pass))
        complain(r, "must be refused");
    MGPU_TRY(train(r));
    return q->forward ? compare_forward(r) : 0;
}

static void attempt(struct run *r)
{
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    *r->result = (struct mgpu_case_result){.outcome = MGPU_CASE_PASSED};
    for (int i = 0; i < MGPU_CASE_WHATS; i++)
        r->result->distance[i] = -1;
    if (run_case(r) < 0)
        complain(r, "%s", mgpu_error());
    close_case(r);
    clock_gettime(CLOCK_MONOTONIC, &end);
    r->result->seconds =
        (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
}

/* What a start from rounded weights alone does, in f32 on the CPU. */
static void find_condition(double *moved, const struct mgpu_case_request *request)
{
    static const double none[MGPU_CASE_WHATS];
    struct mgpu_case_request q = *request;
    struct mgpu_case_result result;
    bool bf16 = !strcmp(request->precision, "bf16");
    q.devices = "cpu:0";
    q.ranks = 1;
    q.precision = "f32";
    q.forward = q.fast = false;
    attempt(&(struct run){.request = &q,
                          .result = &result,
                          .start = bf16 ? MGPU_BFLOAT16 : MGPU_FLOAT16,
                          .moved = none});
    for (int i = 0; i < MGPU_CASE_WHATS; i++)
        moved[i] = isfinite(result.distance[i]) ? fmax(0, result.distance[i]) : 0;
    mgpu_case_result_free(&result);
}

void mgpu_case_run(struct mgpu_case_result *out, const struct mgpu_case_request *request)
{
    double moved[MGPU_CASE_WHATS] = {0};
    struct run r = {.request = request, .result = out, .moved = moved}, again = r;
    attempt(&r);
    if (out->outcome == MGPU_CASE_FAILED && rounding_limit(&again, MGPU_CASE_LOSS) > 0) {
        mgpu_case_result_free(out);
        find_condition(moved, request);
        attempt(&again);
    }
}

void mgpu_case_result_free(struct mgpu_case_result *result)
{
    free(result->number);
    result->number = NULL;
}

void mgpu_case_print(FILE *to, const struct mgpu_case_request *request,
                     const struct mgpu_case_result *result)
{
    static const char *const words[] = {"PASS", "FAIL", "UNSUPPORTED"};
    const char *name = strrchr(request->folder, '/');
    fprintf(to, "%s %s %s %s%s", words[result->outcome], name ? name + 1 : request->folder,
            request->devices, request->precision,
            request->defaults ? " defaults"
            : request->fast   ? " fast"
                              : "");
    if (result->refused)
        fprintf(to, " refused, as it must be");
    for (int i = 0; i < MGPU_CASE_WHATS; i++)
        if (result->distance[i] >= 0)
            fprintf(to, " %s %.1e", whats[i], result->distance[i]);
    fprintf(to, " %.1f s%s%s\n", result->seconds, *result->why ? "  " : "", result->why);
    fflush(to);
}

double mgpu_case_difference(const struct mgpu_case_result *a, const struct mgpu_case_result *b)
{
    double worst = 0;
    if (a->numbers != b->numbers)
        return INFINITY;
    for (int64_t i = 0; i < a->numbers; i++) {
        double d = fabs(a->number[i] - b->number[i]) / fmax(1, fabs(b->number[i]));
        worst = d <= worst ? worst : d;
    }
    return worst;
}

bool mgpu_case_has_defaults(const char *folder)
{
    struct mgpu_golden golden;
    struct mgpu_golden_group group = {0};
    if (mgpu_golden_open(&golden, folder) < 0)
        return false;
    bool has = mgpu_golden_read(&golden, "keras_loss", &group) >= 0 && group.count > 0;
    mgpu_golden_group_free(&group);
    mgpu_golden_close(&golden);
    return has;
}
