/* Names of checkpoints: "w-{epoch:02d}-{val_loss:.2f}.h5", with Python's format fields as Keras's
 * ModelCheckpoint takes them.
 *
 * A field is {NAME} or {NAME:FORMAT}, NAME being `epoch` (from 1) or a name in the logs, FORMAT
 * being [0][WIDTH][.PRECISION][d|f|F|e|E|g|G]. {{ and }} are braces.
 */
#ifndef MGPU_CALLBACKS_TEMPLATE_H
#define MGPU_CALLBACKS_TEMPLATE_H

#include "runtime/base/memory.h"
#include "runtime/callbacks/logs.h"

#include <stdbool.h>

/* The name after epoch `epoch`. Errors are MGPU_EUSAGE: an unknown field with what is known, a
 * format of another kind. */
int mgpu_template_format(const char **out, struct mgpu_arena *arena, const char *text,
                         int64_t epoch, const struct mgpu_logs *logs);

/* Whether the epoch alone says what the name will be. */
bool mgpu_template_is_known(const char *text);

/* Whether the template could have given this name: it stands in the same folder, and begins and
 * ends as all of them do. */
bool mgpu_template_gives(const char *text, const char *name);

/* The name of a checkpoint that no epoch has made: "step-N" in place of everything from the first
 * field to the last, or before the extension where there is no field. */
const char *mgpu_template_step(struct mgpu_arena *arena, const char *text, int64_t step);

#endif
