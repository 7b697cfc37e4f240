/* A GPU that there is not: a driver and a compiler of our own in place of NVIDIA's.
 *
 * Every call that submits work becomes a node with the memory that it touches and the nodes that
 * come before it: in its stream, by events, and what the host has waited for. Two nodes that touch
 * the same memory, one writing, must have an order. Nothing runs before the host waits for it; then
 * just that runs, in a hostile order that the events allow, generated kernels on emulated blocks
 * and threads. So a missing event gives a complaint and a wrong number.
 *
 * Convolutions and recurrent layers, which cuDNN runs on a GPU, run by `ref` here; with
 * double_libraries all that NVIDIA's libraries would run, in the layouts that they want.
 */
#ifndef MGPU_TESTS_CUDA_DOUBLE_H
#define MGPU_TESTS_CUDA_DOUBLE_H

#include <stdbool.h>
#include <stdint.h>

/* Whether kernels cannot be emulated here; then says so, and the test ends with 77 (skipped). */
bool double_skipped(void);

/* From now on there are `gpus` such GPUs with so many bytes each and no others. */
void double_begin(int gpus, int64_t bytes);
void double_end(void);

/* Opens the driver, or what cuDNN wants of one for plans that it compiles (stand_in/driver.c). */
bool double_cudnn_driver(void);

/* Until the next double_begin its GPU is this one of tests/cuda/gpus for NVIDIA's libraries: they
 * choose what they would run there, and how images lie. False: one of them is missing. */
bool double_libraries(const char *gpu);

/* MGPU_CHECK=double in the environment: CPU ranks of the tests' small runs (tiny.h) are those of
 * such a GPU, of "double h100" of this one as NVIDIA's libraries see it. double_wanted begins it,
 * and ends the program with 77 (skipped) where that cannot be; double_devices gives a list with as
 * many ranks; NULL stays NULL. */
bool double_wanted(void);
const char *double_devices(char list[1024], const char *devices);

/* What was wrong so far: races, calls that a capture forbids, memory that is not there, and things
 * that were not freed by double_end. The first one's text. */
int double_complaints(void);
const char *double_complaint(void);
void double_forget(void); /* them */

/* Calls so far. */
struct double_calls {
    int allocations; /* memory, streams, events, modules */
    int submitted;   /* kernels, copies, fills, outside graphs */
    int launched;    /* graphs */
    int waits;       /* for events, by streams (outside graphs or when captured) and by the host */
    int stops;       /* of the host, until a stream or an event is there */
};
struct double_calls double_count(void);

/* From now on the wait for an event that is number `wait` (counted in double_calls) is forgotten;
 * -1: none. */
void double_drop_wait(int wait);

/* The version of CUDA that the driver runs; that of the headers unless this says so. */
void double_driver_version(int version);

/* What the GPUs call themselves; NULL: "double 0" and so on. */
void double_name(const char *name);

/* From now on its GPUs belong to another process alone. */
void double_busy(bool busy);

/* From now on the host's waits for an event give this error of the driver; 0: none. */
void double_waits_fail(int result);

/* From now on captures fail, with this error of the driver, at the work that is number `work` in
 * them (the first is 0); -1: none do. */
void double_no_capture(int work, int result);

/* From now on a call of what stands in for NVIDIA's libraries takes so many microseconds. Another
 * thread that comes in meanwhile is a complaint: a GPU's ranks share its handles. */
void double_slow_library(int us);

/* From now on no more than `count` streams are made; -1: any number. */
void double_most_streams(int count);

/* From now on NVRTC compiles the kernels, for up to four compute capabilities (90: 9.0), and
 * complains where it cannot, or where a kernel spills registers. The first kernel of each form
 * (emit/forms.h) is for all of them, what differs from others of its form by numbers for one of
 * them in turn. Nothing runs any more: memory keeps what is in it. What it made so far for
 * sm[kind]:
 */
struct double_kernels {
    int count;
    int registers, shared, spilled; /* the most that one took; bytes */
};
void double_compile(const int *sm, int count);
struct double_kernels double_compiled(int kind);

#endif
