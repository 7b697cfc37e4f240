/* The optimizers. t is the number of updates done before this one (0 at the first), lr_t the rate
 * of this step: lr * lr_factor / (1 + decay*t). The gradient is multiplied by the coefficient, then
 * clipped to [-clip_value, clip_value]. Weight decay d is added to the gradient, g + d*w, but for
 * adamw and in the styles of Keras: there the weight first becomes w - lr_t*d*w.
 *
 * style torch: torch.optim of PyTorch 2. style keras2: tf_keras's optimizers.legacy; keras3: Keras
 * 3's optimizers. lamb: You et al., "Large Batch Optimization for Deep Learning", ICLR 2020,
 * algorithm 2 with phi(z) = z.
 *
 * Tiles of elements are loaded as doubles, updated and stored, so every tensor is read and written
 * once; lamb, whose step depends on two norms of the whole tensor, reads them twice.
 */
#include "runtime/ops/update.h"

#include "runtime/base/status.h"
#include "runtime/ref/gemm.h"
#include "runtime/ref/indexed.h"
#include "runtime/ref/ref.h"
#include "runtime/ref/rows.h"

#include <math.h>

enum { W, G, STEP, LR_FACTOR, COEFFICIENT, STATE };

/* Norms are summed over blocks of this many elements, then over blocks: the same for any thread
 * count. */
enum { BLOCK = 16 * MGPU_TILE };

/* What does not change from element to element. */
struct rule {
    const struct mgpu_update_attrs *a;
    bool torch, first; /* first: there was no update before */
    bool decoupled;
    double t, lr, coefficient, clip;
    double correction1, correction2; /* 1 - beta^(t+1) */
    int states;
};

/* One tile. */
struct tile {
    int n;
    bool finite; /* of product_update: the gradient */
    double w[MGPU_TILE], g[MGPU_TILE], state[3][MGPU_TILE];
};

static double scalar(const struct mgpu_launch *l, int input, double otherwise)
{
    bool there = input < l->inputs && l->in[input].data;
    return there ? *(const double *)l->in[input].data : otherwise;
}

static struct rule rule_of(const struct mgpu_launch *l)
{
    const struct mgpu_update_attrs *a = l->node->attrs;
    double start[3], t = scalar(l, STEP, 0);
    return (struct rule){
        .a = a,
        .torch = a->style == MGPU_STYLE_TORCH,
        .first = t == 0,
        .decoupled = a->kind == MGPU_ADAMW || a->style != MGPU_STYLE_TORCH,
        .t = t,
        .lr = a->lr * scalar(l, LR_FACTOR, 1) / (1 + a->decay * t),
        .coefficient = scalar(l, COEFFICIENT, 1),
        .clip = a->clip_value > 0 ? a->clip_value : INFINITY,
        .correction1 = 1 - pow(a->beta1, t + 1),
        .correction2 = 1 - pow(a->beta2, t + 1),
        .states = mgpu_update_states(a, start),
    };
}

/* What the rows add to element `at` of the gradient. */
static double row_sum(const struct mgpu_launch *l, int64_t at)
{
    const struct mgpu_tensor *rows = &l->in[MGPU_UPDATE_ROWS], *w = &l->in[W];
    const struct mgpu_tensor *indices = &l->in[MGPU_UPDATE_INDICES];
    int64_t n = w->dims[1];
    double sum = 0;
    for (int64_t k = 0, count = mgpu_tensor_count(indices); k < count; k++)
        if (mgpu_index(indices, k, w->dims[0]) == at / n)
            sum += mgpu_ref_get(rows->data, rows->type, k * n + at % n);
    return sum;
}

/* Elements of a^T b from `at` on. */
static void load_product(const struct mgpu_launch *l, int64_t at, struct tile *x)
{
    const struct mgpu_tensor *a = &l->in[G], *b = &l->in[MGPU_UPDATE_FACTOR];
    int64_t m = a->dims[1], n = b->dims[1];
    for (int i = 0; i < x->n; i++) {
        double sum = 0;
        for (int64_t k = 0; k < a->dims[0]; k++)
            sum += mgpu_ref_get(a->data, a->type, k * m + (at + i) / n) *
                   mgpu_ref_get(b->data, b->type, k * n + (at + i) % n);
        x->g[i] = sum + (l->inputs > MGPU_UPDATE_ROWS ? row_sum(l, at + i) : 0);
        x->finite = x->finite && isfinite(x->g[i]);
    }
}

