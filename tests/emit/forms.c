#include "tests/emit/forms.h"

#include "runtime/base/memory.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static char *form_of(const char *text, bool numbers)
{
    char *form = mgpu_xcalloc(strlen(text) + 1, 1), *to = form;
    for (const char *at = strchr(text, ')'); *at; at++) {
        bool digit = isdigit((unsigned char)*at),
             in_name = at[-1] == '_' || isalnum((unsigned char)at[-1]);
        if (digit && !in_name && !numbers)
            at += strspn(at, "0123456789") - 1;
        else
            *to++ = *at;
    }
    return form;
}

bool kernel_form_is_new(struct kernel_forms *forms, const char *text, bool numbers)
{
    char *form = form_of(text, numbers);
    for (int i = 0; i < forms->count; i++)
        if (!strcmp(forms->form[i], form)) {
            free(form);
            return false;
        }
    forms->form = mgpu_grow(forms->form, (size_t)forms->count, sizeof *forms->form);
    forms->form[forms->count++] = form;
    return true;
}
