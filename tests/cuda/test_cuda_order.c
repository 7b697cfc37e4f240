/* What the ranks of a GPU submit: ordered by events, captured as a graph, without allocations; and
 * what is wrong with it is found out (double.h). */
#include "runtime/cuda/ranks.h"
#include "runtime/facade/facade.h"
#include "tests/cuda/double.h"
#include "tests/cuda/double_train.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

#include <math.h>
#include <string.h>

/* Calls of a step beside its graph, on two ranks: inputs up and to their place, scalars up, results
 * back; and where no other step is on the GPU, `stop` is lowered. */
enum { STEPS = 4, SAMPLES = 12, UP = 2, COPIES = UP + 2 * 3, STOPS = 1 };

static const char *const two = "cuda:0,cuda:0";
static const struct tiny_weight weights[] = {{"a", 12}, {"b", 12}, {"c", 12}};
static const char *model;

static struct mgpu_options options(const char *devices)
{
    struct mgpu_options o = double_options(SAMPLES, devices);
    o.optimizer = "adam,lr=0.1";
    o.clip_norm = 1;
    o.epochs = STEPS;
    return o;
}

static struct mgpu_gpu_ranks *ranks_of(struct mgpu_trainer *t)
{
    return ((struct mgpu_gpu_rank *)mgpu_team_rank(t->team, 0)->engine)->all;
}

static void check_right(const char *what, const struct tiny_result *got)
{
    struct tiny_result want;
    struct mgpu_options o = options("cpu:0");
    tiny_train(&want, model, &o, weights, 3);
    CHECK_(tiny_difference(got, &want) < 1e-5, "%s: off by %.1e (%s)", what,
           tiny_difference(got, &want), got->error);
}

/* ---- Which GPU ------------------------------------------------------------------------------- */

static char note[1024];

static void keep_note(void *context, const char *text)
{
    (void)context;
    snprintf(note, sizeof note, "%s", text);
}

static void check_default(const char *want)
{
    struct mgpu_trainer *t;
    struct mgpu_facts facts;
    struct mgpu_options o = options(NULL);
    *note = 0;
    mgpu_set_note(keep_note, NULL);
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    mgpu_set_note(NULL, NULL);
    mgpu_trainer_facts(t, &facts);
    CHECK_(!strcmp(facts.devices, want), "%s, not %s", facts.devices, want);
    mgpu_trainer_free(t);
}

/* Without --devices. */
static void test_default(void)
{
    check_default("cuda:0");
    CHECK(!*note);
    double_begin(2, INT64_C(1) << 30);
    check_default("cuda:0");
    CHECK(strstr(note, "one of 2 GPUs"));
    double_begin(0, 0);
    check_default("cpu");
    CHECK(!*note);
    double_begin(1, INT64_C(1) << 30);
    double_driver_version(1000 * (CUDA_VERSION / 1000 - 1));
    check_default("cpu");
    CHECK(strstr(note, "the GPU cannot be used: the NVIDIA driver is too old"));
    double_driver_version(CUDA_VERSION);
    double_busy(true);
    check_default("cpu");
    CHECK(strstr(
        note, "the GPU cannot be used: taking the GPU into use (cuDevicePrimaryCtxRetain) failed"));
    double_busy(false);
}

/* ---- As it should be ------------------------------------------------------------------------- */

static void test_ranks(const char *devices)
{
    struct tiny_result got;
    struct mgpu_options o = options(devices);
    tiny_train(&got, model, &o, weights, 3);
    check_right(devices, &got);
    CHECK_(!double_complaints(), "%s: %s", devices, double_complaint());
}

/* The first step is submitted call by call, the second captured; from then on a step is one launch,
 * and each rank's inputs, which go up while the step before runs and are taken when it begins. */
static void test_graph(void)
{
    struct mgpu_trainer *t;
    struct mgpu_step_result s;
    struct double_calls before = {0}, after;
    struct mgpu_options o = options(two);
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    for (int i = 0; i < STEPS; i++) {
        before = double_count();
        CHECK(mgpu_step(t, &s) == 1);
        after = double_count();
        CHECK(after.launched - before.launched == (i > 0));
        int calls = COPIES + STOPS - (i + 1 == STEPS ? UP : 0); /* of the next step's */
        CHECK((after.submitted - before.submitted == calls) == (i > 0));
        CHECK(after.allocations == before.allocations);
    }
    CHECK(ranks_of(t)->graphs == 1);
    mgpu_trainer_free(t);
}

