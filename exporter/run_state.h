/* Everything from which a run goes on, in one HDF5 file: a full checkpoint.
 *
 *   /                          the weights in Keras's legacy layout (keras_h5.h), so that whoever
 *                              reads such files reads the weights of this one
 *   /training_state            an attribute for each field of the record, "version" among them
 *   /training_state/weight/N   links to the weights; "weight.N" in the record is the name
 *   /training_state/state/N    the arrays of the optimizer's state; "state.N" is the name
 */
#ifndef MGPU_EXPORTER_RUN_STATE_H
#define MGPU_EXPORTER_RUN_STATE_H

#include "exporter/named_array.h"
#include "runtime/base/record.h"

struct mgpu_run_state {
    struct mgpu_arena *arena; /* of the record */
    int weights, states;
    struct mgpu_named_array *weight, *state;
    struct mgpu_record record;
};

/* An empty one, to be filled and written. */
void mgpu_run_state_init(struct mgpu_run_state *state);
void mgpu_run_state_free(struct mgpu_run_state *state);

/* Atomic: on an error the old file is as it was. */
int mgpu_run_state_write(struct mgpu_run_state *state, const char *path);

/* Into an empty one, whose record then restores. A file that is cut off, of another kind or version
 * is an error that says so. */
int mgpu_run_state_read(struct mgpu_run_state *state, const char *path);

#endif
