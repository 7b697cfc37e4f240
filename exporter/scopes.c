#include "exporter/scopes.h"

#include "exporter/keras_layers.h"
#include "exporter/wrappers.h"
#include "importer/weights.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* TensorFlow's names end in operations: LAYER/CONTAINER/OPERATION/READ. A layer may be called as
 * one of them, so of operations only one is taken off. Any may have "_1". */
static const char *const reads[] = {"ReadVariableOp", "resource", NULL};
static const char *const operations[] = {"MatMul",
                                         "BiasAdd",
                                         "Conv1D",
                                         "Conv2D",
                                         "Conv3D",
                                         "convolution",
                                         "conv_transpose",
                                         "depthwise",
                                         "separable_conv2d",
                                         "conv1d_transpose",
                                         "conv2d_transpose",
                                         "conv3d_transpose",
                                         "FusedBatchNormV3",
                                         "Cast",
                                         "Add",
                                         "AddV2",
                                         "add",
                                         "mul",
                                         "Mul",
                                         "Neg",
                                         "ExpandDims",
                                         "Reshape",
                                         "Squeeze",
                                         "GatherV2",
                                         "Gather",
                                         "embedding_lookup",
                                         "einsum",
                                         "Einsum",
                                         "split",
                                         "Const",
                                         "concat",
                                         "Identity",
                                         "transpose",
                                         "Transpose",
                                         "unstack",
                                         "zeros",
                                         "zeros_like",
                                         "strided_slice",
                                         "Shape",
                                         "Relu",
                                         "Tanh",
                                         "Softmax",
                                         "Sigmoid",
                                         "Tensordot",
                                         "while_loop",
                                         NULL};
static const char *const containers[] = {"Tensordot",
                                         "FusedBatchNormV3",
                                         "batchnorm",
                                         "Conv1D",
                                         "separable_conv2d",
                                         "convolution",
                                         "conv_transpose",
                                         "conv1d_transpose",
                                         "embedding_lookup",
                                         "einsum",
                                         "zeros",
                                         "PartitionedCall",
                                         "StatefulPartitionedCall",
                                         "while",
                                         NULL};

static bool is_one_of(const char *part, const char *const *names)
{
    int number;
    size_t n = mgpu_keras_numbered(part, &number);
    for (int i = 0; names[i]; i++)
        if (strlen(names[i]) == n && !strncmp(part, names[i], n))
            return true;
    return false;
}

/* The last part, taken off; NULL where it is none of these. */
static const char *take_last(char *path, const char *const *names)
{
    char *slash = strrchr(path, '/');
    if (!slash || !is_one_of(slash + 1, names))
        return NULL;
    *slash = 0;
    return slash + 1;
}

static bool is_last(const char *path, const char *const *names)
{
    const char *slash = strrchr(path, '/');
    return slash && is_one_of(slash + 1, names);
}

/* Mixed precision: what a variable is cast to, behind the operation that reads it; only where that
 * is one that no layer is called as. */
static void take_cast(struct mgpu_arena *arena, char *path)
{
    static const char *const cast[] = {"Cast", NULL}, *const split[] = {"split", NULL};
    static const char *const before[] = {
        "MatMul",   "BiasAdd", "Cast", "convolution", "conv_transpose",
        "GatherV2", "Reshape", "Add",  NULL};
    if (!is_last(path, cast))
        return;
    char *outer = mgpu_arena_string(arena, path), *end = strrchr(outer, '/');
    *end = 0;
    bool read = is_last(outer, before);
    if (is_last(outer, split)) {
        *strrchr(outer, '/') = 0;
        const char *slash = strrchr(outer, '/');
        read = slash && mgpu_keras_is_cell(slash + 1);
    }
    if (read)
        path[end - outer] = 0;
}

/* Layers may be called as containers, too: of these it is known what they hold. */
static bool holds(const char *path, const char *op)
{
    static const char *const only[][2] = {{"separable_conv2d", "depthwise"},
                                          {"convolution", "ExpandDims"},
                                          {"conv_transpose", "ExpandDims"},
                                          {"conv1d_transpose", "ExpandDims"},
                                          {"einsum", "Einsum"}};
    const char *slash = strrchr(path, '/');
    for (size_t i = 0; slash && i < sizeof only / sizeof *only; i++)
        if (is_one_of(slash + 1, (const char *const[]){only[i][0], NULL}))
            return is_one_of(op, (const char *const[]){only[i][1], NULL});
    return true;
}

