/* What is said when a GPU cannot be used, from drivers made up here; and the libraries there are.
 */
#include "runtime/cuda/compile.h"
#include "runtime/cuda/cuda.h"
#include "runtime/cuda/device.h"
#include "runtime/executor/devices.h"
#include "tests/test.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- A driver of our own --------------------------------------------------------------------- */

static struct {
    int version, count, major, minor;
    CUresult init;
    bool silent; /* about what only predictions want */
} fake;

static CUresult get_version(int *version)
{
    *version = fake.version;
    return CUDA_SUCCESS;
}

static CUresult init(unsigned flags)
{
    return flags ? CUDA_ERROR_INVALID_VALUE : fake.init;
}

static CUresult get_count(int *count)
{
    *count = fake.count;
    return CUDA_SUCCESS;
}

static CUresult get_device(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return ordinal < fake.count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult get_name(char *name, int size, CUdevice device)
{
    snprintf(name, (size_t)size, "GPU %d", device);
    return CUDA_SUCCESS;
}

static CUresult get_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    (void)device;
    bool capability = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ||
                      attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR;
    if (fake.silent && !capability)
        return CUDA_ERROR_INVALID_VALUE;
    *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? fake.major
             : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? fake.minor
             : attribute == CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE        ? 1000000
             : attribute == CU_DEVICE_ATTRIBUTE_CLOCK_RATE               ? 2000000
             : attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT     ? 132
                                                                         : 256;
    return CUDA_SUCCESS;
}

static CUresult get_memory(size_t *bytes, CUdevice device)
{
    *bytes = (size_t)(device + 1) << 34;
    return CUDA_SUCCESS;
}

static CUresult get_error_string(CUresult result, const char **text)
{
    *text = result == CUDA_ERROR_SYSTEM_NOT_READY ? "system not ready" : "other";
    return CUDA_SUCCESS;
}

static CUresult get_error_name(CUresult result, const char **name)
{
    *name = result == CUDA_ERROR_SYSTEM_NOT_READY ? "CUDA_ERROR_SYSTEM_NOT_READY" : NULL;
    return CUDA_SUCCESS;
}

static const struct mgpu_cuda_driver driver = {
    .cuInit = init,
    .cuDriverGetVersion = get_version,
    .cuDeviceGetCount = get_count,
    .cuDeviceGet = get_device,
    .cuDeviceGetName = get_name,
    .cuDeviceGetAttribute = get_attribute,
    .cuDeviceTotalMem = get_memory,
    .cuGetErrorName = get_error_name,
    .cuGetErrorString = get_error_string,
};

/* ---- Checks ---------------------------------------------------------------------------------- */

static void check_driver(void)
{
    int sm;
    fake.version = CUDA_VERSION;
    fake.count = 2, fake.major = 9, fake.minor = 0;
    CHECK_OK(mgpu_cuda_driver_check(&driver, 1, &sm));
    CHECK(sm == 90);
    struct mgpu_gpu_facts facts;
    CHECK_OK(mgpu_cuda_driver_facts(&driver, 1, &facts));
    CHECK(!strcmp(facts.name, "GPU 1") && facts.sm == 90 && facts.memory == INT64_C(1) << 35 &&
          facts.bytes == 64e9 && facts.cycles == 264e9);
    fake.silent = true;
    CHECK_OK(mgpu_cuda_driver_facts(&driver, 1, &facts));
    CHECK(facts.sm == 90 && facts.bytes == 0 && facts.cycles == 0);
    fake.silent = false;
    CHECK_FAILS(mgpu_cuda_driver_check(&driver, 2, &sm), "no GPU 2, only cuda:0 to cuda:1");
    fake.major = 7, fake.minor = 5;
    CHECK_OK(mgpu_cuda_driver_check(&driver, 1, &sm));
    CHECK(sm == 75);
    fake.major = 9, fake.minor = 0;
    fake.version = CUDA_VERSION + 10;
    CHECK_OK(mgpu_cuda_driver_check(&driver, 0, &sm));
    fake.version = CUDA_VERSION - 1000;
    CHECK_FAILS(mgpu_cuda_driver_check(&driver, 0, &sm), "driver is too old");
    fake.version = CUDA_VERSION;
    fake.major = 6, fake.minor = 1;
    CHECK_FAILS(mgpu_cuda_driver_check(&driver, 0, &sm),
                "'GPU 0' has compute capability 6.1, mgpu needs 7.5 or more");
    fake.init = CUDA_ERROR_SYSTEM_NOT_READY;
    CHECK_FAILS(mgpu_cuda_driver_check(&driver, 0, &sm),
                "(cuInit) failed: CUDA_ERROR_SYSTEM_NOT_READY, system not ready; the machine is "
                "not set up");
    fake.init = CUDA_ERROR_NO_DEVICE, fake.count = 0;
    CHECK_FAILS(mgpu_cuda_driver_check(&driver, 0, &sm), "an NVIDIA driver but no GPU");
}

