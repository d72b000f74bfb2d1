/* SPDX-License-Identifier: MIT
 * Tiles of codes (quant/kv_codec.h) to BF16 in terms of the lanes of vec_avx2.h and vec_avx512.h,
 * included by attn_avx2.c and attn_avx512.c, which have widen_levels of their own: its tables are
 * of BF16 numbers. Here a number is a float whose upper half it is, so that of two positions (of
 * values) or two dimensions (of keys) one is shifted and the other is not.
 */

INLINE v16i code_words(const uint8_t *p, int n)
{
    const float *words = (const float *)(const void *)p;
    return v_bits(n < 16 ? v_load_n(words, n) : v_load(words));
}

INLINE void store_code_words(void *to, v16i words, int n)
{
    if (n < 16) /* a store with a mask takes long on some processors */
        v_store_n(to, v_from_bits(words), n);
    else
        v_store(to, v_from_bits(words));
}

/* n pairs of numbers. */
INLINE void store_code_pairs(uint16_t *out, v16 x, v16 y, int n)
{
    store_code_words(out, vi_or(vi_srl(v_bits(x), 16), v_bits(y)), n);
}

/* ---------------------------------------------------------------- whole numbers */

/* A code less its zero has few bits, so it is a BF16 number. */
INLINE v16 less_zero(v16i w, int shift, v16i zeros)
{
    return v_from_int(vi_sub(vi_and(code_shift(w, shift), vi_set1(15)), zeros));
}

static void widen_whole_keys(const struct sl_attn_codes *t, uint16_t *out)
{
    const v16i zeros = vi_and(code_words(t->scales, 16), vi_set1(15));
    for (int d = 0; d < t->dim; d += 8, out += 8 * SL_KV_TILE) {
        const v16i w = code_words(t->codes + d * SL_KV_TILE / 2, 16);
        for (int j = 0; j < 4; j++)
            store_code_pairs(out + 2 * SL_KV_TILE * j, less_zero(w, 4 * j, zeros),
                             less_zero(w, 4 * j + 16, zeros), 16);
    }
}

