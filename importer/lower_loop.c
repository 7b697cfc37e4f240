/* Loop and Scan whose rounds are known: the body is lowered once a round. */
#include "importer/lower_sequence.h"

#include "runtime/base/status.h"
#include "runtime/ops/dims.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_ROUNDS = 100000 };

/* Values of one scanned output, round by round. */
struct scanned {
    struct mgpu_value **value; /* from mgpu_grow */
    int count;
};

static void free_scanned(struct scanned *scanned, int count)
{
    for (int i = 0; i < count; i++)
        free(scanned[i].value);
    free(scanned);
}

static int add_scanned(struct scanned *s, struct mgpu_value *value)
{
    if (mgpu_as_sequence(value))
        return mgpu_fail(MGPU_EINVALID, "a scanned output of the body is a sequence");
    s->value = mgpu_grow(s->value, (size_t)s->count, sizeof(struct mgpu_value *));
    s->value[s->count++] = value;
    return 0;
}

/* ---- Loop ------------------------------------------------------------------------------------ */

struct loop {
    const struct mgpu_onnx_body *body;
    int carried, scans;
    int64_t most;            /* rounds; -1: no bound */
    struct mgpu_dim bound;   /* where it came from */
    bool by_batch;           /* a condition depends on the size of the batch */
    int rounds;              /* made */
    struct mgpu_value **in;  /* of the body: round, condition, what is carried */
    struct mgpu_value **out; /* condition, what is carried, what is scanned */
    struct scanned *scanned;
};

static int condition(struct loop *loop, const struct mgpu_value *v, bool *go)
{
    struct mgpu_dim d;
    *go = true;
    if (!v)
        return 0;
    if (v->kind != MGPU_VALUE_CONSTANT || mgpu_value_count(v) != 1)
        return mgpu_fail(MGPU_EUNSUPPORTED, "its condition '%s' is known only when the model runs",
                         v->name);
    *go = mgpu_get_double(v->data, v->type, 0) != 0;
    d = v->ints ? v->ints[0] : mgpu_dim_const(0);
    loop->by_batch = loop->by_batch || v->tainted || mgpu_dim_has(d, MGPU_BATCH);
    return 0;
}

static int one_round(struct mgpu_lower *l, struct loop *loop, bool *go)
{
    if (loop->rounds == MOST_ROUNDS)
        return mgpu_fail(MGPU_EUNSUPPORTED, "it makes more than %d rounds", MOST_ROUNDS);
    loop->in[0] = mgpu_const_double(l->g, MGPU_INT64, loop->rounds);
    MGPU_TRY(mgpu_lower_body(l, loop->body, loop->in, loop->out));
    MGPU_TRY(condition(loop, loop->out[0], go));
    for (int i = 0; i < loop->carried; i++)
        loop->in[i + 2] = loop->out[i + 1];
    for (int i = 0; i < loop->scans; i++)
        MGPU_TRY(add_scanned(&loop->scanned[i], loop->out[1 + loop->carried + i]));
    loop->rounds++;
    return 0;
}

static int run_loop(struct mgpu_lower *l, struct loop *loop)
{
    bool go;
    MGPU_TRY(condition(loop, mgpu_lower_in(l, 1), &go));
    loop->in[1] = mgpu_const_double(l->g, MGPU_BOOL, 1);
    while (go && (loop->most < 0 || loop->rounds < loop->most))
        MGPU_TRY(one_round(l, loop, &go));
    return 0;
}

/* How many rounds were made, and on what that depends. */
static struct mgpu_dim rounds_of(const struct loop *loop)
{
    if (loop->rounds == loop->most)
        return loop->bound;
    return loop->by_batch ? mgpu_dim_opaque(loop->rounds) : mgpu_dim_const(loop->rounds);
}

/* What a loop over the batch carried out of its last round. */
static struct mgpu_value *carried_out(struct mgpu_lower *l, struct mgpu_dim rounds,
                                      struct mgpu_value *first, struct mgpu_value *last)
{
    struct mgpu_sequence *s = mgpu_as_sequence(last);
    if (first == last || !mgpu_dim_has(rounds, MGPU_BATCH))
        return last;
    if (s)
        s->size = s->size.value == rounds.value ? rounds : mgpu_dim_opaque(s->size.value);
    else if (last->kind == MGPU_VALUE_CONSTANT)
        last->tainted = true;
    else
        mgpu_graph_whole(l->g);
    return last;
}

