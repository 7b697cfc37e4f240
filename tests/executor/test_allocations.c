/* Nothing of ours allocates inside the training loop: no call of our allocators between step 2 and
 * step 10, on one rank and two. */
#include "runtime/base/memory.h"
#include "tests/golden/case_options.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

enum { FROM = 2, TO = 10 };

static void count(const char *what, const char *model, const struct mgpu_options *o)
{
    struct mgpu_trainer *t;
    struct mgpu_step_result s;
    uint64_t calls = 0;
    CHECK_OK(mgpu_trainer_new(&t, model, o));
    for (int i = 1; t && i <= TO; i++) {
        int rc = mgpu_step(t, &s);
        CHECK_(rc == 1, "%s: step %d: %s", what, i, mgpu_error());
        if (i == FROM)
            calls = mgpu_alloc_calls();
    }
    CHECK_(mgpu_alloc_calls() == calls, "%s on %s: %d allocations from step %d to %d", what,
           o->devices, (int)(mgpu_alloc_calls() - calls), FROM, TO);
    mgpu_trainer_free(t);
}

/* A case with as many epochs as the steps take. */
static void count_case(const char *name, const char *devices, int ranks)
{
    static const char *const groups[] = {"inputs", "labels", "forward"};
    struct mgpu_case c = {.arena = mgpu_arena_new(), .folder = "/tmp"};
    struct mgpu_golden_group *const into[] = {&c.inputs, &c.labels, &c.forward};
    struct mgpu_options o;
    const char *folder = mgpu_arena_format(c.arena, "tests/cases/%s", name);
    CHECK_OK(mgpu_golden_open(&c.golden, folder));
    for (int i = 0; i < 3; i++)
        CHECK_OK(mgpu_golden_read(&c.golden, groups[i], into[i]));
    CHECK_OK(mgpu_case_train_options(&o, &c, devices, ranks, false));
    o.steps = 0;
    o.epochs = TO;
    o.shuffle = true;
    count(name, c.golden.model, &o);
    for (int i = 0; i < 3; i++)
        mgpu_golden_group_free(into[i]);
    mgpu_golden_close(&c.golden);
    mgpu_arena_free(c.arena);
}

/* Batch statistics, a tail of another size, pieces. */
static void count_made(const char *devices)
{
    struct mgpu_options o = MGPU_OPTIONS;
    int64_t label[7] = {0, 1, 2, 0, 1, 2, 0}, n = 7;
    o.data = tiny_list(tiny_noise("x", 7, 4, (int64_t[]){7, 2, 5, 5}),
                       tiny_data("label", MGPU_INT64, 1, &n, label), NULL);
    o.loss = tiny_list("cross_entropy", NULL);
    o.metric = tiny_list("accuracy", NULL);
    o.optimizer = "adam,lr=0.01";
    o.clip_norm = 1;
    o.batch = 4;
    o.epochs = TO;
    o.devices = devices;
    const char *model = tiny_model("input x float N 2 5 5\n"
                                   "init k float 4 2 3 3 = .1\n"
                                   "init scale float 4 = 1 .9 1.1 1.2\n"
                                   "init shift float 4 = 1.5 1.2 1.4 1.3\n"
                                   "init mean float 4 = 0\n"
                                   "init var float 4 = 1\n"
                                   "init w float 4 3 = .5 -.3 .2 .1 .4 -.6 -.2 .3 .7 .2 -.1 .5\n"
                                   "a = Conv(x, k) pads=[1, 1, 1, 1]\n"
                                   "b = BatchNormalization(a, scale, shift, mean, var)\n"
                                   "r = Relu(b)\n"
                                   "g = GlobalAveragePool(r)\n"
                                   "f = Flatten(g)\n"
                                   "y = MatMul(f, w)\n"
                                   "output y float N 3\n");
    o.batch_norm = "sync";
    count("synchronised batch norm", model, &o);
    o.batch_norm = "train";
    count("batch norm", model, &o);
    o.batch_norm = "frozen";
    o.accumulate = 3;
    count("pieces", model, &o);
}

int main(void)
{
    static const char *const devices[] = {"cpu:0", "cpu:0,cpu:1"};
    static const char *const cases[] = {"torch-fmnist-cnn-dy", "torch-gru-tagger", "torch-unet",
                                        "torch-loss-mix", "keras-multi-io"};
    tiny_begin();
    for (int d = 0; d < 2; d++) {
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            count_case(cases[i], devices[d], d + 1);
        count_made(devices[d]);
    }
    tiny_end();
    return test_end();
}
