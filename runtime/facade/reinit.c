/* --reinit: weights that start from random numbers instead of those in the file. */
#include "runtime/base/status.h"
#include "runtime/facade/facade.h"

#include <fnmatch.h>
#include <math.h>
#include <string.h>

enum kind { HE, GLOROT, NORMAL, ZEROS };
static const char *const kinds[] = {"he", "glorot", "normal", "zeros", NULL};

/* PATTERN[=KIND]; a pattern may hold '=' itself. */
static const char *read_rule(struct mgpu_trainer *t, const char *text, enum kind *kind)
{
    const char *is = strrchr(text, '=');
    *kind = HE;
    for (int i = 0; is && kinds[i]; i++)
        if (!strcmp(is + 1, kinds[i])) {
            *kind = (enum kind)i;
            char *pattern = mgpu_arena_string(t->arena, text);
            pattern[is - text] = 0;
            return pattern;
        }
    return text;
}

static bool matches(const struct mgpu_trainer *t, const char *pattern, const struct mgpu_weight *w)
{
    bool found = !strcmp(pattern, w->name) || !fnmatch(pattern, w->name, 0);
    for (int h = 0; h < w->holders && !found; h++) {
        const char *name = t->model->initializer[w->holder[h].initializer].name;
        found = !strcmp(pattern, name) || !fnmatch(pattern, name, 0);
    }
    return found;
}

int mgpu_reinit_check(struct mgpu_trainer *t)
{
    for (int i = 0; t->options.reinit && t->options.reinit[i]; i++) {
        enum kind kind;
        const char *pattern = read_rule(t, t->options.reinit[i], &kind);
        int found = 0;
        for (int k = 0; k < t->weights->count; k++)
            found += t->weights->weight[k].role == MGPU_ROLE_TRAINED &&
                     matches(t, pattern, &t->weights->weight[k]);
        if (!found)
            return mgpu_fail(MGPU_EUSAGE,
                             "--reinit %s: no trained weight is called so (KIND is one of he, "
                             "glorot, normal, zeros)",
                             t->options.reinit[i]);
        mgpu_note("--reinit %s: %d weights start from %s", t->options.reinit[i], found,
                  kind == ZEROS ? "zeros" : "random numbers (--seed)");
    }
    return 0;
}

/* What goes into and out of one unit, by the layer that uses the weight. */
static void fans(const struct mgpu_onnx_node *node, const struct mgpu_array *a, double *in,
                 double *out)
{
    double area = 1;
    bool turned = !strcmp(node->type, "MatMul") || !strcmp(node->type, "Gather") ||
                  !strcmp(node->type, "ConvTranspose") ||
                  (!strcmp(node->type, "Gemm") && !mgpu_onnx_int(node, "transB", 0));
    for (int i = 2; i < a->rank; i++)
        area *= (double)a->dims[i];
    if (a->rank == 3 && (!strcmp(node->type, "LSTM") || !strcmp(node->type, "GRU") ||
                         !strcmp(node->type, "RNN"))) { /* [D, gates * H, I] */
        *in = (double)a->dims[2];
        *out = (double)a->dims[1];
        return;
    }
    *out = area * (double)a->dims[turned ? 1 : 0];
    *in = area * (double)a->dims[turned ? 0 : 1];
}

/* SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): [0, 1). */
static double draw(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

/* Box and Muller's normal numbers. */
static double draw_normal(uint64_t *state)
{
    double radius = sqrt(-2 * log(1 - draw(state)));
    return radius * cos(2 * M_PI * draw(state));
}

static uint64_t seed_of(const struct mgpu_trainer *t, const char *name)
{
    uint64_t seed = (uint64_t)t->options.seed + 1;
    for (; *name; name++)
        seed = (seed ^ (unsigned char)*name) * UINT64_C(0x100000001B3);
    return seed;
}

void mgpu_fill_uniform(const struct mgpu_trainer *t, const char *name,
                       const struct mgpu_array *array, double bound)
{
    uint64_t state = seed_of(t, name);
    for (int64_t i = 0, n = mgpu_array_count(array); i < n; i++)
        mgpu_set_double(array->data, array->type, i, (2 * draw(&state) - 1) * bound);
}

static void fill(const struct mgpu_trainer *t, const struct mgpu_weight *w, enum kind kind,
                 void *to, enum mgpu_dtype type)
{
    const struct mgpu_holder *h = &w->holder[0];
    const struct mgpu_array *a = &t->model->initializer[h->initializer].array;
    const struct mgpu_onnx_node *node = h->uses ? t->model->all[h->use[0].node] : NULL;
    uint64_t state = seed_of(t, w->name);
    double in = 1, out = 1, constant = 0;
    if (a->rank < 2 && kind != ZEROS) { /* scales of normalisations are 1, biases 0 */
        kind = ZEROS;
        constant = node && strstr(node->type, "Normalization") && h->use[0].input == 1;
    } else if (a->rank >= 2 && node)
        fans(node, a, &in, &out);
    double bound = sqrt(6 / (in + out));
    double deviation = kind == HE ? sqrt(2 / in) : 0.02;
    for (int64_t i = 0, n = mgpu_array_count(a); i < n; i++)
        mgpu_set_double(to, type, i,
                        kind == ZEROS    ? constant
                        : kind == GLOROT ? (2 * draw(&state) - 1) * bound
                                         : draw_normal(&state) * deviation);
}

void mgpu_reinit(struct mgpu_trainer *t, const struct mgpu_weight *w, void *to,
                 enum mgpu_dtype type)
{
    for (int i = 0; t->options.reinit && t->options.reinit[i]; i++) {
        enum kind kind;
        const char *pattern = read_rule(t, t->options.reinit[i], &kind);
        if (w->role == MGPU_ROLE_TRAINED && matches(t, pattern, w))
            fill(t, w, kind, to, type);
    }
}
