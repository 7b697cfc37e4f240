#include "importer/fx_call.h"

#include <string.h>

static const char *record_of(const struct mgpu_onnx_node *node)
{
    const Onnx__NodeProto *p = node->proto;
    for (size_t i = 0; p && i < p->n_metadata_props; i++)
        if (!strcmp(p->metadata_props[i]->key, "pkg.torch.onnx.fx_node"))
            return p->metadata_props[i]->value;
    return NULL;
}

/* Of "(%x, [8], None, 1e-05)" number `n`, with what follows it; NULL: there are not so many. */
static const char *argument(const char *at, int n)
{
    int depth = 0;
    for (at++; *at && depth >= 0; at++) {
        if (n == 0)
            return at;
        depth += (*at == '(' || *at == '[') - (*at == ')' || *at == ']');
        if (*at == ',' && depth == 0) {
            at += at[1] == ' ';
            n--;
        }
    }
    return NULL;
}

const char *mgpu_fx_norm_argument(const struct mgpu_onnx_node *node, bool shift)
{
    static const struct {
        const char *op;
        int scale; /* which argument; the shift is the next */
    } norms[] = {{"layer_norm", 2},        {"native_layer_norm", 2},
                 {"group_norm", 2},        {"native_group_norm", 1},
                 {"instance_norm", 1},     {"batch_norm", 1},
                 {"native_batch_norm", 1}, {"_native_batch_norm_legit", 1},
                 {"rms_norm", 2}};
    static const char target[] = "target=torch.ops.aten.", args[] = "(args = ";
    const char *record = record_of(node), *call = record ? strstr(record, target) : NULL;
    const char *list = call ? strstr(call, args) : NULL;
    for (size_t i = 0; list && i < sizeof norms / sizeof *norms; i++) {
        size_t n = strlen(norms[i].op);
        const char *op = call + strlen(target);
        if (!strncmp(op, norms[i].op, n) && (op[n] == '.' || op[n] == '_'))
            return argument(list + strlen(args), norms[i].scale + shift);
    }
    return NULL;
}
