/* SPDX-License-Identifier: MIT
 * The plain C kernels: the reference every other version must equal, and what runs on a processor
 * without AVX2. Formats are read by their reference conversion.
 */
#include "cpu/kernels.h"
#include "cpu/vec_c.h"

#include "cpu/kernels_tmpl.c"

LANES v16 v_load_f16(const uint8_t *p)
{
    v16 r;
    sl_dtype_info(SL_DTYPE_F16)->to_f32(p, r.f, 16);
    return r;
}

LANES v16 v_load_bf16(const uint8_t *p)
{
    v16 r;
    sl_dtype_info(SL_DTYPE_BF16)->to_f32(p, r.f, 16);
    return r;
}

#include "cpu/lora_tmpl.c"

#include "cpu/page_scores_tmpl.c"

void sl_cpu_kernels_c(struct sl_cpu_kernels *k)
{
    fill_kernels(k);
    fill_lora(k);
    fill_page_scores(k);
    for (int t = 0; t < SL_DTYPE_COUNT; t++) {
        k->decode[t] = sl_dtype_info((enum sl_dtype)t)->to_f32;
        k->encode[t] = sl_dtype_info((enum sl_dtype)t)->from_f32;
    }
#define SL_DTYPE(id, name, elems, bytes, gguf, st) k->route[SL_DTYPE_##id] = name "_c";
#include "quant/dtypes.def"
#undef SL_DTYPE
}
