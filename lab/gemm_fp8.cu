/* SPDX-License-Identifier: MIT
 * gemm_fp8.cu - versions of the product of FP8 weights and FP8 activations, side by side, against
 * cuBLASLt. The kernel is src/cuda/gemm/linear_w8a8.cuh; a version is a choice of its parameters.
 *
 *   gemm_fp8 --list             the versions
 *   gemm_fp8 --only NAME        one version: bits at small shapes, then the table
 *                               (cublas: that; bits: which instructions give which bits)
 *   options: --quick (the large shapes), --tokens N,N... (a layer of 8B alone), --matrix N (of it
 *   the one of N rows and columns together), --ms N (how long each is timed), --raster N
 *
 * Floor and limits (H200): 8192 FLOP a clock and multiprocessor, 1979 TFLOP/s at 1.83 GHz. A step
 * is 128 columns. For a tile of R rows and T tokens it takes R T / 32 clocks of the tensor cores
 * and moves, in bytes of shared memory, 128 (R + T) written by the copy engine and 2 (R + 64) T
 * read by wgmma, 64 tokens at a time; the multiprocessor has 128 bytes a clock: 125 % of that for
 * 128 x 128, 108 % for 128 tokens x 192 rows, 117 % for 192 x 128. Adding a step's sums up takes
 * R T / 128 clocks. Few tokens: weights once, 4.67 TB/s; a unit of 8 KB is 400 clocks of a
 * multiprocessor's share.
 *
 * TFLOP/s at 8192^3, 4096^3, and 4096 tokens of 4096 x 2048 and 8192 x 1536 (runs of 2026-11-22):
 *
 *            what                                    one run               another
 *   cublas   fast accumulation                       1722 1459 1405 1419   1587 1458 1373 1430
 *   cublas   every 128 columns brought to float      1501 1180 1156 1204   1445 1189 1010 1035
 *   cublas   a scale for each row and each token     1463 1087  974 1207   1468 1107  954  958
 *   cublas   128 x 128 and 1 x 128 scales, as here   1280  998  929 1056   1256 1026  909  928
 *   -        weights as the 64-row operand, 192 x 128   1131 933 792 835   1072  850  771  798
 *
 * The same of 2026-11-23: before, with outputs by ordinary stores, and after, two runs; p and gp
 * are pairs of blocks that share tokens, which are gone. The chip's power makes neighbouring lines
 * of one program differ by up to 8 %:
 *
 *            128 tokens x            before                after
 *   r128     128, two sums           1085  853  754  704   1100  910  765  844
 *   p128     the same by pairs                             1093 1034  816  846   1118  942  800 851
 *   r192     192                     1177  803  700  723   1244  919  812  948   1257  881  906 929
 *   p192     the same by pairs                             1182 1040  881  936   1237  904  812 909
 *
 * Gate and up, 28672 x 4096, at 256, 512, 1024, 4096 tokens:
 *
 *   g128     64 of both               845  995  924  915    903 1056 1053  949    867 1024 1020 972
 *   gp128    the same by pairs                              844 1021  951  966
 *   g192     96 of both                                     715  881  915  925
 *   gp192    the same by pairs                              773  942  944  992    730  901  974 975
 *
 * Later that day: scales by asynchronous copies (cp) in place of loads two steps ahead, and the
 * warpgroups' products in turn; us, the least of three rounds of one program (gated: g128 beside
 * r128, gp128 and gp192 beside p128 and p192):
 *
 *                 4096 x 14336        6144 x 4096       4096 x 4096         28672 x 4096, gated
 *   tokens     256   512   2048     256   512  2048    256   512   4096      128   256   512  2048
 *   r192      65.9  62.1  244.8    21.0  23.6  94.9   20.6  21.8  129.1
 *     cp      65.9  67.8  218.7    21.0  23.5  92.8   21.2  21.6  128.4
 *     both    67.8  70.5  225.7    21.7  24.0  96.4   21.8  22.7  142.4
 *   r128      51.5  54.7  215.3    16.6  33.3 102.6   16.1  17.4  134.6     40.0  67.5 124.3 488.5
 *     cp      43.7  51.4  200.9    15.7  30.9  98.5   15.3  16.8  129.4     38.0  65.0 121.1 490.7
 *     both    41.4  48.6  202.2    15.4  29.5  93.7   14.5  16.3  122.3     37.2  63.2 121.3 479.2
 *   p128      51.6  57.3  240.7    17.9  33.1 117.9   17.1  18.9  147.6     41.4  73.7 139.9 541.1
 *     both    42.7  50.4  204.2    17.0  30.2 103.1   15.3  17.3  122.6     38.7  74.8 126.2 482.3
 *   p192      65.6  67.6  219.9    22.1  24.7  97.4   22.2  22.8  137.8     60.8  97.5 156.5 548.9
 *     both    65.5  68.6  218.1    21.9  25.0  94.1   22.0  22.9  133.2     56.4  87.0 136.3 508.8
 *   r64       43.2  85.7           22.2  33.0         12.5  22.9
 *     cp      35.6  68.8           21.7  32.3         12.2  22.2
 *     both    31.9  60.7           19.2  29.3         11.0  19.9
 *   PyTorch's _scaled_mm, another chip, scales of tensors and of rows:
 *             26.0  41.7           12.8  21.3         11.6        114.2           55.7  88.8
 *             41.3  41.8           15.9  26.1         18.3         95.7           59.9  89.6
 *
 * The same day, 64 to 512 tokens, us of one call (chips differ by 5 %; t64 and t32 of another, -
 * not measured); t: tiles of 64 tokens, by one warpgroup; n64 has weights as the 64-row operand:
 *
 *                 6144 x 4096           4096 x 4096           4096 x 14336
 *   tokens      64   128   256   512    64   128   256   512    64   128   256   512
 *   r192      20.2  20.3  20.6  24.1  19.8  20.0  20.3  21.4  58.9  59.2  59.4  61.8
 *   r128      16.7  15.0  15.3  28.8  13.6  14.2  14.2  16.7  39.6  40.2  40.6  50.7
 *   r96       13.4  12.9  14.8  27.3  13.3  13.7  14.3  25.0  36.9  37.1  37.8  77.2
 *   r64       17.2  11.1  19.0  30.1  11.6  10.1  11.2  20.3  38.5  27.8  33.4  63.4
 *   t128      11.3  11.1  19.2  29.6   9.7  10.2  11.5  20.0  27.8  27.9  33.0  62.2
 *   t64one     9.2  14.0  20.3  39.1   8.1   9.0  14.7  26.3  20.5  23.2  42.1  80.7
 *   t64        9.1  13.7  19.8  37.8   7.7   8.3  14.0  26.2  21.9  22.6  42.9  83.1
 *   t32one    11.1  16.7  30.8  58.6   7.8  12.1  21.4  40.0  19.0  33.3  64.1   135
 *   t32       11.6  16.7     -     -   7.3  11.8     -     -  19.3  35.3     -     -
 *   n64        9.7     -     -     -   9.5     -     -     -  25.0     -     -     -
 *
 * Gate and up, 28672 x 4096, 64, 128, 256, 512 tokens: g128 45.4 37.2 62.2 109,
 * tg128 32.0 43.0 74.5 146, g64 32.1. Tokens in two halves for n64: 8.6 us (4096 x 4096), 24.4
 * (4096 x 14336), g64 59.8.
 *
 * Sustained (--ms 50), 8,192 tokens of 6144 x 4096, 4096 x 4096, 4096 x 14336, two runs each: r192
 * 353 356, 260 274, 871 877; r128 398 367, 281 281, 849 824.
 *
 * us for one token at 6144 x 4096, 4096 x 4096, 28672 x 4096 (gate and up), 4096 x 14336:
 *
 *   cublas   fast; its best with scales is double    9.6  7.7 29.9 18.3
 *   n8       codes made by a kernel ahead            7.8  6.7 27.1 15.6
 *   n8own    codes made by each block                8.1  6.9 27.5 16.7  less a launch
 *   g8own    gate and up at once, the same                     28.3
 *
 *   n16      at 16 tokens (two steps a stage 8.5  7.6 18.4)  7.7  6.7      15.9
 *   n32      at 32 tokens (two steps a stage 8.5  7.6 19.1)  8.2  7.0      17.1
 *
 * (before: n8 8.5 to 9.2, 6.7 to 7.0, 31.0, 19.9; n8own 9.1, 7.4, 31.9, 19.9)
 *
 * What was learnt:
 * - Bits. All widths of wgmma give the same, and so do operands exchanged, and a from registers;
 *   mma.sync differs in all values: its sums are exact to float, those of wgmma keep about 14 bits.
 * - Longer sums (`errors`), NMSE against double, in brackets the mean error, all towards zero:
 *
 *     sums of       128        256        512       1024       all columns
 *     normal     1.4e-8     3.9e-8     1.0e-7     2.7e-7     1.6e-6 (4096), 7.8e-6 (14336)
 *     magnitudes 3.2e-7     3.7e-6     3.0e-5     2.0e-4     4.7e-3, 4.7e-2
 *                (5e-4)     (2e-3)     (5e-3)    (1.3e-2)    (6.5 %, 21 %)
 *
 *   So one sum over all columns, which the scales of rows and tokens would allow, is harmless where
 *   signs are mixed (rounding to E4M3 costs 1.3e-3) and loses a fifth where they are not. It is not
 *   offered; it would bring 1,326 (128 x 256, a from registers; cuBLASLt 1,587).
 * - With tokens as the 64-row operand a thread needs two factors a step and not 32: those took a
 *   quarter of what shared memory gives. Registers are then free for two sums under way (t128).
 * - Tokens from registers, loaded as fragments from device memory, with two groups of 32 or 64 rows
 *   under way, expected to leave shared memory free: 720 to 950 at 8192^3. A step cost 415 clocks
 *   for 64 rows where products take 256, however far ahead the loads were, and 128 x 256 spills.
 * - Ordinary stores of float, that nothing ran beside, were 2.3 of the 4.6 us that a tile of 128 x
 *   128 took beside its steps. By the copy engine it takes 2.3, and 2.6 of 192. Rounds of
 *   tiles that are not full are up to a tenth of the time at 4096 tokens.
 * - Pairs of blocks that share tokens: a step of 128 x 128 takes 0.46 us with and without, of 192
 *   0.62. In one run they were 8 to 13 % faster where there are few steps, in the next no more than
 *   the runs differ.
 *   Of 64 rows, the tiles of 256 tokens, pairs gain nothing (4096 x 14336, 256 tokens: 45.2 us for
 *   44.6), and four blocks that share tokens lose (78.3).
 * - Parts knocked out (112 steps of 4096 x 14336, 256 tokens, us; scales then still by loads): of
 *   64 rows 44.0; without copies 32.8, without products 40.6, without loads of scales 36.1. Of 128
 *   50.5, 45.5, 42.6, 47.4. Of 192 rows products alone take 0.50 us a step, copies alone 0.38 where
 *   44 blocks ask and 0.48 where 132 do.
 * - What binds 256 tokens. Without copies, and with a fourth of the products, us: r64 26.3 and 30.0
 *   (of 33.4, 4096 x 14336), t128 25.1 and 31.3 (of 33.0), g128 51.9 and 52.3 (of 62.2). With 1.65
 *   GHz and 19,000 clocks for four tile ends a step of g128 takes 520 clocks without copies (its
 *   products: 512), as long without products, and 650 with both: shared memory moves 128 bytes a
 *   clock, and a step has 80 KB. (By ncu: 49 % of r64's clocks and 53 of g128's are the matrix
 *   units', half of the issue slots are taken.)
 * - Pairs that share tokens once more, with scales by cp.async: r64 34.7 us for 32.0 (4096 x 14336,
 *   256 tokens), r128 43.1 for 41.0, g128 60.6 for 58.5, t64 24.9 for 23.2 (128 tokens), t32 21.5
 *   for 20.0 (64): never better. Four steps a stage of t32: as two.
 * - One warpgroup ahead of the other by two, three, four steps, so that its end of a tile runs
 * beside products (g128, 256 tokens): 64.7, 83.0, 130 us for 58.5. Each step ahead is a stage less
 * on its way.
 * - A stage more where a tile leaves by one box in place of three: r192 60.7 us for 64.6 (4096 x
 *   14336, 256 tokens), but 912 for 871 (8,192); r128, r96, r64 the same or slower.
 * - Gated by ex2.approx and rcp.approx: g128 58.4 us for 60.4 (256 tokens), 455 for 457 to 473
 *   (2,048). Not worth bits that are no longer the CPU's.
 * - Alone is not in a layer: with t64 and t32 in place of n64 (q, k, v 0.6, o 2.2, down 5.7 us less
 *   alone) a step of 64 sequences took 147.3 us for 144.8, of 48 139.6 for 135.4, though the four
 *   products took 80.5 for 81.7 and 78.8 for 81.7. Where o and down have 64 blocks, the next
 *   kernel's begin on the other multiprocessors and bring their weights. So n64 stays.
 * - From some 1e11 FLOP on, run for longer than a few ms, the chip's power binds (690 W, clocks of
 *   1.25 to 1.5 GHz for 1.98): 8192^3 by one kernel 879 us in the first ms and 1,012 in the median
 *   of four rounds. There what costs the least energy is fastest, and that is r192.
 * - Equal shares of the last two rounds for all blocks, the sums of a tile that is cut going on in
 *   the next block by way of memory (the same bits): 4096^3 155 us for 169, 4096 x 2048 86.7 for
 *   94.4, but with loops whose length depends on the block ptxas 13.0 keeps places in the ring in
 *   a thread's own registers and not in uniform ones, and a step of 192 rows takes 0.70 us for
 *   0.54. With a tile's end beside the next one's first products likewise (136 us for 155).
 * - One warpgroup ahead of the other by half a ring changed nothing (with tokens from registers).
 * - fence.proxy.async, which readers of what the copy engine brought owe it, is MEMBAR.ALL.CTA, 350
 *   clocks a step. So scales come by ordinary stores of a warp, and wgmma alone reads the rest.
 * - Few tokens (4096 x 14336, one token). Scales of units loaded where they were wanted cost each
 *   eighth step a trip to device memory: 19.9 us, 18.5 without. Half of shared memory, beside which
 *   the next kernel's block fits, 18.5 to 21.1 for 16.5 to 17.9, and a layer of a step 90.0 us for
 *   79.4. Stages of one, two and four steps with a copy each: 17.5, 17.9, 15.6 us, and a layer's
 *   products in a chain 66.2, 60.2, 60.0. Four steps at a time, but each a stage of its own, in
 * half of shared memory 26.0. Tiles of 32 rows on twice the multiprocessors, copies of 4 KB, 22.3
 * for 21.8.
 * - Making codes in the block: unrolled eight times, instructions that run once took 2.6 us more
 *   than a short loop.
 */
