/* SPDX-License-Identifier: MIT
 * BF16 products by tiles. Included by bf16_amx.c and, over simulated tiles, by tests/ops.
 *
 * One instruction adds 16 pairs of columns to a sum in its own order of roundings; the instructions
 * of an output run over its columns in ascending order, from zero. A row of the first operand is a
 * token, so what other tokens do does not touch it, and one token goes the same way as a thousand.
 * Sums may wait in memory, which changes no bit.
 *
 * Activations lie as tiles, strip after strip of sixteen tokens (of all, if there are fewer), so
 * that loading one reads lines that lie together, not sixteen pages.
 *
 * Tiles: sums 0..3, tokens 4 and 5, weights 6 and 7. A block is 32 tokens times two panels, or,
 * wide, 16 tokens times four; tokens are walked over outside, panels inside. What bounds it, in
 * cycles of a core that loads two lines a cycle from the L1 cache of 48 KiB, and fewer than 64
 * bytes a cycle from the L2 cache: products of a strip           4 x 16 64 loads of a strip 32 x 2:
 * 4 x 16 rows, 16 x 4: 5 x 16   32 or 40 sums in and out of a part     4 x 16 rows each 32 + 64 A
 * part is a number P of strips between which sums leave the tiles. Bytes a cycle from the L2 cache,
 * and what must stay in the L1 cache for that, KiB:
 *     all columns in one part, both operands arrive each time             64
 *     weights stay, tokens and sums (4 KiB a block) arrive; 32 x 2        16 + 64 / P   6 P + 8
 *     the same, 16 x 4                                                    16 + 64 / P   5 P + 4
 *     sums of 64 tokens stay, weights and tokens arrive (span)            32            6 P + 16
 * The first form needs more than there is: where nothing is fetched ahead, 30 bytes a cycle arrive.
 * Wide blocks of 8 strips need 24; the sums cost them at most 96 cycles of 512, and products of the
 * next block can run meanwhile. Weights come from memory once a block of tokens, and are asked for
 * while the part before is multiplied.
 *
 * With few tokens weights stream: they are fetched just ahead of their use, and with at most 16
 * tokens four panels run at once, since the more of them are on their way the better.
 */
#include "cpu/bf16.h"

#include "base/check.h"

#define LD_OUT      (SL_BF16_PANELS * SL_BF16_PANEL)
#define STRIP_BYTES 1024 /* of a panel: 32 columns, a tile */
#define ROWS        16
#define AHEAD       2  /* strips of each panel that are on their way from memory */
#define FETCHED     64 /* tokens up to which they are */
#define L1_STRIPS   32 /* of weights that stay in the L1 cache */

static const struct sl_bf16_shape bf16_shape = {
    .tokens = SL_BF16_BLOCK, .span = SL_BF16_TOKENS, .strips = 64};
/* Up to FETCHED tokens. */
static const struct sl_bf16_shape bf16_stream = {
    .tokens = SL_BF16_BLOCK, .span = SL_BF16_TOKENS, .strips = 64};

/* Tiles of tokens and sums have n_tok rows, at most 16. */
static void bf16_configure(int n_tok)
{
    struct tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.row_bytes[i] = 64;
        c.rows[i] = (uint8_t)(i < 6 ? SL_MIN(n_tok, ROWS) : ROWS);
    }
    tile_configure(&c);
}

/* A strip; the processor forgets what asks for memory that is not there. */
static inline void fetch_strip(const uint8_t *p)
{
    for (size_t i = 0; i < STRIP_BYTES; i += 64)
        __builtin_prefetch(p + i, 0, 3);
}

/* Some strips of one to four panels and of one or two tiles of tokens. */
struct bf16_block {
    const uint8_t *w; /* strip 0 of panel 0 */
    size_t panel_bytes;
    int n_panels, n_tok; /* up to 4 and 16, or 2 and 32 */
    int64_t n_strips;
    const uint8_t *x; /* strip 0 of token 0 */
    size_t x_bytes;   /* of all strips of a tile's tokens */
    size_t x_strip;   /* of one strip of them */
    float *acc;
    bool first;  /* the sums start at zero */
    bool stream; /* the weights come from memory */
    /* What is fetched while strip i runs: strip i + ahead, or of the block behind this one. */
    int ahead;
    const uint8_t *next_x;
    const uint8_t *next_w; /* NULL: the weights lie in the L1 cache */
    bool fetch_w;
    /* And weights of the next part, to the L2 cache: so many lines a strip. */
    const uint8_t *later;
    int n_later;
};

static inline void fetch_lines(const uint8_t *p, int n)
{
    for (int i = 0; i < n; i++)
        __builtin_prefetch(p + i * 64, 0, 2);
}

