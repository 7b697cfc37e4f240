#include "partitioner/memory.h"

#include "partitioner/cost.h"
#include "runtime/base/status.h"
#include "runtime/compile/program.h"
#include "runtime/graph/step_scalar.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

static void add_up(struct mgpu_memory *m)
{
    m->total = m->weights + m->gradients + m->states + m->fixed + m->activations + m->samples +
               m->constants;
}

/* ---- From a compilation ---------------------------------------------------------------------- */

static bool in_blocks(const struct mgpu_instruction *in)
{
    for (int i = 0; i < in->inputs + in->outputs; i++)
        if (in->tensor[i].block)
            return true;
    return false;
}

/* oneDNN makes products of convolutions whose operands are plain; recurrent layers call it for
 * theirs. */
static struct mgpu_memory_code code_of(const struct mgpu_program *p)
{
    struct mgpu_memory_code code = {.instructions = p->instructions};
    for (int k = 0; k < p->instructions; k++) {
        const struct mgpu_instruction *in = &p->instruction[k];
        enum mgpu_class class = mgpu_class_of(in->node->op);
        bool made = in->kernel && !strcmp(in->kernel->name, "onednn");
        bool conv = made && class == MGPU_CLASS_CONV, recurrent = class == MGPU_CLASS_RNN;
        code.primitives += made;
        code.products |=
            recurrent || (made && class == MGPU_CLASS_GEMM) || (conv && !in_blocks(in));
        code.convolutions |= recurrent || conv;
    }
    return code;
}

static void read_program(struct mgpu_memory *m, const struct mgpu_program *p,
                         const struct mgpu_store_layout *store)
{
    *m = (struct mgpu_memory){
        .weights = store->bytes[MGPU_BUFFER_WEIGHTS],
        .gradients = p->bytes[MGPU_BUFFER_GRADIENTS],
        .states = store->bytes[MGPU_BUFFER_STATES],
        .fixed = store->bytes[MGPU_BUFFER_FIXED],
        .activations = p->bytes[MGPU_BUFFER_ARENA],
        .samples = p->bytes[MGPU_BUFFER_INPUTS] + p->bytes[MGPU_BUFFER_RESULTS],
        .constants = p->bytes[MGPU_BUFFER_CONSTANTS] + MGPU_SCALARS * (int64_t)sizeof(double)};
    m->code = code_of(p);
    m->shared = mgpu_program_may_share(p) ? m->weights + m->states : 0;
    add_up(m);
}

int mgpu_memory_compiled(struct mgpu_memory *out, struct mgpu_graph *whole,
                         const struct mgpu_plan *plan, int rank, int pieces, int threads)
{
    struct mgpu_applied applied;
    struct mgpu_program *program = NULL;
    struct mgpu_store_layout *store = mgpu_store_layout_new();
    struct mgpu_compile_options o = {
        .backend = &mgpu_backend_cpu, .store = store, .threads = threads};
    int before = omp_get_max_threads();
    omp_set_num_threads(threads); /* kernels ask for it when they size their scratch memory */
    int rc = mgpu_plan_apply(whole, plan, rank, pieces, &applied);
    if (rc == 0)
        rc = mgpu_store_add(store, whole);
    if (rc < 0)
        mgpu_graph_free(whole);
    else
        rc = mgpu_compile(&program, whole, &applied, &o);
    if (rc == 0)
        read_program(out, program, store);
    omp_set_num_threads(before);
    mgpu_program_free(program);
    mgpu_store_layout_free(store);
    return rc;
}

/* ---- From tasks ------------------------------------------------------------------------------ */

struct sweep {
    const struct mgpu_task_graph *t;
    const int *place, *owner;
    int device;
    int64_t *change; /* by task: bytes that begin to live there; [tasks]: after the last */
};

static int owner_of(const struct sweep *s, int p)
{
    const struct mgpu_shared *q = &s->t->param[p];
    return s->owner ? s->owner[p] : q->groups ? s->place[q->group[0]] : 0;
}

static int place_of(const struct sweep *s, int task)
{
    const struct mgpu_task *t = &s->t->task[task];
    return t->group >= 0 ? s->place[t->group] : owner_of(s, t->param);
}

static void live(struct sweep *s, int from, int to, int64_t bytes)
{
    s->change[from] += bytes;
    s->change[to + 1] -= bytes;
}

static int value_count(const struct sweep *s)
{
    int values = 0;
    for (int i = 0; i < s->t->edges; i++)
        if (s->t->edge[i].value >= values)
            values = s->t->edge[i].value + 1;
    return values;
}

/* What tasks here make lives until the last task here that needs it; what is sent or arrives, to
 * the end of the step: the runtime cannot tell when communication beside later tasks is over. */
