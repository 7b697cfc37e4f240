#include "tests/support/write_npy.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const char *code_of(enum mgpu_dtype type)
{
    static const struct {
        enum mgpu_dtype type;
        const char *code;
    } codes[] = {{MGPU_BOOL, "|b1"},   {MGPU_INT8, "|i1"},    {MGPU_UINT8, "|u1"},
                 {MGPU_INT16, "<i2"},  {MGPU_UINT16, "<u2"},  {MGPU_INT32, "<i4"},
                 {MGPU_UINT32, "<u4"}, {MGPU_INT64, "<i8"},   {MGPU_UINT64, "<u8"},
                 {MGPU_FLOAT, "<f4"},  {MGPU_FLOAT16, "<f2"}, {MGPU_DOUBLE, "<f8"}};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].type == type)
            return codes[i].code;
    abort();
}

void write_npy_data(const char *path, enum mgpu_dtype type, int rank, const int64_t *dims,
                    const void *data)
{
    enum { HEADER = 256, PREFIX = 10 };
    char text[HEADER];
    size_t count = 1;
    int n = snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (",
                     code_of(type));
    for (int i = 0; i < rank; i++) {
        n += snprintf(text + n, sizeof text - (size_t)n, "%" PRId64 ",", dims[i]);
        count *= (size_t)dims[i];
    }
    n += snprintf(text + n, sizeof text - (size_t)n, "), }");
    while ((n + PREFIX + 1) % 64)
        text[n++] = ' ';
    text[n++] = '\n';
    const unsigned char prefix[PREFIX] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)n, 0};
    FILE *file = fopen(path, "wb");
    size_t size = mgpu_dtype_size(type);
    if (!file || fwrite(prefix, 1, PREFIX, file) != PREFIX ||
        fwrite(text, 1, (size_t)n, file) != (size_t)n || fwrite(data, size, count, file) != count ||
        fclose(file) != 0)
        abort();
}

void write_npy(const char *path, const struct mgpu_array *array)
{
    write_npy_data(path, array->type, array->rank, array->dims, array->data);
}
