#include "importer/onnx_tensor.h"

#include "importer/onnx_external.h"
#include "runtime/base/memory.h"
#include "runtime/base/status.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "raw_data is copied as it is");

enum field { NO_FIELD, FLOATS, INT32S, STRINGS, INT64S, DOUBLES, UINT64S, FIELDS };

static const char *const field_names[FIELDS] = {
    [FLOATS] = "float_data", [INT32S] = "int32_data",   [STRINGS] = "string_data",
    [INT64S] = "int64_data", [DOUBLES] = "double_data", [UINT64S] = "uint64_data",
};

/* ONNX's element types (onnx.proto, TensorProto.DataType): bits of one element, the typed field,
 * and how many elements one entry of that field holds (numerator and denominator). */
static const struct element {
    const char *name;
    int bits;
    enum field field;
    int entries, per;
} types[] = {
    [ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT] = {"float", 32, FLOATS, 1, 1},
    [ONNX__TENSOR_PROTO__DATA_TYPE__UINT8] = {"uint8", 8, INT32S, 1, 1},
    [ONNX__TENSOR_PROTO__DATA_TYPE__INT8] = {"int8", 8, INT32S, 1, 1},
    [ONNX__TENSOR_PROTO__DATA_TYPE__UINT16] = {"uint16", 16, INT32S, 1, 1},
    [ONNX__TENSOR_PROTO__DATA_TYPE__INT16] = {"int16", 16, INT32S, 1, 1},
    [ONNX__TENSOR_PROTO__DATA_TYPE__INT32] = {"int32", 32, INT32S, 1, 1},
    [ONNX__TENSOR_PROTO__DATA_TYPE__INT64] = {"int64", 64, INT64S, 1, 1},
    [ONNX__TENSOR_PROTO__DATA_TYPE__STRING] = {"string", 0, STRINGS, 1, 1},
    [ONNX__TENSOR_PROTO__DATA_TYPE__BOOL] = {"bool", 8, INT32S, 1, 1},
    [ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT16] = {"float16", 16, INT32S, 1, 1},
    [ONNX__TENSOR_PROTO__DATA_TYPE__DOUBLE] = {"double", 64, DOUBLES, 1, 1},
    [ONNX__TENSOR_PROTO__DATA_TYPE__UINT32] = {"uint32", 32, UINT64S, 1, 1},
    [ONNX__TENSOR_PROTO__DATA_TYPE__UINT64] = {"uint64", 64, UINT64S, 1, 1},
    [ONNX__TENSOR_PROTO__DATA_TYPE__COMPLEX64] = {"complex64", 64, FLOATS, 2, 1},
    [ONNX__TENSOR_PROTO__DATA_TYPE__COMPLEX128] = {"complex128", 128, DOUBLES, 2, 1},
    [ONNX__TENSOR_PROTO__DATA_TYPE__BFLOAT16] = {"bfloat16", 16, INT32S, 1, 1},
    [ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT8E4M3FN] = {"float8e4m3fn", 8, INT32S, 1, 1},
    [ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT8E4M3FNUZ] = {"float8e4m3fnuz", 8, INT32S, 1, 1},
    [ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT8E5M2] = {"float8e5m2", 8, INT32S, 1, 1},
    [ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT8E5M2FNUZ] = {"float8e5m2fnuz", 8, INT32S, 1, 1},
    [ONNX__TENSOR_PROTO__DATA_TYPE__UINT4] = {"uint4", 4, INT32S, 1, 2},
    [ONNX__TENSOR_PROTO__DATA_TYPE__INT4] = {"int4", 4, INT32S, 1, 2},
    [ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT4E2M1] = {"float4e2m1", 4, INT32S, 1, 2},
    [ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT8E8M0] = {"float8e8m0", 8, INT32S, 1, 1},
    [ONNX__TENSOR_PROTO__DATA_TYPE__UINT2] = {"uint2", 2, INT32S, 1, 4},
    [ONNX__TENSOR_PROTO__DATA_TYPE__INT2] = {"int2", 2, INT32S, 1, 4},
};

enum { TYPES = sizeof types / sizeof *types, BITS_MAX = 128 };

