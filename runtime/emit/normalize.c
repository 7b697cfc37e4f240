/* Normalisations (runtime/ops/normalize.h has the formulas). */
#include "runtime/ops/normalize.h"
#include "runtime/emit/lanes.h"

static const char *type_of(const struct mgpu_value *v)
{
    return mgpu_dtype_name(v->type);
}

static bool has_input(const struct mgpu_writer *w, int i)
{
    return i < w->node->inputs && w->node->input[i];
}

static int64_t real_size(const struct mgpu_value *x)
{
    return x->type == MGPU_DOUBLE ? 8 : 4;
}

/* An element of a vector, or what stands for it where it is absent. */
static void write_or(struct mgpu_writer *w, int input, const char *place, const char *otherwise)
{
    if (has_input(w, input))
        mgpu_write(w, "LOAD_%s(x%d, %s)", type_of(w->node->input[input]), input, place);
    else
        mgpu_write(w, "%s", otherwise);
}

/* "STORE(y1, place, value)" where the output is wanted. */
static void write_output(struct mgpu_writer *w, int output, const char *place, const char *value)
{
    const struct mgpu_value *y = w->node->output[output];
    if (y)
        mgpu_write(w, "        STORE_%s(y%d, %s, %s);\n", type_of(y), output, place, value);
}

/* ---- group_norm: rows ------------------------------------------------------------------------ */

static const struct mgpu_group_norm_attrs *group_attrs(const struct mgpu_node *node)
{
    return node->attrs;
}

static struct mgpu_emit_lanes rows_of(const struct mgpu_node *node)
{
    const struct mgpu_value *x = node->input[0];
    int64_t rows = 1, size = 1;
    for (int k = 0; k < x->rank; k++)
        *(k < group_attrs(node)->axis ? &rows : &size) *= x->dims[k].value;
    return mgpu_emit_lanes_of(x, rows, size, 1);
}

static bool accepts(const struct mgpu_node *node)
{
    return mgpu_value_count(node->input[0]) > 0;
}

/* `name` = the mean over the row of `value`, where x is the element. */
static void write_row_mean(struct mgpu_writer *w, const struct mgpu_emit_lanes *l, const char *name,
                           const char *value)
{
    const struct mgpu_value *x = w->node->input[0];
    mgpu_write(w, "    %s %s = 0;\n    %s {\n", l->real, name, l->loop);
    mgpu_write(w, "        %s x = LOAD_%s(x0, " MGPU_AT ");\n        %s += %s;\n    }\n", l->real,
               type_of(x), name, value);
    mgpu_write_lane_sum(w, l, name);
    mgpu_write(w, "    %s /= %lld;\n", name, (long long)l->size);
}

static void emit_group(struct mgpu_writer *w)
{
    struct mgpu_emit_lanes l = rows_of(w->node);
    const struct mgpu_value *x = w->node->input[0];
    mgpu_write_lanes(w, &l);
    if (group_attrs(w->node)->rms)
        mgpu_write(w, "    %s mean = 0;\n", l.real);
    else
        write_row_mean(w, &l, "mean", "x");
    write_row_mean(w, &l, "inverse", "(x - mean) * (x - mean)");
    mgpu_write(w, "    inverse = 1 / sqrt%s(inverse + ", l.suffix);
    mgpu_write_number(w, x->type, group_attrs(w->node)->epsilon);
    mgpu_write(w, ");\n    %s {\n        %s v = (LOAD_%s(x0, " MGPU_AT ") - mean) * inverse * ",
               l.loop, l.real, type_of(x));
    write_or(w, 1, "c", "1");
    mgpu_write(w, " + ");
    write_or(w, 2, "c", "0");
    mgpu_write(w, ";\n        STORE_%s(y0, " MGPU_AT ", v);\n    }\n    if (%s) {\n", type_of(x),
               l.first);
    write_output(w, 1, "lane", "mean");
    write_output(w, 2, "lane", "inverse");
    mgpu_write(w, "    }\n}\n");
}

