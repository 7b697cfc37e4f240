/* rnn (runtime/ops/rnn.h), every variant: for what cuDNN's recurrent layers lack. */
#include "runtime/emit/rnn.h"

#include <math.h>

enum { Y, Y_H, Y_C, KEPT };

/* ---- Shared with rnn_grad -------------------------------------------------------------------- */

/* Samples share what a block reads of R; blocks should be as many as a GPU has processors. */
enum { MOST_SAMPLES = 4, PROCESSORS = 128, MOST_THREADS = 512 };

struct mgpu_rnn_text mgpu_rnn_text_of(const struct mgpu_node *node)
{
    const struct mgpu_rnn_attrs *a = node->attrs;
    const struct mgpu_value *x = node->input[MGPU_RNN_X];
    struct mgpu_rnn_text p = {.attrs = a,
                              .T = x->dims[0].value,
                              .N = x->dims[1].value,
                              .I = x->dims[2].value,
                              .H = a->hidden,
                              .D = node->input[MGPU_RNN_W]->dims[0].value,
                              .type = mgpu_dtype_name(x->type),
                              .real = mgpu_compute_type(x->type),
                              .suffix = mgpu_math_suffix(x->type),
                              .lstm = a->kind == MGPU_LSTM,
                              .gru = a->kind == MGPU_GRU};
    p.G = p.lstm ? 4 : p.gru ? 3 : 1;
    p.after = p.gru && a->linear_before_reset;
    p.width = p.G + (p.lstm || p.after);
    long long samples = p.N * p.D / PROCESSORS;
    p.samples = (int)(samples < 1 ? 1 : samples > MOST_SAMPLES ? MOST_SAMPLES : samples);
    p.blocks = (p.N + p.samples - 1) / p.samples;
    p.threads = (int)(p.H < MOST_THREADS ? (p.H + 31) / 32 * 32 : MOST_THREADS);
    return p;
}

bool mgpu_rnn_has(const struct mgpu_writer *w, int input)
{
    return input < w->node->inputs && w->node->input[input];
}

void mgpu_rnn_write_part(struct mgpu_writer *w, const struct mgpu_rnn_text *p, const char *name,
                         int64_t *at, int64_t count)
{
    if (w)
        mgpu_write(w, "    %s *const %s = (%s *)work + %lldLL;\n", p->real, name, p->real,
                   (long long)*at);
    *at += count;
}

void mgpu_rnn_set_workspace(struct mgpu_writer *w, int64_t numbers)
{
    bool wide = w->node->input[MGPU_RNN_X]->type == MGPU_DOUBLE;
    w->result->workspace = numbers * (int64_t)(wide ? sizeof(double) : sizeof(float));
}

const char *mgpu_rnn_load(char text[200], const struct mgpu_writer *w,
                          const struct mgpu_rnn_text *p, int input, const char *at)
{
    if (!mgpu_rnn_has(w, input))
        return "0";
    snprintf(text, 200, "LOAD_%s(x%d, %s)", p->type, input, at);
    return text;
}

/* A number of both directions, "d ? B : A" where they differ. */
static void write_by_direction(struct mgpu_writer *w, const struct mgpu_rnn_text *p,
                               const double *of, int which)
{
    enum mgpu_dtype type = w->node->input[MGPU_RNN_X]->type;
    if (p->D == 2 && of[which] != of[3 + which]) {
        mgpu_write(w, ", d ? ");
        mgpu_write_number(w, type, of[3 + which]);
        mgpu_write(w, " : ");
    } else
        mgpu_write(w, ", ");
    mgpu_write_number(w, type, of[which]);
}

void mgpu_rnn_write_activation(struct mgpu_writer *w, const struct mgpu_rnn_text *p, bool slope,
                               int which, const char *x)
{
    const struct mgpu_rnn_attrs *a = p->attrs;
    long long first = a->activation[which], second = a->activation[3 + which];
    mgpu_write(w, "activate%s%s(", slope ? "_slope" : "", p->suffix);
    if (p->D == 2 && first != second)
        mgpu_write(w, "d ? %lld : ", second);
    mgpu_write(w, "%lld, %s", first, x);
    write_by_direction(w, p, a->alpha, which);
    write_by_direction(w, p, a->beta, which);
    mgpu_write(w, ", ");
    mgpu_write_number(w, w->node->input[MGPU_RNN_X]->type,
                      a->clip > 0 && which < 2 ? a->clip : INFINITY);
    mgpu_write(w, ")");
}

