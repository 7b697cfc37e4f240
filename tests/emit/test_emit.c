/* Generated kernels that no table of tests/ops has a row for; that damaged ones are found out; and
 * which operators have none. */
#include "runtime/emit/emit.h"
#include "runtime/graph/step_scalar.h"
#include "runtime/ops/accumulate.h"
#include "runtime/ops/build.h"
#include "runtime/ops/conv.h"
#include "runtime/ops/gather.h"
#include "runtime/ops/matmul.h"
#include "runtime/ops/movement.h"
#include "runtime/ops/pointwise.h"
#include "runtime/ops/reduce.h"
#include "runtime/ops/reorder.h"
#include "runtime/ops/rnn.h"
#include "runtime/ops/softmax.h"
#include "runtime/ops/update.h"
#include "tests/emit/emit_check.h"
#include "tests/emit/emulate.h"
#include "tests/test.h"

#define DIMS(...)                                                                                  \
    {                                                                                              \
        .rank = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), .dims = {__VA_ARGS__},         \
        .batch_axis = -1                                                                           \
    }
#define ATTRS(kind, ...)                                                                           \
    &(struct mgpu_##kind##_attrs)                                                                  \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* ---- Optimizers ------------------------------------------------------------------------------ */

static const struct mgpu_update_attrs optimizers[] = {
    {.kind = MGPU_SGD},
    {.kind = MGPU_SGD, .momentum = 0.9, .dampening = 0.1, .weight_decay = 0.01},
    {.kind = MGPU_SGD, .momentum = 0.9, .nesterov = true, .clip_value = 0.5},
    {.kind = MGPU_SGD, .style = MGPU_STYLE_KERAS2, .momentum = 0.9, .decay = 0.01},
    {.kind = MGPU_SGD, .style = MGPU_STYLE_KERAS3, .momentum = 0.9, .nesterov = true},
    {.kind = MGPU_ADAM, .weight_decay = 0.01},
    {.kind = MGPU_ADAM, .amsgrad = true},
    {.kind = MGPU_ADAM, .style = MGPU_STYLE_KERAS3},
    {.kind = MGPU_ADAMW, .weight_decay = 0.1},
    {.kind = MGPU_RMSPROP, .centered = true, .momentum = 0.5},
    {.kind = MGPU_RMSPROP, .style = MGPU_STYLE_KERAS2, .momentum = 0.5},
    {.kind = MGPU_RMSPROP, .style = MGPU_STYLE_KERAS3, .centered = true},
    {.kind = MGPU_ADAGRAD, .lr_decay = 0.1},
    {.kind = MGPU_ADAGRAD, .style = MGPU_STYLE_KERAS3},
    {.kind = MGPU_LAMB, .weight_decay = 0.1},
    {.kind = MGPU_LAMB, .style = MGPU_STYLE_KERAS2, .weight_decay = 0.1},
};

enum { OPTIMIZERS = sizeof optimizers / sizeof *optimizers };

static struct mgpu_check_input operand(int64_t count, double low, double high)
{
    return (struct mgpu_check_input){
        .rank = 1, .dims = {count}, .batch_axis = -1, .low = low, .high = high, .constant = true};
}

/* The launches of an update with a coefficient, the stop and, of that type, a rounded weight. */
static int launches_of(struct mgpu_update_attrs a, enum mgpu_dtype rounded)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim dims[] = {mgpu_dim_const(1 << 20)};
    struct mgpu_value *out[MGPU_UPDATE_ROUNDED + 1], *in[8];
    struct mgpu_emitted emitted;
    double start[3];
    int states = mgpu_update_states(&a, start);
    for (int i = 0; i < 5 + states; i++)
        in[i] = i >= 2 && i < 5 ? mgpu_graph_input(g, "scalar", MGPU_DOUBLE, 0, NULL)
                                : mgpu_graph_input(g, "array", MGPU_FLOAT, 1, dims);
    a.rounded = rounded;
    CHECK_OK(mgpu_graph_node(g, &mgpu_op_update, &a, 5 + states, in,
                             rounded ? MGPU_UPDATE_ROUNDED + 1 : 1 + states, out));
    mgpu_emit(&emitted, out[0]->producer, "k", true);
    int launches = emitted.launches;
    mgpu_emitted_free(&emitted);
    mgpu_graph_free(g);
    return launches;
}

