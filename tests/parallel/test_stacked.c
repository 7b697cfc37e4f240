/* Equal towers stacked into one call on the batches of both: the numbers of towers apart, through
 * the facade, on 1 to 4 ranks, in pieces, with an uneven last batch; and plans edited by hand. */
#include "partitioner/plan_file.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

/* Sequences through one LSTM and one layer; the second tower's dropout is its own. */
static const char towers[] = "input a float N 6 3\n"
                             "input b float N 6 3\n"
                             "init W float 1 16 3 = normal 0.4\n"
                             "init R float 1 16 4 = normal 0.4\n"
                             "init V float 4 5 = normal 0.5\n"
                             "init scale float 5 = 1 .9 1.1 1.2 .8\n"
                             "init shift float 5 = .1\n"
                             "init X float 10 3 = normal 0.5\n"
                             "init zero int64 1 = 0\n"
                             "init ratio float = .4\n"
                             "init training bool = 1\n"
                             "ta = Transpose(a) perm=[1, 0, 2]\n"
                             "tb = Transpose(b) perm=[1, 0, 2]\n"
                             "-, la = LSTM(ta, W, R) hidden_size=4\n"
                             "-, lb = LSTM(tb, W, R) hidden_size=4\n"
                             "qa = Squeeze(la, zero)\n"
                             "va = MatMul(qa, V)\n"
                             "na = LayerNormalization(va, scale, shift)\n"
                             "ra = Tanh(na)\n"
                             "da = Dropout(ra, ratio, training)\n"
                             "qb = Squeeze(lb, zero)\n"
                             "vb = MatMul(qb, V)\n"
                             "nb = LayerNormalization(vb, scale, shift)\n"
                             "rb = Tanh(nb)\n"
                             "db = Dropout(rb, ratio, training)\n"
                             "c = Concat(da, db) axis=1\n"
                             "y = MatMul(c, X)\n"
                             "output y float N 3\n";
static const struct tiny_weight tower_weights[] = {{"W", 48},    {"R", 64},    {"V", 20},
                                                   {"scale", 5}, {"shift", 5}, {"X", 30}};

/* Three towers of images. */
static const char images[] = "input a float N 2 5 5\n"
                             "input b float N 2 5 5\n"
                             "input c float N 2 5 5\n"
                             "init K float 4 2 3 3 = normal 0.3\n"
                             "init B float 4 = .1 .2 -.1 .3\n"
                             "init F float 16 3 = normal 0.3\n"
                             "ka = Conv(a, K, B)\n"
                             "kb = Conv(b, K, B)\n"
                             "kc = Conv(c, K, B)\n"
                             "ra = Relu(ka)\n"
                             "rb = Relu(kb)\n"
                             "rc = Relu(kc)\n"
                             "pa = MaxPool(ra) kernel_shape=[2, 2]\n"
                             "pb = MaxPool(rb) kernel_shape=[2, 2]\n"
                             "pc = MaxPool(rc) kernel_shape=[2, 2]\n"
                             "s = Sum(pa, pb, pc)\n"
                             "f = Flatten(s)\n"
                             "y = MatMul(f, F)\n"
                             "output y float N 3\n";
static const struct tiny_weight image_weights[] = {{"K", 72}, {"B", 4}, {"F", 48}};

#define WEIGHTS(list) list, (int)(sizeof(list) / sizeof *(list))

static const char *classes(int64_t samples)
{
    int64_t label[64];
    for (int64_t i = 0; i < samples; i++)
        label[i] = i * 7 % 3;
    return tiny_data("label", MGPU_INT64, 1, &samples, label);
}

static struct mgpu_options options(const char *const *data)
{
    struct mgpu_options o = MGPU_OPTIONS;
    o.data = data;
    o.loss = tiny_list("cross_entropy", NULL);
    o.batch = 5;
    o.epochs = 2;
    o.exact = true;
    o.precision = "f64";
    o.optimizer = "sgd,lr=0.3,momentum=0.9";
    return o;
}

static const char *const devices[] = {"cpu:0", "cpu:0,cpu:1", "cpu:0,cpu:1,cpu:0", "cpu:0-3"};

