#include "runtime/callbacks/csv_log.h"

#include "runtime/base/status.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct mgpu_csv_log {
    FILE *file;
    char *path;
    int *order; /* of the columns */
};

static int fail(const struct mgpu_csv_log *log, const char *what)
{
    return mgpu_fail(MGPU_EIO, "%s: cannot %s: %s", log->path, what, strerror(errno));
}

/* Alphabetical, by insertion. */
static void sort(int *order, const struct mgpu_logs *logs)
{
    for (int i = 0; i < logs->count; i++) {
        int k = i;
        for (; k > 0 && strcmp(logs->name[order[k - 1]], logs->name[i]) > 0; k--)
            order[k] = order[k - 1];
        order[k] = i;
    }
}

/* A name with a comma, a quote or a line end stands in quotes, quotes in it twice. */
static void print_name(FILE *to, const char *name)
{
    bool quoted = strpbrk(name, ",\"\r\n");
    fputs(quoted ? ",\"" : ",", to);
    for (; *name; name++)
        fputs(*name == '"' ? "\"\"" : (char[]){*name, 0}, to);
    fputs(quoted ? "\"" : "", to);
}

static void print_header(FILE *to, const struct mgpu_csv_log *log, const struct mgpu_logs *logs)
{
    fputs("epoch", to);
    for (int i = 0; i < logs->count; i++)
        print_name(to, logs->name[log->order[i]]);
    fputc('\n', to);
}

static char *header_text(const struct mgpu_csv_log *log, const struct mgpu_logs *logs)
{
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    print_header(to, log, logs);
    fclose(to);
    return text;
}

/* Cuts the file before its first line of an epoch that is not kept. */
static int keep_lines(struct mgpu_csv_log *log, const struct mgpu_logs *logs, int64_t epoch)
{
    char *header = header_text(log, logs), *line = NULL;
    size_t size = 0;
    long end = 0;
    bool first = true, same = true;
    while (getline(&line, &size, log->file) > 0) {
        if (first)
            same = !strcmp(line, header);
        if (!same || (!first && strtoll(line, NULL, 10) >= epoch) || !strchr(line, '\n'))
            break;
        end = ftell(log->file);
        first = false;
    }
    free(line);
    free(header);
    if (!same)
        return mgpu_fail(MGPU_EINVALID, "%s: its columns are not those of this run; name another",
                         log->path);
    if (ftruncate(fileno(log->file), end) < 0 || fseek(log->file, end, SEEK_SET) < 0)
        return fail(log, "write");
    return 0;
}

static int flush(struct mgpu_csv_log *log)
{
    return fflush(log->file) ? fail(log, "write") : 0;
}

static int start(struct mgpu_csv_log *log, const struct mgpu_logs *logs, bool resume, int64_t epoch)
{
    if (resume)
        log->file = fopen(log->path, "r+e");
    bool goes_on = log->file != NULL;
    if (!goes_on)
        log->file = fopen(log->path, "we");
    if (!log->file)
        return fail(log, "write");
    if (goes_on)
        MGPU_TRY(keep_lines(log, logs, epoch));
    if (ftell(log->file) == 0)
        print_header(log->file, log, logs);
    return flush(log);
}

int mgpu_csv_log_open(struct mgpu_csv_log **out, const char *path, const struct mgpu_logs *logs,
                      bool resume, int64_t epoch)
{
    struct mgpu_csv_log *log = mgpu_xcalloc(1, sizeof *log);
    log->path = mgpu_xstrdup(path);
    log->order = mgpu_xcalloc((size_t)logs->count, sizeof *log->order);
    sort(log->order, logs);
    int rc = start(log, logs, resume, epoch);
    if (rc < 0)
        mgpu_csv_log_close(log);
    *out = rc < 0 ? NULL : log;
    return rc;
}

int mgpu_csv_log_epoch(struct mgpu_csv_log *log, int64_t epoch, const struct mgpu_logs *logs)
{
    fprintf(log->file, "%lld", (long long)epoch);
    for (int i = 0; i < logs->count; i++)
        fprintf(log->file, ",%.17g", logs->value[log->order[i]]);
    fputc('\n', log->file);
    return flush(log);
}

void mgpu_csv_log_close(struct mgpu_csv_log *log)
{
    if (!log)
        return;
    if (log->file)
        fclose(log->file);
    free(log->path);
    free(log->order);
    free(log);
}
