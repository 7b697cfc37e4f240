#include "runtime/cli/partition_args.h"

#include "runtime/base/memory.h"
#include "runtime/base/status.h"

#include <stdlib.h>
#include <string.h>

#define OPTION(field)    offsetof(struct mgpu_partition_command, options.field)
#define PARTITION(field) offsetof(struct mgpu_partition_command, partition.field)
#define FIELD(field)     offsetof(struct mgpu_partition_command, field)
#define TEXT(n, where, v, h)                                                                       \
    {                                                                                              \
        .name = n, .kind = MGPU_ARG_TEXT, .offset = where, .value = v, .help = h                   \
    }
#define LIST(n, where, v, h)                                                                       \
    {                                                                                              \
        .name = n, .kind = MGPU_ARG_LIST, .offset = where, .value = v, .help = h                   \
    }
#define FLAG(n, where, h)                                                                          \
    {                                                                                              \
        .name = n, .kind = MGPU_ARG_FLAG, .offset = where, .help = h                               \
    }
#define INT(n, where, l, v, h)                                                                     \
    {                                                                                              \
        .name = n, .kind = MGPU_ARG_INT, .offset = where, .low = l, .high = 1e12, .value = v,      \
        .help = h                                                                                  \
    }
#define HEADING(text)                                                                              \
    {                                                                                              \
        .name = text, .kind = MGPU_ARG_HEADING                                                     \
    }

const struct mgpu_arg mgpu_partition_args[] = {
    HEADING("Devices"),
    TEXT("devices", OPTION(devices), "SPEC",
         "cpu:0,cpu:1 here; 8xh100-nvlink, 2x8xa100-ib, 2xcpu, a topology file: anywhere"),
    TEXT("memory", PARTITION(memory), "SIZE", "of each device, e.g. 16GiB (default: its own)"),
    FLAG("list-devices", FIELD(list_devices), "devices here, and those known by name"),
    HEADING("What is trained"),
    INT("batch", OPTION(batch), 1, "N", "samples of one update, over all devices (default 32)"),
    LIST("dim", OPTION(dim), "NAME=VALUE", "size of a symbolic axis"),
    LIST("loss", OPTION(loss), "KIND[,...]",
         "as in mgpu-train (--help loss); default: mse of every output"),
    TEXT("optimizer", OPTION(optimizer), "KIND[,...]", "as in mgpu-train (default adam)"),
    TEXT("precision", OPTION(precision), "TYPE", "f64, f32 (default), tf32, bf16, f16"),
    LIST("freeze", OPTION(freeze), "PATTERN", "do not train these initializers (glob)"),
    LIST("train", OPTION(train), "PATTERN", "train only what matches (glob)"),
    LIST("tie", OPTION(tie), "A=B", "two initializers are one weight"),
    LIST("untie", OPTION(untie), "A", "train the copies or uses of A apart"),
    TEXT("batch-norm", OPTION(batch_norm), "MODE", "train, frozen, or sync"),
    LIST("dropout", OPTION(dropout), "RULE", "keep, off, P or NODE=P"),
    HEADING("Plan"),
    TEXT("strategy", OPTION(strategy), "NAME",
         "auto (default), single, data, branch, hybrid or stacked"),
    LIST("pin", PARTITION(pin), "PATTERN=DEVICE",
         "nodes by name or output (glob), or input:NAME: all that only this input reaches"),
    TEXT("merge", PARTITION(merge), "DEVICE", "where branches meet, and what follows"),
    TEXT("weights-on", PARTITION(weights_on), "DEVICE", "master weights and optimizer state"),
    FLAG("recompute", OPTION(recompute),
         "compute cheap activations again in backward (default: when nothing fits --memory)"),
    TEXT("profile", PARTITION(profile), "FILE", "measured costs"),
    FLAG("measure", PARTITION(measure),
         "time this model's operators and plans here (into --profile)"),
    HEADING("Results"),
    TEXT("plan", FIELD(plan), "[FILE]", "write the plan for mgpu-train --plan (no FILE: stdout)"),
    INT("top", FIELD(top), 0, "N", "strategies in the table besides the chosen one (default 5)"),
    TEXT("timeline", FIELD(timeline), "FILE", "the predicted step as a trace (Perfetto)"),
    TEXT("html", FIELD(html), "FILE", "graph and timeline as a page for a browser"),
    TEXT("annotate", FIELD(annotate), "FILE", "the model with ONNX multi-device annotations"),
    TEXT("verify", FIELD(verify), "PLAN.json", "run a plan here: predicted beside measured"),
    FLAG("list-ops", FIELD(list_ops),
         "the ONNX operators, and the core operators that they become"),
    FLAG("json", FIELD(json), "the plan as JSON on stdout, in place of the table"),
    FLAG("quiet", FIELD(quiet), "no talk on stderr, only warnings and errors"),
    {.name = "help",
     .kind = MGPU_ARG_MAYBE_TEXT,
     .offset = FIELD(help),
     .value = "TOPIC",
     .help = "this text; topics: loss, optimizer"},
    FLAG("version", FIELD(version), "print the version"),
    {.name = NULL},
};

