/* Contents of the stored weights: in from the file, out as plain arrays. */
#include "exporter/layouts.h"
#include "exporter/model_write.h"
#include "runtime/base/status.h"
#include "runtime/compile/rounded.h"
#include "runtime/facade/facade.h"

#include <stdlib.h>
#include <string.h>

void *mgpu_stored_at(const struct mgpu_trainer *t, int rank, const struct mgpu_stored *e)
{
    return (char *)mgpu_team_rank(t->team, rank)->buffer[e->buffer] + e->offset;
}

int mgpu_stored_fetch(const struct mgpu_trainer *t, int rank, const struct mgpu_stored *e)
{
    return mgpu_rank_download(mgpu_team_rank(t->team, rank), e->buffer, e->offset, e->bytes);
}

static int put(const struct mgpu_trainer *t, int rank, const struct mgpu_stored *e)
{
    return mgpu_rank_upload(mgpu_team_rank(t->team, rank), e->buffer, e->offset, e->bytes);
}

int mgpu_stored_put(const struct mgpu_trainer *t, int rank, const struct mgpu_stored *e)
{
    const struct mgpu_stored *r = t->half ? mgpu_rounded_of(t->store[rank], e->name) : NULL;
    if (r) {
        int64_t n = e->bytes / (int64_t)mgpu_dtype_size(e->type);
        mgpu_convert(mgpu_stored_at(t, rank, r), r->type, mgpu_stored_at(t, rank, e), e->type, n);
        MGPU_TRY(put(t, rank, r));
    }
    return put(t, rank, e);
}

static const struct mgpu_weight *weight_called(const struct mgpu_trainer *t, const char *name)
{
    for (int i = 0; i < t->weights->count; i++)
        if (!strcmp(t->weights->weight[i].name, name))
            return &t->weights->weight[i];
    return NULL;
}

/* Zeros are there: memory of ranks begins with them. */
static void fill_value(void *to, const struct mgpu_stored *e, double value)
{
    int64_t n = e->bytes / (int64_t)mgpu_dtype_size(e->type);
    for (int64_t i = 0; i < n && value != 0; i++)
        mgpu_set_double(to, e->type, i, value);
}

static void fill_state(const struct mgpu_trainer *t, const struct mgpu_stored *e, void *to)
{
    const struct mgpu_array *given = mgpu_array_list_find(&t->slots.list, e->name);
    if (given)
        mgpu_convert(to, e->type, given->data, given->type, mgpu_array_count(given));
    for (int i = 0; i < t->start_count && !given; i++)
        if (!strcmp(t->starts[i].name, e->name))
            fill_value(to, e, t->starts[i].value);
}

static int fill_entry(struct mgpu_trainer *t, int rank, const struct mgpu_stored *e)
{
    void *to = mgpu_stored_at(t, rank, e);
    if (e->role == MGPU_ROUNDED) /* goes with its weight */
        return 0;
    if (e->role == MGPU_STATE) {
        fill_state(t, e, to);
        return mgpu_stored_put(t, rank, e);
    }
    const struct mgpu_weight *w = weight_called(t, e->name);
    if (!w)
        return mgpu_fail(MGPU_EINTERNAL, "'%s' is stored and is no weight", e->name);
    const struct mgpu_array *a =
        mgpu_weight_contents(t->weights, t->model, (int)(w - t->weights->weight));
    int64_t n = mgpu_array_count(a);
    if (n * (int64_t)mgpu_dtype_size(e->type) != e->bytes)
        return mgpu_fail(MGPU_EINTERNAL, "'%s' is stored with another size", e->name);
    mgpu_convert(to, e->type, a->data, a->type, n);
    mgpu_reinit(t, w, to, e->type);
    return mgpu_stored_put(t, rank, e);
}

/* Whether the state is of a weight of --classes's new head. */
static bool is_fresh(const struct mgpu_trainer *t, const char *state)
{
    size_t n = (size_t)(strrchr(state, ':') - state);
    for (int i = 0; t->fresh[i]; i++)
        if (strlen(t->fresh[i]) == n && !strncmp(t->fresh[i], state, n))
            return true;
    return false;
}

/* The state that was given is of this optimizer: what a trained weight has, the file has, and the
 * other way. With --partial what the file has none of starts afresh. */
