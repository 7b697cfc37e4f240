#include "partitioner/topology.h"

#include "partitioner/topology_private.h"
#include "runtime/base/option_text.h"
#include "runtime/base/status.h"
#include "runtime/cuda/cuda.h"
#include "runtime/executor/devices.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const double INTRA_LATENCY_MS = 3e-3, NETWORK_LATENCY_MS = 15e-3;

/* ---- Topologies ------------------------------------------------------------------------------ */

struct mgpu_topology *mgpu_topology_new(const char *text, int kinds, int devices)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_topology *t = MGPU_NEW(arena, struct mgpu_topology);
    t->arena = arena;
    t->text = mgpu_arena_string(arena, text);
    t->kinds = kinds;
    t->kind = MGPU_NEW_ARRAY(arena, struct mgpu_device_kind, kinds);
    t->devices = devices;
    t->device = MGPU_NEW_ARRAY(arena, struct mgpu_topology_device, devices);
    t->link = MGPU_NEW_ARRAY(arena, struct mgpu_link, (size_t)devices * (size_t)devices);
    return t;
}

void mgpu_topology_free(struct mgpu_topology *t)
{
    if (t)
        mgpu_arena_free(t->arena);
}

bool mgpu_topology_all_cpus(const struct mgpu_topology *t)
{
    for (int k = 0; k < t->kinds; k++)
        if (!t->kind[k].threads)
            return false;
    return true;
}

bool mgpu_topology_has_cpus(const struct mgpu_topology *t)
{
    for (int k = 0; k < t->kinds; k++)
        if (t->kind[k].threads)
            return true;
    return false;
}

int mgpu_topology_find(const struct mgpu_topology *t, const char *name)
{
    for (int i = 0; i < t->devices; i++)
        if (!strcmp(t->device[i].name, name))
            return i;
    return -1;
}

/* What counts when devices are compared; the sum of integers is the same in any order. */
struct standing {
    double flops, bytes;
    int64_t links;
    int index;
};

static int by_standing(const void *a, const void *b)
{
    const struct standing *x = a, *y = b;
    if (x->flops != y->flops)
        return x->flops > y->flops ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    if (x->links != y->links)
        return x->links > y->links ? -1 : 1;
    return x->index - y->index;
}

static struct standing standing_of(const struct mgpu_topology *t, int i)
{
    const struct mgpu_device_kind *kind = &t->kind[t->device[i].kind];
    struct standing s = {kind->flops[MGPU_RATE_F32], kind->bytes, 0, i};
    for (int j = 0; j < t->devices; j++)
        if (j != i)
            s.links +=
                (int64_t)fmin(t->link[(size_t)i * (size_t)t->devices + (size_t)j].bytes, 1e15);
    return s;
}

void mgpu_topology_sort(struct mgpu_topology *t)
{
    size_t n = (size_t)t->devices;
    struct standing *order = mgpu_xcalloc(n + 1, sizeof *order);
    for (int i = 0; i < t->devices; i++)
        order[i] = standing_of(t, i);
    qsort(order, n, sizeof *order, by_standing);
    struct mgpu_topology_device *device = MGPU_NEW_ARRAY(t->arena, struct mgpu_topology_device, n);
    struct mgpu_link *link = MGPU_NEW_ARRAY(t->arena, struct mgpu_link, n * n);
    for (size_t i = 0; i < n; i++) {
        device[i] = t->device[order[i].index];
        for (size_t j = 0; j < n; j++)
            link[i * n + j] = t->link[(size_t)order[i].index * n + (size_t)order[j].index];
    }
    free(order);
    t->device = device;
    t->link = link;
}

/* Of the GPU that device `i` is on; 0 for a CPU. */
static int ranks_of(const struct mgpu_topology *t, int i)
{
    int ranks = 0;
    for (int j = 0; j < t->devices && !t->kind[t->device[i].kind].threads; j++)
        ranks += !strcmp(t->device[j].name, t->device[i].name);
    return ranks;
}

/* Kinds of GPUs: the most ranks that one of them has. */
static void count_ranks(struct mgpu_topology *t)
{
    for (int k = 0; k < t->kinds; k++)
        t->kind[k].ranks = 0;
    for (int i = 0; i < t->devices; i++) {
        int ranks = ranks_of(t, i), *most = &t->kind[t->device[i].kind].ranks;
        *most = ranks > *most ? ranks : *most;
    }
}