/* The inputs of the next batch are there when a step begins, of the next epoch too, but for those
 * after a validation, which takes their place. */
static void test_ahead(void)
{
    struct mgpu_trainer *t;
    struct mgpu_step_result s;
    const struct mgpu_number *numbers;
    struct tiny_result got, want;
    struct mgpu_options o = options(two), cpu = options("cpu:0");
    o.batch = cpu.batch = 3;
    o.accumulate = cpu.accumulate = 2;
    o.val_split = cpu.val_split = 0.25;
    tiny_train(&got, model, &o, weights, 3);
    tiny_train(&want, model, &cpu, weights, 3);
    CHECK_(tiny_difference(&got, &want) < 1e-5, "off by %.1e", tiny_difference(&got, &want));
    memset(&got, 0, sizeof got);
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    for (int i = 0; i < want.steps; i++) {
        CHECK(mgpu_step(t, &s) == 1);
        CHECK(t->ahead[1].step == (i % 3 < 2 ? i + 2 : 0) && t->ahead[1].piece == 0);
        CHECK_OK(mgpu_evaluate(t, &numbers));
        CHECK(t->ahead[1].step == 0);
        CHECK_(fabs(s.loss - want.loss[i]) < 1e-5, "step %d: %g, not %g", i, s.loss, want.loss[i]);
    }
    mgpu_trainer_free(t);
    CHECK_(!double_complaints(), "%s", double_complaint());
}

/* Several steps an epoch, each in pieces; what `stop` is told to (mgpu_step_begun) after so many.
 */
static void check_ahead(const char *devices, int pieces, int epochs, int stop)
{
    struct mgpu_trainer *t;
    struct mgpu_step_result s;
    struct tiny_result want;
    struct double_calls before, after;
    double a[12];
    struct mgpu_options o = options(devices), cpu = options("cpu:0");
    o.batch = cpu.batch = SAMPLES / 4;
    o.accumulate = cpu.accumulate = pieces;
    o.epochs = cpu.epochs = epochs;
    o.shuffle = cpu.shuffle = true;
    cpu.steps = stop + 1;
    o.run_ahead = true;
    tiny_train(&want, model, &cpu, weights, 3);
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    for (int i = 1; i <= stop; i++) {
        bool last = i % 4 == 0, first = i % 4 == 1;
        before = double_count();
        CHECK(mgpu_step(t, &s) == 1 && s.step == i);
        after = double_count();
        CHECK_(fabs(s.loss - want.loss[i - 1]) < 1e-5, "step %d: %g, not %g", i, s.loss,
               want.loss[i - 1]);
        CHECK(t->begun.step == (last ? 0 : i + 1));
        CHECK(last ? t->ahead[0].step == (i < 4 * epochs ? i + 1 : 0) : t->ahead[0].step == 0);
        if (i > 4) /* all have their graphs */
            CHECK(after.launched - before.launched == pieces + first - last);
        CHECK(after.allocations == before.allocations);
        CHECK(last || mgpu_weight_read(t, "a", a, 12) == MGPU_EUSAGE);
    }
    CHECK(mgpu_step_begun(t, &s) == 1 && s.step == stop + 1 && t->begun.step == 0);
    CHECK(mgpu_step_begun(t, &s) == 0);
    CHECK_OK(mgpu_weight_read(t, "a", a, 12));
    for (int i = 0; i < 12; i++)
        CHECK_(fabs(a[i] - want.weight[i]) < 1e-5, "%g, not %g", a[i], want.weight[i]);
    mgpu_trainer_free(t);
    CHECK_(!double_complaints(), "%s", double_complaint());
}

/* A step is on the GPU before the loss of the one in front of it is read. A trainer may go while
 * one has begun. */
