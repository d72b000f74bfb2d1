/* SPDX-License-Identifier: MIT
 * attn.h - the two products of attention over tiles of the KV pages, one function per format of the
 * pages, and what one thread works in.
 *
 * Pages of codes (FP8, quant/kv_codec.h) are made pages of BF16, which hold the same values, a few
 * tiles at a time, and go the way of those (attn_coded.c).
 *
 * Three routes. On the float route pages become floats (in registers, or in L1 for many queries)
 * and every number is one chain of fma: the same bits in C, AVX2 and AVX-512. On the BF16 routes
 * queries and probabilities are rounded to BF16 and the processor's dot or tile instruction does
 * the rest. Which one a format takes depends on the instruction set alone, never on the shape.
 *
 * A block is up to SL_ATTN_QUERY query vectors (rows of a span x heads that share a key head) and
 * the tiles of one split, so that a kernel may shape its register tiles as it likes.
 */
#ifndef SL_CPU_ATTN_H
#define SL_CPU_ATTN_H

#include "base/limits.h"
#include "cpu/kernels.h"
#include "quant/kv_codec.h"

#define SL_ATTN_TILES  (SL_CPU_SPLIT / SL_KV_TILE) /* of a split */
#define SL_ATTN_QUERY  64                          /* query vectors of a block at most */
#define SL_ATTN_FLOATS 16384                       /* and their dimensions together */
#define SL_ATTN_GROUP  4                           /* tiles made floats, or BF16, at a time */
#define SL_ATTN_AHEAD  4 /* tiles a kernel asks for before it reads them */

/* A query in BF16 is padded to whole steps of the widest instruction. */
#define SL_ATTN_LD16(dim) (((dim) + 31) / 32 * 32)

/* n tiles of a split, in ascending order. tiles[i + SL_ATTN_AHEAD] can be read as a pointer for
 * every i < n: what will be wanted next, as pages lie anywhere and no hardware can guess. */
struct sl_attn_tiles {
    const uint8_t *const *tiles;
    int n;
    int dim;       /* padded head dimension */
    void *scratch; /* SL_ATTN_GROUP tiles of floats of the largest head, 64-byte aligned */
    uint32_t
        *shape; /* of the matrix registers, the kernels' own from one call to the next; 0: none */
};

/* A tile of four-bit codes, those of three bits as the same. */
struct sl_attn_codes {
    const uint8_t *codes, *scales;
    int dim; /* padded */
};

struct sl_attn_kernels {
    const char *name[SL_DTYPE_COUNT]; /* of the route: "float", "bf16-dot", "bf16-amx" */
    bool query16[SL_DTYPE_COUNT];     /* queries are BF16: a BF16 route */
    bool p16[SL_DTYPE_COUNT];         /* so are the probabilities given to values */
    /* score [n_q, SL_CPU_SPLIT], in columns 0 .. 16 n - 1: query times key. query is float [n_q,
     * dim], or BF16 [n_q, SL_ATTN_LD16(dim)]. */
    void (*scores[SL_DTYPE_COUNT])(const struct sl_attn_tiles *t, const void *query, int n_q,
                                   float *score);
    /* o [n_q, dim] += p [n_q, SL_CPU_SPLIT] (columns 0 .. 16 n - 1) times the values, float or
     * BF16. */
    void (*values[SL_DTYPE_COUNT])(const struct sl_attn_tiles *t, const void *p, int n_q, float *o);
    /* n floats, a multiple of 16, to BF16, nearest even; subnormals may become zero. */
    void (*narrow)(const float *x, int n, uint16_t *out);
    /* Behind the last call of an item, with its shape; NULL: there is nothing to do. */
    void (*end)(uint32_t *shape);
    /* A tile of FP8 to one of BF16; keys: of K. ahead is a tile that will be wanted soon. */
    void (*widen_fp8)(bool keys, const uint8_t *tile, const uint8_t *ahead, int dim, uint16_t *out);
    /* The same of the codes of quant/kv_codec.h, by the kind of their scales. Keys of
     * SL_KV_VECTOR_* are without their scales, */
    void (*widen_codes[SL_KV_SCALE_KINDS])(const struct sl_kv_codec *c, bool keys,
                                           const struct sl_attn_codes *t, uint16_t *out);
    /* which the scores of a tile [n_q, SL_CPU_SPLIT] take. */
    void (*scale_codes)(const struct sl_kv_codec *c, const uint8_t *scales, int n_q, float *score);
    /* Rows of codes of three bits to rows of 2 n words of four-bit codes (attn_coded.c). */
    void (*codes_of_three)(const uint8_t *codes, int n_rows, int n, uint8_t *out);
};

/* The format whose products a format's pages take. */
static inline enum sl_dtype sl_attn_format(enum sl_dtype dtype)
{
    const bool coded = dtype == SL_DTYPE_FP8_E4M3 || dtype > SL_DTYPE_COUNT;
    return coded ? SL_DTYPE_BF16 : dtype;
}

