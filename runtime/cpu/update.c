/* The optimizers that most people use, SGD and Adam(W), on floats in one pass. What each kind and
 * style computes stands beside ref's kernel (runtime/ref/update.c). */
#include "runtime/ops/update.h"
#include "runtime/base/finite.h"
#include "runtime/base/status.h"
#include "runtime/cpu/cpu.h"
#include "runtime/cpu/product.h"
#include "runtime/cpu/simd.h"
#include "runtime/ref/indexed.h"

#include <omp.h>

enum { W, G, STEP, LR_FACTOR, COEFFICIENT, STATE };
enum { PIECE = 4096 }; /* elements that a thread does at once */

/* What does not change from element to element. */
struct rule {
    float coefficient, clip;
    float shrink, decay;                            /* w *= shrink; g += decay * w */
    float b1, b2, fresh1, fresh2, rate, scale, eps; /* adam */
    float kept, fresh, by_gradient, by_mean;        /* momentum: m = kept*m + fresh*g and
                                                     * w += by_gradient*g + by_mean*m */
};

static double scalar(const struct mgpu_launch *l, int input, double otherwise)
{
    bool there = input < l->inputs && l->in[input].data;
    return there ? *(const double *)l->in[input].data : otherwise;
}

static void set_adam(struct rule *r, const struct mgpu_update_attrs *a, double t, double lr)
{
    bool torch = a->style == MGPU_STYLE_TORCH;
    double correction = 1 - pow(a->beta1, t + 1), root = sqrt(1 - pow(a->beta2, t + 1));
    r->b1 = (float)a->beta1, r->fresh1 = (float)(1 - a->beta1);
    r->b2 = (float)a->beta2, r->fresh2 = (float)(1 - a->beta2);
    r->rate = (float)(lr / correction * (torch ? 1 : root));
    r->scale = (float)(torch ? 1 / root : 1);
    r->eps = (float)a->eps;
}

static void set_sgd(struct rule *r, const struct mgpu_update_attrs *a, double t, double lr)
{
    bool torch = a->style == MGPU_STYLE_TORCH, first = torch && t == 0;
    double by_gradient = a->nesterov ? -lr : 0, by_mean = a->nesterov ? a->momentum : 1;
    r->rate = (float)lr;
    r->kept = first ? 0 : (float)a->momentum;
    r->fresh = (float)(!torch ? -lr : first ? 1 : 1 - a->dampening);
    r->by_gradient = (float)by_gradient;
    r->by_mean = (float)(torch ? -lr * by_mean : by_mean);
}

static struct rule rule_of(const struct mgpu_launch *l)
{
    const struct mgpu_update_attrs *a = l->node->attrs;
    double t = scalar(l, STEP, 0), lr = a->lr * scalar(l, LR_FACTOR, 1) / (1 + a->decay * t);
    bool decoupled = a->kind == MGPU_ADAMW || a->style != MGPU_STYLE_TORCH;
    struct rule r = {.coefficient = (float)scalar(l, COEFFICIENT, 1)};
    r.clip = a->clip_value > 0 ? (float)a->clip_value : INFINITY;
    r.shrink = decoupled ? (float)(1 - lr * a->weight_decay) : 1;
    r.decay = decoupled ? 0 : (float)a->weight_decay;
    if (a->kind == MGPU_SGD)
        set_sgd(&r, a, t, lr);
    else
        set_adam(&r, a, t, lr);
    return r;
}

/* The gradient as the kinds want it, and the weight before the step. NaN stays. */
MGPU_INLINE float gradient(const struct rule *r, float g, float w)
{
    g *= r->coefficient;
    g = g > r->clip ? r->clip : g < -r->clip ? -r->clip : g;
    return g + r->decay * w;
}

MGPU_SIMD static void adam(const struct rule *given, float *w, const float *old_w, const float *g,
                           float *m, const float *old_m, float *v, const float *old_v, int64_t n)
{
    const struct rule r = *given;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) {
        float d = gradient(&r, g[i], old_w[i]);
        float mean = r.b1 * old_m[i] + r.fresh1 * d, square = r.b2 * old_v[i] + r.fresh2 * d * d;
        m[i] = mean;
        v[i] = square;
        w[i] = r.shrink * old_w[i] - r.rate * mean / (sqrtf(square) * r.scale + r.eps);
    }
}

