/* An HDF5 file, read by a process of its own.
 *
 * The HDF5 library trusts what it finds in a file, and crashes or runs without end on one that was
 * damaged inside. So it reads in a child process that has bounds for time and memory and whose
 * answers come through a socket: when the child dies, that is an error like any other. Our own
 * files are written in our own process (exporter/h5_out.h).
 *
 *     struct mgpu_h5_reader *r;
 *     MGPU_TRY(mgpu_h5_reader_open(&r, "weights.h5"));
 *     MGPU_TRY(mgpu_h5_reader_describe(&shape, r, "conv1/kernel"));
 *     ...
 *     mgpu_h5_reader_close(r);
 *
 * What is refused is said in h5.h. Paths go from the root of the file. One thread at a time may use
 * a file; reading allocates nothing in our process.
 */
#ifndef MGPU_DATA_H5_READER_H
#define MGPU_DATA_H5_READER_H

#include "runtime/base/array.h"
#include "runtime/data/dataset.h"

#include <stdbool.h>

struct mgpu_h5_reader;

/* Opens a file to read, without locking it; its errors name it. The bytes of a file that is in
 * memory are needed no longer than the call takes. */
int mgpu_h5_reader_open(struct mgpu_h5_reader **out, const char *path);
int mgpu_h5_reader_open_memory(struct mgpu_h5_reader **out, const void *bytes, size_t size);
void mgpu_h5_reader_close(struct mgpu_h5_reader *reader); /* NULL is fine */

/* The path of every data set ("a/b", in alphabetical order). A link that is not a hard link is
 * refused by name. */
int mgpu_h5_reader_list(struct mgpu_name_list *out, struct mgpu_h5_reader *reader);

/* 1 where there is a link of this path, whatever it is, else 0. */
int mgpu_h5_reader_has(struct mgpu_h5_reader *reader, const char *path);

/* The strings of an attribute of a group or data set ("" is the root), appended. Returns 1, and 0
 * where there is no such attribute. */
int mgpu_h5_reader_strings(struct mgpu_name_list *out, struct mgpu_h5_reader *reader,
                           const char *object, const char *attribute);

struct mgpu_h5_shape {
    enum mgpu_dtype type;
    int rank;
    int64_t dims[MGPU_MAX_RANK];
    int64_t chunk[MGPU_MAX_RANK]; /* zeros when not chunked */
};
int mgpu_h5_reader_describe(struct mgpu_h5_shape *out, struct mgpu_h5_reader *reader,
                            const char *path);

/* Rows [first, first + rows) along `axis` of a data set, or with MGPU_WHOLE all of it, in the
 * described type: `bytes` in all. */
int mgpu_h5_reader_read(struct mgpu_h5_reader *reader, const char *path, int axis, int64_t first,
                        int64_t rows, void *to, size_t bytes);

#endif
