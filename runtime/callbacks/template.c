#include "runtime/callbacks/template.h"

#include "runtime/base/option_text.h"
#include "runtime/base/status.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_WIDTH = 100, FIELD_TEXT = 512 };

/* As Python writes a float: the fewest digits that read back as it, and ".0" where it looks whole.
 */
static void print_plain(char text[FIELD_TEXT], double value)
{
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, FIELD_TEXT, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    if (isfinite(value) && !strpbrk(text, ".e"))
        strncat(text, ".0", 3);
}

struct format {
    bool zeros;
    int width, precision; /* -1: none */
    char kind;            /* 0: none */
};

/* Reads FORMAT up to its '}'. */
static bool read_format(struct format *f, const char *text, const char *end)
{
    char *after = (char *)text;
    *f = (struct format){.precision = -1};
    if (*after == '0')
        f->zeros = true;
    f->width = (int)strtol(after, &after, 10);
    if (*after == '.') {
        char *digits = ++after;
        f->precision = (int)strtol(digits, &after, 10);
        if (after == digits)
            return false;
    }
    if (after < end && strchr("dfFeEgG", *after))
        f->kind = *after++;
    return after == end && f->width >= 0 && f->width <= MOST_WIDTH && f->precision <= MOST_WIDTH;
}

static int print_epoch(char text[FIELD_TEXT], const struct format *f, int64_t epoch)
{
    if (f->kind != 'd' && f->kind)
        return -1;
    snprintf(text, FIELD_TEXT, f->zeros ? "%0*lld" : "%*lld", f->width, (long long)epoch);
    return f->precision >= 0 ? -1 : 0;
}

static int print_value(char text[FIELD_TEXT], const struct format *f, double value)
{
    char how[16];
    if (f->kind == 'd')
        return -1;
    snprintf(how, sizeof how, "%%%s*.*%c", f->zeros ? "0" : "", f->kind ? f->kind : 'g');
    /* a format made of the few characters checked above */
    snprintf(text, FIELD_TEXT, how, f->width, f->precision >= 0 ? f->precision : 6, value);
    return 0;
}

static int unknown_field(const char *at, int size, const struct mgpu_logs *logs)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    const char **names = MGPU_NEW_ARRAY(arena, const char *, 1 + logs->count);
    names[0] = "epoch";
    for (int i = 0; i < logs->count; i++)
        names[1 + i] = logs->name[i];
    int rc = mgpu_unknown_word("field", mgpu_arena_format(arena, "{%.*s}", size, at), names,
                               1 + logs->count);
    mgpu_arena_free(arena);
    return rc;
}

/* The field that `at` stands before ("NAME:FORMAT}"), into `text`; *end behind its '}'. */
static int print_field(char text[FIELD_TEXT], const char *at, const char **end, int64_t epoch,
                       const struct mgpu_logs *logs)
{
    static const char *const own[] = {"epoch"};
    size_t n = mgpu_longest_name(at, own, 1, ":}");
    bool is_epoch = n > 0;
    if (!is_epoch)
        n = mgpu_longest_name(at, logs->name, logs->count, ":}");
    const char *close = strchr(at + n, '}');
    int i = 0, size = close ? (int)(close - at) : (int)strlen(at);
    if (!close)
        return mgpu_fail(MGPU_EUSAGE, "'{%s' is not closed", at);
    if (n == 0)
        return unknown_field(at, size, logs);
    while (!is_epoch && (strlen(logs->name[i]) != n || strncmp(logs->name[i], at, n)))
        i++;
    struct format f = {.precision = -1};
    bool plain = at[n] == '}';
    int rc = plain || read_format(&f, at + n + 1, close) ? 0 : -1;
    if (rc == 0 && is_epoch)
        rc = print_epoch(text, &f, epoch);
    else if (rc == 0 && plain)
        print_plain(text, logs->value[i]);
    else if (rc == 0)
        rc = print_value(text, &f, logs->value[i]);
    *end = close + 1;
    return rc < 0 ? mgpu_fail(MGPU_EUSAGE, "field '{%.*s}': formats are like 02d and .2f", size, at)
                  : 0;
}

int mgpu_template_format(const char **out, struct mgpu_arena *arena, const char *text,
                         int64_t epoch, const struct mgpu_logs *logs)
{
    char field[FIELD_TEXT];
    const char *name = "";
    while (*text) {
        size_t n = strcspn(text, "{}");
        bool brace = text[n] && text[n + 1] == text[n];
        name = mgpu_arena_format(arena, "%s%.*s", name, (int)(n + brace), text);
        text += n + 2 * (size_t)brace;
        if (brace || !*text)
            continue;
        if (*text == '}')
            return mgpu_fail(MGPU_EUSAGE, "'}' closes no field (a brace itself is written twice)");
        MGPU_TRY(print_field(field, text + 1, &text, epoch, logs));
        name = mgpu_arena_format(arena, "%s%s", name, field);
    }
    *out = name;
    return 0;
}

bool mgpu_template_is_known(const char *text)
{
    for (; (text = strchr(text, '{')); text++) {
        bool brace = text[1] == '{';
        size_t n = strcspn(text + 1, ":}");
        if (!brace && (n != 5 || strncmp(text + 1, "epoch", n)))
            return false;
        text += brace;
    }
    return true;
}

bool mgpu_template_gives(const char *text, const char *name)
{
    const char *first = strchr(text, '{'), *last = strrchr(text, '}');
    if (!first || !last || last < first)
        return !strcmp(text, name);
    size_t head = (size_t)(first - text), tail = strlen(last + 1), n = strlen(name);
    return n >= head + tail && !strncmp(name, text, head) && !strcmp(name + n - tail, last + 1) &&
           !memchr(name + head, '/', n - head - tail);
}

const char *mgpu_template_step(struct mgpu_arena *arena, const char *text, int64_t step)
{
    const char *first = strchr(text, '{'), *last = strrchr(text, '}');
    if (first && last > first)
        return mgpu_arena_format(arena, "%.*sstep-%lld%s", (int)(first - text), text,
                                 (long long)step, last + 1);
    const char *slash = strrchr(text, '/'), *dot = strrchr(slash ? slash : text, '.');
    int n = dot ? (int)(dot - text) : (int)strlen(text);
    return mgpu_arena_format(arena, "%.*s-step-%lld%s", n, text, (long long)step, dot ? dot : "");
}