MGPU_SIMD static void sgd(const struct rule *given, float *w, const float *old_w, const float *g,
                          int64_t n)
{
    const struct rule r = *given;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        w[i] = r.shrink * old_w[i] - r.rate * gradient(&r, g[i], old_w[i]);
}

MGPU_SIMD static void momentum(const struct rule *given, float *w, const float *old_w,
                               const float *g, float *m, const float *old_m, int64_t n)
{
    const struct rule r = *given;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) {
        float d = gradient(&r, g[i], old_w[i]), mean = r.kept * old_m[i] + r.fresh * d;
        m[i] = mean;
        w[i] = r.shrink * old_w[i] + r.by_gradient * d + r.by_mean * mean;
    }
}

/* Elements [at, at + n), whose gradients are g[]. */
static void run_piece(const struct mgpu_launch *l, const struct rule *r, int64_t at, int64_t n,
                      const float *g)
{
    const struct mgpu_update_attrs *a = l->node->attrs;
    const float *old_w = (const float *)l->in[W].data + at;
    float *w = (float *)l->out[0].data + at;
    if (a->kind == MGPU_SGD && a->momentum == 0) {
        sgd(r, w, old_w, g, n);
        return;
    }
    const float *old_m = (const float *)l->in[STATE].data + at;
    float *m = (float *)l->out[1].data + at;
    if (a->kind == MGPU_SGD)
        momentum(r, w, old_w, g, m, old_m, n);
    else
        adam(r, w, old_w, g, m, old_m, (float *)l->out[2].data + at,
             (const float *)l->in[STATE + 1].data + at, n);
}

static int run(const struct mgpu_launch *l)
{
    struct rule r = rule_of(l);
    int64_t count = mgpu_tensor_count(&l->in[W]);
    int team = mgpu_cpu_team(l->threads, 2 * count);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t at = 0; at < count; at += PIECE)
        run_piece(l, &r, at, count - at < PIECE ? count - at : PIECE,
                  (const float *)l->in[G].data + at);
    return 0;
}

/* ---- Of a product ---------------------------------------------------------------------------- */

/* y[j] = sum over k of a[k * m] b[k * n + j], n of them at most PIECE, four steps at a time. */
MGPU_SIMD static void multiply(const float *a, int64_t m, const float *b, int64_t step, int64_t k,
                               float *restrict y, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        y[j] = 0;
    for (int64_t s = 0; s < k; s += 4) {
        int64_t last = k - 1 - s;
        const float *b0 = b + s * step, *b1 = b0 + (last < 1 ? last : 1) * step;
        const float *b2 = b0 + (last < 2 ? last : 2) * step;
        const float *b3 = b0 + (last < 3 ? last : 3) * step;
        float a0 = a[s * m], a1 = last < 1 ? 0 : a[(s + 1) * m];
        float a2 = last < 2 ? 0 : a[(s + 2) * m], a3 = last < 3 ? 0 : a[(s + 3) * m];
#pragma GCC ivdep
        for (int64_t j = 0; j < n; j++)
            y[j] = y[j] + a0 * b0[j] + a1 * b1[j] + a2 * b2[j] + a3 * b3[j];
    }
}

/* One row of the weight; whether its gradient is finite. */
static bool run_row(const struct mgpu_launch *l, const struct rule *r, int64_t row)
{
    const struct mgpu_tensor *a = &l->in[G], *b = &l->in[MGPU_UPDATE_FACTOR];
    float g[PIECE];
    bool finite = true;
    for (int64_t j = 0; j < b->dims[1]; j += PIECE) {
        int64_t n = b->dims[1] - j < PIECE ? b->dims[1] - j : PIECE;
        multiply((const float *)a->data + row, a->dims[1], (const float *)b->data + j, b->dims[1],
                 a->dims[0], g, n);
        finite = finite && mgpu_all_finite(g, MGPU_FLOAT, n * (int64_t)sizeof *g);
        if (finite)
            run_piece(l, r, row * b->dims[1] + j, n, g);
    }
    return finite;
}

static int run_product(const struct mgpu_launch *l)
{
    struct rule r = rule_of(l);
    bool finite = true;
    int team = mgpu_cpu_team(l->threads, 2 * mgpu_tensor_count(&l->in[W]));
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static) reduction(&& : finite)
    for (int64_t row = 0; row < l->in[W].dims[0]; row++)
        finite = run_row(l, &r, row) && finite;
    return finite ? 0 : mgpu_fail(MGPU_EINVALID, "the gradient is not finite");
}

