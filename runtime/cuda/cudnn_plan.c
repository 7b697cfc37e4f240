#include "runtime/cuda/cudnn_plan.h"

#include "runtime/base/status.h"

#include <stdlib.h>
#include <string.h>

enum { ENGINES = 64, ENOUGH = 8 };

/* ---- Engines --------------------------------------------------------------------------------- */

static bool allowed(const struct mgpu_cudnn_rules *rules, cudnnBackendNumericalNote_t note)
{
    switch (note) {
    case CUDNN_NUMERICAL_NOTE_TENSOR_CORE:
        return rules->tensor_cores;
    case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:
    case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
        return false;
    case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
        return rules->any_order;
    case CUDNN_NUMERICAL_NOTE_FFT:
    case CUDNN_NUMERICAL_NOTE_WINOGRAD:
    case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4:
    case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6:
    case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13:
        return rules->winograd;
    default:
        return true;
    }
}

static bool keeps(const struct mgpu_cudnn *dnn, cudnnBackendDescriptor_t config,
                  const struct mgpu_cudnn_rules *rules)
{
    const struct mgpu_cuda_dnn *api = &dnn->api;
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    cudnnBackendDescriptor_t engine = NULL;
    int64_t count = 0;
    cudnnStatus_t status =
        api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                               CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                               CUDNN_TYPE_NUMERICAL_NOTE,
                                               CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes);
    bool ok = status == CUDNN_STATUS_SUCCESS;
    for (int64_t i = 0; ok && i < count; i++)
        ok = allowed(rules, notes[i]);
    if (engine)
        api->cudnnBackendDestroyDescriptor(engine);
    return ok;
}

/* All engines of one mode; the caller destroys them. */
static int ask(const struct mgpu_cudnn *dnn, cudnnBackendDescriptor_t heuristic,
               cudnnBackendDescriptor_t graph, cudnnBackendHeurMode_t mode,
               cudnnBackendDescriptor_t found[ENGINES], int *count)
{
    const struct mgpu_cuda_dnn *api = &dnn->api;
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    int64_t given = 0;
    for (*count = 0; *count < ENGINES && status == CUDNN_STATUS_SUCCESS; (*count)++)
        status =
            api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &found[*count]);
    struct {
        cudnnBackendAttributeName_t name;
        cudnnBackendAttributeType_t type;
        const void *value;
    } set[] = {
        {CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, &graph},
        {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, &mode},
        {CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, &dnn->gpu},
    };
    for (size_t i = 0; i < sizeof set / sizeof *set && status == CUDNN_STATUS_SUCCESS; i++)
        status =
            api->cudnnBackendSetAttribute(heuristic, set[i].name, set[i].type, 1, set[i].value);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->cudnnBackendFinalize(heuristic);
    if (status == CUDNN_STATUS_SUCCESS)
        status =
            api->cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                          CUDNN_TYPE_BACKEND_DESCRIPTOR, ENGINES, &given, found);
    for (int64_t i = given; i < *count; i++)
        api->cudnnBackendDestroyDescriptor(found[i]);
    *count = (int)given;
    return mgpu_dnn_status(&dnn->api, status, "looking for engines");
}

static int add_mode(struct mgpu_cudnn_engines *out, const struct mgpu_cudnn_graph *g,
                    cudnnBackendHeurMode_t mode, const struct mgpu_cudnn_rules *rules)
{
    const struct mgpu_cuda_dnn *api = &g->dnn->api;
    cudnnBackendDescriptor_t found[ENGINES], heuristic = NULL;
    int count = 0;
    cudnnStatus_t status =
        api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &heuristic);
    MGPU_TRY(mgpu_dnn_status(&g->dnn->api, status, "looking for engines"));
    int rc = ask(g->dnn, heuristic, g->graph, mode, found, &count);
    for (int i = 0; i < count; i++) {
        if (!keeps(g->dnn, found[i], rules)) {
            api->cudnnBackendDestroyDescriptor(found[i]);
            continue;
        }
        out->config = mgpu_grow(out->config, (size_t)out->count, sizeof *out->config);
        out->config[out->count++] = found[i];
    }
    api->cudnnBackendDestroyDescriptor(heuristic);
    return rc;
}