/* A scanned output of no rounds has the shape that the body declares. */
static struct mgpu_value *no_rounds(struct mgpu_lower *l, const struct mgpu_onnx_value *declared)
{
    struct mgpu_dim dims[MGPU_MAX_RANK] = {mgpu_dim_const(0)};
    enum mgpu_dtype type;
    bool known = declared->rank >= 0 && declared->rank < MGPU_MAX_RANK &&
                 mgpu_lower_type(l, declared->type, &type) == 0;
    for (int i = 0; known && i < declared->rank; i++) {
        known = declared->dims[i] >= 0;
        dims[i + 1] = mgpu_dim_const(declared->dims[i]);
    }
    if (!known)
        return mgpu_build_fail(MGPU_EUNSUPPORTED,
                               "it makes no round, and the shape of '%s' is not declared",
                               declared->name);
    return mgpu_graph_constant(l->g, NULL, type, declared->rank + 1, dims, "", NULL);
}

static int give_loop(struct mgpu_lower *l, struct loop *loop)
{
    struct mgpu_dim rounds = rounds_of(loop);
    int most = (int)(sizeof l->out / sizeof *l->out);
    for (int i = 0; i < l->node->outputs && i < most; i++) {
        int scan = i - loop->carried;
        if (!mgpu_lower_wants(l, i))
            continue;
        if (scan < 0)
            l->out[i] = carried_out(l, rounds, mgpu_lower_in(l, i + 2), loop->in[i + 2]);
        else if (loop->rounds == 0)
            l->out[i] = no_rounds(l, &loop->body->output[i + 1]);
        else
            l->out[i] = mgpu_lower_stack(l, rounds, loop->scanned[scan].value);
        if (!l->out[i] && scan >= 0)
            return mgpu_build_error();
    }
    return 0;
}

static int read_loop(struct mgpu_lower *l, struct loop *loop)
{
    loop->body = mgpu_lower_body_called(l, "body");
    loop->carried = l->node->inputs > 2 ? l->node->inputs - 2 : 0;
    loop->most = -1;
    if (!loop->body || loop->body->inputs != loop->carried + 2 ||
        loop->body->outputs < loop->carried + 1 || l->node->outputs > loop->body->outputs - 1)
        return mgpu_fail(MGPU_EINVALID, "the body does not fit");
    loop->scans = loop->body->outputs - 1 - loop->carried;
    if (mgpu_lower_in(l, 0))
        MGPU_TRY(mgpu_lower_int(l, 0, &loop->most, &loop->bound));
    if (loop->most < 0 && mgpu_lower_in(l, 0))
        loop->most = 0;
    loop->in = MGPU_NEW_ARRAY(l->g->arena, struct mgpu_value *, loop->body->inputs);
    loop->out = MGPU_NEW_ARRAY(l->g->arena, struct mgpu_value *, loop->body->outputs);
    for (int i = 0; i < loop->carried; i++)
        loop->in[i + 2] = mgpu_lower_in(l, i + 2);
    return 0;
}

int mgpu_lower_loop(struct mgpu_lower *l)
{
    struct loop loop = {0};
    MGPU_TRY(read_loop(l, &loop));
    loop.scanned = mgpu_xcalloc((size_t)loop.scans + 1, sizeof *loop.scanned);
    int rc = run_loop(l, &loop);
    if (rc == 0)
        rc = give_loop(l, &loop);
    free_scanned(loop.scanned, loop.scans);
    return rc;
}

/* ---- Scan ------------------------------------------------------------------------------------ */

enum { MOST_SCANNED = 64 };

struct scan {
    const struct mgpu_onnx_body *body;
    int first;                                      /* input of the node that is the body's first */
    int states, inputs, outputs;                    /* carried, scanned over, scanned out */
    int64_t axis[MOST_SCANNED], back[MOST_SCANNED]; /* of the inputs, then of the outputs */
    struct mgpu_dim rounds;
    struct mgpu_value **in, **out; /* of the body */
    struct scanned *scanned;
};

/* A list attribute with a number for each input or output; zeros when it is absent. */
static int per_scan(struct mgpu_lower *l, const char *name, int count, int64_t *values)
{
    int given = mgpu_onnx_ints(l->node, name, values, count);
    for (int i = 0; i < count && given < 0; i++)
        values[i] = 0;
    return given < 0 || given == count
               ? 0
               : mgpu_fail(MGPU_EINVALID, "attribute '%s' has %d elements", name, given);
}

