/* SPDX-License-Identifier: MIT
 * linear.h - one GEMM on the device: what linear.cu hands to the kernels.
 *
 * The columns of a matrix are cut into segments, by its shape alone. For every output and segment
 * there is one float accumulator, from +0, to which mma.m16n8k16 (or wgmma, the same bits) adds 16
 * columns after 16 columns in ascending order, up to the packed width (K rounded up to the layout's
 * unit, zeros after K); the segments' sums are added in order; then the bias. Which operand of the
 * instruction weights are changes no bit. All kernels do this, so which one runs changes none. Of
 * the layout w8a8 all this is otherwise: linear_w8a8.cuh.
 */
#ifndef SL_CUDA_LINEAR_H
#define SL_CUDA_LINEAR_H

#include "cuda/gemm/weight.h"

#include <cuda_bf16.h>

struct sl_lin_part {
    const uint8_t *w; /* row blocks */
    const float *bias;
    float *out; /* not of a gated product */
    int64_t ld_out;
    int32_t n_rows, n_blocks;
    int32_t first; /* first work item or tile: the kernel's own numbering */
    int32_t layout;
    int32_t seg_k64; /* steps of a segment */
};

/* What makes the input first (norm.cuh): out = rmsnorm(x), rows as wide as the product's columns.
 */
struct sl_lin_norm {
    const float *x, *w; /* x NULL: the input is there */
    __nv_bfloat16 *out;
    float eps;
};

/* Sums of segments that a kernel leaves to who reads its output: [segment][token][row]. */
struct sl_lin_left {
    const float *sums; /* NULL: outputs are there */
    int32_t n_segs;
};

#define SL_LIN_NORM_COLS 8192 /* most */

#define SL_LIN_PEERS 3 /* most */

struct sl_lin {
    const __nv_bfloat16 *x;
    int64_t ld_x;
    int32_t n, k;            /* tokens > 0, columns */
    int32_t n_k64;           /* steps of 64 columns in a row block's stream */
    int32_t n_segs, seg_k64; /* segments and the steps of each, a multiple of 4; the last has what
                                is left. The same of all parts, unless mixed. */
    int32_t n_parts;
    bool mixed; /* parts have segments of their own, these here are those of the most */
    bool gated; /* parts 0 and 1 are gate and up, of the same shape */
    bool vec_x; /* rows of x start at multiples of 16 bytes */
    bool add;   /* outputs are added to what is there (sl_red_add) */
    bool apart; /* sums of segments are not added: out is [segment][token][row], of few tokens */
    struct sl_lin_norm norm;  /* x is its out */
    struct sl_lin_left *left; /* on the host: where a kernel may say that it left sums; or NULL */
    enum sl_act act;
    __nv_bfloat16 *gated_out;      /* rows n_rows of part 0 apart, or */
    int64_t gated_ld;              /* in tiles of many tokens so many */
    int32_t n_peers;               /* GPUs that have the same out, */
    int64_t to_peer[SL_LIN_PEERS]; /* bytes away: tiles of many tokens store there, too */
    float *partial;                /* sums of segments on their way to who adds them */
    uint32_t *arrived;             /* [SL_LIN_TILES], zeros between launches */
    struct sl_lin_part part[SL_MAX_LINEAR_PARTS];
    const float *norm_y; /* added to norm.x first, of w8a8 alone; NULL: nothing */
};

/* Segments: enough of them that matrices of few rows, too, keep all SMs reading when
 * there are few tokens. A rule of the shape, as it is part of the bits. */
#define SL_LIN_SEG_ROWS  SL_SEGMENT_ROWS /* matrices of fewer rows have several */
#define SL_LIN_SEGS      SL_SEGMENTS
#define SL_LIN_SEGS_LONG 8   /* of Q4_K and groups, whose warps decode rather than read, */
#define SL_LIN_LONG_K64  128 /* if they are so many steps long */

/* Those cost two instructions a pair of weights. */
static inline bool sl_lin_quick_codes(int32_t layout)
{
    return layout == SL_CUDA_Q4_K || layout == SL_CUDA_INT4_G128 || layout == SL_CUDA_INT4_G32;
}

/* Shared memory for all tokens of a product that reads its weights directly (linear_direct.cuh). */
#define SL_LIN_DIRECT_BYTES 196608
#define SL_LIN_DIRECT_BF16  89984 /* whose weights lie there, too */

/* Device memory of the backend for products (struct sl_cuda). */
#define SL_LIN_PARTIAL_BYTES (48 << 20) /* 4 x 6,144 rows, 64 tokens, 8 segments */
#define SL_LIN_TILES         4096
#define SL_LIN_MIXED_BYTES   (8 << 20)
#define SL_LIN_BYTES         (SL_LIN_PARTIAL_BYTES + SL_LIN_TILES * 4 + SL_LIN_MIXED_BYTES)

