/* Sequence* and Optional* operators. */
#include "importer/lower_sequence.h"

#include "runtime/base/status.h"
#include "runtime/ops/dims.h"

#include <inttypes.h>
#include <string.h>

struct mgpu_sequence *mgpu_as_sequence(struct mgpu_value *value)
{
    return value && value->type == MGPU_UNDEFINED ? (struct mgpu_sequence *)value : NULL;
}

struct mgpu_sequence *mgpu_sequence_new(struct mgpu_lower *l, struct mgpu_dim size)
{
    struct mgpu_sequence *s = MGPU_NEW(l->g->arena, struct mgpu_sequence);
    *s = (struct mgpu_sequence){
        .value = {.id = -1, .type = MGPU_UNDEFINED, .name = "a sequence"},
        .size = size,
        .item = MGPU_NEW_ARRAY(l->g->arena, struct mgpu_value *, size.value),
    };
    return s;
}

/* Input i as a sequence that is there. */
static int sequence_in(struct mgpu_lower *l, int i, struct mgpu_sequence **out)
{
    *out = mgpu_as_sequence(mgpu_lower_in(l, i));
    return *out && !(*out)->absent ? 0
                                   : mgpu_fail(MGPU_EINVALID, "input %d should be a sequence", i);
}

static int tensor_in(struct mgpu_lower *l, int i, struct mgpu_value **out)
{
    *out = mgpu_lower_in(l, i);
    return *out && !mgpu_as_sequence(*out)
               ? 0
               : mgpu_fail(MGPU_EINVALID, "input %d should be a tensor", i);
}

static int give(struct mgpu_lower *l, struct mgpu_sequence *s)
{
    l->out[0] = &s->value;
    return 0;
}

/* A place in a sequence, from its end when negative; `past`: the end itself is one too. */
static int place_in(struct mgpu_lower *l, int i, const struct mgpu_sequence *s, bool past,
                    int64_t *place)
{
    struct mgpu_value *v;
    int64_t size = s->size.value;
    MGPU_TRY(tensor_in(l, i, &v));
    MGPU_TRY(mgpu_lower_int(l, i, place, NULL));
    if (*place < -size || *place >= size + past)
        return mgpu_fail(MGPU_EINVALID, "place %" PRId64 " is outside a sequence of %" PRId64,
                         *place, size);
    if (*place < 0)
        *place += size;
    if (mgpu_dim_has(s->size, MGPU_BATCH))
        mgpu_graph_whole(l->g); /* one sample's value */
    return 0;
}

static int lower_empty(struct mgpu_lower *l)
{
    return give(l, mgpu_sequence_new(l, mgpu_dim_const(0)));
}

static int lower_construct(struct mgpu_lower *l)
{
    struct mgpu_sequence *s = mgpu_sequence_new(l, mgpu_dim_const(l->node->inputs));
    for (int i = 0; i < l->node->inputs; i++)
        MGPU_TRY(tensor_in(l, i, &s->item[i]));
    return give(l, s);
}

static int lower_insert(struct mgpu_lower *l)
{
    struct mgpu_sequence *from;
    struct mgpu_value *item;
    MGPU_TRY(sequence_in(l, 0, &from));
    MGPU_TRY(tensor_in(l, 1, &item));
    int64_t size = from->size.value, at = size;
    if (mgpu_lower_in(l, 2))
        MGPU_TRY(place_in(l, 2, from, true, &at));
    struct mgpu_sequence *s = mgpu_sequence_new(l, mgpu_dim_add(from->size, mgpu_dim_const(1)));
    for (int64_t i = 0; i <= size; i++)
        s->item[i] = i < at ? from->item[i] : i == at ? item : from->item[i - 1];
    return give(l, s);
}

static int lower_erase(struct mgpu_lower *l)
{
    struct mgpu_sequence *from;
    MGPU_TRY(sequence_in(l, 0, &from));
    int64_t size = from->size.value, at = size - 1;
    if (mgpu_lower_in(l, 1))
        MGPU_TRY(place_in(l, 1, from, false, &at));
    if (size == 0)
        return mgpu_fail(MGPU_EINVALID, "the sequence is empty");
    struct mgpu_sequence *s = mgpu_sequence_new(l, mgpu_dim_add(from->size, mgpu_dim_const(-1)));
    for (int64_t i = 0; i < size - 1; i++)
        s->item[i] = from->item[i + (i >= at)];
    return give(l, s);
}

static int lower_at(struct mgpu_lower *l)
{
    struct mgpu_sequence *s;
    int64_t at;
    MGPU_TRY(sequence_in(l, 0, &s));
    MGPU_TRY(place_in(l, 1, s, false, &at));
    l->out[0] = s->item[at];
    return 0;
}

