/* A case folder: model.onnx, golden.h5 (data and right answers), case.json (how to train it). */
#ifndef MGPU_TESTS_GOLDEN_H
#define MGPU_TESTS_GOLDEN_H

#include "runtime/base/array.h"

#include <json-c/json.h>

struct mgpu_golden_tensor {
    char *name; /* its true name, from the dataset's attribute */
    struct mgpu_array array;
};

/* One group of golden.h5: "inputs", "labels", "forward", "loss", "gradient", "weights" ... */
struct mgpu_golden_group {
    int count;
    struct mgpu_golden_tensor *tensor;
};

struct mgpu_golden {
    char *name;   /* of the folder */
    char *folder; /* its path */
    char *model;  /* path of model.onnx */
    struct json_object *json;
    int64_t batch, steps;
};

int mgpu_golden_open(struct mgpu_golden *out, const char *folder);
void mgpu_golden_close(struct mgpu_golden *golden);

/* A group that is missing has no tensors. Free with mgpu_golden_group_free. */
int mgpu_golden_read(const struct mgpu_golden *golden, const char *group,
                     struct mgpu_golden_group *out);
void mgpu_golden_group_free(struct mgpu_golden_group *group);
const struct mgpu_array *mgpu_golden_find(const struct mgpu_golden_group *group, const char *name);

/* Fields of case.json: field "axis" holds an object of numbers by tensor name, and so on. */
int64_t mgpu_golden_int(const struct mgpu_golden *golden, const char *field, const char *name,
                        int64_t otherwise);
bool mgpu_golden_lists(const struct mgpu_golden *golden, const char *field, const char *name);

/* The largest allowed relative distance in "forward", "loss", "gradient", "weights" or
 * "statistics": case.json's tolerance, but no less than the floor of cases/README.md. */
double mgpu_golden_limit(const struct mgpu_golden *golden, const char *what);

/* Axis of the batch of an input, label or output; -1 where a step takes `rows` that are not
 * samples. *rows: how many a step takes along its first axis (or along the batch axis). */
int mgpu_golden_axis(const struct mgpu_golden *golden, const char *name, int64_t *rows);

/* Step `step`'s rows of an input or label, as a new array. */
int mgpu_golden_slice(const struct mgpu_golden *golden, const struct mgpu_golden_tensor *tensor,
                      int64_t step, struct mgpu_array *out);

/* norm2(a - b) / norm2(b); a and b as doubles. */
double mgpu_golden_distance(const double *a, const struct mgpu_array *b);

/* Case folders: those of $MGPU_CASES (default ../shared/cases where it exists), then tests/cases
 * where it has others. Sorted; free each and the list. */
char **mgpu_golden_folders(int *count);

#endif
