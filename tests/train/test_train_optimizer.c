/* --optimizer, --group, --lr-schedule: defaults, errors, update nodes, and PyTorch's rates. */
#include "runtime/graph/fold.h"
#include "runtime/graph/gradient.h"
#include "runtime/ops/build.h"
#include "runtime/ref/ref.h"
#include "runtime/train/optimizer.h"
#include "tests/ops/run_graph.h"
#include "tests/test.h"

struct golden_schedule {
    const char *text;
    int total;
    double factor[10];
};

#include "tests/train/golden_schedules.h"

/* ---- text -------------------------------------------------------------------------------------
 */

static struct mgpu_update_attrs parsed(const char *text)
{
    struct mgpu_optimizer o;
    CHECK_OK(mgpu_optimizer_parse(&o, text, 0, 0));
    return o.attrs;
}

static void test_defaults(void)
{
    struct mgpu_update_attrs a = parsed("adam");
    CHECK(a.kind == MGPU_ADAM && a.style == MGPU_STYLE_TORCH && a.lr == 1e-3 && a.eps == 1e-8);
    CHECK(a.beta1 == 0.9 && a.beta2 == 0.999 && a.weight_decay == 0 && !a.amsgrad);
    CHECK(parsed("adam,style=keras2").eps == 1e-7 && parsed("adamw").weight_decay == 1e-2);
    CHECK(parsed("AdamW,style=keras3").weight_decay == 4e-3);
    a = parsed("rmsprop");
    CHECK(a.lr == 1e-2 && a.rho == 0.99 && a.eps == 1e-8);
    a = parsed("rmsprop,style=keras3");
    CHECK(a.lr == 1e-3 && a.rho == 0.9 && a.eps == 1e-7 && a.style == MGPU_STYLE_KERAS3);
    CHECK(parsed("sgd,style=keras2").lr == 1e-2 && parsed("sgd").lr == 1e-3);
    CHECK(parsed("adagrad").eps == 1e-10);
    CHECK(parsed("adagrad,style=keras3").initial_accumulator_value == 0.1);
}

static void test_options(void)
{
    struct mgpu_update_attrs a =
        parsed("sgd,lr=0.1,momentum=0.9,nesterov,weight_decay=1e-4,decay=.5");
    CHECK(a.lr == 0.1 && a.momentum == 0.9 && a.nesterov && a.weight_decay == 1e-4);
    CHECK(a.decay == 0.5);
    a = parsed("rmsprop,alpha=0.8,centered=1,momentum=.5,eps=1e-3,style=keras2");
    CHECK(a.rho == 0.8 && a.centered && a.momentum == 0.5 && a.eps == 1e-3);
    a = parsed("adam,learning_rate=1/256,beta_1=.5,beta2=.9,epsilon=1,amsgrad=true");
    CHECK(a.lr == 1. / 256 && a.beta1 == 0.5 && a.beta2 == 0.9 && a.eps == 1 && a.amsgrad);
    a = parsed("adagrad,lr_decay=.1,initial_accumulator_value=2,lr=0");
    CHECK(a.lr_decay == 0.1 && a.initial_accumulator_value == 2 && a.lr == 0);
    struct mgpu_optimizer o;
    CHECK_OK(mgpu_optimizer_parse(&o, "lamb", 2, 3));
    CHECK(o.clip_norm == 2 && o.attrs.clip_value == 3 && o.attrs.kind == MGPU_LAMB);
}

