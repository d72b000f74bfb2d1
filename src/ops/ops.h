/* SPDX-License-Identifier: MIT
 * ops.h - argument structs of the operations in ops.def, and the table a backend fills.
 *
 * What is added up over the layers and what leaves a projection is float32 everywhere (float *).
 * What goes into a projection is in the backend's own activation format, vt->act_dtype: F32 on the
 * CPU, BF16 on a GPU (void *). T is the number of tokens (rows), H the hidden size, all matrices
 * row-major, weights [N, K] as y = W x. A row's result depends on the row and its absolute
 * position only, never on T, on the other rows or on the number of threads: docs/DETERMINISM.md
 * gives the order of every reduction. Operations do not fail; a device that breaks says so at the
 * end of the step. Pointers are device pointers of the backend. This header compiles as C11 and
 * C++17.
 */
#ifndef SL_OPS_OPS_H
#define SL_OPS_OPS_H

#include "base/limits.h"
#include "ops/batch.h"
#include "ops/experts.h"
#include "ops/hyper.h"
#include "ops/lora.h"
#include "ops/state.h"
#include "quant/kv_codec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SL_SCALE_COLS 128 /* blocks of scales are a multiple of this wide, or all columns */

/* Scales of a matrix whose format has none of its own (FP8_E4M3): the weight at row r and column c
 * is its code times values[r / rows, c / cols], rounded once. */
struct sl_scales {
    const float *values; /* [ceil(n_rows / rows), ceil(n_cols / cols)], 2^-100 to 2^100; NULL: 1 */
    int32_t rows, cols;  /* of a block */
    int32_t first_row;   /* of the blocks' rows that is the matrix' first: a part's of a matrix */
};

static inline float sl_scale_at(const struct sl_scales *s, int64_t n_cols, int64_t row, int64_t col)
{
    if (s == NULL || s->values == NULL)
        return 1.0f;
    row += s->first_row;
    return s->values[row / s->rows * ((n_cols + s->cols - 1) / s->cols) + col / s->cols];
}

/* A matrix as the backend's kernel wants it; made by sl_backend.weight_create. */
struct sl_weight {
    enum sl_dtype dtype;
    int16_t layout; /* backend's own */
    bool owned;     /* repacked copy, freed by weight_destroy; else it borrows the mapping */
    int64_t n_rows; /* N */
    int64_t n_cols; /* K, a multiple of the format's block */
    const void *data;
    size_t row_bytes; /* of a row in the file's format */
    size_t n_bytes;
    int32_t of_rows; /* of the whole matrix, where this is a rank's part of one; 0: it is whole.
                        What bits depend on goes by this, so that a part has those of the whole */
    int32_t of_cols; /* likewise, of a part by columns: whole segments (sl_op_linear.apart) */
    struct sl_scales scales; /* borrowed too, of a matrix that is not repacked */
};

/* One matrix for each expert, or head, all of one shape; made by sl_backend.stack_create. */
struct sl_stack {
    const struct sl_weight *mats; /* [n] */
    int32_t n;
    void *table; /* backend's own, or NULL */
};

enum sl_weight_use {
    SL_USE_ROWS,       /* rows are looked up: embed */
    SL_USE_LINEAR,     /* products: linear, linear_gated_act */
    SL_USE_LINEAR_FP8, /* the same, of FP8 whose activations may be FP8 as well, where a backend has
                          such products; else as SL_USE_LINEAR */
};

/* One layer's part of the page pool. Page p starts at pool + p * page_bytes; K of this layer is at
 * k_offset in it and V at v_offset, each [n_kv_heads, block_size / 16] tiles of 16 positions, laid
 * out as the kernels read them: a score wants the same two dimensions of all positions, a sum of
 * values the same two positions of all dimensions. D is the head dimension rounded up to 16, zeros
 * behind the end.
 *
 *   F32         K [D, 16]         V [16, D]
 *   F16, BF16   K [D / 2, 16, 2]  V [8, D, 2]
 *   Q8_0        the same in bytes, then scales f16 [ceil(D / 32), 16]: one for 32 dimensions of a
 *               position; a value is code * scale
 *   FP8_E4M3    K [D, 16]         V [16, D] in bytes, then scales bf16 [16]: one for a position, a
 *               power of two, so that every value is a BF16 number (quant/fp8_e4m3.h)
 *   KV_TURBO4   codes (quant/kv_codec.h), then f16 [16]. K [D / 8, 16] words: bits from 4 j and
 *               4 j + 16 on are dimensions 2 j and 2 j + 1. V [8, D / 4] words of two positions; W
 *               words, 16 or the rest, hold 4 W dimensions: bits from 4 j on of l are W j + l
 *   KV_K8V4     K as FP8_E4M3, V as KV_TURBO4. KV_INT4_HEAD: with f32 [16]
 *   KV_NVFP4    with E4M3 [D / 16, 16]. KV_TURBO3: three bits, as cpu/attn_coded.c says
 *
 * That is the CPU's order; a device may have another in the same number of bytes.
 */
struct sl_kv_view {
    uint8_t *pool;
    size_t page_bytes, k_offset, v_offset;
    enum sl_dtype dtype; /* one of these */
    int32_t block_size;  /* a multiple of SL_KV_TILE */
    int32_t group;       /* whose table of the batch names its pages */
    /* Ranks that have the same key heads, but other positions: SL_KV_STRETCH each in turns, so that
     * a page of block_size positions has block_size / n_ranks of them on each; and which of them
     * this is. 0 or 1: this one has all positions. */
    int32_t n_ranks, rank;
};

#define SL_KV_TILE    16  /* positions of a tile */
#define SL_KV_SCALE   32  /* dimensions that share a scale of Q8_0 */
#define SL_KV_STRETCH 256 /* positions of one of several ranks: of a whole split of attention */

static inline bool sl_kv_divided(const struct sl_kv_view *v)
{
    return v->n_ranks > 1;
}

/* Positions of a page that this rank has. */
static inline int32_t sl_kv_own_size(const struct sl_kv_view *v)
{
    return sl_kv_divided(v) ? v->block_size / v->n_ranks : v->block_size;
}

static inline bool sl_kv_is_own(const struct sl_kv_view *v, int32_t pos)
{
    return !sl_kv_divided(v) || pos / SL_KV_STRETCH % v->n_ranks == v->rank;
}

/* Where a position is in its page, on the rank that has it. */
static inline int32_t sl_kv_slot(const struct sl_kv_view *v, int32_t pos)
{
    const int32_t in_page = pos % v->block_size;
    if (!sl_kv_divided(v))
        return in_page;
    return in_page / (SL_KV_STRETCH * v->n_ranks) * SL_KV_STRETCH + in_page % SL_KV_STRETCH;
}

