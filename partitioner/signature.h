/* What a node's time depends on, as text: operator, attributes, types and shapes. */
#ifndef MGPU_PARTITIONER_SIGNATURE_H
#define MGPU_PARTITIONER_SIGNATURE_H

#include "runtime/ops/op.h"

enum { MGPU_SIGNATURE_TEXT = 512 };

/* "conv{strides=2,2} float[8,3,32,32] float[16,3,3,3] - -> float[8,16,16,16]"; what does not fit
 * is replaced by its hash. Returns text. */
char *mgpu_node_signature(char text[MGPU_SIGNATURE_TEXT], const struct mgpu_node *node);

/* FNV-1a of `size` bytes, going on from `hash` (0 at first). */
uint64_t mgpu_hash_bytes(uint64_t hash, const void *bytes, size_t size);

#endif
