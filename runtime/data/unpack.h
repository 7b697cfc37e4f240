/* Unpacks deflate streams (zip members, gzip) that lie in memory, a piece at a time. */
#ifndef MGPU_DATA_UNPACK_H
#define MGPU_DATA_UNPACK_H

#include <stdint.h>
#include <zlib.h>

/* Deflate cannot shrink further than this (zlib's technical notes: 1032 to 1), so a file that
 * claims more is lying. */
enum { MGPU_DEFLATE_MOST = 1032 };

enum mgpu_unpack_format { MGPU_UNPACK_RAW, MGPU_UNPACK_GZIP };

struct mgpu_unpack {
    z_stream stream;
    const uint8_t *next;
    uint64_t left; /* packed bytes not yet handed to zlib */
    int ended;
};

int mgpu_unpack_begin(struct mgpu_unpack *out, enum mgpu_unpack_format format,
                      const uint8_t *packed, uint64_t size);

/* Up to `count` bytes into `to`; *got is less only at the end of the stream, whose check sum (gzip)
 * has then been verified. MGPU_EINVALID when the stream is damaged or cut short. */
int mgpu_unpack_read(struct mgpu_unpack *unpack, void *to, uint64_t count, uint64_t *got);

void mgpu_unpack_end(struct mgpu_unpack *unpack);

#endif
