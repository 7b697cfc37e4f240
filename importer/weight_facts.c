/* What can be told of a tensor by its values, its name and the nodes around it. */
#include "importer/weight_parts.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct mgpu_array *array_of(const struct mgpu_identify *in, int initializer)
{
    return &in->model->initializer[initializer].array;
}

/* ---- Names ---------------------------------------------------------------------------------- */

bool mgpu_onnx_is_result_name(const char *name, const char *const *words)
{
    for (int i = 0; words[i]; i++) {
        size_t n = strlen(words[i]);
        if (!strncmp(name, words[i], n) &&
            (!name[n] ||
             (name[n] == '_' && strspn(name + n + 1, "0123456789") == strlen(name + n + 1))))
            return true;
    }
    return false;
}

/* What PyTorch's exporters call tensors that are no parameters under their own name: results of
 * calls ("zeros_2"), values made on the way ("val_8", "onnx::MatMul_13", "/fc/Constant_output_0",
 * "42"). A parameter's name is a dotted path, or one word at the top. */
bool mgpu_onnx_is_parameter_name(const char *name)
{
    static const char *const words[] = {"val",
                                        "zeros",
                                        "ones",
                                        "full",
                                        "empty",
                                        "arange",
                                        "linspace",
                                        "eye",
                                        "tril",
                                        "triu",
                                        "tensor",
                                        "scalar_tensor",
                                        "full_like",
                                        "zeros_like",
                                        "ones_like",
                                        "new_zeros",
                                        "new_ones",
                                        "new_full",
                                        "scalar_tensor_default",
                                        "_tensor_constant",
                                        "lift_fresh_copy",
                                        NULL};
    if (*name == '/' || strstr(name, "::") || !strcmp(name, "") ||
        strspn(name, "0123456789") == strlen(name))
        return false;
    if (strchr(name, '.'))
        return true;
    size_t n = strlen(name);
    if (n > 5 && !strcmp(name + n - 5, "_cast"))
        return false;
    return !mgpu_onnx_is_result_name(name, words);
}

/* The next of the names of a list "['a', 'b']", "" where it has no end; NULL: there is none. */
static const char *next_name(struct mgpu_arena *arena, const char **at)
{
    const char *name = strchr(*at, '\'');
    if (!name++)
        return NULL;
    size_t n = strcspn(name, "'");
    *at = name + n + (name[n] != 0);
    return mgpu_arena_format(arena, "%.*s", name[n] ? (int)n : 0, name);
}

const char *mgpu_onnx_moved_from(struct mgpu_arena *arena, const char *folded_from,
                                 const char *const *words)
{
    const char *source = NULL, *name;
    while ((name = next_name(arena, &folded_from))) {
        if (mgpu_onnx_is_result_name(name, words))
            continue;
        if (source || !mgpu_onnx_is_parameter_name(name))
            return NULL;
        source = name;
    }
    return source;
}

/* What dynamo calls results of operators that models compute tables of positions, biases and masks
 * with. Another name may be a parameter's. */
static bool is_result_name(const char *name)
{
    static const char *const operators[] = {
        "abs",       "add",         "alias",        "cat",
        "ceil",      "clamp",       "clone",        "convert_element_type_default",
        "cos",       "cumsum",      "detach",       "div",
        "eq",        "exp",         "exp2",         "expand",
        "flip",      "floor",       "floor_divide", "ge",
        "gt",        "index",       "le",           "lifted_tensor",
        "log",       "logical_and", "logical_not",  "logical_or",
        "lt",        "masked_fill", "maximum",      "minimum",
        "mul",       "ne",          "neg",          "outer",
        "permute",   "pow",         "reciprocal",   "remainder",
        "repeat",    "reshape",     "rsub",         "select",
        "sin",       "slice",       "sqrt",         "squeeze",
        "stack",     "sub",         "_to_copy",     "transpose",
        "unsqueeze", "view",        "where",        NULL};
    return mgpu_onnx_is_result_name(name, operators) || !mgpu_onnx_is_parameter_name(name);
}

bool mgpu_weight_is_of_code(const struct mgpu_identify *in, int initializer)
{
    const char *at = in->model->initializer[initializer].folded_from, *name;
    bool code = at && strchr(at, '\'');
    while (code && (name = next_name(in->arena, &at)))
        code = *name && is_result_name(name);
    return code;
}

/* ---- Values --------------------------------------------------------------------------------- */

