/* Attention in doubles, a head at a time. */
#include "runtime/ops/attention.h"
#include "runtime/ref/ref.h"
#include "runtime/ref/rows.h"

#include <math.h>
#include <omp.h>
#include <string.h>

enum { Q, K, V, MASK, Y, STATISTICS, DY };

/* One head: what is its own of each operand, in doubles. */
struct head {
    const struct mgpu_launch *l;
    struct mgpu_attention a;
    int64_t sample, head;
    double *k, *v, *dk, *dv; /* [S,D], [S,E] and their gradients */
    double *q, *dq, *y, *dy; /* rows of one query */
    double *scores;          /* [S] */
};

static int64_t row_offset(const struct head *h, int64_t row, int64_t count, int64_t width)
{
    return mgpu_attention_at(h->l->node, h->sample, h->head, count, width) +
           row * mgpu_attention_step(h->l->node, width);
}

static void load(const struct head *h, double *to, int input, int64_t row, int64_t count,
                 int64_t width)
{
    mgpu_row_load(to, &h->l->in[input], row_offset(h, row, count, width), 1, width);
}

static void store(const struct head *h, const double *from, int output, int64_t row, int64_t count,
                  int64_t width)
{
    mgpu_row_store(&h->l->out[output], row_offset(h, row, count, width), 1, width, from);
}

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static void add(double *to, double factor, const double *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] += factor * from[i];
}

static bool has_mask(const struct mgpu_launch *l)
{
    return l->inputs > MASK && l->in[MASK].data;
}

static double mask_at(const struct head *h, int64_t t, int64_t s)
{
    const int64_t *step = h->a.mask;
    const struct mgpu_tensor *mask = &h->l->in[MASK];
    return mgpu_get_double(mask->data, mask->type,
                           h->sample * step[0] + h->head * step[1] + t * step[2] + s * step[3]);
}

/* Whether the score is computed and not `fill`. */
static bool is_shown(const struct head *h, int64_t t, int64_t s)
{
    return !has_mask(h->l) || h->l->in[MASK].type != MGPU_BOOL || mask_at(h, t, s) != 0;
}

static void compute_scores(const struct head *h, int64_t t)
{
    const struct mgpu_attention_attrs *attrs = h->l->node->attrs;
    bool wide = h->l->in[Q].type == MGPU_DOUBLE;
    double fill = wide ? attrs->fill : (float)attrs->fill; /* as the statistics keep it */
    bool adds = has_mask(h->l) && h->l->in[MASK].type != MGPU_BOOL;
    for (int64_t s = 0; s < h->a.keys; s++) {
        double score = attrs->scale * dot(h->q, h->k + s * h->a.width, h->a.width);
        h->scores[s] = !is_shown(h, t, s) ? fill : adds ? score + mask_at(h, t, s) : score;
    }
}

/* Statistics of a query, of which `count` are kept: p = exp(s - [0]) / [1]. */
static int64_t statistics_at(const struct head *h, int64_t t, int *count)
{
    *count = ((const struct mgpu_attention_attrs *)h->l->node->attrs)->log_sums ? 1 : 2;
    return *count * ((h->sample * h->a.heads + h->head) * h->a.queries + t);
}

static void forward_query(const struct head *h, int64_t t)
{
    int64_t S = h->a.keys, E = h->a.out;
    int count;
    int64_t at = statistics_at(h, t, &count);
    double statistics[2] = {-INFINITY, 0};
    load(h, h->q, Q, t, h->a.queries, h->a.width);
    compute_scores(h, t);
    memset(h->y, 0, (size_t)E * sizeof *h->y);
    for (int64_t s = 0; s < S; s++)
        statistics[0] = fmax(statistics[0], h->scores[s]);
    for (int64_t s = 0; s < S; s++) {
        double e = exp(h->scores[s] - statistics[0]);
        statistics[1] += e;
        add(h->y, e, h->v + s * E, E);
    }
    for (int64_t e = 0; e < E; e++)
        h->y[e] /= statistics[1];
    store(h, h->y, 0, t, h->a.queries, E);
    if (count == 1)
        statistics[0] += log(statistics[1]);
    if (h->l->outputs > 1 && h->l->out[1].data)
        mgpu_row_store(&h->l->out[1], at, 1, count, statistics);
}

