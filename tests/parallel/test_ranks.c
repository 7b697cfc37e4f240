/* N ranks equal one rank: a small network with what is hard to split (synchronised batch norm, a
 * mean inside the loss, uneven slices, ranks without samples), trained in double on 1 to 4 ranks,
 * clipping by norm too. Built from core operators alone, through plan, compilation and
 * executor. */
#include "runtime/compile/program.h"
#include "runtime/data/batches.h"
#include "runtime/executor/executor.h"
#include "runtime/executor/team.h"
#include "runtime/graph/fold.h"
#include "runtime/graph/gradient.h"
#include "runtime/graph/step_scalar.h"
#include "runtime/ops/build.h"
#include "runtime/ops/loss.h"
#include "runtime/ops/normalize.h"
#include "runtime/ops/update.h"
#include "runtime/ref/ref.h"
#include "tests/test.h"

#include <stdlib.h>

enum { SAMPLES = 7, FEATURES = 5, HIDDEN = 4, CLASSES = 3, WEIGHTS = 6, STEPS = 3 };

static double data[SAMPLES * FEATURES];
static int64_t labels[SAMPLES];

static double noise(unsigned *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (double)(*seed >> 8) / (1 << 23) - 1;
}

/* ---- The network ----------------------------------------------------------------------------- */

static struct mgpu_value *weight(struct mgpu_graph *g, const char *name, int rank, int64_t a,
                                 int64_t b)
{
    struct mgpu_dim dims[] = {mgpu_dim_const(a), mgpu_dim_const(b)};
    return mgpu_graph_parameter(g, name, MGPU_WEIGHT, MGPU_DOUBLE, rank, dims);
}

static struct mgpu_value *batch_norm(struct mgpu_graph *g, struct mgpu_value *x)
{
    struct mgpu_batch_norm_attrs attrs = {.epsilon = 1e-3};
    struct mgpu_value *in[] = {x, weight(g, "scale", 1, HIDDEN, 0),
                               weight(g, "shift", 1, HIDDEN, 0)};
    return mgpu_build1(g, &mgpu_op_batch_norm, &attrs, 3, in);
}

static struct mgpu_value *classify(struct mgpu_graph *g, struct mgpu_value *y, struct mgpu_dim n)
{
    struct mgpu_cross_entropy_attrs attrs = {.axis = 1, .ignore = true, .ignore_index = -100};
    struct mgpu_value *t = mgpu_graph_input(g, "label", MGPU_INT64, 1, &n);
    struct mgpu_value *scale = mgpu_graph_scalar(g, MGPU_SCALAR_LOSS, "1/count");
    struct mgpu_value *in[] = {y, t, NULL, NULL, scale};
    return mgpu_build1(g, &mgpu_op_cross_entropy, &attrs, 5, in);
}

static int add_updates(struct mgpu_graph *g)
{
    struct mgpu_update_attrs attrs = {.kind = MGPU_SGD, .lr = 0.5, .momentum = 0.9};
    struct mgpu_value *norm_in[WEIGHTS], *norm, *lr = mgpu_graph_scalar(g, 1, "lr");
    struct mgpu_value *step = mgpu_graph_scalar(g, MGPU_SCALAR_STEP, "step");
    int weights = g->parameter_count;
    g->origin.role = MGPU_UPDATE;
    for (int i = 0; i < weights; i++)
        norm_in[i] = g->parameters[i].gradient;
    MGPU_TRY(mgpu_graph_node(g, &mgpu_op_global_norm, NULL, weights, norm_in, 1, &norm));
    struct mgpu_value *one = mgpu_const_double(g, MGPU_DOUBLE, 1);
    struct mgpu_value *clip =
        mgpu_binary(g, MGPU_X_MIN, one, mgpu_div(g, mgpu_const_double(g, MGPU_DOUBLE, 0.3), norm));
    for (int i = 0; i < weights; i++) {
        const struct mgpu_value *w = g->parameters[i].value;
        char name[32];
        snprintf(name, sizeof name, "%s:momentum", w->name);
        struct mgpu_value *m =
            mgpu_graph_parameter(g, name, MGPU_STATE, MGPU_DOUBLE, w->rank, w->dims);
        struct mgpu_value *in[] = {
            g->parameters[i].value, g->parameters[i].gradient, step, lr, clip, m};
        struct mgpu_value *out[2];
        MGPU_TRY(mgpu_graph_node(g, &mgpu_op_update, &attrs, 6, in, 2, out));
        g->parameters[i].next = out[0];
        g->parameters[m->index].next = out[1];
    }
    return 0;
}

