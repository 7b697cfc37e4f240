#include "runtime/cuda/library_private.h"

#include "runtime/base/status.h"
#include "runtime/emit/last.h"

#include <stdlib.h>

static const struct mgpu_library_family *const families[] = {&mgpu_library_cudnn, &mgpu_library_rnn,
                                                             &mgpu_library_matmul, NULL};

const struct mgpu_value *mgpu_library_operand(const struct mgpu_node *node, int i)
{
    return i < node->inputs ? node->input[i] : node->output[i - node->inputs];
}

/* ---- The libraries --------------------------------------------------------------------------- */

static int open_lt(struct mgpu_library *l)
{
    MGPU_TRY(mgpu_cuda_load_lt(&l->lt));
    if (l->options.properties)
        return 0;
    return mgpu_lt_status(&l->lt, l->lt.cublasLtCreate(&l->lt_handle), "starting (cublasLtCreate)");
}

int mgpu_library_open(struct mgpu_library **out, const struct mgpu_library_options *options)
{
    struct mgpu_library *l = mgpu_xcalloc(1, sizeof *l);
    l->options = *options;
    pthread_mutex_init(&l->lock, NULL);
    int rc = options->properties ? 0 : mgpu_cuda_load_driver(&l->driver);
    if (rc == 0)
        rc = mgpu_cudnn_open(&l->dnn, options->properties);
    if (rc == 0)
        rc = open_lt(l);
    if (rc < 0) {
        mgpu_library_close(l);
        l = NULL;
    }
    *out = l;
    return rc;
}

void mgpu_library_close(struct mgpu_library *l)
{
    if (!l)
        return;
    if (l->lt_handle)
        l->lt.cublasLtDestroy(l->lt_handle);
    if (l->module)
        l->driver.cuModuleUnload(l->module);
    mgpu_cudnn_close(&l->dnn);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

/* ---- Nodes ----------------------------------------------------------------------------------- */

/* Row-major, or all channels together: what libraries know. */
static bool knows_layouts(const struct mgpu_node *node)
{
    for (int i = 0; i < node->inputs + node->outputs; i++) {
        const struct mgpu_value *v = mgpu_library_operand(node, i);
        if (v && v->block && v->block != v->dims[1].value)
            return false;
    }
    return true;
}

static const struct mgpu_library_family *family_of(const struct mgpu_node *node)
{
    for (int f = 0; families[f]; f++)
        if (families[f]->accepts(node))
            return families[f];
    return NULL;
}

static bool has_engine(struct mgpu_library *library, const struct mgpu_node *node,
                       const struct mgpu_library_family *family)
{
    struct mgpu_library_call *call = mgpu_xcalloc(1, sizeof *call);
    *call = (struct mgpu_library_call){library, node, family, NULL, 0};
    pthread_mutex_lock(&library->lock);
    bool found = family->ask(call) == 0;
    pthread_mutex_unlock(&library->lock);
    mgpu_library_release(call);
    return found;
}

bool mgpu_library_accepts(struct mgpu_library *library, const struct mgpu_node *node)
{
    const struct mgpu_library_family *family = knows_layouts(node) ? family_of(node) : NULL;
    bool asks = family && family->has_end && family->has_end(node);
    return family && (!asks || has_engine(library, node, family));
}

bool mgpu_library_tensor_cores(const struct mgpu_library *l, enum mgpu_dtype type)
{
    return type != MGPU_FLOAT || l->options.tf32;
}

bool mgpu_library_channels_last(const struct mgpu_library *l, const struct mgpu_node *node, int i)
{
    const struct mgpu_library_family *family = family_of(node);
    const struct mgpu_value *v = mgpu_library_operand(node, i);
    return v && family && family->is_image && family->is_image(node, i) && !mgpu_lies_both(v) &&
           mgpu_library_tensor_cores(l, v->type);
}

int mgpu_library_prepare(struct mgpu_library_call **out, struct mgpu_library *library,
                         const struct mgpu_node *node)
{
    struct mgpu_library_call *call = mgpu_xcalloc(1, sizeof *call);
    *call = (struct mgpu_library_call){library, node, family_of(node), NULL, 0};
    pthread_mutex_lock(&library->lock);
    int rc = call->family->prepare(call);
    if (rc == 0 && library->dnn.handle)
        rc = mgpu_library_tune(call);
    pthread_mutex_unlock(&library->lock);
    int64_t limit = library->options.workspace;
    if (rc == 0 && limit > 0 && call->workspace > limit)
        rc = mgpu_fail(MGPU_EUNSUPPORTED, "%lld bytes of workspace are more than the limit of %lld",
                       (long long)call->workspace, (long long)limit);
    if (rc < 0) {
        mgpu_library_release(call);
        call = NULL;
    }
    *out = call;
    return mgpu_prefix(rc, "%s", node->op->name);
}

void mgpu_library_release(struct mgpu_library_call *call)
{
    if (!call)
        return;
    pthread_mutex_lock(&call->library->lock);
    if (call->state)
        call->family->release(call);
    pthread_mutex_unlock(&call->library->lock);
    free(call);
}

void mgpu_library_warn(struct mgpu_library *library, const struct mgpu_node *node)
{
    char text[MGPU_VALUE_TEXT];
    if (!atomic_exchange(&library->warned, true))
        mgpu_warn(
            "%s: %s; this and other such nodes run by kernels of mgpu's own, which are slower",
            mgpu_origin_text(text, &node->origin), mgpu_error());
}

int64_t mgpu_library_workspace(const struct mgpu_library_call *call)
{
    return call->workspace;
}

int mgpu_library_run(struct mgpu_library_call *call, void *stream, void *const *operand,
                     void *workspace)
{
    return mgpu_prefix(call->family->run(call, stream, operand, workspace), "%s",
                       call->node->op->name);
}
