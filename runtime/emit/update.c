/* Optimizer steps, one launch that passes over weight, gradient and state once; lamb, whose step
 * depends on two norms of the whole tensor, takes two and reads them twice. What each kind and
 * style computes stands beside ref's kernel (runtime/ref/update.c). What is the same for all
 * elements is computed by each thread in double, from the step scalars; the elements in w's type.
 */
#include "runtime/ops/update.h"
#include "runtime/emit/writer.h"

#include <math.h>

enum { W, G, STEP, LR_FACTOR, COEFFICIENT, STATE };
enum {
    THREADS = 256,
    MOST_BLOCKS = 4096,
    MOST_MOVES = 1024,   /* of lamb: each block adds up the norms first */
    MOST_SUMS = THREADS, /* which takes a thread for each */
    SUM_EACH = 8,
};

static const struct mgpu_update_attrs *attrs_of(const struct mgpu_writer *w)
{
    return w->node->attrs;
}

static bool has_input(const struct mgpu_writer *w, int i)
{
    return i < w->node->inputs && w->node->input[i];
}

static bool torch(const struct mgpu_writer *w)
{
    return attrs_of(w)->style == MGPU_STYLE_TORCH;
}

static bool decoupled(const struct mgpu_writer *w)
{
    return attrs_of(w)->kind == MGPU_ADAMW || !torch(w);
}

/* "const double name = ...": formulas of double, printed exactly. */
static void define(struct mgpu_writer *w, const char *name, double value)
{
    mgpu_write(w, "    const double %s = ", name);
    mgpu_write_number(w, MGPU_DOUBLE, value);
    mgpu_write(w, ";\n");
}

static void define_real(struct mgpu_writer *w, const char *name, double value)
{
    enum mgpu_dtype type = w->node->input[W]->type;
    mgpu_write(w, "    const %s %s = ", mgpu_compute_type(type), name);
    mgpu_write_number(w, type, value);
    mgpu_write(w, ";\n");
}

/* The rule: t, lr, what adam divides by, and the numbers of the attributes. */
static void write_rule(struct mgpu_writer *w)
{
    const struct mgpu_update_attrs *a = attrs_of(w);
    const char *real = mgpu_compute_type(w->node->input[W]->type);
    mgpu_write(w, "    const double t = x%d[0];\n", STEP);
    define(w, "base_lr", a->lr);
    define(w, "lr_decay", a->decay);
    mgpu_write(w, "    const double rate_of_step = base_lr%s / (1 + lr_decay * t);\n",
               has_input(w, LR_FACTOR) ? " * x3[0]" : "");
    mgpu_write(w, "    const %s lr = (%s)rate_of_step;\n", real, real);
    if (has_input(w, COEFFICIENT))
        mgpu_write(w, "    const %s coefficient = (%s)x%d[0];\n", real, real, COEFFICIENT);
    else
        define_real(w, "coefficient", 1);
    define_real(w, "clip", a->clip_value > 0 ? a->clip_value : (double)INFINITY);
    define_real(w, "weight_decay", a->weight_decay);
    define_real(w, "eps", a->eps);
    if (a->kind == MGPU_SGD || a->kind == MGPU_RMSPROP) {
        define_real(w, "momentum", a->momentum);
        define_real(w, "rho", a->rho);
        define_real(w, "rest_rho", 1 - a->rho);
        return;
    }
    if (a->kind == MGPU_ADAGRAD)
        return;
    define_real(w, "b1", a->beta1);
    define_real(w, "b2", a->beta2);
    define_real(w, "fresh1", 1 - a->beta1);
    define_real(w, "fresh2", 1 - a->beta2);
    define(w, "log_b1", log(a->beta1));
    define(w, "log_b2", log(a->beta2));
    mgpu_write(w,
               "    const double c1 = -expm1((t + 1) * log_b1), c2 = -expm1((t + 1) * log_b2);\n");
}

