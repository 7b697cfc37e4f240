#include "importer/onnx_edit.h"

#include "importer/onnx_keys.h"
#include "runtime/base/memory.h"

#include <stdlib.h>
#include <string.h>

Onnx__TensorProto *mgpu_onnx_edit_stored(const Onnx__GraphProto *g, const char *name)
{
    for (size_t i = 0; i < g->n_initializer; i++)
        if (!strcmp(g->initializer[i]->name, name))
            return g->initializer[i];
    for (size_t i = 0; i < g->n_node; i++)
        if (!strcmp(g->node[i]->op_type, "Constant") && g->node[i]->n_output &&
            !strcmp(g->node[i]->output[0], name) && g->node[i]->n_attribute == 1)
            return g->node[i]->attribute[0]->t;
    return NULL;
}

static void drop_external(Onnx__TensorProto *t)
{
    for (size_t i = 0; i < t->n_external_data; i++)
        onnx__string_string_entry_proto__free_unpacked(t->external_data[i], NULL);
    free(t->external_data);
    t->external_data = NULL;
    t->n_external_data = 0;
    t->has_data_location = 0;
    t->data_location = ONNX__TENSOR_PROTO__DATA_LOCATION__DEFAULT;
}

static void drop_fields(Onnx__TensorProto *t)
{
    free(t->float_data);
    free(t->int32_data);
    free(t->double_data);
    free(t->raw_data.data);
    t->float_data = NULL;
    t->int32_data = NULL;
    t->double_data = NULL;
    t->n_float_data = t->n_int32_data = t->n_double_data = 0;
}

void mgpu_onnx_edit_resize(Onnx__TensorProto *t, int rank, const int64_t *dims)
{
    size_t bytes = mgpu_dtype_size((enum mgpu_dtype)t->data_type);
    for (int i = 0; i < rank; i++)
        bytes *= (size_t)dims[i];
    drop_external(t);
    drop_fields(t);
    t->n_dims = (size_t)rank;
    t->dims = mgpu_xrealloc(t->dims, t->n_dims, sizeof *t->dims);
    memcpy(t->dims, dims, t->n_dims * sizeof *t->dims);
    t->has_raw_data = 1;
    t->raw_data.len = bytes;
    t->raw_data.data = mgpu_xcalloc(bytes + 1, 1);
}

Onnx__TensorProto *mgpu_onnx_edit_add(Onnx__GraphProto *g, const char *name, int32_t type, int rank,
                                      const int64_t *dims)
{
    Onnx__TensorProto *t = mgpu_xcalloc(1, sizeof *t);
    onnx__tensor_proto__init(t);
    t->name = mgpu_xstrdup(name);
    t->data_type = type;
    t->has_data_type = 1;
    t->raw_data.data = NULL;
    mgpu_onnx_edit_resize(t, rank, dims);
    g->initializer = mgpu_xrealloc(g->initializer, g->n_initializer + 1, sizeof(void *));
    g->initializer[g->n_initializer++] = t;
    return t;
}

void mgpu_onnx_edit_done(struct mgpu_onnx_file *file)
{
    mgpu_onnx_keys_free(file->keys);
    file->keys = mgpu_onnx_keys_new(file->proto);
}
