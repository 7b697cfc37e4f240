#include "tests/golden/case_suite.h"

#include "runtime/base/memory.h"
#include "tests/golden/case_run.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_RANKS = 4 };

static const char *const devices[] = {"cpu:0", "cpu:0,cpu:1", "cpu:0,cpu:1,cpu:0",
                                      "cpu:0,cpu:1,cpu:0,cpu:1"};

bool mgpu_case_required(const char *list, const char *name)
{
    char line[256];
    bool found = false;
    FILE *file = list ? fopen(list, "r") : NULL;
    if (!file)
        return true;
    while (!found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        found = !strcmp(line, name);
    }
    fclose(file);
    return found;
}

static void count(struct mgpu_case_suite *s, const struct mgpu_case_request *q,
                  const struct mgpu_case_result *result)
{
    bool required = mgpu_case_required(s->required, strrchr(q->folder, '/') + 1);
    if (result->outcome == MGPU_CASE_UNSUPPORTED)
        s->unsupported++;
    if (result->outcome == MGPU_CASE_FAILED ||
        (required && result->outcome == MGPU_CASE_UNSUPPORTED))
        s->failed++;
    mgpu_case_print(stdout, q, result);
}

static enum mgpu_case_outcome answers(struct mgpu_case_suite *s, const char *folder, int ranks,
                                      bool defaults, bool fast)
{
    struct mgpu_case_request q = {.folder = folder,
                                  .devices = devices[ranks - 1],
                                  .ranks = ranks,
                                  .precision = "f32",
                                  .steps = s->quick ? 1 : 0,
                                  .defaults = defaults,
                                  .fast = fast,
                                  .forward = !defaults};
    struct mgpu_case_result result;
    mgpu_case_run(&result, &q);
    count(s, &q, &result);
    mgpu_case_result_free(&result);
    return result.outcome;
}

/* In double, every rank count gives the numbers of one rank. */
static void equality(struct mgpu_case_suite *s, const char *folder)
{
    struct mgpu_case_result one = {0}, result;
    for (int ranks = 1; ranks <= MOST_RANKS; ranks++) {
        struct mgpu_case_request q = {.folder = folder,
                                      .devices = devices[ranks - 1],
                                      .ranks = ranks,
                                      .precision = "f64",
                                      .early = true};
        mgpu_case_run(&result, &q);
        double off = ranks > 1 && !result.refused ? mgpu_case_difference(&result, &one) : 0;
        if (!(off <= 1e-10)) {
            snprintf(result.why, sizeof result.why, "%d ranks differ from one by %.1e", ranks, off);
            result.outcome = MGPU_CASE_FAILED;
        }
        count(s, &q, &result);
        if (ranks == 1)
            one = result;
        else
            mgpu_case_result_free(&result);
    }
    mgpu_case_result_free(&one);
}

static void run_folder(struct mgpu_case_suite *s, const char *folder)
{
    int first = s->quick ? s->cases % 3 + 1 : 1, last = s->quick ? first : 3;
    s->cases++;
    for (int ranks = first; ranks <= last; ranks++)
        if (answers(s, folder, ranks, false, false) == MGPU_CASE_UNSUPPORTED)
            return; /* once is enough */
    if (mgpu_case_has_defaults(folder))
        for (int ranks = first; ranks <= last; ranks++)
            answers(s, folder, ranks, true, false);
    if (s->quick)
        return;
    answers(s, folder, 2, false, true);
    equality(s, folder);
}

int mgpu_case_suite_run(struct mgpu_case_suite *suite, const char *root)
{
    struct dirent **entry;
    int n = scandir(root, &entry, NULL, alphasort), found = 0;
    for (int i = 0; i < n; i++) {
        char folder[1024], json[1088];
        snprintf(folder, sizeof folder, "%s/%s", root, entry[i]->d_name);
        snprintf(json, sizeof json, "%s/case.json", folder);
        if (access(json, R_OK) == 0) {
            run_folder(suite, folder);
            found++;
        }
        free(entry[i]);
    }
    if (n >= 0)
        free(entry);
    return found;
}

bool mgpu_case_quick(void)
{
    const char *quick = getenv("MGPU_QUICK");
    return quick && *quick && strcmp(quick, "0") != 0;
}
