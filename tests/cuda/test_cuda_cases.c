/* Cases on a GPU that there is not (double.h): on one rank and on several the answers are right,
 * in every order that the events allow. */
#include "tests/cuda/double.h"
#include "tests/golden/case_run.h"
#include "tests/test.h"

static const char *const devices[] = {NULL, "cuda:0", "cuda:0,cuda:0", NULL,
                                      "cuda:0,cuda:0,cuda:0,cuda:0"};

static void check_case(const char *name, int ranks, const char *precision)
{
    char folder[128];
    struct mgpu_case_result r;
    snprintf(folder, sizeof folder, "tests/cases/%s", name);
    struct mgpu_case_request request = {
        .folder = folder, .devices = devices[ranks], .ranks = ranks, .precision = precision};
    double_forget();
    mgpu_case_run(&r, &request);
    mgpu_case_print(stdout, &request, &r);
    CHECK_(r.outcome == MGPU_CASE_PASSED, "%s on %d: %s", name, ranks, r.why);
    CHECK_(!double_complaints(), "%s on %d: %s", name, ranks, double_complaint());
    mgpu_case_result_free(&r);
}

int main(int argc, char **argv)
{
    if (!double_possible()) {
        fprintf(stderr, "skipped: no C compiler, or the thread sanitizer\n");
        return 77;
    }
    double_begin(1, INT64_C(1) << 30);
    if (argc > 2) {
        check_case(argv[1], atoi(argv[2]), "f32");
        return test_end();
    }
    check_case("torch-mlp-ts", 1, "f32");
    check_case("torch-mlp-ts", 2, "f32");
    check_case("torch-mlp-ts", 4, "f32");
    double_end();
    CHECK_(!double_complaints(), "%s", double_complaint());
    return test_end();
}
