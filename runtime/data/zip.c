#include "runtime/data/zip.h"

#include "runtime/base/memory.h"
#include "runtime/base/names.h"
#include "runtime/base/status.h"
#include "runtime/data/unpack.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    END_RECORD = 22,      /* end of central directory */
    END_LOCATOR = 20,     /* its zip64 twin's locator, just before it */
    END_RECORD_64 = 56,   /* the twin */
    DIRECTORY_ENTRY = 46, /* fixed part */
    LOCAL_HEADER = 30,    /* fixed part */
    COMMENT_MOST = 65535,
    STORED = 0,
    DEFLATED = 8,
    ENCRYPTED = 1,
};

static uint32_t u16(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8;
}

static uint32_t u32(const uint8_t *p)
{
    return u16(p) | u16(p + 2) << 16;
}

static uint64_t u64(const uint8_t *p)
{
    return u32(p) | (uint64_t)u32(p + 4) << 32;
}

static int damaged(const char *what)
{
    return mgpu_fail(MGPU_EINVALID, "the zip archive is damaged or cut off (%s)", what);
}

/* Offset of the end record, found from the back; a comment may follow it. */
static int find_end(uint64_t *out, const struct mgpu_mapped *f)
{
    if (f->size < END_RECORD)
        return damaged("no directory");
    uint64_t last = f->size - END_RECORD, least = last > COMMENT_MOST ? last - COMMENT_MOST : 0;
    for (uint64_t at = last + 1; at-- > least;)
        if (u32(f->data + at) == 0x06054b50) {
            *out = at;
            return 0;
        }
    return damaged("no directory");
}

/* Offset, size and entries of the directory. */
static int find_directory(uint64_t *start, uint64_t *size, uint64_t *entries,
                          const struct mgpu_mapped *f)
{
    uint64_t end = 0;
    MGPU_TRY(find_end(&end, f));
    const uint8_t *p = f->data + end;
    *entries = u16(p + 10);
    *size = u32(p + 12);
    *start = u32(p + 16);
    if (end >= END_LOCATOR && u32(p - END_LOCATOR) == 0x07064b50) {
        uint64_t at = u64(p - END_LOCATOR + 8);
        if (at > f->size || f->size - at < END_RECORD_64 || u32(f->data + at) != 0x06064b50)
            return damaged("zip64 record");
        *entries = u64(f->data + at + 32);
        *size = u64(f->data + at + 40);
        *start = u64(f->data + at + 48);
    }
    if (*start > f->size || *size > f->size - *start || *entries > *size / DIRECTORY_ENTRY)
        return damaged("directory");
    return 0;
}

/* Sizes that do not fit 32 bits stand in extra field 1, in this order, only those that are -1. */
static int read_zip64(struct mgpu_zip_member *m, const uint8_t *extra, uint32_t length)
{
    uint64_t *wide[] = {&m->size, &m->packed, &m->offset};
    while (length >= 4) {
        uint32_t id = u16(extra), n = u16(extra + 2);
        if (n > length - 4)
            return damaged("extra field");
        const uint8_t *p = extra + 4, *end = p + n;
        for (int i = 0; id == 1 && i < 3; i++)
            if (*wide[i] == UINT32_MAX) {
                if (end - p < 8)
                    return damaged("zip64 field");
                *wide[i] = u64(p);
                p += 8;
            }
        extra += 4 + n;
        length -= 4 + n;
    }
    return 0;
}

static int read_entry(struct mgpu_zip_member *m, const uint8_t **at, const uint8_t *end)
{
    const uint8_t *p = *at;
    if (end - p < DIRECTORY_ENTRY || u32(p) != 0x02014b50)
        return damaged("directory entry");
    uint32_t name = u16(p + 28), extra = u16(p + 30), comment = u16(p + 32);
    if ((uint64_t)(end - p) < (uint64_t)DIRECTORY_ENTRY + name + extra + comment)
        return damaged("directory entry");
    m->flags = (int)u16(p + 8);
    m->method = (int)u16(p + 10);
    m->crc = u32(p + 16);
    m->packed = u32(p + 20);
    m->size = u32(p + 24);
    m->offset = u32(p + 42);
    m->name = mgpu_xcalloc(name + 1, 1);
    memcpy(m->name, p + DIRECTORY_ENTRY, name);
    *at = p + DIRECTORY_ENTRY + name + extra + comment;
    return read_zip64(m, p + DIRECTORY_ENTRY + name, extra);
}

