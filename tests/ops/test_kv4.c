/* SPDX-License-Identifier: MIT
 * Pages of codes of three and four bits: the rotation against the Hadamard matrix, levels against
 * the conditions of Lloyd and Max in double, tiles against the text of ops.h, and attention over
 * them by every instruction set, chunking, page size and thread count: against double precision,
 * against pages of BF16 with the same numbers, and the same bits whatever the way.
 */
#include "ops_util.h"

#include "cpu/attn.h"
#include "quant/fp8_e4m3.h"
#include "quant/kv_codec.h"

enum { MAX_DIM = 528 };

static char what[200];

static const int dims[] = {16, 32, 48, 64, 80, 96, 112, 128, 192, 256, MAX_DIM};
static const enum sl_dtype formats[] = {SL_KV_TURBO4, SL_KV_K8V4, SL_KV_TURBO3, SL_KV_INT4_HEAD,
                                        SL_KV_NVFP4};
/* those whose keys and values are rows of kv_codec.h */
static const enum sl_dtype coded[] = {SL_KV_TURBO4, SL_KV_TURBO3, SL_KV_INT4_HEAD, SL_KV_NVFP4};

/* ---------------------------------------------------------------- rotation */

static double dot(const float *x, const float *y, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)x[i] * (double)y[i];
    return sum;
}

/* Columns of the rotation: what becomes of unit vectors. */
static void matrix_of(int n, float *m)
{
    memset(m, 0, (size_t)(n * n) * sizeof *m);
    for (int i = 0; i < n; i++) {
        m[i * n + i] = 1.0f;
        sl_kv4_rotate(m + i * n, n);
    }
}

static void test_rotation(void **state)
{
    static float m[MAX_DIM * MAX_DIM];
    (void)state;
    for (size_t c = 0; c < SL_COUNT(dims); c++) {
        const int n = dims[c];
        const bool whole = (n & (n - 1)) == 0;
        matrix_of(n, m);
        for (int i = 0; i < n; i++) {
            for (int j = 0; j < n; j++) {
                assert_true(fabs(dot(m + i * n, m + j * n, n) - (i == j)) < 1e-6);
                /* of a power of two: signs times Sylvester's matrix by 1 / sqrt(n) */
                const int sign = __builtin_popcount((unsigned)(i & j)) % 2 != 0 ? -1 : 1;
                if (whole)
                    assert_true(fabs((double)(m[i * n + j] * (float)sign) * sqrt(n) -
                                     (m[i * n] > 0 ? 1 : -1)) < 1e-6);
            }
            float x[MAX_DIM];
            memcpy(x, m + i * n, (size_t)n * sizeof *x);
            sl_kv4_rotate_back(x, n);
            for (int j = 0; j < n; j++)
                assert_true(fabsf(x[j] - (i == j)) < 1e-6f);
        }
        float one[MAX_DIM]; /* equal numbers become no large one */
        for (int j = 0; j < n; j++)
            one[j] = 1.0f;
        sl_kv4_rotate(one, n);
        for (int j = 0; j < n && n >= 64; j++)
            assert_true((double)fabsf(one[j]) < 0.5 * sqrt(n));
    }
}

/* ---------------------------------------------------------------- codes */

static double normal_above(double x)
{
    return 0.5 * erfc(x / sqrt(2.0));
}

static double normal_density(double x)
{
    return exp(-x * x / 2) / sqrt(2 * acos(-1.0));
}

/* A level is the mean of the numbers that are nearest to it. */
static void check_levels(const struct sl_kv4 *kv4, int n)
{
    assert_int_equal(kv4->n, n);
    for (uint8_t i = 0; i < n; i++) {
        const double at = (double)sl_kv4_level(kv4, i);
        const double from = i == 0 ? 0 : (at + (double)sl_kv4_level(kv4, i - 1)) / 2;
        const double to = i == n - 1 ? 40 : (at + (double)sl_kv4_level(kv4, i + 1)) / 2;
        const double mean =
            (normal_density(from) - normal_density(to)) / (normal_above(from) - normal_above(to));
        assert_true(fabs(mean - at) < at / 128);
        assert_true(sl_kv4_level(kv4, i + SL_KV4_SIGN) == -sl_kv4_level(kv4, i));
    }
}

static void test_levels(void **state)
{
    (void)state;
    assert_null(sl_kv4_of(SL_DTYPE_BF16));
    assert_null(sl_kv4_of(SL_KV_K8V4)); /* its keys and its values have formats */
    check_levels(sl_kv4_of(SL_KV_TURBO4), 8);
    check_levels(sl_kv4_of(SL_KV_TURBO3), 4);
}

