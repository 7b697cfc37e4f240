/* The order of samples: complete, repeatable, different in each epoch, mixed. */
#include "runtime/base/memory.h"
#include "runtime/data/batches.h"
#include "tests/test.h"

/* Every sample exactly once, whatever the blocks; *sum is a fingerprint of the order. */
static void visit(struct mgpu_batches *b, uint64_t *sum)
{
    int64_t n = b->order.samples, at = 0, rows[64];
    char *seen = mgpu_xcalloc((size_t)n, 1);
    *sum = 0;
    for (int64_t i = 0; i < mgpu_batches_count(b); i++) {
        int64_t count = mgpu_batches_rows(b, i, rows);
        int64_t left = n - at;
        CHECK(count == (left < b->batch ? left : b->batch));
        for (int64_t k = 0; k < count; k++) {
            int64_t row = rows[k] - b->order.first;
            CHECK_(row >= 0 && row < n && !seen[row], "sample %ld lost or repeated", (long)row);
            seen[row] = 1;
            *sum = *sum * 1099511628211u + (uint64_t)row + 1;
            at++;
        }
    }
    CHECK(at == n);
    free(seen);
}

static void check_order(int64_t samples, int64_t batch, int64_t block, int64_t window)
{
    struct mgpu_batches b;
    uint64_t first, second, again, other_seed;
    struct mgpu_order order = {.first = 5,
                               .samples = samples,
                               .shuffle = true,
                               .seed = 7,
                               .block = block,
                               .window = window};
    CHECK_OK(mgpu_batches_init(&b, &order, batch));
    visit(&b, &first);
    mgpu_batches_epoch(&b, 1);
    visit(&b, &second);
    mgpu_batches_epoch(&b, 0);
    visit(&b, &again);
    mgpu_batches_free(&b);
    order.seed = 8;
    CHECK_OK(mgpu_batches_init(&b, &order, batch));
    visit(&b, &other_seed);
    mgpu_batches_free(&b);
    CHECK(first == again);
    CHECK(samples < 10 || (first != second && first != other_seed && second != other_seed));
}

/* Batches may be asked for in any order: a resume starts in the middle. */
static void test_resume(void)
{
    struct mgpu_batches a, b;
    struct mgpu_order order = {
        .samples = 1003, .shuffle = true, .seed = 3, .block = 10, .window = 7};
    int64_t x[64], y[64];
    CHECK_OK(mgpu_batches_init(&a, &order, 64));
    CHECK_OK(mgpu_batches_init(&b, &order, 64));
    mgpu_batches_epoch(&a, 4);
    mgpu_batches_epoch(&b, 4);
    for (int64_t i = 0; i < mgpu_batches_count(&a); i++)
        mgpu_batches_rows(&a, i, x);
    for (int64_t i = mgpu_batches_count(&a) - 1; i >= 0; i--) {
        int64_t n = mgpu_batches_rows(&a, i, x);
        CHECK(mgpu_batches_rows(&b, i, y) == n);
        CHECK(memcmp(x, y, (size_t)n * sizeof *x) == 0);
    }
    mgpu_batches_free(&a);
    mgpu_batches_free(&b);
}

static void test_plain(void)
{
    struct mgpu_batches b;
    int64_t rows[4];
    CHECK_OK(mgpu_batches_init(&b, &(struct mgpu_order){.first = 2, .samples = 6}, 4));
    CHECK(mgpu_batches_count(&b) == 2);
    CHECK(mgpu_batches_rows(&b, 0, rows) == 4 && rows[0] == 2 && rows[3] == 5);
    CHECK(mgpu_batches_rows(&b, 1, rows) == 2 && rows[0] == 6 && rows[1] == 7);
    mgpu_batches_free(&b);
    CHECK_FAILS(mgpu_batches_init(&b, &(struct mgpu_order){.samples = 0}, 4), "no samples");
    CHECK_FAILS(mgpu_batches_init(&b, &(struct mgpu_order){.samples = 3}, 0), "a batch of 0");
}

/* The order is part of what a seed means: these numbers must never change. */
static void test_pinned(void)
{
    struct mgpu_batches b;
    int64_t rows[8];
    CHECK_OK(
        mgpu_batches_init(&b, &(struct mgpu_order){.samples = 8, .shuffle = true, .seed = 1}, 8));
    mgpu_batches_rows(&b, 0, rows);
    static const int64_t pinned[8] = {1, 0, 3, 4, 6, 5, 2, 7};
    CHECK_(memcmp(rows, pinned, sizeof pinned) == 0, "%ld,%ld,%ld,%ld,%ld,%ld,%ld,%ld",
           (long)rows[0], (long)rows[1], (long)rows[2], (long)rows[3], (long)rows[4], (long)rows[5],
           (long)rows[6], (long)rows[7]);
    mgpu_batches_free(&b);
}

/* Each of 6 samples is first about as often as any other: 600 +- 5 standard deviations. */
static void test_uniform(void)
{
    struct mgpu_batches b;
    int64_t rows[6], counts[6] = {0};
    CHECK_OK(
        mgpu_batches_init(&b, &(struct mgpu_order){.samples = 6, .shuffle = true, .seed = 9}, 6));
    for (int64_t e = 0; e < 3600; e++) {
        mgpu_batches_epoch(&b, e);
        mgpu_batches_rows(&b, 0, rows);
        counts[rows[0]]++;
    }
    for (int i = 0; i < 6; i++)
        CHECK_(counts[i] > 488 && counts[i] < 712, "%ld", (long)counts[i]);
    mgpu_batches_free(&b);
}

static void test_slice(void)
{
    for (int64_t size = 0; size < 20; size++)
        for (int ranks = 1; ranks < 6; ranks++) {
            int64_t at = 0, first, count, last = size;
            for (int r = 0; r < ranks; r++) {
                mgpu_batches_slice(size, ranks, r, &first, &count);
                CHECK(first == at && count <= last && count >= size / ranks &&
                      count <= size / ranks + 1);
                at += count;
                last = count;
            }
            CHECK(at == size);
        }
}

int main(void)
{
    check_order(10007, 64, 0, 0);
    check_order(10007, 64, 1000, 3);
    check_order(10007, 64, 1, 64);
    check_order(10000, 64, 1000, 2);
    check_order(7, 3, 3, 1);
    check_order(1, 64, 0, 0);
    check_order(5000000, 64, 0, 0);
    test_resume();
    test_plain();
    test_pinned();
    test_uniform();
    test_slice();
    return test_end();
}
