/* An ONNX model made ready to be understood: model-local functions inlined, names unique, attribute
 * references resolved, initializers and inputs told apart. Nothing is interpreted yet.
 *
 * Borrows from the mgpu_onnx_file, which must outlive it. protobuf-c types stop in importer/.
 */
#ifndef MGPU_IMPORTER_MODEL_H
#define MGPU_IMPORTER_MODEL_H

#include "importer/onnx_file.h"
#include "importer/onnx_tensor.h"
#include "runtime/base/array.h"
#include "runtime/base/names.h"
#include "runtime/graph/graph.h"

struct mgpu_onnx_body;

struct mgpu_onnx_node {
    int index;          /* position over the whole model, bodies included */
    const char *type;   /* "Conv" */
    const char *domain; /* "" is ai.onnx */
    int opset;          /* version of the domain that is in force here */
    const char *name;   /* as in the file, may be "" */
    const char *path;   /* function call path: "" at the top, else the first outputs of the calls
                         * around it: "h1/y/" */
    const char *layer;  /* the module that made it, "" when unknown: dynamo's name_scopes
                         * ("enc.layers.0.linear1"), TorchScript's node name without its last part
                         * ("/enc/layers.0/linear1"), Keras's scope */
    int inputs;
    const char **input; /* flat names, unique over the model; "" is absent */
    int outputs;
    const char **output;
    int attributes;
    const Onnx__AttributeProto **attribute; /* references to function attributes resolved */
    const Onnx__AttributeProto **misread;   /* the one that a look-up found to be of another type
                                             * than it reads; *misread is NULL until then */
    int bodies; /* subgraphs (If, Loop, Scan), in the order of the attributes */
    struct mgpu_onnx_body *body;
    const char **body_name; /* attribute names: "then_branch" */
    const Onnx__NodeProto *proto;
};

/* A tensor stored in the file: an initializer of the graph or of a body, or a Constant node's value
 * (of a float type and rank 1 or more: it can be a weight too). A function that is called several
 * times stores its tensors once: they are one initializer. */
struct mgpu_onnx_initializer {
    const char *name; /* flat; for a Constant, the node's output. Where the tensor stands in an
                       * inner graph or a function it is its mgpu_onnx_key. */
    const Onnx__TensorProto *proto; /* NULL for Constants with value_float(s) or value_int(s) */
    struct mgpu_array array; /* contents, borrowed from the file or from `held`; type MGPU_UNDEFINED
                              * when the element type is one that mgpu does not hold */
    struct mgpu_onnx_held held;
    bool constant_node;
    bool graph_input;        /* also listed as a graph input */
    const char *folded_from; /* what dynamo's optimizer computed it of: "['fc.weight']"; or NULL */
    const char *persistent;  /* of a buffer, as dynamo says it: "True" or "False"; or NULL */
    bool listed;             /* dynamo says that it is a parameter or a buffer */
};

struct mgpu_onnx_value { /* a graph input or output as declared */
    const char *name;
    enum mgpu_dtype type;
    int rank;                           /* -1: not declared */
    int64_t dims[MGPU_MAX_RANK];        /* -1 where symbolic or unknown */
    const char *symbols[MGPU_MAX_RANK]; /* "N", "unk__51"; NULL where a number; "" unknown */
};

struct mgpu_onnx_body {
    int nodes;
    struct mgpu_onnx_node *node;
    int inputs; /* formal inputs of a body; the graph's inputs at the top (without initializers) */
    struct mgpu_onnx_value *input;
    int outputs;
    struct mgpu_onnx_value *output;
};

/* The key of what dynamo says of values that its optimizer computed. */
#define MGPU_ONNX_FOLDED_FROM "pkg.onnxscript.optimizer.folded_from"

enum mgpu_producer { MGPU_PRODUCER_OTHER, MGPU_PRODUCER_PYTORCH, MGPU_PRODUCER_TENSORFLOW };

struct mgpu_onnx_model {
    struct mgpu_arena *arena;
    const struct mgpu_onnx_file *file;
    enum mgpu_producer producer;
    struct mgpu_onnx_body graph;
    int initializers;
    struct mgpu_onnx_initializer *initializer;
    int node_total;
    struct mgpu_onnx_node **all;          /* every node, bodies included, by index */
    struct mgpu_names *initializer_names; /* to position + 1; see mgpu_onnx_find_initializer */
};

/* Inlines, resolves and reads. Recursive functions, references to attributes that a function does
 * not have, inlining that grows past 1,000,000 nodes: errors that name the function. Where a body
 * gives a value that it did not make (an outer value, an input, an initializer), an
 * Identity node is put in, so that every output has a node. */
int mgpu_onnx_model_new(struct mgpu_onnx_model **out, const struct mgpu_onnx_file *file);
void mgpu_onnx_model_free(struct mgpu_onnx_model *model);

/* Frees the elements of an initializer that nobody will read; its type and dims stay. Before the
 * file is written, the tensor is given new ones. */
void mgpu_onnx_model_drop(struct mgpu_onnx_model *model, int initializer);

/* The initializer called `name` (flat), or -1. */
int mgpu_onnx_find_initializer(const struct mgpu_onnx_model *model, const char *name);

/* The attribute of any type, or NULL. */
const Onnx__AttributeProto *mgpu_onnx_attribute(const struct mgpu_onnx_node *node,
                                                const char *name);
/* Attributes by name: the value, or `otherwise` when the node has none of that name and type. One
 * of the name but not of the type is kept in node->misread, and mgpu_onnx_check_read refuses it. */
const Onnx__AttributeProto *mgpu_onnx_typed(const struct mgpu_onnx_node *node, const char *name,
                                            Onnx__AttributeProto__AttributeType type);
int mgpu_onnx_check_read(const struct mgpu_onnx_node *node);
int64_t mgpu_onnx_int(const struct mgpu_onnx_node *node, const char *name, int64_t otherwise);
double mgpu_onnx_float(const struct mgpu_onnx_node *node, const char *name, double otherwise);
/* Fills at most `most` values; gives how many there are, or -1 when the attribute is absent. */
int mgpu_onnx_ints(const struct mgpu_onnx_node *node, const char *name, int64_t *values, int most);
/* Whether this is the node's name, or one of its outputs. */
/* dynamo: the class of the module that made the node, "torch.nn.modules.linear.Linear"; "" unknown.
 */
const char *mgpu_onnx_module_class(struct mgpu_arena *arena, const struct mgpu_onnx_node *node);

bool mgpu_onnx_is_called(const struct mgpu_onnx_node *node, const char *name);
/* A string into the model's arena (protobuf strings of attributes are not terminated). */
const char *mgpu_onnx_string(struct mgpu_onnx_model *model, const struct mgpu_onnx_node *node,
                             const char *name, const char *otherwise);

#endif
