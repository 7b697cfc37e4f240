/* Between mgpu_h5_reader_* and the process that reads for it: a request and two texts (path,
 * attribute) go one way, a reply and its contents come back. */
#ifndef MGPU_DATA_H5_SERVER_H
#define MGPU_DATA_H5_SERVER_H

#include <stddef.h>
#include <stdint.h>

enum mgpu_h5_job {
    MGPU_H5_LIST,     /* paths, each with its final zero */
    MGPU_H5_HAS,      /* code 1 or 0 */
    MGPU_H5_STRINGS,  /* code 1 and the strings, each with its final zero; or code 0 */
    MGPU_H5_DESCRIBE, /* struct mgpu_h5_shape */
    MGPU_H5_READ,     /* elements */
};

struct mgpu_h5_request {
    int32_t job, axis;
    int64_t first, rows;
    uint32_t path, attribute; /* bytes of the texts that follow */
};

struct mgpu_h5_reply {
    int32_t code;  /* below 0: an error, whose text follows */
    uint64_t size; /* bytes that follow */
};

/* What a server is to open. */
struct mgpu_h5_source {
    const char *path;  /* NULL: it is in memory */
    const void *bytes; /* `size` of them */
    size_t size;
};

/* Opens the file, replies whether that went well, and then serves until the other end of the socket
 * is closed. Ends the process. The lock of h5.h is held. */
_Noreturn void mgpu_h5_serve(int socket, const struct mgpu_h5_source *source);

#endif