static int check_slots(const struct mgpu_trainer *t)
{
    const struct mgpu_array_list *given = &t->slots.list;
    int taken = 0, rank;
    for (int i = 0; i < given->count; i++)
        taken += mgpu_find_stored(t, given->item[i].name, &rank) != NULL;
    for (int i = 0; i < given->count; i++) {
        const char *name = given->item[i].name, *slot = strrchr(name, ':');
        const struct mgpu_stored *e = mgpu_store_find(
            t->store[0], mgpu_arena_format(t->arena, "%.*s", (int)(slot - name), name));
        if (e && e->buffer == MGPU_BUFFER_WEIGHTS && !mgpu_find_stored(t, name, &rank))
            return mgpu_fail(MGPU_EINVALID,
                             "--optimizer-state: %s holds '%s', which --optimizer %s does not have",
                             t->options.init, name, t->options.optimizer);
    }
    int states = 0;
    for (int i = 0; i < t->start_count; i++) {
        const char *name = t->starts[i].name;
        if (!mgpu_find_stored(t, name, &rank) || is_fresh(t, name))
            continue;
        if (!t->options.partial && !mgpu_array_list_find(given, name))
            return mgpu_fail(MGPU_EINVALID,
                             "--optimizer-state: %s does not hold '%s' (--partial starts it "
                             "afresh)",
                             t->options.init, name);
        states++;
    }
    mgpu_note("%s: %d of %d arrays of the optimizer's state, after %lld updates", t->options.init,
              taken, states, (long long)t->slots.updates);
    if (t->slots.scheduled)
        mgpu_note(
            "%s: its learning rate followed a schedule, of which these were the first updates: "
            "%s",
            t->options.init,
            t->options.lr_schedule ? "--lr-schedule begins at its own first step"
                                   : "here it is that of --optimizer");
    return taken || !states
               ? 0
               : mgpu_fail(MGPU_EINVALID, "--optimizer-state: none of it is of a trained weight");
}

/* Trained weights are written as they are stored (save.c): what the file holds of them is not read
 * again, unless the initializer has other uses too. */
static void drop_contents(struct mgpu_trainer *t)
{
    int rank, *stored = mgpu_xcalloc((size_t)t->model->initializers + 1, sizeof *stored);
    for (int i = 0; i < t->weights->count; i++) {
        const struct mgpu_weight *w = &t->weights->weight[i];
        bool leaves = w->role == MGPU_ROLE_TRAINED && mgpu_find_stored(t, w->name, &rank);
        for (int h = 0; h < w->holders && leaves; h++)
            stored[w->holder[h].initializer] += w->holder[h].uses;
    }
    for (int i = 0; i < t->model->initializers; i++)
        if (stored[i] && stored[i] == t->weights->uses[i])
            mgpu_onnx_model_drop(t->model, i);
    free(stored);
}

/* What a rank borrows its lender has filled. */
static int fill_entries(struct mgpu_trainer *t, bool states)
{
    for (int r = 0; r < mgpu_team_size(t->team); r++)
        for (int i = 0; i < t->store[r]->count; i++) {
            const struct mgpu_stored *e = &t->store[r]->entry[i];
            bool own = mgpu_rank_own(mgpu_team_rank(t->team, r), e->buffer) > 0;
            if (own && (e->role == MGPU_STATE) == states)
                MGPU_TRY(fill_entry(t, r, e));
        }
    return 0;
}

/* Optimizer state takes memory only when the file's copy of the weights has gone. */
int mgpu_fill_store(struct mgpu_trainer *t)
{
    if (t->options.optimizer_state)
        MGPU_TRY(check_slots(t));
    MGPU_TRY(fill_entries(t, false));
    drop_contents(t);
    return fill_entries(t, true);
}

const struct mgpu_stored *mgpu_find_stored(const struct mgpu_trainer *t, const char *name,
                                           int *rank)
{
    for (*rank = 0; *rank < mgpu_team_size(t->team); ++*rank) {
        const struct mgpu_stored *e = mgpu_store_find(t->store[*rank], name);
        if (e)
            return e;
    }
    return NULL;
}

int mgpu_holder_array(struct mgpu_array *out, const struct mgpu_trainer *t, int weight, int holder)
{
    const struct mgpu_weight *w = &t->weights->weight[weight];
    const struct mgpu_holder *h = &w->holder[holder];
    const struct mgpu_array *a = &t->model->initializer[h->initializer].array;
    struct mgpu_model_source own = {.model = t->model, .weights = t->weights};
    int rank;
    const struct mgpu_stored *e = mgpu_find_stored(t, w->name, &rank);
    if (!e)
        return mgpu_model_own_contents(&own, weight, holder, out);
    enum mgpu_dtype type = e->type;
    MGPU_TRY(mgpu_stored_fetch(t, rank, e));
    MGPU_TRY(mgpu_array_init(out, type, a->rank, a->dims, w->name));
    if (h->copy == MGPU_COPY_TRANSPOSED)
        mgpu_weight_transpose(out->data, mgpu_stored_at(t, rank, e), type, e->dims[0], e->dims[1]);
    else
        memcpy(out->data, mgpu_stored_at(t, rank, e), (size_t)e->bytes);
    return 0;
}

const char *mgpu_holder_name(const struct mgpu_trainer *t, int weight, int holder)
{
    const struct mgpu_weight *w = &t->weights->weight[weight];
    const struct mgpu_holder *h = &w->holder[holder];
    return h->added ? w->name : t->model->initializer[h->initializer].name;
}

/* ---- By name --------------------------------------------------------------------------------- */

