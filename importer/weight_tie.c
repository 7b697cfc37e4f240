/* Tensors of the file that are one parameter: a tied embedding is written as a table and its
 * transpose. And --tie, --untie. */
#include "importer/weight_parts.h"
#include "runtime/base/status.h"

#include <stdlib.h>
#include <string.h>

static const struct mgpu_array *array_of(const struct mgpu_identify *in, int initializer)
{
    return &in->model->initializer[initializer].array;
}

static const char *name_of(const struct mgpu_identify *in, int initializer)
{
    return in->model->initializer[initializer].name;
}

/* ---- Equal contents ------------------------------------------------------------------------- */

static bool transposed_shape(const struct mgpu_array *a, const struct mgpu_array *b)
{
    return a->type == b->type && a->rank == 2 && b->rank == 2 && a->dims[0] == b->dims[1] &&
           a->dims[1] == b->dims[0];
}

static bool are_transposed(const struct mgpu_array *a, const struct mgpu_array *b)
{
    if (!transposed_shape(a, b))
        return false;
    for (int64_t i = 0; i < a->dims[0]; i++)
        for (int64_t j = 0; j < a->dims[1]; j++)
            if (mgpu_weight_bits(a, i * a->dims[1] + j) != mgpu_weight_bits(b, j * a->dims[0] + i))
                return false;
    return true;
}

/* ---- Joining -------------------------------------------------------------------------------- */

static void add_uses(struct mgpu_identify *in, struct mgpu_holder *to,
                     const struct mgpu_holder *from)
{
    struct mgpu_use *use = MGPU_NEW_ARRAY(in->arena, struct mgpu_use, to->uses + from->uses);
    memcpy(use, to->use, sizeof *use * (size_t)to->uses);
    memcpy(use + to->uses, from->use, sizeof *use * (size_t)from->uses);
    to->use = use;
    to->uses += from->uses;
    to->added = to->added && from->added;
}

static void add_holder(struct mgpu_identify *in, struct mgpu_weight *to,
                       const struct mgpu_holder *holder, enum mgpu_copy copy)
{
    for (int i = 0; i < to->holders; i++)
        if (to->holder[i].initializer == holder->initializer && to->holder[i].copy == copy) {
            add_uses(in, &to->holder[i], holder);
            return;
        }
    struct mgpu_holder *list = MGPU_NEW_ARRAY(in->arena, struct mgpu_holder, to->holders + 1);
    memcpy(list, to->holder, sizeof *list * (size_t)to->holders);
    list[to->holders] = *holder;
    list[to->holders].copy = copy;
    to->holder = list;
    to->holders++;
}

/* `from` becomes part of `to` and is empty afterwards. */
static void join(struct mgpu_identify *in, struct mgpu_weight *to, struct mgpu_weight *from,
                 enum mgpu_copy copy)
{
    for (int i = 0; i < from->holders; i++)
        add_holder(in, to, &from->holder[i],
                   from->holder[i].copy == copy ? MGPU_COPY_SAME : MGPU_COPY_TRANSPOSED);
    if (mgpu_weight_strength(from->role) > mgpu_weight_strength(to->role))
        to->role = from->role;
    from->holders = 0;
    if (!to->holder[0].added)
        to->name = name_of(in, to->holder[0].initializer);
}

/* ---- Found by themselves ------------------------------------------------------------------- */

struct entry {
    uint64_t sum;
    int weight;
};

static int by_sum(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return x->sum != y->sum ? (x->sum > y->sum ? 1 : -1) : x->weight - y->weight;
}

/* Whether this tensor was split: which of its parts a copy would belong to cannot be told. */
static bool is_split(const struct mgpu_identify *in, int weight)
{
    int initializer = in->candidate[weight].initializer, parts = 0;
    for (int step = -1; step <= 1; step += 2)
        for (int i = weight + step;
             i >= 0 && i < in->candidates && in->candidate[i].initializer == initializer; i += step)
            parts += in->candidate[i].verdict.role == MGPU_ROLE_TRAINED;
    return parts > 0;
}

/* Fresh copies of a layer that the exporter left apart: same shape, same place, other layers. */
static bool are_clones(struct mgpu_identify *in, const struct mgpu_weight *a,
                       const struct mgpu_weight *b)
{
    const struct mgpu_use *x = &a->holder[0].use[0], *y = &b->holder[0].use[0];
    const struct mgpu_onnx_node *m = in->model->all[x->node], *n = in->model->all[y->node];
    return in->pytorch && x->input == y->input && !strcmp(m->type, n->type) &&
           !mgpu_weight_same_layer(in, m->layer, n->layer);
}

