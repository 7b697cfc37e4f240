/* What the pages that make up weights.c pass to one another; nobody else needs them. */
#ifndef MGPU_IMPORTER_WEIGHT_PARTS_H
#define MGPU_IMPORTER_WEIGHT_PARTS_H

#include "importer/weight_flow.h"
#include "importer/weights.h"

/* Kinds of lines for the user. */
enum mgpu_weight_line {
    MGPU_LINE_SPLIT,
    MGPU_LINE_TIED,
    MGPU_LINE_APART,
    MGPU_LINE_FIXED,
    MGPU_LINE_OTHER
};

/* What a use takes its tensor as. */
enum mgpu_part { MGPU_PART_WEIGHT, MGPU_PART_MEAN, MGPU_PART_VARIANCE };

struct mgpu_facts { /* of an initializer */
    bool real;      /* of a float type */
    bool equal;     /* all elements are equal (one element: too) */
    double value;   /* of the first element */
    int64_t count;
    bool named;   /* carries a parameter's name, as far as PyTorch's and TensorFlow's exporters
                   * can be told by names; else true */
    uint64_t sum; /* equal for equal contents in any order */
    int twin;     /* the first initializer of the same shape and contents */
};

struct mgpu_verdict { /* on a use, or on several taken together */
    enum mgpu_weight_role role;
    enum mgpu_part part;
    const char *why; /* of a constant that looks like a weight; else NULL */
    bool made;       /* a constant that files of weights do not have, whatever its name */
    bool written;    /* a number in the model's code that stands where a weight stands */
};

struct mgpu_candidate { /* uses of one initializer that are one thing */
    int initializer;
    struct mgpu_verdict verdict;
    const char *alias; /* the parameter's own name where the file has it, else "" */
    int uses;
    struct mgpu_use *use;
};

struct mgpu_identify {
    struct mgpu_arena *arena;
    struct mgpu_onnx_model *model;
    const struct mgpu_weights_options *options;
    struct mgpu_weight_flow *flow;
    struct mgpu_facts *facts; /* by initializer */
    bool pytorch, tensorflow;
    bool dynamo;              /* PyTorch's newer exporter: nodes carry the names of modules */
    bool lists;               /* and it says which tensors are parameters or buffers */
    struct mgpu_names *names; /* every name of the model, and those made since */
    struct mgpu_names *layers;
    int candidates;
    struct mgpu_candidate *candidate; /* from mgpu_grow */
    int told[MGPU_LINE_OTHER + 1];
    struct mgpu_weights *out;
};

/* weight_facts.c */
void mgpu_weight_facts(struct mgpu_identify *in);
/* Fewer elements may be equal by chance, in models that were written by hand. */
enum { MGPU_WEIGHT_TWINS_AT_LEAST = 32 };
/* The bits of element i; whether shape, type and contents are the same. */
uint64_t mgpu_weight_bits(const struct mgpu_array *a, int64_t i);
bool mgpu_weight_same_shape(const struct mgpu_array *a, const struct mgpu_array *b);
bool mgpu_weight_same_values(const struct mgpu_array *a, const struct mgpu_array *b);
/* The initializer that this value is, or is a view, a part or a copy of; -1: none. */
int mgpu_weight_root(const struct mgpu_identify *in, const char *name);
/* The inputs of the MatMul, Gemm, Conv, ConvTranspose or Einsum whose result this value is or is a
 * view of; NULL: none. */
const struct mgpu_onnx_node *mgpu_weight_layer_of(const struct mgpu_identify *in, const char *name);
/* Whether dynamo's optimizer computed it of nothing that may be a parameter. */
bool mgpu_weight_is_of_code(const struct mgpu_identify *in, int initializer);
/* What a table of fixed numbers this is: "a mask", ...; NULL: numbers that may be learned. */
const char *mgpu_weight_table(const struct mgpu_identify *in, int initializer, bool gathered);
/* The same of the operand of a product, where only what cannot be a matrix of weights counts. */
const char *mgpu_weight_operand_table(const struct mgpu_identify *in, int initializer);

/* weight_kind.c: what this use of the initializer takes it for. */
struct mgpu_verdict mgpu_weight_judge(struct mgpu_identify *in, int initializer,
                                      struct mgpu_use use);
/* Where uses differ the strongest role wins: trained, frozen, statistic, constant, shape, unused.
 */
int mgpu_weight_strength(enum mgpu_weight_role role);
/* Whether the node only moves this input, so that a weight is still one behind it. */
bool mgpu_weight_is_view(const struct mgpu_onnx_node *node, int input);

/* weight_split.c: fills in->candidate. */
void mgpu_weight_candidates(struct mgpu_identify *in);
/* Whether two layers may be one module: its calls differ by "_1", "_2". "" is unknown: may. */
bool mgpu_weight_same_layer(struct mgpu_identify *in, const char *a, const char *b);

/* weight_layers.c: fills in->out->bare; what exporters did to layers is told. */
void mgpu_weight_layers(struct mgpu_identify *in);

/* weight_tie.c: joins weights of in->out; `tie` and `untie` of the options. */
int mgpu_weight_tie(struct mgpu_identify *in);

/* weight_choose.c: `train` and `freeze` of the options; drops what is no weight. */
int mgpu_weight_choose(struct mgpu_identify *in);

/* Shared by them. Lines for the user, and what --report says of an initializer (-1, NULL: none).
 * Of one kind of line at most MGPU_WEIGHT_TOLD are kept. */
enum { MGPU_WEIGHT_TOLD = 8 };
void mgpu_weight_note(struct mgpu_identify *in, enum mgpu_weight_line kind, int initializer,
                      const char *line, const char *note);
/* A node's first output, "" when it has none. */
const char *mgpu_weight_output(const struct mgpu_onnx_node *node);
const char *mgpu_weight_unique(struct mgpu_identify *in, const char *name);
int mgpu_weight_no_match(const struct mgpu_identify *in, const char *option, const char *pattern);

#endif
