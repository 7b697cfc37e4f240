/* Between the decoders (picture_jpeg.c, picture_png.c) and who resizes (picture.c). */
#ifndef MGPU_DATA_PICTURE_PRIVATE_H
#define MGPU_DATA_PICTURE_PRIVATE_H

#include "runtime/data/picture.h"

enum { MGPU_SIDE_MOST = 65535, MGPU_PIXELS_MOST = 1 << 28 };

/* Takes a picture: its size, then its rows of RGB from the top. */
struct mgpu_picture_sink {
    int (*begin)(void *context, int width, int height);
    void (*row)(void *context, const uint8_t *rgb);
    uint8_t *space; /* for one row of up to 4 bytes a pixel */
    void *context;
};

bool mgpu_is_jpeg(const uint8_t *bytes, uint64_t size);
bool mgpu_is_png(const uint8_t *bytes, uint64_t size);

/* `sink` NULL: only the size. */
int mgpu_jpeg_read(struct mgpu_picture_size *out, const uint8_t *bytes, uint64_t size,
                   const struct mgpu_picture_sink *sink);
int mgpu_png_read(struct mgpu_picture_size *out, const uint8_t *bytes, uint64_t size,
                  const struct mgpu_picture_sink *sink);

#endif
