#include "runtime/graph/gradient.h"

#include "runtime/base/status.h"
#include "runtime/ops/build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Per value (by id): whether it depends on something that is asked for, the gradients that have
 * arrived so far, added up. Per node: the first one at which a gradient was stopped, for messages.
 */
struct sweep {
    struct mgpu_graph *g;
    int values;
    bool *wanted;
    struct mgpu_value **gradient;
    const struct mgpu_node **stopped; /* by value id: the node behind it that has no gradient */
};

static bool differentiable(const struct mgpu_value *v)
{
    return mgpu_is_float(v->type);
}

static void mark_forward(struct sweep *s, int nodes)
{
    for (int n = 0; n < nodes; n++) {
        const struct mgpu_node *node = s->g->nodes[n];
        bool depends = false;
        for (int i = 0; i < node->inputs; i++)
            depends = depends || (node->input[i] && s->wanted[node->input[i]->id]);
        for (int i = 0; i < node->outputs; i++)
            if (node->output[i] && depends && differentiable(node->output[i]))
                s->wanted[node->output[i]->id] = true;
    }
}

static int receive(struct sweep *s, struct mgpu_value *x, struct mgpu_value *dx)
{
    struct mgpu_value **sum = &s->gradient[x->id];
    *sum = *sum ? mgpu_add(s->g, *sum, dx) : dx;
    return *sum ? 0 : mgpu_build_error();
}

static void remember_stop(struct sweep *s, const struct mgpu_node *node)
{
    for (int i = 0; i < node->inputs; i++)
        if (node->input[i] && !s->stopped[node->input[i]->id])
            s->stopped[node->input[i]->id] = node;
}

static int backward(struct sweep *s, const struct mgpu_node *node)
{
    struct mgpu_value *dy[MGPU_MAX_OUTPUTS] = {NULL};
    bool arrives = false, any = false;
    for (int i = 0; i < node->outputs; i++) {
        dy[i] = node->output[i] ? s->gradient[node->output[i]->id] : NULL;
        arrives = arrives || dy[i];
    }
    if (!arrives)
        return 0;
    bool *wanted = mgpu_xcalloc((size_t)node->inputs, sizeof *wanted);
    struct mgpu_value **dx = mgpu_xcalloc((size_t)node->inputs, sizeof(struct mgpu_value *));
    for (int i = 0; i < node->inputs; i++) {
        wanted[i] =
            node->input[i] && s->wanted[node->input[i]->id] && differentiable(node->input[i]);
        any = any || wanted[i];
    }
    int rc = 0;
    if (any && (node->op->flags & MGPU_OP_NO_GRADIENT)) {
        remember_stop(s, node);
    } else if (any) {
        char text[MGPU_VALUE_TEXT];
        s->g->origin = node->origin;
        s->g->origin.role = MGPU_BACKWARD;
        rc = mgpu_prefix(node->op->gradient(s->g, node, dy, wanted, dx), "gradient of %s",
                         mgpu_origin_text(text, &node->origin));
        for (int i = 0; i < node->inputs && rc == 0; i++)
            if (wanted[i] && dx[i])
                rc = receive(s, node->input[i], dx[i]);
            else if (wanted[i] && !s->stopped[node->input[i]->id])
                s->stopped[node->input[i]->id] = node;
    }
    free(wanted);
    free(dx);
    return rc;
}

/* Gradients of values that were made before the sweep only: ids below s->values. */
static int run(struct sweep *s, struct mgpu_value *loss)
{
    struct mgpu_graph *g = s->g;
    int nodes = g->node_count;
    struct mgpu_origin before = g->origin;
    mark_forward(s, nodes);
    s->gradient[loss->id] = mgpu_const_double(g, loss->type, 1);
    int rc = 0;
    for (int n = nodes - 1; n >= 0 && rc == 0; n--)
        rc = backward(s, g->nodes[n]);
    g->origin = before;
    return rc;
}

static void sweep_init(struct sweep *s, struct mgpu_graph *g)
{
    size_t n = (size_t)g->value_count;
    *s = (struct sweep){.g = g, .values = g->value_count};
    s->wanted = mgpu_xcalloc(n, sizeof *s->wanted);
    s->gradient = mgpu_xcalloc(n, sizeof(struct mgpu_value *));
    s->stopped = mgpu_xcalloc(n, sizeof(struct mgpu_node *));
}

static void sweep_free(struct sweep *s)
{
    free(s->wanted);
    free(s->gradient);
    free(s->stopped);
}

static int check_loss(const struct mgpu_graph *g, const struct mgpu_value *loss)
{
    char text[MGPU_VALUE_TEXT];
    if (loss->rank || !differentiable(loss))
        return mgpu_fail(MGPU_EINVALID, "a loss must be one floating number, not %s",
                         mgpu_value_text(text, g, loss));
    return 0;
}

int mgpu_gradient_of(struct mgpu_graph *g, struct mgpu_value *loss, int count,
                     struct mgpu_value *const *wrt, struct mgpu_value **dx)
{
    struct sweep s;
    MGPU_TRY(check_loss(g, loss));
    sweep_init(&s, g);
    for (int i = 0; i < count; i++)
        s.wanted[wrt[i]->id] = true;
    int rc = run(&s, loss);
    for (int i = 0; i < count && rc == 0; i++)
        dx[i] = s.gradient[wrt[i]->id];
    sweep_free(&s);
    return rc;
}