/* One takes off the scale, clips, moves and rounds; lamb needs norms first. */
static void check_launches(void)
{
    static const enum mgpu_dtype rounded[] = {MGPU_UNDEFINED, MGPU_BFLOAT16, MGPU_FLOAT16};
    for (int i = 0; i < OPTIMIZERS; i++)
        for (int k = 0; k < 3; k++) {
            int launches = launches_of(optimizers[i], rounded[k]);
            CHECK_(launches == (optimizers[i].kind == MGPU_LAMB ? 2 : 1), "optimizer %d: %d", i,
                   launches);
        }
}

static void check_optimizers(void)
{
    static struct mgpu_update_attrs attrs[OPTIMIZERS];
    static char names[OPTIMIZERS][24];
    static struct mgpu_check rows[OPTIMIZERS + 1];
    double start[3];
    for (int i = 0; i < OPTIMIZERS; i++) {
        struct mgpu_update_attrs *a = &attrs[i];
        *a = optimizers[i];
        a->lr = 0.1, a->beta1 = 0.9, a->beta2 = 0.999, a->eps = 1e-7, a->rho = 0.9;
        int64_t count = a->kind == MGPU_LAMB ? 5000 : 300;
        snprintf(names[i], sizeof names[i], "optimizer %d", i);
        rows[i] = (struct mgpu_check){.name = names[i], .op = &mgpu_op_update, .attrs = a};
        rows[i].inputs = 5 + mgpu_update_states(a, start);
        for (int k = 0; k < rows[i].inputs; k++)
            rows[i].input[k] = operand(count, k < 2 ? -1 : 0.5, 1);
        rows[i].input[2].scalar = 1 + MGPU_SCALAR_STEP;
        rows[i].input[3].scalar = 1 + MGPU_SCALAR_LR_FACTOR;
        rows[i].input[4].scalar = 1 + MGPU_SCALAR_LOSS;
    }
    CHECK(emit_check(rows, true) == 0);
}

/* ---- Others ---------------------------------------------------------------------------------- */

