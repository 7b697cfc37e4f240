/* Reductions. The reduced places of an output are shared out over lanes of a block, and over pieces
 * that are joined by a second launch where outputs are few; all of it by shape alone, so that the
 * result is always the same. Neighbouring threads read neighbouring elements: they are lanes of one
 * output where the last axis is reduced, else outputs. */
#include "runtime/ops/reduce.h"
#include "runtime/emit/writer.h"

#include <math.h>

enum { THREADS = 256, COLUMNS = 32, ENOUGH_BLOCKS = 512, MOST_PIECES = 256 };

struct reduction {
    int kind;
    enum mgpu_dtype type;
    const char *acc; /* type of accumulators */
    const char *join;
    struct mgpu_view kept, reduced;
    int64_t outputs, count; /* elements, and how many each is made of */
    bool rows;              /* the last axis is reduced */
    int lanes;              /* of an output */
    int64_t blocks, pieces;
};

static const char *join_of(int kind, enum mgpu_dtype type)
{
    static const char *const names[][4] = {
        {"addf", "add", "add_i", "add_i"},
        {"timesf", "times", "times_i", "times_i"},
        {"largerf", "larger", "larger_i", "larger_u"},
        {"smallerf", "smaller", "smaller_i", "smaller_u"},
    };
    int row = kind == MGPU_REDUCE_PROD  ? 1
              : kind == MGPU_REDUCE_MAX ? 2
              : kind == MGPU_REDUCE_MIN ? 3
                                        : 0;
    return names[row][mgpu_is_float(type) ? type == MGPU_DOUBLE : type == MGPU_UINT64 ? 3 : 2];
}

static void share_out(struct reduction *r)
{
    int64_t outs;
    r->lanes = 1;
    if (r->rows)
        while (r->lanes < THREADS && r->lanes * 4 < r->count)
            r->lanes *= 2;
    else if (r->count >= 32)
        r->lanes = THREADS / COLUMNS;
    outs = THREADS / r->lanes;
    r->blocks = (r->outputs + outs - 1) / outs;
    r->pieces = r->blocks < ENOUGH_BLOCKS ? ENOUGH_BLOCKS / r->blocks : 1;
    int64_t most = r->count / (16 * r->lanes);
    r->pieces = r->pieces < most ? r->pieces : most;
    r->pieces = r->pieces < 1 ? 1 : r->pieces > MOST_PIECES ? MOST_PIECES : r->pieces;
}

static struct reduction plan(const struct mgpu_node *node)
{
    const struct mgpu_reduce_attrs *a = node->attrs;
    const struct mgpu_value *x = node->input[0];
    struct reduction r = {.kind = a->kind,
                          .type = x->type,
                          .acc = mgpu_compute_type(x->type),
                          .join = join_of(a->kind, x->type),
                          .outputs = 1,
                          .count = 1};
    int64_t stride = mgpu_value_count(x);
    for (int k = 0; k < x->rank; k++) {
        bool reduced = a->axes >> k & 1;
        int64_t size = x->dims[k].value;
        stride /= size ? size : 1;
        mgpu_view_add(reduced ? &r.reduced : &r.kept, size, stride);
        *(reduced ? &r.count : &r.outputs) *= size;
        r.rows = size > 1 ? reduced : r.rows;
    }
    share_out(&r);
    return r;
}

/* What nothing reduces to. */
static void write_empty(struct mgpu_writer *w, const struct reduction *r)
{
    bool max = r->kind == MGPU_REDUCE_MAX, min = r->kind == MGPU_REDUCE_MIN;
    int bits = 8 * (int)mgpu_dtype_size(r->type);
    if (mgpu_is_float(r->type))
        mgpu_write_number(w, r->type,
                          max   ? -(double)INFINITY
                          : min ? (double)INFINITY
                                : r->kind == MGPU_REDUCE_PROD);
    else if (!max && !min)
        mgpu_write(w, "%d", r->kind == MGPU_REDUCE_PROD);
    else if (r->type == MGPU_BOOL)
        mgpu_write(w, "%d", min);
    else if (mgpu_is_signed(r->type))
        mgpu_write(w, max ? "(i64)(~0ULL << %d)" : "(i64)((1ULL << %d) - 1)", bits - 1);
    else
        mgpu_write(w, "(i64)0x%llxULL", max ? 0ULL : ~0ULL >> (64 - bits));
}

