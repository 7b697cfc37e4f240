#include "tests/onnx/onnx_case.h"

#include "importer/lower.h"
#include "runtime/base/status.h"
#include "runtime/compile/program.h"
#include "runtime/executor/executor.h"
#include "runtime/executor/team.h"
#include "runtime/graph/fold.h"
#include "runtime/graph/step_scalar.h"
#include "runtime/ref/ref.h"
#include "tests/onnx/onnx_tensor_file.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 64, PATH = 4096 };

/* Which inputs are constants when the model compiles. */
enum known { KNOWN_NONE, KNOWN_INTEGERS, KNOWN_ALL };

struct tensors {
    int count;
    const char *name[MOST];
    struct mgpu_array array[MOST];
    int lists; /* sequences and empty optionals */
    const char *list_name[MOST];
    struct mgpu_lower_list list[MOST];
};

struct set { /* one test_data_set */
    const struct mgpu_onnx_case *c;
    struct mgpu_onnx_model *model;
    char folder[PATH];
    struct tensors in, want;
    struct mgpu_store_layout *store;
    struct mgpu_program *program;
    struct mgpu_team *team;
};

/* ---- Files ----------------------------------------------------------------------------------- */

static const struct mgpu_onnx_value *declared(const struct mgpu_onnx_value *values, int count,
                                              const char *name)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(values[i].name, name))
            return &values[i];
    return NULL;
}

static void add_tensor(struct tensors *out, const char *name, const struct mgpu_array *array)
{
    out->name[out->count] = name;
    out->array[out->count++] = *array;
}

/* A sequence or optional: an input as it is, an output item by item, as mgpu_lower gives it. */
static int read_list(const struct set *s, const char *path, bool input, const char *name,
                     bool optional, struct tensors *out)
{
    struct mgpu_lower_list list;
    bool tensor;
    int rc = mgpu_onnx_list_file(&list, path, optional, &tensor);
    if (rc >= 0 && out->count + list.count > MOST)
        rc = mgpu_fail(MGPU_EUNSUPPORTED, "'%s' has too many items", name);
    bool items = rc >= 0 && (!input || (tensor && list.count));
    for (int i = 0; i < list.count && items; i++)
        add_tensor(out, tensor ? name : mgpu_arena_format(s->model->arena, "%s#%d", name, i),
                   &list.item[i]);
    if (rc >= 0 && !items && input) {
        out->list_name[out->lists] = name;
        out->list[out->lists++] = list;
        return 0;
    }
    for (int i = 0; i < list.count && rc < 0; i++)
        mgpu_array_free((struct mgpu_array *)&list.item[i]);
    free((void *)list.item);
    return rc;
}

/* The files KIND_K.pb of the values of the file's list; a value without a file is left out. */
static int read_tensors(const struct set *s, const char *kind, size_t values,
                        Onnx__ValueInfoProto *const *value, struct tensors *out)
{
    const struct mgpu_onnx_body *graph = &s->model->graph;
    for (size_t k = 0; k < values && out->count < MOST; k++) {
        char path[PATH + 64];
        snprintf(path, sizeof path, "%s/%s_%zu.pb", s->folder, kind, k);
        if (access(path, F_OK) < 0)
            continue;
        const struct mgpu_onnx_value *v =
            *kind == 'i' ? declared(graph->input, graph->inputs, value[k]->name)
                         : declared(graph->output, graph->outputs, value[k]->name);
        if (!v)
            return mgpu_fail(MGPU_EUNSUPPORTED, "'%s' has a file but is stored in the model",
                             value[k]->name);
        if (v->type == MGPU_UNDEFINED) {
            bool optional = value[k]->type &&
                            value[k]->type->value_case == ONNX__TYPE_PROTO__VALUE_OPTIONAL_TYPE;
            MGPU_TRY(read_list(s, path, *kind == 'i', v->name, optional, out));
            continue;
        }
        out->name[out->count] = v->name;
        MGPU_TRY(mgpu_onnx_tensor_file(&out->array[out->count++], path, v->type));
    }
    return 0;
}

static void free_tensors(struct tensors *t)
{
    for (int i = 0; i < t->count; i++)
        mgpu_array_free(&t->array[i]);
    for (int i = 0; i < t->lists; i++) {
        for (int k = 0; k < t->list[i].count; k++)
            mgpu_array_free((struct mgpu_array *)&t->list[i].item[k]);
        free((void *)t->list[i].item);
    }
}

