#include "importer/lower_points.h"

/* Element `near` (0 below, 1 above) along one axis: *place clamped into it, *weight 0 outside. */
static void neighbour(struct mgpu_expr *e, int at, int near, int64_t size, int *place, int *weight)
{
    enum mgpu_dtype type = e->op[at].type;
    int zero = mgpu_expr_number(e, type, 0), last = mgpu_expr_number(e, type, (double)size - 1);
    int below = mgpu_expr_1(e, MGPU_X_FLOOR, at), share = mgpu_expr_2(e, MGPU_X_SUB, at, below);
    if (!near)
        share = mgpu_expr_2(e, MGPU_X_SUB, mgpu_expr_number(e, type, 1), share);
    int here = mgpu_expr_2(e, MGPU_X_ADD, below, mgpu_expr_number(e, type, near));
    int inside = mgpu_expr_2(e, MGPU_X_AND, mgpu_expr_2(e, MGPU_X_LE, zero, here),
                             mgpu_expr_2(e, MGPU_X_LE, here, last));
    *weight = mgpu_expr_where(e, inside, share, zero);
    here = mgpu_expr_2(e, MGPU_X_MIN, mgpu_expr_2(e, MGPU_X_MAX, here, zero), last);
    *place = mgpu_expr_cast(e, MGPU_INT64, here);
}

static struct mgpu_value *of_points(struct mgpu_lower *l, const struct mgpu_points *p, int corner,
                                    bool weight)
{
    struct mgpu_expr e;
    int place[2], share[2];
    if (!p->y || !p->x)
        return NULL;
    mgpu_expr_begin(&e, 2);
    int y = mgpu_expr_input(&e, 0, p->y->type), x = mgpu_expr_input(&e, 1, p->x->type);
    neighbour(&e, y, corner / 2, p->height, &place[0], &share[0]);
    neighbour(&e, x, corner % 2, p->width, &place[1], &share[1]);
    int row = mgpu_expr_2(&e, MGPU_X_MUL, place[0], mgpu_expr_integer(&e, MGPU_INT64, p->width));
    int result = weight ? mgpu_expr_2(&e, MGPU_X_MUL, share[0], share[1])
                        : mgpu_expr_2(&e, MGPU_X_ADD, row, place[1]);
    return mgpu_pointwise(l->g, mgpu_expr_end(&e, result, l->g->arena), 2,
                          (struct mgpu_value *[]){p->y, p->x});
}

struct mgpu_value *mgpu_points_place(struct mgpu_lower *l, const struct mgpu_points *p, int corner)
{
    return of_points(l, p, corner, false);
}

struct mgpu_value *mgpu_points_weight(struct mgpu_lower *l, const struct mgpu_points *p, int corner)
{
    return of_points(l, p, corner, true);
}

struct mgpu_value *mgpu_lower_open(struct mgpu_lower *l, struct mgpu_value *v)
{
    struct mgpu_dim dims[MGPU_MAX_RANK];
    if (!v)
        return NULL;
    for (int i = 0; i < v->rank; i++)
        dims[i] = v->dims[i];
    dims[v->rank] = mgpu_dim_const(1);
    return mgpu_reshape(l->g, v, v->rank + 1, dims);
}
