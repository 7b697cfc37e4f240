#include "runtime/data/npy.h"

#include "runtime/base/status.h"

#include <ctype.h>
#include <inttypes.h>
#include <string.h>

/* The header, a dictionary such as
 *     {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
 * is read by one pass of this little cursor. It never looks past `end`. */
struct cursor {
    const char *at, *end;
};

enum { WORD = 64 };

static char skip_space(struct cursor *c)
{
    while (c->at < c->end && isspace((unsigned char)*c->at))
        c->at++;
    return c->at < c->end ? *c->at : 0;
}

static bool take(struct cursor *c, char wanted)
{
    if (skip_space(c) != wanted)
        return false;
    c->at++;
    return true;
}

static int take_string(struct cursor *c, char out[WORD])
{
    char quote = skip_space(c);
    if (quote != '\'' && quote != '"')
        return mgpu_fail(MGPU_EINVALID, "the header lacks a quoted word");
    const char *from = ++c->at, *to = memchr(from, quote, (size_t)(c->end - from));
    if (!to || to - from >= WORD)
        return mgpu_fail(MGPU_EINVALID, "the header has a word without an end");
    memcpy(out, from, (size_t)(to - from));
    out[to - from] = 0;
    c->at = to + 1;
    return 0;
}

static int take_bool(struct cursor *c, bool *out)
{
    skip_space(c);
    for (int value = 0; value < 2; value++) {
        const char *word = value ? "True" : "False";
        size_t n = strlen(word);
        if ((size_t)(c->end - c->at) >= n && memcmp(c->at, word, n) == 0) {
            c->at += n;
            *out = value;
            return 0;
        }
    }
    return mgpu_fail(MGPU_EINVALID, "fortran_order is neither True nor False");
}

static int take_number(struct cursor *c, int64_t *out)
{
    if (!isdigit((unsigned char)skip_space(c)))
        return mgpu_fail(MGPU_EINVALID, "the shape has something that is not a number");
    for (*out = 0; c->at < c->end && isdigit((unsigned char)*c->at); c->at++)
        if (__builtin_mul_overflow(*out, 10, out) ||
            __builtin_add_overflow(*out, *c->at - '0', out))
            return mgpu_fail(MGPU_EINVALID, "the shape has a number past 64 bits");
    if (c->at < c->end && *c->at == 'L') /* a long of Python 2 */
        c->at++;
    return 0;
}

/* (), (3,), (2, 3): a pair of brackets without a comma is a number to Python, not a tuple. */
static int take_shape(struct cursor *c, struct mgpu_dataset *d)
{
    bool comma = true;
    if (!take(c, '('))
        return mgpu_fail(MGPU_EINVALID, "the shape is not a tuple");
    for (d->rank = 0; skip_space(c) != ')'; d->rank++) {
        if (!comma)
            return mgpu_fail(MGPU_EINVALID, "the shape is not a tuple");
        if (d->rank == MGPU_MAX_RANK)
            return mgpu_fail(MGPU_EUNSUPPORTED, "more than %d dimensions", MGPU_MAX_RANK);
        MGPU_TRY(take_number(c, &d->dims[d->rank]));
        comma = take(c, ',');
    }
    c->at++;
    if (d->rank == 1 && !comma)
        return mgpu_fail(MGPU_EINVALID,
                         "the shape (%" PRId64 ") is not a tuple: a comma is missing", d->dims[0]);
    return 0;
}

static int parse_type(const char *descr, enum mgpu_dtype *type, bool *big_endian)
{
    static const struct {
        const char *code;
        enum mgpu_dtype type;
    } types[] = {{"b1", MGPU_BOOL},    {"i1", MGPU_INT8},   {"u1", MGPU_UINT8},
                 {"i2", MGPU_INT16},   {"u2", MGPU_UINT16}, {"i4", MGPU_INT32},
                 {"u4", MGPU_UINT32},  {"i8", MGPU_INT64},  {"u8", MGPU_UINT64},
                 {"f2", MGPU_FLOAT16}, {"f4", MGPU_FLOAT},  {"f8", MGPU_DOUBLE}};
    const char *code = descr + (strchr("<>=|", descr[0]) && descr[0] ? 1 : 0);
    *big_endian = descr[0] == '>';
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(code, types[i].code) == 0) {
            *type = types[i].type;
            return 0;
        }
    if (code[0] == 'O')
        return mgpu_fail(MGPU_EUNSUPPORTED,
                         "it holds Python objects (a pickle), which are never loaded");
    if (code[0] == 'S' || code[0] == 'U')
        return mgpu_fail(MGPU_EUNSUPPORTED, "it holds text ('%s'), not numbers", descr);
    return mgpu_fail(MGPU_EUNSUPPORTED, "element type '%s' is not supported", descr);
}