static void tie_equal(struct mgpu_identify *in, struct mgpu_weight *a, struct mgpu_weight *b)
{
    int x = a->holder[0].initializer, y = b->holder[0].initializer;
    bool same = mgpu_weight_same_values(array_of(in, x), array_of(in, y));
    if (!same && !are_transposed(array_of(in, x), array_of(in, y)))
        return;
    const char *first = name_of(in, x), *second = name_of(in, y);
    if (same && are_clones(in, a, b)) {
        mgpu_weight_note(in, MGPU_LINE_APART, -1,
                         mgpu_arena_format(in->arena,
                                           "'%s' and '%s' are equal but belong to two layers: they "
                                           "are trained apart (--tie '%s=%s' joins them)",
                                           first, second, first, second),
                         NULL);
        return;
    }
    const char *how = same ? "equal" : "each other's transpose";
    mgpu_weight_note(in, MGPU_LINE_TIED, x,
                     mgpu_arena_format(in->arena,
                                       "'%s' and '%s' are %s: one parameter, trained as one "
                                       "(--untie '%s' trains them apart)",
                                       first, second, how, second),
                     mgpu_arena_format(in->arena, "tied with '%s'", second));
    mgpu_weight_note(in, MGPU_LINE_TIED, y, NULL,
                     mgpu_arena_format(in->arena, "tied with '%s'", first));
    join(in, a, b, same ? MGPU_COPY_SAME : MGPU_COPY_TRANSPOSED);
}

static void find_tied(struct mgpu_identify *in)
{
    struct entry *list = mgpu_xcalloc((size_t)in->candidates, sizeof *list);
    int n = 0;
    for (int i = 0; i < in->out->count; i++) {
        const struct mgpu_facts *f = &in->facts[in->candidate[i].initializer];
        if (in->out->weight[i].role != MGPU_ROLE_TRAINED || f->equal ||
            f->count < MGPU_WEIGHT_TWINS_AT_LEAST || is_split(in, i))
            continue;
        list[n++] = (struct entry){f->sum, i};
    }
    if (n)
        qsort(list, (size_t)n, sizeof *list, by_sum);
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n && list[j].sum == list[i].sum; j++)
            if (in->out->weight[list[i].weight].holders && in->out->weight[list[j].weight].holders)
                tie_equal(in, &in->out->weight[list[i].weight], &in->out->weight[list[j].weight]);
    free(list);
}

/* ---- --untie, --tie ------------------------------------------------------------------------- */

/* Whether the weight goes by this name: its own, or that of a tensor that holds it. */
static bool is_called(const struct mgpu_identify *in, const struct mgpu_weight *w, const char *name)
{
    bool called = w->holders && !strcmp(w->name, name);
    for (int i = 0; i < w->holders && !called; i++)
        called = !strcmp(name_of(in, w->holder[i].initializer), name);
    return called && w->role != MGPU_ROLE_STATISTIC;
}

static struct mgpu_weight *new_weight(struct mgpu_identify *in, const struct mgpu_weight *like,
                                      const char *name, struct mgpu_holder holder)
{
    struct mgpu_weights *out = in->out;
    struct mgpu_weight *list = MGPU_NEW_ARRAY(in->arena, struct mgpu_weight, out->count + 1);
    memcpy(list, out->weight, sizeof *list * (size_t)out->count);
    out->weight = list;
    struct mgpu_weight *w = &list[out->count++];
    *w = *like;
    w->name = name;
    w->holders = 1;
    holder.copy = MGPU_COPY_SAME;
    w->holder = mgpu_arena_copy(in->arena, &holder, sizeof holder);
    return w;
}

/* Takes the tensor out of its group. */
static void leave_group(struct mgpu_identify *in, int weight, const char *name)
{
    struct mgpu_weight w = in->out->weight[weight];
    for (int i = 0; i < w.holders; i++) {
        struct mgpu_holder holder = w.holder[i];
        if (w.holders == 1 || strcmp(name_of(in, holder.initializer), name))
            continue;
        memmove(&w.holder[i], &w.holder[i + 1], sizeof *w.holder * (size_t)(w.holders - i - 1));
        w.holders--;
        i--;
        new_weight(in, &w, name, holder);
    }
    /* What is left is in the layout of its first tensor, under whose name it goes. */
    if (w.holder[0].copy == MGPU_COPY_TRANSPOSED)
        for (int i = 0; i < w.holders; i++)
            w.holder[i].copy =
                w.holder[i].copy == MGPU_COPY_SAME ? MGPU_COPY_TRANSPOSED : MGPU_COPY_SAME;
    if (!strcmp(w.name, name))
        w.name = name_of(in, w.holder[0].initializer);
    in->out->weight[weight] = w;
}

