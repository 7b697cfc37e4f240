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

/* Sanitizers instrument the function that picks, before their runtime is up. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define MGPU_SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MGPU_SIMD
#endif

/* A loop that MGPU_SIMD functions share: compiled into each of them, with its constant arguments.
 */
#define MGPU_INLINE static inline __attribute__((always_inline))

/* glibc's vector functions (libmvec, at most 4 units in the last place). */
#if defined(__x86_64__)
#define MGPU_VECTOR __attribute__((simd("notinbranch")))
MGPU_VECTOR float expf(float);
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
MGPU_VECTOR float tanhf(float);
MGPU_VECTOR float asinhf(float);
MGPU_VECTOR float acoshf(float);
MGPU_VECTOR float atanhf(float);
MGPU_VECTOR float erff(float);
MGPU_VECTOR float powf(float, float);
#endif

/* 1/(1+exp(-x)) without overflow. */
MGPU_INLINE float mgpu_sigmoidf(float x)
{
    float e = expf(-fabsf(x));
    return (x >= 0 ? 1 : e) / (1 + e);
}

#endif
