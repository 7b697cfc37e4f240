#include "runtime/data/h5_reader.h"

#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "runtime/data/h5.h"
#include "runtime/data/h5_server.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Contents of a list may be as long; elements are as many as were asked for. */
enum { LIST_MOST = 64 << 20, ERROR_MOST = 4096 };

struct mgpu_h5_reader {
    pid_t server;
    int socket; /* -1: the server is dead */
};

/* ---- The server's end ------------------------------------------------------------------------ */

static int wait_for(pid_t server)
{
    int status = 0;
    while (waitpid(server, &status, 0) < 0 && errno == EINTR)
        ;
    return status;
}

/* The server is gone, or what it says makes no sense. */
static int lost(struct mgpu_h5_reader *r)
{
    int status = 0;
    if (r->socket >= 0) {
        close(r->socket);
        r->socket = -1;
        kill(r->server, SIGKILL); /* does nothing to one that is dead */
        status = wait_for(r->server);
    }
    bool late = WIFSIGNALED(status) && WTERMSIG(status) == SIGPROF;
    return mgpu_fail(MGPU_EINVALID, "the file is damaged inside: the HDF5 library %s",
                     late ? "does not come to an end with it" : "crashes on it");
}

/* ---- Messages -------------------------------------------------------------------------------- */

static bool send_part(const struct mgpu_h5_reader *r, const void *from, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = send(r->socket, (const char *)from + done, size - done, MSG_NOSIGNAL);
        if (n < 0 && errno != EINTR)
            return false;
        done += n > 0 ? (size_t)n : 0;
    }
    return true;
}

static bool receive(const struct mgpu_h5_reader *r, void *to, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = recv(r->socket, (char *)to + done, size - done, 0);
        if (n == 0 || (n < 0 && errno != EINTR))
            return false;
        done += n > 0 ? (size_t)n : 0;
    }
    return true;
}

static int receive_error(struct mgpu_h5_reader *r, const struct mgpu_h5_reply *reply)
{
    char text[ERROR_MOST];
    if (reply->size >= sizeof text || !receive(r, text, reply->size))
        return lost(r);
    text[reply->size] = 0;
    return mgpu_fail_text(reply->code, text);
}

/* The code of the reply, whose contents are to be received next. */
static int ask(struct mgpu_h5_reader *r, struct mgpu_h5_request *q, const char *path,
               const char *attribute, uint64_t *size)
{
    struct mgpu_h5_reply reply;
    q->path = (uint32_t)strlen(path);
    q->attribute = (uint32_t)strlen(attribute);
    if (r->socket < 0 || !send_part(r, q, sizeof *q) || !send_part(r, path, q->path) ||
        !send_part(r, attribute, q->attribute) || !receive(r, &reply, sizeof reply))
        return lost(r);
    *size = reply.size;
    return reply.code < 0 ? receive_error(r, &reply) : reply.code;
}

/* Contents of a known size. */
static int receive_all(struct mgpu_h5_reader *r, int code, uint64_t size, void *to, size_t wanted)
{
    if (code < 0)
        return code;
    return size == wanted && receive(r, to, wanted) ? code : lost(r);
}

/* Contents that are texts, each with its final zero. */
static int receive_list(struct mgpu_h5_reader *r, int code, uint64_t size,
                        struct mgpu_name_list *out)
{
    if (code < 0)
        return code;
    if (size > LIST_MOST)
        return lost(r);
    char *texts = mgpu_xcalloc(size + 1, 1);
    bool whole = receive(r, texts, size) && (size == 0 || texts[size - 1] == 0);
    for (size_t at = 0; whole && at < size; at += strlen(texts + at) + 1)
        mgpu_name_list_add(out, texts + at);
    free(texts);
    return whole ? code : lost(r);
}

/* ---- Opening --------------------------------------------------------------------------------- */