static void test_run_ahead(const char *devices)
{
    struct mgpu_trainer *t;
    struct mgpu_step_result s;
    struct mgpu_options o = options(devices);
    check_ahead(devices, 1, 3, 9);
    check_ahead(devices, 2, 3, 9);
    o.run_ahead = true;
    o.batch = SAMPLES / 4;
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    CHECK(mgpu_step(t, &s) == 1 && t->begun.step == 2);
    mgpu_trainer_free(t);
    o.gradients = true; /* of the step that was told */
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    CHECK(mgpu_step(t, &s) == 1 && t->begun.step == 0);
    mgpu_trainer_free(t);
    CHECK_(!double_complaints(), "%s", double_complaint());
}

/* So is a batch of an evaluation or a prediction, with the same numbers; training goes on after. */
static void evaluate(const char *devices, bool ahead, double value[4])
{
    struct mgpu_trainer *t;
    struct mgpu_step_result s;
    const struct mgpu_number *numbers;
    struct mgpu_options o = options(devices);
    o.batch = 2;
    o.val_split = 0.5;
    o.run_ahead = ahead;
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    for (int i = 0; i < 2; i++) {
        for (int step = 0; step < SAMPLES / 4; step++)
            CHECK(mgpu_step(t, &s) == 1);
        value[2 * i] = s.loss;
        CHECK_OK(mgpu_evaluate(t, &numbers));
        value[2 * i + 1] = numbers[0].value;
    }
    mgpu_trainer_free(t);
}

static size_t predict(const char *devices, bool ahead, char *bytes, size_t most)
{
    struct mgpu_trainer *t;
    struct mgpu_options o = options(devices);
    o.data = tiny_list(o.data[0], NULL);
    o.batch = 2;
    o.loss = NULL;
    o.inference = o.predict = true;
    o.run_ahead = ahead;
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    CHECK_OK(mgpu_predict(t, tiny_path("y.npz")));
    mgpu_trainer_free(t);
    FILE *f = fopen(tiny_path("y.npz"), "rb");
    size_t n = f ? fread(bytes, 1, most, f) : 0;
    if (f)
        fclose(f);
    return n;
}

static void test_evaluate_ahead(const char *devices)
{
    double value[2][4];
    char bytes[2][4096];
    size_t n[2];
    for (int ahead = 0; ahead < 2; ahead++) {
        evaluate(devices, ahead, value[ahead]);
        n[ahead] = predict(devices, ahead, bytes[ahead], sizeof bytes[ahead]);
    }
    CHECK(!memcmp(value[0], value[1], sizeof value[0]));
    CHECK(n[0] > 0 && n[0] == n[1] && !memcmp(bytes[0], bytes[1], n[0]));
    CHECK_(!double_complaints(), "%s", double_complaint());
}

/* Each instruction that computes, and each wait for communication, has its time; the graph has
 * events of its own. */
static void test_times(void)
{
    struct mgpu_trainer *t;
    struct mgpu_step_result s;
    struct mgpu_options o = options(two);
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    mgpu_profile_begin(t);
    for (int i = 0; i < STEPS; i++)
        CHECK(mgpu_step(t, &s) == 1);
    for (int r = 0; r < 2; r++) {
        const struct mgpu_program *p = t->compiled[0].program[r];
        for (int k = 0; k < p->instructions; k++) {
            const struct mgpu_instruction *in = &p->instruction[k];
            bool joined = ranks_of(t)->rank[r].bound[0]->pass_of[k] != NULL;
            double steps = p->seconds[k] / 1e-3; /* the double: a millisecond each */
            if (in->queue == MGPU_QUEUE_COMPUTE && !joined)
                CHECK_(fabs(steps - STEPS) < 1e-9, "%s: %g", in->node->op->name, steps);
            if (in->queue == MGPU_QUEUE_COMMUNICATION)
                CHECK_(steps >= STEPS - 1e-9, "%s: %g", in->node->op->name, steps);
        }
    }
    CHECK(double_count().launched > 0);
    mgpu_trainer_free(t);
    CHECK_(!double_complaints(), "%s", double_complaint());
}

