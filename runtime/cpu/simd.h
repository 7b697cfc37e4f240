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

/* Of a limit that it knows the compiler makes a comparison and a choice, which wait for
 * multipliers; of these, the instructions that are made for it. */
extern const struct mgpu_limits {
    float exp, sigmoid, tanh, erf, one;
} mgpu_limits;

/* x, or what it must not be below or above; NaN stays. */
MGPU_INLINE float mgpu_at_least(float x, float limit)
{
    return x < limit ? limit : x;
}

MGPU_INLINE float mgpu_at_most(float x, float limit)
{
    return limit < x ? limit : x;
}

MGPU_INLINE float mgpu_within(float x, float limit)
{
    return mgpu_at_most(mgpu_at_least(x, -limit), limit);
}

/* exp(x / 2) of an x within +-170, which is 2^n p: x = 2 n ln 2 + r, and p a polynomial for
 * exp(r / 2), fitted in relative error (3e-9 before rounding). Adding 1.5 * 2^23 rounds to an
 * integer, which then is the low bits: n with its bias. Its square is exp(x), which becomes
 * infinite, subnormal or zero by itself; at most 4 units in the last place from the true value. */
MGPU_INLINE float mgpu_exp_half(float x)
{
    const float round = 12582912.0f + 127;
    float shifted = x * 0.7213475204f + round, whole = shifted - round;
    float r = (x - whole * 1.38671875f) + whole * 4.2438888e-4f, s = r * r;
    float high = 2.15848757e-5f * r + 2.61526596e-4f;
    float low = 2.60427507e-3f * r + 2.08331494e-2f;
    float p = (((high * s + low) * r + 1.24999983e-1f) * r + 0.5f) * r + 1;
    return p * mgpu_from_bits(mgpu_to_bits(shifted) << 23);
}

MGPU_INLINE float mgpu_expf(float x)
{
    float half = mgpu_exp_half(mgpu_within(x, mgpu_limits.exp));
    return half * half;
}

/* The same of an x that is not positive, for less. */
MGPU_INLINE float mgpu_exp_negativef(float x)
{
    float half = mgpu_exp_half(mgpu_at_least(x, -mgpu_limits.exp));
    return half * half;
}

/* e/(1+e) with e = exp(x), of an x for which e is finite; at most 5 units off. */
MGPU_INLINE float mgpu_sigmoidf(float x)
{
    x = mgpu_at_most(mgpu_at_least(x, -mgpu_limits.exp), mgpu_limits.sigmoid);
    float half = mgpu_exp_half(x);
    float e = half * half;
    return e / (1 + e);
}

/* x P(x^2) / Q(x^2), fitted in relative error (2e-8 before rounding); at most 6 units in the last
 * place from the true value. At the limits of x it is beyond 1. */
MGPU_INLINE float mgpu_tanhf(float x)
{
    x = mgpu_within(x, mgpu_limits.tanh);
    float z = x * x;
    float p =
        (((1.335462964e-8f * z + 2.060905687e-5f) * z + 3.495586475e-3f) * z + 1.338102422e-1f) *
            z +
        9.999999795e-1f;
    float q =
        (((7.776544541e-7f * z + 3.285632190e-4f) * z + 2.587697581e-2f) * z + 4.671433981e-1f) *
            z +
        1;
    return mgpu_within(x * p / q, mgpu_limits.one);
}

MGPU_INLINE float mgpu_erff(float x)
{
    x = mgpu_within(x, mgpu_limits.erf);
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
    return mgpu_within(x * p / q, mgpu_limits.one);
}

#endif
