/* Names without what parallel training put around them. */
#ifndef MGPU_EXPORTER_WRAPPERS_H
#define MGPU_EXPORTER_WRAPPERS_H

#include "exporter/checkpoint.h"

/* Takes off, and says so in c->unwrapped:
 *   multi_gpu_model of Keras: all weights are in the group of the one model inside;
 *   "_orig_mod." (torch.compile) and what FSDP and activation checkpoints put in, wherever it is;
 *   "module." (DataParallel) and "state_dict.": only where every name begins with it;
 *   MirroredStrategy: copies called ".../replica_1" of a variable that is there itself. */
void mgpu_unwrap(struct mgpu_checkpoint *c);

/* "model._orig_mod.fc.weight" is "model.fc.weight": the second line above, for one name. */
const char *mgpu_without_wrappers(struct mgpu_arena *arena, const char *name);

#endif
