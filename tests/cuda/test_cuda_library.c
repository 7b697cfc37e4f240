/* A call of cuDNN's: what it is given when it runs, that it is bound again only when operands have
 * moved, that candidates are timed once, on memory of their own, and the fastest is kept on disk
 * and found again; and what is refused. cuDNN's plans are real, running them and the time they take
 * are not: that is the double's (double.h). */
#define CUDNN_WARN_DEPRECATED /* no function of cuDNN's that is called may be deprecated */
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/library_kernels.h"
#include "runtime/cuda/library_private.h"
#include "runtime/ops/build.h"
#include "runtime/ops/conv.h"
#include "tests/cuda/double_private.h"
#include "tests/test.h"

#include <dirent.h>
#include <unistd.h>

enum { TEXT = 1 << 16 };

static char folder[] = "/tmp/mgpu-library-XXXXXX";

/* ---- A GPU that notes what it is given ---------------------------------------------------------
 */

static struct {
    int runs, plans;
    void *pack, *workspace, *data[8];
    int64_t id[8], count;
    CUstream stream;
} given;

/* The third candidate is the fastest, the second does not run. */
static const float times[] = {0, 10, 1, 5, 7, 7, 0};
static const struct mgpu_node *timed; /* NULL: calls only note what they are given */

static __typeof__(&cudnnBackendSetAttribute) set;

static cudnnStatus_t note(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                          cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    if (name == CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS)
        memcpy(given.id, values, sizeof *given.id * (size_t)(given.count = count));
    if (name == CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)
        memcpy(given.data, values, sizeof *given.data * (size_t)count);
    if (name == CUDNN_ATTR_VARIANT_PACK_WORKSPACE)
        given.workspace = *(void *const *)values;
    given.plans += name == CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG;
    return set(d, name, type, count, values);
}

/* The double runs the node where the operands lie, and knows what memory there is. */
static void run_on_double(void)
{
    struct work w = {.kind = REF, .ref.node = timed};
    struct accesses a = {.count = 5};
    for (int64_t i = 0; i < given.count; i++) {
        int operand = (int)given.id[i] - 1;
        int64_t bytes = mgpu_value_bytes(mgpu_library_operand(timed, operand));
        a.at[i] = double_piece((CUdeviceptr)given.data[i], bytes, operand == 3);
        if (operand < 3)
            w.ref.in[operand] = given.data[i];
        else
            w.ref.out[0] = given.data[i];
    }
    a.at[4] = double_piece((CUdeviceptr)given.workspace, 1, true);
    double_submit(given.stream, &w, &a);
    double_gpu.elapsed = times[given.plans - 1];
}

