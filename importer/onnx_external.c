#include "importer/onnx_external.h"

#include "runtime/base/memory.h"
#include "runtime/base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool mgpu_onnx_is_external(const Onnx__TensorProto *tensor)
{
    return tensor->data_location == ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
}

static int parse_number(uint64_t *out, const char *key, const char *text)
{
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || value > INT64_MAX)
        return mgpu_fail(MGPU_EINVALID, "external data: %s '%s' is no number of bytes", key, text);
    *out = value;
    return 0;
}

int mgpu_onnx_external_parse(struct mgpu_onnx_external *out, const Onnx__TensorProto *tensor)
{
    *out = (struct mgpu_onnx_external){0};
    for (size_t i = 0; i < tensor->n_external_data; i++) {
        const char *key = tensor->external_data[i]->key, *value = tensor->external_data[i]->value;
        if (!strcmp(key, "location")) {
            out->location = value;
        } else if (!strcmp(key, "offset")) {
            MGPU_TRY(parse_number(&out->offset, key, value));
        } else if (!strcmp(key, "length")) {
            MGPU_TRY(parse_number(&out->length, key, value));
            out->has_length = true;
        }
    }
    if (!out->location || !*out->location)
        return mgpu_fail(MGPU_EINVALID, "external data without a location");
    return 0;
}

/* Opens one step of the way; closes the folder it starts from. */
static int step(int folder, const char *name, int flags)
{
    int fd = openat(folder, name, flags | O_NOFOLLOW | O_CLOEXEC);
    int error = errno;
    close(folder);
    errno = error;
    return fd;
}

static int refuse(const char *location, const char *reason)
{
    return mgpu_fail(MGPU_EINVALID, "external data '%s': %s", location, reason);
}

static int refuse_errno(const char *location)
{
    if (errno == ELOOP || errno == ENOTDIR)
        return refuse(location, "links are not followed");
    return mgpu_fail(MGPU_EIO, "external data '%s': %s", location, strerror(errno));
}

/* Walks `path` (which it cuts into pieces) down from the open folder `fd`. */
static int walk(int fd, char *path)
{
    char *rest, *name = strtok_r(path, "/", &rest);
    while (name && fd >= 0) {
        char *next = strtok_r(NULL, "/", &rest);
        if (next || strcmp(name, "."))
            fd = step(fd, name, next ? O_PATH | O_DIRECTORY : O_RDONLY | O_NONBLOCK);
        name = next;
    }
    return fd;
}

static bool climbs(const char *location)
{
    for (const char *p = location; (p = strstr(p, "..")); p += 2)
        if ((p == location || p[-1] == '/') && (p[2] == '/' || !p[2]))
            return true;
    return false;
}

int mgpu_onnx_external_open(int *out, const char *folder, const char *location)
{
    if (*location == '/')
        return refuse(location, "absolute paths are refused; it must lie in the model's folder");
    if (climbs(location))
        return refuse(location, "'..' is refused; it must lie in the model's folder");
    int fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    char *path = mgpu_xstrdup(location);
    if (fd >= 0)
        fd = walk(fd, path);
    free(path);
    if (fd < 0)
        return refuse_errno(location);
    struct stat st;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return refuse(location, "is not a regular file");
    }
    *out = fd;
    return 0;
}

int mgpu_onnx_external_find(int *out, uint64_t *offset, const char *folder,
                            const Onnx__TensorProto *tensor, uint64_t bytes)
{
    struct mgpu_onnx_external e;
    MGPU_TRY(mgpu_onnx_external_parse(&e, tensor));
    if (e.has_length && e.length != bytes)
        return mgpu_fail(MGPU_EINVALID,
                         "external data '%s': length %" PRIu64 ", but its dims need %" PRIu64
                         " bytes",
                         e.location, e.length, bytes);
    MGPU_TRY(mgpu_onnx_external_open(out, folder, e.location));
    struct stat st;
    uint64_t size = fstat(*out, &st) < 0 ? 0 : (uint64_t)st.st_size;
    if (e.offset > size || bytes > size - e.offset) {
        close(*out);
        return mgpu_fail(MGPU_EINVALID,
                         "external data '%s': offset %" PRIu64 " and %" PRIu64
                         " bytes pass its end at %" PRIu64,
                         e.location, e.offset, bytes, size);
    }
    *offset = e.offset;
    return 0;
}
