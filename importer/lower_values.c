/* The values that stored tensors are: constants, and parameters as their holders have them. */
#include "importer/lower_walk.h"

#include "runtime/base/status.h"
#include "runtime/ops/pointwise.h"

static void const_dims(const struct mgpu_array *array, struct mgpu_dim dims[MGPU_MAX_RANK])
{
    for (int i = 0; i < array->rank; i++)
        dims[i] = mgpu_dim_const(array->dims[i]);
}

int mgpu_walk_constant(struct mgpu_lower *l, int index, struct mgpu_value **out)
{
    const struct mgpu_onnx_initializer *init = &l->model->initializer[index];
    enum mgpu_dtype type = mgpu_lower_held(l, init->array.type);
    struct mgpu_dim dims[MGPU_MAX_RANK];
    *out = l->walk->constant[index];
    if (*out)
        return 0;
    if (init->array.type == MGPU_UNDEFINED)
        return mgpu_fail(MGPU_EUNSUPPORTED, "tensor '%s' has an element type that mgpu lacks",
                         init->name);
    const_dims(&init->array, dims);
    void *data = init->array.data;
    if (type != init->array.type) {
        int64_t count = mgpu_array_count(&init->array);
        MGPU_TRY(mgpu_alloc(&data, (uint64_t)count * mgpu_dtype_size(type), init->name));
        mgpu_convert(data, type, init->array.data, init->array.type, count);
    }
    *out = mgpu_graph_constant(l->g, init->name, type, init->array.rank, dims, data, NULL);
    if (data != init->array.data)
        mgpu_free(data);
    l->walk->constant[index] = *out;
    return 0;
}

static enum mgpu_parameter_role role_of(enum mgpu_weight_role role)
{
    return role == MGPU_ROLE_TRAINED     ? MGPU_WEIGHT
           : role == MGPU_ROLE_STATISTIC ? MGPU_STATISTIC
                                         : MGPU_FROZEN;
}

/* The parameter itself, made at its first use. */
struct mgpu_value *mgpu_walk_parameter(struct mgpu_lower *l, int weight)
{
    const struct mgpu_weight *w = &l->weights->weight[weight];
    const struct mgpu_array *array = &l->model->initializer[w->holder[0].initializer].array;
    struct mgpu_dim dims[MGPU_MAX_RANK];
    if (!l->walk->parameter[weight]) {
        const_dims(array, dims);
        l->walk->parameter[weight] = mgpu_graph_parameter(
            l->g, w->name, role_of(w->role), mgpu_lower_held(l, array->type), array->rank, dims);
    }
    return l->walk->parameter[weight];
}

/* The parameter with the gradient cut off from element `from` of its last axis on. */
static struct mgpu_value *half_frozen(struct mgpu_lower *l, struct mgpu_value *p, int64_t from)
{
    int64_t size = p->dims[p->rank - 1].value;
    struct mgpu_dim dim = mgpu_dim_const(size);
    bool *trained = MGPU_NEW_ARRAY(l->walk->arena, bool, size);
    for (int64_t i = 0; i < size; i++)
        trained[i] = i < from;
    struct mgpu_value *mask =
        mgpu_graph_constant(l->g, "trained part", MGPU_BOOL, 1, &dim, trained, NULL);
    struct mgpu_expr e;
    mgpu_expr_begin(&e, 2);
    int x = mgpu_expr_input(&e, 1, p->type);
    int y =
        mgpu_expr_where(&e, mgpu_expr_input(&e, 0, MGPU_BOOL), x, mgpu_expr_1(&e, MGPU_X_STOP, x));
    return mgpu_pointwise(l->g, mgpu_expr_end(&e, y, l->g->arena), 2,
                          (struct mgpu_value *[]){mask, p});
}

/* The parameter as one of its holders has it. */
int mgpu_walk_held(struct mgpu_lower *l, int weight, int holder, struct mgpu_value **out)
{
    const struct mgpu_weight *w = &l->weights->weight[weight];
    struct mgpu_value ***cache = &l->walk->holder[weight];
    if (!*cache)
        *cache = MGPU_NEW_ARRAY(l->walk->arena, struct mgpu_value *, w->holders);
    *out = (*cache)[holder];
    if (*out)
        return 0;
    struct mgpu_value *p = mgpu_walk_parameter(l, weight);
    if (w->frozen_from >= 0 && w->role == MGPU_ROLE_TRAINED)
        p = half_frozen(l, p, w->frozen_from);
    if (w->holder[holder].copy == MGPU_COPY_TRANSPOSED)
        p = mgpu_transpose(l->g, p, (int[]){1, 0});
    *out = (*cache)[holder] = p;
    return p ? 0 : mgpu_build_error();
}
