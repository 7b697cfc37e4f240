/* Engines that can run a graph of cuDNN's, and plans: an engine made ready. */
#ifndef MGPU_CUDA_CUDNN_PLAN_H
#define MGPU_CUDA_CUDNN_PLAN_H

#include "runtime/cuda/cudnn_graph.h"

/* What an engine may do. */
struct mgpu_cudnn_rules {
    bool tensor_cores; /* false: products of floats stay floats */
    bool winograd;
    bool any_order;    /* the result may depend on an order of blocks */
    int64_t workspace; /* bytes, at most */
};

/* Engines by what cuDNN expects of them, best first. */
struct mgpu_cudnn_engines {
    cudnnBackendDescriptor_t *config;
    int count;
};

int mgpu_cudnn_engines_find(struct mgpu_cudnn_engines *out, const struct mgpu_cudnn_graph *g,
                            const struct mgpu_cudnn_rules *rules);
void mgpu_cudnn_engines_free(struct mgpu_cudnn_engines *engines, const struct mgpu_cudnn *dnn);

struct mgpu_cudnn_plan {
    cudnnBackendDescriptor_t plan;
    int64_t workspace; /* bytes */
};

/* A plan of an engine (may take a second: some compile kernels). MGPU_EUNSUPPORTED: it cannot, or
 * wants more bytes than `workspace`. */
int mgpu_cudnn_plan_make(struct mgpu_cudnn_plan *plan, const struct mgpu_cudnn *dnn,
                         cudnnBackendDescriptor_t config, int64_t workspace);
void mgpu_cudnn_plan_free(struct mgpu_cudnn_plan *plan, const struct mgpu_cudnn *dnn);

/* Makes *pack, which says where operands lie; then submits a plan of such operands to the handle's
 * stream as often as wanted. The caller destroys the pack; NULL: it was not made. */
int mgpu_cudnn_bind(cudnnBackendDescriptor_t *pack, const struct mgpu_cudnn *dnn, int count,
                    const int64_t *id, void *const *data, void *workspace);
int mgpu_cudnn_plan_run(const struct mgpu_cudnn_plan *plan, const struct mgpu_cudnn *dnn,
                        cudnnBackendDescriptor_t pack);

#endif
