#include "tests/parallel/small_world.h"

#include "runtime/base/status.h"
#include "runtime/compile/program.h"
#include "runtime/data/batches.h"
#include "runtime/executor/executor.h"
#include "runtime/executor/team.h"
#include "runtime/graph/fold.h"
#include "runtime/graph/step_scalar.h"
#include "runtime/ops/build.h"
#include "runtime/ops/update.h"
#include "runtime/ref/ref.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FEATURES = 16 };

struct world {
    const struct world_model *model;
    struct mgpu_plan *plan;
    int pieces, ranks;
    struct mgpu_team *team;
    struct mgpu_store_layout *store[MGPU_MAX_RANKS];
    struct mgpu_program *program[MGPU_MAX_RANKS][WORLD_SAMPLES + 1]; /* by rank and local batch */
    double data[WORLD_SAMPLES * FEATURES];
    int64_t labels[WORLD_SAMPLES];
    int64_t first, count; /* samples of this step */
    int step;
    double loss[MGPU_MAX_RANKS];
};

static double noise(unsigned *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (double)(*seed >> 8) / (1 << 23) - 1;
}

/* ---- Updates --------------------------------------------------------------------------------- */

static int add_clip(struct mgpu_graph *g, int weights, double clip, struct mgpu_value **out)
{
    struct mgpu_value **in = MGPU_NEW_ARRAY(g->arena, struct mgpu_value *, weights), *norm;
    for (int i = 0; i < weights; i++)
        in[i] = g->parameters[i].gradient;
    MGPU_TRY(mgpu_graph_node(g, &mgpu_op_global_norm, NULL, weights, in, 1, &norm));
    struct mgpu_value *one = mgpu_const_double(g, MGPU_DOUBLE, 1);
    *out =
        mgpu_binary(g, MGPU_X_MIN, one, mgpu_div(g, mgpu_const_double(g, MGPU_DOUBLE, clip), norm));
    return *out ? 0 : mgpu_build_error();
}

int world_add_updates(struct mgpu_graph *g, double clip)
{
    struct mgpu_update_attrs attrs = {.kind = MGPU_SGD, .lr = 0.1, .momentum = 0.9};
    struct mgpu_value *lr = mgpu_graph_scalar(g, MGPU_SCALAR_LR_FACTOR, "lr"), *scale = NULL;
    struct mgpu_value *step = mgpu_graph_scalar(g, MGPU_SCALAR_STEP, "step");
    int weights = g->parameter_count;
    g->origin = (struct mgpu_origin){
        .path = "", .output = "", .name = "", .type = "update", .role = MGPU_UPDATE};
    if (clip > 0)
        MGPU_TRY(add_clip(g, weights, clip, &scale));
    for (int i = 0; i < weights; i++) {
        const struct mgpu_value *w = g->parameters[i].value;
        char name[64];
        snprintf(name, sizeof name, "%s:momentum", w->name);
        struct mgpu_value *m =
            mgpu_graph_parameter(g, name, MGPU_STATE, MGPU_DOUBLE, w->rank, w->dims);
        struct mgpu_value *in[] = {
            g->parameters[i].value, g->parameters[i].gradient, step, lr, scale, m};
        struct mgpu_value *out[2];
        MGPU_TRY(mgpu_graph_node(g, &mgpu_op_update, &attrs, 6, in, 2, out));
        g->parameters[i].next = out[0];
        g->parameters[m->index].next = out[1];
    }
    return 0;
}

/* ---- On each rank ---------------------------------------------------------------------------- */

static void feed(struct world *w, struct mgpu_rank *rank, const struct mgpu_program *p, int64_t at)
{
    char *in = rank->buffer[MGPU_BUFFER_INPUTS];
    for (int i = 0; i < p->inputs; i++) {
        const struct mgpu_port *port = &p->input[i];
        bool label = port->type == MGPU_INT64;
        const void *from = label ? (const void *)(w->labels + at)
                                 : (const void *)(w->data + at * w->model->features);
        memcpy(in + port->offset, from, (size_t)port->bytes);
    }
}

