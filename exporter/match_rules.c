/* Rules of the user, one a line: "theirs -> ours". '#' begins a comment. One '*' on both sides
 * stands for the same text. Rules without it go first; the others, in their order, are for what no
 * rule before them took. */
#include "exporter/match_parts.h"
#include "runtime/base/nearest.h"
#include "runtime/base/status.h"
#include "runtime/data/mapped.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* What `name` becomes by the rule; NULL: the rule is about others. */
static const char *apply(struct mgpu_match *m, const char *theirs, const char *ours,
                         const char *name)
{
    const char *star = strchr(theirs, '*'), *to = strchr(ours, '*');
    if (!star)
        return strcmp(theirs, name) ? NULL : ours;
    size_t head = (size_t)(star - theirs), tail = strlen(star + 1), n = strlen(name);
    if (n < head + tail || strncmp(name, theirs, head) || strcmp(name + n - tail, star + 1))
        return NULL;
    return mgpu_arena_format(m->arena, "%.*s%.*s%s", (int)(to - ours), ours, (int)(n - head - tail),
                             name + head, to + 1);
}

static int variable_called(const struct mgpu_match *m, const char *name)
{
    for (int i = 0; i < m->model->count; i++)
        if (!strcmp(mgpu_variable_initializer(m->model, i), name) ||
            !strcmp(mgpu_variable_name(m->model, i), name))
            return i;
    return -1;
}

static int unknown(const struct mgpu_match *m, const char *name)
{
    const char **names = mgpu_xcalloc((size_t)m->model->count + 1, sizeof *names);
    for (int i = 0; i < m->model->count; i++)
        names[i] = mgpu_variable_name(m->model, i);
    const char *near = mgpu_nearest(name, names, m->model->count);
    free(names);
    return mgpu_fail(MGPU_EINVALID, "the model has no '%s'%s%s%s", name,
                     near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

struct rule {
    const char *theirs, *ours;
    int line;
    bool star;
};

static int use_rule(struct mgpu_match *m, const struct rule *r)
{
    bool used = false;
    for (int t = 0; t < m->file->count; t++) {
        const char *to = apply(m, r->theirs, r->ours, m->file->tensor[t].name);
        if (!to)
            continue;
        if (r->star && m->variable[t] >= 0) {
            used = true;
            continue;
        }
        int variable = variable_called(m, to);
        if (variable < 0 && mgpu_checkpoint_is_counter(&m->file->tensor[t]))
            continue;
        if (variable < 0)
            return unknown(m, to);
        if (m->tensor[variable] >= 0)
            return mgpu_fail(MGPU_EINVALID, "'%s' is given twice", to);
        if (m->file->kind == MGPU_CHECKPOINT_ONNX)
            mgpu_match_whole(m, t, variable);
        else
            mgpu_match_pair(m, t, variable);
        used = true;
    }
    return used ? 0 : mgpu_fail(MGPU_EINVALID, "%s has no '%s'", m->file->path, r->theirs);
}

static char *trimmed(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    for (size_t n = strlen(text); n && isspace((unsigned char)text[n - 1]);)
        text[--n] = 0;
    return text;
}

static int count_stars(const char *text)
{
    int n = 0;
    for (; (text = strchr(text, '*')); text++)
        n++;
    return n;
}

/* `line` is cut up; theirs is NULL where there is no rule in it. */
static int read_rule(struct rule *r, char *line)
{
    line[strcspn(line, "#")] = 0;
    line = trimmed(line);
    if (!*line)
        return 0;
    char *arrow = strstr(line, "->");
    if (!arrow)
        return mgpu_fail(MGPU_EINVALID, "'%s' is not 'theirs -> ours'", line);
    *arrow = 0;
    r->theirs = trimmed(line);
    r->ours = trimmed(arrow + 2);
    int stars = count_stars(r->theirs);
    if (stars > 1 || stars != count_stars(r->ours))
        return mgpu_fail(MGPU_EINVALID, "'%s -> %s': '*' stands once on both sides, or on none",
                         r->theirs, r->ours);
    r->star = stars == 1;
    return 0;
}

static int read_rules(struct rule **rule, int *count, char *text, const char *path)
{
    int number = 1;
    for (char *line = text; line; number++) {
        struct rule r = {.line = number};
        char *end = strchr(line, '\n');
        if (end)
            *end = 0;
        MGPU_TRY(mgpu_prefix(read_rule(&r, line), "%s:%d", path, number));
        line = end ? end + 1 : NULL;
        if (!r.theirs)
            continue;
        *rule = mgpu_grow(*rule, (size_t)*count, sizeof **rule);
        (*rule)[(*count)++] = r;
    }
    return 0;
}

int mgpu_match_rules(struct mgpu_match *m, const char *path)
{
    enum { MOST = 16 << 20 };
    struct mgpu_mapped f;
    MGPU_TRY(mgpu_mapped_open(&f, path));
    char *text = mgpu_arena_format(m->arena, "%.*s", f.size < MOST ? (int)f.size : MOST,
                                   f.data ? (const char *)f.data : "");
    mgpu_mapped_close(&f);
    bool marked = !strncmp(text, "\xef\xbb\xbf", 3); /* UTF-8, as editors of Windows write it */
    struct rule *rule = NULL;
    int count = 0, rc = read_rules(&rule, &count, text + (marked ? 3 : 0), path);
    for (int star = 0; star < 2; star++)
        for (int i = 0; i < count && rc == 0; i++)
            if (rule[i].star == star)
                rc = mgpu_prefix(use_rule(m, &rule[i]), "%s:%d", path, rule[i].line);
    free(rule);
    return rc;
}
