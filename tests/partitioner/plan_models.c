#include "tests/partitioner/plan_models.h"

#include "importer/lower.h"
#include "runtime/base/status.h"
#include "runtime/graph/fold.h"
#include "runtime/graph/gradient.h"
#include "runtime/ref/ref.h"
#include "runtime/train/optimizer.h"
#include "tests/support/make_onnx.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define HEAD "ir 9\nopset 17\ninput a float N 64\ninput b float N 64\n"
#define WEIGHTS                                                                                    \
    "init W float 64 128 = 0.01 0.02\n"                                                            \
    "init C float 128 = 0.5 0.6\n"                                                                 \
    "init V float 256 10 = 0.03 0.01\n"

const char plan_two_towers[] = HEAD WEIGHTS "pa = MatMul(a, W)\n"
                                            "ca = Add(pa, C)\n"
                                            "ha = Relu(ca)\n"
                                            "pb = MatMul(b, W)\n"
                                            "cb = Add(pb, C)\n"
                                            "hb = Relu(cb)\n"
                                            "m = Concat(ha, hb) axis=1\n"
                                            "y = MatMul(m, V)\n"
                                            "output y float N 10\n";

/* The same nodes in another order. */
const char plan_two_towers_turned[] = HEAD WEIGHTS "pb = MatMul(b, W)\n"
                                                   "pa = MatMul(a, W)\n"
                                                   "cb = Add(pb, C)\n"
                                                   "hb = Relu(cb)\n"
                                                   "ca = Add(pa, C)\n"
                                                   "ha = Relu(ca)\n"
                                                   "m = Concat(ha, hb) axis=1\n"
                                                   "y = MatMul(m, V)\n"
                                                   "output y float N 10\n";

/* One value with four users: its gradients meet. */
const char plan_branches[] = HEAD "init W float 64 64 = 0.01 0.02\n"
                                  "x = MatMul(a, W)\n"
                                  "p = Sigmoid(x)\n"
                                  "q = Tanh(x)\n"
                                  "r = Exp(x)\n"
                                  "s = Mul(p, q)\n"
                                  "t = Mul(r, x)\n"
                                  "u = Add(s, t)\n"
                                  "f = Neg(u)\n"
                                  "y = Mul(f, b)\n"
                                  "output y float N 64\n";

const char plan_norm[] = "ir 9\nopset 17\ninput a float N 64\n"
                         "init S float 64 = 1 1.5\ninit B float 64 = 0.1 0.2\n"
                         "init M float 64 = 0 0.5\ninit V float 64 = 1 2\n"
                         "y, m, v = BatchNormalization(a, S, B, M, V) training_mode=1\n"
                         "output y float N 64\n";

static int lower(struct mgpu_graph **out, const char *path, int64_t batch)
{
    struct mgpu_weights_options none = {0};
    struct mgpu_lower_options options = {
        .float_type = MGPU_FLOAT, .batch = batch, .training = true};
    struct mgpu_onnx_file *file = NULL;
    struct mgpu_onnx_model *model = NULL;
    struct mgpu_weights *weights = NULL;
    int rc = mgpu_onnx_read(&file, path);
    if (rc == 0)
        rc = mgpu_onnx_model_new(&model, file);
    if (rc == 0)
        rc = mgpu_weights_identify(&weights, model, &none);
    if (rc == 0)
        rc = mgpu_lower(out, model, weights, &options);
    mgpu_weights_free(weights);
    mgpu_onnx_model_free(model);
    mgpu_onnx_free(file);
    return rc;
}

static int train(struct mgpu_graph *g)
{
    struct mgpu_optimizer optimizer;
    struct mgpu_state_start *starts;
    int count;
    struct mgpu_value *y = g->outputs[0];
    g->origin = (struct mgpu_origin){
        .path = "", .output = y->name, .name = "", .type = "loss", .role = MGPU_FORWARD};
    struct mgpu_value *loss = mgpu_reduce(g, MGPU_REDUCE_SUM, y, (1u << y->rank) - 1, false);
    if (!loss)
        return mgpu_build_error();
    g->output_count = 0;
    mgpu_graph_output(g, "loss", loss);
    MGPU_TRY(mgpu_gradient(g, loss, false));
    MGPU_TRY(mgpu_optimizer_parse(&optimizer, "adam,lr=0.001", 0, 0));
    return mgpu_optimizer_build(g, &optimizer, &starts, &count);
}

struct mgpu_graph *plan_graph(const char *text, int64_t batch)
{
    struct mgpu_graph *g = NULL;
    char path[64];
    mgpu_fold_set(mgpu_ref_fold);
    snprintf(path, sizeof path, "/tmp/plan-model-%d.onnx", (int)getpid());
    make_onnx_file(path, text);
    int rc = lower(&g, path, batch);
    remove(path);
    if (rc == 0)
        rc = train(g);
    if (rc < 0) {
        fprintf(stderr, "plan_graph: %s\n", mgpu_error());
        abort();
    }
    return g;
}

int plan_graph_again(struct mgpu_graph **out, void *context)
{
    const struct plan_model *m = context;
    *out = plan_graph(m->text, m->batch);
    return 0;
}
