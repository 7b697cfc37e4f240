#include "tests/cpu/kernel_check.h"

#include "runtime/backend.h"
#include "runtime/cpu/blocks.h"
#include "tests/emit/emit_check.h"
#include "tests/ops/op_case.h"
#include "tests/test.h"

#include <omp.h>
#include <pthread.h>

enum { GUARD = 64 }; /* bytes behind every buffer that must stay as they are */

/* OpenMP threads of a run at most, and of each of two ranks: OpenMP's own waiting is not something
 * that the thread sanitizer can follow. */
#ifdef __SANITIZE_THREAD__
enum { MOST_THREADS = 1, RANK_THREADS = 1 };
#else
enum { MOST_THREADS = 3, RANK_THREADS = 2 };
#endif

/* ---- One node on own buffers -------------------------------------------------------------------
 */

static char *guarded(int64_t bytes, int fill)
{
    void *block = NULL;
    if (mgpu_alloc(&block, (uint64_t)bytes + GUARD, "test") < 0)
        abort();
    memset(block, fill, (size_t)bytes);
    memset((char *)block + bytes, 0x5a, GUARD);
    return block;
}

static bool guard_whole(const char *block, int64_t bytes)
{
    for (int i = 0; i < GUARD; i++) {
        if (block[bytes + i] != 0x5a)
            return false;
    }
    return true;
}

struct outputs {
    int count;
    char *data[MGPU_MAX_OUTPUTS]; /* NULL: unwanted */
    int64_t bytes[MGPU_MAX_OUTPUTS];
};

static void outputs_init(struct outputs *o, const struct mgpu_node *node, int fill)
{
    o->count = node->outputs;
    for (int i = 0; i < node->outputs; i++) {
        o->bytes[i] = node->output[i] ? mgpu_value_bytes(node->output[i]) : 0;
        o->data[i] = node->output[i] ? guarded(o->bytes[i], fill) : NULL;
    }
}

static void outputs_free(struct outputs *o)
{
    for (int i = 0; i < o->count; i++)
        mgpu_free(o->data[i]);
}

static bool outputs_equal(const struct outputs *a, const struct outputs *b)
{
    bool equal = true;
    for (int i = 0; i < a->count; i++)
        equal = equal && (!a->data[i] || !memcmp(a->data[i], b->data[i], (size_t)a->bytes[i]));
    return equal;
}

/* Prepares, runs as often as there are outputs, each time on a dirty workspace, and releases. */
static int run_node(const struct mgpu_kernel *kernel, const struct mgpu_node *node, void *const *in,
                    int threads, int runs, struct outputs *out)
{
    struct mgpu_tensor t[MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS];
    struct mgpu_launch l = {.node = node,
                            .inputs = node->inputs,
                            .outputs = node->outputs,
                            .in = t,
                            .out = t + node->inputs,
                            .threads = threads};
    omp_set_num_threads(threads);
    for (int i = 0; i < node->inputs; i++)
        mgpu_tensor_of(&t[i], node->input[i], in[i]);
    MGPU_TRY(kernel->prepare ? kernel->prepare(node, threads, true, &l.state) : 0);
    int64_t bytes = kernel->workspace ? kernel->workspace(node, threads, l.state) : 0;
    int rc = 0;
    char *workspace = l.workspace = guarded(bytes, 0x7f);
    for (int k = 0; k < runs && rc == 0; k++) {
        memset(workspace, k ? 0xff : 0x7f, (size_t)bytes); /* NaNs */
        for (int i = 0; i < node->outputs; i++)
            mgpu_tensor_of(&t[node->inputs + i], node->output[i], out[k].data[i]);
        rc = kernel->run(&l);
    }
    if (!guard_whole(workspace, bytes))
        rc = mgpu_fail(MGPU_EINTERNAL, "writes past its workspace of %lld bytes", (long long)bytes);
    for (int k = 0; k < runs; k++)
        for (int i = 0; i < node->outputs; i++)
            if (out[k].data[i] && !guard_whole(out[k].data[i], out[k].bytes[i]))
                rc = mgpu_fail(MGPU_EINTERNAL, "writes past output %d", i);
    mgpu_free(workspace);
    if (kernel->release)
        kernel->release(l.state);
    return rc;
}