/* Strip i of what this block or the next one loads from the L2 cache. */
static inline void fetch_operands(const struct bf16_block *b, int64_t i, int n_x, int n_w)
{
    const int64_t at = i + b->ahead;
    const bool inside = at < b->n_strips;
    const uint8_t *x = inside ? b->x + (size_t)at * b->x_strip
                              : b->next_x + (size_t)(at - b->n_strips) * b->x_strip;
    for (int j = 0; j < n_x; j++)
        fetch_strip(x + (size_t)j * b->x_bytes);
    const uint8_t *w = inside              ? b->fetch_w ? b->w + at * STRIP_BYTES : NULL
                       : b->next_w != NULL ? b->next_w + (at - b->n_strips) * STRIP_BYTES
                                           : NULL;
    for (int j = 0; w != NULL && j < n_w; j++)
        fetch_strip(w + (size_t)j * b->panel_bytes);
}

static inline void fetch_for(const struct bf16_block *b, int64_t i, int n_x)
{
    for (int p = 0; b->stream && p < b->n_panels; p++)
        fetch_strip(b->w + (size_t)p * b->panel_bytes + (i + AHEAD) * STRIP_BYTES);
    if (b->ahead > 0)
        fetch_operands(b, i, n_x, b->n_panels);
    for (int p = 0; b->n_later > 0 && p < b->n_panels; p++)
        fetch_lines(b->later + (size_t)p * b->panel_bytes + i * b->n_later * 64, b->n_later);
}

/* Two token tiles times one or two panels. */
static void block_2x2(const struct bf16_block *b)
{
    const uint8_t *w0 = b->w, *w1 = w0 + b->panel_bytes, *x0 = b->x, *x1 = x0 + b->x_bytes;
    const long ld_c = LD_OUT * 4;
    const bool two = b->n_panels > 1;
    float *acc = b->acc, *acc1 = acc + ROWS * LD_OUT;
    if (b->first) {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
    } else {
        tile_load(0, acc, ld_c);
        tile_load(2, acc1, ld_c);
        if (two) {
            tile_load(1, acc + 16, ld_c);
            tile_load(3, acc1 + 16, ld_c);
        }
    }
    for (int64_t i = 0; i < b->n_strips; i++) {
        fetch_for(b, i, 2);
        tile_load(6, w0, 64);
        tile_load(4, x0, 64);
        tile_dot_bf16(0, 4, 6);
        if (two) {
            tile_load(7, w1, 64);
            tile_dot_bf16(1, 4, 7);
        }
        tile_load(5, x1, 64);
        tile_dot_bf16(2, 5, 6);
        if (two)
            tile_dot_bf16(3, 5, 7);
        w0 += STRIP_BYTES;
        w1 += STRIP_BYTES;
        x0 += STRIP_BYTES;
        x1 += STRIP_BYTES;
    }
    tile_store(0, acc, ld_c);
    tile_store(2, acc1, ld_c);
    if (two) {
        tile_store(1, acc + 16, ld_c);
        tile_store(3, acc1 + 16, ld_c);
    }
}

/* One token tile times one to four panels. */
static void block_1x4(const struct bf16_block *b)
{
    const size_t panel_bytes = b->panel_bytes;
    const uint8_t *w0 = b->w, *w1 = w0 + panel_bytes, *w2 = w1 + panel_bytes;
    const uint8_t *w3 = w2 + panel_bytes, *x = b->x;
    const long ld_c = LD_OUT * 4;
    const int n_panels = b->n_panels;
    float *acc = b->acc;
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    if (!b->first) {
        tile_load(0, acc, ld_c);
        if (n_panels > 1)
            tile_load(1, acc + 16, ld_c);
        if (n_panels > 2)
            tile_load(2, acc + 32, ld_c);
        if (n_panels > 3)
            tile_load(3, acc + 48, ld_c);
    }
    for (int64_t i = 0; i < b->n_strips; i++, x += b->x_strip) {
        const int64_t at = i * STRIP_BYTES;
        fetch_for(b, i, 1);
        tile_load(4, x, 64);
        tile_load(6, w0 + at, 64);
        tile_dot_bf16(0, 4, 6);
        if (n_panels > 1) {
            tile_load(7, w1 + at, 64);
            tile_dot_bf16(1, 4, 7);
        }
        if (n_panels > 2) {
            tile_load(6, w2 + at, 64);
            tile_dot_bf16(2, 4, 6);
        }
        if (n_panels > 3) {
            tile_load(7, w3 + at, 64);
            tile_dot_bf16(3, 4, 7);
        }
    }
    tile_store(0, acc, ld_c);
    if (n_panels > 1)
        tile_store(1, acc + 16, ld_c);
    if (n_panels > 2)
        tile_store(2, acc + 32, ld_c);
    if (n_panels > 3)
        tile_store(3, acc + 48, ld_c);
}

/* The blocks of a call, spans of tokens outermost, then parts, tokens, panels. */
struct bf16_walk {
    const struct sl_bf16_part *a;
    const struct sl_bf16_shape *shape;
    int64_t n_strips;           /* of all columns */
    int64_t strips;             /* of a part */
    int per_tokens, per_panels; /* of a block */
    float *acc;
    int t0, t, p; /* where it is: t0 is n_tok at the end */
    int64_t s;
};

