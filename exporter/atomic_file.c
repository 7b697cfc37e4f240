#include "exporter/atomic_file.h"

#include "runtime/base/memory.h"
#include "runtime/base/status.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* A temporary name is PREFIX target MARK pid "-" number, with as much of the target's name as
 * leaves room for the rest where names have 255 bytes. */
#define PREFIX "."
#define MARK   ".mgpu-"
enum { BASE_MOST = 220 };

static int fail(const char *path, const char *what)
{
    return mgpu_fail(MGPU_EIO, "%s: cannot %s: %s", path, what, strerror(errno));
}

/* Where the last part of the path begins. */
static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* What a link leads to, in malloc's memory; NULL: it is no link. */
static char *link_target(const char *path)
{
    char text[PATH_MAX], *out = NULL;
    ssize_t n = readlink(path, text, sizeof text - 1);
    if (n <= 0)
        return NULL;
    text[n] = 0;
    int folder = *text == '/' ? 0 : (int)(base_of(path) - path);
    return asprintf(&out, "%.*s%s", folder, path, text) < 0 ? NULL : out;
}

/* The file at the end of all links, which need not be there yet; NULL: they go in a circle. */
static char *follow_links(const char *path)
{
    enum { LINKS_MOST = 40 };
    char *at = mgpu_xstrdup(path), *next;
    for (int i = 0; i < LINKS_MOST; i++) {
        next = link_target(at);
        if (!next)
            return at;
        free(at);
        at = next;
    }
    free(at);
    return NULL;
}

/* The path up to its last part, "./" at least. */
static char *folder_of(const char *path)
{
    size_t n = (size_t)(base_of(path) - path);
    char *folder = mgpu_xcalloc(n + 3, 1);
    if (n)
        memcpy(folder, path, n);
    else
        memcpy(folder, "./", 2);
    return folder;
}

/* Counts this process's temporary files, so that their names differ. */
static atomic_int next_number;

/* Whether `name` is a temporary whose writer is dead, as far as this machine knows. One with our
 * own process number that we have not given out yet was left by an earlier process of that number.
 */
static bool is_left_over(const char *name)
{
    const char *mark = NULL;
    for (const char *at = name; (at = strstr(at, MARK)); at++)
        mark = at;
    int pid, number, end = 0;
    if (strncmp(name, PREFIX, strlen(PREFIX)) || !mark || mark == name ||
        sscanf(mark, MARK "%d-%d%n", &pid, &number, &end) != 2 || mark[end] || pid <= 0)
        return false;
    if (pid == getpid())
        return number >= atomic_load(&next_number);
    return kill(pid, 0) < 0 && errno == ESRCH;
}

/* The writer on another machine (a shared folder) has its file locked. */
static bool is_locked(int folder, const char *name)
{
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    bool locked = fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0;
    if (fd >= 0)
        close(fd);
    return locked;
}

static void remove_left_overs(const char *folder)
{
    DIR *dir = opendir(folder);
    if (!dir)
        return;
    for (struct dirent *e; (e = readdir(dir));)
        if (is_left_over(e->d_name) && !is_locked(dirfd(dir), e->d_name))
            unlinkat(dirfd(dir), e->d_name, 0);
    closedir(dir);
}

static char *temp_name(const char *path, const char *folder)
{
    char *name;
    if (asprintf(&name, "%s" PREFIX "%.*s" MARK "%d-%d", folder, BASE_MOST, base_of(path),
                 (int)getpid(), atomic_fetch_add(&next_number, 1)) < 0)
        return mgpu_xstrdup("");
    return name;
}

/* A file that nobody may write is not replaced either, though its folder would allow it. */
static int check_writable(const struct mgpu_atomic_file *f, mode_t mode)
{
    if ((mode & 0222) && faccessat(AT_FDCWD, f->target, W_OK, AT_EACCESS) == 0)
        return 0;
    return mgpu_fail(MGPU_EIO, "%s: cannot write: the file is write-protected", f->path);
}

/* A target that another process is writing (HDF5 locks the files that it writes) is left to it.
 * Readers keep the old file. */
static int check_unlocked(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool locked = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
    if (fd >= 0)
        close(fd);
    return locked ? mgpu_fail(MGPU_EIO,
                              "%s: cannot write: it is locked by another process that has it open "
                              "for writing",
                              path)
                  : 0;
}

/* The permissions of the file that is replaced, if any. */
static int open_temp(struct mgpu_atomic_file *f)
{
    struct stat st;
    bool exists = stat(f->path, &st) == 0; /* a pipe's link (/dev/stdout) leads to no name */
    if (exists && !S_ISREG(st.st_mode))
        return mgpu_fail(MGPU_EIO, "%s: cannot be written: not a regular file", f->path);
    if (exists) {
        MGPU_TRY(check_writable(f, st.st_mode));
        MGPU_TRY(check_unlocked(f->path));
    }
    f->fd = open(f->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (f->fd < 0)
        return fail(f->path, "write");
    flock(f->fd, LOCK_EX | LOCK_NB); /* is_locked; a file system without locks has no answer */
    if (exists && fchmod(f->fd, st.st_mode & 0777) < 0)
        return fail(f->path, "write");
    return 0;
}

int mgpu_atomic_open(struct mgpu_atomic_file *out, const char *path)
{
    char *target = follow_links(path);
    *out = (struct mgpu_atomic_file){-1, mgpu_xstrdup(path), target, NULL};
    if (!target) {
        errno = ELOOP;
        return mgpu_atomic_abort(out, fail(path, "write"));
    }
    char *folder = folder_of(target);
    remove_left_overs(folder);
    out->temp = temp_name(target, folder);
    free(folder);
    int rc = open_temp(out);
    return rc < 0 ? mgpu_atomic_abort(out, rc) : 0;
}

int mgpu_atomic_write(struct mgpu_atomic_file *f, const void *bytes, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = write(f->fd, (const char *)bytes + done, size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail(f->path, "write");
        done += (size_t)n;
    }
    return 0;
}

static void release(struct mgpu_atomic_file *f)
{
    free(f->path);
    free(f->target);
    free(f->temp);
    *f = (struct mgpu_atomic_file){-1, NULL, NULL, NULL};
}

int mgpu_atomic_abort(struct mgpu_atomic_file *f, int rc)
{
    if (f->fd >= 0) {
        close(f->fd);
        unlink(f->temp);
    }
    release(f);
    return rc;
}

/* Makes the new name last. A file system that cannot sync a folder keeps names by itself. */
static int sync_folder(const struct mgpu_atomic_file *f)
{
    char *folder = folder_of(f->target);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(folder);
    if (fd < 0)
        return 0;
    int rc = fsync(fd) < 0 && errno != EINVAL ? fail(f->path, "sync its folder") : 0;
    close(fd);
    return rc;
}

int mgpu_atomic_commit(struct mgpu_atomic_file *f)
{
    if (fsync(f->fd) < 0)
        return mgpu_atomic_abort(f, fail(f->path, "write"));
    if (rename(f->temp, f->target) < 0)
        return mgpu_atomic_abort(f, fail(f->path, "replace"));
    int rc = sync_folder(f);
    close(f->fd);
    release(f);
    return rc;
}

int mgpu_atomic_save(const char *path, const void *bytes, size_t size)
{
    struct mgpu_atomic_file f;
    MGPU_TRY(mgpu_atomic_open(&f, path));
    int rc = mgpu_atomic_write(&f, bytes, size);
    return rc < 0 ? mgpu_atomic_abort(&f, rc) : mgpu_atomic_commit(&f);
}
