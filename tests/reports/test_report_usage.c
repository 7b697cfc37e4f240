/* What a person typed or fed that went through without a word, or ended in a crash. */
#include "tests/support/tiny.h"
#include "tests/test.h"

static const char *const three = "input x float N 2\n"
                                 "init w float 2 3 = .1 .2 .3 .4 -.1 .3\n"
                                 "y = MatMul(x, w)\n"
                                 "output y float N 3\n";

static const char *const dropping = "input x float N 2\n"
                                    "init w float 2 3 = .1 .2 .3 .4 -.1 .3\n"
                                    "init ratio float = .5\n"
                                    "init training bool = 1\n"
                                    "d = Dropout(x, ratio, training)\n"
                                    "y = MatMul(d, w)\n"
                                    "output y float N 3\n";
static const struct tiny_weight weight[] = {{"w", 6}};

static struct mgpu_options plain(void)
{
    struct mgpu_options o = MGPU_OPTIONS;
    int64_t label[] = {0, 2, 1, 1}, four = 4;
    o.data = tiny_list(tiny_floats("x", "4 2", 1.0, 2.0, -1.0, 0.5, 0.3, -0.7, 2.0, 1.0),
                       tiny_data("label", MGPU_INT64, 1, &four, label), NULL);
    o.loss = tiny_list("cross_entropy", NULL);
    o.optimizer = "sgd,lr=0.1";
    o.devices = "cpu:0";
    return o;
}

static struct tiny_result train(const char *text, const struct mgpu_options *o)
{
    struct tiny_result r;
    tiny_train(&r, tiny_model(text), o, weight, 1);
    return r;
}

static void refused(const char *text, const struct mgpu_options *o, const char *part)
{
    struct tiny_result r = train(text, o);
    CHECK_(r.rc < 0 && strstr(r.error, part), "'%s' gave %d: %s", part, r.rc, r.error);
}

/* A batch of far more than all samples takes no memory of its own. */
static void test_huge_batch(void)
{
    struct mgpu_options o = plain();
    o.batch = 4;
    struct tiny_result all = train(three, &o);
    o.batch = 1000000000000;
    struct tiny_result huge = train(three, &o);
    CHECK_(huge.rc >= 0, "%s", huge.error);
    CHECK(tiny_same(&huge, &all));
}

static void test_sample_weights(void)
{
    static const double bad[] = {-50, NAN, INFINITY};
    struct mgpu_options o = plain();
    for (int i = 0; i < 3; i++) {
        o.sample_weight = strchr(tiny_floats("w", "4", 1.0, bad[i], 1.0, 1.0), '=') + 1;
        refused(three, &o, "the weight of sample 1 is");
    }
}

/* The sample is named, on whichever rank it is, and not the node that met it first. */
static void test_sample_not_finite(void)
{
    struct mgpu_options o = plain();
    o.data = tiny_list(tiny_floats("x", "4 2", 1.0, 2.0, -1.0, 0.5, 0.3, -0.7, 2.0, (double)NAN),
                       o.data[1], NULL);
    o.batch = 3;
    o.shuffle = false;
    refused(three, &o, "step 2: 'x', sample 3: the value nan is not finite");
    o.devices = "cpu:0,cpu:1";
    o.strategy = "data";
    o.batch = 4;
    refused(three, &o, "step 1: 'x', sample 3: the value nan is not finite");
}

static void test_validation_split(void)
{
    struct mgpu_options o = plain();
    o.val_split = 0.1;
    refused(three, &o, "--val-split 0.1 of 4 samples holds out none");
    o.val_split = 0.5;
    o.val = o.data;
    refused(three, &o, "exclude each other");
}

static int notes;

static void count_note(void *context, const char *text)
{
    notes += strstr(text, context) != NULL;
}

static void test_dropout_rules(void)
{
    struct mgpu_options o = plain();
    o.dropout = tiny_list("z=0.5", NULL);
    refused(dropping, &o, "--dropout z=0.5: there is no node 'z'");
    o.dropout = tiny_list("d=0.5", NULL);
    CHECK(train(dropping, &o).rc >= 0);
    o.dropout = tiny_list("0.5", NULL);
    mgpu_set_note(count_note, (void *)"has no Dropout nodes");
    CHECK(train(dropping, &o).rc >= 0 && notes == 0);
    CHECK(train(three, &o).rc >= 0 && notes == 1);
    mgpu_set_note(NULL, NULL);
}

static void test_words(void)
{
    struct mgpu_options o = plain();
    o.precision = "f8";
    refused(three, &o, "--precision: unknown value 'f8' (known: f32, f64, tf32, bf16, f16)");
    o = plain();
    o.devices = "cpu:3-1";
    refused(three, &o, "counts down");
    o.devices = "cpu:0-5000";
    refused(three, &o, "0 to 1023");
    o = plain();
    o.batch_axis = tiny_list("x=5", NULL);
    refused(three, &o, "--batch-axis x=5");
}

/* What does not go together is refused, not dropped. */
static void test_deterministic_places(void)
{
    struct mgpu_options o = plain();
    o.devices = "cpu:0,cpu:1";
    o.deterministic = 2;
    CHECK(train(three, &o).rc >= 0);
    o.strategy = "branch";
    refused(three, &o, "--deterministic is data parallel");
    o.strategy = NULL;
    o.place = tiny_list("w=cpu:1", NULL);
    refused(three, &o, "--deterministic is data parallel");
}

