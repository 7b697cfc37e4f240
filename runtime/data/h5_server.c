/* The process that reads HDF5 files. Everything here runs in the child. */
#include "runtime/data/h5_server.h"

#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "runtime/data/h5.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum {
    MEMORY = 64 << 20,         /* beside the contents that are asked for */
    BYTES_A_SECOND = 16 << 20, /* that any machine unpacks */
    COPIES = 3, /* of a chunk: as stored, before and after a filter; of a file in memory */
    TEXT_MOST = 1 << 20,
};

struct server {
    int socket;
    hid_t file;
    uint64_t own; /* bytes of memory before the file was opened */
    char *path, *attribute;
    hid_t set; /* the data set that was used last, or -1 */
    char *set_path;
    struct mgpu_h5_shape shape;
    hid_t memory; /* the type it is read into */
};

/* Contents of a reply; they grow. */
struct answer {
    char *bytes;
    size_t size, room;
};

/* ---- Bounds ---------------------------------------------------------------------------------- */

static uint64_t own_memory(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%*u %*u %*u %*u %*u %lu", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* For the job that follows; the process is killed when it takes more time. */
static void bound(const struct server *s, uint64_t bytes)
{
    struct itimerval time = {.it_value.tv_sec = 1 + (time_t)(bytes / BYTES_A_SECOND)};
    struct rlimit memory;
    setitimer(ITIMER_PROF, &time, NULL);
    if (!s->own || getrlimit(RLIMIT_DATA, &memory) < 0)
        return;
    uint64_t most = s->own + MEMORY + bytes;
    memory.rlim_cur = most < memory.rlim_max ? most : memory.rlim_max;
    setrlimit(RLIMIT_DATA, &memory);
}

/* A process that was forked from any program: only the socket is left of its files, what ends the
 * program reaches us as the end of the socket, and a crash is silent. */
static void settle_process(int socket)
{
    static const int to_the_program[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE};
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGPROF};
    struct rlimit none = {0, 0};
    sigset_t empty;
    for (size_t i = 0; i < sizeof to_the_program / sizeof *to_the_program; i++)
        signal(to_the_program[i], SIG_IGN);
    for (size_t i = 0; i < sizeof crashes / sizeof *crashes; i++)
        signal(crashes[i], SIG_DFL);
    sigemptyset(&empty);
    sigprocmask(SIG_SETMASK, &empty, NULL);
    setrlimit(RLIMIT_CORE, &none);
    if (socket > 0)
        close_range(0, (unsigned)socket - 1, 0);
    close_range((unsigned)socket + 1, ~0u, 0);
    for (int fd = 0; fd < 3; fd++)
        open("/dev/null", O_RDWR);
}

/* ---- The socket ------------------------------------------------------------------------------ */

static void receive(const struct server *s, void *to, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = recv(s->socket, (char *)to + done, size - done, 0);
        if (n <= 0 && !(n < 0 && errno == EINTR))
            _exit(0);
        done += n > 0 ? (size_t)n : 0;
    }
}

static void send_all(const struct server *s, const void *from, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = send(s->socket, (const char *)from + done, size - done, 0);
        if (n < 0 && errno != EINTR)
            _exit(0);
        done += n > 0 ? (size_t)n : 0;
    }
}

static void reply(const struct server *s, int code, const struct answer *a)
{
    const char *from = code < 0 ? mgpu_error() : a->bytes;
    struct mgpu_h5_reply r = {code, code < 0 ? strlen(from) : a->size};
    send_all(s, &r, sizeof r);
    send_all(s, from, r.size);
}

static void reserve(struct answer *a, size_t size)
{
    if (size > a->room) {
        a->room = 2 * a->size + size;
        a->bytes = mgpu_xrealloc(a->bytes, a->room, 1);
    }
    a->size = size;
}

static void append(struct answer *a, const char *text)
{
    size_t at = a->size, n = strlen(text) + 1;
    reserve(a, at + n);
    memcpy(a->bytes + at, text, n);
}

/* ---- Jobs ------------------------------------------------------------------------------------ */

static int add_path(void *context, const char *name)
{
    append(context, name);
    return 0;
}

static int find_strings(const struct server *s, struct answer *a)
{
    hid_t object;
    char **list = NULL;
    int count = 0;
    MGPU_TRY(mgpu_h5_open_object(&object, s->file, s->path));
    int rc = H5Aexists(object, s->attribute) > 0;
    if (rc)
        MGPU_TRY(mgpu_h5_read_strings(&list, &count, object, s->attribute));
    H5Oclose(object);
    for (int i = 0; i < count; i++) {
        append(a, list[i]);
        free(list[i]);
    }
    free(list);
    return rc;
}

