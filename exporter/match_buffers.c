/* Buffers that the graph has under no name of theirs: the part of them that an example of one
 * length needs, or what they were compared with something. They have nothing to bring where that is
 * what the file's numbers give. */
#include "exporter/match_parts.h"

#include <string.h>

/* Walks the elements of `part`, the beginning of each axis of `all`. */
static int64_t index_in(const struct mgpu_array *all, const struct mgpu_array *part, int64_t i)
{
    int64_t index = 0, stride = 1;
    for (int axis = part->rank - 1; axis >= 0; axis--) {
        index += i % part->dims[axis] * stride;
        i /= part->dims[axis];
        stride *= all->dims[axis];
    }
    return index;
}

static bool is_beginning(const struct mgpu_checkpoint_tensor *t, const struct mgpu_array *part)
{
    bool fits = part->data && part->rank == t->rank && mgpu_array_count(part) > 1;
    for (int axis = 0; axis < part->rank && fits; axis++)
        fits = part->dims[axis] <= t->dims[axis];
    return fits;
}

/* The same elements, of which not all are equal. */
static bool same_part(const struct mgpu_array *all, const struct mgpu_array *part)
{
    size_t size = mgpu_dtype_size(part->type);
    const char *from = all->data, *to = part->data;
    bool same = true, equal = true;
    for (int64_t i = 0; same && i < mgpu_array_count(part); i++) {
        same = !memcmp(from + (size_t)index_in(all, part, i) * size, to + (size_t)i * size, size);
        equal &= !memcmp(to, to + (size_t)i * size, size);
    }
    return same && !equal;
}

/* Whether each of two numbers always gives the same of true and false. */
static bool same_mask(const struct mgpu_array *all, const struct mgpu_array *mask)
{
    double value[2];
    bool known[2] = {false, false}, same = true;
    for (int64_t i = 0; same && i < mgpu_array_count(mask); i++) {
        bool at = mgpu_get_double(mask->data, MGPU_BOOL, i) != 0;
        double x = mgpu_get_double(all->data, all->type, index_in(all, mask, i));
        same = !known[at] || value[at] == x;
        value[at] = x;
        known[at] = true;
    }
    return same && known[0] && known[1] && value[0] != value[1];
}

bool mgpu_match_is_in_graph(const struct mgpu_match *m, int tensor)
{
    const struct mgpu_onnx_model *model = m->model->model;
    struct mgpu_array all = {0};
    bool found = false;
    for (int i = 0; i < model->initializers && !found; i++) {
        const struct mgpu_array *a = &model->initializer[i].array;
        enum mgpu_weight_role role = m->model->weights->role[i];
        if ((role != MGPU_ROLE_CONSTANT && role != MGPU_ROLE_SHAPE) ||
            !is_beginning(&m->file->tensor[tensor], a))
            continue;
        if (!all.data && mgpu_checkpoint_load(m->file, tensor, &all) < 0)
            break;
        found = a->type == all.type    ? same_part(&all, a)
                : a->type == MGPU_BOOL ? same_mask(&all, a)
                                       : false;
    }
    mgpu_array_free(&all);
    return found;
}
