/* Kernels that were compiled before: many tests have the same ones, each once more under the
 * sanitizers. $MGPU_EMULATED is a folder that keeps libraries by what they were made of; where it
 * is not set, or cannot be written, nothing is kept. */
#ifndef MGPU_TESTS_KEPT_H
#define MGPU_TESTS_KEPT_H

#include <stdbool.h>
#include <stddef.h>

/* Copies what was compiled of the text to file `library`; false: nothing was. */
bool kept_take(const char *library, const char *text);

/* Keeps a copy of file `library`, which was compiled of the text. */
void kept_keep(const char *text, const char *library);

/* Writes a file that is whole or not there; whether it is. */
bool kept_write(const char *path, const char *text, size_t size);

#endif
