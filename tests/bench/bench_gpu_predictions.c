/* What steps of training and of evaluation should take on a GPU that is not here: the nodes that a
 * step runs there, as they are fused and laid out for it, against the planner's tables.
 * tests/bench/gpu.md has what it prints.
 *
 *     build/bench_gpu_predictions [KIND [NETWORK]]      h100, or another of tests/cuda/gpus
 *
 * Needs cuDNN, which says what it accepts, and no GPU. A pass is the traffic of one activation: all
 * bytes that forward and backward read and write, over those that convolutions (recurrent layers,
 * products, where there are none) write in forward. The roof is what the tables' peaks allow, node
 * by node; the prediction takes what kernels of their size reach of these (partitioner/cost.h).
 */
#include "partitioner/cost.h"
#include "partitioner/topology_private.h"
#include "runtime/base/status.h"
#include "runtime/compile/rounded.h"
#include "runtime/compile/storage.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/library.h"
#include "runtime/cuda/library_kernels.h"
#include "runtime/facade/facade.h"
#include "runtime/ops/rnn.h"
#include "tests/bench/models.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name;
    int64_t batch;
} networks[] = {{"resnet50", 64}, {"mobilenetv2", 64}, {"vgg16", 64}, {"unet", 16},
                {"lstm2", 128},   {"bert", 64},        {"gpt2", 16}};

static const struct {
    const char *name;
    enum mgpu_rate rate;
} precisions[] = {{"f32", MGPU_RATE_F32}, {"tf32", MGPU_RATE_TF32}, {"bf16", MGPU_RATE_HALF}};

static char folder[] = "/tmp/mgpu-predictions-XXXXXX";

static void must(int rc)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "bench_gpu_predictions: %s\n", mgpu_error());
    exit(EXIT_FAILURE);
}

struct sums {
    int nodes;
    double flops, bytes, activations, products, ms, roof;
    double updates; /* bytes: one pass does all of them */
};

static bool is_product(const struct mgpu_node *node)
{
    enum mgpu_class class = mgpu_class_of(node->op);
    return node->op->half == MGPU_HALF_PRODUCT || class == MGPU_CLASS_CONV ||
           class == MGPU_CLASS_GEMM || class == MGPU_CLASS_RNN;
}

static double roof(const struct mgpu_device_kind *kind, enum mgpu_rate rate, double flops,
                   double bytes)
{
    return 1e3 * fmax(flops / kind->flops[rate], bytes / kind->bytes);
}

/* Launches that lay a recurrent layer's weights and steps out for cuDNN, and its weights' gradients
 * for us (runtime/cuda/cudnn_rnn.c). */
static int moves_of(const struct mgpu_node *node)
{
    return node->op == &mgpu_op_rnn ? 1 : node->op == &mgpu_op_rnn_grad ? 2 : 0;
}

static void add_node(struct sums *s, const struct mgpu_device_kind *kind,
                     const struct mgpu_node *node, enum mgpu_rate rate, const char *product)
{
    struct mgpu_cost c = node->op->cost(node);
    enum mgpu_rate own = is_product(node) ? rate : MGPU_RATE_F32;
    s->nodes++;
    s->flops += c.flops;
    if (mgpu_class_of(node->op) == MGPU_CLASS_UPDATE) {
        s->updates += c.bytes;
        return;
    }
    s->bytes += c.bytes;
    s->activations += c.bytes;
    if (node->origin.role == MGPU_FORWARD && !strncmp(node->op->name, product, strlen(product)))
        s->products += (double)mgpu_value_bytes(node->output[0]);
    s->ms += mgpu_cost_ms(kind, node, rate) + moves_of(node) * kind->launch_ms;
    s->roof += roof(kind, own, c.flops, c.bytes);
}

static bool has(const struct mgpu_graph *g, const char *op)
{
    for (int n = 0; n < g->node_count; n++)
        if (!strcmp(g->nodes[n]->op->name, op))
            return true;
    return false;
}

/* Of the graph of a step. */
static struct sums add_up(const struct mgpu_device_kind *kind, const struct mgpu_graph *g,
                          enum mgpu_rate rate)
{
    struct sums s = {0};
    const char *product = has(g, "conv") ? "conv" : has(g, "rnn") ? "rnn" : "matmul";
    for (int n = 0; n < g->node_count; n++)
        if (!mgpu_is_view(g->nodes[n]))
            add_node(&s, kind, g->nodes[n], rate, product);
    s.bytes += s.updates;
    s.ms += mgpu_roofline_ms(kind, MGPU_RATE_F32, 0, s.updates, 1);
    s.roof += roof(kind, MGPU_RATE_F32, 0, s.updates);
    return s;
}

