#include "exporter/variable_layout.h"

#include <string.h>

static void set_shape(struct mgpu_variable *x, int rank, const int64_t *dims)
{
    x->rank = rank;
    memcpy(x->dims, dims, (size_t)rank * sizeof *dims);
}

/* ---- Names ----------------------------------------------------------------------------------- */

static const char *leaf_of(enum mgpu_variable_role role, enum mgpu_family family)
{
    static const char *const names[][2] = {
        [MGPU_VAR_KERNEL] = {"kernel", "weight"},
        [MGPU_VAR_DEPTHWISE] = {"depthwise_kernel", "weight"},
        [MGPU_VAR_POINTWISE] = {"pointwise_kernel", "weight"},
        [MGPU_VAR_RECURRENT] = {"recurrent_kernel", "weight_hh"},
        [MGPU_VAR_EMBEDDINGS] = {"embeddings", "weight"},
        [MGPU_VAR_ALPHA] = {"alpha", "weight"},
        [MGPU_VAR_GAMMA] = {"gamma", "weight"},
        [MGPU_VAR_BIAS] = {"bias", "bias"},
        [MGPU_VAR_BETA] = {"beta", "bias"},
        [MGPU_VAR_RECURRENT_BIAS] = {"bias", "bias_hh"},
        [MGPU_VAR_MEAN] = {"moving_mean", "running_mean"},
        [MGPU_VAR_VARIANCE] = {"moving_variance", "running_var"},
        [MGPU_VAR_OTHER] = {"", ""},
    };
    return names[role][family];
}

/* ---- Products, normalisations, tables -------------------------------------------------------- */

static bool is_type(const struct mgpu_onnx_node *node, const char *type)
{
    return !strcmp(node->type, type);
}

/* [out,in,k...] of ONNX, [k...,in,out] in Keras; a transposed convolution the same with the two
 * the other way round. */
static void conv_kernel(struct mgpu_variable *x, const struct mgpu_variable_reader *r,
                        const struct mgpu_array *a)
{
    int64_t view[MGPU_MAX_RANK];
    int perm[MGPU_MAX_RANK], n = 0;
    for (int i = 2; i < a->rank; i++)
        if (!(r->flat && i == 2))
            view[n++] = a->dims[i];
    view[n] = a->dims[1];
    view[n + 1] = a->dims[0];
    perm[0] = n + 1;
    perm[1] = n;
    for (int i = 0; i < n; i++)
        perm[2 + i] = i;
    set_shape(x, n + 2, view);
    x->layout = mgpu_weight_layout_permuted(n + 2, view, perm);
}

/* [C*m,1,k...] of ONNX, [k...,C,m] in Keras. */
static void depthwise_kernel(struct mgpu_variable *x, const struct mgpu_variable_reader *r,
                             const struct mgpu_array *a)
{
    int64_t view[MGPU_MAX_RANK], groups = mgpu_onnx_int(r->node, "group", 1);
    int perm[MGPU_MAX_RANK], n = 0;
    for (int i = 2; i < a->rank; i++)
        if (!(r->flat && i == 2))
            view[n++] = a->dims[i];
    view[n] = groups;
    view[n + 1] = a->dims[0] / groups;
    perm[0] = n;
    perm[1] = n + 1;
    for (int i = 0; i < n; i++)
        perm[2 + i] = i;
    set_shape(x, n + 2, view);
    x->layout = mgpu_weight_layout_permuted(n + 2, view, perm);
}

static void transposed(struct mgpu_variable *x, const struct mgpu_array *a)
{
    int64_t view[2] = {a->dims[1], a->dims[0]};
    set_shape(x, 2, view);
    x->layout = mgpu_weight_layout_permuted(2, view, (int[]){1, 0});
}

/* Keras has [in,out], PyTorch [out,in]; ONNX [in,out], or [out,in] with transB. A MatMul whose
 * first operand it is has it the other way round, too. */
static void dense_kernel(struct mgpu_variable *x, enum mgpu_family family,
                         const struct mgpu_variable_reader *r, const struct mgpu_array *a)
{
    bool out_in = is_type(r->node, "Gemm") && mgpu_onnx_int(r->node, "transB", 0);
    if (r->input == 0)
        out_in = true;
    if (out_in == (family == MGPU_FAMILY_KERAS) && !r->moved)
        transposed(x, a);
}