/* ---- Against ref ------------------------------------------------------------------------------
 */

double kernel_norm_error(const struct mgpu_value *v, const void *got, const void *want)
{
    double diff = 0, norm = 0;
    for (int64_t i = 0; i < mgpu_value_count(v); i++) {
        double a = mgpu_get_double(got, v->type, i), b = mgpu_get_double(want, v->type, i);
        if (a == b || (isnan(a) && isnan(b)))
            continue;
        diff += (a - b) * (a - b);
    }
    for (int64_t i = 0; i < mgpu_value_count(v); i++) {
        double b = mgpu_get_double(want, v->type, i);
        norm += isfinite(b) ? b * b : 0;
    }
    return isnan(diff) ? INFINITY : sqrt(diff) / fmax(sqrt(norm), 1e-3);
}

/* A row in float, computed by ref. */
struct judged {
    struct op_case c;
    struct op_numbers n;
    struct mgpu_run run;
};

/* Whether anyone reads the value: an output of the row's node, a gradient that was asked for, or an
 * input of another node. */
static bool matters(const struct judged *j, const struct mgpu_node *node,
                    const struct mgpu_value *value)
{
    const struct mgpu_graph *g = j->c.graph;
    bool read = node == j->c.node;
    for (int i = 0; i < MGPU_MAX_INPUTS; i++)
        read = read || j->c.dx[i] == value;
    for (int k = 0; k < g->node_count; k++)
        for (int i = 0; i < g->nodes[k]->inputs; i++)
            read = read || g->nodes[k]->input[i] == value;
    return read;
}

static void check_node(const char *name, struct judged *j, const struct mgpu_node *node,
                       int threads)
{
    const struct mgpu_kernel *kernel = mgpu_backend_kernel(&mgpu_backend_cpu, node);
    struct outputs out[2];
    void *in[MGPU_MAX_INPUTS];
    for (int i = 0; i < node->inputs; i++)
        in[i] = mgpu_run_data(&j->run, node->input[i]);
    outputs_init(&out[0], node, 0xff);
    outputs_init(&out[1], node, 0x11);
    int rc = run_node(kernel, node, in, threads, 2, out);
    CHECK_(rc == 0, "%s: %s with %d threads: %s", name, node->op->name, threads, mgpu_error());
    for (int i = 0; i < node->outputs && rc == 0; i++) {
        if (!node->output[i] || !matters(j, node, node->output[i]))
            continue;
        double error = kernel_norm_error(node->output[i], out[0].data[i],
                                         mgpu_run_data(&j->run, node->output[i]));
        CHECK_(error <= 1e-5, "%s: %s with %d threads: output %d is off by %.3g", name,
               node->op->name, threads, i, error);
    }
    CHECK_(rc < 0 || outputs_equal(&out[0], &out[1]), "%s: %s with %d threads: runs differ", name,
           node->op->name, threads);
    outputs_free(&out[0]);
    outputs_free(&out[1]);
}

/* ---- In blocks of channels ---------------------------------------------------------------------
 */

/* A node whose operands lie in blocks where the backend wants them so. */
struct blocked {
    struct mgpu_node node;
    struct mgpu_value value[MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS];
    struct mgpu_value *operand[MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS];
};

static bool blocked_init(struct blocked *b, const struct mgpu_node *node)
{
    int block[MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS] = {0};
    int64_t hidden;
    if (!mgpu_backend_cpu.blocks(node, block, &hidden))
        return false;
    b->node = *node;
    b->node.input = b->operand;
    b->node.output = b->operand + node->inputs;
    for (int i = 0; i < node->inputs + node->outputs; i++) {
        struct mgpu_value *v = i < node->inputs ? node->input[i] : node->output[i - node->inputs];
        b->operand[i] = v ? &b->value[i] : NULL;
        if (v)
            b->value[i] = *v;
        b->value[i].block = block[i];
    }
    return true;
}

