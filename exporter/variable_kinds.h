/* What variables and layers of Keras are by what else is in their layer. Between the files of
 * variables.h. */
#ifndef MGPU_EXPORTER_VARIABLE_KINDS_H
#define MGPU_EXPORTER_VARIABLE_KINDS_H

#include "exporter/variables.h"

/* Of variables in order: by layer, in a layer by role. */
void mgpu_variables_name_kinds(struct mgpu_variables *v);

#endif
