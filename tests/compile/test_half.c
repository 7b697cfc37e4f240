/* Which values are kept in a half type, and that the numbers stay within its rounding. */
#define BUILT_PATH "/tmp/mgpu-test-half.onnx"
#include "runtime/compile/half.h"
#include "runtime/compile/fuse.h"
#include "runtime/compile/rewrite.h"
#include "runtime/ops/build.h"
#include "runtime/ops/matmul.h"
#include "runtime/ops/reduce.h"
#include "tests/importer/built.h"

static const struct row {
    const char *name, *text;
    const char *half, *floats; /* values that are so afterwards */
} rows[] = {
    {"layers",
     "input x float N 4\ninit w float 4 6 = normal 0.5\ninit b float 6 = normal 0.5\n"
     "init v float 6 3 = normal 0.5\n"
     "h = MatMul(x, w)\na = Add(h, b)\nr = Relu(a)\nt = Tanh(r)\ny = MatMul(t, v)\n"
     "output y float N 3\n",
     "h a r t", "y"},
    {"sums of squares",
     "input x float N 4\ninit w float 4 6 = normal 0.5\n"
     "h = MatMul(x, w)\ns = Mul(h, h)\ny = ReduceMean(s) axes=[1] keepdims=1\n"
     "output y float N 1\n",
     "h", "s y"},
    {"probabilities",
     "input x float N 4\ninit w float 4 6 = normal 0.5\n"
     "h = MatMul(x, w)\np = Sigmoid(h)\nl = LogSoftmax(p) axis=1\noutput l float N 6\n",
     "h", "p l"},
    {"images",
     "input x float N 3 6 6\ninit w float 4 3 3 3 = normal 0.3\n"
     "init scale float 4 = .9 1 1.1 1.2\ninit shift float 4 = .1 .2 .3 .4\n"
     "init mean float 4 = 0 .1 .2 .3\ninit var float 4 = 1 1.1 1.2 1.3\n"
     "init v float 4 2 = normal 0.5\n"
     "c = Conv(x, w) pads=[1, 1, 1, 1]\nn, m, s = BatchNormalization(c, scale, shift, mean, "
     "var) training_mode=1\n"
     "r = Relu(n)\nq = MaxPool(r) kernel_shape=[2, 2] strides=[2, 2]\n"
     "k = Conv(q, u)\ng = GlobalAveragePool(k)\nf = Flatten(g)\ny = MatMul(f, v)\n"
     "init u float 4 4 1 1 = normal 0.5\noutput y float N 2\n",
     "c n r q k", "m s g y"},
    {"attention",
     "input i int64 N 5\ninit table float 7 4 = normal 1\ninit place float 5 4 = normal 1\n"
     "init scale float 4 = .9 1 1.1 1.2\ninit shift float 4 = .1 .2 .3 .4\n"
     "init w float 4 4 = normal 0.5\n"
     "e = Gather(table, i)\na = Add(e, place)\nn = LayerNormalization(a, scale, shift) axis=-1\n"
     "q = MatMul(n, w)\nk = Transpose(q) perm=[0, 2, 1]\nz = MatMul(q, k)\n"
     "p = Softmax(z) axis=-1\no = MatMul(p, q)\ny = Add(o, a)\noutput y float N 5 4\n",
     "e a n q k z p o", "y"},
    {"queries that see no key",
     "input i int64 N 5\ninit table float 7 4 = normal 1\ninit w float 4 4 = normal 0.5\n"
     "init v float 4 3 = normal 0.5\ninit two int64 1 = 2\ninit four int64 1 = 4\n"
     "lowest = Constant() value_float=-3.4028234663852886e38\n"
     "u = Unsqueeze(i, two)\nl = Less(u, four)\nc = Cast(l) to=1\nm = Mul(c, lowest)\n"
     "e = Gather(table, i)\nq = MatMul(e, w)\nk = Transpose(q) perm=[0, 2, 1]\n"
     "z = MatMul(q, k)\nh = Add(z, m)\np = Softmax(h) axis=-1\no = MatMul(p, q)\n"
     "y = MatMul(o, v)\noutput y float N 5 3\n",
     "e q k z h p o", "m y"},
    {"attention in one node",
     "input i int64 N 5\ninit table float 7 16 = normal 1\ninit w float 16 16 = normal 0.3\n"
     "init v float 16 3 = normal 0.5\ninit heads int64 4 = 0 5 2 8\ninit two int64 2 = 1 2\n"
     "init four int64 1 = 4\ninit flat int64 3 = 0 5 16\n"
     "lowest = Constant() value_float=-3.4028234663852886e38\n"
     "u = Unsqueeze(i, two)\nl = Less(u, four)\nc = Cast(l) to=1\nm = Mul(c, lowest)\n"
     "e = Gather(table, i)\nq = MatMul(e, w)\nr = Reshape(q, heads)\n"
     "t = Transpose(r) perm=[0, 2, 1, 3]\nk = Transpose(r) perm=[0, 2, 3, 1]\n"
     "z = MatMul(t, k)\nh = Add(z, m)\np = Softmax(h) axis=-1\no = MatMul(p, t)\n"
     "b = Transpose(o) perm=[0, 2, 1, 3]\nd = Reshape(b, flat)\n"
     "y = MatMul(d, v)\noutput y float N 5 3\n",
     "e q r b d", "m y"},
    {"steps",
     "input x float 3 2 4\ninit w float 1 20 4 = normal 0.5\ninit r float 1 20 5 = normal 0.5\n"
     "init b float 1 40 = normal 0.5\ninit v float 5 2 = normal 0.5\n"
     "h, l = LSTM(x, w, r, b) hidden_size=5\ns = Squeeze(h)\ny = MatMul(l, v)\n"
     "output y float 1 2 2\n",
     "h l", "y"},
    {"what is compared with a mean",
     "input x float N 4\ninit w float 4 6 = normal 0.5\ninit v float 6 3 = normal 0.5\n"
     "h = MatMul(x, w)\nm = ReduceMean(h) axes=[1] keepdims=1\nl = Less(h, m)\n"
     "t = Neg(h)\nk = Where(l, h, t)\ny = MatMul(k, v)\noutput y float N 3\n",
     "h t k", "m y"},
    {"a type of the model's own",
     "input x float N 4\ninit w float 4 6 = normal 0.5\n"
     "h = MatMul(x, w)\nc = Cast(h) to=11\nd = Mul(c, c)\ny = Cast(d) to=1\n"
     "output y float N 6\n",
     "h", "y"},
};

