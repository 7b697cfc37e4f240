/* --list-devices. */
#include "partitioner/profile.h"
#include "partitioner/topology_private.h"
#include "runtime/base/status.h"
#include "runtime/cuda/cuda.h"
#include "runtime/mgpu.h"

#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>

static const double GIB = 0x1p30;

/* ---- GPUs here ------------------------------------------------------------------------------- */

struct gpu {
    struct mgpu_gpu_facts facts;
    int64_t free;           /* bytes; -1: not known */
    const char *unusable;   /* why; NULL: it can be used */
    const char *numbers_of; /* the known one whose numbers plans take */
    const char *how;        /* they do */
};

struct gpus {
    struct mgpu_arena *arena;
    int count, version; /* version: of CUDA that the driver runs; 13010 is 13.1 */
    struct gpu *gpu;
    const char *none; /* why there is none */
};

static void ask_gpu(struct gpus *g, int i)
{
    struct gpu *gpu = &g->gpu[i];
    gpu->free = -1;
    if (mgpu_cuda_check(i) < 0 || mgpu_cuda_free_memory(&gpu->free, i) < 0)
        gpu->unusable = mgpu_arena_string(g->arena, mgpu_error());
    if (mgpu_cuda_facts(&gpu->facts, i) < 0)
        return;
    struct mgpu_device_kind kind;
    mgpu_kind_of_gpu(&kind, mgpu_known_gpu(&gpu->facts), &gpu->facts);
    gpu->numbers_of = kind.name;
    gpu->how = kind.scaled       ? ", scaled by what the driver says"
               : kind.stands_for ? ", the most alike"
                                 : "";
}

static void ask_gpus(struct gpus *g, struct mgpu_arena *arena)
{
    *g = (struct gpus){.arena = arena};
    if (mgpu_cuda_count(&g->count) < 0 || mgpu_cuda_version(&g->version) < 0) {
        g->none = mgpu_arena_string(arena, mgpu_error());
        g->count = 0;
        return;
    }
    g->gpu = MGPU_NEW_ARRAY(arena, struct gpu, g->count);
    for (int i = 0; i < g->count; i++)
        ask_gpu(g, i);
}

static void print_gpu(const struct gpu *gpu, int i, FILE *to)
{
    char name[32];
    snprintf(name, sizeof name, "cuda:%d", i);
    fprintf(to, "  %-9s %s, compute capability %d.%d, %.1f GiB", name, gpu->facts.name,
            gpu->facts.sm / 10, gpu->facts.sm % 10, (double)gpu->facts.memory / GIB);
    if (gpu->free >= 0)
        fprintf(to, " (%.1f free)", (double)gpu->free / GIB);
    if (gpu->numbers_of)
        fprintf(to, "; plans take the numbers of %s%s", gpu->numbers_of, gpu->how);
    fputc('\n', to);
    if (gpu->unusable)
        fprintf(to, "            cannot be used: %s\n", gpu->unusable);
}

static void print_gpus(const struct gpus *g, FILE *to)
{
    if (g->none)
        fprintf(to, "  no GPU: %s\n", g->none);
    for (int i = 0; i < g->count; i++)
        print_gpu(&g->gpu[i], i, to);
    if (g->count)
        fprintf(to, "  the NVIDIA driver runs CUDA %d.%d\n", g->version / 1000,
                g->version % 1000 / 10);
}

static struct json_object *gpu_json(const struct gpu *gpu, int i)
{
    char text[32];
    struct json_object *o = json_object_new_object();
    snprintf(text, sizeof text, "cuda:%d", i);
    json_object_object_add(o, "name", json_object_new_string(text));
    json_object_object_add(o, "gpu", json_object_new_string(gpu->facts.name));
    snprintf(text, sizeof text, "%d.%d", gpu->facts.sm / 10, gpu->facts.sm % 10);
    json_object_object_add(o, "compute_capability", json_object_new_string(text));
    json_object_object_add(o, "memory_bytes", json_object_new_int64(gpu->facts.memory));
    if (gpu->free >= 0)
        json_object_object_add(o, "free_bytes", json_object_new_int64(gpu->free));
    if (gpu->numbers_of)
        json_object_object_add(o, "numbers_of", json_object_new_string(gpu->numbers_of));
    if (gpu->unusable)
        json_object_object_add(o, "unusable", json_object_new_string(gpu->unusable));
    return o;
}

/* Into the list of devices that are here, and beside it. */
static void add_gpus_json(struct json_object *o, struct json_object *here, const struct gpus *g)
{
    char version[32];
    for (int i = 0; i < g->count; i++)
        json_object_array_add(here, gpu_json(&g->gpu[i], i));
    if (g->none) {
        json_object_object_add(o, "no_gpu", json_object_new_string(g->none));
        return;
    }
    snprintf(version, sizeof version, "%d.%d", g->version / 1000, g->version % 1000 / 10);
    json_object_object_add(o, "driver_cuda", json_object_new_string(version));
}

