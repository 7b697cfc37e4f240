/* Offsets of blocks by lifetime: largest first, each at the lowest place that is free for as long
 * as it lives. */
#include "runtime/base/memory.h"
#include "runtime/compile/program.h"

#include <stdlib.h>

enum { ALIGN = 64 };

static int64_t rounded(int64_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

struct block {
    int index;
    int64_t bytes;
};

static int larger_first(const void *a, const void *b)
{
    const struct block *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return x->index - y->index;
}

static int by_offset(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return x[0] < y[0] ? -1 : x[0] > y[0];
}

static int64_t most_alive(int count, const int64_t *bytes, const int *first, const int *last)
{
    int64_t most = 0, alive = 0;
    int end = 0;
    for (int i = 0; i < count; i++)
        end = last[i] > end ? last[i] : end;
    int64_t *change = mgpu_xcalloc((size_t)end + 2, sizeof *change); /* by instruction */
    for (int i = 0; i < count; i++) {
        change[first[i]] += rounded(bytes[i]);
        change[last[i] + 1] -= rounded(bytes[i]);
    }
    for (int i = 0; i <= end; i++) {
        alive += change[i];
        most = alive > most ? alive : most;
    }
    free(change);
    return most;
}

int64_t mgpu_place_blocks(int count, const int64_t *bytes, const int *first, const int *last,
                          int64_t *offset, int64_t *lower_bound)
{
    struct block *order = mgpu_xcalloc((size_t)count, sizeof *order);
    int64_t(*taken)[2] = mgpu_xcalloc((size_t)count, sizeof *taken);
    int64_t size = 0;
    for (int i = 0; i < count; i++)
        order[i] = (struct block){.index = i, .bytes = bytes[i]};
    qsort(order, (size_t)count, sizeof *order, larger_first);
    for (int i = 0; i < count; i++) {
        int b = order[i].index, n = 0;
        for (int k = 0; k < i; k++) {
            int other = order[k].index;
            if (first[other] > last[b] || last[other] < first[b])
                continue;
            taken[n][0] = offset[other];
            taken[n++][1] = offset[other] + rounded(bytes[other]);
        }
        qsort(taken, (size_t)n, sizeof *taken, by_offset);
        int64_t at = 0;
        for (int k = 0; k < n && taken[k][0] < at + rounded(bytes[b]); k++)
            at = taken[k][1] > at ? taken[k][1] : at;
        offset[b] = at;
        size = at + rounded(bytes[b]) > size ? at + rounded(bytes[b]) : size;
    }
    free(order);
    free(taken);
    *lower_bound = most_alive(count, bytes, first, last);
    return size;
}
