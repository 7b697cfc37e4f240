#include "exporter/named_array.h"

#include <stdlib.h>

void mgpu_named_arrays_free(struct mgpu_named_array *arrays, int count)
{
    for (int i = 0; i < count; i++) {
        free(arrays[i].name);
        mgpu_array_free(&arrays[i].array);
    }
    free(arrays);
}
