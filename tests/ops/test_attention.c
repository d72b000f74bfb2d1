/* SPDX-License-Identifier: MIT
 * Attention and the way into its pages: every instruction set, format of the pages, shape,
 * chunking, page size and thread count against double precision, against the order of
 * DETERMINISM.md written out, and against each other. The kernels on tiles also run over simulated
 * ones, wherever the processor has the rest of what they need.
 */
#include "ops_attention.h"

#if defined(__clang__)
#pragma clang attribute push(                                                     \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")
#endif
#include "ops/tile_sim.h"

#include "cpu/attn_amx_tmpl.c"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

static char what[256];

#define MAX_THREADS_TESTED 8

/* The last is not one of the engine's: simulated tiles in place of AMX. */
static const char *const isa_names[] = {"c",           "avx2", "avx512",   "avx512-vnni",
                                        "avx512-bf16", "amx",  "simulated"};
enum { BF16 = 4, AMX = 5, SIMULATED = 6 };

static struct sl_backend *backends[SL_COUNT(isa_names)][MAX_THREADS_TESTED + 1];

static bool isa_available(size_t isa)
{
    enum sl_cpu_isa unused;
    return sl_cpu_isa_parse(isa_names[isa == SIMULATED ? BF16 : isa], &unused, NULL) == 0;
}

static struct sl_backend *backend(size_t isa, int n_threads)
{
    struct sl_backend **be = &backends[isa][n_threads];
    struct sl_error err = {0};
    struct sl_cpu_config cfg = {.n_threads = n_threads};
    const char *name = isa_names[isa == SIMULATED ? BF16 : isa];
    if (*be != NULL)
        return *be;
    if (sl_cpu_isa_parse(name, &cfg.isa, &err) != 0 || sl_cpu_create(&cfg, be, &err) != 0)
        fail_msg("backend %s: %s", name, err.msg);
    if (isa == SIMULATED)
        fill_attn_tiles(&sl_cpu(*be)->attn);
    return *be;
}

/* The simulated tiles are one thread's. */
static int some_threads(size_t isa)
{
    return isa == SIMULATED ? 1 : 2;
}

static int destroy_backends(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(isa_names); i++)
        for (int t = 0; t <= MAX_THREADS_TESTED; t++)
            if (backends[i][t] != NULL)
                backends[i][t]->vt->destroy(backends[i][t]);
    memset(backends, 0, sizeof backends);
    return 0;
}

static enum att_route route_of(size_t isa, enum sl_dtype kv)
{
    if ((sl_attn_format(kv) != SL_DTYPE_BF16 && kv != SL_DTYPE_Q8_0) || isa < BF16)
        return ATT_FLOAT;
    if (isa >= AMX)
        return ATT_BF16_AMX;
    return kv == SL_DTYPE_Q8_0 ? ATT_BF16_CODES : ATT_BF16_DOT;
}

static void test_routes(void **state)
{
    static const char *const names[] = {"float", "bf16-dot", "bf16-dot", "bf16-amx"};
    (void)state;
    for (size_t isa = 0; isa < SL_COUNT(isa_names); isa++)
        for (int t = 0; t < SL_DTYPE_COUNT && isa_available(isa); t++) {
            const struct sl_attn_kernels *k = &sl_cpu(backend(isa, 1))->attn;
            bool is_kv =
                t == SL_DTYPE_F32 || t == SL_DTYPE_F16 || t == SL_DTYPE_BF16 || t == SL_DTYPE_Q8_0;
            assert_int_equal(k->scores[t] != NULL, is_kv);
            assert_int_equal(k->values[t] != NULL, is_kv);
            if (!is_kv)
                continue;
            enum att_route route = route_of(isa, (enum sl_dtype)t);
            assert_string_equal(k->name[t], names[route]);
            assert_int_equal(k->query16[t], route != ATT_FLOAT);
            assert_int_equal(k->p16[t], route != ATT_FLOAT && route != ATT_BF16_CODES);
        }
}

/* ---------------------------------------------------------------- values */

static void same_bits(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (sl_f32_bits(a[i]) != sl_f32_bits(b[i]) && !(isnan(a[i]) && isnan(b[i])))
            fail_msg("%s: element %zu of %zu: %a is not %a", what, i, n, (double)a[i],
                     (double)b[i]);
}

