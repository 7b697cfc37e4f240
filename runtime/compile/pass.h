/* The pass that applies a plan, by its two files: apply.c goes through the nodes and settles where
 * and how each runs, communicate.c adds the communication that this asks for. */
#ifndef MGPU_COMPILE_PASS_H
#define MGPU_COMPILE_PASS_H

#include "runtime/compile/places.h"

/* Gradients that are complete and not yet reduced over the replicas. */
struct mgpu_bucket {
    struct mgpu_value **value;
    int count;
    int64_t bytes;
};

struct mgpu_pass {
    struct mgpu_graph *g;
    const struct mgpu_plan *plan;
    int pieces;
    bool expanding;
    struct mgpu_places places;
    int replica, place; /* of the rank that the graph is made for */
    uint64_t *users;    /* by value id of the whole graph: the places that need it */
    bool *steers;       /* the same: an output or a gradient depends on it */
    bool *by_product;   /* by parameter: its update takes the factors of its gradient (early.h) */

    /* by value id; grown as values are made */
    int known;
    struct mgpu_split *state;
    struct mgpu_value **instead; /* what stands for this value now, NULL: itself */
    struct mgpu_value **whole;   /* its all-reduced version, NULL: none yet */
    int *gradient_of;            /* parameter whose gradient it is, -1: none */
    uint64_t *at;                /* the places where it is, as bits */
    bool *image;                 /* it holds images, whose channels may lie in blocks */
    struct mgpu_value **here;    /* what was received in its stead on this rank, or NULL */

    int64_t tag;
    struct mgpu_bucket *bucket; /* by place */
    int wanted_count;
    struct mgpu_value **wanted; /* to be made whole together */
    int later_count;
    struct mgpu_node **later; /* running statistics: nodes that wait for that */
};

/* Room for values that were made since the last call. */
void mgpu_pass_grow(struct mgpu_pass *pass);

/* What stands for the value now; NULL for NULL. */
struct mgpu_value *mgpu_pass_current(struct mgpu_pass *pass, struct mgpu_value *value);
/* What stands for it on this rank: itself, or what was received. */
struct mgpu_value *mgpu_pass_local(struct mgpu_pass *pass, struct mgpu_value *value);

static inline int mgpu_lowest_place(uint64_t places)
{
    return __builtin_ctzll(places);
}

/* Makes `value` known at `place`: a pair of nodes, one on each of the two ranks. */
int mgpu_pass_transfer(struct mgpu_pass *pass, struct mgpu_value *value, int place);
/* Sends a value of the whole graph to everybody who will need it, as soon as it is there. */
int mgpu_pass_send_ahead(struct mgpu_pass *pass, int id);
int mgpu_pass_bring_inputs(struct mgpu_pass *pass, const struct mgpu_node *node, int place);

/* The node goes to the rank's list where it runs there, with what stands for its inputs here. */
void mgpu_pass_keep(struct mgpu_pass *pass, struct mgpu_node *node, int place);
/* The same for nodes that the pass itself made since there were `before`. */
void mgpu_pass_adopt(struct mgpu_pass *pass, int before, int place);

/* The sum over the replicas of `value`; made once. */
int mgpu_pass_make_whole(struct mgpu_pass *pass, struct mgpu_value *value, struct mgpu_value **out);

/* The product a^T b, split by its rows, over the rows of all replicas: they have its factors. */
int mgpu_pass_gather_product(struct mgpu_pass *pass, const struct mgpu_node *product, int place);

/* A gradient joins the bucket of its place, which is summed when it is full or closed. */
int mgpu_pass_add_gradient(struct mgpu_pass *pass, int place, struct mgpu_value *value);
int mgpu_pass_close_buckets(struct mgpu_pass *pass);

/* Values that are to be made whole, and all of them at once: one sum for each place and type. */
void mgpu_pass_want_whole(struct mgpu_pass *pass, struct mgpu_value *value);
int mgpu_pass_sum_wanted(struct mgpu_pass *pass);

#endif
