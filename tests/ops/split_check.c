#include "tests/ops/split_check.h"
#include "tests/test.h"

enum { MOST_RANKS = 3 };

/* How the node is cut, and on how many ranks. */
struct cut {
    const struct mgpu_check *check;
    const struct op_case *whole;
    const struct op_numbers *n;
    int ranks;
    struct mgpu_split in[MGPU_MAX_INPUTS];
    bool batch;    /* the ranks work on their parts of the batch, not all on the whole */
    bool backward; /* the gradient nodes run too */
    int64_t first[MOST_RANKS], count[MOST_RANKS]; /* samples of each rank */
};

/* One rank: the row's graph at its batch, and the same after a small plan pass. */
struct member {
    struct op_case c;
    struct mgpu_graph *graph;
    struct mgpu_value **map;   /* by id in c.graph: the value in `graph` */
    struct mgpu_split *states; /* by id in `graph` */
    int state_count;
    struct mgpu_run run;
};

static const struct mgpu_split REPLICATED = {MGPU_SPLIT_REPLICATED, 0, 1};

/* ---- slices --------------------------------------------------------------------------------- */

/* A tensor seen as [before, outer, samples * inner, after] around its split axis. */
struct view {
    int64_t before, outer, inner, after;
};

static struct view view_of(const struct mgpu_value *whole, struct mgpu_split s, int64_t batch)
{
    struct view v = {1, s.outer, 0, 1};
    for (int k = 0; k < s.axis; k++)
        v.before *= whole->dims[k].value;
    for (int k = s.axis + 1; k < whole->rank; k++)
        v.after *= whole->dims[k].value;
    v.inner = whole->dims[s.axis].value / (s.outer * batch);
    return v;
}

/* Copies `count` samples from `first` between the whole tensor and the part that holds them. */
static void move_part(struct view v, int64_t batch, int64_t first, int64_t count, double *whole,
                      double *part, bool to_whole)
{
    int64_t row = v.inner * v.after;
    for (int64_t i = 0; i < v.before * v.outer; i++) {
        double *w = whole + (i * batch + first) * row, *p = part + i * count * row;
        size_t bytes = (size_t)(count * row) * sizeof *p;
        memcpy(to_whole ? w : p, to_whole ? p : w, bytes);
    }
}

/* ---- the plan pass -------------------------------------------------------------------------- */

static struct mgpu_split *state_of(struct member *m, const struct mgpu_value *v)
{
    if (v->id >= m->state_count) {
        int count = m->graph->value_count;
        m->states = mgpu_xrealloc(m->states, (size_t)count, sizeof *m->states);
        for (int i = m->state_count; i < count; i++)
            m->states[i] = REPLICATED;
        m->state_count = count;
    }
    return &m->states[v->id];
}

/* The states of a node's outputs, with inputs made whole where the rule asks for it: bit i of
 * *full says that input i is all-reduced first. */
static enum mgpu_split_answer ask(struct member *m, const struct mgpu_node *node,
                                  struct mgpu_split *out, unsigned *full)
{
    struct mgpu_split in[MGPU_MAX_INPUTS];
    *full = 0;
    for (int i = 0; i < node->inputs; i++)
        in[i] = node->input[i] ? *state_of(m, node->input[i]) : REPLICATED;
    for (;;) {
        int which = 0;
        enum mgpu_split_answer answer = node->op->split(node, in, out, &which);
        if (answer != MGPU_SPLIT_FULL)
            return answer;
        bool reducible = in[which].kind == MGPU_SPLIT_SUM || in[which].kind == MGPU_SPLIT_MEAN;
        if (!reducible)
            return MGPU_SPLIT_MIXES;
        *full |= 1u << which;
        in[which] = REPLICATED;
    }
}

static int copy_node(struct member *m, const struct mgpu_node *old, struct mgpu_value **out)
{
    struct mgpu_value *in[MGPU_MAX_INPUTS];
    for (int i = 0; i < old->inputs; i++)
        in[i] = old->input[i] ? m->map[old->input[i]->id] : NULL;
    return mgpu_graph_node(m->graph, old->op, old->attrs, old->inputs, in, old->outputs, out);
}

/* Gives the node's outputs their states. Nodes of an expansion must be cuttable themselves. */
static int settle(struct member *m, const struct mgpu_node *node)
{
    struct mgpu_split out[MGPU_MAX_OUTPUTS];
    unsigned full;
    if (ask(m, node, out, &full) != MGPU_SPLIT_OK)
        return mgpu_fail(MGPU_EUNSUPPORTED, "%s mixes samples", node->op->name);
    for (int i = 0; i < node->outputs; i++)
        if (node->output[i])
            *state_of(m, node->output[i]) = out[i];
    return 0;
}

