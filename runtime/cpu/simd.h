/* What turns a plain loop into vector code for the machine it runs on.
 *
 *     MGPU_SIMD static void add(float *to, const float *a, const float *b, int64_t n)
 *     {
 *     #pragma GCC ivdep
 *         for (int64_t i = 0; i < n; i++)
 *             to[i] = a[i] + b[i];
 *     }
 *
 * The function is compiled for AVX-512, AVX2 and the base machine, and the loader picks one. It
 * must not hold an OpenMP region (its body would stay at the base): split the work outside, loop
 * inside. `ivdep` says that an output is either no operand of the loop or the same element of it.
 * Sums take
 * `#pragma omp simd reduction`; a condition that does not change inside such a loop keeps it
 * scalar.
 *
 * This folder is compiled without errno and floating traps (CMakeLists.txt), so that loops with
 * comparisons, sqrt and the functions below become vector code; NaN and infinity keep their
 * meaning.
 */
#ifndef MGPU_CPU_SIMD_H
#define MGPU_CPU_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Sanitizers instrument the function that picks, before their runtime is up. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define MGPU_SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MGPU_SIMD
#endif

/* A loop that MGPU_SIMD functions share: compiled into each of them, with its constant arguments.
 */
#define MGPU_INLINE static inline __attribute__((always_inline))

/* glibc's vector functions (libmvec, at most 4 units in the last place). exp, tanh and erf are
 * below. */
#if defined(__x86_64__)
#define MGPU_VECTOR __attribute__((simd("notinbranch")))
MGPU_VECTOR float logf(float);
MGPU_VECTOR float log1pf(float);
MGPU_VECTOR float sinf(float);
MGPU_VECTOR float cosf(float);
MGPU_VECTOR float tanf(float);
MGPU_VECTOR float asinf(float);
MGPU_VECTOR float acosf(float);
MGPU_VECTOR float atanf(float);
MGPU_VECTOR float sinhf(float);
MGPU_VECTOR float coshf(float);
MGPU_VECTOR float asinhf(float);
MGPU_VECTOR float acoshf(float);
MGPU_VECTOR float atanhf(float);
MGPU_VECTOR float powf(float, float);
#endif

MGPU_INLINE float mgpu_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

MGPU_INLINE uint32_t mgpu_to_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* exp(x) is 2^n p: x = n ln 2 + r, and p a polynomial for exp(r), fitted in relative error (3e-9
 * before rounding); at most 2 units in the last place from the true value. Adding 1.5 * 2^23 rounds
 * to an integer, which then is the low bits: *bits ends in n + bias. Sums of the polynomial stand
 * beside each other where they can: what bounds a loop is how long one element takes. Where x is
 * out of range the result is anything; callers choose another then, behind all else for the same
 * reason. */
MGPU_INLINE float mgpu_exp_parts(float x, int bias, uint32_t *bits)
{
    const float round = 12582912.0f + (float)bias;
    float shifted = x * 1.442695041f + round, whole = shifted - round;
    float r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f, s = r * r;
    float high = 1.381461039e-3f * r + 8.368711137e-3f;
    float low = 4.166838749e-2f * r + 1.666652068e-1f;
    *bits = mgpu_to_bits(shifted);
    return (((high * s + low) * r + 4.999999345e-1f) * s + r) + 1;
}

/* 2^n comes in two factors, as it may be no float itself. */
MGPU_INLINE float mgpu_expf(float x)
{
    uint32_t n;
    float p = mgpu_exp_parts(x, 2 * 127, &n);
    float y = p * mgpu_from_bits(n >> 1 << 23) * mgpu_from_bits((n - (n >> 1)) << 23);
    y = x < -104 ? 0 : y; /* NaN stays */
    return x > 89 ? INFINITY : y;
}

/* The same of an x that is not positive, for less: one of the factors is always 2^-24. */
MGPU_INLINE float mgpu_exp_negativef(float x)
{
    uint32_t n;
    float p = mgpu_exp_parts(x, 24 + 127, &n);
    float y = p * mgpu_from_bits(n << 23) * 5.9604644775390625e-8f;
    return x < -104 ? 0 : y; /* NaN stays */
}

/* What an odd function is beyond +-limit; NaN stays. */
MGPU_INLINE float mgpu_saturate(float x, float limit, float y)
{
    y = x > limit ? 1 : y;
    return x < -limit ? -1 : y;
}

/* x P(x^2) / Q(x^2), fitted in relative error (2e-8 before rounding); at most 6 units in the last
 * place from the true value, up to where rounding could lead beyond 1. */
MGPU_INLINE float mgpu_tanhf(float x)
{
    float z = x * x;
    float p =
        (((1.335462964e-8f * z + 2.060905687e-5f) * z + 3.495586475e-3f) * z + 1.338102422e-1f) *
            z +
        9.999999795e-1f;
    float q =
        (((7.776544541e-7f * z + 3.285632190e-4f) * z + 2.587697581e-2f) * z + 4.671433981e-1f) *
            z +
        1;
    return mgpu_saturate(x, 7.97f, x * p / q);
}

MGPU_INLINE float mgpu_erff(float x)
{
    float z = x * x;
    float p =
        ((((2.041990549e-6f * z + 2.848078481e-4f) * z + 3.779545874e-3f) * z + 5.279008852e-2f) *
             z +
         1.907822573e-1f) *
            z +
        1.128379145f;
    float q =
        ((((3.800424314e-5f * z + 1.165198712e-3f) * z + 1.499730840e-2f) * z + 1.142568818e-1f) *
             z +
         5.024090931e-1f) *
            z +
        1;
    return mgpu_saturate(x, 3.63f, x * p / q);
}

/* 1/(1+exp(-x)); 0 where that is less than the least normal float, so that 2^n is one factor. */
MGPU_INLINE float mgpu_sigmoidf(float x)
{
    uint32_t n;
    float p = mgpu_exp_parts(-x, 127, &n), e = p * mgpu_from_bits(n << 23);
    e = x > 87 ? 0 : e; /* NaN stays */
    float y = 1 / (1 + e);
    return x < -88 ? 0 : y;
}

#endif