/* mse: of normal numbers, in parts of their variance, which the length's correction changes */
static void check_encode(const struct sl_kv4 *kv4, double mse)
{
    enum { N = 128, VECTORS = 2000 };
    struct sl_rng rng = {5, 0};
    double err = 0, power = 0;
    float x[N];
    uint8_t codes[N];
    for (int v = 0; v < VECTORS; v++) {
        const double size = ldexp(1.0, v % 20 - 10);
        for (int i = 0; i < N; i++)
            x[i] = (float)(size * sl_rng_normal(&rng));
        const double unit = sqrt(dot(x, x, N) / N);
        const float scale = sl_f16_to_f32(sl_kv4_encode(kv4, x, N, codes));
        double got = 0;
        for (int i = 0; i < N; i++) {
            const double level = (double)sl_kv4_level(kv4, codes[i]);
            for (uint8_t c = 0; c < 16; c++) /* no other is nearer */
                assert_true(c % SL_KV4_SIGN >= kv4->n ||
                            fabs((double)x[i] - level * unit) <=
                                fabs((double)x[i] - (double)sl_kv4_level(kv4, c) * unit) +
                                    1e-6 * unit);
            got += level * level * (double)(scale * scale);
            err += pow(((double)x[i] - level * (double)scale) / unit, 2);
            power += 1;
        }
        /* the scale, and so the length, is rounded to F16 */
        assert_true(fabs(sqrt(got) - unit * sqrt(N)) < unit * sqrt(N) * 0x1p-11 + 1e-12);
    }
    assert_true(fabs(err / power - mse) < 0.03 * mse);
    const float tops[] = {0.0f, 1e-30f, 1e30f, INFINITY, NAN};
    for (size_t t = 0; t < SL_COUNT(tops); t++) {
        for (int i = 0; i < N; i++)
            x[i] = i == 3 ? tops[t] : 0.0f;
        const float scale = sl_f16_to_f32(sl_kv4_encode(kv4, x, N, codes));
        assert_true(t < 2 ? scale == 0.0f : t == 2 ? scale == 65504.0f : isnan(scale));
    }
}

static void test_encode(void **state)
{
    (void)state;
    check_encode(sl_kv4_of(SL_KV_TURBO4), 0.0093);
    check_encode(sl_kv4_of(SL_KV_TURBO3), 0.0345);
}

/* ---------------------------------------------------------------- tiles, by the text of ops.h */

static uint32_t word_at(const uint8_t *tile, int i)
{
    uint32_t w;
    memcpy(&w, tile + 4 * i, sizeof w);
    return w;
}

/* Where a four-bit code is: the word, and its first bit in it. */
static int code_place(bool is_v, int dim, int slot, int d, int *shift)
{
    if (!is_v) {
        *shift = d % 8 / 2 * 4 + d % 2 * 16;
        return d / 8 * 16 + slot;
    }
    const int base = d / 64 * 64, n = SL_MIN(16, (dim - base) / 4), i = d - base;
    *shift = i / n * 4 + slot % 2 * 16;
    return slot / 2 * (dim / 4) + base / 4 + i % n;
}

static uint8_t code_at(enum sl_dtype t, const uint8_t *tile, bool is_v, int dim, int slot, int d)
{
    int shift;
    const int at = code_place(is_v, dim, slot, d, &shift);
    if (t != SL_KV_TURBO3)
        return word_at(tile, at) >> shift & 15;
    /* a row of 2 n words is n words of magnitudes, those of the first n two bits below the others',
     * and a byte of signs for both halves of two words */
    static const int sign_bits[2][4] = {{3, 7, 1, 5}, {2, 6, 0, 4}};
    const int n = is_v ? dim / 8 : 16, i = at % (2 * n), second = i >= n;
    const uint8_t *row = tile + at / (2 * n) * 6 * n;
    const uint32_t magnitude = word_at(row, i % n) >> (shift + 2 * second) & 3;
    const uint8_t signs = row[4 * n + 2 * (i % n) + shift / 16];
    return (uint8_t)(magnitude | (signs >> sign_bits[second][shift % 16 / 4] & 1u) * SL_KV4_SIGN);
}

/* The scale of a dimension of a position. */
static uint8_t *scale_at(enum sl_dtype t, uint8_t *tile, int dim, int slot, int d)
{
    uint8_t *scales = tile + (t == SL_KV_TURBO3 ? 6 : 8) * dim;
    return t == SL_KV_NVFP4       ? scales + d / 16 * 16 + slot
           : t == SL_KV_INT4_HEAD ? scales + 4 * slot
                                  : scales + 2 * slot;
}

static void random_tile(struct sl_rng *rng, enum sl_dtype t, uint8_t *tile, int dim)
{
    for (size_t i = 0; i < sl_kv_tile_bytes(t, dim); i++)
        tile[i] = (uint8_t)sl_rng_next(rng);
    for (int i = 0; i < SL_KV_TILE * dim; i++) {
        const float scale = (float)(0.1 + 3 * fabs(sl_rng_normal(rng)));
        const uint32_t bits = (sl_f32_bits(scale) & ~15u) | (uint32_t)sl_rng_below(rng, 16);
        uint8_t *to = scale_at(t, tile, dim, i / dim, i % dim);
        if (t == SL_KV_NVFP4)
            *to = sl_f32_to_fp8_e4m3(scale);
        else if (t == SL_KV_INT4_HEAD)
            memcpy(to, &bits, sizeof bits);
        else
            sl_store_u16(to, sl_f32_to_f16(scale));
    }
}

