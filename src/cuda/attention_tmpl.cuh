/* SPDX-License-Identifier: MIT
 * attention_tmpl.cuh - the two kernels of paged attention, for a format of the pages and a padded
 * head dimension D. Order of the arithmetic: attention.cuh.
 */
#include "cuda/attention_narrow.cuh"
#include "cuda/attention_skip.cuh"
#include "cuda/attention_wg.cuh"
#include "cuda/attention_wide.cuh"

/* ---------------------------------------------------------------- launch */

/* With skip-softmax by kernels of their own, so that it costs nothing where it is off. */
template <class KV, int D>
static inline void sl_attn_run_skip(struct sl_cuda *cu, const struct sl_attn_args *a, int cls,
                                    int32_t grid)
{
    typedef sl_attn_narrow_cfg<KV, D, true> narrow;
    dim3 blocks(static_cast<unsigned>(grid));
    if (cls == 0) {
        sl_launch(cu, sl_attn_narrow_kernel<KV, D, true>, blocks, dim3(narrow::THREADS),
                  narrow::BYTES, *a);
    } else if constexpr (!KV::scaled && (D == 64 || D == 128)) {
        typedef sl_attn_skip_cfg<D> wide;
        sl_launch(cu, sl_attn_skip_kernel<KV, D>, blocks, dim3(wide::THREADS), wide::BYTES, *a);
    } else {
        typedef sl_attn_wide_cfg<KV, D> wide;
        sl_launch(cu, sl_attn_wide_kernel<KV, D, true>, blocks, dim3(wide::THREADS), wide::BYTES,
                  *a);
    }
}

template <class KV, int D>
static inline void sl_attn_run(struct sl_cuda *cu, const struct sl_attn_args *a, int cls,
                               int32_t grid)
{
    typedef sl_attn_narrow_cfg<KV, D> narrow;
    dim3 blocks(static_cast<unsigned>(grid));
    if (a->skip_log2 > -INFINITY) {
        sl_attn_run_skip<KV, D>(cu, a, cls, grid);
    } else if (cls == 0) {
        sl_launch(cu, sl_attn_narrow_kernel<KV, D>, blocks, dim3(narrow::THREADS), narrow::BYTES,
                  *a);
    } else if constexpr (!KV::scaled && (D == 64 || D == 128)) {
        typedef sl_attn_wg_cfg<D> wide;
        sl_launch(cu, sl_attn_wg_kernel<KV, D>, blocks, dim3(wide::THREADS), wide::BYTES, *a);
    } else {
        typedef sl_attn_wide_cfg<KV, D> wide;
        sl_launch(cu, sl_attn_wide_kernel<KV, D>, blocks, dim3(wide::THREADS), wide::BYTES, *a);
    }
}
