/* What a person gets to see: units, the table, the trace, the page, and the drawing of graphs. */
#include "partitioner/layout.h"
#include "partitioner/report.h"
#include "tests/onnx_build.h"
#include "tests/test.h"

#include <json-c/json.h>

/* ---- A small result -------------------------------------------------------------------------- */

/* Two towers of two nodes, a join; names that HTML and JSON have to escape. */
static const char *const outputs[] = {"a<1>", "a\n2", "b\"1\"", "b&2", "join"};
static const char *const types[] = {"LSTM", "Relu", "LSTM", "Relu", "Concat"};
static const int places[] = {0, 0, 1, 1, 0};
static const struct mgpu_outline_edge edges[] = {{0, 1, 100, true, false},
                                                 {2, 3, 200, true, false},
                                                 {1, 4, 300, true, false},
                                                 {3, 4, 400, true, false}};

static struct mgpu_outline *make_outline(struct mgpu_arena *arena)
{
    struct mgpu_outline *o = MGPU_NEW(arena, struct mgpu_outline);
    o->nodes = 5;
    o->node = MGPU_NEW_ARRAY(arena, struct mgpu_outline_node, 5);
    for (int i = 0; i < 5; i++)
        o->node[i] = (struct mgpu_outline_node){.output = outputs[i], .name = "", .type = types[i]};
    o->edges = 4;
    o->edge = mgpu_arena_copy(arena, edges, sizeof edges);
    o->node[1].edges = o->node[3].edges = 1;
    o->node[3].first_edge = 1;
    o->node[4].first_edge = o->node[4].edges = 2;
    return o;
}

static struct mgpu_plan_file *make_plan(void)
{
    struct mgpu_plan_file *p = mgpu_plan_file_new();
    mgpu_plan_file_devices(p, 2, (const char *const[]){"cpu:0", "cpu:1"});
    p->model_file = "net.onnx";
    p->batch = 64;
    p->strategy = "branch";
    p->places = 2;
    p->nodes = 5;
    p->node = MGPU_NEW_ARRAY(p->arena, struct mgpu_plan_node, 5);
    for (int i = 0; i < 5; i++)
        p->node[i] = (struct mgpu_plan_node){outputs[i], "", types[i], places[i]};
    p->predicted.step_ms = 2;
    p->predicted.lower_bound_ms = 1.6;
    p->predicted.memory_bytes[0] = 3 << 20;
    p->alternatives = 4;
    p->alternative = MGPU_NEW_ARRAY(p->arena, struct mgpu_alternative, 4);
    p->alternative[0] =
        (struct mgpu_alternative){"branch", 1, 2, 2, true, false, 2, 1.9, 3 << 20, 4096, "fastest"};
    p->alternative[1] = (struct mgpu_alternative){
        "hybrid", 2, 2, 4, true, false, 2.5, 1.5, 3 << 20, 4096, "<needs> more"};
    p->alternative[2] = (struct mgpu_alternative){
        .strategy = "stacked", .replicas = 1, .places = 1, .devices = 1, .why = "no equal towers"};
    p->alternative[3] =
        (struct mgpu_alternative){"data", 2, 1, 2, true, false, 3, 1.3, 3 << 20, 4096, "sums"};
    return p;
}

static const struct mgpu_span spans[] = {
    {0, MGPU_LANE_COMPUTE, "forward", "a<1>", "LSTM a<1>", 0, 1, 0},
    {1, MGPU_LANE_COMPUTE, "forward", "b\"1\"", "LSTM b\"1\"", 0, 0.9, 0},
    {1, MGPU_LANE_COMMUNICATION, "send", "b&2", "b&2 to cpu:0", 1, 0.25, 400},
    {0, MGPU_LANE_COMPUTE, "backward", "a2", "Relu a2", 1.5, 0.5, 0},
};

static struct mgpu_report make_report(struct mgpu_arena *arena)
{
    return (struct mgpu_report){.plan = make_plan(),
                                .outline = make_outline(arena),
                                .topology = "cpu:0,cpu:1",
                                .training = "adam, mse on 'y', f32",
                                .placement = "placement can win 1.9",
                                .costs = "numbers of h100",
                                .weights = "weights on cpu:0",
                                .spans = 4,
                                .span = spans};
}

static char *text_of(const char *path)
{
    size_t size;
    char *text = (char *)build_load(path, &size);
    if (text)
        text[size] = 0;
    return text;
}

/* ---- Units ----------------------------------------------------------------------------------- */

