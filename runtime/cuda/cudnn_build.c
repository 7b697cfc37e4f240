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

void mgpu_cudnn_matmul(struct mgpu_cudnn_graph *g, cudnnBackendDescriptor_t a,
                       cudnnBackendDescriptor_t b, cudnnBackendDescriptor_t y)
{
    cudnnBackendDescriptor_t d = mgpu_cudnn_new(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR, "matmul");
    MGPU_CUDNN_TYPE(g, d, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
    mgpu_cudnn_finalize(g, d, "matmul");
    cudnnBackendDescriptor_t op =
        mgpu_cudnn_new(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, "matmul operation");
    MGPU_CUDNN_DESC(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    MGPU_CUDNN_DESC(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    MGPU_CUDNN_DESC(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, y);
    MGPU_CUDNN_DESC(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, d);
    mgpu_cudnn_operation(g, op, "matmul operation");
}

void mgpu_cudnn_reduce(struct mgpu_cudnn_graph *g, cudnnReduceTensorOp_t mode,
                       cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t y)
{
    cudnnBackendDescriptor_t d = mgpu_cudnn_new(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, "reduction");
    MGPU_CUDNN_SET(g, d, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1,
                   &mode);
    MGPU_CUDNN_TYPE(g, d, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    mgpu_cudnn_finalize(g, d, "reduction");
    cudnnBackendDescriptor_t op =
        mgpu_cudnn_new(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, "reduction operation");
    MGPU_CUDNN_DESC(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, d);
    MGPU_CUDNN_DESC(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    MGPU_CUDNN_DESC(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    mgpu_cudnn_operation(g, op, "reduction operation");
}

void mgpu_cudnn_reshape(struct mgpu_cudnn_graph *g, cudnnBackendDescriptor_t x,
                        cudnnBackendDescriptor_t y)
{
    cudnnBackendDescriptor_t op =
        mgpu_cudnn_new(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, "reshape operation");
    MGPU_CUDNN_DESC(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    MGPU_CUDNN_DESC(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    mgpu_cudnn_operation(g, op, "reshape operation");
}
