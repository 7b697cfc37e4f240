/* --plan: a plan file becomes the trainer's plan, and is checked against the model. */
#include "partitioner/plan_check.h"
#include "runtime/base/status.h"
#include "runtime/facade/facade.h"

#include <string.h>

const char *mgpu_plan_device_list(struct mgpu_trainer *t)
{
    const char *list = "";
    for (int i = 0; i < t->plan_file->devices; i++)
        list = mgpu_arena_format(t->arena, "%s%s%s", list, i ? "," : "", t->plan_file->device[i]);
    return list;
}

static int check_count(const struct mgpu_trainer *t, int count)
{
    const struct mgpu_plan_file *p = t->plan_file;
    return count == p->devices
               ? 0
               : mgpu_fail(MGPU_EUSAGE, "--plan %s: is for %d devices, --devices names %d",
                           t->options.plan, p->devices, count);
}

int mgpu_plan_devices(struct mgpu_trainer *t, int *ranks)
{
    const struct mgpu_options *o = &t->options;
    MGPU_TRY(mgpu_prefix(mgpu_plan_file_read(&t->plan_file, o->plan), "--plan"));
    MGPU_TRY(mgpu_prefix(mgpu_plan_from_file(&t->plan, t->plan_file), "--plan %s", o->plan));
    const char *list = o->devices ? o->devices : mgpu_plan_device_list(t);
    MGPU_TRY(mgpu_prefix(mgpu_devices_parse(&t->devices, ranks, list, o->threads), "--plan %s",
                         o->plan));
    MGPU_TRY(check_count(t, *ranks));
    *ranks = mgpu_plan_ranks(t->plan); /* others have nothing to do */
    return 0;
}

static int check_graph(struct mgpu_trainer *t, const struct mgpu_graph *g)
{
    char sha[MGPU_SHA256_TEXT];
    MGPU_TRY(mgpu_sha256_file(sha, t->path));
    struct mgpu_outline *outline = mgpu_outline_new(g);
    int rc = mgpu_plan_check(t->plan_file, outline, t->path, sha);
    mgpu_outline_free(outline);
    return rc;
}

int mgpu_check_plan(struct mgpu_trainer *t)
{
    struct mgpu_graph *g;
    enum mgpu_mode mode = !t->options.inference ? MGPU_MODE_TRAIN
                          : t->losses           ? MGPU_MODE_EVALUATE
                                                : MGPU_MODE_PREDICT;
    if (!t->plan_file)
        return 0;
    MGPU_TRY(mgpu_build_graph(&g, t, mode, t->batch));
    int rc = mgpu_prefix(check_graph(t, g), "--plan %s", t->options.plan);
    mgpu_graph_free(g);
    return rc;
}
