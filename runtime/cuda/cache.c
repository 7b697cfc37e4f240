/* A file is the hash of its contents, then the contents: a damaged one is not believed. */
#include "runtime/cuda/cache.h"

#include "runtime/base/memory.h"
#include "runtime/base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HASH = 32, PATH = 4096 };

static void hash_of(unsigned char hash[HASH], const void *a, size_t a_size, const void *b,
                    size_t b_size)
{
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    bool ok = c && EVP_DigestInit_ex(c, EVP_sha256(), NULL) && EVP_DigestUpdate(c, a, a_size) &&
              EVP_DigestUpdate(c, b, b_size) && EVP_DigestFinal_ex(c, hash, NULL);
    if (!ok)
        abort(); /* no memory for metadata */
    EVP_MD_CTX_free(c);
}

/* ---- The folder ------------------------------------------------------------------------------ */

enum { NAME = 128 }; /* room for a file's name behind the folder's */

/* An environment variable; NULL: it is not set, or is empty. */
static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* The person wants none. */
static bool is_off(void)
{
    const char *own = variable("MGPU_CACHE");
    return own && !strcmp(own, "/dev/null");
}

/* 0: it is in `path`; else why there is none: ENOENT (no variable says one), ENAMETOOLONG. */
static int name_folder(char path[PATH])
{
    const char *own = variable("MGPU_CACHE"), *xdg = variable("XDG_CACHE_HOME"),
               *home = variable("HOME");
    int n = own                  ? snprintf(path, PATH, "%s", own)
            : xdg && *xdg == '/' ? snprintf(path, PATH, "%s/mgpu", xdg)
            : home               ? snprintf(path, PATH, "%s/.cache/mgpu", home)
                                 : 0;
    return n <= 0 ? ENOENT : n >= PATH - NAME ? ENAMETOOLONG : 0;
}

static int make_one(const char *path)
{
    struct stat status;
    if (mkdir(path, 0777) == 0)
        return 0;
    int why = errno;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode) ? 0 : why == EEXIST ? ENOTDIR : why;
}

/* It and those that it lies in, where they are missing. Gives errno's number. */
static int make_folder(char path[PATH])
{
    int why = 0;
    for (char *slash = strchr(path + 1, '/'); slash && !why; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        why = make_one(path);
        *slash = '/';
    }
    return why ? why : make_one(path);
}

/* Once in a program: what holds for one file holds for the next. */
static void say_unusable(const char *folder, int why)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    static const char cost[] =
        "nothing is kept for the next run: it compiles the GPU's kernels again, and convolutions "
        "and products run by the libraries' first choice, untimed; MGPU_CACHE names another folder";
    if (atomic_flag_test_and_set(&said))
        return;
    if (*folder)
        mgpu_warn("the cache folder '%.512s' cannot be written (%s): %s", folder, strerror(why),
                  cost);
    else
        mgpu_warn("no cache folder (none of MGPU_CACHE, XDG_CACHE_HOME with an absolute path, and "
                  "HOME is set): %s",
                  cost);
}

/* ---- Files ----------------------------------------------------------------------------------- */

/* What is kept for `key` and `source`, in the folder that `path` holds. */
static void name_file(char path[PATH], const char *key, const char *source)
{
    unsigned char hash[HASH];
    hash_of(hash, key, strlen(key), source, strlen(source));
    size_t n = strlen(path);
    path[n++] = '/';
    for (int i = 0; i < HASH; i++, n += 2)
        snprintf(path + n, PATH - n, "%02x", hash[i]);
}

/* Of a regular file alone: opening a pipe or reading it may last for ever. NULL: errno says why. */
static FILE *open_regular(const char *path, int flags, const char *mode)
{
    struct stat status;
    int fd = open(path, flags | O_NONBLOCK | O_CLOEXEC, 0666);
    if (fd < 0)
        return NULL;
    bool regular = fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
    FILE *file = regular ? fdopen(fd, mode) : NULL;
    if (file)
        return file;
    close(fd);
    errno = regular ? ENOMEM : EEXIST;
    return NULL;
}

static FILE *open_file(const char *key, const char *source)
{
    char path[PATH] = "";
    if (name_folder(path))
        return NULL;
    name_file(path, key, source);
    return open_regular(path, O_RDONLY, "rb");
}

bool mgpu_cache_read(const char *key, const char *source, void **data, size_t *size)
{
    unsigned char stored[HASH], hash[HASH];
    struct stat status;
    FILE *file = open_file(key, source);
    if (!file)
        return false;
    bool ok = fread(stored, HASH, 1, file) == 1 && fstat(fileno(file), &status) == 0;
    *size = ok ? (size_t)status.st_size - HASH : 0;
    *data = mgpu_xcalloc(*size + 1, 1);
    ok = ok && fread(*data, 1, *size, file) == *size;
    fclose(file);
    hash_of(hash, *data, *size, "", 0);
    if (ok && !memcmp(hash, stored, HASH))
        return true;
    free(*data);
    *data = NULL;
    return false;
}

/* Under another name first, so that nobody reads half of it. Gives errno's number. */
static int write_file(const char *path, const void *data, size_t size)
{
    char fresh[PATH + 32];
    unsigned char hash[HASH];
    snprintf(fresh, sizeof fresh, "%s.%d", path, (int)getpid());
    FILE *file = open_regular(fresh, O_WRONLY | O_CREAT | O_TRUNC, "wb");
    if (!file)
        return errno;
    hash_of(hash, data, size, "", 0);
    bool ok = fwrite(hash, HASH, 1, file) == 1 && fwrite(data, 1, size, file) == size;
    int why = ok ? 0 : errno;
    if (fclose(file) && !why)
        why = errno;
    if (!why && rename(fresh, path))
        why = errno;
    if (why)
        unlink(fresh);
    return why;
}

bool mgpu_cache_write(const char *key, const char *source, const void *data, size_t size)
{
    char folder[PATH] = "", path[PATH];
    if (is_off())
        return false;
    int why = name_folder(folder);
    if (!why)
        why = make_folder(folder);
    memcpy(path, folder, PATH);
    if (!why) {
        name_file(path, key, source);
        why = write_file(path, data, size);
    }
    if (why)
        say_unusable(folder, why);
    return !why;
}