/* Gives the backend SL_LIN_BYTES of zeroed device memory for its products. Gate and up beside
 * adapters may have more room, of its own (step.cu). */
static inline void sl_cuda_linear_memory(struct sl_cuda *cu, uint8_t *bytes)
{
    cu->lin_partial = (float *)bytes;
    cu->lin_mixed = (float *)(bytes + SL_LIN_PARTIAL_BYTES);
    cu->lin_mixed_bytes = SL_LIN_MIXED_BYTES;
    cu->lin_arrived = (uint32_t *)(bytes + SL_LIN_PARTIAL_BYTES + SL_LIN_MIXED_BYTES);
}

/* The kernels of a layout (tools/cuda_instances). All parts have the layout. */
#define SL_LIN_DECLARE(name)                                                                     \
    void sl_lin_stream_##name(struct sl_cuda *cu, const struct sl_lin *l);  /* n <= 8 */         \
    void sl_lin_direct_##name(struct sl_cuda *cu, const struct sl_lin *l);  /* n <= 8 */         \
    void sl_lin_wg16_##name(struct sl_cuda *cu, const struct sl_lin *l);    /* plain, n <= 16 */ \
    void sl_lin_wg32_##name(struct sl_cuda *cu, const struct sl_lin *l);    /* n <= 32 */        \
    void sl_lin_wg64_##name(struct sl_cuda *cu, const struct sl_lin *l);    /* n <= 64 */        \
    void sl_lin_wg128_##name(struct sl_cuda *cu, const struct sl_lin *l);   /* plain */          \
    void sl_lin_gated16_##name(struct sl_cuda *cu, const struct sl_lin *l); /* gated, n <= 16 */ \
    void sl_lin_gated32_##name(struct sl_cuda *cu, const struct sl_lin *l); /* n <= 32 */        \
    void sl_lin_gated64_##name(struct sl_cuda *cu, const struct sl_lin *l); /* gated */          \
    void sl_lin_wg256_##name(struct sl_cuda *cu, const struct sl_lin *l);   /* one segment */    \
    void sl_lin_wide_##name(struct sl_cuda *cu, const struct sl_lin *l)     /* the same */
SL_LIN_DECLARE(bf16);
#define SL_LIN_CODED_DECLARE(name)                                                              \
    SL_LIN_DECLARE(name);                                                                       \
    void sl_lin_direct16_##name(struct sl_cuda *cu, const struct sl_lin *l); /* n <= 16 */      \
    void sl_lin_tall16_##name(struct sl_cuda *cu, const struct sl_lin *l);   /* one segment */  \
    void sl_lin_tall32_##name(struct sl_cuda *cu, const struct sl_lin *l);   /* of the sizes */ \
    void sl_lin_tall64_##name(struct sl_cuda *cu, const struct sl_lin *l);   /* above */        \
    void sl_lin_gtall16_##name(struct sl_cuda *cu, const struct sl_lin *l);                     \
    void sl_lin_gtall32_##name(struct sl_cuda *cu, const struct sl_lin *l);                     \
    void sl_lin_gtall64_##name(struct sl_cuda *cu, const struct sl_lin *l)
SL_LIN_CODED_DECLARE(q8_0);
SL_LIN_CODED_DECLARE(q4_0);
SL_LIN_CODED_DECLARE(q4_k);
SL_LIN_CODED_DECLARE(q5_k);
SL_LIN_CODED_DECLARE(q6_k);
SL_LIN_CODED_DECLARE(fp8);
SL_LIN_CODED_DECLARE(int4_g128);
SL_LIN_CODED_DECLARE(int4_g32);
SL_LIN_CODED_DECLARE(mxfp4);
#undef SL_LIN_CODED_DECLARE
#undef SL_LIN_DECLARE
/* Of up to 8 tokens (deep) and of many (linear_tile.cuh). */
#define SL_LIN_DECLARE(n) void sl_lin_##n##_bf16(struct sl_cuda *cu, const struct sl_lin *l)
SL_LIN_DECLARE(deep);
SL_LIN_DECLARE(tile256);
SL_LIN_DECLARE(tile192);
SL_LIN_DECLARE(tile160);
SL_LIN_DECLARE(tile128);
SL_LIN_DECLARE(tile96);
SL_LIN_DECLARE(tile64);
SL_LIN_DECLARE(tile128w);
SL_LIN_DECLARE(tile64w);
SL_LIN_DECLARE(half160);
SL_LIN_DECLARE(half128);
SL_LIN_DECLARE(half96);
SL_LIN_DECLARE(half64);
SL_LIN_DECLARE(half32);
SL_LIN_DECLARE(quad96);
SL_LIN_DECLARE(quad64);
SL_LIN_DECLARE(ghalf128);
SL_LIN_DECLARE(fewhalf96);
SL_LIN_DECLARE(fewhalf64);
SL_LIN_DECLARE(fewquad96);
SL_LIN_DECLARE(fewquad64);
SL_LIN_DECLARE(few96);
SL_LIN_DECLARE(few64);
SL_LIN_DECLARE(few48);
SL_LIN_DECLARE(few32);
SL_LIN_DECLARE(gate256);
SL_LIN_DECLARE(gate128);
SL_LIN_DECLARE(gate128w);
SL_LIN_DECLARE(gate64);
SL_LIN_DECLARE(fewgate);
SL_LIN_DECLARE(pairs);
#undef SL_LIN_DECLARE

