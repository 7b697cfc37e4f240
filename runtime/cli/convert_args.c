#include "runtime/cli/convert_args.h"

#include "runtime/base/status.h"

#include <string.h>

#define OPTION(field) offsetof(struct mgpu_convert_command, options.field)
#define FIELD(field)  offsetof(struct mgpu_convert_command, field)
#define TEXT(n, where, v, h)                                                                       \
    {                                                                                              \
        .name = n, .kind = MGPU_ARG_TEXT, .offset = where, .value = v, .help = h                   \
    }
#define FLAG(n, where, h)                                                                          \
    {                                                                                              \
        .name = n, .kind = MGPU_ARG_FLAG, .offset = where, .help = h                               \
    }
#define HEADING(text)                                                                              \
    {                                                                                              \
        .name = text, .kind = MGPU_ARG_HEADING                                                     \
    }

const struct mgpu_arg mgpu_convert_args[] = {
    HEADING("Files"),
    TEXT("model", OPTION(model), "MODEL.onnx",
         "the graph, where IN or OUT holds only weights; not changed"),
    TEXT("to", OPTION(to), "KIND",
         "onnx, keras-h5, keras3, safetensors, npz (default: by OUT's name)"),
    TEXT("names", OPTION(names), "WHOSE",
         "source: the framework's names and layouts (default); onnx: the initializers'"),
    TEXT("like", OPTION(like), "FILE",
         "OUT gets layers, names and order of this file of the same model"),
    HEADING("Which tensor is which"),
    TEXT("map", OPTION(map), "FILE", "rules, one a line: theirs -> ours ('*' on both sides)"),
    FLAG("by-order", OPTION(by_order), "what names leave open goes by the order of layers"),
    TEXT("unwrap", FIELD(unwrap), "MODE",
         "auto (default): take off what parallel wrappers put around names; off"),
    HEADING("What is allowed"),
    FLAG("partial", OPTION(partial), "tensors that are missing, or that have no place"),
    FLAG("skip-mismatch", OPTION(skip_mismatch), "leave out tensors of another shape"),
    FLAG("allow-nonfinite", OPTION(allow_nonfinite), "NaN and infinity"),
    FLAG("optimizer-state", OPTION(optimizer_state),
         "carry the optimizer's tensors (to .weights.h5, safetensors or npz)"),
    HEADING("Results"),
    FLAG("list", FIELD(list), "what is in each FILE"),
    FLAG("compare", FIELD(compare), "two files, tensor by tensor; exit status 1 if they differ"),
    FLAG("verify", OPTION(verify), "read OUT back and compare all weights (with a model)"),
    FLAG("json", FIELD(json), "one JSON object as the last line"),
    FLAG("quiet", FIELD(quiet), "no talk on stderr"),
    FLAG("help", FIELD(help), "this text"),
    FLAG("version", FIELD(version), "print the version"),
    {.name = NULL},
};

static int check_files(const struct mgpu_convert_command *c)
{
    if (c->list && c->compare)
        return mgpu_fail(MGPU_EUSAGE, "--list and --compare are two jobs");
    if (c->list)
        return c->files ? 0 : mgpu_fail(MGPU_EUSAGE, "--list wants a file");
    if (c->files == 2)
        return 0;
    return mgpu_fail(MGPU_EUSAGE, "%s are wanted, not %d file%s",
                     c->compare ? "--compare A B: two files" : "IN and OUT", c->files,
                     c->files == 1 ? "" : "s");
}

static int check_unwrap(struct mgpu_convert_command *c)
{
    if (!c->unwrap || !strcmp(c->unwrap, "auto"))
        return 0;
    if (strcmp(c->unwrap, "off"))
        return mgpu_fail(MGPU_EUSAGE, "--unwrap %s: auto or off", c->unwrap);
    c->options.keep_wrapper = true;
    return 0;
}

int mgpu_convert_parse(struct mgpu_convert_command *c, int argc, char **argv)
{
    MGPU_TRY(mgpu_args_parse(mgpu_convert_args, c, argc, argv, &c->file, &c->files));
    if (c->help || c->version)
        return 0;
    MGPU_TRY(check_unwrap(c));
    return check_files(c);
}

void mgpu_convert_help(FILE *to)
{
    fputs("mgpu-convert IN OUT [options]\n"
          "mgpu-convert --list FILE...\n"
          "mgpu-convert --compare A B [options]\n"
          "Weights between ONNX, Keras HDF5 (old and new; .keras is read), safetensors and npz.\n"
          "What IN is, its content says. Exit status: 0 done, 1 failed, 2 wrong usage.\n"
          "\n"
          "  mgpu-convert weights.h5 tuned.onnx --model model.onnx\n"
          "  mgpu-convert parallel.weights.h5 plain.weights.h5 --model model.onnx\n"
          "  mgpu-convert tuned.onnx weights.safetensors\n"
          "  mgpu-convert --compare weights.h5 tuned.onnx\n",
          to);
    mgpu_args_help(mgpu_convert_args, to);
}
