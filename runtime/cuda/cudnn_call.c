/* Nodes that cuDNN's graphs run: convolutions, with a bias and a limit behind them, and attention
 * in half types. Generated kernels have the others, for these pass over memory as often, and
 * cuDNN 9.19 has
 *
 *     pooling       engines for channels-last alone, indices of 8 bits for windows of some sizes
 *     batch_norm    none with limits before the gradient, which would be a pass of its own
 *     group_norm    one for whole rows, and none for what stands before and behind them
 *     reduce        none for sums over all but the channels
 *
 * Statistics in a convolution's epilogue and a norm in its prologue have engines for float16 on
 * both sides and for bfloat16 forward alone: backward would read what forward then never stores. */
#include "runtime/base/status.h"
#include "runtime/cuda/cudnn_build.h"
#include "runtime/cuda/cudnn_plan.h"
#include "runtime/cuda/library_private.h"
#include "runtime/ops/conv.h"

#include <stdlib.h>
#include <string.h>

enum { CANDIDATES = 5, ALIGNMENT = 256, OPERANDS = MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS };

static const struct mgpu_cudnn_builder *const tables[] = {mgpu_cudnn_conv, mgpu_cudnn_attention,
                                                          NULL};

/* What equal nodes share, in the library's list: a graph, and a plan of it by this candidate. */
struct mgpu_cudnn_shared {
    struct mgpu_cudnn_shared *next;
    struct mgpu_cudnn_graph graph;
    struct mgpu_cudnn_plan plan;
    int candidate, users;
};

struct state {
    struct mgpu_cudnn_shared *shared;
    float number[MGPU_CUDNN_NUMBERS];    /* no part of a plan */
    cudnnBackendDescriptor_t pack;       /* NULL: not bound yet */
    void *operand[OPERANDS], *workspace; /* where they lay in the last run */
};

/* ---- Which nodes ----------------------------------------------------------------------------- */

static const struct mgpu_cudnn_builder *builder_of(const struct mgpu_node *node)
{
    for (int t = 0; tables[t]; t++)
        for (const struct mgpu_cudnn_builder *b = tables[t]; b->op; b++)
            if (!strcmp(b->op, node->op->name) && (!b->accepts || b->accepts(node)))
                return b;
    return NULL;
}

/* cuDNN has no tensors without elements, nor of other types. */
static bool knows_operands(const struct mgpu_node *node)
{
    cudnnDataType_t type;
    for (int i = 0; i < node->inputs + node->outputs; i++) {
        const struct mgpu_value *v = mgpu_library_operand(node, i);
        if (v && (!mgpu_cudnn_has_type(v->type, &type) || mgpu_value_count(v) == 0 ||
                  v->rank > MGPU_CUDNN_RANK))
            return false;
    }
    return true;
}

static bool accepts(const struct mgpu_node *node)
{
    return builder_of(node) && knows_operands(node);
}

/* A limit of 0 behind a convolution. */
static bool has_end(const struct mgpu_node *node)
{
    return node->op == &mgpu_op_conv && ((const struct mgpu_conv_attrs *)node->attrs)->relu;
}

static bool is_image(const struct mgpu_node *node, int i)
{
    return builder_of(node)->images && mgpu_library_operand(node, i)->rank > 2;
}

/* ---- Plans ----------------------------------------------------------------------------------- */

static struct mgpu_cudnn_rules rules_of(const struct mgpu_library_call *call)
{
    const struct mgpu_library_options *o = &call->library->options;
    return (struct mgpu_cudnn_rules){
        .tensor_cores = mgpu_library_tensor_cores(call->library, call->node->input[0]->type),
        .winograd = !o->exact,
        .any_order = !o->deterministic,
        .workspace = o->workspace > 0 ? o->workspace : INT64_MAX,
    };
}