static int run_piece(struct world *w, struct mgpu_rank *rank, int m, bool *contributes)
{
    int64_t piece_first, piece, first, count, counted = 0;
    int pieces = w->count < w->pieces ? (int)w->count : w->pieces; /* none is empty */
    for (int64_t i = 0; i < w->count; i++)
        counted += w->labels[w->first + i] >= 0;
    mgpu_batches_slice(w->count, pieces, m, &piece_first, &piece);
    mgpu_batches_slice(piece, rank->replicas, rank->replica, &first, &count);
    struct mgpu_program *p = w->program[rank->rank][count ? count : 1];
    double scalars[MGPU_SCALARS] = {0};
    scalars[MGPU_SCALAR_STEP] = w->step;
    scalars[MGPU_SCALAR_LR_FACTOR] = 1;
    scalars[MGPU_SCALAR_PIECE] = (double)piece;
    scalars[MGPU_SCALAR_PIECE_SHARE] = (double)piece / (double)w->count;
    scalars[MGPU_SCALAR_RANK_SHARE] = piece ? (double)count / (double)piece : 0;
    scalars[MGPU_SCALAR_LOSS] = 1 / (double)counted;
    *contributes = *contributes || count;
    if (count)
        feed(w, rank, p, w->first + piece_first + first);
    struct mgpu_execution run = {.last_piece = m == pieces - 1,
                                 .idle = count == 0,
                                 .contributes = *contributes,
                                 .check_gradients = true,
                                 .scalars = scalars};
    MGPU_TRY(mgpu_execute(p, rank->comm, rank->buffer, &run));
    const char *results = rank->buffer[MGPU_BUFFER_RESULTS];
    for (int i = 0; i < p->results && count; i++)
        if (p->result[i].split.kind != MGPU_SPLIT_REPLICATED || rank->replica == 0)
            w->loss[rank->rank] += *(const double *)(results + p->result[i].offset);
    return 0;
}

static int run_rank(struct mgpu_rank *rank, void *context)
{
    struct world *w = context;
    bool contributes = w->pieces > 1;
    w->loss[rank->rank] = 0;
    if (w->pieces > 1)
        memset(rank->buffer[MGPU_BUFFER_GRADIENTS], 0, (size_t)rank->bytes[MGPU_BUFFER_GRADIENTS]);
    for (int m = 0; m < w->pieces && m < w->count; m++)
        MGPU_TRY(run_piece(w, rank, m, &contributes));
    return 0;
}

/* ---- Making ---------------------------------------------------------------------------------- */

static int compile_one(struct world *w, int r, int64_t n)
{
    struct mgpu_graph *g;
    struct mgpu_applied applied;
    MGPU_TRY(w->model->build(&g, n, w->model->context));
    int rc = mgpu_plan_apply(g, w->plan, r, w->pieces, &applied);
    if (rc == 0)
        rc = mgpu_store_add(w->store[r], g);
    if (rc < 0) {
        mgpu_graph_free(g);
        return rc;
    }
    struct mgpu_compile_options o = {
        .backend = &mgpu_backend_ref, .store = w->store[r], .threads = 1, .exact = true};
    return mgpu_compile(&w->program[r][n], g, &applied, &o);
}

/* The same values for a weight whatever the plan: seeded by its name. */
static void fill_weights(struct world *w, int r)
{
    struct mgpu_rank *rank = mgpu_team_rank(w->team, r);
    for (int i = 0; i < w->store[r]->count; i++) {
        const struct mgpu_stored *e = &w->store[r]->entry[i];
        double *at = (double *)((char *)rank->buffer[e->buffer] + e->offset);
        unsigned seed = 7;
        for (const char *c = e->name; *c; c++)
            seed = seed * 31 + (unsigned char)*c;
        for (int64_t k = 0; k < e->bytes / 8 && e->role == MGPU_WEIGHT; k++)
            at[k] = noise(&seed) + (e->name[0] == 's');
    }
}

static int make_rank(struct world *w, int r)
{
    int64_t bytes[MGPU_BUFFERS] = {[MGPU_BUFFER_SCALARS] = MGPU_SCALARS * 8};
    w->store[r] = mgpu_store_layout_new();
    for (int64_t n = 1; n <= WORLD_SAMPLES; n++) {
        MGPU_TRY(compile_one(w, r, n));
        for (int b = 0; b < MGPU_BUFFERS; b++)
            if (w->program[r][n]->bytes[b] > bytes[b])
                bytes[b] = w->program[r][n]->bytes[b];
    }
    for (int b = 0; b < MGPU_BUFFERS; b++)
        if (w->store[r]->bytes[b] > bytes[b])
            bytes[b] = w->store[r]->bytes[b];
    struct mgpu_rank *rank = mgpu_team_rank(w->team, r);
    bool share = w->model->share;
    rank->lender = share && rank->replica ? mgpu_team_rank(w->team, rank->place) : NULL;
    MGPU_TRY(mgpu_rank_allocate(rank, bytes));
    for (int64_t n = 1; n <= WORLD_SAMPLES; n++) {
        if (share && !mgpu_program_may_share(w->program[r][n]))
            return mgpu_fail(MGPU_EINTERNAL, "the weights cannot be shared");
        mgpu_program_bind(w->program[r][n], rank->buffer);
        if (share)
            mgpu_program_cut(w->program[r][n], rank->replica, rank->replicas);
    }
    fill_weights(w, r);
    return 0;
}

