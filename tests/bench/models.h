/* The networks that are timed, as ONNX files with random weights: what the peers' Python builds
 * (peers.py), written here operator by operator, so that a benchmark needs nothing but this
 * repository. */
#ifndef MGPU_BENCH_MODELS_H
#define MGPU_BENCH_MODELS_H

#include "runtime/base/array.h"

#include <stdio.h>

struct bench_input {
    const char *name;
    enum mgpu_dtype type;
    int rank; /* without the batch */
    int64_t dims[3];
    int64_t below; /* integers: random numbers in [0, below); 1: all ones */
};

struct bench_model {
    const char *name;
    int64_t batch;
    const char *optimizer;
    int inputs; /* the last one is the label */
    struct bench_input input[3];
    void (*write)(FILE *to); /* as text for tests/support/make_onnx.h */
};

extern const struct bench_model bench_models[]; /* ends with a NULL name */

/* The model called `name`, or NULL. */
const struct bench_model *bench_model_find(const char *name);

/* Writes FOLDER/NAME.onnx and FOLDER/NAME.INPUT.npy of one batch. Aborts where it cannot. */
void bench_model_write(const struct bench_model *model, int64_t batch, const char *folder);

#endif
