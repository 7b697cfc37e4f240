/* The flat model: functions inlined, attributes resolved, names unique, layers known. */
#include "importer/model.h"
#include "tests/support/make_onnx.h"
#include "tests/test.h"

static const char path[] = "/tmp/mgpu-test-model.onnx";

struct opened {
    struct mgpu_onnx_file *file;
    struct mgpu_onnx_model *model;
};

static int open_text(struct opened *o, const char *text)
{
    make_onnx_file(path, text);
    *o = (struct opened){0};
    MGPU_TRY(mgpu_onnx_read(&o->file, path));
    return mgpu_onnx_model_new(&o->model, o->file);
}

static void close_text(struct opened *o)
{
    mgpu_onnx_model_free(o->model);
    mgpu_onnx_free(o->file);
    remove(path);
}

static const struct mgpu_onnx_initializer *initializer(const struct opened *o, const char *name)
{
    int index = mgpu_onnx_find_initializer(o->model, name);
    CHECK_(index >= 0, "no initializer '%s'", name);
    return index < 0 ? NULL : &o->model->initializer[index];
}

#define FUNCTIONS                                                                                  \
    "ir 9\n"                                                                                       \
    "opset 17\n"                                                                                   \
    "opset local 1\n"                                                                              \
    "function local inner(x) k -> y {\n"                                                           \
    "    opset 17\n"                                                                               \
    "    c = Constant() value_float=$k:float\n"                                                    \
    "    y = Mul(x, c)\n"                                                                          \
    "}\n"                                                                                          \
    "function local outer(x) s=0.5 -> y {\n"                                                       \
    "    opset 17\n"                                                                               \
    "    opset local 1\n"                                                                          \
    "    y = local.inner(x) k=$s:float\n"                                                          \
    "}\n"                                                                                          \
    "input x float N 1\n"                                                                          \
    "init W float 1 1 = 2\n"                                                                       \
    "h = MatMul(x, W)\n"

/* The float that the only Mul multiplies with. */
static void check_factor(const char *text, float want)
{
    struct opened o;
    CHECK_OK(open_text(&o, text));
    if (!o.model)
        return;
    CHECK(o.model->node_total == 2);
    const struct mgpu_onnx_node *mul = o.model->all[1];
    CHECK(!strcmp(mul->type, "Mul") && !strcmp(mul->output[0], "y") && !strcmp(mul->input[0], "h"));
    CHECK(!strcmp(mul->path, "y/y/"));
    const struct mgpu_onnx_initializer *c = initializer(&o, mul->input[1]);
    if (c)
        CHECK(c->constant_node && c->array.rank == 0 && ((float *)c->array.data)[0] == want);
    close_text(&o);
}

static void test_attributes(void)
{
    check_factor(FUNCTIONS "y = local.outer(h) s=3.0\noutput y float N 1\n", 3);
    check_factor(FUNCTIONS "y = local.outer(h)\noutput y float N 1\n", 0.5f);
}

static void test_refused(void)
{
    struct opened o;
    CHECK_FAILS(open_text(&o, "opset local 1\n"
                              "function local inner(x) -> y {\n"
                              "    opset local 1\n"
                              "    y = local.outer(x)\n"
                              "}\n"
                              "function local outer(x) -> y {\n"
                              "    opset local 1\n"
                              "    y = local.inner(x)\n"
                              "}\n"
                              "input x float N 1\n"
                              "y = local.outer(x)\n"
                              "output y float N 1\n"),
                "function 'outer' is recursive");
    close_text(&o);
    CHECK_FAILS(open_text(&o, "opset local 1\n"
                              "function local f(x) -> y {\n"
                              "    opset 17\n"
                              "    y = Elu(x) alpha=$nothing:float\n"
                              "}\n"
                              "input x float N 1\n"
                              "y = local.f(x)\n"
                              "output y float N 1\n"),
                "which function 'f' lacks");
    close_text(&o);
    CHECK_FAILS(open_text(&o, "opset local 1\n"
                              "function local f(x) k -> y {\n"
                              "    opset 17\n"
                              "    y = Elu(x) alpha=$k:float\n"
                              "}\n"
                              "input x float N 1\n"
                              "y = local.f(x) k=3\n"
                              "output y float N 1\n"),
                "differ in type");
    close_text(&o);
}

