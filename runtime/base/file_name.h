/* What names of files say. */
#ifndef MGPU_BASE_FILE_NAME_H
#define MGPU_BASE_FILE_NAME_H

#include <stdbool.h>

/* Whether there is more than the extension, and then it: ".onnx", in letters of either case. */
bool mgpu_has_extension(const char *path, const char *extension);

/* Whether both are there and are one file or folder, whatever links lead to it. */
bool mgpu_same_file(const char *a, const char *b);

/* Refuses (MGPU_EUSAGE) to write `path` over `other`, which is `what` in the message: one file, or
 * the same name in one folder, where there is no file yet. `other` NULL: there is none. */
int mgpu_check_other_file(const char *path, const char *other, const char *what);

#endif
