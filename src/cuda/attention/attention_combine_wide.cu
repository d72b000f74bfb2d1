/* SPDX-License-Identifier: MIT
 * attention_combine_wide.cu - combines the parts of wide and medium tiles to the output.
 *
 * A kernel of its own after that of the tiles, so that all SMs read: the last block of
 * a tile, alone with 128 rows of up to 32 runs, would have 2 MB to read at some 30 GB/s. Where no
 * tile was cut it has nothing to do.
 */
#include "cuda/attention/attention_tile.cuh"

#define COMBINE_THREADS 256
#define COMBINE_CTAS    2 /* of an SM */

struct combine_wide_args {
    struct sl_attn_args a;
    int32_t dims;   /* of a row, padded */
    int32_t chunks; /* of a tile, of COMBINE_THREADS times four dimensions */
};

static __global__ void __launch_bounds__(COMBINE_THREADS, COMBINE_CTAS)
    combine_wide_kernel(const __grid_constant__ struct combine_wide_args f)
{
    SL_SMEM(struct sl_attn_work, w);
    sl_grid_launch_dependents();
    sl_grid_wait();
    const int n = __ldcg(&f.a.cls->n_cut) * f.a.n_kv_heads * f.chunks, warp = 32;
    for (int i = static_cast<int>(blockIdx.x); i < n; i += static_cast<int>(gridDim.x)) {
        const int tile = i / f.chunks;
        const int at =
            __ldcg(f.a.cut + tile / f.a.n_kv_heads) * f.a.n_kv_heads + tile % f.a.n_kv_heads;
        if (threadIdx.x < warp)
            sl_attn_fetch(f.a, at, at + 1, w, threadIdx.x < 16);
        __syncthreads();
        const int each = f.dims / 4; /* threads of a row */
        const int u = i % f.chunks * COMBINE_THREADS + static_cast<int>(threadIdx.x),
                  row = u / each;
        if (row < w->item.n_rows) {
            struct sl_attn_combine_batch x = {f.a, 0, 0, 0, 0, 0, f.dims, false, {}, {}};
            x.go(*w, row, u % each * 4);
        }
        __syncthreads();
    }
}

void sl_attn_combine_wide(struct sl_cuda *cu, const struct sl_attn_args *a, int32_t dim,
                          int32_t rows)
{
    struct combine_wide_args f = {*a, dim, SL_CEIL_DIV(rows * (dim / 4), COMBINE_THREADS)};
    sl_launch(cu, combine_wide_kernel, dim3(static_cast<unsigned>(COMBINE_CTAS * cu->n_sms)),
              dim3(COMBINE_THREADS), sizeof(struct sl_attn_work), f);
}
