/* Whether a plan fits a model, and the plan as the runtime takes it. */
#ifndef MGPU_PARTITIONER_PLAN_CHECK_H
#define MGPU_PARTITIONER_PLAN_CHECK_H

#include "partitioner/outline.h"
#include "partitioner/plan_file.h"

/* The SHA-256 of a file's bytes as 64 hexadecimal digits and a zero. */
enum { MGPU_SHA256_TEXT = 65 };
int mgpu_sha256_file(char out[MGPU_SHA256_TEXT], const char *path);

/* The model's nodes must all be placed, under their types, each after those that it needs;
 * rewrites must name nodes that can be computed together. Where the hashes differ and the nodes do
 * not (the weights changed) a note says so. MGPU_EINVALID names the first node that differs. */
int mgpu_plan_check(const struct mgpu_plan_file *plan, const struct mgpu_outline *model,
                    const char *model_path, const char *sha256);

/* The runtime's plan: ranks are the plan's devices, in order. Its strings are those of `file`,
 * which must outlive it; free with mgpu_plan_free. MGPU_EUNSUPPORTED above MGPU_MAX_RANKS. */
int mgpu_plan_from_file(struct mgpu_plan **out, const struct mgpu_plan_file *file);

#endif
