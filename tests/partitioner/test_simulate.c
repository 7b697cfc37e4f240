/* Simulated steps against numbers worked out by hand. */
#include "partitioner/simulate.h"
#include "tests/partitioner/random_tasks.h"
#include "tests/test.h"

enum { F = MGPU_PHASE_FORWARD, B = MGPU_PHASE_BACKWARD, U = MGPU_PHASE_UPDATE };

/* A graph on the way to a simulation. */
struct bench {
    struct mgpu_arena *arena;
    struct mgpu_flow *flow;
    struct mgpu_replica replica;
    struct mgpu_simulator *s;
    struct mgpu_assignment a;
};

static void open_bench(struct bench *b, struct mgpu_task_graph *g, struct mgpu_topology *t,
                       int replicas, int ranks, int weights_on)
{
    b->arena = mgpu_arena_new();
    CHECK_OK(mgpu_flow_new(&b->flow, g, t->kinds, 0, t->devices));
    mgpu_replica_init(&b->replica, t, mgpu_channels(t), replicas, ranks, weights_on, b->arena);
    b->s = mgpu_simulator_new(b->flow, &b->replica);
    b->a.device = MGPU_NEW_ARRAY(b->arena, int, b->flow->groups);
    b->a.owner = MGPU_NEW_ARRAY(b->arena, int, b->flow->params);
}

static double run(struct bench *b, const int *device)
{
    for (int g = 0; g < b->flow->groups; g++)
        b->a.device[b->flow->group_at[g]] = device[g];
    mgpu_choose_owners(b->flow, &b->replica, &b->a);
    return mgpu_simulate(b->s, &b->a, INFINITY);
}

static void close_bench(struct bench *b)
{
    mgpu_simulator_free(b->s);
    mgpu_flow_free(b->flow);
    mgpu_arena_free(b->arena);
}

/* Groups 0 and 1 feed group 2; 100 bytes each way; no weights. */
static struct mgpu_task_graph *two_towers(void)
{
    struct mgpu_task_graph *g = test_graph(1, 8, 16, 3, 1);
    int f0 = test_task(g, 1, 0, F, 4, 100), f1 = test_task(g, 1, 1, F, 4, 100);
    int f2 = test_task(g, 1, 2, F, 1, 10), b2 = test_task(g, 1, 2, B, 2, 200);
    int b0 = test_task(g, 1, 0, B, 8, 0), b1 = test_task(g, 1, 1, B, 8, 0);
    test_edge(g, f0, f2, 100, 1);
    test_edge(g, f1, f2, 100, 2);
    test_edge(g, f2, b2, 10, 3);
    test_edge(g, f0, b0, 100, 1);
    test_edge(g, f1, b1, 100, 2);
    test_edge(g, b2, b0, 100, 4);
    test_edge(g, b2, b1, 100, 5);
    return g;
}

static void check_towers(void)
{
    struct mgpu_task_graph *g = two_towers();
    struct mgpu_topology *t = test_topology(2, 1, 100, 0.5, 0, 1 << 20); /* 1 ms, 0.5 ms later */
    struct bench b;
    open_bench(&b, g, t, 1, 2, -1);
    CHECK_NEAR(run(&b, (int[]){0, 0, 0}), 4 + 4 + 1 + 2 + 8 + 8, 1e-12);
    CHECK(b.s->moved == 0 && b.s->transfers == 0);
    /* tower 1 on the other device: 4, its output arrives at 5.5, head until 8.5, there and back */
    CHECK_NEAR(run(&b, (int[]){0, 1, 0}), 5.5 + 3 + 1.5 + 8, 1e-12);
    CHECK(b.s->moved == 200 && b.s->transfers == 2);
    /* device 1 holds the head alone: both tensors take one channel each, so they arrive together */
    CHECK_NEAR(run(&b, (int[]){0, 1, 1}), 5.5 + 3 + 1.5 + 8, 1e-12);
    CHECK(mgpu_simulate(b.s, &b.a, 18.0) == INFINITY);
    CHECK_NEAR(mgpu_simulate(b.s, &b.a, 18.5), 18, 1e-12);
    close_bench(&b);
    mgpu_arena_free(t->arena);
    test_graph_free(g);
}

