/* The ONNX operators that can be lowered: what --list-ops prints. */
#ifndef MGPU_IMPORTER_OPERATORS_H
#define MGPU_IMPORTER_OPERATORS_H

#include <stdbool.h>

struct mgpu_onnx_operator {
    const char *type; /* "DOMAIN.TYPE" outside of ai.onnx */
    int since, until; /* opsets; until 0: no end */
    bool gradient;    /* false: integers, conditions, sizes, or zero nearly everywhere */
    const char *core; /* the core operator that does its work; "": none is left when it runs */
};

/* All of them by name, in a list that the caller frees. Returns how many. */
int mgpu_onnx_operators(struct mgpu_onnx_operator **out);

#endif
