#include "runtime/cpu/onednn.h"

#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { OPERANDS = 8, ALIGNMENT = 64 };

/* An operand while it runs. Without a reorder `inside` is `outside`. */
struct operand {
    int arg;
    bool output;
    dnnl_memory_t outside, inside;
    dnnl_primitive_t reorder;
    int64_t offset; /* of `inside` in the workspace */
};

struct mgpu_dnn {
    dnnl_stream_t stream;
    dnnl_primitive_t primitive;
    dnnl_memory_t scratchpad; /* at the workspace's start; reorders and primitive take turns */
    bool alone;               /* made and run with one thread */
    int64_t workspace;
    void *base; /* workspace that the memories inside point into now */
    int count;
    struct operand operands[OPERANDS];
};

static dnnl_engine_t engine;
static dnnl_status_t engine_status;
static pthread_once_t engine_once = PTHREAD_ONCE_INIT;

static void make_engine(void)
{
    engine_status = dnnl_engine_create(&engine, dnnl_cpu, 0);
}

static int start_engine(void)
{
    pthread_once(&engine_once, make_engine);
    return mgpu_dnn_check(engine_status, "making the engine");
}

int mgpu_dnn_check(dnnl_status_t status, const char *what)
{
    if (status == dnnl_success)
        return 0;
    int code = status == dnnl_out_of_memory   ? MGPU_ENOMEM
               : status == dnnl_unimplemented ? MGPU_EUNSUPPORTED
                                              : MGPU_EINTERNAL;
    return mgpu_fail(code, "oneDNN: %s failed with status %d", what, (int)status);
}

static int64_t aligned(int64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* The primitive descriptor of an operation, with its scratchpad left to us. */
static int describe(dnnl_primitive_desc_t *out, const_dnnl_op_desc_t operation,
                    const_dnnl_op_desc_t forward)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t hint = NULL;
    int rc = mgpu_dnn_check(dnnl_primitive_attr_create(&attr), "making attributes");
    if (rc < 0)
        return rc;
    MGPU_TRY_GOTO(
        mgpu_dnn_check(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user),
                       "choosing the scratchpad"));
    if (forward)
        MGPU_TRY_GOTO(mgpu_dnn_check(dnnl_primitive_desc_create(&hint, forward, NULL, engine, NULL),
                                     "describing the forward primitive"));
    MGPU_TRY_GOTO(mgpu_dnn_check(dnnl_primitive_desc_create(out, operation, attr, engine, hint),
                                 "describing a primitive"));
done:
    dnnl_primitive_desc_destroy(hint);
    dnnl_primitive_attr_destroy(attr);
    return rc;
}

static int make_memory(dnnl_memory_t *out, const dnnl_memory_desc_t *desc)
{
    return mgpu_dnn_check(dnnl_memory_create(out, desc, engine, DNNL_MEMORY_NONE),
                          "making a memory object");
}

/* Takes room for a scratchpad; all of them share the workspace's start. */
static void need_scratchpad(struct mgpu_dnn *dnn, const_dnnl_primitive_desc_t desc)
{
    const dnnl_memory_desc_t *pad = dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    int64_t bytes = aligned((int64_t)dnnl_memory_desc_get_size(pad));
    if (bytes > dnn->workspace)
        dnn->workspace = bytes;
}

static int describe_reorder(dnnl_primitive_desc_t *out, const dnnl_memory_desc_t *from,
                            const dnnl_memory_desc_t *to)
{
    dnnl_primitive_attr_t attr = NULL;
    int rc = mgpu_dnn_check(dnnl_primitive_attr_create(&attr), "making attributes");
    if (rc < 0)
        return rc;
    MGPU_TRY_GOTO(
        mgpu_dnn_check(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user),
                       "choosing the scratchpad"));
    MGPU_TRY_GOTO(
        mgpu_dnn_check(dnnl_reorder_primitive_desc_create(out, from, engine, to, engine, attr),
                       "describing a reorder"));
done:
    dnnl_primitive_attr_destroy(attr);
    return rc;
}

static int make_reorder(struct mgpu_dnn *dnn, struct operand *o, const dnnl_memory_desc_t *outside,
                        const dnnl_memory_desc_t *inside)
{
    dnnl_primitive_desc_t desc;
    MGPU_TRY(describe_reorder(&desc, o->output ? inside : outside, o->output ? outside : inside));
    need_scratchpad(dnn, desc);
    int rc = mgpu_dnn_check(dnnl_primitive_create(&o->reorder, desc), "making a reorder");
    dnnl_primitive_desc_destroy(desc);
    return rc;
}

