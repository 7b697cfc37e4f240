/* Many cases on many device lists: what the tests of the cases share. */
#ifndef MGPU_TESTS_CASE_SUITE_H
#define MGPU_TESTS_CASE_SUITE_H

#include <stdbool.h>

struct mgpu_case_suite {
    const char *required; /* a file of the names that must pass; NULL: all must */
    bool quick;           /* one step on one device list a case: runs under sanitizers */
    /* so far */
    int cases, failed, unsupported;
};

/* Every case folder below `root`: answers on 1, 2 and 3 ranks in f32, on 2 with the algorithms of
 * larger rounding that are used without --exact, and 1 to 4 ranks equal each other in f64. One line
 * each; gives the number of folders. */
int mgpu_case_suite_run(struct mgpu_case_suite *suite, const char *root);

/* Whether the case must pass: the file `list` names it, or there is no such file. */
bool mgpu_case_required(const char *list, const char *name);

/* Whether $MGPU_QUICK is set. */
bool mgpu_case_quick(void);

#endif