int mgpu_cudnn_engines_find(struct mgpu_cudnn_engines *out, const struct mgpu_cudnn_graph *g,
                            const struct mgpu_cudnn_rules *rules)
{
    *out = (struct mgpu_cudnn_engines){0};
    int rc = add_mode(out, g, CUDNN_HEUR_MODE_A, rules);
    int fallback = out->count < ENOUGH ? add_mode(out, g, CUDNN_HEUR_MODE_FALLBACK, rules) : 0;
    if (out->count > 0)
        return 0;
    if (rc == 0 && fallback == 0)
        return mgpu_fail(MGPU_EUNSUPPORTED,
                         "cuDNN: no engine keeps the precision that is asked for");
    return rc < 0 ? rc : fallback;
}

void mgpu_cudnn_engines_free(struct mgpu_cudnn_engines *engines, const struct mgpu_cudnn *dnn)
{
    for (int i = 0; i < engines->count; i++)
        dnn->api.cudnnBackendDestroyDescriptor(engines->config[i]);
    free(engines->config);
    *engines = (struct mgpu_cudnn_engines){0};
}

/* ---- Plans ----------------------------------------------------------------------------------- */

static cudnnStatus_t fill_plan(struct mgpu_cudnn_plan *plan, const struct mgpu_cudnn *dnn,
                               cudnnBackendDescriptor_t config)
{
    const struct mgpu_cuda_dnn *api = &dnn->api;
    int64_t count;
    cudnnStatus_t status =
        api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan->plan);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->cudnnBackendSetAttribute(plan->plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP,
                                               CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &dnn->gpu);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->cudnnBackendSetAttribute(plan->plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                               CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->cudnnBackendFinalize(plan->plan);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->cudnnBackendGetAttribute(plan->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                               CUDNN_TYPE_INT64, 1, &count, &plan->workspace);
    return status;
}

int mgpu_cudnn_plan_make(struct mgpu_cudnn_plan *plan, const struct mgpu_cudnn *dnn,
                         cudnnBackendDescriptor_t config, int64_t workspace)
{
    *plan = (struct mgpu_cudnn_plan){0};
    int rc = mgpu_dnn_status(&dnn->api, fill_plan(plan, dnn, config), "making a plan");
    if (rc == 0 && plan->workspace > workspace)
        rc = mgpu_fail(MGPU_EUNSUPPORTED,
                       "cuDNN: a plan wants %lld bytes of workspace, more than %lld",
                       (long long)plan->workspace, (long long)workspace);
    if (rc < 0)
        mgpu_cudnn_plan_free(plan, dnn);
    return rc;
}

void mgpu_cudnn_plan_free(struct mgpu_cudnn_plan *plan, const struct mgpu_cudnn *dnn)
{
    if (plan->plan)
        dnn->api.cudnnBackendDestroyDescriptor(plan->plan);
    *plan = (struct mgpu_cudnn_plan){0};
}

static cudnnStatus_t fill_pack(cudnnBackendDescriptor_t pack, const struct mgpu_cuda_dnn *api,
                               int count, const int64_t *id, void *const *data, void *workspace)
{
    cudnnStatus_t status = api->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
                                                         CUDNN_TYPE_INT64, count, id);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                               CUDNN_TYPE_VOID_PTR, count, data);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                                               CUDNN_TYPE_VOID_PTR, 1, &workspace);
    return status == CUDNN_STATUS_SUCCESS ? api->cudnnBackendFinalize(pack) : status;
}

int mgpu_cudnn_bind(cudnnBackendDescriptor_t *pack, const struct mgpu_cudnn *dnn, int count,
                    const int64_t *id, void *const *data, void *workspace)
{
    const struct mgpu_cuda_dnn *api = &dnn->api;
    *pack = NULL;
    cudnnStatus_t status =
        api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, pack);
    if (status == CUDNN_STATUS_SUCCESS)
        status = fill_pack(*pack, api, count, id, data, workspace);
    if (status != CUDNN_STATUS_SUCCESS && *pack) {
        api->cudnnBackendDestroyDescriptor(*pack);
        *pack = NULL;
    }
    return mgpu_dnn_status(&dnn->api, status, "binding operands to a plan");
}

int mgpu_cudnn_plan_run(const struct mgpu_cudnn_plan *plan, const struct mgpu_cudnn *dnn,
                        cudnnBackendDescriptor_t pack)
{
    return mgpu_dnn_status(&dnn->api, dnn->api.cudnnBackendExecute(dnn->handle, plan->plan, pack),
                           "running a plan (cudnnBackendExecute)");
}
