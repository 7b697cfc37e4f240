/* What each instruction of a step took, as a trace (Chrome's Trace Event Format, JSON object form;
 * opens in Perfetto). One event an instruction, with its mean time over the steps, one after the
 * other: a rank is a process, its queues are threads. */
#include "exporter/atomic_file.h"
#include "runtime/base/status.h"
#include "runtime/facade/facade.h"
#include "runtime/ops/pointwise.h"

#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *role_name(enum mgpu_role role)
{
    static const char *const names[] = {[MGPU_FORWARD] = "forward",
                                        [MGPU_BACKWARD] = "backward",
                                        [MGPU_RECOMPUTE] = "recompute",
                                        [MGPU_UPDATE] = "update",
                                        [MGPU_COMMUNICATION] = "communication"};
    return names[role];
}

static void add_text(struct json_object *o, const char *key, const char *text)
{
    json_object_object_add(o, key, json_object_new_string(text));
}

static void add_number(struct json_object *o, const char *key, double number)
{
    json_object_object_add(o, key, json_object_new_double(number));
}

static struct json_object *shapes(const struct mgpu_program *p, const struct mgpu_node *node)
{
    char text[MGPU_VALUE_TEXT];
    struct json_object *list = json_object_new_array();
    for (int i = 0; i < node->inputs + node->outputs; i++) {
        const struct mgpu_value *v =
            i < node->inputs ? node->input[i] : node->output[i - node->inputs];
        if (i == node->inputs)
            json_object_array_add(list, json_object_new_string("->"));
        json_object_array_add(list,
                              json_object_new_string(v ? mgpu_value_text(text, p->graph, v) : "-"));
    }
    return list;
}

/* Operands that the kernel brings into another layout itself, before it runs and behind. */
static void add_reordered(struct json_object *o, const struct mgpu_backend *backend,
                          const struct mgpu_program *p, const struct mgpu_instruction *in)
{
    char text[MGPU_VALUE_TEXT];
    unsigned operands =
        in->kernel && backend->reordered ? backend->reordered(in->node, in->kernel, in->state) : 0;
    struct json_object *list = operands ? json_object_new_array() : NULL;
    for (int i = 0; i < in->inputs + in->outputs && operands; i++)
        if (operands >> i & 1)
            json_object_array_add(
                list, json_object_new_string(mgpu_value_text(
                          text, p->graph,
                          i < in->inputs ? in->node->input[i] : in->node->output[i - in->inputs])));
    if (list)
        json_object_object_add(o, "reordered", list);
}

static struct json_object *details(const struct mgpu_backend *backend, const struct mgpu_program *p,
                                   int k, double seconds)
{
    const struct mgpu_instruction *in = &p->instruction[k];
    const struct mgpu_origin *origin = &in->node->origin;
    struct mgpu_cost cost = in->node->op->cost(in->node);
    struct json_object *o = json_object_new_object();
    add_text(o, "output", origin->output);
    add_text(o, "node", origin->name);
    add_text(o, "type", origin->type);
    add_text(o, "kernel", in->kernel ? in->kernel->name : "communication");
    json_object_object_add(o, "operands", shapes(p, in->node));
    add_reordered(o, backend, p, in);
    if (in->node->op == &mgpu_op_pointwise) {
        char text[2000];
        const struct mgpu_pointwise_attrs *attrs = in->node->attrs;
        add_text(o, "expression", mgpu_expr_text(text, sizeof text, attrs->expr));
    }
    if (seconds > 0) {
        add_number(o, "GFLOP/s", 1e-9 * cost.flops / seconds);
        add_number(o, "GB/s", 1e-9 * cost.bytes / seconds);
    }
    return o;
}

static struct json_object *event(const struct mgpu_rank *rank, const struct mgpu_program *p, int k,
                                 double *clock)
{
    const struct mgpu_instruction *in = &p->instruction[k];
    double seconds = p->timed ? p->seconds[k] / (double)p->timed : 0;
    struct json_object *o = json_object_new_object();
    add_text(o, "ph", "X");
    add_text(o, "name", in->node->op->name);
    add_text(o, "cat", role_name(in->node->origin.role));
    json_object_object_add(o, "pid", json_object_new_int(rank->rank));
    json_object_object_add(o, "tid", json_object_new_int(in->queue));
    add_number(o, "ts", 1e6 * *clock);
    add_number(o, "dur", 1e6 * seconds);
    json_object_object_add(o, "args", details(rank->engine->ops->backend, p, k, seconds));
    *clock += seconds;
    return o;
}

/* The training program of most samples that this rank ran. */
static const struct mgpu_program *longest(const struct mgpu_trainer *t, int rank)
{
    const struct mgpu_compiled *best = NULL;
    for (int i = 0; i < t->compiled_count; i++) {
        const struct mgpu_compiled *c = &t->compiled[i];
        const struct mgpu_program *p = c->program[rank];
        if (p && p->seconds && p->timed && (!best || c->batch > best->batch))
            best = c;
    }
    return best ? best->program[rank] : NULL;
}

static struct json_object *trace(const struct mgpu_trainer *t)
{
    struct json_object *o = json_object_new_object(), *events = json_object_new_array();
    for (int r = 0; r < mgpu_team_size(t->team); r++) {
        const struct mgpu_program *p = longest(t, r);
        double clock = 0;
        for (int k = 0; p && k < p->instructions; k++)
            json_object_array_add(events, event(mgpu_team_rank(t->team, r), p, k, &clock));
    }
    json_object_object_add(o, "traceEvents", events);
    add_text(o, "displayTimeUnit", "ms");
    return o;
}

static int by_seconds(const void *a, const void *b)
{
    const struct mgpu_profile_line *x = a, *y = b;
    return (x->seconds < y->seconds) - (x->seconds > y->seconds);
}

int mgpu_profile_lines(const struct mgpu_trainer *t, int rank, struct mgpu_profile_line *line,
                       int most, double *total)
{
    const struct mgpu_program *p = longest(t, rank);
    int n = 0;
    *total = 0;
    for (int k = 0; p && k < p->instructions; k++) {
        const struct mgpu_node *node = p->instruction[k].node;
        const char *name = node->op->name, *role = role_name(node->origin.role);
        struct mgpu_cost cost = node->op->cost(node);
        double seconds = p->seconds[k] / (double)p->timed;
        int i = 0;
        while (i < n && (strcmp(line[i].name, name) || strcmp(line[i].role, role)))
            i++;
        *total += seconds;
        if (i == most)
            continue;
        if (i == n)
            line[n++] = (struct mgpu_profile_line){.name = name, .role = role};
        line[i].nodes++;
        line[i].seconds += seconds;
        line[i].flops += (double)cost.flops;
        line[i].bytes += (double)cost.bytes;
    }
    if (n)
        qsort(line, (size_t)n, sizeof *line, by_seconds);
    return n;
}

int mgpu_trainer_profile(const struct mgpu_trainer *t, const char *path)
{
    struct json_object *o = trace(t);
    const char *text =
        json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE);
    int rc = mgpu_atomic_save(path, text, strlen(text));
    json_object_put(o);
    return rc;
}

void mgpu_profile_begin(struct mgpu_trainer *t)
{
    for (int i = 0; i < t->compiled_count; i++)
        for (int r = 0; r < mgpu_team_size(t->team); r++) {
            struct mgpu_program *p = t->compiled[i].program[r];
            if (p && t->compiled[i].mode == MGPU_MODE_TRAIN)
                p->seconds = MGPU_NEW_ARRAY(p->arena, double, p->instructions);
        }
}
