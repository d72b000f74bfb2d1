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
 * the block before into floats, eight tokens after every four products.
 *
 * What bounds a block of Q8_0, in cycles of a core with two load and one 64-byte store port:
 *     products 16 x 16                               256
 *     loads    16 tiles x 16 rows + 64 x 3 vectors   224
 *     stores    4 tiles x 16 rows + 64 vectors       128
 *     vectors  64 x (add, convert, multiply, fma)    128 on two ports
 * which leaves little room for operands that come late. Hence the order of the loops: a span of 64
 * tokens keeps its outputs in the L1 cache while some groups, a chunk, pass over it. With few
 * tokens a strip is fetched just ahead of its use. With many nothing is: lines on their way from
 * memory to the L1 cache stand in the way of those from the L2 cache, and the processor's own
 * prefetching does better.
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
#define SPAN       64 /* tokens */
#define CHUNK      4  /* groups */
#define UNITS      2  /* side by side */
#define STEP       8  /* tokens finished at a time */
#define FETCHED    64 /* tokens up to which weights are fetched */
#define AHEAD      2  /* by so many strips */

/* A group of sixteen tokens. Behind the last token there may be anything: nobody reads its sums. */
struct tile_x {
    _Alignas(64) int8_t q[STRIPS][TILE_ROWS][STRIP_COLS];
    float d[TILE_ROWS];
    int32_t zero[TILE_ROWS];             /* the zero point of Q8_0: -128 * sum of q */
    int16_t sum32[STRIPS][TILE_ROWS][2]; /* of the strip's two sub-blocks */
};
_Static_assert(sizeof(struct tile_x) <= TILE_ROWS * sizeof(struct sl_i8_x), "fits");

/* A group of two tiles of weights a strip that are multiplied in one go: two panels of Q8_0, or hi
 * and lo of one panel. */
struct unit {
    const uint8_t *b[2]; /* first strip; the second may be NULL: none */
    size_t strip_bytes;
    v16 d[2];            /* of the panels */
    v16 dmin;            /* K formats */
    __m512i min[STRIPS]; /* of two neighbouring sub-blocks, dwords of s16 pairs */
    int panel;           /* of the call, the first one if two */
};

struct room {
    uint8_t hi[CHUNK][UNITS][STRIPS * TILE_BYTES], lo[CHUNK][UNITS][STRIPS * TILE_BYTES];
    int32_t sum[2][BLOCK][SL_I8_PANEL]; /* of the block before the one that runs */
    struct unit unit[CHUNK][UNITS];
};
_Static_assert(sizeof(struct room) <= SL_I8_SCRATCH_BYTES, "fits");

enum work { PLAIN, SPLIT, SPLIT_MIN }; /* Q8_0; Q4_0 and Q6_K; Q4_K and Q5_K */

struct call {
    enum work work;
    struct sl_i8_layout layout;
    const struct sl_i8_part *part;
    float *acc;
    struct room *room;
};

/* 32 tokens times a unit. */
struct block {
    const struct unit *u;
    const struct tile_x *x; /* the second sixteen tokens are n_groups behind the first */
    int64_t n_groups;
    float *acc;
    int n_tok; /* 0: no block */
    int n_strips;
    __mmask16 waiting; /* none of acc if the group is the first */
};

/* ---------------------------------------------------------------- sums to floats */

static inline v16 scaled(v16i sum, v16 d, const float *acc, __mmask16 waiting)
{
    return v_fma(v_from_int(sum), d, _mm512_maskz_loadu_ps(waiting, acc));
}

/* n tokens of a tile, from token i of the block on. What all of them need is in registers before
 * the loop: the compiler cannot know that the outputs are elsewhere. */
