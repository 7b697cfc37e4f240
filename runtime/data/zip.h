/* Zip archives in memory: the directory, and members stored or deflated. With zip64.
 * Format: PKWARE's APPNOTE.TXT 6.3, sections 4.3 to 4.5. */
#ifndef MGPU_DATA_ZIP_H
#define MGPU_DATA_ZIP_H

#include "runtime/data/mapped.h"

struct mgpu_zip_member {
    char *name;
    uint64_t packed, size; /* bytes in the file, bytes unpacked */
    uint64_t offset;       /* of the local header */
    uint32_t crc;
    int method, flags;
};

/* The members in the archive's order; free with mgpu_zip_free. Every size is checked against the
 * file before anything is taken from memory. */
int mgpu_zip_list(struct mgpu_zip_member **out, int *count, const struct mgpu_mapped *file);
void mgpu_zip_free(struct mgpu_zip_member *members, int count);

/* The content of a member (`size` bytes), its check sum verified. *owned is what to mgpu_free
 * afterwards, or NULL where *content points into the file. */
int mgpu_zip_read(const uint8_t **content, void **owned, const struct mgpu_mapped *file,
                  const struct mgpu_zip_member *member);

#endif
