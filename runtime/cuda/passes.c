/* One pass over several weights: weights, gradients and optimizer state lie in one order, at the
 * same distances (compile/store.c), so updates of neighbours that do the same are one kernel over
 * all of their elements. What fills up the space between two is zero, and is updated along.
 */
#include "runtime/base/memory.h"
#include "runtime/cuda/ranks.h"
#include "runtime/ops/update.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_SCALAR = 2, FIRST_STATE = 5, GAP = 128 /* bytes: store.c's alignment of floats */ };

/* Operands that have an element for each of the weight's; the others are scalars or empty. */
static bool is_array(const struct mgpu_instruction *in, int i)
{
    return i < FIRST_SCALAR || (i >= FIRST_STATE && in->operand[i].bytes > 0);
}

static int64_t count_of(const struct mgpu_instruction *in)
{
    return mgpu_value_count(in->node->input[0]);
}

static bool is_pointwise_update(const struct mgpu_instruction *in)
{
    return in->node->op == &mgpu_op_update && mgpu_update_is_pointwise(in->node) &&
           mgpu_gpu_kernel_of(in);
}

static bool does_the_same(const struct mgpu_instruction *a, const struct mgpu_instruction *b)
{
    return a->inputs == b->inputs && a->outputs == b->outputs && a->when_idle == b->when_idle &&
           !memcmp(a->node->attrs, b->node->attrs, a->node->op->attrs_size);
}

/* Elements from each array of `a` to the same one of `b`; -1: they do not lie alike. */
static int64_t distance(const struct mgpu_instruction *a, const struct mgpu_instruction *b)
{
    int64_t elements = -1;
    for (int i = 0; i < a->inputs + a->outputs; i++) {
        const struct mgpu_tensor *x = &a->tensor[i], *y = &b->tensor[i];
        if (!is_array(a, i)) {
            if (a->operand[i].bytes > 0 && x->data != y->data)
                return -1;
            continue;
        }
        int64_t size = (int64_t)mgpu_dtype_size(x->type);
        int64_t bytes = (char *)y->data - (char *)x->data;
        if (x->type != y->type || bytes < 0 || bytes % size ||
            (elements >= 0 && bytes / size != elements))
            return -1;
        elements = bytes / size;
    }
    return elements;
}

static bool is_next(const struct mgpu_instruction *a, const struct mgpu_instruction *b)
{
    int64_t gap = distance(a, b) - count_of(a);
    return does_the_same(a, b) && gap >= 0 &&
           gap * (int64_t)mgpu_dtype_size(a->tensor[0].type) < GAP;
}

/* Whether what the instruction waits for is over when the first update runs (walk.c), or when
 * `first` does. */
static bool waits_no_longer(const struct mgpu_program *p, const struct mgpu_instruction *in,
                            int updates, const struct mgpu_instruction *first)
{
    for (int w = 0; w < in->waits; w++) {
        int k = p->setter[in->wait[w]];
        bool over = k < 0 || p->instruction[k].queue == MGPU_QUEUE_COMPUTE ||
                    (k < updates && p->instruction[k].collective.kind != MGPU_COLLECTIVE_SEND);
        for (int i = 0; i < first->waits && !over; i++)
            over = first->wait[i] == in->wait[w];
        if (!over)
            return false;
    }
    return true;
}

static int by_address(const void *a, const void *b)
{
    const struct mgpu_instruction *const *x = a, *const *y = b;
    const char *p = (*x)->tensor[0].data, *q = (*y)->tensor[0].data;
    return p < q ? -1 : p > q;
}

/* The kernel of the lead's node with so many elements. */
static void emit(struct mgpu_gpu_pass *pass)
{
    struct mgpu_value value[MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS];
    struct mgpu_value *operand[MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS];
    const struct mgpu_instruction *in = pass->lead;
    struct mgpu_node with = *in->node;
    for (int i = 0; i < in->inputs + in->outputs; i++) {
        const struct mgpu_value *v = i < in->inputs ? with.input[i] : with.output[i - in->inputs];
        operand[i] = v ? &value[i] : NULL;
        if (!v)
            continue;
        value[i] = *v;
        if (is_array(in, i)) {
            value[i].rank = 1;
            value[i].dims[0] = (struct mgpu_dim){.value = pass->count};
        }
    }
    with.input = operand;
    with.output = operand + in->inputs;
    mgpu_emit(&pass->kernel.emitted, &with, MGPU_GPU_KERNEL, true);
}

