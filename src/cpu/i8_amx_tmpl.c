/* SPDX-License-Identifier: MIT
 * Whole-number products by tiles. Included by i8_amx.c and, over simulated tiles, by tests/ops.
 *
 * A tile of weights is a strip: 64 columns of a panel, sixteen quads. Q8_0 multiplies its codes as
 * they lie; the zero point leaves with the sum of the activations. Elsewhere a weight is scale *
 * (code - zero) = v, 15 bits with sign, and v = 128 * hi + lo makes two tiles of bytes. Products of
 * both are summed apart and joined as I = 128 * sum(hi x) + sum(lo x). Activations are kept as
 * tiles too, so that loading one reads lines that lie together, not sixteen pages.
 *
 * Tiles: sums 0..3, tokens 4 and 5, weights 6 and 7. A block is 32 tokens times two tiles of
 * weights: 16 products a group, 16 cycles each. While they run, the vector units turn the sums of
 * an earlier block into floats, eight tokens after every four products. "Earlier" is two blocks
 * ago: tile stores are not forwarded to loads, so what is loaded should have left the store buffer.
 *
 * What bounds a block of Q8_0, in cycles of a core with two load and one 64-byte store port:
 *     products 16 x 16                               256
 *     loads    16 tiles x 16 rows + 64 x 3 vectors   224
 *     stores    4 tiles x 16 rows + 64 vectors       128
 *     vectors  64 x (add, convert, multiply, fma)    128 on two ports
 * The floats are one chain over the groups, so sums must leave the tiles once a group, and a float
 * per output comes and goes with them, 8 KiB a block. With S tokens of a span and R rows side by
 * side, of each group pass through the L1 cache of 48 KiB: outputs 4 S R, tokens 256 S, weights
 * 256 R, sums 8 KiB at depth 2. Bytes a cycle from the L2 cache, if what is used again stays:
 *     S = 64, R = 64    1024 / R + 1024 / S   = 32   uses 56 KiB, of which tokens of a block once
 *     S = 32, R = 64                            48        40
 *     S = 64, R = 32                            48        40
 *     S = all, R = 64   1024 / R + 16 (outputs) = 32  + 16 written back
 * More than 30 do not arrive where nothing is fetched ahead. Therefore a block fetches the operands
 * of the next one that it does not use itself, 8 KiB on average, strip by strip.
 *
 * From memory each weight comes once a block of tokens: 64 rows of a chunk while the chunk before
 * is multiplied, one or two lines a product, to the L2 cache. Lines on their way from memory to the
 * L1 cache would stand in the way of those from the L2 cache. With few tokens there is no such
 * time, and a strip is fetched just ahead of its use.
 *
 * Codes that are unpacked are so once a block of tokens, for the next chunk while this one runs: a
 * strip takes about 200 vector instructions and serves n_tok / 32 blocks of four (hi and lo)
 * products.
 */
#include "cpu/i8.h"

#include "base/check.h"
#include "cpu/vec_avx512.h"
#include "quant/float.h"

#include <math.h>
#include <string.h>

#define LD_ACC     (SL_I8_PANELS * SL_I8_PANEL)
#define STRIP_COLS 64
#define STRIPS     (SL_I8_GROUP / STRIP_COLS)
#define TILE_BYTES 1024
#define TILE_ROWS  16
#define BLOCK      (2 * TILE_ROWS)
#define CHUNK      16 /* groups at most, of codes that are tiles as they lie */
#define UNPACKED   4  /* and of those that are unpacked */
#define UNITS      2  /* side by side, at most */
#define DEPTH      2  /* at most */
#define STEP       8  /* tokens finished at a time */
#define FETCHED    64 /* tokens up to which weights are fetched just ahead */
#define AHEAD      2  /* by so many strips */

#include "cpu/i8_group_tmpl.c"
#include "cpu/i8_unpack_tmpl.c"

static const struct sl_i8_shape i8_shape = {
    .tokens = SL_I8_BLOCK, .span = 64, .chunk = 4, .units = 2, .depth = 1, .weights = true};
/* Up to FETCHED tokens. */
static const struct sl_i8_shape i8_stream = {.span = 64, .chunk = 4, .units = 2, .depth = 1};