/* Two transfers of one channel take turns; those of two channels do not. */
static void check_channels(void)
{
    struct mgpu_task_graph *g = two_towers();
    for (int channels = 0; channels < 3; channels++) {
        struct mgpu_topology *t = test_topology(3, 1, 100, 0, channels, 1 << 20);
        struct bench b;
        open_bench(&b, g, t, 1, 3, -1);
        /* towers on 1 and 2, head on 0: outputs arrive at 5 each, or at 5 and 6 over one channel;
         * gradients leave at 8 (9) over channels of their own, or one after the other */
        double expected = channels == 0   ? 5 + 3 + 1 + 8
                          : channels == 1 ? 5 + 3 + 2 + 8
                                          : 6 + 3 + 2 + 8;
        CHECK_NEAR(run(&b, (int[]){1, 2, 0}), expected, 1e-12);
        close_bench(&b);
        mgpu_arena_free(t->arena);
    }
    test_graph_free(g);
}

/* A tensor with two users on one other device goes there once. */
static void check_sent_once(void)
{
    struct mgpu_task_graph *g = test_graph(1, 4, 4, 3, 1);
    int a = test_task(g, 1, 0, F, 1, 100), x = test_task(g, 1, 1, F, 1, 0);
    int y = test_task(g, 1, 2, F, 1, 0);
    test_edge(g, a, x, 100, 7);
    test_edge(g, a, y, 100, 7);
    struct mgpu_topology *t = test_topology(2, 1, 100, 0, 2, 1 << 20);
    struct bench b;
    open_bench(&b, g, t, 1, 2, -1);
    CHECK_NEAR(run(&b, (int[]){0, 1, 1}), 1 + 1 + 2, 1e-12);
    CHECK(b.s->moved == 100);
    close_bench(&b);
    g->edge[1].value = 8; /* two tensors */
    open_bench(&b, g, t, 1, 2, -1);
    CHECK_NEAR(run(&b, (int[]){0, 1, 1}), 1 + 2 + 1, 1e-12);
    CHECK(b.s->moved == 200);
    close_bench(&b);
    mgpu_arena_free(t->arena);
    test_graph_free(g);
}

/* One weight of 300 bytes for groups 0 and 1: gradients of both are summed at the owner. */
static struct mgpu_task_graph *shared_weight(void)
{
    struct mgpu_task_graph *g = test_graph(1, 8, 8, 2, 1);
    int f0 = test_task(g, 1, 0, F, 2, 0), f1 = test_task(g, 1, 1, F, 2, 0);
    int b0 = test_task(g, 1, 0, B, 4, 0), b1 = test_task(g, 1, 1, B, 4, 0);
    int sum = test_task(g, 1, -1, B, 1, 0), update = test_task(g, 1, -1, U, 1, 0);
    test_edge(g, f0, b0, 0, 1);
    test_edge(g, f1, b1, 0, 2);
    test_edge(g, b0, sum, 300, 3);
    test_edge(g, b1, sum, 300, 4);
    test_edge(g, sum, update, 300, 5);
    test_param(g, 300, 2, (int[]){0, 1});
    return g;
}

static void check_shared(void)
{
    struct mgpu_task_graph *g = shared_weight();
    struct mgpu_topology *t = test_topology(3, 1, 100, 0.5, 0, 1 << 20);
    struct bench b;
    open_bench(&b, g, t, 1, 3, -1);
    CHECK_NEAR(run(&b, (int[]){0, 0}), 12 + 2, 1e-12);
    CHECK(mgpu_simulate_memory(b.s, &b.a) == 0 && b.s->peak[0] == 300 * 2 + 600);
    /* value 3.5, forward and backward 6, gradient 3.5, sum and update 2 */
    CHECK_NEAR(run(&b, (int[]){0, 1}), 3.5 + 6 + 3.5 + 2, 1e-12);
    CHECK(b.s->moved == 600 && b.a.owner[0] == 0);
    mgpu_simulate_memory(b.s, &b.a);
    CHECK(b.s->peak[0] == 1200 + 300); /* the other's gradient arrives beside its own */
    CHECK(b.s->peak[1] == 600 && b.s->peak[2] == 0);
    b.a.owner[0] = 1;
    CHECK_NEAR(mgpu_simulate(b.s, &b.a, INFINITY), 15, 1e-12);
    close_bench(&b);
    /* weights on a third device: both users get the value and send their gradient */
    open_bench(&b, g, t, 1, 2, 2);
    CHECK_NEAR(run(&b, (int[]){0, 1}), 3.5 + 6 + 3.5 + 2, 1e-12);
    CHECK(b.s->moved == 1200 && b.a.owner[0] == 2);
    mgpu_simulate_memory(b.s, &b.a);
    CHECK(b.s->peak[0] == 600 && b.s->peak[1] == 600 && b.s->peak[2] == 1200 + 600);
    close_bench(&b);
    mgpu_arena_free(t->arena);
    test_graph_free(g);
}

