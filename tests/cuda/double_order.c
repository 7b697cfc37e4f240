/* What was submitted: what it touches, what comes before it, and running it in a hostile order. */
#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "runtime/ref/ref.h"
#include "tests/cuda/double_private.h"

#include <stdlib.h>
#include <string.h>

/* ---- Memory ---------------------------------------------------------------------------------- */

struct access double_piece(CUdeviceptr at, int64_t bytes, bool write)
{
    return (struct access){.first = {at, bytes, write}, .rows = 1};
}

static CUdeviceptr row(const struct access *a, int64_t i)
{
    return a->first.at + (CUdeviceptr)(i * a->pitch);
}

static CUdeviceptr end(const struct access *a)
{
    return row(a, a->rows - 1) + (CUdeviceptr)a->first.bytes;
}

bool double_is_there(const struct access *a)
{
    for (const struct block *b = double_gpu.blocks; b; b = b->next)
        if ((char *)a->first.at >= b->at && (char *)end(a) <= b->at + b->bytes)
            return true;
    return false;
}

CUresult double_allocate(void **out, size_t bytes, bool host)
{
    struct block *b;
    double_gpu.calls.allocations++;
    if (!host && double_gpu.used + (int64_t)bytes > double_gpu.bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    b = mgpu_xcalloc(1, sizeof *b);
    *b = (struct block){.bytes = (int64_t)bytes, .host = host, .next = double_gpu.blocks};
    if (posix_memalign((void **)&b->at, 256, bytes + 256))
        abort();
    memset(b->at, 0xff, bytes); /* not numbers */
    double_gpu.used += host ? 0 : (int64_t)bytes;
    double_gpu.blocks = b;
    *out = b->at;
    return CUDA_SUCCESS;
}

CUresult double_release(void *at)
{
    for (struct block **b = &double_gpu.blocks; *b; b = &(*b)->next)
        if ((*b)->at == at) {
            struct block *old = *b;
            *b = old->next;
            double_gpu.used -= old->host ? 0 : old->bytes;
            free(old->at);
            free(old);
            return CUDA_SUCCESS;
        }
    double_complain("memory is freed that was not allocated");
    return CUDA_ERROR_INVALID_VALUE;
}

/* ---- Order ----------------------------------------------------------------------------------- */

/* Whether a row of y lies in a row of x or over its ends. What lies between rows is others'. */
static bool overlap(const struct access *x, const struct access *y)
{
    if (x->first.at >= end(y) || y->first.at >= end(x))
        return false;
    for (int64_t i = 0; i < x->rows; i++) { /* the first row of y that ends behind its start */
        int64_t before = (int64_t)(row(x, i) - y->first.at) - y->first.bytes;
        int64_t k = before < 0 ? 0 : y->rows == 1 ? 1 : before / y->pitch + 1;
        if (k < y->rows && row(y, k) < row(x, i) + (CUdeviceptr)x->first.bytes)
            return true;
    }
    return false;
}

static bool conflict(const struct accesses *a, const struct accesses *b)
{
    for (int i = 0; i < a->count; i++)
        for (int k = 0; k < b->count; k++)
            if ((a->at[i].first.write || b->at[k].first.write) && overlap(&a->at[i], &b->at[k]))
                return true;
    return false;
}

static const char *name_of(const struct work *w)
{
    return w->kind == KERNEL ? w->function->name
           : w->kind == REF  ? w->ref.node->op->name
           : w->kind == COPY ? "copy"
                             : "fill";
}

void double_check_node(const struct node *n)
{
    for (int i = 0; i < n->accesses.count; i++)
        if (!double_is_there(&n->accesses.at[i]))
            double_complain("%s touches memory that is not allocated", name_of(&n->work));
    for (int i = 0; i < double_gpu.now.count; i++) {
        const struct node *m = double_gpu.now.node[i];
        if (m != n && !set_has(&double_gpu.now.done, i) && !set_has(&n->before, i) &&
            conflict(&m->accesses, &n->accesses))
            double_complain("%s and %s touch the same memory without an order", name_of(&m->work),
                            name_of(&n->work));
    }
}

struct node *double_add_node(struct dag *dag, const struct work *work,
                             const struct accesses *accesses, const struct set *before)
{
    struct node *n = mgpu_xcalloc(1, sizeof *n);
    if (dag->count == MOST_NODES)
        abort();
    n->work = *work;
    n->accesses = *accesses;
    n->before = *before;
    dag->node = mgpu_grow(dag->node, (size_t)dag->count, sizeof(struct node *));
    dag->node[dag->count++] = n;
    return n;
}

CUresult double_submit(CUstream s, const struct work *work, const struct accesses *accesses)
{
    if (!accesses->count)
        double_complain("%s: nobody said what it touches", name_of(work));
    if (s->capture && (s->capture->broken || s->capture->count == double_gpu.no_capture)) {
        s->capture->broken = true;
        return double_gpu.capture_result;
    }
    if (s->capture) {
        double_add_node(s->capture, work, accesses, &s->captured);
        set_put(&s->captured, s->capture->count - 1);
        return CUDA_SUCCESS;
    }
    double_gpu.calls.submitted++;
    double_check_node(double_add_node(&double_gpu.now, work, accesses, &s->clock));
    set_put(&s->clock, double_gpu.now.count - 1);
    return CUDA_SUCCESS;
}

/* ---- Running --------------------------------------------------------------------------------- */

static void run_copy(const CUDA_MEMCPY2D *c)
{
    for (size_t row = 0; row < c->Height; row++)
        memcpy((char *)c->dstHost + row * c->dstPitch, (const char *)c->srcHost + row * c->srcPitch,
               c->WidthInBytes);
}

static void run_work(struct work *w)
{
    int rc = 0;
    if (double_gpu.sms) /* kernels are compiled alone */
        return;
    if (w->kind == KERNEL)
        rc = emulate_launch(w->function->module->library, &w->launch, w->function->name, w->pointer,
                            EMULATE_SHUFFLED);
    else if (w->kind == REF)
        rc = double_run_ref(&w->ref);
    else if (w->kind == COPY)
        run_copy(&w->copy);
    else
        memset(w->copy.dstHost, w->byte, w->copy.WidthInBytes);
    if (rc < 0)
        double_complain("%s: %s", name_of(w), mgpu_error());
}

static bool is_ready(const struct node *n)
{
    for (int w = 0; w < (double_gpu.now.count + 63) / 64; w++)
        if (n->before.word[w] & ~double_gpu.now.done.word[w])
            return false;
    return true;
}

void double_free_nodes(struct dag *dag)
{
    for (int i = 0; i < dag->count; i++)
        free(dag->node[i]);
    free(dag->node);
    *dag = (struct dag){.ended = dag->ended};
}

static void renumber(struct set *s, const int *kept, int count)
{
    struct set now = {{0}};
    for (int i = 0; i < count; i++)
        if (set_has(s, kept[i]))
            set_put(&now, i);
    *s = now;
}

/* What is done comes before all that follows. */
static void forget_done(void)
{
    static int kept[MOST_NODES];
    struct dag *now = &double_gpu.now;
    int count = 0;
    for (int i = 0; i < now->count; i++)
        if (!set_has(&now->done, i))
            kept[count++] = i;
        else
            free(now->node[i]);
    for (int i = 0; i < count; i++) {
        now->node[i] = now->node[kept[i]];
        renumber(&now->node[i]->before, kept, count);
    }
    for (struct CUstream_st *s = double_gpu.streams; s; s = s->next)
        renumber(&s->clock, kept, count);
    for (struct CUevent_st *e = double_gpu.events; e; e = e->next)
        if (e->dag == now)
            renumber(&e->clock, kept, count);
    now->count = count;
    now->done = (struct set){{0}};
}

void double_run_set(const struct set *wanted)
{
    for (;;) {
        int ready = 0, pick = -1;
        for (int i = 0; i < double_gpu.now.count; i++) {
            if (!set_has(wanted, i) || set_has(&double_gpu.now.done, i) ||
                !is_ready(double_gpu.now.node[i]))
                continue;
            double_gpu.seed = double_gpu.seed * 6364136223846793005u + 1442695040888963407u;
            if ((double_gpu.seed >> 33) % (uint64_t)++ready == 0)
                pick = i;
        }
        if (pick < 0)
            break;
        run_work(&double_gpu.now.node[pick]->work);
        set_put(&double_gpu.now.done, pick);
    }
    forget_done();
}
