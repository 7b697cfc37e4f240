#include "runtime/base/finite.h"

#include <string.h>

enum { PIECE = 1 << 15 }; /* elements that are worth waking another thread */

static bool finite_floats(const float *x, int64_t n)
{
    uint32_t found = 0; /* an exponent of all ones */
#pragma omp simd reduction(| : found)
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        found |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return !found;
}

static bool finite_doubles(const double *x, int64_t n)
{
    double sum = 0; /* 0 * x is NaN where x is not finite */
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += 0 * x[i];
    return sum == 0;
}

static bool finite_halves(const uint16_t *x, int64_t n, uint16_t exponent)
{
    bool finite = true;
    for (int64_t i = 0; i < n; i++)
        finite = finite && (x[i] & exponent) != exponent;
    return finite;
}

bool mgpu_all_finite(const void *data, enum mgpu_dtype type, int64_t bytes)
{
    bool finite = true;
    if (type == MGPU_FLOAT16 || type == MGPU_BFLOAT16)
        return finite_halves(data, bytes / 2, type == MGPU_FLOAT16 ? 0x7c00 : 0x7f80);
    if (type != MGPU_FLOAT && type != MGPU_DOUBLE)
        return true;
    int64_t n = bytes / (int64_t)mgpu_dtype_size(type);
#pragma omp parallel for if (n > PIECE) schedule(static) reduction(&& : finite)
    for (int64_t at = 0; at < n; at += PIECE) {
        int64_t count = n - at < PIECE ? n - at : PIECE;
        finite = finite && (type == MGPU_FLOAT ? finite_floats((const float *)data + at, count)
                                               : finite_doubles((const double *)data + at, count));
    }
    return finite;
}