static void relay(const struct mgpu_value *from, const void *data, const struct mgpu_value *to,
                  void *out)
{
    struct mgpu_tensor t[2];
    mgpu_tensor_of(&t[0], from, (void *)data);
    mgpu_tensor_of(&t[1], to, out);
    if (from->block == to->block)
        memcpy(out, data, (size_t)mgpu_value_bytes(from));
    else
        CHECK_OK(mgpu_ref_reorder->run(&(struct mgpu_launch){.in = &t[0], .out = &t[1]}));
}

/* Output i is ref's to `limit`, and what fills up its last block is zero. */
static void check_blocked_output(const char *name, struct judged *j, const struct blocked *b,
                                 const struct mgpu_node *node, int i, const void *data,
                                 double limit)
{
    const struct mgpu_value *v = b->node.output[i];
    char *plain = guarded(mgpu_value_bytes(node->output[i]), 0xff);
    char *again = guarded(mgpu_value_bytes(v), 0xff);
    relay(v, data, node->output[i], plain);
    relay(node->output[i], plain, v, again);
    double error =
        kernel_norm_error(node->output[i], plain, mgpu_run_data(&j->run, node->output[i]));
    CHECK_(error <= limit, "%s: %s in blocks: output %d is off by %.3g", name, node->op->name, i,
           error);
    CHECK_(!memcmp(again, data, (size_t)mgpu_value_bytes(v)),
           "%s: %s in blocks: output %d is not filled up with zeros", name, node->op->name, i);
    mgpu_free(plain);
    mgpu_free(again);
}

static void run_blocked(const char *name, struct judged *j, const struct blocked *b,
                        const struct mgpu_node *node, const struct mgpu_kernel *kernel,
                        void *const *in, int threads, double limit)
{
    struct outputs out[2];
    outputs_init(&out[0], &b->node, 0xff);
    outputs_init(&out[1], &b->node, 0x11);
    int rc = run_node(kernel, &b->node, in, threads, 2, out);
    CHECK_(rc == 0, "%s: %s in blocks: %s", name, node->op->name, mgpu_error());
    CHECK_(rc < 0 || outputs_equal(&out[0], &out[1]), "%s: %s in blocks: runs differ", name,
           node->op->name);
    for (int i = 0; i < node->outputs && rc == 0; i++)
        if (node->output[i] && matters(j, node, node->output[i]))
            check_blocked_output(name, j, b, node, i, out[0].data[i], limit);
    outputs_free(&out[0]);
    outputs_free(&out[1]);
}

/* Whether the node was one for blocks. */
static bool check_blocked(const char *name, struct judged *j, const struct mgpu_node *node)
{
    struct blocked b = {0};
    void *in[MGPU_MAX_INPUTS];
    if (!blocked_init(&b, node))
        return false;
    for (int i = 0; i < node->inputs; i++) {
        in[i] = node->input[i] ? guarded(mgpu_value_bytes(b.node.input[i]), 0xff) : NULL;
        if (node->input[i])
            relay(node->input[i], mgpu_run_data(&j->run, node->input[i]), b.node.input[i], in[i]);
    }
    const struct mgpu_kernel *exact = mgpu_backend_kernel(&mgpu_backend_cpu, &b.node);
    const struct mgpu_kernel *fastest = mgpu_backend_fastest(&mgpu_backend_cpu, &b.node);
    for (int threads = 1; threads <= MOST_THREADS; threads++) {
        run_blocked(name, j, &b, node, exact, in, threads, 1e-5);
        if (fastest != exact)
            run_blocked(name, j, &b, node, fastest, in, threads, 1e-4);
    }
    for (int i = 0; i < node->inputs; i++)
        mgpu_free(in[i]);
    return true;
}

static bool judged_init(struct judged *j, const struct mgpu_check *check)
{
    int rc = op_case_build(&j->c, check, MGPU_FLOAT, op_case_batch(check));
    CHECK_(rc == 0, "%s: %s", check->name, mgpu_error());
    if (rc < 0)
        return false;
    op_numbers_init(&j->n, check, &j->c);
    mgpu_run_init(&j->run, j->c.graph, &mgpu_backend_ref);
    CHECK_OK(op_numbers_feed(&j->n, &j->run, &j->c));
    CHECK_OK(mgpu_run_all(&j->run));
    return true;
}

