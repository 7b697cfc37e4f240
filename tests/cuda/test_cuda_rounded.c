/* Weights in a half type are stored beside the floats and written by the updates, frozen ones when
 * they come (rounded.h): no step casts one. On a GPU that there is not (double.h). */
#include "runtime/compile/rounded.h"
#include "runtime/compile/fuse.h"
#include "runtime/cuda/ranks.h"
#include "runtime/facade/facade.h"
#include "tests/cuda/double.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 12, STEPS = 6 };

static const char *model;

static struct mgpu_options options(const char *devices, const char *optimizer)
{
    static const char *const *data;
    struct mgpu_options o = MGPU_OPTIONS;
    if (!data)
        data = tiny_list(tiny_noise("x", 3, 2, (int64_t[]){SAMPLES, 4}),
                         tiny_noise("label", 5, 2, (int64_t[]){SAMPLES, 2}), NULL);
    o.data = data;
    o.loss = tiny_list("mse", NULL);
    o.optimizer = optimizer;
    o.batch = SAMPLES / 3;
    o.epochs = 2;
    o.shuffle = false;
    o.devices = devices;
    o.strategy = "data";
    o.precision = "bf16";
    return o;
}

/* Nodes that cast a stored float. */
static int casts(const struct mgpu_program *p)
{
    int count = 0;
    for (int k = 0; k < p->instructions; k++) {
        const struct mgpu_node *node = p->instruction[k].node;
        const struct mgpu_expr *e = mgpu_expr_of(node);
        count += e && e->op[e->count - 1].code == MGPU_X_CAST &&
                 node->input[0]->kind == MGPU_VALUE_PARAMETER;
    }
    return count;
}

/* On every rank, each is its trained weight, rounded. */
static void check_rounded(const struct mgpu_trainer *t, int weights)
{
    int count = 0;
    for (int r = 0; r < mgpu_team_size(t->team); r++)
        for (int i = 0; i < t->store[r]->count; i++) {
            const struct mgpu_stored *e = &t->store[r]->entry[i];
            const struct mgpu_stored *rounded = mgpu_rounded_of(t->store[r], e->name);
            unsigned char want[256];
            if (!rounded)
                continue;
            CHECK_OK(mgpu_stored_fetch(t, r, e));
            CHECK_OK(mgpu_stored_fetch(t, r, rounded));
            mgpu_convert(want, rounded->type, mgpu_stored_at(t, r, e), e->type, e->bytes / 4);
            CHECK_(!memcmp(want, mgpu_stored_at(t, r, rounded), (size_t)rounded->bytes), "%s",
                   e->name);
            count++;
        }
    CHECK_(count == weights * mgpu_team_size(t->team), "%d rounded weights", count);
}

/* In training and validation; `v` is frozen. */
static void test_training(const char *devices, const char *optimizer, int passes)
{
    struct mgpu_trainer *t;
    struct mgpu_step_result s;
    const struct mgpu_number *numbers;
    struct mgpu_options o = options(devices, optimizer);
    double w[24], v[6];
    o.val_split = 0.5;
    o.freeze = tiny_list("v", NULL);
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    for (int i = 0; i < t->compiled_count; i++)
        CHECK(casts(t->compiled[i].program[0]) == 0);
    const struct mgpu_gpu_rank *rank = (struct mgpu_gpu_rank *)mgpu_team_rank(t->team, 0)->engine;
    CHECK_(rank->bound[0]->passes == passes, "%s: %d passes", optimizer, rank->bound[0]->passes);
    check_rounded(t, 4);
    while (mgpu_step(t, &s) > 0) {
        check_rounded(t, 4);
        CHECK_OK(mgpu_evaluate(t, &numbers));
    }
    CHECK_OK(mgpu_weight_read(t, "w", w, 24));
    w[3] += 1;
    CHECK_OK(mgpu_weight_write(t, "w", w, 24));
    CHECK_OK(mgpu_weight_read(t, "v", v, 6));
    v[1] = -v[1];
    CHECK_OK(mgpu_weight_write(t, "v", v, 6));
    check_rounded(t, 4);
    mgpu_trainer_free(t);
    CHECK_(!double_complaints(), "%s", double_complaint());
}

/* Where nothing is trained, no weight changes. */
static void test_inference(void)
{
    struct mgpu_trainer *t;
    const struct mgpu_number *numbers;
    double loss[2];
    struct mgpu_options o = options("cuda:0", "adam");
    o.val = o.data;
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    CHECK_OK(mgpu_evaluate(t, &numbers));
    loss[0] = numbers[0].value;
    mgpu_trainer_free(t);
    o.val = NULL;
    o.inference = true;
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    CHECK(casts(t->compiled[0].program[0]) == 0);
    check_rounded(t, 4);
    CHECK_OK(mgpu_evaluate(t, &numbers));
    loss[1] = numbers[0].value;
    mgpu_trainer_free(t);
    CHECK_(loss[0] == loss[1], "%g, not %g", loss[1], loss[0]);
}

static void go(const struct mgpu_options *o, double *loss, const char *to)
{
    struct mgpu_trainer *t;
    struct mgpu_step_result s;
    CHECK_OK(mgpu_trainer_new(&t, model, o));
    check_rounded(t, 4);
    while (mgpu_step(t, &s) > 0)
        loss[s.step - 1] = s.loss;
    CHECK_OK(mgpu_save_checkpoint(t, to));
    mgpu_trainer_free(t);
}

/* A checkpoint holds the weights alone. */
static void test_resume(void)
{
    double whole[STEPS], parts[STEPS];
    struct mgpu_options o = options("cuda:0", "adam,lr=0.1");
    go(&o, whole, tiny_path("whole.h5"));
    o.steps = STEPS / 2;
    go(&o, parts, tiny_path("part.h5"));
    o.steps = STEPS;
    o.resume = tiny_path("part.h5");
    go(&o, parts, tiny_path("rest.h5"));
    CHECK(!memcmp(whole, parts, sizeof whole));
}

int main(void)
{
    if (double_skipped())
        return 77;
    double_begin(1, INT64_C(1) << 30);
    tiny_begin();
    model = tiny_model("input x float N 4\ninit w float 4 6 = normal 0.5\n"
                       "init b float 6 = .1 .2 .3 -.1 -.2 -.3\ninit u float 6 3 = normal 0.5\n"
                       "init v float 3 2 = normal 0.5\nh = MatMul(x, w)\na = Add(h, b)\n"
                       "r = Tanh(a)\ni = MatMul(r, u)\ny = MatMul(i, v)\noutput y float N 2\n");
    test_training("cuda:0", "adam,lr=0.1", 1);
    test_training("cuda:0,cuda:0", "sgd,lr=0.1,momentum=0.9", 1);
    test_training("cuda:0", "lamb,lr=0.1", 0);
    test_inference();
    test_resume();
    tiny_end();
    double_end();
    CHECK_(!double_complaints(), "%s", double_complaint());
    return test_end();
}
