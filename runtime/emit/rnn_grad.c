/* rnn_grad (runtime/ops/rnn.h), every variant. What entered the activations is computed again, of
 * all steps at once, as clips and corners ask for it; the steps then leave the sums' gradients
 * there, and the weights' are products over all of them. */
#include "runtime/emit/rnn.h"

enum { DX, DW, DR, DB, D_H, D_C, DP };

/* The sums, then their gradients; a GRU's gradient of what R gives its last gate, where that
 * differs; the states before each step, and what R's last gate takes of them; gradients of the
 * states; by block, what the steps add up to for biases and peepholes. */
static int64_t write_parts(struct mgpu_writer *w, const struct mgpu_rnn_text *p)
{
    int64_t at = 0, rows = p->D * p->T * p->N, states = p->D * p->N * p->H;
    mgpu_rnn_write_part(w, p, "sums", &at, rows * p->G * p->H);
    mgpu_rnn_write_part(w, p, "part", &at, p->after ? rows * p->H : 0);
    mgpu_rnn_write_part(w, p, "before", &at, rows * p->H);
    mgpu_rnn_write_part(w, p, "reset", &at, p->gru && !p->after ? rows * p->H : 0);
    mgpu_rnn_write_part(w, p, "dh", &at, states);
    mgpu_rnn_write_part(w, p, "dc", &at, states);
    mgpu_rnn_write_part(w, p, "all", &at, p->D * p->blocks * (p->G + 3) * p->H);
    return at;
}

static bool wanted(const struct mgpu_writer *w, int output)
{
    return output < w->node->outputs && w->node->output[output];
}

/* `first`: step t is the first that the direction does of sample n; `row`: where Y has the step
 * before it. */
static void write_before(struct mgpu_writer *w, const struct mgpu_rnn_text *p, const char *n)
{
    const char *reversed = mgpu_rnn_reversed_text(p);
    mgpu_write(w,
               "    const int earlier = %s ? t + 1 : t - 1, first = earlier < 0 || earlier >= %lld",
               reversed, p->T);
    mgpu_write(w, " || !(");
    mgpu_rnn_write_valid(w, "earlier", n);
    mgpu_write(w, ");\n    const i64 row = ((i64)earlier * %lld + d) * %lld + %s;\n", p->D, p->N,
               n);
}

static void write_states(struct mgpu_writer *w, const struct mgpu_rnn_text *p)
{
    char text[200], at[80];
    mgpu_write_kernel_each(w, p->D * p->T * p->N * p->H);
    write_parts(w, p);
    mgpu_write(w,
               "    const int j = i %% %lld, n = i / %lld %% %lld, t = i / %lld %% %lld, d = i / "
               "%lld;\n",
               p->H, p->H, p->N, p->H * p->N, p->T, p->H * p->N * p->T);
    write_before(w, p, "n");
    snprintf(at, sizeof at, "((i64)d * %lld + n) * %lld + j", p->N, p->H);
    mgpu_write(w,
               "    const %s h = first ? %s : LOAD_%s(x%d, row * %lld + j);\n    before[i] = h;\n",
               p->real, mgpu_rnn_load(text, w, p, MGPU_RNN_H, at), p->type, MGPU_RNN_Y, p->H);
    if (p->gru && !p->after)
        mgpu_write(
            w,
            "    reset[i] = h * LOAD_%s(x%d, (((i64)t * %lld + d) * %lld + n) * %lld + %lld + "
            "j);\n",
            p->type, MGPU_RNN_RESERVE, p->D, p->N, p->width * p->H, p->H);
    mgpu_write(w, "}\n");
}

/* ---- The sums again -------------------------------------------------------------------------- */

