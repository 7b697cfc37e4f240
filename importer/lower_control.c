/* Control flow that is known before the model runs. */
#include "importer/lower.h"
#include "runtime/base/status.h"

#include <string.h>

static const struct mgpu_onnx_body *body_called(const struct mgpu_onnx_node *node, const char *name)
{
    for (int i = 0; i < node->bodies; i++)
        if (!strcmp(node->body_name[i], name))
            return &node->body[i];
    return NULL;
}

static int lower_if(struct mgpu_lower *l)
{
    int64_t condition;
    const struct mgpu_value *c = mgpu_lower_in(l, 0);
    if (c && c->kind != MGPU_VALUE_CONSTANT)
        return mgpu_fail(MGPU_EUNSUPPORTED, "its condition '%s' is known only when the model runs",
                         l->node->input[0]);
    MGPU_TRY(mgpu_lower_int(l, 0, &condition, NULL));
    const struct mgpu_onnx_body *body =
        body_called(l->node, condition ? "then_branch" : "else_branch");
    if (!body || body->outputs != l->node->outputs)
        return mgpu_fail(MGPU_EINVALID, "the branches do not give %d outputs", l->node->outputs);
    return mgpu_lower_body(l, body);
}

const struct mgpu_lowering mgpu_lower_control[] = {
    {"If", 1, 0, lower_if},
    {0},
};
