/* The table of strategies and the placement, as text. */
#include "partitioner/report.h"

#include "runtime/base/status.h"

#include <math.h>
#include <string.h>

char *mgpu_bytes_text(char text[MGPU_UNIT_TEXT], int64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double x = (double)bytes;
    int u = 0;
    while (u < 4 && x >= 999.5) {
        x /= 1024;
        u++;
    }
    snprintf(text, MGPU_UNIT_TEXT,
             u == 0     ? "%.0f %s"
             : x < 9.95 ? "%.1f %s"
                        : "%.0f %s",
             x, units[u]);
    return text;
}

char *mgpu_ms_text(char text[MGPU_UNIT_TEXT], double ms)
{
    bool seconds = ms >= 10000;
    double x = seconds ? ms / 1000 : ms;
    int digits = x >= 99.95 ? 0 : x >= 9.995 ? 1 : x >= 0.9995 ? 2 : 3;
    snprintf(text, MGPU_UNIT_TEXT, "%.*f %s", digits, x, seconds ? "s" : "ms");
    return text;
}

char *mgpu_devices_text(char text[MGPU_UNIT_TEXT], const struct mgpu_alternative *a)
{
    if (a->replicas > 1 && a->places > 1 && a->devices == a->replicas * a->places)
        snprintf(text, MGPU_UNIT_TEXT, "%d x %d", a->replicas, a->places);
    else
        snprintf(text, MGPU_UNIT_TEXT, "%d", a->devices);
    return text;
}

/* A model's names may hold anything. */
enum { PLAIN_TEXT = 1024 };
static const char *plain(char text[PLAIN_TEXT], const char *from)
{
    mgpu_plain_text(text, PLAIN_TEXT, from);
    return text;
}

/* ---- Strategies ------------------------------------------------------------------------------ */

/* "single", "single, recompute" */
static const char *strategy_text(char text[MGPU_UNIT_TEXT], const struct mgpu_alternative *a)
{
    snprintf(text, MGPU_UNIT_TEXT, "%s%s", a->strategy, a->recompute ? ", recompute" : "");
    return text;
}

static void print_row(const struct mgpu_alternative *a, bool chosen, int width, FILE *to)
{
    char strategy[MGPU_UNIT_TEXT];
    char shape[MGPU_UNIT_TEXT], ms[MGPU_UNIT_TEXT], memory[MGPU_UNIT_TEXT], moved[MGPU_UNIT_TEXT];
    fprintf(to, "%c %-*s %7s", chosen ? '*' : ' ', width, strategy_text(strategy, a),
            mgpu_devices_text(shape, a));
    if (a->feasible)
        fprintf(to, " %11s %8.2fx %13s %12s\n", mgpu_ms_text(ms, a->step_ms), a->speedup,
                mgpu_bytes_text(memory, a->memory_bytes), mgpu_bytes_text(moved, a->bytes_moved));
    else
        fprintf(to, " %11s %9s %13s %12s\n", "-", "-", "-", "-");
}

static bool is_baseline(const struct mgpu_alternative *a)
{
    return !strcmp(a->strategy, "single") || !strcmp(a->strategy, "data");
}

/* The chosen one, `top` others, and the baselines wherever they stand. */
static bool is_shown(const struct mgpu_plan_file *plan, int i, int top)
{
    return i <= top || is_baseline(&plan->alternative[i]);
}

static void print_strategies(const struct mgpu_plan_file *plan, int top, FILE *to)
{
    int hidden = 0, width = 9;
    for (int i = 0; i < plan->alternatives; i++)
        width = plan->alternative[i].recompute ? 18 : width;
    fprintf(to, "  %-*s %7s %11s %9s %13s %12s\n", width, "strategy", "devices", "step", "speed-up",
            "memory/device", "moved/step");
    for (int i = 0; i < plan->alternatives; i++)
        if (is_shown(plan, i, top))
            print_row(&plan->alternative[i], i == 0, width, to);
        else
            hidden++;
    if (hidden)
        fprintf(to, "  (%d more: --top %d)\n", hidden, plan->alternatives);
}

static void print_reasons(const struct mgpu_plan_file *plan, int top, FILE *to)
{
    char shape[MGPU_UNIT_TEXT], strategy[MGPU_UNIT_TEXT], why[PLAIN_TEXT];
    for (int i = 0; i < plan->alternatives; i++) {
        const struct mgpu_alternative *a = &plan->alternative[i];
        if (is_shown(plan, i, top) && *a->why)
            fprintf(to, "%c %s on %s: %s\n", i == 0 ? '*' : ' ', strategy_text(strategy, a),
                    mgpu_devices_text(shape, a), plain(why, a->why));
    }
}

