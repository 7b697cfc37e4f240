/* Core operators as graphs of cuDNN's. */
#ifndef MGPU_CUDA_CUDNN_BUILD_H
#define MGPU_CUDA_CUDNN_BUILD_H

#include "runtime/cuda/cudnn_graph.h"

/* How an operator becomes a graph. */
struct mgpu_cudnn_builder {
    const char *op; /* the operator's name */
    bool images;    /* operands of more than two axes may lie channels-last */
    bool (*accepts)(const struct mgpu_node *node); /* NULL: any */
    void (*build)(struct mgpu_cudnn_graph *g, const struct mgpu_node *node);
};

/* Tables that end with a NULL op. */
extern const struct mgpu_cudnn_builder mgpu_cudnn_conv[], mgpu_cudnn_attention[];

/* The operation y = mode(x, b); b NULL: y = mode(x). */
void mgpu_cudnn_pointwise(struct mgpu_cudnn_graph *g, cudnnPointwiseMode_t mode,
                          cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t b,
                          cudnnBackendDescriptor_t y);

/* The operations y = a b of the last two axes, y = x reduced to y's shape, and y as the elements of
 * x. */
void mgpu_cudnn_matmul(struct mgpu_cudnn_graph *g, cudnnBackendDescriptor_t a,
                       cudnnBackendDescriptor_t b, cudnnBackendDescriptor_t y);
void mgpu_cudnn_reduce(struct mgpu_cudnn_graph *g, cudnnReduceTensorOp_t mode,
                       cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t y);
void mgpu_cudnn_reshape(struct mgpu_cudnn_graph *g, cudnnBackendDescriptor_t x,
                        cudnnBackendDescriptor_t y);

#endif
