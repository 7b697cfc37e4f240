/* Element types, shapes and strings between HDF5 and us. */
#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "runtime/data/h5.h"

#include <stdlib.h>
#include <string.h>

static hid_t float16_type(void)
{
    hid_t type = H5Tcopy(H5T_IEEE_F32LE); /* sign, exponent, mantissa as in IEEE 754 binary16 */
    H5Tset_fields(type, 15, 10, 5, 0, 10);
    H5Tset_size(type, 2);
    H5Tset_ebias(type, 15);
    return type;
}

static hid_t bool_type(void)
{
    hid_t type = H5Tenum_create(H5T_STD_I8LE);
    signed char no = 0, yes = 1;
    H5Tenum_insert(type, "FALSE", &no);
    H5Tenum_insert(type, "TRUE", &yes);
    return type;
}

static hid_t bfloat16_type(void)
{
    hid_t type = H5Tcreate(H5T_OPAQUE, 2);
    H5Tset_tag(type, "");
    return type;
}

hid_t mgpu_h5_type(enum mgpu_dtype type)
{
    switch (type) {
    case MGPU_FLOAT:
        return H5Tcopy(H5T_IEEE_F32LE);
    case MGPU_DOUBLE:
        return H5Tcopy(H5T_IEEE_F64LE);
    case MGPU_UINT8:
        return H5Tcopy(H5T_STD_U8LE);
    case MGPU_INT8:
        return H5Tcopy(H5T_STD_I8LE);
    case MGPU_UINT16:
        return H5Tcopy(H5T_STD_U16LE);
    case MGPU_INT16:
        return H5Tcopy(H5T_STD_I16LE);
    case MGPU_INT32:
        return H5Tcopy(H5T_STD_I32LE);
    case MGPU_UINT32:
        return H5Tcopy(H5T_STD_U32LE);
    case MGPU_INT64:
        return H5Tcopy(H5T_STD_I64LE);
    case MGPU_UINT64:
        return H5Tcopy(H5T_STD_U64LE);
    case MGPU_BOOL:
        return bool_type();
    case MGPU_FLOAT16:
        return float16_type();
    case MGPU_BFLOAT16:
        return bfloat16_type();
    case MGPU_UNDEFINED:
        break;
    }
    return -1;
}

hid_t mgpu_h5_string_type(size_t length)
{
    hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, length ? length : 1);
    H5Tset_strpad(type, H5T_STR_NULLPAD);
    H5Tset_cset(type, H5T_CSET_UTF8);
    return type;
}

static enum mgpu_dtype integer_type(hid_t type)
{
    static const enum mgpu_dtype types[2][9] = {
        {[1] = MGPU_UINT8, [2] = MGPU_UINT16, [4] = MGPU_UINT32, [8] = MGPU_UINT64},
        {[1] = MGPU_INT8, [2] = MGPU_INT16, [4] = MGPU_INT32, [8] = MGPU_INT64}};
    size_t size = H5Tget_size(type);
    return size > 8 ? MGPU_UNDEFINED : types[H5Tget_sign(type) == H5T_SGN_2][size];
}

/* An enumeration is its integers, but the one that h5py makes of booleans. */
static enum mgpu_dtype enum_type(hid_t type)
{
    hid_t base = H5Tget_super(type);
    enum mgpu_dtype out = integer_type(base);
    H5Tclose(base);
    if (H5Tget_nmembers(type) == 2 && H5Tget_size(type) == 1 &&
        H5Tget_member_index(type, "FALSE") >= 0 && H5Tget_member_index(type, "TRUE") >= 0)
        return MGPU_BOOL;
    return out;
}

static enum mgpu_dtype float_type(hid_t type)
{
    size_t sign, exponent, exponent_size, mantissa, mantissa_size;
    H5Tget_fields(type, &sign, &exponent, &exponent_size, &mantissa, &mantissa_size);
    switch (H5Tget_size(type)) {
    case 2: /* other formats of two bytes HDF5 converts to the wider float */
        return exponent_size == 5 && mantissa_size == 10 ? MGPU_FLOAT16 : MGPU_FLOAT;
    case 4:
        return MGPU_FLOAT;
    case 8:
        return MGPU_DOUBLE;
    default:
        return MGPU_UNDEFINED;
    }
}

