/* The training graph: values and nodes of core operators.
 *
 * The importer lowers an ONNX model into one graph at bound sizes; the loss, the gradient and the
 * update append to it; the plan and the compilation turn it into instructions. Every value has one
 * producer; nodes stand in an order in which every value is produced before it is used. A node
 * whose inputs are all constants is never appended: it is computed when it is made (fold.h).
 *
 * Everything belongs to the graph's arena; pointers stay valid until mgpu_graph_free.
 */
#ifndef MGPU_GRAPH_GRAPH_H
#define MGPU_GRAPH_GRAPH_H

#include "runtime/base/array.h"
#include "runtime/base/memory.h"
#include "runtime/graph/dim.h"

struct mgpu_op; /* runtime/ops/op.h */
struct mgpu_node;

enum mgpu_value_kind {
    MGPU_VALUE_RESULT,    /* output `output` of `producer` */
    MGPU_VALUE_INPUT,     /* fed each step: graph inputs, labels, sample weights */
    MGPU_VALUE_PARAMETER, /* stored between steps: weights, statistics, optimizer state */
    MGPU_VALUE_CONSTANT,  /* contents known now */
    MGPU_VALUE_SCALAR,    /* a field of the step-scalar buffer (step_scalar.h), rank 0 */
};

/* A value [N,C,S...] in blocks of B channels lies in memory as a plain [N, ceil(C/B), S..., B]; the
 * lanes behind channel C are zero. The compilation chooses who has blocks (compile/layout.h);
 * before it every value is plain. */
struct mgpu_value {
    int id; /* position in graph->values */
    enum mgpu_value_kind kind;
    enum mgpu_dtype type;
    int rank;
    struct mgpu_dim dims[MGPU_MAX_RANK];
    int block;        /* channels (axis 1) in one block; 0: plain row-major. See below */
    const char *name; /* ONNX's name where it has one, else a made one; never NULL */

    struct mgpu_node *producer; /* RESULT */
    int output;
    int index; /* INPUT, PARAMETER: position in graph->inputs or ->parameters; SCALAR: which */

    /* CONSTANT: plain row-major contents. `ints` holds the monomial of each element where the
     * elements are integers that came from sizes (else NULL). `tainted`: the contents depend on the
     * batch in another way than by the shape, so the batch may not be cut. */
    const void *data;
    const struct mgpu_dim *ints;
    bool tainted;
};

/* What a node is for. RECOMPUTE: a forward node again, for backward. */
enum mgpu_role {
    MGPU_FORWARD,
    MGPU_BACKWARD,
    MGPU_RECOMPUTE,
    MGPU_UPDATE,
    MGPU_COMMUNICATION,
};

/* Where a node came from: used by messages, profiles, pins and plans. `output` (the ONNX node's
 * first output, after function inlining prefixed by the call path) is the key; name and type are
 * only shown beside it. */
struct mgpu_origin {
    const char *path;   /* function call path, "" at the top */
    const char *output; /* "" for nodes that no ONNX node asked for (loss, update) */
    const char *name;   /* ONNX node name, may be "" */
    const char *type;   /* ONNX operator type, or what we call it ("loss", "update") */
    enum mgpu_role role;
};

struct mgpu_node {
    int id; /* position in graph->nodes */
    const struct mgpu_op *op;
    const void *attrs; /* op->attrs_size bytes */
    int inputs;
    struct mgpu_value **input; /* NULL: an optional input that is absent */
    int outputs;
    struct mgpu_value **output; /* NULL: an optional output that nobody wants */
    struct mgpu_origin origin;
};

/* What a stored tensor is for. */
enum mgpu_parameter_role {
    MGPU_WEIGHT,    /* trained */
    MGPU_FROZEN,    /* could be trained, is not */
    MGPU_STATISTIC, /* running mean or variance */
    MGPU_STATE,     /* optimizer state, counters */
    MGPU_ROUNDED,   /* a weight in a half type (runtime/compile/rounded.h) */
};

/* A tensor stored between steps. Its contents live outside the graph (runtime/compile/store.h) and
 * are found by `name`; the graph only says shape and role. */
struct mgpu_parameter {
    const char *name; /* unique in the graph */
    enum mgpu_parameter_role role;
    struct mgpu_value *value;
    struct mgpu_value *gradient; /* set by mgpu_gradient for MGPU_WEIGHT, else NULL */
    struct mgpu_value *next; /* what it becomes at the end of the step (an assignment) or NULL */
    const struct mgpu_value *rounds; /* the weight of an MGPU_ROUNDED one */
};

struct mgpu_graph {
    struct mgpu_arena *arena;
    enum mgpu_dtype float_type; /* what ONNX's float is computed in: MGPU_FLOAT or MGPU_DOUBLE */
    const char *symbols[MGPU_SYMBOLS]; /* names of the symbolic dimensions; [0] is the batch */
    int64_t batch;                     /* the bound local batch: value of symbol 0 */

    struct mgpu_value **values;
    int value_count;
    struct mgpu_value **scalars; /* by which; NULL: not used yet */
    struct mgpu_node **nodes;
    int node_count;
    struct mgpu_value **inputs;
    int input_count;
    struct mgpu_parameter *parameters; /* may move when one is added: keep the index */
    int parameter_count;
    struct mgpu_value **outputs; /* the model's outputs, then what else must be computed */
    const char **output_names;
    int output_count;

