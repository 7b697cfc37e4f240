#include "runtime/cli/args.h"

#include "runtime/base/memory.h"
#include "runtime/base/nearest.h"
#include "runtime/base/option_text.h"
#include "runtime/base/status.h"

#include <stdlib.h>
#include <string.h>

enum { OPTIONS_MOST = 256 }; /* of a table, headings too */

static const struct mgpu_arg *find(const struct mgpu_arg *table, const char *name, size_t length)
{
    for (const struct mgpu_arg *a = table; a->name; a++)
        if (a->kind != MGPU_ARG_HEADING && strlen(a->name) == length &&
            !strncmp(a->name, name, length))
            return a;
    return NULL;
}

static int unknown(const struct mgpu_arg *table, const char *text, size_t length)
{
    const char *names[OPTIONS_MOST];
    char *name = mgpu_xstrdup(text);
    int n = 0;
    name[length] = 0;
    for (const struct mgpu_arg *a = table; a->name && n < OPTIONS_MOST; a++)
        if (a->kind != MGPU_ARG_HEADING)
            names[n++] = a->name;
    const char *near = mgpu_nearest(name, names, n);
    int rc = near
                 ? mgpu_fail(MGPU_EUSAGE, "unknown option '--%s'; did you mean '--%s'?", name, near)
                 : mgpu_fail(MGPU_EUSAGE, "unknown option '--%s'", name);
    free(name);
    return rc;
}

static bool wants_value(const struct mgpu_arg *a)
{
    return a->kind == MGPU_ARG_TEXT || a->kind == MGPU_ARG_LIST || a->kind == MGPU_ARG_INT ||
           a->kind == MGPU_ARG_INT32 || a->kind == MGPU_ARG_DOUBLE;
}

static void append(const char ***list, const char *text)
{
    size_t n = 0;
    while (*list && (*list)[n])
        n++;
    *list = mgpu_xrealloc(*list, n + 2, sizeof(char *));
    (*list)[n] = text;
    (*list)[n + 1] = NULL;
}

static int set_number(const struct mgpu_arg *a, void *field, const char *value)
{
    char option[64];
    int64_t number = a->otherwise;
    snprintf(option, sizeof option, "--%s", a->name);
    if (a->kind == MGPU_ARG_DOUBLE)
        return mgpu_text_double(field, option, value, a->low, a->high);
    if (value)
        MGPU_TRY(mgpu_text_int(&number, option, value, (int64_t)a->low, (int64_t)a->high));
    if (a->kind == MGPU_ARG_INT32)
        *(int *)field = (int)number;
    else
        *(int64_t *)field = number;
    return 0;
}

static bool may_repeat(const struct mgpu_arg *a)
{
    return a->kind == MGPU_ARG_LIST || a->kind == MGPU_ARG_FLAG || a->kind == MGPU_ARG_NO;
}

static int set(const struct mgpu_arg *a, void *into, const char *value)
{
    void *field = (char *)into + a->offset;
    switch (a->kind) {
    case MGPU_ARG_FLAG:
    case MGPU_ARG_NO:
        *(bool *)field = a->kind == MGPU_ARG_FLAG;
        return 0;
    case MGPU_ARG_TEXT:
    case MGPU_ARG_MAYBE_TEXT:
        *(const char **)field = value ? value : "";
        return 0;
    case MGPU_ARG_LIST:
        append(field, value);
        return 0;
    default:
        return set_number(a, field, value);
    }
}

static int parse(const struct mgpu_arg *table, void *into, int argc, char **argv,
                 const char ***rest, int *count)
{
    bool seen[OPTIONS_MOST] = {false};
    *rest = mgpu_xcalloc((size_t)argc + 1, sizeof(char *));
    *count = 0;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--")) {
            while (++i < argc)
                (*rest)[(*count)++] = argv[i];
            break;
        }
        if (argv[i][0] == '-' && argv[i][1] && argv[i][1] != '-')
            return mgpu_fail(MGPU_EUSAGE, "unknown option '%s': options are long (--help)",
                             argv[i]);
        if (argv[i][0] != '-' || !argv[i][1]) {
            (*rest)[(*count)++] = argv[i];
            continue;
        }
        const char *name = argv[i] + 2, *equal = strchr(name, '='), *value = NULL;
        size_t length = equal ? (size_t)(equal - name) : strlen(name);
        const struct mgpu_arg *a = find(table, name, length);
        if (!a)
            return unknown(table, name, length);
        if (seen[a - table] && !may_repeat(a))
            return mgpu_fail(MGPU_EUSAGE, "--%s is given twice", a->name);
        seen[a - table] = true;
        if (equal)
            value = equal + 1;
        if (value && (a->kind == MGPU_ARG_FLAG || a->kind == MGPU_ARG_NO))
            return mgpu_fail(MGPU_EUSAGE, "--%s takes no value", a->name);
        if (!value && wants_value(a) && (++i == argc || !strncmp(argv[i], "--", 2)))
            return mgpu_fail(MGPU_EUSAGE, "--%s needs a value: --%s %s", a->name, a->name,
                             a->value);
        MGPU_TRY(set(a, into, value ? value : wants_value(a) ? argv[i] : NULL));
    }
    return 0;
}

int mgpu_args_parse(const struct mgpu_arg *table, void *into, int argc, char **argv,
                    const char ***rest, int *count)
{
    MGPU_TRY(parse(table, into, argc, argv, rest, count));
    for (int i = 0; i < *count; i++)
        if (!*(*rest)[i])
            return mgpu_fail(MGPU_EUSAGE, "'' is no file name: a variable without a value, maybe");
    return 0;
}

void mgpu_args_help(const struct mgpu_arg *table, FILE *to)
{
    for (const struct mgpu_arg *a = table; a->name; a++) {
        char left[64];
        bool maybe = a->kind == MGPU_ARG_MAYBE_INT || a->kind == MGPU_ARG_MAYBE_TEXT;
        if (a->kind == MGPU_ARG_HEADING) {
            fprintf(to, "\n%s\n", a->name);
            continue;
        }
        snprintf(left, sizeof left,
                 maybe      ? "--%s[=%s]"
                 : a->value ? "--%s %s"
                            : "--%s",
                 a->name, a->value);
        fprintf(to, "  %-32s %s\n", left, a->help);
    }
}

void mgpu_args_free(const struct mgpu_arg *table, void *into)
{
    for (const struct mgpu_arg *a = table; a->name; a++)
        if (a->kind == MGPU_ARG_LIST)
            free(*(void **)((char *)into + a->offset));
}
