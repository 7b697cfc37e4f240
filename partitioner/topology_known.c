/* Devices and links that are known by name. Peaks are dense (vendor pages often print the doubled
 * sparse ones); bandwidths are what measurements and NCCL's topology search plan with, not the raw
 * ones. */
#include "partitioner/topology_private.h"
#include "runtime/cuda/cuda.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const struct mgpu_known_device mgpu_known_devices[] = {
    /* name     sm   f64   f32   tf32  half   GB/s  GiB  nvl ring sw  pci ring far us  Gb */
    {"v100", 70, {7.8, 15.7, 0, 125}, 900, 16, 120, 120, 0, 12, 10, 10, 0, 100},
    {"v100-32", 70, {7.8, 15.7, 0, 125}, 900, 32, 120, 120, 0, 12, 10, 10, 0, 100},
    {"a100", 80, {9.7, 19.5, 156, 312}, 1555, 40, 240, 220, 0, 24, 20, 10, 0, 200},
    {"a100-80", 80, {9.7, 19.5, 156, 312}, 2039, 80, 240, 220, 0, 24, 20, 10, 0, 200},
    {"h100", 90, {34, 67, 495, 989}, 3350, 80, 371, 370, 475, 48, 37, 37, 0, 400},
    {"h200", 90, {34, 67, 495, 989}, 4800, 141, 371, 370, 475, 48, 37, 37, 0, 400},
    {"b200", 100, {37, 75, 1100, 2250}, 7700, 180, 770, 722, 830, 48, 37, 37, 0, 400},
    {"l40s", 89, {1.4, 91.6, 183, 362}, 864, 48, 0, 0, 0, 24, 20, 10, 0, 200},
    {"t4", 75, {0.25, 8.1, 0, 65}, 300, 16, 0, 0, 0, 12, 10, 10, 0, 100},
    {"rtx4090", 89, {1.3, 82.6, 82.6, 165}, 1008, 24, 0, 0, 0, 20, 20, 10, 42, 100},
    {.name = NULL},
};

/* Whether the text begins with the word of a row, of which what stands behind '-' is ours; spaces
 * do not count: "RTX 4090" is rtx4090. */
static bool begins_with(const char *text, const char *known)
{
    for (; *known && *known != '-'; known++, text++) {
        text += strspn(text, " ");
        if (tolower((unsigned char)*text) != *known)
            return false;
    }
    return !isalnum((unsigned char)*text);
}

/* "NVIDIA A100-SXM4-80GB" is called an a100 and an a100-80. */
static bool is_called(const char *name, const struct mgpu_known_device *known)
{
    for (const char *at = name; *at; at++)
        if ((at == name || !isalnum((unsigned char)at[-1])) && begins_with(at, known->name))
            return true;
    return false;
}

/* Where a GPU's name says which slice of it (MIG) this is: "NVIDIA A100-SXM4-80GB MIG 1g.10gb";
 * NULL: it is whole. */
static const char *slice_in(const char *name)
{
    return strstr(name, " MIG ");
}

/* Bytes of all of the GPU, as its name says where this is a slice of it. */
static double whole_memory(const struct mgpu_gpu_facts *gpu)
{
    const char *slice = slice_in(gpu->name), *size = strstr(gpu->name, "GB");
    if (!slice || !size || size > slice)
        return (double)gpu->memory;
    while (size > gpu->name && isdigit((unsigned char)size[-1]))
        size--;
    return atof(size) * 0x1p30;
}

/* How far a row is from a GPU: of its own rows the memory counts; of others bandwidth, and then a
 * little, since neighbours of one bandwidth are told apart by it, how much older or newer it is. */
static double distance(const struct mgpu_known_device *k, const struct mgpu_gpu_facts *gpu)
{
    enum { OTHER = 1000 };
    static const double AGE = 0.02; /* of a tenth of a version */
    double memory = fabs(log(k->memory_gib * 0x1p30 / (whole_memory(gpu) + 1)));
    if (is_called(gpu->name, k))
        return memory;
    double speed = gpu->bytes > 0 ? fabs(log(k->memory_gb_s * 1e9 / gpu->bytes)) : memory;
    return OTHER + speed + AGE * abs(k->sm - gpu->sm);
}

const struct mgpu_known_device *mgpu_known_gpu(const struct mgpu_gpu_facts *gpu)
{
    const struct mgpu_known_device *best = mgpu_known_devices;
    for (const struct mgpu_known_device *k = best; k->name; k++)
        if (distance(k, gpu) < distance(best, gpu))
            best = k;
    return best;
}

