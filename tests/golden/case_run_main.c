/* case-run [--devices LIST] [--precision f32|f64] [--steps N] [--defaults] [--fast] FOLDER...
 *
 * Runs case folders and prints how far the numbers are from the answers. MGPU_CHECK=double in the
 * environment: `cuda:0` is a GPU that there is not (tests/cuda/double.h), with "double h100" one
 * whose nodes and layouts are those of an H100. */
#include "runtime/executor/devices.h"
#include "tests/cuda/double.h"
#include "tests/golden/case_run.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

static int usage(void)
{
    fprintf(stderr, "usage: case-run [--devices LIST] [--precision f32|f64] [--steps N] "
                    "[--defaults] [--fast] FOLDER...\n");
    return 2;
}

int main(int count, char **words)
{
    static const struct option options[] = {
        {"devices", required_argument, NULL, 'd'}, {"precision", required_argument, NULL, 'p'},
        {"steps", required_argument, NULL, 's'},   {"defaults", no_argument, NULL, 'D'},
        {"fast", no_argument, NULL, 'F'},          {0}};
    struct mgpu_case_request q = {.devices = "cpu:0", .precision = "f32", .forward = true};
    struct mgpu_rank_device *devices;
    int failed = 0;
    double_wanted(); /* cuda:0 without a GPU */
    for (int o; (o = getopt_long(count, words, "", options, NULL)) != -1;)
        switch (o) {
        case 'd':
            q.devices = optarg;
            break;
        case 'p':
            q.precision = optarg;
            break;
        case 's':
            q.steps = atoll(optarg);
            break;
        case 'D':
            q.defaults = true;
            break;
        case 'F':
            q.fast = true;
            break;
        default:
            return usage();
        }
    if (optind == count || mgpu_devices_parse(&devices, &q.ranks, q.devices, 0) < 0)
        return usage();
    free(devices);
    for (int i = optind; i < count; i++) {
        struct mgpu_case_result result;
        char *end = words[i] + strlen(words[i]) - 1;
        while (end > words[i] && *end == '/')
            *end-- = 0;
        q.folder = words[i];
        mgpu_case_run(&result, &q);
        mgpu_case_print(stdout, &q, &result);
        failed += result.outcome != MGPU_CASE_PASSED;
        mgpu_case_result_free(&result);
    }
    if (double_complaints())
        fprintf(stderr, "%s\n", double_complaint());
    return failed || double_complaints() ? EXIT_FAILURE : EXIT_SUCCESS;
}
