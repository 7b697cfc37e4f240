/* grid_sample and its gradients: the taps of a place (prelude.cu) are computed by each thread that
 * needs them. What the taps send back to x is put in order by where it goes. */
#include "runtime/ops/grid_sample.h"
#include "runtime/emit/order.h"

enum { AXES = 3 };

struct sampler {
    const struct mgpu_grid_sample_attrs *attrs;
    const struct mgpu_value *grid;
    int operand;           /* the grid's */
    int axes, along, taps; /* of x's axes; taps along one, and of a place */
    int64_t size[AXES];
    int64_t samples, channels, in, out; /* elements of a plane of x and of y */
    enum mgpu_dtype type;               /* of computation */
};

static struct sampler sampler_of(const struct mgpu_node *node, int grid)
{
    const struct mgpu_grid_sample_attrs *a = node->attrs;
    const struct mgpu_value *g = node->input[grid];
    bool twice = g->type == MGPU_DOUBLE || node->input[0]->type == MGPU_DOUBLE;
    struct sampler s = {.attrs = a,
                        .grid = g,
                        .operand = grid,
                        .axes = (int)a->rank - 2,
                        .along = a->mode == MGPU_GRID_NEAREST  ? 1
                                 : a->mode == MGPU_GRID_LINEAR ? 2
                                                               : 4,
                        .taps = 1,
                        .samples = g->dims[0].value,
                        .channels = a->dims[1].value,
                        .in = 1,
                        .out = 1,
                        .type = twice ? MGPU_DOUBLE : MGPU_FLOAT};
    for (int k = 0; k < s.axes; k++) {
        s.size[k] = a->dims[k + 2].value;
        s.in *= s.size[k];
        s.out *= g->dims[k + 1].value;
        s.taps *= s.along;
    }
    return s;
}

/* at_k, weight_k and slope_k of `place`, for each axis k of x: coordinates stand the last one
 * first.
 */
static void write_taps(struct mgpu_writer *w, const struct sampler *s, const char *place)
{
    static const char *const modes[] = {"nearest", "linear", "cubic"};
    for (int k = 0; k < s->axes; k++) {
        mgpu_write(w, "    int at_%d[%d];\n    %s weight_%d[%d], slope_%d[%d];\n", k, s->along,
                   mgpu_compute_type(s->type), k, s->along, k, s->along);
        mgpu_write(w, "    grid_%s%s(LOAD_%s(x%d, (i64)%s * %d + %d), %lld, ",
                   modes[s->attrs->mode], mgpu_math_suffix(s->type), mgpu_dtype_name(s->grid->type),
                   s->operand, place, s->axes, s->axes - 1 - k, (long long)s->size[k]);
        mgpu_write(w, "%d, %d, at_%d, weight_%d, slope_%d);\n", s->attrs->align_corners,
                   s->attrs->padding, k, k, k);
    }
}

/* Loops over the taps k_0, k_1 ... of the place. */
static void open_taps(struct mgpu_writer *w, const struct sampler *s)
{
    for (int k = 0; k < s->axes; k++)
        mgpu_write(w, "    UNROLL\n    for (int k_%d = 0; k_%d < %d; k_%d++) {\n", k, k, s->along,
                   k);
}

static void close_taps(struct mgpu_writer *w, const struct sampler *s)
{
    for (int k = 0; k < s->axes; k++)
        mgpu_write(w, "    }\n");
}

/* "at_0[k_0] >= 0 && at_1[k_1] >= 0". */
static void write_there(struct mgpu_writer *w, const struct sampler *s)
{
    for (int k = 0; k < s->axes; k++)
        mgpu_write(w, "%sat_%d[k_%d] >= 0", k ? " && " : "", k, k);
}

/* Where the tap lies in a plane of x. */
static void write_at(struct mgpu_writer *w, const struct sampler *s)
{
    int64_t step = s->in;
    for (int k = 0; k < s->axes; k++) {
        step /= s->size[k];
        mgpu_write(w, "%s(i64)at_%d[k_%d] * %lld", k ? " + " : "", k, k, (long long)step);
    }
}

