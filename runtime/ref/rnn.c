/* rnn in plain C: the steps of each direction one after the other, all samples at once. */
#include "runtime/base/status.h"
#include "runtime/ref/ref.h"
#include "runtime/ref/rnn_cell.h"

#include <string.h>

/* Outputs; NULL data: not wanted. */
struct results {
    const struct mgpu_tensor *y, *y_h, *y_c, *reserve;
};

static const struct mgpu_tensor *wanted(const struct mgpu_launch *l, int i)
{
    return i < l->outputs && l->out[i].data ? &l->out[i] : NULL;
}

/* states [N,H] of a direction, from a tensor [D,N,H] or zero. */
static void load_state(const struct mgpu_rnn_layer *p, const struct mgpu_tensor *from,
                       int64_t direction, double *state)
{
    int64_t count = p->samples * p->hidden;
    for (int64_t i = 0; i < count; i++)
        state[i] = from ? mgpu_ref_get(from->data, from->type, direction * count + i) : 0;
}

static void store_row(const struct mgpu_tensor *to, int64_t at, const double *row, int64_t count)
{
    for (int64_t i = 0; to && i < count; i++)
        mgpu_ref_set(to->data, to->type, at + i, row ? row[i] : 0);
}

/* The reserve's row of one sample: gates, then the cell state or the GRU's product. `cell` NULL:
 * zeros. */
static void store_reserve(const struct mgpu_rnn_layer *p, const struct mgpu_tensor *reserve,
                          int64_t row, int64_t n, const struct mgpu_rnn_cell *cell)
{
    if (!reserve)
        return;
    int64_t width = reserve->dims[3], gates = p->gates * p->hidden;
    const double *rest = p->attrs->kind == MGPU_LSTM ? cell->c : cell->part;
    bool valid = cell->h != NULL;
    store_row(reserve, row * width, valid ? cell->gate + n * gates : NULL, gates);
    store_row(reserve, row * width + gates, valid ? rest + n * p->hidden : NULL, width - gates);
}

/* Takes over the new state of the samples whose sequence goes on, and writes the step's outputs. */
static void finish_step(const struct mgpu_rnn_layer *p, int64_t d, int64_t t,
                        const struct mgpu_rnn_cell *cell, double *h, double *c,
                        const struct results *out)
{
    static const struct mgpu_rnn_cell nothing;
    int64_t H = p->hidden;
#pragma omp parallel for
    for (int64_t n = 0; n < p->samples; n++) {
        bool valid = mgpu_rnn_valid(p, t, n);
        int64_t row = (t * p->directions + d) * p->samples + n;
        if (valid) {
            memcpy(h + n * H, cell->h + n * H, sizeof *h * (size_t)H);
            memcpy(c + n * H, cell->c + n * H, sizeof *c * (size_t)H);
        }
        store_row(out->y, row * H, valid ? cell->h + n * H : NULL, H);
        store_reserve(p, out->reserve, row, n, valid ? cell : &nothing);
    }
}

static int run(const struct mgpu_launch *l)
{
    struct mgpu_rnn_layer p;
    struct mgpu_rnn_cell cell;
    struct results out = {wanted(l, 0), wanted(l, 1), wanted(l, 2), wanted(l, 3)};
    double *scratch = l->workspace;
    MGPU_TRY(mgpu_rnn_layer_of(l, &p));
    int64_t state = p.samples * p.hidden;
    mgpu_rnn_cell_carve(&p, &scratch, &cell);
    memset(cell.c, 0, sizeof *cell.c * (size_t)state); /* RNN and GRU leave it alone */
    memset(cell.part, 0, sizeof *cell.part * (size_t)state);
    double *h = scratch, *c = scratch + state;
    for (int64_t d = 0; d < p.directions; d++) {
        load_state(&p, p.initial_h, d, h);
        load_state(&p, p.initial_c, d, c);
        for (int64_t s = 0; s < p.steps; s++) {
            int64_t t = mgpu_rnn_reversed(&p, d) ? p.steps - 1 - s : s;
            mgpu_rnn_step(&p, d, t, h, c, &cell);
            finish_step(&p, d, t, &cell, h, c, &out);
        }
        store_row(out.y_h, d * state, h, state);
        if (p.attrs->kind == MGPU_LSTM)
            store_row(out.y_c, d * state, c, state);
    }
    return 0;
}

static int64_t workspace(const struct mgpu_node *node, int threads, const void *state)
{
    (void)threads;
    (void)state;
    return node->op->workspace(node);
}

const struct mgpu_kernel mgpu_ref_rnn[] = {
    {.op = "rnn", .name = "ref", .workspace = workspace, .run = run},
    {.op = "rnn_grad", .name = "ref", .workspace = workspace, .run = mgpu_ref_rnn_grad},
    {.op = NULL},
};