/* A group of sixteen tokens. Behind the last token there may be anything: nobody reads its sums. */
struct tile_x {
    _Alignas(64) int8_t q[STRIPS][TILE_ROWS][STRIP_COLS];
    float d[TILE_ROWS];
    int32_t zero[TILE_ROWS];             /* the zero point of Q8_0: -128 * sum of q */
    int16_t sum32[STRIPS][TILE_ROWS][2]; /* of the strip's two sub-blocks */
    int16_t sum16[STRIPS][TILE_ROWS][4]; /* or four */
    struct sl_i8_outliers outliers[TILE_ROWS];
    uint8_t n_outliers[TILE_ROWS];
};
_Static_assert(sizeof(struct tile_x) <= TILE_ROWS * sizeof(struct sl_i8_x), "fits");

/* A group of two tiles of weights a strip that are multiplied in one go: two panels of Q8_0, or hi
 * and lo of one panel. */
struct unit {
    const uint8_t *b[2]; /* first strip; the second may be NULL: none */
    size_t strip_bytes;
    v16 d[2];                /* of the panels */
    v16 dmin;                /* of formats with minima */
    __m512i min[2 * STRIPS]; /* of two neighbouring sub-blocks, dwords of s16 pairs */
    int panel;               /* of the call, the first one if two */
};

struct room {
    struct half { /* one chunk runs while the next one is unpacked */
        uint8_t hi[UNPACKED][UNITS][STRIPS * TILE_BYTES], lo[UNPACKED][UNITS][STRIPS * TILE_BYTES];
        struct unit unit[CHUNK][UNITS];
    } half[2];
    struct sums {
        int32_t sum[2][BLOCK][SL_I8_PANEL];
    } sums[DEPTH]; /* of the blocks before the one that runs */
};
_Static_assert(sizeof(struct room) <= SL_I8_SCRATCH_BYTES, "fits");

/* Q8_0; formats without minima; with one for 32 columns; with one for 16 */
enum work { PLAIN, SPLIT, SPLIT_MIN, SPLIT_MIN16 };

struct call {
    enum sl_i8_form form;
    enum work work;
    struct sl_i8_layout layout;
    const struct sl_i8_part *part;
    const struct sl_i8_shape *shape;
    int64_t p; /* panels */
    int n_panels;
    float *acc;
    struct room *room;
};

/* Lines to ask memory for, of some panels. */
struct later {
    const uint8_t *panel;
    size_t panel_bytes, n_bytes, at; /* n_bytes of each, the next one at `at` */
    int n_panels, n_lines;           /* n_lines for each strip that is multiplied */
};

/* Some groups of the part times some units, from panel q of the call on. */
struct chunk {
    int64_t g;
    int n, q, n_units;
    struct half *half;
};

/* The next chunk's codes on their way to tiles. */
struct unpacking {
    const struct call *c;
    struct chunk to;
    int strip, n_strips; /* the next one, of all */
    int every, wait;     /* one after so many strips that are multiplied */
};

/* 32 tokens times a unit. */
struct block {
    const struct unit *u;   /* NULL: no block */
    const struct tile_x *x; /* the second sixteen tokens are n_groups behind the first */
    int64_t n_groups;
    float *acc;
    int n_tok; /* 0: no block */
    int n_strips;
    struct sums *sums;
    __mmask16 waiting; /* none of acc if the group is the first */
};

/* ---------------------------------------------------------------- sums to floats */

static inline v16 scaled(v16i sum, v16 d, const float *acc, __mmask16 waiting)
{
    return v_fma(v_from_int(sum), d, _mm512_maskz_loadu_ps(waiting, acc));
}

/* n tokens of a tile, from token i of the block on. What all of them need is in registers before
 * the loop: the compiler cannot know that the outputs are elsewhere. */
static inline void finish_plain(const struct block *b, int i, int n, bool two)
{
    const struct tile_x *x = b->x + i / TILE_ROWS * b->n_groups;
    const float *dx = x->d + i % TILE_ROWS;
    const int32_t *zero = x->zero + i % TILE_ROWS;
    const v16 d0 = b->u->d[0], d1 = b->u->d[1];
    const __mmask16 waiting = b->waiting;
    const int32_t *s0 = b->sums->sum[0][i], *s1 = b->sums->sum[1][i];
    float *acc = b->acc + i * LD_ACC;
    for (int t = 0; t < n; t++, acc += LD_ACC) {
        v16 d = v_set1(dx[t]);
        v16i z = vi_set1(zero[t]);
        v16i s = vi_add(_mm512_load_si512(s0 + t * SL_I8_PANEL), z);
        v_store(acc, scaled(s, v_mul(d0, d), acc, waiting));
        if (two) {
            s = vi_add(_mm512_load_si512(s1 + t * SL_I8_PANEL), z);
            v_store(acc + 16, scaled(s, v_mul(d1, d), acc + 16, waiting));
        }
    }
}

static inline v16i spread_pair(const int16_t *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return vi_set1(pair);
}

