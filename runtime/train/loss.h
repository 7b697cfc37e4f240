/* The losses that --loss names: what they mean, what labels they want, and their nodes.
 *
 * A loss is the mean over everything that counts in the whole batch, whatever the rank count: its
 * node gives a rank's sum times the step scalar MGPU_SCALAR_LOSS + i, which the trainer sets to
 * 1 / mgpu_loss_count of the whole batch's labels before the step.
 */
#ifndef MGPU_TRAIN_LOSS_H
#define MGPU_TRAIN_LOSS_H

#include "runtime/graph/graph.h"

enum mgpu_loss_kind {
    MGPU_LOSS_CROSS_ENTROPY,
    MGPU_LOSS_NLL,
    MGPU_LOSS_MSE,
    MGPU_LOSS_MAE,
    MGPU_LOSS_HUBER,
    MGPU_LOSS_BCE,
    MGPU_LOSS_BCE_LOGITS,
    MGPU_LOSS_HINGE,
    MGPU_LOSS_KL,
    MGPU_LOSS_OUTPUT,
};

enum { MGPU_AXIS_UNSET = -1000 };
enum mgpu_choice { MGPU_UNSET = -1, MGPU_NO = 0, MGPU_YES = 1 };

struct mgpu_loss {
    const char *text; /* as typed, for messages */
    enum mgpu_loss_kind kind;
    const char *output; /* not given: the only output */
    const char *label;  /* not given: "label"; NULL for MGPU_LOSS_OUTPUT */
    double weight;
    int axis; /* as typed; after mgpu_loss_bind the output's axis of the classes, from 0 */
    enum mgpu_choice from_logits;
    bool sum;        /* reduction=sum: not divided by the count */
    bool batch_mean; /* reduction=batchmean: the count is of samples */
    bool ignore;     /* class numbers: ignore_index is in force (default -100, as PyTorch's) */
    int64_t ignore_index;
    double label_smoothing, delta;
    const char *class_weights_file;
    double *class_weights; /* `classes` of them once read, NULL: none */

    /* After mgpu_loss_bind: */
    int64_t classes; /* 0: not a loss over classes */
    bool dense;      /* labels are distributions */
    enum mgpu_dtype
        label_type; /* what the label input holds: int64 class numbers or the float type */
    int label_rank; /* of the whole batch array; 0 for MGPU_LOSS_OUTPUT */
    int label_batch_axis;
    struct mgpu_dim label_dims[MGPU_MAX_RANK]; /* with the batch's monomial */

    /* Set by the caller before binding. by_step: the label's rows belong to steps (--rows): the
     * output has no axis of samples, a step is one; data_dims are [steps, R, ...]. sample_weights:
     * there is an input "sample_weight" [N] of the float type. */
    bool by_step, sample_weights;
};

/* Reads KIND[,name=value...] or KIND:OUTPUT:LABEL[,...]. Output and label names may contain ':' and
 * ',': they are matched against `outputs` (the model's) and `labels` (names that data were given
 * for), longest first. Another output is an error; another label is taken as it stands. Keras's and
 * PyTorch's names are accepted. An unknown kind or option is MGPU_EUSAGE with the nearest name.
 * Strings go to the arena. */
int mgpu_loss_parse(struct mgpu_loss *out, const char *text, const char *const *outputs,
                    int output_count, const char *const *labels, int label_count,
                    struct mgpu_arena *arena);

/* Settles axis, dense or class numbers, wanted label type and shape, from the model's output `y`
 * and the label data at hand (type, rank, dims: the whole data set's, samples on the axis where the
 * wanted label has them, which is 0 unless the output's batch axis is another). Shapes that do not
 * fit are errors that show both; [N,1] fits [N]. An output whose batch axis holds N*k rows wants
 * labels [N,k]. Reads the class weights file. MGPU_LOSS_OUTPUT looks at `y` alone. */
int mgpu_loss_bind(struct mgpu_loss *loss, const struct mgpu_graph *g, const struct mgpu_value *y,
                   enum mgpu_dtype data_type, int data_rank, const int64_t *data_dims,
                   struct mgpu_arena *arena);

/* Binds without data, for planning: to class numbers where there are classes (their axis: as typed,
 * else that of the Softmax before the output, else 1), to the output's own shape elsewhere. */
int mgpu_loss_bind_made(struct mgpu_loss *loss, const struct mgpu_graph *g,
                        const struct mgpu_value *y, struct mgpu_arena *arena);

/* Appends the loss's nodes: label inputs (graph inputs called as the label; shared between losses
 * that want the same, and with a model's input of that name and shape) and the loss value (rank 0,
 * g->float_type), weight and normaliser (step scalar MGPU_SCALAR_LOSS + index) included; with
 * reduction=sum there is no normaliser. `y` is the model's output in this graph, of any batch; the
 * logits behind it are found where the loss is to be taken through them (Softmax or Sigmoid before
 * the output, but for reshapes and transposes). MGPU_LOSS_OUTPUT multiplies with
 * MGPU_SCALAR_PIECE_SHARE instead. */
int mgpu_loss_build(struct mgpu_graph *g, const struct mgpu_loss *loss, int index,
                    struct mgpu_value *y, struct mgpu_value **value);

/* What the loss counts in `samples` samples: elements, labels by class and sample weight; for
 * MGPU_LOSS_OUTPUT the samples. Counts of parts add up. labels are what the input
 * holds (label_type). Also checks class numbers: one out of range fails naming the
 * sample (its place, or rows[] of it when given) and value. */
int mgpu_loss_count(double *count, const struct mgpu_loss *loss, int64_t samples,
                    const void *labels, const double *sample_weights, const int64_t *rows);

/* The names of kinds and their options, for --help. */
const char *mgpu_loss_help(void);

#endif
