/* Lowering: an ONNX model at bound sizes becomes a graph of core operators.
 *
 * lower.c walks the nodes in order and keeps, for each ONNX name, the core value that it is.
 * lower_<family>.c hold one function an ONNX operator (struct mgpu_lowering), which reads its
 * inputs, attributes and opset and appends core nodes through runtime/ops/build.h. What is constant
 * folds as it is made, so shape arithmetic never reaches the graph.
 */
#ifndef MGPU_IMPORTER_LOWER_H
#define MGPU_IMPORTER_LOWER_H

#include "importer/weights.h"
#include "runtime/ops/build.h"

struct mgpu_binding { /* --dim NAME=VALUE */
    const char *name;
    int64_t value;
};

struct mgpu_lower_list { /* a sequence, or an optional that has no value */
    int count;
    const struct mgpu_array *item;
    bool absent;
};

struct mgpu_lower_input { /* what the data say of a graph input; without one, axis 0 is the batch */
    const char *name;
    int batch_axis;              /* -1: none: rows are not samples */
    int rank;                    /* -1: unknown */
    int64_t dims[MGPU_MAX_RANK]; /* per step at batch 1 where batch_axis says so; 0 = unknown */
    const struct mgpu_array *contents; /* known now: the input is a constant. NULL: fed each step */
    const struct mgpu_lower_list *list; /* known now, instead of a tensor; NULL: it is a tensor */
};

enum mgpu_norm_mode { MGPU_NORM_TRAIN, MGPU_NORM_FROZEN, MGPU_NORM_SYNC, MGPU_NORM_DEFAULT };
enum mgpu_variance { MGPU_VARIANCE_DEFAULT, MGPU_VARIANCE_UNBIASED, MGPU_VARIANCE_POPULATION };

struct mgpu_dropout_rule { /* --dropout [NODE=]P, keep, off */
    const char *node;      /* a Dropout, or what one is to follow; NULL: all Dropout nodes */
    double probability;    /* -1: keep what the file says; 0: off */
    bool *fits;            /* becomes true where a node goes by the rule; may be NULL */
};

struct mgpu_momentum_rule { /* --bn-momentum [PATTERN=]M */
    const char *pattern;    /* glob on the running mean's name; NULL: all */
    double momentum;        /* weight of the old value */
    bool *fits;             /* becomes true where a node goes by the rule */
};

struct mgpu_lower_options {
    enum mgpu_dtype float_type; /* MGPU_FLOAT or MGPU_DOUBLE */
    int64_t batch;              /* samples of this lowering; 0: what the file says, else 1 */
    bool training;              /* false: inference form of everything */
    enum mgpu_norm_mode norm;
    enum mgpu_variance variance;
    const struct mgpu_binding *binding;
    int bindings;
    const struct mgpu_lower_input *input;
    int inputs;
    const struct mgpu_dropout_rule *dropout;
    int dropouts;
    const struct mgpu_momentum_rule *momentum; /* the last that fits counts */
    int momenta;
    bool *momentum_unsaid; /* becomes true where Keras's default is taken; may be NULL */
    /* Recurrent nodes, by name or output, whose states the graph takes and gives: inputs NAME.h and
     * (LSTM) NAME.c [D, N, H], outputs NAME.h.last and NAME.c.last. */
    const char *const *stateful;
    int statefuls;
    const char *const *wanted; /* outputs (graph outputs or any ONNX name) to compute; NULL: all
                                * graph outputs. What they do not need is not lowered. */
    int wanted_count;
    /* Called with each thing that is not supported, before they all end in the error; may be NULL.
     */
    void (*unsupported)(void *context, const char *text);
    /* Called with what is wrong with a node, before it ends in the error; may be NULL. */
    void (*wrong)(void *context, const char *text);
    /* Called with what was understood otherwise than it is written; may be NULL. */
    void (*note)(void *context, const char *text);
    void *context;
};

/* The graph: inputs (those that are needed), parameters (weights of `weights`, by index: parameter
 * i of the graph carries weight->name), outputs by their ONNX names, running statistics as
 * parameters[..].next. Everything unsupported is collected and reported in one error. */
int mgpu_lower(struct mgpu_graph **out, struct mgpu_onnx_model *model,
               const struct mgpu_weights *weights, const struct mgpu_lower_options *options);

/* The value that the graph gives as ONNX's `name`: an output, else any value of that name, or NULL
 * (it was not needed, or folded away). */
struct mgpu_value *mgpu_lowered_value(const struct mgpu_graph *g, const char *name);

/* ---- For lower_<family>.c ---------------------------------------------------------------------
 */

struct mgpu_lower_walk;

