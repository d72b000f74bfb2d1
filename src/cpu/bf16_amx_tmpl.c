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
 * Tiles: sums 0..3, tokens 4 and 5, weights 6 and 7. Two token tiles times two panels load a tile
 * per product, 16 cycles each. Sums leave the tiles only between parts of 2048 columns: shorter
 * parts, with operands that stay in the L1 cache, lose more by loading and storing them. With few
 * tokens weights stream: they are fetched just ahead of their use, and with at most 16 tokens four
 * panels run at once, since the more of them are on their way the better.
 */
#include "cpu/bf16.h"

#include "base/check.h"

#define LD_OUT      (SL_BF16_PANELS * SL_BF16_PANEL)
#define STRIP_BYTES 1024 /* of a panel: 32 columns, a tile */
#define ROWS        16
#define PART        64 /* strips of all panels, for all tokens */
#define AHEAD       2  /* strips of each panel that are on their way from memory */
#define FETCHED     64 /* tokens up to which they are */

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

static inline void fetch_pairs(const uint8_t *w)
{
    for (size_t i = 0; i < STRIP_BYTES; i += 64)
        __builtin_prefetch(w + AHEAD * STRIP_BYTES + i, 0, 3);
}

/* Some strips of all panels and of the tokens. */
struct bf16_part {
    const uint8_t *w; /* strip 0 of panel 0 */
    size_t panel_bytes;
    int64_t n_strips;
    const uint8_t *x; /* strip 0 of token 0 */
    size_t x_bytes;   /* of all strips of a tile's tokens */
    bool first;       /* the sums start at zero */
};

/* Two token tiles times one or two panels. */
static void block_2x2(const struct bf16_part *a, int n_panels, bool stream, float *acc)
{
    const uint8_t *w0 = a->w, *w1 = w0 + a->panel_bytes, *x0 = a->x, *x1 = x0 + a->x_bytes;
    const long ld_c = LD_OUT * 4;
    const bool two = n_panels > 1;
    float *acc1 = acc + ROWS * LD_OUT;
    if (a->first) {
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
    for (int64_t i = 0; i < a->n_strips; i++) {
        if (stream) {
            fetch_pairs(w0);
            fetch_pairs(w1);
        }
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

/* One token tile times one to four panels. stream: the weights come from memory. */
static void block_1x4(const struct bf16_part *a, int n_panels, bool stream, int n_tok, float *acc)
{
    const size_t panel_bytes = a->panel_bytes;
    const uint8_t *w0 = a->w, *w1 = w0 + panel_bytes, *w2 = w1 + panel_bytes;
    const uint8_t *w3 = w2 + panel_bytes, *x = a->x;
    const long ld_c = LD_OUT * 4;
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    if (!a->first) {
        tile_load(0, acc, ld_c);
        if (n_panels > 1)
            tile_load(1, acc + 16, ld_c);
        if (n_panels > 2)
            tile_load(2, acc + 32, ld_c);
        if (n_panels > 3)
            tile_load(3, acc + 48, ld_c);
    }
    for (int64_t i = 0; i < a->n_strips; i++, x += n_tok * 2 * SL_BF16_K) {
        const int64_t at = i * STRIP_BYTES;
        for (int p = 0; stream && p < n_panels; p++)
            fetch_pairs(w0 + (size_t)p * panel_bytes + at);
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

/* All tokens times a part. */
static void bf16_part(struct bf16_part a, int n_panels, int n_tok, float *acc)
{
    const uint8_t *w = a.w;
    for (int t = 0; t < n_tok; t += 2 * ROWS, a.x += 2 * a.x_bytes, acc += 2 * ROWS * LD_OUT) {
        a.w = w;
        if (n_tok - t <= ROWS) {
            block_1x4(&a, n_panels, false, ROWS, acc);
            continue;
        }
        for (int p = 0; p < n_panels; p += 2) {
            a.w = w + (size_t)p * a.panel_bytes;
            block_2x2(&a, SL_MIN(n_panels - p, 2), t == 0 && n_tok <= FETCHED, acc + p * 16);
        }
    }
}

static void bf16_dot(const uint8_t *panels, size_t panel_bytes, int n_panels, int64_t k,
                     const uint16_t *x, int n_tok, float *acc, bool first)
{
    const int64_t n_strips = SL_CEIL_DIV(k, SL_BF16_K);
    struct bf16_part a = {.w = panels, .panel_bytes = panel_bytes, .n_strips = n_strips};
    a.x = (const uint8_t *)x;
    a.x_bytes = (size_t)n_strips * STRIP_BYTES;
    a.first = first;
    bf16_configure(n_tok);
    if (n_tok <= ROWS)
        block_1x4(&a, n_panels, true, n_tok, acc);
    for (int64_t i = 0; n_tok > ROWS && i < n_strips; i += PART) {
        a.n_strips = SL_MIN(n_strips - i, PART);
        bf16_part(a, n_panels, n_tok, acc);
        a.w += PART * STRIP_BYTES;
        a.x += PART * STRIP_BYTES;
        a.first = false;
    }
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
