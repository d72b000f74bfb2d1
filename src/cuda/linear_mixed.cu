/* SPDX-License-Identifier: MIT
 * Gated products whose gate and up have different layouts: the streaming kernel with the layout
 * looked up by each warp. Model files do not do this, but may; so it is correct for any number of
 * tokens (64 at a time) and not tuned.
 */
#include "cuda/linear_stream.cuh"

#define MIXED_SLOT_BYTES 4096 /* the largest stage of all layouts */
#define NT               8

static __global__ void __launch_bounds__(32 * (SL_STREAM_CONSUMERS(NT) + 1))
    mixed_kernel(const __grid_constant__ sl_lin l, const __grid_constant__ sl_stream_plan p)
{
    SL_SMEM(uint8_t, smem);
    int warp = static_cast<int>(threadIdx.x / 32), from, to;
    sl_stream_init(p, smem);
    sl_stream_range(l, p, &from, &to);
    if (warp >= p.warps) {
        sl_stream_bring_warp(l, p, smem, from, to);
        return;
    }
    switch (l.part[warp & 1].layout) {
    case SL_CUDA_BF16:
        return sl_stream_warp<sl_wf_bf16, NT>(l, p, smem, from, to, warp);
    case SL_CUDA_Q8_0:
        return sl_stream_warp<sl_wf_q8_0, NT>(l, p, smem, from, to, warp);
    case SL_CUDA_Q4_0:
        return sl_stream_warp<sl_wf_q4_0, NT>(l, p, smem, from, to, warp);
    case SL_CUDA_Q4_K:
        return sl_stream_warp<sl_wf_q4_k, NT>(l, p, smem, from, to, warp);
    case SL_CUDA_Q5_K:
        return sl_stream_warp<sl_wf_q5_k, NT>(l, p, smem, from, to, warp);
    default:
        return sl_stream_warp<sl_wf_q6_k, NT>(l, p, smem, from, to, warp);
    }
}

void sl_lin_stream8_mixed(struct sl_cuda *cu, const struct sl_lin *l)
{
    sl_stream_plan p;
    size_t smem;
    unsigned grid = sl_stream_make_plan(cu, l, MIXED_SLOT_BYTES, NT, &p, &smem);
    sl_launch(cu, mixed_kernel, dim3(grid), dim3(32u * (unsigned)(p.warps + 1)), smem, *l, p);
}
