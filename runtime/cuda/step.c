#include "runtime/cuda/ranks.h"

#include "runtime/base/finite.h"
#include "runtime/base/status.h"
#include "runtime/compile/finite.h"
#include "runtime/cuda/device.h"
#include "runtime/graph/step_scalar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- What a walk does ------------------------------------------------------------------------ */

static struct mgpu_gpu_rank *rank_of(const struct mgpu_walk *walk)
{
    return walk->context;
}

void mgpu_gpu_touches(const struct mgpu_gpu_rank *rank, CUstream stream,
                      const struct mgpu_cuda_access *access, int count)
{
    if (rank->all->gpu.cu.touches)
        rank->all->gpu.cu.touches(stream, access, count);
}

static void tell_operands(const struct mgpu_gpu_rank *rank, const struct mgpu_instruction *in)
{
    struct mgpu_cuda_access access[MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS + 2];
    int n = 0;
    for (int i = 0; i < in->operands && n < MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS + 1; i++) {
        const struct mgpu_operand *o = &in->operand[i];
        void *at = i < in->inputs + in->outputs ? in->tensor[i].data : in->launch.workspace;
        if (o->bytes > 0)
            access[n++] = (struct mgpu_cuda_access){(CUdeviceptr)at, o->bytes, o->write};
    }
    if (in->node->origin.role == MGPU_UPDATE)
        access[n++] = (struct mgpu_cuda_access){rank->all->stop, 4, false};
    mgpu_gpu_touches(rank, rank->compute, access, n);
}

static int compute(struct mgpu_walk *walk, int k)
{
    char text[MGPU_VALUE_TEXT];
    struct mgpu_gpu_rank *rank = rank_of(walk);
    struct mgpu_instruction *in = &walk->program->instruction[k];
    const struct mgpu_gpu_pass *pass = rank->now->pass_of[k];
    if (pass && pass->at != k)
        return 0;
    if (pass) {
        MGPU_TRY(mgpu_gpu_run_pass(rank, pass));
    } else {
        in->launch.queue = &rank->queue;
        tell_operands(rank, in);
        MGPU_TRY(mgpu_prefix(in->kernel->run(&in->launch), "%s",
                             mgpu_origin_text(text, &in->node->origin)));
    }
    return mgpu_gpu_mark(rank, k);
}

static int communicate(struct mgpu_walk *walk, int k)
{
    return mgpu_gpu_post(rank_of(walk), k);
}

/* The host waits for all streams in the end. */
static int wait(struct mgpu_walk *walk, const struct mgpu_instruction *by, int k)
{
    struct mgpu_gpu_rank *rank = rank_of(walk);
    const struct mgpu_instruction *in = &walk->program->instruction[k];
    if (rank->now->state[k] != MGPU_GPU_STARTED)
        return MGPU_LATER;
    if (!by || (by->queue == MGPU_QUEUE_COMMUNICATION && by->group == in->group))
        return 0;
    bool computes = by->queue == MGPU_QUEUE_COMPUTE;
    CUstream stream = computes ? rank->compute : rank->communicate[by->group];
    GPU_TRY(&rank->all->gpu, cuStreamWaitEvent, (stream, rank->now->event[in->signal], 0));
    return computes ? mgpu_gpu_mark(rank, k) : 0;
}

static int look_at(struct mgpu_gpu_rank *rank, const struct mgpu_gpu_kernel *kernel,
                   enum mgpu_buffer buffer, int64_t offset, int64_t bytes)
{
    CUdeviceptr stop = rank->all->stop;
    CUdeviceptr pointer[] = {(CUdeviceptr)rank->buffer[buffer] + (CUdeviceptr)offset, stop};
    struct mgpu_cuda_access access[] = {{pointer[0], bytes, false}, {stop, 4, true}};
    mgpu_gpu_touches(rank, rank->compute, access, 2);
    return mgpu_gpu_submit(&rank->queue, kernel, pointer);
}