/* Launches of the updates in a step. */
static int update_launches(const struct mgpu_gpu_bound *b)
{
    int launches = 0;
    for (int i = 0; i < b->passes; i++)
        launches += b->pass[i].kernel.emitted.launches;
    for (int k = 0; k < b->program->instructions; k++) {
        const struct mgpu_instruction *in = &b->program->instruction[k];
        if (in->node->op == &mgpu_op_update && !b->pass_of[k])
            launches += mgpu_gpu_kernel_of(in)->emitted.launches;
    }
    return launches;
}

/* Weights that lie side by side are updated in one pass; a group of its own learning rate apart. */
static void test_passes(const char *optimizer, const char *group, int launches)
{
    struct mgpu_trainer *t;
    struct tiny_result got, want;
    struct mgpu_options o = options("cuda:0"), cpu = options("cpu:0");
    o.optimizer = cpu.optimizer = optimizer;
    o.group = cpu.group = group ? tiny_list(group, NULL) : NULL;
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    int are = update_launches(ranks_of(t)->rank[0].bound[0]);
    CHECK_(are == launches, "%s: %d launches", optimizer, are);
    mgpu_trainer_free(t);
    tiny_train(&got, model, &o, weights, 3);
    tiny_train(&want, model, &cpu, weights, 3);
    CHECK_(tiny_difference(&got, &want) < 1e-5, "%s: off by %.1e", optimizer,
           tiny_difference(&got, &want));
    CHECK_(!double_complaints(), "%s", double_complaint());
}

/* ---- Broken on purpose ----------------------------------------------------------------------- */

/* The last of `steps` steps without one of its waits (-1: with all); how many it has. Whether that
 * was found out: by a complaint, or where the host reads too early by a wrong number. */
static int step_without(int wait, int steps, bool ahead, double *loss, bool *found)
{
    struct mgpu_trainer *t;
    struct mgpu_step_result s = {0};
    struct mgpu_options o = options(two);
    o.batch = SAMPLES / 4;
    o.run_ahead = ahead;
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    double_forget();
    int first = double_count().waits, rc = 1;
    for (int i = 1; i <= steps; i++) {
        CHECK_(rc == 1, "%s", mgpu_error());
        first = double_count().waits;
        double_drop_wait(i == steps && wait >= 0 ? first + wait : -1);
        rc = mgpu_step(t, &s);
    }
    double_drop_wait(-1);
    *found = double_complaints() > 0 || rc != 1 || s.loss != *loss;
    if (wait < 0)
        *loss = s.loss;
    mgpu_trainer_free(t);
    return double_count().waits - first;
}

/* Others repeat what another wait says too. */
static void test_dropped_events(int steps, bool ahead, int least)
{
    double loss = 0;
    bool found;
    int count = 0, waits = step_without(-1, steps, ahead, &loss, &found);
    CHECK_(!double_complaints(), "%s", double_complaint());
    for (int i = 0; i < waits; i++) {
        step_without(i, steps, ahead, &loss, &found);
        count += found;
    }
    printf("step %d%s: %d of %d waits are found out when they are missing\n", steps,
           ahead ? ", the next one begun" : "", count, waits);
    CHECK_(count >= least, "step %d: only %d", steps, count);
    double_forget();
}

/* The n-th all-reduce of a rank. */
static struct mgpu_instruction *reduction(struct mgpu_trainer *t, int rank, int n)
{
    struct mgpu_program *p = t->compiled[0].program[rank];
    for (int k = 0; k < p->instructions; k++) {
        struct mgpu_instruction *in = &p->instruction[k];
        if (in->collective.kind == MGPU_COLLECTIVE_ALL_REDUCE && in->gradients && n-- == 0)
            return in;
    }
    return NULL;
}

/* Two buckets of 4 MiB each: b and c, then a. */
static struct mgpu_trainer *two_buckets(void)
{
    struct mgpu_trainer *t;
    struct mgpu_options o = options(two);
    const char *label = o.data[1];
    o.data = tiny_list(tiny_noise("x", 7, 2, (int64_t[]){SAMPLES, 1100}), label, NULL);
    o.batch = 2;
    o.optimizer = "sgd,lr=0.1";
    CHECK_OK(mgpu_trainer_new(&t,
                              tiny_model("input x float N 1100\ninit a float 1100 1000 = .01\n"
                                         "init b float 1000 1100 = .01\ninit c float 1100 3 = .1\n"
                                         "h = MatMul(x, a)\ni = MatMul(h, b)\ny = MatMul(i, c)\n"
                                         "output y float N 3\n"),
                              &o));
    return t;
}