/* v, g and the states m, s, r of element i; g as the kinds want it, v as the step finds it. */
static void write_load(struct mgpu_writer *w, int states)
{
    static const char *const names[] = {"m", "s", "r"};
    const char *real = mgpu_compute_type(w->node->input[W]->type);
    mgpu_write(w, "    %s v = LOAD_%s(x0, i), g = LOAD_%s(x1, i) * coefficient;\n", real,
               mgpu_dtype_name(w->node->input[W]->type), mgpu_dtype_name(w->node->input[G]->type));
    for (int k = 0; k < states; k++)
        mgpu_write(w, "    %s %s = LOAD_%s(x%d, i);\n", real, names[k],
                   mgpu_dtype_name(w->node->input[STATE + k]->type), STATE + k);
    mgpu_write(w, "    g = g > clip ? clip : g < -clip ? -clip : g;\n");
    if (decoupled(w))
        mgpu_write(w, "    v -= lr * weight_decay * v;\n");
    else if (attrs_of(w)->kind != MGPU_LAMB)
        mgpu_write(w, "    g += weight_decay * v;\n");
}

static void write_store_weight(struct mgpu_writer *w)
{
    enum mgpu_dtype rounded = attrs_of(w)->rounded;
    mgpu_write(w, "    STORE_%s(y0, i, v);\n", mgpu_dtype_name(w->node->output[0]->type));
    if (rounded)
        mgpu_write(w, "    STORE_%s(y%d, i, v);\n", mgpu_dtype_name(rounded), MGPU_UPDATE_ROUNDED);
}

static void write_store(struct mgpu_writer *w, int states)
{
    static const char *const names[] = {"m", "s", "r"};
    write_store_weight(w);
    for (int k = 0; k < states; k++)
        mgpu_write(w, "    STORE_%s(y%d, i, %s);\n", mgpu_dtype_name(w->node->output[1 + k]->type),
                   1 + k, names[k]);
}

static void write_sgd(struct mgpu_writer *w, int states)
{
    const struct mgpu_update_attrs *a = attrs_of(w);
    if (!states) {
        mgpu_write(w, "    v -= lr * g;\n");
    } else if (torch(w)) {
        mgpu_write(w, "    m = t == 0 ? g : momentum * m + ");
        mgpu_write_number(w, w->node->input[W]->type, 1 - a->dampening);
        mgpu_write(w, " * g;\n    v -= lr * %s;\n", a->nesterov ? "(g + momentum * m)" : "m");
    } else {
        mgpu_write(w, "    m = momentum * m - lr * g;\n    v += %s;\n",
                   a->nesterov ? "momentum * m - lr * g" : "m");
    }
}

static void write_adam(struct mgpu_writer *w, const char *real, const char *suffix)
{
    const char *square = attrs_of(w)->amsgrad ? "r" : "s";
    mgpu_write(w, "    const %s rate = (%s)(rate_of_step / c1%s), scale = (%s)%s;\n", real, real,
               torch(w) ? "" : " * sqrt(c2)", real, torch(w) ? "sqrt(c2)" : "1");
    mgpu_write(w, "    m = b1 * m + fresh1 * g;\n    s = b2 * s + fresh2 * g * g;\n");
    if (attrs_of(w)->amsgrad)
        mgpu_write(w, "    r = r > s ? r : s;\n");
    mgpu_write(w, "    v -= rate * m / (sqrt%s(%s) / scale + eps);\n", suffix, square);
}

static void write_rmsprop(struct mgpu_writer *w, const char *real, const char *suffix)
{
    const struct mgpu_update_attrs *a = attrs_of(w);
    bool momentum = a->momentum != 0;
    bool inside = a->style == MGPU_STYLE_KERAS3 || (a->style == MGPU_STYLE_KERAS2 && momentum);
    const char *mean = momentum ? "r" : "s";
    mgpu_write(w, "    m = rho * m + rest_rho * g * g;\n    %s square = m;\n", real);
    if (a->centered) {
        mgpu_write(w, "    %s = rho * %s + rest_rho * g;\n", mean, mean);
        mgpu_write(w, "    square = fmax%s(m - %s * %s, 0);\n", suffix, mean, mean);
    }
    mgpu_write(w, "    %s d = %sg / ", real, torch(w) ? "" : "lr * ");
    mgpu_write(w, inside ? "sqrt%s(square + eps);\n" : "(sqrt%s(square) + eps);\n", suffix);
    if (momentum)
        mgpu_write(w, "    d = s = momentum * s + d;\n");
    mgpu_write(w, "    v -= %sd;\n", torch(w) ? "lr * " : "");
}