/* Of gates [first, first + count): of X, and of the `states` (NULL: none). */
static void write_sums(struct mgpu_writer *w, const struct mgpu_rnn_text *p, long long first,
                       long long count, const char *states)
{
    char a[300], b[300];
    long long row = p->G * p->H;
    snprintf(a, sizeof a,
             "k < %lld ? LOAD_%s(x%d, i * %lldLL + k) : %s[((i64)batch * %lld + i) * %lld + k - "
             "%lld]",
             p->I, p->type, MGPU_RNN_X, p->I, states ? states : "before", p->T * p->N, p->H, p->I);
    snprintf(b, sizeof b,
             "k < %lld ? LOAD_%s(x%d, ((i64)batch * %lld + %lld + j) * %lld + k) : LOAD_%s(x%d, "
             "((i64)batch * %lld + %lld + j) * %lld + k - %lld)",
             p->I, p->type, MGPU_RNN_W, row, first * p->H, p->I, p->type, MGPU_RNN_R, row,
             first * p->H, p->H, p->I);
    struct mgpu_tiles t = {.m = p->T * p->N,
                           .n = count * p->H,
                           .k = p->I + (states ? p->H : 0),
                           .batch = p->D,
                           .real = p->real,
                           .a = a,
                           .b = b,
                           .a_along_k = true,
                           .b_along_k = true};
    mgpu_write_tiles_begin(w, &t);
    write_parts(w, p);
    mgpu_write_tiles_sum(w, &t);
    mgpu_write(w, "                sums[((i64)batch * %lld + i) * %lld + %lld + j] = sum",
               p->T * p->N, row, first * p->H);
    mgpu_rnn_write_bias(w, p, first);
    if (!states) /* what was reset lies in the reserve */
        mgpu_write(
            w,
            " + LOAD_%s(x%d, ((i / %lld * %lld + batch) * %lld + i %% %lld) * %lld + %lld + "
            "j) * LOAD_%s(x%d, ((i / %lld * %lld + batch) * %lld + i %% %lld) * %lld + %lld + "
            "j)",
            p->type, MGPU_RNN_RESERVE, p->N, p->D, p->N, p->N, p->width * p->H, p->H, p->type,
            MGPU_RNN_RESERVE, p->N, p->D, p->N, p->N, p->width * p->H, 3 * p->H);
    mgpu_write(w, ";\n");
    mgpu_write_tiles_end(w);
}

/* ---- The steps ------------------------------------------------------------------------------- */

/* "const REAL name = gate GATE of the reserve;" */
static void write_gate(struct mgpu_writer *w, const struct mgpu_rnn_text *p, const char *name,
                       int gate)
{
    mgpu_write(w, "    const %s %s = LOAD_%s(x%d, here * %lld + %lld + j);\n", p->real, name,
               p->type, MGPU_RNN_RESERVE, p->width * p->H, gate * p->H);
}

/* "const REAL name = factor * slope of activation `which` at x;" */
static void write_slope(struct mgpu_writer *w, const struct mgpu_rnn_text *p, const char *name,
                        const char *factor, int which, const char *x)
{
    mgpu_write(w, "    const %s %s = (%s) * ", p->real, name, factor);
    mgpu_rnn_write_activation(w, p, true, which, x);
    mgpu_write(w, ";\n");
}

/* all[which] += value: this thread's alone. */
static void write_add(struct mgpu_writer *w, const struct mgpu_rnn_text *p, long long which,
                      const char *value)
{
    mgpu_write(w, "    all[(i64)blockIdx.x * %lld + %lld + j] += %s;\n", (p->G + 3) * p->H,
               which * p->H, value);
}

/* The gradient of sum `gate` is there. */
static void write_sum(struct mgpu_writer *w, const struct mgpu_rnn_text *p, int gate,
                      const char *value)
{
    mgpu_write(w, "    sum[%lld] = %s;\n", gate * p->H, value);
    write_add(w, p, gate, value);
}

/* The sum of a gate as it entered its activation. */
static const char *lstm_sum(char text[300], const struct mgpu_writer *w,
                            const struct mgpu_rnn_text *p, int gate)
{
    char by[200];
    snprintf(text, 300, "sum[%lld] + %s * %s", gate * p->H, mgpu_rnn_peephole(by, w, p, gate),
             gate == 1 ? "c" : "old_c");
    return text;
}

static void write_lstm_gates(struct mgpu_writer *w, const struct mgpu_rnn_text *p)
{
    static const char *const names[] = {"in", "out", "forget", "fresh", "c"};
    char text[200];
    for (int gate = 0; gate < 5; gate++)
        write_gate(w, p, names[gate], gate);
    write_before(w, p, "n[s]");
    mgpu_write(w, "    const %s old_c = first ? %s : LOAD_%s(x%d, row * %lld + %lld + j);\n",
               p->real, mgpu_rnn_load(text, w, p, MGPU_RNN_C, "at[s] + j"), p->type,
               MGPU_RNN_RESERVE, p->width * p->H, 4 * p->H);
}

