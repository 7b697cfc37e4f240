/* Drawing a graph in layers, producers above: places for boxes and lines.
 *
 * Sugiyama, Tagawa, Toda, "Methods for visual understanding of hierarchical system structures"
 * (IEEE SMC 11, 1981): layers by longest path, long edges through one bend a layer, crossings
 * lessened by barycentres. Within a layer positions are the least-squares fit to the neighbours'
 * that keeps order and distance.
 */
#ifndef MGPU_PARTITIONER_LAYOUT_H
#define MGPU_PARTITIONER_LAYOUT_H

#include "partitioner/outline.h"

struct mgpu_box {
    int first, last, nodes; /* of the outline: one, or a chain that is drawn as one */
    double x;               /* of its middle */
    int layer;
};

/* A line goes from the middle of one box to another's, through one point in every layer between;
 * straight where it is too long for that. */
struct mgpu_line {
    int from, to; /* boxes */
    int64_t bytes;
    int points;      /* layer(to) - layer(from) + 1; straight: 2 */
    const double *x; /* of its points */
};

struct mgpu_layout {
    struct mgpu_arena *arena;
    int boxes, lines, layers;
    struct mgpu_box *box;
    struct mgpu_line *line;
    int *box_of;  /* by node of the outline */
    double width; /* x lies in [0, width] */
};

/* Widths of a box and of a bend, with the gap beside it. */
struct mgpu_layout_sizes {
    double box, bend;
};

/* `place` by node: a chain stays on one place. Chains are drawn as one box in graphs of more than
 * `most` nodes. */
struct mgpu_layout *mgpu_layout_new(const struct mgpu_outline *outline, const int *place, int most,
                                    struct mgpu_layout_sizes sizes);
void mgpu_layout_free(struct mgpu_layout *layout);

#endif
