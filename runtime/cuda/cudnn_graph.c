#include "runtime/cuda/cudnn_graph.h"

#include "runtime/base/status.h"
#include "runtime/emit/last.h"

#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>

enum { PROPERTIES = 8192 };

/* ---- The library ----------------------------------------------------------------------------- */

/* Compute capability; version and kind of GPU: the same for another GPU of the kind. */
static void read_properties(struct mgpu_cudnn *dnn, const char *properties)
{
    char key[256];
    struct json_object *all = json_tokener_parse(properties), *name = NULL, *units = NULL,
                       *version = NULL;
    json_object_object_get_ex(all, "deviceVer", &version);
    json_object_object_get_ex(all, "deviceName", &name);
    json_object_object_get_ex(all, "multiProcessorCount", &units);
    snprintf(key, sizeof key, "cuDNN %zu, %s with %s units", dnn->api.cudnnGetVersion(),
             name ? json_object_get_string(name) : "?",
             units ? json_object_get_string(units) : "?");
    dnn->key = mgpu_xstrdup(key);
    dnn->capability = json_object_get_int(version);
    json_object_put(all);
}

static int describe_gpu(struct mgpu_cudnn *dnn, const char *properties)
{
    const struct mgpu_cuda_dnn *api = &dnn->api;
    cudnnStatus_t status =
        api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &dnn->gpu);
    if (status == CUDNN_STATUS_SUCCESS)
        status = properties ? api->cudnnBackendSetAttribute(
                                  dnn->gpu, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                  CUDNN_TYPE_CHAR, (int64_t)strlen(properties) + 1, properties)
                            : api->cudnnBackendSetAttribute(dnn->gpu, CUDNN_ATTR_DEVICEPROP_HANDLE,
                                                            CUDNN_TYPE_HANDLE, 1, &dnn->handle);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->cudnnBackendFinalize(dnn->gpu);
    return mgpu_dnn_status(&dnn->api, status, "describing the GPU");
}

static int find_key(struct mgpu_cudnn *dnn)
{
    int64_t size = 0;
    char properties[PROPERTIES] = "";
    cudnnStatus_t status = dnn->api.cudnnBackendGetAttribute(
        dnn->gpu, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, sizeof properties - 1,
        &size, properties);
    read_properties(dnn, properties);
    return mgpu_dnn_status(&dnn->api, status, "reading the GPU's properties");
}

static int open_gpu(struct mgpu_cudnn *dnn, const char *properties)
{
    if (!properties)
        MGPU_TRY(mgpu_dnn_status(&dnn->api, dnn->api.cudnnCreate(&dnn->handle),
                                 "starting (cudnnCreate)"));
    MGPU_TRY(describe_gpu(dnn, properties));
    return find_key(dnn);
}

int mgpu_cudnn_open(struct mgpu_cudnn *dnn, const char *properties)
{
    *dnn = (struct mgpu_cudnn){0};
    MGPU_TRY(mgpu_cuda_load_dnn(&dnn->api));
    int rc = open_gpu(dnn, properties);
    if (rc < 0)
        mgpu_cudnn_close(dnn);
    return rc < 0 ? MGPU_EDEVICE : 0;
}

void mgpu_cudnn_close(struct mgpu_cudnn *dnn)
{
    if (dnn->gpu)
        dnn->api.cudnnBackendDestroyDescriptor(dnn->gpu);
    if (dnn->handle)
        dnn->api.cudnnDestroy(dnn->handle);
    free(dnn->key);
    dnn->gpu = NULL;
    dnn->handle = NULL;
    dnn->key = NULL;
}

/* ---- Graphs ---------------------------------------------------------------------------------- */

void mgpu_cudnn_graph_begin(struct mgpu_cudnn_graph *g, const struct mgpu_cudnn *dnn)
{
    *g = (struct mgpu_cudnn_graph){.dnn = dnn};
    g->out = open_memstream(&g->text, &g->text_size);
    if (!g->out)
        abort(); /* no memory for metadata */
}