bool mgpu_topology_shares_gpus(const struct mgpu_topology *t)
{
    for (int k = 0; k < t->kinds; k++)
        if (t->kind[k].ranks > 1)
            return true;
    return false;
}

struct mgpu_topology *mgpu_topology_first(const struct mgpu_topology *from, int devices, int busy)
{
    struct mgpu_topology *t = mgpu_topology_new(from->text, from->kinds, devices);
    t->fabric = from->fabric;
    t->present = from->present;
    memcpy(t->kind, from->kind, sizeof *t->kind * (size_t)t->kinds);
    for (int k = 0; k < t->kinds; k++) {
        t->kind[k].name = mgpu_arena_string(t->arena, from->kind[k].name);
        t->kind[k].stands_for = NULL; /* said of the whole */
        t->kind[k].busy = t->kind[k].threads ? busy : 0;
    }
    memcpy(t->device, from->device, sizeof *t->device * (size_t)devices);
    count_ranks(t);
    for (int i = 0; i < devices; i++)
        memcpy(t->link + (size_t)i * (size_t)devices,
               from->link + (size_t)i * (size_t)from->devices, sizeof *t->link * (size_t)devices);
    return t;
}

static void set_links(struct mgpu_topology *t, bool inside, struct mgpu_link link,
                      int (*channel)(const struct mgpu_topology *t, int from, int way), int way)
{
    for (int i = 0; i < t->devices; i++) {
        struct mgpu_link *row = t->link + (size_t)i * (size_t)t->devices;
        link.channel = channel(t, i, way);
        for (int k = 0; k < t->devices; k++)
            if (i != k && (t->device[i].node == t->device[k].node) == inside)
                row[k] = link;
    }
}

/* Channels: of each device's way out, of each machine inside, of each adapter outside. */
static int device_channel(const struct mgpu_topology *t, int from, int way)
{
    (void)t;
    (void)way;
    return from;
}

static int machine_channel(const struct mgpu_topology *t, int from, int way)
{
    (void)way;
    return MGPU_MAX_PLANNED + t->device[from].node;
}

static int adapter_channel(const struct mgpu_topology *t, int from, int adapters)
{
    int node = t->device[from].node, first = from;
    while (first > 0 && t->device[first - 1].node == node)
        first--;
    return (2 + node) * MGPU_MAX_PLANNED + (from - first) % adapters;
}

void mgpu_links_inside(struct mgpu_topology *t, double bytes, double latency_ms, bool shared)
{
    struct mgpu_link link = {.bytes = bytes, .latency_ms = latency_ms};
    set_links(t, true, link, shared ? machine_channel : device_channel, 0);
}

void mgpu_links_between(struct mgpu_topology *t, double bytes, double latency_ms, int adapters)
{
    struct mgpu_link link = {.bytes = bytes, .latency_ms = latency_ms};
    t->fabric.adapter = bytes;
    t->fabric.adapters = adapters;
    set_links(t, false, link, adapter_channel, adapters);
}

/* ---- CPUs ------------------------------------------------------------------------------------ */

/* The cores that compute also communicate: while they do, computing stands still. */
static const double CPU_INTERFERENCE = 1e3;

static double vector_flops(void)
{
    /* one-precision operations in a cycle of a core with two units for fused products */
    if (__builtin_cpu_supports("avx512f"))
        return 64;
    return __builtin_cpu_supports("avx2") ? 32 : 8;
}

/* One CPU device of this processor with `threads` cores. */
static void kind_of_cpu(struct mgpu_device_kind *kind, int threads, int busy)
{
    double peak = vector_flops() * 2.5e9 * threads;
    *kind = (struct mgpu_device_kind){.name = "cpu",
                                      .flops = {peak / 2, peak, peak, peak},
                                      .bytes = 20e9 * threads,
                                      .launch_ms = 1e-3,
                                      .efficiency_compute = 0.5,
                                      .efficiency_memory = 0.8,
                                      .interference = CPU_INTERFERENCE,
                                      .threads = threads,
                                      .busy = busy};
}

/* What this process may use: the machine's, or its control group's when that is less. */
static int64_t machine_memory(void)
{
    int64_t bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    long long limit;
    FILE *f = fopen("/sys/fs/cgroup/memory.max", "r");
    if (f && fscanf(f, "%lld", &limit) == 1 && limit > 0 && limit < bytes)
        bytes = limit;
    if (f)
        fclose(f);
    return bytes;
}

