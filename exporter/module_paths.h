/* Which module of PyTorch a node of TorchScript's is of.
 *
 * The exporter writes a part for each module that was called, "/h.0/attn/c_attn": its own name,
 * with the name before it where that is a number. What is not called itself has none: a ModuleDict,
 * a ModuleList in it, a module of which only a part is used. So the rule of what is certain is:
 *
 *   - a parameter that kept its name says what the module that reads it is called, and so what
 *     those around it are: "transformer.h.0.ln_1.weight" in "/h.0/ln_1" that "/h.0" is
 *     transformer.h.0;
 *   - parts below the innermost of these stand for themselves, which is likely, not proven;
 *   - nothing is known where one path is that of several modules, or the same path was counted on
 *     ("/fc", "/fc_1") and has other weights there.
 */
#ifndef MGPU_EXPORTER_MODULE_PATHS_H
#define MGPU_EXPORTER_MODULE_PATHS_H

#include "runtime/base/memory.h"

#include <stdbool.h>
#include <stddef.h>

struct mgpu_module_paths;

struct mgpu_module_path {
    const char *path; /* "transformer/h/0/attn/c_attn" */
    size_t proven;    /* its first characters that are */
    bool unknown;     /* the rest is not even likely */
};

struct mgpu_module_paths *mgpu_module_paths_new(struct mgpu_arena *arena);

/* A node in `layer` reads weight number `weight` at `input`. */
void mgpu_module_paths_read(struct mgpu_module_paths *p, const char *layer, int input, int weight);

/* After all of these: the same node's weight is a parameter of `module`, "transformer/h/0/ln_1"; ""
 * where its name is lost. */
void mgpu_module_paths_learn(struct mgpu_module_paths *p, const char *layer, int input, int weight,
                             const char *module);

struct mgpu_module_path mgpu_module_path_of(const struct mgpu_module_paths *p, const char *layer);

#endif