static int make_operand(struct mgpu_dnn *dnn, const_dnnl_primitive_desc_t desc,
                        const struct mgpu_dnn_operand *given)
{
    struct operand *o = &dnn->operands[dnn->count++];
    o->arg = given->arg;
    o->output = given->output;
    MGPU_TRY(make_memory(&o->outside, &given->outside));
    o->inside = o->outside;
    const dnnl_memory_desc_t *inside =
        dnnl_primitive_desc_query_md(desc, dnnl_query_exec_arg_md, given->arg);
    if (dnnl_memory_desc_equal(inside, &given->outside))
        return 0;
    MGPU_TRY(make_memory(&o->inside, inside));
    return make_reorder(dnn, o, &given->outside, inside);
}

/* Places the reordered operands behind the scratchpad. */
static void place_operands(struct mgpu_dnn *dnn)
{
    for (int i = 0; i < dnn->count; i++) {
        struct operand *o = &dnn->operands[i];
        if (!o->reorder)
            continue;
        const dnnl_memory_desc_t *desc;
        dnnl_memory_get_memory_desc(o->inside, &desc);
        o->offset = dnn->workspace;
        dnn->workspace += aligned((int64_t)dnnl_memory_desc_get_size(desc));
    }
}

/* Leaves the calling thread alone if the primitive wants it so; returns the threads that `leave`
 * gives back. */
static int enter(bool alone)
{
    int threads = omp_get_max_threads();
    if (alone)
        omp_set_num_threads(1);
    return threads;
}

static void leave(bool alone, int threads)
{
    if (alone)
        omp_set_num_threads(threads);
}

static int make(struct mgpu_dnn *dnn, const_dnnl_primitive_desc_t desc, int count,
                const struct mgpu_dnn_operand *operands)
{
    MGPU_TRY(mgpu_dnn_check(dnnl_stream_create(&dnn->stream, engine, dnnl_stream_default_flags),
                            "making a stream"));
    MGPU_TRY(mgpu_dnn_check(dnnl_primitive_create(&dnn->primitive, desc), "making a primitive"));
    need_scratchpad(dnn, desc);
    MGPU_TRY(make_memory(&dnn->scratchpad,
                         dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0)));
    for (int i = 0; i < count; i++)
        MGPU_TRY(make_operand(dnn, desc, &operands[i]));
    place_operands(dnn);
    return 0;
}

/* Of a descriptor, which it takes over; in the threads that it was described for. */
static int make_new(struct mgpu_dnn **out, dnnl_primitive_desc_t desc, int count,
                    const struct mgpu_dnn_operand *operands, bool alone)
{
    struct mgpu_dnn *dnn = mgpu_xcalloc(1, sizeof *dnn);
    dnn->alone = alone;
    int rc = make(dnn, desc, count, operands);
    dnnl_primitive_desc_destroy(desc);
    if (rc < 0)
        mgpu_dnn_free(dnn);
    else
        *out = dnn;
    return rc;
}

static const char *name_of(const_dnnl_primitive_desc_t desc)
{
    const char *name = "";
    dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, (void *)&name);
    return name;
}

int mgpu_dnn_new(struct mgpu_dnn **out, const_dnnl_op_desc_t operation,
                 const_dnnl_op_desc_t forward, int count, const struct mgpu_dnn_operand *operands,
                 bool alone)
{
    dnnl_primitive_desc_t desc;
    MGPU_TRY(start_engine());
    int threads = enter(alone), rc = describe(&desc, operation, forward);
    if (rc == 0)
        rc = make_new(out, desc, count, operands, alone);
    leave(alone, threads);
    return rc;
}

int mgpu_dnn_reorder(struct mgpu_dnn **out, const dnnl_memory_desc_t *from,
                     const dnnl_memory_desc_t *to, bool alone)
{
    const struct mgpu_dnn_operand operands[] = {{DNNL_ARG_FROM, false, *from},
                                                {DNNL_ARG_TO, true, *to}};
    dnnl_primitive_desc_t desc;
    MGPU_TRY(start_engine());
    int threads = enter(alone), rc = describe_reorder(&desc, from, to);
    if (rc == 0)
        rc = make_new(out, desc, 2, operands, alone);
    leave(alone, threads);
    return rc;
}

