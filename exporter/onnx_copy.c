#include "exporter/onnx_copy.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static ProtobufCMessage *clone(struct mgpu_onnx_copy *c, const ProtobufCMessage *from);

static void clone_list(struct mgpu_onnx_copy *c, const ProtobufCFieldDescriptor *field, void **list,
                       size_t count)
{
    bool messages = field->type == PROTOBUF_C_TYPE_MESSAGE;
    if (!count || !(messages || field->type == PROTOBUF_C_TYPE_STRING))
        return;
    void **items = mgpu_arena_copy(c->arena, *list, count * sizeof *items);
    for (size_t i = 0; messages && i < count; i++)
        items[i] = clone(c, items[i]);
    *list = items;
}

static void note_twin(struct mgpu_onnx_copy *c, const ProtobufCMessage *from, ProtobufCMessage *to)
{
    if (from->descriptor != &onnx__tensor_proto__descriptor &&
        from->descriptor != &onnx__node_proto__descriptor)
        return;
    c->twins = mgpu_grow(c->twins, c->twin_count, sizeof *c->twins);
    c->twins[c->twin_count++] = (struct mgpu_onnx_twin){from, to};
}

/* protobuf-c's descriptors say where each field, count and oneof case lies in the struct. */
static ProtobufCMessage *clone(struct mgpu_onnx_copy *c, const ProtobufCMessage *from)
{
    const ProtobufCMessageDescriptor *type = from->descriptor;
    char *to = mgpu_arena_copy(c->arena, from, type->sizeof_message);
    for (unsigned i = 0; i < type->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &type->fields[i];
        void **slot = (void **)(to + field->offset);
        const char *quantifier = to + field->quantifier_offset;
        if (field->label == PROTOBUF_C_LABEL_REPEATED) {
            clone_list(c, field, slot, *(const size_t *)quantifier);
            continue;
        }
        bool other = (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) &&
                     *(const uint32_t *)quantifier != field->id;
        if (field->type == PROTOBUF_C_TYPE_MESSAGE && !other && *slot)
            *slot = clone(c, *slot);
    }
    note_twin(c, from, (ProtobufCMessage *)to);
    return (ProtobufCMessage *)to;
}

static int compare(const void *a, const void *b)
{
    const char *x = (const char *)((const struct mgpu_onnx_twin *)a)->original;
    const char *y = (const char *)((const struct mgpu_onnx_twin *)b)->original;
    return (x > y) - (x < y);
}

void mgpu_onnx_copy_init(struct mgpu_onnx_copy *c, const Onnx__ModelProto *model)
{
    *c = (struct mgpu_onnx_copy){.arena = mgpu_arena_new()};
    c->model = (Onnx__ModelProto *)clone(c, &model->base);
    if (c->twin_count)
        qsort(c->twins, c->twin_count, sizeof *c->twins, compare);
}

void mgpu_onnx_copy_free(struct mgpu_onnx_copy *c)
{
    mgpu_arena_free(c->arena);
    free(c->twins);
    *c = (struct mgpu_onnx_copy){0};
}

void *mgpu_onnx_copy_of(const struct mgpu_onnx_copy *c, const void *original)
{
    struct mgpu_onnx_twin wanted = {.original = original};
    if (!c->twin_count)
        return NULL;
    const struct mgpu_onnx_twin *t =
        bsearch(&wanted, c->twins, c->twin_count, sizeof wanted, compare);
    return t ? t->copy : NULL;
}
