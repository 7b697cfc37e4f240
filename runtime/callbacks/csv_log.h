/* --log-csv: a line an epoch (keras.callbacks.CSVLogger): a header, then `epoch` (from 0) and the
 * logs by name in alphabetical order. A run that is resumed goes on in its file, behind the lines
 * of the epochs that it keeps. */
#ifndef MGPU_CALLBACKS_CSV_LOG_H
#define MGPU_CALLBACKS_CSV_LOG_H

#include "runtime/base/memory.h"
#include "runtime/callbacks/logs.h"

#include <stdbool.h>

struct mgpu_csv_log;

/* `resume`: keeps the file's lines of epochs before `epoch`; else the file is made anew. A file to
 * go on in that has other columns is an error. */
int mgpu_csv_log_open(struct mgpu_csv_log **out, const char *path, const struct mgpu_logs *logs,
                      bool resume, int64_t epoch);

/* The line is in the file when this returns. */
int mgpu_csv_log_epoch(struct mgpu_csv_log *log, int64_t epoch, const struct mgpu_logs *logs);

void mgpu_csv_log_close(struct mgpu_csv_log *log); /* NULL is fine */

#endif