static void cut_colon(char *text)
{
    char *colon = strrchr(text, ':');
    if (colon && colon[1] && colon[1 + strspn(colon + 1, "0123456789")] == 0)
        *colon = 0;
}

/* What a SavedModel's export puts in front of all names is no part of the model. */
static const char *without_calls(struct mgpu_arena *arena, const char *name)
{
    static const char *const calls[] = {"StatefulPartitionedCall", "PartitionedCall",
                                        "ConstantFolding", "Func", NULL};
    size_t n;
    while (name[n = strcspn(name, "/")] &&
           is_one_of(mgpu_arena_format(arena, "%.*s", (int)n, name), calls))
        name += n + 1;
    return name;
}

/* "zoo_1/dense_2" without the last number of each part. */
static char *without_numbers(struct mgpu_arena *arena, const char *path)
{
    char *out = mgpu_arena_alloc(arena, strlen(path) + 1), *to = out;
    for (const char *part = path; *part;) {
        size_t n = strcspn(part, "/");
        int number;
        const char *one = mgpu_arena_format(arena, "%.*s", (int)n, part);
        size_t base = mgpu_keras_numbered(one, &number);
        memcpy(to, one, base);
        to += base;
        if (part[n])
            *to++ = '/';
        part += n + (part[n] == '/');
    }
    return out;
}

/* "rnn/lstm_cell_1": Keras 3 calls the cell of its own recurrent layers always the same. */
static bool is_of_several(struct mgpu_arena *arena, const char *cell)
{
    static const char *const rnn[] = {"rnn", NULL};
    int number, length = (int)(strrchr(cell, '/') - cell);
    mgpu_keras_numbered(cell, &number);
    return number > 0 || is_last(mgpu_arena_format(arena, "/%.*s", length, cell), rnn);
}

/* "lstm/PartitionedCall/input/_4": what a function is given; its number does not tell which. */
static void cut_argument(char *path)
{
    char *number = strrchr(path, '/');
    if (!number || number[1] != '_' || number[2 + strspn(number + 2, "0123456789")])
        return;
    *number = 0;
    char *input = strrchr(path, '/');
    if (input && !strcmp(input, "/input"))
        *input = 0;
    else
        *number = '/';
}

/* "unstack-folded-1" is output 1 of unstack. */
static int cut_folded(char *path)
{
    static const char folded[] = "-folded-";
    char *at = strstr(path, folded), *number = at ? at + strlen(folded) : NULL;
    if (!at || !*number || strlen(number) > 4 || number[strspn(number, "0123456789")])
        return -1;
    *at = 0;
    return atoi(number);
}

struct mgpu_scope mgpu_scope_tensorflow(struct mgpu_arena *arena, const char *name, bool renumbered)
{
    struct mgpu_scope s = {.path = "", .op = "", .part = -1};
    char *path = mgpu_arena_string(arena, without_calls(arena, name)), *slash;
    cut_colon(path);
    if (!strchr(path, '/'))
        return s;
    const char *last;
    bool read = false;
    cut_argument(path);
    s.part = cut_folded(path);
    for (; (last = take_last(path, reads)); read = true)
        if (strcmp(last, "ReadVariableOp") && strcmp(last, "resource"))
            s.op = last;
    take_cast(arena, path);
    slash = strrchr(path, '/');
    if (slash && slash[1 + strspn(slash + 1, "0123456789")] == 0) /* "embedding_lookup/29037" */
        *slash = 0;
    last = take_last(path, operations);
    s.op = last ? last : s.op;
    const char *inner = s.op;
    while (strncmp(s.op, "BiasAdd", 7) && holds(path, inner) &&
           (last = take_last(path, containers))) {
        if (!strcmp(last, "batchnorm") && read) /* of a normalisation that is not one operation */
            s.op = !strncmp(s.op, "mul", 3) ? "gamma" : *s.op ? s.op : "beta";
        s.call |= !strcmp(last, "PartitionedCall");
        inner = last;
    }
    if (renumbered)
        path = without_numbers(arena, path);
    slash = strrchr(path, '/');
    s.cell = slash && mgpu_keras_is_cell(slash + 1);
    if (s.cell && !mgpu_keras_take_stack(path, slash) &&
        !(renumbered && is_of_several(arena, path)))
        *slash = 0;
    s.path = path;
    return s;
}