static void near_oracle(const float *a, const double *want, size_t n, double max_nmse)
{
    double err = 0, power = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)a[i] - want[i];
        err += d * d;
        power += want[i] * want[i];
    }
    if (!(err <= max_nmse * power))
        fail_msg("%s: NMSE %g above %g", what, err / power, max_nmse);
}

/* Norms before the rotation, no temperature; no clip, windows that slide, norms with weights. */
#define REST         0, false, false
#define PLAIN        false, {0, 0, 0}, REST
#define PLAIN_CHUNKS false, {0, 0, 0}, 0, true, false

/* The format of the pages is the test's. */
static const struct att_case cases[] = {
    {"mha", 40, 2, 2, 64, 0, 0, 0, false, false, 64, SL_ROPE_HALF, 0, PLAIN},
    {"gqa", 270, 4, 2, 64, 0, 0, 0, false, true, 64, SL_ROPE_HALF, 0, PLAIN},
    {"gqa-48", 270, 6, 2, 48, 0, 0, 0, false, true, 48, SL_ROPE_INTERLEAVED, 0, PLAIN},
    {"window", 530, 2, 1, 32, 0, 37, 0, false, false, 32, SL_ROPE_HALF, 0, PLAIN},
    {"window-wide", 560, 2, 1, 16, 0, 300, 0, false, false, 16, SL_ROPE_HALF, 0, PLAIN},
    {"softcap-sinks", 270, 4, 1, 80, 0, 0, 5.0f, true, false, 40, SL_ROPE_HALF, 0, PLAIN},
    {"sinks-window", 150, 8, 1, 64, 0, 128, 0, true, false, 64, SL_ROPE_HALF, 0, PLAIN},
    {"odd-dims", 70, 3, 1, 21, 0, 0, 0, true, true, 8, SL_ROPE_INTERLEAVED, 0, PLAIN},
    {"tiny", 9, 1, 1, 1, 0, 0, 0, false, false, 0, SL_ROPE_HALF, 0, PLAIN},
    {"mqa-40", 35, 40, 1, 32, 0, 7, 2.0f, true, true, 32, SL_ROPE_HALF, 0, PLAIN},
    {"mqa-70", 20, 70, 1, 96, 0, 0, 0, false, false, 32, SL_ROPE_HALF, 0, PLAIN},
    {"gqa-7", 90, 14, 2, 112, 0, 0, 0, false, false, 112, SL_ROPE_HALF, 0, PLAIN},
    {"gqa-8", 100, 8, 1, 128, 0, 0, 0, false, true, 128, SL_ROPE_HALF, 0, PLAIN},
    {"hd256", 33, 10, 2, 256, 0, 0, 0, false, true, 256, SL_ROPE_HALF, 0, PLAIN},
    {"hd520", 18, 33, 1, 520, 0, 0, 0, false, false, 64, SL_ROPE_HALF, 0, PLAIN},
    {"skip", 800, 4, 2, 16, 0, 0, 0, false, true, 16, SL_ROPE_HALF, 300, PLAIN},
    {"skip-softcap", 600, 2, 1, 32, 0, 0, 9.0f, true, false, 32, SL_ROPE_HALF, 520, PLAIN},
    {"norm-after", 60, 4, 2, 48, 0, 0, 0, false, true, 24, SL_ROPE_HALF, 0, true, {0, 0, 0}, REST},
    {"warm",
     90,
     4,
     2,
     32,
     0,
     0,
     0,
     false,
     true,
     32,
     SL_ROPE_INTERLEAVED,
     0,
     true,
     {0.3f, 16, 1},
     REST},
    {"clip",
     60,
     4,
     2,
     32,
     0,
     0,
     0,
     false,
     false,
     32,
     SL_ROPE_HALF,
     0,
     false,
     {0, 0, 0},
     0.7f,
     false,
     false},
    {"clip-norm",
     40,
     4,
     2,
     32,
     0,
     0,
     0,
     false,
     true,
     16,
     SL_ROPE_HALF,
     0,
     true,
     {0, 0, 0},
     1.5f,
     false,
     false},
    {"chunks",
     560,
     4,
     2,
     32,
     0,
     100,
     0,
     true,
     false,
     32,
     SL_ROPE_INTERLEAVED,
     0,
     true,
     {0, 0, 0},
     0,
     true,
     true},
    {"chunks-wide", 600, 2, 1, 16, 0, 272, 0, false, false, 16, SL_ROPE_HALF, 0, PLAIN_CHUNKS},
};

