/* NVRTC compiles every kernel that the cases generate, the kernels of two ranks that add up their
 * gradients among them, for four kinds of GPU (double.h), of some in half types too; none spills
 * registers. */
#include "runtime/cuda/compile.h"
#include "tests/cuda/double.h"
#include "tests/golden/case_run.h"
#include "tests/test.h"

#include <dirent.h>

static void compile_case(const char *name, const char *precision)
{
    char folder[300];
    struct mgpu_case_result r;
    snprintf(folder, sizeof folder, "tests/cases/%s", name);
    struct mgpu_case_request request = {.folder = folder,
                                        .devices = "cuda:0,cuda:0",
                                        .ranks = 2,
                                        .precision = precision,
                                        .steps = 1};
    mgpu_case_run(&r, &request);
    CHECK_(!double_complaints(), "%s in %s: %s", name, precision, double_complaint());
    double_forget();
    mgpu_case_result_free(&r);
}

int main(void)
{
    static const int kinds[] = {75, 80, 90, 100};
    struct mgpu_cubin cubin;
    struct dirent **entry;
    int rc = mgpu_cuda_compile(&cubin, "KERNEL(k_0)(float *x) { *x = 1; }\n", 75);
    mgpu_cubin_free(&cubin);
    if (double_skipped())
        return 77;
    if (rc == MGPU_EDEVICE) {
        fprintf(stderr, "skipped: no NVRTC\n");
        return 77;
    }
    double_begin(1, INT64_C(1) << 30);
    double_compile(kinds, 4);
    int n = scandir("tests/cases", &entry, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        bool large = !strcmp(entry[i]->d_name, "keras-bigru-embedding-keras3");
        if (entry[i]->d_name[0] != '.' && !large)
            compile_case(entry[i]->d_name, "f32");
        if (entry[i]->d_name[0] != '.' && !large && i % 3 == 0)
            compile_case(entry[i]->d_name, i % 2 ? "bf16" : "f16");
        free(entry[i]);
    }
    if (n >= 0)
        free(entry);
    double_end();
    struct double_kernels kernels = double_compiled();
    printf("%d kernels, at most %d registers, %d bytes of shared memory, %d spilled\n",
           kernels.count, kernels.registers, kernels.shared, kernels.spilled);
    CHECK(kernels.registers <= 65536 / 512); /* what a block of the most threads may take */
    CHECK(kernels.count > 1500);
    return test_end();
}
