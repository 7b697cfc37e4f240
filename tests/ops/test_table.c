/* Walks the table of core operators and fails on a missing rule: whatever a record leaves out,
 * some part of mgpu would do wrong or not at all. */
#include "runtime/backend.h"
#include "runtime/ops/op.h"
#include "tests/test.h"

/* Operators that no gradient passes by their nature. */
enum { NOT_DIFFERENTIATED = MGPU_OP_NO_GRADIENT | MGPU_OP_COMMUNICATION | MGPU_OP_GRADIENT_ONLY };

enum { MOST_ATTRS = 512 }; /* bytes of an attribute struct */

static bool has_ref_kernel(const struct mgpu_op *op)
{
    for (int t = 0; mgpu_backend_ref.tables[t]; t++)
        for (const struct mgpu_kernel *k = mgpu_backend_ref.tables[t]; k->op; k++)
            if (!strcmp(k->op, op->name) && k->run)
                return true;
    return false;
}

/* What is missing or wrong, or NULL. */
static const char *rule_fault(const struct mgpu_op *op)
{
    bool differentiated = !(op->flags & NOT_DIFFERENTIATED);
    if (!op->shape)
        return "no shape rule";
    if (!op->gradient && !(op->flags & MGPU_OP_NO_GRADIENT))
        return "no gradient rule";
    if (op->gradient == mgpu_gradient_none && differentiated)
        return "its gradient rule only refuses";
    if (!op->saved)
        return "no saved rule";
    if (!op->alias)
        return "no alias rule";
    if (!op->workspace)
        return "no workspace rule";
    if (!op->layouts)
        return "no layouts rule";
    if (!op->cost)
        return "no cost rule";
    if (!op->split)
        return "no split rule";
    if (!(op->flags & MGPU_OP_COMMUNICATION) && !has_ref_kernel(op))
        return "no kernel in ref";
    return NULL;
}

static const char *arity_fault(const struct mgpu_op *op)
{
    bool variadic = op->flags & MGPU_OP_VARIADIC, communicates = op->flags & MGPU_OP_COMMUNICATION;
    if (!op->name || !*op->name)
        return "no name";
    if (mgpu_op_find(op->name) != op)
        return "another operator has its name";
    if (op->min_inputs < 0 || (!variadic && op->max_inputs < op->min_inputs))
        return "more inputs at least than at most";
    if (!variadic && op->max_inputs > MGPU_MAX_INPUTS)
        return "too many inputs";
    if ((op->outputs < 1 && !communicates) || op->outputs > MGPU_MAX_OUTPUTS)
        return "no or too many outputs";
    return NULL;
}

static size_t attr_size(const struct mgpu_attr *a)
{
    switch (a->kind) {
    case MGPU_ATTR_BOOL:
        return sizeof(bool);
    case MGPU_ATTR_ENUM:
    case MGPU_ATTR_TYPE:
        return sizeof(int);
    case MGPU_ATTR_INTS:
    case MGPU_ATTR_FLOATS:
        return sizeof(int64_t) * (size_t)a->length;
    default: /* int, float, pointers */
        return sizeof(int64_t);
    }
}

/* Bytes that no field covers must be padding: fewer than would hold a number, before an aligned
 * field or the end. */
static const char *gaps_fault(const struct mgpu_op *op, const bool *covered)
{
    size_t gap = 0;
    for (size_t i = 0; i <= op->attrs_size; i++) {
        if (i < op->attrs_size && !covered[i]) {
            gap++;
            continue;
        }
        if (gap > 7 || (gap && i % 4))
            return "a field is not in its table of attributes";
        gap = 0;
    }
    return NULL;
}

static bool is_list(const struct mgpu_attr *a)
{
    return a->kind == MGPU_ATTR_INTS || a->kind == MGPU_ATTR_FLOATS;
}

static const char *attrs_fault(const struct mgpu_op *op)
{
    bool covered[MOST_ATTRS] = {false};
    if (!op->attrs_size)
        return op->attrs ? "attributes without a size" : NULL;
    if (!op->attrs || op->attrs_size > MOST_ATTRS)
        return "no table of attributes";
    for (const struct mgpu_attr *a = op->attrs; a->name; a++) {
        if (!*a->name || (a->kind == MGPU_ATTR_ENUM) != (a->names != NULL) ||
            is_list(a) != (a->length > 0))
            return "an attribute without a name, names or length";
        for (size_t i = a->offset; i < a->offset + attr_size(a); i++) {
            if (i >= op->attrs_size)
                return "an attribute outside its struct";
            if (covered[i])
                return "two attributes in one place";
            covered[i] = true;
        }
    }
    return gaps_fault(op, covered);
}

static const char *fault(const struct mgpu_op *op)
{
    const char *text = rule_fault(op);
    text = text ? text : arity_fault(op);
    return text ? text : attrs_fault(op);
}

static void expect(const struct mgpu_op *broken, const char *what)
{
    const char *text = rule_fault(broken);
    text = text ? text : attrs_fault(broken);
    CHECK_(text && strstr(text, what), "%s, not '%s'", text ? text : "nothing found", what);
}

/* The check itself: records from which something was taken are caught. */
static void test_the_check(void)
{
    static const struct mgpu_attr none[] = {{.name = NULL}};
    const struct mgpu_op *good = mgpu_op_find("cross_entropy");
    struct mgpu_op op = *good;
    op.shape = NULL;
    expect(&op, "shape");
    op = *good;
    op.gradient = mgpu_gradient_none;
    expect(&op, "only refuses");
    op = *good;
    op.split = NULL;
    expect(&op, "split");
    op = *good;
    op.name = "cross_entropies";
    expect(&op, "ref");
    op = *good;
    op.attrs = none;
    expect(&op, "a field");
    op = *good;
    op.attrs_size = 8;
    expect(&op, "outside");
    op = *good;
    op.attrs = NULL;
    expect(&op, "table");
}

int main(void)
{
    int count = 0;
    for (; mgpu_ops[count]; count++) {
        const char *text = fault(mgpu_ops[count]);
        CHECK_(!text, "%s: %s", mgpu_ops[count]->name, text);
    }
    CHECK(count > 40 && !mgpu_op_find("no such operator"));
    test_the_check();
    return test_end();
}
