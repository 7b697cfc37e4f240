/* Plain kernel of reorder, between any two layouts. */
#include "runtime/ref/ref.h"

#include <string.h>

/* How [N,C,S...] lies. */
struct layout {
    int64_t block, channels, places; /* of a sample: channels, elements of one */
};

static struct layout layout_of(const struct mgpu_tensor *t)
{
    struct layout l = {t->block, t->dims[1], 1};
    for (int i = 2; i < t->rank; i++)
        l.places *= t->dims[i];
    return l;
}

static int64_t at(const struct layout *l, int64_t n, int64_t c, int64_t s)
{
    if (!l->block)
        return (n * l->channels + c) * l->places + s;
    int64_t blocks = (l->channels + l->block - 1) / l->block;
    return ((n * blocks + c / l->block) * l->places + s) * l->block + c % l->block;
}

static int reorder(const struct mgpu_launch *l)
{
    struct layout from = layout_of(&l->in[0]), to = layout_of(&l->out[0]);
    size_t size = mgpu_dtype_size(l->in[0].type);
    int64_t padded = to.block ? (to.channels + to.block - 1) / to.block * to.block : to.channels;
    for (int64_t n = 0; n < l->in[0].dims[0]; n++)
        for (int64_t c = 0; c < padded; c++)
            for (int64_t s = 0; s < to.places; s++) {
                char *y = (char *)l->out[0].data + (size_t)at(&to, n, c, s) * size;
                if (c < to.channels)
                    memcpy(y, (char *)l->in[0].data + (size_t)at(&from, n, c, s) * size, size);
                else
                    memset(y, 0, size);
            }
    return 0;
}

const struct mgpu_kernel mgpu_ref_reorder[] = {
    {.op = "reorder", .name = "ref", .run = reorder},
    {.op = NULL},
};
