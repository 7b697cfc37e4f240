/* Memory. All of ours comes from here, so that a test can count calls inside the training loop.
 *
 * Metadata (names, nodes, lists) comes from an arena per lifetime and is never freed singly;
 * running out of memory for metadata ends the process with a message, so callers do not check.
 * Whatever a file or a user sizes (weights, data, activations) comes from mgpu_alloc, which may
 * fail.
 */
#ifndef MGPU_BASE_MEMORY_H
#define MGPU_BASE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* Calls of every allocator on this page so far, by any thread. */
uint64_t mgpu_alloc_calls(void);

/* Bytes held by mgpu_alloc now, and the most there ever were. */
uint64_t mgpu_alloc_bytes(void);
uint64_t mgpu_alloc_peak(void);

/* `size` zeroed bytes on a 64-byte boundary, or MGPU_ENOMEM naming `what`. Free with mgpu_free.
 * *out is NULL on failure; for size 0 it is a valid pointer. */
int mgpu_alloc(void **out, uint64_t size, const char *what);
void mgpu_free(void *block);

/* Asks for large pages, which the blocks of mgpu_alloc have where the system gives them: touched
 * for the first time in fewer faults, and found with fewer misses. */
void mgpu_large_pages(void *block, size_t size);

/* Small things outside an arena; never NULL. Free with free(). */
void *mgpu_xcalloc(size_t count, size_t size);
void *mgpu_xrealloc(void *block, size_t count, size_t size);
char *mgpu_xstrdup(const char *text);

/* Grows `array` (of `size`-byte items, `count` used) so that one more fits; a new block when
 * `count` is a power of two or zero. Use: list = mgpu_grow(list, n, sizeof *list); list[n++] = x;
 */
void *mgpu_grow(void *array, size_t count, size_t size);

/* An arena: zeroed metadata, freed all at once. */
struct mgpu_arena;
struct mgpu_arena *mgpu_arena_new(void);
void mgpu_arena_free(struct mgpu_arena *arena);
void *mgpu_arena_alloc(struct mgpu_arena *arena, size_t size);
void *mgpu_arena_copy(struct mgpu_arena *arena, const void *from, size_t size);
char *mgpu_arena_string(struct mgpu_arena *arena, const char *text);
char *mgpu_arena_format(struct mgpu_arena *arena, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#define MGPU_NEW(arena, type) ((type *)mgpu_arena_alloc((arena), sizeof(type)))
#define MGPU_NEW_ARRAY(arena, type, n)                                                             \
    ((type *)mgpu_arena_alloc((arena), sizeof(type) * (size_t)(n)))

#endif
