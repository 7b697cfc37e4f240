/* Attention and RotaryEmbedding (opset 23 and later), as products, masks and softmax. */
#include "importer/lower.h"
#include "runtime/base/status.h"
#include "runtime/ops/dims.h"
#include "runtime/ops/gather.h"
#include "runtime/ops/movement.h"

#include <inttypes.h>
#include <math.h>

/* ---- Heads ---------------------------------------------------------------------------------- */

/* [N,S,heads*D] as [N,heads,S,D]; what has rank 4 already is as it should be. */
static struct mgpu_value *split_heads(struct mgpu_lower *l, struct mgpu_value *x, int64_t heads)
{
    if (!x || x->rank == 4)
        return x;
    if (x->rank != 3 || heads < 1 || x->dims[2].value % heads)
        return mgpu_build_fail(MGPU_EINVALID, "%" PRId64 " heads for '%s' of rank %d", heads,
                               x->name, x->rank);
    struct mgpu_dim h = mgpu_dim_const(heads);
    struct mgpu_dim dims[] = {x->dims[0], x->dims[1], h, mgpu_dim_div(x->dims[2], h)};
    return mgpu_transpose(l->g, mgpu_reshape(l->g, x, 4, dims), (int[]){0, 2, 1, 3});
}

static struct mgpu_value *join_heads(struct mgpu_lower *l, struct mgpu_value *x)
{
    x = mgpu_transpose(l->g, x, (int[]){0, 2, 1, 3});
    if (!x)
        return NULL;
    struct mgpu_dim dims[] = {x->dims[0], x->dims[1], mgpu_dim_mul(x->dims[2], x->dims[3])};
    return mgpu_reshape(l->g, x, 3, dims);
}

/* Each of the key-value heads serves a group of query heads. */
static struct mgpu_value *repeat_heads(struct mgpu_lower *l, struct mgpu_value *x, int64_t heads)
{
    if (!x || x->dims[1].value == heads)
        return x;
    if (x->dims[1].value < 1 || heads % x->dims[1].value)
        return mgpu_build_fail(MGPU_EINVALID, "%" PRId64 " query heads and %" PRId64 " of keys",
                               heads, x->dims[1].value);
    struct mgpu_dim one = mgpu_dim_const(1), group = mgpu_dim_const(heads / x->dims[1].value);
    struct mgpu_dim apart[] = {x->dims[0], x->dims[1], one, x->dims[2], x->dims[3]};
    struct mgpu_dim spread[] = {x->dims[0], x->dims[1], group, x->dims[2], x->dims[3]};
    struct mgpu_dim out[] = {x->dims[0], mgpu_dim_const(heads), x->dims[2], x->dims[3]};
    x = mgpu_broadcast(l->g, mgpu_reshape(l->g, x, 5, apart), 5, spread);
    return mgpu_reshape(l->g, x, 4, out);
}

/* ---- Masks ---------------------------------------------------------------------------------- */

static struct mgpu_value *keep_where(struct mgpu_lower *l, struct mgpu_value *allowed,
                                     struct mgpu_value *scores)
{
    if (!allowed || !scores)
        return NULL;
    return mgpu_where(l->g, allowed, scores, mgpu_const_double(l->g, scores->type, -INFINITY));
}

/* Query i sees keys up to past + i. */
static struct mgpu_value *causal(struct mgpu_lower *l, struct mgpu_value *scores, int64_t past)
{
    if (!scores)
        return NULL;
    const struct mgpu_dim *dims = scores->dims + 2;
    int64_t queries = dims[0].value, keys = dims[1].value;
    if (queries > 1 << 14 || keys > 1 << 14)
        return mgpu_build_fail(MGPU_EUNSUPPORTED, "%" PRId64 " x %" PRId64 " scores", queries,
                               keys);
    bool *allowed = MGPU_NEW_ARRAY(l->g->arena, bool, queries *keys);
    for (int64_t i = 0; i < queries; i++)
        for (int64_t j = 0; j < keys; j++)
            allowed[i * keys + j] = j <= i + past;
    return keep_where(l, mgpu_graph_constant(l->g, NULL, MGPU_BOOL, 2, dims, allowed, NULL),
                      scores);
}

/* A mask that is shorter than the keys hides the rest. */
static struct mgpu_value *whole_mask(struct mgpu_lower *l, struct mgpu_value *mask, int64_t keys)
{
    int last = mask->rank - 1;
    if (last < 0 || mask->dims[last].value >= keys || mask->dims[last].value == 1)
        return mask;
    struct mgpu_pad_attrs attrs = {.mode = MGPU_PAD_CONSTANT};
    attrs.after[last] = keys - mask->dims[last].value;
    double hidden = mask->type == MGPU_BOOL ? 0 : -INFINITY;
    struct mgpu_value *input[] = {mask, mgpu_const_double(l->g, mask->type, hidden)};
    return mgpu_lower_node(l, &mgpu_op_pad, &attrs, 2, input);
}