/* ---- The CPU, and what is known by name ------------------------------------------------------ */

static void print_here(const struct mgpu_topology *t, const char *machine, FILE *to)
{
    const struct mgpu_topology_device *d = &t->device[0];
    fprintf(to,
            "here (%s):\n"
            "  %-9s %d thread%s, %.1f GiB; cpu:0,cpu:1 ... divide them\n",
            machine, d->name, t->kind[d->kind].threads, t->kind[d->kind].threads == 1 ? "" : "s",
            (double)d->memory / GIB);
}

static void print_known(const struct mgpu_known_device *k, FILE *to)
{
    fprintf(to, "  %-9s", k->name);
    for (int r = 0; r < MGPU_RATES; r++)
        if (k->tflops[r] > 0)
            fprintf(to, " %6.4g", k->tflops[r]);
        else
            fprintf(to, " %6s", "-");
    fprintf(to, " %7.4g %5.4g", k->memory_gb_s, k->memory_gib);
    if (k->nvlink_gb_s > 0)
        fprintf(to, " %7.4g", k->nvlink_gb_s);
    else
        fprintf(to, " %7s", "-");
    fprintf(to, " %6.4g %8.4g\n", k->pcie_gb_s, k->network_gbit);
}

static struct json_object *known_json(const struct mgpu_known_device *k)
{
    static const char *const rate[MGPU_RATES] = {"f64", "f32", "tf32", "half"};
    struct json_object *o = json_object_new_object(), *flops = json_object_new_object();
    json_object_object_add(o, "name", json_object_new_string(k->name));
    for (int r = 0; r < MGPU_RATES; r++)
        if (k->tflops[r] > 0)
            json_object_object_add(flops, rate[r], json_object_new_double(k->tflops[r]));
    json_object_object_add(o, "tflops", flops);
    json_object_object_add(o, "memory_gb_s", json_object_new_double(k->memory_gb_s));
    json_object_object_add(o, "memory_gib", json_object_new_double(k->memory_gib));
    json_object_object_add(o, "nvlink_gb_s", json_object_new_double(k->nvlink_gb_s));
    json_object_object_add(o, "pcie_gb_s", json_object_new_double(k->pcie_gb_s));
    json_object_object_add(o, "network_gbit", json_object_new_double(k->network_gbit));
    return o;
}

static void devices_json(const struct mgpu_topology *t, const char *machine, const struct gpus *g,
                         FILE *to)
{
    struct json_object *o = json_object_new_object(), *here = json_object_new_array();
    struct json_object *cpu = json_object_new_object(), *known = json_object_new_array();
    json_object_object_add(cpu, "name", json_object_new_string(t->device[0].name));
    json_object_object_add(cpu, "machine", json_object_new_string(machine));
    json_object_object_add(cpu, "threads", json_object_new_int(t->kind[t->device[0].kind].threads));
    json_object_object_add(cpu, "memory_bytes", json_object_new_int64(t->device[0].memory));
    json_object_array_add(here, cpu);
    add_gpus_json(o, here, g);
    for (const struct mgpu_known_device *k = mgpu_known_devices; k->name; k++)
        json_object_array_add(known, known_json(k));
    json_object_object_add(o, "here", here);
    json_object_object_add(o, "known", known);
    fprintf(
        to, "%s\n",
        json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE));
    json_object_put(o);
}

int mgpu_list_devices(bool json, FILE *to)
{
    struct mgpu_topology *t;
    struct gpus gpus;
    MGPU_TRY(mgpu_topology_parse(&t, "cpu"));
    const char *machine = mgpu_machine_name(t->arena);
    ask_gpus(&gpus, t->arena);
    if (json) {
        devices_json(t, machine, &gpus, to);
    } else {
        print_here(t, machine, to);
        print_gpus(&gpus, to);
        fputs("\nknown by name (8xh100-nvlink, 4xa100-pcie, 2x8xh100-ib, 4x4xv100-eth25):\n"
              "             TFLOP/s, dense              memory         link GB/s   network\n"
              "  name         f64    f32   tf32   half    GB/s   GiB  nvlink   pcie     Gb/s\n",
              to);
        for (const struct mgpu_known_device *k = mgpu_known_devices; k->name; k++)
            print_known(k, to);
        fputs("\n2xcpu: one-core CPU devices as here; FILE.json: a topology of your own\n", to);
    }
    mgpu_topology_free(t);
    return 0;
}
