/* The page: what was chosen, the graph in layers, the predicted step. */
#include "exporter/atomic_file.h"
#include "exporter/html.h"
#include "partitioner/layout.h"
#include "partitioner/report.h"
#include "runtime/base/status.h"

#include <stdlib.h>
#include <string.h>

enum { MANY_NODES = 200, BOX = 150, BOX_HEIGHT = 36, GAP = 18, BEND = 14, PITCH = 64 };
enum { CHART = 1300, LABELS = 130, LANE = 26, DEVICE_GAP = 10, AXIS = 24, MOST_SPANS = 20000 };

/* The end of a name tells more than its beginning ("/layer1/layer1.0/conv1/Conv"). `most` is in
 * characters; bytes inside a character (UTF-8) are not counted and not cut. */
static void escape_end(FILE *to, const char *text, int most)
{
    int length = 0;
    for (const char *c = text; *c; c++)
        length += (*c & 0xc0) != 0x80;
    if (length > most) {
        fputs("…", to);
        for (length -= most - 1; length > 0 || (*text & 0xc0) == 0x80; text++)
            length -= (text[1] & 0xc0) != 0x80;
    }
    mgpu_html_escape(to, text);
}

/* The part of a name that tells nodes apart: exporters put the type and "_output_0" behind it. */
static void put_name(FILE *to, const struct mgpu_plan_node *n)
{
    const char *name = *n->name ? n->name : n->output;
    const char *last = strrchr(name, '/');
    bool typed = last && last > name && !strncmp(last + 1, n->type, strlen(n->type));
    char *text = strndup(name, typed ? (size_t)(last - name) : strlen(name));
    if (text)
        escape_end(to, text, 23);
    free(text);
}

/* ---- Colours: a hue a place; red is kept for what is sent -------------------------------------
 */

static int hue(int place)
{
    static const int first[] = {212, 140, 32, 275, 180, 325, 62};
    enum { FIRST = sizeof first / sizeof *first };
    return place < FIRST ? first[place] : 30 + place * 137 % 300; /* the golden angle apart */
}

static void fill(FILE *to, int place, int light)
{
    fprintf(to, "hsl(%d,62%%,%d%%)", hue(place), light);
}

/* ---- Head ------------------------------------------------------------------------------------ */

static void put_alternatives(const struct mgpu_plan_file *plan, FILE *to)
{
    char text[MGPU_UNIT_TEXT];
    fputs("<table><tr><th>strategy</th><th>devices</th><th>step</th><th>speed-up</th>"
          "<th>memory/device</th><th>moved/step</th><th>why</th></tr>\n",
          to);
    for (int i = 0; i < plan->alternatives; i++) {
        const struct mgpu_alternative *a = &plan->alternative[i];
        fprintf(to, "<tr%s><td>%s</td><td>%s</td>", i ? "" : " class=chosen", a->strategy,
                mgpu_devices_text(text, a));
        if (a->feasible) {
            fprintf(to, "<td>%s</td><td>%.2f×</td>", mgpu_ms_text(text, a->step_ms), a->speedup);
            fprintf(to, "<td>%s</td>", mgpu_bytes_text(text, a->memory_bytes));
            fprintf(to, "<td>%s</td>", mgpu_bytes_text(text, a->bytes_moved));
        } else {
            fputs("<td>–</td><td>–</td><td>–</td><td>–</td>", to);
        }
        fputs("<td>", to);
        mgpu_html_escape(to, a->why);
        fputs("</td></tr>\n", to);
    }
    fputs("</table>\n", to);
}

static void put_head(const struct mgpu_report *r, FILE *to)
{
    const struct mgpu_plan_file *plan = r->plan;
    char text[MGPU_UNIT_TEXT];
    mgpu_html_begin(to, plan->model_file);
    fputs("<h1>", to);
    mgpu_html_escape(to, plan->model_file);
    fputs(" on ", to);
    mgpu_html_escape(to, r->topology);
    fprintf(to, ": %s, %s a step</h1>\n<p>batch %lld, %d nodes; ", plan->strategy,
            mgpu_ms_text(text, plan->predicted.step_ms), (long long)plan->batch, plan->nodes);
    mgpu_html_escape(to, r->training);
    fputs("</p>\n", to);
    if (plan->predicted.lower_bound_ms > 0)
        fprintf(to,
                "<p>no plan of these devices is faster than %s: the chosen one is within %.1f "
                "%%</p>\n",
                mgpu_ms_text(text, plan->predicted.lower_bound_ms),
                100 * (plan->predicted.step_ms / plan->predicted.lower_bound_ms - 1));
    put_alternatives(plan, to);
}

