#include "importer/onnx_scan.h"

#include "importer/onnx.pb-c.h"
#include "runtime/base/status.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

enum {
    BLOCK = 32,  /* what malloc adds, at most */
    MEMBER = 80, /* what protobuf-c notes about a field while it unpacks a message */
    NAME_SHOWN = 100,
};

struct scan {
    const uint8_t *start;
    uint64_t memory, limit;
    bool named; /* the error holds the name of a node or tensor */
};

struct field {
    const uint8_t *at; /* the tag */
    uint32_t number, wire;
    const uint8_t *value;
    uint64_t size; /* of the value, without the length before it */
};

/* The byte after a varint of at most 10 bytes; NULL when it does not end. */
static const uint8_t *varint(uint64_t *out, const uint8_t *p, const uint8_t *end)
{
    uint64_t value = 0;
    for (int shift = 0; p < end && shift < 70; shift += 7) {
        value |= (uint64_t)(*p & 0x7f) << (shift < 64 ? shift : 63);
        if (!(*p++ & 0x80)) {
            *out = value;
            return p;
        }
    }
    return NULL;
}

/* Splits the field at `p`; the byte after it, or NULL with a reason. */
static const uint8_t *split(struct field *f, const uint8_t *p, const uint8_t *end,
                            const char **reason)
{
    uint64_t tag, skipped;
    f->at = p;
    *reason = "a number does not end";
    p = varint(&tag, p, end);
    if (!p)
        return NULL;
    f->number = (uint32_t)(tag >> 3);
    f->wire = tag & 7;
    f->value = p;
    *reason = "no such field number";
    if (tag >> 32 || !f->number)
        return NULL;
    *reason = "a number does not end";
    switch (f->wire) {
    case PROTOBUF_C_WIRE_TYPE_VARINT:
        p = varint(&skipped, p, end);
        f->size = p ? (uint64_t)(p - f->value) : 0;
        return p;
    case PROTOBUF_C_WIRE_TYPE_64BIT:
        f->size = 8;
        break;
    case PROTOBUF_C_WIRE_TYPE_32BIT:
        f->size = 4;
        break;
    case PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED:
        f->value = varint(&f->size, p, end);
        if (!f->value)
            return NULL;
        break;
    default:
        *reason = "no such wire type";
        return NULL;
    }
    *reason = "its length passes the end";
    return f->size <= (uint64_t)(end - f->value) ? f->value + f->size : NULL;
}

static int refuse(const struct scan *s, const uint8_t *at, const char *message, const char *field,
                  const char *reason)
{
    return mgpu_fail(MGPU_EINVALID, "byte %td (%s%s%s): %s", at - s->start, message,
                     field ? "." : "", field ? field : "", reason);
}

static int take(struct scan *s, uint64_t bytes)
{
    s->memory += bytes;
    if (s->memory > s->limit)
        return mgpu_fail(MGPU_EINVALID,
                         "would take more than %" PRIu64 " MiB to unpack, far more than its size",
                         s->limit >> 20);
    return 0;
}

static size_t element_size(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_FLOAT:
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_ENUM:
        return 4;
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    default:
        return 8;
    }
}

/* The wire type of one value, as ONNX's messages use them. */
static uint32_t wire_of(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE:
        return PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED;
    case PROTOBUF_C_TYPE_FLOAT:
        return PROTOBUF_C_WIRE_TYPE_32BIT;
    case PROTOBUF_C_TYPE_DOUBLE:
        return PROTOBUF_C_WIRE_TYPE_64BIT;
    default:
        return PROTOBUF_C_WIRE_TYPE_VARINT;
    }
}

/* Numbers of a repeated field, one or packed together: at most one a byte. */
static uint64_t elements(const ProtobufCFieldDescriptor *d, const struct field *f)
{
    uint32_t one = wire_of(d->type);
    if (f->wire == one)
        return 1;
    return one == PROTOBUF_C_WIRE_TYPE_VARINT ? f->size : f->size / element_size(d->type);
}

static int scan_message(struct scan *s, const ProtobufCMessageDescriptor *type, const uint8_t *p,
                        const uint8_t *end, int depth);

