/* SPDX-License-Identifier: MIT
 * i8.h - matrices in whole-number arithmetic: the layouts of packed weights and quantised
 * activations, and the kernels over them.
 *
 * A row of activations is cut into groups of 256 columns, each int8 with one float scale. A weight
 * of a block format is a whole number times scales of its group. Sums over a group are therefore
 * exact in int32, in any order and on any instruction set; what is rounded is one chain per output
 * over the groups in ascending order:
 *
 *     acc = fma((float)I, d * x.d, acc)          I = sum over sub-blocks s of
 *                                                    scale[s] * sum of (code - zero) * x
 *     acc = fma((float)J, -dmin * x.d, acc)      J = sum over s of min[s] * sum of x (K formats)
 *
 * so that plain C, AVX2, VNNI and AMX give the same bits, for one token or a thousand.
 *
 * Outliers. A few columns that are much larger than the rest would take the bits of all the others.
 * They are left out of the group (q = 0) and stay floats. Behind the group each of them is a step
 * of the chain of its own, in ascending order of columns:
 *
 *     w = (float)(scale * (code - zero)) * d;  K formats: w = fma((float)min, -dmin, w)
 *     acc = fma(w, x, acc)
 *
 * Outliers are the columns above amax / 2^k, amax the group's largest magnitude, for the largest k
 * of 1 .. SL_I8_LEVELS of which there are at most sl_i8_most[k - 1]; none, if there is no such k.
 * So a bit that the others gain costs a column or two, and groups without outliers pay nothing.
 *
 * Packed weights. Sixteen rows make a panel (rows behind the end are zero), a panel is its groups
 * one after the other, a group is a head and its strips of 64 columns, the last group as many as it
 * needs (missing columns are zero). Codes lie as the dot instructions of x86 want them: a quad is
 * 64 bytes, byte 4 * r + j is the code of row r, column 4 * q + j; a strip has sixteen quads.
 * Formats of four and more bits keep eight vectors: vector i has four bits of quad i of the strip
 * in the low and of quad i + 8 in the high halves of its bytes, as below.
 *
 *   format  sub-block  head of a group                                strip
 *   Q8_0    256        f32 d[16]                                      16 quads of code + 128
 *   Q4_0    32         f32 d[16], s16 scale[4][16][2]                 8 vectors
 *   Q4_K    32         f16 d[16], f16 dmin[16], packed[3][16]         8 vectors
 *   Q5_K    32         as Q4_K                                        2 times a plane, 4 vectors
 *   Q6_K    16         f32 d[16], s8 scale[4][16][4]                  4 times a plane, 2 vectors
 *   Q5_0    32         as Q4_0                                        as Q5_K
 *   Q4_1    32         f32 d[16], f32 dmin[16], s16 scale[4][16][2],  8 vectors
 *                      s16 min[4][16][2]
 *   Q5_1    32         as Q4_1                                        as Q5_K
 *   Q2_K    16         f16 d[16], f16 dmin[16], u8 [4][16][4]: scale  8 vectors
 *                      and, above it, min
 *   table   16         as Q6_K, then u8 table[4][16]                  8 vectors
 *   MXFP4   32         f32 d[16], u32 shifts[16]                      8 vectors
 *
 * In the table form a code c stands for table[c] - 128, and the table, four times the same, lies in
 * each group. It serves IQ4_NL, IQ4_XS, Q3_K, TQ1_0, TQ2_0 and the IQ formats of one to three
 * bits, whose weights are at most sixteen different numbers times a scale.
 *
 * MXFP4 has one such table, which the kernels know. Its scales are powers of two: sub-block i has
 * the scale 64 >> (shifts >> 4 i & 15), a shift of 7 is the scale 0. So a weight takes 4.25 bits,
 * as in the file.
 *
 * scale of Q4_0, Q4_1: [strip][row][sub-block of the strip]. packed of the K formats: a dword a
 * row, each of its 16-bit halves (bits 0..5, 6..11, 12..15) holding numbers of an even and an odd
 * sub-block; with a, b, c for the halves of the three dwords, pair p = sub-blocks (2 p, 2 p + 1) is
 *     scale  a & 63, a >> 6 & 63, b & 63, b >> 6 & 63
 *     min    c & 63, c >> 6 & 63, a >> 12 | (c >> 8 & 48), b >> 12 | (c >> 10 & 48)
 * Q6_K, Q2_K and table have their scales in the order 0, 2, 1, 3, so that the even and the odd
 * bytes are pairs of neighbours.
 *
 * Codes of 4 + n bits, n = 1 in Q5_K, Q5_0 and Q5_1 and 2 in Q6_K: a vector has the low four bits
 * of quad i and the high four of quad i + 8. The n others of each are in the plane ahead of it, for
 * the j-th vector behind the plane from bit 2 n j on: first those of quad i + 8, then those of quad
 * i. One shift of a plane thus brings the bits of both quads to where they complete the vector's: a
 * code in the low bits of a byte, one in the high bits.
 *
 * Q8_0 and Q4_0 have one f16 scale per 32 columns in the file. Q8_0 is requantised to one scale per
 * group (to the nearest, at load); the scales of Q4_0 become whole numbers -2047..2047 times one
 * float, and so do those of Q5_0, -1023..1023, Q4_1, -1092..1092, Q5_1, -528..528, with minima
 * -32767..32767 times another float, IQ4_NL, -127..127, and MXFP4, -64..64. What these leave to
 * v = scale * (code - zero) is 15 bits with sign. Formats with blocks of 256 are kept exactly.
 * docs/DETERMINISM.md says what that costs.
 */