/* What the minima add up to with token k of a tile. */
static inline v16i mins_of(enum work work, const struct unit *u, const struct tile_x *x, int k)
{
    v16i even = _mm512_setzero_si512(), odd = even;
#pragma GCC unroll 4
    for (int s = 0; s < STRIPS; s += work == SPLIT_MIN ? 2 : 1) {
        if (work == SPLIT_MIN) {
            even = _mm512_dpwssd_epi32(even, u->min[s], spread_pair(x->sum32[s][k]));
            odd = _mm512_dpwssd_epi32(odd, u->min[s + 1], spread_pair(x->sum32[s + 1][k]));
        } else {
            even = _mm512_dpwssd_epi32(even, u->min[2 * s], spread_pair(x->sum16[s][k]));
            odd = _mm512_dpwssd_epi32(odd, u->min[2 * s + 1], spread_pair(x->sum16[s][k] + 2));
        }
    }
    return vi_add(even, odd);
}

static inline void finish_split(enum work work, const struct block *b, int i, int n)
{
    const struct unit u = *b->u;
    const struct tile_x *x = b->x + i / TILE_ROWS * b->n_groups;
    const float *dx = x->d + i % TILE_ROWS;
    const __mmask16 waiting = b->waiting;
    const int32_t *s0 = b->sums->sum[0][i], *s1 = b->sums->sum[1][i];
    float *acc = b->acc + i * LD_ACC;
    for (int t = 0; t < n; t++, acc += LD_ACC) {
        v16 d = v_set1(dx[t]);
        v16i hi = _mm512_load_si512(s0 + t * SL_I8_PANEL);
        v16i lo = _mm512_load_si512(s1 + t * SL_I8_PANEL);
        v16 a = scaled(vi_add(vi_sll(hi, 7), lo), v_mul(u.d[0], d), acc, waiting);
        if (work != SPLIT)
            a = _mm512_fnmadd_ps(v_from_int(mins_of(work, &u, x, i % TILE_ROWS + t)),
                                 v_mul(u.dmin, d), a);
        v_store(acc, a);
    }
}

/* Weights of a column of panel p of the unit as floats. */
static inline v16 column(enum work work, const struct unit *u, int p, int col)
{
    const int strip = col / STRIP_COLS, byte = col % 4;
    const size_t at = (size_t)strip * u->strip_bytes + (size_t)(col % STRIP_COLS / 4 * 64);
    const v16i first = vi_byte(_mm512_loadu_si512(u->b[p] + at), byte);
    if (work == PLAIN)
        return v_mul(v_from_int(vi_sub(first, vi_set1(128))), u->d[p]);
    /* hi has a sign, lo has not */
    const v16i hi = vi_sub(_mm512_xor_si512(first, vi_set1(128)), vi_set1(128));
    const v16i v = vi_add(vi_sll(hi, 7), vi_byte(_mm512_loadu_si512(u->b[1] + at), byte));
    const v16 w = v_mul(v_from_int(v), u->d[0]);
    if (work == SPLIT)
        return w;
    const int sub = col % STRIP_COLS / (work == SPLIT_MIN ? 32 : 16); /* of the strip */
    const v16i pair = u->min[work == SPLIT_MIN ? strip : 2 * strip + sub / 2];
    const v16i min = _mm512_madd_epi16(pair, vi_set1(sub % 2 == 0 ? 1 : 1 << 16));
    return _mm512_fnmadd_ps(v_from_int(min), u->dmin, w);
}

/* Outliers of n tokens, from token i of the block on. */
static void finish_outliers(enum work work, const struct block *b, int i, int n)
{
    const struct tile_x *x = b->x + i / TILE_ROWS * b->n_groups;
    const int n_panels = work == PLAIN && b->u->b[1] != NULL ? 2 : 1;
    float *acc = b->acc + i * LD_ACC;
    for (int t = 0; t < n; t++, acc += LD_ACC) {
        const struct sl_i8_outliers *o = &x->outliers[i % TILE_ROWS + t];
        for (int k = 0; k < x->n_outliers[i % TILE_ROWS + t]; k++)
            for (int p = 0; p < n_panels; p++) {
                float *to = acc + p * SL_I8_PANEL;
                v_store(to, v_fma(column(work, b->u, p, o->col[k]), v_set1(o->x[k]), v_load(to)));
            }
    }
}

static inline bool any_outlier(const struct block *b, int i)
{
    uint64_t n;
    _Static_assert(sizeof n == STEP, "a byte a token");
    memcpy(&n, b->x[i / TILE_ROWS * b->n_groups].n_outliers + i % TILE_ROWS, sizeof n);
    return n != 0;
}

