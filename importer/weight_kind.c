/* What a use takes a tensor for: by the operator and input that it reaches, and where that does
 * not tell, by what stands around it. */
#include "importer/fx_call.h"
#include "importer/normalization.h"
#include "importer/weight_parts.h"

#include <math.h>
#include <string.h>

/* One letter an input; the last stands for all that follow. Operators that are not listed: 'j'.
 *   p passes on unchanged      w operand of a layer        n scale or shift of a normalisation
 *   m running mean             v running variance          j joined: added, multiplied, selected
 *   s initial state            x exponent                  b only sizes, bounds, conditions
 *   c data that is never learned */
static const struct {
    const char *type, *inputs;
} kinds[] = {
    {"Identity", "p"},
    {"Cast", "p"},
    {"CastLike", "pb"},
    {"Transpose", "p"},
    {"Reshape", "pb"},
    {"Squeeze", "pb"},
    {"Unsqueeze", "pb"},
    {"Flatten", "p"},
    {"Slice", "pb"},
    {"Split", "pb"},
    {"Concat", "p"},
    {"Expand", "pb"},
    {"Tile", "pb"},
    {"Pad", "pb"},
    {"Neg", "p"},
    {"Trilu", "pb"},
    {"ReverseSequence", "pb"},
    {"Loop", "bbp"},
    {"Scan", "p"},
    {"SequenceConstruct", "p"},
    {"SequenceInsert", "ppb"},
    {"SequenceAt", "pb"},
    {"SplitToSequence", "pb"},
    {"ConcatFromSequence", "p"},
    {"Conv", "w"},
    {"ConvTranspose", "w"},
    {"DeformConv", "wwjwj"},
    {"CausalConvWithState", "wwws"},
    {"Gemm", "w"},
    {"MatMul", "w"},
    {"Einsum", "w"},
    {"PRelu", "w"},
    {"Gather", "wb"},
    {"GatherND", "wb"},
    {"GatherElements", "wb"},
    {"LSTM", "wwwwbssw"},
    {"GRU", "wwwwbs"},
    {"RNN", "wwwwbs"},
    {"BatchNormalization", "jnnmv"},
    {"InstanceNormalization", "jn"},
    {"LayerNormalization", "jn"},
    {"GroupNormalization", "jn"},
    {"RMSNormalization", "jn"},
    {"Pow", "jx"},
    {"Where", "bj"},
    {"Clip", "jb"},
    {"Dropout", "jb"},
    {"Resize", "jb"},
    {"Upsample", "jb"},
    {"TopK", "jb"},
    {"CumSum", "jb"},
    {"CumProd", "jb"},
    {"Col2Im", "jb"},
    {"TensorScatter", "jjb"},
    {"Compress", "jb"},
    {"AffineGrid", "jb"},
    {"RoiAlign", "jb"},
    {"MaxRoiPool", "jb"},
    {"MaxUnpool", "jb"},
    {"ScatterElements", "jbj"},
    {"ScatterND", "jbj"},
    {"Scatter", "jbj"},
    {"ReduceSum", "jb"},
    {"ReduceMean", "jb"},
    {"ReduceMax", "jb"},
    {"ReduceMin", "jb"},
    {"ReduceProd", "jb"},
    {"ReduceL1", "jb"},
    {"ReduceL2", "jb"},
    {"ReduceLogSum", "jb"},
    {"ReduceLogSumExp", "jb"},
    {"ReduceSumSquare", "jb"},
    {"DFT", "jb"},
    {"STFT", "jbcb"},
    {"QuantizeLinear", "jcb"},
    {"DequantizeLinear", "jcb"},
    {"DynamicQuantizeLinear", "b"},
    {"MatMulInteger", "b"},
    {"ConvInteger", "b"},
    {"QLinearMatMul", "b"},
    {"QLinearConv", "b"},
    {"HannWindow", "b"},
    {"HammingWindow", "b"},
    {"BlackmanWindow", "b"},
    {"MelWeightMatrix", "b"},
    {"Unique", "b"},
    {"BitCast", "b"},
    {"SoftmaxCrossEntropyLoss", "jbc"},
    {"NegativeLogLikelihoodLoss", "jbc"},
    {"RotaryEmbedding", "jccb"},
    {"If", "b"},
    {"Shape", "b"},
    {"Size", "b"},
    {"Range", "b"},
    {"OneHot", "b"},
    {"ConstantOfShape", "b"},
    {"EyeLike", "b"},
    {"NonZero", "b"},
    {"NonMaxSuppression", "b"},
    {"ArgMax", "b"},
    {"ArgMin", "b"},
    {"Less", "b"},
    {"LessOrEqual", "b"},
    {"Greater", "b"},
    {"GreaterOrEqual", "b"},
    {"Equal", "b"},
    {"Not", "b"},
    {"And", "b"},
    {"Or", "b"},
    {"Xor", "b"},
    {"IsNaN", "b"},
    {"IsInf", "b"},
    {"Bernoulli", "b"},
    {"Multinomial", "b"},
    {"RandomNormalLike", "b"},
    {"RandomUniformLike", "b"},
};

