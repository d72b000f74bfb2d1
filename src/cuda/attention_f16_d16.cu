/* SPDX-License-Identifier: MIT
 * attention_f16_d16.cu - paged attention for heads of 16 dimensions, padded, over pages of F16.
 */
#include "cuda/attention_tmpl.cuh"

void sl_attn_run_f16_16(struct sl_cuda *cu, const struct sl_attn_args *a, int cls, int32_t grid)
{
    sl_attn_run<struct sl_kv_f16, 16>(cu, a, cls, grid);
}
