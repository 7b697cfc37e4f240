/* Times of nodes from their records, against numbers worked out by hand. */
#include "partitioner/cost.h"
#include "runtime/graph/fold.h"
#include "runtime/ops/build.h"
#include "runtime/ops/rnn.h"
#include "runtime/ref/ref.h"
#include "tests/test.h"

static struct mgpu_value *input(struct mgpu_graph *g, const char *name, int rank, int64_t a,
                                int64_t b, int64_t c)
{
    struct mgpu_dim dims[] = {mgpu_dim_const(a), mgpu_dim_const(b), mgpu_dim_const(c)};
    return mgpu_graph_input(g, name, MGPU_FLOAT, rank, dims);
}

static const struct mgpu_device_kind PLAIN = {/* every efficiency of large kernels is 1 */
                                              .name = "plain",
                                              .flops = {1e12, 2e12, 4e12, 8e12},
                                              .bytes = 1e12,
                                              .launch_ms = 0.01,
                                              .efficiency_compute = 1,
                                              .efficiency_memory = 1};

static void check_efficiency(void)
{
    /* the four points: 0.1, 1, 16, 128 GFLOP on 312 TFLOP/s; shares over the largest, 0.95 */
    CHECK_NEAR(mgpu_compute_efficiency(&PLAIN, 1e9 / 312e12 * 1e3), 0.6 / 0.95, 1e-12);
    CHECK_NEAR(mgpu_compute_efficiency(&PLAIN, 16e9 / 312e12 * 1e3), 0.9 / 0.95, 1e-12);
    CHECK_NEAR(mgpu_compute_efficiency(&PLAIN, 1e3), 1, 1e-12);
    CHECK_NEAR(mgpu_compute_efficiency(&PLAIN, 1e-9), 0.1 / 0.95, 1e-12);
    /* half way between 1 and 16 GFLOP in logarithms: 4 GFLOP, sqrt(0.6 * 0.9) */
    CHECK_NEAR(mgpu_compute_efficiency(&PLAIN, 4e9 / 312e12 * 1e3), sqrt(0.6 * 0.9) / 0.95, 1e-12);
    CHECK_NEAR(mgpu_memory_efficiency(&PLAIN, 1e7 / 2039e9 * 1e3), 0.75 / 0.9, 1e-12);
    struct mgpu_device_kind half = PLAIN;
    half.efficiency_compute = 0.5;
    CHECK_NEAR(mgpu_compute_efficiency(&half, 1e3), 0.5, 1e-12);
}

/* More work never takes less time; beside two ranks on the same GPU it takes three times as long.
 */
static void check_monotone(void)
{
    double compute = 0, memory = 0;
    struct mgpu_device_kind shared = PLAIN;
    shared.ranks = 3;
    for (double n = 1; n < 1e16; n *= 1.1) {
        double c = mgpu_roofline_ms(&PLAIN, MGPU_RATE_F32, n, 0, 1);
        double m = mgpu_roofline_ms(&PLAIN, MGPU_RATE_F32, 0, n, 1);
        CHECK(c >= compute && m >= memory && c >= PLAIN.launch_ms);
        CHECK_NEAR(mgpu_roofline_ms(&shared, MGPU_RATE_F32, n, 0, 1), 3 * c, 1e-12 * c);
        compute = c;
        memory = m;
    }
}

