/* The record of a core operator: everything that is true of it, in one place.
 *
 * A family file (runtime/ops/conv.c ...) ends in its records; runtime/ops/ops.c lists them all.
 * What runs an operator is elsewhere (runtime/backend.h): a record knows shapes, gradients, costs
 * and how the work may be cut, and nothing of devices. To add one: write its attribute struct in
 * the family's header, its rules in the family's file, its row in ops.c, its plain kernel in
 * runtime/ref. tests/ops/test_table.c fails when a rule is missing.
 */
#ifndef MGPU_OPS_OP_H
#define MGPU_OPS_OP_H

#include "runtime/graph/graph.h"

/* How a value is spread over the ranks that work on a batch together, each on its own samples.
 * The whole value is never stored; what a rank holds is: */
enum mgpu_split_kind {
    MGPU_SPLIT_REPLICATED, /* the whole value, the same on every rank */
    MGPU_SPLIT_AXIS,       /* its samples' part of axis `axis` */
    MGPU_SPLIT_SUM,        /* a term: the value is the sum over the ranks */
    MGPU_SPLIT_MEAN,       /* its own mean: the value is the mean over the ranks, by samples */
};

/* The plan pass turns a mean into a sum by multiplying with MGPU_SCALAR_RANK_SHARE. An operator
 * that is linear in one input, the others replicated, may pass a sum or mean on; else it answers
 * FULL. Where an axis of size outer*N*inner was made from several (flattened [T,N] has outer = T),
 * `outer` says how the samples stand in it. */
struct mgpu_split {
    enum mgpu_split_kind kind;
    int axis;
    int64_t outer; /* 1 unless the sample index is not the slowest part of the axis */
};

/* What op->split answers. */
enum mgpu_split_answer {
    MGPU_SPLIT_OK = 0,    /* out[] is right for these in[] */
    MGPU_SPLIT_FULL = 1,  /* needs input *which whole: a sum must be all-reduced first */
    MGPU_SPLIT_MIXES = 2, /* mixes samples: cannot run on a part of the batch. *which: the input */
};

enum mgpu_attr_kind {
    MGPU_ATTR_INT,    /* int64_t */
    MGPU_ATTR_BOOL,   /* bool */
    MGPU_ATTR_FLOAT,  /* double */
    MGPU_ATTR_ENUM,   /* int, names in `names` (NULL-terminated) */
    MGPU_ATTR_INTS,   /* int64_t[length] */
    MGPU_ATTR_FLOATS, /* double[length] */
    MGPU_ATTR_TYPE,   /* enum mgpu_dtype */
    MGPU_ATTR_EXPR,   /* const struct mgpu_expr * */
    MGPU_ATTR_DIMS,   /* const struct mgpu_dim *: as many as field `rank` says, else the output's
                       * rank */
};

/* A field of an operator's attribute struct: for printing, comparing and hashing nodes. */
struct mgpu_attr {
    const char *name;
    enum mgpu_attr_kind kind;
    size_t offset;
    int length;
    const char *const *names;
};

/* Work of one node, for the planner. */
struct mgpu_cost {
    double flops; /* multiply and add are two */
    double bytes; /* read from and written to memory, each operand once */
};

enum mgpu_op_flags {
    MGPU_OP_NO_FOLD = 1,        /* has an effect or depends on the step: never folded */
    MGPU_OP_NO_GRADIENT = 2,    /* integer or piecewise constant: the gradient is zero (ArgMax) */
    MGPU_OP_VARIADIC = 4,       /* any number of inputs from min_inputs up */
    MGPU_OP_COMMUNICATION = 8,  /* several ranks take part */
    MGPU_OP_GRADIENT_ONLY = 16, /* made by gradients, updates or plans, not itself differentiated:
                                 * `gradient` says so by refusing, naming the operator */
};

/* What an operator does where values are kept in a half type (compile/half.h). */
enum mgpu_half_rule {
    MGPU_HALF_NEVER,   /* takes and gives floats: statistics, orders, optimizers */
    MGPU_HALF_TAKES,   /* takes data in a half type and gives floats: sums, losses */
    MGPU_HALF_FOLLOWS, /* gives what it takes: activations, movement, norms */
    MGPU_HALF_ROWS,    /* follows, and rows of a stored weight are where activations begin */
    MGPU_HALF_PRODUCT, /* all in a half type: what tensor cores compute */
};

/* Inputs of an operator that is not variadic; outputs of any. */
enum { MGPU_MAX_INPUTS = 16, MGPU_MAX_OUTPUTS = 8 };

/* Bits of op->alias. */
struct mgpu_alias {
    int input, output;
    bool view; /* true: the output is the input's memory, seen otherwise (reshape). false: the
                * output may overwrite the input element by element (in place) */
};

struct mgpu_op {
    const char *name;
    int min_inputs, max_inputs; /* trailing inputs up to max may be absent (NULL) */
    int outputs;                /* trailing outputs may be unwanted (NULL) */
    unsigned flags;
    size_t attrs_size;
    const struct mgpu_attr *attrs; /* ends with a NULL name; NULL when there are none */

    enum mgpu_half_rule half;
    unsigned float_inputs, float_outputs; /* bits: these are floats there all the same */

    /* Types and shapes of all outputs: fill out[i]->type, rank, dims (monomials too). Checks the
     * inputs: a wrong shape or type is an error that says which. Mandatory. */
    int (*shape)(const struct mgpu_node *node);