static void check(struct mgpu_cudnn_graph *g, cudnnStatus_t status, const char *did,
                  const char *name)
{
    char what[128];
    snprintf(what, sizeof what, "%s %s", did, name);
    if (g->failed == 0)
        g->failed = mgpu_dnn_status(&g->dnn->api, status, what);
}

cudnnBackendDescriptor_t mgpu_cudnn_new(struct mgpu_cudnn_graph *g,
                                        cudnnBackendDescriptorType_t type, const char *name)
{
    cudnnBackendDescriptor_t d = NULL;
    if (g->failed < 0)
        return NULL;
    check(g, g->dnn->api.cudnnBackendCreateDescriptor(type, &d), "making", name);
    if (g->failed < 0)
        return NULL;
    g->made = mgpu_grow(g->made, (size_t)g->count, sizeof *g->made);
    g->made[g->count++] = d;
    fprintf(g->out, "%s:\n", name);
    return d;
}

/* Descriptors by when they were made, all else by its bytes. */
static void note(struct mgpu_cudnn_graph *g, const char *name, cudnnBackendAttributeType_t type,
                 int64_t count, const void *values)
{
    const cudnnBackendDescriptor_t *d = values;
    const int64_t *n = values;
    fprintf(g->out, " %s", name);
    for (int64_t i = 0; i < count; i++)
        if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
            int at = 0;
            while (at < g->count && g->made[at] != d[i])
                at++;
            fprintf(g->out, " #%d", at);
        } else if (type == CUDNN_TYPE_INT64) {
            fprintf(g->out, " %lld", (long long)n[i]);
        } else if (type == CUDNN_TYPE_FLOAT) {
            fprintf(g->out, " %a", (double)((const float *)values)[i]);
        } else if (type == CUDNN_TYPE_BOOLEAN) {
            fprintf(g->out, " %d", ((const bool *)values)[i]);
        } else {
            fprintf(g->out, " %d", ((const int *)values)[i]); /* its enumerations */
        }
    fprintf(g->out, "\n");
}

void mgpu_cudnn_set(struct mgpu_cudnn_graph *g, cudnnBackendDescriptor_t d,
                    cudnnBackendAttributeName_t attribute, const char *name,
                    cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    if (g->failed < 0)
        return;
    note(g, name, type, count, values);
    check(g, g->dnn->api.cudnnBackendSetAttribute(d, attribute, type, count, values), "setting",
          name);
}

void mgpu_cudnn_finalize(struct mgpu_cudnn_graph *g, cudnnBackendDescriptor_t d, const char *name)
{
    if (g->failed == 0)
        check(g, g->dnn->api.cudnnBackendFinalize(d), "finishing", name);
}

void mgpu_cudnn_operation(struct mgpu_cudnn_graph *g, cudnnBackendDescriptor_t op, const char *name)
{
    mgpu_cudnn_finalize(g, op, name);
    if (g->failed == 0)
        g->operation[g->operations++] = op;
}

int mgpu_cudnn_graph_end(struct mgpu_cudnn_graph *g)
{
    g->graph = mgpu_cudnn_new(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "graph");
    MGPU_CUDNN_SET(g, g->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                   g->operations, g->operation);
    mgpu_cudnn_finalize(g, g->graph, "graph");
    fclose(g->out);
    g->out = NULL;
    return g->failed;
}

void mgpu_cudnn_graph_free(struct mgpu_cudnn_graph *g)
{
    if (g->out)
        fclose(g->out);
    while (g->count > 0)
        g->dnn->api.cudnnBackendDestroyDescriptor(g->made[--g->count]);
    free(g->made);
    free(g->text);
    *g = (struct mgpu_cudnn_graph){0};
}

/* ---- Tensors --------------------------------------------------------------------------------- */

bool mgpu_cudnn_has_type(enum mgpu_dtype type, cudnnDataType_t *out)
{
    *out = type == MGPU_FLOAT     ? CUDNN_DATA_FLOAT
           : type == MGPU_FLOAT16 ? CUDNN_DATA_HALF
                                  : CUDNN_DATA_BFLOAT16;
    return type == MGPU_FLOAT || type == MGPU_FLOAT16 || type == MGPU_BFLOAT16;
}