/* What a code stands for, by the text of kv_codec.h; with_scale: keys have theirs elsewhere. */
static float number_at(enum sl_dtype t, const uint8_t *tile, bool is_v, int dim, int slot, int d,
                       bool with_scale)
{
    static const float e2m1[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    const uint8_t code = code_at(t, tile, is_v, dim, slot, d);
    const uint8_t *at = scale_at(t, (uint8_t *)(uintptr_t)tile, dim, slot, d);
    float scale;
    if (t == SL_KV_NVFP4)
        return (code < 8 ? e2m1[code] : -e2m1[code - 8]) * sl_fp8_e4m3_to_f32(*at);
    if (t == SL_KV_INT4_HEAD) {
        uint32_t bits;
        memcpy(&bits, at, sizeof bits);
        scale = sl_f32_of_bits(bits & ~15u);
        return (float)(code - (int)(bits & 15)) * (with_scale ? scale : 1.0f);
    }
    return sl_kv4_level(sl_kv4_of(t), code) * (with_scale ? sl_f16_to_f32(sl_load_u16(at)) : 1.0f);
}

/* A vector's place in a tile has its codes and its scales, and no other bit changes; of no byte do
 * two positions have a part. */
static void check_store(struct sl_rng *rng, enum sl_dtype t, int dim, bool is_v)
{
    const struct sl_kv_codec *c = sl_kv_codec_of(t);
    uint8_t tile[SL_KV_TILE * (MAX_DIM / 2 + MAX_DIM / 16)], before[sizeof tile];
    uint8_t codes[MAX_DIM], scales[MAX_DIM / 16], owner[sizeof tile];
    const size_t n_bytes = sl_kv_tile_bytes(t, dim);
    float x[MAX_DIM];
    memset(owner, 0xFF, sizeof owner);
    random_tile(rng, t, tile, dim);
    for (int slot = 0; slot < SL_KV_TILE; slot++) {
        for (int i = 0; i < dim; i++)
            x[i] = (float)sl_rng_normal(rng);
        memcpy(before, tile, sizeof tile);
        (is_v ? sl_attn_store_v : sl_attn_store_k)(t, x, dim, tile, slot);
        if (c->rotated)
            sl_kv4_rotate(x, dim);
        c->encode(c->levels, x, dim, codes, scales);
        for (int s = 0; s < SL_KV_TILE; s++)
            for (int d = 0; d < dim; d++) {
                assert_int_equal(code_at(t, tile, is_v, dim, s, d),
                                 s == slot ? codes[d] : code_at(t, before, is_v, dim, s, d));
                const uint8_t *want = s != slot          ? scale_at(t, before, dim, s, d)
                                      : t == SL_KV_NVFP4 ? scales + d / 16
                                                         : scales;
                assert_memory_equal(scale_at(t, tile, dim, s, d), want, c->scale_bytes);
            }
        for (size_t i = 0; i < n_bytes; i++)
            if (tile[i] != before[i]) {
                assert_true(owner[i] == 0xFF);
                owner[i] = (uint8_t)slot;
            }
    }
}

static void test_store(void **state)
{
    struct sl_rng rng = {6, 0};
    (void)state;
    for (size_t i = 0; i < 2 * SL_COUNT(dims) * SL_COUNT(coded); i++)
        check_store(&rng, coded[i / 2 / SL_COUNT(dims)], dims[i / 2 % SL_COUNT(dims)], i % 2 != 0);
}

/* Number d of a position of a tile made BF16. */
static uint16_t wide_at(const uint16_t *wide, bool is_v, int dim, int slot, int d)
{
    return is_v ? wide[(slot / 2 * dim + d) * 2 + slot % 2]
                : wide[(d / 2 * SL_KV_TILE + slot) * 2 + d % 2];
}

/* A tile made BF16 by an instruction set: four-bit codes first, if they are of three. */
static void widen(int isa, enum sl_dtype t, bool is_v, const uint8_t *tile, int dim, uint16_t *out)
{
    uint8_t four[8 * MAX_DIM + 64];
    const struct sl_kv_codec *c = sl_kv_codec_of(t);
    const struct sl_attn_kernels *k = &sl_cpu(backend(isa, 1))->attn;
    const struct sl_attn_codes a = {c->bits == 3 ? four : tile, tile + 2 * dim * c->bits, dim};
    memset(four, 0xA5, sizeof four);
    if (c->bits == 3)
        k->codes_of_three(tile, is_v ? 8 : dim / 16, is_v ? dim / 8 : 16, four);
    for (int i = 0; i < 64; i++)
        assert_int_equal(four[8 * dim + i], 0xA5);
    k->widen_codes[c->kind](c, !is_v, &a, out);
}

static void check_widen(struct sl_rng *rng, int isa, enum sl_dtype t, int dim, bool is_v)
{
    static _Alignas(64) uint16_t wide[SL_KV_TILE * MAX_DIM + 32];
    const size_t n_bytes = sl_kv_tile_bytes(t, dim);
    uint8_t *tile = sl_malloc(n_bytes); /* what is read beside it, a sanitizer sees */
    const uint32_t none = 0, nan = 0x7FC00000;
    assert_non_null(tile);
    random_tile(rng, t, tile, dim);
    memcpy(scale_at(t, tile, dim, 5, 0),
           t == SL_KV_INT4_HEAD ? (const uint8_t *)&nan
           : t == SL_KV_NVFP4   ? (const uint8_t[]){0x7F}
                                : (const uint8_t[]){0, 0x7E},
           sl_kv_codec_of(t)->scale_bytes);
    memcpy(scale_at(t, tile, dim, 6, 0), &none, sl_kv_codec_of(t)->scale_bytes);
    memset(wide, 0xA5, sizeof wide);
    widen(isa, t, is_v, tile, dim, wide);
    for (int i = 0; i < SL_KV_TILE * dim; i++) {
        const float x = number_at(t, tile, is_v, dim, i / dim, i % dim, is_v);
        const uint16_t got = wide_at(wide, is_v, dim, i / dim, i % dim);
        if (isnan(x) ? !isnan(sl_bf16_to_f32(got)) : got != sl_f32_to_bf16(x))
            fail_msg("%s, %s, %s of %d: position %d dimension %d is %a, not %a",
                     sl_dtype_info(t)->name, isa_names[isa], is_v ? "values" : "keys", dim, i / dim,
                     i % dim, (double)sl_bf16_to_f32(got), (double)x);
    }
    for (int i = 0; i < 32; i++)
        assert_int_equal(wide[SL_KV_TILE * dim + i], 0xA5A5);
    sl_free(tile);
}

static void test_widen(void **state)
{
    struct sl_rng rng = {7, 0};
    (void)state;
    for (size_t c = 0; c < 2 * SL_COUNT(dims) * SL_COUNT(coded); c++)
        for (int isa = 0; isa < N_ISAS; isa++)
            if (isa_available(isa))
                check_widen(&rng, isa, coded[c / 2 / SL_COUNT(dims)], dims[c / 2 % SL_COUNT(dims)],
                            c % 2 != 0);
}

/* A scale that is not finite is seen in each place, and a cleaned tile has none. */
static void test_clean(void **state)
{
    enum { DIM = 48 };
    struct sl_rng rng = {8, 0};
    uint8_t tile[SL_KV_TILE * DIM], out[sizeof tile];
    uint16_t wide[SL_KV_TILE * DIM];
    (void)state;
    for (size_t f = 0; f < SL_COUNT(coded) * DIM * SL_KV_TILE; f++) {
        const enum sl_dtype t = coded[f / DIM / SL_KV_TILE];
        const int slot = (int)(f % SL_KV_TILE), d = (int)(f / SL_KV_TILE % DIM);
        random_tile(&rng, t, tile, DIM);
        assert_true(sl_attn_finite(t, tile, DIM));
        memset(scale_at(t, tile, DIM, slot, d), 0xFF, sl_kv_codec_of(t)->scale_bytes);
        assert_false(sl_attn_finite(t, tile, DIM));
        sl_attn_clean(t, tile, DIM, 3, 9, out);
        assert_int_equal(sl_attn_finite(t, out, DIM), slot < 3 || slot >= 9);
        widen(0, t, true, out, DIM, wide);
        for (int s = 0; s < SL_KV_TILE; s++) {
            const float x = sl_bf16_to_f32(wide_at(wide, true, DIM, s, d));
            assert_true(s >= 3 && s < 9 ? s == slot || x == sl_bf16_to_f32(sl_f32_to_bf16(number_at(
                                                                t, tile, true, DIM, s, d, true)))
                                        : x == 0.0f);
        }
    }
}

/* ---------------------------------------------------------------- attention */

struct scene {
    enum sl_dtype kv;
    int n, n_heads, n_kv, dim; /* tokens, heads, key heads, their dimensions */
    int window;
    float *q, *k, *v;
};

struct way { /* nothing of it may show */
    int isa, n_threads, block, chunk, n_mates;
};

static struct scene scene_make(enum sl_dtype kv, int n, int n_heads, int n_kv, int dim, int window)
{
    struct sl_rng rng = {(uint64_t)dim, 9};
    struct scene s = {kv, n, n_heads, n_kv, dim, window, NULL, NULL, NULL};
    s.q = floats(&rng, (size_t)(n * n_heads * dim), 1.5);
    s.k = floats(&rng, (size_t)(n * n_kv * dim), 1.5);
    s.v = floats(&rng, (size_t)(n * n_kv * dim), 1.0);
    for (int i = 0; i < n * n_kv; i++) /* dimensions that stand out, as models have them */
        s.k[i * dim + 1] *= 4.0f;
    return s;
}

static void scene_free(struct scene *s)
{
    sl_free(s->q);
    sl_free(s->k);
    sl_free(s->v);
}

struct pages {
    uint8_t *memory;
    size_t n_bytes;
    struct sl_kv_view view;
    int32_t *table; /* mates' pages, then the sequence's */
};

static struct pages pages_make(const struct scene *s, const struct way *w)
{
    struct pages p = {0};
    const size_t n_tiles = (size_t)(s->n_kv * w->block / SL_KV_TILE);
    const size_t keys = n_tiles * sl_kv_tile_bytes(sl_kv_keys(s->kv), s->dim);
    const size_t values = n_tiles * sl_kv_tile_bytes(sl_kv_values(s->kv), s->dim);
    const int n_pages = SL_CEIL_DIV(s->n, w->block) + w->n_mates;
    p.n_bytes = (size_t)n_pages * (keys + values);
    p.memory = sl_aligned_alloc(p.n_bytes);
    p.table = sl_malloc((size_t)n_pages * sizeof *p.table);
    assert_true(p.memory != NULL && p.table != NULL);
    memset(p.memory, 0xFF, p.n_bytes); /* scales are NaN */
    p.view = (struct sl_kv_view){p.memory, keys + values, 0, keys, s->kv, w->block, 0, 0, 0};
    for (int i = 0; i < n_pages; i++)
        p.table[i] = n_pages - 1 - i;
    return p;
}

static void pages_free(struct pages *p)
{
    sl_aligned_free(p->memory, p->n_bytes);
    sl_free(p->table);
}

/* Tokens [first, first + n) in one step behind n_mates spans of the first token. */
static void scene_step(const struct scene *s, const struct way *w, const struct pages *p, int first,
                       int n, float *out)
{
    const int q_row = s->n_heads * s->dim, kv_row = s->n_kv * s->dim, n_tokens = n + w->n_mates;
    struct sl_backend *be = backend(w->isa, w->n_threads);
    int32_t *positions = sl_calloc((size_t)n_tokens, sizeof *positions);
    struct sl_span *spans = sl_calloc((size_t)w->n_mates + 1, sizeof *spans);
    float *q = sl_malloc((size_t)(n_tokens * q_row) * sizeof *q);
    float *k = sl_malloc((size_t)(n_tokens * kv_row) * sizeof *k);
    float *v = sl_malloc((size_t)(n_tokens * kv_row) * sizeof *v);
    float *o = sl_malloc((size_t)(n_tokens * q_row) * sizeof *o);
    assert_true(positions && spans && q && k && v && o);
    for (int t = 0; t < n_tokens; t++) {
        const int from = t < w->n_mates ? 0 : first + t - w->n_mates;
        positions[t] = from;
        memcpy(q + t * q_row, s->q + from * q_row, (size_t)q_row * sizeof *q);
        memcpy(k + t * kv_row, s->k + from * kv_row, (size_t)kv_row * sizeof *k);
        memcpy(v + t * kv_row, s->v + from * kv_row, (size_t)kv_row * sizeof *v);
    }
    for (int i = 0; i < w->n_mates; i++)
        spans[i] = (struct sl_span){.first = i, .n = 1, .table_idx = i};
    spans[w->n_mates] = (struct sl_span){w->n_mates, n, first, w->n_mates, 0};
    struct sl_batch b = {.n_tokens = n_tokens,
                         .n_spans = w->n_mates + 1,
                         .positions = positions,
                         .spans = spans,
                         .block_tables = p->table};
    be->vt->qk_norm_rope_kv_store(be, &(struct sl_op_qk_norm_rope_kv_store){.batch = &b,
                                                                            .q = q,
                                                                            .k = k,
                                                                            .v = v,
                                                                            .ld_q = q_row,
                                                                            .ld_k = kv_row,
                                                                            .ld_v = kv_row,
                                                                            .n_heads = s->n_heads,
                                                                            .n_kv_heads = s->n_kv,
                                                                            .head_dim = s->dim,
                                                                            .kv = p->view});
    be->vt->attention(be, &(struct sl_op_attention){.batch = &b,
                                                    .q = q,
                                                    .ld_q = q_row,
                                                    .n_heads = s->n_heads,
                                                    .n_kv_heads = s->n_kv,
                                                    .head_dim = s->dim,
                                                    .scale = 1.0f / sqrtf((float)s->dim),
                                                    .window = s->window,
                                                    .kv = p->view,
                                                    .out = o,
                                                    .ld_out = q_row});
    memcpy(out + first * q_row, o + w->n_mates * q_row, (size_t)(n * q_row) * sizeof *out);
    sl_free(positions);
    sl_free(spans);
    sl_free(q);
    sl_free(k);
    sl_free(v);
    sl_free(o);
}

static struct pages scene_run(const struct scene *s, const struct way *w, float *out)
{
    struct pages p = pages_make(s, w);
    for (int first = 0, n; first < s->n; first += n) {
        n = SL_MIN(w->chunk, s->n - first);
        scene_step(s, w, &p, first, n, out);
    }
    return p;
}

static const uint8_t *tile_of(const struct scene *s, const struct pages *p, bool is_v, int pos,
                              int head)
{
    const enum sl_dtype t = is_v ? sl_kv_values(s->kv) : sl_kv_keys(s->kv);
    const int bs = p->view.block_size;
    const size_t tile = (size_t)(head * (bs / SL_KV_TILE) + pos % bs / SL_KV_TILE);
    return p->memory + (size_t)p->table[pos / bs] * p->view.page_bytes +
           (is_v ? p->view.v_offset : 0) + tile * sl_kv_tile_bytes(t, s->dim);
}

/* What a page holds of a position: rotated if its format is. */
static void stored(const struct scene *s, const struct pages *p, bool is_v, int pos, int head,
                   double *out)
{
    const uint8_t *tile = tile_of(s, p, is_v, pos, head);
    const enum sl_dtype t = is_v ? sl_kv_values(s->kv) : sl_kv_keys(s->kv);
    const int dim = sl_kv_padded_dim(s->dim), slot = pos % SL_KV_TILE;
    for (int d = 0; d < dim; d++)
        if (t == SL_DTYPE_FP8_E4M3)
            out[d] = (double)(sl_fp8_e4m3_to_f32(tile[is_v ? slot * dim + d : d * 16 + slot]) *
                              sl_bf16_to_f32(sl_load_u16(tile + 16 * dim + 2 * slot)));
        else if (is_v)
            out[d] = (double)sl_bf16_to_f32(
                sl_f32_to_bf16(number_at(t, tile, true, dim, slot, d, true)));
        else
            out[d] = (double)number_at(t, tile, false, dim, slot, d, true);
}

/* In double: numbers of a page back to what they are of, by the matrix of the rotation. */
static void turn_back(const float *m, int dim, double *x)
{
    double y[MAX_DIM];
    for (int i = 0; i < dim; i++) {
        y[i] = 0;
        for (int j = 0; j < dim; j++)
            y[i] += (double)m[i * dim + j] * x[j];
    }
    memcpy(x, y, (size_t)dim * sizeof *x);
}

/* Attention over what the pages hold (NULL: over the keys and values themselves). */
static void oracle(const struct scene *s, const struct pages *p, double *out)
{
    static float m[MAX_DIM * MAX_DIM];
    const int dim = sl_kv_padded_dim(s->dim), group = s->n_heads / s->n_kv;
    double *k = sl_calloc((size_t)(s->n * s->n_kv * dim), sizeof *k);
    double *v = sl_calloc((size_t)(s->n * s->n_kv * dim), sizeof *v), *e = sl_malloc(8192);
    assert_true(k != NULL && v != NULL && e != NULL && s->n <= 1024);
    matrix_of(dim, m);
    for (int i = 0; i < s->n * s->n_kv; i++) {
        for (int d = 0; d < s->dim; d++) {
            k[i * dim + d] = (double)s->k[i * s->dim + d];
            v[i * dim + d] = (double)s->v[i * s->dim + d];
        }
        for (int is_v = 0; is_v < 2 && p != NULL; is_v++) {
            double *x = (is_v ? v : k) + i * dim;
            stored(s, p, is_v != 0, i / s->n_kv, i % s->n_kv, x);
            if (sl_attn_rotated(is_v ? sl_kv_values(s->kv) : sl_kv_keys(s->kv)))
                turn_back(m, dim, x);
        }
    }
    for (int r = 0; r < s->n * s->n_heads; r++) {
        const int t = r / s->n_heads, h = r % s->n_heads / group;
        const int from = s->window > 0 ? SL_MAX(t - s->window + 1, 0) : 0;
        double sum = 0, top = -INFINITY;
        for (int j = from; j <= t; j++) {
            e[j] = 0;
            for (int d = 0; d < s->dim; d++)
                e[j] += (double)s->q[r * s->dim + d] * k[(j * s->n_kv + h) * dim + d];
            e[j] /= sqrt(s->dim);
            top = fmax(top, e[j]);
        }
        for (int j = from; j <= t; j++)
            sum += e[j] = exp(e[j] - top);
        for (int d = 0; d < s->dim; d++) {
            double o = 0;
            for (int j = from; j <= t; j++)
                o += e[j] * v[(j * s->n_kv + h) * dim + d];
            out[r * s->dim + d] = o / sum;
        }
    }
    sl_free(k);
    sl_free(v);
    sl_free(e);
}

static double nmse(const float *x, const double *want, int n)
{
    double err = 0, power = 0;
    for (int i = 0; i < n; i++) {
        err += ((double)x[i] - want[i]) * ((double)x[i] - want[i]);
        power += want[i] * want[i];
    }
    return err / power;
}

static void equal_bits(const float *a, const float *b, int n)
{
    for (int i = 0; i < n; i++)
        if (sl_f32_bits(a[i]) != sl_f32_bits(b[i]) && !(isnan(a[i]) && isnan(b[i])))
            fail_msg("%s: element %d: %a is not %a", what, i, (double)a[i], (double)b[i]);
}

static const struct way ways[] = {{0, 1, 16, 1 << 20, 0}, {0, 1, 16, 7, 0},   {0, 2, 16, 1, 0},
                                  {0, 2, 64, 64, 2},      {0, 3, 48, 33, 1},  {0, 8, 16, 100, 3},
                                  {0, 2, 256, 1, 0},      {0, 1, 256, 256, 8}};

/* Nothing of a way shows, and no instruction set of a route. */
static void check_scene(const struct scene *s)
{
    const int n = s->n * s->n_heads * s->dim;
    float *first = NULL, *out = sl_malloc((size_t)n * sizeof *out);
    double *want = sl_malloc((size_t)n * sizeof *want);
    const char *route = "";
    assert_true(out != NULL && want != NULL);
    for (int isa = 0; isa < N_ISAS; isa++) {
        if (!isa_available(isa))
            continue;
        const char *name = sl_cpu(backend(isa, 1))->attn.name[SL_DTYPE_BF16];
        for (size_t i = 0; i < SL_COUNT(ways); i++) {
            if ((isa == 0 && i > 3) ||
                (isa == 3 && i > 0)) /* C is slow, VNNI has the kernels of 2 */
                continue;
            struct way w = ways[i];
            w.isa = isa;
            snprintf(what, sizeof what, "%s %d tokens of %d, %s, way %zu",
                     sl_dtype_info(s->kv)->name, s->n, s->dim, isa_names[isa], i);
            struct pages p = scene_run(s, &w, out);
            if (first == NULL || strcmp(name, route) != 0) {
                oracle(s, &p, want);
                const double err = nmse(out, want, n);
                if (!(err < (strcmp(name, "float") == 0 ? 1e-11 : 6e-5)))
                    fail_msg("%s: NMSE %g", what, err);
                oracle(s, NULL, want); /* what codes cost */
                const double lost = nmse(out, want, n);
                if (!(lost < (s->kv == SL_KV_K8V4 ? 0.02 : s->kv == SL_KV_TURBO3 ? 0.3 : 0.1)))
                    fail_msg("%s: NMSE %g to what was stored", what, lost);
                sl_free(first);
                first = out;
                out = sl_malloc((size_t)n * sizeof *out);
                assert_non_null(out);
                route = name;
            } else {
                equal_bits(out, first, n);
            }
            pages_free(&p);
        }
    }
    sl_free(first);
    sl_free(out);
    sl_free(want);
}

static void test_attention(void **state)
{
    static const int shapes[][5] = {/* tokens, heads, key heads, dimensions, window */
                                    {270, 4, 2, 64, 0},  {90, 6, 2, 48, 0},  {530, 2, 1, 32, 37},
                                    {60, 8, 1, 128, 0},  {33, 10, 2, 96, 0}, {40, 3, 1, 21, 0},
                                    {20, 70, 1, 112, 0}, {18, 4, 1, 520, 0}, {30, 4, 4, 80, 0}};
    (void)state;
    for (size_t i = 0; i < SL_COUNT(shapes) * SL_COUNT(formats); i++) {
        const int *c = shapes[i / SL_COUNT(formats)];
        struct scene s = scene_make(formats[i % SL_COUNT(formats)], c[0], c[1], c[2], c[3], c[4]);
        check_scene(&s);
        scene_free(&s);
    }
}

/* Keys and values of pages of BF16 whose numbers are those of pages of four bits with scales that
 * are powers of two: the same products, but for where the output is divided and turned back. */
static void test_as_bf16(void **state)
{
    enum { N = 64, DIM = 64, HEADS = 4 };
    struct sl_rng rng = {11, 0};
    float out[N * HEADS * DIM], plain[N * HEADS * DIM];
    (void)state;
    for (int isa = 0; isa < N_ISAS; isa++) {
        if (!isa_available(isa))
            continue;
        struct scene s = scene_make(SL_KV_TURBO4, N, HEADS, 1, DIM, 0);
        struct way w = {isa, 1, 16, N, 0};
        struct pages p = scene_run(&s, &w, out); /* fills pages; then their scales are replaced */
        struct scene b = scene_make(SL_DTYPE_BF16, N, HEADS, 1, DIM, 0);
        for (int i = 0; i < N; i++)
            for (int is_v = 0; is_v < 2; is_v++) {
                uint8_t *tile = (uint8_t *)(uintptr_t)tile_of(&s, &p, is_v != 0, i, 0);
                double x[DIM];
                sl_store_u16(tile + 8 * DIM + 2 * (i % 16),
                             sl_f32_to_f16((float)ldexp(1.0, (int)sl_rng_below(&rng, 4) - 1)));
                stored(&s, &p, is_v != 0, i, 0, x);
                for (int d = 0; d < DIM; d++)
                    (is_v ? b.v : b.k)[i * DIM + d] = (float)x[d];
            }
        for (int i = 0; i < N * HEADS; i++)
            sl_kv4_rotate(b.q + i * DIM, DIM);
        struct pages q = scene_run(&b, &w, plain);
        for (int i = 0; i < N * HEADS; i++)
            sl_kv4_rotate_back(plain + i * DIM, DIM);
        /* attention alone, over the pages as they are now */
        struct sl_span span = {.n = N};
        struct sl_batch batch = {
            .n_tokens = N, .n_spans = 1, .spans = &span, .block_tables = p.table};
        struct sl_op_attention a = {.batch = &batch,
                                    .q = s.q,
                                    .ld_q = HEADS * DIM,
                                    .n_heads = HEADS,
                                    .n_kv_heads = 1,
                                    .head_dim = DIM,
                                    .scale = 0.125f,
                                    .kv = p.view,
                                    .out = out,
                                    .ld_out = HEADS * DIM};
        struct sl_backend *be = backend(isa, 1);
        be->vt->attention(be, &a);
        double want[N * HEADS * DIM];
        for (int i = 0; i < N * HEADS * DIM; i++)
            want[i] = (double)plain[i];
        if (!(nmse(out, want, N * HEADS * DIM) < 1e-12))
            fail_msg("%s: NMSE %g to pages of BF16", isa_names[isa],
                     nmse(out, want, N * HEADS * DIM));
        pages_free(&p);
        pages_free(&q);
        scene_free(&s);
        scene_free(&b);
    }
}

/* What later tokens store changes no bit of an earlier one's place, and NaN in a row reaches no
 * earlier row and no other key head. */
static void test_causality(void **state)
{
    enum { N = 60, EARLY = 29, DIM = 48, HEADS = 4, KV = 2 };
    static float clean[N * HEADS * DIM], out[N * HEADS * DIM];
    (void)state;
    for (size_t f = 0; f < SL_COUNT(formats) * N_ISAS; f++) {
        const int isa = (int)(f % N_ISAS);
        struct scene s = scene_make(formats[f / N_ISAS], N, HEADS, KV, DIM, 0);
        struct way w = {isa, 2, 16, N, 0};
        if (!isa_available(isa)) {
            scene_free(&s);
            continue;
        }
        snprintf(what, sizeof what, "%s %s", sl_dtype_info(s.kv)->name, isa_names[isa]);
        struct pages p = scene_run(&s, &w, clean), early = pages_make(&s, &w);
        s.k[EARLY * KV * DIM] = NAN;
        s.v[(EARLY + 1) * KV * DIM + 2] = INFINITY;
        scene_step(&s, &w, &early, 0, EARLY, out);
        for (int first = EARLY, n = 17; first < N; first += n) {
            scene_step(&s, &w, &early, first, SL_MIN(n, N - first), out);
            for (int i = 0; i < EARLY * KV * 2; i++) {
                double a[DIM], b[DIM];
                stored(&s, &p, i % 2 != 0, i / 2 / KV, i / 2 % KV, a);
                stored(&s, &early, i % 2 != 0, i / 2 / KV, i / 2 % KV, b);
                assert_memory_equal(a, b, sizeof a);
            }
        }
        equal_bits(out, clean, EARLY * HEADS * DIM);
        for (int t = EARLY; t < N; t++) {
            assert_true(isnan(out[t * HEADS * DIM]));
            equal_bits(out + (t * HEADS + HEADS / KV) * DIM, clean + (t * HEADS + HEADS / KV) * DIM,
                       HEADS / KV * DIM);
        }
        pages_free(&p);
        pages_free(&early);
        scene_free(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rotation),  cmocka_unit_test(test_levels),
        cmocka_unit_test(test_encode),    cmocka_unit_test(test_store),
        cmocka_unit_test(test_widen),     cmocka_unit_test(test_clean),
        cmocka_unit_test(test_attention), cmocka_unit_test(test_as_bf16),
        cmocka_unit_test(test_causality),
    };
    say_what_is_skipped();
    return cmocka_run_group_tests(tests, NULL, destroy_backends);
}
