/* cross_entropy and its gradient (runtime/ops/loss.h): probabilities are never stored. A label that
 * is no class gives a loss that is not a number. */
#include "runtime/ops/loss.h"
#include "runtime/emit/lanes.h"

enum { X, LABELS, CLASS_WEIGHTS, SAMPLE_WEIGHTS, NORMALISER, DLOSS };
enum { SUM_THREADS = 256, SUM_BLOCKS = 256, FEW = 4096 };

static const struct mgpu_cross_entropy_attrs *attrs_of(const struct mgpu_writer *w)
{
    return w->node->attrs;
}

static bool has(const struct mgpu_writer *w, int input)
{
    return w->node->input[input] != NULL;
}

static const char *type_of(const struct mgpu_writer *w, int input)
{
    return mgpu_dtype_name(w->node->input[input]->type);
}

/* `label`, `counts`: whether the position is not ignored. */
static void write_label(struct mgpu_writer *w, const struct mgpu_emit_lanes *l)
{
    const struct mgpu_cross_entropy_attrs *a = attrs_of(w);
    mgpu_write(w, "    int counts = 1;\n    %s sum = 1;\n", l->real);
    if (a->dense)
        return;
    mgpu_write(w, "    const i64 label = x%d[lane];\n", LABELS);
    if (a->ignore)
        mgpu_write(w, "    counts = label != %lldLL;\n", (long long)a->ignore_index);
}

/* In the loop over classes: q = ((1-s) * label + s/C) * class weight. */
static void write_q(struct mgpu_writer *w, const struct mgpu_emit_lanes *l)
{
    const struct mgpu_cross_entropy_attrs *a = attrs_of(w);
    enum mgpu_dtype type = w->node->input[X]->type;
    double s = a->label_smoothing;
    mgpu_write(w, "        %s q = ", l->real);
    if (a->dense)
        mgpu_write(w, "LOAD_%s(x%d, " MGPU_AT ")", type_of(w, LABELS), LABELS);
    else
        mgpu_write(w, "(i64)c == label ? 1 : 0");
    mgpu_write(w, ";\n");
    if (s != 0) {
        mgpu_write(w, "        q = ");
        mgpu_write_number(w, type, 1 - s);
        mgpu_write(w, " * q + ");
        mgpu_write_number(w, type, s / (double)l->size);
        mgpu_write(w, ";\n");
    }
    if (has(w, CLASS_WEIGHTS))
        mgpu_write(w, "        q *= LOAD_%s(x%d, c);\n", type_of(w, CLASS_WEIGHTS), CLASS_WEIGHTS);
}

/* What x is turned by before it is a log-probability or a probability: `shift` taken off logits,
 * `sum` for probabilities to be divided by. */
static void write_norm(struct mgpu_writer *w, const struct mgpu_emit_lanes *l)
{
    const struct mgpu_cross_entropy_attrs *a = attrs_of(w);
    const char *type = type_of(w, X);
    if (a->form == MGPU_FORM_LOGITS) {
        mgpu_write(w, "    %s shift = -INFINITY;\n    sum = 0;\n    %s\n", l->real, l->loop);
        mgpu_write(w, "        shift = fmax%s(shift, LOAD_%s(x0, " MGPU_AT "));\n", l->suffix,
                   type);
        mgpu_write_lane_max(w, l, "shift");
        mgpu_write(w, "    %s\n        sum += exp%s(LOAD_%s(x0, " MGPU_AT ") - shift);\n", l->loop,
                   l->suffix, type);
        mgpu_write_lane_sum(w, l, "sum");
        mgpu_write(w, "    shift += log%s(sum);\n", l->suffix);
    }
    if (a->form == MGPU_FORM_PROBABILITIES && a->dense) {
        mgpu_write(w, "    sum = 0;\n    %s\n        sum += LOAD_%s(x0, " MGPU_AT ");\n", l->loop,
                   type);
        mgpu_write_lane_sum(w, l, "sum");
    }
}

/* In the loop: x, a log-probability or a probability p; `clipped`, p kept from 0 and 1. */
static void write_x(struct mgpu_writer *w, const struct mgpu_emit_lanes *l)
{
    const struct mgpu_cross_entropy_attrs *a = attrs_of(w);
    enum mgpu_dtype type = w->node->input[X]->type;
    mgpu_write(w, "        %s x = LOAD_%s(x0, " MGPU_AT ")%s;\n", l->real, type_of(w, X),
               a->form == MGPU_FORM_LOGITS                      ? " - shift"
               : a->form == MGPU_FORM_PROBABILITIES && a->dense ? " / sum"
                                                                : "");
    if (a->form != MGPU_FORM_PROBABILITIES)
        return;
    mgpu_write(w, "        %s clipped = fmin%s(fmax%s(x, ", l->real, l->suffix, l->suffix);
    mgpu_write_number(w, type, 1e-7);
    mgpu_write(w, "), ");
    mgpu_write_number(w, type, 1 - 1e-7);
    mgpu_write(w, ");\n");
}

/* ---- The loss: one value a position, then their sum -------------------------------------------
 */