static const struct {
    int n_threads, block_size, chunk;
    bool scramble;
    int n_mates;
} ways[] = {
    {1, 16, 1 << 20, false, 0}, {1, 16, 7, true, 0},  {2, 16, 1, false, 0},
    {2, 16, 64, true, 2},       {3, 64, 33, true, 0}, {8, 16, 100, true, 1},
    {1, 48, 50, true, 3},       {2, 256, 1, true, 0}, {3, 256, 256, false, 40},
};

/* The run used tiles, as a processor would let it, and left them released. */
static void check_sim(void)
{
    if (sim.fault != NULL)
        fail_msg("%s: a processor would refuse: %s", what, sim.fault);
    if (sim.n_dots == 0 || sim.configured)
        fail_msg("%s: %ld products, tiles released: %d", what, sim.n_dots, !sim.configured);
    sim.n_dots = 0;
}

static void check_ways(const struct att_data *d, size_t isa, const struct att_result *ref,
                       struct att_result *got)
{
    const struct att_case *c = d->c;
    size_t n_q = (size_t)(c->n_tokens * c->n_heads * c->head_dim);
    size_t n_kv = (size_t)(c->n_tokens * c->n_kv_heads * c->head_dim);
    if (isa > 0 && isa_available(isa - 1)) { /* nothing of its own for this format? */
        const struct sl_attn_kernels *k = &sl_cpu(backend(isa, 1))->attn;
        const struct sl_attn_kernels *before = &sl_cpu(backend(isa - 1, 1))->attn;
        const enum sl_dtype kv = sl_attn_format(c->kv);
        if (k->scores[kv] == before->scores[kv] && k->values[kv] == before->values[kv])
            return;
    }
    if (isa == SIMULATED && route_of(isa, c->kv) == ATT_FLOAT)
        return; /* its neighbours are those of avx512-bf16 */
    for (size_t i = 0; i < SL_COUNT(ways); i++) {
        if ((isa == 0 && i != 1 && i != 3) /* plain C is slow, and takes the same driver */
            || (isa == SIMULATED && ways[i].n_threads > 1)) /* the tiles are one thread's */
            continue;
        struct att_way w = {backend(isa, ways[i].n_threads), ways[i].block_size, ways[i].chunk,
                            ways[i].scramble, ways[i].n_mates};
        snprintf(what, sizeof what, "%s %s %s block %d chunk %d threads %d mates %d", c->name,
                 sl_dtype_info(c->kv)->name, isa_names[isa], w.block_size, w.chunk,
                 ways[i].n_threads, w.n_mates);
        att_run(d, &w, got);
        same_bits(got->q, ref->q, n_q);
        same_bits(got->k, ref->k, n_kv);
        same_bits(got->v, ref->v, n_kv);
        same_bits(got->out, ref->out, n_q);
        if (isa == SIMULATED)
            check_sim();
    }
}

static void check_case(const struct att_case *c)
{
    struct att_data d = att_make(c);
    size_t n = (size_t)(c->n_tokens * c->n_heads * c->head_dim);
    struct att_result ref = att_result_make(c), got = att_result_make(c);
    double *want = sl_malloc(n * sizeof *want);
    assert_non_null(want);
    snprintf(what, sizeof what, "%s %s", c->name, sl_dtype_info(c->kv)->name);
    att_run(&d, &(struct att_way){backend(0, 1), 16, 1 << 20, false, 0}, &ref);
    att_oracle(&d, &ref, want);
    const struct sl_cpu_kernels *k = &sl_cpu(backend(0, 1))->k;
    for (int route = ATT_FLOAT; route < ATT_ROUTES; route++) {
        bool used = false;
        for (size_t isa = 0; isa < SL_COUNT(isa_names); isa++)
            used |= isa_available(isa) && (int)route_of(isa, c->kv) == route;
        if (!used)
            continue;
        att_bits(&d, &ref, k, (enum att_route)route, ref.out);
        if (c->skip > 0) {
            size_t n_skipped = 0, n_tiles = (size_t)(c->n_tokens * c->n_heads) * att_tiles(c);
            for (size_t i = 0; i < n_tiles; i++)
                n_skipped += d.skipped[i];
            assert_true(n_skipped > n_tiles / 50 && n_skipped < n_tiles / 2);
            att_oracle(&d, &ref, want); /* without these */
        }
        snprintf(what, sizeof what, "%s %s route %d", c->name, sl_dtype_info(c->kv)->name, route);
        near_oracle(ref.out, want, n, route == ATT_FLOAT ? 1e-11 : 6e-5);
        for (size_t isa = 0; isa < SL_COUNT(isa_names); isa++)
            if (isa_available(isa) && (int)route_of(isa, c->kv) == route)
                check_ways(&d, isa, &ref, &got);
    }
    att_free(&d);
    att_result_free(&ref);
    att_result_free(&got);
    sl_free(want);
}