/* In a loop: z = (x-mean)*inverse. */
static void write_z(struct mgpu_writer *w, const char *real, const char *place, const char *row)
{
    const struct mgpu_node *node = w->node;
    mgpu_write(w, "        %s z = (LOAD_%s(x0, %s) - ", real, type_of(node->input[0]), place);
    if (group_attrs(node)->rms)
        mgpu_write(w, "0");
    else
        write_or(w, 3, row, "0");
    mgpu_write(w, ") * LOAD_%s(x4, %s);\n", type_of(node->input[4]), row);
}

/* dx = (h - mean(h) - z*mean(h*z)) * inverse with h = dy*scale; rms: without mean(h). */
static void write_group_dx(struct mgpu_writer *w)
{
    const struct mgpu_node *node = w->node;
    struct mgpu_emit_lanes l = rows_of(node);
    bool rms = group_attrs(node)->rms;
    mgpu_write_lanes(w, &l);
    mgpu_write(w, "    %s shift = 0, slope = 0;\n", l.real);
    for (int pass = 0; pass < 2; pass++) {
        mgpu_write(w, "    %s {\n", l.loop);
        write_z(w, l.real, MGPU_AT, "lane");
        mgpu_write(w, "        %s h = LOAD_%s(x1, " MGPU_AT ") * ", l.real,
                   type_of(node->input[1]));
        write_or(w, 2, "c", "1");
        if (pass == 0) {
            mgpu_write(w, ";\n        shift += h;\n        slope += h * z;\n    }\n");
            mgpu_write_lane_sum(w, &l, "shift");
            mgpu_write_lane_sum(w, &l, "slope");
            mgpu_write(w, "    shift = %s / %lld;\n    slope /= %lld;\n", rms ? "0" : "shift",
                       (long long)l.size, (long long)l.size);
        } else {
            mgpu_write(w,
                       ";\n        STORE_%s(y0, " MGPU_AT
                       ", (h - shift - z * slope) * LOAD_%s(x4, lane));\n    }\n}\n",
                       type_of(node->output[0]), type_of(node->input[4]));
        }
    }
}

/* dscale = sum over rows of dy*z, dbias of dy: a thread for each column and piece of the rows, then
 * one for each column. */
static void write_group_columns(struct mgpu_writer *w, int64_t rows, int64_t size, int64_t pieces)
{
    const struct mgpu_node *node = w->node;
    const char *real = mgpu_compute_type(node->input[0]->type);
    mgpu_write_kernel_each(w, size * pieces);
    mgpu_write(w, "    const i64 column = i %% %lld, piece = i / %lld;\n", (long long)size,
               (long long)size);
    mgpu_write(w,
               "    %s dscale = 0, dbias = 0;\n    for (i64 row = piece; row < %lld; row += "
               "%lld) {\n        const i64 at = row * %lld + column;\n",
               real, (long long)rows, (long long)pieces, (long long)size);
    write_z(w, real, "at", "row");
    mgpu_write(w,
               "        %s dy = LOAD_%s(x1, at);\n        dscale += dy * z;\n        dbias += "
               "dy;\n    }\n",
               real, type_of(node->input[1]));
    mgpu_write(w, "    ((%s *)work)[2 * i] = dscale;\n    ((%s *)work)[2 * i + 1] = dbias;\n}\n",
               real, real);
    mgpu_write_kernel_each(w, size);
    mgpu_write(w, "    %s dscale = 0, dbias = 0;\n    for (i64 k = i; k < %lld; k += %lld) {\n",
               real, (long long)(size * pieces), (long long)size);
    mgpu_write(w,
               "        dscale += ((%s *)work)[2 * k];\n        dbias += ((%s *)work)[2 * k + "
               "1];\n    }\n    {\n",
               real, real);
    write_output(w, 1, "i", "dscale");
    write_output(w, 2, "i", "dbias");
    mgpu_write(w, "    }\n}\n");
}