static void **data_of_b(struct mgpu_trainer *t, int rank)
{
    struct mgpu_part *part = reduction(t, rank, 0)->part;
    while (part->count != 1100 * 1000)
        part++;
    return &part->data;
}

/* One rank reduces what is not ready yet where another bucket belongs. */
static void test_swapped_buckets(void)
{
    struct mgpu_step_result s;
    struct mgpu_trainer *t = two_buckets();
    void **b = data_of_b(t, 1), **a = &reduction(t, 1, 1)->part[0].data, *data = *a;
    *a = *b;
    *b = data;
    CHECK_(mgpu_step(t, &s) == 1, "%s", mgpu_error());
    CHECK_(strstr(double_complaint(), "without an order") != NULL, "%s", double_complaint());
    int64_t *tag[] = {&reduction(t, 0, 0)->collective.tag, &reduction(t, 0, 1)->collective.tag};
    int64_t first = *tag[0];
    *tag[0] = *tag[1];
    *tag[1] = first;
    CHECK_FAILS(mgpu_step(t, &s), "meet in different operations");
    mgpu_trainer_free(t);
    double_forget();
}

/* The gradient of a is put where that of b is being reduced. */
static void test_early_reuse(void)
{
    struct mgpu_step_result s;
    struct mgpu_trainer *t = two_buckets();
    struct mgpu_instruction *in = reduction(t, 0, 0) + 1;
    CHECK(in->queue == MGPU_QUEUE_COMPUTE && in->waits == 0);
    in->tensor[in->inputs].data = *data_of_b(t, 0);
    CHECK_(mgpu_step(t, &s) == 1, "%s", mgpu_error());
    CHECK_(strstr(double_complaint(), "without an order") != NULL, "%s", double_complaint());
    mgpu_trainer_free(t);
    double_forget();
}

/* ---- Faults ---------------------------------------------------------------------------------- */

static void test_memory(void)
{
    struct mgpu_trainer *t;
    struct mgpu_options o = options("cuda:0");
    double_begin(1, 2000);
    CHECK_FAILS(mgpu_trainer_new(&t, model, &o),
                "rank 0 (cuda:0): 0.006 MiB are needed for weights, gradients, optimizer state and "
                "activations, 0.001 of 0.002 MiB are free: 0.005 MiB are missing (weights 0.0 MiB");
    CHECK(strstr(mgpu_error(),
                 "); try a smaller --batch, --accumulate M, --recompute; or for the CPU, type "
                 "--devices cpu"));
    double_begin(1, INT64_C(1) << 30);
    double_busy(true);
    CHECK_FAILS(mgpu_trainer_new(&t, model, &o), "cuda:0 cannot be used: taking the GPU into use");
    CHECK(strstr(mgpu_error(), "; for the CPU, type --devices cpu"));
    double_busy(false);
    o.devices = "cuda:1";
    CHECK_FAILS(mgpu_trainer_new(&t, model, &o), "there is no GPU 1, only cuda:0");
    double_begin(2, INT64_C(1) << 30);
    o.strategy = "data";
    o.devices = "cuda:0,cuda:1";
    CHECK_FAILS(mgpu_trainer_new(&t, model, &o), "ranks on several GPUs");
    o.devices = "cuda:0,cpu:0";
    CHECK_FAILS(mgpu_trainer_new(&t, model, &o), "ranks on several GPUs");
}

/* Streams of the second rank do not come to be: all that is there goes. */
static void test_few_streams(void)
{
    struct mgpu_trainer *t;
    struct mgpu_options o = options(two);
    for (int count = 0; count < 6; count++) {
        double_most_streams(count);
        CHECK_FAILS(
            mgpu_trainer_new(&t, model, &o),
            "making a stream (cuStreamCreateWithPriority) failed: CUDA_ERROR_OF_THE_DOUBLE");
    }
    double_most_streams(-1);
}

