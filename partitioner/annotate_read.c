/* Annotations back into a plan. The ONNX checker validates nothing of them, so all is done here. */
#include "partitioner/annotate.h"
#include "runtime/base/status.h"

#include <string.h>

static const char preferred[] = "mgpu";

struct reader {
    struct mgpu_plan_file *plan;
    const Onnx__DeviceConfigurationProto *configuration;
    int *device; /* of the spec that is being read */
};

static const Onnx__DeviceConfigurationProto *choose(const Onnx__ModelProto *model)
{
    for (size_t i = 0; i < model->n_configuration; i++)
        if (!strcmp(model->configuration[i]->name, preferred))
            return model->configuration[i];
    return model->n_configuration == 1 ? model->configuration[0] : NULL;
}

static int read_devices(struct reader *r)
{
    const Onnx__DeviceConfigurationProto *c = r->configuration;
    struct mgpu_arena *arena = r->plan->arena;
    int n = c->num_devices;
    if (n < 1 || n > MGPU_PLAN_DEVICES || (c->n_device && c->n_device != (size_t)n))
        return mgpu_fail(MGPU_EINVALID, "configuration '%s': num_devices is %d, with %zu names",
                         c->name, n, c->n_device);
    const char **name = MGPU_NEW_ARRAY(arena, const char *, n);
    for (int i = 0; i < n; i++)
        name[i] = c->n_device ? c->device[i] : mgpu_arena_format(arena, "cpu:%d", i);
    mgpu_plan_file_devices(r->plan, n, name);
    r->plan->replicas = r->plan->places = 0; /* the first node says */
    r->device = MGPU_NEW_ARRAY(arena, int, n);
    return 0;
}

/* ---- One tensor ------------------------------------------------------------------------------ */

static int put_device(struct reader *r, int *count, int64_t device)
{
    if (device < 0 || device >= r->plan->devices)
        return mgpu_fail(MGPU_EINVALID, "there is no device %lld (of %d)", (long long)device,
                         r->plan->devices);
    if (*count == r->plan->devices)
        return mgpu_fail(MGPU_EINVALID, "more holders than devices");
    r->device[(*count)++] = (int)device;
    return 0;
}

static const Onnx__IntIntListEntryProto *find_group(const Onnx__ShardingSpecProto *s, int64_t key)
{
    for (size_t i = 0; i < s->n_index_to_device_group_map; i++)
        if (s->index_to_device_group_map[i]->key == key)
            return s->index_to_device_group_map[i];
    return NULL;
}

/* The devices that hold the tensor, in order. A group is taken apart only where it is all. */
static int holders(struct reader *r, const Onnx__ShardingSpecProto *s, int *count)
{
    *count = 0;
    for (size_t i = 0; i < s->n_device; i++) {
        const Onnx__IntIntListEntryProto *group = find_group(s, s->device[i]);
        if (!group) {
            MGPU_TRY(put_device(r, count, s->device[i]));
            continue;
        }
        if (s->n_device > 1)
            return mgpu_fail(MGPU_EUNSUPPORTED, "parts that groups of devices hold");
        for (size_t k = 0; k < group->n_value; k++)
            MGPU_TRY(put_device(r, count, group->value[k]));
    }
    return *count ? 0 : mgpu_fail(MGPU_EINVALID, "no device holds it");
}

static int check_cut(const Onnx__ShardingSpecProto *s)
{
    if (!s->n_sharded_dim)
        return 0;
    if (s->n_sharded_dim > 1 || s->sharded_dim[0]->n_simple_sharding != 1)
        return mgpu_fail(MGPU_EUNSUPPORTED, "it is cut along several axes; mgpu cuts the batch");
    int64_t parts = s->sharded_dim[0]->simple_sharding[0]->num_shards;
    if (parts < 1 || (uint64_t)parts != s->n_device)
        return mgpu_fail(MGPU_EINVALID, "%lld parts, but %zu holders", (long long)parts,
                         s->n_device);
    return 0;
}

static int place_of(struct reader *r, const Onnx__ShardingSpecProto *s)
{
    int count;
    MGPU_TRY(check_cut(s));
    MGPU_TRY(holders(r, s, &count));
    return mgpu_plan_file_find(r->plan, r->device, count);
}

