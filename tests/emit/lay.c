#include "tests/emit/lay.h"

#include <string.h>

void lay_channels(const struct mgpu_value *v, void *to, const void *from, bool last)
{
    size_t size = mgpu_dtype_size(v->type), count = (size_t)mgpu_value_count(v);
    size_t C = v->block ? (size_t)v->block : 1, places = 1;
    for (int k = 2; k < v->rank && v->block; k++)
        places *= (size_t)v->dims[k].value;
    for (size_t i = 0; i < count; i++) {
        size_t n = i / (C * places), c = i / places % C, s = i % places;
        size_t together = (n * places + s) * C + c;
        memcpy((char *)to + (last ? together : i) * size,
               (const char *)from + (last ? i : together) * size, size);
    }
}
