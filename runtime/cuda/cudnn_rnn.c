/* rnn and rnn_grad through cuDNN's recurrent layers.
 *
 * Weights lie in a space of cuDNN's own, gate by gate. What differs from ONNX:
 *
 *     gates     ours i o f c, z r h     cuDNN's i f c o, r z h
 *     y         ours [T,D,N,H]          cuDNN's [T,N,D*H]
 *     reverse   none alone: the steps are moved in reverse order
 *
 * All of it is moved in one launch before cuDNN runs and one behind it (moves.h): to LSTM weights
 * alone a copy for each gate would be 16, and to a sequence in reverse one for each step.
 *
 * The reserve is kept in the operator's where cuDNN's fits there (backward writes to it, and nobody
 * reads it after that); else backward runs forward again. Without the operator's there is no
 * gradient, and forward runs as inference, which needs none. cuDNN has no clip, peepholes, other
 * activations, or a GRU that resets before its product; and it takes sequence lengths from the
 * host, so that only whole sequences remain: the rest is generated (runtime/emit/rnn.c). Gradients
 * of operands that are absent are not written: nobody can want them. */
#include "runtime/base/status.h"
#include "runtime/cuda/library_private.h"
#include "runtime/cuda/moves.h"
#include "runtime/ops/rnn.h"

#include <stdlib.h>
#include <string.h>

enum { X, W, R, B, LENGTHS, INITIAL_H, INITIAL_C, P, Y, RESERVE, DY, DY_H, DY_C };
enum { OUT_Y, OUT_Y_H, OUT_Y_C, OUT_RESERVE };
enum { DX, DW, DR, DB, D_INITIAL_H, D_INITIAL_C };
enum { ALIGNMENT = 256 };

/* Parts of the workspace. */
enum { WEIGHTS, D_WEIGHTS, LENGTH, X_STEPS, Y_STEPS, DY_STEPS, DX_STEPS, KEPT, WORK, PARTS };

struct rnn {
    bool backward, reverse, bias, keeps; /* keeps: the operator's reserve holds cuDNN's */
    int64_t T, N, D, I, H, G, size;      /* size: bytes of an element */
    cudnnForwardMode_t mode;
    cudnnRNNDescriptor_t rnn;
    cudnnRNNDataDescriptor_t x, y;
    cudnnTensorDescriptor_t state, matrix, vector;
    size_t weights, work, reserve; /* bytes */
    int64_t at[PARTS];
};

/* A run of it. */
struct going {
    const struct rnn *r;
    const struct mgpu_library *library;
    const struct mgpu_node *node;
    CUstream stream;
    void *const *operand;
    char *workspace;
    struct mgpu_moves moves; /* that are to be done */
};

static const struct mgpu_value *input(const struct mgpu_node *node, int i)
{
    return i < node->inputs ? node->input[i] : NULL;
}

static const struct mgpu_value *output(const struct mgpu_node *node, int i)
{
    return i < node->outputs ? node->output[i] : NULL;
}

static void *in(const struct going *g, int i)
{
    return input(g->node, i) ? g->operand[i] : NULL;
}

static void *out(const struct going *g, int i)
{
    return output(g->node, i) ? g->operand[g->node->inputs + i] : NULL;
}

/* ---- Which nodes ----------------------------------------------------------------------------- */

static bool has_activations(const struct mgpu_rnn_attrs *a)
{
    int directions = a->direction == MGPU_RNN_BIDIRECTIONAL ? 2 : 1;
    for (int d = 0; d < directions; d++) {
        const int64_t *f = &a->activation[3 * d];
        bool plain = a->kind == MGPU_RNN ? f[0] == a->activation[0] &&
                                               (f[0] == MGPU_ACT_TANH || f[0] == MGPU_ACT_RELU)
                                         : f[0] == MGPU_ACT_SIGMOID && f[1] == MGPU_ACT_TANH;
        if (!plain || (a->kind == MGPU_LSTM && f[2] != MGPU_ACT_TANH))
            return false;
    }
    return true;
}

/* All samples as long as X. */
static bool whole_lengths(const struct mgpu_node *node)
{
    const struct mgpu_value *lengths = input(node, LENGTHS);
    bool whole = !lengths || lengths->kind == MGPU_VALUE_CONSTANT;
    for (int64_t i = 0; lengths && whole && i < mgpu_value_count(lengths); i++)
        whole = mgpu_get_int(lengths->data, lengths->type, i) == node->input[X]->dims[0].value;
    return whole;
}