#include "lab.h"

#include "cuda/gemm/linear_w8a8_few.cuh"
#include "cuda/gemm/linear_w8a8_wide.cuh"

/* ------------------------------------------------------------------ data and reference */

/* Scales of rows and of units, about 1. */
static __host__ __device__ inline float row_scale(int64_t i)
{
    return 0.5f + static_cast<float>(random_bits(static_cast<uint64_t>(i)) >> 8) * 0x1p-24f;
}

static __host__ __device__ inline float unit_scale(int64_t i)
{
    return row_scale(i + (1ll << 40));
}

static __global__ void pack_kernel(const uint8_t *w, uint8_t *out, int n_rows, int n_cols)
{
    sl_grid_wait();
    int64_t n_blocks = (n_rows + 63) / 64, n_k = (n_cols + 127) / 128, n_units = n_blocks * n_k;
    float *scales = reinterpret_cast<float *>(out + n_units * SL_W8_UNIT);
    int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (int64_t i = first; i < n_units * SL_W8_UNIT; i += step) {
        int at = static_cast<int>(i % SL_W8_UNIT), row = at / 128, byte = at % 128;
        int64_t unit = i / SL_W8_UNIT, r = unit / n_k * 64 + row;
        int64_t c = unit % n_k * 128 + ((byte / 16) ^ (row % 8)) * 16 + byte % 16;
        out[i] = r < n_rows && c < n_cols ? w[r * n_cols + c] : static_cast<uint8_t>(0);
    }
    for (int64_t i = first; i < n_blocks * 64 + n_units; i += step)
        scales[i] = i < n_blocks * 64 ? row_scale(i) : unit_scale(i - n_blocks * 64);
    sl_grid_launch_dependents();
}

