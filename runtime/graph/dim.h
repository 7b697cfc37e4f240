/* Sizes that remember where they come from.
 *
 * When a graph is compiled every size is a number. The number alone cannot tell a batch of 64 from
 * another 64, so it travels with its monomial in the graph's symbols: value = factor * prod
 * symbol[i]^power[i]. Symbol 0 is the batch N. What is not a monomial (N + 1) is `opaque`: it is
 * known on which symbols it depends (those with a power), not how.
 */
#ifndef MGPU_GRAPH_DIM_H
#define MGPU_GRAPH_DIM_H

#include <stdbool.h>
#include <stdint.h>

enum { MGPU_SYMBOLS = 6, MGPU_BATCH = 0 };

struct mgpu_dim {
    int64_t value;
    int64_t factor;
    uint8_t power[MGPU_SYMBOLS];
    bool opaque;
};

/* A size that depends on nothing. */
struct mgpu_dim mgpu_dim_const(int64_t value);

/* The size of symbol `i` bound to `value`. */
struct mgpu_dim mgpu_dim_symbol(int symbol, int64_t value);

/* Arithmetic on values and monomials; what leaves the monomials becomes opaque, unless no operand
 * depends on a symbol. mgpu_dim_div truncates toward zero (ONNX); the divisor is not zero. */
struct mgpu_dim mgpu_dim_mul(struct mgpu_dim a, struct mgpu_dim b);
struct mgpu_dim mgpu_dim_div(struct mgpu_dim a, struct mgpu_dim b);
struct mgpu_dim mgpu_dim_add(struct mgpu_dim a, struct mgpu_dim b);
struct mgpu_dim mgpu_dim_neg(struct mgpu_dim a);

/* `value`, computed in a way we do not follow: from the batch; from `a` and `b`. */
struct mgpu_dim mgpu_dim_opaque(int64_t value);
struct mgpu_dim mgpu_dim_lost(int64_t value, struct mgpu_dim a, struct mgpu_dim b);

bool mgpu_dim_is_const(struct mgpu_dim a);                /* depends on no symbol */
bool mgpu_dim_has(struct mgpu_dim a, int symbol);         /* depends on this one */
bool mgpu_dim_same(struct mgpu_dim a, struct mgpu_dim b); /* value and monomial */

/* "N*8", "64", "?65" (opaque) into text; symbol i is called names[i]. Returns text. */
enum { MGPU_DIM_TEXT = 64 };
char *mgpu_dim_text(char text[MGPU_DIM_TEXT], struct mgpu_dim a, const char *const *names);

#endif
