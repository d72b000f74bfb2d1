/* SPDX-License-Identifier: MIT
 * tile_bench.c - how fast the kernels over packed matrices are (bf16.h, i8.h), as a share of what
 * this machine reads and multiplies. The program needs no library
 * but the C one, so that it can be built in one place and run in another.
 *
 * usage: tile_bench [threads [format]]      (one thread and then so many; default all cores)
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/rng.h"
#include "base/str.h"
#include "base/sys.h"
#include "cpu/backend.h"
#include "quant/float.h"

#include <immintrin.h>
#include <stdio.h>
#include <string.h>

#define WEIGHT_BYTES (384u << 20) /* copies of a matrix, more than caches hold */
#define MAX_COPIES   64
#define MOST         512 /* tokens */
#define LD_ACC       (SL_I8_PANELS * SL_I8_PANEL)

static void fail(const char *what)
{
    fprintf(stderr, "tile_bench: %s\n", what);
    fflush(stdout);
    __builtin_trap();
}

static void *room(size_t n)
{
    void *p = sl_aligned_alloc(n);
    if (p == NULL)
        fail("out of memory");
    return p;
}

/* The best of several runs: the machine may be shared. */
static double best_seconds(void (*fn)(void *arg), void *arg)
{
    double best = 1e9;
    fn(arg);
    for (int i = 0; i < 7; i++) {
        uint64_t t0 = sl_now_ns(), t;
        int n = 0;
        do {
            fn(arg);
            n++;
            t = sl_now_ns();
        } while (t - t0 < 15000000);
        best = SL_MIN(best, 1e-9 * (double)(t - t0) / n);
    }
    return best;
}

/* ---------------------------------------------------------------- ceilings */

struct loop {
    struct sl_pool *pool;
    void (*body)(int n_steps, uint8_t *tiles);
    int n_steps;
    uint8_t *tiles; /* [n_threads] 16 KiB */
};

#define AVX512 __attribute__((target("avx512f")))

#define CHAIN12(op)                                                      \
    op " %%zmm30, %%zmm31, %%zmm0\n" op " %%zmm30, %%zmm31, %%zmm1\n" op \
       " %%zmm30, %%zmm31, %%zmm2\n" op " %%zmm30, %%zmm31, %%zmm3\n" op \
       " %%zmm30, %%zmm31, %%zmm4\n" op " %%zmm30, %%zmm31, %%zmm5\n" op \
       " %%zmm30, %%zmm31, %%zmm6\n" op " %%zmm30, %%zmm31, %%zmm7\n" op \
       " %%zmm30, %%zmm31, %%zmm8\n" op " %%zmm30, %%zmm31, %%zmm9\n" op \
       " %%zmm30, %%zmm31, %%zmm10\n" op " %%zmm30, %%zmm31, %%zmm11\n"

#define CLOBBERS                                                                             \
    "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", "zmm10", \
        "zmm11", "zmm30", "zmm31"

AVX512 static void vector_loop(int n_steps, bool bf16)
{
    __asm__ volatile("vpxord %%zmm30, %%zmm30, %%zmm30\n vpxord %%zmm31, %%zmm31, %%zmm31" ::
                         : "zmm30", "zmm31");
    for (int i = 0; i < n_steps; i++)
        if (bf16)
            __asm__ volatile(CHAIN12("vdpbf16ps")::: CLOBBERS);
        else
            __asm__ volatile(CHAIN12("vpdpbusd")::: CLOBBERS);
}

static void vdpbf16ps_loop(int n_steps, uint8_t *tiles)
{
    (void)tiles;
    vector_loop(n_steps, true);
}

static void vpdpbusd_loop(int n_steps, uint8_t *tiles)
{
    (void)tiles;
    vector_loop(n_steps, false);
}

static void full_tiles(void)
{
    struct {
        uint8_t palette, rest[15];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.row_bytes[i] = 64;
        c.rows[i] = 16;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(c));
}