static bool accepts(const struct mgpu_node *node)
{
    const struct mgpu_rnn_attrs *a = node->attrs;
    cudnnDataType_t type;
    if (node->op != &mgpu_op_rnn && node->op != &mgpu_op_rnn_grad)
        return false;
    bool resets_after = a->kind != MGPU_GRU || a->linear_before_reset;
    bool like_cudnn = has_activations(a) && resets_after && a->clip == 0 && !a->input_forget;
    return like_cudnn && !input(node, P) && whole_lengths(node) &&
           mgpu_cudnn_has_type(node->input[X]->type, &type) && mgpu_value_count(node->input[X]) > 0;
}

/* ---- Descriptors ----------------------------------------------------------------------------- */

static cudnnStatus_t set_rnn(const struct rnn *r, const struct mgpu_library_call *call,
                             cudnnDataType_t type)
{
    const struct mgpu_rnn_attrs *a = call->node->attrs;
    cudnnMathType_t math = type != CUDNN_DATA_FLOAT      ? CUDNN_TENSOR_OP_MATH
                           : call->library->options.tf32 ? CUDNN_DEFAULT_MATH
                                                         : CUDNN_FMA_MATH;
    cudnnRNNMode_t mode = a->kind == MGPU_LSTM                ? CUDNN_LSTM
                          : a->kind == MGPU_GRU               ? CUDNN_GRU
                          : a->activation[0] == MGPU_ACT_RELU ? CUDNN_RNN_RELU
                                                              : CUDNN_RNN_TANH;
    return call->library->dnn.api.cudnnSetRNNDescriptor_v8(
        r->rnn, CUDNN_RNN_ALGO_STANDARD, mode, r->bias ? CUDNN_RNN_DOUBLE_BIAS : CUDNN_RNN_NO_BIAS,
        r->D == 2 ? CUDNN_BIDIRECTIONAL : CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT, type,
        CUDNN_DATA_FLOAT, math, (int32_t)r->I, (int32_t)r->H, (int32_t)r->H, 1, NULL,
        CUDNN_RNN_PADDED_IO_ENABLED);
}

static cudnnStatus_t set_data(const struct rnn *r, const struct mgpu_cuda_dnn *api,
                              cudnnDataType_t type)
{
    float zero = 0; /* all zero bits in every type */
    int *lengths = mgpu_xcalloc((size_t)r->N, sizeof *lengths);
    for (int64_t i = 0; i < r->N; i++)
        lengths[i] = (int)r->T;
    cudnnStatus_t s =
        api->cudnnSetRNNDataDescriptor(r->x, type, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED,
                                       (int)r->T, (int)r->N, (int)r->I, lengths, &zero);
    if (s == CUDNN_STATUS_SUCCESS)
        s = api->cudnnSetRNNDataDescriptor(r->y, type, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED,
                                           (int)r->T, (int)r->N, (int)(r->D * r->H), lengths,
                                           &zero);
    free(lengths);
    return s;
}

static int make_descriptors(struct rnn *r, const struct mgpu_library_call *call)
{
    const struct mgpu_cuda_dnn *api = &call->library->dnn.api;
    int dims[] = {(int)r->D, (int)r->N, (int)r->H}, stride[] = {dims[1] * dims[2], dims[2], 1};
    cudnnTensorDescriptor_t *tensor[] = {&r->state, &r->matrix, &r->vector};
    cudnnRNNDataDescriptor_t *data[] = {&r->x, &r->y};
    cudnnDataType_t type;
    mgpu_cudnn_has_type(call->node->input[X]->type, &type);
    cudnnStatus_t s = api->cudnnCreateRNNDescriptor(&r->rnn);
    for (int i = 0; i < 3 && s == CUDNN_STATUS_SUCCESS; i++)
        s = api->cudnnCreateTensorDescriptor(tensor[i]);
    for (int i = 0; i < 2 && s == CUDNN_STATUS_SUCCESS; i++)
        s = api->cudnnCreateRNNDataDescriptor(data[i]);
    if (s == CUDNN_STATUS_SUCCESS)
        s = set_rnn(r, call, type);
    if (s == CUDNN_STATUS_SUCCESS)
        s = set_data(r, api, type);
    if (s == CUDNN_STATUS_SUCCESS)
        s = api->cudnnSetTensorNdDescriptor(r->state, type, 3, dims, stride);
    return mgpu_dnn_status(&call->library->dnn.api, s, "describing a recurrent layer");
}