static int read_body(struct mgpu_lower *l, struct scan *s, int first)
{
    int given = l->node->inputs - first;
    s->first = first;
    s->body = mgpu_lower_body_called(l, "body");
    s->inputs = (int)mgpu_onnx_int(l->node, "num_scan_inputs", 0);
    s->states = given - s->inputs;
    s->outputs = s->body ? s->body->outputs - s->states : -1;
    if (s->inputs < 1 || s->states < 0 || s->outputs < 0 || s->inputs + s->outputs > MOST_SCANNED ||
        s->body->inputs != given || l->node->outputs > s->body->outputs)
        return mgpu_fail(MGPU_EINVALID, "the body does not fit");
    s->in = MGPU_NEW_ARRAY(l->g->arena, struct mgpu_value *, s->body->inputs);
    s->out = MGPU_NEW_ARRAY(l->g->arena, struct mgpu_value *, s->body->outputs);
    for (int i = 0; i < given; i++)
        if (!mgpu_lower_in(l, first + i))
            return mgpu_fail(MGPU_EINVALID, "input %d is missing", first + i);
    return 0;
}

/* The inputs that are scanned over are equally long. */
static int count_rounds(struct mgpu_lower *l, struct scan *s)
{
    for (int i = 0; i < s->inputs; i++) {
        const struct mgpu_value *x = mgpu_lower_in(l, s->first + s->states + i);
        MGPU_TRY(mgpu_lower_axis(&s->axis[i], s->axis[i], x->rank));
        if (i == 0)
            s->rounds = x->dims[s->axis[0]];
        if (x->dims[s->axis[i]].value != s->rounds.value)
            return mgpu_fail(MGPU_EINVALID, "the scanned inputs have different lengths");
    }
    return s->rounds.value <= MOST_ROUNDS
               ? 0
               : mgpu_fail(MGPU_EUNSUPPORTED, "it makes more than %d rounds", MOST_ROUNDS);
}

static int read_scan(struct mgpu_lower *l, struct scan *s)
{
    MGPU_TRY(read_body(l, s, 0));
    MGPU_TRY(per_scan(l, "scan_input_axes", s->inputs, s->axis));
    MGPU_TRY(per_scan(l, "scan_output_axes", s->outputs, s->axis + s->inputs));
    MGPU_TRY(per_scan(l, "scan_input_directions", s->inputs, s->back));
    MGPU_TRY(per_scan(l, "scan_output_directions", s->outputs, s->back + s->inputs));
    for (int i = 0; i < s->states; i++)
        s->in[i] = mgpu_lower_in(l, i);
    return count_rounds(l, s);
}

/* Element k of an input, along its axis. */
static struct mgpu_value *element(struct mgpu_lower *l, struct mgpu_value *x, int axis, int64_t k)
{
    struct mgpu_dim dims[MGPU_MAX_RANK];
    for (int i = 0; i < x->rank; i++)
        if (i != axis)
            dims[i - (i > axis)] = x->dims[i];
    return mgpu_reshape(l->g, mgpu_slice_axis(l->g, x, axis, k, mgpu_dim_const(1)), x->rank - 1,
                        dims);
}

/* All rounds over `x`, which are the scanned inputs, along `axis`. */
static int run_scan(struct mgpu_lower *l, struct scan *s, struct mgpu_value *const *x,
                    const int64_t *axis)
{
    int64_t n = s->rounds.value;
    for (int64_t k = 0; k < n; k++) {
        for (int i = 0; i < s->inputs; i++) {
            s->in[s->states + i] = element(l, x[i], (int)axis[i], s->back[i] ? n - 1 - k : k);
            if (!s->in[s->states + i])
                return mgpu_build_error();
        }
        MGPU_TRY(mgpu_lower_body(l, s->body, s->in, s->out));
        for (int i = 0; i < s->states; i++)
            s->in[i] = s->out[i];
        for (int i = 0; i < s->outputs; i++)
            MGPU_TRY(add_scanned(&s->scanned[i], s->out[s->states + i]));
    }
    return 0;
}

static void reverse(struct scanned *s)
{
    for (int i = 0; i < s->count / 2; i++) {
        struct mgpu_value *v = s->value[i];
        s->value[i] = s->value[s->count - 1 - i];
        s->value[s->count - 1 - i] = v;
    }
}

static int give_scan(struct mgpu_lower *l, struct scan *s)
{
    int most = (int)(sizeof l->out / sizeof *l->out);
    for (int i = 0; i < l->node->outputs && i < most; i++) {
        int k = i - s->states;
        if (k < 0) {
            l->out[i] = carried_out(l, s->rounds, mgpu_lower_in(l, i), s->in[i]);
            continue;
        }
        if (s->rounds.value == 0) {
            if (!(l->out[i] = no_rounds(l, &s->body->output[i])))
                return mgpu_build_error();
            continue;
        }
        if (s->back[s->inputs + k])
            reverse(&s->scanned[k]);
        int64_t axis;
        MGPU_TRY(mgpu_lower_axis(&axis, s->axis[s->inputs + k], s->scanned[k].value[0]->rank + 1));
        l->out[i] = mgpu_lower_move_first(l, mgpu_lower_stack(l, s->rounds, s->scanned[k].value),
                                          (int)axis);
        if (!l->out[i])
            return mgpu_build_error();
    }
    return 0;
}

