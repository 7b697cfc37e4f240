/* Attention by cuDNN: the operations of its graphs, computed one by one as cuDNN defines them, give
 * what the operator's plain kernel gives; cuDNN makes plans of them for GPUs that are not here,
 * with a driver that is not there either (stand_in/driver.c); and a call hands over the right
 * memory. */
#include "runtime/cuda/cudnn_build.h"
#include "runtime/cuda/library_private.h"
#include "runtime/ops/attention.h"
#include "runtime/ref/ref.h"
#include "tests/cuda/double.h"
#include "tests/test.h"

#include <dlfcn.h>
#include <math.h>

enum { OPERANDS = 10, MOST = 1 << 12, PARTS = 128, TEXT = 8192 };
enum { Q, K, V, MASK, Y, STATISTICS, DY, DQ };

struct shape {
    int64_t n, heads, queries, keys, width, out;
    bool inside;
    int64_t mask[4]; /* [0] 0: none */
};

static const struct shape shapes[] = {
    {2, 3, 5, 7, 8, 16, true, {0}},
    {2, 3, 5, 7, 16, 8, false, {1, 1, 5, 7}},
    {2, 3, 5, 7, 8, 8, true, {2, 1, 1, 7}},
};

enum { SHAPES = sizeof shapes / sizeof *shapes };

/* ---- Nodes ----------------------------------------------------------------------------------- */

static struct mgpu_value *input(struct mgpu_graph *g, enum mgpu_dtype type, const int64_t *sizes)
{
    struct mgpu_dim dims[4];
    for (int i = 0; i < 4; i++)
        dims[i] = mgpu_dim_const(sizes[i]);
    return mgpu_graph_input(g, "x", type, 4, dims);
}

static struct mgpu_value *rows(struct mgpu_graph *g, enum mgpu_dtype type, const struct shape *s,
                               int64_t count, int64_t width)
{
    const int64_t inside[] = {s->n, count, s->heads, width};
    const int64_t outside[] = {s->n, s->heads, count, width};
    return input(g, type, s->inside ? inside : outside);
}

static struct mgpu_node *attention(struct mgpu_graph *g, const struct shape *s,
                                   enum mgpu_dtype type, bool backward)
{
    const struct mgpu_attention_attrs attrs = {
        .heads_inside = s->inside, .log_sums = true, .scale = 0.6};
    enum mgpu_dtype wide = type == MGPU_DOUBLE ? type : MGPU_FLOAT;
    struct mgpu_value *out[3];
    struct mgpu_value *in[] = {rows(g, type, s, s->queries, s->width),
                               rows(g, type, s, s->keys, s->width),
                               rows(g, type, s, s->keys, s->out),
                               s->mask[0] ? input(g, type, s->mask) : NULL,
                               rows(g, type, s, s->queries, s->out),
                               input(g, wide, (int64_t[]){s->n, s->heads, s->queries, 1}),
                               rows(g, type, s, s->queries, s->out)};
    if (backward)
        CHECK_OK(mgpu_graph_node(g, &mgpu_op_attention_grad, &attrs, 7, in, 3, out));
    else
        CHECK_OK(mgpu_graph_node(g, &mgpu_op_attention, &attrs, s->mask[0] ? 4 : 3, in, 2, out));
    return out[0]->producer;
}

/* ---- What a graph computes ------------------------------------------------------------------- */

/* A descriptor as the graph's text has it. */
struct part {
    char name[32];
    int64_t dims[4], stride[4], id, mode;
    int of[4]; /* of an operation: x, b, y, and what it does */
    double *data;
};

static struct {
    int count;
    struct part part[PARTS];
    double memory[MGPU_CUDNN_BETWEEN][MOST]; /* by id */
} m;

static double *at(const struct part *t, const int64_t i[4])
{
    double *data = t->data;
    for (int k = 0; k < 4; k++)
        data += t->dims[k] == 1 ? 0 : i[k] * t->stride[k];
    return data;
}

static double pointwise(int64_t mode, double x, double b)
{
    return mode == CUDNN_POINTWISE_ADD   ? x + b
           : mode == CUDNN_POINTWISE_SUB ? x - b
           : mode == CUDNN_POINTWISE_MUL ? x * b
           : mode == CUDNN_POINTWISE_DIV ? x / b
           : mode == CUDNN_POINTWISE_EXP ? exp(x)
           : mode == CUDNN_POINTWISE_LOG ? log(x)
                                         : NAN;
}

static double product(const struct part *a, const struct part *b, const int64_t i[4])
{
    double sum = 0;
    for (int64_t k = 0; k < a->dims[3]; k++)
        sum += *at(a, (int64_t[]){i[0], i[1], i[2], k}) * *at(b, (int64_t[]){i[0], i[1], k, i[3]});
    return sum;
}

static double reduction(int64_t mode, const struct part *x, const int64_t i[4])
{
    double all = mode == CUDNN_REDUCE_TENSOR_MAX ? -INFINITY : 0;
    for (int64_t k = 0; k < x->dims[3]; k++) {
        double one = *at(x, (int64_t[]){i[0], i[1], i[2], k});
        all = mode == CUDNN_REDUCE_TENSOR_MAX ? fmax(all, one) : all + one;
    }
    return all;
}

