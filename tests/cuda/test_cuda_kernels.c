/* NVRTC compiles every kernel that the cases generate, the kernels of two ranks that add up their
 * gradients among them, for several kinds of GPU in turn, of some in half types too; none spills
 * registers. */
#include "runtime/cuda/compile.h"
#include "tests/cuda/double.h"
#include "tests/golden/case_run.h"
#include "tests/test.h"

#include <dirent.h>

static void compile_case(const char *name, int sm, const char *precision)
{
    char folder[300];
    struct mgpu_case_result r;
    snprintf(folder, sizeof folder, "tests/cases/%s", name);
    struct mgpu_case_request request = {.folder = folder,
                                        .devices = "cuda:0,cuda:0",
                                        .ranks = 2,
                                        .precision = precision,
                                        .steps = 1};
    double_compile(sm);
    mgpu_case_run(&r, &request);
    CHECK_(!double_complaints(), "%s, sm_%d: %s", name, sm, double_complaint());
    double_forget();
    mgpu_case_result_free(&r);
}

int main(void)
{
    static const int kinds[] = {75, 80, 90, 100};
    struct mgpu_cubin cubin;
    struct dirent **entry;
    int registers, rc = mgpu_cuda_compile(&cubin, "KERNEL(k_0)(float *x) { *x = 1; }\n", 75);
    mgpu_cubin_free(&cubin);
    if (!double_possible() || rc == MGPU_EDEVICE) {
        fprintf(stderr, "skipped: no C compiler, no NVRTC, or the thread sanitizer\n");
        return 77;
    }
    double_begin(1, INT64_C(1) << 30);
    int n = scandir("tests/cases", &entry, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        bool large = !strcmp(entry[i]->d_name, "keras-bigru-embedding-keras3");
        if (entry[i]->d_name[0] != '.' && !large)
            compile_case(entry[i]->d_name, kinds[i % 4], "f32");
        if (entry[i]->d_name[0] != '.' && !large && i % 3 == 0)
            compile_case(entry[i]->d_name, kinds[i / 3 % 4], i % 2 ? "bf16" : "f16");
        free(entry[i]);
    }
    if (n >= 0)
        free(entry);
    double_end();
    int kernels = double_compiled(&registers);
    printf("%d kernels, at most %d registers\n", kernels, registers);
    CHECK(kernels > 500);
    return test_end();
}
