/* What the files of measuring share. */
#ifndef MGPU_PARTITIONER_MEASURE_PRIVATE_H
#define MGPU_PARTITIONER_MEASURE_PRIVATE_H

#include "partitioner/measure.h"
#include "runtime/executor/team.h"

double mgpu_now_ms(void);

/* The middle of `count` times, which are sorted. */
double mgpu_median(double *ms, int count);

/* All-reduce, copy, start of a step, check of gradients. */
int mgpu_measure_ranks(struct mgpu_profile_ranks *out, struct mgpu_team *team);

#endif