static double element(const struct part *op, const int64_t i[4])
{
    const struct part *x = &m.part[op->of[0]], *b = op->of[1] >= 0 ? &m.part[op->of[1]] : NULL;
    int64_t mode = m.part[op->of[3]].mode;
    if (!strcmp(op->name, "matmul operation"))
        return product(x, b, i);
    if (!strcmp(op->name, "reduction operation"))
        return reduction(mode, x, i);
    return pointwise(mode, *at(x, i), b ? *at(b, i) : 0);
}

/* A part whose attributes are all there. A reshape is another view of the same memory. */
static void finish(struct part *p)
{
    if (!strcmp(p->name, "tensor"))
        p->data = p->id < MGPU_CUDNN_BETWEEN ? m.memory[p->id] : calloc(MOST, sizeof *p->data);
    if (!strstr(p->name, "operation"))
        return;
    struct part *y = &m.part[p->of[2]];
    if (!strcmp(p->name, "reshape operation")) {
        free(y->data);
        y->data = m.part[p->of[0]].data;
        y->id = 0;
        return;
    }
    int64_t i[4];
    for (i[0] = 0; i[0] < y->dims[0]; i[0]++)
        for (i[1] = 0; i[1] < y->dims[1]; i[1]++)
            for (i[2] = 0; i[2] < y->dims[2]; i[2]++)
                for (i[3] = 0; i[3] < y->dims[3]; i[3]++)
                    *at(y, i) = element(p, i);
}

static bool ends(const char *text, const char *end)
{
    return strlen(text) >= strlen(end) && !strcmp(text + strlen(text) - strlen(end), end);
}

static void read_attribute(struct part *p, const char *line)
{
    static const char *const operand[] = {"_XDESC", "_BDESC", "_YDESC", "_DESC",
                                          "_ADESC", "",       "_CDESC", "_PW_DESCRIPTOR"};
    char name[128], rest[256];
    CHECK(sscanf(line, " %127s %255[^\n]", name, rest) == 2);
    int64_t *to = ends(name, "DIMENSIONS") ? p->dims : ends(name, "STRIDES") ? p->stride : NULL;
    if (to)
        CHECK(sscanf(rest, "%ld %ld %ld %ld", &to[0], &to[1], &to[2], &to[3]) == 4);
    if (ends(name, "UNIQUE_ID"))
        p->id = atoi(rest);
    if (ends(name, "POINTWISE_MODE") || ends(name, "REDUCTION_OPERATOR"))
        p->mode = atoi(rest);
    for (int i = 0; i < 8; i++)
        if (*operand[i] && ends(name, operand[i]))
            p->of[i % 4] = atoi(rest + 1); /* "#12" */
}

static void compute(const struct mgpu_cudnn_graph *g)
{
    char *text = strdup(g->text), *rest = text, *line;
    m.count = 0;
    for (int i = 0; i < g->numbers; i++)
        m.memory[MGPU_CUDNN_NUMBER + i][0] = (double)g->number[i];
    while ((line = strsep(&rest, "\n")) && *line)
        if (*line == ' ') {
            read_attribute(&m.part[m.count - 1], line);
        } else {
            if (m.count > 0)
                finish(&m.part[m.count - 1]);
            m.part[m.count] = (struct part){.of = {0, -1}};
            snprintf(m.part[m.count++].name, 32, "%.*s", (int)strcspn(line, ":"), line);
        }
    for (int i = 0; i < m.count; i++)
        if (m.part[i].id >= MGPU_CUDNN_BETWEEN)
            free(m.part[i].data);
    free(text);
}

/* ---- Against the plain kernel ---------------------------------------------------------------- */

/* Operands of a node of doubles lie in memory[i + 1]. */
static void run_plain(const struct mgpu_node *node, double want[3][MOST])
{
    const void *in[OPERANDS];
    void *out[3];
    for (int i = 0; i < node->inputs; i++)
        in[i] = node->input[i] ? m.memory[i + 1] : NULL;
    for (int i = 0; i < node->outputs; i++)
        out[i] = want[i];
    CHECK_OK(mgpu_backend_run(&mgpu_backend_ref, node, in, out));
}

static void check_graph(struct mgpu_library *l, const struct shape *s, bool backward)
{
    static double want[3][MOST];
    struct mgpu_graph *g = mgpu_graph_new();
    const struct mgpu_node *plain = attention(g, s, MGPU_DOUBLE, backward),
                           *node = attention(g, s, MGPU_BFLOAT16, backward);
    struct mgpu_cudnn_graph graph;
    run_plain(plain, want);
    mgpu_cudnn_graph_begin(&graph, &l->dnn);
    mgpu_cudnn_attention[backward].build(&graph, node);
    CHECK_OK(mgpu_cudnn_graph_end(&graph));
    compute(&graph);
    for (int k = 0; k < node->outputs; k++)
        for (int64_t i = 0; i < mgpu_value_count(node->output[k]); i++)
            CHECK_NEAR(m.memory[node->inputs + 1 + k][i], want[k][i], 1e-6); /* floats as scale */
    if (!backward) {                                                         /* for the gradient */
        memcpy(m.memory[Y + 1], want[0], sizeof want[0]);
        memcpy(m.memory[STATISTICS + 1], want[1], sizeof want[1]);
    }
    mgpu_cudnn_graph_free(&graph);
    mgpu_graph_free(g);
}

