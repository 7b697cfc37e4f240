/* cuDNN's plans and cuBLASLt's descriptors for every node that the cases' training steps give to
 * NVIDIA's libraries, made for GPUs that need not be here: how many there are, and by name those
 * that a library accepts but has no engine for, must be as plans.txt says (--write writes it).
 *
 *     build/test_cuda_plans [--write] [FOLDER OF CASES]
 */
#include "runtime/base/memory.h"
#include "runtime/compile/program.h"
#include "runtime/compile/rounded.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/library.h"
#include "runtime/cuda/library_kernels.h"
#include "runtime/facade/facade.h"
#include "runtime/ops/conv.h"
#include "runtime/ops/matmul.h"
#include "tests/cuda/double.h"
#include "tests/golden/case_options.h"
#include "tests/test.h"

#include <dirent.h>
#include <unistd.h>

enum { TEXT = 1 << 16, SKIPPED = 77 };

static const char *const gpus[] = {"a100", "h100", "h200"};

static const struct precision {
    const char *name;
    bool tf32;
} precisions[] = {{"f32", false}, {"tf32", true}, {"bf16", false}, {"f16", false}};

enum { PRECISIONS = sizeof precisions / sizeof *precisions };

static const char *const operators[] = {"conv",
                                        "conv, relu",
                                        "conv_grad_input",
                                        "conv_grad_weight",
                                        "average_pool",
                                        "average_pool_grad",
                                        "batch_norm",
                                        "batch_norm_grad",
                                        "group_norm",
                                        "group_norm_grad",
                                        "matmul",
                                        "matmul, bias",
                                        "matmul, bias, relu",
                                        "matmul_sums",
                                        "matmul_gelu",
                                        "matmul_gelu_grad",
                                        "attention",
                                        "attention_grad",
                                        "rnn",
                                        "rnn_grad",
                                        NULL};

enum { OPERATORS = sizeof operators / sizeof *operators };

/* ---- Counting ----------------------------------------------------------------------------------
 */

struct tally {
    struct mgpu_library *library;
    const struct precision *precision;
    int accepted[OPERATORS], planned[OPERATORS], refused[OPERATORS];
    char *refusals; /* lines */
    size_t size;
    FILE *out;
};

/* With what compilation puts behind it. */
static const char *name_of(const struct mgpu_node *node)
{
    const struct mgpu_conv_attrs *conv = node->attrs;
    const struct mgpu_matmul_attrs *matmul = node->attrs;
    if (node->op == &mgpu_op_conv && conv->relu)
        return "conv, relu";
    if (node->op == &mgpu_op_matmul && node->inputs > 2)
        return matmul->relu ? "matmul, bias, relu" : "matmul, bias";
    return node->op->name;
}

static int operator_of(const struct mgpu_node *node)
{
    for (int i = 0; operators[i]; i++)
        if (!strcmp(operators[i], name_of(node)))
            return i;
    return -1;
}

static void count_node(struct tally *t, const struct mgpu_graph *g, const char *name,
                       const struct mgpu_node *node)
{
    struct mgpu_library_call *call;
    int op = operator_of(node);
    char text[MGPU_VALUE_TEXT];
    if (op < 0)
        return;
    if (!mgpu_library_accepts(t->library, node)) {
        t->refused[op]++;
        return;
    }
    t->accepted[op]++;
    if (mgpu_library_prepare(&call, t->library, node) == 0)
        t->planned[op]++;
    else
        fprintf(t->out, "%s: %s of %s: %s\n", name, node->op->name,
                mgpu_value_text(text, g, node->input[0]), mgpu_error());
    mgpu_library_release(call);
}

/* The training graph of a case as such a GPU runs it: it is the libraries that say what they run
 * and where images lie. */
static int build(struct mgpu_graph **g, const struct tally *tally, struct mgpu_trainer *t,
                 int64_t batch)
{
    t->graphs_for = MGPU_FOR_GPUS;
    MGPU_TRY(mgpu_build_typed(g, t, MGPU_MODE_TRAIN, batch, NULL));
    if (t->half)
        MGPU_TRY(mgpu_store_rounded(*g, t->half, true, NULL));
    mgpu_library_enter(tally->library);
    int rc = mgpu_optimize(*g, &mgpu_backend_cuda);
    mgpu_library_enter(NULL);
    return rc;
}

static void count_graph(struct tally *tally, const char *name, const struct mgpu_golden *golden,
                        struct mgpu_options *o)
{
    struct mgpu_trainer *t = NULL;
    struct mgpu_graph *g = NULL;
    o->precision = tally->precision->name;
    int rc = mgpu_trainer_planning(&t, golden->model, o);
    if (rc == 0)
        rc = build(&g, tally, t, o->batch > 0 ? o->batch : 4);
    if (rc < 0) /* what its data alone say */
        fprintf(tally->out, "%s: no graph without data\n", name);
    for (int i = 0; rc == 0 && i < g->node_count; i++)
        count_node(tally, g, name, g->nodes[i]);
    mgpu_graph_free(g);
    mgpu_trainer_free(t);
}