#define TILES6(op)                                                   \
    op " %%tmm7, %%tmm6, %%tmm0\n" op " %%tmm7, %%tmm6, %%tmm1\n" op \
       " %%tmm7, %%tmm6, %%tmm2\n" op " %%tmm7, %%tmm6, %%tmm3\n" op \
       " %%tmm7, %%tmm6, %%tmm4\n" op " %%tmm7, %%tmm6, %%tmm5\n"

static void tile_int8_loop(int n_steps, uint8_t *tiles)
{
    (void)tiles;
    full_tiles();
    for (int i = 0; i < n_steps; i++)
        __asm__ volatile(TILES6("tdpbsud")::);
    __asm__ volatile("tilerelease");
}

static void tile_bf16_loop(int n_steps, uint8_t *tiles)
{
    (void)tiles;
    full_tiles();
    for (int i = 0; i < n_steps; i++)
        __asm__ volatile(TILES6("tdpbf16ps")::);
    __asm__ volatile("tilerelease");
}

/* Two by two with the loads a kernel needs, all from the L1 cache. */
#define TILES_2X2(op, p)                                                                  \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm6\n tileloadd (%2,%1,1), %%tmm4\n" op     \
                     " %%tmm6, %%tmm4, %%tmm0\n tileloadd (%3,%1,1), %%tmm7\n" op         \
                     " %%tmm7, %%tmm4, %%tmm1\n tileloadd (%4,%1,1), %%tmm5\n" op         \
                     " %%tmm6, %%tmm5, %%tmm2\n" op " %%tmm7, %%tmm5, %%tmm3\n" ::"r"(p), \
                     "r"(64L), "r"((p) + 4096), "r"((p) + 8192), "r"((p) + 12288))

static void tile_int8_loads(int n_steps, uint8_t *tiles)
{
    full_tiles();
    for (int i = 0; i < n_steps; i++)
        TILES_2X2("tdpbsud", tiles + i % 4 * 1024);
    __asm__ volatile("tilerelease");
}

static void tile_bf16_loads(int n_steps, uint8_t *tiles)
{
    full_tiles();
    for (int i = 0; i < n_steps; i++)
        TILES_2X2("tdpbf16ps", tiles + i % 4 * 1024);
    __asm__ volatile("tilerelease");
}

/* What a call that configures the tiles and releases them pays for it. */
static void configure_only(int n_steps, uint8_t *tiles)
{
    (void)tiles;
    for (int i = 0; i < n_steps; i++) {
        full_tiles();
        __asm__ volatile("tilezero %%tmm0\n tilerelease" ::);
    }
}

static void loop_item(void *arg, uint32_t item, int thread_idx)
{
    struct loop *l = arg;
    (void)item;
    l->body(l->n_steps, l->tiles + (size_t)thread_idx * 16384);
}

static void loop_run(void *arg)
{
    struct loop *l = arg;
    sl_pool_run(l->pool, loop_item, l, (uint32_t)sl_pool_n_threads(l->pool));
}

struct stream {
    struct sl_pool *pool;
    const uint8_t *data;
};
#define STREAM_ITEM (512u << 10)

AVX512 static void stream_item(void *arg, uint32_t item, int thread_idx)
{
    const struct stream *s = arg;
    const uint8_t *p = s->data + (size_t)item * STREAM_ITEM;
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    (void)thread_idx;
    for (size_t i = 0; i < STREAM_ITEM; i += 256) {
        a = _mm512_or_si512(a, _mm512_load_si512(p + i));
        b = _mm512_or_si512(b, _mm512_load_si512(p + i + 64));
        c = _mm512_or_si512(c, _mm512_load_si512(p + i + 128));
        d = _mm512_or_si512(d, _mm512_load_si512(p + i + 192));
    }
    a = _mm512_or_si512(_mm512_or_si512(a, b), _mm512_or_si512(c, d));
    __asm__ volatile("" ::"v"(a));
}

