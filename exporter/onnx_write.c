#include "exporter/onnx_write.h"

#include "exporter/atomic_file.h"
#include "exporter/onnx_copy.h"
#include "exporter/onnx_data.h"
#include "exporter/onnx_inference.h"
#include "importer/onnx_check.h"
#include "importer/onnx_external.h"
#include "importer/onnx_tensor.h"
#include "runtime/base/status.h"

#include <stdlib.h>
#include <string.h>

struct writer {
    const struct mgpu_onnx_file *file;
    struct mgpu_onnx_copy copy;
    void **blocks; /* contents of patched tensors; mgpu_free them */
    size_t block_count;
    struct mgpu_onnx_data_patch *data; /* the external ones */
    size_t data_count;
};

static void keep_block(struct writer *w, void *block)
{
    if (!block)
        return;
    w->blocks = mgpu_grow(w->blocks, w->block_count, sizeof *w->blocks);
    w->blocks[w->block_count++] = block;
}

static int check_shape(const Onnx__TensorProto *t, const struct mgpu_array *array)
{
    bool same = (size_t)array->rank == t->n_dims;
    for (int i = 0; same && i < array->rank; i++)
        same = array->dims[i] == t->dims[i];
    if (same)
        return 0;
    char has[MGPU_SHAPE_TEXT], given[MGPU_SHAPE_TEXT];
    return mgpu_fail(MGPU_EINVALID, "its shape is %s, not %s",
                     mgpu_shape_text(has, (int)t->n_dims, t->dims),
                     mgpu_shape_text(given, array->rank, array->dims));
}

/* `array` in another element type. When it has that type already, the same elements. */
static int convert(struct writer *w, struct mgpu_array *out, const struct mgpu_array *array,
                   enum mgpu_dtype type)
{
    *out = *array;
    if (array->type == type)
        return 0;
    if (!mgpu_dtype_size(type))
        return mgpu_fail(MGPU_EUNSUPPORTED, "cannot store values of its type");
    MGPU_TRY(mgpu_array_init(out, type, array->rank, array->dims, "converted values"));
    keep_block(w, out->data);
    mgpu_convert(out->data, type, array->data, array->type, mgpu_array_count(array));
    return 0;
}

static int patch_tensor(struct writer *w, Onnx__TensorProto *t, const struct mgpu_array *array)
{
    struct mgpu_array values;
    MGPU_TRY(check_shape(t, array));
    MGPU_TRY(convert(w, &values, array, (enum mgpu_dtype)t->data_type));
    if (mgpu_onnx_is_external(t)) {
        w->data = mgpu_grow(w->data, w->data_count, sizeof *w->data);
        w->data[w->data_count++] = (struct mgpu_onnx_data_patch){
            t, values.data, (uint64_t)mgpu_array_count(&values) * mgpu_dtype_size(values.type)};
        return 0;
    }
    void *block;
    int rc = mgpu_onnx_tensor_encode(t, &values, &block);
    keep_block(w, block);
    return rc;
}

/* A Constant node with its numbers in the attribute value_floats. */
static int patch_floats(struct writer *w, const struct mgpu_onnx_patch *p)
{
    const Onnx__NodeProto *node = mgpu_onnx_find_node(w->file, p->tensor);
    Onnx__NodeProto *copy = mgpu_onnx_copy_of(&w->copy, node);
    bool constant = copy && !strcmp(copy->op_type, "Constant") && copy->n_attribute == 1;
    Onnx__AttributeProto *a = constant ? copy->attribute[0] : NULL;
    if (!a || a->type != ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOATS)
        return mgpu_fail(MGPU_EINVALID, "is not in the model");
    if (p->array->rank != 1 || (size_t)p->array->dims[0] != a->n_floats)
        return mgpu_fail(MGPU_EINVALID, "has %zu elements, not so many", a->n_floats);
    struct mgpu_array values;
    MGPU_TRY(convert(w, &values, p->array, MGPU_FLOAT));
    a->floats = values.data;
    return 0;
}

static int apply_patch(struct writer *w, const struct mgpu_onnx_patch *p)
{
    const Onnx__TensorProto *original = mgpu_onnx_find_tensor(w->file, p->tensor);
    if (!original)
        return mgpu_prefix(patch_floats(w, p), "tensor '%s'", p->tensor);
    Onnx__TensorProto *t = mgpu_onnx_copy_of(&w->copy, original);
    return mgpu_prefix(patch_tensor(w, t, p->array), "tensor '%s'", p->tensor);
}

