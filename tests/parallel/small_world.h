/* Trains a small graph on a plan: through the plan pass, compilation, rank threads and executor,
 * with nothing of the facade. The same data and the same first weights whatever the plan.
 */
#ifndef MGPU_TESTS_SMALL_WORLD_H
#define MGPU_TESTS_SMALL_WORLD_H

#include "runtime/compile/plan.h"
#include "runtime/graph/graph.h"

enum { WORLD_SAMPLES = 7, WORLD_STEPS = 3, WORLD_MOST = 4096 };

struct world_model {
    /* A whole training graph in double at this batch: inputs "x" ([N, features]) and "label" ([N],
     * int64) as far as it has them, one result "loss" (rank 0) that uses MGPU_SCALAR_LOSS, updates.
     */
    int (*build)(struct mgpu_graph **out, int64_t batch, void *context);
    void *context;
    int features, classes;
    bool share; /* replicas have one copy of the weights */
};

/* Trains on batches of 7, 2 and 5 samples. losses[WORLD_STEPS]; the weights of all places, in order
 * of their names, to weights[]. Returns how many. Fails CHECKs of the calling test through its
 * return value -1 (the reason in mgpu_error()). All replicas must end with the same bits. */
int64_t world_train(const struct world_model *model, struct mgpu_plan *plan, int pieces,
                    double *losses, double *weights);

/* Appends SGD with momentum for every weight; clip > 0: by the norm of all gradients. */
int world_add_updates(struct mgpu_graph *g, double clip);

#endif
