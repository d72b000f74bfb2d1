/* SPDX-License-Identifier: MIT
 * Bounds of pages times queries (sl_cpu_kernels.page_scores), for a file that has the lanes of a
 * vector. A product is one chain of fma for each lane, over the largest numbers and then over the
 * smallest, added up by v_sum: the same bits in C, AVX2 and AVX-512.
 *
 * A page's bounds come out of memory once for up to four queries. They lie in its page, so that the
 * next ones are asked for. At 131,072 positions in pages of 16 and 8 key heads of 128 all bounds of
 * a layer are 32 MB, a sixteenth of its keys and values.
 */
#define PAGE_QUERIES 4

INLINE v16 page_load(const bool wide, const uint8_t *p, int d)
{
    return wide ? v_load((const float *)(const void *)p + d) : v_load_bf16(p + d * 2);
}

/* The largest of `best` and n_q products. n_numbers: of both rows. */
INLINE float page_dots(const bool wide, const int n_q, const uint8_t *bounds, const float *q,
                       int n_numbers, float best)
{
    v16 sum[PAGE_QUERIES];
    for (int h = 0; h < n_q; h++)
        sum[h] = v_set1(0.0f);
    for (int d = 0; d < n_numbers; d += 16) {
        const v16 x = page_load(wide, bounds, d);
        for (int h = 0; h < n_q; h++)
            sum[h] = v_fma(x, v_load(q + h * n_numbers + d), sum[h]);
    }
    for (int h = 0; h < n_q; h++) {
        const float s = v_sum(sum[h]);
        best = s > best ? s : best;
    }
    return best;
}

INLINE void page_scores(const bool wide, const uint8_t *const *bounds, size_t at, int n,
                        const float *q, int n_q, int dim, bool more, float *out)
{
    const int n_numbers = 2 * dim, n_bytes = n_numbers * (wide ? 4 : 2);
    for (int i = 0; i < n; i++) {
        float best = more ? out[i] : -INFINITY;
        int h = 0;
        const uint8_t *b = bounds[i] + at;
        for (int line = 0; line < n_bytes; line += 64)
            __builtin_prefetch(bounds[i + SL_PAGES_AHEAD] + at + line);
        for (; h + PAGE_QUERIES <= n_q; h += PAGE_QUERIES)
            best = page_dots(wide, PAGE_QUERIES, b, q + h * n_numbers, n_numbers, best);
        for (; h < n_q; h++)
            best = page_dots(wide, 1, b, q + h * n_numbers, n_numbers, best);
        out[i] = best;
    }
}

static void page_scores_f32(const uint8_t *const *bounds, size_t at, int n, const float *q, int n_q,
                            int dim, bool more, float *out)
{
    page_scores(true, bounds, at, n, q, n_q, dim, more, out);
}

static void page_scores_bf16(const uint8_t *const *bounds, size_t at, int n, const float *q,
                             int n_q, int dim, bool more, float *out)
{
    page_scores(false, bounds, at, n, q, n_q, dim, more, out);
}

static void fill_page_scores(struct sl_cpu_kernels *k)
{
    k->page_scores[SL_DTYPE_F32] = page_scores_f32;
    k->page_scores[SL_DTYPE_BF16] = page_scores_bf16;
}
