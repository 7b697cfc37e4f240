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

struct state {
    struct mgpu_cudnn_graph graph;
    struct mgpu_cudnn_plan plan;
    bool bound;
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
static int64_t scratch_at(const struct state *s)
{
    return (s->plan.workspace + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Candidate `wanted`, or the first that gives a plan where it is -1. */
static int make_plan(struct mgpu_library_call *call, int wanted)
{
    struct state *s = call->state;
    const struct mgpu_cudnn *dnn = &call->library->dnn;
    struct mgpu_cudnn_rules rules = rules_of(call);
    struct mgpu_cudnn_engines engines;
    struct mgpu_cudnn_plan plan;
    MGPU_TRY(mgpu_cudnn_engines_find(&engines, &s->graph, &rules));
    int first = wanted < 0 ? 0 : wanted, last = wanted < 0 ? engines.count - 1 : wanted;
    int rc = mgpu_fail(MGPU_EUNSUPPORTED, "cuDNN: only %d engines", engines.count);
    for (int i = first; i <= last && i < engines.count && rc < 0; i++)
        rc = mgpu_cudnn_plan_make(&plan, dnn, engines.config[i], rules.workspace);
    mgpu_cudnn_engines_free(&engines, dnn);
    if (rc < 0)
        return rc;
    mgpu_cudnn_plan_free(&s->plan, dnn);
    s->plan = plan;
    s->bound = false;
    call->workspace = scratch_at(s) + s->graph.scratch;
    return 0;
}

/* ---- The call -------------------------------------------------------------------------------- */

static void release(struct mgpu_library_call *call)
{
    struct state *s = call->state;
    mgpu_cudnn_plan_free(&s->plan, &call->library->dnn);
    mgpu_cudnn_graph_free(&s->graph);
    free(s);
}

static int build(struct mgpu_library_call *call)
{
    struct state *s = call->state = mgpu_xcalloc(1, sizeof *s);
    mgpu_cudnn_graph_begin(&s->graph, &call->library->dnn);
    builder_of(call->node)->build(&s->graph, call->node);
    return mgpu_cudnn_graph_end(&s->graph);
}

static int ask(struct mgpu_library_call *call)
{
    struct mgpu_cudnn_rules rules = rules_of(call);
    struct mgpu_cudnn_engines engines;
    MGPU_TRY(build(call));
    struct state *s = call->state;
    MGPU_TRY(mgpu_cudnn_engines_find(&engines, &s->graph, &rules));
    mgpu_cudnn_engines_free(&engines, &call->library->dnn);
    return 0;
}

static int prepare(struct mgpu_library_call *call)
{
    MGPU_TRY(build(call));
    struct state *s = call->state;
    int known = mgpu_library_remembered(call->library, s->graph.text);
    return known >= 0 && make_plan(call, known) == 0 ? 0 : make_plan(call, -1);
}

static const char *words(struct mgpu_library_call *call)
{
    return ((struct state *)call->state)->graph.text;
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
        return (char *)workspace + scratch_at(s);
    return id < MGPU_CUDNN_NUMBER ? operand[id - 1] : &s->graph.number[id - MGPU_CUDNN_NUMBER];
}

/* Packs are made again only when an operand lies elsewhere than in the last run. */
static int bind(struct mgpu_library_call *call, void *const *operand, void *workspace)
{
    struct state *s = call->state;
    size_t bytes = sizeof *operand * (size_t)(call->node->inputs + call->node->outputs);
    void *data[MGPU_CUDNN_TENSORS];
    if (s->bound && s->workspace == workspace && !memcmp(s->operand, operand, bytes))
        return 0;
    for (int i = 0; i < s->graph.tensors; i++)
        data[i] = address(s, s->graph.id[i], operand, workspace);
    MGPU_TRY(mgpu_cudnn_plan_bind(&s->plan, &call->library->dnn, s->graph.tensors, s->graph.id,
                                  data, workspace));
    memcpy(s->operand, operand, bytes);
    s->workspace = workspace;
    s->bound = true;
    return 0;
}

static int run(struct mgpu_library_call *call, void *stream, void *const *operand, void *workspace)
{
    struct state *s = call->state;
    const struct mgpu_cudnn *dnn = &call->library->dnn;
    MGPU_TRY(bind(call, operand, workspace));
    MGPU_TRY(mgpu_cudnn_status(dnn, dnn->api.cudnnSetStream(dnn->handle, stream), "the stream"));
    return mgpu_cudnn_plan_run(&s->plan, dnn);
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
    .choose = make_plan,
};
