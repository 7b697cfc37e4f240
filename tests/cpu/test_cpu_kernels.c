/* Every kernel of backend `cpu` against `ref` on odd shapes, alone and beside another rank. */
#include "runtime/ops/build.h"
#include "runtime/graph/step_scalar.h"
#include "runtime/ops/attention.h"
#include "runtime/ops/conv.h"
#include "runtime/ops/loss.h"
#include "runtime/ops/matmul.h"
#include "runtime/ops/movement.h"
#include "runtime/ops/normalize.h"
#include "runtime/ops/pool.h"
#include "runtime/ops/reduce.h"
#include "runtime/ops/softmax.h"
#include "runtime/ops/update.h"
#include "runtime/cpu/product.h"
#include "tests/cpu/kernel_check.h"
#include "tests/test.h"

#define DIMS(...)                                                                                  \
    {                                                                                              \
        .rank = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), .dims = {__VA_ARGS__},         \
        .batch_axis = -1                                                                           \
    }
#define ABSENT                                                                                     \
    {                                                                                              \
        .rank = -1                                                                                 \
    }
#define ATTRS(kind, ...)                                                                           \
    &(struct mgpu_##kind##_attrs)                                                                  \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define ONES                                                                                       \
    {                                                                                              \
        1, 1, 1                                                                                    \
    }

/* ---- Convolution ------------------------------------------------------------------------------
 */

#define CONV(text, bias, x_, w_, b_, ...)                                                          \
    {                                                                                              \
        .name = "conv " text, .op = &mgpu_op_conv, .attrs = ATTRS(conv, __VA_ARGS__),              \
        .inputs = 2 + bias, .input = {                                                             \
            x_,                                                                                    \
            w_,                                                                                    \
            b_                                                                                     \
        }                                                                                          \
    }
#define CONV2(text, x_, w_, b_, stride_, pad_, group_)                                             \
    {                                                                                              \
        .name = "conv " text, .op = &mgpu_op_conv,                                                 \
        .attrs = ATTRS(conv, .spatial = 2, .stride = {stride_, stride_}, .dilation = ONES,         \
                       .before = {pad_, pad_}, .after = {pad_, pad_}, .group = group_),            \
        .inputs = 3, .input = {                                                                    \
            x_,                                                                                    \
            w_,                                                                                    \
            b_                                                                                     \
        }                                                                                          \
    }

static const struct mgpu_check convolutions[] = {
    CONV2("first layer", DIMS(5, 1, 9, 7), DIMS(32, 1, 3, 3), DIMS(32), 1, 1, 1),
    CONV2("first layer, colour", DIMS(2, 3, 17, 19), DIMS(16, 3, 7, 7), DIMS(16), 2, 3, 1),
    CONV2("channels in blocks", DIMS(3, 32, 8, 6), DIMS(48, 32, 3, 3), DIMS(48), 1, 1, 1),
    CONV2("odd channels", DIMS(3, 5, 8, 6), DIMS(7, 5, 3, 3), DIMS(7), 1, 0, 1),
    CONV2("odd and blocks", DIMS(2, 20, 7, 7), DIMS(50, 20, 5, 5), DIMS(50), 1, 2, 1),
    CONV2("pointwise", DIMS(3, 24, 5, 5), DIMS(40, 24, 1, 1), DIMS(40), 1, 0, 1),
    CONV2("pointwise with stride", DIMS(3, 16, 7, 7), DIMS(32, 16, 1, 1), DIMS(32), 2, 0, 1),
    CONV2("pointwise with padding", DIMS(1, 16, 3, 3), DIMS(16, 16, 1, 1), DIMS(16), 1, 1, 1),
    CONV2("depthwise", DIMS(2, 32, 9, 9), DIMS(32, 1, 3, 3), DIMS(32), 1, 1, 32),
    CONV2("depthwise, odd", DIMS(2, 7, 9, 9), DIMS(7, 1, 3, 3), DIMS(7), 2, 1, 7),
    CONV2("depthwise, multiplied", DIMS(2, 5, 6, 6), DIMS(10, 1, 3, 3), DIMS(10), 1, 1, 5),
    CONV2("two groups", DIMS(2, 32, 6, 6), DIMS(64, 16, 3, 3), DIMS(64), 1, 1, 2),
    CONV2("groups of four", DIMS(2, 32, 6, 6), DIMS(32, 4, 3, 3), DIMS(32), 2, 1, 8),
    CONV2("odd groups", DIMS(2, 9, 6, 6), DIMS(6, 3, 3, 3), DIMS(6), 1, 1, 3),
    CONV2("one element", DIMS(1, 1, 1, 1), DIMS(1, 1, 1, 1), DIMS(1), 1, 0, 1),
    CONV2("kernel as large as x", DIMS(2, 3, 5, 5), DIMS(4, 3, 5, 5), DIMS(4), 1, 0, 1),
    CONV2("padding wider than the kernel", DIMS(1, 3, 4, 4), DIMS(4, 3, 2, 2), DIMS(4), 1, 3, 1),
    CONV2("large", DIMS(2, 64, 28, 28), DIMS(128, 64, 3, 3), DIMS(128), 1, 1, 1),
    CONV("without bias, dilated, one-sided padding", 0, DIMS(2, 16, 11, 9), DIMS(16, 16, 3, 2),
         ABSENT, .spatial = 2, .stride = {2, 1}, .dilation = {2, 3}, .before = {0, 2},
         .after = {3, 0}, .group = 1),
    CONV("stride leaves elements over", 1, DIMS(2, 16, 8, 8), DIMS(16, 16, 3, 3), DIMS(16),
         .spatial = 2, .stride = {3, 3}, .dilation = ONES, .group = 1),
    CONV("1-D", 1, DIMS(3, 6, 21), DIMS(8, 6, 5), DIMS(8), .spatial = 1, .stride = {2},
         .dilation = {1}, .before = {4}, .group = 1),
    CONV("1-D in blocks", 1, DIMS(3, 16, 12), DIMS(32, 16, 3), DIMS(32), .spatial = 1,
         .stride = {1}, .dilation = {2}, .before = {2}, .after = {2}, .group = 1),
    CONV("3-D", 1, DIMS(2, 3, 5, 6, 7), DIMS(4, 3, 3, 2, 3), DIMS(4), .spatial = 3,
         .stride = {1, 2, 1}, .dilation = ONES, .before = {1, 0, 1}, .after = {1, 1, 1},
         .group = 1),
    CONV("3-D in blocks", 1, DIMS(1, 16, 4, 5, 6), DIMS(16, 16, 3, 3, 3), DIMS(16), .spatial = 3,
         .stride = ONES, .dilation = ONES, .before = ONES, .after = ONES, .group = 1),
    {.name = "transposed convolution",
     .op = &mgpu_op_conv_grad_input,
     .attrs = ATTRS(conv, .spatial = 2, .stride = {2, 2}, .dilation = ONES, .before = {1, 0},
                    .after = {0, 1}, .group = 1, .size = {9, 10}),
     .inputs = 2,
     .input = {DIMS(2, 16, 5, 5), DIMS(16, 6, 2, 2)}},
    {.name = NULL},
};

/* ---- Pooling ----------------------------------------------------------------------------------
 */

#define POOLS(text, x_, ...)                                                                       \
    {.name = "max_pool " text,                                                                     \
     .op = &mgpu_op_max_pool,                                                                      \
     .attrs = ATTRS(pool, __VA_ARGS__),                                                            \
     .inputs = 1,                                                                                  \
     .input = {x_}},                                                                               \
        {.name = "average_pool " text,                                                             \
         .op = &mgpu_op_average_pool,                                                              \
         .attrs = ATTRS(pool, __VA_ARGS__),                                                        \
         .inputs = 1,                                                                              \
         .input = {x_}},                                                                           \
    {                                                                                              \
        .name = "average_pool with padding " text, .op = &mgpu_op_average_pool,                    \
        .attrs = ATTRS(pool, __VA_ARGS__, .count_include_pad = true), .inputs = 1, .input = {      \
            x_                                                                                     \
        }                                                                                          \
    }

static const struct mgpu_check pools[] = {
    POOLS("halves", DIMS(3, 5, 8, 6), .spatial = 2, .kernel = {2, 2}, .stride = {2, 2},
          .dilation = ONES, .in = {8, 6}, .out = {4, 3}),
    POOLS("overlapping, padded", DIMS(2, 3, 9, 40), .spatial = 2, .kernel = {3, 3},
          .stride = {2, 1}, .dilation = ONES, .before = {1, 1}, .after = {1, 1}, .in = {9, 40},
          .out = {5, 40}),
    POOLS("one-sided, dilated, strided", DIMS(2, 2, 11, 13), .spatial = 2, .kernel = {2, 3},
          .stride = {3, 3}, .dilation = {2, 3}, .before = {0, 2}, .after = {1, 0}, .in = {11, 13},
          .out = {4, 3}),
    POOLS("ceiling", DIMS(1, 2, 7, 7), .spatial = 2, .kernel = {2, 2}, .stride = {2, 2},
          .dilation = ONES, .in = {7, 7}, .out = {4, 4}),
    POOLS("whole planes", DIMS(2, 7, 7, 9), .spatial = 2, .kernel = {7, 9}, .stride = {1, 1},
          .dilation = ONES, .in = {7, 9}, .out = {1, 1}),
    POOLS("wide windows", DIMS(2, 3, 6, 20), .spatial = 2, .kernel = {2, 9}, .stride = {2, 7},
          .dilation = ONES, .before = {0, 1}, .after = {0, 1}, .in = {6, 20}, .out = {3, 2}),
    POOLS("1-D", DIMS(2, 3, 33), .spatial = 1, .kernel = {4}, .stride = {2}, .dilation = {1},
          .before = {1}, .after = {1}, .in = {33}, .out = {16}),
    POOLS("3-D", DIMS(2, 2, 5, 6, 7), .spatial = 3, .kernel = {2, 3, 2}, .stride = {2, 1, 2},
          .dilation = ONES, .before = {1, 1, 0}, .after = {0, 1, 1}, .in = {5, 6, 7},
          .out = {3, 6, 4}),
    POOLS("large", DIMS(4, 32, 28, 28), .spatial = 2, .kernel = {2, 2}, .stride = {2, 2},
          .dilation = ONES, .in = {28, 28}, .out = {14, 14}),
    {.name = NULL},
};

/* ---- Products, reductions, movement, softmax ---------------------------------------------------
 */

#define MATMUL(text, a_, b_, ...)                                                                  \
    {                                                                                              \
        .name = "matmul " text, .op = &mgpu_op_matmul, .attrs = ATTRS(matmul, __VA_ARGS__),        \
        .inputs = 2, .input = {                                                                    \
            a_,                                                                                    \
            b_                                                                                     \
        }                                                                                          \
    }

static const struct mgpu_check products[] = {
    MATMUL("plain", DIMS(7, 5), DIMS(5, 3), .transpose_a = false),
    MATMUL("linear layer", DIMS(128, 300), DIMS(70, 300), .transpose_b = true),
    MATMUL("transposed first", DIMS(33, 17), DIMS(33, 9), .transpose_a = true),
    MATMUL("both transposed", DIMS(33, 17), DIMS(9, 33), .transpose_a = true, .transpose_b = true),
    MATMUL("one row", DIMS(1, 65), DIMS(65, 31), .transpose_a = false),
    MATMUL("one column", DIMS(65, 31), DIMS(31, 1), .transpose_a = false),
    MATMUL("one element", DIMS(1, 1), DIMS(1, 1), .transpose_a = false),
    MATMUL("outer product", DIMS(9, 1), DIMS(1, 7), .transpose_a = false),
    MATMUL("stack by matrix", DIMS(4, 3, 5), DIMS(5, 6), .transpose_a = false),
    MATMUL("stack by matrix, transposed", DIMS(4, 5, 3), DIMS(5, 6), .transpose_a = true),
    MATMUL("stacks", DIMS(2, 3, 8, 5), DIMS(2, 3, 9, 5), .transpose_b = true),
    MATMUL("broadcast stacks", DIMS(2, 1, 4, 5), DIMS(3, 5, 6), .transpose_a = false),
    MATMUL("matrix by stack", DIMS(4, 5), DIMS(3, 5, 6), .transpose_a = false),
    MATMUL("five axes", DIMS(2, 1, 3, 4, 5), DIMS(1, 2, 1, 5, 6), .transpose_a = false),
    MATMUL("deep", DIMS(37, 1201), DIMS(1201, 43), .transpose_a = false),
    MATMUL("wide", DIMS(50, 19), DIMS(19, 2100), .transpose_a = false),
    MATMUL("high", DIMS(301, 65), DIMS(33, 65), .transpose_b = true),
    MATMUL("large, both transposed", DIMS(67, 83), DIMS(130, 67), .transpose_a = true,
           .transpose_b = true),
    MATMUL("large stacks", DIMS(2, 3, 40, 24), DIMS(2, 3, 20, 24), .transpose_b = true),
    MATMUL("large broadcast stacks", DIMS(2, 1, 20, 33), DIMS(3, 33, 18), .transpose_a = false),
    MATMUL("large stack by matrix", DIMS(3, 20, 33), DIMS(33, 18), .transpose_a = false),
    MATMUL("large stack by matrix, transposed", DIMS(3, 33, 20), DIMS(33, 18), .transpose_a = true),
    MATMUL("large matrix by stack", DIMS(20, 33), DIMS(3, 33, 18), .transpose_a = false),
    MATMUL("few rows, lines along k", DIMS(7, 2100), DIMS(33, 2100), .transpose_b = true),
    MATMUL("one row, lines along k", DIMS(1, 1029), DIMS(34, 1029), .transpose_b = true),
    MATMUL("few rows, lines along n", DIMS(5, 38), DIMS(38, 2067), .transpose_a = false),
    MATMUL("few rows, transposed", DIMS(131, 3), DIMS(131, 517), .transpose_a = true),
    MATMUL("most of few rows", DIMS(15, 61), DIMS(61, 701), .transpose_a = false),
    MATMUL("few rows of a stack", DIMS(2, 3, 128), DIMS(131, 128), .transpose_b = true),
    MATMUL("few steps", DIMS(15, 131), DIMS(15, 517), .transpose_a = true),
    MATMUL("one step", DIMS(301, 1), DIMS(1, 65), .transpose_a = false),
    {.name = NULL},
};

#define REDUCE(text, kind_, axes_, keep_, x_)                                                      \
    {                                                                                              \
        .name = "reduce " text, .op = &mgpu_op_reduce,                                             \
        .attrs = ATTRS(reduce, .kind = MGPU_REDUCE_##kind_, .axes = axes_, .keep = keep_),         \
        .inputs = 1, .input = {                                                                    \
            x_                                                                                     \
        }                                                                                          \
    }

static const struct mgpu_check reductions[] = {
    REDUCE("everything", SUM, 7, false, DIMS(3, 5, 7)),
    REDUCE("everything, large", SUM, 3, true, DIMS(300, 401)),
    REDUCE("nothing", MEAN, 0, false, DIMS(3, 5)),
    REDUCE("last", MEAN, 4, true, DIMS(3, 5, 70)),
    REDUCE("first", SUM, 1, false, DIMS(129, 37)),
    REDUCE("first, large", SUM, 1, false, DIMS(5000, 37)),
    REDUCE("middle", MEAN, 2, false, DIMS(3, 17, 300)),
    REDUCE("all but channels", SUM, 13, false, DIMS(4, 3, 5, 6)),
    REDUCE("all but channels, large", SUM, 13, false, DIMS(64, 3, 28, 28)),
    REDUCE("alternating", SUM, 5, false, DIMS(4, 3, 5, 6)),
    REDUCE("sizes of one", MEAN, 5, true, DIMS(1, 3, 1, 6)),
    {.name = "the largest of rows",
     .op = &mgpu_op_arg_reduce,
     .attrs = ATTRS(arg_reduce, .axis = 1),
     .inputs = 1,
     .input = {DIMS(130, 203, 1)}},
    {.name = "the largest of odd rows",
     .op = &mgpu_op_arg_reduce,
     .attrs = ATTRS(arg_reduce, .axis = 1, .keep = true),
     .inputs = 1,
     .input = {{.rank = 2,
                .dims = {4, 3},
                .batch_axis = -1,
                .constant = true,
                .values = (const double[]){1, NAN, NAN, -INFINITY, -INFINITY, -INFINITY, 2, 5, 5,
                                           INFINITY, 0, INFINITY}}}},
    {.name = NULL},
};

/* Without their gradients, which have other operators. */
static const struct mgpu_check extremes[] = {
    REDUCE("largest of all", MAX, 3, false, DIMS(30, 17)),
    REDUCE("largest of columns", MAX, 1, false, DIMS(30, 17)),
    REDUCE("smallest of rows", MIN, 2, true, DIMS(30, 37)),
    {.name = NULL},
};

#define TRANSPOSE(text, x_, ...)                                                                   \
    {                                                                                              \
        .name = "transpose " text, .op = &mgpu_op_transpose,                                       \
        .attrs = ATTRS(transpose, .perm = {__VA_ARGS__}), .inputs = 1, .input = {                  \
            x_                                                                                     \
        }                                                                                          \
    }

static const struct mgpu_check transposes[] = {
    TRANSPOSE("matrix", DIMS(37, 21), 1, 0),
    TRANSPOSE("large matrix", DIMS(300, 200), 1, 0),
    TRANSPOSE("channels last", DIMS(2, 5, 7, 3), 0, 2, 3, 1),
    TRANSPOSE("channels first", DIMS(2, 7, 3, 5), 0, 3, 1, 2),
    TRANSPOSE("heads", DIMS(2, 9, 4, 8), 0, 2, 1, 3),
    TRANSPOSE("reversed", DIMS(2, 3, 4, 5, 6), 4, 3, 2, 1, 0),
    TRANSPOSE("time first", DIMS(4, 6, 17), 1, 0, 2),
    TRANSPOSE("sizes of one", DIMS(1, 5, 1, 7), 2, 3, 0, 1),
    TRANSPOSE("vector", DIMS(9), 0),
    TRANSPOSE("middle to the end", DIMS(3, 20, 2, 18), 0, 2, 3, 1),
    {.name = NULL},
};

#define SOFTMAX(text, axis_, log_, x_)                                                             \
    {                                                                                              \
        .name = "softmax " text, .op = &mgpu_op_softmax,                                           \
        .attrs = ATTRS(softmax, .axis = axis_, .log = log_), .inputs = 1, .input = {               \
            x_                                                                                     \
        }                                                                                          \
    }

static const struct mgpu_check softmaxes[] = {
    SOFTMAX("rows", 1, false, DIMS(9, 10)),
    SOFTMAX("rows, log", 1, true, DIMS(9, 10)),
    SOFTMAX("long rows", 2, false, DIMS(3, 11, 777)),
    SOFTMAX("channels", 1, false, DIMS(2, 5, 9, 13)),
    SOFTMAX("channels, log", 1, true, DIMS(2, 21, 9, 13)),
    SOFTMAX("first axis", 0, false, DIMS(12, 70)),
    SOFTMAX("one class", 1, true, DIMS(4, 1, 3)),
    {.name = NULL},
};

#define ATTENTION(text, mask_, inside_, q_, k_, v_)                                                \
    {                                                                                              \
        .name = "attention " text, .op = &mgpu_op_attention,                                       \
        .attrs = ATTRS(attention, .scale = 0.3, .fill = -5, .heads_inside = inside_), .inputs = 4, \
        .skip_outputs = 2, .input = {                                                              \
            q_,                                                                                    \
            k_,                                                                                    \
            v_,                                                                                    \
            mask_                                                                                  \
        }                                                                                          \
    }
#define MASK(type_, ...)                                                                           \
    {                                                                                              \
        .rank = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), .dims = {__VA_ARGS__},         \
        .batch_axis = -1, .type = type_, .low = -((type_) == MGPU_FLOAT), .high = 1,               \
        .constant = true                                                                           \
    }

static const struct mgpu_check attentions[] = {
    ATTENTION("without mask", ABSENT, false, DIMS(2, 3, 40, 16), DIMS(2, 3, 50, 16),
              DIMS(2, 3, 50, 24)),
    ATTENTION("heads inside", ABSENT, true, DIMS(2, 200, 3, 17), DIMS(2, 33, 3, 17),
              DIMS(2, 33, 3, 17)),
    ATTENTION("numbers for keys", MASK(MGPU_FLOAT, 2, 1, 1, 50), false, DIMS(2, 3, 40, 16),
              DIMS(2, 3, 50, 16), DIMS(2, 3, 50, 24)),
    ATTENTION("numbers for queries", MASK(MGPU_FLOAT, 40, 1), false, DIMS(2, 3, 40, 16),
              DIMS(2, 3, 50, 16), DIMS(2, 3, 50, 24)),
    ATTENTION("bools for both", MASK(MGPU_BOOL, 100, 110), true, DIMS(1, 100, 3, 8),
              DIMS(1, 110, 3, 8), DIMS(1, 110, 3, 8)),
    ATTENTION("bools for queries", MASK(MGPU_BOOL, 2, 1, 40, 1), false, DIMS(2, 3, 40, 16),
              DIMS(2, 3, 50, 16), DIMS(2, 3, 50, 24)),
    ATTENTION("one of all", ABSENT, false, DIMS(1, 1, 1, 1), DIMS(1, 1, 1, 1), DIMS(1, 1, 1, 1)),
    {.name = NULL},
};

#define LABELS(last, ...)                                                                          \
    {                                                                                              \
        .rank = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), .dims = {__VA_ARGS__},         \
        .batch_axis = -1, .type = MGPU_INT64, .high = last, .constant = true                       \
    }
