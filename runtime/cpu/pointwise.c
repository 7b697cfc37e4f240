/* Pointwise expressions on floats, a tile at a time so that what lies between two operations stays
 * in the first cache.
 *
 * Every value of the expression is a run of floats (bool: 0 or 1). Inputs that already are such a
 * run are used where they lie, the last operation writes where the output lies; everything else has
 * a slot of one tile in the thread's workspace. Other types come in through a cast and leave
 * through a last one.
 */
#include "runtime/ops/pointwise.h"
#include "runtime/cpu/blocks.h"
#include "runtime/cpu/broadcast.h"
#include "runtime/cpu/cpu.h"
#include "runtime/cpu/pointwise_ops.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum {
    TILE = 512,
    FAR = 1 << 16, /* elements that no second cache holds */
    LINE = 64 / sizeof(float),
};

/* Where the values of an operation lie. */
enum place_kind {
    DIRECT, /* in input `index` itself */
    LOADED, /* in slot `slot`, filled from input `index` for each tile */
    FIXED,  /* in slot `slot`, the same for all tiles: constants, inputs of one element */
    MADE,   /* in slot `slot`, made by the operation */
    OUTPUT, /* in the output */
    ALIAS,  /* where those of operation `index` lie: a cast that changes nothing, or a factor or
             * offset that the loop of its operand or of its reader applies as well */
};

struct place {
    enum place_kind kind;
    int slot, index;
    struct mgpu_cpu_ends ends;  /* MADE, OUTPUT */
    struct mgpu_broadcast from; /* LOADED */
};

struct program {
    bool past;                          /* the output is written past the caches */
    int slots, steps;                   /* operations that run for each tile */
    int streams, stream[MGPU_EXPR_MAX]; /* those whose values lie in memory, tile by tile */
    struct place place[MGPU_EXPR_MAX];
};

/* ---- What is accepted ------------------------------------------------------------------------ */

static bool plain(enum mgpu_dtype type)
{
    return type == MGPU_FLOAT || type == MGPU_BOOL;
}

/* An input of another type that is only ever cast to float (or bool, where float keeps zero and not
 * zero apart). */
static bool only_cast(const struct mgpu_expr *e, int k)
{
    for (int i = k + 1; i < e->count; i++) {
        const struct mgpu_expr_op *op = &e->op[i];
        bool uses = op->arg[0] == k || op->arg[1] == k || op->arg[2] == k;
        bool exact = op->type == MGPU_FLOAT || e->op[k].type != MGPU_DOUBLE;
        if (uses && !(op->code == MGPU_X_CAST && plain(op->type) && exact))
            return false;
    }
    return true;
}

static bool accepts_op(const struct mgpu_expr *e, int k)
{
    const struct mgpu_expr_op *op = &e->op[k];
    if (op->code == MGPU_X_INPUT)
        return plain(op->type) || (k < e->count - 1 && only_cast(e, k));
    if (op->code == MGPU_X_CONST)
        return plain(op->type);
    if (op->code == MGPU_X_CAST && k == e->count - 1)
        return true;
    return plain(op->type) && mgpu_cpu_applies(op->code);
}

static bool accepts(const struct mgpu_node *node)
{
    const struct mgpu_expr *e = ((const struct mgpu_pointwise_attrs *)node->attrs)->expr;
    for (int k = 0; k < e->count; k++) {
        if (!accepts_op(e, k))
            return false;
    }
    return mgpu_value_count(node->output[0]) > 0;
}

/* ---- Making the program ---------------------------------------------------------------------- */

static enum place_kind kind_of(const struct mgpu_node *node, const struct mgpu_expr *e, int k)
{
    const struct mgpu_expr_op *op = &e->op[k];
    if (op->code == MGPU_X_CONST)
        return FIXED;
    if (op->code == MGPU_X_INPUT) {
        const struct mgpu_value *x = node->input[op->integer];
        int64_t count = mgpu_value_count(x);
        if (count == 1)
            return FIXED;
        return x->type == MGPU_FLOAT && count == mgpu_value_count(node->output[0]) ? DIRECT
                                                                                   : LOADED;
    }
    if (op->code == MGPU_X_CAST && (e->op[op->arg[0]].type == op->type || op->type != MGPU_BOOL))
        return ALIAS;
    return MADE;
}