/* A chain of layers with weights of so many bytes: forward 1, backward 2, update 0.5 ms each. */
enum { LAYERS = 5 };
static struct mgpu_task_graph *layers(const int64_t *bytes)
{
    struct mgpu_task_graph *g = test_graph(1, 3 * LAYERS, 6 * LAYERS, LAYERS, LAYERS);
    int forward[LAYERS], backward[LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        forward[i] = test_task(g, 1, i, F, 1, 10);
        if (i)
            test_edge(g, forward[i - 1], forward[i], 10, i);
    }
    for (int i = LAYERS - 1; i >= 0; i--) {
        backward[i] = test_task(g, 1, i, B, 2, 10);
        test_edge(g, forward[i], backward[i], 10, 10 + i);
        if (i + 1 < LAYERS)
            test_edge(g, backward[i + 1], backward[i], 10, 20 + i);
    }
    for (int i = 0; i < LAYERS; i++) {
        int update = test_task(g, 1, i, U, 0.5, 0);
        test_edge(g, backward[i], update, bytes[i], 30 + i);
        test_param(g, bytes[i], 1, &i);
    }
    return g;
}

/* finish = max_k(r_k + sum_{j>=k} a_j), for several bucket sizes and numbers of replicas. */
static void check_data_parallel(void)
{
    const int64_t bytes[LAYERS] = {400, 100, 800, 200, 300};
    struct mgpu_task_graph *g = layers(bytes);
    for (int n = 2; n <= 4; n++)
        for (int64_t bucket = 100; bucket <= 3200; bucket *= 2) {
            struct mgpu_topology *t = test_topology(n, 1, 100, 0.125, 0, 1 << 20);
            struct bench b;
            open_bench(&b, g, t, n, 1, -1);
            b.replica.bucket_bytes = bucket;
            double step = run(&b, (int[]){0, 0, 0, 0, 0}), finish = 0, ready = LAYERS;
            double buckets[LAYERS][2];
            int count = 0;
            int64_t held = 0;
            for (int i = LAYERS - 1; i >= 0; i--) {
                ready += 2;
                held += bytes[i];
                if (held >= bucket || i == 0) {
                    buckets[count][0] = ready;
                    buckets[count++][1] = mgpu_all_reduce_ms(&b.replica.sum[0], (double)held);
                    held = 0;
                }
            }
            for (int k = 0; k < count; k++) {
                double end = buckets[k][0];
                for (int j = k; j < count; j++)
                    end += buckets[j][1];
                finish = fmax(finish, end);
            }
            CHECK_NEAR(mgpu_sums_end(b.s, bucket), finish, 1e-12);
            /* at least the last update comes after the sums, at most all of them */
            CHECK(step >= finish + 0.5 - 1e-9 && step <= finish + 0.5 * LAYERS + 1e-9);
            CHECK(b.s->moved == 2 * (n - 1) * 1800);
            if (count == 1)
                CHECK_NEAR(step, finish + 0.5 * LAYERS, 1e-12);
            close_bench(&b);
            mgpu_arena_free(t->arena);
        }
    test_graph_free(g);
}

/* While sums run, tasks take longer. One bucket a layer; interference 2. */
static void check_interference(void)
{
    const int64_t bytes[LAYERS] = {0, 0, 0, 0, 100};
    struct mgpu_task_graph *g = layers(bytes);
    struct mgpu_topology *t = test_topology(2, 1, 100, 0, 0, 1 << 20);
    struct bench b;
    t->kind[0].interference = 2;
    open_bench(&b, g, t, 2, 1, -1);
    b.replica.bucket_bytes = 1;
    /* the last layer's gradient is summed from 7 to 8: the next backward task does half of 1 ms */
    CHECK_NEAR(mgpu_all_reduce_ms(&b.replica.sum[0], 100), 1, 1e-12);
    CHECK_NEAR(run(&b, (int[]){0, 0, 0, 0, 0}), LAYERS * 3.5 + 0.5, 1e-12);
    close_bench(&b);
    mgpu_arena_free(t->arena);
    test_graph_free(g);
}