static void test_bad_text(void)
{
    static const char *const rows[][2] = {
        {"adan", "unknown optimizer 'adan'; did you mean 'adam'?"},
        {"", "unknown optimizer ''"},
        {"lr=0.1", "unknown optimizer 'lr=0.1'"},
        {"adam,momentum=0.9", "adam has no option 'momentum'"},
        {"sgd,beta1=0.9", "sgd has no option 'beta1'"},
        {"adam,lrr=0.1", "unknown option 'lrr'; did you mean 'lr'?"},
        {"adam,lr=fast", "lr: 'fast' is not a number"},
        {"adam,lr", "lr: '' is not a number"},
        {"adam,lr=-1", "lr: -1 is less than 0"},
        {"adam,lr=nan", "lr: 'nan' is not a number"},
        {"adam,lr=1/0", "lr: '1/0' is not a number"},
        {"adam,beta1=1", "beta1: 1 is more than"},
        {"adam,amsgrad=maybe", "amsgrad: 'maybe' is neither"},
        {"adam,style=keras", "unknown style 'keras'; did you mean 'keras2'?"},
        {"sgd,nesterov", "nesterov needs a momentum"},
        {"sgd,momentum=.9,dampening=.1,style=keras3", "Keras has no dampening"},
    };
    struct mgpu_optimizer o;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        CHECK(mgpu_optimizer_parse(&o, rows[i][0], 0, 0) == MGPU_EUSAGE);
        CHECK_(strstr(mgpu_error(), rows[i][1]), "%s gave: %s", rows[i][0], mgpu_error());
    }
}

static void test_groups(void)
{
    static const char *const names[] = {"w", "a,lr=1", "fc.bias"};
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_optimizer o;
    CHECK_OK(mgpu_optimizer_parse(&o, "sgd,lr=1,momentum=.5", 0, 0));
    CHECK_OK(mgpu_optimizer_group(&o, "*bias,weight_decay=0,lr=2", names, 3, arena));
    CHECK_OK(mgpu_optimizer_group(&o, "a,lr=1,lr=3", names, 3, arena));
    CHECK_OK(mgpu_optimizer_group(&o, "x,y*,nesterov", names, 3, arena));
    CHECK(o.groups == 3 && strcmp(o.group[0].pattern, "*bias") == 0 && o.group[0].attrs.lr == 2);
    CHECK(strcmp(o.group[1].pattern, "a,lr=1") == 0 && o.group[1].attrs.lr == 3);
    CHECK(o.group[1].attrs.momentum == 0.5);
    CHECK(strcmp(o.group[2].pattern, "x,y*") == 0 && o.group[2].attrs.nesterov);
    CHECK(mgpu_optimizer_group(&o, "w", names, 3, arena) == MGPU_EUSAGE);
    CHECK_FAILS(mgpu_optimizer_group(&o, "w,lt=1", names, 3, arena), "did you mean 'lr'?");
    CHECK_FAILS(mgpu_optimizer_group(&o, "w,beta1=.5", names, 3, arena), "sgd has no option");
    CHECK(o.groups == 3);
    mgpu_arena_free(arena);
}

/* ---- update nodes -----------------------------------------------------------------------------
 */

/* loss = sum(w * x) + sum(b * x), so that both gradients are x; `c` is not reached, `f` frozen. */
struct model {
    struct mgpu_graph *g;
    struct mgpu_value *x, *loss;
};

enum { W, B, C, F };

static struct model make_model(void)
{
    static const char *const names[] = {"w", "fc.bias", "c", "f"};
    struct mgpu_dim two = mgpu_dim_const(2);
    struct mgpu_value *p[4];
    struct model m = {.g = mgpu_graph_new()};
    m.g->float_type = MGPU_DOUBLE;
    m.x = mgpu_graph_input(m.g, "x", MGPU_DOUBLE, 1, &two);
    for (int i = 0; i < 4; i++)
        p[i] = mgpu_graph_parameter(m.g, names[i], i == F ? MGPU_FROZEN : MGPU_WEIGHT, MGPU_DOUBLE,
                                    1, &two);
    struct mgpu_value *sum = mgpu_add(m.g, mgpu_mul(m.g, p[W], m.x), mgpu_mul(m.g, p[B], m.x));
    m.loss = mgpu_reduce(m.g, MGPU_REDUCE_SUM, mgpu_mul(m.g, sum, p[F]), 1, false);
    CHECK_OK(mgpu_gradient(m.g, m.loss, true));
    return m;
}