static inline int32_t sl_kv_padded_dim(int32_t head_dim)
{
    return (head_dim + 15) / 16 * 16;
}

/* The formats of keys and of values in pages of one. */
static inline enum sl_dtype sl_kv_keys(enum sl_dtype dtype)
{
    return dtype == SL_KV_K8V4 ? SL_DTYPE_FP8_E4M3 : dtype;
}

static inline enum sl_dtype sl_kv_values(enum sl_dtype dtype)
{
    return dtype == SL_KV_K8V4 ? SL_KV_TURBO4 : dtype;
}

/* Bytes of a tile of keys or of values of a format. */
static inline size_t sl_kv_tile_bytes(enum sl_dtype dtype, int32_t head_dim)
{
    size_t dim = (size_t)sl_kv_padded_dim(head_dim);
    if (dtype == SL_DTYPE_Q8_0)
        return SL_KV_TILE * (dim + (dim + SL_KV_SCALE - 1) / SL_KV_SCALE * 2);
    if (dtype == SL_DTYPE_FP8_E4M3)
        return SL_KV_TILE * (dim + 2);
    const struct sl_kv_codec *codec = sl_kv_codec_of(dtype);
    if (codec != NULL)
        return SL_KV_TILE * sl_kv_codec_bytes(codec, (int32_t)dim);
    return SL_KV_TILE * dim * (dtype == SL_DTYPE_F32 ? 4 : 2);
}

/* A rank is one of several backends that run the same model on the same batches; each computes
 * some columns of what the others need whole. Ranks whose backends can reach each other's memory
 * share a struct sl_comm. */
struct sl_comm; /* the backend's */

struct sl_rank {
    struct sl_comm *comm;
    int32_t idx;
    void *room[2]; /* for its part of what is gathered next, in turns */
    int32_t turn;
    uint8_t *mem[SL_MAX_RANKS]; /* of every rank, where what lies in one lies in all at the same
                                   offset; NULL: others cannot write there */
    bool lost; /* a gather failed, since another rank is gone: this step's results mean nothing */
};

/* Where a rank computes its part: the others may still read the part before. */
static inline void *sl_rank_room(struct sl_rank *r)
{
    r->turn = !r->turn;
    return r->room[r->turn];
}

enum sl_act {
    SL_ACT_SILU,
    SL_ACT_GELU_TANH,
    SL_ACT_GELU_ERF,
    SL_ACT_TANH,
    SL_ACT_RELU,
    SL_ACT_RELU2, /* its square */
    SL_ACT_XIELU, /* with parameters, struct sl_xielu; of no gate */
    SL_ACT_SIGMOID,
    SL_ACT_COUNT
};

/* xIELU: alpha_p x^2 + beta x above 0; else (exp(min(x, eps)) - 1 - x) alpha_n + beta x. */
struct sl_xielu {
    float alpha_p, alpha_n, beta, eps;
};

/* SwiGLU with limits: (u + up_plus) * g / (1 + exp(-alpha * g)) with g = min(gate, limit) and u =
 * up within -limit and limit. late: u * min(silu(gate), limit). */
struct sl_swiglu {
    float limit; /* 0: there are none, it is act(gate) * up */
    float alpha, up_plus;
    bool late; /* the gate's limit follows its activation */
};

enum sl_rope_pairing {
    SL_ROPE_HALF,        /* (x[i], x[i + d/2]), the Hugging Face order */
    SL_ROPE_INTERLEAVED, /* (x[2i], x[2i + 1]), the order of GGUF Llama files */
};

struct sl_op_embed {    /* out[t] = w[ids[t]] * scale */
    const int32_t *ids; /* [T], each below w->n_rows: checked at admission */
    int32_t n;
    const struct sl_weight *w; /* [V, H] */
    float scale;
    float *out; /* [T, H] */
};

struct sl_op_rmsnorm { /* out = x * rsqrt(mean(x^2) + eps) * w */
    const float *x;    /* [T, H] */
    const float *w;    /* [H]; NULL: out = x */
    float eps;
    int32_t n, h;
    void *out; /* [T, H] activations; may be x if those are float32. NULL: x becomes it, in float32,
                * without w times 1 */
};

struct sl_op_add_rmsnorm { /* x += s y, or x += s rmsnorm(y); x *= x_scale; out = rmsnorm(x), or x
                            */
    float *x;              /* [T, H] the residual stream */
    float *y;       /* [T, H] for this alone: a backend may add without writing it, or change it */
    const float *w; /* [H] of the norm of x; NULL: out = x */
    float eps;
    int32_t n, h;
    void *out;        /* [T, H] activations; may be NULL without w */
    const float *w_y; /* [H] of the norm of y; NULL: y is added as it is */
    float y_scale;    /* s; 0: 1 */
    float x_scale;    /* 0: x is not multiplied */
};

struct sl_op_layernorm { /* x += s y; out = (x - mean(x)) * rsqrt(var(x) + eps) * w + b */
    float *x;            /* [T, H] the residual stream */
    float *y;            /* [T, H] for this alone, as above; NULL: nothing is added */
    const float *w, *b;  /* [H]; b NULL: zeros */
    float eps;
    int32_t n, h;
    void *out;     /* [T, H] activations; may be x if those are float32 */
    float y_scale; /* s; 0: 1 */
    bool keep;     /* x becomes what out is, unrounded (BERT) */
};

/* Where what a rank computes is to lie in the end, on every rank; its place among the others'. A
 * backend may write it there and not to out: then all_gather of out moves nothing. Of parts that
 * are alike on all ranks. */
struct sl_spread {
    const struct sl_rank *rank;
    void *whole; /* in mem[rank->idx] */
    int64_t ld;  /* elements from row to row */
};

struct sl_op_linear { /* out = x W^T + bias */
    const void *x;    /* [T, K] activations, rows ld_x apart */
    int64_t ld_x;
    const struct sl_weight *w; /* [N, K] */
    const float *bias;         /* [N] or NULL */
    int32_t n;                 /* T */
    float *out;                /* [T, N], rows ld_out apart */
    int64_t ld_out;
    const struct sl_op_lora *lora;  /* NULL: nothing is added */
    const struct sl_spread *spread; /* or NULL */
    bool apart; /* of a part by columns: the sums of its segments are not added, out is
                   [segments][T, N], for all_reduce; bias and lora are NULL, T at most
                   SL_APART_ROWS */
};

#define SL_APART_ROWS 16 /* most, of products whose segments stay apart */
/* How a device cuts the columns of a matrix that is fewer rows than that, unless its format has
 * more segments: into so many, of the same length if they are a multiple of so many units. */
