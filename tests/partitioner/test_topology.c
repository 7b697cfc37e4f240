/* Devices by name and by file, and what links and collectives cost. */
#include "partitioner/topology_private.h"
#include "runtime/cuda/cuda.h"
#include "runtime/executor/devices.h"
#include "tests/test.h"

static struct mgpu_topology *parse(const char *spec)
{
    struct mgpu_topology *t = NULL;
    CHECK_OK(mgpu_topology_parse(&t, spec));
    return t;
}

static struct mgpu_topology *parse_text(const char *json)
{
    struct mgpu_topology *t = NULL;
    const char *path = "test_topology_tmp.json";
    FILE *f = fopen(path, "w");
    fputs(json, f);
    fclose(f);
    int rc = mgpu_topology_parse(&t, path);
    remove(path);
    CHECK((rc < 0) == (t == NULL));
    return t;
}

static void check_short_names(void)
{
    struct mgpu_topology *t = parse("8xh100-nvlink");
    CHECK(t->devices == 8 && t->kinds == 1 && !t->present);
    CHECK(!strcmp(t->kind[0].name, "h100"));
    CHECK(!strcmp(t->device[7].name, "cuda:7") && mgpu_topology_find(t, "cuda:7") == 7);
    CHECK(mgpu_topology_find(t, "cuda:8") == -1);
    CHECK(t->kind[0].flops[MGPU_RATE_HALF] == 989e12 && t->kind[0].flops[MGPU_RATE_F32] == 67e12);
    CHECK(t->kind[0].bytes == 3350e9 && t->device[0].memory == (int64_t)80 << 30);
    /* 371 GB/s point to point and 3 us */
    CHECK_NEAR(mgpu_transfer_ms(t, 0, 5, 371e6), 1.003, 1e-12);
    CHECK(mgpu_transfer_ms(t, 2, 2, 1e9) == 0);
    CHECK(t->link[0 * 8 + 1].channel == t->link[0 * 8 + 2].channel);
    CHECK(t->link[0 * 8 + 1].channel != t->link[1 * 8 + 0].channel);
    mgpu_topology_free(t);

    t = parse("4xa100-80-pcie");
    CHECK(t->kind[0].bytes == 2039e9 && t->device[0].memory == (int64_t)80 << 30);
    CHECK_NEAR(mgpu_transfer_ms(t, 0, 1, 24e6), 1.003, 1e-12);
    CHECK(t->link[1].channel == t->link[2 * 4 + 3].channel); /* one bus */
    mgpu_topology_free(t);

    t = parse("2x8xh100-ib");
    CHECK(t->devices == 16 && t->device[7].node == 0 && t->device[8].node == 1);
    CHECK(!strcmp(t->device[9].name, "n1/cuda:1"));
    CHECK_NEAR(mgpu_transfer_ms(t, 0, 8, 48e6), 1.015, 1e-12); /* 400 Gb/s */
    CHECK_NEAR(mgpu_transfer_ms(t, 8, 9, 371e6), 1.003, 1e-12);
    CHECK(t->link[0 * 16 + 8].channel != t->link[1 * 16 + 8].channel); /* an adapter each */
    mgpu_topology_free(t);

    t = parse("4x4xv100-pcie-eth25");
    CHECK_NEAR(mgpu_transfer_ms(t, 0, 15, 3e6), 1.015, 1e-12);
    CHECK(t->link[0 * 16 + 8].channel == t->link[1 * 16 + 8].channel); /* one adapter for all */
    mgpu_topology_free(t);

    t = parse("128x8xh100");
    CHECK(t->devices == 1024);
    mgpu_topology_free(t);

    t = parse("2xH100-NVLink");
    CHECK(t->devices == 2 && !strcmp(t->kind[0].name, "h100"));
    mgpu_topology_free(t);

    t = parse("CPU");
    CHECK(t->devices == 1 && !strcmp(t->device[0].name, "cpu"));
    mgpu_topology_free(t);

    t = parse("3xcpu");
    CHECK(t->devices == 3 && t->kind[0].threads == 1 && t->kind[0].busy == 3);
    CHECK(!strcmp(t->device[2].name, "cpu:2"));
    mgpu_topology_free(t);
}