static void write_adagrad(struct mgpu_writer *w, const char *real, const char *suffix)
{
    bool inside = attrs_of(w)->style == MGPU_STYLE_KERAS3;
    define(w, "decay", attrs_of(w)->lr_decay);
    mgpu_write(w, "    m += g * g;\n    v -= (%s)(rate_of_step / (1 + decay * t)) * g / ", real);
    mgpu_write(w, inside ? "sqrt%s(m + eps);\n" : "(sqrt%s(m) + eps);\n", suffix);
}

static int64_t blocks_for(int64_t count, int64_t most)
{
    int64_t blocks = (count + THREADS - 1) / THREADS;
    return blocks < most ? blocks : most;
}

/* The rule is computed once for the elements of a thread. */
static void open_elements(struct mgpu_writer *w, int64_t count, int64_t blocks)
{
    write_rule(w);
    mgpu_write(w, "    for (i64 i = (i64)blockIdx.x * %d + threadIdx.x; i < %lld; i += %lld) {\n",
               THREADS, (long long)count, (long long)(blocks * THREADS));
}

/* ---- lamb --------------------------------------------------------------------------------------
 *
 * The moments, and a part of both norms for each block; then the move, before which every block
 * adds up the parts: at most MOST_SUMS pairs, in the same order everywhere.
 */

static int64_t sum_blocks(int64_t count)
{
    int64_t blocks = (count + THREADS * SUM_EACH - 1) / (THREADS * SUM_EACH);
    return blocks < 1 ? 1 : blocks > MOST_SUMS ? MOST_SUMS : blocks;
}

/* `u`, the direction, from the new moments. */
static void write_direction(struct mgpu_writer *w, const char *real, const char *suffix)
{
    mgpu_write(w, "    const %s first = (%s)(1 / c1), second = (%s)(1 / c2);\n", real, real, real);
    mgpu_write(w, "    const %s u = m * first / (sqrt%s(s * second) + eps)%s;\n", real, suffix,
               decoupled(w) ? "" : " + weight_decay * v");
}

static void emit_lamb_norms(struct mgpu_writer *w, const char *real, const char *suffix)
{
    int64_t count = mgpu_value_count(w->node->input[W]), blocks = sum_blocks(count);
    mgpu_write_kernel(w, blocks, THREADS, true);
    mgpu_write(w, "    double w2 = 0, u2 = 0;\n");
    open_elements(w, count, blocks);
    write_load(w, 2);
    mgpu_write(w, "    m = b1 * m + fresh1 * g;\n    s = b2 * s + fresh2 * g * g;\n");
    mgpu_write(w, "    STORE_%s(y1, i, m);\n    STORE_%s(y2, i, s);\n",
               mgpu_dtype_name(w->node->output[1]->type),
               mgpu_dtype_name(w->node->output[2]->type));
    write_direction(w, real, suffix);
    mgpu_write(w, "    w2 += (double)v * v;\n    u2 += (double)u * u;\n    }\n    w2 = "
                  "block_add(w2);\n    u2 = block_add(u2);\n    if (threadIdx.x == 0) {\n        "
                  "((double *)work)[2 * blockIdx.x] = w2;\n        ((double *)work)[2 * "
                  "blockIdx.x + 1] = u2;\n    }\n}\n");
}

