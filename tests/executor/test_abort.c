/* An error on one rank stops the others, wherever they wait, within a second and with its message
 * and the rank's name. */
#include "runtime/base/status.h"
#include "runtime/executor/team.h"
#include "tests/test.h"

#include <time.h>

enum { RANKS = 4, FAILING = 2 };

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

struct attempt {
    int rounds; /* sums that all ranks take part in; then one rank fails */
    float sum[RANKS];
    atomic_bool done[RANKS];
    struct mgpu_part part[RANKS];
    struct mgpu_collective all[RANKS];
};

/* One number added up over all ranks. */
static int add_up(struct attempt *a, struct mgpu_rank *rank, int round)
{
    struct mgpu_comm *everyone = rank->comm[rank->place];
    int r = rank->rank;
    a->sum[r] = (float)(r + 1);
    a->part[r] = (struct mgpu_part){.data = &a->sum[r], .count = 1};
    a->all[r] = (struct mgpu_collective){.kind = MGPU_COLLECTIVE_ALL_REDUCE,
                                         .type = MGPU_FLOAT,
                                         .tag = round,
                                         .contributes = true,
                                         .parts = 1,
                                         .part = &a->part[r],
                                         .done = &a->done[r]};
    MGPU_TRY(mgpu_comm_start(everyone, &a->all[r]));
    return mgpu_comm_wait(everyone, &a->done[r]);
}

static int add_up_then_fail(struct mgpu_rank *rank, void *context)
{
    struct attempt *a = context;
    for (int i = 0; i < a->rounds; i++)
        MGPU_TRY(add_up(a, rank, i));
    if (rank->rank == FAILING)
        return mgpu_fail(MGPU_EIO, "x.h5: sample 29 cannot be read");
    return add_up(a, rank, a->rounds); /* waits for the one that is gone */
}

static int only_add_up(struct mgpu_rank *rank, void *context)
{
    struct attempt *a = context;
    return add_up(a, rank, 0);
}

static struct mgpu_team *make_team(void)
{
    struct mgpu_rank_device *devices;
    struct mgpu_team *team;
    int count;
    CHECK_OK(mgpu_devices_parse(&devices, &count, "cpu:0,cpu:1,cpu:0,cpu:1", 1));
    CHECK_OK(mgpu_team_new(&team, devices, count, 1));
    free(devices);
    return team;
}

static void test_failure(int rounds)
{
    static struct attempt a;
    struct mgpu_team *team = make_team();
    double start = seconds();
    a.rounds = rounds;
    CHECK_FAILS(mgpu_team_run(team, add_up_then_fail, &a), "sample 29 cannot be read");
    CHECK(strstr(mgpu_error(), "rank 2") && strstr(mgpu_error(), "cpu:0"));
    CHECK(seconds() - start < 1);
    start = seconds(); /* the group is gone: nobody waits for it again */
    CHECK_FAILS(mgpu_team_run(team, only_add_up, &a), "sample 29");
    CHECK(seconds() - start < 1);
    mgpu_team_free(team);
}

static void test_success(void)
{
    static struct attempt a;
    struct mgpu_team *team = make_team();
    CHECK_OK(mgpu_team_run(team, only_add_up, &a));
    for (int r = 0; r < RANKS; r++)
        CHECK(a.sum[r] == 10);
    mgpu_team_free(team);
}

int main(void)
{
    test_success();
    test_failure(0);
    test_failure(3);
    return test_end();
}
