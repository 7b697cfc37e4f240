/* Profiles: what is kept, files, hashes, hostile files; and measuring a small model here. */
#include "partitioner/live.h"
#include "partitioner/measure.h"
#include "partitioner/profile.h"
#include "partitioner/signature.h"
#include "runtime/compile/storage.h"
#include "runtime/compile/program.h"
#include "tests/partitioner/plan_models.h"
#include "tests/test.h"

static const char path[] = "test_profile_tmp.json";

static const struct mgpu_node *first(const struct mgpu_graph *g, const char *op)
{
    for (int i = 0; i < g->node_count; i++)
        if (!strcmp(g->nodes[i]->op->name, op))
            return g->nodes[i];
    CHECK_(false, "no node %s", op);
    exit(test_end());
}

static struct mgpu_device_kind cpu(int threads, int busy)
{
    return (struct mgpu_device_kind){.name = "cpu", .threads = threads, .busy = busy};
}

static void check_signature(const struct mgpu_graph *g)
{
    char text[MGPU_SIGNATURE_TEXT];
    CHECK_(!strcmp(mgpu_node_signature(text, first(g, "matmul")),
                   "matmul{transpose_a=0 transpose_b=0 relu=0 sums=a} float[8,64] float[64,128] -> "
                   "float[8,128]"),
           "%s", text);
    mgpu_node_signature(text, first(g, "update"));
    CHECK_(strstr(text, "kind=adam") && strstr(text, " lr=* ") && strstr(text, "float[64,128]"),
           "%s", text);
    CHECK_(!strstr(text, "0.001"), "%s", text); /* no time depends on the learning rate */
}

/* A node with more operands than fit: cut, but not the same for other operands. */
static void check_long_signature(void)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim one = mgpu_dim_const(1), two = mgpu_dim_const(2);
    struct mgpu_value *in[200], *out;
    char a[MGPU_SIGNATURE_TEXT], b[MGPU_SIGNATURE_TEXT];
    for (int i = 0; i < 200; i++)
        in[i] = mgpu_graph_input(g, "x", MGPU_FLOAT, 1, &one);
    CHECK_OK(mgpu_graph_node(g, mgpu_op_find("global_norm"), NULL, 200, in, 1, &out));
    mgpu_node_signature(a, out->producer);
    in[199] = mgpu_graph_input(g, "x", MGPU_FLOAT, 1, &two);
    CHECK_OK(mgpu_graph_node(g, mgpu_op_find("global_norm"), NULL, 200, in, 1, &out));
    mgpu_node_signature(b, out->producer);
    CHECK(strlen(a) == MGPU_SIGNATURE_TEXT - 1 && strlen(b) == strlen(a) && strcmp(a, b));
    CHECK(!strncmp(a, b, MGPU_SIGNATURE_TEXT - 20));
    mgpu_graph_free(g);
}

static void check_table(const struct mgpu_graph *g)
{
    struct mgpu_profile *p = mgpu_profile_new();
    const struct mgpu_node *matmul = first(g, "matmul");
    struct mgpu_device_kind one = cpu(1, 1), two = cpu(1, 2), gpu = {.name = "h100"};
    CHECK(mgpu_profile_ms(p, &one, matmul) < 0);
    mgpu_profile_set(p, 1, 1, matmul, 2.5);
    mgpu_profile_set(p, 1, 2, matmul, 3.5);
    CHECK(mgpu_profile_ms(p, &one, matmul) == 2.5 && mgpu_profile_ms(p, &two, matmul) == 3.5);
    CHECK(mgpu_profile_ms(p, &gpu, matmul) < 0);
    CHECK(mgpu_profile_ms(p, &one, first(g, "update")) < 0);
    mgpu_profile_set(p, 1, 1, matmul, 1.5);
    CHECK(mgpu_profile_ms(p, &one, matmul) == 1.5);
    mgpu_profile_set(p, 1, 1, first(g, "update"), 1);
    mgpu_profile_set(p, 1, 3, first(g, "update"), 5);
    CHECK_NEAR(mgpu_profile_ms(p, &two, first(g, "update")), 3, 1e-12); /* 1 of 2 others works */
    mgpu_profile_free(p);
}

static const struct mgpu_profile_ranks PAIR = {.threads = 1,
                                               .ranks = 2,
                                               .all_reduce_ms = 0.05,
                                               .all_reduce_gb_s = 4,
                                               .copy_ms = 0.02,
                                               .copy_gb_s = 8,
                                               .step_ms = 0.1,
                                               .check_gb_s = 10};

