#include "exporter/layouts.h"

#include <string.h>

const unsigned char mgpu_gates_lstm[4] = {0, 3, 1, 2};
const unsigned char mgpu_gates_gru[3] = {1, 0, 2};

struct mgpu_weight_layout mgpu_weight_layout_permuted(int rank, const int64_t *view,
                                                      const int *perm)
{
    struct mgpu_weight_layout l = {.rank = rank, .gates = -1, .count = 1};
    for (int i = 0; i < rank; i++) {
        l.view[i] = view[i];
        l.perm[i] = perm[i];
        l.count *= view[i];
    }
    return l;
}

struct mgpu_weight_layout mgpu_weight_layout_same(int rank, const int64_t *dims)
{
    static const int identity[MGPU_MAX_RANK] = {0, 1, 2, 3, 4, 5, 6, 7};
    return mgpu_weight_layout_permuted(rank, dims, identity);
}

/* Where element `i` of the initializer's part stands in the framework's array. */
static int64_t index_of(const struct mgpu_weight_layout *l, const int64_t *stride, int64_t i)
{
    int64_t index = l->before;
    for (int j = l->rank - 1; j >= 0; j--) {
        int axis = l->perm[j];
        int64_t at = i % l->view[axis];
        i /= l->view[axis];
        index += stride[axis] * (axis == l->gates ? l->order[at] : at);
    }
    return index;
}

static void strides(int64_t stride[MGPU_MAX_RANK], const struct mgpu_weight_layout *l)
{
    int64_t n = 1;
    for (int i = l->rank - 1; i >= 0; n *= l->view[i--])
        stride[i] = n;
}

static void copy(const struct mgpu_weight_layout *l, void *to, int64_t to_index, const void *from,
                 int64_t from_index, enum mgpu_dtype type)
{
    size_t size = mgpu_dtype_size(type);
    if (l->negate)
        mgpu_set_double(to, type, to_index, -mgpu_get_double(from, type, from_index));
    else
        memcpy((char *)to + (size_t)to_index * size, (const char *)from + (size_t)from_index * size,
               size);
}

void mgpu_weight_layout_in(const struct mgpu_weight_layout *l, const void *from, void *to,
                           enum mgpu_dtype type)
{
    int64_t stride[MGPU_MAX_RANK];
    size_t size = mgpu_dtype_size(type);
    strides(stride, l);
    for (int64_t i = 0; i < l->count; i++)
        copy(l, to, l->at + i, from, index_of(l, stride, i), type);
    memset((char *)to + (size_t)(l->at + l->count) * size, 0, (size_t)l->tail * size);
}

/* A sum of two numbers is exact where each can be had back from it. */
static enum mgpu_tail add_to(void *to, enum mgpu_dtype type, int64_t index, double more)
{
    double own = mgpu_get_double(to, type, index);
    mgpu_set_double(to, type, index, own + more);
    double sum = mgpu_get_double(to, type, index);
    return sum - own == more && sum - more == own ? MGPU_TAIL_ADDED : MGPU_TAIL_ROUNDED;
}

enum mgpu_tail mgpu_weight_layout_out(const struct mgpu_weight_layout *l, const void *from,
                                      void *to, enum mgpu_dtype type)
{
    int64_t stride[MGPU_MAX_RANK];
    enum mgpu_tail tail = MGPU_TAIL_ZERO;
    strides(stride, l);
    for (int64_t i = 0; i < l->count; i++) {
        int64_t index = index_of(l, stride, i);
        double more = i < l->tail ? mgpu_get_double(from, type, l->at + l->count + i) : 0;
        copy(l, to, index, from, l->at + i, type);
        enum mgpu_tail one = more != 0 ? add_to(to, type, index, more) : MGPU_TAIL_ZERO;
        tail = one > tail ? one : tail;
    }
    return tail;
}

void mgpu_weight_transpose(void *to, const void *from, enum mgpu_dtype type, int64_t rows,
                           int64_t cols)
{
    size_t size = mgpu_dtype_size(type);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < cols; k++)
            memcpy((char *)to + (size_t)(k * rows + i) * size,
                   (const char *)from + (size_t)(i * cols + k) * size, size);
}