    /* Appends the backward nodes. dy[i] is the gradient of output i (NULL: none arrives); fills
     * dx[i] for the inputs where wanted[i], leaving NULL for zero. Uses node->input/output freely:
     * what it uses is what stays alive ("saved"). Mandatory unless MGPU_OP_NO_GRADIENT. */
    int (*gradient)(struct mgpu_graph *g, const struct mgpu_node *node,
                    struct mgpu_value *const *dy, const bool *wanted, struct mgpu_value **dx);

    /* Which inputs and outputs the gradient reads, as bit masks: what backward must keep. */
    void (*saved)(const struct mgpu_node *node, unsigned *inputs, unsigned *outputs);

    /* Views and in-place pairs: fills pairs[], returns how many (0: none). */
    int (*alias)(const struct mgpu_node *node, struct mgpu_alias pairs[MGPU_MAX_OUTPUTS]);

    /* Bytes of scratch that the plain algorithm needs (kernels add their own). */
    int64_t (*workspace)(const struct mgpu_node *node);

    /* Which memory layouts operand `i` (inputs, then outputs) may have: a bit mask of enum
     * mgpu_layout. */
    unsigned (*layouts)(const struct mgpu_node *node, int operand);

    struct mgpu_cost (*cost)(const struct mgpu_node *node);

    /* How the outputs are spread when the inputs are spread as in[] (one an input; absent inputs
     * are replicated). Only in[]/out[], node attributes and dims (with monomials) are looked at. */
    enum mgpu_split_answer (*split)(const struct mgpu_node *node, const struct mgpu_split *in,
                                    struct mgpu_split *out, int *which);

    /* Optional: the same computation in nodes that can be split, for a node that answers MIXES over
     * several ranks (a mean, a batch normalisation). Fills out[] with values that replace the
     * outputs. NULL: cannot. */
    int (*expand)(struct mgpu_graph *g, const struct mgpu_node *node, struct mgpu_value **out);
};

/* Layouts of a tensor in memory. Plain is row-major; the others are what fast kernels prefer. */
enum mgpu_layout {
    MGPU_LAYOUT_PLAIN = 1,
    MGPU_LAYOUT_BLOCKED = 2,       /* channels in blocks (oneDNN's nChw16c and kin) */
    MGPU_LAYOUT_CHANNELS_LAST = 4, /* NHWC */
    MGPU_LAYOUT_ANY = 7,           /* follows element by element whatever its neighbours have */
};

/* All records, in the order of the table; NULL-terminated. */
extern const struct mgpu_op *const mgpu_ops[];

/* The record called `name`, or NULL. */
const struct mgpu_op *mgpu_op_find(const char *name);

/* ---- Rules that many operators share ------------------------------------------------------- */

void mgpu_saved_nothing(const struct mgpu_node *, unsigned *inputs, unsigned *outputs);
void mgpu_saved_inputs(const struct mgpu_node *, unsigned *inputs, unsigned *outputs); /* all */
int mgpu_alias_none(const struct mgpu_node *, struct mgpu_alias *);
int mgpu_alias_view(const struct mgpu_node *, struct mgpu_alias *);     /* output 0 is input 0 */
int mgpu_alias_in_place(const struct mgpu_node *, struct mgpu_alias *); /* 0 may overwrite 0 */
int64_t mgpu_workspace_none(const struct mgpu_node *);
unsigned mgpu_layouts_plain(const struct mgpu_node *, int operand);
unsigned mgpu_layouts_any(const struct mgpu_node *, int operand);
struct mgpu_cost mgpu_cost_move(const struct mgpu_node *); /* no flops; bytes of all operands */
double mgpu_operand_bytes(const struct mgpu_node *);
int mgpu_gradient_none(struct mgpu_graph *, const struct mgpu_node *, struct mgpu_value *const *dy,
                       const bool *wanted, struct mgpu_value **dx); /* refuses, naming the node */

/* Every input must be replicated or split along axis 0 (samples first); outputs follow. For
 * operators that treat samples apart: conv and pool on N, C, ... */
enum mgpu_split_answer mgpu_split_samples(const struct mgpu_node *, const struct mgpu_split *in,
                                          struct mgpu_split *out, int *which);

/* All inputs replicated: outputs are too. Anything else mixes. */
enum mgpu_split_answer mgpu_split_replicated(const struct mgpu_node *, const struct mgpu_split *in,
                                             struct mgpu_split *out, int *which);

/* How many dims an attribute of kind DIMS holds. */
int mgpu_attr_rank(const struct mgpu_node *node);

/* Whether two nodes of one operator have the same attributes; `same_dim` judges sizes. */
bool mgpu_attrs_same(const struct mgpu_node *a, const struct mgpu_node *b,
                     bool (*same_dim)(struct mgpu_dim, struct mgpu_dim));

/* Shape helpers: output `i` like a value; output `i` of a type and dims. */
void mgpu_shape_like(const struct mgpu_node *, int output, const struct mgpu_value *like);
void mgpu_shape_set(const struct mgpu_node *, int output, enum mgpu_dtype type, int rank,
                    const struct mgpu_dim *dims);

/* The split that REPLICATED, AXIS k or SUM is. */
struct mgpu_split mgpu_split_make(enum mgpu_split_kind kind, int axis, int64_t outer);

/* A SUM or a MEAN: what is whole only after an all-reduce. */
bool mgpu_split_is_term(struct mgpu_split split);

/* Spread alike. */
bool mgpu_split_same(struct mgpu_split a, struct mgpu_split b);

#endif
