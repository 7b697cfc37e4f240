/* What dynamo's optimizer stored repeated is one row again, where its record and its numbers say
 * so; all else stays as it came. */
#include "importer/onnx_repeat.h"
#include "tests/importer/weight_build.h"

enum { ROWS = 3, SIZE = 2 * ROWS * 4 }; /* elements: [2,3,4] */

static Onnx__ModelProto *stored(const char *name, const char *record, const float *values,
                                int64_t rows)
{
    Onnx__ModelProto *m = begin("pytorch");
    Onnx__TensorProto *t = build_tensor(name, MGPU_FLOAT, 3, (const int64_t[]){2, rows, 4});
    build_raw(t, values, (size_t)(2 * rows * 4) * sizeof *values);
    build_initializer(m->graph, t);
    Onnx__ValueInfoProto *v = build_value(name);
    BUILD_APPEND(v->metadata_props, v->n_metadata_props, entry(MGPU_ONNX_FOLDED_FROM, record));
    BUILD_APPEND(m->graph->value_info, m->graph->n_value_info, v);
    build_add(m->graph, "Add", mgpu_arena_format(build_arena, "x %s", name), "y");
    build_output(m->graph, "y");
    return m;
}

/* How the numbers differ: along axes that are named, "012" all of them, "" none. */
static void fill(float values[SIZE], const char *axes)
{
    for (int i = 0; i < SIZE; i++) {
        int at[3] = {i / 12, i / 4 % 3, i % 4};
        values[i] = 1;
        for (const char *axis = axes; *axis; axis++)
            values[i] = values[i] * 7 + (float)at[*axis - '0'];
    }
}

/* `shape`: of the row; NULL: nothing changes. */
static void check(const char *name, const char *record, const char *axes, const char *shape)
{
    char text[MGPU_SHAPE_TEXT];
    float values[SIZE];
    fill(values, axes);
    forget();
    build_save(stored(name, record, values, ROWS), build_path("m.onnx"));
    CHECK_OK(mgpu_onnx_read(&file, build_path("m.onnx")));
    CHECK_OK(mgpu_onnx_unrepeat(file, false));
    CHECK_OK(mgpu_onnx_model_new(&model, file));
    int row = mgpu_onnx_find_initializer(model, "cls"),
        whole = mgpu_onnx_find_initializer(model, name);
    CHECK_((row >= 0) == (shape != NULL) && (whole >= 0) == !shape, "%s %s", name, record);
    if (!shape || row < 0)
        return;
    const struct mgpu_array *a = &model->initializer[row].array;
    CHECK_(!strcmp(mgpu_shape_text(text, a->rank, a->dims), shape), "%s: %s", axes, text);
    for (int64_t i = 0; i < SIZE; i++) {
        int64_t at = 0, places[3] = {i / 12, i / 4 % 3, i % 4};
        for (int axis = 0; axis < 3; axis++)
            at = at * a->dims[axis] + places[axis] % a->dims[axis];
        CHECK_(((const float *)a->data)[at] == values[i], "%s: element %d", axes, (int)i);
    }
    const struct mgpu_onnx_node *node = model->all[0];
    CHECK(!strcmp(node->type, "Expand") && !strcmp(node->input[0], "cls") &&
          !strcmp(node->output[0], name));
}

/* A tensor without elements has nothing that repeats, and nothing to read. */
static void check_empty(void)
{
    float values[SIZE] = {0};
    forget();
    build_save(stored("expand", "['cls']", values, 0), build_path("m.onnx"));
    CHECK_OK(mgpu_onnx_read(&file, build_path("m.onnx")));
    CHECK_OK(mgpu_onnx_unrepeat(file, false));
    CHECK_OK(mgpu_onnx_model_new(&model, file));
    CHECK(mgpu_onnx_find_initializer(model, "expand") >= 0);
}

int main(void)
{
    build_begin();
    check_empty();
    check("expand", "['cls', 'val_1', 'val_22']", "12", "[1,3,4]");
    check("expand_3", "['cls']", "2", "[1,1,4]");
    check("repeat", "['cls', 'clone', 'expand_1', 'val_1']", "02", "[2,1,4]");
    check("expand", "['cls', 'val_1']", "012", NULL);             /* nothing repeats */
    check("expand", "['cls', 'mul', 'val_1']", "12", NULL);       /* it was computed with */
    check("expand", "['cls', 'pos', 'val_1']", "12", NULL);       /* of two */
    check("expand", "['arange', 'val_1']", "12", NULL);           /* of none */
    check("expand", "['cls', 'unsqueeze', 'val_1']", "12", NULL); /* axes were added */
    check("add", "['cls', 'val_1']", "12", NULL);
    check("expand", "['cls", "12", NULL);
    check("expand", "", "12", NULL);
    check("expand", "['cls']", "", NULL); /* all equal, and the batch is not known */
    forget();
    build_end();
    return test_end();
}