uint64_t mgpu_weight_bits(const struct mgpu_array *a, int64_t i)
{
    uint64_t bits = 0;
    size_t size = mgpu_dtype_size(a->type);
    memcpy(&bits, (const char *)a->data + (size_t)i * size, size);
    return bits;
}

bool mgpu_weight_same_shape(const struct mgpu_array *a, const struct mgpu_array *b)
{
    return a->type == b->type && a->rank == b->rank &&
           !memcmp(a->dims, b->dims, sizeof *a->dims * (size_t)a->rank);
}

bool mgpu_weight_same_values(const struct mgpu_array *a, const struct mgpu_array *b)
{
    return mgpu_weight_same_shape(a, b) &&
           !memcmp(a->data, b->data, (size_t)mgpu_array_count(a) * mgpu_dtype_size(a->type));
}

/* splitmix64 */
static uint64_t mix(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* The same for a matrix and its transpose: the size, and of the elements the diagonal, or the first
 * ones. */
static uint64_t sketch(const struct mgpu_array *a, int64_t count)
{
    enum { MOST = 64 };
    bool matrix = a->rank == 2;
    int64_t least = matrix && a->dims[0] < a->dims[1] ? a->dims[0] : a->dims[matrix];
    int64_t n = matrix ? least : count, step = matrix ? a->dims[1] + 1 : 1;
    uint64_t sum = mix((uint64_t)count) + (uint64_t)a->type;
    for (int64_t i = 0; i < n && i < MOST; i++)
        sum = mix(sum ^ mgpu_weight_bits(a, i * step));
    return sum;
}

/* The same for a matrix and its transpose: all elements, each mixed, added. */
static uint64_t sum_of(const struct mgpu_array *a, int64_t count)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += mix(mgpu_weight_bits(a, i));
    return sum;
}

static bool all_equal(const struct mgpu_array *a, int64_t count)
{
    size_t size = mgpu_dtype_size(a->type);
    const char *data = a->data;
    return count > 0 && !memcmp(data, data + size, (size_t)(count - 1) * size);
}

static bool is_named(const struct mgpu_identify *in, const char *name)
{
    if (in->tensorflow)
        return strstr(name, "ReadVariableOp") || strstr(name, "/resource");
    return !in->pytorch || mgpu_onnx_is_parameter_name(name);
}

static const char *key_of(struct mgpu_identify *in, uint64_t sum)
{
    return mgpu_arena_format(in->arena, "%llx", (unsigned long long)sum);
}

/* Sums tell tensors apart. Most are told apart by a sketch, and the rest of them is not read. */
static void find_sums(struct mgpu_identify *in)
{
    struct mgpu_names *first = mgpu_names_new(in->arena);
    for (int i = 0; i < in->model->initializers; i++) {
        struct mgpu_facts *f = &in->facts[i];
        if (!f->real || f->equal || f->count < MGPU_WEIGHT_TWINS_AT_LEAST)
            continue;
        const char *key = key_of(in, sketch(array_of(in, i), f->count));
        int other = (int)(intptr_t)mgpu_names_get(first, key) - 1;
        if (other < 0) {
            mgpu_names_set(first, key, (void *)(intptr_t)(i + 1));
            f->sum = mix((uint64_t)i);
            continue;
        }
        f->sum = sum_of(array_of(in, i), f->count);
        if (in->facts[other].sum == mix((uint64_t)other))
            in->facts[other].sum = sum_of(array_of(in, other), in->facts[other].count);
    }
}

static void find_twins(struct mgpu_identify *in)
{
    struct mgpu_names *first = mgpu_names_new(in->arena);
    for (int i = 0; i < in->model->initializers; i++) {
        struct mgpu_facts *f = &in->facts[i];
        if (!f->real || f->equal || f->count < MGPU_WEIGHT_TWINS_AT_LEAST)
            continue;
        const char *key = key_of(in, f->sum);
        int other = (int)(intptr_t)mgpu_names_get(first, key) - 1;
        if (other < 0)
            mgpu_names_set(first, key, (void *)(intptr_t)(i + 1));
        else if (mgpu_weight_same_values(array_of(in, other), array_of(in, i)))
            f->twin = other;
    }
}
void mgpu_weight_facts(struct mgpu_identify *in)
{
    in->facts = MGPU_NEW_ARRAY(in->arena, struct mgpu_facts, in->model->initializers);
    in->out->zero = MGPU_NEW_ARRAY(in->arena, bool, in->model->initializers);
    for (int i = 0; i < in->model->initializers; i++) {
        const struct mgpu_array *a = array_of(in, i);
        struct mgpu_facts *f = &in->facts[i];
        f->real = mgpu_is_float(a->type);
        f->count = a->type ? mgpu_array_count(a) : 0;
        f->equal = all_equal(a, f->count);
        f->value = f->count ? mgpu_get_double(a->data, a->type, 0) : 0;
        f->twin = i;
        f->named = is_named(in, in->model->initializer[i].name);
        in->out->zero[i] = f->equal && f->value == 0;
    }
    find_sums(in);
    find_twins(in);
}