static void write_lstm(struct mgpu_writer *w, const struct mgpu_rnn_text *p)
{
    char x[300], by[200];
    bool coupled = p->attrs->input_forget; /* forget = 1 - in */
    write_lstm_gates(w, p);
    mgpu_write(w, "    const %s squashed = ", p->real);
    mgpu_rnn_write_activation(w, p, false, 2, "c");
    mgpu_write(w, ";\n");
    write_slope(w, p, "by_out", "g * squashed", 0, lstm_sum(x, w, p, 1));
    write_slope(w, p, "through", "g * out", 2, "c");
    mgpu_write(w, "    const %s gc = dc[at[s] + j] + through + by_out * %s;\n", p->real,
               mgpu_rnn_peephole(by, w, p, 1));
    write_slope(w, p, "by_in", coupled ? "gc * (fresh - old_c)" : "gc * fresh", 0,
                lstm_sum(x, w, p, 0));
    write_slope(w, p, "by_forget", coupled ? "0" : "gc * old_c", 0, lstm_sum(x, w, p, 2));
    snprintf(x, sizeof x, "sum[%lld]", 3 * p->H);
    write_slope(w, p, "by_fresh", "gc * in", 1, x);
    mgpu_write(w, "    dc[at[s] + j] = gc * forget + by_in * %s", mgpu_rnn_peephole(by, w, p, 0));
    mgpu_write(w, " + by_forget * %s;\n    dh[at[s] + j] = 0;\n", mgpu_rnn_peephole(by, w, p, 2));
    write_sum(w, p, 0, "by_in");
    write_sum(w, p, 1, "by_out");
    write_sum(w, p, 2, "by_forget");
    write_sum(w, p, 3, "by_fresh");
    write_add(w, p, p->G, "by_in * old_c");
    write_add(w, p, p->G + 1, "by_out * c");
    write_add(w, p, p->G + 2, "by_forget * old_c");
}

/* Where the reset comes before the product, its gate waits for the product's gradient. */
static void write_gru(struct mgpu_writer *w, const struct mgpu_rnn_text *p)
{
    char x[80];
    write_gate(w, p, "update", 0);
    write_gate(w, p, "fresh", 2);
    mgpu_write(w, "    const %s h = before[line * %lld + j];\n", p->real, p->H);
    write_slope(w, p, "by_update", "g * (h - fresh)", 0, "sum[0]");
    snprintf(x, sizeof x, "sum[%lld]", 2 * p->H);
    write_slope(w, p, "by_fresh", "g * (1 - update)", 1, x);
    write_sum(w, p, 0, "by_update");
    write_sum(w, p, 2, "by_fresh");
    mgpu_write(w, "    dh[at[s] + j] = g * update;\n");
    if (!p->after)
        return;
    write_gate(w, p, "resets", 1);
    write_gate(w, p, "product", 3);
    snprintf(x, sizeof x, "sum[%lld]", p->H);
    write_slope(w, p, "by_reset", "by_fresh * product", 0, x);
    write_sum(w, p, 1, "by_reset");
    mgpu_write(w, "    part[line * %lld + j] = by_fresh * resets;\n", p->H);
    write_add(w, p, p->G, "by_fresh * resets");
}

static void write_simple(struct mgpu_writer *w, const struct mgpu_rnn_text *p)
{
    write_slope(w, p, "by_sum", "g", 0, "sum[0]");
    write_sum(w, p, 0, "by_sum");
    mgpu_write(w, "    dh[at[s] + j] = 0;\n");
}

/* Opens loops over units and samples of step t: `line`, where the parts have it, `here`, where Y
 * and the reserve do, and `sum`; `valid`. */
static void begin_units(struct mgpu_writer *w, const struct mgpu_rnn_text *p)
{
    mgpu_write(w, MGPU_RNN_UNITS, p->H, p->threads);
    mgpu_write(w, MGPU_RNN_OWN, p->samples, p->N);
    mgpu_write(
        w,
        "    const i64 line = ((i64)d * %lld + t) * %lld + n[s], here = ((i64)t * %lld + d) * "
        "%lld + n[s];\n    %s *const sum = sums + line * %lld + j;\n    const int valid = ",
        p->T, p->N, p->D, p->N, p->real, p->G * p->H);
    mgpu_rnn_write_valid(w, "t", "n[s]");
    mgpu_write(w, ";\n");
}