static void check_links(void)
{
    struct mgpu_profile *p = mgpu_profile_new();
    struct mgpu_topology *t, *gpus;
    CHECK_OK(mgpu_topology_parse(&t, "2xcpu"));
    CHECK_OK(mgpu_topology_parse(&gpus, "8xh100"));
    CHECK(!mgpu_profile_links(p, t));
    mgpu_profile_set_ranks(p, &PAIR);
    CHECK(mgpu_profile_links(p, t) && !mgpu_profile_links(p, gpus));
    struct mgpu_ring ring = mgpu_ring_of(t, NULL, 2);
    CHECK_NEAR(mgpu_all_reduce_ms(&ring, 4e6), 0.05 + 1, 1e-12);
    CHECK_NEAR(mgpu_transfer_ms(t, 0, 1, 8e6), 0.02 + 1, 1e-12);
    /* start, 8 MB of samples at 8 GB/s, 20 MB of gradients at 10 GB/s */
    CHECK_NEAR(mgpu_host_ms(p, &t->kind[0], 8000000, 20000000), 0.1 + 1 + 2, 1e-12);
    CHECK(mgpu_host_ms(p, &gpus->kind[0], 8000000, 20000000) == 0);
    CHECK(mgpu_host_ms(NULL, &t->kind[0], 0, 0) > 0);
    mgpu_topology_free(gpus);
    mgpu_topology_free(t);
    mgpu_profile_free(p);
}

static void check_file(const struct mgpu_graph *g)
{
    char hash[3][MGPU_PROFILE_HASH];
    struct mgpu_profile *p[3] = {mgpu_profile_new(), mgpu_profile_new(), NULL};
    struct mgpu_device_kind one = cpu(1, 1), four = cpu(4, 2);
    const struct mgpu_node *a = first(g, "matmul"), *b = first(g, "update");
    mgpu_profile_set(p[0], 1, 1, a, 0.125);
    mgpu_profile_set(p[0], 4, 2, b, 1.0 / 3);
    mgpu_profile_set_ranks(p[0], &PAIR);
    mgpu_profile_set_plan(p[0], "2b", 3.5);
    mgpu_profile_set_plan(p[0], "1a", 2.5);
    mgpu_profile_set_ranks(p[1], &PAIR); /* the same in another order */
    mgpu_profile_set_plan(p[1], "1a", 9);
    mgpu_profile_set_plan(p[1], "2b", 3.5);
    mgpu_profile_set_plan(p[1], "1a", 2.5);
    mgpu_profile_set(p[1], 4, 2, b, 1.0 / 3);
    mgpu_profile_set(p[1], 1, 1, a, 0.125);
    CHECK_OK(mgpu_profile_write(p[0], path));
    CHECK_OK(mgpu_profile_read(&p[2], path));
    for (int i = 0; i < 3; i++)
        mgpu_profile_hash(p[i], hash[i]);
    CHECK(strlen(hash[0]) == 16 && !strcmp(hash[0], hash[1]) && !strcmp(hash[0], hash[2]));
    CHECK(mgpu_profile_ms(p[2], &one, a) == 0.125);
    CHECK_NEAR(mgpu_profile_ms(p[2], &four, b), 1.0 / 3, 1e-6);
    CHECK(!memcmp(mgpu_profile_ranks(p[2], 1, 2), &PAIR, sizeof PAIR));
    CHECK(mgpu_profile_ranks(p[2], 2, 2) == NULL);
    CHECK(mgpu_profile_plan_ms(p[2], "1a") == 2.5 && mgpu_profile_plan_ms(p[2], "3c") < 0);
    CHECK(!strcmp(mgpu_profile_machine(p[2]), mgpu_profile_machine(p[0])));
    mgpu_profile_set(p[1], 1, 1, a, 0.126);
    mgpu_profile_hash(p[1], hash[1]);
    CHECK(strcmp(hash[0], hash[1]));
    for (int i = 0; i < 3; i++)
        mgpu_profile_free(p[i]);
    remove(path);
}

