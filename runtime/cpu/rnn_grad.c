/* rnn_grad on floats: the steps backwards, then the gradients over all steps as a few products. */
#include "runtime/cpu/rnn_layer.h"
#include "runtime/cpu/rows.h"
#include "runtime/cpu/simd.h"

#include <omp.h>
#include <string.h>

enum { X, W, R, B, LENGTHS, INITIAL_H, INITIAL_C, P, Y, RESERVE, DY, DY_H, DY_C };
enum { DX, DW, DR, DB, DINITIAL_H, DINITIAL_C, DP };
enum { TO_INPUT, TO_W, TO_R }; /* ds W; ds transposed X; du transposed old h */

static int make_products(struct mgpu_cpu_rnn *p)
{
    int64_t all = p->steps * p->samples, row = p->gates * p->hidden;
    MGPU_TRY(mgpu_cpu_rnn_make_product(p, TO_INPUT, all, p->inputs, row, false, false));
    MGPU_TRY(mgpu_cpu_rnn_make_product(p, TO_W, row, p->inputs, all, true, false));
    MGPU_TRY(mgpu_cpu_rnn_make_product(p, TO_R, row, p->hidden, all, true, false));
    return mgpu_cpu_rnn_make_steps(p, true);
}

static int prepare(const struct mgpu_node *node, int threads, bool exact, void **state)
{
    (void)exact;
    struct mgpu_cpu_rnn *p = mgpu_cpu_rnn_new(node, threads);
    int rc = make_products(p);
    if (rc < 0)
        mgpu_cpu_rnn_free(p);
    else
        *state = p;
    return rc;
}

struct shared {
    float *ds, *du;  /* [T*N, G*H]; the same but for the GRU */
    float *old_h;    /* [T*N, H]: the state before each step */
    float *dx;       /* [T*N, I]: the second direction's */
    float *dh, *dc;  /* [N, H] */
    float *through;  /* [N, H]: du R of a step */
    float *zeros;    /* [H] */
    void *workspace; /* of the products over all steps */
    char *own;       /* of the threads' products, one after the other */
};

/* Carves from `scratch`; returns the end. */
static char *carve(const struct mgpu_cpu_rnn *p, char *scratch, struct shared *s)
{
    int64_t all = p->steps * p->samples, row = p->gates * p->hidden;
    int64_t states = p->samples * p->hidden;
    s->ds = mgpu_cpu_rnn_take(&scratch, all * row);
    s->du = p->cell == MGPU_CELL_GRU ? mgpu_cpu_rnn_take(&scratch, all * row) : s->ds;
    s->old_h = mgpu_cpu_rnn_take(&scratch, all * p->hidden);
    s->dx = mgpu_cpu_rnn_take(&scratch, p->directions > 1 ? all * p->inputs : 0);
    s->dh = mgpu_cpu_rnn_take(&scratch, states);
    s->dc = mgpu_cpu_rnn_take(&scratch, states);
    s->through = mgpu_cpu_rnn_take(&scratch, states);
    s->zeros = mgpu_cpu_rnn_take(&scratch, p->hidden);
    s->workspace = scratch;
    s->own = scratch + p->product_workspace;
    return s->own + p->team * p->step_workspace;
}

static int64_t workspace(const struct mgpu_node *node, int threads, const void *state)
{
    (void)node, (void)threads;
    struct shared s;
    return carve(state, NULL, &s) - (char *)NULL;
}

static const float *input(const struct mgpu_launch *l, int i)
{
    return i < l->inputs ? l->in[i].data : NULL;
}

static float *output(const struct mgpu_launch *l, int i)
{
    return i < l->outputs ? l->out[i].data : NULL;
}

static const int32_t *lengths(const struct mgpu_launch *l)
{
    return (const void *)input(l, LENGTHS);
}

/* ---- Steps ----------------------------------------------------------------------------------- */

/* Row of sample n before step t in `states` (a tensor [T,D,N,step], the row at `offset`), or in
 * `initial` [D,N,H], or zeros. */
