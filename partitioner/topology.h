/* Devices and the links between them: of this machine, of a short name ("8xh100-nvlink"), of a
 * file. */
#ifndef MGPU_PARTITIONER_TOPOLOGY_H
#define MGPU_PARTITIONER_TOPOLOGY_H

#include <stdbool.h>
#include <stdint.h>

/* What a kind of device can do. */
struct mgpu_device_kind {
    const char *name;                             /* "h100", "cpu" */
    double flops[4];                              /* peak per second, by enum mgpu_rate */
    double bytes;                                 /* memory bandwidth, bytes per second */
    double launch_ms;                             /* least time of a kernel */
    double efficiency_compute, efficiency_memory; /* of large kernels */
};
enum mgpu_rate { MGPU_RATE_F64, MGPU_RATE_F32, MGPU_RATE_TF32, MGPU_RATE_HALF };

struct mgpu_topology_device {
    char name[32]; /* "cuda:0", "cpu:1" */
    int kind;
    int node;       /* machine */
    int64_t memory; /* bytes that may be used */
};

struct mgpu_link { /* one direction, between two devices */
    double bytes;  /* per second */
    double latency_ms;
    int channel; /* transfers of one channel take turns */
};

struct mgpu_topology {
    char *text; /* as asked for */
    int kinds;
    struct mgpu_device_kind *kind;
    int devices;
    struct mgpu_topology_device *device;
    struct mgpu_link *link; /* devices x devices; [i*devices+i] is unused */
    bool present;           /* these devices are here */
};

#endif