/* Which colour is which place. */
static void put_key(const struct mgpu_report *r, FILE *to)
{
    char text[MGPU_UNIT_TEXT];
    fputs("<p>", to);
    for (int p = 0; p < r->plan->places; p++) {
        fputs("<span class=key><i style=\"background:", to);
        fill(to, p, 62);
        fputs("\"></i>", to);
        mgpu_html_escape(to, mgpu_plan_file_place(r->plan, p));
        fprintf(to, " (%s)</span>", mgpu_bytes_text(text, r->plan->predicted.memory_bytes[p]));
    }
    fputs("</p>\n", to);
}

/* ---- Graph ----------------------------------------------------------------------------------- */

static double top(const struct mgpu_layout *l, int box)
{
    return GAP + l->box[box].layer * PITCH;
}

static void put_line(const struct mgpu_report *r, const struct mgpu_layout *l,
                     const struct mgpu_line *e, FILE *to)
{
    char text[MGPU_UNIT_TEXT];
    const struct mgpu_plan_node *node = r->plan->node;
    int from = l->box[e->from].last, step = 1;
    if (e->points == 2) /* straight */
        step = l->box[e->to].layer - l->box[e->from].layer;
    bool moved = node[from].place != node[l->box[e->to].first].place;
    double y = top(l, e->from) + BOX_HEIGHT;
    fprintf(to, "<path class=%s d=\"M%.0f %.0f", moved ? "moved" : "line", e->x[0] + GAP, y);
    for (int k = 1; k < e->points; k++) {
        double below = top(l, e->from) + k * step * PITCH, middle = (y + below) / 2;
        fprintf(to, "C%.0f %.0f %.0f %.0f %.0f %.0f", e->x[k - 1] + GAP, middle, e->x[k] + GAP,
                middle, e->x[k] + GAP, below);
        y = below + BOX_HEIGHT;
        if (k < e->points - 1)
            fprintf(to, "V%.0f", y);
    }
    fputs("\"><title>", to);
    mgpu_html_escape(to, node[from].output);
    fprintf(to, ": %s%s</title></path>\n", mgpu_bytes_text(text, e->bytes),
            moved ? ", sent to another device" : "");
}

static void put_box(const struct mgpu_report *r, const struct mgpu_layout *l, int box, FILE *to)
{
    const struct mgpu_box *b = &l->box[box];
    const struct mgpu_plan_node *first = &r->plan->node[b->first], *last = &r->plan->node[b->last];
    double x = b->x + GAP, y = top(l, box);
    fprintf(to, "<g><rect class=box x=%.0f y=%.0f width=%d height=%d rx=6 fill=\"", x - BOX / 2, y,
            BOX, BOX_HEIGHT);
    fill(to, first->place, 90);
    fputs("\" stroke=\"", to);
    fill(to, first->place, 52);
    fprintf(to, "\"/><text x=%.0f y=%.0f text-anchor=middle>", x, y + 15);
    if (b->nodes > 1) {
        escape_end(to, first->type, 8);
        fputs(b->nodes > 2 ? " … " : ", ", to);
        escape_end(to, last->type, 8);
        fprintf(to, " (%d)", b->nodes);
    } else {
        escape_end(to, first->type, 22);
    }
    fprintf(to, "</text><text class=small x=%.0f y=%.0f text-anchor=middle>", x, y + 29);
    put_name(to, last);
    fputs("</text><title>", to);
    mgpu_html_escape(to, first->type);
    fputc(' ', to);
    mgpu_html_escape(to, first->name);
    fputs("\n", to);
    mgpu_html_escape(to, first->output);
    if (b->nodes > 1) {
        fprintf(to, "\n… %d nodes …\n", b->nodes);
        mgpu_html_escape(to, last->output);
    }
    fputs("\non ", to);
    mgpu_html_escape(to, mgpu_plan_file_place(r->plan, first->place));
    fputs("</title></g>\n", to);
}

static void put_graph(const struct mgpu_report *r, FILE *to)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    int *place = MGPU_NEW_ARRAY(arena, int, r->plan->nodes);
    for (int i = 0; i < r->plan->nodes; i++)
        place[i] = r->plan->node[i].place;
    struct mgpu_layout_sizes sizes = {.box = BOX + GAP, .bend = BEND};
    struct mgpu_layout *l = mgpu_layout_new(r->outline, place, MANY_NODES, sizes);
    double width = l->width + 2 * GAP, height = l->layers * PITCH + GAP;
    fputs("<h2>Graph (forward; backward runs where forward does)</h2>\n", to);
    put_key(r, to);
    fputs("<p>a dashed line goes from one device to another; hover for names and sizes</p>\n", to);
    fprintf(to,
            "<div class=scroll><svg width=%.0f height=%.0f viewBox=\"0 0 %.0f %.0f\" "
            "style=\"margin:0 auto\">\n",
            width, height, width, height);
    for (int i = 0; i < l->lines; i++)
        put_line(r, l, &l->line[i], to);
    for (int i = 0; i < l->boxes; i++)
        put_box(r, l, i, to);
    fputs("</svg></div>\n", to);
    mgpu_layout_free(l);
    mgpu_arena_free(arena);
}

