/* For a C compiler. A thread that waits calls wait_for_block, which comes back when all threads of
 * the block have called it. What blocks share stands in a section of its own, so that the caller
 * can fill it with rubbish before each block. */
#include <math.h>
#include <string.h>
#define KERNEL(name) void name
#define DEVICE static inline __attribute__((unused))
#define ALIGNED(n) _Alignas(n)
#define UNROLL
/* A GPU refuses what is not aligned; the caller looks at `misaligned`. */
int misaligned;
DEVICE void *aligned(const void *p, size_t bytes)
{ misaligned |= (size_t)p % bytes != 0; return (void *)p; }
#define VECTOR_AT(type, p) (*(type *)aligned(p, sizeof(type)))
#define __shared__ static __attribute__((section("block_shared")))
struct dim { unsigned x; } threadIdx, blockIdx, blockDim;
void (*wait_for_block)(void);
__shared__ __attribute__((used)) double exchange[1024];
extern char __start_block_shared[], __stop_block_shared[];
void spoil_block(void)
{
    memset(__start_block_shared, 0xfe, __stop_block_shared - __start_block_shared);
}
#define __syncthreads() wait_for_block()
DEVICE float as_float(unsigned bits) { float f; memcpy(&f, &bits, 4); return f; }
DEVICE unsigned as_bits(float f) { unsigned bits; memcpy(&bits, &f, 4); return bits; }
#define SHUFFLE(name, type) \
DEVICE type name(type v, int d) \
{ \
    memcpy(&exchange[threadIdx.x], &v, sizeof v); \
    wait_for_block(); \
    memcpy(&v, &exchange[threadIdx.x ^ (unsigned)d], sizeof v); \
    wait_for_block(); \
    return v; \
}
SHUFFLE(shuffle_f, float) SHUFFLE(shuffle_d, double) SHUFFLE(shuffle_i, long long)
typedef unsigned short u16;
DEVICE float half_to_float(u16 h) { _Float16 f; memcpy(&f, &h, 2); return f; }
DEVICE u16 float_to_half(float v)
{ _Float16 f = v; u16 h; memcpy(&h, &f, 2); return h; }
