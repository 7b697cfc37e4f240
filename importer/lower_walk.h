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
    bool baked;     /* a Reshape's shape contradicts the batch */
};

/* The constant that an initializer is. MGPU_EUNSUPPORTED when its element type is not held. */
int mgpu_walk_constant(struct mgpu_lower *l, int initializer, struct mgpu_value **out);

/* The parameter that a weight is, in its own layout; made at its first use. */
struct mgpu_value *mgpu_walk_parameter(struct mgpu_lower *l, int weight);

/* The same as one of its holders has it: transposed where that is how it is stored, its frozen part
 * cut off from the gradient. */
int mgpu_walk_held(struct mgpu_lower *l, int weight, int holder, struct mgpu_value **out);

#endif
