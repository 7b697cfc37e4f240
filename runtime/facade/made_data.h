/* One batch of made-up data for a model, as files in memory that --data can name. */
#ifndef MGPU_FACADE_MADE_DATA_H
#define MGPU_FACADE_MADE_DATA_H

#include "runtime/graph/graph.h"

struct mgpu_made_data {
    struct mgpu_arena *arena;
    int files;
    int *file;               /* descriptors */
    const char **data;       /* "x=/proc/self/fd/5"; ends with NULL */
    const char **batch_axis; /* "x=1" */
    const char **rows;       /* "edges=7": inputs without samples */
};

/* For every input of the graph (labels too), at the graph's batch: floats between 0 and 1, indices
 * below the size of what they index, class numbers and other integers 0 or below `classes` of the
 * loss that takes them. */
int mgpu_made_data_new(struct mgpu_made_data *out, const struct mgpu_graph *graph);
void mgpu_made_data_free(struct mgpu_made_data *data);

#endif