static cudnnStatus_t execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                             cudnnBackendDescriptor_t pack)
{
    (void)handle;
    CHECK(plan && pack);
    given.runs++;
    given.pack = pack;
    if (timed && given.plans == 3)
        return CUDNN_STATUS_EXECUTION_FAILED;
    if (timed)
        run_on_double();
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t set_stream(cudnnHandle_t handle, cudaStream_t stream)
{
    (void)handle;
    given.stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

static int open_gpu(struct mgpu_library **l, const char *gpu, struct mgpu_library_options o)
{
    static char text[8192];
    char path[256];
    memset(text, 0, sizeof text);
    snprintf(path, sizeof path, "tests/cuda/gpus/%s.json", gpu);
    FILE *file = fopen(path, "r");
    CHECK(file && fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    o.properties = text;
    return mgpu_library_open(l, &o);
}

static int open_library(struct mgpu_library **l)
{
    MGPU_TRY(open_gpu(l, "h100", (struct mgpu_library_options){.tf32 = true}));
    set = (*l)->dnn.api.cudnnBackendSetAttribute;
    (*l)->dnn.api.cudnnBackendSetAttribute = note;
    (*l)->dnn.api.cudnnBackendExecute = execute;
    (*l)->dnn.api.cudnnSetStream = set_stream;
    return 0;
}

/* ---- A convolution -----------------------------------------------------------------------------
 */

static struct mgpu_node *convolution(struct mgpu_graph *g, enum mgpu_dtype type)
{
    const struct mgpu_conv_attrs attrs = {.spatial = 2,
                                          .stride = {1, 1},
                                          .dilation = {1, 1},
                                          .before = {1, 1},
                                          .after = {1, 1},
                                          .group = 1};
    const int64_t sizes[][4] = {{2, 8, 14, 14}, {16, 8, 3, 3}, {16}};
    struct mgpu_value *in[3], *y;
    for (int i = 0; i < 3; i++) {
        struct mgpu_dim dims[4];
        for (int k = 0; k < 4; k++)
            dims[k] = mgpu_dim_const(sizes[i][k]);
        in[i] = mgpu_graph_input(g, "x", type, i < 2 ? 4 : 1, dims);
    }
    CHECK_OK(mgpu_graph_node(g, &mgpu_op_conv, &attrs, 3, in, 1, &y));
    return y->producer;
}

static void check_given(void *const *operand, void *workspace)
{
    CHECK(given.count == 4 && given.workspace == workspace);
    for (int i = 0; i < 4; i++)
        CHECK(given.id[i] >= 1 && given.id[i] <= 4 && given.data[i] == operand[given.id[i] - 1]);
}

static void check_run(struct mgpu_library *l, const struct mgpu_node *node)
{
    char memory[8];
    void *operand[] = {memory, memory + 1, memory + 2, memory + 3};
    struct mgpu_library_call *call;
    CHECK_OK(mgpu_library_prepare(&call, l, node));
    CHECK_OK(mgpu_library_run(call, NULL, operand, memory + 4));
    check_given(operand, memory + 4);
    void *pack = given.pack;
    CHECK_OK(mgpu_library_run(call, NULL, operand, memory + 4));
    CHECK(given.pack == pack && given.runs == 2);
    operand[1] = memory + 5;
    CHECK_OK(mgpu_library_run(call, NULL, operand, memory + 6));
    check_given(operand, memory + 6);
    mgpu_library_release(call);
}

/* Its scratch begins on the boundary that the library wants, wherever the arena has room for it. */
static void check_workspace(struct mgpu_library *l, struct mgpu_node *node)
{
    static _Alignas(256) char memory[1 << 20];
    const struct mgpu_kernel *k = mgpu_library_kernels;
    struct mgpu_gpu_queue queue = {0};
    struct mgpu_tensor tensor[4];
    void *state;
    for (int i = 0; i < 4; i++)
        mgpu_tensor_of(&tensor[i], mgpu_library_operand(node, i), memory);
    mgpu_library_enter(l);
    CHECK(k->accepts(node));
    CHECK_OK(k->prepare(node, 1, false, &state));
    int64_t bytes = k->workspace(node, 1, state);
    ((struct mgpu_library_call *)state)->workspace = 1000;
    CHECK(k->workspace(node, 1, state) >= 1000 && bytes >= 0);
    for (int at = 0; at < 512; at += 64) {
        struct mgpu_launch launch = {.node = node,
                                     .inputs = 3,
                                     .outputs = 1,
                                     .in = tensor,
                                     .out = tensor + 3,
                                     .workspace = memory + at,
                                     .state = state,
                                     .queue = &queue};
        CHECK_OK(k->run(&launch));
        char *given_at = given.workspace;
        CHECK((uintptr_t)given_at % 256 == 0 && given_at >= memory + at &&
              given_at + 1000 <= memory + at + k->workspace(node, 1, state));
    }
    k->release(state);
    mgpu_library_enter(NULL);
}

/* Equal nodes share a plan, which stays as long as one of them; others have their own. */
static void check_shared(struct mgpu_library *l)
{
    char memory[8];
    void *operand[2][4] = {{memory, memory + 1, memory + 2, memory + 3},
                           {memory + 3, memory + 2, memory + 1, memory}};
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_node *node[] = {convolution(g, MGPU_FLOAT), convolution(g, MGPU_FLOAT),
                                convolution(g, MGPU_FLOAT16)};
    struct mgpu_library_call *call[3];
    given.plans = 0;
    for (int i = 0; i < 3; i++)
        CHECK_OK(mgpu_library_prepare(&call[i], l, node[i]));
    CHECK(given.plans == 2);
    for (int i = 0; i < 4; i++) { /* in turn, and bound once each */
        CHECK_OK(mgpu_library_run(call[i % 2], NULL, operand[i % 2], memory + 4));
        if (i < 2)
            check_given(operand[i], memory + 4);
    }
    void *pack = given.pack;
    mgpu_library_release(call[0]);
    CHECK_OK(mgpu_library_run(call[1], NULL, operand[1], memory + 4));
    CHECK(given.pack == pack);
    mgpu_library_release(call[1]);
    CHECK_OK(mgpu_library_prepare(&call[0], l, node[1]));
    CHECK(given.plans == 3);
    mgpu_library_release(call[0]);
    mgpu_library_release(call[2]);
    CHECK(!l->shared);
    mgpu_graph_free(g);
}

/* ---- Choices -----------------------------------------------------------------------------------
 */

static int64_t prepare(struct mgpu_library *l, const struct mgpu_node *node, char *words)
{
    struct mgpu_library_call *call;
    given.plans = given.runs = 0;
    CHECK_OK(mgpu_library_prepare(&call, l, node));
    snprintf(words, TEXT, "%s", call->family->words(call));
    int64_t workspace = mgpu_library_workspace(call);
    mgpu_library_release(call);
    CHECK_(!double_complaints(), "%s", double_complaint());
    return workspace;
}

static size_t no_version(void)
{
    return 1;
}

/* What was the fastest is found again by another process, but not for another GPU, nor where other
 * engines may be taken, nor by another version of a library. */
static void check_remembered(struct mgpu_library *l, const char *words)
{
    const struct mgpu_library_options o = l->options;
    struct mgpu_library_options other[] = {o, o, o, o, o};
    static const char *const gpus[] = {"h100", "h200", "h100", "h100", "h100"};
    struct mgpu_library *with;
    other[2].tf32 = !o.tf32;
    other[3].exact = !o.exact;
    other[4].deterministic = !o.deterministic;
    for (int i = 0; i < 5; i++) {
        CHECK_OK(open_gpu(&with, gpus[i], other[i]));
        CHECK_(mgpu_library_remembered(with, words) == (i == 0 ? 2 : -1), "%d", i);
        mgpu_library_close(with);
    }
    CHECK_OK(open_gpu(&with, "h100", o));
    with->lt.cublasLtGetVersion = no_version;
    CHECK(mgpu_library_remembered(with, words) == -1);
    mgpu_library_close(with);
    char version[32];
    snprintf(version, sizeof version, "cuDNN %zu, ", l->dnn.api.cudnnGetVersion());
    CHECK_(strstr(l->dnn.key, version) == l->dnn.key && strstr(l->dnn.key, "132 units"), "%s",
           l->dnn.key);
}

/* As on a GPU: the library's handle is never looked at. */
static void check_tuning(struct mgpu_library *l, const struct mgpu_node *node)
{
    static char words[TEXT];
    double_begin(1, INT64_C(1) << 30);
    l->driver = double_driver;
    l->driver.cuCtxSetCurrent((CUcontext)l); /* as preparing finds one */
    l->dnn.handle = (cudnnHandle_t)l;
    timed = node;
    prepare(l, node, words); /* there is no folder: nothing is timed */
    CHECK(given.plans == 1 && given.runs == 0 && mgpu_library_remembered(l, words) == -1);
    setenv("MGPU_CACHE", folder, 1);
    double_gpu.bytes = 1 << 10;
    prepare(l, node, words); /* too little memory */
    CHECK(given.runs == 0 && mgpu_library_remembered(l, words) == -1);
    double_gpu.bytes = 1 << 30;
    int64_t workspace = prepare(l, node, words);
    CHECK(given.plans == 7 && given.runs == 4 * 16 + 1 && mgpu_library_remembered(l, words) == 2);
    CHECK(prepare(l, node, words) == workspace && given.plans == 1 && given.runs == 0);
    double_end(); /* all was freed; libraries are the real ones again */
    check_remembered(l, words);
    l->dnn.handle = NULL;
    timed = NULL;
    l->driver.cuCtxSetCurrent(NULL);
    CHECK_(!double_complaints(), "%s", double_complaint());
}

/* ---- What is refused ---------------------------------------------------------------------------
 */

static int warnings;

static void take_warning(void *context, const char *text)
{
    (void)context;
    warnings +=
        !strncmp(text, "node 'conv1' (Conv): conv: cuDNN", 32) && strstr(text, "which are slower");
}

/* What a generated kernel has to run in place of a library is said, of the first such node. */
static void check_warned(struct mgpu_library *l, const struct mgpu_node *node)
{
    void *state;
    const struct mgpu_kernel *k = mgpu_library_kernels;
    while (strcmp(k->op, node->op->name) != 0)
        k++;
    mgpu_library_enter(l);
    mgpu_set_warning(take_warning, NULL);
    for (int i = 0; i < 2; i++)
        CHECK(k->prepare(node, 1, true, &state) == MGPU_EUNSUPPORTED && !state);
    mgpu_set_warning(NULL, NULL);
    mgpu_library_enter(NULL);
    CHECK_(warnings == 1, "%d warnings", warnings);
}

static void check_refused(struct mgpu_library *l)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_library_call *call;
    struct mgpu_node *node = convolution(g, MGPU_DOUBLE);
    CHECK(!mgpu_library_accepts(l, node)); /* cuDNN's engines are for less */
    node = convolution(g, MGPU_FLOAT);
    node->input[0]->block = 4; /* blocks are the CPU's */
    CHECK(!mgpu_library_accepts(l, node));
    node->input[0]->block = 0;
    CHECK(mgpu_library_accepts(l, node));
    g->origin = (struct mgpu_origin){"", "y", "conv1", "Conv", MGPU_FORWARD};
    node = convolution(g, MGPU_FLOAT);
    node->input[1]->dims[1] = mgpu_dim_const(5); /* no graph of the importer's */
    CHECK_FAILS(mgpu_library_prepare(&call, l, node), "conv: cuDNN: ");
    CHECK_(!call && !strstr(mgpu_error(), "node '"), "the node is for the caller to name: %s",
           mgpu_error());
    check_warned(l, node);
    mgpu_graph_free(g);
}

static void remove_folder(void)
{
    char path[512];
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        unlink(path);
    }
    closedir(d);
    rmdir(folder);
}

int main(void)
{
    struct mgpu_library *l;
    CHECK(mkdtemp(folder) && setenv("MGPU_CACHE", folder, 1) == 0);
    if (open_library(&l) < 0) {
        fprintf(stderr, "skipped: %s\n", mgpu_error());
        rmdir(folder);
        return 77;
    }
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_node *node = convolution(g, MGPU_FLOAT);
    check_run(l, node);
    check_shared(l);
    check_workspace(l, node);
    check_tuning(l, node);
    check_refused(l);
    mgpu_library_close(l);
    mgpu_graph_free(g);
    struct mgpu_library_options broken = {.properties = "{\"deviceName\": 3"};
    CHECK_FAILS(mgpu_library_open(&l, &broken),
                "cuDNN: describing the GPU failed: CUDNN_STATUS_BAD_PARAM");
    CHECK_FAILS(mgpu_cuda_check_dnn(90501), "it is version 9.5, this build needs 9.8");
    CHECK_OK(mgpu_cuda_check_dnn(90800));
    CHECK(!l);
    remove_folder();
    return test_end();
}