/* Readers differ in which of two they take. */
static int check_names(const struct mgpu_zip_member *members, int count)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_names *names = mgpu_names_new(arena);
    int rc = 0;
    for (int i = 0; i < count && rc == 0; i++) {
        if (mgpu_names_get(names, members[i].name))
            rc = mgpu_fail(MGPU_EINVALID, "two members are called '%s'", members[i].name);
        mgpu_names_set(names, members[i].name, &members[i]);
    }
    mgpu_arena_free(arena);
    return rc;
}

int mgpu_zip_list(struct mgpu_zip_member **out, int *count, const struct mgpu_mapped *f)
{
    uint64_t start, size, entries;
    *out = NULL;
    *count = 0;
    MGPU_TRY(find_directory(&start, &size, &entries, f));
    if (entries > INT32_MAX)
        return damaged("directory");
    struct mgpu_zip_member *members = mgpu_xcalloc((size_t)entries, sizeof *members);
    const uint8_t *at = f->data + start, *end = at + size;
    for (int i = 0; i < (int)entries; i++) {
        int rc = read_entry(&members[i], &at, end);
        if (rc < 0) {
            mgpu_zip_free(members, i + 1);
            return rc;
        }
    }
    int rc = check_names(members, (int)entries);
    if (rc < 0) {
        mgpu_zip_free(members, (int)entries);
        return rc;
    }
    *out = members;
    *count = (int)entries;
    return 0;
}

void mgpu_zip_free(struct mgpu_zip_member *members, int count)
{
    for (int i = 0; i < count; i++)
        free(members[i].name);
    free(members);
}

/* Where the packed bytes begin: after the local header, whose name and extra field have lengths of
 * their own. */
static int locate(const uint8_t **out, const struct mgpu_mapped *f, const struct mgpu_zip_member *m)
{
    if (m->offset > f->size || f->size - m->offset < LOCAL_HEADER)
        return damaged("member offset");
    const uint8_t *p = f->data + m->offset;
    if (u32(p) != 0x04034b50)
        return damaged("member header");
    uint64_t skip = (uint64_t)LOCAL_HEADER + u16(p + 26) + u16(p + 28);
    if (skip > f->size - m->offset || m->packed > f->size - m->offset - skip)
        return damaged("member passes the end of the file");
    *out = p + skip;
    return 0;
}

static int inflate_member(void *to, const uint8_t *packed, const struct mgpu_zip_member *m)
{
    struct mgpu_unpack unpack;
    uint64_t got;
    MGPU_TRY(mgpu_unpack_begin(&unpack, MGPU_UNPACK_RAW, packed, m->packed));
    int rc = mgpu_unpack_read(&unpack, to, m->size, &got);
    mgpu_unpack_end(&unpack);
    if (rc == 0 && got < m->size)
        return damaged("member is shorter than the directory says");
    return rc;
}

static int check_crc(const uint8_t *content, const struct mgpu_zip_member *m)
{
    if (crc32_z(0, content, (size_t)m->size) != m->crc)
        return damaged("check sum");
    return 0;
}

int mgpu_zip_read(const uint8_t **content, void **owned, const struct mgpu_mapped *f,
                  const struct mgpu_zip_member *m)
{
    const uint8_t *packed = NULL;
    *owned = NULL;
    if (m->flags & ENCRYPTED)
        return mgpu_fail(MGPU_EUNSUPPORTED, "the member is encrypted");
    if (m->method != STORED && m->method != DEFLATED)
        return mgpu_fail(MGPU_EUNSUPPORTED, "compression method %d is not supported (0 and 8 are)",
                         m->method);
    MGPU_TRY(locate(&packed, f, m));
    if (m->method == STORED) {
        if (m->size != m->packed)
            return damaged("sizes of a stored member differ");
        *content = packed;
        return check_crc(packed, m);
    }
    if (m->size / MGPU_DEFLATE_MOST > m->packed + 1)
        return mgpu_fail(MGPU_EINVALID,
                         "claims %" PRIu64 " bytes, which %" PRIu64 " packed bytes cannot hold",
                         m->size, m->packed);
    MGPU_TRY(mgpu_alloc(owned, m->size, m->name));
    *content = *owned;
    int rc = inflate_member(*owned, packed, m);
    if (rc == 0)
        rc = check_crc(*content, m);
    if (rc < 0) {
        mgpu_free(*owned);
        *owned = NULL;
    }
    return rc;
}
