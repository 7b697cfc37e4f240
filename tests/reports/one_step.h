/* What the tests of reports share: one step of plain descent, and its numbers. */
#ifndef MGPU_TESTS_REPORTS_ONE_STEP_H
#define MGPU_TESTS_REPORTS_ONE_STEP_H

#include "tests/support/tiny.h"
#include "tests/test.h"

#define WEIGHTS(list) list, (int)(sizeof(list) / sizeof *(list))

static inline struct mgpu_options one_step(void)
{
    struct mgpu_options o = MGPU_OPTIONS;
    o.optimizer = "sgd,lr=1";
    o.loss = tiny_list("mse", NULL);
    o.steps = 1;
    o.gradients = true;
    o.shuffle = false;
    o.devices = "cpu:0";
    return o;
}

static inline void check_all(const double *got, const double *want, int count, const char *what)
{
    for (int i = 0; i < count; i++)
        CHECK_(fabs(got[i] - want[i]) <= 1e-5 * fmax(1, fabs(want[i])), "%s[%d] is %.9g, not %g",
               what, i, got[i], want[i]);
}

#endif
