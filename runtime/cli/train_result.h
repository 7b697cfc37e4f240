/* What --json prints: one object, the last line of stdout. */
#ifndef MGPU_CLI_TRAIN_RESULT_H
#define MGPU_CLI_TRAIN_RESULT_H

#include "runtime/mgpu.h"

struct mgpu_train_result {
    int64_t steps, samples, skipped;
    int64_t loss_count;
    double *loss; /* by step */
    int metrics;
    char **metric_name;
    double *metric;
    int saved;
    char **saved_path;
    int warnings;
    char **warning;
    double seconds;
    bool within_epoch; /* the last step was not the end of one */
    bool interrupted;  /* by a signal, before its last step */
    bool stopped;      /* the end of an epoch failed, though not its steps */
    int failed;        /* the exit status of a failure after which the job went on; 0: none */
    uint64_t peak_memory_bytes;
};

void mgpu_result_step(struct mgpu_train_result *r, const struct mgpu_step_result *step);
/* Sets or replaces metrics. */
void mgpu_result_numbers(struct mgpu_train_result *r, const struct mgpu_number *numbers, int count);
/* A file that was written (once in the list, however often), and one that is gone again. */
void mgpu_result_saved(struct mgpu_train_result *r, const char *path);
void mgpu_result_removed(struct mgpu_train_result *r, const char *path);
/* From any thread. */
void mgpu_result_warning(struct mgpu_train_result *r, const char *text);
void mgpu_result_print(const struct mgpu_train_result *r, FILE *to);
void mgpu_result_free(struct mgpu_train_result *r);

#endif