static char kind_of(const struct mgpu_onnx_node *node, int input)
{
    if (*node->domain)
        return 'j';
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(node->type, kinds[i].type)) {
            int last = (int)strlen(kinds[i].inputs) - 1;
            return kinds[i].inputs[input < last ? input : last];
        }
    return 'j';
}

bool mgpu_weight_is_view(const struct mgpu_onnx_node *node, int input)
{
    return kind_of(node, input) == 'p';
}

static bool is_type(const struct mgpu_onnx_node *node, const char *type)
{
    return !*node->domain && !strcmp(node->type, type);
}

/* ---- One walk from a use to everything that it reaches ------------------------------------- */

enum { MAX_DEPTH = 1000 }; /* of a walk; what is further away is not looked at */

struct walk {
    struct mgpu_identify *in;
    int initializer;
    int stamp;
    int depth;
    bool expanded; /* went through Expand or Tile */
    struct mgpu_verdict verdict;
};

int mgpu_weight_strength(enum mgpu_weight_role role)
{
    static const int order[] = {
        [MGPU_ROLE_UNUSED] = 0,    [MGPU_ROLE_SHAPE] = 1,  [MGPU_ROLE_CONSTANT] = 2,
        [MGPU_ROLE_STATISTIC] = 3, [MGPU_ROLE_FROZEN] = 4, [MGPU_ROLE_TRAINED] = 5};
    return order[role];
}

static void found(struct walk *w, enum mgpu_weight_role role, const char *why)
{
    if (mgpu_weight_strength(role) > mgpu_weight_strength(w->verdict.role))
        w->verdict = (struct mgpu_verdict){.role = role, .why = why};
}

/* By the exporter, or by a module whenever it is made. */
static void found_made(struct walk *w, const char *why)
{
    if (mgpu_weight_strength(MGPU_ROLE_CONSTANT) > mgpu_weight_strength(w->verdict.role))
        w->verdict = (struct mgpu_verdict){.role = MGPU_ROLE_CONSTANT, .why = why, .made = true};
}

/* ---- Joined with data ----------------------------------------------------------------------- */

/* Whether everything that this value leads to is a sine or cosine, views and factors aside. */
static bool only_waves(struct walk *w, const char *name, int stamp, int depth, bool *any)
{
    struct mgpu_weight_flow_value *value = mgpu_weight_flow_get(w->in->flow, name);
    if (!value || value->look == stamp)
        return true;
    value->look = stamp;
    bool all = depth < MAX_DEPTH && !value->leaves && !value->becomes[0];
    for (int i = 0; i < value->readers && all; i++) {
        const struct mgpu_onnx_node *node = w->in->model->all[value->reader[i].node];
        char kind = kind_of(node, value->reader[i].input);
        if (is_type(node, "Sin") || is_type(node, "Cos"))
            *any = true;
        else if (kind == 'p' || is_type(node, "Mul"))
            for (int o = 0; o < node->outputs && all; o++)
                all = only_waves(w, node->output[o], stamp, depth + 1, any);
        else
            all = kind == 'b';
    }
    return all;
}

