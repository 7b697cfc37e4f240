#include "tests/emit/kept.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *read_whole(const char *path, size_t *size)
{
    char *text = NULL;
    FILE *in = fopen(path, "r"), *out = in ? open_memstream(&text, size) : NULL;
    for (int c; out && (c = getc(in)) != EOF;)
        putc(c, out);
    if (out)
        fclose(out);
    if (in)
        fclose(in);
    return text;
}

bool kept_write(const char *path, const char *text, size_t size)
{
    char other[300];
    snprintf(other, sizeof other, "%s.%d", path, (int)getpid());
    FILE *out = fopen(other, "w");
    bool written = out && fwrite(text, 1, size, out) == size;
    if (out)
        written = fclose(out) == 0 && written;
    if (written && rename(other, path) == 0)
        return true;
    unlink(other);
    return false;
}

static bool copy(const char *to, const char *from)
{
    size_t size;
    char *bytes = read_whole(from, &size);
    bool copied = bytes && kept_write(to, bytes, size);
    free(bytes);
    return copied;
}

/* FNV-1a, from two beginnings: no two texts of the tests have both the same. */
static uint64_t hash_of(const char *text, uint64_t hash)
{
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3;
    return hash;
}

/* false: nothing is kept. */
static bool kept_path(char path[300], const char *text)
{
    const char *folder = getenv("MGPU_EMULATED");
    snprintf(path, 300, "%s/%016llx%016llx.so", folder ? folder : "",
             (unsigned long long)hash_of(text, 0xcbf29ce484222325),
             (unsigned long long)hash_of(text, 1));
    return folder && *folder;
}

bool kept_take(const char *library, const char *text)
{
    char path[300];
    return kept_path(path, text) && copy(library, path);
}

void kept_keep(const char *text, const char *library)
{
    char path[300];
    if (kept_path(path, text))
        copy(path, library);
}
