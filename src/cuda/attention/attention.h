/* SPDX-License-Identifier: MIT
 * attention.h - what the backend has to do for paged attention besides calling the operation: ask
 * whether a head is supported, give workspace, and plan each step.
 *
 * The plan cuts the step's attention into work items on the device, from the spans in device
 * memory, so that a recorded graph works for any lengths. Every kernel of it has a grid of fixed
 * size and takes items from a list. One plan serves all layers whose numbers of heads and head
 * dimension are the same, windowed or not; the operations make it again where a layer has others
 * than the last plan. No function waits or allocates; calls are made by the engine thread, in
 * stream order.
 */
#ifndef SL_CUDA_ATTENTION_H
#define SL_CUDA_ATTENTION_H

#include "ops/ops.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct sl_cuda;

struct sl_cuda_attention_limits { /* of a step */
    int32_t n_tokens, n_spans;
    int32_t max_context;                   /* positions of a sequence */
    int32_t n_heads, n_kv_heads, head_dim; /* n_kv_heads 0: latent attention */
};

/* group: query heads of a key head. Heads have 16, 32, 64, 80, 96, 128 or 256 dimensions when
 * rounded up to 16, and a multiple of 8. */
bool sl_cuda_attention_supports(int32_t head_dim, int32_t group);
/* Pages of BF16, F16 and FP8_E4M3; of KV_TURBO4 if heads have 64, 128 or 256 dimensions. */
bool sl_cuda_attention_pages(enum sl_dtype dtype, int32_t head_dim);
/* Latent attention (latent.cuh): rows of head_dim values up to 576, of which the first v_dim, up to
 * 512, are values; both a multiple of 8. Pages of BF16, F16 or FP8_E4M3. */
bool sl_cuda_latent_supports(int32_t head_dim, int32_t v_dim, int32_t n_heads, enum sl_dtype pages);

/* Attention to rows made of several tokens (rows_attend.cu): heads of up to 512 dimensions, a
 * multiple of 8; pages of BF16 or F16. It needs neither workspace nor plan. */
bool sl_cuda_rows_support(int32_t head_dim, enum sl_dtype pages);

/* Bytes cu->workspace needs; of several kinds of layers the largest. It need not be zeroed. Less
 * than this works as long as the lists fit: long sequences are then spread over fewer SMs. */
size_t sl_cuda_attention_workspace(const struct sl_cuda *cu,
                                   const struct sl_cuda_attention_limits *limits);

/* Enqueues the plan for the batch: before the first sl_cuda_qk_norm_rope_kv_store (or
 * sl_cuda_latent_store) and sl_cuda_attention of a step. n_kv_heads 0: of latent attention. batch:
 * counts are the host's, arrays are on the device; it is the same in the operations that follow.
 * whole: as in these (struct sl_op_attention). */
void sl_cuda_attention_plan(struct sl_cuda *cu, const struct sl_batch *batch, int32_t n_heads,
                            int32_t n_kv_heads, int32_t head_dim, bool whole);

#ifdef __cplusplus
}
#endif

#endif