/* Memory of one machine: threads copy and sum each other's buffers with the cores that compute. */
static void cpu_links(struct mgpu_topology *t)
{
    mgpu_links_inside(t, 5e9, 0.03, true);
    mgpu_fabric_plain(&t->fabric, 4e9, 0.06, 0);
}

/* ---- Short names ----------------------------------------------------------------------------- */

struct short_name {
    int machines, devices;                 /* of a machine */
    const struct mgpu_known_device *known; /* NULL: cpu */
    bool nvlink, pcie;
    double gbit;
    int adapters; /* 0: no network was named */
};

/* A number and 'x' at *at. */
static bool take_factor(const char **at, int *out)
{
    char *end;
    if (!isdigit((unsigned char)**at))
        return false;
    long value = strtol(*at, &end, 10);
    if (*end != 'x' || value < 1)
        return false;
    *out = value > MGPU_MAX_PLANNED ? MGPU_MAX_PLANNED + 1 : (int)value;
    *at = end + 1;
    return true;
}

static int take_kind(const char **at, const char *spec, struct short_name *s)
{
    const char *names[32];
    int count = 0;
    for (; mgpu_known_devices[count].name; count++)
        names[count] = mgpu_known_devices[count].name;
    names[count] = "cpu";
    size_t length = mgpu_longest_name(*at, names, count + 1, "-");
    if (!length) {
        char word[32] = "";
        snprintf(word, sizeof word, "%.*s", (int)strcspn(*at, "-"), *at);
        return mgpu_prefix(mgpu_unknown_name("device", word, names, count + 1), "--devices %s",
                           spec);
    }
    for (int i = 0; i < count; i++)
        if (strlen(names[i]) == length && !strncmp(names[i], *at, length))
            s->known = &mgpu_known_devices[i];
    *at += length;
    return 0;
}

enum { MOST_GBIT = 1000000 };

/* "ib", "ib200": one adapter a device; "eth25": one a machine. */
static bool take_network(const char *word, struct short_name *s)
{
    bool ib = !strncmp(word, "ib", 2), eth = !strncmp(word, "eth", 3);
    const char *digits = word + (ib ? 2 : 3);
    char *end = (char *)digits;
    if (!ib && !eth)
        return false;
    s->gbit = isdigit((unsigned char)*digits) ? strtod(digits, &end) : 0;
    s->adapters = ib ? s->devices : 1;
    if (!s->gbit && end == digits)
        s->gbit = ib ? s->known->network_gbit : 25;
    return !*end && s->gbit > 0 && s->gbit <= MOST_GBIT;
}

static int take_link(const char *word, const char *spec, struct short_name *s)
{
    static const char *const words[] = {"nvlink", "pcie", "ib", "ib200", "eth25"};
    if (!s->known)
        return mgpu_fail(MGPU_EUSAGE, "--devices %s: cpu devices take no link", spec);
    if (s->adapters && (!strncmp(word, "ib", 2) || !strncmp(word, "eth", 3)))
        return mgpu_fail(MGPU_EUSAGE, "--devices %s: one network, not two", spec);
    if (!strcmp(word, "nvlink") && s->known->nvlink_gb_s == 0)
        return mgpu_fail(MGPU_EUSAGE, "--devices %s: %s has no NVLink", spec, s->known->name);
    if (!strcmp(word, "nvlink"))
        s->nvlink = true;
    else if (!strcmp(word, "pcie"))
        s->pcie = true;
    else if (!take_network(word, s))
        return mgpu_prefix(mgpu_unknown_name("link", word, words, 5), "--devices %s", spec);
    return 0;
}

static int check_links(const char *spec, struct short_name *s)
{
    if (s->nvlink && s->pcie)
        return mgpu_fail(MGPU_EUSAGE, "--devices %s: nvlink or pcie, not both", spec);
    if (s->adapters && s->machines == 1)
        return mgpu_fail(MGPU_EUSAGE,
                         "--devices %s: a network joins several machines; write 2x%s for two", spec,
                         spec);
    if ((int64_t)s->machines * s->devices > MGPU_MAX_PLANNED)
        return mgpu_fail(MGPU_EUSAGE, "--devices %s: more than %d devices", spec, MGPU_MAX_PLANNED);
    if (s->known && !s->pcie)
        s->nvlink = s->known->nvlink_gb_s > 0;
    if (s->known && s->machines > 1 && !s->adapters) {
        s->adapters = s->devices;
        s->gbit = s->known->network_gbit;
    }
    return 0;
}

