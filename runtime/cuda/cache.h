/* Results kept on disk by the hash of what they were made from, in a folder: $MGPU_CACHE, else
 * $XDG_CACHE_HOME/mgpu where that is an absolute path (as the XDG base directory specification has
 * it), else $HOME/.cache/mgpu; an empty variable counts as none. MGPU_CACHE=/dev/null: nothing is
 * kept. The folder is made where it is missing; one that can only be read is read. */
#ifndef MGPU_CUDA_CACHE_H
#define MGPU_CUDA_CACHE_H

#include <stdbool.h>
#include <stddef.h>

/* What was written for `key` and `source`, in a block for free(). False: nothing, or it is damaged.
 */
bool mgpu_cache_read(const char *key, const char *source, void **data, size_t *size);

/* Keeps it. False: it could not, which a warning says once in a program, with what it costs. */
bool mgpu_cache_write(const char *key, const char *source, const void *data, size_t size);

#endif