/* The columns first: dx may overwrite dy. */
static void emit_group_grad(struct mgpu_writer *w)
{
    enum { EACH = 16, MOST = 64 };
    const struct mgpu_node *node = w->node;
    struct mgpu_emit_lanes l = rows_of(node);
    int64_t pieces = l.count / EACH;
    pieces = pieces < 1 ? 1 : pieces > MOST ? MOST : pieces;
    if (node->output[1] || node->output[2]) {
        w->result->workspace = 2 * pieces * l.size * real_size(node->input[0]);
        write_group_columns(w, l.count, l.size, pieces);
    }
    if (node->output[0])
        write_group_dx(w);
}

/* ---- batch_norm: a block for each channel, then every element ---------------------------------
 *
 * Three passes over memory forward, and five backward, with limits seven. cuDNN 9.19 has engines
 * for the norm, a sum and relu behind it, which pass as often, and none for limits before the
 * gradient.
 *
 * Where neighbours are other channels, a thread for each channel and piece of its elements comes
 * first: it leaves its sums behind the channels' two numbers in the workspace, and the block of a
 * channel adds those up. */

enum { BATCH_THREADS = 512, MOST_COLUMNS = 1 << 18 };

struct channels {
    int64_t channels, inner, count; /* count: elements of a channel */
    int64_t pieces;                 /* of a channel whose elements lie apart; 0: they do not */
    const char *real, *suffix;
};

static struct channels channels_of(const struct mgpu_node *node)
{
    const struct mgpu_value *x = node->input[0];
    struct channels c = {.channels = x->dims[1].value,
                         .inner = 1,
                         .real = mgpu_compute_type(x->type),
                         .suffix = mgpu_math_suffix(x->type)};
    for (int k = 2; k < x->rank; k++)
        c.inner *= x->dims[k].value;
    c.count = x->dims[0].value * c.inner;
    if (x->block) /* channels-last */
        c.inner = 1;
    if (c.inner == 1) {
        int64_t each = c.count / 16, most = MOST_COLUMNS / c.channels;
        c.pieces = each < most ? each : most;
        c.pieces = c.pieces < 1 ? 1 : c.pieces;
    }
    return c;
}

/* `sums`: how many each piece of a channel leaves. */
static void set_workspace(struct mgpu_writer *w, const struct channels *c, int sums)
{
    w->result->workspace = (2 + sums * c->pieces) * c->channels * real_size(w->node->input[0]);
}

/* Opens the kernel of a channel. */
static void write_channel(struct mgpu_writer *w, const struct channels *c)
{
    mgpu_write_kernel(w, c->channels, BATCH_THREADS, true);
    mgpu_write(w, "    const u32 lane = blockIdx.x;\n");
}

/* Opens the kernel of a piece of channel `lane`. */
static void write_piece(struct mgpu_writer *w, const struct channels *c)
{
    mgpu_write_kernel_each(w, c->channels * c->pieces);
    mgpu_write(w, "    const u32 lane = i %% %lld;\n", (long long)c->channels);
}

/* The loop over its elements, which are at `at`. */
static void write_piece_loop(struct mgpu_writer *w, const struct channels *c)
{
    mgpu_write(w, "    for (i64 at = i; at < %lld; at += %lld) {\n",
               (long long)(c->count * c->channels), (long long)(c->pieces * c->channels));
}

/* Sum `k` of `sums` of a piece. */
static void write_left(struct mgpu_writer *w, const struct channels *c, const char *place, int sums,
                       int k)
{
    mgpu_write(w, "((%s *)work)[%lld + %d * (i64)%s + %d]", c->real, (long long)(2 * c->channels),
               sums, place, k);
}

