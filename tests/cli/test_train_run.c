/* mgpu-train as a person runs it: killed and resumed until it is done, interrupted, on a full disk.
 */
#include "tests/onnx_build.h"
#include "tests/support/make_onnx.h"
#include "tests/support/write_npy.h"
#include "tests/test.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { SAMPLES = 24, WORDS = 40 };

static char tool[4096];

/* What all runs here have in common. */
static const char *const common[] = {
    "m.onnx",       "--data", "x=x.npy",     "--data", "label=label.npy", "--loss", "mse",
    "--batch",      "5",      "--val-split", "0.25",   "--seed",          "3",      "--optimizer",
    "adam,lr=0.01", NULL};
static const char *devices = "cpu:0";

static void make_files(void)
{
    float x[SAMPLES * 4], label[SAMPLES * 3];
    for (int i = 0; i < SAMPLES * 4; i++)
        x[i] = (float)(i * 37 % 19) / 10 - 1;
    for (int i = 0; i < SAMPLES * 3; i++)
        label[i] = (float)(i * 23 % 17) / 10 - 1;
    make_onnx_file(build_path("m.onnx"), "input x float N 4\n"
                                         "init w float 4 64 = normal 0.3\n"
                                         "init v float 64 3 = normal 0.3\n"
                                         "ratio = Constant() value_float=0.2\n"
                                         "yes = Constant() value_int=1\n"
                                         "train = Cast(yes) to=9\n"
                                         "h = MatMul(x, w)\n"
                                         "r = Relu(h)\n"
                                         "d = Dropout(r, ratio, train)\n"
                                         "y = MatMul(d, v)\n"
                                         "output y float N 3\n");
    write_npy_data(build_path("x.npy"), MGPU_FLOAT, 2, (int64_t[]){SAMPLES, 4}, x);
    write_npy_data(build_path("label.npy"), MGPU_FLOAT, 2, (int64_t[]){SAMPLES, 3}, label);
}

static enum { TO_FILE, TO_NOBODY, CLOSED } talk; /* where stderr goes */