static void print_bounds(const struct mgpu_report *r, FILE *to)
{
    const struct mgpu_predicted *p = &r->plan->predicted;
    char ms[MGPU_UNIT_TEXT];
    if (p->lower_bound_ms > 0)
        fprintf(to,
                "no plan of these devices is faster than %s: the chosen one is within %.1f %%\n",
                mgpu_ms_text(ms, p->lower_bound_ms), 100 * (p->step_ms / p->lower_bound_ms - 1));
    if (*r->placement)
        fprintf(to, "%s\n", r->placement);
    if (*r->costs)
        fprintf(to, "%s\n", r->costs);
    if (*r->weights)
        fprintf(to, "%s\n", r->weights);
}

/* ---- Placement ------------------------------------------------------------------------------- */

/* The devices of a place; of many how many there are. */
static void print_place(const struct mgpu_plan_file *plan, int place, FILE *to)
{
    const char *all = mgpu_plan_file_place(plan, place);
    if (strstr(all, MGPU_AND_SO_ON))
        fprintf(to, "  %s (%d devices): ", all, plan->replicas);
    else
        fprintf(to, "  %s: ", all);
}

/* Of a place that computes nothing. */
static void print_weights(const struct mgpu_plan_file *plan, int place, FILE *to)
{
    char memory[MGPU_UNIT_TEXT];
    int count = 0;
    for (int i = 0; i < plan->owners; i++)
        count += plan->owner[i].place == place;
    if (!count)
        fputs("nothing\n", to);
    else
        fprintf(to, "%d weight%s; %s\n", count, count == 1 ? "" : "s",
                mgpu_bytes_text(memory, plan->predicted.memory_bytes[place]));
}

/* Runs of neighbours on one place are one line. */
static void print_placement(const struct mgpu_plan_file *plan, FILE *to)
{
    char memory[MGPU_UNIT_TEXT], name[PLAIN_TEXT];
    fprintf(to, "\nplacement (%s):\n", plan->strategy);
    for (int p = 0; p < plan->places; p++) {
        int count = 0, first = -1, last = -1;
        for (int i = 0; i < plan->nodes; i++)
            if (plan->node[i].place == p) {
                first = first < 0 ? i : first;
                last = i;
                count++;
            }
        print_place(plan, p, to);
        if (!count) {
            print_weights(plan, p, to);
            continue;
        }
        fprintf(to, "%d node%s, %s", count, count == 1 ? "" : "s",
                plain(name, plan->node[first].output));
        if (count > 1)
            fprintf(to, " ... %s", plain(name, plan->node[last].output));
        fprintf(to, "; %s\n", mgpu_bytes_text(memory, plan->predicted.memory_bytes[p]));
    }
}

static void print_rewrites(const struct mgpu_plan_file *plan, FILE *to)
{
    char name[PLAIN_TEXT];
    for (int i = 0; i < plan->rewrites; i++) {
        if (!strcmp(plan->rewrite[i].kind, "recompute")) {
            fputs("  cheap activations are computed again in backward\n", to);
            continue;
        }
        fputs("  stacked into one call:", to);
        for (int k = 0; k < plan->rewrite[i].outputs; k++)
            fprintf(to, "%s %s", k ? "," : "", plain(name, plan->rewrite[i].output[k]));
        fputc('\n', to);
    }
}

/* A table of a few nodes is worth more than counts. */
static void print_nodes(const struct mgpu_plan_file *plan, FILE *to)
{
    enum { FEW = 40 };
    char name[PLAIN_TEXT];
    if (plan->places == 1 || plan->nodes > FEW)
        return;
    for (int i = 0; i < plan->nodes; i++)
        fprintf(to, "  %-12s %-20s %s\n", mgpu_plan_file_place(plan, plan->node[i].place),
                plan->node[i].type, plain(name, plan->node[i].output));
}

void mgpu_report_table(const struct mgpu_report *r, int top, FILE *to)
{
    const struct mgpu_plan_file *plan = r->plan;
    char file[PLAIN_TEXT], training[PLAIN_TEXT];
    fprintf(to, "%s on %s, batch %lld: %d nodes; %s\n\n", plain(file, plan->model_file),
            r->topology, (long long)plan->batch, plan->nodes, plain(training, r->training));
    print_strategies(plan, top, to);
    fputc('\n', to);
    print_reasons(plan, top, to);
    print_bounds(r, to);
    print_placement(plan, to);
    if (plan->predicted.resident_bytes) {
        char text[MGPU_UNIT_TEXT];
        fprintf(to, "  the process needs %s in all (code, the file, a batch of data too)\n",
                mgpu_bytes_text(text, plan->predicted.resident_bytes));
    }
    print_rewrites(plan, to);
    print_nodes(plan, to);
}