static int parse_words(struct short_name *s, const char *spec)
{
    const char *at = spec;
    int first = 1, second;
    take_factor(&at, &first);
    *s = (struct short_name){.machines = 1, .devices = first};
    if (take_factor(&at, &second)) {
        s->machines = first;
        s->devices = second;
    }
    MGPU_TRY(take_kind(&at, spec, s));
    while (*at) {
        char word[32];
        size_t length = strcspn(++at, "-");
        snprintf(word, sizeof word, "%.*s", (int)length, at);
        MGPU_TRY(take_link(word, spec, s));
        at += length;
    }
    if (!s->known && s->machines > 1)
        return mgpu_fail(MGPU_EUSAGE, "--devices %s: cpu devices are of one machine", spec);
    return check_links(spec, s);
}

static void name_device(struct mgpu_topology_device *d, const struct short_name *s, int i)
{
    const char *kind = s->known ? "cuda" : "cpu";
    if (s->machines > 1)
        snprintf(d->name, sizeof d->name, "n%d/%s:%d", d->node, kind, i);
    else
        snprintf(d->name, sizeof d->name, "%s:%d", kind, i);
}

static void gpu_links(struct mgpu_topology *t, const struct short_name *s)
{
    const struct mgpu_known_device *k = s->known;
    double speed = (s->nvlink ? k->nvlink_gb_s : k->pcie_gb_s) * 1e9;
    double latency = INTRA_LATENCY_MS;
    if (!s->nvlink && k->pcie_base_us * 1e-3 > latency)
        latency = k->pcie_base_us * 1e-3;
    mgpu_fabric_nccl(&t->fabric, k, s->nvlink, s->devices);
    mgpu_links_inside(t, speed, latency, !s->nvlink);
    if (s->machines > 1)
        mgpu_links_between(t, mgpu_adapter_bytes(s->gbit), NETWORK_LATENCY_MS, s->adapters);
}

static int parse_short(struct mgpu_topology **out, const char *spec)
{
    struct short_name s;
    MGPU_TRY(parse_words(&s, spec));
    int count = s.machines * s.devices;
    struct mgpu_topology *t = mgpu_topology_new(spec, 1, count);
    for (int i = 0; i < count; i++) {
        struct mgpu_topology_device *d = &t->device[i];
        d->node = i / s.devices;
        d->memory = s.known ? (int64_t)(s.known->memory_gib * 0x1p30) : machine_memory() / count;
        name_device(d, &s, i % s.devices);
    }
    if (s.known)
        mgpu_kind_of_known(t->kind, s.known);
    else
        kind_of_cpu(t->kind, 1, count);
    if (s.known)
        gpu_links(t, &s);
    else
        cpu_links(t);
    *out = t;
    return 0;
}

/* ---- Devices here ---------------------------------------------------------------------------- */

static int kind_of_threads(struct mgpu_topology *t, int threads, int busy)
{
    for (int k = 0; k < t->kinds; k++)
        if (t->kind[k].threads == threads)
            return k;
    kind_of_cpu(&t->kind[t->kinds], threads, busy);
    return t->kinds++;
}

/* GPUs that are not just as in the table are kinds of their own. */
static int kind_of_gpu(struct mgpu_topology *t, const struct mgpu_known_device *known,
                       const struct mgpu_gpu_facts *facts)
{
    struct mgpu_device_kind *kind = &t->kind[t->kinds];
    mgpu_kind_of_gpu(kind, known, facts);
    const char *other = kind->stands_for ? kind->stands_for : "";
    for (int k = 0; k < t->kinds; k++) {
        const char *stands_for = t->kind[k].stands_for ? t->kind[k].stands_for : "";
        if (!strcmp(t->kind[k].name, known->name) && !strcmp(stands_for, other))
            return k;
    }
    if (kind->stands_for)
        kind->stands_for = mgpu_arena_string(t->arena, other);
    return t->kinds++;
}