/* A step that is not part of a sequence passes the states' gradients on. */
static void write_units(struct mgpu_writer *w, const struct mgpu_rnn_text *p)
{
    char text[200], at[80];
    begin_units(w, p);
    mgpu_write(w, "    if (!valid) {\n    for (int k = 0; k < %lld; k++)\n    sum[k * %lld] = 0;\n",
               p->G, p->H);
    if (p->after)
        mgpu_write(w, "    part[line * %lld + j] = 0;\n", p->H);
    snprintf(at, sizeof at, "here * %lld + j", p->H);
    mgpu_write(w, "    continue;\n    }\n    const %s g = dh[at[s] + j] + %s;\n", p->real,
               mgpu_rnn_load(text, w, p, MGPU_RNN_DY, at));
    if (p->lstm)
        write_lstm(w, p);
    else if (p->gru)
        write_gru(w, p);
    else
        write_simple(w, p);
    mgpu_write(w, "    } }\n    __syncthreads();\n");
}

/* "back[s] += ...": what gradients of `count` sums give state j, through R's rows from gate `first`
 * on; `from`: of the step, `row` a sample's numbers. */
static void write_through(struct mgpu_writer *w, const struct mgpu_rnn_text *p, const char *from,
                          long long row, long long offset, long long first, long long count)
{
    mgpu_write(w, "    for (int k = 0; k < %lld; k++) {\n", count * p->H);
    mgpu_write(
        w, "    const %s r = LOAD_%s(x%d, ((i64)d * %lld + %lld + k) * %lld + j);\n    UNROLL\n",
        p->real, p->type, MGPU_RNN_R, p->G * p->H, first * p->H, p->H);
    mgpu_write(w, MGPU_RNN_SAMPLES, p->samples);
    mgpu_write(
        w,
        "    back[s] += r * %s[(((i64)d * %lld + t) * %lld + n[s]) * %lld + %lld + k];\n    } "
        "}\n",
        from, p->T, p->N, row, offset);
}

static void begin_through(struct mgpu_writer *w, const struct mgpu_rnn_text *p)
{
    mgpu_write(w, MGPU_RNN_UNITS "    %s back[%d] = {0};\n", p->H, p->threads, p->real, p->samples);
}

/* The reset gate of a GRU that resets before its product. */
static void write_reset(struct mgpu_writer *w, const struct mgpu_rnn_text *p)
{
    char x[80];
    begin_through(w, p);
    write_through(w, p, "sums", p->G * p->H, 2 * p->H, 2, 1);
    mgpu_write(w, MGPU_RNN_OWN, p->samples, p->N);
    mgpu_write(w, "    if (");
    mgpu_rnn_write_valid(w, "t", "n[s]");
    mgpu_write(
        w,
        ") {\n    const i64 line = ((i64)d * %lld + t) * %lld + n[s], here = ((i64)t * %lld + "
        "d) * %lld + n[s];\n    %s *const sum = sums + line * %lld + j;\n",
        p->T, p->N, p->D, p->N, p->real, p->G * p->H);
    write_gate(w, p, "resets", 1);
    snprintf(x, sizeof x, "sum[%lld]", p->H);
    mgpu_write(w, "    const %s h = before[line * %lld + j];\n", p->real, p->H);
    write_slope(w, p, "by_reset", "back[s] * h", 0, x);
    write_sum(w, p, 1, "by_reset");
    mgpu_write(w, "    dh[at[s] + j] += back[s] * resets;\n    } } }\n    __syncthreads();\n");
}

static void write_step(struct mgpu_writer *w, const struct mgpu_rnn_text *p)
{
    write_units(w, p);
    if (p->gru && !p->after)
        write_reset(w, p);
    begin_through(w, p);
    write_through(w, p, "sums", p->G * p->H, 0, 0, p->gru ? 2 : p->G);
    if (p->after)
        write_through(w, p, "part", p->H, 0, 2, 1);
    mgpu_write(w, MGPU_RNN_OWN "    dh[at[s] + j] += back[s];\n    } }\n", p->samples, p->N);
}

