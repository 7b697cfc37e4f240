/* Errors: every fallible function returns 0 or one of these negative codes.
 *
 * The text of the last error belongs to the calling thread. It is written where the fault is found
 * and prefixed on the way up, so that it ends as "model.onnx: node 'conv1' (Conv): ...".
 *
 *     if (rank > MGPU_MAX_RANK)
 *         return mgpu_fail(MGPU_EUNSUPPORTED, "rank %d is more than %d", rank, MGPU_MAX_RANK);
 *     ...
 *     return mgpu_prefix(lower(node), "node '%s' (%s)", name, type);
 */
#ifndef MGPU_BASE_STATUS_H
#define MGPU_BASE_STATUS_H

#include "runtime/mgpu_status.h" /* the codes, mgpu_error, mgpu_set_note */

#include <stddef.h>

/* Sets this thread's error text and returns `code`. The text has no final newline. */
int mgpu_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts "format: " before the text when `code` is an error. Returns `code`. */
int mgpu_prefix(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Copies another thread's error text into this thread's. Returns `code`. */
int mgpu_fail_text(int code, const char *text);

/* Copies text of others for a terminal: one line, with control characters written as \\n, \\x1b.
 * Where `size` bytes are not enough, the end is left out. */
void mgpu_plain_text(char *to, size_t size, const char *from);

/* Tells a person what they should know but need not act on. */
void mgpu_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Tells a person that the run goes on, but slower or elsewhere than was asked for or could be, and
 * what to do about it. */
void mgpu_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define MGPU_TRY(expr)                                                                             \
    do {                                                                                           \
        int try_rc_ = (expr);                                                                      \
        if (try_rc_ < 0)                                                                           \
            return try_rc_;                                                                        \
    } while (0)

/* The same for functions with one clean-up label `done:` and a variable `rc`. */
#define MGPU_TRY_GOTO(expr)                                                                        \
    do {                                                                                           \
        rc = (expr);                                                                               \
        if (rc < 0)                                                                                \
            goto done;                                                                             \
    } while (0)

#endif