static bool says_bfloat16(hid_t dataset)
{
    char **strings;
    int count;
    if (H5Aexists(dataset, "dtype") <= 0 ||
        mgpu_h5_read_strings(&strings, &count, dataset, "dtype") < 0)
        return false;
    bool out = count == 1 && strcmp(strings[0], "bfloat16") == 0;
    for (int i = 0; i < count; i++)
        free(strings[i]);
    free(strings);
    return out;
}

/* Enumerations and opaque types are read as they lie, in the machine's byte order. */
static int describe_type(enum mgpu_dtype *out, hid_t *memory, hid_t dataset, hid_t type)
{
    H5T_class_t class = H5Tget_class(type);
    *out = class == H5T_INTEGER ? integer_type(type)
           : class == H5T_FLOAT ? float_type(type)
           : class == H5T_ENUM  ? enum_type(type)
           : class == H5T_OPAQUE && H5Tget_size(type) == 2 && says_bfloat16(dataset)
               ? MGPU_BFLOAT16
               : MGPU_UNDEFINED;
    if (*out == MGPU_UNDEFINED)
        return mgpu_fail(MGPU_EUNSUPPORTED, "it holds %s",
                         class == H5T_STRING     ? "text, not numbers"
                         : class == H5T_COMPOUND ? "records of several fields"
                         : class == H5T_VLEN     ? "lists of varying length"
                                                 : "elements of a type that is not supported");
    *memory = class == H5T_ENUM || class == H5T_OPAQUE ? H5Tget_native_type(type, H5T_DIR_ASCEND)
                                                       : mgpu_h5_type(*out);
    return *memory < 0 ? mgpu_h5_fail(MGPU_EUNSUPPORTED, "its element type") : 0;
}

static int describe_shape(struct mgpu_h5_shape *out, hid_t dataset)
{
    hsize_t dims[H5S_MAX_RANK], chunk[H5S_MAX_RANK];
    hid_t space = H5Dget_space(dataset), create = H5Dget_create_plist(dataset);
    int rank = H5Sget_simple_extent_dims(space, dims, NULL);
    bool empty = H5Sget_simple_extent_type(space) == H5S_NULL;
    bool chunked =
        H5Pget_layout(create) == H5D_CHUNKED && H5Pget_chunk(create, rank, chunk) == rank;
    H5Pclose(create);
    H5Sclose(space);
    if (rank < 0 || empty)
        return mgpu_h5_fail(MGPU_EINVALID, "it has no shape");
    if (rank > MGPU_MAX_RANK)
        return mgpu_fail(MGPU_EUNSUPPORTED, "%d dimensions, more than %d", rank, MGPU_MAX_RANK);
    out->rank = rank;
    for (int i = 0; i < rank; i++) {
        if (dims[i] > INT64_MAX)
            return mgpu_fail(MGPU_EINVALID, "a dimension passes 63 bits");
        out->dims[i] = (int64_t)dims[i];
        out->chunk[i] = chunked ? (int64_t)chunk[i] : 0;
    }
    return 0;
}

int mgpu_h5_describe(struct mgpu_h5_shape *out, hid_t *memory, hid_t dataset)
{
    memset(out, 0, sizeof *out);
    MGPU_TRY(describe_shape(out, dataset));
    hid_t type = H5Dget_type(dataset);
    int rc = describe_type(&out->type, memory, dataset, type);
    H5Tclose(type);
    return rc;
}

