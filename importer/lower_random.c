/* Random numbers. They are those of the run (--seed), step and sample; what a node's own `seed`
 * would give is left to each runtime by the standard. */
#include "importer/lower.h"
#include "runtime/base/status.h"
#include "runtime/ops/random.h"
#include "runtime/ops/reduce.h"

#include <inttypes.h>
#include <math.h>

enum { SECOND = 1 << 30 }; /* in the salt: a node's second stream */

/* What the node makes: a float type and a shape, of attributes or of input 0. */
struct made {
    enum mgpu_dtype type;
    int rank;
    struct mgpu_dim dims[MGPU_MAX_RANK];
};

static int read_shape(struct mgpu_lower *l, struct made *m)
{
    int64_t sizes[MGPU_MAX_RANK];
    const struct mgpu_value *like = mgpu_lower_in(l, 0);
    int64_t type = mgpu_onnx_int(l->node, "dtype", like ? like->type : MGPU_FLOAT);
    MGPU_TRY(mgpu_lower_type(l, type, &m->type));
    m->rank = like ? like->rank : mgpu_onnx_ints(l->node, "shape", sizes, MGPU_MAX_RANK);
    if (m->rank < 0 || m->rank > MGPU_MAX_RANK)
        return mgpu_fail(MGPU_EINVALID, "a shape of rank %d", m->rank);
    for (int i = 0; i < m->rank; i++) {
        m->dims[i] = like ? like->dims[i] : mgpu_dim_const(sizes[i]);
        if (m->dims[i].value < 0)
            return mgpu_fail(MGPU_EINVALID, "size %" PRId64 " is negative", m->dims[i].value);
    }
    return 0;
}

static struct mgpu_value *uniform(struct mgpu_lower *l, const struct made *m, int stream)
{
    return mgpu_random_uniform(l->g, l->node->index | stream, m->type, m->rank, m->dims);
}

static int need_float(const struct made *m)
{
    return mgpu_is_float(m->type)
               ? 0
               : mgpu_fail(MGPU_EINVALID, "random numbers of %s", mgpu_dtype_name(m->type));
}

static int lower_uniform(struct mgpu_lower *l)
{
    struct made m;
    double low = mgpu_onnx_float(l->node, "low", 0), high = mgpu_onnx_float(l->node, "high", 1);
    MGPU_TRY(read_shape(l, &m));
    MGPU_TRY(need_float(&m));
    return mgpu_lower_give(l, mgpu_affine(l->g, uniform(l, &m, 0), high - low, low));
}

/* mean + scale * sqrt(-2 ln(1 - u)) cos(2 pi v) (Box and Muller). */
static int lower_normal(struct mgpu_lower *l)
{
    struct made m;
    MGPU_TRY(read_shape(l, &m));
    MGPU_TRY(need_float(&m));
    struct mgpu_value *u = mgpu_affine(l->g, uniform(l, &m, 0), -1, 1);
    struct mgpu_value *v = mgpu_affine(l->g, uniform(l, &m, SECOND), 2 * M_PI, 0);
    u = mgpu_unary(l->g, MGPU_X_SQRT, mgpu_affine(l->g, mgpu_unary(l->g, MGPU_X_LOG, u), -2, 0));
    struct mgpu_value *y = mgpu_mul(l->g, u, mgpu_unary(l->g, MGPU_X_COS, v));
    return mgpu_lower_give(l, mgpu_affine(l->g, y, mgpu_onnx_float(l->node, "scale", 1),
                                          mgpu_onnx_float(l->node, "mean", 0)));
}

/* 1 with the probability that x is. */
static int lower_bernoulli(struct mgpu_lower *l)
{
    struct made m;
    struct mgpu_value *x = mgpu_lower_in(l, 0);
    if (!x || !mgpu_is_float(x->type))
        return mgpu_fail(MGPU_EINVALID, "there are no probabilities");
    MGPU_TRY(read_shape(l, &m));
    enum mgpu_dtype type = m.type;
    m.type = x->type;
    struct mgpu_value *y = mgpu_binary(l->g, MGPU_X_LT, uniform(l, &m, 0), x);
    return mgpu_lower_give(l, mgpu_cast(l->g, y, type));
}

/* Classes drawn from x [N,C], logarithms of weights: the largest of x - ln(-ln u), u in (0, 1). */
static int lower_multinomial(struct mgpu_lower *l)
{
    struct mgpu_value *x = mgpu_lower_in(l, 0);
    enum mgpu_dtype type;
    MGPU_TRY(mgpu_lower_type(l, mgpu_onnx_int(l->node, "dtype", MGPU_INT32), &type));
    int64_t draws = mgpu_onnx_int(l->node, "sample_size", 1);
    if (!x || x->rank != 2 || !mgpu_is_float(x->type) || draws < 0)
        return mgpu_fail(MGPU_EINVALID, "%" PRId64 " draws", draws);
    struct made m = {
        .type = x->type, .rank = 3, .dims = {x->dims[0], mgpu_dim_const(draws), x->dims[1]}};
    struct mgpu_dim row[] = {x->dims[0], mgpu_dim_const(1), x->dims[1]};
    double half = ldexp(1, -25); /* uniform numbers are multiples of 2^-24 */
    struct mgpu_value *u = mgpu_affine(l->g, uniform(l, &m, 0), 1 - half, half);
    u = mgpu_affine(l->g, mgpu_unary(l->g, MGPU_X_LOG, u), -1, 0);
    u = mgpu_sub(l->g, mgpu_reshape(l->g, x, 3, row), mgpu_unary(l->g, MGPU_X_LOG, u));
    if (!u)
        return mgpu_build_error();
    struct mgpu_arg_reduce_attrs attrs = {.axis = 2};
    struct mgpu_value *y = mgpu_lower_node(l, &mgpu_op_arg_reduce, &attrs, 1, &u);
    return mgpu_lower_give(l, mgpu_cast(l->g, y, type));
}

const struct mgpu_lowering mgpu_lower_random[] = {
    {"RandomUniform", 1, 0, lower_uniform},
    {"RandomUniformLike", 1, 0, lower_uniform},
    {"RandomNormal", 1, 0, lower_normal},
    {"RandomNormalLike", 1, 0, lower_normal},
    {"Bernoulli", 15, 0, lower_bernoulli},
    {"Multinomial", 7, 0, lower_multinomial},
    {0},
};
