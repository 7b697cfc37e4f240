#include "runtime/data/rows.h"

#include "runtime/base/status.h"

#include <inttypes.h>
#include <math.h>

struct mgpu_rows mgpu_rows_of(void *data, enum mgpu_dtype type, int rank, const int64_t *dims,
                              int axis, int64_t rows)
{
    struct mgpu_rows out = {data, type, 1, rows, 1};
    for (int i = 0; i < rank; i++)
        if (i != axis)
            *(i < axis ? &out.outer : &out.inner) *= dims[i];
    return out;
}

/* Whether integers of type `from` may not fit `to`. */
static bool narrows(enum mgpu_dtype to, enum mgpu_dtype from)
{
    size_t to_size = mgpu_dtype_size(to), from_size = mgpu_dtype_size(from);
    if (from == MGPU_BOOL)
        return false;
    if (mgpu_is_signed(to) == mgpu_is_signed(from))
        return to_size < from_size;
    return mgpu_is_signed(from) || to_size <= from_size;
}

static int check_float(enum mgpu_dtype to, const void *from, enum mgpu_dtype type, int64_t i)
{
    double v = mgpu_get_double(from, type, i), bits = 8.0 * (double)mgpu_dtype_size(to);
    double high = ldexp(1, (int)bits - mgpu_is_signed(to));
    double low = mgpu_is_signed(to) ? -high : 0;
    if (v == floor(v) && v >= low && v < high)
        return 0;
    if (v == floor(v))
        return mgpu_fail(MGPU_EINVALID, "the value %.17g does not fit %s", v, mgpu_dtype_name(to));
    return mgpu_fail(MGPU_EINVALID, "the value %.9g is not a whole number", v);
}

static int check_int(enum mgpu_dtype to, const void *from, enum mgpu_dtype type, int64_t i)
{
    int64_t v = mgpu_get_int(from, type, i), back = 0;
    mgpu_set_int(&back, to, 0, v);
    back = mgpu_get_int(&back, to, 0);
    bool sign = v < 0 && mgpu_is_signed(to) != mgpu_is_signed(type); /* one end of 64 bits */
    if (back == v && !sign)
        return 0;
    if (mgpu_is_signed(type))
        return mgpu_fail(MGPU_EINVALID, "the value %" PRId64 " does not fit %s", v,
                         mgpu_dtype_name(to));
    return mgpu_fail(MGPU_EINVALID, "the value %" PRIu64 " does not fit %s", (uint64_t)v,
                     mgpu_dtype_name(to));
}

static int check_values(enum mgpu_dtype to, const void *from, enum mgpu_dtype type, int64_t count)
{
    if (mgpu_is_float(type)) {
        for (int64_t i = 0; i < count; i++)
            MGPU_TRY(check_float(to, from, type, i));
    } else if (narrows(to, type)) {
        for (int64_t i = 0; i < count; i++)
            MGPU_TRY(check_int(to, from, type, i));
    }
    return 0;
}

int mgpu_rows_copy(const struct mgpu_rows *to, int64_t to_row, const struct mgpu_rows *from,
                   int64_t from_row)
{
    size_t to_size = mgpu_dtype_size(to->type), from_size = mgpu_dtype_size(from->type);
    for (int64_t o = 0; o < to->outer; o++) {
        void *target = (char *)to->data + (size_t)((o * to->rows + to_row) * to->inner) * to_size;
        const void *source =
            (char *)from->data + (size_t)((o * from->rows + from_row) * from->inner) * from_size;
        if (to->type != from->type && mgpu_is_integer(to->type))
            MGPU_TRY(check_values(to->type, source, from->type, to->inner));
        mgpu_convert(target, to->type, source, from->type, to->inner);
    }
    return 0;
}