static int lower_length(struct mgpu_lower *l)
{
    struct mgpu_sequence *s;
    MGPU_TRY(sequence_in(l, 0, &s));
    return mgpu_lower_give(l, mgpu_lower_scalar(l, mgpu_const_dims(l->g, 1, &s->size)));
}

/* Items whose number grows with the batch, along an axis that they have. */
static struct mgpu_value *merge_stacked(struct mgpu_lower *l, struct mgpu_sequence *s, int axis)
{
    struct mgpu_value *y = mgpu_lower_move_first(l, mgpu_lower_stack(l, s->size, s->item), axis);
    struct mgpu_dim dims[MGPU_MAX_RANK];
    if (!y)
        return NULL;
    for (int i = 0; i < y->rank; i++)
        dims[i - (i > axis)] = i == axis + 1 ? mgpu_dim_mul(y->dims[axis], y->dims[i]) : y->dims[i];
    return mgpu_reshape(l->g, y, y->rank - 1, dims);
}

static bool one_shape(const struct mgpu_sequence *s)
{
    for (int64_t i = 1; i < s->size.value; i++)
        if (s->item[i]->rank != s->item[0]->rank ||
            !mgpu_dims_equal(s->item[0]->rank, s->item[i]->dims, s->item[0]->dims))
            return false;
    return true;
}

static int lower_concat_from(struct mgpu_lower *l)
{
    struct mgpu_sequence *s;
    int64_t axis;
    MGPU_TRY(sequence_in(l, 0, &s));
    bool fresh = mgpu_onnx_int(l->node, "new_axis", 0);
    if (s->size.value == 0)
        return mgpu_fail(MGPU_EINVALID, "the sequence is empty");
    MGPU_TRY(mgpu_lower_axis(&axis, mgpu_onnx_int(l->node, "axis", 0), s->item[0]->rank + fresh));
    if (fresh)
        return mgpu_lower_give(
            l, mgpu_lower_move_first(l, mgpu_lower_stack(l, s->size, s->item), (int)axis));
    bool grows = mgpu_dim_has(s->size, MGPU_BATCH);
    if (grows && one_shape(s))
        return mgpu_lower_give(l, merge_stacked(l, s, (int)axis));
    if (grows)
        mgpu_graph_whole(l->g);
    return mgpu_lower_give(l, mgpu_concat(l->g, (int)axis, (int)s->size.value, s->item));
}

/* Sizes of the parts: `split` as a list, or as one number that all but the last have; 1 without. */
static int part_sizes(struct mgpu_lower *l, const struct mgpu_value *x, int64_t axis,
                      struct mgpu_dim **part, struct mgpu_dim *count)
{
    struct mgpu_dim whole = x->dims[axis], each = mgpu_dim_const(1);
    struct mgpu_value *split = mgpu_lower_in(l, 1);
    int64_t value = 1;
    if (split && split->rank > 0) {
        int64_t most = mgpu_value_count(split), total = 0;
        int64_t *sizes = MGPU_NEW_ARRAY(l->g->arena, int64_t, most);
        *part = MGPU_NEW_ARRAY(l->g->arena, struct mgpu_dim, most);
        MGPU_TRY(mgpu_lower_ints(l, 1, sizes, *part, (int)most));
        for (int64_t i = 0; i < most; i++)
            total += sizes[i] < 0 ? INT32_MIN : sizes[i];
        *count = mgpu_dim_const(most);
        return total == whole.value
                   ? 0
                   : mgpu_fail(MGPU_EINVALID, "the parts do not add up to %" PRId64, whole.value);
    }
    if (split)
        MGPU_TRY(mgpu_lower_int(l, 1, &value, &each));
    if (value < 1)
        return mgpu_fail(MGPU_EINVALID, "a part has %" PRId64 " elements", value);
    int64_t n = (whole.value + value - 1) / value;
    *count = mgpu_dim_div(whole, each);
    if (count->value != n)
        *count = mgpu_dim_lost(n, whole, each);
    *part = MGPU_NEW_ARRAY(l->g->arena, struct mgpu_dim, n);
    for (int64_t i = 0; i < n; i++)
        (*part)[i] = (i + 1) * value <= whole.value
                         ? each
                         : mgpu_dim_lost(whole.value - i * value, whole, each);
    return 0;
}