/* ---- Workspace ------------------------------------------------------------------------------- */

/* Without a GPU cuDNN says no sizes: as much as all gates of all steps twice, and the weights with
 * biases. */
static void guess_sizes(struct rnn *r)
{
    int64_t states = r->T * r->N * r->D * r->H * r->size;
    r->weights = (size_t)(r->D * r->G * r->H * (r->I + r->H + 2) * r->size);
    r->reserve = r->mode == CUDNN_FWD_MODE_TRAINING ? (size_t)(states * (r->G + 2)) : 0;
    r->work = (size_t)(2 * states * (r->G + 2));
}

static int find_sizes(struct rnn *r, const struct mgpu_cudnn *dnn)
{
    if (!dnn->handle) {
        guess_sizes(r);
        return 0;
    }
    cudnnStatus_t s = dnn->api.cudnnGetRNNTempSpaceSizes(dnn->handle, r->rnn, r->mode, r->x,
                                                         &r->work, &r->reserve);
    if (s == CUDNN_STATUS_SUCCESS)
        s = dnn->api.cudnnGetRNNWeightSpaceSize(dnn->handle, r->rnn, &r->weights);
    return mgpu_dnn_status(&dnn->api, s, "asking for the sizes of a recurrent layer");
}

static void place_parts(struct rnn *r, struct mgpu_library_call *call)
{
    const struct mgpu_node *node = call->node;
    const struct mgpu_value *reserve =
        r->backward ? input(node, RESERVE) : output(node, OUT_RESERVE);
    r->keeps = reserve && (size_t)mgpu_value_bytes(reserve) >= r->reserve;
    int64_t x = r->T * r->N * r->I * r->size, y = r->T * r->N * r->D * r->H * r->size;
    bool turned = r->reverse || r->D == 2;
    int64_t bytes[PARTS] = {
        [WEIGHTS] = (int64_t)r->weights,
        [LENGTH] = r->N * (int64_t)sizeof(int32_t),
        [X_STEPS] = r->reverse ? x : 0,
        [Y_STEPS] = turned || !(r->backward || output(node, OUT_Y)) ? y : 0,
        [KEPT] = r->keeps ? 0 : (int64_t)r->reserve,
        [WORK] = (int64_t)r->work,
    };
    if (r->backward) {
        bytes[D_WEIGHTS] = (int64_t)r->weights;
        bytes[DY_STEPS] = turned || !input(node, DY) ? y : 0;
        bytes[DX_STEPS] = r->reverse || !output(node, DX) ? x : 0;
        if (!r->keeps) /* forward again, not over Y */
            bytes[Y_STEPS] = y;
    }
    for (int i = 0; i < PARTS; i++) {
        r->at[i] = bytes[i] ? call->workspace : -1;
        call->workspace += (bytes[i] + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
}

/* Once for all layers; nothing runs without a GPU. */
static int load_mover(struct mgpu_library *l)
{
    if (!l->dnn.handle || l->mover)
        return 0;
    return mgpu_moves_load(&l->module, &l->mover, &l->driver, l->options.sm);
}

static int prepare(struct mgpu_library_call *call)
{
    const struct mgpu_node *node = call->node;
    const struct mgpu_rnn_attrs *a = node->attrs;
    const struct mgpu_value *x = node->input[X];
    struct rnn *r = call->state = mgpu_xcalloc(1, sizeof *r);
    *r = (struct rnn){.backward = node->op == &mgpu_op_rnn_grad,
                      .reverse = a->direction == MGPU_RNN_REVERSE,
                      .bias = input(node, B) != NULL,
                      .mode = node->op == &mgpu_op_rnn_grad || output(node, OUT_RESERVE)
                                  ? CUDNN_FWD_MODE_TRAINING
                                  : CUDNN_FWD_MODE_INFERENCE,
                      .T = x->dims[0].value,
                      .N = x->dims[1].value,
                      .I = x->dims[2].value,
                      .D = a->direction == MGPU_RNN_BIDIRECTIONAL ? 2 : 1,
                      .H = a->hidden,
                      .G = a->kind == MGPU_RNN   ? 1
                           : a->kind == MGPU_GRU ? 3
                                                 : 4,
                      .size = (int64_t)mgpu_dtype_size(x->type)};
    if (r->T * r->N > INT32_MAX || r->I > INT32_MAX)
        return mgpu_fail(MGPU_EUNSUPPORTED, "cuDNN: %lld steps of %lld samples are too many",
                         (long long)r->T, (long long)r->N);
    MGPU_TRY(make_descriptors(r, call));
    MGPU_TRY(find_sizes(r, &call->library->dnn));
    place_parts(r, call);
    return load_mover(call->library);
}

static void release(struct mgpu_library_call *call)
{
    struct rnn *r = call->state;
    const struct mgpu_cuda_dnn *api = &call->library->dnn.api;
    cudnnTensorDescriptor_t tensor[] = {r->state, r->matrix, r->vector};
    if (r->rnn)
        api->cudnnDestroyRNNDescriptor(r->rnn);
    if (r->x)
        api->cudnnDestroyRNNDataDescriptor(r->x);
    if (r->y)
        api->cudnnDestroyRNNDataDescriptor(r->y);
    for (int i = 0; i < 3; i++)
        if (tensor[i])
            api->cudnnDestroyTensorDescriptor(tensor[i]);
    free(r);
}

/* ---- Moving ---------------------------------------------------------------------------------- */

/* NULL: the part has no bytes. */
static void *scratch(const struct going *g, int part)
{
    return g->r->at[part] < 0 ? NULL : g->workspace + g->r->at[part];
}

static int64_t bytes_of_steps(const struct rnn *r, int64_t width)
{
    return r->T * r->N * width * r->size;
}

static void fill(struct going *g, void *at, unsigned value, int64_t bytes)
{
    mgpu_moves_add(&g->moves,
                   (struct mgpu_move){.to = at, .value = value, .width = (bytes + 3) / 4 * 4});
}

/* The last step first. */
static void reverse(struct going *g, void *to, const void *from, int64_t width)
{
    int64_t step = g->r->N * width * g->r->size;
    mgpu_moves_add(&g->moves, (struct mgpu_move){.to = to,
                                                 .from = (const char *)from + (g->r->T - 1) * step,
                                                 .to_row = step,
                                                 .from_row = -step,
                                                 .width = step,
                                                 .rows = g->r->T});
}

/* Direction d: between [T,N,2,H] of cuDNN's and [T,2,N,H] of ours. */
static void move_direction(struct going *g, char *theirs, char *ours, int d, bool to_ours)
{
    int64_t row = g->r->H * g->r->size, rows = g->r->N;
    struct mgpu_move there = {.to = theirs + d * row,
                              .from = ours + d * rows * row,
                              .to_row = 2 * row,
                              .from_row = row,
                              .to_block = 2 * rows * row,
                              .from_block = 2 * rows * row,
                              .width = row,
                              .rows = rows,
                              .blocks = g->r->T};
    struct mgpu_move back = there;
    back.to = ours + d * rows * row, back.to_row = there.from_row;
    back.from = theirs + d * row, back.from_row = there.to_row;
    mgpu_moves_add(&g->moves, to_ours ? back : there);
}

/* Y or its gradient, between ours and cuDNN's. */
static void turn(struct going *g, void *theirs, void *ours, bool to_ours)
{
    if (g->r->reverse)
        reverse(g, to_ours ? ours : theirs, to_ours ? theirs : ours, g->r->H);
    for (int d = 0; d < 2 && !g->r->reverse; d++)
        move_direction(g, theirs, ours, d, to_ours);
}

static int move_all(struct going *g)
{
    return mgpu_prefix(mgpu_moves_run(g->library->mover, &g->library->driver, &g->moves, g->stream),
                       "moving weights and steps");
}

/* ---- Weights --------------------------------------------------------------------------------- */

/* Where our gate k stands among cuDNN's. */
static int theirs_of(int64_t G, int64_t k)
{
    static const int lstm[] = {0, 3, 1, 2}, gru[] = {1, 0, 2};
    return G == 4 ? lstm[k] : G == 3 ? gru[k] : 0;
}

/* Between one of ours and one of cuDNN's; ours NULL: it is left out. */
static void move_part(struct going *g, void *theirs, char *ours, int64_t at, int64_t bytes,
                      bool to_ours)
{
    if (!ours)
        return;
    struct mgpu_move m = {.width = bytes};
    m.to = to_ours ? ours + at : theirs;
    m.from = to_ours ? theirs : ours + at;
    mgpu_moves_add(&g->moves, m);
}

static int move_gate(struct going *g, void *space, char *w, char *b, int64_t d, int64_t k,
                     bool recurrent, bool to_ours)
{
    const struct rnn *r = g->r;
    int64_t vector_bytes = r->H * r->size, bytes = vector_bytes * (recurrent ? r->H : r->I);
    int lin = theirs_of(r->G, k) + (recurrent ? (int)r->G : 0);
    void *matrix = NULL, *vector = NULL;
    cudnnStatus_t s = g->library->dnn.api.cudnnGetRNNWeightParams(
        g->library->dnn.handle, r->rnn, (int32_t)d, r->weights, space, lin, r->matrix, &matrix,
        r->vector, &vector);
    MGPU_TRY(mgpu_dnn_status(&g->library->dnn.api, s, "finding the weights of a recurrent layer"));
    move_part(g, matrix, w, (d * r->G + k) * bytes, bytes, to_ours);
    move_part(g, vector, b, ((2 * d + recurrent) * r->G + k) * vector_bytes, vector_bytes, to_ours);
    return 0;
}

/* Between our weights and a space of cuDNN's; where one of ours is NULL it is left out. */
static int move_weights(struct going *g, void *space, void *w, void *r, void *b, bool to_ours)
{
    for (int64_t d = 0; d < g->r->D; d++)
        for (int64_t k = 0; k < g->r->G; k++) {
            MGPU_TRY(move_gate(g, space, w, b, d, k, false, to_ours));
            MGPU_TRY(move_gate(g, space, r, b, d, k, true, to_ours));
        }
    return 0;
}

/* ---- Running --------------------------------------------------------------------------------- */

/* Where cuDNN reads and writes. */
struct places {
    void *x, *y, *dy, *dx, *reserve;
};

static struct places places_of(const struct going *g)
{
    const struct rnn *r = g->r;
    bool back = r->backward;
    void *kept = back ? in(g, RESERVE) : out(g, OUT_RESERVE);
    return (struct places){.x = r->at[X_STEPS] < 0 ? in(g, X) : scratch(g, X_STEPS),
                           .y = r->at[Y_STEPS] >= 0 ? scratch(g, Y_STEPS)
                                : back              ? in(g, Y)
                                                    : out(g, OUT_Y),
                           .dy = r->at[DY_STEPS] < 0 && back ? in(g, DY) : scratch(g, DY_STEPS),
                           .dx = r->at[DX_STEPS] < 0 && back ? out(g, DX) : scratch(g, DX_STEPS),
                           .reserve = r->keeps ? kept : scratch(g, KEPT)};
}

static bool wants_weights(const struct going *g)
{
    return out(g, DW) || out(g, DR) || out(g, DB);
}

/* What backward reads and adds to: Y with the reserve that belongs to it (where forward runs again
 * it writes both), its gradient, and zeros for the weights' gradients. */
static void move_for_backward(struct going *g, const struct places *p)
{
    const struct rnn *r = g->r;
    if (r->keeps && p->y != in(g, Y))
        turn(g, p->y, in(g, Y), false);
    if (!in(g, DY))
        fill(g, p->dy, 0, bytes_of_steps(r, r->D * r->H));
    else if (p->dy != in(g, DY))
        turn(g, p->dy, in(g, DY), false);
    if (wants_weights(g))
        fill(g, scratch(g, D_WEIGHTS), 0, (int64_t)r->weights);
}

static int move_before(struct going *g, const struct places *p)
{
    const struct rnn *r = g->r;
    MGPU_TRY(move_weights(g, scratch(g, WEIGHTS), in(g, W), in(g, R), in(g, B), false));
    fill(g, scratch(g, LENGTH), (unsigned)r->T, (int64_t)sizeof(int32_t) * r->N);
    if (p->x != in(g, X))
        reverse(g, p->x, in(g, X), r->I);
    if (r->backward)
        move_for_backward(g, p);
    MGPU_TRY(move_all(g));
    g->moves.count = 0;
    return 0;
}

static int run_layer(const struct going *g, const struct places *p, void *h, void *c)
{
    const struct rnn *r = g->r;
    const struct mgpu_cudnn *dnn = &g->library->dnn;
    return mgpu_dnn_status(
        &dnn->api,
        dnn->api.cudnnRNNForward(dnn->handle, r->rnn, r->mode, scratch(g, LENGTH), r->x, p->x, r->y,
                                 p->y, r->state, in(g, INITIAL_H), h, r->state, in(g, INITIAL_C), c,
                                 r->weights, scratch(g, WEIGHTS), r->work, scratch(g, WORK),
                                 r->reserve, p->reserve),
        "running a recurrent layer (cudnnRNNForward)");
}

static int run_forward(struct going *g)
{
    struct places p = places_of(g);
    MGPU_TRY(move_before(g, &p));
    MGPU_TRY(run_layer(g, &p, out(g, OUT_Y_H), g->r->G == 4 ? out(g, OUT_Y_C) : NULL));
    if (out(g, OUT_Y) && p.y != out(g, OUT_Y))
        turn(g, p.y, out(g, OUT_Y), true);
    return move_all(g);
}

static int find_data_gradients(const struct going *g, const struct places *p)
{
    const struct rnn *r = g->r;
    const struct mgpu_cudnn *dnn = &g->library->dnn;
    bool lstm = r->G == 4;
    cudnnStatus_t s = dnn->api.cudnnRNNBackwardData_v8(
        dnn->handle, r->rnn, scratch(g, LENGTH), r->y, p->y, p->dy, r->x, p->dx, r->state,
        in(g, INITIAL_H), in(g, DY_H), out(g, D_INITIAL_H), r->state, in(g, INITIAL_C),
        lstm ? in(g, DY_C) : NULL, lstm ? out(g, D_INITIAL_C) : NULL, r->weights,
        scratch(g, WEIGHTS), r->work, scratch(g, WORK), r->reserve, p->reserve);
    return mgpu_dnn_status(&dnn->api, s,
                           "running a recurrent layer backward (cudnnRNNBackwardData_v8)");
}

static int find_weight_gradients(struct going *g, const struct places *p)
{
    const struct rnn *r = g->r;
    const struct mgpu_cudnn *dnn = &g->library->dnn;
    cudnnStatus_t s = dnn->api.cudnnRNNBackwardWeights_v8(
        dnn->handle, r->rnn, CUDNN_WGRAD_MODE_ADD, scratch(g, LENGTH), r->x, p->x, r->state,
        in(g, INITIAL_H), r->y, p->y, r->weights, scratch(g, D_WEIGHTS), r->work, scratch(g, WORK),
        r->reserve, p->reserve);
    MGPU_TRY(mgpu_dnn_status(
        &dnn->api, s, "the gradient of a recurrent layer's weights (cudnnRNNBackwardWeights_v8)"));
    return move_weights(g, scratch(g, D_WEIGHTS), out(g, DW), out(g, DR),
                        r->bias ? out(g, DB) : NULL, true);
}

static int run_backward(struct going *g)
{
    struct places p = places_of(g);
    MGPU_TRY(move_before(g, &p));
    if (!g->r->keeps)
        MGPU_TRY(run_layer(g, &p, NULL, NULL));
    MGPU_TRY(find_data_gradients(g, &p));
    if (wants_weights(g))
        MGPU_TRY(find_weight_gradients(g, &p));
    if (out(g, DX) && p.dx != out(g, DX))
        reverse(g, out(g, DX), p.dx, g->r->I);
    return move_all(g);
}

static int run(struct mgpu_library_call *call, void *stream, void *const *operand, void *workspace)
{
    const struct mgpu_cudnn *dnn = &call->library->dnn;
    struct going g = {.r = call->state,
                      .library = call->library,
                      .node = call->node,
                      .stream = stream,
                      .operand = operand,
                      .workspace = workspace};
    MGPU_TRY(mgpu_dnn_status(&dnn->api, dnn->api.cudnnSetStream(dnn->handle, stream),
                             "turning to a stream (cudnnSetStream)"));
    return g.r->backward ? run_backward(&g) : run_forward(&g);
}

const struct mgpu_library_family mgpu_library_rnn = {
    .accepts = accepts,
    .prepare = prepare,
    .release = release,
    .run = run,
};