struct mgpu_lower {
    struct mgpu_graph *g;
    struct mgpu_onnx_model *model;
    const struct mgpu_weights *weights;
    const struct mgpu_lower_options *options;
    const struct mgpu_onnx_node *node; /* the one being lowered */
    struct mgpu_value *in[64];         /* its inputs; NULL: absent. More: mgpu_lower_in */
    struct mgpu_value *out[64];        /* to be set; one left NULL is an error if it is used */
    struct mgpu_lower_walk *walk;      /* lower.c's: names, weights, what is not supported */
};

struct mgpu_lowering {
    const char *type; /* ONNX operator; "DOMAIN.TYPE" outside of ai.onnx */
    int since, until; /* opsets [since, until] of the domain (until 0: no end) for this row */
    int (*lower)(struct mgpu_lower *l);
};

/* All of them, ended by NULL. */
extern const struct mgpu_lowering *const mgpu_lower_families[];

/* One table a family, ended by a NULL type. */
extern const struct mgpu_lowering mgpu_lower_math[];   /* lower_math.c: arithmetic, activations */
extern const struct mgpu_lowering mgpu_lower_logic[];  /* comparisons, Where, Cast, bits */
extern const struct mgpu_lowering mgpu_lower_tensor[]; /* Shape, Reshape, Expand, constants ... */
extern const struct mgpu_lowering mgpu_lower_move[];   /* Concat, Split, Slice, Pad ... */
extern const struct mgpu_lowering mgpu_lower_gather[]; /* Gather*, Scatter*, OneHot ... */
extern const struct mgpu_lowering mgpu_lower_reduce[]; /* Reduce*, ArgMax, CumSum, TopK */
extern const struct mgpu_lowering mgpu_lower_linear[]; /* MatMul, Gemm, Einsum */
extern const struct mgpu_lowering mgpu_lower_conv[];   /* Conv, ConvTranspose, pools */
extern const struct mgpu_lowering mgpu_lower_normalize[]; /* BatchNormalization ..., Dropout */
extern const struct mgpu_lowering mgpu_lower_rnn[];       /* RNN, GRU, LSTM */
extern const struct mgpu_lowering mgpu_lower_attention[]; /* Attention, RotaryEmbedding */
extern const struct mgpu_lowering mgpu_lower_image[];     /* Resize, Upsample, DepthToSpace ... */
extern const struct mgpu_lowering mgpu_lower_loss[];     /* SoftmaxCrossEntropyLoss, Nll, Softmax */
extern const struct mgpu_lowering mgpu_lower_control[];  /* If, Loop, Scan that are known before */
extern const struct mgpu_lowering mgpu_lower_sequence[]; /* Sequence*, Optional* */
extern const struct mgpu_lowering mgpu_lower_signal[];   /* windows, DFT, STFT */
extern const struct mgpu_lowering mgpu_lower_found[];    /* NonZero, Unique ...: values say sizes */
extern const struct mgpu_lowering mgpu_lower_region[];   /* DeformConv, Col2Im, MaxUnpool */
extern const struct mgpu_lowering mgpu_lower_roi[];      /* RoiAlign, MaxRoiPool */
extern const struct mgpu_lowering mgpu_lower_quantize[]; /* QuantizeLinear, MatMulInteger ... */
extern const struct mgpu_lowering mgpu_lower_random[];   /* RandomNormal, Bernoulli ... */
extern const struct mgpu_lowering mgpu_lower_training[]; /* Adam and kin, as nodes */
extern const struct mgpu_lowering mgpu_lower_state[];    /* CausalConvWithState, LinearAttention */

/* ---- Inputs and outputs of the node ---- */

/* Input i, NULL when absent. */
struct mgpu_value *mgpu_lower_in(struct mgpu_lower *l, int i);

/* Fails where one of the first `count` inputs is absent; the second gives input 0. */
int mgpu_lower_need(struct mgpu_lower *l, int count);
int mgpu_lower_first(struct mgpu_lower *l, struct mgpu_value **x);

/* Whether output i has a name: somebody may use it. */
bool mgpu_lower_wants(const struct mgpu_lower *l, int i);

/* Finishes a formula: sets out[0] = value, or gives the build error. */
int mgpu_lower_give(struct mgpu_lower *l, struct mgpu_value *value);

/* One core node; its output 0, or NULL with the build error set. */
struct mgpu_value *mgpu_lower_node(struct mgpu_lower *l, const struct mgpu_op *op,
                                   const void *attrs, int inputs, struct mgpu_value *const *input);

/* The weight behind input i when it is a parameter of the graph, else NULL. */
struct mgpu_parameter *mgpu_lower_parameter(struct mgpu_lower *l, int i);