/* loss = cross entropy + share * mean(h^2), the mean over the batch inside the graph. */
static int build(struct mgpu_graph **out, int64_t batch)
{
    struct mgpu_graph *g = *out = mgpu_graph_new();
    struct mgpu_dim n = mgpu_dim_symbol(MGPU_BATCH, batch), dims[] = {n, mgpu_dim_const(FEATURES)};
    g->float_type = MGPU_DOUBLE;
    g->batch = batch;
    struct mgpu_value *x = mgpu_graph_input(g, "x", MGPU_DOUBLE, 2, dims);
    struct mgpu_value *h = mgpu_matmul(g, x, false, weight(g, "w1", 2, FEATURES, HIDDEN), false);
    h = batch_norm(g, mgpu_add(g, h, weight(g, "b1", 1, HIDDEN, 0)));
    struct mgpu_value *zero = mgpu_const_double(g, MGPU_DOUBLE, 0);
    h = mgpu_unary(g, MGPU_X_TANH, mgpu_binary(g, MGPU_X_MAX, h, zero));
    struct mgpu_value *y = mgpu_matmul(g, h, false, weight(g, "w2", 2, HIDDEN, CLASSES), false);
    y = mgpu_add(g, y, weight(g, "b2", 1, CLASSES, 0));
    struct mgpu_value *mean = mgpu_reduce(g, MGPU_REDUCE_MEAN, mgpu_mul(g, h, h), 3, false);
    struct mgpu_value *share = mgpu_graph_scalar(g, MGPU_SCALAR_PIECE_SHARE, "piece share");
    struct mgpu_value *loss = mgpu_add(g, classify(g, y, n), mgpu_mul(g, mean, share));
    if (!loss)
        return mgpu_build_error();
    mgpu_graph_output(g, "loss", loss);
    MGPU_TRY(mgpu_gradient(g, loss, false));
    return add_updates(g);
}

/* ---- Running --------------------------------------------------------------------------------- */

struct world {
    int ranks, pieces;
    struct mgpu_team *team;
    struct mgpu_program *program[4][SAMPLES + 1]; /* by rank and local batch */
    int64_t first, count;                         /* samples of this step */
    int step;
    double loss[4];
};

static int run_rank(struct mgpu_rank *rank, void *context)
{
    struct world *w = context;
    w->loss[rank->rank] = 0;
    if (w->pieces > 1)
        memset(rank->buffer[MGPU_BUFFER_GRADIENTS], 0, (size_t)rank->bytes[MGPU_BUFFER_GRADIENTS]);
    int64_t counted = 0;
    bool contributes = w->pieces > 1;
    for (int64_t i = 0; i < w->count; i++)
        counted += labels[w->first + i] >= 0;
    for (int m = 0; m < w->pieces; m++) {
        int64_t piece_first, piece, first, count;
        mgpu_batches_slice(w->count, w->pieces, m, &piece_first, &piece);
        mgpu_batches_slice(piece, w->ranks, rank->rank, &first, &count);
        struct mgpu_program *p = w->program[rank->rank][count ? count : 1];
        double scalars[MGPU_SCALARS] = {0};
        scalars[MGPU_SCALAR_STEP] = w->step;
        scalars[MGPU_SCALAR_LR_FACTOR] = 1;
        scalars[MGPU_SCALAR_PIECE] = (double)piece;
        scalars[MGPU_SCALAR_PIECE_SHARE] = (double)piece / (double)w->count;
        scalars[MGPU_SCALAR_RANK_SHARE] = piece ? (double)count / (double)piece : 0;
        scalars[MGPU_SCALAR_LOSS] = 1 / (double)counted;
        contributes = contributes || count;
        char *in = rank->buffer[MGPU_BUFFER_INPUTS];
        int64_t at = w->first + piece_first + first;
        for (int i = 0; i < p->inputs && count; i++)
            if (!strcmp(p->input[i].name, "x"))
                memcpy(in + p->input[i].offset, data + at * FEATURES, (size_t)p->input[i].bytes);
            else
                memcpy(in + p->input[i].offset, labels + at, (size_t)p->input[i].bytes);
        struct mgpu_execution run = {.last_piece = m == w->pieces - 1,
                                     .idle = count == 0,
                                     .contributes = contributes,
                                     .check_gradients = true,
                                     .scalars = scalars};
        MGPU_TRY(mgpu_execute(p, rank->comm, rank->buffer, &run));
        const char *results = rank->buffer[MGPU_BUFFER_RESULTS];
        bool counts = p->result[0].split.kind != MGPU_SPLIT_REPLICATED || rank->rank == 0;
        if (count && counts)
            w->loss[rank->rank] += *(const double *)(results + p->result[0].offset);
    }
    return 0;
}

