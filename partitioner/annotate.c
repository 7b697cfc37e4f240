#include "partitioner/annotate.h"

#include "exporter/onnx_copy.h"
#include "exporter/onnx_write.h"
#include "runtime/base/names.h"
#include "runtime/base/status.h"
#include "runtime/graph/alike.h"

#include <stdlib.h>
#include <string.h>

enum { MULTI_DEVICE_IR = 11, REPLICATED = -1 };
static char configuration[] = "mgpu";

struct edit {
    const struct mgpu_onnx_file *file;
    const struct mgpu_plan_file *plan;
    struct mgpu_arena *arena; /* of the new messages: the copy's */
    struct mgpu_names *value; /* name to mgpu_value */
    struct mgpu_names *node;  /* output to mgpu_plan_node */
};

static void *append(struct edit *e, void *list, size_t count, void *item)
{
    void **longer = MGPU_NEW_ARRAY(e->arena, void *, count + 1);
    if (list)
        memcpy(longer, list, count * sizeof *longer);
    longer[count] = item;
    return longer;
}

static void put_devices(struct edit *e, Onnx__ShardingSpecProto *spec, int place)
{
    int n = e->plan->replicas;
    spec->n_device = (size_t)n;
    spec->device = MGPU_NEW_ARRAY(e->arena, int64_t, n);
    for (int r = 0; r < n; r++)
        spec->device[r] = r * e->plan->places + place;
}

/* Whole on every device of the place: one holder, which is the group of them. */
static void make_group(struct edit *e, Onnx__ShardingSpecProto *spec)
{
    Onnx__IntIntListEntryProto *group = MGPU_NEW(e->arena, Onnx__IntIntListEntryProto);
    onnx__int_int_list_entry_proto__init(group);
    group->has_key = 1;
    group->key = REPLICATED;
    group->n_value = spec->n_device;
    group->value = spec->device;
    spec->n_device = 1;
    spec->device = MGPU_NEW(e->arena, int64_t);
    spec->device[0] = REPLICATED;
    spec->index_to_device_group_map = append(e, NULL, spec->n_index_to_device_group_map++, group);
}

static void cut_axis(struct edit *e, Onnx__ShardingSpecProto *spec, int axis)
{
    Onnx__ShardedDimProto *dim = MGPU_NEW(e->arena, Onnx__ShardedDimProto);
    Onnx__SimpleShardedDimProto *simple = MGPU_NEW(e->arena, Onnx__SimpleShardedDimProto);
    onnx__sharded_dim_proto__init(dim);
    onnx__simple_sharded_dim_proto__init(simple);
    simple->has_num_shards = 1;
    simple->num_shards = e->plan->replicas;
    dim->has_axis = 1;
    dim->axis = axis;
    dim->simple_sharding = append(e, NULL, dim->n_simple_sharding++, simple);
    spec->sharded_dim = append(e, NULL, spec->n_sharded_dim++, dim);
}

static Onnx__ShardingSpecProto *make_spec(struct edit *e, char *tensor, int place)
{
    Onnx__ShardingSpecProto *spec = MGPU_NEW(e->arena, Onnx__ShardingSpecProto);
    const struct mgpu_value *v = mgpu_names_get(e->value, tensor);
    int axis = v ? mgpu_rows_axis(v, false) : -1;
    onnx__sharding_spec_proto__init(spec);
    spec->tensor_name = tensor;
    put_devices(e, spec, place);
    if (e->plan->replicas > 1 && axis >= 0)
        cut_axis(e, spec, axis);
    else if (e->plan->replicas > 1)
        make_group(e, spec);
    return spec;
}

static void annotate_node(struct edit *e, const Onnx__NodeProto *original, Onnx__NodeProto *node)
{
    const struct mgpu_plan_node *p = NULL;
    size_t kept = 0;
    for (size_t i = 0; i < node->n_device_configurations; i++)
        if (strcmp(node->device_configurations[i]->configuration_id, configuration) != 0)
            node->device_configurations[kept++] = node->device_configurations[i];
    node->n_device_configurations = kept;
    if (original->n_output)
        p = mgpu_names_get(e->node, original->output[0]);
    if (!p)
        return;
    Onnx__NodeDeviceConfigurationProto *c = MGPU_NEW(e->arena, Onnx__NodeDeviceConfigurationProto);
    onnx__node_device_configuration_proto__init(c);
    c->configuration_id = configuration;
    for (size_t i = 0; i < node->n_output; i++)
        if (*node->output[i])
            c->sharding_spec = append(e, c->sharding_spec, c->n_sharding_spec++,
                                      make_spec(e, node->output[i], p->place));
    node->device_configurations =
        append(e, node->device_configurations, node->n_device_configurations++, c);
}

static void annotate_model(struct edit *e, Onnx__ModelProto *model)
{
    size_t kept = 0;
    int used = e->plan->replicas * e->plan->places;
    for (size_t i = 0; i < model->n_configuration; i++)
        if (strcmp(model->configuration[i]->name, configuration) != 0)
            model->configuration[kept++] = model->configuration[i];
    model->n_configuration = kept;
    Onnx__DeviceConfigurationProto *c = MGPU_NEW(e->arena, Onnx__DeviceConfigurationProto);
    onnx__device_configuration_proto__init(c);
    c->name = configuration;
    c->has_num_devices = 1;
    c->num_devices = used;
    c->n_device = (size_t)used;
    c->device = MGPU_NEW_ARRAY(e->arena, char *, used);
    for (int i = 0; i < used; i++)
        c->device[i] = mgpu_arena_string(e->arena, e->plan->device[i]);
    model->configuration = append(e, model->configuration, model->n_configuration++, c);
    if (model->ir_version < MULTI_DEVICE_IR)
        model->ir_version = MULTI_DEVICE_IR;
}

static int edit(void *context, struct mgpu_onnx_copy *copy)
{
    struct edit *e = context;
    const Onnx__GraphProto *graph = e->file->proto->graph;
    e->arena = copy->arena;
    annotate_model(e, copy->model);
    for (size_t i = 0; i < graph->n_node; i++)
        annotate_node(e, graph->node[i], mgpu_onnx_copy_of(copy, graph->node[i]));
    return 0;
}

int mgpu_annotate(const struct mgpu_onnx_file *file, const struct mgpu_plan_file *plan,
                  const struct mgpu_graph *graph, const char *path)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct edit e = {
        .file = file, .plan = plan, .value = mgpu_names_new(arena), .node = mgpu_names_new(arena)};
    for (int i = 0; i < graph->value_count; i++)
        mgpu_names_set(e.value, graph->values[i]->name, graph->values[i]);
    for (int i = 0; i < graph->output_count; i++)
        mgpu_names_set(e.value, graph->output_names[i], graph->outputs[i]);
    for (int i = 0; i < plan->nodes; i++)
        mgpu_names_set(e.node, plan->node[i].output, &plan->node[i]);
    struct mgpu_onnx_write_options options = {.as_exported = true, .edit = edit, .context = &e};
    int rc = mgpu_onnx_write(file, path, NULL, 0, &options);
    mgpu_arena_free(arena);
    if (rc >= 0 && plan->rewrites)
        mgpu_note(
            "%s: what the plan stacks or computes again is in no annotation; plan.json has it",
            path);
    return rc;
}
