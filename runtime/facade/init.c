/* --init: weights of a file take the place of the model's. */
#include "runtime/base/status.h"
#include "runtime/facade/facade.h"
#include "runtime/facade/weights_file.h"

int mgpu_init_weights(struct mgpu_trainer *t)
{
    const struct mgpu_options *o = &t->options;
    const struct mgpu_match_options match = {.map = o->map,
                                             .by_order = o->by_order,
                                             .partial = o->partial,
                                             .skip_mismatch = o->skip_mismatch,
                                             .allow_nonfinite = o->allow_nonfinite,
                                             .fresh = t->fresh};
    struct mgpu_weights_result r = {0};
    if (!o->init)
        return o->map || o->partial || o->skip_mismatch || o->allow_nonfinite || o->optimizer_state
                   ? mgpu_fail(MGPU_EUSAGE, "--map, --partial, --skip-mismatch, --allow-nonfinite "
                                            "and --optimizer-state are for --init")
                   : 0;
    MGPU_TRY(mgpu_weights_from_file(&t->weights, t->model, o->init, true, &match, &r,
                                    o->optimizer_state ? &t->slots : NULL));
    mgpu_weights_put_constants(t->weights, t->model);
    mgpu_weights_tell_left(&r, o->init);
    mgpu_note("%s: %d of %d tensors%s%s", o->init, r.matched, r.total, *r.unwrapped ? ", " : "",
              r.unwrapped);
    mgpu_weights_result_free(&r);
    return 0;
}
