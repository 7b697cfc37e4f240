/* Gradients of the ONNX operators, as they are lowered, against central differences in double on
 * `ref`: over shapes that broadcast, are empty or have axes of 1, and attributes that change the
 * formula. Every operator that has a gradient must be here. Where a function has a kink, the
 * subgradient is that of PyTorch, by number. */
#include "importer/lower.h"
#include "importer/operators.h"
#include "runtime/graph/fold.h"
#include "runtime/graph/gradient.h"
#include "runtime/ref/ref.h"
#include "tests/importer/gradient_rows.h"
#include "tests/ops/run_graph.h"
#include "tests/support/make_onnx.h"
#include "tests/test.h"

#include <unistd.h>

enum { MOST = 16, OPERATORS = 512 };

static const char path[] = "/tmp/mgpu-test-gradients.onnx";

struct seen {
    int count;
    char *type[OPERATORS];
    int becomes;
    char
        *core[4 * OPERATORS]; /* "Gemm matmul": the ONNX operator, a core operator that it became */
};

struct model {
    const char *text;
    struct mgpu_onnx_file *file;
    struct mgpu_onnx_model *model;
    struct mgpu_graph *g;
    struct mgpu_value *loss;
    bool plain; /* the loss is the plain sum of the outputs */
    int inputs;
    struct mgpu_value *x[MOST], *dx[MOST];
    struct mgpu_run run;
};

static double uniform(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(*seed >> 11) / (double)(UINT64_C(1) << 53);
}

static bool is_seen(const struct seen *seen, const char *type)
{
    for (int i = 0; i < seen->count; i++)
        if (!strcmp(seen->type[i], type))
            return true;
    return false;
}

static void note(struct seen *seen, const struct mgpu_onnx_node *node)
{
    char type[128];
    snprintf(type, sizeof type, "%s%s%s", node->domain, *node->domain ? "." : "", node->type);
    if (!is_seen(seen, type) && seen->count < OPERATORS)
        seen->type[seen->count++] = mgpu_xstrdup(type);
}

/* Whether a pair begins so. */
static bool became(const struct seen *seen, const char *pair, size_t length)
{
    for (int i = 0; i < seen->becomes; i++)
        if (!strncmp(seen->core[i], pair, length))
            return true;
    return false;
}

static void note_cores(struct seen *seen, const struct mgpu_graph *g)
{
    char pair[128];
    for (int i = 0; i < g->node_count; i++) {
        snprintf(pair, sizeof pair, "%s %s", g->nodes[i]->origin.type, g->nodes[i]->op->name);
        if (!became(seen, pair, sizeof pair) && seen->becomes < 4 * OPERATORS)
            seen->core[seen->becomes++] = mgpu_xstrdup(pair);
    }
}

static void free_seen(struct seen *seen)
{
    for (int i = 0; i < seen->count; i++)
        free(seen->type[i]);
    for (int i = 0; i < seen->becomes; i++)
        free(seen->core[i]);
}

/* ---- Lowering ------------------------------------------------------------------------------- */

static int lower(struct model *m)
{
    static const struct mgpu_dropout_rule off = {0};
    struct mgpu_lower_input input[MOST];
    struct mgpu_lower_options options = {
        .float_type = MGPU_DOUBLE,
        .training = true, /* as the file says; there are no weights */
        .norm = MGPU_NORM_DEFAULT,
        .variance = MGPU_VARIANCE_POPULATION,
        .dropout = &off,
        .dropouts = 1,
        .input = input,
        .inputs = m->model->graph.inputs,
    };
    for (int i = 0; i < options.inputs && i < MOST; i++)
        input[i] = (struct mgpu_lower_input){
            .name = m->model->graph.input[i].name,
            .batch_axis = -1,
            .rank = m->model->graph.input[i].rank,
        };
    return mgpu_lower(&m->g, m->model, NULL, &options);
}

