/* Devices and the links between them: of this machine, of a short name, of a file.
 *
 *     cpu   cpu:0,cpu:1   cuda:0       devices here (runtime/executor/devices.h); GPUs have the
 *                                      numbers of the known one that they are, or are most like
 *     8xh100-nvlink   4xa100-pcie      GPUs of one machine
 *     2x8xh100-ib   4x8xa100-ib200     machines x GPUs, one network adapter a GPU
 *     4x4xv100-eth25                   machines x GPUs, one network adapter a machine (Gb/s)
 *     2xcpu                            one-core CPU devices
 *     8xH100-NVLink                    names may be written so
 *     rack.json                        a topology file (topology_json.c says what it holds)
 */
#ifndef MGPU_PARTITIONER_TOPOLOGY_H
#define MGPU_PARTITIONER_TOPOLOGY_H

#include "runtime/base/memory.h"

#include <stdbool.h>
#include <stdint.h>

enum mgpu_rate { MGPU_RATE_F64, MGPU_RATE_F32, MGPU_RATE_TF32, MGPU_RATE_HALF, MGPU_RATES };

/* What a kind of device can do. */
struct mgpu_device_kind {
    const char *name;       /* "h100", "cpu" */
    const char *stands_for; /* what a GPU here calls itself that no table has and that is costed as
                             * this one, which is most like it, or that is `scaled`; NULL */
    bool scaled;            /* it is called so, but its driver says that it is another: the numbers
                             * are scaled by that */
    double flops[MGPU_RATES];                     /* peak per second, by enum mgpu_rate */
    double bytes;                                 /* memory bandwidth, bytes per second */
    double launch_ms;                             /* least time of a kernel */
    double efficiency_compute, efficiency_memory; /* of large kernels, shares of the peaks */
    double interference; /* tasks take this many times longer while a collective runs; 0 is 1 */
    int ranks;           /* of one GPU, whose kernels take turns; 0 is 1 */
    int sm;              /* compute capability of a GPU: 90 is 9.0; 0: not known */
    int threads;         /* of a CPU device; 0: a GPU */
    int busy; /* CPU devices that work at the same time: which measured times hold (profile.h) */
    bool in_turns; /* each of those works for a part of the step only: branches */
};

struct mgpu_topology_device {
    char name[32]; /* "cuda:0", "cpu:1"; with several machines "n1/cuda:0" */
    int kind;
    int node;       /* machine */
    int64_t memory; /* bytes that may be used */
};

struct mgpu_link { /* one direction, between two devices */
    double bytes;  /* per second */
    double latency_ms;
    int channel; /* transfers of one channel take turns */
};

/* What collectives see: NCCL's own model (its tuning.cc) with bandwidths that were measured. By
 * protocol: LL, LL128, Simple. */
enum { MGPU_PROTOCOLS = 3 };
struct mgpu_fabric {
    double ring;                      /* bytes per second around a ring inside a machine */
    double in_switch;                 /* of a sum made in the switch (NVLS); 0: there is none */
    double adapter;                   /* bytes per second of one network adapter */
    int adapters;                     /* a machine */
    double share[MGPU_PROTOCOLS];     /* of the bandwidth that the protocol reaches; 0: not used */
    double base_ms[MGPU_PROTOCOLS];   /* once */
    double inside_ms[MGPU_PROTOCOLS]; /* a hop inside a machine */
    double ring_ms[MGPU_PROTOCOLS];   /* a hop between machines, of a ring */
    double tree_ms[MGPU_PROTOCOLS];   /* the same of a tree */
};

enum { MGPU_MAX_PLANNED = 1024 }; /* devices of a topology */

struct mgpu_topology {
    struct mgpu_arena *arena;
    char *text; /* as asked for */
    int kinds;
    struct mgpu_device_kind *kind;
    int devices;
    struct mgpu_topology_device *device;
    struct mgpu_link *link; /* devices x devices; [i*devices+i] is unused */
    struct mgpu_fabric fabric;
    bool present; /* these devices are here */
};

/* Reads a spec. Errors are MGPU_EUSAGE (a word), MGPU_EINVALID or MGPU_EIO (a file), naming the
 * part that is wrong. */
int mgpu_topology_parse(struct mgpu_topology **out, const char *spec);
void mgpu_topology_free(struct mgpu_topology *topology);

/* Whether no kind of its devices is a GPU; whether any is none. */
bool mgpu_topology_all_cpus(const struct mgpu_topology *topology);
bool mgpu_topology_has_cpus(const struct mgpu_topology *topology);

/* Whether a GPU has several of its devices, which share it. */
bool mgpu_topology_shares_gpus(const struct mgpu_topology *topology);

/* The fastest devices first, of equal ones those with the better links; else the order stays. A
 * search takes the first n of them, so that what it finds does not depend on the order asked for.
 */
void mgpu_topology_sort(struct mgpu_topology *topology);

/* The device called `name`, or -1. */
int mgpu_topology_find(const struct mgpu_topology *topology, const char *name);

/* The same topology with only its devices [0, devices): one replica, a baseline. Kinds keep their
 * numbers; `busy`: how many CPU devices work at the same time (all replicas together). */
struct mgpu_topology *mgpu_topology_first(const struct mgpu_topology *topology, int devices,
                                          int busy);

/* Milliseconds until `bytes` are on the other device; 0 when they are the same device. */
double mgpu_transfer_ms(const struct mgpu_topology *topology, int from, int to, double bytes);

/* A set of devices that sum together, reduced to what its costs depend on. */
struct mgpu_ring {
    const struct mgpu_fabric *fabric;
    int devices, machines;
    double bandwidth; /* of a ring through them */
    bool in_switch;
};

/* device NULL: the topology's first `count`. */
struct mgpu_ring mgpu_ring_of(const struct mgpu_topology *topology, const int *device, int count);

/* Milliseconds of summing `bytes` over the set: the best of NCCL's algorithms and protocols.
 *     ring  base + hops + 2(n-1)/n bytes/B      tree  base + hops + 2 bytes/(0.92 B)
 * 0 for one device. */
double mgpu_all_reduce_ms(const struct mgpu_ring *ring, double bytes);

/* Of a reduce-scatter or an all-gather whose whole is `bytes`: (n-1)/n bytes/B and half the hops.
 */
double mgpu_all_gather_ms(const struct mgpu_ring *ring, double bytes);

#endif
