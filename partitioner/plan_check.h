/* Whether a plan fits a model, and the plan as the runtime takes it. */
#ifndef MGPU_PARTITIONER_PLAN_CHECK_H
#define MGPU_PARTITIONER_PLAN_CHECK_H

#include "partitioner/outline.h"
#include "partitioner/plan_file.h"
#include "runtime/compile/plan.h"

/* The SHA-256 of a file's bytes as 64 hexadecimal digits and a zero. */
enum { MGPU_SHA256_TEXT = 65 };
int mgpu_sha256_file(char out[MGPU_SHA256_TEXT], const char *path);

/* The model's nodes must all be placed, under their types, each after those that it needs (in the
 * graph or, where pool_first.c turned two of them around, in the file); owners must be weights;
 * rewrites must name nodes that can be computed together. A plan may place nodes of the same file
 * that are not needed here (other losses). Where the hashes differ and the nodes do not (the
 * weights changed) a note says so. MGPU_EINVALID names the first node that differs. */
int mgpu_plan_check(const struct mgpu_plan_file *plan, const struct mgpu_outline *model,
                    const char *model_path, const char *sha256);

/* The runtime's plan; rank r is the plan's device r. Free with mgpu_plan_free. MGPU_EUNSUPPORTED
 * above MGPU_MAX_RANKS. */
int mgpu_plan_from_file(struct mgpu_plan **out, const struct mgpu_plan_file *file);

#endif