/* The two sums of a piece of a channel are left for whoever joins them. */
static void write_both_left(struct mgpu_writer *w, const struct channels *c,
                            const char *const names[2])
{
    for (int k = 0; k < 2; k++) {
        mgpu_write(w, "    ");
        write_left(w, c, "i", 2, k);
        mgpu_write(w, " = %s;\n", names[k]);
    }
    mgpu_write(w, "}\n");
}

/* The sums of a channel's pieces so far, by name; the rest of the block adds up its own. */
static void write_pieces(struct mgpu_writer *w, const struct channels *c, int sums,
                         const char *const *name)
{
    mgpu_write(w, "    for (u32 c = threadIdx.x; c < %lld; c += %d) {\n", (long long)c->pieces,
               BATCH_THREADS);
    mgpu_write(w, "        const i64 piece = (i64)c * %lld + lane;\n", (long long)c->channels);
    for (int k = 0; k < sums; k++) {
        mgpu_write(w, "        %s += ", name[k]);
        write_left(w, c, "piece", sums, k);
        mgpu_write(w, ";\n");
    }
    mgpu_write(w, "    }\n");
}

/* The loop over a channel's elements, which are at `at`. */
static void write_channel_loop(struct mgpu_writer *w, const struct channels *c)
{
    const char *place = mgpu_place_type(c->count * c->channels + BATCH_THREADS);
    mgpu_write(w, "    for (%s c = threadIdx.x; c < %lld; c += %d) {\n", place, (long long)c->count,
               BATCH_THREADS);
    mgpu_write(w, "        const i64 at = c / %lld * %lld + lane * %lld + c %% %lld;\n",
               (long long)c->inner, (long long)(c->channels * c->inner), (long long)c->inner,
               (long long)c->inner);
}

/* Opens the kernel of an element i of channel `lane`. */
static void write_elements(struct mgpu_writer *w, const struct channels *c)
{
    mgpu_write_kernel_each(w, c->count * c->channels);
    mgpu_write(w,
               "    const u32 lane = i / %lld %% %lld;\n    const %s *of = (const %s *)work + 2 * "
               "lane;\n",
               (long long)c->inner, (long long)c->channels, c->real, c->real);
}

static void write_epsilon(struct mgpu_writer *w)
{
    const struct mgpu_batch_norm_attrs *a = w->node->attrs;
    mgpu_write_number(w, w->node->input[0]->type, a->epsilon);
}

/* What follows the normalised y: a sum, limits; stored. */
static void write_finish(struct mgpu_writer *w)
{
    const struct mgpu_batch_norm_attrs *a = w->node->attrs;
    enum mgpu_dtype type = w->node->input[0]->type;
    if (has_input(w, 3))
        mgpu_write(w, "    y += LOAD_%s(x3, i);\n", type_of(w->node->input[3]));
    for (int upper = 0; upper < 2 && a->clips; upper++) {
        mgpu_write(w, "    y = y %c ", upper ? '>' : '<');
        mgpu_write_number(w, type, upper ? a->high : a->low);
        mgpu_write(w, " ? ");
        mgpu_write_number(w, type, upper ? a->high : a->low);
        mgpu_write(w, " : y;\n");
    }
    mgpu_write(w, "    STORE_%s(y0, i, y);\n}\n", type_of(w->node->input[0]));
}

/* dy at `place`, as far as it passed the limits. */
static void write_arriving(struct mgpu_writer *w, const char *place)
{
    const struct mgpu_batch_norm_attrs *a = w->node->attrs;
    enum mgpu_dtype type = w->node->input[0]->type;
    for (int upper = 0; upper < 2 && a->clips; upper++) {
        mgpu_write(w, "%sLOAD_%s(x5, %s) %c ", upper ? " && " : "(", type_of(w->node->input[5]),
                   place, upper ? '<' : '>');
        mgpu_write_number(w, type, upper ? a->high : a->low);
    }
    mgpu_write(w, a->clips ? " ? LOAD_%s(x1, %s) : 0)" : "LOAD_%s(x1, %s)",
               type_of(w->node->input[1]), place);
}

