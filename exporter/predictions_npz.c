/* Predictions as npz: a zip archive (with zip64) of stored npy members.
 *
 * All sizes are known at the start, so each member has its place and batches are written straight
 * there; at the end the content is read back once for the check sums, and headers and directory are
 * written. Formats: PKWARE's APPNOTE.TXT 6.3; numpy.lib.format 1.0. */
#include "exporter/atomic_file.h"
#include "exporter/predictions_private.h"
#include "runtime/base/memory.h"
#include "runtime/base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum {
    LOCAL_HEADER = 30,
    LOCAL_EXTRA = 20,     /* zip64: two sizes */
    DIRECTORY_EXTRA = 28, /* zip64: two sizes and the offset */
    NPY_HEADER = 256,     /* magic, length and text, padded */
    VERSION = 45,         /* of zip, that has zip64 */
    DATE = 0x21,          /* 1 January 1980 */
};

struct member {
    char *name;       /* with .npy */
    uint64_t offset;  /* of the local header */
    uint64_t content; /* of the npy header */
    uint64_t size;    /* of npy header and data */
    uint32_t crc;
};

struct npz_state {
    struct mgpu_atomic_file file;
    struct member *members;
    uint64_t end; /* of the last member: where the directory goes */
};

static int fail(const struct mgpu_predictions *p)
{
    return mgpu_fail(MGPU_EIO, "%s: cannot write: %s", p->path, strerror(errno));
}