static int follow(const struct mgpu_gpu_rank *rank, const struct mgpu_gpu_rank *other)
{
    if (other != rank)
        GPU_TRY(&rank->all->gpu, cuStreamWaitEvent, (rank->compute, other->looked, 0));
    return 0;
}

/* What is not finite raises `stop`. */
static int look(struct mgpu_gpu_rank *rank)
{
    const struct mgpu_program *p = rank->now->program;
    const struct mgpu_execution *run = rank->run;
    if (rank->rank > 0)
        MGPU_TRY(follow(rank, rank - 1));
    for (int i = 0; i < p->results && !run->idle; i++) {
        const struct mgpu_port *r = &p->result[i];
        if (r->index < run->losses)
            MGPU_TRY(look_at(rank, &rank->now->finite_loss, MGPU_BUFFER_RESULTS, r->offset,
                             (int64_t)mgpu_dtype_size(r->type)));
    }
    if (run->check_gradients && rank->bytes[MGPU_BUFFER_GRADIENTS])
        MGPU_TRY(look_at(rank, &rank->now->finite_gradients, MGPU_BUFFER_GRADIENTS, 0,
                         rank->bytes[MGPU_BUFFER_GRADIENTS]));
    if (rank->all->count > 1)
        GPU_TRY(&rank->all->gpu, cuEventRecord, (rank->looked, rank->compute));
    rank->checked = true;
    return 0;
}

/* Updates look at `stop` when all ranks have raised it, or not. */
static int check(struct mgpu_walk *walk, const struct mgpu_instruction *update)
{
    (void)update;
    struct mgpu_gpu_rank *rank = rank_of(walk);
    const struct mgpu_gpu_rank *last = &rank->all->rank[rank->all->count - 1];
    if (!rank->checked && rank->rank > 0 && !rank[-1].checked)
        return MGPU_LATER;
    if (!rank->checked)
        MGPU_TRY(look(rank));
    if (!last->checked)
        return MGPU_LATER;
    MGPU_TRY(follow(rank, last));
    return mgpu_gpu_mark(rank, -1);
}

static const struct mgpu_walk_ops ops = {
    .compute = compute, .communicate = communicate, .wait = wait, .check = check};

/* ---- Running statistics ---------------------------------------------------------------------- */

/* Whether the batch changes nothing where something is not finite, while the run goes on. */
static bool undoes(const struct mgpu_gpu_rank *rank)
{
    return rank->run->check_gradients && rank->run->not_finite && rank->statistics_bytes;
}

static bool keeps(const struct mgpu_gpu_rank *rank)
{
    return undoes(rank) && !rank->run->later_piece;
}

static CUdeviceptr statistics_of(const struct mgpu_gpu_rank *rank)
{
    return (CUdeviceptr)rank->buffer[MGPU_BUFFER_FIXED] + (CUdeviceptr)rank->statistics;
}

static int keep(const struct mgpu_gpu_rank *rank, CUstream stream)
{
    if (keeps(rank))
        GPU_TRY(&rank->all->gpu, cuMemcpyDtoDAsync,
                (rank->kept, statistics_of(rank), (size_t)rank->statistics_bytes, stream));
    return 0;
}

/* After each piece, for the next may never come: that of a batch which was given too early. */
static int put_back(const struct mgpu_gpu_rank *rank, CUstream stream)
{
    const struct mgpu_gpu_queue queue = {.gpu = &rank->all->gpu, .stream = stream};
    int64_t bytes = rank->statistics_bytes;
    CUdeviceptr pointer[] = {statistics_of(rank), rank->kept, rank->all->stop};
    struct mgpu_cuda_access access[] = {
        {pointer[0], bytes, true}, {pointer[1], bytes, false}, {pointer[2], 4, false}};
    if (!undoes(rank))
        return 0;
    mgpu_gpu_touches(rank, stream, access, 3);
    return mgpu_gpu_submit(&queue, &rank->put_back, pointer);
}

/* ---- One run of all ranks -------------------------------------------------------------------- */

/* What came up for this run goes to where kernels read it. From then on the next inputs may come
 * up. */
