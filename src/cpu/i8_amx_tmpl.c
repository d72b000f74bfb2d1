/* SPDX-License-Identifier: MIT
 * Whole-number products by tiles. Included by i8_amx.c and, over simulated tiles, by tests/ops.
 *
 * A tile of weights is a strip: 64 columns of a panel, sixteen quads. Q8_0 multiplies its codes as
 * they lie; the zero point leaves with the sum of the activations. Elsewhere a weight is scale *
 * (code - zero) = v, 15 bits with sign, and v = 128 * hi + lo makes two tiles of bytes; they are
 * unpacked once per group and two panels, for all tokens. Products of both are summed apart and
 * joined as I = 128 * sum(hi x) + sum(lo x).
 *
 * Tiles: sums 0..3, tokens 4 and 5, weights 6 and 7. A block is 32 tokens times two tiles of
 * weights: 16 products a group, 16 cycles each. While they run, the vector units turn the sums of
 * the block before into floats, a few tokens after every four products.
 *
 * What bounds a block of Q8_0, in cycles of a core with two load and one 64-byte store port:
 *     products 16 x 16                               256
 *     loads    16 tiles x 16 rows + 64 x 3 vectors   224
 *     stores    4 tiles x 16 rows + 64 vectors       128
 *     vectors  64 x (add, convert, multiply, fma)    128 on two ports
 * The other formats have twice the products for the same outputs, and K formats 64 more multiply-
 * adds of the minima on one port; unpacking is 700 to 1000 cycles per two panels, under a fifth of
 * what 256 tokens take.
 */
#include "cpu/i8.h"

#include "base/check.h"
#include "cpu/vec_avx512.h"

#include <string.h>

#define LD_ACC     (SL_I8_PANELS * SL_I8_PANEL)
#define STRIP_COLS 64
#define STRIPS     (SL_I8_GROUP / STRIP_COLS)
#define TILE_BYTES 1024
#define TILE_ROWS  16
#define BLOCK      (2 * TILE_ROWS)
#define OTHER_SUM  (BLOCK * SL_I8_PANEL)
#define UNITS      2  /* unpacked at a time: their tiles, tokens and sums fit in the L1 cache */
#define FEW        16 /* tokens below which a tile is too empty */

/* Two tiles of weights per strip that are multiplied in one go: two panels of Q8_0, or hi and lo of
 * one panel. */
struct unit {
    const uint8_t *b[2]; /* first strip; NULL: none */
    size_t strip_bytes;
    v16 d[2];            /* of the panels */
    v16 dmin;            /* K formats */
    __m512i min[STRIPS]; /* of two neighbouring sub-blocks, dwords of s16 pairs */
    int panel;           /* of the call, the first one if two */
};

struct room {
    uint8_t hi[UNITS][STRIPS * TILE_BYTES], lo[UNITS][STRIPS * TILE_BYTES];
    int32_t sum[2][OTHER_SUM]; /* of the block before the one that runs */
};
_Static_assert(sizeof(struct room) <= SL_I8_SCRATCH_BYTES, "fits");

enum work { PLAIN, SPLIT, SPLIT_MIN }; /* Q8_0; Q4_0 and Q6_K; Q4_K and Q5_K */

/* The panels' next group, wanted soon: from memory to the L2 cache, some lines a block. */
struct fetch {
    const uint8_t *at;
    size_t panel_bytes, n_lines; /* of a panel's group */
    int n_panels;
    size_t line, per_block;
};

struct call {
    enum work work;
    int n_strips;
    const struct sl_i8_x *x; /* token 0, the group at hand */
    int64_t ld_x;
    float *acc;
    __mmask16 waiting; /* none of acc if the group is the first */
    struct fetch fetch;
    int32_t (*sum)[OTHER_SUM]; /* of the two tiles of weights */
};

/* A block whose sums are in memory and not yet floats. */
struct block {
    const struct unit *u;
    int t, n_tok; /* 0: no block */
};

/* ---------------------------------------------------------------- sums to floats */

/* Where the sums, activations and outputs of a token of the block are. */
struct place {
    const struct sl_i8_x *x;
    const int32_t *sum; /* of the first tile of weights; OTHER_SUM behind: of the second */
    float *acc;
};

static inline struct place place_of(const struct call *c, const struct block *b, int i)
{
    return (struct place){
        .x = c->x + (b->t + i) * c->ld_x,
        .sum = c->sum[0] + i * SL_I8_PANEL,
        .acc = c->acc + (b->t + i) * LD_ACC + b->u->panel * SL_I8_PANEL,
    };
}

static inline void next_place(struct place *p, int64_t ld_x)
{
    p->x += ld_x;
    p->sum += SL_I8_PANEL;
    p->acc += LD_ACC;
}

static inline v16 scaled(v16i sum, v16 d, const float *acc, __mmask16 waiting)
{
    return v_fma(v_from_int(sum), d, _mm512_maskz_loadu_ps(waiting, acc));
}