/* ---- Numbers known now ---- */

/* A constant input as numbers: MGPU_EUNSUPPORTED naming the input when it is not constant, or has
 * more than `most`; returns the count. `dims` (may be NULL) gets the monomials. */
int mgpu_lower_ints(struct mgpu_lower *l, int i, int64_t *values, struct mgpu_dim *dims, int most);
int mgpu_lower_int(struct mgpu_lower *l, int i, int64_t *value, struct mgpu_dim *dim); /* one */
int mgpu_lower_doubles(struct mgpu_lower *l, int i, double *values, int most);

/* A constant of `type` with these elements, converted. */
struct mgpu_value *mgpu_lower_numbers(struct mgpu_lower *l, enum mgpu_dtype type, int rank,
                                      const struct mgpu_dim *dims, const double *elements);

/* A list that older opsets give as attribute `name` and newer ones as input `i` (the attribute when
 * the node has one). Returns the count, -1 when there is neither; errors are below -1. */
enum { MGPU_LOWER_ABSENT = INT32_MIN };
int mgpu_lower_list(struct mgpu_lower *l, const char *name, int i, int64_t *values,
                    struct mgpu_dim *dims, int most);

/* Axis in [-rank, rank) made non-negative, or an error. */
int mgpu_lower_axis(int64_t *out, int64_t axis, int rank);

/* "axes" as an attribute or as input `i` (later opsets; -1: never), as a bit mask; `otherwise` when
 * absent or empty. */
int mgpu_lower_axes(struct mgpu_lower *l, int i, int rank, unsigned otherwise, unsigned *mask);

/* ---- Types and shapes ---- */

/* The type in which an ONNX type is computed here: FLOAT is options->float_type; so are the halves
 * where there are weights: they are trained as masters of that type, and rounded as they are
 * written. Or an error. */
enum mgpu_dtype mgpu_lower_held(const struct mgpu_lower *l, enum mgpu_dtype type);
int mgpu_lower_type(const struct mgpu_lower *l, int64_t onnx, enum mgpu_dtype *out);

/* Two sizes that must be equal: the one that knows more of where it comes from. */
struct mgpu_dim mgpu_lower_same(struct mgpu_dim a, struct mgpu_dim b);

/* `a` as a matrix: the axes before `axis`, and the others. */
struct mgpu_value *mgpu_lower_flatten(struct mgpu_lower *l, struct mgpu_value *a, int axis);

/* `a`, which must have one element, as rank 0. */
struct mgpu_value *mgpu_lower_scalar(struct mgpu_lower *l, struct mgpu_value *a);

/* Before opset 7 the second operand was spread only on request, from `axis` on. */
struct mgpu_value *mgpu_lower_spread(struct mgpu_lower *l, struct mgpu_value *a,
                                     struct mgpu_value *b);

/* A gather_nd of x by constant indices in which every sample reads its own rows only, as one inside
 * each sample; NULL: it is none, or an error of mgpu_build_error. */
struct mgpu_value *mgpu_lower_own_rows(struct mgpu_lower *l, struct mgpu_value *x,
                                       struct mgpu_value *indices);

/* Rows of a table that have a file of their own. */
int mgpu_lower_einsum(struct mgpu_lower *l);
int mgpu_lower_batch_norm(struct mgpu_lower *l);
/* A dropout that an export for inference has left out, behind the node that a rule names. */
int mgpu_lower_put_back_dropout(struct mgpu_lower *l);
int mgpu_lower_loop(struct mgpu_lower *l);
int mgpu_lower_scan(struct mgpu_lower *l);
int mgpu_lower_scan_8(struct mgpu_lower *l);
int mgpu_lower_grid_sample(struct mgpu_lower *l);
int mgpu_lower_affine_grid(struct mgpu_lower *l);

/* Conv of these operands with the node's attributes; sets out[0]. bias NULL: none. */
int mgpu_lower_convolution(struct mgpu_lower *l, struct mgpu_value *x, struct mgpu_value *weight,
                           struct mgpu_value *bias);

/* ---- Bodies ---- */

/* The node's body of this attribute name, or NULL. */
const struct mgpu_onnx_body *mgpu_lower_body_called(const struct mgpu_lower *l, const char *name);

/* Lowers a body in the scope of the node, once more when it was lowered before: in[] are its formal
 * inputs (NULL where it has none), out[] its outputs. */
int mgpu_lower_body(struct mgpu_lower *l, const struct mgpu_onnx_body *body,
                    struct mgpu_value *const *in, struct mgpu_value **out);

#endif