enum ref_kind { REF_WGMMA, REF_SWAPPED, REF_MMA };

/* every: steps of 128 columns that are one sum. Other than 1: the scales of the first are those of
 * the token; -1: of one step. */

/* 128 bytes of 64 rows (or 8) from column k on, as wgmma wants them. */
static __device__ void ref_fetch(const uint8_t *from, int ld, int row0, int rows, int n_rows,
                                 int n_cols, int k, uint8_t *to)
{
    for (int i = static_cast<int>(threadIdx.x); i < rows * 128; i += 128) {
        int row = i / 128, c = k + ((i % 128 / 16) ^ (row % 8)) * 16 + i % 16;
        bool live = row0 + row < n_rows && c < n_cols;
        to[i] = live ? from[static_cast<int64_t>(row0 + row) * ld + c] : static_cast<uint8_t>(0);
    }
}

#ifndef SL_CUDA_SIM
static __device__ __forceinline__ void mma_e4m3(float c[4], const uint32_t a[4],
                                                const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

static __device__ __forceinline__ uint32_t ref_word(const uint8_t *at, int row, int byte)
{
    int i = row * 128 + byte;
    return *reinterpret_cast<const uint32_t *>(at + (i ^ (row % 8 << 4)));
}

static __device__ void ref_mma(float (&sum)[1][4], const uint8_t *a, const uint8_t *b, int j)
{
    int lane = static_cast<int>(threadIdx.x % 32),
        row = static_cast<int>(threadIdx.x / 32) * 16 + lane / 4;
    int col = 32 * j + lane % 4 * 4;
    uint32_t fa[4] = {ref_word(a, row, col), ref_word(a, row + 8, col), ref_word(a, row, col + 16),
                      ref_word(a, row + 8, col + 16)};
    uint32_t fb[2] = {ref_word(b, lane / 4, col), ref_word(b, lane / 4, col + 16)};
    mma_e4m3(sum[0], fa, fb);
}
#else
static void ref_mma(float (&sum)[1][4], const uint8_t *a, const uint8_t *b, int j)
{
    sl_wgmma_e4m3(sum, a + 32 * j, b + 32 * j, 1);
}
#endif

/* A warpgroup for 64 rows and 8 tokens (swapped: 64 tokens and 8 rows), straight from the rows. */
static __global__ void __launch_bounds__(128)
    reference_kernel(const uint8_t *w, const uint8_t *x, const float *xs, int ld_xs, float *out,
                     int n_rows, int n_cols, int n_tokens, int token_step, int kind, int every)
{
    const bool plain = every != 1;
    every = every < 0 ? -every : every;
    SL_SMEM(uint8_t, smem);
    sl_grid_wait();
    int n_k = (n_cols + 127) / 128, lane = static_cast<int>(threadIdx.x % 32);
    int row0 = static_cast<int>(blockIdx.x) * (kind == REF_SWAPPED ? 8 : 64);
    int token0 = static_cast<int>(blockIdx.y) * token_step;
    const uint8_t *a = kind == REF_SWAPPED ? x : w, *b = kind == REF_SWAPPED ? w : x;
    int a0 = kind == REF_SWAPPED ? token0 : row0, b0 = kind == REF_SWAPPED ? row0 : token0;
    int n_a = kind == REF_SWAPPED ? n_tokens : n_rows,
        n_b = kind == REF_SWAPPED ? n_rows : n_tokens;
    float acc[4] = {}, sum[1][4] = {};
    for (int k = 0; k < n_k; k++) {
        bool begins = k % every == 0;
        __syncthreads();
        ref_fetch(a, a == w ? n_cols : n_k * 128, a0, 64, n_a, n_cols, 128 * k, smem);
        ref_fetch(b, b == w ? n_cols : n_k * 128, b0, 8, n_b, n_cols, 128 * k, smem + 8192);
        sl_fence_proxy_async();
        __syncthreads();
        if (kind == REF_MMA) {
            for (int j = 0; j < 4; j++)
                ref_mma(sum, smem, smem + 8192, j); /* every is 1 */
        } else {
            auto pa = sl_wgmma_b(smem), pb = sl_wgmma_b(smem + 8192);
            sl_wgmma_fence();
            for (int j = 0; j < 4; j++)
                sl_wgmma_e4m3(sum, pa + j * SL_WGMMA_B_K16, pb + j * SL_WGMMA_B_K16,
                              !begins || j > 0);
            sl_wgmma_commit();
            sl_wgmma_wait<0>();
            sl_wgmma_done(sum);
        }
        if ((k + 1) % every != 0 && k + 1 < n_k)
            continue;
        for (int i = 0; i < 4; i++) {
            int ia = a0 + static_cast<int>(threadIdx.x / 32) * 16 + lane / 4 + 8 * (i >> 1);
            int ib = b0 + 2 * (lane % 4) + (i & 1);
            int r = kind == REF_SWAPPED ? ib : ia, t = kind == REF_SWAPPED ? ia : ib;
            if (r >= n_rows || t >= n_tokens)
                continue;
            float f = xs[t];
            if (!plain)
                f = __fmul_rn(xs[static_cast<int64_t>(k) * ld_xs + t],
                              unit_scale(static_cast<int64_t>(r / 64) * n_k + k));
            acc[i] = __fmaf_rn(sum[0][i], f, acc[i]);
            sum[0][i] = 0.0f;
        }
    }
    for (int i = 0; i < 4; i++) {
        int ia = a0 + static_cast<int>(threadIdx.x / 32) * 16 + lane / 4 + 8 * (i >> 1);
        int ib = b0 + 2 * (lane % 4) + (i & 1);
        int r = kind == REF_SWAPPED ? ib : ia, t = kind == REF_SWAPPED ? ia : ib;
        if (r < n_rows && t < n_tokens)
            out[static_cast<int64_t>(t) * n_rows + r] = __fmul_rn(acc[i], row_scale(r));
    }
    sl_grid_launch_dependents();
}

/* ------------------------------------------------------------------ versions */

typedef void run_fn(struct sl_cuda *cu, const sl_lin *l, const uint8_t *q, const float *xs,
                    int32_t ld_xs, int32_t raster);

struct version {
    const char *name, *what;
    run_fn *run;
    bool gated;
    int most_tokens;
};

#define FEW(name, what, most, tokens, ...)                              \
    {                                                                   \
        name, what, sl_w8_few_launch<sl_w8_few<tokens, ##__VA_ARGS__>>, \
            sl_w8_few<tokens, ##__VA_ARGS__>::GATED, most               \
    }
#define WIDE(name, what, ...)                                                                   \
    {                                                                                           \
        name, what, sl_w8_wide_launch<sl_w8_wide<__VA_ARGS__>>, sl_w8_wide<__VA_ARGS__>::GATED, \
            1 << 20                                                                             \
    }
static const struct version versions[] = {
    WIDE("r192", "128 tokens x 192", 192, false),
    WIDE("r128", "128 tokens x 128, two sums under way", 128, false),
    WIDE("r96", "128 tokens x 96", 96, false),
    WIDE("r64", "128 tokens x 64", 64, false),
    WIDE("t128", "64 tokens x 128", 128, false, false, 1),
    WIDE("t64", "64 tokens x 64, two steps a stage", 64, false, false, 1, 2),
    WIDE("t64one", "64 tokens x 64, a step a stage", 64, false, false, 1),
    WIDE("t32", "64 tokens x 32, two steps a stage", 32, false, false, 1, 2),
    WIDE("t32one", "64 tokens x 32, a step a stage", 32, false, false, 1),
    WIDE("g128", "128 tokens x 128, gate and up", 128, true),
    WIDE("g192", "128 tokens x 192, gate and up", 192, true),
    WIDE("tg128", "64 tokens x 128, gate and up", 128, true, false, 1),
    FEW("n8", "64 x 8, four steps a stage", 8, 8, false),
    FEW("n8two", "64 x 8, two steps a stage", 8, 8, false, false, 2),
    FEW("n8one", "64 x 8, a step a stage", 8, 8, false, false, 1),
    FEW("n8own", "64 x 8, codes made by each block", 1, 8, false, true),
    FEW("n16", "64 x 16", 16, 16, false),
    FEW("n16two", "64 x 16, two steps a stage", 16, 16, false, false, 2),
    FEW("n32", "64 x 32", 32, 32, false),
    FEW("n32two", "64 x 32, two steps a stage", 32, 32, false, false, 2),
    FEW("n64", "64 x 64", 64, 64, false),
    FEW("g8", "64 x 8, gate and up", 8, 8, true),
    FEW("g8two", "64 x 8, gate and up, two steps a stage", 8, 8, true, false, 2),
    FEW("g8own", "64 x 8, gate and up, codes made by each block", 1, 8, true, true),
    FEW("g16", "64 x 16, gate and up", 16, 16, true),
    FEW("g64", "64 x 64, gate and up", 64, 64, true),
};

struct shape {
    int n_rows, n_cols, n_tokens;
};

struct data {
    dev<uint8_t> *w, *q;
    dev<uint16_t> *x;
    dev<float> *xs, *out, *want;
    std::vector<void *> packed;
};

static int ld_scales(const struct shape &s)
{
    return (s.n_tokens + 3) / 4 * 4;
}

static size_t packed_bytes(const struct shape &s)
{
    size_t blocks = static_cast<size_t>((s.n_rows + 63) / 64),
           k = static_cast<size_t>((s.n_cols + 127) / 128);
    return blocks * k * (SL_W8_UNIT + 4) + blocks * 256;
}

static unsigned blocks_for(size_t n)
{
    return static_cast<unsigned>(std::min((n + 255) / 256, static_cast<size_t>(b.tiny ? 4 : 8192)));
}

static void quantise(const struct data &d, const struct shape &s)
{
    sl_w8_quant a = {reinterpret_cast<const __nv_bfloat16 *>(d.x->p),
                     s.n_cols,
                     s.n_tokens,
                     s.n_cols,
                     (s.n_cols + 127) / 128,
                     s.n_cols % 8 == 0,
                     d.q->p,
                     d.xs->p,
                     ld_scales(s)};
    sl_w8_quantise(&lab_cu, &a);
}

/* Tokens of which the reference makes the sums: eight of each `step`. */
static int token_step(const struct shape &s)
{
    double flops = 2.0 * s.n_rows * s.n_cols * s.n_tokens;
    return flops < 1e10 ? 8 : 8 * static_cast<int>(flops / 1e10 + 1);
}

static void reference(const struct data &d, const struct shape &s, float *out, int step,
                      enum ref_kind kind, int every = 1)
{
    unsigned rows = static_cast<unsigned>((s.n_rows + 63) / 64);
    unsigned tokens = static_cast<unsigned>((s.n_tokens + step - 1) / step);
    if (kind == REF_SWAPPED)
        rows = static_cast<unsigned>((s.n_rows + 7) / 8),
        tokens = static_cast<unsigned>((s.n_tokens + 63) / 64), step = 64;
    sl_launch(&lab_cu, reference_kernel, dim3(rows, tokens), dim3(128), 16384,
              (const uint8_t *)d.w->p, (const uint8_t *)d.q->p, (const float *)d.xs->p,
              ld_scales(s), out, s.n_rows, s.n_cols, s.n_tokens, step, static_cast<int>(kind),
              every);
    lab_must_be_well("reference");
}

/* Bits of what is in out against the reference; the sum of differences. */
static unsigned long long compare(const struct data &d, const struct shape &s)
{
    int step = token_step(s);
    MUST(cudaMemsetAsync(d.want->p, 0xFF, d.want->n * 4, lab_cu.stream));
    reference(d, s, d.want->p, step, REF_WGMMA);
    unsigned long long bad = 0;
    for (int t = 0; t < s.n_tokens; t += step) {
        size_t at = static_cast<size_t>(t) * static_cast<size_t>(s.n_rows);
        size_t n = static_cast<size_t>(std::min(8, s.n_tokens - t)) * static_cast<size_t>(s.n_rows);
        if (step == 8)
            n = static_cast<size_t>(s.n_tokens) * static_cast<size_t>(s.n_rows);
        bad += lab_differ(d.out->p + at, d.want->p + at, n);
        if (step == 8)
            break;
    }
    return bad;
}

/* Gate's and up's sums are the reference's; what follows, one thread an output. */
static __global__ void act_kernel(const float *g, const float *u, __nv_bfloat16 *out, int64_t n)
{
    sl_grid_wait();
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
         i += static_cast<int64_t>(gridDim.x) * blockDim.x)
        out[i] = __float2bfloat16_rn(__fmul_rn(sl_act(SL_ACT_SILU, g[i]), u[i]));
    sl_grid_launch_dependents();
}

