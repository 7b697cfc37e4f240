/* Small training runs through the facade: a model written as text (make_onnx.h), data from arrays,
 * losses and weights out.
 *
 *     tiny_begin();
 *     const char *model = tiny_model("input x float N 1\ninit w float 1 1 = 1\n...");
 *     struct mgpu_options o = MGPU_OPTIONS;
 *     o.data = tiny_list(tiny_floats("x", "3 1", 1.0, 2.0, 3.0), NULL);
 *     struct tiny_weight w[] = {{"w", 1}};
 *     struct tiny_result r;
 *     tiny_train(&r, model, &o, w, 1);
 *     ... r.loss[0], r.weight[0]
 *     tiny_end();
 */
#ifndef MGPU_TESTS_TINY_H
#define MGPU_TESTS_TINY_H

#include "runtime/base/array.h"
#include "runtime/mgpu.h"

enum { TINY_STEPS = 64, TINY_WEIGHTS = 4096 };

struct tiny_weight {
    const char *name;
    int count;
};

struct tiny_result {
    int rc;
    char error[1024]; /* when rc < 0 */
    int steps;
    double loss[TINY_STEPS];
    int weights;
    double weight[TINY_WEIGHTS];   /* one list after the other */
    double gradient[TINY_WEIGHTS]; /* of the last step, where a weight is trained (o.gradients) */
};

/* A folder for files, and its end. Strings and files live in between. */
void tiny_begin(void);
void tiny_end(void);
const char *tiny_path(const char *name);

/* Writes a model; gives its path. */
const char *tiny_model(const char *text);

/* Two towers that share a layer, and what joins them: inputs a and b [N,6], output y [N,3]. */
extern const char tiny_towers[];
extern const struct tiny_weight tiny_tower_weights[2];

/* Data files: "NAME=PATH". `shape` is "3 1"; the numbers follow as doubles. */
const char *tiny_floats(const char *name, const char *shape, ...);
const char *tiny_data(const char *name, enum mgpu_dtype type, int rank, const int64_t *dims,
                      const void *data);
/* Numbers in [-1, 1), the same for the same seed. */
const char *tiny_noise(const char *name, unsigned seed, int rank, const int64_t *dims);

/* A list that ends with NULL, from arguments that do. */
const char *const *tiny_list(const char *first, ...) __attribute__((sentinel));

/* Trains to the end of the options' steps or epochs and reads the weights. */
void tiny_train(struct tiny_result *out, const char *model, const struct mgpu_options *options,
                const struct tiny_weight *weights, int count);

/* The largest |a - b| / max(1, |b|) of losses and weights; infinite where one failed or they are
 * not of one length. */
double tiny_difference(const struct tiny_result *a, const struct tiny_result *b);

/* Equal in every bit. */
bool tiny_same(const struct tiny_result *a, const struct tiny_result *b);

#endif