/* Where the graph's own scratch begins in the workspace. */
static int64_t scratch_at(const struct mgpu_cudnn_shared *s)
{
    return (s->plan.workspace + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static int build(const struct mgpu_library_call *call, struct mgpu_cudnn_graph *g)
{
    mgpu_cudnn_graph_begin(g, &call->library->dnn);
    builder_of(call->node)->build(g, call->node);
    return mgpu_cudnn_graph_end(g);
}

/* Candidate `wanted`, or the first that gives a plan where it is -1. */
static int make_plan(const struct mgpu_library_call *call, const struct mgpu_cudnn_graph *g,
                     int wanted, struct mgpu_cudnn_plan *plan)
{
    const struct mgpu_cudnn *dnn = &call->library->dnn;
    struct mgpu_cudnn_rules rules = rules_of(call);
    struct mgpu_cudnn_engines engines;
    MGPU_TRY(mgpu_cudnn_engines_find(&engines, g, &rules));
    int first = wanted < 0 ? 0 : wanted, last = wanted < 0 ? engines.count - 1 : wanted;
    int rc = mgpu_fail(MGPU_EUNSUPPORTED, "cuDNN: there is no engine %d, only %d", wanted,
                       engines.count);
    for (int i = first; i <= last && i < engines.count && rc < 0; i++)
        rc = mgpu_cudnn_plan_make(plan, dnn, engines.config[i], rules.workspace);
    mgpu_cudnn_engines_free(&engines, dnn);
    return rc;
}

static void unbind(struct mgpu_library_call *call)
{
    struct state *s = call->state;
    if (s->pack)
        call->library->dnn.api.cudnnBackendDestroyDescriptor(s->pack);
    s->pack = NULL;
}

static void leave(struct mgpu_library_call *call)
{
    struct state *s = call->state;
    struct mgpu_cudnn_shared **at = &call->library->shared, *old = s->shared;
    unbind(call); /* where scratch begins is the plan's */
    s->shared = NULL;
    if (!old || --old->users > 0)
        return;
    while (*at != old)
        at = &(*at)->next;
    *at = old->next;
    mgpu_cudnn_plan_free(&old->plan, &call->library->dnn);
    mgpu_cudnn_graph_free(&old->graph);
    free(old);
}

/* The call uses that plan of the graph from now on; it is made where nobody has it yet. The graph
 * is taken, unless this fails. */
static int join(struct mgpu_library_call *call, struct mgpu_cudnn_graph *g, int candidate)
{
    struct state *s = call->state;
    struct mgpu_cudnn_shared *shared = call->library->shared;
    struct mgpu_cudnn_plan plan;
    while (shared && (shared->candidate != candidate || strcmp(shared->graph.text, g->text)))
        shared = shared->next;
    if (!shared)
        MGPU_TRY(make_plan(call, g, candidate, &plan));
    memcpy(s->number, g->number, sizeof s->number);
    if (shared) {
        mgpu_cudnn_graph_free(g);
    } else {
        shared = mgpu_xcalloc(1, sizeof *shared);
        *shared = (struct mgpu_cudnn_shared){call->library->shared, *g, plan, candidate, 0};
        call->library->shared = shared;
    }
    shared->users++; /* before it leaves what may be the same */
    leave(call);
    s->shared = shared;
    call->workspace = scratch_at(shared) + shared->graph.scratch;
    return 0;
}

/* ---- The call -------------------------------------------------------------------------------- */

static void release(struct mgpu_library_call *call)
{
    leave(call);
    free(call->state);
}

static int ask(struct mgpu_library_call *call)
{
    struct mgpu_cudnn_rules rules = rules_of(call);
    struct mgpu_cudnn_engines engines;
    struct mgpu_cudnn_graph g;
    int rc = build(call, &g);
    if (rc == 0)
        rc = mgpu_cudnn_engines_find(&engines, &g, &rules);
    if (rc == 0)
        mgpu_cudnn_engines_free(&engines, &call->library->dnn);
    mgpu_cudnn_graph_free(&g);
    return rc;
}

static int prepare(struct mgpu_library_call *call)
{
    struct mgpu_cudnn_graph g;
    call->state = mgpu_xcalloc(1, sizeof(struct state));
    int rc = build(call, &g);
    int known = rc == 0 ? mgpu_library_remembered(call->library, g.text) : -1;
    if (rc == 0)
        rc = join(call, &g, known);
    if (rc < 0 && known >= 0)
        rc = join(call, &g, -1);
    if (rc < 0)
        mgpu_cudnn_graph_free(&g);
    return rc;
}

static int choose(struct mgpu_library_call *call, int candidate)
{
    struct mgpu_cudnn_graph g;
    int rc = build(call, &g);
    if (rc == 0)
        rc = join(call, &g, candidate);
    if (rc < 0)
        mgpu_cudnn_graph_free(&g);
    return rc;
}

static const char *words(struct mgpu_library_call *call)
{
    return ((struct state *)call->state)->shared->graph.text;
}

static int candidates(struct mgpu_library_call *call)
{
    (void)call;
    return CANDIDATES;
}

/* Where a tensor of the graph lies. */
static void *address(struct state *s, int64_t id, void *const *operand, void *workspace)
{
    if (id == MGPU_CUDNN_SCRATCH)
        return (char *)workspace + scratch_at(s->shared);
    return id < MGPU_CUDNN_NUMBER ? operand[id - 1] : &s->number[id - MGPU_CUDNN_NUMBER];
}

/* Packs are made again only when an operand lies elsewhere than in the last run. */
static int bind(struct mgpu_library_call *call, void *const *operand, void *workspace)
{
    struct state *s = call->state;
    size_t bytes = sizeof *operand * (size_t)(call->node->inputs + call->node->outputs);
    const struct mgpu_cudnn_graph *g = &s->shared->graph;
    void *data[MGPU_CUDNN_TENSORS];
    if (s->pack && s->workspace == workspace && !memcmp(s->operand, operand, bytes))
        return 0;
    unbind(call);
    for (int i = 0; i < g->tensors; i++)
        data[i] = address(s, g->id[i], operand, workspace);
    MGPU_TRY(mgpu_cudnn_bind(&s->pack, &call->library->dnn, g->tensors, g->id, data, workspace));
    memcpy(s->operand, operand, bytes);
    s->workspace = workspace;
    return 0;
}

static int run(struct mgpu_library_call *call, void *stream, void *const *operand, void *workspace)
{
    struct state *s = call->state;
    const struct mgpu_cudnn *dnn = &call->library->dnn;
    MGPU_TRY(bind(call, operand, workspace));
    MGPU_TRY(mgpu_dnn_status(&dnn->api, dnn->api.cudnnSetStream(dnn->handle, stream),
                             "turning to a stream (cudnnSetStream)"));
    return mgpu_cudnn_plan_run(&s->shared->plan, dnn, s->pack);
}

const struct mgpu_library_family mgpu_library_cudnn = {
    .accepts = accepts,
    .is_image = is_image,
    .has_end = has_end,
    .ask = ask,
    .prepare = prepare,
    .release = release,
    .run = run,
    .words = words,
    .candidates = candidates,
    .choose = choose,
};
