/* Element types: ONNX's, by ONNX's numbers (onnx.proto, TensorProto.DataType). */
#ifndef MGPU_BASE_DTYPE_H
#define MGPU_BASE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum mgpu_dtype {
    MGPU_UNDEFINED = 0,
    MGPU_FLOAT = 1,
    MGPU_UINT8 = 2,
    MGPU_INT8 = 3,
    MGPU_UINT16 = 4,
    MGPU_INT16 = 5,
    MGPU_INT32 = 6,
    MGPU_INT64 = 7,
    MGPU_BOOL = 9,
    MGPU_FLOAT16 = 10,
    MGPU_DOUBLE = 11,
    MGPU_UINT32 = 12,
    MGPU_UINT64 = 13,
    MGPU_BFLOAT16 = 16,
};

/* Bytes of one element; 0 for a type that mgpu does not hold. */
size_t mgpu_dtype_size(enum mgpu_dtype type);

/* "float", "int64", ...; "type 999" is never returned: unknown numbers give "unknown". */
const char *mgpu_dtype_name(enum mgpu_dtype type);

bool mgpu_is_float(enum mgpu_dtype type);   /* float16, bfloat16, float, double */
bool mgpu_is_signed(enum mgpu_dtype type);  /* int8 .. int64 */
bool mgpu_is_integer(enum mgpu_dtype type); /* signed or unsigned; not bool */

/* One element as double or int64 (saturating from float, exact otherwise). */
double mgpu_get_double(const void *data, enum mgpu_dtype type, int64_t index);
int64_t mgpu_get_int(const void *data, enum mgpu_dtype type, int64_t index);
void mgpu_set_double(void *data, enum mgpu_dtype type, int64_t index, double value);
void mgpu_set_int(void *data, enum mgpu_dtype type, int64_t index, int64_t value);

/* Converts `count` elements. Float to integer truncates and saturates (NaN gives 0), integer to
 * integer wraps, to bool tests for non-zero, to a narrower float rounds to nearest even. The blocks
 * must not overlap unless they are the same and the types have one size. */
void mgpu_convert(void *to, enum mgpu_dtype to_type, const void *from, enum mgpu_dtype from_type,
                  int64_t count);

float mgpu_half_to_float(uint16_t bits);

#endif