/* Puts the node of the row's graph into the planned one, expanded where it mixes samples. */
static int plan_node(struct member *m, const struct mgpu_node *old)
{
    struct mgpu_value *in[MGPU_MAX_INPUTS], *out[MGPU_MAX_OUTPUTS] = {0};
    struct mgpu_split states[MGPU_MAX_OUTPUTS];
    unsigned full;
    struct mgpu_node node = *old;
    node.input = in;
    for (int i = 0; i < old->inputs; i++)
        in[i] = old->input[i] ? m->map[old->input[i]->id] : NULL;
    int first = m->graph->node_count;
    bool mixes = ask(m, &node, states, &full) == MGPU_SPLIT_MIXES;
    if (mixes && !old->op->expand)
        return mgpu_fail(MGPU_EUNSUPPORTED, "%s mixes samples", old->op->name);
    MGPU_TRY(mixes ? old->op->expand(m->graph, &node, out) : copy_node(m, old, out));
    for (int k = first; k < m->graph->node_count; k++)
        MGPU_TRY(settle(m, m->graph->nodes[k]));
    for (int i = 0; i < old->outputs; i++)
        if (old->output[i])
            m->map[old->output[i]->id] = out[i];
    return 0;
}

/* The values without a producer, under the same numbers. */
static void copy_leaves(struct member *m)
{
    for (int i = 0; i < m->c.graph->value_count; i++) {
        const struct mgpu_value *v = m->c.graph->values[i];
        if (v->kind == MGPU_VALUE_INPUT)
            m->map[i] = mgpu_graph_input(m->graph, v->name, v->type, v->rank, v->dims);
        else if (v->kind == MGPU_VALUE_SCALAR)
            m->map[i] = mgpu_graph_scalar(m->graph, v->index, v->name);
        else if (v->kind == MGPU_VALUE_CONSTANT)
            m->map[i] =
                mgpu_graph_constant(m->graph, v->name, v->type, v->rank, v->dims, v->data, v->ints);
    }
}

/* The gradient of an output is spread as the output is; of a sum, every rank has the whole
 * gradient, and of a mean its share of it. */
static struct mgpu_split gradient_state(struct mgpu_split y)
{
    return y.kind == MGPU_SPLIT_AXIS ? y : REPLICATED;
}

/* A constant of the batch's size is made by each rank for its own samples. */
static void spread_constants(const struct cut *cut, struct member *m)
{
    for (int i = 0; cut->batch && i < m->c.graph->value_count; i++) {
        const struct mgpu_value *v = m->c.graph->values[i];
        for (int k = 0; v->kind == MGPU_VALUE_CONSTANT && k < v->rank; k++)
            if (mgpu_dim_has(v->dims[k], MGPU_BATCH))
                *state_of(m, m->map[i]) = (struct mgpu_split){MGPU_SPLIT_AXIS, k, 1};
    }
}

static int plan(const struct cut *cut, struct member *m)
{
    spread_constants(cut, m);
    for (int i = 0; i < cut->check->inputs; i++)
        if (m->c.in[i] && m->c.in[i]->kind == MGPU_VALUE_INPUT)
            *state_of(m, m->map[m->c.in[i]->id]) = cut->in[i];
    MGPU_TRY(plan_node(m, m->c.node));
    for (int i = 0; i < m->c.node->outputs; i++)
        if (m->c.dy[i])
            *state_of(m, m->map[m->c.dy[i]->id]) =
                gradient_state(*state_of(m, m->map[m->c.node->output[i]->id]));
    for (int k = 1; cut->backward && k < m->c.graph->node_count; k++)
        MGPU_TRY(mgpu_prefix(plan_node(m, m->c.graph->nodes[k]), "gradient"));
    return 0;
}

static int member_init(const struct cut *cut, struct member *m, int rank)
{
    *m = (struct member){.graph = mgpu_graph_new()};
    int64_t batch = cut->batch ? cut->count[rank] : cut->n->batch;
    m->graph->float_type = MGPU_DOUBLE;
    m->graph->batch = batch;
    MGPU_TRY(op_case_build(&m->c, cut->check, MGPU_DOUBLE, batch));
    m->map = mgpu_xcalloc((size_t)m->c.graph->value_count, sizeof(struct mgpu_value *));
    copy_leaves(m);
    MGPU_TRY(plan(cut, m));
    mgpu_run_init(&m->run, m->graph, &mgpu_backend_ref);
    double whole = (double)cut->n->batch;
    m->run.scalar[MGPU_SCALAR_BATCH] = m->run.scalar[MGPU_SCALAR_PIECE] = whole;
    m->run.scalar[MGPU_SCALAR_RANK_SHARE] = (double)cut->count[rank] / whole;
    m->run.scalar[MGPU_SCALAR_SAMPLE_BASE] = (double)cut->first[rank];
    return 0;
}

