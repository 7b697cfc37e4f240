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

/* Changes element k on every rank. */
static void set_element(struct mgpu_trainer *t, const struct mgpu_stored *e, int64_t k,
                        double value)
{
    for (int r = 0; r < mgpu_team_size(t->team); r++)
        ((double *)((char *)mgpu_team_rank(t->team, r)->buffer[e->buffer] + e->offset))[k] = value;
}

/* Central difference of fourth order: (8 (f(+h) - f(-h)) - (f(+2h) - f(-2h))) / 12 h. */
static int difference(struct mgpu_trainer *t, const struct mgpu_stored *e, int64_t k, double *out)
{
    static const double factor[] = {8, -8, -1, 1}, place[] = {1, -1, 2, -2};
    double x = ((double *)((char *)mgpu_team_rank(t->team, 0)->buffer[e->buffer] + e->offset))[k];
    double h = 1e-4 * fmax(1, fabs(x)), sum = 0, loss;
    int rc = 0;
    for (int i = 0; i < 4 && rc == 0; i++) {
        set_element(t, e, k, x + place[i] * h);
        rc = loss_at(t, &loss);
        sum += factor[i] * loss;
    }
    set_element(t, e, k, x);
    *out = sum / (12 * h);
    return rc;
}

static int check_weight(struct mgpu_trainer *t, const struct mgpu_stored *e, const double *gradient,
                        int64_t elements, double scale, FILE *to, double *worst)
{
    int64_t n = e->bytes / 8, checked = n < elements ? n : elements;
    double most = 0;
    for (int64_t i = 0; i < checked; i++) {
        int64_t k = checked == n ? i : (int64_t)((double)i * (double)n / (double)checked);
        double want;
        MGPU_TRY(difference(t, e, k, &want));
        most = fmax(most, fabs(want - gradient[k]) / scale);
    }
    fprintf(to, "%-40s %8lld of %lld elements, largest difference %.2e\n", e->name,
            (long long)checked, (long long)n, most);
    *worst = fmax(*worst, most);
    return 0;
}

int mgpu_check_gradients(struct mgpu_trainer *t, int64_t elements, FILE *to, double *worst)
{
    double loss, scale = 0;
    *worst = 0;
    if (t->lower.float_type != MGPU_DOUBLE)
        return mgpu_fail(MGPU_EUSAGE, "gradients are checked in float64 (--precision f64)");
    MGPU_TRY(loss_at(t, &loss));
    int64_t n = t->store->bytes[MGPU_BUFFER_GRADIENTS];
    double *gradient;
    MGPU_TRY(mgpu_alloc((void **)&gradient, (uint64_t)n, "gradients"));
    memcpy(gradient, mgpu_team_rank(t->team, 0)->buffer[MGPU_BUFFER_GRADIENTS], (size_t)n);
    for (int64_t i = 0; i < n / 8; i++)
        scale = fmax(scale, fabs(gradient[i]));
    int rc = 0;
    for (int i = 0; i < t->store->count && rc == 0; i++) {
        const struct mgpu_stored *e = &t->store->entry[i];
        if (e->role == MGPU_WEIGHT)
            rc = check_weight(t, e, gradient + e->offset / 8, elements, scale > 0 ? scale : 1, to,
                              worst);
    }
    mgpu_free(gradient);
    return rc;
}
