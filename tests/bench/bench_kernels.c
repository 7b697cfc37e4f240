/* Times every kernel of one training step of the `fmnist` network (tests/demo/fmnist.onnx, written
 * out here): forward, loss, backward and Adam, on backend `cpu`.
 *
 *     OMP_WAIT_POLICY=passive build/bench_kernels [threads [batch [seconds]]]
 *
 * Prints each node's least time, GFLOP/s and GB/s, and the least time of the whole step. No
 * executor is in between and every value has memory of its own, so the real step also pays for its
 * executor and gains from reused memory.
 */
#include "runtime/backend.h"
#include "runtime/base/status.h"
#include "runtime/graph/gradient.h"
#include "runtime/graph/step_scalar.h"
#include "runtime/ops/build.h"
#include "runtime/ops/conv.h"
#include "runtime/ops/loss.h"
#include "runtime/ops/pool.h"
#include "runtime/ops/update.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void must(int rc)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "bench_kernels: %s\n", mgpu_error());
    exit(EXIT_FAILURE);
}

static struct mgpu_value *need(struct mgpu_value *value)
{
    must(value ? 0 : mgpu_build_error());
    return value;
}

/* ---- The network -------------------------------------------------------------------------------
 */

static struct mgpu_value *weight(struct mgpu_graph *g, const char *name, int rank,
                                 const int64_t *sizes)
{
    struct mgpu_dim dims[MGPU_MAX_RANK];
    for (int i = 0; i < rank; i++)
        dims[i] = mgpu_dim_const(sizes[i]);
    return mgpu_graph_parameter(g, name, MGPU_WEIGHT, MGPU_FLOAT, rank, dims);
}

static struct mgpu_value *relu(struct mgpu_graph *g, struct mgpu_value *x)
{
    return need(mgpu_binary(g, MGPU_X_MAX, x, mgpu_const_double(g, MGPU_FLOAT, 0)));
}

static struct mgpu_value *conv_block(struct mgpu_graph *g, struct mgpu_value *x, const char *name,
                                     const char *bias, int64_t in, int64_t out)
{
    struct mgpu_conv_attrs conv = {.spatial = 2,
                                   .stride = {1, 1},
                                   .dilation = {1, 1},
                                   .before = {1, 1},
                                   .after = {1, 1},
                                   .group = 1};
    int64_t size = x->dims[2].value;
    struct mgpu_pool_attrs pool = {.spatial = 2,
                                   .kernel = {2, 2},
                                   .stride = {2, 2},
                                   .dilation = {1, 1},
                                   .in = {size, size},
                                   .out = {size / 2, size / 2}};
    struct mgpu_value *inputs[] = {x, weight(g, name, 4, (int64_t[]){out, in, 3, 3}),
                                   weight(g, bias, 1, &out)};
    struct mgpu_value *y, *pooled[2];
    must(mgpu_graph_node(g, &mgpu_op_conv, &conv, 3, inputs, 1, &y));
    y = relu(g, y);
    must(mgpu_graph_node(g, &mgpu_op_max_pool, &pool, 1, &y, 2, pooled));
    return pooled[0];
}

static struct mgpu_value *linear(struct mgpu_graph *g, struct mgpu_value *x, const char *name,
                                 const char *bias, int64_t in, int64_t out)
{
    struct mgpu_value *w = weight(g, name, 2, (int64_t[]){out, in});
    struct mgpu_value *y = mgpu_matmul(g, x, false, w, true);
    return need(mgpu_add(g, y, weight(g, bias, 1, &out)));
}

static struct mgpu_value *loss_of(struct mgpu_graph *g, struct mgpu_value *logits)
{
    struct mgpu_cross_entropy_attrs attrs = {.axis = 1, .form = MGPU_FORM_LOGITS};
    struct mgpu_value *labels = mgpu_graph_input(g, "labels", MGPU_INT64, 1, logits->dims);
    struct mgpu_value *inputs[] = {logits, labels, NULL, NULL,
                                   mgpu_graph_scalar(g, MGPU_SCALAR_LOSS, "normaliser")};
    struct mgpu_value *loss;
    must(mgpu_graph_node(g, &mgpu_op_cross_entropy, &attrs, 5, inputs, 1, &loss));
    return loss;
}