static void check_dtype(enum sl_dtype kv)
{
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct att_case c = cases[i];
        c.kv = kv;
        check_case(&c);
    }
}

static void test_f32(void **state)
{
    (void)state;
    check_dtype(SL_DTYPE_F32);
}

static void test_f16(void **state)
{
    (void)state;
    check_dtype(SL_DTYPE_F16);
}

static void test_bf16(void **state)
{
    (void)state;
    check_dtype(SL_DTYPE_BF16);
}

static void test_q8_0(void **state)
{
    (void)state;
    check_dtype(SL_DTYPE_Q8_0);
}

static void test_fp8(void **state)
{
    (void)state;
    check_dtype(SL_DTYPE_FP8_E4M3);
}

/* Every code, every place, every scale, by each instruction set. */
static void test_fp8_widen(void **state)
{
    enum { DIM = 48 };
    _Alignas(64) uint8_t tile[SL_KV_TILE * (DIM + 2)];
    _Alignas(64) uint16_t wide[SL_KV_TILE * DIM + 32];
    (void)state;
    for (size_t isa = 0; isa < SL_COUNT(isa_names); isa++)
        for (int shift = 0; isa_available(isa) && shift < 256; shift++) {
            const struct sl_attn_kernels *k = &sl_cpu(backend(isa, 1))->attn;
            for (int i = 0; i < SL_KV_TILE * DIM; i++)
                tile[i] = (uint8_t)(i + shift);
            for (int i = 0; i < SL_KV_TILE; i++) /* 2^-100 to 2^7 */
                sl_store_u16(tile + SL_KV_TILE * DIM + 2 * i,
                             (uint16_t)((27 + (i * 7 + shift) % 108) << 7));
            for (int is_v = 0; is_v < 2; is_v++) {
                memset(wide, 0xA5, sizeof wide);
                k->widen_fp8(is_v == 0, tile, tile, DIM, wide);
                for (int i = 0; i < SL_KV_TILE * DIM; i++) {
                    float want =
                        att_read(SL_DTYPE_FP8_E4M3, DIM, tile, is_v != 0, i / DIM, i % DIM);
                    float got = att_read(SL_DTYPE_BF16, DIM, (const uint8_t *)wide, is_v != 0,
                                         i / DIM, i % DIM);
                    if (isnan(want) ? !isnan(got) : sl_f32_bits(got) != sl_f32_bits(want))
                        fail_msg("%s, %s position %d dimension %d: %a is not %a", isa_names[isa],
                                 is_v ? "value" : "key", i / DIM, i % DIM, (double)got,
                                 (double)want);
                }
                for (int i = 0; i < 32; i++)
                    assert_int_equal(wide[SL_KV_TILE * DIM + i], 0xA5A5);
            }
        }
}

