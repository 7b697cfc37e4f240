/* The predicted step as a trace (Chrome's Trace Event Format, JSON object form). */
#include "exporter/atomic_file.h"
#include "partitioner/report.h"
#include "runtime/base/status.h"

#include <json-c/json.h>
#include <math.h>
#include <stdlib.h>

/* Threads of a device: what it computes, then as many as it has transfers and sums at a time, for
 * events of one thread must not overlap. */
struct trace {
    const struct mgpu_report *report;
    struct mgpu_arena *arena;
    int *lanes;    /* by device: of communication */
    double **free; /* by device and lane: when the last span ends */
    int *thread;   /* by span */
};

/* Microseconds with three digits, so that spans that touch do so in the file, too. */
static double micros(double ms)
{
    return round(1e6 * ms) / 1e3;
}

static int free_lane(struct trace *t, const struct mgpu_span *s)
{
    int d = s->device, lane = 0;
    while (lane < t->lanes[d] && t->free[d][lane] > micros(s->start_ms))
        lane++;
    if (lane == t->lanes[d]) {
        t->free[d] = mgpu_grow(t->free[d], (size_t)lane, sizeof **t->free);
        t->lanes[d]++;
    }
    t->free[d][lane] = micros(s->start_ms + s->ms);
    return lane;
}

/* Spans stand in the order in which they start. */
static void assign_threads(struct trace *t)
{
    const struct mgpu_report *r = t->report;
    t->lanes = MGPU_NEW_ARRAY(t->arena, int, r->plan->places);
    t->free = MGPU_NEW_ARRAY(t->arena, double *, r->plan->places);
    t->thread = MGPU_NEW_ARRAY(t->arena, int, r->spans);
    for (int i = 0; i < r->spans; i++) {
        t->thread[i] = (int)r->span[i].lane;
        if (r->span[i].lane == MGPU_LANE_COMMUNICATION)
            t->thread[i] += free_lane(t, &r->span[i]);
    }
    for (int d = 0; d < r->plan->places; d++)
        free(t->free[d]);
}

static struct json_object *number(double x)
{
    char text[32];
    snprintf(text, sizeof text, "%.3f", x);
    return json_object_new_double_s(x, text);
}

static struct json_object *event(const char *name, const char *phase, int device, int thread)
{
    struct json_object *o = json_object_new_object();
    json_object_object_add(o, "name", json_object_new_string(name));
    json_object_object_add(o, "ph", json_object_new_string(phase));
    json_object_object_add(o, "pid", json_object_new_int(device));
    json_object_object_add(o, "tid", json_object_new_int(thread));
    return o;
}

/* What a process or thread is called. */
static struct json_object *named(const char *what, const char *name, int device, int thread)
{
    struct json_object *o = event(what, "M", device, thread), *args = json_object_new_object();
    json_object_object_add(args, "name", json_object_new_string(name));
    json_object_object_add(o, "args", args);
    return o;
}

static struct json_object *span_json(const struct mgpu_span *s, int thread)
{
    struct json_object *o = event(s->label, "X", s->device, thread);
    double start = micros(s->start_ms);
    struct json_object *args = json_object_new_object();
    json_object_object_add(o, "cat", json_object_new_string(s->what));
    json_object_object_add(o, "ts", number(start));
    json_object_object_add(o, "dur", number(micros(s->start_ms + s->ms) - start));
    json_object_object_add(args, "what", json_object_new_string(s->what));
    json_object_object_add(args, "node", json_object_new_string(s->key));
    if (s->lane == MGPU_LANE_COMMUNICATION)
        json_object_object_add(args, "bytes", json_object_new_int64(s->bytes));
    json_object_object_add(o, "args", args);
    return o;
}

static void name_device(const struct trace *t, int d, struct json_object *events)
{
    const char *place = mgpu_plan_file_place(t->report->plan, d);
    json_object_array_add(events, named("process_name", place, d, 0));
    json_object_array_add(events, named("thread_name", "compute", d, MGPU_LANE_COMPUTE));
    for (int l = 0; l == 0 || l < t->lanes[d]; l++)
        json_object_array_add(
            events,
            named("thread_name",
                  l ? mgpu_arena_format(t->arena, "communication %d", l + 1) : "communication", d,
                  MGPU_LANE_COMMUNICATION + l));
}

static struct json_object *trace_json(const struct trace *t)
{
    const struct mgpu_report *r = t->report;
    struct json_object *o = json_object_new_object(), *events = json_object_new_array();
    for (int d = 0; d < r->plan->places; d++)
        name_device(t, d, events);
    for (int i = 0; i < r->spans; i++)
        json_object_array_add(events, span_json(&r->span[i], t->thread[i]));
    json_object_object_add(o, "traceEvents", events);
    json_object_object_add(o, "displayTimeUnit", json_object_new_string("ms"));
    return o;
}

int mgpu_report_timeline(const struct mgpu_report *r, const char *path)
{
    struct trace t = {.report = r, .arena = mgpu_arena_new()};
    assign_threads(&t);
    struct json_object *o = trace_json(&t);
    size_t size;
    const char *text = json_object_to_json_string_length(
        o, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE, &size);
    int rc = mgpu_atomic_save(path, text, size);
    json_object_put(o);
    mgpu_arena_free(t.arena);
    return rc;
}