static bool is_real_input(const struct mgpu_onnx_model *model, const char *name)
{
    for (int i = 0; i < model->graph.inputs; i++)
        if (!strcmp(model->graph.input[i].name, name))
            return !mgpu_is_integer(model->graph.input[i].type) &&
                   model->graph.input[i].type != MGPU_BOOL;
    return true; /* of a body: not known */
}

/* Whether this value comes of integers alone: positions, sizes. */
static bool of_integers(struct walk *w, const char *name, int stamp, int depth)
{
    struct mgpu_weight_flow_value *value = mgpu_weight_flow_get(w->in->flow, name);
    if (!value || value->look == stamp)
        return true;
    value->look = stamp;
    int initializer = mgpu_onnx_find_initializer(w->in->model, name);
    if (initializer >= 0)
        return !w->in->facts[initializer].real || w->in->facts[initializer].equal;
    if (value->node < 0)
        return !is_real_input(w->in->model, name);
    const struct mgpu_onnx_node *node = w->in->model->all[value->node];
    bool all = depth < MAX_DEPTH && !node->bodies;
    for (int i = 0; i < node->inputs && all; i++)
        all = is_type(node, "Shape") || !*node->input[i] ||
              of_integers(w, node->input[i], stamp, depth + 1);
    return all;
}

/* The frequencies of rotary and other positions: multiplied with positions, then only waves. */
static bool is_frequency(struct walk *w, const struct mgpu_onnx_node *node, int input)
{
    if ((!is_type(node, "Mul") && !is_type(node, "MatMul") && !is_type(node, "Einsum")) ||
        node->inputs != 2)
        return false;
    bool any = false;
    return only_waves(w, mgpu_weight_output(node), mgpu_weight_flow_stamp(w->in->flow), 0, &any) &&
           any && of_integers(w, node->input[1 - input], mgpu_weight_flow_stamp(w->in->flow), 0);
}

/* What is left of a value that goes straight from a graph input through views and other fixed
 * numbers to here? Mean and scale of the input are written so by layers that normalise it. */
static bool straight_from_input(struct walk *w, const char *name)
{
    for (int step = 0; step < 16; step++) {
        const struct mgpu_weight_flow_value *value = mgpu_weight_flow_get(w->in->flow, name);
        if (!value || value->formal)
            return false;
        if (value->node < 0)
            return mgpu_onnx_find_initializer(w->in->model, name) < 0;
        const struct mgpu_onnx_node *node = w->in->model->all[value->node];
        bool fixed = (is_type(node, "Sub") || is_type(node, "Div")) && node->inputs == 2 &&
                     mgpu_weight_root(w->in, node->input[1]) >= 0;
        if (!node->inputs || (!fixed && kind_of(node, 0) != 'p'))
            return false;
        name = node->input[0];
    }
    return false;
}

static bool normalises_input(struct walk *w, const struct mgpu_onnx_node *node, int input)
{
    return (w->in->pytorch || w->in->tensorflow) && input == 1 &&
           (is_type(node, "Sub") || is_type(node, "Div")) && straight_from_input(w, node->input[0]);
}

/* Keras's Normalization, which may stand anywhere. */
static bool normalises(struct walk *w, const struct mgpu_onnx_node *node, int input)
{
    return !w->in->facts[w->initializer].named &&
           mgpu_normalization_has(w->in->model, w->in->flow, node, input);
}

/* ---- One element ---------------------------------------------------------------------------- */

