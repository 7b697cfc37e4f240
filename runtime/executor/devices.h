/* The devices of a run, from what a person types: `cpu`, `cpu:0,cpu:1`, `cpu:0-3`, `cuda:0`.
 *
 * `cpu` is one rank with all allowed cores. `cpu:i` is virtual CPU device i: the allowed cores are
 * divided evenly among the distinct ones, shared when there are too few. A device named twice holds
 * two ranks, which share its cores. A GPU must be there and usable.
 */
#ifndef MGPU_EXECUTOR_DEVICES_H
#define MGPU_EXECUTOR_DEVICES_H

#include <stdbool.h>

enum { MGPU_MAX_CORES = 1024 };

struct mgpu_rank_device {
    char name[32]; /* "cpu:0" */
    int gpu;       /* its number; -1: the CPU */
    int cores;     /* cores[0..cores) are its own or shared */
    int core[MGPU_MAX_CORES];
    int threads;
    bool tf32; /* products of floats may be rounded to TF32 (a GPU) */
};

/* One entry a rank; free with free(). `threads` > 0 sets the threads of every rank;
 * OMP_THREAD_LIMIT bounds them. Errors name the part of the list that is wrong: MGPU_EUSAGE, and
 * MGPU_EDEVICE for a GPU that cannot be used. mgpu_devices_option: of a list that a person typed
 * after --devices; says what else to type. */
int mgpu_devices_parse(struct mgpu_rank_device **out, int *count, const char *list, int threads);
int mgpu_devices_option(struct mgpu_rank_device **out, int *count, const char *list, int threads);

/* Whether a rank on `device` can train beside one on `first`: both on the CPU, or both on one GPU.
 * MGPU_EUNSUPPORTED names both. What this sorts out mgpu-train refuses, and the planner leaves out.
 */
int mgpu_device_check_beside(const char *device, bool cpu, const char *first, bool first_cpu);

/* Whether a device can train in `precision` (a word of --precision): a CPU, or a GPU of compute
 * capability `sm` (90: 9.0; 0: not known). What it cannot is refused; a CPU is let take float32 for
 * TF32. */
int mgpu_device_check_precision(const char *device, bool cpu, int sm, const char *precision);

/* `ranks` logical ranks of one thread each, multiplexed on the devices there are (--deterministic).
 */
int mgpu_devices_multiplex(struct mgpu_rank_device **devices, int *count, int ranks);

#endif
