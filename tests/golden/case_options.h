/* What case.json says, as the options that a user would type (cases/README.md has the fields). */
#ifndef MGPU_TESTS_CASE_OPTIONS_H
#define MGPU_TESTS_CASE_OPTIONS_H

#include "runtime/mgpu.h"
#include "tests/support/golden.h"

struct mgpu_case {
    struct mgpu_golden golden;
    struct mgpu_golden_group inputs, labels, forward, loss, gradient, weights, statistics;
    bool batch_norm;    /* the model has BatchNormalization nodes */
    const char *folder; /* for the files that are made */
    struct mgpu_arena *arena;
};

/* Training on `ranks` ranks of `devices` with everything that case.json says. `defaults`: no
 * --train, so that what is trained is mgpu's own choice. Strings are the case's arena's. */
int mgpu_case_train_options(struct mgpu_options *out, struct mgpu_case *c, const char *devices,
                            int ranks, bool defaults);

/* --predict on the first batch alone. */
int mgpu_case_predict_options(struct mgpu_options *out, struct mgpu_case *c, const char *devices,
                              int ranks);

/* A list of strings that ends with NULL, in an arena. */
struct mgpu_case_list {
    const char **item;
    int count;
};
void mgpu_case_add(struct mgpu_case_list *list, struct mgpu_arena *arena, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Fields of case.json. */
struct json_object *mgpu_case_field(const struct mgpu_case *c, const char *name);
const char *mgpu_case_text(struct json_object *object, const char *name);

#endif