static void own_outputs(struct sweep *s)
{
    int end = s->t->tasks, values = value_count(s);
    int *last = mgpu_xcalloc((size_t)values + 1, sizeof *last); /* by value: last user + 1 */
    int *all = mgpu_xcalloc((size_t)end + 1, sizeof *all);      /* by task: last user */
    int64_t *rest = mgpu_xcalloc((size_t)end + 1, sizeof *rest);
    for (int i = 0; i < end; i++) {
        all[i] = i;
        rest[i] = s->t->task[i].output;
    }
    for (int i = 0; i < s->t->edges; i++) {
        const struct mgpu_edge *e = &s->t->edge[i];
        int until = place_of(s, e->to) == s->device ? e->to : end;
        rest[e->from] -= last[e->value] ? 0 : e->held;
        last[e->value] = until + 1 > last[e->value] ? until + 1 : last[e->value];
        all[e->from] = until > all[e->from] ? until : all[e->from];
    }
    for (int i = 0; i < s->t->edges; i++) {
        const struct mgpu_edge *e = &s->t->edge[i];
        if (last[e->value] && place_of(s, e->from) == s->device)
            live(s, e->from, last[e->value] - 1, e->held);
        last[e->value] = 0;
    }
    for (int i = 0; i < end; i++) {
        if (place_of(s, i) != s->device)
            continue;
        live(s, i, all[i], rest[i]);
        live(s, i, i, s->t->task[i].scratch);
    }
    free(last);
    free(all);
    free(rest);
}

static void arrivals(struct sweep *s)
{
    int values = value_count(s);
    bool *there = mgpu_xcalloc((size_t)values + 1, sizeof *there);
    for (int i = 0; i < s->t->edges; i++) {
        const struct mgpu_edge *e = &s->t->edge[i];
        if (place_of(s, e->to) != s->device || place_of(s, e->from) == s->device || there[e->value])
            continue;
        there[e->value] = true;
        live(s, e->from, s->t->tasks, e->bytes);
    }
    free(there);
}

static bool uses(const struct sweep *s, int p)
{
    for (int i = 0; i < s->t->param[p].groups; i++)
        if (s->place[s->t->param[p].group[i]] == s->device)
            return true;
    return false;
}

static void stored(const struct sweep *s, struct mgpu_memory *m)
{
    for (int p = 0; p < s->t->params; p++) {
        const struct mgpu_shared *q = &s->t->param[p];
        bool owns = owner_of(s, p) == s->device;
        if (!owns && !uses(s, p))
            continue;
        *(q->trained ? &m->weights : &m->fixed) += q->bytes;
        m->gradients += q->trained ? q->bytes : 0;
        m->states += owns ? q->state_bytes : 0;
    }
}

struct mgpu_memory mgpu_memory_of_tasks(const struct mgpu_task_graph *t, const int *place,
                                        const int *owner, int device)
{
    struct mgpu_memory m = {.samples = t->input_bytes};
    struct sweep s = {.t = t, .place = place, .owner = owner, .device = device};
    s.change = mgpu_xcalloc((size_t)t->tasks + 2, sizeof *s.change);
    own_outputs(&s);
    arrivals(&s);
    stored(&s, &m);
    int64_t now = 0;
    for (int i = 0; i < t->tasks; i++) {
        now += s.change[i];
        m.activations = now > m.activations ? now : m.activations;
    }
    free(s.change);
    add_up(&m);
    return m;
}

/* ---- Beside it ------------------------------------------------------------------------------- */

/* Of what allocators hold: ends of pages and of what threads have taken for themselves. */
static const double LOST = 0.06;

/* As processes that run small models show it: code of libraries and threads as any step touches
 * them; oneDNN's for products, and for convolutions and recurrent layers, as far as some run; code
 * that it makes; what a rank keeps of an instruction on the heap (nodes, values, its kernel); and
 * of the file's copy what is freed in too small pieces to go back to the system. */
int64_t mgpu_memory_resident(int64_t buffers, int64_t samples, int64_t file,
                             const struct mgpu_memory_code *code)
{
    static const int64_t RUNNING = 7 << 20, PRODUCTS = 4608 << 10, CONVOLUTIONS = 1 << 20,
                         PRIMITIVE = 11 << 10, INSTRUCTION = 6 << 10, PIECES = 4 << 20;
    int64_t all = buffers + samples + file + (file < PIECES ? file : PIECES) + RUNNING;
    all += (code->products ? PRODUCTS : 0) + (code->convolutions ? CONVOLUTIONS : 0);
    all += code->primitives * PRIMITIVE + code->instructions * INSTRUCTION;
    return (int64_t)((1 + LOST) * (double)all);
}

int64_t mgpu_memory_overhead(const struct mgpu_device_kind *kind, int64_t total, int devices)
{
    static const int64_t CONTEXT = INT64_C(512) << 20, NCCL = INT64_C(256) << 20;
    if (kind->threads)
        return 0;
    return CONTEXT + (devices > 1 ? NCCL : 0) + (int64_t)(LOST * (double)total);
}