#define SL_SEGMENT_ROWS 6144
#define SL_SEGMENTS     4
#define SL_SEGMENT_UNIT 256

#define SL_MAX_LINEAR_PARTS 4

struct sl_op_linear_multi { /* several projections of one input: out_i = x W_i^T + bias_i */
    const void *x;          /* [T, K] activations, rows ld_x apart */
    int64_t ld_x;
    int32_t n; /* T */
    int32_t n_parts;
    struct sl_linear_part {
        const struct sl_weight *w; /* [N_i, K] */
        const float *bias;         /* [N_i] or NULL */
        float *out;                /* [T, N_i], rows ld_out apart */
        int64_t ld_out;
    } part[SL_MAX_LINEAR_PARTS];
    const struct sl_op_lora *lora; /* to part i by matrix lora->mat + i; NULL: nothing */
};

struct sl_op_linear_gated_act { /* out = act(x Wg^T) * (x Wu^T); act: one of vt->gated_acts */
    const void *x;              /* [T, K] activations */
    int64_t ld_x;
    const struct sl_weight *gate, *up; /* [I, K] */
    enum sl_act act;
    int32_t n;
    void *out;                      /* [T, I] activations; if a product is next, for that alone */
    const struct sl_op_lora *lora;  /* to gate and up, before act; NULL: nothing */
    const struct sl_spread *spread; /* or NULL */
};

/* A table of rotation frequencies, one per kind of layer. */
struct sl_rope {
    int32_t n_dims; /* rotated dimensions of a head, even; the rest passes through */
    enum sl_rope_pairing pairing;
    const float *inv_freq; /* [n_dims / 2] */
    float attn_factor;     /* multiplies cos and sin */
};

struct sl_op_rope_angles { /* once a step: out[t, i] = (cos, sin)(pos[t] * inv_freq[i]) * factor */
    const int32_t *positions;
    int32_t n;
    const struct sl_rope *rope;
    float *out; /* [T, n_dims / 2, 2] */
};

/* Queries grow with their position p: times 1 + beta * ln(1 + floor((p + first) / span)). */
struct sl_q_temperature {
    float beta, span; /* beta 0: they do not */
    int32_t first;
};

struct sl_op_qk_norm_rope_kv_store { /* q, k: optional RMSNorm, then RoPE; k, v: to the pages */
    const struct sl_batch *batch;
    float *q;       /* [T, nq, hd], rows ld apart; rotated in place */
    float *k;       /* [T, nkv, hd]; may be changed; NULL: nothing is stored */
    const float *v; /* [T, nkv, vd]; may be k, whose values before norm and rotation it then has */
    int64_t ld_q, ld_k, ld_v;
    int32_t n_heads, n_kv_heads, head_dim; /* n_heads 0: there is no q */
    int32_t v_dim;                         /* of v; 0: head_dim */
    const float *q_norm, *k_norm;          /* [hd] of each head, or NULL */
    bool norm_bare;  /* each head of q and k is normed without weights; q_norm, k_norm NULL */
    bool norm_rows;  /* they are of all heads of a row together: [nq * hd], [nkv * hd] */
    bool norm_after; /* behind the rotation, not before it; not with norm_rows */
    bool norm_v;     /* RMSNorm of each head of v, without weights */
    float eps;
    float clip; /* then q, k and v are kept within -clip and clip, before the rotation; 0: not */
    const struct sl_rope *rope; /* NULL: no rotation */
    const float *angles;        /* from rope_angles */
    struct sl_q_temperature temperature;
    struct sl_kv_view kv;
};

struct sl_op_heads_linear {   /* out[t, h] = W_h x[t, h], a matrix for each head */
    const void *x;            /* [T, n_heads, K] activations, */
    int64_t ld_x, step_x;     /* rows and heads so far apart */
    const struct sl_stack *w; /* n_heads of [N, K] */
    int32_t n;                /* T */
    float *out;               /* [T, n_heads, N], */
    int64_t ld_out, step_out; /* likewise */
};

/* Latent attention (MLA): a token has one row for all heads, `rank` values and behind them
 * `rope_dim` that are rotated. All of it is its key, the first `rank` its value, so that a layer's
 * part of a page has K alone (struct sl_op_attention.v_in_k). */
struct sl_op_latent_store {
    const struct sl_batch *batch;
    const float *c;      /* [T, rank]: its RMSNorm by `norm` is stored, */
    const float *k_rope; /* [T, rope_dim] and this, rotated; rope_dim may be 0 */
    const float *norm;   /* [rank] */
    float eps;
    const float *q_rope; /* [T, nq, rope_dim], rows and heads so far apart: rotated and put */
    int64_t ld_q_rope, step_q_rope;
    float *q; /* [T, nq, rank + rope_dim] behind the first `rank` of each head, which are there */
    int32_t n_heads, rank, rope_dim;
    const struct sl_rope *rope;          /* of rope_dim; NULL: nothing is rotated */
    const float *angles;                 /* from rope_angles */
    struct sl_q_temperature temperature; /* of all of a query */
    bool by_row; /* tiles are rows [16, D], as sparse_attention reads them, not keys */
    struct sl_kv_view kv;
};

/* Skip-softmax (docs/DETERMINISM.md): a tile of SL_SKIP_TILE keys at a multiple of that adds
 * nothing to a row whose best score in it lies by more than ln((pos + 1) / factor) below the row's
 * best of the first SL_SKIP_FIRST keys, or below what the row has met in the split before the tile.
 * Rows before position SL_SKIP_FROM, or up to position `factor`, add everything. */
#define SL_SKIP_TILE  64
#define SL_SKIP_FIRST 16
#define SL_SKIP_FROM  512

/* Of steps of one token of a sequence ([1], decode) and of more. A unit is what a kernel can leave
 * out only together: the rows of a key head that it computes at a time, and a tile. */
struct sl_skip_counts {
    uint64_t tiles, skipped;       /* of rows, that are subject to the rule */
    uint64_t units, units_skipped; /* with such rows */
};

