#include "runtime/base/file_name.h"

#include <string.h>
#include <strings.h>
#include <sys/stat.h>

bool mgpu_has_extension(const char *path, const char *extension)
{
    size_t n = strlen(path), m = strlen(extension);
    return n > m && !strcasecmp(path + n - m, extension);
}

bool mgpu_same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}