/* *gpu: what known one it is, or is most like. */
static int add_gpu(struct mgpu_topology *t, int i, int number, const struct mgpu_known_device **gpu)
{
    struct mgpu_gpu_facts facts;
    MGPU_TRY(mgpu_cuda_facts(&facts, number));
    *gpu = mgpu_known_gpu(&facts);
    t->device[i].kind = kind_of_gpu(t, *gpu, &facts);
    t->device[i].memory = facts.memory;
    return 0;
}

/* *gpu: NULL where all are CPUs. */
static int add_here(struct mgpu_topology *t, const struct mgpu_rank_device *here,
                    const struct mgpu_known_device **gpu)
{
    *gpu = NULL;
    t->kinds = 0;
    for (int i = 0; i < t->devices; i++) {
        struct mgpu_topology_device *d = &t->device[i];
        snprintf(d->name, sizeof d->name, "%s", here[i].name);
        if (here[i].gpu >= 0) {
            MGPU_TRY(add_gpu(t, i, here[i].gpu, gpu));
            continue;
        }
        d->kind = kind_of_threads(t, here[i].threads, t->devices);
        d->memory = machine_memory() / t->devices;
    }
    return 0;
}

/* They share its memory. */
static void share_gpus(struct mgpu_topology *t)
{
    for (int i = 0; i < t->devices; i++)
        if (ranks_of(t, i))
            t->device[i].memory /= ranks_of(t, i);
}

/* Ranks of one GPU copy and sum in its memory. How other devices are joined nobody asked: PCIe. */
static void links_here(struct mgpu_topology *t, const struct mgpu_known_device *gpu)
{
    bool one = true;
    for (int i = 1; i < t->devices; i++)
        one = one && !strcmp(t->device[i].name, t->device[0].name);
    if (!gpu) {
        cpu_links(t);
    } else if (one) {
        mgpu_links_inside(t, t->kind[0].bytes / 2, t->kind[0].launch_ms, true);
        mgpu_fabric_plain(&t->fabric, t->kind[0].bytes / 3, t->kind[0].launch_ms, 0);
    } else {
        gpu_links(t, &(struct short_name){.machines = 1, .devices = t->devices, .known = gpu});
    }
}

/* The machine that is planned for may be another one. */
static int read_here(struct mgpu_rank_device **here, int *count, const char *spec)
{
    int rc = mgpu_devices_option(here, count, spec, 0);
    if (rc != MGPU_EDEVICE)
        return rc;
    return mgpu_fail(rc,
                     "%s; to plan for GPUs that are not here, name their kind: --devices h100, "
                     "8xh100-nvlink (--list-devices)",
                     mgpu_error());
}

static int parse_here(struct mgpu_topology **out, const char *spec)
{
    const struct mgpu_known_device *gpu;
    struct mgpu_rank_device *here;
    int count;
    MGPU_TRY(read_here(&here, &count, spec));
    struct mgpu_topology *t = mgpu_topology_new(spec, count, count);
    int rc = add_here(t, here, &gpu);
    free(here);
    if (rc < 0) {
        mgpu_topology_free(t);
        return rc;
    }
    count_ranks(t);
    share_gpus(t);
    links_here(t, gpu);
    t->present = true;
    *out = t;
    return 0;
}

/* ---- Specs ----------------------------------------------------------------------------------- */

static bool is_file(const char *spec)
{
    size_t n = strlen(spec);
    return strchr(spec, '/') || (n > 5 && !strcmp(spec + n - 5, ".json"));
}

/* GPUs that are here are called "cuda", which someone who asks for "gpu" is told. */
static int parse_name(struct mgpu_topology **out, const char *spec)
{
    static const char *const here[] = {"cpu", "cuda", "gpu"};
    for (int i = 0; i < 3; i++)
        if (!strncmp(spec, here[i], strlen(here[i])))
            return parse_here(out, spec);
    return parse_short(out, spec);
}

int mgpu_topology_parse(struct mgpu_topology **out, const char *spec)
{
    *out = NULL;
    if (!*spec)
        return mgpu_fail(MGPU_EUSAGE, "--devices: nothing is named");
    if (is_file(spec))
        return mgpu_prefix(mgpu_topology_json(out, spec), "--devices");
    char *name = mgpu_xstrdup(spec);
    for (char *c = name; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    int rc = parse_name(out, name);
    free(name);
    return rc;
}
