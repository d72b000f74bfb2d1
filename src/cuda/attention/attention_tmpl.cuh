/* SPDX-License-Identifier: MIT
 * attention_tmpl.cuh - the kernels of paged attention, for a format of the pages and a padded
 * head dimension D; tools/cuda_instances makes a file of each pair, so that they compile side by
 * side. Order of the arithmetic: attention.cuh.
 */
#include "cuda/attention/attention_dequant.cuh"
#include "cuda/attention/attention_narrow.cuh"
#include "cuda/attention/attention_short.cuh"
#include "cuda/attention/attention_single.cuh"
#include "cuda/attention/attention_skip.cuh"
#include "cuda/attention/attention_wg.cuh"
#include "cuda/attention/attention_wide.cuh"
#include "cuda/attention/kv4.cuh"

/* ---------------------------------------------------------------- launch */

template <class Way>
static inline void sl_attn_run_group(struct sl_cuda *cu, const struct sl_attn_args *a, int32_t grid)
{
    typedef typename Way::cfg cfg;
    sl_launch(cu, sl_attn_group_kernel<Way>, dim3(static_cast<unsigned>(grid)), dim3(cfg::THREADS),
              cfg::BYTES, *a);
}

template <class KV, int D, int N, bool SKIP>
static inline void sl_attn_run_narrow(struct sl_cuda *cu, const struct sl_attn_args *a,
                                      int32_t grid)
{
    typedef sl_attn_narrow_cfg<KV, D, N, SKIP> cfg;
    sl_launch(cu, sl_attn_narrow_kernel<KV, D, N, SKIP>, dim3(static_cast<unsigned>(grid)),
              dim3(cfg::THREADS), cfg::BYTES, *a);
}

template <class KV, int D, bool SKIP, class cfg>
static inline void sl_attn_run_wide(struct sl_cuda *cu, const struct sl_attn_args *a, int32_t grid)
{
    sl_launch(cu, sl_attn_wide_kernel<KV, D, SKIP, cfg>, dim3(static_cast<unsigned>(grid)),
              dim3(cfg::THREADS), cfg::BYTES, *a);
}

template <class KV, int D, bool SKIP>
static inline void sl_attn_run_medium(struct sl_cuda *cu, const struct sl_attn_args *a,
                                      int32_t grid)
{
    if constexpr (D % 64 == 0 && !SKIP)
        sl_attn_run_group<sl_attn_single<KV, D, 1>>(cu, a, grid);
    else
        sl_attn_run_wide<KV, D, SKIP, sl_attn_wide_cfg<KV, D, SL_ATTN_MEDIUM / 16>>(cu, a, grid);
}

/* With skip-softmax by kernels of their own, so that it costs nothing where it is off. */
template <class KV, int D>
static inline void sl_attn_run_skip(struct sl_cuda *cu, const struct sl_attn_args *a, int cls,
                                    int32_t grid)
{
    if (cls == SL_ATTN_CLASS_NARROW && a->few)
        sl_attn_run_narrow<KV, D, 1, true>(cu, a, grid);
    else if (cls == SL_ATTN_CLASS_NARROW)
        sl_attn_run_narrow<KV, D, 2, true>(cu, a, grid);
    else if (cls == SL_ATTN_CLASS_MEDIUM)
        sl_attn_run_medium<KV, D, true>(cu, a, grid);
    else if constexpr (D == 64 || D == 128)
        sl_attn_run_group<sl_attn_skip<KV, D>>(cu, a, grid);
    else
        sl_attn_run_wide<KV, D, true, sl_attn_wide_cfg<KV, D>>(cu, a, grid);
}

template <class KV, int D>
static inline void sl_attn_run(struct sl_cuda *cu, const struct sl_attn_args *a, int cls,
                               int32_t grid)
{
    if (a->skip_log2 > -INFINITY)
        sl_attn_run_skip<KV, D>(cu, a, cls, grid);
    else if (cls == SL_ATTN_CLASS_NARROW && a->few)
        sl_attn_run_narrow<KV, D, 1, false>(cu, a, grid);
    else if (cls == SL_ATTN_CLASS_NARROW)
        sl_attn_run_narrow<KV, D, 2, false>(cu, a, grid);
    else if (cls == SL_ATTN_CLASS_MEDIUM)
        sl_attn_run_medium<KV, D, false>(cu, a, grid);
    else if constexpr (D == 64 || D == 128)
        sl_attn_run_group<sl_attn_wg<KV, D>>(cu, a, grid);
    else if constexpr (D == 256)
        sl_attn_run_group<sl_attn_single<KV, D, 2>>(cu, a, grid);
    else
        sl_attn_run_wide<KV, D, false, sl_attn_wide_cfg<KV, D>>(cu, a, grid);
}

#define SL_ATTN_INSTANCE(pages, d)                                                            \
    void sl_attn_run_##pages##_##d(struct sl_cuda *cu, const struct sl_attn_args *a, int cls, \
                                   int32_t grid)                                              \
    {                                                                                         \
        sl_attn_run<struct sl_kv_##pages, d>(cu, a, cls, grid);                               \
    }