/* The sixteen numbers of a position, rounded to nearest even. */
INLINE v16 whole_table(const struct sl_kv_codec *c, const uint8_t *scale)
{
    static const uint8_t each[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const v16i numbers = vi_sub(vi_load_u8(each), vi_set1(sl_kv_codec_zero(c, scale)));
    const v16i x = v_bits(v_mul(v_from_int(numbers), v_set1(sl_kv_codec_scale(c, scale))));
    const v16i odd = vi_and(vi_srl(x, 16), vi_set1(1));
    return v_from_bits(
        vi_and(vi_add(vi_add(x, vi_set1(0x7FFF)), odd), vi_set1((int32_t)0xFFFF0000u)));
}

static void widen_whole(const struct sl_kv_codec *c, bool keys, const struct sl_attn_codes *t,
                        uint16_t *out)
{
    const uint8_t *codes = t->codes;
    if (keys)
        widen_whole_keys(t, out);
    for (int i = 0; !keys && i < SL_KV_TILE; i += 2) {
        const v16 first = whole_table(c, t->scales + i * c->scale_bytes);
        const v16 second = whole_table(c, t->scales + (i + 1) * c->scale_bytes);
        for (int d = 0, n; d < t->dim; d += 4 * n, codes += 4 * n) {
            n = SL_MIN(16, (t->dim - d) / 4);
            const v16i w = code_words(codes, n);
            for (int j = 0; j < 4; j++, out += 2 * n)
                store_code_pairs(out, code_look(first, code_shift(w, 4 * j)),
                                 code_look(second, code_shift(w, 4 * j + 16)), n);
        }
    }
}

/* ---------------------------------------------------------------- a scale for a block */

INLINE v16 level_table(const struct sl_kv_codec *c)
{
    float level[2 * SL_KV4_LEVELS];
    for (uint8_t i = 0; i < 2 * SL_KV4_LEVELS; i++)
        level[i] = sl_kv4_level(c->levels, i);
    return v_load(level);
}

static void widen_block_keys(v16 levels, const struct sl_attn_codes *t, uint16_t *out)
{
    for (int d = 0; d < t->dim; d += 8, out += 8 * SL_KV_TILE) {
        const v16i w = code_words(t->codes + d * SL_KV_TILE / 2, 16);
        const v16 scale = v_load_fp8_e4m3(t->scales + d / SL_KV_CODE_BLOCK * SL_KV_TILE);
        for (int j = 0; j < 4; j++)
            store_code_pairs(out + 2 * SL_KV_TILE * j,
                             v_mul(code_look(levels, code_shift(w, 4 * j)), scale),
                             v_mul(code_look(levels, code_shift(w, 4 * j + 16)), scale), 16);
    }
}

/* Each scale as often as it is used, so that a load gives those of any sixteen dimensions. */
static void spread_scales(const float *scales, int dim, float *out)
{
    for (int d = 0; d < dim; d += SL_KV_CODE_BLOCK, scales += SL_KV_TILE)
        v_store(out + d, v_set1(*scales));
}

static void widen_blocks(const struct sl_kv_codec *c, bool keys, const struct sl_attn_codes *t,
                         uint16_t *out)
{
    float scales[SL_MAX_HEAD_DIM], first[SL_MAX_HEAD_DIM + 16], second[SL_MAX_HEAD_DIM + 16];
    const uint8_t *codes = t->codes;
    const v16 levels = level_table(c);
    if (keys) {
        widen_block_keys(levels, t, out);
        return;
    }
    for (int d = 0; d < t->dim; d += SL_KV_CODE_BLOCK)
        v_store(scales + d, v_load_fp8_e4m3(t->scales + d));
    v_store(first + t->dim, v_set1(0.0f)); /* lanes that are loaded and not stored */
    v_store(second + t->dim, v_set1(0.0f));
    for (int i = 0; i < SL_KV_TILE; i += 2) {
        spread_scales(scales + i, t->dim, first);
        spread_scales(scales + i + 1, t->dim, second);
        for (int d = 0, n; d < t->dim; d += 4 * n, codes += 4 * n) {
            n = SL_MIN(16, (t->dim - d) / 4);
            const v16i w = code_words(codes, n);
            for (int j = 0; j < 4; j++, out += 2 * n)
                store_code_pairs(
                    out, v_mul(code_look(levels, code_shift(w, 4 * j)), v_load(first + d + n * j)),
                    v_mul(code_look(levels, code_shift(w, 4 * j + 16)), v_load(second + d + n * j)),
                    n);
        }
    }
}

/* ---------------------------------------------------------------- three bits, and scales */

/* As sl_attn_codes_of_three_c, sixteen words at a time. A byte of signs that is shifted leaves its
 * half of a word, by two bits that neither mask has. */
static void codes_of_three(const uint8_t *codes, int n_rows, int n, uint8_t *out)
{
    const v16i magnitude = vi_set1(0x33333333), sign = vi_set1((int32_t)0x88888888u);
    for (; n_rows > 0; n_rows--, codes += 6 * n, out += 8 * n)
        for (int i = 0; i < n; i += 16) {
            const int some = SL_MIN(16, n - i);
            const v16i m = code_words(codes + 4 * i, some);
            /* behind the last row's signs are 32 bytes of scales */
            const v16i b = v_bits(v_load_bf16(codes + 4 * n + 2 * i));
            v16i s = vi_or(vi_and(vi_srl(b, 16), vi_set1(0xFF)),
                           vi_and(vi_srl(b, 8), vi_set1(0xFF0000)));
            s = vi_or(s, vi_sll(s, 10));
            store_code_words(out + 4 * i, vi_or(vi_and(m, magnitude), vi_and(s, sign)), some);
            store_code_words(out + 4 * (n + i),
                             vi_or(vi_and(vi_srl(m, 2), magnitude), vi_and(vi_sll(s, 1), sign)),
                             some);
        }
}

static void scale_codes(const struct sl_kv_codec *c, const uint8_t *scales, int n_q, float *score)
{
    const v16 s = c->kind == SL_KV_VECTOR_F16
                      ? v_load_f16(scales)
                      : v_from_bits(vi_and(code_words(scales, 16), vi_set1(~15)));
    for (int q = 0; q < n_q; q++, score += SL_CPU_SPLIT)
        v_store(score, v_mul(v_load(score), s));
}

static void fill_codes(struct sl_attn_kernels *k)
{
    k->widen_fp8 = widen_fp8;
    k->widen_codes[SL_KV_VECTOR_F16] = widen_levels;
    k->widen_codes[SL_KV_VECTOR_ZERO] = widen_whole;
    k->widen_codes[SL_KV_BLOCK_E4M3] = widen_blocks;
    k->scale_codes = scale_codes;
    k->codes_of_three = codes_of_three;
}
