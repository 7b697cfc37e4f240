#include "runtime/cli/train_args.h"

#include "runtime/base/file_name.h"
#include "runtime/base/status.h"

#include <stdlib.h>
#include <string.h>

#define OPTION(field) offsetof(struct mgpu_train_command, options.field)
#define FIELD(field)  offsetof(struct mgpu_train_command, field)
#define LIST(n, field, v, h)                                                                       \
    {                                                                                              \
        .name = n, .kind = MGPU_ARG_LIST, .offset = OPTION(field), .value = v, .help = h           \
    }
#define TEXT(n, field, v, h)                                                                       \
    {                                                                                              \
        .name = n, .kind = MGPU_ARG_TEXT, .offset = OPTION(field), .value = v, .help = h           \
    }
#define INT(n, field, l, hi, v, h)                                                                 \
    {                                                                                              \
        .name = n, .kind = MGPU_ARG_INT, .offset = OPTION(field), .low = l, .high = hi,            \
        .value = v, .help = h                                                                      \
    }
#define DOUBLE(n, field, l, hi, v, h)                                                              \
    {                                                                                              \
        .name = n, .kind = MGPU_ARG_DOUBLE, .offset = OPTION(field), .low = l, .high = hi,         \
        .value = v, .help = h                                                                      \
    }
#define FLAG(n, field, h)                                                                          \
    {                                                                                              \
        .name = n, .kind = MGPU_ARG_FLAG, .offset = OPTION(field), .help = h                       \
    }
#define OWN(n, field, h)                                                                           \
    {                                                                                              \
        .name = n, .kind = MGPU_ARG_FLAG, .offset = FIELD(field), .help = h                        \
    }
#define HEADING(text)                                                                              \
    {                                                                                              \
        .name = text, .kind = MGPU_ARG_HEADING                                                     \
    }