static inline void finish_step(enum work work, const struct block *b, int i, int n)
{
    if (work != PLAIN)
        finish_split(work, b, i, n);
    else if (b->u->b[1] != NULL)
        finish_plain(b, i, n, true);
    else
        finish_plain(b, i, n, false);
    if (any_outlier(b, i))
        finish_outliers(work, b, i, n);
}

/* Tokens [from, to) of the block, both multiples of STEP. */
static inline void finish(enum work work, const struct block *b, int from, int to)
{
    for (int i = from; i < to && i < b->n_tok; i += STEP) {
        if (i + STEP <= b->n_tok)
            finish_step(work, b, i, STEP);
        else
            finish_step(work, b, i, b->n_tok - i);
    }
}

/* ---------------------------------------------------------------- tiles */

static void i8_configure(void)
{
    struct tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.row_bytes[i] = 64;
        c.rows[i] = TILE_ROWS;
    }
    tile_configure(&c);
}

static inline void fetch_quads(const uint8_t *b)
{
    for (int i = 0; i < TILE_BYTES; i += 64)
        __builtin_prefetch(b + AHEAD * TILE_BYTES + i, 0, 3);
}

/* A strip of weights times 64 columns of the tokens. */
#define PRODUCTS(product)         \
    do {                          \
        tile_load(6, b0, 64);     \
        tile_load(4, x0, 64);     \
        product(0, 4, 6);         \
        if (two_b) {              \
            tile_load(7, b1, 64); \
            product(1, 4, 7);     \
        }                         \
        if (two_a) {              \
            tile_load(5, x1, 64); \
            product(2, 5, 6);     \
            if (two_b)            \
                product(3, 5, 7); \
        }                         \
    } while (0)

static inline void fetch_later(struct later *l)
{
    for (int i = 0; i < l->n_lines && l->n_panels > 0; i++) {
        __builtin_prefetch(l->panel + l->at, 0, 2);
        l->at += 64;
        if (l->at >= l->n_bytes) {
            l->at = 0;
            l->panel += l->panel_bytes;
            l->n_panels--;
        }
    }
}

static inline void fetch_tile(const void *p)
{
    for (int i = 0; i < TILE_BYTES; i += 64)
        __builtin_prefetch((const uint8_t *)p + i, 0, 3);
}

/* Strip s of what the next block loads and this one does not. */
static inline void fetch_next(const struct block *b, const struct block *next, int s)
{
    if (next->x != b->x) {
        fetch_tile(next->x->q[s]);
        fetch_tile(next->x[next->n_tok > TILE_ROWS ? next->n_groups : 0].q[s]);
    }
    for (int i = 0; i < 2 && next->u != b->u && next->u->b[i] != NULL; i++)
        fetch_tile(next->u->b[i] + (size_t)s * next->u->strip_bytes);
}

/* Where a block finds its neighbours. */
struct stage {
    const struct block *late; /* is finished meanwhile */
    const struct block *next; /* NULL: its operands are not fetched */
    struct later *later;
    struct unpacking *unpacking;
    bool stream;
};

static inline void unpack_next(struct unpacking *p);

static inline void run_block(enum work work, const struct block *b, const struct stage *st)
{
    const struct unit *u = b->u;
    const int8_t *x0 = b->x->q[0][0], *x1 = b->n_tok > TILE_ROWS ? b->x[b->n_groups].q[0][0] : x0;
    const bool two_a = b->n_tok > TILE_ROWS, two_b = u->b[1] != NULL;
    const uint8_t *b0 = u->b[0], *b1 = two_b ? u->b[1] : b0;
    const int per_strip = SL_ROUND_UP(SL_CEIL_DIV(BLOCK, b->n_strips), STEP);
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    for (int s = 0; s < b->n_strips; s++) {
        if (st->stream) {
            fetch_quads(b0);
            fetch_quads(b1);
        }
        if (st->next != NULL)
            fetch_next(b, st->next, s);
        fetch_later(st->later);
        if (work != PLAIN)
            unpack_next(st->unpacking);
        if (work == PLAIN)
            PRODUCTS(tile_dot_s8_u8);
        else
            PRODUCTS(tile_dot_s8_s8);
        b0 += u->strip_bytes;
        b1 += u->strip_bytes;
        x0 += TILE_BYTES;
        x1 += TILE_BYTES;
        finish(work, st->late, s * per_strip, (s + 1) * per_strip);
    }
    int32_t(*sum)[BLOCK][SL_I8_PANEL] = b->sums->sum;
    tile_store(0, sum[0], 64);
    if (two_b)
        tile_store(1, sum[1], 64);
    if (two_a) {
        tile_store(2, sum[0][TILE_ROWS], 64);
        if (two_b)
            tile_store(3, sum[1][TILE_ROWS], 64);
    }
    tile_fence();
}

