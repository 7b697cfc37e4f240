/* What the driver and NVIDIA's libraries say when a call fails, told to a person:
 *
 *     copying to the GPU (cuMemcpyHtoDAsync) failed: CUDA_ERROR_ECC_UNCORRECTABLE, uncorrectable
 *     ECC error encountered; the GPU itself has failed: ...
 *
 * what was done, the error's name and the library's words, and for the usual errors what can be
 * done about them. The device is named by who calls (mgpu_prefix). All but 0 are MGPU_EDEVICE,
 * unless it says so.
 */
#ifndef MGPU_CUDA_ERROR_H
#define MGPU_CUDA_ERROR_H

#include "runtime/cuda/api.h"

/* `call`: the name of a function of the driver. */
int mgpu_cuda_status(const struct mgpu_cuda_driver *driver, CUresult result, const char *call);

/* `what` was done, in words that "failed" can follow; "starting" begins those before a run has
 * memory. MGPU_EUNSUPPORTED: the library has no code for it. */
int mgpu_lt_status(const struct mgpu_cuda_lt *lt, cublasStatus_t status, const char *what);
int mgpu_dnn_status(const struct mgpu_cuda_dnn *dnn, cudnnStatus_t status, const char *what);

/* `log`: what the compiler says, "" for nothing. MGPU_EINTERNAL: what it was given is wrong. */
int mgpu_nvrtc_status(const struct mgpu_cuda_nvrtc *nvrtc, nvrtcResult result, const char *what,
                      const char *log);

/* Bytes of mgpu_error's text without that it is a fault of mgpu to be reported: what a warning
 * tells, after which the run goes on. */
int mgpu_gpu_error_length(void);

#endif