static void test_units(void)
{
    char t[MGPU_UNIT_TEXT];
    CHECK(!strcmp(mgpu_bytes_text(t, 0), "0 B") && !strcmp(mgpu_bytes_text(t, 999), "999 B"));
    CHECK(!strcmp(mgpu_bytes_text(t, 1000), "1.0 KiB"));
    CHECK(!strcmp(mgpu_bytes_text(t, 1536), "1.5 KiB"));
    CHECK(!strcmp(mgpu_bytes_text(t, INT64_C(80) << 30), "80 GiB"));
    CHECK(!strcmp(mgpu_ms_text(t, 0.1234), "0.123 ms"));
    CHECK(!strcmp(mgpu_ms_text(t, 12.345), "12.3 ms"));
    CHECK(!strcmp(mgpu_ms_text(t, 1234.5), "1234 ms"));
    CHECK(!strcmp(mgpu_ms_text(t, 12345), "12.3 s"));
}

/* ---- The table ------------------------------------------------------------------------------- */

static void test_table(const struct mgpu_report *r)
{
    FILE *to = fopen(build_path("table"), "w");
    mgpu_report_table(r, 1, to);
    fclose(to);
    char *t = text_of(build_path("table"));
    CHECK(strstr(t, "net.onnx on cpu:0,cpu:1, batch 64: 5 nodes; adam, mse on 'y', f32"));
    CHECK(strstr(t, "* branch          2     2.00 ms     1.90x       3.0 MiB      4.0 KiB"));
    CHECK(strstr(t, "  hybrid      2 x 2     2.50 ms"));
    CHECK(!strstr(t, "stacked") && strstr(t, "(1 more: --top 4)")); /* beyond --top 1 */
    CHECK(strstr(t, "  data on 2: sums"));                          /* a baseline: always */
    CHECK(strstr(t, "faster than 1.60 ms: the chosen one is within 25.0 %"));
    CHECK(strstr(t, "placement can win 1.9"));
    CHECK(strstr(t, "  cpu:0: 3 nodes, a<1> ... join; 3.0 MiB"));
    CHECK(strstr(t, "  cpu:1        Relu                 b&2"));
    CHECK(strstr(t, "  cpu:0        Relu                 a\\n2\n")); /* one line */
    free(t);
}

/* ---- The trace ------------------------------------------------------------------------------- */

static double number_of(struct json_object *o, const char *key)
{
    struct json_object *v;
    return json_object_object_get_ex(o, key, &v) ? json_object_get_double(v) : -1;
}

static void test_trace(const struct mgpu_report *r)
{
    CHECK_OK(mgpu_report_timeline(r, build_path("t.json")));
    char *t = text_of(build_path("t.json"));
    struct json_object *o = json_tokener_parse(t), *list, *e, *args, *bytes;
    CHECK(o && json_object_object_get_ex(o, "traceEvents", &list));
    CHECK(o && json_object_array_length(list) == 2 * 3 + 4); /* names of 2 devices; spans */
    e = json_object_array_get_idx(list, 8);
    CHECK_NEAR(number_of(e, "ts"), 1000, 0); /* microseconds */
    CHECK_NEAR(number_of(e, "dur"), 250, 0);
    CHECK(number_of(e, "pid") == 1 && number_of(e, "tid") == MGPU_LANE_COMMUNICATION);
    CHECK(json_object_object_get_ex(e, "args", &args) &&
          json_object_object_get_ex(args, "bytes", &bytes) && json_object_get_int(bytes) == 400);
    json_object_put(o);
    free(t);
    CHECK_FAILS(mgpu_report_timeline(r, "/nowhere/t.json"), "/nowhere/t.json");
}

struct slice {
    double start, end;
};

static struct slice slice_of(struct json_object *e)
{
    return (struct slice){number_of(e, "ts"), number_of(e, "ts") + number_of(e, "dur")};
}

