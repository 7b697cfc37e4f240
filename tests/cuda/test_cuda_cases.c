/* The cases on a GPU that there is not (double.h): on one rank and on several the answers are
 * right, in orders that the events allow; in double they are those of CPU ranks to 1e-10. */
#include "runtime/base/status.h"
#include "tests/cuda/double.h"
#include "tests/golden/case_run.h"
#include "tests/golden/case_suite.h"
#include "tests/test.h"

#include <dirent.h>

static const char *const devices[] = {NULL, "cuda:0", "cuda:0,cuda:0", NULL,
                                      "cuda:0,cuda:0,cuda:0,cuda:0"};

static void run(struct mgpu_case_result *out, const char *folder, const char *on, int ranks,
                const char *precision)
{
    struct mgpu_case_request request = {
        .folder = folder, .devices = on, .ranks = ranks, .precision = precision};
    mgpu_case_run(out, &request);
    mgpu_case_print(stdout, &request, out);
    CHECK_(out->outcome == MGPU_CASE_PASSED, "%s on %s: %s", folder, on, out->why);
    CHECK_(!double_complaints(), "%s on %s: %s", folder, on, double_complaint());
    double_forget();
}

static void check_answers(const char *folder, int ranks)
{
    struct mgpu_case_result r;
    run(&r, folder, devices[ranks], ranks, "f32");
    mgpu_case_result_free(&r);
}

static void check_equal(const char *folder)
{
    struct mgpu_case_result want, got;
    run(&want, folder, "cpu:0", 1, "f64");
    for (int ranks = 1; ranks <= 4; ranks *= 2) {
        run(&got, folder, devices[ranks], ranks, "f64");
        double off = mgpu_case_difference(&got, &want);
        CHECK_(off <= 1e-10, "%s on %d: off by %.1e", folder, ranks, off);
        mgpu_case_result_free(&got);
    }
    mgpu_case_result_free(&want);
}

/* Each on 1, 2 and 4 ranks; quickly, and the one of thousands of nodes, on one of these. */
static void check_all(bool quick)
{
    struct dirent **entry;
    int n = scandir("tests/cases", &entry, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char folder[300];
        bool one = quick || !strcmp(entry[i]->d_name, "keras-bigru-embedding-keras3");
        snprintf(folder, sizeof folder, "tests/cases/%s", entry[i]->d_name);
        for (int ranks = 1; ranks <= 4 && entry[i]->d_name[0] != '.'; ranks *= 2)
            if (one ? ranks == 1 << i % 2 : true)
                check_answers(folder, ranks);
        free(entry[i]);
    }
    CHECK(n > 2);
    if (n >= 0)
        free(entry);
}

int main(void)
{
    if (double_skipped())
        return 77;
    double_begin(1, INT64_C(1) << 30);
    check_all(mgpu_case_quick());
    check_equal("tests/cases/torch-mlp-ts");
    check_equal("tests/cases/torch-loss-mix");
    double_end();
    CHECK_(!double_complaints(), "%s", double_complaint());
    return test_end();
}
