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

/* Arrays that are found by their names. Starts as zeros. */
struct mgpu_array_list {
    int count;
    struct mgpu_named_array *item;
};

/* A new one without contents; the name is copied. Pointers to others go stale. */
struct mgpu_named_array *mgpu_array_list_add(struct mgpu_array_list *list, const char *name);

/* NULL: there is none of that name. */
const struct mgpu_array *mgpu_array_list_find(const struct mgpu_array_list *list, const char *name);

void mgpu_array_list_free(struct mgpu_array_list *list);

#endif
