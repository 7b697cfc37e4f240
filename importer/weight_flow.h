/* Who makes and who reads each name of an ONNX model, through bodies too. */
#ifndef MGPU_IMPORTER_WEIGHT_FLOW_H
#define MGPU_IMPORTER_WEIGHT_FLOW_H

#include "importer/weights.h"

struct mgpu_weight_flow_value {
    const char *name;
    int node; /* that makes it; -1: an initializer, an input, or a body's formal input */
    int readers;
    struct mgpu_use *reader; /* in the order of the nodes */
    bool leaves;             /* it is an output of the graph */
    bool formal;             /* it is an input of a body */
    const char *becomes[2];  /* a body's output: the node's output, the next round's input */
    int visit, look; /* for walks, and walks inside them: the stamp of the last that came by */
};

struct mgpu_weight_flow;

struct mgpu_weight_flow *mgpu_weight_flow_new(struct mgpu_arena *arena,
                                              const struct mgpu_onnx_model *model);

/* NULL for a name that no node of the model makes or reads. */
struct mgpu_weight_flow_value *mgpu_weight_flow_get(const struct mgpu_weight_flow *flow,
                                                    const char *name);

/* What the input goes on as where the node only moves it: the formal input of the body of a Loop
 * or Scan (1 name), else the node's outputs. Gives the number of names. */
int mgpu_weight_flow_onward(const struct mgpu_onnx_node *node, int input,
                            const char *const **names);

/* Whether of what the node gives only the shape is used, in all that comes behind it. */
bool mgpu_weight_flow_gives_shape(const struct mgpu_weight_flow *flow, int node);

/* A stamp that no walk had yet. */
int mgpu_weight_flow_stamp(struct mgpu_weight_flow *flow);

#endif
