#include "importer/onnx_file.h"

#include "importer/onnx_check.h"
#include "importer/onnx_keys.h"
#include "importer/onnx_scan.h"
#include "importer/onnx_tensor.h"
#include "runtime/base/memory.h"
#include "runtime/base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* protobuf's own limit. */
static const off_t SIZE_MOST = INT32_MAX;

static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return mgpu_xstrdup(".");
    char *folder = mgpu_xstrdup(path);
    folder[slash == path ? 1 : slash - path] = 0;
    return folder;
}

static int read_all(int fd, uint8_t *to, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = read(fd, to + done, size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return mgpu_fail(MGPU_EIO, "cannot be read: %s", strerror(errno));
        if (n == 0)
            return mgpu_fail(MGPU_EIO, "became shorter while it was read");
        done += (size_t)n;
    }
    return 0;
}

/* The bytes of an open file; mgpu_free them. */
static int load_bytes(uint8_t **out, size_t *size, int fd)
{
    struct stat st;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return mgpu_fail(MGPU_EINVALID, "is not a regular file");
    if (st.st_size > SIZE_MOST)
        return mgpu_fail(MGPU_EINVALID, "is larger than 2 GiB, the most that ONNX allows");
    *size = (size_t)st.st_size;
    MGPU_TRY(mgpu_alloc((void **)out, *size, "the file"));
    return read_all(fd, *out, *size);
}

/* What people give for a model and is none; NULL: it may be one. */
static const char *other_kind(const uint8_t *bytes, size_t size)
{
    static const struct {
        size_t at, size;
        const char *magic, *name;
    } kinds[] = {{0, 4, "\x89HDF", "an HDF5 file"},
                 {0, 4, "PK\3\4", "a zip archive (.keras, .npz, .pt)"},
                 {6, 3, "\0\0{", "safetensors"},
                 {0, 1, "{", "JSON"},
                 {0, 1, "\x80", "a pickled file"}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (size >= kinds[i].at + kinds[i].size &&
            !memcmp(bytes + kinds[i].at, kinds[i].magic, kinds[i].size))
            return kinds[i].name;
    return NULL;
}

/* free() frees what these give, so that protobuf-c's own functions do. */
static void *allocate(void *unused, size_t size)
{
    (void)unused;
    void *block = malloc(size);
    if (block)
        mgpu_large_pages(block, size);
    return block;
}

static void release(void *unused, void *block)
{
    (void)unused;
    free(block);
}

static int unpack(struct mgpu_onnx_file *file, const uint8_t *bytes, size_t size)
{
    ProtobufCAllocator allocator = {.alloc = allocate, .free = release};
    const char *other = other_kind(bytes, size);
    if (other)
        return mgpu_fail(MGPU_EINVALID, "%s, not an ONNX model", other);
    MGPU_TRY(mgpu_onnx_scan(&onnx__model_proto__descriptor, bytes, size, MGPU_ONNX_DEPTH));
    file->proto = onnx__model_proto__unpack(&allocator, size, bytes);
    return file->proto ? 0 : mgpu_fail(MGPU_EINVALID, "is damaged");
}

static int load(struct mgpu_onnx_file *file)
{
    uint8_t *bytes = NULL;
    size_t size = 0;
    int fd = open(file->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return mgpu_fail(MGPU_EIO, "cannot be opened: %s", strerror(errno));
    int rc = load_bytes(&bytes, &size, fd);
    close(fd);
    if (rc >= 0)
        rc = unpack(file, bytes, size);
    mgpu_free(bytes);
    return rc < 0 ? rc : mgpu_onnx_check(file->proto, file->folder);
}

int mgpu_onnx_read(struct mgpu_onnx_file **out, const char *path)
{
    struct mgpu_onnx_file *file = mgpu_xcalloc(1, sizeof *file);
    file->path = mgpu_xstrdup(path);
    file->folder = folder_of(path);
    int rc = mgpu_prefix(load(file), "%s", path);
    if (rc >= 0)
        file->keys = mgpu_onnx_keys_new(file->proto);
    else
        mgpu_onnx_free(file);
    *out = rc < 0 ? NULL : file;
    return rc;
}

void mgpu_onnx_free(struct mgpu_onnx_file *file)
{
    if (!file)
        return;
    mgpu_onnx_keys_free(file->keys);
    if (file->proto)
        onnx__model_proto__free_unpacked(file->proto, NULL);
    free(file->path);
    free(file->folder);
    free(file);
}

int64_t mgpu_onnx_opset(size_t count, Onnx__OperatorSetIdProto *const *opsets, const char *domain)
{
    const char *wanted = strcmp(domain, "ai.onnx") ? domain : "";
    for (size_t i = 0; i < count; i++) {
        const char *has = strcmp(opsets[i]->domain, "ai.onnx") ? opsets[i]->domain : "";
        if (!strcmp(has, wanted))
            return opsets[i]->version;
    }
    return 0;
}

static const char *name_of(const struct mgpu_onnx_file *file, const Onnx__TensorProto *tensor)
{
    const char *key = mgpu_onnx_key(file, tensor);
    return key ? key : tensor->name;
}

int mgpu_onnx_tensor_read(const struct mgpu_onnx_file *file, const Onnx__TensorProto *tensor,
                          struct mgpu_array *out)
{
    return mgpu_prefix(mgpu_onnx_tensor_decode(tensor, file->folder, name_of(file, tensor), out),
                       "%s: tensor", file->path);
}

int mgpu_onnx_tensor_borrow(const struct mgpu_onnx_file *file, const Onnx__TensorProto *tensor,
                            struct mgpu_array *out, struct mgpu_onnx_held *held)
{
    return mgpu_prefix(
        mgpu_onnx_tensor_view(tensor, file->folder, name_of(file, tensor), out, held), "%s: tensor",
        file->path);
}

const char *mgpu_onnx_key(const struct mgpu_onnx_file *file, const void *tensor_or_node)
{
    return mgpu_onnx_keys_of(file->keys, tensor_or_node);
}

const Onnx__TensorProto *mgpu_onnx_find_tensor(const struct mgpu_onnx_file *file, const char *key)
{
    return mgpu_onnx_keys_find(file->keys, key, false);
}

const Onnx__NodeProto *mgpu_onnx_find_node(const struct mgpu_onnx_file *file, const char *key)
{
    return mgpu_onnx_keys_find(file->keys, key, true);
}

bool mgpu_onnx_has_name(const struct mgpu_onnx_file *file, const char *name)
{
    return mgpu_onnx_keys_has_name(file->keys, name);
}