static void predict(const struct mgpu_device_kind *kind, const char *properties,
                    enum mgpu_mode mode, int i, int p)
{
    struct mgpu_options o = MGPU_OPTIONS;
    struct mgpu_trainer *t;
    struct mgpu_graph *g;
    struct mgpu_library *library;
    const struct bench_model *m = bench_model_find(networks[i].name);
    const char *loss[] = {"cross_entropy", NULL};
    char path[300];
    enum mgpu_rate rate = precisions[p].rate;
    snprintf(path, sizeof path, "%s/%s.onnx", folder, m->name);
    o.loss = loss;
    o.optimizer = m->optimizer;
    o.batch = networks[i].batch;
    o.precision = precisions[p].name;
    must(mgpu_trainer_planning(&t, path, &o));
    t->graphs_for = MGPU_FOR_GPUS;
    must(mgpu_library_open(&library,
                           &(struct mgpu_library_options){.properties = properties,
                                                          .tf32 = rate != MGPU_RATE_F32,
                                                          .exact = rate == MGPU_RATE_F32}));
    mgpu_library_enter(library);
    must(mgpu_build_typed(&g, t, mode, o.batch, NULL));
    must(t->half ? mgpu_store_rounded(g, t->half, mode == MGPU_MODE_TRAIN, NULL) : 0);
    must(mgpu_optimize(g, &mgpu_backend_cuda));
    mgpu_graph_prune(g);
    struct sums s = add_up(kind, g, rate);
    printf("| %s | %lld | %s | %d | %.0f | %.1f | %.1f | %.1f | %.2f | %.2f | %.0f | %.0f |\n",
           m->name, (long long)o.batch, precisions[p].name, s.nodes, 1e-9 * s.flops, 1e-9 * s.bytes,
           s.activations / s.products, 1e-9 * s.updates, s.roof, s.ms, 1e3 * (double)o.batch / s.ms,
           100 * s.flops / (s.ms * 1e-3) / kind->flops[rate]);
    fflush(stdout);
    mgpu_graph_free(g);
    mgpu_library_enter(NULL);
    mgpu_library_close(library);
    mgpu_trainer_free(t);
}

/* The text of a file; NULL: there is none. */
static char *read_text(const char *path)
{
    char *text = NULL;
    size_t size;
    FILE *from = fopen(path, "r"), *to = from ? open_memstream(&text, &size) : NULL;
    for (int c; to && (c = getc(from)) != EOF;)
        putc(c, to);
    if (from)
        fclose(from);
    if (to)
        fclose(to);
    return text;
}

static void predict_network(const struct mgpu_device_kind *kind, const char *properties,
                            enum mgpu_mode mode, int i)
{
    char path[300];
    const struct bench_model *m = bench_model_find(networks[i].name);
    bench_model_write(m, 1, folder);
    for (int p = 0; p < 3; p++)
        predict(kind, properties, mode, i, p);
    snprintf(path, sizeof path, "%s/%s.onnx", folder, m->name);
    unlink(path);
    for (int k = 0; k < m->inputs; k++) {
        snprintf(path, sizeof path, "%s/%s.%s.npy", folder, m->name, m->input[k].name);
        unlink(path);
    }
}

static int predict_all(const struct mgpu_device_kind *kind, const char *properties,
                       const char *only)
{
    static const enum mgpu_mode modes[] = {MGPU_MODE_TRAIN, MGPU_MODE_EVALUATE};
    for (int k = 0; k < 2; k++) {
        puts(k == 0 ? "Training:\n" : "\nEvaluation:\n");
        puts(
            "| network | batch | precision | nodes | GFLOP | GB | passes | GB of updates | roof ms "
            "| predicted ms | samples/s | MFU % |\n"
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
        for (size_t i = 0; i < sizeof networks / sizeof *networks; i++)
            if (!only || !strcmp(only, networks[i].name))
                predict_network(kind, properties, modes[k], (int)i);
    }
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "h100";
    const struct mgpu_known_device *known = mgpu_known_devices;
    struct mgpu_device_kind kind;
    char path[300];
    snprintf(path, sizeof path, "tests/cuda/gpus/%s.json", name);
    char *properties = read_text(path);
    while (known->name && strcmp(known->name, name))
        known++;
    if (!known->name || !properties || !mkdtemp(folder)) {
        fprintf(stderr,
                "usage: bench_gpu_predictions [KIND [NETWORK]], from the repository's folder\n");
        return 2;
    }
    mgpu_kind_of_known(&kind, known);
    mgpu_gpu_backend_begin();
    int rc = predict_all(&kind, properties, argc > 2 ? argv[2] : NULL);
    rmdir(folder);
    free(properties);
    return rc;
}