/* NULL with an error for a number that ONNX does not have. */
static const struct element *find_type(const Onnx__TensorProto *t)
{
    if (t->data_type > 0 && t->data_type < TYPES && types[t->data_type].name)
        return &types[t->data_type];
    mgpu_fail(MGPU_EINVALID, "unknown data_type %d", t->data_type);
    return NULL;
}

static int count_elements(int64_t *out, const Onnx__TensorProto *t)
{
    if (t->n_dims > MGPU_MAX_RANK)
        return mgpu_fail(MGPU_EUNSUPPORTED, "rank %zu is more than %d", t->n_dims, MGPU_MAX_RANK);
    MGPU_TRY(mgpu_count(out, (enum mgpu_dtype)t->data_type, (int)t->n_dims, t->dims));
    if (*out > INT64_MAX / BITS_MAX)
        return mgpu_fail(MGPU_EINVALID, "dims have too large a product");
    return 0;
}

static size_t entries_of(const Onnx__TensorProto *t, enum field field)
{
    switch (field) {
    case FLOATS:
        return t->n_float_data;
    case INT32S:
        return t->n_int32_data;
    case STRINGS:
        return t->n_string_data;
    case INT64S:
        return t->n_int64_data;
    case DOUBLES:
        return t->n_double_data;
    case UINT64S:
        return t->n_uint64_data;
    default:
        return 0;
    }
}

static int refuse_size(const Onnx__TensorProto *t, uint64_t need, const char *unit,
                       const char *field, uint64_t has)
{
    char shape[MGPU_SHAPE_TEXT];
    return mgpu_fail(MGPU_EINVALID, "%s with dims %s needs %" PRIu64 " %s, but %s has %" PRIu64,
                     types[t->data_type].name, mgpu_shape_text(shape, (int)t->n_dims, t->dims),
                     need, unit, field, has);
}

/* The data is in one field, the right one, and all of it is there. */
static int check_fields(const Onnx__TensorProto *t, const struct element *type, int64_t count)
{
    uint64_t n = (uint64_t)count, entries = (n * type->entries + type->per - 1) / type->per;
    bool raw = t->has_raw_data && t->raw_data.len > 0;
    for (enum field f = NO_FIELD + 1; f < FIELDS; f++)
        if (entries_of(t, f) && (raw || f != type->field))
            return mgpu_fail(MGPU_EINVALID, "%s data cannot be in %s%s", type->name, field_names[f],
                             raw ? " and in raw_data" : "");
    if (raw && !type->bits)
        return mgpu_fail(MGPU_EINVALID, "%s data cannot be in raw_data", type->name);
    if (raw || (t->has_raw_data && !entries_of(t, type->field))) {
        uint64_t bytes = (n * type->bits + 7) / 8;
        return t->raw_data.len == bytes
                   ? 0
                   : refuse_size(t, bytes, "bytes", "raw_data", t->raw_data.len);
    }
    size_t has = entries_of(t, type->field);
    return has == entries ? 0 : refuse_size(t, entries, "entries", field_names[type->field], has);
}

/* Opens the external data of `count` elements; *fd is to be closed. */
static int find_external(int *fd, uint64_t *offset, const Onnx__TensorProto *t,
                         const struct element *type, int64_t count, const char *folder)
{
    if (!type->bits)
        return mgpu_fail(MGPU_EINVALID, "%s data cannot be external", type->name);
    for (enum field f = NO_FIELD + 1; f < FIELDS; f++)
        if (entries_of(t, f) || t->raw_data.len)
            return mgpu_fail(MGPU_EINVALID, "data in the file and external data");
    uint64_t bytes = ((uint64_t)count * type->bits + 7) / 8;
    return mgpu_onnx_external_find(fd, offset, folder, t, bytes);
}

int mgpu_onnx_tensor_check(const Onnx__TensorProto *t, const char *folder)
{
    const struct element *type = find_type(t);
    int64_t count;
    if (!type)
        return MGPU_EINVALID;
    MGPU_TRY(count_elements(&count, t));
    if (t->segment)
        return mgpu_fail(MGPU_EUNSUPPORTED, "tensors in segments are not supported");
    if (!mgpu_onnx_is_external(t))
        return check_fields(t, type, count);
    int fd;
    uint64_t offset;
    MGPU_TRY(find_external(&fd, &offset, t, type, count, folder));
    close(fd);
    return 0;
}