static void write_begin(struct mgpu_writer *w, const struct mgpu_rnn_text *p)
{
    char text[200];
    mgpu_write(w, MGPU_RNN_UNITS, p->H, p->threads);
    mgpu_write(w, "    for (int k = 0; k < %lld; k++)\n", p->G + 3);
    mgpu_write(w, "    all[(i64)blockIdx.x * %lld + k * %lld + j] = 0;\n", (p->G + 3) * p->H, p->H);
    mgpu_write(w, MGPU_RNN_OWN, p->samples, p->N);
    mgpu_write(w, "    dh[at[s] + j] = %s;\n",
               mgpu_rnn_load(text, w, p, MGPU_RNN_DY_H, "at[s] + j"));
    mgpu_write(w, "    dc[at[s] + j] = %s;\n    } }\n",
               mgpu_rnn_load(text, w, p, MGPU_RNN_DY_C, "at[s] + j"));
}

static void write_steps(struct mgpu_writer *w, const struct mgpu_rnn_text *p)
{
    mgpu_write_kernel(w, p->D * p->blocks, p->threads, true);
    write_parts(w, p);
    mgpu_rnn_write_block(w, p);
    write_begin(w, p);
    mgpu_write(
        w,
        "    for (int step = %lld; step >= 0; step--) {\n    const int t = %s ? %lld - step : "
        "step;\n",
        p->T - 1, mgpu_rnn_reversed_text(p), p->T - 1);
    write_step(w, p);
    mgpu_write(w, "    }\n" MGPU_RNN_UNITS MGPU_RNN_OWN, p->H, p->threads, p->samples, p->N);
    if (wanted(w, D_H))
        mgpu_write(w, "    STORE_%s(y%d, at[s] + j, dh[at[s] + j]);\n", p->type, D_H);
    if (wanted(w, D_C))
        mgpu_write(w, "    STORE_%s(y%d, at[s] + j, dc[at[s] + j]);\n", p->type, D_C);
    mgpu_write(w, "    } }\n}\n");
}

/* ---- What the steps add up to ---------------------------------------------------------------- */

static void write_product(struct mgpu_writer *w, const struct mgpu_rnn_text *p,
                          const struct mgpu_tiles *t, int output, const char *at)
{
    mgpu_write_tiles_begin(w, t);
    write_parts(w, p);
    mgpu_write_tiles_sum(w, t);
    mgpu_write(w, "                STORE_%s(y%d, %s, sum);\n", p->type, output, at);
    mgpu_write_tiles_end(w);
}

/* Directions add up. */
static void write_dx(struct mgpu_writer *w, const struct mgpu_rnn_text *p)
{
    char a[200], b[200], at[80];
    long long row = p->G * p->H;
    snprintf(a, sizeof a, "sums[(k / %lld * %lldLL + i) * %lld + k %% %lld]", row, p->T * p->N, row,
             row);
    snprintf(b, sizeof b, "LOAD_%s(x%d, k * %lld + j)", p->type, MGPU_RNN_W, p->I);
    snprintf(at, sizeof at, "i * %lldLL + j", p->I);
    struct mgpu_tiles t = {.m = p->T * p->N,
                           .n = p->I,
                           .k = p->D * row,
                           .batch = 1,
                           .real = p->real,
                           .a = a,
                           .b = b,
                           .a_along_k = true};
    write_product(w, p, &t, DX, at);
}

/* Of gates [first, first + count) of W or R, which multiply rows of `width` numbers: `b`. `a`: the
 * gradients of their sums. */
static void write_weights(struct mgpu_writer *w, const struct mgpu_rnn_text *p, int output,
                          long long first, long long count, const char *a, const char *b)
{
    char at[120];
    long long width = output == DW ? p->I : p->H;
    snprintf(at, sizeof at, "((i64)batch * %lld + %lld + i) * %lld + j", p->G * p->H, first * p->H,
             width);
    struct mgpu_tiles t = {.m = count * p->H,
                           .n = width,
                           .k = p->T * p->N,
                           .batch = p->D,
                           .real = p->real,
                           .a = a,
                           .b = b};
    write_product(w, p, &t, output, at);
}

