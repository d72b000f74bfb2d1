/* SPDX-License-Identifier: MIT
 * linear_store.cuh - the epilogue of every GEMM kernel: what happens to the sums of a row block.
 */
#ifndef SL_CUDA_LINEAR_STORE_CUH
#define SL_CUDA_LINEAR_STORE_CUH

#include "cuda/gemm/linear.h"
#include "cuda/math.cuh"

static __device__ __forceinline__ void sl_lin_put(float *out, float v, bool add = false)
{
    if (add)
        sl_red_add(out, v);
    else
        *out = v;
}

static __device__ __forceinline__ void sl_lin_put(__nv_bfloat16 *out, float v, bool = false)
{
    *out = __float2bfloat16_rn(v);
}

/* Writes v, the C fragments of 16 rows and 8 NT tokens, rows of out ld apart; bias: of all rows, or
 * NULL. Eight lanes write eight rows next to each other: whole 32-byte sectors of float. One
 * address walks over the tokens, as 8 NT of them would not fit in registers. */
template <typename T, int NT>
static __device__ __forceinline__ void sl_lin_store(const float (&v)[NT][4], T *out, int64_t ld,
                                                    const float *bias, int n_rows, int block,
                                                    int token0, int n_tokens, bool add = false)
{
    int lane = static_cast<int>(threadIdx.x % 32), t0 = token0 + 2 * (lane & 3);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = block * SL_CUDA_ROW_BLOCK + (lane >> 2) + 8 * r;
        if (row >= n_rows)
            continue;
        float b = bias != nullptr ? bias[row] : 0.0f;
        T *at = out + t0 * ld + row;
#pragma unroll
        for (int i = 0; i < NT; i++) {
            float v0 = v[i][2 * r], v1 = v[i][2 * r + 1];
            if (bias != nullptr) {
                v0 = __fadd_rn(v0, b);
                v1 = __fadd_rn(v1, b);
            }
            if (t0 + 8 * i < n_tokens)
                sl_lin_put(at, v0, add);
            if (t0 + 8 * i + 1 < n_tokens)
                sl_lin_put(at + ld, v1, add);
            at += 8 * ld;
        }
    }
}

/* Sums of a plain product to their part. */
template <int NT>
static __device__ __forceinline__ void sl_lin_store_part(const float (&v)[NT][4], const sl_lin &l,
                                                         const sl_lin_part &part, int block,
                                                         int token0)
{
    sl_lin_store<float, NT>(v, part.out, part.ld_out, part.bias, part.n_rows, block, token0, l.n,
                            l.add);
}

/* v: act(g) * u already. */
template <int NT>
static __device__ __forceinline__ void sl_lin_store_gated(const float (&v)[NT][4], const sl_lin &l,
                                                          int block, int token0)
{
    sl_lin_store<__nv_bfloat16, NT>(v, l.gated_out, l.part[0].n_rows, nullptr, l.part[0].n_rows,
                                    block, token0, l.n);
}

/* Whether the copy engine can store: of all parts the rows of out are whole pieces of 16 bytes
 * (what is left of one after the last row it would write, too), and a gated product has whole
 * units of rows. */
static inline bool sl_lin_boxes(const sl_lin &l, int gated_unit)
{
    bool can = true;
    if (l.gated)
        return reinterpret_cast<uintptr_t>(l.gated_out) % 16 == 0 && l.gated_ld % 8 == 0 &&
               l.part[0].n_rows % gated_unit == 0;
    for (int i = 0; i < l.n_parts; i++)
        can = can && reinterpret_cast<uintptr_t>(l.part[i].out) % 16 == 0 &&
              l.part[i].ld_out % 4 == 0 && l.part[i].n_rows % 4 == 0;
    return can;
}

#endif