/* Whether a view of `name` is read by one of the types (at `input`; -1: any). */
static bool feeds(struct walk *w, const char *name, const char *const *types, int input, int depth)
{
    const struct mgpu_weight_flow_value *value = mgpu_weight_flow_get(w->in->flow, name);
    for (int i = 0; value && i < value->readers; i++) {
        const struct mgpu_onnx_node *node = w->in->model->all[value->reader[i].node];
        for (int t = 0; types[t]; t++)
            if (is_type(node, types[t]) && (input < 0 || value->reader[i].input == input))
                return true;
        if (depth && node->outputs && kind_of(node, value->reader[i].input) == 'p' &&
            feeds(w, mgpu_weight_output(node), types, input, depth - 1))
            return true;
    }
    return false;
}

static bool is_epsilon(struct walk *w, const struct mgpu_onnx_node *node)
{
    static const char *const roots[] = {"Sqrt", "Reciprocal", "Pow", "Log", NULL};
    static const char *const divisions[] = {"Div", NULL};
    return (is_type(node, "Add") || is_type(node, "Max")) &&
           fabs(w->in->facts[w->initializer].value) <= 0.01 &&
           (feeds(w, mgpu_weight_output(node), roots, -1, 4) ||
            feeds(w, mgpu_weight_output(node), divisions, 1, 4));
}

/* Attention: data by a number, then softmax, or a product of data with data. */
static bool is_attention_scale(struct walk *w, const struct mgpu_onnx_node *node)
{
    static const char *const softmax[] = {"Softmax", NULL}, *const product[] = {"MatMul", NULL};
    if (!is_type(node, "Mul") && !is_type(node, "Div"))
        return false;
    if (feeds(w, mgpu_weight_output(node), softmax, -1, 4))
        return true;
    const struct mgpu_weight_flow_value *value =
        mgpu_weight_flow_get(w->in->flow, mgpu_weight_output(node));
    if (!feeds(w, mgpu_weight_output(node), product, -1, 4) || !value)
        return false;
    for (int i = 0; i < value->readers; i++) {
        const struct mgpu_onnx_node *next = w->in->model->all[value->reader[i].node];
        if (is_type(next, "MatMul") && next->inputs == 2 &&
            mgpu_weight_root(w->in, next->input[1 - value->reader[i].input]) >= 0)
            return false;
    }
    return true;
}

/* Added to what a layer with a weight gives. */
static bool is_bias(struct walk *w, const struct mgpu_onnx_node *node, int input)
{
    if ((!is_type(node, "Add") && !is_type(node, "Sub")) || node->inputs != 2)
        return false;
    const struct mgpu_onnx_node *layer = mgpu_weight_layer_of(w->in, node->input[1 - input]);
    for (int i = 0; layer && i < layer->inputs; i++)
        if (mgpu_weight_root(w->in, layer->input[i]) >= 0)
            return true;
    return false;
}

/* One number with a rank: a bias of one unit, a slope or gain that is learned; or a scale, an
 * epsilon, an exponent. */
static bool is_learned_number(struct walk *w, const struct mgpu_onnx_node *node, int input)
{
    if (is_bias(w, node, input))
        return true;
    if (w->in->pytorch || w->in->tensorflow)
        return w->in->facts[w->initializer].named;
    return kind_of(node, input) != 'x' && !is_epsilon(w, node) && !is_attention_scale(w, node);
}

/* Equal elements that are added to products of data with data right before a softmax. */
static bool is_open_mask(struct walk *w, const struct mgpu_onnx_node *node, int input)
{
    static const char *const softmax[] = {"Softmax", NULL};
    const struct mgpu_facts *f = &w->in->facts[w->initializer];
    return (w->in->dynamo || w->in->tensorflow) && f->equal && !f->named && is_type(node, "Add") &&
           !is_bias(w, node, input) && feeds(w, mgpu_weight_output(node), softmax, -1, 4);
}

/* ---- Verdicts ------------------------------------------------------------------------------- */

static const char without_affine[] = "the normalisation has no scale and shift of its own";

/* dynamo: ones or zeros in the place of what the module does not have. */
static bool is_filler(const struct walk *w, const struct mgpu_onnx_node *node, bool shift)
{
    const struct mgpu_facts *f = &w->in->facts[w->initializer];
    const char *given = f->equal && f->value == !shift ? mgpu_fx_norm_argument(node, shift) : NULL;
    return given && !strncmp(given, "None", 4);
}

