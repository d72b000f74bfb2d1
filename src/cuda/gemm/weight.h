/* SPDX-License-Identifier: MIT
 * weight.h - matrices in device memory: how they are packed for products, made and destroyed.
 *
 * A matrix for lookups (SL_USE_ROWS) is the file's rows, unchanged. A matrix for products
 * (SL_USE_LINEAR) is cut into row blocks of 16 rows and those along K into units; a row block's
 * units follow each other, so that a row block is one contiguous stream, and row blocks follow each
 * other, some with a gap (sl_cuda_row_units). Rows after the last one and columns after K are
 * zeros. In a unit of BF16 the values lie as wgmma reads them in shared memory, those of codes lie
 * as lane l of a warp wants them for the A operand of mma.m16n8k16, 16 bytes a lane: with g = l /
 * 4, t = l % 4, element e = 0..7 of step j (16 columns) is
 *
 *     row g + 8 ((e >> 1) & 1), column 16 j + 2 t + (e & 1) + 8 (e >> 2)
 *
 *   layout  of               unit: columns, bytes          bits a weight, K a multiple of the unit
 *   bf16    F32, F16, BF16   64, 2048   [rows 0..7, 8..15][8 columns][row] 8 bf16           16
 *   q8_0    Q8_0             64, 1088   2 x [lane] 2 steps of 8 bytes (code + 128),         8.5
 *                                       then scales f16 [g][row g, g + 8][2 blocks]
 *   q4_0    Q4_0             64, 576    [lane] 4 steps of 8 nibbles, then scales as q8_0    4.5
 *   mxfp4   MXFP4            64, 544    [lane] 4 steps of 8 codes as weight_format.cuh
 * has      4.25 them, then exponents [g][row g, g + 8][2 blocks] q4_k    Q4_K             256, 2560
 * 4 x [lane] pairs of nibbles, then 4 x [g][row g,    5 g + 8][2 runs] head: m as bf16, scale above
 *   q5_k    Q5_K             256, 2816  4 x [lane] as q4_0, 4 x [lane] a word of fifth      5.5
 *                                       bits, [16 rows] 16 bytes: d, dmin f16, 3 words of
 *                                       six-bit fields
 *   q6_k    Q6_K             256, 3360  4 x [lane] low nibbles, 4 x [lane] 8 bytes of upper 6.5625
 *                                       pairs of bits, [16 rows][16] scale + 128, [16] d f16
 *   int4_   groups of 128,   128, 1088   2 x [lane] as q4_k, then heads of groups           4.25
 *   g128    quant/int4.h                 [g][row g, g + 8], m and scale as of q4_k
 *   int4_   of 32            64, 640     [lane] as q4_k, then heads [g][row g: two, g + 8]  5
 *   g32
 *   fp8     FP8_E4M3         128, 2112  4 x [lane] 2 steps of 8 codes, then scales          8.25
 *                                       [g][row g, g + 8] as two bf16, hi below, times 2^88
 *
 * Formats read in eights (quant/eight.h) become the layout that holds them, more bits or not:
 *
 *   int4_g32  Q4_1: heads as of Q4_K
 *   q8_0      Q5_0, IQ4_NL; IQ4_XS, IQ2_XXS with d * scale rounded to f16
 *   q6_k      Q3_K, TQ1_0, TQ2_0, IQ3_S; IQ3_XXS, IQ1_S, IQ1_M, whose d / 2 or d / 8 is rounded to
 *             f16, which is exact for a d of 2^-11 and more
 *   bf16      Q5_1, Q2_K, IQ2_XS, IQ2_S
 *
 * Nibbles: element e < 4 of a step is the low half of byte e of its word, e >= 4 the high half of
 * byte e - 4; in pairs, element e is at bit 4 (e >> 1) + 16 (e & 1). A head has 2^-32 m and 2^101
 * times the scale, of row g + 8 2^97. Why, and fields, upper bits, the codes of FP8:
 * weight_format.cuh.
 *
 *   w8a8    FP8_E4M3, for    128: row blocks of 64 rows, 8192 bytes a unit: rows of 128    8.0
 *           FP8 activations  bytes, 16-byte pieces at piece ^ (row % 8). After all units a float
 *                            for each row of the row blocks, then one for each unit: a weight is
 *                            code * scale of its unit * scale of its row, one of which is 1
 *
 * Which of the two FP8_E4M3 becomes: sl_cuda_w8a8 below.
 *
 * A weight's value is the reference decode of src/quant in float, rounded to bf16 (nearest even),
 * but of Q4_K and of groups bf16(code s + m), s the scale rounded to bf16, m = bf16(v - 8 s) with v
 * the value of code 8 of Q4_K, and of groups bf16(-zero s), and of FP8 bf16(code hi + bf16(code
 * lo)) with hi = bf16(s) and lo = bf16(s - hi) of its scale s, which is code * s but for one weight
 * in a thousand, next to a tie. A row of FP8 with a NaN in a unit is NaN in all of it. F32 and F16
 * are rounded when they are packed, so they lose bits here that the CPU's products keep. Where a
 * scale of the file is not finite the values are not either; a zero may have the other sign, which
 * no sum can show.
 */