/* "separable_conv2d_1_2": the second number is no layer's own. */
static bool is_numbered_twice(struct mgpu_arena *arena, const char *part)
{
    int number;
    char *name = mgpu_arena_format(arena, "%.*s", (int)strcspn(part, "/"), part);
    size_t n = mgpu_keras_numbered(name, &number);
    if (!name[n])
        return false;
    name[n] = 0;
    return mgpu_keras_numbered(name, &number) < n;
}

bool mgpu_scope_renumbered(struct mgpu_arena *arena, const struct mgpu_onnx_model *model)
{
    bool keras3 = false;
    for (int i = 0; i < model->initializers; i++) {
        const char *name = without_calls(arena, model->initializer[i].name);
        int number;
        size_t n = strcspn(name, "/");
        if (!name[n] || model->initializer[i].array.rank == 0)
            continue;
        if (mgpu_keras_numbered(mgpu_arena_format(arena, "%.*s", (int)n, name), &number) == n)
            return false;
        keras3 |= strstr(name, "/Cast") || strstr(name, "/convolution") ||
                  strstr(name, "/conv_transpose") || strstr(name, "/GatherV2") ||
                  is_numbered_twice(arena, name + n + 1);
    }
    return keras3;
}

static bool made_up(const char *name)
{
    return !strncmp(name, "onnx::", 6) ||
           (!strncmp(name, "val_", 4) && name[4 + strspn(name + 4, "0123456789")] == 0);
}

bool mgpu_scope_is_own(const char *name)
{
    return *name && !made_up(name) && !strchr(name, '/') &&
           strspn(name, "0123456789") != strlen(name);
}

struct mgpu_scope mgpu_scope_dotted(struct mgpu_arena *arena, const char *name)
{
    struct mgpu_scope s = {.path = "", .op = "", .part = -1};
    if (made_up(name))
        return s;
    char *path = mgpu_arena_string(arena, mgpu_without_wrappers(arena, name));
    cut_colon(path);
    for (char *dot = path; !strchr(name, '/') && (dot = strchr(dot, '.'));)
        *dot = '/';
    char *slash = strrchr(path, '/');
    s.op = slash ? slash + 1 : path;
    s.path = slash ? path : "";
    if (slash)
        *slash = 0;
    return s;
}

/* TorchScript calls a module that has a number by what it is in, too: in "layer1/layer1.0/conv1"
 * that is said twice, since a Sequential is called itself. */
static char *said_once(struct mgpu_arena *arena, const char *layer)
{
    char *out = mgpu_arena_alloc(arena, strlen(layer) + 1), *to = out;
    for (const char *part = layer; *part;) {
        size_t n = strcspn(part, "/");
        const char *next = part + n + (part[n] == '/');
        bool again = !strncmp(next, part, n) && next[n] == '.';
        size_t kept = again ? 0 : (size_t)(next - part);
        memcpy(to, part, kept);
        to += kept;
        part = next;
    }
    return out;
}

const char *mgpu_scope_of_layer(struct mgpu_arena *arena, const char *layer)
{
    char *path = said_once(arena, layer + (*layer == '/'));
    for (char *dot = path; (dot = strchr(dot, '.'));)
        *dot = '/';
    return path;
}

const char *mgpu_scope_source(struct mgpu_arena *arena, const char *folded_from)
{
    const char *source = NULL, *at = folded_from;
    while ((at = strchr(at, '\''))) {
        size_t n = strcspn(++at, "'");
        const char *name = mgpu_arena_format(arena, "%.*s", (int)n, at);
        at += n + (at[n] == '\'');
        if (mgpu_scope_is_own(name) && mgpu_onnx_is_parameter_name(name))
            source = source ? "" : name;
    }
    return source;
}