static void write_result(struct mgpu_writer *w, const struct reduction *r, const char *value)
{
    bool mean = r->kind == MGPU_REDUCE_MEAN;
    mgpu_write(w, "STORE_%s(y0, o, ", mgpu_dtype_name(w->node->output[0]->type));
    if (mean && mgpu_is_float(r->type)) {
        mgpu_write(w, "%s / ", value);
        mgpu_write_number(w, r->type, (double)r->count);
    } else if (mean && r->count > 0) {
        mgpu_write(w, "divide_%s(%s, %lldLL)", r->type == MGPU_UINT64 ? "u" : "i", value,
                   (long long)r->count);
    } else {
        mgpu_write(w, "%s", value);
    }
    mgpu_write(w, ");\n");
}

/* The lanes of an output become one, halving. */
static void write_join_lanes(struct mgpu_writer *w, const struct reduction *r)
{
    int apart = r->rows ? 1 : THREADS / r->lanes;
    mgpu_write(w, "    __shared__ %s part[%d];\n    part[threadIdx.x] = a;\n", r->acc, THREADS);
    mgpu_write(w, "    for (u32 d = %d; d; d /= 2) {\n        __syncthreads();\n", r->lanes / 2);
    mgpu_write(w,
               "        if (lane < d)\n            part[threadIdx.x] = %s(part[threadIdx.x], "
               "part[threadIdx.x + d * %d]);\n    }\n    a = part[threadIdx.x];\n",
               r->join, apart);
}

static void write_first(struct mgpu_writer *w, const struct reduction *r)
{
    int outs = THREADS / r->lanes;
    const char *place = mgpu_place_type(r->outputs * (r->count + 1) + THREADS * MOST_PIECES);
    mgpu_write_kernel(w, r->blocks * r->pieces, THREADS, r->lanes > 1);
    mgpu_write(w, "    u32 %s = threadIdx.x %% %d, %s = threadIdx.x / %d;\n",
               r->rows ? "lane" : "own", r->rows ? r->lanes : outs, r->rows ? "own" : "lane",
               r->rows ? r->lanes : outs);
    mgpu_write(w, "    %s o = (%s)(blockIdx.x / %lld) * %d + own, piece = blockIdx.x %% %lld;\n",
               place, place, (long long)r->pieces, outs, (long long)r->pieces);
    mgpu_write(w, "    %s a = ", r->acc);
    write_empty(w, r);
    mgpu_write(w, ";\n    if (o < %lld) {\n        %s base = ", (long long)r->outputs, place);
    mgpu_write_offset(w, &r->kept, "o");
    mgpu_write(w,
               ";\n        for (%s r = piece * %d + lane; r < %lld; r += %lld) {\n            "
               "%s v = LOAD_%s(x0, base + ",
               place, r->lanes, (long long)r->count, (long long)(r->lanes * r->pieces), r->acc,
               mgpu_dtype_name(r->type));
    mgpu_write_offset(w, &r->reduced, "r");
    mgpu_write(w, ");\n            a = %s(a, v);\n        }\n    }\n", r->join);
    if (r->lanes > 1)
        write_join_lanes(w, r);
    mgpu_write(w, "    if (lane == 0 && o < %lld)\n        ", (long long)r->outputs);
    if (r->pieces > 1)
        mgpu_write(w, "((%s *)work)[piece * %lld + o] = a;\n", r->acc, (long long)r->outputs);
    else
        write_result(w, r, "a");
    mgpu_write(w, "}\n");
}

static void write_second(struct mgpu_writer *w, const struct reduction *r)
{
    mgpu_write_kernel_each(w, r->outputs);
    mgpu_write(w,
               "    %s a = ((const %s *)work)[i];\n    for (int k = 1; k < %lld; k++)\n        a = "
               "%s(a, ((const %s *)work)[k * %lldLL + i]);\n    i64 o = i;\n    ",
               r->acc, r->acc, (long long)r->pieces, r->join, r->acc, (long long)r->outputs);
    write_result(w, r, "a");
    mgpu_write(w, "}\n");
}

static void emit(struct mgpu_writer *w)
{
    struct reduction r = plan(w->node);
    int64_t size = r.type == MGPU_DOUBLE || !mgpu_is_float(r.type) ? 8 : 4;
    if (r.pieces > 1)
        w->result->workspace = r.pieces * r.outputs * size;
    write_first(w, &r);
    if (r.pieces > 1)
        write_second(w, &r);
}

