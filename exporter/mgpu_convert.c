/* mgpu-convert: the command line over mgpu.h. Results on stdout, talk on stderr. */
#include "runtime/base/status.h"
#include "runtime/cli/begin.h"
#include "runtime/cli/convert_args.h"
#include "runtime/mgpu.h"

#include <stdlib.h>

static void note(void *context, const char *text)
{
    (void)context;
    fprintf(stderr, "note: %s\n", text);
}

static int fail(int code)
{
    fprintf(stderr, "mgpu-convert: %s\n", mgpu_error());
    return code == MGPU_EUSAGE ? 2 : 1;
}

static int list(const struct mgpu_convert_command *c)
{
    int rc = 0;
    for (int i = 0; i < c->files && rc == 0; i++)
        rc = mgpu_weights_list(c->file[i], c->json, stdout);
    return rc < 0 ? fail(rc) : 0;
}

static int compare(const struct mgpu_convert_command *c)
{
    int differ;
    int rc = mgpu_weights_compare(c->file[0], c->file[1], &c->options, c->json, stdout, &differ);
    return rc < 0 ? fail(rc) : differ ? 1 : 0;
}

static int convert(const struct mgpu_convert_command *c)
{
    int rc = mgpu_weights_convert(c->file[0], c->file[1], &c->options, c->json, stdout);
    if (rc == 0 && !c->quiet)
        fprintf(stderr, "saved %s\n", c->file[1]);
    return rc < 0 ? fail(rc) : 0;
}

static int job(const struct mgpu_convert_command *c)
{
    if (c->help)
        mgpu_convert_help(stdout);
    else if (c->version)
        printf("mgpu-convert %s\n", MGPU_VERSION);
    if (c->help || c->version)
        return 0;
    if (!c->quiet)
        mgpu_set_note(note, NULL);
    return c->list ? list(c) : c->compare ? compare(c) : convert(c);
}

int main(int argc, char **argv)
{
    struct mgpu_convert_command c = {0};
    mgpu_program_begin();
    int rc = mgpu_convert_parse(&c, argc, argv);
    int status = rc < 0 ? fail(rc) : job(&c);
    if ((fflush(stdout) || ferror(stdout)) && status == 0)
        status = fail(mgpu_fail(MGPU_EIO, "standard output cannot be written"));
    free(c.file);
    mgpu_args_free(mgpu_convert_args, &c);
    return status;
}