static const struct mgpu_check others[] = {
    {.name = "norm of three",
     .op = &mgpu_op_global_norm,
     .inputs = 3,
     .input = {DIMS(7, 5), DIMS(5000), DIMS(1)}},
    {.name = "bias and limit behind a product",
     .op = &mgpu_op_matmul,
     .attrs = ATTRS(matmul, .transpose_b = true, .relu = true),
     .inputs = 3,
     .input = {DIMS(3, 5, 70), DIMS(67, 70), DIMS(67)},
     .skip_outputs = 1},
    {.name = "limit behind a product",
     .op = &mgpu_op_matmul,
     .attrs = ATTRS(matmul, .relu = true),
     .inputs = 2,
     .input = {DIMS(3, 5), DIMS(5, 2)},
     .skip_outputs = 1},
    {.name = "product with sums of a",
     .op = &mgpu_op_matmul_sums,
     .attrs = ATTRS(matmul, .transpose_a = true, .sums = MGPU_SUMS_A),
     .inputs = 2,
     .input = {DIMS(300, 7), DIMS(300, 3)}},
    {.name = "product with sums of b",
     .op = &mgpu_op_matmul_sums,
     .attrs = ATTRS(matmul, .transpose_b = true, .sums = MGPU_SUMS_B),
     .inputs = 2,
     .input = {DIMS(2, 9), DIMS(300, 9)}},
    {.name = "GELU behind a product, kept",
     .op = &mgpu_op_matmul_gelu,
     .attrs = ATTRS(matmul, .transpose_b = true),
     .inputs = 3,
     .input = {DIMS(3, 5, 70), DIMS(67, 70), DIMS(67)}},
    {.name = "GELU behind a product",
     .op = &mgpu_op_matmul_gelu,
     .attrs = ATTRS(matmul, .transpose_b = true),
     .inputs = 2,
     .input = {DIMS(3, 5), DIMS(2, 5)}},
    {.name = "GELU's derivative behind a product",
     .op = &mgpu_op_matmul_gelu_grad,
     .attrs = ATTRS(matmul, .transpose_b = true),
     .inputs = 3,
     .input = {DIMS(2, 9, 7), DIMS(70, 7), DIMS(2, 9, 70)}},
    {.name = "limit behind a convolution",
     .op = &mgpu_op_conv,
     .attrs = ATTRS(conv, .spatial = 2, .stride = {2, 1}, .dilation = {1, 1}, .before = {1, 0},
                    .group = 2, .relu = true),
     .inputs = 3,
     .input = {DIMS(2, 4, 5, 6), DIMS(6, 2, 3, 2), DIMS(6)},
     .skip_outputs = 1},
    {.name = "many entries of few slots",
     .op = &mgpu_op_gather,
     .attrs = ATTRS(gather, .axis = 0),
     .inputs = 2,
     .input = {DIMS(2, 3),
               {.rank = 1, .dims = {300}, .batch_axis = -1, .type = MGPU_INT64, .high = 1}}},
    {.name = "recurrence with blocks of several samples",
     .op = &mgpu_op_rnn,
     .attrs = ATTRS(rnn, .kind = MGPU_GRU, .hidden = 3, .activation = {0, 1, 1}),
     .inputs = 6,
     .input = {DIMS(2, 301, 2),
               DIMS(1, 9, 2),
               DIMS(1, 9, 3),
               DIMS(1, 18),
               {.rank = -1},
               DIMS(1, 301, 3)},
     .skip_outputs = 1 << 3},
    {.name = "recurrence with threads of several units",
     .op = &mgpu_op_rnn,
     .attrs = ATTRS(rnn, .kind = MGPU_LSTM, .hidden = 520, .activation = {0, 1, 1}, .clip = 1),
     .inputs = 3,
     .input = {DIMS(1, 1, 2), DIMS(1, 2080, 2), DIMS(1, 2080, 520)},
     .skip_outputs = 1 << 3},
    {.name = "accumulated", .op = &mgpu_op_accumulate, .inputs = 1, .input = {DIMS(37, 11)}},
    {.name = NULL},
};

/* ---- Damage ---------------------------------------------------------------------------------- */

static const void *sum_attrs(struct mgpu_arena *arena, int64_t batch)
{
    (void)batch;
    struct mgpu_expr e;
    struct mgpu_pointwise_attrs *a = MGPU_NEW(arena, struct mgpu_pointwise_attrs);
    mgpu_expr_begin(&e, 2);
    int x = mgpu_expr_input(&e, 0, MGPU_FLOAT), y = mgpu_expr_input(&e, 1, MGPU_FLOAT);
    a->expr = mgpu_expr_end(&e, mgpu_expr_2(&e, MGPU_X_SUB, x, y), arena);
    return a;
}