static void widen(int64_t *bytes, const int64_t *more)
{
    for (int b = 0; b < MGPU_BUFFERS; b++)
        bytes[b] = more[b] > bytes[b] ? more[b] : bytes[b];
}

static const char *const names[] = {"w1", "b1", "scale", "shift", "w2", "b2", NULL};

static double *stored(struct world *w, const struct mgpu_store_layout *store, int rank,
                      const char *name, int64_t *count)
{
    const struct mgpu_stored *e = mgpu_store_find(store, name);
    *count = e->bytes / 8;
    return (double *)((char *)mgpu_team_rank(w->team, rank)->buffer[e->buffer] + e->offset);
}

static void fill_weights(struct world *w, const struct mgpu_store_layout *store)
{
    for (int r = 0; r < w->ranks; r++) {
        unsigned seed = 7;
        for (int k = 0; names[k]; k++) {
            int64_t n;
            double *at = stored(w, store, r, names[k], &n);
            for (int64_t i = 0; i < n; i++)
                at[i] = noise(&seed) + (names[k][0] == 's');
        }
    }
}

static void compile_all(struct world *w, struct mgpu_plan *plan, struct mgpu_store_layout *store)
{
    int64_t bytes[MGPU_BUFFERS] = {[MGPU_BUFFER_SCALARS] = MGPU_SCALARS * 8};
    for (int r = 0; r < w->ranks; r++)
        for (int64_t n = 1; n <= SAMPLES; n++) {
            struct mgpu_graph *g;
            struct mgpu_applied applied;
            CHECK_OK(build(&g, n));
            CHECK_OK(mgpu_plan_apply(g, plan, r, w->pieces, &applied));
            CHECK_OK(mgpu_store_add(store, g));
            struct mgpu_compile_options o = {
                .backend = &mgpu_backend_ref, .store = store, .threads = 1, .exact = true};
            CHECK_OK(mgpu_compile(&w->program[r][n], g, &applied, &o));
            if (w->program[r][n])
                widen(bytes, w->program[r][n]->bytes);
        }
    widen(bytes, store->bytes);
    for (int r = 0; r < w->ranks; r++)
        CHECK_OK(mgpu_rank_allocate(mgpu_team_rank(w->team, r), bytes));
    for (int r = 0; r < w->ranks; r++)
        for (int64_t n = 1; n <= SAMPLES; n++)
            mgpu_program_bind(w->program[r][n], mgpu_team_rank(w->team, r)->buffer);
}

/* Trains on batches of 7, 2 and 5 samples; the weights of rank 0 go to out. Checks that all ranks
 * end with the same bits. */