static inline void finish_plain(const struct block *b, const struct room *r, int i, int n, bool two)
{
    const struct tile_x *x = b->x + i / TILE_ROWS * b->n_groups;
    const float *dx = x->d + i % TILE_ROWS;
    const int32_t *zero = x->zero + i % TILE_ROWS;
    const v16 d0 = b->u->d[0], d1 = b->u->d[1];
    const __mmask16 waiting = b->waiting;
    const int32_t *s0 = r->sum[0][i], *s1 = r->sum[1][i];
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

static inline void finish_split(const struct block *b, const struct room *r, int i, int n,
                                bool has_min)
{
    const struct unit *u = b->u;
    const struct tile_x *x = b->x + i / TILE_ROWS * b->n_groups;
    const float *dx = x->d + i % TILE_ROWS;
    const v16 d0 = u->d[0], dmin = u->dmin;
    const v16i min0 = u->min[0], min1 = u->min[1], min2 = u->min[2], min3 = u->min[3];
    const __mmask16 waiting = b->waiting;
    const int32_t *s0 = r->sum[0][i], *s1 = r->sum[1][i];
    float *acc = b->acc + i * LD_ACC;
    for (int t = 0; t < n; t++, acc += LD_ACC) {
        v16 d = v_set1(dx[t]);
        v16i hi = _mm512_load_si512(s0 + t * SL_I8_PANEL);
        v16i lo = _mm512_load_si512(s1 + t * SL_I8_PANEL);
        v16 a = scaled(vi_add(vi_sll(hi, 7), lo), v_mul(d0, d), acc, waiting);
        if (has_min) {
            const int k = i % TILE_ROWS + t;
            v16i even = _mm512_setzero_si512(), odd = even;
            even = _mm512_dpwssd_epi32(even, min0, spread_pair(x->sum32[0][k]));
            odd = _mm512_dpwssd_epi32(odd, min1, spread_pair(x->sum32[1][k]));
            even = _mm512_dpwssd_epi32(even, min2, spread_pair(x->sum32[2][k]));
            odd = _mm512_dpwssd_epi32(odd, min3, spread_pair(x->sum32[3][k]));
            a = _mm512_fnmadd_ps(v_from_int(vi_add(even, odd)), v_mul(dmin, d), a);
        }
        v_store(acc, a);
    }
}

static inline void finish_step(enum work work, const struct block *b, const struct room *r, int i,
                               int n)
{
    if (work != PLAIN)
        finish_split(b, r, i, n, work == SPLIT_MIN);
    else if (b->u->b[1] != NULL)
        finish_plain(b, r, i, n, true);
    else
        finish_plain(b, r, i, n, false);
}

/* Tokens [from, to) of the block, both multiples of STEP. */
static inline void finish(enum work work, const struct block *b, const struct room *r, int from,
                          int to)
{
    for (int i = from; i < to && i < b->n_tok; i += STEP) {
        if (i + STEP <= b->n_tok)
            finish_step(work, b, r, i, STEP);
        else
            finish_step(work, b, r, i, b->n_tok - i);
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

/* Runs block b and finishes the one before. */
static inline void run_block(enum work work, struct room *r, const struct block *b,
                             const struct block *before, bool stream)
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
        if (stream) {
            fetch_quads(b0);
            fetch_quads(b1);
        }
        if (work == PLAIN)
            PRODUCTS(tile_dot_s8_u8);
        else
            PRODUCTS(tile_dot_s8_s8);
        b0 += u->strip_bytes;
        b1 += u->strip_bytes;
        x0 += TILE_BYTES;
        x1 += TILE_BYTES;
        finish(work, before, r, s * per_strip, (s + 1) * per_strip);
    }
    tile_store(0, r->sum[0], 64);
    if (two_b)
        tile_store(1, r->sum[1], 64);
    if (two_a) {
        tile_store(2, r->sum[0][TILE_ROWS], 64);
        if (two_b)
            tile_store(3, r->sum[1][TILE_ROWS], 64);
    }
    tile_fence();
}

/* Group g + i of the part times unit j for the tokens from t on. */
static inline struct block block_of(const struct call *c, int64_t g, int i, int j, int t)
{
    const struct sl_i8_part *a = c->part;
    const struct tile_x *x = (const struct tile_x *)(const void *)a->x;
    const struct unit *u = &c->room->unit[i][j];
    const bool last = a->g0 + g + i + 1 == c->layout.n_groups;
    return (struct block){
        .u = u,
        .x = x + t / TILE_ROWS * a->n_groups + g + i,
        .n_groups = a->n_groups,
        .acc = c->acc + t * LD_ACC + u->panel * SL_I8_PANEL,
        .n_tok = SL_MIN(a->n_tok - t, BLOCK),
        .n_strips = last ? c->layout.last_strips : STRIPS,
        .waiting = a->g0 + g + i == 0 ? 0 : 0xFFFF,
    };
}

/* Groups [g, g + n) of the part, all tokens, times the units. */
static inline void run_units(enum work work, const struct call *c, int64_t g, int n, int n_units)
{
    const int n_tok = c->part->n_tok;
    const bool stream = work == PLAIN && n_tok <= FETCHED;
    struct block before = {.n_tok = 0};
    for (int t0 = 0; t0 < n_tok; t0 += SPAN)
        for (int i = 0; i < n; i++)
            for (int t = t0; t < SL_MIN(n_tok, t0 + SPAN); t += BLOCK)
                for (int j = 0; j < n_units; j++) {
                    struct block b = block_of(c, g, i, j, t);
                    run_block(work, c->room, &b, &before, stream && t == 0);
                    before = b;
                }
    finish(work, &before, c->room, 0, BLOCK);
}

/* ---------------------------------------------------------------- unpacking */

/* Columns of a quad lie in the even and odd bytes; as words they are multiplied by the sub-block's
 * scale (a word twice in a row's dword). bias: scale * zero. */
static inline void put_quad(v16i even, v16i odd, v16i scale, v16i bias, uint8_t *hi, uint8_t *lo)
{
    const v16i low_bytes = _mm512_set1_epi16(0xFF), seven = _mm512_set1_epi8(0x7F);
    even = _mm512_sub_epi16(_mm512_mullo_epi16(even, scale), bias);
    odd = _mm512_sub_epi16(_mm512_mullo_epi16(odd, scale), bias);
    /* 0xCA: low_bytes ? second : third */
    v16i h = _mm512_ternarylogic_epi32(low_bytes, _mm512_srli_epi16(even, 7),
                                       _mm512_slli_epi16(odd, 1), 0xCA);
    v16i l = _mm512_ternarylogic_epi32(low_bytes, even, _mm512_slli_epi16(odd, 8), 0xCA);
    _mm512_store_si512(hi, h);
    _mm512_store_si512(lo, vi_and(l, seven));
}

static inline v16i twice_low(v16i words) /* the low word of each dword in both halves */
{
    return _mm512_or_si512(_mm512_and_si512(words, vi_set1(0xFFFF)), vi_sll(words, 16));
}

static inline v16i twice_high(v16i words)
{
    return _mm512_ternarylogic_epi32(vi_set1(0xFFFF), vi_srl(words, 16), words, 0xCA);
}

/* The low bits of quads i and i + 8 of a strip. */
struct nibbles {
    v16i even[2], odd[2];
};

static inline struct nibbles load_nibbles(const uint8_t *p)
{
    const v16i v = _mm512_loadu_si512(p), four = _mm512_set1_epi16(15);
    return (struct nibbles){
        .even = {vi_and(v, four), vi_and(_mm512_srli_epi16(v, 4), four)},
        .odd = {vi_and(_mm512_srli_epi16(v, 8), four), _mm512_srli_epi16(v, 12)},
    };
}

/* scale: two sub-blocks of 32 columns, the words of a row's dword. */
static inline void strip_4bit(const uint8_t *p, v16i scale, int zero, uint8_t *hi, uint8_t *lo)
{
    const v16i s[2] = {twice_low(scale), twice_high(scale)};
    const v16i z = _mm512_set1_epi16((int16_t)zero);
    const v16i bias[2] = {_mm512_mullo_epi16(s[0], z), _mm512_mullo_epi16(s[1], z)};
    for (int i = 0; i < 8; i++) {
        struct nibbles n = load_nibbles(p + 64 * i);
        for (int h = 0; h < 2; h++)
            put_quad(n.even[h], n.odd[h], s[h], bias[h], hi + 64 * (8 * h + i),
                     lo + 64 * (8 * h + i));
    }
}

static inline void strip_5bit(const uint8_t *p, v16i scale, uint8_t *hi, uint8_t *lo)
{
    const v16i s[2] = {twice_low(scale), twice_high(scale)}, none = _mm512_setzero_si512();
    const v16i bit4 = _mm512_set1_epi16(16);
    v16i even[2], odd[2]; /* the fifth bit of quad i in place 4 of each word */
    for (int h = 0; h < 2; h++) {
        v16i fifth = _mm512_loadu_si512(p + 64 * h);
        even[h] = _mm512_slli_epi16(fifth, 4);
        odd[h] = _mm512_srli_epi16(fifth, 4);
    }
    for (int i = 0; i < 8; i++) {
        struct nibbles n = load_nibbles(p + 128 + 64 * i);
        for (int h = 0; h < 2; h++) {
            put_quad(vi_or(n.even[h], vi_and(even[h], bit4)), vi_or(n.odd[h], vi_and(odd[h], bit4)),
                     s[h], none, hi + 64 * (8 * h + i), lo + 64 * (8 * h + i));
            even[h] = _mm512_srli_epi16(even[h], 1);
            odd[h] = _mm512_srli_epi16(odd[h], 1);
        }
    }
}

/* scale: s8 of four sub-blocks of 16 columns in the order 0, 2, 1, 3. */
static inline void strip_6bit(const uint8_t *p, v16i scale, uint8_t *hi, uint8_t *lo)
{
    const v16i first = _mm512_srai_epi16(_mm512_slli_epi16(scale, 8), 8); /* words 0, 1 */
    const v16i second = _mm512_srai_epi16(scale, 8);                      /* words 2, 3 */
    const v16i s[4] = {twice_low(first), twice_high(first), twice_low(second), twice_high(second)};
    const v16i bits45 = _mm512_set1_epi16(48);
    for (int i = 0; i < 4; i++) {
        v16i high = _mm512_loadu_si512(p + 64 * i);
        v16i even = _mm512_slli_epi16(high, 4), odd = _mm512_srli_epi16(high, 4);
        for (int j = 0; j < 2; j++) { /* vector i + 4 j: sub-blocks j and j + 2 */
            struct nibbles n = load_nibbles(p + 256 + 64 * (i + 4 * j));
            for (int h = 0; h < 2; h++) {
                const v16i e = h == 0 ? even : _mm512_srli_epi16(even, 4);
                const v16i o = h == 0 ? odd : _mm512_srli_epi16(odd, 4);
                const int f = j + 2 * h, q = 4 * f + i;
                put_quad(vi_or(n.even[h], vi_and(e, bits45)), vi_or(n.odd[h], vi_and(o, bits45)),
                         s[f], _mm512_slli_epi16(s[f], 5), hi + 64 * q, lo + 64 * q);
            }
            even = _mm512_srli_epi16(even, 2);
            odd = _mm512_srli_epi16(odd, 2);
        }
    }
}

/* Scales of strip i of a K format's head: words of two neighbouring sub-blocks. */
static inline v16i qk_scale(const uint8_t *packed, int i)
{
    v16i v = _mm512_loadu_si512(packed + 64 * (i / 2));
    return vi_and(i % 2 == 0 ? v : _mm512_srli_epi16(v, 6), _mm512_set1_epi16(63));
}

static inline void qk_mins(const uint8_t *packed, v16i min[STRIPS])
{
    const v16i a = _mm512_loadu_si512(packed), b = _mm512_loadu_si512(packed + 64);
    const v16i c = _mm512_loadu_si512(packed + 128), six = _mm512_set1_epi16(63);
    const v16i top = _mm512_set1_epi16(48);
    min[0] = vi_and(c, six);
    min[1] = vi_and(_mm512_srli_epi16(c, 6), six);
    min[2] = vi_or(_mm512_srli_epi16(a, 12), vi_and(_mm512_srli_epi16(c, 8), top));
    min[3] = vi_or(_mm512_srli_epi16(b, 12), vi_and(_mm512_srli_epi16(c, 10), top));
}

/* The group at `at` of one panel to a unit. */
static void unpack(enum sl_dtype t, const struct sl_i8_layout *l, const uint8_t *at, int n_strips,
                   uint8_t *hi, uint8_t *lo, struct unit *u)
{
    const bool is_qk = t == SL_DTYPE_Q4_K || t == SL_DTYPE_Q5_K;
    u->b[0] = hi;
    u->b[1] = lo;
    u->strip_bytes = TILE_BYTES;
    u->d[0] = is_qk ? v_load_f16(at) : v_load((const float *)(const void *)at);
    if (is_qk) {
        u->dmin = v_load_f16(at + 32);
        qk_mins(at + 64, u->min);
    }
    for (int i = 0; i < n_strips; i++, hi += TILE_BYTES, lo += TILE_BYTES) {
        const uint8_t *p = at + l->head_bytes + (size_t)i * l->strip_bytes;
        v16i scale = is_qk ? qk_scale(at + 64, i) : _mm512_loadu_si512(at + 64 + 64 * i);
        if (t == SL_DTYPE_Q4_0)
            strip_4bit(p, scale, 8, hi, lo);
        else if (t == SL_DTYPE_Q4_K)
            strip_4bit(p, scale, 0, hi, lo);
        else if (t == SL_DTYPE_Q5_K)
            strip_5bit(p, scale, hi, lo);
        else
            strip_6bit(p, scale, hi, lo);
    }
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

/* Groups [g, g + n) of some panels. */
static inline void run_chunk(enum work work, const struct call *c, int64_t p, int n_panels,
                             int64_t g, int n)
{
    const struct sl_i8_part *a = c->part;
    const struct sl_i8_layout *l = &c->layout;
    struct room *r = c->room;
    const int per_unit = work == PLAIN ? 2 : 1, at_once = UNITS * per_unit;
    const uint8_t *at = (const uint8_t *)a->w->data + (size_t)p * l->panel_bytes +
                        (size_t)(a->g0 + g) * l->group_bytes;
    for (int q = 0; q < n_panels; q += at_once) {
        const int n_units = SL_CEIL_DIV(SL_MIN(n_panels - q, at_once), per_unit);
        for (int i = 0; i < n * n_units; i++) {
            const int j = i / n_units, k = i % n_units, panel = q + k * per_unit;
            const uint8_t *from = at + (size_t)panel * l->panel_bytes + (size_t)j * l->group_bytes;
            struct unit *u = &r->unit[j][k];
            u->panel = panel;
            if (work == PLAIN)
                borrow(l, from, SL_MIN(n_panels - panel, 2), u);
            else
                unpack(a->w->dtype, l, from,
                       a->g0 + g + j + 1 == l->n_groups ? l->last_strips : STRIPS, r->hi[j][k],
                       r->lo[j][k], u);
        }
        tile_fence();
        run_units(work, c, g, n, n_units);
    }
}

#define RUN(name, work)                                                                       \
    static __attribute__((noinline)) void name(const struct call *c, int64_t p, int n_panels) \
    {                                                                                         \
        for (int64_t g = 0; g < c->part->n_groups; g += CHUNK)                                \
            run_chunk(work, c, p, n_panels, g, (int)SL_MIN(c->part->n_groups - g, CHUNK));    \
    }
RUN(run_plain, PLAIN)
RUN(run_split, SPLIT)
RUN(run_split_min, SPLIT_MIN)

static void i8_dot_tiles(const struct sl_i8_part *a, int64_t p, int n_panels, float *acc,
                         struct sl_i8_scratch *scratch)
{
    struct call c = {.part = a, .acc = acc, .room = (struct room *)(void *)scratch->bytes};
    c.layout = sl_i8_layout(a->w->dtype, a->w->n_rows, a->w->n_cols);
    i8_configure();
    if (a->w->dtype == SL_DTYPE_Q8_0)
        run_plain(&c, p, n_panels);
    else if (a->w->dtype == SL_DTYPE_Q4_0 || a->w->dtype == SL_DTYPE_Q6_K)
        run_split(&c, p, n_panels);
    else
        run_split_min(&c, p, n_panels);
    tile_release();
}

/* ---------------------------------------------------------------- activations */

/* A strip's numbers in columns' order to bytes, and the sums of its halves. */
static inline void place_strip(const v16i v[4], int8_t *q, int16_t sum32[2])
{
    const v16i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    /* packing goes by lanes: dword 4 * l + i has four columns from 16 * i + 4 * l on */
    v16i b = _mm512_packs_epi16(_mm512_packs_epi32(v[0], v[1]), _mm512_packs_epi32(v[2], v[3]));
    v16i s = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), b);
    __m256i h = _mm256_add_epi32(_mm512_castsi512_si256(s), _mm512_extracti64x4_epi64(s, 1));
    __m128i l = _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
    _mm512_storeu_si512(q, _mm512_permutexvar_epi32(order, b));
    l = _mm_add_epi32(l, _mm_srli_epi64(l, 32));
    sum32[0] = (int16_t)_mm_cvtsi128_si32(l);
    sum32[1] = (int16_t)_mm_extract_epi32(l, 2);
}

