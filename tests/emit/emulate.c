#include "tests/emit/emulate.h"

#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "tests/emit/kept.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

enum { MOST_THREADS = 1024, STACK = 1 << 16 };

struct emulated {
    void *library;
    unsigned *thread, *block, *block_size;
    int *misaligned;
    void (*spoil)(void);
    uint64_t seed;
};

/* ---- Compiling ------------------------------------------------------------------------------- */

static const char *compiler(void)
{
    const char *cc = getenv("CC");
    return cc && *cc ? cc : "cc";
}

/* Not under the thread sanitizer, which cannot follow how emulated threads are switched. */
bool emulate_possible(void)
{
    char command[1024];
#ifdef __SANITIZE_THREAD__
    return false;
#endif
    snprintf(command, sizeof command, "%s --version >/dev/null 2>&1", compiler());
    return system(command) == 0;
}

void emulate_write_calls(FILE *out, const struct mgpu_emitted *emitted, const char *name)
{
    for (int k = 0; k < emitted->launches; k++) {
        fprintf(out, "void call_%s_%d(void **p) { %s_%d(", name, k, name, k);
        for (int i = 0; i < emitted->parameters; i++)
            fprintf(out, "%sp[%d]", i ? ", " : "", i);
        fprintf(out, "); }\n");
    }
}

static const char flags[] = "-O0 -w -fno-strict-aliasing -ffp-contract=off -shared -fPIC -s";

static int compile(const char *folder)
{
    char command[2048];
    snprintf(command, sizeof command, "%s %s -o %s/kernels.so %s/kernels.c -lm", compiler(), flags,
             folder, folder);
    return system(command) == 0
               ? 0
               : mgpu_fail(MGPU_EINTERNAL, "%s/kernels.c does not compile", folder);
}

/* kernels.so in the folder: of one's own, since two that are opened from one file are one. */
static int make(const char *folder, const char *text)
{
    char source[256], library[256];
    snprintf(source, sizeof source, "%s/kernels.c", folder);
    snprintf(library, sizeof library, "%s/kernels.so", folder);
    if (kept_take(library, text))
        return 0;
    if (!kept_write(source, text, strlen(text)))
        return mgpu_fail(MGPU_EIO, "%s cannot be written", source);
    MGPU_TRY(compile(folder));
    kept_keep(text, library);
    return 0;
}

/* ---- Loading --------------------------------------------------------------------------------- */

static int open_library(struct emulated *e, const char *folder)
{
    char path[256];
    snprintf(path, sizeof path, "%s/kernels.so", folder);
    e->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!e->library)
        return mgpu_fail(MGPU_EINTERNAL, "%s", dlerror());
    e->thread = dlsym(e->library, "threadIdx");
    e->block = dlsym(e->library, "blockIdx");
    e->block_size = dlsym(e->library, "blockDim");
    e->misaligned = dlsym(e->library, "misaligned");
    *(void **)&e->spoil = dlsym(e->library, "spoil_block");
    return 0;
}

static void remove_folder(const char *folder)
{
    static const char *const names[] = {"kernels.c", "kernels.so"};
    char path[256];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

int emulate_open(struct emulated **out, const char *text, const char *calls)
{
    char folder[] = "/tmp/mgpu-kernels-XXXXXX";
    struct emulated *e = mgpu_xcalloc(1, sizeof *e);
    struct mgpu_arena *arena = mgpu_arena_new();
    *out = NULL;
    int rc = mkdtemp(folder) ? 0 : mgpu_fail(MGPU_EIO, "no temporary folder");
    if (rc == 0) /* what another compiler or other flags made is not taken for it (kept.h) */
        rc = make(folder, mgpu_arena_format(arena, "/* %s %s */\n%s%s%s", compiler(), flags,
                                            mgpu_emit_prelude(false), text, calls));
    if (rc == 0)
        rc = open_library(e, folder);
    mgpu_arena_free(arena);
    if (rc < 0) { /* the text stays there to be looked at */
        free(e);
        return rc;
    }
    remove_folder(folder);
    *out = e;
    return 0;
}

void emulate_close(struct emulated *e)
{
    if (e)
        dlclose(e->library);
    free(e);
}

/* ---- Orders ---------------------------------------------------------------------------------- */

static void arrange(struct emulated *e, int64_t *place, int64_t count, enum emulate_order order)
{
    for (int64_t i = 0; i < count; i++)
        place[i] = order == EMULATE_BACKWARD ? count - 1 - i : i;
    for (int64_t i = count - 1; i > 0 && order == EMULATE_SHUFFLED; i--) {
        e->seed = e->seed * 6364136223846793005u + 1442695040888963407u;
        int64_t k = (int64_t)((e->seed >> 33) % (uint64_t)(i + 1)), old = place[i];
        place[i] = place[k];
        place[k] = old;
    }
}

/* ---- A block whose threads wait for one another ------------------------------------------------
 */

typedef void (*kernel_call)(void **pointers);

/* Which stack is in use. The address sanitizer must be told: at every jump it would else clear what
 * it knows of all memory between two stacks. */
struct stack {
    const void *bottom;
    size_t size;
    void *kept; /* the sanitizer's, while another is in use */
};

/* A thread is entered by swapcontext and from then on switched by jumps, which ask nothing of the
 * system. */
static struct {
    ucontext_t entry, thread[MOST_THREADS];
    jmp_buf scheduler, here[MOST_THREADS];
    bool entered[MOST_THREADS], finished[MOST_THREADS];
    char *stacks;
    struct stack own, of[MOST_THREADS];
    int now;
    kernel_call call;
    void **pointers;
} together;

/* from NULL: its thread ends. */
static void leave(struct stack *from, const struct stack *to)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(from ? &from->kept : NULL, to->bottom, to->size);
#else
    (void)from, (void)to;
#endif
}

