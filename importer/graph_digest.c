#include "importer/graph_digest.h"

#include <string.h>
#include <zlib.h>

/* The sums of values that are known, one more so that none is NULL. */
struct digest {
    const struct mgpu_onnx_model *model;
    struct mgpu_arena *arena;
    struct mgpu_names *value;
};

static uint32_t mix(uint32_t sum, const void *bytes, size_t size)
{
    return size ? (uint32_t)crc32_z(sum, bytes, size) : sum;
}

static uint32_t mix_text(uint32_t sum, const char *text)
{
    return mix(sum, text, strlen(text) + 1);
}

static uint32_t mix_sum(uint32_t sum, uint32_t other)
{
    return mix(sum, &other, sizeof other);
}

/* ---- Tensors and attributes ------------------------------------------------------------------ */

static uint32_t of_array(const struct mgpu_array *a)
{
    uint32_t sum = mix(0, &a->type, sizeof a->type);
    sum = mix(sum, a->dims, (size_t)a->rank * sizeof *a->dims);
    return a->data ? mix(sum, a->data, (size_t)mgpu_array_count(a) * mgpu_dtype_size(a->type))
                   : sum;
}

/* Of what may be trained the name, up to what a part that was split off is called by. */
static uint32_t of_initializer(const struct mgpu_onnx_initializer *x)
{
    if (!mgpu_is_float(x->array.type))
        return of_array(&x->array);
    uint32_t sum = mix(1, x->name, strcspn(x->name, "@"));
    return mix(sum, x->array.dims, (size_t)x->array.rank * sizeof *x->array.dims);
}

static uint32_t of_tensor(const Onnx__TensorProto *tensor)
{
    struct mgpu_array a;
    if (mgpu_onnx_tensor_decode(tensor, "", "", &a) < 0)
        return 0;
    uint32_t sum = of_array(&a);
    mgpu_array_free(&a);
    return sum;
}

static uint32_t of_attribute(const Onnx__AttributeProto *a)
{
    uint32_t sum = mix_text(0, a->name);
    sum = mix(sum, &a->i, sizeof a->i);
    sum = mix(sum, &a->f, sizeof a->f);
    sum = mix(sum, a->s.data, a->s.len);
    sum = mix(sum, a->ints, a->n_ints * sizeof *a->ints);
    sum = mix(sum, a->floats, a->n_floats * sizeof *a->floats);
    for (size_t i = 0; i < a->n_strings; i++)
        sum = mix(sum, a->strings[i].data, a->strings[i].len);
    return a->t ? mix_sum(sum, of_tensor(a->t)) : sum;
}

/* ---- Nodes ----------------------------------------------------------------------------------- */

static uint32_t of_value(const struct digest *d, const char *name)
{
    uintptr_t known = (uintptr_t)mgpu_names_get(d->value, name);
    int i = known ? -1 : mgpu_onnx_find_initializer(d->model, name);
    return known    ? (uint32_t)(known - 1)
           : i >= 0 ? of_initializer(&d->model->initializer[i])
                    : mix_text(2, name);
}

static uint32_t of_body(struct digest *d, const struct mgpu_onnx_body *body);

/* What an exporter merged goes by an Identity until it is split off. */
static bool is_identity(const struct mgpu_onnx_node *node)
{
    return !strcmp(node->type, "Identity") && !*node->domain && node->inputs == 1 &&
           node->outputs == 1;
}

/* Which form of a normalisation or dropout the file has is no part of it: a run chooses it. */
static uint32_t of_node(struct digest *d, const struct mgpu_onnx_node *node)
{
    uint32_t attributes = 0, sum = mix_text(mix_text(3, node->type), node->domain);
    int inputs = !strcmp(node->type, "Dropout") && node->inputs > 2 ? 2 : node->inputs;
    for (int i = 0; i < node->attributes; i++)
        if (strcmp(node->attribute[i]->name, "training_mode"))
            attributes += of_attribute(node->attribute[i]);
    sum = mix_sum(sum, attributes);
    for (int i = 0; i < inputs; i++)
        sum = mix_sum(sum, of_value(d, node->input[i]));
    for (int i = 0; i < node->bodies; i++)
        sum = mix_sum(sum, of_body(d, &node->body[i]));
    return sum;
}

static uint32_t of_body(struct digest *d, const struct mgpu_onnx_body *body)
{
    uint32_t sum = 0;
    for (int i = 0; i < body->nodes; i++) {
        const struct mgpu_onnx_node *node = &body->node[i];
        if (node->outputs && mgpu_onnx_find_initializer(d->model, node->output[0]) >= 0)
            continue; /* a Constant */
        bool same = is_identity(node);
        uint32_t own = same ? of_value(d, node->input[0]) : of_node(d, node);
        for (int k = 0; k < node->outputs; k++)
            mgpu_names_set(d->value, node->output[k],
                           (void *)((uintptr_t)(same ? own : mix(own, &k, sizeof k)) + 1));
    }
    for (int i = 0; i < body->outputs; i++)
        sum = mix_sum(sum, of_value(d, body->output[i].name));
    return sum;
}

uint32_t mgpu_graph_digest(const struct mgpu_onnx_model *model)
{
    struct digest d = {.model = model, .arena = mgpu_arena_new()};
    d.value = mgpu_names_new(d.arena);
    uint32_t sum = of_body(&d, &model->graph);
    for (int i = 0; i < model->graph.outputs; i++)
        sum = mix_text(sum, model->graph.output[i].name);
    mgpu_arena_free(d.arena);
    return sum;
}