bool mgpu_dnn_prefers(const_dnnl_op_desc_t operation, const_dnnl_op_desc_t forward, int count,
                      const int *args, dnnl_memory_desc_t *layouts)
{
    dnnl_primitive_desc_t desc;
    if (start_engine() < 0 || describe(&desc, operation, forward) < 0)
        return false;
    bool own = strncmp(name_of(desc), "ref", 3) != 0;
    for (int i = 0; i < count; i++)
        layouts[i] = *dnnl_primitive_desc_query_md(desc, dnnl_query_exec_arg_md, args[i]);
    dnnl_primitive_desc_destroy(desc);
    return own;
}

void mgpu_dnn_free(struct mgpu_dnn *dnn)
{
    if (!dnn)
        return;
    for (int i = 0; i < dnn->count; i++) {
        struct operand *o = &dnn->operands[i];
        dnnl_primitive_destroy(o->reorder);
        if (o->inside != o->outside)
            dnnl_memory_destroy(o->inside);
        dnnl_memory_destroy(o->outside);
    }
    dnnl_memory_destroy(dnn->scratchpad);
    dnnl_primitive_destroy(dnn->primitive);
    dnnl_stream_destroy(dnn->stream);
    free(dnn);
}

int64_t mgpu_dnn_workspace(const struct mgpu_dnn *dnn)
{
    return dnn->workspace;
}

unsigned mgpu_dnn_reordered(const struct mgpu_dnn *dnn, int inputs)
{
    unsigned operands = 0;
    int in = 0, out = inputs;
    for (int i = 0; i < dnn->count; i++) {
        int at = dnn->operands[i].output ? out++ : in++;
        operands |= dnn->operands[i].reorder ? 1u << at : 0;
    }
    return operands;
}

const char *mgpu_dnn_name(const struct mgpu_dnn *dnn)
{
    const_dnnl_primitive_desc_t desc;
    dnnl_primitive_get_primitive_desc(dnn->primitive, &desc);
    return name_of(desc);
}

bool mgpu_dnn_small(const struct mgpu_node *node)
{
    return node->op->cost(node).flops < 1e6; /* about as long as waking a sleeping thread */
}

void mgpu_dnn_release_state(void *state)
{
    mgpu_dnn_free(state);
}

int64_t mgpu_dnn_state_workspace(const struct mgpu_node *node, int threads, const void *state)
{
    (void)node, (void)threads;
    return mgpu_dnn_workspace(state);
}

/* Points the memories inside into the workspace. Only when it moved: setting a handle also zeroes
 * padding, which reorders and primitives do themselves. */
static int place_inside(struct mgpu_dnn *dnn, void *workspace)
{
    if (dnn->base == workspace)
        return 0;
    dnnl_status_t status = dnnl_memory_set_data_handle(dnn->scratchpad, workspace);
    for (int i = 0; i < dnn->count && status == dnnl_success; i++) {
        struct operand *o = &dnn->operands[i];
        if (o->reorder)
            status = dnnl_memory_set_data_handle(o->inside, (char *)workspace + o->offset);
    }
    dnn->base = workspace;
    return mgpu_dnn_check(status, "placing memory");
}

static int run_reorder(struct mgpu_dnn *dnn, const struct operand *o)
{
    const dnnl_exec_arg_t args[] = {
        {DNNL_ARG_FROM, o->output ? o->inside : o->outside},
        {DNNL_ARG_TO, o->output ? o->outside : o->inside},
        {DNNL_ARG_SCRATCHPAD, dnn->scratchpad},
    };
    return mgpu_dnn_check(dnnl_primitive_execute(o->reorder, dnn->stream, 3, args), "a reorder");
}

static int load(struct mgpu_dnn *dnn, const struct operand *o, void *data)
{
    MGPU_TRY(mgpu_dnn_check(dnnl_memory_set_data_handle(o->outside, data), "placing memory"));
    return o->reorder && !o->output ? run_reorder(dnn, o) : 0;
}

int mgpu_dnn_load(struct mgpu_dnn *dnn, int i, void *data, void *workspace)
{
    MGPU_TRY(place_inside(dnn, workspace));
    int threads = enter(dnn->alone), rc = load(dnn, &dnn->operands[i], data);
    leave(dnn->alone, threads);
    return rc;
}

