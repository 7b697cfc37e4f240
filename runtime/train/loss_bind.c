/* What labels a loss wants, from the output and the data at hand. */
#include "runtime/base/status.h"
#include "runtime/data/dataset.h"
#include "runtime/train/loss_private.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The label data as they are: the whole data set. */
struct given {
    enum mgpu_dtype type;
    int rank;
    const int64_t *dims;
};

/* Everything that binding looks at. */
struct bind {
    struct mgpu_loss *loss;
    const struct mgpu_graph *g;
    const struct mgpu_value *y;
    struct mgpu_loss_shape shape; /* of y, the batch on an axis of its own */
    struct given data;
};

/* "label 'label' int64[600,7] does not fit output 'y' float[N,10]", then the reason. */
static int misfit(const struct bind *b, const char *why)
{
    char ty[MGPU_VALUE_TEXT], td[MGPU_SHAPE_TEXT];
    return mgpu_fail(MGPU_EINVALID, "label '%s' %s%s does not fit output '%s' %s%s%s",
                     b->loss->label, mgpu_dtype_name(b->data.type),
                     mgpu_shape_text(td, b->data.rank, b->data.dims), b->loss->output,
                     mgpu_value_text(ty, b->g, b->y), *why ? ": " : "", why);
}

/* The sizes other than 1 of a sample: all but the batch axis. */
static int squeeze(int64_t *out, int rank, const int64_t *dims, int batch)
{
    int n = 0;
    for (int k = 0; k < rank; k++)
        if (k != batch && dims[k] != 1)
            out[n++] = dims[k];
    return n;
}

static int squeeze_shape(int64_t *out, const struct mgpu_loss_shape *s)
{
    int64_t dims[MGPU_MAX_RANK];
    for (int k = 0; k < s->rank; k++)
        dims[k] = s->dims[k].value;
    return squeeze(out, s->rank, dims, s->batch);
}

/* Do the data hold what `want` says, but for axes of size 1? */
static bool fits(const struct given *data, const struct mgpu_loss_shape *want)
{
    int64_t a[MGPU_MAX_RANK], b[MGPU_MAX_RANK];
    if (data->rank <= want->batch)
        return false;
    int n = squeeze(a, data->rank, data->dims, want->batch), m = squeeze_shape(b, want);
    return n == m && memcmp(a, b, sizeof *a * (size_t)n) == 0;
}

static bool same_elements(const struct given *data, const struct mgpu_loss_shape *want)
{
    int64_t a = 1, b = 1;
    if (data->rank <= want->batch)
        return false;
    for (int k = 0; k < data->rank; k++)
        a *= k == want->batch ? 1 : data->dims[k];
    for (int k = 0; k < want->rank; k++)
        b *= k == want->batch ? 1 : want->dims[k].value;
    return a == b;
}

static void want(struct mgpu_loss *loss, const struct mgpu_loss_shape *shape, enum mgpu_dtype type)
{
    loss->label_type = type;
    loss->label_rank = shape->rank;
    loss->label_batch_axis = shape->batch;
    memcpy(loss->label_dims, shape->dims, sizeof *shape->dims * (size_t)shape->rank);
}

/* May the classes stand on this axis of y? Not where the samples are. */
static bool may_hold_classes(const struct bind *b, int axis)
{
    return mgpu_loss_shape_axis(&b->shape, b->y, axis) != b->shape.batch;
}

static bool numbers_fit(const struct bind *b, int axis)
{
    struct mgpu_loss_shape positions = b->shape;
    mgpu_loss_shape_drop(&positions, mgpu_loss_shape_axis(&b->shape, b->y, axis));
    return fits(&b->data, &positions);
}

/* Class numbers with an axis of size 1 left where the classes were. */
static bool keeps_axis(const struct bind *b, int axis)
{
    int at = mgpu_loss_shape_axis(&b->shape, b->y, axis);
    return b->data.rank == b->shape.rank && b->data.dims[at] == 1;
}