void mgpu_rnn_write_block(struct mgpu_writer *w, const struct mgpu_rnn_text *p)
{
    mgpu_write(w, "    const int d = blockIdx.x / %lld, n0 = blockIdx.x %% %lld * %d;\n", p->blocks,
               p->blocks, p->samples);
    mgpu_write(w, "    i64 at[%d];\n    int n[%d];\n", p->samples, p->samples);
    mgpu_write(w, MGPU_RNN_SAMPLES, p->samples);
    mgpu_write(w, "    n[s] = n0 + s < %lld ? n0 + s : %lld;\n", p->N, p->N - 1);
    mgpu_write(w, "    at[s] = ((i64)d * %lld + n[s]) * %lld;\n    }\n", p->N, p->H);
}

void mgpu_rnn_write_valid(struct mgpu_writer *w, const char *t, const char *n)
{
    if (mgpu_rnn_has(w, MGPU_RNN_LENGTHS))
        mgpu_write(w, "%s < x%d[%s]", t, MGPU_RNN_LENGTHS, n);
    else
        mgpu_write(w, "1");
}

const char *mgpu_rnn_reversed_text(const struct mgpu_rnn_text *p)
{
    return p->attrs->direction == MGPU_RNN_REVERSE ? "1" : "d";
}

void mgpu_rnn_write_bias(struct mgpu_writer *w, const struct mgpu_rnn_text *p, long long first)
{
    char at[80];
    if (!mgpu_rnn_has(w, MGPU_RNN_B))
        return;
    snprintf(at, sizeof at, "(i64)batch * %lld + %lld + j", 2 * p->G * p->H, first * p->H);
    mgpu_write(w, " + LOAD_%s(x%d, %s)", p->type, MGPU_RNN_B, at);
    if (p->after && first == 0) /* what it resets has a bias of its own */
        mgpu_write(w, " + (j < %lld ? LOAD_%s(x%d, %s + %lld) : 0)", 2 * p->H, p->type, MGPU_RNN_B,
                   at, p->G * p->H);
    else if (!p->after)
        mgpu_write(w, " + LOAD_%s(x%d, %s + %lld)", p->type, MGPU_RNN_B, at, p->G * p->H);
}

const char *mgpu_rnn_peephole(char text[200], const struct mgpu_writer *w,
                              const struct mgpu_rnn_text *p, int gate)
{
    char at[80];
    snprintf(at, sizeof at, "d * %lld + %lld + j", 3 * p->H, gate * p->H);
    return mgpu_rnn_load(text, w, p, MGPU_RNN_P, at);
}

