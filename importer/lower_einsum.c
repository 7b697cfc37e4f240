/* Einsum: operands are joined from the left, each pair by one batched product.
 *
 * Labels are numbers here: letters, then one for each axis of an ellipsis counted from its end. Of
 * a pair, a label that both have and something still needs is a batch axis; one that both have and
 * nothing needs is summed by the product; one that only one side has stays, or is summed before.
 */
#include "importer/lower.h"
#include "runtime/base/status.h"
#include "runtime/ops/dims.h"

#include <inttypes.h>
#include <string.h>

enum { LETTERS = 52, LABELS = LETTERS + MGPU_MAX_RANK };

struct term {
    int rank;
    int label[MGPU_MAX_RANK];
    struct mgpu_value *value;
};

static int letter(char c)
{
    return c >= 'a' && c <= 'z' ? c - 'a' : c >= 'A' && c <= 'Z' ? c - 'A' + 26 : -1;
}

static int find(const struct term *t, int label)
{
    for (int i = 0; i < t->rank; i++)
        if (t->label[i] == label)
            return i;
    return -1;
}

static int put(struct term *t, int label)
{
    if (t->rank == MGPU_MAX_RANK)
        return mgpu_fail(MGPU_EUNSUPPORTED, "a term has more than %d axes", MGPU_MAX_RANK);
    t->label[t->rank++] = label;
    return 0;
}

/* Labels of one term of the equation; `dots` axes stand for its ellipsis. */
static int parse(const char *text, size_t size, int dots, struct term *t)
{
    t->rank = 0;
    for (size_t i = 0; i < size; i++) {
        if (text[i] == ' ')
            continue;
        if (text[i] == '.') {
            for (int k = dots; k > 0; k--)
                MGPU_TRY(put(t, LETTERS + k - 1));
            i += 2;
        } else if (letter(text[i]) >= 0)
            MGPU_TRY(put(t, letter(text[i])));
        else
            return mgpu_fail(MGPU_EINVALID, "'%c' in the equation", text[i]);
    }
    return 0;
}

/* Axes that the ellipsis of a term stands for, when its operand has `rank` axes. */
static int count_dots(const char *text, size_t size, int rank)
{
    int letters = 0;
    bool dots = false;
    for (size_t i = 0; i < size; i++) {
        letters += letter(text[i]) >= 0;
        dots = dots || text[i] == '.';
    }
    return dots && rank > letters ? rank - letters : 0;
}

/* ---- One operand ---------------------------------------------------------------------------- */

/* x with axes reordered and reduced to the listed labels, all of which it has. */
static struct mgpu_value *arrange(struct mgpu_lower *l, const struct term *t, int count,
                                  const int *labels)
{
    unsigned gone = 0;
    int perm[MGPU_MAX_RANK], place[MGPU_MAX_RANK], rank = 0;
    for (int i = 0; i < t->rank; i++) {
        bool kept = false;
        for (int k = 0; k < count; k++)
            kept = kept || labels[k] == t->label[i];
        place[i] = kept ? rank++ : -1;
        gone |= kept ? 0 : 1u << i;
    }
    struct mgpu_value *x = mgpu_reduce(l->g, MGPU_REDUCE_SUM, t->value, gone, false);
    for (int k = 0; k < count; k++)
        perm[k] = place[find(t, labels[k])];
    return mgpu_transpose(l->g, x, perm);
}

/* A label that stands twice in a term takes the diagonal: what lies off it is masked, and one of
 * the two axes is summed away. */