/* The lock, so that HDF5 is at rest when its state is copied. */
static int fork_server(struct mgpu_h5_reader *r, const struct mgpu_h5_source *source)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return mgpu_fail(MGPU_EIO, "no process to read HDF5: %s", strerror(errno));
    mgpu_h5_lock();
    r->server = fork();
    if (r->server == 0)
        mgpu_h5_serve(pair[1], source);
    int cause = errno;
    mgpu_h5_unlock();
    close(pair[1]);
    r->socket = pair[0];
    if (r->server > 0)
        return 0;
    close(pair[0]);
    return mgpu_fail(MGPU_EIO, "no process to read HDF5: %s", strerror(cause));
}

static int open_source(struct mgpu_h5_reader **out, const struct mgpu_h5_source *source)
{
    struct mgpu_h5_reader *r = mgpu_xcalloc(1, sizeof *r);
    struct mgpu_h5_reply reply;
    int rc = fork_server(r, source);
    if (rc < 0)
        r->socket = -1;
    else if (!receive(r, &reply, sizeof reply))
        rc = lost(r);
    else if (reply.code < 0)
        rc = receive_error(r, &reply);
    if (rc < 0) {
        mgpu_h5_reader_close(r);
        r = NULL;
    }
    *out = r;
    return rc;
}

int mgpu_h5_reader_open(struct mgpu_h5_reader **out, const char *path)
{
    const struct mgpu_h5_source source = {.path = path};
    return mgpu_prefix(open_source(out, &source), "%s", path);
}

int mgpu_h5_reader_open_memory(struct mgpu_h5_reader **out, const void *bytes, size_t size)
{
    const struct mgpu_h5_source source = {.bytes = bytes, .size = size};
    return open_source(out, &source);
}

void mgpu_h5_reader_close(struct mgpu_h5_reader *r)
{
    if (!r)
        return;
    if (r->socket >= 0) {
        close(r->socket);
        kill(r->server, SIGKILL);
        wait_for(r->server);
    }
    free(r);
}

/* ---- Contents -------------------------------------------------------------------------------- */

int mgpu_h5_reader_list(struct mgpu_name_list *out, struct mgpu_h5_reader *r)
{
    struct mgpu_h5_request q = {.job = MGPU_H5_LIST};
    uint64_t size;
    int code = ask(r, &q, "", "", &size);
    return receive_list(r, code, size, out);
}

int mgpu_h5_reader_has(struct mgpu_h5_reader *r, const char *path)
{
    struct mgpu_h5_request q = {.job = MGPU_H5_HAS};
    uint64_t size;
    int code = ask(r, &q, path, "", &size);
    return receive_all(r, code, size, NULL, 0);
}

int mgpu_h5_reader_strings(struct mgpu_name_list *out, struct mgpu_h5_reader *r, const char *object,
                           const char *attribute)
{
    struct mgpu_h5_request q = {.job = MGPU_H5_STRINGS};
    uint64_t size;
    int code = ask(r, &q, object, attribute, &size);
    return receive_list(r, code, size, out);
}

/* What a damaged server may say is checked like what a file says. */
static bool makes_sense(const struct mgpu_h5_shape *s)
{
    bool fine = s->rank >= 0 && s->rank <= MGPU_MAX_RANK && mgpu_dtype_size(s->type) > 0;
    for (int i = 0; fine && i < s->rank; i++)
        fine = s->dims[i] >= 0 && s->chunk[i] >= 0;
    return fine;
}

int mgpu_h5_reader_describe(struct mgpu_h5_shape *out, struct mgpu_h5_reader *r, const char *path)
{
    struct mgpu_h5_request q = {.job = MGPU_H5_DESCRIBE};
    uint64_t size;
    int code = ask(r, &q, path, "", &size);
    MGPU_TRY(receive_all(r, code, size, out, sizeof *out));
    return makes_sense(out) ? 0 : lost(r);
}

int mgpu_h5_reader_read(struct mgpu_h5_reader *r, const char *path, int axis, int64_t first,
                        int64_t rows, void *to, size_t bytes)
{
    struct mgpu_h5_request q = {.job = MGPU_H5_READ, .axis = axis, .first = first, .rows = rows};
    uint64_t size;
    int code = ask(r, &q, path, "", &size);
    return receive_all(r, code, size, to, bytes);
}