static void check_precision(void)
{
    CHECK_OK(mgpu_device_check_precision("cuda:1", false, 80, "bf16"));
    CHECK_OK(mgpu_device_check_precision("cuda:1", false, 75, "f16"));
    CHECK_OK(mgpu_device_check_precision("mine", false, 0, "tf32"));
    CHECK_OK(mgpu_device_check_precision("cpu", true, 0, "tf32"));
    CHECK_FAILS(mgpu_device_check_precision("cpu", true, 0, "f16"), "the kernels of cpu compute");
    CHECK_FAILS(mgpu_device_check_precision("cuda:1", false, 75, "tf32"),
                "--precision tf32: cuda:1 has compute capability 7.5; products of bfloat16 and "
                "TF32 need 8.0");
}

static void check_visible(void)
{
    int sm;
    fake.init = CUDA_SUCCESS, fake.count = 1;
    setenv("CUDA_VISIBLE_DEVICES", "3", 1);
    CHECK_FAILS(mgpu_cuda_driver_check(&driver, 1, &sm),
                "only cuda:0 (CUDA_VISIBLE_DEVICES may hide others)");
    fake.count = 0;
    CHECK_FAILS(mgpu_cuda_driver_check(&driver, 0, &sm),
                "no GPU is visible: CUDA_VISIBLE_DEVICES is '3'");
    unsetenv("CUDA_VISIBLE_DEVICES");
}

/* With or without a GPU here. */
static void check_list(void)
{
    struct mgpu_rank_device *devices;
    int count;
    const char *lists[] = {"cpu:0,cuda:1023", "cuda",     "cuda:0",  "CUDA:0",
                           "cuda:0,1",        "cuda:all", "Cuda:ALL"};
    const char *none[] = {"gpu", "mps", "cuda0", "cuda3,cpu", "cpu2", "cpu:0x", "cpu,h100"};
    bool here = mgpu_cuda_count(&count) == 0;
    for (size_t i = 0; i < (here ? 1 : sizeof lists / sizeof *lists); i++)
        CHECK_FAILS(mgpu_devices_option(&devices, &count, lists[i], 0), "type --devices cpu");
    CHECK_FAILS(mgpu_devices_parse(&devices, &count, "cuda:x", 0), "needs a device number");
    CHECK_FAILS(mgpu_devices_parse(&devices, &count, "cuda:3-1", 0), "counts down");
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        CHECK_FAILS(mgpu_devices_parse(&devices, &count, none[i], 0),
                    "is no device here; use cuda:0, cpu, cpu:0,cpu:1");
    CHECK_FAILS(mgpu_devices_parse(&devices, &count, "cpu:0,", 0), "'cpu:0,' lacks a device");
    CHECK_OK(mgpu_devices_parse(&devices, &count, "CPU:0,Cpu", 0));
    CHECK(count == 2 && !strcmp(devices[0].name, "cpu:0") && !strcmp(devices[1].name, "cpu"));
    free(devices);
    if (mgpu_cuda_count(&count) < 0)
        CHECK(strstr(mgpu_error(), "driver") || strstr(mgpu_error(), "GPU"));
    int64_t bytes;
    if (!here && (mgpu_cuda_version(&count) < 0 || mgpu_cuda_free_memory(&bytes, 0) < 0))
        CHECK_(!strstr(mgpu_error() + 1, "no NVIDIA driver"), "'%s'", mgpu_error());
    CHECK(mgpu_devices_parse(&devices, &count, "cuda:1023", 0) < 0 && !devices);
}

/* Every library that is here has every function that we name. */
static void check_libraries(void)
{
    struct mgpu_cuda_nvrtc nvrtc;
    struct mgpu_cuda_lt lt;
    struct mgpu_cuda_dnn dnn;
    int loaded[] = {mgpu_cuda_load_nvrtc(&nvrtc), mgpu_cuda_load_lt(&lt), mgpu_cuda_load_dnn(&dnn)};
    for (int i = 0; i < 3; i++)
        CHECK(loaded[i] == 0 || loaded[i] == MGPU_EDEVICE);
    if (loaded[1] == 0)
        CHECK(lt.cublasLtGetVersion() / 10000 == CUBLAS_VER_MAJOR);
    if (loaded[2] == 0)
        CHECK(dnn.cudnnGetVersion() / 10000 == CUDNN_MAJOR);
}

/* Libraries that cannot be opened, in place of those that can: all in one line, and what to do. */
static int say_libraries(void)
{
    int rc = mgpu_cuda_check_libraries();
    puts(rc < 0 ? mgpu_error() : "nothing is missing");
    return 0;
}