/* What overlaps does so on tracks of its own; what only touches stays on one. */
static void test_tracks(struct mgpu_report r)
{
    static const struct mgpu_span over[] = {
        {0, MGPU_LANE_COMPUTE, "forward", "c", "Conv c", 0, 0.3000004, 0},
        {0, MGPU_LANE_COMPUTE, "forward", "d", "Conv d", 0.3000004, 0.3000004, 0},
        {0, MGPU_LANE_COMMUNICATION, "send", "c", "c to cpu:1", 0.3, 0.4, 8},
        {0, MGPU_LANE_COMMUNICATION, "send", "d", "d to cpu:1", 0.5, 0.4, 8},
        {0, MGPU_LANE_COMMUNICATION, "send", "e", "e to cpu:1", 0.6, 0.4, 8},
        {0, MGPU_LANE_COMMUNICATION, "send", "f", "f to cpu:1", 0.7, 0.1, 8},
        {1, MGPU_LANE_COMMUNICATION, "send", "g", "g to cpu:0", 0.7, 0.1, 8},
    };
    static const int thread[] = {0, 0, 1, 2, 3, 1, 1};
    enum { NAMES = 3 + 2 + 3, SPANS = sizeof over / sizeof *over };
    struct json_object *list = NULL;
    r.span = over;
    r.spans = SPANS;
    CHECK_OK(mgpu_report_timeline(&r, build_path("t.json")));
    char *t = text_of(build_path("t.json"));
    struct json_object *o = json_tokener_parse(t);
    CHECK(o && json_object_object_get_ex(o, "traceEvents", &list));
    CHECK(list && json_object_array_length(list) == NAMES + SPANS);
    CHECK(strstr(t, "\"communication 3\"") && !strstr(t, "\"communication 4\""));
    for (int i = 0; list && i < SPANS; i++) {
        struct json_object *e = json_object_array_get_idx(list, (size_t)(NAMES + i));
        struct slice a = slice_of(e);
        CHECK(number_of(e, "tid") == thread[i]);
        for (int k = 0; k < i; k++) {
            struct json_object *before = json_object_array_get_idx(list, (size_t)(NAMES + k));
            CHECK(number_of(before, "pid") != number_of(e, "pid") ||
                  number_of(before, "tid") != number_of(e, "tid") ||
                  slice_of(before).end <= a.start + 1e-9);
        }
    }
    json_object_put(o);
    free(t);
}

/* ---- The page -------------------------------------------------------------------------------- */

static int occurrences(const char *text, const char *what)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)); at++)
        n++;
    return n;
}

static void test_page(const struct mgpu_report *r)
{
    CHECK_OK(mgpu_report_html(r, build_path("p.html")));
    char *t = text_of(build_path("p.html"));
    CHECK(occurrences(t, "<rect class=box") == 5 && occurrences(t, "<tr") == 5);
    CHECK(occurrences(t, "class=line ") == 3 && occurrences(t, "class=moved ") == 1);
    CHECK(strstr(t, "a&lt;1&gt;") && !strstr(t, "a<1>") && strstr(t, "b&amp;2"));
    CHECK(strstr(t, "&lt;needs&gt; more"));
    CHECK(!strstr(t, "http") && !strstr(t, "src=") && !strstr(t, "<script")); /* needs nothing */
    CHECK(strstr(t, "</html>"));
    free(t);
}

/* ---- Drawings -------------------------------------------------------------------------------- */

enum { WIDE = 7, DEEP = 40 };

/* Random layers; each node needs one to three of the nodes before it. */
static struct mgpu_outline *random_outline(struct mgpu_arena *arena, unsigned *seed, int nodes)
{
    struct mgpu_outline *o = MGPU_NEW(arena, struct mgpu_outline);
    o->nodes = nodes;
    o->node = MGPU_NEW_ARRAY(arena, struct mgpu_outline_node, nodes);
    o->edge = MGPU_NEW_ARRAY(arena, struct mgpu_outline_edge, 3 * nodes);
    for (int i = 0; i < nodes; i++) {
        struct mgpu_outline_node *n = &o->node[i];
        *n = (struct mgpu_outline_node){.output = "x", .name = "", .type = "T"};
        n->first_edge = o->edges;
        int last = -1;
        for (int k = 0; k < 3 && i > 0; k++) {
            *seed = *seed * 1664525u + 1013904223u;
            int back = 1 + (int)(*seed >> 20) % WIDE, from = i - back;
            if (from <= last || (k && *seed >> 31))
                continue;
            o->edge[o->edges++] = (struct mgpu_outline_edge){from, i, 4, true, false};
            n->edges++;
            last = from;
        }
    }
    return o;
}

static void check_drawing(const struct mgpu_outline *o, const struct mgpu_layout *l, double box)
{
    for (int i = 0; i < l->lines; i++) /* downwards */
        CHECK(l->box[l->line[i].from].layer < l->box[l->line[i].to].layer);
    for (int i = 0; i < l->boxes; i++) {
        CHECK(l->box[i].x >= box / 2 - 1e-6 && l->box[i].x <= l->width - box / 2 + 1e-6);
        for (int k = 0; k < i; k++)
            CHECK(l->box[i].layer != l->box[k].layer ||
                  fabs(l->box[i].x - l->box[k].x) >= box - 1e-6);
    }
    int nodes = 0;
    for (int i = 0; i < l->boxes; i++)
        nodes += l->box[i].nodes;
    CHECK(nodes == o->nodes);
    for (int i = 0; i < l->lines; i++) {
        const struct mgpu_line *e = &l->line[i];
        int bends = l->box[e->to].layer - l->box[e->from].layer;
        CHECK(e->points == bends + 1);
        CHECK_NEAR(e->x[0], l->box[e->from].x, 0);
        CHECK_NEAR(e->x[bends], l->box[e->to].x, 0);
    }
}

