/* SPDX-License-Identifier: MIT
 * BF16 products by tiles. Included by bf16_amx.c and, over simulated tiles, by tests/ops.
 *
 * One instruction adds 16 pairs of columns to a sum in its own order of roundings; the instructions
 * of an output run over its columns in ascending order, from zero. A row of the first operand is a
 * token, so what other tokens do does not touch it, and one token goes the same way as a thousand.
 * Sums may wait in memory, which changes no bit.
 *
 * Tiles: sums 0..3, tokens 4 and 5, weights 6 and 7. Two token tiles times two panels load a tile
 * per product, 16 cycles each: a whole row of columns at a time would take 64 bytes a cycle from
 * the L2 cache, more than it gives. Hence parts of 256 columns, of which four panels (32 KiB) stay
 * in the L1 cache for all tokens. With at most 16 tokens weights stream: four panels at once over
 * all columns, and the more of them on their way the better.
 */
#include "cpu/bf16.h"

#include "base/check.h"

#define LD_OUT      (SL_BF16_PANELS * SL_BF16_PANEL)
#define STRIP_BYTES 1024 /* of a panel: 32 columns, a tile */
#define ROWS        16
#define PART        8 /* strips of all panels, for all tokens */
#define AHEAD       2 /* strips of each panel that are on their way from memory */

/* Tokens fill one row tile of rows0, or two with rows1 in the second. */
static void bf16_configure(int rows0, int rows1)
{
    struct tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.row_bytes[i] = 64;
        c.rows[i] = ROWS;
    }
    c.rows[4] = (uint8_t)rows0;
    if (rows1 > 0) {
        c.rows[0] = c.rows[1] = (uint8_t)rows0;
        c.rows[2] = c.rows[3] = c.rows[5] = (uint8_t)rows1;
    } else {
        c.rows[0] = c.rows[1] = c.rows[2] = c.rows[3] = (uint8_t)rows0;
    }
    tile_configure(&c);
}

static inline void fetch_l1(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i += 64)
        __builtin_prefetch(p + i, 0, 3);
}

static inline void fetch_l2(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i += 64)
        __builtin_prefetch(p + i, 0, 2);
}

/* Some strips of all panels, and the tokens from their first of these columns on. */
struct bf16_part {
    const uint8_t *w; /* strip 0 of panel 0 */
    size_t panel_bytes;
    int64_t n_strips;
    const uint16_t *x;
    int64_t ld_x;
    bool first; /* the sums start at zero */
};

/* Two token tiles times one or two panels. */
static void block_2x2(const struct bf16_part *a, int n_panels, float *acc)
{
    const uint8_t *w0 = a->w, *w1 = w0 + a->panel_bytes;
    const uint16_t *x0 = a->x, *x1 = x0 + ROWS * a->ld_x;
    const long ld_a = (long)a->ld_x * 2, ld_c = LD_OUT * 4;
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
        tile_load(6, w0, 64);
        tile_load(4, x0, ld_a);
        tile_dot_bf16(0, 4, 6);
        if (two) {
            tile_load(7, w1, 64);
            tile_dot_bf16(1, 4, 7);
        }
        tile_load(5, x1, ld_a);
        tile_dot_bf16(2, 5, 6);
        if (two)
            tile_dot_bf16(3, 5, 7);
        w0 += STRIP_BYTES;
        w1 += STRIP_BYTES;
        x0 += SL_BF16_K;
        x1 += SL_BF16_K;
    }
    tile_store(0, acc, ld_c);
    tile_store(2, acc1, ld_c);
    if (two) {
        tile_store(1, acc + 16, ld_c);
        tile_store(3, acc1 + 16, ld_c);
    }
}

/* One token tile times one to four panels. stream: the weights come from memory. */
static void block_1x4(const struct bf16_part *a, int n_panels, bool stream, float *acc)
{
    const size_t panel_bytes = a->panel_bytes;
    const uint8_t *w0 = a->w, *w1 = w0 + panel_bytes, *w2 = w1 + panel_bytes;
    const uint8_t *w3 = w2 + panel_bytes;
    const long ld_a = (long)a->ld_x * 2, ld_c = LD_OUT * 4;
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
    for (int64_t i = 0; i < a->n_strips; i++) {
        const int64_t at = i * STRIP_BYTES;
        for (int p = 0; stream && p < n_panels; p++)
            fetch_l1(w0 + (size_t)p * panel_bytes + at + AHEAD * STRIP_BYTES, STRIP_BYTES);
        tile_load(4, a->x + i * SL_BF16_K, ld_a);
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

/* All tokens times the part at *a, while the n_next strips behind it come from memory. */
static void bf16_part(struct bf16_part a, int n_panels, int64_t n_next, int n_tok, float *acc)
{
    const uint16_t *x = a.x;
    const uint8_t *w = a.w, *next = w + a.n_strips * STRIP_BYTES;
    const int64_t n_blocks = SL_CEIL_DIV(n_tok, 2 * ROWS);
    bf16_configure(ROWS, ROWS);
    for (int64_t i = 0; i < n_blocks; i++) {
        const int t = (int)i * 2 * ROWS, n = SL_MIN(n_tok - t, 2 * ROWS);
        const size_t from = (size_t)(n_next * 16 * i / n_blocks) * 64;
        const size_t to = (size_t)(n_next * 16 * (i + 1) / n_blocks) * 64;
        for (int p = 0; p < n_panels; p++)
            fetch_l2(next + (size_t)p * a.panel_bytes + from, to - from);
        if (n < 2 * ROWS)
            bf16_configure(SL_MIN(n, ROWS), n > ROWS ? n - ROWS : 0);
        a.x = x + t * a.ld_x;
        if (n <= ROWS) {
            block_1x4(&a, n_panels, false, acc + t * LD_OUT);
            continue;
        }
        for (int p = 0; p < n_panels; p += 2) {
            a.w = w + (size_t)p * a.panel_bytes;
            block_2x2(&a, SL_MIN(n_panels - p, 2), acc + t * LD_OUT + p * 16);
        }
        a.w = w;
    }
}

static void bf16_dot(const uint8_t *panels, size_t panel_bytes, int n_panels, int64_t k,
                     const uint16_t *x, int64_t ld_x, int n_tok, float *acc)
{
    const int64_t n_strips = SL_CEIL_DIV(k, SL_BF16_K);
    struct bf16_part a = {.w = panels, .panel_bytes = panel_bytes, .n_strips = n_strips};
    a.x = x;
    a.ld_x = ld_x;
    a.first = true;
    if (n_tok <= ROWS) {
        bf16_configure(n_tok, 0);
        block_1x4(&a, n_panels, true, acc);
    }
    for (int64_t i = 0; n_tok > ROWS && i < n_strips; i += PART) {
        a.n_strips = SL_MIN(n_strips - i, PART);
        bf16_part(a, n_panels, SL_MIN(n_strips - i - a.n_strips, PART), n_tok, acc);
        a.w += PART * STRIP_BYTES;
        a.x += PART * SL_BF16_K;
        a.first = false;
    }
    tile_release();
    tile_fence();
}