/* Each level calls the one below twice: 2^30 nodes. */
static void test_growth(void)
{
    static char text[1 << 14];
    struct opened o;
    FILE *to = fmemopen(text, sizeof text, "w");
    fputs("opset local 1\nfunction local f0(x) -> y {\nopset 17\ny = Neg(x)\n}\n", to);
    for (int i = 1; i <= 30; i++)
        fprintf(to,
                "function local f%d(x) -> y {\nopset local 1\nh = local.f%d(x)\n"
                "y = local.f%d(h)\n}\n",
                i, i - 1, i - 1);
    fputs("input x float N 1\ny = local.f30(x)\noutput y float N 1\n", to);
    fclose(to);
    CHECK_FAILS(open_text(&o, text), "more than 1000000 nodes");
    close_text(&o);
}

/* An attribute that neither the call nor the function gives is not there at all. */
static void test_omitted(void)
{
    struct opened o;
    CHECK_OK(open_text(&o, "opset local 1\n"
                           "function local f(x) k -> y {\n"
                           "    opset 17\n"
                           "    y = Elu(x) alpha=$k:float\n"
                           "}\n"
                           "input x float N 1\n"
                           "a = local.f(x)\n"
                           "y = local.f(a) k=3.0\n"
                           "output y float N 1\n"));
    CHECK(mgpu_onnx_attribute(o.model->all[0], "alpha") == NULL);
    CHECK(mgpu_onnx_float(o.model->all[1], "alpha", 1) == 3);
    close_text(&o);
}

/* A function's tensor is one initializer for all calls; outputs that are only passed on, and inputs
 * that are absent. */
static void test_calls(void)
{
    struct opened o;
    CHECK_OK(open_text(&o, "opset local 1\n"
                           "function local f(x, b) -> y, same, w {\n"
                           "    opset 13\n"
                           "    w = Constant() value=<float 2 = 1 2>\n"
                           "    h = Mul(x, w)\n"
                           "    y = Clip(h, b)\n"
                           "    same = Identity(x)\n"
                           "}\n"
                           "function local pass(x) -> x {\n"
                           "    opset 13\n"
                           "}\n"
                           "input x float N 2\n"
                           "a, s, w1 = local.f(x)\n"
                           "b, -, - = local.f(a)\n"
                           "y = local.pass(b)\n"
                           "output y float N 2\n"
                           "output w1 float 2\n"));
    CHECK(o.model->initializers == 1);
    const struct mgpu_onnx_node *first = o.model->all[0], *clip = o.model->all[1];
    CHECK(!strcmp(first->type, "Mul") && first->opset == 13);
    CHECK(!strcmp(first->input[1], o.model->initializer[0].name));
    CHECK(clip->inputs == 2 && !strcmp(clip->input[1], ""));
    int same = 0, given = 0, passed = 0;
    for (int i = 0; i < o.model->node_total; i++) {
        const struct mgpu_onnx_node *n = o.model->all[i];
        same += !strcmp(n->type, "Mul") && n != first && !strcmp(n->input[1], first->input[1]);
        given += !strcmp(n->type, "Identity") && !strcmp(n->output[0], "w1");
        passed +=
            !strcmp(n->type, "Identity") && !strcmp(n->output[0], "y") && !strcmp(n->input[0], "b");
        for (int k = i + 1; k < o.model->node_total; k++)
            CHECK(strcmp(n->output[0], o.model->all[k]->output[0]) || !*n->output[0]);
    }
    CHECK(same == 1 && given == 1 && passed == 1);
    close_text(&o);
}

/* Bodies: equal inner names stay apart, outer values are found, a branch that only hands on an
 * outer value gets a node. */