static void member_free(struct member *m)
{
    mgpu_run_free(&m->run);
    op_case_free(&m->c);
    mgpu_graph_free(m->graph);
    free(m->map);
    free(m->states);
}

/* ---- feeding -------------------------------------------------------------------------------- */

static double share(const struct cut *cut, int rank)
{
    return (double)cut->count[rank] / (double)cut->n->batch;
}

/* The rank's term of a sum or mean over the ranks that is `whole`: all but the last are drawn. */
static void draw_term(const struct cut *cut, int rank, bool mean, const double *whole, double *part,
                      int64_t count)
{
    uint64_t seed = 99;
    for (int64_t k = 0; k < count; k++) {
        double rest = whole[k], term = 0;
        for (int r = 0; r <= rank; r++) {
            double weight = mean ? share(cut, r) : 1;
            term = r == cut->ranks - 1 ? rest / weight : op_random(&seed) * whole[k];
            rest -= weight * term;
        }
        for (int r = rank + 1; r < cut->ranks - 1; r++)
            op_random(&seed);
        part[k] = term;
    }
}

static int feed(const struct cut *cut, struct member *m, int rank, const struct mgpu_value *old,
                const struct mgpu_value *whole, double *contents, double factor)
{
    struct mgpu_value *v = m->map[old->id];
    struct mgpu_split s = *state_of(m, v);
    int64_t count = mgpu_value_count(v);
    double *part = mgpu_xcalloc((size_t)count + 1, sizeof *part);
    if (s.kind == MGPU_SPLIT_AXIS)
        move_part(view_of(whole, s, cut->n->batch), cut->n->batch, cut->first[rank],
                  cut->count[rank], contents, part, false);
    else if (s.kind == MGPU_SPLIT_REPLICATED)
        memcpy(part, contents, (size_t)count * sizeof *part);
    else
        draw_term(cut, rank, s.kind == MGPU_SPLIT_MEAN, contents, part, count);
    for (int64_t k = 0; k < count; k++)
        part[k] *= factor;
    int rc = mgpu_run_feed(&m->run, v, part);
    free(part);
    return rc;
}

static int feed_all(const struct cut *cut, struct member *m, int rank)
{
    for (int i = 0; i < cut->check->inputs; i++)
        if (m->c.in[i] && m->c.in[i]->kind == MGPU_VALUE_INPUT)
            MGPU_TRY(feed(cut, m, rank, m->c.in[i], cut->whole->in[i], cut->n->in[i], 1));
    for (int i = 0; cut->backward && i < m->c.node->outputs; i++) {
        if (!m->c.dy[i])
            continue;
        struct mgpu_split y = *state_of(m, m->map[m->c.node->output[i]->id]);
        double factor = y.kind == MGPU_SPLIT_MEAN ? share(cut, rank) : 1;
        MGPU_TRY(feed(cut, m, rank, m->c.dy[i], cut->whole->dy[i], cut->n->dy[i], factor));
    }
    return 0;
}

/* ---- running in step ------------------------------------------------------------------------ */

/* The sum, or the mean by samples, over the ranks of node k's input i. */
static double *reduced(const struct cut *cut, struct member *m, int k, int i)
{
    const struct mgpu_value *v = m[0].graph->nodes[k]->input[i];
    int64_t count = mgpu_value_count(v);
    double *sum = mgpu_xcalloc((size_t)count + 1, sizeof *sum);
    for (int r = 0; r < cut->ranks; r++) {
        const struct mgpu_value *term = m[r].graph->nodes[k]->input[i];
        const double *x = mgpu_run_doubles(&m[r].run, term);
        double weight = state_of(&m[r], term)->kind == MGPU_SPLIT_MEAN ? share(cut, r) : 1;
        for (int64_t j = 0; j < count; j++)
            sum[j] += weight * x[j];
    }
    return sum;
}

