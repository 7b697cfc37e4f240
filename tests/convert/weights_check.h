/* What the tests of conversion share: conversions that must work or not, and comparing models. */
#ifndef MGPU_TESTS_WEIGHTS_CHECK_H
#define MGPU_TESTS_WEIGHTS_CHECK_H

#include "runtime/mgpu.h"

/* mgpu_weights_convert; its line goes to `line`. */
int weights_convert(char line[256], const char *in, const char *out,
                    const struct mgpu_convert_options *options);

/* The number of float initializers of `got` that differ from `want`'s by more than `limit` (of the
 * largest number), or -1 where a file cannot be read. */
int weights_differ(const char *got, const char *want, double limit);

/* Whether the file has the tensor in this shape ("[2,6]") with these contents. */
bool weights_hold(const char *path, const char *name, const char *shape, const double *want);

/* Makes a trainer of a model x [N,2] -> [N,2] with these options and the test's data; gives the
 * first numbers of the weights called so, which are of four. NULL at the end of the names. */
int weights_start(const char *model, const struct mgpu_options *options, const char *const *names,
                  double *first);

/* Whether there is such a file. */
bool weights_exist(const char *path);

/* A legacy Keras file: layers in order, NULL at the end; each weight is in `layer`, [2] or [2,2]
 * floats, first, first + 1, ... */
struct weights_entry {
    const char *layer, *name;
    int rank;
    int64_t dims[2];
    double first;
};
void weights_legacy(const char *path, const char *const *layers, const struct weights_entry *entry,
                    int count);

#endif