/* Keras has [H,W,C]; ONNX [C,H,W], perhaps with axes of one element around. PyTorch has [C].
 * TensorFlow's exporter adds the batch axis when it turns the slope, and else leaves it. */
static void slope(struct mgpu_variable *x, enum mgpu_family family,
                  const struct mgpu_variable_reader *r, const struct mgpu_array *a)
{
    const int64_t *dims = a->dims;
    int rank = a->rank;
    while (rank > 1 && *dims == 1) {
        dims++;
        rank--;
    }
    if (family == MGPU_FAMILY_TORCH) {
        set_shape(x, 1, &(int64_t){mgpu_array_count(a)});
        return;
    }
    if (rank == 1 || (is_type(r->node, "Mul") && rank == a->rank))
        return; /* the channels of [1,1,C] are where Keras has them */
    int64_t view[MGPU_MAX_RANK];
    int perm[MGPU_MAX_RANK];
    for (int i = 0; i < rank; i++) {
        view[i] = dims[(i + 1) % rank];
        perm[i] = (i + rank - 1) % rank;
    }
    set_shape(x, rank, view);
    x->layout = mgpu_weight_layout_permuted(rank, view, perm);
}

/* tf_keras's attention: [1,1,E,heads,D] of Keras's [heads,D,E], before the graph reshapes it. */
static void attention_output(struct mgpu_variable *x, const struct mgpu_array *a)
{
    if (a->rank != 5 || a->dims[0] != 1 || a->dims[1] != 1)
        return;
    int64_t view[3] = {a->dims[3], a->dims[4], a->dims[2]};
    set_shape(x, 3, view);
    x->layout = mgpu_weight_layout_permuted(3, view, (int[]){2, 0, 1});
}

/* A vector, whatever axes of one element the exporter put around it, or in groups. */
static void vector(struct mgpu_variable *x, const struct mgpu_variable_reader *r,
                   const struct mgpu_array *a)
{
    int long_axes = 0;
    for (int i = 0; i < a->rank; i++)
        long_axes += a->dims[i] != 1;
    if (long_axes <= 1 || r->grouped)
        set_shape(x, 1, &(int64_t){mgpu_array_count(a)});
}

/* A table that is looked up has two axes, whatever the indices had. */
static void table(struct mgpu_variable *x, const struct mgpu_array *a)
{
    if (a->rank == 3 && a->dims[0] == 1)
        set_shape(x, 2, a->dims + 1);
}

/* Of a normalisation over several axes Keras has these; the exporter all. */
static void several_axes(struct mgpu_variable *x, const struct mgpu_array *a)
{
    int64_t dims[MGPU_MAX_RANK];
    int n = 0;
    for (int i = 0; i < a->rank; i++)
        if (a->dims[i] != 1)
            dims[n++] = a->dims[i];
    if (n > 1)
        set_shape(x, n, dims);
}

void mgpu_variable_plain(struct mgpu_variable *x, enum mgpu_family family,
                         const struct mgpu_variable_reader *r, const struct mgpu_array *a,
                         const char *op)
{
    bool conv = is_type(r->node, "Conv") || is_type(r->node, "ConvTranspose");
    set_shape(x, a->rank, a->dims);
    x->layout = mgpu_weight_layout_same(a->rank, a->dims);
    x->leaf = r->computed ? "" : r->folded ? op : leaf_of(x->role, family);
    if (r->as_named) {
        x->leaf = op;
        return;
    }
    if (r->part >= 0 && x->role == MGPU_VAR_BIAS && a->rank == 1) {
        set_shape(x, 2, (int64_t[]){2, a->dims[0]});
        x->layout.before = r->part * a->dims[0];
        return;
    }
    if (r->moved) {
        if (family == MGPU_FAMILY_KERAS && x->role == MGPU_VAR_KERNEL)
            attention_output(x, a);
        return;
    }
    if (r->rows && !strcmp(op, "weight"))
        table(x, a);
    else if (r->rows)
        return;
    else if (x->role == MGPU_VAR_DEPTHWISE && family == MGPU_FAMILY_KERAS)
        depthwise_kernel(x, r, a);
    else if (x->role == MGPU_VAR_KERNEL && conv && a->rank > 2 && family == MGPU_FAMILY_KERAS)
        conv_kernel(x, r, a);
    else if (x->role == MGPU_VAR_KERNEL && !conv && !is_type(r->node, "Loop") && a->rank == 2)
        dense_kernel(x, family, r, a);
    else if (x->role == MGPU_VAR_ALPHA)
        slope(x, family, r, a);
    else if (x->role == MGPU_VAR_BIAS || x->role == MGPU_VAR_GAMMA || x->role == MGPU_VAR_BETA ||
             r->folded)
        vector(x, r, a);
    if (family == MGPU_FAMILY_KERAS && x->rank > 1 && !strncmp(op, "Reshape", 7) &&
        (x->role == MGPU_VAR_GAMMA || x->role == MGPU_VAR_BETA))
        several_axes(x, a);
    x->layout.negate = x->role == MGPU_VAR_ALPHA && !strcmp(op, "Neg");
}

