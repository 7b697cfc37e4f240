/* Results whose sizes depend on values: made now, from inputs that are constant. */
#include "importer/lower.h"
#include "runtime/base/status.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Input i, which must be constant. */
static int known(struct mgpu_lower *l, int i, struct mgpu_value **out)
{
    struct mgpu_value *v = *out = mgpu_lower_in(l, i);
    if (!v)
        return mgpu_fail(MGPU_EINVALID, "input %d is missing", i);
    if (v->kind != MGPU_VALUE_CONSTANT)
        return mgpu_fail(MGPU_EUNSUPPORTED,
                         "the size of its result is known only when the model runs: input %d "
                         "('%s') must be constant",
                         i, l->node->input[i]);
    return 0;
}

/* Whether a constant's contents depend on the batch. */
static bool depends(const struct mgpu_value *v)
{
    bool batch = v->tainted || v->ints;
    for (int i = 0; i < v->rank; i++)
        batch = batch || mgpu_dim_has(v->dims[i], MGPU_BATCH);
    return batch;
}

/* A constant of found things; its sizes are what they are for this batch. */
static struct mgpu_value *found(struct mgpu_lower *l, enum mgpu_dtype type, int rank,
                                const int64_t *sizes, const void *data, bool batch)
{
    struct mgpu_dim dims[MGPU_MAX_RANK];
    for (int i = 0; i < rank; i++)
        dims[i] = batch ? mgpu_dim_opaque(sizes[i]) : mgpu_dim_const(sizes[i]);
    struct mgpu_value *y = mgpu_graph_constant(l->g, NULL, type, rank, dims, data, NULL);
    y->tainted = batch;
    return y;
}

/* ---- NonZero -------------------------------------------------------------------------------- */

static int lower_non_zero(struct mgpu_lower *l)
{
    struct mgpu_value *x;
    MGPU_TRY(known(l, 0, &x));
    int64_t total = mgpu_value_count(x), count = 0, axes = x->rank ? x->rank : 1;
    for (int64_t i = 0; i < total; i++)
        count += mgpu_get_double(x->data, x->type, i) != 0;
    int64_t sizes[2] = {axes, count};
    struct mgpu_array out;
    MGPU_TRY(mgpu_array_init(&out, MGPU_INT64, 2, sizes, l->node->output[0]));
    int64_t *places = out.data;
    for (int64_t i = 0, k = 0; i < total; i++) {
        if (mgpu_get_double(x->data, x->type, i) == 0)
            continue;
        for (int64_t rest = i, a = x->rank - 1; a >= 0; rest /= x->dims[a].value, a--)
            places[a * count + k] = rest % x->dims[a].value;
        k++;
    }
    l->out[0] = found(l, MGPU_INT64, 2, sizes, out.data, depends(x));
    mgpu_array_free(&out);
    return 0;
}

/* ---- Unique --------------------------------------------------------------------------------- */

/* x as [outer, items, inner]: what is unique are the slices along the middle. */
struct slices {
    const struct mgpu_value *x;
    int64_t outer, items, inner;
};

static double element(const struct slices *s, int64_t item, int64_t k)
{
    int64_t at = (k / s->inner * s->items + item) * s->inner + k % s->inner;
    return mgpu_get_double(s->x->data, s->x->type, at);
}

static int64_t element_int(const struct slices *s, int64_t item, int64_t k)
{
    int64_t at = (k / s->inner * s->items + item) * s->inner + k % s->inner;
    return mgpu_get_int(s->x->data, s->x->type, at);
}

/* NaN equals itself and comes last. */
static int order_of(const struct slices *s, int64_t a, int64_t b)
{
    for (int64_t k = 0; k < s->outer * s->inner; k++) {
        if (mgpu_is_integer(s->x->type) && s->x->type != MGPU_UINT64) {
            int64_t x = element_int(s, a, k), y = element_int(s, b, k);
            if (x != y)
                return x < y ? -1 : 1;
            continue;
        }
        double x = element(s, a, k), y = element(s, b, k);
        if (isnan(x) != isnan(y))
            return isnan(x) ? 1 : -1;
        if (x < y || x > y)
            return x < y ? -1 : 1;
    }
    return 0;
}

struct item {
    const struct slices *slices;
    int64_t index;
};

static int by_value(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    int order = order_of(x->slices, x->index, y->index);
    return order ? order : (x->index > y->index) - (x->index < y->index);
}

static int by_place(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    return (x->index > y->index) - (x->index < y->index);
}

struct unique {
    int64_t count;
    struct item *first;               /* of each distinct slice: its first occurrence, in order */
    int64_t *index, *inverse, *times; /* ONNX's outputs 1 to 3 */
};

