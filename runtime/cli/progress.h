/* What a person sees while training: a bar on a terminal, a line an epoch elsewhere. */
#ifndef MGPU_CLI_PROGRESS_H
#define MGPU_CLI_PROGRESS_H

#include "runtime/mgpu.h"

struct mgpu_progress {
    FILE *to; /* NULL: silent */
    bool bar; /* a terminal */
    int64_t epochs, steps_per_epoch, total_steps;
    double start, epoch_start, drawn; /* seconds */
    int64_t done, samples;            /* of this epoch: steps, samples */
    int64_t all_done;                 /* steps of this process */
};

void mgpu_progress_begin(struct mgpu_progress *p, FILE *to, const struct mgpu_facts *facts);
/* After a step; numbers are those of the epoch so far. */
void mgpu_progress_step(struct mgpu_progress *p, const struct mgpu_step_result *step,
                        const struct mgpu_number *numbers, int count);
/* At an epoch's end. */
void mgpu_progress_epoch(struct mgpu_progress *p, int64_t epoch, const struct mgpu_number *numbers,
                         int count);

/* Seconds of a clock that does not jump. */
double mgpu_seconds(void);

#endif
