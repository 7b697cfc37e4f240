/* Every case folder: the exported model's outputs on the first batch, on `ref` and `cpu`, against
 * the framework's. Cases that are not supported are listed with the reason. */
#include "importer/lower.h"
#include "runtime/graph/fold.h"
#include "runtime/ref/ref.h"
#include "tests/ops/run_graph.h"
#include "tests/support/golden.h"
#include "tests/test.h"

struct forward {
    struct mgpu_golden golden;
    struct mgpu_golden_group inputs, want;
    struct mgpu_onnx_file *file;
    struct mgpu_onnx_model *model;
    struct mgpu_weights *weights;
    struct mgpu_graph *graph;
};

static int open_case(struct forward *f, const char *folder)
{
    struct mgpu_weights_options none = {0};
    MGPU_TRY(mgpu_golden_open(&f->golden, folder));
    MGPU_TRY(mgpu_golden_read(&f->golden, "inputs", &f->inputs));
    MGPU_TRY(mgpu_golden_read(&f->golden, "forward", &f->want));
    MGPU_TRY(mgpu_onnx_read(&f->file, f->golden.model));
    MGPU_TRY(mgpu_onnx_model_new(&f->model, f->file));
    return mgpu_weights_identify(&f->weights, f->model, &none);
}

static void close_case(struct forward *f)
{
    mgpu_graph_free(f->graph);
    mgpu_weights_free(f->weights);
    mgpu_onnx_model_free(f->model);
    mgpu_onnx_free(f->file);
    mgpu_golden_group_free(&f->inputs);
    mgpu_golden_group_free(&f->want);
    mgpu_golden_close(&f->golden);
}

/* Lowers in inference form what golden.h5 has answers for, at the case's batch. */
static int lower_case(struct forward *f)
{
    enum { MOST = 16 };
    const char *wanted[MOST];
    struct mgpu_lower_input input[MOST];
    struct mgpu_lower_options options = {
        .float_type = MGPU_FLOAT,
        .batch = f->golden.batch,
        .input = input,
        .inputs = f->inputs.count,
        .wanted = wanted,
        .wanted_count = f->want.count,
    };
    for (int i = 0; i < f->want.count && i < MOST; i++)
        wanted[i] = f->want.tensor[i].name;
    for (int i = 0; i < f->inputs.count && i < MOST; i++) {
        const struct mgpu_golden_tensor *t = &f->inputs.tensor[i];
        int64_t rows, axis = mgpu_golden_int(&f->golden, "axis", t->name, 0);
        input[i] = (struct mgpu_lower_input){.name = t->name, .rank = t->array.rank};
        input[i].batch_axis = mgpu_golden_axis(&f->golden, t->name, &rows);
        memcpy(input[i].dims, t->array.dims, sizeof t->array.dims);
        input[i].dims[axis] = rows;
    }
    return mgpu_lower(&f->graph, f->model, f->weights, &options);
}

static int feed(const struct forward *f, struct mgpu_run *run)
{
    for (int i = 0; i < f->graph->input_count; i++) {
        struct mgpu_value *v = f->graph->inputs[i];
        for (int k = 0; k < f->inputs.count; k++) {
            struct mgpu_array rows;
            if (strcmp(f->inputs.tensor[k].name, v->name))
                continue;
            MGPU_TRY(mgpu_golden_slice(&f->golden, &f->inputs.tensor[k], 0, &rows));
            CHECK(mgpu_array_count(&rows) == mgpu_value_count(v));
            mgpu_convert(mgpu_run_data(run, v), v->type, rows.data, rows.type, mgpu_value_count(v));
            mgpu_array_free(&rows);
        }
    }
    for (int i = 0; i < f->weights->count; i++)
        for (int k = 0; k < f->graph->parameter_count; k++) {
            const struct mgpu_weight *w = &f->weights->weight[i];
            struct mgpu_value *v = f->graph->parameters[k].value;
            const struct mgpu_array *a = &f->model->initializer[w->holder[0].initializer].array;
            if (!strcmp(w->name, f->graph->parameters[k].name))
                mgpu_convert(mgpu_run_data(run, v), v->type, a->data, a->type, mgpu_value_count(v));
        }
    return 0;
}

static double compare(const struct forward *f, struct mgpu_run *run)
{
    double worst = 0;
    for (int i = 0; i < f->want.count; i++) {
        const struct mgpu_golden_tensor *t = &f->want.tensor[i];
        struct mgpu_value *v = mgpu_lowered_value(f->graph, t->name);
        bool fits = v && mgpu_value_count(v) == mgpu_array_count(&t->array);
        CHECK_(fits, "%s: output '%s' has the wrong shape", f->golden.name, t->name);
        if (fits)
            worst = fmax(worst, mgpu_golden_distance(mgpu_run_doubles(run, v), &t->array));
    }
    return worst;
}

static void run_on(const struct forward *f, const struct mgpu_backend *backend)
{
    struct mgpu_run run;
    double limit = mgpu_golden_limit(&f->golden, "forward"), distance = INFINITY;
    mgpu_run_init(&run, f->graph, backend);
    int rc = feed(f, &run);
    if (rc >= 0)
        rc = mgpu_run_all(&run);
    if (rc >= 0)
        distance = compare(f, &run);
    CHECK_(distance <= limit, "%s on %s: %g is more than %g %s", f->golden.name, backend->name,
           distance, limit, rc < 0 ? mgpu_error() : "");
    printf("%-40s %-4s %.1e (%.1e)\n", f->golden.name, backend->name, distance, limit);
    mgpu_run_free(&run);
}

static void run_case(const char *folder)
{
    struct forward f = {0};
    int rc = open_case(&f, folder);
    CHECK_(rc >= 0, "%s: %s", folder, mgpu_error());
    if (rc >= 0)
        rc = lower_case(&f);
    if (rc == MGPU_EUNSUPPORTED)
        printf("%-40s not supported: %s\n", f.golden.name, mgpu_error());
    else if (rc < 0)
        CHECK_(false, "%s: %s", folder, mgpu_error());
    else {
        run_on(&f, &mgpu_backend_ref);
        run_on(&f, &mgpu_backend_cpu);
    }
    close_case(&f);
}

/* All cases, or only those named. */
int main(int count, char **names)
{
    int folders;
    char **folder = mgpu_golden_folders(&folders);
    mgpu_fold_set(mgpu_ref_fold);
    CHECK(folders > 0);
    for (int i = 0; i < folders; i++) {
        bool chosen = count < 2;
        for (int k = 1; k < count; k++)
            chosen = chosen || !strcmp(strrchr(folder[i], '/') + 1, names[k]);
        if (chosen)
            run_case(folder[i]);
        free(folder[i]);
    }
    free(folder);
    return test_end();
}