static int write_at(struct mgpu_predictions *p, uint64_t offset, const void *bytes, size_t size)
{
    struct npz_state *s = p->state;
    for (size_t done = 0; done < size;) {
        ssize_t n =
            pwrite(s->file.fd, (const char *)bytes + done, size - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail(p);
        done += (size_t)n;
    }
    return 0;
}

static uint64_t data_bytes(const struct mgpu_prediction_output *o)
{
    uint64_t n = mgpu_dtype_size(o->type);
    for (int i = 0; i < o->rank; i++)
        n *= (uint64_t)o->dims[i];
    return n;
}

static void lay_out(struct mgpu_predictions *p, struct npz_state *s)
{
    for (int i = 0; i < p->count; i++) {
        struct member *m = &s->members[i];
        size_t n = strlen(p->outputs[i].name) + sizeof ".npy";
        m->name = mgpu_xcalloc(n, 1);
        snprintf(m->name, n, "%s.npy", p->outputs[i].name);
        m->offset = s->end;
        m->content = m->offset + LOCAL_HEADER + LOCAL_EXTRA + strlen(m->name);
        m->size = NPY_HEADER + data_bytes(&p->outputs[i]);
        s->end = m->content + m->size;
    }
}

static const char *npy_type(enum mgpu_dtype type)
{
    switch (type) {
    case MGPU_FLOAT16:
        return "<f2";
    case MGPU_FLOAT:
        return "<f4";
    case MGPU_DOUBLE:
        return "<f8";
    case MGPU_UINT8:
        return "|u1";
    case MGPU_INT8:
        return "|i1";
    case MGPU_UINT16:
        return "<u2";
    case MGPU_INT16:
        return "<i2";
    case MGPU_UINT32:
        return "<u4";
    case MGPU_INT32:
        return "<i4";
    case MGPU_UINT64:
        return "<u8";
    case MGPU_INT64:
        return "<i8";
    default:
        return "|b1";
    }
}

static int write_npy_header(struct mgpu_predictions *p, int i)
{
    const struct mgpu_prediction_output *o = &p->outputs[i];
    struct npz_state *s = p->state;
    char header[NPY_HEADER], shape[MGPU_SHAPE_TEXT];
    memset(header, ' ', sizeof header);
    memcpy(header, "\x93NUMPY\1\0", 8);
    header[8] = (char)((NPY_HEADER - 10) & 255);
    header[9] = (NPY_HEADER - 10) >> 8;
    mgpu_shape_text(shape, o->rank, o->dims); /* "[2,3]": brackets off, a comma after */
    shape[strlen(shape) - 1] = 0;
    int n = snprintf(header + 10, sizeof header - 10,
                     "{'descr': '%s', 'fortran_order': False, 'shape': (%s%s), }",
                     npy_type(o->type), shape + 1, o->rank ? "," : "");
    header[10 + n] = ' ';
    header[NPY_HEADER - 1] = '\n';
    return write_at(p, s->members[i].content, header, sizeof header);
}

static void release(struct mgpu_predictions *p)
{
    struct npz_state *s = p->state;
    for (int i = 0; i < p->count; i++)
        free(s->members[i].name);
    free(s->members);
    free(s);
}

static int start(struct mgpu_predictions *p)
{
    struct npz_state *s = p->state;
    if (s->end && fallocate(s->file.fd, 0, 0, (off_t)s->end) < 0 && errno != EOPNOTSUPP &&
        errno != ENOSYS)
        return fail(p);
    for (int i = 0; i < p->count; i++) {
        if (strlen(s->members[i].name) > UINT16_MAX)
            return mgpu_fail(MGPU_EUNSUPPORTED, "%s: a name too long for a zip archive", p->path);
        MGPU_TRY(write_npy_header(p, i));
    }
    return 0;
}

static int open_npz(struct mgpu_predictions *p)
{
    struct npz_state *s = p->state = mgpu_xcalloc(1, sizeof *s);
    s->members = mgpu_xcalloc((size_t)p->count, sizeof *s->members);
    lay_out(p, s);
    int rc = mgpu_atomic_open(&s->file, p->path);
    if (rc == 0) {
        rc = start(p);
        if (rc < 0)
            mgpu_atomic_abort(&s->file, rc);
    }
    if (rc < 0)
        release(p);
    return rc;
}

/* One write for each index before the sample axis. */
static int write_npz(struct mgpu_predictions *p, int output, int64_t first, int64_t count,
                     const void *data)
{
    const struct mgpu_prediction_output *o = &p->outputs[output];
    struct npz_state *s = p->state;
    uint64_t outer = 1, row = mgpu_dtype_size(o->type), all = (uint64_t)o->dims[o->axis];
    for (int i = 0; i < o->rank; i++)
        if (i != o->axis)
            *(i < o->axis ? &outer : &row) *= (uint64_t)o->dims[i];
    uint64_t size = (uint64_t)count * row, start_at = s->members[output].content + NPY_HEADER;
    for (uint64_t k = 0; k < outer; k++)
        MGPU_TRY(write_at(p, start_at + (k * all + (uint64_t)first) * row,
                          (const char *)data + k * size, (size_t)size));
    return 0;
}

static int sum_member(struct mgpu_predictions *p, struct member *m, int fd)
{
    uint8_t piece[1 << 16];
    uLong crc = crc32(0, NULL, 0);
    for (uint64_t done = 0; done < m->size;) {
        uint64_t left = m->size - done;
        ssize_t n = pread(fd, piece, left < sizeof piece ? (size_t)left : sizeof piece,
                          (off_t)(m->content + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fail(p);
        crc = crc32(crc, piece, (uInt)n);
        done += (uint64_t)n;
    }
    m->crc = (uint32_t)crc;
    return 0;
}

static int sum_members(struct mgpu_predictions *p)
{
    struct npz_state *s = p->state;
    int rc = 0, fd = open(s->file.temp, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail(p);
    for (int i = 0; rc == 0 && i < p->count; i++)
        rc = sum_member(p, &s->members[i], fd);
    close(fd);
    return rc;
}

/* Little-endian numbers one after another. */
struct packer {
    uint8_t bytes[128];
    size_t size;
};

static void pack(struct packer *to, int width, uint64_t value)
{
    for (int i = 0; i < width; i++)
        to->bytes[to->size++] = (uint8_t)(value >> 8 * i);
}

/* What local header and directory entry share, from the version to the lengths. */
static void pack_member(struct packer *to, const struct member *m, int extra)
{
    pack(to, 2, VERSION);
    pack(to, 2, 1 << 11); /* flags: names are UTF-8 */
    pack(to, 2, 0);       /* stored */
    pack(to, 2, 0);       /* time */
    pack(to, 2, DATE);
    pack(to, 4, m->crc);
    pack(to, 4, UINT32_MAX);
    pack(to, 4, UINT32_MAX);
    pack(to, 2, strlen(m->name));
    pack(to, 2, (uint64_t)extra);
}

static void pack_extra(struct packer *to, const struct member *m, bool with_offset)
{
    pack(to, 2, 1);
    pack(to, 2, with_offset ? 24 : 16);
    pack(to, 8, m->size);
    pack(to, 8, m->size);
    if (with_offset)
        pack(to, 8, m->offset);
}

/* Fixed part, name, extra field. */
static int write_header(struct mgpu_predictions *p, uint64_t *at, const struct packer *fixed,
                        const char *name, const struct packer *extra)
{
    MGPU_TRY(write_at(p, *at, fixed->bytes, fixed->size));
    *at += fixed->size;
    MGPU_TRY(write_at(p, *at, name, strlen(name)));
    *at += strlen(name);
    MGPU_TRY(write_at(p, *at, extra->bytes, extra->size));
    *at += extra->size;
    return 0;
}

static int write_local(struct mgpu_predictions *p, const struct member *m)
{
    struct packer fixed = {0}, extra = {0};
    uint64_t at = m->offset;
    pack(&fixed, 4, 0x04034b50);
    pack_member(&fixed, m, LOCAL_EXTRA);
    pack_extra(&extra, m, false);
    return write_header(p, &at, &fixed, m->name, &extra);
}

static int write_entry(struct mgpu_predictions *p, uint64_t *at, const struct member *m)
{
    struct packer fixed = {0}, extra = {0};
    pack(&fixed, 4, 0x02014b50);
    pack(&fixed, 2, VERSION);
    pack_member(&fixed, m, DIRECTORY_EXTRA);
    pack(&fixed, 2, 0); /* comment */
    pack(&fixed, 2, 0); /* disk */
    pack(&fixed, 2, 0); /* attributes, inside and outside */
    pack(&fixed, 4, 0);
    pack(&fixed, 4, UINT32_MAX);
    pack_extra(&extra, m, true);
    return write_header(p, at, &fixed, m->name, &extra);
}

/* The zip64 end record, its locator, and the old end record that points to them. */
static int write_end(struct mgpu_predictions *p, uint64_t directory, uint64_t at)
{
    struct packer end = {0};
    uint64_t count = (uint64_t)p->count;
    pack(&end, 4, 0x06064b50);
    pack(&end, 8, 44); /* bytes that follow */
    pack(&end, 2, VERSION);
    pack(&end, 2, VERSION);
    pack(&end, 8, 0); /* disks */
    pack(&end, 8, count);
    pack(&end, 8, count);
    pack(&end, 8, at - directory);
    pack(&end, 8, directory);
    pack(&end, 4, 0x07064b50);
    pack(&end, 4, 0);
    pack(&end, 8, at);
    pack(&end, 4, 1);
    pack(&end, 4, 0x06054b50);
    pack(&end, 4, 0);
    pack(&end, 4, UINT32_MAX); /* entries, twice */
    pack(&end, 8, UINT64_MAX); /* size and offset of the directory */
    pack(&end, 2, 0);
    return write_at(p, at, end.bytes, end.size);
}

static int complete(struct mgpu_predictions *p)
{
    struct npz_state *s = p->state;
    uint64_t at = s->end;
    MGPU_TRY(sum_members(p));
    for (int i = 0; i < p->count; i++)
        MGPU_TRY(write_local(p, &s->members[i]));
    for (int i = 0; i < p->count; i++)
        MGPU_TRY(write_entry(p, &at, &s->members[i]));
    return write_end(p, s->end, at);
}

static int close_npz(struct mgpu_predictions *p, int rc)
{
    struct npz_state *s = p->state;
    if (rc == 0)
        rc = complete(p);
    rc = rc < 0 ? mgpu_atomic_abort(&s->file, rc) : mgpu_atomic_commit(&s->file);
    release(p);
    return rc;
}

const struct mgpu_predictions_kind mgpu_predictions_npz = {".npz", open_npz, write_npz, close_npz};
