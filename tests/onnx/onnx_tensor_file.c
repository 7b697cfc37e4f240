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
