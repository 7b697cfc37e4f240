/* Contents of the stored weights: in from the file, out as plain arrays. */
#include "runtime/base/status.h"
#include "runtime/facade/facade.h"

#include <string.h>

static void *stored_at(const struct mgpu_trainer *t, int rank, const struct mgpu_stored *e)
{
    return (char *)mgpu_team_rank(t->team, rank)->buffer[e->buffer] + e->offset;
}

static const struct mgpu_weight *weight_called(const struct mgpu_trainer *t, const char *name)
{
    for (int i = 0; i < t->weights->count; i++)
        if (!strcmp(t->weights->weight[i].name, name))
            return &t->weights->weight[i];
    return NULL;
}

static void fill_value(void *to, const struct mgpu_stored *e, double value)
{
    int64_t n = e->bytes / (int64_t)mgpu_dtype_size(e->type);
    for (int64_t i = 0; i < n; i++)
        mgpu_set_double(to, e->type, i, value);
}

static int fill_entry(struct mgpu_trainer *t, const struct mgpu_stored *e)
{
    void *to = stored_at(t, 0, e);
    if (e->role == MGPU_STATE) {
        for (int i = 0; i < t->start_count; i++)
            if (!strcmp(t->starts[i].name, e->name))
                fill_value(to, e, t->starts[i].value);
        return 0;
    }
    const struct mgpu_weight *w = weight_called(t, e->name);
    if (!w)
        return mgpu_fail(MGPU_EINTERNAL, "'%s' is stored and is no weight", e->name);
    const struct mgpu_array *a = &t->model->initializer[w->holder[0].initializer].array;
    int64_t n = mgpu_array_count(a);
    if (n * (int64_t)mgpu_dtype_size(e->type) != e->bytes)
        return mgpu_fail(MGPU_EINTERNAL, "'%s' is stored with another size", e->name);
    mgpu_convert(to, e->type, a->data, a->type, n);
    return 0;
}

int mgpu_fill_store(struct mgpu_trainer *t)
{
    for (int i = 0; i < t->store->count; i++) {
        const struct mgpu_stored *e = &t->store->entry[i];
        MGPU_TRY(fill_entry(t, e));
        for (int r = 1; r < mgpu_team_size(t->team); r++)
            memcpy(stored_at(t, r, e), stored_at(t, 0, e), (size_t)e->bytes);
    }
    return 0;
}

static void transpose(void *to, const void *from, enum mgpu_dtype type, int64_t rows, int64_t cols)
{
    size_t size = mgpu_dtype_size(type);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < cols; k++)
            memcpy((char *)to + (size_t)(k * rows + i) * size,
                   (const char *)from + (size_t)(i * cols + k) * size, size);
}

int mgpu_holder_array(struct mgpu_array *out, const struct mgpu_trainer *t, int weight, int holder)
{
    const struct mgpu_weight *w = &t->weights->weight[weight];
    const struct mgpu_holder *h = &w->holder[holder];
    const struct mgpu_array *a = &t->model->initializer[h->initializer].array;
    const struct mgpu_stored *e = mgpu_store_find(t->store, w->name);
    enum mgpu_dtype type = e ? e->type : a->type;
    MGPU_TRY(mgpu_array_init(out, type, a->rank, a->dims, w->name));
    if (!e)
        memcpy(out->data, a->data, (size_t)mgpu_array_count(a) * mgpu_dtype_size(type));
    else if (h->copy == MGPU_COPY_TRANSPOSED)
        transpose(out->data, stored_at(t, 0, e), type, e->dims[0], e->dims[1]);
    else
        memcpy(out->data, stored_at(t, 0, e), (size_t)e->bytes);
    return 0;
}
