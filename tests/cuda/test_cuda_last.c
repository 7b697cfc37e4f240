/* Cases as an H100 computes them with tensor cores, on one that there is not (double.h): NVIDIA's
 * libraries say which nodes they run and that images lie channels-last; `ref` runs those nodes,
 * generated kernels the others in that layout. In tf32, which rounds nothing here, the answers are
 * those of floats.
 *
 *     build/test_cuda_last [CASE]... */
#include "tests/cuda/double.h"
#include "tests/golden/case_run.h"
#include "tests/golden/case_suite.h"
#include "tests/test.h"

static const char *const cases[] = {"torch-fmnist-cnn-dy", "keras-fashion-mnist-cnn", "torch-unet",
                                    "torch-functions", NULL};

static void run(struct mgpu_case_result *r, const char *name, const char *on, int ranks,
                const char *precision)
{
    char folder[300];
    snprintf(folder, sizeof folder, "tests/cases/%s", name);
    struct mgpu_case_request request = {.folder = folder,
                                        .devices = on,
                                        .ranks = ranks,
                                        .precision = precision,
                                        .steps = mgpu_case_quick() ? 1 : 0};
    mgpu_case_run(r, &request);
    mgpu_case_print(stdout, &request, r);
    CHECK_(r->outcome == MGPU_CASE_PASSED, "%s on %s in %s: %s", name, on, precision, r->why);
    CHECK_(!double_complaints(), "%s on %s in %s: %s", name, on, precision, double_complaint());
    double_forget();
}

static void check_case(const char *name)
{
    static const char *const devices[] = {"cuda:0", "cuda:0,cuda:0"};
    struct mgpu_case_result want, got;
    run(&want, name, "cpu:0", 1, "f32");
    for (int ranks = 1; ranks <= 2; ranks++) {
        run(&got, name, devices[ranks - 1], ranks, "tf32");
        double off = mgpu_case_difference(&got, &want);
        CHECK_(off <= 1e-4, "%s on %d: off by %.1e", name, ranks, off);
        mgpu_case_result_free(&got);
        run(&got, name, devices[ranks - 1], ranks, ranks == 1 ? "bf16" : "f16");
        mgpu_case_result_free(&got);
    }
    mgpu_case_result_free(&want);
}

int main(int count, char **names)
{
    if (double_skipped())
        return 77;
    double_begin(1, INT64_C(1) << 30);
    if (!double_libraries("h100")) {
        fprintf(stderr, "skipped: no cuDNN or cuBLASLt\n");
        return 77;
    }
    for (int i = 1; i < count; i++)
        check_case(names[i]);
    for (int i = 0; cases[i] && count < 2; i++)
        check_case(cases[i]);
    double_end();
    CHECK_(!double_complaints(), "%s", double_complaint());
    return test_end();
}
