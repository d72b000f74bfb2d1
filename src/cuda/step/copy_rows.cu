/* SPDX-License-Identifier: MIT
 * Rows copied between widths and formats: hidden rows of a model, for drafters.
 *
 * Expected, not measured: bound by memory for many rows (EAGLE-3's three rows of 4,096 of a token:
 * 48 KiB read, 24 written) and by the launch for few.
 */
#include "cuda/launch.cuh"
#include "cuda/ptx.cuh"

#include <cuda_bf16.h>

#define COPY_THREADS 256
#define COPY_COLS    1024 /* of a block: four a thread */

struct copy_args {
    const void *x;
    int64_t ld_x;
    const int32_t *rows;
    const float *other; /* in place of rows below 0 */
    int32_t h;
    void *out;
    int64_t ld_out;
};

/* Four columns, or those there are of them. A format's bits are kept where it stays. */
template <bool ACT, bool WIDE>
static __device__ __forceinline__ void copy_load(const void *row, int32_t i, int32_t n, float v[4])
{
    if (WIDE && ACT) {
        const uint2 p =
            *reinterpret_cast<const uint2 *>(static_cast<const __nv_bfloat16 *>(row) + i);
        v[0] = __uint_as_float(p.x << 16), v[1] = __uint_as_float(p.x & 0xFFFF0000u);
        v[2] = __uint_as_float(p.y << 16), v[3] = __uint_as_float(p.y & 0xFFFF0000u);
    } else if (WIDE) {
        const float4 p = *reinterpret_cast<const float4 *>(static_cast<const float *>(row) + i);
        v[0] = p.x, v[1] = p.y, v[2] = p.z, v[3] = p.w;
    } else {
        for (int32_t k = 0; k < n; k++)
            v[k] = ACT ? __bfloat162float(static_cast<const __nv_bfloat16 *>(row)[i + k])
                       : static_cast<const float *>(row)[i + k];
    }
}

template <bool ACT, bool WIDE>
static __device__ __forceinline__ void copy_store(void *row, int32_t i, int32_t n, const float v[4])
{
    if (WIDE && ACT) {
        uint2 p;
        p.x = __bfloat16_as_ushort(__float2bfloat16_rn(v[0])) |
              static_cast<uint32_t>(__bfloat16_as_ushort(__float2bfloat16_rn(v[1]))) << 16;
        p.y = __bfloat16_as_ushort(__float2bfloat16_rn(v[2])) |
              static_cast<uint32_t>(__bfloat16_as_ushort(__float2bfloat16_rn(v[3]))) << 16;
        *reinterpret_cast<uint2 *>(static_cast<__nv_bfloat16 *>(row) + i) = p;
    } else if (WIDE) {
        *reinterpret_cast<float4 *>(static_cast<float *>(row) + i) =
            make_float4(v[0], v[1], v[2], v[3]);
    } else {
        for (int32_t k = 0; k < n; k++)
            if (ACT)
                static_cast<__nv_bfloat16 *>(row)[i + k] = __float2bfloat16_rn(v[k]);
            else
                static_cast<float *>(row)[i + k] = v[k];
    }
}

/* grid (rows, columns / COPY_COLS) */
template <bool IN, bool OUT, bool WIDE>
static __global__ void __launch_bounds__(COPY_THREADS) copy_kernel(copy_args a)
{
    sl_grid_launch_dependents();
    sl_grid_wait();
    const int64_t at = a.rows != nullptr ? a.rows[blockIdx.x] : blockIdx.x;
    const int32_t i =
        static_cast<int32_t>(blockIdx.y) * COPY_COLS + 4 * static_cast<int32_t>(threadIdx.x);
    const uint8_t *x =
        static_cast<const uint8_t *>(a.x) + at * a.ld_x * (IN ? (int64_t)2 : (int64_t)4);
    uint8_t *out = static_cast<uint8_t *>(a.out) +
                   (int64_t)blockIdx.x * a.ld_out * (OUT ? (int64_t)2 : (int64_t)4);
    float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (i >= a.h)
        return;
    const int32_t n = a.h - i < 4 ? a.h - i : 4;
    if (at < 0)
        copy_load<false, WIDE>(a.other, i, n, v);
    else
        copy_load<IN, WIDE>(x, i, n, v);
    copy_store<OUT, WIDE>(out, i, n, v);
}

template <bool IN, bool OUT>
static void copy(struct sl_cuda *cu, const struct sl_op_copy_rows *a, bool wide)
{
    const copy_args k = {a->x, a->ld_x, a->rows, a->other, a->h, a->out, a->ld_out};
    const dim3 grid(static_cast<unsigned>(a->n),
                    static_cast<unsigned>(SL_CEIL_DIV(a->h, COPY_COLS)));
    sl_launch(cu, wide ? copy_kernel<IN, OUT, true> : copy_kernel<IN, OUT, false>, grid,
              dim3(COPY_THREADS), 0, k);
}

extern "C" void sl_cuda_copy_rows(struct sl_backend *be, const struct sl_op_copy_rows *a)
{
    struct sl_cuda *cu = sl_cuda(be);
    const bool wide = ((reinterpret_cast<uintptr_t>(a->x) | reinterpret_cast<uintptr_t>(a->other) |
                        reinterpret_cast<uintptr_t>(a->out)) &
                       15) == 0 &&
                      ((a->ld_x | a->ld_out) & 7) == 0 && a->h % 4 == 0;
    if (a->x_act)
        a->out_act ? copy<true, true>(cu, a, wide) : copy<true, false>(cu, a, wide);
    else
        a->out_act ? copy<false, true>(cu, a, wide) : copy<false, false>(cu, a, wide);
}
