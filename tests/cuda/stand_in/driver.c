/* The functions of CUDA's driver that cuDNN looks up before it compiles a plan's kernels. It has
 * the compiler of its own; of the driver it only asks to load what came out, which succeeds here.
 * All else fails, as there is no GPU. */
enum { SUCCESS = 0, STUB = 34 };

int cuLibraryLoadData(void **library);
int cuLibraryGetKernel(void **kernel);
int cuLibraryUnload(void *library);
int cuGetErrorString(int error, const char **text);

static char loaded;

int cuLibraryLoadData(void **library)
{
    *library = &loaded;
    return SUCCESS;
}

int cuLibraryGetKernel(void **kernel)
{
    *kernel = &loaded;
    return SUCCESS;
}

int cuLibraryUnload(void *library)
{
    (void)library;
    return SUCCESS;
}

int cuGetErrorString(int error, const char **text)
{
    (void)error;
    *text = "a driver of tests";
    return SUCCESS;
}

#define FAILS(f)                                                                                   \
    int f(void);                                                                                   \
    int f(void)                                                                                    \
    {                                                                                              \
        return STUB;                                                                               \
    }

FAILS(cuGetErrorName)
FAILS(cuInit)
FAILS(cuDriverGetVersion)
FAILS(cuDeviceGetCount)
FAILS(cuDeviceGet)
FAILS(cuCtxGetCurrent)
FAILS(cuCtxGetLimit)
FAILS(cuCtxPopCurrent)
FAILS(cuCtxPushCurrent)
FAILS(cuStreamGetCtx)
FAILS(cuLinkCreate)
FAILS(cuLinkAddData)
FAILS(cuLinkComplete)
FAILS(cuLinkDestroy)
FAILS(cuLaunchKernel)
FAILS(cuLaunchKernelEx)
FAILS(cuLaunchCooperativeKernel)
FAILS(cuLibraryLoadFromFile)
FAILS(cuKernelGetAttribute)
FAILS(cuKernelSetAttribute)
FAILS(cuOccupancyMaxPotentialClusterSize)