/* The tap's weight, or its derivative by the coordinate along axis `axis` (-1: none). */
static void write_weight(struct mgpu_writer *w, const struct sampler *s, int axis)
{
    for (int k = 0; k < s->axes; k++)
        mgpu_write(w, "%s%s_%d[k_%d]", k ? " * " : "", k == axis ? "slope" : "weight", k, k);
}

static void emit(struct mgpu_writer *w)
{
    struct sampler s = sampler_of(w->node, 1);
    const struct mgpu_value *x = w->node->input[0], *y = w->node->output[0];
    mgpu_write_kernel_each(w, mgpu_value_count(y));
    mgpu_write(w, "    const i64 plane = i / %lld, place = plane / %lld * %lld + i %% %lld;\n",
               (long long)s.out, (long long)s.channels, (long long)s.out, (long long)s.out);
    write_taps(w, &s, "place");
    mgpu_write(w, "    %s sum = 0;\n", mgpu_compute_type(s.type));
    open_taps(w, &s);
    mgpu_write(w, "        if (");
    write_there(w, &s);
    mgpu_write(w, ")\n            sum += ");
    write_weight(w, &s, -1);
    mgpu_write(w, " * LOAD_%s(x0, plane * %lld + ", mgpu_dtype_name(x->type), (long long)s.in);
    write_at(w, &s);
    mgpu_write(w, ");\n");
    close_taps(w, &s);
    mgpu_write(w, "    STORE_%s(y0, i, sum);\n}\n", mgpu_dtype_name(y->type));
}

/* ---- By x ------------------------------------------------------------------------------------ */

/* A tap of a place is an entry; its slot, the element of a plane of x that it takes, all samples'
 * planes one behind the other. */
static struct mgpu_emit_order order_of(const struct sampler *s)
{
    return mgpu_emit_order_of(s->samples * s->out * s->taps, s->samples * s->in);
}

/* Weights of entries stand behind what is sorted. */
static int64_t weights_at(const struct mgpu_emit_order *o)
{
    return (mgpu_emit_order_bytes(o) + 7) / 8 * 8;
}

static void write_entries(struct mgpu_writer *w, const struct sampler *s,
                          const struct mgpu_emit_order *o)
{
    const char *real = mgpu_compute_type(s->type);
    mgpu_write_kernel_each(w, s->samples * s->out);
    mgpu_write_order_arrays(w, o, 0);
    mgpu_write(w, "    %s *weight_of = (%s *)((char *)work + %lldLL);\n", real, real,
               (long long)weights_at(o));
    write_taps(w, s, "i");
    mgpu_write(w, "    u32 e = (u32)i * %d;\n", s->taps);
    open_taps(w, s);
    mgpu_write(w, "        slot_of[e] = ");
    write_there(w, s);
    mgpu_write(w, " ? (u32)(i / %lld * %lld + ", (long long)s->out, (long long)s->in);
    write_at(w, s);
    mgpu_write(w, ") : %lluu;\n        weight_of[e] = ", (unsigned long long)(s->samples * s->in));
    write_weight(w, s, -1);
    mgpu_write(w, ";\n        entry_of[e] = e;\n        e++;\n");
    close_taps(w, s);
    mgpu_write(w, "}\n");
}

