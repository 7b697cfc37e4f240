/* Attributes of two nodes, compared. */
#include "runtime/ops/expr.h"
#include "runtime/ops/op.h"

#include <string.h>

static bool same_expr(const struct mgpu_expr *a, const struct mgpu_expr *b)
{
    for (int k = 0; a->count == b->count && k < a->count; k++) {
        const struct mgpu_expr_op *x = &a->op[k], *y = &b->op[k];
        if (x->code != y->code || x->type != y->type || x->integer != y->integer ||
            memcmp(&x->number, &y->number, sizeof x->number) ||
            memcmp(x->arg, y->arg, sizeof x->arg))
            return false;
    }
    return a->count == b->count;
}

/* How many dims an attribute of kind DIMS holds. */
int mgpu_attr_rank(const struct mgpu_node *node)
{
    for (const struct mgpu_attr *f = node->op->attrs; f->name; f++)
        if (!strcmp(f->name, "rank") && f->kind == MGPU_ATTR_INT)
            return (int)*(const int64_t *)((const char *)node->attrs + f->offset);
    return node->output[0]->rank;
}

static bool same_dims(int rank, const struct mgpu_dim *x, const struct mgpu_dim *y,
                      bool (*same)(struct mgpu_dim, struct mgpu_dim))
{
    for (int k = 0; k < rank; k++)
        if (!same(x[k], y[k]))
            return false;
    return true;
}

static size_t attr_size(const struct mgpu_attr *f)
{
    switch (f->kind) {
    case MGPU_ATTR_BOOL:
        return sizeof(bool);
    case MGPU_ATTR_ENUM:
        return sizeof(int);
    case MGPU_ATTR_TYPE:
        return sizeof(enum mgpu_dtype);
    case MGPU_ATTR_INTS:
    case MGPU_ATTR_FLOATS:
        return 8 * (size_t)f->length;
    default:
        return 8;
    }
}

bool mgpu_attrs_same(const struct mgpu_node *a, const struct mgpu_node *b,
                     bool (*same_dim)(struct mgpu_dim, struct mgpu_dim))
{
    if (!a->attrs || !b->attrs || !a->op->attrs)
        return a->attrs == b->attrs;
    for (const struct mgpu_attr *f = a->op->attrs; f->name; f++) {
        const char *x = (const char *)a->attrs + f->offset, *y = (const char *)b->attrs + f->offset;
        bool same = f->kind == MGPU_ATTR_EXPR ? same_expr(*(const struct mgpu_expr *const *)x,
                                                          *(const struct mgpu_expr *const *)y)
                    : f->kind == MGPU_ATTR_DIMS
                        ? mgpu_attr_rank(a) == mgpu_attr_rank(b) &&
                              same_dims(mgpu_attr_rank(a), *(const struct mgpu_dim *const *)x,
                                        *(const struct mgpu_dim *const *)y, same_dim)
                        : !memcmp(x, y, attr_size(f));
        if (!same)
            return false;
    }
    return true;
}
