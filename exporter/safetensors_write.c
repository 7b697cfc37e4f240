#include "exporter/safetensors.h"

#include "exporter/atomic_file.h"
#include "runtime/base/memory.h"
#include "runtime/base/status.h"

#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 8 };

static const char *type_name(enum mgpu_dtype type)
{
    static const char *const names[] = {
        [MGPU_FLOAT] = "F32",  [MGPU_DOUBLE] = "F64",    [MGPU_FLOAT16] = "F16",
        [MGPU_INT8] = "I8",    [MGPU_BFLOAT16] = "BF16", [MGPU_INT16] = "I16",
        [MGPU_INT32] = "I32",  [MGPU_INT64] = "I64",     [MGPU_UINT8] = "U8",
        [MGPU_UINT16] = "U16", [MGPU_UINT32] = "U32",    [MGPU_UINT64] = "U64",
        [MGPU_BOOL] = "BOOL",
    };
    return names[type];
}

static uint64_t bytes_of(const struct mgpu_array *a)
{
    return (uint64_t)mgpu_array_count(a) * mgpu_dtype_size(a->type);
}

/* Wide elements first, so that all are aligned; then by name. */
static int by_size_and_name(const void *a, const void *b)
{
    const struct mgpu_named_array *const *x = a, *const *y = b;
    size_t n = mgpu_dtype_size((*x)->array.type), m = mgpu_dtype_size((*y)->array.type);
    return n != m ? (n < m) - (n > m) : strcmp((*x)->name, (*y)->name);
}

static struct json_object *numbers(const int64_t *values, int count)
{
    struct json_object *list = json_object_new_array();
    for (int i = 0; i < count; i++)
        json_object_array_add(list, json_object_new_int64(values[i]));
    return list;
}

static struct json_object *entry_of(const struct mgpu_array *a, uint64_t at)
{
    int64_t range[2] = {(int64_t)at, (int64_t)(at + bytes_of(a))};
    struct json_object *o = json_object_new_object();
    json_object_object_add(o, "dtype", json_object_new_string(type_name(a->type)));
    json_object_object_add(o, "shape", numbers(a->dims, a->rank));
    json_object_object_add(o, "data_offsets", numbers(range, 2));
    return o;
}

static int make_header(struct json_object *header, const struct mgpu_named_array *const *order,
                       int count)
{
    uint64_t at = 0;
    for (int i = 0; i < count; i++) {
        if (json_object_object_get_ex(header, order[i]->name, NULL))
            return mgpu_fail(MGPU_EINVALID, "two arrays are called '%s'", order[i]->name);
        json_object_object_add(header, order[i]->name, entry_of(&order[i]->array, at));
        at += bytes_of(&order[i]->array);
    }
    return 0;
}

/* The length, the header padded with spaces, the tensors. */
static int write_all(struct mgpu_atomic_file *f, struct json_object *header,
                     const struct mgpu_named_array *const *order, int count)
{
    const char *text = json_object_to_json_string_ext(header, JSON_C_TO_STRING_PLAIN |
                                                                  JSON_C_TO_STRING_NOSLASHESCAPE);
    size_t n = strlen(text), padded = (n + ALIGN - 1) / ALIGN * ALIGN;
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)((uint64_t)padded >> 8 * i);
    MGPU_TRY(mgpu_atomic_write(f, length, sizeof length));
    MGPU_TRY(mgpu_atomic_write(f, text, n));
    MGPU_TRY(mgpu_atomic_write(f, "        ", padded - n));
    for (int i = 0; i < count; i++)
        MGPU_TRY(mgpu_atomic_write(f, order[i]->array.data, bytes_of(&order[i]->array)));
    return 0;
}

int mgpu_safetensors_write(const char *path, const struct mgpu_named_array *arrays, int count)
{
    const struct mgpu_named_array **order = mgpu_xcalloc((size_t)count + 1, sizeof *order);
    struct json_object *header = json_object_new_object();
    struct mgpu_atomic_file f;
    for (int i = 0; i < count; i++)
        order[i] = &arrays[i];
    qsort(order, (size_t)count, sizeof *order, by_size_and_name);
    int rc = mgpu_prefix(make_header(header, order, count), "%s", path);
    if (rc == 0)
        rc = mgpu_atomic_open(&f, path);
    if (rc == 0) {
        rc = write_all(&f, header, order, count);
        rc = rc < 0 ? mgpu_atomic_abort(&f, rc) : mgpu_atomic_commit(&f);
    }
    json_object_put(header);
    free(order);
    return rc;
}
