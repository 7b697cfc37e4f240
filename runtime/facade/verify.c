#include "runtime/base/status.h"
#include "runtime/mgpu.h"
int mgpu_verify(const char *model, const char *plan, const struct mgpu_options *options,
                const struct mgpu_partition_options *partition, bool json, FILE *to)
{
    (void)model;
    (void)plan;
    (void)options;
    (void)partition;
    (void)json;
    (void)to;
    return mgpu_fail(MGPU_EUNSUPPORTED, "not yet");
}