static void add_pass(struct mgpu_gpu_bound *b, struct mgpu_instruction *const *member, int members,
                     struct mgpu_gpu_batch *batch)
{
    const struct mgpu_instruction *all = b->program->instruction, *last = member[members - 1];
    struct mgpu_gpu_pass *pass = &b->pass[b->passes++];
    *pass = (struct mgpu_gpu_pass){.lead = member[0], .at = (int)(member[0] - all)};
    pass->count = distance(member[0], last) + count_of(last);
    for (int i = 0; i < members; i++) {
        int k = (int)(member[i] - all);
        pass->at = k < pass->at ? k : pass->at;
        b->pass_of[k] = pass;
    }
    emit(pass);
    mgpu_gpu_batch_add(batch, &pass->kernel);
}

/* Updates that follow one another in the list, sorted by where their weights lie. */
static void join(struct mgpu_gpu_bound *b, struct mgpu_instruction **member, int members,
                 struct mgpu_gpu_batch *batch)
{
    qsort(member, (size_t)members, sizeof(struct mgpu_instruction *), by_address);
    for (int first = 0, last; first < members; first = last) {
        for (last = first + 1; last < members && is_next(member[last - 1], member[last]);)
            last++;
        if (last - first > 1)
            add_pass(b, member + first, last - first, batch);
    }
}

void mgpu_gpu_find_passes(struct mgpu_gpu_bound *b, struct mgpu_gpu_batch *batch)
{
    const struct mgpu_program *p = b->program;
    struct mgpu_instruction **member = mgpu_xcalloc((size_t)p->instructions + 1, sizeof *member);
    int updates = 0;
    b->pass = mgpu_xcalloc((size_t)p->instructions + 1, sizeof *b->pass);
    b->pass_of = mgpu_xcalloc((size_t)p->instructions + 1, sizeof *b->pass_of);
    while (updates < p->instructions && p->instruction[updates].node->origin.role != MGPU_UPDATE)
        updates++;
    for (int first = updates, last; first < p->instructions; first = last) {
        const struct mgpu_instruction *begin = &p->instruction[first];
        int members = 0;
        for (last = first; last < p->instructions; last++) {
            struct mgpu_instruction *in = &p->instruction[last];
            if (!is_pointwise_update(in) || !waits_no_longer(p, in, updates, begin))
                break;
            member[members++] = in;
        }
        join(b, member, members, batch);
        last += last == first;
    }
    free(member);
}

int mgpu_gpu_run_pass(struct mgpu_gpu_rank *rank, const struct mgpu_gpu_pass *pass)
{
    const struct mgpu_instruction *in = pass->lead;
    CUdeviceptr pointer[MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS + 1];
    struct mgpu_cuda_access access[MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS + 1];
    int n = 0;
    for (int i = 0; i < in->inputs + in->outputs; i++) {
        const struct mgpu_tensor *t = &in->tensor[i];
        int64_t bytes = is_array(in, i) ? pass->count * (int64_t)mgpu_dtype_size(t->type)
                                        : in->operand[i].bytes;
        if (!t->data)
            continue;
        pointer[n] = (CUdeviceptr)t->data;
        access[n] = (struct mgpu_cuda_access){pointer[n], bytes, i >= in->inputs};
        n++;
    }
    pointer[n] = rank->all->stop;
    access[n++] = (struct mgpu_cuda_access){rank->all->stop, 4, false};
    mgpu_gpu_touches(rank, rank->compute, access, n);
    return mgpu_gpu_submit(&rank->queue, &pass->kernel, pointer);
}

void mgpu_gpu_free_passes(struct mgpu_gpu_bound *b)
{
    for (int i = 0; i < b->passes; i++)
        mgpu_emitted_free(&b->pass[i].kernel.emitted);
    free(b->pass);
    free(b->pass_of);
}