/* The sum of all outputs, each element times a number of its own. */
static int add_loss(struct model *m)
{
    uint64_t seed = 5;
    int outputs = m->g->output_count;
    m->loss = mgpu_const_double(m->g, MGPU_DOUBLE, 0);
    for (int i = 0; i < outputs; i++) {
        struct mgpu_value *y = m->g->outputs[i];
        if (!mgpu_is_float(y->type))
            continue;
        double *factor = MGPU_NEW_ARRAY(m->g->arena, double, mgpu_value_count(y));
        for (int64_t k = 0; k < mgpu_value_count(y); k++)
            factor[k] = m->plain ? 1 : 0.5 + uniform(&seed);
        y = mgpu_mul(m->g, mgpu_cast(m->g, y, MGPU_DOUBLE),
                     mgpu_graph_constant(m->g, NULL, MGPU_DOUBLE, y->rank, y->dims, factor, NULL));
        unsigned all = y ? (1u << y->rank) - 1 : 0;
        m->loss = mgpu_add(m->g, m->loss, mgpu_reduce(m->g, MGPU_REDUCE_SUM, y, all, false));
    }
    return m->loss ? 0 : mgpu_build_error();
}

static int open_model(struct model *m, const char *text, bool plain, struct seen *seen)
{
    char whole[2048];
    *m = (struct model){.text = text, .plain = plain};
    snprintf(whole, sizeof whole, "%s%s", text,
             strstr(text, "\noutput ") && !strstr(text, "graph ") ? "" : "output y\n");
    make_onnx_file(path, whole);
    int rc = mgpu_onnx_read(&m->file, path);
    remove(path);
    MGPU_TRY(rc);
    MGPU_TRY(mgpu_onnx_model_new(&m->model, m->file));
    for (int i = 0; i < m->model->graph.nodes; i++)
        note(seen, &m->model->graph.node[i]);
    MGPU_TRY(lower(m));
    note_cores(seen, m->g);
    MGPU_TRY(add_loss(m));
    for (int i = 0; i < m->g->input_count && m->inputs < MOST; i++)
        if (mgpu_is_float(m->g->inputs[i]->type))
            m->x[m->inputs++] = m->g->inputs[i];
    return mgpu_gradient_of(m->g, m->loss, m->inputs, m->x, m->dx);
}

static void close_model(struct model *m)
{
    mgpu_graph_free(m->g);
    mgpu_onnx_model_free(m->model);
    mgpu_onnx_free(m->file);
}

/* ---- Differences ----------------------------------------------------------------------------- */

static double loss_at(struct model *m, double *x, double value)
{
    double kept = *x, loss;
    *x = value;
    CHECK_(mgpu_run_all(&m->run) >= 0, "%s: %s", m->text, mgpu_error());
    loss = *mgpu_run_doubles(&m->run, m->loss);
    *x = kept;
    return loss;
}

static void check_input(struct model *m, int i)
{
    const double step = 1e-5;
    int64_t count = mgpu_value_count(m->x[i]);
    double *x = mgpu_run_data(&m->run, m->x[i]), largest = 1;
    CHECK_OK(mgpu_run_all(&m->run));
    double *dx = mgpu_xcalloc((size_t)count + 1, sizeof *dx);
    if (m->dx[i])
        memcpy(dx, mgpu_run_doubles(&m->run, m->dx[i]), (size_t)count * sizeof *dx);
    for (int64_t k = 0; k < count; k++)
        largest = fmax(largest, fabs(dx[k]));
    for (int64_t k = 0; k < count; k++) {
        double above = loss_at(m, &x[k], x[k] + step), below = loss_at(m, &x[k], x[k] - step);
        double want = (above - below) / (2 * step);
        CHECK_(fabs(dx[k] - want) <= 1e-7 * largest,
               "%sgradient by %s[%d] is %.12g, the difference %.12g", m->text, m->x[i]->name,
               (int)k, dx[k], want);
    }
    free(dx);
}

static void check_text(const char *text, double low, double high, struct seen *seen)
{
    struct model m;
    uint64_t seed = 11;
    int rc = open_model(&m, text, false, seen);
    CHECK_(rc >= 0, "%s%s", text, mgpu_error());
    if (rc >= 0) {
        mgpu_run_init(&m.run, m.g, &mgpu_backend_ref);
        for (int i = 0; i < m.inputs; i++) {
            double *x = mgpu_run_data(&m.run, m.x[i]);
            for (int64_t k = 0; k < mgpu_value_count(m.x[i]); k++)
                x[k] = low < high ? low + (high - low) * uniform(&seed) : 2 * uniform(&seed) - 1;
        }
        for (int i = 0; i < m.inputs; i++)
            check_input(&m, i);
        mgpu_run_free(&m.run);
    }
    close_model(&m);
}

/* ---- Families -------------------------------------------------------------------------------- */

#define COUNT(list) (sizeof(list) / sizeof *(list))