#ifndef SL_CUDA_WEIGHT_H
#define SL_CUDA_WEIGHT_H

#include "cuda/device.h"

enum sl_cuda_layout {
    SL_CUDA_ROWS, /* as in the file */
    SL_CUDA_BF16,
    SL_CUDA_Q8_0,
    SL_CUDA_Q4_0,
    SL_CUDA_Q4_K,
    SL_CUDA_Q5_K,
    SL_CUDA_Q6_K,
    SL_CUDA_FP8,
    SL_CUDA_W8A8,
    SL_CUDA_INT4_G128,
    SL_CUDA_INT4_G32,
    SL_CUDA_MXFP4,
    SL_CUDA_LAYOUTS
};

#define SL_CUDA_ROW_BLOCK 16

struct sl_cuda_layout_info {
    const char *name;
    int32_t unit_k, unit_bytes;
};
/* Sizes of a packed layout; not for SL_CUDA_ROWS. */
const struct sl_cuda_layout_info *sl_cuda_layout_info(int32_t layout);

/* Units from a row block to the next: one more, which nobody reads, than it has where those are a
 * multiple of 32 KB. Warps go through row blocks side by side and would all be at the same channels
 * of memory: a step's layer of 8B in BF16 takes 131.5 us for 133.5 with one sequence, 138.7 for
 * 141.4 with four (H200, bench_ops --only step). */
static __host__ __device__ inline int64_t sl_cuda_row_units(int64_t n_units, int64_t unit_bytes)
{
    return n_units + (n_units * unit_bytes % 32768 == 0 ? 1 : 0);
}

/* Bytes from a row block's stream to the next one's. */
int64_t sl_cuda_stream_bytes(int32_t layout, int64_t n_cols);

#define SL_CUDA_W8A8_ROWS 64
#define SL_CUDA_W8A8_UNIT (SL_CUDA_W8A8_ROWS * 128)
/* Bytes of a matrix in that layout. */
int64_t sl_cuda_w8a8_bytes(int64_t n_rows, int64_t n_cols);
/* Can it have scales like these: one for columns of a whole row, or blocks of whole units. */
bool sl_cuda_w8a8(int64_t n_rows, int64_t n_cols, const struct sl_scales *scales);

#ifdef __cplusplus
extern "C" {
#endif
/* As in struct sl_backend_vt. data and scales are the host's and not needed when weight_create
 * returns: weights are always owned. Rows pass through sl_cuda_stage and the pack buffer; packing
 * is enqueued, what fails in it shows up in cu->error. Wait for the stream between the last
 * weight_create and the first operation: products fetch weights before they wait for the previous
 * kernels. No memory is SL_ENOMEM. */
int sl_cuda_weight_create(struct sl_backend *be, enum sl_weight_use use, enum sl_dtype dtype,
                          int64_t n_rows, int64_t n_cols, const void *data,
                          const struct sl_scales *scales, struct sl_weight *out,
                          struct sl_error *err);
uint64_t sl_cuda_weight_bytes(struct sl_backend *be, enum sl_weight_use use, enum sl_dtype dtype,
                              int64_t n_rows, int64_t n_cols);
void sl_cuda_weight_destroy(struct sl_backend *be, struct sl_weight *w);
const char *sl_cuda_weight_route(struct sl_backend *be, const struct sl_weight *w);
/* experts.cu. table: the streams of the matrices, [n] in device memory. */
int sl_cuda_stack_create(struct sl_backend *be, const struct sl_weight *mats, int32_t n,
                         struct sl_stack *out, struct sl_error *err);
void sl_cuda_stack_destroy(struct sl_backend *be, struct sl_stack *s);
/* Of each matrix its stream; the array is in device memory. */
const uint8_t *const *sl_cuda_stack_streams(const struct sl_stack *s);
size_t sl_cuda_experts_bytes(struct sl_backend *be, int32_t n, int32_t n_experts, int32_t top_k,
                             int64_t hidden, int64_t intermediate);
#ifdef __cplusplus
}
#endif

#endif