/* To the next block; false behind the last one. */
static inline bool bf16_step(struct bf16_walk *k)
{
    const int n_tok = k->a->n_tok, end = SL_MIN(n_tok, k->t0 + k->shape->span);
    k->p += k->per_panels;
    if (k->p < k->a->n_panels)
        return true;
    k->p = 0;
    k->t += k->per_tokens;
    if (k->t < end)
        return true;
    k->t = k->t0;
    k->s += k->strips;
    if (k->s < k->n_strips)
        return true;
    k->s = 0;
    k->t0 = k->t = end;
    return k->t0 < n_tok;
}

static struct bf16_block bf16_block_at(const struct bf16_walk *k)
{
    const struct sl_bf16_part *a = k->a;
    struct bf16_block b = {.panel_bytes = a->panel_bytes, .ahead = k->shape->ahead};
    b.w = a->panels + (size_t)k->p * a->panel_bytes + k->s * STRIP_BYTES;
    b.n_tok = SL_MIN(a->n_tok - k->t, k->per_tokens);
    b.n_panels = SL_MIN(a->n_panels - k->p, k->per_panels);
    b.n_strips = SL_MIN(k->n_strips - k->s, k->strips);
    b.x_strip = (size_t)SL_MIN(a->n_tok, ROWS) * 64;
    b.x_bytes = (size_t)k->n_strips * b.x_strip;
    b.x = (const uint8_t *)a->x + (size_t)(k->t / ROWS) * b.x_bytes + (size_t)k->s * b.x_strip;
    b.acc = k->acc + k->t * LD_OUT + k->p * SL_BF16_PANEL;
    b.first = a->first && k->s == 0;
    b.stream = k->t == 0 && a->n_tok <= FETCHED;
    b.fetch_w = k->t == k->t0 || a->n_panels * b.n_strips > L1_STRIPS;
    return b;
}

/* The block's share of the panels' next part, or of the panels behind these. */
static inline void share_later(const struct bf16_walk *k, struct bf16_block *b)
{
    const bool inside = k->s + k->strips < k->n_strips;
    const int64_t n_lines =
        (inside ? k->strips : SL_MIN(k->strips, k->n_strips)) * STRIP_BYTES / 64;
    const int64_t n_blocks = SL_CEIL_DIV(SL_MIN(k->a->n_tok, k->shape->span), k->per_tokens);
    const int64_t each = SL_CEIL_DIV(n_lines, n_blocks), from = k->t / k->per_tokens * each;
    if (!k->shape->weights || k->t0 != 0 || from >= n_lines)
        return;
    b->later = b->w + from * 64;
    b->later += inside ? k->strips * STRIP_BYTES
                       : (int64_t)((size_t)k->a->n_panels * b->panel_bytes) - k->s * STRIP_BYTES;
    b->n_later = (int)SL_CEIL_DIV(each, b->n_strips);
}

static void bf16_run(struct bf16_walk *k)
{
    struct bf16_block b = bf16_block_at(k), next = b;
    for (bool more = true; more; b = next) {
        const struct bf16_walk here = *k;
        more = bf16_step(k);
        if (more)
            next = bf16_block_at(k);
        b.next_x = next.x;
        b.next_w = next.fetch_w ? next.w : NULL;
        b.ahead = (int)SL_MIN(b.ahead, b.n_strips);
        share_later(&here, &b);
        if (b.n_tok <= ROWS)
            block_1x4(&b);
        else
            block_2x2(&b);
        sl_aside_step(k->a->aside);
    }
}

static void bf16_dot(const struct sl_bf16_part *a, float *acc)
{
    struct bf16_walk k = {.a = a, .acc = acc, .n_strips = SL_CEIL_DIV(a->k, SL_BF16_K)};
    k.shape = a->n_tok <= FETCHED ? &bf16_stream : a->shape != NULL ? a->shape : &bf16_shape;
    SL_ASSERT(k.shape->span > 0 && k.shape->span % (2 * ROWS) == 0 && k.shape->strips > 0);
    const bool wide = k.shape->wide || a->n_tok <= ROWS;
    k.per_tokens = wide ? ROWS : 2 * ROWS;
    k.per_panels = wide ? SL_BF16_PANELS : 2;
    k.strips = a->n_tok <= ROWS ? k.n_strips : k.shape->strips;
    sl_aside_begin(a->aside, SL_CEIL_DIV(a->n_tok, k.per_tokens) *
                                 SL_CEIL_DIV(a->n_panels, k.per_panels) *
                                 SL_CEIL_DIV(k.n_strips, k.strips));
    bf16_configure(a->n_tok);
    bf16_run(&k);
    tile_release();
    tile_fence();
}

/* A strip of token t's row in the tiles of a block. */
static uint16_t *bf16_row(uint16_t *block, int64_t k, int t, int n_tok, int64_t strip)
{
    const int rows = SL_MIN(n_tok, ROWS);
    const int64_t n_strips = SL_CEIL_DIV(k, SL_BF16_K);
    return block + ((t / ROWS * n_strips + strip) * rows + t % ROWS) * SL_BF16_K;
}
