#include "runtime/emit/emit.h"

#include "runtime/emit/last.h"
#include "runtime/emit/writer.h"
#include "runtime/ops/reorder.h"

#include <stdlib.h>
#include <string.h>

static const struct mgpu_emitter *const families[] = {
    mgpu_emit_pointwise, mgpu_emit_reduce,     mgpu_emit_softmax,
    mgpu_emit_loss,      mgpu_emit_normalize,  mgpu_emit_movement,
    mgpu_emit_random,    mgpu_emit_update,     mgpu_emit_indexed,
    mgpu_emit_matmul,    mgpu_emit_sort,       mgpu_emit_resize,
    mgpu_emit_pool,      mgpu_emit_batch_norm, mgpu_emit_conv,
    mgpu_emit_det,       mgpu_emit_grid,       mgpu_emit_attention,
    mgpu_emit_rnn,       mgpu_emit_rnn_grad,   NULL};
static const struct mgpu_emitter *const know_last[] = {mgpu_emit_pool, mgpu_emit_batch_norm,
                                                       mgpu_emit_conv, NULL};

static const struct mgpu_emitter *find(const struct mgpu_emitter *const *list,
                                       const struct mgpu_node *node)
{
    for (int f = 0; list[f]; f++)
        for (const struct mgpu_emitter *e = list[f]; e->op; e++)
            if (!strcmp(e->op, node->op->name) && (!e->accepts || e->accepts(node)))
                return e;
    return NULL;
}

/* Whether any operand is in blocks; *last: those that are lie channels-last. */
static bool has_blocks(const struct mgpu_node *node, bool *last)
{
    bool any = false;
    *last = true;
    for (int i = 0; i < node->inputs + node->outputs; i++) {
        const struct mgpu_value *v =
            i < node->inputs ? node->input[i] : node->output[i - node->inputs];
        any = any || (v && v->block);
        *last = *last && !(v && v->block && !mgpu_lies_last(v));
    }
    return any;
}

/* What makes the node's kernels, and the node as it sees it; NULL: nothing does. */
static const struct mgpu_emitter *find_stated(const struct mgpu_node *node,
                                              struct mgpu_restated *restated,
                                              const struct mgpu_node **stated)
{
    bool last;
    *stated = node;
    if (!has_blocks(node, &last))
        return find(families, node);
    const struct mgpu_emitter *e = last ? find(know_last, node) : NULL;
    if (e || !mgpu_restate(restated, node))
        return e;
    *stated = &restated->node;
    return find(families, *stated);
}

bool mgpu_emit_knows(const char *op)
{
    if (!strcmp(op, mgpu_op_reorder.name)) /* a transposition (last.h) */
        return true;
    for (int f = 0; families[f]; f++)
        for (const struct mgpu_emitter *e = families[f]; e->op; e++)
            if (!strcmp(e->op, op))
                return true;
    return false;
}

bool mgpu_emit_accepts(const struct mgpu_node *node)
{
    struct mgpu_restated restated;
    const struct mgpu_node *stated;
    return find_stated(node, &restated, &stated) != NULL;
}

/* Images have the rank of the first input, or of the output of what broadcasts. */
static bool is_image(const struct mgpu_node *node, const struct mgpu_value *v)
{
    int rank = node->input[0]->rank;
    for (int i = 1; i < node->inputs; i++)
        rank = node->input[i] && node->input[i]->rank > rank ? node->input[i]->rank : rank;
    if (node->output[0] && node->output[0]->rank > rank)
        rank = node->output[0]->rank;
    return v && rank > 2 && v->rank == rank && !mgpu_lies_both(v);
}

bool mgpu_emit_channels_last(const struct mgpu_node *node, int *block)
{
    struct mgpu_value value[MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS];
    struct mgpu_value *operand[MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS];
    struct mgpu_node with = *node;
    bool any = false;
    if (node->inputs > MGPU_MAX_INPUTS || node->inputs == 0 || node->outputs > MGPU_MAX_OUTPUTS)
        return false; /* communication has as many as there are */
    for (int i = 0; i < node->inputs + node->outputs; i++) {
        const struct mgpu_value *v =
            i < node->inputs ? node->input[i] : node->output[i - node->inputs];
        operand[i] = v ? &value[i] : NULL;
        block[i] = is_image(node, v) ? (int)v->dims[1].value : 0;
        any = any || block[i];
        if (v) {
            value[i] = *v;
            value[i].block = block[i];
        }
    }
    with.input = operand;
    with.output = operand + node->inputs;
    return any && mgpu_emit_accepts(&with);
}