static int take_inputs(const struct mgpu_gpu_rank *rank, CUstream stream)
{
    if (rank->run->idle || !rank->input_bytes)
        return 0;
    GPU_TRY(&rank->all->gpu, cuStreamWaitEvent, (stream, rank->sent, 0));
    GPU_TRY(&rank->all->gpu, cuMemcpyDtoDAsync,
            ((CUdeviceptr)rank->buffer[MGPU_BUFFER_INPUTS], rank->ahead, (size_t)rank->input_bytes,
             stream));
    GPU_TRY(&rank->all->gpu, cuEventRecord, (rank->taken, stream));
    return 0;
}

/* In place of what came up for them. */
static int take_carried(const struct mgpu_gpu_rank *rank, CUstream stream)
{
    for (int i = 0; i < rank->run->carries; i++) {
        const struct mgpu_carry *c = &rank->run->carry[i];
        GPU_TRY(&rank->all->gpu, cuMemcpyDtoDAsync,
                ((CUdeviceptr)rank->buffer[MGPU_BUFFER_INPUTS] + (CUdeviceptr)c->input,
                 (CUdeviceptr)rank->buffer[MGPU_BUFFER_RESULTS] + (CUdeviceptr)c->result,
                 (size_t)c->bytes, stream));
    }
    return 0;
}

static int take_scalars(const struct mgpu_gpu_rank *rank, CUstream stream)
{
    GPU_TRY(&rank->all->gpu, cuMemcpyHtoDAsync,
            ((CUdeviceptr)rank->buffer[MGPU_BUFFER_SCALARS],
             rank->pinned[MGPU_BUFFER_SCALARS][rank->given % MGPU_GPU_RUNS],
             sizeof(double) * MGPU_SCALARS, stream));
    return 0;
}

/* What each run has of its own: outside of the graph, which cannot wait for what is outside of it
 * and whose copies have fixed places. Where the run before is not finished, what it raised `stop`
 * for stops this one as well. */
static int bring(const struct mgpu_gpu_rank *rank)
{
    CUstream first = rank->all->rank[0].compute;
    MGPU_TRY(take_inputs(rank, first));
    MGPU_TRY(take_carried(rank, first));
    MGPU_TRY(take_scalars(rank, first));
    if (rank->rank == 0 && rank->given == rank->finished && !rank->run->later_piece)
        GPU_TRY(&rank->all->gpu, cuMemsetD8Async, (rank->all->stop, 0, 4, first));
    return 0;
}

/* `stop` stands behind the first rank's results. */
static int bring_back(const struct mgpu_gpu_rank *rank)
{
    GPU_TRY(&rank->all->gpu, cuMemcpyDtoHAsync,
            (rank->pinned[MGPU_BUFFER_RESULTS][rank->given % MGPU_GPU_RUNS],
             (CUdeviceptr)rank->buffer[MGPU_BUFFER_RESULTS],
             (size_t)(rank->bytes[MGPU_BUFFER_RESULTS] + 4), rank->all->rank[0].compute));
    return 0;
}

static void begin_walk(struct mgpu_gpu_rank *rank)
{
    rank->walked = rank->checked = false;
    rank->queue.stop = rank->all->stop;
    rank->walk = (struct mgpu_walk){
        .ops = &ops, .context = rank, .program = rank->now->program, .run = rank->run};
}

static int begin_rank(struct mgpu_gpu_rank *rank)
{
    for (int k = 0; k < rank->now->program->instructions; k++)
        rank->now->state[k] = MGPU_GPU_AHEAD;
    begin_walk(rank);
    return mgpu_gpu_begin_marks(rank);
}

static int begin_all(struct mgpu_gpu_ranks *all)
{
    for (int r = 0; r < all->count; r++)
        MGPU_TRY(begin_rank(&all->rank[r]));
    return 0;
}