static int scan_once(struct mgpu_lower *l, struct scan *s)
{
    struct mgpu_value *x[MOST_SCANNED];
    MGPU_TRY(read_scan(l, s));
    s->scanned = mgpu_xcalloc((size_t)s->outputs + 1, sizeof *s->scanned);
    for (int i = 0; i < s->inputs; i++)
        x[i] = mgpu_lower_in(l, s->states + i);
    MGPU_TRY(run_scan(l, s, x, s->axis));
    return give_scan(l, s);
}

int mgpu_lower_scan(struct mgpu_lower *l)
{
    struct scan s = {0};
    int rc = scan_once(l, &s);
    if (s.scanned)
        free_scanned(s.scanned, s.outputs);
    return rc;
}

/* ---- Scan of opset 8: each sample of a batch is scanned by itself ---------------------------- */

static int read_scan_8(struct mgpu_lower *l, struct scan *s)
{
    MGPU_TRY(read_body(l, s, 1));
    MGPU_TRY(per_scan(l, "directions", s->inputs, s->back));
    if (mgpu_lower_in(l, 0))
        return mgpu_fail(MGPU_EUNSUPPORTED, "its sequence_lens are not supported");
    for (int i = 0; i < s->inputs; i++)
        s->axis[i] = 1;
    MGPU_TRY(count_rounds(l, s));
    for (int i = 0; i < s->states + s->inputs; i++) {
        const struct mgpu_value *x = mgpu_lower_in(l, 1 + i);
        if (x->rank < 1 || x->dims[0].value != mgpu_lower_in(l, 1)->dims[0].value)
            return mgpu_fail(MGPU_EINVALID, "the inputs have batches of different sizes");
    }
    return s->rounds.value > 0 ? 0 : mgpu_fail(MGPU_EUNSUPPORTED, "it makes no round");
}

/* What the rounds of sample b give: out[i][b]. */
static int scan_sample(struct mgpu_lower *l, struct scan *s, int64_t b, struct mgpu_value ***out)
{
    static const int64_t first[MOST_SCANNED];
    struct mgpu_value *x[MOST_SCANNED];
    for (int i = 0; i < s->states + s->inputs; i++) {
        struct mgpu_value *v = element(l, mgpu_lower_in(l, 1 + i), 0, b);
        if (!v)
            return mgpu_build_error();
        *(i < s->states ? &s->in[i] : &x[i - s->states]) = v;
    }
    MGPU_TRY(run_scan(l, s, x, first));
    for (int i = 0; i < s->states; i++)
        out[i][b] = s->in[i];
    for (int i = 0; i < s->outputs; i++) {
        out[s->states + i][b] = mgpu_lower_stack(l, s->rounds, s->scanned[i].value);
        s->scanned[i].count = 0;
        if (!out[s->states + i][b])
            return mgpu_build_error();
    }
    return 0;
}

static int scan_samples(struct mgpu_lower *l, struct scan *s)
{
    MGPU_TRY(read_scan_8(l, s));
    struct mgpu_dim batch = mgpu_lower_in(l, 1)->dims[0];
    struct mgpu_value ***out =
        MGPU_NEW_ARRAY(l->g->arena, struct mgpu_value **, s->states + s->outputs);
    for (int i = 0; i < s->states + s->outputs; i++)
        out[i] = MGPU_NEW_ARRAY(l->g->arena, struct mgpu_value *, batch.value);
    s->scanned = mgpu_xcalloc((size_t)s->outputs + 1, sizeof *s->scanned);
    for (int64_t b = 0; b < batch.value; b++)
        MGPU_TRY(scan_sample(l, s, b, out));
    for (int i = 0; i < l->node->outputs && i < (int)(sizeof l->out / sizeof *l->out); i++)
        if (mgpu_lower_wants(l, i) && !(l->out[i] = mgpu_lower_stack(l, batch, out[i])))
            return mgpu_build_error();
    return 0;
}

int mgpu_lower_scan_8(struct mgpu_lower *l)
{
    struct scan s = {0};
    int rc = scan_samples(l, &s);
    if (s.scanned)
        free_scanned(s.scanned, s.outputs);
    return rc;
}