static void check_refused_names(void)
{
    struct mgpu_topology *t;
    CHECK_FAILS(mgpu_topology_parse(&t, ""), "nothing is named");
    CHECK_FAILS(mgpu_topology_parse(&t, "8xh10-nvlink"), "did you mean 'h100'");
    CHECK_FAILS(mgpu_topology_parse(&t, "8xt4-nvlink"), "t4 has no NVLink");
    CHECK_FAILS(mgpu_topology_parse(&t, "8xh100-nvlnk"), "did you mean 'nvlink'");
    CHECK_FAILS(mgpu_topology_parse(&t, "8xh100-ib"), "write 2x8xh100-ib for two");
    CHECK_FAILS(mgpu_topology_parse(&t, "2x8xh100-ib0"), "unknown link");
    CHECK_FAILS(mgpu_topology_parse(&t, "2x8xh100-ib2x"), "unknown link");
    CHECK_FAILS(mgpu_topology_parse(&t, "2x8xh100-ib1e400"), "unknown link");
    CHECK_FAILS(mgpu_topology_parse(&t, "2x8xh100-ib-eth25"), "one network, not two");
    CHECK_FAILS(mgpu_topology_parse(&t, "8xh100-nvlink-pcie"), "not both");
    CHECK_FAILS(mgpu_topology_parse(&t, "2000xh100"), "more than 1024 devices");
    CHECK_FAILS(mgpu_topology_parse(&t, "999999999999999999999xh100"), "more than 1024");
    CHECK_FAILS(mgpu_topology_parse(&t, "1024x1024xh100"), "more than 1024");
    CHECK_FAILS(mgpu_topology_parse(&t, "0xh100"), "unknown device");
    CHECK_FAILS(mgpu_topology_parse(&t, "2x2xcpu"), "one machine");
    CHECK_FAILS(mgpu_topology_parse(&t, "2xcpu-nvlink"), "take no link");
    if (mgpu_cuda_check(0) < 0)
        CHECK_FAILS(mgpu_topology_parse(&t, "cuda:0"),
                    "; for the CPU, type --devices cpu; to plan for GPUs that are not here, name "
                    "their kind");
    CHECK_FAILS(mgpu_topology_parse(&t, "gpu"), "'gpu' is no device here; use cuda:0, cpu");
    CHECK_FAILS(mgpu_topology_parse(&t, "cpu:x"), "needs a device number");
    CHECK_FAILS(mgpu_topology_parse(&t, "no/such.json"), "No such file");
    CHECK(t == NULL);
}

static void check_gpu_names(void)
{
    static const struct {
        const char *name;
        int sm, gib, gb_s;
        const char *row;
    } rows[] = {
        {"NVIDIA H100 80GB HBM3", 90, 79, 3352, "h100"},
        {"NVIDIA A100-SXM4-40GB", 80, 39, 1555, "a100"},
        {"NVIDIA A100 80GB PCIe", 80, 79, 1935, "a100-80"},
        {"Tesla V100-SXM2-32GB", 70, 31, 898, "v100-32"},
        {"NVIDIA GeForce RTX 4090", 89, 23, 1008, "rtx4090"},
        {"Tesla T4", 75, 15, 320, "t4"},
        {"NVIDIA T400", 75, 4, 80, "t4"}, /* no T4, but of its kind */
        {"NVIDIA GeForce RTX 3090", 86, 23, 936, "rtx4090"},
        {"NVIDIA GeForce RTX 5090", 120, 31, 1792, "a100-80"}, /* newer than a b200, not as fast */
        {"NVIDIA L4", 89, 22, 300, "t4"},
        {"NVIDIA A10", 86, 22, 600, "l40s"},
        {"NVIDIA RTX 6000 Ada Generation", 89, 47, 960, "rtx4090"},
        {"NVIDIA GB300", 103, 278, 8000, "b200"},
        {"NVIDIA GB300", 103, 278, 0, "b200"}, /* a driver that does not say */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct mgpu_gpu_facts gpu = {
            .sm = rows[i].sm, .memory = (int64_t)rows[i].gib << 30, .bytes = 1e9 * rows[i].gb_s};
        snprintf(gpu.name, sizeof gpu.name, "%s", rows[i].name);
        const struct mgpu_known_device *k = mgpu_known_gpu(&gpu);
        CHECK_(k && !strcmp(k->name, rows[i].row), "%s is %s", rows[i].name, k ? k->name : "?");
    }
}

