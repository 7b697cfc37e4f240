/* Metrics: accuracy, top5 (topK), binary_accuracy, mae, mse, rmse. Each is two results of the
 * graph, a sum and a count (terms over the ranks); the trainer adds both up over an epoch and
 * divides. */
#ifndef MGPU_TRAIN_METRIC_H
#define MGPU_TRAIN_METRIC_H

#include "runtime/train/loss.h"

enum mgpu_metric_kind {
    MGPU_METRIC_ACCURACY,
    MGPU_METRIC_TOP_K,
    MGPU_METRIC_MAE,
    MGPU_METRIC_MSE,
    MGPU_METRIC_RMSE,
};

struct mgpu_metric {
    enum mgpu_metric_kind kind;
    const char *name; /* "accuracy", "head2_accuracy" when several outputs have it */
    int loss;         /* the loss whose output and labels it looks at */
    int k;
};

/* KIND[,output=NAME]; for each bound loss that it suits when no output is named; MGPU_EUSAGE where
 * it suits none. Appends to the list, which is the arena's. */
int mgpu_metric_parse(struct mgpu_metric **list, int *count, const char *text,
                      const struct mgpu_loss *losses, int loss_count, struct mgpu_arena *arena);

/* The metrics that are shown when none is asked for: accuracy of every loss over classes
 * (cross_entropy, nll). */
void mgpu_metric_default(struct mgpu_metric **list, int *count, const struct mgpu_loss *losses,
                         int loss_count, struct mgpu_arena *arena);

/* Appends nodes; `y` is the output of the metric's loss, whose label inputs are there already.
 * Sum and count are doubles of rank 0. */
int mgpu_metric_build(struct mgpu_graph *g, const struct mgpu_metric *metric,
                      const struct mgpu_loss *loss, struct mgpu_value *y, struct mgpu_value **sum,
                      struct mgpu_value **count);

/* From the totals to what is shown (rmse takes the root). */
double mgpu_metric_value(const struct mgpu_metric *metric, double sum, double count);

#endif
