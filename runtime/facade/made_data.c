#include "runtime/facade/made_data.h"

#include "runtime/base/status.h"
#include "runtime/graph/alike.h"
#include "runtime/ops/gather.h"
#include "runtime/ops/loss.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- Values ---------------------------------------------------------------------------------- */

static uint64_t next(uint64_t *state) /* SplitMix64 */
{
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* Integers of the input must lie below this: the classes of a loss, the rows of a table. */
static int64_t integer_limit(const struct mgpu_graph *g, const struct mgpu_value *v)
{
    int64_t limit = INT64_MAX;
    for (int i = 0; i < g->node_count; i++) {
        const struct mgpu_node *n = g->nodes[i];
        if (n->inputs < 2 || n->input[1] != v)
            continue;
        int64_t size = 1;
        if (n->op == &mgpu_op_gather)
            size = n->input[0]->dims[((const struct mgpu_gather_attrs *)n->attrs)->axis].value;
        else if (n->op == &mgpu_op_cross_entropy)
            size =
                n->input[0]->dims[((const struct mgpu_cross_entropy_attrs *)n->attrs)->axis].value;
        limit = size < limit ? size : limit;
    }
    return limit == INT64_MAX ? 1 : limit;
}

static void fill(void *data, const struct mgpu_graph *g, const struct mgpu_value *v)
{
    uint64_t state = (uint64_t)v->index + 1;
    int64_t count = mgpu_value_count(v), limit = integer_limit(g, v);
    for (int64_t i = 0; i < count; i++)
        if (mgpu_is_float(v->type))
            mgpu_set_double(data, v->type, i, (double)(next(&state) >> 11) * 0x1p-53);
        else
            mgpu_set_int(data, v->type, i, (int64_t)(next(&state) % (uint64_t)limit));
}

/* ---- Files ----------------------------------------------------------------------------------- */

static const char *npy_type(enum mgpu_dtype type)
{
    switch (type) {
    case MGPU_FLOAT:
        return "<f4";
    case MGPU_DOUBLE:
        return "<f8";
    case MGPU_FLOAT16:
        return "<f2";
    case MGPU_INT64:
        return "<i8";
    case MGPU_INT32:
        return "<i4";
    case MGPU_INT16:
        return "<i2";
    case MGPU_INT8:
        return "|i1";
    case MGPU_UINT8:
        return "|u1";
    case MGPU_BOOL:
        return "|b1";
    default:
        return NULL;
    }
}

/* A .npy file, format 1.0: magic, length of the header, the header padded to 64 bytes. */
static int write_header(int fd, const struct mgpu_value *v)
{
    char header[512], dims[256] = "";
    size_t n = 0;
    for (int k = 0; k < v->rank; k++)
        n += (size_t)snprintf(dims + n, sizeof dims - n, "%lld,", (long long)v->dims[k].value);
    int length = snprintf(header + 10, sizeof header - 10,
                          "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }",
                          npy_type(v->type), dims);
    int whole = (10 + length + 1 + 63) / 64 * 64;
    memcpy(header, "\x93NUMPY\x01\x00", 8);
    header[8] = (char)((whole - 10) & 0xff);
    header[9] = (char)((whole - 10) >> 8);
    memset(header + 10 + length, ' ', (size_t)(whole - 10 - length));
    header[whole - 1] = '\n';
    return write(fd, header, (size_t)whole) == whole ? 0 : -1;
}

static int write_all(int fd, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t n = write(fd, bytes, size);
        if (n <= 0)
            return -1;
        bytes += n;
        size -= (size_t)n;
    }
    return 0;
}

static int write_input(int fd, const struct mgpu_graph *g, const struct mgpu_value *v)
{
    void *data;
    if (!npy_type(v->type))
        return mgpu_fail(MGPU_EUNSUPPORTED, "input '%s': no data are made up of type %s", v->name,
                         mgpu_dtype_name(v->type));
    MGPU_TRY(mgpu_alloc(&data, (uint64_t)mgpu_value_bytes(v), v->name));
    fill(data, g, v);
    bool written =
        write_header(fd, v) == 0 && write_all(fd, data, (size_t)mgpu_value_bytes(v)) == 0;
    mgpu_free(data);
    return written ? 0 : mgpu_fail(MGPU_EIO, "data for '%s': %s", v->name, strerror(errno));
}

/* ---- Options --------------------------------------------------------------------------------- */

static void append(const char **list, const char *text)
{
    int n = 0;
    while (list[n])
        n++;
    list[n] = text;
}

static int add_input(struct mgpu_made_data *d, const struct mgpu_graph *g,
                     const struct mgpu_value *v)
{
    int axis = mgpu_batch_axis(v), fd = memfd_create("mgpu", MFD_CLOEXEC);
    if (fd < 0)
        return mgpu_fail(MGPU_EIO, "data for '%s': %s", v->name, strerror(errno));
    d->file[d->files++] = fd;
    MGPU_TRY(write_input(fd, g, v));
    append(d->data, mgpu_arena_format(d->arena, "%s=/proc/self/fd/%d", v->name, fd));
    if (axis > 0)
        append(d->batch_axis, mgpu_arena_format(d->arena, "%s=%d", v->name, axis));
    else if (axis < 0 && v->rank > 0)
        append(d->rows,
               mgpu_arena_format(d->arena, "%s=%lld", v->name, (long long)v->dims[0].value));
    return 0;
}

int mgpu_made_data_new(struct mgpu_made_data *d, const struct mgpu_graph *g)
{
    int n = g->input_count, rc = 0;
    *d = (struct mgpu_made_data){.arena = mgpu_arena_new()};
    d->file = MGPU_NEW_ARRAY(d->arena, int, n);
    d->data = MGPU_NEW_ARRAY(d->arena, const char *, n + 1);
    d->batch_axis = MGPU_NEW_ARRAY(d->arena, const char *, n + 1);
    d->rows = MGPU_NEW_ARRAY(d->arena, const char *, n + 1);
    for (int i = 0; i < n && rc == 0; i++)
        rc = add_input(d, g, g->inputs[i]);
    if (rc < 0)
        mgpu_made_data_free(d);
    return rc;
}

void mgpu_made_data_free(struct mgpu_made_data *d)
{
    for (int i = 0; i < d->files; i++)
        close(d->file[i]);
    mgpu_arena_free(d->arena);
    *d = (struct mgpu_made_data){0};
}