static bool has(const struct mgpu_graph *g, const char *op)
{
    bool found = false;
    for (int n = 0; n < g->node_count; n++)
        found = found || !strcmp(g->nodes[n]->op->name, op);
    return found;
}

static void build_row(struct built *b, const struct row *row)
{
    struct mgpu_lower_options options = at_batch(3);
    options.float_type = MGPU_FLOAT;
    CHECK_OK(build_with(b, row->text, &options));
    CHECK_OK(mgpu_fuse_attention(b->g, true)); /* as for a GPU's library */
    CHECK(has(b->g, "attention") == !strcmp(row->name, "attention in one node"));
    differentiate(b, 0.5);
}

static void feed(struct built *b)
{
    start(b);
    for (int i = 0; i < b->g->input_count; i++) {
        struct mgpu_value *v = b->g->inputs[i];
        double x[4096];
        for (int k = 0; k < mgpu_value_count(v); k++)
            x[k] = v->type == MGPU_INT64 ? (k * 3) % 7 : sin(1.3 * k + i);
        CHECK_OK(mgpu_run_feed(&b->run, v, x));
    }
    CHECK_OK(mgpu_run_all(&b->run));
}

/* ---- Types ----------------------------------------------------------------------------------- */

static void check_types(struct built *b, const struct row *row, const char *names,
                        enum mgpu_dtype type)
{
    char list[256], *name, *rest = list;
    snprintf(list, sizeof list, "%s", names);
    while ((name = strsep(&rest, " ")) && *name)
        CHECK_(value(b, name)->type == type, "%s: %s is %s", row->name, name,
               mgpu_dtype_name(value(b, name)->type));
}

static void check_lasting(const struct built *b, const struct row *row)
{
    for (int i = 0; i < b->g->output_count; i++)
        CHECK_(b->g->outputs[i]->type == MGPU_FLOAT, "%s: an output", row->name);
    for (int i = 0; i < b->g->parameter_count; i++) {
        const struct mgpu_parameter *p = &b->g->parameters[i];
        CHECK_(p->value->type == MGPU_FLOAT && (!p->gradient || p->gradient->type == MGPU_FLOAT) &&
                   (!p->next || p->next->type == MGPU_FLOAT),
               "%s: %s", row->name, p->name);
    }
}

/* A weight becomes a half type once; a gradient becomes a float right behind what makes it. */
static void check_casts(const struct built *b, const struct row *row)
{
    for (int i = 0; i < b->g->parameter_count; i++) {
        const struct mgpu_parameter *p = &b->g->parameters[i];
        int casts = 0;
        for (int n = 0; n < b->g->node_count; n++) {
            const struct mgpu_node *node = b->g->nodes[n];
            casts += node->inputs == 1 && node->input[0] == p->value && mgpu_expr_of(node) &&
                     mgpu_dtype_size(node->output[0]->type) == 2;
        }
        CHECK_(casts <= 1, "%s: %d casts of %s", row->name, casts, p->name);
        const struct mgpu_node *made = p->gradient ? p->gradient->producer : NULL;
        if (made && mgpu_expr_of(made) && mgpu_dtype_size(made->input[0]->type) == 2)
            CHECK_(made->id <= made->input[0]->producer->id + made->input[0]->producer->outputs,
                   "%s: the gradient of %s waits", row->name, p->name);
    }
}

