#include "tests/onnx/onnx_tensor_file.h"

#include "importer/onnx_scan.h"
#include "importer/onnx_tensor.h"
#include "runtime/base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int read_bytes(const char *path, uint8_t **out, size_t *size)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) < 0) {
        if (f)
            fclose(f);
        return mgpu_fail(MGPU_EIO, "%s cannot be read", path);
    }
    *size = (size_t)ftell(f);
    rewind(f);
    *out = mgpu_xcalloc(*size + 1, 1);
    bool whole = fread(*out, 1, *size, f) == *size;
    fclose(f);
    return whole ? 0 : mgpu_fail(MGPU_EIO, "%s cannot be read", path);
}

static int decode(struct mgpu_array *out, const char *path, const uint8_t *bytes, size_t size)
{
    MGPU_TRY(mgpu_prefix(
        mgpu_onnx_scan(&onnx__tensor_proto__descriptor, bytes, size, MGPU_ONNX_DEPTH), "%s", path));
    Onnx__TensorProto *t = onnx__tensor_proto__unpack(NULL, size, bytes);
    if (!t)
        return mgpu_fail(MGPU_EINVALID, "%s is damaged", path);
    int rc = mgpu_onnx_tensor_decode(t, ".", t->name ? t->name : "", out);
    onnx__tensor_proto__free_unpacked(t, NULL);
    return rc;
}

int mgpu_onnx_tensor_file(struct mgpu_array *out, const char *path, enum mgpu_dtype type)
{
    uint8_t *bytes = NULL;
    size_t size = 0;
    *out = (struct mgpu_array){0};
    int rc = read_bytes(path, &bytes, &size);
    if (rc >= 0)
        rc = decode(out, path, bytes, size);
    free(bytes);
    if (rc >= 0 && type == MGPU_BFLOAT16 && out->type == MGPU_UINT16)
        out->type = MGPU_BFLOAT16; /* onnx 1.12 wrote the bits under this type */
    return rc;
}

/* ---- Sequences and optionals ----------------------------------------------------------------- */

struct wire {
    const uint8_t *at, *end;
};

static bool varint(struct wire *w, uint64_t *out)
{
    *out = 0;
    for (int shift = 0; w->at < w->end && shift < 64; shift += 7) {
        *out |= (uint64_t)(*w->at & 127) << shift;
        if (!(*w->at++ & 128))
            return true;
    }
    return false;
}

/* The next field that is a message, and its number; false at the end, or where it is damaged. */
static bool next_message(struct wire *w, int *number, struct wire *message)
{
    uint64_t tag, value;
    while (varint(w, &tag) && varint(w, &value)) {
        if ((tag & 7) == 0)
            continue;
        if ((tag & 7) != 2 || value > (uint64_t)(w->end - w->at))
            return false;
        *number = (int)(tag >> 3);
        *message = (struct wire){w->at, w->at + value};
        w->at += value;
        return true;
    }
    return false;
}

enum { TENSORS = 3, SEQUENCE = 5 }; /* fields of both messages */

static int read_list(struct mgpu_lower_list *out, const char *path, struct wire w, bool *tensor)
{
    struct wire message;
    int number;
    struct mgpu_array *item = NULL;
    while (next_message(&w, &number, &message)) {
        if (number == SEQUENCE) {
            *tensor = false;
            return read_list(out, path, message, tensor);
        }
        if (number != TENSORS)
            continue;
        item = mgpu_xrealloc(item, (size_t)out->count + 1, sizeof *item);
        out->item = item;
        MGPU_TRY(decode(&item[out->count], path, message.at, (size_t)(message.end - message.at)));
        out->count++;
    }
    return 0;
}

int mgpu_onnx_list_file(struct mgpu_lower_list *out, const char *path, bool optional, bool *tensor)
{
    uint8_t *bytes = NULL;
    size_t size = 0;
    *out = (struct mgpu_lower_list){0};
    *tensor = optional;
    int rc = read_bytes(path, &bytes, &size);
    if (rc >= 0)
        rc = read_list(out, path, (struct wire){bytes, bytes + size}, tensor);
    out->absent = optional && *tensor && !out->count;
    free(bytes);
    return rc;
}