static const float *before(const struct mgpu_launch *l, const struct shared *s, int64_t d,
                           int64_t t, int64_t n, const float *states, int64_t step, int64_t offset,
                           const float *initial)
{
    const struct mgpu_cpu_rnn *p = l->state;
    int64_t last = p->reverse || d == 1 ? t + 1 : t - 1;
    if (last >= 0 && last < p->steps && mgpu_cpu_rnn_valid(lengths(l), last, n))
        return states + ((last * p->directions + d) * p->samples + n) * step + offset;
    return initial ? initial + (d * p->samples + n) * p->hidden : s->zeros;
}

MGPU_SIMD static void add(float *to, const float *from, int64_t n)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        to[i] += from[i];
}

static void step_sample(const struct mgpu_launch *l, const struct shared *s, int64_t d, int64_t t,
                        int64_t n)
{
    const struct mgpu_cpu_rnn *p = l->state;
    int64_t H = p->hidden, row = p->gates * H, at = (t * p->directions + d) * p->samples + n;
    int64_t all = t * p->samples + n;
    float *ds = s->ds + all * row, *du = s->du + all * row, *old_h = s->old_h + all * H;
    if (!mgpu_cpu_rnn_valid(lengths(l), t, n)) {
        memset(ds, 0, (size_t)row * sizeof *ds);
        memset(du, 0, (size_t)row * sizeof *du);
        memset(old_h, 0, (size_t)H * sizeof *old_h);
        return;
    }
    const float *h = before(l, s, d, t, n, input(l, Y), H, 0, input(l, INITIAL_H));
    const float *c = before(l, s, d, t, n, input(l, RESERVE), p->width, row, input(l, INITIAL_C));
    memcpy(old_h, h, (size_t)H * sizeof *old_h);
    if (input(l, DY))
        add(s->dh + n * H, input(l, DY) + at * H, H);
    mgpu_cpu_cell_backward(p->cell, H, input(l, RESERVE) + at * p->width, h, c, s->dh + n * H,
                           s->dc + n * H, ds, du);
}

/* All steps of a thread's samples, last first. */
static int run_steps(const struct mgpu_launch *l, const struct shared *s, int64_t d, int thread)
{
    const struct mgpu_cpu_rnn *p = l->state;
    struct mgpu_range samples = mgpu_cpu_rnn_samples(p, thread);
    char *scratch = s->own + thread * p->step_workspace;
    int64_t H = p->hidden, row = p->gates * H, count = (samples.end - samples.begin) * H;
    void *r = (float *)l->in[R].data + d * row * H;
    MGPU_TRY(mgpu_dnn_load(p->step[thread], 1, r, scratch));
    for (int64_t i = p->steps - 1; i >= 0; i--) {
        int64_t t = mgpu_cpu_rnn_time(p, d, i);
        for (int64_t n = samples.begin; n < samples.end; n++)
            step_sample(l, s, d, t, n);
        void *const data[] = {s->du + (t * p->samples + samples.begin) * row, NULL,
                              s->through + samples.begin * H};
        MGPU_TRY(mgpu_dnn_run(p->step[thread], data, scratch));
        add(s->dh + samples.begin * H, s->through + samples.begin * H, count);
    }
    return 0;
}

/* ---- What the steps add up to ---------------------------------------------------------------- */

static void bias_gradient(const struct mgpu_launch *l, const struct shared *s, int64_t d)
{
    const struct mgpu_cpu_rnn *p = l->state;
    int64_t row = p->gates * p->hidden, all = p->steps * p->samples;
    float *db = output(l, DB) + d * 2 * row;
    int64_t runs = (row + MGPU_COLUMNS - 1) / MGPU_COLUMNS;
    int team = mgpu_cpu_team(l->threads, all * row);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t task = 0; task < 2 * runs; task++) {
        const float *from = task < runs ? s->ds : s->du;
        int64_t j = task % runs * MGPU_COLUMNS, left = row - j;
        mgpu_cpu_column_sums(from + j, all, row, left < MGPU_COLUMNS ? left : MGPU_COLUMNS,
                             db + (task < runs ? 0 : row) + j);
    }
}

