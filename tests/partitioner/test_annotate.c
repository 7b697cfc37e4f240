/* Plans as ONNX multi-device annotations: there and back for one device, branches, data parallelism
 * and both; nothing else of the file changes; wrong annotations are refused by name. */
#include "partitioner/annotate.h"
#include "exporter/onnx_write.h"
#include "partitioner/outline.h"
#include "runtime/facade/facade.h"
#include "tests/onnx_build.h"
#include "tests/support/make_onnx.h"
#include "tests/test.h"

static const char model[] = "ir 9\n"
                            "input a float N 4\n"
                            "input b float N 4\n"
                            "init W float 4 3 = 0.5\n"
                            "init V float 3 2 = 0.25\n"
                            "init two int64 = 2\n"
                            "p = MatMul(a, W)\n"
                            "q = MatMul(b, W)\n"
                            "s, t = Split(q, -) axis=1 num_outputs=2\n"
                            "u = Concat(s, t) axis=1\n"
                            "c = Add(p, u)\n"
                            "w = Transpose(V)\n" /* has no samples */
                            "x = Transpose(w)\n"
                            "y = MatMul(c, x)\n"
                            "output y float N 2\n";

struct world {
    struct mgpu_trainer *t;
    struct mgpu_graph *g;
    struct mgpu_outline *outline;
};

static bool open_world(struct world *w)
{
    struct mgpu_options o = MGPU_OPTIONS;
    o.batch = 8;
    *w = (struct world){0};
    make_onnx_file(build_path("m.onnx"), model);
    CHECK_OK(mgpu_trainer_planning(&w->t, build_path("m.onnx"), &o));
    if (w->t)
        CHECK_OK(mgpu_build_graph(&w->g, w->t, MGPU_MODE_TRAIN, 8, NULL));
    if (w->g)
        w->outline = mgpu_outline_new(w->g);
    return w->outline != NULL;
}

static void close_world(struct world *w)
{
    mgpu_outline_free(w->outline);
    mgpu_graph_free(w->g);
    mgpu_trainer_free(w->t);
}

static struct mgpu_plan_file *make_plan(const struct world *w, int devices, int replicas,
                                        int places)
{
    struct mgpu_plan_file *p = mgpu_plan_file_new();
    const char **name = MGPU_NEW_ARRAY(p->arena, const char *, devices);
    for (int i = 0; i < devices; i++)
        name[i] = mgpu_arena_format(p->arena, "cuda:%d", i);
    mgpu_plan_file_devices(p, devices, name);
    p->replicas = replicas;
    p->places = places;
    p->nodes = w->outline->nodes;
    p->node = MGPU_NEW_ARRAY(p->arena, struct mgpu_plan_node, p->nodes);
    for (int i = 0; i < p->nodes; i++)
        p->node[i] = (struct mgpu_plan_node){.output = w->outline->node[i].output,
                                             .name = w->outline->node[i].name,
                                             .type = w->outline->node[i].type,
                                             .place = i % places};
    return p;
}

/* ---- There and back -------------------------------------------------------------------------- */

static void test_round_trip(const struct world *w, int devices, int replicas, int places,
                            const char *strategy)
{
    struct mgpu_plan_file *p = make_plan(w, devices, replicas, places), *back = NULL;
    struct mgpu_onnx_file *file = NULL;
    CHECK_OK(mgpu_annotate(w->t->file, p, w->g, build_path("a.onnx")));
    CHECK_OK(mgpu_onnx_read(&file, build_path("a.onnx")));
    CHECK(file && file->proto->ir_version == 11 && file->proto->n_configuration == 1);
    if (file)
        CHECK_OK(mgpu_annotate_read(&back, file));
    CHECK(back && back->devices == devices && back->nodes == p->nodes);
    CHECK(back && back->replicas == replicas && !strcmp(back->strategy, strategy));
    CHECK(back && back->batch == 0); /* the trainer says */
    for (int i = 0; back && i < back->nodes && i < p->nodes; i++)
        CHECK(!strcmp(back->node[i].output, p->node[i].output) &&
              back->node[i].place == p->node[i].place);
    CHECK(back && !strcmp(back->device[devices - 1], p->device[devices - 1]));
    mgpu_plan_file_free(back);
    mgpu_plan_file_free(p);
    mgpu_onnx_free(file);
}