static void stream_run(void *arg)
{
    struct stream *s = arg;
    sl_pool_run(s->pool, stream_item, s, WEIGHT_BYTES / STREAM_ITEM);
}

/* ---------------------------------------------------------------- kernels */

struct bench {
    struct sl_pool *pool;
    int n_threads;
    uint8_t *weights;
    double bytes_s, int8_vec, int8_tile, bf16_vec, bf16_tile; /* of n_threads, a second */
    float *acc;                                               /* [n_threads] blocks of outputs */
    struct sl_i8_scratch *scratch;
};

struct job {
    const struct bench *b;
    const struct sl_i8_kernels *i8;
    const struct sl_bf16_kernels *bf16;
    struct sl_weight w[MAX_COPIES];
    int n_w, next, n_tok, token_block;
    int64_t n_panels, n_groups;
    size_t panel_bytes;
    const struct sl_i8_x *x; /* [groups, MOST], as the driver lays it */
    const uint16_t *x16;
    int64_t ld_x16;
};

static void i8_item(void *arg, uint32_t item, int thread_idx)
{
    const struct job *j = arg;
    struct sl_i8_scratch *s = j->b->scratch + thread_idx;
    int64_t first = (int64_t)item * SL_I8_PANELS;
    int n_panels = (int)SL_MIN(j->n_panels - first, SL_I8_PANELS);
    int at_once = j->n_tok <= SL_I8_STREAM ? 1 : n_panels;
    for (int t = 0; t < j->n_tok; t += j->token_block) {
        int n = SL_MIN(j->n_tok - t, j->token_block);
        float *acc = j->b->acc + (size_t)thread_idx * SL_I8_TOKENS * LD_ACC;
        for (int p = 0; p < n_panels; p += at_once)
            for (int64_t g = 0; g < j->n_groups; g++)
                j->i8->dot(&j->w[j->next], first + p, at_once, g, j->x + t + g * (MOST - 1), 1, n,
                           acc + p * SL_I8_PANEL, g == 0, s);
    }
}

static void bf16_item(void *arg, uint32_t item, int thread_idx)
{
    const struct job *j = arg;
    const struct sl_weight *w = &j->w[j->next];
    int64_t first = (int64_t)item * SL_BF16_PANELS;
    int n_panels = (int)SL_MIN(j->n_panels - first, SL_BF16_PANELS);
    for (int t = 0; t < j->n_tok; t += j->token_block) {
        int n = SL_MIN(j->n_tok - t, j->token_block);
        float *acc = j->b->acc + (size_t)thread_idx * SL_I8_TOKENS * LD_ACC;
        j->bf16->dot((const uint8_t *)w->data + (size_t)first * j->panel_bytes, j->panel_bytes,
                     n_panels, w->n_cols, j->x16 + t * j->ld_x16, j->ld_x16, n, acc);
    }
}

static void job_run(void *arg)
{
    struct job *j = arg;
    sl_pool_run(j->b->pool, j->i8 != NULL ? i8_item : bf16_item, j,
                (uint32_t)SL_CEIL_DIV(j->n_panels, SL_I8_PANELS));
    j->next = (j->next + 1) % j->n_w;
}

static void measure(struct job *j, size_t matrix_bytes, double peak, const char *name)
{
    const struct bench *b = j->b;
    const struct sl_weight *w = &j->w[0];
    double s = best_seconds(job_run, j);
    double gb = (double)matrix_bytes / s;
    double ops = 2.0 * (double)j->n_tok * (double)(w->n_rows * w->n_cols) / s;
    printf("%-9s %-5s %lldx%-5lld M %-4d block %-4d threads %-3d %9.1f us %6.1f GB/s %4.0f %%  "
           "%7.3f TOPS %4.0f %%\n",
           name, sl_dtype_info(w->dtype)->name, (long long)w->n_rows, (long long)w->n_cols,
           j->n_tok, j->token_block, b->n_threads, s * 1e6, gb * 1e-9, 100 * gb / b->bytes_s,
           ops * 1e-12, 100 * ops / peak);
    fflush(stdout);
}