/* The blocks of a chunk: spans of tokens outermost, then groups, tokens, units. */
struct walk {
    const struct call *c;
    const struct chunk *chunk;
    int t0, i, t, j;
    uint32_t n_done;
};

static inline bool i8_step(struct walk *w)
{
    const int n_tok = w->c->part->n_tok, end = SL_MIN(n_tok, w->t0 + w->c->shape->span);
    w->n_done++;
    if (++w->j < w->chunk->n_units)
        return true;
    w->j = 0;
    w->t += BLOCK;
    if (w->t < end)
        return true;
    w->t = w->t0;
    if (++w->i < w->chunk->n)
        return true;
    w->i = 0;
    w->t0 = w->t = end;
    return end < n_tok;
}

/* Group g + i of the part times unit j for the tokens from t on. */
static inline struct block i8_block(const struct walk *w)
{
    const struct call *c = w->c;
    const struct sl_i8_part *a = c->part;
    const struct tile_x *x = (const struct tile_x *)(const void *)a->x;
    const struct unit *u = &w->chunk->half->unit[w->i][w->j];
    const int64_t g = w->chunk->g + w->i;
    const bool last = a->g0 + g + 1 == c->layout.n_groups;
    return (struct block){
        .u = u,
        .x = x + w->t / TILE_ROWS * a->n_groups + g,
        .n_groups = a->n_groups,
        .acc = c->acc + w->t * LD_ACC + u->panel * SL_I8_PANEL,
        .n_tok = SL_MIN(a->n_tok - w->t, BLOCK),
        .n_strips = last ? c->layout.last_strips : STRIPS,
        .sums = &c->room->sums[w->n_done % (uint32_t)SL_MAX(c->shape->depth, 1)],
        .waiting = a->g0 + g == 0 ? 0 : 0xFFFF,
    };
}

/* All tokens times a chunk. */
static inline void run_units(enum work work, const struct call *c, const struct chunk *chunk,
                             struct later *later, struct unpacking *unpacking)
{
    struct walk w = {.c = c, .chunk = chunk};
    const struct sl_i8_shape *shape = c->shape;
    const bool stream = work == PLAIN && c->part->n_tok <= FETCHED;
    struct block late[DEPTH] = {{.n_tok = 0}, {.n_tok = 0}}, b = i8_block(&w), next = b;
    for (bool more = true; more; b = next) {
        struct stage st = {.late = &late[0], .later = later, .unpacking = unpacking};
        st.stream = stream && w.t == 0;
        more = i8_step(&w);
        if (more)
            next = i8_block(&w);
        if (more && shape->operands)
            st.next = &next;
        run_block(work, &b, &st);
        sl_aside_step(c->part->aside);
        if (shape->depth == 0) {
            finish(work, &b, 0, BLOCK);
        } else {
            late[0] = shape->depth == 1 ? b : late[1];
            late[1] = b;
        }
    }
    if (shape->depth == 2)
        finish(work, &late[0], 0, BLOCK);
    if (shape->depth > 0)
        finish(work, &late[1], 0, BLOCK);
}

/* ---------------------------------------------------------------- units */

static const struct form {
    enum work work;
    int more, zero, scales, mins; /* zero: shift of 1; offsets of scales and of minima */
    bool half;                    /* d and dmin are f16 */
} forms[SL_I8_FORMS] = {
    [SL_I8_Q4_0] = {SPLIT, 0, 3, 64, 0, false},
    [SL_I8_Q5_0] = {SPLIT, 1, 4, 64, 0, false},
    [SL_I8_Q6_K] = {SPLIT, 2, 5, 64, 0, false},
    [SL_I8_TABLE] = {SPLIT, 0, 7, 64, 0, false},
    [SL_I8_MXFP4] = {SPLIT, 0, 7, 64, 0, false},
    [SL_I8_Q4_K] = {SPLIT_MIN, 0, -1, 64, 64, true},
    [SL_I8_Q5_K] = {SPLIT_MIN, 1, -1, 64, 64, true},
    [SL_I8_Q4_1] = {SPLIT_MIN, 0, -1, 128, 384, false},
    [SL_I8_Q5_1] = {SPLIT_MIN, 1, -1, 128, 384, false},
    [SL_I8_Q2_K] = {SPLIT_MIN16, 0, -1, 64, 64, true},
};

