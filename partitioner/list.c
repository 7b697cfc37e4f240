/* --list-ops. */
#include "importer/operators.h"
#include "runtime/backend.h"
#include "runtime/mgpu.h"

#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>

/* ---- ONNX operators -------------------------------------------------------------------------- */

/* Whether the CPU has a kernel of its own for a core operator. */
static bool is_fast(const char *core)
{
    for (int t = 0; mgpu_backend_cpu.tables[t]; t++)
        for (const struct mgpu_kernel *k = mgpu_backend_cpu.tables[t]; k->op; k++)
            if (!strcmp(k->op, core) && strcmp(k->name, mgpu_backend_ref.name))
                return true;
    return false;
}

static void print_onnx(const struct mgpu_onnx_operator *op, FILE *to)
{
    char opsets[32];
    if (op->until)
        snprintf(opsets, sizeof opsets, "%d-%d", op->since, op->until);
    else
        snprintf(opsets, sizeof opsets, "%d-", op->since);
    fprintf(to, "%-36s %-7s yes     %-8s %-8s %s\n", op->type, opsets, op->gradient ? "yes" : "-",
            is_fast(op->core) ? "cpu, ref" : "ref", *op->core ? op->core : "-");
}

static void print_all_onnx(FILE *to)
{
    struct mgpu_onnx_operator *list;
    int count = mgpu_onnx_operators(&list);
    fprintf(to, "%-36s opsets  forward gradient backends by\n", "ONNX operator");
    for (int i = 0; i < count; i++)
        print_onnx(&list[i], to);
    free(list);
}

static struct json_object *onnx_json(const struct mgpu_onnx_operator *op)
{
    struct json_object *o = json_object_new_object(), *names = json_object_new_array();
    json_object_object_add(o, "name", json_object_new_string(op->type));
    json_object_object_add(o, "since", json_object_new_int(op->since));
    if (op->until)
        json_object_object_add(o, "until", json_object_new_int(op->until));
    json_object_object_add(o, "forward", json_object_new_boolean(true));
    json_object_object_add(o, "gradient", json_object_new_boolean(op->gradient));
    if (is_fast(op->core))
        json_object_array_add(names, json_object_new_string(mgpu_backend_cpu.name));
    json_object_array_add(names, json_object_new_string(mgpu_backend_ref.name));
    json_object_object_add(o, "backends", names);
    json_object_object_add(o, "core", json_object_new_string(op->core));
    return o;
}

static struct json_object *all_onnx_json(void)
{
    struct mgpu_onnx_operator *list;
    struct json_object *out = json_object_new_array();
    int count = mgpu_onnx_operators(&list);
    for (int i = 0; i < count; i++)
        json_object_array_add(out, onnx_json(&list[i]));
    free(list);
    return out;
}

/* ---- Core operators
 * ------------------------------------------------------------------------------- */

enum { RULES = 9, NAMES_TEXT = 128 };
static const char *const rules[RULES] = {"shape",   "gradient", "saved", "alias", "workspace",
                                         "layouts", "cost",     "split", "expand"};

static void rules_of(const struct mgpu_op *op, bool has[RULES])
{
    bool gradient = op->gradient && op->gradient != mgpu_gradient_none;
    const bool all[RULES] = {op->shape,   gradient, op->saved, op->alias, op->workspace,
                             op->layouts, op->cost, op->split, op->expand};
    memcpy(has, all, sizeof all);
}

/* The backends' kernels for the operator, the fast ones first: "onednn, ref". */
static const char *kernels_of(const struct mgpu_op *op, char text[NAMES_TEXT])
{
    size_t n = 0;
    text[0] = 0;
    for (int t = 0; mgpu_backend_cpu.tables[t]; t++)
        for (const struct mgpu_kernel *k = mgpu_backend_cpu.tables[t]; k->op; k++)
            if (!strcmp(k->op, op->name) && !strstr(text, k->name) && n < NAMES_TEXT - 1)
                n += (size_t)snprintf(text + n, NAMES_TEXT - n, "%s%s", n ? ", " : "", k->name);
    return text;
}

/* Why a rule may be missing. */
static const char *note_of(const struct mgpu_op *op)
{
    return op->flags & MGPU_OP_COMMUNICATION   ? "communication"
           : op->flags & MGPU_OP_GRADIENT_ONLY ? "made by gradients, updates and plans"
           : op->flags & MGPU_OP_NO_GRADIENT   ? "its gradient is zero"
                                               : "";
}

static void print_operator(const struct mgpu_op *op, FILE *to)
{
    bool has[RULES];
    char names[NAMES_TEXT], arity[32];
    rules_of(op, has);
    if (op->flags & MGPU_OP_VARIADIC)
        snprintf(arity, sizeof arity, "%d+ -> %d", op->min_inputs, op->outputs);
    else if (op->max_inputs > op->min_inputs)
        snprintf(arity, sizeof arity, "%d-%d -> %d", op->min_inputs, op->max_inputs, op->outputs);
    else
        snprintf(arity, sizeof arity, "%d -> %d", op->min_inputs, op->outputs);
    fprintf(to, "%-22s %-9s", op->name, arity);
    for (int r = 0; r < RULES; r++) /* a tick is three bytes, one column */
        fprintf(to, " %*s%s", (int)strlen(rules[r]) - 1, "", has[r] ? "✓" : "-");
    fprintf(to, "  %-16s %s\n", kernels_of(op, names), note_of(op));
}

static struct json_object *operator_json(const struct mgpu_op *op)
{
    bool has[RULES];
    char names[NAMES_TEXT];
    struct json_object *o = json_object_new_object(), *list = json_object_new_object();
    rules_of(op, has);
    json_object_object_add(o, "name", json_object_new_string(op->name));
    for (int r = 0; r < RULES; r++)
        json_object_object_add(list, rules[r], json_object_new_boolean(has[r]));
    json_object_object_add(o, "rules", list);
    json_object_object_add(o, "kernels", json_object_new_string(kernels_of(op, names)));
    json_object_object_add(o, "note", json_object_new_string(note_of(op)));
    return o;
}

static int print_json(struct json_object *o, FILE *to)
{
    fprintf(
        to, "%s\n",
        json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE));
    json_object_put(o);
    return 0;
}

static int operators_json(FILE *to)
{
    struct json_object *o = json_object_new_object(), *core = json_object_new_array();
    for (int i = 0; mgpu_ops[i]; i++)
        json_object_array_add(core, operator_json(mgpu_ops[i]));
    json_object_object_add(o, "operators", all_onnx_json());
    json_object_object_add(o, "core", core);
    return print_json(o, to);
}

int mgpu_list_operators(bool json, FILE *to)
{
    if (json)
        return operators_json(to);
    print_all_onnx(to);
    fprintf(to, "\nThey become core operators:\n\n%-22s %-9s", "core operator", "in -> out");
    for (int r = 0; r < RULES; r++)
        fprintf(to, " %s", rules[r]);
    fprintf(to, "  %-16s note\n", "kernels (cpu)");
    for (int i = 0; mgpu_ops[i]; i++)
        print_operator(mgpu_ops[i], to);
    return 0;
}