/* A name is not all: what the driver says scales the numbers where it is far from the table's. */
static void check_scaled(void)
{
    static const struct {
        const char *name;
        int sm;
        double gib, gb_s, processors, mhz;
        double share, want_gb_s; /* of the row's FLOP/s; 0: not scaled */
    } rows[] = {
        {"NVIDIA H100 80GB HBM3", 90, 79.2, 3352, 132, 1980, 0, 3350},
        {"NVIDIA H200", 90, 139.8, 4917, 132, 1980, 0, 4800},
        {"NVIDIA B200", 100, 178.4, 7672, 148, 1965, 0, 7700},
        {"NVIDIA A100-SXM4-40GB", 80, 39.4, 1555, 108, 1410, 0, 1555},
        {"NVIDIA A100 80GB PCIe", 80, 79.2, 1935, 108, 1410, 0, 2039},
        {"Tesla V100-SXM2-16GB", 70, 15.8, 898, 80, 1530, 0, 900},
        {"Tesla T4", 75, 14.6, 320, 40, 1590, 0, 300},
        {"NVIDIA L40S", 89, 44.5, 864, 142, 2520, 0, 864},
        {"NVIDIA GeForce RTX 4090", 89, 23.5, 1008, 128, 2520, 0, 1008},
        {"NVIDIA GeForce RTX 4090", 89, 23.5, 0, 0, 0, 0, 1008}, /* a driver that does not say */
        {"NVIDIA H100 PCIe", 90, 79.2, 2039, 114, 1755, 0.764, 2039},
        {"NVIDIA GeForce RTX 4090 Laptop GPU", 89, 15.7, 576, 76, 2040, 0.4805, 576},
        {"NVIDIA A100-SXM4-40GB MIG 1g.5gb", 80, 4.75, 1555, 14, 1410, 0.1296, 184.7},
        {"NVIDIA A100-SXM4-40GB MIG 1g.5gb", 80, 4.75, 194, 14, 1410, 0.1296, 184.7},
        {"NVIDIA A100-SXM4-80GB MIG 1g.10gb", 80, 9.5, 2039, 14, 1410, 0.1296, 242.1},
        {"NVIDIA A100-SXM4-40GB MIG 7g.40gb", 80, 39.25, 1555, 98, 1410, 0.907, 1526},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct mgpu_gpu_facts gpu = {.sm = rows[i].sm,
                                     .memory = (int64_t)(rows[i].gib * 0x1p30),
                                     .bytes = 1e9 * rows[i].gb_s,
                                     .cycles = 1e6 * rows[i].mhz * rows[i].processors};
        struct mgpu_device_kind whole, kind;
        snprintf(gpu.name, sizeof gpu.name, "%s", rows[i].name);
        mgpu_kind_of_known(&whole, mgpu_known_gpu(&gpu));
        mgpu_kind_of_gpu(&kind, mgpu_known_gpu(&gpu), &gpu);
        double share = rows[i].share ? rows[i].share : 1;
        CHECK_(kind.scaled == (rows[i].share > 0) && !kind.stands_for == !kind.scaled, "%s",
               rows[i].name);
        CHECK_NEAR(kind.bytes, rows[i].want_gb_s * 1e9, 1e-3);
        for (int r = 0; r < MGPU_RATES; r++)
            CHECK_NEAR(kind.flops[r], share * whole.flops[r], 2e-3);
    }
}

static void check_here(void)
{
    struct mgpu_rank_device *here;
    int count;
    CHECK_OK(mgpu_devices_parse(&here, &count, "cpu:0,cpu:1", 0));
    struct mgpu_topology *t = parse("cpu:0,cpu:1");
    CHECK(t->present && t->devices == 2 && count == 2);
    CHECK(t->kind[t->device[1].kind].threads == here[1].threads);
    CHECK(!strcmp(t->device[1].name, "cpu:1"));
    CHECK(t->device[0].memory > 0 && t->device[0].memory == t->device[1].memory);
    struct mgpu_topology *one = mgpu_topology_first(t, 1, 1);
    CHECK(one->devices == 1 && one->kind[0].busy == 1 && t->kind[0].busy == 2);
    CHECK(!strcmp(one->device[0].name, "cpu:0") && one->device[0].memory == t->device[0].memory);
    mgpu_topology_free(one);
    mgpu_topology_free(t);
    free(here);
}

/* ---- Collectives ----------------------------------------------------------------------------- */