/* Rows of a step are no samples: two devices are one too many, unless they were asked to split. */
static void test_step_rows_devices(void)
{
    static const char *const two_rows = "input x float 2 2\n"
                                        "init w float 2 3 = .1 .2 .3 .4 -.1 .3\n"
                                        "y = MatMul(x, w)\n"
                                        "output y float 2 3\n";
    struct mgpu_options o = plain();
    struct mgpu_trainer *t;
    struct mgpu_facts facts;
    o.devices = "cpu:0,cpu:1";
    o.rows = tiny_list("x=2", "label=2", NULL);
    o.batch = 1;
    mgpu_set_note(count_note, (void *)"one rank (cpu:0): the rows of 'x'");
    notes = 0;
    CHECK_OK(mgpu_trainer_new(&t, tiny_model(two_rows), &o));
    mgpu_trainer_facts(t, &facts);
    CHECK(facts.ranks == 1 && !strcmp(facts.devices, "cpu:0") && facts.steps_per_epoch == 2);
    CHECK(notes == 1);
    mgpu_set_note(NULL, NULL);
    mgpu_trainer_free(t);
    o.strategy = "data";
    refused(two_rows, &o, "the rows of 'x' belong to their step");
    o.strategy = "branch";
    refused(two_rows, &o, "the rows of 'x' belong to their step");
    o.strategy = NULL;
    o.deterministic = 2;
    refused(two_rows, &o, "the rows of 'x' belong to their step");
}

/* A single plan for two devices is one rank, and its report names that one device. */
static void test_chosen_single(void)
{
    struct mgpu_options o = plain();
    struct mgpu_trainer *t;
    struct mgpu_facts facts;
    o.devices = "cpu:0,cpu:1";
    o.batch = 1;
    CHECK_OK(mgpu_trainer_new(&t, tiny_model(three), &o));
    mgpu_trainer_facts(t, &facts);
    CHECK_(facts.ranks == 1 && !strcmp(facts.devices, "cpu:0") && !strcmp(facts.strategy, "single"),
           "%s on %s, %d ranks", facts.strategy, facts.devices, facts.ranks);
    mgpu_trainer_free(t);
}

/* Places without devices are those of the default device. */
static void test_places_without_devices(void)
{
    struct mgpu_options o = plain();
    o.devices = NULL;
    o.weights_on = "cpu";
    struct tiny_result r = train(three, &o);
    CHECK_(r.rc >= 0, "%s", r.error);
    o.weights_on = NULL;
    o.place = tiny_list("nowhere=cpu", NULL);
    refused(three, &o, "--place 'nowhere=cpu': no node that devices compute is called 'nowhere'");
}

/* Steps that were all skipped have no loss, so that no epoch of them is the best. */
static void test_all_steps_skipped(void)
{
    struct mgpu_options o = plain();
    struct mgpu_trainer *t;
    struct mgpu_step_result step;
    struct mgpu_epoch_result end;
    o.optimizer = "sgd,lr=1e39";
    o.skip_nonfinite = true;
    o.epochs = 3;
    CHECK_OK(mgpu_trainer_new(&t, tiny_model(three), &o));
    for (int i = 0; i < 3; i++) {
        CHECK(mgpu_step(t, &step) == 1 && step.epoch_ends);
        CHECK_OK(mgpu_epoch_end(t, &end));
        CHECK(step.skipped == isnan(end.numbers[0].value));
    }
    CHECK(step.skipped);
    mgpu_trainer_free(t);
}

static void test_resume_beside_new_weights(void)
{
    struct mgpu_options o = plain();
    o.resume = "run.h5";
    o.reinit = tiny_list("w", NULL);
    refused(three, &o, "no --init or --reinit");
}

/* Two losses of one output are two numbers, and their labels' accuracy is one. */
static void test_two_losses_of_one_output(void)
{
    static const char *const names[] = {"loss", "loss_y", "loss_y_2", "accuracy"};
    struct mgpu_options o = plain();
    struct mgpu_trainer *t;
    const struct mgpu_number *number;
    o.loss = tiny_list("cross_entropy", "cross_entropy,label_smoothing=0.1", NULL);
    o.inference = true;
    CHECK_OK(mgpu_trainer_new(&t, tiny_model(three), &o));
    int n = mgpu_evaluate(t, &number);
    CHECK_(n == 4, "%d numbers", n);
    for (int i = 0; i < n && i < 4; i++)
        CHECK_(!strcmp(number[i].name, names[i]), "%s, not %s", number[i].name, names[i]);
    CHECK_NEAR(number[0].value, number[1].value + number[2].value, 1e-6);
    mgpu_trainer_free(t);
}

int main(void)
{
    tiny_begin();
    test_huge_batch();
    test_sample_weights();
    test_sample_not_finite();
    test_validation_split();
    test_dropout_rules();
    test_words();
    test_deterministic_places();
    test_step_rows_devices();
    test_chosen_single();
    test_places_without_devices();
    test_all_steps_skipped();
    test_resume_beside_new_weights();
    test_two_losses_of_one_output();
    tiny_end();
    return test_end();
}
