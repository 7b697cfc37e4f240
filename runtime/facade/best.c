/* --early-stop restore_best_weights: the weights of the best epoch, put aside and put back. */
#include "runtime/base/status.h"
#include "runtime/facade/facade.h"

#include <string.h>

/* Weights, and running statistics. */
static const enum mgpu_buffer kept[MGPU_BEST] = {MGPU_BUFFER_WEIGHTS, MGPU_BUFFER_FIXED};

int mgpu_best_allocate(struct mgpu_trainer *t)
{
    for (int r = 0; r < mgpu_team_size(t->team); r++)
        for (int i = 0; i < MGPU_BEST; i++)
            MGPU_TRY(mgpu_alloc(&t->best[r][i],
                                (uint64_t)mgpu_team_rank(t->team, r)->bytes[kept[i]],
                                "the weights of the best epoch (restore_best_weights)"));
    return 0;
}

void mgpu_best_free(struct mgpu_trainer *t)
{
    for (int r = 0; r < MGPU_MAX_RANKS; r++)
        for (int i = 0; i < MGPU_BEST; i++)
            mgpu_free(t->best[r][i]);
}

int mgpu_best_keep(struct mgpu_trainer *t)
{
    t->epochs.stop->kept = 1;
    for (int r = 0; r < mgpu_team_size(t->team); r++)
        for (int i = 0; i < MGPU_BEST; i++) {
            struct mgpu_rank *rank = mgpu_team_rank(t->team, r);
            MGPU_TRY(mgpu_rank_download(rank, kept[i], 0, rank->bytes[kept[i]]));
            memcpy(t->best[r][i], rank->buffer[kept[i]], (size_t)rank->bytes[kept[i]]);
        }
    return 0;
}

/* A checkpoint does not hold the rounded ones of the best epoch. */
static int round_weights(const struct mgpu_trainer *t)
{
    for (int r = 0; r < mgpu_team_size(t->team); r++)
        for (int i = 0; i < t->store[r]->count && t->half; i++)
            if (t->store[r]->entry[i].role == MGPU_WEIGHT)
                MGPU_TRY(mgpu_stored_put(t, r, &t->store[r]->entry[i]));
    return 0;
}

int mgpu_best_restore(struct mgpu_trainer *t)
{
    const struct mgpu_early_stopping *stop = t->epochs.stop;
    if (!stop || !stop->kept || t->batch_in_epoch || t->epochs.best_again ||
        stop->best_epoch + 1 == t->epoch) /* it is the last */
        return 0;
    t->epochs.best_again = true;
    for (int r = 0; r < mgpu_team_size(t->team); r++)
        for (int i = 0; i < MGPU_BEST; i++) {
            struct mgpu_rank *rank = mgpu_team_rank(t->team, r);
            memcpy(rank->buffer[kept[i]], t->best[r][i], (size_t)rank->bytes[kept[i]]);
            MGPU_TRY(mgpu_rank_upload(rank, kept[i], 0, rank->bytes[kept[i]]));
        }
    MGPU_TRY(round_weights(t));
    mgpu_note("the weights are those of epoch %lld again, the best (restore_best_weights)",
              (long long)stop->best_epoch + 1);
    return 0;
}

void *mgpu_best_at(const struct mgpu_trainer *t, int rank, const struct mgpu_stored *e)
{
    return (char *)t->best[rank][e->buffer == kept[0] ? 0 : 1] + e->offset;
}