struct sl_op_attention { /* attention of each span's rows over its pages */
    const struct sl_batch *batch;
    const float *q; /* [T, nq, hd] */
    int64_t ld_q;
    int32_t n_heads, n_kv_heads, head_dim;
    int32_t v_dim; /* of values; 0: head_dim */
    bool v_in_k;   /* they are the first v_dim dimensions of keys: pages have no V; n_kv_heads 1 */
    float scale;
    bool whole;         /* every row sees all keys of its span; else row i those up to its own */
    int32_t window;     /* 0: none; else row i sees key j only if i - j < window, and, where whole,
                           j - i < window */
    bool chunks;        /* the window does not slide: row i sees key j only if both are in the same
                           of the chunks [k * window, (k + 1) * window); not with whole */
    float softcap;      /* 0: none; else s = cap * tanh(s / cap) */
    const float *sinks; /* [nq] or NULL: a logit that takes part in the softmax's sum alone */
    float skip_factor;  /* of skip-softmax; 0, whole or with a window: every tile counts */
    struct sl_skip_counts
        *skip_counts; /* [2] in the backend's memory, added to; NULL: nobody asks */
    /* 0: a span has one list of pages; else each key head has its own, so many ids behind that of
     * the head before it. CPU alone, for page_attention. */
    int32_t head_stride;
    struct sl_kv_view kv;
    /* Where ranks divide the positions (kv.n_ranks > 1; neither whole nor with skipped tiles): q is
     * of the heads of all these ranks, n_heads, and the same on each. A rank attends to the
     * positions that it has; what splits give, in its room, is exchanged; and each joins the
     * splits of its own heads, n_heads / kv.n_ranks, of which sinks and out are. CPU alone. */
    struct sl_rank *rank;
    void *others; /* room for SL_KV_RANK_ROOM bytes of each rank of rank's comm, for links that
                     bring parts */
    void *out;    /* [T, nq * vd] activations */
    int64_t ld_out;
};

/* Bytes of splits that a rank gives at a time. */
#define SL_KV_RANK_ROOM (2u << 20)

struct sl_op_gate_heads { /* x[t, h, d] *= sigmoid(gate[t, h, d]), or sigmoid(gate[t, h]) */
    void *x;              /* [T, heads, dim] activations */
    const float *gate;    /* [T, heads, dim], or by_head [T, heads] */
    int32_t n, n_heads, dim;
    bool by_head;
    bool softplus; /* of the gate, in place of its sigmoid */
};

/* Dimensions of a head of values. */
static inline int32_t sl_v_dim(int32_t head_dim, int32_t v_dim)
{
    return v_dim != 0 ? v_dim : head_dim;
}

/* What each of L layers gets of a token beside the residual stream: a row of a table and a
 * projection of the token's embedding. out[l, t] = (rmsnorm(x[t, l]) + row(ids[t])[l] * row_scale)
 * * scale, with h values each. */
struct sl_op_layer_inputs {
    const int32_t *ids; /* [T]; one behind the table's end counts as 0 */
    int32_t n, n_layers, h;
    const struct sl_weight *table; /* [V, L * h], rows */
    float row_scale, scale;
    float *x;       /* [T, L * h]; may be changed */
    const float *w; /* [h] of the norm */
    float eps;
    float *out;     /* [L] blocks of [T, h], */
    int64_t ld_out; /* so many values apart */
};

enum { SL_MAX_STREAMS = 4 }; /* residual streams of a model */

struct sl_op_mix_streams { /* x_i += sum over j of coefs[t, i, j] x_j, all at once (AltUp) */
    float *x, *others;     /* the first stream [T, h]; the others, each [T, h], */
    int64_t ld_others;     /* so many values apart */
    const float *coefs;    /* [T, n_streams, n_streams] */
    int32_t n_streams, n, h;
    float *keep; /* [T, h]: the first one as it is then */
};

struct sl_op_correct_streams { /* d = x - keep; x = keep + (coefs[t, 0] + 1) d; others_i +=
                                  (coefs[t, i] + 1) d; out = x * w */
    float *x, *others;
    int64_t ld_others;
    const float *coefs; /* [T, n_streams] */
    const float *keep;  /* [T, h] */
    const float *w;     /* [h]; NULL: out = x */
    int32_t n_streams, n, h;
    void *out; /* [T, h] activations */
};

struct sl_op_match_rms { /* y *= rms(x) / max(rms(y)^2, min)^(1/2), by rows */
    const float *x;
    float *y; /* [T, h] */
    int32_t n, h;
    float min;
};

struct sl_op_cut_gate { /* x = max(x - (mean + deviations * standard deviation), 0), by rows */
    float *x;           /* [T, h] */
    int32_t n, h;
    float deviations;
};

struct sl_op_gather_rows { /* out[i] = x[rows[i]] */
    const void *x;         /* [T] rows of row_bytes, a multiple of 4 */
    const int32_t *rows;
    int32_t n;
    size_t row_bytes;
    void *out; /* [n] rows */
};

#define SL_MAX_CLUSTERS     8192
#define SL_MAX_TOP_CLUSTERS 256

struct sl_op_cluster_logits {     /* logits of the tokens of each row's top_k clusters, those of the
                                     largest scores (of equal ones the lower index); of all other
                                     tokens -FLT_MAX */
    const void *x;                /* [T, H] activations */
    const float *scores;          /* [T, n_clusters] */
    int32_t n, n_clusters, top_k; /* at most SL_MAX_CLUSTERS and SL_MAX_TOP_CLUSTERS */
    const int32_t *order;      /* [V] tokens, each once, V / n_clusters of a cluster side by side */
    const struct sl_weight *w; /* [V, H], made for SL_USE_ROWS: a token's row */
    int32_t *top;              /* [T, top_k] scratch */
    float *out;                /* [T, V] */
};

struct sl_op_chain_state { /* a step of a recurrence of each row: with [a, b, c] of it in mix and s
                              the sigmoid of a, state = s state + (1 - s) tanh(b); out = tanh(c) */
    const float *mix;      /* [n, 3, width] */
    int32_t n, width;
    bool first;          /* states are 0 before it, whatever is there */
    const int32_t *rows; /* [n] different rows of state; NULL: row i */
    float *state;        /* [rows, width] */
    void *out;           /* [n, width] activations */
};

struct sl_op_copy_rows { /* out[i] = x[rows[i]], between rows of different widths and formats */
    const void *x;       /* rows of h floats, or x_act activations, ld_x apart */
    int64_t ld_x;
    const int32_t *rows; /* [n]; NULL: row i */
    const float *other;  /* [h] the row where rows[i] < 0, of floats; NULL: none is */
    int32_t n, h;
    bool x_act, out_act;
    void *out; /* [n, h], rows ld_out apart; not x */
    int64_t ld_out;
};

struct sl_op_embed_positions { /* out[t] = word[token] + type[segment] + position[first + place] */
    const struct sl_batch *batch;
    /* [V, H], [first + context, H], [types, H]; of the last two NULL: there are none. */
    const struct sl_weight *word, *position, *type;
    int32_t first;
    bool one_type; /* a second text has the first's type */
    float *out;    /* [T, H] */
};

