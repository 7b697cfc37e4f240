/* Types in memory (m_NAME) and how they come into computation and leave it; cutting and rounding to
 * a type; what math.h lacks. */
typedef long long i64; typedef unsigned long long u64; typedef unsigned u32;
typedef float m_float; typedef double m_double; typedef u16 m_float16, m_bfloat16;
typedef signed char m_int8; typedef short m_int16; typedef int m_int32;
typedef i64 m_int64; typedef u64 m_uint64; typedef u32 m_uint32;
typedef u16 m_uint16; typedef unsigned char m_uint8, m_bool;
DEVICE float bfloat_to_float(u16 b) { return as_float((u32)b << 16); }
DEVICE u16 float_to_bfloat(float f)
{
    u32 bits = as_bits(f);
    return f != f ? 0x7fc0 : (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
#define LOAD_float(p, i) (p)[i]
#define LOAD_double(p, i) (p)[i]
#define LOAD_float16(p, i) half_to_float((p)[i])
#define LOAD_bfloat16(p, i) bfloat_to_float((p)[i])
#define LOAD_bool(p, i) (i64)((p)[i] != 0)
#define LOAD_int8(p, i) (i64)(p)[i]
#define LOAD_int16(p, i) (i64)(p)[i]
#define LOAD_int32(p, i) (i64)(p)[i]
#define LOAD_int64(p, i) (p)[i]
#define LOAD_uint8(p, i) (i64)(p)[i]
#define LOAD_uint16(p, i) (i64)(p)[i]
#define LOAD_uint32(p, i) (i64)(p)[i]
#define LOAD_uint64(p, i) (i64)(p)[i]
#define STORE_float(p, i, v) (p)[i] = (float)(v)
#define STORE_double(p, i, v) (p)[i] = (v)
#define STORE_float16(p, i, v) (p)[i] = float_to_half((float)(v))
#define STORE_bfloat16(p, i, v) (p)[i] = float_to_bfloat((float)(v))
#define STORE_bool(p, i, v) (p)[i] = (v) != 0
#define STORE_int8(p, i, v) (p)[i] = (m_int8)(v)
#define STORE_int16(p, i, v) (p)[i] = (m_int16)(v)
#define STORE_int32(p, i, v) (p)[i] = (m_int32)(v)
#define STORE_int64(p, i, v) (p)[i] = (v)
#define STORE_uint8(p, i, v) (p)[i] = (m_uint8)(v)
#define STORE_uint16(p, i, v) (p)[i] = (m_uint16)(v)
#define STORE_uint32(p, i, v) (p)[i] = (m_uint32)(v)
#define STORE_uint64(p, i, v) (p)[i] = (m_uint64)(v)
#define SETTLE_float(v) (v)
#define SETTLE_double(v) (v)
#define SETTLE_float16(v) half_to_float(float_to_half(v))
#define SETTLE_bfloat16(v) bfloat_to_float(float_to_bfloat(v))
#define SETTLE_bool(v) (i64)((v) != 0)
#define SETTLE_int8(v) (i64)(m_int8)(v)
#define SETTLE_int16(v) (i64)(m_int16)(v)
#define SETTLE_int32(v) (i64)(m_int32)(v)
#define SETTLE_int64(v) (v)
#define SETTLE_uint8(v) (i64)(m_uint8)(v)
#define SETTLE_uint16(v) (i64)(m_uint16)(v)
#define SETTLE_uint32(v) (i64)(m_uint32)(v)
#define SETTLE_uint64(v) (v)
#define VECTOR(type, n) \
typedef struct { ALIGNED(sizeof(m_##type) * n) m_##type v[n]; } vec_##type##_##n;
#define VECTORS_2(type) VECTOR(type, 2)
#define VECTORS_4(type) VECTORS_2(type) VECTOR(type, 4)
#define VECTORS_8(type) VECTORS_4(type) VECTOR(type, 8)
#define VECTORS_16(type) VECTORS_8(type) VECTOR(type, 16)
VECTORS_16(int8) VECTORS_16(uint8) VECTORS_16(bool)
VECTORS_8(int16) VECTORS_8(uint16) VECTORS_8(float16) VECTORS_8(bfloat16)
VECTORS_4(float) VECTORS_4(int32) VECTORS_4(uint32)
VECTORS_2(double) VECTORS_2(int64) VECTORS_2(uint64)

/* Functions of float (suffix f) and double. */
#define FLOATS(type, s) \
DEVICE type sigmoid##s(type x) \
{ type e = exp##s(-fabs##s(x)); return (x >= 0 ? 1 : e) / (1 + e); } \
DEVICE type softplus##s(type x) \
{ return (x > 0 || x != x ? x : 0) + log1p##s(exp##s(-fabs##s(x))); } \
DEVICE type gelu_tanh##s(type x) \
{ return tanh##s((type)0.7978845608028654 * x * (1 + (type)0.044715 * x * x)); } \
DEVICE type gelu##s(type x) { return x / 2 * (1 + gelu_tanh##s(x)); } \
DEVICE type gelu_slope##s(type x) \
{ type t = gelu_tanh##s(x); return (1 + t + x * (1 - t * t) * \
(type)0.7978845608028654 * (1 + (type)0.134145 * x * x)) / 2; } \
DEVICE type modulo##s(type x, type y) \
{ type r = fmod##s(x, y); return r != 0 && (r < 0) != (y < 0) ? r + y : r; } \
DEVICE type smaller##s(type x, type y) { return x != x || x < y ? x : y; } \
DEVICE type larger##s(type x, type y) { return x != x || x > y ? x : y; } \
DEVICE type add##s(type x, type y) { return x + y; } \
DEVICE type times##s(type x, type y) { return x * y; } \
DEVICE i64 saturate##s(type x, i64 low, i64 high) \
{ return x != x ? 0 : x <= (type)low ? low : x >= (type)high ? high : (i64)x; } \
DEVICE i64 saturate_uint64##s(type x) \
{ return !(x > 0) ? 0 : x >= (type)1.8446744073709551616e19 ? -1 : (i64)(u64)x; }
FLOATS(float, f) FLOATS(double, )
#define SATURATE(name, low, high) \
DEVICE i64 saturate_##name(double x) { return saturate(x, low, high); } \
DEVICE i64 saturate_##name##f(float x) { return saturatef(x, low, high); }
SATURATE(int8, -128, 127) SATURATE(int16, -32768, 32767)
SATURATE(int32, -2147483647 - 1, 2147483647)
SATURATE(int64, -9223372036854775807LL - 1, 9223372036854775807LL)
SATURATE(uint8, 0, 255) SATURATE(uint16, 0, 65535) SATURATE(uint32, 0, 4294967295LL)

/* Activations of recurrent layers, by their numbers in ops/rnn.h, and their slopes; what enters is
 * kept within -clip and clip. */
#define RECURRENT(type, s) \
DEVICE type activate##s(int kind, type x, type a, type b, type clip) \
{ \
    x = x > clip ? clip : x < -clip ? -clip : x; \
    switch (kind) { \
    case 0: return sigmoid##s(x); \
    case 1: return tanh##s(x); \
    case 2: return x < 0 ? 0 : x; \
    case 3: return a * x + b; \
    case 4: return x < 0 ? a * x : x; \
    case 5: return x < a ? 0 : x; \
    case 6: return a * tanh##s(b * x); \
    case 7: x = a * x + b; return x < 0 ? 0 : x > 1 ? 1 : x; \
    case 8: return x < 0 ? a * expm1##s(x) : x; \
    case 9: return x / (1 + fabs##s(x)); \
    default: return softplus##s(x); \
    } \
} \
DEVICE type activate_slope##s(int kind, type x, type a, type b, type clip) \
{ \
    type y; \
    if (fabs##s(x) > clip) \
        return 0; \
    switch (kind) { \
    case 0: y = sigmoid##s(x); return y * (1 - y); \
    case 1: y = tanh##s(x); return 1 - y * y; \
    case 2: return x > 0; \
    case 3: return a; \
    case 4: return x < 0 ? a : 1; \
    case 5: return x >= a; \
    case 6: y = tanh##s(b * x); return a * b * (1 - y * y); \
    case 7: x = a * x + b; return x > 0 && x < 1 ? a : 0; \
    case 8: return x < 0 ? a * exp##s(x) : 1; \
    case 9: y = 1 + fabs##s(x); return 1 / (y * y); \
    default: return sigmoid##s(x); \
    } \
}
RECURRENT(float, f) RECURRENT(double, )

/* Integers: division by zero gives zero, the smallest by -1 wraps. */
DEVICE i64 divide_i(i64 a, i64 b)
{ return b == 0 ? 0 : b == -1 ? (i64)(0 - (u64)a) : a / b; }
DEVICE i64 divide_u(i64 a, i64 b) { return b == 0 ? 0 : (i64)((u64)a / (u64)b); }
DEVICE i64 rest_i(i64 a, i64 b) { return b == 0 || b == -1 ? 0 : a % b; }
DEVICE i64 rest_u(i64 a, i64 b)
{ return b == 0 || b == -1 ? 0 : (i64)((u64)a % (u64)b); }
DEVICE i64 modulo_i(i64 a, i64 b)
{ i64 r = rest_i(a, b); return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
#define modulo_u rest_u
DEVICE i64 power_i(i64 a, i64 b)
{
    u64 result = 1, base = (u64)a;
    if (b < 0)
        return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0;
    for (; b; b >>= 1, base *= base)
        if (b & 1)
            result *= base;
    return (i64)result;
}
DEVICE i64 add_i(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
DEVICE i64 times_i(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }
DEVICE i64 smaller_i(i64 a, i64 b) { return a < b ? a : b; }
DEVICE i64 larger_i(i64 a, i64 b) { return a < b ? b : a; }
DEVICE i64 smaller_u(i64 a, i64 b) { return (u64)a < (u64)b ? a : b; }
DEVICE i64 larger_u(i64 a, i64 b) { return (u64)a < (u64)b ? b : a; }

/* One value of all threads of a block, the same bits for each: within a warp by exchange, then over
 * the warps in order. */
#define BLOCK(name, type, join, shuffle) \
DEVICE type name(type v) \
{ \
    __shared__ type part[32]; \
    UNROLL \
    for (int d = 16; d; d /= 2) { \
        type u = shuffle(v, d); \
        v = join(v, u); \
    } \
    if (threadIdx.x % 32 == 0) \
        part[threadIdx.x / 32] = v; \
    __syncthreads(); \
    v = part[0]; \
    for (u32 k = 1; k < blockDim.x / 32; k++) \
        v = join(v, part[k]); \
    __syncthreads(); \
    return v; \
}
BLOCK(block_addf, float, addf, shuffle_f) BLOCK(block_add, double, add, shuffle_d)
BLOCK(block_largerf, float, fmaxf, shuffle_f) BLOCK(block_larger, double, fmax, shuffle_d)

/* Which element of [low, high) a place shows; -1: none, it is padding. */
#define inside_or(otherwise) at >= low && at < high ? at : (otherwise)
DEVICE i64 source_none(i64 at, i64 low, i64 high) { return inside_or(-1); }
DEVICE i64 source_edge(i64 at, i64 low, i64 high) { return inside_or(at < low ? low : high - 1); }
DEVICE i64 source_wrap(i64 at, i64 low, i64 high)
{ return inside_or(low + modulo_i(at - low, high - low)); }
DEVICE i64 source_reflect(i64 at, i64 low, i64 high)
{
    const i64 n = high - low, turn = n == 1 ? 0 : modulo_i(at - low, 2 * (n - 1));
    return inside_or(low + (turn < n ? turn : 2 * (n - 1) - turn));
}

/* grid_sample along an axis of n elements: where a coordinate g lies, -1 to 1 being the ends; where
 * padding moves that (0: nowhere, 1: to the border, 2: mirrored); then the elements that a place
 * takes (-1: none), their weights and the weights' derivatives by g. */
#define GRID(type, s) \
DEVICE type grid_place##s(type g, int n, int align, type *slope) \
{ \
    *slope = (type)(align ? n - 1 : n) / 2; \
    return !(g - g == 0) ? -100 : align ? (g + 1) / 2 * (n - 1) : ((g + 1) * n - 1) / 2; \
} \
DEVICE type grid_mirror##s(type x, int n, int align, type *slope) \
{ \
    const type low = align ? 0 : (type)-0.5, span = (type)(align ? n - 1 : n); \
    const type away = fabs##s(x - low), rest = span > 0 ? fmod##s(away, span) : 0; \
    const int turned = span > 0 && fmod##s(nearbyint##s((away - rest) / span), 2) != 0; \
    *slope *= span > 0 ? ((x < low) != turned ? -1 : 1) : 0; \
    return span > 0 ? low + (turned ? span - rest : rest) : 0; \
} \
DEVICE type grid_pad##s(type x, int n, int align, int padding, type *slope) \
{ \
    const type y = padding == 2 ? grid_mirror##s(x, n, align, slope) : x; \
    if (padding == 0 || (y > 0 && y < n - 1)) \
        return y; \
    *slope = 0; \
    return y <= 0 ? 0 : (type)(n - 1); \
} \
DEVICE int grid_index##s(type x, int n) { return x >= 0 && x <= n - 1 ? (int)x : -1; } \
DEVICE void grid_nearest##s(type g, int n, int align, int padding, int *at, type *weight, \
                            type *slope) \
{ \
    const type x = grid_pad##s(grid_place##s(g, n, align, slope), n, align, padding, slope); \
    at[0] = grid_index##s(nearbyint##s(x), n); \
    weight[0] = 1; \
    slope[0] = 0; \
} \
DEVICE void grid_linear##s(type g, int n, int align, int padding, int *at, type *weight, \
                           type *slope) \
{ \
    type d; \
    const type place = grid_place##s(g, n, align, &d); \
    const type x = grid_pad##s(place, n, align, padding, &d), from = floor##s(x); \
    at[0] = grid_index##s(from, n); \
    at[1] = grid_index##s(from + 1, n); \
    weight[0] = 1 - (x - from); \
    weight[1] = x - from; \
    slope[0] = -d; \
    slope[1] = d; \
} \
DEVICE void grid_cubic##s(type g, int n, int align, int padding, int *at, type *weight, \
                          type *slope) \
{ \
    type d, none = 0; \
    const type x = grid_place##s(g, n, align, &d), from = floor##s(x), a = (type)-0.75; \
    UNROLL \
    for (int i = 0; i < 4; i++) { \
        const type t = x - from - (i - 1), u = fabs##s(t); \
        const int inner = i == 1 || i == 2; \
        weight[i] = inner ? ((a + 2) * u - (a + 3)) * u * u + 1 \
                          : ((a * u - 5 * a) * u + 8 * a) * u - 4 * a; \
        slope[i] = (inner ? (3 * (a + 2) * u - 2 * (a + 3)) * u \
                          : (3 * a * u - 10 * a) * u + 8 * a) * (t < 0 ? -d : d); \
        at[i] = grid_index##s(grid_pad##s(from + (i - 1), n, align, padding, &none), n); \
    } \
}
GRID(float, f) GRID(double, )

/* Philox4x32: ten rounds of multiply and exchange. */
struct philox { u32 word[4]; };
DEVICE struct philox philox(struct philox c, u32 key0, u32 key1)
{
    UNROLL
    for (int round = 0; round < 10; round++) {
        u64 a = (u64)0xD2511F53u * c.word[0], b = (u64)0xCD9E8D57u * c.word[2];
        struct philox n = {{(u32)(b >> 32) ^ c.word[1] ^ key0, (u32)b,
                            (u32)(a >> 32) ^ c.word[3] ^ key1, (u32)a}};
        c = n;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return c;
}