static int lower_split_to(struct mgpu_lower *l)
{
    struct mgpu_value *x;
    struct mgpu_dim *part = NULL, count, dims[MGPU_MAX_RANK];
    int64_t axis;
    MGPU_TRY(tensor_in(l, 0, &x));
    MGPU_TRY(mgpu_lower_axis(&axis, mgpu_onnx_int(l->node, "axis", 0), x->rank));
    MGPU_TRY(part_sizes(l, x, axis, &part, &count));
    bool drop = !mgpu_lower_in(l, 1) && !mgpu_onnx_int(l->node, "keepdims", 1);
    struct mgpu_sequence *s = mgpu_sequence_new(l, count);
    int64_t from = 0;
    for (int i = 0; i < x->rank; i++)
        dims[i - (i > axis)] = x->dims[i];
    for (int64_t i = 0; i < count.value; from += part[i++].value) {
        struct mgpu_value *y = mgpu_slice_axis(l->g, x, (int)axis, from, part[i]);
        s->item[i] = drop ? mgpu_reshape(l->g, y, x->rank - 1, dims) : y;
        if (!s->item[i])
            return mgpu_build_error();
    }
    return give(l, s);
}

/* ---- SequenceMap ----------------------------------------------------------------------------- */

static int lower_map(struct mgpu_lower *l)
{
    struct mgpu_sequence *first, *made[sizeof l->out / sizeof *l->out];
    const struct mgpu_onnx_body *body = mgpu_lower_body_called(l, "body");
    MGPU_TRY(sequence_in(l, 0, &first));
    int most = (int)(sizeof made / sizeof *made);
    if (!body || body->inputs != l->node->inputs || body->outputs < l->node->outputs ||
        body->outputs > most)
        return mgpu_fail(MGPU_EINVALID, "the body does not fit");
    struct mgpu_value **in = MGPU_NEW_ARRAY(l->g->arena, struct mgpu_value *, body->inputs);
    struct mgpu_value **out = MGPU_NEW_ARRAY(l->g->arena, struct mgpu_value *, body->outputs);
    for (int j = 0; j < body->outputs; j++)
        made[j] = mgpu_sequence_new(l, first->size);
    for (int64_t k = 0; k < first->size.value; k++) {
        for (int i = 0; i < body->inputs; i++) {
            struct mgpu_value *v = mgpu_lower_in(l, i);
            struct mgpu_sequence *s = mgpu_as_sequence(v);
            if (s && s->size.value != first->size.value)
                return mgpu_fail(MGPU_EINVALID, "the sequences have different lengths");
            in[i] = s ? s->item[k] : v;
        }
        MGPU_TRY(mgpu_lower_body(l, body, in, out));
        for (int j = 0; j < body->outputs; j++)
            made[j]->item[k] = out[j];
    }
    for (int j = 0; j < body->outputs; j++)
        l->out[j] = &made[j]->value;
    return 0;
}

/* ---- Optionals ------------------------------------------------------------------------------- */

static int lower_optional(struct mgpu_lower *l)
{
    struct mgpu_value *v = mgpu_lower_in(l, 0);
    struct mgpu_sequence *nothing = mgpu_sequence_new(l, mgpu_dim_const(0));
    nothing->absent = true;
    l->out[0] = v ? v : &nothing->value;
    return 0;
}

static bool is_there(struct mgpu_value *v)
{
    const struct mgpu_sequence *s = mgpu_as_sequence(v);
    return v && !(s && s->absent);
}

static int lower_has_element(struct mgpu_lower *l)
{
    bool there = is_there(mgpu_lower_in(l, 0));
    return mgpu_lower_give(l, mgpu_const_double(l->g, MGPU_BOOL, there));
}

static int lower_get_element(struct mgpu_lower *l)
{
    struct mgpu_value *v = mgpu_lower_in(l, 0);
    if (!is_there(v))
        return mgpu_fail(MGPU_EINVALID, "the optional has no value");
    l->out[0] = v;
    return 0;
}

const struct mgpu_lowering mgpu_lower_sequence[] = {
    {"SequenceEmpty", 11, 0, lower_empty},
    {"SequenceConstruct", 11, 0, lower_construct},
    {"SequenceInsert", 11, 0, lower_insert},
    {"SequenceErase", 11, 0, lower_erase},
    {"SequenceAt", 11, 0, lower_at},
    {"SequenceLength", 11, 0, lower_length},
    {"ConcatFromSequence", 11, 0, lower_concat_from},
    {"SplitToSequence", 11, 0, lower_split_to},
    {"SequenceMap", 17, 0, lower_map},
    {"Optional", 15, 0, lower_optional},
    {"OptionalHasElement", 15, 0, lower_has_element},
    {"OptionalGetElement", 15, 0, lower_get_element},
    {0},
};