/* ---- Recurrent layers ------------------------------------------------------------------------ */

static int gates_of(const struct mgpu_onnx_node *node)
{
    return is_type(node, "LSTM") ? 4 : is_type(node, "GRU") ? 3 : 1;
}

static const unsigned char *order_of(const struct mgpu_onnx_node *node, enum mgpu_family family)
{
    static const unsigned char same[4] = {0, 1, 2, 3};
    return is_type(node, "LSTM")                                 ? mgpu_gates_lstm
           : is_type(node, "GRU") && family == MGPU_FAMILY_TORCH ? mgpu_gates_gru
                                                                 : same;
}

/* W and R of a direction are [gates*H, n] in ONNX and PyTorch, [n, gates*H] in Keras. */
static void recurrent_matrix(struct mgpu_variable *x, enum mgpu_family family, int64_t gates,
                             const struct mgpu_array *a)
{
    int64_t hidden = a->dims[1] / gates, n = a->dims[2];
    if (family == MGPU_FAMILY_TORCH) {
        set_shape(x, 2, a->dims + 1);
        x->layout = mgpu_weight_layout_same(3, (int64_t[]){gates, hidden, n});
        x->layout.gates = 0;
    } else {
        set_shape(x, 2, (int64_t[]){n, gates * hidden});
        x->layout = mgpu_weight_layout_permuted(3, (int64_t[]){n, gates, hidden}, (int[]){1, 2, 0});
        x->layout.gates = 1;
    }
}

/* B of a direction is [2*gates*H]: of the input, then of the state. PyTorch has both, Keras one,
 * but for a GRU with reset_after (linear_before_reset), which has [2, gates*H]. */
static void recurrent_bias(struct mgpu_variable *x, enum mgpu_family family,
                           const struct mgpu_variable_reader *r, int64_t gates,
                           const struct mgpu_array *a, int half)
{
    int64_t hidden = a->dims[1] / 2 / gates, n = gates * hidden;
    bool both = family == MGPU_FAMILY_KERAS && is_type(r->node, "GRU") &&
                mgpu_onnx_int(r->node, "linear_before_reset", 0);
    if (both) {
        set_shape(x, 2, (int64_t[]){2, n});
        x->layout = mgpu_weight_layout_same(3, (int64_t[]){2, gates, hidden});
        x->layout.gates = 1;
        return;
    }
    set_shape(x, 1, &n);
    x->layout = mgpu_weight_layout_same(2, (int64_t[]){gates, hidden});
    x->layout.gates = 0;
    x->layout.at = half * n;
    x->layout.tail = family == MGPU_FAMILY_KERAS ? n : 0;
}

void mgpu_variable_recurrent(struct mgpu_variable *x, enum mgpu_family family,
                             const struct mgpu_variable_reader *r, const struct mgpu_array *a,
                             int d, int half)
{
    int64_t gates = gates_of(r->node);
    bool bias = x->role == MGPU_VAR_BIAS;
    if (half)
        x->role = MGPU_VAR_RECURRENT_BIAS;
    x->leaf = family == MGPU_FAMILY_KERAS  ? leaf_of(x->role, family)
              : x->role == MGPU_VAR_KERNEL ? "weight_ih"
              : x->role == MGPU_VAR_BIAS   ? "bias_ih"
                                           : leaf_of(x->role, family);
    if (bias)
        recurrent_bias(x, family, r, gates, a, half);
    else
        recurrent_matrix(x, family, gates, a);
    x->layout.order = order_of(r->node, family);
    x->layout.at += d * (mgpu_array_count(a) / a->dims[0]);
}
