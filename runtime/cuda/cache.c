/* A file is the hash of its contents, then the contents: a damaged one is not believed. */
#include "runtime/cuda/cache.h"

#include "runtime/base/memory.h"

#include <openssl/evp.h>
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

/* The folder, made where it is missing; false: there is no place for one. */
static bool folder_of(char path[PATH])
{
    const char *own = getenv("MGPU_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = own && *own   ? snprintf(path, PATH, "%s", own)
            : xdg && *xdg ? snprintf(path, PATH, "%s/mgpu", xdg)
            : home        ? snprintf(path, PATH, "%s/.cache/mgpu", home)
                          : PATH;
    if (n >= PATH - 128) /* room for a name */
        return false;
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0777);
        *slash = '/';
    }
    mkdir(path, 0777);
    return access(path, W_OK) == 0;
}

static bool path_of(char path[PATH], const char *key, const char *source)
{
    unsigned char hash[HASH];
    if (!folder_of(path))
        return false;
    hash_of(hash, key, strlen(key), source, strlen(source));
    size_t n = strlen(path);
    path[n++] = '/';
    for (int i = 0; i < HASH; i++, n += 2)
        snprintf(path + n, PATH - n, "%02x", hash[i]);
    return true;
}

bool mgpu_cache_read(const char *key, const char *source, void **data, size_t *size)
{
    char path[PATH];
    unsigned char stored[HASH], hash[HASH];
    struct stat status;
    FILE *file = path_of(path, key, source) ? fopen(path, "rb") : NULL;
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

bool mgpu_cache_write(const char *key, const char *source, const void *data, size_t size)
{
    char path[PATH], fresh[PATH + 32];
    unsigned char hash[HASH];
    if (!path_of(path, key, source))
        return false;
    snprintf(fresh, sizeof fresh, "%s.%d", path, (int)getpid());
    FILE *file = fopen(fresh, "wb");
    if (!file)
        return false;
    hash_of(hash, data, size, "", 0);
    bool ok = fwrite(hash, HASH, 1, file) == 1 && fwrite(data, 1, size, file) == size;
    ok = fclose(file) == 0 && ok && rename(fresh, path) == 0;
    if (!ok)
        unlink(fresh);
    return ok;
}
