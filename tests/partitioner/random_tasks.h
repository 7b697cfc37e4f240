/* Seeded task graphs and topologies for the tests of the planner. */
#ifndef MGPU_TEST_RANDOM_TASKS_H
#define MGPU_TEST_RANDOM_TASKS_H

#include "partitioner/task.h"

enum test_shape { TEST_LAYERED, TEST_FORK_JOIN, TEST_SERIES_PARALLEL, TEST_IN_TREE, TEST_SHAPES };

struct test_random {
    uint64_t state;
};
uint64_t test_random(struct test_random *r);
int test_below(struct test_random *r, int limit);

/* Devices of `kinds` kinds with links of so many bytes a ms and a latency. Channels: 0 a pair of
 * devices, 1 what leaves a device, 2 one for all. */
struct mgpu_topology *test_topology(int devices, int kinds, double bytes_a_ms, double latency_ms,
                                    int channels, int64_t memory);

/* An empty graph, and its parts. Tasks are numbered as they are added; ms is the same on every kind
 * of device, times 1, 2, ... for kinds 0, 1, ... A weight's update and the sum of its gradients may
 * run at its owner (group -1). */
struct mgpu_task_graph *test_graph(int kinds, int most_tasks, int most_edges, int groups,
                                   int most_params);
int test_task(struct mgpu_task_graph *g, int kinds, int group, int phase, double ms,
              int64_t output);
void test_edge(struct mgpu_task_graph *g, int from, int to, int64_t bytes, int value);
int test_param(struct mgpu_task_graph *g, int64_t bytes, int groups, const int *group);

/* A training graph from edges between groups (from < to): per group a forward and a backward task
 * and the update of a weight of its own; `shared` weights are used by two groups. Times are small
 * whole numbers, so that sums are exact. */
struct test_net {
    int groups, edges;
    int from[256], to[256];
};
void test_net(struct test_net *net, struct test_random *r, enum test_shape shape, int groups);
struct mgpu_task_graph *test_training(const struct test_net *net, struct test_random *r, int kinds,
                                      int shared);

/* The same graph with tasks, groups, parameters and values numbered at random, and other names. */
struct mgpu_task_graph *test_permuted(const struct mgpu_task_graph *g, struct test_random *r,
                                      int kinds, int *group_at);

/* The same with all times multiplied. */
struct mgpu_task_graph *test_scaled(const struct mgpu_task_graph *g, int kinds, double factor);

void test_graph_free(struct mgpu_task_graph *g);

#endif