static void check(const char *model, struct mgpu_options o, const struct tiny_weight *w, int count)
{
    static struct tiny_result apart, stacked;
    for (int pieces = 1; pieces <= 2; pieces++) {
        o.accumulate = pieces;
        o.devices = "cpu:0";
        o.strategy = "single";
        tiny_train(&apart, model, &o, w, count);
        CHECK_(apart.rc >= 0, "%s", apart.error);
        o.strategy = "stacked";
        for (int ranks = 1; ranks <= 4; ranks++) {
            o.devices = devices[ranks - 1];
            tiny_train(&stacked, model, &o, w, count);
            CHECK_(stacked.rc >= 0, "%d ranks, %d pieces: %s", ranks, pieces, stacked.error);
            double off = tiny_difference(&stacked, &apart);
            CHECK_(off <= 1e-10, "%d ranks, %d pieces: off by %g", ranks, pieces, off);
        }
    }
}

static struct mgpu_options tower_options(void)
{
    int64_t dims[] = {13, 6, 3};
    return options(
        tiny_list(tiny_noise("a", 1, 3, dims), tiny_noise("b", 2, 3, dims), classes(13), NULL));
}

static void test_towers(void)
{
    check(tiny_model(towers), tower_options(), WEIGHTS(tower_weights));
}

static void test_images(void)
{
    int64_t dims[] = {13, 2, 5, 5};
    check(tiny_model(images),
          options(tiny_list(tiny_noise("a", 1, 4, dims), tiny_noise("b", 2, 4, dims),
                            tiny_noise("c", 3, 4, dims), classes(13), NULL)),
          WEIGHTS(image_weights));
}

/* ---- The plan -------------------------------------------------------------------------------- */

/* The planner's plan for two devices. */
static struct mgpu_plan_file *plan_of(const char *model, const char *strategy)
{
    struct mgpu_options o = MGPU_OPTIONS;
    struct mgpu_partition_options p = {0};
    struct mgpu_partition *made;
    struct mgpu_plan_file *plan = NULL;
    o.devices = "cpu:0,cpu:1";
    o.batch = 5;
    o.loss = tiny_list("cross_entropy", NULL);
    o.strategy = strategy;
    CHECK_OK(mgpu_partition_new(&made, model, &o, &p));
    CHECK_OK(mgpu_partition_save(made, tiny_path("plan.json")));
    mgpu_partition_free(made);
    CHECK_OK(mgpu_plan_file_read(&plan, tiny_path("plan.json")));
    return plan;
}

static const struct mgpu_plan_rewrite *rewrite_with(const struct mgpu_plan_file *p, const char *key)
{
    for (int i = 0; i < p->rewrites; i++)
        for (int k = 0; k < p->rewrite[i].outputs; k++)
            if (!strcmp(p->rewrite[i].output[k], key))
                return &p->rewrite[i];
    return NULL;
}

/* All that is equal is stacked, in the towers' order, and no more. */
static void test_found(void)
{
    struct mgpu_plan_file *p = plan_of(tiny_model(towers), "stacked");
    static const char *const pairs[][2] = {{"la", "lb"}, {"qa", "qb"}, {"va", "vb"},
                                           {"na", "nb"}, {"ra", "rb"}, {"da", "db"}};
    for (int i = 0; i < 6; i++) {
        const struct mgpu_plan_rewrite *r = rewrite_with(p, pairs[i][0]);
        CHECK_(r && r->outputs == 2 && !strcmp(r->output[0], pairs[i][0]) &&
                   !strcmp(r->output[1], pairs[i][1]),
               "'%s'", pairs[i][0]);
    }
    CHECK(!rewrite_with(p, "ta") && !rewrite_with(p, "c") && !rewrite_with(p, "y"));
    mgpu_plan_file_free(p);
    p = plan_of(tiny_model(images), "stacked");
    CHECK(p->rewrites == 3 && rewrite_with(p, "pc") && rewrite_with(p, "pc")->outputs == 3);
    mgpu_plan_file_free(p);
}

static void run_plan(struct tiny_result *out, const char *model, const struct mgpu_plan_file *p)
{
    struct mgpu_options o = tower_options();
    CHECK_OK(mgpu_plan_file_write(p, tiny_path("edited.json")));
    o.plan = tiny_path("edited.json");
    tiny_train(out, model, &o, WEIGHTS(tower_weights));
}