/* Keys from the sample's length on are padding. */
static struct mgpu_value *hide_padding(struct mgpu_lower *l, struct mgpu_value *scores,
                                       struct mgpu_value *lengths)
{
    if (!scores || lengths->rank != 1)
        return scores ? mgpu_build_fail(MGPU_EINVALID, "nonpad_kv_seqlen is no vector") : NULL;
    int64_t keys = scores->dims[3].value;
    struct mgpu_dim one = mgpu_dim_const(1);
    int64_t *place = MGPU_NEW_ARRAY(l->g->arena, int64_t, keys);
    for (int64_t j = 0; j < keys; j++)
        place[j] = j;
    struct mgpu_value *places =
        mgpu_graph_constant(l->g, NULL, MGPU_INT64, 1, &scores->dims[3], place, NULL);
    lengths = mgpu_reshape(l->g, mgpu_cast(l->g, lengths, MGPU_INT64), 4,
                           (struct mgpu_dim[]){lengths->dims[0], one, one, one});
    return keep_where(l, mgpu_binary(l->g, MGPU_X_LT, places, lengths), scores);
}

/* ---- Attention ------------------------------------------------------------------------------ */

enum { Q, K, V, MASK, PAST_KEY, PAST_VALUE, LENGTHS, INPUTS };

static struct mgpu_value *after_past(struct mgpu_lower *l, struct mgpu_value *past,
                                     struct mgpu_value *x)
{
    return past ? mgpu_concat(l->g, 2, 2, (struct mgpu_value *[]){past, x}) : x;
}

static struct mgpu_value *softcap(struct mgpu_lower *l, struct mgpu_value *scores)
{
    double cap = mgpu_onnx_float(l->node, "softcap", 0);
    if (!(cap > 0))
        return scores;
    scores = mgpu_unary(l->g, MGPU_X_TANH, mgpu_affine(l->g, scores, 1 / cap, 0));
    return mgpu_affine(l->g, scores, cap, 0);
}

static struct mgpu_value *masked(struct mgpu_lower *l, struct mgpu_value *scores,
                                 struct mgpu_value *const *in)
{
    struct mgpu_value *mask = in[MASK];
    if (mask && scores && !(mask = whole_mask(l, mask, scores->dims[3].value)))
        return NULL;
    if (mask && mask->type == MGPU_BOOL)
        scores = keep_where(l, mask, scores);
    else if (mask)
        scores = mgpu_add(l->g, scores, mask);
    if (mgpu_onnx_int(l->node, "is_causal", 0))
        scores = causal(l, scores, in[PAST_KEY] ? in[PAST_KEY]->dims[2].value : 0);
    return in[LENGTHS] ? hide_padding(l, scores, in[LENGTHS]) : scores;
}

static int read_attention(struct mgpu_lower *l, struct mgpu_value **in)
{
    int64_t heads = mgpu_onnx_int(l->node, "q_num_heads", 0);
    int64_t shared = mgpu_onnx_int(l->node, "kv_num_heads", heads);
    for (int i = 0; i < INPUTS; i++)
        in[i] = mgpu_lower_in(l, i);
    if (!in[Q] || !in[K] || !in[V])
        return mgpu_fail(MGPU_EINVALID, "an input is missing");
    if (mgpu_onnx_int(l->node, "left_window_size", -1) >= 0 ||
        mgpu_onnx_int(l->node, "right_window_size", -1) >= 0)
        return mgpu_fail(MGPU_EUNSUPPORTED, "a window of keys is not supported");
    in[Q] = split_heads(l, in[Q], heads);
    in[K] = after_past(l, in[PAST_KEY], split_heads(l, in[K], shared));
    in[V] = after_past(l, in[PAST_VALUE], split_heads(l, in[V], shared));
    return in[Q] && in[K] && in[V] ? 0 : mgpu_build_error();
}

/* softmax(mask(cap(q * scale * k'))) * v. */
static int lower_attention(struct mgpu_lower *l)
{
    struct mgpu_value *in[INPUTS], *stage[4];
    int64_t shown = mgpu_onnx_int(l->node, "qk_matmul_output_mode", 0);
    MGPU_TRY(read_attention(l, in));
    int64_t heads = in[Q]->dims[1].value;
    double scale = mgpu_onnx_float(l->node, "scale", 1 / sqrt((double)in[Q]->dims[3].value));
    struct mgpu_value *q = mgpu_affine(l->g, in[Q], scale, 0);
    stage[0] = mgpu_matmul(l->g, q, false, repeat_heads(l, in[K], heads), true);
    stage[1] = softcap(l, stage[0]);
    stage[2] = masked(l, stage[1], in);
    stage[3] = stage[2] ? mgpu_softmax(l->g, stage[2], 3, false) : NULL;
    struct mgpu_value *y = mgpu_matmul(l->g, stage[3], false, repeat_heads(l, in[V], heads), false);
    if (shown < 0 || shown > 3)
        return mgpu_fail(MGPU_EINVALID, "qk_matmul_output_mode %" PRId64, shown);
    l->out[1] = in[K];
    l->out[2] = in[V];
    l->out[3] = stage[shown];
    return mgpu_lower_give(l, mgpu_lower_in(l, Q)->rank == 3 ? join_heads(l, y) : y);
}

