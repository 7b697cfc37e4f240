/* For NVRTC. */
#define KERNEL(name) extern "C" __global__ void name
#define DEVICE static __device__ __forceinline__
#define ALIGNED(n) alignas(n)
#define UNROLL _Pragma("unroll")
#define VECTOR_AT(type, p) (*(type *)(p))
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define as_float(bits) __uint_as_float(bits)
#define as_bits(f) __float_as_uint(f)
#define shuffle_f(v, d) __shfl_xor_sync(0xffffffffu, v, d)
#define shuffle_d(v, d) __shfl_xor_sync(0xffffffffu, v, d)
#define shuffle_i(v, d) __shfl_xor_sync(0xffffffffu, v, d)
typedef unsigned short u16;
DEVICE float half_to_float(u16 h)
{ float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h)); return f; }
DEVICE u16 float_to_half(float f)
{ u16 h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h; }