static cudnnBackendDescriptor_t make_tensor(struct mgpu_cudnn_graph *g,
                                            const struct mgpu_cudnn_tensor *t, bool by_value)
{
    bool between = t->id == 0;
    int64_t id = between ? MGPU_CUDNN_BETWEEN + g->betweens++ : t->id;
    cudnnBackendDescriptor_t d = mgpu_cudnn_new(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, "tensor");
    MGPU_CUDNN_TYPE(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, t->type);
    MGPU_CUDNN_INTS(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, t->rank, t->dims);
    MGPU_CUDNN_INTS(g, d, CUDNN_ATTR_TENSOR_STRIDES, t->rank, t->stride);
    MGPU_CUDNN_INT(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, id);
    MGPU_CUDNN_INT(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 16);
    MGPU_CUDNN_SET(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &between);
    if (by_value)
        MGPU_CUDNN_SET(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    mgpu_cudnn_finalize(g, d, "tensor");
    if (!between)
        g->id[g->tensors++] = id;
    return d;
}

cudnnBackendDescriptor_t mgpu_cudnn_tensor(struct mgpu_cudnn_graph *g,
                                           const struct mgpu_cudnn_tensor *t)
{
    return make_tensor(g, t, false);
}

cudnnBackendDescriptor_t mgpu_cudnn_number(struct mgpu_cudnn_graph *g, double number)
{
    const struct mgpu_cudnn_tensor t = {.id = MGPU_CUDNN_NUMBER + g->numbers,
                                        .type = CUDNN_DATA_FLOAT,
                                        .rank = 4,
                                        .dims = {1, 1, 1, 1},
                                        .stride = {1, 1, 1, 1}};
    g->number[g->numbers++] = (float)number;
    return make_tensor(g, &t, true);
}

void mgpu_cudnn_strides(struct mgpu_cudnn_tensor *t, bool last)
{
    int64_t step = last ? t->dims[1] : 1;
    for (int i = t->rank - 1; i > 1; step *= t->dims[i--])
        t->stride[i] = step;
    t->stride[1] = last ? 1 : step;
    t->stride[0] = last ? step : step * t->dims[1];
}

static const struct mgpu_value *operand(const struct mgpu_node *node, int i)
{
    return i < node->inputs ? node->input[i] : node->output[i - node->inputs];
}

/* Channels-last, or in a form that is both where the node's other images are. */
static bool lies_last(const struct mgpu_node *node, const struct mgpu_value *v)
{
    bool any = v->block != 0;
    for (int i = 0; i < node->inputs + node->outputs && mgpu_lies_both(v); i++)
        any = any || (operand(node, i) && operand(node, i)->block);
    return any;
}

struct mgpu_cudnn_tensor mgpu_cudnn_image(const struct mgpu_node *node, int i)
{
    const struct mgpu_value *v = operand(node, i);
    struct mgpu_cudnn_tensor t = {.id = i + 1, .rank = v->rank < 4 ? 4 : v->rank};
    int added = t.rank - v->rank;
    mgpu_cudnn_has_type(v->type, &t.type);
    for (int k = 0; k < t.rank; k++)
        t.dims[k] = k < 2 ? v->dims[k].value : k - 2 < added ? 1 : v->dims[k - added].value;
    mgpu_cudnn_strides(&t, lies_last(node, v));
    return t;
}

struct mgpu_cudnn_tensor mgpu_cudnn_channels(const struct mgpu_node *node, int i, int rank)
{
    const struct mgpu_value *v = operand(node, i);
    struct mgpu_cudnn_tensor t = {.id = i + 1, .rank = rank, .dims = {1, 1, 1, 1, 1}};
    mgpu_cudnn_has_type(v->type, &t.type);
    t.dims[1] = mgpu_value_count(v);
    mgpu_cudnn_strides(&t, true);
    return t;
}
