/* det and cofactor: odd shapes in every way of the harness, numbers by hand. */
#include "runtime/ops/det.h"
#include "tests/ops/op_check.h"
#include "tests/test.h"

static const double singular[] = {1, 2, 3, 2, 4, 6, 1, 0, 1};

static const struct mgpu_check rows[] = {
    {.name = "det of a stack",
     .op = &mgpu_op_det,
     .inputs = 1,
     .input = {{.rank = 3, .dims = {3, 4, 4}, .batch_axis = 0}}},
    {.name = "det of one",
     .op = &mgpu_op_det,
     .inputs = 1,
     .input = {{.rank = 4, .dims = {2, 3, 1, 1}, .batch_axis = 1}}},
    {.name = "det of a singular matrix",
     .op = &mgpu_op_det,
     .inputs = 1,
     .input = {{.rank = 2, .dims = {3, 3}, .batch_axis = -1, .values = singular}}},
    {.name = "det over the batch",
     .op = &mgpu_op_det,
     .inputs = 1,
     .input = {{.rank = 2, .dims = {3, 3}, .batch_axis = 0}},
     .mixes = true},
    {.name = NULL},
};

int main(void)
{
    static const double x[] = {2, 1, 0, 0, 3, 1, 4, 0, 5};
    struct mgpu_check row = {.name = "det value",
                             .op = &mgpu_op_det,
                             .inputs = 1,
                             .input = {{.rank = 2, .dims = {3, 3}, .batch_axis = -1, .values = x}}};
    test_failures += mgpu_op_check(rows);
    CHECK(mgpu_op_value(&row, (const double[]){34}, 1) == 0);
    row.op = &mgpu_op_cofactor;
    CHECK(mgpu_op_value(&row, (const double[]){15, 4, -12, -5, 10, 4, 1, -2, 6}, 9) == 0);
    row.input[0].values = singular;
    CHECK(mgpu_op_value(&row, (const double[]){4, 4, -4, -2, -2, 2, 0, 0, 0}, 9) == 0);
    return test_end();
}
