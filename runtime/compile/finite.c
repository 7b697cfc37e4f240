#include "runtime/compile/finite.h"

#include "runtime/base/finite.h"
#include "runtime/base/status.h"
#include "runtime/ops/update.h"

#include <stdio.h>
#include <string.h>

const char *mgpu_gradient_text(char text[MGPU_VALUE_TEXT], const char *weight)
{
    snprintf(text, MGPU_VALUE_TEXT, "the gradient of '%.200s'", weight);
    return text;
}

/* Whether result i is there when the early update runs. */
static bool is_known(const struct mgpu_program *p, int i, const struct mgpu_instruction *update)
{
    const struct mgpu_value *v = p->graph->outputs[i];
    return !p->early || !update || v->kind != MGPU_VALUE_RESULT ||
           v->producer->id < update->node->id;
}

/* A part of it, where replicas share the weight. Of a product only the kernel can tell. */
static bool early_gradient_finite(const struct mgpu_instruction *update)
{
    if (update->node->op == &mgpu_op_product_update)
        return true;
    const struct mgpu_tensor *g = &update->tensor[MGPU_UPDATE_GRADIENT];
    int64_t bytes = (int64_t)mgpu_dtype_size(g->type);
    for (int k = 0; k < g->rank; k++)
        bytes *= g->dims[k];
    return mgpu_all_finite(g->data, g->type, bytes);
}

const char *mgpu_find_not_finite(char text[MGPU_VALUE_TEXT], const struct mgpu_program *p,
                                 void *const buffer[MGPU_BUFFERS], const struct mgpu_execution *run,
                                 const struct mgpu_instruction *update)
{
    for (int i = 0; i < p->results && !run->idle; i++) {
        const struct mgpu_port *r = &p->result[i];
        if (r->index < run->losses && is_known(p, i, update) &&
            !mgpu_all_finite((char *)buffer[MGPU_BUFFER_RESULTS] + r->offset, r->type,
                             (int64_t)mgpu_dtype_size(r->type)))
            return "the loss";
    }
    for (int i = 0; i < p->graph->parameter_count && run->check_gradients; i++) {
        const struct mgpu_parameter *q = &p->graph->parameters[i];
        if (q->gradient && p->gradient[i] >= 0 &&
            !mgpu_all_finite((char *)buffer[MGPU_BUFFER_GRADIENTS] + p->gradient[i], q->value->type,
                             mgpu_value_bytes(q->value)))
            return mgpu_gradient_text(text, q->name);
    }
    if (p->early && update && run->check_gradients && !early_gradient_finite(update))
        return mgpu_gradient_text(text, update->node->input[MGPU_UPDATE_WEIGHT]->name);
    return NULL;
}

int mgpu_not_finite(const char *what, const struct mgpu_instruction *first, bool changed)
{
    char text[MGPU_VALUE_TEXT];
    const char *with = changed ? "computed again with the weights that had changed by then, " : "";
    if (!first)
        return mgpu_fail(MGPU_EINVALID, "%s is not finite (%sall of this rank's values are)", what,
                         with);
    const struct mgpu_origin *o = &first->node->origin;
    return mgpu_fail(MGPU_EINVALID,
                     "%s is not finite; %sthe first value that is not is %s%s (operator %s)", what,
                     with, o->role == MGPU_BACKWARD ? "the gradient of " : "the output of ",
                     mgpu_origin_text(text, o), first->node->op->name);
}