/* What quantize does, to a row of the tiles. n: columns there are. */
static void place_group(const float *x, int n, int row, struct tile_x *to)
{
    _Alignas(64) float rest[SL_I8_GROUP];
    const v16i magnitude = vi_set1(0x7FFFFFFF);
    v16i top = _mm512_setzero_si512();
    int32_t sum = 0;
    if (n < SL_I8_GROUP) {
        memcpy(rest, x, (size_t)n * sizeof *x);
        memset(rest + n, 0, (size_t)(SL_I8_GROUP - n) * sizeof *x);
        x = rest;
    }
    for (int i = 0; i < SL_I8_GROUP; i += 16)
        top = _mm512_max_epi32(top, vi_and(v_bits(v_load(x + i)), magnitude));
    const uint32_t bits = (uint32_t)_mm512_reduce_max_epi32(top);
    const float amax = sl_f32_of_bits(bits);
    const bool finite = bits < 0x7F800000u, none = !finite || amax < SL_I8_TINY;
    const v16 inv = v_set1(none ? 0.0f : 127.0f / amax);
    const __mmask16 kept = none ? 0 : 0xFFFF; /* an infinity times zero is no zero */
    to->d[row] = none ? finite ? 0.0f : NAN : amax / 127.0f;
    for (int s = 0; s < STRIPS; s++, x += STRIP_COLS) {
        v16i v[4];
        for (int i = 0; i < 4; i++)
            v[i] = _mm512_maskz_cvtps_epi32(kept, v_mul(v_load(x + 16 * i), inv));
        place_strip(v, to->q[s][row], to->sum32[s][row]);
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