static void backward_query(const struct head *h, int64_t t)
{
    const struct mgpu_attention_attrs *attrs = h->l->node->attrs;
    int64_t S = h->a.keys, D = h->a.width, E = h->a.out;
    int count;
    int64_t at = statistics_at(h, t, &count);
    double statistics[2] = {0, 1};
    load(h, h->q, Q, t, h->a.queries, D);
    load(h, h->y, Y, t, h->a.queries, E);
    load(h, h->dy, DY, t, h->a.queries, E);
    mgpu_row_load(statistics, &h->l->in[STATISTICS], at, 1, count);
    compute_scores(h, t);
    memset(h->dq, 0, (size_t)D * sizeof *h->dq);
    double all = dot(h->dy, h->y, E);
    for (int64_t s = 0; s < S; s++) {
        double p = exp(h->scores[s] - statistics[0]) / statistics[1];
        double ds = attrs->scale * p * (dot(h->dy, h->v + s * E, E) - all);
        add(h->dv + s * E, p, h->dy, E);
        if (!is_shown(h, t, s))
            continue;
        add(h->dq, ds, h->k + s * D, D);
        add(h->dk + s * D, ds, h->q, D);
    }
    if (h->l->out[0].data)
        store(h, h->dq, 0, t, h->a.queries, D);
}

static int64_t head_doubles(const struct mgpu_node *node)
{
    struct mgpu_attention a = mgpu_attention_of(node);
    return (2 * a.keys + 2) * (a.width + a.out) + a.keys;
}

static int64_t workspace(const struct mgpu_node *node, int threads, const void *state)
{
    (void)state;
    return threads * head_doubles(node) * (int64_t)sizeof(double);
}

static struct head begin_head(const struct mgpu_launch *l, int64_t which, double *scratch)
{
    struct head h = {.l = l, .a = mgpu_attention_of(l->node)};
    int64_t S = h.a.keys, D = h.a.width, E = h.a.out;
    h.sample = which / h.a.heads;
    h.head = which % h.a.heads;
    h.dk = scratch;
    h.dv = h.dk + S * D;
    h.k = h.dv + S * E;
    h.v = h.k + S * D;
    h.q = h.v + S * E;
    h.dq = h.q + D;
    h.y = h.dq + D;
    h.dy = h.y + E;
    h.scores = h.dy + E;
    memset(scratch, 0, (size_t)(S * (D + E)) * sizeof *scratch);
    for (int64_t s = 0; s < S; s++) {
        load(&h, h.k + s * D, K, s, S, D);
        load(&h, h.v + s * E, V, s, S, E);
    }
    return h;
}

static void end_head(const struct head *h)
{
    for (int64_t s = 0; s < h->a.keys; s++) {
        if (h->l->out[1].data)
            store(h, h->dk + s * h->a.width, 1, s, h->a.keys, h->a.width);
        if (h->l->out[2].data)
            store(h, h->dv + s * h->a.out, 2, s, h->a.keys, h->a.out);
    }
}

static int run(const struct mgpu_launch *l)
{
    struct mgpu_attention a = mgpu_attention_of(l->node);
    bool backward = l->inputs > DY;
#pragma omp parallel for num_threads(l->threads) schedule(static)
    for (int64_t which = 0; which < a.samples * a.heads; which++) {
        double *scratch = (double *)l->workspace + omp_get_thread_num() * head_doubles(l->node);
        struct head h = begin_head(l, which, scratch);
        for (int64_t t = 0; t < a.queries; t++)
            (backward ? backward_query : forward_query)(&h, t);
        if (backward)
            end_head(&h);
    }
    return 0;
}

const struct mgpu_kernel mgpu_ref_attention[] = {
    {.op = "attention", .name = "ref", .workspace = workspace, .run = run},
    {.op = "attention_grad", .name = "ref", .workspace = workspace, .run = run},
    {.op = NULL},
};