static double all_reduce(const struct mgpu_topology *t, int count, double bytes)
{
    struct mgpu_ring g = mgpu_ring_of(t, NULL, count);
    return mgpu_all_reduce_ms(&g, bytes);
}

static void check_all_reduce(void)
{
    struct mgpu_topology *t = parse("8xa100-nvlink");
    CHECK(all_reduce(t, 1, 1e9) == 0);
    /* a large one: a ring of Simple, 8.4 + 14 * 3.4 us and 2*7/8 of the bytes at 220 GB/s */
    CHECK_NEAR(all_reduce(t, 8, 1e9), (8.4 + 14 * 3.4) * 1e-3 + 1.75e9 / 220e9 * 1e3, 1e-12);
    CHECK_NEAR(all_reduce(t, 2, 1e9), (8.4 + 2 * 3.4) * 1e-3 + 1e9 / 220e9 * 1e3, 1e-12);
    /* a small one: LL, 6.6 + 14 * 0.6 us, a quarter of the bandwidth */
    CHECK_NEAR(all_reduce(t, 8, 1e3), (6.6 + 14 * 0.6) * 1e-3 + 1750 / 55e9 * 1e3, 1e-12);
    double last = 0;
    for (double bytes = 1; bytes < 1e11; bytes *= 1.7) {
        double ms = all_reduce(t, 8, bytes);
        CHECK(ms >= last);
        last = ms;
    }
    struct mgpu_ring g = mgpu_ring_of(t, NULL, 8);
    CHECK_NEAR(mgpu_all_gather_ms(&g, 1e9), (8.4 + 7 * 3.4) * 1e-3 + 0.875e9 / 220e9 * 1e3, 1e-12);
    mgpu_topology_free(t);
}

/* Measured on 8 H100: 480 GB/s bus bandwidth from 1 GB on when the switch sums. */
static void check_switch(void)
{
    struct mgpu_topology *t = parse("8xh100-nvlink");
    CHECK_NEAR(all_reduce(t, 8, 1e9), 25e-3 + 1.75e9 / 475e9 * 1e3, 1e-12);
    CHECK_NEAR(all_reduce(t, 2, 1e9), (8.4 + 2 * 3.4) * 1e-3 + 1e9 / 370e9 * 1e3, 1e-12);
    mgpu_topology_free(t);
}

static void check_machines(void)
{
    struct mgpu_topology *t = parse("2x8xh100-ib");
    /* all adapters of a machine carry a ring: 8 x 48 > 370 GB/s; 2 of 30 steps cross, x 1.4 */
    double latency = (8.4 + 28 * 3.4 + 2 * 14) * 1.4e-3;
    CHECK_NEAR(all_reduce(t, 16, 4e9), latency + 2 * 15.0 / 16 * 4e9 / 370e9 * 1e3, 1e-12);
    int pair[] = {0, 8}; /* one device a machine: one adapter */
    struct mgpu_ring g = mgpu_ring_of(t, pair, 2);
    CHECK(g.machines == 2 && g.bandwidth == 48e9 && !g.in_switch);
    CHECK_NEAR(mgpu_all_reduce_ms(&g, 1e9), (8.4 + 2 * 14) * 1.4e-3 + 1e9 / 48e9 * 1e3, 1e-12);
    int uneven[] = {0, 1, 2, 8};
    g = mgpu_ring_of(t, uneven, 4);
    CHECK(g.bandwidth == 48e9);
    int turned[] = {8, 2, 0, 1};
    struct mgpu_ring h = mgpu_ring_of(t, turned, 4);
    CHECK(h.bandwidth == g.bandwidth && h.machines == g.machines);
    mgpu_topology_free(t);

    /* many small machines: a tree has log2(32) = 5 hops where a ring has 62 */
    t = parse("32x1xa100-ib200");
    double tree = 6.6e-3 + 2 * 5 * 5e-3 + 2 * 1e3 / (0.92 * 24e9 * 0.25) * 1e3;
    CHECK_NEAR(all_reduce(t, 32, 1e3), tree, 1e-12);
    mgpu_topology_free(t);
}