static void pack_all(struct data *d, const struct shape &s, int copies)
{
    for (int i = 0; i < copies; i++) {
        void *p = nullptr;
        MUST(cudaMalloc(&p, packed_bytes(s)));
        sl_launch(&lab_cu, pack_kernel, dim3(blocks_for(packed_bytes(s) / 8)), dim3(256), 0,
                  (const uint8_t *)d->w->p, (uint8_t *)p, s.n_rows, s.n_cols);
        d->packed.push_back(p);
    }
    lab_must_be_well("packing");
}

static void free_packed(struct data *d)
{
    for (void *p : d->packed)
        MUST(cudaFree(p));
    d->packed.clear();
}

/* Of a gated product gate and up are the two halves of the rows of w: of the same matrix here. */
static sl_lin product(const struct data &d, const struct shape &s, bool gated, int copy)
{
    sl_lin l = {};
    l.n = s.n_tokens;
    l.k = s.n_cols;
    l.x = reinterpret_cast<const __nv_bfloat16 *>(d.x->p);
    l.ld_x = s.n_cols;
    l.vec_x = s.n_cols % 8 == 0;
    l.gated = gated;
    l.act = SL_ACT_SILU;
    l.n_parts = gated ? 2 : 1;
    l.gated_out = reinterpret_cast<__nv_bfloat16 *>(d.out->p);
    for (int i = 0; i < l.n_parts; i++) {
        size_t other = (static_cast<size_t>(copy) + static_cast<size_t>(i)) % d.packed.size();
        l.part[i].w = static_cast<const uint8_t *>(d.packed[other]);
        l.part[i].out = d.out->p;
        l.part[i].ld_out = s.n_rows;
        l.part[i].n_rows = s.n_rows;
        l.part[i].n_blocks = (s.n_rows + 15) / 16;
    }
    return l;
}

