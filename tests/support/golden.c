#include "tests/support/golden.h"

#include "runtime/base/memory.h"
#include "runtime/base/status.h"

#include <dirent.h>
#include <hdf5.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *join(const char *a, const char *b)
{
    size_t size = strlen(a) + strlen(b) + 2;
    char *path = mgpu_xcalloc(size, 1);
    snprintf(path, size, "%s/%s", a, b);
    return path;
}

int mgpu_golden_open(struct mgpu_golden *out, const char *folder)
{
    const char *slash = strrchr(folder, '/');
    char *path = join(folder, "case.json");
    *out = (struct mgpu_golden){
        .name = mgpu_xstrdup(slash ? slash + 1 : folder),
        .folder = mgpu_xstrdup(folder),
        .model = join(folder, "model.onnx"),
        .json = json_object_from_file(path),
    };
    free(path);
    if (!out->json)
        return mgpu_fail(MGPU_EIO, "%s/case.json cannot be read", folder);
    out->batch = json_object_get_int64(json_object_object_get(out->json, "batch"));
    out->steps = json_object_get_int64(json_object_object_get(out->json, "steps"));
    return 0;
}

void mgpu_golden_close(struct mgpu_golden *golden)
{
    json_object_put(golden->json);
    free(golden->name);
    free(golden->folder);
    free(golden->model);
}

/* ---- golden.h5 ------------------------------------------------------------------------------ */

static enum mgpu_dtype type_of(hid_t type)
{
    size_t size = H5Tget_size(type);
    bool is_signed = H5Tget_sign(type) == H5T_SGN_2;
    switch (H5Tget_class(type)) {
    case H5T_FLOAT:
        return size == 8 ? MGPU_DOUBLE : size == 4 ? MGPU_FLOAT : MGPU_FLOAT16;
    case H5T_ENUM: /* h5py's bool */
        return MGPU_BOOL;
    case H5T_INTEGER:
        return size == 8   ? (is_signed ? MGPU_INT64 : MGPU_UINT64)
               : size == 4 ? (is_signed ? MGPU_INT32 : MGPU_UINT32)
               : size == 2 ? (is_signed ? MGPU_INT16 : MGPU_UINT16)
                           : (is_signed ? MGPU_INT8 : MGPU_UINT8);
    default:
        return MGPU_UNDEFINED;
    }
}

static char *true_name(hid_t set)
{
    char *text = NULL, *copy;
    hid_t attribute = H5Aopen(set, "name", H5P_DEFAULT), type = H5Aget_type(attribute);
    if (H5Tis_variable_str(type)) {
        H5Aread(attribute, type, &text);
        copy = mgpu_xstrdup(text);
        H5free_memory(text);
    } else {
        copy = mgpu_xcalloc(H5Tget_size(type) + 1, 1);
        H5Aread(attribute, type, copy);
    }
    H5Tclose(type);
    H5Aclose(attribute);
    return copy;
}

static int read_tensor(hid_t set, struct mgpu_golden_tensor *out)
{
    hsize_t sizes[MGPU_MAX_RANK];
    int64_t dims[MGPU_MAX_RANK];
    hid_t type = H5Dget_type(set), space = H5Dget_space(set);
    int rank = H5Sget_simple_extent_dims(space, sizes, NULL);
    for (int i = 0; i < rank; i++)
        dims[i] = (int64_t)sizes[i];
    out->name = true_name(set);
    int rc = mgpu_array_init(&out->array, type_of(type), rank, dims, out->name);
    if (rc >= 0 && H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, out->array.data) < 0)
        rc = mgpu_fail(MGPU_EIO, "'%s' cannot be read", out->name);
    H5Sclose(space);
    H5Tclose(type);
    return rc;
}

static int read_group(hid_t group, struct mgpu_golden_group *out)
{
    H5G_info_t info;
    H5Gget_info(group, &info);
    out->tensor = mgpu_xcalloc((size_t)info.nlinks + 1, sizeof *out->tensor);
    for (hsize_t i = 0; i < info.nlinks; i++) {
        hid_t set = H5Oopen_by_idx(group, ".", H5_INDEX_NAME, H5_ITER_INC, i, H5P_DEFAULT);
        int rc = read_tensor(set, &out->tensor[out->count++]);
        H5Oclose(set);
        MGPU_TRY(rc);
    }
    return 0;
}

int mgpu_golden_read(const struct mgpu_golden *golden, const char *group,
                     struct mgpu_golden_group *out)
{
    char *path = join(golden->folder, "golden.h5");
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    int rc = 0;
    *out = (struct mgpu_golden_group){0};
    free(path);
    if (file < 0)
        return mgpu_fail(MGPU_EIO, "%s/golden.h5 cannot be read", golden->folder);
    if (H5Lexists(file, group, H5P_DEFAULT) > 0) {
        hid_t g = H5Gopen(file, group, H5P_DEFAULT);
        rc = read_group(g, out);
        H5Gclose(g);
    }
    H5Fclose(file);
    return rc;
}

