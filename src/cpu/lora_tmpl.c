/* SPDX-License-Identifier: MIT
 * What an adapter adds to a row's outputs, in terms of the lanes of vec_*.h: sixteen outputs are a
 * vector, the panels of B are read from end to end, four at a time so that their chains of
 * multiply-adds overlap. Included by kernels_c.c, kernels_avx2.c and kernels_avx512.c, which say
 * how sixteen numbers of a format are loaded.
 */
#define LORA_LOAD_F32(p)  v_load((const float *)(const void *)(p))
#define LORA_LOAD_F16(p)  v_load_f16(p)
#define LORA_LOAD_BF16(p) v_load_bf16(p)

#define LORA(NAME, BYTES)                                                                         \
    INLINE void lora_panels_##NAME(const int n, const uint8_t *b, const float *s, int rank,       \
                                   v16 *sum)                                                      \
    {                                                                                             \
        const size_t panel = (size_t)rank * SL_LORA_PANEL * (BYTES);                              \
        for (int p = 0; p < n; p++)                                                               \
            sum[p] = v_set1(0.0f);                                                                \
        for (int j = 0; j < rank; j++, b += SL_LORA_PANEL * (BYTES)) {                            \
            const v16 sj = v_set1(s[j]);                                                          \
            for (int p = 0; p < n; p++)                                                           \
                sum[p] = v_fma(LORA_LOAD_##NAME(b + (size_t)p * panel), sj, sum[p]);              \
        }                                                                                         \
    }                                                                                             \
    static void k_lora_##NAME(const uint8_t *b, const float *s, int rank, int n_rows, float *out) \
    {                                                                                             \
        const size_t panel = (size_t)rank * SL_LORA_PANEL * (BYTES);                              \
        v16 sum[4];                                                                               \
        int i = 0;                                                                                \
        for (; i + 64 <= n_rows; i += 64, b += 4 * panel) {                                       \
            lora_panels_##NAME(4, b, s, rank, sum);                                               \
            for (int p = 0; p < 4; p++)                                                           \
                v_store(out + i + 16 * p, v_add(v_load(out + i + 16 * p), sum[p]));               \
        }                                                                                         \
        for (; i < n_rows; i += 16, b += panel) {                                                 \
            const int n = n_rows - i < 16 ? n_rows - i : 16;                                      \
            lora_panels_##NAME(1, b, s, rank, sum);                                               \
            if (n == 16)                                                                          \
                v_store(out + i, v_add(v_load(out + i), sum[0]));                                 \
            else                                                                                  \
                v_store_n(out + i, v_add(v_load_n(out + i, n), sum[0]), n);                       \
        }                                                                                         \
    }

LORA(F32, 4)
LORA(F16, 2)
LORA(BF16, 2)

static void fill_lora(struct sl_cpu_kernels *k)
{
    k->lora[SL_DTYPE_F32] = k_lora_F32;
    k->lora[SL_DTYPE_F16] = k_lora_F16;
    k->lora[SL_DTYPE_BF16] = k_lora_BF16;
}
