/* Attention (runtime/ops/attention.h): a thread for each query, and for the gradients of keys and
 * values one for each key. No sum waits for another thread, so nothing depends on their order. */
#include "runtime/ops/attention.h"
#include "runtime/emit/writer.h"

enum { Q, K, V, MASK, Y, STATISTICS, DY };
enum { DQ, DK, DV };

static const struct mgpu_attention_attrs *attrs_of(const struct mgpu_node *node)
{
    return node->attrs;
}

static const char *type_of(const struct mgpu_writer *w)
{
    return mgpu_dtype_name(w->node->input[Q]->type);
}

/* "const i64 NAME = ...": where row `row` of the thread's head lies. */
static void write_row(struct mgpu_writer *w, const char *name, const char *row, int64_t count,
                      int64_t width)
{
    int64_t heads = mgpu_attention_of(w->node).heads;
    if (attrs_of(w->node)->heads_inside)
        mgpu_write(w, "    const i64 %s = (((i64)sample * %lld + %s) * %lld + head) * %lld;\n",
                   name, (long long)count, row, (long long)heads, (long long)width);
    else
        mgpu_write(w, "    const i64 %s = (((i64)sample * %lld + head) * %lld + %s) * %lld;\n",
                   name, (long long)heads, (long long)count, row, (long long)width);
}

/* "REAL name = 0; for ...": the product of two rows of `width` elements. */
static void write_dot(struct mgpu_writer *w, const char *name, int a, const char *at_a, int b,
                      const char *at_b, int64_t width)
{
    mgpu_write(w, "    %s %s = 0;\n    for (int i = 0; i < %lld; i++)\n",
               mgpu_compute_type(w->node->input[Q]->type), name, (long long)width);
    mgpu_write(w, "        %s += LOAD_%s(x%d, %s + i) * LOAD_%s(x%d, %s + i);\n", name, type_of(w),
               a, at_a, type_of(w), b, at_b);
}

/* `score` of query t and key s, whose rows are at `q` and `k`; `shown`: it is not `fill`. */
static void write_score(struct mgpu_writer *w, const struct mgpu_attention *a)
{
    const struct mgpu_node *node = w->node;
    const struct mgpu_value *mask = node->inputs > MASK ? node->input[MASK] : NULL;
    bool chooses = mask && mask->type == MGPU_BOOL;
    write_row(w, "k", "s", a->keys, a->width);
    write_dot(w, "score", Q, "q", K, "k", a->width);
    mgpu_write(w, "    score *= ");
    mgpu_write_number(w, node->input[Q]->type, attrs_of(node)->scale);
    mgpu_write(w, ";\n");
    if (mask)
        mgpu_write(w,
                   "    const i64 place = (i64)sample * %lld + (i64)head * %lld + (i64)t * %lld + "
                   "(i64)s * %lld;\n",
                   (long long)a->mask[0], (long long)a->mask[1], (long long)a->mask[2],
                   (long long)a->mask[3]);
    mgpu_write(w, "    const int shown = %s;\n", chooses ? "x3[place] != 0" : "1");
    if (chooses) {
        mgpu_write(w, "    score = shown ? score : ");
        mgpu_write_number(w, node->input[Q]->type, attrs_of(node)->fill);
        mgpu_write(w, ";\n");
    } else if (mask)
        mgpu_write(w, "    score += LOAD_%s(x3, place);\n", type_of(w));
}

/* A kernel of one thread for each of `count` rows, called `row`, of all heads. */
static void begin_rows(struct mgpu_writer *w, const struct mgpu_attention *a, const char *row,
                       int64_t count)
{
    mgpu_write_kernel_each(w, a->samples * a->heads * count);
    mgpu_write(w,
               "    const i64 sample = i / %lld, head = i / %lld %% %lld, %s = i %% "
               "%lld;\n",
               (long long)(a->heads * count), (long long)count, (long long)a->heads, row,
               (long long)count);
}

static void begin_loop(struct mgpu_writer *w, const char *other, int64_t count)
{
    mgpu_write(w, "    for (i64 %s = 0; %s < %lld; %s++) {\n", other, other, (long long)count,
               other);
}

/* "for ... to[i] += factor * x[at + i]" */
static void write_add(struct mgpu_writer *w, const char *to, const char *factor, int x,
                      const char *at, int64_t width)
{
    mgpu_write(w,
               "    for (int i = 0; i < %lld; i++)\n        %s[i] += %s * LOAD_%s(x%d, %s + i);\n",
               (long long)width, to, factor, type_of(w), x, at);
}

static void write_store(struct mgpu_writer *w, int output, const char *at, const char *from,
                        const char *by, int64_t width)
{
    if (w->node->output[output])
        mgpu_write(w,
                   "    for (int i = 0; i < %lld; i++)\n        STORE_%s(y%d, %s + i, %s[i]%s);\n",
                   (long long)width, type_of(w), output, at, from, by);
}

