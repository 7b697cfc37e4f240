/* PNG, with libpng. */
#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "runtime/data/picture_private.h"

#include <png.h>
#include <stdio.h>
#include <string.h>

bool mgpu_is_png(const uint8_t *bytes, uint64_t size)
{
    return size >= 8 && !png_sig_cmp(bytes, 0, 8);
}

struct png {
    png_structp reader;
    png_infop info;
    const uint8_t *at;
    uint64_t left;
    void *whole; /* of an interlaced picture */
    char text[256];
};

static void stop(png_structp reader, png_const_charp text)
{
    struct png *p = png_get_error_ptr(reader);
    snprintf(p->text, sizeof p->text, "%s", text);
    png_longjmp(reader, 1);
}

static void ignore(png_structp reader, png_const_charp text)
{
    (void)reader;
    (void)text;
}

static void take_bytes(png_structp reader, png_bytep to, size_t size)
{
    struct png *p = png_get_io_ptr(reader);
    if (size > p->left)
        png_error(reader, "it is cut off");
    memcpy(to, p->at, size);
    p->at += size;
    p->left -= size;
}

/* Whatever it holds becomes 8-bit RGB. */
static void ask_for_rgb(struct png *p)
{
    png_set_expand(p->reader);
    png_set_strip_16(p->reader);
    png_set_strip_alpha(p->reader);
    png_set_gray_to_rgb(p->reader);
}

static int read_interlaced(struct png *p, int passes, int width, int height,
                           const struct mgpu_picture_sink *sink)
{
    size_t stride = 3 * (size_t)width;
    MGPU_TRY(mgpu_alloc(&p->whole, (uint64_t)stride * (uint64_t)height, "an interlaced picture"));
    for (int k = 0; k < passes; k++)
        for (int y = 0; y < height; y++)
            png_read_row(p->reader, (uint8_t *)p->whole + (size_t)y * stride, NULL);
    for (int y = 0; y < height; y++)
        sink->row(sink->context, (uint8_t *)p->whole + (size_t)y * stride);
    return 0;
}

static int read_rows(struct png *p, const struct mgpu_picture_size *size,
                     const struct mgpu_picture_sink *sink)
{
    int passes = png_set_interlace_handling(p->reader);
    ask_for_rgb(p);
    png_read_update_info(p->reader, p->info);
    MGPU_TRY(sink->begin(sink->context, size->width, size->height));
    if (passes > 1)
        MGPU_TRY(read_interlaced(p, passes, size->width, size->height, sink));
    for (int y = 0; y < size->height && passes == 1; y++) {
        png_read_row(p->reader, sink->space, NULL);
        sink->row(sink->context, sink->space);
    }
    png_read_end(p->reader, NULL);
    return 0;
}

static int read_all(struct png *p, struct mgpu_picture_size *out,
                    const struct mgpu_picture_sink *sink)
{
    if (setjmp(png_jmpbuf(p->reader)))
        return mgpu_fail(MGPU_EINVALID, "a damaged PNG: %s", p->text);
    png_set_read_fn(p->reader, p, take_bytes);
    png_set_user_limits(p->reader, MGPU_SIDE_MOST, MGPU_SIDE_MOST);
    png_read_info(p->reader, p->info);
    *out = (struct mgpu_picture_size){(int)png_get_image_width(p->reader, p->info),
                                      (int)png_get_image_height(p->reader, p->info)};
    return sink ? read_rows(p, out, sink) : 0;
}

int mgpu_png_read(struct mgpu_picture_size *out, const uint8_t *bytes, uint64_t size,
                  const struct mgpu_picture_sink *sink)
{
    struct png p = {.at = bytes, .left = size};
    p.reader = png_create_read_struct(PNG_LIBPNG_VER_STRING, &p, stop, ignore);
    p.info = p.reader ? png_create_info_struct(p.reader) : NULL;
    int rc = p.info ? read_all(&p, out, sink) : mgpu_fail(MGPU_ENOMEM, "no memory for a PNG");
    png_destroy_read_struct(&p.reader, &p.info, NULL);
    mgpu_free(p.whole);
    return rc;
}
