#include "tests/cuda/double_train.h"

#include "runtime/base/status.h"
#include "runtime/facade/facade.h"
#include "tests/cuda/double.h"
#include "tests/support/tiny.h"

#include <assert.h>
#include <math.h>
#include <string.h>

struct mgpu_options double_options(int samples, const char *devices)
{
    struct mgpu_options o = MGPU_OPTIONS;
    int64_t label[64], n = samples;
    assert(samples <= 64);
    for (int i = 0; i < samples; i++)
        label[i] = i % 3;
    o.data = tiny_list(tiny_noise("x", 7, 2, (int64_t[]){samples, 4}),
                       tiny_data("label", MGPU_INT64, 1, &n, label), NULL);
    o.loss = tiny_list("cross_entropy", NULL);
    o.optimizer = "sgd,lr=0.1";
    o.batch = samples;
    o.epochs = 4;
    o.shuffle = false;
    o.devices = devices;
    o.strategy = "data";
    return o;
}

static int count_of(const struct mgpu_program *p, const char *ops)
{
    int count = 0;
    for (int k = 0; k < p->instructions; k++)
        count += !strncmp(p->instruction[k].node->op->name, ops, strlen(ops));
    return count;
}

static int train(struct double_trained *out, struct mgpu_trainer *t, const struct double_model *m)
{
    struct mgpu_step_result s;
    int rc;
    out->nodes = count_of(t->compiled[0].program[0], m->ops);
    while ((rc = mgpu_step(t, &s)) > 0)
        out->loss[s.step - 1] = s.loss;
    MGPU_TRY(rc);
    return mgpu_weight_read(t, "w", out->weight, m->weights);
}

int double_train(struct double_trained *out, const struct double_model *model, const char *devices,
                 const char *precision)
{
    struct mgpu_options o = MGPU_OPTIONS;
    struct mgpu_trainer *t;
    o.data = model->data;
    o.loss = tiny_list("mse", NULL);
    o.optimizer = "sgd,lr=0.5";
    o.batch = DOUBLE_SAMPLES;
    o.steps = DOUBLE_STEPS;
    o.devices = devices;
    o.strategy = "data";
    o.precision = precision;
    *out = (struct double_trained){0};
    MGPU_TRY(mgpu_trainer_new(&t, model->path, &o));
    int rc = train(out, t, model);
    mgpu_trainer_free(t);
    if (rc == 0 && double_complaints())
        rc = mgpu_fail(MGPU_EINVALID, "%s", double_complaint());
    return mgpu_prefix(rc, "%s in %s", devices, precision);
}

static double off(const double *x, const double *want, int count)
{
    double sum = 0, size = 1e-30;
    for (int i = 0; i < count; i++) {
        sum += (x[i] - want[i]) * (x[i] - want[i]);
        size += want[i] * want[i];
    }
    return sqrt(sum / size);
}

double double_loss_off(const struct double_trained *x, const struct double_trained *want)
{
    return off(x->loss, want->loss, DOUBLE_STEPS);
}

double double_weight_off(const struct double_trained *x, const struct double_trained *want,
                         const struct double_model *model)
{
    return off(x->weight, want->weight, model->weights);
}
