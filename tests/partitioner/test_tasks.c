/* Tasks of training graphs: groups, phases, edges, parameters, costs; the same whatever the order
 * of the nodes in the file. */
#include "partitioner/cost.h"
#include "partitioner/profile.h"
#include "partitioner/tasks.h"
#include "runtime/compile/plan.h"
#include "runtime/compile/program.h"
#include "runtime/graph/gradient.h"
#include "runtime/ops/build.h"
#include "runtime/ops/comm.h"
#include "tests/partitioner/plan_models.h"
#include "tests/test.h"

static struct mgpu_task_graph *build(const char *text, int64_t batch, const char *spec)
{
    struct mgpu_topology *topology;
    struct mgpu_task_graph *t = NULL;
    struct mgpu_graph *g = plan_graph(text, batch);
    CHECK_OK(mgpu_topology_parse(&topology, spec));
    CHECK_OK(mgpu_tasks_build(&t, g, topology, MGPU_RATE_F32, NULL));
    mgpu_topology_free(topology);
    mgpu_graph_free(g); /* what tasks hold is their own */
    return t;
}

static int group_of(const struct mgpu_task_graph *t, const char *key)
{
    for (int i = 0; i < t->tasks; i++)
        if (t->task[i].group >= 0 && !strcmp(t->task[i].key, key))
            return t->task[i].group;
    return -1;
}

static const struct mgpu_shared *param(const struct mgpu_task_graph *t, const char *name)
{
    for (int i = 0; i < t->params; i++)
        if (!strcmp(t->param[i].name, name))
            return &t->param[i];
    CHECK_(false, "no parameter %s", name);
    exit(test_end());
}

static int count(const struct mgpu_task_graph *t, int group, int phase)
{
    int n = 0;
    for (int i = 0; i < t->tasks; i++)
        n += t->task[i].group == group && t->task[i].phase == phase;
    return n;
}

static void check_shape(const struct mgpu_task_graph *t)
{
    for (int i = 0; i < t->tasks; i++) {
        const struct mgpu_task *k = &t->task[i];
        CHECK(k->group >= -1 && k->group < t->groups);
        CHECK(k->group >= 0 || (k->param >= 0 && k->param < t->params));
        CHECK(k->ms[0] >= 0 && k->output >= 0 && k->scratch >= 0);
    }
    for (int i = 0; i < t->edges; i++) {
        const struct mgpu_edge *e = &t->edge[i];
        CHECK(e->from >= 0 && e->from < e->to && e->to < t->tasks && e->bytes > 0);
        CHECK(t->task[e->from].phase <= t->task[e->to].phase);
    }
    for (int i = 0; i < t->groups; i++)
        CHECK(t->pin[i] == -1);
}

static void check_two_towers(void)
{
    struct mgpu_task_graph *t = build(plan_two_towers, 8, "2xcpu");
    check_shape(t);
    CHECK(t->batch == 8 && t->groups == 8); /* one an ONNX node; the loss joins y */
    CHECK(t->input_bytes == 2 * 8 * 64 * 4);
    CHECK(t->params == 3);
    /* W and C are used by both towers, V by one node; Adam holds two states of the same size */
    const struct mgpu_shared *w = param(t, "W"), *v = param(t, "V"), *c = param(t, "C");
    CHECK(w->groups == 2 && w->bytes == 64 * 128 * 4 && w->state_bytes == 2 * w->bytes);
    CHECK(c->groups == 2 && v->groups == 1 && v->group[0] == group_of(t, "y"));
    CHECK(w->trained && v->trained && w->group[0] < w->group[1]);
    CHECK(w->group[0] == group_of(t, "pa") && w->group[1] == group_of(t, "pb"));
    int pa = group_of(t, "pa"), y = group_of(t, "y");
    CHECK(count(t, pa, MGPU_PHASE_FORWARD) == 1 && count(t, pa, MGPU_PHASE_BACKWARD) >= 1);
    CHECK(count(t, pa, MGPU_PHASE_UPDATE) == 0 && count(t, y, MGPU_PHASE_UPDATE) == 1);
    /* each shared weight: one sum, one update, at its owner */
    CHECK(count(t, -1, MGPU_PHASE_BACKWARD) == 2 && count(t, -1, MGPU_PHASE_UPDATE) == 2);
    mgpu_task_graph_free(t);
}