static unsigned long long compare_gated(const struct data &d, const struct shape &s)
{
    int64_t n = static_cast<int64_t>(s.n_rows) * s.n_tokens;
    dev<uint16_t> want(static_cast<size_t>(n + 1));
    reference(d, s, d.want->p, 8, REF_WGMMA);
    sl_launch(&lab_cu, act_kernel, dim3(blocks_for(static_cast<size_t>(n))), dim3(256), 0,
              (const float *)d.want->p, (const float *)d.want->p, (__nv_bfloat16 *)want.p, n);
    return lab_differ(d.out->p, want.p, static_cast<size_t>(n / 2));
}

/* Edges in every direction, several units a block. */
static void check_small(const struct version &v, struct data *d)
{
    static const struct shape full[] = {{1000, 1024, 300}, {4112, 1920, 520}, {272, 4000, 77}};
    static const struct shape tiny[] = {{400, 384, 150}, {80, 272, 20}, {900, 128, 5}};
    for (struct shape s : b.tiny ? tiny : full) {
        s.n_tokens = std::min(s.n_tokens, v.most_tokens);
        fill(d->w->p, static_cast<size_t>(s.n_rows) * static_cast<size_t>(s.n_cols), FILL_E4M3, 1);
        MUST(cudaMemsetAsync(d->out->p, 0xFF, d->out->n * 4, lab_cu.stream));
        pack_all(d, s, 1);
        quantise(*d, s);
        sl_lin l = product(*d, s, v.gated, 0);
        v.run(&lab_cu, &l, d->q->p, d->xs->p, ld_scales(s), 2);
        lab_must_be_well(v.name);
        unsigned long long bad = v.gated ? compare_gated(*d, s) : compare(*d, s);
        printf("%-7s %5d x %-5d %5d tokens: %llu values differ\n", v.name, s.n_rows, s.n_cols,
               s.n_tokens, bad);
        fflush(stdout);
        free_packed(d);
        if (bad > 0)
            exit(2);
    }
}