#define WEIGHTS(n)                                                                                 \
    {                                                                                              \
        .rank = 1, .dims = {n}, .batch_axis = -1, .low = 0.5, .high = 2, .constant = true          \
    }
#define CROSS_ENTROPY(text, axis_, x_, labels_, classes_, samples_)                                \
    {                                                                                              \
        .name = "cross_entropy " text, .op = &mgpu_op_cross_entropy,                               \
        .attrs = ATTRS(cross_entropy, .axis = axis_, .ignore = true, .ignore_index = 1),           \
        .inputs = 5, .input = {                                                                    \
            x_,                                                                                    \
            labels_,                                                                               \
            classes_,                                                                              \
            samples_,                                                                              \
            {.rank = 0, .batch_axis = -1, .scalar = 1 + MGPU_SCALAR_LOSS}                          \
        }                                                                                          \
    }

static const struct mgpu_check losses[] = {
    CROSS_ENTROPY("rows", 1, DIMS(33, 10), LABELS(9, 33), ABSENT, ABSENT),
    CROSS_ENTROPY("long rows", 1, DIMS(7, 5000), LABELS(4999, 7), ABSENT, WEIGHTS(7)),
    CROSS_ENTROPY("planes", 1, DIMS(2, 3, 15, 20), LABELS(2, 2, 15, 20), WEIGHTS(3), ABSENT),
    CROSS_ENTROPY("first axis", 0, DIMS(5, 70), LABELS(4, 70), WEIGHTS(5), WEIGHTS(70)),
    {.name = NULL},
};

