#include "runtime/data/h5.h"

#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "runtime/data/unpack.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* HDF5 crashes at the end of the process when closing a file has failed (a full disk), because it
 * tries again: every file here is closed by hand. */
static void start(void)
{
    H5dont_atexit();
}

void mgpu_h5_lock(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start);
    pthread_mutex_lock(&lock);
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL); /* a setting of the thread */
    H5PLset_loading_state(0);
}

void mgpu_h5_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

static herr_t innermost(unsigned n, const H5E_error2_t *error, void *context)
{
    if (n == 0)
        snprintf(context, 512, "%s", error->desc ? error->desc : "");
    return 0;
}

int mgpu_h5_fail(int code, const char *format, ...)
{
    char cause[512] = "", text[1024];
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, innermost, cause);
    H5Eclear2(H5E_DEFAULT);
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return mgpu_fail(code, "%s%s%s", text, *cause ? ": " : "", cause);
}

int mgpu_h5_open_file(hid_t *out, const char *path)
{
    struct stat info;
    *out = -1;
    if (stat(path, &info) < 0)
        return mgpu_fail(MGPU_EIO, "%s", strerror(errno));
    if (!S_ISREG(info.st_mode)) /* a pipe would make us wait */
        return mgpu_fail(MGPU_EINVALID, "not a regular file");
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_file_locking(access, 0, 1);
    *out = H5Fopen(path, H5F_ACC_RDONLY, access);
    int rc = *out < 0 ? mgpu_h5_fail(MGPU_EINVALID, "not a readable HDF5 file") : 0;
    H5Pclose(access); /* forgets what the cause was */
    return rc;
}

int mgpu_h5_open_memory(hid_t *out, const void *bytes, size_t size)
{
    enum { GROW = 64 << 10 };
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_fapl_core(access, GROW, 0);
    H5Pset_file_image(access, (void *)(uintptr_t)bytes, size);
    *out = H5Fopen("in memory", H5F_ACC_RDONLY, access);
    int rc = *out < 0 ? mgpu_h5_fail(MGPU_EINVALID, "not a readable HDF5 file") : 0;
    H5Pclose(access);
    return rc;
}

uint64_t mgpu_h5_file_size(hid_t object)
{
    hsize_t size = 0;
    hid_t file = H5Iget_file_id(object);
    H5Fget_filesize(file, &size);
    H5Fclose(file);
    return size;
}

/* Checks the link at `name`, whose parents have been checked. */
static int check_link(hid_t base, const char *name)
{
    H5L_info_t link;
    if (H5Lexists(base, name, H5P_DEFAULT) <= 0 || H5Lget_info(base, name, &link, H5P_DEFAULT) < 0)
        return mgpu_h5_fail(MGPU_EINVALID, "there is no '%s' in the file", name);
    if (link.type == H5L_TYPE_HARD)
        return 0;
    return mgpu_fail(MGPU_EUNSUPPORTED, "'%s' is %s, which is not followed", name,
                     link.type == H5L_TYPE_SOFT       ? "a soft link"
                     : link.type == H5L_TYPE_EXTERNAL ? "a link to another file"
                                                      : "a link of unknown kind");
}

/* Checks every step of the way: each prefix of the path that ends before a '/'. */
static int check_path(hid_t base, const char *name)
{
    char *step = mgpu_xstrdup(name);
    int rc = 0;
    for (char *end = step; rc == 0 && *end;) {
        end += strspn(end, "/");
        end += strcspn(end, "/");
        char next = *end;
        *end = 0;
        if (step[strspn(step, "/")]) /* not the root itself */
            rc = check_link(base, step);
        *end = next;
    }
    free(step);
    return rc;
}

int mgpu_h5_open_object(hid_t *out, hid_t base, const char *name)
{
    *out = -1;
    MGPU_TRY(check_path(base, name));
    *out = H5Oopen(base, *name ? name : ".", H5P_DEFAULT);
    return *out < 0 ? mgpu_h5_fail(MGPU_EINVALID, "'%s' cannot be opened", name) : 0;
}

int mgpu_h5_open_group(hid_t *out, hid_t base, const char *name)
{
    *out = -1;
    MGPU_TRY(check_path(base, name));
    *out = H5Gopen2(base, name, H5P_DEFAULT);
    return *out < 0 ? mgpu_h5_fail(MGPU_EINVALID, "'%s' is not a group", name) : 0;
}