struct sl_op_activate { /* out[i] = act(x[i]), or act(x[i]) * up[i] */
    const float *x;
    enum sl_act act;
    int64_t n;
    void *out;               /* [n] activations; may be x if those are float32 */
    const float *up;         /* NULL: there is no gate */
    struct sl_swiglu swiglu; /* beside up, with a limit: in place of act */
    struct sl_xielu xielu;   /* of SL_ACT_XIELU, without up */
};

struct sl_op_scale_logits { /* x = s x, or cap tanh(s x / cap) */
    float *x;               /* [n] */
    int64_t n;
    float scale, cap; /* cap 0: none */
};

/* Sparse attention by an index (DSA). Beside what attention reads a layer keeps one key k of `dim`
 * values of each token, a plane of its own in the page (a view with K of one head), and a row asks
 * it with several queries q:
 *   score(s) = sum over h of w[h] max(0, q[h] . k[s])
 * The row attends to the top_k positions up to its own with the largest scores; of equal scores the
 * lower position counts as larger, NaN as less than any number. A factor above 0 that all scores
 * have in common changes nothing, so there is none. A row that sees no more than top_k positions
 * attends to all, and has no scores.
 *
 * With block > 0 (a power of two from SL_KV_TILE to SL_INDEX_BLOCK; MiniMax M3) what is chosen are
 * blocks of so many positions, and each query chooses for itself:
 *   score(h, b) = max over s in b, up to the row's own position, of q[h] . k[s]
 * The last n_local blocks, the row's own among them, count as larger than any number. Of equal
 * scores the lower block counts as larger. A row in one of the first top_k blocks attends to all.
 */
struct sl_op_index_store {
    const struct sl_batch *batch;
    float *q;                      /* [T, n_heads, dim]; normed and rotated in place */
    float *k;                      /* [T, dim]; changed: its LayerNorm, rotated, is stored */
    const float *norm, *norm_bias; /* [dim]; no norm_bias: it is an RMSNorm */
    const float *q_norm;           /* [dim] of an RMSNorm of each query; NULL: there is none */
    float eps;
    int32_t n_heads, dim;       /* n_heads 0: there is no q */
    const struct sl_rope *rope; /* of dimensions of q and k; NULL: nothing is rotated; */
    int32_t rope_from;          /* the first of these */
    const float *angles;        /* from rope_angles */
    struct sl_kv_view kv;       /* F32 or BF16 */
};

struct sl_op_index_select {
    const struct sl_batch *batch;
    const float *q; /* [T, n_heads, dim] as index_store leaves them, in whatever form */
    const float *w; /* [T, n_heads]; of blocks NULL */
    int32_t n_heads, dim, top_k;
    int32_t block, n_local; /* 0: positions are chosen, by all queries together */
    int32_t n_most; /* positions that no sequence exceeds, for a device, whose spans are its own */
    struct sl_kv_view kv;
    float *scores; /* room for so many, at least sl_index_scores(positions of the longest span), */
    int64_t n_scores; /* of blocks sl_index_block_scores(the same) */
    /* [T, top_k] positions, or [T, n_heads, top_k] blocks of a row, ascending; of one that sees no
     * more: undefined. */
    int32_t *top;
};

/* Scores that a row needs room for. */
static inline int64_t sl_index_scores(int64_t n_positions)
{
    return (n_positions + 255) / 256 * 256;
}

#define SL_INDEX_BLOCK 256 /* positions of a block of an index, at most */

static inline int64_t sl_index_block_scores(int64_t n_positions, int32_t block, int32_t n_heads)
{
    return sl_index_scores(n_positions) / block * n_heads;
}

static inline bool sl_index_block_fits(int32_t block)
{
    return block >= SL_KV_TILE && block <= SL_INDEX_BLOCK && (block & (block - 1)) == 0;
}

/* The format of an index' keys beside pages of some format. */
static inline enum sl_dtype sl_index_dtype(enum sl_dtype kv)
{
    return kv == SL_DTYPE_F32 ? SL_DTYPE_F32 : SL_DTYPE_BF16;
}

/* Attention of rows over the positions in `top`, as if these were all there are: they are put side
 * by side in ascending order and cut into splits there. So a row that sees no more than top_k has
 * the bits of attention (on a device up to 512 positions, as what follows is cut into longer
 * splits). The pages hold rows (struct sl_op_latent_store.by_row).
 *
 * Of blocks the pages are those of attention, and each key head sees what the query of the index
 * with its number has chosen.
 *
 * With a ratio (GLM-5.3) each of `top` are so many positions, whole ones by position, of which
 * compressed_select chose; behind them a row sees those up to its own that fill no such window yet.
 * So it sees at most sl_sparse_seen, and all up to so many. */
struct sl_op_sparse_attention {
    struct sl_op_attention all; /* without window and skipped tiles; of positions v_in_k, of blocks
                                   without sinks */
    const int32_t *top; /* from index_select or compressed_select, of this layer or an earlier one
                         */
    int32_t top_k;
    int32_t ratio; /* of struct sl_op_compressed_select; 0: positions are chosen, or blocks */
    int32_t block; /* of struct sl_op_index_select; with as many queries as all has key heads */
    void *room;    /* zeroed when made; at least sl_sparse_room(.., 1) bytes; on a device, and of
                      blocks, a span for each token; of blocks on a device sl_chosen_room */
    size_t room_bytes;
};

/* Positions that a row which does not see all has before it, at most, of top_k times ratio. */
static inline int32_t sl_sparse_seen(int32_t top_k, int32_t ratio)
{
    return ratio > 0 ? top_k * ratio + ratio - 1 : top_k;
}

/* Where a device reads blocks as pages of a sequence: positions of such a page, and bytes for each
 * token, of which there is room for one or more. */
static inline int32_t sl_chosen_page(int32_t block, int32_t block_size)
{
    while (block_size != 0) {
        const int32_t rest = block % block_size;
        block = block_size;
        block_size = rest;
    }
    return block;
}

static inline size_t sl_chosen_room(int32_t n_kv_heads, int32_t n_top, int32_t block,
                                    int32_t block_size)
{
    const int32_t each = block / sl_chosen_page(block, block_size);
    return (size_t)n_kv_heads *
           (sizeof(struct sl_span) + (size_t)n_top * (size_t)each * sizeof(int32_t));
}

/* Bytes in which n rows are worked on at a time. */
static inline size_t sl_sparse_room(enum sl_dtype dtype, int32_t head_dim, int32_t top_k, int32_t n)
{
    const size_t tiles = ((size_t)top_k + SL_KV_TILE - 1) / SL_KV_TILE;
    return (size_t)n *
           (tiles * sl_kv_tile_bytes(dtype, head_dim) + sizeof(struct sl_span) + sizeof(int32_t));
}

