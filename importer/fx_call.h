/* dynamo's record of the call that a node was made of. */
#ifndef MGPU_IMPORTER_FX_CALL_H
#define MGPU_IMPORTER_FX_CALL_H

#include "importer/model.h"

/* What a normalisation was given for its scale, or its shift, with what follows that in the record:
 * "None, 1e-05)" (what the node has in that place is the exporter's), or "%p_norm_weight, ..." for
 * the module's parameter "norm.weight". NULL where there is no record, or of something else. */
const char *mgpu_fx_norm_argument(const struct mgpu_onnx_node *node, bool shift);

#endif
