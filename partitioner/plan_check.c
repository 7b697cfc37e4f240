#include "partitioner/plan_check.h"

#include "runtime/base/nearest.h"
#include "runtime/base/status.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

/* ---- SHA-256 --------------------------------------------------------------------------------- */

static bool digest(EVP_MD_CTX *c, FILE *f, unsigned char *out)
{
    static const size_t BLOCK = 1 << 18;
    unsigned char *block = mgpu_xcalloc(BLOCK, 1);
    bool ok = EVP_DigestInit_ex(c, EVP_sha256(), NULL);
    for (size_t n; ok && (n = fread(block, 1, BLOCK, f)) > 0;)
        ok = EVP_DigestUpdate(c, block, n);
    free(block);
    return ok && EVP_DigestFinal_ex(c, out, NULL);
}

int mgpu_sha256_file(char out[MGPU_SHA256_TEXT], const char *path)
{
    unsigned char bytes[EVP_MAX_MD_SIZE];
    FILE *f = fopen(path, "rb");
    if (!f)
        return mgpu_fail(MGPU_EIO, "%s: %s", path, strerror(errno));
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    bool ok = c && digest(c, f, bytes);
    int rc = ferror(f) ? mgpu_fail(MGPU_EIO, "%s: %s", path, strerror(errno))
             : ok      ? 0
                       : mgpu_fail(MGPU_EINTERNAL, "%s: SHA-256 cannot be computed", path);
    for (int i = 0; rc == 0 && i < MGPU_SHA256_TEXT / 2; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    EVP_MD_CTX_free(c);
    fclose(f);
    return rc;
}

/* ---- Against the model ----------------------------------------------------------------------- */

struct check {
    const struct mgpu_plan_file *plan;
    const struct mgpu_outline *model;
    const char *model_path, *sha256;
    struct mgpu_arena *arena;
    int *position; /* by the model's node: in the plan, -1: missing */
};

/* A difference: of another model where the hashes differ, else of an edit. */
static int differs(const struct check *c, const char *what)
{
    const struct mgpu_plan_file *p = c->plan;
    if (!strcmp(p->sha256, c->sha256))
        return mgpu_fail(MGPU_EINVALID, "%s", what);
    return mgpu_fail(MGPU_EINVALID,
                     "a plan for another model: for %s (sha256 %.12s...), not for %s (%.12s...); "
                     "the first node that differs: %s",
                     p->model_file, p->sha256, c->model_path, c->sha256, what);
}

/* What the plan places and nothing computes here: not needed by these losses, or misspelt. */
static const char *first_unknown(struct check *c)
{
    const char *unknown = NULL;
    for (int i = 0; i < c->plan->nodes; i++) {
        int node = mgpu_outline_find(c->model, c->plan->node[i].output);
        if (node >= 0)
            c->position[node] = i;
        else if (!unknown)
            unknown = c->plan->node[i].output;
    }
    return unknown;
}

/* Losses and metrics of outputs that no node is called after run at the first place. */
static bool may_be_missing(const struct mgpu_outline_node *n)
{
    return !strcmp(n->type, "loss") || !strcmp(n->type, "metric");
}

static int check_nodes(struct check *c)
{
    const char *unknown = first_unknown(c);
    for (int i = 0; i < c->model->nodes; i++) {
        const struct mgpu_outline_node *n = &c->model->node[i];
        if (c->position[i] < 0 && may_be_missing(n))
            continue;
        if (c->position[i] < 0)
            return differs(
                c, mgpu_arena_format(c->arena, "'%s' (%s) has no device%s%s%s", n->output, n->type,
                                     unknown ? "; the plan has '" : "", unknown ? unknown : "",
                                     unknown ? "', which nothing computes" : ""));
        const struct mgpu_plan_node *p = &c->plan->node[c->position[i]];
        if (strcmp(p->type, n->type))
            return differs(c, mgpu_arena_format(c->arena, "'%s' is %s in the plan, %s here",
                                                n->output, p->type, n->type));
    }
    if (unknown && strcmp(c->plan->sha256, c->sha256))
        return differs(c, mgpu_arena_format(c->arena, "nothing computes '%s' here", unknown));
    return 0;
}

/* Where a weight has no owner, the first place that uses it is (runtime/compile/plan.h). */
static void tell_unowned(const struct check *c)
{
    const struct mgpu_outline *m = c->model;
    struct mgpu_names *owned = mgpu_names_new(c->arena);
    const char *first = NULL;
    int count = 0;
    for (int i = 0; i < c->plan->owners; i++)
        mgpu_names_set(owned, c->plan->owner[i].parameter, c->plan);
    for (int i = 0; i < m->weights; i++)
        if (!mgpu_names_get(owned, m->weight[i])) {
            first = first ? first : m->weight[i];
            count++;
        }
    if (count)
        mgpu_note("the plan has no owner for %d of %d weights ('%s'%s): each is owned where it is "
                  "first used",
                  count, m->weights, first, count > 1 ? ", ..." : "");
}

static int check_owners(const struct check *c)
{
    const struct mgpu_outline *m = c->model;
    struct mgpu_names *known = mgpu_names_new(c->arena);
    for (int i = 0; i < m->weights; i++)
        mgpu_names_set(known, m->weight[i], m->weight[i]);
    for (int i = 0; i < c->plan->owners; i++) {
        const char *name = c->plan->owner[i].parameter;
        if (mgpu_names_get(known, name))
            continue;
        const char *near = mgpu_nearest(name, m->weight, m->weights);
        return mgpu_fail(MGPU_EINVALID, "owners: the model has no weight '%s'%s%s%s", name,
                         near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    }
    if (c->plan->places > 1)
        tell_unowned(c);
    return 0;
}

/* Each device runs its nodes in the plan's order: one that waits for a later one waits forever. */
static int check_order(const struct check *c)
{
    for (int i = 0; i < c->model->edges; i++) {
        const struct mgpu_outline_edge *e = &c->model->edge[i];
        if (!e->either && c->position[e->to] >= 0 && c->position[e->from] > c->position[e->to])
            return mgpu_fail(MGPU_EINVALID,
                             "a circle: '%s' stands before '%s', which it needs (nodes run in the "
                             "plan's order)",
                             c->model->node[e->to].output, c->model->node[e->from].output);
    }
    return 0;
}

/* ---- Rewrites -------------------------------------------------------------------------------- */

/* reached[]: what needs the samples of node `from`, itself included. */
static void reach(const struct mgpu_outline *m, int from, bool *reached)
{
    memset(reached, 0, (size_t)m->nodes);
    reached[from] = true;
    for (int i = 0; i < m->edges; i++) /* edges stand in the order of the nodes they arrive at */
        if (m->edge[i].samples && reached[m->edge[i].from])
            reached[m->edge[i].to] = true;
}

static int find_parts(const struct check *c, const struct mgpu_plan_rewrite *r, int *node)
{
    const struct mgpu_outline_node *n = c->model->node;
    for (int i = 0; i < r->outputs; i++) {
        node[i] = mgpu_outline_find(c->model, r->output[i]);
        if (node[i] < 0)
            return mgpu_fail(MGPU_EINVALID, "nothing computes '%s' here", r->output[i]);
        for (int k = 0; k < i; k++)
            if (node[k] == node[i])
                return mgpu_fail(MGPU_EINVALID, "'%s' stands twice", r->output[i]);
        if (strcmp(n[node[i]].type, n[node[0]].type))
            return mgpu_fail(MGPU_EINVALID, "'%s' is %s, '%s' is %s", r->output[0], n[node[0]].type,
                             r->output[i], n[node[i]].type);
    }
    return 0;
}

static int check_keys(const struct check *c, const struct mgpu_plan_rewrite *r)
{
    for (int i = 0; i < r->outputs; i++)
        if (mgpu_outline_find(c->model, r->output[i]) < 0)
            return mgpu_fail(MGPU_EINVALID, "nothing computes '%s' here", r->output[i]);
    return 0;
}

static int check_rewrite(const struct check *c, const struct mgpu_plan_rewrite *r)
{
    const struct mgpu_outline *m = c->model;
    int *node = MGPU_NEW_ARRAY(c->arena, int, r->outputs);
    bool *reached = MGPU_NEW_ARRAY(c->arena, bool, m->nodes);
    bool stack = !strcmp(r->kind, MGPU_REWRITE_STACK);
    if (!stack && strcmp(r->kind, MGPU_REWRITE_RECOMPUTE))
        return mgpu_fail(MGPU_EUNSUPPORTED, "the kind '%s' is not known (stack, recompute)",
                         r->kind);
    if (!stack)
        return check_keys(c, r);
    if (r->outputs < 2)
        return mgpu_fail(MGPU_EINVALID, "two or more nodes are stacked");
    MGPU_TRY(find_parts(c, r, node));
    for (int i = 0; i < r->outputs; i++) {
        reach(m, node[i], reached);
        for (int k = 0; k < r->outputs; k++)
            if (k != i && reached[node[k]])
                return mgpu_fail(MGPU_EINVALID,
                                 "a circle: '%s' needs '%s', so they cannot be one call",
                                 r->output[k], r->output[i]);
    }
    return 0;
}

static int check_all(struct check *c)
{
    MGPU_TRY(check_nodes(c));
    MGPU_TRY(check_owners(c));
    MGPU_TRY(check_order(c));
    for (int i = 0; i < c->plan->rewrites; i++)
        MGPU_TRY(mgpu_prefix(check_rewrite(c, &c->plan->rewrite[i]), "rewrites[%d]", i));
    return 0;
}

int mgpu_plan_check(const struct mgpu_plan_file *plan, const struct mgpu_outline *model,
                    const char *model_path, const char *sha256)
{
    struct check c = {.plan = plan,
                      .model = model,
                      .model_path = model_path,
                      .sha256 = sha256,
                      .arena = mgpu_arena_new()};
    c.position = MGPU_NEW_ARRAY(c.arena, int, model->nodes);
    for (int i = 0; i < model->nodes; i++)
        c.position[i] = -1;
    int rc = check_all(&c);
    mgpu_arena_free(c.arena);
    if (rc == 0 && strcmp(plan->sha256, sha256))
        mgpu_note("the plan was made for %s (sha256 %.12s...), not for %s (%.12s...); its nodes "
                  "are the same",
                  plan->model_file, plan->sha256, model_path, sha256);
    return rc;
}

/* ---- For the runtime ------------------------------------------------------------------------- */

int mgpu_plan_from_file(struct mgpu_plan **out, const struct mgpu_plan_file *file)
{
    if (file->replicas * file->places > MGPU_MAX_RANKS)
        return mgpu_fail(MGPU_EUNSUPPORTED, "%d devices: at most %d can train together",
                         file->replicas * file->places, MGPU_MAX_RANKS);
    struct mgpu_plan *plan = mgpu_plan_new(file->replicas, file->places);
    for (int i = 0; i < file->nodes; i++)
        mgpu_plan_place(plan, file->node[i].output, file->node[i].place);
    for (int i = 0; i < file->owners; i++)
        mgpu_plan_own(plan, file->owner[i].parameter, file->owner[i].place);
    plan->rewrites = file->rewrites;
    plan->rewrite = mgpu_xcalloc((size_t)file->rewrites, sizeof *plan->rewrite);
    for (int i = 0; i < file->rewrites; i++) {
        const struct mgpu_plan_rewrite *r = &file->rewrite[i];
        struct mgpu_rewrite *to = &plan->rewrite[i];
        to->kind = mgpu_arena_string(plan->arena, r->kind);
        to->outputs = r->outputs;
        to->output = MGPU_NEW_ARRAY(plan->arena, const char *, r->outputs);
        for (int k = 0; k < r->outputs; k++)
            to->output[k] = mgpu_arena_string(plan->arena, r->output[k]);
    }
    if (file->bucket_bytes)
        plan->bucket_bytes = file->bucket_bytes;
    *out = plan;
    return 0;
}