#define ROW(text, op_, ...)                                                                        \
    {                                                                                              \
        {.name = text, .op = &mgpu_op_##op_, __VA_ARGS__},                                         \
        {                                                                                          \
            .name = NULL                                                                           \
        }                                                                                          \
    }

static const struct mgpu_check pointwise[] = ROW("pointwise", pointwise, .attrs_at = sum_attrs,
                                                 .inputs = 2, .input = {DIMS(41, 53), DIMS(41, 1)});
static const struct mgpu_check reduce[] =
    ROW("reduce", reduce, .attrs = ATTRS(reduce, .kind = MGPU_REDUCE_SUM, .axes = 1), .inputs = 1,
        .input = {DIMS(129, 37)});
static const struct mgpu_check transpose[] =
    ROW("transpose", transpose, .attrs = ATTRS(transpose, .perm = {1, 0}), .inputs = 1,
        .input = {DIMS(37, 41)});
static const struct mgpu_check softmax[] = ROW(
    "softmax", softmax, .attrs = ATTRS(softmax, .axis = 1), .inputs = 1, .input = {DIMS(3, 300)});
static const struct mgpu_check gather[] =
    ROW("gather", gather, .attrs = ATTRS(gather, .axis = 0), .inputs = 2,
        .input = {DIMS(9, 5),
                  {.rank = 1, .dims = {70}, .batch_axis = -1, .type = MGPU_INT64, .high = 8}});

/* What someone might get wrong; each must give a wrong result in some order. */
static const struct {
    const struct mgpu_check *row;
    const char *from, *to;
} damages[] = {
    {pointwise, "blockIdx.x * 256", "blockIdx.x * 255"},
    {pointwise, "i >= 2173", "i >= 2172"},
    {pointwise, "i >= 2173", "i >= 2174"},
    {pointwise, "/ 53", "/ 52"},
    {reduce, "__syncthreads();", ""},
    {reduce, "r < 129", "r < 128"},
    {reduce, "d; d /= 2", "d > 1; d /= 2"},
    {reduce, "threadIdx.x + d * 32", "threadIdx.x + d * 16"},
    {transpose, "__syncthreads();", ""},
    {transpose, "tile[x][y + k]", "tile[y + k][x]"},
    {transpose, "row + y + k < 37", "row + y + k < 38"},
    {softmax, "c += 128", "c += 127"},
    {softmax, "most = block_largerf(most);", ""},
    {softmax, "sum = block_addf(sum);", ""},
    {softmax, "lane / inner * 300", "lane / inner * 299"},
    {gather, "to++", "to"},
    {gather, "counts[k] = at;", ""},
    {gather, "slot_of[e - 1] == slot_of[e]", "0"},
    {gather, "p < 3LL", "p < 2LL"},
};

static void check_damages(void)
{
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        int found = emit_check_damaged(damages[i].row, damages[i].from, damages[i].to);
        CHECK_(found > 0, "%s: '%s' in place of '%s': %s", damages[i].row->name, damages[i].to,
               damages[i].from, found ? "is not in the text" : "is not found out");
    }
}

/* ---- Layouts ----------------------------------------------------------------------------------
 */

/* To channels-last and back. */
static void check_reorder(void)
{
    enum { N = 2, C = 3, PLACES = 20, COUNT = N * C * PLACES };
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim dims[] = {mgpu_dim_const(N), mgpu_dim_const(C), mgpu_dim_const(4),
                              mgpu_dim_const(5)};
    struct mgpu_value *v[3] = {mgpu_graph_input(g, "x", MGPU_FLOAT, 4, dims)};
    float data[3][COUNT];
    char *text, *calls;
    size_t size[2];
    struct mgpu_emitted emitted[2];
    struct emulated *e;
    FILE *kernels = open_memstream(&text, &size[0]), *out = open_memstream(&calls, &size[1]);
    for (int i = 0; i < 2; i++) {
        struct mgpu_reorder_attrs attrs = {i == 0 ? C : 0};
        const char *name = i == 0 ? "forth" : "back";
        CHECK_OK(mgpu_graph_node(g, &mgpu_op_reorder, &attrs, 1, &v[i], 1, &v[i + 1]));
        CHECK(mgpu_emit_accepts(v[i + 1]->producer));
        mgpu_emit(&emitted[i], v[i + 1]->producer, name, false);
        fputs(emitted[i].text, kernels);
        emulate_write_calls(out, &emitted[i], name);
    }
    fclose(kernels);
    fclose(out);
    for (int i = 0; i < COUNT; i++)
        data[0][i] = (float)i;
    CHECK_OK(emulate_open(&e, text, calls));
    CHECK_OK(emulate_run(e, &emitted[0], "forth", (void *[]){data[0], data[1]}, EMULATE_SHUFFLED));
    CHECK_OK(emulate_run(e, &emitted[1], "back", (void *[]){data[1], data[2]}, EMULATE_SHUFFLED));
    CHECK(data[1][1] == PLACES && data[1][C] == 1 && data[1][C * PLACES] == C * PLACES);
    CHECK(!memcmp(data[0], data[2], sizeof data[0]));
    emulate_close(e);
    for (int i = 0; i < 2; i++)
        mgpu_emitted_free(&emitted[i]);
    free(text);
    free(calls);
    mgpu_graph_free(g);
}

