#include "runtime/emit/emit.h"

#include "runtime/emit/writer.h"

#include <stdlib.h>
#include <string.h>

static const struct mgpu_emitter *const families[] = {mgpu_emit_pointwise,
                                                      mgpu_emit_reduce,
                                                      mgpu_emit_softmax,
                                                      mgpu_emit_loss,
                                                      mgpu_emit_normalize,
                                                      mgpu_emit_movement,
                                                      mgpu_emit_random,
                                                      mgpu_emit_update,
                                                      mgpu_emit_indexed,
                                                      mgpu_emit_matmul,
                                                      mgpu_emit_sort,
                                                      mgpu_emit_resize,
                                                      mgpu_emit_pool,
                                                      NULL};

/* Blocks of channels are the CPU's. */
static bool all_plain(const struct mgpu_node *node)
{
    for (int i = 0; i < node->inputs; i++)
        if (node->input[i] && node->input[i]->block)
            return false;
    for (int i = 0; i < node->outputs; i++)
        if (node->output[i] && node->output[i]->block)
            return false;
    return true;
}

static const struct mgpu_emitter *find(const struct mgpu_node *node)
{
    for (int f = 0; families[f]; f++)
        for (const struct mgpu_emitter *e = families[f]; e->op; e++)
            if (!strcmp(e->op, node->op->name) && (!e->accepts || e->accepts(node)))
                return e;
    return NULL;
}

bool mgpu_emit_knows(const char *op)
{
    for (int f = 0; families[f]; f++)
        for (const struct mgpu_emitter *e = families[f]; e->op; e++)
            if (!strcmp(e->op, op))
                return true;
    return false;
}

bool mgpu_emit_accepts(const struct mgpu_node *node)
{
    return all_plain(node) && find(node) != NULL;
}

/* Whether an output has elements. */
static bool has_work(const struct mgpu_node *node)
{
    for (int i = 0; i < node->outputs; i++)
        if (node->output[i] && mgpu_value_count(node->output[i]) > 0)
            return true;
    return false;
}

void mgpu_emit(struct mgpu_emitted *out, const struct mgpu_node *node, const char *name)
{
    size_t size;
    *out = (struct mgpu_emitted){0};
    struct mgpu_writer w = {.node = node, .name = name, .result = out};
    w.out = open_memstream(&out->text, &size);
    if (!w.out)
        abort(); /* no memory for metadata */
    if (has_work(node))
        find(node)->emit(&w);
    fclose(w.out);
}

void mgpu_emitted_free(struct mgpu_emitted *emitted)
{
    free(emitted->text);
    *emitted = (struct mgpu_emitted){0};
}