const struct mgpu_arg mgpu_train_table[] = {
    HEADING("Data"),
    LIST("data", data, "NAME=FILE[:SET]",
         "samples of an input or label: HDF5, .npy, .npz, IDX, CSV, a folder of images; FILE "
         "alone: all "
         "sets"),
    LIST("val", val, "NAME=FILE[:SET]", "validation data, the same way"),
    DOUBLE("val-split", val_split, 0, 0.999, "F", "hold out this part of the data for validation"),
    TEXT("sample-weight", sample_weight, "FILE[:SET]", "a weight for each sample"),
    LIST("scale", scale, "NAME=FACTOR", "multiply an input, e.g. input=1/255"),
    LIST("normalize", normalize, "NAME=MEAN/STD", "(x - mean) / std, lists by channel"),
    LIST("batch-axis", batch_axis, "NAME=K", "the axis that counts samples (default 0)"),
    LIST("state", state, "IN=OUT",
         "an output of one batch is an input of the next; or an LSTM, GRU or RNN node"),
    LIST("rows", rows, "NAME=R", "a step takes R rows of this input, not one a sample"),
    {.name = "no-shuffle",
     .kind = MGPU_ARG_NO,
     .offset = OPTION(shuffle),
     .help = "keep the order of the data"},
    {.name = "shuffle",
     .kind = MGPU_ARG_FLAG,
     .offset = OPTION(shuffle),
     .help = "a new order each epoch (default)"},
    INT("seed", seed, 0, 1e15, "N", "of the order and of dropout (default 0)"),
    HEADING("Model"),
    INT("batch", batch, 1, 1e9, "N",
        "samples of one update, over all ranks (default 32, or --plan's)"),
    INT("accumulate", accumulate, 1, 1e9, "M", "compute a batch in M pieces"),
    LIST("dim", dim, "NAME=VALUE", "size of a symbolic axis"),
    TEXT("init", init, "FILE",
         "weights from a file of any kind: Keras .h5, .weights.h5, .keras, safetensors, npz, ONNX"),
    TEXT("map", map, "FILE", "rules for --init, one a line: theirs -> ours ('*' on both sides)"),
    FLAG("partial", partial, "--init may lack tensors, or hold some that have no place"),
    FLAG("skip-mismatch", skip_mismatch, "leave out tensors of --init that have another shape"),
    FLAG("allow-nonfinite", allow_nonfinite, "take NaN and infinity from --init"),
    FLAG("optimizer-state", optimizer_state,
         "the optimizer goes on with the state in the file of --init"),
    FLAG("by-order", by_order,
         "what names leave open goes by the order of layers (--init, --save)"),
    LIST("reinit", reinit, "PATTERN[=KIND]",
         "start from random numbers: he (default), glorot, normal, zeros"),
    INT("classes", classes, 1, 1e9, "N", "a new last layer of N classes, that starts afresh"),
    {.name = "add-bias",
     .kind = MGPU_ARG_MAYBE_TEXT,
     .offset = OPTION(add_bias),
     .value = "PATTERN",
     .help = "give layers without a bias one of zeros, as before an exporter removed it"},
    LIST("freeze", freeze, "PATTERN", "do not train these initializers (glob)"),
    LIST("train", train, "PATTERN", "train only what matches (glob)"),
    LIST("tie", tie, "A=B", "two initializers are one weight"),
    LIST("untie", untie, "A", "train the copies or uses of A apart"),
    TEXT("batch-norm", batch_norm, "MODE", "train, frozen, or sync (statistics over all ranks)"),
    TEXT("bn-variance", bn_variance, "KIND", "running variance: unbiased or population"),
    LIST("bn-momentum", bn_momentum, "[PATTERN=]M",
         "weight of the old running statistics, where the file lacks it (glob on running means)"),
    LIST("dropout", dropout, "RULE", "keep, off, P or NODE=P"),
    OWN("report", report, "print what each initializer is, and stop"),
    OWN("dry-run", dry_run, "do everything up to step 1, print plan and memory, and stop"),
    HEADING("Loss and optimizer (--help loss, --help optimizer)"),
    LIST("loss", loss, "KIND[,...]",
         "cross_entropy, mse, ...; options output=, label=, weight= ..."),
    LIST("metric", metric, "KIND", "accuracy, top5, mae, mse, rmse"),
    TEXT("optimizer", optimizer, "KIND[,...]", "sgd, adam, adamw, rmsprop, adagrad, lamb"),
    LIST("group", group, "PATTERN,...", "other optimizer options for these weights"),
    TEXT("lr-schedule", lr_schedule, "KIND[,...]", "cosine, step, linear, exponential, one_cycle"),
    DOUBLE("warmup", warmup, 0, 1e15, "STEPS", "raise the learning rate from 0 at first"),
    DOUBLE("clip-norm", clip_norm, 0, 1e300, "X", "scale gradients to at most this norm"),
    DOUBLE("clip-value", clip_value, 0, 1e300, "X", "cut each gradient element to [-X, X]"),
    TEXT("precision", precision, "TYPE",
         "f32 (default), f64; on a GPU also tf32, bf16, f16 (weights stay float32)"),
    TEXT("loss-scale", loss_scale, "START[,every=N]",
         "f16: multiply gradients by this at first (65536; from 2^-24 to 2^24), and by 2 more "
         "after N good steps (2000)"),
    FLAG("exact", exact, "no algorithm with larger rounding (Winograd and the like)"),
    FLAG("recompute", recompute, "compute cheap activations again in backward: less memory"),
    HEADING("Devices"),
    TEXT("devices", devices, "LIST",
         "cpu, cpu:0,cpu:1, cpu:0-3, cuda:0 (default: a GPU, else cpu: all cores)"),
    {.name = "threads",
     .kind = MGPU_ARG_INT32,
     .offset = OPTION(threads),
     .low = 1,
     .high = 1024,
     .value = "N",
     .help = "threads of each rank"},
    TEXT("strategy", strategy, "NAME",
         "auto (default: the planner chooses), single, data, branch, hybrid or stacked"),

    LIST("place", place, "PATTERN=DEVICE",
         "run these nodes there: node or output names, or input:NAME (cpu:0#1: the second "
         "rank of cpu:0,cpu:0)"),
    TEXT("merge", merge, "DEVICE", "where towers meet, and what follows"),
    TEXT("weights-on", weights_on, "DEVICE", "master weights and optimizer state"),
    TEXT("plan", plan, "PLAN.json",
         "what each device does, as mgpu-partition wrote it (also annotated .onnx)"),
    {.name = "deterministic",
     .kind = MGPU_ARG_MAYBE_INT,
     .offset = FIELD(deterministic),
     .low = 1,
     .high = 64,
     .otherwise = 8,
     .value = "S",
     .help = "S logical ranks (8) on whatever devices: the same bits on any number of them"},
    HEADING("Run"),
    INT("epochs", epochs, 1, 1e9, "N", "passes over the data (default 1)"),
    INT("steps", steps, 1, 1e15, "N", "updates, instead of epochs"),
    INT("steps-per-epoch", steps_per_epoch, 1, 1e15, "N", "end an epoch early"),
    INT("initial-epoch", initial_epoch, 0, 1e9, "N", "count as if N epochs were done"),
    {.name = "save",
     .kind = MGPU_ARG_LIST,
     .offset = FIELD(save),
     .value = "FILE",
     .help = "write the model (.onnx) or its weights (.h5, .weights.h5, .safetensors); repeat"},
    LIST("like", like, "FILE",
         "saved files of this one's layout get its structure and names; repeat for others"),
    FLAG("skip-nonfinite", skip_nonfinite,
         "a step whose loss or gradient is not finite changes nothing, and does not stop the run"),
    FLAG("as-exported", as_exported,
         "keep training-form nodes and device annotations in the saved model"),
    TEXT("checkpoint", checkpoint, "TEMPLATE",
         "a file an epoch to resume from: w-{epoch:02d}-{val_loss:.2f}.h5"),
    TEXT("monitor", monitor, "NAME", "what tells the best epoch: val_loss (default), accuracy ..."),
    TEXT("mode", mode, "MODE", "of the monitor: min, max or auto (default)"),
    FLAG("save-best", save_best, "checkpoints only of epochs that are the best so far"),
    FLAG("weights-only", weights_only, "checkpoints as --save writes them: .onnx, .h5"),
    INT("period", period, 1, 1e9, "N", "a checkpoint every N epochs"),
    INT("keep", keep, 1, 1e6, "N", "keep the last N checkpoints"),
    TEXT("resume", resume, "FILE",
         "go on from a checkpoint; --epochs and --steps count from the "
         "beginning"),
    TEXT("early-stop", early_stop, "OPTIONS",
         "monitor=val_loss,patience=N,min_delta=X,restore_best_weights ..."),
    TEXT("reduce-lr", reduce_lr, "OPTIONS", "monitor=val_loss,factor=F,patience=N ..."),
    TEXT("log-csv", log_csv, "FILE", "a line of numbers each epoch"),
    TEXT("tensorboard", tensorboard, "DIR", "the same as event files"),
    OWN("evaluate", evaluate, "no training: losses and metrics of the data"),
    {.name = "predict",
     .kind = MGPU_ARG_TEXT,
     .offset = FIELD(predict),
     .value = "OUT",
     .help = "no training: outputs for all samples, into OUT.npz or OUT.h5"},
    {.name = "check-gradients",
     .kind = MGPU_ARG_MAYBE_INT,
     .offset = FIELD(check_gradients),
     .low = 1,
     .high = 1e9,
     .otherwise = 20,
     .value = "N",
     .help = "compare gradients with differences, N elements a weight, in f64"},
    {.name = "profile",
     .kind = MGPU_ARG_TEXT,
     .offset = FIELD(profile),
     .value = "TRACE.json",
     .help = "what each node of a step takes, reorders among them, for Perfetto"},
    {.name = "html",
     .kind = MGPU_ARG_TEXT,
     .offset = FIELD(html),
     .value = "REPORT.html",
     .help = "curves, plan, memory and weights as one page (with --profile, times too)"},
    OWN("log-steps", log_steps, "print each step's loss on stdout"),
    OWN("json", json, "results as one JSON object, the last line of stdout"),
    OWN("quiet", quiet, "no talk on stderr, only warnings and errors"),
    {.name = "help",
     .kind = MGPU_ARG_MAYBE_TEXT,
     .offset = FIELD(help),
     .value = "TOPIC",
     .help = "this text; topics: loss, optimizer"},
    OWN("version", version, "print the version"),
    {.name = NULL},
};