void mgpu_kind_of_known(struct mgpu_device_kind *kind, const struct mgpu_known_device *known)
{
    *kind = (struct mgpu_device_kind){.name = known->name,
                                      .sm = known->sm,
                                      .bytes = known->memory_gb_s * 1e9,
                                      .launch_ms = 7e-3,
                                      .efficiency_compute = 0.7,
                                      .efficiency_memory = 0.7,
                                      .interference = 1.3};
    for (int r = 0; r < MGPU_RATES; r++)
        kind->flops[r] = known->tflops[r] > 0 ? known->tflops[r] * 1e12 : kind->flops[r - 1];
}

/* Per second, of all multiprocessors of a row together. One makes 64 fused products in float32 in a
 * cycle, from compute capability 8.6 on 128 (CUDA Programming Guide, arithmetic instructions). */
static double known_cycles(const struct mgpu_known_device *k)
{
    return k->tflops[MGPU_RATE_F32] * 1e12 / (2 * (k->sm < 86 ? 64 : 128));
}

/* A share of a row's number; 0 is not known. */
static bool is_far(double share)
{
    return share > 0 && fabs(log(share)) > log(1.25);
}

void mgpu_kind_of_gpu(struct mgpu_device_kind *kind, const struct mgpu_known_device *known,
                      const struct mgpu_gpu_facts *gpu)
{
    double memory = (double)gpu->memory / (known->memory_gib * 0x1p30);
    double cycles = gpu->cycles / known_cycles(known);
    double bytes = gpu->bytes / (known->memory_gb_s * 1e9);
    bool slice = slice_in(gpu->name);
    mgpu_kind_of_known(kind, known);
    kind->sm = gpu->sm;
    kind->scaled =
        is_called(gpu->name, known) && (slice || is_far(memory) || is_far(cycles) || is_far(bytes));
    kind->stands_for = kind->scaled || !is_called(gpu->name, known) ? gpu->name : NULL;
    if (!kind->scaled)
        return;
    for (int r = 0; r < MGPU_RATES; r++)
        kind->flops[r] *= cycles > 0 ? cycles : 1;
    kind->bytes *= bytes > 0 ? bytes : 1;
    if (slice) /* it has as much of the bandwidth as of the memory, whatever the driver says */
        kind->bytes = fmin(kind->bytes, known->memory_gb_s * 1e9 * memory);
}

/* ---- Fabrics --------------------------------------------------------------------------------- */

/* Microseconds of NCCL's tuning.cc by protocol: LL, LL128, Simple. */
static const double base_us[] = {6.6, 14, 8.4};
static const double nvlink_us[] = {0.6, 1.9, 3.4};
static const double pcie_us[] = {1.0, 2.5, 5.7};
static const double network_ring_us[] = {2.7, 4.0, 14};
static const double network_tree_us[] = {5, 8.5, 14};

/* LL carries 4 bytes of data and 4 of flags in each 8, twice; LL128 120 of 128 and needs NVLink. */
static const double share_nvlink[] = {0.25, 0.92, 1};
static const double share_pcie[] = {0.25, 0, 1};

void mgpu_fabric_nccl(struct mgpu_fabric *f, const struct mgpu_known_device *known, bool nvlink,
                      int in_machine)
{
    double pcie = in_machine > 4 ? known->pcie_far_gb_s : known->pcie_ring_gb_s;
    *f = (struct mgpu_fabric){.ring = (nvlink ? known->ring_gb_s : pcie) * 1e9,
                              .in_switch = nvlink ? known->switch_gb_s * 1e9 : 0};
    for (int p = 0; p < MGPU_PROTOCOLS; p++) {
        f->share[p] = nvlink ? share_nvlink[p] : share_pcie[p];
        f->base_ms[p] = base_us[p] * 1e-3;
        if (!nvlink && known->pcie_base_us > base_us[p])
            f->base_ms[p] = known->pcie_base_us * 1e-3;
        f->inside_ms[p] = (nvlink ? nvlink_us : pcie_us)[p] * 1e-3;
        f->ring_ms[p] = network_ring_us[p] * 1e-3;
        f->tree_ms[p] = network_tree_us[p] * 1e-3;
    }
}

void mgpu_fabric_plain(struct mgpu_fabric *f, double ring, double base_ms, double hop_ms)
{
    int simple = MGPU_PROTOCOLS - 1;
    *f = (struct mgpu_fabric){.ring = ring};
    f->share[simple] = 1;
    f->base_ms[simple] = base_ms;
    f->inside_ms[simple] = f->ring_ms[simple] = f->tree_ms[simple] = hop_ms;
}

/* 100, 200, 400 Gb/s adapters are planned with 12, 24, 48 GB/s. */
double mgpu_adapter_bytes(double gbit)
{
    return gbit * 0.12e9;
}
