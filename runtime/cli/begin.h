/* What every program does first. */
#ifndef MGPU_CLI_BEGIN_H
#define MGPU_CLI_BEGIN_H

/* A file that is opened never gets the number of a stdin, stdout or stderr that was closed, and one
 * that may not grow is an error like a full disk. A line on stdout is there when it is whole, also
 * for who reads from a pipe. */
void mgpu_program_begin(void);

#endif