/* The operation whose place operation k's values really have. */
static int owner(const struct program *p, int k)
{
    while (p->place[k].kind == ALIAS)
        k = p->place[k].index;
    return k;
}

/* The operand that operation k multiplies with a constant, adds one to or negates; -1: it does
 * something else. */
static int scaled_operand(const struct mgpu_expr *e, int k)
{
    const struct mgpu_expr_op *op = &e->op[k];
    if (op->type != MGPU_FLOAT)
        return -1;
    if (op->code == MGPU_X_NEG)
        return op->arg[0];
    if (op->code != MGPU_X_MUL && op->code != MGPU_X_ADD && op->code != MGPU_X_SUB)
        return -1;
    if (e->op[op->arg[1]].code == MGPU_X_CONST)
        return op->arg[0];
    return e->op[op->arg[0]].code == MGPU_X_CONST ? op->arg[1] : -1;
}

/* The ends with operation k behind them: a factor, then an offset, so that nothing is rounded more
 * often or in another order than before. */
static bool extend(struct mgpu_cpu_ends *tail, const struct mgpu_expr_op *op, double constant,
                   bool constant_first)
{
    float c = (float)constant;
    if (tail->offset != 0 || !signbit(tail->offset) ||
        (op->code == MGPU_X_MUL && tail->factor != 1))
        return false;
    if (op->code == MGPU_X_MUL)
        tail->factor = c;
    else if (op->code == MGPU_X_NEG || constant_first)
        tail->factor = op->code == MGPU_X_ADD ? tail->factor : -tail->factor;
    if (op->code == MGPU_X_ADD || op->code == MGPU_X_SUB)
        tail->offset = op->code == MGPU_X_SUB && !constant_first ? -c : c;
    return true;
}

static void count_readers(const struct mgpu_expr *e, int *readers)
{
    for (int k = 0; k < e->count; k++)
        for (int i = 0; i < mgpu_expr_arity(e->op[k].code); i++)
            readers[e->op[k].arg[i]]++;
}

/* Factors and offsets join the operation before them, where nothing else reads that. */
static void join_tails(struct program *p, const struct mgpu_expr *e, const int *readers)
{
    for (int k = 0; k < e->count; k++) {
        const struct mgpu_expr_op *op = &e->op[k];
        int operand = scaled_operand(e, k), from = operand < 0 ? -1 : owner(p, operand);
        if (from < 0 || readers[operand] != 1 || p->place[from].kind != MADE)
            continue;
        bool first = operand != op->arg[0];
        double c = op->code == MGPU_X_NEG ? 0 : e->op[op->arg[!first]].number;
        if (!extend(&p->place[from].ends, op, c, first))
            continue;
        p->place[k].kind = ALIAS;
        p->place[k].index = from;
    }
}

/* A factor that stayed an operation joins the one of one operand that reads it, if no other does.
 */
static void join_heads(struct program *p, const struct mgpu_expr *e, const int *readers)
{
    for (int k = 0; k < e->count; k++) {
        int j = e->op[k].arg[0];
        if (p->place[k].kind != MADE || mgpu_expr_arity(e->op[k].code) != 1 ||
            p->place[j].kind != MADE || readers[j] != 1)
            continue;
        const struct mgpu_expr_op *op = &e->op[j];
        const struct mgpu_cpu_ends *ends = &p->place[j].ends;
        int operand = scaled_operand(e, j);
        if (operand < 0 || op->code != MGPU_X_MUL || ends->factor != 1 || !signbit(ends->offset))
            continue;
        p->place[k].ends.head = (float)e->op[op->arg[operand == op->arg[0]]].number;
        p->place[j].kind = ALIAS;
        p->place[j].index = operand;
    }
}

/* Gives slots to the operations that need one; a slot is free again after its last reader. What is
 * fixed keeps its own; constants that were joined need none. */