/* Every tensor that crosses between groups, in bytes. */
static void check_edges(void)
{
    struct mgpu_task_graph *t = build(plan_two_towers, 8, "2xcpu");
    int pa = group_of(t, "pa"), ca = group_of(t, "ca"), m = group_of(t, "m");
    int ha = group_of(t, "ha"), forward = 0, sums = 0;
    for (int i = 0; i < t->edges; i++) {
        const struct mgpu_task *from = &t->task[t->edge[i].from], *to = &t->task[t->edge[i].to];
        if (from->group == pa && to->group == ca && to->phase == MGPU_PHASE_FORWARD) {
            CHECK(t->edge[i].bytes == 8 * 128 * 4);
            forward++;
        }
        if (from->group == ha && to->group == m)
            CHECK(t->edge[i].bytes == 8 * 128 * 4);
        if (from->group == pa && to->group == -1) {
            CHECK(t->edge[i].bytes == 64 * 128 * 4 && !strcmp(to->key, "W"));
            sums++;
        }
    }
    CHECK(forward == 1 && sums == 1);
    mgpu_task_graph_free(t);
}

static void check_costs(void)
{
    struct mgpu_topology *topology;
    struct mgpu_task_graph *t;
    struct mgpu_graph *g = plan_graph(plan_two_towers, 8);
    CHECK_OK(mgpu_topology_parse(&topology, "8xh100-nvlink"));
    CHECK_OK(mgpu_tasks_build(&t, g, topology, MGPU_RATE_F32, NULL));
    double nodes = 0, tasks = 0;
    for (int i = 0; i < g->node_count; i++)
        nodes += mgpu_cost_ms(&topology->kind[0], g->nodes[i], MGPU_RATE_F32);
    for (int i = 0; i < t->tasks; i++)
        tasks += t->task[i].ms[0];
    CHECK_NEAR(tasks, nodes, 1e-12);
    CHECK(t->host_ms[0] == 0);
    mgpu_task_graph_free(t);
    mgpu_topology_free(topology);
    mgpu_graph_free(g);
}

static void check_equal(const struct mgpu_task_graph *a, const struct mgpu_task_graph *b, int kinds)
{
    CHECK(a->batch == b->batch && a->busy == b->busy && a->tasks == b->tasks);
    CHECK(a->edges == b->edges && a->groups == b->groups && a->params == b->params);
    CHECK(a->input_bytes == b->input_bytes && a->rest_bytes == b->rest_bytes);
    for (int i = 0; i < a->tasks && i < b->tasks; i++) {
        const struct mgpu_task *x = &a->task[i], *y = &b->task[i];
        CHECK(x->group == y->group && x->param == y->param && x->phase == y->phase);
        CHECK(x->output == y->output && x->scratch == y->scratch && !strcmp(x->key, y->key));
        for (int k = 0; k < kinds; k++)
            CHECK(x->ms[k] == y->ms[k]);
    }
    for (int i = 0; i < a->edges && i < b->edges; i++) {
        const struct mgpu_edge *x = &a->edge[i], *y = &b->edge[i];
        CHECK(x->from == y->from && x->to == y->to && x->value == y->value);
        CHECK(x->bytes == y->bytes && x->held == y->held);
    }
    for (int i = 0; i < a->params && i < b->params; i++)
        CHECK(a->param[i].bytes == b->param[i].bytes && a->param[i].groups == b->param[i].groups &&
              a->param[i].state_bytes == b->param[i].state_bytes);
    for (int k = 0; k < kinds; k++)
        CHECK(a->host_ms[k] == b->host_ms[k]);
}

