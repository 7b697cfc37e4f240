#include "runtime/data/unpack.h"

#include "runtime/base/status.h"

#include <string.h>

enum { PIECE = 1 << 30 }; /* zlib counts in 32 bits */

int mgpu_unpack_begin(struct mgpu_unpack *out, enum mgpu_unpack_format format,
                      const uint8_t *packed, uint64_t size)
{
    memset(out, 0, sizeof *out);
    out->next = packed;
    out->left = size;
    int bits = format == MGPU_UNPACK_GZIP ? MAX_WBITS + 16 : -MAX_WBITS;
    if (inflateInit2(&out->stream, bits) != Z_OK)
        return mgpu_fail(MGPU_ENOMEM, "no memory to unpack");
    return 0;
}

static void feed(struct mgpu_unpack *u)
{
    uint64_t n = u->left < PIECE ? u->left : PIECE;
    u->stream.next_in = (Bytef *)(uintptr_t)u->next;
    u->stream.avail_in = (uInt)n;
    u->next += n;
    u->left -= n;
}

int mgpu_unpack_read(struct mgpu_unpack *u, void *to, uint64_t count, uint64_t *got)
{
    *got = 0;
    while (*got < count && !u->ended) {
        if (u->stream.avail_in == 0)
            feed(u);
        uint64_t room = count - *got < PIECE ? count - *got : PIECE;
        u->stream.next_out = (Bytef *)to + *got;
        u->stream.avail_out = (uInt)room;
        int rc = inflate(&u->stream, Z_NO_FLUSH);
        *got += room - u->stream.avail_out;
        if (rc == Z_STREAM_END)
            u->ended = 1;
        else if (rc == Z_BUF_ERROR && u->stream.avail_in == 0 && u->left == 0)
            return mgpu_fail(MGPU_EINVALID, "the compressed data end too early");
        else if (rc != Z_OK && rc != Z_BUF_ERROR)
            return mgpu_fail(MGPU_EINVALID, "the compressed data are damaged (%s)",
                             u->stream.msg ? u->stream.msg : "zlib");
    }
    return 0;
}

void mgpu_unpack_end(struct mgpu_unpack *u)
{
    inflateEnd(&u->stream);
}