static int input_gradient(const struct mgpu_launch *l, const struct shared *s, int64_t d)
{
    const struct mgpu_cpu_rnn *p = l->state;
    int64_t count = p->steps * p->samples * p->inputs;
    const float *w = input(l, W) + d * p->gates * p->hidden * p->inputs;
    MGPU_TRY(mgpu_cpu_rnn_multiply(p, TO_INPUT, s->ds, w, d ? s->dx : output(l, DX), s->workspace));
    if (d)
        add(output(l, DX), s->dx, count);
    return 0;
}

static int weight_gradients(const struct mgpu_launch *l, const struct shared *s, int64_t d)
{
    const struct mgpu_cpu_rnn *p = l->state;
    int64_t row = p->gates * p->hidden;
    if (output(l, DW))
        MGPU_TRY(mgpu_cpu_rnn_multiply(p, TO_W, s->ds, input(l, X),
                                       output(l, DW) + d * row * p->inputs, s->workspace));
    if (output(l, DR))
        MGPU_TRY(mgpu_cpu_rnn_multiply(p, TO_R, s->du, s->old_h,
                                       output(l, DR) + d * row * p->hidden, s->workspace));
    if (output(l, DB))
        bias_gradient(l, s, d);
    return 0;
}

static void load_states(const float *from, int64_t count, int64_t d, float *to)
{
    if (from)
        memcpy(to, from + d * count, (size_t)count * sizeof *to);
    else
        memset(to, 0, (size_t)count * sizeof *to);
}

static void store_states(const float *from, int64_t count, int64_t d, float *to)
{
    if (to)
        memcpy(to + d * count, from, (size_t)count * sizeof *to);
}

static int run_direction(const struct mgpu_launch *l, const struct shared *s, int64_t d)
{
    const struct mgpu_cpu_rnn *p = l->state;
    int64_t states = p->samples * p->hidden;
    int rc = 0;
    load_states(input(l, DY_H), states, d, s->dh);
    load_states(p->cell == MGPU_CELL_LSTM ? input(l, DY_C) : NULL, states, d, s->dc);
    if (p->team == 1)
        rc = run_steps(l, s, d, 0);
    else
#pragma omp parallel num_threads(p->team) reduction(min : rc)
        rc = run_steps(l, s, d, omp_get_thread_num());
    if (rc < 0)
        return p->team == 1 ? rc : mgpu_fail(rc, "rnn_grad: a product failed");
    store_states(s->dh, states, d, output(l, DINITIAL_H));
    store_states(s->dc, states, d, output(l, DINITIAL_C));
    if (output(l, DX))
        MGPU_TRY(input_gradient(l, s, d));
    return weight_gradients(l, s, d);
}

static int run(const struct mgpu_launch *l)
{
    const struct mgpu_cpu_rnn *p = l->state;
    struct shared s;
    carve(p, l->workspace, &s);
    MGPU_TRY(mgpu_cpu_rnn_check_lengths(p, lengths(l)));
    memset(s.zeros, 0, (size_t)p->hidden * sizeof *s.zeros);
    if (output(l, DP)) /* P is absent and nobody reads its gradient, but it shall be finite */
        memset(output(l, DP), 0, (size_t)(p->directions * 3 * p->hidden) * sizeof(float));
    for (int64_t d = 0; d < p->directions; d++)
        MGPU_TRY(run_direction(l, &s, d));
    return 0;
}

const struct mgpu_kernel mgpu_cpu_rnn_grad[] = {
    {"rnn_grad", "products", mgpu_cpu_rnn_accepts, prepare, mgpu_cpu_rnn_free, workspace, run},
    {NULL, NULL, NULL, NULL, NULL, NULL, NULL},
};