static int scan_value(struct scan *s, const ProtobufCMessageDescriptor *owner,
                      const ProtobufCFieldDescriptor *d, const struct field *f, int depth)
{
    bool repeated = d->label == PROTOBUF_C_LABEL_REPEATED;
    uint32_t wire = wire_of(d->type);
    if (f->wire != wire && !(repeated && f->wire == PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED))
        return refuse(s, f->at, owner->short_name, d->name, "wrong wire type");
    if (repeated)
        MGPU_TRY(take(s, elements(d, f) * element_size(d->type)));
    if (wire != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED)
        return 0;
    MGPU_TRY(take(s, f->size + BLOCK));
    if (d->type == PROTOBUF_C_TYPE_STRING && f->size && memchr(f->value, 0, f->size))
        return refuse(s, f->at, owner->short_name, d->name, "zero byte in a string");
    if (d->type == PROTOBUF_C_TYPE_MESSAGE)
        return scan_message(s, d->descriptor, f->value, f->value + f->size, depth - 1);
    return 0;
}

static int scan_fields(struct scan *s, const ProtobufCMessageDescriptor *type, const uint8_t *p,
                       const uint8_t *end, int depth)
{
    uint64_t seen = 0; /* single message fields, by place in the descriptor */
    while (p < end) {
        struct field f = {0};
        const char *reason;
        const uint8_t *next = split(&f, p, end, &reason);
        const ProtobufCFieldDescriptor *d = protobuf_c_message_descriptor_get_field(type, f.number);
        if (!next)
            return refuse(s, p, type->short_name, d ? d->name : NULL, reason);
        p = next;
        MGPU_TRY(take(s, MEMBER));
        if (!d) {
            MGPU_TRY(take(s, sizeof(ProtobufCMessageUnknownField) + f.size + BLOCK));
            continue;
        }
        uint64_t bit = UINT64_C(1) << ((d - type->fields) & 63);
        if (d->type == PROTOBUF_C_TYPE_MESSAGE && d->label != PROTOBUF_C_LABEL_REPEATED) {
            if (seen & bit)
                return refuse(s, f.at, type->short_name, d->name, "occurs twice");
            seen |= bit;
        }
        MGPU_TRY(scan_value(s, type, d, &f, depth));
    }
    return 0;
}

/* The first string field `number` of the message at `p`, or NULL. */
static const uint8_t *find_string(const uint8_t *p, const uint8_t *end, uint32_t number,
                                  int *length)
{
    struct field f = {0};
    const char *reason;
    while (p < end && (p = split(&f, p, end, &reason)))
        if (f.number == number && f.wire == PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED && f.size) {
            *length = f.size < NAME_SHOWN ? (int)f.size : NAME_SHOWN;
            return f.value;
        }
    return NULL;
}

/* Puts the name of the node or tensor at `p` before the error. */
static int name_error(struct scan *s, int rc, const ProtobufCMessageDescriptor *type,
                      const uint8_t *p, const uint8_t *end)
{
    bool node = type == &onnx__node_proto__descriptor;
    if (s->named || !(node || type == &onnx__tensor_proto__descriptor))
        return rc;
    int length = 0;
    const uint8_t *name = find_string(p, end, node ? 3 : 8, &length);
    if (!name && node)
        name = find_string(p, end, 2, &length); /* its first output */
    if (!name)
        return rc;
    s->named = true;
    return mgpu_prefix(rc, "%s '%.*s'", node ? "node" : "tensor", length, (const char *)name);
}

static int scan_message(struct scan *s, const ProtobufCMessageDescriptor *type, const uint8_t *p,
                        const uint8_t *end, int depth)
{
    int rc;
    if (depth <= 0)
        rc = refuse(s, p, type->short_name, NULL, "graphs or types are nested too deeply");
    else if (!(rc = take(s, type->sizeof_message)))
        rc = scan_fields(s, type, p, end, depth);
    return rc < 0 ? name_error(s, rc, type, p, end) : 0;
}

int mgpu_onnx_scan(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t size,
                   int depth)
{
    struct scan s = {.start = bytes, .limit = (UINT64_C(32) << 20) + 16 * (uint64_t)size};
    return scan_message(&s, type, bytes, bytes + size, depth);
}