#ifndef SL_CPU_I8_H
#define SL_CPU_I8_H

#include "cpu/linear_aside.h"
#include "ops/ops.h"

#define SL_I8_GROUP  256 /* columns; part of the bits */
#define SL_I8_PANEL  16  /* rows that lie side by side */
#define SL_I8_PANELS 4   /* panels worked on together; this and what follows never changes bits */
#define SL_I8_TOKENS 512 /* tokens of a block, at most */
#define SL_I8_BLOCK  256 /* as a rule */
#define SL_I8_STREAM 32  /* up to so many tokens products wait for memory, which likes long runs */

/* A group whose largest magnitude is below this counts as zero: 127 / it must be finite. */
#define SL_I8_TINY 0x1p-100f

#define SL_I8_OUTLIERS 8 /* of a group, at most */
#define SL_I8_LEVELS   6
extern const uint8_t sl_i8_most[SL_I8_LEVELS];

struct sl_i8_outliers {
    uint8_t n;
    uint8_t col[SL_I8_OUTLIERS]; /* in the group, ascending */
    float x[SL_I8_OUTLIERS];
};

/* One group of one token's activations. */
struct sl_i8_x {
    _Alignas(64) int8_t q[SL_I8_GROUP]; /* round(x / d), 0 behind the last column */
    int16_t sum16[16];                  /* of each 16 q */
    int16_t sum32[8];                   /* of each 32 */
    int16_t sum128[2];                  /* of each half */
    float d; /* largest magnitude / 127; 0 below SL_I8_TINY; NaN if the group holds NaN or Inf */
    struct sl_i8_outliers outliers;
};

/* How products by tiles are ordered and what they ask for ahead; i8_amx_tmpl.c says why. */
struct sl_i8_shape {
    int tokens; /* of a block, at most SL_I8_TOKENS */
    int span;   /* tokens that share a group of weights before the next group */
    int chunk;  /* groups that pass over a span before the next span; 4 where codes are unpacked */
    int units;  /* of two tiles of weights side by side: 1 or 2 */
    int depth;  /* blocks that run before the sums of one are made floats: 0 to 2 */
    bool operands; /* the next block's operands are fetched to the L1 cache */
    bool weights;  /* and the next chunk's weights to the L2 cache */
    bool late;     /* outputs of an item are put while the next one runs (linear_packed.c) */
};

/* A part of a matrix and of its activations: all of it, or some of its columns. */
struct sl_i8_part {
    const struct sl_weight *w;
    int64_t g0, n_groups;
    const struct sl_i8_x *x; /* a block of n_tok tokens, these groups of it */
    int n_tok;
    bool tiles;                      /* how the block was placed */
    size_t ahead;                    /* bytes, as in sl_i8_kernels */
    const struct sl_i8_shape *shape; /* or NULL: the kernel's own */
    struct sl_aside *aside;          /* kernels of tiles may do some of it meanwhile; or NULL */
};