/* Each rank goes on as far as it can; who waits for others comes again. */
static int walk_all(struct mgpu_gpu_ranks *all)
{
    int left = all->count;
    while (left > 0) {
        bool moves = false;
        for (int r = 0; r < all->count; r++) {
            struct mgpu_gpu_rank *rank = &all->rank[r];
            int before = rank->walk.next, rc = rank->walked ? 0 : mgpu_walk_on(&rank->walk);
            MGPU_TRY(rc);
            moves = moves || rank->walk.next > before || (rc == 0 && !rank->walked);
            left -= rc == 0 && !rank->walked;
            rank->walked = rc == 0;
        }
        if (!moves)
            return mgpu_fail(MGPU_EINTERNAL, "the ranks wait for one another");
    }
    return 0;
}

/* Every stream follows the first rank's, and that one the others. */
static int fork_streams(struct mgpu_gpu_ranks *all)
{
    CUstream first = all->rank[0].compute;
    GPU_TRY(&all->gpu, cuEventRecord, (all->rank[0].here, first));
    for (int r = 0; r < all->count; r++)
        for (int g = -1; g <= all->places; g++) {
            CUstream s = g < 0 ? all->rank[r].compute : all->rank[r].communicate[g];
            if (s && s != first)
                GPU_TRY(&all->gpu, cuStreamWaitEvent, (s, all->rank[0].here, 0));
        }
    return 0;
}

static int join_streams(struct mgpu_gpu_ranks *all)
{
    CUstream first = all->rank[0].compute;
    for (int r = 0; r < all->count; r++)
        for (int g = -1; g <= all->places; g++) {
            CUstream s = g < 0 ? all->rank[r].compute : all->rank[r].communicate[g];
            if (!s || s == first)
                continue;
            GPU_TRY(&all->gpu, cuEventRecord, (all->rank[r].here, s));
            GPU_TRY(&all->gpu, cuStreamWaitEvent, (first, all->rank[r].here, 0));
        }
    return 0;
}

static int submit(struct mgpu_gpu_ranks *all)
{
    CUstream first = all->rank[0].compute;
    for (int r = 0; r < all->count; r++)
        MGPU_TRY(keep(&all->rank[r], first));
    MGPU_TRY(fork_streams(all));
    MGPU_TRY(begin_all(all));
    MGPU_TRY(walk_all(all));
    MGPU_TRY(join_streams(all));
    for (int r = 0; r < all->count; r++)
        MGPU_TRY(put_back(&all->rank[r], first));
    return 0;
}

/* ---- Graphs ---------------------------------------------------------------------------------- */

/* What decides which instructions run. */
struct key {
    const struct mgpu_program *program;
    int losses;
    bool last_piece, idle, contributes, check_gradients, timed, keeps, undoes;
};

struct mgpu_gpu_graph {
    struct key key[MGPU_MAX_RANKS];
    bool known;       /* it ran once, without a graph */
    CUgraphExec exec; /* NULL: not captured yet */
    struct mgpu_gpu_marks marks[MGPU_MAX_RANKS];
};

static struct key key_of(const struct mgpu_gpu_rank *rank)
{
    struct key k;
    memset(&k, 0, sizeof k); /* compared as bytes */
    k.program = rank->now->program;
    k.losses = rank->run->losses;
    k.last_piece = rank->run->last_piece;
    k.idle = rank->run->idle;
    k.contributes = rank->run->contributes;
    k.check_gradients = rank->run->check_gradients;
    k.timed = rank->run->times != NULL;
    k.keeps = keeps(rank);
    k.undoes = undoes(rank);
    return k;
}

static struct mgpu_gpu_graph *find_graph(struct mgpu_gpu_ranks *all)
{
    struct key key[MGPU_MAX_RANKS];
    memset(key, 0, sizeof key);
    for (int r = 0; r < all->count; r++)
        key[r] = key_of(&all->rank[r]);
    for (int i = 0; i < all->graphs; i++)
        if (!memcmp(all->graph[i]->key, key, sizeof key))
            return all->graph[i];
    struct mgpu_gpu_graph *new = mgpu_xcalloc(1, sizeof *new);
    memcpy(new->key, key, sizeof key);
    all->graph = mgpu_grow(all->graph, (size_t)all->graphs, sizeof(struct mgpu_gpu_graph *));
    all->graph[all->graphs++] = new;
    return new;
}

