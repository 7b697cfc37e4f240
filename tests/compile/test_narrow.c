/* Concatenations of more parts than kernels take: the same numbers from nodes of fewer parts, each
 * behind what it needs. That such models train on GPUs is test_cuda_many's. */
#include "runtime/compile/fuse.h"
#include "runtime/ops/build.h"
#include "runtime/ops/movement.h"
#include "runtime/ref/ref.h"
#include "tests/ops/run_graph.h"
#include "tests/test.h"

#include <math.h>
#include <string.h>

enum { ROWS = 3, PARTS = 11, MOST = 256 };

static struct mgpu_value *input(struct mgpu_graph *g, int64_t columns)
{
    struct mgpu_dim dims[] = {mgpu_dim_const(ROWS), mgpu_dim_const(columns)};
    return mgpu_graph_input(g, "x", MGPU_DOUBLE, 2, dims);
}

static int evaluate(const struct mgpu_graph *g, double *to)
{
    struct mgpu_run run;
    double x[MOST];
    mgpu_run_init(&run, g, &mgpu_backend_ref);
    for (int i = 0; i < g->input_count; i++) {
        for (int k = 0; k < mgpu_value_count(g->inputs[i]); k++)
            x[k] = sin(1.7 * k + i);
        CHECK_OK(mgpu_run_feed(&run, g->inputs[i], x));
    }
    CHECK_OK(mgpu_run_all(&run));
    int count = mgpu_run_results(&run, to, MOST);
    mgpu_run_free(&run);
    return count;
}

static int concats(const struct mgpu_graph *g, int most)
{
    int count = 0;
    for (int i = 0; i < g->node_count; i++) {
        const struct mgpu_node *node = g->nodes[i];
        CHECK(node->id == i && node->inputs <= most);
        for (int k = 0; k < node->inputs; k++)
            CHECK(!node->input[k]->producer || node->input[k]->producer->id < i);
        count += node->op == &mgpu_op_concat;
    }
    return count;
}

/* Of 11 parts at most three together: three and two of these, three of the four, those and one. A
 * node of three stays. */
int main(void)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_value *part[PARTS];
    double before[MOST], after[MOST];
    for (int i = 0; i < PARTS; i++)
        part[i] = input(g, i % 3 + 1);
    struct mgpu_value *y = mgpu_concat(g, 1, PARTS, part);
    mgpu_graph_output(g, "all", mgpu_mul(g, y, y));
    mgpu_graph_output(g, "three", mgpu_concat(g, 1, 3, part));
    int n = evaluate(g, before);
    CHECK_OK(mgpu_narrow_concats(g, PARTS));
    CHECK(concats(g, PARTS) == 2);
    CHECK_OK(mgpu_narrow_concats(g, 3));
    CHECK(concats(g, 3) == 4 + 1 + 1 + 1);
    CHECK(n > 0 && evaluate(g, after) == n && !memcmp(before, after, sizeof *before * (size_t)n));
    mgpu_graph_free(g);
    return test_end();
}
