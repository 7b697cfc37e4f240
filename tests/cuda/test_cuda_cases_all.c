/* Every case of $MGPU_CASES (../shared/cases where it exists) takes a step on a GPU that there is
 * not (double.h), each on one, two or four ranks in turn. Those that tests/golden/required.txt
 * names must pass; the others may be unsupported, but not wrong. tests/cases are test_cuda_cases's.
 */
#include "tests/cuda/double.h"
#include "tests/golden/case_run.h"
#include "tests/golden/case_suite.h"
#include "tests/support/golden.h"
#include "tests/test.h"

#include <unistd.h>

static bool is_elsewhere(const char *folder)
{
    char path[300];
    snprintf(path, sizeof path, "tests/cases%s", strrchr(folder, '/'));
    return access(path, R_OK) == 0;
}

static void check_case(const char *folder, int turn)
{
    static const char *const devices[] = {"cuda:0", "cuda:0,cuda:0", "cuda:0,cuda:0,cuda:0,cuda:0"};
    const char *name = strrchr(folder, '/') + 1;
    struct mgpu_case_result r;
    struct mgpu_case_request request = {.folder = folder,
                                        .devices = devices[turn % 3],
                                        .ranks = 1 << turn % 3,
                                        .precision = "f32",
                                        .steps = 1};
    mgpu_case_run(&r, &request);
    mgpu_case_print(stdout, &request, &r);
    bool left = r.outcome == MGPU_CASE_UNSUPPORTED &&
                !mgpu_case_required("tests/golden/required.txt", name);
    CHECK_(left || r.outcome == MGPU_CASE_PASSED, "%s: %s", name, r.why);
    CHECK_(!double_complaints(), "%s: %s", name, double_complaint());
    double_forget();
    mgpu_case_result_free(&r);
}

int main(void)
{
    int count;
    if (mgpu_case_quick() || double_skipped()) {
        fprintf(stderr, "skipped: no C compiler, or a sanitizer\n");
        return 77;
    }
    char **folders = mgpu_golden_folders(&count);
    double_begin(1, INT64_C(1) << 30);
    for (int i = 0; i < count; i++) {
        if (!is_elsewhere(folders[i]))
            check_case(folders[i], i);
        free(folders[i]);
    }
    free(folders);
    double_end();
    CHECK_(!double_complaints(), "%s", double_complaint());
    return test_end();
}
