/* Fewer, larger groups: what no good placement would separate becomes one group. */
#ifndef MGPU_PARTITIONER_COARSEN_H
#define MGPU_PARTITIONER_COARSEN_H

#include "partitioner/simulate.h"

/* Groups and what flows between them in forward. */
struct mgpu_net {
    int groups, edges;
    double *forward, *total; /* by group: ms on the reference device, of forward and of all */
    int64_t *bytes;          /* by group: parameters with gradients and state, divided among their
                              * users, and what forward makes */
    struct mgpu_net_edge {   /* sorted by from, then to; from < to does not hold in general */
        int from, to;
        int64_t bytes;
    } * edge;
    int *out;          /* edges of group g are [out[g], out[g+1]) */
    int *in_list, *in; /* edge numbers by consumer: in_list[in[g] .. in[g+1]) */
    int *order;        /* groups so that edges lead forward; NULL: there is a cycle */
};

/* `device` is the reference device. Everything is in `arena`. */
void mgpu_net_init(struct mgpu_net *net, const struct mgpu_flow *flow,
                   const struct mgpu_replica *replica, int device, struct mgpu_arena *arena);

/* The graph between clusters of a net's groups: cluster[] has numbers below `clusters`. */
void mgpu_net_join(struct mgpu_net *out, const struct mgpu_net *net, const int *cluster,
                   int clusters, struct mgpu_arena *arena);

/* Puts the groups of `flow` into at most `most` clusters where that can be done without a cycle:
 * chains; branches whose communication costs more than their work; then ever larger pieces, forks
 * and joins last. Groups with different pins stay apart; a cluster's parameters stay below
 * `room` bytes. cluster[] (by group) gets numbers from 0; returns how many. */
int mgpu_cluster(int *cluster, const struct mgpu_flow *flow, const struct mgpu_replica *replica,
                 int most, int64_t room);

/* The task graph of the clusters: per cluster and phase one task, parameters of the same clusters
 * joined. NULL when it would have a cycle. Free its arena. */
struct mgpu_task_graph *mgpu_coarse_graph(const struct mgpu_flow *flow, const int *cluster,
                                          int clusters);

#endif
