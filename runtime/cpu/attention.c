/* Attention on floats: a task is a head. Its keys and values are packed once (product.h); some
 * queries at a time make scores, probabilities and what is summed of them, so that what lies in
 * between stays in the second cache. */
#include "runtime/ops/attention.h"
#include "runtime/cpu/cpu.h"
#include "runtime/cpu/product.h"
#include "runtime/cpu/simd.h"

#include <omp.h>

enum { Q, K, V, MASK, Y, STATISTICS, DY };
enum { DQ, DK, DV };
enum { QUERIES = 96, LINE = 64 / sizeof(float) };

/* A head's own places in the operands. */
struct head {
    const struct mgpu_launch *l;
    struct mgpu_attention a;
    int64_t sample, head;
    int64_t width_step, out_step; /* from row to row of q and k; of v and y */
};

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Takes `count` floats of *scratch, on a cache line of their own. */
static float *take(float **scratch, int64_t count)
{
    float *block = *scratch;
    *scratch += (count + LINE - 1) / LINE * LINE;
    return block;
}

static struct head head_of(const struct mgpu_launch *l, int64_t which)
{
    struct head h = {.l = l, .a = mgpu_attention_of(l->node)};
    h.sample = which / h.a.heads;
    h.head = which % h.a.heads;
    h.width_step = mgpu_attention_step(l->node, h.a.width);
    h.out_step = mgpu_attention_step(l->node, h.a.out);
    return h;
}

/* Row `row` of the head in a tensor of `count` rows a head. */
static float *row_of(const struct head *h, const struct mgpu_tensor *t, int64_t row, int64_t count,
                     int64_t width)
{
    return (float *)t->data + mgpu_attention_at(h->l->node, h->sample, h->head, count, width) +
           row * mgpu_attention_step(h->l->node, width);
}

static float *statistics_of(const struct head *h, const struct mgpu_tensor *t, int64_t row)
{
    return (float *)t->data + 2 * ((h->sample * h->a.heads + h->head) * h->a.queries + row);
}

/* ---- Scores ---------------------------------------------------------------------------------- */

/* One row of a mask; neither: there is none. */
struct mask {
    const float *floats;
    const bool *bools;
    int64_t step; /* 0: one for all keys */
};

static struct mask mask_of(const struct head *h, int64_t t)
{
    const struct mgpu_tensor *m = &h->l->in[MASK];
    const int64_t *step = h->a.mask;
    int64_t at = h->sample * step[0] + h->head * step[1] + t * step[2];
    if (h->l->inputs <= MASK || !m->data)
        return (struct mask){0};
    return m->type == MGPU_BOOL
               ? (struct mask){.bools = (const bool *)m->data + at, .step = step[3]}
               : (struct mask){.floats = (const float *)m->data + at, .step = step[3]};
}

/* Scales and masks a row of products; returns the largest. */
MGPU_SIMD static float finish_scores(float *x, int64_t n, float scale, float fill,
                                     const struct mask *mask)
{
    float largest = -INFINITY;
    const float *floats = mask->floats;
    const bool *bools = mask->bools;
    if (floats && mask->step)
#pragma GCC ivdep
        for (int64_t i = 0; i < n; i++)
            x[i] = scale * x[i] + floats[i];
    else if (bools && mask->step)
#pragma GCC ivdep
        for (int64_t i = 0; i < n; i++) {
            float y = scale * x[i];
            x[i] = bools[i] ? y : fill;
        }
    else {
        float more = floats ? *floats : -0.0f;
        bool hidden = bools && !*bools;
#pragma GCC ivdep
        for (int64_t i = 0; i < n; i++)
            x[i] = hidden ? fill : scale * x[i] + more;
    }
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < n; i++)
        largest = x[i] > largest ? x[i] : largest;
    return largest;
}

/* x = exp(x - largest); returns the sum. */
MGPU_SIMD static float exponentials(float *x, int64_t n, float largest)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        float e = mgpu_exp_negativef(x[i] - largest);
        x[i] = e;
        sum += e;
    }
    return sum;
}

MGPU_SIMD static void multiply_row(float *x, int64_t n, float factor)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        x[i] *= factor;
}

/* Scores of queries [t, t + count) to x [count, S]; largest[i] of each. */
static void make_scores(const struct head *h, int64_t t, int64_t count, const float *keys,
                        float *rows, float *x, float *largest)
{
    const struct mgpu_attention_attrs *attrs = h->l->node->attrs;
    int64_t S = h->a.keys, D = h->a.width;
    const float *q = row_of(h, &h->l->in[Q], t, h->a.queries, D);
    mgpu_pack_rows((struct mgpu_matrix_of){q, h->width_step, 1}, count, D, rows);
    mgpu_multiply_packed(rows, keys, count, S, D, x, S, false);
    for (int64_t i = 0; i < count; i++) {
        struct mask mask = mask_of(h, t + i);
        largest[i] = finish_scores(x + i * S, S, (float)attrs->scale, (float)attrs->fill, &mask);
    }
}

