#include "runtime/data/mapped.h"

#include "runtime/base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int map(struct mgpu_mapped *out, int fd, const char *path)
{
    struct stat info;
    if (fstat(fd, &info) < 0)
        return mgpu_fail(MGPU_EIO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return mgpu_fail(MGPU_EIO, "%s: not a regular file", path);
    if (info.st_size == 0)
        return 0;
    void *data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED)
        return mgpu_fail(MGPU_EIO, "%s: %s", path, strerror(errno));
    out->data = data;
    out->size = (uint64_t)info.st_size;
    return 0;
}

int mgpu_mapped_open(struct mgpu_mapped *out, const char *path)
{
    memset(out, 0, sizeof *out);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe does not make us wait */
    if (fd < 0)
        return mgpu_fail(MGPU_EIO, "%s: %s", path, strerror(errno));
    int rc = map(out, fd, path);
    close(fd);
    return rc;
}

void mgpu_mapped_close(struct mgpu_mapped *file)
{
    if (file->data)
        munmap((void *)(uintptr_t)file->data, (size_t)file->size);
    memset(file, 0, sizeof *file);
}