/* ---- RotaryEmbedding ------------------------------------------------------------------------ */

/* cos or sin for each place: [N,S,D/2] as [N,1,S,D/2]; with position_ids they are looked up. */
static struct mgpu_value *angles(struct mgpu_lower *l, int i)
{
    struct mgpu_value *cache = mgpu_lower_in(l, i), *place = mgpu_lower_in(l, 3);
    struct mgpu_gather_attrs attrs = {.axis = 0};
    if (place)
        cache = mgpu_lower_node(l, &mgpu_op_gather, &attrs, 2,
                                (struct mgpu_value *[]){cache, mgpu_cast(l->g, place, MGPU_INT64)});
    if (!cache || cache->rank != 3)
        return cache ? mgpu_build_fail(MGPU_EINVALID, "a cache has rank %d", cache->rank) : NULL;
    struct mgpu_dim dims[] = {cache->dims[0], mgpu_dim_const(1), cache->dims[1], cache->dims[2]};
    return mgpu_reshape(l->g, cache, 4, dims);
}

/* Every second element from `start` on of the first `size` of the last axis, or one half of them.
 */
static struct mgpu_value *half(struct mgpu_lower *l, struct mgpu_value *x, int64_t size, int which)
{
    bool interleaved = mgpu_onnx_int(l->node, "interleaved", 0);
    int64_t start[4] = {0, 0, 0, interleaved ? which : which * (size / 2)};
    int64_t step[4] = {1, 1, 1, interleaved ? 2 : 1};
    struct mgpu_dim dims[4] = {x->dims[0], x->dims[1], x->dims[2], mgpu_dim_const(size / 2)};
    return mgpu_slice(l->g, x, start, step, dims);
}

/* The two rotated halves back in the places that they came from. */
static struct mgpu_value *together(struct mgpu_lower *l, struct mgpu_value *a, struct mgpu_value *b)
{
    if (!a || !b)
        return NULL;
    if (!mgpu_onnx_int(l->node, "interleaved", 0))
        return mgpu_concat(l->g, 3, 2, (struct mgpu_value *[]){a, b});
    struct mgpu_dim one = mgpu_dim_const(1), size = mgpu_dim_const(2 * a->dims[3].value);
    struct mgpu_dim apart[] = {a->dims[0], a->dims[1], a->dims[2], a->dims[3], one};
    struct mgpu_dim out[] = {a->dims[0], a->dims[1], a->dims[2], size};
    struct mgpu_value *parts[] = {mgpu_reshape(l->g, a, 5, apart), mgpu_reshape(l->g, b, 5, apart)};
    return mgpu_reshape(l->g, mgpu_concat(l->g, 4, 2, parts), 4, out);
}

static int lower_rotary(struct mgpu_lower *l)
{
    struct mgpu_graph *g = l->g;
    struct mgpu_value *given = mgpu_lower_in(l, 0);
    if (!given || !mgpu_lower_in(l, 1) || !mgpu_lower_in(l, 2))
        return mgpu_fail(MGPU_EINVALID, "an input is missing");
    struct mgpu_value *x = split_heads(l, given, mgpu_onnx_int(l->node, "num_heads", 0));
    struct mgpu_value *c = angles(l, 1), *s = angles(l, 2);
    if (!x || !c || !s)
        return mgpu_build_error();
    int64_t size = mgpu_onnx_int(l->node, "rotary_embedding_dim", 0);
    size = size ? size : x->dims[3].value;
    if (size % 2 || size > x->dims[3].value || size < 2)
        return mgpu_fail(MGPU_EINVALID, "rotary_embedding_dim %" PRId64, size);
    struct mgpu_value *a = half(l, x, size, 0), *b = half(l, x, size, 1);
    struct mgpu_value *y = together(l, mgpu_sub(g, mgpu_mul(g, c, a), mgpu_mul(g, s, b)),
                                    mgpu_add(g, mgpu_mul(g, s, a), mgpu_mul(g, c, b)));
    int64_t rest = x->dims[3].value - size;
    if (rest)
        y = mgpu_concat(
            g, 3, 2,
            (struct mgpu_value *[]){y, mgpu_slice_axis(g, x, 3, size, mgpu_dim_const(rest))});
    return mgpu_lower_give(l, given->rank == 3 ? join_heads(l, y) : y);
}

const struct mgpu_lowering mgpu_lower_attention[] = {
    {"Attention", 23, 0, lower_attention},
    {"RotaryEmbedding", 23, 0, lower_rotary},
    {0},
};
