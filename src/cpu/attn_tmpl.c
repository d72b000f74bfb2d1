/* SPDX-License-Identifier: MIT
 * The float route of attention in terms of the sixteen lanes of vec_*.h, included by attn_c.c,
 * attn_avx2.c and attn_avx512.c, which say how a pair of lanes is read (load_f16_pair,
 * load_bf16_pair, load_code_pair) and how large a register tile is.
 *
 * Scores and values are the same product: rows of numbers times vectors of sixteen lanes, where the
 * vectors come in pairs (two dimensions of sixteen positions, or two positions of sixteen
 * dimensions). Every lane is one chain of fma in ascending order.
 */

enum source { FLOATS, PAIRS_F16, PAIRS_BF16 };

/* n_v vectors by n_seg * n_steps pairs, or floats. Vector v of segment s starts at tiles[s *
 * seg_tiles + v * v_tiles] + off + v * v_bytes; what follows it is step bytes behind. */
struct product {
    const uint8_t *const *tiles;
    int n_seg, seg_tiles, v_tiles, n_steps;
    size_t off, v_bytes, step;
    bool ahead, first; /* ask for later tiles; sums start at zero */
    const float *a;    /* [n_q, ld_a] */
    int64_t ld_a;
    float *c; /* [n_q, ld_c] */
    int64_t ld_c;
};

/* The first and the second of sixteen pairs; of floats the first only. */
INLINE void load_pair(const enum source from, const uint8_t *p, v16 *x, v16 *y)
{
    if (from == PAIRS_F16)
        load_f16_pair(p, x, y);
    else if (from == PAIRS_BF16)
        load_bf16_pair(p, x, y);
    else
        *x = v_load((const float *)(const void *)p);
}

/* n_q and n_v are constants after inlining: that many sums stay in registers. */
INLINE void multiply(const enum source from, const int n_q, const int n_v, const struct product *m)
{
    v16 sum[MAX_Q][MAX_V];
    for (int q = 0; q < n_q; q++)
        for (int v = 0; v < n_v; v++)
            sum[q][v] = m->first ? v_set1(0.0f) : v_load(m->c + q * m->ld_c + 16 * v);
    const float *a = m->a;
    for (int s = 0; s < m->n_seg; s++) {
        const uint8_t *b[MAX_V], *next[MAX_V];
        for (int v = 0; v < n_v; v++) {
            int at = s * m->seg_tiles + v * m->v_tiles;
            b[v] = m->tiles[at] + m->off + (size_t)v * m->v_bytes;
            next[v] = b[v];
            if (m->ahead)
                next[v] = m->tiles[at + SL_ATTN_AHEAD] + m->off + (size_t)v * m->v_bytes;
        }
        for (int i = 0; i < m->n_steps; i++, a += from == FLOATS ? 1 : 2) {
            size_t at = (size_t)i * m->step;
            v16 x[MAX_V], y[MAX_V];
            for (int v = 0; v < n_v; v++) {
                load_pair(from, b[v] + at, &x[v], &y[v]);
                if (m->ahead)
                    __builtin_prefetch(next[v] + at, 0, 2);
            }
            for (int q = 0; q < n_q; q++) {
                v16 first = v_set1(a[q * m->ld_a]);
                for (int v = 0; v < n_v; v++)
                    sum[q][v] = v_fma(first, x[v], sum[q][v]);
            }
            for (int q = 0; q < n_q && from != FLOATS; q++) {
                v16 second = v_set1(a[q * m->ld_a + 1]);
                for (int v = 0; v < n_v; v++)
                    sum[q][v] = v_fma(second, y[v], sum[q][v]);
            }
        }
    }
    for (int q = 0; q < n_q; q++)
        for (int v = 0; v < n_v; v++)
            v_store(m->c + q * m->ld_c + 16 * v, sum[q][v]);
}

/* A function per shape, as one with all of them in it keeps no sums in registers. Where MAX_Q is
 * less than eight the larger ones are never called. Tables are indexed by 1 .. 8. */
typedef void multiply_fn(const struct product *m);

