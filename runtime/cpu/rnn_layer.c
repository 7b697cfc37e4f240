#include "runtime/cpu/rnn_layer.h"

#include "runtime/cpu/product.h"

#include <omp.h>
#include <stdlib.h>

enum { LINE = 64, ENOUGH = 8 /* samples a thread */ };

static bool has_activations(const struct mgpu_rnn_attrs *a, int direction, int f, int g, int h)
{
    const int64_t *own = a->activation + 3 * direction;
    bool gru = a->kind == MGPU_GRU, lstm = a->kind == MGPU_LSTM;
    return own[0] == f && (own[1] == g || !(gru || lstm)) && (own[2] == h || !lstm);
}

static bool usual_activations(const struct mgpu_rnn_attrs *a)
{
    int directions = a->direction == MGPU_RNN_BIDIRECTIONAL ? 2 : 1;
    bool usual = true, relu = true;
    int first = a->kind == MGPU_RNN ? MGPU_ACT_TANH : MGPU_ACT_SIGMOID;
    for (int d = 0; d < directions; d++) {
        usual = usual && has_activations(a, d, first, MGPU_ACT_TANH, MGPU_ACT_TANH);
        relu = relu && has_activations(a, d, MGPU_ACT_RELU, -1, -1);
    }
    return usual || (a->kind == MGPU_RNN && relu);
}

bool mgpu_cpu_rnn_accepts(const struct mgpu_node *node)
{
    const struct mgpu_rnn_attrs *a = node->attrs;
    const struct mgpu_value *x = node->input[0];
    bool peephole = node->inputs > 7 && node->input[7];
    return x->type == MGPU_FLOAT && mgpu_value_count(x) > 0 && a->clip == 0 && !a->input_forget &&
           !peephole && (a->kind != MGPU_GRU || a->linear_before_reset) && usual_activations(a);
}

static enum mgpu_cpu_cell cell_of(const struct mgpu_rnn_attrs *a)
{
    return a->kind == MGPU_LSTM                ? MGPU_CELL_LSTM
           : a->kind == MGPU_GRU               ? MGPU_CELL_GRU
           : a->activation[0] == MGPU_ACT_RELU ? MGPU_CELL_RELU
                                               : MGPU_CELL_TANH;
}

struct mgpu_cpu_rnn *mgpu_cpu_rnn_new(const struct mgpu_node *node, int threads)
{
    const struct mgpu_rnn_attrs *a = node->attrs;
    const struct mgpu_value *x = node->input[0], *w = node->input[1];
    struct mgpu_cpu_rnn *p = mgpu_xcalloc(1, sizeof *p);
    p->cell = cell_of(a);
    p->steps = x->dims[0].value;
    p->samples = x->dims[1].value;
    p->inputs = x->dims[2].value;
    p->directions = w->dims[0].value;
    p->hidden = a->hidden;
    p->gates = w->dims[1].value / a->hidden;
    p->width = (p->gates + (p->gates > 1)) * p->hidden;
    p->threads = threads;
    p->reverse = a->direction == MGPU_RNN_REVERSE;
    p->team = p->samples / threads >= ENOUGH ? threads : 1;
    p->step = mgpu_xcalloc((size_t)p->team, sizeof(struct mgpu_dnn *));
    return p;
}

void mgpu_cpu_rnn_free(void *layer)
{
    struct mgpu_cpu_rnn *p = layer;
    if (!p)
        return;
    for (int i = 0; i < p->team; i++)
        mgpu_dnn_free(p->step[i]);
    for (int i = 0; i < 3; i++)
        mgpu_dnn_free(p->products[i].dnn);
    free(p->step);
    free(p);
}

static void need(int64_t *most, int64_t bytes)
{
    bytes = (bytes + LINE - 1) / LINE * LINE;
    *most = bytes > *most ? bytes : *most;
}

int mgpu_cpu_rnn_make_product(struct mgpu_cpu_rnn *p, int i, int64_t m, int64_t n, int64_t k,
                              bool transpose_a, bool transpose_b)
{
    struct mgpu_cpu_rnn_product *made = &p->products[i];
    *made = (struct mgpu_cpu_rnn_product){NULL, m, n, k, transpose_a, transpose_b};
    if (mgpu_cpu_has_product()) {
        need(&p->product_workspace, p->threads * mgpu_product_bytes(m, n, k));
        return 0;
    }
    MGPU_TRY(mgpu_dnn_product(&made->dnn, m, n, k, transpose_a, transpose_b, false, false));
    need(&p->product_workspace, mgpu_dnn_workspace(made->dnn));
    return 0;
}

static struct mgpu_matrix_of matrix(const float *data, int64_t rows, int64_t columns,
                                    bool transpose)
{
    return (struct mgpu_matrix_of){data, transpose ? 1 : columns, transpose ? rows : 1};
}

int mgpu_cpu_rnn_multiply(const struct mgpu_cpu_rnn *p, int i, const float *a, const float *b,
                          float *y, void *workspace)
{
    const struct mgpu_cpu_rnn_product *made = &p->products[i];
    void *const data[] = {(float *)a, (float *)b, y};
    int64_t m = made->m, n = made->n, k = made->k, bytes = mgpu_product_bytes(m, n, k);
    if (made->dnn)
        return mgpu_dnn_run(made->dnn, data, workspace);
#pragma omp parallel num_threads(p->threads) if (p->threads > 1)
    {
        int me = omp_get_thread_num();
        mgpu_product(matrix(a, m, k, made->transpose_a), matrix(b, k, n, made->transpose_b), m, n,
                     k, y, n, me, p->threads, (char *)workspace + me * bytes);
    }
    return 0;
}

/* Each thread of a team goes alone. */
int mgpu_cpu_rnn_make_steps(struct mgpu_cpu_rnn *p, bool backward)
{
    int64_t row = p->gates * p->hidden;
    for (int i = 0; i < p->team; i++) {
        struct mgpu_range range = mgpu_cpu_rnn_samples(p, i);
        MGPU_TRY(mgpu_dnn_product(&p->step[i], range.end - range.begin, backward ? p->hidden : row,
                                  backward ? row : p->hidden, false, !backward, true, p->team > 1));
        need(&p->step_workspace, mgpu_dnn_workspace(p->step[i]));
    }
    return 0;
}

struct mgpu_range mgpu_cpu_rnn_samples(const struct mgpu_cpu_rnn *p, int thread)
{
    return mgpu_cpu_part(p->samples, thread, p->team);
}

int64_t mgpu_cpu_rnn_time(const struct mgpu_cpu_rnn *p, int64_t direction, int64_t i)
{
    return p->reverse || direction == 1 ? p->steps - 1 - i : i;
}

bool mgpu_cpu_rnn_valid(const int32_t *lengths, int64_t t, int64_t n)
{
    return !lengths || t < lengths[n];
}

int mgpu_cpu_rnn_check_lengths(const struct mgpu_cpu_rnn *p, const int32_t *lengths)
{
    for (int64_t n = 0; lengths && n < p->samples; n++)
        if (lengths[n] < 0 || lengths[n] > p->steps)
            return mgpu_fail(MGPU_EINVALID, "sequence length %d of sample %lld is not 0 to %lld",
                             (int)lengths[n], (long long)n, (long long)p->steps);
    return 0;
}

int64_t mgpu_cpu_rnn_bytes(int64_t count)
{
    return (count * (int64_t)sizeof(float) + LINE - 1) / LINE * LINE;
}

float *mgpu_cpu_rnn_take(char **scratch, int64_t count)
{
    void *block = *scratch;
    *scratch += mgpu_cpu_rnn_bytes(count);
    return block;
}
