#include "runtime/backend.h"

#include "runtime/base/memory.h"
#include "runtime/base/status.h"

#include <stdlib.h>
#include <string.h>

static bool has_blocks(const struct mgpu_node *node)
{
    bool any = false;
    for (int i = 0; i < node->inputs; i++)
        any = any || (node->input[i] && node->input[i]->block);
    for (int i = 0; i < node->outputs; i++)
        any = any || (node->output[i] && node->output[i]->block);
    return any;
}

/* Behind `after`; NULL: from the start. */
static const struct mgpu_kernel *find(const struct mgpu_kernel *const *tables,
                                      const struct mgpu_node *node, const struct mgpu_kernel *after)
{
    for (int t = 0; tables[t]; t++)
        for (const struct mgpu_kernel *k = tables[t]; k->op; k++)
            if (after)
                after = k == after ? NULL : after;
            else if (!strcmp(k->op, node->op->name) && (!k->accepts || k->accepts(node)))
                return k;
    return NULL;
}

static const struct mgpu_kernel *const *tables_for(const struct mgpu_backend *backend,
                                                   const struct mgpu_node *node)
{
    return has_blocks(node) ? backend->blocked : backend->tables;
}

const struct mgpu_kernel *mgpu_backend_kernel(const struct mgpu_backend *backend,
                                              const struct mgpu_node *node)
{
    return find(tables_for(backend, node), node, NULL);
}

const struct mgpu_kernel *mgpu_backend_next(const struct mgpu_backend *backend,
                                            const struct mgpu_node *node,
                                            const struct mgpu_kernel *kernel)
{
    return find(tables_for(backend, node), node, kernel);
}

const struct mgpu_kernel *mgpu_backend_fastest(const struct mgpu_backend *backend,
                                               const struct mgpu_node *node)
{
    const struct mgpu_kernel *k = backend->inexact ? find(backend->inexact, node, NULL) : NULL;
    return k ? k : mgpu_backend_kernel(backend, node);
}

void mgpu_tensor_of(struct mgpu_tensor *t, const struct mgpu_value *v, void *data)
{
    memset(t, 0, sizeof *t);
    if (!v)
        return;
    t->data = data;
    t->type = v->type;
    t->rank = v->rank;
    t->block = v->block;
    mgpu_value_dims(v, t->dims);
}

static int run_kernel(const struct mgpu_kernel *kernel, struct mgpu_launch *launch)
{
    MGPU_TRY(kernel->prepare ? kernel->prepare(launch->node, 1, true, &launch->state) : 0);
    int64_t bytes = kernel->workspace ? kernel->workspace(launch->node, 1, launch->state) : 0;
    int rc = mgpu_alloc(&launch->workspace, (uint64_t)bytes, "workspace");
    if (rc == 0)
        rc = kernel->run(launch);
    mgpu_free(launch->workspace);
    if (kernel->release)
        kernel->release(launch->state);
    return rc;
}

int mgpu_backend_run(const struct mgpu_backend *backend, const struct mgpu_node *node,
                     const void *const *in, void *const *out)
{
    const struct mgpu_kernel *kernel = mgpu_backend_kernel(backend, node);
    if (!kernel)
        return mgpu_fail(MGPU_EUNSUPPORTED, "%s: no kernel for %s", backend->name, node->op->name);
    struct mgpu_tensor *t = mgpu_xcalloc((size_t)(node->inputs + node->outputs) + 1, sizeof *t);
    for (int i = 0; i < node->inputs; i++)
        mgpu_tensor_of(&t[i], node->input[i], (void *)in[i]);
    for (int i = 0; i < node->outputs; i++)
        mgpu_tensor_of(&t[node->inputs + i], node->output[i], out[i]);
    struct mgpu_launch launch = {.node = node,
                                 .inputs = node->inputs,
                                 .outputs = node->outputs,
                                 .in = t,
                                 .out = t + node->inputs,
                                 .threads = 1};
    int rc = run_kernel(kernel, &launch);
    free(t);
    return rc;
}