void mgpu_train_help(FILE *to)
{
    fputs("usage: mgpu-train MODEL.onnx [options]\n"
          "Trains a model that another framework exported to ONNX.\n\n"
          "  mgpu-train cnn.onnx --data input=train-images.gz --data label=train-labels.gz \\\n"
          "      --scale input=1/255 --loss cross_entropy --optimizer adam,lr=1e-3 --batch 64 \\\n"
          "      --epochs 3 --devices cpu:0,cpu:1 --save trained.onnx\n"
          "  mgpu-train trained.onnx --data input=test-images.gz --data label=test-labels.gz \\\n"
          "      --scale input=1/255 --loss cross_entropy --evaluate\n"
          "  mgpu-train cnn.onnx --report\n",
          to);
    mgpu_args_help(mgpu_train_table, to);
    fputs(
        "\nenvironment: CUDA_VISIBLE_DEVICES names the GPUs to be seen; MGPU_CACHE is the folder\n"
        "  where kernels for GPUs and the choice of algorithms are kept for the next run "
        "(default:\n"
        "  $XDG_CACHE_HOME/mgpu, else $HOME/.cache/mgpu; /dev/null: nothing is kept)\n"
        "exit status: 0 done, 1 failed, 2 wrong usage\n",
        to);
}

static bool has_extension(const char *path, const char *const *extensions)
{
    for (int i = 0; extensions[i]; i++)
        if (mgpu_has_extension(path, extensions[i]))
            return true;
    return false;
}

