/* Training in float16 scales the loss: what overflows is not done and halves the scale, good steps
 * double it, nothing else depends on it. On a GPU that there is not (double.h). */
#include "runtime/facade/facade.h"
#include "tests/cuda/double.h"
#include "tests/golden/case_suite.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

#include <unistd.h>

enum { SAMPLES = 12, MOST = 32 };

static const char *const layers = "input x float N 4\n"
                                  "init w float 4 6 = normal 0.5\n"
                                  "init b float 6 = .1 .2 .3 -.1 -.2 -.3\n"
                                  "init v float 6 2 = normal 0.5\n"
                                  "h = MatMul(x, w)\na = Add(h, b)\nr = Tanh(a)\n"
                                  "y = MatMul(r, v)\noutput y float N 2\n";
static const struct tiny_weight layer_weights[] = {{"w", 24}, {"b", 6}, {"v", 12}};

/* What moves before it is known whether the step counts. */
static const char *const normalized = "input x float N 4\n"
                                      "init w float 4 6 = normal 0.5\n"
                                      "init scale float 6 = 1 .9 1.1 1 .8 1.2\n"
                                      "init shift float 6 = .1 .2 .3 -.1 -.2 -.3\n"
                                      "init mean float 6 = 0\ninit var float 6 = 1\n"
                                      "init v float 6 2 = normal 0.5\n"
                                      "h = MatMul(x, w)\n"
                                      "n = BatchNormalization(h, scale, shift, mean, var)\n"
                                      "r = Tanh(n)\ny = MatMul(r, v)\noutput y float N 2\n";
static const struct tiny_weight normalized_weights[] = {{"w", 24}, {"scale", 6}, {"shift", 6},
                                                        {"v", 12}, {"mean", 6},  {"var", 6}};
enum { LAYERS = 3, NORMALIZED = 6 };

static const char *model;
static const struct tiny_weight *weights = layer_weights;
static int weight_count = LAYERS;
static const char *optimizer = "adam,lr=0.01", *group;
static int64_t pieces = 1;

/* The whole data are one batch, so that every step sees the same. */
static struct mgpu_options options(const char *devices, const char *scale, int steps)
{
    static const char *const *data;
    struct mgpu_options o = MGPU_OPTIONS;
    if (!data)
        data = tiny_list(tiny_noise("x", 3, 2, (int64_t[]){SAMPLES, 4}),
                         tiny_noise("label", 5, 2, (int64_t[]){SAMPLES, 2}), NULL);
    o.data = data;
    o.loss = tiny_list("mse", NULL);
    o.optimizer = optimizer;
    o.group = group ? tiny_list(group, NULL) : NULL;
    o.accumulate = pieces;
    o.batch = SAMPLES;
    o.steps = steps;
    o.shuffle = false;
    o.devices = devices;
    o.strategy = "data";
    o.precision = "f16";
    o.loss_scale = scale;
    return o;
}

/* The scale of each step; how many changed nothing. */
static int scales(const struct mgpu_options *o, double scale[MOST])
{
    struct mgpu_trainer *t;
    struct mgpu_step_result s;
    int skipped = 0, rc = mgpu_trainer_new(&t, model, o);
    CHECK_OK(rc);
    while (t && (rc = mgpu_step(t, &s)) > 0) {
        scale[s.step - 1] = s.loss_scale;
        skipped += s.skipped;
    }
    CHECK_OK(rc);
    mgpu_trainer_free(t);
    return skipped;
}

/* ---- Up and down ----------------------------------------------------------------------------- */

static void test_grows(void)
{
    struct mgpu_options o = options("cuda:0", "256,every=3", 7);
    const double want[] = {256, 256, 256, 512, 512, 512, 1024};
    double scale[MOST];
    CHECK(scales(&o, scale) == 0);
    CHECK(!memcmp(scale, want, sizeof want));
    o.loss_scale = "8388608,every=1"; /* to the most that there is, and from there down */
    o.steps = 4;
    CHECK(scales(&o, scale) > 0 && scale[0] == 0x1p23 && scale[1] == 0x1p22);
}

/* The steps that overflowed never were: the rest is that of a run that begins at the right scale,
 * bit by bit, the optimizer's count of steps too. */
