#include "runtime/cuda/cudnn_build.h"

void mgpu_cudnn_pointwise(struct mgpu_cudnn_graph *g, cudnnPointwiseMode_t mode,
                          cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t b,
                          cudnnBackendDescriptor_t y)
{
    cudnnBackendDescriptor_t d = mgpu_cudnn_new(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "pointwise");
    MGPU_CUDNN_SET(g, d, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    MGPU_CUDNN_TYPE(g, d, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT);
    mgpu_cudnn_finalize(g, d, "pointwise");
    cudnnBackendDescriptor_t op =
        mgpu_cudnn_new(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, "pointwise operation");
    MGPU_CUDNN_DESC(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, d);
    MGPU_CUDNN_DESC(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b)
        MGPU_CUDNN_DESC(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    MGPU_CUDNN_DESC(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    mgpu_cudnn_operation(g, op, "pointwise operation");
}