/* ---- Of a product of more steps, in pieces --------------------------------------------------- */

struct share {
    const struct mgpu_launch *l;
    const struct rule *r;
    bool finite;
};

/* Those rows that belong to the piece. */
static void add_rows(const struct mgpu_launch *l, const struct mgpu_product_piece *p)
{
    const struct mgpu_tensor *indices = &l->in[MGPU_UPDATE_INDICES], *w = &l->in[W];
    const float *rows = (const float *)l->in[MGPU_UPDATE_ROWS].data + p->j;
    for (int64_t k = 0, count = mgpu_tensor_count(indices); k < count; k++) {
        int64_t i = mgpu_index(indices, k, w->dims[0]) - p->i;
        for (int64_t j = 0; i >= 0 && i < p->rows && j < p->columns; j++)
            p->y[i * p->step + j] += rows[k * w->dims[1] + j];
    }
}

static void use_piece(void *context, const struct mgpu_product_piece *p)
{
    struct share *s = context;
    int64_t n = s->l->in[W].dims[1];
    if (s->l->inputs > MGPU_UPDATE_ROWS)
        add_rows(s->l, p);
    for (int64_t i = 0; i < p->rows; i++) {
        const float *g = p->y + i * p->step;
        s->finite = s->finite && mgpu_all_finite(g, MGPU_FLOAT, p->columns * (int64_t)sizeof *g);
        if (s->finite)
            run_piece(s->l, s->r, (p->i + i) * n + p->j, p->columns, g);
    }
}

static int team_of(const struct mgpu_node *node, int threads)
{
    return mgpu_cpu_team(threads, (int64_t)(node->op->cost(node).flops / 64));
}

static int64_t piece_bytes(const struct mgpu_node *node)
{
    const struct mgpu_value *w = node->input[W];
    return mgpu_pieces_bytes(w->dims[0].value, w->dims[1].value, node->input[G]->dims[0].value);
}

static int64_t workspace_pieces(const struct mgpu_node *node, int threads, const void *state)
{
    (void)state;
    return team_of(node, threads) * piece_bytes(node);
}

static int run_pieces(const struct mgpu_launch *l)
{
    const struct mgpu_tensor *a = &l->in[G], *b = &l->in[MGPU_UPDATE_FACTOR];
    struct mgpu_matrix_of turned = {a->data, 1, a->dims[1]}, right = {b->data, b->dims[1], 1};
    struct rule r = rule_of(l);
    int64_t bytes = piece_bytes(l->node);
    int team = team_of(l->node, l->threads);
    bool finite = true;
#pragma omp parallel num_threads(team) if (team > 1) reduction(&& : finite)
    {
        struct share s = {l, &r, true};
        int me = omp_get_thread_num();
        mgpu_product_pieces(turned, right, a->dims[1], b->dims[1], a->dims[0], me, team,
                            (char *)l->workspace + me * bytes, use_piece, &s);
        finite = s.finite;
    }
    return finite ? 0 : mgpu_fail(MGPU_EINVALID, "the gradient is not finite");
}

static bool accepts(const struct mgpu_node *node)
{
    const struct mgpu_update_attrs *a = node->attrs;
    bool known =
        a->kind == MGPU_SGD || ((a->kind == MGPU_ADAM || a->kind == MGPU_ADAMW) && !a->amsgrad);
    return known && node->input[W]->type == MGPU_FLOAT && !a->rounded;
}

enum { FEW = 16 /* steps: fewer, and the memory bounds the product */ };

static bool accepts_few(const struct mgpu_node *node)
{
    return accepts(node) && node->inputs <= MGPU_UPDATE_ROWS &&
           node->input[G]->dims[0].value <= FEW;
}

static bool accepts_pieces(const struct mgpu_node *node)
{
    return accepts(node) && mgpu_cpu_has_product() &&
           node->input[G]->dims[0].value <= MGPU_PIECES_DEEP;
}

const struct mgpu_kernel mgpu_cpu_update[] = {
    {"update", "loops", accepts, NULL, NULL, NULL, run},
    {"product_update", "loops", accepts_few, NULL, NULL, NULL, run_product},
    {"product_update", "packed", accepts_pieces, NULL, NULL, workspace_pieces, run_pieces},
    {NULL, NULL, NULL, NULL, NULL, NULL, NULL},
};