struct sl_attn_scratch {
    _Alignas(64) float query[SL_ATTN_FLOATS];
    float o[SL_ATTN_FLOATS];     /* of a split */
    float state[SL_ATTN_FLOATS]; /* of the splits so far */
    float score[SL_ATTN_QUERY * SL_CPU_SPLIT];
    uint16_t query16[SL_ATTN_FLOATS + SL_ATTN_QUERY * 16];
    uint16_t p16[SL_ATTN_QUERY * SL_CPU_SPLIT];
    _Alignas(64) float kv[SL_ATTN_GROUP * SL_KV_TILE * SL_MAX_HEAD_DIM];
    float clean[SL_KV_TILE * SL_MAX_HEAD_DIM]; /* a tile of values without what a row may not see */
    _Alignas(64) uint16_t wide[SL_ATTN_GROUP * SL_KV_TILE * SL_MAX_HEAD_DIM]; /* made BF16 */
    /* tiles of values that are a part of keys */
    _Alignas(64) float latent[SL_ATTN_GROUP * SL_KV_TILE * SL_MAX_HEAD_DIM];
    float split_ml[SL_ATTN_QUERY * 2], state_ml[SL_ATTN_QUERY * 2];
    float best[SL_ATTN_QUERY];      /* of the sequence's first keys, for skip-softmax */
    uint32_t wanted[SL_ATTN_QUERY]; /* of a key head: tiles of a split that count for some row */
    uint32_t shape;                 /* of struct sl_attn_tiles */
};

void sl_attn_kernels_c(struct sl_attn_kernels *k);
void sl_attn_kernels_avx2(struct sl_attn_kernels *k);
void sl_attn_kernels_avx512(struct sl_attn_kernels *k);
void sl_attn_kernels_avx512bf16(struct sl_attn_kernels *k);
void sl_attn_q8_avx512bf16(struct sl_attn_kernels *k); /* the part of it for Q8_0 */
void sl_attn_kernels_amx(struct sl_attn_kernels *k);

/* scores and values of pages of codes, by the kernels of BF16; dtype is the format of keys, or of
 * values. wide: room for SL_ATTN_GROUP tiles. */
void sl_attn_coded_scores(const struct sl_attn_kernels *k, enum sl_dtype dtype,
                          const struct sl_attn_tiles *t, uint16_t *wide, const void *query, int n_q,
                          float *score);
void sl_attn_coded_values(const struct sl_attn_kernels *k, enum sl_dtype dtype,
                          const struct sl_attn_tiles *t, uint16_t *wide, const void *p, int n_q,
                          float *o);
static inline bool sl_attn_coded(enum sl_dtype dtype)
{
    return dtype == SL_DTYPE_FP8_E4M3 || sl_kv_codec_of(dtype) != NULL;
}
static inline bool sl_attn_rotated(enum sl_dtype dtype)
{
    const struct sl_kv_codec *c = sl_kv_codec_of(dtype);
    return c != NULL && c->rotated;
}
void sl_attn_coded_store(const struct sl_kv_codec *c, bool keys, const float *row, int dim,
                         uint8_t *tile, int slot);
/* Scale i of a position, behind the codes of the tile. */
static inline uint8_t *sl_attn_coded_scale(const struct sl_kv_codec *c, uint8_t *tile, int dim,
                                           int i, int slot)
{
    return tile + SL_KV_TILE * sl_kv_codec_code_bytes(c, dim) +
           (i * SL_KV_TILE + slot) * c->scale_bytes;
}
/* In plain C; widening is of any kind. */
void sl_attn_codes_of_three_c(const uint8_t *codes, int n_rows, int n, uint8_t *out);
void sl_attn_codes_widen_c(const struct sl_kv_codec *c, bool keys, const struct sl_attn_codes *t,
                           uint16_t *out);
void sl_attn_codes_scale_c(const struct sl_kv_codec *c, const uint8_t *scales, int n_q,
                           float *score);

/* Skip-softmax, attn_skip.c. By how much a tile must be below a row's best to be left out: less
 * than 0, -inf where none is. */
float sl_attn_skip_reach(float factor, int pos);
/* The best of n scores, scaled and capped; NaN if one of them is. */
float sl_attn_skip_best(const float *score, int n, float scale, float softcap);
/* Bits of the tiles of a row's split that are left out, of n > 0 scores that it sees. best: of the
 * sequence's first keys. */
uint32_t sl_attn_skip_tiles(const float *score, int n, float best, float reach, float scale,
                            float softcap);

/* A head vector [dim], padded with zeros, to its slot of a tile of K or of V. It is F16 or BF16
 * for tiles of these, else float. */
void sl_attn_store_k(enum sl_dtype dtype, const void *row, int dim, uint8_t *tile, int slot);
void sl_attn_store_v(enum sl_dtype dtype, const void *row, int dim, uint8_t *tile, int slot);

/* The same to a tile of rows [16, D], whose scales lie as those of a tile of K. */
void sl_attn_store_row(enum sl_dtype dtype, const void *row, int dim, uint8_t *tile, int slot);
/* A tile of K of n rows in such tiles: row i is slot slots[i] of tiles[i]. */
void sl_attn_keys_of_rows(enum sl_dtype dtype, const uint8_t *const tiles[SL_KV_TILE],
                          const uint8_t slots[SL_KV_TILE], int n, int dim, uint8_t *out);

/* A tile of V of the first v_dim dimensions of a tile of K; both padded, v_dim at most dim. */
void sl_attn_values_of_keys(enum sl_dtype dtype, const uint8_t *keys, int dim, int v_dim,
                            uint8_t *out);

/* Is every number in a tile of values finite? */
bool sl_attn_finite(enum sl_dtype dtype, const uint8_t *tile, int dim);
/* A copy of it whose values of positions outside [lo, hi) are zero. */
void sl_attn_clean(enum sl_dtype dtype, const uint8_t *tile, int dim, int lo, int hi, uint8_t *out);

#endif
