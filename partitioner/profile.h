/* Measured times, kept in a file: what --measure makes (measure.h) and later plans read.
 *
 *     {"version": 1, "machine": "AMD EPYC, 2 cores",
 *      "nodes": [{"threads": 1, "busy": 2, "node": "matmul{...} float[64,256] ...", "ms": 0.21}],
 *      "ranks": [{"threads": 1, "ranks": 2, "all_reduce_ms": 0.05, "all_reduce_gb_s": 6,
 *                 "copy_ms": 0.03, "copy_gb_s": 5, "step_ms": 0.1, "check_gb_s": 9}],
 *      "plans": [{"plan": "1f0c...", "ms": 12.6}]}
 *
 * `busy` CPU devices of `threads` threads each ran the same thing at the same time: they share the
 * memory, so times differ from those of one alone. A plan that was run has the hash of all that
 * makes its step: model, placement, batch, loss, optimizer, threads. Entries are sorted: the same
 * measurements give the same file and hash.
 */
#ifndef MGPU_PARTITIONER_PROFILE_H
#define MGPU_PARTITIONER_PROFILE_H

#include "partitioner/task.h"
#include "runtime/graph/graph.h"

struct mgpu_profile;

/* What does not depend on nodes, of `ranks` CPU devices. Speeds of 0: not measured. */
struct mgpu_profile_ranks {
    int threads, ranks;
    double all_reduce_ms, all_reduce_gb_s; /* base + 2(n-1)/n bytes/B */
    double copy_ms, copy_gb_s;             /* from one to another */
    double step_ms;                        /* giving all ranks a step and hearing of its end */
    double check_gb_s;                     /* of gradients that are checked to be finite */
};

/* Of this machine. */
struct mgpu_profile *mgpu_profile_new(void);
void mgpu_profile_free(struct mgpu_profile *profile);

/* A file of another machine keeps that machine's name. Every fault of the file is MGPU_EINVALID
 * with the file's name and the place; MGPU_EIO when it cannot be read. */
int mgpu_profile_read(struct mgpu_profile **out, const char *path);

/* The file is the old one or the new one. */
int mgpu_profile_write(const struct mgpu_profile *profile, const char *path);

/* 16 hexadecimal digits of everything in it. */
enum { MGPU_PROFILE_HASH = 17 };
void mgpu_profile_hash(const struct mgpu_profile *profile, char text[MGPU_PROFILE_HASH]);

const char *mgpu_profile_machine(const struct mgpu_profile *profile);

/* "AMD EPYC, 2 cores": the processor that this runs on. Lives in the arena. */
const char *mgpu_machine_name(struct mgpu_arena *arena);

/* Milliseconds of the node on a CPU kind (its `threads`, its `busy`); < 0: not known. */
double mgpu_profile_ms(const struct mgpu_profile *profile, const struct mgpu_device_kind *kind,
                       const struct mgpu_node *node);

/* Adds or replaces. */
void mgpu_profile_set(struct mgpu_profile *profile, int threads, int busy,
                      const struct mgpu_node *node, double ms);
void mgpu_profile_set_ranks(struct mgpu_profile *profile, const struct mgpu_profile_ranks *ranks);

/* Milliseconds of a plan's step; < 0: it was not run. */
double mgpu_profile_plan_ms(const struct mgpu_profile *profile, const char *plan);
void mgpu_profile_set_plan(struct mgpu_profile *profile, const char *plan, double ms);

/* NULL: not measured. */
const struct mgpu_profile_ranks *mgpu_profile_ranks(const struct mgpu_profile *profile, int threads,
                                                    int ranks);

/* Puts the measured links into a topology of CPU devices that are here. False: not measured, or
 * another kind of topology; nothing is changed. */
bool mgpu_profile_links(const struct mgpu_profile *profile, struct mgpu_topology *topology);

/* What a step takes besides its tasks: starting the ranks, copying `input` bytes of samples in,
 * checking `gradient` bytes. 0 for GPUs. */
double mgpu_host_ms(const struct mgpu_profile *profile, const struct mgpu_device_kind *kind,
                    int64_t input, int64_t gradient);

#endif
