#include "runtime/base/file_name.h"
#include "runtime/base/status.h"

#include <limits.h>
#include <stdio.h>
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

/* Its last part; `folder` is the rest, "." where that is all. */
static const char *cut(char folder[PATH_MAX], const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    snprintf(folder, PATH_MAX, "%.*s.", (int)(name - path), path);
    return name;
}

static bool same_target(const char *a, const char *b)
{
    char x[PATH_MAX], y[PATH_MAX];
    return mgpu_same_file(a, b) || (!strcmp(cut(x, a), cut(y, b)) && mgpu_same_file(x, y));
}

int mgpu_check_other_file(const char *path, const char *other, const char *what)
{
    return other && same_target(path, other)
               ? mgpu_fail(MGPU_EUSAGE, "%s is %s: give what is written another name", path, what)
               : 0;
}
