/* What a step brings into another layout, in all networks of the benchmark whose files are small
 * enough for a test, and in what the others are made of: a weight at most once into each that a
 * kernel wants; images only before what has no kernel for blocks of channels (the dense layers of
 * fmnist, the loss of unet), and their gradients behind it. */
#include "runtime/compile/fuse.h"
#include "runtime/compile/storage.h"
#include "runtime/cpu/blocks.h"
#include "runtime/cpu/product.h"
#include "runtime/facade/facade.h"
#include "runtime/ops/movement.h"
#include "runtime/ops/reorder.h"
#include "tests/bench/models.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

static const struct mgpu_program *training_program(const struct mgpu_trainer *t)
{
    for (int i = 0; i < t->compiled_count; i++)
        if (t->compiled[i].mode == MGPU_MODE_TRAIN && t->compiled[i].program[0])
            return t->compiled[i].program[0];
    return NULL;
}

/* The weight that input i is, where the instruction brings it into another layout. */
static const struct mgpu_value *packed_weight(const struct mgpu_instruction *in, int i)
{
    const struct mgpu_value *v = in->node->input[i] ? mgpu_root_value(in->node->input[i]) : NULL;
    bool packed = v && v->kind == MGPU_VALUE_PARAMETER && in->kernel &&
                  mgpu_backend_cpu.reordered(in->node, in->kernel, in->state) >> i & 1;
    return packed ? v : NULL;
}

/* Whether both bring input i of theirs, one weight, into one layout. */
static bool same_packing(const struct mgpu_instruction *a, const struct mgpu_instruction *b, int i)
{
    return a->kernel == b->kernel && i < a->inputs && packed_weight(a, i) &&
           packed_weight(a, i) == packed_weight(b, i) && mgpu_same_attrs(a->node, b->node);
}

static int packed, turned; /* weights, in all networks: by kernels, and as nodes of their own */

/* Weights that are packed, and those that are a second time. */
static void count(const struct mgpu_program *p, int *once, int *again)
{
    *once = *again = 0;
    for (int k = 0; k < p->instructions; k++) {
        const struct mgpu_node *node = p->instruction[k].node;
        turned += node->op == &mgpu_op_transpose &&
                  mgpu_root_value(node->input[0])->kind == MGPU_VALUE_PARAMETER;
        for (int i = 0; i < p->instruction[k].inputs; i++) {
            bool before = false;
            for (int other = 0; other < k; other++)
                before = before || same_packing(&p->instruction[other], &p->instruction[k], i);
            *again += before;
            *once += !before && packed_weight(&p->instruction[k], i);
        }
    }
}

static int count_reorders(const struct mgpu_program *p)
{
    int n = 0;
    for (int k = 0; k < p->instructions; k++)
        n += p->instruction[k].node->op == &mgpu_op_reorder;
    return n;
}

static void check(const char *name, const char *model, const char *const *data, int64_t batch,
                  int most)
{
    struct mgpu_options o = MGPU_OPTIONS;
    struct mgpu_trainer *t = NULL;
    int once = 0, again = 0, reorders = 0;
    o.data = data;
    o.loss = tiny_list("cross_entropy", NULL);
    o.batch = batch;
    o.devices = "cpu:0";
    o.threads = 2;
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    if (t && training_program(t)) {
        count(training_program(t), &once, &again);
        reorders = count_reorders(training_program(t));
    }
    printf("%s: %d weights packed once a step, %d again; %d reorders\n", name, once, again,
           reorders);
    CHECK_(again == 0, "%s: %d packed, %d again", name, once, again);
    CHECK_(reorders <= most, "%s: %d reorders", name, reorders);
    packed += once;
    mgpu_trainer_free(t);
}

static void check_network(const char *name, int reorders)
{
    const struct bench_model *m = bench_model_find(name);
    const char *folder = tiny_path("."), *data[4] = {NULL};
    char text[3][200], model[200];
    bench_model_write(m, m->batch, folder);
    for (int i = 0; i < m->inputs; i++) {
        snprintf(text[i], sizeof text[i], "%s=%s/%s.%s.npy", m->input[i].name, folder, name,
                 m->input[i].name);
        data[i] = text[i];
    }
    snprintf(model, sizeof model, "%s/%s.onnx", folder, name);
    check(name, model, data, m->batch, reorders);
}

/* What vgg16, bert and gpt2 have beside convolutions, in small: dense layers of few samples and of
 * many, and an embedding that is the last layer, too. */
static void test_dense(void)
{
    static const char *const tied = "opset 17\ninput x int64 N 32\n"
                                    "init words float 200 64 = normal 0.1\n"
                                    "init w float 64 256 = normal 0.1\n"
                                    "init v float 256 64 = normal 0.1\n"
                                    "h = Gather(words, x) axis=0\n"
                                    "a = MatMul(h, w)\nb = Tanh(a)\nc = MatMul(b, v)\n"
                                    "d = Add(h, c)\nt = Transpose(words) perm=[1, 0]\n"
                                    "l = MatMul(d, t)\ny = Transpose(l) perm=[0, 2, 1]\n"
                                    "output y float N 200 32\n";
    static const char *const few = "opset 17\ninput x float N 64\n"
                                   "init w float 64 256 = normal 0.1\n"
                                   "init v float 256 64 = normal 0.1\n"
                                   "a = MatMul(x, w)\nb = Relu(a)\ny = MatMul(b, v)\n"
                                   "output y float N 64\n";
    int64_t words[8 * 32] = {0}, classes[32] = {0};
    const char *labels = tiny_data("label", MGPU_INT64, 2, (int64_t[]){8, 32}, words);
    check("tied", tiny_model(tied),
          tiny_list(tiny_data("x", MGPU_INT64, 2, (int64_t[]){8, 32}, words), labels, NULL), 8, 0);
    for (int64_t batch = 4; batch <= 32; batch += 28)
        check("dense", tiny_model(few),
              tiny_list(tiny_noise("x", 1, 2, (int64_t[]){batch, 64}),
                        tiny_data("label", MGPU_INT64, 1, &batch, classes), NULL),
              batch, 0);
}

int main(void)
{
    tiny_begin();
    check_network("mlp", 0);
    check_network("fmnist", 2);
    check_network("resnet20", 0);
    check_network("mobilenetv2", 0);
    check_network("resnet50", 0);
    check_network("unet", 2);
    check_network("lstm2", 0);
    test_dense();
    CHECK(turned == 0);
    CHECK(packed || (!mgpu_cpu_block() && !mgpu_cpu_has_product()));
    tiny_end();
    return test_end();
}