/* ---- Normalisations ----------------------------------------------------------------------------
 */

#define BATCH_NORM(text, x_, c_)                                                                   \
    {                                                                                              \
        .name = "batch_norm " text, .op = &mgpu_op_batch_norm,                                     \
        .attrs = ATTRS(batch_norm, .epsilon = 1e-5), .inputs = 3,                                  \
        .input = {x_, DIMS(c_), DIMS(c_)}, .skip_outputs = 6                                       \
    }
#define FINISHED_NORM(text, x_, c_, inputs_, ...)                                                  \
    {                                                                                              \
        .name = "batch_norm " text, .op = &mgpu_op_batch_norm,                                     \
        .attrs = ATTRS(batch_norm, .epsilon = 1e-5, __VA_ARGS__), .inputs = inputs_,               \
        .input = {x_, DIMS(c_), DIMS(c_), x_}, .skip_outputs = 6                                   \
    }
#define AGAIN(text, x_, c_, more_, ...)                                                            \
    {                                                                                              \
        .name = "batch_norm again " text, .op = &mgpu_op_batch_norm,                               \
        .attrs = ATTRS(batch_norm, .epsilon = 1e-5, __VA_ARGS__), .inputs = 6,                     \
        .input = {x_,       DIMS(c_),                                                              \
                  DIMS(c_), more_,                                                                 \
                  DIMS(c_), {.rank = 1, .dims = {c_}, .low = 0.5, .high = 2, .batch_axis = -1}},   \
        .skip_outputs = 6                                                                          \
    }