static int make(struct world *w)
{
    struct mgpu_rank_device *devices;
    char list[256] = "cpu:0";
    int n;
    unsigned seed = 1;
    for (int r = 1; r < w->ranks; r++)
        snprintf(list + strlen(list), sizeof list - strlen(list), ",cpu:%d", r);
    MGPU_TRY(mgpu_devices_parse(&devices, &n, list, 1));
    int rc = mgpu_team_new(&w->team, devices, w->plan->replicas, w->plan->places);
    free(devices);
    for (int i = 0; i < WORLD_SAMPLES * w->model->features; i++)
        w->data[i] = noise(&seed);
    for (int i = 0; i < WORLD_SAMPLES; i++)
        w->labels[i] = i == 4 ? -100 : i % w->model->classes;
    for (int r = 0; r < w->ranks && rc == 0; r++)
        rc = make_rank(w, r);
    return rc;
}

/* ---- Results --------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct mgpu_stored *const *)a)->name,
                  (*(const struct mgpu_stored *const *)b)->name);
}

static int same_on_replicas(const struct world *w)
{
    for (int r = w->plan->places; r < w->ranks; r++) {
        int first = r % w->plan->places;
        if (memcmp(mgpu_team_rank(w->team, r)->buffer[MGPU_BUFFER_WEIGHTS],
                   mgpu_team_rank(w->team, first)->buffer[MGPU_BUFFER_WEIGHTS],
                   (size_t)w->store[r]->bytes[MGPU_BUFFER_WEIGHTS]))
            return mgpu_fail(MGPU_EINTERNAL, "ranks %d and %d end with other weights", first, r);
    }
    return 0;
}

static int64_t collect(const struct world *w, double *out)
{
    const struct mgpu_stored *list[256];
    int place[256], count = 0;
    int64_t total = 0;
    for (int r = 0; r < w->plan->places; r++)
        for (int i = 0; i < w->store[r]->count; i++)
            if (w->store[r]->entry[i].role == MGPU_WEIGHT && count < 256)
                list[count++] = &w->store[r]->entry[i];
    qsort(list, (size_t)count, sizeof *list, by_name);
    for (int k = 0; k < count; k++) {
        place[k] = 0;
        while (mgpu_store_find(w->store[place[k]], list[k]->name) != list[k])
            place[k]++;
        memcpy(out + total,
               (char *)mgpu_team_rank(w->team, place[k])->buffer[MGPU_BUFFER_WEIGHTS] +
                   list[k]->offset,
               (size_t)list[k]->bytes);
        total += list[k]->bytes / 8;
    }
    return total;
}

static int train(struct world *w, double *losses)
{
    static const int64_t first[WORLD_STEPS] = {0, 3, 1}, count[WORLD_STEPS] = {7, 2, 5};
    MGPU_TRY(make(w));
    for (w->step = 0; w->step < WORLD_STEPS; w->step++) {
        w->first = first[w->step];
        w->count = count[w->step];
        MGPU_TRY(mgpu_team_run(w->team, run_rank, w));
        losses[w->step] = 0;
        for (int r = 0; r < w->ranks; r++)
            losses[w->step] += w->loss[r];
    }
    return same_on_replicas(w);
}

int64_t world_train(const struct world_model *model, struct mgpu_plan *plan, int pieces,
                    double *losses, double *weights)
{
    struct world *w = mgpu_xcalloc(1, sizeof *w);
    mgpu_fold_set(mgpu_ref_fold);
    w->model = model;
    w->plan = plan;
    w->pieces = pieces;
    w->ranks = mgpu_plan_ranks(plan);
    int rc = train(w, losses);
    int64_t n = rc < 0 ? -1 : collect(w, weights);
    mgpu_team_free(w->team);
    for (int r = 0; r < w->ranks; r++) {
        for (int64_t k = 1; k <= WORLD_SAMPLES; k++)
            mgpu_program_free(w->program[r][k]);
        mgpu_store_layout_free(w->store[r]);
    }
    free(w);
    return n;
}
