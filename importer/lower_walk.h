/* The state of one lowering; lower.c and lower_values.c share it. */
#ifndef MGPU_IMPORTER_LOWER_WALK_H
#define MGPU_IMPORTER_LOWER_WALK_H

#include "importer/lower_bind.h"

struct mgpu_lower_walk {
    struct mgpu_arena *arena;
    struct mgpu_binder *binder;
    struct mgpu_names *values;     /* flat name -> struct mgpu_value */
    struct mgpu_names *makers;     /* flat name -> struct mgpu_onnx_node */
    struct mgpu_names *inputs;     /* flat name -> struct mgpu_onnx_value */
    struct mgpu_names *families;   /* type -> list of rows */
    bool *done;                    /* by node index */
    int *seen, rounds;             /* by node index: the last search that met it */
    struct mgpu_value **constant;  /* by initializer */
    struct mgpu_value **parameter; /* by weight */
    struct mgpu_value ***holder;   /* by weight and holder: as it is stored there */
    struct mgpu_names *places;     /* MaxPool's Indices -> the same, counted within the channel */
    int problems;
    char **problem; /* what is not supported, one text each */
    bool wrong;     /* a node was: those around it fail for its reason */
    bool baked;     /* a Reshape's shape contradicts the batch */

    int64_t example; /* the batch that the file was exported with, as a number; 0: not known */
    int rebatched;   /* where it stands */
    const struct mgpu_onnx_node *rebatched_at; /* the first of them */
};

/* The constant that an initializer is. MGPU_EUNSUPPORTED when its element type is not held. */
int mgpu_walk_constant(struct mgpu_lower *l, int initializer, struct mgpu_value **out);

/* The parameter that a weight is, in its own layout; made at its first use. */
struct mgpu_value *mgpu_walk_parameter(struct mgpu_lower *l, int weight);

/* lower_rebatch.c. A Reshape of x to sizes of plain numbers: `dims` with the batch in the place
 * where the example's was, where there is one. */
void mgpu_rebatch_shape(struct mgpu_lower *l, const struct mgpu_value *x, bool zero, int rank,
                        const int64_t *sizes, struct mgpu_dim *dims);

/* One row of a value that has equal ones, one for each sample of the example; else the value. */
struct mgpu_value *mgpu_rebatch_rows(struct mgpu_lower *l, struct mgpu_value *v, int axis);

/* The same for the operands of the node that meet one with the batch. */
int mgpu_rebatch_operands(struct mgpu_lower *l);

/* The same as one of its holders has it: transposed where that is how it is stored, its frozen part
 * cut off from the gradient. */
int mgpu_walk_held(struct mgpu_lower *l, int weight, int holder, struct mgpu_value **out);

#endif
