/* Images of tests, channel by channel or channels-last. */
#ifndef MGPU_TESTS_LAY_H
#define MGPU_TESTS_LAY_H

#include "runtime/graph/graph.h"

#include <stdbool.h>

/* Copies all of v: from a plain [N,C,S...] to where its channels lie together (`last`; v->block of
 * them, 0: one), or back. */
void lay_channels(const struct mgpu_value *v, void *to, const void *from, bool last);

#endif
