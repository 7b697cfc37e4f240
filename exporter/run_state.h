/* Everything from which a run goes on, in one HDF5 file: a full checkpoint.
 *
 *   /                          the weights in Keras's legacy layout (keras_h5.h), so that whoever
 *                              reads such files reads the weights of this one
 *   /training_state/record     the record as bytes (run_state.c), "version" among its fields
 *   /training_state/weight/N   links to the weights; "weight.N" in the record is the name
 *   /training_state/KIND/N     the other arrays: state, carried, best; "KIND.N" is the name
 *
 *   /training_state/updates    how many the optimizer has done, for slots.h alone
 *
 * The record ends with its checksum (CRC-32) and holds those of the arrays.
 */
#ifndef MGPU_EXPORTER_RUN_STATE_H
#define MGPU_EXPORTER_RUN_STATE_H

#include "exporter/named_array.h"
#include "runtime/base/record.h"
#include "runtime/data/h5_reader.h"

#define MGPU_RUN_GROUP "training_state"

enum mgpu_run_list {
    MGPU_RUN_WEIGHT,
    MGPU_RUN_STATE,   /* the optimizer's */
    MGPU_RUN_CARRIED, /* --state: the rows of each place in the batch */
    MGPU_RUN_BEST,    /* restore_best_weights: of the best epoch */
    MGPU_RUN_LISTS
};

struct mgpu_run_state {
    struct mgpu_arena *arena; /* of the record */
    struct mgpu_array_list list[MGPU_RUN_LISTS];
    int64_t updates; /* the optimizer's; not read back: the record has it */
    struct mgpu_record record;
};

/* An empty one, to be filled and written. */
void mgpu_run_state_init(struct mgpu_run_state *state);
void mgpu_run_state_free(struct mgpu_run_state *state);

/* Atomic: on an error the old file is as it was. */
int mgpu_run_state_write(struct mgpu_run_state *state, const char *path);

/* Into an empty one, whose record then restores. A file that is cut off or damaged, of another kind
 * or version is an error that says so, and names the array. */
int mgpu_run_state_read(struct mgpu_run_state *state, const char *path);

/* For those who read such a file as one of weights: the record alone (made with an arena), and
 * whether an array called `name` is what was written. */
int mgpu_run_record_read(struct mgpu_record *out, struct mgpu_h5_reader *file);
int mgpu_run_array_check(const struct mgpu_record *record, const char *name,
                         const struct mgpu_array *array);

#endif
