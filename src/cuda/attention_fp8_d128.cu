/* SPDX-License-Identifier: MIT
 * attention_fp8_d128.cu - paged attention for heads of 128 dimensions, padded, over pages of FP8.
 */
#include "cuda/attention_tmpl.cuh"

void sl_attn_run_fp8_128(struct sl_cuda *cu, const struct sl_attn_args *a, int cls, int32_t grid)
{
    sl_attn_run<struct sl_kv_fp8, 128>(cu, a, cls, grid);
}
