/* SPDX-License-Identifier: MIT
 * tile_bench.c - how fast products with packed matrices are (bf16.h, i8.h), as a share of what this
 * machine reads and multiplies. A product is the backend's: activations from floats, outputs where
 * they belong. The program needs no library but the C one, so that it can be built in one place and
 * run in another.
 *
 * usage: tile_bench tokens [threads [format [rows columns]]]
 *            one matrix times 1 to 512 tokens (default: all cores, all formats)
 *        tile_bench ahead [threads]
 *            one token times a matrix of each format that is unpacked, asking for weights 0 to 4096
 *            bytes ahead, as a share of the read rate; the best of several rounds
 *        tile_bench survey [format ...]
 *            what the processor is and who else uses it; ceilings with real data on one thread, one
 *            a core and all; every way to order tile products, ranked; the products of a layer of
 *            two models, as a share of the ceiling. One to three minutes on 16 threads.
 */
#include "base/str.h"
#include "tile_survey.h"

#define MOST 512 /* tokens */

/* ---------------------------------------------------------------- products */

struct peaks { /* of all threads, a second */
    double bytes, int8_vec, int8_tile, bf16_vec, bf16_tile;
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

static double ops_of(struct sl_thread_pool *pool, uint8_t *loop_room, loop_fn body,
                     const char *name, double ops)
{
    double rate = ops * dots_of(pool, loop_room, body, 2000);
    printf("  %-34s %8.3f TOPS\n", name, rate * 1e-12);
    fflush(stdout);
    return rate;
}

static struct peaks ceilings(int n_threads, const uint8_t *data)
{
    struct sl_thread_pool *pool;
    struct sl_error err;
    if (sl_thread_pool_create(n_threads, &pool, &err) != 0)
        fail(err.msg);
    struct stream s = {.pool = pool, .data = data};
    enum sl_cpu_isa isa = sl_cpu_isa_best();
    uint8_t *bytes = loop_rooms(n_threads, false), *numbers = loop_rooms(n_threads, true);
    struct peaks b = {.bytes = (double)WEIGHT_BYTES / best_seconds(stream_run, &s)};
    printf("threads %d\n  %-34s %8.1f GB/s\n", n_threads, "stream read", b.bytes * 1e-9);
    fflush(stdout);
    b.int8_vec = ops_of(pool, bytes, vpdpbusd_loop, "vpdpbusd", 12 * 128);
    b.bf16_vec = b.int8_tile = b.bf16_tile = 1e30;
    if (isa >= SL_ISA_AVX512_BF16)
        b.bf16_vec = ops_of(pool, numbers, vdpbf16ps_loop, "vdpbf16ps", 12 * 64);
    if (isa >= SL_ISA_AMX) {
        b.int8_tile = ops_of(pool, bytes, int8_regs, "tdpbsud, registers only", INT8_STEP);
        ops_of(pool, bytes, int8_l1, "tdpbsud, 2x2 with loads from L1", INT8_STEP);
        b.bf16_tile = ops_of(pool, numbers, bf16_regs, "tdpbf16ps, registers only", BF16_STEP);
        ops_of(pool, numbers, bf16_l1, "tdpbf16ps, 2x2 with loads from L1", BF16_STEP);
        double rate = dots_of(pool, bytes, configure_loop, 2000) / n_threads;
        printf("  %-34s %8.1f ns\n", "ldtilecfg, tilezero, tilerelease", 1e9 / rate);
    }
    sl_aligned_free(bytes, (size_t)n_threads * LOOP_BYTES);
    sl_aligned_free(numbers, (size_t)n_threads * LOOP_BYTES);
    sl_thread_pool_destroy(pool);
    return b;
}

static void bench_all(int n_threads, const struct peaks *peak, uint8_t *store, const char *only,
                      int64_t n_rows, int64_t n_cols)
{
    static const enum sl_dtype formats[] = {SL_DTYPE_Q8_0, SL_DTYPE_Q4_K,   SL_DTYPE_Q6_K,
                                            SL_DTYPE_BF16, SL_DTYPE_Q4_1,   SL_DTYPE_Q5_0,
                                            SL_DTYPE_Q5_1, SL_DTYPE_IQ4_NL, SL_DTYPE_Q2_K};
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

static int usage(void)
{
    fprintf(stderr, "usage: tile_bench tokens [threads [format [rows columns]]]\n"
                    "       tile_bench ahead [threads]\n"
                    "       tile_bench survey [format ...]\n");
    return 2;
}

static const int ahead_bytes[] = {0, 512, 1024, 1536, 2048, 3072, 4096};

/* Rounds take turns, as what the memory gives changes while this runs. */
static void ahead_format(struct job *j, struct stream *s, uint8_t *store, enum sl_dtype t)
{
    double read = 1e9, best[SL_COUNT(ahead_bytes)];
    struct sl_i8_kernels *k = &sl_cpu(j->be)->i8;
    const size_t usual = k->ahead;
    fill_weights(j, j->be, t, 4096, 4096, store);
    j->n_tok = 1;
    for (int round = 0; round < 5; round++) {
        read = SL_MIN(read, best_seconds(stream_run, s));
        for (size_t i = 0; i < SL_COUNT(ahead_bytes); i++) {
            k->ahead = (size_t)ahead_bytes[i];
            const double now = best_seconds(job_run, j);
            best[i] = round == 0 ? now : SL_MIN(best[i], now);
        }
    }
    k->ahead = usual;
    const double rate = (double)WEIGHT_BYTES / read;
    printf("%-5s read %6.1f GB/s;", sl_dtype_info(t)->name, rate * 1e-9);
    for (size_t i = 0; i < SL_COUNT(ahead_bytes); i++) {
        const double gb = (double)j->w[0].n_bytes / best[i];
        printf("  %d: %.1f (%.0f %%)", ahead_bytes[i], gb * 1e-9, 100 * gb / rate);
    }
    printf("\n");
    fflush(stdout);
}

static int ahead_main(int argc, char **argv)
{
    static const enum sl_dtype formats[] = {SL_DTYPE_Q4_0, SL_DTYPE_Q4_K, SL_DTYPE_Q5_K,
                                            SL_DTYPE_Q6_K};
    uint64_t n = (uint64_t)sl_cpu_count();
    if (argc > 1 || (argc == 1 && !sl_parse_u64(argv[0], strlen(argv[0]), &n)) || n == 0 ||
        n > SL_MAX_THREADS)
        return usage();
    uint8_t *store = room(WEIGHT_BYTES);
    memset(store, 1, WEIGHT_BYTES);
    struct job *j = room(sizeof *j);
    float *x = room(4096 * sizeof *x), *out = room(4096 * sizeof *out);
    for (int i = 0; i < 4096; i++)
        x[i] = (float)(i % 13 - 6);
    struct sl_cpu_config cfg = {.n_threads = (int)n};
    struct sl_error err;
    *j = (struct job){.x = x, .out = out};
    struct stream s = {.data = store};
    if (sl_cpu_create(&cfg, &j->be, &err) != 0 || sl_thread_pool_create((int)n, &s.pool, &err) != 0)
        fail(err.msg);
    for (size_t i = 0; i < SL_COUNT(formats); i++)
        ahead_format(j, &s, store, formats[i]);
    sl_thread_pool_destroy(s.pool);
    j->be->vt->destroy(j->be);
    sl_aligned_free(x, 4096 * sizeof *x);
    sl_aligned_free(out, 4096 * sizeof *out);
    sl_aligned_free(j, sizeof *j);
    sl_aligned_free(store, WEIGHT_BYTES);
    return 0;
}

static int tokens_main(int argc, char **argv)
{
    uint64_t n = (uint64_t)sl_cpu_count(), size[2] = {0, 0};
    bool bad = argc > 4 || argc == 3 || (argc >= 1 && !sl_parse_u64(argv[0], strlen(argv[0]), &n));
    for (int i = 0; i < 2 && argc == 4 && !bad; i++)
        bad = !sl_parse_u64(argv[2 + i], strlen(argv[2 + i]), &size[i]) || size[i] > 1 << 16;
    if (bad || n == 0 || n > SL_MAX_THREADS)
        return usage();
    uint8_t *store = room(WEIGHT_BYTES);
    memset(store, 1, WEIGHT_BYTES);
    struct peaks peak = ceilings((int)n, store);
    bench_all((int)n, &peak, store, argc >= 2 ? argv[1] : NULL, (int64_t)size[0], (int64_t)size[1]);
    sl_aligned_free(store, WEIGHT_BYTES);
    return 0;
}

int main(int argc, char **argv)
{
    enum sl_cpu_isa isa = sl_cpu_isa_best();
    if (argc < 2 || (strcmp(argv[1], "tokens") != 0 && strcmp(argv[1], "ahead") != 0 &&
                     strcmp(argv[1], "survey") != 0))
        return usage();
    printf("isa %s, %d cores\n", sl_cpu_isa_name(isa), sl_cpu_count());
    if (isa < SL_ISA_AVX512_VNNI) {
        printf("nothing to measure: needs AVX-512 VNNI\n");
        return 0;
    }
    if (argv[1][0] == 'a')
        return ahead_main(argc - 2, argv + 2);
    return argv[1][0] == 't' ? tokens_main(argc - 2, argv + 2) : survey_main(argc - 2, argv + 2);
}
