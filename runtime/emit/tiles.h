/* A matrix product in tiles through shared memory, of elements that any expression gives.
 *
 *     mgpu_write_tiles_begin(w, &t);     opens the kernel: `batch` is the product's number
 *     declarations that t.a and t.b use
 *     mgpu_write_tiles_sum(w, &t);       opens the results of a thread: element (i, j) is `sum`
 *     statements that store it
 *     mgpu_write_tiles_end(w);
 */
#ifndef MGPU_EMIT_TILES_H
#define MGPU_EMIT_TILES_H

#include "runtime/emit/writer.h"

struct mgpu_tiles {
    int64_t m, n, k, batch;
    const char *real;          /* type of the sums */
    const char *a, *b;         /* element (i, k) of a, (k, j) of b; batch, i, j and k are known */
    bool a_along_k, b_along_k; /* what lies side by side has neighbouring k */
};

void mgpu_write_tiles_begin(struct mgpu_writer *w, const struct mgpu_tiles *t);
void mgpu_write_tiles_sum(struct mgpu_writer *w, const struct mgpu_tiles *t);
void mgpu_write_tiles_end(struct mgpu_writer *w);

#endif
