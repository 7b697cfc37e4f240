/* Training graphs for the planner's tests: models written as text, with a loss that sums the output
 * and Adam. */
#ifndef MGPU_TESTS_PLAN_MODELS_H
#define MGPU_TESTS_PLAN_MODELS_H

#include "runtime/graph/graph.h"

/* The whole graph of a model at a batch; float. Aborts when the text is wrong. */
struct mgpu_graph *plan_graph(const char *text, int64_t batch);

/* The same as a callback: context is struct plan_model. */
struct plan_model {
    const char *text;
    int64_t batch;
};
int plan_graph_again(struct mgpu_graph **out, void *context);

/* Two towers that share a weight, joined by a concatenation and a head; and a model of two
 * different branches. */
extern const char plan_two_towers[], plan_two_towers_turned[], plan_branches[];

/* One with running statistics. */
extern const char plan_norm[];

#endif
