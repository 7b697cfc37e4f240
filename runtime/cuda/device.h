/* Whether GPUs can be used, asked of a given driver. */
#ifndef MGPU_CUDA_DEVICE_H
#define MGPU_CUDA_DEVICE_H

#include "runtime/cuda/api.h"
#include "runtime/cuda/cuda.h"

/* What the toolkit that we were built with needs. */
enum { MGPU_CUDA_OLDEST_SM = 75 };

/* As mgpu_cuda_count; initialises the driver. */
int mgpu_cuda_driver_count(const struct mgpu_cuda_driver *driver, int *count);

/* Whether NVRTC, cuBLASLt and cuDNN are here and new enough; all that are not in one line. */
int mgpu_cuda_check_libraries(void);

/* As mgpu_cuda_facts; the driver is initialised. */
int mgpu_cuda_driver_facts(const struct mgpu_cuda_driver *driver, int index,
                           struct mgpu_gpu_facts *out);

/* As mgpu_cuda_check, less the libraries; the driver is initialised. *sm is 10 * major + minor of
 * the compute capability. */
int mgpu_cuda_driver_check(const struct mgpu_cuda_driver *driver, int index, int *sm);

#endif