static void found_joined(struct walk *w, const struct mgpu_onnx_node *node, int input)
{
    const struct mgpu_facts *f = &w->in->facts[w->initializer];
    const char *table;
    if ((is_type(node, "Mul") || is_type(node, "Add")) && is_filler(w, node, is_type(node, "Add")))
        found_made(w, without_affine);
    else if (f->count == 1 && !is_learned_number(w, node, input))
        found(w, MGPU_ROLE_CONSTANT, NULL);
    else if (mgpu_weight_is_of_code(w->in, w->initializer))
        found_made(w, "computed by the model's code, of no parameter");
    else if (f->count > 1 && (table = mgpu_weight_table(w->in, w->initializer, false)))
        found(w, MGPU_ROLE_CONSTANT, table);
    else if (w->in->dynamo && f->equal && !f->named &&
             strncmp(w->in->model->initializer[w->initializer].name, "val_", 4))
        found(w, MGPU_ROLE_CONSTANT, "made by the model's code, not a parameter");
    else if (is_open_mask(w, node, input))
        found(w, MGPU_ROLE_CONSTANT, "a mask");
    else if (is_frequency(w, node, input))
        found_made(w, "frequencies of positions");
    else if (normalises_input(w, node, input))
        found(w, MGPU_ROLE_CONSTANT, "mean or scale of the input");
    else if (normalises(w, node, input))
        found(w, MGPU_ROLE_CONSTANT, "mean or scale of a Normalization");
    else
        found(w, MGPU_ROLE_TRAINED, NULL);
}

static void found_operand(struct walk *w, const struct mgpu_onnx_node *node, int input)
{
    const struct mgpu_facts *f = &w->in->facts[w->initializer];
    const char *table = NULL;
    if (f->count > 1 && !f->equal)
        table = strncmp(node->type, "Gather", 6) ? mgpu_weight_operand_table(w->in, w->initializer)
                                                 : mgpu_weight_table(w->in, w->initializer, true);
    if (table)
        found(w, MGPU_ROLE_CONSTANT, table);
    else if (is_frequency(w, node, input))
        found_made(w, "frequencies of positions");
    else
        found(w, MGPU_ROLE_TRAINED, NULL);
}

/* Whether TensorFlow made it for this very layer: "net/bn/Const:0" of net/bn, not another layer's
 * parameter that was merged with it. */
static bool is_layers_constant(const struct walk *w, const struct mgpu_onnx_node *node)
{
    const char *name = w->in->model->initializer[w->initializer].name;
    size_t n = strlen(node->layer);
    return w->in->tensorflow && n && !strncmp(name, node->layer, n) &&
           !strncmp(name + n, "/Const", strlen("/Const"));
}

/* dynamo lists parameters before statistics, and of equal tensors it keeps the first: what has a
 * statistic's name was merged into no parameter. */
static bool is_statistics(const struct walk *w)
{
    const char *name = w->in->model->initializer[w->initializer].name, *dot = strrchr(name, '.');
    const char *last = dot ? dot + 1 : name;
    return w->in->dynamo && (!strcmp(last, "running_mean") || !strcmp(last, "running_var"));
}

/* Ones and zeros under no parameter's name: a normalisation without scale and shift. */
static void found_norm(struct walk *w, const struct mgpu_onnx_node *node, int input)
{
    const struct mgpu_facts *f = &w->in->facts[w->initializer];
    bool unnamed = (w->in->pytorch && !f->named) || is_layers_constant(w, node) || is_statistics(w);
    if ((unnamed && f->equal && f->value == (input == 1)) || is_filler(w, node, input != 1))
        found_made(w, without_affine);
    else
        found(w, MGPU_ROLE_TRAINED, NULL);
}

/* Zeros, or the state at export with the batch size in it; one that is repeated for every sample
 * is learned. */
