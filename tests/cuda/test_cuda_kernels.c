/* NVRTC compiles every kernel that the cases generate, the kernels of two ranks that add up their
 * gradients among them, for four kinds of GPU (double.h); none spills registers. First as without
 * NVIDIA's libraries, of some cases in half types too; then what is left to generate where the
 * libraries have the rest and want images channels-last: in tf32, bf16 or f16, a case in one.
 */
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

static void compile_cases(bool libraries)
{
    static const char *const turn[] = {"tf32", "bf16", "f16"};
    struct dirent **entry;
    int n = scandir("tests/cases", &entry, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        const char *name = entry[i]->d_name;
        bool large = !strcmp(name, "keras-bigru-embedding-keras3");
        if (name[0] != '.' && !large && libraries)
            compile_case(name, turn[i % 3]);
        if (name[0] != '.' && !large && !libraries)
            compile_case(name, "f32");
        if (name[0] != '.' && !large && !libraries && i % 3 == 0)
            compile_case(name, i % 2 ? "bf16" : "f16");
        free(entry[i]);
    }
    if (n >= 0)
        free(entry);
}

/* What kernels take on each kind of GPU; how many there are. */
static int report(const int *kinds, int count)
{
    int all = 0;
    for (int i = 0; i < count; i++) {
        struct double_kernels k = double_compiled(i);
        printf("sm_%d: %d kernels, at most %d registers, %d bytes of shared memory, %d spilled\n",
               kinds[i], k.count, k.registers, k.shared, k.spilled);
        CHECK(k.registers <= 65536 / 512); /* what a block of the most threads may take */
        all += k.count;
    }
    return all;
}

int main(void)
{
    static const int kinds[] = {75, 80, 90, 100};
    struct mgpu_cubin cubin;
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
    compile_cases(false);
    int plain = report(kinds, 4);
    CHECK(plain > 1500);
    if (double_libraries("h100")) {
        compile_cases(true);
        CHECK(report(kinds, 4) > plain + 200);
    } else {
        printf("no cuDNN or cuBLASLt: no kernels beside them\n");
    }
    double_end();
    return test_end();
}
