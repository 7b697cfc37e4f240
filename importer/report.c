#include "importer/report.h"

#include <json-c/json.h>
#include <string.h>

/* ---- JSON ----------------------------------------------------------------------------------- */

static void add_text(struct json_object *o, const char *key, const char *text)
{
    json_object_object_add(o, key, json_object_new_string(text));
}

static struct json_object *json_uses(const struct mgpu_onnx_model *model,
                                     const struct mgpu_weights *weights, int initializer)
{
    struct json_object *list = json_object_new_array();
    for (int i = 0; i < weights->uses[initializer]; i++) {
        struct mgpu_use use = weights->use[initializer][i];
        const struct mgpu_onnx_node *node = model->all[use.node];
        struct json_object *o = json_object_new_object();
        add_text(o, "node", node->name);
        add_text(o, "type", node->type);
        add_text(o, "output", node->outputs ? node->output[0] : "");
        json_object_object_add(o, "input", json_object_new_int(use.input));
        json_object_array_add(list, o);
    }
    return list;
}

static struct json_object *json_weights(const struct mgpu_weights *weights, int initializer)
{
    struct json_object *list = json_object_new_array();
    for (int i = 0; i < weights->count; i++)
        for (int h = 0; h < weights->weight[i].holders; h++)
            if (weights->weight[i].holder[h].initializer == initializer)
                json_object_array_add(list, json_object_new_string(weights->weight[i].name));
    return list;
}

static struct json_object *json_shape(const struct mgpu_array *a)
{
    struct json_object *list = json_object_new_array();
    for (int i = 0; i < a->rank; i++)
        json_object_array_add(list, json_object_new_int64(a->dims[i]));
    return list;
}

static struct json_object *json_initializer(const struct mgpu_onnx_model *model,
                                            const struct mgpu_weights *weights, int i)
{
    const struct mgpu_onnx_initializer *initializer = &model->initializer[i];
    struct json_object *o = json_object_new_object();
    add_text(o, "name", initializer->name);
    add_text(o, "role", mgpu_weight_role_name(weights->role[i]));
    json_object_object_add(o, "shape", json_shape(&initializer->array));
    add_text(o, "type", mgpu_dtype_name(initializer->array.type));
    json_object_object_add(o, "uses", json_uses(model, weights, i));
    json_object_object_add(o, "weights", json_weights(weights, i));
    add_text(o, "note", weights->note[i]);
    return o;
}

struct json_object *mgpu_weights_report_json(const struct mgpu_onnx_model *model,
                                             const struct mgpu_weights *weights,
                                             const char *const *unsupported, int count)
{
    struct json_object *report = json_object_new_object(), *list = json_object_new_array();
    for (int i = 0; i < model->initializers; i++)
        json_object_array_add(list, json_initializer(model, weights, i));
    json_object_object_add(report, "initializers", list);
    list = json_object_new_array();
    for (int i = 0; i < count; i++)
        json_object_array_add(list, json_object_new_string(unsupported[i]));
    json_object_object_add(report, "unsupported", list);
    return report;
}

/* ---- A table -------------------------------------------------------------------------------- */

/* One number that is no weight is not worth a line. */
static bool is_listed(const struct mgpu_onnx_model *model, const struct mgpu_weights *weights,
                      int i)
{
    enum mgpu_weight_role role = weights->role[i];
    const struct mgpu_array *a = &model->initializer[i].array;
    bool number = role == MGPU_ROLE_SHAPE || role == MGPU_ROLE_CONSTANT;
    return !number || *weights->note[i] || (mgpu_is_float(a->type) && mgpu_array_count(a) > 1);
}

static int widest(const struct mgpu_onnx_model *model, const struct mgpu_weights *weights)
{
    size_t width = 4, most = 60;
    for (int i = 0; i < model->initializers; i++) {
        size_t n = strlen(model->initializer[i].name);
        if (is_listed(model, weights, i) && n > width)
            width = n;
    }
    return (int)(width < most ? width : most);
}

static void print_lines(FILE *out, const char *title, const char *const *line, int count)
{
    if (count)
        fprintf(out, "\n%s\n", title);
    for (int i = 0; i < count; i++)
        fprintf(out, "  %s\n", line[i]);
}

static void print_totals(FILE *out, const struct mgpu_onnx_model *model,
                         const struct mgpu_weights *weights, int64_t left_out)
{
    int64_t tensors[MGPU_ROLE_UNUSED + 1] = {0}, elements[MGPU_ROLE_UNUSED + 1] = {0};
    for (int i = 0; i < weights->count; i++) {
        const struct mgpu_weight *w = &weights->weight[i];
        tensors[w->role]++;
        elements[w->role] += mgpu_array_count(&model->initializer[w->holder[0].initializer].array);
    }
    for (int role = MGPU_ROLE_TRAINED; role <= MGPU_ROLE_STATISTIC; role++)
        fprintf(out, "%s%lld %s (%lld elements)", role ? ", " : "\n", (long long)tensors[role],
                mgpu_weight_role_name((enum mgpu_weight_role)role), (long long)elements[role]);
    fprintf(out, "; %lld sizes and single constants not listed\n", (long long)left_out);
}

void mgpu_weights_report_text(FILE *out, const struct mgpu_onnx_model *model,
                              const struct mgpu_weights *weights, const char *const *unsupported,
                              int count)
{
    int width = widest(model, weights);
    int64_t left_out = 0;
    fprintf(out, "%-*s  %-9s  %-14s  %-8s  %4s  %s\n", width, "name", "role", "shape", "type",
            "uses", "note");
    for (int i = 0; i < model->initializers; i++) {
        const struct mgpu_array *a = &model->initializer[i].array;
        char shape[MGPU_SHAPE_TEXT];
        if (!is_listed(model, weights, i)) {
            left_out++;
            continue;
        }
        fprintf(out, "%-*s  %-9s  %-14s  %-8s  %4d  %s\n", width, model->initializer[i].name,
                mgpu_weight_role_name(weights->role[i]), mgpu_shape_text(shape, a->rank, a->dims),
                mgpu_dtype_name(a->type), weights->uses[i], weights->note[i]);
    }
    print_totals(out, model, weights, left_out);
    print_lines(out, "Notes:", weights->line, weights->notes);
    print_lines(out, "Not supported:", unsupported, count);
}