/* Random rows, their f16 scales small numbers. */
static void random_rows(enum sl_dtype t, uint8_t *p, size_t n)
{
    static const int scale_at[SL_DTYPE_COUNT][2] = {[SL_DTYPE_Q8_0] = {0, -1},
                                                    [SL_DTYPE_Q4_0] = {0, -1},
                                                    [SL_DTYPE_Q4_K] = {0, 2},
                                                    [SL_DTYPE_Q5_K] = {0, 2},
                                                    [SL_DTYPE_Q6_K] = {208, -1}};
    struct sl_rng rng = {1, 0};
    for (size_t i = 0; i + 8 <= n; i += 8) {
        uint64_t r = sl_rng_next(&rng);
        memcpy(p + i, &r, 8);
    }
    for (size_t i = 0; i < n; i += sl_dtype_info(t)->block_bytes)
        for (int s = 0; s < 2 && t != SL_DTYPE_BF16; s++)
            if (scale_at[t][s] >= 0)
                sl_store_u16(p + i + scale_at[t][s], sl_f32_to_f16(0.001f * (float)(i % 97)));
    for (size_t i = 0; t == SL_DTYPE_BF16 && i < n; i += 2)
        sl_store_u16(p + i, (uint16_t)(0x3C00 + (p[i] | (p[i + 1] & 0x81) << 8)));
}

static void fill_weights(struct job *j, enum sl_dtype t, int64_t n_rows, int64_t n_cols)
{
    uint64_t n;
    if (!sl_dtype_bytes(t, (uint64_t)(n_rows * n_cols), &n))
        fail("columns");
    uint8_t *rows = room(n);
    random_rows(t, rows, n);
    j->n_panels = SL_CEIL_DIV(n_rows, SL_I8_PANEL);
    j->n_groups = SL_CEIL_DIV(n_cols, SL_I8_GROUP);
    j->panel_bytes = t == SL_DTYPE_BF16 ? sl_bf16_panel_bytes(n_cols)
                                        : sl_i8_layout(t, n_rows, n_cols).panel_bytes;
    size_t bytes = j->panel_bytes * (size_t)j->n_panels;
    j->n_w = (int)SL_MIN(WEIGHT_BYTES / bytes, MAX_COPIES);
    for (int i = 0; i < j->n_w; i++) {
        uint8_t *at = j->b->weights + (size_t)i * bytes;
        for (int64_t p = 0; i == 0 && p < j->n_panels; p++) {
            if (t == SL_DTYPE_BF16)
                sl_bf16_pack(n_rows, n_cols, rows, p, at + (size_t)p * j->panel_bytes);
            else
                sl_i8_pack(t, n_rows, n_cols, rows, p, at + (size_t)p * j->panel_bytes);
        }
        if (i > 0)
            memcpy(at, j->b->weights, bytes);
        j->w[i] = (struct sl_weight){
            .dtype = t, .n_rows = n_rows, .n_cols = n_cols, .data = at, .n_bytes = bytes};
    }
    sl_aligned_free(rows, n);
}

static const int batches[] = {1, 4, 8, 16, 32, 64, MOST};

