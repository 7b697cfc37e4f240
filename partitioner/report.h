/* What a planner found, for a person: the table, the timeline, the picture. */
#ifndef MGPU_PARTITIONER_REPORT_H
#define MGPU_PARTITIONER_REPORT_H

#include "partitioner/outline.h"
#include "partitioner/plan_file.h"

enum mgpu_lane { MGPU_LANE_COMPUTE, MGPU_LANE_COMMUNICATION, MGPU_LANES };

/* Something a device does during the predicted step. */
struct mgpu_span {
    int device;
    enum mgpu_lane lane;
    const char *what;  /* "forward", "backward", "update", "send", "receive", "all-reduce" */
    const char *key;   /* the node's output, or the parameter; "" */
    const char *label; /* how it is called: "LSTM h1" */
    double start_ms, ms;
    int64_t bytes; /* communication */
};

struct mgpu_report {
    const struct mgpu_plan_file *plan;
    const struct mgpu_outline *outline; /* plan->node[i] is outline->node[i] */
    const char *topology;               /* as asked for */
    const char *training;               /* "adam, mse on 'y', f32" */
    const char *placement;              /* a sentence on what placement can win, or "" */
    const char *costs;                  /* whose numbers its GPUs have, or "" */
    const char *weights;                /* the same on what --weights-on saves and costs */
    int spans;
    const struct mgpu_span *span; /* of one replica: devices below plan->places */
};

/* Bytes as "1.5 MiB", milliseconds as "0.123 ms" or "1.2 s"; returns text. */
enum { MGPU_UNIT_TEXT = 32 };
char *mgpu_bytes_text(char text[MGPU_UNIT_TEXT], int64_t bytes);
char *mgpu_ms_text(char text[MGPU_UNIT_TEXT], double ms);

/* The devices of a strategy: "6", or "2 x 3" where each of several replicas has as many. */
char *mgpu_devices_text(char text[MGPU_UNIT_TEXT], const struct mgpu_alternative *strategy);

/* The strategies that were tried (the first `top` losers and both baselines), why each lost, the
 * lower bound and the chosen placement. */
void mgpu_report_table(const struct mgpu_report *report, int top, FILE *to);

/* A trace in Chrome's format, which Perfetto opens: a process a device, a thread for what it
 * computes, and one or more for what it sends and sums: what overlaps has threads of its own. */
int mgpu_report_timeline(const struct mgpu_report *report, const char *path);

/* One page that needs nothing else: the graph, coloured by place, and the timeline. */
int mgpu_report_html(const struct mgpu_report *report, const char *path);

#endif
