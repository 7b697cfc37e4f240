/* --html: what was trained and how it went, as one page that needs nothing else. */
#include "exporter/atomic_file.h"
#include "exporter/html.h"
#include "partitioner/report.h"
#include "runtime/base/status.h"
#include "runtime/facade/facade.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 620, HEIGHT = 260, LEFT = 70, TOP = 14, BOTTOM = 34, OPERATORS = 40 };

static const char *const colours[] = {"#0969da", "#cf222e", "#1a7f37", "#8250df"};

/* ---- Losses of steps ------------------------------------------------------------------------- */

void mgpu_history_add(struct mgpu_history *h, double loss)
{
    int64_t point = h->steps++ / (h->each ? h->each : (h->each = 1));
    if (point == MGPU_HISTORY) {
        for (int i = 0; i < MGPU_HISTORY / 2; i++)
            h->mean[i] = (h->mean[2 * i] + h->mean[2 * i + 1]) / 2;
        h->each *= 2;
        point /= 2;
    }
    double n = (double)((h->steps - 1) % h->each);
    h->mean[point] = n > 0 ? (h->mean[point] * n + loss) / (n + 1) : loss;
}

/* ---- Charts ---------------------------------------------------------------------------------- */

struct curve {
    const char *name;
    int count;
    double *x, *y;
};

struct chart {
    double low[2], high[2]; /* of x, y */
};

static void span(const struct chart *c, int axis, double *low, double *range)
{
    *low = c->low[axis];
    *range = c->high[axis] > c->low[axis] ? c->high[axis] - c->low[axis] : 1;
}

static double at_x(const struct chart *c, double x)
{
    double low, range;
    span(c, 0, &low, &range);
    return LEFT + (x - low) / range * (WIDTH - LEFT - 20);
}

static double at_y(const struct chart *c, double y)
{
    double low, range;
    span(c, 1, &low, &range);
    return HEIGHT - BOTTOM - (y - low) / range * (HEIGHT - TOP - BOTTOM);
}

static struct chart bounds(const struct curve *curve, int curves)
{
    struct chart c = {{INFINITY, INFINITY}, {-INFINITY, -INFINITY}};
    for (int k = 0; k < curves; k++)
        for (int i = 0; i < curve[k].count; i++) {
            if (!isfinite(curve[k].y[i]))
                continue;
            c.low[0] = fmin(c.low[0], curve[k].x[i]);
            c.high[0] = fmax(c.high[0], curve[k].x[i]);
            c.low[1] = fmin(c.low[1], curve[k].y[i]);
            c.high[1] = fmax(c.high[1], curve[k].y[i]);
        }
    return c;
}

static void put_grid(const struct chart *c, const char *unit, FILE *to)
{
    double low, range;
    span(c, 1, &low, &range);
    double tick = 2 * mgpu_html_tick(range);
    for (double v = ceil(low / tick) * tick; v <= low + range; v += tick)
        fprintf(to,
                "<path d=\"M%d %.1fH%d\" stroke=#eaeef2 /><text class=small x=%d y=%.1f "
                "text-anchor=end>%.4g</text>\n",
                LEFT, at_y(c, v), WIDTH - 20, LEFT - 8, at_y(c, v) + 4, fabs(v) < tick / 2 ? 0 : v);
    span(c, 0, &low, &range);
    tick = fmax(1, 2 * mgpu_html_tick(range));
    for (double v = ceil(low / tick) * tick; v <= low + range; v += tick)
        fprintf(to, "<text class=small x=%.1f y=%d text-anchor=middle>%.10g</text>\n", at_x(c, v),
                HEIGHT - BOTTOM + 16, v);
    fprintf(to, "<text class=small x=%d y=%d text-anchor=end>%s</text>\n", WIDTH - 20, HEIGHT - 4,
            unit);
}

/* Points that are not finite leave a gap. */
static void put_curve(const struct chart *c, const struct curve *curve, const char *colour,
                      FILE *to)
{
    bool drawn = false;
    fprintf(to, "<path fill=none stroke=\"%s\" stroke-width=1.6 d=\"", colour);
    for (int i = 0; i < curve->count; i++) {
        bool finite = isfinite(curve->y[i]);
        if (finite)
            fprintf(to, "%c%.1f %.1f", drawn ? 'L' : 'M', at_x(c, curve->x[i]),
                    at_y(c, curve->y[i]));
        drawn = finite;
    }
    fputs("\"/>\n", to);
    for (int i = 0; i < curve->count && curve->count <= 40; i++)
        if (isfinite(curve->y[i]))
            fprintf(to, "<circle cx=%.1f cy=%.1f r=2.6 fill=\"%s\"><title>%.9g</title></circle>\n",
                    at_x(c, curve->x[i]), at_y(c, curve->y[i]), colour, curve->y[i]);
}