static int take_diagonals(struct mgpu_lower *l, struct term *t)
{
    for (int i = 0; i < t->rank; i++)
        for (int k = i + 1; k < t->rank; k++) {
            if (t->label[i] != t->label[k])
                continue;
            int64_t n = t->value->dims[i].value;
            if (n != t->value->dims[k].value)
                return mgpu_fail(MGPU_EINVALID, "a repeated label has two sizes");
            if (n > 1 << 13)
                return mgpu_fail(MGPU_EUNSUPPORTED, "a diagonal of %" PRId64, n);
            struct mgpu_dim dims[MGPU_MAX_RANK];
            for (int a = 0; a < t->rank; a++)
                dims[a] = a == i || a == k ? t->value->dims[a] : mgpu_dim_const(1);
            bool *mask = MGPU_NEW_ARRAY(l->g->arena, bool, n *n);
            for (int64_t d = 0; d < n; d++)
                mask[d * n + d] = true;
            struct mgpu_value *m =
                mgpu_graph_constant(l->g, NULL, MGPU_BOOL, t->rank, dims, mask, NULL);
            struct mgpu_value *zero = mgpu_const_double(l->g, t->value->type, 0);
            struct mgpu_value *x = mgpu_where(l->g, m, t->value, zero);
            t->value = mgpu_reduce(l->g, MGPU_REDUCE_SUM, x, 1u << k, false);
            if (!t->value)
                return mgpu_build_error();
            memmove(t->label + k, t->label + k + 1, sizeof *t->label * (size_t)(t->rank - k - 1));
            t->rank--;
            k--;
        }
    return 0;
}

/* ---- Pairs ---------------------------------------------------------------------------------- */

struct groups { /* labels of a pair, by what becomes of them */
    int batches, sums, lefts, rights;
    int batch[MGPU_MAX_RANK], sum[MGPU_MAX_RANK], left[MGPU_MAX_RANK], right[MGPU_MAX_RANK];
};

static void group(const struct term *a, const struct term *b, const bool *needed, struct groups *g)
{
    *g = (struct groups){0};
    for (int i = 0; i < a->rank; i++) {
        int label = a->label[i];
        if (find(b, label) >= 0)
            *(needed[label] ? &g->batch[g->batches++] : &g->sum[g->sums++]) = label;
        else if (needed[label])
            g->left[g->lefts++] = label;
    }
    for (int i = 0; i < b->rank; i++)
        if (find(a, b->label[i]) < 0 && needed[b->label[i]])
            g->right[g->rights++] = b->label[i];
}

/* The batch axes as they are, then two axes: the product of `rows` and of `columns` labels. */
static struct mgpu_value *as_matrix(struct mgpu_lower *l, const struct term *t,
                                    const struct groups *g, int rows, const int *row, int columns,
                                    const int *column)
{
    int labels[MGPU_MAX_RANK], count = 0;
    struct mgpu_dim dims[MGPU_MAX_RANK];
    for (int i = 0; i < g->batches; i++)
        labels[count++] = g->batch[i];
    for (int i = 0; i < rows; i++)
        labels[count++] = row[i];
    for (int i = 0; i < columns; i++)
        labels[count++] = column[i];
    struct mgpu_value *x = arrange(l, t, count, labels);
    if (!x)
        return NULL;
    if (g->batches + 2 > MGPU_MAX_RANK)
        return mgpu_build_fail(MGPU_EUNSUPPORTED, "more than %d axes", MGPU_MAX_RANK);
    for (int i = 0; i < g->batches; i++)
        dims[i] = x->dims[i];
    dims[g->batches] = mgpu_dims_product(rows, x->dims + g->batches);
    dims[g->batches + 1] = mgpu_dims_product(columns, x->dims + g->batches + rows);
    return mgpu_reshape(l->g, x, g->batches + 2, dims);
}

/* Sizes of these labels in `t`, appended to `out`. */
static int add_labels(const struct term *t, int count, const int *labels, struct term *out,
                      struct mgpu_dim *dims)
{
    for (int i = 0; i < count; i++) {
        dims[out->rank] = t->value->dims[find(t, labels[i])];
        MGPU_TRY(put(out, labels[i]));
    }
    return 0;
}