static void check_nodes(void)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_value *a = input(g, "a", 2, 8192, 4096, 0), *b = input(g, "b", 2, 4096, 1024, 0);
    struct mgpu_value *y = mgpu_matmul(g, a, false, b, false);
    struct mgpu_value *tiny =
        mgpu_matmul(g, input(g, "c", 2, 2, 2, 0), false, input(g, "d", 2, 2, 2, 0), false);
    struct mgpu_value *sum = mgpu_add(g, a, a);
    struct mgpu_value *view =
        mgpu_reshape(g, a, 1, (struct mgpu_dim[]){mgpu_dim_const(8192 * 4096)});
    double flops = 2.0 * 8192 * 4096 * 1024;

    /* 2 TFLOP/s in f32: 34 ms, far above the 188 MB; efficiency of large kernels is 1 */
    CHECK_NEAR(mgpu_cost_ms(&PLAIN, y->producer, MGPU_RATE_F32), flops / 2e12 * 1e3, 1e-12);
    CHECK_NEAR(mgpu_cost_ms(&PLAIN, y->producer, MGPU_RATE_HALF), flops / 8e12 * 1e3, 1e-12);
    CHECK_NEAR(mgpu_cost_ms(&PLAIN, y->producer, MGPU_RATE_F64), flops / 1e12 * 1e3, 1e-12);
    CHECK(mgpu_cost_ms(&PLAIN, tiny->producer, MGPU_RATE_F32) == 0.01);
    /* bound by memory: reads its input twice in its record, writes once; 4 bytes an element */
    double bytes = sum->producer->op->cost(sum->producer).bytes;
    CHECK(bytes >= 2 * 8192.0 * 4096 * 4 && bytes <= 3 * 8192.0 * 4096 * 4);
    CHECK_NEAR(mgpu_cost_ms(&PLAIN, sum->producer, MGPU_RATE_F32), bytes / 1e12 * 1e3, 1e-12);
    CHECK_NEAR(mgpu_cost_ms(&PLAIN, sum->producer, MGPU_RATE_HALF), bytes / 1e12 * 1e3, 1e-12);
    CHECK(mgpu_cost_ms(&PLAIN, view->producer, MGPU_RATE_F32) == 0);
    mgpu_graph_free(g);
}

/* 140 steps in turn: 140 launches at least, whatever the batch. */
static void check_recurrent(void)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_rnn_attrs attrs = {.kind = MGPU_LSTM, .hidden = 64};
    for (int i = 0; i < 3; i++)
        attrs.activation[i] = i == 0 ? MGPU_ACT_SIGMOID : MGPU_ACT_TANH;
    struct mgpu_value *in[] = {input(g, "x", 3, 140, 8, 256), input(g, "w", 3, 1, 256, 256),
                               input(g, "r", 3, 1, 256, 64)};
    struct mgpu_value *out[4] = {NULL};
    CHECK_OK(mgpu_graph_node(g, &mgpu_op_rnn, &attrs, 3, in, 4, out));
    CHECK_NEAR(mgpu_cost_ms(&PLAIN, out[0]->producer, MGPU_RATE_F32), 1.4, 1e-12);
    mgpu_graph_free(g);
}

static void check_classes(void)
{
    static const struct {
        const char *op;
        enum mgpu_class class;
    } want[] = {{"matmul", MGPU_CLASS_GEMM},
                {"conv_grad_weight", MGPU_CLASS_CONV},
                {"rnn_grad", MGPU_CLASS_RNN},
                {"batch_norm_grad", MGPU_CLASS_NORM},
                {"softmax", MGPU_CLASS_NORM},
                {"max_pool", MGPU_CLASS_POOL},
                {"pointwise", MGPU_CLASS_POINTWISE},
                {"reduce", MGPU_CLASS_REDUCE},
                {"reduce_scatter", MGPU_CLASS_COMMUNICATION},
                {"send", MGPU_CLASS_COMMUNICATION},
                {"transpose", MGPU_CLASS_MOVEMENT},
                {"gather", MGPU_CLASS_MOVEMENT},
                {"update", MGPU_CLASS_UPDATE}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const struct mgpu_op *op = mgpu_op_find(want[i].op);
        CHECK_(op && mgpu_class_of(op) == want[i].class, "%s", want[i].op);
    }
    for (int i = 0; i < MGPU_CLASSES; i++)
        CHECK(mgpu_op_class[i] && *mgpu_op_class[i]);
}

int main(void)
{
    mgpu_fold_set(mgpu_ref_fold);
    check_efficiency();
    check_monotone();
    check_nodes();
    check_recurrent();
    check_classes();
    return test_end();
}
