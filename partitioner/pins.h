/* What a person decides about places: --pin PATTERN=DEVICE, --merge DEVICE. */
#ifndef MGPU_PARTITIONER_PINS_H
#define MGPU_PARTITIONER_PINS_H

#include "partitioner/outline.h"

struct mgpu_pins {
    const char *option;     /* what messages call the pins: "--pin" */
    const char *const *pin; /* "PATTERN=DEVICE", ends with NULL; NULL: none */
    const char *merge;      /* a device, or NULL */
    int devices;
    const char *const *device; /* their labels: "cuda:0#1" */
};

/* device[i] of each node of the outline: where it must run, -1: anywhere. PATTERN is a glob on
 * outputs and node names, or `input:NAME`: all that is reached from that input alone (a tower).
 * The merge is all that is reached from several inputs; with a single input, the last node where
 * branches meet and what follows. MGPU_EUSAGE: a pattern that matches nothing, an unknown device
 * (with the nearest), a node pinned to two devices, nothing to merge. */
int mgpu_pins_apply(int *device, const struct mgpu_outline *outline, const struct mgpu_pins *pins);

#endif