static int check_filters(hid_t create, const char *name)
{
    int count = H5Pget_nfilters(create);
    for (int i = 0; i < count; i++) {
        unsigned flags;
        size_t no_values = 0;
        char filter_name[64] = "";
        H5Z_filter_t filter = H5Pget_filter2(create, (unsigned)i, &flags, &no_values, NULL,
                                             sizeof filter_name, filter_name, NULL);
        if (filter != H5Z_FILTER_DEFLATE && filter != H5Z_FILTER_SHUFFLE &&
            filter != H5Z_FILTER_FLETCHER32)
            return mgpu_fail(MGPU_EUNSUPPORTED,
                             "'%s' is packed with filter %d (%s); only gzip, shuffle and "
                             "fletcher32 are read",
                             name, (int)filter, filter_name);
    }
    return 0;
}

static int check_storage_kind(hid_t dataset, const char *name)
{
    hid_t create = H5Dget_create_plist(dataset);
    int rc;
    if (H5Pget_layout(create) == H5D_VIRTUAL)
        rc =
            mgpu_fail(MGPU_EUNSUPPORTED, "'%s' is a virtual data set, which is not followed", name);
    else if (H5Pget_external_count(create) != 0)
        rc = mgpu_fail(MGPU_EUNSUPPORTED, "'%s' is stored outside the file, which is not followed",
                       name);
    else
        rc = check_filters(create, name);
    H5Pclose(create);
    return rc;
}

/* Elements, counted in floating point: this only compares, and cannot overflow. */
static double points(int rank, const hsize_t *dims)
{
    double n = 1;
    for (int i = 0; i < rank; i++)
        n *= (double)dims[i];
    return n;
}

static double chunk_points(hid_t dataset, int rank)
{
    hsize_t chunk[H5S_MAX_RANK];
    hid_t create = H5Dget_create_plist(dataset);
    double out = 0;
    if (H5Pget_layout(create) == H5D_CHUNKED && H5Pget_chunk(create, rank, chunk) == rank)
        out = points(rank, chunk);
    H5Pclose(create);
    return out;
}

/* Elements of the whole and of one chunk, and the bytes of an element. */
static size_t measure(double *whole, double *chunk, hid_t dataset)
{
    hsize_t dims[H5S_MAX_RANK];
    hid_t space = H5Dget_space(dataset), type = H5Dget_type(dataset);
    int rank = H5Sget_simple_extent_dims(space, dims, NULL);
    size_t size = H5Tget_size(type);
    *whole = rank < 0 ? 0 : points(rank, dims);
    *chunk = rank < 0 ? 0 : chunk_points(dataset, rank);
    H5Tclose(type);
    H5Sclose(space);
    return size;
}

/* Bytes that reading takes at least: of the whole, or of one chunk where that is more. */
static double claimed_bytes(hid_t dataset)
{
    double whole, chunk;
    size_t size = measure(&whole, &chunk, dataset);
    return (chunk > whole ? chunk : whole) * (double)size;
}

double mgpu_h5_chunk_bytes(hid_t dataset)
{
    double whole, chunk;
    size_t size = measure(&whole, &chunk, dataset);
    return chunk * (double)size;
}

static H5D_layout_t layout_of(hid_t dataset)
{
    hid_t create = H5Dget_create_plist(dataset);
    H5D_layout_t out = H5Pget_layout(create);
    H5Pclose(create);
    return out;
}

/* What was never written has no bytes and reads as zeros, and chunks may be packed; a little of
 * either is harmless. All other data stand there in full. */
static int check_sizes(hid_t dataset, const char *name)
{
    enum { HARMLESS = 1 << 20 };
    uint64_t stored = H5Dget_storage_size(dataset), file_size = mgpu_h5_file_size(dataset);
    H5D_layout_t layout = layout_of(dataset);
    bool plain = layout == H5D_COMPACT || (layout == H5D_CONTIGUOUS && stored > 0);
    uint64_t start = plain ? H5Dget_offset(dataset) : HADDR_UNDEF;
    double claimed = claimed_bytes(dataset);
    double most = plain ? (double)stored : MGPU_DEFLATE_MOST * (double)stored;
    if (stored > file_size || (start != HADDR_UNDEF && start > file_size - stored))
        return mgpu_fail(MGPU_EINVALID, "'%s' is cut off: its %.0f bytes pass the file's %.0f",
                         name, (double)stored, (double)file_size);
    if (claimed > most && (plain || claimed > HARMLESS))
        return mgpu_fail(MGPU_EINVALID, "'%s' claims %.0f bytes, but only %.0f are stored", name,
                         claimed, (double)stored);
    return 0;
}