/* One step with x = 3, 4 and f = 1, 1: each gradient is 3, 4. */
static void step(struct mgpu_run *run, struct model *m)
{
    mgpu_run_init(run, m->g, &mgpu_backend_ref);
    CHECK_OK(mgpu_run_feed(run, m->x, (double[]){3, 4}));
    CHECK_OK(mgpu_run_feed(run, m->g->parameters[F].value, (double[]){1, 1}));
    CHECK_OK(mgpu_run_all(run));
}

static void test_build(void)
{
    struct model m = make_model();
    struct mgpu_optimizer o;
    struct mgpu_state_start *starts;
    struct mgpu_run run;
    int count;
    CHECK_OK(mgpu_optimizer_parse(&o, "sgd,lr=0.1,momentum=.5", 0, 0));
    CHECK_OK(mgpu_optimizer_group(&o, "*bias,lr=1,momentum=0", NULL, 0, m.g->arena));
    CHECK_OK(mgpu_optimizer_build(m.g, &o, &starts, &count));
    CHECK(count == 1 && strcmp(starts[0].name, "w:momentum") == 0 && starts[0].value == 0);
    CHECK(m.g->parameter_count == 5 && m.g->parameters[4].role == MGPU_STATE);
    CHECK(m.g->parameters[4].next && !m.g->parameters[C].next && !m.g->parameters[F].next);
    CHECK(m.g->nodes[m.g->node_count - 1]->origin.role == MGPU_UPDATE);
    step(&run, &m);
    CHECK_NEAR(mgpu_run_doubles(&run, m.g->parameters[W].next)[1], -0.4, 1e-15);
    CHECK_NEAR(mgpu_run_doubles(&run, m.g->parameters[B].next)[1], -4, 1e-15);
    CHECK_NEAR(mgpu_run_doubles(&run, m.g->parameters[4].next)[0], 3, 1e-15);
    mgpu_run_free(&run);
    mgpu_graph_free(m.g);
}

/* The norm of both gradients together is sqrt(50). */
static void test_clip(void)
{
    static const double limits[] = {1, 100};
    for (int i = 0; i < 2; i++) {
        struct model m = make_model();
        struct mgpu_optimizer o;
        struct mgpu_state_start *starts;
        struct mgpu_run run;
        int count;
        CHECK_OK(mgpu_optimizer_parse(&o, "sgd,lr=1", limits[i], 0));
        CHECK_OK(mgpu_optimizer_build(m.g, &o, &starts, &count));
        CHECK(count == 0);
        step(&run, &m);
        double scale = i == 0 ? 1 / (sqrt(50) + 1e-6) : 1;
        CHECK_NEAR(mgpu_run_doubles(&run, m.g->parameters[W].next)[0], -3 * scale, 1e-14);
        CHECK_NEAR(mgpu_run_doubles(&run, m.g->parameters[B].next)[1], -4 * scale, 1e-14);
        mgpu_run_free(&run);
        mgpu_graph_free(m.g);
    }
}

static void test_clip_value_and_states(void)
{
    struct model m = make_model();
    struct mgpu_optimizer o;
    struct mgpu_state_start *starts;
    struct mgpu_run run;
    int count;
    CHECK_OK(mgpu_optimizer_parse(&o, "adagrad,lr=1,eps=0,initial_accumulator_value=7", 0, 3.5));
    CHECK_OK(mgpu_optimizer_build(m.g, &o, &starts, &count));
    CHECK(count == 2 && starts[0].value == 7 && strcmp(starts[1].name, "fc.bias:sum") == 0);
    mgpu_run_init(&run, m.g, &mgpu_backend_ref);
    CHECK_OK(mgpu_run_feed(&run, m.x, (double[]){3, 4}));
    CHECK_OK(mgpu_run_feed(&run, m.g->parameters[F].value, (double[]){1, 1}));
    CHECK_OK(mgpu_run_feed(&run, m.g->parameters[4].value, (double[]){7, 7}));
    CHECK_OK(mgpu_run_all(&run));
    const double *w = mgpu_run_doubles(&run, m.g->parameters[W].next);
    CHECK_NEAR(w[0], -3 / sqrt(7 + 9), 1e-14);
    CHECK_NEAR(w[1], -3.5 / sqrt(7 + 3.5 * 3.5), 1e-14);
    mgpu_run_free(&run);
    mgpu_graph_free(m.g);
}