/* before: where the stack that was left is noted, or NULL. */
static void arrive(const struct stack *on, struct stack *before)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(on->kept, before ? &before->bottom : NULL,
                                    before ? &before->size : NULL);
#else
    (void)on, (void)before;
#endif
}

static void wait_for_block(void)
{
    if (!_setjmp(together.here[together.now])) {
        leave(&together.of[together.now], &together.own);
        _longjmp(together.scheduler, 1);
    }
    arrive(&together.of[together.now], &together.own);
}

static void run_thread(void)
{
    arrive(&together.of[together.now], &together.own);
    together.call(together.pointers);
    together.finished[together.now] = true;
    leave(NULL, &together.own);
    _longjmp(together.scheduler, 1);
}

/* Until the thread waits or ends. */
static void resume(int thread)
{
    together.now = thread;
    if (_setjmp(together.scheduler)) {
        arrive(&together.own, NULL);
        return;
    }
    leave(&together.own, &together.of[thread]);
    if (together.entered[thread])
        _longjmp(together.here[thread], 1);
    together.entered[thread] = true;
    swapcontext(&together.entry, &together.thread[thread]);
}

static void start_threads(int threads)
{
    if (!together.stacks)
        together.stacks = mgpu_xcalloc(MOST_THREADS, STACK);
    for (int t = 0; t < threads; t++) {
        ucontext_t *c = &together.thread[t];
        getcontext(c);
        c->uc_stack.ss_sp = together.stacks + (size_t)t * STACK;
        c->uc_stack.ss_size = STACK;
        c->uc_link = NULL;
        makecontext(c, run_thread, 0);
        together.of[t] = (struct stack){.bottom = c->uc_stack.ss_sp, .size = STACK};
        together.entered[t] = together.finished[t] = false;
    }
}

/* Each round takes every thread to where it waits next, or to its end. */
static int run_together(struct emulated *e, const struct mgpu_emit_launch *launch,
                        enum emulate_order order)
{
    int64_t place[MOST_THREADS];
    int finished = 0;
    start_threads(launch->threads);
    while (finished == 0) {
        arrange(e, place, launch->threads, order);
        for (int i = 0; i < launch->threads; i++) {
            *e->thread = (unsigned)place[i];
            resume((int)place[i]);
            finished += together.finished[place[i]];
        }
    }
    return finished == launch->threads
               ? 0
               : mgpu_fail(MGPU_EINTERNAL, "threads wait for others that have ended");
}

/* ---- Launches -------------------------------------------------------------------------------- */

static int run_alone(struct emulated *e, const struct mgpu_emit_launch *launch,
                     enum emulate_order order)
{
    int64_t place[MOST_THREADS];
    arrange(e, place, launch->threads, order);
    for (int i = 0; i < launch->threads; i++) {
        *e->thread = (unsigned)place[i];
        together.call(together.pointers);
    }
    return 0;
}

static int run_launch(struct emulated *e, const struct mgpu_emit_launch *launch,
                      enum emulate_order order)
{
    int64_t *place = mgpu_xcalloc((size_t)launch->blocks, sizeof *place);
    int rc = 0;
    arrange(e, place, launch->blocks, order);
    for (int64_t b = 0; b < launch->blocks && rc == 0; b++) {
        *e->block = (unsigned)place[b];
        *e->block_size = (unsigned)launch->threads;
        e->spoil();
        rc = (launch->together ? run_together : run_alone)(e, launch, order);
    }
    free(place);
    if (rc == 0 && *e->misaligned)
        rc = mgpu_fail(MGPU_EINTERNAL, "a vector lies where a GPU refuses it");
    *e->misaligned = 0;
    return rc;
}

int emulate_launch(struct emulated *e, const struct mgpu_emit_launch *launch, const char *function,
                   void **pointers, enum emulate_order order)
{
    char call[80];
    void (**wait)(void) = dlsym(e->library, "wait_for_block");
    *wait = wait_for_block;
    snprintf(call, sizeof call, "call_%s", function);
    together.pointers = pointers;
    *(void **)&together.call = dlsym(e->library, call);
    if (!together.call)
        return mgpu_fail(MGPU_EINTERNAL, "%s", dlerror());
    return run_launch(e, launch, order);
}

int emulate_run(struct emulated *e, const struct mgpu_emitted *emitted, const char *name,
                void **pointers, enum emulate_order order)
{
    for (int k = 0; k < emitted->launches; k++) {
        char function[64];
        snprintf(function, sizeof function, "%s_%d", name, k);
        MGPU_TRY(emulate_launch(e, &emitted->launch[k], function, pointers, order));
    }
    return 0;
}
