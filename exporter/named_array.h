/* An array with a name: what weights files hold. */
#ifndef MGPU_EXPORTER_NAMED_ARRAY_H
#define MGPU_EXPORTER_NAMED_ARRAY_H

#include "runtime/base/array.h"

struct mgpu_named_array {
    char *name;
    struct mgpu_array array;
};

#endif
