/* An array with a name: what weights files hold, in their order. */
#ifndef MGPU_EXPORTER_NAMED_ARRAY_H
#define MGPU_EXPORTER_NAMED_ARRAY_H

#include "runtime/base/array.h"

struct mgpu_named_array {
    char *name;
    const char *layer; /* that it belongs to; NULL: by its name */
    struct mgpu_array array;
};

/* Contents, names (of malloc) and list. */
void mgpu_named_arrays_free(struct mgpu_named_array *arrays, int count);

#endif