/* Attention to a window and to rows that stand for several tokens each (DeepSeek V4). Of every
 * `ratio` tokens, whole ones by position, one row is made: a weighted mean of what they have for
 * it. Keys are values too, and all heads share them. A layer keeps the rows of the window's tokens
 * in pages of a group with that window, and those made of several in pages of the group without
 * one: a page has the rows of the windows whose last token is in its block. */
struct sl_rows_view {
    uint8_t *pool;
    size_t page_bytes, offset;
    enum sl_dtype dtype; /* F32, F16 or BF16 */
    int32_t block_size;  /* tokens */
    int32_t group;       /* whose table of the batch names its pages */
};

static inline size_t sl_row_bytes(enum sl_dtype dtype, int32_t dim)
{
    return (size_t)sl_kv_padded_dim(dim) * (dtype == SL_DTYPE_F32 ? 4 : 2);
}

/* Rows of a page, at most, of tokens of which `ratio` make one. */
static inline int32_t sl_rows_of_block(int32_t block_size, int32_t ratio)
{
    return (block_size + ratio - 1) / ratio;
}

struct sl_op_turn_tails { /* the last dimensions of each head are rotated, or back */
    float *x;             /* [T, n_heads, dim] */
    int32_t n, n_heads, dim;
    bool norm; /* before it, each head is normed without weights */
    float eps;
    const struct sl_rope *rope; /* of the last rope->n_dims dimensions */
    const float *angles;        /* from rope_angles */
};

struct sl_op_row_store { /* the RMSNorm of each row, its last dimensions rotated, to the pages */
    const struct sl_batch *batch;
    const float *x; /* [T, dim] */
    const float *norm;
    float eps;
    int32_t dim;
    const struct sl_rope *rope;
    const float *angles;
    struct sl_rows_view rows; /* one for each token */
};

/* Of window w, that is tokens w ratio to (w + 1) ratio - 1, by dimension: row = sum of
 * softmax(gate) kv, with gate = the token's + bias[its place in the window], over its tokens;
 * overlap: over these with the second half of what they have, and those of window w - 1 with the
 * first. Then RMSNorm, rotation of the last dimensions by the position of the window's first token,
 * each where it is given, and to the pages. State: of each sum [3, W] its maximum, its weights' sum
 * and itself, 0 where it is empty. */
struct sl_op_compress {
    const struct sl_batch *batch;
    float *kv;         /* [T, W]; changed; W: dim, or with overlap twice that */
    const float *gate; /* [T, W] */
    const float *bias; /* [ratio, W] */
    const float *norm; /* [dim]; NULL: rows are not normed */
    float eps;
    int32_t dim, ratio;
    bool overlap;
    const struct sl_rope *rope; /* NULL: nothing is rotated */
    struct sl_state_view state; /* of sl_compress_state bytes */
    struct sl_rows_view rows;   /* one for each window */
};

static inline size_t sl_compress_state(int32_t dim, bool overlap)
{
    const size_t n = 3 * (size_t)dim * (overlap ? 2 : 1) * sizeof(float);
    return (n + SL_STATE_ALIGN - 1) / SL_STATE_ALIGN * SL_STATE_ALIGN;
}

/* As index_select, of rows made of `ratio` tokens: position p sees (p + 1) / ratio of them. */
struct sl_op_compressed_select {
    const struct sl_batch *batch;
    const float *q; /* [T, n_heads, dim] */
    const float *w; /* [T, n_heads] */
    int32_t n_heads, dim, top_k, ratio;
    int32_t n_most; /* rows that no sequence exceeds, for a device, whose spans are its own */
    struct sl_rows_view rows;
    float *scores; /* room for so many, at least sl_index_scores(rows of the longest span) */
    int64_t n_scores;
    int32_t *seen; /* [T] room for a device; else NULL */
    int32_t *top;  /* [T, top_k] rows, ascending; of a position that sees no more: undefined */
};

/* A position attends to the rows made of several tokens that it sees, or has chosen of them, in
 * ascending order, and behind them to its own row and window - 1 of those before it: as if these
 * were all keys there are, side by side. What comes out is rotated back by the position, as
 * turn_tails does it. */
struct sl_op_compressed_attention {
    const struct sl_batch *batch;
    const float *q; /* [T, n_heads, dim] */
    int32_t n_heads, dim, window;
    float scale;
    const float *sinks;       /* [n_heads] */
    struct sl_rows_view near; /* a row for each token */
    int32_t ratio;            /* 0: there are no others */
    struct sl_rows_view far;
    const int32_t *top; /* [T, top_k] from compressed_select; NULL: all are seen */
    int32_t top_k;
    void *room; /* at least sl_compressed_room(.., 1); on a device nothing is copied, NULL */
    size_t room_bytes;
    int32_t n_most;             /* rows that a position can attend to */
    const struct sl_rope *rope; /* of the last rope->n_dims dimensions; */
    const float *angles;        /* from rope_angles */
    void *out;                  /* [T, n_heads, dim] activations */
};

/* Bytes in which n positions are worked on at a time. */
static inline size_t sl_compressed_room(enum sl_dtype dtype, int32_t dim, int32_t n_most, int32_t n)
{
    const size_t tiles = ((size_t)n_most + SL_KV_TILE - 1) / SL_KV_TILE;
    return (size_t)n *
           (tiles * sl_kv_tile_bytes(dtype, dim) + sizeof(struct sl_span) + 2 * sizeof(int32_t));
}

/* Attention over the pages that may hold what a row looks for (after Quest). A full page keeps, for
 * each key head, two bounds of each dimension of its keys as they are stored: the largest number
 * and the smallest, drawn in by a quarter of what is between them. [n_kv_heads][2][padded D] at
 * bounds_offset, in sl_index_dtype of the pages. What a query may find in the page is
 *   sum over d of max(q[d], 0) * upper[d] + min(q[d], 0) * lower[d]
 * which is between its product with the middle of the keys and the largest that a key there could
 * have. A row that sees more than top_pages pages attends, for each key head, to the first one, to
 * the last ones, its own among them, and to those between where this, the largest of the head's
 * queries, is largest; of equal ones the lower page counts as larger, NaN as less than any number.
 * So many pages in all, put side by side in ascending order, as if they were all there are: so a
 * row that sees no more has the bits of attention. */
#define SL_TOP_PAGES_FIRST 1
#define SL_TOP_PAGES_LAST  4
#define SL_TOP_PAGES_MIN   8 /* of top_pages */

struct sl_top_page_counts { /* of rows and key heads: pages attended to; pages that there were
                             */
    uint64_t read, dense;
};