/* What a panel's group has besides its codes. */
static void unit_start(enum sl_i8_form f, const uint8_t *at, uint8_t *hi, uint8_t *lo,
                       struct unit *u)
{
    const float *d = (const float *)(const void *)at;
    u->b[0] = hi;
    u->b[1] = lo;
    u->strip_bytes = TILE_BYTES;
    u->d[0] = forms[f].half ? v_load_f16(at) : v_load(d);
    if (forms[f].work == SPLIT)
        return;
    u->dmin = forms[f].half ? v_load_f16(at + 32) : v_load(d + 16);
    if (f == SL_I8_Q2_K)
        q2_k_mins(at + 64, u->min);
    else if (forms[f].half)
        qk_mins(at + 64, u->min);
    else
        for (int s = 0; s < STRIPS; s++)
            u->min[s] = _mm512_loadu_si512(at + forms[f].mins + 64 * s);
}

/* Strip i of the group at `at`. */
static void unit_strip(enum sl_i8_form f, const struct sl_i8_layout *l, const uint8_t *at, int i,
                       uint8_t *hi, uint8_t *lo)
{
    const uint8_t *p = at + l->head_bytes + (size_t)i * l->strip_bytes;
    static const _Alignas(64) uint8_t mxfp4[64] = {SL_I8_MXFP4_TABLE, SL_I8_MXFP4_TABLE,
                                                   SL_I8_MXFP4_TABLE, SL_I8_MXFP4_TABLE};
    const bool is_qk = f == SL_I8_Q4_K || f == SL_I8_Q5_K;
    v16i s[4];
    hi += i * TILE_BYTES;
    lo += i * TILE_BYTES;
    if (f == SL_I8_MXFP4) {
        mxfp4_scales(at + 64, i, s);
        strip_table(p, s, mxfp4, hi, lo);
        return;
    }
    v16i scale = is_qk ? qk_scale(at + 64, i) : _mm512_loadu_si512(at + forms[f].scales + 64 * i);
    if (f == SL_I8_Q6_K || f == SL_I8_TABLE)
        scales_of_16(scale, s);
    else if (f == SL_I8_Q2_K)
        scales_of_16(vi_and(scale, _mm512_set1_epi8(15)), s);
    else
        scales_of_32(scale, s);
    if (f == SL_I8_TABLE)
        strip_table(p, s, at + 320, hi, lo);
    else if (forms[f].more == 0)
        strip_codes(p, 0, forms[f].zero, s, hi, lo);
    else if (forms[f].more == 1)
        strip_codes(p, 1, forms[f].zero, s, hi, lo);
    else
        strip_codes(p, 2, forms[f].zero, s, hi, lo);
}

/* Codes of Q8_0 are tiles as they lie. */
static void borrow(const struct sl_i8_layout *l, const uint8_t *at, int n_panels, struct unit *u)
{
    u->strip_bytes = l->strip_bytes;
    u->b[1] = NULL;
    for (int i = 0; i < n_panels; i++, at += l->panel_bytes) {
        u->b[i] = at + l->head_bytes;
        u->d[i] = v_load((const float *)(const void *)at);
    }
}

/* ---------------------------------------------------------------- loops */

/* What will be read from memory after groups [g, g + n) of n_panels panels from p on: the groups
 * behind them, or the first ones of the panels behind these. */
static struct later later_of(const struct call *c, int64_t p, int n_panels, int64_t g, int n)
{
    const struct sl_i8_part *a = c->part;
    const struct sl_i8_layout *l = &c->layout;
    const bool inside = g + n < a->n_groups;
    const int64_t from = inside ? g + n : 0;
    const int64_t n_groups = SL_MIN(a->n_groups - from, n);
    struct later later = {.n_panels = 0};
    if (!c->shape->weights || a->n_tok <= FETCHED)
        return later;
    later.panel = (const uint8_t *)a->w->data +
                  (size_t)(p + (inside ? 0 : n_panels)) * l->panel_bytes +
                  (size_t)(a->g0 + from) * l->group_bytes;
    later.panel_bytes = l->panel_bytes;
    later.n_bytes = (size_t)n_groups * l->group_bytes;
    later.n_panels = n_panels;
    const int per_unit = c->work == PLAIN ? 2 : 1;
    const int64_t n_strips =
        (int64_t)SL_CEIL_DIV(a->n_tok, BLOCK) * SL_CEIL_DIV(n_panels, per_unit) * n * STRIPS;
    later.n_lines = (int)SL_CEIL_DIV((int64_t)(later.n_bytes / 64 + 1) * n_panels, n_strips);
    return later;
}

