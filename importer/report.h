/* --report: what each stored tensor of a model is. */
#ifndef MGPU_IMPORTER_REPORT_H
#define MGPU_IMPORTER_REPORT_H

#include "importer/weights.h"

#include <stdio.h>

struct json_object;

/* {"initializers": [{"name", "role", "shape": [..], "type", "uses": [{"node", "type", "output",
 * "input"}, ..], "weights": [..], "note"}, ..], "unsupported": [..]}. Integers, numbers in Constant
 * nodes and what is unused are there too. "weights" are the names of the parameters that the tensor
 * holds. The caller owns the object (json_object_put). */
struct json_object *mgpu_weights_report_json(const struct mgpu_onnx_model *model,
                                             const struct mgpu_weights *weights,
                                             const char *const *unsupported, int count);

/* The same as a table for people, with totals, the notes and what is not supported below. Constants
 * and shapes of one element are only counted. */
void mgpu_weights_report_text(FILE *out, const struct mgpu_onnx_model *model,
                              const struct mgpu_weights *weights, const char *const *unsupported,
                              int count);

#endif