/* Mean and sum of squares about it of the elements so far, `n` of them, in one pass: Welford 1962.
 */
static void write_moments(struct mgpu_writer *w, const struct channels *c)
{
    mgpu_write(w, "        const %s x = LOAD_%s(x0, at), d = x - mean;\n", c->real,
               type_of(w->node->input[0]));
    mgpu_write(w, "        n += 1;\n        mean += d / n;\n        squares += d * (x - mean);\n"
                  "    }\n");
}

static void write_no_moments(struct mgpu_writer *w, const struct channels *c)
{
    mgpu_write(w, "    %s n = 0, mean = 0, squares = 0;\n", c->real);
}

static void write_piece_moments(struct mgpu_writer *w, const struct channels *c)
{
    static const char *const names[] = {"mean", "squares"};
    write_piece(w, c);
    write_no_moments(w, c);
    write_piece_loop(w, c);
    write_moments(w, c);
    write_both_left(w, c, names);
}

/* Those of the pieces, joined: Chan, Golub and LeVeque 1979. */
static void write_joined_moments(struct mgpu_writer *w, const struct channels *c)
{
    mgpu_write(w, "    for (u32 c = threadIdx.x; c < %lld; c += %d) {\n", (long long)c->pieces,
               BATCH_THREADS);
    mgpu_write(w, "        const i64 piece = (i64)c * %lld + lane;\n", (long long)c->channels);
    mgpu_write(w, "        const %s more = (%s)((%lld - c - 1) / %lld + 1);\n", c->real, c->real,
               (long long)c->count, (long long)c->pieces);
    mgpu_write(w, "        const %s d = ", c->real);
    write_left(w, c, "piece", 2, 0);
    mgpu_write(w, " - mean, share = more / (n + more);\n        squares += ");
    write_left(w, c, "piece", 2, 1);
    mgpu_write(w, " + d * d * n * share;\n        mean += d * share;\n        n += more;\n"
                  "    }\n");
}

/* The kernel of a channel up to its `mean` and `variance`. */
static void write_channel_moments(struct mgpu_writer *w, const struct channels *c)
{
    if (c->pieces)
        write_piece_moments(w, c);
    write_channel(w, c);
    write_no_moments(w, c);
    if (c->pieces) {
        write_joined_moments(w, c);
    } else {
        write_channel_loop(w, c);
        write_moments(w, c);
    }
    mgpu_write(w, "    const %s own = mean;\n    mean = block_add%s(n * mean) / %lld;\n", c->real,
               c->suffix, (long long)c->count);
    mgpu_write(w, "    const %s variance = block_add%s(squares + n * (own - mean) * (own - mean))",
               c->real, c->suffix);
    mgpu_write(w, " / %lld;\n", (long long)c->count);
}

static void emit_batch(struct mgpu_writer *w)
{
    struct channels c = channels_of(w->node);
    set_workspace(w, &c, 2);
    write_channel_moments(w, &c);
    mgpu_write(w, "    if (threadIdx.x == 0) {\n        ((%s *)work)[2 * lane] = mean;\n", c.real);
    mgpu_write(w, "        ((%s *)work)[2 * lane + 1] = 1 / sqrt%s(variance + ", c.real, c.suffix);
    write_epsilon(w);
    mgpu_write(w, ");\n");
    write_output(w, 1, "lane", "mean");
    write_output(w, 2, "lane", "variance");
    mgpu_write(w, "    }\n}\n");
    write_elements(w, &c);
    mgpu_write(w, "    %s y = (LOAD_%s(x0, i) - of[0]) * of[1] * ", c.real,
               type_of(w->node->input[0]));
    write_or(w, 1, "lane", "1");
    mgpu_write(w, " + ");
    write_or(w, 2, "lane", "0");
    mgpu_write(w, ";\n");
    write_finish(w);
}