void mgpu_golden_group_free(struct mgpu_golden_group *group)
{
    for (int i = 0; i < group->count; i++) {
        free(group->tensor[i].name);
        mgpu_array_free(&group->tensor[i].array);
    }
    free(group->tensor);
    *group = (struct mgpu_golden_group){0};
}

const struct mgpu_array *mgpu_golden_find(const struct mgpu_golden_group *group, const char *name)
{
    for (int i = 0; i < group->count; i++)
        if (!strcmp(group->tensor[i].name, name))
            return &group->tensor[i].array;
    return NULL;
}

/* ---- case.json ------------------------------------------------------------------------------ */

int64_t mgpu_golden_int(const struct mgpu_golden *golden, const char *field, const char *name,
                        int64_t otherwise)
{
    struct json_object *table, *value;
    if (!json_object_object_get_ex(golden->json, field, &table) ||
        !json_object_object_get_ex(table, name, &value))
        return otherwise;
    return json_object_get_int64(value);
}

bool mgpu_golden_lists(const struct mgpu_golden *golden, const char *field, const char *name)
{
    struct json_object *list;
    if (!json_object_object_get_ex(golden->json, field, &list) ||
        !json_object_is_type(list, json_type_array))
        return false;
    for (size_t i = 0; i < json_object_array_length(list); i++)
        if (!strcmp(json_object_get_string(json_object_array_get_idx(list, i)), name))
            return true;
    return false;
}

double mgpu_golden_limit(const struct mgpu_golden *golden, const char *what)
{
    static const struct {
        const char *what;
        double floor;
    } floors[] = {
        {"forward", 1e-5}, {"loss", 2e-5},       {"gradient", 1e-4},
        {"weights", 5e-4}, {"statistics", 2e-5},
    };
    struct json_object *table, *value;
    double limit = 0;
    if (json_object_object_get_ex(golden->json, "tolerance", &table) &&
        json_object_object_get_ex(table, what, &value))
        limit = json_object_get_double(value);
    for (size_t i = 0; i < sizeof floors / sizeof *floors; i++)
        if (!strcmp(what, floors[i].what))
            limit = fmax(limit, floors[i].floor);
    return limit;
}

int mgpu_golden_axis(const struct mgpu_golden *golden, const char *name, int64_t *rows)
{
    *rows = mgpu_golden_int(golden, "rows", name, -1);
    bool samples = *rows < 0;
    if (samples)
        *rows = golden->batch;
    return samples ? (int)mgpu_golden_int(golden, "axis", name, 0) : -1;
}

int mgpu_golden_slice(const struct mgpu_golden *golden, const struct mgpu_golden_tensor *tensor,
                      int64_t step, struct mgpu_array *out)
{
    const struct mgpu_array *a = &tensor->array;
    int64_t rows, dims[MGPU_MAX_RANK], outer = 1, inner = 1;
    mgpu_golden_axis(golden, tensor->name, &rows);
    int axis = (int)mgpu_golden_int(golden, "axis", tensor->name, 0);
    if (axis >= a->rank || (step + 1) * rows > a->dims[axis])
        return mgpu_fail(MGPU_EINVALID, "'%s' has no step %" PRId64, tensor->name, step);
    for (int i = 0; i < a->rank; i++) {
        dims[i] = i == axis ? rows : a->dims[i];
        *(i < axis ? &outer : &inner) *= i == axis ? 1 : a->dims[i];
    }
    MGPU_TRY(mgpu_array_init(out, a->type, a->rank, dims, tensor->name));
    size_t size = mgpu_dtype_size(a->type) * (size_t)inner;
    for (int64_t o = 0; o < outer; o++)
        memcpy((char *)out->data + (size_t)(o * rows) * size,
               (const char *)a->data + (size_t)(o * a->dims[axis] + step * rows) * size,
               (size_t)rows * size);
    return 0;
}

double mgpu_golden_distance(const double *a, const struct mgpu_array *b)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0, n = mgpu_array_count(b); i < n; i++) {
        double want = mgpu_get_double(b->data, b->type, i);
        difference += (a[i] - want) * (a[i] - want);
        norm += want * want;
    }
    return difference == 0 ? 0 : sqrt(difference / norm);
}

/* ---- Folders -------------------------------------------------------------------------------- */

static bool has(char **list, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(strrchr(list[i], '/') + 1, name))
            return true;
    return false;
}

static void add_folders(const char *folder, char ***list, int *count)
{
    struct dirent **entry;
    int n = scandir(folder, &entry, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char *path = join(folder, entry[i]->d_name), *json = join(path, "case.json");
        if (access(json, R_OK) == 0 && !has(*list, *count, entry[i]->d_name)) {
            *list = mgpu_grow(*list, (size_t)*count, sizeof **list);
            (*list)[(*count)++] = mgpu_xstrdup(path);
        }
        free(path);
        free(json);
        free(entry[i]);
    }
    if (n >= 0)
        free(entry);
}

char **mgpu_golden_folders(int *count)
{
    const char *cases = getenv("MGPU_CASES");
    char **list = NULL;
    *count = 0;
    add_folders(cases && *cases ? cases : "../shared/cases", &list, count);
    add_folders("tests/cases", &list, count);
    return list;
}
