/* rnn on floats: the forward pass. */
#include "runtime/cpu/rnn_layer.h"

#include <omp.h>
#include <string.h>

enum { X, W, R, B, LENGTHS, INITIAL_H, INITIAL_C };
enum { Y, Y_H, Y_C, RESERVE };
enum { PROJECT }; /* [T*N, I] by W transposed */

static int prepare(const struct mgpu_node *node, int threads, bool exact, void **state)
{
    (void)exact;
    struct mgpu_cpu_rnn *p = mgpu_cpu_rnn_new(node, threads);
    int rc = mgpu_cpu_rnn_make_product(p, PROJECT, p->steps * p->samples, p->gates * p->hidden,
                                       p->inputs, false, true);
    if (rc == 0)
        rc = mgpu_cpu_rnn_make_steps(p, false);
    if (rc < 0)
        mgpu_cpu_rnn_free(p);
    else
        *state = p;
    return rc;
}

/* Scratch of all threads, then of each. */
struct shared {
    float *sums;             /* [T*N, G*H]: the input's part */
    float *bias, *part_bias; /* [G*H], [H]: see mgpu_cpu_cell_forward */
    float *h, *c;            /* [N, H] */
    void *workspace;         /* of the product PROJECT */
    char *own;               /* the threads' */
};

struct own {
    float *from_state; /* [n, G*H] */
    float *reserve;    /* a row nobody keeps */
    void *workspace;   /* of the thread's products */
};

static int64_t own_bytes(const struct mgpu_cpu_rnn *p)
{
    int64_t n = (p->samples + p->team - 1) / p->team;
    return mgpu_cpu_rnn_bytes(n * p->gates * p->hidden) + mgpu_cpu_rnn_bytes(p->width) +
           p->step_workspace;
}

static int64_t workspace(const struct mgpu_node *node, int threads, const void *state)
{
    (void)node, (void)threads;
    const struct mgpu_cpu_rnn *p = state;
    int64_t row = p->gates * p->hidden, states = p->samples * p->hidden;
    return mgpu_cpu_rnn_bytes(p->steps * p->samples * row) + mgpu_cpu_rnn_bytes(row) +
           mgpu_cpu_rnn_bytes(p->hidden) + 2 * mgpu_cpu_rnn_bytes(states) + p->product_workspace +
           p->team * own_bytes(p);
}

static struct shared carve(const struct mgpu_launch *l)
{
    const struct mgpu_cpu_rnn *p = l->state;
    char *scratch = l->workspace;
    int64_t row = p->gates * p->hidden, states = p->samples * p->hidden;
    struct shared s = {.sums = mgpu_cpu_rnn_take(&scratch, p->steps * p->samples * row)};
    s.bias = mgpu_cpu_rnn_take(&scratch, row);
    s.part_bias = mgpu_cpu_rnn_take(&scratch, p->hidden);
    s.h = mgpu_cpu_rnn_take(&scratch, states);
    s.c = mgpu_cpu_rnn_take(&scratch, states);
    s.workspace = scratch;
    s.own = scratch + p->product_workspace;
    return s;
}

static struct own carve_own(const struct mgpu_cpu_rnn *p, const struct shared *s, int thread)
{
    char *scratch = s->own + thread * own_bytes(p);
    int64_t n = (p->samples + p->team - 1) / p->team;
    struct own own = {.from_state = mgpu_cpu_rnn_take(&scratch, n * p->gates * p->hidden)};
    own.reserve = mgpu_cpu_rnn_take(&scratch, p->width);
    own.workspace = scratch;
    return own;
}

static const float *input(const struct mgpu_launch *l, int i)
{
    return i < l->inputs ? l->in[i].data : NULL;
}

static float *output(const struct mgpu_launch *l, int i)
{
    return i < l->outputs ? l->out[i].data : NULL;
}

/* Wb + Rb of a direction; the GRU's candidate keeps its two apart. */
static void load_bias(const struct mgpu_launch *l, int64_t d, const struct shared *s)
{
    const struct mgpu_cpu_rnn *p = l->state;
    int64_t row = p->gates * p->hidden, both = p->cell == MGPU_CELL_GRU ? 2 * p->hidden : row;
    const float *b = input(l, B) ? input(l, B) + d * 2 * row : NULL;
    for (int64_t j = 0; j < row; j++)
        s->bias[j] = !b ? 0 : j < both ? b[j] + b[row + j] : b[j];
    for (int64_t j = 0; j < p->hidden; j++)
        s->part_bias[j] = b ? b[2 * row - p->hidden + j] : 0;
}