static void check_missing(void)
{
    char folder[] = "/tmp/mgpu-libraries-XXXXXX", command[512], path[256], said[2048] = "";
    char names[2][64], self[256] = "";
    snprintf(names[0], sizeof names[0], "libnvrtc.so.%d", CUDA_VERSION / 1000);
    snprintf(names[1], sizeof names[1], "libcudnn.so.%d", CUDNN_MAJOR);
    CHECK(mkdtemp(folder) && readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        FILE *empty = fopen(path, "w");
        CHECK(empty && fclose(empty) == 0);
    }
    snprintf(command, sizeof command, "LD_LIBRARY_PATH=%s %s libraries", folder, self);
    FILE *from = popen(command, "r");
    CHECK(from && fgets(said, sizeof said, from) && pclose(from) == 0);
    CHECK_(strstr(said, "no NVRTC: ") && strstr(said, names[0]) && strstr(said, "; no cuDNN: ") &&
               strstr(said, names[1]) && strstr(said, "in LD_LIBRARY_PATH"),
           "%s", said);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

/* ---- A compiler of our own that is not whole ------------------------------------------------- */

static const char failed[] = "\nnvrtc: error: failed to open libnvrtc-builtins.so.\n  Make sure\n";

static nvrtcResult no_archs(int *count)
{
    *count = 0;
    return NVRTC_SUCCESS;
}

static nvrtcResult create(nvrtcProgram *out, const char *source, const char *name, int count,
                          const char *const *headers, const char *const *names)
{
    (void)source, (void)name, (void)count, (void)headers, (void)names;
    *out = NULL;
    return NVRTC_SUCCESS;
}

static nvrtcResult compile(nvrtcProgram program, int count, const char *const *options)
{
    (void)program, (void)count, (void)options;
    return NVRTC_ERROR_BUILTIN_OPERATION_FAILURE;
}

static nvrtcResult log_size(nvrtcProgram program, size_t *size)
{
    (void)program;
    *size = sizeof failed;
    return NVRTC_SUCCESS;
}

static nvrtcResult get_log(nvrtcProgram program, char *log)
{
    (void)program;
    memcpy(log, failed, sizeof failed);
    return NVRTC_SUCCESS;
}

static const char *compiler_error(nvrtcResult result)
{
    return result == NVRTC_ERROR_BUILTIN_OPERATION_FAILURE ? "builtin" : "other";
}

static nvrtcResult destroy(nvrtcProgram *program)
{
    (void)program;
    return NVRTC_SUCCESS;
}

static void check_builtins(void)
{
    struct mgpu_cubin cubin;
    const struct mgpu_cuda_nvrtc nvrtc = {.nvrtcGetNumSupportedArchs = no_archs,
                                          .nvrtcGetErrorString = compiler_error,
                                          .nvrtcCreateProgram = create,
                                          .nvrtcCompileProgram = compile,
                                          .nvrtcGetProgramLogSize = log_size,
                                          .nvrtcGetProgramLog = get_log,
                                          .nvrtcDestroyProgram = destroy};
    CHECK_FAILS(mgpu_cuda_compile_by(&nvrtc, &cubin, "", 90),
                "NVRTC: compiling kernels failed: builtin, nvrtc: error: failed to open "
                "libnvrtc-builtins.so. Make sure; a part of the library is missing");
}

static char note[1024];

static void keep_note(void *context, const char *text)
{
    (void)context;
    snprintf(note, sizeof note, "%s", text);
}

/* A driver without functions that we call (stand_in/driver.c): with a name of its own it is in the
 * place of another, where there is none. */
static void check_old_driver(void)
{
    char path[512];
    const char *build = getenv("MGPU_BUILD");
    struct mgpu_cuda_driver old;
    snprintf(path, sizeof path, "%s/stand_in/libcuda.so.1", build ? build : "build");
    if (mgpu_cuda_load_driver(&old) == 0 || !dlopen(path, RTLD_NOW))
        return; /* there is one; or this one is not built */
    CHECK(!old.cuInit);
    CHECK_FAILS(mgpu_cuda_load_driver(&old), "NVIDIA driver is too old: libcuda.so.1 has no cu");
    CHECK(old.cuInit && !old.cuMemAlloc);
    mgpu_set_note(keep_note, NULL);
    CHECK(!strcmp(mgpu_cuda_default(), "cpu"));
    mgpu_set_note(NULL, NULL);
    CHECK_(strstr(note, "the GPU cannot be used") && strstr(note, "is too old"), "%s", note);
}

int main(int argc, char **argv)
{
    (void)argv;
    if (argc > 1)
        return say_libraries();
    check_driver();
    check_precision();
    check_visible();
    check_list();
    check_libraries();
    check_missing();
    check_builtins();
    check_old_driver();
    return test_end();
}