static void test_unmatched_group(void)
{
    struct model m = make_model();
    struct mgpu_optimizer o;
    struct mgpu_state_start *starts;
    int count;
    CHECK_OK(mgpu_optimizer_parse(&o, "sgd", 0, 0));
    CHECK_OK(mgpu_optimizer_group(&o, "conv*,lr=1", NULL, 0, m.g->arena));
    CHECK_FAILS(mgpu_optimizer_build(m.g, &o, &starts, &count), "conv* matches none");
    mgpu_graph_free(m.g);
}

/* ---- schedules --------------------------------------------------------------------------------
 */

static void test_golden_schedules(void)
{
    for (const struct golden_schedule *c = schedules; c->text; c++)
        for (int warmup = 0; warmup <= 4; warmup += 4) {
            struct mgpu_schedule s;
            CHECK_OK(mgpu_schedule_parse(&s, c->text, warmup, c->total + warmup));
            for (int t = 0; t < c->total; t++) {
                double factor = mgpu_schedule_factor(&s, t + warmup);
                CHECK_(fabs(factor - c->factor[t]) < 1e-14, "%s at %d: %.17g, not %.17g", c->text,
                       t, factor, c->factor[t]);
            }
            for (int t = 0; t < warmup; t++)
                CHECK_NEAR(mgpu_schedule_factor(&s, t), (t + 1) / 4., 1e-15);
        }
}

static void test_other_schedules(void)
{
    struct mgpu_schedule s;
    CHECK_OK(mgpu_schedule_parse(&s, NULL, 0, 0));
    CHECK(mgpu_schedule_factor(&s, 0) == 1 && mgpu_schedule_factor(&s, 1000) == 1);
    CHECK_OK(mgpu_schedule_parse(&s, NULL, 5, 3));
    CHECK_NEAR(mgpu_schedule_factor(&s, 2), 0.6, 1e-15);
    CHECK_OK(mgpu_schedule_parse(&s, "cosine", 0, 10));
    CHECK_NEAR(mgpu_schedule_factor(&s, 15), 0, 1e-15); /* stays at its end */
    CHECK_OK(mgpu_schedule_parse(&s, "one_cycle", 0, 1));
    CHECK(isfinite(mgpu_schedule_factor(&s, 0)));
    CHECK_FAILS(mgpu_schedule_parse(&s, "cosinus", 0, 10), "did you mean 'cosine'?");
    CHECK_FAILS(mgpu_schedule_parse(&s, "cosine,gamma=1", 0, 10), "unknown option 'gamma'");
    CHECK_FAILS(mgpu_schedule_parse(&s, "step", 0, 10), "step needs step_size");
    CHECK_FAILS(mgpu_schedule_parse(&s, "step,step_size=0", 0, 10), "not between 1");
    CHECK_FAILS(mgpu_schedule_parse(&s, "exponential", 0, 10), "needs gamma");
    CHECK_FAILS(mgpu_schedule_parse(&s, "linear", 0, 0), "give --epochs or --steps");
    CHECK_FAILS(mgpu_schedule_parse(&s, "linear", 10, 10), "leaves none of 10");
    CHECK_FAILS(mgpu_schedule_parse(&s, NULL, 0.5, 10), "--warmup 0.5");
    CHECK(mgpu_schedule_parse(&s, "", 0, 10) == MGPU_EUSAGE);
}

int main(void)
{
    mgpu_fold_set(mgpu_ref_fold);
    test_defaults();
    test_options();
    test_bad_text();
    test_groups();
    test_build();
    test_clip();
    test_clip_value_and_states();
    test_unmatched_group();
    test_golden_schedules();
    test_other_schedules();
    return test_end();
}