/* Tasks that were built at another batch cost what those do that are built at this one. */
static void check_cost_again(void)
{
    static const char *const models[] = {plan_two_towers, plan_branches, plan_norm};
    struct mgpu_topology *topology;
    CHECK_OK(mgpu_topology_parse(&topology, "h100"));
    for (int m = 0; m < 3; m++) {
        struct mgpu_graph *g = plan_graph(models[m], 8);
        struct mgpu_task_graph *built, *again, *fresh;
        CHECK_OK(mgpu_tasks_build(&built, g, topology, MGPU_RATE_F32, NULL));
        built->pin[0] = 5;
        built->task[0].sums = 3;
        for (int64_t batch = 1; batch <= 1 << 20; batch = 3 * batch + 1) {
            struct mgpu_graph *h = plan_graph(models[m], batch);
            CHECK(mgpu_graph_set_batch(g, batch) && mgpu_tasks_same(built));
            mgpu_tasks_cost(&again, built, topology);
            CHECK_OK(mgpu_tasks_build(&fresh, h, topology, MGPU_RATE_F32, NULL));
            check_equal(again, fresh, topology->kinds);
            CHECK(again->pin[0] == 5 && again->task[0].sums == 3);
            mgpu_task_graph_free(again);
            mgpu_task_graph_free(fresh);
            mgpu_graph_free(h);
        }
        mgpu_task_graph_free(built);
        mgpu_graph_free(g);
    }
    mgpu_topology_free(topology);
}

/* Sizes at another batch are those of a graph that was made at it, and so are costs. */
static void check_set_batch(void)
{
    static const char *const models[] = {plan_two_towers, plan_branches, plan_norm};
    struct mgpu_topology *topology;
    CHECK_OK(mgpu_topology_parse(&topology, "h100"));
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        struct mgpu_graph *g = plan_graph(models[m], 8), *h = plan_graph(models[m], 3);
        CHECK(mgpu_graph_set_batch(g, 3) && g->batch == 3 && g->node_count == h->node_count);
        for (int i = 0; i < g->node_count; i++) {
            CHECK(mgpu_cost_ms(&topology->kind[0], g->nodes[i], MGPU_RATE_F32) ==
                  mgpu_cost_ms(&topology->kind[0], h->nodes[i], MGPU_RATE_F32));
            for (int k = 0; k < g->nodes[i]->outputs; k++)
                CHECK(mgpu_value_bytes(g->nodes[i]->output[k]) ==
                      mgpu_value_bytes(h->nodes[i]->output[k]));
        }
        g->nodes[0]->output[0]->dims[0] = mgpu_dim_opaque(3);
        CHECK(!mgpu_graph_set_batch(g, 8) && g->batch == 3);
        mgpu_graph_free(g);
        mgpu_graph_free(h);
    }
    mgpu_topology_free(topology);
}

/* A measured time stands where the profile has one, for the kind that it was measured on. */
static void check_profile(void)
{
    struct mgpu_topology *topology;
    struct mgpu_task_graph *t;
    struct mgpu_graph *g = plan_graph(plan_two_towers, 8);
    struct mgpu_profile *p = mgpu_profile_new();
    int matmul = 0;
    while (strcmp(g->nodes[matmul]->op->name, "matmul"))
        matmul++;
    mgpu_profile_set(p, 1, 2, g->nodes[matmul], 123);
    CHECK_OK(mgpu_topology_parse(&topology, "2xcpu"));
    CHECK_OK(mgpu_tasks_build(&t, g, topology, MGPU_RATE_F32, p));
    int measured = 0;
    for (int i = 0; i < t->tasks; i++)
        measured += t->task[i].ms[0] == 123;
    CHECK(measured == 2); /* both towers' products have one shape */
    mgpu_task_graph_free(t);
    topology->kind[0].busy = 1;
    CHECK_OK(mgpu_tasks_build(&t, g, topology, MGPU_RATE_F32, p));
    for (int i = 0; i < t->tasks; i++)
        CHECK(t->task[i].ms[0] != 123);
    mgpu_task_graph_free(t);
    mgpu_profile_set(p, 1, 1, g->nodes[matmul], 456); /* branches; beside others: not measured */
    topology->kind[0].busy = 3;
    topology->kind[0].in_turns = true;
    CHECK_OK(mgpu_tasks_build(&t, g, topology, MGPU_RATE_F32, p));
    measured = 0;
    for (int i = 0; i < t->tasks; i++)
        measured += t->task[i].ms[0] == 456 && t->task[i].beside[0] == 456;
    CHECK(measured == 2);
    mgpu_task_graph_free(t);
    mgpu_topology_free(topology);
    mgpu_profile_free(p);
    mgpu_graph_free(g);
}

