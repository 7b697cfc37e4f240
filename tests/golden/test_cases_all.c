/* Every case of $MGPU_CASES (../shared/cases where it exists). Those that required.txt names must
 * pass; the others may be unsupported, which is said with the reason, but not wrong. */
#include "tests/golden/case_suite.h"
#include "tests/test.h"

#include <unistd.h>

int main(void)
{
    const char *root = getenv("MGPU_CASES");
    struct mgpu_case_suite suite = {.required = "tests/golden/required.txt",
                                    .quick = mgpu_case_quick()};
    if (!root || !*root)
        root = "../shared/cases";
    if (access(root, R_OK) < 0) {
        printf("skipped: no folder %s\n", root);
        return EXIT_SUCCESS;
    }
    CHECK_(mgpu_case_suite_run(&suite, root) > 0, "%s has no cases", root);
    CHECK_(!suite.failed, "%d runs of cases failed", suite.failed);
    printf("%d cases, %d runs failed, %d cases not supported\n", suite.cases, suite.failed,
           suite.unsupported);
    return test_end();
}