static double share_ms = 10.0; /* how long each is timed */

static void time_one(const struct version &v, struct data *d, const struct shape &s, int raster)
{
    MUST(cudaMemsetAsync(d->out->p, 0xFF, d->out->n * 4, lab_cu.stream));
    quantise(*d, s);
    double us = time_us(static_cast<int>(d->packed.size()), share_ms, [&](int i) {
        sl_lin l = product(*d, s, v.gated, i);
        v.run(&lab_cu, &l, d->q->p, d->xs->p, ld_scales(s), raster);
    });
    lab_must_be_well(v.name);
    unsigned long long bad = v.gated ? 0 : compare(*d, s);
    int n_rows = s.n_rows * (v.gated ? 2 : 1);
    double flops = 2.0 * n_rows * s.n_cols * s.n_tokens;
    double bytes = 1.0 * n_rows * s.n_cols + 1.0 * s.n_cols * s.n_tokens +
                   (v.gated ? 2.0 : 4.0) * s.n_rows * s.n_tokens;
    printf("%-7s %6d x %-6d %5d %9.1f us %6.0f TFLOP/s %6.0f GB/s, of 4.67 TB/s %s%s\n", v.name,
           n_rows, s.n_cols, s.n_tokens, us, flops / us * 1e-6, gb_s(bytes, us),
           share(gb_s(bytes, us), 4670.0), bad > 0 ? "  WRONG BITS" : "");
    fflush(stdout);
}

static void time_quant(struct data *d, const struct shape &s)
{
    double us = time_us(1, share_ms, [&](int) { quantise(*d, s); });
    printf("%-7s %13d %7d %9.1f us\n", "quant", s.n_cols, s.n_tokens, us);
}

static void time_cublas(struct data *d, const struct shape &s)
{
    static const char *const names[] = {"fast", "slow", "vectors", "blocks"};
    double flops = 2.0 * s.n_rows * s.n_cols * s.n_tokens;
    printf("%-7s %6d x %-6d %5d", "cublas", s.n_rows, s.n_cols, s.n_tokens);
    for (int mode = LT_FAST; mode <= LT_BLOCKS; mode++) {
        double us = lt_time(s.n_tokens, s.n_rows, s.n_cols, LT_E4M3, LT_BF16, d->packed, d->q->p,
                            d->out->p, share_ms, static_cast<enum lt_mode>(mode), d->xs->p);
        printf("  %s %.1f us %.0f", names[mode], us, us > 0.0 ? flops / us * 1e-6 : 0.0);
    }
    printf("\n");
    fflush(stdout);
}