static void put_chart(const struct curve *curve, int curves, const char *unit, FILE *to)
{
    struct chart c = bounds(curve, curves);
    if (!(c.low[0] <= c.high[0]))
        return;
    fputs("<p>", to);
    for (int k = 0; k < curves; k++) {
        fprintf(to, "<span class=key><i style=\"background:%s\"></i>", colours[k]);
        mgpu_html_escape(to, curve[k].name);
        fputs("</span>", to);
    }
    fprintf(to, "</p>\n<svg width=%d height=%d>\n", WIDTH, HEIGHT);
    put_grid(&c, unit, to);
    for (int k = 0; k < curves; k++)
        put_curve(&c, &curve[k], colours[k], to);
    fputs("</svg>\n", to);
}

/* ---- How it went ----------------------------------------------------------------------------- */

static void put_steps(const struct mgpu_trainer *t, FILE *to)
{
    const struct mgpu_history *h = &t->history;
    double x[MGPU_HISTORY], y[MGPU_HISTORY];
    struct curve loss = {.name = "loss of a step", .x = x, .y = y};
    for (int64_t first = 0; first < h->steps; first += h->each, loss.count++) {
        int64_t n = h->steps - first < h->each ? h->steps - first : h->each;
        x[loss.count] = (double)(t->step - h->steps + first) + (double)(n + 1) / 2;
        y[loss.count] = h->mean[loss.count];
    }
    if (h->each > 1)
        fprintf(to, "<p>each point is the mean of %lld steps</p>\n", (long long)h->each);
    put_chart(&loss, 1, "step", to);
}

static struct curve column(const struct mgpu_epochs *e, int number, double *room)
{
    struct curve c = {
        .name = e->logs.name[number], .count = e->rows, .x = room, .y = room + e->rows};
    for (int i = 0; i < e->rows; i++) {
        c.x[i] = (double)e->row[i].epoch;
        c.y[i] = e->row[i].value[number];
    }
    return c;
}

/* Each number of the epochs, validation's beside training's. */
static void put_epoch_charts(const struct mgpu_epochs *e, FILE *to)
{
    bool validated = e->logs.count - 1 > e->training;
    double *room = mgpu_xcalloc((size_t)e->rows, 4 * sizeof *room);
    for (int i = 0; i < e->training; i++) {
        struct curve c[2] = {column(e, i, room)};
        if (validated)
            c[1] = column(e, e->training + i, room + 2 * (ptrdiff_t)e->rows);
        put_chart(c, 1 + validated, "epoch", to);
    }
    free(room);
}

static void put_epoch_table(const struct mgpu_epochs *e, FILE *to)
{
    fputs("<div class=scroll><table><tr><th>epoch</th>", to);
    for (int i = 0; i < e->logs.count; i++) {
        fputs("<th>", to);
        mgpu_html_escape(to, e->logs.name[i]);
        fputs("</th>", to);
    }
    fputs("</tr>\n", to);
    for (int k = 0; k < e->rows; k++) {
        fprintf(to, "<tr><td>%lld</td>", (long long)e->row[k].epoch);
        for (int i = 0; i < e->logs.count; i++)
            fprintf(to, "<td>%.6g</td>", e->row[k].value[i]);
        fputs("</tr>\n", to);
    }
    fputs("</table></div>\n", to);
}

static void put_course(const struct mgpu_trainer *t, FILE *to)
{
    fputs("<h2>Losses and metrics</h2>\n", to);
    put_steps(t, to);
    if (t->epochs.rows > 1)
        put_epoch_charts(&t->epochs, to);
    if (t->epochs.rows)
        put_epoch_table(&t->epochs, to);
}

/* ---- What was trained ------------------------------------------------------------------------ */

static void put_option(const char *name, const char *text, FILE *to)
{
    if (!text || !*text)
        return;
    fprintf(to, "<tr><td>--%s</td><td>", name);
    mgpu_html_escape(to, text);
    fputs("</td></tr>\n", to);
}

static void put_options(const char *name, const char *const *list, FILE *to)
{
    for (int i = 0; list && list[i]; i++)
        put_option(name, list[i], to);
}

static void put_settings(const struct mgpu_trainer *t, FILE *to)
{
    const struct mgpu_options *o = &t->options;
    fputs("<h2>Settings</h2>\n<table>", to);
    put_options("data", o->data, to);
    put_options("val", o->val, to);
    put_options("loss", o->loss, to);
    put_options("metric", o->metric, to);
    put_option("optimizer", o->optimizer, to);
    put_options("group", o->group, to);
    put_option("lr-schedule", o->lr_schedule, to);
    put_option("init", o->init, to);
    put_option("resume", o->resume, to);
    put_option("precision", o->precision, to);
    fprintf(to, "<tr><td>--seed</td><td>%lld</td></tr>\n</table>\n", (long long)o->seed);
}

