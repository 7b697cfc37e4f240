/* HDF5 files from strangers: nothing outside the file is ever opened, and no size that the file
 * merely claims is believed. A file is read by a process of its own (h5_reader.h), where these run.
 *
 * Every call of the HDF5 library stands between mgpu_h5_lock and mgpu_h5_unlock; the functions here
 * expect the lock to be held. Handles are hid_t, closed by HDF5's own calls.
 */
#ifndef MGPU_DATA_H5_H
#define MGPU_DATA_H5_H

#include "runtime/data/h5_reader.h"

#include <hdf5.h>
#include <stddef.h>

/* Also silences HDF5's own printing on this thread and keeps it from loading filter plug-ins. */
void mgpu_h5_lock(void);
void mgpu_h5_unlock(void);

/* Sets the error text to "format: what HDF5 says is the cause" and returns `code`. */
int mgpu_h5_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Opens a file to read, without locking it. */
int mgpu_h5_open_file(hid_t *out, const char *path);

/* The same for a file that is in memory; the bytes are copied. */
int mgpu_h5_open_memory(hid_t *out, const void *bytes, size_t size);

/* Opens the group or data set at `name` below `base`, or base itself for "". Refused: links that
 * are not hard links, on any step of the way; what is not there. */
int mgpu_h5_open_object(hid_t *out, hid_t base, const char *name); /* H5Oclose */

/* Bytes of the file that holds an object. */
uint64_t mgpu_h5_file_size(hid_t object);

/* Opens the group at `name` below `base`. Refused: links that are not hard links, on
 * any step of the way; what is not there. */
int mgpu_h5_open_group(hid_t *out, hid_t base, const char *name);

/* Likewise a data set; refused too: external storage, virtual data sets, filters other than gzip,
 * shuffle and fletcher32, and sizes that the bytes stored cannot hold. */
int mgpu_h5_open_dataset(hid_t *out, hid_t base, const char *name);

/* Calls `visit` with the path of every data set below `base` ("a/b", in alphabetical order) until
 * it returns an error. A link that is not a hard link is refused by name. */
typedef int mgpu_h5_visit(void *context, const char *name);
int mgpu_h5_walk(hid_t base, mgpu_h5_visit *visit, void *context);

/* What is known of a data set; *memory is the HDF5 type (H5Tclose) that reads into its type. */
int mgpu_h5_describe(struct mgpu_h5_shape *out, hid_t *memory, hid_t dataset);

/* Rows of a data set from `first` on along `axis` (below 0: all); `dims` are those of the rows. */
int mgpu_h5_read_rows(hid_t dataset, hid_t memory, int rank, const int64_t *dims, int axis,
                      int64_t first, void *to);

/* Bytes of a chunk when it is unpacked; 0 where the data set has none. */
double mgpu_h5_chunk_bytes(hid_t dataset);

/* The HDF5 type (H5Tclose) for a type of ours: little-endian in files, native in memory. bfloat16
 * is an opaque type of 2 bytes (Keras, with an attribute dtype="bfloat16" on the data set); bool is
 * h5py's enumeration. */
hid_t mgpu_h5_type(enum mgpu_dtype type);

/* A fixed-length string type, padded with zeros, in UTF-8 (H5Tclose). */
hid_t mgpu_h5_string_type(size_t length);

/* The strings of an attribute, of fixed or variable length, scalar or list, into *out (each and the
 * list: free()). An empty list of any type has none. */
int mgpu_h5_read_strings(char ***out, int *count, hid_t object, const char *attribute);

#endif