/* states [N,H] of a direction, given or zero. */
static void load_states(const struct mgpu_cpu_rnn *p, const float *from, int64_t d, float *to)
{
    int64_t count = p->samples * p->hidden;
    if (from)
        memcpy(to, from + d * count, (size_t)count * sizeof *to);
    else
        memset(to, 0, (size_t)count * sizeof *to);
}

static void copy(float *to, const float *from, int64_t count)
{
    if (to)
        memcpy(to, from, (size_t)count * sizeof *to);
}

/* Sample n at step t; past its sequence Y and the reserve are zero. */
static void step_sample(const struct mgpu_launch *l, const struct shared *s, const struct own *own,
                        int64_t d, int64_t t, int64_t n, const float *from_state)
{
    const struct mgpu_cpu_rnn *p = l->state;
    int64_t H = p->hidden, at = (t * p->directions + d) * p->samples + n;
    float *y = output(l, Y) ? output(l, Y) + at * H : NULL, *h = s->h + n * H;
    float *reserve = output(l, RESERVE) ? output(l, RESERVE) + at * p->width : own->reserve;
    if (mgpu_cpu_rnn_valid((const void *)input(l, LENGTHS), t, n)) {
        mgpu_cpu_cell_forward(p->cell, H, s->sums + (t * p->samples + n) * p->gates * H, from_state,
                              s->bias, s->part_bias, h, s->c + n * H, reserve);
        copy(y, h, H);
        return;
    }
    memset(reserve, 0, (size_t)p->width * sizeof *reserve);
    if (y)
        memset(y, 0, (size_t)H * sizeof *y);
}

/* All steps of a thread's samples. */
static int run_steps(const struct mgpu_launch *l, const struct shared *s, int64_t d, int thread)
{
    const struct mgpu_cpu_rnn *p = l->state;
    struct mgpu_range samples = mgpu_cpu_rnn_samples(p, thread);
    struct own own = carve_own(p, s, thread);
    struct mgpu_dnn *product = p->step[thread];
    int64_t row = p->gates * p->hidden;
    void *r = (float *)l->in[R].data + d * row * p->hidden;
    MGPU_TRY(mgpu_dnn_load(product, 1, r, own.workspace));
    for (int64_t i = 0; i < p->steps; i++) {
        int64_t t = mgpu_cpu_rnn_time(p, d, i);
        void *const data[] = {s->h + samples.begin * p->hidden, NULL, own.from_state};
        MGPU_TRY(mgpu_dnn_run(product, data, own.workspace));
        for (int64_t n = samples.begin; n < samples.end; n++)
            step_sample(l, s, &own, d, t, n, own.from_state + (n - samples.begin) * row);
    }
    return 0;
}

static int run_direction(const struct mgpu_launch *l, const struct shared *s, int64_t d)
{
    const struct mgpu_cpu_rnn *p = l->state;
    int64_t states = p->samples * p->hidden, row = p->gates * p->hidden;
    int rc = mgpu_cpu_rnn_multiply(p, PROJECT, l->in[X].data,
                                   (const float *)l->in[W].data + d * row * p->inputs, s->sums,
                                   s->workspace);
    if (rc < 0)
        return rc;
    load_bias(l, d, s);
    load_states(p, input(l, INITIAL_H), d, s->h);
    load_states(p, input(l, INITIAL_C), d, s->c);
    if (p->team == 1)
        rc = run_steps(l, s, d, 0);
    else
#pragma omp parallel num_threads(p->team) reduction(min : rc)
        rc = run_steps(l, s, d, omp_get_thread_num());
    if (rc < 0)
        return p->team == 1 ? rc : mgpu_fail(rc, "rnn: a product failed");
    copy(output(l, Y_H) ? output(l, Y_H) + d * states : NULL, s->h, states);
    if (p->cell == MGPU_CELL_LSTM)
        copy(output(l, Y_C) ? output(l, Y_C) + d * states : NULL, s->c, states);
    return 0;
}

static int run(const struct mgpu_launch *l)
{
    const struct mgpu_cpu_rnn *p = l->state;
    struct shared s = carve(l);
    MGPU_TRY(mgpu_cpu_rnn_check_lengths(p, (const void *)input(l, LENGTHS)));
    for (int64_t d = 0; d < p->directions; d++)
        MGPU_TRY(run_direction(l, &s, d));
    return 0;
}

const struct mgpu_kernel mgpu_cpu_rnn[] = {
    {"rnn", "products", mgpu_cpu_rnn_accepts, prepare, mgpu_cpu_rnn_free, workspace, run},
    {NULL, NULL, NULL, NULL, NULL, NULL, NULL},
};
