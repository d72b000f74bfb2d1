/* SPDX-License-Identifier: MIT
 * state.h - operations of layers with a recurrent state, and the pages that hold it: a part of
 * ops.h, which says what all operations agree on.
 */
#ifndef SL_OPS_STATE_H
#define SL_OPS_STATE_H

#include "ops/batch.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One layer's part of the pages that hold recurrent state, float32. A page holds the state behind
 * the last token that was computed in its block. Of a span at pos, with its table t of the group:
 *
 *   begin   pos 0: zeros; else the page t[(pos - 1) / block_size]
 *   store   behind each token that is the last of its block, or the last but drafts, to the page
 *           t[block], if that is not below 0; behind the last one it never is, but in a device's
 *           padding. Behind the i-th of its n_drafts drafts, to the page t[n_blocks + i], where
 *           n_blocks is what the span has of t, drafts included
 *
 * So a state that is stored behind a complete block is what a sequence with that prefix begins at,
 * and a step that begins and ends in one block changes its page in place. What drafts leave is no
 * block's yet: which of them were right is known when the step is over. A span has at least one
 * token that is no draft. */
struct sl_state_view {
    uint8_t *pool;
    size_t page_bytes, offset;
    int32_t block_size;
    int32_t group; /* whose table of the batch names its pages */
};

#define SL_STATE_ALIGN 64 /* of the layers' parts of a page */

/* Recurrences are computed in one order, whatever a span's length, so that a text has the same bits
 * however it is cut into spans. Their state is float32 (struct sl_state_view). */

/* A causal convolution of each channel: out[t, c] = act(bias[c] + sum over i of w[i, c] * in[t -
 * (n_taps - 1) + i, c]) * post[t, c] with in = x * pre. State: in of the n_taps - 1 tokens before,
 * the oldest first, [n_taps - 1, C].
 * With kernels each token brings the weights of its own sum, and the first n_plain channels have no
 * taps: out[t, c] = act(x[t, c]), and no weights and no state. */
struct sl_op_short_conv {
    const struct sl_batch *batch;
    const float *x;          /* [T, C], rows ld apart, as those of pre and post */
    const float *pre, *post; /* NULL: 1 */
    int64_t ld;
    const float *w;       /* [n_taps, C] */
    const float *bias;    /* [C] or NULL */
    const float *kernels; /* in place of w: [T, C - n_plain, n_taps]; NULL: there are none */
    int32_t n_channels, n_taps, n_plain;
    bool silu; /* act; else there is none */
    struct sl_state_view state;
    float *out; /* [T, C]; not x */
    void *act;  /* or, where out is NULL, [T, C] activations */
};

/* The gated delta rule of each head, whose state S is [k_dim, v_dim]:
 *   S = decay S;  S += k (beta (v - k S));  out = q S
 * with q and k of length 1, q times scale; decay = exp(a softplus(decay_in + dt_bias)) of the head,
 * or of each row of S (KDA), there also exp(bound sigmoid(-a (decay_in + dt_bias))), which is never
 * below exp(bound); beta = beta_scale sigmoid(beta_in). Heads of v share those of q and k in their
 * order, n_heads / n_k_heads each. Sums over k_dim are in its order. The operation
 * may work in the memory of q, k, decay_in and beta_in: what they hold afterwards is undefined. */
struct sl_op_delta_rule {
    const struct sl_batch *batch;
    float *q, *k;   /* [T, n_k_heads, k_dim], rows ld apart */
    const float *v; /* [T, n_heads, v_dim], rows ld apart */
    int64_t ld;
    float *decay_in;      /* [T, n_heads], or by_row [T, n_heads, k_dim] */
    float *beta_in;       /* [T, n_heads] */
    const float *a;       /* [n_heads], below 0 */
    const float *dt_bias; /* as a row of decay_in */
    bool by_row;
    float bound; /* by_row, below 0; 0: there is none */
    bool tiled;  /* head h of v has those of q and k of index h % n_k_heads; else neighbours share
                    them */
    float l2_eps, scale, beta_scale;
    int32_t n_heads, n_k_heads, k_dim, v_dim;
    struct sl_state_view state; /* of sl_backend.delta_bytes, as the backend lays it out */
    void *scratch;              /* of sl_backend.delta_room */
    float *out;                 /* [T, n_heads, v_dim] */
};

/* State space models. Of channel i of a head, state h [n_state]:
 *   h[s] = exp(dt a) h[s] + dt x b[s];  out = sum over s of h[s] c[s] + d x
 * with dt = min(max(softplus(dt_in + dt_bias), dt_min), dt_max). Mamba 2: a for each head; Mamba 1:
 * heads of one channel, a for each value of the state. Groups of heads share b and c in their
 * order. The sum over s is in its order. */