static void test_halves(const char *devices)
{
    struct mgpu_options o = options(devices, "16777216", MOST);
    struct tiny_result from_above, right;
    double scale[MOST];
    char text[32];
    int skipped = scales(&o, scale);
    CHECK_(skipped > 2 && skipped < 20, "%d skipped", skipped);
    for (int i = 1; i < MOST; i++)
        CHECK(scale[i] == (i <= skipped ? scale[i - 1] / 2 : scale[i - 1]));
    o.steps = skipped + 5;
    tiny_train(&from_above, model, &o, weights, weight_count);
    snprintf(text, sizeof text, "%.0f", scale[skipped]);
    o = options(devices, text, 5);
    tiny_train(&right, model, &o, weights, weight_count);
    CHECK_(from_above.rc >= 0 && right.rc >= 0, "%s %s", from_above.error, right.error);
    CHECK(!memcmp(from_above.weight, right.weight, sizeof(double) * (size_t)right.weights));
    CHECK(!memcmp(from_above.loss + skipped, right.loss, sizeof(double) * 5));
}

/* The step behind one that overflows was on the GPU already, and never was either; behind one that
 * will double the scale none begins. */
static void test_run_ahead(const char *devices)
{
    struct mgpu_options o = options(devices, "16777216,every=4", MOST);
    struct tiny_result ahead, behind;
    double scale[2][MOST];
    o.batch = SAMPLES / 3;
    int skipped = scales(&o, scale[0]);
    tiny_train(&behind, model, &o, weights, weight_count);
    o.run_ahead = true;
    CHECK(scales(&o, scale[1]) == skipped && skipped > 2);
    tiny_train(&ahead, model, &o, weights, weight_count);
    CHECK(!memcmp(scale[0], scale[1], sizeof scale[0]));
    CHECK_(tiny_same(&ahead, &behind), "%s", ahead.error);
}

/* A scale that is the largest stays, and the next step begins early then, too. */
static void test_most(void)
{
    struct mgpu_options o = options("cuda:0", "16777216,every=1", 3);
    struct mgpu_trainer *t;
    struct mgpu_step_result s;
    o.loss = tiny_list("mse,weight=1e-5", NULL);
    o.batch = SAMPLES / 3;
    o.run_ahead = true;
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    for (int i = 1; i <= 2; i++) {
        CHECK(mgpu_step(t, &s) == 1);
        CHECK_(!s.skipped && s.loss_scale == 0x1p24 && t->begun.step == i + 1, "step %d: %g, %lld",
               i, s.loss_scale, (long long)t->begun.step);
    }
    mgpu_trainer_free(t);
}

static void test_skips(void)
{
    test_halves("cuda:0");
    test_halves("cuda:0,cuda:0");
    test_run_ahead("cuda:0");
    test_run_ahead("cuda:0,cuda:0");
}

/* A step that overflows in one of its pieces is not done at all. The first that is done is the
 * optimizer's first, and decays no weight before that, nor ever one that a group leaves out. */
static void test_kinds(void)
{
    static const char *const kinds[][2] = {{"sgd,lr=0.05,momentum=0.9", NULL},
                                           {"adamw,lr=0.01,weight_decay=0.3", "b,weight_decay=0"},
                                           {"lamb,lr=0.01,weight_decay=0.1", "b,weight_decay=0"}};
    struct tiny_result half, f32;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        optimizer = kinds[i][0];
        group = kinds[i][1];
        for (pieces = 1; pieces <= 3; pieces += 2) {
            test_halves("cuda:0");
            struct mgpu_options o = options("cuda:0", "1024", 8);
            tiny_train(&half, model, &o, weights, weight_count);
            o.loss_scale = o.precision = NULL;
            o.devices = "cpu:0";
            tiny_train(&f32, model, &o, weights, weight_count);
            CHECK_(tiny_difference(&half, &f32) < 5e-3, "%s in %d pieces is off by %g", optimizer,
                   (int)pieces, tiny_difference(&half, &f32));
        }
    }
    optimizer = "adam,lr=0.01";
    group = NULL;
    pieces = 1;
}

