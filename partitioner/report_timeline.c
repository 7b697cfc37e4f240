/* The predicted step as a trace (Chrome's Trace Event Format, JSON object form). */
#include "exporter/atomic_file.h"
#include "partitioner/report.h"
#include "runtime/base/status.h"

#include <json-c/json.h>

static const char *const lanes[MGPU_LANES] = {"compute", "communication"};

static struct json_object *number(double x)
{
    char text[32];
    snprintf(text, sizeof text, "%.3f", x);
    return json_object_new_double_s(x, text);
}

static struct json_object *event(const char *name, const char *phase, int device, int lane)
{
    struct json_object *o = json_object_new_object();
    json_object_object_add(o, "name", json_object_new_string(name));
    json_object_object_add(o, "ph", json_object_new_string(phase));
    json_object_object_add(o, "pid", json_object_new_int(device));
    json_object_object_add(o, "tid", json_object_new_int(lane));
    return o;
}

/* What a process or thread is called. */
static struct json_object *named(const char *what, const char *name, int device, int lane)
{
    struct json_object *o = event(what, "M", device, lane), *args = json_object_new_object();
    json_object_object_add(args, "name", json_object_new_string(name));
    json_object_object_add(o, "args", args);
    return o;
}

static struct json_object *span_json(const struct mgpu_span *s)
{
    struct json_object *o = event(s->label, "X", s->device, s->lane);
    struct json_object *args = json_object_new_object();
    json_object_object_add(o, "cat", json_object_new_string(s->what));
    json_object_object_add(o, "ts", number(1000 * s->start_ms)); /* microseconds */
    json_object_object_add(o, "dur", number(1000 * s->ms));
    json_object_object_add(args, "what", json_object_new_string(s->what));
    json_object_object_add(args, "node", json_object_new_string(s->key));
    if (s->lane == MGPU_LANE_COMMUNICATION)
        json_object_object_add(args, "bytes", json_object_new_int64(s->bytes));
    json_object_object_add(o, "args", args);
    return o;
}

static struct json_object *trace(const struct mgpu_report *r)
{
    struct json_object *o = json_object_new_object(), *events = json_object_new_array();
    for (int d = 0; d < r->plan->places; d++) {
        json_object_array_add(events,
                              named("process_name", mgpu_plan_file_place(r->plan, d), d, 0));
        for (int l = 0; l < MGPU_LANES; l++)
            json_object_array_add(events, named("thread_name", lanes[l], d, l));
    }
    for (int i = 0; i < r->spans; i++)
        json_object_array_add(events, span_json(&r->span[i]));
    json_object_object_add(o, "traceEvents", events);
    json_object_object_add(o, "displayTimeUnit", json_object_new_string("ms"));
    return o;
}

int mgpu_report_timeline(const struct mgpu_report *r, const char *path)
{
    struct json_object *o = trace(r);
    size_t size;
    const char *text = json_object_to_json_string_length(
        o, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE, &size);
    int rc = mgpu_atomic_save(path, text, size);
    json_object_put(o);
    return rc;
}