static void found_state(struct walk *w)
{
    if (w->expanded && !w->in->facts[w->initializer].equal)
        found(w, MGPU_ROLE_TRAINED, NULL);
    else
        found(w, MGPU_ROLE_CONSTANT, "an initial state");
}

/* Integers and booleans say sizes and places, or are data of a kind that is not trained. */
static void found_number(struct walk *w, char kind)
{
    bool data =
        kind == 'w' || kind == 'c' || (kind == 'j' && w->in->facts[w->initializer].count > 1);
    found(w, data ? MGPU_ROLE_CONSTANT : MGPU_ROLE_SHAPE, NULL);
}

static void found_at(struct walk *w, const struct mgpu_onnx_node *node, int input, char kind)
{
    const struct mgpu_array *a = &w->in->model->initializer[w->initializer].array;
    if (!w->in->facts[w->initializer].real)
        found_number(w, kind);
    else if (kind == 'b')
        found(w, MGPU_ROLE_SHAPE, NULL);
    else if (kind == 'c' || a->rank == 0 || !w->in->facts[w->initializer].count)
        found(w, MGPU_ROLE_CONSTANT, NULL);
    else if (kind == 'm' || kind == 'v') {
        found(w, MGPU_ROLE_STATISTIC, NULL);
        if (w->verdict.role == MGPU_ROLE_STATISTIC)
            w->verdict.part = kind == 'm' ? MGPU_PART_MEAN : MGPU_PART_VARIANCE;
    } else if (kind == 's')
        found_state(w);
    else if (kind == 'n')
        found_norm(w, node, input);
    else if (kind == 'w')
        found_operand(w, node, input);
    else
        found_joined(w, node, input);
}

static void walk_name(struct walk *w, const char *name);

static void walk_use(struct walk *w, struct mgpu_use use)
{
    const struct mgpu_onnx_node *node = w->in->model->all[use.node];
    char kind =
        mgpu_weight_flow_gives_shape(w->in->flow, use.node) ? 'b' : kind_of(node, use.input);
    if (kind != 'p') {
        found_at(w, node, use.input, kind);
        return;
    }
    bool before = w->expanded;
    w->expanded = before || is_type(node, "Expand") || is_type(node, "Tile");
    const char *const *names;
    int count = mgpu_weight_flow_onward(node, use.input, &names);
    for (int i = 0; i < count; i++)
        walk_name(w, names[i]);
    w->expanded = before;
}

/* Where a body gives a tensor of equal elements, it is what a result or a round starts from. */
static void walk_out_of_body(struct walk *w, const struct mgpu_weight_flow_value *value)
{
    for (int i = 0; i < 2; i++)
        if (value->becomes[i] && w->in->facts[w->initializer].equal)
            found(w, MGPU_ROLE_CONSTANT, NULL);
        else if (value->becomes[i])
            walk_name(w, value->becomes[i]);
}

static void walk_name(struct walk *w, const char *name)
{
    struct mgpu_weight_flow_value *value = *name ? mgpu_weight_flow_get(w->in->flow, name) : NULL;
    if (!value || value->visit == w->stamp || w->depth == MAX_DEPTH)
        return;
    value->visit = w->stamp;
    w->depth++;
    for (int i = 0; i < value->readers; i++)
        walk_use(w, value->reader[i]);
    walk_out_of_body(w, value);
    w->depth--;
    /* A result of the graph that is a tensor of the file: numbers that were learned, or zeros. */
    if (value->leaves)
        found(w,
              w->in->facts[w->initializer].real && w->in->facts[w->initializer].count > 1
                  ? MGPU_ROLE_TRAINED
                  : MGPU_ROLE_CONSTANT,
              NULL);
}

struct mgpu_verdict mgpu_weight_judge(struct mgpu_identify *in, int initializer,
                                      struct mgpu_use use)
{
    struct walk w = {.in = in,
                     .initializer = initializer,
                     .stamp = mgpu_weight_flow_stamp(in->flow),
                     .verdict = {.role = MGPU_ROLE_UNUSED}};
    walk_use(&w, use);
    return w.verdict;
}
