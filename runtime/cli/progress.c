#include "runtime/cli/progress.h"

#include <time.h>
#include <unistd.h>

enum { WIDTH = 24 };

double mgpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void mgpu_progress_begin(struct mgpu_progress *p, FILE *to, const struct mgpu_facts *facts)
{
    *p = (struct mgpu_progress){.to = to,
                                .bar = to && isatty(fileno(to)),
                                .epochs = facts->epochs,
                                .steps_per_epoch = facts->steps_per_epoch,
                                .total_steps = facts->total_steps - facts->step};
    p->start = p->epoch_start = mgpu_seconds();
}

static void print_numbers(FILE *to, const struct mgpu_number *numbers, int count)
{
    for (int i = 0; i < count; i++)
        fprintf(to, "  %s %.4f", numbers[i].name, numbers[i].value);
}

static void print_time(FILE *to, double seconds)
{
    int s = (int)(seconds + 0.5);
    if (s < 60)
        fprintf(to, "%d s", s);
    else
        fprintf(to, "%d:%02d min", s / 60, s % 60);
}

static void draw(struct mgpu_progress *p, const struct mgpu_step_result *step,
                 const struct mgpu_number *numbers, int count, double now)
{
    int filled = (int)(WIDTH * p->done / p->steps_per_epoch);
    double left = (now - p->start) / (double)p->all_done * (double)(p->total_steps - p->all_done);
    fprintf(p->to, "\repoch %lld/%lld [", (long long)step->epoch, (long long)p->epochs);
    for (int i = 0; i < WIDTH; i++)
        fputc(i < filled ? '#' : '.', p->to);
    fputc(']', p->to);
    print_numbers(p->to, numbers, count);
    fprintf(p->to, "  %.0f samples/s  ", (double)p->samples / (now - p->epoch_start));
    print_time(p->to, left);
    fputs(" left\033[K", p->to);
    fflush(p->to);
}

void mgpu_progress_step(struct mgpu_progress *p, const struct mgpu_step_result *step,
                        const struct mgpu_number *numbers, int count)
{
    double now = mgpu_seconds();
    if (p->done == 0 && p->all_done == 0)
        p->epoch_start = p->start; /* the first step counts from the beginning */
    p->done++;
    p->all_done++;
    p->samples += step->samples;
    if (!p->to || !p->bar || (now - p->drawn < 0.1 && !step->epoch_ends))
        return;
    p->drawn = now;
    draw(p, step, numbers, count, now);
}

void mgpu_progress_epoch(struct mgpu_progress *p, int64_t epoch, const struct mgpu_number *numbers,
                         int count)
{
    double now = mgpu_seconds();
    if (p->to) {
        fprintf(p->to, "%sepoch %lld/%lld", p->bar ? "\r\033[K" : "", (long long)epoch,
                (long long)p->epochs);
        print_numbers(p->to, numbers, count);
        fprintf(p->to, "  %.0f samples/s  ",
                now > p->epoch_start ? (double)p->samples / (now - p->epoch_start) : 0);
        print_time(p->to, now - p->epoch_start);
        fputc('\n', p->to);
    }
    p->epoch_start = now;
    p->done = p->samples = 0;
}