static void emit_lamb_move(struct mgpu_writer *w, const char *real, const char *suffix)
{
    int64_t count = mgpu_value_count(w->node->input[W]), blocks = blocks_for(count, MOST_MOVES);
    mgpu_write_kernel(w, blocks, THREADS, true);
    mgpu_write(
        w,
        "    const int there = threadIdx.x < %lld;\n    const double *sums = (const double "
        "*)work + 2 * threadIdx.x;\n    const double w2 = block_add(there ? sums[0] : 0), u2 "
        "= block_add(there ? sums[1] : 0);\n    const double trust = w2 > 0 && u2 > 0 ? "
        "sqrt(w2) / sqrt(u2) : 1;\n",
        (long long)sum_blocks(count));
    open_elements(w, count, blocks);
    write_load(w, 2);
    mgpu_write(w, "    m = LOAD_%s(y1, i);\n    s = LOAD_%s(y2, i);\n",
               mgpu_dtype_name(w->node->output[1]->type),
               mgpu_dtype_name(w->node->output[2]->type));
    write_direction(w, real, suffix);
    mgpu_write(w, "    v -= (%s)(rate_of_step * trust) * u;\n", real);
    write_store_weight(w);
    mgpu_write(w, "    }\n}\n");
}

static void emit(struct mgpu_writer *w)
{
    const struct mgpu_update_attrs *a = attrs_of(w);
    const char *real = mgpu_compute_type(w->node->input[W]->type);
    const char *suffix = mgpu_math_suffix(w->node->input[W]->type);
    double start[3];
    int states = mgpu_update_states(a, start);
    int64_t count = mgpu_value_count(w->node->input[W]), blocks = blocks_for(count, MOST_BLOCKS);
    if (a->kind == MGPU_LAMB) {
        w->result->workspace = 2 * sum_blocks(count) * (int64_t)sizeof(double);
        emit_lamb_norms(w, real, suffix);
        emit_lamb_move(w, real, suffix);
        return;
    }
    mgpu_write_kernel(w, blocks, THREADS, false);
    open_elements(w, count, blocks);
    write_load(w, states);
    if (a->kind == MGPU_SGD)
        write_sgd(w, states);
    else if (a->kind == MGPU_RMSPROP)
        write_rmsprop(w, real, suffix);
    else if (a->kind == MGPU_ADAGRAD)
        write_adagrad(w, real, suffix);
    else
        write_adam(w, real, suffix);
    write_store(w, states);
    mgpu_write(w, "    }\n}\n");
}

/* ---- global_norm: a part for each block, whose input its number tells -------------------------
 */

static void emit_norm(struct mgpu_writer *w)
{
    const struct mgpu_node *node = w->node;
    int64_t blocks = 0, at = 0;
    for (int k = 0; k < node->inputs; k++)
        blocks += sum_blocks(mgpu_value_count(node->input[k]));
    w->result->workspace = blocks * (int64_t)sizeof(double);
    mgpu_write_kernel(w, blocks, THREADS, true);
    mgpu_write(w, "    double sum = 0;\n");
    for (int k = 0; k < node->inputs; k++) {
        int64_t count = mgpu_value_count(node->input[k]), own = sum_blocks(count);
        mgpu_write(w,
                   "    if (blockIdx.x >= %lld && blockIdx.x < %lld)\n        for (i64 i = (i64)"
                   "(blockIdx.x - %lld) * %d + threadIdx.x; i < %lld; i += %lld) {\n            "
                   "const double v = LOAD_%s(x%d, i);\n            sum += v * v;\n        }\n",
                   (long long)at, (long long)(at + own), (long long)at, THREADS, (long long)count,
                   (long long)(own * THREADS), mgpu_dtype_name(node->input[k]->type), k);
        at += own;
    }
    mgpu_write(w, "    sum = block_add(sum);\n    if (threadIdx.x == 0)\n        ((double "
                  "*)work)[blockIdx.x] = sum;\n}\n");
    mgpu_write_kernel(w, 1, THREADS, true);
    mgpu_write(w,
               "    double sum = 0;\n    for (i64 i = threadIdx.x; i < %lld; i += %d)\n        sum "
               "+= ((const double *)work)[i];\n    sum = block_add(sum);\n    if (threadIdx.x == "
               "0)\n        y0[0] = sqrt(sum);\n}\n",
               (long long)blocks, THREADS);
}

const struct mgpu_emitter mgpu_emit_update[] = {
    {"update", NULL, emit},
    {"global_norm", NULL, emit_norm},
    {NULL, NULL, NULL},
};