static int check(struct mgpu_train_command *c)
{
    static const char *const saves[] = {".onnx", ".h5", ".hdf5", ".safetensors", ".npz", NULL};
    static const char *const predictions[] = {".npz", ".h5", ".hdf5", NULL};
    int modes = c->evaluate + (c->predict != NULL) + (c->check_gradients > 0) + c->report;
    if (modes > 1)
        return mgpu_fail(MGPU_EUSAGE, "--evaluate, --predict, --check-gradients and --report "
                                      "exclude each other");
    for (int i = 0; c->save && c->save[i]; i++)
        if (!has_extension(c->save[i], saves))
            return mgpu_fail(MGPU_EUSAGE,
                             "--save %s: the name must end in .onnx, .h5, .weights.h5, "
                             ".safetensors or .npz",
                             c->save[i]);
    if (c->save && modes)
        return mgpu_fail(MGPU_EUSAGE, "--save: nothing is trained, so nothing is saved");
    if (modes && (c->options.checkpoint || c->options.resume))
        return mgpu_fail(MGPU_EUSAGE, "--checkpoint, --resume: nothing is trained");
    if (c->options.classes && modes && !c->check_gradients)
        return mgpu_fail(MGPU_EUSAGE, "--classes: a new head has to be trained first");
    if (c->profile && modes)
        return mgpu_fail(MGPU_EUSAGE, "--profile: nothing is trained, so there is nothing to time");
    if (c->html && modes)
        return mgpu_fail(MGPU_EUSAGE, "--html: nothing is trained, so there is nothing to report");
    if (c->predict && !has_extension(c->predict, predictions))
        return mgpu_fail(MGPU_EUSAGE, "--predict %s: the name must end in .npz or .h5", c->predict);
    return 0;
}

int mgpu_train_parse(struct mgpu_train_command *c, int argc, char **argv)
{
    const char **files;
    int count;
    int rc = mgpu_args_parse(mgpu_train_table, c, argc, argv, &files, &count);
    if (rc == 0 && c->help && !*c->help && count == 1)
        c->help = files[0]; /* --help loss */
    if (rc == 0 && !c->help && !c->version) {
        if (count != 1)
            rc = mgpu_fail(MGPU_EUSAGE,
                           count ? "one model at a time: '%s' is too much"
                                 : "which model? mgpu-train MODEL.onnx ...%s",
                           count ? files[1] : "");
        else
            c->model = files[0];
    }
    free(files);
    MGPU_TRY(rc);
    c->argc = argc;
    c->argv = argv;
    c->options.deterministic = (int)c->deterministic;
    c->options.inference = c->evaluate || c->predict;
    c->options.predict = c->predict != NULL;
    c->options.profile = c->profile != NULL;
    c->options.check_gradients = c->check_gradients > 0;
    if (c->check_gradients)
        c->options.precision = "f64";
    return check(c);
}
