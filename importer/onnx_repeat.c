#include "importer/onnx_repeat.h"

#include "importer/onnx_edit.h"
#include "importer/weights.h"
#include "runtime/base/memory.h"
#include "runtime/base/status.h"

#include <stdlib.h>
#include <string.h>

/* ---- What the exporter says ------------------------------------------------------------------ */

static const char *record_of(const Onnx__GraphProto *g, const char *name)
{
    for (size_t i = 0; i < g->n_value_info; i++) {
        const Onnx__ValueInfoProto *v = g->value_info[i];
        for (size_t k = 0; k < v->n_metadata_props && !strcmp(v->name, name); k++)
            if (!strcmp(v->metadata_props[k]->key, MGPU_ONNX_FOLDED_FROM))
                return v->metadata_props[k]->value;
    }
    return NULL;
}

static bool is_repeat(const char *name)
{
    static const char *const words[] = {"expand", "repeat", NULL};
    return mgpu_onnx_is_result_name(name, words);
}

/* The parameter that the initializer is a repetition of; NULL: it is none. */
static const char *source_of(struct mgpu_arena *arena, const Onnx__GraphProto *g, const char *name)
{
    static const char *const moves[] = {"val", "expand", "repeat", "clone", NULL};
    const char *record = is_repeat(name) ? record_of(g, name) : NULL;
    return record ? mgpu_onnx_moved_from(arena, record, moves) : NULL;
}

/* ---- Its numbers ----------------------------------------------------------------------------- */

/* Whether all that is at different places of the axis is the same. */
static bool repeats_along(const struct mgpu_array *a, int axis)
{
    size_t inner = mgpu_dtype_size(a->type), n = (size_t)a->dims[axis], outer = 1;
    bool same = true;
    for (int i = axis + 1; i < a->rank; i++)
        inner *= (size_t)a->dims[i];
    for (int i = 0; i < axis; i++)
        outer *= (size_t)a->dims[i];
    const char *at = a->data;
    for (size_t o = 0; o < outer && same; o++, at += n * inner)
        same = !memcmp(at, at + inner, (n - 1) * inner);
    return same;
}

/* Where a class token began with zeros, every axis looks repeated: only the batch's is. */
static bool all_equal(const struct mgpu_array *a)
{
    bool equal = true;
    for (int i = 0; i < a->rank && equal; i++)
        equal = repeats_along(a, i);
    return equal;
}

static int64_t batch_of(const Onnx__GraphProto *g)
{
    const Onnx__TypeProto *type = g->n_input ? g->input[0]->type : NULL;
    const Onnx__TypeProto__Tensor *t =
        type && type->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE ? type->tensor_type : NULL;
    bool fixed =
        t && t->shape && t->shape->n_dim &&
        t->shape->dim[0]->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
    return fixed ? t->shape->dim[0]->dim_value : 0;
}

/* The dims of what is repeated; false: nothing is, nor was for the example's batch of 1. */
static bool find_row(const Onnx__GraphProto *g, const struct mgpu_array *a, int64_t *dims)
{
    if (mgpu_array_count(a) == 0) /* no element to compare, and no row to keep */
        return false;
    bool found = false, equal = all_equal(a);
    for (int i = 0; i < a->rank; i++) {
        bool one = equal ? i == 0 && a->dims[0] == batch_of(g) : repeats_along(a, i);
        dims[i] = one ? 1 : a->dims[i];
        found |= one && (i == 0 || a->dims[i] > 1);
    }
    return found;
}

/* ---- The graph ------------------------------------------------------------------------------- */