/* Products of FP8 activations (linear_w8a8.cuh), which have another arithmetic than the above. */
#define SL_LIN_DECLARE(n) void sl_lin_##n##_w8a8(struct sl_cuda *cu, const struct sl_lin *l)
SL_LIN_DECLARE(few);
SL_LIN_DECLARE(n16);
SL_LIN_DECLARE(n32);
SL_LIN_DECLARE(n64);
SL_LIN_DECLARE(wide); /* the cheapest of those below */
SL_LIN_DECLARE(r192);
SL_LIN_DECLARE(r128);
SL_LIN_DECLARE(r96);
SL_LIN_DECLARE(r64);
SL_LIN_DECLARE(t64);
SL_LIN_DECLARE(g128);
#undef SL_LIN_DECLARE
/* Memory for activations as FP8, from the first matrix of that layout on: products of more tokens
 * than fit are made in parts. */
#define SL_LIN_FP8_BYTES (64 << 20)

enum sl_lin_kind { SL_LIN_PLAIN = 1, SL_LIN_GATED = 2, SL_LIN_BOTH = 3 };

/* What a route wants besides the limits below, and where it pays. */
enum sl_lin_when {
    SL_LIN_ALWAYS,
    SL_LIN_WIDE,   /* tiles of 256 tokens: pays where they leave few places empty */
    SL_LIN_DIRECT, /* all tokens in shared memory: wants room; pays where reading is not all */
    SL_LIN_RING,   /* of weights in shared memory: pays for few tokens where there are codes */
    SL_LIN_TALL,   /* of 256 rows: pays with one segment, or where it saves rounds */
    SL_LIN_DEEP,   /* one block an SM: pays where row blocks are few and long */
    SL_LIN_TILED,  /* more than 32 tokens: wants vec_x; the cheapest of these */
};

/* What blocks side by side share: two of them tokens, weights, or a tile of which each has half the
 * segments; four a tile of which each has one; or nothing. */
enum sl_lin_share { SL_SHARE_X, SL_SHARE_W, SL_SHARE_TILE, SL_SHARE_QUARTERS, SL_SHARE_NONE };

/* The tiles of such a route. */
struct sl_lin_tile {
    int16_t tokens, rows;
    enum sl_lin_share share;
};

struct sl_lin_route {
    int32_t layout;
    int32_t max_tokens;
    int32_t max_segs;
    enum sl_lin_kind kind;
    enum sl_lin_when when;
    struct sl_lin_tile tile;
    void (*run)(struct sl_cuda *cu, const struct sl_lin *l);
    const char *name;
};

/* The routes, in the order they are tried: the first whose limits hold is taken; of those of
 * many tokens the one that costs least. */
const struct sl_lin_route *sl_cuda_linear_routes(size_t *n);
bool sl_cuda_linear_fits(const struct sl_lin_route *r, const struct sl_lin *l);
const struct sl_lin_route *sl_cuda_linear_route(const struct sl_lin *l, int n_sms);
/* The same, from what cu keeps of earlier products of this shape: the layers of a model have few
 * shapes, so a launch finds its route by one hash. */
const struct sl_lin_route *sl_cuda_linear_route_of(struct sl_cuda *cu, const struct sl_lin *l);
/* Whether a route's kernel norms the product's input; else sl_cuda_linear_run has it done before.
 */
bool sl_cuda_linear_norms(const struct sl_lin_route *r, const struct sl_lin *l);
void sl_cuda_linear_norm_apart(struct sl_cuda *cu, struct sl_lin *l);
/* Whether it can add to outputs. */
bool sl_cuda_linear_adds(const struct sl_lin_route *r);
/* Runs one product by a given route (tests), or by the table (NULL). */
void sl_cuda_linear_run(struct sl_cuda *cu, const struct sl_lin *l, const struct sl_lin_route *r);
/* The product of an op's arguments; for tests, which pin routes. */
struct sl_lin sl_cuda_linear_args(const struct sl_op_linear *a);
struct sl_lin sl_cuda_linear_gated_args(const struct sl_op_linear_gated_act *a);

#endif
