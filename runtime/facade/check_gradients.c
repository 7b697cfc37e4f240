/* The user's own graph against central differences, in float64. */
#include "runtime/base/status.h"
#include "runtime/facade/facade.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int loss_at(struct mgpu_trainer *t, double *loss)
{
    double losses[MGPU_MAX_LOSSES], counts[MGPU_MAX_LOSSES];
    struct mgpu_totals unused = {0};
    mgpu_batches_epoch(&t->train.batches, 0);
    struct mgpu_batch_run run = {.mode = MGPU_MODE_GRADIENT,
                                 .source = &t->train,
                                 .rows = t->rows,
                                 .count = mgpu_batches_rows(&t->train.batches, 0, t->rows)};
    MGPU_TRY(mgpu_run_batch(t, &run, losses, counts, &unused));
    *loss = 0;
    for (int i = 0; i < t->losses; i++)
        *loss += losses[i];
    return 0;
}

/* Element k as the host sees it. */
static double *element(struct mgpu_trainer *t, int rank, const struct mgpu_stored *e, int64_t k)
{
    return (double *)((char *)mgpu_team_rank(t->team, rank)->buffer[e->buffer] + e->offset) + k;
}

/* Changes element k on every rank. */
static int set_element(struct mgpu_trainer *t, const struct mgpu_stored *e, int64_t k, double value)
{
    for (int r = 0; r < mgpu_team_size(t->team); r++) {
        const struct mgpu_stored *own = mgpu_store_find(t->store[r], e->name);
        if (!own)
            continue;
        *element(t, r, own, k) = value;
        MGPU_TRY(mgpu_rank_upload(mgpu_team_rank(t->team, r), own->buffer, own->offset + k * 8, 8));
    }
    return 0;
}

/* Central difference of fourth order: (8 (f(+h) - f(-h)) - (f(+2h) - f(-2h))) / 12 h. *bend is the
 * fourth difference over h: h^3 times a derivative where the loss is smooth, about the jump of the
 * slope where these five places hold a kink (relu at 0). */
static int difference(struct mgpu_trainer *t, int rank, const struct mgpu_stored *e, int64_t k,
                      double *out, double *bend)
{
    static const double slope[] = {1, -8, 0, 8, -1}, fourth[] = {1, -4, 6, -4, 1};
    double x = *element(t, rank, e, k);
    double h = 1e-4 * fmax(1, fabs(x)), sum = 0, bent = 0, loss = 0;
    int rc = 0;
    for (int i = 0; i < 5 && rc == 0; i++) {
        rc = set_element(t, e, k, x + (i - 2) * h);
        if (rc == 0)
            rc = loss_at(t, &loss);
        sum += slope[i] * loss;
        bent += fourth[i] * loss;
    }
    *out = sum / (12 * h);
    *bend = fabs(bent) / h;
    return rc < 0 ? rc : set_element(t, e, k, x);
}

/* The gradients that one rank holds, kept while weights are moved. */
struct gradients {
    double *at; /* as the rank's buffer */
    int64_t bytes;
};

static int check_weight(struct mgpu_trainer *t, int rank, const struct mgpu_stored *e,
                        const double *gradient, int64_t elements, double scale, double *most,
                        int64_t *kinks)
{
    int64_t n = e->bytes / 8, checked = n < elements ? n : elements;
    *most = 0;
    *kinks = 0;
    for (int64_t i = 0; i < checked; i++) {
        int64_t k = checked == n ? i : (int64_t)((double)i * (double)n / (double)checked);
        double want, bend;
        MGPU_TRY(difference(t, rank, e, k, &want, &bend));
        double off = fabs(want - gradient[k]);
        if (off > MGPU_GRADIENT_TOLERANCE * scale && bend > off)
            ++*kinks; /* has no one slope to compare with */
        else
            *most = fmax(*most, off / scale);
    }
    return 0;
}

static int check_rank(struct mgpu_trainer *t, int rank, const struct gradients *g, int64_t elements,
                      double scale, FILE *to, double *worst)
{
    for (int i = 0; i < t->store[rank]->count; i++) {
        const struct mgpu_stored *e = &t->store[rank]->entry[i];
        int64_t n = e->bytes / 8;
        int64_t kinks;
        double most;
        if (e->role != MGPU_WEIGHT)
            continue;
        MGPU_TRY(check_weight(t, rank, e, g->at + e->offset / 8, elements, scale, &most, &kinks));
        fprintf(to, "%-40s %8lld of %lld elements, largest difference %.2e", e->name,
                (long long)(n < elements ? n : elements), (long long)n, most);
        if (kinks)
            fprintf(to, "; %lld at a kink of the loss, not counted", (long long)kinks);
        fputc('\n', to);
        *worst = fmax(*worst, most);
    }
    return 0;
}

static int keep_gradients(const struct mgpu_trainer *t, struct gradients *g, double *scale)
{
    for (int r = 0; r < t->plan->places; r++) {
        g[r].bytes = mgpu_team_rank(t->team, r)->bytes[MGPU_BUFFER_GRADIENTS];
        MGPU_TRY(
            mgpu_rank_download(mgpu_team_rank(t->team, r), MGPU_BUFFER_GRADIENTS, 0, g[r].bytes));
        MGPU_TRY(mgpu_alloc((void **)&g[r].at, (uint64_t)g[r].bytes, "gradients"));
        memcpy(g[r].at, mgpu_team_rank(t->team, r)->buffer[MGPU_BUFFER_GRADIENTS],
               (size_t)g[r].bytes);
        for (int64_t i = 0; i < g[r].bytes / 8; i++)
            *scale = fmax(*scale, fabs(g[r].at[i]));
    }
    return 0;
}

int mgpu_check_gradients(struct mgpu_trainer *t, int64_t elements, FILE *to, double *worst)
{
    struct gradients g[MGPU_MAX_RANKS] = {{0}};
    double loss, scale = 0;
    *worst = 0;
    if (t->lower.float_type != MGPU_DOUBLE)
        return mgpu_fail(MGPU_EUSAGE, "gradients are checked in float64 (--precision f64)");
    MGPU_TRY(loss_at(t, &loss));
    int rc = keep_gradients(t, g, &scale);
    for (int r = 0; r < t->plan->places && rc == 0; r++)
        rc = check_rank(t, r, &g[r], elements, scale > 0 ? scale : 1, to, worst);
    for (int r = 0; r < t->plan->places; r++)
        mgpu_free(g[r].at);
    return rc;
}
