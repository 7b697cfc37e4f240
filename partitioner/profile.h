/* Measured times of nodes, kept in a file: what `--measure` makes and later plans read. */
#ifndef MGPU_PARTITIONER_PROFILE_H
#define MGPU_PARTITIONER_PROFILE_H

#include "partitioner/topology.h"
#include "runtime/graph/graph.h"

struct mgpu_profile;

struct mgpu_profile *mgpu_profile_new(void);
void mgpu_profile_free(struct mgpu_profile *profile);

/* Milliseconds of the node on a CPU kind (its threads, and so many busy at a time); < 0: not
 * known. */
double mgpu_profile_ms(const struct mgpu_profile *profile, const struct mgpu_device_kind *kind,
                       const struct mgpu_node *node);

#endif