/* ---- Compiling ------------------------------------------------------------------------------- */

static bool is_known(const struct mgpu_array *array, enum known known)
{
    if (mgpu_array_count(array) == 0) /* a size of 0 says nothing to mgpu_lower */
        return true;
    return known == KNOWN_ALL || (known == KNOWN_INTEGERS && !mgpu_is_float(array->type));
}

/* Declared as no tensor: it has to be known. */
static bool is_optional(const struct set *s, int i)
{
    const struct mgpu_onnx_body *graph = &s->model->graph;
    return declared(graph->input, graph->inputs, s->in.name[i])->type == MGPU_UNDEFINED;
}

static int lower(struct set *s, enum known known, struct mgpu_graph **g)
{
    static const struct mgpu_dropout_rule off = {0}; /* masks cannot be compared */
    struct mgpu_lower_input input[2 * MOST];
    struct mgpu_lower_options options = {
        .float_type = MGPU_FLOAT,
        .training = true, /* as the file says; there are no weights */
        .norm = MGPU_NORM_DEFAULT,
        .variance = MGPU_VARIANCE_POPULATION,
        .dropout = &off,
        .dropouts = 1,
        .input = input,
        .inputs = s->in.count + s->in.lists,
    };
    for (int i = 0; i < s->in.count; i++) {
        const struct mgpu_array *array = &s->in.array[i];
        input[i] = (struct mgpu_lower_input){
            .name = s->in.name[i],
            .batch_axis = -1,
            .rank = array->rank,
            .contents = is_known(array, known) || is_optional(s, i) ? array : NULL,
        };
        memcpy(input[i].dims, array->dims, sizeof input[i].dims);
    }
    for (int i = 0; i < s->in.lists; i++)
        input[s->in.count + i] =
            (struct mgpu_lower_input){.name = s->in.list_name[i], .list = &s->in.list[i]};
    return mgpu_lower(g, s->model, NULL, &options);
}

static int lower_as_needed(struct set *s, struct mgpu_graph **g)
{
    int rc = MGPU_EUNSUPPORTED;
    for (enum known known = KNOWN_NONE; known <= KNOWN_ALL && rc == MGPU_EUNSUPPORTED; known++)
        rc = lower(s, known, g);
    return rc;
}

static int compile(struct set *s, struct mgpu_graph *g)
{
    struct mgpu_applied applied;
    struct mgpu_plan *plan = mgpu_plan_data(1);
    s->store = mgpu_store_layout_new();
    int rc = mgpu_plan_apply(g, plan, 0, 1, &applied);
    if (rc >= 0)
        rc = mgpu_store_add(s->store, g);
    mgpu_plan_free(plan);
    if (rc < 0) {
        mgpu_graph_free(g);
        return rc;
    }
    struct mgpu_compile_options o = {
        .backend = &mgpu_backend_cpu, .store = s->store, .threads = 1, .exact = true};
    MGPU_TRY(mgpu_compile(&s->program, g, &applied, &o));
    return mgpu_program_check(s->program);
}

/* ---- Running --------------------------------------------------------------------------------- */

static int run_rank(struct mgpu_rank *rank, void *context)
{
    const struct set *s = context;
    double scalars[MGPU_SCALARS] = {
        [MGPU_SCALAR_LR_FACTOR] = 1,   [MGPU_SCALAR_BATCH] = 1,      [MGPU_SCALAR_PIECE] = 1,
        [MGPU_SCALAR_PIECE_SHARE] = 1, [MGPU_SCALAR_RANK_SHARE] = 1,
    };
    struct mgpu_execution run = {.last_piece = true, .contributes = true, .scalars = scalars};
    for (int i = 0; i < s->program->inputs; i++) {
        const struct mgpu_port *port = &s->program->input[i];
        int k = 0;
        while (k < s->in.count && strcmp(s->in.name[k], port->name))
            k++;
        if (k == s->in.count)
            return mgpu_fail(MGPU_EINVALID, "input '%s' has no file", port->name);
        if (s->in.array[k].type != port->type ||
            mgpu_array_count(&s->in.array[k]) * (int64_t)mgpu_dtype_size(port->type) != port->bytes)
            return mgpu_fail(MGPU_EINVALID, "the file of input '%s' is not what the model declares",
                             port->name);
        memcpy((char *)rank->buffer[MGPU_BUFFER_INPUTS] + port->offset, s->in.array[k].data,
               (size_t)port->bytes);
    }
    return mgpu_execute(s->program, rank->comm, rank->buffer, &run);
}