/* Whether an output has elements. */
static bool has_work(const struct mgpu_node *node)
{
    for (int i = 0; i < node->outputs; i++)
        if (node->output[i] && mgpu_value_count(node->output[i]) > 0)
            return true;
    return false;
}

static void begin(struct mgpu_writer *w, struct mgpu_emitted *out, const char *name, size_t *size)
{
    *out = (struct mgpu_emitted){0};
    *w = (struct mgpu_writer){.name = name, .result = out};
    w->out = open_memstream(&out->text, size);
    if (!w->out)
        abort(); /* no memory for metadata */
}

void mgpu_emit(struct mgpu_emitted *out, const struct mgpu_node *node, const char *name, bool stops)
{
    size_t size;
    struct mgpu_writer w;
    begin(&w, out, name, &size);
    w.stops = stops;
    struct mgpu_restated restated;
    const struct mgpu_emitter *e = find_stated(node, &restated, &w.node);
    if (has_work(node))
        e->emit(&w);
    fclose(w.out);
}

/* ---- Kernels of no node ---------------------------------------------------------------------- */

enum { THREADS = 256 };

static void begin_each(struct mgpu_writer *w, int64_t count, int parameters)
{
    const char *type = mgpu_place_type(count + THREADS);
    struct mgpu_emitted *e = w->result;
    e->parameters = parameters;
    e->launch[e->launches++] =
        (struct mgpu_emit_launch){.blocks = (count + THREADS - 1) / THREADS, .threads = THREADS};
    mgpu_write(w, ")\n{\n    const %s i = (%s)blockIdx.x * %d + threadIdx.x;\n", type, type,
               THREADS);
    mgpu_write(w, "    if (i >= %lld)\n        return;\n", (long long)count);
}

void mgpu_emit_sum(struct mgpu_emitted *out, enum mgpu_dtype type, int members, int64_t count,
                   const char *name)
{
    size_t size;
    struct mgpu_writer w;
    begin(&w, out, name, &size);
    mgpu_write(&w, "\nKERNEL(%s_0)(", name);
    for (int m = 0; m < members; m++)
        mgpu_write(&w, "%sm_%s *p%d", m ? ", " : "", mgpu_dtype_name(type), m);
    begin_each(&w, count, members);
    mgpu_write(&w, "    const m_%s sum = ", mgpu_dtype_name(type));
    for (int m = 0; m < members; m++)
        mgpu_write(&w, "%sp%d[i]", m ? " + " : "", m);
    mgpu_write(&w, ";\n");
    for (int m = 0; m < members; m++)
        mgpu_write(&w, "    p%d[i] = sum;\n", m);
    mgpu_write(&w, "}\n");
    fclose(w.out);
}

void mgpu_emit_finite(struct mgpu_emitted *out, enum mgpu_dtype type, int64_t count,
                      const char *name)
{
    size_t size;
    struct mgpu_writer w;
    begin(&w, out, name, &size);
    mgpu_write(&w, "\nKERNEL(%s_0)(const m_%s *x, u32 *stop", name, mgpu_dtype_name(type));
    begin_each(&w, count, 2);
    mgpu_write(&w, "    if (!(x[i] - x[i] == 0))\n        *stop = 1;\n}\n");
    fclose(w.out);
}

void mgpu_emit_put_back(struct mgpu_emitted *out, int64_t words, const char *name)
{
    size_t size;
    struct mgpu_writer w;
    begin(&w, out, name, &size);
    mgpu_write(&w, "\nKERNEL(%s_0)(u32 *to, const u32 *from, const u32 *stop", name);
    begin_each(&w, words, 3);
    mgpu_write(&w, "    if (*stop)\n        to[i] = from[i];\n}\n");
    fclose(w.out);
}

void mgpu_emitted_free(struct mgpu_emitted *emitted)
{
    free(emitted->text);
    *emitted = (struct mgpu_emitted){0};
}
