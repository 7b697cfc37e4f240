/* NumPy's .npz: a zip archive of npy files; "x.npy" is the array x. */
#include "runtime/base/names.h"
#include "runtime/base/status.h"
#include "runtime/data/npy.h"
#include "runtime/data/zip.h"

#include <string.h>

static bool probe(const uint8_t *head, size_t size)
{
    return size >= 4 && (memcmp(head, "PK\3\4", 4) == 0 || memcmp(head, "PK\5\6", 4) == 0);
}

/* Length of the array's name in a member's name, or 0 when the member is no npy file. */
static size_t array_name(const char *member)
{
    size_t n = strlen(member);
    return n > 4 && strcmp(member + n - 4, ".npy") == 0 ? n - 4 : 0;
}

static void add_names(struct mgpu_name_list *out, const struct mgpu_zip_member *members, int count)
{
    for (int i = 0; i < count; i++) {
        size_t n = array_name(members[i].name);
        if (!n)
            continue;
        members[i].name[n] = 0;
        mgpu_name_list_add(out, members[i].name);
    }
}

/* "x.npy" and "x": readers differ in which of them is the array x. */
static int check_twins(const struct mgpu_zip_member *members, int count)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_names *names = mgpu_names_new(arena);
    int rc = 0;
    for (int i = 0; i < count; i++)
        mgpu_names_set(names, members[i].name, &members[i]);
    for (int i = 0; i < count && rc == 0; i++) {
        int n = (int)array_name(members[i].name);
        const char *name = mgpu_arena_format(arena, "%.*s", n, members[i].name);
        if (n && mgpu_names_get(names, name))
            rc = mgpu_fail(MGPU_EINVALID, "two members are the array '%s'", name);
    }
    mgpu_arena_free(arena);
    return rc;
}

static int list_npz(struct mgpu_name_list *out, const char *path)
{
    struct mgpu_mapped file;
    struct mgpu_zip_member *members;
    int count;
    MGPU_TRY(mgpu_mapped_open(&file, path));
    int rc = mgpu_prefix(mgpu_zip_list(&members, &count, &file), "%s", path);
    if (rc == 0) {
        rc = mgpu_prefix(check_twins(members, count), "%s", path);
        if (rc == 0)
            add_names(out, members, count);
        mgpu_zip_free(members, count);
    }
    mgpu_mapped_close(&file);
    return rc;
}

static const struct mgpu_zip_member *find(const struct mgpu_zip_member *members, int count,
                                          const char *name)
{
    for (int i = 0; i < count; i++) {
        size_t n = array_name(members[i].name);
        if (n && n == strlen(name) && memcmp(members[i].name, name, n) == 0)
            return &members[i];
    }
    return NULL;
}

static int open_npz(struct mgpu_dataset *d)
{
    struct mgpu_dense *dense;
    struct mgpu_zip_member *members;
    int count;
    MGPU_TRY(mgpu_dense_map(&dense, d));
    MGPU_TRY(mgpu_zip_list(&members, &count, &dense->file));
    const struct mgpu_zip_member *m = find(members, count, d->name);
    const uint8_t *content;
    int rc = m ? mgpu_zip_read(&content, &dense->owned, &dense->file, m)
               : mgpu_fail(MGPU_EINVALID, "no such array in the file");
    if (rc == 0)
        rc = mgpu_npy_parse(d, content, m->size);
    mgpu_zip_free(members, count);
    return rc;
}

const struct mgpu_dataset_kind mgpu_dataset_npz = {
    .name = "npz",
    .probe = probe,
    .list = list_npz,
    .open = open_npz,
    .read = mgpu_dense_read,
    .close = mgpu_dense_close,
};