/* Two patches of one tensor (a Constant of a function that is called twice) have to agree. */
static int check_patches(const struct mgpu_onnx_patch *patches, int count)
{
    for (int i = 1; i < count; i++)
        for (int k = 0; k < i; k++) {
            const struct mgpu_array *a = patches[i].array, *b = patches[k].array;
            if (strcmp(patches[i].tensor, patches[k].tensor) || a->data == b->data)
                continue;
            size_t size = (size_t)mgpu_array_count(a) * mgpu_dtype_size(a->type);
            if (a->type != b->type || mgpu_array_count(a) != mgpu_array_count(b) ||
                memcmp(a->data, b->data, size))
                return mgpu_fail(MGPU_EINVALID, "tensor '%s' cannot hold two different values",
                                 patches[i].tensor);
        }
    return 0;
}

/* Room for one more pointer at the end of a list of the copy. */
static void *append(struct writer *w, void *list, size_t *count)
{
    void **longer = MGPU_NEW_ARRAY(w->copy.arena, void *, *count + 1);
    if (*count)
        memcpy(longer, list, *count * sizeof *longer);
    ++*count;
    return longer;
}

/* Up to IR 3 an initializer has to be declared as an input too. */
static void declare_input(struct writer *w, const Onnx__TensorProto *t)
{
    struct mgpu_arena *arena = w->copy.arena;
    Onnx__GraphProto *graph = w->copy.model->graph;
    Onnx__ValueInfoProto *info = MGPU_NEW(arena, Onnx__ValueInfoProto);
    onnx__value_info_proto__init(info);
    info->name = t->name;
    info->type = MGPU_NEW(arena, Onnx__TypeProto);
    onnx__type_proto__init(info->type);
    Onnx__TypeProto__Tensor *type = MGPU_NEW(arena, Onnx__TypeProto__Tensor);
    onnx__type_proto__tensor__init(type);
    info->type->value_case = ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
    info->type->tensor_type = type;
    type->has_elem_type = 1;
    type->elem_type = t->data_type;
    type->shape = MGPU_NEW(arena, Onnx__TensorShapeProto);
    onnx__tensor_shape_proto__init(type->shape);
    for (size_t i = 0; i < t->n_dims; i++) {
        type->shape->dim = append(w, type->shape->dim, &type->shape->n_dim);
        Onnx__TensorShapeProto__Dimension *dim = type->shape->dim[i] =
            MGPU_NEW(arena, Onnx__TensorShapeProto__Dimension);
        onnx__tensor_shape_proto__dimension__init(dim);
        dim->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
        dim->dim_value = t->dims[i];
    }
    graph->input = append(w, graph->input, &graph->n_input);
    graph->input[graph->n_input - 1] = info;
}

static int add_tensor(struct writer *w, const struct mgpu_onnx_addition *a)
{
    struct mgpu_arena *arena = w->copy.arena;
    Onnx__GraphProto *graph = w->copy.model->graph;
    const Onnx__TensorProto *like = mgpu_onnx_find_tensor(w->file, a->like);
    if (!like)
        return mgpu_fail(MGPU_EINVALID, "'%s' is not in the model", a->like);
    if (!*a->name || mgpu_onnx_has_name(w->file, a->name))
        return mgpu_fail(MGPU_EINVALID, "the model has this name already");
    Onnx__TensorProto *t = MGPU_NEW(arena, Onnx__TensorProto);
    onnx__tensor_proto__init(t);
    t->name = mgpu_arena_string(arena, a->name);
    t->has_data_type = 1;
    t->data_type = like->data_type;
    t->n_dims = (size_t)a->array->rank;
    t->dims = mgpu_arena_copy(arena, a->array->dims, t->n_dims * sizeof *t->dims);
    t->has_raw_data = 1;
    graph->initializer = append(w, graph->initializer, &graph->n_initializer);
    graph->initializer[graph->n_initializer - 1] = t;
    if (w->copy.model->ir_version <= 3)
        declare_input(w, t);
    return patch_tensor(w, t, a->array);
}

static int rewire(struct writer *w, const struct mgpu_onnx_rewire *r)
{
    Onnx__NodeProto *node = mgpu_onnx_copy_of(&w->copy, mgpu_onnx_find_node(w->file, r->node));
    if (!node)
        return mgpu_fail(MGPU_EINVALID, "is not in the model");
    if (r->input < 0 || (size_t)r->input >= node->n_input)
        return mgpu_fail(MGPU_EINVALID, "has no input %d", r->input);
    node->input[r->input] = mgpu_arena_string(w->copy.arena, r->name);
    return 0;
}

