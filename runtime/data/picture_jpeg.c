/* JPEG, with libjpeg-turbo. */
#include "runtime/base/status.h"
#include "runtime/data/picture_private.h"

#include <setjmp.h>
#include <stdio.h>
#include <jpeglib.h>

bool mgpu_is_jpeg(const uint8_t *bytes, uint64_t size)
{
    return size >= 3 && bytes[0] == 0xff && bytes[1] == 0xd8 && bytes[2] == 0xff;
}

/* Errors jump back; what the library would print becomes the error's text. */
struct jpeg {
    struct jpeg_decompress_struct info;
    struct jpeg_error_mgr errors;
    jmp_buf back;
    char text[JMSG_LENGTH_MAX];
};

static void stop(j_common_ptr info)
{
    struct jpeg *j = info->client_data;
    info->err->format_message(info, j->text);
    longjmp(j->back, 1);
}

/* A warning is damage: pixels were made up. */
static void take_message(j_common_ptr info, int level)
{
    if (level < 0)
        stop(info);
}

/* Inks, stored inverted (Adobe), to light. */
static void from_cmyk(uint8_t *row, int width)
{
    uint8_t *rgb = row;
    for (const uint8_t *cmyk = row, *end = row + 4 * (size_t)width; cmyk < end; cmyk += 4) {
        int black = cmyk[3];
        for (int i = 0; i < 3; i++)
            *rgb++ = (uint8_t)((cmyk[i] * black + 127) / 255);
    }
}

static int read_rows(struct jpeg *j, const struct mgpu_picture_sink *sink)
{
    bool cmyk = j->info.num_components == 4;
    j->info.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(&j->info);
    MGPU_TRY(sink->begin(sink->context, (int)j->info.output_width, (int)j->info.output_height));
    while (j->info.output_scanline < j->info.output_height) {
        JSAMPROW row = sink->space;
        jpeg_read_scanlines(&j->info, &row, 1);
        if (cmyk)
            from_cmyk(row, (int)j->info.output_width);
        sink->row(sink->context, row);
    }
    jpeg_finish_decompress(&j->info);
    return 0;
}

static int read_all(struct jpeg *j, struct mgpu_picture_size *out, const uint8_t *bytes,
                    uint64_t size, const struct mgpu_picture_sink *sink)
{
    if (setjmp(j->back))
        return mgpu_fail(MGPU_EINVALID, "a damaged JPEG: %s", j->text);
    jpeg_create_decompress(&j->info);
    jpeg_mem_src(&j->info, bytes, (unsigned long)size);
    jpeg_read_header(&j->info, TRUE);
    *out = (struct mgpu_picture_size){(int)j->info.image_width, (int)j->info.image_height};
    return sink ? read_rows(j, sink) : 0;
}

int mgpu_jpeg_read(struct mgpu_picture_size *out, const uint8_t *bytes, uint64_t size,
                   const struct mgpu_picture_sink *sink)
{
    struct jpeg j;
    j.info.err = jpeg_std_error(&j.errors);
    j.info.client_data = &j;
    j.errors.error_exit = stop;
    j.errors.emit_message = take_message;
    j.info.mem = NULL; /* nothing to destroy yet */
    int rc = read_all(&j, out, bytes, size, sink);
    jpeg_destroy_decompress(&j.info);
    return rc;
}