/* Batches are cut along their axis; what has none is whole everywhere. */
static void test_specs(const struct world *w)
{
    struct mgpu_plan_file *p = make_plan(w, 4, 4, 1);
    struct mgpu_onnx_file *file = NULL;
    CHECK_OK(mgpu_annotate(w->t->file, p, w->g, build_path("a.onnx")));
    CHECK_OK(mgpu_onnx_read(&file, build_path("a.onnx")));
    const Onnx__NodeProto *split = file ? mgpu_onnx_find_node(file, "s") : NULL;
    const Onnx__NodeProto *weight = file ? mgpu_onnx_find_node(file, "w") : NULL;
    CHECK(split && split->n_device_configurations == 1 && weight);
    if (split && weight && weight->n_device_configurations) {
        const Onnx__NodeDeviceConfigurationProto *c = split->device_configurations[0];
        CHECK(!strcmp(c->configuration_id, "mgpu") && c->n_sharding_spec == 2);
        const Onnx__ShardingSpecProto *s = c->sharding_spec[1];
        CHECK(!strcmp(s->tensor_name, "t") && s->n_device == 4 && s->device[3] == 3);
        CHECK(s->n_sharded_dim == 1 && s->sharded_dim[0]->axis == 0);
        CHECK(s->sharded_dim[0]->simple_sharding[0]->num_shards == 4);
        s = weight->device_configurations[0]->sharding_spec[0];
        CHECK(s->n_device == 1 && s->device[0] == -1 && s->n_sharded_dim == 0);
        CHECK(s->n_index_to_device_group_map == 1 && s->index_to_device_group_map[0]->key == -1 &&
              s->index_to_device_group_map[0]->n_value == 4);
    }
    mgpu_plan_file_free(p);
    mgpu_onnx_free(file);
}

/* Takes the annotations out. */
static void strip(Onnx__ModelProto *m)
{
    for (size_t i = 0; i < m->graph->n_node; i++) {
        Onnx__NodeProto *n = m->graph->node[i];
        for (size_t k = 0; k < n->n_device_configurations; k++)
            onnx__node_device_configuration_proto__free_unpacked(n->device_configurations[k], NULL);
        n->n_device_configurations = 0;
    }
    for (size_t k = 0; k < m->n_configuration; k++)
        onnx__device_configuration_proto__free_unpacked(m->configuration[k], NULL);
    m->n_configuration = 0;
    m->ir_version = 9;
}

/* Annotated twice: only the second stays. Without annotations the file is as it was. */
static void test_twice(const struct world *w)
{
    struct mgpu_plan_file *one = make_plan(w, 2, 1, 2), *two = make_plan(w, 3, 1, 3), *back = NULL;
    struct mgpu_onnx_file *file = NULL, *again = NULL;
    CHECK_OK(mgpu_annotate(w->t->file, one, w->g, build_path("a.onnx")));
    CHECK_OK(mgpu_onnx_read(&file, build_path("a.onnx")));
    if (file)
        CHECK_OK(mgpu_annotate(file, two, w->g, build_path("b.onnx")));
    CHECK_OK(mgpu_onnx_read(&again, build_path("b.onnx")));
    if (again) {
        CHECK(again->proto->n_configuration == 1);
        CHECK_OK(mgpu_annotate_read(&back, again));
        CHECK(back && back->devices == 3 && back->node[2].place == 2);
        strip(again->proto);
        size_t size, other;
        build_save(again->proto, build_path("c.onnx"));
        uint8_t *a = build_load(build_path("c.onnx"), &size);
        uint8_t *b = build_load(build_path("m.onnx"), &other);
        CHECK(size == other && !memcmp(a, b, size));
        free(a);
        free(b);
    }
    mgpu_plan_file_free(back);
    CHECK_OK(mgpu_annotate_read(&back, w->t->file));
    CHECK(!back);
    mgpu_plan_file_free(one);
    mgpu_plan_file_free(two);
    mgpu_onnx_free(file);
    mgpu_onnx_free(again);
}