#define ONE_V 1
#define SHAPE(from, q, width)                                                            \
    static void from##_##q##_##width(const struct product *m)                            \
    {                                                                                    \
        multiply(from, SL_MIN(q, (width##_V) == WIDE_V ? WIDE_Q : MAX_Q), width##_V, m); \
    }
#define SHAPES(from, width)                                                                       \
    SHAPE(from, 1, width)                                                                         \
    SHAPE(from, 2, width)                                                                         \
    SHAPE(from, 3, width)                                                                         \
    SHAPE(from, 4, width)                                                                         \
    SHAPE(from, 5, width)                                                                         \
    SHAPE(from, 6, width)                                                                         \
    SHAPE(from, 7, width)                                                                         \
    SHAPE(from, 8, width)                                                                         \
    static multiply_fn *const from##_##width[] = {                                                \
        from##_1_##width, from##_1_##width, from##_2_##width, from##_3_##width, from##_4_##width, \
        from##_5_##width, from##_6_##width, from##_7_##width, from##_8_##width};
SHAPES(FLOATS, ONE)
SHAPES(FLOATS, NARROW)
SHAPES(FLOATS, WIDE)
SHAPES(PAIRS_F16, ONE)
SHAPES(PAIRS_F16, NARROW)
SHAPES(PAIRS_BF16, ONE)
SHAPES(PAIRS_BF16, NARROW)

/* n_v is 1, NARROW_V (few queries: all of them in one pass over the vectors) or WIDE_V. */
static void multiply_block(enum source from, int n_q, int n_v, const struct product *m)
{
    if (from == PAIRS_F16)
        (n_v == NARROW_V ? PAIRS_F16_NARROW : PAIRS_F16_ONE)[n_q](m);
    else if (from == PAIRS_BF16)
        (n_v == NARROW_V ? PAIRS_BF16_NARROW : PAIRS_BF16_ONE)[n_q](m);
    else if (n_v == WIDE_V)
        FLOATS_WIDE[n_q](m);
    else
        (n_v == NARROW_V ? FLOATS_NARROW : FLOATS_ONE)[n_q](m);
}

/* All queries against n_v vectors; only the first pass comes from memory. */
static void multiply_all(enum source from, int n_q, int n_v, const struct product *m)
{
    struct product part = *m;
    int most = n_v == NARROW_V && n_q <= MAX_Q ? MAX_Q : WIDE_Q;
    for (int q = 0, n; q < n_q; q += n) {
        n = SL_MIN(n_q - q, most);
        part.a = m->a + q * m->ld_a;
        part.c = m->c + q * m->ld_c;
        multiply_block(from, n, n_v, &part);
        part.ahead = false;
    }
}

/* Vectors of a pass over the tiles of a format. */
static int pass_width(enum source from, int n_q)
{
    return from != FLOATS || (n_q > WIDE_Q && n_q <= MAX_Q) ? NARROW_V : WIDE_V;
}

static void scores_of(enum source from, const uint8_t *const *tiles, int n, int dim,
                      const float *query, int n_q, float *score, bool ahead)
{
    struct product m = {.n_seg = 1,
                        .v_tiles = 1,
                        .n_steps = from == FLOATS ? dim : dim / 2,
                        .step = 64,
                        .ahead = ahead,
                        .first = true,
                        .a = query,
                        .ld_a = dim,
                        .ld_c = SL_CPU_SPLIT};
    int width = pass_width(from, n_q);
    for (int i = 0, n_v; i < n; i += n_v) {
        n_v = n - i >= width ? width : 1;
        m.tiles = tiles + i;
        m.c = score + SL_KV_TILE * i;
        multiply_all(from, n_q, n_v, &m);
    }
}

static void values_of(enum source from, const uint8_t *const *tiles, int n, int dim, const float *p,
                      int n_q, float *o, bool ahead)
{
    struct product m = {.tiles = tiles,
                        .n_seg = n,
                        .seg_tiles = 1,
                        .n_steps = from == FLOATS ? SL_KV_TILE : SL_KV_TILE / 2,
                        .v_bytes = 64,
                        .step = (size_t)dim * 4,
                        .ahead = ahead,
                        .a = p,
                        .ld_a = SL_CPU_SPLIT,
                        .ld_c = dim};
    int width = pass_width(from, n_q);
    for (int d = 0, n_v; d < dim; d += 16 * n_v) {
        n_v = dim - d >= 16 * width ? width : 1;
        m.off = (size_t)d * 4;
        m.c = o + d;
        multiply_all(from, n_q, n_v, &m);
    }
}

/* ---------------------------------------------------------------- tiles to floats */

INLINE void load_any_pair(const enum sl_dtype dtype, const uint8_t *p, v16 *x, v16 *y)
{
    if (dtype == SL_DTYPE_Q8_0)
        load_code_pair(p, x, y);
    else
        load_pair(dtype == SL_DTYPE_F16 ? PAIRS_F16 : PAIRS_BF16, p, x, y);
}

/* A tile of keys to [dim, 16]; ahead is a tile that will be wanted soon. */
INLINE void widen_k(const enum sl_dtype dtype, const uint8_t *tile, const uint8_t *ahead, int dim,
                    float *out)
{
    const size_t step = dtype == SL_DTYPE_Q8_0 ? 32 : 64;
    const uint8_t *scales = tile + SL_KV_TILE * dim;
    v16 scale = v_set1(1.0f);
    for (int i = 0; i < dim / 2; i++) {
        v16 x, y;
        __builtin_prefetch(ahead + (size_t)i * step, 0, 2);
        load_any_pair(dtype, tile + (size_t)i * step, &x, &y);
        if (dtype == SL_DTYPE_Q8_0) {
            if (i % (SL_KV_SCALE / 2) == 0) {
                int at = i / (SL_KV_SCALE / 2) * SL_KV_TILE * 2;
                scale = load_f16(scales + at);
                __builtin_prefetch(ahead + SL_KV_TILE * dim + at, 0, 2);
            }
            x = v_mul(x, scale);
            y = v_mul(y, scale);
        }
        v_store(out + 32 * i, x);
        v_store(out + 32 * i + 16, y);
    }
}

/* A tile of values to [16, dim]. */
INLINE void widen_v(const enum sl_dtype dtype, const uint8_t *tile, const uint8_t *ahead, int dim,
                    float *out)
{
    const int bytes = dtype == SL_DTYPE_Q8_0 ? 2 : 4; /* of a pair of numbers */
    const uint8_t *scales = tile + SL_KV_TILE * dim;
    for (int i = 0; i < SL_KV_TILE / 2; i++)
        for (int d = 0; d < dim; d += 16) {
            size_t at = (size_t)((i * dim + d) * bytes);
            v16 x, y;
            __builtin_prefetch(ahead + at, 0, 2);
            load_any_pair(dtype, tile + at, &x, &y);
            if (dtype == SL_DTYPE_Q8_0) {
                const uint8_t *pair = scales + (d / SL_KV_SCALE * SL_KV_TILE + 2 * i) * 2;
                x = v_mul(x, v_set1(sl_f16_to_f32(sl_load_u16(pair))));
                y = v_mul(y, v_set1(sl_f16_to_f32(sl_load_u16(pair + 2))));
            }
            v_store(out + 2 * i * dim + d, x);
            v_store(out + (2 * i + 1) * dim + d, y);
        }
}

typedef void widen_fn(const uint8_t *tile, const uint8_t *ahead, int dim, float *out);

static void scores_wide(widen_fn *widen, const struct sl_attn_tiles *t, const float *query, int n_q,
                        float *score)
{
    const size_t tile_floats = (size_t)(SL_KV_TILE * t->dim);
    float *wide = t->scratch;
    const uint8_t *tiles[SL_ATTN_GROUP];
    for (int i = 0, n; i < t->n; i += n) {
        n = SL_MIN(SL_ATTN_GROUP, t->n - i);
        for (int g = 0; g < n; g++) {
            widen(t->tiles[i + g], t->tiles[i + g + SL_ATTN_AHEAD], t->dim,
                  wide + (size_t)g * tile_floats);
            tiles[g] = (const uint8_t *)(wide + (size_t)g * tile_floats);
        }
        scores_of(FLOATS, tiles, n, t->dim, query, n_q, score + i * SL_KV_TILE, false);
    }
}

static void values_wide(widen_fn *widen, const struct sl_attn_tiles *t, const float *p, int n_q,
                        float *o)
{
    const size_t tile_floats = (size_t)(SL_KV_TILE * t->dim);
    float *wide = t->scratch;
    const uint8_t *tiles[SL_ATTN_GROUP];
    for (int i = 0, n; i < t->n; i += n) {
        n = SL_MIN(SL_ATTN_GROUP, t->n - i);
        for (int g = 0; g < n; g++) {
            widen(t->tiles[i + g], t->tiles[i + g + SL_ATTN_AHEAD], t->dim,
                  wide + (size_t)g * tile_floats);
            tiles[g] = (const uint8_t *)(wide + (size_t)g * tile_floats);
        }
        values_of(FLOATS, tiles, n, t->dim, p + i * SL_KV_TILE, n_q, o, false);
    }
}

/* ---------------------------------------------------------------- the table */

/* Few queries read the pages as they are: what is a float in a register is not stored and loaded.
 * Values go by groups of tiles, so that the later of their dimensions are asked for in time. */
static void values_direct(enum source from, const struct sl_attn_tiles *t, const float *p, int n_q,
                          float *o)
{
    int group = n_q <= MAX_Q ? SL_ATTN_GROUP : t->n;
    for (int i = 0; i < t->n; i += group)
        values_of(from, t->tiles + i, SL_MIN(group, t->n - i), t->dim, p + i * SL_KV_TILE, n_q, o,
                  true);
}

static void scores_f32(const struct sl_attn_tiles *t, const void *query, int n_q, float *score)
{
    scores_of(FLOATS, t->tiles, t->n, t->dim, query, n_q, score, true);
}

static void values_f32(const struct sl_attn_tiles *t, const void *p, int n_q, float *o)
{
    values_direct(FLOATS, t, p, n_q, o);
}

#define WIDEN(name, dtype)                                                                     \
    static void widen_k_##name(const uint8_t *tile, const uint8_t *ahead, int dim, float *out) \
    {                                                                                          \
        widen_k(dtype, tile, ahead, dim, out);                                                 \
    }                                                                                          \
    static void widen_v_##name(const uint8_t *tile, const uint8_t *ahead, int dim, float *out) \
    {                                                                                          \
        widen_v(dtype, tile, ahead, dim, out);                                                 \
    }
#define TABLE(name, source, direct_q)                                                          \
    static void scores_##name(const struct sl_attn_tiles *t, const void *query, int n_q,       \
                              float *score)                                                    \
    {                                                                                          \
        if (n_q <= (direct_q))                                                                 \
            scores_of(source, t->tiles, t->n, t->dim, query, n_q, score, true);                \
        else                                                                                   \
            scores_wide(widen_k_##name, t, query, n_q, score);                                 \
    }                                                                                          \
    static void values_##name(const struct sl_attn_tiles *t, const void *p, int n_q, float *o) \
    {                                                                                          \
        if (n_q <= (direct_q))                                                                 \
            values_direct(source, t, p, n_q, o);                                               \
        else                                                                                   \
            values_wide(widen_v_##name, t, p, n_q, o);                                         \
    }
WIDEN(f16, SL_DTYPE_F16)
WIDEN(bf16, SL_DTYPE_BF16)
WIDEN(q8, SL_DTYPE_Q8_0)
TABLE(f16, PAIRS_F16, MAX_Q)
TABLE(bf16, PAIRS_BF16, MAX_Q)

static void scores_q8(const struct sl_attn_tiles *t, const void *query, int n_q, float *score)
{
    scores_wide(widen_k_q8, t, query, n_q, score);
}

static void values_q8(const struct sl_attn_tiles *t, const void *p, int n_q, float *o)
{
    values_wide(widen_v_q8, t, p, n_q, o);
}

static void fill_attn(struct sl_attn_kernels *k)
{
    k->scores[SL_DTYPE_F32] = scores_f32;
    k->values[SL_DTYPE_F32] = values_f32;
    k->scores[SL_DTYPE_F16] = scores_f16;
    k->values[SL_DTYPE_F16] = values_f16;
    k->scores[SL_DTYPE_BF16] = scores_bf16;
    k->values[SL_DTYPE_BF16] = values_bf16;
    k->scores[SL_DTYPE_Q8_0] = scores_q8;
    k->values[SL_DTYPE_Q8_0] = values_q8;
    k->name[SL_DTYPE_F32] = k->name[SL_DTYPE_F16] = "float";
    k->name[SL_DTYPE_BF16] = k->name[SL_DTYPE_Q8_0] = "float";
}