static void write_positions(struct mgpu_writer *w, const struct mgpu_emit_lanes *l)
{
    const struct mgpu_cross_entropy_attrs *a = attrs_of(w);
    mgpu_write_lanes(w, l);
    write_label(w, l);
    write_norm(w, l);
    mgpu_write(w, "    %s loss = 0;\n    %s {\n", l->real, l->loop);
    write_x(w, l);
    write_q(w, l);
    if (a->form == MGPU_FORM_PROBABILITIES)
        mgpu_write(w, "        loss -= q != 0 ? q * log%s(clipped) : 0;\n    }\n", l->suffix);
    else
        mgpu_write(w, "        loss -= q != 0 ? q * x : 0;\n    }\n");
    mgpu_write_lane_sum(w, l, "loss");
    if (!a->dense)
        mgpu_write(w, "    if (label < 0 || label >= %lld)\n        loss = NAN;\n",
                   (long long)l->size);
    if (has(w, SAMPLE_WEIGHTS))
        mgpu_write(w, "    loss *= LOAD_%s(x%d, lane);\n", type_of(w, SAMPLE_WEIGHTS),
                   SAMPLE_WEIGHTS);
    mgpu_write(w, "    if (%s)\n        ((double *)work)[lane] = counts ? loss : 0;\n}\n",
               l->first);
}

/* Adds up `count` doubles of the workspace from `from` with `blocks` blocks; to the workspace from
 * `to`, or to the loss. */
static void write_sum(struct mgpu_writer *w, int64_t from, int64_t count, int64_t blocks,
                      int64_t to)
{
    mgpu_write_kernel(w, blocks, SUM_THREADS, true);
    mgpu_write(w,
               "    double sum = 0;\n    for (i64 i = (i64)blockIdx.x * %d + threadIdx.x; i < "
               "%lld; i += %lld)\n        sum += ((const double *)work)[%lld + i];\n",
               SUM_THREADS, (long long)count, (long long)(blocks * SUM_THREADS), (long long)from);
    mgpu_write(w, "    sum = block_add(sum);\n    if (threadIdx.x == 0)\n        ");
    if (to >= 0)
        mgpu_write(w, "((double *)work)[%lld + blockIdx.x] = sum;\n}\n", (long long)to);
    else
        mgpu_write(w, "y0[0] = x%d[0] * sum;\n}\n", NORMALISER);
}

static void emit(struct mgpu_writer *w)
{
    struct mgpu_emit_lanes l = mgpu_emit_lanes_along(w->node->input[X], (int)attrs_of(w)->axis);
    bool many = l.count > FEW;
    w->result->workspace = (l.count + SUM_BLOCKS) * (int64_t)sizeof(double);
    if (l.count)
        write_positions(w, &l);
    if (many)
        write_sum(w, 0, l.count, SUM_BLOCKS, l.count);
    write_sum(w, many ? l.count : 0, many ? SUM_BLOCKS : l.count, 1, -1);
}

/* ---- The gradient ---------------------------------------------------------------------------- */

/* What is the same for all classes. By logits the sum of q; by probabilities h = q/p where p was
 * not clipped, and the sum of h*p through the division. */
static void write_all(struct mgpu_writer *w, const struct mgpu_emit_lanes *l)
{
    const struct mgpu_cross_entropy_attrs *a = attrs_of(w);
    bool divided = a->form == MGPU_FORM_PROBABILITIES && a->dense;
    mgpu_write(w, "    %s all = 0;\n", l->real);
    if (a->form != MGPU_FORM_LOGITS && !divided)
        return;
    mgpu_write(w, "    %s {\n", l->loop);
    write_q(w, l);
    if (divided) {
        write_x(w, l);
        mgpu_write(w, "        q = x == clipped ? q / x * x : 0;\n");
    }
    mgpu_write(w, "        all += q;\n    }\n");
    mgpu_write_lane_sum(w, l, "all");
}

static void emit_grad(struct mgpu_writer *w)
{
    struct mgpu_emit_lanes l = mgpu_emit_lanes_along(w->node->input[X], (int)attrs_of(w)->axis);
    int form = attrs_of(w)->form;
    mgpu_write_lanes(w, &l);
    write_label(w, &l);
    write_norm(w, &l);
    write_all(w, &l);
    mgpu_write(w, "    const %s factor = (%s)(x%d[0] * x%d[0]", l.real, l.real, NORMALISER, DLOSS);
    if (has(w, SAMPLE_WEIGHTS))
        mgpu_write(w, " * LOAD_%s(x%d, lane)", type_of(w, SAMPLE_WEIGHTS), SAMPLE_WEIGHTS);
    mgpu_write(w, ");\n    %s {\n", l.loop);
    write_x(w, &l);
    write_q(w, &l);
    mgpu_write(w, "        STORE_%s(y0, " MGPU_AT ", counts ? factor * (", type_of(w, X));
    if (form == MGPU_FORM_LOGITS)
        mgpu_write(w, "exp%s(x) * all - q", l.suffix);
    else if (form == MGPU_FORM_PROBABILITIES)
        mgpu_write(w, "(all - (x == clipped ? q / x : 0)) / sum");
    else
        mgpu_write(w, "-q");
    mgpu_write(w, ") : 0);\n    }\n}\n");
}

const struct mgpu_emitter mgpu_emit_loss[] = {
    {"cross_entropy", NULL, emit},
    {"cross_entropy_grad", NULL, emit_grad},
    {NULL, NULL, NULL},
};
