/* A model given as text, lowered and ready to run on `ref`: for the tests of the lowering. A test
 * defines BUILT_PATH, the file that its models go through. */
#ifndef MGPU_TESTS_BUILT_H
#define MGPU_TESTS_BUILT_H

#include "importer/lower.h"
#include "runtime/graph/fold.h"
#include "runtime/graph/gradient.h"
#include "runtime/ref/ref.h"
#include "tests/ops/run_graph.h"
#include "tests/support/make_onnx.h"
#include "tests/test.h"

struct built {
    struct mgpu_onnx_file *file;
    struct mgpu_onnx_model *model;
    struct mgpu_weights *weights;
    struct mgpu_graph *g;
    struct mgpu_run run;
};

static inline int build_with(struct built *b, const char *text,
                             const struct mgpu_lower_options *options)
{
    struct mgpu_weights_options none = {0};
    *b = (struct built){0};
    make_onnx_file(BUILT_PATH, text);
    MGPU_TRY(mgpu_onnx_read(&b->file, BUILT_PATH));
    MGPU_TRY(mgpu_onnx_model_new(&b->model, b->file));
    MGPU_TRY(mgpu_weights_identify(&b->weights, b->model, &none));
    return mgpu_lower(&b->g, b->model, b->weights, options);
}

static inline struct mgpu_lower_options at_batch(int64_t batch)
{
    return (struct mgpu_lower_options){.float_type = MGPU_DOUBLE, .batch = batch, .training = true};
}

/* In double, in training form. */
static inline int build(struct built *b, const char *text, int64_t batch)
{
    struct mgpu_lower_options options = at_batch(batch);
    return build_with(b, text, &options);
}

static inline void end(struct built *b)
{
    if (b->g)
        mgpu_run_free(&b->run);
    mgpu_graph_free(b->g);
    mgpu_weights_free(b->weights);
    mgpu_onnx_model_free(b->model);
    mgpu_onnx_free(b->file);
    remove(BUILT_PATH);
}

static inline struct mgpu_value *value(struct built *b, const char *name)
{
    struct mgpu_value *v = mgpu_lowered_value(b->g, name);
    CHECK_(v, "no value '%s'", name);
    if (!v)
        exit(test_end());
    return v;
}

static inline struct mgpu_parameter *parameter(const struct built *b, const char *name)
{
    for (int i = 0; i < b->g->parameter_count; i++)
        if (!strcmp(b->g->parameters[i].name, name))
            return &b->g->parameters[i];
    CHECK_(false, "no parameter '%s'", name);
    exit(test_end());
}

/* The parameters' contents as stored in the file. */
static inline void feed_parameters(struct built *b)
{
    for (int i = 0; i < b->weights->count; i++)
        for (int k = 0; k < b->g->parameter_count; k++) {
            const struct mgpu_weight *w = &b->weights->weight[i];
            struct mgpu_value *v = b->g->parameters[k].value;
            const struct mgpu_array *a = &b->model->initializer[w->holder[0].initializer].array;
            if (!strcmp(w->name, b->g->parameters[k].name))
                mgpu_convert(mgpu_run_data(&b->run, v), v->type, a->data, a->type,
                             mgpu_value_count(v));
        }
}

static inline void start(struct built *b)
{
    mgpu_run_init(&b->run, b->g, &mgpu_backend_ref);
    feed_parameters(b);
}

static inline void check_values(struct built *b, const struct mgpu_value *v, int count,
                                const double *want)
{
    CHECK_(v && mgpu_value_count(v) == count, "%s has the wrong size", v ? v->name : "nothing");
    if (!v || mgpu_value_count(v) != count)
        return;
    const double *have = mgpu_run_doubles(&b->run, v);
    for (int i = 0; i < count; i++)
        CHECK_(fabs(have[i] - want[i]) <= 1e-12 * fmax(1, fabs(want[i])),
               "%s[%d] is %.17g, not %.17g", v->name, i, have[i], want[i]);
}

#define VALUES(...)                                                                                \
    (int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (double[])                            \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* Appends the gradient of sum(factor * y), y = output 0. */
static inline void differentiate(struct built *b, double factor)
{
    struct mgpu_value *y = b->g->outputs[0];
    struct mgpu_value *loss = mgpu_reduce(b->g, MGPU_REDUCE_SUM, mgpu_affine(b->g, y, factor, 0),
                                          (1u << y->rank) - 1, false);
    CHECK_OK(mgpu_gradient(b->g, loss, false));
}

static inline int count_nodes(const struct built *b, const char *op)
{
    int count = 0;
    for (int i = 0; i < b->g->node_count; i++)
        count += !strcmp(b->g->nodes[i]->op->name, op);
    return count;
}

static inline bool is_batch(struct mgpu_dim d, int64_t value)
{
    return mgpu_dim_same(d, mgpu_dim_symbol(MGPU_BATCH, value));
}

#endif