/* `mean` and `inverse` of the channel, from inputs 3 and 4. */
static void write_statistics(struct mgpu_writer *w, const struct channels *c)
{
    mgpu_write(w,
               "    const %s mean = LOAD_%s(x3, lane), inverse = 1 / sqrt%s(LOAD_%s(x4, lane) + ",
               c->real, type_of(w->node->input[3]), c->suffix, type_of(w->node->input[4]));
    write_epsilon(w);
    mgpu_write(w, ");\n");
}

/* dscale and dbias over a channel's elements in the loop that is open. */
static void write_grad_sums(struct mgpu_writer *w, const struct channels *c)
{
    mgpu_write(w, "        %s dy = ", c->real);
    write_arriving(w, "at");
    mgpu_write(w,
               ";\n        dbias += dy;\n        dscale += dy * (LOAD_%s(x0, at) - mean) * "
               "inverse;\n    }\n",
               type_of(w->node->input[0]));
}

static void write_grad_channel(struct mgpu_writer *w, const struct channels *c)
{
    static const char *const names[] = {"dscale", "dbias"};
    if (c->pieces) {
        write_piece(w, c);
        write_statistics(w, c);
        mgpu_write(w, "    %s dscale = 0, dbias = 0;\n", c->real);
        write_piece_loop(w, c);
        write_grad_sums(w, c);
        write_both_left(w, c, names);
    }
    write_channel(w, c);
    write_statistics(w, c);
    mgpu_write(w, "    %s dscale = 0, dbias = 0;\n", c->real);
    if (c->pieces) {
        write_pieces(w, c, 2, names);
    } else {
        write_channel_loop(w, c);
        write_grad_sums(w, c);
    }
}

static void emit_batch_grad(struct mgpu_writer *w)
{
    struct channels c = channels_of(w->node);
    const char *type = type_of(w->node->input[0]);
    set_workspace(w, &c, 2);
    write_grad_channel(w, &c);
    mgpu_write(w,
               "    dscale = block_add%s(dscale);\n    dbias = block_add%s(dbias);\n    if "
               "(threadIdx.x == 0) {\n",
               c.suffix, c.suffix);
    mgpu_write(w,
               "        ((%s *)work)[2 * lane] = dbias / %lld;\n        ((%s *)work)[2 * lane + "
               "1] = dscale / %lld * inverse;\n",
               c.real, (long long)c.count, c.real, (long long)c.count);
    write_output(w, 1, "lane", "dscale");
    write_output(w, 2, "lane", "dbias");
    mgpu_write(w, "    }\n}\n");
    if (!w->node->output[0])
        return;
    write_elements(w, &c);
    write_statistics(w, &c);
    mgpu_write(w, "    STORE_%s(y0, i, LOAD_%s(x2, lane) * inverse * (", type,
               type_of(w->node->input[2]));
    write_arriving(w, "i");
    mgpu_write(w, " - of[0] - (LOAD_%s(x0, i) - mean) * of[1]));\n}\n", type);
}

const struct mgpu_emitter mgpu_emit_normalize[] = {
    {"group_norm", accepts, emit_group},
    {"group_norm_grad", accepts, emit_group_grad},
    {NULL, NULL, NULL},
};

/* With its own statistics; by y, not the bias. */
static bool accepts_batch(const struct mgpu_node *node)
{
    return accepts(node) && node->inputs <= 4;
}

static bool accepts_batch_grad(const struct mgpu_node *node)
{
    return accepts(node) && (node->inputs < 6 || node->input[5]->rank > 1);
}

const struct mgpu_emitter mgpu_emit_batch_norm[] = {
    {"batch_norm", accepts_batch, emit_batch},
    {"batch_norm_grad", accepts_batch_grad, emit_batch_grad},
    {NULL, NULL, NULL},
};