/* One Adam node a weight. */
static void add_updates(struct mgpu_graph *g)
{
    struct mgpu_update_attrs adam = {
        .kind = MGPU_ADAM, .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    struct mgpu_value *step = mgpu_graph_scalar(g, MGPU_SCALAR_STEP, "step");
    struct mgpu_value *factor = mgpu_graph_scalar(g, MGPU_SCALAR_LR_FACTOR, "factor");
    for (int i = 0, n = g->parameter_count; i < n; i++) {
        struct mgpu_parameter *p = &g->parameters[i];
        struct mgpu_value *w = p->value, *gradient = p->gradient, *out[4], *states[2];
        for (int k = 0; k < 2; k++) {
            char name[64];
            snprintf(name, sizeof name, "%s.%d", w->name, k);
            states[k] = mgpu_graph_parameter(g, name, MGPU_STATE, w->type, w->rank, w->dims);
        }
        struct mgpu_value *inputs[] = {w, gradient, step, factor, NULL, states[0], states[1], NULL};
        must(mgpu_graph_node(g, &mgpu_op_update, &adam, 8, inputs, 3, out));
    }
}

static struct mgpu_graph *fmnist(int64_t batch)
{
    struct mgpu_graph *g = mgpu_graph_new();
    g->float_type = MGPU_FLOAT;
    g->batch = batch;
    struct mgpu_dim dims[] = {mgpu_dim_symbol(MGPU_BATCH, batch), mgpu_dim_const(1),
                              mgpu_dim_const(28), mgpu_dim_const(28)};
    struct mgpu_value *x = mgpu_graph_input(g, "x", MGPU_FLOAT, 4, dims);
    x = conv_block(g, x, "w1", "b1", 1, 32);
    x = conv_block(g, x, "w2", "b2", 32, 64);
    struct mgpu_dim flat[] = {dims[0], mgpu_dim_const(3136)};
    x = need(mgpu_reshape(g, x, 2, flat));
    x = relu(g, linear(g, x, "w3", "b3", 3136, 128));
    must(mgpu_gradient(g, loss_of(g, linear(g, x, "w4", "b4", 128, 10)), false));
    add_updates(g);
    return g;
}

/* ---- Running it --------------------------------------------------------------------------------
 */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

struct instruction {
    const struct mgpu_node *node;
    const struct mgpu_kernel *kernel; /* NULL: a view, nothing to do */
    struct mgpu_tensor operands[MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS];
    struct mgpu_launch launch;
    double best;
};

static void *allocate(int64_t bytes)
{
    void *block;
    must(mgpu_alloc(&block, (uint64_t)bytes, "bench_kernels"));
    return block;
}

/* Contents of values without a producer: small numbers; labels 0. */
static void *fill(const struct mgpu_value *v)
{
    int64_t count = mgpu_value_count(v);
    float *data = allocate(mgpu_value_bytes(v));
    if (v->kind == MGPU_VALUE_CONSTANT)
        memcpy(data, v->data, (size_t)mgpu_value_bytes(v));
    else if (v->kind == MGPU_VALUE_SCALAR)
        *(double *)(void *)data = v->index == MGPU_SCALAR_STEP ? 0 : 1;
    for (int64_t i = 0; i < count && v->type == MGPU_FLOAT && v->kind != MGPU_VALUE_CONSTANT; i++)
        data[i] = (float)(i * 7919 % 1000) * 1e-4F - 0.05F;
    return data;
}

static bool is_view(const struct mgpu_node *node)
{
    struct mgpu_alias pairs[MGPU_MAX_OUTPUTS];
    return node->op->alias(node, pairs) > 0 && pairs[0].view;
}

static void prepare(struct instruction *in, const struct mgpu_node *node, void **data, int threads)
{
    in->node = node;
    in->best = 1e9;
    for (int i = 0; i < node->outputs; i++)
        if (node->output[i] && is_view(node))
            data[node->output[i]->id] = data[node->input[0]->id];
        else if (node->output[i])
            data[node->output[i]->id] = allocate(mgpu_value_bytes(node->output[i]));
    if (is_view(node))
        return;
    in->kernel = mgpu_backend_kernel(&mgpu_backend_cpu, node);
    in->launch = (struct mgpu_launch){.node = node,
                                      .inputs = node->inputs,
                                      .outputs = node->outputs,
                                      .in = in->operands,
                                      .threads = threads};
    in->launch.out = in->operands + node->inputs;
    for (int i = 0; i < node->inputs + node->outputs; i++) {
        const struct mgpu_value *v =
            i < node->inputs ? node->input[i] : node->output[i - node->inputs];
        mgpu_tensor_of(&in->operands[i], v, v ? data[v->id] : NULL);
    }
    if (in->kernel->prepare)
        must(in->kernel->prepare(node, threads, false, &in->launch.state));
}

/* One workspace for all, as in the executor. */
static void share_workspace(struct instruction *list, int count, int threads)
{
    int64_t most = 0;
    for (int i = 0; i < count; i++) {
        const struct mgpu_kernel *k = list[i].kernel;
        int64_t bytes =
            k && k->workspace ? k->workspace(list[i].node, threads, list[i].launch.state) : 0;
        most = bytes > most ? bytes : most;
    }
    void *workspace = allocate(most);
    for (int i = 0; i < count; i++)
        list[i].launch.workspace = workspace;
}

static double run_all(struct instruction *list, int count)
{
    double begin = now();
    for (int i = 0; i < count; i++) {
        double t = now();
        if (list[i].kernel)
            must(list[i].kernel->run(&list[i].launch));
        t = now() - t;
        list[i].best = t < list[i].best ? t : list[i].best;
    }
    return now() - begin;
}

static void print(const struct instruction *in, const struct mgpu_graph *g)
{
    char text[MGPU_VALUE_TEXT];
    struct mgpu_cost cost = in->node->op->cost(in->node);
    if (in->kernel)
        printf("%9.3f ms %8.1f GFLOP/s %7.1f GB/s  %-18s %-8s -> %s\n", in->best * 1e3,
               cost.flops / in->best * 1e-9, cost.bytes / in->best * 1e-9, in->node->op->name,
               in->kernel->name, mgpu_value_text(text, g, in->node->output[0]));
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 2;
    int64_t batch = argc > 2 ? atoll(argv[2]) : 128;
    double seconds = argc > 3 ? atof(argv[3]) : 3, best = 1e9, sum = 0;
    omp_set_num_threads(threads);
    struct mgpu_graph *g = fmnist(batch);
    void **data = mgpu_xcalloc((size_t)g->value_count, sizeof *data);
    struct instruction *list = mgpu_xcalloc((size_t)g->node_count, sizeof *list);
    for (int i = 0; i < g->value_count; i++)
        if (!g->values[i]->producer)
            data[i] = fill(g->values[i]);
    for (int i = 0; i < g->node_count; i++)
        prepare(&list[i], g->nodes[i], data, threads);
    share_workspace(list, g->node_count, threads);
    for (double begin = now(); now() - begin < seconds;) {
        double t = run_all(list, g->node_count);
        best = t < best ? t : best;
    }
    for (int i = 0; i < g->node_count; i++) {
        print(&list[i], g);
        sum += list[i].best;
    }
    printf("%9.3f ms in sum, %.3f ms the whole step (%d threads, batch %lld)\n", sum * 1e3,
           best * 1e3, threads, (long long)batch);
    return EXIT_SUCCESS;
}
