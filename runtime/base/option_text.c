#include "runtime/base/option_text.h"

#include "runtime/base/nearest.h"
#include "runtime/base/status.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

size_t mgpu_longest_name(const char *text, const char *const *names, int count, const char *stops)
{
    size_t longest = 0;
    for (int i = 0; i < count; i++) {
        size_t n = strlen(names[i]);
        bool ends = strncmp(text, names[i], n) == 0 && (!text[n] || strchr(stops, text[n]));
        if (ends && n > longest)
            longest = n;
    }
    return longest;
}

/* Cuts one item out of *at and moves behind its comma. */
static struct mgpu_item cut_item(char **at, const char *const *whole, int whole_count)
{
    char *text = *at, *end = text + strcspn(text, ",="), *equals = *end == '=' ? end : NULL;
    if (equals) {
        size_t name = mgpu_longest_name(equals + 1, whole, whole_count, ",");
        end = equals + 1 + (name ? name : strcspn(equals + 1, ","));
        *equals = '\0';
    }
    *at = *end ? end + 1 : NULL;
    *end = '\0';
    return (struct mgpu_item){.name = text, .value = equals ? equals + 1 : NULL};
}

void mgpu_items_cut(struct mgpu_item **items, int *count, const char *text,
                    const char *const *whole, int whole_count, struct mgpu_arena *arena)
{
    int commas = 0;
    for (const char *c = text; *c; c++)
        commas += *c == ',';
    *items = MGPU_NEW_ARRAY(arena, struct mgpu_item, commas + 1);
    *count = 0;
    for (char *at = *text ? mgpu_arena_string(arena, text) : NULL; at;)
        (*items)[(*count)++] = cut_item(&at, whole, whole_count);
}

/* X or X/Y; false when there is anything else. */
static bool read_number(double *out, const char *text)
{
    char *end, *below;
    *out = strtod(text, &end);
    if (end != text && *end == '/') {
        double divisor = strtod(end + 1, &below);
        *out /= divisor;
        return below != end + 1 && !*below && isfinite(*out);
    }
    return end != text && !*end && isfinite(*out);
}

int mgpu_text_double(double *out, const char *what, const char *text, double low, double high)
{
    if (!text || !read_number(out, text))
        return mgpu_fail(MGPU_EUSAGE, "%s: '%s' is not a number", what, text ? text : "");
    if (*out < low)
        return mgpu_fail(MGPU_EUSAGE, "%s: %s is less than %.12g", what, text, low);
    if (*out > high)
        return mgpu_fail(MGPU_EUSAGE, "%s: %s is more than %.12g", what, text, high);
    return 0;
}

int mgpu_text_int(int64_t *out, const char *what, const char *text, int64_t low, int64_t high)
{
    char *end = NULL;
    errno = 0;
    long long number = text ? strtoll(text, &end, 10) : 0;
    if (!text || end == text || *end)
        return mgpu_fail(MGPU_EUSAGE, "%s: '%s' is not a whole number", what, text ? text : "");
    if (errno == ERANGE || number < low || number > high)
        return mgpu_fail(MGPU_EUSAGE, "%s: %s is not between %lld and %lld", what, text,
                         (long long)low, (long long)high);
    *out = number;
    return 0;
}

static bool is_one_of(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (strcasecmp(text, *words) == 0)
            return true;
    return false;
}

int mgpu_text_bool(bool *out, const char *what, const char *text)
{
    static const char *const yes[] = {"1", "true", "yes", "on", NULL};
    static const char *const no[] = {"0", "false", "no", "off", NULL};
    *out = !text || is_one_of(text, yes);
    if (!*out && !is_one_of(text, no))
        return mgpu_fail(MGPU_EUSAGE, "%s: '%s' is neither 1 nor 0", what, text);
    return 0;
}

int mgpu_unknown_name(const char *what, const char *name, const char *const *names, int count)
{
    const char *near = mgpu_nearest(name, names, count);
    if (near)
        return mgpu_fail(MGPU_EUSAGE, "unknown %s '%s'; did you mean '%s'?", what, name, near);
    return mgpu_unknown_word(what, name, names, count);
}

int mgpu_unknown_word(const char *what, const char *name, const char *const *names, int count)
{
    char known[768] = "none";
    for (size_t i = 0, used = 0; i < (size_t)count && used < sizeof known; i++)
        used +=
            (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", names[i]);
    return mgpu_fail(MGPU_EUSAGE, "unknown %s '%s' (known: %s)", what, name, known);
}

void mgpu_write_shell_word(FILE *to, const char *text)
{
    fputs(" '", to);
    for (; *text; text++)
        fputs(*text == '\'' ? "'\\''" : (char[]){*text, 0}, to);
    fputc('\'', to);
}
