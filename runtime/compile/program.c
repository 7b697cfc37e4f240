#include "runtime/compile/program.h"

#include "runtime/base/status.h"
#include "runtime/compile/early.h"
#include "runtime/compile/fuse.h"
#include "runtime/compile/layout.h"
#include "runtime/compile/storage.h"
#include "runtime/graph/step_scalar.h"
#include "runtime/ops/accumulate.h"
#include "runtime/ops/comm.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct compile {
    struct mgpu_program *p;
    struct mgpu_graph *g;
    const struct mgpu_compile_options *options;
    bool *live; /* by node id */
    bool *idle; /* by node id: runs on a rank without samples */
    struct mgpu_storage storage;
};

/* ---- Which nodes run ------------------------------------------------------------------------- */

static void reach(const struct mgpu_value *v, bool *live)
{
    if (v && v->kind == MGPU_VALUE_RESULT)
        live[v->producer->id] = true;
}

static bool communicates(const struct mgpu_node *node)
{
    return node->op->flags & MGPU_OP_COMMUNICATION;
}

static void find_live(struct compile *c)
{
    const struct mgpu_graph *g = c->g;
    for (int i = 0; i < g->parameter_count; i++) {
        reach(g->parameters[i].gradient, c->live);
        reach(g->parameters[i].next, c->live);
    }
    for (int i = 0; i < g->output_count; i++)
        reach(g->outputs[i], c->live);
    for (int n = g->node_count - 1; n >= 0; n--) {
        c->live[n] = c->live[n] || communicates(g->nodes[n]); /* others wait for it */
        for (int i = 0; c->live[n] && i < g->nodes[n]->inputs; i++)
            reach(g->nodes[n]->input[i], c->live);
    }
}

/* A rank without samples takes part in communication and changes its weights like the others; the
 * nodes between the two run on it as well. It adds nothing to the gradients stored so far. */
static void find_idle(struct compile *c)
{
    const struct mgpu_graph *g = c->g;
    for (int i = 0; i < g->parameter_count; i++)
        reach(g->parameters[i].next, c->idle);
    for (int n = g->node_count - 1; n >= 0; n--) {
        const struct mgpu_node *node = g->nodes[n];
        bool stop = communicates(node) || node->op == &mgpu_op_accumulate;
        for (int i = 0; i < node->inputs; i++) {
            const struct mgpu_value *v = node->input[i];
            bool update = node->op == &mgpu_op_send && v->kind == MGPU_VALUE_RESULT &&
                          v->producer->origin.role == MGPU_UPDATE;
            if (stop ? update : c->idle[n]) /* others' updates may need what is sent */
                reach(v, c->idle);
        }
        c->idle[n] = c->live[n] && (stop ? communicates(node) : c->idle[n]);
    }
}

/* ---- Instructions ---------------------------------------------------------------------------- */

static struct mgpu_operand operand(const struct compile *c, const struct mgpu_value *v, bool read,
                                   bool write)
{
    if (!v)
        return (struct mgpu_operand){.bytes = -1};
    const struct mgpu_home *h = &c->storage.home[c->storage.root[v->id]];
    return (struct mgpu_operand){.buffer = h->buffer,
                                 .offset = h->offset,
                                 .bytes = mgpu_value_bytes(v),
                                 .read = read,
                                 .write = write};
}

static void describe(struct compile *c, struct mgpu_instruction *in, const struct mgpu_node *node)
{
    int n = node->inputs + node->outputs;
    bool in_place = node->op == &mgpu_op_all_reduce;
    in->node = node;
    in->inputs = node->inputs;
    in->outputs = node->outputs;
    in->operands = n;
    in->operand = MGPU_NEW_ARRAY(c->p->arena, struct mgpu_operand, n + 1);
    in->tensor = MGPU_NEW_ARRAY(c->p->arena, struct mgpu_tensor, n);
    in->signal = -1;
    in->last_piece = node->origin.role == MGPU_UPDATE;
    in->when_idle = c->idle[node->id];
    for (int i = 0; i < n; i++) {
        bool input = i < node->inputs;
        const struct mgpu_value *v = input ? node->input[i] : node->output[i - node->inputs];
        in->operand[i] = operand(c, v, input, !input || in_place);
        mgpu_tensor_of(&in->tensor[i], v, NULL);
    }
}

