/* SPDX-License-Identifier: MIT
 * A tile of FP8 to one of BF16 in terms of the lanes of vec_avx2.h and vec_avx512.h, included by
 * attn_avx2.c and attn_avx512.c. A value is a BF16 number, so the upper half of its float is it.
 */

/* Sixteen numbers of two rows, times s and t, as pairs. */
INLINE void pair_rows(const uint8_t *a, const uint8_t *b, v16 s, v16 t, uint16_t *out)
{
    v16i x = v_bits(v_mul(v_load_fp8_e4m3(a), s)), y = v_bits(v_mul(v_load_fp8_e4m3(b), t));
    y = vi_and(y, vi_set1((int32_t)0xFFFF0000u));
    v_store((float *)(void *)out, v_from_bits(vi_or(vi_srl(x, 16), y)));
}

static void widen_fp8(bool keys, const uint8_t *tile, const uint8_t *ahead, int dim, uint16_t *out)
{
    const uint8_t *scales = tile + SL_KV_TILE * dim;
    const v16 all = v_load_bf16(scales);
    for (int i = 0; i < SL_KV_TILE * dim; i += 64)
        __builtin_prefetch(ahead + i, 0, 2);
    for (int d = 0; keys && d < dim; d += 2)
        pair_rows(tile + 16 * d, tile + 16 * d + 16, all, all, out + 16 * d);
    for (int i = 0; !keys && i < SL_KV_TILE; i += 2) {
        const v16 s = v_set1(sl_bf16_to_f32(sl_load_u16(scales + 2 * i)));
        const v16 t = v_set1(sl_bf16_to_f32(sl_load_u16(scales + 2 * i + 2)));
        for (int d = 0; d < dim; d += 16)
            pair_rows(tile + i * dim + d, tile + (i + 1) * dim + d, s, t, out + i * dim + 2 * d);
    }
}
