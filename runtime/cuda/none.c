/* In place of the folder where the CUDA toolkit was not found, or not wanted. */
#include "runtime/cuda/cuda.h"

#include "runtime/base/status.h"

int mgpu_cuda_count(int *count)
{
    *count = 0;
    return mgpu_fail(MGPU_EDEVICE, "this build has no CUDA (cmake -DMGPU_CUDA=ON)");
}

int mgpu_cuda_check(int index)
{
    (void)index;
    int count;
    return mgpu_cuda_count(&count);
}