/* The first kernel that accepts the node and can be prepared for it. */
static int choose_kernel(struct compile *c, struct mgpu_instruction *in)
{
    char text[MGPU_VALUE_TEXT];
    const struct mgpu_node *node = in->node;
    const struct mgpu_backend *backend = c->options->backend;
    const struct mgpu_kernel *kernel = c->options->exact ? mgpu_backend_kernel(backend, node)
                                                         : mgpu_backend_fastest(backend, node);
    int rc = mgpu_fail(MGPU_EUNSUPPORTED, "no kernel for %s of %s", node->op->name,
                       mgpu_dtype_name(node->output[0]->type));
    for (; kernel && rc == MGPU_EUNSUPPORTED; kernel = mgpu_backend_next(backend, node, kernel)) {
        in->kernel = kernel;
        rc = kernel->prepare
                 ? kernel->prepare(node, c->options->threads, c->options->exact, &in->state)
                 : 0;
    }
    if (rc < 0)
        in->kernel = NULL;
    return mgpu_prefix(rc, "%s", mgpu_origin_text(text, &node->origin));
}

static int prepare_kernel(struct compile *c, struct mgpu_instruction *in, int64_t *workspace)
{
    const struct mgpu_node *node = in->node;
    int threads = c->options->threads;
    MGPU_TRY(choose_kernel(c, in));
    *workspace = in->kernel->workspace ? in->kernel->workspace(node, threads, in->state) : 0;
    in->launch = (struct mgpu_launch){.node = node,
                                      .inputs = in->inputs,
                                      .outputs = in->outputs,
                                      .in = in->tensor,
                                      .out = in->tensor + in->inputs,
                                      .state = in->state,
                                      .threads = threads};
    return 0;
}

static void prepare_collective(struct compile *c, struct mgpu_instruction *in)
{
    const struct mgpu_comm_attrs *attrs = in->node->attrs;
    const struct mgpu_op *op = in->node->op;
    in->queue = MGPU_QUEUE_COMMUNICATION;
    in->gradients = op == &mgpu_op_all_reduce;
    in->group = (int)attrs->group;
    for (int i = 0; i < in->operands; i++)
        in->gradients = in->gradients && in->operand[i].buffer == MGPU_BUFFER_GRADIENTS;
    in->last_piece = in->last_piece || in->gradients;
    in->part = MGPU_NEW_ARRAY(c->p->arena, struct mgpu_part, in->inputs + 1);
    in->collective.kind = op == &mgpu_op_all_reduce       ? MGPU_COLLECTIVE_ALL_REDUCE
                          : op == &mgpu_op_all_gather     ? MGPU_COLLECTIVE_ALL_GATHER
                          : op == &mgpu_op_reduce_scatter ? MGPU_COLLECTIVE_REDUCE_SCATTER
                          : op == &mgpu_op_broadcast      ? MGPU_COLLECTIVE_BROADCAST
                          : op == &mgpu_op_send           ? MGPU_COLLECTIVE_SEND
                                                          : MGPU_COLLECTIVE_RECV;
    in->collective.type = in->tensor[0].type;
    in->collective.tag = attrs->tag;
    in->collective.peer = (int)attrs->peer;
    in->collective.outer = 1;
    if (in->outputs && (op == &mgpu_op_all_gather || op == &mgpu_op_reduce_scatter))
        for (int k = 0; k < attrs->axis; k++)
            in->collective.outer *= in->node->output[0]->dims[k].value;
}

/* Places the arena: every root that lives there, and the workspaces while their instruction runs.
 */
