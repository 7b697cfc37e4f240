#include "runtime/base/memory.h"

#include "runtime/base/status.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BLOCK = 64 * 1024, ALIGN = 64, LARGE = 2 << 20 };

static atomic_uint_fast64_t calls, bytes, peak;

uint64_t mgpu_alloc_calls(void)
{
    return atomic_load(&calls);
}

uint64_t mgpu_alloc_bytes(void)
{
    return atomic_load(&bytes);
}

uint64_t mgpu_alloc_peak(void)
{
    return atomic_load(&peak);
}

static void count_bytes(uint64_t size)
{
    uint64_t now = atomic_fetch_add(&bytes, size) + size;
    uint64_t most = atomic_load(&peak);
    while (now > most && !atomic_compare_exchange_weak(&peak, &most, now)) {
    }
}

/* Stands before each block. */
struct header {
    void *base; /* what calloc gave */
    uint64_t size;
};

static struct header *header_of(void *block)
{
    return (struct header *)block - 1;
}

void mgpu_large_pages(void *base, size_t size)
{
    uintptr_t from = ((uintptr_t)base + LARGE - 1) / LARGE * LARGE;
    uintptr_t to = ((uintptr_t)base + size) / LARGE * LARGE;
    if (to > from)
        madvise((void *)from, to - from, MADV_HUGEPAGE);
}

/* Not aligned_alloc and memset: calloc knows which pages come zeroed from the system. */
int mgpu_alloc(void **out, uint64_t size, const char *what)
{
    *out = NULL;
    atomic_fetch_add(&calls, 1);
    if (size > SIZE_MAX / 2)
        return mgpu_fail(MGPU_ENOMEM, "%s: %llu bytes are more than a process can hold", what,
                         (unsigned long long)size);
    size_t whole = sizeof(struct header) + ALIGN + ((size_t)size + ALIGN - 1) / ALIGN * ALIGN;
    char *base = calloc(1, whole);
    if (!base)
        return mgpu_fail(MGPU_ENOMEM, "%s: no memory for %llu bytes", what,
                         (unsigned long long)size);
    mgpu_large_pages(base, whole);
    char *block = base + sizeof(struct header);
    block += (ALIGN - (uintptr_t)block % ALIGN) % ALIGN;
    *header_of(block) = (struct header){.base = base, .size = size};
    count_bytes(size);
    *out = block;
    return 0;
}

void mgpu_free(void *block)
{
    if (!block)
        return;
    atomic_fetch_sub(&bytes, header_of(block)->size);
    free(header_of(block)->base);
}

static void *checked(void *block)
{
    if (!block) {
        fputs("mgpu: out of memory\n", stderr);
        abort();
    }
    return block;
}

void *mgpu_xcalloc(size_t count, size_t size)
{
    atomic_fetch_add(&calls, 1);
    return checked(calloc(count ? count : 1, size ? size : 1));
}

void *mgpu_xrealloc(void *block, size_t count, size_t size)
{
    atomic_fetch_add(&calls, 1);
    if (size && count > SIZE_MAX / size)
        return checked(NULL);
    size_t whole = count * size;
    return checked(realloc(block, whole > 0 ? whole : 1));
}

char *mgpu_xstrdup(const char *from)
{
    size_t n = strlen(from) + 1;
    return memcpy(mgpu_xcalloc(n, 1), from, n);
}

void *mgpu_grow(void *array, size_t count, size_t size)
{
    if (count & (count - 1))
        return array;
    return mgpu_xrealloc(array, count ? 2 * count : 1, size);
}

struct block {
    struct block *next;
    size_t used, size;
    _Alignas(max_align_t) char data[];
};

struct mgpu_arena {
    struct block *first;
};

struct mgpu_arena *mgpu_arena_new(void)
{
    return mgpu_xcalloc(1, sizeof(struct mgpu_arena));
}

void mgpu_arena_free(struct mgpu_arena *arena)
{
    if (!arena)
        return;
    for (struct block *b = arena->first, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    free(arena);
}

/* Sanitizer builds get one block an allocation, so that they see every bound. */
static size_t block_size(size_t size)
{
#ifdef __SANITIZE_ADDRESS__
    return size;
#else
    return size > BLOCK / 4 ? size : BLOCK;
#endif
}

void *mgpu_arena_alloc(struct mgpu_arena *arena, size_t size)
{
    size_t align = _Alignof(max_align_t);
    size = (size + align - 1) / align * align;
    struct block *b = arena->first;
    if (!b || b->size - b->used < size) {
        size_t room = block_size(size);
        struct block *fresh = mgpu_xcalloc(1, sizeof *fresh + room);
        fresh->size = room;
        if (b && room == size) { /* a block of its own: keep filling the current one */
            fresh->next = b->next;
            b->next = fresh;
        } else {
            fresh->next = b;
            arena->first = fresh;
        }
        b = fresh;
    }
    void *out = b->data + b->used;
    b->used += size;
    return out;
}

void *mgpu_arena_copy(struct mgpu_arena *arena, const void *from, size_t size)
{
    void *out = mgpu_arena_alloc(arena, size);
    if (size)
        memcpy(out, from, size);
    return out;
}

char *mgpu_arena_string(struct mgpu_arena *arena, const char *from)
{
    return mgpu_arena_copy(arena, from, strlen(from) + 1);
}

char *mgpu_arena_format(struct mgpu_arena *arena, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *out = mgpu_arena_alloc(arena, (size_t)(n < 0 ? 0 : n) + 1);
    va_start(args, format);
    vsnprintf(out, (size_t)(n < 0 ? 0 : n) + 1, format, args);
    va_end(args);
    return out;
}
