#include "runtime/base/dtype.h"

#include <math.h>
#include <string.h>

size_t mgpu_dtype_size(enum mgpu_dtype type)
{
    switch (type) {
    case MGPU_UINT8:
    case MGPU_INT8:
    case MGPU_BOOL:
        return 1;
    case MGPU_UINT16:
    case MGPU_INT16:
    case MGPU_FLOAT16:
    case MGPU_BFLOAT16:
        return 2;
    case MGPU_FLOAT:
    case MGPU_INT32:
    case MGPU_UINT32:
        return 4;
    case MGPU_INT64:
    case MGPU_UINT64:
    case MGPU_DOUBLE:
        return 8;
    case MGPU_UNDEFINED:
        break;
    }
    return 0;
}

const char *mgpu_dtype_name(enum mgpu_dtype type)
{
    static const char *const names[] = {
        [MGPU_FLOAT] = "float",       [MGPU_UINT8] = "uint8",   [MGPU_INT8] = "int8",
        [MGPU_UINT16] = "uint16",     [MGPU_INT16] = "int16",   [MGPU_INT32] = "int32",
        [MGPU_INT64] = "int64",       [MGPU_BOOL] = "bool",     [MGPU_FLOAT16] = "float16",
        [MGPU_DOUBLE] = "double",     [MGPU_UINT32] = "uint32", [MGPU_UINT64] = "uint64",
        [MGPU_BFLOAT16] = "bfloat16",
    };
    size_t i = (size_t)type;
    return i < sizeof names / sizeof *names && names[i] ? names[i] : "unknown";
}

bool mgpu_is_float(enum mgpu_dtype type)
{
    return type == MGPU_FLOAT || type == MGPU_DOUBLE || type == MGPU_FLOAT16 ||
           type == MGPU_BFLOAT16;
}

bool mgpu_is_signed(enum mgpu_dtype type)
{
    return type == MGPU_INT8 || type == MGPU_INT16 || type == MGPU_INT32 || type == MGPU_INT64;
}

bool mgpu_is_integer(enum mgpu_dtype type)
{
    return mgpu_is_signed(type) || type == MGPU_UINT8 || type == MGPU_UINT16 ||
           type == MGPU_UINT32 || type == MGPU_UINT64;
}

static float bfloat_to_float(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float out;
    memcpy(&out, &wide, sizeof out);
    return out;
}

static uint16_t float_to_bfloat(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value)
        return (uint16_t)((bits >> 16) | 0x40);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/* IEEE 754 binary16: 1 sign, 5 exponent (bias 15), 10 fraction bits. */
float mgpu_half_to_float(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float size;
    if (exponent == 31)
        size = fraction ? NAN : INFINITY;
    else if (exponent)
        size = ldexpf((float)(1024 + fraction), exponent - 25);
    else
        size = ldexpf((float)fraction, -24);
    return bits & 0x8000 ? -size : size;
}

static uint16_t float_to_half(float value)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    float size = fabsf(value);
    if (value != value)
        return 0x7e00;
    if (size >= 65520.0f)
        return sign | 0x7c00;
    int exponent;
    frexpf(size, &exponent);
    if (exponent < -13)
        exponent = -13;                                   /* below: subnormal, steps of 2^-24 */
    int steps = (int)lrintf(ldexpf(size, 11 - exponent)); /* 0..2048, nearest even */
    if (steps < 1024)
        return sign | (uint16_t)steps;
    return sign | (uint16_t)(steps - 1024 + ((exponent + 14) << 10));
}

double mgpu_get_double(const void *data, enum mgpu_dtype type, int64_t i)
{
    switch (type) {
    case MGPU_FLOAT:
        return ((const float *)data)[i];
    case MGPU_DOUBLE:
        return ((const double *)data)[i];
    case MGPU_FLOAT16:
        return mgpu_half_to_float(((const uint16_t *)data)[i]);
    case MGPU_BFLOAT16:
        return bfloat_to_float(((const uint16_t *)data)[i]);
    case MGPU_UINT64:
        return (double)((const uint64_t *)data)[i];
    default:
        return (double)mgpu_get_int(data, type, i);
    }
}

static int64_t saturate(double v)
{
    if (v != v)
        return 0;
    if (v >= 0x1p63)
        return INT64_MAX;
    if (v <= -0x1p63)
        return INT64_MIN;
    return (int64_t)v;
}

