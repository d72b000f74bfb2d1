/* SPDX-License-Identifier: MIT
 * attention_rotate.cu - attention's output over pages of four-bit codes, which hold rotated values:
 * back, in place. A warp has a head of a token, or two of 64 dimensions.
 *
 * Bytes moved: the output twice, 16 KB of a token with 32 heads of 128; a step of decodes waits for
 * little more than a launch.
 */
#include "cuda/attention/attention.cuh"
#include "cuda/attention/kv4.cuh"

#define ROTATE_WARPS 4

struct rotate_args {
    __nv_bfloat16 *out;
    int64_t ld;
    int32_t n_heads; /* of a token */
    int32_t n_rows;  /* heads of all tokens */
    struct sl_kv4_turn turn;
};

static __device__ __forceinline__ float2 pair_of(uint32_t bits)
{
    return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xFFFF0000u));
}

template <int D>
static __global__ void __launch_bounds__(ROTATE_WARPS * 32)
    rotate_kernel(const __grid_constant__ struct rotate_args a)
{
    constexpr int LANES = D >= 128 ? 32 : D / 4, PARTS = D / 4 / LANES, SIDE = 32 / LANES;
    const int lane = static_cast<int>(threadIdx.x) % LANES;
    const int first = static_cast<int>(blockIdx.x) * ROTATE_WARPS * SIDE;
    const int row = first + static_cast<int>(threadIdx.x) / LANES;
    sl_grid_launch_dependents();
    sl_grid_wait();
    const int token = min(row, a.n_rows - 1) / a.n_heads;
    const int head = min(row, a.n_rows - 1) - token * a.n_heads;
    __nv_bfloat16 *at = a.out + token * a.ld + head * D + lane * 4;
    float4 x[SL_KV4_MOST / 128] = {};
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        const uint2 bits = *reinterpret_cast<const uint2 *>(at + i * 128);
        const float2 lo = pair_of(bits.x), hi = pair_of(bits.y);
        x[i] = make_float4(lo.x, lo.y, hi.x, hi.y);
    }
    sl_kv4_rotate_row_back(a.turn, D, lane, x);
    if (row >= a.n_rows)
        return;
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        *reinterpret_cast<uint2 *>(at + i * 128) =
            make_uint2(sl_pack_bf16(x[i].x, x[i].y), sl_pack_bf16(x[i].z, x[i].w));
}

void sl_attn_rotate_back(struct sl_cuda *cu, const struct sl_op_attention *op)
{
    struct rotate_args a = {};
    a.out = static_cast<__nv_bfloat16 *>(op->out);
    a.ld = op->ld_out;
    a.n_heads = op->n_heads;
    a.n_rows = op->batch->n_tokens * op->n_heads;
    a.turn = sl_kv4_turn_of(op->head_dim);
    const int32_t each = ROTATE_WARPS * (op->head_dim == 64 ? 2 : 1);
    auto kernel = op->head_dim == 64    ? rotate_kernel<64>
                  : op->head_dim == 128 ? rotate_kernel<128>
                                        : rotate_kernel<256>;
    sl_launch(cu, kernel, dim3(static_cast<unsigned>(SL_CEIL_DIV(a.n_rows, each))),
              dim3(ROTATE_WARPS * 32), 0, a);
}
