#include "partitioner/signature.h"

#include "runtime/ops/expr.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

uint64_t mgpu_hash_bytes(uint64_t hash, const void *bytes, size_t size)
{
    const unsigned char *b = bytes;
    hash = hash ? hash : 14695981039346656037u;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ b[i]) * 1099511628211u;
    return hash;
}

struct text {
    char *at;
    size_t used;
    uint64_t hash; /* of everything, also of what did not fit */
};

static void add(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(struct text *t, const char *format, ...)
{
    char piece[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(piece, sizeof piece, format, args);
    va_end(args);
    size_t n = strlen(piece), room = MGPU_SIGNATURE_TEXT - 1 - t->used;
    t->hash = mgpu_hash_bytes(t->hash, piece, n);
    memcpy(t->at + t->used, piece, n < room ? n : room);
    t->used += n < room ? n : room;
}

static int rank_of(const struct mgpu_node *node)
{
    for (const struct mgpu_attr *a = node->op->attrs; a && a->name; a++)
        if (a->kind == MGPU_ATTR_INT && !strcmp(a->name, "rank"))
            return (int)*(const int64_t *)((const char *)node->attrs + a->offset);
    return node->output[0] ? node->output[0]->rank : 0;
}

static void add_list(struct text *t, const struct mgpu_node *node, const struct mgpu_attr *a)
{
    const void *at = (const char *)node->attrs + a->offset;
    int count = a->kind == MGPU_ATTR_DIMS ? rank_of(node) : a->length;
    for (int i = 0; i < count; i++) {
        const char *comma = i ? "," : "";
        if (a->kind == MGPU_ATTR_INTS)
            add(t, "%s%lld", comma, (long long)((const int64_t *)at)[i]);
        else if (a->kind == MGPU_ATTR_FLOATS)
            add(t, "%s%.9g", comma, ((const double *)at)[i]);
        else
            add(t, "%s%lld", comma, (long long)(*(const struct mgpu_dim *const *)at)[i].value);
    }
}

static void add_attr(struct text *t, const struct mgpu_node *node, const struct mgpu_attr *a)
{
    char expr[1024];
    const void *at = (const char *)node->attrs + a->offset;
    add(t, "%s=", a->name);
    switch (a->kind) {
    case MGPU_ATTR_INT:
        add(t, "%lld", (long long)*(const int64_t *)at);
        break;
    case MGPU_ATTR_BOOL:
        add(t, "%d", *(const bool *)at);
        break;
    case MGPU_ATTR_FLOAT: /* learning rates, epsilons: no time depends on them */
        add(t, "*");
        break;
    case MGPU_ATTR_ENUM:
        add(t, "%s", a->names[*(const int *)at]);
        break;
    case MGPU_ATTR_EXPR:
        add(t, "%s", mgpu_expr_text(expr, sizeof expr, *(const struct mgpu_expr *const *)at));
        break;
    default:
        add_list(t, node, a);
    }
}

static void add_value(struct text *t, const struct mgpu_value *v)
{
    if (!v) {
        add(t, " -");
        return;
    }
    add(t, " %s[", mgpu_dtype_name(v->type));
    for (int k = 0; k < v->rank; k++)
        add(t, "%s%lld", k ? "," : "", (long long)v->dims[k].value);
    add(t, "]");
    if (v->block)
        add(t, ":%d", v->block);
}

char *mgpu_node_signature(char text[MGPU_SIGNATURE_TEXT], const struct mgpu_node *node)
{
    struct text t = {.at = text};
    add(&t, "%s", node->op->name);
    const char *before = "{";
    for (const struct mgpu_attr *a = node->op->attrs; a && a->name; a++) {
        if (a->kind == MGPU_ATTR_TYPE) /* the outputs say it */
            continue;
        add(&t, "%s", before);
        add_attr(&t, node, a);
        before = " ";
    }
    add(&t, "%s", *before == ' ' ? "}" : "");
    for (int i = 0; i < node->inputs; i++)
        add_value(&t, node->input[i]);
    add(&t, " ->");
    for (int i = 0; i < node->outputs; i++)
        add_value(&t, node->output[i]);
    text[t.used] = 0;
    if (t.used == MGPU_SIGNATURE_TEXT - 1)
        snprintf(text + t.used - 18, 19, "..%016llx", (unsigned long long)t.hash);
    return text;
}
