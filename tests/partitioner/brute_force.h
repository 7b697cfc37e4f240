/* The best placement, by trying them all. */
#ifndef MGPU_TEST_BRUTE_FORCE_H
#define MGPU_TEST_BRUTE_FORCE_H

#include "partitioner/simulate.h"

/* The least time over all placements on the replica's ranks, and all owners of parameters that
 * nothing else decides, that obey pins and fit; INFINITY when none does. At most 8 such parameters.
 */
double test_brute_force(const struct mgpu_flow *flow, const struct mgpu_replica *replica);

#endif