static int64_t train(int ranks, int pieces, double *losses, double *out)
{
    static const int64_t first[STEPS] = {0, 3, 1}, count[STEPS] = {7, 2, 5};
    struct world w = {.ranks = ranks, .pieces = pieces};
    struct mgpu_rank_device *devices;
    int n;
    CHECK_OK(mgpu_devices_parse(&devices, &n, "cpu:0-3", 1));
    CHECK_OK(mgpu_team_new(&w.team, devices, ranks, 1));
    struct mgpu_plan *plan = mgpu_plan_data(ranks);
    plan->bucket_bytes = 64; /* several buckets */
    struct mgpu_store_layout *store = mgpu_store_layout_new();
    compile_all(&w, plan, store);
    fill_weights(&w, store);
    for (w.step = 0; w.step < STEPS; w.step++) {
        w.first = first[w.step];
        w.count = count[w.step];
        CHECK_OK(mgpu_team_run(w.team, run_rank, &w));
        losses[w.step] = 0;
        for (int r = 0; r < ranks; r++)
            losses[w.step] += w.loss[r];
    }
    int64_t total = 0, count_of;
    for (int k = 0; names[k]; k++) { /* their order in memory may differ between rank counts */
        const double *at = stored(&w, store, 0, names[k], &count_of);
        memcpy(out + total, at, 8 * (size_t)count_of);
        total += count_of;
    }
    size_t bytes = (size_t)store->bytes[MGPU_BUFFER_WEIGHTS];
    const void *weights = mgpu_team_rank(w.team, 0)->buffer[MGPU_BUFFER_WEIGHTS];
    for (int r = 1; r < ranks; r++)
        CHECK(!memcmp(mgpu_team_rank(w.team, r)->buffer[MGPU_BUFFER_WEIGHTS], weights, bytes));
    for (int r = 0; r < ranks; r++)
        for (int64_t k = 1; k <= SAMPLES; k++)
            mgpu_program_free(w.program[r][k]);
    mgpu_team_free(w.team);
    mgpu_store_layout_free(store);
    mgpu_plan_free(plan);
    free(devices);
    return total;
}

static void compare(int ranks, int pieces, const double *want_loss, const double *want)
{
    double losses[STEPS], weights[1024], worst = 0;
    int64_t n = train(ranks, pieces, losses, weights);
    for (int i = 0; i < STEPS; i++)
        CHECK_NEAR(losses[i], want_loss[i], 1e-11);
    for (int64_t i = 0; i < n; i++)
        worst = fmax(worst, fabs(weights[i] - want[i]));
    CHECK_(worst < 1e-11, "%d ranks, %d pieces: a weight is off by %g", ranks, pieces, worst);
}

static void test_bits(int ranks)
{
    double losses[2][STEPS], weights[2][1024];
    int64_t n = train(ranks, 1, losses[0], weights[0]);
    train(ranks, 1, losses[1], weights[1]);
    CHECK(!memcmp(losses[0], losses[1], sizeof losses[0]));
    CHECK(!memcmp(weights[0], weights[1], (size_t)n * 8));
}

/* A list in which nobody waits for the communication must be caught. */
static void test_broken_list(void)
{
    struct mgpu_plan *plan = mgpu_plan_data(2);
    struct mgpu_store_layout *store = mgpu_store_layout_new();
    struct mgpu_graph *g;
    struct mgpu_applied applied;
    struct mgpu_program *p;
    struct mgpu_compile_options o = {
        .backend = &mgpu_backend_ref, .store = store, .threads = 1, .exact = true};
    CHECK_OK(build(&g, 3));
    CHECK_OK(mgpu_plan_apply(g, plan, 0, 1, &applied));
    CHECK_OK(mgpu_store_add(store, g));
    CHECK_OK(mgpu_compile(&p, g, &applied, &o));
    CHECK_OK(mgpu_program_check(p));
    for (int k = 0; k < p->instructions; k++)
        p->instruction[k].waits = 0;
    CHECK_FAILS(mgpu_program_check(p), "without an order");
    mgpu_program_free(p);
    mgpu_store_layout_free(store);
    mgpu_plan_free(plan);
}

int main(void)
{
    unsigned seed = 1;
    double losses[STEPS], weights[1024];
    mgpu_fold_set(mgpu_ref_fold);
    for (int i = 0; i < SAMPLES * FEATURES; i++)
        data[i] = noise(&seed);
    for (int i = 0; i < SAMPLES; i++)
        labels[i] = i == 4 ? -100 : i % CLASSES;
    train(1, 1, losses, weights);
    CHECK(losses[0] > 0.5 && losses[0] < 5);
    for (int ranks = 2; ranks <= 4; ranks++)
        compare(ranks, 1, losses, weights);
    test_bits(3);
    test_broken_list();
    return test_end();
}