static void check_unary(struct seen *seen)
{
    char text[512];
    for (size_t i = 0; i < COUNT(unary); i++)
        for (size_t s = 0; s < COUNT(unary_shapes); s++) {
            snprintf(text, sizeof text, "opset 24\ninput x float %s\ny = %s(x) %s\n",
                     unary_shapes[s], unary[i].type, unary[i].attributes);
            check_text(text, unary[i].low, unary[i].high, seen);
        }
}

static void check_binary(struct seen *seen)
{
    char text[512];
    for (size_t i = 0; i < COUNT(binary); i++)
        for (size_t s = 0; s < COUNT(binary_shapes); s++) {
            snprintf(text, sizeof text,
                     "opset 24\ninput a float %s\ninput b float %s\ny = %s(a, b) %s\n",
                     binary_shapes[s][0], binary_shapes[s][1], binary[i].type,
                     binary[i].attributes);
            check_text(text, binary[i].low, binary[i].high, seen);
        }
}

static void check_reductions(struct seen *seen)
{
    char text[512];
    for (size_t i = 0; i < COUNT(reductions); i++)
        for (size_t s = 0; s < COUNT(reduced); s++)
            for (int keep = 0; keep < 2; keep++) {
                bool all = !*reduced[s].axes;
                snprintf(text, sizeof text,
                         "opset 18\ninput x float %s\n%s%s%sy = %s(x%s) keepdims=%d\n",
                         reduced[s].shape, all ? "" : "init a int64 ", reduced[s].axes,
                         all ? "" : "\n", reductions[i].type, all ? "" : ", a", keep);
                check_text(text, reductions[i].low, reductions[i].high, seen);
            }
}

/* ---- Kinks ----------------------------------------------------------------------------------- */

/* The gradient of sum(y) by x at the given numbers; values from PyTorch. */
static const struct {
    const char *text;
    int count;
    double x[4], dx[4];
} kinks[] = {
    {"input x float 3\ny = Abs(x)\n", 3, {-1, 0, 1}, {-1, 0, 1}},
    {"input x float 3\ny = Relu(x)\n", 3, {-1, 0, 1}, {0, 0, 1}},
    {"input x float 3\ny = LeakyRelu(x) alpha=0.25\n", 3, {-1, 0, 1}, {0.25, 0.25, 1}},
    {"input x float 2\ny = Elu(x) alpha=2.0\n", 2, {0, 1}, {2, 1}},
    {"input x float 2\ny = Selu(x)\n", 2, {0, 1}, {1.7580993408473766, 1.0507009873554805}},
    {"input x float 2\ny = Celu(x) alpha=2.0\n", 2, {0, 1}, {1, 1}},
    {"input x float 3\ny = HardSigmoid(x) alpha=0.5 beta=0.5\n", 3, {-1, 0, 1}, {0, 0.5, 0}},
    {"input x float 3\ny = HardSwish(x)\n", 3, {-3, 0, 3}, {0, 0.5, 1}},
    {"input x float 4\ny = Shrink(x) lambd=0.5 bias=0.5\n", 4, {-0.5, 0, 0.5, 1}, {0, 0, 0, 1}},
    {"input x float 2\ny = ThresholdedRelu(x)\n", 2, {1, 2}, {0, 1}},
    {"input x float 1 3\ninit s float 1 = 0.25\ny = PRelu(x, s)\n", 3, {-1, 0, 2}, {0.25, 0.25, 1}},
    /* at the bounds as hardtanh, not as clamp, which cannot be told apart in the file */
    {"input x float 3\ninit a float = -1\ninit b float = 1\ny = Clip(x, a, b)\n",
     3,
     {-1, 0, 1},
     {0, 1, 0}},
    {"input x float 2\ninit s int64 1 = 1\na, b = Split(x)\ny = Max(a, b)\n", 2, {1, 1}, {.5, .5}},
    {"input x float 2\na, b = Split(x)\ny = Min(a, b)\n", 2, {1, 1}, {.5, .5}},
    {"input x float 3\ny = ReduceMax(x)\n", 3, {2, 2, 1}, {.5, .5, 0}},
    {"input x float 3\ny = ReduceMin(x)\n", 3, {2, 2, 3}, {.5, .5, 0}},
    {"input x float 1 1 4\ny = MaxPool(x) kernel_shape=[2] strides=[2]\n",
     4,
     {2, 2, 1, 1},
     {1, 0, 1, 0}},
    {"input x float 1 1 3\ny = GlobalMaxPool(x)\n", 3, {2, 2, 1}, {1, 0, 0}},
    {"input x float 2\ninit k int64 1 = 1\ny, i = TopK(x, k)\n", 2, {2, 2}, {1, 0}},
    {"input x float 3\ny = ReduceProd(x)\n", 3, {2, 0, 3}, {0, 6, 0}},
    {"input x float 3\ny = ReduceProd(x)\n", 3, {0, 0, 3}, {0, 0, 0}},
    {"input x float 2\ny = ReduceL2(x)\n", 2, {0, 0}, {0, 0}},
    {"input x float 2\ny = ReduceL1(x)\n", 2, {0, 2}, {0, 1}},
    {"opset 18\ninput x float 1 1 4\ny = LpPool(x) kernel_shape=[2] strides=[2]\n",
     4,
     {0, 0, 3, 4},
     {0, 0, .6, .8}},
    {"opset 26\ninput x float 3\ninit a int64 = 0\ny = CumProd(x, a)\n", 3, {2, 0, 3}, {1, 8, 0}},
    {"input x float 2 2\ny = Det(x)\n", 4, {1, 2, 2, 4}, {4, -2, -2, 1}},
    {"input x float 3\ninit p float = 2\ny = Pow(x, p)\n", 3, {-3, 0, 2}, {-6, 0, 4}},
    {"input x float 2\ninit z float = 0\nc = Greater(x, z)\ns = Sqrt(x)\ny = Where(c, s, z)\n",
     2,
     {0, 4},
     {0, .25}},
    {"input x float 1 2\ny = LpNormalization(x)\n", 2, {0, 0}, {0, 0}},
};

