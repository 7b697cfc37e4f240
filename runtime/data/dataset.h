/* One data array in a file: its type and shape, and its rows on request.
 *
 *     struct mgpu_dataset *x;
 *     MGPU_TRY(mgpu_dataset_open(&x, "train.h5:images"));
 *     MGPU_TRY(mgpu_dataset_prepare(x, 0, 64 << 20));
 *     int64_t rows[] = {7, 3};
 *     MGPU_TRY(mgpu_dataset_read(x, 0, rows, 2, buffer, MGPU_FLOAT));
 *     mgpu_dataset_close(x);
 *
 * The kind of a file is told by its content, never by its name: HDF5, .npy, .npz, IDX (also
 * gzipped), CSV; and folders of images (images.h). A new kind is one row of the table in dataset.c.
 */
#ifndef MGPU_DATA_DATASET_H
#define MGPU_DATA_DATASET_H

#include "runtime/base/array.h"
#include "runtime/data/rows.h"

#include <stddef.h>

struct mgpu_dataset {
    enum mgpu_dtype type; /* of the elements in the file */
    int rank;
    int64_t dims[MGPU_MAX_RANK];
    char *path;  /* the file */
    char *name;  /* of the array inside; "" in a file of one */
    char *title; /* "path" or "path:name", for messages */
    const struct mgpu_dataset_kind *kind;
    void *state; /* the kind's own */
};

/* A list of names; free with mgpu_name_list_free. */
struct mgpu_name_list {
    char **items;
    int count;
};
void mgpu_name_list_add(struct mgpu_name_list *names, const char *name); /* copies */
void mgpu_name_list_free(struct mgpu_name_list *names);

/* Opens FILE or FILE:DATASET (file names may hold ':'; the longest that exists is the file). A file
 * of several arrays without DATASET is an error that lists them. Owned by the caller. */
int mgpu_dataset_open(struct mgpu_dataset **out, const char *spec);
/* Cuts FILE:DATASET down to that FILE, in place; false: there is none. */
bool mgpu_dataset_cut(char *spec);
int mgpu_dataset_open_named(struct mgpu_dataset **out, const char *path, const char *name);
void mgpu_dataset_close(struct mgpu_dataset *dataset); /* NULL is fine */

/* The names of the arrays in a file, in the file's order; none for a kind of file that holds just
 * one array. */
int mgpu_dataset_list(struct mgpu_name_list *out, const char *path);

/* In place of an axis: the whole array is one row. */
enum { MGPU_WHOLE = -1 };

/* dims[axis], or 1. */
int64_t mgpu_dataset_samples(const struct mgpu_dataset *dataset, int axis);

/* Says which axis counts the samples and how many bytes may be held in memory to read them; all
 * memory for reading is taken here. Called again, it forgets the former. Without it the first read
 * does the same with 64 MiB. */
int mgpu_dataset_prepare(struct mgpu_dataset *dataset, int axis, uint64_t budget);

/* How the samples are best visited (after prepare): in blocks of *rows that are unpacked together,
 * of which *held stay in memory. *rows is 0 where any order will do. */
void mgpu_dataset_blocks(const struct mgpu_dataset *dataset, int64_t *rows, int64_t *held);

/* Gathers `count` indices `rows` along `axis` into `to`: an array of the dataset's shape with
 * `count` in place of dims[axis], row-major, of type `to_type`. To an integer type every value must
 * fit exactly. An error names file, sample index and value. Threads may read at the same time;
 * nothing is allocated. */
int mgpu_dataset_read(struct mgpu_dataset *dataset, int axis, const int64_t *rows, int64_t count,
                      void *to, enum mgpu_dtype to_type);

/* The whole array into `out` (owned by the caller), in the file's element type. Refused above
 * `most` bytes. */
int mgpu_dataset_load(struct mgpu_array *out, const char *spec, uint64_t most);

/* How often a block was fetched from the file (and unpacked) so far; 0 where all is in memory. */
uint64_t mgpu_dataset_fetches(const struct mgpu_dataset *dataset);

/* A kind of file. `read` gets valid rows and axis. Slots that may be NULL: list (files of one
 * array), prepare, blocks, fetches. */
struct mgpu_dataset_kind {
    const char *name;
    bool whole; /* without a name, all that the file holds is one array */
    bool (*probe)(const uint8_t *head, size_t size); /* the file's first bytes, at most 4096 */
    int (*list)(struct mgpu_name_list *out, const char *path);
    int (*open)(struct mgpu_dataset *dataset); /* fills type, rank, dims, state */
    int (*prepare)(struct mgpu_dataset *dataset, int axis, uint64_t budget);
    void (*blocks)(const struct mgpu_dataset *dataset, int64_t *rows, int64_t *held);
    int (*read)(struct mgpu_dataset *dataset, int axis, const int64_t *rows,
                const struct mgpu_rows *to);
    uint64_t (*fetches)(const struct mgpu_dataset *dataset);
    void (*close)(struct mgpu_dataset *dataset); /* also after a failed open; state may be NULL */
};
extern const struct mgpu_dataset_kind mgpu_dataset_hdf5, mgpu_dataset_npy, mgpu_dataset_npz,
    mgpu_dataset_idx, mgpu_dataset_idx_gz, mgpu_dataset_csv;

#endif