/* The distinct slices in ascending order, or in the order in which they come. */
static void find_unique(struct mgpu_arena *arena, const struct slices *s, bool sorted,
                        struct unique *u)
{
    struct item *item = MGPU_NEW_ARRAY(arena, struct item, s->items);
    int64_t *rank = MGPU_NEW_ARRAY(arena, int64_t, s->items);
    *u = (struct unique){.first = MGPU_NEW_ARRAY(arena, struct item, s->items),
                         .index = MGPU_NEW_ARRAY(arena, int64_t, s->items),
                         .inverse = MGPU_NEW_ARRAY(arena, int64_t, s->items),
                         .times = MGPU_NEW_ARRAY(arena, int64_t, s->items)};
    for (int64_t i = 0; i < s->items; i++)
        item[i] = (struct item){s, i};
    if (s->items)
        qsort(item, (size_t)s->items, sizeof *item, by_value);
    for (int64_t i = 0; i < s->items; i++)
        if (i == 0 || order_of(s, item[i - 1].index, item[i].index))
            u->first[u->count++] = item[i];
    if (!sorted && u->count)
        qsort(u->first, (size_t)u->count, sizeof *u->first, by_place);
    for (int64_t k = 0; k < u->count; k++) {
        u->index[k] = u->first[k].index;
        rank[u->index[k]] = k;
    }
    for (int64_t i = 0, k = 0; i < s->items; i++) {
        if (i == 0 || order_of(s, item[i - 1].index, item[i].index))
            k = rank[item[i].index]; /* equal ones stand by place: this is the first */
        u->inverse[item[i].index] = k;
        u->times[k]++;
    }
}

static int copy_slices(struct mgpu_lower *l, const struct slices *s, const struct unique *u,
                       int rank, const int64_t *sizes, bool batch)
{
    size_t width = mgpu_dtype_size(s->x->type), run = (size_t)s->inner * width;
    struct mgpu_array y;
    MGPU_TRY(mgpu_array_init(&y, s->x->type, rank, sizes, l->node->output[0]));
    for (int64_t o = 0; o < s->outer; o++)
        for (int64_t k = 0; k < u->count; k++)
            memcpy((char *)y.data + (size_t)(o * u->count + k) * run,
                   (const char *)s->x->data + (size_t)(o * s->items + u->index[k]) * run, run);
    l->out[0] = found(l, s->x->type, rank, sizes, y.data, batch);
    mgpu_array_free(&y);
    return 0;
}

static int lower_unique(struct mgpu_lower *l)
{
    struct mgpu_value *x;
    struct unique u;
    int64_t axis, sizes[MGPU_MAX_RANK];
    bool whole = !mgpu_onnx_attribute(l->node, "axis");
    MGPU_TRY(known(l, 0, &x));
    struct slices s = {.x = x, .outer = 1, .items = mgpu_value_count(x), .inner = 1};
    if (!whole) {
        MGPU_TRY(mgpu_lower_axis(&axis, mgpu_onnx_int(l->node, "axis", 0), x->rank));
        s.items = x->dims[axis].value;
        for (int i = 0; i < x->rank; i++)
            *(i < axis ? &s.outer : &s.inner) *= i == axis ? 1 : x->dims[i].value;
    }
    find_unique(l->g->arena, &s, mgpu_onnx_int(l->node, "sorted", 1), &u);
    for (int i = 0; i < x->rank; i++)
        sizes[i] = whole || i == axis ? u.count : x->dims[i].value;
    sizes[0] = x->rank ? sizes[0] : u.count;
    bool batch = depends(x);
    MGPU_TRY(copy_slices(l, &s, &u, whole ? 1 : x->rank, sizes, batch));
    l->out[1] = found(l, MGPU_INT64, 1, &u.count, u.index, batch);
    l->out[2] = found(l, MGPU_INT64, 1, &s.items, u.inverse, batch);
    l->out[3] = found(l, MGPU_INT64, 1, &u.count, u.times, batch);
    return 0;
}

/* ---- NonMaxSuppression ---------------------------------------------------------------------- */

struct box {
    double low[2], high[2];
};

struct suppression {
    const struct mgpu_value *boxes, *scores;
    int64_t batches, classes, places, most;
    double overlap, score;
    bool scored, center;
    int64_t count, *found; /* triples: batch, class, box */
};