static void check_kink(int row)
{
    struct model m;
    struct seen unused = {0};
    char text[512];
    snprintf(text, sizeof text, "%s", kinks[row].text);
    int rc = open_model(&m, text, true, &unused);
    CHECK_(rc >= 0, "%s%s", text, mgpu_error());
    if (rc >= 0) {
        mgpu_run_init(&m.run, m.g, &mgpu_backend_ref);
        CHECK_OK(mgpu_run_feed(&m.run, m.x[0], kinks[row].x));
        CHECK_OK(mgpu_run_all(&m.run));
        const double *dx = mgpu_run_doubles(&m.run, m.dx[0]);
        for (int i = 0; i < kinks[row].count; i++)
            CHECK_(fabs(dx[i] - kinks[row].dx[i]) < 1e-7, "%sgradient [%d] is %g, not %g", text, i,
                   dx[i], kinks[row].dx[i]);
        mgpu_run_free(&m.run);
    }
    close_model(&m);
    free_seen(&unused);
}

/* What --list-ops says of it: an operator that became anything became that. */
static void check_core(const struct seen *seen, const struct mgpu_onnx_operator *op)
{
    char pair[128];
    const char *dot = strrchr(op->type, '.'), *type = dot ? dot + 1 : op->type;
    snprintf(pair, sizeof pair, "%s ", type);
    if (!became(seen, pair, strlen(pair)) || !*op->core)
        return;
    snprintf(pair, sizeof pair, "%s %s", type, op->core);
    CHECK_(became(seen, pair, sizeof pair), "%s does not become %s", op->type, op->core);
}

/* Whoever lowers an operator says that it has no gradient, or gives it a row here. */
static void check_complete(struct seen *seen)
{
    struct mgpu_onnx_operator *list;
    int count = mgpu_onnx_operators(&list), checked = 0;
    for (int i = 0; i < count; i++) {
        CHECK_(!list[i].gradient || is_seen(seen, list[i].type), "%s has no row in test_gradients",
               list[i].type);
        checked += list[i].gradient;
        check_core(seen, &list[i]);
    }
    printf("%d operators, %d with a gradient\n", count, checked);
    free(list);
}

int main(void)
{
    struct seen seen = {0};
    mgpu_fold_set(mgpu_ref_fold);
    check_unary(&seen);
    check_binary(&seen);
    check_reductions(&seen);
    for (size_t i = 0; i < COUNT(rows); i++)
        check_text(rows[i].text, rows[i].low, rows[i].high, &seen);
    for (size_t i = 0; i < COUNT(kinks); i++)
        check_kink((int)i);
    check_complete(&seen);
    free_seen(&seen);
    return test_end();
}
