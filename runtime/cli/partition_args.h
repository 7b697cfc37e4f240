/* The command line of mgpu-partition. */
#ifndef MGPU_CLI_PARTITION_ARGS_H
#define MGPU_CLI_PARTITION_ARGS_H

#include "runtime/cli/args.h"
#include "runtime/mgpu.h"

struct mgpu_partition_command {
    struct mgpu_options options;
    struct mgpu_partition_options partition;
    const char *model;
    const char *plan; /* "-": stdout; NULL: not asked */
    const char *timeline, *html, *annotate, *verify;
    const char *help; /* topic; "" for all; NULL: not asked */
    int64_t top;
    bool list_ops, list_devices, json, quiet, version;
};

extern const struct mgpu_arg mgpu_partition_args[];

/* Parses and checks what can be checked without files. */
int mgpu_partition_parse(struct mgpu_partition_command *command, int argc, char **argv);
void mgpu_partition_help(FILE *to);

#endif
