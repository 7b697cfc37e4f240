/* Between the files of variables.h. */
#ifndef MGPU_EXPORTER_NAMELESS_H
#define MGPU_EXPORTER_NAMELESS_H

#include "exporter/variables.h"

/* TorchScript turns what a product takes transposed, and cuts what is split, and the parameter's
 * name is lost. In a Linear it can only be the weight, and in PyTorch's attention the order of
 * products tells; elsewhere leaf becomes "". */
void mgpu_variables_nameless(struct mgpu_variables *variables);

#endif