static int run(struct set *s)
{
    struct mgpu_rank_device *devices;
    int64_t bytes[MGPU_BUFFERS] = {[MGPU_BUFFER_SCALARS] = MGPU_SCALARS * sizeof(double)};
    int count;
    MGPU_TRY(mgpu_devices_parse(&devices, &count, "cpu:0", 1));
    int rc = mgpu_team_new(&s->team, devices, 1, 1);
    free(devices);
    MGPU_TRY(rc);
    for (int b = 0; b < MGPU_BUFFERS; b++) {
        bytes[b] = s->program->bytes[b] > bytes[b] ? s->program->bytes[b] : bytes[b];
        bytes[b] = s->store->bytes[b] > bytes[b] ? s->store->bytes[b] : bytes[b];
    }
    struct mgpu_rank *rank = mgpu_team_rank(s->team, 0);
    MGPU_TRY(mgpu_rank_allocate(rank, bytes));
    mgpu_program_bind(s->program, rank->buffer);
    return mgpu_team_run(s->team, run_rank, s);
}

/* ---- Comparing ------------------------------------------------------------------------------- */

/* Whether the standard leaves the numbers open: only types and shapes are compared then. */
static bool draws_random(const struct mgpu_onnx_model *model)
{
    static const char *const types[] = {"Bernoulli", "Multinomial", "RandomNormal",
                                        "RandomUniform"};
    for (int i = 0; i < model->node_total; i++)
        for (size_t k = 0; k < sizeof types / sizeof *types; k++)
            if (!strncmp(model->all[i]->type, types[k], strlen(types[k])))
                return true;
    return false;
}

static bool near(const struct mgpu_onnx_case *c, double got, double want)
{
    if (isnan(got) || isnan(want))
        return isnan(got) && isnan(want);
    if (isinf(got) || isinf(want))
        return got == want;
    return fabs(got - want) <= c->atol + c->rtol * fabs(want);
}

static int compare(const struct set *s, const char *name, const struct mgpu_array *got,
                   const struct mgpu_array *want)
{
    bool numbers = !draws_random(s->model);
    char a[MGPU_SHAPE_TEXT], b[MGPU_SHAPE_TEXT];
    if (got->type != want->type)
        return mgpu_fail(MGPU_EINVALID, "'%s' is %s, not %s", name, mgpu_dtype_name(got->type),
                         mgpu_dtype_name(want->type));
    if (got->rank != want->rank ||
        memcmp(got->dims, want->dims, (size_t)got->rank * sizeof *got->dims))
        return mgpu_fail(MGPU_EINVALID, "'%s' is %s, not %s", name,
                         mgpu_shape_text(a, got->rank, got->dims),
                         mgpu_shape_text(b, want->rank, want->dims));
    for (int64_t i = 0, n = mgpu_array_count(want); numbers && i < n; i++) {
        double x = mgpu_get_double(got->data, got->type, i);
        double y = mgpu_get_double(want->data, want->type, i);
        if (!near(s->c, x, y))
            return mgpu_fail(MGPU_EINVALID, "'%s'[%lld] is %.9g, not %.9g", name, (long long)i, x,
                             y);
    }
    return 0;
}

static int check_results(struct set *s)
{
    struct mgpu_rank *rank = mgpu_team_rank(s->team, 0);
    for (int i = 0; i < s->want.count; i++) {
        const struct mgpu_port *r = NULL;
        for (int k = 0; k < s->program->results; k++)
            if (!strcmp(s->program->result[k].name, s->want.name[i]))
                r = &s->program->result[k];
        if (!r)
            return mgpu_fail(MGPU_EINVALID, "there is no output '%s'", s->want.name[i]);
        struct mgpu_array got = {
            .type = r->type,
            .rank = r->rank,
            .data = (char *)rank->buffer[MGPU_BUFFER_RESULTS] + r->offset,
        };
        memcpy(got.dims, r->dims, sizeof got.dims);
        MGPU_TRY(compare(s, r->name, &got, &s->want.array[i]));
    }
    return 0;
}