/* Loads a tile and brings gradient and weight to where the kinds begin. */
static void load(const struct mgpu_launch *l, const struct rule *r, int64_t at, struct tile *x)
{
    int64_t left = mgpu_tensor_count(&l->in[W]) - at;
    double d = r->a->weight_decay;
    x->n = left < MGPU_TILE ? (int)left : MGPU_TILE;
    mgpu_row_load(x->w, &l->in[W], at, 1, x->n);
    x->finite = true;
    if (l->node->op == &mgpu_op_product_update)
        load_product(l, at, x);
    else
        mgpu_row_load(x->g, &l->in[G], at, 1, x->n);
    for (int s = 0; s < r->states; s++)
        mgpu_row_load(x->state[s], &l->in[STATE + s], at, 1, x->n);
    for (int i = 0; i < x->n; i++) {
        double g = x->g[i] * r->coefficient;
        x->g[i] = g > r->clip ? r->clip : g < -r->clip ? -r->clip : g; /* NaN stays */
    }
    if (r->decoupled)
        for (int i = 0; i < x->n; i++)
            x->w[i] -= r->lr * d * x->w[i];
    else if (r->a->kind != MGPU_LAMB)
        for (int i = 0; i < x->n; i++)
            x->g[i] += d * x->w[i];
}

static void store_weight(const struct mgpu_launch *l, int64_t at, const struct tile *x)
{
    const struct mgpu_update_attrs *a = l->node->attrs;
    mgpu_row_store(&l->out[0], at, 1, x->n, x->w);
    if (a->rounded)
        mgpu_row_store(&l->out[MGPU_UPDATE_ROUNDED], at, 1, x->n, x->w);
}

static void store(const struct mgpu_launch *l, const struct rule *r, int64_t at,
                  const struct tile *x, bool weight)
{
    if (weight)
        store_weight(l, at, x);
    for (int s = 0; s < r->states; s++)
        mgpu_row_store(&l->out[1 + s], at, 1, x->n, x->state[s]);
}

/* torch: m = momentum*m + (1-dampening)*g, at the first step m = g; w -= lr_t*m, with nesterov
 * w -= lr_t*(g + momentum*m).
 * keras: m = momentum*m - lr_t*g; w += m, with nesterov w += momentum*m - lr_t*g. */
static void sgd(const struct rule *r, struct tile *x)
{
    double *w = x->w, *g = x->g, *m = x->state[0], momentum = r->a->momentum;
    double fresh = !r->torch ? -r->lr : r->first ? 1 : 1 - r->a->dampening;
    double kept = r->torch && r->first ? 0 : momentum;
    for (int i = 0; i < x->n && r->states; i++)
        m[i] = kept * m[i] + fresh * g[i];
    if (!r->states)
        for (int i = 0; i < x->n; i++)
            w[i] -= r->lr * g[i];
    else if (r->torch)
        for (int i = 0; i < x->n; i++)
            w[i] -= r->lr * (r->a->nesterov ? g[i] + momentum * m[i] : m[i]);
    else
        for (int i = 0; i < x->n; i++)
            w[i] += r->a->nesterov ? momentum * m[i] - r->lr * g[i] : m[i];
}

/* m = beta1*m + (1-beta1)*g; v = beta2*v + (1-beta2)*g*g; amsgrad: s = max(s, v) in place of v.
 * torch: w -= lr_t/c1 * m / (sqrt(v)/sqrt(c2) + eps), c = 1 - beta^(t+1)
 * keras: w -= lr_t*sqrt(c2)/c1 * m / (sqrt(v) + eps) */
static void adam(const struct rule *r, struct tile *x)
{
    double *m = x->state[0], *v = x->state[1], *s = x->state[2];
    double b1 = r->a->beta1, b2 = r->a->beta2, eps = r->a->eps, root = sqrt(r->correction2);
    double rate = r->lr / r->correction1 * (r->torch ? 1 : root), scale = r->torch ? root : 1;
    for (int i = 0; i < x->n; i++) {
        m[i] = b1 * m[i] + (1 - b1) * x->g[i];
        v[i] = b2 * v[i] + (1 - b2) * x->g[i] * x->g[i];
    }
    for (int i = 0; r->a->amsgrad && i < x->n; i++)
        s[i] = s[i] > v[i] ? s[i] : v[i];
    const double *square = r->a->amsgrad ? s : v;
    for (int i = 0; i < x->n; i++)
        x->w[i] -= rate * m[i] / (sqrt(square[i]) / scale + eps);
}