/* ---- arg_reduce: NaN is better than all; lanes go along the last axis, as in reductions --------
 */

struct search {
    const struct mgpu_arg_reduce_attrs *a;
    const char *acc, *name; /* of accumulators and elements */
    bool is_unsigned;
    int64_t size, inner, outputs;
    int lanes;
};

/* Takes v at k where it is better than `best` at `at`, or as good and in the better place. */
static void write_choice(struct mgpu_writer *w, const struct search *s)
{
    const char *order = s->is_unsigned ? "(u64)" : "";
    mgpu_write(
        w,
        "int better = v != v ? best == best : %sv %s %sbest, equal = v != v ? best != best : "
        "v == best;\n        if (better || (equal && k %s at)) {\n            best = v;\n"
        "            at = k;\n        }\n",
        order, s->a->min ? "<" : ">", order, s->a->last ? ">" : "<");
}

/* The lanes of an output become one, halving. */
static void write_join_choices(struct mgpu_writer *w, const struct search *s)
{
    mgpu_write(w,
               "    __shared__ %s bests[%d];\n    __shared__ i64 places[%d];\n    "
               "bests[threadIdx.x] = best;\n    places[threadIdx.x] = at;\n    for (u32 d = %d; d; "
               "d /= 2) {\n        __syncthreads();\n        if (lane < d) {\n        %s v = "
               "bests[threadIdx.x + d];\n        i64 k = places[threadIdx.x + d];\n        ",
               s->acc, THREADS, THREADS, s->lanes / 2, s->acc);
    write_choice(w, s);
    mgpu_write(w, "        bests[threadIdx.x] = best;\n        places[threadIdx.x] = at;\n        "
                  "}\n    }\n");
}

static void emit_arg(struct mgpu_writer *w)
{
    const struct mgpu_value *x = w->node->input[0];
    struct search s = {.a = w->node->attrs,
                       .acc = mgpu_compute_type(x->type),
                       .name = mgpu_dtype_name(x->type),
                       .is_unsigned = x->type == MGPU_UINT64,
                       .inner = 1,
                       .outputs = mgpu_value_count(w->node->output[0]),
                       .lanes = 1};
    s.size = x->dims[s.a->axis].value;
    for (int k = (int)s.a->axis + 1; k < x->rank; k++)
        s.inner *= x->dims[k].value;
    while (s.inner == 1 && s.lanes < THREADS && s.lanes * 4 < s.size)
        s.lanes *= 2;
    int outs = THREADS / s.lanes;
    mgpu_write_kernel(w, (s.outputs + outs - 1) / outs, THREADS, s.lanes > 1);
    mgpu_write(
        w,
        "    u32 lane = threadIdx.x %% %d;\n    i64 o = (i64)blockIdx.x * %d + threadIdx.x / "
        "%d, at = lane;\n    %s best = 0;\n    if (o < %lld) {\n",
        s.lanes, outs, s.lanes, s.acc, (long long)s.outputs);
    mgpu_write(w,
               "    i64 base = o / %lld * %lld + o %% %lld;\n    best = LOAD_%s(x0, base + at * "
               "%lld);\n    for (i64 k = at + %d; k < %lld; k += %d) {\n        ",
               (long long)s.inner, (long long)(s.size * s.inner), (long long)s.inner, s.name,
               (long long)s.inner, s.lanes, (long long)s.size, s.lanes);
    mgpu_write(w, "%s v = LOAD_%s(x0, base + k * %lld);\n        ", s.acc, s.name,
               (long long)s.inner);
    write_choice(w, &s);
    mgpu_write(w, "    }\n    }\n");
    if (s.lanes > 1)
        write_join_choices(w, &s);
    mgpu_write(w, "    if (lane == 0 && o < %lld)\n        STORE_int64(y0, o, at);\n}\n",
               (long long)s.outputs);
}

static bool accepts_arg(const struct mgpu_node *node)
{
    const struct mgpu_arg_reduce_attrs *a = node->attrs;
    return node->input[0]->dims[a->axis].value > 0;
}

const struct mgpu_emitter mgpu_emit_reduce[] = {
    {"reduce", NULL, emit},
    {"arg_reduce", accepts_arg, emit_arg},
    {NULL, NULL, NULL},
};