static int take_entry(struct cursor *c, struct mgpu_dataset *d, struct mgpu_layout *layout,
                      unsigned *seen)
{
    char key[WORD], descr[WORD];
    MGPU_TRY(take_string(c, key));
    if (!take(c, ':'))
        return mgpu_fail(MGPU_EINVALID, "the header lacks a ':' after '%s'", key);
    if (strcmp(key, "descr") == 0) {
        *seen |= 1;
        if (skip_space(c) == '[')
            return mgpu_fail(MGPU_EUNSUPPORTED, "it holds records of several fields");
        MGPU_TRY(take_string(c, descr));
        return parse_type(descr, &d->type, &layout->big_endian);
    }
    if (strcmp(key, "fortran_order") == 0) {
        *seen |= 2;
        return take_bool(c, &layout->columns_first);
    }
    if (strcmp(key, "shape") == 0) {
        *seen |= 4;
        return take_shape(c, d);
    }
    return mgpu_fail(MGPU_EINVALID, "the header has an unknown entry '%s'", key);
}

static int parse_header(struct cursor c, struct mgpu_dataset *d, struct mgpu_layout *layout)
{
    unsigned seen = 0;
    bool comma = true;
    if (!take(&c, '{'))
        return mgpu_fail(MGPU_EINVALID, "the header is not a dictionary");
    while (!take(&c, '}')) {
        if (!comma)
            return mgpu_fail(MGPU_EINVALID, "the header lacks a comma");
        MGPU_TRY(take_entry(&c, d, layout, &seen));
        comma = take(&c, ',');
    }
    if (seen != 7)
        return mgpu_fail(MGPU_EINVALID, "the header lacks one of descr, fortran_order, shape");
    return 0;
}

/* Where the header begins and ends: its length has 2 bytes in version 1, 4 since version 2. */
static int find_header(struct cursor *out, const uint8_t *content, uint64_t size)
{
    if (size < 10 || memcmp(content, "\x93NUMPY", 6) != 0)
        return mgpu_fail(MGPU_EINVALID, "not an npy file, or cut off in its first bytes");
    int version = content[6], start = version == 1 ? 10 : 12;
    if (version < 1 || version > 3)
        return mgpu_fail(MGPU_EUNSUPPORTED, "npy version %d is not known (1 to 3 are)", version);
    if (size < (uint64_t)start)
        return mgpu_fail(MGPU_EINVALID, "cut off in its first bytes");
    uint64_t length = content[8] | (uint64_t)content[9] << 8;
    if (version > 1)
        length |= (uint64_t)content[10] << 16 | (uint64_t)content[11] << 24;
    if (length > size - (uint64_t)start)
        return mgpu_fail(MGPU_EINVALID,
                         "a header of %" PRIu64 " bytes passes the end of the file (%" PRIu64
                         " bytes)",
                         length, size);
    out->at = (const char *)content + start;
    out->end = out->at + length;
    return 0;
}

int mgpu_npy_parse(struct mgpu_dataset *d, const uint8_t *content, uint64_t size)
{
    struct cursor header;
    struct mgpu_layout layout = {0};
    MGPU_TRY(find_header(&header, content, size));
    MGPU_TRY(parse_header(header, d, &layout));
    const uint8_t *data = (const uint8_t *)header.end;
    uint64_t left = size - (uint64_t)(data - content);
    int64_t count;
    MGPU_TRY(mgpu_dense_set(d, data, left, layout));
    MGPU_TRY(mgpu_count(&count, d->type, d->rank, d->dims));
    uint64_t used = (uint64_t)count * mgpu_dtype_size(d->type);
    return left == used
               ? 0
               : mgpu_fail(MGPU_EINVALID, "%" PRIu64 " bytes follow the array", left - used);
}

static bool probe(const uint8_t *head, size_t size)
{
    return size >= 6 && memcmp(head, "\x93NUMPY", 6) == 0;
}

static int open_npy(struct mgpu_dataset *d)
{
    struct mgpu_dense *dense;
    MGPU_TRY(mgpu_dense_map(&dense, d));
    return mgpu_npy_parse(d, dense->file.data, dense->file.size);
}

const struct mgpu_dataset_kind mgpu_dataset_npy = {
    .name = "npy",
    .probe = probe,
    .open = open_npy,
    .read = mgpu_dense_read,
    .close = mgpu_dense_close,
};