/* ---- Forward --------------------------------------------------------------------------------- */

struct forward {
    float *keys, *values; /* packed: k' and v */
    float *scores;        /* [QUERIES, S] */
    float *rows;          /* packed queries or probabilities */
};

/* Carves from `scratch`; returns the end. */
static float *carve_forward(const struct mgpu_attention *a, float *scratch, struct forward *f)
{
    f->keys = take(&scratch, mgpu_packed_columns(a->keys, a->width));
    f->values = take(&scratch, mgpu_packed_columns(a->out, a->keys));
    f->scores = take(&scratch, QUERIES * a->keys);
    f->rows = take(&scratch, mgpu_packed_rows(QUERIES, most(a->width, a->keys)));
    return scratch;
}

static void forward_queries(const struct head *h, const struct forward *f, int64_t t, int64_t count)
{
    int64_t S = h->a.keys, E = h->a.out;
    const struct mgpu_tensor *kept = h->l->outputs > 1 ? &h->l->out[1] : NULL;
    float largest[QUERIES];
    make_scores(h, t, count, f->keys, f->rows, f->scores, largest);
    for (int64_t i = 0; i < count; i++) {
        float *x = f->scores + i * S, sum = exponentials(x, S, largest[i]);
        multiply_row(x, S, 1 / sum);
        if (!kept || !kept->data)
            continue;
        statistics_of(h, kept, t + i)[0] = largest[i];
        statistics_of(h, kept, t + i)[1] = sum;
    }
    mgpu_pack_rows((struct mgpu_matrix_of){f->scores, S, 1}, count, S, f->rows);
    mgpu_multiply_packed(f->rows, f->values, count, E, S,
                         row_of(h, &h->l->out[0], t, h->a.queries, E), h->out_step, false);
}

static void forward(const struct head *h, float *scratch)
{
    struct forward f;
    int64_t S = h->a.keys, D = h->a.width, E = h->a.out, T = h->a.queries;
    carve_forward(&h->a, scratch, &f);
    const float *k = row_of(h, &h->l->in[K], 0, S, D), *v = row_of(h, &h->l->in[V], 0, S, E);
    mgpu_pack_columns((struct mgpu_matrix_of){k, 1, h->width_step}, S, D, f.keys);
    mgpu_pack_columns((struct mgpu_matrix_of){v, h->out_step, 1}, E, S, f.values);
    for (int64_t t = 0; t < T; t += QUERIES)
        forward_queries(h, &f, t, T - t < QUERIES ? T - t : QUERIES);
}

/* ---- Backward -------------------------------------------------------------------------------- */

struct backward {
    float *keys, *turned, *values; /* packed: k', k and v' */
    float *p, *ds;                 /* [QUERIES, S] */
    float *rows, *columns;         /* packed operands of a product */
};

static float *carve_backward(const struct mgpu_attention *a, float *scratch, struct backward *b)
{
    int64_t wide = most(a->width, a->out);
    b->keys = take(&scratch, mgpu_packed_columns(a->keys, a->width));
    b->turned = take(&scratch, mgpu_packed_columns(a->width, a->keys));
    b->values = take(&scratch, mgpu_packed_columns(a->keys, a->out));
    b->p = take(&scratch, QUERIES * a->keys);
    b->ds = take(&scratch, QUERIES * a->keys);
    b->rows = take(&scratch, most(mgpu_packed_rows(QUERIES, most(wide, a->keys)),
                                  mgpu_packed_rows(a->keys, QUERIES)));
    b->columns = take(&scratch, mgpu_packed_columns(wide, QUERIES));
    return scratch;
}

/* The row x of dy v' becomes scale * p * (x - sum over E of dy * y). */
MGPU_SIMD static void finish_gradient(float *x, const float *p, int64_t n, const float *dy,
                                      const float *y, int64_t width, float scale)
{
    float all = 0;
#pragma omp simd reduction(+ : all)
    for (int64_t i = 0; i < width; i++)
        all += dy[i] * y[i];
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        x[i] = scale * p[i] * (x[i] - all);
}

/* Where `fill` stands, nothing comes from the score. */
static void clear_hidden(float *x, int64_t n, const struct mask *mask)
{
    for (int64_t i = 0; mask->bools && i < n; i++)
        x[i] = mask->bools[i * mask->step] ? x[i] : 0;
}

/* p and ds of queries [t, t + count). */
static void make_gradients(const struct head *h, const struct backward *b, int64_t t, int64_t count)
{
    const struct mgpu_attention_attrs *attrs = h->l->node->attrs;
    const struct mgpu_launch *l = h->l;
    int64_t S = h->a.keys, E = h->a.out, T = h->a.queries;
    float largest[QUERIES];
    const float *dy = row_of(h, &l->in[DY], t, T, E), *y = row_of(h, &l->in[Y], t, T, E);
    make_scores(h, t, count, b->keys, b->rows, b->p, largest);
    mgpu_pack_rows((struct mgpu_matrix_of){dy, h->out_step, 1}, count, E, b->rows);
    mgpu_multiply_packed(b->rows, b->values, count, S, E, b->ds, S, false);
    for (int64_t i = 0; i < count; i++) {
        const float *kept = statistics_of(h, &l->in[STATISTICS], t + i);
        struct mask mask = mask_of(h, t + i);
        exponentials(b->p + i * S, S, kept[0]);
        multiply_row(b->p + i * S, S, 1 / kept[1]);
        finish_gradient(b->ds + i * S, b->p + i * S, S, dy + i * h->out_step, y + i * h->out_step,
                        E, (float)attrs->scale);
        clear_hidden(b->ds + i * S, S, &mask);
    }
}