/* Element j of the states' row k in a part of the workspace. */
static const char *say_row(char text[200], const struct mgpu_rnn_text *p, const char *part,
                           long long row, long long offset, const char *column)
{
    snprintf(text, 200, "%s[((i64)batch * %lld + k) * %lld + %lld + %s]", part, p->T * p->N, row,
             offset, column);
    return text;
}

static void write_dw_dr(struct mgpu_writer *w, const struct mgpu_rnn_text *p)
{
    char a[200], b[200];
    long long row = p->G * p->H, gates = p->gru ? 2 : p->G;
    say_row(a, p, "sums", row, 0, "i");
    snprintf(b, sizeof b, "LOAD_%s(x%d, k * %lld + j)", p->type, MGPU_RNN_X, p->I);
    if (wanted(w, DW))
        write_weights(w, p, DW, 0, p->G, a, b);
    if (!wanted(w, DR))
        return;
    write_weights(w, p, DR, 0, gates, a, say_row(b, p, "before", p->H, 0, "j"));
    if (p->after)
        write_weights(w, p, DR, 2, 1, say_row(a, p, "part", p->H, 0, "i"), b);
    else if (p->gru)
        write_weights(w, p, DR, 2, 1, say_row(a, p, "sums", row, 2 * p->H, "i"),
                      say_row(b, p, "reset", p->H, 0, "j"));
}

/* "total": of the blocks of direction d, number `which` on. */
static void write_total(struct mgpu_writer *w, const struct mgpu_rnn_text *p, const char *name,
                        const char *which)
{
    mgpu_write(w, "    %s %s = 0;\n    for (int k = 0; k < %lld; k++)\n", p->real, name, p->blocks);
    mgpu_write(w, "    %s += all[(d * %lld + k) * %lld + %s];\n", name, p->blocks,
               (p->G + 3) * p->H, which);
}

static void write_biases(struct mgpu_writer *w, const struct mgpu_rnn_text *p)
{
    char of_r[80];
    long long row = p->G * p->H;
    mgpu_write_kernel_each(w, p->D * row);
    write_parts(w, p);
    mgpu_write(w, "    const i64 d = i / %lld, j = i %% %lld;\n", row, row);
    write_total(w, p, "of_w", "j");
    snprintf(of_r, sizeof of_r, "(j < %lld ? j : j + %lld)", 2 * p->H, p->H);
    if (p->after) /* its last gate's stand behind the others */
        write_total(w, p, "of_r", of_r);
    mgpu_write(w, "    STORE_%s(y%d, d * %lld + j, of_w);\n", p->type, DB, 2 * row);
    mgpu_write(w, "    STORE_%s(y%d, d * %lld + %lld + j, %s);\n}\n", p->type, DB, 2 * row, row,
               p->after ? "of_r" : "of_w");
}

static void write_peepholes(struct mgpu_writer *w, const struct mgpu_rnn_text *p)
{
    mgpu_write_kernel_each(w, p->D * 3 * p->H);
    write_parts(w, p);
    mgpu_write(w, "    const i64 d = i / %lld, j = i %% %lld + %lld;\n", 3 * p->H, 3 * p->H,
               p->lstm ? p->G * p->H : 0);
    if (p->lstm)
        write_total(w, p, "total", "j");
    mgpu_write(w, "    STORE_%s(y%d, i, %s);\n}\n", p->type, DP, p->lstm ? "total" : "0");
}

static void emit(struct mgpu_writer *w)
{
    struct mgpu_rnn_text p = mgpu_rnn_text_of(w->node);
    mgpu_rnn_set_workspace(w, write_parts(NULL, &p));
    write_states(w, &p);
    write_sums(w, &p, 0, p.gru ? 2 : p.G, "before");
    if (p.gru)
        write_sums(w, &p, 2, 1, p.after ? NULL : "reset");
    write_steps(w, &p);
    if (wanted(w, DX))
        write_dx(w, &p);
    write_dw_dr(w, &p);
    if (wanted(w, DB))
        write_biases(w, &p);
    if (wanted(w, DP))
        write_peepholes(w, &p);
}

const struct mgpu_emitter mgpu_emit_rnn_grad[] = {
    {"rnn_grad", mgpu_rnn_accepts, emit},
    {NULL, NULL, NULL},
};