static void bench_i8(const struct bench *b, enum sl_dtype t, int64_t n_rows, int64_t n_cols)
{
    struct sl_i8_kernels vnni = {0}, amx = {0};
    struct job *j = room(sizeof *j);
    struct sl_rng rng = {2, 0};
    *j = (struct job){.b = b};
    sl_i8_kernels_avx512vnni(&vnni);
    if (sl_cpu_isa_best() >= SL_ISA_AMX) {
        amx = vnni;
        sl_i8_kernels_amx(&amx);
    }
    fill_weights(j, t, n_rows, n_cols);
    size_t x_bytes = (size_t)(MOST * j->n_groups) * sizeof *j->x;
    struct sl_i8_x *x = room(x_bytes);
    float *row = room((size_t)n_cols * sizeof *row);
    for (int i = 0; i < MOST; i++) {
        for (int64_t c = 0; c < n_cols; c++)
            row[c] = (float)(sl_rng_unit(sl_rng_next(&rng)) - 0.5);
        for (int64_t g = 0; g < j->n_groups; g++)
            vnni.quantize(row + g * SL_I8_GROUP, SL_I8_GROUP, x + g * MOST + i);
    }
    j->x = x;
    for (size_t i = 0; i < SL_COUNT(batches); i++) {
        j->n_tok = batches[i];
        j->token_block = SL_I8_TOKENS;
        j->i8 = &vnni;
        measure(j, j->w[0].n_bytes, b->int8_vec, vnni.name);
        j->i8 = &amx;
        for (int block = 32; amx.dot != NULL && block <= SL_I8_TOKENS; block *= 2) {
            j->token_block = block;
            if (j->n_tok >= 8 && (j->n_tok >= block || block == 32))
                measure(j, j->w[0].n_bytes, b->int8_tile, amx.name);
        }
    }
    sl_aligned_free(row, (size_t)n_cols * sizeof *row);
    sl_aligned_free(x, x_bytes);
    sl_aligned_free(j, sizeof *j);
}

static void bench_bf16(const struct bench *b, int64_t n_rows, int64_t n_cols)
{
    struct sl_bf16_kernels vec = {0}, amx = {0};
    struct job *j = room(sizeof *j);
    *j = (struct job){.b = b};
    sl_bf16_kernels_avx512bf16(&vec);
    if (sl_cpu_isa_best() >= SL_ISA_AMX) {
        amx = vec;
        sl_bf16_kernels_amx(&amx);
    }
    fill_weights(j, SL_DTYPE_BF16, n_rows, n_cols);
    size_t x_bytes = (size_t)(MOST * (n_cols + SL_BF16_K)) * sizeof(uint16_t);
    uint16_t *x = room(x_bytes);
    random_rows(SL_DTYPE_BF16, (uint8_t *)x, x_bytes);
    j->x16 = x;
    for (size_t i = 0; i < SL_COUNT(batches); i++)
        for (int block = 64; block <= SL_BF16_TOKENS; block *= 2) {
            j->n_tok = batches[i];
            j->token_block = block;
            if ((j->n_tok < block && block != 64) || (block == 128 && j->n_tok == MOST))
                continue;
            /* a line more than a power of two keeps the tokens of a tile apart in the caches */
            for (int pad = 0; pad <= SL_BF16_K; pad += SL_BF16_K) {
                j->ld_x16 = n_cols + pad;
                j->bf16 = &vec;
                measure(j, j->w[0].n_bytes, b->bf16_vec, pad ? "bf16-dot+" : "bf16-dot");
                j->bf16 = &amx;
                if (amx.dot != NULL)
                    measure(j, j->w[0].n_bytes, b->bf16_tile, pad ? "bf16-amx+" : "bf16-amx");
            }
        }
    sl_aligned_free(x, x_bytes);
    sl_aligned_free(j, sizeof *j);
}

/* ---------------------------------------------------------------- */

static double ops_of(struct loop *l, void (*body)(int, uint8_t *), const char *name, double ops)
{
    l->body = body;
    double n = (double)l->n_steps * sl_pool_n_threads(l->pool);
    double rate = ops * n / best_seconds(loop_run, l);
    printf("  %-34s %8.3f TOPS\n", name, rate * 1e-12);
    return rate;
}

