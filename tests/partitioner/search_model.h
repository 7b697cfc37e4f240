/* Models for the tests of the search: a task graph as it is at each batch, and what they ask of a
 * result. */
#ifndef MGPU_TESTS_SEARCH_MODEL_H
#define MGPU_TESTS_SEARCH_MODEL_H

#include "partitioner/search.h"

enum { BATCH = 8 };

/* The graphs of one model: at the whole batch, and at smaller ones, where tasks take less time but
 * for a launch, and activations are smaller. */
struct search_model {
    const struct mgpu_task_graph *whole, *variant;
    int kinds;
    double launch; /* share of the time that does not shrink */
    struct mgpu_task_graph *at[2][BATCH + 1];
};

/* A request's callback; the context is the model, which keeps the graphs until it is forgotten. */
int search_tasks(void *context, int variant, int64_t batch, int devices,
                 const struct mgpu_task_graph **out);
void search_forget(struct search_model *m);

struct mgpu_search_request search_request(struct search_model *m, const struct mgpu_topology *t);

/* The candidate of that tactic, or NULL. */
const struct mgpu_candidate *search_find(const struct mgpu_search_result *r,
                                         enum mgpu_tactic tactic);

/* The shortest step of all that may be chosen: what the table offers. */
double search_best(const struct mgpu_search_result *r);

#endif