static void test_drawings(void)
{
    unsigned seed = 1;
    struct mgpu_layout_sizes sizes = {.box = 100, .bend = 10};
    for (int n = 1; n < 60; n++) {
        struct mgpu_arena *arena = mgpu_arena_new();
        struct mgpu_outline *o = random_outline(arena, &seed, n);
        int *place = MGPU_NEW_ARRAY(arena, int, n);
        for (int i = 0; i < n; i++)
            place[i] = i % 5 == 0;
        for (int most = 0; most <= 100; most += 100) { /* chains in one box, and not */
            struct mgpu_layout *l = mgpu_layout_new(o, place, most, sizes);
            check_drawing(o, l, 100);
            CHECK(most == 0 || l->boxes == n);
            mgpu_layout_free(l);
        }
        mgpu_arena_free(arena);
    }
}

/* A chain is one straight line, or one box. */
static void test_chain(void)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_outline *o = MGPU_NEW(arena, struct mgpu_outline);
    int place[DEEP] = {0};
    o->nodes = DEEP;
    o->node = MGPU_NEW_ARRAY(arena, struct mgpu_outline_node, DEEP);
    o->edge = MGPU_NEW_ARRAY(arena, struct mgpu_outline_edge, DEEP);
    for (int i = 1; i < DEEP; i++) {
        o->edge[o->edges] = (struct mgpu_outline_edge){i - 1, i, 4, true, false};
        o->node[i].first_edge = o->edges++;
        o->node[i].edges = 1;
    }
    struct mgpu_layout_sizes sizes = {.box = 100, .bend = 10};
    struct mgpu_layout *l = mgpu_layout_new(o, place, DEEP, sizes);
    CHECK(l->boxes == DEEP && l->layers == DEEP && l->width == 100);
    mgpu_layout_free(l);
    l = mgpu_layout_new(o, place, DEEP - 1, sizes);
    CHECK(l->boxes == 1 && l->box[0].nodes == DEEP && l->box[0].last == DEEP - 1);
    mgpu_layout_free(l);
    place[DEEP / 2] = 1; /* on another device: three boxes */
    l = mgpu_layout_new(o, place, DEEP - 1, sizes);
    CHECK(l->boxes == 3 && l->box[1].nodes == 1);
    mgpu_layout_free(l);
    mgpu_arena_free(arena);
}

/* Lines that would need too many bends go straight: the work stays small. */
static void test_long_lines(void)
{
    enum { NODES = 3000 };
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_outline *o = MGPU_NEW(arena, struct mgpu_outline);
    int *place = MGPU_NEW_ARRAY(arena, int, NODES), straight = 0;
    o->nodes = NODES;
    o->node = MGPU_NEW_ARRAY(arena, struct mgpu_outline_node, NODES);
    o->edge = MGPU_NEW_ARRAY(arena, struct mgpu_outline_edge, 2 * NODES);
    for (int i = 1; i < NODES; i++) { /* each needs the one before, and the first */
        o->node[i].first_edge = o->edges;
        if (i > 1)
            o->edge[o->edges++] = (struct mgpu_outline_edge){0, i, 4, true, false};
        o->edge[o->edges++] = (struct mgpu_outline_edge){i - 1, i, 4, true, false};
        o->node[i].edges = o->edges - o->node[i].first_edge;
    }
    struct mgpu_layout *l =
        mgpu_layout_new(o, place, NODES, (struct mgpu_layout_sizes){.box = 100, .bend = 10});
    for (int i = 0; i < l->lines; i++)
        straight += l->line[i].points == 2;
    CHECK(l->layers == NODES && straight > NODES && straight < 2 * NODES - 100);
    mgpu_layout_free(l);
    mgpu_arena_free(arena);
}

int main(void)
{
    build_begin();
    struct mgpu_report r = make_report(build_arena);
    test_units();
    test_table(&r);
    test_trace(&r);
    test_tracks(r);
    test_page(&r);
    test_drawings();
    test_chain();
    test_long_lines();
    mgpu_plan_file_free((struct mgpu_plan_file *)r.plan);
    build_end();
    return test_end();
}