int mgpu_h5_open_dataset(hid_t *out, hid_t base, const char *name)
{
    *out = -1;
    MGPU_TRY(check_path(base, name));
    hid_t dataset = H5Dopen2(base, name, H5P_DEFAULT);
    if (dataset < 0)
        return mgpu_h5_fail(MGPU_EINVALID, "'%s' is not a data set", name);
    int rc = check_storage_kind(dataset, name);
    if (rc == 0)
        rc = check_sizes(dataset, name);
    if (rc == 0)
        *out = dataset;
    else
        H5Dclose(dataset);
    return rc;
}

struct walk {
    mgpu_h5_visit *visit;
    void *context;
    char path[4096]; /* of the group being read, with a final '/' */
    size_t length;
    int depth, rc;
    haddr_t *seen; /* groups with several links, so that a loop ends */
    int seen_count;
};

static herr_t step_into(hid_t group, const char *name, const H5L_info_t *link, void *context);

static bool seen_before(struct walk *w, const H5O_info_t *object)
{
    if (object->rc <= 1)
        return false;
    for (int i = 0; i < w->seen_count; i++)
        if (w->seen[i] == object->addr)
            return true;
    w->seen = mgpu_grow(w->seen, (size_t)w->seen_count, sizeof *w->seen);
    w->seen[w->seen_count++] = object->addr;
    return false;
}

static int walk_group(struct walk *w, hid_t parent, const char *name)
{
    enum { DEPTH_MOST = 64 };
    if (++w->depth > DEPTH_MOST)
        return mgpu_fail(MGPU_EUNSUPPORTED, "'%s' is nested deeper than %d groups", w->path,
                         DEPTH_MOST);
    if (H5Literate_by_name(parent, name, H5_INDEX_NAME, H5_ITER_INC, NULL, step_into, w,
                           H5P_DEFAULT) < 0 &&
        w->rc == 0)
        w->rc = mgpu_h5_fail(MGPU_EINVALID, "the group '%s' cannot be read", w->path);
    w->depth--;
    return w->rc;
}

static int walk_object(struct walk *w, hid_t group, const char *name)
{
    H5O_info_t object;
    if (H5Oget_info_by_name2(group, name, &object, H5O_INFO_BASIC, H5P_DEFAULT) < 0)
        return mgpu_h5_fail(MGPU_EINVALID, "'%s' cannot be read", w->path);
    if (object.type == H5O_TYPE_DATASET)
        return w->visit(w->context, w->path);
    if (object.type != H5O_TYPE_GROUP || seen_before(w, &object))
        return 0;
    w->path[w->length++] = '/';
    w->path[w->length] = 0;
    return walk_group(w, group, name);
}

static herr_t step_into(hid_t group, const char *name, const H5L_info_t *link, void *context)
{
    struct walk *w = context;
    size_t before = w->length, n = strlen(name);
    if (n + before + 2 > sizeof w->path) {
        w->rc = mgpu_fail(MGPU_EUNSUPPORTED, "'%s...': a path too long", w->path);
        return -1;
    }
    memcpy(w->path + before, name, n + 1);
    w->length += n;
    w->rc = link->type == H5L_TYPE_HARD ? walk_object(w, group, name) : check_link(group, name);
    w->length = before;
    w->path[before] = 0;
    return w->rc < 0 ? -1 : 0;
}

int mgpu_h5_walk(hid_t base, mgpu_h5_visit *visit, void *context)
{
    struct walk *w = mgpu_xcalloc(1, sizeof *w);
    w->visit = visit;
    w->context = context;
    int rc = walk_group(w, base, ".");
    H5Eclear2(H5E_DEFAULT);
    free(w->seen);
    free(w);
    return rc;
}
