/* Results kept on disk by the hash of what they were made from. */
#ifndef MGPU_CUDA_CACHE_H
#define MGPU_CUDA_CACHE_H

#include <stdbool.h>
#include <stddef.h>

/* What was written for `key` and `source`, in a block for free(). False: nothing, or it is damaged.
 */
bool mgpu_cache_read(const char *key, const char *source, void **data, size_t *size);

/* Keeps it. False: it could not. */
bool mgpu_cache_write(const char *key, const char *source, const void *data, size_t size);

#endif
