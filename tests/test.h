/* What a test needs: checks that print where they failed and go on, and one line at the end.
 *
 *     int main(void)
 *     {
 *         CHECK(1 + 1 == 2);
 *         CHECK_NEAR(sqrt(2), 1.41421356, 1e-8);
 *         CHECK_FAILS(mgpu_array_init(...), "negative");
 *         return test_end();
 *     }
 */
#ifndef MGPU_TEST_H
#define MGPU_TEST_H

#include "runtime/base/status.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int test_checks, test_failures;

#define CHECK_(ok, ...)                                                                            \
    do {                                                                                           \
        test_checks++;                                                                             \
        if (!(ok)) {                                                                               \
            test_failures++;                                                                       \
            fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                        \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
        }                                                                                          \
    } while (0)

#define CHECK(ok) CHECK_(ok, "not true: %s", #ok)

/* |a - b| <= tolerance * max(1, |b|) */
#define CHECK_NEAR(a, b, tolerance)                                                                \
    do {                                                                                           \
        double near_a_ = (a), near_b_ = (b);                                                       \
        CHECK_(fabs(near_a_ - near_b_) <= (tolerance)*fmax(1, fabs(near_b_)),                      \
               "%s is %.17g, not %.17g", #a, near_a_, near_b_);                                    \
    } while (0)

/* The call must succeed. */
#define CHECK_OK(call) CHECK_((call) >= 0, "%s failed: %s", #call, mgpu_error())

/* The call must fail with a message that holds `part`. */
#define CHECK_FAILS(call, part)                                                                    \
    do {                                                                                           \
        int fails_rc_ = (call);                                                                    \
        CHECK_(fails_rc_ < 0 && strstr(mgpu_error(), part), "%s gave %d: %s", #call, fails_rc_,    \
               mgpu_error());                                                                      \
    } while (0)

static inline int test_end(void)
{
    printf("%d checks, %d failed\n", test_checks, test_failures);
    return test_failures ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
