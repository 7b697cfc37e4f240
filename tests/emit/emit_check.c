#include "tests/emit/emit_check.h"

#include "runtime/cuda/compile.h"
#include "runtime/graph/fold.h"
#include "runtime/ops/accumulate.h"
#include "runtime/ref/ref.h"
#include "tests/cpu/kernel_check.h"
#include "tests/emit/emulate.h"
#include "tests/emit/forms.h"
#include "tests/emit/lay.h"
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
    bool last; /* its images lie channels-last */
};

struct table {
    int rows, nodes;
    struct judged **row;
    struct made *node;
    char *text;  /* all kernels */
    char *calls; /* what emulating needs behind them */
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

static void emit_node(struct table *t, struct judged *j, const struct mgpu_node *node, bool last,
                      FILE *text, FILE *calls)
{
    t->node = mgpu_grow(t->node, (size_t)t->nodes, sizeof *t->node);
    struct made *m = &t->node[t->nodes++];
    *m = (struct made){.row = j, .node = node, .last = last};
    snprintf(m->name, sizeof m->name, "n%d", t->nodes);
    mgpu_emit(&m->emitted, node, m->name, false);
    fprintf(text, "\n/* %s: %s of %s */%s", j->name, node->op->name, mgpu_dtype_name(j->type),
            m->emitted.text);
    emulate_write_calls(calls, &m->emitted, m->name);
}

/* The node with its images channels-last; NULL: there are no kernels for that. */
static const struct mgpu_node *with_last(struct mgpu_graph *g, const struct mgpu_node *node)
{
    int block[MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS], count = node->inputs + node->outputs;
    if (!mgpu_emit_channels_last(node, block))
        return NULL;
    struct mgpu_node *to = mgpu_arena_copy(g->arena, node, sizeof *node);
    to->input = MGPU_NEW_ARRAY(g->arena, struct mgpu_value *, count);
    to->output = to->input + node->inputs;
    for (int i = 0; i < count; i++) {
        const struct mgpu_value *v =
            i < node->inputs ? node->input[i] : node->output[i - node->inputs];
        to->input[i] = v ? mgpu_arena_copy(g->arena, v, sizeof *v) : NULL;
        if (v)
            to->input[i]->block = block[i];
    }
    return to;
}

static void emit_row(struct table *t, struct judged *j, FILE *text, FILE *calls)
{
    for (int k = 0; k < j->c.graph->node_count; k++) {
        const struct mgpu_node *node = j->c.graph->nodes[k], *last;
        if (!mgpu_emit_accepts(node))
            continue;
        emit_node(t, j, node, false, text, calls);
        last = with_last(j->c.graph, node);
        if (last)
            emit_node(t, j, last, true, text, calls);
    }
}

static void add_row(struct table *t, const struct mgpu_check *check, enum mgpu_dtype type,
                    FILE *text, FILE *calls)
{
    struct judged *j = judge(check, type);
    if (!j)
        return;
    t->row = mgpu_grow(t->row, (size_t)t->rows, sizeof *t->row);
    t->row[t->rows++] = j;
    emit_row(t, j, text, calls);
}

/* Every row in float; of the other types each row gets one, in turn. Compilers get fewer: half of
 * the rows in float, the others in another type. */
static void table_init(struct table *t, const struct mgpu_check *checks, bool all_types, bool few)
{
    static const enum mgpu_dtype others[] = {MGPU_FLOAT16, MGPU_DOUBLE, MGPU_BFLOAT16};
    size_t size[2];
    *t = (struct table){0};
    FILE *text = open_memstream(&t->text, &size[0]), *calls = open_memstream(&t->calls, &size[1]);
    for (int i = 0; checks[i].name; i++) {
        if (!all_types || !few || i % 2 == 0)
            add_row(t, &checks[i], MGPU_FLOAT, text, calls);
        if (all_types && (!few || i % 2 == 1))
            add_row(t, &checks[i], others[i / (1 + few) % 3], text, calls);
    }
    fclose(text);
    fclose(calls);
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
    free(t->calls);
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

/* The contents of a plain [N,C,S...] as v lies. */
static void *laid(const struct mgpu_value *v, const void *plain)
{
    void *to = mgpu_xcalloc((size_t)mgpu_value_bytes(v) + 1, 1);
    lay_channels(v, to, plain, true);
    return to;
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
        if (!node->input[i])
            continue;
        void *contents = laid(node->input[i], mgpu_run_data(&m->row->run, node->input[i]));
        add_buffer(b, node->input[i], mgpu_value_bytes(node->input[i]), contents, false);
        free(contents);
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
        void *want = laid(v, mgpu_run_data(&m->row->run, v));
        bool same = !memcmp(b->data[i], want, (size_t)b->bytes[i]);
        double error = kernel_norm_error(v, b->data[i], want);
        free(want);
        if (!b->written[i] && !same)
            return "writes to an input";
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
    int failed = 0, rc = emulate_open(&e, text, t->calls);
    CHECK_(rc == 0, "%s", mgpu_error());
    if (rc < 0)
        return 1;
    for (int i = 0; i < t->nodes; i++)
        for (int order = 0; order < EMULATE_ORDERS; order++) {
            struct made *m = &t->node[i];
            const char *wrong = run_made(e, m, (enum emulate_order)order);
            failed += wrong != NULL;
            if (!quiet)
                CHECK_(!wrong, "%s: %s of %s%s%s: %s", m->row->name, m->node->op->name,
                       mgpu_dtype_name(m->row->type), m->last ? " channels-last" : "",
                       orders[order], wrong);
        }
    emulate_close(e);
    return failed;
}

static void skip(const char *why)
{
    fprintf(stderr, "skipped: %s\n", why);
    exit(SKIPPED);
}

/* ---- Compiled for GPUs ----------------------------------------------------------------------- */

struct function {
    const struct made *made;
    char name[40];
    char *text;
};

/* Kernels whose forms this program has not compiled yet. */
struct functions {
    int count;
    struct function *function;
};

static void add_function(struct functions *f, const struct made *m, const char *text, size_t size)
{
    static struct kernel_forms forms;
    struct function g = {.made = m, .text = mgpu_xstrdup(text)};
    g.text[size] = 0;
    const char *name = strchr(g.text, '(') + 1;
    snprintf(g.name, sizeof g.name, "%.*s", (int)strcspn(name, ")"), name);
    if (!kernel_form_is_new(&forms, g.text, false)) {
        free(g.text);
        return;
    }
    f->function = mgpu_grow(f->function, (size_t)f->count, sizeof *f->function);
    f->function[f->count++] = g;
}

static void list_functions(struct functions *f, const struct table *t)
{
    *f = (struct functions){0};
    for (int i = 0; i < t->nodes; i++)
        for (const char *at = strstr(t->node[i].emitted.text, "KERNEL("); at;) {
            const char *next = strstr(at + 1, "KERNEL(");
            add_function(f, &t->node[i], at, next ? (size_t)(next - at) : strlen(at));
            at = next;
        }
}

static char *text_of_functions(const struct functions *f)
{
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    for (int i = 0; i < f->count; i++)
        fprintf(out, "%s\n", f->function[i].text);
    fclose(out);
    return text;
}

/* No kernel may keep values in memory for want of registers. */
static void check_uses(const struct functions *f, const struct mgpu_cubin *cubin, int sm)
{
    struct mgpu_kernel_use use, most = {0};
    for (int i = 0; i < f->count; i++) {
        const struct made *m = f->function[i].made;
        CHECK_(mgpu_cubin_use(cubin, f->function[i].name, &use) == 0,
               "the compiler says nothing of %s", f->function[i].name);
        CHECK_(use.spilled == 0, "%s: %s of %s for sm_%d spills %d bytes", m->row->name,
               m->node->op->name, mgpu_dtype_name(m->row->type), sm, use.spilled);
        most.registers = use.registers > most.registers ? use.registers : most.registers;
        most.shared = use.shared > most.shared ? use.shared : most.shared;
    }
    printf("sm_%d: %d kernels, at most %d registers, %d bytes of shared memory\n", sm, f->count,
           most.registers, most.shared);
}

static void compile_for(const struct functions *f, const char *text, int sm)
{
    struct mgpu_cubin cubin;
    int rc = mgpu_cuda_compile(&cubin, text, sm);
    if (rc == MGPU_EDEVICE)
        skip(mgpu_error());
    CHECK_(rc == 0, "sm_%d: %s", sm, mgpu_error());
    if (rc == 0)
        check_uses(f, &cubin, sm);
    mgpu_cubin_free(&cubin);
}

static void compile_table(const struct table *t)
{
    static const int targets[] = {75, 80, 90, 100};
    struct functions f;
    list_functions(&f, t);
    char *text = text_of_functions(&f);
    for (size_t i = 0; i < sizeof targets / sizeof *targets && f.count; i++)
        compile_for(&f, text, targets[i]);
    free(text);
    for (int i = 0; i < f.count; i++)
        free(f.function[i].text);
    free(f.function);
}

int emit_check(const struct mgpu_check *checks, bool all_types)
{
    const char *mode = getenv("MGPU_CHECK");
    bool nvrtc = mode && !strcmp(mode, "nvrtc");
    struct table t;
    int before = test_failures;
    mgpu_fold_set(mgpu_ref_fold);
    table_init(&t, checks, all_types, nvrtc);
    if (nvrtc)
        compile_table(&t);
    else if (emulate_possible())
        run_table(&t, t.text, false);
    else
        skip("no C compiler, or the thread sanitizer");
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
    if (child == 0) {
        close(STDERR_FILENO); /* a crash has nothing to say */
        _exit(run_table(t, text, true) > 0);
    }
    return child > 0 && waitpid(child, &status, 0) == child && status != 0;
}

int emit_check_damaged(const struct mgpu_check *checks, const char *from, const char *to)
{
    struct table t;
    mgpu_fold_set(mgpu_ref_fold);
    table_init(&t, checks, false, false);
    char *text = replaced(t.text, from, to);
    int found = strcmp(text, t.text) ? found_out(&t, text) : -1;
    free(text);
    table_free(&t);
    return found;
}