static void place_arena(struct compile *c, const int64_t *workspace)
{
    struct mgpu_storage *s = &c->storage;
    int most = s->values + c->p->instructions, n = 0;
    int64_t *bytes = mgpu_xcalloc((size_t)most * 2, sizeof *bytes), *offset = bytes + most;
    int *span = mgpu_xcalloc((size_t)most * 3, sizeof *span), *first = span, *last = span + most;
    int *who = last + most;
    for (int i = 0; i < s->values; i++) {
        const struct mgpu_home *h = &s->home[i];
        if (s->root[i] != i || h->pinned || h->first < 0)
            continue;
        bytes[n] = h->bytes;
        first[n] = h->first;
        last[n] = h->last;
        who[n++] = i;
    }
    int roots = n;
    for (int k = 0; k < c->p->instructions; k++) {
        if (workspace[k] <= 0)
            continue;
        bytes[n] = workspace[k];
        first[n] = last[n] = c->p->instruction[k].node->id;
        who[n++] = k;
    }
    c->p->bytes[MGPU_BUFFER_ARENA] =
        mgpu_place_blocks(n, bytes, first, last, offset, &c->p->arena_lower_bound);
    for (int i = 0; i < roots; i++)
        s->home[who[i]].offset = offset[i];
    for (int i = roots; i < n; i++) {
        struct mgpu_instruction *in = &c->p->instruction[who[i]];
        in->operand[in->operands++] = (struct mgpu_operand){.buffer = MGPU_BUFFER_ARENA,
                                                            .offset = offset[i],
                                                            .bytes = bytes[i],
                                                            .read = true,
                                                            .write = true};
    }
    free(bytes);
    free(span);
}

static void refresh_offsets(struct compile *c)
{
    for (int k = 0; k < c->p->instructions; k++) {
        struct mgpu_instruction *in = &c->p->instruction[k];
        for (int i = 0; i < in->inputs + in->outputs; i++) {
            const struct mgpu_value *v =
                i < in->inputs ? in->node->input[i] : in->node->output[i - in->inputs];
            if (v)
                in->operand[i].offset = c->storage.home[c->storage.root[v->id]].offset;
        }
    }
}

/* ---- Order ----------------------------------------------------------------------------------- */

static void add_wait(struct mgpu_program *p, struct mgpu_instruction *in, int event)
{
    for (int i = 0; i < in->waits; i++)
        if (in->wait[i] == event)
            return;
    int *more = MGPU_NEW_ARRAY(p->arena, int, in->waits + 1);
    if (in->waits)
        memcpy(more, in->wait, sizeof *more * (size_t)in->waits);
    more[in->waits++] = event;
    in->wait = more;
}

/* Communication of one group runs in order by itself. */
static bool same_stream(const struct mgpu_instruction *a, const struct mgpu_instruction *b)
{
    return a->queue == MGPU_QUEUE_COMMUNICATION && b->queue == a->queue && a->group == b->group;
}

/* Communication waits for the computation before it; whoever touches its memory later waits for it.
 */
static void add_events(struct compile *c)
{
    struct mgpu_program *p = c->p;
    int before = -1, *pending; /* by root: the last instruction that communicates it, plus one */
    pending = mgpu_xcalloc((size_t)c->storage.values, sizeof *pending);
    for (int k = 0; k < p->instructions; k++) {
        struct mgpu_instruction *in = &p->instruction[k];
        for (int i = 0; i < in->inputs + in->outputs; i++) {
            const struct mgpu_value *v =
                i < in->inputs ? in->node->input[i] : in->node->output[i - in->inputs];
            int *last = v ? &pending[c->storage.root[v->id]] : NULL;
            if (last && *last && *last <= k && !same_stream(in, &p->instruction[*last - 1]))
                add_wait(p, in, p->instruction[*last - 1].signal);
            if (last && in->queue == MGPU_QUEUE_COMMUNICATION)
                *last = k + 1;
        }
        if (in->queue == MGPU_QUEUE_COMPUTE) {
            before = k;
            continue;
        }
        in->signal = p->events++;
        if (before >= 0 && p->instruction[before].signal < 0)
            p->instruction[before].signal = p->events++;
        if (before >= 0)
            add_wait(p, in, p->instruction[before].signal);
    }
    free(pending);
}

