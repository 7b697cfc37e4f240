/* Attention and its gradient as graphs of cuDNN's: the operations that its attention engines know,
 * in their order. Nothing of T x S lies in memory forward. Backward, the gradient of queries is
 * taken from one half-type array of T x S in the plan's workspace: the other way, which adds to it
 * in whatever order blocks come, does not give the same bits each time.
 *
 * [N,H,rows,width] is the order of axes in all graphs; keys are turned for the first product. */
#include "runtime/cuda/cudnn_build.h"
#include "runtime/ops/attention.h"

enum { Q, K, V, MASK, Y, STATISTICS, DY, DQ, DK, DV };

/* A graph in the making. */
struct attention {
    struct mgpu_cudnn_graph *g;
    const struct mgpu_node *node;
    struct mgpu_attention a;
    cudnnDataType_t type;
    cudnnBackendDescriptor_t scale;
};

static struct attention begin(struct mgpu_cudnn_graph *g, const struct mgpu_node *node)
{
    struct attention at = {.g = g, .node = node, .a = mgpu_attention_of(node)};
    mgpu_cudnn_has_type(node->input[Q]->type, &at.type);
    return at;
}

static void turn(struct mgpu_cudnn_tensor *t)
{
    int64_t size = t->dims[2], step = t->stride[2];
    t->dims[2] = t->dims[3];
    t->stride[2] = t->stride[3];
    t->dims[3] = size;
    t->stride[3] = step;
}

/* Operand `i` with so many rows a head; `turned`: [N,H,width,rows]. */
static struct mgpu_cudnn_tensor rows(const struct attention *at, int i, int64_t count,
                                     int64_t width, bool turned)
{
    struct mgpu_cudnn_tensor t = {.id = i + 1,
                                  .type = at->type,
                                  .rank = 4,
                                  .dims = {at->a.samples, at->a.heads, count, width},
                                  .stride = {mgpu_attention_at(at->node, 1, 0, count, width),
                                             mgpu_attention_at(at->node, 0, 1, count, width),
                                             mgpu_attention_step(at->node, width), 1}};
    if (turned)
        turn(&t);
    return t;
}

static cudnnBackendDescriptor_t operand(const struct attention *at, int i, int64_t count,
                                        int64_t width, bool turned)
{
    struct mgpu_cudnn_tensor t = rows(at, i, count, width, turned);
    return mgpu_cudnn_tensor(at->g, &t);
}

/* [N,H,T,columns] without gaps; id 0: between operations. */
static cudnnBackendDescriptor_t packed(const struct attention *at, int64_t id, cudnnDataType_t type,
                                       int64_t columns)
{
    struct mgpu_cudnn_tensor t = {
        .id = id,
        .type = type,
        .rank = 4,
        .dims = {at->a.samples, at->a.heads, at->a.queries, columns},
    };
    mgpu_cudnn_strides(&t, false);
    return mgpu_cudnn_tensor(at->g, &t);
}

/* Between operations: scores and what has their shape; a number for each query. */
static cudnnBackendDescriptor_t scores(const struct attention *at, cudnnDataType_t type)
{
    return packed(at, 0, type, at->a.keys);
}

static cudnnBackendDescriptor_t numbers(const struct attention *at)
{
    return packed(at, 0, CUDNN_DATA_FLOAT, 1);
}

static cudnnBackendDescriptor_t mask(const struct attention *at)
{
    const struct mgpu_value *v = at->node->input[MASK];
    struct mgpu_cudnn_tensor t = {.id = MASK + 1, .rank = 4, .dims = {1, 1, 1, 1}};
    mgpu_cudnn_has_type(v->type, &t.type);
    for (int i = 0; i < v->rank; i++)
        t.dims[i + 4 - v->rank] = v->dims[i].value;
    mgpu_cudnn_strides(&t, false);
    return mgpu_cudnn_tensor(at->g, &t);
}

/* mode(x, b) of the shape of scores. */
static cudnnBackendDescriptor_t each(const struct attention *at, cudnnPointwiseMode_t mode,
                                     cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t b)
{
    cudnnBackendDescriptor_t y = scores(at, CUDNN_DATA_FLOAT);
    mgpu_cudnn_pointwise(at->g, mode, x, b, y);
    return y;
}

/* s = scale * q k' + mask */
static cudnnBackendDescriptor_t score(struct attention *at, cudnnBackendDescriptor_t q,
                                      cudnnBackendDescriptor_t turned_k)
{
    cudnnBackendDescriptor_t s = scores(at, CUDNN_DATA_FLOAT);
    mgpu_cudnn_matmul(at->g, q, turned_k, s);
    at->scale =
        mgpu_cudnn_number(at->g, ((const struct mgpu_attention_attrs *)at->node->attrs)->scale);
    s = each(at, CUDNN_POINTWISE_MUL, s, at->scale);
    if (at->node->inputs > MASK && at->node->input[MASK])
        s = each(at, CUDNN_POINTWISE_ADD, s, mask(at));
    return s;
}