static inline int per_unit_of(const struct call *c)
{
    return c->work == PLAIN ? 2 : 1;
}

/* Group i of the chunk, of the first panel of unit k. */
static const uint8_t *group_at(const struct call *c, const struct chunk *k, int i, int unit)
{
    const struct sl_i8_part *a = c->part;
    const int64_t panel = c->p + k->q + unit * per_unit_of(c);
    return (const uint8_t *)a->w->data + (size_t)panel * c->layout.panel_bytes +
           (size_t)(a->g0 + k->g + i) * c->layout.group_bytes;
}

/* Unpacks one strip. */
static void unpack_strip(struct unpacking *p)
{
    const struct call *c = p->c;
    const int i = p->strip / (STRIPS * p->to.n_units), strip = p->strip % STRIPS;
    const int unit = p->strip / STRIPS % p->to.n_units;
    const bool last = c->part->g0 + p->to.g + i + 1 == c->layout.n_groups;
    const uint8_t *at = group_at(c, &p->to, i, unit);
    uint8_t *hi = p->to.half->hi[i][unit], *lo = p->to.half->lo[i][unit];
    struct unit *u = &p->to.half->unit[i][unit];
    if (strip == 0) {
        u->panel = p->to.q + unit;
        unit_start(c->form, at, hi, lo, u);
    }
    if (!last || strip < c->layout.last_strips)
        unit_strip(c->form, &c->layout, at, strip, hi, lo);
    p->strip++;
}

static inline void unpack_next(struct unpacking *p)
{
    if (p->strip == p->n_strips || ++p->wait < p->every)
        return;
    p->wait = 0;
    unpack_strip(p);
}

static void unpack_rest(struct unpacking *p)
{
    while (p->strip < p->n_strips)
        unpack_strip(p);
}

static void borrow_all(const struct call *c, const struct chunk *k)
{
    for (int i = 0; i < k->n; i++)
        for (int j = 0; j < k->n_units; j++) {
            struct unit *u = &k->half->unit[i][j];
            u->panel = k->q + 2 * j;
            borrow(&c->layout, group_at(c, k, i, j), SL_MIN(c->n_panels - u->panel, 2), u);
        }
}

/* The call's chunks: groups outside, panels inside. */
static struct chunk chunk_at(const struct call *c, int64_t g, int q, struct half *half)
{
    const int chunk = SL_MIN(c->shape->chunk, c->work == PLAIN ? CHUNK : UNPACKED);
    struct chunk k = {.g = g, .q = q, .half = half};
    k.n = (int)SL_MIN(c->part->n_groups - g, chunk);
    k.n_units = SL_MIN(c->shape->units, SL_CEIL_DIV(c->n_panels - q, per_unit_of(c)));
    return k;
}

static bool chunk_next(const struct call *c, struct chunk *k)
{
    struct half *other = k->half == &c->room->half[0] ? &c->room->half[1] : &c->room->half[0];
    const int q = k->q + k->n_units * per_unit_of(c);
    if (q < c->n_panels)
        *k = chunk_at(c, k->g, q, other);
    else if (k->g + k->n < c->part->n_groups)
        *k = chunk_at(c, k->g + k->n, 0, other);
    else
        return false;
    return true;
}

static inline void run_call(enum work work, const struct call *c)
{
    struct later later = {.n_panels = 0};
    struct chunk now = chunk_at(c, 0, 0, &c->room->half[0]), next = now;
    struct unpacking unpacking = {.c = c, .to = now, .n_strips = now.n * now.n_units * STRIPS};
    if (work == PLAIN)
        borrow_all(c, &now);
    else
        unpack_rest(&unpacking);
    for (bool more = true; more; now = next) {
        more = chunk_next(c, &next);
        if (more && work == PLAIN)
            borrow_all(c, &next);
        unpacking = (struct unpacking){.c = c, .to = next};
        if (more && work != PLAIN) {
            unpacking.n_strips = next.n * next.n_units * STRIPS;
            unpacking.every = SL_MAX(now.n * now.n_units * STRIPS *
                                         SL_CEIL_DIV(c->part->n_tok, BLOCK) / unpacking.n_strips,
                                     1);
        }
        if (now.q == 0)
            later = later_of(c, c->p, c->n_panels, now.g, now.n);
        tile_fence();
        run_units(work, c, &now, &later, &unpacking);
        unpack_rest(&unpacking);
    }
}

#define RUN(name, work)                                              \
    static __attribute__((noinline)) void name(const struct call *c) \
    {                                                                \
        run_call(work, c);                                           \
    }