static void make_events(struct mgpu_program *p)
{
    p->done = MGPU_NEW_ARRAY(p->arena, atomic_bool, p->events + 1);
    p->setter = MGPU_NEW_ARRAY(p->arena, int, p->events + 1);
    for (int e = 0; e < p->events; e++) {
        atomic_store(&p->done[e], true);
        p->setter[e] = -1;
    }
    for (int k = 0; k < p->instructions; k++) {
        struct mgpu_instruction *in = &p->instruction[k];
        if (in->signal >= 0)
            p->setter[in->signal] = k;
        if (in->queue == MGPU_QUEUE_COMMUNICATION)
            in->collective.done = &p->done[in->signal];
    }
}

/* ---- Ports ----------------------------------------------------------------------------------- */

static struct mgpu_port port(const struct compile *c, const struct mgpu_value *v, const char *name)
{
    const struct mgpu_home *h = &c->storage.home[c->storage.root[v->id]];
    struct mgpu_port out = {.name = name,
                            .type = v->type,
                            .rank = v->rank,
                            .offset = h->offset,
                            .bytes = mgpu_value_bytes(v)};
    mgpu_value_dims(v, out.dims);
    return out;
}

static void make_ports(struct compile *c, const struct mgpu_applied *applied)
{
    struct mgpu_program *p = c->p;
    const struct mgpu_graph *g = c->g;
    p->input = MGPU_NEW_ARRAY(p->arena, struct mgpu_port, g->input_count);
    for (int i = 0; i < g->input_count; i++) /* those that this rank's nodes read */
        if (c->storage.home[g->inputs[i]->id].first >= 0)
            p->input[p->inputs++] = port(c, g->inputs[i], g->inputs[i]->name);
    p->gradient = MGPU_NEW_ARRAY(p->arena, int64_t, g->parameter_count);
    for (int i = 0; i < g->parameter_count; i++) {
        const struct mgpu_value *gradient = g->parameters[i].gradient;
        p->gradient[i] = gradient ? port(c, gradient, "").offset : -1;
        if (gradient)
            p->bytes[MGPU_BUFFER_GRADIENTS] = c->options->store->bytes[MGPU_BUFFER_WEIGHTS];
    }
    p->results = g->output_count;
    p->result = MGPU_NEW_ARRAY(p->arena, struct mgpu_port, p->results);
    for (int i = 0; i < p->results; i++) {
        p->result[i] = port(c, g->outputs[i], g->output_names[i]);
        p->result[i].split = applied->output[i];
        p->result[i].index = applied->index[i];
    }
}

static int copy_constants(struct compile *c)
{
    MGPU_TRY(
        mgpu_alloc(&c->p->constants, (uint64_t)c->p->bytes[MGPU_BUFFER_CONSTANTS], "constants"));
    for (int i = 0; i < c->g->value_count; i++) {
        const struct mgpu_value *v = c->g->values[i];
        const struct mgpu_home *h = &c->storage.home[v->id];
        if (v->kind == MGPU_VALUE_CONSTANT && h->pinned && mgpu_value_bytes(v))
            memcpy((char *)c->p->constants + h->offset, v->data, (size_t)mgpu_value_bytes(v));
    }
    return 0;
}

/* ---- The whole ------------------------------------------------------------------------------- */

static void list_instructions(struct compile *c)
{
    int n = 0;
    for (int i = 0; i < c->g->node_count; i++)
        n += c->live[i] && !mgpu_is_view(c->g->nodes[i]);
    c->p->instruction = MGPU_NEW_ARRAY(c->p->arena, struct mgpu_instruction, n);
    for (int i = 0; i < c->g->node_count; i++)
        if (c->live[i] && !mgpu_is_view(c->g->nodes[i]))
            describe(c, &c->p->instruction[c->p->instructions++], c->g->nodes[i]);
}

static int prepare_all(struct compile *c)
{
    int64_t *workspace = mgpu_xcalloc((size_t)c->p->instructions, sizeof *workspace);
    int rc = 0;
    for (int k = 0; k < c->p->instructions && rc == 0; k++) {
        struct mgpu_instruction *in = &c->p->instruction[k];
        if (communicates(in->node))
            prepare_collective(c, in);
        else
            rc = prepare_kernel(c, in, &workspace[k]);
    }
    if (rc == 0)
        place_arena(c, workspace);
    free(workspace);
    return rc;
}