static void check_refused(void)
{
    static const struct {
        const char *json, *message;
    } cases[] = {
        {"{", "ends too early"},
        {"{\"version\": 3}", "'version' must be"},
        {"{\"version\": 1, \"nodes\": [], \"ranks\": []}", "'machine' is missing"},
        {"{\"version\": 1, \"machine\": \"m\", \"nodes\": {}, \"ranks\": []}",
         "'nodes' must be a list"},
        {"{\"version\": 1, \"machine\": \"m\", \"nodes\": [{\"threads\": 0, \"busy\": 1, "
         "\"node\": \"x\", \"ms\": 1}], \"ranks\": []}",
         "nodes[0]: 'threads' must be"},
        {"{\"version\": 1, \"machine\": \"m\", \"nodes\": [{\"threads\": 1, \"busy\": 1, "
         "\"node\": \"x\", \"ms\": -1}], \"ranks\": []}",
         "nodes[0]: 'ms' must be"},
        {"{\"version\": 1, \"machine\": \"m\", \"nodes\": [{\"threads\": 1, \"busy\": 1, "
         "\"node\": 7, \"ms\": 1}], \"ranks\": []}",
         "nodes[0]: 'node' must be a text"},
        {"{\"version\": 1, \"machine\": \"m\", \"nodes\": [], \"ranks\": [{\"threads\": 1}]}",
         "ranks[0]: 'ranks' is missing"},
        {"{\"version\": 1, \"machine\": \"m\", \"nodes\": [], \"ranks\": [], \"plans\": [{\"ms\": "
         "2}]}",
         "plans[0]: 'plan' is missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mgpu_profile *p;
        FILE *f = fopen(path, "w");
        fputs(cases[i].json, f);
        fclose(f);
        CHECK_FAILS(mgpu_profile_read(&p, path), cases[i].message);
        CHECK(p == NULL && !strncmp(mgpu_error(), path, strlen(path)));
    }
    remove(path);
}

/* ---- Measuring ------------------------------------------------------------------------------- */

static void note_progress(void *context, const char *what, double share)
{
    int *calls = context;
    CHECK(what && share >= 0 && share <= 1);
    ++*calls;
}

static void check_measure(int ranks)
{
    struct plan_model model = {plan_two_towers, 8};
    struct mgpu_rank_device *device;
    int count, calls = 0;
    CHECK_OK(mgpu_devices_parse(&device, &count, ranks == 1 ? "cpu:0" : "cpu:0,cpu:1", 1));
    struct mgpu_measure m = {.graph = plan_graph_again,
                             .context = &model,
                             .device = device,
                             .ranks = ranks,
                             .seconds = 0.01,
                             .progress = note_progress,
                             .progress_context = &calls};
    struct mgpu_profile *p = mgpu_profile_new();
    CHECK_OK(mgpu_measure(p, &m));
    CHECK(calls > 3);
    struct mgpu_graph *g = plan_graph(model.text, model.batch);
    CHECK_OK(mgpu_optimize(g, &mgpu_backend_cpu));
    struct mgpu_device_kind kind = cpu(1, ranks);
    bool *live = calloc((size_t)g->node_count, sizeof *live);
    mgpu_find_live(g, live);
    for (int i = 0; i < g->node_count; i++)
        if (live[i] && !mgpu_is_view(g->nodes[i])) {
            double ms = mgpu_profile_ms(p, &kind, g->nodes[i]);
            CHECK_(ms > 0 && ms < 1e4, "%s takes %g ms", g->nodes[i]->op->name, ms);
        }
    const struct mgpu_profile_ranks *r = mgpu_profile_ranks(p, 1, ranks);
    CHECK(r && r->step_ms > 0 && r->check_gb_s > 0);
    CHECK(r && (ranks == 1 || (r->all_reduce_gb_s > 0 && r->copy_gb_s > 0)));
    calls = 0; /* all is known: no step runs again */
    CHECK_OK(mgpu_measure(p, &m));
    CHECK(calls == 0);
    free(live);
    free(device);
    mgpu_graph_free(g);
    mgpu_profile_free(p);
}

static int no_graph(struct mgpu_graph **out, void *context)
{
    (void)context;
    *out = NULL;
    return mgpu_fail(MGPU_EINVALID, "no graph today");
}

static void check_measure_fails(void)
{
    struct mgpu_rank_device *device;
    int count;
    CHECK_OK(mgpu_devices_parse(&device, &count, "cpu:0", 1));
    struct mgpu_measure m = {.graph = no_graph, .device = device, .ranks = 1};
    struct mgpu_profile *p = mgpu_profile_new();
    CHECK_FAILS(mgpu_measure(p, &m), "no graph today");
    free(device);
    mgpu_profile_free(p);
}

int main(void)
{
    struct mgpu_graph *g = plan_graph(plan_two_towers, 8);
    check_signature(g);
    check_long_signature();
    check_table(g);
    check_links();
    check_file(g);
    check_refused();
    check_measure(1);
    check_measure(2);
    check_measure_fails();
    mgpu_graph_free(g);
    return test_end();
}
