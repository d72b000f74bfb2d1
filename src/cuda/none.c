/* SPDX-License-Identifier: MIT
 * none.c - cuda.h of a build without nvcc: no device, and a refusal that says so.
 */
#include "cuda/cuda.h"

int sl_cuda_count(void)
{
    return 0;
}

int sl_cuda_find(void)
{
    return -1;
}

int sl_cuda_create(const struct sl_cuda_config *cfg, struct sl_backend **out, struct sl_error *err)
{
    *out = NULL;
    return sl_fail(err, SL_EUNSUPPORTED,
                   "cuda:%d: this build has no CUDA (it was made without nvcc)", cfg->device);
}
