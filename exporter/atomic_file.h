/* Files that are either the old one or the new one, whatever happens while they are written.
 *
 *     struct mgpu_atomic_file f;
 *     MGPU_TRY(mgpu_atomic_open(&f, path));
 *     int rc = ... write to f.fd, with mgpu_atomic_write, or to the file called f.temp ...
 *     return rc < 0 ? mgpu_atomic_abort(&f, rc) : mgpu_atomic_commit(&f);
 *
 * The bytes go to a file of another name in the same folder, which replaces the target only when
 * all of it is on the disk. That name is ".NAME.mgpu-PID-N", and the file is locked while it is
 * written: what a killed process left is removed by the next mgpu_atomic_open in that folder. Of a
 * symbolic link, what it leads to is replaced, and the link stays. A target that is write-protected
 * or that another process holds locked for writing is an error.
 */
#ifndef MGPU_EXPORTER_ATOMIC_FILE_H
#define MGPU_EXPORTER_ATOMIC_FILE_H

#include <stddef.h>

struct mgpu_atomic_file {
    int fd;       /* of the temporary file, for writing */
    char *path;   /* what the caller calls the target */
    char *target; /* the same, or what that link leads to */
    char *temp;
};

/* Errors name the target and the system's reason; nothing is left behind. */
int mgpu_atomic_open(struct mgpu_atomic_file *out, const char *path);

/* All `size` bytes at the end of what is written so far. */
int mgpu_atomic_write(struct mgpu_atomic_file *file, const void *bytes, size_t size);

/* Syncs the file (also when others wrote to it by name), renames it, syncs the folder, and closes.
 * On an error the old target is as it was, and the temporary file is gone. */
int mgpu_atomic_commit(struct mgpu_atomic_file *file);

/* All four at once: the file is these bytes. */
int mgpu_atomic_save(const char *path, const void *bytes, size_t size);

/* Closes and removes the temporary file. Returns `rc` and keeps its error text. */
int mgpu_atomic_abort(struct mgpu_atomic_file *file, int rc);

#endif
