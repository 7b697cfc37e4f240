/* JPEG and PNG pictures, told by their content, as RGB of a wanted size.
 *
 * A picture is decoded row by row and resized on the way, so that memory depends on the wanted size
 * only (an interlaced PNG is held whole while it is decoded). Grey, palette, 16-bit and CMYK
 * pictures become 8-bit RGB; alpha is dropped. Resizing is bilinear, over as many pixels as fall
 * into one when a picture shrinks: Pillow's BILINEAR, rows first, each direction rounded to 8 bits.
 */
#ifndef MGPU_DATA_PICTURE_H
#define MGPU_DATA_PICTURE_H

#include <stdbool.h>
#include <stdint.h>

struct mgpu_picture_size {
    int width, height;
};

/* What a picture becomes: channels 3, or 1 for its luminance (ITU-R 601); planes one after the
 * other
 * (`planar`), or the channels of each pixel together. */
struct mgpu_picture_form {
    int width, height, channels;
    bool planar;
};

/* Memory for decoding into one form: one a thread at a time. */
struct mgpu_picture_scratch;
int mgpu_picture_scratch_new(struct mgpu_picture_scratch **out,
                             const struct mgpu_picture_form *form);
void mgpu_picture_scratch_free(struct mgpu_picture_scratch *scratch); /* NULL is fine */

/* The size, from the head of the file's `size` bytes. */
int mgpu_picture_size(struct mgpu_picture_size *out, const uint8_t *bytes, uint64_t size);

/* The picture in the scratch's form into `to`. Refused: other kinds of file, damage, pictures of
 * more than 65535 pixels a side or 2^28 in all. */
int mgpu_picture_decode(uint8_t *to, struct mgpu_picture_scratch *scratch, const uint8_t *bytes,
                        uint64_t size);

#endif