/* Tokens [from, to) of a block of Q8_0. What all of them need is in registers before the loop: the
 * compiler cannot know that the outputs are elsewhere. */
static inline void finish_plain(const struct call *c, const struct block *b, int from, int to,
                                bool two)
{
    const v16 d0 = b->u->d[0], d1 = b->u->d[1];
    const __mmask16 waiting = c->waiting;
    const int64_t ld_x = c->ld_x;
    struct place p = place_of(c, b, from);
    for (int i = from; i < to; i++, next_place(&p, ld_x)) {
        v16 dx = v_set1(p.x->d);
        v16i zero = vi_set1(-128 * (p.x->sum128[0] + p.x->sum128[1]));
        v16i s = vi_add(_mm512_load_si512(p.sum), zero);
        v_store(p.acc, scaled(s, v_mul(d0, dx), p.acc, waiting));
        if (two) {
            s = vi_add(_mm512_load_si512(p.sum + OTHER_SUM), zero);
            v_store(p.acc + 16, scaled(s, v_mul(d1, dx), p.acc + 16, waiting));
        }
    }
}

static inline v16i spread_pair(const int16_t *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return vi_set1(pair);
}

static inline void finish_split(const struct call *c, const struct block *b, int from, int to,
                                bool has_min)
{
    const struct unit *u = b->u;
    const v16 d = u->d[0], dmin = u->dmin;
    const v16i min0 = u->min[0], min1 = u->min[1], min2 = u->min[2], min3 = u->min[3];
    const __mmask16 waiting = c->waiting;
    const int64_t ld_x = c->ld_x;
    struct place p = place_of(c, b, from);
    for (int i = from; i < to; i++, next_place(&p, ld_x)) {
        v16 dx = v_set1(p.x->d);
        v16i hi = _mm512_load_si512(p.sum), lo = _mm512_load_si512(p.sum + OTHER_SUM);
        v16 a = scaled(vi_add(vi_sll(hi, 7), lo), v_mul(d, dx), p.acc, waiting);
        if (has_min) {
            v16i even = _mm512_setzero_si512(), odd = even;
            even = _mm512_dpwssd_epi32(even, min0, spread_pair(p.x->sum32));
            odd = _mm512_dpwssd_epi32(odd, min1, spread_pair(p.x->sum32 + 2));
            even = _mm512_dpwssd_epi32(even, min2, spread_pair(p.x->sum32 + 4));
            odd = _mm512_dpwssd_epi32(odd, min3, spread_pair(p.x->sum32 + 6));
            a = _mm512_fnmadd_ps(v_from_int(vi_add(even, odd)), v_mul(dmin, dx), a);
        }
        v_store(p.acc, a);
    }
}

/* Tokens [from, to) of the block. */
static inline void finish(const struct call *c, const struct block *b, int from, int to)
{
    if (from == to)
        return;
    if (c->work == SPLIT)
        finish_split(c, b, from, to, false);
    else if (c->work == SPLIT_MIN)
        finish_split(c, b, from, to, true);
    else if (b->u->b[1] != NULL)
        finish_plain(c, b, from, to, true);
    else
        finish_plain(c, b, from, to, false);
}

/* ---------------------------------------------------------------- tiles */

static void i8_configure(int n_tok)
{
    int rows0 = SL_MIN(n_tok, TILE_ROWS), rows1 = n_tok > TILE_ROWS ? n_tok - TILE_ROWS : TILE_ROWS;
    struct tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++)
        c.row_bytes[i] = 64;
    c.rows[0] = c.rows[1] = c.rows[4] = (uint8_t)rows0;
    c.rows[2] = c.rows[3] = c.rows[5] = (uint8_t)rows1;
    c.rows[6] = c.rows[7] = TILE_ROWS;
    tile_configure(&c);
}

/* A strip of weights times 64 columns of the tokens at x and of the sixteen behind them. */
#define PRODUCTS(product)                             \
    do {                                              \
        tile_load(6, b0, 64);                         \
        tile_load(4, x, ld_a);                        \
        product(0, 4, 6);                             \
        if (two_b) {                                  \
            tile_load(7, b1, 64);                     \
            product(1, 4, 7);                         \
        }                                             \
        if (two_a) {                                  \
            tile_load(5, x + TILE_ROWS * ld_a, ld_a); \
            product(2, 5, 6);                         \
            if (two_b)                                \
                product(3, 5, 7);                     \
        }                                             \
    } while (0)

/* Runs block b and finishes the one before. A function of its own, so that its few pointers stay in
 * registers. */