/* Entries of int32_data, which hold narrower values; one that does not fit is an error. */
static int decode_int32(struct mgpu_array *out, const Onnx__TensorProto *t)
{
    bool bits = out->type == MGPU_FLOAT16 || out->type == MGPU_BFLOAT16; /* patterns, not values */
    enum mgpu_dtype type = bits ? MGPU_UINT16 : out->type;
    for (size_t i = 0; i < t->n_int32_data; i++) {
        mgpu_set_int(out->data, type, (int64_t)i, t->int32_data[i]);
        if (mgpu_get_int(out->data, type, (int64_t)i) != t->int32_data[i])
            return mgpu_fail(MGPU_EINVALID, "int32_data holds %d, which is no %s", t->int32_data[i],
                             mgpu_dtype_name(out->type));
    }
    return 0;
}

static int decode_uint64(struct mgpu_array *out, const Onnx__TensorProto *t)
{
    for (size_t i = 0; i < t->n_uint64_data; i++) {
        if (out->type == MGPU_UINT32 && t->uint64_data[i] > UINT32_MAX)
            return mgpu_fail(MGPU_EINVALID, "uint64_data holds %" PRIu64 ", which is no uint32",
                             t->uint64_data[i]);
        mgpu_set_int(out->data, out->type, (int64_t)i, (int64_t)t->uint64_data[i]);
    }
    return 0;
}

