/* The cases in the repository: all must pass. */
#include "tests/golden/case_suite.h"
#include "tests/test.h"

int main(void)
{
    struct mgpu_case_suite suite = {.quick = mgpu_case_quick()};
    CHECK(mgpu_case_suite_run(&suite, "tests/cases") > 0);
    CHECK_(!suite.failed, "%d runs of cases failed", suite.failed);
    return test_end();
}