/* ---- A case ---------------------------------------------------------------------------------- */

static int check_set(struct set *s)
{
    const Onnx__GraphProto *graph = s->model->file->proto->graph;
    struct mgpu_graph *g;
    MGPU_TRY(read_tensors(s, "input", graph->n_input, graph->input, &s->in));
    MGPU_TRY(read_tensors(s, "output", graph->n_output, graph->output, &s->want));
    MGPU_TRY(lower_as_needed(s, &g));
    MGPU_TRY(compile(s, g));
    MGPU_TRY(run(s));
    return check_results(s);
}

static int run_set(const struct mgpu_onnx_case *c, struct mgpu_onnx_model *model,
                   const char *folder)
{
    struct set *s = mgpu_xcalloc(1, sizeof *s);
    s->c = c;
    s->model = model;
    snprintf(s->folder, sizeof s->folder, "%s", folder);
    int rc = check_set(s);
    mgpu_program_free(s->program);
    mgpu_team_free(s->team);
    mgpu_store_layout_free(s->store);
    free_tensors(&s->in);
    free_tensors(&s->want);
    free(s);
    return rc;
}

static int run_sets(const struct mgpu_onnx_case *c, struct mgpu_onnx_model *model)
{
    int sets = 0;
    for (;; sets++) {
        char folder[PATH];
        snprintf(folder, sizeof folder, "%s/test_data_set_%d", c->folder, sets);
        if (access(folder, F_OK) < 0)
            break;
        MGPU_TRY(run_set(c, model, folder));
    }
    return sets ? 0 : mgpu_fail(MGPU_EINVALID, "there is no test_data_set_0");
}

static int run_model(const struct mgpu_onnx_case *c)
{
    char path[PATH];
    struct mgpu_onnx_file *file;
    struct mgpu_onnx_model *model;
    snprintf(path, sizeof path, "%s/model.onnx", c->folder);
    MGPU_TRY(mgpu_onnx_read(&file, path));
    int rc = mgpu_onnx_model_new(&model, file);
    if (rc >= 0) {
        rc = run_sets(c, model);
        mgpu_onnx_model_free(model);
    }
    mgpu_onnx_free(file);
    return rc;
}

void mgpu_onnx_case_run(struct mgpu_onnx_case *c)
{
    mgpu_fold_set(mgpu_ref_fold);
    int rc = run_model(c);
    c->outcome = rc >= 0                   ? MGPU_ONNX_PASS
                 : rc == MGPU_EUNSUPPORTED ? MGPU_ONNX_UNSUPPORTED
                                           : MGPU_ONNX_FAIL;
    snprintf(c->reason, sizeof c->reason, "%s", rc < 0 ? mgpu_error() : "");
    for (char *p = c->reason; *p; p++)
        *p = *p == '\n' ? ' ' : *p;
}

const char *mgpu_onnx_outcome_name(enum mgpu_onnx_outcome outcome)
{
    static const char *const names[] = {"PASS", "FAIL", "UNSUPPORTED"};
    return names[outcome];
}

/* ---- Folders --------------------------------------------------------------------------------- */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void add_folders(char ***list, int *count, const char *folder)
{
    char path[PATH];
    snprintf(path, sizeof path, "%s/model.onnx", folder);
    if (access(path, F_OK) == 0) {
        *list = mgpu_grow(*list, (size_t)*count, sizeof **list);
        (*list)[(*count)++] = mgpu_xstrdup(folder);
        return;
    }
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (*e->d_name == '.' || e->d_type == DT_REG)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        add_folders(list, count, path);
    }
    if (dir)
        closedir(dir);
}

char **mgpu_onnx_case_folders(const char *root, int *count)
{
    char **list = NULL;
    *count = 0;
    add_folders(&list, count, root);
    if (list)
        qsort(list, (size_t)*count, sizeof *list, by_text);
    return list;
}

const char *mgpu_onnx_case_name(const char *folder)
{
    const char *slash = strrchr(folder, '/');
    return slash ? slash + 1 : folder;
}