#define GROUP_NORM(text, axis_, rms_, x_, scale_, bias_)                                           \
    {                                                                                              \
        .name = "group_norm " text, .op = &mgpu_op_group_norm,                                     \
        .attrs = ATTRS(group_norm, .axis = axis_, .epsilon = 1e-5, .rms = rms_), .inputs = 3,      \
        .input = {x_, scale_, bias_}, .skip_outputs = 6                                            \
    }

static const struct mgpu_check normalisations[] = {
    BATCH_NORM("planes", DIMS(4, 5, 9, 7), 5),
    BATCH_NORM("large", DIMS(8, 16, 28, 28), 16),
    BATCH_NORM("rows", DIMS(33, 70), 70),
    BATCH_NORM("small planes", DIMS(3, 65, 2), 65),
    BATCH_NORM("3-D", DIMS(2, 3, 4, 5, 6), 3),
    FINISHED_NORM("and relu", DIMS(3, 5, 80, 70), 5, 3, .clips = true, .high = INFINITY),
    FINISHED_NORM("and more", DIMS(4, 5, 9, 7), 5, 4, .clips = false),
    FINISHED_NORM("and more within limits", DIMS(2, 9, 30, 31), 9, 4, .clips = true, .low = -0.2,
                  .high = 0.7),
    AGAIN("and relu", DIMS(3, 5, 8, 70), 5, ABSENT, .clips = true, .high = INFINITY),
    AGAIN("and more", DIMS(4, 5, 9, 7), 5, DIMS(4, 5, 9, 7), .clips = false),
    AGAIN("rows", DIMS(33, 70), 70, ABSENT, .clips = false),
    GROUP_NORM("layer", 2, false, DIMS(3, 5, 70), DIMS(70), DIMS(70)),
    GROUP_NORM("layer without bias", 1, false, DIMS(9, 33), DIMS(33), ABSENT),
    GROUP_NORM("layer over planes", 1, false, DIMS(3, 4, 5, 6), DIMS(4, 5, 6), DIMS(4, 5, 6)),
    GROUP_NORM("instance", 2, false, DIMS(3, 4, 15, 16), ABSENT, ABSENT),
    GROUP_NORM("rms", 2, true, DIMS(3, 5, 64), DIMS(64), ABSENT),
    GROUP_NORM("large", 1, false, DIMS(200, 300), DIMS(300), DIMS(300)),
    {.name = NULL},
};

