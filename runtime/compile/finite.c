#include "runtime/compile/finite.h"

#include "runtime/base/status.h"
#include "runtime/ops/update.h"

#include <stdio.h>
#include <string.h>

enum { PIECE = 1 << 15 }; /* elements that are worth waking another thread */

static bool finite_floats(const float *x, int64_t n)
{
    uint32_t found = 0; /* an exponent of all ones */
#pragma omp simd reduction(| : found)
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        found |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return !found;
}

static bool finite_doubles(const double *x, int64_t n)
{
    double sum = 0; /* 0 * x is NaN where x is not finite */
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += 0 * x[i];
    return sum == 0;
}

static bool finite_halves(const uint16_t *x, int64_t n, uint16_t exponent)
{
    bool finite = true;
    for (int64_t i = 0; i < n; i++)
        finite = finite && (x[i] & exponent) != exponent;
    return finite;
}

bool mgpu_all_finite(const void *data, enum mgpu_dtype type, int64_t bytes)
{
    bool finite = true;
    if (type == MGPU_FLOAT16 || type == MGPU_BFLOAT16)
        return finite_halves(data, bytes / 2, type == MGPU_FLOAT16 ? 0x7c00 : 0x7f80);
    if (type != MGPU_FLOAT && type != MGPU_DOUBLE)
        return true;
    int64_t n = bytes / (int64_t)mgpu_dtype_size(type);
#pragma omp parallel for if (n > PIECE) schedule(static) reduction(&& : finite)
    for (int64_t at = 0; at < n; at += PIECE) {
        int64_t count = n - at < PIECE ? n - at : PIECE;
        finite = finite && (type == MGPU_FLOAT ? finite_floats((const float *)data + at, count)
                                               : finite_doubles((const double *)data + at, count));
    }
    return finite;
}

static const char *gradient_text(char text[MGPU_VALUE_TEXT], const char *weight)
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

/* A part of it, where replicas share the weight. */
static bool early_gradient_finite(const struct mgpu_instruction *update)
{
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
            return gradient_text(text, q->name);
    }
    if (p->early && update && run->check_gradients && !early_gradient_finite(update))
        return gradient_text(text, update->node->input[MGPU_UPDATE_WEIGHT]->name);
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