/* What is saved after training names no devices, unless it is to be as it came. */
static void test_saved(const struct world *w)
{
    struct mgpu_plan_file *plan = make_plan(w, 2, 1, 2);
    CHECK_OK(mgpu_annotate(w->t->file, plan, w->g, build_path("a.onnx")));
    for (int as_exported = 0; as_exported < 2; as_exported++) {
        const struct mgpu_onnx_write_options o = {.as_exported = as_exported};
        struct mgpu_onnx_file *file = NULL, *saved = NULL;
        CHECK_OK(mgpu_onnx_read(&file, build_path("a.onnx")));
        if (file)
            CHECK_OK(mgpu_onnx_write(file, build_path("d.onnx"), NULL, 0, &o));
        CHECK_OK(mgpu_onnx_read(&saved, build_path("d.onnx")));
        int named = 0;
        for (size_t i = 0; saved && i < saved->proto->graph->n_node; i++)
            named += saved->proto->graph->node[i]->n_device_configurations > 0;
        CHECK(saved && saved->proto->n_configuration == (size_t)as_exported);
        CHECK(as_exported ? named > 0 : !named);
        mgpu_onnx_free(file);
        mgpu_onnx_free(saved);
    }
    mgpu_plan_file_free(plan);
}

/* ---- Wrong annotations ----------------------------------------------------------------------- */

static Onnx__ShardingSpecProto *spec_of(const struct mgpu_onnx_file *file, const char *node)
{
    const Onnx__NodeProto *n = mgpu_onnx_find_node(file, node);
    return n->device_configurations[0]->sharding_spec[0];
}

#define REFUSED(change, restore, message)                                                          \
    do {                                                                                           \
        struct mgpu_plan_file *back_;                                                              \
        change;                                                                                    \
        CHECK_FAILS(mgpu_annotate_read(&back_, file), message);                                    \
        CHECK(!back_);                                                                             \
        restore;                                                                                   \
    } while (0)

static void test_wrong(const struct world *w)
{
    struct mgpu_plan_file *p = make_plan(w, 4, 2, 2), *back = NULL;
    struct mgpu_onnx_file *file = NULL;
    CHECK_OK(mgpu_annotate(w->t->file, p, w->g, build_path("a.onnx")));
    CHECK_OK(mgpu_onnx_read(&file, build_path("a.onnx")));
    mgpu_plan_file_free(p);
    if (!file)
        return;
    Onnx__ShardingSpecProto *s = spec_of(file, "q");
    Onnx__DeviceConfigurationProto *c = file->proto->configuration[0];
    char *name = s->tensor_name;
    REFUSED(s->device[1] = 4, s->device[1] = 3,
            "node 'q' (MatMul): 'q': there is no device 4 (of 4)");
    REFUSED(s->device[1] = -7, s->device[1] = 3, "there is no device -7");
    REFUSED(s->device[1] = 2, s->device[1] = 3, "must lie 2 devices apart");
    REFUSED(s->n_device = 0, s->n_device = 2, "2 parts, but 0 holders");
    REFUSED(s->n_device = 1, s->n_device = 2, "2 parts, but 1 holders");
    REFUSED(s->sharded_dim[0]->simple_sharding[0]->num_shards = 3,
            s->sharded_dim[0]->simple_sharding[0]->num_shards = 2, "3 parts, but 2 holders");
    REFUSED(s->tensor_name = "z", s->tensor_name = name, "it has no input or output 'z'");
    REFUSED(c->num_devices = 3, c->num_devices = 4, "num_devices is 3, with 4 names");
    REFUSED(c->num_devices = -1, c->num_devices = 4, "num_devices is -1");
    REFUSED(file->proto->ir_version = 10, file->proto->ir_version = 11, "need ir_version 11");
    CHECK_OK(mgpu_annotate_read(&back, file));
    mgpu_plan_file_free(back);
    mgpu_onnx_free(file);
}

int main(void)
{
    struct world w;
    build_begin();
    if (open_world(&w)) {
        test_round_trip(&w, 1, 1, 1, "single");
        test_round_trip(&w, 3, 1, 3, "branch");
        test_round_trip(&w, 4, 4, 1, "data");
        test_round_trip(&w, 6, 2, 3, "hybrid");
        test_specs(&w);
        test_twice(&w);
        test_saved(&w);
        test_wrong(&w);
    }
    close_world(&w);
    build_end();
    return test_end();
}
