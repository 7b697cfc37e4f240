/* What the files of the profile share. */
#ifndef MGPU_PARTITIONER_PROFILE_PRIVATE_H
#define MGPU_PARTITIONER_PROFILE_PRIVATE_H

#include "partitioner/profile.h"

struct mgpu_profile_entry {
    int threads, busy;
    const char *node; /* its signature */
    double ms;
};

struct mgpu_profile_plan {
    const char *plan; /* hash */
    double ms;
};

struct mgpu_profile {
    struct mgpu_arena *arena;
    const char *machine;
    int entries;
    struct mgpu_profile_entry **entry;
    struct mgpu_names *index; /* "threads busy signature" to its entry */
    int rank_sets;
    struct mgpu_profile_ranks *ranks;
    int plans;
    struct mgpu_profile_plan *plan;
};

void mgpu_profile_add(struct mgpu_profile *profile, int threads, int busy, const char *node,
                      double ms);

#endif