/* Two tasks on two devices. Both lose half their speed beside each other; the longer one is alone
 * in the end. What nobody hinders hinders nobody. */
static void check_contention(void)
{
    static const struct {
        double ms[2], beside[2], step;
    } cases[] = {{{10, 10}, {20, 20}, 20},
                 {{10, 4}, {20, 8}, 8 + 6},
                 {{10, 10}, {20, 10}, 10},
                 {{10, 10}, {10, 10}, 10}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mgpu_task_graph *g = test_graph(1, 2, 0, 2, 0);
        struct mgpu_topology *t = test_topology(2, 1, 100, 0, 0, 1 << 20);
        struct bench b;
        for (int k = 0; k < 2; k++) {
            test_task(g, 1, k, MGPU_PHASE_FORWARD, cases[i].ms[k], 0);
            g->task[k].beside = mgpu_arena_copy(g->arena, &cases[i].beside[k], sizeof(double));
        }
        g->busy = 2;
        open_bench(&b, g, t, 1, 2, -1);
        CHECK_NEAR(run(&b, (int[]){0, 1}), fmax(cases[i].ms[0], cases[i].ms[1]), 1e-12);
        CHECK_NEAR(mgpu_simulate_contended(b.s, &b.a), cases[i].step, 0.02);
        CHECK_NEAR(run(&b, (int[]){0, 0}), cases[i].ms[0] + cases[i].ms[1], 1e-12);
        CHECK_NEAR(mgpu_simulate_contended(b.s, &b.a), cases[i].ms[0] + cases[i].ms[1], 1e-12);
        close_bench(&b);
        mgpu_arena_free(t->arena);
        test_graph_free(g);
    }
}

/* A task whose output the replicas sum before it is used (statistics of the whole batch): two sums
 * of 50 bytes, twice around a ring of two at 100 bytes a ms. */
static void check_sums_inside(void)
{
    const int64_t bytes[LAYERS] = {0, 0, 0, 0, 0};
    struct mgpu_task_graph *g = layers(bytes);
    struct mgpu_topology *t = test_topology(2, 1, 100, 0, 0, 1 << 20);
    struct bench b;
    g->task[1].sums = 2;
    g->task[1].sum_bytes = 100;
    open_bench(&b, g, t, 2, 1, -1);
    double one = mgpu_all_reduce_ms(&b.replica.sum[0], 50);
    CHECK(one > 0);
    CHECK_NEAR(run(&b, (int[]){0, 0, 0, 0, 0}), LAYERS * 3.5 + 2 * one, 1e-12);
    CHECK(b.s->moved == 2 * 100);
    close_bench(&b);
    open_bench(&b, g, t, 1, 2, -1); /* one replica sums nothing */
    CHECK_NEAR(run(&b, (int[]){0, 0, 0, 0, 0}), LAYERS * 3.5, 1e-12);
    close_bench(&b);
    mgpu_arena_free(t->arena);
    test_graph_free(g);
}

/* The last layer's gradient is known by its factors, of 20 bytes a replica: each of n gets those of
 * all, twice half around the ring, while the others' gradients are one sum. */
static void check_factors(void)
{
    const int64_t bytes[LAYERS] = {100, 0, 0, 0, 1000};
    struct mgpu_task_graph *g = layers(bytes);
    g->param[LAYERS - 1].product_bytes = 1000;
    g->param[LAYERS - 1].factor_bytes = 20;
    for (int n = 2; n <= 3; n++) {
        struct mgpu_topology *t = test_topology(n, 1, 100, 0, 0, 1 << 20);
        struct bench b;
        open_bench(&b, g, t, n, 1, -1);
        double sum = mgpu_all_reduce_ms(&b.replica.sum[0], 100);
        double gathered = 2 * mgpu_all_gather_ms(&b.replica.sum[0], 10 * n);
        CHECK(sum > 0 && gathered > 0 && gathered < 1);
        /* its update runs beside the sum */
        CHECK_NEAR(run(&b, (int[]){0, 0, 0, 0, 0}), 3 * LAYERS + sum + 0.5 * (LAYERS - 1), 1e-12);
        CHECK(b.s->moved == n * (n - 1) * 20 + 2 * (n - 1) * 100);
        CHECK_NEAR(b.s->all_reduce, sum + gathered, 1e-12);
        CHECK_NEAR(mgpu_sums_end(b.s, 1 << 20), 3 * LAYERS + sum, 1e-12);
        close_bench(&b);
        mgpu_arena_free(t->arena);
    }
    test_graph_free(g);
}