static void give_slots(struct program *p, const struct mgpu_expr *e)
{
    int last[MGPU_EXPR_MAX] = {0}, free_slots[MGPU_EXPR_MAX], free_count = 0;
    for (int k = 0; k < e->count; k++)
        for (int i = 0; p->place[k].kind != ALIAS && i < mgpu_expr_arity(e->op[k].code); i++)
            last[owner(p, e->op[k].arg[i])] = k;
    last[owner(p, e->count - 1)] = e->count;
    for (int k = 0; k < e->count; k++) {
        struct place *place = &p->place[k];
        if (place->kind == FIXED)
            place->slot = last[k] ? p->slots++ : -1;
        else if (place->kind == LOADED || place->kind == MADE)
            place->slot = free_count ? free_slots[--free_count] : p->slots++;
        for (int i = 0; i < k; i++)
            if (last[i] == k && (p->place[i].kind == LOADED || p->place[i].kind == MADE))
                free_slots[free_count++] = p->place[i].slot;
    }
}

static void count_steps(struct program *p, const struct mgpu_expr *e)
{
    for (int k = 0; k < e->count; k++) {
        enum place_kind kind = p->place[k].kind;
        p->steps += kind == MADE || kind == OUTPUT;
        if (kind == DIRECT || kind == OUTPUT)
            p->stream[p->streams++] = k;
    }
}

static int prepare(const struct mgpu_node *node, int threads, bool exact, void **state)
{
    (void)threads, (void)exact;
    const struct mgpu_expr *e = ((const struct mgpu_pointwise_attrs *)node->attrs)->expr;
    struct program *p = mgpu_xcalloc(1, sizeof *p);
    int readers[MGPU_EXPR_MAX] = {0};
    for (int k = 0; k < e->count; k++) {
        struct place *place = &p->place[k];
        place->kind = kind_of(node, e, k);
        place->index = e->op[k].arg[0]; /* of an alias */
        place->ends = (struct mgpu_cpu_ends){1, 1, -0.0f};
        if (e->op[k].code != MGPU_X_INPUT)
            continue;
        place->index = (int)e->op[k].integer;
        place->from = mgpu_broadcast_make(node->input[place->index], node->output[0]);
    }
    count_readers(e, readers);
    join_tails(p, e, readers);
    join_heads(p, e, readers);
    struct place *last = &p->place[owner(p, e->count - 1)];
    p->past = node->output[0]->type == MGPU_FLOAT &&
              mgpu_cpu_is_beyond(mgpu_value_count(node->output[0]));
    if (last->kind == MADE && node->output[0]->type == MGPU_FLOAT && !p->past)
        last->kind = OUTPUT;
    give_slots(p, e);
    count_steps(p, e);
    *state = p;
    return 0;
}

static int64_t workspace(const struct mgpu_node *node, int threads, const void *state)
{
    (void)node;
    const struct program *p = state;
    return (int64_t)threads * p->slots * TILE * (int64_t)sizeof(float);
}

/* ---- Running --------------------------------------------------------------------------------- */

static void fill_fixed(const struct mgpu_launch *l, const struct mgpu_expr *e, float *slots, int n)
{
    const struct program *p = l->state;
    for (int k = 0; k < e->count; k++) {
        const struct mgpu_expr_op *op = &e->op[k];
        if (p->place[k].kind != FIXED || p->place[k].slot < 0)
            continue;
        float *to = slots + (int64_t)p->place[k].slot * TILE;
        if (op->code == MGPU_X_INPUT)
            mgpu_broadcast_load(&p->place[k].from, &l->in[op->integer], 0, n, to);
        else
            for (int i = 0; i < n; i++)
                to[i] = op->type == MGPU_BOOL ? op->integer != 0 : (float)op->number;
    }
}

static float *locate(const struct mgpu_launch *l, int k, float *slots, int64_t flat)
{
    const struct program *p = l->state;
    const struct place *place = &p->place[owner(p, k)];
    if (place->kind == DIRECT)
        return (float *)l->in[place->index].data + flat;
    if (place->kind == OUTPUT)
        return (float *)l->out[0].data + flat;
    return place->slot < 0 ? NULL : slots + (int64_t)place->slot * TILE;
}