/* A node that nothing here runs: a recurrent layer whose input has no elements. */
static void test_no_kernel(void)
{
    struct mgpu_trainer *t;
    struct mgpu_options o = options("cuda:0");
    mgpu_gpu_library(NULL);
    CHECK_FAILS(mgpu_trainer_new(&t,
                                 tiny_model("input x float N 4\ninit a int64 1 = 0\n"
                                            "init b int64 1 = 1\ninit w float 1 3 0 =\n"
                                            "init r float 1 3 3 = .1\n"
                                            "e = Slice(x, a, a, b)\ns = Unsqueeze(e, a)\n"
                                            "-, h = RNN(s, w, r) hidden_size=3\n"
                                            "y = Squeeze(h, a)\noutput y float N 3\n"),
                                 &o),
                "cuda:0 cannot train it (for the CPU, type --devices cpu): RNN giving 'h': no "
                "kernel");
    double_begin(1, INT64_C(1) << 30);
}

/* The message of the CPU, and weights as they were. */
static void test_not_finite(const char *devices)
{
    float x[SAMPLES * 4] = {0};
    struct tiny_result got, cpu;
    struct mgpu_options o = options("cpu:0");
    const char *bad = tiny_model("input x float N 4\ninit a float 4 3 = 1e30\n"
                                 "init b float 3 4 = 1e30\ninit c float 4 3 = 1\n"
                                 "h = MatMul(x, a)\ni = MatMul(h, b)\ny = MatMul(i, c)\n"
                                 "output y float N 3\n");
    for (int i = 0; i < SAMPLES * 4; i++)
        x[i] = 1;
    const char *label = o.data[1];
    o.data = tiny_list(tiny_data("x", MGPU_FLOAT, 2, (int64_t[]){SAMPLES, 4}, x), label, NULL);
    o.clip_norm = 0;
    tiny_train(&cpu, bad, &o, NULL, 0);
    o.devices = devices;
    tiny_train(&got, bad, &o, NULL, 0);
    CHECK_(got.rc == cpu.rc && strstr(got.error, "is not finite; the first value that is not is "
                                                 "the output of"),
           "%s", got.error);
    CHECK(strstr(got.error, "'i'") && strstr(cpu.error, "'i'"));
    CHECK_(!double_complaints(), "%s", double_complaint());
}

/* Ranks of a GPU share its libraries' handles: one looks for the node after the other. */
static void test_named_in_turn(void)
{
    enum { BATCH = 4, MOST = BATCH * 2 * 3 * 3 };
    float x[MOST];
    struct tiny_result got;
    struct mgpu_options o = MGPU_OPTIONS;
    for (int i = 0; i < MOST; i++)
        x[i] = 1e30F;
    o.data = tiny_list(tiny_data("x", MGPU_FLOAT, 4, (int64_t[]){BATCH, 2, 3, 3}, x),
                       tiny_noise("label", 3, 4, (int64_t[]){BATCH, 2, 1, 1}), NULL);
    o.loss = tiny_list("mse", NULL);
    o.batch = BATCH;
    o.steps = 1;
    o.devices = two;
    o.strategy = "data";
    double_slow_library(20000);
    tiny_train(&got,
               tiny_model("input x float N 2 3 3\ninit w float 2 2 3 3 = 1\n"
                          "init v float 2 2 1 1 = 1e30\n"
                          "h = Conv(x, w)\ny = Conv(h, v)\noutput y float N 2 1 1\n"),
               &o, NULL, 0);
    double_slow_library(0);
    CHECK_(got.rc == MGPU_EINVALID && strstr(got.error, "'y'"), "%s", got.error);
    CHECK_(!double_complaints(), "%s", double_complaint());
    double_forget();
}

/* Step 2 is not finite, and step 3 was given to the GPU by then: it is step 2 that is told, with
 * the node, and the weights are those of step 1. */
