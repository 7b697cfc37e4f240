/* Update nodes. */
#include "runtime/base/status.h"
#include "runtime/graph/step_scalar.h"
#include "runtime/ops/build.h"
#include "runtime/train/optimizer.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_STATES = 3 };

static bool is_trained(const struct mgpu_parameter *p)
{
    return p->role == MGPU_WEIGHT && p->gradient;
}

/* The constants for a weight: those of the last group that matches. */
static const struct mgpu_update_attrs *attrs_of(struct mgpu_optimizer *optimizer, const char *name)
{
    const struct mgpu_update_attrs *attrs = &optimizer->attrs;
    for (int i = 0; i < optimizer->groups; i++) {
        struct mgpu_group *group = &optimizer->group[i];
        if (strcmp(group->pattern, name) != 0 && fnmatch(group->pattern, name, 0) != 0)
            continue;
        group->matched++;
        attrs = &group->attrs;
    }
    return attrs;
}

static int check_groups(const struct mgpu_optimizer *optimizer)
{
    for (int i = 0; i < optimizer->groups; i++)
        if (!optimizer->group[i].matched)
            return mgpu_fail(MGPU_EUSAGE, "--group %s matches none of the trained weights",
                             optimizer->group[i].pattern);
    return 0;
}

/* The norm of norms is that of all: no node has more inputs than kernels take. `x` is used up. */
static struct mgpu_value *norm_of(struct mgpu_graph *g, int count, struct mgpu_value **x)
{
    for (int norms = 0; count > MGPU_MAX_INPUTS; count = norms, norms = 0)
        for (int at = 0; at < count; at += MGPU_MAX_INPUTS) {
            int some = count - at < MGPU_MAX_INPUTS ? count - at : MGPU_MAX_INPUTS;
            x[norms++] = mgpu_build1(g, &mgpu_op_global_norm, NULL, some, x + at);
            if (!x[norms - 1])
                return NULL;
        }
    return mgpu_build1(g, &mgpu_op_global_norm, NULL, count, x);
}

static struct mgpu_value *gradient_norm(struct mgpu_graph *g)
{
    struct mgpu_value **gradients =
        MGPU_NEW_ARRAY(g->arena, struct mgpu_value *, g->parameter_count);
    int count = 0;
    for (int i = 0; i < g->parameter_count; i++)
        if (is_trained(&g->parameters[i]))
            gradients[count++] = g->parameters[i].gradient;
    return norm_of(g, count, gradients);
}

/* min(1, clip_norm / (norm of all gradients + 1e-6)) (torch.nn.utils.clip_grad_norm_), over what
 * they are scaled by. */
static struct mgpu_value *coefficient_of(struct mgpu_graph *g, const struct mgpu_optimizer *o)
{
    struct mgpu_value *one = mgpu_const_double(g, MGPU_DOUBLE, 1), *unscale = NULL;
    if (o->scaled)
        unscale = mgpu_graph_scalar(g, MGPU_SCALAR_UNSCALE, "1 / scale of the loss");
    if (o->clip_norm <= 0)
        return unscale;
    struct mgpu_value *norm = gradient_norm(g);
    if (unscale)
        norm = mgpu_mul(g, norm, unscale);
    struct mgpu_value *limit = mgpu_const_double(g, MGPU_DOUBLE, o->clip_norm);
    struct mgpu_value *ratio = mgpu_div(g, limit, mgpu_affine(g, norm, 1, 1e-6));
    struct mgpu_value *clip = mgpu_binary(g, MGPU_X_MIN, ratio, one);
    return unscale ? mgpu_mul(g, clip, unscale) : clip;
}

static struct mgpu_value *add_state(struct mgpu_graph *g, const struct mgpu_value *weight,
                                    const char *name, double start, struct mgpu_state_start *out)
{
    out->name = mgpu_arena_format(g->arena, "%s:%s", weight->name, name);
    out->value = start;
    return mgpu_graph_parameter(g, out->name, MGPU_STATE, weight->type, weight->rank, weight->dims);
}

/* The update of parameter `p`; starts[] gets its states. Returns how many. */
static int add_update(struct mgpu_graph *g, const struct mgpu_update_attrs *attrs, int p,
                      struct mgpu_value *coefficient, struct mgpu_state_start *starts)
{
    double start[MOST_STATES];
    int states = mgpu_update_states(attrs, start);
    struct mgpu_value *out[1 + MOST_STATES], *weight = g->parameters[p].value;
    struct mgpu_value *in[5 + MOST_STATES] = {
        weight, g->parameters[p].gradient, mgpu_graph_scalar(g, MGPU_SCALAR_STEP, "updates so far"),
        mgpu_graph_scalar(g, MGPU_SCALAR_LR_FACTOR, "factor of the learning rate"), coefficient};
    for (int s = 0; s < states; s++)
        in[5 + s] = add_state(g, weight, mgpu_update_state_name(attrs, s), start[s], &starts[s]);
    g->origin.name = weight->name;
    MGPU_TRY(mgpu_graph_node(g, &mgpu_op_update, attrs, 5 + states, in, 1 + MOST_STATES, out));
    g->parameters[p].next = out[0];
    for (int s = 0; s < states; s++)
        g->parameters[in[5 + s]->index].next = out[1 + s];
    return states;
}

static int build(struct mgpu_graph *g, struct mgpu_optimizer *optimizer,
                 struct mgpu_state_start *starts, int *count)
{
    int weights = g->parameter_count, trained = 0;
    struct mgpu_value *coefficient = NULL;
    for (int i = 0; i < weights; i++)
        trained += is_trained(&g->parameters[i]);
    if ((optimizer->clip_norm > 0 || optimizer->scaled) && trained) {
        coefficient = coefficient_of(g, optimizer);
        if (!coefficient)
            return mgpu_build_error();
    }
    for (int i = 0; i < weights; i++) {
        if (!is_trained(&g->parameters[i]))
            continue;
        const struct mgpu_update_attrs *attrs = attrs_of(optimizer, g->parameters[i].name);
        int states = add_update(g, attrs, i, coefficient, starts + *count);
        MGPU_TRY(states);
        *count += states;
    }
    return check_groups(optimizer);
}

int mgpu_optimizer_build(struct mgpu_graph *g, struct mgpu_optimizer *optimizer,
                         struct mgpu_state_start **starts, int *count)
{
    struct mgpu_origin before = g->origin;
    g->origin = (struct mgpu_origin){
        .path = "", .output = "", .name = "", .type = "update", .role = MGPU_UPDATE};
    *count = 0;
    *starts = MGPU_NEW_ARRAY(g->arena, struct mgpu_state_start, MOST_STATES * g->parameter_count);
    int rc = build(g, optimizer, *starts, count);
    g->origin = before;
    return rc;
}