static double at(const struct mgpu_array *a, int64_t i)
{
    return mgpu_get_double(a->data, a->type, i);
}

/* Minus infinity, or the large negative numbers that stand for it. Nobody learns such. */
static bool has_mask_values(const struct mgpu_array *a, int64_t count)
{
    enum { BLOCK = 1024 };
    float block[BLOCK];
    size_t size = mgpu_dtype_size(a->type);
    bool found = false;
    for (int64_t first = 0; first < count && !found; first += BLOCK) {
        int64_t n = count - first < BLOCK ? count - first : BLOCK;
        mgpu_convert(block, MGPU_FLOAT, (const char *)a->data + (size_t)first * size, a->type, n);
        for (int64_t i = 0; i < n; i++)
            found |= !(fabsf(block[i]) < 1e4f);
    }
    return found;
}

/* Positions as sines and cosines: in each row the squares of a pair add up to 1; the pair is
 * neighbours, or the same place in both halves. */
static bool has_pairs(const struct mgpu_array *a, int64_t count)
{
    int64_t width = a->rank ? a->dims[a->rank - 1] : 0;
    if (a->rank < 2 || width < 4 || width % 2 || count / width < 4)
        return false;
    bool pairs = true, halves = true;
    for (int64_t i = 0; i < count && (pairs || halves); i += width)
        for (int64_t j = 0; j < width / 2 && (pairs || halves); j++) {
            double even = at(a, i + 2 * j), odd = at(a, i + 2 * j + 1);
            double left = at(a, i + j), right = at(a, i + width / 2 + j);
            pairs = pairs && fabs(even * even + odd * odd - 1) < 1e-3;
            halves = halves && fabs(left * left + right * right - 1) < 1e-3;
        }
    return pairs || halves;
}

/* Whether column `j` of `rows` x `width` is cos(w t), or sin(w t), of the rows t = 0, 1, ...: each
 * element and the one two before it add up to 2 cos(w) times the one between. Angles that floats
 * hold are off by more the larger they are. */
static bool is_wave(const struct mgpu_array *a, int64_t j, int64_t rows, int64_t width, bool sine)
{
    double before = at(a, j), x = at(a, j + width), after = at(a, j + 2 * width);
    double twice = sine ? (x != 0 ? after / x : 2) : 2 * x / before;
    bool wave = fabs(twice) <= 2 + 1e-6;
    for (int64_t t = 2; t < rows && wave; t++, before = x, x = after) {
        after = at(a, j + t * width);
        wave = fabs(before + after - twice * x) < 1e-3 + 2e-6 * (double)t;
    }
    return wave;
}

/* The cosines, or the sines, of positions in a table of their own, as rotary embeddings take them:
 * 1, or 0, throughout the first row. */
static bool is_waves(const struct mgpu_array *a, int64_t count)
{
    int64_t width = a->rank ? a->dims[a->rank - 1] : 0, rows = 1;
    for (int i = 0; i + 1 < a->rank && rows == 1; i++) /* the others are of one element */
        rows = a->dims[i];
    if (width < 2 || rows < 4 || rows * width != count)
        return false;
    double first = at(a, 0), most = 0;
    bool waves = first == 0 || first == 1;
    for (int64_t j = 0; j < width && waves; j++)
        waves = at(a, j) == first && is_wave(a, j, rows, width, first == 0);
    for (int64_t i = 0; i < count && waves; i++)
        most = fmax(most, fabs(at(a, i)));
    return waves && most > 0.5 && most < 1 + 1e-6;
}

static bool is_sinusoidal(const struct mgpu_array *a, int64_t count)
{
    return has_pairs(a, count) || is_waves(a, count);
}

