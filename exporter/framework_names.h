/* The arrays of a model as its framework would save them: names, shapes, order. */
#ifndef MGPU_EXPORTER_FRAMEWORK_NAMES_H
#define MGPU_EXPORTER_FRAMEWORK_NAMES_H

#include "exporter/match.h"
#include "exporter/model_write.h"

/* Where an array comes from: a variable, or a whole initializer as ONNX has it, or the contents
 * that the file had whose structure is followed (zero biases that an export dropped, seeds). */
struct mgpu_framework_from {
    int variable; /* -1: none */
    int weight, holder;
    int tensor; /* of `like` */
};

struct mgpu_framework_arrays {
    struct mgpu_arena *arena;
    struct mgpu_variables *variables;
    struct mgpu_checkpoint *like;
    struct mgpu_match *match;
    int count;
    struct mgpu_named_array *array; /* without contents until they are filled in */
    struct mgpu_framework_from *from;
};

int mgpu_framework_arrays_new(struct mgpu_framework_arrays **out,
                              const struct mgpu_model_source *source, enum mgpu_target target,
                              const struct mgpu_model_write_options *options);
/* Array number `i` from `whole`, the contents of the holder of `variable`: from[i].variable, which
 * makes the array, and then its other parts. `squares` have no sign to turn. */
int mgpu_framework_array(struct mgpu_array *out, const struct mgpu_framework_arrays *a, int i,
                         int variable, const struct mgpu_array *whole, bool squares,
                         enum mgpu_tail *tail);
/* framework_state.c: appends the optimizer's arrays of source->state, as a file of kind `target`
 * has them. The arrays are filled. */
int mgpu_framework_state(struct mgpu_framework_arrays *a, const struct mgpu_model_source *source,
                         enum mgpu_target target);
int mgpu_framework_arrays_fill(struct mgpu_framework_arrays *a,
                               const struct mgpu_model_source *source);
/* Before training: whether they can be filled in and written after it, as far as can be known. */
int mgpu_framework_arrays_check(struct mgpu_framework_arrays *a,
                                const struct mgpu_model_source *source, enum mgpu_target target);
void mgpu_framework_arrays_free(struct mgpu_framework_arrays *arrays);

/* Keras files from a model of PyTorch and the like are in Keras's layouts only when a Keras file is
 * followed; the family that others are written in. */
enum mgpu_family mgpu_framework_family(const struct mgpu_onnx_model *model);

#endif