static void judged_free(struct judged *j)
{
    mgpu_run_free(&j->run);
    op_numbers_free(&j->n);
    op_case_free(&j->c);
}

static void check_row(const struct mgpu_check *check, bool in_blocks)
{
    struct judged j;
    if (!judged_init(&j, check))
        return;
    for (int k = 0; k < j.c.graph->node_count; k++) {
        const struct mgpu_node *node = j.c.graph->nodes[k];
        bool own = !strncmp(node->op->name, check->op->name, strlen(check->op->name));
        CHECK_(!own || in_blocks ||
                   strcmp(mgpu_backend_kernel(&mgpu_backend_cpu, node)->name, "ref") != 0,
               "%s: %s falls to ref", check->name, node->op->name);
        for (int threads = 1; threads <= MOST_THREADS; threads++)
            check_node(check->name, &j, node, threads);
        bool blocked = check_blocked(check->name, &j, node);
        CHECK_(!in_blocks || node->op != check->op || blocked || !mgpu_cpu_block(),
               "%s: no kernel of %s in blocks", check->name, node->op->name);
    }
    judged_free(&j);
}

int mgpu_kernel_check(const struct mgpu_check *checks)
{
    if (emit_check_wanted())
        return emit_check(checks, false);
    int before = test_failures;
    for (; checks->name; checks++)
        check_row(checks, false);
    return test_failures - before;
}

int mgpu_block_check(const struct mgpu_check *checks)
{
    int before = test_failures;
    for (; checks->name; checks++)
        check_row(checks, true);
    return test_failures - before;
}

/* ---- Two ranks at once -------------------------------------------------------------------------
 */

/* What one thread does: every node of a row, again and again. */
struct worker {
    struct judged *judged;
    const struct outputs *want; /* a node's outputs each, made alone */
    int different, failed;
};

static void fill_inputs(struct judged *j, const struct mgpu_node *node, void **in)
{
    for (int i = 0; i < node->inputs; i++)
        in[i] = mgpu_run_data(&j->run, node->input[i]);
}

static void *work(void *context)
{
    struct worker *w = context;
    for (int k = 0; k < w->judged->c.graph->node_count; k++) {
        const struct mgpu_node *node = w->judged->c.graph->nodes[k];
        struct outputs out[3];
        void *in[MGPU_MAX_INPUTS];
        fill_inputs(w->judged, node, in);
        for (int i = 0; i < 3; i++)
            outputs_init(&out[i], node, 0xff);
        w->failed += run_node(mgpu_backend_kernel(&mgpu_backend_cpu, node), node, in, RANK_THREADS,
                              3, out) < 0;
        for (int i = 0; i < 3; i++) {
            w->different += !outputs_equal(&out[i], &w->want[k]);
            outputs_free(&out[i]);
        }
    }
    return NULL;
}

static void check_together(const struct mgpu_check *check)
{
    struct judged j;
    if (!judged_init(&j, check))
        return;
    int nodes = j.c.graph->node_count;
    struct outputs *want = mgpu_xcalloc((size_t)nodes + 1, sizeof *want);
    for (int k = 0; k < nodes; k++) {
        const struct mgpu_node *node = j.c.graph->nodes[k];
        void *in[MGPU_MAX_INPUTS];
        fill_inputs(&j, node, in);
        outputs_init(&want[k], node, 0xff);
        CHECK_OK(run_node(mgpu_backend_kernel(&mgpu_backend_cpu, node), node, in, RANK_THREADS, 1,
                          &want[k]));
    }
    struct worker workers[2] = {{&j, want, 0, 0}, {&j, want, 0, 0}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        CHECK_(workers[i].failed == 0, "%s: fails beside another thread", check->name);
        CHECK_(workers[i].different == 0, "%s: differs beside another thread", check->name);
    }
    for (int k = 0; k < nodes; k++)
        outputs_free(&want[k]);
    free(want);
    judged_free(&j);
}

int mgpu_kernel_check_together(const struct mgpu_check *checks)
{
    int before = test_failures;
    for (; checks->name && !emit_check_wanted(); checks++)
        check_together(checks);
    return test_failures - before;
}
