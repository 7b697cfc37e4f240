/* Convolution and its gradients as graphs of cuDNN's. */
#include "runtime/cuda/cudnn_build.h"
#include "runtime/ops/conv.h"

/* Attributes of one axis that the node has not (1-D as 2-D) are those of a kernel of size 1. */
static cudnnBackendDescriptor_t convolution(struct mgpu_cudnn_graph *g,
                                            const struct mgpu_node *node)
{
    const struct mgpu_conv_attrs *a = node->attrs;
    int64_t spatial = a->spatial < 2 ? 2 : a->spatial, added = spatial - a->spatial;
    int64_t stride[MGPU_MAX_SPATIAL] = {1}, dilation[MGPU_MAX_SPATIAL] = {1};
    int64_t before[MGPU_MAX_SPATIAL] = {0}, after[MGPU_MAX_SPATIAL] = {0};
    for (int64_t i = 0; i < a->spatial; i++) {
        stride[added + i] = a->stride[i];
        dilation[added + i] = a->dilation[i];
        before[added + i] = a->before[i];
        after[added + i] = a->after[i];
    }
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    cudnnBackendDescriptor_t d =
        mgpu_cudnn_new(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, "convolution");
    MGPU_CUDNN_TYPE(g, d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    MGPU_CUDNN_SET(g, d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    MGPU_CUDNN_INT(g, d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, spatial);
    MGPU_CUDNN_INTS(g, d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, spatial, stride);
    MGPU_CUDNN_INTS(g, d, CUDNN_ATTR_CONVOLUTION_DILATIONS, spatial, dilation);
    MGPU_CUDNN_INTS(g, d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, spatial, before);
    MGPU_CUDNN_INTS(g, d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, spatial, after);
    mgpu_cudnn_finalize(g, d, "convolution");
    return d;
}

static void forward(struct mgpu_cudnn_graph *g, const struct mgpu_node *node,
                    cudnnBackendDescriptor_t y)
{
    struct mgpu_cudnn_tensor x = mgpu_cudnn_image(node, 0), w = mgpu_cudnn_image(node, 1);
    cudnnBackendDescriptor_t conv = convolution(g, node), tx = mgpu_cudnn_tensor(g, &x),
                             tw = mgpu_cudnn_tensor(g, &w);
    cudnnBackendDescriptor_t op =
        mgpu_cudnn_new(g, CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, "conv");
    MGPU_CUDNN_DESC(g, op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, conv);
    MGPU_CUDNN_DESC(g, op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, tx);
    MGPU_CUDNN_DESC(g, op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, tw);
    MGPU_CUDNN_DESC(g, op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, y);
    MGPU_CUDNN_FLOAT(g, op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, 1);
    MGPU_CUDNN_FLOAT(g, op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, 0);
    mgpu_cudnn_operation(g, op, "conv");
}

/* Bias and relu are its epilogue: `steps` operations behind it, with a value between any two. */
static void build_conv(struct mgpu_cudnn_graph *g, const struct mgpu_node *node)
{
    const struct mgpu_conv_attrs *a = node->attrs;
    struct mgpu_cudnn_tensor y = mgpu_cudnn_image(node, node->inputs), between = y;
    bool bias = node->inputs > 2 && node->input[2];
    int steps = bias + a->relu;
    between.id = 0;
    between.type = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t last = mgpu_cudnn_tensor(g, steps ? &between : &y), next;
    forward(g, node, last);
    if (bias) {
        struct mgpu_cudnn_tensor b = mgpu_cudnn_channels(node, 2, y.rank);
        cudnnBackendDescriptor_t tb = mgpu_cudnn_tensor(g, &b);
        next = mgpu_cudnn_tensor(g, --steps ? &between : &y);
        mgpu_cudnn_pointwise(g, CUDNN_POINTWISE_ADD, last, tb, next);
        last = next;
    }
    if (a->relu)
        mgpu_cudnn_pointwise(g, CUDNN_POINTWISE_RELU_FWD, last, NULL, mgpu_cudnn_tensor(g, &y));
}

static void build_input(struct mgpu_cudnn_graph *g, const struct mgpu_node *node)
{
    struct mgpu_cudnn_tensor dy = mgpu_cudnn_image(node, 0), w = mgpu_cudnn_image(node, 1),
                             dx = mgpu_cudnn_image(node, 2);
    cudnnBackendDescriptor_t conv = convolution(g, node), tdy = mgpu_cudnn_tensor(g, &dy),
                             tw = mgpu_cudnn_tensor(g, &w), tdx = mgpu_cudnn_tensor(g, &dx);
    cudnnBackendDescriptor_t op = mgpu_cudnn_new(
        g, CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, "conv_grad_input");
    MGPU_CUDNN_DESC(g, op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, conv);
    MGPU_CUDNN_DESC(g, op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, tdy);
    MGPU_CUDNN_DESC(g, op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, tw);
    MGPU_CUDNN_DESC(g, op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, tdx);
    MGPU_CUDNN_FLOAT(g, op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, 1);
    MGPU_CUDNN_FLOAT(g, op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, 0);
    mgpu_cudnn_operation(g, op, "conv_grad_input");
}

static void build_weight(struct mgpu_cudnn_graph *g, const struct mgpu_node *node)
{
    struct mgpu_cudnn_tensor x = mgpu_cudnn_image(node, 0), dy = mgpu_cudnn_image(node, 1),
                             dw = mgpu_cudnn_image(node, 2);
    cudnnBackendDescriptor_t conv = convolution(g, node), tx = mgpu_cudnn_tensor(g, &x),
                             tdy = mgpu_cudnn_tensor(g, &dy), tdw = mgpu_cudnn_tensor(g, &dw);
    cudnnBackendDescriptor_t op = mgpu_cudnn_new(
        g, CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, "conv_grad_weight");
    MGPU_CUDNN_DESC(g, op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, conv);
    MGPU_CUDNN_DESC(g, op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, tx);
    MGPU_CUDNN_DESC(g, op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, tdy);
    MGPU_CUDNN_DESC(g, op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, tdw);
    MGPU_CUDNN_FLOAT(g, op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, 1);
    MGPU_CUDNN_FLOAT(g, op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA, 0);
    mgpu_cudnn_operation(g, op, "conv_grad_weight");
}

/* The gradient of the bias is a column sum, which cuDNN has no engine for. */
static bool no_bias(const struct mgpu_node *node)
{
    return node->outputs < 2 || !node->output[1];
}

const struct mgpu_cudnn_builder mgpu_cudnn_conv[] = {
    {"conv", true, NULL, build_conv},
    {"conv_grad_input", true, NULL, build_input},
    {"conv_grad_weight", true, no_bias, build_weight},
    {NULL},
};