static int open_talk(void)
{
    int ends[2];
    if (talk == TO_FILE)
        return open("err", O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (pipe(ends) < 0)
        _exit(3);
    close(ends[0]);
    return ends[1];
}

/* Starts the tool in the test's folder, with `more` behind what is common; its stderr goes to a
 * file called err. */
static pid_t start(const char *const *more)
{
    const char *argv[WORDS] = {tool};
    int n = 1;
    for (int i = 0; common[i]; i++)
        argv[n++] = common[i];
    argv[n++] = "--devices";
    argv[n++] = devices;
    for (int i = 0; more[i]; i++)
        argv[n++] = more[i];
    build_bytes(build_path("err"), "", 0);
    pid_t pid = fork();
    if (pid)
        return pid;
    if (chdir(build_folder) < 0)
        _exit(3);
    int out = open("out", O_WRONLY | O_CREAT | O_TRUNC, 0666);
    dup2(out, 1);
    dup2(open_talk(), 2);
    if (talk == CLOSED)
        close(2);
    execv(tool, (char *const *)argv);
    _exit(3);
}

/* Its exit status; -1 where a signal ended it. */
static int finish(pid_t pid)
{
    int status;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static const char *taken(const char *name)
{
    static char text[1 << 16];
    size_t size;
    char *bytes = (char *)build_load(build_path(name), &size);
    snprintf(text, sizeof text, "%.*s", (int)size, bytes);
    free(bytes);
    return text;
}

#define RUN(...) finish(start((const char *const[]){__VA_ARGS__, NULL}))
#define CHECK_RUN(...)                                                                             \
    do {                                                                                           \
        int status_ = RUN(__VA_ARGS__);                                                            \
        CHECK_(status_ == 0, "exit %d: %s", status_, taken("err"));                                \
    } while (0)
#define CHECK_STOPS(status, part, ...)                                                             \
    do {                                                                                           \
        int status_ = RUN(__VA_ARGS__);                                                            \
        CHECK_(status_ == (status) && strstr(taken("err"), part), "exit %d: %s", status_,          \
               taken("err"));                                                                      \
    } while (0)

static bool same_bytes(const char *a, const char *b)
{
    size_t n, m;
    uint8_t *x = build_load(build_path(a), &n), *y = build_load(build_path(b), &m);
    bool same = n == m && !memcmp(x, y, n);
    free(x);
    free(y);
    return same;
}

static bool exists(const char *name)
{
    return access(build_path(name), F_OK) == 0;
}

/* ---- Goes on --------------------------------------------------------------------------------- */

#define EPOCHS "40"

/* Killed at random moments and resumed, a run ends as one that was left alone. */
static void test_killed(void)
{
    unsigned random = 5;
    int kills = 0, status = -1;
    CHECK_RUN("--epochs", EPOCHS, "--save", "whole.onnx", "--log-csv", "whole.csv");
    for (int i = 0; status < 0 && i < 60; i++) {
        bool resume = exists("run.h5");
        pid_t pid = start((const char *const[]){"--epochs", EPOCHS, "--checkpoint", "run.h5",
                                                "--save", "parts.onnx", "--log-csv", "parts.csv",
                                                resume ? "--resume" : NULL, "run.h5", NULL});
        random = random * 1664525u + 1013904223u;
        if (i < 20) {
            usleep(20000 + (random >> 8) % 200000);
            kill(pid, SIGKILL);
        }
        status = finish(pid);
        kills += status < 0;
    }
    CHECK_(status == 0, "exit %d: %s", status, taken("err"));
    CHECK(same_bytes("whole.onnx", "parts.onnx"));
    CHECK(same_bytes("whole.csv", "parts.csv"));
    printf("%d kills\n", kills);
}

/* Ctrl-C, the end of the terminal and of the job's time: it finishes the step, saves, says how to
 * go on, and --json prints what there is. What comes right behind the signal (timeout signals the
 * process, then its group) does not keep it from that. */
static void test_interrupted(int signal_number)
{
    pid_t pid =
        start((const char *const[]){"--epochs", "1000000", "--checkpoint", "i-{epoch}.h5",
                                    "--period", "1000", "--save", "i.onnx", "--json", NULL});
    char file[64], want[128], steps[32];
    long long step = 0;
    for (int i = 0; i < 6000 && !strstr(taken("err"), "epoch 2/"); i++)
        usleep(10000);
    for (int i = 0; i < 5; i++) {
        kill(pid, i == 3 ? SIGTERM : signal_number);
        usleep(500);
    }
    CHECK(finish(pid) == 1);
    CHECK_(strstr(taken("out"), "\"saved\":[\"i.onnx\",\"i-") &&
               strstr(taken("out"), "],\"interrupted\":true}\n"),
           "%.200s", taken("out"));
    const char *text = taken("err"), *at = strstr(text, "interrupted after step ");
    CHECK_(at && sscanf(at, "interrupted after step %lld of ", &step) == 1, "%s", text);
    at = strstr(text, "to go on: ");
    const char *name = at ? strstr(at, " --resume 'i-") : NULL;
    CHECK_(name && sscanf(name, " --resume '%63[^']'", file) == 1 && exists(file), "%s", text);
    CHECK(exists("i.onnx"));
    snprintf(steps, sizeof steps, "%lld", step + 3);
    CHECK_RUN("--steps", steps, "--resume", file, "--save", "parts.onnx");
    snprintf(want, sizeof want, "%s: goes on after step %lld of %s\n", file, step, steps);
    CHECK_(strstr(taken("err"), want), "%s", taken("err"));
    CHECK_RUN("--steps", steps, "--save", "whole.onnx");
    CHECK(same_bytes("whole.onnx", "parts.onnx"));
}

/* The command that is told leaves out what only a beginning takes. */
static void test_told_command(void)
{
    CHECK_RUN("--epochs", "1", "--save", "told.npz");
    pid_t pid = start((const char *const[]){"--epochs", "1000000", "--checkpoint", "told.h5",
                                            "--init", "told.npz", "--partial", "--initial-epoch=2",
                                            "--reinit", "w=he", NULL});
    for (int i = 0; i < 6000 && !strstr(taken("err"), "epoch 4/"); i++)
        usleep(10000);
    kill(pid, SIGINT);
    CHECK(finish(pid) == 1);
    const char *text = taken("err"), *at = strstr(text, "to go on: ");
    CHECK_(at && strstr(at, "mgpu-train --resume 'told.h5' 'm.onnx' '--data' ") &&
               strstr(at, " '--epochs' '1000000' '--checkpoint' 'told.h5'\n"),
           "%s", text);
}

/* A signal that its starter has it ignore (nohup) does not stop it. */
static void test_ignored(void)
{
    signal(SIGHUP, SIG_IGN);
    pid_t pid = start((const char *const[]){"--epochs", "200", NULL});
    signal(SIGHUP, SIG_DFL);
    for (int i = 0; i < 6000 && !strstr(taken("err"), "epoch 2/"); i++)
        usleep(10000);
    kill(pid, SIGHUP);
    CHECK(finish(pid) == 0);
}

/* ---- Fails ----------------------------------------------------------------------------------- */

/* Runs that may write no file larger than `most`. */
static int run_small(rlim_t most, const char *const *more)
{
    struct rlimit old, small = {most, 0};
    getrlimit(RLIMIT_FSIZE, &old);
    small.rlim_max = old.rlim_max;
    setrlimit(RLIMIT_FSIZE, &small);
    pid_t pid = start(more);
    setrlimit(RLIMIT_FSIZE, &old);
    return finish(pid);
}

#define RUN_SMALL(most, ...) run_small(most, (const char *const[]){__VA_ARGS__, NULL})

static void test_full_disk(void)
{
    CHECK_RUN("--epochs", "1", "--checkpoint", "full.h5", "--save", "full.onnx");
    size_t size;
    uint8_t *bytes = build_load(build_path("full.h5"), &size);
    build_bytes(build_path("before.h5"), bytes, size);
    free(bytes);
    CHECK(RUN_SMALL(2048, "--epochs", "3", "--checkpoint", "full.h5") == 1);
    CHECK_(strstr(taken("err"), "mgpu-train: full.h5: cannot write: File too large\n"), "%s",
           taken("err"));
    CHECK(same_bytes("full.h5", "before.h5"));
}

/* A run that stops since something is not finite leaves all files as they were. */
static void test_not_finite(void)
{
    size_t size;
    uint8_t *bytes;
    CHECK_RUN("--epochs", "1", "--checkpoint", "finite.h5", "--save", "finite.npz");
    bytes = build_load(build_path("finite.h5"), &size);
    build_bytes(build_path("before.h5"), bytes, size);
    free(bytes);
    bytes = build_load(build_path("finite.npz"), &size);
    build_bytes(build_path("before.npz"), bytes, size);
    free(bytes);
    CHECK_STOPS(1, "is not finite; the first value that is not is the output of", "--epochs", "3",
                "--scale", "x=1e30", "--checkpoint", "finite.h5", "--save", "finite.npz");
    CHECK(same_bytes("finite.h5", "before.h5") && same_bytes("finite.npz", "before.npz"));
}

/* What cannot be written takes nothing else with it: the other files are, and the exit status and a
 * line for each tell what is not. An epoch whose checkpoint or log fails is the last. */
static void test_one_fails(void)
{
    const char *text;
    CHECK_RUN("--epochs", "1", "--save", "want.npz");
    CHECK(RUN_SMALL(4096, "--epochs", "1", "--save", "one.h5", "--save", "one.npz", "--json") == 1);
    text = taken("err");
    CHECK_(strstr(text, "mgpu-train: one.h5: cannot write: File too large\n") &&
               strstr(text, "saved one.npz\n"),
           "%s", text);
    CHECK(!exists("one.h5") && same_bytes("one.npz", "want.npz"));
    CHECK(strstr(taken("out"), "\"saved\":[\"one.npz\"]"));

    CHECK(RUN_SMALL(4096, "--epochs", "3", "--checkpoint", "two.h5", "--save", "two.npz") == 1);
    text = taken("err");
    CHECK_(strstr(text, "mgpu-train: two.h5: cannot write: File too large\nsaved two.npz\n"
                        "mgpu-train: stopped after step 4 of 12; the weights so far are saved\n"),
           "%s", text);
    CHECK(!exists("two.h5") && same_bytes("two.npz", "want.npz"));

    CHECK(RUN_SMALL(131072, "--epochs", "5000", "--log-csv", "three.csv", "--checkpoint",
                    "three.h5", "--period", "5000", "--quiet") == 1);
    text = taken("err");
    CHECK_(strstr(text, "three.csv: cannot write: File too large\nmgpu-train: stopped after step "),
           "%.2000s", text);
    CHECK_RUN("--epochs", "1", "--resume", "three.h5");
}

/* Talk that nobody reads (tee is gone, stderr was closed) takes no file with it. */
static void test_no_reader(void)
{
    CHECK_RUN("--epochs", "2", "--save", "heard.npz");
    for (talk = TO_NOBODY; talk <= CLOSED; talk++) {
        CHECK(RUN("--epochs", "2", "--save", "unheard.npz") == 0);
        CHECK(same_bytes("unheard.npz", "heard.npz"));
        unlink(build_path("unheard.npz"));
    }
    talk = TO_FILE;
}

/* A file that may not grow is an error of mgpu-convert, too. */
static void test_convert_full(void)
{
    char *command;
    CHECK(asprintf(&command, "cd %s && (ulimit -f 1; %.*sconvert m.onnx c.h5 2>err)", build_folder,
                   (int)strlen(tool) - 5, tool) > 0);
    int status = system(command);
    free(command);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    CHECK_(strstr(taken("err"), "c.h5: cannot write: File too large"), "%s", taken("err"));
}

/* A name that a checkpoint will have is that of a file the run begins with. */
static void test_template(void)
{
    CHECK_RUN("--epochs", "3", "--checkpoint", "t-{epoch}.onnx", "--weights-only", "--save",
              "v-0.01.npz");
    CHECK_STOPS(2, "--checkpoint: t-3.onnx is the file of --init", "--epochs", "4", "--init",
                "t-3.onnx", "--checkpoint", "t-{epoch}.onnx", "--weights-only");
    CHECK_RUN("--epochs", "2", "--init", "t-3.onnx", "--checkpoint", "t-{epoch}.onnx",
              "--weights-only");
    CHECK_STOPS(1, "--checkpoint: v-0.01.npz is the file of --init", "--epochs", "2", "--init",
                "v-0.01.npz", "--checkpoint", "v-{learning_rate}.npz", "--weights-only");
}

static void test_usage(void)
{
    CHECK_STOPS(2, "belong to --checkpoint", "--save-best");
    CHECK_STOPS(2, "name it .h5, or give --weights-only", "--checkpoint", "w.onnx");
    CHECK_STOPS(2, "w.weights.h5: .weights.h5 is Keras 3's file of weights alone", "--checkpoint",
                "w.weights.h5");
    CHECK_STOPS(2, "'{epoch' is not closed", "--checkpoint", "k-{epoch");
    CHECK_STOPS(2, "field '{epohc}'", "--checkpoint", "w-{epohc}.h5");
    CHECK_STOPS(2, "unknown monitor 'val_lose'", "--checkpoint", "w.h5", "--monitor", "val_lose");
    CHECK_STOPS(1, "no/w.h5: cannot write: No such file", "--checkpoint", "no/w.h5");
    CHECK_STOPS(1, "no/l.csv: cannot write: No such file", "--log-csv", "no/l.csv");
    CHECK_STOPS(1, "--tensorboard: no/logs: cannot write: No such file or directory\n",
                "--tensorboard", "no/logs", "--dry-run");
    CHECK_STOPS(1, "--tensorboard: x.npy: cannot write: Not a directory\n", "--tensorboard",
                "x.npy", "--dry-run");
    CHECK_RUN("--tensorboard", "logs/", "--dry-run");
    CHECK(!exists("logs"));
    CHECK(symlink("m.onnx", build_path("link.onnx")) == 0);
    CHECK_STOPS(2, "--save: link.onnx is the model that is read: give what is written another name",
                "--save", "link.onnx");
    CHECK_STOPS(2, "--log-csv: x.npy is a file of --data", "--log-csv", "x.npy");
    CHECK_STOPS(2, "m.onnx is the model that is read", "--html", "m.onnx");
    CHECK_STOPS(2, "./s.npz is to be written twice", "--save", "s.npz", "--save", "./s.npz");
    CHECK_STOPS(2, "./s.h5 is to be written twice", "--checkpoint", "s.h5", "--save", "./s.h5");
    write_npy_data(build_path("sw.npz"), MGPU_FLOAT, 1, (int64_t[]){SAMPLES},
                   (float[SAMPLES]){1}); /* the content decides: an array */
    CHECK_STOPS(2, "--save: sw.npz is the file of --sample-weight", "--sample-weight", "sw.npz",
                "--save", "sw.npz");
    CHECK_STOPS(2, "want.npz is the file of --init", "--init", "want.npz", "--save", "want.npz");
    CHECK_RUN("--epochs", "1", "--checkpoint", "R.H5", "--save", "R.ONNX", "--save", "r.npz");
    CHECK_STOPS(2, "--save: R.H5 is the file of --resume", "--resume", "R.H5", "--save", "R.H5");
    CHECK_RUN("--epochs", "2", "--checkpoint", "R.H5", "--resume", "R.H5");
    CHECK_STOPS(0, "next: ", "--epochs", "1", "--init", "R.ONNX", "--save", "r2.Onnx");
    CHECK_STOPS(2, "leaves nothing to do", "--initial-epoch", "3", "--epochs", "3");
    CHECK_STOPS(2, "--freeze q matches no initializer", "--freeze", "q");
    CHECK_STOPS(2, "--group q matches none", "--group", "q,lr=1");
    CHECK_STOPS(2, "the model has no input or label", "--data", "q=x.npy");
    CHECK_STOPS(2, "no input has a dimension", "--dim", "q=3");
    CHECK_STOPS(2, "--optimizer-state are for --init", "--optimizer-state");
    CHECK_STOPS(1, "nothing.h5", "--init", "nothing.h5");
    CHECK_STOPS(1, "nothing.h5: No such file or directory", "--resume", "nothing.h5");
}

/* The list of saved files has each once, and none that --keep let go. */
static void test_saved_list(void)
{
    CHECK_RUN("--epochs", "4", "--checkpoint", "k-{epoch}.onnx", "--weights-only", "--keep", "2",
              "--json");
    CHECK_(strstr(taken("out"), "\"saved\":[\"k-3.onnx\",\"k-4.onnx\"]"), "%s", taken("out"));
    CHECK(!exists("k-2.onnx") && exists("k-3.onnx"));
    CHECK_RUN("--epochs", "3", "--checkpoint", "one.h5", "--json");
    CHECK_(strstr(taken("out"), "\"saved\":[\"one.h5\"]"), "%s", taken("out"));
}

/* What a run does otherwise than it was asked to is said under --quiet too, and is in what --json
 * prints. */
static void test_warnings(void)
{
    const char *text = "--precision tf32: only a GPU has TF32; cpu:0 computes in float32";
    char want[256];
    CHECK_RUN("--epochs", "1", "--precision", "tf32", "--quiet", "--json");
    snprintf(want, sizeof want, "warning: %s\n", text);
    CHECK_(!strcmp(taken("err"), want), "%s", taken("err"));
    snprintf(want, sizeof want, "\"warnings\":[\"%s\"]", text);
    CHECK_(strstr(taken("out"), want), "%s", taken("out"));
    CHECK_RUN("--epochs", "1", "--quiet", "--json");
    CHECK_(!*taken("err") && strstr(taken("out"), "\"warnings\":[]"), "%s", taken("out"));
    /* once, not for each rank */
    const char *limit = getenv("OMP_THREAD_LIMIT"); /* the thread sanitizer's tests have it */
    if (!limit)
        setenv("OMP_THREAD_LIMIT", "1", 1);
    devices = "cpu:0,cpu:1";
    CHECK_RUN("--epochs", "1", "--threads", "300", "--quiet", "--json");
    snprintf(want, sizeof want, "\"warnings\":[\"--threads 300: OMP_THREAD_LIMIT allows %s\"]",
             limit ? limit : "1");
    CHECK_(strstr(taken("out"), want), "%s", taken("out"));
    devices = "cpu:0";
    if (!limit)
        unsetenv("OMP_THREAD_LIMIT");
}

int main(void)
{
    const char *build = getenv("MGPU_BUILD") ? getenv("MGPU_BUILD") : "build";
    char *path = realpath(build, NULL);
    snprintf(tool, sizeof tool, "%s/mgpu-train", path ? path : build);
    free(path);
    build_begin();
    make_files();
    test_killed();
    test_interrupted(SIGINT);
    test_interrupted(SIGTERM);
    test_interrupted(SIGHUP);
    test_told_command();
    test_ignored();
    test_full_disk();
    test_not_finite();
    test_one_fails();
    test_no_reader();
    test_convert_full();
    test_template();
    test_usage();
    test_saved_list();
    test_warnings();
    build_end();
    return test_end();
}
