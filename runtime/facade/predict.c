/* The model's outputs for every sample, into a file. */
#include "exporter/predictions.h"
#include "runtime/base/status.h"
#include "runtime/facade/facade.h"
#include "runtime/graph/alike.h"

#include <stdlib.h>
#include <string.h>

struct output {
    bool whole;   /* it has no samples: one value a batch */
    bool summed;  /* it is the sum over the ranks of their terms */
    double *term; /* ranks x elements */
    int64_t elements;
};

struct sink {
    struct mgpu_predictions *file;
    int64_t base; /* samples before this batch */
    struct output *output;
};

/* An output whose rows are not the samples would be written wrongly without a word. */
static int check_whole(const struct mgpu_trainer *t, const struct mgpu_graph *g,
                       const struct mgpu_value *v, const char *name)
{
    char text[MGPU_VALUE_TEXT], node[MGPU_VALUE_TEXT] = "an input", lost[MGPU_LOST_TEXT];
    if (mgpu_value_count(v) != 1 && !mgpu_step_rows_input(t)) {
        if (v->producer)
            mgpu_origin_text(node, &v->producer->origin);
        if (*mgpu_lost_batch_text(lost, g, v))
            return mgpu_fail(MGPU_EUNSUPPORTED,
                             "output '%s' is %s for %lld samples: no axis counts them: %s; a file "
                             "that holds the batch of its export has to be " MGPU_EXPORT_BATCH,
                             name, mgpu_value_text(text, NULL, v), (long long)t->batch, lost);
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
                            struct output **kinds, int *count)
{
    struct mgpu_graph *g;
    int64_t batch = t->samples < t->batch ? t->samples : t->batch;
    MGPU_TRY(mgpu_build_graph(&g, t, MGPU_MODE_PREDICT, batch, NULL));
    int rc = 0;
    *count = g->output_count;
    *outputs = MGPU_NEW_ARRAY(t->arena, struct mgpu_prediction_output, *count);
    *kinds = MGPU_NEW_ARRAY(t->arena, struct output, *count);
    for (int i = 0; i < *count && rc == 0; i++) {
        const struct mgpu_value *v = g->outputs[i];
        struct mgpu_prediction_output *o = &(*outputs)[i];
        int axis = mgpu_rows_axis(v, true);
        o->name = mgpu_arena_string(t->arena, g->output_names[i]);
        o->type = v->type;
        o->rank = v->rank;
        mgpu_value_dims(v, o->dims);
        if (axis < 0) {
            rc = mgpu_prefix(check_whole(t, g, v, o->name), "%s", t->path);
            struct output *kind = &(*kinds)[i];
            kind->whole = true;
            kind->elements = mgpu_value_count(v);
            kind->term = MGPU_NEW_ARRAY(t->arena, double, kind->elements *mgpu_team_size(t->team));
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
    for (int i = 0; i < p->results && count; i++) {
        const struct mgpu_port *r = &p->result[i];
        const void *data = (char *)rank->buffer[MGPU_BUFFER_RESULTS] + r->offset;
        int index = r->index;
        struct output *o = &sink->output[index];
        bool summed = o->whole && r->split.kind == MGPU_SPLIT_SUM;
        if (rank->replica == 0)
            o->summed = summed;
        if (!o->whole)
            MGPU_TRY(mgpu_predictions_write(sink->file, index, sink->base + first, count, data));
        else if (summed)
            mgpu_convert(o->term + rank->replica * o->elements, MGPU_DOUBLE, data, r->type,
                         o->elements);
        else if (rank->replica == 0)
            MGPU_TRY(mgpu_predictions_write(sink->file, index, 0, r->rank ? r->dims[0] : 1, data));
    }
    return 0;
}

/* Writes what the ranks only have terms of. */
static int write_sums(const struct mgpu_trainer *t, struct sink *sink,
                      const struct mgpu_prediction_output *outputs, int count)
{
    for (int i = 0; i < count; i++) {
        struct output *o = &sink->output[i];
        if (!o->summed)
            continue;
        for (int r = 1; r < t->plan->replicas; r++)
            for (int64_t k = 0; k < o->elements; k++)
                o->term[k] += o->term[r * o->elements + k];
        void *value = MGPU_NEW_ARRAY(t->arena, double, o->elements);
        mgpu_convert(value, outputs[i].type, o->term, MGPU_DOUBLE, o->elements);
        MGPU_TRY(mgpu_predictions_write(sink->file, i, 0, outputs[i].dims[0], value));
    }
    return 0;
}

static int all_batches(struct mgpu_trainer *t, struct sink *sink)
{
    struct mgpu_totals totals = {0};
    double unused[MGPU_MAX_LOSSES] = {0};
    struct mgpu_batches *b = &t->train.batches;
    mgpu_batches_epoch(b, 0);
    MGPU_TRY(mgpu_state_start(t, &t->train, MGPU_MODE_PREDICT));
    for (int64_t i = 0; i < mgpu_batches_count(b); i++) {
        struct mgpu_batch_run next,
            run = {.mode = MGPU_MODE_PREDICT, .source = &t->train, .after = after, .context = sink};
        mgpu_batch_of(t, i, &run, &next);
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
    MGPU_TRY(describe_outputs(t, &outputs, &sink.output, &count));
    MGPU_TRY(mgpu_predictions_open(&sink.file, path, outputs, count));
    int rc = all_batches(t, &sink);
    if (rc == 0)
        rc = write_sums(t, &sink, outputs, count);
    return mgpu_predictions_close(sink.file, rc);
}
