#include "runtime/facade/facade.h"

#include <string.h>

const char *mgpu_help(const char *topic)
{
    if (!strcmp(topic, "loss"))
        return mgpu_loss_help();
    if (!strcmp(topic, "optimizer"))
        return mgpu_optimizer_help();
    return NULL;
}
