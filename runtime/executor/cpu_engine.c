#include "runtime/executor/executor.h"

#include "runtime/base/status.h"

#include <stdlib.h>

struct cpu_engine {
    struct mgpu_engine engine;
    struct mgpu_comm *const *comm;
    void *buffer[MGPU_BUFFERS];
    bool borrowed[MGPU_BUFFERS];
};

static int enter(struct mgpu_engine *engine)
{
    (void)engine;
    return 0;
}

static int allocate(struct mgpu_engine *engine, const int64_t bytes[MGPU_BUFFERS],
                    void *host[MGPU_BUFFERS])
{
    static const char *const names[MGPU_BUFFERS] = {
        "weights",         "gradients",    "frozen weights and statistics",
        "optimizer state", "step scalars", "a batch of inputs",
        "results",         "activations",  "constants"};
    struct cpu_engine *e = (struct cpu_engine *)engine;
    for (int b = 0; b < MGPU_BUFFER_CONSTANTS; b++) {
        mgpu_free(e->buffer[b]);
        e->buffer[b] = NULL;
        MGPU_TRY(mgpu_alloc(&e->buffer[b], (uint64_t)bytes[b], names[b]));
        host[b] = e->buffer[b];
    }
    return 0;
}

static void borrow(struct mgpu_engine *engine, const struct mgpu_engine *lender,
                   void *host[MGPU_BUFFERS])
{
    static const enum mgpu_buffer shared[] = {MGPU_BUFFER_WEIGHTS, MGPU_BUFFER_STATES};
    struct cpu_engine *e = (struct cpu_engine *)engine;
    for (int i = 0; i < 2; i++) {
        enum mgpu_buffer b = shared[i];
        mgpu_free(e->buffer[b]);
        host[b] = e->buffer[b] = ((const struct cpu_engine *)lender)->buffer[b];
        e->borrowed[b] = true;
    }
}

static int bind(struct mgpu_engine *engine, struct mgpu_program *program)
{
    mgpu_program_bind(program, ((struct cpu_engine *)engine)->buffer);
    return 0;
}

static int execute(struct mgpu_engine *engine, struct mgpu_program *program,
                   const struct mgpu_execution *run)
{
    struct cpu_engine *e = (struct cpu_engine *)engine;
    return mgpu_execute(program, e->comm, e->buffer, run);
}

static void free_engine(struct mgpu_engine *engine)
{
    struct cpu_engine *e = (struct cpu_engine *)engine;
    for (int b = 0; b < MGPU_BUFFERS; b++)
        if (!e->borrowed[b])
            mgpu_free(e->buffer[b]);
    free(e);
}

static const struct mgpu_engine_ops ops = {.backend = &mgpu_backend_cpu,
                                           .enter = enter,
                                           .allocate = allocate,
                                           .borrow = borrow,
                                           .bind = bind,
                                           .execute = execute,
                                           .free = free_engine};

struct mgpu_engine *mgpu_cpu_engine(struct mgpu_comm *const *comm)
{
    struct cpu_engine *e = mgpu_xcalloc(1, sizeof *e);
    e->engine.ops = &ops;
    e->comm = comm;
    return &e->engine;
}
