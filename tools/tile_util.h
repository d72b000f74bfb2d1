/* SPDX-License-Identifier: MIT
 * tile_util.h - what the two halves of tile_bench.c share: time, loops on all threads of a pool,
 * random weights.
 */
#ifndef TOOLS_TILE_UTIL_H
#define TOOLS_TILE_UTIL_H

#include "base/check.h"
#include "base/limits.h"
#include "base/rng.h"
#include "base/sys.h"
#include "cpu/backend.h"
#include "quant/float.h"
#include "tile_loops.h"

#include <stdio.h>
#include <string.h>

#define WEIGHT_BYTES (384u << 20) /* copies of a matrix, more than caches hold */
#define MAX_COPIES   64

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

#define INT8_STEP (STEP_DOTS * 32768.0)
#define BF16_STEP (STEP_DOTS * 16384.0)

struct loop {
    struct sl_thread_pool *pool;
    loop_fn body;
    int n_steps;
    uint8_t *room; /* [n_threads] of LOOP_BYTES */
};

static void loop_item(void *arg, uint32_t item, int thread_idx)
{
    struct loop *l = arg;
    (void)item;
    l->body(l->n_steps, l->room + (size_t)thread_idx * LOOP_BYTES);
}

static void loop_run(void *arg)
{
    struct loop *l = arg;
    sl_thread_pool_run(l->pool, loop_item, l, (uint32_t)sl_thread_pool_n_threads(l->pool));
}

struct stream {
    struct sl_thread_pool *pool;
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
    sl_thread_pool_run(s->pool, stream_item, s, WEIGHT_BYTES / STREAM_ITEM);
}

/* Products a second of all threads of the pool. */
static double dots_of(struct sl_thread_pool *pool, uint8_t *loop_room, loop_fn body, int n_steps)
{
    struct loop l = {.pool = pool, .body = body, .n_steps = n_steps, .room = loop_room};
    return (double)n_steps * sl_thread_pool_n_threads(pool) / best_seconds(loop_run, &l);
}

static uint8_t *loop_rooms(int n_threads, bool bf16)
{
    uint8_t *p = room((size_t)n_threads * LOOP_BYTES);
    for (int i = 0; i < n_threads; i++)
        loop_fill(p + (size_t)i * LOOP_BYTES, bf16);
    return p;
}

/* ---------------------------------------------------------------- weights */

struct job {
    struct sl_backend *be;
    struct sl_weight w[MAX_COPIES];
    int n_w, next, n_tok;
    const float *x;
    float *out;
};

/* Random rows, their f16 scales small numbers. */
static void random_rows(enum sl_dtype t, uint8_t *p, size_t n)
{
    static const int scale_at[SL_DTYPE_COUNT][2] = {
        [SL_DTYPE_Q8_0] = {0, -1}, [SL_DTYPE_Q4_0] = {0, -1},   [SL_DTYPE_Q4_K] = {0, 2},
        [SL_DTYPE_Q5_K] = {0, 2},  [SL_DTYPE_Q6_K] = {208, -1}, [SL_DTYPE_Q4_1] = {0, 2},
        [SL_DTYPE_Q5_0] = {0, -1}, [SL_DTYPE_Q5_1] = {0, 2},    [SL_DTYPE_IQ4_NL] = {0, -1},
        [SL_DTYPE_Q2_K] = {80, 82}};
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
    if (be->vt->weight_create(be, SL_USE_LINEAR, t, n_rows, n_cols, rows, NULL, &w, &err) != 0)
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

#endif
