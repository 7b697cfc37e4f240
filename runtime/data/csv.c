/* Tables of numbers as text: fields between commas (or semicolons, or tabs, whichever the first
 * line has), quoted as in RFC 4180. A first line that is not all numbers names the columns; else
 * they are called 0, 1, 2 ... FILE is the whole table, FILE:COLUMN one column, FILE:A,pixel*,P..Q
 * the columns that these names, patterns and ranges stand for. Whole numbers are int64, all else
 * double. */
#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "runtime/data/dense.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIELD_MOST = 4096, COLUMNS_MOST = 1 << 20 };

/* Text that is cut into fields. */
struct reader {
    const char *at, *end;
    char comma;
    int64_t line;
    char field[FIELD_MOST];
    bool last; /* of its line */
};

/* Text, beginning with ASCII or a byte order mark. */
static bool probe(const uint8_t *head, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (head[i] < ' ' && head[i] != '\t' && head[i] != '\r' && head[i] != '\n')
            return false;
    return size > 0 && (head[0] < 0x7f || head[0] == 0xef);
}

static int put(struct reader *r, size_t *length, char c)
{
    if (*length + 1 >= FIELD_MOST)
        return mgpu_fail(MGPU_EINVALID, "line %" PRId64 ": a field of more than %d bytes", r->line,
                         FIELD_MOST);
    r->field[(*length)++] = c;
    return 0;
}

static int next_quoted(struct reader *r, size_t *length)
{
    for (r->at++; r->at < r->end; r->at++) {
        if (*r->at == '"' && (r->at + 1 == r->end || r->at[1] != '"'))
            break;
        r->at += *r->at == '"';
        MGPU_TRY(put(r, length, *r->at));
    }
    if (r->at >= r->end)
        return mgpu_fail(MGPU_EINVALID, "line %" PRId64 ": a quote is not closed", r->line);
    r->at++;
    return 0;
}

static int next_field(struct reader *r)
{
    size_t length = 0;
    while (r->at < r->end && *r->at == ' ')
        r->at++;
    if (r->at < r->end && *r->at == '"')
        MGPU_TRY(next_quoted(r, &length));
    for (; r->at < r->end && *r->at != r->comma && *r->at != '\n'; r->at++)
        MGPU_TRY(put(r, &length, *r->at));
    while (length && strchr(" \r", r->field[length - 1]))
        length--;
    r->field[length] = 0;
    r->last = r->at >= r->end || *r->at == '\n';
    r->line += r->last;
    r->at += r->at < r->end;
    return 0;
}

static bool is_number(const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return end != text && !*end;
}

/* ---- The first line -------------------------------------------------------------------------- */

struct table {
    struct reader reader; /* at the first row of numbers */
    struct mgpu_name_list names;
};

static char find_comma(const char *at, const char *end)
{
    const char *line_end = memchr(at, '\n', (size_t)(end - at));
    size_t n = (size_t)((line_end ? line_end : end) - at);
    return memchr(at, ',', n) ? ',' : memchr(at, ';', n) ? ';' : memchr(at, '\t', n) ? '\t' : ',';
}

/* Names from the header, or numbers where there is none. */
static int begin(struct table *t, const struct mgpu_mapped *file)
{
    const char *start = (const char *)file->data, *end = start + file->size;
    bool header = false;
    double number;
    if (file->size >= 3 && !memcmp(start, "\xef\xbb\xbf", 3)) /* a byte order mark */
        start += 3;
    *t = (struct table){.reader = {.at = start, .end = end, .line = 1}};
    t->reader.comma = find_comma(start, end);
    do {
        MGPU_TRY(next_field(&t->reader));
        header = header || !is_number(t->reader.field, &number);
        if (t->names.count == COLUMNS_MOST)
            return mgpu_fail(MGPU_EUNSUPPORTED, "more than %d columns", COLUMNS_MOST);
        mgpu_name_list_add(&t->names, t->reader.field);
    } while (!t->reader.last);
    for (int i = 0; i < t->names.count && !header; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", i);
        free(t->names.items[i]);
        t->names.items[i] = mgpu_xstrdup(text);
    }
    if (!header) {
        t->reader.at = start;
        t->reader.line = 1;
    }
    return 0;
}

static int list_csv(struct mgpu_name_list *out, const char *path)
{
    struct mgpu_mapped file;
    struct table t;
    MGPU_TRY(mgpu_mapped_open(&file, path));
    int rc = mgpu_prefix(begin(&t, &file), "%s", path);
    mgpu_mapped_close(&file);
    *out = t.names;
    return rc;
}

/* ---- Which columns --------------------------------------------------------------------------- */

static int find(const struct mgpu_name_list *names, const char *name, size_t length)
{
    for (int i = 0; i < names->count; i++)
        if (strlen(names->items[i]) == length && !strncmp(names->items[i], name, length))
            return i;
    return -1;
}