/* 100 bytes arrive while the device computes: a core of a CPU copies them in 1 ms. */
static void check_copies(void)
{
    struct mgpu_task_graph *g = test_graph(1, 3, 2, 3, 0);
    int there = test_task(g, 1, 0, F, 1, 100), here = test_task(g, 1, 1, F, 4, 0);
    int last = test_task(g, 1, 2, F, 1, 0);
    test_edge(g, there, last, 100, 1);
    test_edge(g, here, last, 1, 2);
    for (int threads = 0; threads <= 2; threads++) {
        struct mgpu_topology *t = test_topology(2, 1, 100, 0, 0, 1 << 20);
        struct bench b;
        t->kind[0].threads = threads;
        open_bench(&b, g, t, 1, 2, -1);
        CHECK_NEAR(run(&b, (int[]){1, 0, 0}), 4 + 1 + (threads ? 1.0 / threads : 0), 1e-12);
        close_bench(&b);
        mgpu_arena_free(t->arena);
    }
    test_graph_free(g);
}

/* All replicas send to one owner over one channel each, or over one for all. */
static void check_gather(void)
{
    const int64_t bytes[LAYERS] = {0, 0, 0, 0, 100};
    struct mgpu_task_graph *g = layers(bytes);
    for (int channels = 0; channels <= 2; channels += 2) {
        struct mgpu_topology *t = test_topology(4, 1, 100, 0, channels, 1 << 20);
        struct bench b;
        open_bench(&b, g, t, 3, 1, 3);
        double ms = channels ? 3 : 1; /* the value before forward, the gradient after backward */
        /* The last layer's value is needed at 4 ms, so there is no delay. The owner updates as
         * gradients come; the first layer's is the last. */
        CHECK_NEAR(run(&b, (int[]){0, 0, 0, 0, 0}), 5 + 10 + 0.5, 1e-12);
        CHECK(b.s->transfers == 2 + 2 * (LAYERS - 1) || b.s->transfers == 2 * LAYERS);
        CHECK_NEAR(b.s->transfer[b.s->transfers - 1].end - b.s->transfer[b.s->transfers - 1].start,
                   0, 1e-12);
        double longest = 0;
        for (int i = 0; i < b.s->transfers; i++)
            longest = fmax(longest, b.s->transfer[i].end - b.s->transfer[i].start);
        CHECK_NEAR(longest, ms, 1e-12);
        CHECK(b.s->moved == 2 * 3 * 100);
        close_bench(&b);
        mgpu_arena_free(t->arena);
    }
    test_graph_free(g);
}

/* Activations of a chain live from forward to backward: all five at the turn, and its gradients. */
static void check_memory(void)
{
    const int64_t bytes[LAYERS] = {0, 0, 0, 0, 0};
    struct mgpu_task_graph *g = layers(bytes);
    struct mgpu_topology *t = test_topology(2, 1, 100, 0, 0, 50);
    struct bench b;
    g->input_bytes = 5;
    open_bench(&b, g, t, 1, 2, -1);
    run(&b, (int[]){0, 0, 0, 0, 0});
    /* five outputs, the gradient that the last layer makes */
    CHECK(mgpu_simulate_memory(b.s, &b.a) == 15);
    CHECK(b.s->peak[0] == 5 + 5 * 10 + 10 && b.s->peak[1] == 0);
    g->task[2].scratch = 1000; /* while the third forward task runs: three outputs */
    close_bench(&b);
    open_bench(&b, g, t, 1, 2, -1);
    run(&b, (int[]){0, 0, 0, 0, 0});
    mgpu_simulate_memory(b.s, &b.a);
    CHECK(b.s->peak[0] == 5 + 3 * 10 + 1000);
    /* cut after the second layer: the cut tensor is on both */
    g->task[2].scratch = 0;
    close_bench(&b);
    open_bench(&b, g, t, 1, 2, -1);
    run(&b, (int[]){0, 0, 1, 1, 1});
    mgpu_simulate_memory(b.s, &b.a);
    CHECK(b.s->peak[0] == 5 + 2 * 10 + 10 + 10); /* outputs, gradient in, gradient out */
    CHECK(b.s->peak[1] == 5 + 10 + 3 * 10 + 10 || b.s->peak[1] == 5 + 3 * 10 + 10);
    close_bench(&b);
    mgpu_arena_free(t->arena);
    test_graph_free(g);
}

