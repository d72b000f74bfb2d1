/* SPDX-License-Identifier: MIT
 * tile_bench.c - how fast products with packed matrices are (bf16.h, i8.h), as a share of what this
 * machine reads and multiplies. A product is the backend's: activations from floats, outputs where
 * they belong. The program needs no library but the C one, so that it can be built in one place and
 * run in another.
 *
 * usage: tile_bench [threads [format [rows columns]]]      (default: all cores, all formats)
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
    for (int i = 0; i < 3; i++) {
        uint64_t t0 = sl_now_ns(), t;
        int n = 0;
        do {
            fn(arg);
            n++;
            t = sl_now_ns();
        } while (t - t0 < 20000000);
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

/* ---------------------------------------------------------------- products */

struct peaks { /* of all threads, a second */
    double bytes, int8_vec, int8_tile, bf16_vec, bf16_tile;
};

struct job {
    struct sl_backend *be;
    struct sl_weight w[MAX_COPIES];
    int n_w, next, n_tok;
    const float *x;
    float *out;
};

static void job_run(void *arg)
{
    struct job *j = arg;
    const struct sl_weight *w = &j->w[j->next];
    struct sl_op_linear a = {
        .x = j->x, .ld_x = w->n_cols, .w = w, .n = j->n_tok, .out = j->out, .ld_out = w->n_rows};
    j->be->vt->linear(j->be, &a);
    j->next = (j->next + 1) % j->n_w;
}