/* ---- In blocks of channels ---------------------------------------------------------------------
 */

#define SIZES(...)                                                                                 \
    (const struct mgpu_dim[])                                                                      \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define SIZE(n)                                                                                    \
    {                                                                                              \
        .value = n, .factor = n                                                                    \
    }

static const struct mgpu_check in_blocks[] = {
    CONV2("of blocks", DIMS(2, 32, 9, 9), DIMS(48, 32, 3, 3), DIMS(48), 1, 1, 1),
    CONV2("of many tiles", DIMS(5, 64, 33, 18), DIMS(144, 64, 3, 3), DIMS(144), 1, 1, 1),
    CONV2("of tiles that stand out", DIMS(2, 144, 9, 11), DIMS(64, 144, 3, 3), DIMS(64), 1, 0, 1),
    CONV2("of few tiles, widely padded", DIMS(1, 64, 5, 5), DIMS(64, 64, 3, 3), DIMS(64), 1, 2, 1),
    CONV2("of one channel", DIMS(2, 1, 9, 9), DIMS(16, 1, 3, 3), DIMS(16), 1, 1, 1),
    CONV2("of colours", DIMS(3, 3, 17, 19), DIMS(16, 3, 7, 7), DIMS(16), 2, 3, 1),
    CONV2("of two channels", DIMS(2, 2, 9, 130), DIMS(24, 2, 5, 5), DIMS(24), 1, 2, 1),
    CONV("of colours, dilated, one-sided padding", 1, DIMS(2, 3, 11, 9), DIMS(8, 3, 5, 3), DIMS(8),
         .spatial = 2, .stride = {2, 1}, .dilation = {2, 1}, .before = {3, 0}, .after = {0, 2},
         .group = 1),
    CONV2("of odd channels", DIMS(2, 19, 9, 9), DIMS(33, 19, 3, 3), DIMS(33), 2, 1, 1),
    CONV2("of 1x1", DIMS(2, 32, 9, 9), DIMS(16, 32, 1, 1), DIMS(16), 1, 0, 1),
    CONV2("of a channel each", DIMS(2, 32, 9, 9), DIMS(32, 1, 3, 3), DIMS(32), 1, 1, 32),
    {.name = "transposed convolution of blocks",
     .op = &mgpu_op_conv_grad_input,
     .attrs = ATTRS(conv, .spatial = 2, .stride = {2, 2}, .dilation = ONES, .group = 1,
                    .size = {10, 10}),
     .inputs = 2,
     .input = {DIMS(2, 32, 5, 5), DIMS(32, 16, 2, 2)}},
    POOLS("of blocks", DIMS(2, 32, 9, 7), .spatial = 2, .kernel = {3, 3}, .stride = {2, 2},
          .dilation = ONES, .before = {1, 1}, .after = {1, 1}, .in = {9, 7}, .out = {5, 4}),
    POOLS("of odd channels", DIMS(2, 19, 9, 7), .spatial = 2, .kernel = {2, 3}, .stride = {3, 1},
          .dilation = {2, 1}, .before = {0, 4}, .after = {0, 0}, .in = {9, 7}, .out = {3, 9}),
    BATCH_NORM("of blocks", DIMS(3, 32, 40, 40), 32),
    BATCH_NORM("of odd channels", DIMS(3, 19, 5, 5), 19),
    AGAIN("of blocks", DIMS(3, 19, 5, 5), 19, DIMS(3, 19, 5, 5), .clips = true, .high = INFINITY),
    {.name = "reduce each channel",
     .op = &mgpu_op_reduce,
     .attrs = ATTRS(reduce, .kind = MGPU_REDUCE_SUM, .axes = 13),
     .inputs = 1,
     .input = {DIMS(3, 32, 20, 20)}},
    {.name = "reduce each channel of a sample",
     .op = &mgpu_op_reduce,
     .attrs = ATTRS(reduce, .kind = MGPU_REDUCE_MEAN, .axes = 12, .keep = true),
     .inputs = 1,
     .input = {DIMS(3, 32, 7, 9)}},
    {.name = "expand a channel of a sample",
     .op = &mgpu_op_expand,
     .attrs = ATTRS(shape, .rank = 4, .dims = SIZES(SIZE(3), SIZE(32), SIZE(7), SIZE(9))),
     .inputs = 1,
     .input = {DIMS(3, 32, 1, 1)}},
    {.name = "expand a channel",
     .op = &mgpu_op_expand,
     .attrs = ATTRS(shape, .rank = 4, .dims = SIZES(SIZE(3), SIZE(32), SIZE(70), SIZE(9))),
     .inputs = 1,
     .input = {DIMS(32, 1, 1)}},
    {.name = "concat",
     .op = &mgpu_op_concat,
     .attrs = ATTRS(concat, .axis = 1),
     .inputs = 3,
     .input = {DIMS(3, 16, 4, 5), DIMS(3, 32, 4, 5), DIMS(3, 7, 4, 5)}},
    {.name = "slice within",
     .op = &mgpu_op_slice,
     .attrs = ATTRS(slice, .start = {0, 16}, .step = {1, 1, 1, 1},
                    .size = SIZES(SIZE(3), SIZE(16), SIZE(4), SIZE(5))),
     .inputs = 1,
     .input = {DIMS(3, 48, 4, 5)}},
    {.name = "slice the last",
     .op = &mgpu_op_slice,
     .attrs = ATTRS(slice, .start = {0, 16}, .step = {1, 1, 1, 1},
                    .size = SIZES(SIZE(3), SIZE(19), SIZE(4), SIZE(5))),
     .inputs = 1,
     .input = {DIMS(3, 35, 4, 5)}},
    {.name = NULL},
};