/* What is stored: the scale's rule, the largest number kept within 1/16, extremes, NaN. */
static void test_fp8_store(void **state)
{
    enum { DIM = 32 };
    static const struct {
        float top;
        int exponent; /* 1000: NaN */
    } tops[] = {{448, 0},         {448.1f, 1},       {449, 1},
                {224, -1},        {224.1f, 0},       {1, -8},
                {0.875f, -9},     {0, -100},         {1e-38f, -100},
                {1e-45f, -100},   {57344, 7},        {57345, 7},
                {3e38f, 7},       {INFINITY, 1000},  {NAN, 1000},
                {0x1p-92f, -100}, {0x1.cp-91f, -99}, {0x1.c00002p-91f, -98}};
    (void)state;
    for (size_t i = 0; i < SL_COUNT(tops); i++) {
        uint8_t tile[SL_KV_TILE * (DIM + 2)];
        float x[DIM];
        for (int d = 0; d < DIM; d++)
            x[d] = tops[i].top * (d == 5 ? -1.0f : (float)(d - 16) / 32.0f);
        for (int is_v = 0; is_v < 2; is_v++) {
            memset(tile, 0xA5, sizeof tile);
            (is_v ? sl_attn_store_v : sl_attn_store_k)(SL_DTYPE_FP8_E4M3, x, DIM, tile, 3);
            float scale = sl_bf16_to_f32(sl_load_u16(tile + SL_KV_TILE * DIM + 6));
            if (tops[i].exponent == 1000)
                assert_true(isnan(scale));
            else
                assert_true(scale == ldexpf(1.0f, tops[i].exponent));
            for (int d = 0; d < DIM; d++) {
                float got = att_read(SL_DTYPE_FP8_E4M3, DIM, tile, is_v != 0, 3, d);
                double want = fmax(fmin((double)x[d], 57344.0), -57344.0);
                if (tops[i].exponent == 1000
                        ? !isnan(got)
                        : fabs((double)got - want) > fabs(want) / 16 + (double)scale * 0x1p-10)
                    fail_msg("top %g, dimension %d: %g is not %g", (double)tops[i].top, d,
                             (double)got, want);
            }
            int touched = 0;
            for (size_t b = 0; b < sizeof tile; b++)
                touched += tile[b] != 0xA5;
            assert_true(touched <= DIM + 2);
        }
    }
}

/* ---------------------------------------------------------------- what must not leak */

/* NaN and infinity in one row's q, k and v reach no earlier row and no other key head, at once or
 * in chunks. */
static void check_poison(size_t isa, enum sl_dtype kv)
{
    struct att_case c = cases[1];
    c.n_tokens = 60;
    c.kv = kv;
    struct att_data d = att_make(&c);
    struct att_result clean = att_result_make(&c), got = att_result_make(&c);
    size_t row = (size_t)(c.n_heads * c.head_dim), kv_row = (size_t)(c.n_kv_heads * c.head_dim);
    att_run(&d, &(struct att_way){backend(isa, some_threads(isa)), 16, 1 << 20, false, 0}, &clean);
    d.q[20 * row] = d.k[30 * kv_row] = NAN;
    d.v[31 * kv_row + 1] = INFINITY;
    d.v[36 * kv_row + 2] = NAN;
    static const int chunks[] = {60, 1, 17};
    for (size_t i = 0; i < SL_COUNT(chunks); i++) {
        struct att_way w = {backend(isa, some_threads(isa)), i == 2 ? 64 : 16, chunks[i], true, 1};
        snprintf(what, sizeof what, "poison %s %s chunks of %d", sl_dtype_info(kv)->name,
                 isa_names[isa], chunks[i]);
        att_run(&d, &w, &got);
        same_bits(got.out, clean.out, 20 * row);
        same_bits(got.out + 21 * row, clean.out + 21 * row, 9 * row);
        for (size_t t = 30; t < 60; t++) { /* the other key head's half of the outputs */
            same_bits(got.out + t * row + row / 2, clean.out + t * row + row / 2, row / 2);
            assert_true(isnan(got.out[t * row]));
        }
        assert_true(isnan(got.out[20 * row])); /* head 0 of the poisoned query */
    }
    att_free(&d);
    att_result_free(&clean);
    att_result_free(&got);
}

static void test_poison_stays_in_its_row(void **state)
{
    static const enum sl_dtype kv[] = {SL_DTYPE_F32, SL_DTYPE_F16, SL_DTYPE_BF16, SL_DTYPE_Q8_0,
                                       SL_DTYPE_FP8_E4M3};
    (void)state;
    for (size_t isa = 0; isa < SL_COUNT(isa_names); isa++)
        for (size_t i = 0; i < SL_COUNT(kv) && isa_available(isa); i++)
            check_poison(isa, kv[i]);
}

/* Values so small that sums vanish, zeros of both signs and, behind, an infinity: neither the
 * number of zeros added nor a cleaned tile may show, token by token or at once. */
