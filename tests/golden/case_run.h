/* Runs a case folder (cases/README.md) through the facade and compares with the answers in it.
 *
 *     struct mgpu_case_request request = {.folder = "tests/cases/torch-mlp-ts",
 *                                         .devices = "cpu:0,cpu:1", .ranks = 2,
 *                                         .precision = "f32"};
 *     struct mgpu_case_result result;
 *     mgpu_case_run(&result, &request);
 *     mgpu_case_print(stdout, &request, &result);
 *     mgpu_case_result_free(&result);
 */
#ifndef MGPU_TESTS_CASE_RUN_H
#define MGPU_TESTS_CASE_RUN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct mgpu_case_request {
    const char *folder, *devices, *precision;
    int ranks;     /* that `devices` lists */
    int64_t steps; /* 0: all; with fewer, weights and statistics are not compared */
    bool defaults; /* nothing is named as trained: what mgpu chooses, against keras_loss and
                    * keras_weights where there are any */
    bool forward;  /* the outputs before training too */
    bool fast;  /* with algorithms of larger rounding, as without --exact: ten times the limits */
    bool early; /* gradients are not compared: updates take them within backward */
};

enum mgpu_case_outcome { MGPU_CASE_PASSED, MGPU_CASE_FAILED, MGPU_CASE_UNSUPPORTED };

enum mgpu_case_what {
    MGPU_CASE_FORWARD,
    MGPU_CASE_LOSS,
    MGPU_CASE_GRADIENT,
    MGPU_CASE_WEIGHTS,
    MGPU_CASE_STATISTICS,
    MGPU_CASE_WHATS
};

struct mgpu_case_result {
    enum mgpu_case_outcome outcome;
    char why[1200];                   /* all that is wrong */
    bool refused;                     /* as the case demands */
    double distance[MGPU_CASE_WHATS]; /* the worst; -1: not compared */
    double seconds;
    int64_t numbers; /* every loss, every weight and statistic, but no weight of zero gradient */
    double *number;
};

void mgpu_case_run(struct mgpu_case_result *out, const struct mgpu_case_request *request);
void mgpu_case_result_free(struct mgpu_case_result *result);

/* One line. */
void mgpu_case_print(FILE *to, const struct mgpu_case_request *request,
                     const struct mgpu_case_result *result);

/* The largest difference between two results' numbers, relative above 1; infinite when they are
 * not of one length. */
double mgpu_case_difference(const struct mgpu_case_result *a, const struct mgpu_case_result *b);

/* Whether case.json has another answer for what mgpu trains by default (keras_loss). */
bool mgpu_case_has_defaults(const char *folder);

#endif