static void build(struct mgpu_cudnn_graph *g, const struct mgpu_node *node)
{
    struct attention at = begin(g, node);
    int64_t T = at.a.queries, S = at.a.keys, D = at.a.width, E = at.a.out;
    cudnnBackendDescriptor_t q = operand(&at, Q, T, D, false), k = operand(&at, K, S, D, true),
                             v = operand(&at, V, S, E, false);
    cudnnBackendDescriptor_t s = score(&at, q, k), largest = numbers(&at), sum = numbers(&at),
                             log = numbers(&at), p = scores(&at, at.type);
    mgpu_cudnn_reduce(g, CUDNN_REDUCE_TENSOR_MAX, s, largest);
    s = each(&at, CUDNN_POINTWISE_SUB, s, largest);
    s = each(&at, CUDNN_POINTWISE_EXP, s, NULL);
    mgpu_cudnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, s, sum);
    mgpu_cudnn_pointwise(g, CUDNN_POINTWISE_LOG, sum, NULL, log);
    mgpu_cudnn_pointwise(g, CUDNN_POINTWISE_ADD, largest, log,
                         packed(&at, node->output[1] ? node->inputs + 2 : 0, CUDNN_DATA_FLOAT, 1));
    mgpu_cudnn_pointwise(g, CUDNN_POINTWISE_DIV, s, sum, p);
    mgpu_cudnn_matmul(g, p, v, operand(&at, node->inputs, T, E, false));
}

/* The sum over E of dy * y, which the engines want in memory, times 1. */
static cudnnBackendDescriptor_t sum_dy(const struct attention *at, cudnnBackendDescriptor_t dy)
{
    cudnnBackendDescriptor_t y = operand(at, Y, at->a.queries, at->a.out, false),
                             products = packed(at, 0, CUDNN_DATA_FLOAT, at->a.out),
                             sum = numbers(at),
                             all = packed(at, MGPU_CUDNN_SCRATCH, CUDNN_DATA_FLOAT, 1);
    mgpu_cudnn_pointwise(at->g, CUDNN_POINTWISE_MUL, dy, y, products);
    mgpu_cudnn_reduce(at->g, CUDNN_REDUCE_TENSOR_ADD, products, sum);
    mgpu_cudnn_pointwise(at->g, CUDNN_POINTWISE_MUL, sum, mgpu_cudnn_number(at->g, 1), all);
    at->g->scratch = at->a.samples * at->a.heads * at->a.queries * (int64_t)sizeof(float);
    return all;
}

/* y = x' b, rounded to the type of the operands before. */
static void multiply_turned(const struct attention *at, cudnnBackendDescriptor_t x,
                            cudnnBackendDescriptor_t b, cudnnBackendDescriptor_t y)
{
    struct mgpu_cudnn_tensor t = {.type = at->type,
                                  .rank = 4,
                                  .dims = {at->a.samples, at->a.heads, at->a.queries, at->a.keys}};
    mgpu_cudnn_strides(&t, false);
    turn(&t);
    cudnnBackendDescriptor_t turned = mgpu_cudnn_tensor(at->g, &t);
    mgpu_cudnn_reshape(at->g, x, turned);
    mgpu_cudnn_matmul(at->g, turned, b, y);
}

static void build_grad(struct mgpu_cudnn_graph *g, const struct mgpu_node *node)
{
    struct attention at = begin(g, node);
    int64_t T = at.a.queries, S = at.a.keys, D = at.a.width, E = at.a.out;
    struct mgpu_cudnn_tensor as_rows = rows(&at, K, S, D, false);
    cudnnBackendDescriptor_t q = operand(&at, Q, T, D, false), k = operand(&at, K, S, D, true),
                             v = operand(&at, V, S, E, true), dy = operand(&at, DY, T, E, false);
    cudnnBackendDescriptor_t all = sum_dy(&at, dy), s = score(&at, q, k);
    s = each(&at, CUDNN_POINTWISE_SUB, s, packed(&at, STATISTICS + 1, CUDNN_DATA_FLOAT, 1));
    cudnnBackendDescriptor_t p = each(&at, CUDNN_POINTWISE_EXP, s, NULL),
                             ds = scores(&at, CUDNN_DATA_FLOAT);
    multiply_turned(&at, p, dy, operand(&at, DV, S, E, false));
    mgpu_cudnn_matmul(g, dy, v, ds);
    ds = each(&at, CUDNN_POINTWISE_SUB, ds, all);
    ds = each(&at, CUDNN_POINTWISE_MUL, ds, p);
    ds = each(&at, CUDNN_POINTWISE_MUL, ds, at.scale);
    multiply_turned(&at, ds, q, operand(&at, DK, S, D, false));
    as_rows.id = 0;
    cudnnBackendDescriptor_t turned_back = mgpu_cudnn_tensor(g, &as_rows);
    mgpu_cudnn_reshape(g, k, turned_back);
    mgpu_cudnn_matmul(g, ds, turned_back, operand(&at, DQ, T, D, false));
}

static bool is_half(const struct mgpu_value *v)
{
    return v->type == MGPU_FLOAT16 || v->type == MGPU_BFLOAT16;
}

/* In the form that compile/attend.c gives it for libraries. */
static bool accepts(const struct mgpu_node *node)
{
    const struct mgpu_attention_attrs *attrs = node->attrs;
    for (int i = 0; i < node->outputs && node->inputs > DY; i++)
        if (!node->output[i])
            return false;
    return attrs->log_sums && is_half(node->input[Q]);
}

const struct mgpu_cudnn_builder mgpu_cudnn_attention[] = {
    {"attention", false, accepts, build},
    {"attention_grad", false, accepts, build_grad},
    {NULL},
};
