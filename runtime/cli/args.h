/* Command lines from a table: GNU long options, `--name value` or `--name=value`.
 *
 *     static const struct mgpu_arg table[] = {
 *         {.name = "batch", .kind = MGPU_ARG_INT, .offset = offsetof(struct command, batch),
 *          .low = 1, .high = 1e9, .value = "N", .help = "samples of one update"},
 *         {.name = NULL}};
 *     MGPU_TRY(mgpu_args_parse(table, &command, argc, argv, &files, &count));
 */
#ifndef MGPU_CLI_ARGS_H
#define MGPU_CLI_ARGS_H

#include <stddef.h>
#include <stdio.h>

enum mgpu_arg_kind {
    MGPU_ARG_HEADING, /* of the help: name is its text */
    MGPU_ARG_FLAG,    /* bool: true */
    MGPU_ARG_NO,      /* bool: false */
    MGPU_ARG_TEXT,    /* const char * */
    MGPU_ARG_LIST,    /* const char *const *: one more each time, ends with NULL */
    MGPU_ARG_INT,     /* int64_t */
    MGPU_ARG_INT32,   /* int */
    MGPU_ARG_DOUBLE,
    MGPU_ARG_MAYBE_INT,  /* int64_t; without a value: `otherwise` */
    MGPU_ARG_MAYBE_TEXT, /* const char *; without a value: "" */
};

struct mgpu_arg {
    const char *name;
    enum mgpu_arg_kind kind;
    size_t offset; /* of the field in the caller's struct */
    double low, high;
    int otherwise;
    const char *value; /* how the help calls the value */
    const char *help;
};

/* Fills the fields, each once but for lists and flags. What is no option goes to *rest (free()), as
 * does everything after `--`. Errors are MGPU_EUSAGE and name the option; an unknown one with the
 * nearest that is known. Lists belong to the caller (free() each). Texts point into argv. */
int mgpu_args_parse(const struct mgpu_arg *table, void *into, int argc, char **argv,
                    const char ***rest, int *count);

/* One line an option, under its headings. */
void mgpu_args_help(const struct mgpu_arg *table, FILE *to);

/* Frees the lists of a struct that was filled. */
void mgpu_args_free(const struct mgpu_arg *table, void *into);

#endif