static void ceilings(struct bench *b)
{
    struct stream s = {.pool = b->pool, .data = b->weights};
    struct loop l = {.pool = b->pool, .n_steps = 20000};
    enum sl_cpu_isa isa = sl_cpu_isa_best();
    l.tiles = room((size_t)b->n_threads * 16384);
    b->bytes_s = (double)WEIGHT_BYTES / best_seconds(stream_run, &s);
    printf("threads %d\n  %-34s %8.1f GB/s\n", b->n_threads, "stream read", b->bytes_s * 1e-9);
    b->int8_vec = ops_of(&l, vpdpbusd_loop, "vpdpbusd", 12 * 128);
    b->bf16_vec = b->int8_tile = b->bf16_tile = 1e30;
    if (isa >= SL_ISA_AVX512_BF16)
        b->bf16_vec = ops_of(&l, vdpbf16ps_loop, "vdpbf16ps", 12 * 64);
    if (isa >= SL_ISA_AMX) {
        b->int8_tile = ops_of(&l, tile_int8_loop, "tdpbsud, registers only", 6 * 32768);
        ops_of(&l, tile_int8_loads, "tdpbsud, 2x2 with loads from L1", 4 * 32768);
        b->bf16_tile = ops_of(&l, tile_bf16_loop, "tdpbf16ps, registers only", 6 * 16384);
        ops_of(&l, tile_bf16_loads, "tdpbf16ps, 2x2 with loads from L1", 4 * 16384);
        l.body = configure_only;
        printf("  %-34s %8.1f ns\n", "ldtilecfg, tilezero, tilerelease",
               best_seconds(loop_run, &l) / l.n_steps * 1e9);
    }
    sl_aligned_free(l.tiles, (size_t)b->n_threads * 16384);
}

static bool wanted(const char *only, enum sl_dtype t)
{
    return only == NULL || strcmp(only, sl_dtype_info(t)->name) == 0;
}

static void bench_threads(int n_threads, uint8_t *weights, const char *only)
{
    static const enum sl_dtype formats[] = {SL_DTYPE_Q8_0, SL_DTYPE_Q4_K, SL_DTYPE_Q6_K};
    struct bench b = {.n_threads = n_threads, .weights = weights};
    struct sl_error err;
    if (sl_pool_create(n_threads, &b.pool, &err) != 0)
        fail(err.msg);
    size_t acc_bytes = (size_t)n_threads * SL_I8_TOKENS * LD_ACC * sizeof *b.acc;
    b.acc = room(acc_bytes);
    b.scratch = room((size_t)n_threads * sizeof *b.scratch);
    ceilings(&b);
    for (size_t i = 0; i < SL_COUNT(formats); i++)
        if (wanted(only, formats[i]))
            bench_i8(&b, formats[i], 4096, 4096);
    if (wanted(only, SL_DTYPE_Q8_0))
        bench_i8(&b, SL_DTYPE_Q8_0, 2048, 8192);
    if (wanted(only, SL_DTYPE_BF16) && sl_cpu_isa_best() >= SL_ISA_AVX512_BF16) {
        bench_bf16(&b, 4096, 4096);
        bench_bf16(&b, 2048, 8192);
    }
    sl_aligned_free(b.acc, acc_bytes);
    sl_aligned_free(b.scratch, (size_t)n_threads * sizeof *b.scratch);
    sl_pool_destroy(b.pool);
}

int main(int argc, char **argv)
{
    uint64_t n = (uint64_t)sl_cpu_count();
    if (argc > 3 || (argc >= 2 && !sl_parse_u64(argv[1], strlen(argv[1]), &n)) || n == 0 ||
        n > SL_MAX_THREADS) {
        fprintf(stderr, "usage: tile_bench [threads [format]]\n");
        return 2;
    }
    enum sl_cpu_isa isa = sl_cpu_isa_best();
    printf("isa %s, %d cores\n", sl_cpu_isa_name(isa), sl_cpu_count());
    if (isa < SL_ISA_AVX512_VNNI) {
        printf("nothing to measure: needs AVX-512 VNNI\n");
        return 0;
    }
    uint8_t *weights = room(WEIGHT_BYTES);
    memset(weights, 1, WEIGHT_BYTES);
    const char *only = argc == 3 ? argv[2] : NULL;
    bench_threads(1, weights, only);
    if (n > 1)
        bench_threads((int)n, weights, only);
    sl_aligned_free(weights, WEIGHT_BYTES);
    return 0;
}
