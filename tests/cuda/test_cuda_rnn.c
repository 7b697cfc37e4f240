/* rnn and rnn_grad through cuDNN's recurrent layers: stand-ins for its functions compute what its
 * manual says, on host memory, in its order of gates and its layouts; the results must be ref's.
 * What stands between (weights, directions, reserves) is mgpu's own. */
#include "runtime/backend.h"
#include "runtime/cuda/compile.h"
#include "runtime/cuda/library_private.h"
#include "runtime/cuda/moves.h"
#include "runtime/ops/build.h"
#include "runtime/ops/rnn.h"
#include "tests/emit/emulate.h"
#include "tests/ops/run_graph.h"
#include "tests/test.h"

enum { X, W, R, B, LENGTHS, INITIAL_H, INITIAL_C, INPUTS };
enum { STEPS = 4, SAMPLES = 3, WIDTH = 2, HIDDEN = 5, PAD = 3, MARK = 12345 };

/* ---- cuDNN's side ---------------------------------------------------------------------------- */

static struct {
    cudnnRNNMode_t mode;
    bool two, bias;
    int G;
    size_t reserve; /* what it says it needs to train */
    cudnnForwardMode_t asked;
} layer;

static int handle_, descriptor_;

static cudnnStatus_t create(void **d)
{
    *d = &descriptor_;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t destroy(void *d)
{
    return d == &descriptor_ ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

static cudnnStatus_t set_layer(cudnnRNNDescriptor_t d, cudnnRNNAlgo_t algo, cudnnRNNMode_t mode,
                               cudnnRNNBiasMode_t bias, cudnnDirectionMode_t direction,
                               cudnnRNNInputMode_t input, cudnnDataType_t type,
                               cudnnDataType_t sums, cudnnMathType_t math, int32_t width,
                               int32_t hidden, int32_t projection, int32_t layers,
                               cudnnDropoutDescriptor_t dropout, uint32_t flags)
{
    (void)d, (void)algo, (void)flags, (void)dropout;
    CHECK(input == CUDNN_LINEAR_INPUT && type == CUDNN_DATA_FLOAT && sums == CUDNN_DATA_FLOAT);
    CHECK(math == CUDNN_FMA_MATH && width == WIDTH && hidden == HIDDEN && projection == HIDDEN);
    CHECK(layers == 1);
    layer.mode = mode;
    layer.two = direction == CUDNN_BIDIRECTIONAL;
    layer.bias = bias == CUDNN_RNN_DOUBLE_BIAS;
    layer.G = mode == CUDNN_LSTM ? 4 : mode == CUDNN_GRU ? 3 : 1;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t set_data(cudnnRNNDataDescriptor_t d, cudnnDataType_t type,
                              cudnnRNNDataLayout_t layout, int steps, int samples, int width,
                              const int lengths[], void *fill)
{
    (void)d, (void)type, (void)fill;
    CHECK(layout == CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED);
    CHECK(steps == STEPS && samples == SAMPLES && lengths[SAMPLES - 1] == STEPS);
    CHECK(width == WIDTH || width == HIDDEN * (1 + layer.two));
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t set_tensor(cudnnTensorDescriptor_t d, cudnnDataType_t type, int rank,
                                const int dims[], const int stride[])
{
    (void)d, (void)type;
    CHECK(rank == 3 && dims[0] == 1 + layer.two && dims[1] == SAMPLES && dims[2] == HIDDEN);
    CHECK(stride[0] == SAMPLES * HIDDEN && stride[1] == HIDDEN && stride[2] == 1);
    return CUDNN_STATUS_SUCCESS;
}

/* Each gate: a matrix and a vector, with something between; the last gate first, so that nobody
 * gets by with an order of his own. */
static size_t gate_floats(void)
{
    return HIDDEN * (HIDDEN > WIDTH ? HIDDEN : WIDTH) + HIDDEN + 2 * PAD;
}

static size_t gate_at(int d, int lin)
{
    return (size_t)((1 + layer.two) * 2 * layer.G - 1 - (d * 2 * layer.G + lin)) * gate_floats();
}

static cudnnStatus_t weight_size(cudnnHandle_t handle, cudnnRNNDescriptor_t d, size_t *bytes)
{
    (void)handle, (void)d;
    *bytes = (size_t)((1 + layer.two) * 2 * layer.G) * gate_floats() * sizeof(float);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t temp_sizes(cudnnHandle_t handle, cudnnRNNDescriptor_t d,
                                cudnnForwardMode_t mode, cudnnRNNDataDescriptor_t x, size_t *work,
                                size_t *reserve)
{
    (void)handle, (void)d, (void)x;
    *work = 64;
    *reserve = mode == CUDNN_FWD_MODE_TRAINING ? layer.reserve : 0;
    layer.asked = mode;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t weight_at(cudnnHandle_t handle, cudnnRNNDescriptor_t d, int32_t direction,
                               size_t bytes, const void *space, int32_t lin,
                               cudnnTensorDescriptor_t matrix, void **m,
                               cudnnTensorDescriptor_t vector, void **v)
{
    (void)handle, (void)d, (void)bytes, (void)matrix, (void)vector;
    float *at = (float *)space + gate_at(direction, lin);
    *m = at + PAD;
    *v = layer.bias ? at + gate_floats() - PAD - HIDDEN : NULL;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t set_stream(cudnnHandle_t handle, cudaStream_t stream)
{
    (void)handle, (void)stream;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- Its formulas ---------------------------------------------------------------------------- */

/* W x + b of one gate for one sample. */
static void product(double sum[HIDDEN], const float *space, int d, int lin, const double *x,
                    int width)
{
    const float *at = space + gate_at(d, lin);
    for (int i = 0; i < HIDDEN; i++) {
        sum[i] = layer.bias ? at[gate_floats() - PAD - HIDDEN + (size_t)i] : 0;
        for (int k = 0; k < width; k++)
            sum[i] += at[PAD + i * width + k] * x[k];
    }
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* One step of one sample: h and c become the next. */
static void cell(const float *space, int d, const double *x, double *h, double *c)
{
    double in[4][HIDDEN], again[4][HIDDEN];
    for (int k = 0; k < layer.G; k++) {
        product(in[k], space, d, k, x, WIDTH);
        product(again[k], space, d, layer.G + k, h, HIDDEN);
    }
    for (int j = 0; j < HIDDEN; j++) {
        double sum[4] = {0};
        for (int k = 0; k < layer.G; k++)
            sum[k] = in[k][j] + again[k][j];
        if (layer.mode == CUDNN_LSTM) {
            c[j] = sigmoid(sum[1]) * c[j] + sigmoid(sum[0]) * tanh(sum[2]);
            h[j] = sigmoid(sum[3]) * tanh(c[j]);
        } else if (layer.mode == CUDNN_GRU) {
            double fresh = tanh(in[2][j] + sigmoid(sum[0]) * again[2][j]), i = sigmoid(sum[1]);
            h[j] = (1 - i) * fresh + i * h[j];
        } else {
            h[j] = layer.mode == CUDNN_RNN_RELU ? fmax(sum[0], 0) : tanh(sum[0]);
        }
    }
}

static void one_way(const float *space, int d, int n, const float *x, float *y, const float *hx,
                    float *hy, const float *cx, float *cy)
{
    double h[HIDDEN], c[HIDDEN], in[WIDTH];
    int D = 1 + layer.two, state = (d * SAMPLES + n) * HIDDEN;
    for (int j = 0; j < HIDDEN; j++) {
        h[j] = hx ? hx[state + j] : 0;
        c[j] = cx ? cx[state + j] : 0;
    }
    for (int s = 0; s < STEPS; s++) {
        int t = d ? STEPS - 1 - s : s;
        for (int k = 0; k < WIDTH; k++)
            in[k] = x[(t * SAMPLES + n) * WIDTH + k];
        cell(space, d, in, h, c);
        for (int j = 0; j < HIDDEN; j++)
            y[((t * SAMPLES + n) * D + d) * HIDDEN + j] = (float)h[j];
    }
    for (int j = 0; j < HIDDEN; j++) {
        if (hy)
            hy[state + j] = (float)h[j];
        if (cy)
            cy[state + j] = (float)c[j];
    }
}

/* What the gradients are taken of. */
static struct {
    float x[STEPS * SAMPLES * WIDTH]; /* of the last forward run */
    const float *space, *hx, *cx, *dy, *dhy, *dcy;
} given;

static int forwards;

static cudnnStatus_t forward(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn,
                             cudnnForwardMode_t mode, const int32_t lengths[],
                             cudnnRNNDataDescriptor_t dx, const void *x,
                             cudnnRNNDataDescriptor_t dy, void *y, cudnnTensorDescriptor_t dh,
                             const void *hx, void *hy, cudnnTensorDescriptor_t dc, const void *cx,
                             void *cy, size_t weight_bytes, const void *space, size_t work_bytes,
                             void *work, size_t reserve_bytes, void *reserve)
{
    (void)handle, (void)rnn, (void)dx, (void)dy, (void)dh, (void)dc, (void)weight_bytes;
    (void)work_bytes;
    bool trains = mode == CUDNN_FWD_MODE_TRAINING;
    CHECK(mode == layer.asked && lengths[0] == STEPS && lengths[SAMPLES - 1] == STEPS);
    CHECK(reserve_bytes == (trains ? layer.reserve : 0) && !reserve == !trains);
    CHECK((uintptr_t)work % 16 == 0 && (uintptr_t)space % 16 == 0);
    forwards++;
    memcpy(given.x, x, sizeof given.x);
    memset(work, 0xff, 64);
    if (trains) {
        memset(reserve, 0, reserve_bytes);
        *(int *)reserve = MARK;
    }
    for (int d = 0; d <= layer.two; d++)
        for (int n = 0; n < SAMPLES; n++)
            one_way(space, d, n, x, y, hx, hy, cx, cy);
    return CUDNN_STATUS_SUCCESS;
}

/* ---- Its gradients: central differences of its formulas ---------------------------------------
 */

static double loss(const float *space, const float *x, const float *hx, const float *cx)
{
    static float y[STEPS * SAMPLES * 2 * HIDDEN], hy[2 * SAMPLES * HIDDEN],
        cy[2 * SAMPLES * HIDDEN];
    double sum = 0;
    int D = 1 + layer.two;
    for (int d = 0; d < D; d++)
        for (int n = 0; n < SAMPLES; n++)
            one_way(space, d, n, x, y, hx, hy, cx, cy);
    for (int i = 0; i < STEPS * SAMPLES * D * HIDDEN; i++)
        sum += (double)given.dy[i] * y[i];
    for (int i = 0; i < D * SAMPLES * HIDDEN; i++)
        sum += (given.dhy ? (double)given.dhy[i] * hy[i] : 0) +
               (given.dcy ? (double)given.dcy[i] * cy[i] : 0);
    return sum;
}

/* By each of the floats at `at`, which `loss` reads; the rest as given. */
static void differences(float *by, const float *space, int which, const float *at, int count)
{
    const double step = 1.0 / 64;
    float *own = mgpu_xcalloc((size_t)count, sizeof *own);
    if (count)
        memcpy(own, at, sizeof *own * (size_t)count);
    for (int i = 0; by && i < count; i++) {
        double side[4];
        for (int k = 0; k < 4; k++) { /* fourth order */
            own[i] = (float)(at[i] + (const double[]){-2, -1, 1, 2}[k] * step);
            side[k] = loss(which == 0 ? own : space, which == 1 ? own : given.x,
                           which == 2 ? own : given.hx, which == 3 ? own : given.cx);
        }
        by[i] += (float)((side[0] - 8 * side[1] + 8 * side[2] - side[3]) / (12 * step));
        own[i] = at[i];
    }
    free(own);
}

static cudnnStatus_t backward_data(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn,
                                   const int32_t lengths[], cudnnRNNDataDescriptor_t ydesc,
                                   const void *y, const void *dy, cudnnRNNDataDescriptor_t xdesc,
                                   void *dx, cudnnTensorDescriptor_t hdesc, const void *hx,
                                   const void *dhy, void *dhx, cudnnTensorDescriptor_t cdesc,
                                   const void *cx, const void *dcy, void *dcx, size_t weight_bytes,
                                   const void *space, size_t work_bytes, void *work,
                                   size_t reserve_bytes, void *reserve)
{
    int states = (1 + layer.two) * SAMPLES * HIDDEN;
    (void)handle, (void)rnn, (void)lengths, (void)ydesc, (void)y, (void)xdesc, (void)hdesc;
    (void)cdesc, (void)weight_bytes, (void)work_bytes, (void)work, (void)reserve_bytes;
    CHECK(*(int *)reserve == MARK); /* of a forward run, and not used up */
    *(int *)reserve = MARK + 1;
    given.space = space, given.dy = dy, given.dhy = dhy, given.dcy = dcy, given.hx = hx,
    given.cx = cx;
    memset(dx, 0, sizeof(float) * STEPS * SAMPLES * WIDTH);
    differences(dx, space, 1, given.x, STEPS * SAMPLES * WIDTH);
    if (dhx)
        memset(dhx, 0, sizeof(float) * (size_t)states);
    if (dcx)
        memset(dcx, 0, sizeof(float) * (size_t)states);
    differences(dhx, space, 2, hx, hx ? states : 0);
    differences(dcx, space, 3, cx, cx ? states : 0);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t backward_weights(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn,
                                      cudnnWgradMode_t mode, const int32_t lengths[],
                                      cudnnRNNDataDescriptor_t xdesc, const void *x,
                                      cudnnTensorDescriptor_t hdesc, const void *hx,
                                      cudnnRNNDataDescriptor_t ydesc, const void *y,
                                      size_t weight_bytes, void *dspace, size_t work_bytes,
                                      void *work, size_t reserve_bytes, void *reserve)
{
    (void)handle, (void)rnn, (void)lengths, (void)xdesc, (void)hdesc, (void)hx, (void)ydesc;
    (void)y, (void)work_bytes, (void)work, (void)reserve_bytes;
    CHECK(mode == CUDNN_WGRAD_MODE_ADD && *(int *)reserve == MARK + 1);
    CHECK(!memcmp(x, given.x, sizeof(float) * STEPS * SAMPLES * WIDTH));
    differences(dspace, given.space, 0, given.space, (int)(weight_bytes / sizeof(float)));
    return CUDNN_STATUS_SUCCESS;
}

/* ---- The driver's side ----------------------------------------------------------------------- */

static struct emulated *mover;
static int launches;

static CUresult launch(CUfunction function, unsigned blocks, unsigned y, unsigned z,
                       unsigned threads, unsigned threads_y, unsigned threads_z, unsigned shared,
                       CUstream stream, void **parameters, void **extra)
{
    struct mgpu_emit_launch l = {.blocks = blocks, .threads = (int)threads};
    (void)stream, (void)extra;
    CHECK(function == (CUfunction)&mover && y * z * threads_y * threads_z == 1 && shared == 0);
    launches++;
    CHECK_OK(emulate_launch(mover, &l, "move", parameters, EMULATE_SHUFFLED));
    return CUDA_SUCCESS;
}

static struct mgpu_library library = {
    .driver = {.cuLaunchKernel = launch},
    .mover = (CUfunction)&mover,
    .dnn = {.api = {.cudnnSetStream = set_stream,
                    .cudnnCreateTensorDescriptor = (void *)create,
                    .cudnnDestroyTensorDescriptor = (void *)destroy,
                    .cudnnSetTensorNdDescriptor = set_tensor,
                    .cudnnCreateRNNDescriptor = (void *)create,
                    .cudnnDestroyRNNDescriptor = (void *)destroy,
                    .cudnnSetRNNDescriptor_v8 = set_layer,
                    .cudnnCreateRNNDataDescriptor = (void *)create,
                    .cudnnDestroyRNNDataDescriptor = (void *)destroy,
                    .cudnnSetRNNDataDescriptor = set_data,
                    .cudnnGetRNNTempSpaceSizes = temp_sizes,
                    .cudnnGetRNNWeightSpaceSize = weight_size,
                    .cudnnGetRNNWeightParams = weight_at,
                    .cudnnRNNForward = forward,
                    .cudnnRNNBackwardData_v8 = backward_data,
                    .cudnnRNNBackwardWeights_v8 = backward_weights},
            .handle = (cudnnHandle_t)&handle_},
};

/* ---- Rows ------------------------------------------------------------------------------------ */

static const struct row {
    const char *name;
    int kind, direction;
    unsigned absent;      /* bit i: input i is */
    unsigned absent_grad; /* bit i: the gradient of output i does not arrive */
    bool relu, large;     /* large: cuDNN's reserve does not fit into ours */
    bool infers;          /* no gradient follows, nor has the node a reserve */
} rows[] = {
    {"LSTM", MGPU_LSTM, MGPU_RNN_FORWARD, 0, 0, false, false, false},
    {"LSTM that runs forward again", MGPU_LSTM, MGPU_RNN_FORWARD, 0, 0, false, true, false},
    {"LSTM from the end", MGPU_LSTM, MGPU_RNN_REVERSE, 0, 0, false, false, false},
    {"LSTM both ways", MGPU_LSTM, MGPU_RNN_BIDIRECTIONAL, 0, 0, false, false, false},
    {"LSTM both ways, forward again", MGPU_LSTM, MGPU_RNN_BIDIRECTIONAL, 0, 0, false, true, false},
    {"LSTM of X and weights alone", MGPU_LSTM, MGPU_RNN_FORWARD,
     1 << B | 1 << INITIAL_H | 1 << INITIAL_C, 1 << 2, false, false, false},
    {"LSTM whose last state counts", MGPU_LSTM, MGPU_RNN_FORWARD, 0, 1 << 0, false, false, false},
    {"GRU", MGPU_GRU, MGPU_RNN_FORWARD, 1 << INITIAL_C, 1 << 2, false, false, false},
    {"GRU both ways, no bias", MGPU_GRU, MGPU_RNN_BIDIRECTIONAL, 1 << INITIAL_C | 1 << B, 1 << 2,
     false, true, false},
    {"RNN from the end", MGPU_RNN, MGPU_RNN_REVERSE, 1 << INITIAL_C, 1 << 2, false, true, false},
    {"RNN of relu", MGPU_RNN, MGPU_RNN_FORWARD, 1 << INITIAL_C, 1 << 2, true, false, false},
    {"LSTM that is not trained", MGPU_LSTM, MGPU_RNN_FORWARD, 0, 0, false, true, true},
    {"GRU both ways, not trained", MGPU_GRU, MGPU_RNN_BIDIRECTIONAL, 1 << INITIAL_C, 1 << 2, false,
     true, true},
};

static struct mgpu_rnn_attrs attrs_of(const struct row *row)
{
    struct mgpu_rnn_attrs a = {.kind = row->kind, .direction = row->direction, .hidden = HIDDEN};
    a.linear_before_reset = row->kind == MGPU_GRU;
    for (int d = 0; d < 2; d++) {
        a.activation[3 * d] = row->relu               ? MGPU_ACT_RELU
                              : row->kind == MGPU_RNN ? MGPU_ACT_TANH
                                                      : MGPU_ACT_SIGMOID;
        a.activation[3 * d + 1] = a.activation[3 * d + 2] = MGPU_ACT_TANH;
    }
    return a;
}

static struct mgpu_value *add_input(struct mgpu_graph *g, const struct mgpu_rnn_attrs *a, int i)
{
    int64_t D = a->direction == MGPU_RNN_BIDIRECTIONAL ? 2 : 1;
    int64_t G = a->kind == MGPU_RNN ? 1 : a->kind == MGPU_GRU ? 3 : 4;
    const int64_t sizes[INPUTS][3] = {{STEPS, SAMPLES, WIDTH},
                                      {D, G * HIDDEN, WIDTH},
                                      {D, G * HIDDEN, HIDDEN},
                                      {D, 2 * G * HIDDEN},
                                      {SAMPLES},
                                      {D, SAMPLES, HIDDEN},
                                      {D, SAMPLES, HIDDEN}};
    struct mgpu_dim dims[3];
    int rank = 0;
    for (; rank < 3 && sizes[i][rank]; rank++)
        dims[rank] = mgpu_dim_const(sizes[i][rank]);
    return mgpu_graph_input(g, "x", MGPU_FLOAT, rank, dims);
}

static void feed(struct mgpu_run *run, const struct mgpu_value *v)
{
    double *contents = mgpu_xcalloc((size_t)mgpu_value_count(v), sizeof *contents);
    for (int64_t i = 0; i < mgpu_value_count(v); i++)
        contents[i] = (double)((i * 37 + v->id * 11) % 97 - 48) / 64;
    CHECK_OK(mgpu_run_feed(run, v, contents));
    free(contents);
}

/* Whether output i of the node has a meaning that is the same everywhere: not the reserve, nor the
 * gradient of an operand that is absent. */
static bool is_common(const struct mgpu_node *node, int i)
{
    static const int of[] = {X, W, R, B, INITIAL_H, INITIAL_C, 7};
    return node->op == &mgpu_op_rnn ? i < 3 : node->input[of[i]] != NULL;
}

/* Every output of the node as ref has it. `own`: where the library's outputs go, by value id. */
static void check_node(const struct row *row, struct mgpu_run *run, const struct mgpu_node *node,
                       void **own)
{
    void *operand[MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS], *workspace;
    struct mgpu_library_call *call;
    for (int i = 0; i < node->inputs + node->outputs; i++) {
        const struct mgpu_value *v = mgpu_library_operand(node, i);
        bool theirs = v && (i >= node->inputs || own[v->id]);
        if (theirs && !own[v->id])
            own[v->id] = mgpu_xcalloc((size_t)mgpu_value_bytes(v) + 1, 1);
        operand[i] = theirs ? own[v->id] : mgpu_run_data(run, v);
    }
    CHECK_(mgpu_library_accepts(&library, node), "%s: %s is refused", row->name, node->op->name);
    CHECK_OK(mgpu_library_prepare(&call, &library, node));
    CHECK_OK(mgpu_alloc(&workspace, (uint64_t)mgpu_library_workspace(call), "test"));
    memset(workspace, 0xff, (size_t)mgpu_library_workspace(call));
    launches = 0;
    CHECK_OK(mgpu_library_run(call, NULL, operand, workspace));
    CHECK_(launches >= 1 && launches <= 2, "%s: %d launches move its weights", row->name, launches);
    for (int i = 0; i < node->outputs; i++) {
        const struct mgpu_value *v = node->output[i];
        if (!is_common(node, i))
            continue;
        const double *want = mgpu_run_doubles(run, v);
        for (int64_t k = 0; k < mgpu_value_count(v); k++)
            CHECK_(fabs(((float *)own[v->id])[k] - want[k]) < 2e-4,
                   "%s: %s: output %d [%lld] is %g, not %g", row->name, node->op->name, i,
                   (long long)k, (double)((float *)own[v->id])[k], want[k]);
    }
    mgpu_free(workspace);
    mgpu_library_release(call);
}

static void check_row(const struct row *row)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_rnn_attrs attrs = attrs_of(row);
    struct mgpu_value *in[INPUTS] = {NULL}, *out[4], *dy[4] = {NULL}, *dx[INPUTS] = {NULL};
    bool wanted[INPUTS];
    struct mgpu_run run;
    for (int i = 0; i < INPUTS; i++) {
        bool present = i != LENGTHS && !(row->absent >> i & 1);
        in[i] = present ? add_input(g, &attrs, i) : NULL;
        wanted[i] = present;
    }
    CHECK_OK(mgpu_graph_node(g, &mgpu_op_rnn, &attrs, INPUTS, in, 4, out));
    for (int i = 0; i < 3; i++)
        if (!(row->absent_grad >> i & 1))
            dy[i] = mgpu_graph_input(g, "dy", MGPU_FLOAT, out[i]->rank, out[i]->dims);
    if (row->infers)
        out[0]->producer->output[3] = NULL;
    else if (!row->relu) /* has kinks, and differences no gradient */
        CHECK_OK(mgpu_op_rnn.gradient(g, out[0]->producer, dy, wanted, dx));
    mgpu_run_init(&run, g, &mgpu_backend_ref);
    for (int i = 0; i < g->input_count; i++)
        feed(&run, g->inputs[i]);
    CHECK_OK(mgpu_run_all(&run));
    layer.reserve = row->large ? 1 << 20 : sizeof(int);
    forwards = 0;
    void **own = mgpu_xcalloc((size_t)g->value_count, sizeof *own);
    for (int i = 0; i < g->node_count; i++)
        check_node(row, &run, g->nodes[i], own);
    CHECK(forwards == 1 + (row->large && !row->relu && !row->infers));
    CHECK((layer.asked == CUDNN_FWD_MODE_INFERENCE) == row->infers);
    for (int i = 0; i < g->value_count; i++)
        free(own[i]);
    free(own);
    mgpu_run_free(&run);
    mgpu_graph_free(g);
}

/* What ONNX can say and cuDNN cannot. */
static void check_refused(void)
{
    struct mgpu_graph *g = mgpu_graph_new();
    for (int i = 0; i < 5; i++) {
        struct mgpu_rnn_attrs a = attrs_of(&rows[i == 0 ? 7 : 0]);
        struct mgpu_value *in[8] = {NULL}, *out[4];
        for (int k = X; k <= B; k++)
            in[k] = add_input(g, &a, k);
        if (i == 0)
            a.linear_before_reset = false;
        else if (i == 1)
            a.clip = 3;
        else if (i == 2)
            a.activation[2] = MGPU_ACT_RELU;
        else if (i == 3)
            a.input_forget = true;
        else
            in[7] = mgpu_graph_input(
                g, "P", MGPU_FLOAT, 2,
                (struct mgpu_dim[]){mgpu_dim_const(1), mgpu_dim_const(3 * HIDDEN)});
        CHECK_OK(mgpu_graph_node(g, &mgpu_op_rnn, &a, 8, in, 4, out));
        CHECK(!mgpu_library_accepts(&library, out[0]->producer));
    }
    mgpu_graph_free(g);
}

/* ---- Moves ----------------------------------------------------------------------------------- */

enum { PLACE = 4096 };

/* One after the other, byte by byte. */
static void move_plainly(const struct mgpu_move *m)
{
    for (int64_t b = 0; b < m->blocks; b++)
        for (int64_t r = 0; r < m->rows; r++)
            for (int64_t i = 0; i < m->width; i++) {
                char *to = (char *)m->to + b * m->to_block + r * m->to_row + i;
                *to = m->from ? ((const char *)m->from)[b * m->from_block + r * m->from_row + i]
                              : ((const char *)&m->value)[i % 4];
            }
}

/* Rows, blocks, backwards, a fill and widths of each unit; all that is not theirs stays. */
static void check_moves(void)
{
    static _Alignas(16) char from[PLACE], want[PLACE], got[PLACE];
    const struct mgpu_move list[] = {
        {.to = got, .from = from, .width = 1600},
        {.to = got + 1602, .from = from + 14, .width = 6},
        {.to = got + 1612,
         .from = from + 2000,
         .width = 12,
         .rows = 3,
         .to_row = 20,
         .from_row = -12},
        {.to = got + 1680,
         .from = from + 32,
         .width = 16,
         .rows = 2,
         .blocks = 3,
         .to_row = 48,
         .to_block = 96,
         .from_row = 16,
         .from_block = 64},
        {.to = got + 2000, .value = 0x01020304, .width = 32},
        {.to = got + 2100, .value = 7, .width = 36},
        {.to = got + 2200, .from = from, .width = 0},
    };
    struct mgpu_moves m = {0};
    for (int i = 0; i < PLACE; i++)
        from[i] = (char)(i * 7 + i / 256);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        mgpu_moves_add(&m, list[i]);
    CHECK(m.count == 6 && m.move[0].unit == 16 && m.move[1].unit == 2 && m.move[2].unit == 4);
    for (int i = 0; i < m.count; i++)
        move_plainly(&m.move[i]);
    memcpy(want, got, PLACE);
    memset(got, 0, PLACE);
    CHECK_OK(mgpu_moves_run(library.mover, &library.driver, &m, NULL));
    CHECK(!memcmp(want, got, PLACE));
}

/* What NVRTC makes of the kernel, where there is one. */
static void check_compiled(void)
{
    static const int kinds[] = {75, 80, 90, 100};
    for (int i = 0; i < 4; i++) {
        struct mgpu_cubin cubin;
        struct mgpu_kernel_use use;
        int rc = mgpu_cuda_compile(&cubin, mgpu_moves_text, kinds[i]);
        if (rc == MGPU_EDEVICE)
            return;
        CHECK_OK(rc);
        CHECK_(rc < 0 || (mgpu_cubin_use(&cubin, "move", &use) == 0 && use.spilled == 0),
               "the mover spills, or is not there");
        mgpu_cubin_free(&cubin);
    }
}

int main(void)
{
    if (!emulate_possible()) {
        fprintf(stderr, "skipped: no C compiler, or the thread sanitizer\n");
        return 77;
    }
    CHECK_OK(emulate_open(&mover, mgpu_moves_text,
                          "void call_move(void **p) { move(*(struct moves *)p[0]); }\n"));
    check_moves();
    check_compiled();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_row(&rows[i]);
    check_refused();
    emulate_close(mover);
    return test_end();
}
