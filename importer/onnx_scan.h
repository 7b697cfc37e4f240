/* A look over protobuf bytes before protobuf-c unpacks them.
 *
 * protobuf-c recurses as deep and allocates as much as a file asks for: a few bytes of empty
 * messages become a hundred times as much memory. The scan walks the same bytes with the same
 * descriptors, allocates nothing, and refuses what is malformed, nested too deeply, or would take
 * much more memory than its own size.
 */
#ifndef MGPU_IMPORTER_ONNX_SCAN_H
#define MGPU_IMPORTER_ONNX_SCAN_H

#include <protobuf-c/protobuf-c.h>

/* Checks `size` bytes as a message of `type`: lengths stay inside, at most `depth` messages are
 * nested, no string holds a zero byte (C strings cannot keep it), no single message field occurs
 * twice, and unpacking takes at most 32 MiB + 16 * size. The error names the innermost node or
 * tensor, where it is known, and the byte. */
int mgpu_onnx_scan(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t size,
                   int depth);

#endif
