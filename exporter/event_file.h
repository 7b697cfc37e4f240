/* Event files for TensorBoard: scalars by tag and step.
 *
 * A file is a row of records: length (8 bytes, little-endian), masked CRC-32C of the length, an
 * Event message (tensorboard.proto), masked CRC-32C of the message
 * (tensorflow/core/lib/io/record_writer; CRC-32C: RFC 3720, appendix B.4; mask: rotated right by
 * 15, plus 0xa282ead8). It only grows, so it is readable while a run writes it.
 */
#ifndef MGPU_EXPORTER_EVENT_FILE_H
#define MGPU_EXPORTER_EVENT_FILE_H

#include <stdint.h>

struct mgpu_event_file;

/* A new file in `folder`/`run` (made where missing), called as TensorBoard expects. `from` > 0: a
 * run that goes on; what other files of the folder hold from that step on counts no more. */
int mgpu_event_file_open(struct mgpu_event_file **out, const char *folder, const char *run,
                         int64_t from);

/* Whether that will work, as far as can be known before; makes nothing. */
int mgpu_event_file_check(const char *folder, const char *run);

/* In the file when it returns. A tag longer than 1000 bytes is cut. */
int mgpu_event_file_scalar(struct mgpu_event_file *file, const char *tag, int64_t step,
                           double value);

void mgpu_event_file_close(struct mgpu_event_file *file); /* NULL is fine */

uint32_t mgpu_crc32c(const void *data, uint64_t size);

#endif