static int capture(struct mgpu_gpu_ranks *all, CUgraphExec *exec)
{
    CUgraph graph = NULL;
    CUstream first = all->rank[0].compute;
    GPU_TRY(&all->gpu, cuStreamBeginCapture, (first, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    all->capturing = true;
    int rc = submit(all);
    all->capturing = false;
    CUresult result = all->gpu.cu.cuStreamEndCapture(first, &graph);
    if (rc == 0)
        rc = mgpu_cuda_status(&all->gpu.cu, result, "cuStreamEndCapture");
    if (rc == 0)
        rc = mgpu_cuda_status(&all->gpu.cu, all->gpu.cu.cuGraphInstantiateWithFlags(exec, graph, 0),
                              "cuGraphInstantiateWithFlags");
    if (graph)
        all->gpu.cu.cuGraphDestroy(graph);
    return rc;
}

/* Waits for all that was given: memory may go then. */
static void settle(struct mgpu_gpu_ranks *all)
{
    for (int r = 0; r < all->count && all->rank[r].communicate; r++) /* which were opened */
        for (int g = -1; g <= all->places; g++) {
            CUstream s = g < 0 ? all->rank[r].compute : all->rank[r].communicate[g];
            if (s)
                all->gpu.cu.cuStreamSynchronize(s);
        }
}

/* The first time runs without a graph: what is loaded then need not be captured. */
static int run(struct mgpu_gpu_ranks *all)
{
    struct mgpu_gpu_graph *graph = find_graph(all);
    for (int r = 0; r < all->count; r++) {
        all->rank[r].marks = all->rank[r].run->times ? &graph->marks[r] : NULL;
        MGPU_TRY(bring(&all->rank[r]));
    }
    if (graph->known && !graph->exec && !all->no_capture && capture(all, &graph->exec) < 0) {
        mgpu_warn(
            "cuda:%d: the run goes on and gives the same results, but its steps are submitted "
            "call by call, which takes longer, for they were not captured as a graph (%.*s)",
            all->gpu.index, mgpu_gpu_error_length(), mgpu_error());
        all->no_capture = true;
        graph->exec = NULL;
    }
    graph->known = true;
    if (graph->exec)
        GPU_TRY(&all->gpu, cuGraphLaunch, (graph->exec, all->rank[0].compute));
    else
        MGPU_TRY(submit(all));
    for (int r = 0; r < all->count; r++)
        MGPU_TRY(bring_back(&all->rank[r]));
    GPU_TRY(&all->gpu, cuEventRecord,
            (all->done[all->rank[0].given % MGPU_GPU_RUNS], all->rank[0].compute));
    return 0;
}

void mgpu_gpu_graphs_free(struct mgpu_gpu_ranks *all)
{
    settle(all);
    for (int i = 0; i < all->graphs; i++) {
        if (all->graph[i]->exec)
            all->gpu.cu.cuGraphExecDestroy(all->graph[i]->exec);
        for (int r = 0; r < all->count; r++)
            mgpu_gpu_free_marks(&all->gpu, &all->graph[i]->marks[r]);
        free(all->graph[i]);
    }
    free(all->graph);
}

/* ---- Values that are not finite -------------------------------------------------------------- */

static int fetch(const struct mgpu_gpu_rank *rank, void *to, const void *from, int64_t bytes)
{
    GPU_TRY(&rank->all->gpu, cuMemcpyDtoHAsync,
            (to, (CUdeviceptr)from, (size_t)bytes, rank->compute));
    GPU_TRY(&rank->all->gpu, cuStreamSynchronize, (rank->compute));
    return 0;
}

static int outputs_finite(const struct mgpu_gpu_rank *rank, const struct mgpu_instruction *in,
                          bool *finite)
{
    *finite = true;
    for (int i = in->inputs; i < in->inputs + in->outputs && *finite; i++) {
        const struct mgpu_tensor *t = &in->tensor[i];
        void *data;
        if (!t->data || in->operand[i].bytes <= 0)
            continue;
        MGPU_TRY(mgpu_alloc(&data, (uint64_t)in->operand[i].bytes, "a node's output"));
        int rc = fetch(rank, data, t->data, in->operand[i].bytes);
        *finite = rc == 0 && mgpu_all_finite(data, t->type, in->operand[i].bytes);
        mgpu_free(data);
        MGPU_TRY(rc);
    }
    return 0;
}

static const char SOMETHING[] = "the loss or a gradient";

/* What is not finite then is known when all has been computed. */
int mgpu_gpu_name_first(struct mgpu_gpu_rank *rank)
{
    char text[MGPU_VALUE_TEXT];
    bool finite = true;
    const struct mgpu_program *p = rank->now->program;
    const struct mgpu_engine_ops *engine = rank->engine.ops;
    const struct mgpu_instruction *first = NULL;
    begin_walk(rank);
    GPU_TRY(&rank->all->gpu, cuStreamSynchronize, (rank->all->rank[0].compute)); /* see clear */
    MGPU_TRY(take_scalars(rank, rank->compute));
    MGPU_TRY(take_inputs(rank, rank->compute));
    for (int k = 0; k < p->instructions && p->instruction[k].node->origin.role != MGPU_UPDATE;
         k++) {
        const struct mgpu_instruction *in = &p->instruction[k];
        if (mgpu_skipped(in, rank->run) || in->queue != MGPU_QUEUE_COMPUTE)
            continue;
        MGPU_TRY(compute(&rank->walk, k));
        if (!first)
            MGPU_TRY(outputs_finite(rank, in, &finite));
        first = first || finite ? first : in;
    }
    MGPU_TRY(
        engine->download(&rank->engine, MGPU_BUFFER_RESULTS, 0, rank->bytes[MGPU_BUFFER_RESULTS]));
    MGPU_TRY(engine->download(&rank->engine, MGPU_BUFFER_GRADIENTS, 0,
                              rank->bytes[MGPU_BUFFER_GRADIENTS]));
    const char *what = mgpu_find_not_finite(text, p, rank->host, rank->run, NULL);
    return first ? mgpu_not_finite(what ? what : SOMETHING, first, false) : 0;
}

static int judge(const struct mgpu_gpu_rank *rank, int64_t number)
{
    const struct mgpu_gpu_rank *first = &rank->all->rank[0];
    const char *results = first->pinned[MGPU_BUFFER_RESULTS][number];
    uint32_t stop;
    memcpy(&stop, results + first->bytes[MGPU_BUFFER_RESULTS], sizeof stop);
    if (!stop)
        return 0;
    if (!rank->run->not_finite)
        return mgpu_fail(MGPU_EINVALID, "%s is not finite", SOMETHING);
    *rank->run->not_finite = true;
    return 0;
}

int mgpu_gpu_finish(struct mgpu_gpu_rank *rank)
{
    if (rank->finished == rank->given)
        return 0;
    int64_t number = rank->finished++ % MGPU_GPU_RUNS;
    rank->run = &rank->of[number];
    rank->host[MGPU_BUFFER_RESULTS] = rank->pinned[MGPU_BUFFER_RESULTS][number];
    MGPU_TRY(mgpu_gpu_enter(&rank->all->gpu));
    GPU_TRY(&rank->all->gpu, cuEventSynchronize, (rank->all->done[number]));
    MGPU_TRY(mgpu_gpu_add_times(rank));
    rank->marks = NULL;
    return judge(rank, number);
}

void mgpu_gpu_submit_step(struct mgpu_gpu_ranks *all)
{
    int rc = mgpu_gpu_enter(&all->gpu);
    if (rc == 0)
        rc = run(all);
    if (rc < 0)
        settle(all);
    for (int r = 0; r < all->count; r++) {
        all->rank[r].rc = rc;
        all->rank[r].given += rc == 0;
        if (rc < 0)
            snprintf(all->rank[r].text, sizeof all->rank[r].text, "%s", mgpu_error());
    }
}
