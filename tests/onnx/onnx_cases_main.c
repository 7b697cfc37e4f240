/* onnx-cases [--list FILE] [--rtol X] [--atol X] DIR...
 *
 * Runs test cases in the ONNX standard's layout and says of each whether it passes. */
#include "runtime/base/memory.h"
#include "tests/onnx/onnx_case.h"

#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage_text[] =
    "usage: onnx-cases [--list FILE] [--rtol X] [--atol X] DIR...\n"
    "Runs every test case (a folder with model.onnx and test_data_set_N/) at or below DIR.\n"
    "  --list FILE  only those whose names stand in FILE, one a line\n"
    "  --rtol X     relative tolerance (default 1e-3)\n"
    "  --atol X     absolute tolerance (default 1e-7)\n"
    "Prints PASS, FAIL or UNSUPPORTED, the name and the reason, then the counts. Exit status: 0\n"
    "nothing failed, 1 something failed, 2 wrong usage.\n"
    "example: onnx-cases /usr/share/libonnx-testdata/data/node\n";

struct names {
    int count;
    char **name;
};

static bool read_names(struct names *names, const char *path)
{
    char line[1024];
    FILE *f = fopen(path, "r");
    if (!f)
        return false;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, " \t\r\n")] = 0;
        if (!*line || *line == '#')
            continue;
        names->name = mgpu_grow(names->name, (size_t)names->count, sizeof *names->name);
        names->name[names->count++] = mgpu_xstrdup(line);
    }
    fclose(f);
    return true;
}

static bool is_listed(const struct names *names, const char *name)
{
    for (int i = 0; i < names->count; i++)
        if (!strcmp(names->name[i], name))
            return true;
    return false;
}

static bool number(const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return end != text && !*end && *out >= 0;
}

static void run_folder(struct mgpu_onnx_case *c, int count[3])
{
    mgpu_onnx_case_run(c);
    count[c->outcome]++;
    printf("%s %s%s%s\n", mgpu_onnx_outcome_name(c->outcome), mgpu_onnx_case_name(c->folder),
           *c->reason ? " " : "", c->reason);
    fflush(stdout);
}

int main(int words, char **word)
{
    static const struct option options[] = {{"list", required_argument, NULL, 'l'},
                                            {"rtol", required_argument, NULL, 'r'},
                                            {"atol", required_argument, NULL, 'a'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    struct mgpu_onnx_case c = {.rtol = MGPU_ONNX_RTOL, .atol = MGPU_ONNX_ATOL};
    struct names names = {0};
    bool good = true, listed = false;
    int count[3] = {0};
    for (int o; (o = getopt_long(words, word, "", options, NULL)) != -1;) {
        if (o == 'h') {
            fputs(usage_text, stdout);
            return 0;
        }
        listed = listed || o == 'l';
        good = good && (o == 'l'   ? read_names(&names, optarg)
                        : o == 'r' ? number(optarg, &c.rtol)
                        : o == 'a' ? number(optarg, &c.atol)
                                   : false);
    }
    if (!good || optind == words) {
        fputs(usage_text, stderr);
        return 2;
    }
    for (int i = optind; i < words; i++) {
        int folders;
        char **folder = mgpu_onnx_case_folders(word[i], &folders);
        if (!folders)
            fprintf(stderr, "onnx-cases: no test case in %s\n", word[i]);
        for (int k = 0; k < folders; k++) {
            c.folder = folder[k];
            if (!listed || is_listed(&names, mgpu_onnx_case_name(folder[k])))
                run_folder(&c, count);
            free(folder[k]);
        }
        free(folder);
    }
    for (int i = 0; i < names.count; i++)
        free(names.name[i]);
    free(names.name);
    printf("%d passed, %d failed, %d unsupported\n", count[0], count[1], count[2]);
    return count[1] ? EXIT_FAILURE : EXIT_SUCCESS;
}
