/* SPDX-License-Identifier: MIT
 * Rows are made in strips of eight, as many as a word of zeros or of AWQ codes holds, and in runs
 * of 32 columns, a block's piece: four words a row. Files that keep the codes of a column together
 * are walked along K, where the strip's words are a line's neighbours.
 */
#include "quant/int4_repack.h"

#include "base/check.h"
#include "quant/int4.h"

#include <string.h>

#define STRIP     SL_INT4_WORD
#define RUN_WORDS (SL_INT4_RUN / SL_INT4_WORD)
#define SCALE_MAX 0x1p100f /* no product of a code and a scale leaves the range of floats */

static uint32_t int4_repack_load_u32(const uint8_t *words, int64_t i)
{
    uint32_t v;
    memcpy(&v, words + 4 * i, sizeof v);
    return v;
}

/* Nibble i of word j becomes nibble j of word i. */
static void int4_repack_transpose(uint32_t w[STRIP])
{
    static const uint32_t masks[] = {0x0000FFFFu, 0x00FF00FFu, 0x0F0F0F0Fu};
    for (int step = 0, d = STRIP / 2; d > 0; step++, d /= 2) {
        for (int i = 0; i < STRIP; i++) {
            if ((i & d) != 0)
                continue;
            const uint32_t t = ((w[i] >> 4 * d) ^ w[i + d]) & masks[step];
            w[i + d] ^= t;
            w[i] ^= t << 4 * d;
        }
    }
}

/* Which nibble of an AWQ word a row of the strip is in. */
static int awq_slot(int row)
{
    return row / 2 + 4 * (row & 1);
}

/* The codes of columns 8 k8 .. 8 k8 + 7, a word for each of the strip's n rows. */
static void strip_words(const struct sl_int4_src *s, int64_t row, int n, int64_t k8,
                        uint32_t out[STRIP])
{
    uint32_t w[STRIP];
    switch (s->order) {
    case SL_INT4_GPTQ:
        memcpy(out, s->codes + 4 * (k8 * s->n_rows + row), sizeof w);
        break;
    case SL_INT4_AWQ:
        for (int i = 0; i < STRIP; i++)
            w[i] = int4_repack_load_u32(s->codes, ((8 * k8 + i) * s->n_rows + row) / 8);
        int4_repack_transpose(w);
        for (int i = 0; i < STRIP; i++)
            out[i] = w[awq_slot(i)];
        break;
    case SL_INT4_ROWS:
        for (int i = 0; i < n; i++)
            out[i] = int4_repack_load_u32(s->codes, (row + i) * (s->n_cols / 8) + k8);
        break;
    }
}

/* The zero points of a strip in group g. */
static void strip_zeros(const struct sl_int4_src *s, int64_t row, int64_t g, uint32_t out[STRIP])
{
    const int64_t n_groups = s->n_cols / s->group;
    uint32_t w = 0x88888888u;
    if (s->zeros != NULL && s->order == SL_INT4_ROWS)
        w = int4_repack_load_u32(s->zeros, row / 8 * n_groups + g);
    else if (s->zeros != NULL)
        w = int4_repack_load_u32(s->zeros, (g * s->n_rows + row) / 8);
    if (s->less_one)
        w += 0x11111111u;
    for (int i = 0; i < STRIP; i++)
        out[i] = w >> 4 * (s->order == SL_INT4_AWQ && s->zeros != NULL ? awq_slot(i) : i) & 15u;
}

static float int4_repack_scale_at(const struct sl_int4_src *s, int64_t row, int64_t g)
{
    const int64_t n_groups = s->n_cols / s->group;
    const int64_t i = s->order == SL_INT4_ROWS ? row * n_groups + g : g * s->n_rows + row;
    const uint16_t bits = sl_load_u16(s->scales + 2 * i);
    return s->scale_dtype == SL_DTYPE_F16 ? sl_f16_to_f32(bits) : sl_bf16_to_f32(bits);
}

/* Eight nibbles to the low halves of eight bytes. */
static uint64_t int4_repack_spread(uint64_t w)
{
    w = (w | w << 16) & 0x0000FFFF0000FFFFu;
    w = (w | w << 8) & 0x00FF00FF00FF00FFu;
    return (w | w << 4) & 0x0F0F0F0F0F0F0F0Fu;
}

static void put_run(const uint32_t w[RUN_WORDS], uint8_t *out)
{
    const uint64_t b[2] = {int4_repack_spread(w[0]) | int4_repack_spread(w[2]) << 4,
                           int4_repack_spread(w[1]) | int4_repack_spread(w[3]) << 4};
    memcpy(out, b, sizeof b);
}

/* One block of each of the strip's n rows; false and *bad: a scale that is no number. */
static bool strip_block(const struct sl_int4_src *s, const struct sl_dtype_info *info, int64_t row,
                        int n, int64_t block, uint8_t *out, size_t row_bytes, int64_t *bad)
{
    const int64_t col = block * info->block_elems, g = col / s->group;
    uint32_t zero[STRIP], w[RUN_WORDS][STRIP];
    out += (size_t)block * info->block_bytes;
    strip_zeros(s, row, g, zero);
    for (int i = 0; i < n; i++) {
        const float scale = int4_repack_scale_at(s, row + i, g);
        if (!(scale > -SCALE_MAX && scale < SCALE_MAX)) {
            *bad = row + i;
            return false;
        }
        sl_int4_store_head(out + (size_t)i * row_bytes, sl_int4_head(scale, zero[i]));
    }
    for (uint32_t k = 0; k < info->block_elems; k += SL_INT4_RUN) {
        for (int j = 0; j < RUN_WORDS; j++)
            strip_words(s, row, n, (col + k) / 8 + j, w[j]);
        for (int i = 0; i < n; i++)
            put_run((const uint32_t[RUN_WORDS]){w[0][i], w[1][i], w[2][i], w[3][i]},
                    out + (size_t)i * row_bytes + SL_INT4_HEAD + k / 2);
    }
    return true;
}

int64_t sl_int4_repack(const struct sl_int4_src *s, enum sl_dtype dtype, int64_t row, int64_t n,
                       uint8_t *out)
{
    const struct sl_dtype_info *info = sl_dtype_info(dtype);
    const int64_t n_blocks = s->n_cols / info->block_elems;
    const size_t row_bytes = (size_t)n_blocks * info->block_bytes;
    int64_t bad;
    SL_ASSERT(dtype == SL_DTYPE_INT4_G128 || dtype == SL_DTYPE_INT4_G32);
    SL_ASSERT(s->group % info->block_elems == 0 && s->n_cols % s->group == 0);
    SL_ASSERT(row % STRIP == 0 && row >= 0 && row + n <= s->n_rows);
    SL_ASSERT(s->order == SL_INT4_ROWS || s->n_rows % STRIP == 0);
    SL_ASSERT(s->scale_dtype == SL_DTYPE_F16 || s->scale_dtype == SL_DTYPE_BF16);
    for (int64_t b = 0; b < n_blocks; b++) {
        for (int64_t r = 0; r < n; r += STRIP) {
            const int n_strip = (int)SL_MIN(n - r, STRIP);
            if (!strip_block(s, info, row + r, n_strip, b, out + (size_t)r * row_bytes, row_bytes,
                             &bad))
                return bad;
        }
    }
    return -1;
}
