/* cuDNN's operation graphs: descriptors of tensors and operations, then engines and plans.
 *
 * The first failure is kept, with its message: later steps do nothing and give NULL, and
 * mgpu_cudnn_graph_end tells it.
 *
 *     mgpu_cudnn_graph_begin(&g, dnn)
 *     x = mgpu_cudnn_tensor(&g, &(struct mgpu_cudnn_tensor){...}) ...
 *     op = mgpu_cudnn_new(&g, CUDNN_BACKEND_OPERATION_..., "...")
 *     MGPU_CUDNN_DESC(&g, op, CUDNN_ATTR_..., x) ...
 *     mgpu_cudnn_operation(&g, op)
 *     mgpu_cudnn_graph_end(&g)
 */
#ifndef MGPU_CUDA_CUDNN_GRAPH_H
#define MGPU_CUDA_CUDNN_GRAPH_H

#include "runtime/cuda/error.h"
#include "runtime/ops/op.h"

#include <stdio.h>

struct mgpu_cudnn {
    struct mgpu_cuda_dnn api;
    cudnnBackendDescriptor_t gpu; /* its properties */
    cudnnHandle_t handle;         /* NULL: there are only the properties, and nothing can run */
    int capability;               /* the GPU's; 900: 9.0 */
    char *key;                    /* what plans depend on besides their graph: version and GPU */
};

/* As mgpu_library_open's `properties`. */
int mgpu_cudnn_open(struct mgpu_cudnn *dnn, const char *properties);
void mgpu_cudnn_close(struct mgpu_cudnn *dnn);

enum { MGPU_CUDNN_RANK = 5, MGPU_CUDNN_TENSORS = 24, MGPU_CUDNN_OPERATIONS = 24 };

/* Ids of tensors: operand i of a node is i + 1. The one called SCRATCH lies in the workspace of the
 * call, behind the plan's; number k of the host is NUMBER + k. */
enum { MGPU_CUDNN_SCRATCH = 50, MGPU_CUDNN_NUMBER = 60, MGPU_CUDNN_BETWEEN = 100 };
enum { MGPU_CUDNN_NUMBERS = 2 };

struct mgpu_cudnn_graph {
    const struct mgpu_cudnn *dnn;
    cudnnBackendDescriptor_t *made; /* all descriptors, in the order of making */
    int count;
    cudnnBackendDescriptor_t operation[MGPU_CUDNN_OPERATIONS], graph;
    int operations, betweens, tensors;
    int64_t id[MGPU_CUDNN_TENSORS]; /* of those that lie in memory */
    int64_t scratch;                /* bytes of SCRATCH */
    float number[MGPU_CUDNN_NUMBERS];
    int numbers;
    int failed;       /* 0 so far, or a code */
    char *text;       /* every attribute set so far: graphs of equal text are equal */
    size_t text_size; /* belongs to `out` */
    FILE *out;
};

void mgpu_cudnn_graph_begin(struct mgpu_cudnn_graph *g, const struct mgpu_cudnn *dnn);
int mgpu_cudnn_graph_end(struct mgpu_cudnn_graph *g);
void mgpu_cudnn_graph_free(struct mgpu_cudnn_graph *g);

cudnnBackendDescriptor_t mgpu_cudnn_new(struct mgpu_cudnn_graph *g,
                                        cudnnBackendDescriptorType_t type, const char *name);
void mgpu_cudnn_set(struct mgpu_cudnn_graph *g, cudnnBackendDescriptor_t d,
                    cudnnBackendAttributeName_t attribute, const char *name,
                    cudnnBackendAttributeType_t type, int64_t count, const void *values);
void mgpu_cudnn_finalize(struct mgpu_cudnn_graph *g, cudnnBackendDescriptor_t d, const char *name);

/* Finalises an operation and makes it part of the graph. */
void mgpu_cudnn_operation(struct mgpu_cudnn_graph *g, cudnnBackendDescriptor_t op,
                          const char *name);

#define MGPU_CUDNN_SET(g, d, attribute, type, count, values)                                       \
    mgpu_cudnn_set(g, d, attribute, #attribute, type, count, values)
#define MGPU_CUDNN_DESC(g, d, attribute, value)                                                    \
    MGPU_CUDNN_SET(g, d, attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,                              \
                   (&(cudnnBackendDescriptor_t){value}))
#define MGPU_CUDNN_INTS(g, d, attribute, count, values)                                            \
    MGPU_CUDNN_SET(g, d, attribute, CUDNN_TYPE_INT64, count, values)
#define MGPU_CUDNN_INT(g, d, attribute, value)                                                     \
    MGPU_CUDNN_SET(g, d, attribute, CUDNN_TYPE_INT64, 1, (&(int64_t){value}))
#define MGPU_CUDNN_FLOAT(g, d, attribute, value)                                                   \
    MGPU_CUDNN_SET(g, d, attribute, CUDNN_TYPE_FLOAT, 1, (&(float){value}))
#define MGPU_CUDNN_TYPE(g, d, attribute, value)                                                    \
    MGPU_CUDNN_SET(g, d, attribute, CUDNN_TYPE_DATA_TYPE, 1, (&(cudnnDataType_t){value}))

/* ---- Tensors --------------------------------------------------------------------------------- */

struct mgpu_cudnn_tensor {
    int64_t id; /* 0: between operations of a graph, in no memory */
    cudnnDataType_t type;
    int rank;
    int64_t dims[MGPU_CUDNN_RANK], stride[MGPU_CUDNN_RANK];
};

cudnnBackendDescriptor_t mgpu_cudnn_tensor(struct mgpu_cudnn_graph *g,
                                           const struct mgpu_cudnn_tensor *t);

/* A number that operations multiply by: [1,1,1,1]. */
cudnnBackendDescriptor_t mgpu_cudnn_number(struct mgpu_cudnn_graph *g, double number);

/* An operand [N,C,S...] of a node (inputs first), or one [C] as [1,C,1...] of the same rank. At
 * least two spatial axes: cuDNN has no fewer. */
struct mgpu_cudnn_tensor mgpu_cudnn_image(const struct mgpu_node *node, int i);
struct mgpu_cudnn_tensor mgpu_cudnn_channels(const struct mgpu_node *node, int i, int rank);

/* Channels-last where `last`, else row-major. */
void mgpu_cudnn_strides(struct mgpu_cudnn_tensor *t, bool last);

bool mgpu_cudnn_has_type(enum mgpu_dtype type, cudnnDataType_t *out);

#endif