struct matrix {
    int n_rows, n_cols;
};
static const struct matrix layers[] = {{6144, 4096}, {4096, 4096}, {14336, 4096}, {4096, 14336}};

/* All shapes with the same weights, one after the other. v: NULL is cuBLASLt. */
static void time_all(const struct version *v, struct data *d, bool quick, int raster,
                     const std::vector<int> &given, int matrix)
{
    auto with = [&](int n_rows, int n_cols, std::vector<int> tokens) {
        struct shape s = {n_rows, n_cols, 0};
        if ((v == nullptr || !v->gated) && n_rows == 14336)
            s.n_rows = 28672; /* gate and up */
        fill(d->w->p, static_cast<size_t>(s.n_rows) * static_cast<size_t>(n_cols), FILL_E4M3, 1);
        pack_all(d, s, std::max(2, n_copies_for(packed_bytes(s), 32)));
        for (int m : given.empty() ? tokens : given) {
            s.n_tokens = m;
            if (v != nullptr && m <= v->most_tokens)
                time_one(*v, d, s, raster);
            else if (v == nullptr)
                time_cublas(d, s);
            if (v == nullptr)
                time_quant(d, s);
        }
        free_packed(d);
    };
    if (b.tiny) {
        with(400, 256, {100});
        return;
    }
    if (given.empty() && (v == nullptr || v->most_tokens > 4096)) {
        with(8192, 8192, {8192});
        with(4096, 4096, {4096});
        with(4096, 2048, {4096});
        with(8192, 1536, {4096});
    }
    for (const struct matrix &m : layers) {
        if (quick || (matrix > 0 && m.n_rows + m.n_cols != matrix) ||
            (v != nullptr && v->gated != (m.n_rows == 14336) && v->most_tokens > 8))
            continue;
        if (v == nullptr)
            with(m.n_rows, m.n_cols, {1, 16, 64, 256, 1024, 4096});
        else if (v->most_tokens > 4096)
            with(m.n_rows, m.n_cols, {256, 512, 1024, 4096});
        else
            with(m.n_rows, m.n_cols,
                 {v->most_tokens <= 8    ? 1
                  : v->most_tokens == 16 ? 16
                                         : 32,
                  64, 128, 256});
    }
}

/* How many values differ between instructions, and what they lose against double. */
static void which_bits(struct data *d)
{
    const struct shape s = b.tiny ? shape{64, 256, 16} : shape{1024, 4096, 256};
    size_t n = static_cast<size_t>(s.n_rows) * static_cast<size_t>(s.n_tokens);
    fill(d->w->p, static_cast<size_t>(s.n_rows) * static_cast<size_t>(s.n_cols), FILL_E4M3, 1);
    quantise(*d, s);
    reference(*d, s, d->want->p, 8, REF_WGMMA);
    for (int kind = REF_SWAPPED; kind <= REF_MMA; kind++) {
        MUST(cudaMemsetAsync(d->out->p, 0xFF, d->out->n * 4, lab_cu.stream));
        reference(*d, s, d->out->p, 8, static_cast<enum ref_kind>(kind));
        printf("bits    %s: %llu of %zu values differ\n",
               kind == REF_MMA ? "mma.sync" : "tokens as the 64-row operand",
               lab_differ(d->out->p, d->want->p, n), n);
    }
    size_t tokens = std::min(static_cast<size_t>(s.n_tokens), static_cast<size_t>(16));
    size_t cols = static_cast<size_t>(s.n_cols), rows = static_cast<size_t>(s.n_rows);
    std::vector<uint8_t> w(rows * cols), q(tokens * cols);
    std::vector<float> xs(cols / 128 * static_cast<size_t>(ld_scales(s))), got(tokens * rows),
        mma(tokens * rows);
    d->w->get(0, w.data(), w.size());
    d->q->get(0, q.data(), q.size());
    d->xs->get(0, xs.data(), xs.size());
    d->want->get(0, got.data(), got.size());
    d->out->get(0, mma.data(), mma.size());
    auto value = [](uint8_t c) {
        int m = c & 127;
        double v = m >= 8 ? ldexp(8 + (m & 7), (m >> 3) - 10) : ldexp(m, -9);
        return c & 128 ? -v : v;
    };
    double table[256], error = 0.0, error_mma = 0.0, power = 0.0;
    for (int c = 0; c < 256; c++)
        table[c] = value(static_cast<uint8_t>(c));
    for (size_t t = 0; t < tokens; t++)
        for (size_t r = 0; r < rows; r++) {
            double all = 0.0;
            for (size_t k = 0; k < cols / 128; k++) {
                double sum = 0.0;
                for (size_t c = 128 * k; c < 128 * k + 128; c++)
                    sum += table[w[r * cols + c]] * table[q[t * cols + c]];
                float f = xs[k * static_cast<size_t>(ld_scales(s)) + t] *
                          unit_scale(static_cast<int64_t>(r / 64 * (cols / 128) + k));
                all += sum * static_cast<double>(f);
            }
            all *= static_cast<double>(row_scale(static_cast<int64_t>(r)));
            double e = static_cast<double>(got[t * rows + r]) - all;
            double m = static_cast<double>(mma[t * rows + r]) - all;
            error += e * e;
            error_mma += m * m;
            power += all * all;
        }
    printf("bits    NMSE against double: wgmma %.2e, mma.sync %.2e\n", error / power,
           error_mma / power);
}

/* What sums of so many columns lose against double: NMSE, the same of what all outputs have in
 * common (their mean error over their root mean square), for normal numbers and for magnitudes. */