static int read_external(struct mgpu_array *out, const Onnx__TensorProto *t, const char *folder)
{
    int fd;
    uint64_t offset;
    int64_t count = mgpu_array_count(out);
    MGPU_TRY(find_external(&fd, &offset, t, &types[t->data_type], count, folder));
    uint64_t size = (uint64_t)count * mgpu_dtype_size(out->type), done = 0;
    while (done < size) {
        ssize_t n = pread(fd, (char *)out->data + done, size - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        done += (uint64_t)n;
    }
    int error = errno;
    close(fd);
    return done == size
               ? 0
               : mgpu_fail(MGPU_EIO, "external data: read %" PRIu64 " of %" PRIu64 " bytes: %s",
                           done, size, strerror(error));
}

/* The elements, where the tensor itself holds them as an array does; else NULL. */
static const void *in_place(const Onnx__TensorProto *t)
{
    if (t->raw_data.len)
        return t->raw_data.data;
    if (t->n_float_data)
        return t->float_data;
    if (t->n_double_data)
        return t->double_data;
    if (t->n_int64_data)
        return t->int64_data;
    return t->data_type == ONNX__TENSOR_PROTO__DATA_TYPE__UINT64 ? t->uint64_data : NULL;
}

static int decode_data(struct mgpu_array *out, const Onnx__TensorProto *t, const char *folder)
{
    size_t count = (size_t)mgpu_array_count(out);
    const void *from = in_place(t);
    if (mgpu_onnx_is_external(t))
        return read_external(out, t, folder);
    if (t->n_int32_data)
        return decode_int32(out, t);
    if (!from)
        return decode_uint64(out, t);
    if (count)
        memcpy(out->data, from, count * mgpu_dtype_size(out->type));
    return 0;
}

/* Whether an array can hold it. */
static int check_held(const Onnx__TensorProto *t, const char *folder, const char *what)
{
    MGPU_TRY(mgpu_prefix(mgpu_onnx_tensor_check(t, folder), "%s", what));
    if (!mgpu_dtype_size((enum mgpu_dtype)t->data_type))
        return mgpu_fail(MGPU_EUNSUPPORTED, "%s: %s tensors are not supported", what,
                         types[t->data_type].name);
    return 0;
}

static int decode(const Onnx__TensorProto *t, const char *folder, const char *what,
                  struct mgpu_array *out)
{
    enum mgpu_dtype type = (enum mgpu_dtype)t->data_type;
    MGPU_TRY(mgpu_array_init(out, type, (int)t->n_dims, t->dims, what));
    int rc = mgpu_prefix(decode_data(out, t, folder), "%s", what);
    if (rc < 0)
        mgpu_array_free(out);
    return rc;
}

int mgpu_onnx_tensor_decode(const Onnx__TensorProto *t, const char *folder, const char *what,
                            struct mgpu_array *out)
{
    memset(out, 0, sizeof *out);
    MGPU_TRY(check_held(t, folder, what));
    return decode(t, folder, what, out);
}

/* ---- Without a copy -------------------------------------------------------------------------- */

enum { MAPPED_AT_LEAST = 1 << 16 };

/* Maps the external elements; *from stays NULL where they are few, or do not lie as the processor
 * wants them. */
static int map_external(const void **from, struct mgpu_onnx_held *held, const Onnx__TensorProto *t,
                        const char *folder, const struct mgpu_array *array)
{
    int fd;
    uint64_t offset, count = (uint64_t)mgpu_array_count(array);
    uint64_t size = count * mgpu_dtype_size(array->type);
    MGPU_TRY(find_external(&fd, &offset, t, &types[t->data_type], (int64_t)count, folder));
    uint64_t before = offset % (uint64_t)sysconf(_SC_PAGESIZE);
    void *at = MAP_FAILED;
    if (size >= MAPPED_AT_LEAST && offset % mgpu_dtype_size(array->type) == 0)
        at = mmap(NULL, before + size, PROT_READ, MAP_PRIVATE, fd, (off_t)(offset - before));
    close(fd);
    if (at == MAP_FAILED)
        return 0;
    held->mapped = at;
    held->mapped_size = before + size;
    *from = (char *)at + before;
    return 0;
}

int mgpu_onnx_tensor_view(const Onnx__TensorProto *t, const char *folder, const char *what,
                          struct mgpu_array *out, struct mgpu_onnx_held *held)
{
    const void *from = in_place(t);
    memset(out, 0, sizeof *out);
    memset(held, 0, sizeof *held);
    MGPU_TRY(check_held(t, folder, what));
    struct mgpu_array array = {.type = (enum mgpu_dtype)t->data_type, .rank = (int)t->n_dims};
    for (size_t i = 0; i < t->n_dims; i++)
        array.dims[i] = t->dims[i];
    if (mgpu_onnx_is_external(t))
        MGPU_TRY(mgpu_prefix(map_external(&from, held, t, folder, &array), "%s", what));
    if (from) {
        array.data = (void *)(uintptr_t)from;
    } else {
        MGPU_TRY(decode(t, folder, what, &array));
        held->copied = array.data;
    }
    *out = array;
    return 0;
}

void mgpu_onnx_held_free(struct mgpu_onnx_held *held)
{
    if (held->mapped)
        munmap(held->mapped, held->mapped_size);
    mgpu_free(held->copied);
    memset(held, 0, sizeof *held);
}

/* ---- The other way --------------------------------------------------------------------------- */

/* A new block of entries of `size` bytes for the elements of `array`. */
static int widen(void **block, size_t *n, const struct mgpu_array *array, enum mgpu_dtype entry)
{
    int64_t count = mgpu_array_count(array);
    bool bits = array->type == MGPU_FLOAT16 || array->type == MGPU_BFLOAT16;
    MGPU_TRY(mgpu_alloc(block, (uint64_t)count * mgpu_dtype_size(entry), "tensor"));
    mgpu_convert(*block, entry, array->data, bits ? MGPU_UINT16 : array->type, count);
    *n = (size_t)count;
    return 0;
}

int mgpu_onnx_tensor_encode(Onnx__TensorProto *t, const struct mgpu_array *array, void **block)
{
    size_t count = (size_t)mgpu_array_count(array);
    enum field field = types[t->data_type].field;
    *block = NULL;
    if (t->has_raw_data && !entries_of(t, field)) {
        t->raw_data.len = count * mgpu_dtype_size(array->type);
        t->raw_data.data = array->data;
        return 0;
    }
    switch (field) {
    case FLOATS:
        t->float_data = array->data;
        return 0;
    case DOUBLES:
        t->double_data = array->data;
        return 0;
    case INT64S:
        t->int64_data = array->data;
        return 0;
    case UINT64S:
        MGPU_TRY(widen(block, &t->n_uint64_data, array, MGPU_UINT64));
        t->uint64_data = *block;
        return 0;
    default:
        MGPU_TRY(widen(block, &t->n_int32_data, array, MGPU_INT32));
        t->int32_data = *block;
        return 0;
    }
}