RUN(run_plain, PLAIN)
RUN(run_split, SPLIT)
RUN(run_split_min, SPLIT_MIN)
RUN(run_split_min16, SPLIT_MIN16)

/* The walk over the blocks ends, and stays inside its room, for these shapes only. */
static inline void check_i8_shape(const struct sl_i8_shape *s)
{
    SL_ASSERT(s->span > 0 && s->span % BLOCK == 0);
    SL_ASSERT(s->chunk > 0 && s->chunk <= CHUNK && s->units > 0 && s->units <= UNITS);
    SL_ASSERT(s->depth >= 0 && s->depth <= DEPTH);
}

static void i8_dot_tiles(const struct sl_i8_part *a, int64_t p, int n_panels, float *acc,
                         struct sl_i8_scratch *scratch)
{
    struct call c = {.part = a,
                     .p = p,
                     .n_panels = n_panels,
                     .acc = acc,
                     .room = (struct room *)(void *)scratch->bytes};
    c.layout = sl_i8_layout(a->w->dtype, a->w->n_rows, a->w->n_cols);
    c.shape = a->n_tok <= FETCHED ? &i8_stream : a->shape != NULL ? a->shape : &i8_shape;
    check_i8_shape(c.shape);
    c.form = sl_i8_form_of(a->w->dtype);
    c.work = forms[c.form].work; /* Q8_0 has no row: PLAIN */
    sl_aside_begin(a->aside, SL_CEIL_DIV(a->n_tok, BLOCK) * a->n_groups *
                                 SL_CEIL_DIV(n_panels, c.work == PLAIN ? 2 : 1));
    i8_configure();
    if (c.work == PLAIN)
        run_plain(&c);
    else if (c.work == SPLIT)
        run_split(&c);
    else if (c.work == SPLIT_MIN)
        run_split_min(&c);
    else
        run_split_min16(&c);
    tile_release();
}

/* ---------------------------------------------------------------- activations */

/* A strip's numbers in columns' order to bytes, and the sums of its halves and quarters. */
static inline void place_strip(const v16i v[4], int8_t *q, int16_t sum32[2], int16_t sum16[4])
{
    const v16i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    /* packing goes by lanes: dword 4 * l + i has four columns from 16 * i + 4 * l on */
    v16i b = _mm512_packs_epi16(_mm512_packs_epi32(v[0], v[1]), _mm512_packs_epi32(v[2], v[3]));
    v16i s = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), b);
    __m256i h = _mm256_add_epi32(_mm512_castsi512_si256(s), _mm512_extracti64x4_epi64(s, 1));
    __m128i l = _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
    _mm512_storeu_si512(q, _mm512_permutexvar_epi32(order, b));
    _mm_storel_epi64((__m128i *)(void *)sum16, _mm_packs_epi32(l, l));
    l = _mm_add_epi32(l, _mm_srli_epi64(l, 32));
    sum32[0] = (int16_t)_mm_cvtsi128_si32(l);
    sum32[1] = (int16_t)_mm_extract_epi32(l, 2);
}

/* What quantize does, to a row of the tiles. n: columns there are. */
static void place_group(const float *x, int n, int row, struct tile_x *to)
{
    struct group_x g;
    int32_t sum = 0;
    group_begin(&g, x, n);
    const v16 inv = v_set1(g.inv);
    const __mmask16 kept = g.inv != 0 ? 0xFFFF : 0; /* an infinity times zero is no zero */
    to->d[row] = g.d;
    to->outliers[row] = g.outliers;
    to->n_outliers[row] = g.outliers.n;
    for (int s = 0; s < STRIPS; s++) {
        v16i v[4];
        for (int i = 0; i < 4; i++)
            v[i] =
                _mm512_maskz_cvtps_epi32(kept, v_mul(v_load(g.x + s * STRIP_COLS + 16 * i), inv));
        place_strip(v, to->q[s][row], to->sum32[s][row], to->sum16[s][row]);
        sum += to->sum32[s][row][0] + to->sum32[s][row][1];
    }
    to->zero[row] = -128 * sum;
}

/* Token t of a block to its row of the tiles. */
static void i8_place_tiles(const float *x, int64_t k, int t, struct sl_i8_x *block)
{
    const int64_t n_groups = SL_CEIL_DIV(k, SL_I8_GROUP);
    struct tile_x *to = (struct tile_x *)(void *)block + t / TILE_ROWS * n_groups;
    for (int64_t i = 0; i < k; i += SL_I8_GROUP)
        place_group(x + i, (int)SL_MIN(k - i, SL_I8_GROUP), t % TILE_ROWS, to++);
}