static void errors(struct data *d)
{
    const int tokens = 16, rows = b.tiny ? 64 : 512;
    for (int cols : {4096, 14336}) {
        if (b.tiny)
            cols = 512;
        for (int positive = 0; positive < 2; positive++) {
            const struct shape s = {rows, cols, tokens};
            size_t n_w = static_cast<size_t>(rows) * static_cast<size_t>(cols),
                   n_q = static_cast<size_t>(tokens) * static_cast<size_t>(cols),
                   n = static_cast<size_t>(rows) * static_cast<size_t>(tokens);
            fill(d->w->p, n_w, FILL_E4M3, 1);
            quantise(*d, s);
            lab_must_be_well("quantising");
            std::vector<uint8_t> w(n_w), q(n_q);
            std::vector<float> xs(static_cast<size_t>(ld_scales(s))), got(n);
            d->w->get(0, w.data(), n_w);
            d->q->get(0, q.data(), n_q);
            for (uint8_t &c : w)
                c &= positive ? 127 : 255;
            for (uint8_t &c : q)
                c &= positive ? 127 : 255;
            MUST(cudaMemcpy(d->w->p, w.data(), n_w, cudaMemcpyHostToDevice));
            MUST(cudaMemcpy(d->q->p, q.data(), n_q, cudaMemcpyHostToDevice));
            d->xs->get(0, xs.data(), xs.size());
            double table[256];
            for (int c = 0; c < 256; c++) {
                int m = c & 127;
                double v = m >= 8 ? ldexp(8 + (m & 7), (m >> 3) - 10) : ldexp(m, -9);
                table[c] = c & 128 ? -v : v;
            }
            std::vector<double> want(n);
            for (size_t t = 0; t < static_cast<size_t>(tokens); t++)
                for (size_t r = 0; r < static_cast<size_t>(rows); r++) {
                    double sum = 0.0;
                    for (size_t c = 0; c < static_cast<size_t>(cols); c++)
                        sum += table[w[r * static_cast<size_t>(cols) + c]] *
                               table[q[t * static_cast<size_t>(cols) + c]];
                    want[t * static_cast<size_t>(rows) + r] =
                        sum * static_cast<double>(xs[t]) *
                        static_cast<double>(row_scale(static_cast<int64_t>(r)));
                }
            printf("errors  %5d columns, %s:", cols, positive ? "magnitudes" : "normal");
            for (int every : {-1, 2, 4, 8, 1 << 20}) {
                reference(*d, s, d->want->p, 8, REF_WGMMA, every);
                d->want->get(0, got.data(), n);
                double error = 0.0, power = 0.0, mean = 0.0;
                for (size_t i = 0; i < n; i++) {
                    double e = static_cast<double>(got[i]) - want[i];
                    error += e * e;
                    power += want[i] * want[i];
                    mean += (want[i] < 0.0 ? -e : e);
                }
                printf("  %s %.2e (%+.1e)",
                       every == -1  ? "128"
                       : every == 2 ? "256"
                       : every == 4 ? "512"
                       : every == 8 ? "1024"
                                    : "all",
                       error / power,
                       mean / static_cast<double>(n) / sqrt(power / static_cast<double>(n)));
            }
            printf("\n");
            fflush(stdout);
        }
    }
}

static int usage()
{
    fprintf(stderr, "gemm_fp8 --list | --only NAME [--quick] [--tokens N,N...] [--matrix N] "
                    "[--ms N] [--raster N]\n");
    return 2;
}

int main(int argc, char **argv)
{
    const char *only = nullptr;
    bool quick = false, found = false;
    std::vector<int> given;
    int raster = 8, matrix = 0;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--list")) {
            for (const struct version &v : versions)
                printf("%-7s %s\n", v.name, v.what);
            printf("cublas  cuBLASLt\nbits    which instructions give the same\nerrors  of longer "
                   "sums\n");
            return 0;
        } else if (!strcmp(argv[i], "--only") && i + 1 < argc) {
            only = argv[++i];
        } else if (!strcmp(argv[i], "--raster") && i + 1 < argc) {
            raster = atoi(argv[++i]);
        } else if (!strcmp(argv[i], "--tokens") && i + 1 < argc) {
            for (const char *at = argv[++i]; *at != 0; at += strcspn(at, ","), at += *at == ',')
                given.push_back(atoi(at));
        } else if (!strcmp(argv[i], "--ms") && i + 1 < argc) {
            share_ms = atof(argv[++i]);
        } else if (!strcmp(argv[i], "--matrix") && i + 1 < argc) {
            matrix = atoi(argv[++i]);
        } else if (!strcmp(argv[i], "--quick")) {
            quick = true;
        } else {
            return usage();
        }
    }
    if (only == nullptr)
        return usage();
    lab_start();
    size_t most_w = b.tiny ? 1 << 20 : 28672 * 4096, most_x = b.tiny ? 1 << 20 : 8192 * 14336;
    size_t most_out = b.tiny ? 1 << 18 : 8192ull * 14336;
    {
        dev<uint8_t> w(most_w), q(most_x);
        dev<uint16_t> x(most_x);
        dev<float> xs(most_x / 64), out(most_out), want(most_out);
        struct data d = {&w, &q, &x, &xs, &out, &want, {}};
        fill(x.p, most_x, FILL_BF16, static_cast<uint64_t>(1) << 40);
        if (!strcmp(only, "cublas")) {
            found = true;
            if (lt_load(nullptr))
                time_all(nullptr, &d, quick, raster, given, matrix);
        } else if (!strcmp(only, "bits")) {
            found = true;
            which_bits(&d);
        } else if (!strcmp(only, "errors")) {
            found = true;
            errors(&d);
        }
        for (const struct version &v : versions) {
            if (strcmp(only, v.name) != 0)
                continue;
            found = true;
            check_small(v, &d);
            time_all(&v, &d, quick, raster, given, matrix);
        }
    }
    return found ? 0 : usage();
}