static bool is_view(const struct mgpu_node *node)
{
    struct mgpu_alias pairs[MGPU_MAX_OUTPUTS];
    int n = node->op->alias(node, pairs);
    for (int i = 0; i < n; i++)
        if (pairs[i].view)
            return true;
    return false;
}

/* By value id: whether a node takes it. */
static bool *find_used(const struct mgpu_graph *g)
{
    bool *used = mgpu_xcalloc((size_t)g->value_count + 1, sizeof *used);
    for (int n = 0; n < g->node_count; n++)
        for (int i = 0; i < g->nodes[n]->inputs; i++)
            if (g->nodes[n]->input[i])
                used[g->nodes[n]->input[i]->id] = true;
    return used;
}

/* Moves the last node of the graph to stand right after `after` (NULL: first). */
static void move_last(struct mgpu_graph *g, const struct mgpu_node *after)
{
    int to = after ? after->id + 1 : 0, last = g->node_count - 1;
    struct mgpu_node *node = g->nodes[last];
    memmove(g->nodes + to + 1, g->nodes + to, sizeof *g->nodes * (size_t)(last - to));
    g->nodes[to] = node;
    for (int i = to; i <= last; i++)
        g->nodes[i]->id = i;
}

static int give_own(struct mgpu_graph *g, struct mgpu_parameter *p)
{
    struct mgpu_node *producer = p->gradient->producer;
    struct mgpu_origin before = g->origin;
    if (producer)
        g->origin = producer->origin;
    struct mgpu_value *own = mgpu_copy(g, p->gradient);
    g->origin = before;
    if (!own)
        return mgpu_build_error();
    move_last(g, producer);
    p->gradient = own;
    return 0;
}

/* Gradients are reduced over the ranks and added up in memory of their own. */
static int separate(struct mgpu_graph *g)
{
    bool *used = find_used(g); /* or the gradient of an earlier parameter */
    int rc = 0;
    for (int i = 0; i < g->parameter_count && rc == 0; i++) {
        const struct mgpu_value *v = g->parameters[i].gradient;
        if (!v || v->kind == MGPU_VALUE_CONSTANT)
            continue;
        if (v->kind != MGPU_VALUE_RESULT || is_view(v->producer) || used[v->id])
            rc = give_own(g, &g->parameters[i]);
        used[v->id] = true;
    }
    free(used);
    return rc;
}

/* The first node without a gradient on the way from `v` to where gradients are. */
static const struct mgpu_node *find_stop(const struct sweep *s, int id)
{
    if (s->stopped[id])
        return s->stopped[id];
    for (int n = 0; n < s->g->node_count; n++) {
        const struct mgpu_node *node = s->g->nodes[n];
        for (int i = 0; i < node->inputs; i++) {
            if (!node->input[i] || node->input[i]->id != id)
                continue;
            if (node->op->flags & MGPU_OP_NO_GRADIENT)
                return node;
            for (int k = 0; k < node->outputs; k++)
                if (node->output[k] && node->output[k]->id < s->values &&
                    s->stopped[node->output[k]->id])
                    return s->stopped[node->output[k]->id];
        }
    }
    return NULL;
}

/* Lists every weight that gets no gradient with the node that stops it. */
static int report_missing(const struct sweep *s)
{
    char list[3000] = "", text[MGPU_VALUE_TEXT];
    int missing = 0;
    size_t used = 0;
    for (int i = 0; i < s->g->parameter_count; i++) {
        const struct mgpu_parameter *p = &s->g->parameters[i];
        if (p->role != MGPU_WEIGHT || p->gradient)
            continue;
        missing++;
        const struct mgpu_node *stop = find_stop(s, p->value->id);
        int n =
            snprintf(list + used, sizeof list - used, "%s weight '%s'%s%s", missing > 1 ? ";" : "",
                     p->name, stop ? ": no gradient passes " : ": the loss does not use it",
                     stop ? mgpu_origin_text(text, &stop->origin) : "");
        if (n > 0 && used + (size_t)n < sizeof list)
            used += (size_t)n;
    }
    if (!missing)
        return 0;
    return mgpu_fail(MGPU_EUNSUPPORTED,
                     "%d weight%s would get no gradient (--freeze %s to leave as %s):%s", missing,
                     missing == 1 ? "" : "s", missing == 1 ? "it" : "them",
                     missing == 1 ? "it is" : "they are", list);
}

int mgpu_gradient(struct mgpu_graph *g, struct mgpu_value *loss, bool allow_missing)
{
    struct sweep s;
    MGPU_TRY(check_loss(g, loss));
    sweep_init(&s, g);
    for (int i = 0; i < g->parameter_count; i++)
        if (g->parameters[i].role == MGPU_WEIGHT)
            s.wanted[g->parameters[i].value->id] = true;
    int rc = run(&s, loss);
    for (int i = 0; i < g->parameter_count && rc == 0; i++)
        if (g->parameters[i].role == MGPU_WEIGHT)
            g->parameters[i].gradient = s.gradient[g->parameters[i].value->id];
    if (rc == 0 && !allow_missing)
        rc = report_missing(&s);
    if (rc == 0)
        rc = separate(g);
    sweep_free(&s);
    return rc;
}