struct sl_op_ssm {
    const struct sl_batch *batch;
    const float *x; /* [T, n_heads, head_dim], rows ld_x apart */
    int64_t ld_x;
    const float *b, *c; /* [T, n_groups, n_state], rows ld_bc apart */
    int64_t ld_bc;
    const float *dt_in; /* [T, n_heads], rows ld_dt apart */
    int64_t ld_dt;
    const float *a;       /* [n_heads], or by_state [n_state, n_heads]; below 0 */
    const float *dt_bias; /* [n_heads] or NULL */
    const float *d;       /* [n_heads] or NULL */
    float dt_min, dt_max;
    int32_t n_heads, n_groups, head_dim, n_state;
    bool by_state;              /* head_dim is 1 */
    struct sl_state_view state; /* [n_state, n_heads, head_dim] */
    float *out;                 /* [T, n_heads, head_dim] */
};

/* The real-gated linear recurrent unit (RG-LRU). Of each channel, whose state h is one value:
 *   h = decay h + sqrt(1 - decay^2) (x sigmoid(in_gate));  out = h
 * with decay = exp(a sigmoid(decay_gate)); at position 0 without the root. */
struct sl_op_rglru {
    const struct sl_batch *batch;
    const float *x, *in_gate, *decay_gate; /* [T, C] */
    const float *a;                        /* [C], below 0 */
    int32_t n_channels;
    struct sl_state_view state; /* [C] */
    float *out;                 /* [T, C] */
};

enum { SL_MAX_SHIFTS = 6 }; /* mixtures of a token with the one before it */

/* Each token mixed with the one before it: out_i = x + (before - x) w_i; before position 0 are
 * zeros. State: x of the last token. */
struct sl_op_token_shift {
    const struct sl_batch *batch;
    const void *x;  /* [T, C] activations */
    const float *w; /* [n_outs, C] */
    int32_t n_channels, n_outs;
    struct sl_state_view state; /* [C] */
    void *out;                  /* [n_outs] blocks of [T, C] activations, */
    int64_t ld_out;             /* so many values apart; not x */
};

/* RWKV-7's time mixing. Of each head, whose state S is [D, D]:
 *   kk = k k_k of length 1;  k += k (sigmoid(a) - 1) k_a;  v += (v_first - v) sigmoid(v_mix)
 *   S = w S - (kk sigmoid(a)) (kk S) + k v;  out = r S
 * with w = exp(-exp(-1/2) sigmoid(w)) of each row of S. Sums over rows of S are in their order. k
 * and v stay what they become here, as wkv7_out wants them; w, a and kk are undefined afterwards.
 */
struct sl_op_wkv7 {
    const struct sl_batch *batch;
    const float *r;               /* [T, n_heads, D], as all of a token's */
    float *w, *k, *v, *a;         /* in place */
    float *kk;                    /* room */
    const float *v_first, *v_mix; /* NULL: v stays */
    const float *k_k, *k_a;       /* [n_heads, D] */
    int32_t n_heads, head_dim;
    struct sl_state_view state; /* [n_heads, D, D] */
    float *out;
};

/* What comes out of it: out = (layernorm(x) + v sum(r k r_k)) g, each head by itself, in which
 * layernorm(x) = (x - mean) / sqrt(variance + eps) w + b. */
struct sl_op_wkv7_out {
    const float *x, *r, *k, *v, *g; /* [T, n_heads, D] */
    const float *r_k, *w, *b;       /* [n_heads, D] */
    float eps;
    int32_t n, n_heads, head_dim;
    void *out; /* [T, n_heads, D] activations */
};

/* What comes out of a recurrence: out = rmsnorm(x) w act(gate) by groups of a row, or, gate_first,
 * rmsnorm(x act(gate)) w. */
struct sl_op_gated_norm {
    const float *x;    /* [T, n_groups, dim] */
    const float *gate; /* the same, rows ld_gate apart; NULL: there is none */
    int64_t ld_gate;
    const float *w; /* [n_groups, dim], or shared_w [dim]; NULL: 1 */
    bool shared_w, gate_first;
    bool bare;    /* there is no norm: out = x act(gate) */
    bool sigmoid; /* act; else silu */
    float eps;
    int32_t n, n_groups, dim;
    void *out; /* [T, n_groups, dim] activations, rows ld_out apart */
    int64_t ld_out;
};

#endif