/* ---- Large tensors --------------------------------------------------------------------------- */

/* A thread for several neighbours: they are more places than threads. */
static void check_places(void)
{
    enum { ROWS = 1 << 14, COLUMNS = 1 << 19 }; /* 2^33 elements for 2^30 threads */
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim dims[] = {mgpu_dim_const(ROWS), mgpu_dim_const(COLUMNS)};
    struct mgpu_value *x = mgpu_graph_input(g, "x", MGPU_BFLOAT16, 2, dims), *y[2];
    struct mgpu_dim size[] = {mgpu_dim_const(ROWS), mgpu_dim_const(COLUMNS / 2)};
    struct mgpu_slice_attrs slice = {.size = size, .step = {1, 1}};
    struct mgpu_emitted emitted;
    y[0] = mgpu_add(g, x, x);
    CHECK_OK(mgpu_graph_node(g, &mgpu_op_slice, &slice, 1, &x, 1, &y[1]));
    for (int i = 0; i < 2; i++) {
        mgpu_emit(&emitted, y[i]->producer, "k", false);
        CHECK_(strstr(emitted.text, "    i64 i = ") && strstr(emitted.text, "i *= 8;"), "%s",
               emitted.text);
        mgpu_emitted_free(&emitted);
    }
    mgpu_graph_free(g);
}

/* ---- Alignment ------------------------------------------------------------------------------- */

/* Vectors of 16 bytes on every 16 bytes, else it is said. */
static void check_alignment(void)
{
    enum { COUNT = 64 };
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim dims[] = {mgpu_dim_const(COUNT)};
    struct mgpu_value *x = mgpu_graph_input(g, "x", MGPU_FLOAT, 1, dims), *y = mgpu_add(g, x, x);
    _Alignas(16) float data[2][COUNT + 4] = {{0}};
    struct mgpu_emitted emitted;
    struct emulated *e;
    char *calls;
    size_t size;
    FILE *out = open_memstream(&calls, &size);
    mgpu_emit(&emitted, y->producer, "k", false);
    emulate_write_calls(out, &emitted, "k");
    fclose(out);
    CHECK_OK(emulate_open(&e, emitted.text, calls));
    for (int at = 0; at <= 4; at++) {
        int rc = emulate_run(e, &emitted, "k", (void *[]){data[0] + at, data[0] + at, data[1]}, 0);
        CHECK_((rc == 0) == (at % 4 == 0), "%d elements from alignment: %d", at, rc);
    }
    emulate_close(e);
    mgpu_emitted_free(&emitted);
    free(calls);
    mgpu_graph_free(g);
}

/* ---- Operators ------------------------------------------------------------------------------- */

/* What only CPUs run (early.h), and what needs several ranks. */
static const char *const without[] = {
    "product_update", "all_reduce", "all_gather", "reduce_scatter", "broadcast", "send", "recv",
};

static bool listed(const char *name)
{
    for (size_t i = 0; i < sizeof without / sizeof *without; i++)
        if (!strcmp(without[i], name))
            return true;
    return false;
}

static void check_operators(void)
{
    for (int i = 0; mgpu_ops[i]; i++)
        CHECK_(mgpu_emit_knows(mgpu_ops[i]->name) != listed(mgpu_ops[i]->name),
               "%s: has kernels, or stands in the list of those that have none: not both",
               mgpu_ops[i]->name);
}

int main(void)
{
    check_operators();
    check_places();
    check_launches();
    if (!emit_check_wanted() && !emulate_possible()) {
        fprintf(stderr, "skipped: no C compiler, or the thread sanitizer\n");
        return 77;
    }
    check_optimizers();
    CHECK(emit_check(others, false) == 0);
    if (!emit_check_wanted()) { /* else the rows alone */
        check_damages();
        check_reorder();
        check_alignment();
    }
    return test_end();
}
