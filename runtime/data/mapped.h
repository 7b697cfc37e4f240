/* A whole file, read-only, in memory by mmap: pages come and go as the system likes. */
#ifndef MGPU_DATA_MAPPED_H
#define MGPU_DATA_MAPPED_H

#include <stddef.h>
#include <stdint.h>

struct mgpu_mapped {
    const uint8_t *data; /* page aligned; NULL for an empty file */
    uint64_t size;
};

/* MGPU_EIO when the file cannot be opened or is no regular file. */
int mgpu_mapped_open(struct mgpu_mapped *out, const char *path);
void mgpu_mapped_close(struct mgpu_mapped *file);

#endif
