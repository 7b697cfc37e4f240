#include "runtime/base/array.h"

#include "runtime/base/memory.h"
#include "runtime/base/status.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

int mgpu_count(int64_t *out, enum mgpu_dtype type, int rank, const int64_t *dims)
{
    int64_t n = 1, most = (INT64_C(1) << 62) / (int64_t)(mgpu_dtype_size(type) | 1);
    bool empty = false;
    char text[MGPU_SHAPE_TEXT];
    for (int i = 0; i < rank; i++) {
        if (dims[i] < 0)
            return mgpu_fail(MGPU_EINVALID, "shape %s has a negative dimension",
                             mgpu_shape_text(text, rank, dims));
        if (dims[i] == 0)
            empty = true;
        else if (n > most / dims[i])
            return mgpu_fail(MGPU_EINVALID, "shape %s is too large",
                             mgpu_shape_text(text, rank, dims));
        else
            n *= dims[i];
    }
    *out = empty ? 0 : n;
    return 0;
}

int mgpu_array_init(struct mgpu_array *out, enum mgpu_dtype type, int rank, const int64_t *dims,
                    const char *what)
{
    memset(out, 0, sizeof *out);
    if (rank > MGPU_MAX_RANK)
        return mgpu_fail(MGPU_EUNSUPPORTED, "%s: rank %d is more than %d", what, rank,
                         MGPU_MAX_RANK);
    int64_t n;
    MGPU_TRY(mgpu_prefix(mgpu_count(&n, type, rank, dims), "%s", what));
    out->type = type;
    out->rank = rank;
    for (int i = 0; i < rank; i++)
        out->dims[i] = dims[i];
    return mgpu_alloc(&out->data, (uint64_t)n * mgpu_dtype_size(type), what);
}

void mgpu_array_free(struct mgpu_array *array)
{
    mgpu_free(array->data);
    memset(array, 0, sizeof *array);
}

int64_t mgpu_array_count(const struct mgpu_array *array)
{
    int64_t n = 1;
    for (int i = 0; i < array->rank; i++)
        n *= array->dims[i];
    return n;
}

char *mgpu_shape_text(char text[MGPU_SHAPE_TEXT], int rank, const int64_t *dims)
{
    int used = snprintf(text, MGPU_SHAPE_TEXT, "[");
    for (int i = 0; i < rank && used < MGPU_SHAPE_TEXT; i++)
        used += snprintf(text + used, (size_t)(MGPU_SHAPE_TEXT - used), "%s%" PRId64, i ? "," : "",
                         dims[i]);
    if (used < MGPU_SHAPE_TEXT)
        snprintf(text + used, (size_t)(MGPU_SHAPE_TEXT - used), "]");
    return text;
}
