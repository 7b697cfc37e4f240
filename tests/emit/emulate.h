/* Runs generated kernels without a GPU: compiled by the C compiler, blocks and threads one after
 * the other, in a hostile order.
 *
 * Blocks run in any order. Threads that wait for one another are switched where they wait, in a new
 * order each time; memory that they share starts as rubbish. So a missing barrier, or a result that
 * depends on the order, gives a wrong number.
 */
#ifndef MGPU_TESTS_EMULATE_H
#define MGPU_TESTS_EMULATE_H

#include "runtime/emit/emit.h"

#include <stdio.h>

enum emulate_order { EMULATE_FORWARD, EMULATE_BACKWARD, EMULATE_SHUFFLED, EMULATE_ORDERS };

struct emulated;

/* Whether there is a C compiler, $CC or cc, and nothing against emulating. */
bool emulate_possible(void);

/* Writes what emulate_run needs to call the kernels of `emitted`. */
void emulate_write_calls(FILE *out, const struct mgpu_emitted *emitted, const char *name);

/* Compiles kernels (the prelude is put before them) with their calls. */
int emulate_open(struct emulated **out, const char *text, const char *calls);
void emulate_close(struct emulated *e);

/* Runs all launches of `emitted`, called `name`, on the pointers that each function takes. */
int emulate_run(struct emulated *e, const struct mgpu_emitted *emitted, const char *name,
                void **pointers, enum emulate_order order);

/* Runs one launch of the function called so, for which calls has call_FUNCTION. */
int emulate_launch(struct emulated *e, const struct mgpu_emit_launch *launch, const char *function,
                   void **pointers, enum emulate_order order);

#endif
