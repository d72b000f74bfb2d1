/* SPDX-License-Identifier: MIT
 * attention_f16_d64.cu - paged attention for heads of 64 dimensions, padded, over pages of F16.
 */
#include "cuda/attention_tmpl.cuh"

void sl_attn_run_f16_64(struct sl_cuda *cu, const struct sl_attn_args *a, int cls, int32_t grid)
{
    sl_attn_run<struct sl_kv_f16, 64>(cu, a, cls, grid);
}
