#include "exporter/h5_out.h"

#include "runtime/base/memory.h"
#include "runtime/base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of one attribute at most, as Keras counts them; HDF5 takes 64 KiB with the header. */
enum { ATTRIBUTE_MOST = 64512, SLACK = 64 << 10 };

/* File systems that cannot reserve say so; then the writing itself has to find out. */
static int reserve(const struct mgpu_h5_out *out, uint64_t bytes)
{
    if (fallocate(out->file.fd, 0, 0, (off_t)(bytes + SLACK)) == 0 || errno == EOPNOTSUPP ||
        errno == ENOSYS)
        return 0;
    return mgpu_fail(MGPU_EIO, "%s: cannot write: %s", out->path, strerror(errno));
}

static int create(struct mgpu_h5_out *out)
{
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_file_locking(access, 0, 1); /* nobody else knows the temporary name */
    out->id = H5Fcreate(out->file.temp, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    H5Pclose(access);
    return out->id < 0 ? mgpu_h5_fail(MGPU_EIO, "%s: cannot write", out->path) : 0;
}

int mgpu_h5_out_open(struct mgpu_h5_out *out, const char *path, uint64_t bytes)
{
    out->id = -1;
    out->path = NULL;
    MGPU_TRY(mgpu_atomic_open(&out->file, path));
    out->path = mgpu_xstrdup(path);
    int rc = reserve(out, bytes);
    if (rc == 0)
        rc = create(out);
    return rc < 0 ? mgpu_h5_out_close(out, rc) : 0;
}

static hid_t make_space(int rank, const int64_t *dims)
{
    hsize_t sizes[MGPU_MAX_RANK];
    for (int i = 0; i < rank; i++)
        sizes[i] = (hsize_t)dims[i];
    return rank ? H5Screate_simple(rank, sizes, NULL) : H5Screate(H5S_SCALAR);
}

int mgpu_h5_out_create(hid_t *out, struct mgpu_h5_out *file, const char *name, enum mgpu_dtype type,
                       int rank, const int64_t *dims)
{
    hid_t link = H5Pcreate(H5P_LINK_CREATE), set = H5Pcreate(H5P_DATASET_CREATE);
    hid_t space = make_space(rank, dims), stored = mgpu_h5_type(type);
    H5Pset_create_intermediate_group(link, 1);
    H5Pset_char_encoding(link, H5T_CSET_UTF8);
    H5Pset_fill_time(set, H5D_FILL_TIME_NEVER);
    *out = H5Dcreate2(file->id, name, stored, space, link, set, H5P_DEFAULT);
    H5Tclose(stored);
    H5Sclose(space);
    H5Pclose(set);
    H5Pclose(link);
    return *out < 0 ? mgpu_h5_fail(MGPU_EIO, "%s: '%s' cannot be written", file->path, name) : 0;
}

static int write_attribute(hid_t object, const char *name, hid_t type, hid_t space,
                           const void *data)
{
    hid_t attribute = H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    herr_t rc = attribute < 0 ? -1 : H5Awrite(attribute, type, data);
    if (attribute >= 0)
        H5Aclose(attribute);
    return rc < 0 ? mgpu_h5_fail(MGPU_EIO, "attribute '%s' cannot be written", name) : 0;
}

int mgpu_h5_out_string(hid_t object, const char *name, const char *string)
{
    hid_t type = mgpu_h5_string_type(strlen(string)), space = H5Screate(H5S_SCALAR);
    int rc = write_attribute(object, name, type, space, string);
    H5Sclose(space);
    H5Tclose(type);
    return rc;
}

/* Of variable length, which h5py gives as str: that is what Keras compares with one. */
static int write_text(hid_t object, const char *name, const char *text)
{
    hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
    H5Tset_size(type, H5T_VARIABLE);
    H5Tset_cset(type, H5T_CSET_UTF8);
    int rc = write_attribute(object, name, type, space, &text);
    H5Sclose(space);
    H5Tclose(type);
    return rc;
}

static int write_piece(hid_t object, const char *name, const char *const *strings, int count,
                       size_t width)
{
    hsize_t size = (hsize_t)count;
    hid_t type = mgpu_h5_string_type(width), space = H5Screate_simple(1, &size, NULL);
    char *block = mgpu_xcalloc((size_t)count, width);
    for (int i = 0; i < count; i++)
        memcpy(block + (size_t)i * width, strings[i], strlen(strings[i]));
    int rc = write_attribute(object, name, type, space, block);
    free(block);
    H5Sclose(space);
    H5Tclose(type);
    return rc;
}

int mgpu_h5_out_array(struct mgpu_h5_out *out, const char *name, const struct mgpu_array *a,
                      const char *true_name)
{
    hid_t set, type = mgpu_h5_type(a->type);
    int rc = mgpu_h5_out_create(&set, out, name, a->type, a->rank, a->dims);
    if (rc == 0 && mgpu_array_count(a) > 0 &&
        H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, a->data) < 0)
        rc = mgpu_h5_fail(MGPU_EIO, "cannot write");
    if (rc == 0 && true_name)
        rc = mgpu_h5_out_string(set, "name", true_name);
    if (rc == 0 && a->type == MGPU_BFLOAT16)
        rc = write_text(set, "dtype", "bfloat16");
    if (set >= 0)
        H5Dclose(set);
    H5Tclose(type);
    return rc;
}

/* Pieces as numpy's array_split makes them: the first count % pieces are one longer. */
int mgpu_h5_out_strings(hid_t object, const char *name, const char *const *strings, int count)
{
    size_t width = 1;
    for (int i = 0; i < count; i++)
        width = strlen(strings[i]) > width ? strlen(strings[i]) : width;
    int each = (int)(ATTRIBUTE_MOST / width);
    if (each == 0)
        return mgpu_fail(MGPU_EUNSUPPORTED, "a name of %zu bytes is too long for HDF5", width);
    int pieces = (count + each - 1) / each;
    if (pieces <= 1)
        return write_piece(object, name, strings, count, width);
    for (int k = 0, at = 0; k < pieces; k++) {
        char numbered[64];
        int n = count / pieces + (k < count % pieces);
        snprintf(numbered, sizeof numbered, "%s%d", name, k);
        MGPU_TRY(write_piece(object, numbered, strings + at, n, width));
        at += n;
    }
    return 0;
}

int mgpu_h5_out_close(struct mgpu_h5_out *out, int rc)
{
    if (out->id >= 0 && H5Fclose(out->id) < 0 && rc == 0)
        rc = mgpu_h5_fail(MGPU_EIO, "%s: cannot write", out->path);
    free(out->path);
    return rc < 0 ? mgpu_atomic_abort(&out->file, rc) : mgpu_atomic_commit(&out->file);
}