int mgpu_h5_read_rows(hid_t dataset, hid_t memory, int rank, const int64_t *dims, int axis,
                      int64_t first, void *to)
{
    hsize_t start[MGPU_MAX_RANK] = {0}, size[MGPU_MAX_RANK];
    for (int i = 0; i < rank; i++)
        size[i] = (hsize_t)dims[i];
    if (axis >= 0)
        start[axis] = (hsize_t)first;
    hid_t file = H5Dget_space(dataset);
    hid_t rows = rank ? H5Screate_simple(rank, size, NULL) : H5Screate(H5S_SCALAR);
    herr_t rc = rank ? H5Sselect_hyperslab(file, H5S_SELECT_SET, start, NULL, size, NULL) : 0;
    if (rc >= 0)
        rc = H5Dread(dataset, memory, rows, file, H5P_DEFAULT, to);
    H5Sclose(rows);
    H5Sclose(file);
    return rc < 0 ? mgpu_h5_fail(MGPU_EIO, "cannot be read") : 0;
}

static char *copy_text(const char *from, size_t most)
{
    size_t n = strnlen(from, most);
    char *out = mgpu_xcalloc(n + 1, 1);
    return memcpy(out, from, n);
}

static int read_fixed(char **strings, hid_t attribute, hid_t type, hsize_t count)
{
    size_t size = H5Tget_size(type);
    char *block = mgpu_xcalloc((size_t)count, size);
    herr_t rc = H5Aread(attribute, type, block);
    for (hsize_t i = 0; rc >= 0 && i < count; i++) /* an item may fill its width without a zero */
        strings[i] = copy_text(block + i * size, size);
    free(block);
    return rc < 0 ? -1 : 0;
}

static int read_variable(char **strings, hid_t attribute, hid_t space, hsize_t count)
{
    hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, H5T_VARIABLE);
    hid_t file_type = H5Aget_type(attribute);
    H5Tset_cset(type, H5Tget_cset(file_type));
    H5Tclose(file_type);
    char **block = mgpu_xcalloc((size_t)count, sizeof *block);
    herr_t rc = H5Aread(attribute, type, block);
    for (hsize_t i = 0; rc >= 0 && i < count; i++)
        strings[i] = mgpu_xstrdup(block[i] ? block[i] : "");
    if (rc >= 0)
        H5Dvlen_reclaim(type, space, H5P_DEFAULT, block);
    free(block);
    H5Tclose(type);
    return rc < 0 ? -1 : 0;
}

static int read_attribute(char ***out, int *count, hid_t attribute, const char *name)
{
    hid_t type = H5Aget_type(attribute), space = H5Aget_space(attribute);
    hssize_t n = H5Sget_simple_extent_npoints(space);
    int rc = 0;
    *count = 0;
    *out = NULL;
    if (n < 0 || n > INT32_MAX || H5Aget_storage_size(attribute) > mgpu_h5_file_size(attribute))
        rc = mgpu_fail(MGPU_EINVALID, "attribute '%s' is too large", name);
    else if (n > 0 && H5Tget_class(type) != H5T_STRING)
        rc = mgpu_fail(MGPU_EINVALID, "attribute '%s' is not text", name);
    else if (n > 0) {
        *out = mgpu_xcalloc((size_t)n, sizeof **out);
        *count = (int)n;
        rc = H5Tis_variable_str(type) > 0 ? read_variable(*out, attribute, space, (hsize_t)n)
                                          : read_fixed(*out, attribute, type, (hsize_t)n);
        if (rc < 0)
            rc = mgpu_h5_fail(MGPU_EINVALID, "attribute '%s'", name);
    }
    H5Sclose(space);
    H5Tclose(type);
    return rc;
}

int mgpu_h5_read_strings(char ***out, int *count, hid_t object, const char *name)
{
    *out = NULL;
    *count = 0;
    hid_t attribute = H5Aopen(object, name, H5P_DEFAULT);
    if (attribute < 0)
        return mgpu_h5_fail(MGPU_EINVALID, "there is no attribute '%s'", name);
    int rc = read_attribute(out, count, attribute, name);
    H5Aclose(attribute);
    if (rc < 0) {
        for (int i = 0; i < *count; i++)
            free((*out)[i]);
        free(*out);
        *out = NULL;
        *count = 0;
    }
    return rc;
}