/* Clipping sees gradients without their scale. */
static void test_clip(void)
{
    struct mgpu_options o = options("cuda:0", "8", 6);
    struct tiny_result low, high, f32;
    o.clip_norm = 0.1;
    tiny_train(&low, model, &o, weights, weight_count);
    o.loss_scale = "4096";
    tiny_train(&high, model, &o, weights, weight_count);
    o.loss_scale = o.precision = NULL;
    tiny_train(&f32, model, &o, weights, weight_count);
    CHECK_(low.rc >= 0 && f32.rc >= 0, "%s %s", low.error, f32.error);
    CHECK(tiny_difference(&high, &low) < 2e-3 && tiny_difference(&low, &f32) < 2e-3);
    for (int i = 0; i < f32.weights; i++)
        CHECK_(fabs(high.gradient[i] - f32.gradient[i]) < 5e-3, "gradient %g, not %g",
               high.gradient[i], f32.gradient[i]);
}

static void test_ranks(void)
{
    struct tiny_result one, two;
    struct mgpu_options o = options("cuda:0", "1024", 20);
    tiny_train(&one, model, &o, weights, weight_count);
    o.devices = "cuda:0,cuda:0";
    tiny_train(&two, model, &o, weights, weight_count);
    CHECK_(tiny_difference(&two, &one) < 2e-3, "two ranks are off by %g",
           tiny_difference(&two, &one));
}

/* ---- Resume ---------------------------------------------------------------------------------- */

static void go(const struct mgpu_options *o, double *loss, double *scale, const char *to)
{
    struct mgpu_trainer *t;
    struct mgpu_step_result s;
    CHECK_OK(mgpu_trainer_new(&t, model, o));
    while (t && mgpu_step(t, &s) > 0) {
        loss[s.step - 1] = s.loss;
        scale[s.step - 1] = s.loss_scale;
    }
    if (t)
        CHECK_OK(mgpu_save_checkpoint(t, to));
    mgpu_trainer_free(t);
}

/* From within steps that overflow, and from between two doublings. */
static void test_resume(void)
{
    double loss[2][MOST], scale[2][MOST];
    for (int stop = 3; stop <= 18; stop += mgpu_case_quick() ? 15 : 5) {
        struct mgpu_options o = options("cuda:0", "16777216,every=4", 20);
        go(&o, loss[0], scale[0], tiny_path("whole.h5"));
        o.steps = stop;
        go(&o, loss[1], scale[1], tiny_path("part.h5"));
        o.steps = 20;
        o.loss_scale = "1,every=4";
        o.resume = tiny_path("part.h5");
        go(&o, loss[1], scale[1], tiny_path("rest.h5"));
        CHECK(!memcmp(loss[0], loss[1], 20 * sizeof(double)));
        CHECK(!memcmp(scale[0], scale[1], 20 * sizeof(double)));
    }
}

static const char *wanted_note;
static int wanted_notes;

static void look_for_note(void *context, const char *text)
{
    (void)context;
    wanted_notes += strstr(text, wanted_note) != NULL;
}

/* After how many steps it doubles is no part of a checkpoint, the scale is: either is said. */
static void test_resume_other(void)
{
    struct mgpu_options o = options("cuda:0", "256,every=4", 2);
    double loss[MOST], scale[MOST];
    go(&o, loss, scale, tiny_path("part.h5"));
    wanted_note = "--loss-scale is 'every=2000' now; in the run before it was 'every=4'";
    mgpu_set_note(look_for_note, NULL);
    o.resume = tiny_path("part.h5");
    o.steps = 3;
    go(&o, loss, scale, tiny_path("rest.h5"));
    CHECK(wanted_notes == 0);
    o.loss_scale = NULL;
    go(&o, loss, scale, tiny_path("rest.h5"));
    CHECK(wanted_notes == 1 && scale[2] == 256);
    wanted_note = "--loss-scale 1024: the scale stays 256, that of ";
    o.loss_scale = "1024,every=3";
    go(&o, loss, scale, tiny_path("rest.h5"));
    CHECK(wanted_notes == 2 && scale[2] == 256);
    wanted_note = "--loss-scale is ";
    o.precision = "f32";
    o.loss_scale = NULL;
    o.resume = NULL;
    o.steps = 2;
    go(&o, loss, scale, tiny_path("float.h5"));
    o.precision = "f16"; /* that changed, and is said: nobody gave a scale */
    o.resume = tiny_path("float.h5");
    o.steps = 3;
    go(&o, loss, scale, tiny_path("rest.h5"));
    CHECK(wanted_notes == 2);
    o.resume = tiny_path("part.h5");
    wanted_note = "the scale stays";
    o.loss_scale = "256";
    go(&o, loss, scale, tiny_path("rest.h5"));
    o.loss_scale = "every=3";
    go(&o, loss, scale, tiny_path("rest.h5"));
    CHECK(wanted_notes == 2);
    mgpu_set_note(NULL, NULL);
}

