/* A small model trained on a GPU that there is not (double.h), to be compared with the CPU. */
#ifndef MGPU_TESTS_CUDA_DOUBLE_TRAIN_H
#define MGPU_TESTS_CUDA_DOUBLE_TRAIN_H

#include "runtime/mgpu.h"

/* One step an epoch, four of them, of all samples: input "x" [samples,4], labels of three classes.
 */
struct mgpu_options double_options(int samples, const char *devices);

enum { DOUBLE_SAMPLES = 8, DOUBLE_STEPS = 4, DOUBLE_WEIGHTS = 512 };

struct double_model {
    const char *path;
    const char *const *data; /* of inputs and labels, DOUBLE_SAMPLES samples of each */
    const char *ops;         /* nodes are counted whose operators' names begin so */
    int weights;             /* elements of its weight "w", at most DOUBLE_WEIGHTS */
};

struct double_trained {
    int nodes; /* that were counted, of a rank */
    double loss[DOUBLE_STEPS], weight[DOUBLE_WEIGHTS];
};

/* Trains by the mean square error, all samples in each step, cut over the ranks of `devices`. A
 * complaint of the double's is an error too. */
int double_train(struct double_trained *out, const struct double_model *model, const char *devices,
                 const char *precision);

/* How far losses, or weights, are from those of `want`: |x - want| / |want|. */
double double_loss_off(const struct double_trained *x, const struct double_trained *want);
double double_weight_off(const struct double_trained *x, const struct double_trained *want,
                         const struct double_model *model);

#endif
