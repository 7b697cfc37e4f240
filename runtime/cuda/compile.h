/* Generated kernels to machine code, by NVRTC: needs no GPU. */
#ifndef MGPU_CUDA_COMPILE_H
#define MGPU_CUDA_COMPILE_H

#include <stddef.h>

/* Code for one kind of GPU: PTX where the compiler does not know it yet. */
struct mgpu_cubin {
    void *data;
    size_t size;
    char *log; /* what the compiler says of each function */
};

/* What a function of a cubin takes. */
struct mgpu_kernel_use {
    int registers;
    int shared, spilled; /* bytes; spilled: by a thread, to memory */
};

/* Compiles kernels' text (runtime/emit) with its prelude for compute capability `sm` (90: 9.0).
 * MGPU_EDEVICE: there is no NVRTC; MGPU_EINTERNAL: the text is wrong, with what NVRTC says. */
int mgpu_cuda_compile(struct mgpu_cubin *out, const char *text, int sm);

/* By this compiler. */
struct mgpu_cuda_nvrtc;
int mgpu_cuda_compile_by(const struct mgpu_cuda_nvrtc *nvrtc, struct mgpu_cubin *out,
                         const char *text, int sm);

/* The same through the folder of results (cache.h). One that cannot be written changes nothing but
 * the time. From the folder comes no log. */
int mgpu_cuda_compile_cached(struct mgpu_cubin *out, const char *text, int sm);

/* The same of several texts, on as many threads as OpenMP gives the calling one. Where some are
 * wrong, the error is that of the first in the list, and `out` holds nothing. */
int mgpu_cuda_compile_all(struct mgpu_cubin *out, const char *const *text, int count, int sm);

void mgpu_cubin_free(struct mgpu_cubin *cubin);

/* What `function` takes, from the log. -1: the log does not say. */
int mgpu_cubin_use(const struct mgpu_cubin *cubin, const char *function,
                   struct mgpu_kernel_use *use);

#endif