bool mgpu_rnn_accepts(const struct mgpu_node *node)
{
    return mgpu_value_count(node->input[MGPU_RNN_X]) > 0;
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* R with the units of one old state side by side; what X gives all sums; the states, old and new in
 * turn; a GRU's update gates and reset states. Returns how many numbers. */
static int64_t write_parts(struct mgpu_writer *w, const struct mgpu_rnn_text *p)
{
    int64_t at = 0, states = p->D * p->N * p->H;
    mgpu_rnn_write_part(w, p, "turned", &at, p->D * p->H * p->G * p->H);
    mgpu_rnn_write_part(w, p, "sums", &at, p->D * p->T * p->N * p->G * p->H);
    mgpu_rnn_write_part(w, p, "states", &at, 2 * states);
    mgpu_rnn_write_part(w, p, "cells", &at, p->lstm ? states : 0);
    mgpu_rnn_write_part(w, p, "update", &at, p->gru && !p->after ? states : 0);
    mgpu_rnn_write_part(w, p, "reset", &at, p->gru && !p->after ? states : 0);
    return at;
}

static void write_turn(struct mgpu_writer *w, const struct mgpu_rnn_text *p)
{
    long long row = p->G * p->H;
    mgpu_write_kernel_each(w, p->D * p->H * row);
    write_parts(w, p);
    mgpu_write(w, "    const i64 unit = i %% %lld, k = i / %lld %% %lld, d = i / %lld;\n", row, row,
               p->H, row * p->H);
    mgpu_write(w, "    turned[i] = LOAD_%s(x%d, (d * %lld + unit) * %lld + k);\n}\n", p->type,
               MGPU_RNN_R, row, p->H);
}

static void write_input_sums(struct mgpu_writer *w, const struct mgpu_rnn_text *p)
{
    char a[200], b[200];
    snprintf(a, sizeof a, "LOAD_%s(x%d, i * %lldLL + k)", p->type, MGPU_RNN_X, p->I);
    snprintf(b, sizeof b, "LOAD_%s(x%d, ((i64)batch * %lld + j) * %lld + k)", p->type, MGPU_RNN_W,
             p->G * p->H, p->I);
    struct mgpu_tiles t = {.m = p->T * p->N,
                           .n = p->G * p->H,
                           .k = p->I,
                           .batch = p->D,
                           .real = p->real,
                           .a = a,
                           .b = b,
                           .a_along_k = true,
                           .b_along_k = true};
    mgpu_write_tiles_begin(w, &t);
    write_parts(w, p);
    mgpu_write_tiles_sum(w, &t);
    mgpu_write(w, "                sums[((i64)batch * %lldLL + i) * %lld + j] = sum", p->T * p->N,
               p->G * p->H);
    mgpu_rnn_write_bias(w, p, 0);
    mgpu_write(w, ";\n");
    mgpu_write_tiles_end(w);
}

/* A length that is none makes the sample's states no numbers. */
static void write_begin(struct mgpu_writer *w, const struct mgpu_rnn_text *p)
{
    char text[200];
    mgpu_write(w, MGPU_RNN_UNITS MGPU_RNN_OWN, p->H, p->threads, p->samples, p->N);
    mgpu_write(w, "    states[at[s] + j] = ");
    if (mgpu_rnn_has(w, MGPU_RNN_LENGTHS))
        mgpu_write(w, "x%d[n[s]] < 0 || x%d[n[s]] > %lld ? (%s)NAN : ", MGPU_RNN_LENGTHS,
                   MGPU_RNN_LENGTHS, p->T, p->real);
    mgpu_write(w, "%s;\n", mgpu_rnn_load(text, w, p, MGPU_RNN_H, "at[s] + j"));
    if (p->lstm)
        mgpu_write(w, "    cells[at[s] + j] = %s;\n",
                   mgpu_rnn_load(text, w, p, MGPU_RNN_C, "at[s] + j"));
    mgpu_write(w, "    } }\n    __syncthreads();\n");
}

/* `sum[gate][s]`: of gates [first, first + count) what X gives, and R of `from`. A GRU that resets
 * behind the product keeps what R gives the last in `part[s]`. */
static void write_sums(struct mgpu_writer *w, const struct mgpu_rnn_text *p, int first, int count,
                       const char *from)
{
    char bias[200], at[80];
    mgpu_write(w, MGPU_RNN_UNITS "    %s sum[%d][%d];\n", p->H, p->threads, p->real, count,
               p->samples);
    mgpu_write(w, "    UNROLL\n" MGPU_RNN_SAMPLES "    UNROLL\n    for (int g = 0; g < %d; g++)\n",
               p->samples, count);
    mgpu_write(
        w,
        "    sum[g][s] = sums[(((i64)d * %lld + t) * %lld + n[s]) * %lld + (g + %d) * %lld + "
        "j];\n    }\n",
        p->T, p->N, p->G * p->H, first, p->H);
    snprintf(at, sizeof at, "d * %lld + %lld + j", 6 * p->H, 5 * p->H);
    if (p->after)
        mgpu_write(
            w,
            "    %s part[%d];\n    UNROLL\n    for (int s = 0; s < %d; s++)\n    part[s] = %s;\n",
            p->real, p->samples, p->samples, mgpu_rnn_load(bias, w, p, MGPU_RNN_B, at));
    mgpu_write(w, "    for (int k = 0; k < %lld; k++) {\n", p->H);
    mgpu_write(w, "    const i64 r = ((i64)d * %lld + k) * %lld + %lld + j;\n    UNROLL\n", p->H,
               p->G * p->H, first * p->H);
    mgpu_write(w, MGPU_RNN_SAMPLES "    const %s h = %s[at[s] + k];\n    UNROLL\n", p->samples,
               p->real, from);
    mgpu_write(w, "    for (int g = 0; g < %d; g++)\n    sum[g][s] += turned[r + g * %lld] * h;\n",
               p->after ? 2 : count, p->H);
    if (p->after)
        mgpu_write(w, "    part[s] += turned[r + %lld] * h;\n", 2 * p->H);
    mgpu_write(w, "    } }\n");
}

/* "const REAL name = activation(x);" */
static void write_gate(struct mgpu_writer *w, const struct mgpu_rnn_text *p, const char *name,
                       int which, const char *x)
{
    mgpu_write(w, "    const %s %s = ", p->real, name);
    mgpu_rnn_write_activation(w, p, false, which, x);
    mgpu_write(w, ";\n");
}

/* g0 ... as the reserve has them, and the new state h. */
static void write_lstm(struct mgpu_writer *w, const struct mgpu_rnn_text *p)
{
    static const int order[] = {0, 2, 1};
    char text[200], x[260];
    mgpu_write(w, "    const %s old_c = cells[at[s] + j];\n", p->real);
    write_gate(w, p, "g3", 1, "sum[3][s]");
    for (int i = 0; i < 3; i++) {
        char name[] = {'g', (char)('0' + order[i]), 0};
        snprintf(x, sizeof x, "sum[%d][s] + %s * %s", order[i],
                 mgpu_rnn_peephole(text, w, p, order[i]), i == 2 ? "g4" : "old_c");
        if (i == 2)
            mgpu_write(w, "    const %s g4 = g2 * old_c + g0 * g3;\n", p->real);
        if (i == 1 && p->attrs->input_forget)
            mgpu_write(w, "    const %s g2 = 1 - g0;\n", p->real);
        else
            write_gate(w, p, name, 0, x);
    }
    write_gate(w, p, "out", 2, "g4");
    mgpu_write(w, "    const %s h = g1 * out;\n    if (valid)\n    cells[at[s] + j] = g4;\n",
               p->real);
}

static void write_gru(struct mgpu_writer *w, const struct mgpu_rnn_text *p)
{
    if (p->after) {
        write_gate(w, p, "g0", 0, "sum[0][s]");
        write_gate(w, p, "g1", 0, "sum[1][s]");
        mgpu_write(w, "    const %s g3 = part[s];\n", p->real);
        write_gate(w, p, "g2", 1, "sum[2][s] + g1 * g3");
    } else {
        mgpu_write(w, "    const %s g0 = update[at[s] + j];\n", p->real);
        write_gate(w, p, "g2", 1, "sum[0][s]");
    }
    mgpu_write(w, "    const %s h = (1 - g0) * g2 + g0 * old[at[s] + j];\n", p->real);
}

static void write_kept(struct mgpu_writer *w, const struct mgpu_rnn_text *p, int gate)
{
    if (w->node->outputs > KEPT && w->node->output[KEPT])
        mgpu_write(w, "    STORE_%s(y%d, row * %lld + %lld + j, valid ? g%d : 0);\n", p->type, KEPT,
                   p->width * p->H, gate * p->H, gate);
}

/* Opens the loop over samples, with `valid` and `row`, where Y and the reserve have the step. */
static void begin_own(struct mgpu_writer *w, const struct mgpu_rnn_text *p)
{
    mgpu_write(w, "    UNROLL\n    for (int s = 0; s < %d; s++)\n    if (n0 + s < %lld) {\n",
               p->samples, p->N);
    mgpu_write(w, "    const int valid = ");
    mgpu_rnn_write_valid(w, "t", "n[s]");
    mgpu_write(w, ";\n    const i64 row = ((i64)t * %lld + d) * %lld + n[s];\n", p->D, p->N);
}

/* Closes it, the loop over units, and waits for the others. */
static void end_own(struct mgpu_writer *w)
{
    mgpu_write(w, "    } }\n    __syncthreads();\n");
}

/* What needs the whole reset state before the last gate. */
static void write_reset(struct mgpu_writer *w, const struct mgpu_rnn_text *p)
{
    write_sums(w, p, 0, 2, "old");
    begin_own(w, p);
    write_gate(w, p, "g0", 0, "sum[0][s]");
    write_gate(w, p, "g1", 0, "sum[1][s]");
    mgpu_write(w, "    update[at[s] + j] = g0;\n    reset[at[s] + j] = g1 * old[at[s] + j];\n");
    write_kept(w, p, 0);
    write_kept(w, p, 1);
    end_own(w);
}

static void write_step(struct mgpu_writer *w, const struct mgpu_rnn_text *p)
{
    bool twice = p->gru && !p->after;
    if (twice)
        write_reset(w, p);
    write_sums(w, p, twice ? 2 : 0, twice ? 1 : (int)p->G, twice ? "reset" : "old");
    begin_own(w, p);
    if (p->lstm)
        write_lstm(w, p);
    else if (p->gru)
        write_gru(w, p);
    else {
        write_gate(w, p, "g0", 0, "sum[0][s]");
        mgpu_write(w, "    const %s h = g0;\n", p->real);
    }
    for (int gate = twice ? 2 : 0; gate < p->width; gate++)
        write_kept(w, p, gate);
    mgpu_write(w, "    now[at[s] + j] = valid ? h : old[at[s] + j];\n");
    if (w->node->output[Y])
        mgpu_write(w, "    STORE_%s(y%d, row * %lld + j, valid ? h : 0);\n", p->type, Y, p->H);
    end_own(w);
}

static void write_end(struct mgpu_writer *w, const struct mgpu_rnn_text *p)
{
    mgpu_write(w, MGPU_RNN_UNITS MGPU_RNN_OWN, p->H, p->threads, p->samples, p->N);
    if (w->node->outputs > Y_H && w->node->output[Y_H])
        mgpu_write(w, "    STORE_%s(y%d, at[s] + j, states[%lld + at[s] + j]);\n", p->type, Y_H,
                   p->T % 2 * p->D * p->N * p->H);
    if (p->lstm && w->node->outputs > Y_C && w->node->output[Y_C])
        mgpu_write(w, "    STORE_%s(y%d, at[s] + j, cells[at[s] + j]);\n", p->type, Y_C);
    mgpu_write(w, "    } }\n}\n");
}

static void write_steps(struct mgpu_writer *w, const struct mgpu_rnn_text *p)
{
    long long states = p->D * p->N * p->H;
    mgpu_write_kernel(w, p->D * p->blocks, p->threads, true);
    write_parts(w, p);
    mgpu_rnn_write_block(w, p);
    write_begin(w, p);
    mgpu_write(w,
               "    for (int step = 0; step < %lld; step++) {\n    const int t = %s ? %lld - step "
               ": step;\n",
               p->T, mgpu_rnn_reversed_text(p), p->T - 1);
    mgpu_write(
        w,
        "    const %s *const old = states + step %% 2 * %lldLL;\n    %s *const now = states + "
        "(step + 1) %% 2 * %lldLL;\n",
        p->real, states, p->real, states);
    write_step(w, p);
    mgpu_write(w, "    }\n");
    write_end(w, p);
}

static void emit(struct mgpu_writer *w)
{
    struct mgpu_rnn_text p = mgpu_rnn_text_of(w->node);
    mgpu_rnn_set_workspace(w, write_parts(NULL, &p));
    write_turn(w, &p);
    write_input_sums(w, &p);
    write_steps(w, &p);
}

const struct mgpu_emitter mgpu_emit_rnn[] = {
    {"rnn", mgpu_rnn_accepts, emit},
    {NULL, NULL, NULL},
};