/* Whether there are at most so many different values. */
static bool has_few(const struct mgpu_array *a, int64_t count, int64_t most)
{
    size_t slots = 1;
    while (slots < 2 * (size_t)most + 2)
        slots *= 2;
    uint64_t *table = mgpu_xcalloc(slots, sizeof *table);
    for (int64_t i = 0; i < count && most >= 0; i++) {
        double value = at(a, i) + 0.0; /* -0 is 0 */
        uint64_t bits;
        memcpy(&bits, &value, sizeof bits);
        uint64_t key = mix(bits) | 1; /* 0 is an empty slot */
        size_t slot = key / 2 & (slots - 1);
        while (table[slot] && table[slot] != key)
            slot = (slot + 1) & (slots - 1);
        most -= !table[slot];
        table[slot] = key;
    }
    free(table);
    return most >= 0;
}

/* Coordinates of a grid, window masks: hundreds of elements and a handful of different ones (a
 * grid of h x w points has about h + w). */
static bool is_grid(const struct mgpu_array *a, int64_t count)
{
    return count >= 256 && (a->type == MGPU_FLOAT || a->type == MGPU_DOUBLE) &&
           has_few(a, count, (int64_t)(3 * sqrt((double)count)));
}

/* Points of a regular grid in homogeneous coordinates, [.., x, y, 1] or [.., x, y, z, 1] with x
 * running fastest: what affine_grid multiplies with its matrices. */
static bool is_base_grid(const struct mgpu_array *a, int64_t count)
{
    int last = a->rank - 1;
    while (last > 0 && a->dims[last] == 1)
        last--;
    int64_t width = last > 0 ? a->dims[last] : 0, rows = width ? count / width : 0, stride = 1;
    if ((width != 3 && width != 4) || rows < 4)
        return false;
    for (int64_t r = 0; r < rows; r++)
        if (at(a, r * width + width - 1) != 1)
            return false;
    for (int k = 0; k < width - 1; k++) {
        double first = at(a, k);
        int64_t n = 1;
        while (n * stride < rows && at(a, n * stride * width + k) != first)
            n++;
        double step = (at(a, (n - 1) * stride * width + k) - first) / (n > 1 ? (double)n - 1 : 1);
        for (int64_t r = 0; r < rows; r++)
            if (!(fabs(at(a, r * width + k) - first - step * (double)(r / stride % n)) < 1e-4))
                return false;
        stride *= n;
    }
    return stride == rows;
}

const char *mgpu_weight_operand_table(const struct mgpu_identify *in, int initializer)
{
    return is_base_grid(array_of(in, initializer), in->facts[initializer].count)
               ? "coordinates of a regular grid"
               : NULL;
}

const char *mgpu_weight_table(const struct mgpu_identify *in, int initializer, bool gathered)
{
    const struct mgpu_array *a = array_of(in, initializer);
    const struct mgpu_facts *f = &in->facts[initializer];
    if (has_mask_values(a, f->count))
        return "a mask";
    if (f->equal)
        return NULL;
    if (is_sinusoidal(a, f->count))
        return "positions as sines and cosines";
    const char *table = mgpu_weight_operand_table(in, initializer);
    if (table)
        return table;
    return !gathered && is_grid(a, f->count) ? "a grid or a mask" : NULL;
}

/* ---- Around it ------------------------------------------------------------------------------ */

enum { MAX_STEPS = 64 };

static const struct mgpu_onnx_node *maker(const struct mgpu_identify *in, const char *name)
{
    const struct mgpu_weight_flow_value *value = mgpu_weight_flow_get(in->flow, name);
    return value && value->node >= 0 ? in->model->all[value->node] : NULL;
}

int mgpu_weight_root(const struct mgpu_identify *in, const char *name)
{
    for (int step = 0; step < MAX_STEPS; step++) {
        const struct mgpu_onnx_node *node = maker(in, name);
        if (!node)
            return *name ? mgpu_onnx_find_initializer(in->model, name) : -1;
        if (!node->inputs || node->bodies || !mgpu_weight_is_view(node, 0))
            return -1;
        name = node->input[0];
    }
    return -1;
}

static bool is_linear(const struct mgpu_onnx_node *node)
{
    static const char *const types[] = {"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(node->type, types[i]))
            return true;
    return false;
}

const struct mgpu_onnx_node *mgpu_weight_layer_of(const struct mgpu_identify *in, const char *name)
{
    for (int step = 0; step < MAX_STEPS; step++) {
        const struct mgpu_onnx_node *node = maker(in, name);
        if (!node || is_linear(node))
            return node;
        if (!node->inputs || node->bodies || !mgpu_weight_is_view(node, 0))
            return NULL;
        name = node->input[0];
    }
    return NULL;
}