/* ---- Timeline -------------------------------------------------------------------------------- */

static double step_end(const struct mgpu_report *r)
{
    double end = r->plan->predicted.step_ms;
    for (int i = 0; i < r->spans; i++)
        if (r->span[i].start_ms + r->span[i].ms > end)
            end = r->span[i].start_ms + r->span[i].ms;
    return end > 0 ? end : 1;
}

static double lane_top(int device, int lane)
{
    return AXIS + device * (2.0 * LANE + DEVICE_GAP) + lane * LANE;
}

static void put_axis(double end, double height, FILE *to)
{
    char text[MGPU_UNIT_TEXT];
    double tick = mgpu_html_tick(end);
    for (int i = 0; i * tick <= end; i++) {
        double x = LABELS + i * tick / end * CHART;
        snprintf(text, sizeof text, "%.6g ms", i * tick);
        fprintf(to,
                "<path d=\"M%.1f %dV%.0f\" stroke=#eaeef2 /><text class=small x=%.1f y=14 "
                "text-anchor=middle>%s</text>\n",
                x, AXIS - 6, height, x, text);
    }
}

static void put_span(const struct mgpu_span *s, double end, FILE *to)
{
    char ms[MGPU_UNIT_TEXT], bytes[MGPU_UNIT_TEXT];
    double width = s->ms / end * CHART;
    bool update = !strcmp(s->what, "update"), backward = !strcmp(s->what, "backward");
    fprintf(to, "<rect x=%.2f y=%.0f width=%.2f height=%d fill=\"",
            LABELS + s->start_ms / end * CHART, lane_top(s->device, s->lane) + 2,
            width > 0.6 ? width : 0.6, LANE - 4);
    if (s->lane == MGPU_LANE_COMMUNICATION)
        fputs("#cf222e", to);
    else if (update)
        fputs("#8c959f", to);
    else
        fill(to, s->device, backward ? 48 : 68);
    fputs("\"><title>", to);
    mgpu_html_escape(to, s->label);
    fprintf(to, "\n%s, %s", s->what, mgpu_ms_text(ms, s->ms));
    if (s->lane == MGPU_LANE_COMMUNICATION)
        fprintf(to, ", %s", mgpu_bytes_text(bytes, s->bytes));
    fputs("</title></rect>\n", to);
}

static void put_lanes(const struct mgpu_report *r, FILE *to)
{
    static const char *const lanes[MGPU_LANES] = {"compute", "communicate"};
    for (int d = 0; d < r->plan->places; d++)
        for (int l = 0; l < MGPU_LANES; l++) {
            fprintf(to, "<text class=%s x=0 y=%.0f>", l ? "small" : "name", lane_top(d, l) + 17);
            if (l == 0)
                escape_end(to, mgpu_plan_file_place(r->plan, d), 16);
            else
                fputs(lanes[l], to);
            fprintf(to, "</text><path d=\"M%d %.0fh%d\" stroke=#d8dee4 />\n", LABELS,
                    lane_top(d, l) + LANE, CHART);
        }
}

static void put_timeline(const struct mgpu_report *r, FILE *to)
{
    double end = step_end(r), height = lane_top(r->plan->places, 0);
    fputs("<h2>Predicted step</h2>\n<p>light: forward; dark: backward; grey: update; red: "
          "communication",
          to);
    if (r->spans > MOST_SPANS)
        fprintf(to, "; the first %d of %d spans (--timeline has all)", MOST_SPANS, r->spans);
    if (r->plan->replicas > 1)
        fprintf(to, "; one of %d replicas", r->plan->replicas);
    fprintf(to, "</p>\n<div class=scroll><svg width=%d height=%.0f style=\"margin:8px\">\n",
            LABELS + CHART + 40, height);
    put_axis(end, height, to);
    put_lanes(r, to);
    for (int i = 0; i < r->spans && i < MOST_SPANS; i++)
        put_span(&r->span[i], end, to);
    fputs("</svg></div>\n", to);
}

int mgpu_report_html(const struct mgpu_report *r, const char *path)
{
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    if (!to)
        return mgpu_fail(MGPU_ENOMEM, "%s: no memory for the page", path);
    put_head(r, to);
    put_timeline(r, to);
    put_graph(r, to);
    fputs("</html>\n", to);
    int rc = fclose(to) ? mgpu_fail(MGPU_ENOMEM, "%s: no memory for the page", path)
                        : mgpu_atomic_save(path, text, size);
    free(text);
    return rc;
}