/* ---- Nodes ----------------------------------------------------------------------------------- */

static bool is_output(const Onnx__NodeProto *n, const char *tensor)
{
    for (size_t i = 0; i < n->n_output; i++)
        if (!strcmp(n->output[i], tensor))
            return true;
    return false;
}

static bool is_input(const Onnx__NodeProto *n, const char *tensor)
{
    for (size_t i = 0; i < n->n_input; i++)
        if (!strcmp(n->input[i], tensor))
            return true;
    return false;
}

/* Where the node's outputs say that it runs; -1: it says nothing. */
static int node_place(struct reader *r, const Onnx__NodeProto *n,
                      const Onnx__NodeDeviceConfigurationProto *c, int *place)
{
    *place = -1;
    for (size_t i = 0; i < c->n_sharding_spec; i++) {
        const Onnx__ShardingSpecProto *s = c->sharding_spec[i];
        if (is_input(n, s->tensor_name))
            continue;
        if (!is_output(n, s->tensor_name))
            return mgpu_fail(MGPU_EINVALID, "it has no input or output '%s'", s->tensor_name);
        int at = mgpu_prefix(place_of(r, s), "'%s'", s->tensor_name);
        MGPU_TRY(at);
        if (*place >= 0 && *place != at)
            return mgpu_fail(MGPU_EUNSUPPORTED, "its outputs are on different devices");
        *place = at;
    }
    return 0;
}

static int read_node(struct reader *r, const Onnx__NodeProto *n)
{
    int place = -1;
    for (size_t i = 0; i < n->n_device_configurations; i++)
        if (!strcmp(n->device_configurations[i]->configuration_id, r->configuration->name))
            MGPU_TRY(node_place(r, n, n->device_configurations[i], &place));
    if (place < 0 || !n->n_output)
        return 0;
    r->plan->node[r->plan->nodes++] =
        (struct mgpu_plan_node){.output = mgpu_arena_string(r->plan->arena, n->output[0]),
                                .name = mgpu_arena_string(r->plan->arena, n->name),
                                .type = mgpu_arena_string(r->plan->arena, n->op_type),
                                .place = place};
    return 0;
}

static const char *strategy_of(const struct mgpu_plan_file *plan)
{
    bool places = false;
    for (int i = 0; i < plan->nodes; i++)
        places = places || plan->node[i].place != plan->node[0].place;
    return places ? (plan->replicas > 1 ? "hybrid" : "branch")
                  : (plan->replicas > 1 ? "data" : "single");
}

static int read_plan(struct reader *r, const Onnx__ModelProto *model)
{
    if (model->ir_version < 11)
        return mgpu_fail(MGPU_EINVALID, "annotations of devices need ir_version 11, not %lld",
                         (long long)model->ir_version);
    MGPU_TRY(read_devices(r));
    r->plan->node = MGPU_NEW_ARRAY(r->plan->arena, struct mgpu_plan_node, model->graph->n_node);
    for (size_t i = 0; i < model->graph->n_node; i++) {
        const Onnx__NodeProto *n = model->graph->node[i];
        MGPU_TRY(mgpu_prefix(read_node(r, n), "node '%s' (%s)", n->n_output ? n->output[0] : "",
                             n->op_type));
    }
    if (!r->plan->nodes)
        r->plan->replicas = r->plan->places = 1;
    r->plan->strategy = strategy_of(r->plan);
    return 0;
}

int mgpu_annotate_read(struct mgpu_plan_file **out, const struct mgpu_onnx_file *file)
{
    *out = NULL;
    struct reader r = {.configuration = choose(file->proto)};
    if (!r.configuration)
        return 0;
    r.plan = mgpu_plan_file_new();
    r.plan->model_file = mgpu_arena_string(r.plan->arena, file->path);
    int rc = mgpu_prefix(read_plan(&r, file->proto), "%s", file->path);
    if (rc < 0)
        mgpu_plan_file_free(r.plan);
    else
        *out = r.plan;
    return rc;
}
