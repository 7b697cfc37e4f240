/* Weights in a half type beside the floats: what a cast would make of a weight at every step is
 * stored, and its update writes it along; of one that no update changes once and for all.
 */
#ifndef MGPU_COMPILE_ROUNDED_H
#define MGPU_COMPILE_ROUNDED_H

#include "runtime/compile/store.h"

/* A rank's graph: casts of weights that it updates, that are frozen (without `trains`: of all), or
 * that are stored so already (NULL: none is), become parameters of the role MGPU_ROUNDED. Where
 * there are any, every update gives one, so that neighbours stay alike. */
int mgpu_store_rounded(struct mgpu_graph *g, enum mgpu_dtype half, bool trains,
                       const struct mgpu_store_layout *stored);

/* What is stored of a weight so; NULL: nothing. Who changes the weight changes this, too. */
const struct mgpu_stored *mgpu_rounded_of(const struct mgpu_store_layout *layout,
                                          const char *weight);

#endif