static void emit_data(struct mgpu_writer *w)
{
    struct sampler s = sampler_of(w->node, 1);
    struct mgpu_emit_order o = order_of(&s);
    const char *real = mgpu_compute_type(s.type);
    char declare[96], value[160], place[128];
    struct mgpu_emit_runs r = {.lanes = s.channels,
                               .declare = declare,
                               .value = value,
                               .place = place,
                               .join = s.type == MGPU_DOUBLE ? "add" : "addf",
                               .type = s.type};
    int64_t at = weights_at(&o) + o.entries * 8;
    snprintf(declare, sizeof declare, "const %s *weight_of = (const %s *)((char *)work + %lldLL);",
             real, real, (long long)weights_at(&o));
    snprintf(value, sizeof value,
             "weight_of[entry] * LOAD_%s(x0, (entry / %lld * %lld + lane) * %lld + entry / %d %% "
             "%lld)",
             mgpu_dtype_name(w->node->input[0]->type), (long long)(s.taps * s.out),
             (long long)s.channels, (long long)s.out, s.taps, (long long)s.out);
    snprintf(place, sizeof place, "(slot / %lld * %lld + lane) * %lld + slot %% %lld",
             (long long)s.in, (long long)s.channels, (long long)s.in, (long long)s.in);
    w->result->workspace = at + mgpu_emit_runs_bytes(&o, &r);
    mgpu_write_kernel_each(w, mgpu_value_count(w->node->output[0]));
    mgpu_write(w, "    y0[i] = 0;\n}\n");
    if (o.entries == 0)
        return;
    write_entries(w, &s, &o);
    mgpu_write_order(w, &o);
    mgpu_write_runs(w, &o, &r, at);
}

/* ---- By the grid ----------------------------------------------------------------------------- */

static void emit_grid(struct mgpu_writer *w)
{
    struct sampler s = sampler_of(w->node, 2);
    const struct mgpu_value *dy = w->node->input[0], *x = w->node->input[1];
    const char *real = mgpu_compute_type(s.type);
    mgpu_write_kernel_each(w, s.samples * s.out);
    mgpu_write(w, "    const i64 first = (i64)(i / %lld) * %lld;\n", (long long)s.out,
               (long long)s.channels);
    write_taps(w, &s, "i");
    mgpu_write(w, "    %s sum[%d] = {0};\n", real, s.axes);
    open_taps(w, &s);
    mgpu_write(w, "        %s dot = 0;\n        if (", real);
    write_there(w, &s);
    mgpu_write(w, ")\n            for (i64 p = first; p < first + %lld; p++)\n",
               (long long)s.channels);
    mgpu_write(w, "                dot += LOAD_%s(x0, p * %lld + i %% %lld) * ",
               mgpu_dtype_name(dy->type), (long long)s.out, (long long)s.out);
    mgpu_write(w, "LOAD_%s(x1, p * %lld + ", mgpu_dtype_name(x->type), (long long)s.in);
    write_at(w, &s);
    mgpu_write(w, ");\n");
    for (int k = 0; k < s.axes; k++) {
        mgpu_write(w, "        sum[%d] += dot * ", s.axes - 1 - k);
        write_weight(w, &s, k);
        mgpu_write(w, ";\n");
    }
    close_taps(w, &s);
    for (int k = 0; k < s.axes; k++)
        mgpu_write(w, "    STORE_%s(y0, (i64)i * %d + %d, sum[%d]);\n",
                   mgpu_dtype_name(w->node->output[0]->type), s.axes, k, k);
    mgpu_write(w, "}\n");
}

/* Sizes along an axis are ints, slots and entries are counted in 32 bits. */
static bool accepts(const struct mgpu_node *node)
{
    int grid = node->op == &mgpu_op_grid_sample_grid ? 2 : 1;
    struct sampler s = sampler_of(node, grid);
    bool small = s.samples * s.out * s.taps < UINT32_MAX && s.samples * s.in < UINT32_MAX;
    for (int k = 0; k < s.axes; k++)
        small = small && s.size[k] < INT32_MAX;
    return small && mgpu_is_float(node->input[0]->type);
}

const struct mgpu_emitter mgpu_emit_grid[] = {
    {"grid_sample", accepts, emit},
    {"grid_sample_data", accepts, emit_data},
    {"grid_sample_grid", accepts, emit_grid},
    {NULL, NULL, NULL},
};