/* v = rho*v + (1-rho)*g*g; centered: a = rho*a + (1-rho)*g and v - a*a in place of v below.
 * torch:  m = momentum*m + g/(sqrt(v) + eps); w -= lr_t*m
 * keras2: without momentum w -= lr_t*g/(sqrt(v) + eps); with it as keras3
 * keras3: m = momentum*m + lr_t*g/sqrt(v + eps); w -= m */
static void rmsprop(const struct rule *r, struct tile *x)
{
    const struct mgpu_update_attrs *a = r->a;
    bool momentum = a->momentum != 0;
    bool inside = a->style == MGPU_STYLE_KERAS3 || (a->style == MGPU_STYLE_KERAS2 && momentum);
    double *v = x->state[0], *m = x->state[1], *mean = x->state[momentum ? 2 : 1];
    for (int i = 0; i < x->n; i++) {
        double g = x->g[i], square;
        v[i] = a->rho * v[i] + (1 - a->rho) * g * g;
        if (a->centered)
            mean[i] = a->rho * mean[i] + (1 - a->rho) * g;
        square = a->centered ? fmax(v[i] - mean[i] * mean[i], 0) : v[i];
        double d =
            (r->torch ? 1 : r->lr) * g / (inside ? sqrt(square + a->eps) : sqrt(square) + a->eps);
        if (momentum)
            d = m[i] = a->momentum * m[i] + d;
        x->w[i] -= (r->torch ? r->lr : 1) * d;
    }
}

/* s = s + g*g; w -= lr_t/(1 + lr_decay*t) * g/(sqrt(s) + eps); keras3: g/sqrt(s + eps) */
static void adagrad(const struct rule *r, struct tile *x)
{
    double *s = x->state[0], rate = r->lr / (1 + r->a->lr_decay * r->t), eps = r->a->eps;
    bool inside = r->a->style == MGPU_STYLE_KERAS3;
    for (int i = 0; i < x->n; i++) {
        s[i] += x->g[i] * x->g[i];
        x->w[i] -= rate * x->g[i] / (inside ? sqrt(s[i] + eps) : sqrt(s[i]) + eps);
    }
}

static void step(const struct rule *r, struct tile *x)
{
    switch ((enum mgpu_optimizer_kind)r->a->kind) {
    case MGPU_SGD:
        sgd(r, x);
        break;
    case MGPU_RMSPROP:
        rmsprop(r, x);
        break;
    case MGPU_ADAGRAD:
        adagrad(r, x);
        break;
    default: /* adam, adamw */
        adam(r, x);
        break;
    }
}

/* ---- lamb ------------------------------------------------------------------------------------ */

/* u = m/c1 / (sqrt(v/c2) + eps) + d*w, from the moments in the tile; into g. */
static void lamb_direction(const struct rule *r, struct tile *x)
{
    double d = r->decoupled ? 0 : r->a->weight_decay;
    for (int i = 0; i < x->n; i++)
        x->g[i] =
            x->state[0][i] / r->correction1 / (sqrt(x->state[1][i] / r->correction2) + r->a->eps) +
            d * x->w[i];
}

/* New moments; sums[0], sums[1] get the squares of w and u over the block. */
static void lamb_block(const struct mgpu_launch *l, const struct rule *r, int64_t begin,
                       int64_t end, double *sums)
{
    double b1 = r->a->beta1, b2 = r->a->beta2;
    struct tile x;
    sums[0] = sums[1] = 0;
    for (int64_t at = begin; at < end; at += MGPU_TILE) {
        load(l, r, at, &x);
        for (int i = 0; i < x.n; i++) {
            x.state[0][i] = b1 * x.state[0][i] + (1 - b1) * x.g[i];
            x.state[1][i] = b2 * x.state[1][i] + (1 - b2) * x.g[i] * x.g[i];
        }
        store(l, r, at, &x, false);
        lamb_direction(r, &x);
        for (int i = 0; i < x.n; i++) {
            sums[0] += x.w[i] * x.w[i];
            sums[1] += x.g[i] * x.g[i];
        }
    }
}

/* w -= rate * u, from the new moments. */
static void lamb_move(const struct mgpu_launch *l, const struct rule *r, int64_t at, double rate)
{
    struct tile x;
    load(l, r, at, &x);
    for (int s = 0; s < 2; s++)
        mgpu_row_load(x.state[s], &l->out[1 + s], at, 1, x.n);
    lamb_direction(r, &x);
    for (int i = 0; i < x.n; i++)
        x.w[i] -= rate * x.g[i];
    store_weight(l, at, &x);
}

