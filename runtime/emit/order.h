/* Putting entries in order by the slot that they go to, stably: what several entries add to one
 * slot is then added in the order of the entries, and the result is always the same.
 *
 *     o = mgpu_emit_order_of(entries, slots)
 *     a kernel with mgpu_write_order_arrays(w, &o, 0) that fills slot_of and entry_of
 *     mgpu_write_order(w, &o)
 *     mgpu_write_runs(w, &o, &runs)
 */
#ifndef MGPU_EMIT_ORDER_H
#define MGPU_EMIT_ORDER_H

#include "runtime/emit/writer.h"

struct mgpu_emit_order {
    int64_t entries, slots, chunks, counts;
    int passes;
};

/* Slots are numbers up to `slots`, which is for entries that go nowhere; both below 2^32. */
struct mgpu_emit_order mgpu_emit_order_of(int64_t entries, int64_t slots);

/* What it takes of the workspace, from the start. */
int64_t mgpu_emit_order_bytes(const struct mgpu_emit_order *o);

/* Declares u32 *slot_of, *entry_of as pass `pass` finds them (and what passes need besides). */
void mgpu_write_order_arrays(struct mgpu_writer *w, const struct mgpu_emit_order *o, int pass);

/* The kernels that sort. */
void mgpu_write_order(struct mgpu_writer *w, const struct mgpu_emit_order *o);

/* What becomes of y0. An entry has a value for each of `lanes` lanes, as a slot has a place; texts
 * may use `lane`, `slot` and `entry`. */
struct mgpu_emit_runs {
    int64_t lanes;
    const char *declare;  /* statements before all others */
    const char *value;    /* of `entry` in `lane` */
    const char *place;    /* of `slot` in `lane`, among the elements of y0 */
    const char *join;     /* function of what is there and a value; "": the last value stays */
    enum mgpu_dtype type; /* of computation */
};

/* What it takes of the workspace, which the caller puts at byte `at`, a multiple of 8. */
int64_t mgpu_emit_runs_bytes(const struct mgpu_emit_order *o, const struct mgpu_emit_runs *r);

/* The kernels that do it. However many entries one slot has, a thread takes few. */
void mgpu_write_runs(struct mgpu_writer *w, const struct mgpu_emit_order *o,
                     const struct mgpu_emit_runs *r, int64_t at);

#endif