struct sl_op_page_bounds { /* of the pages that the batch's rows, which are stored, have filled
                            */
    const struct sl_batch *batch;
    int32_t n_kv_heads, head_dim;
    size_t bounds_offset;
    struct sl_kv_view kv;
};

struct sl_op_page_attention {
    struct sl_op_attention all; /* not whole, v_in_k, with a window or skipped tiles */
    int32_t top_pages;
    size_t bounds_offset;
    struct sl_top_page_counts *counts; /* added to; NULL: nobody asks */
    void *room; /* at least sl_page_room of one row, for the pages of the longest span, or, on a
                   device, those of n_most positions, and sl_chosen_room */
    size_t room_bytes;
    int32_t n_most; /* positions that no sequence exceeds, for a device, whose spans are its own */
};

/* Bytes of the bounds of a page. */
static inline size_t sl_page_bounds_bytes(enum sl_dtype kv, int32_t n_kv_heads, int32_t head_dim)
{
    return (size_t)n_kv_heads * 2 * (size_t)sl_kv_padded_dim(head_dim) *
           (kv == SL_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t));
}

/* Bytes in which a row that sees n_pages is worked on. */
static inline size_t sl_page_room(int32_t n_kv_heads, int32_t top_pages, int32_t n_pages)
{
    return sizeof(struct sl_span) + (size_t)n_kv_heads * ((size_t)top_pages * sizeof(int32_t) +
                                                          (size_t)n_pages * sizeof(float));
}

enum sl_pool_kind { SL_POOL_MEAN, SL_POOL_CLS, SL_POOL_LAST, SL_POOL_MAX, SL_POOL_COUNT };

struct sl_op_pool {              /* one vector of each span's rows */
    const void *x;               /* [T, H] activations */
    const struct sl_span *spans; /* [n]; NULL: row i is all there is of span i */
    int32_t n, h;
    enum sl_pool_kind kind; /* mean of the rows, the first, the last, the largest of each column */
    bool normalize;         /* to length 1 */
    float *out;             /* [n, H], not x */
};

enum sl_route_score {
    SL_ROUTE_SOFTMAX, /* exp(logit) / sum of exp(logits) of the row */
    SL_ROUTE_SIGMOID, /* 1 / (1 + exp(-logit)) */
    /* SparseMixer: experts are chosen by their logits, without a bias and without groups. The
     * weight of each is its share of the softmax of those not chosen before it whose logit x is
     * near its own, m: (m - x) / max(|x|, m) <= near. */
    SL_ROUTE_MIXER,
    SL_ROUTE_ROOT_SOFTPLUS, /* sqrt(ln(1 + exp(logit))) */
};

/* How a layer's router turns logits into experts and weights. */
struct sl_route_rule {
    enum sl_route_score score;
    bool renormalize; /* the weights of a row are divided by their sum, */
    float sum_min;    /* or by this if the sum is smaller */
    float scale;      /* of weights, after that */
    /* Experts in so many equal groups, of which only the top_groups best have experts that are
     * chosen. A group is as good as the sum of its group_top largest scores. 1: no groups. */
    int32_t n_groups, top_groups, group_top;
    float near; /* of SL_ROUTE_MIXER */
};

struct sl_op_route {     /* each row's experts: those with the top_k largest scores, largest first;
                            of equal scores the lower index comes first */
    const float *logits; /* [T, E] */
    const float *bias;   /* [E] added to the scores that choose, not to those that weigh; or NULL */
    int32_t n, n_experts, top_k; /* top_k <= experts of top_groups groups */
    struct sl_route_rule rule;
    const float *expert_scale; /* [E] times the weight of each, at last; or NULL */
    /* Where tokens say which: [V, top_k] different ones of each, and the tokens [T], each below
     * V; without a bias and groups. NULL: scores do. */
    const int32_t *of_token, *tokens;
    int32_t n_vocab;  /* V */
    int32_t *experts; /* [T, top_k] */
    float *weights;   /* [T, top_k] */
};

/* Whether so many experts can be chosen by that rule. */
static inline bool sl_route_fits(int32_t n_experts, int32_t top_k, const struct sl_route_rule *r)
{
    if (n_experts < 1 || n_experts > SL_MAX_EXPERTS || top_k < 1 || top_k > SL_MAX_TOP_EXPERTS ||
        r->n_groups < 1 || n_experts % r->n_groups != 0)
        return false;
    const int32_t size = n_experts / r->n_groups;
    return r->top_groups >= 1 && r->top_groups <= r->n_groups && top_k <= size * r->top_groups &&
           r->group_top >= 1 && r->group_top <= size &&
           (r->score != SL_ROUTE_MIXER || (r->n_groups == 1 && !r->renormalize));
}

struct sl_op_experts { /* out[t] = sum of weights[t, s] * down(act(gate x[t]) * (up x[t])), with
                          the matrices and biases of expert experts[t, s], added by leaves; then
                          shared[t] is added to that */
    const void *x;     /* [T, H] activations */
    int32_t n, top_k;
    const int32_t *experts; /* [T, top_k] different ones in a row */
    const float *weights;   /* [T, top_k] */
    bool weigh_input; /* they multiply gate x and up x in place of what down gives; no biases */
    const struct sl_stack *gate, *up, *down; /* [I, H] twice, [H, I]; of no gate: it is up */
    int32_t from, until; /* only experts from .. until - 1 are multiplied and added, the others
                            are not here and their matrices have no data, or they have none, where
                            numbers are beyond those of stacks; until 0: all */
    const float *gate_bias, *up_bias; /* [E, I], both or NULL */
    const float *down_bias;           /* [E, H] or NULL */
    enum sl_act act;
    struct sl_swiglu swiglu;   /* with a limit: in place of act */
    const float *shared;       /* [T, H] or NULL: nothing is added; */
    const float *shared_logit; /* [T] times the sigmoid of this, or NULL */
    void *scratch;             /* of sl_backend.experts_bytes */
    float *out;                /* [T, H] */
    /* Of some experts: out is one of the parts that all_reduce adds next; or NULL. */
    const struct sl_spread *spread;
    struct sl_rank *rank; /* then matrices are this rank's rows, [I', H] twice and [H', I], and
                             so is out, [T, H']; NULL: they are whole */
    /* Of ranks that have some experts each, as places says: matrices are whole, those of experts
     * that are elsewhere have no data. What a pair of a row and an expert gives is exchanged, and
     * every rank adds up all of them in the one order: out is that of all. NULL: none of this. */
    const struct sl_expert_places *places;
    const int32_t *positions;        /* of row t positions[rows[t]], */
    const int32_t *rows;             /* NULL: t */
    struct sl_expert_counts *counts; /* or NULL */
    void *exchange;                  /* of sl_backend.placed_bytes */
};