/* to [S, width] = x' from, or += of it: x is [count, S], from [count, width]. */
static void add_by_keys(const struct head *h, const struct backward *b, const float *x,
                        int64_t count, const float *from, int64_t width, int64_t step, float *to,
                        bool add)
{
    int64_t S = h->a.keys;
    mgpu_pack_rows((struct mgpu_matrix_of){x, 1, S}, S, count, b->rows);
    mgpu_pack_columns((struct mgpu_matrix_of){from, step, 1}, width, count, b->columns);
    mgpu_multiply_packed(b->rows, b->columns, S, width, count, to, step, add);
}

static void backward_queries(const struct head *h, const struct backward *b, int64_t t,
                             int64_t count)
{
    const struct mgpu_launch *l = h->l;
    int64_t S = h->a.keys, D = h->a.width, E = h->a.out, T = h->a.queries;
    make_gradients(h, b, t, count);
    if (l->out[DQ].data) {
        mgpu_pack_rows((struct mgpu_matrix_of){b->ds, S, 1}, count, S, b->rows);
        mgpu_multiply_packed(b->rows, b->turned, count, D, S, row_of(h, &l->out[DQ], t, T, D),
                             h->width_step, false);
    }
    if (l->out[DK].data)
        add_by_keys(h, b, b->ds, count, row_of(h, &l->in[Q], t, T, D), D, h->width_step,
                    row_of(h, &l->out[DK], 0, S, D), t > 0);
    if (l->out[DV].data)
        add_by_keys(h, b, b->p, count, row_of(h, &l->in[DY], t, T, E), E, h->out_step,
                    row_of(h, &l->out[DV], 0, S, E), t > 0);
}

static void backward(const struct head *h, float *scratch)
{
    struct backward b;
    int64_t S = h->a.keys, D = h->a.width, E = h->a.out, T = h->a.queries;
    carve_backward(&h->a, scratch, &b);
    const float *k = row_of(h, &h->l->in[K], 0, S, D), *v = row_of(h, &h->l->in[V], 0, S, E);
    mgpu_pack_columns((struct mgpu_matrix_of){k, 1, h->width_step}, S, D, b.keys);
    mgpu_pack_columns((struct mgpu_matrix_of){k, h->width_step, 1}, D, S, b.turned);
    mgpu_pack_columns((struct mgpu_matrix_of){v, 1, h->out_step}, S, E, b.values);
    for (int64_t t = 0; t < T; t += QUERIES)
        backward_queries(h, &b, t, T - t < QUERIES ? T - t : QUERIES);
}

/* ---- Kernels --------------------------------------------------------------------------------- */

static int64_t floats_of(const struct mgpu_node *node)
{
    struct mgpu_attention a = mgpu_attention_of(node);
    struct forward f;
    struct backward b;
    return (node->inputs > DY ? carve_backward(&a, NULL, &b) : carve_forward(&a, NULL, &f)) -
           (float *)NULL;
}

static int64_t workspace(const struct mgpu_node *node, int threads, const void *state)
{
    (void)state;
    return threads * floats_of(node) * (int64_t)sizeof(float);
}

/* Log sums are the GPUs'. */
static bool accepts(const struct mgpu_node *node)
{
    if (((const struct mgpu_attention_attrs *)node->attrs)->log_sums)
        return false;
    for (int i = 0; i < node->inputs; i++) {
        const struct mgpu_value *v = node->input[i];
        if (v && ((v->type != MGPU_FLOAT && i != MASK) || mgpu_value_count(v) == 0))
            return false;
    }
    return true;
}

static int run(const struct mgpu_launch *l)
{
    struct mgpu_attention a = mgpu_attention_of(l->node);
    int team = mgpu_cpu_team(l->threads, (int64_t)(l->node->op->cost(l->node).flops / 16));
    int64_t floats = floats_of(l->node);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t which = 0; which < a.samples * a.heads; which++) {
        struct head h = head_of(l, which);
        (l->inputs > DY ? backward
                        : forward)(&h, (float *)l->workspace + omp_get_thread_num() * floats);
    }
    return 0;
}

const struct mgpu_kernel mgpu_cpu_attention[] = {
    {"attention", "blocks", accepts, NULL, NULL, workspace, run},
    {"attention_grad", "blocks", accepts, NULL, NULL, workspace, run},
    {NULL, NULL, NULL, NULL, NULL, NULL, NULL},
};