static void check_host(void)
{
    struct mgpu_task_graph *g = two_towers();
    struct mgpu_topology *t = test_topology(2, 1, 100, 0, 0, 1 << 20);
    struct bench b;
    g->host_ms[0] = 3;
    open_bench(&b, g, t, 1, 2, -1);
    CHECK_NEAR(run(&b, (int[]){0, 0, 0}), 27 + 3, 1e-12);
    close_bench(&b);
    mgpu_arena_free(t->arena);
    test_graph_free(g);
}

/* Faster devices and links never make the step of a placement longer; unplaced groups bound it. */
static void check_monotone(void)
{
    struct test_random r = {5};
    for (int i = 0; i < 500; i++) {
        struct test_net net;
        test_net(&net, &r, (enum test_shape)test_below(&r, TEST_SHAPES), 2 + test_below(&r, 8));
        struct mgpu_task_graph *g = test_training(&net, &r, 1, test_below(&r, 3));
        int channels = test_below(&r, 3), device[10];
        double speed = 1 << test_below(&r, 6), before = INFINITY;
        for (int k = 0; k < net.groups; k++)
            device[k] = test_below(&r, 3);
        for (int faster = 0; faster < 4; faster++) {
            struct mgpu_topology *t =
                test_topology(3, 1, speed * (1 + faster), 0.5 / (1 + faster), channels, 1 << 20);
            struct bench b;
            open_bench(&b, g, t, 1, 3, -1);
            double ms = run(&b, device);
            CHECK_(ms <= before * (1 + 1e-12), "%g after %g with faster links", ms, before);
            before = ms;
            int hidden = b.a.device[b.flow->group_at[0]];
            b.a.device[b.flow->group_at[0]] = -1;
            mgpu_choose_owners(b.flow, &b.replica, &b.a);
            double bound = mgpu_simulate(b.s, &b.a, INFINITY);
            CHECK_(bound <= ms * (1 + 1e-12), "unplaced %g, placed %g", bound, ms);
            b.a.device[b.flow->group_at[0]] = hidden;
            close_bench(&b);
            mgpu_arena_free(t->arena);
        }
        test_graph_free(g);
    }
}

static void check_bad_graphs(void)
{
    struct mgpu_task_graph *g = two_towers();
    struct mgpu_flow *flow;
    g->edge[0].to = 0;
    CHECK_FAILS(mgpu_flow_new(&flow, g, 1, 0, 2), "out of order");
    g->edge[0].to = 8;
    CHECK_FAILS(mgpu_flow_new(&flow, g, 1, 0, 2), "out of order");
    g->edge[0].to = 2;
    g->pin[1] = 2;
    CHECK_FAILS(mgpu_flow_new(&flow, g, 1, 0, 2), "pinned to device 2 of 2");
    g->pin[1] = -1;
    g->task[1].group = 3;
    CHECK_FAILS(mgpu_flow_new(&flow, g, 1, 0, 2), "no group");
    g->task[1].group = 1;
    g->task[1].ms[0] = NAN;
    CHECK_FAILS(mgpu_flow_new(&flow, g, 1, 0, 2), "takes");
    test_graph_free(g);
}

int main(void)
{
    check_towers();
    check_channels();
    check_sent_once();
    check_shared();
    check_data_parallel();
    check_interference();
    check_contention();
    check_sums_inside();
    check_factors();
    check_copies();
    check_gather();
    check_memory();
    check_host();
    check_monotone();
    check_bad_graphs();
    return test_end();
}
