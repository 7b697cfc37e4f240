/* The command line of mgpu-convert. */
#ifndef MGPU_CLI_CONVERT_ARGS_H
#define MGPU_CLI_CONVERT_ARGS_H

#include "runtime/cli/args.h"
#include "runtime/mgpu.h"

struct mgpu_convert_command {
    struct mgpu_convert_options options;
    const char **file; /* what is no option */
    int files;
    const char *unwrap;
    bool help;
    bool version, quiet, json, list, compare;
};

extern const struct mgpu_arg mgpu_convert_args[];

/* Parses and checks what can be checked without files. */
int mgpu_convert_parse(struct mgpu_convert_command *command, int argc, char **argv);
void mgpu_convert_help(FILE *to);

#endif
