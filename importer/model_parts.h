/* Pieces that model.c puts a model together from; nobody else needs them. */
#ifndef MGPU_IMPORTER_MODEL_PARTS_H
#define MGPU_IMPORTER_MODEL_PARTS_H

#include "importer/model.h"

/* "ai.onnx" and "" are one domain: "". */
const char *mgpu_onnx_domain(const char *domain);

/* The attribute called `name` in a list, or NULL. */
const Onnx__AttributeProto *mgpu_onnx_in_list(size_t count, const Onnx__AttributeProto *const *list,
                                              const char *name);

/* Whether the function has an attribute of this name, with or without a default. */
bool mgpu_onnx_declares(const Onnx__FunctionProto *function, const char *name);

enum mgpu_producer mgpu_onnx_producer(const char *name);

/* The layer that made a node, inside a call that `outer` ("" when unknown) made. */
const char *mgpu_onnx_layer(struct mgpu_arena *arena, const Onnx__NodeProto *proto,
                            const char *outer);

/* A graph input or output as the file declares it. */
void mgpu_onnx_declared(struct mgpu_arena *arena, const Onnx__ValueInfoProto *proto,
                        struct mgpu_onnx_value *out);

/* Whether this attribute of a Constant is a tensor, number or list of numbers. */
bool mgpu_onnx_is_constant(const Onnx__AttributeProto *value);

/* The array that value_float(s) or value_int(s) is, in place. */
struct mgpu_array mgpu_onnx_constant(const Onnx__AttributeProto *value);

#endif
