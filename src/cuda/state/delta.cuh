/* SPDX-License-Identifier: MIT
 * delta.cuh - the gated delta rule: what its kernels are given. With a decay of the head it is
 * computed by chunks (delta_chunk.cuh), with one of each row of the state token after token
 * (delta_rows.cuh).
 */
#ifndef SL_CUDA_STATE_DELTA_CUH
#define SL_CUDA_STATE_DELTA_CUH

#include "cuda/state/state.cuh"

struct delta_args {
    struct sl_state_pages pages;
    const float *q, *k, *v;
    int64_t ld;
    const float *decay_in, *beta_in, *a, *dt_bias;
    float l2_eps, scale, beta_scale;
    float bound; /* by row: of the decay's logarithm; 0: there is none */
    int32_t n_heads, n_k_heads, k_dim, v_dim;
    int32_t n_parts; /* blocks that share a head's columns */
    bool tiled;      /* heads of q and k take turns */
    bool wide_qk;    /* q, k and decay_in by row are read 16 bytes at a time */
    bool wide_v;     /* v and, by row, the state's rows */
    float *out;
    int32_t few; /* spans of more tokens are those of the kernels for many */
};

/* delta_prompt.cu. Spans of more than a->few tokens, of which there are some. scratch: of
 * sl_cuda_delta_room. */
void sl_cuda_delta_prompt(struct sl_cuda *cu, const struct sl_batch *b, const delta_args *a,
                          void *scratch);

/* delta_rows.cu: by row. */
void sl_cuda_delta_rows(struct sl_cuda *cu, const struct sl_batch *batch, delta_args a);

#endif