static void test_zeros_and_infinities_behind(void **state)
{
    (void)state;
    static const enum sl_dtype kv[] = {SL_DTYPE_F32, SL_DTYPE_F16, SL_DTYPE_BF16, SL_DTYPE_Q8_0,
                                       SL_DTYPE_FP8_E4M3};
    for (size_t isa = 0; isa < SL_COUNT(isa_names); isa++)
        for (size_t i = 0; i < SL_COUNT(kv) && isa_available(isa); i++) {
            struct att_case c = cases[1];
            c.n_tokens = 48;
            c.kv = kv[i];
            struct att_data d = att_make(&c);
            struct att_result one = att_result_make(&c), all = att_result_make(&c);
            size_t row = (size_t)(c.n_heads * c.head_dim);
            size_t kv_row = (size_t)(c.n_kv_heads * c.head_dim);
            for (size_t j = 0; j < 48 * kv_row; j++)
                d.v[j] *= j % 3 == 0 ? 0x1p-127f : j % 3 == 1 ? -0.0f : 1.0f;
            d.v[40 * kv_row] = INFINITY;
            snprintf(what, sizeof what, "zeros %s %s", sl_dtype_info(kv[i])->name, isa_names[isa]);
            att_run(&d, &(struct att_way){backend(isa, 1), 16, 1, false, 0}, &one);
            att_run(&d, &(struct att_way){backend(isa, 1), 16, 48, false, 0}, &all);
            same_bits(all.out, one.out, 48 * row);
            att_free(&d);
            att_result_free(&one);
            att_result_free(&all);
        }
}

/* A tile has room for sixteen queries; what is behind the last one belongs to somebody else. */
static void test_tiles_write_their_rows_only(void **state)
{
    static const int n_qs[] = {1, 15, 16, 17, 20, 31, 32, 33, 47, 48, 49, 63};
    enum { DIM = 48, N = 5, ROOM = 2 * SL_ATTN_QUERY };
    static _Alignas(64) float score[ROOM * SL_CPU_SPLIT], o[ROOM * DIM];
    static _Alignas(64) uint16_t in[ROOM * SL_CPU_SPLIT];
    static struct sl_attn_scratch scratch;
    (void)state;
    if (!isa_available(SIMULATED)) {
        printf("skip: rows of simulated tiles: the vector code beside them needs AVX512_BF16\n");
        skip();
    }
    const struct sl_attn_kernels *k = &sl_cpu(backend(SIMULATED, 1))->attn;
    const uint8_t *tiles[N + SL_ATTN_AHEAD];
    for (int i = 0; i < N + SL_ATTN_AHEAD; i++)
        tiles[i] = (const uint8_t *)scratch.clean; /* zeros */
    struct sl_attn_tiles t = {tiles, N, DIM, scratch.kv, &scratch.shape};
    for (size_t i = 0; i < 2 * SL_COUNT(n_qs); i++) {
        int n_q = n_qs[i / 2];
        enum sl_dtype dtype = i % 2 == 0 ? SL_DTYPE_BF16 : SL_DTYPE_Q8_0;
        snprintf(what, sizeof what, "%d queries, %s", n_q, sl_dtype_info(dtype)->name);
        for (size_t j = 0; j < SL_COUNT(score); j++)
            score[j] = 1.0f;
        for (size_t j = 0; j < SL_COUNT(o); j++)
            o[j] = (int)j < n_q * DIM ? 0.0f : 1.0f;
        k->scores[dtype](&t, in, n_q, score);
        k->values[dtype](&t, in, n_q, o);
        if (!sim.configured)
            fail_msg("%s: released before the end of an item", what);
        k->end(&scratch.shape);
        check_sim();
        for (int j = 0; j < ROOM * SL_CPU_SPLIT; j++) {
            bool written = j / SL_CPU_SPLIT < n_q && j % SL_CPU_SPLIT < N * SL_KV_TILE;
            if (score[j] != (written ? 0.0f : 1.0f))
                fail_msg("%s: score %d of query %d", what, j % SL_CPU_SPLIT, j / SL_CPU_SPLIT);
        }
        for (int j = 0; j < ROOM * DIM; j++)
            if (o[j] != (j < n_q * DIM ? 0.0f : 1.0f))
                fail_msg("%s: output %d of query %d", what, j % DIM, j / DIM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_routes),
        cmocka_unit_test(test_f32),
        cmocka_unit_test(test_f16),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_q8_0),
        cmocka_unit_test(test_fp8),
        cmocka_unit_test(test_fp8_widen),
        cmocka_unit_test(test_fp8_store),
        cmocka_unit_test(test_tiles_write_their_rows_only),
        cmocka_unit_test(test_poison_stays_in_its_row),
        cmocka_unit_test(test_zeros_and_infinities_behind),
    };
    return cmocka_run_group_tests(tests, NULL, destroy_backends);
}
