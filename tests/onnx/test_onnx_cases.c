/* All cases of Debian's libonnx-testdata against expected.txt, which names those that do not pass:
 * none but those may not pass, and those may not pass unnoticed. */
#include "runtime/base/memory.h"
#include "tests/onnx/onnx_case.h"
#include "tests/test.h"

#include <stdbool.h>
#include <unistd.h>

#define DATA     "/usr/share/libonnx-testdata/data/"
#define EXPECTED "tests/onnx/expected.txt"

enum { SKIPPED = 77 };

struct expected {
    int count;
    struct line {
        char outcome[16], name[128];
        bool met;
    } * line;
};

static void read_expected(struct expected *e)
{
    char text[1024];
    FILE *f = fopen(EXPECTED, "r");
    CHECK_(f, "%s cannot be read", EXPECTED);
    while (f && fgets(text, sizeof text, f)) {
        struct line line = {0};
        if (*text == '#' || *text == '\n')
            continue;
        CHECK_(sscanf(text, "%15s %127s", line.outcome, line.name) == 2, "%s: %s", EXPECTED, text);
        e->line = mgpu_grow(e->line, (size_t)e->count, sizeof *e->line);
        e->line[e->count++] = line;
    }
    if (f)
        fclose(f);
}

static struct line *find(const struct expected *e, const char *name)
{
    for (int i = 0; i < e->count; i++)
        if (!strcmp(e->line[i].name, name))
            return &e->line[i];
    return NULL;
}

static void check_case(const struct expected *e, const char *folder)
{
    struct mgpu_onnx_case c = {.folder = folder, .rtol = MGPU_ONNX_RTOL, .atol = MGPU_ONNX_ATOL};
    const char *name = mgpu_onnx_case_name(folder);
    struct line *line = find(e, name);
    mgpu_onnx_case_run(&c);
    const char *got = mgpu_onnx_outcome_name(c.outcome), *want = line ? line->outcome : "PASS";
    CHECK_(!strcmp(got, want), "%s: %s, not %s as in %s %s", name, got, want, EXPECTED, c.reason);
    if (line)
        line->met = true;
}

static int check_folder(const struct expected *e, const char *root)
{
    int count;
    char **folder = mgpu_onnx_case_folders(root, &count);
    for (int i = 0; i < count; i++) {
        check_case(e, folder[i]);
        free(folder[i]);
    }
    free(folder);
    return count;
}

int main(void)
{
    static const char *const roots[] = {DATA "node", DATA "simple", DATA "pytorch-operator",
                                        DATA "pytorch-converted"};
    struct expected expected = {0};
    int cases = 0;
    if (access(DATA, F_OK) < 0) {
        fprintf(stderr, "there is no %s: install libonnx-testdata\n", DATA);
        return SKIPPED;
    }
    read_expected(&expected);
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++)
        cases += check_folder(&expected, roots[i]);
    for (int i = 0; i < expected.count; i++)
        CHECK_(expected.line[i].met, "%s: there is no case %s", EXPECTED, expected.line[i].name);
    printf("%d cases, %d do not pass\n", cases, expected.count);
    free(expected.line);
    return test_end();
}
