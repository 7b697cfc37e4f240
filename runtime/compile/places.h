/* Where nodes and parameters of a graph are in a plan of several places. */
#ifndef MGPU_COMPILE_PLACES_H
#define MGPU_COMPILE_PLACES_H

#include "runtime/base/names.h"
#include "runtime/compile/plan.h"

struct mgpu_places {
    const struct mgpu_plan *plan;
    const struct mgpu_graph *g;
    struct mgpu_arena *arena;
    struct mgpu_names *placement; /* by key */
    int *owner; /* by parameter of the graph: its place; -1: at every place that uses it (frozen) */
};

/* Settles the owners. */
void mgpu_places_init(struct mgpu_places *p, const struct mgpu_graph *g,
                      const struct mgpu_plan *plan);
void mgpu_places_free(struct mgpu_places *p);

/* The place of a node: by its origin; an update is where its weight's owner is. */
int mgpu_place_of(const struct mgpu_places *p, const struct mgpu_node *node);

/* Places that use a value, as bits, when every node takes its inputs where it runs: by value id. */
uint64_t *mgpu_places_users(const struct mgpu_places *p);

#endif