/* One weight a use. */
static void leave_uses(struct mgpu_identify *in, int weight)
{
    struct mgpu_holder all = in->out->weight[weight].holder[0];
    for (int i = 1; i < all.uses; i++) {
        struct mgpu_holder one = all;
        one.use = &all.use[i];
        one.uses = 1;
        one.added = true;
        one.alias = "";
        const struct mgpu_onnx_node *node = in->model->all[one.use->node];
        const char *name = mgpu_weight_unique(
            in, mgpu_arena_format(in->arena, "%s@%s", name_of(in, all.initializer),
                                  *node->layer ? node->layer : mgpu_weight_output(node)));
        new_weight(in, &in->out->weight[weight], name, one);
    }
    in->out->weight[weight].holder[0].uses = 1;
}

static int untie(struct mgpu_identify *in, const char *name)
{
    bool found = false, done = false;
    for (int i = 0, n = in->out->count; i < n; i++) {
        const struct mgpu_weight *w = &in->out->weight[i];
        if (!is_called(in, w, name))
            continue;
        found = true;
        done = done || w->holders > 1 || w->holder[0].uses > 1;
        if (w->holders > 1)
            leave_group(in, i, name);
        else
            leave_uses(in, i);
    }
    if (!found)
        return mgpu_weight_no_match(in, "untie", name);
    if (!done)
        return mgpu_fail(MGPU_EUSAGE, "--untie %s: it is tied with nothing and used once", name);
    return 0;
}

static int check_tie(const struct mgpu_identify *in, const struct mgpu_weight *a,
                     const struct mgpu_weight *b, enum mgpu_copy *copy)
{
    const struct mgpu_array *x = array_of(in, a->holder[0].initializer);
    const struct mgpu_array *y = array_of(in, b->holder[0].initializer);
    char left[MGPU_SHAPE_TEXT], right[MGPU_SHAPE_TEXT];
    *copy = MGPU_COPY_SAME;
    if (mgpu_weight_same_values(x, y))
        return 0;
    *copy = MGPU_COPY_TRANSPOSED;
    if (are_transposed(x, y))
        return 0;
    if (!mgpu_weight_same_shape(x, y) && !transposed_shape(x, y))
        return mgpu_fail(MGPU_EUSAGE,
                         "--tie %s=%s: '%s' (%s %s) and '%s' (%s %s) cannot be one parameter",
                         a->name, b->name, a->name, mgpu_dtype_name(x->type),
                         mgpu_shape_text(left, x->rank, x->dims), b->name, mgpu_dtype_name(y->type),
                         mgpu_shape_text(right, y->rank, y->dims));
    return mgpu_fail(MGPU_EUSAGE, "--tie %s=%s: '%s' and '%s' hold different values", a->name,
                     b->name, a->name, b->name);
}

/* Everything that goes by either name becomes one; where one is that of a weight that was split off
 * an initializer, just these two. */
static int tie(struct mgpu_identify *in, const char *const pair[2])
{
    struct mgpu_weight *first = NULL;
    bool two = mgpu_onnx_find_initializer(in->model, pair[0]) < 0 ||
               mgpu_onnx_find_initializer(in->model, pair[1]) < 0;
    for (int side = 0; side < 2; side++) {
        bool found = false;
        for (int i = 0; i < in->out->count; i++) {
            struct mgpu_weight *w = &in->out->weight[i];
            enum mgpu_copy copy;
            if (!is_called(in, w, pair[side]) || (two && strcmp(w->name, pair[side])))
                continue;
            found = true;
            if (!first)
                first = w;
            if (w == first)
                continue;
            MGPU_TRY(check_tie(in, first, w, &copy));
            join(in, first, w, copy);
        }
        if (!found)
            return mgpu_weight_no_match(in, "tie", pair[side]);
    }
    return 0;
}

int mgpu_weight_tie(struct mgpu_identify *in)
{
    find_tied(in);
    for (int i = 0; i < in->options->untie_count; i++)
        MGPU_TRY(untie(in, in->options->untie[i]));
    for (int i = 0; i < in->options->tie_count; i++)
        MGPU_TRY(tie(in, in->options->tie[i]));
    return 0;
}