static void each_case(struct tally *tallies, int count, const char *root, const char *name)
{
    static const char *const groups[] = {"inputs", "labels", "forward"};
    struct mgpu_case c = {.arena = mgpu_arena_new(), .folder = "/tmp"};
    struct mgpu_golden_group *const into[] = {&c.inputs, &c.labels, &c.forward};
    struct mgpu_options o;
    CHECK_OK(mgpu_golden_open(&c.golden, mgpu_arena_format(c.arena, "%s/%s", root, name)));
    for (int i = 0; i < 3; i++)
        CHECK_OK(mgpu_golden_read(&c.golden, groups[i], into[i]));
    CHECK_OK(mgpu_case_train_options(&o, &c, "cpu:0", 1, false));
    for (int k = 0; k < count; k++)
        count_graph(&tallies[k], name, &c.golden, &o);
    for (int i = 0; i < 3; i++)
        mgpu_golden_group_free(into[i]);
    mgpu_golden_close(&c.golden);
    mgpu_arena_free(c.arena);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void each_folder(struct tally *tallies, int count, const char *root)
{
    char **names = NULL, path[4096];
    int n = 0;
    DIR *folder = opendir(root);
    for (struct dirent *e; folder && (e = readdir(folder));) {
        snprintf(path, sizeof path, "%s/%s/case.json", root, e->d_name);
        if (access(path, R_OK) < 0)
            continue;
        names = mgpu_grow(names, (size_t)n, sizeof *names);
        names[n++] = mgpu_xstrdup(e->d_name);
    }
    if (folder)
        closedir(folder);
    qsort(names, (size_t)n, sizeof *names, by_name);
    for (int i = 0; i < n; i++) {
        each_case(tallies, count, root, names[i]);
        free(names[i]);
    }
    free(names);
}

/* ---- The list ----------------------------------------------------------------------------------
 */

static char *read_text(const char *path)
{
    char *text = mgpu_xcalloc(TEXT, 1);
    FILE *file = fopen(path, "r");
    CHECK_(file && fread(text, 1, TEXT - 1, file) > 0, "cannot read %s", path);
    if (file)
        fclose(file);
    return text;
}

static void open_library(struct tally *t, const char *gpu, const struct precision *p)
{
    char path[256];
    snprintf(path, sizeof path, "tests/cuda/gpus/%s.json", gpu);
    char *properties = read_text(path);
    struct mgpu_library_options o = {.properties = properties, .tf32 = p->tf32};
    int rc = mgpu_library_open(&t->library, &o);
    free(properties);
    if (rc < 0) {
        fprintf(stderr, "skipped: %s\n", mgpu_error());
        exit(SKIPPED);
    }
    t->precision = p;
    t->out = open_memstream(&t->refusals, &t->size);
}

static void write_tally(FILE *out, struct tally *t, const char *gpu)
{
    fclose(t->out);
    fprintf(out, "%s %s\n", gpu, t->precision->name);
    for (int i = 0; operators[i]; i++)
        if (t->accepted[i] + t->refused[i])
            fprintf(out, "    %s: %d of %d planned, %d left to other kernels\n", operators[i],
                    t->planned[i], t->accepted[i], t->refused[i]);
    fputs(t->refusals, out);
    free(t->refusals);
    mgpu_library_close(t->library);
}

static char *list(const char *root)
{
    enum { GPUS = sizeof gpus / sizeof *gpus };
    static struct tally tallies[GPUS * PRECISIONS];
    char *text;
    size_t size;
    for (int k = 0; k < GPUS * PRECISIONS; k++)
        open_library(&tallies[k], gpus[k / PRECISIONS], &precisions[k % PRECISIONS]);
    each_folder(tallies, GPUS * PRECISIONS, root);
    FILE *out = open_memstream(&text, &size);
    for (int k = 0; k < GPUS * PRECISIONS; k++)
        write_tally(out, &tallies[k], gpus[k / PRECISIONS]);
    fclose(out);
    return text;
}

int main(int argc, char **argv)
{
    static const char expected[] = "tests/cuda/plans.txt";
    mgpu_gpu_backend_begin();
    bool write = argc > 1 && !strcmp(argv[1], "--write");
    if (argc > 1 + write) /* then plans that cuDNN compiles are, too: minutes */
        CHECK(double_cudnn_driver());
    char *text = list(argc > 1 + write ? argv[1 + write] : "tests/cases");
    if (argc > 1 + write) {
        fputs(text, stdout);
    } else if (write) {
        FILE *file = fopen(expected, "w");
        fputs(text, file);
        fclose(file);
    } else {
        char *want = read_text(expected);
        CHECK_(!strcmp(text, want), "not as %s says:\n%s", expected, text);
        free(want);
    }
    free(text);
    return test_end();
}