    struct mgpu_origin origin; /* given to the nodes that are appended now */
    bool unfolded;             /* nodes of constants that are appended now run in each step */

    /* Nothing but updates takes the gradients of weights, and a step that goes wrong may have
     * changed weights: they need not be kept to its end (runtime/compile/early.h). */
    bool updates_early;
    int64_t step_samples; /* of a whole step, over all ranks, at most; 0: not known */

    /* A node whose meaning depends on the size of the batch, so that the batch may not be cut (a
     * branch chosen by it, a loop over samples); NULL: none is known. */
    const struct mgpu_origin *whole;
};

struct mgpu_graph *mgpu_graph_new(void);
void mgpu_graph_free(struct mgpu_graph *graph);

/* Values without a producer. `dims` are copied; constants copy `data` too (count * size bytes) and
 * `ints` when given. `name` is copied. */
struct mgpu_value *mgpu_graph_input(struct mgpu_graph *g, const char *name, enum mgpu_dtype type,
                                    int rank, const struct mgpu_dim *dims);
struct mgpu_value *mgpu_graph_parameter(struct mgpu_graph *g, const char *name,
                                        enum mgpu_parameter_role role, enum mgpu_dtype type,
                                        int rank, const struct mgpu_dim *dims);
struct mgpu_value *mgpu_graph_constant(struct mgpu_graph *g, const char *name, enum mgpu_dtype type,
                                       int rank, const struct mgpu_dim *dims, const void *data,
                                       const struct mgpu_dim *ints);
struct mgpu_value *mgpu_graph_scalar(struct mgpu_graph *g, int which, const char *name);

/* The model's output or another value that must be computed under this name. */
void mgpu_graph_output(struct mgpu_graph *g, const char *name, struct mgpu_value *value);

/* Appends a node of `op`, infers types and shapes of its outputs, and gives them in
 * out[0..outputs). `attrs` (op->attrs_size bytes, NULL when there are none) are copied; pointers
 * inside must live in the graph's arena. When all inputs are constants and the operator can be
 * folded, nothing is appended and out[] are constants. Errors name the origin's node. */
int mgpu_graph_node(struct mgpu_graph *g, const struct mgpu_op *op, const void *attrs, int inputs,
                    struct mgpu_value *const *input, int outputs, struct mgpu_value **out);

/* Drops the nodes that no output, gradient or ->next needs. What communicates stays: others wait
 * for it. */
void mgpu_graph_prune(struct mgpu_graph *g);

/* Puts the nodes into the order in which a walk back from the outputs, and from what parameters
 * become, leaves them: it depends on what is computed, and not on the order in which nodes were
 * made. What nothing needs comes last. */
void mgpu_graph_sort(struct mgpu_graph *g);

/* The node that made the result `made` gives the result `v` from now on, which nodes read already;
 * the one that gave it gives `made`. Sort the graph then. */
void mgpu_graph_give(struct mgpu_value *v, struct mgpu_value *made);

/* Gives all shapes another batch. Attributes and constants keep what they hold, so the graph is
 * good for what goes by shapes only (costs), not to be run. False: some size does not follow from
 * the batch in a way that is known, and nothing is changed. */
bool mgpu_graph_set_batch(struct mgpu_graph *g, int64_t batch);

/* Marks the origin's node as one that needs the batch whole, unless one is marked already. */
void mgpu_graph_whole(struct mgpu_graph *g);

/* Elements of a value; bytes of a value, with what fills up its last block. */
int64_t mgpu_value_count(const struct mgpu_value *value);
int64_t mgpu_value_bytes(const struct mgpu_value *value);

/* The plain shape that a value's memory has: its dims, or those that its blocks make of them.
 * Returns the rank. */
int mgpu_stored_dims(int block, int rank, const int64_t *dims, int64_t stored[MGPU_MAX_RANK + 1]);

/* The numbers of a value's dims. */
void mgpu_value_dims(const struct mgpu_value *value, int64_t dims[MGPU_MAX_RANK]);

/* "float[N*8,64]" into text, "float[N,64,7,7]:8" in blocks of 8; returns text. */
enum { MGPU_VALUE_TEXT = 256 };
char *mgpu_value_text(char text[MGPU_VALUE_TEXT], const struct mgpu_graph *g,
                      const struct mgpu_value *value);

/* "node 'name' (Type) giving 'output'" of an origin, for messages. */
char *mgpu_origin_text(char text[MGPU_VALUE_TEXT], const struct mgpu_origin *origin);

/* Ends a message about a file that holds the batch of its export: "... it has to be" made so. */
#define MGPU_EXPORT_BATCH                                                                          \
    "exported without (torch.onnx.export: dynamic_shapes, or dynamic_axes where dynamo=False)"

/* Of a value without samples: "node 'name' (Reshape) makes float[28,16] of float[7,N,16]", the
 * first that it is computed by that reads samples; "" where none does. Returns text. */
enum { MGPU_LOST_TEXT = 1024 };
char *mgpu_lost_batch_text(char text[MGPU_LOST_TEXT], const struct mgpu_graph *g,
                           const struct mgpu_value *value);

#endif
