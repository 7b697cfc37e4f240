/* A small runner: a graph's nodes one after the other on plain host buffers, for tests.
 *
 *     struct mgpu_run run;
 *     mgpu_run_init(&run, g, &mgpu_backend_ref);
 *     CHECK_OK(mgpu_run_feed(&run, x, (double[]){1, 2, 3}));
 *     CHECK_OK(mgpu_run_all(&run));
 *     const double *y = mgpu_run_doubles(&run, out);
 *     mgpu_run_free(&run);
 *
 * Inputs and parameters that were not fed are zero.
 */
#ifndef MGPU_TESTS_RUN_GRAPH_H
#define MGPU_TESTS_RUN_GRAPH_H

#include "runtime/backend.h"
#include "runtime/graph/step_scalar.h"

struct mgpu_run {
    const struct mgpu_graph *graph;
    const struct mgpu_backend *backend;
    double scalar[MGPU_SCALARS]; /* of one rank at the first step; set others as you like */
    void **data;                 /* by value id: contents in the value's own type */
    double **doubles;            /* by value id: what mgpu_run_doubles gave */
    int count;
};

void mgpu_run_init(struct mgpu_run *run, const struct mgpu_graph *graph,
                   const struct mgpu_backend *backend);
void mgpu_run_free(struct mgpu_run *run);

/* Sets a value's contents, converted from doubles, one an element. */
int mgpu_run_feed(struct mgpu_run *run, const struct mgpu_value *value, const double *contents);

/* Where a value's elements are (zeroed at first), or NULL for a NULL value. */
void *mgpu_run_data(struct mgpu_run *run, const struct mgpu_value *value);

int mgpu_run_node(struct mgpu_run *run, const struct mgpu_node *node);
int mgpu_run_all(struct mgpu_run *run); /* every node of the graph, in order */

/* The contents as doubles, as they are now; the run owns them, until the next call for the value.
 */
const double *mgpu_run_doubles(struct mgpu_run *run, const struct mgpu_value *value);

/* The graph's outputs and then its parameters' gradients, one after the other, up to `most`; gives
 * how many. */
int mgpu_run_results(struct mgpu_run *run, double *to, int most);

#endif
