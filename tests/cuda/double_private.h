/* What the files of the double share: double.h says what it is. */
#ifndef MGPU_TESTS_CUDA_DOUBLE_PRIVATE_H
#define MGPU_TESTS_CUDA_DOUBLE_PRIVATE_H

#include "runtime/cuda/api.h"
#include "runtime/emit/emit.h"
#include "tests/cuda/double.h"
#include "tests/emit/emulate.h"

#include <pthread.h>

enum { MOST_NODES = 16384, WORDS = MOST_NODES / 64, MOST_ACCESSES = 64, MOST_KINDS = 4 };

struct set {
    uint64_t word[WORDS];
};

/* Memory that work touches: `rows` pieces like the first, their starts `pitch` bytes apart. */
struct access {
    struct mgpu_cuda_access first;
    int64_t rows, pitch;
};

struct accesses {
    int count;
    struct access at[MOST_ACCESSES];
};

/* An operator that ref runs. */
struct standing_in {
    const struct mgpu_node *node;
    const void *in[MGPU_MAX_INPUTS + 1];
    void *out[MGPU_MAX_OUTPUTS + 1];
};

struct work {
    enum { KERNEL, COPY, FILL, REF } kind;
    const struct function *function;
    struct mgpu_emit_launch launch;
    void *pointer[MOST_ACCESSES];
    CUDA_MEMCPY2D copy; /* addresses of both sides in srcHost and dstHost */
    unsigned char byte;
    struct standing_in ref;
};

struct node {
    struct work work;
    struct accesses accesses;
    struct set before;
};

/* What was submitted and is not done, or a graph. */
struct dag {
    int count;
    struct node **node;
    struct set done;
    bool ended;  /* a capture that is complete */
    bool broken; /* one in which a call was refused */
};

struct CUstream_st {
    struct set clock; /* what comes before the next call */
    struct dag *capture;
    struct set captured; /* the same in the capture */
    struct accesses accesses;
    struct CUstream_st *next;
};

struct CUevent_st {
    struct dag *dag; /* that it was recorded in; NULL: not yet */
    struct set clock;
    bool timed;   /* recorded with a time */
    bool untimed; /* made without one */
    struct CUevent_st *next;
};

struct function {
    char name[64];
    struct module *module;
    int parameters;
    bool together;
    struct function *next;
};

struct module {
    char *text;
    struct module *next; /* of those that were made: equal texts are compiled once */
    struct emulated *library;
    struct function *functions;
};

struct block {
    char *at;
    int64_t bytes;
    bool host;
    struct block *next;
};

struct double_gpu {
    pthread_mutex_t lock;
    struct mgpu_cuda_driver driver;
    int gpus, version;
    const char *name; /* NULL: that of a double */
    int64_t bytes, used;
    struct dag now;
    struct CUstream_st *streams;
    struct CUevent_st *events;
    struct dag *graphs[256];
    struct module *modules;
    int graph_count, alive; /* alive: what was made and not freed */
    struct block *blocks;
    uint64_t seed;
    int complaints, drop;
    float elapsed; /* what lies between any two events, in milliseconds */
    bool busy;
    int no_capture; /* work of a capture that is refused; -1: none */
    CUresult capture_result;
    CUresult wait_result; /* of waits for events */
    int streams_left;     /* that can be made; -1: any number */
    int library_us;       /* that a call of NVIDIA's libraries takes */
    const int *sm;        /* to compile for; then nothing runs */
    int sms;
    struct double_kernels kernels[MOST_KINDS];
    char complaint[512];
    struct double_calls calls;
};

extern struct double_gpu double_gpu;

void double_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

static inline bool set_has(const struct set *s, int i)
{
    return s->word[i / 64] >> i % 64 & 1;
}

static inline void set_put(struct set *s, int i)
{
    s->word[i / 64] |= UINT64_C(1) << i % 64;
}

static inline void set_join(struct set *into, const struct set *from)
{
    for (int w = 0; w < WORDS; w++)
        into->word[w] |= from->word[w];
}

/* ---- double_order.c: memory, nodes, and running them ---- */

/* Whether such memory is allocated, from the first row to the last. */
bool double_is_there(const struct access *access);

/* One piece of memory. */
struct access double_piece(CUdeviceptr at, int64_t bytes, bool write);

CUresult double_allocate(void **out, size_t bytes, bool host);
CUresult double_release(void *at);

struct node *double_add_node(struct dag *dag, const struct work *work,
                             const struct accesses *accesses, const struct set *before);
void double_free_nodes(struct dag *dag);

/* Node `n`, the last of those that wait, against all others. */
void double_check_node(const struct node *n);

/* Work for a stream: a node, in the capture where there is one. */
CUresult double_submit(CUstream stream, const struct work *work, const struct accesses *accesses);

/* Runs what is in the set, each time one of those that may be next. */
void double_run_set(const struct set *wanted);

/* ---- double_library.c: in place of NVIDIA's libraries ---- */

void double_make_library(void);
int double_run_ref(const struct standing_in *node);

/* ---- double_driver.c, double_compiler.c: in place of NVIDIA's ---- */
extern const struct mgpu_cuda_driver double_driver;
extern const struct mgpu_cuda_nvrtc double_nvrtc;

/* ---- double_modules.c ---- */

/* The module of this text, as the compiler gives it; made when it is not there yet. */
CUresult double_module(struct module **out, const char *text);
void double_free_modules(void);

#endif
