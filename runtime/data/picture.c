#include "runtime/data/picture.h"

#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "runtime/data/picture_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* For one direction: output i is the sum of weight[start[i] + k] * input[first[i] + k]. */
struct filter {
    int *first, *count, *start;
    float *weight;
};

struct mgpu_picture_scratch {
    struct mgpu_picture_form form;
    struct filter across, down;
    uint8_t *space; /* a row as it is decoded */
    uint8_t *row;   /* the same, resized: 3 * width */
    float *sum;     /* 3 * width * height */
    int y, low;     /* the next source row; output rows before `low` are complete */
};

/* ---- Weights --------------------------------------------------------------------------------- */

/* Triangles as wide as an output pixel, or as an input pixel where that is wider. */
static void set_filter(struct filter *f, int from, int to)
{
    double scale = (double)from / to, radius = scale > 1 ? scale : 1;
    int at = 0;
    for (int i = 0; i < to; i++) {
        double center = (i + 0.5) * scale, sum = 0;
        int first = (int)(center - radius + 0.5), end = (int)(center + radius + 0.5);
        f->first[i] = first < 0 ? 0 : first;
        f->count[i] = (end > from ? from : end) - f->first[i];
        f->start[i] = at;
        for (int k = 0; k < f->count[i]; k++) {
            double far = fabs((f->first[i] + k + 0.5 - center) / radius);
            f->weight[at + k] = far < 1 ? (float)(1 - far) : 0;
            sum += f->weight[at + k];
        }
        for (int k = 0; k < f->count[i]; k++)
            f->weight[at + k] /= (float)sum;
        at += f->count[i];
    }
}

/* Every input pixel is in at most two outputs when a picture shrinks; an output takes up to three
 * inputs when it grows. */
static void filter_allocate(struct filter *f, int to)
{
    f->first = mgpu_xcalloc((size_t)to, sizeof *f->first);
    f->count = mgpu_xcalloc((size_t)to, sizeof *f->count);
    f->start = mgpu_xcalloc((size_t)to, sizeof *f->start);
    f->weight = mgpu_xcalloc(2 * (size_t)MGPU_SIDE_MOST + 4 * (size_t)to, sizeof *f->weight);
}

static void filter_free(struct filter *f)
{
    free(f->first);
    free(f->count);
    free(f->start);
    free(f->weight);
}

/* ---- Rows ------------------------------------------------------------------------------------ */

static int begin(void *context, int width, int height)
{
    struct mgpu_picture_scratch *s = context;
    if (width < 1 || height < 1 || width > MGPU_SIDE_MOST || height > MGPU_SIDE_MOST ||
        (int64_t)width * height > MGPU_PIXELS_MOST)
        return mgpu_fail(MGPU_EUNSUPPORTED, "a picture of %d x %d pixels", width, height);
    set_filter(&s->across, width, s->form.width);
    set_filter(&s->down, height, s->form.height);
    memset(s->sum, 0, sizeof *s->sum * 3 * (size_t)s->form.width * (size_t)s->form.height);
    s->y = s->low = 0;
    return 0;
}

static void resize_row(struct mgpu_picture_scratch *s, const uint8_t *rgb)
{
    const struct filter *f = &s->across;
    for (int x = 0; x < s->form.width; x++) {
        const uint8_t *from = rgb + 3 * (size_t)f->first[x];
        const float *weight = f->weight + f->start[x];
        float sum[3] = {0};
        for (int k = 0; k < f->count[x]; k++)
            for (int c = 0; c < 3; c++)
                sum[c] += weight[k] * from[3 * k + c];
        for (int c = 0; c < 3; c++)
            s->row[3 * x + c] = (uint8_t)(sum[c] + 0.5f);
    }
}

/* Adds the row to the output rows that it is in. */
static void add_row(void *context, const uint8_t *rgb)
{
    struct mgpu_picture_scratch *s = context;
    const struct filter *f = &s->down;
    int n = 3 * s->form.width;
    resize_row(s, rgb);
    for (int y = s->low; y < s->form.height && f->first[y] <= s->y; y++) {
        int k = s->y - f->first[y];
        float *sum = s->sum + (size_t)y * (size_t)n;
        if (k >= f->count[y]) {
            s->low = y == s->low ? y + 1 : s->low;
            continue;
        }
        float weight = f->weight[f->start[y] + k];
        for (int i = 0; i < n; i++)
            sum[i] += weight * s->row[i];
    }
    s->y++;
}

static void finish(uint8_t *to, const struct mgpu_picture_scratch *s)
{
    size_t pixels = (size_t)s->form.width * (size_t)s->form.height;
    for (size_t p = 0; p < pixels; p++) {
        int rgb[3];
        for (int c = 0; c < 3; c++)
            rgb[c] = (int)(s->sum[3 * p + (size_t)c] + 0.5f);
        if (s->form.channels == 1)
            to[p] = (uint8_t)((19595 * rgb[0] + 38470 * rgb[1] + 7471 * rgb[2] + 0x8000) >> 16);
        for (size_t c = 0; c < 3 && s->form.channels == 3; c++)
            to[s->form.planar ? c * pixels + p : 3 * p + c] = (uint8_t)rgb[c];
    }
}

/* ---- For all kinds --------------------------------------------------------------------------- */

int mgpu_picture_scratch_new(struct mgpu_picture_scratch **out,
                             const struct mgpu_picture_form *form)
{
    struct mgpu_picture_scratch *s = mgpu_xcalloc(1, sizeof *s);
    size_t pixels = (size_t)form->width * (size_t)form->height;
    void *sum;
    *out = NULL;
    s->form = *form;
    filter_allocate(&s->across, form->width);
    filter_allocate(&s->down, form->height);
    s->space = mgpu_xcalloc(MGPU_SIDE_MOST, 4);
    s->row = mgpu_xcalloc((size_t)form->width, 3);
    int rc = mgpu_alloc(&sum, 3 * sizeof(float) * (uint64_t)pixels, "a picture");
    s->sum = sum;
    if (rc < 0)
        mgpu_picture_scratch_free(s);
    else
        *out = s;
    return rc;
}

void mgpu_picture_scratch_free(struct mgpu_picture_scratch *s)
{
    if (!s)
        return;
    filter_free(&s->across);
    filter_free(&s->down);
    free(s->space);
    free(s->row);
    mgpu_free(s->sum);
    free(s);
}

static int read_picture(struct mgpu_picture_size *out, const uint8_t *bytes, uint64_t size,
                        const struct mgpu_picture_sink *sink)
{
    if (mgpu_is_jpeg(bytes, size))
        return mgpu_jpeg_read(out, bytes, size, sink);
    if (mgpu_is_png(bytes, size))
        return mgpu_png_read(out, bytes, size, sink);
    return mgpu_fail(MGPU_EUNSUPPORTED, "neither JPEG nor PNG");
}

int mgpu_picture_size(struct mgpu_picture_size *out, const uint8_t *bytes, uint64_t size)
{
    return read_picture(out, bytes, size, NULL);
}

int mgpu_picture_decode(uint8_t *to, struct mgpu_picture_scratch *s, const uint8_t *bytes,
                        uint64_t size)
{
    struct mgpu_picture_size picture;
    struct mgpu_picture_sink sink = {
        .begin = begin, .row = add_row, .space = s->space, .context = s};
    MGPU_TRY(read_picture(&picture, bytes, size, &sink));
    finish(to, s);
    return 0;
}
