/* Control flow that is known before the model runs. */
#include "importer/lower.h"
#include "runtime/base/status.h"

static int lower_if(struct mgpu_lower *l)
{
    int64_t condition;
    struct mgpu_dim from;
    const struct mgpu_value *c = mgpu_lower_in(l, 0);
    if (c && c->kind != MGPU_VALUE_CONSTANT)
        return mgpu_fail(MGPU_EUNSUPPORTED, "its condition '%s' is known only when the model runs",
                         l->node->input[0]);
    MGPU_TRY(mgpu_lower_int(l, 0, &condition, &from));
    if (mgpu_dim_has(from, MGPU_BATCH))
        mgpu_graph_whole(l->g);
    const struct mgpu_onnx_body *body =
        mgpu_lower_body_called(l, condition ? "then_branch" : "else_branch");
    if (!body || body->outputs != l->node->outputs ||
        body->outputs > (int)(sizeof l->out / sizeof *l->out))
        return mgpu_fail(MGPU_EINVALID, "the branches do not give %d outputs", l->node->outputs);
    return mgpu_lower_body(l, body, NULL, l->out);
}

const struct mgpu_lowering mgpu_lower_control[] = {
    {"If", 1, 0, lower_if},
    {"Loop", 1, 0, mgpu_lower_loop},
    {"Scan", 8, 8, mgpu_lower_scan_8},
    {"Scan", 9, 0, mgpu_lower_scan},
    {0},
};