void mgpu_partition_help(FILE *to)
{
    fputs(
        "usage: mgpu-partition MODEL.onnx --devices SPEC --batch N [options]\n"
        "Plans how the training of a model is spread over devices, here or elsewhere.\n\n"
        "  mgpu-partition two_tower.onnx --devices cpu:0,cpu:1 --batch 64 --plan plan.json\n"
        "  mgpu-train two_tower.onnx --plan plan.json --data ...\n"
        "  mgpu-partition resnet50.onnx --devices 8xh100-nvlink --batch 512 --html plan.html\n"
        "  mgpu-partition two_tower.onnx --devices cpu:0,cpu:1 --batch 64 \\\n"
        "      --pin 'input:a=cpu:0' --merge cpu:1\n"
        "  mgpu-partition cnn.onnx --devices cpu:0,cpu:1 --batch 64 --measure --profile here.json\n"
        "  mgpu-partition cnn.onnx --verify plan.json\n",
        to);
    mgpu_args_help(mgpu_partition_args, to);
    fputs("\nexit status: 0 done, 1 failed, 2 wrong usage\n", to);
}

/* `--plan` without a file is `--plan -`. */
static char **with_plan_file(int *argc, char **argv)
{
    char **out = mgpu_xcalloc((size_t)*argc + 2, sizeof *out);
    int n = 0;
    for (int i = 0; i < *argc; i++) {
        out[n++] = argv[i];
        bool bare = i > 0 && !strcmp(argv[i], "--plan");
        if (bare && (i + 1 == *argc || !strncmp(argv[i + 1], "--", 2)))
            out[n++] = "-";
    }
    *argc = n;
    return out;
}

static int check_model(struct mgpu_partition_command *c, const char **files, int count)
{
    if (c->help && !*c->help && count == 1)
        c->help = files[0]; /* --help loss */
    if (c->help || c->version || ((c->list_ops || c->list_devices) && !count))
        return 0;
    if (count != 1)
        return mgpu_fail(MGPU_EUSAGE,
                         count ? "one model at a time: '%s' is too much"
                               : "which model? mgpu-partition MODEL.onnx ...%s",
                         count ? files[1] : "");
    c->model = files[0];
    return 0;
}

static int check(const struct mgpu_partition_command *c)
{
    bool other = c->list_ops || c->list_devices;
    if (!c->model)
        return 0;
    if (other)
        return mgpu_fail(MGPU_EUSAGE, "'%s' is too much: %s needs no model", c->model,
                         c->list_ops ? "--list-ops" : "--list-devices");
    if (c->verify && (c->plan || c->timeline || c->html || c->annotate))
        return mgpu_fail(MGPU_EUSAGE, "--verify runs a plan that is there; it makes none");
    if (!c->verify && !c->options.devices)
        return mgpu_fail(MGPU_EUSAGE, "which devices? --devices cpu:0,cpu:1, 8xh100-nvlink, ... "
                                      "(--list-devices)");
    return 0;
}

int mgpu_partition_parse(struct mgpu_partition_command *c, int argc, char **argv)
{
    const char **files;
    int count;
    char **args = with_plan_file(&argc, argv);
    c->top = 5;
    int rc = mgpu_args_parse(mgpu_partition_args, c, argc, args, &files, &count);
    if (rc == 0)
        rc = check_model(c, files, count);
    free(files);
    free(args);
    return rc < 0 ? rc : check(c);
}