static void add_row(Onnx__GraphProto *g, const char *name, const struct mgpu_array *a,
                    const int64_t *dims)
{
    Onnx__TensorProto *row = mgpu_onnx_edit_add(g, name, (int32_t)a->type, a->rank, dims);
    size_t size = mgpu_dtype_size(a->type);
    for (size_t to = 0; to < row->raw_data.len / size; to++) {
        size_t at = 0, left = to, stride = 1;
        for (int i = a->rank - 1; i >= 0; i--) {
            at += left % (size_t)dims[i] * stride;
            left /= (size_t)dims[i];
            stride *= (size_t)a->dims[i];
        }
        memcpy(row->raw_data.data + to * size, (const char *)a->data + at * size, size);
    }
}

static void remove_stored(Onnx__GraphProto *g, size_t at)
{
    onnx__tensor_proto__free_unpacked(g->initializer[at], NULL);
    memmove(g->initializer + at, g->initializer + at + 1,
            (--g->n_initializer - at) * sizeof(void *));
}

static void add_expand(Onnx__GraphProto *g, const char *row, const char *sizes, const char *output)
{
    Onnx__NodeProto *node = mgpu_xcalloc(1, sizeof *node);
    onnx__node_proto__init(node);
    node->op_type = mgpu_xstrdup("Expand");
    node->name = mgpu_xstrdup(output);
    node->n_input = 2;
    node->input = mgpu_xcalloc(2, sizeof *node->input);
    node->input[0] = mgpu_xstrdup(row);
    node->input[1] = mgpu_xstrdup(sizes);
    node->n_output = 1;
    node->output = mgpu_xcalloc(1, sizeof *node->output);
    node->output[0] = mgpu_xstrdup(output);
    g->node = mgpu_xrealloc(g->node, g->n_node + 1, sizeof(void *));
    memmove(g->node + 1, g->node, g->n_node++ * sizeof(void *));
    g->node[0] = node;
}

static void tell(const char *name, const char *source, const struct mgpu_array *a,
                 const int64_t *dims)
{
    char whole[MGPU_SHAPE_TEXT], row[MGPU_SHAPE_TEXT];
    mgpu_note("'%s' %s repeats '%s' %s: that is the weight, and in an ONNX file that is written an "
              "Expand repeats it",
              name, mgpu_shape_text(whole, a->rank, a->dims), source,
              mgpu_shape_text(row, a->rank, dims));
}

/* 1: it is changed. */
static int unrepeat(struct mgpu_onnx_file *file, struct mgpu_arena *arena, size_t at,
                    const char *source, bool told)
{
    Onnx__GraphProto *g = file->proto->graph;
    const char *name = mgpu_arena_string(arena, g->initializer[at]->name);
    const char *sizes = mgpu_arena_format(arena, "%s sizes", name);
    struct mgpu_array a;
    int64_t dims[MGPU_MAX_RANK];
    if (mgpu_onnx_has_name(file, source) || mgpu_onnx_has_name(file, sizes))
        return 0;
    MGPU_TRY(mgpu_onnx_tensor_read(file, g->initializer[at], &a));
    bool found = mgpu_is_float(a.type) && find_row(g, &a, dims);
    if (found) {
        if (told)
            tell(name, source, &a, dims);
        remove_stored(g, at);
        add_row(g, source, &a, dims);
        Onnx__TensorProto *t = mgpu_onnx_edit_add(g, sizes, MGPU_INT64, 1, &(int64_t){a.rank});
        memcpy(t->raw_data.data, a.dims, t->raw_data.len);
        add_expand(g, source, sizes, name);
        mgpu_onnx_edit_done(file);
    }
    mgpu_array_free(&a);
    return found;
}

int mgpu_onnx_unrepeat(struct mgpu_onnx_file *file, bool told)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    Onnx__GraphProto *g = file->proto->graph;
    int rc = 0;
    for (size_t i = 0; i < g->n_initializer && rc >= 0; i += rc <= 0) {
        const char *source = source_of(arena, g, g->initializer[i]->name);
        rc = source ? unrepeat(file, arena, i, source, told) : 0;
    }
    mgpu_arena_free(arena);
    return rc < 0 ? rc : 0;
}
