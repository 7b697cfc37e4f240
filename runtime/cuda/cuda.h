/* GPUs, for those who know nothing of CUDA. Without the toolkit none.c stands in for this folder.
 */
#ifndef MGPU_CUDA_CUDA_H
#define MGPU_CUDA_CUDA_H

#include <stdbool.h>
#include <stdint.h>

/* How many GPUs a program may use here (CUDA_VISIBLE_DEVICES counts). MGPU_EDEVICE when there is
 * none, saying what is missing: CUDA in this build, the driver, its version, a GPU. */
int mgpu_cuda_count(int *count);

/* Whether GPU `index` can be used: it exists, is new enough, and the libraries are there. Else
 * MGPU_EDEVICE and what is missing. */
int mgpu_cuda_check(int index);

/* What GPU `index` is; MGPU_EDEVICE when there is none. */
struct mgpu_gpu_facts {
    char name[128]; /* "NVIDIA H100 80GB HBM3" */
    int sm;         /* compute capability: 90 is 9.0 */
    int64_t memory; /* bytes */
    double bytes;   /* per second, of its memory; 0: the driver does not say */
    double cycles;  /* per second, of all its multiprocessors together; 0: the same */
};
int mgpu_cuda_facts(struct mgpu_gpu_facts *out, int index);

/* Bytes of GPU `index` that are free; the GPU is taken for a moment. */
int mgpu_cuda_free_memory(int64_t *bytes, int index);

/* The CUDA that the driver here runs: 13010 is 13.1. */
int mgpu_cuda_version(int *version);

/* Where a run goes that names no devices: "cuda:0" where that can be taken (it is, for a moment);
 * else "cpu", and if there is a GPU all the same a warning says why (also in a build without
 * CUDA). */
const char *mgpu_cuda_default(void);

/* The engines of the ranks of one GPU, replicas * places of them (engine.h). They are freed one by
 * one; their programs run on all of them at the same time. `tf32`: products of floats may be
 * rounded to TF32. */
struct mgpu_engine;
int mgpu_cuda_engines(struct mgpu_engine **out, int gpu, bool tf32, int replicas, int places);

#endif