static void test_bodies(void)
{
    struct opened o;
    CHECK_OK(open_text(&o, "graph then {\n"
                           "    init V float 4 = 3\n"
                           "    h = Mul(x, W)\n"
                           "    t = Add(h, V)\n"
                           "    output t\n"
                           "}\n"
                           "graph other {\n"
                           "    h = Neg(x)\n"
                           "    output x\n"
                           "}\n"
                           "input x float N 4\n"
                           "input c bool\n"
                           "init W float 4 = 2\n"
                           "y = If(c) then_branch=@then else_branch=@other\n"
                           "output y float N 4\n"));
    CHECK(o.model->graph.nodes == 1 && o.model->node_total == 5 && o.model->initializers == 2);
    const struct mgpu_onnx_node *n = &o.model->graph.node[0];
    CHECK(n->bodies == 2 && !strcmp(n->body_name[0], "then_branch"));
    const struct mgpu_onnx_body *then = &n->body[0], *other = &n->body[1];
    CHECK(then->nodes == 2 && !strcmp(then->node[0].input[1], "W"));
    CHECK(!strcmp(then->output[0].name, then->node[1].output[0]));
    CHECK(other->nodes == 2 && !strcmp(other->node[1].type, "Identity"));
    CHECK(!strcmp(other->node[1].input[0], "x"));
    CHECK(!strcmp(other->output[0].name, other->node[1].output[0]));
    CHECK(strcmp(then->node[0].output[0], other->node[0].output[0]));
    for (int i = 0; i < o.model->node_total; i++)
        CHECK(o.model->all[i]->index == i);
    close_text(&o);
}

static void test_layers(void)
{
    struct opened o;
    CHECK_OK(open_text(
        &o, "opset local 1\n"
            "producer pytorch\n"
            "function local f(x) -> y {\n"
            "    opset 17\n"
            "    y = Neg(x) name=\"Neg_3\"\n"
            "}\n"
            "input x float N 4\n"
            "a = Neg(x) name=\"/enc/layers.0/linear1/MatMul\"\n"
            "b = Neg(a) name=\"node_1\" scopes=\"['', 'enc', 'enc.layers.0', 'linear']\"\n"
            "c = Neg(b) name=\"node_2\"\n"
            "d = local.f(c) name=\"/blocks.1/f\"\n"
            "e = Neg(d) scopes=\"['_empty_nn_module_stack', 'x']\"\n"
            "output e float N 4\n"));
    static const char *const want[] = {"/enc/layers.0/linear1", "enc.layers.0", "", "/blocks.1",
                                       ""};
    for (int i = 0; i < 5; i++)
        CHECK_(!strcmp(o.model->all[i]->layer, want[i]), "layer %d is '%s'", i,
               o.model->all[i]->layer);
    CHECK(o.model->producer == MGPU_PRODUCER_PYTORCH);
    close_text(&o);
}

/* IR 3: initializers are listed as inputs too. */
static void test_inputs(void)
{
    struct opened o;
    CHECK_OK(open_text(&o, "ir 3\n"
                           "opset 8\n"
                           "input x float N 3\n"
                           "input W float 3\n"
                           "init W float 3 = 1\n"
                           "y = Mul(x, W)\n"
                           "output y float N 3\n"));
    CHECK(o.model->graph.inputs == 1 && !strcmp(o.model->graph.input[0].name, "x"));
    CHECK(o.model->graph.input[0].rank == 2 && o.model->graph.input[0].dims[1] == 3);
    CHECK(!strcmp(o.model->graph.input[0].symbols[0], "N"));
    CHECK(o.model->graph.input[0].symbols[1] == NULL);
    CHECK(o.model->initializer[0].graph_input);
    close_text(&o);
}

int main(void)
{
    test_attributes();
    test_refused();
    test_growth();
    test_omitted();
    test_calls();
    test_bodies();
    test_layers();
    test_inputs();
    return test_end();
}