static void check_pcie(void)
{
    struct mgpu_topology *t = parse("2xrtx4090");
    /* no direct copies: 42 us at least, 20 GB/s */
    CHECK_NEAR(all_reduce(t, 2, 1e9), (42 + 2 * 5.7) * 1e-3 + 1e9 / 20e9 * 1e3, 1e-12);
    mgpu_topology_free(t);
    t = parse("8xl40s");
    CHECK_NEAR(all_reduce(t, 8, 1e9), (8.4 + 14 * 5.7) * 1e-3 + 1.75e9 / 10e9 * 1e3, 1e-12);
    mgpu_topology_free(t);
}

/* ---- Files ----------------------------------------------------------------------------------- */

static void check_file(void)
{
    struct mgpu_topology *t = parse_text(
        "{\"version\": 1,"
        " \"kinds\": [{\"name\": \"mine\", \"like\": \"h100\", \"tflops\": {\"f32\": 60},"
        "             \"memory_gb_s\": 3000, \"memory_gib\": 40, \"launch_us\": 5,"
        "             \"efficiency\": {\"compute\": 0.5}, \"interference\": 2}],"
        " \"devices\": [{\"name\": \"cuda\", \"count\": 2, \"kind\": \"mine\"},"
        "              {\"name\": \"old\", \"kind\": \"a100\", \"machine\": 1, \"memory_gib\": "
        "20}],"
        " \"inside\": {\"gb_s\": 100, \"latency_us\": 2, \"all_reduce_gb_s\": 80},"
        " \"between\": {\"gb_s\": 10, \"latency_us\": 20, \"adapters\": 1},"
        " \"links\": [{\"from\": \"cuda:1\", \"to\": \"cuda:0\", \"gb_s\": 50}]}");
    if (!t)
        return;
    CHECK(t->devices == 3 && t->kinds == 2 && !t->present);
    const struct mgpu_device_kind *k = &t->kind[t->device[1].kind];
    CHECK(!strcmp(k->name, "mine") && k->flops[MGPU_RATE_F32] == 60e12 && k->bytes == 3000e9);
    CHECK(k->flops[MGPU_RATE_HALF] == 989e12 && k->efficiency_compute == 0.5);
    CHECK(k->efficiency_memory == 0.7 && k->interference == 2);
    CHECK_NEAR(k->launch_ms, 5e-3, 1e-15);
    CHECK(t->device[0].memory == (int64_t)40 << 30 && t->device[2].memory == (int64_t)20 << 30);
    CHECK_NEAR(mgpu_transfer_ms(t, 0, 1, 1e9), 10.002, 1e-12);
    CHECK_NEAR(mgpu_transfer_ms(t, 1, 0, 1e9), 20.002, 1e-12);
    CHECK_NEAR(mgpu_transfer_ms(t, 0, 2, 1e9), 100.02, 1e-12);
    CHECK_NEAR(all_reduce(t, 2, 1e9), 2 * 2e-3 + 1e9 / 50e9 * 1e3, 1e-12);
    mgpu_topology_free(t);
}

#define DEVICES "\"devices\": [{\"name\": \"a\", \"count\": 2, \"kind\": \"h100\"}]"
#define INSIDE  "\"inside\": {\"gb_s\": 1}"