static int run(struct mgpu_dnn *dnn, void *const *data)
{
    dnnl_exec_arg_t args[OPERANDS + 1] = {{DNNL_ARG_SCRATCHPAD, dnn->scratchpad}};
    for (int i = 0; i < dnn->count; i++) {
        const struct operand *o = &dnn->operands[i];
        if (data[i])
            MGPU_TRY(load(dnn, o, data[i]));
        args[i + 1] = (dnnl_exec_arg_t){o->arg, o->inside};
    }
    MGPU_TRY(mgpu_dnn_check(
        dnnl_primitive_execute(dnn->primitive, dnn->stream, dnn->count + 1, args), "a primitive"));
    for (int i = 0; i < dnn->count; i++) {
        if (dnn->operands[i].reorder && dnn->operands[i].output)
            MGPU_TRY(run_reorder(dnn, &dnn->operands[i]));
    }
    return 0;
}

int mgpu_dnn_run(struct mgpu_dnn *dnn, void *const *data, void *workspace)
{
    MGPU_TRY(place_inside(dnn, workspace));
    int threads = enter(dnn->alone), rc = run(dnn, data);
    leave(dnn->alone, threads);
    return rc;
}

static dnnl_memory_desc_t matrix(int64_t rows, int64_t columns, bool transpose)
{
    const int64_t dims[] = {rows, columns};
    const int64_t strides[] = {transpose ? 1 : columns, transpose ? rows : 1};
    return mgpu_dnn_strided(2, dims, strides);
}

int mgpu_dnn_product(struct mgpu_dnn **out, int64_t m, int64_t n, int64_t k, bool transpose_a,
                     bool transpose_b, bool pack, bool alone)
{
    const struct mgpu_dnn_operand operands[] = {
        {DNNL_ARG_SRC, false, matrix(m, k, transpose_a)},
        {DNNL_ARG_WEIGHTS, false, matrix(k, n, transpose_b)},
        {DNNL_ARG_DST, true, matrix(m, n, false)},
    };
    dnnl_memory_desc_t any = mgpu_dnn_tagged(2, (const int64_t[]){k, n}, dnnl_format_tag_any);
    dnnl_matmul_desc_t op;
    MGPU_TRY(mgpu_dnn_check(dnnl_matmul_desc_init(&op, &operands[0].outside,
                                                  pack ? &any : &operands[1].outside, NULL,
                                                  &operands[2].outside),
                            "describing a matrix product"));
    return mgpu_dnn_new(out, &op, NULL, 3, operands, alone);
}

dnnl_memory_desc_t mgpu_dnn_strided(int rank, const int64_t *dims, const int64_t *strides)
{
    dnnl_dims_t all_dims = {0}, all_strides = {0}; /* oneDNN's prototypes want them whole */
    for (int i = 0; i < rank; i++) {
        all_dims[i] = dims[i];
        all_strides[i] = strides[i];
    }
    dnnl_memory_desc_t desc;
    dnnl_memory_desc_init_by_strides(&desc, rank, all_dims, dnnl_f32, all_strides);
    return desc;
}

dnnl_memory_desc_t mgpu_dnn_plain(int rank, const int64_t *dims)
{
    int64_t strides[DNNL_MAX_NDIMS];
    for (int64_t i = rank - 1, step = 1; i >= 0; step *= dims[i--])
        strides[i] = step;
    return mgpu_dnn_strided(rank, dims, strides);
}

dnnl_memory_desc_t mgpu_dnn_tagged(int rank, const int64_t *dims, dnnl_format_tag_t tag)
{
    dnnl_dims_t all_dims = {0};
    for (int i = 0; i < rank; i++)
        all_dims[i] = dims[i];
    dnnl_memory_desc_t desc;
    dnnl_memory_desc_init_by_tag(&desc, rank, all_dims, dnnl_f32, tag);
    return desc;
}

dnnl_memory_desc_t mgpu_dnn_blocked(int rank, const int64_t *dims, int block)
{
    static const dnnl_format_tag_t of_8[] = {dnnl_nCw8c, dnnl_nChw8c, dnnl_nCdhw8c};
    static const dnnl_format_tag_t of_16[] = {dnnl_nCw16c, dnnl_nChw16c, dnnl_nCdhw16c};
    return block ? mgpu_dnn_tagged(rank, dims, block == 8 ? of_8[rank - 3] : of_16[rank - 3])
                 : mgpu_dnn_plain(rank, dims);
}
