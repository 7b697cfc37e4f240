/* softmax, log_softmax and their gradient (runtime/ops/softmax.h). */
#include "runtime/ops/softmax.h"
#include "runtime/emit/lanes.h"

static bool is_log(const struct mgpu_node *node)
{
    return ((const struct mgpu_softmax_attrs *)node->attrs)->log;
}

static struct mgpu_emit_lanes lanes_of(const struct mgpu_node *node)
{
    return mgpu_emit_lanes_along(node->input[0],
                                 (int)((const struct mgpu_softmax_attrs *)node->attrs)->axis);
}

static void emit(struct mgpu_writer *w)
{
    struct mgpu_emit_lanes l = lanes_of(w->node);
    const char *type = mgpu_dtype_name(w->node->input[0]->type);
    mgpu_write_lanes(w, &l);
    mgpu_write(w, "    %s most = -INFINITY, sum = 0;\n    %s\n", l.real, l.loop);
    mgpu_write(w, "        most = fmax%s(most, LOAD_%s(x0, " MGPU_AT "));\n", l.suffix, type);
    mgpu_write_lane_max(w, &l, "most");
    mgpu_write(w, "    %s\n        sum += exp%s(LOAD_%s(x0, " MGPU_AT ") - most);\n", l.loop,
               l.suffix, type);
    mgpu_write_lane_sum(w, &l, "sum");
    if (is_log(w->node))
        mgpu_write(w, "    sum = log%s(sum);\n", l.suffix);
    mgpu_write(w, "    %s {\n        %s x = LOAD_%s(x0, " MGPU_AT ") - most;\n", l.loop, l.real,
               type);
    mgpu_write(w, is_log(w->node) ? "        x -= sum;\n" : "        x = exp%s(x) / sum;\n",
               l.suffix);
    mgpu_write(w, "        STORE_%s(y0, " MGPU_AT ", x);\n    }\n}\n", type);
}

/* y * (dy - sum(y*dy)), or dy - exp(y) * sum(dy). */
static void emit_grad(struct mgpu_writer *w)
{
    struct mgpu_emit_lanes l = lanes_of(w->node);
    const char *type = mgpu_dtype_name(w->node->input[0]->type);
    bool log_of = is_log(w->node);
    mgpu_write_lanes(w, &l);
    mgpu_write(w, "    %s sum = 0;\n    %s\n        sum += ", l.real, l.loop);
    if (!log_of)
        mgpu_write(w, "LOAD_%s(x0, " MGPU_AT ") * ", type);
    mgpu_write(w, "LOAD_%s(x1, " MGPU_AT ");\n", type);
    mgpu_write_lane_sum(w, &l, "sum");
    mgpu_write(
        w, "    %s {\n        %s y = LOAD_%s(x0, " MGPU_AT "), dy = LOAD_%s(x1, " MGPU_AT ");\n",
        l.loop, l.real, type, type);
    if (log_of)
        mgpu_write(w, "        dy -= exp%s(y) * sum;\n", l.suffix);
    else
        mgpu_write(w, "        dy = y * (dy - sum);\n");
    mgpu_write(w, "        STORE_%s(y0, " MGPU_AT ", dy);\n    }\n}\n", type);
}

const struct mgpu_emitter mgpu_emit_softmax[] = {
    {"softmax", NULL, emit},
    {"softmax_grad", NULL, emit_grad},
    {NULL, NULL, NULL},
};