static void store(const struct mgpu_tensor *y, int64_t flat, int n, const float *from)
{
    char *to = (char *)y->data + flat * (int64_t)mgpu_dtype_size(y->type);
    if ((const float *)to == from)
        return;
    if (y->type == MGPU_BOOL)
        for (int i = 0; i < n; i++)
            to[i] = from[i] != 0;
    else
        mgpu_convert(to, y->type, from, MGPU_FLOAT, n);
}

/* Brings on its way what the tile at `flat` reads and writes, the step-th part of it: with all at
 * once the thread would wait until the cache has room for so many requests. */
static void fetch(const struct mgpu_launch *l, int64_t flat, int step)
{
    const struct program *p = l->state;
    struct mgpu_range lines = mgpu_cpu_part(TILE / LINE, step, p->steps);
    for (int s = 0; s < p->streams; s++) {
        const float *at = locate(l, p->stream[s], NULL, flat);
        for (int64_t i = lines.begin; i < lines.end; i++)
            __builtin_prefetch(at + i * LINE);
    }
}

/* `ahead`: the next tile is fetched meanwhile. */
static void run_tile(const struct mgpu_launch *l, const struct mgpu_expr *e, float *slots,
                     int64_t flat, int n, bool ahead)
{
    const struct program *p = l->state;
    float *at[MGPU_EXPR_MAX];
    int step = 0;
    for (int k = 0; k < e->count; k++) {
        const struct mgpu_expr_op *op = &e->op[k];
        const struct place *place = &p->place[k];
        at[k] = locate(l, k, slots, flat);
        if (place->kind == LOADED)
            mgpu_broadcast_load(&place->from, &l->in[place->index], flat, n, at[k]);
        if (place->kind != MADE && place->kind != OUTPUT)
            continue;
        if (ahead)
            fetch(l, flat + TILE, step++);
        mgpu_cpu_apply(op->code, at[k], at[op->arg[0]], op->arg[1] < 0 ? NULL : at[op->arg[1]],
                       op->arg[2] < 0 ? NULL : at[op->arg[2]], place->ends, n);
    }
    if (p->past && !mgpu_cpu_in_place(l))
        mgpu_cpu_write_past((float *)l->out[0].data + flat, at[e->count - 1], n);
    else
        store(&l->out[0], flat, n, at[e->count - 1]);
}

static int run(const struct mgpu_launch *l)
{
    const struct mgpu_expr *e = ((const struct mgpu_pointwise_attrs *)l->node->attrs)->expr;
    const struct program *p = l->state;
    int64_t count = mgpu_value_bytes(l->node->output[0]) /
                    (int64_t)mgpu_dtype_size(l->out[0].type); /* with what fills blocks */
    int64_t tiles = (count + TILE - 1) / TILE;
    int team = mgpu_cpu_team(l->threads, count * (e->count < 4 ? 1 : e->count / 4));
#pragma omp parallel num_threads(team) if (team > 1)
    {
        int me = omp_get_thread_num();
        float *slots = (float *)l->workspace + (int64_t)me * p->slots * TILE;
        fill_fixed(l, e, slots, count < TILE ? (int)count : TILE);
        struct mgpu_range range = mgpu_cpu_part(tiles, me, team);
        for (int64_t t = range.begin; t < range.end; t++) {
            int64_t left = count - t * TILE;
            run_tile(l, e, slots, t * TILE, left < TILE ? (int)left : TILE,
                     count > FAR && t + 1 < range.end);
        }
        if (p->past)
            mgpu_cpu_end_past();
    }
    if (l->out[0].block)
        mgpu_clear_padding(&l->out[0]);
    return 0;
}

static void release(void *state)
{
    free(state);
}

const struct mgpu_kernel mgpu_cpu_pointwise[] = {
    {"pointwise", "tiles", accepts, prepare, release, workspace, run},
    {NULL, NULL, NULL, NULL, NULL, NULL, NULL},
};