struct sl_op_pass_experts { /* out[t] = x[t] times the sum of the weights of those of its experts
                               that give back what they read, in the order of their places; 0 where
                               it has none */
    const void *x;          /* [T, H] activations */
    int32_t n, h, top_k;
    int32_t first;          /* of such experts; those behind it are likewise */
    const int32_t *experts; /* [T, top_k] */
    const float *weights;   /* [T, top_k] */
    float *out;             /* [T, H] */
};

struct sl_op_sum_parts {   /* out[t] = the sum of row t's parts as a balanced binary tree; then
                              shared[t] is added as in experts */
    const float *parts;    /* [T, n_parts, H] */
    int32_t n, n_parts, h; /* n_parts: 2, 4 or 8; h: a multiple of 4 */
    const float *shared, *shared_logit; /* as in struct sl_op_experts */
    float *out;                         /* [T, H] */
};

struct sl_op_all_gather { /* out[t] = the parts of row t of all ranks, in their order; every
                             rank of a comm calls it, as often and for as many rows as the
                             others */
    struct sl_rank *rank;
    const void *part;  /* [n] rows; read by others until the next call returns */
    size_t part_bytes; /* of a row, maybe other than the others' */
    int32_t n;
    void *out;       /* [n] rows; NULL: this rank does not want them, as the others know: */
    bool first_only; /* only rank 0 does */
    bool even;       /* floats of which all ranks have as many, a multiple of 4 */
    bool open;       /* all ranks have as many bytes, out lies in rank->mem, and a meeting ago every
                        rank was done with what lay there: the others may write to it */
};

struct sl_op_all_reduce { /* out[t] = what the ranks have of row t, added up, on every rank;
                             calls are as those of all_gather */
    struct sl_rank *rank;
    const float *part; /* [n_terms][n, h]; in a room, read by others until the next call returns */
    int32_t n_terms;   /* of every rank: at most SL_REDUCE_TERMS of all ranks together */
    int32_t n, h;      /* h: a multiple of 4 */
    bool tree; /* of one term: neighbours are added, then neighbours' sums, and so on; else all
                  terms are added in order, rank by rank */
    const float *parts;     /* [n_ranks][n, h] what an operation before has written to all ranks, if
                               it has (struct sl_spread), or NULL */
    const float *add;       /* [n, h] is added to the sum, NULL: nothing; */
    const float *add_logit; /* [n] times the sigmoid of this, or NULL */
    float *out;             /* [n, h] */
};

#define SL_REDUCE_TERMS 8

enum sl_op {
#define SL_OP(name) SL_OP_##name,
#include "ops/ops.def"
#undef SL_OP
    SL_OP_COUNT
};

#ifdef __cplusplus
extern "C" {
#endif
const char *sl_op_name(enum sl_op op);
#ifdef __cplusplus
}
#endif

struct sl_backend;

struct sl_device_vt;

struct sl_backend_vt {
    const char *name; /* "cpu" */
#define SL_OP(name) void (*name)(struct sl_backend * be, const struct sl_op_##name *args);
#include "ops/ops.def"
#undef SL_OP
    /* NULL: an operation is done when it returns; else operations are only enqueued, and this
     * says how steps are run (ops/device.h). */
    const struct sl_device_vt *device;
    enum sl_dtype act_dtype; /* of activations between operations */
    /* 1 << act of those in linear_gated_act; others are linear_multi and activate. */
    unsigned gated_acts;
    /* Zeroed memory for activations, vectors and pages. NULL when exhausted. */
    void *(*alloc)(struct sl_backend *be, size_t n_bytes);
    void (*free)(struct sl_backend *be, void *p, size_t n_bytes);
    /* Copies host memory into such memory, done when it returns. */
    void (*upload)(struct sl_backend *be, void *dst, const void *src, size_t n_bytes);
    enum sl_dtype kv_dtype; /* of pages, unless the user says */
    /* Bytes of the state of delta_rule, a multiple of 4. */
    size_t (*delta_bytes)(int32_t n_heads, int32_t k_dim, int32_t v_dim, bool by_row);
    /* Bytes of scratch that calls of delta_rule with up to n tokens need. */
    size_t (*delta_room)(int32_t n, int32_t n_heads, int32_t n_k_heads, int32_t k_dim, bool by_row);
    /* Chooses the route for a matrix and repacks it if the route wants; unless the weight is
     * owned then, data and the values of scales must stay valid as long as it. scales: of FP8
     * for products, or NULL. A format without a route is SL_EUNSUPPORTED. */
    int (*weight_create)(struct sl_backend *be, enum sl_weight_use use, enum sl_dtype dtype,
                         int64_t n_rows, int64_t n_cols, const void *data,
                         const struct sl_scales *scales, struct sl_weight *out,
                         struct sl_error *err);
    /* Bytes weight_create would allocate; 0: it would borrow data. */
    uint64_t (*weight_bytes)(struct sl_backend *be, enum sl_weight_use use, enum sl_dtype dtype,
                             int64_t n_rows, int64_t n_cols);
    void (*weight_destroy)(struct sl_backend *be, struct sl_weight *w);
    /* mats [n] of one shape and format, from weight_create, stay the caller's and must live as
     * long as the stack. */
    int (*stack_create)(struct sl_backend *be, const struct sl_weight *mats, int32_t n,
                        struct sl_stack *out, struct sl_error *err);
    void (*stack_destroy)(struct sl_backend *be, struct sl_stack *s);
    /* Bytes of scratch that calls of experts with up to n rows need. */
    size_t (*experts_bytes)(struct sl_backend *be, int32_t n, int32_t n_experts, int32_t top_k,
                            int64_t hidden, int64_t intermediate);
    /* Bytes of their `exchange`; NULL: experts have fixed places here. */
    size_t (*placed_bytes)(int32_t n, int32_t n_experts, int32_t top_k, int64_t hidden,
                           int32_t n_ranks);
    /* Name of the kernel that runs a weight, for `sluice inspect`. */
    const char *(*weight_route)(struct sl_backend *be, const struct sl_weight *w);
    const char *(*isa)(struct sl_backend *be);
    int (*n_threads)(struct sl_backend *be);
    /* Runs the items on the backend's host threads and returns when all are done; an item must
     * not depend on its thread. */
    void (*run_items)(struct sl_backend *be, void (*fn)(void *arg, uint32_t item, int thread_idx),
                      void *arg, uint32_t n_items);
    void (*destroy)(struct sl_backend *be);
};

struct sl_backend { /* first member of the backend's own struct */
    const struct sl_backend_vt *vt;
};

#endif
