/* The objects in which Keras keeps a model's weights: its layers, and models inside it with layers
 * of their own.
 *
 * Keras 3 has no '/' in names, so each part of a path is an object. Keras 2 may call a layer
 * "stage1/conv"; there only a part that Keras itself made up ("model_1", "sequential") is certain
 * to be a model inside, and all else is taken for one name.
 */
#ifndef MGPU_EXPORTER_KERAS_TREE_H
#define MGPU_EXPORTER_KERAS_TREE_H

#include "exporter/variables.h"

struct mgpu_keras_object {
    const char *name;       /* its own */
    const char *class_name; /* in snake case; "" unknown */
    int parent;             /* -1: the model */
    int number;             /* among the parent's objects of its class, in the order of the graph */
    int first, last;        /* of its layers, by number in mgpu_variables */
    bool holds;             /* other objects */
};

struct mgpu_keras_tree {
    const struct mgpu_variables *variables;
    int count; /* in the order of the graph, what holds others before these */
    struct mgpu_keras_object *object;
    int *of;  /* by layer */
    bool own; /* the model has a name that is not Keras's: it may be of a class of one's own */
    const char *slash; /* a layer whose name has a '/': perhaps it is in a model inside; or NULL */
};

/* In variables->arena. */
struct mgpu_keras_tree *mgpu_keras_tree_new(const struct mgpu_variables *variables);

/* The object right below the model that holds the layer. */
int mgpu_keras_tree_top(const struct mgpu_keras_tree *tree, int layer);

/* "layers/functional_1/layers/dense/vars": where a Keras 3 store has the layer's variables. */
const char *mgpu_keras_tree_group(const struct mgpu_keras_tree *tree, int layer);

enum mgpu_keras_pairs { /* of objects */
                        MGPU_KERAS_ALL,
                        MGPU_KERAS_OF_CLASS = 1, /* both of the same class */
                        MGPU_KERAS_ALIKE =
                            2 /* both with the same shapes, so that Keras takes one for the other */
};

/* MGPU_EINVALID where the graph does not tell the order of two objects of one parent that are such
 * a pair. `parent`: -1 is the model. */
int mgpu_keras_tree_order(const struct mgpu_keras_tree *tree, int parent,
                          enum mgpu_keras_pairs pairs);

/* MGPU_EINVALID where it is not known what a variable of a layer is there, or its shape. */
int mgpu_keras_tree_variables(const struct mgpu_keras_tree *tree);

/* MGPU_EINVALID where the class of an object is not known. */
int mgpu_keras_tree_classes(const struct mgpu_keras_tree *tree);

#endif
