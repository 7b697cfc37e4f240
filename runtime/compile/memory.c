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

/* ---- Where it is free ------------------------------------------------------------------------ */

/* Blocks looked at one by one: so many of the largest. The many small ones behind them go on top of
 * what is alive while they are, which a tree over the instructions knows. */
enum { ONE_BY_ONE = 4096 };

struct placing {
    const int64_t *bytes;
    const int *first, *last;
    int64_t *offset;
    const struct block *order; /* the first `placed` have their offsets */
    int placed;
    int64_t (*taken)[2]; /* scratch: what lies where while a block lives */
    int leaves;
    int64_t *top;  /* by node of the tree: the end of the highest block that covers all its
                    * instructions ... */
    int64_t *most; /* ... or some of them */
};

static int64_t lowest_gap(const struct placing *p, int b)
{
    int n = 0;
    for (int k = 0; k < p->placed; k++) {
        int other = p->order[k].index;
        if (p->first[other] > p->last[b] || p->last[other] < p->first[b])
            continue;
        p->taken[n][0] = p->offset[other];
        p->taken[n++][1] = p->offset[other] + rounded(p->bytes[other]);
    }
    qsort(p->taken, (size_t)n, sizeof *p->taken, by_offset);
    int64_t at = 0;
    for (int k = 0; k < n && p->taken[k][0] < at + rounded(p->bytes[b]); k++)
        at = p->taken[k][1] > at ? p->taken[k][1] : at;
    return at;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The highest end while block `b` lives, in the part of the tree at `node`: [from, to). */
static int64_t top_of(const struct placing *p, int b, int node, int from, int to)
{
    if (p->first[b] >= to || p->last[b] < from)
        return 0;
    if (p->first[b] <= from && p->last[b] + 1 >= to)
        return p->most[node];
    int middle = (from + to) / 2;
    return larger(p->top[node], larger(top_of(p, b, 2 * node, from, middle),
                                       top_of(p, b, 2 * node + 1, middle, to)));
}

static void raise_top(struct placing *p, int b, int64_t end, int node, int from, int to)
{
    if (p->first[b] >= to || p->last[b] < from)
        return;
    p->most[node] = larger(p->most[node], end);
    if (p->first[b] <= from && p->last[b] + 1 >= to) {
        p->top[node] = larger(p->top[node], end);
        return;
    }
    int middle = (from + to) / 2;
    raise_top(p, b, end, 2 * node, from, middle);
    raise_top(p, b, end, 2 * node + 1, middle, to);
}

/* Room for the tree; the larger half of its nodes are leaves. */
static void grow_tree(struct placing *p, int count)
{
    int end = 0;
    for (int i = 0; i < count; i++)
        end = p->last[i] > end ? p->last[i] : end;
    for (p->leaves = 1; p->leaves <= end;)
        p->leaves *= 2;
    p->top = mgpu_xcalloc(4 * (size_t)p->leaves, sizeof *p->top);
    p->most = p->top + 2 * p->leaves;
}

int64_t mgpu_place_blocks(int count, const int64_t *bytes, const int *first, const int *last,
                          int64_t *offset, int64_t *lower_bound)
{
    struct block *order = mgpu_xcalloc((size_t)count, sizeof *order);
    struct placing p = {
        .bytes = bytes, .first = first, .last = last, .offset = offset, .order = order};
    int64_t size = 0;
    for (int i = 0; i < count; i++)
        order[i] = (struct block){.index = i, .bytes = bytes[i]};
    qsort(order, (size_t)count, sizeof *order, larger_first);
    p.taken = mgpu_xcalloc((size_t)(count < ONE_BY_ONE ? count : ONE_BY_ONE), sizeof *p.taken);
    if (count > ONE_BY_ONE)
        grow_tree(&p, count);
    for (; p.placed < count; p.placed++) {
        int b = order[p.placed].index;
        offset[b] = p.placed < ONE_BY_ONE ? lowest_gap(&p, b) : top_of(&p, b, 1, 0, p.leaves);
        if (p.leaves)
            raise_top(&p, b, offset[b] + rounded(bytes[b]), 1, 0, p.leaves);
        size = larger(size, offset[b] + rounded(bytes[b]));
    }
    free(order);
    free(p.taken);
    free(p.top);
    *lower_bound = most_alive(count, bytes, first, last);
    return size;
}