/* ---- Updates by pieces of a product -----------------------------------------------------------
 */

#define SCALAR(which)                                                                              \
    {                                                                                              \
        .scalar = 1 + MGPU_SCALAR_##which                                                          \
    }
#define POSITIVE(...)                                                                              \
    {                                                                                              \
        .rank = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), .dims = {__VA_ARGS__},         \
        .batch_axis = -1, .low = 0, .high = 1                                                      \
    }

/* More steps than are summed at a time, more columns than are packed at a time. */
static const struct mgpu_check updates[] = {
    {.name = "adam, rows added",
     .op = &mgpu_op_product_update,
     .attrs = ATTRS(update, .kind = MGPU_ADAM, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-3),
     .inputs = 11,
     .input = {DIMS(81, 1101),
               DIMS(530, 81),
               SCALAR(STEP),
               SCALAR(LR_FACTOR),
               ABSENT,
               DIMS(81, 1101),
               POSITIVE(81, 1101),
               ABSENT,
               DIMS(530, 1101),
               DIMS(5, 1101),
               {.rank = 1,
                .dims = {5},
                .batch_axis = -1,
                .type = MGPU_INT32,
                .constant = true,
                .values = (const double[]){0, 72, -1, 0, 80}}}},
    {.name = "momentum, more rows than columns",
     .op = &mgpu_op_product_update,
     .attrs = ATTRS(update, .kind = MGPU_SGD, .lr = 0.1, .momentum = 0.5),
     .inputs = 9,
     .input = {DIMS(301, 19), DIMS(17, 301), SCALAR(STEP), SCALAR(LR_FACTOR), ABSENT, DIMS(301, 19),
               ABSENT, ABSENT, DIMS(17, 19)}},
    {.name = NULL},
};

int main(void)
{
    static const struct mgpu_check *const all[] = {convolutions, pools,      products,
                                                   reductions,   transposes, softmaxes,
                                                   attentions,   losses,     normalisations};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        CHECK(mgpu_kernel_check(all[i]) == 0);
        CHECK(mgpu_kernel_check_together(all[i]) == 0);
    }
    CHECK(mgpu_kernel_check(extremes) == 0);
    if (mgpu_cpu_has_product()) {
        CHECK(mgpu_kernel_check(updates) == 0);
        CHECK(mgpu_kernel_check_together(updates) == 0);
    }
    CHECK(mgpu_block_check(in_blocks) == 0);
    return test_end();
}