static void test_not_finite_ahead(const char *devices, int pieces)
{
    enum { COUNT = 12 };
    struct mgpu_trainer *t;
    struct mgpu_step_result s;
    struct tiny_result cpu, one;
    const struct tiny_weight a = {"a", COUNT};
    struct mgpu_options o = options("cpu:0");
    o.optimizer = "sgd,lr=1e25";
    o.clip_norm = 0;
    o.batch = SAMPLES / 4;
    o.accumulate = pieces;
    const char *bad = tiny_model("input x float N 4\ninit a float 4 3 = .1\n"
                                 "init b float 3 3 = .1 .2 .3 .3 .2 .1 .1 .3 .2\n"
                                 "h = MatMul(x, a)\ni = MatMul(h, b)\ny = Exp(i)\n"
                                 "output y float N 3\n");
    tiny_train(&cpu, bad, &o, NULL, 0);
    CHECK_(cpu.rc < 0 && cpu.steps == 1, "%d steps, %s", cpu.steps, cpu.error);
    o.devices = devices;
    o.steps = 1;
    tiny_train(&one, bad, &o, &a, 1);
    o.steps = 0;
    o.run_ahead = true;
    CHECK_OK(mgpu_trainer_new(&t, bad, &o));
    CHECK(mgpu_step(t, &s) == 1 && t->begun.step == 2);
    CHECK(mgpu_step(t, &s) == MGPU_EINVALID && t->begun.step == 0);
    CHECK_(strstr(mgpu_error(), "step 2: ") && strstr(mgpu_error(), "the output of"), "%s",
           mgpu_error());
    CHECK_(!strcmp(strstr(mgpu_error(), "is not finite"), strstr(cpu.error, "is not finite")),
           "%s, not %s", mgpu_error(), cpu.error);
    double now[COUNT];
    CHECK_OK(mgpu_weight_read(t, "a", now, COUNT));
    CHECK(!memcmp(now, one.weight, sizeof now));
    mgpu_trainer_free(t);
    CHECK_(!double_complaints(), "%s", double_complaint());
}

int main(void)
{
    if (double_skipped())
        return 77;
    tiny_begin();
    double_begin(1, INT64_C(1) << 30);
    model = tiny_model("input x float N 4\n"
                       "init a float 4 3 = .5 -.3 .2 .1 .4 -.6 -.2 .3 .7 .2 -.1 .5\n"
                       "init b float 3 4 = .2 .1 .4 -.6 -.2 .3 .7 .2 -.1 .5 .5 -.3\n"
                       "init c float 4 3 = .1 .2 .3 .4 .5 .6 .7 .8 .9 1 1.1 1.2\n"
                       "h = MatMul(x, a)\nr = Relu(h)\ni = MatMul(r, b)\ns = Tanh(i)\n"
                       "y = MatMul(s, c)\noutput y float N 3\n");
    test_default();
    test_ranks("cuda:0");
    test_ranks(two);
    test_ranks("cuda:0,cuda:0,cuda:0,cuda:0,cuda:0");
    test_graph();
    test_ahead();
    test_run_ahead("cuda:0");
    test_run_ahead(two);
    test_evaluate_ahead("cuda:0");
    test_evaluate_ahead(two);
    test_times();
    test_passes("adam,lr=0.1", NULL, 1);
    test_passes("sgd,lr=0.1,momentum=0.9", NULL, 1);
    test_passes("adamw,lr=0.1,weight_decay=0.1", NULL, 1);
    test_passes("rmsprop,lr=0.1", NULL, 1);
    test_passes("adagrad,lr=0.1", "a,lr=0.2", 2);
    test_passes("lamb,lr=0.1", NULL, 6); /* two of each: its norms are a weight's own */
    test_dropped_events(1, false, 10);
    test_dropped_events(2, false, 10); /* captured, its inputs ahead */
    test_dropped_events(3, true, 5);   /* a launch, behind the one before */
    test_swapped_buckets();
    test_early_reuse();
    test_not_finite("cuda:0");
    test_not_finite(two);
    test_named_in_turn();
    test_not_finite_ahead("cuda:0", 1);
    test_not_finite_ahead(two, 1);
    test_not_finite_ahead(two, 2);
    test_memory();
    test_few_streams();
    test_no_kernel();
    double_end();
    CHECK_(!double_complaints(), "%s", double_complaint());
    tiny_end();
    return test_end();
}