static void forget_set(struct server *s)
{
    if (s->set < 0)
        return;
    H5Tclose(s->memory);
    H5Dclose(s->set);
    s->set = -1;
}

/* Opens the data set of the request, if it is not open. */
static int open_set(struct server *s)
{
    if (s->set >= 0 && !strcmp(s->path, s->set_path))
        return 0;
    forget_set(s);
    hid_t set;
    MGPU_TRY(mgpu_h5_open_dataset(&set, s->file, s->path));
    int rc = mgpu_h5_describe(&s->shape, &s->memory, set);
    if (rc < 0)
        H5Dclose(set);
    else
        s->set = set;
    snprintf(s->set_path, TEXT_MOST, "%s", s->path);
    return rc;
}

static int describe(struct server *s, struct answer *a)
{
    MGPU_TRY(open_set(s));
    reserve(a, sizeof s->shape);
    memcpy(a->bytes, &s->shape, sizeof s->shape);
    return 0;
}

/* Dimensions of the rows asked for, and their bytes. */
static int count_rows(const struct server *s, const struct mgpu_h5_request *r, int64_t *dims,
                      uint64_t *bytes)
{
    int64_t count;
    memcpy(dims, s->shape.dims, sizeof s->shape.dims);
    if (r->axis >= 0) {
        if (r->axis >= s->shape.rank || r->first < 0 || r->rows < 0 ||
            r->rows > dims[r->axis] - r->first)
            return mgpu_fail(MGPU_EINTERNAL, "there are no such rows");
        dims[r->axis] = r->rows;
    }
    MGPU_TRY(mgpu_count(&count, s->shape.type, s->shape.rank, dims));
    *bytes = (uint64_t)count * mgpu_dtype_size(s->shape.type);
    return 0;
}

static int read_rows(struct server *s, const struct mgpu_h5_request *r, struct answer *a)
{
    int64_t dims[MGPU_MAX_RANK];
    uint64_t bytes = 0;
    MGPU_TRY(open_set(s));
    MGPU_TRY(count_rows(s, r, dims, &bytes));
    bound(s, bytes + COPIES * (uint64_t)mgpu_h5_chunk_bytes(s->set));
    reserve(a, bytes);
    if (bytes == 0)
        return 0;
    int64_t first = r->axis < 0 ? 0 : r->first;
    return mgpu_h5_read_rows(s->set, s->memory, s->shape.rank, dims, r->axis, first, a->bytes);
}

static int do_job(struct server *s, const struct mgpu_h5_request *r, struct answer *a)
{
    switch (r->job) {
    case MGPU_H5_LIST:
        return mgpu_h5_walk(s->file, add_path, a);
    case MGPU_H5_HAS:
        return H5Lexists(s->file, s->path, H5P_DEFAULT) > 0;
    case MGPU_H5_STRINGS:
        return find_strings(s, a);
    case MGPU_H5_DESCRIBE:
        return describe(s, a);
    case MGPU_H5_READ:
        return read_rows(s, r, a);
    }
    return mgpu_fail(MGPU_EINTERNAL, "no such job");
}

/* ---- The process ----------------------------------------------------------------------------- */

static void next_request(const struct server *s, struct mgpu_h5_request *r)
{
    receive(s, r, sizeof *r);
    if (r->path >= TEXT_MOST || r->attribute >= TEXT_MOST)
        _exit(1);
    receive(s, s->path, r->path);
    receive(s, s->attribute, r->attribute);
    s->path[r->path] = s->attribute[r->attribute] = 0;
}

static int open_source(struct server *s, const struct mgpu_h5_source *source)
{
    bound(s, 0);
    return source->path ? mgpu_h5_open_file(&s->file, source->path)
                        : mgpu_h5_open_memory(&s->file, source->bytes, source->size);
}

void mgpu_h5_serve(int socket, const struct mgpu_h5_source *source)
{
    struct server s = {.socket = socket, .set = -1, .own = own_memory() + COPIES * source->size};
    struct answer a = {0};
    struct mgpu_h5_request r;
    settle_process(socket);
    s.path = mgpu_xcalloc(TEXT_MOST, 1);
    s.attribute = mgpu_xcalloc(TEXT_MOST, 1);
    s.set_path = mgpu_xcalloc(TEXT_MOST, 1);
    int rc = open_source(&s, source);
    for (;;) {
        reply(&s, rc, &a);
        free(a.bytes);
        a = (struct answer){0};
        next_request(&s, &r);
        bound(&s, 0);
        rc = do_job(&s, &r, &a);
    }
}