static int run_step(const struct cut *cut, struct member *m, int k)
{
    double *whole[MGPU_MAX_INPUTS] = {0};
    struct mgpu_split out[MGPU_MAX_OUTPUTS];
    const struct mgpu_node *first = m[0].graph->nodes[k];
    unsigned full;
    int rc = 0;
    ask(&m[0], first, out, &full);
    for (int i = 0; i < first->inputs; i++)
        if (full >> i & 1)
            whole[i] = reduced(cut, m, k, i);
    for (int r = 0; r < cut->ranks && rc == 0; r++) {
        const struct mgpu_node *node = m[r].graph->nodes[k];
        const void *in[MGPU_MAX_INPUTS];
        void *to[MGPU_MAX_OUTPUTS];
        for (int i = 0; i < node->inputs; i++)
            in[i] = whole[i] ? whole[i] : mgpu_run_data(&m[r].run, node->input[i]);
        for (int i = 0; i < node->outputs; i++)
            to[i] = mgpu_run_data(&m[r].run, node->output[i]);
        rc = mgpu_backend_run(&mgpu_backend_ref, node, in, to);
    }
    for (int i = 0; i < first->inputs; i++)
        free(whole[i]);
    return rc;
}

/* ---- comparing ------------------------------------------------------------------------------ */

/* What the ranks' parts of a value make together. */
static void join(const struct cut *cut, struct member *m, const struct mgpu_value *const *old,
                 const struct mgpu_value *whole, double *joined)
{
    int64_t count = mgpu_value_count(whole);
    for (int r = 0; r < cut->ranks; r++) {
        struct mgpu_value *v = m[r].map[old[r]->id];
        struct mgpu_split s = *state_of(&m[r], v);
        double *part = (double *)mgpu_run_doubles(&m[r].run, v);
        double weight = s.kind == MGPU_SPLIT_MEAN ? share(cut, r) : 1;
        if (s.kind == MGPU_SPLIT_AXIS)
            move_part(view_of(whole, s, cut->n->batch), cut->n->batch, cut->first[r], cut->count[r],
                      joined, part, true);
        else if (s.kind == MGPU_SPLIT_REPLICATED)
            memcpy(joined, part, (size_t)count * sizeof *part);
        else
            for (int64_t k = 0; k < count; k++)
                joined[k] += weight * part[k];
    }
}

/* A value that every rank should have: sizes that do not fit the state are its first fault. */
static bool fits(const struct cut *cut, struct member *m, int r, const struct mgpu_value *old,
                 const struct mgpu_value *whole)
{
    struct mgpu_value *v = m->map[old->id];
    struct mgpu_split s = *state_of(m, v);
    if (s.kind != MGPU_SPLIT_AXIS)
        return mgpu_value_count(v) == mgpu_value_count(whole);
    if (s.axis >= whole->rank || s.outer < 1 ||
        whole->dims[s.axis].value % (s.outer * cut->n->batch))
        return false;
    struct view w = view_of(whole, s, cut->n->batch);
    return mgpu_value_count(v) == w.before * w.outer * cut->count[r] * w.inner * w.after;
}

static void compare(const struct cut *cut, struct member *m, const struct mgpu_value *const *old,
                    const struct mgpu_value *whole, struct mgpu_run *judge, const char *which,
                    int i)
{
    static const char *const states[] = {"replicated", "split", "a sum", "a mean"};
    int64_t count = mgpu_value_count(whole);
    const double *want = mgpu_run_doubles(judge, whole);
    const char *state = states[state_of(m, m->map[old[0]->id])->kind];
    bool all_fit = true;
    for (int r = 0; r < cut->ranks; r++)
        all_fit = all_fit && fits(cut, &m[r], r, old[r], whole);
    CHECK_(all_fit, "%s: %d ranks: %s %d (%s) has the wrong size", cut->check->name, cut->ranks,
           which, i, state);
    if (!all_fit)
        return;
    double *joined = mgpu_xcalloc((size_t)count + 1, sizeof *joined);
    join(cut, m, old, whole, joined);
    double error = op_distance(joined, want, count);
    CHECK_(error <= 1e-12 * fmax(1, op_largest(want, count)),
           "%s: %d ranks: %s %d (%s) is off by %.3g", cut->check->name, cut->ranks, which, i, state,
           error);
    free(joined);
}