int64_t mgpu_get_int(const void *data, enum mgpu_dtype type, int64_t i)
{
    switch (type) {
    case MGPU_INT64:
        return ((const int64_t *)data)[i];
    case MGPU_INT32:
        return ((const int32_t *)data)[i];
    case MGPU_INT16:
        return ((const int16_t *)data)[i];
    case MGPU_INT8:
        return ((const int8_t *)data)[i];
    case MGPU_UINT64:
        return (int64_t)((const uint64_t *)data)[i];
    case MGPU_UINT32:
        return ((const uint32_t *)data)[i];
    case MGPU_UINT16:
        return ((const uint16_t *)data)[i];
    case MGPU_UINT8:
        return ((const uint8_t *)data)[i];
    case MGPU_BOOL:
        return ((const uint8_t *)data)[i] != 0;
    default:
        return saturate(mgpu_get_double(data, type, i));
    }
}

void mgpu_set_int(void *data, enum mgpu_dtype type, int64_t i, int64_t v)
{
    switch (type) {
    case MGPU_INT64:
    case MGPU_UINT64:
        ((uint64_t *)data)[i] = (uint64_t)v;
        break;
    case MGPU_INT32:
    case MGPU_UINT32:
        ((uint32_t *)data)[i] = (uint32_t)v;
        break;
    case MGPU_INT16:
    case MGPU_UINT16:
        ((uint16_t *)data)[i] = (uint16_t)v;
        break;
    case MGPU_INT8:
    case MGPU_UINT8:
        ((uint8_t *)data)[i] = (uint8_t)v;
        break;
    case MGPU_BOOL:
        ((uint8_t *)data)[i] = v != 0;
        break;
    default:
        mgpu_set_double(data, type, i, (double)v);
    }
}

static int64_t clamp(int64_t v, int64_t low, int64_t high)
{
    return v < low ? low : v > high ? high : v;
}

/* The range of an integer type, as far as int64 holds it. */
static void limits(enum mgpu_dtype type, int64_t *low, int64_t *high)
{
    size_t bits = 8 * mgpu_dtype_size(type);
    if (mgpu_is_signed(type)) {
        *high = (int64_t)(UINT64_MAX >> (65 - bits));
        *low = -*high - 1;
    } else {
        *high = bits == 64 ? INT64_MAX : (int64_t)((UINT64_C(1) << bits) - 1);
        *low = 0;
    }
}

void mgpu_set_double(void *data, enum mgpu_dtype type, int64_t i, double v)
{
    switch (type) {
    case MGPU_FLOAT:
        ((float *)data)[i] = (float)v;
        break;
    case MGPU_DOUBLE:
        ((double *)data)[i] = v;
        break;
    case MGPU_FLOAT16:
        ((uint16_t *)data)[i] = float_to_half((float)v);
        break;
    case MGPU_BFLOAT16:
        ((uint16_t *)data)[i] = float_to_bfloat((float)v);
        break;
    case MGPU_BOOL:
        ((uint8_t *)data)[i] = v != 0;
        break;
    default: {
        int64_t low, high;
        limits(type, &low, &high);
        if (type == MGPU_UINT64 && v >= 0x1p63)
            mgpu_set_int(data, type, i, v >= 0x1p64 ? -1 : (int64_t)(uint64_t)v);
        else
            mgpu_set_int(data, type, i, clamp(saturate(v), low, high));
    }
    }
}

void mgpu_convert(void *to, enum mgpu_dtype to_type, const void *from, enum mgpu_dtype from_type,
                  int64_t count)
{
    if (to_type == from_type) {
        memmove(to, from, (size_t)count * mgpu_dtype_size(to_type));
    } else if (to_type == MGPU_FLOAT && from_type == MGPU_UINT8) { /* images: worth a fast path */
        for (int64_t i = 0; i < count; i++)
            ((float *)to)[i] = ((const uint8_t *)from)[i];
    } else if (mgpu_is_float(from_type) || mgpu_is_float(to_type)) {
        for (int64_t i = 0; i < count; i++)
            mgpu_set_double(to, to_type, i, mgpu_get_double(from, from_type, i));
    } else {
        for (int64_t i = 0; i < count; i++)
            mgpu_set_int(to, to_type, i, mgpu_get_int(from, from_type, i));
    }
}