/* The axis of the classes where labels are class numbers: the one that they lack. -1: none. */
static int find_axis(const struct bind *b, bool *ambiguous)
{
    int found = -1;
    *ambiguous = false;
    for (int k = 0; k < b->y->rank; k++) {
        if (!may_hold_classes(b, k) || !numbers_fit(b, k))
            continue;
        if (found >= 0 && keeps_axis(b, found) == keeps_axis(b, k))
            *ambiguous = true;
        if (found < 0 || keeps_axis(b, k))
            found = k;
    }
    return found;
}

/* The axis of the classes where labels have the output's shape: the only one beside the samples.
 * -1: there are several. */
static int only_axis(const struct bind *b)
{
    for (int least = 1; least <= 2; least++) { /* then among those of more than one element */
        int found = -1, count = 0;
        for (int k = 0; k < b->y->rank; k++)
            if (may_hold_classes(b, k) && b->y->dims[k].value >= least) {
                found = k;
                count++;
            }
        if (count == 1)
            return found;
    }
    return -1;
}

static int check_axis(struct bind *b)
{
    int rank = b->y->rank, axis = b->loss->axis;
    char text[MGPU_VALUE_TEXT];
    if (axis == MGPU_AXIS_UNSET)
        return 0;
    b->loss->axis = axis < 0 ? axis + rank : axis;
    if (b->loss->axis >= 0 && b->loss->axis < rank && may_hold_classes(b, b->loss->axis))
        return 0;
    return mgpu_fail(MGPU_EUSAGE, "axis=%d: output '%s' %s has no such axis beside its samples",
                     axis, b->loss->output, mgpu_value_text(text, b->g, b->y));
}

static int set_classes(struct bind *b)
{
    struct mgpu_dim classes = b->y->dims[b->loss->axis];
    if (mgpu_dim_has(classes, MGPU_BATCH))
        return mgpu_fail(MGPU_EUNSUPPORTED,
                         "output '%s': as many classes as samples; let the graph compute this loss",
                         b->loss->output);
    if (classes.value < 2)
        return mgpu_fail(MGPU_EINVALID,
                         "output '%s' has one class, whose loss is always the same; did you mean "
                         "'bce_logits'?",
                         b->loss->output);
    b->loss->classes = classes.value;
    return 0;
}

/* Labels that are neither: often one-hot rows of another width. */
static int no_fit(const struct bind *b, int axis)
{
    char why[160] = "neither class numbers nor one value a class";
    int at = mgpu_loss_shape_axis(&b->shape, b->y, axis < 0 ? b->y->rank - 1 : axis);
    bool others = b->data.rank == b->shape.rank;
    for (int k = 0; k < b->shape.rank && others; k++)
        others = k == at || k == b->shape.batch || b->data.dims[k] == b->shape.dims[k].value;
    if (others)
        snprintf(why, sizeof why, "%lld columns, but %lld classes", (long long)b->data.dims[at],
                 (long long)b->shape.dims[at].value);
    return misfit(b, why);
}

static int bind_dense(struct bind *b)
{
    if (b->loss->axis == MGPU_AXIS_UNSET)
        b->loss->axis = only_axis(b);
    if (b->loss->axis < 0)
        return misfit(b, "which axis holds the classes? say axis=K");
    b->loss->dense = true;
    b->loss->ignore = false;
    want(b->loss, &b->shape, b->g->float_type);
    return set_classes(b);
}

static int bind_numbers(struct bind *b)
{
    bool ambiguous = false;
    int axis = b->loss->axis;
    if (axis == MGPU_AXIS_UNSET)
        axis = find_axis(b, &ambiguous);
    if (ambiguous)
        return misfit(b, "the classes may stand on several axes; say axis=K");
    if (axis < 0 || !numbers_fit(b, axis))
        return no_fit(b, axis);
    struct mgpu_loss_shape positions = b->shape;
    mgpu_loss_shape_drop(&positions, mgpu_loss_shape_axis(&b->shape, b->y, axis));
    b->loss->axis = axis;
    b->loss->ignore = true;
    want(b->loss, &positions, MGPU_INT64);
    return set_classes(b);
}

static int bind_classes(struct bind *b)
{
    MGPU_TRY(check_axis(b));
    return fits(&b->data, &b->shape) ? bind_dense(b) : bind_numbers(b);
}

