#include "runtime/cuda/api.h"

#include "runtime/base/status.h"

#include <dlfcn.h>
#include <stdio.h>

struct entry {
    const char *name;
    void **at; /* the member of the table */
};

/* cuda.h gives some functions another name (_v2): that is the one in the library. */
#define NAME_(f) #f
#define NAME(f)  NAME_(f)
#define ENTRY(f) {NAME(f), (void **)&table->f},
#define END                                                                                        \
    {                                                                                              \
        NULL, NULL                                                                                 \
    }

/* What the library lacks stays NULL. `title`: what it is. */
static int load(const char *title, const char *library, const struct entry *entries)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    const char *lacks = NULL;
    if (!handle)
        return mgpu_fail(MGPU_EDEVICE, "no %s: %s", title, dlerror());
    for (const struct entry *e = entries; e->name; e++) {
        *e->at = dlsym(handle, e->name);
        lacks = lacks || *e->at ? lacks : e->name;
    }
    if (!lacks)
        return 0;
    return mgpu_fail(MGPU_EDEVICE, "%s is too old: %s has no %s", title, library, lacks);
}

/* The name of a library of the toolkit: of the major version whose headers we were built with. */
static const char *versioned(char name[64], const char *library, int major)
{
    snprintf(name, 64, "lib%s.so.%d", library, major);
    return name;
}

static const struct mgpu_cuda_driver *other_driver;
static const struct mgpu_cuda_nvrtc *other_nvrtc;

void mgpu_cuda_stand_in(const struct mgpu_cuda_driver *driver, const struct mgpu_cuda_nvrtc *nvrtc)
{
    other_driver = driver;
    other_nvrtc = nvrtc;
}

int mgpu_cuda_load_driver(struct mgpu_cuda_driver *table)
{
    *table = (struct mgpu_cuda_driver){0};
    if (other_driver) {
        *table = *other_driver;
        return 0;
    }
    int version = 0,
        rc = load("NVIDIA driver", "libcuda.so.1", (struct entry[]){MGPU_CUDA_DRIVER(ENTRY) END});
    if (rc < 0 && !table->cuInit)
        return mgpu_fail(rc, "%s (install it; a container has to be started with GPUs)",
                         mgpu_error());
    if (rc < 0 && table->cuDriverGetVersion)
        table->cuDriverGetVersion(&version);
    return version == 0 || version / 1000 >= CUDA_VERSION / 1000 ? rc : mgpu_cuda_too_old(version);
}

int mgpu_cuda_too_old(int version)
{
    return mgpu_fail(MGPU_EDEVICE,
                     "the NVIDIA driver is too old: it runs CUDA up to %d.%d, this build needs "
                     "%d.0 (install a newer driver)",
                     version / 1000, version % 1000 / 10, CUDA_VERSION / 1000);
}

int mgpu_cuda_load_nvrtc(struct mgpu_cuda_nvrtc *table)
{
    char name[64];
    if (other_nvrtc) {
        *table = *other_nvrtc;
        return 0;
    }
    return load("NVRTC", versioned(name, "nvrtc", CUDA_VERSION / 1000),
                (struct entry[]){MGPU_CUDA_NVRTC(ENTRY) END});
}

static bool without_libraries(void)
{
    return other_driver && !other_driver->properties;
}

int mgpu_cuda_load_lt(struct mgpu_cuda_lt *table)
{
    char name[64];
    if (without_libraries())
        return 0;
    return load("cuBLASLt", versioned(name, "cublasLt", CUBLAS_VER_MAJOR),
                (struct entry[]){MGPU_CUDA_LT(ENTRY) END});
}

int mgpu_cuda_load_dnn(struct mgpu_cuda_dnn *table)
{
    char name[64];
    if (without_libraries())
        return 0;
    MGPU_TRY(load("cuDNN", versioned(name, "cudnn", CUDNN_MAJOR),
                  (struct entry[]){MGPU_CUDA_DNN(ENTRY) END}));
    return mgpu_cuda_check_dnn(table->cudnnGetVersion());
}

int mgpu_cuda_check_dnn(size_t version)
{
    const int oldest = MGPU_CUDA_OLDEST_CUDNN;
    if (version >= (size_t)oldest)
        return 0;
    return mgpu_fail(MGPU_EDEVICE,
                     "cuDNN is too old: it is version %zu.%zu, this build needs %d.%d",
                     version / 10000, version / 100 % 100, oldest / 10000, oldest / 100 % 100);
}