/* Marks what one part of the choice stands for: a name, FIRST..LAST, or a pattern. */
static int mark(bool *chosen, const struct mgpu_name_list *names, const char *part)
{
    const char *dots = strstr(part, "..");
    int one = find(names, part, strlen(part)), found = 0;
    int first = dots ? find(names, part, (size_t)(dots - part)) : -1;
    int last = dots ? find(names, dots + 2, strlen(dots + 2)) : -1;
    for (int i = 0; i < names->count; i++) {
        bool fits = one >= 0                  ? i == one
                    : first >= 0 && last >= 0 ? i >= first && i <= last
                                              : !fnmatch(part, names->items[i], 0);
        chosen[i] = chosen[i] || fits;
        found += fits;
    }
    return found ? 0 : mgpu_fail(MGPU_EINVALID, "there is no column '%s'", part);
}

/* "" is all of them. A column's whole name goes before its commas. */
static int choose(bool *chosen, const struct mgpu_name_list *names, const char *text)
{
    char *copy = mgpu_xstrdup(text), *save, *part;
    int rc = 0, whole = find(names, text, strlen(text));
    for (int i = 0; i < names->count; i++)
        chosen[i] = !*text || i == whole;
    if (*text && whole < 0)
        for (part = strtok_r(copy, ",", &save); part && rc == 0; part = strtok_r(NULL, ",", &save))
            rc = mark(chosen, names, part);
    free(copy);
    return rc;
}

/* ---- Numbers --------------------------------------------------------------------------------- */

/* One row; `to` NULL: only counted. A line without any field ends the table when all are. */
static int read_row(struct table *t, const bool *chosen, double **to)
{
    struct reader *r = &t->reader;
    int64_t line = r->line;
    int column = 0;
    do {
        double v = 0;
        MGPU_TRY(next_field(r));
        if (column < t->names.count && chosen[column] && *to) {
            if (!is_number(r->field, &v))
                return mgpu_fail(MGPU_EINVALID, "line %" PRId64 ", column '%s': '%s' is no number",
                                 line, t->names.items[column], r->field);
            *(*to)++ = v;
        }
        column++;
    } while (!r->last);
    if (column != t->names.count)
        return mgpu_fail(MGPU_EINVALID, "line %" PRId64 " has %d fields, the first line has %d",
                         line, column, t->names.count);
    return 0;
}

/* Blank lines at the end are none. */
static bool has_row(const struct reader *r)
{
    for (const char *at = r->at; at < r->end; at++)
        if (!strchr(" \r\n", *at))
            return true;
    return false;
}

static int read_rows(struct table *t, const bool *chosen, double *to, int64_t *rows)
{
    struct reader start = t->reader;
    for (*rows = 0; has_row(&t->reader); ++*rows)
        MGPU_TRY(read_row(t, chosen, &to));
    t->reader = start;
    return 0;
}

static bool all_whole(const double *v, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!(v[i] == floor(v[i]) && fabs(v[i]) < 0x1p53))
            return false;
    return true;
}

static int read_table(struct mgpu_dataset *d, struct table *t, const bool *chosen)
{
    struct mgpu_dense *dense = d->state;
    int64_t rows, columns = 0, count;
    for (int i = 0; i < t->names.count; i++)
        columns += chosen[i];
    MGPU_TRY(read_rows(t, chosen, NULL, &rows));
    d->type = MGPU_DOUBLE;
    d->rank = find(&t->names, d->name, strlen(d->name)) >= 0 ? 1 : 2;
    d->dims[0] = rows;
    d->dims[1] = columns;
    MGPU_TRY(mgpu_count(&count, d->type, d->rank, d->dims));
    MGPU_TRY(mgpu_alloc(&dense->owned, (uint64_t)count * sizeof(double), d->title));
    MGPU_TRY(read_rows(t, chosen, dense->owned, &rows));
    if (all_whole(dense->owned, count)) {
        d->type = MGPU_INT64;
        mgpu_convert(dense->owned, MGPU_INT64, dense->owned, MGPU_DOUBLE, count);
    }
    dense->data = dense->owned;
    return 0;
}

static int open_csv(struct mgpu_dataset *d)
{
    struct mgpu_dense *dense;
    struct table t = {0};
    bool *chosen = NULL;
    MGPU_TRY(mgpu_dense_map(&dense, d));
    int rc = begin(&t, &dense->file);
    if (rc == 0) {
        chosen = mgpu_xcalloc((size_t)t.names.count, sizeof *chosen);
        rc = choose(chosen, &t.names, d->name);
    }
    if (rc == 0)
        rc = read_table(d, &t, chosen);
    free(chosen);
    mgpu_name_list_free(&t.names);
    return rc;
}

const struct mgpu_dataset_kind mgpu_dataset_csv = {
    .name = "CSV",
    .whole = true,
    .probe = probe,
    .list = list_csv,
    .open = open_csv,
    .read = mgpu_dense_read,
    .close = mgpu_dense_close,
};
