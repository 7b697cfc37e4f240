/* Cases in half types on a GPU that there is not (double.h): their answers are those of floats
 * within what the type rounds (case_run.c), on one rank and on two.
 *
 *     build/test_cuda_half [CASE]... */
#include "tests/cuda/double.h"
#include "tests/golden/case_run.h"
#include "tests/golden/case_suite.h"
#include "tests/test.h"

static const char *const cases[] = {"torch-mlp-ts",
                                    "torch-fmnist-cnn-dy",
                                    "torch-gru-tagger",
                                    "torch-unet",
                                    "torch-tied-ts",
                                    "torch-siamese",
                                    "torch-multi-head-outputs",
                                    "torch-loss-mix",
                                    "torch-embedding-bag",
                                    "keras-fashion-mnist-cnn",
                                    "torch-half",
                                    "torch-spatial-transformer-ts", /* of bad condition */
                                    NULL};

static void run(struct mgpu_case_result *r, const char *name, const char *precision, int ranks)
{
    static const char *const devices[] = {NULL, "cuda:0", "cuda:0,cuda:0", NULL,
                                          "cuda:0,cuda:0,cuda:0,cuda:0"};
    char folder[300];
    snprintf(folder, sizeof folder, "tests/cases/%s", name);
    struct mgpu_case_request request = {.folder = folder,
                                        .devices = devices[ranks],
                                        .ranks = ranks,
                                        .precision = precision,
                                        .forward = true};
    mgpu_case_run(r, &request);
    mgpu_case_print(stdout, &request, r);
    CHECK_(r->outcome == MGPU_CASE_PASSED, "%s in %s on %d: %s", name, precision, ranks, r->why);
    CHECK_(!double_complaints(), "%s in %s: %s", name, precision, double_complaint());
    double_forget();
}

static void check_case(const char *name, const char *precision, int ranks)
{
    struct mgpu_case_result r;
    run(&r, name, precision, ranks);
    mgpu_case_result_free(&r);
}

/* N ranks equal one, as far as sums of rounded parts do. */
static void check_equal(const char *name, const char *precision, double most)
{
    struct mgpu_case_result one, more;
    run(&one, name, precision, 1);
    for (int ranks = 2; ranks <= 4; ranks *= 2) {
        run(&more, name, precision, ranks);
        double off = mgpu_case_difference(&more, &one);
        CHECK_(off <= most, "%s in %s on %d: off by %.1e", name, precision, ranks, off);
        mgpu_case_result_free(&more);
    }
    mgpu_case_result_free(&one);
}

int main(int count, char **words)
{
    if (double_skipped())
        return 77;
    double_begin(1, INT64_C(1) << 30);
    const char *const *name = count > 1 ? (const char *const *)words + 1 : cases;
    check_case("torch-mlp-ts", "tf32", 2);
    check_equal("torch-mlp-ts", "bf16", 1e-2);
    check_equal("torch-mlp-ts", "f16", 1e-3);
    for (int i = 0; name[i]; i++) {
        check_case(name[i], i % 2 ? "bf16" : "f16", 1 + i / 2 % 2);
        if (!mgpu_case_quick() || count > 1)
            check_case(name[i], i % 2 ? "f16" : "bf16", 2 - i / 2 % 2);
    }
    double_end();
    CHECK_(!double_complaints(), "%s", double_complaint());
    return test_end();
}