/* A weight's own name goes before the names of the initializers that hold it. */
static const struct mgpu_weight *find_holder(const struct mgpu_trainer *t, const char *name,
                                             const struct mgpu_holder **holder)
{
    const struct mgpu_weight *w = weight_called(t, name);
    *holder = w ? &w->holder[0] : NULL;
    for (int i = 0; i < t->weights->count && !*holder; i++) {
        w = &t->weights->weight[i];
        for (int h = 0; h < w->holders && !*holder; h++)
            if (!w->holder[h].added &&
                !strcmp(t->model->initializer[w->holder[h].initializer].name, name))
                *holder = &w->holder[h];
    }
    return *holder ? w : NULL;
}

struct place { /* of a weight in the ranks' memory */
    const struct mgpu_array *initial;
    const struct mgpu_stored *entry; /* NULL: no node uses it, it stays as it is in the file */
    int rank;                        /* the first that has it */
    enum mgpu_buffer buffer;
    bool transposed; /* the holder's layout is the other way round */
};

static int find_place(struct place *out, const struct mgpu_trainer *t, const char *name,
                      int64_t count)
{
    const struct mgpu_holder *h;
    const struct mgpu_weight *w = find_holder(t, name, &h);
    MGPU_TRY(mgpu_check_settled(t));
    if (!w || w->role == MGPU_ROLE_CONSTANT)
        return mgpu_fail(MGPU_EINVALID, "%s: '%s' is no weight", t->path, name);
    out->initial = mgpu_weight_contents(t->weights, t->model, (int)(w - t->weights->weight));
    out->entry = mgpu_find_stored(t, w->name, &out->rank);
    if (mgpu_array_count(out->initial) != count)
        return mgpu_fail(MGPU_EINVALID, "%s: '%s' has %lld elements, not %lld", t->path, name,
                         (long long)mgpu_array_count(out->initial), (long long)count);
    out->buffer = out->entry ? out->entry->buffer : MGPU_BUFFER_FIXED;
    out->transposed = h->copy == MGPU_COPY_TRANSPOSED;
    return 0;
}

/* Where element i of the holder's layout is stored. */
static int64_t stored_index(const struct place *p, int64_t i)
{
    if (!p->transposed)
        return i;
    int64_t rows = p->entry->dims[0], cols = p->entry->dims[1];
    return i % rows * cols + i / rows;
}

static void *at_rank(const struct mgpu_trainer *t, int rank, const struct place *p)
{
    return (char *)mgpu_team_rank(t->team, rank)->buffer[p->buffer] + p->entry->offset;
}

static int read_place(const struct mgpu_trainer *t, const struct place *p, double *to,
                      int64_t count)
{
    if (p->entry)
        MGPU_TRY(mgpu_rank_download(mgpu_team_rank(t->team, p->rank), p->buffer, p->entry->offset,
                                    p->entry->bytes));
    else
        mgpu_convert(to, MGPU_DOUBLE, p->initial->data, p->initial->type, count);
    for (int64_t i = 0; p->entry && i < count; i++)
        to[i] = mgpu_get_double(at_rank(t, p->rank, p), p->entry->type, stored_index(p, i));
    return 0;
}

int mgpu_weight_read(struct mgpu_trainer *t, const char *name, double *to, int64_t count)
{
    struct place p;
    MGPU_TRY(find_place(&p, t, name, count));
    return read_place(t, &p, to, count);
}

int mgpu_gradient_read(struct mgpu_trainer *t, const char *name, double *to, int64_t count)
{
    struct place p;
    MGPU_TRY(find_place(&p, t, name, count));
    if (!p.entry)
        memset(to, 0, sizeof *to * (size_t)count);
    if (!p.entry)
        return 0;
    if (p.buffer != MGPU_BUFFER_WEIGHTS)
        return mgpu_fail(MGPU_EINVALID, "%s: '%s' is not trained: it has no gradient", t->path,
                         name);
    if (mgpu_updates_early(t))
        return mgpu_fail(MGPU_EUSAGE,
                         "%s: the gradient of '%s' is gone: options.gradients keeps it", t->path,
                         name);
    p.buffer = MGPU_BUFFER_GRADIENTS;
    int rc = read_place(t, &p, to, count);
    for (int64_t i = 0; i < count && rc == 0; i++)
        to[i] /= t->scaling.used;
    return rc;
}

int mgpu_weight_write(struct mgpu_trainer *t, const char *name, const double *from, int64_t count)
{
    struct place p;
    MGPU_TRY(find_place(&p, t, name, count));
    if (!p.entry)
        return mgpu_fail(MGPU_EINVALID, "%s: no node uses '%s'", t->path, name);
    const char *stored = p.entry->name;
    for (int r = 0; r < mgpu_team_size(t->team); r++) {
        p.entry = mgpu_store_find(t->store[r], stored);
        for (int64_t i = 0; p.entry && i < count; i++)
            mgpu_set_double(at_rank(t, r, &p), p.entry->type, stored_index(&p, i), from[i]);
        if (p.entry)
            MGPU_TRY(mgpu_stored_put(t, r, p.entry));
    }
    return 0;
}