/* One rewrite more in a plan of branches, placed anywhere. */
static void test_edited(void)
{
    static struct tiny_result apart, edited;
    const char *model = tiny_model(towers);
    struct mgpu_options o = tower_options();
    o.strategy = "single";
    o.devices = "cpu:0";
    tiny_train(&apart, model, &o, WEIGHTS(tower_weights));
    struct mgpu_plan_file *p = plan_of(model, "branch");
    struct mgpu_plan_rewrite stack = {"stack", 2, (const char *[]){"vb", "va"}};
    p->rewrites = 1;
    p->rewrite = &stack;
    for (int i = 0; i < p->nodes; i++)
        p->node[i].place = i % p->places;
    run_plan(&edited, model, p);
    CHECK_(edited.rc >= 0, "%s", edited.error);
    CHECK(tiny_difference(&edited, &apart) <= 1e-10);
    mgpu_plan_file_free(p);
}

static void test_refused(void)
{
    static const struct {
        const char *first, *second, *why;
    } rows[] = {
        {"va", "y", "'y' needs 'va'"},
        {"la", "nb", "'la' is LSTM, 'nb' is LayerNormalization"},
        {"va", "vc", "nothing computes 'vc'"},
    };
    static struct tiny_result r;
    const char *model = tiny_model(towers);
    struct mgpu_plan_file *p = plan_of(model, "single");
    struct mgpu_plan_rewrite stack = {"stack", 2, (const char *[2]){0}};
    p->rewrites = 1;
    p->rewrite = &stack;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        stack.output[0] = rows[i].first;
        stack.output[1] = rows[i].second;
        run_plan(&r, model, p);
        CHECK_(r.rc < 0 && strstr(r.error, rows[i].why), "'%s' and '%s': %s", rows[i].first,
               rows[i].second, r.error);
    }
    struct mgpu_plan_rewrite twice[] = {{"stack", 2, (const char *[]){"va", "vb"}},
                                        {"stack", 2, (const char *[]){"vb", "va"}}};
    p->rewrites = 2;
    p->rewrite = twice;
    run_plan(&r, model, p);
    CHECK_(r.rc < 0 && strstr(r.error, "it stands in two rewrites"), "%s", r.error);
    mgpu_plan_file_free(p);
}

/* Towers whose nodes stand crosswise cannot both be joined. */
static const char crossed[] = "input a float N 4\n"
                              "input b float N 4\n"
                              "init U float 4 4 = normal 0.5\n"
                              "init V float 4 4 = normal 0.5\n"
                              "init X float 8 3 = normal 0.5\n"
                              "ua = MatMul(a, U)\n"
                              "va = MatMul(ua, V)\n"
                              "vb = MatMul(b, V)\n"
                              "ub = MatMul(vb, U)\n"
                              "c = Concat(va, ub) axis=1\n"
                              "y = MatMul(c, X)\n"
                              "output y float N 3\n";

static void test_crossed(void)
{
    static struct tiny_result r;
    const char *model = tiny_model(crossed);
    struct mgpu_plan_file *p = plan_of(model, "single");
    for (int i = 0; i < p->alternatives; i++)
        CHECK(strcmp(p->alternative[i].strategy, "stacked"));
    struct mgpu_plan_rewrite stack[] = {{"stack", 2, (const char *[]){"ua", "ub"}},
                                        {"stack", 2, (const char *[]){"va", "vb"}}};
    p->rewrites = 2;
    p->rewrite = stack;
    CHECK_OK(mgpu_plan_file_write(p, tiny_path("edited.json")));
    int64_t dims[] = {13, 4};
    struct mgpu_options o = options(
        tiny_list(tiny_noise("a", 1, 2, dims), tiny_noise("b", 2, 2, dims), classes(13), NULL));
    o.plan = tiny_path("edited.json");
    tiny_train(&r, model, &o, NULL, 0);
    CHECK_(r.rc < 0 && strstr(r.error, "a circle: stacked,"), "%s", r.error);
    stack[1].output[0] = "ua";
    stack[1].output[1] = "vb";
    p->rewrite = &stack[1];
    p->rewrites = 1;
    CHECK_OK(mgpu_plan_file_write(p, tiny_path("edited.json")));
    tiny_train(&r, model, &o, NULL, 0);
    CHECK_(r.rc < 0 && strstr(r.error, "its weights are others"), "%s", r.error);
    mgpu_plan_file_free(p);
}

int main(void)
{
    tiny_begin();
    test_towers();
    test_images();
    test_found();
    test_edited();
    test_refused();
    test_crossed();
    tiny_end();
    return test_end();
}
