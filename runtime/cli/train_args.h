/* The command line of mgpu-train. */
#ifndef MGPU_CLI_TRAIN_ARGS_H
#define MGPU_CLI_TRAIN_ARGS_H

#include "runtime/cli/args.h"
#include "runtime/mgpu.h"

struct mgpu_train_command {
    struct mgpu_options options;
    int argc; /* the command line as it came */
    char **argv;
    const char *model;
    const char *const *save;
    const char *predict;
    const char *profile, *html;
    const char *help;        /* topic; "" for all; NULL: not asked */
    int64_t check_gradients; /* elements a weight; 0: not asked */
    int64_t deterministic;
    bool version, quiet, json, log_steps, evaluate, report, dry_run;
};

extern const struct mgpu_arg mgpu_train_table[];

/* Parses and checks what can be checked without files. */
int mgpu_train_parse(struct mgpu_train_command *command, int argc, char **argv);
void mgpu_train_help(FILE *to);

#endif