/* x has four users: three sums of gradients are one task, of the node that made x. */
static void check_sums(void)
{
    struct mgpu_task_graph *t = build(plan_branches, 4, "2xcpu");
    check_shape(t);
    int x = group_of(t, "x"), into = 0, sum = -1;
    for (int i = 0; i < t->edges; i++) {
        const struct mgpu_task *from = &t->task[t->edge[i].from], *to = &t->task[t->edge[i].to];
        if (to->group == x && to->phase == MGPU_PHASE_BACKWARD && from->group != x &&
            from->phase == MGPU_PHASE_BACKWARD) {
            CHECK(sum < 0 || sum == t->edge[i].to);
            sum = t->edge[i].to;
            into++;
        }
    }
    CHECK(into == 4); /* from p, q, r, t */
    mgpu_task_graph_free(t);
}

/* All-reduces that are no bucket of gradients, and the values that they sum. */
static void count_sums(const struct mgpu_graph *g, int *sums, int *values)
{
    *sums = *values = 0;
    for (int n = 0; n < g->node_count; n++)
        if (g->nodes[n]->op == &mgpu_op_all_reduce && strcmp(g->nodes[n]->origin.type, "bucket")) {
            *sums += 1;
            *values += g->nodes[n]->inputs;
        }
}

/* Two losses: no rank has to know the others' for its gradients. */
static void check_losses(void)
{
    struct mgpu_applied applied;
    struct mgpu_plan *plan = mgpu_plan_data(2);
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim dims[] = {mgpu_dim_symbol(MGPU_BATCH, 6), mgpu_dim_const(4)};
    int sums, values;
    g->batch = 6;
    struct mgpu_value *x = mgpu_graph_input(g, "x", MGPU_FLOAT, 2, dims);
    struct mgpu_value *w = mgpu_graph_parameter(g, "w", MGPU_WEIGHT, MGPU_FLOAT, 1, &dims[1]);
    struct mgpu_value *h = mgpu_mul(g, x, w);
    struct mgpu_value *a = mgpu_reduce(g, MGPU_REDUCE_SUM, h, 3, false);
    struct mgpu_value *b = mgpu_reduce(g, MGPU_REDUCE_SUM, mgpu_mul(g, h, h), 3, false);
    mgpu_graph_output(g, "loss", mgpu_add(g, a, b));
    CHECK_OK(mgpu_gradient(g, g->outputs[0], false));
    CHECK_OK(mgpu_plan_apply(g, plan, 0, 1, &applied));
    count_sums(g, &sums, &values);
    CHECK_(sums == 0, "%d sums beside the gradients'", sums);
    mgpu_plan_free(plan);
    mgpu_graph_free(g);
}

/* Running statistics become the mean over the replicas, all in one sum. */
static void check_statistics(void)
{
    struct mgpu_applied applied;
    struct mgpu_plan *plan = mgpu_plan_data(2);
    struct mgpu_task_graph *t = build(plan_norm, 4, "2xcpu");
    struct mgpu_graph *g = plan_graph(plan_norm, 4);
    int sums, values;
    CHECK(t->rest_bytes == 2 * 64 * 4); /* mean and variance of 64 channels */
    CHECK_OK(mgpu_plan_apply(g, plan, 0, 1, &applied));
    count_sums(g, &sums, &values);
    CHECK_(sums == 1 && values == 2, "%d sums of %d values", sums, values);
    mgpu_plan_free(plan);
    mgpu_task_graph_free(t);
    mgpu_graph_free(g);
}

/* ---- Order ----------------------------------------------------------------------------------- */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static const char *group_key(const struct mgpu_task_graph *t, const struct mgpu_task *k)
{
    return k->group < 0 ? t->param[k->param].name : k->key;
}

/* Every task and every edge as text, sorted: what must not depend on the order of nodes. */
static char **texts(const struct mgpu_task_graph *t, int *count)
{
    char **text = calloc((size_t)(t->tasks + t->edges) + 1, sizeof *text), line[512];
    *count = 0;
    for (int i = 0; i < t->tasks; i++) {
        const struct mgpu_task *k = &t->task[i];
        snprintf(line, sizeof line, "task %s group %d phase %d class %d ms %.9g output %lld",
                 group_key(t, k), k->group, k->phase, k->op_class, k->ms[0], (long long)k->output);
        text[(*count)++] = strdup(line);
    }
    for (int i = 0; i < t->edges; i++) {
        const struct mgpu_task *a = &t->task[t->edge[i].from], *b = &t->task[t->edge[i].to];
        snprintf(line, sizeof line, "edge %s %d %d %d to %s %d %d %d bytes %lld", group_key(t, a),
                 a->group, a->phase, a->op_class, group_key(t, b), b->group, b->phase, b->op_class,
                 (long long)t->edge[i].bytes);
        text[(*count)++] = strdup(line);
    }
    qsort(text, (size_t)*count, sizeof *text, by_text);
    return text;
}

