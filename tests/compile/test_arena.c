/* Offsets of blocks by lifetime: nothing that lives at the same time overlaps, few blocks or many,
 * and what is not alive leaves its place to others. */
#include "runtime/compile/program.h"
#include "tests/test.h"

enum { MOST = 20000 };

static int64_t bytes[MOST], offset[MOST];
static int first[MOST], last[MOST];

static uint32_t random_state = 1;

static int below(int n)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (int)((random_state >> 8) % (uint32_t)n);
}

static int by_offset(const void *a, const void *b)
{
    int64_t x = offset[*(const int *)a], y = offset[*(const int *)b];
    return x < y ? -1 : x > y;
}

/* At each of some instructions, the blocks that live then in the order of their offsets. */
static void check_apart(int count, int instructions)
{
    static int alive[MOST];
    for (int t = 0; t < instructions; t += 1 + instructions / 200) {
        int n = 0;
        for (int i = 0; i < count; i++)
            if (first[i] <= t && last[i] >= t)
                alive[n++] = i;
        qsort(alive, (size_t)n, sizeof *alive, by_offset);
        for (int k = 1; k < n; k++)
            CHECK_(offset[alive[k - 1]] + bytes[alive[k - 1]] <= offset[alive[k]],
                   "blocks %d and %d overlap at %d", alive[k - 1], alive[k], t);
    }
}

static int64_t place(int count, int instructions, int64_t *bound)
{
    int64_t size = mgpu_place_blocks(count, bytes, first, last, offset, bound);
    for (int i = 0; i < count; i++)
        CHECK(offset[i] >= 0 && offset[i] % 64 == 0 && offset[i] + bytes[i] <= size);
    CHECK(size >= *bound);
    check_apart(count, instructions);
    return size;
}

static void test_random(int count)
{
    int64_t bound;
    for (int i = 0; i < count; i++) {
        bytes[i] = 1 + (below(4) ? 64 * below(16) : below(100000));
        first[i] = below(count);
        last[i] = first[i] + below(below(8) ? 4 : count - first[i]);
    }
    place(count, count, &bound);
}

/* Forward keeps what backward takes in the other order, as in training: nothing is lost. */
static void test_nested(int depth)
{
    int64_t bound;
    for (int i = 0; i < depth; i++) {
        bytes[i] = bytes[depth + i] = 256;
        first[i] = i;
        last[i] = 2 * depth - 1 - i;
        first[depth + i] = last[i];
        last[depth + i] = last[i] + 1;
    }
    int64_t size = place(2 * depth, 2 * depth + 1, &bound);
    CHECK_(size <= bound + 2 * 256, "%lld bytes, where %lld are alive", (long long)size,
           (long long)bound);
}

int main(void)
{
    int64_t bound;
    CHECK(mgpu_place_blocks(0, bytes, first, last, offset, &bound) == 0 && bound == 0);
    for (int i = 1; i < 60; i++)
        test_random(i);
    test_random(3000);
    test_random(MOST);
    test_nested(100);
    test_nested(MOST / 2);
    return test_end();
}