static void check_refused_files(void)
{
    static const struct {
        const char *json, *message;
    } cases[] = {
        {"", "ends too early"},
        {"[1]", "must hold one object"},
        {"{\"version\": 1,\n \"devices\" 3}", "line 2"},
        {"{\"version\": 2, " DEVICES "}", "'version' must be a whole number from 1 to 1"},
        {"{" DEVICES "}", "'version' is missing"},
        {"{\"version\": 1}", "'devices' is missing"},
        {"{\"version\": 1, \"devices\": []}", "the list is empty"},
        {"{\"version\": 1, \"devices\": null}", "'devices' is null"},
        {"{\"version\": 1, \"devices\": [3]}", "entry 0 must be an object"},
        {"{\"version\": 1, " DEVICES "}", "'inside' is missing"},
        {"{\"version\": 1, \"inside\": {}, " DEVICES "}", "'gb_s' is missing"},
        {"{\"version\": 1, \"inside\": {\"gb_s\": -1}, " DEVICES "}", "inside: 'gb_s' must be"},
        {"{\"version\": 1, \"inside\": {\"gb_s\": 1, \"latency\": 1}, " DEVICES "}",
         "did you mean 'latency_us'"},
        {"{\"version\": 1, \"device\": [], " DEVICES "}", "did you mean 'devices'"},
        {"{\"version\": 1, \"devices\": [{\"name\": \"a\", \"kind\": \"zz\"}]}",
         "devices[0]: 'zz' is no kind"},
        {"{\"version\": 1, \"devices\": [{\"name\": \"a\", \"kind\": \"t4\"}, {\"name\": \"a\", "
         "\"kind\": \"t4\"}]}",
         "devices[1]: device 'a' is there twice"},
        {"{\"version\": 1, \"devices\": [{\"name\": \"a\", \"kind\": \"t4\", \"count\": 1025}]}",
         "'count' must be"},
        {"{\"version\": 1, \"devices\": [{\"name\": \"a\", \"kind\": \"t4\", \"count\": 1.5}]}",
         "'count' must be a whole number"},
        {"{\"version\": 1, \"devices\": [{\"name\": \"a\", \"kind\": \"t4\", \"count\": 1024}, "
         "{\"name\": \"b\", \"kind\": \"t4\"}]}",
         "more than 1024 devices"},
        {"{\"version\": 1, \"devices\": [{\"name\": \"0123456789012345678901234567890123\", "
         "\"kind\": \"t4\"}]}",
         "1 to 31 letters"},
        {"{\"version\": 1, \"devices\": [{\"name\": \"a,b\", \"kind\": \"t4\"}]}",
         "devices[0]: 'a,b' is not a name"},
        {"{\"version\": 1, \"devices\": [{\"name\": \"all\", \"kind\": \"t4\"}]}", "not a name"},
        {"{\"version\": 1, \"kinds\": [{\"name\": \"x\"}], " DEVICES "}", "'tflops' is missing"},
        {"{\"version\": 1, \"kinds\": [{\"name\": \"h100\", \"like\": \"h100\"}], " INSIDE
         ", " DEVICES ", \"links\": [{\"from\": \"a:0\", \"to\": \"q\", \"gb_s\": 1}]}",
         "links[0]: there is no device 'q'"},
        {"{\"version\": 1, " INSIDE ", " DEVICES
         ", \"links\": [{\"from\": \"a:0\", \"to\": \"a:0\", \"gb_s\": 1}]}",
         "not two devices"},
        {"{\"version\": 1, " INSIDE ", \"devices\": [{\"name\": \"a\", \"kind\": \"t4\", "
         "\"machine\": 1}, {\"name\": \"b\", \"kind\": \"t4\"}]}",
         "machine by machine"},
        {"{\"version\": 1, " INSIDE ", \"links\": 3, " DEVICES "}", "'links' must be a list"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_(parse_text(cases[i].json) == NULL, "case %zu was accepted", i);
        CHECK_(strstr(mgpu_error(), cases[i].message) && strstr(mgpu_error(), "_tmp.json: "),
               "case %zu: %s", i, mgpu_error());
    }
}

/* Two of a, slow; then one of b; one of c, which is as fast but for its links. */
static void check_sort(void)
{
    struct mgpu_topology *t = parse_text(
        "{\"version\": 1, " INSIDE ", \"devices\": [{\"name\": \"a\", \"count\": 2, \"kind\": "
        "\"t4\"}, {\"name\": \"b\", \"kind\": \"h100\"}, {\"name\": \"c\", \"count\": 2, "
        "\"kind\": \"h100\"}], \"links\": [{\"from\": \"b\", \"to\": \"c:0\", \"gb_s\": 0.01}]}");
    CHECK(t != NULL);
    if (!t)
        return;
    double slow = mgpu_transfer_ms(t, 2, 3, 1e6), fast = mgpu_transfer_ms(t, 3, 2, 1e6);
    mgpu_topology_sort(t);
    const char *names[] = {"c:0", "c:1", "b", "a:0", "a:1"};
    for (int i = 0; i < 5; i++)
        CHECK_(!strcmp(t->device[i].name, names[i]), "%d is %s", i, t->device[i].name);
    CHECK(slow > 2 * fast && mgpu_transfer_ms(t, 2, 0, 1e6) == slow);
    CHECK(mgpu_transfer_ms(t, 0, 2, 1e6) == fast);
    mgpu_topology_free(t);
}

int main(void)
{
    check_short_names();
    check_refused_names();
    check_gpu_names();
    check_scaled();
    check_here();
    check_all_reduce();
    check_switch();
    check_machines();
    check_pcie();
    check_file();
    check_sort();
    check_refused_files();
    return test_end();
}