/* One thread's room for unpacked codes; each instruction set has its own use of it. */
#define SL_I8_SCRATCH_BYTES (192 << 10)
struct sl_i8_scratch {
    _Alignas(64) uint8_t bytes[SL_I8_SCRATCH_BYTES];
    /* linear_packed.c's second room for outputs of an item, of any layout */
    _Alignas(64) float outputs[2][SL_I8_TOKENS * SL_I8_PANELS * SL_I8_PANEL];
};

struct sl_i8_kernels {
    const char *name;                /* "i8-vnni" */
    const struct sl_i8_shape *shape; /* of products by tiles; NULL: there are none */
    size_t ahead; /* products of few tokens ask for weights so many bytes ahead, if at all */
    /* Columns [0, k) of one token to SL_CEIL_DIV(k, 256) groups. */
    void (*quantize)(const float *x, int64_t k, struct sl_i8_x *out);
    /* Whether products of a format with so many tokens want their activations as tiles. Any choice
     * gives the same bits. NULL: the kernels have no tiles. */
    bool (*tiles)(enum sl_dtype t, int n_tok);
    /* quantize for token t of n_tok, into a block as large as SL_CEIL_DIV(k, 256) times n_tok
     * groups, n_tok rounded up to 16. How they lie in it is the kernels' own affair. */
    void (*place)(const float *x, int64_t k, int t, int n_tok, bool tiles, struct sl_i8_x *block);
    /* acc [n_tok, SL_I8_PANELS * 16] = n_panels <= SL_I8_PANELS panels of w, from panel p on, times
     * the tokens; added to what acc holds unless the part begins at group 0. Sixteen columns of acc
     * per panel are written, the others left alone. */
    void (*dot)(const struct sl_i8_part *a, int64_t p, int n_panels, float *acc,
                struct sl_i8_scratch *s);
};

/* The forms above. */
enum sl_i8_form {
    SL_I8_NONE, /* not multiplied in whole numbers */
    SL_I8_Q8_0,
    SL_I8_Q4_0,
    SL_I8_Q4_K,
    SL_I8_Q5_K,
    SL_I8_Q6_K,
    SL_I8_Q5_0,
    SL_I8_Q4_1,
    SL_I8_Q5_1,
    SL_I8_Q2_K,
    SL_I8_TABLE,
    SL_I8_MXFP4,
    SL_I8_FORMS
};

/* What the codes of MXFP4 stand for, twice, plus the zero point 128. */
#define SL_I8_MXFP4_TABLE \
    128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116
#define SL_I8_MXFP4_ONE 64 /* the scale of the shift 0 */

/* Where things are in a packed matrix. */
struct sl_i8_layout {
    size_t head_bytes, strip_bytes;  /* of a group; of 64 columns */
    size_t group_bytes, panel_bytes; /* the last group of a panel may be shorter */
    int64_t n_groups, n_panels;
    int last_strips; /* of the last group; the others have four */
};

/* Group after group, of each all tokens: the place of kernels without tiles. */
static inline struct sl_i8_x *sl_i8_row(struct sl_i8_x *block, int n_tok, int64_t g, int t)
{
    return block + g * n_tok + t;
}

enum sl_i8_form sl_i8_form_of(enum sl_dtype t);
struct sl_i8_layout sl_i8_layout(enum sl_dtype t, int64_t n_rows, int64_t n_cols);
/* Packs panel p of the file's rows; panels are independent of each other. */
void sl_i8_pack(enum sl_dtype t, int64_t n_rows, int64_t n_cols, const uint8_t *rows, int64_t p,
                uint8_t *panel);
size_t sl_i8_scratch_bytes(void);

/* Each fills what it does better than the one before. */
void sl_i8_kernels_c(struct sl_i8_kernels *k);
void sl_i8_kernels_avx2(struct sl_i8_kernels *k);
void sl_i8_kernels_avx512(struct sl_i8_kernels *k);
void sl_i8_kernels_avx512vnni(struct sl_i8_kernels *k);
void sl_i8_kernels_amx(struct sl_i8_kernels *k); /* falls back on the former for few tokens */

#endif
