#include "exporter/keras_layers.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Two rules of keras.src.utils.naming.to_snake_case, one after the other: '_' before a capital that
 * a small letter follows, then between a small letter and a capital. */
const char *mgpu_keras_snake_case(struct mgpu_arena *arena, const char *name)
{
    size_t n = strlen(name), m = 0;
    char *once = mgpu_arena_alloc(arena, 2 * n + 1), *twice = mgpu_arena_alloc(arena, 3 * n + 1);
    for (size_t i = 0, used = 0; i < n; i++) {
        if (i > used && isupper((unsigned char)name[i]) && islower((unsigned char)name[i + 1])) {
            once[m++] = '_';
            for (once[m++] = name[i]; islower((unsigned char)name[i + 1]); i++)
                once[m++] = name[i + 1];
            used = i + 1;
        } else
            once[m++] = name[i];
    }
    n = 0;
    for (size_t i = 0; i < m; i++) {
        twice[n++] = (char)tolower((unsigned char)once[i]);
        if (islower((unsigned char)once[i]) && isupper((unsigned char)once[i + 1]))
            twice[n++] = '_';
    }
    return twice;
}

size_t mgpu_keras_numbered(const char *name, int *number)
{
    size_t n = strlen(name), digits = n;
    while (digits > 0 && isdigit((unsigned char)name[digits - 1]))
        digits--;
    *number = 0;
    if (digits == n || n - digits > 6 || digits < 2 || name[digits - 1] != '_')
        return n;
    *number = atoi(name + digits);
    return digits - 1;
}

const char *const mgpu_keras_attention[MGPU_KERAS_ATTENTION][2] = {
    {"query_dense", "query"},
    {"key_dense", "key"},
    {"value_dense", "value"},
    {"output_dense", "attention_output"}};

int mgpu_keras_attention_part(const char *group)
{
    for (int i = 0; i < MGPU_KERAS_ATTENTION; i++)
        if (!strcmp(group, mgpu_keras_attention[i][0]))
            return i;
    return -1;
}

bool mgpu_keras_is_cell(const char *part)
{
    static const char *const cells[] = {"cell", "lstm_cell", "gru_cell", "simple_rnn_cell",
                                        "conv_lstm_cell"};
    for (size_t i = 0; i < sizeof cells / sizeof *cells; i++) {
        size_t n = strlen(cells[i]);
        if (!strncmp(part, cells[i], n) &&
            (!part[n] || (part[n] == '_' && part[n + 1 + strspn(part + n + 1, "0123456789")] == 0)))
            return true;
    }
    return false;
}

bool mgpu_keras_take_stack(char *path, char *cell)
{
    static const char stack[] = "stacked_rnn_cells";
    int number;
    *cell = 0;
    char *slash = strrchr(path, '/');
    bool found = slash && mgpu_keras_numbered(slash + 1, &number) == sizeof stack - 1 &&
                 !strncmp(slash + 1, stack, sizeof stack - 1);
    *cell = '/';
    if (found)
        memmove(slash, cell, strlen(cell) + 1);
    return found;
}

static const struct {
    const char *class_name;
    const char *variables[MGPU_KERAS_VARIABLES];
} layers[] = {
    {"dense", {"kernel", "bias"}},
    {"einsum_dense", {"kernel", "bias"}},
    {"conv1d", {"kernel", "bias"}},
    {"conv2d", {"kernel", "bias"}},
    {"conv3d", {"kernel", "bias"}},
    {"conv1d_transpose", {"kernel", "bias"}},
    {"conv2d_transpose", {"kernel", "bias"}},
    {"conv3d_transpose", {"kernel", "bias"}},
    {"depthwise_conv1d", {"depthwise_kernel", "bias"}},
    {"depthwise_conv2d", {"depthwise_kernel", "bias"}},
    {"separable_conv1d", {"depthwise_kernel", "pointwise_kernel", "bias"}},
    {"separable_conv2d", {"depthwise_kernel", "pointwise_kernel", "bias"}},
    {"batch_normalization", {"gamma", "beta", "moving_mean", "moving_variance"}},
    {"layer_normalization", {"gamma", "beta"}},
    {"group_normalization", {"gamma", "beta"}},
    {"normalization", {"mean", "variance", "count"}},
    {"spectral_normalization", {"kernel", "vector_u"}},
    {"embedding", {"embeddings"}},
    {"reversible_embedding", {"embeddings", "reverse_embeddings"}},
    {"p_re_lu", {"alpha"}},
    {"lstm", {"kernel", "recurrent_kernel", "bias"}},
    {"gru", {"kernel", "recurrent_kernel", "bias"}},
    {"simple_rnn", {"kernel", "recurrent_kernel", "bias"}},
    {"rnn", {"kernel", "recurrent_kernel", "bias"}}, /* of a single cell of Keras's own */
    {"conv_lstm1d", {"kernel", "recurrent_kernel", "bias"}},
    {"conv_lstm2d", {"kernel", "recurrent_kernel", "bias"}},
    {"conv_lstm3d", {"kernel", "recurrent_kernel", "bias"}},
    {"lstm_cell", {"kernel", "recurrent_kernel", "bias"}},
    {"gru_cell", {"kernel", "recurrent_kernel", "bias"}},
    {"simple_rnn_cell", {"kernel", "recurrent_kernel", "bias"}},
    {"bidirectional", {"kernel", "recurrent_kernel", "bias"}},
    {"query_dense", {"kernel", "bias"}},
    {"key_dense", {"kernel", "bias"}},
    {"value_dense", {"kernel", "bias"}},
    {"output_dense", {"kernel", "bias"}},
};

static int count_of(const char *const *variables)
{
    int n = 0;
    while (n < MGPU_KERAS_VARIABLES && variables[n])
        n++;
    return n;
}

bool mgpu_keras_is_variable(const char *name)
{
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        for (int k = 0; k < count_of(layers[i].variables); k++)
            if (!strcmp(layers[i].variables[k], name))
                return true;
    return false;
}

/* A normalisation may lack gamma or beta, one of the two or both: the last ones are certain, where
 * there are others. What else is missing, is missing at the end. */
bool mgpu_keras_variables(const char *names[MGPU_KERAS_VARIABLES], const char *class_name,
                          int count)
{
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        if (strcmp(layers[i].class_name, class_name))
            continue;
        const char *const *all = layers[i].variables;
        int total = count_of(all);
        bool norm = !strcmp(all[0], "gamma"), full = count == total;
        if (count > total)
            return false;
        for (int k = 0; k < count; k++)
            names[k] = !norm || full             ? all[k]
                       : k < count - (total - 2) ? ""
                                                 : all[total - count + k];
        return true;
    }
    return false;
}
