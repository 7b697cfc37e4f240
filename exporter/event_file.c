#include "exporter/event_file.h"

#include "exporter/tensorboard.pb-c.h"
#include "runtime/base/memory.h"
#include "runtime/base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { TAG = 1000, RECORD = TAG + 128 };

struct mgpu_event_file {
    int fd;
    char *path;
};

/* Bit by bit; reflected polynomial. */
uint32_t mgpu_crc32c(const void *data, uint64_t size)
{
    uint32_t crc = ~0u;
    for (uint64_t i = 0; i < size; i++) {
        crc ^= ((const uint8_t *)data)[i];
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static uint32_t masked(const void *data, uint64_t size)
{
    uint32_t crc = mgpu_crc32c(data, size);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void put(uint8_t *to, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        to[i] = (uint8_t)(value >> 8 * i);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int fail(const struct mgpu_event_file *f)
{
    return mgpu_fail(MGPU_EIO, "%s: cannot write: %s", f->path, strerror(errno));
}

/* One write for a record: a reader sees all of it or nothing. */
static int add(struct mgpu_event_file *f, Tensorboard__Event *event)
{
    uint8_t record[RECORD];
    event->has_wall_time = 1;
    event->wall_time = now();
    size_t n = tensorboard__event__get_packed_size(event);
    put(record, n, 8);
    put(record + 8, masked(record, 8), 4);
    tensorboard__event__pack(event, record + 12);
    put(record + 12 + n, masked(record + 12, n), 4);
    ssize_t all = (ssize_t)n + 16, done = write(f->fd, record, (size_t)all);
    if (done >= 0 && done < all)
        errno = ENOSPC;
    return done == all ? 0 : fail(f);
}

int mgpu_event_file_scalar(struct mgpu_event_file *f, const char *tag, int64_t step, double value)
{
    char cut[TAG + 1];
    snprintf(cut, sizeof cut, "%s", tag);
    Tensorboard__Summary__Value scalar = TENSORBOARD__SUMMARY__VALUE__INIT, *list = &scalar;
    scalar.tag = cut;
    scalar.has_simple_value = 1;
    scalar.simple_value = (float)value;
    Tensorboard__Summary summary = TENSORBOARD__SUMMARY__INIT;
    summary.n_value = 1;
    summary.value = &list;
    Tensorboard__Event event = TENSORBOARD__EVENT__INIT;
    event.has_step = 1;
    event.step = step;
    event.summary = &summary;
    return add(f, &event);
}

/* The first event says how the file is to be read. */
static int add_head(struct mgpu_event_file *f, int64_t from)
{
    Tensorboard__Event version = TENSORBOARD__EVENT__INIT, restart = TENSORBOARD__EVENT__INIT;
    version.file_version = (char *)"brain.Event:2";
    MGPU_TRY(add(f, &version));
    if (from <= 0)
        return 0;
    Tensorboard__SessionLog log = TENSORBOARD__SESSION_LOG__INIT;
    log.has_status = 1;
    log.status = TENSORBOARD__SESSION_LOG__SESSION_STATUS__START;
    restart.has_step = 1;
    restart.step = from;
    restart.session_log = &log;
    return add(f, &restart);
}

/* One that is there already is fine. */
static int make_folder(const char *path)
{
    return mkdir(path, 0777) == 0 || errno == EEXIST
               ? 0
               : mgpu_fail(MGPU_EIO, "%s: cannot make the folder: %s", path, strerror(errno));
}

int mgpu_event_file_check(const char *folder, const char *run)
{
    char path[4096], inside[4100], *at = path;
    snprintf(path, sizeof path, "%s/%s", folder, run);
    for (int missing = 0;; missing++, at = dirname(at)) {
        snprintf(inside, sizeof inside, "%s/.", at);
        if (faccessat(AT_FDCWD, inside, W_OK | X_OK, AT_EACCESS) == 0)
            return 0;
        if (errno != ENOENT || missing == 2) /* two are made: `folder` and `run` */
            return mgpu_fail(MGPU_EIO, "%s: cannot write: %s", folder, strerror(errno));
    }
}

static int open_new(struct mgpu_event_file *f, const char *folder, const char *run)
{
    static atomic_int number;
    char host[256] = "", path[4096];
    gethostname(host, sizeof host - 1);
    snprintf(path, sizeof path, "%s/%s", folder, run);
    MGPU_TRY(make_folder(folder));
    MGPU_TRY(make_folder(path));
    snprintf(path, sizeof path, "%s/%s/events.out.tfevents.%010lld.%s.%d.%d.v2", folder, run,
             (long long)now(), host, (int)getpid(), atomic_fetch_add(&number, 1));
    f->path = mgpu_xstrdup(path);
    f->fd = open(f->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    return f->fd < 0 ? fail(f) : 0;
}

int mgpu_event_file_open(struct mgpu_event_file **out, const char *folder, const char *run,
                         int64_t from)
{
    struct mgpu_event_file *f = mgpu_xcalloc(1, sizeof *f);
    f->fd = -1;
    int rc = open_new(f, folder, run);
    if (rc == 0)
        rc = add_head(f, from);
    if (rc < 0)
        mgpu_event_file_close(f);
    *out = rc < 0 ? NULL : f;
    return rc;
}

void mgpu_event_file_close(struct mgpu_event_file *f)
{
    if (!f)
        return;
    if (f->fd >= 0)
        close(f->fd);
    free(f->path);
    free(f);
}
