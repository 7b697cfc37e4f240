/* Matrix products of our own: y [m,n] = a [m,k] b [k,n], for processors whose registers hold 8
 * floats.
 *
 * Operands are first packed: a into panels of ROWS rows, b into panels of COLUMNS columns, each
 * panel with all that belongs to one step along k side by side, so that the innermost loop reads
 * two streams and keeps ROWS x COLUMNS sums in registers. Lines that fill up the last panel are
 * zero. An element of y is summed along k in pieces of one size, whatever m, n and the threads are.
 */
#ifndef MGPU_CPU_PRODUCT_H
#define MGPU_CPU_PRODUCT_H

#include <stdbool.h>
#include <stdint.h>

enum { MGPU_PANEL_ROWS = 6, MGPU_PANEL_COLUMNS = 16 };

/* Element (i, j) is data[i * row + j * column]. Fast where a step is 1. */
struct mgpu_matrix_of {
    const float *data;
    int64_t row, column;
};

/* Whether products of our own are the faster ones on this machine. */
bool mgpu_cpu_has_product(void);

/* Floats that m rows or n columns of depth k take when packed. */
int64_t mgpu_packed_rows(int64_t m, int64_t k);
int64_t mgpu_packed_columns(int64_t n, int64_t k);
void mgpu_pack_rows(struct mgpu_matrix_of a, int64_t m, int64_t k, float *to);
void mgpu_pack_columns(struct mgpu_matrix_of b, int64_t n, int64_t k, float *to);

/* y = a b of packed operands, or y += a b; rows of y are `step` apart. */
void mgpu_multiply_packed(const float *a, const float *b, int64_t m, int64_t n, int64_t k, float *y,
                          int64_t step, bool add);

/* Of y = a b the part-th of `parts`, cut along its longer side, so that less is packed twice.
 * `scratch` holds mgpu_product_bytes, a number of cache lines, and lies on one. */
int64_t mgpu_product_bytes(int64_t m, int64_t n, int64_t k);
void mgpu_product(struct mgpu_matrix_of a, struct mgpu_matrix_of b, int64_t m, int64_t n, int64_t k,
                  float *y, int64_t step, int part, int parts, void *scratch);

/* The same product, never there as a whole: `use` gets it in pieces, rows [i, i + rows) of columns
 * [j, j + columns) at y, rows of which are `step` apart, and may change y. For k up to
 * MGPU_PIECES_DEEP; `scratch` holds mgpu_pieces_bytes and is like that of mgpu_product. */
enum { MGPU_PIECES_DEEP = 1 << 14 };
struct mgpu_product_piece {
    float *y;
    int64_t step, i, rows, j, columns;
};
int64_t mgpu_pieces_bytes(int64_t m, int64_t n, int64_t k);
void mgpu_product_pieces(struct mgpu_matrix_of a, struct mgpu_matrix_of b, int64_t m, int64_t n,
                         int64_t k, int part, int parts, void *scratch,
                         void (*use)(void *context, const struct mgpu_product_piece *piece),
                         void *context);

#endif