static int64_t blocks_of(int64_t count)
{
    return (count + BLOCK - 1) / BLOCK;
}

static int64_t end_of(int64_t block, int64_t count)
{
    return (block + 1) * BLOCK < count ? (block + 1) * BLOCK : count;
}

static void lamb(const struct mgpu_launch *l, const struct rule *r)
{
    double *sums = l->workspace, w2 = 0, u2 = 0;
    int64_t count = mgpu_tensor_count(&l->in[W]), blocks = blocks_of(count);
#pragma omp parallel for num_threads(l->threads) schedule(static)
    for (int64_t b = 0; b < blocks; b++)
        lamb_block(l, r, b * BLOCK, end_of(b, count), sums + 2 * b);
    for (int64_t b = 0; b < blocks; b++) {
        w2 += sums[2 * b];
        u2 += sums[2 * b + 1];
    }
    double rate = r->lr * (w2 > 0 && u2 > 0 ? sqrt(w2) / sqrt(u2) : 1);
#pragma omp parallel for num_threads(l->threads) schedule(static)
    for (int64_t at = 0; at < count; at += MGPU_TILE)
        lamb_move(l, r, at, rate);
}

static int64_t workspace(const struct mgpu_node *node, int threads, const void *state)
{
    const struct mgpu_update_attrs *a = node->attrs;
    (void)threads;
    (void)state;
    int64_t blocks = blocks_of(mgpu_value_count(node->input[W]));
    return a->kind == MGPU_LAMB ? 2 * blocks * (int64_t)sizeof(double) : 0;
}

static int run(const struct mgpu_launch *l)
{
    struct rule r = rule_of(l);
    int64_t count = mgpu_tensor_count(&l->in[W]);
    bool finite = true;
    if (r.a->kind == MGPU_LAMB) {
        lamb(l, &r);
        return 0;
    }
#pragma omp parallel for num_threads(l->threads) schedule(static) if (count > BLOCK)               \
    reduction(&& : finite)
    for (int64_t at = 0; at < count; at += MGPU_TILE) {
        struct tile x;
        load(l, &r, at, &x);
        step(&r, &x);
        store(l, &r, at, &x, true);
        finite = finite && x.finite;
    }
    return finite ? 0 : mgpu_fail(MGPU_EINVALID, "the gradient is not finite");
}

/* ---- global_norm ----------------------------------------------------------------------------- */

static double block_squares(const struct mgpu_tensor *t, int64_t begin, int64_t end)
{
    double x[MGPU_TILE], sum = 0;
    for (int64_t at = begin; at < end; at += MGPU_TILE) {
        int n = end - at < MGPU_TILE ? (int)(end - at) : MGPU_TILE;
        mgpu_row_load(x, t, at, 1, n);
        for (int i = 0; i < n; i++)
            sum += x[i] * x[i];
    }
    return sum;
}

/* The sums of the blocks of the largest input. */
static int64_t workspace_norm(const struct mgpu_node *node, int threads, const void *state)
{
    int64_t most = 0;
    (void)threads;
    (void)state;
    for (int i = 0; i < node->inputs; i++) {
        int64_t blocks = blocks_of(mgpu_value_count(node->input[i]));
        most = blocks > most ? blocks : most;
    }
    return most * (int64_t)sizeof(double);
}

static int run_norm(const struct mgpu_launch *l)
{
    double *sums = l->workspace, all = 0;
    for (int i = 0; i < l->inputs; i++) {
        int64_t count = mgpu_tensor_count(&l->in[i]), blocks = blocks_of(count);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (blocks > 1)
        for (int64_t b = 0; b < blocks; b++)
            sums[b] = block_squares(&l->in[i], b * BLOCK, end_of(b, count));
        for (int64_t b = 0; b < blocks; b++)
            all += sums[b];
    }
    *(double *)l->out[0].data = sqrt(all);
    return 0;
}

const struct mgpu_kernel mgpu_ref_update[] = {
    {.op = "update", .name = "ref", .workspace = workspace, .run = run},
    {.op = "product_update", .name = "ref", .run = run},
    {.op = "global_norm", .name = "ref", .workspace = workspace_norm, .run = run_norm},
    {.op = NULL},
};