static __attribute__((noinline)) void run_block(const struct call *c, const struct block *b,
                                                const struct block *before)
{
    const struct unit *u = b->u;
    const int8_t *x = c->x[b->t * c->ld_x].q;
    const long ld_a = (long)(c->ld_x * (int64_t)sizeof(struct sl_i8_x));
    const bool two_a = b->n_tok > TILE_ROWS, two_b = u->b[1] != NULL;
    const uint8_t *b0 = u->b[0], *b1 = two_b ? u->b[1] : b0;
    const int per_strip = SL_CEIL_DIV(before->n_tok, c->n_strips);
    int done = 0;
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    for (int s = 0; s < c->n_strips; s++) {
        if (c->work == PLAIN)
            PRODUCTS(tile_dot_s8_u8);
        else
            PRODUCTS(tile_dot_s8_s8);
        b0 += u->strip_bytes;
        b1 += u->strip_bytes;
        x += STRIP_COLS;
        int end = SL_MIN(done + per_strip, before->n_tok);
        finish(c, before, done, end);
        done = end;
    }
    tile_store(0, c->sum[0], 64);
    if (two_b)
        tile_store(1, c->sum[1], 64);
    if (two_a) {
        tile_store(2, c->sum[0] + OTHER_SUM / 2, 64);
        if (two_b)
            tile_store(3, c->sum[1] + OTHER_SUM / 2, 64);
    }
}

static inline void fetch_some(struct fetch *f)
{
    for (size_t i = 0; i < f->per_block && f->n_panels > 0; i++) {
        __builtin_prefetch(f->at + f->line * 64, 0, 2);
        if (++f->line == f->n_lines) {
            f->line = 0;
            f->at += f->panel_bytes;
            f->n_panels--;
        }
    }
}

static void run_units(struct call *c, const struct unit *u, int n_units, int n_tok)
{
    struct block before = {.n_tok = 0};
    i8_configure(SL_MIN(n_tok, BLOCK));
    for (int t = 0; t < n_tok; t += BLOCK) {
        int n = SL_MIN(n_tok - t, BLOCK);
        if (t > 0 && n < BLOCK)
            i8_configure(n);
        for (int i = 0; i < n_units; i++) {
            struct block b = {.u = &u[i], .t = t, .n_tok = n};
            fetch_some(&c->fetch);
            run_block(c, &b, &before);
            before = b;
        }
    }
    tile_release();
    tile_fence();
    finish(c, &before, 0, before.n_tok);
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

/* ---------------------------------------------------------------- */

static void i8_dot_tiles(const struct sl_weight *w, int64_t p, int n_panels, int64_t g,
                         const struct sl_i8_x *x, int64_t ld_x, int n_tok, float *acc, bool first,
                         struct sl_i8_scratch *scratch)
{
    const struct sl_i8_layout l = sl_i8_layout(w->dtype, w->n_rows, w->n_cols);
    const uint8_t *at =
        (const uint8_t *)w->data + (size_t)p * l.panel_bytes + (size_t)g * l.group_bytes;
    struct room *room = (struct room *)(void *)scratch->bytes;
    struct call c = {.work = PLAIN, .n_strips = STRIPS, .x = x + g, .ld_x = ld_x, .acc = acc};
    struct unit u[UNITS];
    memset(u, 0, sizeof u);
    c.waiting = first ? 0 : 0xFFFF;
    c.sum = room->sum;
    if (g + 1 == l.n_groups)
        c.n_strips = l.last_strips; /* and nothing to fetch */
    else
        c.fetch =
            (struct fetch){at + l.group_bytes, l.panel_bytes, l.group_bytes / 64, n_panels, 0, 0};
    /* blocks: a panel, or two of Q8_0, for 32 tokens */
    const int n_units = w->dtype == SL_DTYPE_Q8_0 ? (n_panels + 1) / 2 : n_panels;
    const size_t n_blocks = (size_t)(n_units * SL_CEIL_DIV(n_tok, BLOCK));
    c.fetch.per_block = SL_CEIL_DIV(c.fetch.n_lines * (size_t)n_panels, n_blocks);
    if (w->dtype == SL_DTYPE_Q8_0) {
        for (int i = 0; i < n_panels; i++, at += l.panel_bytes) {
            struct unit *v = &u[i / 2];
            v->b[i % 2] = at + l.head_bytes;
            v->b[1] = i % 2 == 0 ? NULL : v->b[1];
            v->d[i % 2] = v_load((const float *)(const void *)at);
            v->strip_bytes = l.strip_bytes;
            v->panel = i / 2 * 2;
        }
        run_units(&c, u, n_units, n_tok);
        return;
    }
    c.work = w->dtype == SL_DTYPE_Q4_K || w->dtype == SL_DTYPE_Q5_K ? SPLIT_MIN : SPLIT;
    for (int i = 0; i < n_panels; i += UNITS) {
        int n = SL_MIN(n_panels - i, UNITS);
        for (int j = 0; j < n; j++, at += l.panel_bytes) {
            unpack(w->dtype, &l, at, c.n_strips, room->hi[j], room->lo[j], &u[j]);
            u[j].panel = i + j;
        }
        tile_fence();
        run_units(&c, u, n, n_tok);
    }
}
