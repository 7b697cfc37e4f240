/* The recurrent kernels of backend `cpu` against `ref`: kinds, directions, sequence lengths, and
 * sample counts that are and are not cut among the threads. */
#include "runtime/ops/rnn.h"
#include "tests/cpu/kernel_check.h"
#include "tests/test.h"

enum { T = 5, I = 7, H = 19 };

struct layer {
    const char *name;
    int kind, direction, first_activation;
    int64_t samples;
    bool bias, lengths, states;
};

static const struct layer layers[] = {
    {"rnn", MGPU_RNN, MGPU_RNN_FORWARD, MGPU_ACT_TANH, 3, true, false, false},
    {"rnn relu, reverse", MGPU_RNN, MGPU_RNN_REVERSE, MGPU_ACT_RELU, 33, true, true, true},
    {"gru", MGPU_GRU, MGPU_RNN_FORWARD, MGPU_ACT_SIGMOID, 3, true, false, true},
    {"gru without bias", MGPU_GRU, MGPU_RNN_REVERSE, MGPU_ACT_SIGMOID, 25, false, true, false},
    {"gru, both ways", MGPU_GRU, MGPU_RNN_BIDIRECTIONAL, MGPU_ACT_SIGMOID, 33, true, true, true},
    {"lstm", MGPU_LSTM, MGPU_RNN_FORWARD, MGPU_ACT_SIGMOID, 3, true, false, false},
    {"lstm of one sample", MGPU_LSTM, MGPU_RNN_FORWARD, MGPU_ACT_SIGMOID, 1, true, false, true},
    {"lstm without bias", MGPU_LSTM, MGPU_RNN_REVERSE, MGPU_ACT_SIGMOID, 33, false, false, true},
    {"lstm, both ways", MGPU_LSTM, MGPU_RNN_BIDIRECTIONAL, MGPU_ACT_SIGMOID, 33, true, true, true},
    {"lstm, both ways, few", MGPU_LSTM, MGPU_RNN_BIDIRECTIONAL, MGPU_ACT_SIGMOID, 2, true, false,
     false},
};

static struct mgpu_rnn_attrs attrs_of(const struct layer *layer)
{
    struct mgpu_rnn_attrs a = {.kind = layer->kind,
                               .direction = layer->direction,
                               .hidden = H,
                               .linear_before_reset = layer->kind == MGPU_GRU};
    for (int d = 0; d < 2; d++) {
        a.activation[3 * d] = layer->first_activation;
        a.activation[3 * d + 1] = a.activation[3 * d + 2] = MGPU_ACT_TANH;
    }
    return a;
}

static struct mgpu_check_input input(int rank, int64_t a, int64_t b, int64_t c)
{
    return (struct mgpu_check_input){.rank = rank, .dims = {a, b, c}, .batch_axis = -1};
}

static struct mgpu_check check_of(const struct layer *l, const struct mgpu_rnn_attrs *attrs)
{
    static const struct mgpu_check_input absent = {.rank = -1};
    int64_t D = l->direction == MGPU_RNN_BIDIRECTIONAL ? 2 : 1;
    int64_t G = l->kind == MGPU_RNN ? 1 : l->kind == MGPU_GRU ? 3 : 4;
    struct mgpu_check c = {.name = l->name, .op = &mgpu_op_rnn, .attrs = attrs, .inputs = 8};
    c.input[0] = input(3, T, l->samples, I);
    c.input[1] = input(3, D, G * H, I);
    c.input[2] = input(3, D, G * H, H);
    c.input[3] = l->bias ? input(2, D, 2 * G * H, 0) : absent;
    c.input[4] = l->lengths ? input(1, l->samples, 0, 0) : absent;
    c.input[5] = l->states ? input(3, D, l->samples, H) : absent;
    c.input[6] = l->states && l->kind == MGPU_LSTM ? input(3, D, l->samples, H) : absent;
    c.input[7] = absent;
    if (l->lengths) {
        c.input[4].type = MGPU_INT32;
        c.input[4].constant = true;
        c.input[4].high = T;
    }
    c.skip_outputs = l->kind == MGPU_LSTM ? 8 : 12;
    return c;
}

int main(void)
{
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        struct mgpu_rnn_attrs attrs = attrs_of(&layers[i]);
        struct mgpu_check checks[2] = {check_of(&layers[i], &attrs)};
        CHECK_(mgpu_kernel_check(checks) == 0, "%s", layers[i].name);
        CHECK_(mgpu_kernel_check_together(checks) == 0, "%s", layers[i].name);
    }
    return test_end();
}