static void emit(struct mgpu_writer *w)
{
    struct mgpu_attention a = mgpu_attention_of(w->node);
    enum mgpu_dtype type = w->node->input[Q]->type;
    const char *real = mgpu_compute_type(type), *suffix = mgpu_math_suffix(type);
    begin_rows(w, &a, "t", a.queries);
    write_row(w, "q", "t", a.queries, a.width);
    mgpu_write(w, "    %s most = -INFINITY, sum = 0, out[%lld] = {0};\n", real, (long long)a.out);
    begin_loop(w, "s", a.keys);
    write_score(w, &a);
    mgpu_write(w, "    most = fmax%s(most, score);\n    }\n", suffix);
    begin_loop(w, "s", a.keys);
    write_score(w, &a);
    mgpu_write(w, "    const %s e = exp%s(score - most);\n    sum += e;\n", real, suffix);
    write_row(w, "v", "s", a.keys, a.out);
    write_add(w, "out", "e", V, "v", a.out);
    mgpu_write(w, "    }\n");
    write_row(w, "y", "t", a.queries, a.out);
    write_store(w, 0, "y", "out", " / sum", a.out);
    if (w->node->output[1] && attrs_of(w->node)->log_sums)
        mgpu_write(w, "    y1[i] = most + log%s(sum);\n", suffix);
    else if (w->node->output[1])
        mgpu_write(w, "    y1[2 * (i64)i] = most;\n    y1[2 * (i64)i + 1] = sum;\n");
    mgpu_write(w, "}\n");
}

/* `p` and `ds` of query t, with rows `dy` and `all` = sum of dy * y, and key s with row `v`. */
static void write_gradients(struct mgpu_writer *w, const struct mgpu_attention *a)
{
    enum mgpu_dtype type = w->node->input[Q]->type;
    const char *real = mgpu_compute_type(type), *suffix = mgpu_math_suffix(type);
    bool logs = attrs_of(w->node)->log_sums;
    write_score(w, a);
    mgpu_write(w,
               "    const i64 kept = %d * ((sample * %lld + head) * %lld + t);\n    const %s p = "
               "exp%s(score - x5[kept])%s;\n",
               logs ? 1 : 2, (long long)a->heads, (long long)a->queries, real, suffix,
               logs ? "" : " / x5[kept + 1]");
    write_row(w, "v", "s", a->keys, a->out);
    write_dot(w, "by", DY, "dy", V, "v", a->out);
    mgpu_write(w, "    const %s ds = shown ? ", real);
    mgpu_write_number(w, type, attrs_of(w->node)->scale);
    mgpu_write(w, " * p * (by - all) : 0;\n");
}

/* Rows of query t: `q`, `dy`, and what they give `all`. */
static void write_query(struct mgpu_writer *w, const struct mgpu_attention *a)
{
    write_row(w, "q", "t", a->queries, a->width);
    write_row(w, "dy", "t", a->queries, a->out);
    write_dot(w, "all", DY, "dy", Y, "dy", a->out);
}

static void emit_by_query(struct mgpu_writer *w, const struct mgpu_attention *a)
{
    begin_rows(w, a, "t", a->queries);
    write_query(w, a);
    mgpu_write(w, "    %s dq[%lld] = {0};\n", mgpu_compute_type(w->node->input[Q]->type),
               (long long)a->width);
    begin_loop(w, "s", a->keys);
    write_gradients(w, a);
    write_add(w, "dq", "ds", K, "k", a->width);
    mgpu_write(w, "    }\n");
    write_store(w, DQ, "q", "dq", "", a->width);
    mgpu_write(w, "}\n");
}

static void emit_by_key(struct mgpu_writer *w, const struct mgpu_attention *a)
{
    begin_rows(w, a, "s", a->keys);
    mgpu_write(w, "    %s dk[%lld] = {0}, dv[%lld] = {0};\n",
               mgpu_compute_type(w->node->input[Q]->type), (long long)a->width, (long long)a->out);
    begin_loop(w, "t", a->queries);
    write_query(w, a);
    write_gradients(w, a);
    write_add(w, "dk", "ds", Q, "q", a->width);
    write_add(w, "dv", "p", DY, "dy", a->out);
    mgpu_write(w, "    }\n");
    write_row(w, "to_k", "s", a->keys, a->width);
    write_row(w, "to_v", "s", a->keys, a->out);
    write_store(w, DK, "to_k", "dk", "", a->width);
    write_store(w, DV, "to_v", "dv", "", a->out);
    mgpu_write(w, "}\n");
}

static void emit_grad(struct mgpu_writer *w)
{
    struct mgpu_attention a = mgpu_attention_of(w->node);
    if (w->node->output[DQ])
        emit_by_query(w, &a);
    if (w->node->output[DK] || w->node->output[DV])
        emit_by_key(w, &a);
}

static bool accepts(const struct mgpu_node *node)
{
    for (int i = 0; i < node->inputs; i++)
        if (node->input[i] && mgpu_value_count(node->input[i]) == 0)
            return false;
    return true;
}

const struct mgpu_emitter mgpu_emit_attention[] = {
    {"attention", accepts, emit},
    {"attention_grad", accepts, emit_grad},
    {NULL, NULL, NULL},
};