static int join(struct mgpu_lower *l, const struct term *a, const struct term *b,
                const bool *needed, struct term *out)
{
    struct groups g;
    struct mgpu_dim dims[MGPU_MAX_RANK];
    group(a, b, needed, &g);
    struct mgpu_value *x = as_matrix(l, a, &g, g.lefts, g.left, g.sums, g.sum);
    struct mgpu_value *y = as_matrix(l, b, &g, g.sums, g.sum, g.rights, g.right);
    struct mgpu_value *product = mgpu_matmul(l->g, x, false, y, false);
    if (!product)
        return mgpu_build_error();
    out->rank = 0;
    MGPU_TRY(add_labels(a, g.batches, g.batch, out, dims));
    for (int i = 0; i < g.batches; i++) /* an ellipsis may spread 1 */
        dims[i] = product->dims[i];
    MGPU_TRY(add_labels(a, g.lefts, g.left, out, dims));
    MGPU_TRY(add_labels(b, g.rights, g.right, out, dims));
    out->value = mgpu_reshape(l->g, product, out->rank, dims);
    return out->value ? 0 : mgpu_build_error();
}

/* ---- The whole ------------------------------------------------------------------------------ */

/* Without "->": the labels that stand once, in alphabetical order, after the ellipsis. */
static int implied_output(int count, const struct term *term, int dots, struct term *out)
{
    out->rank = 0;
    for (int k = dots; k > 0; k--)
        MGPU_TRY(put(out, LETTERS + k - 1));
    for (int k = 0; k < LETTERS; k++) {
        int label = k < 26 ? k + 26 : k - 26, uses = 0; /* capitals first */
        for (int t = 0; t < count; t++)
            for (int i = 0; i < term[t].rank; i++)
                uses += term[t].label[i] == label;
        if (uses == 1)
            MGPU_TRY(put(out, label));
    }
    return 0;
}

static int parse_all(struct mgpu_lower *l, const char *equation, int count, struct term *term,
                     struct term *out)
{
    const char *arrow = strstr(equation, "->"), *at = equation;
    const char *end = arrow ? arrow : equation + strlen(equation);
    int most = 0;
    for (int i = 0; i < count; i++) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        size_t size = (size_t)((comma ? comma : end) - at);
        term[i].value = mgpu_lower_in(l, i);
        if (!term[i].value || (!comma) != (i == count - 1))
            return mgpu_fail(MGPU_EINVALID, "'%s' does not fit %d inputs", equation, count);
        int dots = count_dots(at, size, term[i].value->rank);
        most = dots > most ? dots : most;
        MGPU_TRY(parse(at, size, dots, &term[i]));
        if (term[i].rank != term[i].value->rank)
            return mgpu_fail(MGPU_EINVALID, "term %d of '%s' does not fit rank %d", i, equation,
                             term[i].value->rank);
        at = comma ? comma + 1 : end;
    }
    return arrow ? parse(arrow + 2, strlen(arrow + 2), most, out)
                 : implied_output(count, term, most, out);
}

int mgpu_lower_einsum(struct mgpu_lower *l)
{
    enum { MOST = 16 };
    struct term term[MOST], out, left;
    const char *equation = mgpu_onnx_string(l->model, l->node, "equation", "");
    int count = l->node->inputs;
    if (count < 1 || count > MOST)
        return mgpu_fail(MGPU_EUNSUPPORTED, "%d operands", count);
    MGPU_TRY(parse_all(l, equation, count, term, &out));
    for (int i = 0; i < count; i++)
        MGPU_TRY(take_diagonals(l, &term[i]));
    left = term[0];
    for (int i = 1; i < count; i++) {
        bool needed[LABELS] = {false};
        for (int k = 0; k < out.rank; k++)
            needed[out.label[k]] = true;
        for (int t = i + 1; t < count; t++)
            for (int k = 0; k < term[t].rank; k++)
                needed[term[t].label[k]] = true;
        struct term joined;
        MGPU_TRY(join(l, &left, &term[i], needed, &joined));
        left = joined;
    }
    for (int k = 0; k < out.rank; k++)
        if (find(&left, out.label[k]) < 0)
            return mgpu_fail(MGPU_EINVALID, "'%s' has an output label that no input has", equation);
    return mgpu_lower_give(l, arrange(l, &left, out.rank, out.label));
}