static int build(struct compile *c, const struct mgpu_applied *applied)
{
    find_live(c);
    find_idle(c);
    mgpu_storage_assign(&c->storage, c->g, c->live, c->options->store, c->p->bytes);
    list_instructions(c);
    MGPU_TRY(prepare_all(c));
    refresh_offsets(c);
    add_events(c);
    make_events(c->p);
    make_ports(c, applied);
    MGPU_TRY(copy_constants(c));
    return mgpu_program_check(c->p);
}

int mgpu_optimize(struct mgpu_graph *g, const struct mgpu_backend *backend)
{
    if (g->updates_early)
        mgpu_update_by_products(g, backend);
    if (backend->biases_apart)
        MGPU_TRY(mgpu_biases_apart(g));
    if (backend->most_parts)
        MGPU_TRY(mgpu_narrow_concats(g, backend->most_parts));
    mgpu_fuse(g, backend);
    MGPU_TRY(mgpu_compute_again(g, backend));
    MGPU_TRY(mgpu_choose_layouts(g, backend));
    if (backend->ends)
        mgpu_finish_products(g, backend);
    return 0;
}

int mgpu_compile(struct mgpu_program **out, struct mgpu_graph *g,
                 const struct mgpu_applied *applied, const struct mgpu_compile_options *options)
{
    struct mgpu_program *p = mgpu_xcalloc(1, sizeof *p);
    *out = NULL;
    p->arena = mgpu_arena_new();
    p->graph = g;
    p->early = g->updates_early;
    int rc = mgpu_optimize(g, options->backend);
    if (rc == 0 && p->early)
        mgpu_update_early(g);
    if (rc == 0)
        rc = mgpu_storage_separate(g);
    struct compile c = {.p = p, .g = g, .options = options};
    c.live = mgpu_xcalloc((size_t)g->node_count, sizeof *c.live);
    c.idle = mgpu_xcalloc((size_t)g->node_count, sizeof *c.idle);
    if (rc == 0)
        rc = build(&c, applied);
    free(c.live);
    free(c.idle);
    mgpu_storage_free(&c.storage);
    if (rc < 0)
        mgpu_program_free(p);
    else
        *out = p;
    return rc;
}

void mgpu_program_free(struct mgpu_program *p)
{
    if (!p)
        return;
    for (int k = 0; k < p->instructions; k++) {
        struct mgpu_instruction *in = &p->instruction[k];
        if (in->kernel && in->kernel->release)
            in->kernel->release(in->state);
    }
    mgpu_free(p->constants);
    mgpu_graph_free(p->graph);
    mgpu_arena_free(p->arena);
    free(p);
}

void mgpu_program_bind(struct mgpu_program *p, void *const buffer[MGPU_BUFFERS])
{
    for (int k = 0; k < p->instructions; k++) {
        struct mgpu_instruction *in = &p->instruction[k];
        for (int i = 0; i < in->operands; i++) {
            const struct mgpu_operand *o = &in->operand[i];
            char *base = o->buffer == MGPU_BUFFER_CONSTANTS && !buffer[o->buffer]
                             ? p->constants
                             : buffer[o->buffer];
            void *at = o->bytes < 0 ? NULL : base + o->offset;
            if (i < in->inputs + in->outputs)
                in->tensor[i].data = at;
            else
                in->launch.workspace = at;
        }
        if (in->queue != MGPU_QUEUE_COMMUNICATION)
            continue;
        in->collective.parts = in->inputs ? in->inputs : in->outputs;
        in->collective.part = in->part;
        for (int i = 0; i < in->collective.parts; i++)
            in->part[i] = (struct mgpu_part){
                .data = in->tensor[i].data,
                .count = mgpu_value_count(in->inputs ? in->node->input[i] : in->node->output[i])};
        if (in->outputs)
            in->collective.out = (struct mgpu_part){.data = in->tensor[in->inputs].data,
                                                    .count = mgpu_value_count(in->node->output[0])};
    }
}
