/* attention and its gradient: every mask and both orders of heads in every way of the harness,
 * numbers by hand. */
#include "runtime/ops/attention.h"
#include "runtime/ops/build.h"
#include "tests/ops/op_check.h"
#include "tests/test.h"

#define ATTENTION(...)                                                                             \
    &(struct mgpu_attention_attrs)                                                                 \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define SAMPLES(...)                                                                               \
    {                                                                                              \
        .rank = 4, .dims = { __VA_ARGS__ }                                                         \
    }
#define MASK(type_, rank_, axis, ...)                                                              \
    {                                                                                              \
        .rank = rank_, .dims = {__VA_ARGS__}, .batch_axis = axis, .type = type_, .constant = true, \
        .low = (type_) == MGPU_BOOL ? 0 : -1, .high = 1                                            \
    }

static const struct mgpu_check rows[] = {
    {.name = "attention",
     .op = &mgpu_op_attention,
     .attrs = ATTENTION(.scale = 0.7),
     .inputs = 3,
     .input = {SAMPLES(3, 2, 5, 4), SAMPLES(3, 2, 7, 4), SAMPLES(3, 2, 7, 3)},
     .skip_outputs = 2},
    {.name = "attention, heads inside, a mask for all",
     .op = &mgpu_op_attention,
     .attrs = ATTENTION(.scale = -0.5, .heads_inside = true),
     .inputs = 4,
     .input = {SAMPLES(3, 5, 2, 4), SAMPLES(3, 7, 2, 4), SAMPLES(3, 7, 2, 3), MASK(0, 2, -1, 5, 7)},
     .skip_outputs = 2},
    {.name = "attention, a mask for each sample's keys",
     .op = &mgpu_op_attention,
     .attrs = ATTENTION(.scale = 1),
     .inputs = 4,
     .input = {SAMPLES(3, 2, 5, 4), SAMPLES(3, 2, 7, 4), SAMPLES(3, 2, 7, 3),
               MASK(0, 4, 0, 3, 1, 1, 7)},
     .skip_outputs = 2},
    {.name = "attention, a mask for each head's queries",
     .op = &mgpu_op_attention,
     .attrs = ATTENTION(.scale = 1, .heads_inside = true),
     .inputs = 4,
     .input = {SAMPLES(2, 3, 2, 1), SAMPLES(2, 3, 2, 1), SAMPLES(2, 3, 2, 5),
               MASK(0, 3, -1, 2, 3, 1)},
     .skip_outputs = 2},
    {.name = "attention, bools",
     .op = &mgpu_op_attention,
     .attrs = ATTENTION(.scale = 0.7, .fill = -3),
     .inputs = 4,
     .input = {SAMPLES(3, 2, 5, 4), SAMPLES(3, 2, 7, 4), SAMPLES(3, 2, 7, 3),
               MASK(MGPU_BOOL, 2, -1, 5, 7)},
     .skip_outputs = 2},
    {.name = "attention, bools for each query",
     .op = &mgpu_op_attention,
     .attrs = ATTENTION(.scale = 0.7, .fill = -1e30, .heads_inside = true),
     .inputs = 4,
     .input = {SAMPLES(3, 5, 2, 4), SAMPLES(3, 7, 2, 4), SAMPLES(3, 7, 2, 3),
               MASK(MGPU_BOOL, 4, 0, 3, 1, 5, 1)},
     .skip_outputs = 2},
    {.name = "attention, log sums",
     .op = &mgpu_op_attention,
     .attrs = ATTENTION(.scale = 0.7, .heads_inside = true, .log_sums = true),
     .inputs = 4,
     .input = {SAMPLES(3, 5, 2, 4), SAMPLES(3, 7, 2, 4), SAMPLES(3, 7, 2, 3), MASK(0, 2, -1, 5, 7)},
     .skip_outputs = 2},
    {.name = "attention, many queries and keys",
     .op = &mgpu_op_attention,
     .attrs = ATTENTION(.scale = 0.3),
     .inputs = 3,
     .input = {SAMPLES(1, 1, 101, 9), SAMPLES(1, 1, 53, 9), SAMPLES(1, 1, 53, 17)},
     .skip_outputs = 2},
    {.name = NULL},
};

/* Scores 0 and log 3 of one query: a quarter of the first value, three of the second. */
static void test_values(void)
{
    static const double q[] = {1}, v[] = {4, 8}, masked[] = {-INFINITY, 0};
    const double k[] = {0, log(3) / 2}, mixed[] = {7}, second[] = {8};
    struct mgpu_check row = {.name = "attention values",
                             .op = &mgpu_op_attention,
                             .attrs = ATTENTION(.scale = 2),
                             .inputs = 3,
                             .skip_outputs = 2,
                             .input = {SAMPLES(1, 1, 1, 1), SAMPLES(1, 1, 2, 1),
                                       SAMPLES(1, 1, 2, 1), MASK(0, 1, -1, 2)}};
    row.input[0].values = q;
    row.input[1].values = k;
    row.input[2].values = v;
    CHECK(mgpu_op_value(&row, mixed, 1) == 0);
    row.inputs = 4;
    row.input[3].values = masked;
    CHECK(mgpu_op_value(&row, second, 1) == 0);
}

static void test_refusals(void)
{
    static const int64_t q[] = {2, 3, 4, 5}, k[] = {2, 3, 6, 5}, wide[] = {2, 3, 6, 4};
    static const int64_t few[] = {2, 1, 6, 5}, mask[] = {4, 5};
    const int64_t *const sizes[] = {q, k, wide, few};
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_attention_attrs attrs = {.scale = 1};
    struct mgpu_value *in[4], *out[2], *m;
    struct mgpu_dim dims[4];
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 4; j++)
            dims[j] = mgpu_dim_const(sizes[i][j]);
        in[i] = mgpu_graph_input(g, "x", MGPU_FLOAT, 4, dims);
    }
    for (int j = 0; j < 2; j++)
        dims[j] = mgpu_dim_const(mask[j]);
    m = mgpu_graph_input(g, "m", MGPU_FLOAT, 2, dims);
    CHECK(mgpu_graph_node(g, &mgpu_op_attention, &attrs, 3,
                          (struct mgpu_value *[]){in[0], in[2], in[1]}, 2, out) < 0 &&
          strstr(mgpu_error(), "width"));
    CHECK(mgpu_graph_node(g, &mgpu_op_attention, &attrs, 3,
                          (struct mgpu_value *[]){in[0], in[3], in[3]}, 2, out) < 0 &&
          strstr(mgpu_error(), "heads"));
    CHECK(mgpu_graph_node(g, &mgpu_op_attention, &attrs, 3,
                          (struct mgpu_value *[]){in[0], in[1], in[0]}, 2, out) < 0 &&
          strstr(mgpu_error(), "values"));
    CHECK(mgpu_graph_node(g, &mgpu_op_attention, &attrs, 4,
                          (struct mgpu_value *[]){in[0], in[1], in[2], m}, 2, out) < 0 &&
          strstr(mgpu_error(), "broadcast"));
    mgpu_graph_free(g);
}

int main(void)
{
    CHECK(mgpu_op_check(rows) == 0);
    test_values();
    test_refusals();
    return test_end();
}