static struct box box_of(const struct suppression *s, int64_t batch, int64_t place)
{
    double v[4];
    struct box box;
    for (int i = 0; i < 4; i++)
        v[i] = mgpu_get_double(s->boxes->data, s->boxes->type, (batch * s->places + place) * 4 + i);
    for (int i = 0; i < 2; i++) {
        double a = s->center ? v[i] - v[2 + i] / 2 : v[i];
        double b = s->center ? v[i] + v[2 + i] / 2 : v[2 + i];
        box.low[i] = fmin(a, b);
        box.high[i] = fmax(a, b);
    }
    return box;
}

static double area(const struct box *b)
{
    return (b->high[0] - b->low[0]) * (b->high[1] - b->low[1]);
}

static bool overlaps(const struct suppression *s, int64_t batch, int64_t a, int64_t b)
{
    struct box x = box_of(s, batch, a), y = box_of(s, batch, b);
    double common = 1;
    for (int i = 0; i < 2; i++)
        common *= fmax(0, fmin(x.high[i], y.high[i]) - fmax(x.low[i], y.low[i]));
    double all = area(&x) + area(&y) - common;
    return all > 0 && common / all > s->overlap;
}

struct candidate {
    double score;
    int64_t place;
};

static int best_first(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->score != y->score)
        return x->score < y->score ? 1 : -1;
    return (x->place > y->place) - (x->place < y->place);
}

/* Boxes of one class, best first, each kept unless it overlaps one that was. */
static void suppress(struct suppression *s, int64_t batch, int64_t class,
                     struct candidate *candidate)
{
    int64_t candidates = 0, kept = 0, *first = s->found + 3 * s->count;
    for (int64_t i = 0; i < s->places; i++) {
        double score = mgpu_get_double(s->scores->data, s->scores->type,
                                       (batch * s->classes + class) * s->places + i);
        if (!s->scored || score > s->score)
            candidate[candidates++] = (struct candidate){score, i};
    }
    if (candidates)
        qsort(candidate, (size_t)candidates, sizeof *candidate, best_first);
    for (int64_t i = 0; i < candidates && kept < s->most; i++) {
        bool free_of = true;
        for (int64_t k = 0; k < kept && free_of; k++)
            free_of = !overlaps(s, batch, candidate[i].place, first[3 * k + 2]);
        if (!free_of)
            continue;
        memcpy(first + 3 * kept++, (int64_t[]){batch, class, candidate[i].place},
               3 * sizeof *first);
    }
    s->count += kept;
}

static int read_suppression(struct mgpu_lower *l, struct suppression *s)
{
    struct mgpu_value *boxes, *scores;
    MGPU_TRY(known(l, 0, &boxes));
    MGPU_TRY(known(l, 1, &scores));
    if (boxes->rank != 3 || scores->rank != 3 || boxes->dims[2].value != 4 ||
        boxes->dims[0].value != scores->dims[0].value ||
        boxes->dims[1].value != scores->dims[2].value)
        return mgpu_fail(MGPU_EINVALID, "boxes and scores do not fit together");
    *s = (struct suppression){.boxes = boxes,
                              .scores = scores,
                              .batches = scores->dims[0].value,
                              .classes = scores->dims[1].value,
                              .places = scores->dims[2].value,
                              .scored = mgpu_lower_in(l, 4),
                              .center = mgpu_onnx_int(l->node, "center_point_box", 0)};
    if (mgpu_lower_in(l, 2))
        MGPU_TRY(mgpu_lower_int(l, 2, &s->most, NULL));
    if (mgpu_lower_in(l, 3))
        MGPU_TRY(mgpu_lower_doubles(l, 3, &s->overlap, 1));
    if (s->scored)
        MGPU_TRY(mgpu_lower_doubles(l, 4, &s->score, 1));
    return 0;
}

static int lower_non_max_suppression(struct mgpu_lower *l)
{
    struct suppression s;
    MGPU_TRY(read_suppression(l, &s));
    int64_t most = s.batches * s.classes * s.places;
    struct candidate *candidate = mgpu_xcalloc((size_t)s.places + 1, sizeof *candidate);
    s.found = mgpu_xcalloc((size_t)most * 3 + 1, sizeof *s.found);
    for (int64_t b = 0; b < s.batches; b++)
        for (int64_t c = 0; c < s.classes; c++)
            suppress(&s, b, c, candidate);
    int64_t sizes[] = {s.count, 3};
    l->out[0] = found(l, MGPU_INT64, 2, sizes, s.found, depends(s.boxes) || depends(s.scores));
    free(candidate);
    free(s.found);
    return 0;
}

const struct mgpu_lowering mgpu_lower_found[] = {
    {"NonZero", 9, 0, lower_non_zero},
    {"Unique", 11, 0, lower_unique},
    {"NonMaxSuppression", 10, 0, lower_non_max_suppression},
    {0},
};
