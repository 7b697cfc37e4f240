#include "exporter/named_array.h"

#include "runtime/base/memory.h"

#include <stdlib.h>
#include <string.h>

void mgpu_named_arrays_free(struct mgpu_named_array *arrays, int count)
{
    for (int i = 0; i < count; i++) {
        free(arrays[i].name);
        mgpu_array_free(&arrays[i].array);
    }
    free(arrays);
}

struct mgpu_named_array *mgpu_array_list_add(struct mgpu_array_list *list, const char *name)
{
    list->item = mgpu_grow(list->item, (size_t)list->count, sizeof *list->item);
    struct mgpu_named_array *a = &list->item[list->count++];
    *a = (struct mgpu_named_array){.name = mgpu_xstrdup(name)};
    return a;
}

const struct mgpu_array *mgpu_array_list_find(const struct mgpu_array_list *list, const char *name)
{
    for (int i = 0; i < list->count; i++)
        if (!strcmp(list->item[i].name, name))
            return &list->item[i].array;
    return NULL;
}

void mgpu_array_list_free(struct mgpu_array_list *list)
{
    mgpu_named_arrays_free(list->item, list->count);
    *list = (struct mgpu_array_list){0};
}