static void check_graphs(struct mgpu_library *l)
{
    for (int k = 0; k < SHAPES; k++) {
        for (int i = 0; i < OPERANDS; i++)
            for (int j = 0; j < MOST; j++)
                m.memory[i + 1][j] = sin(1.0 + j * 7 + i);
        check_graph(l, &shapes[k], false);
        for (int j = 0; j < MOST; j++)
            m.memory[DY + 1][j] = sin(2.0 + j);
        check_graph(l, &shapes[k], true);
    }
}

/* ---- Plans ----------------------------------------------------------------------------------- */

static struct {
    int64_t id[MGPU_CUDNN_TENSORS], count;
    void *data[MGPU_CUDNN_TENSORS];
} given;

static __typeof__(&cudnnBackendSetAttribute) set;

static cudnnStatus_t note(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                          cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    if (name == CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS)
        memcpy(given.id, values, sizeof *given.id * (size_t)(given.count = count));
    if (name == CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)
        memcpy(given.data, values, sizeof *given.data * (size_t)count);
    return set(d, name, type, count, values);
}

static cudnnStatus_t execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                             cudnnBackendDescriptor_t pack)
{
    (void)handle;
    return plan && pack ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

static cudnnStatus_t set_stream(cudnnHandle_t handle, cudaStream_t stream)
{
    (void)handle, (void)stream;
    return CUDNN_STATUS_SUCCESS;
}

/* Operands are where they are, the scale is on the host, and the scratch ends with the workspace.
 */
static void check_given(char *operand, const char *workspace, int64_t bytes, int64_t scratch)
{
    for (int i = 0; i < given.count; i++) {
        const char *data = given.data[i];
        int64_t id = given.id[i];
        if (id == MGPU_CUDNN_SCRATCH)
            CHECK(data + scratch == workspace + bytes && (data - workspace) % 256 == 0);
        else if (id >= MGPU_CUDNN_NUMBER)
            CHECK(*(const float *)data == 0.6F || *(const float *)data == 1);
        else
            CHECK(data == operand + 16 * id);
    }
}

static void check_plan(struct mgpu_library *l, const struct shape *s, enum mgpu_dtype type,
                       bool backward)
{
    static char memory[1024], workspace[1];
    struct mgpu_graph *g = mgpu_graph_new();
    const struct mgpu_node *node = attention(g, s, type, backward);
    struct mgpu_library_call *call;
    void *operand[OPERANDS];
    for (int i = 0; i < OPERANDS; i++)
        operand[i] = memory + 16 * (i + 1);
    CHECK(mgpu_library_accepts(l, node) && !mgpu_library_channels_last(l, node, 0));
    int rc = mgpu_library_prepare(&call, l, node);
    CHECK_OK(rc);
    if (rc == 0) {
        CHECK_OK(mgpu_library_run(call, NULL, operand, workspace));
        check_given(memory, workspace, mgpu_library_workspace(call),
                    4 * s->n * s->heads * s->queries);
    }
    mgpu_library_release(call);
    mgpu_graph_free(g);
}

static int open_library(struct mgpu_library **l, const char *gpu)
{
    char text[TEXT] = "", path[256];
    snprintf(path, sizeof path, "tests/cuda/gpus/%s.json", gpu);
    FILE *file = fopen(path, "r");
    CHECK(file && fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    MGPU_TRY(mgpu_library_open(l, &(struct mgpu_library_options){.properties = text}));
    set = (*l)->dnn.api.cudnnBackendSetAttribute;
    (*l)->dnn.api.cudnnBackendSetAttribute = note;
    (*l)->dnn.api.cudnnBackendExecute = execute;
    (*l)->dnn.api.cudnnSetStream = set_stream;
    return 0;
}

int main(void)
{
    static const char *const gpus[] = {"h100", "h200", "a100"};
    struct mgpu_library *l;
    CHECK_(double_cudnn_driver(), "%s", dlerror());
    for (int i = 0; i < 3; i++) {
        if (open_library(&l, gpus[i]) < 0) {
            fprintf(stderr, "skipped: %s\n", mgpu_error());
            return 77;
        }
        if (i == 0)
            check_graphs(l);
        for (int k = i; k < i + 2; k++) /* a second each */
            for (int backward = 0; backward < 2; backward++)
                check_plan(l, &shapes[k % SHAPES], k % 2 ? MGPU_FLOAT16 : MGPU_BFLOAT16, backward);
        mgpu_library_close(l);
    }
    return test_end();
}