static void compare_all(const struct cut *cut, struct member *m, struct mgpu_run *judge)
{
    const struct mgpu_value *old[MOST_RANKS];
    for (int i = 0; i < cut->whole->node->outputs; i++) {
        for (int r = 0; r < cut->ranks; r++)
            old[r] = m[r].c.node->output[i];
        compare(cut, m, old, cut->whole->node->output[i], judge, "output", i);
    }
    for (int i = 0; cut->backward && i < cut->check->inputs; i++) {
        if (!cut->whole->dx[i])
            continue;
        bool all = true;
        for (int r = 0; r < cut->ranks; r++)
            all = (old[r] = m[r].c.dx[i]) && all;
        CHECK_(all, "%s: %d ranks: no gradient of input %d", cut->check->name, cut->ranks, i);
        if (all)
            compare(cut, m, old, cut->whole->dx[i], judge, "gradient of input", i);
    }
}

static int run_ranks(const struct cut *cut, struct member *m)
{
    for (int r = 0; r < cut->ranks; r++)
        MGPU_TRY(feed_all(cut, &m[r], r));
    for (int k = 0; k < m[0].graph->node_count; k++)
        MGPU_TRY(run_step(cut, m, k));
    return 0;
}

/* 0 when the node could be cut this way (and was compared), else why not. */
static int try_cut(struct cut *cut, struct mgpu_run *judge)
{
    struct member m[MOST_RANKS] = {0};
    int rc = 0;
    for (int r = 0; r < cut->ranks; r++) {
        cut->first[r] = cut->n->batch * r / cut->ranks;
        cut->count[r] = cut->n->batch * (r + 1) / cut->ranks - cut->first[r];
    }
    for (int r = 0; r < cut->ranks && rc == 0; r++)
        rc = member_init(cut, &m[r], r);
    if (rc == 0) {
        rc = run_ranks(cut, m);
        CHECK_(rc == 0, "%s: %d ranks: %s", cut->check->name, cut->ranks, mgpu_error());
        if (rc == 0)
            compare_all(cut, m, judge);
        rc = 0;
    }
    for (int r = 0; r < cut->ranks; r++)
        member_free(&m[r]);
    return rc;
}

/* ---- which cuts are tried ------------------------------------------------------------------- */

static struct cut begin(const struct mgpu_check *check, const struct op_case *whole,
                        const struct op_numbers *n, int ranks, bool batch)
{
    struct cut cut = {check, whole, n, ranks, .batch = batch};
    for (int i = 0; i < MGPU_MAX_INPUTS; i++) {
        const struct mgpu_check_input *in = &check->input[i];
        bool samples = batch && i < check->inputs && in->rank > 0 && in->batch_axis >= 0;
        cut.in[i] = !samples ? REPLICATED
                             : (struct mgpu_split){MGPU_SPLIT_AXIS, in->batch_axis,
                                                   in->outer ? in->outer : 1};
    }
    return cut;
}

static void cut_batch(const struct mgpu_check *check, const struct op_case *whole,
                      const struct op_numbers *n, struct mgpu_run *judge)
{
    for (int ranks = 1; ranks <= MOST_RANKS && ranks <= n->batch; ranks++) {
        struct cut cut = begin(check, whole, n, ranks, true);
        cut.backward = whole->has_gradient;
        int rc = try_cut(&cut, judge);
        if (check->mixes)
            CHECK_(rc == MGPU_EUNSUPPORTED, "%s: mixes samples, but can be cut", check->name);
        else
            CHECK_(rc == 0, "%s: %d ranks: %s", check->name, ranks, mgpu_error());
        if (rc < 0)
            return;
    }
}

/* Each floating input in turn as a sum or a mean over two ranks, the others whole or split. A rule
 * that says that it mixes or needs it whole is believed. */
static void cut_terms(const struct mgpu_check *check, const struct op_case *whole,
                      const struct op_numbers *n, struct mgpu_run *judge)
{
    for (int i = 0; i < check->inputs; i++) {
        const struct mgpu_check_input *in = &check->input[i];
        bool samples = in->rank > 0 && in->batch_axis >= 0;
        if (!op_case_wanted(check, i))
            continue;
        for (int batch = check->batch > 0; batch < (samples ? 1 : 2); batch++)
            for (int mean = 0; mean < 2; mean++) {
                struct cut cut = begin(check, whole, n, n->batch > 1 ? 2 : 1, batch);
                cut.in[i].kind = mean ? MGPU_SPLIT_MEAN : MGPU_SPLIT_SUM;
                try_cut(&cut, judge);
            }
    }
}

int split_check(const struct mgpu_check *check, const struct op_case *whole,
                const struct op_numbers *n, struct mgpu_run *judge)
{
    int before = test_failures;
    if (op_case_has_batch(check))
        cut_batch(check, whole, n, judge);
    cut_terms(check, whole, n, judge);
    return test_failures - before;
}