static void measure(struct job *j, const struct peaks *peak, const char *name)
{
    const struct sl_weight *w = &j->w[0];
    bool tiles = strstr(name, "amx") != NULL;
    double top = w->dtype == SL_DTYPE_BF16 ? (tiles ? peak->bf16_tile : peak->bf16_vec)
                                           : (tiles ? peak->int8_tile : peak->int8_vec);
    double s = best_seconds(job_run, j);
    double gb = (double)w->n_bytes / s;
    double ops = 2.0 * (double)j->n_tok * (double)(w->n_rows * w->n_cols) / s;
    printf("%-9s %-5s %lldx%-6lld M %-4d %9.1f us %6.1f GB/s %4.0f %%  %7.3f TOPS %4.0f %%\n", name,
           sl_dtype_info(w->dtype)->name, (long long)w->n_rows, (long long)w->n_cols, j->n_tok,
           s * 1e6, gb * 1e-9, 100 * gb / peak->bytes, ops * 1e-12, 100 * ops / top);
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

/* Copies of one matrix, so that no cache holds them all. */
static void fill_weights(struct job *j, struct sl_backend *be, enum sl_dtype t, int64_t n_rows,
                         int64_t n_cols, uint8_t *store)
{
    uint64_t n;
    struct sl_error err;
    if (!sl_dtype_bytes(t, (uint64_t)(n_rows * n_cols), &n))
        fail("columns");
    uint8_t *rows = room(n);
    random_rows(t, rows, n);
    struct sl_weight w;
    if (be->vt->weight_create(be, SL_USE_LINEAR, t, n_rows, n_cols, rows, &w, &err) != 0)
        fail(err.msg);
    j->n_w = (int)SL_MIN(WEIGHT_BYTES / w.n_bytes, MAX_COPIES);
    for (int i = 0; i < j->n_w; i++, store += w.n_bytes) {
        memcpy(store, w.data, w.n_bytes);
        j->w[i] = w;
        j->w[i].data = store;
        j->w[i].owned = false;
    }
    be->vt->weight_destroy(be, &w);
    sl_aligned_free(rows, n);
}

static void bench(int n_threads, const struct peaks *peak, uint8_t *store, enum sl_dtype t,
                  int64_t n_rows, int64_t n_cols)
{
    static const int batches[] = {1, 4, 8, 16, 32, 48, 64, 128, MOST};
    const enum sl_cpu_isa vec = t == SL_DTYPE_BF16 ? SL_ISA_AVX512_BF16 : SL_ISA_AVX512_VNNI;
    struct job *j = room(sizeof *j);
    const size_t x_bytes = (size_t)(MOST * n_cols) * sizeof(float);
    const size_t out_bytes = (size_t)(MOST * n_rows) * sizeof(float);
    float *x = room(x_bytes);
    struct sl_rng rng = {2, 0};
    for (int64_t i = 0; i < MOST * n_cols; i++)
        x[i] = (float)(sl_rng_unit(sl_rng_next(&rng)) - 0.5);
    for (int isa = (int)vec; isa <= (int)sl_cpu_isa_best();
         isa = isa < SL_ISA_AMX ? SL_ISA_AMX : isa + 1) {
        struct sl_cpu_config cfg = {.n_threads = n_threads, .isa = (enum sl_cpu_isa)isa};
        struct sl_error err;
        *j = (struct job){.x = x, .out = room(out_bytes)};
        if (sl_cpu_create(&cfg, &j->be, &err) != 0)
            fail(err.msg);
        fill_weights(j, j->be, t, n_rows, n_cols, store);
        for (size_t i = 0; i < SL_COUNT(batches); i++) {
            j->n_tok = batches[i];
            measure(j, peak, j->be->vt->weight_route(j->be, &j->w[0]));
        }
        j->be->vt->destroy(j->be);
        sl_aligned_free(j->out, out_bytes);
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
    fflush(stdout);
    return rate;
}

static struct peaks ceilings(int n_threads, const uint8_t *data)
{
    struct sl_pool *pool;
    struct sl_error err;
    if (sl_pool_create(n_threads, &pool, &err) != 0)
        fail(err.msg);
    struct stream s = {.pool = pool, .data = data};
    struct loop l = {.pool = pool, .n_steps = 20000};
    enum sl_cpu_isa isa = sl_cpu_isa_best();
    l.tiles = room((size_t)n_threads * 16384);
    struct peaks b = {.bytes = (double)WEIGHT_BYTES / best_seconds(stream_run, &s)};
    printf("threads %d\n  %-34s %8.1f GB/s\n", n_threads, "stream read", b.bytes * 1e-9);
    fflush(stdout);
    b.int8_vec = ops_of(&l, vpdpbusd_loop, "vpdpbusd", 12 * 128);
    b.bf16_vec = b.int8_tile = b.bf16_tile = 1e30;
    if (isa >= SL_ISA_AVX512_BF16)
        b.bf16_vec = ops_of(&l, vdpbf16ps_loop, "vdpbf16ps", 12 * 64);
    if (isa >= SL_ISA_AMX) {
        b.int8_tile = ops_of(&l, tile_int8_loop, "tdpbsud, registers only", 6 * 32768);
        ops_of(&l, tile_int8_loads, "tdpbsud, 2x2 with loads from L1", 4 * 32768);
        b.bf16_tile = ops_of(&l, tile_bf16_loop, "tdpbf16ps, registers only", 6 * 16384);
        ops_of(&l, tile_bf16_loads, "tdpbf16ps, 2x2 with loads from L1", 4 * 16384);
        l.body = configure_only;
        printf("  %-34s %8.1f ns\n", "ldtilecfg, tilezero, tilerelease",
               best_seconds(loop_run, &l) / l.n_steps * 1e9);
    }
    sl_aligned_free(l.tiles, (size_t)n_threads * 16384);
    sl_pool_destroy(pool);
    return b;
}

static void bench_all(int n_threads, const struct peaks *peak, uint8_t *store, const char *only,
                      int64_t n_rows, int64_t n_cols)
{
    static const enum sl_dtype formats[] = {SL_DTYPE_Q8_0, SL_DTYPE_Q4_K, SL_DTYPE_Q6_K,
                                            SL_DTYPE_BF16};
    for (size_t i = 0; i < SL_COUNT(formats); i++) {
        enum sl_dtype t = formats[i];
        if ((only != NULL && strcmp(only, sl_dtype_info(t)->name) != 0) ||
            (t == SL_DTYPE_BF16 && sl_cpu_isa_best() < SL_ISA_AVX512_BF16))
            continue;
        if (n_rows > 0) {
            bench(n_threads, peak, store, t, n_rows, n_cols);
            continue;
        }
        bench(n_threads, peak, store, t, 4096, 4096);
        bench(n_threads, peak, store, t, 2048, 8192);
    }
}

int main(int argc, char **argv)
{
    uint64_t n = (uint64_t)sl_cpu_count(), size[2] = {0, 0};
    bool bad = argc > 5 || argc == 4 || (argc >= 2 && !sl_parse_u64(argv[1], strlen(argv[1]), &n));
    for (int i = 0; i < 2 && argc == 5 && !bad; i++)
        bad = !sl_parse_u64(argv[3 + i], strlen(argv[3 + i]), &size[i]) || size[i] > 1 << 16;
    if (bad || n == 0 || n > SL_MAX_THREADS) {
        fprintf(stderr, "usage: tile_bench [threads [format [rows columns]]]\n");
        return 2;
    }
    enum sl_cpu_isa isa = sl_cpu_isa_best();
    printf("isa %s, %d cores\n", sl_cpu_isa_name(isa), sl_cpu_count());
    if (isa < SL_ISA_AVX512_VNNI) {
        printf("nothing to measure: needs AVX-512 VNNI\n");
        return 0;
    }
    uint8_t *store = room(WEIGHT_BYTES);
    memset(store, 1, WEIGHT_BYTES);
    struct peaks peak = ceilings((int)n, store);
    bench_all((int)n, &peak, store, argc >= 3 ? argv[2] : NULL, (int64_t)size[0], (int64_t)size[1]);
    sl_aligned_free(store, WEIGHT_BYTES);
    return 0;
}
