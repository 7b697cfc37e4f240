/* An engine: what holds a rank's memory and runs its programs. The CPU's is in runtime/executor,
 * the GPUs' in runtime/cuda; ranks and the facade know this much of them.
 *
 * The host sees a rank's memory as buffers of its own. Where the device has other memory, what the
 * host wrote goes up, and what it wants to read comes down, when the host says so; step scalars and
 * results move by themselves when a program runs.
 */
#ifndef MGPU_ENGINE_H
#define MGPU_ENGINE_H

#include "runtime/compile/walk.h"

struct mgpu_engine;

struct mgpu_engine_ops {
    const struct mgpu_backend *backend; /* programs are compiled with its kernels */

    /* Where a loss or gradient of some rank is not finite in a piece of a batch, and
     * run->not_finite says that this stops nothing, the batch changes no weight, optimizer state or
     * running statistic of any rank. */
    bool undoes;

    /* Before anything is compiled on the calling thread. */
    int (*enter)(struct mgpu_engine *engine);

    /* Zeroed memory of these sizes; host[b] is what the host sees of buffer b, NULL where it sees
     * nothing. Called once, before programs are bound. */
    int (*allocate)(struct mgpu_engine *engine, const int64_t bytes[MGPU_BUFFERS],
                    void *host[MGPU_BUFFERS]);

    /* Weights and optimizer state are the memory of `lender`, an engine of the same kind; host[]
     * too. Called after allocate, which was asked for none of these. NULL: each rank has its own.
     */
    void (*borrow)(struct mgpu_engine *engine, const struct mgpu_engine *lender,
                   void *host[MGPU_BUFFERS]);

    /* Makes a program ready to run in this memory. */
    int (*bind)(struct mgpu_engine *engine, struct mgpu_program *program);

    /* Sends the inputs that the host has written for the program's next run, which may be done
     * while another still goes on; what was sent last is what the next run finds. *host gets where
     * the inputs after these are to be written, after that other run. NULL: a run reads what the
     * host wrote. */
    int (*send)(struct mgpu_engine *engine, const struct mgpu_program *program, void **host);

    /* Runs the list once, on every rank at the same time. Comes back when everything is done,
     * communication too; where the engine has `finish`, when the device has been given it. Errors
     * name the node. A loss or gradient that is not finite stops before the first update and names
     * the first node with a value that is not finite; where updates are early, it stops before the
     * update that would take it, and as where there is `finish` a run with run->names gives the
     * name. */
    int (*execute)(struct mgpu_engine *engine, struct mgpu_program *program,
                   const struct mgpu_execution *run);

    /* Waits for the first of the runs that were given and are not finished, two at most. *host gets
     * where its results are. A value that is not finite is its error, and the updates of the other
     * run are left out, too. NULL: see execute. */
    int (*finish)(struct mgpu_engine *engine, void **host);

    /* Bytes [offset, offset + bytes) of a buffer, to the device and back. NULL: it is one memory.
     */
    int (*upload)(struct mgpu_engine *engine, enum mgpu_buffer buffer, int64_t offset,
                  int64_t bytes);
    int (*download)(struct mgpu_engine *engine, enum mgpu_buffer buffer, int64_t offset,
                    int64_t bytes);

    /* Zeroes a buffer before the next run. NULL: the host does. */
    int (*clear)(struct mgpu_engine *engine, enum mgpu_buffer buffer);

    /* Ranks that wait in execute for this one get the reason. NULL: its communicators tell them. */
    void (*abort)(struct mgpu_engine *engine, const char *reason);

    void (*free)(struct mgpu_engine *engine);
};

struct mgpu_engine {
    const struct mgpu_engine_ops *ops;
};

#endif
