/* Which kernels differ. Their texts are those between one KERNEL( and the next. */
#ifndef MGPU_TESTS_EMIT_FORMS_H
#define MGPU_TESTS_EMIT_FORMS_H

#include <stdbool.h>

/* What was met; zeroed: nothing yet. */
struct kernel_forms {
    int count;
    char **form;
};

/* Whether the kernel is the first of its form, which is then kept: its text without its own name
 * and, unless `numbers`, without the numbers that do not end a name. Shapes, which are such
 * numbers, make no difference to whether it compiles. */
bool kernel_form_is_new(struct kernel_forms *forms, const char *text, bool numbers);

#endif