/* ---- What is said ---------------------------------------------------------------------------- */

static void fails(const char *path, const struct mgpu_options *o, const char *text)
{
    struct tiny_result r;
    tiny_train(&r, path, o, NULL, 0);
    CHECK_(r.rc < 0 && strstr(r.error, text), "'%s', not '%s'", r.error, text);
}

static void test_messages(void)
{
    struct mgpu_options o = options("cuda:0", NULL, 4);
    fails(tiny_model("input x float N 4\ninit w float 4 2 = 60000 50000 40000 60000 50000 60000 "
                     "60000 40000\nh = MatMul(x, w)\ny = MatMul(h, v)\n"
                     "init v float 2 2 = 1e3 2e3 3e3 4e3\noutput y float N 2\n"),
          &o,
          "in float16, which ends at 65504 (bfloat16 ends where float32 does: --precision bf16)");
    o.loss_scale = "1.2e-7"; /* one step down, and no further */
    fails(tiny_model("input x float N 4\ninit w float 4 2 = 0\nh = MatMul(x, w)\n"
                     "y = Sqrt(h)\noutput y float N 2\n"),
          &o, "in float16, with the loss scaled by less than 2^-23, which is not halved again (");
    static const char *const wrong[] = {"",    " ",     "0",    "-1",    "nan", "inf",     "1e-400",
                                        "8/0", "1e400", "5e-8", "1.7e7", "64k", ",every=3"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        o.loss_scale = wrong[i];
        fails(model, &o, "' is not a number from 2^-24 (5.96e-08) to 2^24 (16777216)");
    }
    o.loss_scale = "8,sometimes=3";
    fails(model, &o, "--loss-scale: '8,sometimes=3' is not START[,every=N]");
    o.loss_scale = "8";
    o.precision = "bf16";
    fails(model, &o, "--loss-scale: only float16 needs one");
    o.loss_scale = NULL;
    o.devices = "cpu:0";
    fails(model, &o, "--precision bf16: the kernels of cpu:0 compute in float32 and float64");
}

/* The CPU has no TF32. */
static void test_tf32(void)
{
    struct mgpu_options o = options("cpu:0", NULL, 4);
    struct tiny_result f32, tf32;
    o.precision = "f32";
    tiny_train(&f32, model, &o, weights, weight_count);
    o.precision = "tf32";
    tiny_train(&tf32, model, &o, weights, weight_count);
    CHECK(tiny_same(&tf32, &f32));
}

int main(void)
{
    if (double_skipped())
        return 77;
    double_begin(1, INT64_C(1) << 30);
    tiny_begin();
    model = tiny_model(layers);
    test_grows();
    test_skips();
    model = tiny_model(normalized);
    weights = normalized_weights;
    weight_count = NORMALIZED;
    if (!mgpu_case_quick()) /* emulated threads are slow under the sanitizers */
        test_skips();
    pieces = 3;
    test_run_ahead("cuda:0");
    test_resume();
    pieces = 1;
    model = tiny_model(layers);
    weights = layer_weights;
    weight_count = LAYERS;
    test_most();
    test_kinds();
    test_clip();
    test_ranks();
    test_resume();
    test_resume_other();
    test_messages();
    test_tf32();
    tiny_end();
    double_end();
    CHECK_(!double_complaints(), "%s", double_complaint());
    return test_end();
}
