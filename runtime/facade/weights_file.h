/* Weights out of files into a model's weights: for mgpu-convert and mgpu-train --init. */
#ifndef MGPU_FACADE_WEIGHTS_FILE_H
#define MGPU_FACADE_WEIGHTS_FILE_H

#include "exporter/match.h"
#include "exporter/model_write.h"

struct mgpu_weights_left { /* out, or missing */
    enum mgpu_match_fault_kind kind;
    int weight; /* of the model; -1: none */
    char *name, *text;
};

struct mgpu_weights_result {
    int matched, total;
    char unwrapped[256]; /* "", or "wrapper model_1 removed" */
    int lefts;
    struct mgpu_weights_left *left;
    int state_left; /* arrays of an optimizer that were not asked for */
};

void mgpu_weights_result_set(struct mgpu_weights_result *result, int matched, int total,
                             const struct mgpu_checkpoint *file);
void mgpu_weights_result_free(struct mgpu_weights_result *result);

/* Matches a file and reads it into (*weights)->given. What was left out with permission is in
 * result->left. `slots`, when it is not NULL, gets the optimizer's state; a file without any is an
 * error. */
int mgpu_weights_from_file(struct mgpu_weights **weights, const struct mgpu_onnx_model *model,
                           const char *path, bool unwrap, const struct mgpu_match_options *options,
                           struct mgpu_weights_result *result, struct mgpu_model_state *slots);

/* A note where the file has an optimizer's arrays, which are not taken. */
void mgpu_tell_state(const struct mgpu_checkpoint *c);

/* A note for each tensor that was left out of `path`, and one for an optimizer's arrays. */
void mgpu_weights_tell_left(const struct mgpu_weights_result *result, const char *path);

/* The tensors of a file under the names that a file of kind `target` gives them, in the layouts
 * that they have. */
int mgpu_file_arrays(struct mgpu_named_array **out, int *count, const struct mgpu_checkpoint *c,
                     enum mgpu_target target, bool optimizer_state);

/* The weights of options->model with the contents of a file, by initializer. What the file does not
 * hold, or not as the model does, has no contents and is in result->left. */
struct mgpu_convert_options;
int mgpu_file_arrays_of_model(struct mgpu_named_array **out, int *count, const char *path,
                              const struct mgpu_convert_options *options,
                              struct mgpu_weights_result *result);

#endif