static void check_same(const char *a_model, const char *b_model)
{
    struct mgpu_task_graph *a = build(a_model, 8, "2xcpu"), *b = build(b_model, 8, "2xcpu");
    int na, nb;
    char **ta = texts(a, &na), **tb = texts(b, &nb);
    CHECK_(na == nb, "%d and %d lines", na, nb);
    for (int i = 0; i < na && i < nb; i++)
        CHECK_(!strcmp(ta[i], tb[i]), "'%s' and '%s'", ta[i], tb[i]);
    CHECK(a->groups == b->groups && a->params == b->params);
    for (int i = 0; i < a->params && i < b->params; i++) {
        CHECK(!strcmp(a->param[i].name, b->param[i].name));
        CHECK(a->param[i].groups == b->param[i].groups);
        for (int k = 0; k < a->param[i].groups; k++)
            CHECK(a->param[i].group[k] == b->param[i].group[k]);
    }
    for (int i = 0; i < na; i++)
        free(ta[i]);
    for (int i = 0; i < nb; i++)
        free(tb[i]);
    free(ta);
    free(tb);
    mgpu_task_graph_free(a);
    mgpu_task_graph_free(b);
}

static void check_order(void)
{
    static const char turned[] = "ir 9\nopset 17\ninput a float N 64\ninput b float N 64\n"
                                 "init W float 64 64 = 0.01 0.02\n"
                                 "x = MatMul(a, W)\n"
                                 "r = Exp(x)\n"
                                 "t = Mul(r, x)\n"
                                 "q = Tanh(x)\n"
                                 "p = Sigmoid(x)\n"
                                 "s = Mul(p, q)\n"
                                 "u = Add(s, t)\n"
                                 "f = Neg(u)\n"
                                 "y = Mul(f, b)\n"
                                 "output y float N 64\n";
    check_same(plan_two_towers, plan_two_towers_turned);
    check_same(plan_branches, turned);
}

/* The gradient of W, of few samples, is made where it is used: the update takes both factors, of
 * which each replica has 8 rows. */
static void check_products(void)
{
    static const char text[] = "ir 9\nopset 17\ninput a float N 512\n"
                               "init W float 512 1024 = 0.01 0.02\ninit V float 1024 4 = 0.03\n"
                               "x = MatMul(a, W)\nh = Relu(x)\ny = MatMul(h, V)\n"
                               "output y float N 4\n";
    for (int replicas = 1; replicas <= 4; replicas *= 2) {
        struct mgpu_topology *topology;
        struct mgpu_task_graph *t;
        struct mgpu_graph *g = plan_graph(text, 8);
        g->updates_early = true;
        g->step_samples = 8 * replicas;
        CHECK_OK(mgpu_optimize(g, &mgpu_backend_cpu));
        CHECK_OK(mgpu_topology_parse(&topology, "2xcpu"));
        CHECK_OK(mgpu_tasks_build(&t, g, topology, MGPU_RATE_F32, NULL));
        check_shape(t);
        const struct mgpu_shared *w = param(t, "W"), *v = param(t, "V");
        bool few = replicas <= 2;
        CHECK(w->trained && w->product_bytes == (few ? w->bytes : 0));
        CHECK(w->factor_bytes == (few ? 8 * (512 + 1024) * 4 : 0));
        CHECK(w->state_bytes == 2 * w->bytes && w->groups == 1);
        CHECK(v->trained && !v->product_bytes && !v->factor_bytes);
        CHECK(count(t, w->group[0], MGPU_PHASE_BACKWARD) == (few ? 0 : 1));
        CHECK(count(t, w->group[0], MGPU_PHASE_UPDATE) == 1);
        mgpu_task_graph_free(t);
        mgpu_topology_free(topology);
        mgpu_graph_free(g);
    }
}

int main(void)
{
    check_two_towers();
    check_edges();
    check_costs();
    check_set_batch();
    check_cost_again();
    check_profile();
    check_sums();
    check_losses();
    check_statistics();
    check_order();
    check_products();
    return test_end();
}
