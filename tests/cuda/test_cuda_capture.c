/* A step of each shape is captured as a graph of its own; where a call forbids that, steps are
 * submitted call by call, which is said once. Neither way stops the host but for the loss, nor
 * takes memory. On a GPU that there is not (double.h). */
#include "runtime/cuda/ranks.h"
#include "runtime/facade/facade.h"
#include "tests/cuda/double.h"
#include "tests/cuda/double_train.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

#include <string.h>

enum { SAMPLES = 12 };

static const char *const two = "cuda:0,cuda:0";

static const struct tiny_weight weights[] = {{"a", 12}, {"b", 12}};
static const char *model;

static int graphs_of(struct mgpu_trainer *t)
{
    return ((struct mgpu_gpu_rank *)mgpu_team_rank(t->team, 0)->engine)->all->graphs;
}

/* Steps of 8 samples and of 4, in turn: the first of each kind comes without a graph; in each every
 * rank waits once, for the loss. `launches`: of graphs. */
static void check_steps(const char *devices, int graphs, int launches)
{
    struct mgpu_trainer *t;
    struct mgpu_step_result s;
    struct mgpu_options o = double_options(SAMPLES, devices);
    int launched = double_count().launched, ranks = strcmp(devices, two) ? 1 : 2;
    o.batch = 8;
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    for (int i = 0; i < 2 * o.epochs; i++) {
        struct double_calls before = double_count(), after;
        CHECK_(mgpu_step(t, &s) == 1, "%s", mgpu_error());
        after = double_count();
        CHECK_(after.stops - before.stops == ranks, "step %d: the host stops %d times", i + 1,
               after.stops - before.stops);
        CHECK_(after.allocations == before.allocations, "step %d: memory is taken", i + 1);
    }
    CHECK_(graphs_of(t) == graphs, "%d graphs", graphs_of(t));
    CHECK(double_count().launched - launched == launches);
    mgpu_trainer_free(t);
    CHECK_(!double_complaints(), "%s: %s", devices, double_complaint());
}

static void check_right(const char *devices)
{
    struct tiny_result got, want;
    struct mgpu_options o = double_options(SAMPLES, devices),
                        cpu = double_options(SAMPLES, "cpu:0");
    o.batch = cpu.batch = 8;
    tiny_train(&got, model, &o, weights, 2);
    tiny_train(&want, model, &cpu, weights, 2);
    CHECK_(tiny_difference(&got, &want) < 1e-5, "%s: off by %.1e (%s)", devices,
           tiny_difference(&got, &want), got.error);
    CHECK_(!double_complaints(), "%s: %s", devices, double_complaint());
}

static int notes;

static void count_note(void *context, const char *text)
{
    (void)context;
    CHECK_(!strstr(text, "fault") && !strstr(text, "report"), "%s", text);
    notes += !strncmp(text, "cuda:0: the run goes on", 23) && strstr(text, "call by call") &&
             strstr(text, " of the double)");
}

/* The first call of a capture is refused, one within, and one behind a rank's communication. */
static void check_refused(const char *devices)
{
    static const int works[] = {0, 3, 12};
    static const CUresult results[] = {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                                       CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_LAUNCH_FAILED};
    mgpu_set_warning(count_note, NULL);
    for (int i = 0; i < 3; i++) {
        double_no_capture(works[i], results[i]);
        notes = 0;
        check_steps(devices, 2, 0);
        CHECK_(notes == 1, "said %d times", notes);
        check_right(devices);
    }
    double_no_capture(-1, CUDA_SUCCESS);
    mgpu_set_warning(NULL, NULL);
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
                       "h = MatMul(x, a)\nr = Tanh(h)\ny = MatMul(r, b)\noutput y float N 4\n");
    check_steps("cuda:0", 2, 6);
    check_steps(two, 2, 6);
    check_right(two);
    check_refused("cuda:0");
    check_refused(two);
    double_end();
    CHECK_(!double_complaints(), "%s", double_complaint());
    tiny_end();
    return test_end();
}
