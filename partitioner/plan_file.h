/* plan.json: a plan as a person reads and edits it, and as mgpu-train --plan runs it.
 *
 *     {"version": 1, "model": {"file": "net.onnx", "sha256": "..."}, "batch": 64,
 *      "devices": ["cpu:0", "cpu:1"], "strategy": "branch",
 *      "rewrites": [{"kind": "stack", "outputs": ["h1", "h2"]}],
 *      "nodes": [{"output": "h1", "name": "/lstm", "type": "LSTM", "device": "cpu:0",
 *                 "slice": "all"}, ...],
 *      "owners": {"W": "cpu:0"}, "buckets": [{"bytes": 4194304}],
 *      "predicted": {"step_ms": ..., "speedup": ..., "memory_bytes": {"cpu:0": ...},
 *                    "bytes_moved": ..., "resident_bytes": ..., "lower_bound_ms": ...},
 *      "alternatives": [{"strategy": "single", "step_ms": ..., "why": "..."}], "profile": "..."}
 *
 * A node's key is its first output; its type is checked, its name is only for the reader. Nodes
 * stand in an order in which they can run. "device" is a name out of "devices", with the slice
 * "all"; or, where the batch is cut into R parts, the R devices that each compute the node for one
 * part
 * ("cpu:0,cpu:2", or "all"), with the slice "batch". "cpu:0,cpu:2,...,cpu:10" are every second one:
 * "..." goes on in "devices" at the distance of the two before it (of one before: to each next one)
 * to the one behind it. As in the runtime (runtime/compile/plan.h), device number
 * replica * places + place is place `place` of a replica. Where a device is listed
 * twice (two ranks on it) the second is called "cpu:0#1". "predicted", "alternatives" and "profile"
 * do not matter to what runs.
 */
#ifndef MGPU_PARTITIONER_PLAN_FILE_H
#define MGPU_PARTITIONER_PLAN_FILE_H

#include "runtime/base/memory.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { MGPU_PLAN_VERSION = 1, MGPU_PLAN_DEVICES = 4096 };

#define MGPU_AND_SO_ON "..."

struct mgpu_plan_node {
    const char *output, *name, *type;
    int place;
};

struct mgpu_plan_rewrite {
    const char *kind; /* "stack", "recompute": runtime/compile/rewrite.h */
    int outputs;
    const char **output;
};

struct mgpu_plan_owner {
    const char *parameter;
    int place;
};

/* A strategy that was tried. */
struct mgpu_alternative {
    const char *strategy; /* "single", "data", "branch", "hybrid", "stacked" */
    int replicas, places;
    int devices;    /* that it uses: places of each replica, and the one that has the weights */
    bool feasible;  /* false: only `why` says something */
    bool recompute; /* activations are computed again in backward */
    double step_ms, speedup;
    int64_t memory_bytes; /* of the fullest device */
    int64_t bytes_moved;  /* between devices, a step */
    const char *why;      /* one sentence: why it lost, or won */
};

struct mgpu_predicted {
    double step_ms, speedup, single_ms, lower_bound_ms;
    double parallelism; /* work / critical path: no placement is faster by more; 0: unknown */
    int64_t bytes_moved;
    int64_t resident_bytes; /* of the process of all ranks; 0: not known */
    int64_t *memory_bytes;  /* by device */
};

struct mgpu_plan_file {
    struct mgpu_arena *arena; /* owns everything */
    const char *model_file, *sha256;
    int64_t batch; /* 0: not said (annotations) */
    int devices;
    const char **device; /* as listed */
    const char **label;  /* the same, but "#1" after the second of a name */
    const char *strategy;
    int replicas, places; /* replicas * places <= devices; the others have nothing to do */
    int rewrites;
    struct mgpu_plan_rewrite *rewrite;
    int nodes;
    struct mgpu_plan_node *node;
    int owners;
    struct mgpu_plan_owner *owner;
    int64_t bucket_bytes; /* 0: not said */
    struct mgpu_predicted predicted;
    int alternatives;
    struct mgpu_alternative *alternative; /* the chosen one first */
    const char *profile;                  /* hash of the measured costs; NULL: none */
};

struct mgpu_plan_file *mgpu_plan_file_new(void);
void mgpu_plan_file_free(struct mgpu_plan_file *plan);

/* Whether a device can be called so: what means something else in a plan is no name. */
bool mgpu_is_device_name(const char *name);

/* What plans and options call device i of these: its name, but "cuda:0#1" for the second cuda:0. */
const char *mgpu_device_label(struct mgpu_arena *arena, const char *const *name, int device);

/* Sets device, label and predicted.memory_bytes; names are copied. */
void mgpu_plan_file_devices(struct mgpu_plan_file *plan, int count, const char *const *name);

/* The devices of a place: "cpu:0", "cpu:0,cpu:2,...,cpu:10", "all". Lives in the plan's arena. */
const char *mgpu_plan_file_place(const struct mgpu_plan_file *plan, int place);

/* The place that these devices are together, or MGPU_EINVALID. The first set that is asked for says
 * how many replicas there are and how far apart: plan->replicas is 0 until then. */
int mgpu_plan_file_find(struct mgpu_plan_file *plan, const int *device, int count);

/* Writes it: the file is the old one or the new one. */
int mgpu_plan_file_write(const struct mgpu_plan_file *plan, const char *path);
/* The same text, to a stream. */
int mgpu_plan_file_print(const struct mgpu_plan_file *plan, FILE *to);

/* Reads and checks all that can be checked without the model: complete JSON, version, types,
 * ranges, known devices, no key twice. MGPU_EINVALID says the place: "plan.json: nodes[3]:
 * 'device': 'cpu:7' is not one of the devices (...)". */
int mgpu_plan_file_read(struct mgpu_plan_file **out, const char *path);

#endif
