/* Which tensor of a file is which variable of a model.
 *
 * In this order: rules of the user; names equal to an initializer's; names of layers, whole or as
 * the end of the other; structure, only where one side has no names: class and shapes that fit just
 * one layer, or layers that both sides have in a certain order; and, only when asked for, names as
 * Keras counts on in one program (dense_3 for dense), if all fit so, or plain order of what stands
 * in one line. Nothing is guessed: what fits several is a fault that lists them.
 */
#ifndef MGPU_EXPORTER_MATCH_H
#define MGPU_EXPORTER_MATCH_H

#include "exporter/variables.h"

struct mgpu_match_options {
    const char *map; /* a file of rules "theirs -> ours", or NULL */
    bool by_order;
    bool partial;       /* what is missing or left over is no fault */
    bool skip_mismatch; /* nor is another shape */
    bool like; /* the file gives names: what a graph of PyTorch has nothing of is no fault */
    bool allow_nonfinite;
    const char *const *fresh; /* initializers that the file need not have, or not so: NULL at the
                               * end, or NULL for none */
    const char *slot; /* load the optimizer's arrays of this kind instead, zero where there are
                       * none; NULL: the weights */
};

enum mgpu_match_fault_kind { MGPU_MATCH_SHAPE, MGPU_MATCH_MISSING, MGPU_MATCH_LEFT };

struct mgpu_match_fault {
    enum mgpu_match_fault_kind kind;
    const char *name; /* of the file's tensor; what is missing: of the model's variable */
    int variable;     /* of the model; -1: none */
    const char *text; /* "dense_1/kernel:0 is [24,10], the model wants [24,8]" */
    bool caused;      /* the text says why, and so is shown first */
};

struct mgpu_match {
    struct mgpu_arena *arena;
    const struct mgpu_checkpoint *file;
    const struct mgpu_variables *model;
    int *tensor;        /* by variable; -1: none */
    bool *whole;        /* by variable: that tensor is the whole initializer, as ONNX has it */
    int *variable;      /* by tensor; -1: none; of a copy (match_copies.c), as its original's */
    bool *constant;     /* by tensor: the model has its numbers as a constant, or needs none */
    const char **why;   /* by tensor: layers that it could not choose from, or NULL */
    const char *rivals; /* two models that are in the file, of which none was taken; or NULL */
    const char *prefix; /* that names of the file had and were matched without: "model."; or NULL */
    const char
        *counted; /* "'dense_3' is the model's 'dense'": Keras's numbers were others; or NULL */
    int copies;   /* tensors that are others once more */
    const char *copied;       /* one of them: "'blocks.0.weight' of 'first.weight'"; or NULL */
    int beside;               /* tensors that the graph has nothing of, with options.like */
    const char *first_beside; /* or NULL */
    int matched, total;
    int faults;
    struct mgpu_match_fault *fault;
};

/* MGPU_EINVALID where not all matched, and options do not allow it; or where nothing did. The text
 * is one line: "7 of 8 tensors: ...". *out is for mgpu_match_free also then. */
int mgpu_match_new(struct mgpu_match **out, const struct mgpu_checkpoint *file,
                   const struct mgpu_variables *model, const struct mgpu_match_options *options);
void mgpu_match_free(struct mgpu_match *match); /* NULL is fine */

/* Reads what matched into weights->given, in the initializers' types and layouts. */
int mgpu_match_load(const struct mgpu_match *match, struct mgpu_weights *weights,
                    const struct mgpu_match_options *options);

/* MGPU_EINVALID names the first element that is no finite number. */
int mgpu_match_finite(const struct mgpu_array *array, const char *name);

#endif