static void put_weights(const struct mgpu_trainer *t, FILE *to)
{
    char shape[MGPU_SHAPE_TEXT];
    fputs("<h2>Weights</h2>\n<div class=scroll><table><tr><th>name</th><th>shape</th>"
          "<th>type in the file</th><th>role</th></tr>\n",
          to);
    for (int i = 0; i < t->weights->count; i++) {
        const struct mgpu_weight *w = &t->weights->weight[i];
        const struct mgpu_array *a = &t->model->initializer[w->holder[0].initializer].array;
        fputs("<tr><td>", to);
        mgpu_html_escape(to, w->name);
        fprintf(to, "</td><td>%s</td><td>%s</td><td>%s</td></tr>\n",
                mgpu_shape_text(shape, a->rank, a->dims), mgpu_dtype_name(a->type),
                mgpu_weight_role_name(w->role));
    }
    fputs("</table></div>\n", to);
}

/* As --dry-run says it. */
static int put_plan(struct mgpu_trainer *t, FILE *to)
{
    char *text = NULL, memory[MGPU_UNIT_TEXT];
    size_t size = 0;
    FILE *plain = open_memstream(&text, &size);
    if (!plain)
        return mgpu_fail(MGPU_ENOMEM, "no memory for the page");
    int rc = mgpu_trainer_describe(t, plain);
    if (fclose(plain) == 0 && rc == 0) {
        fputs("<h2>Plan and memory</h2>\n<pre>", to);
        mgpu_html_escape(to, text);
        fprintf(to, "peak of all allocations: %s</pre>\n",
                mgpu_bytes_text(memory, (int64_t)mgpu_alloc_peak()));
    }
    free(text);
    return rc;
}

/* ---- Time ------------------------------------------------------------------------------------ */

static void put_profile(const struct mgpu_trainer *t, FILE *to)
{
    struct mgpu_profile_line line[OPERATORS];
    char text[MGPU_UNIT_TEXT];
    double total;
    int n = mgpu_profile_lines(t, 0, line, OPERATORS, &total);
    if (!n)
        return;
    fprintf(to,
            "<h2>Time of a step by operator</h2>\n<p>rank 0, %s in all</p>\n<table><tr>"
            "<th>operator</th><th>nodes</th><th>time</th><th>share</th><th>GFLOP/s</th>"
            "<th>GB/s</th><th>role</th></tr>\n",
            mgpu_ms_text(text, 1e3 * total));
    for (int i = 0; i < n; i++)
        fprintf(to,
                "<tr><td>%s</td><td>%d</td><td>%s</td><td>%.1f %%</td><td>%.1f</td><td>%.1f</td>"
                "<td>%s</td></tr>\n",
                line[i].name, line[i].nodes, mgpu_ms_text(text, 1e3 * line[i].seconds),
                100 * line[i].seconds / total, 1e-9 * line[i].flops / line[i].seconds,
                1e-9 * line[i].bytes / line[i].seconds, line[i].role);
    fputs("</table>\n", to);
}

/* ---- The page -------------------------------------------------------------------------------- */

static int put_page(struct mgpu_trainer *t, FILE *to)
{
    struct mgpu_facts f;
    mgpu_trainer_facts(t, &f);
    mgpu_html_begin(to, t->path);
    fputs("<h1>", to);
    mgpu_html_escape(to, t->path);
    fprintf(to,
            "</h1>\n<p>%lld steps done, batch %lld, %lld samples; %d weights trained (%lld "
            "numbers), %d frozen, %d running statistics; %s on ",
            (long long)t->step, (long long)f.batch, (long long)f.samples, f.trained,
            (long long)f.trained_elements, f.frozen, f.statistics, f.strategy);
    mgpu_html_escape(to, f.devices);
    fputs("</p>\n", to);
    put_course(t, to);
    put_profile(t, to);
    MGPU_TRY(put_plan(t, to));
    put_settings(t, to);
    put_weights(t, to);
    fputs("</html>\n", to);
    return 0;
}

int mgpu_trainer_html(struct mgpu_trainer *t, const char *path)
{
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    if (!to)
        return mgpu_fail(MGPU_ENOMEM, "%s: no memory for the page", path);
    int rc = mgpu_prefix(put_page(t, to), "%s", path);
    if (fclose(to) && rc == 0)
        rc = mgpu_fail(MGPU_ENOMEM, "%s: no memory for the page", path);
    if (rc == 0)
        rc = mgpu_atomic_save(path, text, size);
    free(text);
    return rc;
}
