/* The model's outputs for every sample, into a file. */
#include "exporter/predictions.h"
#include "runtime/base/status.h"
#include "runtime/facade/facade.h"

#include <stdlib.h>
#include <string.h>

struct sink {
    struct mgpu_predictions *file;
    int64_t base; /* samples before this batch */
    bool *whole;  /* by output: it has no samples */
};

/* Which axis counts the samples: where the batch's monomial stands. -1: none. */
static int sample_axis(const struct mgpu_value *v)
{
    for (int k = 0; k < v->rank; k++)
        if (v->dims[k].power[MGPU_BATCH] == 1 && v->dims[k].factor == 1 && !v->dims[k].opaque)
            return k;
    return -1;
}

static bool has_step_rows(const struct mgpu_trainer *t)
{
    for (int i = 0; i < t->wants; i++)
        if (t->step_rows[i])
            return true;
    return false;
}

/* An output whose rows are not the samples would be written wrongly without a word. */
static int check_whole(const struct mgpu_trainer *t, const struct mgpu_value *v, const char *name)
{
    char text[MGPU_VALUE_TEXT], node[MGPU_VALUE_TEXT] = "an input";
    if (mgpu_value_count(v) != 1 && !has_step_rows(t)) {
        if (v->producer)
            mgpu_origin_text(node, &v->producer->origin);
        return mgpu_fail(MGPU_EUNSUPPORTED,
                         "output '%s' is %s for %lld samples: no axis counts them (made by %s)",
                         name, mgpu_value_text(text, NULL, v), (long long)t->batch, node);
    }
    if (t->samples > t->batch)
        return mgpu_fail(MGPU_EUNSUPPORTED,
                         "output '%s' is one value a batch; predict with one batch (--batch %lld)",
                         name, (long long)t->samples);
    return 0;
}

static int describe_outputs(struct mgpu_trainer *t, struct mgpu_prediction_output **outputs,
                            bool **whole, int *count)
{
    struct mgpu_graph *g;
    int64_t batch = t->samples < t->batch ? t->samples : t->batch;
    MGPU_TRY(mgpu_build_graph(&g, t, MGPU_MODE_PREDICT, batch));
    int rc = 0;
    *count = g->output_count;
    *outputs = MGPU_NEW_ARRAY(t->arena, struct mgpu_prediction_output, *count);
    *whole = MGPU_NEW_ARRAY(t->arena, bool, *count);
    for (int i = 0; i < *count && rc == 0; i++) {
        const struct mgpu_value *v = g->outputs[i];
        struct mgpu_prediction_output *o = &(*outputs)[i];
        int axis = sample_axis(v);
        o->name = mgpu_arena_string(t->arena, g->output_names[i]);
        o->type = v->type;
        o->rank = v->rank;
        mgpu_value_dims(v, o->dims);
        if (axis < 0) {
            rc = mgpu_prefix(check_whole(t, v, o->name), "%s", t->path);
            (*whole)[i] = true;
            if (o->rank == 0)
                o->dims[o->rank++] = 1;
        } else {
            o->axis = axis;
            o->dims[axis] = t->samples;
        }
    }
    mgpu_graph_free(g);
    return rc;
}

static int after(struct mgpu_trainer *t, struct mgpu_rank *rank, struct mgpu_program *p,
                 int64_t first, int64_t count, void *context)
{
    struct sink *sink = context;
    (void)t;
    for (int i = 0; i < p->results; i++) {
        const struct mgpu_port *r = &p->result[i];
        const void *data = (char *)rank->buffer[MGPU_BUFFER_RESULTS] + r->offset;
        if (sink->whole[i] && rank->rank == 0)
            MGPU_TRY(mgpu_predictions_write(sink->file, i, 0, r->rank ? r->dims[0] : 1, data));
        else if (!sink->whole[i] && count)
            MGPU_TRY(mgpu_predictions_write(sink->file, i, sink->base + first, count, data));
    }
    return 0;
}

static int all_batches(struct mgpu_trainer *t, struct sink *sink)
{
    struct mgpu_totals totals = {0};
    double unused[MGPU_MAX_LOSSES] = {0};
    struct mgpu_batches *b = &t->train.batches;
    mgpu_batches_epoch(b, 0);
    for (int64_t i = 0; i < mgpu_batches_count(b); i++) {
        struct mgpu_batch_run run = {.mode = MGPU_MODE_PREDICT,
                                     .source = &t->train,
                                     .rows = t->rows,
                                     .index = i,
                                     .after = after,
                                     .context = sink};
        run.count = mgpu_batches_rows(b, i, t->rows);
        MGPU_TRY(mgpu_run_batch(t, &run, unused, unused, &totals));
        sink->base += run.count;
    }
    return 0;
}

int mgpu_predict(struct mgpu_trainer *t, const char *path)
{
    struct sink sink = {0};
    struct mgpu_prediction_output *outputs;
    int count;
    MGPU_TRY(describe_outputs(t, &outputs, &sink.whole, &count));
    MGPU_TRY(mgpu_predictions_open(&sink.file, path, outputs, count));
    return mgpu_predictions_close(sink.file, all_batches(t, &sink));
}