/* kl alone looks at an axis, and only where it must. */
static int bind_elements(struct bind *b)
{
    if (!same_elements(&b->data, &b->shape))
        return misfit(b, "");
    want(b->loss, &b->shape, b->g->float_type);
    if (b->loss->kind != MGPU_LOSS_KL || b->loss->from_logits == MGPU_UNSET)
        return 0;
    MGPU_TRY(check_axis(b));
    if (b->loss->axis == MGPU_AXIS_UNSET)
        b->loss->axis = only_axis(b);
    if (b->loss->axis < 0)
        return misfit(b, "which axis holds the classes? say axis=K");
    return b->loss->from_logits == MGPU_NO ? set_classes(b) : 0; /* summed over the classes */
}

static int check_class_weights(const struct mgpu_loss *loss, const struct mgpu_array *array)
{
    char text[MGPU_SHAPE_TEXT];
    if (mgpu_array_count(array) != loss->classes)
        return mgpu_fail(MGPU_EINVALID, "class weights %s, but %lld classes",
                         mgpu_shape_text(text, array->rank, array->dims), (long long)loss->classes);
    for (int64_t i = 0; i < loss->classes; i++) {
        double w = mgpu_get_double(array->data, array->type, i);
        if (!(w >= 0) || isinf(w))
            return mgpu_fail(MGPU_EINVALID, "weight of class %lld is %g", (long long)i, w);
    }
    return 0;
}

static int read_class_weights(struct mgpu_loss *loss, struct mgpu_arena *arena)
{
    struct mgpu_array array = {0};
    MGPU_TRY(mgpu_dataset_load(&array, loss->class_weights_file, 64 << 20));
    int rc = mgpu_prefix(check_class_weights(loss, &array), "%s", loss->class_weights_file);
    if (rc == 0) {
        loss->class_weights = MGPU_NEW_ARRAY(arena, double, loss->classes);
        mgpu_convert(loss->class_weights, MGPU_DOUBLE, array.data, array.type, loss->classes);
    }
    mgpu_array_free(&array);
    return rc;
}

/* Says so where the loss is not taken from the output itself. */
static void note_logits(const struct mgpu_loss *loss, const struct mgpu_value *y)
{
    bool sigmoid = loss->kind == MGPU_LOSS_BCE;
    bool through = sigmoid || loss->kind == MGPU_LOSS_CROSS_ENTROPY;
    if (through && loss->from_logits != MGPU_YES &&
        mgpu_loss_activation(y, sigmoid ? -1 : loss->axis))
        mgpu_note("--loss %s: taken through the logits before the %s that '%s' comes from",
                  loss->text, sigmoid ? "Sigmoid" : "Softmax", loss->output);
}

static int bind_loss(struct bind *b, struct mgpu_arena *arena)
{
    struct mgpu_loss *loss = b->loss;
    char text[MGPU_VALUE_TEXT];
    if (!mgpu_is_float(b->y->type))
        return mgpu_fail(MGPU_EINVALID, "output '%s' %s is not floating", loss->output,
                         mgpu_value_text(text, b->g, b->y));
    if (loss->kind == MGPU_LOSS_OUTPUT)
        return 0;
    MGPU_TRY(mgpu_loss_shape_of(&b->shape, b->g, b->y, loss->by_step));
    MGPU_TRY(mgpu_loss_has_classes(loss->kind) ? bind_classes(b) : bind_elements(b));
    if (loss->class_weights_file)
        MGPU_TRY(read_class_weights(loss, arena));
    note_logits(loss, b->y);
    return 0;
}

int mgpu_loss_bind(struct mgpu_loss *loss, const struct mgpu_graph *g, const struct mgpu_value *y,
                   enum mgpu_dtype data_type, int data_rank, const int64_t *data_dims,
                   struct mgpu_arena *arena)
{
    struct bind b = {.loss = loss, .g = g, .y = y, .data = {data_type, data_rank, data_dims}};
    return mgpu_prefix(bind_loss(&b, arena), "--loss %s", loss->text);
}