/* ---- Numbers --------------------------------------------------------------------------------- */

static double distance(struct built *b, const struct mgpu_value *v, struct built *to,
                       const struct mgpu_value *want)
{
    double off = 0, size = 1e-30;
    const double *x = mgpu_run_doubles(&b->run, v), *y = mgpu_run_doubles(&to->run, want);
    for (int i = 0; i < mgpu_value_count(v); i++) {
        off += (x[i] - y[i]) * (x[i] - y[i]);
        size += y[i] * y[i];
    }
    return sqrt(off / size);
}

static void check_numbers(struct built *b, struct built *floats, const struct row *row, double most)
{
    feed(b);
    feed(floats);
    double off = distance(b, b->g->outputs[0], floats, floats->g->outputs[0]);
    CHECK_(off <= most, "%s: off by %.1e", row->name, off);
    for (int i = 0; i < b->g->parameter_count; i++) {
        const struct mgpu_value *d = b->g->parameters[i].gradient;
        off = d ? distance(b, d, floats, floats->g->parameters[i].gradient) : 0;
        CHECK_(off <= 8 * most, "%s: the gradient of %s is off by %.1e", row->name,
               b->g->parameters[i].name, off);
    }
}

static void check_row(const struct row *row, enum mgpu_dtype half)
{
    struct built b, floats;
    build_row(&floats, row);
    build_row(&b, row);
    CHECK_OK(mgpu_use_half(b.g, half));
    check_types(&b, row, row->half, half);
    check_types(&b, row, row->floats, MGPU_FLOAT);
    check_lasting(&b, row);
    check_casts(&b, row);
    check_numbers(&b, &floats, row, half == MGPU_BFLOAT16 ? 2e-2 : 3e-3);
    end(&b);
    end(&floats);
}

/* ---- Nodes ----------------------------------------------------------------------------------- */

static int casts_in(const struct mgpu_value *v)
{
    const struct mgpu_expr *e = mgpu_expr_of(v->producer);
    int casts = 0;
    for (int k = 0; e && k < e->count; k++)
        casts += e->op[k].code == MGPU_X_CAST;
    return casts;
}

static int backward_reads(const struct built *b, const struct mgpu_value *v)
{
    int reads = 0;
    for (int n = 0; n < b->g->node_count; n++)
        for (int i = 0; i < b->g->nodes[n]->inputs; i++)
            reads += b->g->nodes[n]->input[i] == v && b->g->nodes[n]->origin.role == MGPU_BACKWARD;
    return reads;
}

/* What only chooses or rounds once has no casts, so that passes behind see it as ever, and neither
 * has a product's bias; sums read the half type and give floats. */
static void test_nodes(void)
{
    struct built b;
    build_row(&b, &rows[0]);
    CHECK_OK(mgpu_use_half(b.g, MGPU_BFLOAT16));
    CHECK(casts_in(value(&b, "r")) == 0);
    CHECK(casts_in(value(&b, "t")) == 2);
    CHECK(casts_in(value(&b, "a")) == 0 && value(&b, "a")->producer->inputs == 2);
    const struct mgpu_value *sum = parameter(&b, "b")->gradient;
    while (sum->producer->op != &mgpu_op_reduce)
        sum = sum->producer->input[0];
    CHECK(sum->type == MGPU_FLOAT && sum->producer->input[0]->type == MGPU_BFLOAT16);
    for (int n = 0; n < b.g->node_count; n++)
        if (b.g->nodes[n]->op == &mgpu_op_matmul)
            CHECK(b.g->nodes[n]->input[0]->type == MGPU_BFLOAT16);
    CHECK(parameter(&b, "w")->gradient->producer->op == &mgpu_op_matmul);
    /* tanh's derivative is of what is stored */
    const struct mgpu_value *r = value(&b, "r"), *t = value(&b, "t");
    CHECK(backward_reads(&b, r) == 1 && backward_reads(&b, t) == 1);
    mgpu_fuse(b.g, &mgpu_backend_ref);
    CHECK(backward_reads(&b, r) == 0 && backward_reads(&b, t) > 1);
    end(&b);
}

int main(void)
{
    mgpu_fold_set(mgpu_ref_fold);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_row(&rows[i], MGPU_BFLOAT16);
        check_row(&rows[i], MGPU_FLOAT16);
    }
    test_nodes();
    return test_end();
}
