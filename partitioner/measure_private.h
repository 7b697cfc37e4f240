/* What the files of measuring share. */
#ifndef MGPU_PARTITIONER_MEASURE_PRIVATE_H
#define MGPU_PARTITIONER_MEASURE_PRIVATE_H

#include "partitioner/measure.h"
#include "runtime/executor/team.h"

double mgpu_now_ms(void);

/* The lower quartile of `count` times, which are sorted: what else the machine does makes some
 * times longer and none shorter. */
double mgpu_typical_ms(double *ms, int count);

/* All-reduce, copy, start of a step, check of gradients. */
int mgpu_measure_ranks(struct mgpu_profile_ranks *out, struct mgpu_team *team);

#endif