/* What is saved is one model for any devices: it does not tell which its nodes were trained on. */
static void drop_devices(struct writer *w)
{
    int nodes = 0;
    for (size_t i = 0; i < w->copy.twin_count; i++) {
        ProtobufCMessage *copy = w->copy.twins[i].copy;
        if (copy->descriptor != &onnx__node_proto__descriptor)
            continue;
        Onnx__NodeProto *node = (Onnx__NodeProto *)copy;
        nodes += node->n_device_configurations > 0;
        node->n_device_configurations = 0;
    }
    w->copy.model->n_configuration = 0;
    if (nodes)
        mgpu_note("the saved model does not name the devices of its %d nodes (--as-exported does)",
                  nodes);
}

static int apply(struct writer *w, const struct mgpu_onnx_patch *patches, int count,
                 const struct mgpu_onnx_write_options *o)
{
    MGPU_TRY(check_patches(patches, count));
    for (int i = 0; i < count; i++)
        MGPU_TRY(apply_patch(w, &patches[i]));
    for (int i = 0; i < o->addition_count; i++)
        MGPU_TRY(mgpu_prefix(add_tensor(w, &o->additions[i]), "new initializer '%s'",
                             o->additions[i].name));
    for (int i = 0; i < o->rewire_count; i++)
        MGPU_TRY(mgpu_prefix(rewire(w, &o->rewires[i]), "node '%s'", o->rewires[i].node));
    if (!o->as_exported) {
        mgpu_onnx_inference_form(w->copy.model, w->copy.arena);
        drop_devices(w);
    }
    if (o->edit)
        MGPU_TRY(o->edit(o->context, &w->copy));
    return mgpu_onnx_check(w->copy.model, w->file->folder);
}

/* Where protobuf-c puts the bytes: small pieces are gathered. */
struct sink {
    ProtobufCBuffer base;
    struct mgpu_atomic_file *file;
    int rc;
    size_t used;
    uint8_t bytes[1 << 16];
};

static void flush(struct sink *s)
{
    if (s->rc >= 0)
        s->rc = mgpu_atomic_write(s->file, s->bytes, s->used);
    s->used = 0;
}

static void sink_append(ProtobufCBuffer *base, size_t size, const uint8_t *bytes)
{
    struct sink *s = (struct sink *)base;
    if (size > sizeof s->bytes - s->used)
        flush(s);
    if (size > sizeof s->bytes) {
        if (s->rc >= 0)
            s->rc = mgpu_atomic_write(s->file, bytes, size);
    } else if (size) {
        memcpy(s->bytes + s->used, bytes, size);
        s->used += size;
    }
}

static int write_model(struct mgpu_atomic_file *f, const Onnx__ModelProto *model)
{
    size_t size = onnx__model_proto__get_packed_size(model);
    if (size > INT32_MAX)
        return mgpu_fail(MGPU_EUNSUPPORTED,
                         "%s: %zu bytes are more than the 2 GiB that an ONNX file may have",
                         f->path, size);
    struct sink *s = mgpu_xcalloc(1, sizeof *s);
    s->base.append = sink_append;
    s->file = f;
    onnx__model_proto__pack_to_buffer(model, &s->base);
    flush(s);
    int rc = s->rc;
    free(s);
    return rc;
}

/* All is written under temporary names before anything gets its own: data first, then the model
 * that refers to it. */
static int write_files(struct writer *w, struct mgpu_onnx_data **data, const char *path)
{
    struct mgpu_atomic_file f;
    MGPU_TRY(mgpu_onnx_data_write(data, w->file, &w->copy, path, w->data, w->data_count));
    MGPU_TRY(mgpu_atomic_open(&f, path));
    int rc = write_model(&f, w->copy.model);
    if (rc >= 0)
        rc = mgpu_onnx_data_commit(*data);
    return rc < 0 ? mgpu_atomic_abort(&f, rc) : mgpu_atomic_commit(&f);
}

int mgpu_onnx_write(const struct mgpu_onnx_file *file, const char *path,
                    const struct mgpu_onnx_patch *patches, int count,
                    const struct mgpu_onnx_write_options *options)
{
    static const struct mgpu_onnx_write_options none;
    struct writer w = {.file = file};
    struct mgpu_onnx_data *data = NULL;
    mgpu_onnx_copy_init(&w.copy, file->proto);
    int rc = mgpu_prefix(apply(&w, patches, count, options ? options : &none), "%s", path);
    if (rc >= 0)
        rc = write_files(&w, &data, path);
    mgpu_onnx_data_finish(data, rc >= 0);
    mgpu_onnx_copy_free(&w.copy);
    for (size_t i = 0; i < w.block_count; i++)
        mgpu_free(w.blocks[i]);
    free(w.blocks);
    free(w.data);
    return rc;
}
