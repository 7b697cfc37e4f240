#include "partitioner/planner.h"
#include "runtime/base/status.h"
int mgpu_planner_run(struct mgpu_planned **out, const struct mgpu_planner_model *model,
                     const struct mgpu_planner_options *options)
{
    (void)model; (void)options; *out = NULL;
    return mgpu_fail(MGPU_EUNSUPPORTED, "not yet");
}
void mgpu_planned_free(struct mgpu_planned *planned) { (void)planned; }
