/* Plain kernels of random_mask and random_uniform: Philox4x32-10 by the rule in
 * runtime/ops/random.h.
 */
#include "runtime/ops/random.h"
#include "runtime/ops/dims.h"
#include "runtime/ref/ref.h"

#include <math.h>

enum { PARALLEL = 1 << 12 };

struct philox {
    uint32_t word[4];
};

/* Ten rounds of multiply and exchange; the constants are the paper's. */
static struct philox philox(struct philox c, uint32_t key0, uint32_t key1)
{
    for (int round = 0; round < 10; round++) {
        uint64_t a = UINT64_C(0xD2511F53) * c.word[0], b = UINT64_C(0xCD9E8D57) * c.word[2];
        c = (struct philox){{(uint32_t)(b >> 32) ^ c.word[1] ^ key0, (uint32_t)b,
                             (uint32_t)(a >> 32) ^ c.word[3] ^ key1, (uint32_t)a}};
        key0 += UINT32_C(0x9E3779B9);
        key1 += UINT32_C(0xBB67AE85);
    }
    return c;
}

/* y as [outer, samples, inner]: the elements of one sample are counted over outer and inner. */
struct mask {
    uint64_t key;
    uint32_t step, salt;
    uint64_t base;
    int64_t outer, samples, inner;
    uint64_t limit; /* words below it give zero */
    double kept;
    bool uniform; /* numbers instead of a mask */
};

static double scalar(const struct mgpu_launch *l, int input)
{
    return *(const double *)l->in[input].data;
}

static struct mask mask_of(const struct mgpu_launch *l)
{
    const struct mgpu_random_attrs *a = l->node->attrs;
    int axis = mgpu_dims_batch_axis((int)a->rank, a->dims);
    int64_t rest = 1;
    struct mask m = {.key = (uint64_t)scalar(l, 0),
                     .step = (uint32_t)(uint64_t)scalar(l, 1),
                     .salt = (uint32_t)a->salt,
                     .outer = 1,
                     .samples = 1,
                     .inner = mgpu_tensor_count(&l->out[0]),
                     .limit = (uint64_t)ceil(ldexp(a->probability, 32)),
                     .kept = 1 / (1 - a->probability),
                     .uniform = l->node->op == &mgpu_op_random_uniform};
    if (axis < 0)
        return m;
    m.base = (uint64_t)scalar(l, 2);
    m.samples = mgpu_dims_batch((int)a->rank, a->dims, 0, NULL);
    for (int i = 0; i < axis; i++)
        m.outer *= l->out[0].dims[i];
    for (int i = axis + 1, n = (int)a->rank; i < n; i++)
        rest *= l->out[0].dims[i];
    m.inner = rest * l->out[0].dims[axis] / m.samples;
    return m;
}

static double number(const struct mask *m, uint32_t word)
{
    if (m->uniform)
        return ldexp(word >> 8, -24);
    return word < m->limit ? 0 : m->kept;
}

/* The `inner` elements of sample `sample` in block `outer`. */
static void fill_run(const struct mgpu_launch *l, const struct mask *m, int64_t outer,
                     int64_t sample)
{
    int64_t at = (outer * m->samples + sample) * m->inner;
    uint64_t element = (uint64_t)(outer * m->inner);
    struct philox words = {{0}};
    for (int64_t i = 0; i < m->inner; i++, element++) {
        if (i == 0 || element % 4 == 0) {
            struct philox counter = {{(uint32_t)(element / 4),
                                      (uint32_t)(m->base + (uint64_t)sample), m->step, m->salt}};
            words = philox(counter, (uint32_t)m->key, (uint32_t)(m->key >> 32));
        }
        mgpu_set_double(l->out[0].data, l->out[0].type, at + i, number(m, words.word[element % 4]));
    }
}

static int random_numbers(const struct mgpu_launch *l)
{
    struct mask m = mask_of(l);
    int64_t runs = mgpu_tensor_count(&l->out[0]) ? m.outer * m.samples : 0;
#pragma omp parallel for schedule(static) if (runs * m.inner >= PARALLEL)
    for (int64_t i = 0; i < runs; i++)
        fill_run(l, &m, i / m.samples, i % m.samples);
    return 0;
}

const struct mgpu_kernel mgpu_ref_random[] = {
    {.op = "random_mask", .name = "ref", .run = random_numbers},
    {.op = "random_uniform", .name = "ref", .run = random_numbers},
    {.op = NULL},
};
