/* Whole training steps on generated kernels: in the programs of a case every instruction that has
 * kernels runs them, emulated, on the program's own buffers; the losses are those of the CPU's. */
#include "runtime/facade/facade.h"
#include "tests/emit/emulate.h"
#include "tests/golden/case_options.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

#include <pthread.h>

enum { STEPS = 3 };

/* ---- Instructions with other kernels ----------------------------------------------------------
 */

struct swapped {
    struct mgpu_instruction *in;
    const struct mgpu_kernel *kernel; /* the CPU's, with its state */
    void *state, *workspace;
    struct mgpu_emitted emitted;
    char name[24];
    struct emulated **library;
};

struct swaps {
    int count;
    struct swapped **item;
    struct emulated *library;
};

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER; /* ranks share the emulation */

static int run_swapped(const struct mgpu_launch *l)
{
    struct swapped *s = l->state;
    void *pointers[MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS + 1];
    int n = 0;
    for (int i = 0; i < l->inputs + l->outputs; i++)
        if (s->in->tensor[i].data)
            pointers[n++] = s->in->tensor[i].data;
    if (s->emitted.workspace)
        pointers[n++] = s->workspace;
    pthread_mutex_lock(&one_at_a_time);
    int rc = emulate_run(*s->library, &s->emitted, s->name, pointers, EMULATE_SHUFFLED);
    pthread_mutex_unlock(&one_at_a_time);
    return rc;
}

static const struct mgpu_kernel generated = {.op = "any", .name = "generated", .run = run_swapped};

/* Ranks that share their weights update a part each, which kernels made from nodes know nothing of
 * (on a GPU ranks share none). */
static bool is_cut(const struct mgpu_instruction *in)
{
    const struct mgpu_node *node = in->node;
    for (int i = 0; i < in->inputs + in->outputs; i++) {
        const struct mgpu_value *v = i < in->inputs ? node->input[i] : node->output[i - in->inputs];
        int64_t count = 1;
        for (int k = 0; k < in->tensor[i].rank; k++)
            count *= in->tensor[i].dims[k];
        if (v && in->tensor[i].data && count != mgpu_value_count(v))
            return true;
    }
    return false;
}

static void swap(struct swaps *swaps, struct mgpu_instruction *in, FILE *text, FILE *calls)
{
    const struct mgpu_node *node = in->node;
    bool fits = node->inputs <= MGPU_MAX_INPUTS && mgpu_emit_accepts(node);
    if (in->queue != MGPU_QUEUE_COMPUTE || !fits || is_cut(in))
        return;
    struct swapped *s = mgpu_xcalloc(1, sizeof *s);
    swaps->item = mgpu_grow(swaps->item, (size_t)swaps->count, sizeof(struct swapped *));
    swaps->item[swaps->count++] = s;
    *s = (struct swapped){
        .in = in, .kernel = in->kernel, .state = in->launch.state, .library = &swaps->library};
    snprintf(s->name, sizeof s->name, "n%d", swaps->count);
    mgpu_emit(&s->emitted, node, s->name, false);
    CHECK_OK(mgpu_alloc(&s->workspace, (uint64_t)s->emitted.workspace, "test"));
    fprintf(text, "%s", s->emitted.text);
    emulate_write_calls(calls, &s->emitted, s->name);
    in->kernel = &generated;
    in->launch.state = s;
}

static void swap_all(struct swaps *swaps, struct mgpu_trainer *t)
{
    char *kernels, *calls_text;
    size_t size[2];
    FILE *text = open_memstream(&kernels, &size[0]), *calls = open_memstream(&calls_text, &size[1]);
    *swaps = (struct swaps){0};
    for (int i = 0; i < t->compiled_count; i++)
        for (int r = 0; r < mgpu_team_size(t->team); r++) {
            struct mgpu_program *p = t->compiled[i].program[r];
            for (int k = 0; p && k < p->instructions; k++)
                swap(swaps, &p->instruction[k], text, calls);
        }
    fclose(text);
    fclose(calls);
    CHECK_OK(emulate_open(&swaps->library, kernels, calls_text));
    free(kernels);
    free(calls_text);
}

static void swap_back(struct swaps *swaps)
{
    for (int i = 0; i < swaps->count; i++) {
        struct swapped *s = swaps->item[i];
        s->in->kernel = s->kernel;
        s->in->launch.state = s->state;
        mgpu_emitted_free(&s->emitted);
        mgpu_free(s->workspace);
        free(s);
    }
    free(swaps->item);
    emulate_close(swaps->library);
}

/* ---- Cases ----------------------------------------------------------------------------------- */

/* The losses of the first steps; how many instructions ran generated kernels. */
static int train(const char *model, const struct mgpu_options *o, bool emulated, double *loss)
{
    struct mgpu_trainer *t;
    struct mgpu_step_result s;
    struct swaps swaps = {0};
    CHECK_OK(mgpu_trainer_new(&t, model, o));
    if (!t)
        return 0;
    if (emulated)
        swap_all(&swaps, t);
    for (int i = 0; i < STEPS; i++) {
        CHECK_(mgpu_step(t, &s) == 1, "step %d: %s", i + 1, mgpu_error());
        loss[i] = s.loss;
    }
    int count = swaps.count;
    if (emulated)
        swap_back(&swaps);
    mgpu_trainer_free(t);
    return count;
}

static void check_case(const char *name, const char *devices, int ranks, int least)
{
    static const char *const groups[] = {"inputs", "labels", "forward"};
    struct mgpu_case c = {.arena = mgpu_arena_new(), .folder = "/tmp"};
    struct mgpu_golden_group *const into[] = {&c.inputs, &c.labels, &c.forward};
    struct mgpu_options o;
    double want[STEPS] = {0}, got[STEPS] = {0};
    CHECK_OK(mgpu_golden_open(&c.golden, mgpu_arena_format(c.arena, "tests/cases/%s", name)));
    for (int i = 0; i < 3; i++)
        CHECK_OK(mgpu_golden_read(&c.golden, groups[i], into[i]));
    CHECK_OK(mgpu_case_train_options(&o, &c, devices, ranks, false));
    o.steps = 0;
    o.epochs = STEPS;
    train(c.golden.model, &o, false, want);
    int count = train(c.golden.model, &o, true, got);
    printf("%s on %s: %d instructions on generated kernels\n", name, devices, count);
    CHECK_(count >= least, "%s: only %d instructions have kernels", name, count);
    for (int i = 0; i < STEPS; i++)
        CHECK_NEAR(got[i], want[i], 2e-5);
    for (int i = 0; i < 3; i++)
        mgpu_golden_group_free(into[i]);
    mgpu_golden_close(&c.golden);
    mgpu_arena_free(c.arena);
}

int main(void)
{
    if (!emulate_possible()) {
        fprintf(stderr, "skipped: no C compiler, or the thread sanitizer\n");
        return 77;
    }
    tiny_begin();
    check_case("torch-mlp-ts", "cpu:0", 1, 37);
    check_case("torch-mlp-ts", "cpu:0,cpu:1", 2, 63);
    check_case("torch-siamese-linear-ts", "cpu:0", 1, 30);
    check_case("torch-loss-mix", "cpu:0", 1, 30);
    check_case("torch-tied-ts", "cpu:0", 1, 30);
    check_case("torch-multi-head-outputs", "cpu:0", 1, 30);
    check_case("torch-gnn-ts", "cpu:0", 1, 30);
    check_case("torch-gru-tagger", "cpu:0", 1, 30);
    tiny_end();
    return test_end();
}
