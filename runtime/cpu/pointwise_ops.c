#include "runtime/cpu/pointwise_ops.h"
#include "runtime/cpu/simd.h"

bool mgpu_cpu_applies(enum mgpu_expr_code code)
{
    return code != MGPU_X_BITNOT && code != MGPU_X_SHL && code != MGPU_X_SHR;
}

#define LOOP _Pragma("GCC ivdep") _Pragma("GCC unroll 4") for (int64_t i = 0; i < n; i++)

/* The vector functions of sqrt and rounding are instructions; those with a loop inside (fmod) stay
 * scalar. */
#define EACH(code, formula)                                                                        \
    case code:                                                                                     \
        LOOP                                                                                       \
        {                                                                                          \
            float x = a[i] * head;                                                                 \
            to[i] = (formula)*factor + offset;                                                     \
        }                                                                                          \
        break
#define PAIR(code, formula)                                                                        \
    case code:                                                                                     \
        LOOP                                                                                       \
        {                                                                                          \
            float x = a[i], y = b[i];                                                              \
            to[i] = (formula)*factor + offset;                                                     \
        }                                                                                          \
        break

/* Python's remainder: the divisor's sign. */
static inline float modulo(float x, float y)
{
    float r = fmodf(x, y);
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

/* As in ref. */
MGPU_INLINE float gelu_tanh(float x)
{
    return mgpu_tanhf(0.79788456f * x * (1 + 0.044715f * x * x));
}

MGPU_INLINE float gelu_slope(float x)
{
    float t = gelu_tanh(x);
    return (1 + t + x * (1 - t * t) * 0.79788456f * (1 + 0.134145f * x * x)) / 2;
}

MGPU_SIMD static void apply_1(enum mgpu_expr_code code, float *to, const float *a,
                              struct mgpu_cpu_ends ends, int64_t n)
{
    const float head = ends.head, factor = ends.factor, offset = ends.offset;
    switch (code) {
        EACH(MGPU_X_NEG, -x);
        EACH(MGPU_X_ABS, fabsf(x));
        EACH(MGPU_X_SIGN, x > 0 ? 1 : x < 0 ? -1 : x);
        EACH(MGPU_X_NOT, x == 0 ? 1 : 0);
        EACH(MGPU_X_CAST, x != 0 ? 1 : 0); /* to bool */
        EACH(MGPU_X_FLOOR, floorf(x));
        EACH(MGPU_X_CEIL, ceilf(x));
        EACH(MGPU_X_ROUND, nearbyintf(x));
        EACH(MGPU_X_RECIPROCAL, 1 / x);
        EACH(MGPU_X_SQRT, sqrtf(x));
        EACH(MGPU_X_EXP, mgpu_expf(x));
        EACH(MGPU_X_LOG, logf(x));
        EACH(MGPU_X_LOG1P, log1pf(x));
        EACH(MGPU_X_SIN, sinf(x));
        EACH(MGPU_X_COS, cosf(x));
        EACH(MGPU_X_TAN, tanf(x));
        EACH(MGPU_X_ASIN, asinf(x));
        EACH(MGPU_X_ACOS, acosf(x));
        EACH(MGPU_X_ATAN, atanf(x));
        EACH(MGPU_X_SINH, sinhf(x));
        EACH(MGPU_X_COSH, coshf(x));
        EACH(MGPU_X_TANH, mgpu_tanhf(x));
        EACH(MGPU_X_ASINH, asinhf(x));
        EACH(MGPU_X_ACOSH, acoshf(x));
        EACH(MGPU_X_ATANH, atanhf(x));
        EACH(MGPU_X_ERF, mgpu_erff(x));
        EACH(MGPU_X_GELU, x / 2 * (1 + gelu_tanh(x)));
        EACH(MGPU_X_GELU_SLOPE, gelu_slope(x));
        EACH(MGPU_X_SIGMOID, mgpu_sigmoidf(x));
        EACH(MGPU_X_SOFTPLUS, (x > 0 ? x : 0) + log1pf(mgpu_exp_negativef(-fabsf(x))));
        EACH(MGPU_X_ISNAN, x != x ? 1 : 0);
        EACH(MGPU_X_ISINF, fabsf(x) == INFINITY ? 1 : 0);
    default: /* stop */
        LOOP
        {
            to[i] = a[i] * head * factor + offset;
        }
        break;
    }
}

MGPU_SIMD static void apply_2(enum mgpu_expr_code code, float *to, const float *a, const float *b,
                              struct mgpu_cpu_ends ends, int64_t n)
{
    const float factor = ends.factor, offset = ends.offset;
    switch (code) {
        PAIR(MGPU_X_ADD, x + y);
        PAIR(MGPU_X_SUB, x - y);
        PAIR(MGPU_X_MUL, x * y);
        PAIR(MGPU_X_DIV, x / y);
        PAIR(MGPU_X_MOD, modulo(x, y));
        PAIR(MGPU_X_FMOD, fmodf(x, y));
        PAIR(MGPU_X_POW, powf(x, y));
        PAIR(MGPU_X_MIN, x < y || x != x ? x : y);
        PAIR(MGPU_X_MAX, x > y || x != x ? x : y);
        PAIR(MGPU_X_AND, x != 0 && y != 0 ? 1 : 0);
        PAIR(MGPU_X_OR, x != 0 || y != 0 ? 1 : 0);
        PAIR(MGPU_X_XOR, x != y ? 1 : 0);
        PAIR(MGPU_X_EQ, x == y ? 1 : 0);
        PAIR(MGPU_X_LT, x < y ? 1 : 0);
        PAIR(MGPU_X_LE, x <= y ? 1 : 0);
    default: /* mulz */
        LOOP
        {
            float product = a[i] * b[i];
            to[i] = (a[i] == 0 ? 0 : product) * factor + offset;
        }
        break;
    }
}

MGPU_SIMD static void choose(float *to, const float *c, const float *a, const float *b,
                             struct mgpu_cpu_ends ends, int64_t n)
{
    const float factor = ends.factor, offset = ends.offset;
    LOOP
    {
        float x = a[i], y = b[i];
        to[i] = (c[i] != 0 ? x : y) * factor + offset;
    }
}

static void apply(enum mgpu_expr_code code, float *to, const float *a, const float *b,
                  const float *c, struct mgpu_cpu_ends ends, int64_t n)
{
    switch (mgpu_expr_arity(code)) {
    case 1:
        apply_1(code, to, a, ends, n);
        break;
    case 2:
        apply_2(code, to, a, b, ends, n);
        break;
    default:
        choose(to, a, b, c, ends, n);
        break;
    }
}

/* What is left of a run is computed as part of a vector too: the functions of one element alone may
 * round otherwise, and no element shall depend on where a tile or a rank's part ends. */
void mgpu_cpu_apply(enum mgpu_expr_code code, float *to, const float *a, const float *b,
                    const float *c, struct mgpu_cpu_ends ends, int64_t n)
{
    enum { WIDEST = 16 };
    float x[3][WIDEST] = {{0}}, y[WIDEST];
    const float *operand[3] = {a, b, c};
    int64_t rest = n % WIDEST, whole = n - rest;
    if (whole)
        apply(code, to, a, b, c, ends, whole);
    if (!rest)
        return;
    for (int i = 0; i < mgpu_expr_arity(code); i++)
        memcpy(x[i], operand[i] + whole, (size_t)rest * sizeof *x[i]);
    apply(code, y, x[0], x[1], x[2], ends, WIDEST);
    memcpy(to + whole, y, (size_t)rest * sizeof *y);
}
