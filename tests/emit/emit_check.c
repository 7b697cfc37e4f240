#include "tests/emit/emit_check.h"

#include "runtime/graph/fold.h"
#include "runtime/ops/accumulate.h"
#include "runtime/ref/ref.h"
#include "tests/cpu/kernel_check.h"
#include "tests/emit/emulate.h"
#include "tests/ops/op_case.h"
#include "tests/test.h"

#include <sys/wait.h>
#include <unistd.h>

enum { GUARD = 256 }; /* bytes around every buffer: NaN when read, and must stay as they are */
enum { SKIPPED = 77 };

bool emit_check_wanted(void)
{
    return getenv("MGPU_CHECK") != NULL;
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* A row in one type, computed by ref. */
struct judged {
    const char *name;
    enum mgpu_dtype type;
    struct op_case c;
    struct op_numbers n;
    struct mgpu_run run;
};

/* A node with its kernels. */
struct made {
    struct judged *row;
    const struct mgpu_node *node;
    struct mgpu_emitted emitted;
    char name[24];
};

struct table {
    int rows, nodes;
    struct judged **row;
    struct made *node;
    char *text;
};

/* Rows that hold a type of their own in the attributes cannot be built in another one. */
static struct judged *judge(const struct mgpu_check *check, enum mgpu_dtype type)
{
    struct judged *j = mgpu_xcalloc(1, sizeof *j);
    j->name = check->name;
    j->type = type;
    if (op_case_build(&j->c, check, type, op_case_batch(check)) < 0) {
        free(j);
        return NULL;
    }
    op_numbers_init(&j->n, check, &j->c);
    mgpu_run_init(&j->run, j->c.graph, &mgpu_backend_ref);
    CHECK_OK(op_numbers_feed(&j->n, &j->run, &j->c));
    CHECK_OK(mgpu_run_all(&j->run));
    return j;
}

static void emit_row(struct table *t, struct judged *j, FILE *out)
{
    for (int k = 0; k < j->c.graph->node_count; k++) {
        const struct mgpu_node *node = j->c.graph->nodes[k];
        if (!mgpu_emit_accepts(node))
            continue;
        t->node = mgpu_grow(t->node, (size_t)t->nodes, sizeof *t->node);
        struct made *m = &t->node[t->nodes++];
        *m = (struct made){.row = j, .node = node};
        snprintf(m->name, sizeof m->name, "n%d", t->nodes);
        mgpu_emit(&m->emitted, node, m->name);
        fprintf(out, "\n/* %s: %s of %s */%s", j->name, node->op->name, mgpu_dtype_name(j->type),
                m->emitted.text);
        emulate_write_calls(out, &m->emitted, m->name);
    }
}

static void add_row(struct table *t, const struct mgpu_check *check, enum mgpu_dtype type,
                    FILE *out)
{
    struct judged *j = judge(check, type);
    if (!j)
        return;
    t->row = mgpu_grow(t->row, (size_t)t->rows, sizeof *t->row);
    t->row[t->rows++] = j;
    emit_row(t, j, out);
}

/* Every row in float; of the other types each row gets one, in turn. */
static void table_init(struct table *t, const struct mgpu_check *checks, bool all_types)
{
    static const enum mgpu_dtype others[] = {MGPU_FLOAT16, MGPU_DOUBLE, MGPU_BFLOAT16};
    size_t size;
    *t = (struct table){0};
    FILE *out = open_memstream(&t->text, &size);
    for (int i = 0; checks[i].name; i++) {
        add_row(t, &checks[i], MGPU_FLOAT, out);
        if (all_types)
            add_row(t, &checks[i], others[i % 3], out);
    }
    fclose(out);
}

static void table_free(struct table *t)
{
    for (int i = 0; i < t->nodes; i++)
        mgpu_emitted_free(&t->node[i].emitted);
    for (int i = 0; i < t->rows; i++) {
        mgpu_run_free(&t->row[i]->run);
        op_numbers_free(&t->row[i]->n);
        op_case_free(&t->row[i]->c);
        free(t->row[i]);
    }
    free(t->row);
    free(t->node);
    free(t->text);
}

/* ---- Emulated -------------------------------------------------------------------------------- */

static char *guarded(int64_t bytes, const void *contents)
{
    void *block = NULL;
    if (mgpu_alloc(&block, (uint64_t)bytes + 2 * GUARD, "test") < 0)
        abort();
    memset(block, 0xff, (size_t)bytes + 2 * GUARD);
    if (contents)
        memcpy((char *)block + GUARD, contents, (size_t)bytes);
    return (char *)block + GUARD;
}

static bool guard_whole(const char *data, int64_t bytes)
{
    for (int i = 0; i < GUARD; i++)
        if ((data - GUARD)[i] != (char)0xff || data[bytes + i] != (char)0xff)
            return false;
    return true;
}

static double limit_of(enum mgpu_dtype type)
{
    return type == MGPU_DOUBLE     ? 1e-12
           : type == MGPU_FLOAT16  ? 2e-3
           : type == MGPU_BFLOAT16 ? 1.6e-2
                                   : 1e-5;
}

/* One run of a node on buffers of its own. */
struct buffers {
    int count;
    char *data[MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS + 1];
    int64_t bytes[MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS + 1];
    const struct mgpu_value *value[MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS + 1];
    bool written[MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS + 1];
};

static void add_buffer(struct buffers *b, const struct mgpu_value *value, int64_t bytes,
                       const void *contents, bool written)
{
    b->data[b->count] = guarded(bytes, contents);
    b->bytes[b->count] = bytes;
    b->value[b->count] = value;
    b->written[b->count++] = written;
}

/* `in_place`: outputs that may lie where an input lies do. */
static void buffers_init(struct buffers *b, struct made *m, bool in_place, void **pointers)
{
    const struct mgpu_node *node = m->node;
    struct mgpu_alias pair[MGPU_MAX_OUTPUTS];
    int at[MGPU_MAX_INPUTS], pairs = in_place ? node->op->alias(node, pair) : 0, n = 0;
    *b = (struct buffers){0};
    for (int i = 0; i < node->inputs; i++) {
        at[i] = b->count;
        if (node->input[i])
            add_buffer(b, node->input[i], mgpu_value_bytes(node->input[i]),
                       mgpu_run_data(&m->row->run, node->input[i]), false);
        if (node->input[i])
            pointers[n++] = b->data[at[i]];
    }
    for (int i = 0; i < node->outputs; i++) {
        const struct mgpu_value *v = node->output[i];
        int shared = -1;
        for (int k = 0; k < pairs && shared < 0; k++)
            if (v && pair[k].output == i && node->input[pair[k].input])
                shared = at[pair[k].input];
        if (shared >= 0) {
            b->value[shared] = v;
            b->written[shared] = true;
            pointers[n++] = b->data[shared];
        } else if (v) {
            bool zeroed = node->op == &mgpu_op_accumulate; /* as ref found it */
            add_buffer(b, v, mgpu_value_bytes(v), NULL, true);
            if (zeroed)
                memset(b->data[b->count - 1], 0, (size_t)mgpu_value_bytes(v));
            pointers[n++] = b->data[b->count - 1];
        }
    }
    if (m->emitted.workspace) {
        add_buffer(b, NULL, m->emitted.workspace, NULL, true);
        pointers[n++] = b->data[b->count - 1];
    }
}

static const char *check_buffers(struct made *m, const struct buffers *b)
{
    static char text[128];
    for (int i = 0; i < b->count; i++) {
        const struct mgpu_value *v = b->value[i];
        if (!guard_whole(b->data[i], b->bytes[i]))
            return "writes past an operand";
        if (!v)
            continue;
        const void *want = mgpu_run_data(&m->row->run, v);
        if (!b->written[i] && memcmp(b->data[i], want, (size_t)b->bytes[i]))
            return "writes to an input";
        double error = kernel_norm_error(v, b->data[i], want);
        snprintf(text, sizeof text, "is off by %.3g", error);
        if (b->written[i] && !(error <= fmax(limit_of(v->type), limit_of(m->row->type))))
            return text;
    }
    return NULL;
}

static const char *run_made(struct emulated *e, struct made *m, enum emulate_order order)
{
    struct buffers b;
    void *pointers[MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS + 1];
    buffers_init(&b, m, order != EMULATE_FORWARD, pointers);
    const char *wrong = emulate_run(e, &m->emitted, m->name, pointers, order) < 0
                            ? mgpu_error()
                            : check_buffers(m, &b);
    for (int i = 0; i < b.count; i++)
        mgpu_free(b.data[i] - GUARD);
    return wrong;
}

static int run_table(struct table *t, const char *text, bool quiet)
{
    static const char *const orders[] = {"", " backward", " shuffled"};
    struct emulated *e;
    int failed = 0, rc = emulate_open(&e, text);
    CHECK_(rc == 0, "%s", mgpu_error());
    if (rc < 0)
        return 1;
    for (int i = 0; i < t->nodes; i++)
        for (int order = 0; order < EMULATE_ORDERS; order++) {
            struct made *m = &t->node[i];
            const char *wrong = run_made(e, m, (enum emulate_order)order);
            failed += wrong != NULL;
            if (!quiet)
                CHECK_(!wrong, "%s: %s of %s%s: %s", m->row->name, m->node->op->name,
                       mgpu_dtype_name(m->row->type), orders[order], wrong);
        }
    emulate_close(e);
    return failed;
}

int emit_check(const struct mgpu_check *checks, bool all_types)
{
    struct table t;
    int before = test_failures;
    if (!emulate_possible()) {
        fprintf(stderr, "skipped: no C compiler\n");
        exit(SKIPPED);
    }
    mgpu_fold_set(mgpu_ref_fold);
    table_init(&t, checks, all_types);
    run_table(&t, t.text, false);
    table_free(&t);
    return test_failures - before;
}

/* ---- Damaged text ---------------------------------------------------------------------------- */

static char *replaced(const char *text, const char *from, const char *to)
{
    char *out;
    size_t size;
    FILE *stream = open_memstream(&out, &size);
    for (const char *found; (found = strstr(text, from)); text = found + strlen(from))
        fprintf(stream, "%.*s%s", (int)(found - text), text, to);
    fprintf(stream, "%s", text);
    fclose(stream);
    return out;
}

/* In a process of its own, which may crash. */
static bool found_out(struct table *t, const char *text)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0)
        _exit(run_table(t, text, true) > 0);
    return child > 0 && waitpid(child, &status, 0) == child && status != 0;
}

int emit_check_damaged(const struct mgpu_check *checks, const char *from, const char *to)
{
    struct table t;
    mgpu_fold_set(mgpu_ref_fold);
    table_init(&t, checks, false);
    char *text = replaced(t.text, from, to);
    int found = strcmp(text, t.text) ? found_out(&t, text) : -1;
    free(text);
    table_free(&t);
    return found;
}
