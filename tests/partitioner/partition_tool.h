/* mgpu-partition as a person runs it: its results, messages and exit status, in a folder of the
 * test's own, which has models of two towers that share a weight. */
#ifndef MGPU_TESTS_PARTITION_TOOL_H
#define MGPU_TESTS_PARTITION_TOOL_H

#include "partitioner/plan_file.h"
#include "tests/onnx_build.h"
#include "tests/support/make_onnx.h"
#include "tests/test.h"

#include <json-c/json.h>
#include <sys/wait.h>

enum { TEXT = 1 << 18 };
static char out[TEXT], err[TEXT]; /* what the last run printed */
static char *folder_of_tool;

static inline void take(char *into, const char *path)
{
    size_t size;
    char *text = (char *)build_load(path, &size);
    snprintf(into, TEXT, "%.*s", (int)size, text ? text : "");
    free(text);
}

/* Runs the tool in the test's folder; its exit status. */
static inline int run(const char *arguments)
{
    char command[4096];
    snprintf(command, sizeof command, "cd %s && %s/mgpu-partition %s >out 2>err", build_folder,
             folder_of_tool, arguments);
    int status = system(command);
    take(out, build_path("out"));
    take(err, build_path("err"));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static inline bool exists(const char *name)
{
    return access(build_path(name), F_OK) == 0;
}

#define CHECK_RUN(arguments)                                                                       \
    do {                                                                                           \
        int status_ = run(arguments);                                                              \
        CHECK_(status_ == 0, "exit %d of '%s': %s", status_, arguments, err);                      \
    } while (0)

/* Fails with this status and one line that holds `part`. */
#define CHECK_REFUSED(arguments, expected, part)                                                   \
    do {                                                                                           \
        int status_ = run(arguments);                                                              \
        const char *line_ = strstr(err, "mgpu-partition: ");                                       \
        CHECK_(status_ == (expected) && line_ && strstr(line_, part) &&                            \
                   strchr(line_, '\n') == line_ + strlen(line_) - 1,                               \
               "exit %d of '%s': %s", status_, arguments, err);                                    \
        CHECK(!*out);                                                                              \
    } while (0)

static inline struct mgpu_plan_file *read_plan(const char *name)
{
    struct mgpu_plan_file *p = NULL;
    CHECK_OK(mgpu_plan_file_read(&p, build_path(name)));
    return p;
}

static inline const struct mgpu_plan_node *node_of(const struct mgpu_plan_file *p,
                                                   const char *output)
{
    for (int i = 0; p && i < p->nodes; i++)
        if (!strcmp(p->node[i].output, output))
            return &p->node[i];
    return NULL;
}

static inline int place_of(const struct mgpu_plan_file *p, const char *output)
{
    const struct mgpu_plan_node *n = node_of(p, output);
    return n ? n->place : -1;
}

static inline double number_in(struct json_object *o, const char *a, const char *b, const char *c)
{
    const char *const keys[] = {a, b, c};
    for (int i = 0; i < 3; i++)
        if (keys[i] && !json_object_object_get_ex(o, keys[i], &o))
            return -1;
    return json_object_get_double(o);
}

static const char two_towers[] = "input a float N 64\n"
                                 "input b float N 64\n"
                                 "init W float 64 256 = 0.5\n"
                                 "init V float 512 8 = 0.25\n"
                                 "p = MatMul(a, W) name=\"left\"\n"
                                 "h = Tanh(p)\n"
                                 "q = MatMul(b, W) name=\"right\"\n"
                                 "k = Tanh(q)\n"
                                 "c = Concat(h, k) axis=1\n"
                                 "y = MatMul(c, V)\n"
                                 "output y float N 8\n";

/* The same with other numbers of nodes in another order. */
static const char turned[] = "input b float N 64\n"
                             "input a float N 64\n"
                             "init V float 512 8 = 0.25\n"
                             "init W float 64 256 = 0.5\n"
                             "q = MatMul(b, W) name=\"right\"\n"
                             "p = MatMul(a, W) name=\"left\"\n"
                             "k = Tanh(q)\n"
                             "h = Tanh(p)\n"
                             "c = Concat(h, k) axis=1\n"
                             "y = MatMul(c, V)\n"
                             "output y float N 8\n";

#define TWO "two.onnx --devices 2xcpu --batch 64 "

/* The folder and its models. */
static inline void tool_begin(void)
{
    folder_of_tool = realpath(getenv("MGPU_BUILD") ? getenv("MGPU_BUILD") : "build", NULL);
    if (!folder_of_tool)
        abort();
    build_begin();
    make_onnx_file(build_path("two.onnx"), two_towers);
    make_onnx_file(build_path("turned.onnx"), turned);
}

static inline void tool_end(void)
{
    build_end();
    free(folder_of_tool);
}

#endif
